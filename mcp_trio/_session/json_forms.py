"""JSON forms of Python values, from which the same values can be made again, with their types.

What JSON has stays as it is. A JSON object with the single key `$` and a name stands for a value
that JSON lacks, such as `{"$bytes": "a"}` for bytes. An object of the user with such a key is
itself wrapped, as `{"$dict": {...}}`, so the two cannot be confused. Bytes have the text that
Latin-1 decodes from them, because redaction searches texts.

`encode_value` also has forms for enumerations, named tuples, and objects of classes whose fields
are declared by `dataclasses`, attrs or msgspec. A class is found in the modules that are imported
already. An object is made from its fields without a call of `__init__`, but msgspec calls
`__post_init__`. An object with other attributes than its fields has no form.
"""

import datetime as dt
import decimal
import enum
import math
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import attrs
import msgspec

from mcp_trio._journal.records import encode_body

FormWriter: TypeAlias = Callable[[Any, int], Any]
"""Returns the form of a value, given the number of levels that it may have."""

FormReader: TypeAlias = Callable[[Any], Any]
"""Returns the value of the content of a form."""

_LEVELS_MAX: Final = 32
_INTEGER_MIN: Final = -(2**63)
_INTEGER_MAX: Final = 2**63 - 1

# The names of the module that a process started with: that of Python, and of `mcp-trio FILE.py`.
_MAIN_MODULES: Final = ("__main__", "__mcp_main__")


class NoJsonForm(Exception):  # noqa: N818  it leads to another way to record a value
    """A value has no JSON form; the text is the name of its type."""


def json_form(value: Any, form_of_other: FormWriter, levels: int = _LEVELS_MAX) -> Any:
    """Return the form of a value.

    Args:
        value: The value.
        form_of_other: Returns the form of a value whose type is not in the tables of this module.
        levels: The levels of values within one another that `value` may have.

    Raises:
        NoJsonForm: There is none, because of the type of the value or of one inside it.
    """
    kind = cast("type[object]", type(value))
    if not levels:
        raise NoJsonForm(f"{kind.__name__} in {_LEVELS_MAX} others")
    if value is None or kind is bool or (kind is str and _is_encodable(value)):
        return value
    if kind is int and _INTEGER_MIN <= value <= _INTEGER_MAX:
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is list:
        return [json_form(item, form_of_other, levels - 1) for item in value]
    if kind is dict:
        items = [
            [json_form(item, form_of_other, levels - 1) for item in pair] for pair in value.items()
        ]
        if not all(type(key) is str and _is_encodable(key) for key in value):
            return {"$items": items}
        form = dict(items)
        return {"$dict": form} if _tag(form) is not None else form
    if kind in _SEQUENCES:
        forms = [json_form(item, form_of_other, levels - 1) for item in value]
        if kind is not tuple:
            forms.sort(key=encode_body)  # Equal sets have the same form.
        return {_SEQUENCES[kind]: forms}
    if kind in _SCALARS:
        tag, to_form, _ = _SCALARS[kind]
        return {tag: to_form(value)}
    return form_of_other(value, levels)


def value_of(form: Any, readers: Mapping[str, FormReader]) -> Any:
    """Return the value of a form; `readers` read the forms of other types, by their tags.

    Raises:
        KeyError: The tag is unknown.
    """
    if isinstance(form, list):
        return [value_of(item, readers) for item in cast("Iterable[Any]", form)]
    if not isinstance(form, dict):
        return form
    members = cast("dict[str, Any]", form)
    tag = _tag(members)
    if tag is None:
        return {name: value_of(inner, readers) for name, inner in members.items()}
    content = members[tag]
    if tag == "$dict":
        return {name: value_of(inner, readers) for name, inner in content.items()}
    if tag == "$items":
        return {value_of(name, readers): value_of(inner, readers) for name, inner in content}
    if tag in _FROM_SEQUENCES:
        return _FROM_SEQUENCES[tag](value_of(item, readers) for item in content)
    return (readers.get(tag) or _FROM_SCALARS[tag])(content)


def _tag(members: Mapping[str, Any]) -> str | None:
    """Return the name of the type for which a JSON object stands; None if it stands for itself."""
    name = next(iter(members)) if len(members) == 1 else ""
    return name if name.startswith("$") else None


def _is_encodable(text: str) -> bool:
    return text.isascii() or encodable(text) == text


