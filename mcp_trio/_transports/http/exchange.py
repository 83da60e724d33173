"""What an HTTP application asks of who holds the connection: one request, and its answer.

Two hosts make exchanges, `asgi` and `native`, and pass the same tests. An application is a function
of an exchange; it knows nothing of sockets, chunks or HTTP versions.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from mcp_trio._protocol.http import Head, Headers


class BodyTooLargeError(Exception):
    """The body of a request is over its limit; nothing more of it is read."""


class Exchange(Protocol):
    """One request and its answer, which is given by `answer`, or by `start`, `send` and `end`.

    One coroutine reads and answers; `gone` may be awaited by another task. After the application
    has returned without an answer, the host gives one: 500.
    """

    @property
    def head(self) -> Head:
        """What came before the body."""
        ...

    @property
    def may_lead(self) -> bool:
        """Whether the coroutine that answers may go on in another task, if it asks for that."""
        ...

    async def body(self, bytes_max: int) -> bytes:
        """The whole body; only the first call reads.

        Raises:
            BodyTooLargeError: It is larger.
            trio.BrokenResourceError: The client went away, or was too slow, before its end.
        """
        ...

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Give a whole answer; its length is added to the headers.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Begin an answer whose length nobody knows; the head leaves at once.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        ...

    async def send(self, piece: bytes) -> None:
        """Send a piece of it; waits while the client does not read.

        Raises:
            trio.BrokenResourceError: The client is gone, or has read nothing for too long.
        """
        ...

    async def end(self) -> None:
        """End such an answer.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        ...

    async def gone(self) -> None:
        """Wait until the client has gone away; never returns before the body was read."""
        ...


Responder: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""An application. What it raises, but for a cancellation, is logged by the host, and ends the
exchange: with 500 if no answer has begun, else by breaking the connection off."""
