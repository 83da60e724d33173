"""The replayer, which runs the sessions of a recording again, record by record.

The journal is the schedule. Each session has a `SessionReplay` in the place of its recorder: the
session calls it for every operation, and it compares the operation with the record at the
replayer's position.

All tasks *settle* when they are blocked and no thread runs. Before each record, the replayer
advances the virtual clock to the record's time, and stops at every deadline before that, so that a
task that sleeps twice wakes twice, and never later than recorded. The kind of the record decides
the next step:

- `in` and `shut` are delivered to the session. In a file of several sessions, a mark begins one.
- A record of a lane is the lane's turn. Lanes wait for their turns before each operation, under a
  shield, because a result that came before a cancellation in the recording has to come before it in
  the replay. A lane whose record is already at the position continues without yielding.
- An immediate record (a value that a lane reads, or a fact that it notes without waiting) takes no
  turn: the lane finds it by its ordinal, at the position or after it.
- A lane whose start has no record starts before its first record, at the clock's time then, which
  is never later than its start in the recording.
- For `cxl`, the lane waits for its cancellation without a shield. If nothing has cancelled it at
  the record's time, the clock advances to the lane's own deadline, provided that this is near.
- A record of the dispatcher follows from an `in` in the same synchronous step. If one is still at
  the position when all tasks have settled, the replay did not make it.
- The session itself makes `end`, when none of its tasks run any more.

If all tasks have settled and the record at the position was not consumed, the replay diverges
there. It also diverges if a request waits for a turn and the recording has no more records of its
lane. Then `Abort` wakes all lanes; it is no `Exception`, so that `except Exception` in users' code
does not stop it.

Code takes no time in a replay, so each step comes a little earlier than in the recording. A sleep
that was cancelled just before its end can therefore end in the replay, and its lane then comes to a
call that it never made. The lane is cancelled at that call, without a shield, and no record is
compared: the last record of a request is its end, not the end of a call. If the lane has entered a
shield that it did not reach in the recording, the replayer removes the shield. A value that the
lane reads before that call is replaced by any value of the right form, since nothing follows from
it. Hence a replay does not notice new operations in the last `PAUSE_SECONDS_MAX` before a
cancellation, whose records would not have been completed; nor any such operation in a thread, whose
computation may have taken any time. A deadline at the very time of a record, in a lane without
further calls, is postponed until the records need it, unless a change is announced at that time,
which may be the work of that lane.
"""

import gc
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Final, NoReturn

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_trio._journal.records import Record, ShutBody, body_bytes, decode_body
from mcp_trio._journal.redaction import Redactor
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.divergence import Finding, Operation, describe
from mcp_trio._replay.source_locations import (
    caller_location,
    current_location,
    handler_location,
    is_alive,
    task_location,
)
from mcp_trio._replay.trace import (
    LaneKey,
    Trace,
    begins_session,
    is_child,
    is_keeper,
    is_request_lane,
    is_start,
    key_of,
    lane_text,
    received_data,
    request_data,
    request_lane,
    seconds_of,
)
from mcp_trio._session.journal import LANE, lane_in
from mcp_trio._session.nondeterminism import UntrackedCall
from mcp_trio._session.session import Session
from mcp_trio.errors import ReplayDivergence

PAUSE_SECONDS_MAX: Final = 1.0
"""The longest pause of the recording machine that a replay allows for.

A deadline may be so much later than its record, and a lane may come to a call so much earlier than
it did in the recording.
"""

# The times of records are cut to nanoseconds and deadlines are not: a nearer deadline is due.
_ROUNDING_SECONDS: Final = 1e-6

# A lane whose next record is no later than this did not let other tasks run before it.
_BURST_SECONDS_MAX: Final = 0.0001

# The number of threads that may still run one after another once the replay is over.
_THREADS_AFTER_END_MAX: Final = 1000

# The kinds of records that a call makes if it was not cancelled before.
_CALL_KINDS: Final = frozenset({"cmd", "out", "val"})

_CANCELLED: Final = b"notifications/cancelled"


class Abort(BaseException):
    """The exception that ends every task of a replay that is over; it never leaves the replay."""


# Shields and deadlines of tasks -------------------------------------------------------------------
#
# Trio cannot end a task that waits for ever under a shield, and a replay has to end. The frames of
# a task refer to the cancel scopes that it has entered; `gc` finds them there, whether or not they
# are in local variables.