def encodable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def _form_of_datetime(value: dt.datetime) -> list[Any]:
    zone = value.tzinfo
    if zone is None or type(zone) is dt.timezone:
        return [value.isoformat(), value.fold]
    key: str | None = getattr(zone, "key", None)
    if key is None or type(zone).__module__ != "zoneinfo":
        raise NoJsonForm(type(zone).__name__)
    return [value.replace(tzinfo=None).isoformat(), value.fold, key]


def _form_of_time(value: dt.time) -> list[Any]:
    if value.tzinfo is not None and type(value.tzinfo) is not dt.timezone:
        raise NoJsonForm(type(value.tzinfo).__name__)
    return [value.isoformat(), value.fold]


def _time_of(form: Sequence[Any]) -> dt.time:
    return dt.time.fromisoformat(form[0]).replace(fold=form[1])


def _datetime_of(form: Sequence[Any]) -> dt.datetime:
    value = dt.datetime.fromisoformat(form[0]).replace(fold=form[1])
    if len(form) == len(("time", "fold")):
        return value
    from zoneinfo import ZoneInfo  # Few servers need it, and it is slow to import.

    return value.replace(tzinfo=ZoneInfo(form[2]))


_SEQUENCES: Final[dict[type, str]] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_FROM_SEQUENCES: Final[Mapping[str, FormReader]] = {tag: kind for kind, tag in _SEQUENCES.items()}

# For each type: its tag, the form of a value, and the value of a form.
_SCALARS: Final[dict[type, tuple[str, Callable[[Any], Any], FormReader]]] = {
    bytes: ("$bytes", lambda value: value.decode("latin-1"), lambda form: form.encode("latin-1")),
    bytearray: (
        "$bytearray",
        lambda value: value.decode("latin-1"),
        lambda form: bytearray(form, "latin-1"),
    ),
    str: (
        "$str",
        lambda value: value.encode("utf-8", "surrogatepass").decode("latin-1"),
        lambda form: form.encode("latin-1").decode("utf-8", "surrogatepass"),
    ),
    int: ("$int", hex, lambda form: int(form, 16)),
    float: ("$float", repr, float),
    complex: ("$complex", repr, complex),
    decimal.Decimal: ("$decimal", str, decimal.Decimal),
    uuid.UUID: ("$uuid", str, uuid.UUID),
    dt.datetime: ("$datetime", _form_of_datetime, _datetime_of),
    dt.time: ("$time", _form_of_time, _time_of),
    dt.date: ("$date", dt.date.isoformat, dt.date.fromisoformat),
    dt.timedelta: (
        "$timedelta",
        lambda value: [value.days, value.seconds, value.microseconds],
        lambda form: dt.timedelta(*form),
    ),
    type(Path()): ("$path", str, Path),
}
_FROM_SCALARS: Final[Mapping[str, FormReader]] = {
    tag: from_form for tag, _, from_form in _SCALARS.values()
}


# Classes ------------------------------------------------------------------------------------------


def type_name(kind: type) -> str:
    """Return the name by which `found_class` finds a class, also in another process."""
    return f"{_module_name(kind.__module__)}.{kind.__qualname__}"


def _module_name(name: str) -> str:
    """Return the name under which a module can be imported, also if the process started with it."""
    module = sys.modules.get(name)
    if name not in _MAIN_MODULES or module is None:
        return name
    if module.__spec__ is not None and module.__spec__.name not in _MAIN_MODULES:
        return module.__spec__.name
    return name if getattr(module, "__file__", None) is None else Path(str(module.__file__)).stem


def found_class(name: str, is_wanted: Callable[[type], bool]) -> type[Any] | None:
    """Return the class of this name in the modules that are imported already."""
    names = name.split(".")
    for main in _MAIN_MODULES:
        prefix = f"{_module_name(main)}."
        if name.startswith(prefix):
            found = class_in(main, name.removeprefix(prefix).split("."), is_wanted)
            if found is not None:
                return found
    for count in range(len(names) - 1, 0, -1):
        found = class_in(".".join(names[:count]), names[count:], is_wanted)
        if found is not None:
            return found
    return None


def class_in(
    module: str, path: Sequence[str], is_wanted: Callable[[type], bool]
) -> type[Any] | None:
    """Return the class with this path in a module; None if it is not there, or not wanted."""
    found: Any = sys.modules.get(module)
    for step in path:
        found = getattr(found, step, None)
    return cast("type[Any]", found) if isinstance(found, type) and is_wanted(found) else None


