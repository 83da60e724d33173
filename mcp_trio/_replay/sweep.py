"""`sweep`: the same inputs under many schedules, to find handlers that race.

A recording shows one order in which things happened, perhaps a lucky one. A sweep runs the handlers
again and again, each time with another order of tasks and other delays, all from one seed, and
compares what each request came to with what is recorded. The order of tasks is decided by a flag of
Trio's that is meant for tests (`_engine.schedules`); this is the one use that a recording makes of
it.

Handlers keep state in modules, so every schedule needs a fresh process, or a fresh server. A sweep
of a TARGET runs in a process of its own, which forks for each schedule after it has imported
everything.
"""

import functools
import hashlib
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from random import Random
from typing import Any, Final

import attrs
import msgspec
import trio

from mcp_trio._journal.diff import json_differences
from mcp_trio._journal.records import LOCK, SLEEP, TIMEOUT, CommandBody, ErrorBody, encode_body
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._replay.replay import Replayable, SilentChannel
from mcp_trio._replay.replayer import unshield
from mcp_trio._replay.sweep_inputs import (
    Input,
    Outcomes,
    RequestOutcome,
    SweepTrace,
    Told,
    load_sweep_trace,
    passing_command,
)
from mcp_trio._replay.trace import NS_PER_SECOND, message_of
from mcp_trio._server.effects import ReplayLifespan
from mcp_trio._session.journal import Lane, Outcome
from mcp_trio._session.nondeterminism import UntrackedCall, UntrackedCallWatch
from mcp_trio._session.session import Session
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import BlockedInReplay, SweepUnavailable

# --------------------
# One schedule of a sweep: the recorded session again, with its tasks and delays as a seed says.
#
# Nothing waits for the journal here. What the client sent comes when it came, but not before the
# answers that the client had by then. Effects, and the client's answers, end as recorded, after a
# time that the seed decides. Everything else is as in production: tasks take turns, locks exclude.
#
# A lane's n-th effect of a name gets what it got then. One that was not recorded fails: the handler
# has taken another way, and that shows.


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

    It `decides_turns` only so that effects ask it for their outcomes: each turn comes at once, but
    lets other tasks run first.
    """

    trace: SweepTrace
    seed: int | None
    dice_seed: int
    clock: JumpingClock
    outcomes: Outcomes = attrs.field(factory=Outcomes, init=False)
    done: set[str] = attrs.field(factory=set[str], init=False)
    delivering: int = attrs.field(default=0, init=False)
    changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    answer: Callable[[float, bytes], None] = attrs.field(init=False)
    has_lanes: bool = attrs.field(default=True, init=False)
    decides_turns: bool = attrs.field(default=True, init=False)
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
        recorded = self.trace.answers.get((lane.name, method), ())
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
        recorded = self.trace.effects.get((lane.name, command.name), ())
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
        recorded = self.trace.values.get((lane.name, name), ())
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
        """Return whether the lane knew the change."""
        return (lane.name, name) in self.trace.patches

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
        random_source = Random(f"{self.dice_seed}:{what}:{lane.name}:{name}:{nth}")  # noqa: S311  a schedule
        return random_source.uniform(0, _DELAY_FACTOR * self.trace.longest_seconds)


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

    trace: SweepTrace
    session: Session
    sequencer: SweepSequencer
    nursery: trio.Nursery
    _is_stuck: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.sequencer.answer = self._answer_later
        self.sequencer.clock.on_standstill = self._stand_still

    async def run(self) -> None:
        """Returns when all requests that were answered are, or never will be."""
        trace = self.trace
        delays = sum(map(len, trace.effects.values())) + sum(map(len, trace.answers.values()))
        longest_seconds = trace.longest_seconds * _DELAY_FACTOR * delays
        with trio.move_on_at(trace.seconds + longest_seconds + _PATIENCE_SECONDS):
            answers = 0
            for given in trace.inputs:
                await self._until(trace.answered[answers : given.after])
                await self._give(given)
                answers = given.after
            await self._until(trace.answered[answers:])

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


SCHEDULES: Final = 100

# How many schedules run at the same time, each in its process.
_FORKS: Final = os.cpu_count() or 1

# How many differences are told of one schedule: the first ones explain the others.
_DIFFERENCES_PER_SCHEDULE_MAX: Final = 3

# How much of what differs is shown.
_TEXT_CHARACTERS_MAX: Final = 300


class ScheduleDifference(msgspec.Struct, kw_only=True, frozen=True):
    """A request that came to something else than recorded, under the schedule of a seed.

    `lane` is the request's, `call` what it asks for, such as `tools/call "sell"`. `path` tells
    where the answer, a notification or an effect's arguments differ; both sides are JSON, of which
    the begin is shown if it is long.
    """

    seed: int
    lane: str
    call: str
    path: str
    recorded: str
    swept: str

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.call} (lane {self.lane}), {self.path}:"
            f" {self.recorded} recorded, {self.swept} now"
        )


class SweepReport(msgspec.Struct, kw_only=True, frozen=True):
    """A sweep: how many schedules were run, and to how many different ends they came.

    `differences` are those to the recording, by seed; a failing seed alone is run again with
    `seed=`. `untracked_calls` are what the first schedule read beside the context: clocks and dice
    that no seed decides, and which may be why schedules differ.
    """

    schedules: int
    outcomes: int
    differences: tuple[ScheduleDifference, ...]
    untracked_calls: tuple[UntrackedCall, ...]
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Return whether every schedule came to what is recorded."""
        return not self.differences

    @property
    def failing_seeds(self) -> list[int]:
        """The seeds of the schedules that did not."""
        return sorted({difference.seed for difference in self.differences})


