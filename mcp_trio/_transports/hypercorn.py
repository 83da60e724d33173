"""An ASGI server on Trio with TLS and HTTP/2, built on hypercorn's protocol classes.

hypercorn parses, and manages streams and flow control. This module accepts connections, reads,
writes and stops, for three reasons. hypercorn shields its writes from cancellation, so that a
client that does not read could delay a stop for ever. It does not limit the number of connections.
And its own server costs more time than all else: a task for each keep-alive timer, a lock for each
piece of an answer, and a task switch for each message to the application.
"""

import contextlib
import functools
import logging
import math
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from ssl import SSLContext
from typing import Any, Final, NoReturn, TypeAlias, cast

import attrs
import h11
import trio
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import RequestReceived
from h2.exceptions import ProtocolError
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from mcp_trio._protocol.http_headers import date_at
from mcp_trio._transports.asgi import (
    BYTES_SENT,
    IS_WAITING,
    MORE,
    AnswerBrokenOff,
    Application,
    Message,
    Receive,
    Scope,
    Send,
)
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio._transports.hypercorn_websocket import BoundedWebSocket, stream_of
from mcp_trio._transports.socket_bytes import WITH_ADDRESSES, SocketEnds
from mcp_trio.limits import DEFAULT_LIMITS, Limits

logger = logging.getLogger("mcp_trio")

# Received messages, and HTTP/2 flow control. hypercorn stops reading a connection while one
# application does not receive, which blocks the other streams of an HTTP/2 connection; and an
# application that sends before it receives would wait for ever for a window update that is not
# read. Here the connection's window opens at once, and a stream's window when the application has
# received all that was queued. So the queue of a stream holds at most one window of a body, and
# `_BESIDE_OTHERS_MAX` messages.

Flush: TypeAlias = Callable[[bytes], Awaitable[None]]

_ALONE_MAX: Final = 10
_BESIDE_OTHERS_MAX: Final = 1024
_DISCONNECTS: Final = frozenset({"http.disconnect", "websocket.disconnect"})


@attrs.define(eq=False)
class ScopeQueue:
    """The queue of ASGI messages for one call of the application.

    `put` waits while the queue holds `waiting_max` messages and the application is running.
    """

    waiting_max: int = _ALONE_MAX
    _waiting: deque[Message] = attrs.field(factory=deque[Message], init=False)
    _news: Wakeup = attrs.field(factory=Wakeup, init=False)
    _room: Wakeup = attrs.field(factory=Wakeup, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def is_waiting(self) -> bool:
        """Return whether `take` would return at once."""
        return bool(self._waiting)

    async def put(self, message: Message) -> None:
        """Append a message; a disconnect message is appended without waiting."""
        while len(self._waiting) >= self.waiting_max and message["type"] not in _DISCONNECTS:
            if self._is_over:
                return
            await self._room.wait()
        self._waiting.append(message)
        self._news.wake()

    async def take(self) -> Message:
        """Wait for the next message, and return it."""
        while not self._waiting:
            await self._news.wait()
        self._room.wake()
        return self._waiting.popleft()

    def end(self) -> None:
        """Note that the application has returned, which ends every wait in `put`."""
        self._is_over = True
        self._room.wake()


@attrs.define(kw_only=True, eq=False)
class StreamQueue(ScopeQueue):
    """The queue of one HTTP/2 stream.

    Attributes:
        windows: The flow control of the connection.
        number: The stream's id.
        held_bytes: The bytes of the stream's window that are still to be opened again.
    """

    windows: "Windows"
    number: int
    held_bytes: int = attrs.field(default=0, init=False)

    async def take(self) -> Message:
        """Return the next message; open the stream's window when the queue is empty then."""
        message = await super().take()
        if self.held_bytes and not self.is_waiting():
            opened, self.held_bytes = self.held_bytes, 0
            await self.windows.open_again(opened, self.number)
        return message

    def end(self) -> None:
        """Note that the application has returned."""
        super().end()
        self.windows.forget(self.number)


@attrs.define(eq=False)
class Windows:
    """The flow control of received data on one HTTP/2 connection, in place of hypercorn's."""

    _http: H2Connection
    _flush: Flush
    _acknowledge: Callable[[int, int], None] = attrs.field(init=False)
    _queues: dict[int, StreamQueue] = attrs.field(factory=dict[int, StreamQueue], init=False)

    def __attrs_post_init__(self) -> None:
        self._acknowledge = self._http.acknowledge_received_data
        cast("Any", self._http).acknowledge_received_data = self.acknowledge

    def begin(self, number: int) -> StreamQueue:
        """Return the queue of a new stream."""
        queue = StreamQueue(waiting_max=_BESIDE_OTHERS_MAX, windows=self, number=number)
        self._queues[number] = queue
        return queue

    def forget(self, number: int) -> None:
        """Forget the queue of a stream."""
        del self._queues[number]

    def acknowledge(self, size: int, number: int) -> None:
        """Open windows for `size` bytes; hypercorn calls this when a message was queued."""
        queue = self._queues.get(number)
        if queue is None or not queue.is_waiting():
            self._acknowledge(size, number)
        elif size:
            queue.held_bytes += size
            self._open(size, None)

    async def open_again(self, size: int, number: int) -> None:
        """Open the window of a stream by `size` bytes, and send the update."""
        self._open(size, number)
        await self._flush(self._http.data_to_send())

    def _open(self, size: int, number: int | None) -> None:
        with contextlib.suppress(ProtocolError):  # a closed stream has no window
            self._http.increment_flow_control_window(size, number)


# Corrections of hypercorn's protocol classes.
#
# hypercorn switches from HTTP/1.1 to plain-text HTTP/2 for a client that sends `Upgrade: h2c`. That
# is obsolete (RFC 9113, section 3.1) and allows request smuggling through a proxy that forwards the
# header. A server may ignore the header (RFC 9110, section 7.8), and this one does.
#
# hypercorn's HTTP/2 forgets a stream that was answered, and fails when more data arrive for it. It
# keeps streams that the client has reset, and streams that hypercorn itself has rejected.


_H11Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]

