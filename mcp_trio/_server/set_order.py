"""Sets in a definite order: theirs depends on the hash seed, and a replay sends the same bytes.

Dicts and objects keep the order that people gave them.
"""

import copy
import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final

import attrs
import msgspec

from mcp_trio._server.custom_types import unstructure

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_encode: Final = msgspec.json.Encoder(enc_hook=unstructure).encode


def with_sorted_sets(value: Any) -> Any:
    """`value` itself, or a copy that has a list for each set in it, ordered by the JSON text.

    Raises:
        TypeError: A member of a set has no JSON form.
    """
    kind = value.__class__
    return value if kind in _LEAVES else _row(kind)(value)


@functools.lru_cache
def _row(kind: Any) -> Callable[[Any], Any]:
    return next((_ROWS[base] for base in kind.__mro__ if base in _ROWS), _object)


def _set(values: Collection[Any]) -> list[Any]:
    return sorted(map(with_sorted_sets, values), key=_encode)


def _sequence(values: Collection[Any]) -> Collection[Any]:
    sorted_values = [with_sorted_sets(value) for value in values]
    return values if all(map(operator.is_, sorted_values, values)) else sorted_values


def _dict(values: dict[Any, Any]) -> dict[Any, Any]:
    sorted_values = {key: with_sorted_sets(value) for key, value in values.items()}
    is_same = all(map(operator.is_, sorted_values.values(), values.values()))
    return values if is_same else sorted_values


_ROWS: Final[dict[type, Callable[[Any], Any]]] = {
    set: _set,
    frozenset: _set,
    list: _sequence,
    tuple: _sequence,
    dict: _dict,
}


def _object(value: Any) -> Any:
    changed = {
        name: sorted_member
        for name in _member_names(value.__class__)
        if (sorted_member := with_sorted_sets(member := getattr(value, name, None))) is not member
    }
    return _replaced(value, changed) if changed else value


@functools.lru_cache
def _member_names(kind: Any) -> tuple[str, ...]:
    for read in _MEMBERS:
        names = read(kind)
        if names is not None:
            return tuple(names)
    return ()


def _names(fields: Iterable[Any]) -> list[str]:
    return [field.name for field in fields]


_MEMBERS: Final[tuple[Callable[[Any], Iterable[str] | None], ...]] = (
    lambda kind: getattr(kind, "__struct_fields__", None),
    lambda kind: _names(attrs.fields(kind)) if attrs.has(kind) else None,
    lambda kind: _names(dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else None,
)


def _replaced(value: Any, members: dict[str, Any]) -> Any:
    """A copy, frozen or not, so that msgspec still sees the object's own names and options."""
    copied = copy.copy(value)
    force = (
        msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    )
    for name, member in members.items():
        force(copied, name, member)
    return copied
