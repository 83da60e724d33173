"""The other end of servers that dial: a hub takes their connections, and is their client."""

import logging
import random
import secrets
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Final, NoReturn, Self, TypedDict, Unpack, cast

import attrs
import trio

from mcp_trio._protocol.websocket import checked_token
from mcp_trio._recorder.writer import RecordTarget, SuccessiveSessions
from mcp_trio._server.http_options import Verify
from mcp_trio._server.sockets import (
    Serve,
    ServesConnections,
    WebSocketOptions,
    bound_websocket,
    serve_connections,
)
from mcp_trio._session.session import Session
from mcp_trio._session.tasks import bare
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import tell_when_cancelled
from mcp_trio._transports.connections import (
    Condition,
    ConnectionOptions,
    NamedChannel,
    OnState,
    RandomSource,
    open_connection,
    pause_seconds,
)
from mcp_trio._transports.lock_file import LockPath, lock_file
from mcp_trio._transports.websocket import WebSocketChannel
from mcp_trio.errors import ConnectionLost, loss_as
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# A server that dials out: it opens the connection, and serves on it whoever is at the other end.
#
# The connection may break as often as it likes: it is opened again, with longer and longer pauses
# while that fails. Each connection is a session, and all of them are in one lifespan.


logger = logging.getLogger("mcp_trio")

# Who is refused so is refused again: without a token, or with a wrong one.
_FINAL: Final = frozenset({401, 403})


class DialOptions(TypedDict, total=False):
    """How a server dials.

    Attributes:
        token: See `open_websocket_channel`, as for the next two.
        headers: What goes along with the request.
        ssl_context: For `wss://`: whom to trust.
        record: See `Server.serve`; one file holds all sessions as one story.
        state_changed: Called with how the connection stands, and why: "connecting", "open",
            "retrying", "closed".
    """

    token: str | None
    headers: Mapping[str, str] | None
    ssl_context: ssl.SSLContext | None
    record: RecordTarget | None
    state_changed: OnState | None


async def dial(
    server: ServesConnections,
    url: str,
    options: DialOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at `url` until cancelled; see `Server.dial`."""
    condition = Condition(options.get("state_changed"))
    recordings = SuccessiveSessions(options.get("record"))
    opened_with = ConnectionOptions(
        token=options.get("token"),
        headers=options.get("headers"),
        ssl_context=options.get("ssl_context"),
    )

    opened = _once(task_status.started)

    async def listen(serve: Serve, *, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()  # what is not open yet can be cancelled, too
        line = _Line(
            url=url,
            options=opened_with,
            limits=server.limits,
            condition=condition,
            serve=serve,
            on_open=opened,
        )
        await line.keep()

    condition.begin()
    try:
        await serve_connections(
            server, listen, record=recordings.record, task_status=trio.TASK_STATUS_IGNORED
        )
    except Exception as error:
        condition.become("closed", str(error))
        raise
    finally:
        condition.become("closed", "closed on this side")
        recordings.end()


def _once(tell: Callable[[str], None]) -> Callable[[str], None]:
    told: list[str] = []

    def tell_once(name: str) -> None:
        if not told:
            told.append(name)
            tell(name)

    return tell_once


@attrs.define(eq=False)
class _Kept:
    """Keeps the session that its task reports."""

    session: Session | None = None

    def started(self, session: Session) -> None:
        """See `trio.TaskStatus`."""
        self.session = session


@attrs.define(kw_only=True, eq=False)
class _Line:
    """One connection after the other; `serve` reports the session of each."""

    url: str
    options: ConnectionOptions
    limits: Limits
    condition: Condition
    serve: Callable[..., Awaitable[None]]
    on_open: Callable[[str], None]
    random_source: RandomSource = random.random
    _channel: NamedChannel | None = attrs.field(default=None, init=False)

    async def keep(self) -> None:
        """Dial until cancelled; then the hub is told that the server goes away.

        Raises:
            ConnectionLost: The hub refuses, and would again.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tell_when_cancelled, self._go_away)
            await self._keep_dialling()

    def _go_away(self) -> None:
        if self._channel is not None:
            self._channel.goes_away()

    async def _keep_dialling(self) -> NoReturn:
        failures = 0
        while True:
            has_served = await self._serve_once()
            failures = 0 if has_served else failures + 1
            seconds = pause_seconds(failures, self.limits, self.random_source)
            logger.debug("the hub is dialled again in %.2f s", seconds)
            await trio.sleep(seconds)

    async def _serve_once(self) -> bool:
        """Whether there was a session that both sides agreed on."""
        try:
            channel = await open_connection(self.url, self.options, self.limits)
        except ConnectionLost as loss:
            if loss.http_status in _FINAL:
                raise
            self._retry(str(loss))
            return False
        self._channel = channel
        try:
            return await self._serve(channel)
        finally:
            await channel.aclose()
            self._channel = None

    async def _serve(self, channel: NamedChannel) -> bool:
        self.condition.become("open")
        self.on_open(channel.name)
        kept = _Kept()
        await self.serve(channel, task_status=kept)
        rejection: ConnectionLost | None = getattr(channel, "rejection", None)
        if rejection is not None:
            raise loss_as(ConnectionLost, rejection)
        session = kept.session
        assert session is not None
        self._retry(str(session.loss))
        return session.negotiated.is_set()

    def _retry(self, reason: str) -> None:
        if self.condition.state != "retrying":
            logger.warning("the hub is dialled again: %s", reason)
        self.condition.become("retrying", reason)


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
