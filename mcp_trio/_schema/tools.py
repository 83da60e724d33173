"""Server, tools."""

from typing import Any

import msgspec

from mcp_trio._schema.base import Model, Params, Result
from mcp_trio._schema.content import Content
from mcp_trio._schema.pagination import PaginatedResult


class Tool(Model, kw_only=True):
    """A function that the client may call; `input_schema` is the JSON Schema of its arguments."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None


class ListToolsResult(PaginatedResult, kw_only=True):
    """One page of the server's tools."""

    tools: list[Tool]


class CallToolParams(Params, kw_only=True):
    """Names the tool to call; its arguments stay the text of an object, for the tool's own type.

    Raises:
        ValueError: The arguments are no object.
    """

    name: str
    arguments: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.arguments is msgspec.UNSET:
            return
        text = bytes(memoryview(self.arguments)[:4])
        if text == b"null":
            self.arguments = msgspec.UNSET
        elif not text.startswith(b"{"):
            raise ValueError("arguments is not an object")


class CallToolResult(Result, kw_only=True):
    """What the tool gave back; with `is_error` the content says what went wrong."""

    content: list[Content]
    is_error: bool | None = None
