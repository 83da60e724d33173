"""Server, content: what prompts, tools and sampling carry."""

from typing import TypeAlias

from mcp_trio._schema.base import AnnotatedModel
from mcp_trio._schema.resources import Resource, ResourceContents


class TextContent(AnnotatedModel, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ImageContent(AnnotatedModel, kw_only=True, tag_field="type", tag="image"):
    """An image, as base64 text."""

    data: str
    mime_type: str


class AudioContent(AnnotatedModel, kw_only=True, tag_field="type", tag="audio"):
    """Sound, as base64 text."""

    data: str
    mime_type: str


class ResourceLink(Resource, kw_only=True, tag_field="type", tag="resource_link"):
    """Names a resource that can be read; it need not be one of those that are listed."""


class EmbeddedResource(AnnotatedModel, kw_only=True, tag_field="type", tag="resource"):
    """The contents of a resource, carried along."""

    resource: ResourceContents


Content: TypeAlias = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource
