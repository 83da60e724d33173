"""The fields of a class, whichever library made it.

A kind of class is a row: how to know it, and how to list its fields.
"""

import dataclasses
import enum
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Final, NotRequired, Required, TypeVar

import attrs
import msgspec


@attrs.frozen(kw_only=True)
class Field:
    """One field that arrives over the wire.

    Attributes:
        name: What the constructor calls it.
        wire_name: Its key in JSON.
        hint: Its type; the parameters of a generic class are filled in.
        is_required: Whether an object without it is refused.
        default: What stands for it, if that is a plain value; else `msgspec.NODEFAULT`.
    """

    name: str
    wire_name: str
    hint: Any
    is_required: bool
    default: Any = msgspec.NODEFAULT


def class_of(hint: Any) -> Any:
    """The class of a generic one with its parameters; anything else is itself."""
    return typing.get_origin(hint) or hint


def has_fields(hint: Any) -> bool:
    """Whether a hint is a class with fields, or a generic one with its parameters."""
    kind = class_of(hint)
    return any(is_row(kind) for is_row, _ in _KINDS)


@functools.cache
def fields_of(hint: Any) -> tuple[Field, ...]:
    """The fields that such a class takes from the wire, in its own order.

    Raises:
        NameError: an annotation names something that its module does not have.
    """
    kind = class_of(hint)
    return next(tuple(row(hint)) for is_row, row in _KINDS if is_row(kind))


def keys_known(hint: Any, value: Mapping[str, Any]) -> int:
    """How many keys of an object a type knows; -1 if the object's tag is that of another."""
    if not has_fields(hint):
        return 0
    known = sum(field.wire_name in value for field in fields_of(hint))
    tag, tag_field = tag_of(hint)
    if tag is None:
        return known
    return known + 1 if value.get(tag_field) == tag else -1


def config_of(hint: Any) -> Any:
    """The options of a struct; None for all others."""
    return getattr(class_of(hint), "__struct_config__", None)


def tag_of(hint: Any) -> tuple[Any, str]:
    """The tag of a struct, and the field where it stands; None for all that have none."""
    config = config_of(hint)
    return (None, "") if config is None else (config.tag, config.tag_field or "")


def is_closed(hint: Any) -> bool:
    """Whether a class refuses keys that it does not know."""
    config = config_of(hint)
    return config is not None and config.forbid_unknown_fields


# Kinds of classes -------------------------------------------------------------------------------

_PLAIN: Final = (bool, int, float, str, type(None), enum.Enum)


def _plain(default: Any) -> Any:
    is_plain = isinstance(default, _PLAIN) and default is not attrs.NOTHING
    return default if is_plain else msgspec.NODEFAULT


def _hints(hint: Any) -> dict[str, Any]:
    kind = class_of(hint)
    filled: dict[Any, Any] = dict(
        zip(getattr(kind, "__parameters__", ()), typing.get_args(hint), strict=False)
    )
    hints = typing.get_type_hints(kind, include_extras=True)
    hints = {name: _filled(it, filled) for name, it in hints.items()}
    # A parameter of a base is another than that of the class, even if both have one name.
    own = () if typing.is_typeddict(kind) else inspect.get_annotations(kind)
    for base in filter(has_fields, reversed(_bases(kind))):
        inherited = _hints(_filled(base, filled))
        hints |= {name: it for name, it in inherited.items() if name not in own}
    return hints


def _bases(kind: Any) -> tuple[Any, ...]:
    """What a class is made from, generic ones with their parameters."""
    bases: tuple[Any, ...] = kind.__dict__.get("__orig_bases__", kind.__bases__)
    return bases


def _filled(hint: Any, values: Mapping[Any, Any]) -> Any:
    """The hint with the values of its type parameters."""
    if isinstance(hint, TypeVar):
        return values.get(hint, hint)
    generic: Any = hint
    open_ones = () if inspect.isclass(hint) else getattr(hint, "__parameters__", ())
    return generic[tuple(values.get(it, it) for it in open_ones)] if open_ones else hint


def _struct(hint: Any) -> Iterator[Field]:
    for field in msgspec.structs.fields(hint):
        yield Field(
            name=field.name,
            wire_name=field.encode_name,
            hint=field.type,
            is_required=field.required,
            default=_plain(field.default),
        )


def _attrs(hint: Any) -> Iterator[Field]:
    hints = _hints(hint)
    for field in attrs.fields(class_of(hint)):
        if field.init:
            yield Field(
                name=field.alias,
                wire_name=field.name,
                hint=hints.get(field.name, Any),
                is_required=field.default is attrs.NOTHING,
                default=_plain(field.default),
            )


def _dataclass(hint: Any) -> Iterator[Field]:
    hints = _hints(hint)
    for field in dataclasses.fields(class_of(hint)):
        if field.init:
            defaults = (field.default, field.default_factory)
            yield Field(
                name=field.name,
                wire_name=field.name,
                hint=hints[field.name],
                is_required=all(default is dataclasses.MISSING for default in defaults),
                default=_plain(field.default),
            )


def _typed_dict(hint: Any) -> Iterator[Field]:
    required = class_of(hint).__required_keys__
    for name, it in _hints(hint).items():
        mark, unmarked = _mark_of(it)
        yield Field(
            name=name,
            wire_name=name,
            hint=unmarked,
            is_required=name in required if mark is None else mark is Required,
        )


def _mark_of(hint: Any) -> tuple[Any, Any]:
    """`Required`, `NotRequired` or None, and the hint without it; metadata may stand around it."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        mark, unmarked = _mark_of(hint.__origin__)
        metadata: Any = (unmarked, *hint.__metadata__)
        return mark, Annotated[metadata]
    marked = origin in (Required, NotRequired)
    return (origin, typing.get_args(hint)[0]) if marked else (None, hint)


def _named_tuple(hint: Any) -> Iterator[Field]:
    kind = class_of(hint)
    for name, it in _hints(hint).items():
        default = kind._field_defaults.get(name, msgspec.NODEFAULT)
        yield Field(
            name=name,
            wire_name=name,
            hint=it,
            is_required=default is msgspec.NODEFAULT,
            default=_plain(default),
        )


def is_named_tuple(kind: Any) -> bool:
    """Whether a class is a `NamedTuple`, which is an array in JSON."""
    return hasattr(kind, "_fields") and inspect.isclass(kind) and issubclass(kind, tuple)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_attrs(kind: Any) -> bool:
    return isinstance(kind, type) and attrs.has(kind)


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


_KINDS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], Iterator[Field]]], ...]] = (
    (_is_struct, _struct),
    (_is_attrs, _attrs),
    (_is_dataclass, _dataclass),
    (typing.is_typeddict, _typed_dict),
    (is_named_tuple, _named_tuple),
)
