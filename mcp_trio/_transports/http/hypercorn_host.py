"""Serving an ASGI application by hypercorn on Trio: TLS, and HTTP/2 to clients that ask for it.

What is used of hypercorn is its connection: parsing, streams, flow control. Accepting and stopping
are done here, since no cancellation breaks off a write: a client that does not read could hold up a
stop for ever; and nothing in hypercorn bounds how many connect.
"""

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Sequence
from ssl import SSLContext
from typing import Final, NoReturn

import attrs
import trio
from hypercorn.config import Config

from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._transports.http.asgi import Application
from mcp_trio._transports.http.header_fields import date_at
from mcp_trio._transports.http.hypercorn_connection import Address, HypercornConnection
from mcp_trio._transports.http.hypercorn_stream import BoundedStream
from mcp_trio._transports.http.native_wire import WITH_ADDRESSES, SocketEnds

logger = logging.getLogger("mcp_trio")

_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: 53\r\n\r\nthere are too many connections (http_connections_max)"
)
_LOOKS_PER_STALL: Final = 4
_LOOKS_PER_IDLE_TIME: Final = 8


class _Config(Config):
    """Hypercorn's settings; the date is written once a second."""

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:  # noqa: ARG002
        """The date, and nothing of the server."""
        return [(b"date", date_at(int(time.time())))]


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
    lifespan events are sent. One head may take `http_idle_seconds` here, as only hypercorn knows
    what has come of it.

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
    config = _Config()
    config.certfile, config.keyfile = certfile, keyfile
    config.accesslog = config.errorlog = None  # who answers logs
    config.h11_max_incomplete_size = limits.http_head_bytes_max
    config.h2_max_header_list_size = limits.http_head_bytes_max
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
    _connections: set[HypercornConnection] = attrs.field(
        factory=set[HypercornConnection], init=False
    )
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
        """The same for a timer after each request; who says nothing at first is idle, too."""
        pause = self.limits.http_idle_seconds / _LOOKS_PER_IDLE_TIME
        while True:
            await trio.sleep(pause)
            earliest = trio.current_time() - self.limits.http_idle_seconds - pause
            for connection in self._connections:
                if connection.idle_since < earliest:
                    connection.end()

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
        client, server = addresses_of(transport)
        ends = SocketEnds(fd=transport.socket.detach(), chunk_bytes=self.limits.chunk_bytes)
        stream = BoundedStream(ends, self.limits)
        if len(self._connections) >= self.limits.http_connections_max:
            await self._refuse(stream)
            return
        connection = HypercornConnection(self.app, stream, self.limits, client, server)
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

    async def _refuse(self, stream: BoundedStream) -> None:
        logger.warning("a connection was refused: http_connections_max are open")
        try:
            if self.tls is None:
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_all(_FULL)
        finally:
            stream.cut()


def addresses_of(transport: trio.SocketStream) -> tuple[Address | None, Address | None]:
    """Those of the client and of this side, where there are any."""
    if transport.socket.family not in WITH_ADDRESSES:
        return None, None
    try:
        client, server = transport.socket.getpeername(), transport.socket.getsockname()
    except OSError:  # the client has gone already
        return None, None
    return (client[0], client[1]), (server[0], server[1])
