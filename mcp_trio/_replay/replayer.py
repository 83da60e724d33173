"""The replayer: the journal is the schedule.

`play` leads the sessions of a recording from record to record. Each of them has a `SessionReplay`,
which stands where a live session has its recorder: every moment of the session calls it, and it
compares the call with the record at the cursor, which is the player's.

*Settled* means that all tasks are blocked, and no thread runs. Before each record the virtual clock
goes to its time, and stops at every deadline on the way, so that who sleeps twice wakes twice, and
never later than recorded. Then, by kind of record:

- `in` and `shut` are delivered. A mark begins a session, if the file holds several.
- A lane's record is the lane's turn. Lanes wait for their turn before every operation, under a
  shield, because a result that came before a cancellation in the recording comes before it here.
  A lane whose record is at the cursor already, and not later, passes without yielding.
- What a lane reads in passing takes no turn: it was found ahead of the cursor when it was read.
- A lane whose start was not worth a record of its own is started with the clock as it stood, which
  is never later than when it started in the recording.
- `cxl` promises a cancellation: the lane waits for it without a shield, and if nothing has
  cancelled it at the record's time, the clock moves on to the lane's own deadline, if that is near.
- Records of the dispatcher itself follow the `in` that caused them in the same synchronous step.
  One that is still at the cursor when the session has settled did not happen.
- `end` is the session's own: nothing of it runs any more.

If all has settled and the record at the cursor was not consumed, that is the divergence. So is a
request that waits for a turn though the recording has none left for it. All lanes are then woken by
`Abort`, which is no `Exception`: people's `except Exception` does not hold it up.

Time runs a little earlier here than it did, because code takes none. So a sleep that was cancelled
just before its end may end here, and the lane comes to a call that it never made. It is cancelled
there, without a shield, and that is no record: a request's last record is its end, and not the end
of a call; a shield of people's own that stands around it is taken away, since the lane never came
into it. What it reads in passing before that has to have some value, and nothing comes of it. So
what is new in the last `PAUSE_SECONDS_MAX` before a cancellation goes unnoticed: no record of it
was or would be finished; and in a thread, which may have calculated for ever, at any time. What
would end at the very time of a record in such a lane is held back as long as the records come
without it, unless a change is announced then, which may have been its work.
"""

import gc
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import filterfalse
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Final, NoReturn

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_trio._journal.records import Record, ShutBody, body_bytes, decode_body
from mcp_trio._journal.redaction import Redactor
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.divergence import Finding, Suspended, Waiting, Wanted, describe, name_of
from mcp_trio._replay.source_locations import is_alive, site_of, site_of_caller
from mcp_trio._replay.trace import (
    Key,
    Trace,
    begins_session,
    frame_in,
    is_child,
    is_keeper,
    is_of_request,
    is_start,
    key_of,
    request_of,
    seconds_of,
)
from mcp_trio._session.journal import LANE, lane_in
from mcp_trio._session.nondeterminism import UntrackedCall
from mcp_trio._session.session import Session
from mcp_trio.errors import ReplayDivergence

# --------------------
# The scopes of tasks, and taking shields away from those that are to end now.
#
# A task that waits for ever under a shield cannot be ended by Trio's means, and a replay has to
# end. The scopes that a task has entered stand in its frames; `gc` shows them, locals or not.


# What leads from a frame to a scope that was entered in it.
_WAYS: Final = (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncGeneratorType,
    CoroutineType,
    GeneratorType,
    MethodType,
)


def unshield(task: trio.lowlevel.Task) -> None:
    """Take the shields from a task and from all tasks below it."""
    for scope in entered_scopes(task):
        scope.shield = False
    for nursery in task.child_nurseries:
        nursery.cancel_scope.shield = False
        for child in nursery.child_tasks:
            unshield(child)


def entered_scopes(task: trio.lowlevel.Task) -> Iterator[trio.CancelScope]:
    """The scopes that a task is in, if it waits now; not those of its nurseries' tasks."""
    seen = {id(task.coro)}
    found: list[object] = [task.coro]
    while found:
        for inner in gc.get_referents(found.pop()):
            if isinstance(inner, trio.CancelScope) and inner.is_relative is None:
                yield inner
            elif _leads_on(inner) and id(inner) not in seen:
                seen.add(id(inner))
                found.append(inner)


