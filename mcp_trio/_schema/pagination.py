"""Server, pagination: what all lists have in common."""

from mcp_trio._schema.base import Cursor, Params
from mcp_trio._schema.caching import CacheableResult


class PaginatedParams(Params, kw_only=True):
    """Asks for the page that the cursor names, or for the first."""

    cursor: Cursor | None = None


class PaginatedResult(CacheableResult, kw_only=True):
    """One page; without `next_cursor` it is the last."""

    next_cursor: Cursor | None = None
