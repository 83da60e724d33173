"""Schedules: the orders in which a session may run, and the scheduler that runs it in one.

A session runs one thing after another: a lane goes on, an effect ends, a message of the client
arrives, time passes. Wherever several of them are possible there is a *decision*, and one of its
*options* is the *default*: the one that came first in the recording. A schedule is the list of its
deviations from these defaults. A schedule without deviations is the recorded order.

Three strategies find schedules:

- `random` takes any option, all with the same probability.
- `pct`, probabilistic concurrency testing, gives lanes random priorities, and changes the priority
  of the lane that goes on at a few random decisions. It finds a race that needs few changes with
  a probability that has a lower bound: https://dl.acm.org/doi/10.1145/1736020.1736040
- `depth-first` runs every schedule with one deviation, then every one with two, and so on, until
  all are covered or the number of schedules is used up (iterative deepening).

The `Scheduler` runs a session in the order of a schedule. It is to a schedule what the `Replayer`
is to a replay. Each lane waits before each step, and each effect for its end. When all tasks are
blocked, the scheduler looks at what can happen next, asks the `Order` of the schedule for one of
these options, and lets it happen:

- A lane goes on. As in Trio, lanes go on in *batches*: all lanes that are ready do so, in any
  order, and one that they wake belongs to the next batch.
- An effect ends with its recorded outcome. Then its lane is ready, and a cancellation comes too
  late for it. Effects end between two batches, and the batch after the one in which an effect began
  comes before its end. An effect that did not wait when it was recorded never waits.
- A response of the client to a handler's request arrives.
- The next message of the client arrives, at its recorded time, but not before the responses that
  the client had by then.
- Time passes up to the next deadline, if no lane is ready, or if it was the next thing to happen in
  the recording. It does not pass the recorded time of the client's message, nor twice the longest
  recorded duration of an effect while an effect runs.

Everything else is as in production: locks exclude, events wake, deadlines expire.
"""

import functools
import math
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import attrs
import msgspec
import trio
from trio.lowlevel import Abort as AbortResult

from mcp_trio._journal.records import (
    LOCK,
    SLEEP,
    SUSPENDED_MARK,
    TICK_CLOCK,
    CommandBody,
    ErrorBody,
    body_bytes,
    encode_body,
    message_position,
)
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._protocol.requests import SUSPENDED_PREFIX
from mcp_trio._recorder.clock import NS_PER_SECOND
from mcp_trio._replay.clock import ROUNDING_SECONDS, VirtualClock
from mcp_trio._replay.controlled_run import BeginSession, ThreadToken, end_run, raise_abort
from mcp_trio._replay.source_locations import is_alive, task_location
from mcp_trio._replay.sweep_trace import (
    Input,
    Outcomes,
    RequestUpdate,
    SweepTrace,
)
from mcp_trio._replay.trace import (
    MessageFields,
    message_fields,
    patch_name,
    recorded_outcome,
    recorded_value,
    request_lane_name,
)
from mcp_trio._server.effects import with_recorded_lifespan
from mcp_trio._server.lifespan import LifespanRun
from mcp_trio._session.journal import CANCELLED_MEANWHILE, Outcome, Sequencer
from mcp_trio._session.lanes import Abort, Lane, operation
from mcp_trio._session.untracked_calls import UntrackedCall
from mcp_trio.errors import BlockedInReplay, RecordingError

if TYPE_CHECKING:
    from mcp_trio._session.session import Session

Strategy: TypeAlias = Literal["random", "pct", "depth-first"]

DEFAULT_PCT_BOUND: Final = 3

# The number of schedules that may be run to shorten one.
_SHORTENING_RUNS_MAX: Final = 400

# The longest duration of an effect or a response, as a multiple of the longest recorded one.
_DURATION_FACTOR: Final = 2.0

# A session ends at this time after its recorded duration and all delays, whatever it waits for.
_EXTRA_SECONDS_MAX: Final = 10.0

# A schedule ends after so many decisions for each record of the recording, and so many besides,
# since its handlers may run in a loop for ever.
_DECISIONS_PER_RECORD_MAX: Final = 20
_EXTRA_DECISIONS_MAX: Final = 2_000

_UNRECORDED_RANK: Final = 1e12
"""The rank of an option that the recording does not have, which is after all others."""

