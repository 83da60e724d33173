"""WebSockets over trio-websocket; no other module imports that library.

trio-websocket does framing, masking and the handshakes. Some behaviour of version 0.12 does not fit
a server that is exposed to hostile clients. So it gets three substitutes from this module: the
stream `WatchedStream`, the nursery `_Reader` for its only task, and the queue `_Messages`.

- An error in trio-websocket's reader task would cancel the nursery that holds the connection; the
  substitute nursery keeps the error.
- trio-websocket does not notice a peer that disconnects during the handshake; `WatchedStream` does.
- After a protocol violation, trio-websocket closes the stream without a close frame, or leaves it
  open; `TrioSocket.close` ends every connection properly.
- After a cancelled send, trio-websocket would send the next message after half a message;
  `WatchedStream` then fails every send.
- trio-websocket's queue is bounded by messages, and it closes the connection for one that is too
  large; `_Messages` is bounded by bytes, and skips the rest of a too large message.

The last substitution replaces one private method, `WebSocketConnection._handle_message_event`,
because trio-websocket has no public hook for received messages; its queue behaves as issue 82 of
trio-websocket decided. `_Reader` checks that the method exists.
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
from functools import partial
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
from mcp_trio._protocol.shares import Shares
from mcp_trio._protocol.websocket import CloseCode, close_reason
from mcp_trio._transports.channel import ReceivedQueue
from mcp_trio._transports.concurrency import FairSemaphore
from mcp_trio._transports.socket_bytes import SocketEnds, Wire, WireStream
from mcp_trio._transports.websocket import SocketEnded
from mcp_trio.limits import MIB, Limits

_CLOSE_FRAME: Final = b"\x88"

# The longest answer to a handshake that a client reads.
_ANSWER_BYTES_MAX: Final = MIB

# The most that is read between two checkpoints. It may hold a frame in every 6 bytes, each of which
# takes about 15 microseconds. After so many messages, or parts of one, a connection waits for its
# turn among all connections of the event loop, so that a flood on many of them delays no others.
_READ_BYTES_MAX: Final = 8 * 1024
_PARTS_PER_TURN: Final = 64
_TURNS: Final = trio.lowlevel.RunVar[FairSemaphore]("mcp_trio_websocket_turns")


async def _turn(client: str | None) -> None:
    """Wait until a connection of a client may go on; one of each client does so at a time."""
    try:
        turns = _TURNS.get()
    except LookupError:
        turns = FairSemaphore(Shares(client_max=1, factor=2, setting=""))
        _TURNS.set(turns)
    await turns.acquire(client)
    turns.release(client)


@attrs.define(eq=False, repr=False)
class WatchedStream(trio.abc.Stream):
    """The stream that trio-websocket uses: it observes both directions of a connection.

    Sends of several tasks do not mix, and nothing is sent after a send that was cut short.

    Attributes:
        stream: The underlying stream.
        request: At a server, the request that was read from the stream before.
        rest: The bytes that were read after the request.
        chunk_bytes: The size of a single write, so that `bytes_sent` shows progress.
        listening_since: The time at which trio-websocket's current read began; None between reads.
        bytes_sent: The number of bytes passed to the underlying stream.
        is_cut: Whether a send was cut short, so that nothing more can be sent.
        is_writing: Whether a send is in progress.
        has_sent_close: Whether a close frame was sent, or its sending was tried.
    """

    stream: trio.abc.Stream
    request: bytes
    rest: bytes
    chunk_bytes: int
    listening_since: float | None = attrs.field(default=None, init=False)
    bytes_sent: int = attrs.field(default=0, init=False)
    is_cut: bool = attrs.field(default=False, init=False)
    is_writing: bool = attrs.field(default=False, init=False)
    has_sent_close: bool = attrs.field(default=False, init=False)
    _tail: bytes = attrs.field(default=b"", init=False)
    _write_at_once: Callable[[bytes], int] | None = attrs.field(init=False)
    _written: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _while_open: trio.CancelScope | None = attrs.field(default=None, init=False)
    _has_request: bool = attrs.field(init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _bytes_left: int | None = attrs.field(default=_ANSWER_BYTES_MAX, init=False)

    def __attrs_post_init__(self) -> None:
        self._has_request = bool(self.request)
        self._write_at_once = getattr(self.stream, "write_nowait", None)

    def opened(self) -> None:
        """End the limit on the handshake's length, and let reads pass the request."""
        self._bytes_left = None
        self._answered.set()

    def end(self) -> None:
        """Make all later reads return end of file, and cancel the block of `while_open`."""
        self._has_ended = True
        if self._while_open is not None:
            self._while_open.cancel()

    @contextmanager
    def while_open(self) -> Generator[None]:
        """Return a context that cancels its block when the stream ends."""
        with trio.CancelScope() as self._while_open:
            if self._has_ended:
                self._while_open.cancel()
            yield
        self._while_open = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send data in pieces of `chunk_bytes`, after any send in progress."""
        self.has_sent_close = self.has_sent_close or bytes(data[:1]) == _CLOSE_FRAME
        await trio.lowlevel.checkpoint_if_cancelled()
        while self.is_writing:
            await self._written.park()
        if self.is_cut:
            raise trio.BrokenResourceError(
                "an earlier message was cut short: nothing more can be sent"
            )
        try:
            await self._write(b"".join([self._tail, data]) if self._tail else data)
        finally:
            self._tail = b""

    @property
    def is_unfinished(self) -> bool:
        """Return whether a part of the last `write_nowait` is still to be sent, by `send_all`."""
        return bool(self._tail)

    @property
    def takes_at_once(self) -> bool:
        """Return whether `write_nowait` may be called."""
        busy = self.is_writing or self.is_cut or self._tail
        return self._write_at_once is not None and not busy

    def write_nowait(self, data: bytes) -> bool:
        """Write without waiting; return False if the kernel accepts nothing.

        If the kernel accepts only a part, the next `send_all` sends the rest first.

        Raises:
            trio.BrokenResourceError: The peer has disconnected.
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
            if isinstance(error, trio.ClosedResourceError):  # this side has closed it
                raise trio.BrokenResourceError("the connection was closed") from None
            raise
        finally:
            self.is_writing = False
            self._written.unpark_all()

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the underlying stream can send; trio-websocket does not use this."""
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Receive data, beginning with `request` and `rest`."""
        if self._has_ended:  # trio-websocket reads on after it has closed
            return b""
        if self.request:
            data, self.request = self.request, b""
            await trio.lowlevel.checkpoint()
            return data
        if self._has_request:  # trio-websocket loses data that it reads before it has answered
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
        if self._bytes_left is not None:  # the limit on the handshake's length
            self._bytes_left -= len(data)
        if not data or (self._bytes_left is not None and self._bytes_left < 0):
            self.end()
            return b""
        return data

    async def aclose(self) -> None:
        """End reading; the owner of the underlying stream closes that."""
        self.end()
        await trio.lowlevel.checkpoint()


