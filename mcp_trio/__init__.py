"""A Trio-native engine for the Model Context Protocol, with recording and deterministic replay."""

import importlib
from typing import TYPE_CHECKING, Any, Final

from mcp_trio._version import __version__ as __version__

if TYPE_CHECKING:
    from mcp_trio._client import Change as Change
    from mcp_trio._client import Client as Client
    from mcp_trio._client import ClientGroup as ClientGroup
    from mcp_trio._client import EraMemory as EraMemory
    from mcp_trio._client import ModelTraits as ModelTraits
    from mcp_trio._client import ServerConfig as ServerConfig
    from mcp_trio._client import Subscription as Subscription
    from mcp_trio._client import ToolHints as ToolHints
    from mcp_trio._client import choose_model as choose_model
    from mcp_trio._client import connect_client as connect_client
    from mcp_trio._client import display_name as display_name
    from mcp_trio._client import read_config as read_config
    from mcp_trio._client import showable_icons as showable_icons
    from mcp_trio._client import tool_hints as tool_hints
    from mcp_trio._errors import BlockedInReplay as BlockedInReplay
    from mcp_trio._errors import CapabilityMissing as CapabilityMissing
    from mcp_trio._errors import ConfigError as ConfigError
    from mcp_trio._errors import ConnectionLost as ConnectionLost
    from mcp_trio._errors import LocalProtocolError as LocalProtocolError
    from mcp_trio._errors import MCPError as MCPError
    from mcp_trio._errors import OutcomeUnknown as OutcomeUnknown
    from mcp_trio._errors import ProtocolError as ProtocolError
    from mcp_trio._errors import RecordingError as RecordingError
    from mcp_trio._errors import RemoteProtocolError as RemoteProtocolError
    from mcp_trio._errors import ReplayDivergence as ReplayDivergence
    from mcp_trio._errors import ReplayedError as ReplayedError
    from mcp_trio._errors import RequestAbandoned as RequestAbandoned
    from mcp_trio._errors import RequestError as RequestError
    from mcp_trio._errors import RequestTimeout as RequestTimeout
    from mcp_trio._errors import ResourceNotFound as ResourceNotFound
    from mcp_trio._errors import SchemaError as SchemaError
    from mcp_trio._errors import StrayNondeterminism as StrayNondeterminism
    from mcp_trio._errors import SweepUnavailable as SweepUnavailable
    from mcp_trio._errors import ToolError as ToolError
    from mcp_trio._errors import UrlElicitationRequired as UrlElicitationRequired
    from mcp_trio._errors import UserRejected as UserRejected
    from mcp_trio._limits import Limits as Limits
    from mcp_trio._protocol.http.event_store import EventStore as EventStore
    from mcp_trio._server import Answer as Answer
    from mcp_trio._server import Audio as Audio
    from mcp_trio._server import Context as Context
    from mcp_trio._server import Elicitation as Elicitation
    from mcp_trio._server import Image as Image
    from mcp_trio._server import Roots as Roots
    from mcp_trio._server import Sampling as Sampling
    from mcp_trio._server import Server as Server
    from mcp_trio._server import ThreadContext as ThreadContext
    from mcp_trio._server import UrlElicitation as UrlElicitation
    from mcp_trio._server import effect as effect
    from mcp_trio._server.http.stores import Changes as Changes
    from mcp_trio._server.http.stores import HttpStores as HttpStores
    from mcp_trio._server.http.stores import SessionFacts as SessionFacts
    from mcp_trio._server.http.stores import SessionStore as SessionStore
    from mcp_trio._server.http_effect import EffectTransport as EffectTransport
    from mcp_trio._server.keys import KeyRing as KeyRing
    from mcp_trio._server.states import MemoryStore as MemoryStore
    from mcp_trio._server.states import StateStore as StateStore
    from mcp_trio._wire import Unencodable as Unencodable

_HOMES: Final = {
    "Answer": "mcp_trio._server",
    "Audio": "mcp_trio._server",
    "BlockedInReplay": "mcp_trio._errors",
    "CapabilityMissing": "mcp_trio._errors",
    "Change": "mcp_trio._client",
    "Changes": "mcp_trio._server.http.stores",
    "Client": "mcp_trio._client",
    "ClientGroup": "mcp_trio._client",
    "ConfigError": "mcp_trio._errors",
    "ConnectionLost": "mcp_trio._errors",
    "Context": "mcp_trio._server",
    "EffectTransport": "mcp_trio._server.http_effect",
    "Elicitation": "mcp_trio._server",
    "EraMemory": "mcp_trio._client",
    "EventStore": "mcp_trio._protocol.http.event_store",
    "HttpStores": "mcp_trio._server.http.stores",
    "Image": "mcp_trio._server",
    "KeyRing": "mcp_trio._server.keys",
    "Limits": "mcp_trio._limits",
    "LocalProtocolError": "mcp_trio._errors",
    "MCPError": "mcp_trio._errors",
    "MemoryStore": "mcp_trio._server.states",
    "ModelTraits": "mcp_trio._client",
    "OutcomeUnknown": "mcp_trio._errors",
    "ProtocolError": "mcp_trio._errors",
    "RecordingError": "mcp_trio._errors",
    "RemoteProtocolError": "mcp_trio._errors",
    "ReplayDivergence": "mcp_trio._errors",
    "ReplayedError": "mcp_trio._errors",
    "RequestAbandoned": "mcp_trio._errors",
    "RequestError": "mcp_trio._errors",
    "RequestTimeout": "mcp_trio._errors",
    "ResourceNotFound": "mcp_trio._errors",
    "Roots": "mcp_trio._server",
    "Sampling": "mcp_trio._server",
    "SchemaError": "mcp_trio._errors",
    "Server": "mcp_trio._server",
    "ServerConfig": "mcp_trio._client",
    "SessionFacts": "mcp_trio._server.http.stores",
    "SessionStore": "mcp_trio._server.http.stores",
    "StateStore": "mcp_trio._server.states",
    "StrayNondeterminism": "mcp_trio._errors",
    "Subscription": "mcp_trio._client",
    "SweepUnavailable": "mcp_trio._errors",
    "ThreadContext": "mcp_trio._server",
    "ToolError": "mcp_trio._errors",
    "ToolHints": "mcp_trio._client",
    "Unencodable": "mcp_trio._wire",
    "UrlElicitation": "mcp_trio._server",
    "UrlElicitationRequired": "mcp_trio._errors",
    "UserRejected": "mcp_trio._errors",
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
