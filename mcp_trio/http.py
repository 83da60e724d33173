"""HTTP: requests of handlers as effects, routes and stores of servers, and OpenAPI documents.

Each name is imported when it is first used, so that a server without OpenAPI does not load it.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mcp_trio._protocol.event_store import EventStore
    from mcp_trio._protocol.state_store import StateStore
    from mcp_trio._server.http_effects import EffectTransport
    from mcp_trio._server.http_sessions import Changes, HttpStores
    from mcp_trio._server.instances import (
        Instance,
        InstanceHandler,
        Instances,
        MemoryInstances,
        SessionFacts,
        StoredSession,
        StoreUnavailableError,
    )
    from mcp_trio._server.openapi import OpenApiEntry, OpenApiOperation, OpenApiReport
    from mcp_trio._server.routes import Request, Response
    from mcp_trio._server.sealed_state import MemoryStore

__all__ = [
    "Changes",
    "EffectTransport",
    "EventStore",
    "HttpStores",
    "Instance",
    "InstanceHandler",
    "Instances",
    "MemoryInstances",
    "MemoryStore",
    "OpenApiEntry",
    "OpenApiOperation",
    "OpenApiReport",
    "Request",
    "Response",
    "SessionFacts",
    "StateStore",
    "StoreUnavailableError",
    "StoredSession",
]

_MODULES: Final = {
    "Changes": "_server.http_sessions",
    "EffectTransport": "_server.http_effects",
    "EventStore": "_protocol.event_store",
    "HttpStores": "_server.http_sessions",
    "Instance": "_server.instances",
    "InstanceHandler": "_server.instances",
    "Instances": "_server.instances",
    "MemoryInstances": "_server.instances",
    "MemoryStore": "_server.sealed_state",
    "OpenApiEntry": "_server.openapi",
    "OpenApiOperation": "_server.openapi",
    "OpenApiReport": "_server.openapi",
    "Request": "_server.routes",
    "Response": "_server.routes",
    "SessionFacts": "_server.instances",
    "StateStore": "_protocol.state_store",
    "StoreUnavailableError": "_server.instances",
    "StoredSession": "_server.instances",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mcp_trio.{_MODULES[name]}"), name)
