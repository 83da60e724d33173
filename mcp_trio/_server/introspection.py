"""Introspection of handlers and types: functions, parameters, annotations, fields of classes.

The fields of all kinds of classes (structs, attrs, dataclasses, typed dicts, named tuples) are
described by `Field`; `_KINDS` has the function that lists the fields, for each kind of class.
"""

import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, NotRequired, Required, TypeVar, cast

import attrs
import msgspec

from mcp_trio._session.call_sites import signature_of

SCALARS: Final[frozenset[type]] = frozenset({str, int, float, bool, type(None)})
"""The classes of JSON itself, but arrays and objects; their values are immutable."""

# Handlers ---------------------------------------------------------------------------------------

_VARIADIC_FLAGS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS

_REJECTED_KINDS: Final = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values (*)",
    inspect.Parameter.VAR_KEYWORD: "takes any names (**)",
}


def plain_function(handler: Any) -> types.FunctionType:
    """Return the function inside decorators, partials, methods and callable objects.

    Raises:
        TypeError: There is no Python function: the handler is a class, a builtin, or not callable.
    """
    found = inspect.unwrap(handler)
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    if callable(found) and not inspect.isroutine(found):
        found = inspect.unwrap(type(found).__call__)
    function: Any = getattr(found, "__func__", found)
    # A `classmethod` object contains a function, but cannot be called.
    if isinstance(function, types.FunctionType) and callable(handler):
        return function
    raise TypeError(f"{handler!r} is not a Python function, method or callable object")


def called_function(function: Any) -> Any:
    """Return the function that a partial or a bound method calls."""
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__func__", function)


def name_of(handler: Any) -> str:
    """Return the name of a handler: that of its function, or else of its class."""
    called = called_function(handler)
    name: str | None = getattr(called, "__name__", None)
    return name or type(called).__name__


def is_async(handler: Any) -> bool:
    """Return whether a call of the handler has to be awaited, as far as inspection can determine.

    A plain decorator around an `async def` function counts if it uses `functools.wraps`.
    """
    seen = (handler, getattr(handler, "__call__", None), plain_function(handler))  # noqa: B004
    return any(map(inspect.iscoroutinefunction, seen))


def returns_awaitable(function: Any) -> bool:
    """Return whether a call of any callable has to be awaited, as far as `is_async` can tell."""
    try:
        return is_async(function)
    except TypeError:
        return False


def check_parameter_kinds(handler: Any, function: types.FunctionType) -> None:
    """Check that each parameter of a handler can receive an argument by name; else `TypeError`."""
    code = function.__code__
    is_method = code.co_varnames[:1] in (("self",), ("cls",))
    # These facts decide for nearly every handler, and save a call of `inspect.signature`.
    if not (code.co_flags & _VARIADIC_FLAGS or code.co_posonlyargcount or is_method):
        return
    for index, parameter in enumerate(signature_of(handler).parameters.values()):
        label = parameter_label(function, parameter.name)
        # A bound method, which is the usual handler, does not list its `self`.
        is_self = index == 0 and parameter.name in ("self", "cls")
        if is_self and parameter.annotation is inspect.Parameter.empty:
            raise TypeError(
                f"{label} receives no argument: register the method of an instance or a class, "
                f"such as `instance.{function.__name__}`"
            )
        if parameter.kind in _REJECTED_KINDS:
            raise TypeError(
                f"{label} {_REJECTED_KINDS[parameter.kind]}, "
                "but arguments arrive by name; name each parameter"
            )


def check_positional_call(function: Any, purpose: str, *names: str) -> None:
    """Check that a function can be called with as many positional arguments as there are `names`.

    The `TypeError` for another number contains the `names` and the `purpose` of the function, such
    as "the middleware".
    """
    try:
        signature_of(function).bind(*names)
    except TypeError:
        example = f"`async def {name_of(function)}({', '.join(names)})`"
        raise TypeError(f"{purpose} {name_of(function)!r} has to be {example}") from None
    except ValueError:  # It has no signature, as some callables in C.
        pass


class DeclaredParameter(NamedTuple):
    """A parameter of a handler; annotation and default are `inspect.Parameter.empty` if absent."""

    name: str
    annotation: Any
    default: Any


