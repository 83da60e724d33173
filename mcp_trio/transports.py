"""Transports: what a channel is, and the ones that come with the package."""

from mcp_trio._transports.channel import Channel
from mcp_trio._transports.line_channel import ByteSink, ByteSource, LineChannel
from mcp_trio._transports.memory import memory_pair
from mcp_trio._transports.stdio_client import ProcessChannel, open_process_channel
from mcp_trio._transports.stdio_server import divert_stdio, open_stdio_channel
from mcp_trio._wire.lines import Oversized

__all__ = [
    "ByteSink",
    "ByteSource",
    "Channel",
    "LineChannel",
    "Oversized",
    "ProcessChannel",
    "divert_stdio",
    "memory_pair",
    "open_process_channel",
    "open_stdio_channel",
]
