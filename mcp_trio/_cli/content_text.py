"""What tools, prompts and resources give back, as text for people."""

import binascii
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from mcp_trio._cli.terminal import size
from mcp_trio._errors import RemoteProtocolError
from mcp_trio._schema import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)


def content_text(parts: Iterable[Content]) -> str:
    """Parts of content one under the other: texts as they are, of the rest kind, type and size."""
    return "\n".join(_TEXTS[type(part)](part) for part in parts)


def resource_text(contents: ResourceContents) -> str:
    """The text of a resource under its URI, or what kind of bytes it has."""
    if contents.text is not None:
        return f"[resource: {_joined(contents.uri, contents.mime_type)}]\n{contents.text}"
    count = size(len(resource_bytes(contents)))
    return f"[resource: {_joined(contents.uri, contents.mime_type, count)}]"


def resource_bytes(contents: ResourceContents) -> bytes:
    """The bytes of a resource; those of a text in UTF-8.

    Raises:
        RemoteProtocolError: Its blob is not base64.
    """
    if contents.text is not None:
        return contents.text.encode()
    return _decoded(contents.blob or "", contents.uri)


def _image_text(image: ImageContent) -> str:
    return f"[image: {image.mime_type}, {size(len(_decoded(image.data, 'an image')))}]"


def _audio_text(audio: AudioContent) -> str:
    return f"[audio: {audio.mime_type}, {size(len(_decoded(audio.data, 'audio')))}]"


def _link_text(link: ResourceLink) -> str:
    return f"[link: {_joined(link.uri, link.mime_type)}]"


def _decoded(text: str, what: str) -> bytes:
    try:
        return b64decode(text)
    except (binascii.Error, ValueError) as error:
        raise RemoteProtocolError(f"{what}: the data are not base64: {error}") from error


def _joined(*facts: str | None) -> str:
    return ", ".join(fact for fact in facts if fact is not None)


def _text(part: TextContent) -> str:
    return part.text


def _embedded_text(part: EmbeddedResource) -> str:
    return resource_text(part.resource)


_TEXTS: Final[Mapping[type[Content], Callable[[Any], str]]] = {
    TextContent: _text,
    ImageContent: _image_text,
    AudioContent: _audio_text,
    ResourceLink: _link_text,
    EmbeddedResource: _embedded_text,
}
