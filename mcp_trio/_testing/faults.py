"""What may go wrong with a connection, drawn by dice that have a seed."""

import math
import random
from typing import Final, Literal, TypeAlias

import attrs

FaultKind: TypeAlias = Literal["cut", "drop", "corrupt", "reorder", "delay", "slow_reader"]
Direction: TypeAlias = Literal["in", "out"]

# What may happen to a frame: the first that the dice say is what happens.
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
    """How likely which fault is, from 0 (never) to 1; without any, a connection is as good as new.

    Attributes:
        drop: That a frame is lost, and nobody is told.
        delay: That a frame, and all behind it, comes up to `delay_seconds_max` later.
        reorder: That a frame changes places with the one behind it: of the same send, or of those
            that arrive within `delay_seconds_max`.
        cut: That the connection is lost instead of carrying a frame.
        corrupt: That one byte of a frame is another.
        slow_reader: That a receive waits up to `delay_seconds_max` before it reads, so that the
            peer's sends have to wait when the connection is full.
        delay_seconds_max: How long the longest wait is.

    Raises:
        ValueError: A chance is below 0 or above 1, or `delay_seconds_max` negative or infinite.
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
    """One thing that went wrong: what, in which direction, at which frame of it (from 1 on).

    "in" is what the channel with the faults receives; a slow read comes behind its frame. `seconds`
    is how long a wait was.
    """

    kind: FaultKind
    direction: Direction
    frame: int
    seconds: float = 0.0


@attrs.define(eq=False)
class FaultDice:
    """What goes wrong in one direction of a channel, in the order in which frames pass.

    The same seed and number of frames give the same faults, however many reads brought them.
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
        """What happens to the next frame, if anything does."""
        self._frames += 1
        dice = self._of_frames
        drawn = [dice.random() < getattr(self.faults, kind) for kind in _FRAME_FAULTS]
        for kind, is_drawn in zip(_FRAME_FAULTS, drawn, strict=True):
            if is_drawn:
                return self._happens(kind, self._waits(dice) if kind == "delay" else 0.0)
        return None

    def throw_for_a_read(self) -> Fault | None:
        """Whether the next read is a slow one."""
        dice = self._of_reads
        is_drawn = dice.random() < self.faults.slow_reader
        return self._happens("slow_reader", self._waits(dice)) if is_drawn else None

    def corrupted(self, frame: bytes) -> bytes:
        """The frame with one byte that is another, and no end of a line; an empty one as it is."""
        if not frame:
            return frame
        place = self._of_frames.randrange(len(frame))
        other = self._of_frames.choice(_PRINTABLE.replace(frame[place : place + 1], b""))
        return frame[:place] + bytes([other]) + frame[place + 1 :]

    def _waits(self, dice: random.Random) -> float:
        return dice.uniform(0, self.faults.delay_seconds_max)

    def _happens(self, kind: FaultKind, seconds: float) -> Fault:
        fault = Fault(kind, self.direction, self._frames, seconds)
        self.events.append(fault)
        return fault
