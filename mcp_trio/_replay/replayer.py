"""The replayer, which runs the sessions of a recording again, record by record.

The journal is the schedule. Each session has a `SessionReplay` in the place of its recorder. The
session calls it for every operation, and it compares the operation with the record at the
replayer's position. It also calls it before each step of a handler's task, and the task waits at
this *gate* until the step is the next thing in the journal.

All tasks *settle* when they are blocked and no thread runs. The replayer then looks at the record
at its position. It advances the clock to the record's time, which lets deadlines expire that had
expired by then, and then:

- An `in` or `shut` record is delivered to the session. In a file of several sessions, a mark begins
  one.
- A step opens its lane's gate, and so does a record that begins a step of its lane. The lane goes
  on to its next wait, and has to make the records that follow the step.
- A record that nothing makes any more, when all tasks have settled, is a divergence.
- The session itself makes `end`, when none of its tasks run any more.

A lane whose turn has come already goes on without waiting.

Because the steps are those of the recording and in its order, everything that tasks do between two
waits (locks, events, channels, shared memory, cancel scopes) happens as recorded. Nothing shields a
task: a lane whose cancellation was recorded is cancelled by its own scope.

An effect is not run. Its lane waits for the recorded outcome: a value is waited for under a shield,
because the effect had ended when the lane went on; a cancellation has to come by itself.

When the replay is over, `Abort` wakes all lanes; it is no `Exception`, so that `except Exception`
in users' code does not stop it.
"""

import gc
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Final, NoReturn, Protocol

import attrs
import outcome
import trio
from trio.lowlevel import Abort as AbortResult
from trio.testing import wait_all_tasks_blocked

from mcp_trio._journal.records import Record, ShutBody, body_bytes, decode_body
from mcp_trio._journal.redaction import Redactor
from mcp_trio._replay.clock import ROUNDING_SECONDS, VirtualClock
from mcp_trio._replay.divergence import Finding, Operation, describe
from mcp_trio._replay.source_locations import (
    caller_location,
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
    key_of,
    lane_text,
    received_data,
    request_data,
    request_lane,
)
from mcp_trio._session.lanes import LANE
from mcp_trio._session.nondeterminism import UntrackedCall
from mcp_trio._session.session import Session
from mcp_trio.errors import ReplayDivergence

# How much later than recorded a deadline may expire if the recording lacks the turns of its clock.
_PAUSE_SECONDS_MAX: Final = 1.0

# The number of threads that may still run one after another once the replay is over.
_THREADS_AFTER_END_MAX: Final = 1000


class Abort(BaseException):
    """The exception that ends every task of a replay that is over; it never leaves the replay."""


# Shields of tasks ---------------------------------------------------------------------------------
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

    async def wait_all_released(self) -> None:
        """Wait until no thread runs and no other one takes the token."""
        is_taken = True
        while is_taken:
            await self.wait_released()
            for _ in range(2):  # A task that waits for the token takes it in its next step.
                await trio.lowlevel.cancel_shielded_checkpoint()
            is_taken = self.is_taken

    async def settle(self) -> None:
        """Wait until all tasks are blocked and no thread runs."""
        await wait_all_tasks_blocked()
        while self.is_taken:
            await self.wait_released()
            await wait_all_tasks_blocked()

    async def wait_released(self) -> None:
        """Wait until no thread runs."""
        while self.is_taken:
            await self._given_back.wait()


# The player ---------------------------------------------------------------------------------------


class Player(Protocol):
    """The part of a replay, or of a sweep's schedule, that moves the sessions of one Trio run.

    Attributes:
        clock: The clock of the Trio run.
        thread_token: The token of the threads of `def` handlers.
        is_over: Whether every task has to end.
    """

    clock: VirtualClock
    thread_token: ThreadToken
    is_over: bool

    async def play(self, begin: Callable[[int], Awaitable[Session]]) -> None:
        """Move all sessions to their end; `begin` opens the session of a channel."""
        ...

    def fail(self, problem: str) -> None:
        """End everything because of an error that belongs to no operation of a lane."""
        ...


# The replayer -------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Position:
    """The index of the next record; the ends of sessions that came early are skipped."""

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

    def advance(self) -> None:
        """Consume the record at the position; stop where records are missing."""
        self.index += 1
        while self.index in self._consumed and not self.is_at_missing:
            self.index += 1

    def consume(self, index: int) -> None:
        """Consume a record at the position or ahead of it."""
        if index == self.index and not self.is_at_missing:
            self.advance()
        else:
            self._consumed.add(index)


