"""Structured output of tools, and its schema.

The schema comes from the annotation of what the function returns. That says nothing of data where
it is missing, or text, bytes, content or a whole result: then there is no schema. So it is too
where the annotation cannot be read, unless the registration insists on `structured=True`.

Data is checked each time, by its JSON text: an annotation promises nothing in Python, but a schema
that was listed does (TOOL-24).
"""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import attrs
import msgspec

from mcp_trio import types as s
from mcp_trio._protocol.json_schema import Schema
from mcp_trio._server.introspection import (
    bare,
    fields_of,
    has_fields,
    is_array,
    is_union,
    reachable,
)
from mcp_trio._server.results import CONTENT_TYPES
from mcp_trio._server.signatures import Signature
from mcp_trio._server.type_adapters import json_schema, structure
from mcp_trio._server.validation_errors import line
from mcp_trio.limits import Limits

_TEXT_OR_BYTES: Final = (str, bytes, bytearray, memoryview)
_ANYTHING: Final = (Any, object)
_PLACE: Final = "#/$defs/"


class Output(Protocol):
    """The data of one tool."""

    @property
    def schema(self) -> dict[str, Any]:
        """What is listed of it."""
        ...

    def mistakes(self, encoded: bytes) -> list[str]:
        """What is wrong with the JSON text of a value: short lines, or none if it fits."""
        ...


def output_of(signature: Signature, *, structured: bool | None) -> Output | None:
    """The data that a tool returns by its annotation; None if it returns content only.

    `structured` is whether there is to be data; None leaves that to the annotation.

    Raises:
        TypeError: There is to be data, but the annotation does not say which.
    """
    if structured is False:
        return None
    try:
        hint = _without_results(signature.returns)
        return None if structured is None and not _is_data(hint) else _typed(signature, hint)
    except Exception as error:
        if structured is None:
            return None
        raise TypeError(f"what {signature.handler!r} returns: {error}") from error


@attrs.frozen(eq=False)
class TypedOutput:
    """Data of an annotated type."""

    schema: dict[str, Any]
    _decode: Callable[[bytes], Any]

    def mistakes(self, encoded: bytes) -> list[str]:
        """See `Output`; the first one is enough, as it is the tool's own fault."""
        try:
            self._decode(encoded)
        except msgspec.MsgspecError as error:
            return [line(error).replace("arguments", "result", 1)]
        return []


class GivenOutput:
    """Data of a given schema.

    Raises:
        SchemaError: It cannot be used.
    """

    def __init__(self, given: Mapping[str, Any], limits: Limits) -> None:
        self.schema = dict(given)
        self._checker = Schema(given, of="result", limits=limits)

    def mistakes(self, encoded: bytes) -> list[str]:
        """See `Output`."""
        return self._checker.check(msgspec.json.decode(encoded))


def _typed(signature: Signature, hint: Any) -> TypedOutput:
    if hint in _ANYTHING:
        raise TypeError("an annotation that says more is needed")
    readable = signature.reader.readable(hint)
    schema = json_schema(readable)
    return TypedOutput(_rooted(schema), msgspec.json.Decoder(readable, dec_hook=structure).decode)


# Annotations ------------------------------------------------------------------------------------


def _without_results(hint: Any) -> Any:
    """The annotation without whole results, which may be returned instead of data."""
    if not is_union(bare(hint)):
        return hint
    rest = tuple(it for it in typing.get_args(bare(hint)) if not _is_result(it))
    union: Any = typing.Union
    return union[rest] if rest else s.Result


def _is_result(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, s.Result)


def _is_data(hint: Any) -> bool:
    """Return whether values are data in any case; nothing of what may be content is."""
    kind = bare(hint)
    if is_union(kind):
        members = [bare(it) for it in typing.get_args(kind) if it is not types.NoneType]
        return all(map(_is_data, members))
    if kind is None or kind in (types.NoneType, *_ANYTHING) or _is_text(kind) or _is_result(kind):
        return False
    if is_array(kind) and _holds_anything(kind):
        return False
    inside = reachable([kind])
    return not any(map(_is_content, inside)) and not any(map(_is_hidden, inside))


def _is_text(kind: Any) -> bool:
    if typing.get_origin(kind) is typing.Literal:
        return any(isinstance(value, str) for value in typing.get_args(kind))
    return isinstance(kind, type) and issubclass(kind, _TEXT_OR_BYTES)


def _holds_anything(kind: Any) -> bool:
    items = typing.get_args(kind)
    return not has_fields(kind) and (not items or any(bare(it) in _ANYTHING for it in items))


def _is_content(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, CONTENT_TYPES)


def _is_hidden(hint: Any) -> bool:
    """Whether what is read of a class is not all written: attrs' fields with an underscore."""
    return attrs.has(hint) and any(
        field.wire_name.startswith("_") and field.is_required for field in fields_of(hint)
    )


def _rooted(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a named type with its keywords at the root, as older revisions want it.

    Its definition stays where something else refers to it, such as a part of itself.
    """
    name = schema.get("$ref", "").removeprefix(_PLACE)
    definitions: dict[str, Any] = schema.get("$defs", {})
    if name not in definitions:
        return schema
    own: dict[str, Any] = definitions[name]
    is_used = f'"{_PLACE}{name}"'.encode() in msgspec.json.encode(definitions)
    left = {key: it for key, it in definitions.items() if key != name or is_used}
    beside = {key: it for key, it in schema.items() if key not in ("$ref", "$defs")}
    return own | beside | ({"$defs": left} if left else {})
