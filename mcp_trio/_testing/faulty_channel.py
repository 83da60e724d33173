"""A channel between an engine and any other channel, on which things go wrong by a seed."""

from collections import deque
from collections.abc import Sequence
from typing import Final

import attrs
import trio

from mcp_trio._errors import ConnectionLost
from mcp_trio._limits import DEFAULT_LIMITS, KIB, Limits
from mcp_trio._testing.faults import NO_FAULTS, Fault, FaultDice, Faults
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.line_channel import LineChannel
from mcp_trio._transports.memory import memory_pair

_CUT_OFF: Final = "the connection was cut by a fault"


@attrs.define
class _Arrived:
    """A message that was received, how late it is, and when it comes (once that is known)."""

    message: Received
    seconds: float = 0.0
    due: float = 0.0


@attrs.define(eq=False)
class FaultyChannel:
    """Passes frames on to `inner` and from it, and lets `faults` happen to both directions.

    Which frame meets what is decided by `seed` and by how many frames went before it in the same
    direction, and by nothing else. Without faults it keeps the contract of a channel, which
    `check_channel` verifies; it has no `send_nowait`, so that every send can be made to wait.

    Attributes:
        inner: The channel behind; it is owned, and closed with this one.
        faults: What may go wrong, and how likely.
        seed: Where the dice begin.
        events: Every fault so far, in the order in which they happened.
    """

    inner: Channel
    faults: Faults = attrs.field(default=NO_FAULTS, kw_only=True)
    seed: int | str = attrs.field(default=0, kw_only=True)
    events: list[Fault] = attrs.field(factory=list[Fault], init=False)
    _out: FaultDice = attrs.field(init=False)
    _in: FaultDice = attrs.field(init=False)
    _arrived: deque[_Arrived] = attrs.field(factory=deque[_Arrived], init=False)
    _held: _Arrived | None = attrs.field(default=None, init=False)
    _reads_at: float | None = attrs.field(default=None, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _is_to_be_cut: bool = attrs.field(default=False, init=False)
    _is_cut: bool = attrs.field(default=False, init=False)
    _is_over: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        # Dice of its own for each direction: what one does changes nothing for the other.
        self._out = FaultDice(self.faults, "out", self.events, str(self.seed))
        self._in = FaultDice(self.faults, "in", self.events, str(self.seed))

    @property
    def transport(self) -> str:
        """The name of the transport behind."""
        return getattr(self.inner, "transport", type(self.inner).__name__)

    @property
    def is_cut(self) -> bool:
        """Whether the connection was lost by a fault."""
        return self._is_cut

    # Sending.

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `mcp_trio.transports.Channel`; a frame that is lost counts as sent.

        Raises:
            trio.BrokenResourceError: The connection was cut, or what the channel behind raises.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        ready: list[bytes] = []
        overtaken: list[bytes] = []
        for frame in frames:
            fault = self._out.throw()
            kind = None if fault is None else fault.kind
            if fault is not None and kind in {"cut", "delay"}:
                await self._pass_on(ready)
                ready = []
                await self._cut_or_wait(fault)
            if kind == "reorder" and not overtaken:
                overtaken = [frame]
            elif kind != "drop":
                ready.append(self._out.corrupted(frame) if kind == "corrupt" else frame)
                ready += overtaken
                overtaken = []
        await self._pass_on(ready + overtaken)

    async def _cut_or_wait(self, fault: Fault) -> None:
        if fault.kind == "cut":
            await self._cut()
            raise _broken()
        await self._pause_until(trio.current_time() + fault.seconds)

    async def _pass_on(self, frames: Sequence[bytes]) -> None:
        if self._is_cut:
            raise _broken()
        try:
            await self.inner.send(frames)
        except trio.ClosedResourceError:
            if self._is_cut:  # while this send waited for the peer
                raise _broken() from None
            raise

    # Receiving.

    async def receive(self) -> Sequence[Received]:
        """See `mcp_trio.transports.Channel`.

        Raises:
            ConnectionLost: The connection was cut, or what the channel behind raises.
        """
        if self._arrived:
            await trio.lowlevel.checkpoint()
        while True:
            self._check_open()
            ready = self._take_ready()
            if ready:
                return ready
            if self._arrived:
                await self._wait_for(self._arrived[0])
            elif self._is_to_be_cut:
                await self._cut()
            elif self._has_ended:
                await trio.lowlevel.checkpoint()
                return []
            else:
                await self._read()

    def _take_ready(self) -> list[Received]:
        ready: list[Received] = []
        while self._arrived and not self._arrived[0].seconds:
            ready.append(self._arrived.popleft().message)
        return ready

    async def _wait_for(self, late: _Arrived) -> None:
        # Counts from the first wait: a receive that is given up and tried again waits no longer.
        late.due = late.due or trio.current_time() + late.seconds
        await self._pause_until(late.due)
        late.seconds = 0.0

    async def _read(self) -> None:
        """One batch from the channel behind, and what happens to it."""
        if self.faults.slow_reader:
            await self._read_slowly()
        batch = await self._next_batch()
        if not batch:
            self._let_go()
        for message in batch:
            if not self._is_to_be_cut:
                self._arrive(message)

    async def _read_slowly(self) -> None:
        if self._reads_at is None:
            slow = self._in.throw_for_a_read()
            self._reads_at = trio.current_time() + (0 if slow is None else slow.seconds)
        await self._pause_until(self._reads_at)
        self._reads_at = None

    async def _next_batch(self) -> Sequence[Received]:
        """What arrives next; nothing at the end, or when nothing overtakes what is held back."""
        if self._held is None:
            return await self._receive()
        with trio.move_on_at(self._held.due):
            return await self._receive()
        return []

    async def _receive(self) -> Sequence[Received]:
        try:
            batch = await self.inner.receive()
        except trio.ClosedResourceError:
            if self._is_cut:  # while this receive waited
                raise _cut_off() from None
            raise
        self._has_ended = not batch
        return batch

    def _arrive(self, message: Received) -> None:
        fault = self._in.throw()
        kind = None if fault is None else fault.kind
        if kind == "cut":
            self._is_to_be_cut = True
        elif kind == "reorder" and self._held is None:
            due = trio.current_time() + self.faults.delay_seconds_max
            self._held = _Arrived(message, due=due)
        elif kind != "drop":
            if kind == "corrupt" and isinstance(message, bytes):
                message = self._in.corrupted(message)
            self._arrived.append(_Arrived(message, 0.0 if fault is None else fault.seconds))
            self._let_go()

    def _let_go(self) -> None:
        """What was held back comes now, behind the frame that has overtaken it."""
        if self._held is not None:
            self._arrived.append(self._held)
            self._held = None

    # Ending.

    async def aclose(self) -> None:
        """See `mcp_trio.transports.Channel`."""
        self._is_over.set()
        await self.inner.aclose()

    async def _cut(self) -> None:
        self._is_cut = True
        await self.aclose()

    async def _pause_until(self, moment: float) -> None:
        """Waits, but not longer than the channel is open."""
        with trio.move_on_at(moment):
            await self._is_over.wait()
        self._check_open()

    def _check_open(self) -> None:
        if self._is_cut:
            raise _cut_off()
        if self._is_over.is_set():
            raise trio.ClosedResourceError("this side of the channel was closed")


def _broken() -> trio.BrokenResourceError:
    return trio.BrokenResourceError(_CUT_OFF)


def _cut_off() -> ConnectionLost:
    return ConnectionLost(_CUT_OFF)


def channel_pair(
    *,
    faults: Faults = NO_FAULTS,
    seed: int | str = 0,
    limits: Limits = DEFAULT_LIMITS,
    buffer_bytes_max: int = 64 * KIB,
) -> tuple[FaultyChannel, LineChannel]:
    """Two ends of one connection in memory: what is sent at one arrives at the other.

    The faults are those of the first end, in both directions. Each direction is a buffer like a
    pipe's: a sender waits while it is full. For two ends without anything between them there is
    `mcp_trio.transports.memory_pair`.
    """
    ours, theirs = memory_pair(limits=limits, buffer_bytes_max=buffer_bytes_max)
    return FaultyChannel(ours, faults=faults, seed=seed), theirs
