"""Middleware of servers: the types of `Server.middleware`, and some to use."""

from mcp_trio._protocol.shares import Rate
from mcp_trio._server.caller_limits import (
    ConcurrencyLimit,
    LimitStore,
    LogLimit,
    MemoryLimitStore,
    Per,
    Quota,
    RateLimit,
)
from mcp_trio._server.middleware import (
    CacheResults,
    CallNext,
    LogRequests,
    Middleware,
    MiddlewareRequest,
    ResultLimit,
)
from mcp_trio.errors import RateLimited

__all__ = [
    "CacheResults",
    "CallNext",
    "ConcurrencyLimit",
    "LimitStore",
    "LogLimit",
    "LogRequests",
    "MemoryLimitStore",
    "Middleware",
    "MiddlewareRequest",
    "Per",
    "Quota",
    "Rate",
    "RateLimit",
    "RateLimited",
    "ResultLimit",
]
