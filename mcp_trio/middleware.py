"""Middleware of servers: the types of `Server.middleware`, and some to use."""

from mcp_trio._server.middleware import (
    CacheResults,
    CallNext,
    LogRequests,
    Middleware,
    MiddlewareRequest,
    RateLimit,
    ResultLimit,
)

__all__ = [
    "CacheResults",
    "CallNext",
    "LogRequests",
    "Middleware",
    "MiddlewareRequest",
    "RateLimit",
    "ResultLimit",
]
