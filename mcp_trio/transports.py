"""The public names of the transports: the type `Channel`, and functions that open channels.

The modules for HTTP and WebSocket are imported when one of their names is first used, so that a
program without them starts faster.
"""

import importlib
from typing import TYPE_CHECKING, Final

from mcp_trio._jsonrpc.channel_messages import Lost, PrincipalMessage, RelatedMessage
from mcp_trio._jsonrpc.lines import LineSplitter, Oversized
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.lines import ByteSink, ByteSource, LineChannel, memory_pair
from mcp_trio._transports.lock_file import LockFile, read_lock_file
from mcp_trio._transports.process import ProcessChannel, open_process_channel
from mcp_trio._transports.sockets import (
    PeerCredentials,
    SocketChannel,
    open_tcp_channel,
    open_unix_channel,
)
from mcp_trio._transports.stdio import divert_stdio, open_stdio_channel

if TYPE_CHECKING:
    from mcp_trio._server.dialing import ListenOptions, WebSocketHub, listen_websocket
    from mcp_trio._transports.http_client import HttpChannel, open_http_channel
    from mcp_trio._transports.trio_websocket import open_websocket_channel
    from mcp_trio._transports.websocket import WebSocketChannel

__all__ = [
    "ByteSink",
    "ByteSource",
    "Channel",
    "HttpChannel",
    "LineChannel",
    "LineSplitter",
    "ListenOptions",
    "LockFile",
    "Lost",
    "Oversized",
    "PeerCredentials",
    "PrincipalMessage",
    "ProcessChannel",
    "Received",
    "RelatedMessage",
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

_IMPORTED_LATER: Final = {
    "HttpChannel": "mcp_trio._transports.http_client",
    "ListenOptions": "mcp_trio._server.dialing",
    "WebSocketChannel": "mcp_trio._transports.websocket",
    "WebSocketHub": "mcp_trio._server.dialing",
    "listen_websocket": "mcp_trio._server.dialing",
    "open_http_channel": "mcp_trio._transports.http_client",
    "open_websocket_channel": "mcp_trio._transports.trio_websocket",
}


def __getattr__(name: str) -> object:
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_IMPORTED_LATER[name]), name)
