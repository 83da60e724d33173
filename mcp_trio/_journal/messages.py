"""The messages in a recorded frame: one, or those of a batch, and what lanes are named after them.

The lane of a request is named by the number of its `in` record, and in a batch, but for the first
message, by its place there as well: `r5`, `r5-1`, `r5-2`.
"""

import re
from typing import Final

import msgspec
from msgspec import Raw

_MEMBERS: Final = msgspec.json.Decoder(list[Raw])
_NAME: Final = re.compile(r"[a-z]([0-9]+)(?:-([0-9]+))?")


def message_name(number: int, place: int) -> str:
    """What a message is called by lanes: by the number of its record, and its place in that."""
    return f"{number}-{place}" if place else str(number)


def place_of_message(lane: str) -> tuple[int, int] | None:
    """The number of the record and the place in it that a lane is named after, if it is so."""
    match = _NAME.match(lane)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def messages_in(frame: bytes) -> list[bytes]:
    """Each message in a frame, verbatim."""
    if not frame.lstrip().startswith(b"["):
        return [frame]
    try:
        return [bytes(member) for member in _MEMBERS.decode(frame)]
    except (ValueError, RecursionError):
        return [frame]


def message_at(frame: bytes, place: int) -> bytes:
    """The message at a place of a frame, verbatim; empty if there is none."""
    messages = messages_in(frame)
    return messages[place] if place < len(messages) else b""
