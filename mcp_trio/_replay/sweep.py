"""`sweep`: replay a recording's inputs under many schedules, to find handlers that race.

A recording shows one order of events, in which a race may have had no effect. A sweep runs the
handlers in many other orders, which `schedules.py` chooses. It compares the outcome of each request
with the recorded one. It then shortens one of the schedules with other outcomes, until the outcomes
need each remaining change to the recorded order.

Handlers keep state in modules, so every schedule needs a fresh process or a fresh server. The sweep
of a TARGET runs in a process of its own, which imports everything and then forks once for each
schedule.
"""

import functools
import logging
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, get_args

import attrs
import msgspec

from mcp_trio._journal.texts import json_text, shortened
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.controlled_run import ThreadToken, run_controlled
from mcp_trio._replay.schedules import (
    DEFAULT_PCT_BOUND,
    Decision,
    Order,
    PriorityOrder,
    RandomOrder,
    RecordedOrder,
    Schedule,
    Scheduler,
    Strategy,
    SweepSequencer,
    deviations_of,
    search_depth_first,
    shorten,
)
from mcp_trio._replay.source_locations import source_of
from mcp_trio._replay.sweep_trace import (
    RequestOutcome,
    SweepTrace,
    load_sweep_trace,
    outcome_differences,
)
from mcp_trio._replay.trace import request_lane_name
from mcp_trio._server.effects import LIFESPAN
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio._session.untracked_calls import UntrackedCall
from mcp_trio._system import SIGKILL
from mcp_trio.errors import BlockedInReplay, RecordingError, SweepUnavailable

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

DEFAULT_SCHEDULES: Final = 100

# The number of schedules that run at the same time, each in a process.
_PROCESSES_MAX: Final = os.cpu_count() or 1

# The first differences of a schedule explain the others.
_WAITS_MAX: Final = 5
_DIFFERENCES_PER_SCHEDULE_MAX: Final = 3
_TEXT_CHARACTERS_MAX: Final = 300


# Reports ------------------------------------------------------------------------------------------


class ScheduleDifference(msgspec.Struct, kw_only=True, frozen=True):
    """A request whose outcome under a schedule differs from the recorded one.

    Attributes:
        schedule: The number of the schedule.
        lane: The lane of the request; empty if the session itself failed.
        call: The call of the request, such as `tools/call "sell"`.
        path: The message or effect that differs, and the JSON path in it.
        recorded: The recorded value as JSON, cut if it is long.
        swept: The value under the schedule, likewise.
        waits: The locations at which the tasks of the request wait at the end of the schedule, if
            its response has not come.
    """

    schedule: int
    lane: str
    call: str
    path: str
    recorded: str
    swept: str
    waits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"schedule {self.schedule}: {self.text}"

    @property
    def text(self) -> str:
        """Return the difference, without the number of the schedule."""
        if not self.lane:
            return f"the session failed: {self.swept}"
        waits = f"; its handler waits {', '.join(self.waits)}" if self.waits else ""
        return (
            f"{self.call} (lane {self.lane}), {self.path}:"
            f" {self.recorded} recorded, {self.swept} now{waits}"
        )


class SweepReport(msgspec.Struct, kw_only=True, frozen=True):
    """The result of a sweep.

    Attributes:
        schedules: The number of schedules that were run, the first one in the recorded order.
        outcomes: The number of different outcomes among them.
        differences: The differences from the recording, by schedule. `sweep(seed=…)` runs one of
            them again.
        coverage: The schedules that a depth-first sweep has covered; empty for other strategies.
        shortest: The shortest schedule found with other outcomes; None if there is none.
        untracked_calls: The clocks and random sources that handlers used directly in the first
            schedule. No schedule decides their results, so they can make schedules differ.
        seconds: The duration of the sweep.
        notes: Damage of the file, such as an incomplete last line.
    """

    schedules: int
    outcomes: int
    differences: tuple[ScheduleDifference, ...]
    coverage: str = ""
    shortest: Schedule | None = None
    untracked_calls: tuple[UntrackedCall, ...]
    seconds: float
    notes: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        """Return whether every schedule had the recorded outcome."""
        return not self.differences

    @property
    def failing_schedules(self) -> list[int]:
        """The numbers of the schedules that had other outcomes."""
        return sorted({difference.schedule for difference in self.differences})


