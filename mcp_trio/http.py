"""HTTP: recorded calls of handlers, routes and shared stores of servers, and OpenAPI documents.

Each name is imported when it is first used, so that a server without OpenAPI does not load it.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcp_trio._protocol.event_store import EventStore
    from mcp_trio._server.http_effects import EffectTransport
    from mcp_trio._server.http_sessions import Changes, HttpStores, SessionFacts, SessionStore
    from mcp_trio._server.openapi import OpenApiEntry, OpenApiOperation, OpenApiReport
    from mcp_trio._server.routes import Request, Response
    from mcp_trio._server.sealed_state import MemoryStore, StateStore

__all__ = [
    "Changes",
    "EffectTransport",
    "EventStore",
    "HttpStores",
    "MemoryStore",
    "OpenApiEntry",
    "OpenApiOperation",
    "OpenApiReport",
    "Request",
    "Response",
    "SessionFacts",
    "SessionStore",
    "StateStore",
]

_MODULES: Final = {
    "Changes": "_server.http_sessions",
    "EffectTransport": "_server.http_effects",
    "EventStore": "_protocol.event_store",
    "HttpStores": "_server.http_sessions",
    "MemoryStore": "_server.sealed_state",
    "OpenApiEntry": "_server.openapi",
    "OpenApiOperation": "_server.openapi",
    "OpenApiReport": "_server.openapi",
    "Request": "_server.routes",
    "Response": "_server.routes",
    "SessionFacts": "_server.http_sessions",
    "SessionStore": "_server.http_sessions",
    "StateStore": "_server.sealed_state",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mcp_trio.{_MODULES[name]}"), name)
