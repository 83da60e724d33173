"""A channel that wraps any other channel and injects faults, which a seed decides.

`Faults` has the probability of each kind of fault. A `FaultSource` for each direction chooses the
fault of each message at random, and `FaultyChannel` loses, changes or delays the message.
"""

import math
import random
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.lines import LineChannel, memory_pair
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, KIB, Limits

FaultKind: TypeAlias = Literal["cut", "drop", "corrupt", "reorder", "delay", "slow_reader"]
Direction: TypeAlias = Literal["in", "out"]

# The faults that can affect a message. The random source decides about each kind; if it chooses
# several, the first of these happens.
_MESSAGE_FAULTS: Final[tuple[FaultKind, ...]] = ("cut", "drop", "corrupt", "reorder", "delay")

_PRINTABLE: Final = bytes(range(0x20, 0x7F))


def _check_probability(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{attribute.name} is {value}: a probability lies between 0 and 1")


def _check_duration(_: object, attribute: "attrs.Attribute[float]", value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{attribute.name} is {value}: a delay is neither negative nor infinite")


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

    drop: float = attrs.field(default=0.0, validator=_check_probability)
    delay: float = attrs.field(default=0.0, validator=_check_probability)
    reorder: float = attrs.field(default=0.0, validator=_check_probability)
    cut: float = attrs.field(default=0.0, validator=_check_probability)
    corrupt: float = attrs.field(default=0.0, validator=_check_probability)
    slow_reader: float = attrs.field(default=0.0, validator=_check_probability)
    delay_seconds_max: float = attrs.field(default=1.0, validator=_check_duration)


NO_FAULTS: Final = Faults()


class Fault(msgspec.Struct, frozen=True):
    """A fault that happened.

    Attributes:
        kind: The kind of fault.
        direction: "in" for messages that the faulty channel receives, "out" for those that it
            sends.
        message_number: The number of the message in its direction, from 1; for a slow read, that of
            the message before.
        seconds: The length of a delay.
    """

    kind: FaultKind
    direction: Direction
    message_number: int
    seconds: float = 0.0


@attrs.define(eq=False, repr=False)
class FaultSource:
    """The source of the faults in one direction of a channel, in the order of its messages.

    The same seed and number of messages give the same faults, however many reads they take.
    """

    faults: Faults
    direction: Direction
    events: list[Fault]
    seed: str
    _message_count: int = attrs.field(default=0, init=False)
    _message_random: random.Random = attrs.field(init=False)
    _read_random: random.Random = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._message_random, self._read_random = (
            random.Random(f"{self.seed}:{self.direction}:{purpose}")  # noqa: S311  no secret
            # "frames" stands for messages: another word would be another seed.
            for purpose in ("frames", "reads")
        )

    def next_message_fault(self) -> Fault | None:
        """Return the fault that affects the next message, if any."""
        self._message_count += 1
        random_source = self._message_random
        drawn = [random_source.random() < getattr(self.faults, kind) for kind in _MESSAGE_FAULTS]
        for kind, is_drawn in zip(_MESSAGE_FAULTS, drawn, strict=True):
            if is_drawn:
                return self._add(kind, self._delay(random_source) if kind == "delay" else 0.0)
        return None

    def next_read_fault(self) -> Fault | None:
        """Return the fault that delays the next read, if any."""
        random_source = self._read_random
        is_drawn = random_source.random() < self.faults.slow_reader
        return self._add("slow_reader", self._delay(random_source)) if is_drawn else None

    def corrupted(self, message: bytes) -> bytes:
        """Return the message with one byte replaced by another printable character."""
        if not message:
            return message
        index = self._message_random.randrange(len(message))
        other = self._message_random.choice(_PRINTABLE.replace(message[index : index + 1], b""))
        return message[:index] + bytes([other]) + message[index + 1 :]

    def _delay(self, random_source: random.Random) -> float:
        return random_source.uniform(0, self.faults.delay_seconds_max)

    def _add(self, kind: FaultKind, seconds: float) -> Fault:
        fault = Fault(kind, self.direction, self._message_count, seconds)
        self.events.append(fault)
        return fault


_CUT: Final = "the connection was cut by a fault"


@attrs.define
class _Incoming:
    """A message that was read from the wrapped channel, and that `receive` has not returned yet.

    `seconds` is its delay, which begins when `receive` first waits for it; 0 if it has none, or if
    that is over. `due` is the time at which the delay ends.
    """

    message: Received
    seconds: float = 0.0
    due: float = 0.0


@attrs.define(eq=False, repr=False)
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
    _incoming: deque[_Incoming] = attrs.field(factory=deque[_Incoming], init=False)
    # A message that is received after the next one, at the latest when it is due.
    _held: _Incoming | None = attrs.field(default=None, init=False)
    # The time at which a slow receive begins to read.
    _reads_at: float | None = attrs.field(default=None, init=False)
    _is_closed_by_peer: bool = attrs.field(default=False, init=False)
    _is_to_be_cut: bool = attrs.field(default=False, init=False)
    _is_cut: bool = attrs.field(default=False, init=False)
    # Set when this end is closed, by `aclose` or by a cut.
    _closed: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        # Each direction has a random source, so that the faults of one do not depend on the other.
        self._out = FaultSource(self.faults, "out", self.events, str(self.seed))
        self._in = FaultSource(self.faults, "in", self.events, str(self.seed))

    @property
    def transport(self) -> str:
        """The name of the wrapped transport."""
        return getattr(self.inner, "transport", type(self.inner).__name__)

    @property
    def is_cut(self) -> bool:
        """True if the connection was cut by a fault."""
        return self._is_cut

    # Sending.

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages through the wrapped channel; a message that is lost counts as sent.

        Raises:
            trio.BrokenResourceError: The connection was cut.
            Exception: The errors of the wrapped channel.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        ready: list[bytes] = []
        overtaken: list[bytes] = []
        for message in messages:
            fault = self._out.next_message_fault()
            kind = None if fault is None else fault.kind
            if fault is not None and kind in {"cut", "delay"}:
                await self._forward(ready)
                ready = []
                if fault.kind == "cut":
                    await self._cut()
                    raise _broken()
                await self._pause_until(trio.current_time() + fault.seconds)
            if kind == "reorder" and not overtaken:
                overtaken = [message]
            elif kind != "drop":
                ready.append(self._out.corrupted(message) if kind == "corrupt" else message)
                ready += overtaken
                overtaken = []
        await self._forward(ready + overtaken)

    async def _forward(self, messages: Sequence[bytes]) -> None:
        if self._is_cut:
            raise _broken()
        try:
            await self.inner.send(messages)
        except trio.ClosedResourceError:
            if self._is_cut:  # while this send waited for the peer
                raise _broken() from None
            raise

    # Receiving.

    async def receive(self) -> Sequence[Received]:
        """Receive messages from the wrapped channel.

        Raises:
            ConnectionLost: The connection was cut.
            Exception: The errors of the wrapped channel.
        """
        if self._incoming:
            await trio.lowlevel.checkpoint()
        while True:
            self._check_open()
            ready: list[Received] = []
            while self._incoming and not self._incoming[0].seconds:
                ready.append(self._incoming.popleft().message)
            if ready:
                return ready
            if self._incoming:
                await self._wait_until_due(self._incoming[0])
            elif self._is_to_be_cut:
                await self._cut()
            elif self._is_closed_by_peer:
                await trio.lowlevel.checkpoint()
                return []
            else:
                if self.faults.slow_reader:
                    if self._reads_at is None:
                        slow = self._in.next_read_fault()
                        self._reads_at = trio.current_time() + (0 if slow is None else slow.seconds)
                    await self._pause_until(self._reads_at)
                    self._reads_at = None
                received: Sequence[Received] = []
                # The message that is held back may be due before the next ones arrive.
                with trio.move_on_at(math.inf if self._held is None else self._held.due):
                    received = await self._receive()
                if not received:
                    self._release_held()
                for message in received:
                    if not self._is_to_be_cut:
                        self._add_incoming(message)

    async def _wait_until_due(self, late: _Incoming) -> None:
        # The delay begins at the first wait: a receive after a cancelled one waits no longer.
        late.due = late.due or trio.current_time() + late.seconds
        await self._pause_until(late.due)
        late.seconds = 0.0

    async def _receive(self) -> Sequence[Received]:
        try:
            received = await self.inner.receive()
        except trio.ClosedResourceError:
            if self._is_cut:  # while this receive waited
                raise _connection_cut() from None
            raise
        self._is_closed_by_peer = not received
        return received

    def _add_incoming(self, message: Received) -> None:
        fault = self._in.next_message_fault()
        kind = None if fault is None else fault.kind
        if kind == "cut":
            self._is_to_be_cut = True
        elif kind == "reorder" and self._held is None:
            due = trio.current_time() + self.faults.delay_seconds_max
            self._held = _Incoming(message, due=due)
        elif kind != "drop":
            if kind == "corrupt" and isinstance(message, bytes):
                message = self._in.corrupted(message)
            self._incoming.append(_Incoming(message, 0.0 if fault is None else fault.seconds))
            self._release_held()

    def _release_held(self) -> None:
        """Append the message that was held back so that a later one could overtake it."""
        if self._held is not None:
            self._incoming.append(self._held)
            self._held = None

    # Ending.

    async def aclose(self) -> None:
        """Close the wrapped channel."""
        self._closed.set()
        await self.inner.aclose()

    async def _cut(self) -> None:
        self._is_cut = True
        await self.aclose()

    async def _pause_until(self, time: float) -> None:
        """Wait until a time, unless the channel is closed before."""
        with trio.move_on_at(time):
            await self._closed.wait()
        self._check_open()

    def _check_open(self) -> None:
        if self._is_cut:
            raise _connection_cut()
        if self._closed.is_set():
            raise trio.ClosedResourceError("this end of the channel was closed")


def _broken() -> trio.BrokenResourceError:
    return trio.BrokenResourceError(_CUT)


def _connection_cut() -> ConnectionLost:
    return ConnectionLost(_CUT)


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
