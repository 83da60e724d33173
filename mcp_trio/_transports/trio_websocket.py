"""Sockets of messages over trio-websocket: the one file that knows it.

The library frames, masks and shakes hands. Some of what it does does not suit us, so it gets a
stream of ours (`WatchedStream`), a nursery of ours (`_Reader`) for its only task, and a place of
ours for the messages (`_Messages`):

- what its task raises stays here, and does not cancel whoever holds the connection;
- a peer that hangs up in the handshake is noticed at once;
- it leaves the stream open, or closes it without a word to the peer that broke the protocol: how a
  connection ends is `TrioSocket.close`;
- a cut message is never followed by another;
- its queue holds one message, hands it on with two switches of tasks, and ends the connection for
  one that is too large. Ours is bounded by bytes, and skips the rest of that one.
"""

import struct
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from types import MethodType
from typing import Final, TypeVar, cast

import attrs
import trio
from trio_websocket import (
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    WebSocketRequest,
    wrap_client_stream,
    wrap_server_stream,
)
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, TextMessage
from wsproto.utilities import LocalProtocolError

from mcp_trio._jsonrpc.lines import Oversized, bounded
from mcp_trio._protocol.websocket import CloseCode, close_reason
from mcp_trio._transports.inboxes import ReceivedQueue
from mcp_trio._transports.socket_bytes import SocketEnds, Wire
from mcp_trio._transports.websocket import SocketEnded
from mcp_trio.limits import MIB, Limits

# --------------------
# The bytes under a WebSocket, between a stream and a library that frames them.
#
# What goes by is told from here: that nothing more comes, that the library listens or does not,
# that something was cut, that the peer was told of the end. And nothing is mixed that two tasks
# send.


_CLOSE_FRAME: Final = b"\x88"

# Nobody refuses a handshake with more than that.
_ANSWER_BYTES_MAX: Final = MIB


