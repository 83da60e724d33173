"""Lists that come in pages, read to their end."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from mcp_trio._errors import RemoteProtocolError
from mcp_trio._schema import Cursor, PaginatedParams, PaginatedResult

Fetch: TypeAlias = Callable[[str, PaginatedParams], Awaitable[Any]]


async def read_pages(
    fetch: Fetch, method: str, items_of: Callable[[Any], list[Any]], *, pages_max: int
) -> list[Any]:
    """The items of all pages of a list, in order.

    Raises:
        RemoteProtocolError: The server gave a cursor twice, or more than `pages_max` pages.
    """
    items: list[Any] = []
    cursors: set[Cursor | None] = set()
    cursor: Cursor | None = None
    while len(cursors) < pages_max:
        page: PaginatedResult = await fetch(method, PaginatedParams(cursor=cursor))
        items += items_of(page)
        cursors.add(cursor)
        cursor = page.next_cursor
        if cursor is None:
            return items
        if cursor in cursors:
            raise RemoteProtocolError(f"{method}: the server gave the cursor {cursor!r} twice")
    raise RemoteProtocolError(f"{method}: the list has more than {pages_max} pages (pages_max)")