class ScheduleResult(msgspec.Struct, kw_only=True, frozen=True):
    """The result of one schedule; `digest` is equal for equal outcomes."""

    digest: str
    decisions: tuple[Decision, ...]
    differences: tuple[ScheduleDifference, ...]
    untracked_calls: tuple[UntrackedCall, ...]


# Sweeps -------------------------------------------------------------------------------------------

RunSchedules: TypeAlias = Callable[[Sequence[tuple[Order, int]]], Sequence[ScheduleResult]]
"""A function that runs one schedule for each pair of an order and the schedule's number."""


@attrs.frozen(kw_only=True)
class SweepOptions:
    """The options of a sweep, as `sweep` describes and checks them."""

    schedules: int = DEFAULT_SCHEDULES
    strategy: Strategy = "random"
    bound: int = DEFAULT_PCT_BOUND
    seed: int | None = None
    schedule: Schedule | None = None

    def __attrs_post_init__(self) -> None:
        if self.schedules < 1:
            raise ValueError(f"schedules must be at least 1, not {self.schedules}")
        if self.bound < 1:
            raise ValueError(f"the bound of pct must be at least 1, not {self.bound}")
        if self.strategy not in get_args(Strategy):
            names = ", ".join(get_args(Strategy))
            raise ValueError(f"unknown strategy {self.strategy!r}: use one of {names}")
        if self.strategy == "depth-first" and self.seed is not None:
            raise ValueError("a depth-first sweep has no seeds: repeat its shortest schedule")


def sweep(
    path: str | os.PathLike[str],
    target: "str | Callable[[], Server]",
    *,
    schedules: int = DEFAULT_SCHEDULES,
    strategy: Strategy = "random",
    bound: int = DEFAULT_PCT_BOUND,
    seed: int | None = None,
    schedule: Schedule | None = None,
) -> SweepReport:
    """Run the handlers of a server under many schedules, and compare the outcomes of requests.

    A response that may depend on the order of requests differs too; whether such a difference is a
    race has to be judged. Redacted values are not compared.

    Args:
        path: The recording.
        target: A TARGET as on the command line, such as `server.py`, which is swept in a process of
            its own; or a function that returns a new server, with new state, for each schedule.
            Then the sweep runs in this process, in which no other thread may run Trio meanwhile.
        schedules: The number of schedules. The first one has the recorded order.
        strategy: "random" takes any order; "pct" finds a race that needs up to `bound` changes of
            the order with a known probability; "depth-first" covers all schedules of a small
            session, those nearest to the recorded order first.
        bound: The number of changes of the order for "pct".
        seed: Run only the schedule of this number, the same as in a sweep.
        schedule: Run only this schedule, such as `SweepReport.shortest`.

    Raises:
        RecordingError: The file is no recording of one session of role `server`, or the schedule is
            one of another recording.
        NothingCompared: The recording holds no request that was answered before its end, except
            handshakes.
        BlockedInReplay: A handler used external I/O or the value of the lifespan without an effect,
            and was prevented from it, in the first schedule. For a TARGET, that is
            `SweepUnavailable`.
        SweepUnavailable: This version of Trio, or this process, cannot sweep; the text says why.
        TypeError: `target` is neither a text nor a function.
        ValueError: `schedules` or `bound` is less than 1; there is no such strategy, or it has no
            seeds.
    """
    options = SweepOptions(
        schedules=schedules, strategy=strategy, bound=bound, seed=seed, schedule=schedule
    )
    if isinstance(target, str):
        return _sweep_in_subprocess(path, target, options)
    if not callable(target):
        raise TypeError(
            "sweep() takes a TARGET such as 'server.py', or a function that returns a new server"
            f" for each schedule, not an object of type {type(target).__name__}"
        )
    trace = _load_trace(path, options)

    def run_all(orders: Sequence[tuple[Order, int]]) -> Sequence[ScheduleResult]:
        return [run_schedule(trace, target(), order, number) for order, number in orders]

    return _Sweep(path, trace, run_all).run(options)