class ScheduleOutcome(msgspec.Struct, kw_only=True, frozen=True):
    """What one schedule came to: `digest` is the same for the same end."""

    digest: str
    differences: tuple[ScheduleDifference, ...]
    untracked_calls: tuple[UntrackedCall, ...]


def sweep(
    path: str | os.PathLike[str],
    target: str | Callable[[], Replayable],
    *,
    schedules: int = SCHEDULES,
    seed: int | None = None,
) -> SweepReport:
    """Run the handlers of a server under many schedules; returns how they fared.

    `target` is a TARGET as on the command line, such as `server.py`, and is swept in a process of
    its own; or a function that makes a fresh server, with fresh state, for each schedule: then the
    sweep runs here, and no other thread of this process may run Trio meanwhile. Seeds are 0, 1, 2
    and so on; with `seed`, only that schedule is run.

    An answer that may well depend on who comes first differs as well: judge for yourself. What was
    taken out of a redacted recording is not compared.

    Raises:
        RecordingError: The file is unusable: not a recording of one session of role `server`.
        BlockedInReplay: A handler reaches for the outside world other than by an effect. The first
            schedule is watched for that, and it was not done. Of a TARGET, `SweepUnavailable`.
        SweepUnavailable: This Trio, or the process, cannot do it; the text says why.
        ValueError: `schedules` is less than 1.
    """
    if isinstance(target, str):
        return _swept_elsewhere(path, target, schedules=schedules, seed=seed)
    trace, begin = load_sweep_trace(path), time.perf_counter()
    first, *others = _seeds(schedules, seed)
    outcomes = [_checked(run_schedule(trace, target(), first, is_watched=True))]
    outcomes += [run_schedule(trace, target(), each) for each in others]
    return _report(outcomes, begin)


def sweep_forked(
    path: str | os.PathLike[str],
    server: Replayable,
    *,
    schedules: int = SCHEDULES,
    seed: int | None = None,
) -> SweepReport:
    """`sweep` by a fork of this process for each schedule; for a process with a single thread.

    Raises:
        RecordingError, BlockedInReplay, SweepUnavailable, ValueError: See `sweep`.
    """
    if not hasattr(os, "fork"):
        raise SweepUnavailable("this system cannot fork a process for each schedule")
    trace, begin = load_sweep_trace(path), time.perf_counter()
    first, *others = _seeds(schedules, seed)
    outcomes = [_checked(_fork(trace, server, first, is_watched=True).outcome())]
    running: deque[_Fork] = deque()
    try:
        for each in others:
            if len(running) == _FORKS:
                outcomes.append(running.popleft().outcome())
            running.append(_fork(trace, server, each))
        while running:
            outcomes.append(running.popleft().outcome())
    finally:
        for fork in running:
            fork.give_up()
    return _report(outcomes, begin)


