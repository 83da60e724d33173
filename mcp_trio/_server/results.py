"""From what a handler returned to the result that goes over the wire.

One table for each kind of result: the type of a value, or of one of its bases, picks the row, and
what no row knows becomes JSON text. Values that are a result already pass through untouched.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar, cast, get_args

import attrs
import msgspec

from mcp_trio._schema import (
    CallToolResult,
    Content,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    PromptMessage,
    ReadResourceResult,
    ResourceContents,
    Role,
    TextContent,
)
from mcp_trio._server.custom_types import unstructure
from mcp_trio._server.ordering import in_order

# Where bytes that a tool returns pretend to come from: embedded contents need a URI.
BYTES_URI: Final = "result:bytes"

_JSON: Final = msgspec.json.Encoder(enc_hook=unstructure)

_ROLES: Final = frozenset(get_args(Role))

Row = TypeVar("Row")


@attrs.frozen
class Image:
    """An image to return from a handler; `format` is the second half of its MIME type."""

    data: bytes
    format: str = "png"

    @property
    def mime_type(self) -> str:
        """The MIME type, such as `image/png`."""
        return f"image/{self.format}"


def _row(table: Mapping[type, Row], value: Any, default: Row) -> Row:
    for kind in type(value).__mro__:
        if kind in table:
            return table[kind]
    return default


def _base64(data: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")


def _json(value: Any) -> str:
    """JSON text: members as they were declared or added, sets in sorted order.

    Raises:
        TypeError: a value inside has no JSON form.
    """
    return _JSON.encode(in_order(value)).decode()


# Tools ------------------------------------------------------------------------------------------


def tool_result(value: Any) -> CallToolResult:
    """The result of a tool that returned `value`.

    None is no content, text is text, bytes are an embedded blob, an `Image` and content objects
    are themselves, a list or tuple that holds any of the latter is flattened; the rest is JSON.

    Raises:
        TypeError: the value has no JSON form.
    """
    if isinstance(value, CallToolResult):
        return value
    return CallToolResult(content=_contents(value))


def _contents(value: Any) -> list[Content]:
    return _row(_CONTENTS, value, _json_contents)(value)


def _json_contents(value: Any) -> list[Content]:
    return [TextContent(text=_json(value))]


def _blob_contents(value: bytes | bytearray | memoryview) -> list[Content]:
    resource = ResourceContents(
        uri=BYTES_URI, mime_type="application/octet-stream", blob=_base64(value)
    )
    return [EmbeddedResource(resource=resource)]


def _image_contents(image: Image) -> list[Content]:
    return [ImageContent(data=_base64(image.data), mime_type=image.mime_type)]


def _sequence_contents(values: list[Any] | tuple[Any, ...]) -> list[Content]:
    if any(isinstance(value, _CONTENT_TYPES) for value in values):
        return [content for value in values for content in _contents(value)]
    return _json_contents(values)


_CONTENT_TYPES: Final = (TextContent, ImageContent, EmbeddedResource, Image)

_CONTENTS: Final[dict[type, Callable[[Any], list[Content]]]] = {
    type(None): lambda _: [],
    str: lambda text: [TextContent(text=text)],
    bytes: _blob_contents,
    bytearray: _blob_contents,
    memoryview: _blob_contents,
    TextContent: lambda content: [content],
    ImageContent: lambda content: [content],
    EmbeddedResource: lambda content: [content],
    Image: _image_contents,
    list: _sequence_contents,
    tuple: _sequence_contents,
}


# Resources --------------------------------------------------------------------------------------


def resource_result(uri: str, mime_type: str | None, value: Any) -> ReadResourceResult:
    """The result of reading `uri`, when its handler returned `value`.

    Text is text, bytes and an `Image` are a blob, `ResourceContents`, alone or in a list or tuple,
    are themselves; the rest is JSON text. A `mime_type` of None is filled in by that kind.

    Raises:
        TypeError: the value has no JSON form.
    """
    if isinstance(value, ReadResourceResult):
        return value
    several = _members(value)
    if several and all(isinstance(item, ResourceContents) for item in several):
        return ReadResourceResult(contents=several)
    fill = _row(_RESOURCES, value, _json_resource)
    return ReadResourceResult(contents=[fill(uri, mime_type, value)])


def _members(value: Any) -> list[Any]:
    """The members of a list or tuple; nothing else has any."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, list | tuple) else []


def _text_resource(uri: str, mime_type: str | None, text: str) -> ResourceContents:
    return ResourceContents(uri=uri, mime_type=mime_type or "text/plain", text=text)


def _blob_resource(uri: str, mime_type: str | None, data: bytes) -> ResourceContents:
    mime_type = mime_type or "application/octet-stream"
    return ResourceContents(uri=uri, mime_type=mime_type, blob=_base64(data))


def _image_resource(uri: str, mime_type: str | None, image: Image) -> ResourceContents:
    return _blob_resource(uri, mime_type or image.mime_type, image.data)


def _json_resource(uri: str, mime_type: str | None, value: Any) -> ResourceContents:
    return _text_resource(uri, mime_type or "application/json", _json(value))


_RESOURCES: Final[dict[type, Callable[[str, str | None, Any], ResourceContents]]] = {
    str: _text_resource,
    bytes: _blob_resource,
    bytearray: _blob_resource,
    memoryview: _blob_resource,
    Image: _image_resource,
    ResourceContents: lambda _uri, _mime_type, contents: contents,
}


# Prompts ----------------------------------------------------------------------------------------


def prompt_result(description: str | None, value: Any) -> GetPromptResult:
    """The result of a prompt whose handler returned `value`.

    Text, an `Image` or a content object is one message of the user. A list of these, of
    `PromptMessage` and of pairs of role and text (or content) is a message for each; a tuple whose
    first member is a role is such a pair itself.

    Raises:
        TypeError: anything else; the text says what was returned.
    """
    if isinstance(value, GetPromptResult):
        return value
    said = [value] if _is_one_message(value) else _members(value)
    return GetPromptResult(messages=[_message(item) for item in said], description=description)


def _is_one_message(value: Any) -> bool:
    return _is_pair(value) or not isinstance(value, list | tuple)


def _is_pair(value: Any) -> bool:
    match value:
        case (str(role), _) if isinstance(value, tuple):
            return role in _ROLES
        case _:
            return False


def _message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        return value
    role: Role
    role, said = value if _is_pair(value) else ("user", value)
    if isinstance(said, (str, *_CONTENT_TYPES)):
        return PromptMessage(role=role, content=_contents(said)[0])
    raise TypeError(
        f"a prompt returns text, messages or pairs of {' or '.join(sorted(_ROLES))} and text, "
        f"but this one returned a {type(said).__name__}"
    )