@attrs.define(eq=False)
class Gate:
    """The wait of a lane's task.

    Attributes:
        task: The task.
        has_operation: Whether the lane waits in an operation, not before a step.
        due: The index of the record for which it waits, where records need not come in order.
        since: The time at which it began to wait.
        has_own_pace: Whether something without a lane decides when it goes on.
        is_ready: Whether it waited already when the clock came to the current time.
    """

    task: trio.lowlevel.Task
    has_operation: bool = False
    due: float | None = None
    has_own_pace: bool = False
    since: float = attrs.field(factory=trio.current_time, init=False)
    is_ready: bool = attrs.field(default=False, init=False)


@attrs.define(eq=False)
class Replayer:
    """A replay of all sessions of a trace.

    Attributes:
        trace: The trace of the recording.
        clock: The clock of the replay's Trio run.
        thread_token: The token of the threads of `def` handlers.
        is_strict: Whether all records are compared, not only what is sent.
        redactor: The redactor of a redacted recording.
        position: The position in the journal.
        gates: The lanes that wait for their turn.
        sessions: The sessions that have begun, by channel.
        divergence: The difference from the recording; None if there was none.
        is_over: Whether the replay compares no more operations, and every task has to end.
        continuing: The lanes of a cut recording that would continue after the cut, by name, with
            the location at which they wait.
        has_shut_itself: Whether a session shut down where none is recorded.
        delivered: The number of the last `in` record.
        untracked_calls: The calls that bypassed the context, in order, each once.
        calls: The source location of each lane's last call of its context.
    """

    trace: Trace
    clock: VirtualClock
    thread_token: ThreadToken
    is_strict: bool = attrs.field(kw_only=True, default=True)
    redactor: Redactor | None = attrs.field(default=None, init=False)

    position: Position = attrs.field(init=False)
    gates: dict[LaneKey, Gate] = attrs.field(factory=dict[LaneKey, Gate], init=False)
    sessions: dict[int, Session] = attrs.field(factory=dict[int, Session], init=False)
    divergence: ReplayDivergence | None = attrs.field(default=None, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    continuing: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    has_shut_itself: bool = attrs.field(default=False, init=False)
    delivered: int = attrs.field(default=0, init=False)
    untracked_calls: dict[UntrackedCall, None] = attrs.field(
        factory=dict[UntrackedCall, None], init=False
    )
    calls: dict[LaneKey, str] = attrs.field(factory=dict[LaneKey, str], init=False)
    _tasks: dict[LaneKey, trio.lowlevel.Task] = attrs.field(
        factory=dict[LaneKey, trio.lowlevel.Task], init=False
    )
    _begun: set[LaneKey] = attrs.field(factory=set[LaneKey], init=False)
    _time_ns: int = attrs.field(default=-1, init=False)
    # The index of the record whose lane goes on with it, so that the lane does so only once.
    _opened: int = attrs.field(default=-1, init=False)
    # A request that waits for a turn after its last record.
    _surplus: LaneKey | None = attrs.field(default=None, init=False)

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
                await self.replay_record(record, begin)
            self._check_surplus()
            if not self.trace.is_complete:
                for lane, gate in self.gates.items():
                    if not is_keeper(lane):
                        self.continuing[lane_text(lane)] = task_location(gate.task)
        finally:
            self.finish()

    async def replay_record(
        self, record: Record, begin: Callable[[int], Awaitable[Session]]
    ) -> None:
        """Replay the record at the position, and all that lanes do before they wait again."""
        index = self.position.index
        self._check_surplus()
        if self.is_at_missing:
            self._diverge_at_missing()
        if record.time_ns > self._time_ns:
            await self._advance_clock(record)
            if self.position.index != index:
                return
        if begins_session(record):
            self.position.advance()
            self.sessions[record.channel] = await begin(record.channel)
        elif record.kind == "in":
            self._deliver(record)
        elif record.kind == "shut":
            self._session_of(record).shut(decode_body(record, ShutBody).cause)
        elif record.kind == "end" and self.trace.is_shared:
            self.position.advance()  # the end of the file, not of one of its sessions
        else:
            self.open_gate(key_of(record))
        await self.settle()
        if self.position.index == index:
            await self.force(record)
        if self.position.index == index:
            self.diverge(self._surplus_operation(record))

    def _surplus_operation(self, record: Record) -> Operation | None:
        """Return what a lane does instead of the record: it waits, and has no more records."""
        request = request_lane(key_of(record))
        for lane in self.gates:
            if (
                request_lane(lane) == request
                and self.trace.next_index(lane, self.position.index) is None
            ):
                return self.additional_operation(lane)
        return None

    def _diverge_at_missing(self) -> NoReturn:
        """Diverge where records are missing from the file; name a lane that waits for one."""
        waiting = sorted(self.gates, key=self.trace.last_index)
        self.diverge(self.additional_operation(waiting[0]) if waiting else None)

    @property
    def is_at_missing(self) -> bool:
        """Return whether records are missing from the file at the position."""
        return self.position.is_at_missing

    async def force(self, record: Record) -> None:
        """Let the record happen a little later than recorded, if its deadline was not exact."""
        if self.clock.kind != "foreign" or self.is_at_missing or record.lane is None:
            return
        index, until_ns = self.position.index, record.time_ns + int(_PAUSE_SECONDS_MAX * 1e9)
        while self.position.index == index and self.clock.is_due_by(until_ns):
            self.clock.advance_to(self.clock.next_deadline)
            await self.settle()
            if self.position.index == index:
                self.open_gate(key_of(record))
                await self.settle()

    async def settle(self) -> None:
        """Wait until all tasks are blocked and no thread runs."""
        await self.thread_token.settle()

    async def _advance_clock(self, record: Record) -> None:
        """Advance to the record's time, and stop at each deadline before it.

        A task without steps that sleeps twice wakes twice.
        """
        index = self.position.index
        self._check_late_lanes(record)
        while self.clock.is_due_by(record.time_ns):
            self.clock.advance_to(self.clock.next_deadline)
            await self.settle()
            if self.position.index != index:
                return
        self._check_late_lanes(record)
        self._show_time(record)
        for gate in self.gates.values():
            gate.is_ready = True

    def _check_late_lanes(self, record: Record) -> None:
        """Diverge if a lane could go on, and did not when recorded.

        A task that Trio wakes runs in the same turn of the event loop, or in the next one, so a
        lane that waits from the beginning of a turn takes its step in that turn. If the recording
        does not tell the turns, a lane may come a little early. On a virtual clock no time passes
        before a task goes on.
        """
        if self.position.index <= self.trace.last_missing or not self.trace.is_complete:
            return
        for lane, gate in self.gates.items():
            if self._is_timed(lane) and self._is_late(gate, record):
                self.diverge(self.additional_operation(lane))

    def _is_timed(self, lane: LaneKey) -> bool:
        """Return whether a waiting lane takes its step as soon as it is ready."""
        gate = self.gates[lane]
        is_of_loop = not (gate.has_operation or gate.has_own_pace)
        return is_of_loop and (lane in self._begun or is_child(lane))

    def _is_late(self, gate: Gate, record: Record) -> bool:
        waited_seconds = self.clock.time_of(record.time_ns) - gate.since
        if self.clock.kind == "foreign":
            return waited_seconds > _PAUSE_SECONDS_MAX
        return gate.is_ready if self.clock.kind == "tick" else waited_seconds > ROUNDING_SECONDS

    def _show_time(self, record: Record) -> None:
        self._time_ns = record.time_ns
        self.clock.show(record.time_ns)

    def _session_of(self, record: Record) -> Session:
        session = self.sessions.get(record.channel)
        if session is None:
            self._find(None, f"no session has begun on channel {record.channel}")
            raise Abort
        return session

    def _deliver(self, record: Record) -> None:
        if body_bytes(record) is None:
            raise AssertionError("checked when the recording was loaded")
        session = self._session_of(record)
        self.position.advance()
        self.delivered = record.number
        session.take(received_data(record))

    # Gates.

    def is_turn(self, lane: LaneKey, *, has_operation: bool = False) -> bool:
        """Return whether the lane goes on now, with the record at the position."""
        position = self.position
        record = position.record
        if record is None or position.is_at_missing or key_of(record) != lane:
            return False
        if self._opened == position.index:
            return has_operation  # The lane is in the step already that the record begins.
        if not _opens(record, has_operation=has_operation):
            return False
        if record.time_ns > self._time_ns:
            if self.clock.has_deadline_by(record.time_ns) or any(map(self._is_timed, self.gates)):
                return False  # Others go on before the clock does.
            if not has_operation and self.clock.is_early(record.time_ns):
                return False
            self._show_time(record)
        return True

    def take_turn(self, lane: LaneKey) -> None:
        """Consume the step at the position; another record is consumed when the lane makes it."""
        self._begun.add(lane)
        record = self.position.record
        if record is not None and record.kind == "step":
            self.position.advance()
        else:
            self._opened = self.position.index

    def is_in_step(self, record: Record) -> bool:
        """Return whether the lane of the record at the position has waited for it, if recorded."""
        return not record.is_step or self._opened == self.position.index

    async def wait_for_turn(
        self,
        lane: LaneKey,
        *,
        has_operation: bool = False,
        due: float | None = None,
        has_own_pace: bool = False,
    ) -> None:
        """Wait, uncancellably, until the replayer opens the gate of a lane.

        Raises:
            Abort: The replay is over.
        """
        self.note_task(lane)
        task = trio.lowlevel.current_task()
        self.gates[lane] = Gate(task, has_operation, due, has_own_pace)
        # The end of a session cancels handlers of notifications, after its last record.
        may_outlive_session = lane[1].startswith("n") and lane in self._begun
        if self.trace.is_complete and lane[1] and not (is_child(lane) or may_outlive_session):
            last = self.trace.last_index(lane)
            if last < self.position.index:
                self._surplus = lane
        await trio.lowlevel.wait_task_rescheduled(lambda _: AbortResult.FAILED)

    async def wait_for_cancellation(self, lane: LaneKey) -> None:
        """Wait until the lane is cancelled.

        Raises:
            Cancelled: Always, unless the replay is over.
            Abort: The replay is over.
        """
        self.note_task(lane)
        self.gates[lane] = Gate(trio.lowlevel.current_task(), has_operation=True, due=math.inf)

        def abort(_: object) -> AbortResult:
            del self.gates[lane]
            return AbortResult.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def note_task(self, lane: LaneKey) -> None:
        """Remember that the calling task acts for a lane."""
        self._tasks[lane] = trio.lowlevel.current_task()

    def note_call(self, lane: LaneKey, location: str) -> None:
        """Remember where in users' code a lane has called its context."""
        if location:
            self.calls[lane] = location

    def open_gate(self, lane: LaneKey) -> None:
        """Let a lane go on with the record at the position, if it waits for that."""
        gate, record = self.gates.get(lane), self.position.record
        if gate is None or record is None or gate.due == math.inf:
            return
        if not _opens(record, has_operation=gate.has_operation):
            return
        if self._opened == self.position.index and not gate.has_operation:
            return  # The lane has waited once more in the step that the record begins.
        if self.clock.kind != "tick":
            self._check_late_lanes(record)
        self.take_turn(lane)
        del self.gates[lane]
        trio.lowlevel.reschedule(gate.task)

    def _check_surplus(self) -> None:
        """Diverge if a request waits for a turn and has no more records.

        Where records are missing from the file, its operation may be among them.
        """
        lane = self._surplus
        if lane is not None and self.position.index > self.trace.last_missing:
            self.diverge(self.additional_operation(lane))

    def additional_operation(self, lane: LaneKey) -> Operation:
        """Return an operation of a lane that has no more records."""
        task = self._tasks.get(lane)
        location = "" if task is None else task_location(task)
        return Operation(kind=None, lane=lane, location=location)

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
        """End the replay: wake every lane, and let sleeping tasks wake.

        A lane that waits in an operation gets `Abort`. A lane that waits before a step goes on, as
        code of Trio may run in that step, and gets `Abort` at its next operation.
        """
        if self.is_over:
            return
        self.is_over = True
        self.clock.run_freely()
        self.thread_token.limit_runs()
        gates, self.gates = self.gates, {}
        for gate in gates.values():
            result = outcome.Error(Abort()) if gate.has_operation else outcome.Value(None)
            trio.lowlevel.reschedule(gate.task, result)

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
        for lane, task in self._tasks.items():
            if not is_alive(task) or task is trio.lowlevel.current_task():
                continue
            location = task_location(task)
            if lane in self.gates and lane not in self._begun:
                request = request_data(self.trace.journal, lane[1])
                handler = handler_location(self.sessions[lane[0]].application, request)
                location = f"{handler or location} (not started)"
            elif lane in self.gates:
                location += " (for its turn)"
            waiting[lane_text(lane)] = location.strip()
        return waiting


def _opens(record: Record, *, has_operation: bool) -> bool:
    """Return whether a record of a lane opens its gate before a step, or in an operation."""
    return record.kind != "step" if has_operation else bool(record.is_step)
