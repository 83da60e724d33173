"""Results: from the return value of a handler to the result that is sent, and its output schema.

Two tables have the functions that convert a value, by its class or the nearest base class of that:
`_CONTENTS` for tools and prompts, and `_RESOURCES`. Any other value becomes JSON text. A value that
is a complete result already is sent as it is, except that the result of a tool may get text
content, and resources embedded in a prompt a MIME type.
"""

import base64
import copy
import functools
import logging
import operator
import os
import pathlib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, cast, get_args

import attrs
import msgspec

from mcp_trio._protocol.versions import ProtocolVersion
from mcp_trio._server.introspection import (
    SCALARS,
    fields_of,
    has_fields,
    is_array_type,
    is_union,
    name_of,
    reachable,
    strip_metadata,
)
from mcp_trio._server.type_adapters import (
    TypeAdapter,
    error_line,
    is_finite,
    is_plain,
    is_pydantic,
    json_schema,
    no_json_form,
    plain_schema,
    pydantic_to_plain,
    structure,
    with_keywords_at_root,
)
from mcp_trio.limits import Limits
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

    from mcp_trio._server.signatures import Signature

T = TypeVar("T")

logger = logging.getLogger("mcp_trio")

# Images and audio -------------------------------------------------------------------------------

# The subtypes of MIME types that differ from the suffix of the file.
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
    """Bytes with a MIME type; the base of `Image` and `Audio`."""

    data: bytes
    format: str

    _kind: ClassVar[str]
    _default_format: ClassVar[str]
    # The offset of the file signature, its bytes, and the subtype of the MIME type.
    _signatures: ClassVar[Sequence[tuple[int, bytes, str]]]

    def __init__(
        self,
        data: bytes | None = None,
        format: str | None = None,  # noqa: A002 - the name that media libraries use
        *,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Take the bytes, or read the file at once.

        Raises:
            TypeError: Both `data` and `path` are given, or neither; or `data` is a path.
            ValueError: `format` is the MIME type of another kind of media.
            OSError: The file cannot be read.
        """
        kind_name = type(self).__name__
        if (data is None) is (path is None):
            raise TypeError(f"{kind_name}() takes either data or path=...")
        if isinstance(data, str | os.PathLike):
            raise TypeError(f"{kind_name}() takes bytes: write {kind_name}(path={data!r})")
        kind, has_kind, subtype = (format or "").rpartition("/")
        if has_kind and kind != self._kind:
            raise ValueError(f"{kind_name}() takes {self._kind}/..., not {kind}/...")
        content = pathlib.Path(path).read_bytes() if path is not None else data or b""
        if not subtype:
            suffix = pathlib.PurePath(path or "").suffix.removeprefix(".").lower()
            by_suffix = _SUFFIXES.get(suffix, suffix) or self._default_format
            detected = (
                found
                for offset, signature, found in self._signatures
                if content.startswith(signature, offset)
            )
            subtype = next(detected, by_suffix)
        object.__setattr__(self, "data", content)
        object.__setattr__(self, "format", subtype)

    @property
    def mime_type(self) -> str:
        """The MIME type, such as `image/png`."""
        return f"{self._kind}/{self.format}"


class Image(_Media):
    """An image that a handler returns, made from bytes or from a file, which is read at once.

    Attributes:
        data: The bytes of the image.
        format: The subtype of the MIME type, such as `png`; given as such or as `image/png`. Else
            it is detected from the first bytes, or from the suffix of the file, or is `png`.
    """

    _kind = "image"
    _default_format = "png"
    _signatures = (
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


class Audio(_Media):
    """Audio that a handler returns, made from bytes or from a file, which is read at once.

    A client whose protocol version has no audio content gets an embedded resource instead.

    Attributes:
        data: The bytes of the audio.
        format: The subtype of the MIME type, such as `wav`; given as such or as `audio/wav`. Else
            it is detected from the first bytes, or from the suffix of the file, or is `wav`.
    """

    _kind = "audio"
    _default_format = "wav"
    _signatures = (
        (8, b"WAVE", "wav"),
        (0, b"ID3", "mpeg"),
        (0, b"\xff\xfb", "mpeg"),
        (0, b"OggS", "ogg"),
        (0, b"fLaC", "flac"),
        (4, b"ftypM4A", "mp4"),
    )


# JSON -------------------------------------------------------------------------------------------
#
# Equal values have to have the same JSON text, because a replay sends the same bytes. msgspec alone
# does not guarantee that: it sorts the fields of classes with slots, and writes a set in the order
# of its hashes.


# Return a string or number of a subclass, such as a string of an HTML parser or a NumPy float, as
# one of the base class: msgspec encodes no other.
_TO_BASE: Final[dict[type, Callable[[Any], Any]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
}


@attrs.define(eq=False, repr=False)
class JsonWriter:
    """An encoder that writes fields as declared, dicts in their order, and sets sorted.

    A value of a type that msgspec does not support is unstructured by `converter`, if given. Each
    method raises `TypeError` for a value that has no JSON form, or has a part without one.
    """

    converter: "Converter | None" = None
    # Returns the JSON text of a value that `in_order` would not change.
    encode_ordered: Callable[[Any], bytes] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.encode_ordered = msgspec.json.Encoder(enc_hook=self._enc_hook).encode

    def encode(self, value: Any) -> bytes:
        """Return the JSON text of a value."""
        if value.__class__ not in SCALARS:
            value = self.in_order(value)
        return self.encode_ordered(value)

    def plain(self, value: Any) -> Any:
        """Return the value as lists, dicts, strings and numbers."""
        plain = msgspec.to_builtins(self.in_order(value), enc_hook=self._enc_hook)
        if not is_finite(plain):
            raise TypeError("infinity and NaN have no JSON form")
        return plain

    def in_order(self, value: Any) -> Any:
        """Return the value in a form that msgspec encodes in a stable order.

        A set becomes a list that is sorted by JSON text, an attrs object or dataclass a dict of its
        fields as declared, and a pydantic model its plain JSON. Any other value is returned itself.
        The value that was passed in is never modified.
        """
        kind = value.__class__
        return value if kind in SCALARS else _ordering_of(kind)(value, self)

    def _enc_hook(self, value: Any) -> Any:
        if isinstance(value, pathlib.PurePath):
            return str(value)
        plain = value if self.converter is None else self.converter.unstructure(value)
        if plain is not value:
            return self.in_order(plain)
        to_base = _find_by_class(_TO_BASE, value.__class__)
        if to_base is None:
            raise no_json_form(value.__class__)
        return to_base(value)


def _find_by_class(table: Mapping[type, T], kind: type) -> T | None:
    """Return the entry of a table for a class, or for its nearest base class."""
    for base in kind.__mro__:
        if base in table:
            return table[base]
    return None


@functools.lru_cache
def _ordering_of(kind: Any) -> Callable[[Any, JsonWriter], Any]:
    """Return the function that brings values of a class into the order of `JsonWriter.in_order`."""
    if is_pydantic(kind):
        return lambda value, _writer: pydantic_to_plain(value)
    if issubclass(kind, msgspec.Struct):
        return _ordered_struct
    # Of attrs and dataclasses, these are the fields that msgspec encodes.
    if attrs.has(kind):
        names = [each.name for each in attrs.fields(kind) if not each.name.startswith("_")]
        return functools.partial(_ordered_fields, names)
    if hasattr(kind, "__dataclass_fields__"):
        import dataclasses  # A server that has none starts without it.

        return functools.partial(_ordered_fields, [each.name for each in dataclasses.fields(kind)])
    return _find_by_class(_ORDERINGS, kind) or (lambda value, _writer: value)


def _ordered_set(values: Collection[Any], writer: JsonWriter) -> list[Any]:
    return sorted(map(writer.in_order, values), key=writer.encode)


def _ordered_items(values: Collection[Any], writer: JsonWriter) -> Collection[Any]:
    ordered = [writer.in_order(value) for value in values]
    return values if all(map(operator.is_, ordered, values)) else ordered


def _ordered_dict(values: dict[Any, Any], writer: JsonWriter) -> dict[Any, Any]:
    ordered = {key: writer.in_order(value) for key, value in values.items()}
    is_same = all(map(operator.is_, ordered.values(), values.values()))
    return values if is_same else ordered


_ORDERINGS: Final[dict[type, Callable[[Any, JsonWriter], Any]]] = {
    set: _ordered_set,
    frozenset: _ordered_set,
    list: _ordered_items,
    tuple: _ordered_items,
    dict: _ordered_dict,
}


def _ordered_struct(value: Any, writer: JsonWriter) -> Any:
    # A struct is kept, because msgspec knows its encoded names, its tag and its options. It is
    # copied once a field differs.
    result: Any = value
    for name in value.__struct_fields__:
        member = getattr(value, name)
        ordered = writer.in_order(member)
        if ordered is not member:
            result = copy.copy(value) if result is value else result
            msgspec.structs.force_setattr(result, name, ordered)
    return result


def _ordered_fields(names: Iterable[str], value: Any, writer: JsonWriter) -> dict[str, Any]:
    return {name: writer.in_order(getattr(value, name)) for name in names if hasattr(value, name)}


# Tools ------------------------------------------------------------------------------------------

# The URI of bytes that a tool returns, since an embedded resource needs one.
BYTES_URI: Final = "result:bytes"

# The MIME types of text and bytes for which the handler gives none.
_TEXT_TYPE: Final = "text/plain"
_BYTES_TYPE: Final = "application/octet-stream"

_BYTES: Final = (bytes, bytearray, memoryview)
_ROLES: Final = frozenset(get_args(Role))


def _base64(data: bytes | bytearray | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")


class OutputSchema(msgspec.Struct, frozen=True, eq=False):
    """The output schema of a tool.

    Attributes:
        schema: The JSON Schema that is listed.
        validation_errors: A function that returns a short line for each validation error in the
            JSON text of a value; an empty list if the value is valid.
        valid_class: A class of which each instance is valid, if there is one.
        is_of_objects: Whether each valid value is an object.
    """

    schema: dict[str, Any]
    validation_errors: Callable[[bytes], list[str]]
    valid_class: type | None = None
    is_of_objects: bool = False

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "is_of_objects", self.schema.get("type") == "object")

    def schema_for(self, protocol_version: ProtocolVersion) -> dict[str, Any]:
        """Return the schema of what is sent: that of an object `{"result": …}` if it is wrapped.

        Values are wrapped if the version requires objects, and they may be something else. Both
        official SDKs wrap them in the same way.
        """
        if self.is_of_objects or protocol_version.structured_content != "object":
            return self.schema
        at_root = ("$defs", "definitions", "$schema")
        own = {key: it for key, it in self.schema.items() if key not in at_root}
        shared = {key: it for key, it in self.schema.items() if key not in own}
        return {
            "type": "object",
            "properties": {"result": own},
            "required": ["result"],
            "x-fastmcp-wrap-result": True,  # by which FastMCP's client recognises a wrapped value
            **shared,
        }

    def structured(self, value: Any, encoded: bytes, protocol_version: ProtocolVersion) -> Any:
        """Return a value as structured content, wrapped if the version demands an object.

        The result is UNSET for versions without structured content; the value is checked for all.

        Raises:
            TypeError: The value does not match the schema.
        """
        if type(value) is not self.valid_class and (errors := self.validation_errors(encoded)):
            raise TypeError("it does not match the output schema: " + "; ".join(errors))
        allowed = protocol_version.structured_content
        if allowed == "none":
            return msgspec.UNSET
        raw = msgspec.Raw(encoded)
        return raw if self.is_of_objects or allowed != "object" else {"result": raw}


def _checked(value: T) -> T:
    """Return an object of the protocol that a handler has made, after a check of its members.

    Raises:
        TypeError: A member has a wrong type, which the client would reject.
    """
    try:
        msgspec.convert(msgspec.to_builtins(value), type(value))
    except msgspec.ValidationError as error:
        raise TypeError(f"the {type(value).__name__} is malformed: {error}") from error
    return value


def tool_result(
    value: Any,
    writer: JsonWriter,
    protocol_version: ProtocolVersion,
    output: OutputSchema | None = None,
    result_class: type[CallToolResult] = CallToolResult,
) -> CallToolResult | InputRequiredResult:
    """Return the result of a tool whose handler returned `value`.

    With an output schema the value becomes structured content. A string, or the JSON of any other
    value, is the text content as well, for clients that do not know structured content:
    https://modelcontextprotocol.io/specification/2025-06-18/server/tools#structured-content.
    Without one, None becomes no content, a string text, bytes an embedded blob, and media and
    content objects become content; each item of a list or tuple that contains a media or content
    object is converted for itself. Any other value becomes JSON text. `result_class` is the class
    of a result with structured content that is made here.

    Raises:
        TypeError: The value has no JSON form, or does not match the output schema.
    """
    # `isinstance` is slow for structs, and most tools return a string or a number.
    is_scalar = value.__class__ in SCALARS
    if not is_scalar:
        if isinstance(value, InputRequiredResult):
            return value
        if isinstance(value, CallToolResult):
            return _checked_result(value, writer, protocol_version, output)
    if output is None:
        return CallToolResult(content=_contents(value, writer))
    encoded = writer.encode_ordered(value) if is_scalar else writer.encode(value)
    structured = output.structured(value, encoded, protocol_version)
    # A string is the text itself, and `encoded` is its JSON already. The text of any other value is
    # its JSON, which is encoded as a string once more.
    is_text = isinstance(value, str) and encoded.startswith(b'"')  # an enum may have another value
    text: Any = msgspec.Raw(encoded) if is_text else encoded.decode()
    return result_class(content=[TextContent(text=text)], structured_content=structured)


def _checked_result(
    result: CallToolResult,
    writer: JsonWriter,
    protocol_version: ProtocolVersion,
    output: OutputSchema | None,
) -> CallToolResult:
    """Return a result that the handler has made itself, with its structured content encoded."""
    _checked(msgspec.structs.replace(result, structured_content=msgspec.UNSET))
    # An error result needs no structured content, and the output schema does not apply to it.
    checked_by = None if result.is_error else output
    data = result.structured_content
    if data is msgspec.UNSET:
        if checked_by is None:
            return result
        raise TypeError("the tool has an output schema, but its result no structured content")
    encoded = writer.encode(data)
    structured: Any = msgspec.Raw(encoded)
    if checked_by is not None:
        structured = checked_by.structured(data, encoded, protocol_version)
    content = result.content or [TextContent(text=encoded.decode())]
    return msgspec.structs.replace(result, content=content, structured_content=structured)


def tool_failure(text: str) -> CallToolResult:
    """Return the result of a tool that has failed, with a text for the model."""
    return CallToolResult(content=[TextContent(text=text)], is_error=True)


def _contents(value: Any, writer: JsonWriter) -> list[Content]:
    items = _items(value)
    if any(isinstance(item, _CONTENT_TYPES) for item in items):
        return [content for item in items for content in _contents(item, writer)]
    convert = _find_by_class(_CONTENTS, value.__class__)
    return [TextContent(text=writer.encode(value).decode())] if convert is None else convert(value)


def _blob_contents(value: bytes | bytearray | memoryview) -> list[Content]:
    resource = ResourceContents(uri=BYTES_URI, mime_type=_BYTES_TYPE, blob=_base64(value))
    return [EmbeddedResource(resource=resource)]


_CONTENT_TYPES: Final = (*get_args(Content), Image, Audio)

_CONTENTS: Final[dict[type, Callable[[Any], list[Content]]]] = {
    type(None): lambda _: [],
    str: lambda text: [TextContent(text=str.__str__(text))],
    **dict.fromkeys(_BYTES, _blob_contents),
    **dict.fromkeys(get_args(Content), lambda content: [_checked(content)]),
    Image: lambda image: [ImageContent(data=_base64(image.data), mime_type=image.mime_type)],
    Audio: lambda audio: [AudioContent(data=_base64(audio.data), mime_type=audio.mime_type)],
}


# Output schemas ---------------------------------------------------------------------------------

# Types whose values are not data for programs, and types of which that is not known.
_NO_DATA: Final = (*_BYTES, Result)
_ANYTHING: Final = (Any, object)


def output_schema_of(signature: "Signature", *, structured: bool | None) -> OutputSchema | None:
    """Return the output schema of a tool by its return annotation.

    The result is None if the tool has no structured output: it returns bytes, content or complete
    results, or has no return annotation. If `structured` is True, the annotation must have a JSON
    Schema, or a `TypeError` is raised; False excludes structured output. None lets the annotation
    decide; an annotation that cannot be decoded then means no structured output.
    """
    if structured is False:
        return None
    try:
        hint = signature.returns
        if is_union(strip_metadata(hint)):
            # A tool may return a complete result instead of data.
            members = typing.get_args(strip_metadata(hint))
            rest = tuple(it for it in members if not _is_subclass(it, Result))
            union: Any = typing.Union
            hint = union[rest] if rest else Result
        return _typed_output_schema(signature, hint) if structured or _is_data(hint) else None
    except Exception as error:
        if structured is None:
            return None
        raise TypeError(f"the return type of {signature.handler!r}: {error}") from error


def _typed_output_schema(signature: "Signature", hint: Any) -> OutputSchema:
    if hint in _ANYTHING:
        raise TypeError("annotate the return type")
    if signature.plain_schema(hint) is None:
        decodable = signature.adapter.decodable(hint)
        schema = with_keywords_at_root(json_schema(decodable))
        if any(map(is_pydantic, reachable([hint]))):
            # The form that pydantic writes may not be one that it accepts: it has computed fields
            # and serialization aliases. Then the schema of that form also checks the values.
            adapter = TypeAdapter(signature.converter, pydantic_mode="serialization")
            written = with_keywords_at_root(json_schema(adapter.decodable(hint)))
            if written != schema:
                return given_output_schema(written, name_of(signature.handler), signature.limits)
        return OutputSchema(schema, _validation_errors(decodable))
    return _output_schema_of_class(hint) if type(hint) is type else _plain_output_schema(hint)


def _plain_output_schema(hint: Any) -> OutputSchema:
    """Return the output schema of a type that consists of types of JSON itself."""
    schema = plain_schema(hint)
    assert schema is not None
    # Not float, as not every float is valid: NaN would be sent as null.
    return OutputSchema(
        schema, _validation_errors(hint), hint if hint in (str, int, bool) else None
    )


# A thousand tools return few different classes of JSON, such as `str`, and can share their schemas.
# Other types are not cached: `int | None` and `None | int` are equal, but their schemas are not.
_output_schema_of_class: Final = functools.cache(_plain_output_schema)


def _validation_errors(decodable: Any) -> Callable[[bytes], list[str]]:
    decode = msgspec.json.Decoder(decodable, dec_hook=structure).decode

    # The value is checked although it is annotated: Python does not enforce annotations, but the
    # listed schema is a promise to the client. The first error is enough, since the tool is wrong.
    def validation_errors(encoded: bytes) -> list[str]:
        try:
            decode(encoded)
        except msgspec.MsgspecError as error:
            # The line of an error about the value as a whole begins with "arguments".
            return [error_line(error).replace("arguments", "result", 1)]
        return []

    return validation_errors


def given_output_schema(given: Mapping[str, Any], owner: str, limits: Limits) -> OutputSchema:
    """Return the output schema for a JSON Schema, of the tool or function with the name `owner`.

    Raises:
        SchemaError: The schema cannot be used.
    """
    from mcp_trio._protocol.json_schema import SchemaValidator  # most servers need none

    checker = SchemaValidator(given, name="result", limits=limits)

    has_logged = False

    def validation_errors(encoded: bytes) -> list[str]:
        nonlocal has_logged
        errors = checker.check_result(msgspec.json.decode(encoded))
        if errors is None and not has_logged:
            has_logged = True
            text = "a result of the tool %s is not checked: it %s"
            logger.warning(text, owner, checker.too_long)
        return errors or []

    return OutputSchema(dict(given), validation_errors)


def _is_data(hint: Any) -> bool:
    """Return whether every value of the type is data for programs; bytes and content are not."""
    if hint is not types.NoneType and is_plain(hint):
        return True
    kind = strip_metadata(hint)
    if is_union(kind):
        members = [strip_metadata(it) for it in typing.get_args(kind) if it is not types.NoneType]
        return all(map(_is_data, members))
    if kind is None or kind in (types.NoneType, *_ANYTHING) or _is_subclass(kind, _NO_DATA):
        return False
    if is_array_type(kind) and not has_fields(kind):
        items = typing.get_args(kind)
        if not items or any(strip_metadata(it) in _ANYTHING for it in items):
            return False
    for inner in reachable([kind]):
        if _is_subclass(inner, _CONTENT_TYPES):
            return False
        # attrs fields with an underscore are decoded from JSON, but not encoded to it.
        if attrs.has(inner) and any(
            field.wire_name.startswith("_") and field.is_required for field in fields_of(inner)
        ):
            return False
    return True


def _is_subclass(hint: Any, bases: type | tuple[type, ...]) -> bool:
    return isinstance(hint, type) and issubclass(hint, bases)


# Resources --------------------------------------------------------------------------------------


def resource_result(
    uri: str, mime_type: str | None, value: Any, writer: JsonWriter
) -> ReadResourceResult | InputRequiredResult:
    """Return the result of reading `uri`, whose handler returned `value`.

    A string becomes text, bytes and media become a blob, and `ResourceContents`, alone or in a list
    or tuple, are kept. Any other value becomes JSON text. If `mime_type` is None, the MIME type
    follows from the kind of the value.

    Raises:
        TypeError: The value has no JSON form.
    """
    if isinstance(value, InputRequiredResult):
        return value
    if isinstance(value, ReadResourceResult):
        return _checked(value)
    items = _items(value)
    if items and all(isinstance(item, ResourceContents) for item in items):
        return ReadResourceResult(contents=[*map(_checked, items)])
    convert = _find_by_class(_RESOURCES, value.__class__)
    if convert is None:
        convert, value = _text_resource, writer.encode(value).decode()
        mime_type = mime_type or "application/json"
    return ReadResourceResult(contents=[convert(uri, mime_type, value)])


def _items(value: Any) -> list[Any]:
    """Return the items of a list or tuple; an empty list for any other value."""
    return list(cast("Iterable[Any]", value)) if isinstance(value, list | tuple) else []


def _text_resource(uri: str, mime_type: str | None, text: str) -> ResourceContents:
    text = str.__str__(text)  # it may be of a subclass
    return ResourceContents(uri=uri, mime_type=mime_type or _TEXT_TYPE, text=text)


def _blob_resource(uri: str, mime_type: str | None, data: bytes) -> ResourceContents:
    return ResourceContents(uri=uri, mime_type=mime_type or _BYTES_TYPE, blob=_base64(data))


def _media_resource(uri: str, mime_type: str | None, media: Image | Audio) -> ResourceContents:
    return _blob_resource(uri, mime_type or media.mime_type, media.data)


_RESOURCES: Final[dict[type, Callable[[str, str | None, Any], ResourceContents]]] = {
    str: _text_resource,
    **dict.fromkeys(_BYTES, _blob_resource),
    Image: _media_resource,
    Audio: _media_resource,
    ResourceContents: lambda _uri, _mime_type, contents: _checked(contents),
}


# Prompts ----------------------------------------------------------------------------------------


def prompt_result(description: str | None, value: Any) -> GetPromptResult | InputRequiredResult:
    """Return the result of a prompt whose handler returned `value`.

    A string, a media object or a content object becomes one message of the user. A list of these,
    of `PromptMessage`, of dicts with `role` and `content`, and of pairs of role and text (or
    content) becomes one message per item; a tuple whose first item is a role is one such pair.

    Raises:
        TypeError: The handler returned anything else; the text names the type.
    """
    if isinstance(value, InputRequiredResult):
        return value
    if isinstance(value, GetPromptResult):
        messages = [_with_mime_type(_prompt_message(message)) for message in value.messages]
        return _checked(msgspec.structs.replace(value, messages=messages))
    is_one = _is_pair(value) or not isinstance(value, list | tuple)
    items: list[Any] = [value] if is_one else _items(value)
    messages = [_with_mime_type(_prompt_message(item)) for item in items]
    return GetPromptResult(messages=messages, description=description)


def _is_pair(value: Any) -> bool:
    """Return whether the value is a tuple of a role and anything else."""
    match value:
        case (str(role), _) if isinstance(value, tuple):
            return role in _ROLES
        case _:
            return False


def _prompt_message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        text = members.get("content")
        if isinstance(text, str):
            members = members | {"content": {"type": "text", "text": text}}
        try:
            return msgspec.convert(members, PromptMessage)
        except msgspec.ValidationError as error:
            raise TypeError(
                'a message of a prompt is a dict such as {"role": "user", "content": "Hello"},'
                f" but in this one: {error}"
            ) from error
    role: Role
    role, content = value if _is_pair(value) else ("user", value)
    convert = _find_by_class(_CONTENTS, content.__class__)
    if convert is None or not isinstance(content, (str, *_CONTENT_TYPES)):
        raise TypeError(
            f"a prompt returns text, messages or pairs of {' or '.join(sorted(_ROLES))} and text, "
            f"but this one returned a {type(content).__name__}"
        )
    return PromptMessage(role=role, content=convert(content)[0])


def _with_mime_type(message: PromptMessage) -> PromptMessage:
    """Return the message with the MIME type that an embedded resource of a prompt has to have.

    https://modelcontextprotocol.io/specification/2025-06-18/server/prompts#embedded-resources
    """
    content = message.content
    if not isinstance(content, EmbeddedResource) or content.resource.mime_type:
        return message
    mime_type = _BYTES_TYPE if content.resource.text is None else _TEXT_TYPE
    resource = msgspec.structs.replace(content.resource, mime_type=mime_type)
    return msgspec.structs.replace(
        message, content=msgspec.structs.replace(content, resource=resource)
    )
