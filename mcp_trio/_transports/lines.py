"""Channels of one message a line, and a pair of them in memory."""

from collections.abc import Sequence
from typing import Protocol

import attrs
import trio

from mcp_trio._jsonrpc.lines import LineSplitter, Oversized, join_lines
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, KIB, Limits

# --------------------
# A channel over two ends of bytes, one message a line.
#
# The framing of stdio, for every transport that is a reliable stream of bytes. The ends never wait
# by themselves: they say `BlockingIOError`, and the channel decides who waits. That is why the
# direct write (`send_nowait`) and the waiting one are one piece of code here.


class ByteSource(Protocol):
    """The end that bytes are read from."""

    def read_nowait(self) -> bytes:
        """What is there; empty at the end; BlockingIOError when there is nothing yet."""
        ...

    async def wait_readable(self) -> None:
        """Returns when reading is worth another try; a checkpoint in any case."""
        ...

    def close(self) -> None:
        """Closes and wakes who waits; does nothing the second time."""
        ...


class ByteSink(Protocol):
    """The end that bytes are written to."""

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """How many bytes were taken; BlockingIOError when none can be, OSError when none ever."""
        ...

    async def wait_writable(self) -> None:
        """Returns when writing is worth another try; a checkpoint in any case."""
        ...

    def close(self) -> None:
        """Closes and wakes who waits; does nothing the second time."""
        ...


