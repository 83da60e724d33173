"""A request to become a WebSocket, on a stream of which we have read it ourselves."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._protocol.http.heads import JSON, Head
from mcp_trio._protocol.http.verdicts import Refusal
from mcp_trio._transports.http.native_head import head_bytes, written_head
from mcp_trio._transports.websocket.trio_sockets import (
    HandshakeFailed,
    TrioSocket,
    linger,
    server_socket,
)


@attrs.frozen(kw_only=True, eq=False)
class StreamUpgrade:
    """See `Upgrade`.

    Attributes:
        stream: The connection.
        head: What was read of it.
        received: The bytes of that, and what came behind them.
        limits: How large a message may be.
    """

    stream: trio.abc.Stream
    head: Head
    received: bytes | bytearray
    limits: Limits

    async def refuse(self, refusal: Refusal) -> None:
        """See `Upgrade.refuse`."""
        body = refusal.body()
        headers = [("Content-Type", JSON), *refusal.headers]
        framing = b"content-length: %d\r\n" % len(body)
        head = written_head(refusal.status, headers, framing=framing, is_last=True)
        await answer_last(self.stream, head + body, self.limits)

    @asynccontextmanager
    async def opened(self, subprotocol: str | None) -> AsyncGenerator[TrioSocket, None]:
        """See `Upgrade.opened`; the stream is closed with the block."""
        received = bytearray(self.received)
        length = head_bytes(received, 0, bytes_max=self.limits.http_head_bytes_max)
        opening = server_socket(
            self.stream,
            head=bytes(received[:length]),
            rest=bytes(received[length:]),
            subprotocol=subprotocol,
            limits=self.limits,
        )
        try:
            async with opening as socket:
                yield socket
        except HandshakeFailed as failure:
            raise trio.BrokenResourceError(str(failure)) from None


async def answer_last(stream: trio.abc.Stream, answer: bytes, limits: Limits) -> None:
    """The last thing that is said, to somebody who may still be talking."""
    with trio.move_on_after(limits.close_seconds), suppress(trio.BrokenResourceError):
        await stream.send_all(answer)
        await linger(stream)
