"""One schedule of a sweep: the recorded session again, with its tasks and delays as a seed says.

Nothing waits for the journal here. What the client sent comes when it came, but not before the
answers that the client had by then. Effects, and the client's answers, end as recorded, after a
time that the seed decides. Everything else is as in production: tasks take turns, locks exclude.

A lane's n-th effect of a name gets what it got then. One that was not recorded fails: the handler
has taken another way, and that shows.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import attrs
import msgspec
import trio

from mcp_trio._engine import Lane, Outcome, Session
from mcp_trio._errors import BlockedInReplay
from mcp_trio._journal.records import LOCK, SLEEP, TIMEOUT, CommandBody, ErrorBody, encode_body
from mcp_trio._replay.messages import message_of
from mcp_trio._replay.score import NS_PER_SECOND
from mcp_trio._replay.sweep_score import Input, Outcomes, SweepScore, Told, passing_command
from mcp_trio._wire import Oversized

_NEVER_SECONDS: Final = 1e9

# How often a run may look at the clock while it stands: one that does so more often spins, and then
# time passes by itself.
_LOOKS_MAX: Final = 5_000
_SPIN_SECONDS: Final = 1.0

# Frames that came closer together come at once, as in one read.
_BATCH_SECONDS: Final = 1e-3

# How many times as long as the slowest one in the recording an effect may take.
_DELAY_FACTOR: Final = 2.0

# How much longer than recorded a session may take besides, until what is not answered never is.
_PATIENCE_SECONDS: Final = 10.0


@attrs.define(eq=False)
class JumpingClock(trio.abc.Clock):
    """Time that jumps to whatever is waited for next, unless a thread runs.

    `on_standstill` is called when nothing is waited for that could come, when tasks spin, and, once
    the session `is_over`, when there is still something to wait for again and again.
    """

    on_standstill: Callable[[], None] = attrs.field(default=lambda: None)
    is_held: bool = attrs.field(default=False, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _now: float = attrs.field(default=0.0, init=False)
    _looks: int = attrs.field(default=0, init=False)

    def start_clock(self) -> None:
        """Nothing starts: time only jumps."""

    def current_time(self) -> float:
        """The time that was last jumped to."""
        self._looks += 1
        if self._looks > _LOOKS_MAX:
            self._looks = 0
            self._now += _SPIN_SECONDS
            self.on_standstill()
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Zero, after a jump to what comes next; for ever, if only a thread can bring that."""
        if self.is_held and deadline > self._now:
            return _NEVER_SECONDS
        if not self.is_over:
            self._looks = 0
        if deadline == math.inf:
            self.on_standstill()
        else:
            self._now = max(self._now, deadline)
        return 0.0


