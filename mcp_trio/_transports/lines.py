"""`LineChannel`: one message per line over byte streams, and a pair of such channels in memory.

This is the framing of stdio, for every transport that is a reliable stream of bytes. Reads and
writes of a `ByteSource` or `ByteSink` never wait: they raise `BlockingIOError`. Then `send` waits
and tries again, and `send_nowait` returns, so that both share their code. Over stdio and sockets,
source and sink are a `Descriptor` (`descriptors.py`).
"""

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from mcp_trio._jsonrpc.lines import LineSplitter, Oversized, join_lines
from mcp_trio._transports.channel import CLOSED_TEXT
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, KIB, Limits


class ByteSource(Protocol):
    """The end of a byte stream that is read."""

    def read_nowait(self) -> bytes:
        """Return the bytes that have arrived, at least one; an empty bytes object at the end.

        Raises:
            BlockingIOError: Nothing has arrived yet.
        """
        ...

    async def wait_readable(self) -> None:
        """Return when reading is worth another try; a checkpoint in any case."""
        ...

    def close(self) -> None:
        """Close, and wake the tasks that wait; does nothing the second time."""
        ...


class ByteSink(Protocol):
    """The end of a byte stream that is written."""

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """Write as many bytes as there is room for, at least one, and return how many.

        Raises:
            BlockingIOError: There is no room yet.
            OSError: Nothing can be written any more.
        """
        ...

    async def wait_writable(self) -> None:
        """Return when writing is worth another try; a checkpoint in any case."""
        ...

    def close(self) -> None:
        """Close, and wake the tasks that wait; does nothing the second time."""
        ...