_NO_FORK: Final = (
    "this system cannot fork a process for each schedule; Linux, macOS and WSL on Windows can"
)


def sweep_forked(
    path: str | os.PathLike[str],
    server: "Server",
    options: SweepOptions,
    *,
    on_result: Callable[[], object] = lambda: None,
) -> SweepReport:
    """Sweep `server` by forking this process, which must have a single thread, per schedule.

    `on_result` is called after each schedule, also after those that shorten one. The errors are
    those of `sweep`.
    """
    if not hasattr(os, "fork"):
        raise SweepUnavailable(_NO_FORK)
    trace = _load_trace(path, options)
    run_all = functools.partial(_run_forked, trace, server, on_result)
    return _Sweep(path, trace, run_all).run(options)


def _load_trace(path: str | os.PathLike[str], options: SweepOptions) -> SweepTrace:
    """Load a recording, and check that the schedule in the options is one of this recording."""
    trace, schedule = load_sweep_trace(path), options.schedule
    if schedule is not None and schedule.digest != trace.digest:
        raise RecordingError(
            f"the schedule belongs to {schedule.recording!r} with other contents than this"
            " recording: sweep this recording again"
        )
    return trace


@attrs.define
class _Sweep:
    path: str | os.PathLike[str]
    trace: SweepTrace
    run_all: RunSchedules
    results: list[ScheduleResult] = attrs.field(factory=list[ScheduleResult], init=False)
    _started: float = attrs.field(factory=time.perf_counter, init=False)

    def run(self, options: SweepOptions) -> SweepReport:
        if (schedule := options.schedule) is not None:
            deviations = {each.decision: each.take for each in schedule.deviations}
            self._run_first(RecordedOrder(deviations))
            return self._report()
        self._run_first(RecordedOrder())
        decisions, seed = len(self.results[0].decisions), options.seed

        def order(number: int) -> tuple[Order, int]:
            if options.strategy == "random":
                return RandomOrder(number), number
            return PriorityOrder(number, decisions, options.bound), number

        if seed is not None:
            if seed:  # Schedule 0 is the recorded order, which was just run.
                self.results = [*self.run_all([order(seed)])]
            return self._report()
        coverage = ""
        if options.strategy == "depth-first":
            coverage = str(search_depth_first(self._run_level, options.schedules))
        else:
            self.results += self.run_all([order(each) for each in range(1, options.schedules)])
        return self._report(coverage, self._shortest())

    def _run_level(self, orders: Sequence[Order]) -> Sequence[Sequence[Decision]]:
        """Run a level of a depth-first search; return the decisions of each schedule.

        The first level has only the recorded order, which `run` has run already.
        """
        if [*orders] == [RecordedOrder()]:
            return [self.results[0].decisions]
        first = len(self.results)
        self.results += self.run_all([(order, at) for at, order in enumerate(orders, first)])
        return [result.decisions for result in self.results[first:]]

    def _run_first(self, order: Order) -> None:
        """Run the first schedule.

        Raises:
            BlockedInReplay: A handler did something that a sweep does not let it do.
        """
        self.results += self.run_all([(order, 0)])
        for untracked_call in self.results[0].untracked_calls:
            if untracked_call.call.startswith(LIFESPAN):
                raise BlockedInReplay(
                    "a sweep does not run the lifespan, so that handlers can only pass its value"
                    f" to effects: {untracked_call.call} was used {untracked_call.location}"
                )
            # In a strict recording, the handlers got an error there as well.
            if untracked_call.changes_outside and not self.trace.opening.strict:
                raise BlockedInReplay(
                    f"a sweep cannot run handlers that use external I/O directly: {untracked_call}"
                )

    def _report(self, coverage: str = "", shortest: Schedule | None = None) -> SweepReport:
        results = self.results
        return SweepReport(
            schedules=len(results),
            outcomes=len({result.digest for result in results}),
            differences=tuple(each for result in results for each in result.differences),
            coverage=coverage,
            shortest=shortest,
            untracked_calls=results[0].untracked_calls,
            seconds=time.perf_counter() - self._started,
            notes=self.trace.notes,
        )

    def _shortest(self) -> Schedule | None:
        """Shorten the schedule with the fewest deviations of those with other outcomes."""
        failing = [result for result in self.results if result.differences]
        if not failing:
            return None
        found = min(failing, key=lambda result: len(deviations_of(result.decisions)))
        results = dict[tuple[tuple[int, str], ...], ScheduleResult]()

        def fails(candidates: Sequence[Mapping[int, str]]) -> Sequence[bool]:
            ran = self.run_all([(RecordedOrder(deviations), 0) for deviations in candidates])
            results.update(zip((tuple(each.items()) for each in candidates), ran, strict=True))
            return [bool(result.differences) for result in ran]

        deviations = {each.decision: each.take for each in deviations_of(found.decisions)}
        result = results.get(tuple(shorten(deviations, fails).items()), found)
        return Schedule(
            recording=Path(self.path).name,
            digest=self.trace.digest,
            deviations=deviations_of(result.decisions),
            differences=tuple(each.text for each in result.differences),
        )


