"""A Trio-native engine for the Model Context Protocol, with recording and deterministic replay."""

import importlib
from typing import TYPE_CHECKING, Any, Final

from mcp_trio._version import __version__ as __version__

if TYPE_CHECKING:
    from mcp_trio._client.client import Client, connect_client
    from mcp_trio._client.config import ServerConfig, read_config
    from mcp_trio._client.connect import EraMemory
    from mcp_trio._client.group import ClientGroup
    from mcp_trio._client.results import (
        ModelTraits,
        ToolHints,
        choose_model,
        display_name,
        showable_icons,
        tool_hints,
    )
    from mcp_trio._client.subscriptions import Change, Subscription
    from mcp_trio._jsonrpc.messages import Unencodable
    from mcp_trio._protocol.event_store import EventStore
    from mcp_trio._server.context import Context, ThreadContext
    from mcp_trio._server.effects import effect
    from mcp_trio._server.elicitation import Answer, Elicitation, Roots, Sampling, UrlElicitation
    from mcp_trio._server.http_effects import EffectTransport
    from mcp_trio._server.http_options import Changes, HttpStores, SessionFacts, SessionStore
    from mcp_trio._server.results import Audio, Image
    from mcp_trio._server.sealed_state import KeyRing, MemoryStore, StateStore
    from mcp_trio._server.server import Server
    from mcp_trio.errors import (
        BlockedInReplay,
        CapabilityMissing,
        ConfigError,
        ConnectionLost,
        LocalProtocolError,
        MCPError,
        OutcomeUnknown,
        ProtocolError,
        RecordingError,
        RemoteProtocolError,
        ReplayDivergence,
        ReplayedError,
        RequestAbandoned,
        RequestError,
        RequestTimeout,
        ResourceNotFound,
        SchemaError,
        StrayNondeterminism,
        SweepUnavailable,
        ToolError,
        UrlElicitationRequired,
        UserRejected,
    )
    from mcp_trio.limits import Limits

_HOMES: Final = {
    "Answer": "mcp_trio._server",
    "Audio": "mcp_trio._server",
    "BlockedInReplay": "mcp_trio.errors",
    "CapabilityMissing": "mcp_trio.errors",
    "Change": "mcp_trio._client",
    "Changes": "mcp_trio._server.http_options",
    "Client": "mcp_trio._client",
    "ClientGroup": "mcp_trio._client",
    "ConfigError": "mcp_trio.errors",
    "ConnectionLost": "mcp_trio.errors",
    "Context": "mcp_trio._server",
    "EffectTransport": "mcp_trio._server.http_effects",
    "Elicitation": "mcp_trio._server",
    "EraMemory": "mcp_trio._client",
    "EventStore": "mcp_trio._protocol.event_store",
    "HttpStores": "mcp_trio._server.http_options",
    "Image": "mcp_trio._server",
    "KeyRing": "mcp_trio._server.sealed_state",
    "Limits": "mcp_trio.limits",
    "LocalProtocolError": "mcp_trio.errors",
    "MCPError": "mcp_trio.errors",
    "MemoryStore": "mcp_trio._server.sealed_state",
    "ModelTraits": "mcp_trio._client",
    "OutcomeUnknown": "mcp_trio.errors",
    "ProtocolError": "mcp_trio.errors",
    "RecordingError": "mcp_trio.errors",
    "RemoteProtocolError": "mcp_trio.errors",
    "ReplayDivergence": "mcp_trio.errors",
    "ReplayedError": "mcp_trio.errors",
    "RequestAbandoned": "mcp_trio.errors",
    "RequestError": "mcp_trio.errors",
    "RequestTimeout": "mcp_trio.errors",
    "ResourceNotFound": "mcp_trio.errors",
    "Roots": "mcp_trio._server",
    "Sampling": "mcp_trio._server",
    "SchemaError": "mcp_trio.errors",
    "Server": "mcp_trio._server",
    "ServerConfig": "mcp_trio._client",
    "SessionFacts": "mcp_trio._server.http_options",
    "SessionStore": "mcp_trio._server.http_options",
    "StateStore": "mcp_trio._server.sealed_state",
    "StrayNondeterminism": "mcp_trio.errors",
    "Subscription": "mcp_trio._client",
    "SweepUnavailable": "mcp_trio.errors",
    "ThreadContext": "mcp_trio._server",
    "ToolError": "mcp_trio.errors",
    "ToolHints": "mcp_trio._client",
    "Unencodable": "mcp_trio._wire",
    "UrlElicitation": "mcp_trio._server",
    "UrlElicitationRequired": "mcp_trio.errors",
    "UserRejected": "mcp_trio.errors",
    "choose_model": "mcp_trio._client",
    "connect_client": "mcp_trio._client",
    "display_name": "mcp_trio._client",
    "effect": "mcp_trio._server",
    "read_config": "mcp_trio._client",
    "showable_icons": "mcp_trio._client",
    "tool_hints": "mcp_trio._client",
}

__all__ = [
    "Answer",
    "Audio",
    "BlockedInReplay",
    "CapabilityMissing",
    "Change",
    "Changes",
    "Client",
    "ClientGroup",
    "ConfigError",
    "ConnectionLost",
    "Context",
    "EffectTransport",
    "Elicitation",
    "EraMemory",
    "EventStore",
    "HttpStores",
    "Image",
    "KeyRing",
    "Limits",
    "LocalProtocolError",
    "MCPError",
    "MemoryStore",
    "ModelTraits",
    "OutcomeUnknown",
    "ProtocolError",
    "RecordingError",
    "RemoteProtocolError",
    "ReplayDivergence",
    "ReplayedError",
    "RequestAbandoned",
    "RequestError",
    "RequestTimeout",
    "ResourceNotFound",
    "Roots",
    "Sampling",
    "SchemaError",
    "Server",
    "ServerConfig",
    "SessionFacts",
    "SessionStore",
    "StateStore",
    "StrayNondeterminism",
    "Subscription",
    "SweepUnavailable",
    "ThreadContext",
    "ToolError",
    "ToolHints",
    "Unencodable",
    "UrlElicitation",
    "UrlElicitationRequired",
    "UserRejected",
    "choose_model",
    "connect_client",
    "display_name",
    "effect",
    "read_config",
    "showable_icons",
    "tool_hints",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first asked for (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return sorted([*globals(), *_HOMES])