def _seeds(schedules: int, seed: int | None) -> Sequence[int]:
    if schedules < 1:
        raise ValueError("a sweep takes one schedule at least")
    return range(schedules) if seed is None else (seed,)


def _checked(outcome: ScheduleOutcome) -> ScheduleOutcome:
    for untracked_call in outcome.untracked_calls:
        if untracked_call.is_outside:
            raise BlockedInReplay(f"a sweep cannot let handlers do this: {untracked_call}")
    return outcome


def _report(outcomes: Sequence[ScheduleOutcome], begin: float) -> SweepReport:
    return SweepReport(
        schedules=len(outcomes),
        outcomes=len({outcome.digest for outcome in outcomes}),
        differences=tuple(each for outcome in outcomes for each in outcome.differences),
        untracked_calls=outcomes[0].untracked_calls,
        seconds=time.perf_counter() - begin,
    )


# A process of its own, and one for each schedule.


def _swept_elsewhere(
    path: str | os.PathLike[str], target: str, *, schedules: int, seed: int | None
) -> SweepReport:
    _seeds(schedules, seed)
    load_sweep_trace(path)
    command = [sys.executable, "-m", "mcp_trio", "sweep", os.fspath(path), target, "--json"]
    options = ["--schedules", str(schedules)] if seed is None else ["--seed", str(seed)]
    run = subprocess.run([*command, *options], capture_output=True, check=False)
    try:
        return msgspec.json.decode(run.stdout, type=SweepReport)
    except ValueError:
        text = run.stderr.decode(errors="replace").strip()
        raise SweepUnavailable(f"the sweep's process ended with {run.returncode}: {text}") from None


@attrs.frozen
class _Fork:
    """A process that runs one schedule, and the pipe through which it tells."""

    seed: int
    process: int
    pipe: int

    def outcome(self) -> ScheduleOutcome:
        """What the schedule came to; waits for it."""
        with os.fdopen(self.pipe, "rb") as told:
            text = told.read()
        os.waitpid(self.process, 0)
        try:
            return msgspec.json.decode(text, type=ScheduleOutcome)
        except ValueError:
            reason = text.decode(errors="replace") or "its process ended by itself"
            raise SweepUnavailable(f"schedule {self.seed} could not be run: {reason}") from None

    def give_up(self) -> None:
        """End it, whatever it would come to."""
        os.kill(self.process, signal.SIGKILL)
        os.close(self.pipe)
        os.waitpid(self.process, 0)


def _fork(trace: SweepTrace, server: Replayable, seed: int, *, is_watched: bool = False) -> _Fork:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:  # pragma: no cover  a fork takes its measurements with it
        _tell(writing, functools.partial(run_schedule, trace, server, seed, is_watched=is_watched))
    os.close(writing)
    return _Fork(seed, process, reading)


def _tell(writing: int, run: Callable[[], ScheduleOutcome]) -> None:  # pragma: no cover  the same
    """Run a schedule in a fork, which never returns: what people print goes to stderr."""
    sys.stdout = sys.stderr
    os.dup2(2, 1)
    try:
        text = msgspec.json.encode(run())
    except BaseException as error:
        text = repr(error).encode()
    try:
        with os.fdopen(writing, "wb") as telling:
            telling.write(text)
    finally:
        os._exit(0)


# One schedule.


