"""Serving an ASGI application by hypercorn on Trio: TLS, and HTTP/2 to clients that ask for it.

What is used of hypercorn is its connection: parsing, streams, flow control. Accepting and stopping
are done here, since hypercorn shields its writes: a client that does not read could hold up a stop
for ever, and nothing bounds how many connect.
"""

import contextlib
import functools
import logging
import math
import sys
from collections.abc import Generator, Sequence
from ssl import SSLContext
from typing import Any, Final, NoReturn, cast

import attrs
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._transports.bell import Bell
from mcp_trio._transports.http.asgi import (
    AnswerBrokenOff,
    Application,
    Message,
    Receive,
    Scope,
    Send,
)
from mcp_trio._transports.http.asgi_upgrade import MORE
from mcp_trio._transports.http.hypercorn_websocket import ToldWebSocket, stream_of

logger = logging.getLogger("mcp_trio")

_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_LOOKS_PER_STALL: Final = 4
_LOOKS_PER_IDLE_TIME: Final = 8


async def serve_hypercorn(
    app: Application,
    listeners: Sequence[trio.SocketListener],
    *,
    limits: Limits = DEFAULT_LIMITS,
    certfile: str | None = None,
    keyfile: str | None = None,
    task_status: trio.TaskStatus[Sequence[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` on `listeners`, which are closed at the end; runs until it is cancelled.

    With `certfile` and `keyfile` (PEM) all connections are TLS, and HTTP/2 where the client agrees.

    Cancellation is the graceful stop: the listeners close, then idle connections; what runs for a
    request is cancelled, and may still end its answer; after `close_seconds` everything is cut. No
    lifespan events are sent. One head may take `http_idle_seconds` here, as hypercorn has but one
    clock for both.

    Raises:
        OSError: The certificate or key cannot be read (`ssl.SSLError` is one).
        ValueError: There is only one of the two.
    """
    try:
        config = _config(limits, certfile, keyfile)
        server = _Server(app, config, config.create_ssl_context(), limits)
        async with trio.open_nursery() as nursery:
            connections = await nursery.start(server.hold_connections)
            serve = functools.partial(trio.serve_listeners, handler_nursery=connections)
            try:
                await serve(server.serve_connection, list(listeners), task_status=task_status)
            finally:
                server.is_stopping.set()
    finally:
        for listener in listeners:
            listener.socket.close()


def _config(limits: Limits, certfile: str | None, keyfile: str | None) -> Config:
    if (certfile is None) != (keyfile is None):
        raise ValueError("TLS needs both: certfile= and keyfile=")
    config = Config()
    config.certfile, config.keyfile = certfile, keyfile
    config.accesslog = config.errorlog = None  # who answers logs
    config.include_server_header = False
    config.h11_max_incomplete_size = limits.http_head_bytes_max
    config.h2_max_header_list_size = limits.http_head_bytes_max
    config.keep_alive_timeout = limits.http_idle_seconds
    config.keep_alive_max_requests = sys.maxsize
    config.websocket_ping_interval = limits.websocket_ping_seconds
    config.ssl_handshake_timeout = limits.http_head_seconds
    return config


@attrs.define(eq=False)
class _Server:
    """The open connections of one `serve_hypercorn`."""

    app: Application
    config: Config
    tls: SSLContext | None
    limits: Limits
    is_stopping: trio.Event = attrs.field(factory=trio.Event, init=False)
    _connections: "set[_Connection]" = attrs.field(factory=set["_Connection"], init=False)
    _is_quiet: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def hold_connections(self, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """The nursery of all connections; it takes no cancellation, but stops them in order."""
        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.shield = True
            nursery.start_soon(self._cut_stalled)
            nursery.start_soon(self._cut_idle)
            nursery.start_soon(self._cut_silent)
            task_status.started(nursery)
            await self.is_stopping.wait()
            await self._stop()
            nursery.cancel_scope.cancel()

    async def _cut_stalled(self) -> NoReturn:
        """One look at all connections every now and then costs less than a timer for each write."""
        while True:
            await trio.sleep(self.limits.write_stall_seconds / _LOOKS_PER_STALL)
            earliest = trio.current_time() - self.limits.write_stall_seconds
            for connection in self._connections:
                connection.stream.cut_if_waiting_since(earliest)

    async def _cut_idle(self) -> NoReturn:
        """Hypercorn does so, but not for who begins HTTP/2 in clear text and says no more."""
        pause = self.limits.http_idle_seconds / _LOOKS_PER_IDLE_TIME
        while True:
            await trio.sleep(pause)
            earliest = trio.current_time() - self.limits.http_idle_seconds - pause
            for connection in self._connections:
                if connection.idle_since < earliest:
                    connection.stream.cut()

    async def _cut_silent(self) -> NoReturn:
        """Hypercorn asks those behind WebSockets whether they are there, and hears no answer."""
        pause = self.limits.websocket_ping_seconds / _LOOKS_PER_STALL
        silent_seconds = self.limits.websocket_ping_seconds + self.limits.websocket_pong_seconds
        while True:
            await trio.sleep(pause)
            earliest = trio.current_time() - silent_seconds
            for connection in self._connections:
                if connection.websockets:
                    connection.stream.cut_if_silent_since(earliest)

    async def _stop(self) -> None:
        for connection in self._connections:
            connection.stop()
        if self._connections:
            with trio.move_on_after(self.limits.close_seconds):
                await self._is_quiet.wait()
        for connection in self._connections:
            connection.stream.cut()

    async def serve_connection(self, transport: trio.SocketStream) -> None:
        """Everything that happens on one accepted connection; raises no `Exception`."""
        stream = _BoundedStream(transport, self.limits)
        if len(self._connections) >= self.limits.http_connections_max:
            await self._refuse(stream)
            return
        connection = _Connection(self.app, stream, self.limits)
        self._connections.add(connection)
        try:
            await connection.serve(self.config, self.tls)
        except* Exception as errors:
            logger.exception("a connection failed", exc_info=errors)
        finally:
            stream.cut()
            self._connections.remove(connection)
            if self.is_stopping.is_set() and not self._connections:
                self._is_quiet.set()

    async def _refuse(self, stream: "_BoundedStream") -> None:
        logger.warning("a connection was refused: http_connections_max are open")
        with contextlib.suppress(trio.BrokenResourceError):
            if self.tls is None:
                await stream.send_all(_FULL)
        stream.cut()


@attrs.define(eq=False)
class _Connection:
    """One connection, and what hypercorn runs for its requests.

    Since `idle_since` nothing has run for any; infinite while something does. Of them,
    `websockets` are open.
    """

    app: Application
    stream: "_BoundedStream"
    limits: Limits
    idle_since: float = attrs.field(factory=trio.current_time, init=False)
    websockets: int = attrs.field(default=0, init=False)
    _hypercorn: TCPServer = attrs.field(init=False)
    _requests: set[trio.CancelScope] = attrs.field(factory=set[trio.CancelScope], init=False)
    _rests: Bell = attrs.field(factory=Bell, init=False)
    _is_stopping: bool = attrs.field(default=False, init=False)
    _lingering: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def serve(self, config: Config, tls: SSLContext | None) -> None:
        """Serve its requests until either side closes it."""
        secured: Any = self.stream
        if tls is not None:
            secured = trio.SSLStream(secured, tls, server_side=True, https_compatible=True)
        app = ASGIWrapper(cast("Any", self._run_app))
        state = ConnectionState(cast("Any", {}))
        self._hypercorn = TCPServer(app, config, WorkerContext(None), state, secured)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_over, nursery.cancel_scope)
            await self._hypercorn.run()
            nursery.cancel_scope.cancel()
        with self._lingering:
            await self.stream.linger()

    def stop(self) -> None:
        """Cancel what runs for its requests; when all that has ended, the connection ends."""
        self._is_stopping = True
        for scope in self._requests:
            scope.cancel()
        self.stream.has_ended.set()
        self._lingering.cancel()

    async def _cancel_when_over(self, scope: trio.CancelScope) -> None:
        """Hypercorn would keep a connection that has ended for as long as an idle one."""
        await self.stream.has_ended.wait()
        while self._requests:
            await self._rests.wait()
        scope.cancel()

    async def _run_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_bounded(message: Message) -> None:
            is_held = message["type"] == "http.response.start" or MORE in message
            # What comes next can leave with the head; over HTTP/2 others would wait for it.
            self.stream.is_holding = is_held and not self._is_multiplexed()
            await send(message)
            if not is_held:
                await self.stream.send_held()
            while self._bytes_held_back() > self.limits.http_write_bytes_max:
                await self.stream.wait_sent()

        with self._request():
            try:
                await self._run_told(scope, receive, send_bounded)
            except AnswerBrokenOff:
                # Hypercorn would let an HTTP/2 client wait for the rest.
                self.stream.cut()
            except Exception:
                logger.exception("the application failed")
                self.stream.cut()

    async def _run_told(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = stream_of(self._hypercorn.protocol.protocol, scope)
        if stream is None:
            await self.app(scope, receive, send)
            return
        told = ToldWebSocket(stream, self.limits)
        self.websockets += 1
        try:
            await self.app(scope, told.receiving(receive), told.sending(send))
        finally:
            self.websockets -= 1

    @contextlib.contextmanager
    def _request(self) -> Generator[None]:
        """Around what runs for a request, which a stop cancels."""
        with trio.CancelScope() as scope:
            self._requests.add(scope)
            self.idle_since = math.inf
            if self._is_stopping:
                scope.cancel()
            try:
                yield
            finally:
                self._requests.remove(scope)
                if not self._requests:
                    self.idle_since = trio.current_time()
                    self._rests.ring()

    def _is_multiplexed(self) -> bool:
        return isinstance(self._hypercorn.protocol.protocol, H2Protocol)

    def _bytes_held_back(self) -> int:
        """What waits for an HTTP/2 client to open its window; hypercorn sets no bound to it."""
        protocol = self._hypercorn.protocol.protocol
        if not isinstance(protocol, H2Protocol):
            return 0
        return sum(len(each.buffer) for each in protocol.stream_buffers.values())


@attrs.define(eq=False)
class _BoundedStream:
    """A connection's bytes, without waits that have no end: as much of a stream as is needed.

    While it `is_holding`, what is sent waits for what is sent next.
    """

    _stream: trio.SocketStream
    _limits: Limits
    has_ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    is_holding: bool = attrs.field(default=False, init=False)
    _held: bytes = attrs.field(default=b"", init=False)
    _has_sent: Bell = attrs.field(factory=Bell, init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _sending_since: float = attrs.field(default=math.inf, init=False)
    _listening_since: float = attrs.field(default=math.inf, init=False)

    @property
    def socket(self) -> trio.socket.SocketType:
        """Where hypercorn looks for the addresses of both ends."""
        return self._stream.socket

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send it; a client that reads nothing for `write_stall_seconds` is cut off."""
        if self.is_holding:
            self._held += data
            await trio.lowlevel.checkpoint_if_cancelled()
            return
        if self._held:
            data, self._held = self._held + data, b""
        step = self._limits.chunk_bytes
        whole = memoryview(data)
        for first in range(0, len(whole), step):
            self._sending_since = trio.current_time()
            await self._stream.send_all(whole[first : first + step])
        self._sending_since = math.inf
        self._has_sent.ring()

    async def send_held(self) -> None:
        """Send what was held, if nothing came behind it."""
        if self._held:
            await self.send_all(b"")

    def cut_if_waiting_since(self, earliest: float) -> None:
        """Cut it if a write has made no progress since then."""
        if self._sending_since < earliest:
            self.cut()

    def cut_if_silent_since(self, earliest: float) -> None:
        """Cut it if it has been listened to since then, and nothing was heard."""
        if self._listening_since < earliest:
            self.cut()

    async def wait_sent(self) -> None:
        """Return when something more was sent."""
        await self._has_sent.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See `trio.abc.ReceiveStream`."""
        if self._is_closing:
            raise trio.ClosedResourceError("this side has closed")
        self._listening_since = trio.current_time()
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError:
            self.has_ended.set()
            raise
        finally:
            self._listening_since = math.inf
        if not data:
            self.has_ended.set()
        return data

    async def send_eof(self) -> None:
        """Nothing: hypercorn closes next, and what is being sent meanwhile must not fail for it."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """No more is sent or received; `linger` and `cut` are still to come."""
        self._is_closing = True
        self.has_ended.set()  # hypercorn would wait for its clock
        with contextlib.suppress(OSError):  # it was cut, or the client was faster
            self._stream.socket.shutdown(trio.socket.SHUT_WR)
            trio.lowlevel.notify_closing(self._stream.socket)
        await trio.lowlevel.checkpoint()

    async def linger(self) -> None:
        """Let the client read what was sent: a close with unread bytes would reset the connection.

        What still comes is thrown away, for `close_seconds` at most.
        """
        await self.aclose()  # after a handshake that fails, hypercorn forgets it
        with (
            contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            trio.move_on_after(self._limits.close_seconds),
        ):
            while await self._stream.receive_some(self._limits.chunk_bytes):
                pass

    def cut(self) -> None:
        """Close it at once; wakes who waits for it."""
        self._stream.socket.close()
