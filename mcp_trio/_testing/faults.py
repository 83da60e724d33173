"""A channel that wraps any other channel and injects faults, which a seed decides."""

import math
import random
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs
import trio

from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.lines import LineChannel, memory_pair
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, KIB, Limits

FaultKind: TypeAlias = Literal["cut", "drop", "corrupt", "reorder", "delay", "slow_reader"]
Direction: TypeAlias = Literal["in", "out"]

# The faults that can affect a message; the first one that the random source draws happens.
_FRAME_FAULTS: Final[tuple[FaultKind, ...]] = ("cut", "drop", "corrupt", "reorder", "delay")

_PRINTABLE: Final = bytes(range(0x20, 0x7F))


def _chance(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} is {value}: a chance lies between 0 and 1")


def _duration(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{attribute.name} is {value}: a wait is not negative, and it ends")


@attrs.frozen(kw_only=True)
class Faults:
    """The probability of each kind of fault, from 0 (never, the default) to 1.

    Attributes:
        drop: A message is lost without an error.
        delay: A message, and all messages after it, arrive up to `delay_seconds_max` later.
        reorder: A message changes places with the next one: of the same send, or of those that
            arrive within `delay_seconds_max`.
        cut: The connection is lost in place of a message.
        corrupt: One byte of a message is changed.
        slow_reader: A receive waits up to `delay_seconds_max` before it reads, so that the peer's
            sends block when the connection is full.
        delay_seconds_max: The longest delay.

    Raises:
        ValueError: A probability is below 0 or above 1, or `delay_seconds_max` is negative or
            infinite.
    """

    drop: float = attrs.field(default=0.0, validator=_chance)
    delay: float = attrs.field(default=0.0, validator=_chance)
    reorder: float = attrs.field(default=0.0, validator=_chance)
    cut: float = attrs.field(default=0.0, validator=_chance)
    corrupt: float = attrs.field(default=0.0, validator=_chance)
    slow_reader: float = attrs.field(default=0.0, validator=_chance)
    delay_seconds_max: float = attrs.field(default=1.0, validator=_duration)


NO_FAULTS: Final = Faults()


@attrs.frozen
class Fault:
    """A fault that happened: its kind, its direction, and the number of the message (from 1).

    Direction "in" is that of messages that the faulty channel receives. A slow read has the number
    of the message before it. `seconds` is the length of a delay.
    """

    kind: FaultKind
    direction: Direction
    frame: int
    seconds: float = 0.0


@attrs.define(eq=False)
class FaultSource:
    """The source of the faults in one direction of a channel, in the order of its messages.

    The same seed and number of messages give the same faults, however many reads they take.
    """

    faults: Faults
    direction: Direction
    events: list[Fault]
    seed: str
    _frames: int = attrs.field(default=0, init=False)
    _of_frames: random.Random = attrs.field(init=False)
    _of_reads: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._of_frames, self._of_reads = (
            random.Random(f"{self.seed}:{self.direction}:{thrown_for}")  # noqa: S311  no secret
            for thrown_for in ("frames", "reads")
        )

    def throw(self) -> Fault | None:
        """Return the fault that affects the next message, if any."""
        self._frames += 1
        random_source = self._of_frames
        drawn = [random_source.random() < getattr(self.faults, kind) for kind in _FRAME_FAULTS]
        for kind, is_drawn in zip(_FRAME_FAULTS, drawn, strict=True):
            if is_drawn:
                return self._happens(kind, self._waits(random_source) if kind == "delay" else 0.0)
        return None

    def throw_for_a_read(self) -> Fault | None:
        """Return whether the next read is slow."""
        random_source = self._of_reads
        is_drawn = random_source.random() < self.faults.slow_reader
        return self._happens("slow_reader", self._waits(random_source)) if is_drawn else None

    def corrupted(self, frame: bytes) -> bytes:
        """The frame with one byte that is another, and no end of a line; an empty one as it is."""
        if not frame:
            return frame
        place = self._of_frames.randrange(len(frame))
        other = self._of_frames.choice(_PRINTABLE.replace(frame[place : place + 1], b""))
        return frame[:place] + bytes([other]) + frame[place + 1 :]

    def _waits(self, random_source: random.Random) -> float:
        return random_source.uniform(0, self.faults.delay_seconds_max)

    def _happens(self, kind: FaultKind, seconds: float) -> Fault:
        fault = Fault(kind, self.direction, self._frames, seconds)
        self.events.append(fault)
        return fault


_CUT_OFF: Final = "the connection was cut by a fault"


@attrs.define
class _Arrived:
    """A message that was received, how late it is, and when it comes (once that is known)."""

    message: Received
    seconds: float = 0.0
    due: float = 0.0


@attrs.define(eq=False)
class FaultyChannel:
    """A channel that passes messages to and from `inner`, and injects faults in both directions.

    Only `seed` and the number of earlier messages in the same direction decide the fault of
    a message. Without faults the channel passes `check_channel`. It has no `send_nowait`, so that
    every send can be delayed.

    Attributes:
        inner: The wrapped channel, which is closed with this one.
        faults: The probability of each kind of fault.
        seed: The seed of the random source.
        events: The faults so far, in the order in which they happened.
    """

    inner: Channel
    faults: Faults = attrs.field(default=NO_FAULTS, kw_only=True)
    seed: int | str = attrs.field(default=0, kw_only=True)
    events: list[Fault] = attrs.field(factory=list[Fault], init=False)
    _out: FaultSource = attrs.field(init=False)
    _in: FaultSource = attrs.field(init=False)
    _arrived: deque[_Arrived] = attrs.field(factory=deque[_Arrived], init=False)
    _held: _Arrived | None = attrs.field(default=None, init=False)
    _reads_at: float | None = attrs.field(default=None, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _is_to_be_cut: bool = attrs.field(default=False, init=False)
    _is_cut: bool = attrs.field(default=False, init=False)
    _is_over: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        # Dice of its own for each direction: what one does changes nothing for the other.
        self._out = FaultSource(self.faults, "out", self.events, str(self.seed))
        self._in = FaultSource(self.faults, "in", self.events, str(self.seed))

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
    """Return two ends of a connection in memory, the first of which injects faults.

    The faults affect both directions. Each direction has a buffer like a pipe's: a sender blocks
    while the buffer is full. `mcp_trio.transports.memory_pair` returns two ends without faults.
    """
    ours, theirs = memory_pair(limits=limits, buffer_bytes_max=buffer_bytes_max)
    return FaultyChannel(ours, faults=faults, seed=seed), theirs
