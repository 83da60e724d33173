"""Server, content: what prompts, tools and sampling carry."""

from typing import TypeAlias

from mcp_trio._schema.base import AnnotatedModel
from mcp_trio._schema.resources import ResourceContents


class TextContent(AnnotatedModel, kw_only=True, tag_field="type", tag="text"):
    """Text."""

    text: str


class ImageContent(AnnotatedModel, kw_only=True, tag_field="type", tag="image"):
    """An image, as base64 text."""

    data: str
    mime_type: str


class EmbeddedResource(AnnotatedModel, kw_only=True, tag_field="type", tag="resource"):
    """The contents of a resource, carried along."""

    resource: ResourceContents


Content: TypeAlias = TextContent | ImageContent | EmbeddedResource
