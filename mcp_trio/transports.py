"""Transports: what a channel is, and the ones that come with the package."""

from typing import TYPE_CHECKING, Any

from mcp_trio._jsonrpc.lines import LineSplitter, Oversized
from mcp_trio._jsonrpc.messages import Addressed, FromPrincipal, Lost
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.lines import ByteSink, ByteSource, LineChannel, memory_pair
from mcp_trio._transports.process import ProcessChannel, open_process_channel
from mcp_trio._transports.stdio import divert_stdio, open_stdio_channel

if TYPE_CHECKING:
    from mcp_trio._server.dialing import ListenOptions, WebSocketHub, listen_websocket
    from mcp_trio._transports.http_client import HttpChannel, open_http_channel
    from mcp_trio._transports.lock_file import LockFile, read_lock_file
    from mcp_trio._transports.sockets import (
        PeerCredentials,
        SocketChannel,
        open_tcp_channel,
        open_unix_channel,
    )
    from mcp_trio._transports.websocket import WebSocketChannel
    from mcp_trio._transports.websocket_client import open_websocket_channel

__all__ = [
    "Addressed",
    "ByteSink",
    "ByteSource",
    "Channel",
    "FromPrincipal",
    "HttpChannel",
    "LineChannel",
    "LineSplitter",
    "ListenOptions",
    "LockFile",
    "Lost",
    "Oversized",
    "PeerCredentials",
    "ProcessChannel",
    "Received",
    "SocketChannel",
    "WebSocketChannel",
    "WebSocketHub",
    "divert_stdio",
    "listen_websocket",
    "memory_pair",
    "open_http_channel",
    "open_process_channel",
    "open_stdio_channel",
    "open_tcp_channel",
    "open_unix_channel",
    "open_websocket_channel",
    "read_lock_file",
]

_LATER = {
    "HttpChannel": "_transports.http.client_channel",
    "ListenOptions": "_server.hub",
    "LockFile": "_transports.lock_file",
    "PeerCredentials": "_transports.sockets",
    "SocketChannel": "_transports.sockets",
    "WebSocketChannel": "_transports.websocket.channel",
    "WebSocketHub": "_server.hub",
    "listen_websocket": "_server.hub",
    "open_http_channel": "_transports.http.client_channel",
    "open_tcp_channel": "_transports.sockets",
    "open_unix_channel": "_transports.sockets",
    "open_websocket_channel": "_transports.websocket.client",
    "read_lock_file": "_transports.lock_file",
}


def __getattr__(name: str) -> Any:
    """What needs a web stack, or few use, is imported when it is first asked for (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"mcp_trio.{_LATER[name]}"), name)