_UPGRADE: Final = b"upgrade"
_WEBSOCKET: Final = b"websocket"


def stay_in_http1(hypercorn: ProtocolWrapper, *, head_bytes_max: int) -> None:
    """Make an HTTP/1.1 connection ignore upgrades to HTTP/2; call this before the first read."""
    if isinstance(hypercorn.protocol, H11Protocol):
        hypercorn.protocol.connection = _PlainConnection(
            h11.SERVER, max_incomplete_event_size=head_bytes_max
        )


class _PlainConnection(h11.Connection):
    """An h11 connection that removes `Upgrade` headers for protocols other than WebSocket."""

    def next_event(self) -> _H11Event:
        """Return the next event; h11 would pause until a requested upgrade was answered."""
        event = super().next_event()
        if isinstance(event, h11.Request) and _asks_for_other_upgrade(event):
            self._cstate.pending_switch_proposals.clear()  # h11 has no public way to decline
            return _without_upgrade(event)
        return event


def _asks_for_other_upgrade(request: h11.Request) -> bool:
    return dict(request.headers).get(_UPGRADE, _WEBSOCKET).lower() != _WEBSOCKET


def _without_upgrade(request: h11.Request) -> h11.Request:
    fields = [field for field in request.headers.raw_items() if field[0].lower() != _UPGRADE]
    return h11.Request(
        method=request.method,
        target=request.target,
        headers=fields,
        http_version=request.http_version,
    )


class _Answered:
    """An HTTP/2 stream that was answered before all of its body had arrived."""

    async def handle(self, _event: object) -> None:
        """Drop the rest of the body."""
        await trio.lowlevel.checkpoint()


class _Streams(dict[int, Any]):
    """hypercorn's table of streams, with a stand-in for each stream that was answered."""

    def __missing__(self, _number: int) -> _Answered:
        return _Answered()


def tolerate_late_data(protocol: H2Protocol) -> None:
    """Make the protocol drop data for answered streams, and reset streams with malformed requests.

    Without this, hypercorn closes the whole connection in both cases.
    """
    if not isinstance(protocol.streams, _Streams):
        protocol.streams = _Streams(protocol.streams)
        hypercorn = cast("Any", protocol)
        create = hypercorn._create_stream  # noqa: SLF001  there is no public hook
        hypercorn._create_stream = functools.partial(  # noqa: SLF001  the same
            _create_stream, protocol, create
        )


