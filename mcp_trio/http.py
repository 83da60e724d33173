"""HTTP: recorded calls of handlers, routes and shared stores of servers, and OpenAPI documents."""

from mcp_trio._protocol.event_store import EventStore
from mcp_trio._server.http_effects import EffectTransport
from mcp_trio._server.http_options import Changes, HttpStores, SessionFacts, SessionStore
from mcp_trio._server.openapi_report import OpenApiEntry, OpenApiOperation, OpenApiReport
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
