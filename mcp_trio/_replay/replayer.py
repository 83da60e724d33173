"""The replayer, which runs the sessions of a recording again, record by record.

The journal is the schedule. Each session has a `SessionReplay` in the place of its recorder. The
session calls the `SessionReplay` for every operation, which is compared with the record at the
replayer's position. The session also calls it before each step of a lane, which is the task of a
handler (`_session/lanes.py`). The lane then waits (`LaneWait`) for its *turn*: until its step is
the next thing in the journal. It goes on without waiting if its turn has come already.

All tasks *settle* when they are blocked and no thread runs. The replayer then looks at the record
at its position. It advances the clock to the record's time, which lets deadlines expire that had
expired by then. What it does next depends on the kind of the record:

- `in`, `shut`: it passes the message to the session, or shuts the session down.
- `step`, or another record that begins a step: it lets the lane go on. The lane runs to its next
  wait, and has to make the records that follow the step.
- `mark`, of a session or lifespan: it begins the session, begins the lifespan, or cancels the
  lifespan. Such marks are in a file of several sessions, or with a lifespan. All other marks are
  made by the operations of lanes.
- `end`: the session makes it itself, when none of its tasks run any more.

A record that no task has made when all tasks have settled is a divergence.

The recorded clock (`OpenBody.clock`) decides how exactly deadlines are replayed. Under
`TICK_CLOCK`, all records of one turn of the event loop have the same time, so the order of
deadlines and other events is known. Under `FOREIGN_CLOCK` it is not, and a deadline may expire a
little later than recorded.

Because the steps are those of the recording and in its order, everything that tasks do between two
waits (locks, events, channels, shared memory, cancel scopes) happens as recorded. The replayer
cancels no lane for a recorded cancellation: a scope of the lane has to do that, as when recorded.

An effect is not run. Its lane waits for the recorded outcome. If that is a result or an error,
nothing can cancel the wait, because the effect had ended when the lane went on. If it is a
cancellation, the lane waits until its scope is cancelled.

When the replay is over, `Abort` wakes all lanes; it is no `Exception`, so that `except Exception`
in users' code does not stop it.

A replay ends at its first divergence, unless it is to find all of them. Then an operation that
differs in its values only gets the recorded outcome, and its lane goes on. With any other
difference the request is left out from there on (`LeftOutRequests`), and the others go on.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, ClassVar, Final, NoReturn, cast

import attrs
import msgspec
import trio
from trio.lowlevel import Abort as AbortResult

from mcp_trio._journal.records import (
    FOREIGN_CLOCK,
    LIFESPAN_CANCELLED_MARK,
    LIFESPAN_LANE,
    LIFESPAN_MARK,
    SUSPENDED_MARK,
    TICK_CLOCK,
    MarkBody,
    Record,
    ShutBody,
    body_bytes,
    decode_body,
    message_position,
)
from mcp_trio._journal.redaction import Redactor
from mcp_trio._recorder.writer import SESSION_MARK
from mcp_trio._replay.clock import ROUNDING_SECONDS, VirtualClock
from mcp_trio._replay.controlled_run import BeginSession, ThreadToken, end_run, unshield
from mcp_trio._replay.divergence import (
    Divergence,
    Operation,
    divergence_error,
    is_response,
    state_text,
)
from mcp_trio._replay.source_locations import (
    current_user_frames,
    handler_entry,
    handler_location,
    is_alive,
    task_location,
    user_frames,
)
from mcp_trio._replay.trace import (
    LaneKey,
    Trace,
    body_name,
    is_child,
    is_notification_lane,
    is_request_lane,
    key_of,
    lane_text,
    mark_name,
    message_fields,
    received_data,
    request_data,
    request_lane,
)
from mcp_trio._server.lifespan import LifespanRun
from mcp_trio._session.input_required import ROUNDS_TASK
from mcp_trio._session.lanes import LANE, Abort, lanes_with_steps
from mcp_trio._session.session import Session
from mcp_trio._session.untracked_calls import UntrackedCall
from mcp_trio.errors import RecordingError, ReplayDivergence

# How much later than recorded a deadline may expire under a foreign clock.
_LATE_SECONDS_MAX: Final = 1.0

# The kinds of records, and the marks, that the replayer makes happen without a lane.
_KINDS_OF_REPLAYER: Final = frozenset({"in", "shut", "end"})
_MARKS_OF_REPLAYER: Final = frozenset({SESSION_MARK, LIFESPAN_MARK, LIFESPAN_CANCELLED_MARK})


# Stops --------------------------------------------------------------------------------------------

# The kinds of records that a call of a lane makes.
_KINDS_OF_CALLS: Final = frozenset({"cmd", "out", "val", "mark"})


class StoppedReplay(msgspec.Struct, frozen=True):
    """The state of a replay that has stopped.

    Attributes:
        divergence: The record, what the replay does there, and where the other lanes wait.
        end: A function that ends the replay; it can be called while the replay is stopped, or
            later.
        frames: The frames of the user's code in the lane of the record, and their lines, the
            outermost first.
        entry: The file and line at which that code begins, if the task has not started.
    """

    divergence: Divergence
    end: Callable[[], None]
    frames: Sequence[tuple[FrameType, int]] = ()
    entry: tuple[str, int] | None = None

    def __str__(self) -> str:
        return state_text(self.divergence)


@attrs.define(eq=False, repr=False)
class Stop:
    """A record at which a replay stops.

    The replay stops just before the lane makes the record. If an operation makes the record when it
    is called, the replay stops in that call. If the record ends a wait, or begins a step, the
    replay stops while the task of the lane still waits. All other tasks are blocked meanwhile, the
    virtual clock stands still, and no messages arrive.

    Attributes:
        number: The number of the record. At a `step` record, which lists several steps, the replay
            stops before the first of them.
        on_stop: Called in the task of the lane, or in that of the replay for a record without one.
            The replay goes on when this returns.
        needs_task: Whether the record has to be one of a handler, because a debugger needs the
            frames of a task. If no task makes the record, the replay then also stops before it
            reports this divergence.
        has_ended: Whether the replay was ended by `StoppedReplay.end`.
    """

    number: int
    on_stop: Callable[[StoppedReplay], None]
    needs_task: bool = False
    has_stopped: bool = attrs.field(default=False, init=False)
    has_ended: bool = attrs.field(default=False, init=False)

    def is_at(self, record: Record | None) -> bool:
        return record is not None and record.number == self.number and not self.has_stopped

    def is_before_step(self, record: Record) -> bool:
        """Return whether the replay stops before the step that the record begins.

        Otherwise it stops at the call that makes the record. For a debugger, it also stops before
        the step that makes a response: at the response itself the handler has returned, so that its
        task has no frames any more.
        """
        if not self.is_at(record):
            return False
        is_call = record.kind in _KINDS_OF_CALLS
        return not is_call or (self.needs_task and is_response(record.kind, body_bytes(record)))


def check_stop(trace: Trace, stop: Stop) -> None:
    """Check that a replay can stop at a record.

    Raises:
        RecordingError: It cannot; the message names a record at which it can, if there is one.
    """
    journal, number = trace.journal, stop.number
    last = journal[-1].number if journal else 0
    if not 0 <= number <= last:
        raise RecordingError(f"there is no record {number}: the last one is record {last}")
    # In a file of several sessions, a session makes the mark of its end without waiting for its
    # turn, so the replay cannot stop there.
    endings = {journal[index].number for index in trace.session_ends.values()}
    later = [each for each in journal if each.number >= number and each.number not in endings]
    if not later:
        raise RecordingError(
            f"record {number} takes no part in a replay, nor does a later one: stop at an earlier"
            " record"
        )
    if later[0].number != number:
        raise RecordingError(
            f"record {number} takes no part in a replay: stop at record {later[0].number} instead"
        )
    if not stop.needs_task:
        return
    record = later[0]
    if record.lane is None or message_position(record.lane) is None:
        text = f"no handler makes record {number}, so that a debugger has no task"
        of_handlers = (each for each in later if message_position(each.lane or "") is not None)
        following = next(of_handlers, None)
        if following is not None:
            lane = lane_text(key_of(following))
            text += f": the next record of a handler is {following.number}, of lane {lane}"
        raise RecordingError(text)
    if is_response(record.kind, body_bytes(record)) and not record.step_start:
        steps = [each for each in journal if each.step_start and key_of(each) == key_of(record)]
        last_step = max(each.number for each in steps if each.number < number)
        raise RecordingError(
            f"record {number} is the response of a handler, which has returned by then: its last"
            f" step begins with record {last_step}"
        )


# The replay ---------------------------------------------------------------------------------------


class Position:
    """The index of the next record in the journal; records that came early are skipped."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.index = 0
        self._consumed: set[int] = set()

    @property
    def record(self) -> Record | None:
        journal = self.trace.journal
        return journal[self.index] if self.index < len(journal) else None

    @property
    def is_at_missing(self) -> bool:
        return self.index in self.trace.missing

    def advance(self) -> None:
        self.consume(self.index)

    def consume(self, *indexes: int) -> None:
        """Consume records at the position or ahead of it; stop where records are missing."""
        self._consumed.update(indexes)
        while self.index in self._consumed and not self.is_at_missing:
            self.index += 1


