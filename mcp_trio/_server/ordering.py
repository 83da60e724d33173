"""Members in the order that people gave them, and sets in one that is always the same.

msgspec by itself sorts the fields of classes with slots, and leaves sets to the hash seed; but a
replay has to send the same bytes.
"""

import copy
import dataclasses
import functools
import operator
from collections.abc import Callable, Collection
from typing import Any, Final

import attrs
import msgspec

from mcp_trio._server.custom_types import unstructure

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})
_encode: Final = msgspec.json.Encoder(enc_hook=unstructure).encode


def in_order(value: Any) -> Any:
    """`value` as msgspec should see it, itself if it may stay as it is; never changed in place.

    A set becomes a list, ordered by JSON text; an attrs object or dataclass a dict of its fields,
    as declared.

    Raises:
        TypeError: A member of a set has no JSON form.
    """
    kind = value.__class__
    return value if kind in _LEAVES else _row(kind)(value)


@functools.lru_cache
def _row(kind: Any) -> Callable[[Any], Any]:
    for is_row, row in _KINDS:
        if is_row(kind):
            return row
    return next((_ROWS[base] for base in kind.__mro__ if base in _ROWS), _itself)


def _itself(value: Any) -> Any:
    return value


def _set(values: Collection[Any]) -> list[Any]:
    return sorted(map(in_order, values), key=_encode)


def _sequence(values: Collection[Any]) -> Collection[Any]:
    ordered = [in_order(value) for value in values]
    return values if all(map(operator.is_, ordered, values)) else ordered


def _dict(values: dict[Any, Any]) -> dict[Any, Any]:
    ordered = {key: in_order(value) for key, value in values.items()}
    is_same = all(map(operator.is_, ordered.values(), values.values()))
    return values if is_same else ordered


_ROWS: Final[dict[type, Callable[[Any], Any]]] = {
    set: _set,
    frozenset: _set,
    list: _sequence,
    tuple: _sequence,
    dict: _dict,
}


def _struct(value: Any) -> Any:
    """A struct stays one, for its names, tag and options; msgspec keeps its order."""
    kept: Any = value
    for name in value.__struct_fields__:
        member = getattr(value, name)
        ordered = in_order(member)
        if ordered is not member:
            kept = copy.copy(value) if kept is value else kept
            msgspec.structs.force_setattr(kept, name, ordered)
    return kept


def _fields(value: Any) -> dict[str, Any]:
    names = _field_names(value.__class__)
    return {name: in_order(getattr(value, name)) for name in names if hasattr(value, name)}


@functools.lru_cache
def _field_names(kind: Any) -> tuple[str, ...]:
    """The same fields that msgspec would take."""
    if attrs.has(kind):
        return tuple(field.name for field in attrs.fields(kind) if not field.name.startswith("_"))
    return tuple(field.name for field in dataclasses.fields(kind))


_KINDS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any], Any]], ...]] = (
    (lambda kind: issubclass(kind, msgspec.Struct), _struct),
    (attrs.has, _fields),
    (dataclasses.is_dataclass, _fields),
)
