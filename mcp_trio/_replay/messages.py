"""Recorded frames, as far as is to be known of them to run handlers again."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mcp_trio._journal.messages import messages_in


class Message(msgspec.Struct):
    """As much of a frame as tells what it is; nothing of it is set in what is no message."""

    id: int | str | UnsetType = UNSET
    method: str = ""
    params: dict[str, Any] = {}

    @property
    def is_answer(self) -> bool:
        """Whether it answers a request."""
        return not self.method and self.id is not UNSET

    @property
    def is_request(self) -> bool:
        """Whether it wants an answer."""
        return bool(self.method) and self.id is not UNSET


def message_of(frame: bytes) -> Message:
    """What a frame is."""
    try:
        return msgspec.json.decode(frame, type=Message)
    except (ValueError, RecursionError):
        return Message()


def messages_of(frame: bytes) -> list[Message]:
    """What the messages of a frame are."""
    return [message_of(each) for each in messages_in(frame)]


def call_text(frame: bytes) -> str:
    """What a request or notification is for, such as `tools/call "sell"`; empty if it is none."""
    message = message_of(frame)
    target = message.params.get("name") or message.params.get("uri")
    return f'{message.method} "{target}"' if target else message.method
