"""Serving an ASGI application by hypercorn on Trio: TLS, and HTTP/2 to clients that ask for it.

What is used of hypercorn is its connection: parsing, streams, flow control. Accepting and stopping
are done here, since no cancellation breaks off a write: a client that does not read could hold up a
stop for ever; and nothing in hypercorn bounds how many connect.
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
from mcp_trio._transports.hypercorn_websocket import ToldWebSocket, stream_of
from mcp_trio._transports.socket_bytes import WITH_ADDRESSES, SocketEnds
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# What has come for the application, and over HTTP/2, how much more may come.
#
# Hypercorn lets a client send more as soon as the application has room for what has come, and reads
# nothing before. So the streams of an HTTP/2 connection wait for the one that nobody reads; and
# where that sends before it reads, the news that its client has made room stands behind what it
# does not read, for ever. Here the connection may go on at once, and a stream when the application
# has taken all that waited: what waits of a body is at most one window, of messages
# `_BESIDE_OTHERS_MAX`.


Flush: TypeAlias = Callable[[bytes], Awaitable[None]]

_ALONE_MAX: Final = 10
_BESIDE_OTHERS_MAX: Final = 1024
_DISCONNECTS: Final = frozenset({"http.disconnect", "websocket.disconnect"})


@attrs.define(eq=False)
class Arrivals:
    """What has come for one run of the application, which takes it one after the other.

    Who brings more than the application takes, by `waiting_max` messages, waits for it, but not for
    one that has returned.
    """

    waiting_max: int = _ALONE_MAX
    _waiting: deque[Message] = attrs.field(factory=deque[Message], init=False)
    _news: Wakeup = attrs.field(factory=Wakeup, init=False)
    _room: Wakeup = attrs.field(factory=Wakeup, init=False)
    _is_over: bool = attrs.field(default=False, init=False)

    def is_waiting(self) -> bool:
        """Whether `take` returns at once."""
        return bool(self._waiting)

    async def put(self, message: Message) -> None:
        """One more; that the client is gone is said without waiting."""
        while len(self._waiting) >= self.waiting_max and message["type"] not in _DISCONNECTS:
            if self._is_over:
                return
            await self._room.wait()
        self._waiting.append(message)
        self._news.ring()

    async def take(self) -> Message:
        """The next one."""
        while not self._waiting:
            await self._news.wait()
        self._room.ring()
        return self._waiting.popleft()

    def end(self) -> None:
        """Nobody takes any more."""
        self._is_over = True
        self._room.ring()


@attrs.define(kw_only=True, eq=False)
class StreamArrivals(Arrivals):
    """What has come on one stream of HTTP/2, of whose window `held_bytes` are not opened again."""

    windows: "Windows"
    number: int
    held_bytes: int = attrs.field(default=0, init=False)

    async def take(self) -> Message:
        """The next one; the window is opened when no other waits."""
        message = await super().take()
        if self.held_bytes and not self.is_waiting():
            opened, self.held_bytes = self.held_bytes, 0
            await self.windows.open_again(opened, self.number)
        return message

    def end(self) -> None:
        """Nobody takes any more."""
        super().end()
        self.windows.forget(self.number)


@attrs.define(eq=False)
class Windows:
    """The windows of one HTTP/2 connection, which are opened in hypercorn's place."""

    _http: H2Connection
    _flush: Flush
    _acknowledge: Callable[[int, int], None] = attrs.field(init=False)
    _arrivals: dict[int, StreamArrivals] = attrs.field(
        factory=dict[int, StreamArrivals], init=False
    )

    def __attrs_post_init__(self) -> None:
        self._acknowledge = self._http.acknowledge_received_data
        cast("Any", self._http).acknowledge_received_data = self.acknowledge

    def begin(self, number: int) -> StreamArrivals:
        """What comes on a stream, until its end."""
        arrivals = StreamArrivals(waiting_max=_BESIDE_OTHERS_MAX, windows=self, number=number)
        self._arrivals[number] = arrivals
        return arrivals

    def forget(self, number: int) -> None:
        """Nobody takes any more of a stream."""
        del self._arrivals[number]

    def acknowledge(self, size: int, number: int) -> None:
        """Hypercorn has given away `size` bytes that came on a stream."""
        arrivals = self._arrivals.get(number)
        if arrivals is None or not arrivals.is_waiting():
            self._acknowledge(size, number)
        elif size:
            arrivals.held_bytes += size
            self._open(size, None)

    async def open_again(self, size: int, number: int) -> None:
        """A stream has room for `size` bytes more; its client is told."""
        self._open(size, number)
        await self._flush(self._http.data_to_send())

    def _open(self, size: int, number: int | None) -> None:
        with contextlib.suppress(ProtocolError):  # what is over needs none
            self._http.increment_flow_control_window(size, number)


