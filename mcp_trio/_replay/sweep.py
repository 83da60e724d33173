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
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Final

import attrs
import msgspec
import trio

from mcp_trio._engine.schedules import seeded_schedule
from mcp_trio._engine.stray_calls import Stray
from mcp_trio._engine.strays import StrayWatch
from mcp_trio._errors import BlockedInReplay, SweepUnavailable
from mcp_trio._journal.frames import json_difference
from mcp_trio._replay.messages import message_of
from mcp_trio._replay.replay import Replayable
from mcp_trio._replay.shields import unshield
from mcp_trio._replay.silent_channel import SilentChannel
from mcp_trio._replay.sweep_score import (
    Outcomes,
    RequestOutcome,
    SweepScore,
    load_sweep_score,
)
from mcp_trio._replay.sweep_session import Conductor, JumpingClock, SweepSequencer
from mcp_trio._server.lifespan_stand_in import LifespanStandIn

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
    `seed=`. `strays` are what the first schedule read beside the context: clocks and dice that no
    seed decides, and which may be why schedules differ.
    """

    schedules: int
    outcomes: int
    differences: tuple[ScheduleDifference, ...]
    strays: tuple[Stray, ...]
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Whether every schedule came to what is recorded."""
        return not self.differences

    @property
    def failing_seeds(self) -> list[int]:
        """The seeds of the schedules that did not."""
        return sorted({difference.seed for difference in self.differences})


class ScheduleOutcome(msgspec.Struct, kw_only=True, frozen=True):
    """What one schedule came to: `digest` is the same for the same end."""

    digest: str
    differences: tuple[ScheduleDifference, ...]
    strays: tuple[Stray, ...]


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
    score, begin = load_sweep_score(path), time.perf_counter()
    first, *others = _seeds(schedules, seed)
    outcomes = [_checked(run_schedule(score, target(), first, is_watched=True))]
    outcomes += [run_schedule(score, target(), each) for each in others]
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
    score, begin = load_sweep_score(path), time.perf_counter()
    first, *others = _seeds(schedules, seed)
    outcomes = [_checked(_fork(score, server, first, is_watched=True).outcome())]
    running: deque[_Fork] = deque()
    try:
        for each in others:
            if len(running) == _FORKS:
                outcomes.append(running.popleft().outcome())
            running.append(_fork(score, server, each))
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
    for stray in outcome.strays:
        if stray.is_outside:
            raise BlockedInReplay(f"a sweep cannot let handlers do this: {stray}")
    return outcome


def _report(outcomes: Sequence[ScheduleOutcome], begin: float) -> SweepReport:
    return SweepReport(
        schedules=len(outcomes),
        outcomes=len({outcome.digest for outcome in outcomes}),
        differences=tuple(each for outcome in outcomes for each in outcome.differences),
        strays=outcomes[0].strays,
        seconds=time.perf_counter() - begin,
    )


# A process of its own, and one for each schedule.


def _swept_elsewhere(
    path: str | os.PathLike[str], target: str, *, schedules: int, seed: int | None
) -> SweepReport:
    _seeds(schedules, seed)
    load_sweep_score(path)
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


def _fork(score: SweepScore, server: Replayable, seed: int, *, is_watched: bool = False) -> _Fork:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:  # pragma: no cover  a fork takes its measurements with it
        _tell(writing, functools.partial(run_schedule, score, server, seed, is_watched=is_watched))
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
    score: SweepScore, server: Replayable, seed: int, *, is_watched: bool = False
) -> ScheduleOutcome:
    """One schedule of a fresh server, in this process.

    To be watched for strays takes three times as long.

    Raises:
        SweepUnavailable: This Trio has no flag for its schedule any more.
    """
    clock, strays = JumpingClock(), dict[Stray, None]()
    sequencer = SweepSequencer(score, score.opening.seed, seed, clock)
    watch = StrayWatch(on_stray=lambda stray: strays.update({stray: None}), blocks=True)
    try:
        with seeded_schedule(seed):
            trio.run(_run, score, server, sequencer, watch if is_watched else None, clock=clock)
    except RuntimeError as error:
        raise SweepUnavailable(str(error)) from error
    return _judged(score, sequencer, seed, tuple(strays))


async def _run(
    score: SweepScore,
    server: Replayable,
    sequencer: SweepSequencer,
    watch: StrayWatch | None,
) -> None:
    lifespan = LifespanStandIn() if score.opening.lifespan else None
    session = server.open_session(SilentChannel(), sequencer=sequencer, lifespan=lifespan)
    clock = sequencer.clock
    with watch or nullcontext():
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await Conductor(score, session, sequencer, nursery).run()
            clock.is_over = True
            clock.on_standstill = functools.partial(unshield, trio.lowlevel.current_task())
            nursery.cancel_scope.cancel()


# Comparing.


def _judged(
    score: SweepScore, sequencer: SweepSequencer, seed: int, strays: tuple[Stray, ...]
) -> ScheduleOutcome:
    swept = sequencer.outcomes
    differences: list[ScheduleDifference] = []
    for lane, recorded in score.outcomes.requests.items():
        now = swept.requests.get(lane, RequestOutcome())
        was_cancelled = lane in sequencer.done and not now.is_answered
        if recorded.is_answered and not was_cancelled:
            for path, left, right in _differences(*score.without_secrets(recorded, now)):
                differences.append(
                    ScheduleDifference(
                        seed=seed,
                        lane=lane,
                        call=score.calls.get(lane, ""),
                        path=path,
                        recorded=_shown(left),
                        swept=_shown(right),
                    )
                )
    return ScheduleOutcome(
        digest=_digest(swept),
        differences=tuple(differences[:_DIFFERENCES_PER_SCHEDULE_MAX]),
        strays=strays,
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
        for path, old, new in json_difference(left, right)[:1]:
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
