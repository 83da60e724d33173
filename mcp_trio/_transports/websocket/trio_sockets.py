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
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
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

from mcp_trio._limits import Limits
from mcp_trio._protocol.websocket import CloseCode, close_reason
from mcp_trio._transports.http.client_inbox import Inbox
from mcp_trio._transports.websocket.message_socket import SocketEnded
from mcp_trio._transports.websocket.watched_stream import WatchedStream
from mcp_trio._wire.lines import Oversized, bounded

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
    inbox: Inbox
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
                receive_buffer_size=limits.chunk_bytes,
            )

        connection = await _before_the_end(reader.stream, handshake)
        if connection is None:
            raise await _refusal(reader)
        yield _opened(connection, reader)


async def _refusal(reader: _Reader) -> HandshakeFailed:
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
                receive_buffer_size=limits.chunk_bytes,
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
                messages = _Messages(limits.frame_bytes_max, Inbox(limits.chunk_bytes))
                yield _Reader(
                    nursery, WatchedStream(stream, head, rest, limits.chunk_bytes), messages
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
