"""Utilities, caching: how long a result stays good, and for whom."""

from typing import Literal, TypeAlias

from mcp_trio._schema.base import Result

CacheScope: TypeAlias = Literal["private", "public"]


class CacheableResult(Result, kw_only=True):
    """The base of results that may be kept for `ttl_ms` milliseconds from their receipt.

    None and negative numbers mean no time at all.
    """

    ttl_ms: int | None = None
    cache_scope: CacheScope | None = None
