"""Annotations taken apart."""

import enum
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, cast

from mcp_trio._server.fields import class_of, config_of, fields_of, has_fields, keys_known

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
