"""Fake channels that a test controls."""

from collections.abc import Sequence
from typing import Final

import attrs
import trio

from mcp_trio.transports import Oversized

_BATCHES_MAX: Final = 10_000


@attrs.define(eq=False, repr=False)
class FakeChannel:
    """A `Channel` without a connection, which a test controls.

    `receive` returns the messages that the test has fed. Sent messages are kept in `writes`, one
    entry for each `send` or `send_nowait` that took messages, and in `sent`, one by one. `sends`
    counts the calls of `send`. While `is_stuck` is set, `send` blocks and `send_nowait` takes
    nothing. An error that was set is raised by the method it is named for.
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
        """All messages that were sent, in order."""
        return [message for write in self.writes for message in write]

    def feed(self, *messages: bytes | Oversized) -> None:
        """Let messages arrive together; no messages are the end of the connection."""
        self._put.send_nowait(list(messages))

    def break_down(self, error: Exception) -> None:
        """Let the next `receive` raise an error."""
        self._put.send_nowait(error)

    def release(self) -> None:
        """Let blocked sends continue, or raise the error that was set."""
        self.is_stuck = False
        self._moved.unpark_all()

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Return the messages of the next `feed`, or raise the error of `break_down`."""
        item = await self._fed.receive()
        if isinstance(item, Exception):
            raise item
        return item

    async def send(self, messages: Sequence[bytes]) -> None:
        """Keep the messages in `writes`, once `is_stuck` is not set."""
        self.sends += 1
        self.is_sending = True
        try:
            await trio.lowlevel.checkpoint()
            while self.is_stuck:
                await self._moved.park()
            self._write(messages)
        finally:
            self.is_sending = False

    async def aclose(self) -> None:
        """Note the close; raise `close_error` if it was set."""
        self.is_closed = True
        if self.close_error is not None:
            raise self.close_error
        await trio.lowlevel.checkpoint()

    def _write(self, messages: Sequence[bytes]) -> None:
        if self.send_error is not None:
            raise self.send_error
        self.writes.append(list(messages))


@attrs.define(eq=False, repr=False)
class DirectFakeChannel(FakeChannel):
    """A `FakeChannel` with `send_nowait`.

    A call takes at most `messages_nowait_max` messages; the last of them stays unfinished while
    `leaves_unfinished` is set.
    """

    messages_nowait_max: int = attrs.field(default=1_000_000, init=False)
    leaves_unfinished: bool = attrs.field(default=False, init=False)
    is_unfinished: bool = attrs.field(default=False, init=False)

    def send_nowait(self, messages: Sequence[bytes]) -> int:
        """Keep up to `messages_nowait_max` messages in `writes`; return how many."""
        assert not self.is_sending, "a direct write while the writer is inside send"
        if self.is_stuck:
            return 0
        taken = messages[: self.messages_nowait_max]
        self._write(taken)
        self.is_unfinished = self.leaves_unfinished
        return len(taken)

    async def send(self, messages: Sequence[bytes]) -> None:
        """Keep the messages in `writes`, and finish an unfinished one."""
        await super().send(messages)
        self.is_unfinished = False
