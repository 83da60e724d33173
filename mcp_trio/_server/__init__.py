"""Servers: what people register, and the ways to serve it."""

from mcp_trio._server.context import Context, ThreadContext
from mcp_trio._server.effects import effect
from mcp_trio._server.media import Audio, Image
from mcp_trio._server.questions import Answer, Elicitation, Roots, Sampling, UrlElicitation
from mcp_trio._server.server import Server

__all__ = [
    "Answer",
    "Audio",
    "Context",
    "Elicitation",
    "Image",
    "Roots",
    "Sampling",
    "Server",
    "ThreadContext",
    "UrlElicitation",
    "effect",
]
