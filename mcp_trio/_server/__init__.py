"""Servers: what people register, and the ways to serve it."""

from mcp_trio._server.context import Context, ThreadContext
from mcp_trio._server.effects import effect
from mcp_trio._server.results import Image
from mcp_trio._server.server import Server

__all__ = ["Context", "Image", "Server", "ThreadContext", "effect"]
