"""The bytes under a WebSocket, between a stream and a library that frames them.

What goes by is told from here: that nothing more comes, that the library listens or does not, that
something was cut, that the peer was told of the end. And nothing is mixed that two tasks send.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import attrs
import trio

from mcp_trio._limits import MIB

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
