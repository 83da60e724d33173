"""Client, sampling: the server asks the client's model."""

from typing import Any, Literal, TypeAlias

from mcp_trio._schema.base import Model, Number, Params, Result, Role, UnitInterval
from mcp_trio._schema.content import ImageContent, TextContent

IncludeContext: TypeAlias = Literal["none", "thisServer", "allServers"]
SamplingContent: TypeAlias = TextContent | ImageContent


class SamplingMessage(Model, kw_only=True):
    """One message of the conversation to continue."""

    role: Role
    content: SamplingContent


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


class CreateMessageResult(Result, kw_only=True):
    """The message that the model gave, and why it stopped."""

    role: Role
    content: SamplingContent
    model: str
    stop_reason: str | None = None
