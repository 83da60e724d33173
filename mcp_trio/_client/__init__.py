"""The client: a session in a task of its own, and the calls that people make; groups of clients."""

from mcp_trio._client.callbacks import (
    ListChangedCallback,
    LogCallback,
    Report,
    ResourceUpdatedCallback,
    SamplingCallback,
)
from mcp_trio._client.client import Client
from mcp_trio._client.config import ConfigSource, ServerConfig, read_config
from mcp_trio._client.group import ClientGroup
from mcp_trio._client.in_nursery import connect_client
from mcp_trio._client.models import ModelTraits, choose_model
from mcp_trio._client.options import CallOptions, ClientOptions, GroupOptions
from mcp_trio._client.roots import Roots
from mcp_trio._client.targets import Serving, Target

__all__ = [
    "CallOptions",
    "Client",
    "ClientGroup",
    "ClientOptions",
    "ConfigSource",
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
    "Target",
    "choose_model",
    "connect_client",
    "read_config",
]
