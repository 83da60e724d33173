"""The player: the journal is the schedule.

A player stands where a live session has its recorder. Each moment of the session calls it, and it
compares the call with the record at its cursor: the same kind, lane, ordinal and bytes, or the
replay has diverged. Around that, `play` leads the session from record to record.

*Settled* means that all tasks are blocked. Before each record the virtual clock goes to its time,
and stops at every deadline on the way, so that who sleeps twice wakes twice, and never later than
recorded. Then, by kind of record:

- `in` and `shut` are delivered.
- A lane's record is the lane's turn. Lanes wait for their turn before every operation, under a
  shield, because a result that came before a cancellation in the recording comes before it here.
  A lane whose record is at the cursor already passes without yielding.
- A lane whose start was not worth a record of its own is started with the clock as it stood, which
  is never later than when it started in the recording.
- `cxl` promises a cancellation: the lane waits for it without a shield, and if nothing has
  cancelled it at the record's time, the clock moves on to the lane's own deadline, if that is near.
- Records of the dispatcher itself follow the `in` that caused them in the same synchronous step.
  One that is still at the cursor when the session has settled did not happen.
- `end` is the session's own: nothing of it runs any more.

If the session has settled and the record at the cursor was not consumed, that is the divergence. So
is a request that waits for a turn though the recording has none left for it. All lanes are then
woken by `Abort`, which is no `Exception`: people's `except Exception` does not hold it up.

Time runs a little earlier here than it did, because code takes none. So a sleep that was cancelled
just before its end may end here, and the lane comes to a call that it never made. It is cancelled
there, and that is no record: a request's last record is its end, and not the end of a call; a child
task of which nothing more is recorded waits for its turn without a shield.

What is ugly: one object plays two parts, the sequencer that the session calls and the loop that
leads it. They share the cursor, and two objects would only pass it to and fro.
"""

from collections.abc import Callable
from typing import Any, Final, NoReturn

import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_trio._engine import Lane, Session
from mcp_trio._errors import ReplayDivergence
from mcp_trio._journal.records import MarkBody, Record, ShutBody, body_of, encode_body, frame_of
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.divergence import Finding, Wanted, describe, request_frame
from mcp_trio._replay.score import Score, is_child
from mcp_trio._replay.sites import definition_site, is_alive, site_here, site_of
from mcp_trio._wire import Oversized

_NS_PER_SECOND: Final = 1e9
_START_ORDINAL: Final = 0
_UNSTARTED: Final = b'"unstarted"'

# Records are cut to nanoseconds, deadlines are not: one that is nearer than this is due.
_SLACK_SECONDS: Final = 1e-6

# How much later than its record a deadline may be: as long as the recording machine may have paused
# between looking at the clock for the deadline and looking at it for the record.
_PAUSE_SECONDS_MAX: Final = 1.0


class Abort(BaseException):
    """Ends every task of a replay that is over; never leaves the replay."""


@attrs.define(eq=False)
class _Parked:
    """A lane that waits for its turn."""

    lane: Lane
    at_start: bool
    turn: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False)
class _Doomed:
    """A lane that waits for the cancellation that its record promises."""

    deadline: float
    woken: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False)