@attrs.define(eq=False)
class WatchedStream(trio.abc.Stream):
    """The bytes of one connection, as the library uses them.

    Attributes:
        stream: Where they come from and go to.
        head: What was read of it before: the head of a client's request.
        rest: What was read behind that.
        chunk_bytes: How much is written at once, so that progress is seen.
        listening_since: Since when the library waits for bytes; None while it does not.
        is_cut: Something was begun and not finished: nothing more can be sent.
        is_writing: Something is on its way, and all else waits behind it.
        has_said_close: The peer was told that it is over, or should have been.
    """

    stream: trio.abc.Stream
    head: bytes
    rest: bytes
    chunk_bytes: int
    listening_since: float | None = attrs.field(default=None, init=False)
    bytes_sent: int = attrs.field(default=0, init=False)
    is_cut: bool = attrs.field(default=False, init=False)
    is_writing: bool = attrs.field(default=False, init=False)
    has_said_close: bool = attrs.field(default=False, init=False)
    _tail: bytes = attrs.field(default=b"", init=False)
    _write_at_once: Callable[[bytes], int] | None = attrs.field(init=False)
    _written: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _while_open: trio.CancelScope | None = attrs.field(default=None, init=False)
    _has_head: bool = attrs.field(init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _bytes_left: int | None = attrs.field(default=_ANSWER_BYTES_MAX, init=False)

    def __attrs_post_init__(self) -> None:
        self._has_head = bool(self.head)
        self._write_at_once = getattr(self.stream, "write_nowait", None)

    def opened(self) -> None:
        """The handshake is over: from now on, messages have their own limit."""
        self._bytes_left = None
        self._answered.set()

    def end(self) -> None:
        """Nothing more will be read."""
        self._has_ended = True
        if self._while_open is not None:
            self._while_open.cancel()

    @contextmanager
    def while_open(self) -> Generator[None]:
        """What the block waits for is not waited for any more once nothing more will be read."""
        with trio.CancelScope() as self._while_open:
            if self._has_ended:
                self._while_open.cancel()
            yield
        self._while_open = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send it in pieces; the library sends one frame at a time, and we send many messages."""
        self.has_said_close = self.has_said_close or bytes(data[:1]) == _CLOSE_FRAME
        await trio.lowlevel.checkpoint_if_cancelled()
        while self.is_writing:
            await self._written.park()
        if self.is_cut:
            raise trio.BrokenResourceError("a message was cut: nothing can be sent behind it")
        try:
            await self._write(b"".join([self._tail, data]) if self._tail else data)
        finally:
            self._tail = b""

    @property
    def is_unfinished(self) -> bool:
        """Whether something was begun by `write_nowait`, and has not left or been cut yet."""
        return bool(self._tail)

    @property
    def takes_at_once(self) -> bool:
        """Whether it is worth a try to `write_nowait`."""
        busy = self.is_writing or self.is_cut or self._tail
        return self._write_at_once is not None and not busy

    def write_nowait(self, data: bytes) -> bool:
        """Whether it was taken; what the system has no room for goes before all that is sent next.

        Raises:
            trio.BrokenResourceError: The peer is gone.
        """
        assert self._write_at_once is not None
        written = self._write_at_once(data)
        self.bytes_sent += written
        if written:
            self._tail = data[written:]
        return written > 0

    async def _write(self, data: bytes | bytearray | memoryview) -> None:
        self.is_writing = True
        try:
            whole = memoryview(data)
            for begin in range(0, len(whole), self.chunk_bytes):
                piece = whole[begin : begin + self.chunk_bytes]
                self.bytes_sent += len(piece)
                await self.stream.send_all(piece)
        except BaseException as error:
            self.is_cut = True
            if isinstance(error, trio.ClosedResourceError):  # by whoever holds the connection
                raise trio.BrokenResourceError("the connection was closed") from None
            raise
        finally:
            self.is_writing = False
            self._written.unpark_all()

    async def wait_send_all_might_not_block(self) -> None:
        """Is not used by the library."""
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """What comes next, first of what was read before."""
        if self._has_ended:  # as the library reads on though it has closed
            return b""
        if self.head:
            data, self.head = self.head, b""
            await trio.lowlevel.checkpoint()
            return data
        if self._has_head:  # what is read with the head, before that is answered, gets lost
            await self._answered.wait()
        if self.rest:
            data, self.rest = self.rest, b""
            return data
        self.listening_since = trio.current_time()
        try:
            data = bytes(await self.stream.receive_some(max_bytes))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.end()
            raise
        finally:
            self.listening_since = None
        if not data or not self._may_go_on(len(data)):
            self.end()
            return b""
        return data

    def _may_go_on(self, size: int) -> bool:
        """Nobody answers a handshake with more than that."""
        if self._bytes_left is None:
            return True
        self._bytes_left -= size
        return self._bytes_left >= 0

    async def aclose(self) -> None:
        """The library is done with it; it is closed by whoever gave it."""
        self.end()
        await trio.lowlevel.checkpoint()


# --------------------
# The bytes of a connection as libraries want them, over a socket that is ours.
#
# Beside what every stream can, it writes without waiting: most messages leave so at once.


@attrs.frozen(eq=False)
class WireStream(trio.abc.HalfCloseableStream):
    """See the module."""

    _wire: Wire

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `trio.abc.SendStream`; a peer that reads nothing is cut off in the end."""
        await self._wire.write(bytes(data))
        await trio.lowlevel.cancel_shielded_checkpoint()  # the wire has none on its short way

    def write_nowait(self, data: bytes) -> int:
        """How many bytes the system has taken, perhaps none; not while somebody sends.

        Raises:
            trio.BrokenResourceError: The peer is gone.
        """
        return self._wire.write_nowait(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See `trio.abc.SendStream`."""
        await self._wire.ends.wait_writable()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """See `trio.abc.ReceiveStream`."""
        received = self._wire.received
        if not received:
            await self._wire.receive()
        return self._wire.take(len(received) if max_bytes is None else max_bytes)

    async def send_eof(self) -> None:
        """See `trio.abc.HalfCloseableStream`."""
        self._wire.ends.shut_writing()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Closes it at once, and wakes who waits."""
        self._wire.is_broken = self._wire.has_ended = True
        self._wire.ends.close()
        await trio.lowlevel.checkpoint()


def over_wire(stream: trio.abc.Stream, limits: Limits) -> trio.abc.Stream:
    """The same connection, as a `WireStream` if nothing stands between it and its socket."""
    if not isinstance(stream, trio.SocketStream):
        return stream
    ends = SocketEnds(fd=stream.socket.detach(), chunk_bytes=limits.messages.chunk_bytes)
    return WireStream(Wire(ends=ends, limits=limits))


T = TypeVar("T")

_GONE: Final = (ConnectionClosed, LocalProtocolError, trio.ClosedResourceError)
_FOUND: Final = frozenset({CloseCode.PROTOCOL_BROKEN, CloseCode.NOT_UTF8})  # by the library

# What of the library takes a message. It is asked for by its name, which is not public, once.
_HANDLER: Final = "_handle_message_event"


class HandshakeFailed(Exception):  # noqa: N818  named for what happened
    """There is no WebSocket; `status` and `body` are what the server answered, if it did."""

    def __init__(self, text: str, *, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.body = body


# What the library is given -----------------------------------------------------------------------


@attrs.define(eq=False)
class _Messages:
    """In the place of the library's queue: what came, and is to be received."""

    frame_bytes_max: int
    inbox: ReceivedQueue
    has_binary: bool = attrs.field(default=False, init=False)
    _held: bytearray = attrs.field(factory=bytearray, init=False)
    _is_skipping: bool = attrs.field(default=False, init=False)

    async def take(self, event: TextMessage | BytesMessage) -> None:
        """Take a message, or a piece of one; the library reads on when there is room again."""
        if isinstance(event, BytesMessage):
            self.has_binary = True
            self.inbox.end()
            return
        if not self._is_skipping:
            self._held += event.data.encode()
            if event.message_finished or len(self._held) > self.frame_bytes_max:
                self._put()
        if event.message_finished:
            self._is_skipping = False
        await self.inbox.room()

    def _put(self) -> None:
        frame = bounded(bytes(self._held), frame_bytes_max=self.frame_bytes_max)
        self._is_skipping = isinstance(frame, Oversized)
        self._held = bytearray()
        self.inbox.put(frame)


@attrs.define(eq=False)
class _Reader:
    """In the place of a nursery: the library's task, and what it raises."""

    nursery: trio.Nursery
    stream: WatchedStream
    messages: _Messages
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    fault: Exception | None = attrs.field(default=None, init=False)
    _done: trio.Event = attrs.field(factory=trio.Event, init=False)

    def start_soon(self, read: Callable[[], Awaitable[None]]) -> None:
        """What the library calls, with a method of the connection."""
        connection = cast("WebSocketConnection", cast("MethodType", read).__self__)
        if not hasattr(connection, _HANDLER):
            raise RuntimeError("this version of trio-websocket is unknown here")
        setattr(connection, _HANDLER, self.messages.take)
        self.nursery.start_soon(self._run, read)
        if connection.is_client:
            self.nursery.start_soon(self._watch, connection)

    async def _run(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            with self.scope:
                await read()
        except Exception as error:
            self.fault = error
        finally:
            self.stream.end()
            self.messages.inbox.end()
            self._done.set()

    async def _watch(self, connection: WebSocketConnection) -> None:
        """Nothing comes this way but the end, which a client's reader may survive for long."""
        with suppress(ConnectionClosed):
            await connection.get_message()
        self.messages.inbox.end()

    async def stop(self) -> None:
        """Return when it reads no more."""
        self.scope.cancel()
        await self._done.wait()


async def _before_the_end(stream: WatchedStream, work: Callable[[], Awaitable[T]]) -> T | None:
    """What `work` returns; None if the stream ended first, of which the library says nothing."""
    with stream.while_open(), suppress(*_GONE):
        return await work()
    return None


# Frames -------------------------------------------------------------------------------------------

_WHOLE_TEXT: Final = 0x81
_SHORT_MAX: Final = 125
_TWO_BYTES_MAX: Final = 0xFFFF
_TWO_BYTES, _EIGHT_BYTES = 126, 127


def unmasked(text: str) -> bytes:
    """A message of a server's, in one frame; the library takes ten times as long for it."""
    payload = text.encode()
    size = len(payload)
    if size <= _SHORT_MAX:
        return bytes((_WHOLE_TEXT, size)) + payload
    if size <= _TWO_BYTES_MAX:
        return struct.pack("!BBH", _WHOLE_TEXT, _TWO_BYTES, size) + payload
    return struct.pack("!BBQ", _WHOLE_TEXT, _EIGHT_BYTES, size) + payload


def masking() -> Callable[[str], bytes]:
    """The same for a client, whose frames are masked."""
    encoder = Connection(ConnectionType.CLIENT)
    return lambda text: encoder.send(TextMessage(data=text))


# The socket ---------------------------------------------------------------------------------------


@attrs.define(eq=False)
class TrioSocket:
    """A `MessageSocket`; made by `client_socket` and `server_socket`."""

    _connection: WebSocketConnection
    _stream: WatchedStream
    _reader: _Reader
    _framed: Callable[[str], bytes] = attrs.field(init=False)
    _pings: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._framed = masking() if self._connection.is_client else unmasked

    @property
    def bytes_sent(self) -> int:
        """See `MessageSocket`."""
        return self._stream.bytes_sent

    async def send_texts(self, texts: Sequence[str]) -> None:
        """See `MessageSocket`; the library would send each by itself, and switch tasks for it."""
        rest = iter(texts)
        data, _ = self._next_chunk(rest)
        await self._send(data)
        while data := self._next_chunk(rest)[0]:
            await self._send(data)

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        """See `MessageSocket`; about a chunk of them."""
        self._check_there()
        if not self._stream.takes_at_once:
            return 0
        data, count = self._next_chunk(iter(texts))
        return count if self._stream.write_nowait(data) else 0

    @property
    def is_unfinished(self) -> bool:
        """See `MessageSocket`."""
        return self._stream.is_unfinished

    def _next_chunk(self, texts: Iterator[str]) -> tuple[bytes, int]:
        """The frames of the next messages, and how many these are."""
        frames: list[bytes] = []
        size = 0
        for text in texts:
            frames.append(self._framed(text))
            size += len(frames[-1])
            if size >= self._stream.chunk_bytes:
                break
        return b"".join(frames), len(frames)

    def _check_there(self) -> None:
        if self._connection.closed is not None:
            raise trio.BrokenResourceError("the peer is gone")

    async def _send(self, data: bytes) -> None:
        self._check_there()
        await self._stream.send_all(data)

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `MessageSocket`."""
        try:
            messages = await self._reader.messages.inbox.take()
        except trio.ClosedResourceError:
            raise SocketEnded(CloseCode.DONE) from None
        if not messages:
            raise self._ending()
        return cast("Sequence[bytes | Oversized]", messages)

    def _ending(self) -> SocketEnded:
        """Whose end it is: the library tells a peer's close and a peer's fault in the same way."""
        if self._reader.messages.has_binary:
            return SocketEnded(CloseCode.NOT_TEXT, is_ours=True)
        said = self._connection.closed
        if said is None:
            return SocketEnded(CloseCode.PROTOCOL_BROKEN, is_ours=True)
        is_ours = said.code in _FOUND and not self._stream.has_said_close
        return SocketEnded(said.code, said.reason or "", is_ours=is_ours)

    async def ping(self) -> None:
        """See `MessageSocket`."""
        self._pings += 1
        try:
            await self._connection.ping(struct.pack("!I", self._pings))
        except _GONE:
            raise trio.BrokenResourceError("the peer is gone") from None

    def is_silent_since(self, moment: float) -> bool:
        """See `MessageSocket`; of a peer to which nothing more can be said, nothing is hoped.

        Who has still to read what was sent before a ping, as others see to, cannot answer that.
        """
        stream, since = self._stream, self._stream.listening_since
        has_heard = since is None or since > moment
        return stream.is_cut or not (has_heard or stream.is_writing)

    async def close(self, code: CloseCode, reason: str) -> None:
        """See `MessageSocket`."""
        inbox = self._reader.messages.inbox
        inbox.end()
        inbox.close()
        if self._connection.closed is None and self._reader.fault is None:
            await self._shake_hands(code, reason)
        elif self._ending().is_ours:
            await self._reader.stop()
            await self._break_off(code, reason)

    async def _shake_hands(self, code: CloseCode, reason: str) -> None:
        async def close() -> None:
            await self._connection.aclose(code, close_reason(reason) or None)

        await _before_the_end(self._stream, close)

    async def _break_off(self, code: CloseCode, reason: str) -> None:
        """Tell what the library has not told, and let it be read: unread bytes reset a socket."""
        stream = self._stream
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            if not stream.has_said_close:
                kind = (
                    ConnectionType.CLIENT if self._connection.is_client else ConnectionType.SERVER
                )
                frame = CloseConnection(code=code, reason=close_reason(reason))
                await stream.send_all(Connection(kind).send(frame))
            await linger(stream.stream)


async def linger(stream: trio.abc.Stream) -> None:
    """Let the peer read what was sent, until it closes; to be called in a bounded time.

    Raises:
        trio.BrokenResourceError: It is gone already.
    """
    if isinstance(stream, trio.abc.HalfCloseableStream):
        await stream.send_eof()
    while await stream.receive_some():
        pass


# How one is opened --------------------------------------------------------------------------------


@asynccontextmanager
async def client_socket(
    stream: trio.abc.Stream,
    *,
    host: str,
    target: str,
    subprotocols: Sequence[str],
    fields: Sequence[tuple[bytes, bytes]],
    limits: Limits,
) -> AsyncGenerator[TrioSocket, None]:
    """A client's end of a WebSocket over `stream`; both are closed with the block.

    Args:
        stream: It is connected, and nothing was said on it.
        host: What goes into the header `Host`.
        target: The path and the query.
        subprotocols: Those that are offered.
        fields: Header fields of the request, beside what WebSocket wants.
        limits: How large a message may be.

    Raises:
        HandshakeFailed: The server refused, or is none.
    """
    async with _reading(stream, limits) as reader:

        async def handshake() -> WebSocketConnection:
            return await wrap_client_stream(
                cast("trio.Nursery", reader),
                cast("trio.SocketStream", reader.stream),
                host,
                target,
                subprotocols=subprotocols,
                extra_headers=list(fields),
                receive_buffer_size=limits.messages.chunk_bytes,
            )

        connection = await _before_the_end(reader.stream, handshake)
        if connection is None:
            raise await _rejection(reader)
        yield _opened(connection, reader)


async def _rejection(reader: _Reader) -> HandshakeFailed:
    await reader.stop()
    fault = reader.fault
    if isinstance(fault, ConnectionRejected):
        return HandshakeFailed("refused", status=fault.status_code, body=fault.body or b"")
    return HandshakeFailed("hung up, or does not speak WebSocket")


@asynccontextmanager
async def server_socket(
    stream: trio.abc.Stream,
    *,
    head: bytes,
    rest: bytes = b"",
    subprotocol: str | None,
    limits: Limits,
) -> AsyncGenerator[TrioSocket, None]:
    """A server's end of a WebSocket over `stream`; both are closed with the block.

    Args:
        stream: Of which head and rest were read before.
        head: That of the request, which was found to be good.
        rest: What came behind it.
        subprotocol: The one that is chosen.
        limits: How large a message may be.

    Raises:
        HandshakeFailed: The client has gone away, or its request was none after all.
    """
    async with _reading(stream, limits, head, rest) as reader:

        async def handshake() -> WebSocketConnection:
            asked: WebSocketRequest = await wrap_server_stream(
                cast("trio.Nursery", reader),
                reader.stream,
                receive_buffer_size=limits.messages.chunk_bytes,
            )
            return await asked.accept(subprotocol=subprotocol)

        connection = await _before_the_end(reader.stream, handshake)
        if connection is None:
            raise HandshakeFailed("the client has gone away")
        yield _opened(connection, reader)


@asynccontextmanager
async def _reading(
    stream: trio.abc.Stream, limits: Limits, head: bytes = b"", rest: bytes = b""
) -> AsyncGenerator[_Reader, None]:
    """Round the library's task; what the block raises leaves it bare."""
    raised: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                messages = _Messages(
                    limits.messages.bytes_max, ReceivedQueue(limits.messages.chunk_bytes)
                )
                yield _Reader(
                    nursery,
                    WatchedStream(stream, head, rest, limits.messages.chunk_bytes),
                    messages,
                )
            except Exception as error:
                raised = error
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)
    if raised is not None:
        raise raised


def _opened(connection: WebSocketConnection, reader: _Reader) -> TrioSocket:
    reader.stream.opened()
    return TrioSocket(connection, reader.stream, reader)