class LeftOutRequests:
    """The requests that a replay goes on without, after they have diverged.

    `lane in left_out` tells whether a lane belongs to such a request. Its handler is cancelled, and
    its remaining records are skipped, and so is what they have caused: the client's answers to the
    requests that the handler would have sent, and the retries of a handler that asks in rounds.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        # The lanes of the handlers, the ids of the requests that they have sent when recorded, and
        # the request states with which clients retry their requests.
        self._lanes: set[LaneKey] = set()
        self._sent_ids: set[tuple[int, int | str]] = set()
        self._states: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __contains__(self, lane: LaneKey) -> bool:
        return bool(self._lanes) and request_lane(lane) in self._lanes

    def add(self, request: LaneKey, index: int) -> list[int]:
        """Leave out a request; return the indexes of its records at `index` and later."""
        self._lanes.add(request)
        skipped: list[int] = []
        for lane in self._trace.request_lanes[request]:
            indexes = self._trace.indexes[lane]
            skipped += indexes[bisect_left(indexes, index) :]
            for record in (self._trace.journal[each] for each in indexes):
                if record.kind == "out":
                    message = message_fields(body_bytes(record) or b"")
                    if message.is_request and message.id is not msgspec.UNSET:
                        self._sent_ids.add((record.channel, message.id))
                elif record.kind == "mark" and body_name(record) == SUSPENDED_MARK:
                    self._states.add(str(decode_body(record, MarkBody).value))
        return skipped

    def leaves_out(self, record: Record) -> bool:
        """Return whether an `in` record answers, or retries, a request that is left out."""
        if not self._lanes:
            return False
        message = message_fields(body_bytes(record) or b"")
        if message.is_response:
            return (record.channel, message.id) in self._sent_ids
        state = message.params.get("requestState")  # Of an invalid request it is no text.
        return isinstance(state, str) and state in self._states


@attrs.define(eq=False, repr=False)
class LaneWait:
    """The wait of a lane's task.

    Attributes:
        task: The task.
        has_operation: Whether the lane waits in an operation, and not before a step.
        outcome_index: The index of the record of the outcome for which it waits, in a replay that
            compares only sent messages; None in other replays and waits.
        is_for_cancellation: Whether it waits for its cancellation, which no record causes.
        is_timed: Whether a live session would have let it go on in the turn of the event loop in
            which it is ready. If its step is recorded in a later turn, the replay diverges.
        since: The time at which it began to wait.
        is_ready: Whether it waited already when the clock came to the current time.
    """

    task: trio.lowlevel.Task
    has_operation: bool = False
    outcome_index: int | None = None
    is_for_cancellation: bool = False
    is_timed: bool = False
    since: float = attrs.field(factory=trio.current_time, init=False)
    is_ready: bool = attrs.field(default=False, init=False)


class Replayer:
    """A replay of all sessions of a trace that compares all records.

    `OutboundReplayer` is the replay that compares only what is sent. After the end of the replay,
    the methods that lanes call raise `Abort`.

    Attributes:
        is_strict: Whether all records are compared, not only what is sent.
        finds_all: Whether the replay goes on after a divergence.
        list_change: A function that returns, for the name of a lane, the `Divergence.list_change`
            of its request.
        make_lifespan: A function that returns the run of the lifespan of a channel.
        divergences: The differences from the recording, in the order in which they were found.
        continuing: The lanes of a cut recording that would continue after the cut, by name, with
            the location at which they wait.
        divergences_before_shut: How many divergences were found before a session shut down where no
            shutdown is recorded; None if no session has.
        exit: The `SystemExit` or `KeyboardInterrupt` that ended the session after the last record,
            with its location; empty if there was none.
        last_delivered: The number of the last delivered `in` record.
        call_locations: The source location of each lane's last call of its context.
    """

    is_strict: ClassVar[bool] = True
    make_lifespan: Callable[[int], LifespanRun]
    goes_on_after_exit = True

    def __init__(
        self,
        trace: Trace,
        clock: VirtualClock,
        thread_token: ThreadToken,
        *,
        finds_all: bool,
    ) -> None:
        self.trace = trace
        self.clock = clock
        self.thread_token = thread_token
        self.finds_all = finds_all
        self.redactor: Redactor | None = None
        self.stop: Stop | None = None
        self.list_change: Callable[[str], str] = lambda _: ""
        self.position = Position(trace)
        self.waiting_lanes: dict[LaneKey, LaneWait] = {}
        self.sessions: dict[int, Session] = {}
        self.lifespans: dict[int, LifespanRun] = {}
        self.divergences: list[Divergence] = []
        self.left_out = LeftOutRequests(trace)
        self.is_over = False
        self.continuing: dict[str, str] = {}
        self.divergences_before_shut: int | None = None
        self.exit = ""
        self.last_delivered = 0
        self.untracked_calls: dict[UntrackedCall, None] = {}
        self.call_locations: dict[LaneKey, str] = {}
        # The last task that has acted in each lane; it may have ended, or act in another lane now.
        self._tasks: dict[LaneKey, trio.lowlevel.Task] = {}
        self._lanes_begun: set[LaneKey] = set()  # They have taken a turn.
        self._time_ns = -1  # of the record that the clock shows
        # The index of the record with which a lane has gone on last. The record stays at the
        # position until the lane has made it, and must not let the lane go on once more.
        self._resumed_index = -1
        # The state at a stop, which the task of this lane reports when it goes on.
        self._stopping: tuple[LaneKey, StoppedReplay] | None = None
        # Whether a difference has ended the replay. What happens after that does not count.
        self._has_ended_early = False
        # A lane of a request that waits for a turn after its last record.
        self._lane_without_record: LaneKey | None = None

    @property
    def error(self) -> ReplayDivergence | None:
        return divergence_error(*self.divergences) if self.divergences else None

    async def run_sessions(
        self, begin: BeginSession, start_lifespan: Callable[[LifespanRun], None]
    ) -> None:
        """Replay all records, then abort every task, as `RunController.run_sessions` describes."""
        try:
            if not self.trace.has_session_marks:
                self.sessions[0] = await begin(0, None, self.trace.opening.transport)
            await self.thread_token.settle()
            while (record := self.position.record) is not None:
                if record.kind in _KINDS_OF_REPLAYER or mark_name(record) in _MARKS_OF_REPLAYER:
                    self.stop_here(None)
                await self.replay_record(record, begin, start_lifespan)
            self._check_lane_without_record()
            if not self.trace.is_complete:
                for lane, wait in self.waiting_lanes.items():
                    if lane[1] != LIFESPAN_LANE and not lane[1].endswith(f".{ROUNDS_TASK}"):
                        self.continuing[lane_text(lane)] = task_location(wait.task)
        finally:
            self.finish()

    async def replay_record(
        self,
        record: Record,
        begin: BeginSession,
        start_lifespan: Callable[[LifespanRun], None],
    ) -> None:
        """Replay the record at the position, and all that lanes do before they wait again."""
        index = self.position.index
        self._check_lane_without_record()
        if self.position.is_at_missing:
            # The report names the lane that waits for a missing record, if one does.
            self.diverge(self._additional_operation_of_first(self.waiting_lanes))
        if self.position.index != index:  # The lane of the record has been left out.
            return
        if record.time_ns > self._time_ns:
            await self._advance_clock(record)
            if self.position.index != index:
                return
        mark = mark_name(record)
        if mark == SESSION_MARK:
            lifespan: LifespanRun | None = None
            if (channel := self.trace.lifespan_of.get(record.channel)) is not None:
                lifespan = self.lifespans[channel]
                if lifespan.variables is None:  # It still runs the code before its `yield`.
                    self.diverge(self.additional_operation((channel, LIFESPAN_LANE)))
            self.position.advance()
            value = decode_body(record, MarkBody).value
            transport: str = ""
            if isinstance(value, dict):
                transport = cast("dict[str, Any]", value).get("transport", "")
            self.sessions[record.channel] = await begin(record.channel, lifespan, transport)
        elif mark == LIFESPAN_MARK:
            self.position.advance()
            run = self.lifespans[record.channel] = self.make_lifespan(record.channel)
            start_lifespan(run)
        elif mark == LIFESPAN_CANCELLED_MARK:
            self.position.advance()
            self.lifespans[record.channel].cancel()
        elif record.kind == "in":
            self._deliver(record)
            # The clock of a live session stands still within a turn of the event loop, and its
            # reader runs once in a turn: no other task ran between two messages of one turn.
            while (
                self.clock.kind == TICK_CLOCK
                and (following := self.position.record) is not None
                and following.kind == "in"
                and not self.position.is_at_missing
                and following.time_ns == record.time_ns
                and following.channel == record.channel
            ):
                self.stop_here(None)
                self._deliver(following)
        elif record.kind == "shut":
            self._session_of(record).shut(decode_body(record, ShutBody).cause)
        elif record.kind == "end" and self.trace.has_session_marks:
            self.position.advance()  # the end of the file, not of one of its sessions
        else:
            self.resume_lane(key_of(record))
        await self.thread_token.settle()
        if self.position.index == index:
            await self.advance_until_made(record)
        if self.position.index == index:
            # If a lane of the same request waits, and has no more records, its operation is the one
            # that differs.
            request = request_lane(key_of(record))
            additional = (
                lane
                for lane in self.waiting_lanes
                if request_lane(lane) == request and self.trace.next_index(lane, index) is None
            )
            self.diverge(self._additional_operation_of_first(additional))

    async def advance_until_made(self, record: Record) -> None:
        """Let deadlines expire that follow the record closely, until its lane makes the record.

        This does nothing unless the recorded clock is foreign, so that a deadline may expire a
        little later in the replay.
        """
        if self.clock.kind != FOREIGN_CLOCK or self.position.is_at_missing or record.lane is None:
            return
        index, until_ns = self.position.index, record.time_ns + int(_LATE_SECONDS_MAX * 1e9)
        while self.position.index == index and self.clock.is_due_by(until_ns):
            self.clock.advance_to(self.clock.next_deadline)
            await self.thread_token.settle()
            if self.position.index == index:
                self.resume_lane(key_of(record))
                await self.thread_token.settle()

    async def _advance_clock(self, record: Record) -> None:
        """Advance to the record's time, and stop at each deadline before it."""
        index = self.position.index
        self._check_late_lanes(record)
        while self.clock.is_due_by(record.time_ns):
            self.clock.advance_to(self.clock.next_deadline)
            await self.thread_token.settle()
            if self.position.index != index:
                return
        self._check_late_lanes(record)
        self._show_time(record)
        for wait in self.waiting_lanes.values():
            wait.is_ready = True

    def _check_late_lanes(self, record: Record) -> None:
        """Diverge if a lane could go on, and did not when recorded.

        A task that Trio wakes runs in the same turn of the event loop, or in the next one. So a
        lane that waits from the beginning of a turn should have taken its step in that turn. A
        recording under a foreign clock does not show the turns: there a lane may wait for
        `_LATE_SECONDS_MAX`. On a virtual clock no time passes before a task goes on.

        Nothing is checked after a request was left out, because other lanes may go on earlier then.
        """
        if self.position.index <= self.trace.last_missing or not self.trace.is_complete:
            return
        if self.left_out:
            return
        late: list[LaneKey] = []
        for lane, wait in self.waiting_lanes.items():
            if not wait.is_timed:
                continue
            if self.clock.kind == TICK_CLOCK:
                is_late = wait.is_ready
            else:
                is_foreign = self.clock.kind == FOREIGN_CLOCK
                wait_seconds_max = _LATE_SECONDS_MAX if is_foreign else ROUNDING_SECONDS
                is_late = self.clock.time_of(record.time_ns) - wait.since > wait_seconds_max
            if is_late:
                late.append(lane)
        if late:
            self.diverge(self._additional_operation_of_first(late))

    def _show_time(self, record: Record) -> None:
        self._time_ns = record.time_ns
        self.clock.advance_to(self.clock.time_of(record.time_ns))

    def _session_of(self, record: Record) -> Session:
        session = self.sessions.get(record.channel)
        if session is None:
            self.fail(f"no session has begun on channel {record.channel}")
            raise Abort
        return session

    def _deliver(self, record: Record) -> None:
        if body_bytes(record) is None:
            raise AssertionError("checked when the recording was loaded")
        session = self._session_of(record)
        self.position.advance()
        if self.left_out.leaves_out(record):
            return
        self.last_delivered = record.number
        session.take(received_data(record))

    # Turns.

    def is_turn(self, lane: LaneKey, *, has_operation: bool = False) -> bool:
        """Return whether the lane goes on now, with the record at the position."""
        position = self.position
        record = position.record
        if record is None or position.is_at_missing or key_of(record) != lane:
            return False
        if self._resumed_index == position.index:
            return has_operation  # The lane is in the step already that the record begins.
        if not _resumes(record, has_operation=has_operation) or self._stops_before_step():
            return False
        if record.time_ns > self._time_ns:
            if self.clock.has_deadline_by(record.time_ns):
                return False  # A deadline expires first, and its lane may go on before this one.
            if any(wait.is_timed for wait in self.waiting_lanes.values()):
                return False
            if not has_operation and self.clock.is_early(record.time_ns):
                return False
            self._show_time(record)
        return True

    def take_turn(self, lane: LaneKey) -> None:
        """Consume the step at the position; another record is consumed when the lane makes it."""
        self._lanes_begun.add(lane)
        record = self.position.record
        if record is not None and record.kind == "step":
            self.position.advance()
        else:
            self._resumed_index = self.position.index

    def is_uncompared(self) -> bool:
        """Return False: all records are compared."""
        return False

    def is_in_step(self, record: Record) -> bool:
        """Return whether the lane has begun the step, if any, that the record here begins."""
        return not record.step_start or self._resumed_index == self.position.index

    async def wait_for_turn(
        self,
        lane: LaneKey,
        *,
        has_operation: bool = False,
        outcome_index: int | None = None,
        has_own_pace: bool = False,
    ) -> None:
        """Wait, uncancellably, until the replayer lets the lane go on.

        `LaneWait` explains `has_operation` and `outcome_index`, and `Lane` explains `has_own_pace`.
        """
        self.note_task(lane)
        task = trio.lowlevel.current_task()
        # A handler may have waited for a task of the pool before its first step.
        has_begun = lane in self._lanes_begun or is_child(lane)
        is_timed = has_begun and not (has_operation or has_own_pace)
        self.waiting_lanes[lane] = LaneWait(task, has_operation, outcome_index, is_timed=is_timed)
        # The end of a session cancels handlers of notifications, after its last record.
        may_outlive_session = is_notification_lane(lane) and lane in self._lanes_begun
        _, name = lane  # empty if the session itself waits
        if self.trace.is_complete and name and not (is_child(lane) or may_outlive_session):
            last = self.trace.last_index(lane)
            if last < self.position.index:
                self._lane_without_record = lane
        await trio.lowlevel.wait_task_rescheduled(lambda _: AbortResult.FAILED)
        if self._stopping is not None and self._stopping[0] == lane:
            (_, stopped), self._stopping = self._stopping, None
            # A lane that waits before a step gets `Abort` at its next operation; see `end_run`.
            self._report_stop(stopped, raises_abort=has_operation)

    async def wait_for_cancellation(self, lane: LaneKey) -> None:
        """Wait until the lane is cancelled, and raise `Cancelled`."""
        self.note_task(lane)
        self.waiting_lanes[lane] = LaneWait(
            trio.lowlevel.current_task(), has_operation=True, is_for_cancellation=True
        )

        def abort(_: object) -> AbortResult:
            del self.waiting_lanes[lane]
            return AbortResult.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def note_task(self, lane: LaneKey) -> None:
        self._tasks[lane] = trio.lowlevel.current_task()

    def _task_of(self, lane: LaneKey) -> trio.lowlevel.Task | None:
        """Return the task that acts in a lane; None if the lane has not begun or has ended.

        A task of the pool runs the handlers of several requests, one after the other.
        """
        task = self._tasks.get(lane)
        if task is None or not is_alive(task):
            return None
        lanes = lanes_with_steps(task.context.get(LANE))
        if is_request_lane(lane) and all(each.name != lane[1] for each in lanes):
            return None
        return task

    def resume_lane(self, lane: LaneKey) -> None:
        """Let a lane go on with the record at the position, if it waits for that."""
        wait, record = self.waiting_lanes.get(lane), self.position.record
        if wait is None or record is None or wait.is_for_cancellation:
            return
        if not _resumes(record, has_operation=wait.has_operation):
            return
        if self._resumed_index == self.position.index and not wait.has_operation:
            return  # The lane has waited once more in the step that the record begins.
        if self.clock.kind != TICK_CLOCK:
            self._check_late_lanes(record)
        if self._stops_before_step():
            frames, entry = user_frames(wait.task), None
            session = self.sessions.get(lane[0])
            if not frames and session is not None:
                request = request_data(self.trace.journal, lane[1])
                entry = handler_entry(session.application, request)
            stopped = StoppedReplay(self._divergence_here(None), self._end_at_stop, frames, entry)
            self._stopping = lane, stopped
        self.take_turn(lane)
        del self.waiting_lanes[lane]
        trio.lowlevel.reschedule(wait.task)

    def _check_lane_without_record(self) -> None:
        """Diverge if a request waits for a turn and has no more records.

        Where records are missing from the file, its operation may be among them.
        """
        lane = self._lane_without_record
        if lane is not None and self.position.index > self.trace.last_missing:
            self._lane_without_record = None
            self.diverge(self.additional_operation(lane))

    def _additional_operation_of_first(self, lanes: Iterable[LaneKey]) -> Operation | None:
        """Return the additional operation of the lane that ends first in the recording, if any.

        Lanes begin to wait in an order that the scheduler chooses; each replay names the same one.
        """
        lane = min(lanes, key=lambda lane: (self.trace.last_index(lane), lane), default=None)
        return None if lane is None else self.additional_operation(lane)

    def additional_operation(self, lane: LaneKey) -> Operation:
        """Return an operation of a lane that has no more records."""
        task = self._task_of(lane)
        location = "" if task is None else task_location(task)
        return Operation(kind=None, lane=lane, location=location)

    def redact(self, kind: str, body: bytes) -> bytes:
        """Return the body as this recording would hold it."""
        return body if self.redactor is None else self.redactor.redact(kind, body)

    # Stops.

    def _stops_before_step(self) -> bool:
        """Return whether the replay stops before the step of the record at the position."""
        record = self.position.record
        return self.stop is not None and record is not None and self.stop.is_before_step(record)

    def stop_here(self, operation: Operation | None) -> None:
        """Stop if the replay has to stop at the record at the position."""
        if self.stop is not None and self.stop.is_at(self.position.record):
            frames = current_user_frames() if operation is not None else ()
            divergence = self._divergence_here(operation)
            self._report_stop(StoppedReplay(divergence, self._end_at_stop, frames))

    def _end_at_stop(self) -> None:
        assert self.stop is not None
        self.stop.has_ended = True
        self.finish()

    def _report_stop(self, stopped: StoppedReplay, *, raises_abort: bool = True) -> None:
        assert self.stop is not None
        self.stop.has_stopped = True
        self.stop.on_stop(stopped)
        if self.is_over and raises_abort:
            raise Abort

    # The end.

    def finish(self) -> None:
        if not self.is_over:
            waiting_lanes, self.waiting_lanes = self.waiting_lanes, {}
            end_run(self, ((wait.task, wait.has_operation) for wait in waiting_lanes.values()))

    def fail(self, problem: str) -> None:
        """End the replay by an error that belongs to no record; earlier divergences stay."""
        if self.divergences_before_shut is not None:
            # The error has caused the shutdown, and the shutdown the divergences after it.
            del self.divergences[self.divergences_before_shut :]
            self.divergences_before_shut = None
        elif self._has_ended_early:
            return
        self._has_ended_early = True
        self.divergences.append(self._divergence_here(None, problem))
        self.finish()

    def may_exit_here(self, exception: str) -> bool:
        """Return whether all records have been replayed; if so, note the exception.

        The recording has no record of such an exit. If records are left, the recorded handler did
        not exit here.
        """
        if self.position.record is not None:
            return False
        self.exit = exception
        return True

    def diverge(self, operation: Operation | None) -> None:
        """Note that the replay differs from the record at the position.

        If the replay is to find all divergences, the request is left out, and this returns.
        """
        if self.is_over:
            raise Abort
        divergence = self._divergence_here(operation)
        if self.stop is not None and self.stop.needs_task and self.stop.is_at(divergence.record):
            # No lane makes the record: the debugger gets the frames of one that should have.
            lane = divergence.acting_lane
            task = None if lane is None else self._task_of(lane)
            frames = () if task is None else user_frames(task)
            self._report_stop(StoppedReplay(divergence, self._end_at_stop, frames))
        self.divergences.append(divergence)
        if not (self.finds_all and self._leave_out(divergence)):
            self._has_ended_early = True
            self.finish()
            raise Abort

    def accept_other_values(self, operation: Operation) -> bool:
        """Note an operation that differs from the record in its values only; consume the record.

        Return False if the replay is to end at the first divergence, or if the operation differs in
        something else.
        """
        divergence = self._divergence_here(operation) if self.finds_all else None
        if divergence is None or not divergence.differs_in_values_only:
            return False
        self.divergences.append(divergence)
        self.position.advance()
        return True

    def _leave_out(self, divergence: Divergence) -> bool:
        """Leave out what differs; return False if the replay cannot go on without it.

        The handler of a request is cancelled, shielded or not, and the rest of its records skipped.
        """
        record, lane = divergence.record, divergence.acting_lane
        if divergence.missing_number is not None:
            return False
        if lane is None:
            # The session itself sends another message than recorded, or none.
            kind = None if record is None else record.kind
            if divergence.operation is not None:
                kind = divergence.operation.kind
            elif kind in {"out", "mark"}:
                self.position.advance()
            return kind in {"out", "mark"}
        request = request_lane(lane)
        if not is_request_lane(request) or request in self.left_out:
            return False
        self.position.consume(*self.left_out.add(request, self.position.index))
        self.sessions[request[0]].stop_handler(request[1])
        for waiting, wait in [*self.waiting_lanes.items()]:
            # Trio wakes a lane that waits for its cancellation.
            if waiting in self.left_out and not wait.is_for_cancellation:
                del self.waiting_lanes[waiting]
                trio.lowlevel.reschedule(wait.task)
        for each in self._tasks:
            task = self._task_of(each) if each in self.left_out else None
            if task is not None and task is not trio.lowlevel.current_task():
                unshield(task)
        return True

    async def wait_left_out(self) -> NoReturn:
        """Wait for the cancellation of the calling task, whose request is left out."""
        token, task = trio.lowlevel.current_trio_token(), trio.lowlevel.current_task()
        token.run_sync_soon(unshield, task)  # It has to be suspended, so that its scopes are found.
        await trio.sleep_forever()

    def restore_id(self, lane: LaneKey) -> None:
        """Give the next request of a lane the recorded id, if requests before it are left out."""
        record = self.trace.next_record(lane, self.position.index) if self.left_out else None
        if record is not None and record.kind == "out":
            message = message_fields(body_bytes(record) or b"")
            if message.is_request and isinstance(message.id, int):
                outgoing = self.sessions[lane[0]].connection.outgoing
                outgoing.set_next_id(message.id)

    def _divergence_here(self, operation: Operation | None, problem: str = "") -> Divergence:
        suspended: dict[str, str] = {}
        for lane in [*self._tasks]:
            task = self._task_of(lane)
            if task is None:
                del self._tasks[lane]  # A recording may have many lanes, and most have ended.
                continue
            if task is trio.lowlevel.current_task() or lane in self.left_out:
                continue
            location = task_location(task)
            if lane in self.waiting_lanes and lane not in self._lanes_begun:
                request = request_data(self.trace.journal, lane[1])
                session = self.sessions.get(lane[0])
                handler = "" if session is None else handler_location(session.application, request)
                location = f"{handler or location} (not started)"
            elif lane in self.waiting_lanes:
                location += " (for its turn)"
            suspended[lane_text(lane)] = location.strip()
        divergence = Divergence(
            trace=self.trace,
            index=self.position.index,
            operation=operation,
            problem=problem,
            suspended=suspended,
            untracked_calls=tuple(self.untracked_calls),
            is_strict=self.is_strict,
            redactor=self.redactor,
        )
        change = "" if divergence.lane is None else self.list_change(divergence.lane[1])
        return msgspec.structs.replace(divergence, list_change=change)


def _resumes(record: Record, *, has_operation: bool) -> bool:
    """Return whether a record ends the wait of its lane.

    A wait in an operation ends with any record but a step, and a wait before a step with a record
    that begins one.
    """
    return record.kind != "step" if has_operation else bool(record.step_start)
