"""A server's end of WebSocket: what is done with a connection until it is a channel, and after."""

import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NoReturn, TypeAlias, cast

import attrs
import trio

from mcp_trio._limits import Limits
from mcp_trio._protocol.http.heads import Head
from mcp_trio._protocol.http.verdicts import Refusal
from mcp_trio._transports.http.native_head import (
    Refused,
    head_bytes,
    read_head,
    written_refusal,
)
from mcp_trio._transports.websocket.channel import WebSocketChannel
from mcp_trio._transports.websocket.stream_upgrade import StreamUpgrade, answer_last
from mcp_trio._transports.websocket.upgrade import accepted

logger = logging.getLogger("mcp_trio")

Admit: TypeAlias = Callable[[Head], Awaitable[Head | Refusal]]
"""Who may come: the head, with the principal; or what is answered instead."""

Handle: TypeAlias = Callable[[WebSocketChannel], Awaitable[None]]
"""What is done with a channel; it is closed afterwards."""

Listener: TypeAlias = trio.SocketListener | trio.SSLListener[trio.SocketStream]

# So many times `http_connections_max` are told why they are refused; others are closed at once.
_TOLD_FACTOR: Final = 2
_WITH_ADDRESSES: Final = frozenset({socket.AF_INET, socket.AF_INET6})


@attrs.define(kw_only=True, eq=False)
class WebSocketHost:
    """The connections to one endpoint; no fault of one of them hurts the others."""

    admit: Admit
    handle: Handle
    limits: Limits
    _count: int = attrs.field(default=0, init=False)

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve a fresh connection until it ends, and close it."""
        self._count += 1
        try:
            if self._count <= self.limits.http_connections_max:
                await self._serve(stream)
            elif self._count <= _TOLD_FACTOR * self.limits.http_connections_max:
                refused = Refused(503, "there are too many connections (http_connections_max)")
                await answer_last(stream, written_refusal(refused), self.limits)
        except trio.BrokenResourceError:
            pass  # the client has gone away, which ends a connection like any other way
        except Exception:
            logger.exception("a WebSocket connection failed")
        finally:
            self._count -= 1
            await trio.aclose_forcefully(stream)

    async def _serve(self, stream: trio.abc.Stream) -> None:
        received = bytearray()
        try:
            head = await self._head_in_time(stream, received)
        except Refused as refused:
            await answer_last(stream, written_refusal(refused), self.limits)
            return
        await self.serve_upgrade(stream, head, received)

    async def _head_in_time(self, stream: trio.abc.Stream, received: bytearray) -> Head:
        seconds = self.limits.http_head_seconds
        with trio.move_on_after(seconds):
            return await self._read_head(stream, received)
        raise Refused(408, f"the head has not come for {seconds:g} seconds")

    async def _read_head(self, stream: trio.abc.Stream, received: bytearray) -> Head:
        length = searched = 0
        while not length:
            chunk = await stream.receive_some(self.limits.chunk_bytes)
            if not chunk:
                raise trio.BrokenResourceError("the client has gone away")
            received += chunk
            length = head_bytes(received, searched, bytes_max=self.limits.http_head_bytes_max)
            searched = len(received)
        request = read_head(bytes(received[:length]), _client(stream))
        if request.body_bytes != 0:
            raise Refused(400, "what becomes a WebSocket has no body")
        scheme = "https" if isinstance(stream, trio.SSLStream) else "http"
        return attrs.evolve(request.head, scheme=scheme)

    async def serve_upgrade(self, stream: trio.abc.Stream, head: Head, received: bytearray) -> None:
        """Serve a connection of which a head was read; `received` is that, and what came behind.

        Raises:
            trio.BrokenResourceError: The client has gone away.
        """
        upgrade = StreamUpgrade(stream=stream, head=head, received=received, limits=self.limits)
        admitted = await self.admit(head)
        if isinstance(admitted, Refusal):
            await upgrade.refuse(admitted)
            return
        channel = await accepted(upgrade, admitted, self.limits)
        try:
            await self._handle(channel)
        finally:
            await channel.aclose()

    async def _handle(self, channel: WebSocketChannel) -> None:
        """A server that is stopped tells its clients so."""

        async def note_the_stop() -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                if not is_over:
                    channel.goes_away()
                raise

        is_over = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note_the_stop)
            await self.handle(channel)
            is_over = True
            nursery.cancel_scope.cancel()


async def serve_websocket(
    listeners: Sequence[Listener],
    host: WebSocketHost,
    *,
    task_status: trio.TaskStatus[Sequence[Listener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve whoever connects, until it is cancelled; closes the listeners.

    Cancelled: no more connections are taken, and each `handle` is cancelled; returns when these
    have returned and their channels are closed.
    """
    async with trio.open_nursery() as nursery:
        await trio.serve_listeners(
            host.serve,
            cast("list[trio.SocketListener]", list(listeners)),
            handler_nursery=nursery,
            task_status=cast("trio.TaskStatus[list[trio.SocketListener]]", task_status),
        )


def _client(stream: trio.abc.Stream) -> str | None:
    if isinstance(stream, trio.SSLStream):
        return _client(cast("trio.SSLStream[trio.SocketStream]", stream).transport_stream)
    if not isinstance(stream, trio.SocketStream) or stream.socket.family not in _WITH_ADDRESSES:
        return None
    try:
        address: str = stream.socket.getpeername()[0]
    except OSError:  # it has gone already
        return None
    return address
