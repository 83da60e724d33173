"""Servers that open the WebSocket themselves, and the hub that accepts them as their client.

A dialing server keeps one connection to its hub. When the connection breaks or cannot be opened,
the server dials again, after pauses that grow while dialing fails. Each connection is a session,
and one lifespan covers all of them.
"""

import logging
import random
import secrets
import ssl
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Final, NoReturn, Self, TypedDict, Unpack, cast

import attrs
import trio

from mcp_trio._protocol.suggestions import check_option_names
from mcp_trio._protocol.websocket import checked_token
from mcp_trio._recorder.options import RecordTarget, SuccessiveSessions
from mcp_trio._server.sessions import SessionSource
from mcp_trio._server.sockets import Serve, WebSocketOptions, bound_websocket, serve_connections
from mcp_trio._session.exceptions import raise_unchanged, sole_exception
from mcp_trio._session.session import Session
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import call_when_cancelled
from mcp_trio._transports.connections import (
    NamedChannel,
    OnState,
    ReportedState,
    SocketChannelOptions,
    open_socket_channel,
    pause_seconds,
)
from mcp_trio._transports.lock_file import LockPath, lock_file
from mcp_trio._transports.websocket import WebSocketChannel
from mcp_trio.errors import ConnectionLost, copied_loss
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from mcp_trio._auth.resource_server import AuthSetting, ResourceServer

logger = logging.getLogger("mcp_trio")

# The HTTP statuses after which the server does not dial again: its token is missing or wrong.
_FINAL_STATUSES: Final = frozenset({401, 403})


class DialOptions(TypedDict, total=False):
    """Options of `Server.dial`, which documents them."""

    token: str | None
    headers: Mapping[str, str] | None
    ssl_context: ssl.SSLContext | None
    record: RecordTarget | None
    state_changed: OnState | None


