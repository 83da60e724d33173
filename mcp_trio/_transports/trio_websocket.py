"""WebSockets over trio-websocket: a client, and the server's side of a handshake.

No other module imports that library.

trio-websocket does framing, masking and the handshakes. Some behaviour of version 0.12 does not fit
a server that is exposed to hostile clients. So it gets substitutes from this module:
`WatchedStream` for its stream, and `_Reader` for the nursery of its only task and for its queue.

- An error in trio-websocket's reader task would cancel the nursery that holds the connection; the
  substitute nursery keeps the error.
- trio-websocket does not notice a peer that disconnects during the handshake; `WatchedStream` does.
- After a protocol violation, trio-websocket closes the stream without a close frame, or leaves it
  open; `_TrioSocket.close` ends every connection properly.
- After a cancelled send, trio-websocket would send the next message after half a message;
  `WatchedStream` then fails every send.
- trio-websocket's queue is bounded by messages, and it closes the connection for one that is too
  large; the queue of `_Reader` is bounded by bytes, and skips the rest of a too large message.

The last substitution replaces one private method, `WebSocketConnection._handle_message_event`,
because trio-websocket has no public hook for received messages; its queue behaves as issue 82 of
trio-websocket decided. `_Reader` checks that the method exists.
"""

import functools
import math
import ssl
import struct
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from string import punctuation
from types import MethodType
from typing import Final, NoReturn, TypeVar, cast
from urllib.parse import quote, urlsplit

import attrs
import msgspec
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
from mcp_trio._protocol.http_headers import HttpRequest, encoded_headers
from mcp_trio._protocol.http_requests import Rejection, text_of_body
from mcp_trio._protocol.shares import Shares, network_of
from mcp_trio._protocol.websocket import (
    CloseCode,
    bearer_header,
    close_reason,
    offered_subprotocols,
)
from mcp_trio._transports.buffered_sockets import (
    BufferedSocket,
    BufferedSocketStream,
    ConnectedSocket,
)
from mcp_trio._transports.channel import ReceivedQueue, text_with_cause
from mcp_trio._transports.concurrency import FairSemaphore
from mcp_trio._transports.http1 import encoded_last_response
from mcp_trio._transports.http_response import TooManyBodiesError, UnfinishedBody
from mcp_trio._transports.websocket import SocketEnd, WebSocketChannel, start_channel
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, MIB, Limits

T = TypeVar("T")

_CLOSE_FRAME: Final = b"\x88"
_CONNECTION_ERRORS: Final = (ConnectionClosed, LocalProtocolError, trio.ClosedResourceError)

# The longest response to a handshake that a client reads.
_RESPONSE_BYTES_MAX: Final = MIB

# The most that is read between two checkpoints. It may hold a frame in every 6 bytes, each of which
# takes about 15 microseconds.
_READ_BYTES_MAX: Final = 8 * 1024

# After this number of messages, or parts of messages, a connection waits for its turn among all
# connections of the event loop, so that a flood on many of them delays no others.
_PARTS_PER_TURN: Final = 64
_TURNS: Final = trio.lowlevel.RunVar[FairSemaphore]("mcp_trio_websocket_turns")


async def _turn(network: str | None) -> None:
    """Wait until a connection may go on; one from each network does so at a time."""
    try:
        turns = _TURNS.get()
    except LookupError:
        turns = FairSemaphore(Shares(client_max=1, factor=2, setting=""))
        _TURNS.set(turns)
    await turns.acquire(network)
    turns.release(network)


