"""A request to become a WebSocket, which was read and is not answered yet, of any host."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from mcp_trio._limits import Limits
from mcp_trio._protocol.http.heads import Head
from mcp_trio._protocol.http.verdicts import Refusal
from mcp_trio._protocol.websocket import chosen_subprotocol
from mcp_trio._transports.websocket.channel import WebSocketChannel, begin_channel
from mcp_trio._transports.websocket.message_socket import MessageSocket


class Upgrade(Protocol):
    """The request; it is refused, or opened, once."""

    @property
    def head(self) -> Head:
        """What came."""
        ...

    async def refuse(self, refusal: Refusal) -> None:
        """Answer with an error; nothing more is done with the connection.

        Raises:
            trio.BrokenResourceError: The client has gone away.
        """
        ...

    def opened(self, subprotocol: str | None) -> AbstractAsyncContextManager[MessageSocket]:
        """The WebSocket, open within the block.

        Raises:
            trio.BrokenResourceError: The client has gone away.
        """
        ...


Upgraded: TypeAlias = Callable[[Upgrade], Awaitable[None]]
"""What is done with such a request. What it raises, but for a cancellation, is logged by the host,
and ends the connection."""


async def accepted(upgrade: Upgrade, admitted: Head, limits: Limits) -> WebSocketChannel:
    """The channel with who sent it; `admitted` is the head, with the principal.

    Raises:
        trio.BrokenResourceError: The client has gone away.
    """
    return await begin_channel(
        upgrade.opened(chosen_subprotocol(admitted)),
        name=admitted.client or "the client",
        principal=admitted.principal,
        limits=limits,
    )
