"""Client, roots: the places that a server may work in."""

from mcp_trio._schema.base import Model, Result


class Root(Model, kw_only=True):
    """A directory or file, by its `file://` URI."""

    uri: str
    name: str | None = None


class ListRootsResult(Result, kw_only=True):
    """All roots."""

    roots: list[Root]