# Processes ----------------------------------------------------------------------------------------


def _sweep_in_subprocess(
    path: str | os.PathLike[str], target: str, options: SweepOptions
) -> SweepReport:
    """Run the command that sweeps a TARGET, in a process of its own; return its report."""
    _load_trace(path, options)  # This raises the errors of the recording in this process.
    if options.schedule is not None:
        name, contents, arguments = "replay", options.schedule.encoded(), ["--schedule", "-"]
    else:
        name, contents = "sweep", b""
        arguments = ["--schedules", str(options.schedules), "--strategy", options.strategy]
        arguments += ["--bound", str(options.bound)]
        arguments += [] if options.seed is None else ["--seed", str(options.seed)]
    command = [sys.executable, "-m", "mcp_trio", name, os.fspath(path), target, "--json"]
    run = subprocess.run([*command, *arguments], capture_output=True, check=False, input=contents)
    try:
        return msgspec.json.decode(run.stdout, type=SweepReport)
    except ValueError:
        text = run.stderr.decode(errors="replace").strip()
        raise SweepUnavailable(
            f"the process of the sweep exited with status {run.returncode}: {text}"
        ) from None


@attrs.frozen
class _Fork:
    """A process that runs one schedule and writes the result into a pipe."""

    number: int
    process: int
    pipe: int

    def result(self) -> ScheduleResult:
        with os.fdopen(self.pipe, "rb") as pipe:
            text = pipe.read()
        os.waitpid(self.process, 0)
        try:
            return msgspec.json.decode(text, type=ScheduleResult)
        except ValueError:
            reason = text.decode(errors="replace") or "its process ended without a result"
            raise SweepUnavailable(f"schedule {self.number} could not be run: {reason}") from None

    def kill(self) -> None:
        os.kill(self.process, SIGKILL)
        os.close(self.pipe)
        os.waitpid(self.process, 0)


def _run_forked(
    trace: SweepTrace,
    server: "Server",
    on_result: Callable[[], object],
    orders: Sequence[tuple[Order, int]],
) -> Sequence[ScheduleResult]:
    """Run each schedule in a fork of this process, several at a time."""
    results: list[ScheduleResult] = []
    running: deque[_Fork] = deque()
    try:
        for order, number in orders:
            if len(running) == _PROCESSES_MAX:
                results.append(running.popleft().result())
                on_result()
            # What handlers log is shown for a single schedule, and not repeated for each of many.
            running.append(_fork(trace, server, order, number, is_quiet=len(orders) > 1))
        while running:
            results.append(running.popleft().result())
            on_result()
    finally:
        for fork in running:
            fork.kill()
    return results