class Player:
    """Plays a score to a session. `divergence` is what came of it: None if all went as recorded.

    `is_over` says that nothing is played or compared any more, and every task is to end.
    """

    score: Score
    clock: VirtualClock

    has_lanes: bool = attrs.field(default=True, init=False)
    gates: bool = attrs.field(default=True, init=False)
    cursor: int = attrs.field(default=0, init=False)
    divergence: ReplayDivergence | None = attrs.field(default=None, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _has_shut_itself: bool = attrs.field(default=False, init=False)
    _session: Session | None = attrs.field(default=None, init=False)
    _excused: str | None = attrs.field(default=None, init=False)
    _delivered: int = attrs.field(default=0, init=False)
    _parked: dict[str, _Parked] = attrs.field(factory=dict[str, _Parked], init=False)
    _doomed: dict[str, _Doomed] = attrs.field(factory=dict[str, _Doomed], init=False)
    _tasks: dict[str, trio.lowlevel.Task] = attrs.field(
        factory=dict[str, trio.lowlevel.Task], init=False
    )
    _sites: dict[str, str] = attrs.field(factory=dict[str, str], init=False)

    # Leading the session.

    async def play(self, session: Session) -> None:
        """Lead the session to the last record; afterwards everything of it is aborted."""
        deliver: dict[str, Callable[[Record, Session], None]] = {
            "in": self._deliver,
            "shut": self._deliver_shut,
        }
        self._session = session
        try:
            await wait_all_tasks_blocked()
            while (record := self._at_cursor()) is not None:
                before = self.cursor
                self._check_surplus()
                await self._approach(record)
                self._check_surplus()
                if self.cursor == before:
                    deliver.get(record.kind, self._let)(record, session)
                    await wait_all_tasks_blocked()
                if self.cursor == before:
                    await self._outlast(record)
                if self.cursor == before:
                    self._diverge(self._hindrance(record))
        finally:
            self.finish()

    async def _approach(self, record: Record) -> None:
        """Move on to the record's time; a lane whose start has no record starts before that."""
        parked = self._parked.get(record.lane or "")
        if parked is not None and parked.at_start and not _is_start(record):
            self._give_turn(parked)
            await wait_all_tasks_blocked()
        time = record.time_ns / _NS_PER_SECOND
        while self.clock.next_deadline <= time + _SLACK_SECONDS:
            self.clock.reach(self.clock.next_deadline)
            await wait_all_tasks_blocked()
        self.clock.reach(time)

    def _deliver(self, record: Record, session: Session) -> None:
        frame = frame_of(record)
        assert frame is not None
        self.cursor += 1
        self._delivered = record.number
        discarded = (record.envelope or {}).get("discarded")
        session.take(frame if discarded is None else Oversized(size=discarded, head=frame))

    def _deliver_shut(self, record: Record, session: Session) -> None:
        session.shut(body_of(record, ShutBody).cause)

    def _let(self, record: Record, _session: Session) -> None:
        """Give a lane its turn."""
        parked = self._parked.get(record.lane or "")
        if parked is not None:
            self._give_turn(parked)

    async def _outlast(self, record: Record) -> None:
        """Bring the deadline that cancels a lane, if its record promises that and it is near."""
        doomed = self._doomed.get(record.lane or "")
        last = record.time_ns / _NS_PER_SECOND + _PAUSE_SECONDS_MAX
        if doomed is not None and doomed.deadline <= last:
            self.clock.reach(doomed.deadline)
            await wait_all_tasks_blocked()

    def _hindrance(self, record: Record) -> Wanted | None:
        """A child task that does something more, so that its parent does not come to a record."""
        below = (name for name in self._spent() if name.startswith(f"{record.lane}."))
        name = next(below, None)
        return None if name is None else self._one_more(name)

    def _give_turn(self, parked: _Parked) -> None:
        self._parked.pop(parked.lane.name)
        parked.turn.set()

    def _check_surplus(self) -> None:
        """A request that will have no turn any more does what was not recorded.

        If the file lacks records, what it does may be among them: then it has until there.
        """
        if self.cursor in self.score.missing:
            self._check_hole()
        elif self.cursor > self.score.last_hole:
            for name in self._spent():
                if not is_child(name):
                    self._diverge(self._one_more(name))

    def _check_hole(self) -> None:
        """Whether the session did something that the file lacks here."""
        for name in self._spent():
            self._diverge(self._one_more(name))
        if self._excused is not None:
            self._diverge(Wanted(kind="cxl", lane=self._excused))
        if self.score.is_complete and not self.score.has_shut:
            self._diverge(None)

    def _spent(self) -> list[str]:
        return [name for name in self._parked if self.score.is_spent(name, self.cursor)]

    def _one_more(self, lane: str) -> Wanted:
        return Wanted(kind=None, lane=lane, site=site_of(self._tasks[lane]))

    def finish(self) -> None:
        """The replay is over: wake everybody with `Abort`, and let time run for those who sleep."""
        if self.is_over:
            return
        self.is_over = True
        self.clock.set_free()
        for parked in self._parked.values():
            parked.turn.set()
        for doomed in self._doomed.values():
            doomed.woken.set()

    # What lanes wait for.

    async def turn_to_start(self, lane: Lane) -> None:
        """See `Sequencer`; the start waits like any other resumption."""
        await self._turn(lane, at_start=True)

    async def turn(self, lane: Lane) -> str:
        """See `Sequencer`."""
        await self._turn(lane, at_start=False)
        record = self._at_cursor()
        assert record is not None
        return record.kind

    async def _turn(self, lane: Lane, *, at_start: bool) -> None:
        if self.is_over:
            await self._abort()
        self._tasks[lane.name] = trio.lowlevel.current_task()
        self._sites[lane.name] = site_here() or self._sites.get(lane.name, "")
        if self._passes(lane, at_start=at_start):
            return
        parked = _Parked(lane, at_start)
        self._parked[lane.name] = parked
        may_be_cancelled = is_child(lane.name) and self.score.is_spent(lane.name, self.cursor)
        with trio.CancelScope(shield=not may_be_cancelled):
            try:
                await parked.turn.wait()
            finally:
                self._parked.pop(lane.name, None)
        if self.is_over:
            await self._abort()

    async def _abort(self) -> NoReturn:
        """Raise `Abort`, but yield first: a loop that swallows it must not block the run."""
        await trio.lowlevel.cancel_shielded_checkpoint()
        raise Abort

    def _passes(self, lane: Lane, *, at_start: bool) -> bool:
        """Whether the lane's record is at the cursor, and nobody is due before its time."""
        record = self._at_cursor()
        if record is None or record.lane != lane.name or self.cursor in self.score.missing:
            return False
        if at_start and not _is_start(record):
            return True
        time = record.time_ns / _NS_PER_SECOND
        if time - trio.current_time() > _next_deadline_seconds():
            return False
        self.clock.reach(time)
        return True

    async def until_cancelled(self, lane: Lane) -> None:
        """See `Sequencer`."""
        doomed = _Doomed(trio.current_effective_deadline())
        self._doomed[lane.name] = doomed
        try:
            await doomed.woken.wait()
        finally:
            del self._doomed[lane.name]
        raise Abort

    # The moments of the session.

    def took(self, frame: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002  the protocol's
        """The number of the `in` record that was delivered."""
        return self._delivered

    def started(self, lane: Lane) -> None:
        """Consume the start mark, if the start was worth one."""
        record = self._at_cursor()
        if record is not None and record.lane == lane.name and _is_start(record):
            self.cursor += 1

    def sent(self, frame: bytes, lane: Lane | None) -> None:
        """Compare with `out`."""
        self._consume("out", lane, frame)

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Compare with the recorded outcome."""
        if not self.is_over and kind == "cxl" and self._is_excused(lane.name):
            self._excused = lane.name
        else:
            self._consume(kind, lane, body)

    def _is_excused(self, lane: str) -> bool:
        """Whether a cancelled call was never made in the recording, as told at the head."""
        score, place = self.score, self.cursor
        return score.is_cancelled_end(lane, place) or score.is_spent(lane, place)

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Compare with `cxl`."""
        self._consume("cxl", lane, _UNSTARTED if unstarted else None)

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """Compare with `mark`, by name: the value may hold facts of the machine."""
        record = self._at_cursor()
        if record is not None and record.kind == "mark" and _mark_name(record) == name:
            self._consume("mark", lane, frame_of(record))
            return body_of(record, MarkBody).value
        self._consume("mark", lane, encode_body(MarkBody(name=name, value=value)))
        return value

    def shut(self, cause: str) -> None:
        """Compare with `shut`; what is shut because the replay is over is not compared."""
        if not self.is_over:
            record = self._at_cursor()
            self._has_shut_itself = record is None or record.kind != "shut"
            self._consume("shut", None, encode_body(ShutBody(cause=cause)))

    def flush(self) -> None:
        """Nothing is written."""

    def close(self, counts: dict[str, int]) -> None:  # noqa: ARG002  the protocol's
        """Compare with `end`; the counts tell nothing that the records do not."""
        if not self.is_over:
            record = self._at_cursor()
            self._consume("end", None, None if record is None else frame_of(record))

    def _at_cursor(self) -> Record | None:
        journal = self.score.journal
        return journal[self.cursor] if self.cursor < len(journal) else None

    def _consume(self, kind: str, lane: Lane | None, body: bytes | None) -> None:
        if self.is_over:
            raise Abort
        name = None if lane is None else lane.name
        ordinal = None if lane is None else lane.next_ordinal()
        record = self._at_cursor()
        if record is None and not self.score.is_complete:
            self.finish()  # beyond the cut: nobody knows
            raise Abort
        if record is None or not _is_same(record, kind, name, ordinal, body):
            site = site_here() or self._near(name)
            self._diverge(Wanted(kind=kind, lane=name, ordinal=ordinal, body=body, site=site))
        self.cursor += 1

    def _near(self, lane: str | None) -> str:
        """Where a lane was seen last, else where its handler is: an answer has no line itself."""
        if lane is None or self._session is None:
            return ""
        if seen := self._sites.get(lane):
            return f"after {seen}"
        return definition_site(self._session.application, request_frame(self.score.journal, lane))

    # The divergence.

    def fail(self, problem: str) -> None:
        """The replay ends by something that is no record, unless a divergence was found before."""
        if self._has_shut_itself:  # because of this
            self.divergence = None
        self._find(None, problem)

    def _diverge(self, wanted: Wanted | None) -> NoReturn:
        self._find(wanted)
        raise Abort

    def _find(self, wanted: Wanted | None, problem: str = "") -> None:
        if self.divergence is None:
            finding = Finding(
                journal=self.score.journal,
                cursor=self.cursor,
                missing=self.score.missing.get(self.cursor),
                wanted=wanted,
                problem=problem,
                waiting=self._waiting(),
                notes=self.score.notes,
            )
            self.divergence = describe(finding)
        self.finish()

    def _waiting(self) -> dict[str, str]:
        return {
            name: site_of(task) + (" (for its turn)" if name in self._parked else "")
            for name, task in self._tasks.items()
            if is_alive(task) and task is not trio.lowlevel.current_task()
        }


def _is_start(record: Record) -> bool:
    return record.kind == "mark" and record.lane is not None and record.ordinal == _START_ORDINAL


def _mark_name(record: Record) -> str:
    return body_of(record, MarkBody).name


def _is_same(
    record: Record, kind: str, lane: str | None, ordinal: int | None, body: bytes | None
) -> bool:
    found = (record.kind, record.lane, record.ordinal, frame_of(record))
    return found == (kind, lane, ordinal, body)


def _next_deadline_seconds() -> float:
    return trio.lowlevel.current_statistics().seconds_to_next_deadline