# The types of the objects that lead from a frame to a scope entered in it.
_SCOPE_HOLDERS: Final = (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncGeneratorType,
    CoroutineType,
    GeneratorType,
    MethodType,
)


def entered_scopes(task: trio.lowlevel.Task) -> Iterator[trio.CancelScope]:
    """Yield the scopes that a waiting task has entered, without those of its child tasks."""
    seen = {id(task.coro)}
    found: list[object] = [task.coro]
    while found:
        for inner in gc.get_referents(found.pop()):
            if isinstance(inner, trio.CancelScope) and inner.is_relative is None:
                yield inner
            elif id(inner) not in seen and _may_hold_scope(inner):
                seen.add(id(inner))
                found.append(inner)


def _may_hold_scope(value: object) -> bool:  # a function, so that type checkers narrow nothing
    return isinstance(value, _SCOPE_HOLDERS)


def unshield(task: trio.lowlevel.Task) -> None:
    """Remove the shields of a task and of all its child tasks."""
    for scope in entered_scopes(task):
        scope.shield = False
    for nursery in task.child_nurseries:
        nursery.cancel_scope.shield = False
        for child in nursery.child_tasks:
            unshield(child)


@attrs.define(eq=False)
class PostponedDeadlines:
    """Deadlines of cancel scopes that are put off.

    A recording does not tell whether a deadline at the very time of a record came before or after
    the record. If a lane was cancelled at that time and made no call afterwards, it was cancelled
    where it waited: had the deadline woken it before, it would have come to a call that it never
    made, or to the end of its work.
    """

    _deadlines: dict[trio.CancelScope, float] = attrs.field(
        factory=dict[trio.CancelScope, float], init=False
    )

    @property
    def next_deadline(self) -> float:
        """The earliest of the postponed deadlines; infinite if there is none."""
        return min(self._deadlines.values(), default=math.inf)

    def postpone(self, tasks: Iterable[trio.lowlevel.Task], until: float) -> bool:
        """Postpone the deadlines of the tasks up to a time; return whether there are any."""
        due = {
            scope: scope.deadline
            for task in tasks
            for scope in entered_scopes(task)
            if scope.deadline <= until and not scope.cancel_called
        }
        for scope in due:
            scope.deadline = math.inf
        self._deadlines |= due
        return bool(due)

    def restore(self, before: float = math.inf) -> bool:
        """Restore the postponed deadlines before a time; return whether there are any."""
        due = [scope for scope, deadline in self._deadlines.items() if deadline < before]
        for scope in due:
            scope.deadline = min(scope.deadline, self._deadlines.pop(scope))
        return bool(due)


# Waiting lanes ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class SuspendedLane:
    """A lane that waits for its turn.

    Attributes:
        lane: The lane.
        ordinal: The number of its last operation.
        at_start: Whether its handler has not started.
        due: The index of the record from which it may continue; None if only a record of its own
            is its turn.
        since: The time at which it was suspended.
    """

    lane: LaneKey
    ordinal: int
    at_start: bool = False
    due: float | None = None
    since: float = attrs.field(factory=trio.current_time, init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    turn: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False)
class AwaitedCancellation:
    """The wait of a lane for the cancellation that its record promises."""

    deadline: float
    aborted: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False)