def run_schedule(
    trace: SweepTrace, server: Replayable, seed: int, *, is_watched: bool = False
) -> ScheduleOutcome:
    """One schedule of a fresh server, in this process.

    To be watched for strays takes three times as long.

    Raises:
        SweepUnavailable: This Trio has no flag for its schedule any more.
    """
    clock, untracked_calls = JumpingClock(), dict[UntrackedCall, None]()
    sequencer = SweepSequencer(trace, trace.opening.seed, seed, clock)
    watch = UntrackedCallWatch(
        on_untracked_call=lambda untracked_call: untracked_calls.update({untracked_call: None}),
        blocks=True,
    )
    try:
        with seeded_schedule(seed):
            trio.run(_run, trace, server, sequencer, watch if is_watched else None, clock=clock)
    except RuntimeError as error:
        raise SweepUnavailable(str(error)) from error
    return _judged(trace, sequencer, seed, tuple(untracked_calls))


async def _run(
    trace: SweepTrace,
    server: Replayable,
    sequencer: SweepSequencer,
    watch: UntrackedCallWatch | None,
) -> None:
    lifespan = ReplayLifespan() if trace.opening.lifespan else None
    session = server.open_session(SilentChannel(), sequencer=sequencer, lifespan=lifespan)
    clock = sequencer.clock
    with watch or nullcontext():
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await Conductor(trace, session, sequencer, nursery).run()
            clock.is_over = True
            clock.on_standstill = functools.partial(unshield, trio.lowlevel.current_task())
            nursery.cancel_scope.cancel()


# Comparing.


def _judged(
    trace: SweepTrace,
    sequencer: SweepSequencer,
    seed: int,
    untracked_calls: tuple[UntrackedCall, ...],
) -> ScheduleOutcome:
    swept = sequencer.outcomes
    differences: list[ScheduleDifference] = []
    for lane, recorded in trace.outcomes.requests.items():
        now = swept.requests.get(lane, RequestOutcome())
        was_cancelled = lane in sequencer.done and not now.is_answered
        if recorded.is_answered and not was_cancelled:
            for path, left, right in _differences(*trace.without_secrets(recorded, now)):
                differences.append(
                    ScheduleDifference(
                        seed=seed,
                        lane=lane,
                        call=trace.calls.get(lane, ""),
                        path=path,
                        recorded=_shown(left),
                        swept=_shown(right),
                    )
                )
    return ScheduleOutcome(
        digest=_digest(swept),
        differences=tuple(differences[:_DIFFERENCES_PER_SCHEDULE_MAX]),
        untracked_calls=untracked_calls,
    )


def _differences(
    recorded: RequestOutcome, swept: RequestOutcome
) -> Iterator[tuple[str, object, object]]:
    """The first place of each kind where two outcomes of a request differ; effects come first."""
    for lane in recorded.commands | swept.commands:
        left, right = recorded.commands.get(lane, []), swept.commands.get(lane, [])
        yield from _first_difference(f"effect of lane {lane}", left, right)
    if not swept.is_answered:
        yield "answer", recorded.frames[-1], msgspec.UNSET
        return
    yield from _first_difference("", recorded.frames, swept.frames)


def _first_difference(
    what: str, recorded: Sequence[bytes], swept: Sequence[bytes]
) -> Iterator[tuple[str, object, object]]:
    for left, right in zip(recorded, swept, strict=False):
        for path, old, new in json_differences(left, right)[:1]:
            yield f"{what or _kind(left)} {path}", old, new
            return
    if len(recorded) != len(swept):
        place = min(len(recorded), len(swept))
        yield what or "messages", _at(recorded, place), _at(swept, place)


def _kind(frame: bytes) -> str:
    return message_of(frame).method or "answer"


def _at(frames: Sequence[bytes], place: int) -> object:
    return frames[place] if place < len(frames) else msgspec.UNSET


def _shown(value: object) -> str:
    if value is msgspec.UNSET:
        return "nothing"
    text = (value if isinstance(value, bytes) else msgspec.json.encode(value)).decode()
    return text if len(text) <= _TEXT_CHARACTERS_MAX else f"{text[:_TEXT_CHARACTERS_MAX]}…"


def _digest(outcomes: Outcomes) -> str:
    told: list[Any] = [
        (lane, outcome.frames, sorted(outcome.commands.items()))
        for lane, outcome in sorted(outcomes.requests.items())
    ]
    return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:16]
