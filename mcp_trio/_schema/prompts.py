"""Server, prompts."""

from typing import Any

import msgspec

from mcp_trio._schema.base import BaseMetadata, Icons, Model, Result, Role
from mcp_trio._schema.content import Content
from mcp_trio._schema.input_rounds import InputResponseParams
from mcp_trio._schema.pagination import PaginatedResult


class PromptArgument(BaseMetadata, kw_only=True):
    """A blank of a prompt that the client fills in."""

    description: str | None = None
    required: bool | None = None


class Prompt(Icons, kw_only=True):
    """A template of messages."""

    name: str
    description: str | None = None
    arguments: list[PromptArgument] | None = None
    title: str | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class PromptMessage(Model, kw_only=True):
    """One message of a filled-in prompt."""

    role: Role
    content: Content


class ListPromptsResult(PaginatedResult, kw_only=True):
    """One page of the server's prompts."""

    prompts: list[Prompt]


class GetPromptParams(InputResponseParams, kw_only=True):
    """Names the prompt to fill in, and its arguments, which are all text."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result, kw_only=True):
    """The filled-in prompt."""

    messages: list[PromptMessage]
    description: str | None = None
