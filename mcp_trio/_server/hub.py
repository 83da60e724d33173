"""The other end of servers that dial: a hub takes their connections, and is their client."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Self, TypedDict, Unpack, cast

import attrs
import trio

from mcp_trio._engine import bare
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol.websocket import checked_token
from mcp_trio._server.connections import WebSocketOptions, bound_websocket
from mcp_trio._server.http.options import Verify
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.lock_file import LockPath, lock_file
from mcp_trio._transports.websocket.channel import WebSocketChannel


class ListenOptions(TypedDict, total=False):
    """Who may connect to a hub, and how; see `Server.serve_websocket`."""

    path: str
    verify: Verify | None
    hosts: Sequence[str] | None
    origins: Sequence[str] | None
    certfile: str | None
    keyfile: str | None


@attrs.define(eq=False, repr=False)
class WebSocketHub:
    """Hands out the channel of each connection: `async for channel in hub: …`, from any tasks.

    Whoever takes a channel closes it, as `Client(channel)` does. What is not taken waits, for as
    long as its server is there. With the hub all loops end.

    Attributes:
        url: Where servers dial to.
    """

    url: str
    _channels: trio.MemoryReceiveChannel[WebSocketChannel]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WebSocketChannel:
        try:
            return await self._channels.receive()
        except trio.EndOfChannel:
            raise StopAsyncIteration from None


@asynccontextmanager
async def listen_websocket(
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    lock_path: LockPath | None = None,
    limits: Limits = DEFAULT_LIMITS,
    **options: Unpack[ListenOptions],
) -> AsyncGenerator[WebSocketHub, None]:
    """The hub that servers dial to, for as long as the block.

    `async with listen_websocket() as hub: async for channel in hub: …`.
    `token` is what a server has to bring, in the header or as a subprotocol. With `lock_path` a
    file there says port and token to those who may read it (0600); without a `token` it is a new
    one. Port 0 is any free one. In the end nobody is taken any more, and all are told (1001).

    Raises:
        OSError: The address cannot be bound, the certificate not be read, the file not be written,
            or another process that lives has one there.
        ValueError: Options that contradict each other.
    """
    if token is None and lock_path is not None:
        token = secrets.token_urlsafe()
    chosen = cast("WebSocketOptions", {**options, "token": token})
    put, take = trio.open_memory_channel[WebSocketChannel](0)

    async def handle(channel: Channel) -> None:
        connection = cast("WebSocketChannel", channel)
        if await _taken(connection, put):
            await connection.wait_left()

    async with bound_websocket(chosen, host=host, port=port) as bound:
        lock: AbstractContextManager[None] = nullcontext()
        if lock_path is not None:
            assert token is not None
            lock = lock_file(lock_path, port=bound.port, token=checked_token(token))
        try:
            with lock, put:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(bound.serve, handle, limits)
                    yield WebSocketHub(bound.url, take)
                    nursery.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise bare(error) from None


async def _taken(
    connection: WebSocketChannel, put: trio.MemorySendChannel[WebSocketChannel]
) -> bool:
    """Whether somebody took it before its server had gone away."""
    is_taken = False
    async with trio.open_nursery() as nursery:

        async def leave() -> None:
            await connection.wait_gone()
            nursery.cancel_scope.cancel()

        nursery.start_soon(leave)
        await put.send(connection)
        is_taken = True
        nursery.cancel_scope.cancel()
    return is_taken