@attrs.define(eq=False)
class SweepSequencer:
    """Stands where a live session has its recorder, and answers what the outside would.

    It `gates` only so that effects ask it for their outcomes: each turn comes at once, but lets
    other tasks run first.
    """

    score: SweepScore
    seed: int | None
    dice_seed: int
    clock: JumpingClock
    outcomes: Outcomes = attrs.field(factory=Outcomes, init=False)
    done: set[str] = attrs.field(factory=set[str], init=False)
    delivering: int = attrs.field(default=0, init=False)
    changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    answer: Callable[[float, bytes], None] = attrs.field(init=False)
    has_lanes: bool = attrs.field(default=True, init=False)
    gates: bool = attrs.field(default=True, init=False)
    _begun: dict[str, tuple[float, Told]] = attrs.field(
        factory=dict[str, tuple[float, Told]], init=False
    )
    _ended: dict[str, Told] = attrs.field(factory=dict[str, Told], init=False)
    _counts: Counter[tuple[str, str, str]] = attrs.field(
        factory=Counter[tuple[str, str, str]], init=False
    )
    _thread: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(1), init=False)

    # What happens.

    def took(self, frame: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002  the protocol's
        """The number that the frame had, so that lanes have the same names."""
        return self.delivering

    def sent(self, frame: bytes, lane: Lane | None) -> None:
        """Keep it; a question to the client is answered as it was then."""
        if lane is None or self.clock.is_over:
            return
        message = message_of(frame)
        self.outcomes.sent(lane.name, message, frame)
        if message.is_answer:
            self._finish(lane)
        elif message.is_request:
            self._answer(lane, message.method, message.id)

    def _answer(self, lane: Lane, method: str, request_id: object) -> None:
        nth = self._next("asked", lane, method)
        recorded = self.score.answers.get((lane.name, method), ())
        if nth < len(recorded):
            answer = msgspec.json.decode(recorded[nth], type=dict[str, msgspec.Raw])
            answer["id"] = msgspec.Raw(encode_body(request_id))
            self.answer(self._delay("asked", lane, method, nth), encode_body(answer))

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:  # noqa: ARG002  the same
        """A request ends without an answer: it was cancelled."""
        self._finish(lane)

    def _finish(self, lane: Lane) -> None:
        if not self.clock.is_over:
            self.done.add(lane.name)
            self.changed.unpark_all()

    def started(self, lane: Lane) -> None:
        """Nothing to do."""

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Nothing to do."""

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:  # noqa: ARG002
        """It holds."""
        return value

    def shut(self, cause: str) -> None:
        """Nothing to do."""

    def flush(self) -> None:
        """Nothing to do."""

    def close(self, counts: dict[str, int]) -> None:
        """Nothing to do."""

    # What is asked of the outside.

    def clock_ns(self) -> int:
        """Of the time that jumps."""
        return int(trio.current_time() * NS_PER_SECOND)

    def commanded(self, lane: Lane, body: bytes) -> None:
        """An effect begins, and will end as it did then."""
        command = msgspec.json.decode(body, type=CommandBody)
        self.outcomes.commanded(lane.name, command)
        nth = self._next("effect", lane, command.name)
        recorded = self.score.effects.get((lane.name, command.name), ())
        seconds = _seconds_of_context(command)
        if seconds is not None and all(map(_says_nothing, recorded)):
            told = _DONE
        else:
            told = recorded[nth] if nth < len(recorded) else _unrecorded(command.name)
            seconds = self._delay("effect", lane, command.name, nth)
        self._begun[lane.name] = (seconds, told)

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:  # noqa: ARG002  the same
        """The kind of the outcome, when an effect has begun; else empty, but for a cancellation."""
        begun = self._begun.pop(lane.name, None)
        if begun is None:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return "cxl" if trio.current_effective_deadline() == -math.inf else ""
        seconds, told = begun
        if told.kind == "cxl":
            await trio.sleep_forever()
        await trio.sleep(seconds)
        self._ended[lane.name] = told
        return told.kind

    def recorded(self, lane: Lane) -> bytes | None:
        """The outcome of the effect whose turn it was."""
        return self._ended.pop(lane.name).body

    async def until_cancelled(self, lane: Lane) -> None:  # noqa: ARG002  the same
        """The cancellation is there already."""
        await trio.sleep_forever()

    async def turn_to_start(self, lane: Lane) -> None:  # noqa: ARG002  the same
        """At once."""
        await trio.lowlevel.cancel_shielded_checkpoint()

    def valued(
        self,
        lane: Lane,
        name: str,
        arguments: bytes | None,
        read: Callable[[], Outcome],
    ) -> Outcome:
        """What was read then; what is read now, if it is a clock and was not, or a deadline."""
        nth = self._next("value", lane, name)
        recorded = self.score.values.get((lane.name, name), ())
        command = None if arguments is None else passing_command(name, arguments)
        if command is None:
            is_read = nth >= len(recorded)
        else:
            is_read = name == TIMEOUT
            self.outcomes.commanded(lane.name, command)
        if is_read:
            return read()
        told = recorded[nth] if nth < len(recorded) else _unrecorded(name)
        return Outcome("err" if told.kind == "err" else "res", told.body)

    def patched(self, lane: Lane, name: str) -> bool:
        """Whether the lane knew the change."""
        return (lane.name, name) in self.score.patches

    def noted(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:  # noqa: ARG002
        """What it looks like here: deadlines pass when they do in this schedule."""
        return is_so

    async def let_thread_run(self, name: str) -> None:  # noqa: ARG002  the same
        """One at a time; meanwhile the clock stands."""
        await self._thread.acquire()
        self.clock.is_held = True

    async def turn_in_thread(self, lane: Lane) -> None:
        """Go on: when a request is cancelled, its calls are."""

    def thread_stands(self) -> None:
        """See `let_thread_run`."""
        self.clock.is_held = False
        self._thread.release()

    def _next(self, what: str, lane: Lane, name: str) -> int:
        key = (what, lane.name, name)
        self._counts[key] += 1
        return self._counts[key] - 1

    def _delay(self, what: str, lane: Lane, name: str, nth: int) -> float:
        dice = Random(f"{self.dice_seed}:{what}:{lane.name}:{name}:{nth}")  # noqa: S311  a schedule
        return dice.uniform(0, _DELAY_FACTOR * self.score.longest_seconds)


_DONE: Final = Told("res", b"null")


def _seconds_of_context(command: CommandBody) -> float | None:
    """How long the context's own `sleep` or `lock` takes; None: it is somebody's function."""
    if command.name == LOCK:
        return 0.0
    if command.name != SLEEP:
        return None
    seconds = command.arguments["seconds"]
    if seconds is None:  # JSON has no infinity
        return math.inf
    return seconds if isinstance(seconds, int | float) else None


def _says_nothing(told: Told) -> bool:
    return told.kind == "cxl" or told == _DONE


def _unrecorded(name: str) -> Told:
    text = f"the effect {name!r} was not done here when the session was recorded"
    kind = f"{BlockedInReplay.__module__}.{BlockedInReplay.__qualname__}"
    return Told("err", encode_body(ErrorBody(type=kind, text=text, args=[text])))


# Leading the session.


@attrs.define(eq=False)
class Conductor:
    """Sends what the client sent, and waits for what it waited for, but not for ever."""

    score: SweepScore
    session: Session
    sequencer: SweepSequencer
    nursery: trio.Nursery
    _is_stuck: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.sequencer.answer = self._answer_later
        self.sequencer.clock.on_standstill = self._stand_still

    async def run(self) -> None:
        """Returns when all requests that were answered are, or never will be."""
        score = self.score
        delays = sum(map(len, score.effects.values())) + sum(map(len, score.answers.values()))
        longest_seconds = score.longest_seconds * _DELAY_FACTOR * delays
        with trio.move_on_at(score.seconds + longest_seconds + _PATIENCE_SECONDS):
            answers = 0
            for given in score.inputs:
                await self._until(score.answered[answers : given.after])
                await self._give(given)
                answers = given.after
            await self._until(score.answered[answers:])

    async def _until(self, lanes: Sequence[str]) -> None:
        for lane in lanes:
            while not (lane in self.sequencer.done or self._is_stuck):
                await self.sequencer.changed.park()

    async def _give(self, given: Input) -> None:
        if given.seconds > trio.current_time() + _BATCH_SECONDS:
            await trio.sleep_until(given.seconds)
        self._is_stuck = False
        self.sequencer.delivering = given.number
        self.session.take(given.frame)

    def _stand_still(self) -> None:
        self._is_stuck = True
        self.sequencer.changed.unpark_all()

    def _answer_later(self, seconds: float, frame: bytes) -> None:
        self.nursery.start_soon(self._give_answer, seconds, frame)

    async def _give_answer(self, seconds: float, frame: bytes) -> None:
        await trio.sleep(seconds)
        self.session.take(frame)