def over_wire(stream: trio.abc.Stream, limits: Limits) -> trio.abc.Stream:
    """Return a `WireStream` in place of a `trio.SocketStream`; return other streams unchanged."""
    if not isinstance(stream, trio.SocketStream):
        return stream
    ends = SocketEnds(fd=stream.socket.detach(), chunk_bytes=limits.messages.chunk_bytes)
    return WireStream(Wire(ends=ends, limits=limits))


T = TypeVar("T")

_CONNECTION_ERRORS: Final = (ConnectionClosed, LocalProtocolError, trio.ClosedResourceError)
# The violations of the protocol that trio-websocket detects.
_DETECTED_VIOLATIONS: Final = frozenset({CloseCode.PROTOCOL_ERROR, CloseCode.INVALID_PAYLOAD})

# The private method of trio-websocket's connection that gets each message; see the module.
_HANDLER: Final = "_handle_message_event"


class HandshakeFailed(Exception):  # noqa: N818  it reports the peer's behaviour
    """A WebSocket handshake failed.

    Attributes:
        status: The HTTP status of the server's response; None without a response.
        body: The body of that response.
    """

    def __init__(self, text: str, *, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(text)
        self.status = status
        self.body = body


# Substitutes for parts of trio-websocket


@attrs.define(eq=False, repr=False)
class _Messages:
    """The queue of received messages, in place of trio-websocket's."""

    message_bytes_max: int
    fragments_max: int
    inbox: ReceivedQueue
    client: str | None
    ending: SocketEnded | None = attrs.field(default=None, init=False)
    has_flood: bool = attrs.field(default=False, init=False)
    _held: bytearray = attrs.field(factory=bytearray, init=False)
    _fragments: int = attrs.field(default=0, init=False)
    _parts: int = attrs.field(default=0, init=False)
    _is_skipping: bool = attrs.field(default=False, init=False)

    async def take(self, event: TextMessage | BytesMessage) -> None:
        """Queue a message, or a piece of one; wait for room before trio-websocket reads on."""
        if isinstance(event, BytesMessage):
            self._end(SocketEnded(CloseCode.UNSUPPORTED_DATA, is_ours=True))
            return
        self._fragments = 0 if event.message_finished else self._fragments + 1
        if self._fragments >= self.fragments_max:
            reason = f"limits.websocket.fragments_max={self.fragments_max}"
            self._end(SocketEnded(CloseCode.MESSAGE_TOO_BIG, reason, is_ours=True))
            self.has_flood = True
            await trio.sleep_forever()  # `close` cancels the reader, which parses no more of it
        if not self._is_skipping:
            self._held += event.data.encode()
            if event.message_finished or len(self._held) > self.message_bytes_max:
                frame = bounded(bytes(self._held), message_bytes_max=self.message_bytes_max)
                self._is_skipping = isinstance(frame, Oversized)
                self._held = bytearray()
                self.inbox.put(frame)
        if event.message_finished:
            self._is_skipping = False
        self._parts += 1
        if self._parts % _PARTS_PER_TURN == 0:
            await _turn(self.client)
        await self.inbox.room()

    def _end(self, ending: SocketEnded) -> None:
        self.ending = self.ending or ending
        self.inbox.end()


@attrs.define(eq=False, repr=False)
class _Reader:
    """The nursery that trio-websocket starts its reader task in; it keeps the task's error."""

    nursery: trio.Nursery
    stream: WatchedStream
    messages: _Messages
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    error: Exception | None = attrs.field(default=None, init=False)
    _done: trio.Event = attrs.field(factory=trio.Event, init=False)

    def start_soon(self, read: Callable[[], Awaitable[None]]) -> None:
        """Start the reader task; trio-websocket calls this with a method of its connection."""
        connection = cast("WebSocketConnection", cast("MethodType", read).__self__)
        if not hasattr(connection, _HANDLER):
            raise RuntimeError(
                f"this version of trio-websocket is not supported: it has no {_HANDLER}"
            )
        setattr(connection, _HANDLER, self.messages.take)
        self.nursery.start_soon(self._run, read)
        if connection.is_client:
            self.nursery.start_soon(self._watch, connection)

    async def _run(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            with self.scope:
                await read()
        except Exception as error:
            self.error = error
        finally:
            self.stream.end()
            self.messages.inbox.end()
            self._done.set()

    async def _watch(self, connection: WebSocketConnection) -> None:
        """End the queue when trio-websocket's own queue ends.

        At a client, the reader task may go on for long after the server's close frame.
        """
        with suppress(ConnectionClosed):
            await connection.get_message()
        self.messages.inbox.end()

    async def stop(self) -> None:
        """Cancel the reader task, and wait until it has finished."""
        self.scope.cancel()
        await self._done.wait()


async def _before_the_end(stream: WatchedStream, work: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of `work`; None if the stream ended first, or the connection failed."""
    with stream.while_open(), suppress(*_CONNECTION_ERRORS):
        return await work()
    return None


# Encoding of frames

_WHOLE_TEXT: Final = 0x81
_SHORT_MAX: Final = 125
_TWO_BYTES_MAX: Final = 0xFFFF
_TWO_BYTES, _EIGHT_BYTES = 126, 127


def unmasked(text: str) -> bytes:
    """Encode a server's text message as one frame, ten times as fast as wsproto (RFC 6455, 5.2)."""
    payload = text.encode()
    size = len(payload)
    if size <= _SHORT_MAX:
        return bytes((_WHOLE_TEXT, size)) + payload
    if size <= _TWO_BYTES_MAX:
        return struct.pack("!BBH", _WHOLE_TEXT, _TWO_BYTES, size) + payload
    return struct.pack("!BBQ", _WHOLE_TEXT, _EIGHT_BYTES, size) + payload


def masking() -> Callable[[str], bytes]:
    """Return a function that encodes a client's text messages, as masked frames."""
    encoder = Connection(ConnectionType.CLIENT)
    return lambda text: encoder.send(TextMessage(data=text))


# The open WebSocket


@attrs.define(eq=False, repr=False)
class TrioSocket:
    """A `MessageSocket` over trio-websocket, made by `client_socket` and `server_socket`."""

    _connection: WebSocketConnection
    _stream: WatchedStream
    _reader: _Reader
    _framed: Callable[[str], bytes] = attrs.field(init=False)
    _pings: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._framed = masking() if self._connection.is_client else unmasked

    @property
    def bytes_sent(self) -> int:
        """The number of bytes sent, which grows also in the middle of a message."""
        return self._stream.bytes_sent

    async def send_texts(self, texts: Sequence[str]) -> None:
        """Send messages in chunks; trio-websocket would send each one by itself."""
        rest = iter(texts)
        data, _ = self._next_chunk(rest)
        await self._send(data)
        while data := self._next_chunk(rest)[0]:
            await self._send(data)

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        """Send at most about a chunk of messages without waiting; return their number."""
        self._check_open()
        if not self._stream.takes_at_once:
            return 0
        data, count = self._next_chunk(iter(texts))
        return count if self._stream.write_nowait(data) else 0

    @property
    def is_unfinished(self) -> bool:
        """Return whether a message was sent in part; the next `send_texts` sends the rest."""
        return self._stream.is_unfinished

    def _next_chunk(self, texts: Iterator[str]) -> tuple[bytes, int]:
        """Return the encoded frames of the next messages, and their number."""
        frames: list[bytes] = []
        size = 0
        for text in texts:
            frames.append(self._framed(text))
            size += len(frames[-1])
            if size >= self._stream.chunk_bytes:
                break
        return b"".join(frames), len(frames)

    def _check_open(self) -> None:
        if self._connection.closed is not None:
            raise trio.BrokenResourceError("the peer is gone")

    async def _send(self, data: bytes) -> None:
        self._check_open()
        await self._stream.send_all(data)

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Return received messages; raise `SocketEnded` after the last one."""
        try:
            messages = await self._reader.messages.inbox.take()
        except trio.ClosedResourceError:
            raise SocketEnded(CloseCode.NORMAL_CLOSURE) from None
        if not messages:
            raise self._ending()
        return cast("Sequence[bytes | Oversized]", messages)

    def _ending(self) -> SocketEnded:
        """Return the end of the connection.

        trio-websocket reports a peer's close and a peer's protocol violation in the same way.
        """
        if self._reader.messages.ending is not None:
            return self._reader.messages.ending
        received_close = self._connection.closed
        if received_close is None:
            return SocketEnded(CloseCode.PROTOCOL_ERROR, is_ours=True)
        is_ours = received_close.code in _DETECTED_VIOLATIONS and not self._stream.has_sent_close
        return SocketEnded(received_close.code, received_close.reason or "", is_ours=is_ours)

    async def ping(self) -> None:
        """Ping the peer, and wait for the pong."""
        self._pings += 1
        try:
            await self._connection.ping(struct.pack("!I", self._pings))
        except _CONNECTION_ERRORS:
            raise trio.BrokenResourceError("the peer is gone") from None

    def is_silent_since(self, moment: float) -> bool:
        """Return whether this side has been reading since `moment` and has received nothing.

        A peer to which nothing can be sent any more counts as silent. A peer that is still reading
        earlier messages has not received the ping yet, and does not; slow sends have a time limit
        of their own.
        """
        stream, since = self._stream, self._stream.listening_since
        has_received = since is None or since > moment
        return stream.is_cut or not (has_received or stream.is_writing)

    async def close(self, code: CloseCode, reason: str) -> None:
        """Close with `code`, by a closing handshake unless the peer has closed already."""
        inbox = self._reader.messages.inbox
        inbox.end()
        inbox.close()
        is_read = self._reader.error is None and not self._reader.messages.has_flood
        if self._connection.closed is None and is_read:
            close = partial(self._connection.aclose, code, close_reason(reason) or None)
            await _before_the_end(self._stream, close)
        elif self._ending().is_ours:
            await self._reader.stop()
            stream, is_client = self._stream, self._connection.is_client
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if not stream.has_sent_close:  # as trio-websocket sends none
                    kind = ConnectionType.CLIENT if is_client else ConnectionType.SERVER
                    frame = CloseConnection(code=code, reason=close_reason(reason))
                    await stream.send_all(Connection(kind).send(frame))
                await linger(stream.stream)


async def linger(stream: trio.abc.Stream) -> None:
    """Send end of file, and drop input until the peer closes; the caller bounds the time.

    Closing a socket that holds unread bytes would reset the connection, and the peer might lose the
    last bytes that were sent.

    Raises:
        trio.BrokenResourceError: The peer has disconnected already.
    """
    if isinstance(stream, trio.abc.HalfCloseableStream):
        await stream.send_eof()
    while await stream.receive_some():
        pass


# Opening a WebSocket


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
    """Open a WebSocket as a client; leaving the context closes it and `stream`.

    Args:
        stream: A fresh connection to the server.
        host: The value of the `Host` header.
        target: The path and the query.
        subprotocols: The subprotocols to offer.
        fields: Headers of the request, beside those of the handshake.
        limits: The limits of the WebSocket.

    Raises:
        HandshakeFailed: The server rejected the handshake, or is not a WebSocket server.
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
                receive_buffer_size=min(limits.messages.chunk_bytes, _READ_BYTES_MAX),
            )

        connection = await _before_the_end(reader.stream, handshake)
        if connection is None:
            await reader.stop()
            error = reader.error
            if isinstance(error, ConnectionRejected):
                raise HandshakeFailed(
                    "the server rejected the handshake",
                    status=error.status_code,
                    body=error.body or b"",
                )
            raise HandshakeFailed("disconnected during the handshake, or is not a WebSocket server")
        yield _opened(connection, reader)


@asynccontextmanager
async def server_socket(
    stream: trio.abc.Stream,
    *,
    request: bytes,
    rest: bytes = b"",
    subprotocol: str | None,
    limits: Limits,
    client: str | None = None,
) -> AsyncGenerator[TrioSocket, None]:
    """Accept a WebSocket as a server; leaving the context closes it and `stream`.

    Args:
        stream: The connection, from which `request` and `rest` were read before.
        request: The encoded handshake request, which was checked.
        rest: The bytes after the request.
        subprotocol: The chosen subprotocol.
        limits: The limits of the WebSocket.
        client: The network of the client.

    Raises:
        HandshakeFailed: The client has disconnected, or its handshake is malformed.
    """
    async with _reading(stream, limits, request, rest, client) as reader:

        async def handshake() -> WebSocketConnection:
            asked: WebSocketRequest = await wrap_server_stream(
                cast("trio.Nursery", reader),
                reader.stream,
                receive_buffer_size=min(limits.messages.chunk_bytes, _READ_BYTES_MAX),
            )
            return await asked.accept(subprotocol=subprotocol)

        connection = await _before_the_end(reader.stream, handshake)
        if connection is None:
            raise HandshakeFailed("the client has disconnected")
        yield _opened(connection, reader)


@asynccontextmanager
async def _reading(
    stream: trio.abc.Stream,
    limits: Limits,
    request: bytes = b"",
    rest: bytes = b"",
    client: str | None = None,
) -> AsyncGenerator[_Reader, None]:
    """Return a context around the reader task; an error of its block leaves it without a group."""
    raised: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                messages = _Messages(
                    limits.messages.bytes_max,
                    limits.websocket.fragments_max,
                    ReceivedQueue(limits.messages.chunk_bytes),
                    client,
                )
                yield _Reader(
                    nursery,
                    WatchedStream(stream, request, rest, limits.messages.chunk_bytes),
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