async def _create_stream(
    protocol: H2Protocol,
    create: Callable[[RequestReceived], Awaitable[None]],
    request: RequestReceived,
) -> None:
    """Create a stream, or reset it if its method or path is not ASCII."""
    if all(value.isascii() for name, value in request.headers if name.startswith(b":")):
        await create(request)
    else:
        protocol.connection.reset_stream(request.stream_id, ErrorCodes.PROTOCOL_ERROR)


def forget_rejected(protocol: H2Protocol) -> None:
    """Forget WebSocket streams that hypercorn has rejected without calling the application."""
    tolerate_late_data(protocol)
    for number in [each for each, stream in protocol.streams.items() if stream.closed]:
        del protocol.streams[number]


def stream_id_of(send: object) -> int:
    """Return the id of the HTTP/2 stream to which hypercorn's `send` belongs."""
    return cast("int", cast("Any", send).__self__.stream_id)


async def reset_incomplete(protocol: H2Protocol, number: int) -> None:
    """Reset a stream whose answer is incomplete; hypercorn's sending task then forgets it."""
    buffer = protocol.stream_buffers.get(number)
    if buffer is None or buffer.complete:
        return
    if not _is_closed(protocol, number):
        protocol.connection.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
    await buffer.close()
    protocol.priority.unblock(number)
    await protocol.has_data.set()


def has_unsent_ends(protocol: H2Protocol) -> bool:
    """Return whether the end of a complete answer is still to be sent."""
    return any(
        cast("Any", buffer)._complete and not _is_closed(protocol, number)  # noqa: SLF001  no public name
        for number, buffer in protocol.stream_buffers.items()
    )


def _is_closed(protocol: H2Protocol, number: int) -> bool:
    stream = protocol.connection.streams.get(number)
    return stream is None or stream.closed


def bytes_held_back(protocol: H2Protocol) -> int:
    """Return the number of bytes that wait for the client to open its windows."""
    return sum(len(each.buffer) for each in protocol.stream_buffers.values())


