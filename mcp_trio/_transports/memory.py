"""Two channels joined in memory, through the real line codec, so that tests see the wire."""

import attrs
import trio

from mcp_trio._limits import DEFAULT_LIMITS, KIB, Limits
from mcp_trio._transports.line_channel import LineChannel


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
