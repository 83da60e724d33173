"""Servers over HTTP: shared stores, recorded HTTP calls, and requests and responses of routes."""

from mcp_trio._protocol.event_store import EventStore
from mcp_trio._server.http_effects import EffectTransport
from mcp_trio._server.http_options import Changes, HttpStores, SessionFacts, SessionStore
from mcp_trio._server.routes import Request, Response
from mcp_trio._server.sealed_state import MemoryStore, StateStore

__all__ = [
    "Changes",
    "EffectTransport",
    "EventStore",
    "HttpStores",
    "MemoryStore",
    "Request",
    "Response",
    "SessionFacts",
    "SessionStore",
    "StateStore",
]
