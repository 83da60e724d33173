"""Sampling with tools: each tool use is followed by its result."""

from collections.abc import Sequence
from itertools import pairwise

from mcp_trio import types


def unbalanced_tool_use(messages: Sequence[types.SamplingMessage]) -> str | None:
    """What is wrong with the tools' results in a conversation; None if nothing is.

    The message after one of the assistant with uses of tools has a result for each, and a message
    with results has nothing else in it, nor a result of what was not used (SAMP-18, SAMP-19).
    """
    nothing = types.SamplingMessage(role="user", content=[])
    for before, message in pairwise([nothing, *messages, nothing]):
        fault = _fault(_uses(before), _blocks(message))
        if fault is not None:
            return fault
    return None


def _fault(used: set[str], blocks: Sequence[types.SamplingBlock]) -> str | None:
    answered = [it.tool_use_id for it in blocks if isinstance(it, types.ToolResultContent)]
    if answered and len(answered) < len(blocks):
        return "a message with tool results must contain tool results only"
    missing, unasked = used - set(answered), set(answered) - used
    if missing:
        return f"the next message has no result for the tool use {min(missing)!r}"
    return f"there is a result of an unknown tool use {min(unasked)!r}" if unasked else None


def _uses(message: types.SamplingMessage) -> set[str]:
    return {it.id for it in _blocks(message) if isinstance(it, types.ToolUseContent)}


def _blocks(
    message: types.SamplingMessage | types.CreateMessageResult,
) -> Sequence[types.SamplingBlock]:
    return message.content if isinstance(message.content, list) else [message.content]


def forbidden_tool_use(
    params: types.CreateMessageParams, result: types.CreateMessageResult
) -> str | None:
    """What is wrong with the tools that a model wants to use; None if nothing is (SAMP-21)."""
    used = {it.name for it in _blocks(result) if isinstance(it, types.ToolUseContent)}
    mode = None if params.tool_choice is None else params.tool_choice.mode
    known = {tool.name for tool in params.tools or () if mode != "none"}
    if used - known:
        return f"it uses {min(used - known)!r}, which it was not given"
    return "it had to use a tool" if mode == "required" and not used else None