def _leads_on(value: object) -> bool:
    return isinstance(value, _WAYS)


# --------------------
# Deadlines that are held back: whether they had passed before a record was made, no file can tell.
#
# What falls due at the very time of a record came before it or after it. If a lane was cancelled
# then and no call of its own followed, it was cancelled where it stood: woken before, it would have
# come to a call that it never made, shielded perhaps, or to the end of its work.


@attrs.define(eq=False)
class Held:
    """Cancel scopes whose deadlines are put off, and what these were."""

    _deadlines: dict[trio.CancelScope, float] = attrs.field(
        factory=dict[trio.CancelScope, float], init=False
    )

    @property
    def next_deadline(self) -> float:
        """The first of those held back; infinite if none is."""
        return min(self._deadlines.values(), default=math.inf)

    def hold(self, tasks: Iterable[trio.lowlevel.Task], until: float) -> bool:
        """Put off what wakes any of the tasks up to a time; returns whether anything does."""
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

    def release(self, before: float = math.inf) -> bool:
        """Put back what was due before a time; returns whether anything was."""
        due = [scope for scope, deadline in self._deadlines.items() if deadline < before]
        for scope in due:
            scope.deadline = min(scope.deadline, self._deadlines.pop(scope))
        return bool(due)


# --------------------
# Where in the journal a replay is.


@attrs.define(eq=False)
class Cursor:
    """The place of the next record; what was read ahead of it is skipped when it comes there."""

    trace: Trace
    place: int = attrs.field(default=0, init=False)
    _taken: set[int] = attrs.field(factory=set[int], init=False)

    @property
    def record(self) -> Record | None:
        """The record at the cursor; None beyond the last."""
        journal = self.trace.journal
        return journal[self.place] if self.place < len(journal) else None

    @property
    def is_at_hole(self) -> bool:
        """Return whether the file lacks what should come next."""
        return self.place in self.trace.missing

    @property
    def is_at_taken(self) -> bool:
        """Return whether the record at the cursor is done already."""
        return self.place in self._taken

    def advance(self) -> None:
        """The record at the cursor is done; what was taken behind it too, up to a hole."""
        self.place += 1
        while self.is_at_taken and not self.is_at_hole:
            self.place += 1

    def find_ahead(self, lane: Key, ordinal: int) -> int | None:
        """Where that stands which a lane read in passing with an operation, if it is to come."""
        place = self.trace.ahead.get((lane, ordinal), -1)
        return place if place >= self.place else None

    def take_ahead(self, place: int) -> None:
        """What stands at a place, here or further on, is done."""
        if place == self.place and not self.is_at_hole:
            self.advance()
        else:
            self._taken.add(place)


# --------------------
# The threads of `def` handlers in a replay: one runs at a time, in the order of the journal.


# How often threads may still run when the replay is over, until nobody waits for them.
_LAST_RUNS_MAX: Final = 1000


