"""Python values as JSON from which the same values can be decoded, with their types.

What JSON has stays as it is. Each other value is an object with two members: `$` has the name of
its type, and `of` its content. So `(1, 2)` becomes `{"$": "tuple", "of": [1, 2]}`. A dict is
encoded in this way too if it has the key `$`, or a key that is not a string.

There are three kinds of types: those of `_FORMS`; enumerations and named tuples; and classes whose
fields are declared by `dataclasses`, attrs or msgspec. The name of a class has its module,
which must be loaded: decoding imports nothing. It sets the fields without calling `__init__`,
but msgspec calls `__post_init__`. An object with other attributes than its fields cannot be
encoded.
"""

import base64
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, Final, cast
from uuid import UUID

import attrs
import msgspec

from mcp_trio._journal.records import encode_body

_TAG, _CONTENT = "$", "of"
_QUOTED_TAG: Final = b'"$"'
_ZONE: Final = "ZoneInfo"
_JSON_TYPES: Final = frozenset({str, int, bool, NoneType})


class _UnknownTypeError(Exception):
    """A value has a type that cannot be encoded; the text is the name of the type."""


def encode_tagged(value: Any) -> bytes:
    """Return the JSON of a value.

    Raises:
        ValueError: The value cannot be encoded, or the decoded JSON would be another value. The
            text follows "has a value".
    """
    try:
        if _is_plain(value):
            encoded = encode_body(value)
            is_same = msgspec.json.decode(encoded) == value
        else:
            encoded = encode_body(_tagged(value))
            again = _tagged(_untagged(msgspec.json.decode(encoded)))
            is_same = encode_body(again) == encoded
    except _UnknownTypeError as error:
        raise ValueError(f"of the type {error}") from None
    # For example half of a surrogate pair, a list that contains itself, or an error of a class.
    except Exception as error:
        raise ValueError(f"that cannot be encoded ({type(error).__name__}: {error})") from error
    if not is_same:
        raise ValueError("that would be another one")
    return encoded


def decode_tagged(encoded: bytes) -> Any:
    """Return the value of JSON that `encode_tagged` has returned.

    Raises:
        ValueError: A class is not loaded, or has other fields than before; or the JSON is damaged.
    """
    try:
        value = msgspec.json.decode(encoded)
        return _untagged(value) if _QUOTED_TAG in encoded else value
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _is_plain(value: Any) -> bool:
    """Return whether a value consists of exactly the types that JSON becomes in Python."""
    kind: Any = value.__class__
    if kind is dict:
        return _TAG not in value and all(
            type(key) is str and _is_plain(each) for key, each in value.items()
        )
    if kind is list:
        return all(map(_is_plain, value))
    return kind in _JSON_TYPES or (kind is float and math.isfinite(value))


def _tagged(value: Any) -> Any:
    """Return a value as what JSON has."""
    kind: Any = value.__class__  # A subclass of `int` is another type.
    if kind in _JSON_TYPES or (kind is float and math.isfinite(value)):
        return value
    if kind is list:
        return [_tagged(each) for each in value]
    if kind is dict:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: _tagged(each) for key, each in value.items()}
        pairs = [[_tagged(key), _tagged(each)] for key, each in value.items()]
        return {_TAG: "dict", _CONTENT: pairs}
    if kind in _FORMS:
        content = _tagged(_FORMS[kind][0](value))
        if kind in (set, frozenset):
            content.sort(key=encode_body)  # Equal sets have the same JSON.
        return {_TAG: kind.__name__, _CONTENT: content}
    name = f"{kind.__module__}:{kind.__qualname__}"
    if name == "zoneinfo:ZoneInfo":
        return {_TAG: _ZONE, _CONTENT: value.key}
    try:
        is_known = _class_of(name) is kind
        content = _tagged(_content(kind, value)) if is_known else None
    except (LookupError, TypeError, AttributeError):
        is_known, content = False, None
    if not is_known:
        raise _UnknownTypeError(name.replace(":", "."))
    return {_TAG: name, _CONTENT: content}


