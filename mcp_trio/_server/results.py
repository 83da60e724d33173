"""From the returned value of a handler to the result that is sent.

One table for each kind of result: the type of a value, or of one of its bases, picks the row, and
what no row knows becomes JSON text. Values that are a result already pass through untouched, except
that the contents that a prompt embeds get a MIME type, if they have none.
"""

import base64
import copy
import dataclasses
import functools
import operator
import os
import pathlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast, get_args

import attrs
import msgspec

from mcp_trio._server.type_adapters import is_pydantic, no_json_form, written
from mcp_trio.types import (
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

if TYPE_CHECKING:
    from cattrs import Converter


# --------------------
# Images and sound to return from handlers, from bytes or from a file.


# How the data begin, from which byte on, and the second half of the MIME type that this tells.
_IMAGES: Final = (
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
_SOUNDS: Final = (
    (8, b"WAVE", "wav"),
    (0, b"ID3", "mpeg"),
    (0, b"\xff\xfb", "mpeg"),
    (0, b"OggS", "ogg"),
    (0, b"fLaC", "flac"),
    (4, b"ftypM4A", "mp4"),
)
_SUFFIXES: Final = {
    "jpg": "jpeg",
    "svg": "svg+xml",
    "tif": "tiff",
    "mp3": "mpeg",
    "m4a": "mp4",
    "oga": "ogg",
}


@attrs.frozen(init=False)
class _Media:
    """Bytes with a MIME type."""

    data: bytes
    format: str

    _kind: ClassVar[str]
    _beginnings: ClassVar[tuple[tuple[int, bytes, str], ...]]
    _usual: ClassVar[str]

    def __init__(
        self,
        data: bytes | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        format: str | None = None,  # noqa: A002 - the word of every library for media
    ) -> None:
        """Take the bytes, or read the file.

        Raises:
            TypeError: There have to be either `data` or a `path`.
            OSError: The file cannot be read.
        """
        if (data is None) is (path is None):
            kind = type(self).__name__
            raise TypeError(f"an {kind} is made of data or of a path, one of the two")
        found = pathlib.Path(path).read_bytes() if path is not None else data or b""
        suffix = pathlib.PurePath(path or "").suffix
        object.__setattr__(self, "data", found)
        object.__setattr__(self, "format", format or self._format(found, suffix))

    @property
    def mime_type(self) -> str:
        """The MIME type, such as `image/png`."""
        return f"{self._kind}/{self.format}"

    def _format(self, data: bytes, suffix: str) -> str:
        for start, beginning, name in self._beginnings:
            if data.startswith(beginning, start):
                return name
        suffix = suffix.removeprefix(".").lower()
        return _SUFFIXES.get(suffix, suffix) or self._usual


class Image(_Media):
    """An image to return from a handler, from bytes or from a file that is read at once.

    Attributes:
        data: The bytes of the image.
        format: The second half of its MIME type. If it is not given, the first bytes tell it, or
            else the file's suffix; if nothing does, it is `png`.
    """

    _kind = "image"
    _beginnings = _IMAGES
    _usual = "png"


class Audio(_Media):
    """Sound to return from a handler; see `Image`. If nothing tells the format, it is `wav`.

    Clients that know no sound get it as an embedded file.
    """

    _kind = "audio"
    _beginnings = _SOUNDS
    _usual = "wav"


# --------------------
# The plain JSON of what handlers return, in an order that is always the same.
#
# msgspec by itself sorts the fields of classes with slots, and leaves sets to the hash seed; but a
# replay has to send the same bytes.


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
        return value if kind in _LEAVES else _writer_for(kind)(value, self)

    def _unknown(self, value: Any) -> Any:
        if isinstance(value, pathlib.PurePath):
            return str(value)
        plain = value if self.converter is None else self.converter.unstructure(value)
        if plain is value:
            raise no_json_form(value.__class__)
        return self.in_order(plain)


@functools.lru_cache
def _writer_for(kind: Any) -> Callable[[Any, JsonWriter], Any]:
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
