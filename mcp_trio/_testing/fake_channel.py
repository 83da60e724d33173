"""A channel whose every move a test decides: what arrives, and when and whether sending works."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from mcp_trio._wire import Oversized

_BATCHES_MAX: Final = 10_000


@attrs.define(eq=False)
class FakeChannel:
    """A `Channel` without a wire.

    Received is what was fed. What was sent is kept as `writes`, one entry for each `send` or
    `send_nowait` that took frames, and as `sent`, frame by frame. `sends` counts the calls of
    `send`. While it `is_stuck`, a `send` waits and nothing can go without waiting. An error that
    was set is raised by the method it is named for.
    """

    transport = "fake"

    is_stuck: bool = attrs.field(default=False, init=False)
    send_error: Exception | None = attrs.field(default=None, init=False)
    close_error: Exception | None = attrs.field(default=None, init=False)
    writes: list[list[bytes]] = attrs.field(factory=list[list[bytes]], init=False)
    sends: int = attrs.field(default=0, init=False)
    is_sending: bool = attrs.field(default=False, init=False)
    is_closed: bool = attrs.field(default=False, init=False)
    _moved: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _put: trio.MemorySendChannel[list[bytes | Oversized] | Exception] = attrs.field(init=False)
    _fed: trio.MemoryReceiveChannel[list[bytes | Oversized] | Exception] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._put, self._fed = trio.open_memory_channel[list[bytes | Oversized] | Exception](
            _BATCHES_MAX
        )

    @property
    def sent(self) -> list[bytes]:
        """Every frame that was sent."""
        return [frame for write in self.writes for frame in write]

    def feed(self, *frames: bytes | Oversized) -> None:
        """Frames arrive, in one batch; none at all is the end."""
        self._put.send_nowait(list(frames))

    def break_down(self, error: Exception) -> None:
        """The next `receive` raises."""
        self._put.send_nowait(error)

    def release(self) -> None:
        """The peer reads again, or an error that was set comes out."""
        self.is_stuck = False
        self._moved.unpark_all()

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `Channel.receive`."""
        item = await self._fed.receive()
        if isinstance(item, Exception):
            raise item
        return item

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel.send`."""
        self.sends += 1
        self.is_sending = True
        try:
            await trio.lowlevel.checkpoint()
            while self.is_stuck:
                await self._moved.park()
            self._write(frames)
        finally:
            self.is_sending = False

    async def aclose(self) -> None:
        """See `Channel.aclose`."""
        self.is_closed = True
        if self.close_error is not None:
            raise self.close_error
        await trio.lowlevel.checkpoint()

    def _write(self, frames: Sequence[bytes]) -> None:
        if self.send_error is not None:
            raise self.send_error
        self.writes.append(list(frames))


@attrs.define(eq=False)
class DirectFakeChannel(FakeChannel):
    """A `FakeChannel` that can also send without waiting.

    It takes at most `frames_nowait_max` frames at a time; the last of them stays unfinished while
    `leaves_tail` is set.
    """

    frames_nowait_max: int = attrs.field(default=1_000_000, init=False)
    leaves_tail: bool = attrs.field(default=False, init=False)
    is_unfinished: bool = attrs.field(default=False, init=False)

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """See `mcp_trio.transports.Channel`."""
        assert not self.is_sending, "a direct write while the writer is inside send"
        if self.is_stuck:
            return 0
        taken = frames[: self.frames_nowait_max]
        self._write(taken)
        self.is_unfinished = self.leaves_tail
        return len(taken)

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel.send`."""
        await super().send(frames)
        self.is_unfinished = False