# --------------------
# What hypercorn's protocols do that does not suit us, mended from outside; and what they keep.
#
# HTTP/1.1 would go on as HTTP/2 in plain text for a client that asks for it by `Upgrade: h2c`. That
# is obsolete (RFC 9113, 3.1), no host of ours promises it, and a proxy that has passed the wish on
# without a thought would pass on all that follows without a look. A server may ignore it (RFC 9110,
# 7.8).
#
# HTTP/2 forgets a stream that was answered, and fails if more comes for it. One that its client has
# reset it remembers, and has room for a thousand of them; and one that it has refused by itself.


_H11Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]

_UPGRADE: Final = b"upgrade"
_WEBSOCKET: Final = b"websocket"


def stay_in_http1(hypercorn: ProtocolWrapper, *, head_bytes_max: int) -> None:
    """To be called before anything was received; does nothing to HTTP/2."""
    if isinstance(hypercorn.protocol, H11Protocol):
        hypercorn.protocol.connection = _PlainConnection(
            h11.SERVER, max_incomplete_event_size=head_bytes_max
        )


class _PlainConnection(h11.Connection):
    """One whose requests ask for no other protocol than WebSocket."""

    def next_event(self) -> _H11Event:
        """See h11; which would hold back all that comes, the end too, until a wish was answered."""
        event = super().next_event()
        if isinstance(event, h11.Request) and _asks_for_another(event):
            self._cstate.pending_switch_proposals.clear()  # it has no other way to say no
            return _without_upgrade(event)
        return event


def _asks_for_another(request: h11.Request) -> bool:
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
    """A stream of HTTP/2 that was answered before all of its body had come."""

    async def handle(self, _event: object) -> None:
        """Nobody waits for it."""
        await trio.lowlevel.checkpoint()


class _Streams(dict[int, Any]):
    """Hypercorn's, which has something to take what comes too late."""

    def __missing__(self, _number: int) -> _Answered:
        return _Answered()


def forgive(protocol: H2Protocol) -> None:
    """What comes for a stream that was answered is dropped, and a strange request ends its own."""
    if not isinstance(protocol.streams, _Streams):
        protocol.streams = _Streams(protocol.streams)
        hypercorn = cast("Any", protocol)
        create = hypercorn._create_stream  # noqa: SLF001  what fails is in there
        hypercorn._create_stream = functools.partial(  # noqa: SLF001  the same
            _create_stream, protocol, create
        )


async def _create_stream(
    protocol: H2Protocol,
    create: Callable[[RequestReceived], Awaitable[None]],
    request: RequestReceived,
) -> None:
    """Hypercorn ends the connection for a method or a path that is no ASCII."""
    if all(value.isascii() for name, value in request.headers if name.startswith(b":")):
        await create(request)
    else:
        protocol.connection.reset_stream(request.stream_id, ErrorCodes.PROTOCOL_ERROR)


def forget_rejected(protocol: H2Protocol) -> None:
    """No application was run for these, which wanted to be WebSockets; so nobody closes them."""
    forgive(protocol)
    for number in [each for each, stream in protocol.streams.items() if stream.closed]:
        del protocol.streams[number]


def number_behind(send: object) -> int:
    """The number of the stream that hypercorn has made a `send` for."""
    return cast("int", cast("Any", send).__self__.stream_id)


async def end_unended(protocol: H2Protocol, number: int) -> None:
    """End a stream of which something is still to come, as far as hypercorn knows.

    Its task that sends then finds that nothing can be sent there, and forgets it.
    """
    buffer = protocol.stream_buffers.get(number)
    if buffer is None or buffer.complete:
        return
    if not _is_closed(protocol, number):
        protocol.connection.reset_stream(number, ErrorCodes.INTERNAL_ERROR)
    await buffer.close()
    protocol.priority.unblock(number)
    await protocol.has_data.set()


def has_unsent_ends(protocol: H2Protocol) -> bool:
    """Whether the last bytes of an answer have not left yet; those broken off have none."""
    return any(
        cast("Any", buffer)._complete and not _is_closed(protocol, number)  # noqa: SLF001  it tells
        for number, buffer in protocol.stream_buffers.items()  # that by no other
    )