@attrs.define(eq=False)
class Baton:
    """Who holds it runs; the others stand at a call of theirs, or have not begun.

    A thread that keeps it for longer than `seconds` of real time is trouble of the clock.
    """

    clock: VirtualClock
    seconds: float
    is_given_up: bool = attrs.field(default=False, init=False)
    _runs_left: float = attrs.field(default=math.inf, init=False)
    _is_held: bool = attrs.field(default=False, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _given_back: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_held(self) -> bool:
        """Return whether a thread runs, and is waited for."""
        return self._is_held and not self.is_given_up

    async def take(self, name: str) -> None:
        """Wait until no thread runs; then one of the handler `name` does."""
        while self.is_held:
            await self._waiting.park()
        self._is_held = True
        self._given_back = trio.Event()
        self._runs_left -= 1
        self.is_given_up |= self._runs_left < 0
        self.clock.expect_thread(
            self.seconds,
            f"the thread of {name!r} did not come back within {self.seconds:g} s"
            " (limits.replay.thread_seconds)",
        )

    def give_back(self) -> None:
        """The thread that ran stands now, or has ended."""
        self._is_held = False
        self.clock.expect_nothing()
        self._given_back.set()
        self._waiting.unpark()

    def hurry(self) -> None:
        """The replay is over: threads may end, but not go on for ever."""
        self._runs_left = _LAST_RUNS_MAX

    def give_up(self) -> None:
        """Nobody waits for threads any more."""
        self.is_given_up = True
        self._given_back.set()
        self._waiting.unpark_all()

    async def wait_until_free(self) -> None:
        """Wait until no thread runs."""
        while self.is_held:
            await self._given_back.wait()


# Records are cut to nanoseconds, deadlines are not: one that is nearer than this is due.
_SLACK_SECONDS: Final = 1e-6

# As long as the recording machine may have paused: so much later than its record a deadline may be,
# and so much earlier than in the recording a lane may come to a call.
PAUSE_SECONDS_MAX: Final = 1.0

# What a call begins with, if it was not cancelled by then, or what is no such call.
_BEGINNINGS: Final = frozenset({"cmd", "out", "val"})

_CANCELS: Final = b"notifications/cancelled"

# What a lane does in one go, without letting others run, it does in no time if it took no more.
_BURST_SECONDS_MAX: Final = 0.0001


class Abort(BaseException):
    """Ends every task of a replay that is over; never leaves the replay."""


@attrs.define(eq=False)
class Replayer:
    """Plays a score. `divergence` is what came of it: None if all went as recorded.

    `is_over` says that nothing is played or compared any more, and every task is to end. `beyond`
    says which lanes wanted more than a cut recording holds, and where. `delivered` is the number of
    the last `in`. `passes_by` tells of a place whether its record may be left undone.
    """

    trace: Trace
    clock: VirtualClock
    baton: Baton
    passes_by: Callable[[int], bool] = attrs.field(kw_only=True, default=lambda _: False)
    is_strict: bool = attrs.field(kw_only=True, default=True)
    redactor: Redactor | None = attrs.field(default=None, init=False)

    cursor: Cursor = attrs.field(init=False)
    waiting: Waiting = attrs.field(factory=Waiting, init=False)
    sessions: dict[int, Session] = attrs.field(factory=dict[int, Session], init=False)
    divergence: ReplayDivergence | None = attrs.field(default=None, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    beyond: dict[str, str] = attrs.field(factory=dict[str, str], init=False)
    has_shut_itself: bool = attrs.field(default=False, init=False)
    excused: Key | None = attrs.field(default=None, init=False)
    delivered: int = attrs.field(default=0, init=False)
    untracked_calls: dict[UntrackedCall, None] = attrs.field(
        factory=dict[UntrackedCall, None], init=False
    )
    _held: Held = attrs.field(factory=Held, init=False)
    _cancelled_at: float = attrs.field(default=-math.inf, init=False)

    def __attrs_post_init__(self) -> None:
        self.cursor = Cursor(self.trace)

    # Leading the sessions.

    async def play(self, begin: Callable[[int], Awaitable[Session]]) -> None:
        """Lead to the last record; afterwards everything is aborted.

        `begin` opens the session of a channel and lets it run.
        """
        try:
            if not self.trace.is_of_several:
                self.sessions[0] = await begin(0)
            await self.settle()
            while (record := self.cursor.record) is not None:
                await self._step(record, begin)
            self._note_beyond()
        finally:
            self.finish()

    async def _step(self, record: Record, begin: Callable[[int], Awaitable[Session]]) -> None:
        place = self.cursor.place
        self._check_surplus()
        await self._approach(record)
        self._check_surplus()
        if self.cursor.is_at_taken:
            self.cursor.advance()
        elif self.cursor.place == place and begins_session(record):
            self.cursor.advance()
            self.sessions[record.channel] = await begin(record.channel)
            await self.settle()
        elif self.cursor.place == place:
            await self._do(record, place)

    async def _do(self, record: Record, place: int) -> None:
        """Do what the record says, or diverge."""
        if record.kind in _BEGINNINGS:
            await self._let_go(self._nearest(key_of(record)))
            if self.cursor.place != place:
                return
        {"in": self._deliver, "shut": self._deliver_shut}.get(record.kind, self._let)(record)
        await self.settle()
        while self.cursor.place == place and self._is_on_its_way(record):
            self._let(record)
            await self.settle()
        if self.cursor.place == place:
            await self._outlast(record)
        if self.cursor.place != place:
            return
        if not self.passes_by(place):
            self.diverge(self._hindrance(record))
        self.cursor.advance()

    def _nearest(self, lane: Key) -> Key:
        """The lane, or while nobody has seen it, the one that begins it, or begins that."""
        while lane not in self.waiting.tasks and is_child(lane):
            lane = lane[0], lane[1].rpartition(".")[0]
        return lane

    async def _let_go(self, lane: Key) -> None:
        """Let a lane be cancelled at a call to which it came before its request was cancelled.

        A call begins with a look whether it is cancelled. So in the recording the lane was not at
        one when the cancellation came, but before: its record is one of its later calls, in what
        cleans up. Of a deadline that cannot be said: it is late on a machine that stands still.
        """
        waiting = self.waiting
        while (suspended := waiting.suspended.get(lane)) is not None and self._is_overtaken(
            suspended
        ):
            waiting.arrivals[lane, suspended.ordinal] = suspended.since
            waiting.let_go.add(lane)
            suspended.scope.shield = False
            await self.settle()
            waiting.let_go.discard(lane)
            if waiting.suspended.get(lane) is suspended:
                waiting.arrivals.pop((lane, suspended.ordinal), None)
                suspended.scope.shield = True
                return

    def _is_overtaken(self, suspended: Suspended) -> bool:
        """Return whether the request of a lane was cancelled while the lane waited.

        A call of a thread is none of its handler's task: it may begin in the moment of that.
        """
        if suspended.at_start or suspended.since >= self._cancelled_at:
            return False
        cancelled_at = self.trace.cancelled_at(suspended.key, self.cursor.place)
        if cancelled_at is None or suspended.since >= cancelled_at:
            return False
        is_reached = self._is_cancelled(suspended.key) and not self._is_shielded(suspended)
        return is_reached and not self.trace.is_in_thread(suspended.key)

    def _is_shielded(self, suspended: Suspended) -> bool:
        """Whether a shield of people's own keeps the cancellation of its request from a lane.

        What would reach it there is a deadline inside of that, which came later in the recording.
        """
        task = self.waiting.tasks.get(suspended.key)
        while task is not None and self._lane_of(task) is not None:
            scopes = (scope for scope in entered_scopes(task) if scope is not suspended.scope)
            if any(scope.shield for scope in scopes):
                return True
            task = task.parent_nursery and task.parent_nursery.parent_task
        return False

    def _is_cancelled(self, lane: Key) -> bool:
        """Whether the request of a lane is cancelled; at a `shut` it is if its client was asked."""
        channel, name = request_of(lane)
        session = self.sessions.get(channel)
        return session is not None and session.is_cancelled(name)

    async def settle(self) -> None:
        """Wait until all tasks are blocked, and no thread runs."""
        await wait_all_tasks_blocked()
        while self.baton.is_held:
            await self.baton.wait_until_free()
            await wait_all_tasks_blocked()

    async def _approach(self, record: Record) -> None:
        """Move on to the record's time; a lane whose start has no record starts before that."""
        lane = key_of(record)
        suspended = self.waiting.suspended.get(lane)
        if suspended is not None and suspended.at_start and not is_start(record):
            self.waiting.give_turn(lane)
            await self.settle()
        time = seconds_of(record)
        if self._held.release(time - _SLACK_SECONDS):
            await self.settle()
        await self._pass_deadlines(time, holds_back=True)

    async def _pass_deadlines(self, time: float, *, holds_back: bool) -> None:
        until = time + _SLACK_SECONDS
        while (deadline := self.clock.next_deadline) <= until:
            is_near = holds_back and deadline >= time - _SLACK_SECONDS
            if not (is_near and self._holds_back(until)):
                self.clock.reach(deadline)
            await self.settle()
        self.clock.reach(time)

    def _holds_back(self, until: float) -> bool:
        is_announced = self.trace.is_announced(self.cursor.place, until)
        return not is_announced and self._held.hold(self._silent_tasks(), until)

    def _silent_tasks(self) -> Iterator[trio.lowlevel.Task]:
        """The tasks of handlers that come to no call any more, as told at the head."""
        waiting = [task for task in self.waiting.tasks.values() if is_alive(task)]
        for task in waiting:
            if self._is_silent(task):
                yield task
            waiting += (child for nursery in task.child_nurseries for child in nursery.child_tasks)

    def _is_silent(self, task: trio.lowlevel.Task) -> bool:
        found = self._lane_of(task)
        return found is not None and self.trace.is_silent(*found, self.cursor.place)

    def _lane_of(self, task: trio.lowlevel.Task) -> tuple[Key, int] | None:
        """The lane of a handler's task, and its last operation; None for any other task."""
        for channel, session in self.sessions.items():
            lane = task.context.run(lane_in, session.sequencer)
            if lane is not None:
                return (channel, lane.name), lane.ordinal
        return None

    def _deliver(self, record: Record) -> None:
        frame = body_bytes(record)
        assert frame is not None
        session = self._session_of(record)
        self.cursor.advance()
        self.delivered = record.number
        if _CANCELS in frame:
            self.note_cancellation()
        session.take(frame_in(record))

    def note_cancellation(self) -> None:
        """Some request is cancelled now."""
        self._cancelled_at = trio.current_time()

    def _deliver_shut(self, record: Record) -> None:
        self.note_cancellation()  # of who waits for a client that will not come back
        self._session_of(record).shut(decode_body(record, ShutBody).cause)

    def _session_of(self, record: Record) -> Session:
        session = self.sessions.get(record.channel)
        if session is None:
            self._find(None, f"no session has begun on channel {record.channel}")
            raise Abort
        return session

    def _let(self, record: Record) -> None:
        """Give a lane its turn; the end of a file of several sessions is nobody's."""
        if record.kind == "end" and self.trace.is_of_several:
            self.cursor.advance()
        suspended = self.waiting.suspended.get(key_of(record))
        if suspended is not None and self._may_go(suspended):
            self.waiting.give_turn(suspended.key)

    def _may_go(self, suspended: Suspended) -> bool:
        """Return whether a lane's own record is its turn: always, unless this one is passed by."""
        if not self.passes_by(self.cursor.place):
            return True
        return suspended.at_start or (
            suspended.due is not None and suspended.due <= self.cursor.place
        )

    def _is_on_its_way(self, record: Record) -> bool:
        """Return whether the lane does something before its record that is not compared."""
        suspended = self.waiting.suspended.get(key_of(record))
        return suspended is not None and suspended.due is not None and self._may_go(suspended)

    async def _outlast(self, record: Record) -> None:
        """Bring what was held back, and the deadline that cancels a lane, if that is near."""
        time = seconds_of(record)
        if self._held.release():
            await self.settle()
            await self._pass_deadlines(time, holds_back=False)
            if self.cursor.record is record:
                self._let(record)
                await self.settle()
        doomed = self.waiting.doomed.get(key_of(record))
        is_due = doomed is not None and doomed.deadline <= time + PAUSE_SECONDS_MAX
        if doomed is not None and is_due and self.cursor.record is record:
            self.clock.reach(doomed.deadline)
            await self.settle()
        if self.cursor.record is record:
            await self._take_shield(key_of(record))

    async def _take_shield(self, lane: Key) -> None:
        """Let a lane be cancelled behind a shield of its own, into which it came too early."""
        if lane not in self.waiting.doomed:
            return
        cancelled_at = self.trace.cancelled_at(lane, self.cursor.place)
        if cancelled_at is not None and self.waiting.has_arrived(lane, before=cancelled_at):
            unshield(self.waiting.tasks[lane])
            await self.settle()

    def passes(self, suspended: Suspended) -> bool:
        """Return whether a lane's record is at the cursor, and nobody is due before its time."""
        cursor = self.cursor
        record = cursor.record
        if record is None or cursor.is_at_hole or cursor.is_at_taken:
            return False
        if suspended.due is not None and suspended.due < cursor.place:
            return True
        if record.lane != suspended.key[1] or record.channel != suspended.key[0]:
            return False
        if not self._may_go(suspended):
            return False
        if suspended.at_start and not is_start(record):
            return True
        return self._is_soon(seconds_of(record))

    def _is_soon(self, time: float) -> bool:
        """Return whether a time is as good as now.

        Otherwise the clock has to move before. For who has not run yet, it must not: what begins
        to wait at a later time than it did, wakes too late.
        """
        seconds = time - trio.current_time()
        if seconds > _BURST_SECONDS_MAX or time > self._held.next_deadline:
            return False
        return seconds <= _next_deadline_seconds()

    # What was not recorded.

    def _hindrance(self, record: Record) -> Wanted | None:
        """Who does something more, so that a lane does not come to its record."""
        lane = key_of(record)
        is_last = self.trace.last_place(lane) == self.cursor.place
        if lane in self.waiting.doomed and is_last and is_of_request(lane):
            return self.one_more(lane)
        channel, name = lane
        below = (
            key for key in self._spent() if key[0] == channel and key[1].startswith(f"{name}.")
        )
        child = next(below, None)
        return None if child is None else self.one_more(child)

    def _check_surplus(self) -> None:
        """A request that will have no turn any more does what was not recorded.

        If the file lacks records, what it does may be among them: then it has until there.
        """
        if self.cursor.is_at_hole:
            self._check_hole()
        elif self.cursor.place > self.trace.last_hole:
            for lane in self._spent():
                if not is_child(lane):
                    self.diverge(self.one_more(lane))

    def _check_hole(self) -> None:
        """Return whether the session did something that the file lacks here."""
        for lane in self._spent():
            self.diverge(self.one_more(lane))
        if self.excused is not None:
            self.diverge(Wanted(kind="cxl", lane=self.excused))
        if self.trace.is_complete and not self.trace.has_shut:
            self.diverge(None)

    def _spent(self) -> list[Key]:
        """The lanes that wait for a turn and have none left; looked for when there may be one.

        A keeper of rounds waits for its turn as long as it lives.
        """
        place, waiting = self.cursor.place, self.waiting
        if place < waiting.spent_from:
            return []
        ends = {lane: self.trace.spent_from(lane) for lane in waiting.suspended}
        waiting.spent_from = min(ends.values(), default=math.inf)
        return [lane for lane, end in ends.items() if end <= place and not is_keeper(lane)]

    def one_more(self, lane: Key) -> Wanted:
        """An operation of a lane that has none left."""
        return Wanted(kind=None, lane=lane, site=site_of(self.waiting.tasks[lane]))

    def _note_beyond(self) -> None:
        """Behind a cut nobody knows what comes; who wants more is told of."""
        if not self.trace.is_complete:
            for lane in filterfalse(is_keeper, self.waiting.suspended):
                self.beyond[name_of(lane)] = site_of(self.waiting.tasks[lane])

    def redact(self, kind: str, body: bytes) -> bytes:
        """What would be recorded for a body."""
        return body if self.redactor is None else self.redactor.redact(kind, body)

    def note_untracked_call(self, untracked_call: UntrackedCall) -> None:
        """A handler went past its context; told once for each line that does."""
        self.untracked_calls[untracked_call] = None

    def note_use(self, place: str, instead: str) -> None:
        """A handler used the lifespan, of which there is only a stand-in."""
        lane, site = LANE.get(), site_of_caller()
        name = "" if lane is None else lane.name
        self.note_untracked_call(
            UntrackedCall(call=place, site=site, lane=name, instead=instead, is_outside=True)
        )

    # The end.

    def finish(self) -> None:
        """The replay is over: wake everybody with `Abort`, and let time run for those who sleep."""
        if self.is_over:
            return
        self.is_over = True
        self._held.release()
        self.clock.set_free()
        self.baton.hurry()
        self.waiting.wake_all()

    def fail(self, problem: str) -> None:
        """The replay ends by something that is no record, unless a divergence was found before."""
        if self.has_shut_itself:  # because of this
            self.divergence = None
        self._find(None, problem)

    def diverge(self, wanted: Wanted | None, *, place: int | None = None) -> NoReturn:
        """The replay does something else than what is recorded at the cursor, or at a place."""
        self._find(wanted, place=place)
        raise Abort

    def _find(self, wanted: Wanted | None, problem: str = "", *, place: int | None = None) -> None:
        if self.divergence is None:
            finding = Finding(
                trace=self.trace,
                place=self.cursor.place if place is None else place,
                wanted=wanted,
                problem=problem,
                waiting=self.waiting.where(),
                untracked_calls=tuple(self.untracked_calls),
                is_strict=self.is_strict,
                redactor=self.redactor,
            )
            self.divergence = describe(finding)
        self.finish()


def _next_deadline_seconds() -> float:
    return trio.lowlevel.current_statistics().seconds_to_next_deadline
