"""Transports: what a channel is, and the ones that come with the package."""

from typing import TYPE_CHECKING, Any

from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.line_channel import ByteSink, ByteSource, LineChannel
from mcp_trio._transports.memory import memory_pair
from mcp_trio._transports.stdio_client import ProcessChannel, open_process_channel
from mcp_trio._transports.stdio_server import divert_stdio, open_stdio_channel
from mcp_trio._wire.addressed import Addressed, Lost
from mcp_trio._wire.lines import Oversized

if TYPE_CHECKING:
    from mcp_trio._transports.http.client_channel import HttpChannel, open_http_channel

__all__ = [
    "Addressed",
    "ByteSink",
    "ByteSource",
    "Channel",
    "HttpChannel",
    "LineChannel",
    "Lost",
    "Oversized",
    "ProcessChannel",
    "Received",
    "divert_stdio",
    "memory_pair",
    "open_http_channel",
    "open_process_channel",
    "open_stdio_channel",
]


def __getattr__(name: str) -> Any:
    """What needs a web stack is imported when it is first asked for (PEP 562)."""
    if name not in {"HttpChannel", "open_http_channel"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mcp_trio._transports.http import client_channel

    return getattr(client_channel, name)
