"""Serving connections that are sessions: WebSocket, Unix domain sockets, TCP.

The server's lifespan is entered once, round all of them. Each connection is a session of its own,
recorded by itself, and what becomes of one is no affair of the others.
"""

import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from ipaddress import ip_address
from typing import (
    Any,
    Final,
    NoReturn,
    Protocol,
    Required,
    TypeAlias,
    TypedDict,
    TypeVar,
    runtime_checkable,
)

import attrs
import trio

from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.security import LOOPBACK, HostCheck, host_check_for
from mcp_trio._protocol.websocket import (
    CloseCode,
    checked_token,
    has_token,
    upgrade_rejection,
    with_token,
)
from mcp_trio._recorder.writer import RecordTarget, holds_many_sessions
from mcp_trio._server.handlers import SessionHttp
from mcp_trio._server.http_options import Verify, WhoMayCome
from mcp_trio._session.tasks import foremost
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import LightEvent, tell_when_cancelled
from mcp_trio._transports.sockets import (
    Authorize,
    SocketHost,
    SocketPath,
    netloc,
    serve_sockets,
    unix_listener,
)
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import Limits

# --------------------
# Connections whose client says nothing that counts: they do not keep their places for ever.
#
# A client that counts has said who it is, by a handshake or by a modern request. How long a head or
# a handshake of HTTP takes is bounded elsewhere: this is what comes behind it, or in its place.


logger = logging.getLogger("mcp_trio")

_LOOKS: Final = 8

# However long somebody may be silent: those who have left are forgotten sooner.
_PAUSE_SECONDS_MAX: Final = 10.0


class Introduced(Protocol):
    """A session, as far as it is needed here; `closing` is set when it begins to end."""

    closing: LightEvent

    @property
    def has_begun(self) -> bool:
        """Whether the client has said who it is."""
        ...

    def shut(self, cause: str) -> None:
        """Begin to end it; see `Session.shut`."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A channel that can tell its client why it ends, as a WebSocket can."""

    def fail(self, loss: ConnectionLost, code: CloseCode) -> None:
        """End it; see `WebSocketChannel.fail`."""
        ...


@attrs.frozen(eq=False)
class PendingHandshake:
    """A connection whose session is there, and since when."""

    channel: Channel
    session: Introduced
    came_at: float

    @property
    def is_waited_for(self) -> bool:
        """Whether it has not begun, and not ended either."""
        return not (self.session.has_begun or self.session.closing.is_set())

    def send_away(self, seconds: float) -> None:
        """It has had so long to begin."""
        text = (
            f"the client has asked nothing for {seconds:g} s"
            " (limits.requests.first_request_seconds)"
        )
        if isinstance(self.channel, Telling):  # the client is told why, and the session hears of it
            self.channel.fail(ConnectionLost(text), CloseCode.FAILED)
        else:
            logger.warning("a connection is closed: %s", text)
            self.session.shut("lost")


@attrs.frozen(eq=False)
class Welcomed:
    """A connection whose session is awaited; a `trio.TaskStatus` of that.

    The client's time begins with the session: before, nobody listens, and it may be somebody else
    who is slow, such as the server that a bridge connects to for this client.
    """

    _channel: Channel
    _wait_for: Callable[[PendingHandshake], object]

    def started(self, session: Introduced) -> None:
        """See `trio.TaskStatus`."""
        self._wait_for(PendingHandshake(self._channel, session, trio.current_time()))


@attrs.define(eq=False)
class HandshakeTimeouts:
    """Those that have not begun yet, or are not known to have."""

    limits: Limits
    _waiting: list[PendingHandshake] = attrs.field(factory=list[PendingHandshake], init=False)

    def welcome(self, channel: Channel) -> Welcomed:
        """One more."""
        return Welcomed(channel, self._wait_for)

    def _wait_for(self, pending_handshake: PendingHandshake) -> None:
        self._waiting.append(pending_handshake)

    async def see_off(self) -> NoReturn:
        """Send away who has not begun for `limits.requests.first_request_seconds`.

        One look at all of them every now and then costs less than a timer for each.
        """
        seconds = self.limits.requests.first_request_seconds
        while True:
            await trio.sleep(min(seconds / _LOOKS, _PAUSE_SECONDS_MAX))
            since = trio.current_time() - seconds
            waiting = [each for each in self._waiting if each.is_waited_for]
            for each in waiting:
                if each.came_at <= since:
                    each.send_away(seconds)
            self._waiting = [each for each in waiting if each.came_at > since]


T = TypeVar("T")

Serve: TypeAlias = Callable[..., Awaitable[None]]
"""Serves one channel as a session, until that has ended; reports the session."""

Handle: TypeAlias = Callable[[Channel], Awaitable[None]]
"""What is done with a channel."""


class HasLifespan(Protocol):
    """A server, as far as whoever holds its sessions needs it."""

    limits: Limits

    def entered_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """What is entered once, round all sessions."""
        ...