@attrs.define(eq=False, repr=False)
class WatchedStream(trio.abc.Stream):
    """The stream that trio-websocket uses: it observes both directions of a connection.

    Sends of several tasks do not mix, and nothing is sent after a send that was cut short.

    Attributes:
        request: At a server, the request that was read from the stream before.
        rest: The bytes that were read after the request.
        chunk_bytes: The size of a single write, so that `bytes_sent` shows progress.
        listening_since: The time at which trio-websocket's current read began; None between reads.
        bytes_sent: The number of bytes passed to the underlying stream.
        is_cut: Whether a send was cut short, so that nothing more can be sent.
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
    # The part of the last `write_nowait` that is still to be sent.
    _tail: bytes = attrs.field(default=b"", init=False)
    _write_without_waiting: Callable[[bytes], int] | None = attrs.field(init=False)
    _written: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _while_open: trio.CancelScope | None = attrs.field(default=None, init=False)
    _has_request: bool = attrs.field(init=False)
    _answered: trio.Event = attrs.field(factory=trio.Event, init=False)
    _bytes_left: int | None = attrs.field(default=_RESPONSE_BYTES_MAX, init=False)

    def __attrs_post_init__(self) -> None:
        self._has_request = bool(self.request)
        self._write_without_waiting = getattr(self.stream, "write_nowait", None)

    def mark_open(self) -> None:
        """End the limit on the handshake's length, and let reads pass the request."""
        self._bytes_left = None
        self._answered.set()

    def end(self) -> None:
        """Make all later reads return end of file, and cancel `run_while_open`."""
        self._has_ended = True
        if self._while_open is not None:
            self._while_open.cancel()

    async def run_while_open(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return the result of `work`; None if the stream ends first, or the connection fails."""
        with trio.CancelScope() as self._while_open, suppress(*_CONNECTION_ERRORS):
            if self._has_ended:
                self._while_open.cancel()
            return await work()
        return None

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
        self.is_writing = True
        try:
            whole = memoryview(b"".join([self._tail, data]) if self._tail else data)
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
            self._tail = b""
            self.is_writing = False
            self._written.unpark_all()

    @property
    def is_unfinished(self) -> bool:
        """True if a part of the last `write_nowait` is still to be sent, by `send_all`."""
        return bool(self._tail)

    @property
    def can_write_nowait(self) -> bool:
        """True if `write_nowait` may be called."""
        busy = self.is_writing or self.is_cut or self._tail
        return self._write_without_waiting is not None and not busy

    def write_nowait(self, data: bytes) -> bool:
        """Write without waiting; return False if the kernel accepts nothing.

        If the kernel accepts only a part, the next `send_all` sends the rest first.

        Raises:
            trio.BrokenResourceError: The peer has disconnected.
        """
        assert self._write_without_waiting is not None
        written = self._write_without_waiting(data)
        self.bytes_sent += written
        if written:
            self._tail = data[written:]
        return written > 0

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


# The violations of the protocol that trio-websocket detects.
_DETECTED_VIOLATIONS: Final = frozenset({CloseCode.PROTOCOL_ERROR, CloseCode.INVALID_PAYLOAD})

# The private method of trio-websocket's connection that gets each message; the module's docstring
# says why it is replaced.
_HANDLER: Final = "_handle_message_event"


# Substitutes for parts of trio-websocket


@attrs.define(eq=False, repr=False)
class _Reader:
    """The nursery that trio-websocket starts its reader task in, and the queue of what it reads.

    Attributes:
        unfinished: Counts the bytes of the incomplete message; None at a client.
        inbox: The received messages, in place of trio-websocket's queue.
        ending: The violation of the protocol because of which no more messages are queued.
        is_over_limit: Whether a message has exceeded a limit, so that the rest is not parsed.
        error: The error of the reader task.
    """

    nursery: trio.Nursery
    stream: WatchedStream
    limits: Limits
    network: str | None
    unfinished: UnfinishedBody | None
    inbox: ReceivedQueue = attrs.field(init=False)
    ending: SocketEnd | None = attrs.field(default=None, init=False)
    is_over_limit: bool = attrs.field(default=False, init=False)
    error: Exception | None = attrs.field(default=None, init=False)
    _incomplete: bytearray = attrs.field(factory=bytearray, init=False)
    _fragments: int = attrs.field(default=0, init=False)
    _parts: int = attrs.field(default=0, init=False)
    _is_skipping: bool = attrs.field(default=False, init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _done: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self.inbox = ReceivedQueue(self.limits.messages.chunk_bytes)

    def start_soon(self, read: Callable[[], Awaitable[None]]) -> None:
        """Start the reader task; trio-websocket calls this with a method of its connection."""
        connection = cast("WebSocketConnection", cast("MethodType", read).__self__)
        if not hasattr(connection, _HANDLER):
            raise RuntimeError(
                f"this version of trio-websocket is not supported: it has no {_HANDLER}"
            )
        setattr(connection, _HANDLER, self._queue)
        self.nursery.start_soon(self._run, read)
        if connection.is_client:
            self.nursery.start_soon(self._watch, connection)

    async def _run(self, read: Callable[[], Awaitable[None]]) -> None:
        try:
            with self._scope:
                await read()
        except Exception as error:
            self.error = error
        finally:
            if self.unfinished is not None:
                self.unfinished.release()
            self.stream.end()
            self.inbox.end()
            self._done.set()

    async def _watch(self, connection: WebSocketConnection) -> None:
        """End the queue when trio-websocket's own queue ends.

        At a client, the reader task may go on for long after the server's close frame.
        """
        with suppress(ConnectionClosed):
            await connection.get_message()
        self.inbox.end()

    async def _queue(self, event: TextMessage | BytesMessage) -> None:
        """Queue a message, or a piece of one; wait for room before trio-websocket reads on."""
        if isinstance(event, BytesMessage):
            self._end(SocketEnd(CloseCode.UNSUPPORTED_DATA, is_violation=True))
            return
        self._fragments = 0 if event.message_finished else self._fragments + 1
        fragments_max = self.limits.websocket.fragments_max
        if self._fragments >= fragments_max:
            reason = f"limits.websocket.fragments_max={fragments_max}"
            await self._stop_parsing(CloseCode.MESSAGE_TOO_BIG, reason)
        if not self._is_skipping:
            self._incomplete += event.data.encode()
            bytes_max = self.limits.messages.bytes_max
            if event.message_finished or len(self._incomplete) > bytes_max:
                message = bounded(bytes(self._incomplete), message_bytes_max=bytes_max)
                self._is_skipping = isinstance(message, Oversized)
                self._incomplete = bytearray()
                self.inbox.put(message)
            if self.unfinished is not None:
                await self._count_incomplete(self.unfinished)
        if event.message_finished:
            self._is_skipping = False
        self._parts += 1
        if self._parts % _PARTS_PER_TURN == 0:
            await _turn(self.network)
        await self.inbox.room()

    async def _count_incomplete(self, unfinished: UnfinishedBody) -> None:
        if not self._incomplete:
            unfinished.release()
            return
        try:
            unfinished.count(len(self._incomplete))
        except TooManyBodiesError as error:
            self._incomplete = bytearray()
            unfinished.release()
            await self._stop_parsing(CloseCode.TRY_AGAIN_LATER, str(error))

    async def _stop_parsing(self, code: CloseCode, reason: str) -> NoReturn:
        """End the queue, and wait: `close` cancels the reader, which parses no more."""
        self._end(SocketEnd(code, reason, is_violation=True))
        self.is_over_limit = True
        await trio.sleep_forever()

    def _end(self, ending: SocketEnd) -> None:
        self.ending = self.ending or ending
        self.inbox.end()

    async def stop(self) -> None:
        """Cancel the reader task, and wait until it has finished."""
        self._scope.cancel()
        await self._done.wait()


# Encoding of frames

_WHOLE_TEXT: Final = 0x81
_SHORT_MAX: Final = 125
_TWO_BYTES_MAX: Final = 0xFFFF
_TWO_BYTES, _EIGHT_BYTES = 126, 127


def encode_unmasked(text: str) -> bytes:
    """Encode a server's text message as one frame, ten times as fast as wsproto (RFC 6455, 5.2)."""
    payload = text.encode()
    size = len(payload)
    if size <= _SHORT_MAX:
        return bytes((_WHOLE_TEXT, size)) + payload
    if size <= _TWO_BYTES_MAX:
        return struct.pack("!BBH", _WHOLE_TEXT, _TWO_BYTES, size) + payload
    return struct.pack("!BBQ", _WHOLE_TEXT, _EIGHT_BYTES, size) + payload


def masked_encoder() -> Callable[[str], bytes]:
    """Return a function that encodes a client's text messages, as masked frames."""
    encoder = Connection(ConnectionType.CLIENT)
    return lambda text: encoder.send(TextMessage(data=text))


# The open WebSocket


@attrs.define(eq=False, repr=False)
class _TrioSocket:
    """A `MessageSocket` over trio-websocket, whose handshake is complete."""

    _connection: WebSocketConnection
    _reader: _Reader
    _stream: WatchedStream = attrs.field(init=False)
    _encode: Callable[[str], bytes] = attrs.field(init=False)
    _pings: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._stream = self._reader.stream
        self._stream.mark_open()
        self._encode = masked_encoder() if self._connection.is_client else encode_unmasked

    @property
    def bytes_sent(self) -> int:
        return self._stream.bytes_sent

    async def send_texts(self, texts: Sequence[str]) -> None:
        """Send messages in chunks; trio-websocket would send each one by itself."""
        rest = iter(texts)
        data, _ = self._next_chunk(rest)
        await self._send(data)
        while data := self._next_chunk(rest)[0]:
            await self._send(data)

    def send_texts_nowait(self, texts: Iterable[str]) -> int:
        self._check_open()
        if not self._stream.can_write_nowait:
            return 0
        data, count = self._next_chunk(iter(texts))
        return count if self._stream.write_nowait(data) else 0

    @property
    def is_unfinished(self) -> bool:
        return self._stream.is_unfinished

    def _next_chunk(self, texts: Iterator[str]) -> tuple[bytes, int]:
        """Return the encoded frames of the next messages, and their number."""
        frames: list[bytes] = []
        size = 0
        for text in texts:
            frames.append(self._encode(text))
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
        return cast("Sequence[bytes | Oversized]", await self._reader.inbox.take())

    @property
    def ending(self) -> SocketEnd:
        # trio-websocket reports a peer's close and a peer's protocol violation in the same way.
        if self._reader.ending is not None:
            return self._reader.ending
        received_close = self._connection.closed
        if received_close is None:
            return SocketEnd(CloseCode.PROTOCOL_ERROR, is_violation=True)
        is_violation = (
            received_close.code in _DETECTED_VIOLATIONS and not self._stream.has_sent_close
        )
        return SocketEnd(
            received_close.code, received_close.reason or "", is_violation=is_violation
        )

    async def ping(self) -> None:
        self._pings += 1
        try:
            await self._connection.ping(struct.pack("!I", self._pings))
        except _CONNECTION_ERRORS:
            raise trio.BrokenResourceError("the peer is gone") from None

    def is_silent_since(self, moment: float) -> bool:
        # A peer to which nothing can be sent any more counts as silent. A peer that is still
        # reading earlier messages has not received the ping yet, and does not; slow sends have a
        # time limit of their own.
        stream, since = self._stream, self._stream.listening_since
        has_received = since is None or since > moment
        return stream.is_cut or not (has_received or stream.is_writing)

    async def close(self, code: CloseCode, reason: str) -> None:
        """Close with `code`, by a closing handshake unless the peer has closed already."""
        self._reader.inbox.close()
        is_read = self._reader.error is None and not self._reader.is_over_limit
        if self._connection.closed is None and is_read:
            close = partial(self._connection.aclose, code, close_reason(reason) or None)
            await self._stream.run_while_open(close)
        elif self.ending.is_violation:
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
async def _reading(
    stream: trio.abc.Stream,
    limits: Limits,
    request: bytes = b"",
    rest: bytes = b"",
    network: str | None = None,
    unfinished: UnfinishedBody | None = None,
) -> AsyncGenerator[_Reader, None]:
    """Return a context around the reader task; an error of its block leaves it without a group."""
    raised: Exception | None = None
    try:
        async with trio.open_nursery() as nursery:
            try:
                watched = WatchedStream(stream, request, rest, limits.messages.chunk_bytes)
                yield _Reader(nursery, watched, limits, network, unfinished)
            except Exception as error:
                raised = error
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)
    if raised is not None:
        raise raised


