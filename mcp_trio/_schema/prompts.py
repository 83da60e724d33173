"""Server, prompts."""

from mcp_trio._schema.base import Model, Params, Result, Role
from mcp_trio._schema.content import Content
from mcp_trio._schema.pagination import PaginatedResult


class PromptArgument(Model, kw_only=True):
    """A blank of a prompt that the client fills in."""

    name: str
    description: str | None = None
    required: bool | None = None


class Prompt(Model, kw_only=True):
    """A template of messages."""

    name: str
    description: str | None = None
    arguments: list[PromptArgument] | None = None


class PromptMessage(Model, kw_only=True):
    """One message of a filled-in prompt."""

    role: Role
    content: Content


class ListPromptsResult(PaginatedResult, kw_only=True):
    """One page of the server's prompts."""

    prompts: list[Prompt]


class GetPromptParams(Params, kw_only=True):
    """Names the prompt to fill in, and its arguments, which are all text."""

    name: str
    arguments: dict[str, str] | None = None


class GetPromptResult(Result, kw_only=True):
    """The filled-in prompt."""

    messages: list[PromptMessage]
    description: str | None = None