class Lanes:
    """The lanes of a replay: their tasks, and what they wait for.

    Attributes:
        suspended: The lanes that wait for their turns.
        cancellations: The lanes that wait for their cancellation.
        tasks: The task of each lane.
        locations: The source location of each lane's last operation.
        arrivals: The time at which a lane, not cancelled by then, came to an operation that is not
            recorded; by the lane and the number of its operation before that.
        cancellable: The lanes that may be cancelled at a call that they did not make when recorded.
        finished_from: The index before which each suspended lane still has a record.
    """

    suspended: dict[LaneKey, SuspendedLane] = attrs.field(
        factory=dict[LaneKey, SuspendedLane], init=False
    )
    cancellations: dict[LaneKey, AwaitedCancellation] = attrs.field(
        factory=dict[LaneKey, AwaitedCancellation], init=False
    )
    tasks: dict[LaneKey, trio.lowlevel.Task] = attrs.field(
        factory=dict[LaneKey, trio.lowlevel.Task], init=False
    )
    locations: dict[LaneKey, str] = attrs.field(factory=dict[LaneKey, str], init=False)
    arrivals: dict[tuple[LaneKey, int], float] = attrs.field(
        factory=dict[tuple[LaneKey, int], float], init=False
    )
    cancellable: set[LaneKey] = attrs.field(factory=set[LaneKey], init=False)
    finished_from: float = attrs.field(default=math.inf, init=False)

    def note_task(self, lane: LaneKey) -> None:
        """Remember that the calling task acts for a lane, and where in users' code it is."""
        self.tasks[lane] = trio.lowlevel.current_task()
        self.locations[lane] = current_location() or self.locations.get(lane, "")

    async def suspend(self, suspended: SuspendedLane, *, shield: bool) -> None:
        """Wait until `give_turn` or `wake_all`; a cancellation ends the wait unless shielded."""
        self.suspended[suspended.lane] = suspended
        suspended.scope.shield = shield
        with suspended.scope:
            try:
                await suspended.turn.wait()
            finally:
                self.suspended.pop(suspended.lane, None)

    async def wait_cancelled(self, lane: LaneKey) -> None:
        """Wait for a cancellation; return only after `wake_all`."""
        awaited = AwaitedCancellation(trio.current_effective_deadline())
        self.cancellations[lane] = awaited
        try:
            await awaited.aborted.wait()
        finally:
            del self.cancellations[lane]

    def give_turn(self, lane: LaneKey) -> None:
        """Let a lane continue, if it waits for its turn."""
        suspended = self.suspended.pop(lane, None)
        if suspended is not None:
            suspended.turn.set()

    def wake_all(self) -> None:
        """Wake every lane, because the replay is over."""
        for suspended in self.suspended.values():
            suspended.turn.set()
        for awaited in self.cancellations.values():
            awaited.aborted.set()

    def note_arrival(self, lane: LaneKey, ordinal: int) -> bool:
        """Note that the calling task came to an operation that is not recorded.

        Return whether the task is not cancelled.
        """
        now = trio.current_time()
        is_running = trio.current_effective_deadline() > now
        if is_running:
            self.arrivals.setdefault((lane, ordinal), now)
        return is_running

    def has_arrived(self, lane: LaneKey, before: float) -> bool:
        """Return whether a lane came to an unrecorded operation before a time."""
        return any(each == lane and time < before for (each, _), time in self.arrivals.items())

    def first_arrival(self, request: LaneKey) -> float | None:
        """Return when a request's lanes first came to an unrecorded operation, if they did."""
        times = [time for (lane, _), time in self.arrivals.items() if request_lane(lane) == request]
        return min(times, default=None)


# The position -------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Position:
    """The index of the next record; immediate records that were consumed ahead are skipped."""

    trace: Trace
    index: int = attrs.field(default=0, init=False)
    _consumed: set[int] = attrs.field(factory=set[int], init=False)

    @property
    def record(self) -> Record | None:
        """The record at the position; None after the last one."""
        journal = self.trace.journal
        return journal[self.index] if self.index < len(journal) else None

    @property
    def is_at_missing(self) -> bool:
        """Return whether records are missing from the file here."""
        return self.index in self.trace.missing

    @property
    def is_at_consumed(self) -> bool:
        """Return whether the record at the position was consumed ahead."""
        return self.index in self._consumed

    def advance(self) -> None:
        """Consume the record at the position; stop where records are missing."""
        self.index += 1
        while self.is_at_consumed and not self.is_at_missing:
            self.index += 1

    def find_immediate(self, lane: LaneKey, ordinal: int) -> int | None:
        """Return the index of an immediate record of a lane that is still to come, if any."""
        index = self.trace.immediate.get((lane, ordinal), -1)
        return index if index >= self.index else None

    def consume(self, index: int) -> None:
        """Consume a record at the position or ahead of it."""
        if index == self.index and not self.is_at_missing:
            self.advance()
        else:
            self._consumed.add(index)


# The threads of `def` handlers --------------------------------------------------------------------


