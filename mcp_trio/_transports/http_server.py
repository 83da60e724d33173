"""The native HTTP/1.1 listener on Trio sockets, plain or over TLS.

One task at a time serves a connection, one request after the other. Neither a client's behaviour
nor an application's error ends more than the one connection.
"""

import logging
import math
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._protocol.http_headers import Headers, HttpRequest
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.shares import Shares, network_of, shares_of
from mcp_trio._transports.buffered_sockets import (
    BufferedSocket,
    ConnectedSocket,
    TlsSocket,
    ip_address_of,
)
from mcp_trio._transports.concurrency import FairSemaphore, call_when_cancelled, wait_idle
from mcp_trio._transports.http1 import (
    CONTINUE,
    ChunkedBody,
    HttpError,
    ParsedRequest,
    RepeatedHeaders,
    encoded_error,
    encoded_response_headers,
    headers_length,
    is_cacheable,
    parse_request,
)
from mcp_trio._transports.http_response import (
    STATUSES_WITHOUT_BODY,
    BodyTooLargeError,
    Exchange,
    Responder,
    ResponseState,
    TooManyBodiesError,
    UnfinishedBody,
    shares_of_bodies,
)
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio._transports.trio_websocket import StreamUpgrade
from mcp_trio._transports.websocket import (
    Upgrade,
    WebSocketApplication,
    WebSocketChannel,
    accept_websocket,
)
from mcp_trio.limits import Limits

_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"

# Reading a member from its enumeration is slow in CPython 3.11.
_NOT_STARTED: Final = ResponseState.NOT_STARTED
_STARTED: Final = ResponseState.STARTED
_COMPLETE: Final = ResponseState.COMPLETE


