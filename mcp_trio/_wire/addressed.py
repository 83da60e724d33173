"""Frames that belong to a request, and requests that nobody will answer."""

from typing import Self

import attrs

from mcp_trio._errors import ConnectionLost, LocalProtocolError
from mcp_trio._wire.envelope import Batch, Message


class Addressed(bytes):
    """A frame that belongs to a request of the peer: its answer, or what is said about it.

    `about` is the request's id; None: it belongs to none. `is_answer` says that no other will come.
    """

    about: int | str | None
    is_answer: bool

    def __new__(cls, frame: bytes, about: int | str | None, *, is_answer: bool = False) -> Self:
        """The same bytes, with an address."""
        self = bytes.__new__(cls, frame)
        self.about = about
        self.is_answer = is_answer
        return self


class FromPrincipal(bytes):
    """A received frame of which its transport has made sure who sent it: the `principal`."""

    principal: str

    def __new__(cls, frame: bytes, principal: str) -> Self:
        """The same bytes, with a name."""
        self = bytes.__new__(cls, frame)
        self.principal = principal
        return self


def from_principal(frame: bytes, principal: str | None) -> bytes:
    """A frame as it is to be received from somebody; None: nobody knows who that is."""
    return frame if principal is None else FromPrincipal(frame, principal)


class Understood(bytes):
    """A received frame that was decoded on its way, as HTTP looks into what it carries.

    `principal` is who has sent it; None: nobody knows.
    """

    message: Message | Batch
    principal: str | None

    def __new__(cls, frame: bytes, message: Message | Batch, principal: str | None) -> Self:
        """The same bytes, with what they mean."""
        self = bytes.__new__(cls, frame)
        self.message = message
        self.principal = principal
        return self


@attrs.frozen
class Lost:
    """What a channel gives instead of an answer to a request of ours that it sent, or could not.

    `error` is what the caller gets: a `LocalProtocolError` for what could not be said on this way.
    """

    id: int | str
    error: ConnectionLost | LocalProtocolError