# Values with objects ------------------------------------------------------------------------------


def encode_value(value: Any) -> bytes:
    """Return the JSON of a value, which may have objects.

    Raises:
        ValueError: The value has no form, or the value of the form would be another one. The text
            follows "has a value".
    """
    try:
        if _is_plain(value):
            encoded = encode_body(value)
            is_same = msgspec.json.decode(encoded) == value
        else:
            encoded = encode_body(json_form(value, _form_of_object))
            again = json_form(
                value_of(msgspec.json.decode(encoded), _OBJECT_READERS), _form_of_object
            )
            is_same = encode_body(again) == encoded
    except NoJsonForm as error:
        raise ValueError(f"of the type {error}") from None
    # For example a list that contains itself, or an error of a class.
    except Exception as error:
        raise ValueError(f"without a JSON form ({type(error).__name__}: {error})") from error
    if not is_same:
        raise ValueError("that JSON would change")
    return encoded


def decode_value(encoded: bytes) -> Any:
    """Return the value of JSON that `encode_value` has returned.

    Raises:
        ValueError: A class is not there, or has other fields than before; or the JSON is damaged.
    """
    try:
        form = msgspec.json.decode(encoded)
        return value_of(form, _OBJECT_READERS) if b'"$' in encoded else form
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _is_plain(value: Any) -> bool:
    """Return whether a value is its own form: most are, and this is faster than `json_form`."""
    kind: Any = value.__class__
    if kind is dict:
        is_plain = all(
            type(key) is str and _is_encodable(key) and _is_plain(each)
            for key, each in value.items()
        )
        return is_plain and _tag(value) is None
    if kind is list:
        return all(map(_is_plain, value))
    if kind is str:
        return _is_encodable(value)
    return (
        value is None
        or kind is bool
        or (kind is int and _INTEGER_MIN <= value <= _INTEGER_MAX)
        or (kind is float and math.isfinite(value))
    )


def _form_of_object(value: Any, levels: int) -> Any:
    kind: Any = value.__class__
    name = type_name(kind)
    is_found = found_class(name, _has_fields) is kind
    if not is_found:
        raise NoJsonForm(name)
    if enum.Enum in kind.__mro__:
        if value.name not in kind.__members__:  # a combination of flags
            raise NoJsonForm(name)
        return {"$enum": [name, value.name]}
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
        raise NoJsonForm(name)
    forms = {field: json_form(attributes[field], _form_of_object, levels - 1) for field in fields}
    return {"$object": [name, forms]}


def _has_fields(kind: Any) -> bool:
    return enum.Enum in kind.__mro__ or bool(_fields(kind))


def _fields(kind: Any) -> Sequence[str]:
    """Return the fields that a class declares; nothing if it declares none."""
    if tuple in kind.__mro__:
        return getattr(kind, "_fields", ())
    if msgspec.Struct in kind.__mro__:
        return kind.__struct_fields__  # type: ignore[no-any-return]
    if attrs.has(kind):
        return [field.name for field in attrs.fields(kind)]
    if not hasattr(kind, "__dataclass_fields__"):
        return ()
    import dataclasses

    return [field.name for field in dataclasses.fields(kind)]


def _object_of(form: Sequence[Any]) -> Any:
    name, forms = form
    kind: Any = _wanted_class(name)
    fields = _fields(kind)
    values = {field: value_of(each, _OBJECT_READERS) for field, each in forms.items()}
    if values.keys() != set(fields):
        raise TypeError(f"{name} has other fields")
    if tuple in kind.__mro__:
        make = cast("Any", tuple).__new__  # A named tuple may have its own `__new__`.
        return make(kind, [values[each] for each in fields])
    if msgspec.Struct in kind.__mro__:
        return kind(**values)
    made = object.__new__(kind)
    for field, each in values.items():
        object.__setattr__(made, field, each)
    return made


def _wanted_class(name: str) -> Any:
    found = found_class(name, _has_fields)
    if found is None:
        raise LookupError(f"there is no class {name}")
    return found


_OBJECT_READERS: Final[Mapping[str, FormReader]] = {
    "$enum": lambda form: _wanted_class(form[0])[form[1]],
    "$object": _object_of,
}
