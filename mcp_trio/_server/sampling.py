"""From what a handler asks of the client's model to the params of `sampling/createMessage`."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, TypedDict

import msgspec

from mcp_trio._schema import (
    CreateMessageParams,
    ImageContent,
    IncludeContext,
    ModelPreferences,
    SamplingMessage,
    TextContent,
)

# How long an answer may be if the handler does not say; the specification asks for a number.
TOKENS: Final = 1024

Said: TypeAlias = str | TextContent | ImageContent | SamplingMessage
Question: TypeAlias = CreateMessageParams | Said | Sequence[Said]
"""What the model is asked: a text, which the user says, or a conversation, or everything."""


class SamplingOptions(TypedDict, total=False):
    """What else may be said about the answer; see `CreateMessageParams`."""

    max_tokens: int
    model_preferences: ModelPreferences
    system_prompt: str
    include_context: IncludeContext
    temperature: float
    stop_sequences: list[str]
    metadata: dict[str, Any]


def sampling_params(question: Question, options: SamplingOptions) -> CreateMessageParams:
    """The params; options win over what stands in the question.

    Raises:
        TypeError: An unknown option, or no message.
    """
    if not isinstance(question, CreateMessageParams):
        said = question if isinstance(question, list | tuple) else [question]
        question = CreateMessageParams(
            messages=[_message(each) for each in said], max_tokens=TOKENS
        )
    return msgspec.structs.replace(question, **options)


def _message(said: Any) -> SamplingMessage:
    if isinstance(said, SamplingMessage):
        return said
    content = TextContent(text=said) if isinstance(said, str) else said
    if isinstance(content, TextContent | ImageContent):
        return SamplingMessage(role="user", content=content)
    raise TypeError(f"a model is asked by text, image or SamplingMessage, not {said!r}")