def declared_parameters(handler: Any) -> list[DeclaredParameter]:
    """Return the parameters of a handler that `check_parameter_kinds` has accepted.

    For a plain function this takes an eighth of the time of `inspect.signature`.
    """
    if type(handler) is not types.FunctionType or not handler.__dict__.keys().isdisjoint(
        ("__wrapped__", "__signature__")
    ):
        return [
            DeclaredParameter(item.name, item.annotation, item.default)
            for item in signature_of(handler).parameters.values()
        ]
    code = handler.__code__
    positional = code.co_varnames[: code.co_argcount]
    values = handler.__defaults__ or ()
    defaults = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
    defaults |= handler.__kwdefaults__ or {}
    annotations, empty = annotations_of(handler), inspect.Parameter.empty
    return [
        DeclaredParameter(name, annotations.get(name, empty), defaults.get(name, empty))
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    ]


def annotations_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the annotations of a function, whose names need not be defined; see `signature_of`."""
    if sys.version_info >= (3, 14):
        from annotationlib import Format, get_annotations

        return get_annotations(function, format=Format.FORWARDREF)
    return function.__annotations__


def function_label(function: types.FunctionType) -> str:
    """Return the name of a function in errors, with the file and line of its definition."""
    code = function.__code__
    return f"{function.__qualname__}() at {Path(code.co_filename).name}:{code.co_firstlineno}"


def parameter_label(function: types.FunctionType, parameter: str) -> str:
    """Return the name of a parameter in errors, with its function."""
    return f"{function_label(function)}: parameter '{parameter}'"


def resolved_hint(function: types.FunctionType, parameter: DeclaredParameter) -> Any:
    """Return the type of a parameter, `Any` if it has no annotation; `TypeError` as `_resolved`."""
    if parameter.annotation is inspect.Parameter.empty:
        return Any
    return _resolved(function, parameter.annotation, parameter.name)


def resolved_return(function: types.FunctionType) -> Any:
    """Return the return type, `Any` if it is not annotated; `TypeError` as `_resolved`."""
    return _resolved(function, annotations_of(function).get("return", Any))


def _resolved(function: types.FunctionType, annotation: Any, parameter: str | None = None) -> Any:
    """Return the type that an annotation denotes.

    Raises:
        TypeError: It cannot be resolved; the text names function and parameter.
    """
    if type(annotation) is type:
        return annotation
    holder = types.SimpleNamespace(__annotations__={"hint": annotation})
    try:
        return typing.get_type_hints(holder, function.__globals__, include_extras=True)["hint"]
    except Exception as error:
        where = parameter_label(function, parameter) if parameter else function_label(function)
        name = getattr(annotation, "__forward_arg__", annotation)
        raise TypeError(
            f"{where}: the annotation {name!r} "
            f"cannot be resolved in module {function.__module__}: {error}"
        ) from error


# Fields of classes ------------------------------------------------------------------------------


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a class that is decoded from JSON.

    Attributes:
        name: The name of the parameter of the constructor.
        wire_name: The key in JSON.
        hint: The type; the parameters of a generic class are filled in.
        default: The default, if that is a plain value; else `msgspec.NODEFAULT`.
    """

    name: str
    wire_name: str
    hint: Any
    is_required: bool
    default: Any


def class_of(hint: Any) -> Any:
    """Return the class of a generic class with parameters, or any other hint unchanged."""
    return typing.get_origin(hint) or hint


def has_fields(hint: Any) -> bool:
    """Return whether a hint is a class with fields, perhaps generic with its parameters."""
    kind = class_of(hint)
    return any(is_kind(kind) for is_kind, _ in _KINDS)


@functools.lru_cache(maxsize=512)  # bounded: a handler may make a class for each form that it asks
def fields_of(hint: Any) -> tuple[Field, ...]:
    """Return the fields of a class in its own order.

    Raises:
        NameError: An annotation uses a name that its module does not define.
    """
    kind = class_of(hint)
    return next(tuple(list_fields(hint)) for is_kind, list_fields in _KINDS if is_kind(kind))


def config_of(hint: Any) -> Any:
    """Return the configuration of a struct; None for all other classes."""
    return getattr(class_of(hint), "__struct_config__", None)


def tag_of(hint: Any) -> tuple[Any, str]:
    """Return the tag of a struct and the key of the tag; `(None, "")` for a class without a tag."""
    config = config_of(hint)
    return (None, "") if config is None else (config.tag, config.tag_field or "")


def is_closed(hint: Any) -> bool:
    """Return whether a class rejects unknown keys."""
    return getattr(config_of(hint), "forbid_unknown_fields", False)


