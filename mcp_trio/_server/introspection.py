"""Annotations taken apart."""

import dataclasses
import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, Required, TypeVar, cast

import attrs
import msgspec

# --------------------
# Several mistakes in one value, told by whoever read it.


class Faults(ValueError):  # noqa: N818 - one error, many faults
    """All that is wrong with one value, as pairs of a path inside of it and a text."""

    def __init__(self, faults: Sequence[tuple[str, str]]) -> None:
        path, text = faults[0]
        super().__init__(f"{text} - at `${path}`" if path else text)
        self.faults = faults


# --------------------
# What stands behind a handler: its plain function, its parameters, what their annotations mean.


_ODD_FLAGS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS

_REJECTED_KINDS: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values (*)",
    inspect.Parameter.VAR_KEYWORD: "takes any names (**)",
}


def plain_function(handler: Any) -> types.FunctionType:
    """The function behind decorators, partials, methods and callable objects.

    Raises:
        TypeError: there is none: a class, a builtin, or nothing that can be called.
    """
    found = inspect.unwrap(handler)
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    if callable(found) and not inspect.isroutine(found):
        found = inspect.unwrap(type(found).__call__)
    function: Any = getattr(found, "__func__", found)
    if isinstance(function, types.FunctionType):
        return function
    raise TypeError(f"{handler!r} is not a Python function, method or callable object")


def behind(function: Any) -> Any:
    """What partials and bound methods call in the end."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def name_of(handler: Any) -> str:
    """The name that a handler goes by: its function's, or that of its class."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    name: str | None = getattr(handler, "__name__", None)
    return name or type(handler).__name__


def is_async(handler: Any) -> bool:
    """Whether a call has to be awaited, as far as can be told without calling.

    A plain decorator around an `async def` function counts, if it tells by `functools.wraps`.
    """
    seen = (handler, getattr(handler, "__call__", None), plain_function(handler))  # noqa: B004
    return any(map(inspect.iscoroutinefunction, seen))


def returns_awaitable(function: Any) -> bool:
    """`is_async` for anything that can be called, also what has no Python function behind it."""
    try:
        return is_async(function)
    except TypeError:
        return False


def reject_unnameable(handler: Any, function: types.FunctionType) -> None:
    """Refuse parameters that arguments by name can never fill.

    Raises:
        TypeError: naming function and parameter.
    """
    code = function.__code__
    # The flags clear nearly every handler, and spare it a whole `inspect.signature` for now.
    if not (code.co_flags & _ODD_FLAGS or code.co_posonlyargcount):
        return
    for parameter in inspect.signature(handler).parameters.values():
        if parameter.kind in _REJECTED_KINDS:
            raise TypeError(
                f"{place(function, parameter.name)} {_REJECTED_KINDS[parameter.kind]}, "
                "but arguments arrive by name; name each parameter"
            )


def place(function: types.FunctionType, parameter: str) -> str:
    """How errors name a parameter."""
    return f"{function.__module__}.{function.__qualname__}: parameter '{parameter}'"


def resolved_hint(function: types.FunctionType, parameter: inspect.Parameter) -> Any:
    """What the annotation of a parameter means.

    Raises:
        TypeError: naming function, parameter and annotation.
    """
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    return _resolved(function, parameter.annotation, place(function, parameter.name))


def resolved_return(function: types.FunctionType) -> Any:
    """What the annotation of the result means; `Any` if there is none.

    Raises:
        TypeError: naming function and annotation.
    """
    where = f"{function.__module__}.{function.__qualname__}"
    return _resolved(function, function.__annotations__.get("return", Any), where)


def _resolved(function: types.FunctionType, annotation: Any, where: str) -> Any:
    """Resolved alone, for only so can an error name the place."""
    alone = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(alone, function.__globals__, include_extras=True)["it"]
    except Exception as error:
        raise TypeError(
            f"{where}: the annotation {annotation!r} "
            f"cannot be resolved in module {function.__module__}: {error}"
        ) from error


# --------------------
# The fields of a class, whichever library made it.
#
# A kind of class is a row: how to know it, and how to list its fields.


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


# Python 3.12's `type X = ...`; nothing is an instance of an empty tuple of classes.
_ALIASES: Final[Any] = getattr(typing, "TypeAliasType", ())
_NO_ARRAYS: Final = (Mapping, str, bytes, bytearray, memoryview, enum.Enum)


def is_union(hint: Any) -> bool:
    """Whether a hint is a union, in either way to write it."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def unaliased(hint: Any) -> Any:
    """What a `NewType` or a `type X = ...` stands for; anything else stands for itself."""
    if isinstance(hint, typing.NewType):
        return hint.__supertype__
    origin = typing.get_origin(hint)
    if isinstance(origin, _ALIASES):
        return origin.__value__[typing.get_args(hint)]
    return hint.__value__ if isinstance(hint, _ALIASES) else hint


def bare(hint: Any) -> Any:
    """The hint without metadata, and without another name for it."""
    found = hint.__origin__ if typing.get_origin(hint) is Annotated else unaliased(hint)
    return found if found is hint else bare(found)


def parts(hint: Any) -> list[Any]:
    """The hints that stand directly inside of one."""
    if has_fields(hint):
        return [field.hint for field in fields_of(hint)]
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return [hint.__origin__]
    if unaliased(hint) is not hint:
        return [unaliased(hint)]
    return [] if origin is Literal else list(typing.get_args(hint))


def reachable(hints: Iterable[Any]) -> list[Any]:
    """All hints inside of these, at any depth, themselves first; each once."""
    found: list[Any] = []  # a list, as metadata may have no hash
    left = [*hints]
    while left:
        hint = left.pop()
        if hint not in found:
            found.append(hint)
            left += parts(hint)
    return found


def is_object(hint: Any) -> bool:
    """Whether values of a bare hint are objects in JSON."""
    kind = class_of(hint)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return True
    return has_fields(hint) and not is_array(hint)


def is_array(hint: Any) -> bool:
    """Whether values of a bare hint are arrays in JSON."""
    kind = class_of(hint)
    config = config_of(kind)
    if config is not None:
        return bool(config.array_like)
    return (
        isinstance(kind, type) and issubclass(kind, Collection) and not issubclass(kind, _NO_ARRAYS)
    )


def fit(hint: Any, value: Any) -> int:
    """How well an object or array fits a type: the number of keys it knows, -1 if not at all."""
    kind = bare(hint)
    if isinstance(value, Mapping):
        return keys_known(kind, cast("Mapping[str, Any]", value)) if is_object(kind) else -1
    return 0 if isinstance(value, list) and is_array(kind) else -1