class ServesConnections(HasLifespan, Protocol):
    """A server, as far as it is needed here."""

    async def serve_session(
        self,
        channel: Channel,
        *,
        lifespan: Any,
        http: SessionHttp,
        record: RecordTarget | None = None,
        task_status: trio.TaskStatus[Introduced] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serves one channel, until its session ends."""
        ...


async def serve_connections(
    server: ServesConnections,
    listen: Callable[..., Awaitable[None]],
    *,
    record: RecordTarget | None,
    task_status: trio.TaskStatus[T],
) -> None:
    """Run `listen(serve, task_status=...)` within the server's lifespan until it is cancelled.

    Cancelled: a lifespan that has not begun yet is; else `listen` is, and with it each session,
    which is wound down in bounded time; then the lifespan is left.

    Raises:
        ValueError: Sessions cannot be recorded so, as they would replace each other.
        Exception: What the lifespan or `listen` raises, bare.
    """
    if not holds_many_sessions(record):
        raise ValueError("record to a folder or a SharedRecording: sessions are many")
    try:
        async with trio.open_nursery() as outer:
            stopping = trio.Event()
            outer.start_soon(tell_when_cancelled, stopping.set)
            with trio.CancelScope() as winding:
                async with _sessions(server, record) as serve, trio.open_nursery() as nursery:
                    winding.shield = True  # before, there is nothing yet that has to wind down
                    where: T = await nursery.start(listen, serve)
                    task_status.started(where)
                    await stopping.wait()
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise foremost(group) from None


@asynccontextmanager
async def _sessions(
    server: ServesConnections, record: RecordTarget | None
) -> AsyncGenerator[Serve, None]:
    async with (
        server.entered_lifespan() as value,
        SessionHttp(server.limits.shutdown.close_seconds) as http,
    ):
        yield partial(server.serve_session, lifespan=value, http=http, record=record)


async def seeing_off(
    serve: Serve, limits: Limits, hold: Callable[[Handle, Limits], Awaitable[None]]
) -> None:
    """Let `hold` serve its connections, and close those without a first request in time."""
    handshake_timeouts = HandshakeTimeouts(limits)

    async def handle(channel: Channel) -> None:
        await serve(channel, task_status=handshake_timeouts.welcome(channel))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(handshake_timeouts.see_off)
        await hold(handle, limits)


# WebSocket ----------------------------------------------------------------------------------------


class WebSocketOptions(WhoMayCome, total=False):
    """What is served over WebSocket, and to whom.

    Attributes:
        path: Where it is.
        certfile: A certificate, in PEM, for TLS; with `keyfile`.
        keyfile: Its key.
        record: See `Server.serve`; each session has a recording of its own.
    """

    path: str
    certfile: str | None
    keyfile: str | None
    record: RecordTarget | None


class RunWebSocketOptions(WebSocketOptions, total=False):
    """The same, and where: see `Server.serve_websocket`."""

    host: str
    port: int


@attrs.frozen(kw_only=True)
class Door:
    """Who may open a WebSocket, and where.

    Attributes:
        gate: Who may come at all.
        path: Where.
        verify: Who somebody is; without it nobody is anybody, and all may come.
    """

    host_check: HostCheck
    path: str
    verify: Verify | None

    async def admit(self, head: HttpRequest) -> HttpRequest | Rejection:
        """The head, with the principal; or why not."""
        rejection = self.host_check.rejection(head) or upgrade_rejection(head, path=self.path)
        if rejection is not None:
            return rejection
        head = with_token(head)
        return head if self.verify is None else await verified(head, self.verify)


async def verified(head: HttpRequest, verify: Verify) -> HttpRequest | Rejection:
    """The head, with the principal; or the refusal of who is nobody."""
    principal = await verify(head)
    if principal is None:
        text = "it is not known who sends this (token=, verify=)"
        return Rejection(status=401, text=text, headers=[("WWW-Authenticate", "Bearer")])
    return attrs.evolve(head, principal=principal)


def door_of(options: WebSocketOptions, bound: Sequence[tuple[str, int]]) -> Door:
    """The door of a server that is bound there.

    Raises:
        ValueError: There are both `token` and `verify`, or one of the settings is none.
    """
    return Door(
        host_check=host_check_for(
            bound, hosts=options.get("hosts"), origins=options.get("origins")
        ),
        path=options.get("path", "/ws"),
        verify=verify_of(options.get("token"), options.get("verify")),
    )


def verify_of(token: str | None, verify: Verify | None) -> Verify | None:
    """What tells who somebody is; None: nobody is asked.

    Raises:
        ValueError: There are both, or the token is none.
    """
    if token is None:
        return verify
    if verify is not None:
        raise ValueError("either token= or verify= says who may come")
    return verified_by(checked_token(token))


def verified_by(token: str) -> Verify:
    """Lets in who brings the token; it is no name, so all of them are one."""

    async def verify(head: HttpRequest) -> str | None:
        return "bearer" if has_token(head, token) else None

    return verify


async def serve_websocket(
    server: ServesConnections,
    options: WebSocketOptions,
    *,
    host: str,
    port: int,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled, which ends every session in bounded time, with close code 1001.

    Reports the URL, with the port that was bound.

    Raises:
        OSError: The address cannot be bound, or the certificate not be read.
        ValueError: Options that contradict each other.
        Exception: What the lifespan raises, bare.
    """
    async with bound_websocket(options, host=host, port=port) as bound:

        async def listen(serve: Serve, *, task_status: trio.TaskStatus[str]) -> None:
            task_status.started(bound.url)
            await seeing_off(serve, server.limits, bound.serve)

        await serve_connections(
            server, listen, record=options.get("record"), task_status=task_status
        )


@attrs.frozen(kw_only=True)
class BoundWebSocket:
    """An address that is bound for WebSockets.

    Attributes:
        url: Where it is.
        port: Its port.
        door: Who may come.
    """

    url: str
    port: int
    door: Door
    _listeners: Sequence[Any] = attrs.field(alias="listeners")

    async def serve(self, handle: Handle, limits: Limits) -> None:
        """Give each channel to `handle` until cancelled, and close it behind that."""
        from mcp_trio._transports import websocket_server as listener

        holder = listener.WebSocketHost(admit=self.door.admit, handle=handle, limits=limits)
        await listener.serve_websocket(self._listeners, holder)


@asynccontextmanager
async def bound_websocket(
    options: WebSocketOptions, *, host: str, port: int
) -> AsyncGenerator[BoundWebSocket, None]:
    """An address for WebSockets, bound within the block; see `serve_websocket`."""
    tls = _tls(options.get("certfile"), options.get("keyfile"))
    bound = await trio.open_tcp_listeners(port, host=host)
    with _closing(bound):
        door = door_of(options, [each.socket.getsockname()[:2] for each in bound])
        url = _url("ws" if tls is None else "wss", host, bound, door.path)
        port = bound[0].socket.getsockname()[1]
        yield BoundWebSocket(url=url, port=port, door=door, listeners=_secured(bound, tls))


def _tls(certfile: str | None, keyfile: str | None) -> ssl.SSLContext | None:
    if certfile is None:
        if keyfile is not None:
            raise ValueError("keyfile= comes with certfile=")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certfile, keyfile)
    return context


