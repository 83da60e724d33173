"""The client: a session in a task of its own, and the calls that people make; groups of clients."""

from mcp_trio._client.callbacks import (
    ElicitationCallback,
    ElicitationCompleteCallback,
    ListChangedCallback,
    LogCallback,
    Report,
    ResourceUpdatedCallback,
    SamplingCallback,
)
from mcp_trio._client.client import Client
from mcp_trio._client.config import ConfigSource, ServerConfig, read_config
from mcp_trio._client.era_memory import EraMemory
from mcp_trio._client.group import ClientGroup
from mcp_trio._client.icons import showable_icons
from mcp_trio._client.in_nursery import connect_client
from mcp_trio._client.listening import Change, Subscription
from mcp_trio._client.models import ModelTraits, choose_model
from mcp_trio._client.options import (
    DEFAULT_REVISIONS,
    CallOptions,
    ClientOptions,
    GroupOptions,
    Trace,
)
from mcp_trio._client.roots import Roots
from mcp_trio._client.targets import Serving, Target
from mcp_trio._client.tools import ToolHints, display_name, tool_hints

__all__ = [
    "DEFAULT_REVISIONS",
    "CallOptions",
    "Change",
    "Client",
    "ClientGroup",
    "ClientOptions",
    "ConfigSource",
    "ElicitationCallback",
    "ElicitationCompleteCallback",
    "EraMemory",
    "GroupOptions",
    "ListChangedCallback",
    "LogCallback",
    "ModelTraits",
    "Report",
    "ResourceUpdatedCallback",
    "Roots",
    "SamplingCallback",
    "ServerConfig",
    "Serving",
    "Subscription",
    "Target",
    "ToolHints",
    "Trace",
    "choose_model",
    "connect_client",
    "display_name",
    "read_config",
    "showable_icons",
    "tool_hints",
]