@attrs.define(kw_only=True, eq=False)
class LineChannel:
    """Whole messages over a `ByteSource` and a `ByteSink`, which it owns.

    It keeps more than `Channel` asks: a cancelled `send` leaves it usable, each frame either whole
    (one that was begun is finished by the next call) or not begun.
    """

    source: ByteSource
    sink: ByteSink
    transport: str
    limits: Limits = DEFAULT_LIMITS
    bytes_sent: int = attrs.field(default=0, init=False)
    _splitter: LineSplitter = attrs.field(init=False)
    _tail: bytes | memoryview = attrs.field(default=b"", init=False)
    _was_drained: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _is_ended: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._splitter = LineSplitter(message_bytes_max=self.limits.messages.bytes_max)

    # Sending

    @property
    def is_unfinished(self) -> bool:
        """Return whether a frame was begun that the next `send` or `send_nowait` has to finish."""
        return bool(self._tail)

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel.send`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        taken = self._take(frames, 0)
        if taken == len(frames) and not self._tail:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        while taken < len(frames) or self._tail:
            await self.sink.wait_writable()
            taken = self._take(frames, taken)

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """How many of `frames` were taken without waiting; see `mcp_trio.transports.Channel`."""
        return self._take(frames, 0)

    def _take(self, frames: Sequence[bytes], taken: int) -> int:
        """Sends from `frames[taken]` on while there is room; returns the new `taken`."""
        self._check_open()
        while self._finish_tail() and taken < len(frames):
            batch = self._next_batch(frames, taken)
            data = join_lines(batch)
            written = self._write(data)
            if written < len(data):
                return taken + self._cut(batch, data, written)
            taken += len(batch)
        return taken

    def _next_batch(self, frames: Sequence[bytes], first: int) -> Sequence[bytes]:
        """What is joined for one write; bounded, so that a full pipe never costs a second join."""
        if first == 0 and len(frames) == 1:
            return frames
        size, last = 0, first
        while last < len(frames) and size < self.limits.messages.chunk_bytes:
            size += len(frames[last])
            last += 1
        return frames[first:last]

    def _cut(self, batch: Sequence[bytes], data: bytes, written: int) -> int:
        """Keeps the rest of the frame that was begun; returns how many frames were taken."""
        taken = end = 0
        while end < written:
            end += len(batch[taken]) + 1
            taken += 1
        self._tail = memoryview(data)[written:end]
        return taken

    def _finish_tail(self) -> bool:
        if self._tail:
            self._tail = self._tail[self._write(self._tail) :]
        return not self._tail

    def _write(self, data: bytes | memoryview) -> int:
        """Writes until the sink is full; an end that takes nothing any more is the peer's end."""
        written = 0
        try:
            while written < len(data):
                written += self.sink.write_nowait(memoryview(data)[written:] if written else data)
        except BlockingIOError:
            pass
        except OSError as error:
            raise trio.BrokenResourceError(f"the peer is gone: {error}") from error
        finally:
            self.bytes_sent += written
        return written

    # Receiving

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `Channel.receive`; reads once more only while no message is complete.

        A read that filled less than its buffer took all that was there; the next one waits first.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        has_waited = False
        while True:
            self._check_open()
            if self._was_drained:  # a read would fail, and cost what the wait costs
                self._was_drained = False
                await self.source.wait_readable()
                has_waited = True
                continue
            try:
                chunk = self._read()
            except BlockingIOError:
                self._was_drained = True
                continue
            frames = self._splitter.feed(chunk) if chunk else self._splitter.finish()
            if not has_waited:
                # A peer with always more to say must not keep the other tasks from running.
                await trio.lowlevel.cancel_shielded_checkpoint()
            has_waited = False
            if frames or not chunk:
                return frames
            await trio.lowlevel.checkpoint_if_cancelled()

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

    # Closing

    async def aclose(self) -> None:
        """See `Channel.aclose`."""
        self.reject()
        self.source.close()
        self.sink.close()
        await trio.lowlevel.checkpoint()

    def reject(self) -> None:
        """From now on every call but `aclose` raises; both ends are still open."""
        self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise trio.ClosedResourceError("this side of the channel was closed")


def memory_pair(
    *,
    limits: Limits = DEFAULT_LIMITS,
    buffer_bytes_max: int = 64 * KIB,
    chunk_bytes: int = 64 * KIB,
) -> tuple[LineChannel, LineChannel]:
    """Two channels, each of which receives what the other sends.

    Each direction is a buffer of `buffer_bytes_max`, like a pipe: a sender waits while it is full.
    The receiver gets pieces of at most `chunk_bytes`, wherever that cuts a message.
    """
    ours, theirs = (
        MemoryPipe(buffer_bytes_max=buffer_bytes_max, chunk_bytes=chunk_bytes) for _ in range(2)
    )
    return _end(reads=ours, writes=theirs, limits=limits), _end(
        reads=theirs, writes=ours, limits=limits
    )


def _end(*, reads: "MemoryPipe", writes: "MemoryPipe", limits: Limits) -> LineChannel:
    return LineChannel(
        source=ReadEnd(pipe=reads), sink=WriteEnd(pipe=writes), transport="memory", limits=limits
    )


@attrs.define(kw_only=True, eq=False)
class MemoryPipe:
    """One direction: bounded bytes, and who waits for them or for room."""

    buffer_bytes_max: int
    chunk_bytes: int
    content: bytearray = attrs.field(factory=bytearray, init=False)
    has_reader: bool = attrs.field(default=True, init=False)
    has_writer: bool = attrs.field(default=True, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    async def wait_change(self) -> None:
        """Returns after the next read, write or close."""
        await self._waiting.park()

    def changed(self) -> None:
        """Wakes everybody who waits for a change."""
        self._waiting.unpark_all()


@attrs.define(kw_only=True, eq=False)
class ReadEnd:
    """The reader's end of a `MemoryPipe`."""

    pipe: MemoryPipe

    def read_nowait(self) -> bytes:
        """See `ByteSource.read_nowait`."""
        pipe = self.pipe
        if not pipe.content and pipe.has_writer:
            raise BlockingIOError
        chunk = bytes(pipe.content[: pipe.chunk_bytes])
        del pipe.content[: pipe.chunk_bytes]
        pipe.changed()
        return chunk

    async def wait_readable(self) -> None:
        """See `ByteSource.wait_readable`."""
        pipe = self.pipe
        if pipe.content or not (pipe.has_writer and pipe.has_reader):
            await trio.lowlevel.checkpoint()
        else:
            await pipe.wait_change()

    def close(self) -> None:
        """See `ByteSource.close`."""
        self.pipe.has_reader = False
        self.pipe.content.clear()
        self.pipe.changed()


@attrs.define(kw_only=True, eq=False)
class WriteEnd:
    """The writer's end of a `MemoryPipe`."""

    pipe: MemoryPipe

    def write_nowait(self, data: bytes | memoryview, /) -> int:
        """See `ByteSink.write_nowait`."""
        pipe = self.pipe
        if not pipe.has_reader:
            raise BrokenPipeError("the other end is closed")
        piece = data[: pipe.buffer_bytes_max - len(pipe.content)]
        if not piece:
            raise BlockingIOError
        pipe.content += piece
        pipe.changed()
        return len(piece)

    async def wait_writable(self) -> None:
        """See `ByteSink.wait_writable`."""
        await self.pipe.wait_change()

    def close(self) -> None:
        """See `ByteSink.close`."""
        self.pipe.has_writer = False
        self.pipe.changed()