class NativeExchange(msgspec.Struct, kw_only=True, eq=False):
    """The `Exchange` of one request on a connection of the native listener.

    Attributes:
        bodies: The bytes of the unfinished bodies of all clients.
        request: The request as the application sees it.
        may_lead: Whether the application may move the connection's coroutine to another task.
        arrived_body: The complete body, once it has arrived.
        body_error: The error of a malformed or late body that the application has tried to read.
        is_last: Whether the connection closes after the response.
    """

    parsed: ParsedRequest
    socket: BufferedSocket
    bodies: Shares
    request: HttpRequest
    may_lead: bool = False
    arrived_body: bytes | None = None
    response_state: ResponseState = _NOT_STARTED
    body_error: HttpError | None = None
    is_last: bool
    _is_body_read: bool = False
    _has_read_chunks: bool = False
    _was_read: trio.Event | None = None
    _has_body: bool = False
    _has_chunks: bool = False

    # The body

    async def body(self, bytes_max: int) -> bytes:
        """Return the request body, as `Exchange.body` documents."""
        body = self.body_nowait(bytes_max)
        if body is None:
            if self.arrived_body is not None:
                raise BodyTooLargeError(bytes_max)
            try:
                body = self.arrived_body = await self._read(bytes_max)
            except HttpError as error:
                self.body_error = error
                raise trio.BrokenResourceError(error.text) from error
            self._is_body_read = True
        if self._was_read is not None:
            self._was_read.set()
        return body

    def body_nowait(self, bytes_max: int) -> bytes | None:
        """Return the request body if it has arrived, as `Exchange.body_nowait` documents."""
        body = self.arrived_body
        if body is None or len(body) > bytes_max:
            return None
        self._is_body_read = True
        return body

    async def _read(self, bytes_max: int) -> bytes:
        received, length = self.socket.received, self.parsed.body_bytes
        if length is not None:
            if length > bytes_max:
                raise BodyTooLargeError(bytes_max)
            await self._wait_until(lambda: len(received) >= length, received)
            return self.socket.take(length)
        if self._has_read_chunks:
            raise trio.BrokenResourceError(
                "an earlier call was cancelled before it had read all of the chunked body"
            )
        self._has_read_chunks = True
        framing_bytes_max = self.socket.limits.http.headers_bytes_max
        chunks = ChunkedBody(bytes_max=bytes_max, framing_bytes_max=framing_bytes_max)
        await self._wait_until(lambda: chunks.take(self.socket.received), chunks.data)
        return bytes(chunks.data)

    async def _wait_until(self, is_complete: Callable[[], bool], data: bytearray) -> None:
        """Receive until the body is complete; `data` are its bytes so far."""
        unfinished = UnfinishedBody(self.bodies, network_of(self.request.client))

        def is_finished() -> bool:
            if is_complete():
                return True
            unfinished.count(len(data))
            return False

        if self.parsed.awaits_continue and not self.socket.received:
            await self.socket.write(CONTINUE)
        seconds = self.socket.limits.http.body_seconds
        try:
            is_complete_in_time = await self.socket.receive_until(is_finished, seconds=seconds)
        except trio.BrokenResourceError as error:  # a half-closed client can read the response
            raise HttpError(400, "the body ended too early") from error
        except TooManyBodiesError:
            data.clear()  # the connection may stay open for a while
            raise
        finally:
            unfinished.release()
        if not is_complete_in_time:
            raise HttpError(
                408, f"the body stalled for {seconds:g} seconds (limits.http.body_seconds)"
            )

    # The response

    def close_after_response(self) -> None:
        """Let no other request follow on the connection."""
        self.is_last = True

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a complete response, its headers and body in one write."""
        is_sent = status not in STATUSES_WITHOUT_BODY
        framing = b"content-length: %d\r\n" % len(body) if is_sent else b""
        encoded = self._begin(status, headers, framing)
        if is_sent and self.request.method != "HEAD":
            encoded += body
        rest = self.socket.begin_write(encoded)
        if rest is not None:
            await self.socket.write_rest(rest)
        self.response_state = _COMPLETE

    async def start(self, status: int, headers: Headers) -> None:
        """Send the headers of a response whose length is unknown."""
        is_sent = status not in STATUSES_WITHOUT_BODY
        has_chunks = is_sent and self.parsed.accepts_chunks
        encoded = self._begin(status, headers, _CHUNKED if has_chunks else b"")
        self._has_chunks = has_chunks
        self._has_body = is_sent and self.request.method != "HEAD"
        self._is_body_read = True  # or it will not be read
        if self._was_read is not None:
            self._was_read.set()
        await self.socket.write(encoded)

    def _begin(self, status: int, headers: Headers, framing: bytes) -> bytes:
        if self.response_state is not _NOT_STARTED:
            raise RuntimeError("the response to this request was started already")
        is_last = self.is_last or self.socket.is_last
        if self.arrived_body is None:
            # If the application has not read the body, and not all of it has arrived, the
            # connection closes: the next request could only follow after the rest of the body.
            length = self.parsed.body_bytes
            is_last = is_last or length is None or length > len(self.socket.received)
        encoded = encoded_response_headers(status, headers, framing=framing, is_last=is_last)
        self.is_last = is_last
        self.response_state = _STARTED
        return encoded

    async def send(self, piece: bytes) -> None:
        """Send a piece of a started response."""
        self._check_begun()
        if self._has_body and piece:
            await self.socket.write(
                b"%x\r\n%b\r\n" % (len(piece), piece) if self._has_chunks else piece
            )

    async def end(self) -> None:
        """Complete a started response."""
        self._check_begun()
        if self._has_body and self._has_chunks:
            await self.socket.write(_LAST_CHUNK)
        self.response_state = _COMPLETE

    def _check_begun(self) -> None:
        if self.response_state is not _STARTED:
            raise RuntimeError("call start() first: no response was started, or it is complete")

    # The client

    async def gone(self) -> None:
        """Wait until the client closes the connection, or its sending half.

        Afterwards sending raises `trio.BrokenResourceError`. Input that arrives meanwhile belongs
        to the next request. After `limits.http.headers_bytes_max` bytes of input, reading stops,
        and only `send` notices that the client has disconnected.
        """
        if not self._is_body_read and self.parsed.body_bytes != 0:
            self._was_read = self._was_read or trio.Event()
            await self._was_read.wait()
        while len(self.socket.received) < self.socket.limits.http.headers_bytes_max:
            if not await self.socket.receive():
                self.socket.is_broken = True
                return
        await trio.sleep_forever()


# Later than the time of any check, so that no check takes the connection for idle.
_BUSY: Final = math.inf
_RECEIVING: Final = sys.float_info.max


@attrs.define(kw_only=True, eq=False, repr=False)
class NativeConnection:
    """One connection of the native listener: reads requests, and responds to each of them.

    Attributes:
        client: The IP address of the peer.
        certificate: The thumbprint of the client's certificate, after the TLS handshake.
        may_lead: Whether the application may move this connection's coroutine to another task.
            Between requests the connection then waits by `wait_idle`.
        idle_since: While the connection waits for a request, the `last_check` that `host` had when
            the wait began; then `_RECEIVING` until the headers have arrived; `_BUSY` while the
            request is served.
        is_expired: Whether the connection was idle too long, and takes no more requests.
    """

    socket: BufferedSocket
    host: "NativeHost"
    client: str | None
    certificate: str | None = attrs.field(default=None, init=False)
    may_lead: bool = False
    idle_since: float = attrs.field(default=_RECEIVING, init=False)
    is_expired: bool = attrs.field(default=False, init=False)
    _exchange: NativeExchange | None = attrs.field(default=None, init=False)
    # The headers of the last request, if they may be cached.
    _last: RepeatedHeaders | None = attrs.field(default=None, init=False)

    @property
    def may_get_request(self) -> bool:
        """True if a client may still send a request, while `host` drains.

        It may not after a response whose headers say that the connection closes. The headers of a
        response that has not begun will say so.
        """
        if self.idle_since < _BUSY:
            return True
        exchange = self._exchange
        return (
            exchange is not None
            and exchange.response_state is not _NOT_STARTED
            and not exchange.is_last
        )

    def end(self) -> None:
        """Close the connection, which is idle, unless a request has arrived just now."""
        if not self.socket.socket.is_readable:
            self.is_expired = True
            self.socket.end()

    async def serve(self) -> None:
        """Serve requests until the client or the server closes the connection.

        Raises:
            trio.BrokenResourceError: The client disconnected within a request or a response.
        """
        socket, received = self.socket, self.socket.received
        idle = socket.socket.idle if self.may_lead else None
        try:
            while True:
                if received:  # a pipelined request: let other connections run first
                    self.idle_since = _RECEIVING
                    await trio.lowlevel.checkpoint()
                else:
                    self.idle_since = self.host.last_check
                    if idle is None:
                        await socket.receive()
                    else:
                        while not socket.has_ended:
                            await wait_idle(idle)
                            if socket.receive_nowait():
                                break
                    self.idle_since = _RECEIVING
                    if self.is_expired or socket.has_ended:
                        break
                headers = self._last
                if headers is None or not received.startswith(headers.raw):
                    headers = await self._receive_headers()
                self.idle_since = _BUSY
                if not await self._serve_request(headers.raw, headers.parsed):
                    break
        except HttpError as error:
            await self.socket.write(encoded_error(error))
        await self.socket.linger()

    async def _receive_headers(self) -> RepeatedHeaders:
        """Return the next request line and headers, which stay in front of the received bytes."""
        received, limits = self.socket.received, self.socket.limits
        if self._last is not None:
            bytes_max = limits.http.headers_bytes_max
            repeated = self._last.with_length_in(received, bytes_max=bytes_max)
            if repeated is not None:
                self._last = repeated
                return repeated
        length = searched = 0

        def is_complete() -> bool:
            nonlocal length, searched
            length = headers_length(received, searched, bytes_max=limits.http.headers_bytes_max)
            searched = len(received)
            return length > 0

        # Headers that have arrived need no cancel scope.
        seconds = limits.http.headers_seconds
        if not (is_complete() or await self.socket.receive_until(is_complete, seconds=seconds)):
            raise HttpError(
                408,
                f"the headers stalled for {seconds:g} seconds (limits.http.headers_seconds)",
            )
        raw = bytes(received[:length])
        parsed = parse_request(raw, self.client, self.host.scheme, self.certificate)
        if not is_cacheable(raw):
            return RepeatedHeaders(raw, parsed)
        self._last = RepeatedHeaders.of(raw, parsed)
        return self._last

    async def _serve_request(self, raw: bytes, parsed: ParsedRequest) -> bool:
        """Answer a request; return whether another one may follow on the connection."""
        host, received, body = self.host, self.socket.received, None
        start, length = len(raw), parsed.body_bytes
        if length is None or start + length > len(received):
            del received[:start]
        else:  # the whole request has arrived
            body = bytes(received[start : start + length])
            del received[: start + length]
        if parsed.is_websocket_upgrade and host.serve_upgrade is not None:
            if length != 0:
                raise HttpError(400, "a WebSocket handshake cannot have a body")
            await self._serve_websocket(parsed.request, raw, host.serve_upgrade)
            return False
        exchange = self._exchange = NativeExchange(
            parsed=parsed,
            socket=self.socket,
            bodies=host.bodies,
            request=parsed.request,
            may_lead=self.may_lead,
            arrived_body=body,
            is_last=parsed.is_last,
        )
        try:
            await host.respond(exchange)
        except Exception as error:
            self._log(exchange, error)
        except BaseExceptionGroup as group:  # it holds a Cancelled, and perhaps errors
            errors, cancellations = group.split(Exception)
            if errors is not None:
                self._log(exchange, errors)
            assert cancellations is not None
            raise cancellations from None
        if exchange.response_state is _NOT_STARTED:
            if exchange.body_error is not None:
                raise exchange.body_error
            await exchange.answer(500, [])
        if exchange.response_state is _STARTED or exchange.is_last:
            return False  # closing the connection shows the client that the response is incomplete
        if exchange.arrived_body is None:  # the application has not read it, but all has arrived
            self.socket.take(parsed.body_bytes or 0)
        self._exchange = None
        return True

    async def _serve_websocket(
        self, request: HttpRequest, raw: bytes, serve_upgrade: WebSocketApplication
    ) -> None:
        """Pass the connection to the WebSocket application, and close it afterwards."""
        stream, rest = self.socket.as_stream(), self.socket.take(len(self.socket.received))
        upgrade = StreamUpgrade(
            stream=stream,
            request=request,
            encoded=raw,
            rest=rest,
            limits=self.socket.limits,
            bodies=self.host.bodies,
        )
        try:
            await serve_upgrade(upgrade)
        except trio.BrokenResourceError:
            raise
        except Exception as error:
            text = "a WebSocket connection failed"
            self.host.log.report(text, text, level=logging.ERROR, error=error)
        finally:
            await trio.aclose_forcefully(stream)

    def _log(self, exchange: NativeExchange, error: BaseException) -> None:
        """Log an application's error, unless the client's disconnect or bad body explains it."""
        is_gone = self.socket.is_broken or self.socket.has_ended or exchange.body_error is not None
        _, others = BaseExceptionGroup("", [error]).split(trio.BrokenResourceError)
        if others is not None or not is_gone:
            text = f"answering {exchange.request.method} {exchange.request.path} failed"
            self.host.log.report("answering", text, level=logging.ERROR, error=error)


_CHECKS_PER_IDLE_TIME: Final = 8
_DRAIN_POLL_SECONDS: Final = 0.05

StartLeader: TypeAlias = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Runs a coroutine function; its coroutine may move to another task at points that it chooses."""