async def dial(
    server: SessionSource,
    url: str,
    options: DialOptions,
    *,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at `url` until cancelled; `Server.dial` documents the arguments and the errors."""
    check_option_names("Server.dial()", options, DialOptions.__annotations__)
    state = ReportedState(options.get("state_changed"))
    recordings = SuccessiveSessions(options.get("record"))
    dialer = _Dialer(
        url=url,
        options=SocketChannelOptions(
            token=options.get("token"),
            headers=options.get("headers"),
            ssl_context=options.get("ssl_context"),
        ),
        limits=server.limits,
        state=state,
        hub_name_status=task_status,
    )
    state.begin()
    try:
        await serve_connections(
            server,
            dialer.run,
            transport="websocket",
            record=recordings.record,
            task_status=trio.TASK_STATUS_IGNORED,
        )
    except Exception as error:
        state.change("closed", str(error))
        raise
    finally:
        state.change("closed", "closed on this side")  # changes nothing after an error
        recordings.end()


@attrs.define(kw_only=True, eq=False, repr=False)
class _Dialer:
    """A server's connection to its hub, which is opened again whenever it breaks.

    `hub_name_status` receives the name of the hub when the first connection is open.
    """

    url: str
    options: SocketChannelOptions
    limits: Limits
    state: ReportedState
    hub_name_status: trio.TaskStatus[str]
    _channel: NamedChannel | None = attrs.field(default=None, init=False)
    _session: Session | None = attrs.field(default=None, init=False)
    _has_been_open: bool = attrs.field(default=False, init=False)

    async def run(self, serve: Serve, *, task_status: trio.TaskStatus[None]) -> NoReturn:
        """Dial and serve until cancelled; then report to the hub that the server goes away.

        Raises:
            ConnectionLost: The hub rejects the server because of its token.
        """
        # `serve_connections` can be cancelled from here on, also while the hub cannot be reached.
        task_status.started()

        def go_away() -> None:
            if self._channel is not None:
                self._channel.mark_going_away()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call_when_cancelled, go_away)
            failures = 0
            while True:
                has_served = await self._serve_once(serve)
                failures = 0 if has_served else failures + 1
                seconds = pause_seconds(failures, self.limits, random.random)
                logger.debug("dialing the hub again in %.2f s", seconds)
                await trio.sleep(seconds)

    def started(self, session: Session) -> None:
        """Keep the session that has begun; `serve` calls this, with the dialer as `task_status`."""
        self._session = session

    async def _serve_once(self, serve: Serve) -> bool:
        """Dial and serve once; return whether the session completed its handshake."""
        try:
            channel = await open_socket_channel(self.url, self.options, self.limits)
        except ConnectionLost as loss:
            if loss.http_status in _FINAL_STATUSES:
                raise
            self._report_retry(str(loss))
            return False
        self._channel = channel
        try:
            self.state.change("open")
            if not self._has_been_open:
                self._has_been_open = True
                self.hub_name_status.started(channel.name)
            await serve(channel, task_status=self)
            # A hub may accept the WebSocket and then close it with code 1008, because of the token.
            rejection: ConnectionLost | None = getattr(channel, "rejection", None)
            if rejection is not None:
                raise copied_loss(rejection, ConnectionLost)
            session = self._session
            assert session is not None
            self._report_retry(str(session.loss))
            return session.negotiated.is_set()
        finally:
            await channel.aclose()
            self._channel = self._session = None

    def _report_retry(self, reason: str) -> None:
        if self.state.state != "retrying":
            logger.warning("dialing the hub again: %s", reason)
        self.state.change("retrying", reason)


class ListenOptions(TypedDict, total=False):
    """Options of `listen_websocket`.

    `Server` documents `auth`, and `Server.serve_websocket` the others.
    """

    path: str
    auth: "AuthSetting | None"
    hosts: Sequence[str] | None
    origins: Sequence[str] | None
    certfile: str | None
    keyfile: str | None
    client_cafile: str | None


@attrs.define(eq=False, repr=False)
class WebSocketHub:
    """An iterator over the channels of servers that dial: `async for channel in hub: …`.

    Several tasks may iterate at once. The task that receives a channel closes it, as
    `Client(channel)` does. A channel waits to be received for as long as its server stays
    connected. All loops end when the hub closes.

    Attributes:
        url: The URL that servers dial.
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
    """Open a hub that servers dial, within the block.

    `async with listen_websocket() as hub: async for channel in hub: …`

    A server has to send `token`, in the header or as a subprotocol. With `lock_path`, the hub
    writes the port and the token to this file, which only its owner may read (0600), and makes a
    token if none is given. Port 0 chooses a free port. At the end of the block the hub accepts no
    more servers, and closes all connections with code 1001.

    Raises:
        OSError: The address cannot be bound, the certificate cannot be read, the lock file cannot
            be written, or it belongs to another running process.
        TypeError: An option is unknown.
        ValueError: Options contradict each other.
    """
    known = [*ListenOptions.__annotations__, "token", "lock_path"]
    check_option_names("listen_websocket()", options, known)
    if token is None and lock_path is not None:
        token = secrets.token_urlsafe()
    auth = options.pop("auth", None)
    settings: ResourceServer | None = None
    if auth is not None:
        from mcp_trio._auth import resource_server

        settings = resource_server.ResourceServer.of(auth)
    websocket_options = cast("WebSocketOptions", {**options, "token": token})
    sender, receiver = trio.open_memory_channel[WebSocketChannel](0)

    async def handle(channel: Channel) -> None:
        connection = cast("WebSocketChannel", channel)
        if await _pass_on(connection, sender):
            await connection.wait_ended()

    async with bound_websocket(websocket_options, host=host, port=port, auth=settings) as bound:
        lock: AbstractContextManager[None] = nullcontext()
        if lock_path is not None:
            assert token is not None
            lock = lock_file(lock_path, port=bound.port, token=checked_token(token))
        try:
            with lock, sender:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(bound.serve, handle, limits)
                    yield WebSocketHub(bound.url, receiver)
                    nursery.cancel_scope.cancel()
        except ExceptionGroup as error:
            raise_unchanged(sole_exception(error))


async def _pass_on(
    connection: WebSocketChannel, sender: trio.MemorySendChannel[WebSocketChannel]
) -> bool:
    """Wait until a loop over the hub receives the channel; return False if its server is gone."""
    is_received = False
    async with trio.open_nursery() as nursery:

        async def stop_when_unresponsive() -> None:
            await connection.wait_unresponsive()
            nursery.cancel_scope.cancel()

        nursery.start_soon(stop_when_unresponsive)
        await sender.send(connection)
        is_received = True
        nursery.cancel_scope.cancel()
    return is_received
