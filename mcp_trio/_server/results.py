"""From what a handler returned to the result that goes over the wire.

One table for each kind of result: the type of a value, or of one of its bases, picks the row, and
what no row knows becomes JSON text. Values that are a result already pass through untouched, except
that the contents that a prompt embeds get a MIME type, if they have none.
"""

import base64
import os
import pathlib
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
from mcp_trio._server.ordering import JsonWriter

# Where bytes that a tool returns pretend to come from: embedded contents need a URI.
BYTES_URI: Final = "result:bytes"

# What contents are called whose type nobody says.
_TEXT_TYPE: Final = "text/plain"
_BYTES_TYPE: Final = "application/octet-stream"

_ROLES: Final = frozenset(get_args(Role))

Row = TypeVar("Row")

# How the data of an image begin, from which byte on, and the format that this tells.
_BEGINNINGS: Final = (
    (0, b"\x89PNG", "png"),
    (0, b"\xff\xd8\xff", "jpeg"),
    (0, b"GIF8", "gif"),
    (8, b"WEBP", "webp"),
    (4, b"ftypavif", "avif"),
    (0, b"BM", "bmp"),
    (0, b"II*\0", "tiff"),
    (0, b"MM\0*", "tiff"),
    (0, b"<svg", "svg+xml"),
)
_SUFFIXES: Final = {"": "png", "jpg": "jpeg", "svg": "svg+xml", "tif": "tiff"}


@attrs.frozen(init=False)
class Image:
    """An image to return from a handler, from bytes or from a file that is read at once.

    Attributes:
        data: The bytes of the image.
        format: The second half of its MIME type. If it is not given, the first bytes tell it, or
            else the file's suffix; if nothing does, it is `png`.
    """

    data: bytes
    format: str

    def __init__(
        self,
        data: bytes | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,  # noqa: A002 - the word of every image library
    ) -> None:
        """Take the bytes, or read the file.

        Raises:
            TypeError: There have to be either `data` or a `path`.
            OSError: The file cannot be read.
        """
        if (data is None) is (path is None):
            raise TypeError("an Image is made of data or of a path, one of the two")
        found = pathlib.Path(path).read_bytes() if path is not None else data or b""
        suffix = pathlib.PurePath(path or "").suffix
        object.__setattr__(self, "data", found)
        object.__setattr__(self, "format", format or _format(found, suffix))

    @property
    def mime_type(self) -> str:
        """The MIME type, such as `image/png`."""
        return f"image/{self.format}"


def _format(data: bytes, suffix: str) -> str:
    for start, beginning, name in _BEGINNINGS:
        if data.startswith(beginning, start):
            return name
    suffix = suffix.removeprefix(".").lower()
    return _SUFFIXES.get(suffix, suffix)


def _row(table: Mapping[type, Row], value: Any) -> Row | None:
    for kind in type(value).__mro__:
        if kind in table:
            return table[kind]
    return None


def _base64(data: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")


# Tools ------------------------------------------------------------------------------------------


def tool_result(value: Any, writer: JsonWriter) -> CallToolResult:
    """The result of a tool that returned `value`.

    None is no content, text is text, bytes are an embedded blob, an `Image` and content objects
    are themselves, a list or tuple that holds any of the latter is flattened; the rest is JSON.
    Generators are refused: what they would still do, nobody waits for.

    Raises:
        TypeError: the value has no JSON form.
    """
    if isinstance(value, CallToolResult):
        return value
    return CallToolResult(content=_contents(value, writer))


def _contents(value: Any, writer: JsonWriter) -> list[Content]:
    several = _members(value)
    if several and any(isinstance(item, _CONTENT_TYPES) for item in several):
        return [content for item in several for content in _contents(item, writer)]
    row = _row(_CONTENTS, value)
    return [TextContent(text=writer.encode(value).decode())] if row is None else row(value)


def _blob_contents(value: bytes | bytearray | memoryview) -> list[Content]:
    resource = ResourceContents(uri=BYTES_URI, mime_type=_BYTES_TYPE, blob=_base64(value))
    return [EmbeddedResource(resource=resource)]


def _image_contents(image: Image) -> list[Content]:
    return [ImageContent(data=_base64(image.data), mime_type=image.mime_type)]


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
}


# Resources --------------------------------------------------------------------------------------


def resource_result(
    uri: str, mime_type: str | None, value: Any, writer: JsonWriter
) -> ReadResourceResult:
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
    row = _row(_RESOURCES, value)
    if row is None:
        row, value = _text_resource, writer.encode(value).decode()
        mime_type = mime_type or "application/json"
    return ReadResourceResult(contents=[row(uri, mime_type, value)])


def _members(value: Any) -> list[Any]:
    """The members of a list or tuple; nothing else has any."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, list | tuple) else []


def _text_resource(uri: str, mime_type: str | None, text: str) -> ResourceContents:
    return ResourceContents(uri=uri, mime_type=mime_type or _TEXT_TYPE, text=text)


def _blob_resource(uri: str, mime_type: str | None, data: bytes) -> ResourceContents:
    return ResourceContents(uri=uri, mime_type=mime_type or _BYTES_TYPE, blob=_base64(data))


def _image_resource(uri: str, mime_type: str | None, image: Image) -> ResourceContents:
    return _blob_resource(uri, mime_type or image.mime_type, image.data)


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
    first member is a role is such a pair itself. Embedded contents without a MIME type get one.

    Raises:
        TypeError: anything else; the text says what was returned.
    """
    if isinstance(value, GetPromptResult):
        return msgspec.structs.replace(value, messages=[*map(_typed, value.messages)])
    said = [value] if _is_one_message(value) else _members(value)
    return GetPromptResult(messages=[_typed(_message(it)) for it in said], description=description)


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
    row = _row(_CONTENTS, said) if isinstance(said, (str, *_CONTENT_TYPES)) else None
    if row is None:
        raise TypeError(
            f"a prompt returns text, messages or pairs of {' or '.join(sorted(_ROLES))} and text, "
            f"but this one returned a {type(said).__name__}"
        )
    return PromptMessage(role=role, content=row(said)[0])


def _typed(message: PromptMessage) -> PromptMessage:
    """The message, or a copy: what a prompt embeds has to have a MIME type (PROM-09)."""
    content = message.content
    if not isinstance(content, EmbeddedResource) or content.resource.mime_type:
        return message
    mime_type = _BYTES_TYPE if content.resource.text is None else _TEXT_TYPE
    resource = msgspec.structs.replace(content.resource, mime_type=mime_type)
    return msgspec.structs.replace(
        message, content=msgspec.structs.replace(content, resource=resource)
    )