# The last batch of a lane that may go on in any later batch.
_ANY_BATCH: Final = sys.maxsize

# A rank and an option that come before those of the end of every effect.
_BEFORE_ALL_ENDS: Final = (-1.0, "")

TIME_PASSES: Final = "time passes"
"""The option that lets the next deadline expire."""


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """A point of a schedule with its options, the default among them, and the chosen one."""

    options: tuple[str, ...]
    default: str
    chosen: str


class Deviation(msgspec.Struct, kw_only=True, frozen=True):
    """A decision of a schedule, by its number, where another option than the default is taken."""

    decision: int
    take: str
    instead_of: str

    def __str__(self) -> str:
        return f"at decision {self.decision}: {self.take}, not yet: {self.instead_of}"


class Schedule(msgspec.Struct, kw_only=True, frozen=True):
    """A schedule, as in a file that `mcp-trio replay --schedule` repeats.

    Attributes:
        recording: The name of the recording.
        digest: The digest of its records.
        deviations: The decisions where it takes another option than the recorded order.
        differences: The differences from the recording to which it led; `shows` in the file.
    """

    recording: str
    digest: str
    deviations: tuple[Deviation, ...]
    differences: tuple[str, ...] = msgspec.field(default=(), name="shows")

    def encoded(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


def decode_schedule(data: bytes) -> Schedule:
    """Decode the contents of a file.

    Raises:
        RecordingError: They are no schedule.
    """
    try:
        return msgspec.json.decode(data, type=Schedule)
    except ValueError as error:
        raise RecordingError(
            f"this is not a schedule of a sweep: {error}; `mcp-trio sweep` writes one"
        ) from None


def deviations_of(decisions: Sequence[Decision]) -> tuple[Deviation, ...]:
    return tuple(
        Deviation(decision=number, take=each.chosen, instead_of=each.default)
        for number, each in enumerate(decisions)
        if each.chosen != each.default
    )


# Orders -------------------------------------------------------------------------------------------


class Order(Protocol):
    """A way to decide; each object decides for one schedule."""

    def choose(self, number: int, options: Sequence[str], default: str) -> str:
        """Return one of the options of the decision with this number."""
        ...


class RecordedOrder(msgspec.Struct, frozen=True):
    """The recorded order, except where it deviates; a deviation that is no option is ignored."""

    deviations: Mapping[int, str] = {}

    def choose(self, number: int, options: Sequence[str], default: str) -> str:
        chosen = self.deviations.get(number, default)
        return chosen if chosen in options else default


class RandomOrder:
    """Any order, which follows from `seed`."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311  not for secrets

    def choose(self, number: int, options: Sequence[str], default: str) -> str:  # noqa: ARG002
        return self._random.choice(options)


class PriorityOrder:
    """An order of `pct`: the option of the highest priority comes first.

    A lane has one priority for all its options; so have the client and the clock. At `bound - 1` of
    about `decisions` decisions the chosen one gets a priority below all others.
    """

    def __init__(self, seed: int, decisions: int, bound: int = DEFAULT_PCT_BOUND) -> None:
        self._random = Random(seed)  # noqa: S311  not for secrets
        numbers = self._random.sample(range(decisions), min(bound - 1, decisions))
        self._changes = {number: -each for each, number in enumerate(numbers, 1)}
        self._priorities: dict[str, float] = {}

    def choose(self, number: int, options: Sequence[str], default: str) -> str:  # noqa: ARG002
        # The first word of an option names the lane, the client or the clock.
        actors = {option: option.partition(" ")[0].rstrip(":") for option in options}
        for actor in actors.values():
            if actor not in self._priorities:
                self._priorities[actor] = self._random.random()
        chosen = max(options, key=lambda option: self._priorities[actors[option]])
        if number in self._changes:
            self._priorities[actors[chosen]] = self._changes[number]
            chosen = max(options, key=lambda option: self._priorities[actors[option]])
        return chosen


# Strategies ---------------------------------------------------------------------------------------

RunAll: TypeAlias = Callable[[Sequence[Order]], Sequence[Sequence[Decision]]]
"""A function that runs a schedule in each order, and returns the decisions of each."""


class Coverage(msgspec.Struct, frozen=True):
    """The schedules that a depth-first search has run.

    Attributes:
        deviations: The number of deviations up to which all schedules were run; -1: not even the
            recorded order.
        is_complete: Whether there are no other schedules.
        not_run: The number of schedules with one deviation more that were not run.
    """

    deviations: int
    is_complete: bool
    not_run: int

    def __str__(self) -> str:
        if self.is_complete:
            return "these are all schedules"
        times = "deviation" if self.deviations == 1 else "deviations"
        return (
            f"all with at most {self.deviations} {times} from the recorded order;"
            f" {self.not_run} with {self.deviations + 1} were not run, and those with more"
        )


def search_depth_first(run_all: RunAll, schedules: int) -> Coverage:
    """Run up to `schedules` schedules, those with few deviations first; return the coverage."""
    level: Sequence[Mapping[int, str]] = [{}]
    depth = 0
    while level and schedules >= len(level):
        schedules -= len(level)
        decided = run_all([RecordedOrder(deviations) for deviations in level])
        # In the next level, each schedule has another deviation after its last one.
        level = [
            {**deviations, number: option}
            for deviations, decisions in zip(level, decided, strict=True)
            for number, decision in enumerate(decisions)
            if number > max(deviations, default=-1)
            for option in decision.options
            if option != decision.default
        ]
        depth += 1
    if level and schedules:
        run_all([RecordedOrder(deviations) for deviations in level[:schedules]])
    not_run = len(level) - schedules if level else 0
    return Coverage(depth - 1, is_complete=not level, not_run=not_run)


def shorten(
    deviations: Mapping[int, str],
    fails: Callable[[Sequence[Mapping[int, str]]], Sequence[bool]],
) -> Mapping[int, str]:
    """Return as few of the deviations as possible with which the schedule still goes wrong.

    This is delta debugging: parts are left out, in halves at first and one by one at last. `fails`
    runs several schedules, and returns for each whether it goes wrong.
    https://www.st.cs.uni-saarland.de/papers/tse2002/
    """
    numbers: list[int] = sorted(deviations)
    parts = 2
    runs_left = _SHORTENING_RUNS_MAX
    while len(numbers) > 0 and runs_left > 0:
        parts = min(parts, len(numbers))
        size = -(-len(numbers) // parts)
        # A late deviation is seldom needed, so the last part is left out first.
        begins = range(0, len(numbers), size)[::-1]
        smaller: list[list[int]] = [numbers[:begin] + numbers[begin + size :] for begin in begins]
        results = fails([{each: deviations[each] for each in kept} for kept in smaller])
        runs_left -= len(smaller)
        found = next((kept for kept, failed in zip(smaller, results, strict=True) if failed), None)
        if found is not None:
            numbers, parts = found, max(parts - 1, 2)
        elif size == 1:
            break
        else:
            parts *= 2
    return {each: deviations[each] for each in numbers}


# The scheduler ------------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class _PossibleEvent:
    """Something that may happen: a lane goes on, an effect ends, a response arrives.

    Attributes:
        option: The text that names it in a decision, such as `r3 goes on`.
        first_batch: The number of the first batch of lanes in which it may happen.
        last_batch: The number of the last one, if it is a lane that is ready; `_ANY_BATCH` for the
            lane of a thread, which may compute for longer than in the recording.
        rank: The index of its record in the journal, which decides the default.
        is_new_handler: Whether it is the first step of a request's handler.
        latest: The time up to which it happens; infinite for a lane that is ready.
        task: The task that waits for it; None for a message, and for the passing of time.
        has_operation: Whether the task waits in an operation, not before a step.
    """

    option: str
    happen: Callable[[], None]
    first_batch: int
    rank: float
    last_batch: int = 0
    is_new_handler: bool = False
    is_effect: bool = False
    latest: float = math.inf
    task: trio.lowlevel.Task | None = None
    has_operation: bool = True


class Scheduler:
    """A session of a trace that runs in an order; `SweepSequencer` reports its operations here.

    After the end of the schedule, the methods that lanes call raise `Abort`.

    Attributes:
        order: The way to decide; the object decides for this run only.
        last_delivered: The number of the record of the last message that was delivered.
        ended: The lanes of the requests that ended without a response.
        problem: The reason why the session ended before its time; empty if it did not.
        waiting: For each lane that has not ended, the location of the user's code at which it waits
            at the end of the schedule.
    """

    _session: "Session"
    goes_on_after_exit = False

    def __init__(
        self, trace: SweepTrace, order: Order, clock: VirtualClock, thread_token: ThreadToken
    ) -> None:
        self.trace = trace
        self.order = order
        self.clock = clock
        self.thread_token = thread_token
        self.decisions: list[Decision] = []
        self.outcomes = Outcomes()
        self.last_delivered = 0
        self.untracked_calls: dict[UntrackedCall, None] = {}
        self.ended: set[str] = set()
        self.is_over = False
        self.problem = ""
        # The lanes that wait for their turn, by name.
        self._ready: dict[str, _PossibleEvent] = {}
        # The effects that have not ended, by lane; and the requests to the client, by option.
        self._running: dict[str, _PossibleEvent] = {}
        # The client's messages that have not arrived, the next one last.
        self._inputs = [*reversed(trace.inputs)]
        # The first batch in which the next one may arrive: that of the client's last response.
        self._input_batch = 0
        # The responses that each lane has sent, and the turns that it has taken.
        self._responses: Counter[str] = Counter()
        self._turns: Counter[str] = Counter()
        # The lane of each recorded response, with the number of the response in this lane; and how
        # many of the first ones have come, or never will.
        numbers: Counter[str] = Counter()
        self._recorded_responses: list[tuple[str, int]] = []
        for lane in trace.responses:
            numbers[lane] += 1
            self._recorded_responses.append((lane, numbers[lane]))
        self._past_responses = 0
        # The task that each lane has last waited in.
        self._tasks: dict[str, trio.lowlevel.Task] = {}
        # The lanes that have taken a turn in an operation, and have made no record since.
        self._lanes_without_record: set[str] = set()
        # The number of the current batch, and whether one of its lanes has gone on.
        self._batch = 0
        self._batch_has_begun = False
        # The number of the batch to which lanes belong that become ready now.
        self._wake_batch = 0
        # Whether a message that arrives now is read together with the one before.
        self._is_reading = False
        # The rank and the option of the last effect that has ended in this batch.
        self._last_end = _BEFORE_ALL_ENDS
        self.waiting: dict[str, str] = {}
        # Whether every recorded response has come, or never will.
        self._is_complete = False

    async def run_sessions(
        self,
        begin: BeginSession,
        start_lifespan: Callable[[LifespanRun], None],  # noqa: ARG002 - a sweep runs no lifespan
    ) -> None:
        trace = self.trace
        effects = (each for (_, kind, _), each in trace.named.indexes.items() if kind == "cmd")
        # Each effect, and each request to the client, may take longer than in the recording.
        delays = sum(map(len, effects)) + sum(map(len, trace.updates.values()))
        end = self.clock.time_of(0) + trace.seconds + _EXTRA_SECONDS_MAX
        end += self._duration_seconds * delays
        decisions_max = _DECISIONS_PER_RECORD_MAX * len(trace.journal) + _EXTRA_DECISIONS_MAX
        try:
            self._session = await begin(0, None, trace.opening.transport)
            await self._settle()
            while self._inputs or self._is_missing_response(len(trace.responses)):
                options = self._options(end)
                if not options or len(self.decisions) >= decisions_max:
                    break
                default = min(options, key=lambda event: (event.rank, event.option))
                names = sorted(event.option for event in options)
                chosen = self.order.choose(len(self.decisions), names, default.option)
                self.decisions.append(Decision(tuple(names), default.option, chosen))
                event = next(event for event in options if event.option == chosen)
                if event.option != TIME_PASSES and event.rank < _UNRECORDED_RANK:
                    # The clock advances to the time of the record, but past no deadline.
                    seconds = self.clock.time_of(trace.time_ns_at(event.rank))
                    if trio.current_time() < seconds < self.clock.next_deadline:
                        self.clock.advance_to(seconds)
                event.happen()
                await self._settle()
            self._is_complete = True
            self.waiting = {
                lane: location
                for lane, task in self._tasks.items()
                if is_alive(task) and (location := task_location(task))
            }
        finally:
            self.finish()

    @property
    def _duration_seconds(self) -> float:
        return self.trace.longest_seconds * _DURATION_FACTOR

    async def _settle(self) -> None:
        """Wait until all tasks are blocked, and deadlines that have passed have expired."""
        await self.thread_token.settle()
        while self.clock.next_deadline <= trio.current_time() + ROUNDING_SECONDS:
            self.clock.advance_to(trio.current_time())
            await self.thread_token.settle()

    def _is_missing_response(self, count: int) -> bool:
        """Return whether one of the first `count` recorded responses may still come."""
        while self._past_responses < count:
            lane, number = self._recorded_responses[self._past_responses]
            if self._responses[lane] < number and request_lane_name(lane) not in self.ended:
                return True
            self._past_responses += 1
        return False

    # Decisions.

    def _options(self, end: float) -> list[_PossibleEvent]:
        # Lanes and effects.
        batch = min((event.last_batch for event in self._ready.values()), default=_ANY_BATCH)
        if batch > self._batch:
            batch = self._batch + 1 if batch == _ANY_BATCH else batch
            self._batch, self._batch_has_begun, self._last_end = batch, False, _BEFORE_ALL_ENDS
        # Effects end before the lanes of a batch go on. The order in which they end makes no
        # difference, so only one order is tried: an effect of a lower rank than the last one that
        # ended waits for the next batch.
        options = [
            event
            for event in (*self._ready.values(), *self._running.values())
            if (event.first_batch <= self._batch or not self._ready)
            and (
                not event.is_effect
                or (not self._batch_has_begun and self._last_end < (event.rank, event.option))
            )
        ]
        # The next message of the client, if the client has the responses that it had when recorded.
        now, deadline = trio.current_time(), self.clock.next_deadline
        latest = min((event.latest for event in self._running.values()), default=math.inf)
        arriving = self._inputs[-1] if self._inputs else None
        if arriving and not self._is_missing_response(arriving.responses_before):
            arrives = _PossibleEvent(
                f"message {next(iter(arriving.messages))} arrives",
                functools.partial(self._deliver, arriving),
                self._input_batch,
                arriving.index,
                latest=self.clock.time_of(arriving.time_ns),
            )
            # It arrives at its recorded time, so deadlines and effects before that time come first.
            if arrives.latest <= max(now, min(deadline, latest)):
                if not self._ready or arrives.first_batch <= self._batch:
                    options.append(arrives)
                latest = min(latest, max(now, arrives.latest))
        # Time, which does not pass `latest`. Its rank is half a place before a record, because the
        # deadline expires before that. While lanes are ready, time passes only as in the recording.
        begin = self.clock.time_of(0)
        rank = self.trace.index_at((deadline - begin) * NS_PER_SECOND) - 0.5
        is_default = not self._batch_has_begun and rank <= min(
            (each.rank for each in options), default=0
        )
        if deadline <= min(latest, end) and (not self._ready or is_default):

            def expire() -> None:
                self._wake_batch = self._batch
                self.clock.advance_to(deadline)

            options.append(_PossibleEvent(TIME_PASSES, expire, self._batch, rank))
        return options

    def _deliver(self, arriving: Input) -> None:
        self._inputs.pop()
        self._begin_to_read(arriving.index)
        for number, message in arriving.messages.items():
            self.last_delivered = number
            self._session.take(message)

    def _begin_to_read(self, index: int) -> None:
        """Choose the batch of the lanes that a message wakes.

        The task that reads the message is part of a batch itself, and the lanes belong to the next
        one. The message is read in the current batch if a lane of this batch has gone on, or was
        recorded in the same turn of the event loop as the message. Otherwise it counts as read at
        the end of the batch before. Messages that arrive one after the other are read at once.
        """
        if not self._is_reading:
            # By a `TickClock`, the records of one turn of the event loop have the same time.
            time_ns_at, has_turns = self.trace.time_ns_at, self.trace.opening.clock == TICK_CLOCK
            is_in_batch = self._batch_has_begun or any(
                event.last_batch == self._batch
                and has_turns
                and event.rank < _UNRECORDED_RANK
                and time_ns_at(event.rank) == time_ns_at(index)
                for event in self._ready.values()
            )
            self._wake_batch = self._batch + is_in_batch
        self._is_reading = True

    # Waiting lanes.

    async def wait_for_turn(
        self, lane: str, *, has_operation: bool, has_own_pace: bool = False
    ) -> None:
        """Wait, uncancellably, until the lane may go on."""
        if lane in self._lanes_without_record:
            # In the recording, a turn within an operation leads to a record. The lane has made none
            # since its last turn, so in the recording that turn and this one are the same.
            self._turns[lane] -= 1
        task = trio.lowlevel.current_task()
        last_batch = _ANY_BATCH if has_own_pace else None
        self._make_ready(lane, task, has_operation=has_operation, last_batch=last_batch)
        await trio.lowlevel.wait_task_rescheduled(lambda _: AbortResult.FAILED)

    def _make_ready(
        self,
        lane: str,
        task: trio.lowlevel.Task,
        *,
        has_operation: bool = True,
        last_batch: int | None = None,
    ) -> None:
        # The first step of a handler may be taken by the task that reads its request.
        is_new_handler = not self._turns[lane] and lane == request_lane_name(lane)
        self._tasks[lane] = task
        self._ready[lane] = _PossibleEvent(
            f"{lane} goes on",
            functools.partial(self.go_on, lane),
            self._batch if is_new_handler else self._wake_batch,
            self._rank(lane),
            last_batch=self._wake_batch if last_batch is None else last_batch,
            is_new_handler=is_new_handler,
            task=task,
            has_operation=has_operation,
        )

    def go_on(self, lane: str) -> None:
        """Let a lane go on that waits for its turn; do nothing if it does not wait."""
        event = self._ready.pop(lane, None)
        if event is not None and event.task is not None:
            if event.is_new_handler and (
                self._batch < event.last_batch or not self._batch_has_begun
            ):
                # The task that has read the request takes the step.
                self._wake_batch = event.last_batch
            else:
                self._batch_has_begun, self._is_reading = True, False
                self._wake_batch = self._batch + 1
            self._turns[lane] += 1
            if event.has_operation:
                self._lanes_without_record.add(lane)
            trio.lowlevel.reschedule(event.task)

    def note_operation(self, lane: Lane) -> None:
        """Note that a lane makes a record."""
        if self.is_over:
            raise Abort
        lane.has_waited = False
        self._lanes_without_record.discard(lane.name)

    async def wait_for_end(self, lane: str, effect: str, *, is_cancelled: bool) -> None:
        """Wait until the effect of a lane ends; if the lane is cancelled, wait for its turn.

        `is_cancelled`: whether the lane was cancelled in the recording after the effect had ended,
        but before the lane went on.
        """

        def abort(_: object) -> AbortResult:
            ended = self._running.pop(lane, None) is None
            return AbortResult.FAILED if ended else AbortResult.SUCCEEDED

        def end() -> None:
            del self._running[lane]
            self._last_end, self._wake_batch = (event.rank, event.option), self._batch
            self._make_ready(lane, task)

        task = trio.lowlevel.current_task()
        latest = trio.current_time() + self._duration_seconds
        rank = self._rank(lane)
        if rank < _UNRECORDED_RANK and (is_cancelled or self.trace.opening.clock == TICK_CLOCK):
            # The effect had ended when the turn of the event loop began.
            rank = self.trace.index_at(self.trace.time_ns_at(rank)) - 0.5
        event = _PossibleEvent(
            f"{lane}: {effect} ends",
            end,
            self._wake_batch,
            rank,
            is_effect=True,
            latest=latest,
            task=task,
        )
        self._running[lane] = event
        try:
            await trio.lowlevel.wait_task_rescheduled(abort)
        except trio.Cancelled:
            if not self.is_over:
                await self.wait_for_turn(lane, has_operation=True)
            raise

    def _rank(self, lane: str) -> float:
        turns, taken = self.trace.turns.get(lane, ()), self._turns[lane]
        return turns[taken] if taken < len(turns) else _UNRECORDED_RANK

    # Messages.

    def responded(self, lane: str) -> None:
        self._responses[lane] += 1
        self._input_batch = self._wake_batch

    def expect_updates(
        self, lane: str, request: MessageFields, updates: Sequence[RequestUpdate]
    ) -> None:
        """Let the client's updates on a request of a lane arrive, one after the other."""
        if not updates:
            return
        first, *others = updates

        def deliver() -> None:
            del self._running[option]
            self._begin_to_read(first.index)
            self._session.take(first.to_request(request))
            self.expect_updates(lane, request, others)

        happens = "reports progress" if others else "is answered"
        option = f"{lane}: {request.method} {happens}"
        latest = trio.current_time() + self._duration_seconds
        self._running[option] = _PossibleEvent(
            option, deliver, self._wake_batch, first.index, latest=latest
        )

    def has_arrived(self, lane: str) -> bool:
        """Return whether the message after which a lane is named has been delivered."""
        position = message_position(lane)
        return position is not None and position[0] <= self.last_delivered

    # The end.

    def fail(self, problem: str) -> None:
        """End the schedule because of a problem; once it has come to its end, do nothing."""
        if not (self._is_complete or self.problem):
            self.problem = problem
        self.finish()

    def may_exit_here(self, exception: str) -> bool:  # noqa: ARG002  of `RunController`
        """Return False: an exit is an outcome to compare, and an interrupt ends the sweep."""
        return False

    def finish(self) -> None:
        """End the schedule, unless it is over."""
        if not self.is_over:
            events = [*self._ready.values(), *self._running.values()]
            self._ready, self._running = {}, {}
            end_run(self, [(each.task, each.has_operation) for each in events if each.task])


class SweepSequencer(Sequencer):
    """The `Sequencer` of one schedule, which gives effects their recorded outcomes."""

    has_lanes = has_steps = replays = True

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        # For each lane with an effect: the effect, and the index of the recorded one, if any.
        self._started: dict[str, tuple[CommandBody, int | None]] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()

    @property
    def seed(self) -> int | None:
        return self.scheduler.trace.opening.seed

    def _nth(self, category: str, lane: Lane, name: str) -> int:
        """Return how many operations of this name the lane has performed before this one."""
        key = (category, lane.name, name)
        self._counts[key] += 1
        return self._counts[key] - 1

    def _next_named(self, lane: Lane, kind: str, name: str) -> int | None:
        """Return the index of the recorded operation that this one stands for, if there is one."""
        indexes = self.scheduler.trace.named.of((0, lane.name), kind, name)
        nth = self._nth(kind, lane, name)
        return indexes[nth] if nth < len(indexes) else None

    # Turns.

    def step(self, lane: Lane) -> Awaitable[None] | None:
        lane.has_waited = False
        if self.scheduler.is_over:
            return None
        return self.scheduler.wait_for_turn(
            lane.name, has_operation=False, has_own_pace=lane.has_own_pace
        )

    async def turn(self, lane: Lane) -> None:
        """Wait for the lane's turn if it has waited in an operation; check for cancellation."""
        if self.scheduler.is_over:
            await raise_abort()
        has_waited, lane.has_waited = lane.has_waited, False
        with operation(lane):
            if has_waited or not lane.has_steps:
                await self.scheduler.wait_for_turn(lane.name, has_operation=True)
            await trio.lowlevel.checkpoint_if_cancelled()

    async def turn_to_end(self) -> None:
        """Return at once."""

    def withdraw(self, lane: Lane) -> None:
        self.scheduler.go_on(lane.name)

    async def let_thread_run(self, name: str) -> None:
        await self.scheduler.thread_token.acquire(name)

    def thread_waits(self) -> None:
        self.scheduler.thread_token.release()

    # Messages.

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002  of `Sequencer`
        """Return the number of the message's record, by which lanes get their recorded names."""
        return self.scheduler.last_delivered

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Keep a message; the recorded response to a request arrives later."""
        if lane is None:
            return
        self.scheduler.note_operation(lane)
        fields = message_fields(message)
        self.scheduler.outcomes.add_message(lane.name, fields, message)
        if fields.is_response:
            self.scheduler.responded(lane.name)
        elif fields.is_request:
            nth = self._nth("request", lane, fields.method)
            recorded = self.scheduler.trace.updates.get((lane.name, fields.method), ())
            if nth < len(recorded):
                self.scheduler.expect_updates(lane.name, fields, recorded[nth])

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:  # noqa: ARG002  of `Sequencer`
        if not self.scheduler.is_over:
            self.scheduler.ended.add(lane.name)

    def resumed(
        self,
        lane: Lane,
        kind: str,  # noqa: ARG002  of `Sequencer`
        body: bytes | None = None,  # noqa: ARG002
        *,
        is_cancelled: bool = False,  # noqa: ARG002
    ) -> None:
        self.scheduler.note_operation(lane)

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """Return the value, or for a suspended handler its recorded state."""
        if lane is None:
            return value
        self.scheduler.note_operation(lane)
        if name != SUSPENDED_MARK or value is None:
            return value
        nth = self._nth("state", lane, name)
        recorded = self.scheduler.trace.states.get(lane.name, ())
        return recorded[nth] if nth < len(recorded) else f"{SUSPENDED_PREFIX}{lane.name}-{nth}"

    def shut(self, cause: str) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self, counts: dict[str, int]) -> None:
        """Do nothing."""

    # Effects and values.

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Start an effect, whose outcome will be the recorded one."""
        self.scheduler.note_operation(lane)
        name = msgspec.json.decode(body, type=CommandBody).name
        index = self._next_named(lane, "cmd", name)
        journal = self.scheduler.trace.journal
        body = with_recorded_lifespan(body, None if index is None else body_bytes(journal[index]))
        command = msgspec.json.decode(body, type=CommandBody)
        self.scheduler.outcomes.add_command(lane.name, command)
        self._started[lane.name] = (command, index)

    async def outcome(self, lane: Lane, *, is_in_thread: bool = False) -> Outcome:  # noqa: ARG002
        """Wait for the end of the effect that was started; return its outcome."""
        scheduler, trace = self.scheduler, self.scheduler.trace
        if scheduler.is_over:
            await raise_abort()
        command, index = self._started.pop(lane.name)
        outcomes = trace.named.outcomes
        # Unless `ctx.sleep` or `ctx.lock` was recorded with an error, it ends by the clock or the
        # locks of this run, at another time than in the recording.
        if command.name in {LOCK, SLEEP} and not any(
            trace.journal[outcomes[each]].kind == "err"
            for each in trace.named.of((0, lane.name), "cmd", command.name)
            if each in outcomes
        ):
            if command.name == SLEEP:
                seconds = command.arguments["seconds"]  # None for infinity, which JSON lacks
                await self._sleep(lane, math.inf if seconds is None else float(seconds))
            return Outcome("res", b"null")
        if index is None:
            await scheduler.wait_for_end(lane.name, command.name, is_cancelled=False)
            return _unrecorded(command.name)
        record = trace.journal[outcomes[index]] if index in outcomes else None
        if record is None or record.kind == "cxl":
            await self._sleep(lane, math.inf)
        elif record.step_start:
            is_cancelled = record.envelope == CANCELLED_MEANWHILE
            await scheduler.wait_for_end(lane.name, command.name, is_cancelled=is_cancelled)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
        assert record is not None  # An endless sleep ends only by a cancellation.
        return recorded_outcome(record)

    async def _sleep(self, lane: Lane, seconds: float) -> None:
        try:
            await trio.sleep(seconds)
        finally:
            if not self.scheduler.is_over:
                await self.scheduler.wait_for_turn(lane.name, has_operation=True)

    def read_value(
        self, lane: Lane, name: str, arguments: bytes | None, read: Callable[[], Outcome]
    ) -> Outcome:
        """Return the recorded value; call `read` for a clock after its last recorded value."""
        self.scheduler.note_operation(lane)
        index = self._next_named(lane, "val", name)
        if arguments is not None:
            command = CommandBody(name=name, arguments=msgspec.json.decode(arguments))
            self.scheduler.outcomes.add_command(lane.name, command)
        elif index is None:
            return read()
        if index is None:
            return _unrecorded(name)
        return recorded_value(self.scheduler.trace.journal[index])

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether the recorded lane took the new branch."""
        self.scheduler.note_operation(lane)
        return bool(self.scheduler.trace.named.of((0, lane.name), "mark", patch_name(name)))


def _unrecorded(name: str) -> Outcome:
    text = f"the effect {name!r} was not performed here when the session was recorded"
    kind = f"{BlockedInReplay.__module__}.{BlockedInReplay.__qualname__}"
    body = encode_body(ErrorBody(type=kind, text=text, args=[text]))
    return Outcome("err", body)