def _is_closed(protocol: H2Protocol, number: int) -> bool:
    stream = protocol.connection.streams.get(number)
    return stream is None or stream.closed


def bytes_held_back(protocol: H2Protocol) -> int:
    """What waits for an HTTP/2 client to open its window."""
    return sum(len(each.buffer) for each in protocol.stream_buffers.values())


# --------------------
# The bytes of a connection that hypercorn parses, without waits that have no end.


@attrs.define(eq=False)
class BoundedStream:
    """As much of a stream as hypercorn and TLS need; it owns its `ends`.

    While it `is_holding`, what is sent waits for what is sent next.
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

    # Sending.

    @property
    def has_held(self) -> bool:
        """Whether something waits for what is sent next."""
        return bool(self._held)

    def send_nowait(self, data: bytes) -> bytes:
        """Send what the system takes at once; returns the rest, which has to be sent next.

        Raises:
            trio.BrokenResourceError: The client has gone away.
        """
        if self.is_holding:
            self._held += data
            return b""
        if self._held:
            data, self._held = self._held + data, b""
        if not data:
            return b""
        sent = self._write_nowait(data)
        self._has_sent.ring()
        return data[sent:]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send it; a client that does not read in time is disconnected.

        Raises:
            trio.BrokenResourceError: The client has gone away, or was cut off.
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
            self._read_at = trio.current_time()  # there is room, as the client has made some
        self._sending_since = math.inf
        self._has_sent.ring()

    def _write_nowait(self, data: bytes | memoryview) -> int:
        try:
            written = self._ends.write_nowait(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError("the client has gone away") from error
        self.bytes_sent += written
        return written

    async def wait_sent(self) -> None:
        """Return when something more was sent."""
        await self._has_sent.wait()

    # Receiving.

    async def receive_some(self, _bytes_max: int | None = None) -> bytes:
        """Return received bytes; empty, now and always, when the client has closed.

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

    # The end.

    def cut_if_waiting_since(self, earliest: float) -> None:
        """Cut it if a write has made no progress since then."""
        if self._sending_since < earliest:
            self.cut()

    def cut_if_silent_since(self, earliest: float) -> None:
        """Cut it if it has been listened to since then, and nothing was heard of the client.

        One that reads what has waited for it is there; what it was asked stands behind that.
        """
        if max(self._listening_since, self._read_at) < earliest:
            self.cut()

    async def aclose(self) -> None:
        """No more is sent or received; `linger` and `cut` are still to come."""
        self._is_closing = True
        self.has_ended.set()
        if not self._is_cut:
            self._ends.shut_writing()
            self._ends.interrupt()
        await trio.lowlevel.checkpoint()

    async def linger(self) -> None:
        """Let the client read what was sent: a close with unread bytes would reset the connection.

        What still comes is thrown away, for `limits.shutdown.close_seconds` at most.
        """
        await self.aclose()  # after a handshake that failed nobody has
        with (
            contextlib.suppress(trio.ClosedResourceError),
            trio.move_on_after(self._limits.shutdown.close_seconds),
        ):
            while await self._receive():
                pass

    def cut(self) -> None:
        """Close it at once; wakes who waits for it."""
        self._is_cut = True
        self.has_ended.set()
        self._ends.close()


# --------------------
# One connection that hypercorn parses: its requests, and what is run for them.
#
# Of hypercorn it is the protocols alone: HTTP/1.1, HTTP/2 and WebSocket, with their states and
# their flow control. What stands around them in its own server costs more than all else: a task
# after each request, which ends the connection if no other comes; a lock and a shield for each
# piece of an answer; a turn of the scheduler for each message to the application. Here who is idle
# is looked for now and then, by the host; bytes that the system takes at once need neither; and
# what has come for an application is simply there.


logger = logging.getLogger("mcp_trio")

Address: TypeAlias = tuple[str, int]

_START: Final = "http.response.start"