# The server's handshake


class StreamUpgrade(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The `Upgrade` of a handshake request that was read from a stream.

    Attributes:
        encoded: The same request, encoded.
        rest: The bytes that were read from the stream after the request.
        bodies: The bytes of the unfinished messages and request bodies of all clients.
    """

    stream: trio.abc.Stream
    request: HttpRequest
    encoded: bytes
    rest: bytes = b""
    limits: Limits
    bodies: Shares

    async def reject(self, rejection: Rejection) -> None:
        """Answer with an HTTP error, and wait until the client has closed the connection.

        This takes at most `limits.shutdown.close_seconds`.
        """
        seconds = self.limits.shutdown.close_seconds
        with trio.move_on_after(seconds), suppress(trio.BrokenResourceError):
            await self.stream.send_all(encoded_last_response(*rejection.response()))
            await linger(self.stream)

    @asynccontextmanager
    async def opened(self, subprotocol: str | None) -> AsyncGenerator[_TrioSocket, None]:
        """Accept the handshake; leaving the context closes the WebSocket and the stream.

        Raises:
            trio.BrokenResourceError: The client has disconnected, or its handshake is malformed.
        """
        network = network_of(self.request.client)
        unfinished = UnfinishedBody(self.bodies, network)
        async with _reading(
            self.stream, self.limits, self.encoded, self.rest, network, unfinished
        ) as reader:

            async def handshake() -> WebSocketConnection:
                request: WebSocketRequest = await wrap_server_stream(
                    cast("trio.Nursery", reader),
                    reader.stream,
                    receive_buffer_size=min(self.limits.messages.chunk_bytes, _READ_BYTES_MAX),
                )
                return await request.accept(subprotocol=subprotocol)

            connection = await reader.stream.run_while_open(handshake)
            if connection is None:
                raise trio.BrokenResourceError("the client has disconnected")
            yield _TrioSocket(connection, reader)


# The client


_PORTS: Final = {"ws": 80, "wss": 443}

_trusted_by_system: Final = functools.cache(ssl.create_default_context)  # reads a large file


async def open_websocket_channel(
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> WebSocketChannel:
    """Open a WebSocket to the server at `url`, and return a channel over it.

    Proxies are not used.

    Args:
        url: A `ws://` or `wss://` URL.
        headers: Additional headers of the request.
        token: The token for `Authorization: Bearer`; it is also offered as a subprotocol, for
            servers that look there.
        ssl_context: TLS settings for `wss://`, in place of the system's trusted certificates.
        limits: The limits of the channel.

    Raises:
        ConnectionLost: The server cannot be reached or does not answer within
            `limits.http.headers_seconds`, or rejects the WebSocket.
        ValueError: The URL, a header or the token is invalid.
    """
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("the URL of a WebSocket has to begin with ws:// or wss:// and its host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of a WebSocket must not contain a user: use headers= or token=")
    if ssl_context is not None and parts.scheme != "wss":
        raise ValueError("ssl_context is for wss://")
    path = parts.path or "/"
    target = quote(f"{path}?{parts.query}" if parts.query else path, safe=punctuation)
    port = parts.port or _PORTS[parts.scheme]
    address = _Address(parts.scheme, parts.hostname, port, target, path)
    fields = encoded_headers([*{**bearer_header(token), **(headers or {})}.items()])
    opening = _opened_by_client(address, fields, token, ssl_context, limits)
    return await start_channel(opening, name=address.name, limits=limits)


class _Address(msgspec.Struct, frozen=True):
    scheme: str
    host: str
    port: int
    target: str
    path: str

    @property
    def netloc(self) -> str:
        """The value of the header `Host`."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == _PORTS[self.scheme] else f"{name}:{self.port}"

    @property
    def name(self) -> str:
        """The URL without its query, which may hold a secret."""
        return f"{self.scheme}://{self.netloc}{self.path}"


@asynccontextmanager
async def _opened_by_client(
    address: _Address,
    fields: Sequence[tuple[bytes, bytes]],
    token: str | None,
    ssl_context: ssl.SSLContext | None,
    limits: Limits,
) -> AsyncGenerator[_TrioSocket, None]:
    """Connect, and open a WebSocket for the length of a block."""
    seconds, name = limits.http.headers_seconds, address.name
    with trio.move_on_after(seconds) as timeout:
        try:
            if address.scheme == "wss":
                stream: trio.abc.Stream = await _open_tls(address, ssl_context)
            else:
                plain = await trio.open_tcp_stream(address.host, address.port)
                fd, chunk_bytes = plain.socket.detach(), limits.messages.chunk_bytes
                stream = BufferedSocketStream(
                    BufferedSocket(
                        socket=ConnectedSocket(fd=fd, chunk_bytes=chunk_bytes), limits=limits
                    )
                )
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {name}: {text_with_cause(error)}") from error
        async with _reading(stream, limits) as reader:

            async def handshake() -> WebSocketConnection:
                return await wrap_client_stream(
                    cast("trio.Nursery", reader),
                    cast("trio.SocketStream", reader.stream),
                    address.netloc,
                    address.target,
                    subprotocols=offered_subprotocols(token),
                    extra_headers=list(fields),
                    receive_buffer_size=min(limits.messages.chunk_bytes, _READ_BYTES_MAX),
                )

            connection = await reader.stream.run_while_open(handshake)
            if connection is None:
                await reader.stop()
                if not isinstance(reader.error, ConnectionRejected):
                    raise ConnectionLost(
                        f"{name} disconnected during the handshake, or is not a WebSocket server"
                    )
                status, body = reader.error.status_code, reader.error.body or b""
                text = text_of_body(body)
                detail = f": {text[: limits.messages.error_text_chars_max]}" if text else ""
                raise ConnectionLost(f"{name} answered HTTP {status}{detail}", http_status=status)
            timeout.deadline = math.inf
            yield _TrioSocket(connection, reader)
    if timeout.cancelled_caught:
        raise ConnectionLost(
            f"{name} did not answer in {seconds:g} s (limits.http.headers_seconds)"
        )


async def _open_tls(
    address: _Address, ssl_context: ssl.SSLContext | None
) -> trio.SSLStream[trio.SocketStream]:
    stream = await trio.open_ssl_over_tcp_stream(
        address.host,
        address.port,
        ssl_context=ssl_context or _trusted_by_system(),
        https_compatible=True,
    )
    try:
        await stream.do_handshake()  # reports an untrusted certificate here, and not later
    except BaseException as error:
        await trio.aclose_forcefully(stream)
        if isinstance(error, trio.BrokenResourceError):
            reason = error.__cause__ or "the server closed the connection"
            raise OSError(f"{reason} (TLS)") from error
        raise
    return stream
