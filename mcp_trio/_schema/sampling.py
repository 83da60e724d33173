"""Client, sampling: the server asks the client's model."""

from typing import Any, Literal, TypeAlias

import msgspec

from mcp_trio._schema.base import Model, Number, Params, Result, Role, UnitInterval
from mcp_trio._schema.content import AudioContent, Content, ImageContent, TextContent
from mcp_trio._schema.tools import Tool

IncludeContext: TypeAlias = Literal["none", "thisServer", "allServers"]


class ToolUseContent(Model, kw_only=True, tag_field="type", tag="tool_use"):
    """The model wants a tool called; `id` is what the result names."""

    id: str
    name: str
    input: dict[str, Any]
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ToolResultContent(Model, kw_only=True, tag_field="type", tag="tool_result"):
    """What the tool gave back to the model; with `is_error` the content says what went wrong."""

    tool_use_id: str
    content: list[Content]
    structured_content: Any | msgspec.UnsetType = msgspec.UNSET
    is_error: bool | None = None
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


SamplingBlock: TypeAlias = (
    TextContent | ImageContent | AudioContent | ToolUseContent | ToolResultContent
)
SamplingContent: TypeAlias = SamplingBlock | list[SamplingBlock]


class ToolChoice(Model, kw_only=True):
    """Whether the model uses tools: as it likes (also for None), at least one, or none."""

    mode: Literal["auto", "none", "required"] | None = None


class SamplingMessage(Model, kw_only=True):
    """One message of the conversation to continue."""

    role: Role
    content: SamplingContent
    meta: dict[str, Any] | None = msgspec.field(name="_meta", default=None)


class ModelHint(Model, kw_only=True):
    """A part of the name of a model that would do."""

    name: str | None = None


class ModelPreferences(Model, kw_only=True):
    """Which model to take: the first hint that matches, else by the priorities."""

    hints: list[ModelHint] | None = None
    cost_priority: UnitInterval | None = None
    speed_priority: UnitInterval | None = None
    intelligence_priority: UnitInterval | None = None


class CreateMessageParams(Params, kw_only=True):
    """Asks the client's model for the next message."""

    messages: list[SamplingMessage]
    max_tokens: int
    model_preferences: ModelPreferences | None = None
    system_prompt: str | None = None
    include_context: IncludeContext | None = None
    temperature: Number | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None


class CreateMessageResult(Result, kw_only=True):
    """The message that the model gave, and why it stopped."""

    role: Role
    content: SamplingContent
    model: str
    stop_reason: str | None = None