def _fork(
    trace: SweepTrace, server: "Server", order: Order, number: int, *, is_quiet: bool
) -> _Fork:
    if sys.platform == "win32":
        raise SweepUnavailable(_NO_FORK)
    reading, writing = os.pipe()
    try:
        process = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        raise SweepUnavailable(
            f"schedule {number} could not be run: no process can be started: {error.strerror}"
        ) from error
    if process == 0:  # pragma: no cover  a fork does not report its coverage
        try:
            sys.stdout = sys.stderr  # What handlers print must not get into the report on stdout.
            os.dup2(2, 1)
            if is_quiet:
                logging.disable(logging.CRITICAL)
            try:
                text = msgspec.json.encode(run_schedule(trace, server, order, number))
            except BaseException as error:
                text = repr(error).encode()
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(text)
        finally:
            os._exit(0)  # Whatever happens, the fork does not go on with the work of its parent.
    os.close(writing)
    return _Fork(number, process, reading)


# One schedule -------------------------------------------------------------------------------------


def run_schedule(trace: SweepTrace, server: "Server", order: Order, number: int) -> ScheduleResult:
    """Run one schedule of a new server in this process.

    Trio runs the tasks that have no lane in an order of its own, which is seeded here.

    Raises:
        SweepUnavailable: This version of Trio has no deterministic schedules.
    """
    clock = VirtualClock(trace.opening.clock_ns)
    thread_token = ThreadToken(clock, server.limits.replay.thread_seconds)
    scheduler = Scheduler(trace, order, clock, thread_token)
    try:
        with seeded_schedule(0):
            run_controlled(
                scheduler, server, trace.opening, trace.limits, lambda _: SweepSequencer(scheduler)
            )
    except RuntimeError as error:
        raise SweepUnavailable(str(error)) from error
    differences = tuple(_differences(trace, scheduler, number))
    return ScheduleResult(
        digest=scheduler.outcomes.digest(),
        decisions=tuple(scheduler.decisions),
        differences=differences[:_DIFFERENCES_PER_SCHEDULE_MAX],
        untracked_calls=tuple(scheduler.untracked_calls),
    )


def _differences(
    trace: SweepTrace, scheduler: Scheduler, number: int
) -> Iterator[ScheduleDifference]:
    """Yield the differences between the recorded outcomes of requests and those of a schedule.

    A request is compared if its recording has a response, it has arrived under the schedule, and it
    was not cancelled there before its response.
    """
    if scheduler.problem:
        yield ScheduleDifference(
            schedule=number, lane="", call="", path="", recorded="", swept=scheduler.problem
        )
    for lane, recorded in trace.outcomes.requests.items():
        swept = scheduler.outcomes.requests.get(lane, RequestOutcome())
        was_cancelled = lane in scheduler.ended and swept.responses < recorded.responses
        if not recorded.responses or was_cancelled or not scheduler.has_arrived(lane):
            continue
        waits: dict[str, None] = {}
        if swept.responses < recorded.responses:
            for waiting, location in scheduler.waiting.items():
                if request_lane_name(waiting) == lane:
                    waits[source_of(location)] = None
        for path, left, right in outcome_differences(*trace.without_secrets(recorded, swept)):
            yield ScheduleDifference(
                schedule=number,
                lane=lane,
                call=trace.calls.get(lane, ""),
                path=path,
                recorded=shortened(json_text(left), _TEXT_CHARACTERS_MAX),
                swept=shortened(json_text(right), _TEXT_CHARACTERS_MAX),
                waits=tuple(waits)[:_WAITS_MAX],
            )
