"""Transports: what a channel is, and the ones that come with the package."""

from typing import TYPE_CHECKING, Any

from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.line_channel import ByteSink, ByteSource, LineChannel
from mcp_trio._transports.memory import memory_pair
from mcp_trio._transports.stdio_client import ProcessChannel, open_process_channel
from mcp_trio._transports.stdio_server import divert_stdio, open_stdio_channel
from mcp_trio._wire.addressed import Addressed, FromPrincipal, Lost
from mcp_trio._wire.lines import Oversized

if TYPE_CHECKING:
    from mcp_trio._transports.http.client_channel import HttpChannel, open_http_channel
    from mcp_trio._transports.sockets import (
        PeerCredentials,
        SocketChannel,
        open_tcp_channel,
        open_unix_channel,
    )
    from mcp_trio._transports.websocket.channel import WebSocketChannel
    from mcp_trio._transports.websocket.client import open_websocket_channel

__all__ = [
    "Addressed",
    "ByteSink",
    "ByteSource",
    "Channel",
    "FromPrincipal",
    "HttpChannel",
    "LineChannel",
    "Lost",
    "Oversized",
    "PeerCredentials",
    "ProcessChannel",
    "Received",
    "SocketChannel",
    "WebSocketChannel",
    "divert_stdio",
    "memory_pair",
    "open_http_channel",
    "open_process_channel",
    "open_stdio_channel",
    "open_tcp_channel",
    "open_unix_channel",
    "open_websocket_channel",
]

_LATER = {
    "HttpChannel": "http.client_channel",
    "PeerCredentials": "sockets",
    "SocketChannel": "sockets",
    "WebSocketChannel": "websocket.channel",
    "open_http_channel": "http.client_channel",
    "open_tcp_channel": "sockets",
    "open_unix_channel": "sockets",
    "open_websocket_channel": "websocket.client",
}


def __getattr__(name: str) -> Any:
    """What needs a web stack, or few use, is imported when it is first asked for (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"mcp_trio._transports.{_LATER[name]}"), name)