@attrs.define(kw_only=True, eq=False, repr=False)
class LineChannel:
    """A channel that reads `source` and writes `sink`, which may be the same; it owns both.

    It promises more than `Channel`: after a cancelled `send` it is still usable. Each message was
    then sent or not; the next `send` first finishes a message of which a part was written.
    """

    source: ByteSource
    sink: ByteSink
    transport: str
    limits: Limits = DEFAULT_LIMITS
    bytes_sent: int = attrs.field(default=0, init=False)
    # Whether a message is written partly; the next `send` writes the rest.
    is_unfinished: bool = attrs.field(default=False, init=False)
    _splitter: LineSplitter = attrs.field(init=False)
    # The bytes of a partly written message that are still to be written.
    _tail: bytes | memoryview = attrs.field(default=b"", init=False)
    # Whether the last read took all bytes that had arrived.
    _was_drained: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _is_ended: bool = attrs.field(default=False, init=False)
    _is_closing: bool = attrs.field(default=False, init=False)
    _closed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._splitter = LineSplitter(message_bytes_max=self.limits.messages.bytes_max)

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send all messages; see `Channel.send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        sent = self.send_nowait(messages)
        if sent == len(messages) and not self._tail:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        while sent < len(messages) or self._tail:
            await self.sink.wait_writable()
            sent = self.send_nowait(messages, sent)

    def send_nowait(self, messages: Sequence[bytes], sent: int = 0) -> int:
        """Send from `messages[sent]` on while there is room; return the new value of `sent`.

        `channel.py` describes this optional member of a channel.
        """
        if self._is_closed:
            raise trio.ClosedResourceError(CLOSED_TEXT)
        if self._tail:
            # An empty memoryview would keep the message in memory.
            self._tail = self._tail[self._write(self._tail) :] or b""
            self.is_unfinished = bool(self._tail)
            if self.is_unfinished:
                return sent
        while sent < len(messages):
            is_single = len(messages) == 1
            joined = messages if is_single else self._messages_of_next_write(messages, sent)
            data = join_lines(joined)
            written = self._write(data)
            if written == len(data):
                sent += len(joined)
                continue
            # A message that was written partly counts as sent, and its rest is kept.
            end = 0
            for message in joined:
                if end >= written:
                    break
                end += len(message) + 1
                sent += 1
            self._tail = memoryview(data)[written:end]
            self.is_unfinished = bool(self._tail)
            break
        return sent

    def _messages_of_next_write(self, messages: Sequence[bytes], first: int) -> Sequence[bytes]:
        """Return the messages, from `messages[first]` on, to join for one write.

        They have at most about `limits.messages.chunk_bytes`, because the bytes for which the sink
        has no room are joined again for the next write.
        """
        if not first and sum(map(len, messages)) <= self.limits.messages.chunk_bytes:
            return messages
        size, last = 0, first
        while last < len(messages) and size < self.limits.messages.chunk_bytes:
            size += len(messages[last])
            last += 1
        return messages[first:last]

    def _write(self, data: bytes | memoryview) -> int:
        """Write until the sink is full; return how many bytes were written."""
        written = 0
        try:
            written = self.sink.write_nowait(data)
            while written < len(data):
                written += self.sink.write_nowait(memoryview(data)[written:])
        except BlockingIOError:
            pass
        except OSError as error:
            raise trio.BrokenResourceError(f"the peer is gone: {error}") from error
        finally:
            self.bytes_sent += written
        return written

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Return the messages that have arrived; see `Channel.receive`."""
        while not self._is_closed:
            # If the last read did not fill its buffer, it took everything: another one would fail,
            # and cost as much as the wait.
            must_wait, self._was_drained = self._was_drained, False
            if must_wait:
                await self.source.wait_readable()
                if self._is_closed:
                    break
            else:
                await trio.lowlevel.checkpoint_if_cancelled()
            try:
                chunk = self._read()
            except BlockingIOError:
                self._was_drained = True
                continue
            messages = self._splitter.feed(chunk) if chunk else self._splitter.finish()
            if not must_wait:
                # A peer that sends without a pause must not keep the other tasks from running.
                await trio.lowlevel.cancel_shielded_checkpoint()
            if messages:
                return messages
            if not chunk:
                await self._check_end()
                return messages
        raise trio.ClosedResourceError(CLOSED_TEXT)

    async def _check_end(self) -> None:
        """Raise an error if the stream must not end: a `receive` that gets no message awaits it."""

    def _read(self) -> bytes:
        if self._is_ended:
            return b""
        try:
            chunk = self.source.read_nowait()
        except BlockingIOError:
            raise
        except OSError as error:
            raise ConnectionLost(f"reading failed: {error}") from error
        self._is_ended = not chunk
        self._was_drained = 0 < len(chunk) < self.limits.messages.chunk_bytes
        return chunk

    async def aclose(self) -> None:
        """Close source and sink; see `Channel.aclose`. A second call waits for the first."""
        with trio.CancelScope(shield=True):
            if self._is_closing:
                await self._closed.wait()
            else:
                self._is_closing = True
                self.mark_closed()
                try:
                    await self._finish()
                finally:
                    self._closed.set()  # first, since the source of a user may raise
                    self.source.close()
                    self.sink.close()
        await trio.lowlevel.checkpoint()

    def mark_closed(self) -> None:
        """Let every later call but `aclose` raise; source and sink stay open."""
        self._is_closed = True

    async def _finish(self) -> None:
        """End the connection in bounded time, before source and sink are closed."""


def memory_pair(
    *,
    limits: Limits = DEFAULT_LIMITS,
    buffer_bytes_max: int = 64 * KIB,
    chunk_bytes: int = 64 * KIB,
) -> tuple[LineChannel, LineChannel]:
    """Return two channels in memory; each receives what the other one sends.

    Each direction is a buffer, like a pipe: a sender waits while it is full.

    Args:
        limits: The limits of both channels.
        buffer_bytes_max: The size of each buffer.
        chunk_bytes: The most bytes that a receiver reads at once, even if that cuts a message.
    """
    one, other = (
        _MemoryPipe(buffer_bytes_max=buffer_bytes_max, chunk_bytes=chunk_bytes) for _ in range(2)
    )
    first, second = (
        LineChannel(
            source=_ReadEnd(source), sink=_WriteEnd(sink), transport="memory", limits=limits
        )
        for source, sink in ((one, other), (other, one))
    )
    return first, second


@attrs.define(kw_only=True, eq=False, repr=False)
class _MemoryPipe:
    """One direction of a memory pair: a bounded buffer, and the tasks that wait for a change."""

    buffer_bytes_max: int
    chunk_bytes: int
    content: bytearray = attrs.field(factory=bytearray, init=False)
    has_reader: bool = attrs.field(default=True, init=False)
    has_writer: bool = attrs.field(default=True, init=False)
    waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)


@attrs.frozen(eq=False, repr=False)
class _ReadEnd:
    """The reader's end of a `_MemoryPipe`: a `ByteSource`."""

    pipe: _MemoryPipe

    def read_nowait(self) -> bytes:
        pipe = self.pipe
        if not pipe.content and pipe.has_writer:
            raise BlockingIOError
        chunk = bytes(pipe.content[: pipe.chunk_bytes])
        del pipe.content[: pipe.chunk_bytes]
        pipe.waiting.unpark_all()
        return chunk

    async def wait_readable(self) -> None:
        pipe = self.pipe
        if pipe.content or not (pipe.has_writer and pipe.has_reader):
            await trio.lowlevel.checkpoint()
        else:
            await pipe.waiting.park()

    def close(self) -> None:
        self.pipe.has_reader = False
        self.pipe.content.clear()
        self.pipe.waiting.unpark_all()


@attrs.frozen(eq=False, repr=False)
class _WriteEnd:
    """The writer's end of a `_MemoryPipe`: a `ByteSink`."""

    pipe: _MemoryPipe

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        pipe = self.pipe
        if not pipe.has_reader:
            raise BrokenPipeError("the other end is closed")
        piece = data[: pipe.buffer_bytes_max - len(pipe.content)]
        if not piece:
            raise BlockingIOError
        pipe.content += piece
        pipe.waiting.unpark_all()
        return len(piece)

    async def wait_writable(self) -> None:
        await self.pipe.waiting.park()

    def close(self) -> None:
        self.pipe.has_writer = False
        self.pipe.waiting.unpark_all()