def _untagged(value: Any) -> Any:
    """Return the value that `_tagged` has got."""
    if value.__class__ is list:
        return [_untagged(each) for each in value]
    if value.__class__ is not dict:
        return value
    if _TAG not in value:
        return {key: _untagged(each) for key, each in value.items()}
    name, content = value[_TAG], _untagged(value[_CONTENT])
    if name == "dict":
        return dict(content)
    if name in _MAKERS:
        return _MAKERS[name](content)
    kind: Any = _class_of(name)
    if Enum in kind.__mro__:
        return kind(content)
    fields = _fields(kind)
    if content.keys() != set(fields):
        raise ValueError(f"{name} has other fields now")
    if tuple in kind.__mro__:
        make = cast("Any", tuple).__new__  # A named tuple may have its own `__new__`.
        return make(kind, [content[each] for each in fields])
    if msgspec.Struct in kind.__mro__:
        return kind(**content)
    made = object.__new__(kind)
    for field, each in content.items():
        object.__setattr__(made, field, each)
    return made


# Classes ----------------------------------------------------------------------------------------


def _class_of(name: str) -> type:
    """Return the class with this name in a loaded module.

    Raises:
        LookupError: There is none.
        AttributeError, TypeError: The name is that of something else, or of another kind of class.
    """
    module, _, path = name.partition(":")
    found: Any = sys.modules[module]
    for part in path.split("."):
        found = found.__dict__[part]  # `getattr` could call a function of the module.
    if Enum not in found.__mro__:
        _fields(found)
    return found  # type: ignore[no-any-return]


def _fields(kind: Any) -> Sequence[str]:
    """Return the fields that a class declares.

    Raises:
        AttributeError, TypeError: It declares none.
    """
    if tuple in kind.__mro__:
        return kind._fields  # type: ignore[no-any-return]
    if msgspec.Struct in kind.__mro__:
        return kind.__struct_fields__  # type: ignore[no-any-return]
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    import dataclasses

    return [field.name for field in dataclasses.fields(kind)]


def _content(kind: Any, value: Any) -> Any:
    """Return the value of a member of an enumeration, or the fields of another object.

    Raises:
        AttributeError: A field has no value.
        TypeError: The object has other attributes than its fields.
    """
    if Enum in kind.__mro__:
        return value.value
    fields, attributes = _fields(kind), dict[str, Any]()
    if tuple in kind.__mro__ or msgspec.Struct in kind.__mro__:
        attributes = {field: getattr(value, field) for field in fields}
        attributes |= getattr(value, "__dict__", {})
    else:
        state: Any = object.__getstate__(value)
        parts: Sequence[Any] = state if state.__class__ is tuple else [state]
        for part in parts:  # those of the object's dict, and those in slots
            attributes |= part or {}
    if attributes.keys() != set(fields):
        raise TypeError("the object has other attributes than its fields")
    return attributes


# Other types ------------------------------------------------------------------------------------


def _zone_parts(zone: timezone) -> list[Any]:
    offset, name = zone.utcoffset(None), zone.tzname(None)
    return [offset] if timezone(offset).tzname(None) == name else [offset, name]


def _time_parts(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.tzinfo, value.fold]


def _made_time(kind: Any) -> Callable[[Any], Any]:
    return lambda parts: kind.fromisoformat(parts[0]).replace(tzinfo=parts[1], fold=parts[2])


def _zone_info(key: str) -> Any:
    from zoneinfo import ZoneInfo  # Few servers need it, and it is slow to import.

    return ZoneInfo(key)


# For each type: the functions that return its content, and the value of a content.
_FORMS: Final[Mapping[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
    float: (repr, float),  # infinity, and not a number
    tuple: (list, tuple),
    set: (list, set),
    frozenset: (list, frozenset),
    bytes: (lambda value: base64.b64encode(value).decode(), base64.b64decode),
    date: (date.isoformat, date.fromisoformat),
    datetime: (_time_parts, _made_time(datetime)),
    time: (_time_parts, _made_time(time)),
    timedelta: (
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda parts: timedelta(*parts),
    ),
    timezone: (_zone_parts, lambda parts: timezone(*parts)),
    Decimal: (str, Decimal),
    UUID: (str, UUID),
}
_MAKERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    kind.__name__: make for kind, (_, make) in _FORMS.items()
} | {_ZONE: _zone_info}
