"""Frames that belong to a request, and requests that nobody will answer."""

from typing import Self

import attrs

from mcp_trio._errors import ConnectionLost


class Addressed(bytes):
    """A frame that belongs to a request of the peer: its answer, or what is said about it.

    `about` is the request's id; None: it belongs to none. `is_answer` says that no other will come.
    """

    about: int | str | None
    is_answer: bool

    def __new__(cls, frame: bytes, about: int | str | None, *, is_answer: bool = False) -> Self:
        """The same bytes, with an address."""
        self = super().__new__(cls, frame)
        self.about = about
        self.is_answer = is_answer
        return self


@attrs.frozen
class Lost:
    """What a channel gives instead of an answer to a request of ours that it sent, or could not.

    `error` is what the caller gets.
    """

    id: int | str
    error: ConnectionLost