@attrs.define(eq=False)
class ThreadToken:
    """A token that lets one thread of a `def` handler run at a time, in the order of the journal.

    A thread gives the token back when it calls the context, and when it ends. The clock stalls if a
    thread keeps it for longer than `seconds` of real time.
    """

    clock: VirtualClock
    seconds: float
    _is_abandoned: bool = attrs.field(default=False, init=False)
    _runs_left: float = attrs.field(default=math.inf, init=False)
    _is_taken: bool = attrs.field(default=False, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _given_back: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_taken(self) -> bool:
        """Return whether a thread runs and the replay waits for it."""
        return self._is_taken and not self._is_abandoned

    async def acquire(self, name: str) -> None:
        """Wait until no thread runs, then take the token for the handler `name`."""
        while self.is_taken:
            await self._waiting.park()
        self._is_taken = True
        self._given_back = trio.Event()
        self._runs_left -= 1
        self._is_abandoned |= self._runs_left < 0
        self.clock.expect_thread(
            self.seconds,
            f"the thread of {name!r} neither ended nor used its context within {self.seconds:g} s"
            " (limits.replay.thread_seconds)",
        )

    def release(self) -> None:
        """Give the token back: the thread waits for the event loop, or has ended."""
        self._is_taken = False
        self.clock.expect_no_thread()
        self._given_back.set()
        self._waiting.unpark()

    def limit_runs(self) -> None:
        """Let threads end after the replay, but not run for ever."""
        self._runs_left = _THREADS_AFTER_END_MAX

    def abandon(self) -> None:
        """Let the replay wait for threads no longer."""
        self._is_abandoned = True
        self._given_back.set()
        self._waiting.unpark_all()

    async def wait_released(self) -> None:
        """Wait until no thread runs."""
        while self.is_taken:
            await self._given_back.wait()


# The replayer -------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Replayer:
    """A replay of all sessions of a trace.

    Attributes:
        trace: The trace of the recording.
        clock: The clock of the replay's Trio run.
        thread_token: The token of the threads of `def` handlers.
        is_optional: A function that returns whether a record, by its index, need not be repeated.
        is_strict: Whether all records are compared, not only what is sent.
        redactor: The redactor of a redacted recording.
        position: The position in the journal.
        lanes: The lanes of all sessions.
        sessions: The sessions that have begun, by channel.
        divergence: The difference from the recording; None if there was none.
        is_over: Whether the replay compares no more operations, and every task has to end.
        continuing: The lanes of a cut recording that would continue after the cut, by name, with
            the location at which they wait.
        has_shut_itself: Whether a session shut down where none is recorded.
        excused: The last lane that was cancelled at a call which is not recorded.
        delivered: The number of the last `in` record.
        untracked_calls: The calls that bypassed the context, in order, each once.
    """

    trace: Trace
    clock: VirtualClock
    thread_token: ThreadToken
    is_optional: Callable[[int], bool] = attrs.field(kw_only=True, default=lambda _: False)
    is_strict: bool = attrs.field(kw_only=True, default=True)
    redactor: Redactor | None = attrs.field(default=None, init=False)

    position: Position = attrs.field(init=False)
    lanes: Lanes = attrs.field(factory=Lanes, init=False)
    sessions: dict[int, Session] = attrs.field(factory=dict[int, Session], init=False)
    divergence: ReplayDivergence | None = attrs.field(default=None, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    continuing: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    has_shut_itself: bool = attrs.field(default=False, init=False)
    excused: LaneKey | None = attrs.field(default=None, init=False)
    delivered: int = attrs.field(default=0, init=False)
    untracked_calls: dict[UntrackedCall, None] = attrs.field(
        factory=dict[UntrackedCall, None], init=False
    )
    _postponed: PostponedDeadlines = attrs.field(factory=PostponedDeadlines, init=False)
    _last_cancellation: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self.position = Position(self.trace)

    async def play(self, begin: Callable[[int], Awaitable[Session]]) -> None:
        """Replay all records, then abort every task.

        `begin` opens the session of a channel and lets it run.
        """
        try:
            if not self.trace.is_shared:
                self.sessions[0] = await begin(0)
            await self.settle()
            while (record := self.position.record) is not None:
                await self._replay_record(record, begin)
            if not self.trace.is_complete:
                for lane in self.lanes.suspended:
                    if not is_keeper(lane):
                        self.continuing[lane_text(lane)] = task_location(self.lanes.tasks[lane])
        finally:
            self.finish()

    async def _replay_record(
        self, record: Record, begin: Callable[[int], Awaitable[Session]]
    ) -> None:
        index = self.position.index
        self._diverge_at_unrecorded_requests()
        await self._advance_to(record)
        self._diverge_at_unrecorded_requests()
        if self.position.is_at_consumed:
            self.position.advance()
        elif self.position.index != index:
            return
        elif begins_session(record):
            self.position.advance()
            self.sessions[record.channel] = await begin(record.channel)
            await self.settle()
        else:
            await self._perform(record, index)

    async def _perform(self, record: Record, index: int) -> None:
        """Deliver a record or give its lane the turn; diverge if the lane does not consume it."""
        if record.kind in _CALL_KINDS:
            await self._cancel_overtaken(self._nearest_active(key_of(record)))
            if self.position.index != index:
                return
        if record.kind == "in":
            self._deliver(record)
        elif record.kind == "shut":
            self.note_cancellation()  # of handlers that wait for a client which does not return
            self._session_of(record).shut(decode_body(record, ShutBody).cause)
        else:
            self._give_turn(record)
        await self.settle()
        while self.position.index == index and self._has_optional_operation(record):
            self._give_turn(record)
            await self.settle()
        if self.position.index == index:
            await self._advance_to_cancellation(record)
        if self.position.index != index:
            return
        if not self.is_optional(index):
            self.diverge(self._unrecorded_operation(record))
        self.position.advance()

    async def settle(self) -> None:
        """Wait until all tasks are blocked and no thread runs."""
        await wait_all_tasks_blocked()
        while self.thread_token.is_taken:
            await self.thread_token.wait_released()
            await wait_all_tasks_blocked()

    def _session_of(self, record: Record) -> Session:
        session = self.sessions.get(record.channel)
        if session is None:
            self._find(None, f"no session has begun on channel {record.channel}")
            raise Abort
        return session

    def _deliver(self, record: Record) -> None:
        data = body_bytes(record)
        assert data is not None
        session = self._session_of(record)
        self.position.advance()
        self.delivered = record.number
        if _CANCELLED in data:
            self.note_cancellation()
        session.take(received_data(record))

    def note_cancellation(self) -> None:
        """Note that a request may be cancelled now."""
        self._last_cancellation = trio.current_time()

    # Turns.

    def _give_turn(self, record: Record) -> None:
        if record.kind == "end" and self.trace.is_shared:
            self.position.advance()  # the end of the file, not of one of its sessions
        suspended = self.lanes.suspended.get(key_of(record))
        if suspended is not None and self._may_continue(suspended):
            self.lanes.give_turn(suspended.lane)

    def _may_continue(self, suspended: SuspendedLane) -> bool:
        """Return whether the lane's own record is its turn: always, unless it is optional."""
        if not self.is_optional(self.position.index):
            return True
        return suspended.at_start or (
            suspended.due is not None and suspended.due <= self.position.index
        )

    def _has_optional_operation(self, record: Record) -> bool:
        """Return whether the record's lane waits with an operation that is not compared."""
        suspended = self.lanes.suspended.get(key_of(record))
        return suspended is not None and suspended.due is not None and self._may_continue(suspended)

    def continues_at_once(self, suspended: SuspendedLane) -> bool:
        """Return whether a lane's record is at the position and no deadline comes before it."""
        position = self.position
        record = position.record
        if record is None or position.is_at_missing or position.is_at_consumed:
            return False
        if suspended.due is not None and suspended.due < position.index:
            return True
        if key_of(record) != suspended.lane or not self._may_continue(suspended):
            return False
        if suspended.at_start and not is_start(record):
            return True
        # The clock must not advance for a task that has not run yet: a sleep that begins later than
        # recorded also ends later.
        time = seconds_of(record)
        seconds = time - trio.current_time()
        if seconds > _BURST_SECONDS_MAX or time > self._postponed.next_deadline:
            return False
        return seconds <= trio.lowlevel.current_statistics().seconds_to_next_deadline

    # Time.

    async def _advance_to(self, record: Record) -> None:
        """Advance to the record's time; start a lane whose start has no record before that."""
        lane = key_of(record)
        suspended = self.lanes.suspended.get(lane)
        if suspended is not None and suspended.at_start and not is_start(record):
            self.lanes.give_turn(lane)
            await self.settle()
        time = seconds_of(record)
        if self._postponed.restore(time - _ROUNDING_SECONDS):
            await self.settle()
        await self._pass_deadlines(time, postpones=True)

    async def _pass_deadlines(self, time: float, *, postpones: bool) -> None:
        until = time + _ROUNDING_SECONDS
        while (deadline := self.clock.next_deadline) <= until:
            is_simultaneous = postpones and deadline >= time - _ROUNDING_SECONDS
            may_postpone = is_simultaneous and not self.trace.announces_change(
                self.position.index, until
            )
            if not (may_postpone and self._postponed.postpone(self._quiet_tasks(), until)):
                self.clock.advance(deadline)
            await self.settle()
        self.clock.advance(time)

    def _quiet_tasks(self) -> Iterator[trio.lowlevel.Task]:
        """Yield the tasks of handlers that make no more calls in the recording."""
        tasks = [task for task in self.lanes.tasks.values() if is_alive(task)]
        for task in tasks:
            found = self._lane_of(task)
            if found is not None and self.trace.is_quiet_after(*found, self.position.index):
                yield task
            tasks += (child for nursery in task.child_nurseries for child in nursery.child_tasks)

    def _lane_of(self, task: trio.lowlevel.Task) -> tuple[LaneKey, int] | None:
        """Return the lane of a handler's task, and its last operation; None for other tasks."""
        for channel, session in self.sessions.items():
            lane = task.context.run(lane_in, session.sequencer)
            if lane is not None:
                return (channel, lane.name), lane.ordinal
        return None

    # Cancellations.

    async def _advance_to_cancellation(self, record: Record) -> None:
        """Restore postponed deadlines, and advance to the deadline that cancels the lane."""
        time, lane = seconds_of(record), key_of(record)
        if self._postponed.restore():
            await self.settle()
            await self._pass_deadlines(time, postpones=False)
            if self.position.record is record:
                self._give_turn(record)
                await self.settle()
        awaited = self.lanes.cancellations.get(lane)
        is_near = awaited is not None and awaited.deadline <= time + PAUSE_SECONDS_MAX
        if awaited is not None and is_near and self.position.record is record:
            self.clock.advance(awaited.deadline)
            await self.settle()
        if self.position.record is not record or lane not in self.lanes.cancellations:
            return
        # The lane may wait under a shield of its own, which it entered earlier than recorded.
        cancelled_at = self.trace.cancelled_at(lane, self.position.index)
        if cancelled_at is not None and self.lanes.has_arrived(lane, before=cancelled_at):
            unshield(self.lanes.tasks[lane])
            await self.settle()

    def _nearest_active(self, lane: LaneKey) -> LaneKey:
        """Return the lane, or the nearest parent of it that has acted already."""
        while lane not in self.lanes.tasks and is_child(lane):
            lane = lane[0], lane[1].rpartition(".")[0]
        return lane

    async def _cancel_overtaken(self, lane: LaneKey) -> None:
        """Cancel a lane at a call to which it came before its request was cancelled.

        A call checks first whether it is cancelled. So in the recording the cancellation found the
        lane before that call, and its record is a later call, of its clean-up. This cannot be said
        of a deadline, which is late on a machine that pauses.
        """
        lanes = self.lanes
        while (suspended := lanes.suspended.get(lane)) is not None and self._is_overtaken(
            suspended
        ):
            lanes.arrivals[lane, suspended.ordinal] = suspended.since
            lanes.cancellable.add(lane)
            suspended.scope.shield = False
            await self.settle()
            lanes.cancellable.discard(lane)
            if lanes.suspended.get(lane) is suspended:
                lanes.arrivals.pop((lane, suspended.ordinal), None)
                suspended.scope.shield = True
                return

    def _is_overtaken(self, suspended: SuspendedLane) -> bool:
        """Return whether the request of a lane was cancelled while the lane waited for its turn."""
        if suspended.at_start or suspended.since >= self._last_cancellation:
            return False
        cancelled_at = self.trace.cancelled_at(suspended.lane, self.position.index)
        if cancelled_at is None or suspended.since >= cancelled_at:
            return False
        channel, name = request_lane(suspended.lane)
        session = self.sessions.get(channel)
        if session is None or not session.is_cancelled(name) or self._is_shielded(suspended):
            return False
        # A call of a thread may begin in the very moment of the cancellation.
        return not self.trace.is_in_thread(suspended.lane)

    def _is_shielded(self, suspended: SuspendedLane) -> bool:
        """Return whether a shield in users' code keeps the request's cancellation from a lane."""
        task = self.lanes.tasks.get(suspended.lane)
        while task is not None and self._lane_of(task) is not None:
            scopes = (scope for scope in entered_scopes(task) if scope is not suspended.scope)
            if any(scope.shield for scope in scopes):
                return True
            task = task.parent_nursery and task.parent_nursery.parent_task
        return False

    # Operations that are not recorded.

    def _unrecorded_operation(self, record: Record) -> Operation | None:
        """Return the unrecorded operation that keeps a lane from its record, if one does."""
        lane = key_of(record)
        is_last = self.trace.last_index(lane) == self.position.index
        if lane in self.lanes.cancellations and is_last and is_request_lane(lane):
            return self.additional_operation(lane)
        channel, name = lane
        for child in self._finished_lanes():
            if child[0] == channel and child[1].startswith(f"{name}."):
                return self.additional_operation(child)
        return None

    def _diverge_at_unrecorded_requests(self) -> None:
        """Diverge if a request waits for a turn and has no more records.

        Where records are missing from the file, its operation may be among them: the request may
        wait until the replay has come there.
        """
        if self.position.is_at_missing:
            for lane in self._finished_lanes():
                self.diverge(self.additional_operation(lane))
            if self.excused is not None:
                self.diverge(Operation(kind="cxl", lane=self.excused))
            if self.trace.is_complete and not self.trace.has_shut:
                self.diverge(None)
        elif self.position.index > self.trace.last_missing:
            for lane in self._finished_lanes():
                if not is_child(lane):
                    self.diverge(self.additional_operation(lane))

    def _finished_lanes(self) -> list[LaneKey]:
        """Return the lanes that wait for a turn and have no more records.

        The keeper of a suspended handler waits for its turn as long as it exists.
        """
        index, lanes = self.position.index, self.lanes
        if index < lanes.finished_from:
            return []
        ends = {lane: self.trace.finished_from(lane) for lane in lanes.suspended}
        lanes.finished_from = min(ends.values(), default=math.inf)
        return [lane for lane, end in ends.items() if end <= index and not is_keeper(lane)]

    def additional_operation(self, lane: LaneKey) -> Operation:
        """Return an operation of a lane that has no more records."""
        return Operation(kind=None, lane=lane, location=task_location(self.lanes.tasks[lane]))

    def redact(self, kind: str, body: bytes) -> bytes:
        """Return the body as this recording would hold it."""
        return body if self.redactor is None else self.redactor.redact(kind, body)

    def note_untracked_call(self, untracked_call: UntrackedCall) -> None:
        """Keep a call that bypassed the context."""
        self.untracked_calls[untracked_call] = None

    def note_lifespan_use(self, attribute: str, instead: str) -> None:
        """Keep a use of the lifespan's value, which a replay does not have."""
        lane, location = LANE.get(), caller_location()
        name = "" if lane is None else lane.name
        self.note_untracked_call(
            UntrackedCall(
                call=attribute, location=location, lane=name, instead=instead, is_outside=True
            )
        )

    # The end.

    def finish(self) -> None:
        """End the replay: wake every lane with `Abort`, and let sleeping tasks wake."""
        if self.is_over:
            return
        self.is_over = True
        self._postponed.restore()
        self.clock.run_freely()
        self.thread_token.limit_runs()
        self.lanes.wake_all()

    def fail(self, problem: str) -> None:
        """End the replay by an error that belongs to no record; an earlier divergence stays."""
        if self.has_shut_itself:  # the error is the cause of the shutdown
            self.divergence = None
        self._find(None, problem)

    def diverge(self, operation: Operation | None, *, index: int | None = None) -> NoReturn:
        """End the replay: it differs from the record at the position, or at `index`."""
        self._find(operation, index=index)
        raise Abort

    def _find(
        self, operation: Operation | None, problem: str = "", *, index: int | None = None
    ) -> None:
        if self.divergence is None:
            finding = Finding(
                trace=self.trace,
                index=self.position.index if index is None else index,
                operation=operation,
                problem=problem,
                suspended=self._waiting_lanes(),
                untracked_calls=tuple(self.untracked_calls),
                is_strict=self.is_strict,
                redactor=self.redactor,
            )
            self.divergence = describe(finding)
        self.finish()

    def _waiting_lanes(self) -> dict[str, str]:
        """Return for each lane, except the calling one, the source location at which it waits."""
        waiting: dict[str, str] = {}
        for lane, task in self.lanes.tasks.items():
            if not is_alive(task) or task is trio.lowlevel.current_task():
                continue
            location, suspended = task_location(task), self.lanes.suspended.get(lane)
            if suspended is not None and suspended.at_start:
                request = request_data(self.trace.journal, lane[1])
                handler = handler_location(self.sessions[lane[0]].application, request)
                location = f"{handler} (not started)"
            elif suspended is not None:
                location += " (for its turn)"
            waiting[lane_text(lane)] = location.strip()
        return waiting
