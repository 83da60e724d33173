"""Client, roots: the places that a server may work in."""

from typing import Any

import msgspec

from mcp_trio._schema.base import Model, Result


class Root(Model, kw_only=True):
    """A directory or file, by its `file://` URI."""

    uri: str
    name: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ListRootsResult(Result, kw_only=True):
    """All roots."""

    roots: list[Root]