# Kinds of classes -------------------------------------------------------------------------------


def _plain_default(default: Any) -> Any:
    is_plain = isinstance(default, (*SCALARS, enum.Enum)) and default is not attrs.NOTHING
    return default if is_plain else msgspec.NODEFAULT


def _hints(hint: Any) -> dict[str, Any]:
    kind = class_of(hint)
    values: dict[Any, Any] = dict(
        zip(getattr(kind, "__parameters__", ()), typing.get_args(hint), strict=False)
    )
    hints = typing.get_type_hints(kind, include_extras=True)
    hints = {name: _substituted(each, values) for name, each in hints.items()}
    # The hints of inherited fields have the type parameters of a base, which differ from those of
    # the class even if their names are equal. So they are taken from the base. The annotations of
    # a typed dict include inherited fields, which it must not declare again.
    own = () if is_typed_dict(kind) else inspect.get_annotations(kind)
    # Unlike `__bases__`, these bases have the parameters that the class gives them.
    bases: tuple[Any, ...] = kind.__dict__.get("__orig_bases__", kind.__bases__)
    for base in filter(has_fields, reversed(bases)):
        inherited = _hints(_substituted(base, values))
        hints |= {name: each for name, each in inherited.items() if name not in own}
    return hints


def _substituted(hint: Any, values: Mapping[Any, Any]) -> Any:
    """Return the hint with its type parameters replaced by their values."""
    if isinstance(hint, TypeVar):
        return values.get(hint, hint)
    generic: Any = hint
    parameters = () if inspect.isclass(hint) else getattr(hint, "__parameters__", ())
    return generic[tuple(values.get(each, each) for each in parameters)] if parameters else hint


def _struct_fields(hint: Any) -> Iterator[Field]:
    for field in msgspec.structs.fields(hint):
        yield Field(
            name=field.name,
            wire_name=field.encode_name,
            hint=field.type,
            is_required=field.required,
            default=_plain_default(field.default),
        )


def _attrs_fields(hint: Any) -> Iterator[Field]:
    hints = _hints(hint)
    for field in attrs.fields(class_of(hint)):
        if field.init:
            yield Field(
                name=field.alias,
                wire_name=field.name,
                hint=hints.get(field.name, Any),
                is_required=field.default is attrs.NOTHING,
                default=_plain_default(field.default),
            )


def _dataclass_fields(hint: Any) -> Iterator[Field]:
    import dataclasses  # A server that has none starts without it.

    hints = _hints(hint)
    for field in dataclasses.fields(class_of(hint)):
        if field.init:
            defaults = (field.default, field.default_factory)
            yield Field(
                name=field.name,
                wire_name=field.name,
                hint=hints[field.name],
                is_required=all(default is dataclasses.MISSING for default in defaults),
                default=_plain_default(field.default),
            )


def _typed_dict_fields(hint: Any) -> Iterator[Field]:
    required = class_of(hint).__required_keys__
    for name, qualified in _hints(hint).items():
        qualifier, unqualified = _split_qualifier(qualified)
        yield Field(
            name=name,
            wire_name=name,
            hint=unqualified,
            is_required=name in required if qualifier is None else qualifier is Required,
            default=msgspec.NODEFAULT,
        )


# Python 3.13 has `ReadOnly`; before, it is another object of another module.
_READ_ONLY: Final = ("typing.ReadOnly", "typing_extensions.ReadOnly")


def _split_qualifier(hint: Any) -> tuple[Any, Any]:
    """Return the qualifier, `Required` or `NotRequired` or None, and the hint without any."""
    origin = typing.get_origin(hint)
    if origin is Annotated:
        qualifier, unqualified = _split_qualifier(hint.__origin__)
        with_metadata: Any = (unqualified, *hint.__metadata__)
        return qualifier, Annotated[with_metadata]
    is_read_only = str(origin) in _READ_ONLY
    if not (is_read_only or origin in (Required, NotRequired)):
        return None, hint
    qualifier, unqualified = _split_qualifier(typing.get_args(hint)[0])
    return qualifier if is_read_only else origin, unqualified


def _named_tuple_fields(hint: Any) -> Iterator[Field]:
    kind = class_of(hint)
    for name, field_hint in _hints(hint).items():
        default = kind._field_defaults.get(name, msgspec.NODEFAULT)
        yield Field(
            name=name,
            wire_name=name,
            hint=field_hint,
            is_required=default is msgspec.NODEFAULT,
            default=_plain_default(default),
        )


