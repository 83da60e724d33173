"""The client: a session in a task of its own, and the calls that people make."""

from mcp_trio._client.callbacks import (
    ListChangedCallback,
    LogCallback,
    ResourceUpdatedCallback,
    Roots,
    SamplingCallback,
)
from mcp_trio._client.client import Client, connect_client
from mcp_trio._client.options import ClientOptions
from mcp_trio._client.targets import Serving, Target

__all__ = [
    "Client",
    "ClientOptions",
    "ListChangedCallback",
    "LogCallback",
    "ResourceUpdatedCallback",
    "Roots",
    "SamplingCallback",
    "Serving",
    "Target",
    "connect_client",
]