@attrs.define(eq=False)
class BoundedStream:
    """A connection's byte stream whose waits the server can end from outside.

    Attributes:
        has_ended: Set when the client or this side has closed.
        bytes_sent: The number of bytes that the kernel has accepted.
        is_holding: Whether to hold sent data back, and join them to the next data.
    """

    _ends: SocketEnds
    _limits: Limits
    has_ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    bytes_sent: int = attrs.field(default=0, init=False)
    is_holding: bool = attrs.field(default=False, init=False)
    _held: bytes = attrs.field(default=b"", init=False)
    _has_sent: Wakeup = attrs.field(factory=Wakeup, init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _is_cut: bool = attrs.field(default=False, init=False)
    _sending_since: float = attrs.field(default=math.inf, init=False)
    _listening_since: float = attrs.field(default=math.inf, init=False)
    _read_at: float = attrs.field(default=-math.inf, init=False)

    # Sending

    @property
    def has_held(self) -> bool:
        """Return whether data are held back."""
        return bool(self._held)

    def send_nowait(self, data: bytes) -> bytes:
        """Send what the kernel accepts at once; return the rest, which the caller must send next.

        Raises:
            trio.BrokenResourceError: The client has disconnected.
        """
        if self.is_holding:
            self._held += data
            return b""
        if self._held:
            data, self._held = self._held + data, b""
        if not data:
            return b""
        sent = self._write_nowait(data)
        self._has_sent.wake()
        return data[sent:]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all data.

        Raises:
            trio.BrokenResourceError: The client has disconnected, or `cut` was called.
        """
        await trio.lowlevel.checkpoint()
        rest = memoryview(self.send_nowait(bytes(data)))
        while rest:
            self._sending_since = trio.current_time()
            try:
                await self._ends.wait_writable()
            except (OSError, trio.ClosedResourceError) as error:
                raise trio.BrokenResourceError("the connection was cut") from error
            rest = rest[self._write_nowait(rest) :]
            self._read_at = trio.current_time()  # the client has read something
        self._sending_since = math.inf
        self._has_sent.wake()

    def _write_nowait(self, data: bytes | memoryview) -> int:
        try:
            written = self._ends.write_nowait(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError("the client has disconnected") from error
        self.bytes_sent += written
        return written

    async def wait_sent(self) -> None:
        """Wait until more data were sent."""
        await self._has_sent.wait()

    # Receiving

    async def receive_some(self, _bytes_max: int | None = None) -> bytes:
        """Return received bytes; empty at end of file, and ever after.

        Raises:
            trio.ClosedResourceError: This side has closed.
        """
        if self._is_closing:
            raise trio.ClosedResourceError("this side has closed")
        self._listening_since = trio.current_time()
        try:
            data = await self._receive()
        finally:
            self._listening_since = math.inf
        if not data:
            self.has_ended.set()
        return data

    async def _receive(self) -> bytes:
        while not self._is_cut:
            await self._ends.wait_readable()
            try:
                return self._ends.read_nowait()
            except BlockingIOError:
                continue
            except OSError:
                return b""
        return b""

    # Closing

    def cut_if_waiting_since(self, earliest: float) -> None:
        """Abort the connection if a write has made no progress since `earliest`."""
        if self._sending_since < earliest:
            self.cut()

    def cut_if_silent_since(self, earliest: float) -> None:
        """Abort the connection if the client has neither sent nor read data since `earliest`.

        A client that reads is alive: the ping is queued after the data that it reads.
        """
        if max(self._listening_since, self._read_at) < earliest:
            self.cut()

    async def aclose(self) -> None:
        """End sending and receiving; `linger` and `cut` close the socket."""
        self._is_closing = True
        self.has_ended.set()
        if not self._is_cut:
            self._ends.shut_writing()
            self._ends.interrupt()
        await trio.lowlevel.checkpoint()

    async def linger(self) -> None:
        """Drop input until the client closes, for at most `limits.shutdown.close_seconds`.

        Closing a socket that holds unread bytes would reset the connection.
        """
        await self.aclose()  # after a failed handshake, the stream is still open
        with (
            contextlib.suppress(trio.ClosedResourceError),
            trio.move_on_after(self._limits.shutdown.close_seconds),
        ):
            while await self._receive():
                pass

    def cut(self) -> None:
        """Close the socket at once, which ends every wait for it."""
        self._is_cut = True
        self.has_ended.set()
        self._ends.close()


Address: TypeAlias = tuple[str, int]

_START: Final = "http.response.start"


@attrs.define(eq=False)
class HypercornConnection:
    """One connection and the calls of the application for its requests.

    Attributes:
        app: The ASGI application.
        stream: The connection's bytes.
        limits: The limits of the connection.
        client: The address of the client.
        server: The address of this side.
        idle_since: The time at which the last request ended; infinite during a request and during
            the TLS handshake, which has a time limit of its own.
        websockets: The number of open WebSockets.
    """

    app: Application
    stream: BoundedStream
    limits: Limits
    client: Address | None
    server: Address | None
    idle_since: float = attrs.field(default=math.inf, init=False)
    websockets: int = attrs.field(default=0, init=False)
    _secured: Any = attrs.field(init=False)
    _hypercorn: ProtocolWrapper = attrs.field(init=False)
    _windows: Windows | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _sending: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _requests: set[trio.CancelScope] = attrs.field(factory=set[trio.CancelScope], init=False)
    _became_idle: Wakeup = attrs.field(factory=Wakeup, init=False)
    _is_stopping: bool = attrs.field(default=False, init=False)
    _is_ending: bool = attrs.field(default=False, init=False)
    _handshake: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _lingering: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def serve(self, config: Config, tls: SSLContext | None) -> None:
        """Serve requests until the client or the server closes the connection."""
        self._secured = self.stream
        if tls is None:
            await self._serve(config, "http/1.1", is_tls=False)
        else:
            protocol = await self._do_handshake(config, tls)
            if protocol is not None:
                await self._serve(config, protocol, is_tls=True)
        with self._lingering:
            await self.stream.linger()

    async def _do_handshake(self, config: Config, tls: SSLContext) -> str | None:
        """Do the TLS handshake; return the negotiated protocol, or None if it has failed."""
        secured = trio.SSLStream(
            cast("Any", self.stream), tls, server_side=True, https_compatible=True
        )
        self._secured = secured
        self._handshake.deadline = trio.current_time() + config.ssl_handshake_timeout
        with (
            contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            self._handshake,
        ):
            await secured.do_handshake()
            return secured.selected_alpn_protocol() or "http/1.1"
        return None

    async def _serve(self, config: Config, protocol: str, *, is_tls: bool) -> None:
        async with trio.open_nursery() as self._nursery:
            self._hypercorn = ProtocolWrapper(
                cast("Any", self.app),
                config,
                WorkerContext(None),
                cast("Any", self),
                ConnectionState(cast("Any", {})),
                is_tls,
                self.client,
                self.server,
                self._send,
                protocol,
            )
            stay_in_http1(self._hypercorn, head_bytes_max=config.h11_max_incomplete_size)
            if isinstance(self._hypercorn.protocol, H2Protocol):
                tolerate_late_data(self._hypercorn.protocol)
            self._nursery.start_soon(self._cancel_when_over, self._nursery.cancel_scope)
            self.idle_since = trio.current_time()
            await self._hypercorn.initiate()
            await self._read()
            self.stream.has_ended.set()
        await self._send_goaway()
        await self._close()

    async def _read(self) -> None:
        while True:
            try:
                data = await self._secured.receive_some(self.limits.messages.chunk_bytes)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                break
            await self._hypercorn.handle(RawData(bytes(data)))
            if isinstance(self._hypercorn.protocol, H2Protocol):
                forget_rejected(self._hypercorn.protocol)
            if not data:
                break
        await self._hypercorn.handle(Closed())

    async def _cancel_when_over(self, scope: trio.CancelScope) -> None:
        """Cancel hypercorn's own tasks once the connection and all requests have ended."""
        await self.stream.has_ended.wait()
        while self._requests:
            await self._became_idle.wait()
        protocol = self._hypercorn.protocol
        if self._is_stopping and isinstance(protocol, H2Protocol):
            with trio.move_on_after(self.limits.shutdown.close_seconds):
                await self._all_sent(protocol)
        scope.cancel()

    async def _all_sent(self, protocol: H2Protocol) -> None:
        """Wait until hypercorn's sending task has sent the ends of all complete answers."""
        while has_unsent_ends(protocol) and not protocol.closed:
            await self.stream.wait_sent()

    # Closing

    def stop(self) -> None:
        """Cancel all requests; the connection closes when they have ended."""
        self._is_stopping = True
        for scope in self._requests:
            scope.cancel()
        self.stream.has_ended.set()
        self._handshake.cancel()
        self._lingering.cancel()

    def end(self) -> None:
        """Close the idle connection; the second call aborts it."""
        if self._is_ending or self.stream.has_ended.is_set():
            self.stream.cut()
        else:
            self._is_ending = True
            self._nursery.start_soon(self._end)

    async def _end(self) -> None:
        if self._requests:  # a request has arrived since the idle check
            self._is_ending = False
            return
        await self._send_goaway()
        await self._hypercorn.handle(Closed())
        await self._close()

    async def _send_goaway(self) -> None:
        """Send GOAWAY on HTTP/2, so that the client knows which requests it may send again."""
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol) and not protocol.closed:
            protocol.connection.close_connection()
            await self._send_data(protocol.connection.data_to_send())

    async def _close(self) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._secured.aclose()

    # Events that hypercorn sends

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._send_data(event.data)
        elif isinstance(event, Closed):
            await self._close()
            await self._hypercorn.handle(Closed())

    async def _send_data(self, data: bytes) -> None:
        """Send data; a cancellation does not stop this, since hypercorn counts them as sent."""
        try:
            if self._secured is self.stream and not self._sending.locked():
                data = self.stream.send_nowait(data)
                if not data:
                    return
            with trio.CancelScope(shield=True):
                async with self._sending:
                    await self._secured.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._hypercorn.handle(Closed())
            await trio.lowlevel.checkpoint()  # let other tasks notice the disconnect

    async def _send_held(self) -> None:
        """Send the data that are held back, although no further data follow."""
        with contextlib.suppress(trio.BrokenResourceError):
            async with self._sending:
                with trio.CancelScope(shield=True):
                    await self.stream.send_all(b"")

    # hypercorn's `TaskGroup` interface

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task of hypercorn's."""
        self._nursery.start_soon(function, *arguments)

    async def spawn_app(
        self,
        _app: object,
        _config: object,
        scope: Scope,
        send: Callable[[Message | None], Awaitable[None]],
    ) -> Callable[[Message], Awaitable[None]]:
        """Start the application for one request; return the function that queues its messages."""
        queue = self._queue_for(send)
        self._nursery.start_soon(self._run, self._begin(), scope, queue, send)
        return queue.put

    def _queue_for(self, send: object) -> ScopeQueue:
        protocol = self._hypercorn.protocol
        if not isinstance(protocol, H2Protocol):
            return ScopeQueue()
        if self._windows is None:
            self._windows = Windows(protocol.connection, self._send_data)
        return self._windows.begin(stream_id_of(send))

    async def _run(
        self,
        running: trio.CancelScope,
        scope: Scope,
        queue: ScopeQueue,
        send: Callable[[Message | None], Awaitable[None]],
    ) -> None:
        try:
            with running:
                await self._run_app(scope, queue, send)
        finally:
            queue.end()
            self._finish(running)
            self.stream.is_holding = False  # no further data follow
            await send(None)
            await self._end_stream(send)

    def _begin(self) -> trio.CancelScope:
        """Return the cancel scope of a new request, which `stop` cancels."""
        running = trio.CancelScope()
        self._requests.add(running)
        self.idle_since = math.inf
        if self._is_stopping:
            running.cancel()
        return running

    def _finish(self, running: trio.CancelScope) -> None:
        self._requests.remove(running)
        if not self._requests:
            self.idle_since = trio.current_time()
            self._became_idle.wake()

    async def _run_app(self, scope: Scope, queue: ScopeQueue, send: Send) -> None:
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol):
            tolerate_late_data(protocol)
            bounded = functools.partial(self._send_bounded, protocol, send)
        else:
            bounded = functools.partial(self._send_together, send)
            scope["extensions"][BYTES_SENT] = lambda: self.stream.bytes_sent
        scope["extensions"][IS_WAITING] = queue.is_waiting
        try:
            await self._call_app(scope, queue.take, bounded)
        except AnswerBrokenOff:
            await self._break_off(send)
        except Exception:
            logger.exception("the application failed")
            await self._break_off(send)

    async def _break_off(self, send: object) -> None:
        """Abort an incomplete answer: its stream on HTTP/2, otherwise the connection."""
        if isinstance(self._hypercorn.protocol, H2Protocol):
            await self._end_stream(send)
        else:
            self.stream.cut()

    async def _end_stream(self, send: object) -> None:
        """Reset the HTTP/2 stream of an incomplete answer."""
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol) and not protocol.closed:
            await reset_incomplete(protocol, stream_id_of(send))
            await self._send_data(protocol.connection.data_to_send())

    async def _send_together(self, send: Send, message: Message) -> None:
        """Send a message; hold back headers and announced messages for the next one."""
        await trio.lowlevel.checkpoint_if_cancelled()
        is_held = message["type"] == _START or MORE in message
        self.stream.is_holding = is_held
        await send(message)
        if not is_held and self.stream.has_held:
            await self._send_held()

    async def _send_bounded(self, protocol: H2Protocol, send: Send, message: Message) -> None:
        """Send a message on HTTP/2; wait while more than `unsent_bytes_max` are unsent.

        hypercorn does not limit the data that wait for the client's windows.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        await send(message)
        while bytes_held_back(protocol) > self.limits.http.unsent_bytes_max:
            await self.stream.wait_sent()

    async def _call_app(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_websocket = scope["type"] == "websocket"
        stream = stream_of(self._hypercorn.protocol, scope) if is_websocket else None
        if stream is None:
            await self.app(scope, receive, send)
            return
        bounded_websocket = BoundedWebSocket(stream, self.limits)
        self.websockets += 1
        try:
            await self.app(
                scope, bounded_websocket.receiving(receive), bounded_websocket.sending(send)
            )
        finally:
            self.websockets -= 1


_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: 60\r\n\r\nthere are too many connections (limits.http.connections_max)"
)
_CHECKS_PER_STALL: Final = 4
_CHECKS_PER_IDLE_TIME: Final = 8


class _Config(Config):
    """hypercorn's settings, with a `Date` header that is formatted once a second."""

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:  # noqa: ARG002
        """Return the `Date` header only, without `Server`."""
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
    """Serve an ASGI application until cancelled, and close the listeners at the end.

    With `certfile` and `keyfile` (PEM), all connections use TLS, and HTTP/2 where the client
    negotiates it. No lifespan events are sent. Request headers may take `limits.http.idle_seconds`
    instead of `limits.http.headers_seconds`, since hypercorn does not report their progress.

    Cancellation is the graceful stop: it closes the listeners and the idle connections, and cancels
    the application's calls, which may still complete their answers. After
    `limits.shutdown.close_seconds`, the remaining connections are aborted.

    Raises:
        OSError: The certificate or key cannot be read (`ssl.SSLError` is one).
        ValueError: Only one of `certfile` and `keyfile` was given.
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
        raise ValueError("TLS needs both certfile= and keyfile=")
    config = _Config()
    config.certfile, config.keyfile = certfile, keyfile
    config.accesslog = config.errorlog = None  # the application logs
    config.h11_max_incomplete_size = limits.http.headers_bytes_max
    config.h2_max_header_list_size = limits.http.headers_bytes_max
    config.keep_alive_max_requests = sys.maxsize
    config.websocket_ping_interval = limits.websocket.ping_interval_seconds
    config.ssl_handshake_timeout = limits.http.headers_seconds
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
    _all_closed: trio.Event = attrs.field(factory=trio.Event, init=False)

    async def hold_connections(self, *, task_status: trio.TaskStatus[trio.Nursery]) -> None:
        """Hold the shielded nursery of all connections, and stop them in order at the end."""
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
        """Abort stalled writes; checking from time to time costs less than a timer per write."""
        while True:
            await trio.sleep(self.limits.messages.write_stall_seconds / _CHECKS_PER_STALL)
            earliest = trio.current_time() - self.limits.messages.write_stall_seconds
            for connection in self._connections:
                connection.stream.cut_if_waiting_since(earliest)

    async def _cut_idle(self) -> NoReturn:
        """Close connections on which no request has begun for `limits.http.idle_seconds`."""
        pause = self.limits.http.idle_seconds / _CHECKS_PER_IDLE_TIME
        while True:
            await trio.sleep(pause)
            earliest = trio.current_time() - self.limits.http.idle_seconds - pause
            for connection in self._connections:
                if connection.idle_since < earliest:
                    connection.end()

    async def _cut_silent(self) -> NoReturn:
        """Abort WebSockets whose peer is dead: hypercorn sends pings, but checks no pongs."""
        pause = self.limits.websocket.ping_interval_seconds / _CHECKS_PER_STALL
        silent_seconds = (
            self.limits.websocket.ping_interval_seconds + self.limits.websocket.pong_seconds
        )
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
            with trio.move_on_after(self.limits.shutdown.close_seconds):
                await self._all_closed.wait()
        for connection in self._connections:
            connection.stream.cut()

    async def serve_connection(self, transport: trio.SocketStream) -> None:
        """Serve one accepted connection until it ends; raises no `Exception`."""
        client, server = addresses_of(transport)
        ends = SocketEnds(
            fd=transport.socket.detach(), chunk_bytes=self.limits.messages.chunk_bytes
        )
        stream = BoundedStream(ends, self.limits)
        if len(self._connections) >= self.limits.http.connections_max:
            await self._reject(stream)
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
                self._all_closed.set()

    async def _reject(self, stream: BoundedStream) -> None:
        logger.warning("a connection was rejected: limits.http.connections_max are open")
        try:
            if self.tls is None:
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_all(_FULL)
        finally:
            stream.cut()


def addresses_of(transport: trio.SocketStream) -> tuple[Address | None, Address | None]:
    """Return the addresses of the client and of this side; None where they have none."""
    if transport.socket.family not in WITH_ADDRESSES:
        return None, None
    try:
        client, server = transport.socket.getpeername(), transport.socket.getsockname()
    except OSError:  # the client has disconnected already
        return None, None
    return (client[0], client[1]), (server[0], server[1])