def _secured(bound: Sequence[trio.SocketListener], tls: ssl.SSLContext | None) -> Sequence[Any]:
    if tls is None:
        return bound
    return [trio.SSLListener(each, tls, https_compatible=True) for each in bound]


# Unix domain sockets and TCP ----------------------------------------------------------------------


class RunUnixOptions(TypedDict, total=False):
    """What is served at a socket file: see `Server.serve_unix`."""

    path: Required[SocketPath]
    authorize: Authorize | None
    record: RecordTarget | None


class RunTcpOptions(TypedDict, total=False):
    """What is served at a TCP port: see `Server.serve_tcp`."""

    host: str
    port: int
    authorize: Authorize | None
    is_open: bool
    record: RecordTarget | None


async def serve_unix(
    server: ServesConnections,
    path: SocketPath,
    *,
    authorize: Authorize | None = None,
    record: RecordTarget | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at a socket file until cancelled; see `Server.serve_unix`."""
    async with unix_listener(path) as bound:
        listen = _listening([bound], "unix", f"unix:{path}", authorize, server.limits)
        await serve_connections(server, listen, record=record, task_status=task_status)


async def serve_tcp(
    server: ServesConnections,
    *,
    host: str,
    port: int,
    authorize: Authorize | None = None,
    is_open: bool = False,
    record: RecordTarget | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at a TCP port until cancelled; see `Server.serve_tcp`."""
    if not (is_open or authorize is not None or is_loopback(host)):
        raise ValueError(
            f"whoever reaches {host} could use this server: say who may by authorize=,"
            " or that everybody may by is_open=True"
        )
    bound = await trio.open_tcp_listeners(port, host=host)
    with _closing(bound):
        url = _url("tcp", host, bound, "")
        listen = _listening(bound, "tcp", url, authorize, server.limits)
        await serve_connections(server, listen, record=record, task_status=task_status)


def _listening(
    bound: Sequence[trio.SocketListener],
    transport: str,
    url: str,
    authorize: Authorize | None,
    limits: Limits,
) -> Callable[..., Awaitable[None]]:
    async def listen(serve: Serve, *, task_status: trio.TaskStatus[str]) -> None:
        task_status.started(url)
        await seeing_off(serve, limits, hold)

    async def hold(handle: Handle, limits: Limits) -> None:
        host = SocketHost(transport=transport, authorize=authorize, handle=handle, limits=limits)
        await serve_sockets(bound, host)

    return listen


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK


@contextmanager
def _closing(bound: Sequence[trio.SocketListener]) -> Generator[None]:
    """No checkpoint at the end: where all is cancelled, that would hide what is being raised."""
    try:
        yield
    finally:
        for each in bound:
            each.socket.close()


def _url(scheme: str, host: str, bound: Sequence[trio.SocketListener], path: str) -> str:
    return f"{scheme}://{netloc(host, bound[0].socket.getsockname()[1])}{path}"
