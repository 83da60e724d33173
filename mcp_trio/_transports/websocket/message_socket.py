"""What a WebSocket channel stands on: a socket of messages, by whatever library holds it.

One task sends and one receives, at the same time; a third may ping.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._wire.lines import Oversized


class SocketEnded(Exception):  # noqa: N818  an event, and no fault of anybody who catches it
    """Nothing more will come.

    Attributes:
        code: The peer's close code; or, with `is_ours`, the one that we close with, because of what
            the peer sent.
        reason: What was said with it.
        is_ours: Whether we end it.
    """

    def __init__(self, code: int, reason: str = "", *, is_ours: bool = False) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
        self.is_ours = is_ours


class MessageSocket(Protocol):
    """An open WebSocket."""

    @property
    def bytes_sent(self) -> int:
        """Grows while something is sent, also in the middle of a message."""
        ...

    async def send_texts(self, texts: Sequence[str]) -> None:
        """Sends messages; waits while the peer does not read. Cancelled: one may be cut.

        Raises:
            trio.BrokenResourceError: The peer is gone, or a message was cut before.
        """
        ...

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        """How many of the messages were taken without waiting; not while somebody sends.

        One that was begun is taken, too: see `is_unfinished`.

        Raises:
            trio.BrokenResourceError: The peer is gone, or a message was cut before.
        """
        ...

    @property
    def is_unfinished(self) -> bool:
        """Whether a `send_texts` is due, be it of nothing, to finish what was begun."""
        ...

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Messages of text, at least one, or what is reported of one that is too large.

        Cancelled: nothing is lost.

        Raises:
            SocketEnded: There are no more, now and always.
        """
        ...

    async def ping(self) -> None:
        """Returns when the peer has answered a ping, or at once where a host does that by itself.

        Raises:
            trio.BrokenResourceError: The peer is gone.
        """
        ...

    def is_silent_since(self, moment: float) -> bool:
        """Whether we have listened ever since, and heard nothing at all."""
        ...

    async def close(self, code: CloseCode, reason: str) -> None:
        """Says why, and waits until the peer knows; to be called once, in a bounded time."""
        ...
