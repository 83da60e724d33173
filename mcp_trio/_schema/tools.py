"""Server, tools."""

from typing import Any, Literal

import msgspec

from mcp_trio._schema.base import Icons, Model, Result
from mcp_trio._schema.content import Content
from mcp_trio._schema.input_rounds import InputResponseParams
from mcp_trio._schema.pagination import PaginatedResult


class ToolAnnotations(Model, kw_only=True):
    """What a tool says of its ways: hints for people, on which nothing may rely."""

    title: str | None = None
    read_only_hint: bool | None = None
    destructive_hint: bool | None = None
    idempotent_hint: bool | None = None
    open_world_hint: bool | None = None


class ToolExecution(Model, kw_only=True):
    """Whether a call may, or must, run as a task."""

    task_support: Literal["forbidden", "optional", "required"] | None = None


class Tool(Icons, kw_only=True):
    """A function that the client may call.

    `input_schema` is the JSON Schema of its arguments, `output_schema` that of its structured
    content.
    """

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    title: str | None = None
    output_schema: dict[str, Any] | None = None
    annotations: ToolAnnotations | None = None
    execution: ToolExecution | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ListToolsResult(PaginatedResult, kw_only=True):
    """One page of the server's tools."""

    tools: list[Tool]


class CallToolParams(InputResponseParams, kw_only=True):
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
        elif text[:1] != b"{":
            raise ValueError("arguments is not an object")


class CallToolResult(Result, kw_only=True):
    """What the tool gave back; with `is_error` the content says what went wrong.

    `structured_content` is the same for programs; None is a value of it.
    """

    content: list[Content]
    structured_content: Any | msgspec.UnsetType = msgspec.UNSET
    is_error: bool | None = None