async def serve_native(
    respond: Responder,
    listeners: Sequence[trio.SocketListener],
    *,
    limits: Limits,
    tls: ssl.SSLContext | None = None,
    serve_upgrade: WebSocketApplication | None = None,
    leaders_in: Callable[[trio.Nursery], StartLeader] | None = None,
    draining: trio.Event | None = None,
    drained: trio.Event | None = None,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve an HTTP application on the listeners until cancelled.

    Args:
        respond: The HTTP application; each connection runs one call of it at a time.
        listeners: Bound sockets, which are closed at the end.
        limits: The limits of a connection, and the number of connections.
        tls: The TLS settings; without them, connections are plain.
        serve_upgrade: The WebSocket application; without one, `respond` gets these requests, too.
        leaders_in: Returns the starter of a leader/followers engine, so that `respond` may lead
            (see `Exchange.may_lead`). Without it, each connection has one task of its own. It is
            not used over TLS: OpenSSL may hold bytes that the engine's poller does not see.
        draining: When this is set, the listeners are closed, and each open connection closes after
            its next response.
        drained: This is set, after `draining`, when no client may send another request on an open
            connection.
        task_status: Gets the listeners once they accept connections.

    Cancellation closes the listeners and the idle connections at once, cancels the calls of
    `respond`, and waits until these have returned.
    """
    host = NativeHost(respond=respond, limits=limits, tls=tls, serve_upgrade=serve_upgrade)

    with closing(host.log):
        async with trio.open_nursery() as nursery:
            start_leader = None if leaders_in is None or tls is not None else leaders_in(nursery)

            async def take(stream: trio.SocketStream) -> None:
                client = ip_address_of(stream)
                socket = ConnectedSocket(
                    fd=stream.socket.detach(),
                    chunk_bytes=limits.messages.chunk_bytes,
                    network=network_of(client),
                )
                if start_leader is None:
                    await host.serve(socket, client=client)
                else:
                    start_leader(partial(host.serve, socket, client=client, may_lead=True))

            async def drain(draining: trio.Event, accepting: trio.CancelScope) -> None:
                await draining.wait()
                accepting.cancel()
                for listener in listeners:
                    for stream in _close_listener(listener):
                        nursery.start_soon(take, stream)
                await host.drain()
                if drained is not None:
                    drained.set()

            nursery.start_soon(host.close_idle)
            with trio.CancelScope() as accepting:
                if draining is not None:
                    nursery.start_soon(drain, draining, accepting)
                await trio.serve_listeners(
                    take, list(listeners), handler_nursery=nursery, task_status=task_status
                )
            await trio.sleep_forever()


def _close_listener(listener: trio.SocketListener) -> Iterator[trio.SocketStream]:
    """Close a listener; yield the connections that the kernel has accepted, and would reset."""
    with socket.socket(fileno=listener.socket.detach()) as listening:
        listening.settimeout(0)
        with suppress(OSError):  # `BlockingIOError` after the last one
            while True:
                accepted, _ = listening.accept()
                yield trio.SocketStream(trio.socket.from_stdlib_socket(accepted))


@attrs.define(kw_only=True, eq=False, repr=False)
class NativeHost:
    """The open connections of one application, of which each client address may have a share.

    `serve_native` documents the first attributes.

    Attributes:
        last_check: The time of the last check for idle connections, which connections use in place
            of the clock, because it costs less.
        bodies: The bytes of the unfinished bodies and WebSocket messages of all clients.
        log: The log of errors that requests can cause.
        is_draining: Whether each connection closes after its next response.
    """

    respond: Responder
    limits: Limits
    tls: ssl.SSLContext | None = None
    serve_upgrade: WebSocketApplication | None = None
    last_check: float = attrs.field(factory=trio.current_time, init=False)
    bodies: Shares = attrs.field(init=False)
    log: PeerLog = attrs.field(factory=PeerLog, init=False)
    is_draining: bool = attrs.field(default=False, init=False)
    _connections: set[NativeConnection] = attrs.field(factory=set[NativeConnection], init=False)
    _shares: Shares = attrs.field(init=False)
    _handshakes: FairSemaphore = attrs.field(init=False)
    # The connections beyond the limit that are being answered with 503. They cost memory, too: at
    # `limits.http.connections_max` of them, further ones are closed without a response.
    _rejecting: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._shares = shares_of("limits.http.connections_max", self.limits)
        self._handshakes = FairSemaphore(shares_of("limits.http.handshakes_max", self.limits))
        self.bodies = shares_of_bodies(self.limits)

    @property
    def scheme(self) -> str:
        """The scheme of the URLs of requests."""
        return "http" if self.tls is None else "https"

    async def serve(
        self, socket: ConnectedSocket, *, client: str | None = None, may_lead: bool = False
    ) -> None:
        """Serve one connection until it ends, and close it; raises no `Exception`."""
        if self.tls is None:
            buffered = BufferedSocket(socket=socket, limits=self.limits)
        else:
            buffered = TlsSocket(socket=socket, limits=self.limits, context=self.tls)
        buffered.is_last = self.is_draining
        connection = NativeConnection(socket=buffered, host=self, client=client, may_lead=may_lead)
        network = network_of(client)
        exceeded = self._shares.exceeded(network)
        try:
            if exceeded is not None:
                if self.tls is None:  # answering over TLS would cost a handshake
                    await self._reject(buffered, f"there are too many connections{exceeded}")
                return
            self._shares.take(network)
            self._connections.add(connection)
            if isinstance(buffered, TlsSocket):
                if not await buffered.do_handshake(self._handshakes):
                    await buffered.linger()
                    return
                connection.certificate = buffered.client_certificate
            await connection.serve()
        except trio.BrokenResourceError:
            pass  # the client has disconnected, which is a normal end of a connection
        finally:
            if exceeded is None:
                self._shares.give_back(network)
            self._connections.discard(connection)
            socket.close()

    async def _reject(self, socket: BufferedSocket, text: str) -> None:
        if self._rejecting >= self._shares.client_max:
            return
        self._rejecting += 1
        try:
            await socket.write(encoded_error(HttpError(503, text)))
            await socket.linger()
        finally:
            self._rejecting -= 1

    async def close_idle(self) -> NoReturn:
        """Close connections on which no request has started for `limits.http.idle_seconds`.

        Checking all connections from time to time costs less than a timer for each request. No
        connection is closed too early, and none later than two checks after its time.
        """
        idle_seconds = self.limits.http.idle_seconds
        pause = idle_seconds / _CHECKS_PER_IDLE_TIME
        while True:
            await trio.sleep(pause)
            self.last_check = now = trio.current_time()
            for connection in self._connections:
                if now - connection.idle_since >= idle_seconds + pause:
                    connection.end()

    async def drain(self) -> None:
        """Let each connection have one more request, and close those that have none.

        An idle connection stays open for `limits.shutdown.last_request_seconds`: a client that
        sends a request just when its connection is closed gets no response.
        """
        self.is_draining = True
        for connection in self._connections:
            connection.socket.is_last = True
        with trio.move_on_after(self.limits.shutdown.last_request_seconds):
            may_get_request = True
            while may_get_request:
                await trio.sleep(_DRAIN_POLL_SECONDS)
                may_get_request = any(each.may_get_request for each in self._connections)
        for connection in self._connections:
            if connection.idle_since < _BUSY:
                connection.end()


Admit: TypeAlias = Callable[[HttpRequest], Awaitable[HttpRequest | Rejection]]
"""Authenticates a request: returns it with its sender, or the rejection to answer with."""

Handle: TypeAlias = Callable[[WebSocketChannel], Awaitable[None]]
"""Serves a channel, which is closed afterwards."""


async def serve_websocket(
    listeners: Sequence[trio.SocketListener],
    *,
    admit: Admit,
    handle: Handle,
    limits: Limits,
    tls: ssl.SSLContext | None = None,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve WebSocket connections on the listeners until cancelled; an error ends one connection.

    `admit` authenticates each handshake, and returns the rejection of a request that is none.
    `handle` serves each accepted channel. `serve_native` documents the other arguments.

    Cancellation closes the listeners, cancels each call of `handle`, and waits until these have
    returned and their channels are closed, with code 1001 (going away).
    """
    channels: set[WebSocketChannel] = set()

    def mark_going_away() -> None:
        for channel in channels:
            channel.mark_going_away()

    async def respond(exchange: Exchange) -> None:
        rejection = await admit(exchange.request)
        assert isinstance(rejection, Rejection), "a request without a handshake was admitted"
        await exchange.answer(*rejection.response())

    async def serve_upgrade(upgrade: Upgrade) -> None:
        admitted = await admit(upgrade.request)
        if isinstance(admitted, Rejection):
            await upgrade.reject(admitted)
            return
        channel = await accept_websocket(upgrade, admitted, limits)
        channels.add(channel)
        try:
            await handle(channel)
        finally:
            await channel.aclose()
            channels.discard(channel)

    # A connection on which no handshake begins is closed as early as one whose headers are slow.
    idle_seconds = min(limits.http.headers_seconds, limits.http.idle_seconds)
    limits = msgspec.structs.replace(
        limits, http=msgspec.structs.replace(limits.http, idle_seconds=idle_seconds)
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call_when_cancelled, mark_going_away)
        await serve_native(
            respond,
            listeners,
            limits=limits,
            tls=tls,
            serve_upgrade=serve_upgrade,
            task_status=task_status,
        )
