"""Server, resources."""

from typing import Any

import msgspec

from mcp_trio._schema.base import AnnotatedModel, Icon, Model, Params
from mcp_trio._schema.caching import CacheableResult
from mcp_trio._schema.input_rounds import InputResponseParams
from mcp_trio._schema.pagination import PaginatedResult


class Resource(AnnotatedModel, kw_only=True):
    """Something that the server can read, known by its URI."""

    uri: str
    name: str
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    title: str | None = None
    icons: list[Icon] | None = None


class ResourceTemplate(AnnotatedModel, kw_only=True):
    """A family of resources, known by an RFC 6570 template."""

    uri_template: str
    name: str
    description: str | None = None
    mime_type: str | None = None
    title: str | None = None
    icons: list[Icon] | None = None


class ContentsHead(Model, kw_only=True):
    """What textual and binary contents have in common: the published `ResourceContents`."""

    uri: str
    mime_type: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ResourceContents(ContentsHead, kw_only=True):
    """The contents of a resource: either `text`, or `blob` in base64.

    One struct stands for the published `TextResourceContents` and `BlobResourceContents`, which no
    tag tells apart.

    Raises:
        ValueError: neither is given. While decoding it becomes a `msgspec.ValidationError`.
    """

    text: str | None = None
    blob: str | None = None

    def __post_init__(self) -> None:
        if self.text is None and self.blob is None:
            raise ValueError("resource contents need `text` or `blob`")


class ListResourcesResult(PaginatedResult, kw_only=True):
    """One page of the server's resources."""

    resources: list[Resource]


class ListResourceTemplatesResult(PaginatedResult, kw_only=True):
    """One page of the server's resource templates."""

    resource_templates: list[ResourceTemplate]


class ReadResourceParams(InputResponseParams, kw_only=True):
    """Names the resource to read."""

    uri: str


class ReadResourceResult(CacheableResult, kw_only=True):
    """What was read; a directory, for instance, may give several contents."""

    contents: list[ResourceContents]


class SubscribeParams(Params, kw_only=True):
    """Names the resource whose updates the client wants to hear of."""

    uri: str


class UnsubscribeParams(Params, kw_only=True):
    """Names the resource whose updates the client no longer wants to hear of."""

    uri: str


class ResourceUpdatedParams(Params, kw_only=True):
    """A resource has changed; it may be part of the one that was subscribed to."""

    uri: str
