"""The plain JSON of what handlers return, in an order that is always the same.

msgspec by itself sorts the fields of classes with slots, and leaves sets to the hash seed; but a
replay has to send the same bytes.
"""

import copy
import dataclasses
import functools
import operator
import pathlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec

from mcp_trio._server.converter_types import no_json_form
from mcp_trio._server.pydantic_types import is_pydantic, written

if TYPE_CHECKING:
    from cattrs import Converter

_LEAVES: Final = frozenset({str, int, float, bool, type(None)})


@attrs.define(eq=False)
class JsonWriter:
    """Writes members as they were declared or added, and sets in sorted order.

    What is not known here, `converter` writes, if there is one.
    """

    converter: "Converter | None" = None
    _encoder: msgspec.json.Encoder = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._encoder = msgspec.json.Encoder(enc_hook=self._unknown)

    def encode(self, value: Any) -> bytes:
        """The JSON text of a value.

        Raises:
            TypeError: A value inside has no JSON form.
        """
        return self._encoder.encode(self.in_order(value))

    def plain(self, value: Any) -> Any:
        """A value as lists, dicts, texts and numbers; raises as `encode` does."""
        return msgspec.to_builtins(self.in_order(value), enc_hook=self._unknown)

    def in_order(self, value: Any) -> Any:
        """`value` as msgspec should see it, itself if it may stay as it is; it never changes.

        A set becomes a list, ordered by JSON text; an attrs object or dataclass a dict of its
        fields, as declared; what is pydantic's its own plain form.

        Raises:
            TypeError: A member of a set has no JSON form.
        """
        kind = value.__class__
        return value if kind in _LEAVES else _row(kind)(value, self)

    def _unknown(self, value: Any) -> Any:
        if isinstance(value, pathlib.PurePath):
            return str(value)
        plain = value if self.converter is None else self.converter.unstructure(value)
        if plain is value:
            raise no_json_form(value.__class__)
        return self.in_order(plain)


@functools.lru_cache
def _row(kind: Any) -> Callable[[Any, JsonWriter], Any]:
    for is_row, row in _KINDS:
        if is_row(kind):
            return row
    return next((_ROWS[base] for base in kind.__mro__ if base in _ROWS), _itself)


def _itself(value: Any, _writer: JsonWriter) -> Any:
    return value


def _set(values: Collection[Any], writer: JsonWriter) -> list[Any]:
    return sorted(map(writer.in_order, values), key=writer.encode)


def _sequence(values: Collection[Any], writer: JsonWriter) -> Collection[Any]:
    ordered = [writer.in_order(value) for value in values]
    return values if all(map(operator.is_, ordered, values)) else ordered


def _dict(values: dict[Any, Any], writer: JsonWriter) -> dict[Any, Any]:
    ordered = {key: writer.in_order(value) for key, value in values.items()}
    is_same = all(map(operator.is_, ordered.values(), values.values()))
    return values if is_same else ordered


_ROWS: Final[dict[type, Callable[[Any, JsonWriter], Any]]] = {
    set: _set,
    frozenset: _set,
    list: _sequence,
    tuple: _sequence,
    dict: _dict,
}


def _struct(value: Any, writer: JsonWriter) -> Any:
    """A struct stays one, for its names, tag and options; msgspec keeps its order."""
    kept: Any = value
    for name in value.__struct_fields__:
        member = getattr(value, name)
        ordered = writer.in_order(member)
        if ordered is not member:
            kept = copy.copy(value) if kept is value else kept
            msgspec.structs.force_setattr(kept, name, ordered)
    return kept


def _fields(value: Any, writer: JsonWriter) -> dict[str, Any]:
    names = _field_names(value.__class__)
    return {name: writer.in_order(getattr(value, name)) for name in names if hasattr(value, name)}


@functools.lru_cache
def _field_names(kind: Any) -> tuple[str, ...]:
    """The same fields that msgspec would take."""
    if attrs.has(kind):
        return tuple(field.name for field in attrs.fields(kind) if not field.name.startswith("_"))
    return tuple(field.name for field in dataclasses.fields(kind))


def _pydantic(value: Any, _writer: JsonWriter) -> Any:
    return written(value)


_KINDS: Final[tuple[tuple[Callable[[Any], bool], Callable[[Any, JsonWriter], Any]], ...]] = (
    (is_pydantic, _pydantic),
    (lambda kind: issubclass(kind, msgspec.Struct), _struct),
    (attrs.has, _fields),
    (dataclasses.is_dataclass, _fields),
)
