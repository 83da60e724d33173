"""From what a handler returned to the result that goes over the wire.

One table for each kind of result: the type of a value, or of one of its bases, picks the row, and
what no row knows becomes JSON text. Values that are a result already pass through untouched, except
that the contents that a prompt embeds get a MIME type, if they have none.
"""

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol, TypeVar, cast, get_args

import msgspec

from mcp_trio._schema import (
    AudioContent,
    CallToolResult,
    Content,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    InputRequiredResult,
    PromptMessage,
    ReadResourceResult,
    ResourceContents,
    Result,
    Role,
    TextContent,
)
from mcp_trio._server.media import Audio, Image
from mcp_trio._server.ordering import JsonWriter

# Where bytes that a tool returns pretend to come from: embedded contents need a URI.
BYTES_URI: Final = "result:bytes"

# What contents are called whose type nobody says.
_TEXT_TYPE: Final = "text/plain"
_BYTES_TYPE: Final = "application/octet-stream"

_ROLES: Final = frozenset(get_args(Role))

Row = TypeVar("Row")


def _row(table: Mapping[type, Row], value: Any) -> Row | None:
    for kind in type(value).__mro__:
        if kind in table:
            return table[kind]
    return None


def _base64(data: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")


# Tools ------------------------------------------------------------------------------------------


class Data(Protocol):
    """What a tool returns for programs, beside its content."""

    def mistakes(self, encoded: bytes) -> list[str]:
        """What is wrong with the JSON text of a value: short lines, or none if it fits."""
        ...


def tool_result(
    value: Any, writer: JsonWriter, data: Data | None = None
) -> CallToolResult | InputRequiredResult:
    """The result of a tool that returned `value`.

    With `data`, the value is structured content, and its JSON the text beside it (TOOL-23).
    Without, None is no content, text is text, bytes are an embedded blob, media and content objects
    are themselves, a list or tuple that holds any of the latter is flattened; the rest is JSON.
    Generators are refused: what they would still do, nobody waits for.

    Raises:
        TypeError: The value has no JSON form, or is not what `data` says.
    """
    if isinstance(value, Result):
        if isinstance(value, InputRequiredResult):
            return value
        if isinstance(value, CallToolResult):
            return _whole(value, writer, data)
    if data is None:
        return CallToolResult(content=_contents(value, writer))
    encoded = writer.encode(value)
    _check(encoded, data)
    return CallToolResult(content=_mirror(encoded), structured_content=msgspec.Raw(encoded))


def _whole(result: CallToolResult, writer: JsonWriter, data: Data | None) -> CallToolResult:
    """A result of the tool's own, whose structured content becomes JSON text."""
    if result.structured_content is msgspec.UNSET:
        if data is not None and not result.is_error:
            raise TypeError("a result without structured content, which the output schema promises")
        return result
    encoded = writer.encode(result.structured_content)
    if data is not None and not result.is_error:  # of a failure no schema says anything (TRAP-71)
        _check(encoded, data)
    return msgspec.structs.replace(
        result,
        content=result.content or _mirror(encoded),
        structured_content=msgspec.Raw(encoded),
    )


def _check(encoded: bytes, data: Data) -> None:
    mistakes = data.mistakes(encoded)
    if mistakes:
        raise TypeError("it is not what the output schema promises: " + "; ".join(mistakes))


def _mirror(encoded: bytes) -> list[Content]:
    return [TextContent(text=encoded.decode())]


def _contents(value: Any, writer: JsonWriter) -> list[Content]:
    several = _members(value)
    if several and any(isinstance(item, CONTENT_TYPES) for item in several):
        return [content for item in several for content in _contents(item, writer)]
    row = _row(_CONTENTS, value)
    return [TextContent(text=writer.encode(value).decode())] if row is None else row(value)


def _blob_contents(value: bytes | bytearray | memoryview) -> list[Content]:
    resource = ResourceContents(uri=BYTES_URI, mime_type=_BYTES_TYPE, blob=_base64(value))
    return [EmbeddedResource(resource=resource)]


def _image_contents(image: Image) -> list[Content]:
    return [ImageContent(data=_base64(image.data), mime_type=image.mime_type)]


def _audio_contents(audio: Audio) -> list[Content]:
    return [AudioContent(data=_base64(audio.data), mime_type=audio.mime_type)]


CONTENT_TYPES: Final = (*get_args(Content), Image, Audio)

_CONTENTS: Final[dict[type, Callable[[Any], list[Content]]]] = {
    type(None): lambda _: [],
    str: lambda text: [TextContent(text=text)],
    bytes: _blob_contents,
    bytearray: _blob_contents,
    memoryview: _blob_contents,
    **dict.fromkeys(get_args(Content), lambda content: [content]),
    Image: _image_contents,
    Audio: _audio_contents,
}


# Resources --------------------------------------------------------------------------------------


def resource_result(
    uri: str, mime_type: str | None, value: Any, writer: JsonWriter
) -> ReadResourceResult | InputRequiredResult:
    """The result of reading `uri`, when its handler returned `value`.

    Text is text, bytes and media are a blob, `ResourceContents`, alone or in a list or tuple,
    are themselves; the rest is JSON text. A `mime_type` of None is filled in by that kind.

    Raises:
        TypeError: the value has no JSON form.
    """
    if isinstance(value, ReadResourceResult | InputRequiredResult):
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


def _media_resource(uri: str, mime_type: str | None, media: Image | Audio) -> ResourceContents:
    return _blob_resource(uri, mime_type or media.mime_type, media.data)


_RESOURCES: Final[dict[type, Callable[[str, str | None, Any], ResourceContents]]] = {
    str: _text_resource,
    bytes: _blob_resource,
    bytearray: _blob_resource,
    memoryview: _blob_resource,
    Image: _media_resource,
    Audio: _media_resource,
    ResourceContents: lambda _uri, _mime_type, contents: contents,
}


# Prompts ----------------------------------------------------------------------------------------


def prompt_result(description: str | None, value: Any) -> GetPromptResult | InputRequiredResult:
    """The result of a prompt whose handler returned `value`.

    Text, media or a content object is one message of the user. A list of these, of
    `PromptMessage` and of pairs of role and text (or content) is a message for each; a tuple whose
    first member is a role is such a pair itself. Embedded contents without a MIME type get one.

    Raises:
        TypeError: anything else; the text says what was returned.
    """
    if isinstance(value, InputRequiredResult):
        return value
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
    row = _row(_CONTENTS, said) if isinstance(said, (str, *CONTENT_TYPES)) else None
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
