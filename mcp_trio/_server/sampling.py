"""From what a handler asks of the client's model to the params of `sampling/createMessage`."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, TypedDict

import msgspec

from mcp_trio._errors import LocalProtocolError
from mcp_trio._protocol.tool_results import imbalance
from mcp_trio._schema import (
    AudioContent,
    CreateMessageParams,
    CreateMessageResult,
    ImageContent,
    IncludeContext,
    ModelPreferences,
    SamplingMessage,
    TextContent,
    Tool,
    ToolChoice,
    ToolResultContent,
)

# How long an answer may be if the handler does not say; the specification asks for a number.
TOKENS: Final = 1024

_SPOKEN: Final = (TextContent, ImageContent, AudioContent, ToolResultContent)

Block: TypeAlias = TextContent | ImageContent | AudioContent | ToolResultContent
Said: TypeAlias = str | Block | SamplingMessage | CreateMessageResult | Sequence[ToolResultContent]
Question: TypeAlias = CreateMessageParams | Said | Sequence[Said]
"""What the model is asked: a text, which the user says, or a conversation, or everything.

What the model said before stands in a conversation as the result that it came by; after that, a
list in the list is one message with the results of the tools that it used.
"""


class SamplingOptions(TypedDict, total=False):
    """What else may be said about the answer; see `CreateMessageParams`."""

    max_tokens: int
    model_preferences: ModelPreferences
    system_prompt: str
    include_context: IncludeContext
    temperature: float
    stop_sequences: list[str]
    metadata: dict[str, Any]
    tools: list[Tool]
    tool_choice: ToolChoice


def sampling_params(question: Question, options: SamplingOptions) -> CreateMessageParams:
    """The params; options win over what stands in the question.

    Raises:
        TypeError: An unknown option, or no message.
        LocalProtocolError: The results of tools do not belong to what the model said (SAMP-18,
            SAMP-19).
    """
    if not isinstance(question, CreateMessageParams):
        said = question if isinstance(question, list | tuple) else [question]
        question = CreateMessageParams(
            messages=[_message(each) for each in said], max_tokens=TOKENS
        )
    fault = imbalance(question.messages)
    if fault is not None:
        raise LocalProtocolError(f"sampling/createMessage: {fault}")
    return msgspec.structs.replace(question, **options)


def _message(said: Any) -> SamplingMessage:
    match said:
        case SamplingMessage():
            return said
        case CreateMessageResult():
            return SamplingMessage(role=said.role, content=said.content)
        case str():
            return SamplingMessage(role="user", content=TextContent(text=said))
        case [ToolResultContent(), *others] if _are_results(others):
            return SamplingMessage(role="user", content=[*said])
        case _ if isinstance(said, _SPOKEN):
            return SamplingMessage(role="user", content=said)
        case _:
            raise TypeError(f"a model is asked by text, image or SamplingMessage, not {said!r}")


def _are_results(blocks: list[Any]) -> bool:
    return all(isinstance(block, ToolResultContent) for block in blocks)