def is_typed_dict(kind: Any) -> bool:
    """Return whether a class is a `TypedDict`, also one of `typing_extensions`.

    pydantic demands the latter before Python 3.12, and `typing.is_typeddict` does not know it.
    """
    return isinstance(kind, type) and dict in kind.__mro__ and hasattr(kind, "__required_keys__")


def is_named_tuple(kind: Any) -> bool:
    """Return whether a class is a `NamedTuple`, which is an array in JSON."""
    return hasattr(kind, "_fields") and inspect.isclass(kind) and issubclass(kind, tuple)


_KINDS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], Iterator[Field]]], ...]] = (
    (lambda kind: isinstance(kind, type) and issubclass(kind, msgspec.Struct), _struct_fields),
    (lambda kind: isinstance(kind, type) and attrs.has(kind), _attrs_fields),
    (lambda kind: hasattr(kind, "__dataclass_fields__"), _dataclass_fields),
    (is_typed_dict, _typed_dict_fields),
    (is_named_tuple, _named_tuple_fields),
)


# Annotations ------------------------------------------------------------------------------------

_NO_ARRAYS: Final = (Mapping, str, bytes, bytearray, memoryview, enum.Enum)


def is_union(hint: Any) -> bool:
    """Return whether a hint is a union, in either syntax."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def unaliased(hint: Any) -> Any:
    """Return the type that a `NewType` or a `type X = ...` names, or any other hint unchanged."""
    if isinstance(hint, typing.NewType):
        return hint.__supertype__
    origin = typing.get_origin(hint)
    if _is_alias(origin):
        return origin.__value__[typing.get_args(hint)]
    return hint.__value__ if _is_alias(hint) else hint


def _is_alias(hint: Any) -> bool:
    """Return whether a hint is a `TypeAliasType`, of `typing` or of `typing_extensions`."""
    return type(hint).__name__ == "TypeAliasType"


def strip_metadata(hint: Any) -> Any:
    """Return the hint without metadata and aliases."""
    found = hint.__origin__ if typing.get_origin(hint) is Annotated else unaliased(hint)
    return found if found is hint else strip_metadata(found)


def inner_hints(hint: Any) -> list[Any]:
    """Return the hints directly inside a hint: its fields, arguments, or aliased type."""
    if has_fields(hint):
        return [field.hint for field in fields_of(hint)]
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return [hint.__origin__]
    if unaliased(hint) is not hint:
        return [unaliased(hint)]
    return [] if origin is Literal else list(typing.get_args(hint))


def reachable(hints: Iterable[Any]) -> list[Any]:
    """Return these hints and all hints inside them, at any depth, each once."""
    found: list[Any] = []  # Not a set, because metadata may be unhashable.
    left = [*hints]
    while left:
        hint = left.pop()
        if hint not in found:
            found.append(hint)
            left += inner_hints(hint)
    return found


def is_object_type(hint: Any) -> bool:
    """Return whether values of a hint without metadata and aliases are objects in JSON."""
    kind = class_of(hint)
    if isinstance(kind, type) and issubclass(kind, Mapping):
        return True
    return has_fields(hint) and not is_array_type(hint)


def is_array_type(hint: Any) -> bool:
    """Return whether values of a hint without metadata and aliases are arrays in JSON."""
    kind = class_of(hint)
    config = config_of(kind)
    if config is not None:
        return bool(config.array_like)
    return (
        isinstance(kind, type) and issubclass(kind, Collection) and not issubclass(kind, _NO_ARRAYS)
    )


def key_counter(hint: Any) -> Callable[[Any], int]:
    """Return a function that returns how many keys of an object a type knows.

    The number chooses among the members of a union. It is -1 for a value that cannot be of the
    type, and 0 for an array that may be. The type is examined only here: there can be a million
    values.
    """
    kind = strip_metadata(hint)
    if not is_object_type(kind):
        of_array = 0 if is_array_type(kind) else -1
        return lambda value: of_array if isinstance(value, list) else -1
    names = [field.wire_name for field in fields_of(kind)] if has_fields(kind) else []
    tag, tag_field = tag_of(kind)

    def count(value: Any) -> int:
        if not isinstance(value, dict):
            return -1
        members = cast("dict[str, Any]", value)
        if tag is not None and members.get(tag_field) != tag:
            return -1
        return sum(name in members for name in names) + (tag is not None)

    return count
