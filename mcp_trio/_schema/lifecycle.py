"""Basic, lifecycle: the handshake or the discovery, and the capabilities that are exchanged.

Capability sets are open: those that we do not know are ignored. A capability that is absent
(None) differs from one that is present and empty (`{}`).
"""

from typing import Any

from mcp_trio._schema.base import Implementation, Model, Params, Result
from mcp_trio._schema.caching import CacheableResult


class RootsCapability(Model, kw_only=True):
    """The client lists its roots; with `list_changed` it says when they change."""

    list_changed: bool | None = None


class SamplingCapability(Model, kw_only=True):
    """The client lends its model; perhaps with tools, and with the context of its servers."""

    context: dict[str, Any] | None = None
    tools: dict[str, Any] | None = None


class ElicitationCapability(Model, kw_only=True):
    """The client asks its user: by form, by URL, or both; neither means by form (ELIC-03)."""

    form: dict[str, Any] | None = None
    url: dict[str, Any] | None = None


class ClientCapabilities(Model, kw_only=True):
    """What a client can do for its server."""

    experimental: dict[str, Any] | None = None
    roots: RootsCapability | None = None
    sampling: SamplingCapability | None = None
    elicitation: ElicitationCapability | None = None
    extensions: dict[str, dict[str, Any]] | None = None


class PromptsCapability(Model, kw_only=True):
    """The server offers prompts; with `list_changed` it says when the list changes."""

    list_changed: bool | None = None


class ResourcesCapability(Model, kw_only=True):
    """The server offers resources, and perhaps subscriptions and changes of the list."""

    subscribe: bool | None = None
    list_changed: bool | None = None


class ToolsCapability(Model, kw_only=True):
    """The server offers tools; with `list_changed` it says when the list changes."""

    list_changed: bool | None = None


class ServerCapabilities(Model, kw_only=True):
    """What a server can do for its client."""

    experimental: dict[str, Any] | None = None
    logging: dict[str, Any] | None = None
    prompts: PromptsCapability | None = None
    resources: ResourcesCapability | None = None
    tools: ToolsCapability | None = None
    completions: dict[str, Any] | None = None
    extensions: dict[str, dict[str, Any]] | None = None


class InitializeParams(Params, kw_only=True):
    """The client opens the session and says what it speaks, can do and is."""

    protocol_version: str
    capabilities: ClientCapabilities
    client_info: Implementation


class InitializeResult(Result, kw_only=True):
    """The server chooses the revision and says what it can do and is."""

    protocol_version: str
    capabilities: ServerCapabilities
    server_info: Implementation
    instructions: str | None = None


class DiscoverResult(CacheableResult, kw_only=True):
    """The server says which revisions it speaks and what it can do."""

    supported_versions: list[str]
    capabilities: ServerCapabilities
    instructions: str | None = None