@attrs.define(eq=False)
class HypercornConnection:
    """One connection, and what runs for its requests.

    Since `idle_since` nothing has run for any; infinite while something does, and before it can:
    a handshake has its own time. Of them, `websockets` are open.
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
    _rests: Wakeup = attrs.field(factory=Wakeup, init=False)
    _is_stopping: bool = attrs.field(default=False, init=False)
    _is_ending: bool = attrs.field(default=False, init=False)
    _shaking: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _lingering: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    async def serve(self, config: Config, tls: SSLContext | None) -> None:
        """Serve its requests until either side closes it."""
        self._secured = self.stream
        if tls is None:
            await self._serve(config, "http/1.1", is_tls=False)
        else:
            protocol = await self._shake_hands(config, tls)
            if protocol is not None:
                await self._serve(config, protocol, is_tls=True)
        with self._lingering:
            await self.stream.linger()

    async def _shake_hands(self, config: Config, tls: SSLContext) -> str | None:
        """The protocol that was agreed on; None if nothing was, and it is over."""
        secured = trio.SSLStream(
            cast("Any", self.stream), tls, server_side=True, https_compatible=True
        )
        self._secured = secured
        self._shaking.deadline = trio.current_time() + config.ssl_handshake_timeout
        with (
            contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError),
            self._shaking,
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
                forgive(self._hypercorn.protocol)
            self._nursery.start_soon(self._cancel_when_over, self._nursery.cancel_scope)
            self.idle_since = trio.current_time()
            await self._hypercorn.initiate()
            await self._read()
            self.stream.has_ended.set()
        await self._say_goodbye()
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
        """What hypercorn runs beside the requests ends with them."""
        await self.stream.has_ended.wait()
        while self._requests:
            await self._rests.wait()
        protocol = self._hypercorn.protocol
        if self._is_stopping and isinstance(protocol, H2Protocol):
            with trio.move_on_after(self.limits.shutdown.close_seconds):
                await self._all_sent(protocol)
        scope.cancel()

    async def _all_sent(self, protocol: H2Protocol) -> None:
        """Wait until the last bytes of all answers have left, which a task of hypercorn's sends."""
        while has_unsent_ends(protocol) and not protocol.closed:
            await self.stream.wait_sent()

    # The end.

    def stop(self) -> None:
        """Cancel what runs for its requests; when all that has ended, the connection ends."""
        self._is_stopping = True
        for scope in self._requests:
            scope.cancel()
        self.stream.has_ended.set()
        self._shaking.cancel()
        self._lingering.cancel()

    def end(self) -> None:
        """It was idle for too long: it is closed, and the second time cut."""
        if self._is_ending or self.stream.has_ended.is_set():
            self.stream.cut()
        else:
            self._is_ending = True
            self._nursery.start_soon(self._end)

    async def _end(self) -> None:
        if self._requests:  # one has come in the very last moment
            self._is_ending = False
            return
        await self._say_goodbye()
        await self._hypercorn.handle(Closed())
        await self._close()

    async def _say_goodbye(self) -> None:
        """Over HTTP/2 a client learns what was not seen of its requests, and may ask that again."""
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol) and not protocol.closed:
            protocol.connection.close_connection()
            await self._send_data(protocol.connection.data_to_send())

    async def _close(self) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._secured.aclose()

    # What hypercorn sends.

    async def _send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self._send_data(event.data)
        elif isinstance(event, Closed):
            await self._close()
            await self._hypercorn.handle(Closed())

    async def _send_data(self, data: bytes) -> None:
        """Send it, cancelled or not: hypercorn counts it as sent, and would never give it again."""
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
            await trio.lowlevel.checkpoint()  # now others may learn of it

    async def _send_held(self) -> None:
        """Nothing came behind it."""
        with contextlib.suppress(trio.BrokenResourceError):
            async with self._sending:
                with trio.CancelScope(shield=True):
                    await self.stream.send_all(b"")

    # What hypercorn runs: this is its `TaskGroup`.

    def spawn(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Run something of hypercorn's beside the requests."""
        self._nursery.start_soon(function, *arguments)

    async def spawn_app(
        self,
        _app: object,
        _config: object,
        scope: Scope,
        send: Callable[[Message | None], Awaitable[None]],
    ) -> Callable[[Message], Awaitable[None]]:
        """Run the application for one request; returns what its messages are given to."""
        arrivals = self._arrivals_for(send)
        self._nursery.start_soon(self._run, self._begin(), scope, arrivals, send)
        return arrivals.put

    def _arrivals_for(self, send: object) -> Arrivals:
        protocol = self._hypercorn.protocol
        if not isinstance(protocol, H2Protocol):
            return Arrivals()
        if self._windows is None:
            self._windows = Windows(protocol.connection, self._send_data)
        return self._windows.begin(number_behind(send))

    async def _run(
        self,
        running: trio.CancelScope,
        scope: Scope,
        arrivals: Arrivals,
        send: Callable[[Message | None], Awaitable[None]],
    ) -> None:
        try:
            with running:
                await self._run_app(scope, arrivals, send)
        finally:
            arrivals.end()
            self._finish(running)
            self.stream.is_holding = False  # what was to come next does not
            await send(None)
            await self._end_stream(send)

    def _begin(self) -> trio.CancelScope:
        """Around what runs for a request, which a stop cancels."""
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
            self._rests.ring()

    async def _run_app(self, scope: Scope, arrivals: Arrivals, send: Send) -> None:
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol):
            forgive(protocol)
            bounded = functools.partial(self._send_bounded, protocol, send)
        else:
            bounded = functools.partial(self._send_together, send)
            scope["extensions"][BYTES_SENT] = lambda: self.stream.bytes_sent
        scope["extensions"][IS_WAITING] = arrivals.is_waiting
        try:
            await self._run_told(scope, arrivals.take, bounded)
        except AnswerBrokenOff:
            await self._break_off(send)
        except Exception:
            logger.exception("the application failed")
            await self._break_off(send)

    async def _break_off(self, send: object) -> None:
        """The rest of an answer will not come, which is no affair of other ones over HTTP/2."""
        if isinstance(self._hypercorn.protocol, H2Protocol):
            await self._end_stream(send)
        else:
            self.stream.cut()

    async def _end_stream(self, send: object) -> None:
        """Of what has no end yet, over HTTP/2, nobody is to wait for the rest."""
        protocol = self._hypercorn.protocol
        if isinstance(protocol, H2Protocol) and not protocol.closed:
            await end_unended(protocol, number_behind(send))
            await self._send_data(protocol.connection.data_to_send())

    async def _send_together(self, send: Send, message: Message) -> None:
        """The head of an answer leaves with what comes next; cancelled, nothing was begun."""
        await trio.lowlevel.checkpoint_if_cancelled()
        is_held = message["type"] == _START or MORE in message
        self.stream.is_holding = is_held
        await send(message)
        if not is_held and self.stream.has_held:
            await self._send_held()

    async def _send_bounded(self, protocol: H2Protocol, send: Send, message: Message) -> None:
        """Over HTTP/2 others would wait for it; and hypercorn sets no bound to what is kept."""
        await trio.lowlevel.checkpoint_if_cancelled()
        await send(message)
        while bytes_held_back(protocol) > self.limits.http.unsent_bytes_max:
            await self.stream.wait_sent()

    async def _run_told(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_websocket = scope["type"] == "websocket"
        stream = stream_of(self._hypercorn.protocol, scope) if is_websocket else None
        if stream is None:
            await self.app(scope, receive, send)
            return
        told = ToldWebSocket(stream, self.limits)
        self.websockets += 1
        try:
            await self.app(scope, told.receiving(receive), told.sending(send))
        finally:
            self.websockets -= 1


_FULL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-type: text/plain\r\n"
    b"content-length: 60\r\n\r\nthere are too many connections (limits.http.connections_max)"
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
    request is cancelled, and may still end its answer; after `limits.shutdown.close_seconds`
    everything is cut. No lifespan events are sent. One head may take `limits.http.idle_seconds`
    here, as only hypercorn knows what has come of it.

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
            await trio.sleep(self.limits.messages.write_stall_seconds / _LOOKS_PER_STALL)
            earliest = trio.current_time() - self.limits.messages.write_stall_seconds
            for connection in self._connections:
                connection.stream.cut_if_waiting_since(earliest)

    async def _cut_idle(self) -> NoReturn:
        """The same for a timer after each request; who says nothing at first is idle, too."""
        pause = self.limits.http.idle_seconds / _LOOKS_PER_IDLE_TIME
        while True:
            await trio.sleep(pause)
            earliest = trio.current_time() - self.limits.http.idle_seconds - pause
            for connection in self._connections:
                if connection.idle_since < earliest:
                    connection.end()

    async def _cut_silent(self) -> NoReturn:
        """Hypercorn asks those behind WebSockets whether they are there, and hears no answer."""
        pause = self.limits.websocket.ping_interval_seconds / _LOOKS_PER_STALL
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
                await self._is_quiet.wait()
        for connection in self._connections:
            connection.stream.cut()

    async def serve_connection(self, transport: trio.SocketStream) -> None:
        """Everything that happens on one accepted connection; raises no `Exception`."""
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
                self._is_quiet.set()

    async def _reject(self, stream: BoundedStream) -> None:
        logger.warning("a connection was refused: limits.http.connections_max are open")
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
