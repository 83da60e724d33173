"""The replay of one session: its sequencer compares instead of recording.

Effects are matched by lane and name, the n-th by the n-th, and what was read in passing likewise.
They are still done in the recorded order as far as the code comes to them in that order: a lane's
n-th command waits for the place of its n-th in the journal, and an outcome for its own. What no
longer comes is passed by. A lane that is needed for a frame goes on whatever it waits for.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

import attrs
import msgspec
import trio

from mcp_trio._journal.records import (
    PATCHED_MARK,
    TIMEOUT,
    MarkBody,
    Record,
    ShutBody,
    ValueBody,
    body_bytes,
    decode_body,
    encode_body,
    value_body,
)
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._replay.divergence import Suspended, Wanted, label_of
from mcp_trio._replay.replayer import PAUSE_SECONDS_MAX, Abort, Replayer
from mcp_trio._replay.source_locations import definition_site, site_here
from mcp_trio._replay.trace import (
    NS_PER_SECOND,
    OUTCOMES,
    Key,
    Trace,
    is_in_passing,
    is_keeper,
    is_of_request,
    is_start,
    key_of,
    mark_name,
    request_frame,
)
from mcp_trio._server.effects import with_recorded_places
from mcp_trio._session.input_required import SUSPENDED_MARK
from mcp_trio._session.journal import UNSTARTED_BODY, Lane, Outcome, take_turn
from mcp_trio._session.session import DRAINED
from mcp_trio.errors import BlockedInReplay

# --------------------
# The part of one session in a replay: its sequencer, which compares instead of recording.


@attrs.define(eq=False)
class SessionReplay:
    """See `Sequencer`; `channel` is the session's in the file."""

    replayer: Replayer
    channel: int = 0

    has_lanes: bool = attrs.field(default=True, init=False)
    decides_turns: bool = attrs.field(default=True, init=False)

    @property
    def seed(self) -> int | None:
        """What the recorded session took its randomness from."""
        return self.replayer.trace.opening.seed

    def _key(self, lane: Lane) -> Key:
        return self.channel, lane.name

    def clock_ns(self) -> int:
        """The time of the session; nothing is dated by it in a replay."""
        return int(self.replayer.clock.current_time() * NS_PER_SECOND)

    # What lanes wait for.

    async def turn_to_start(self, lane: Lane) -> None:
        """See `Sequencer`; the start waits like any other resumption."""
        await self._wait(lane, Suspended(self._key(lane), lane.ordinal, at_start=True))

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:  # noqa: ARG002  outbound's
        """See `Sequencer`."""
        await self._wait(lane, Suspended(self._key(lane), lane.ordinal))
        record = self.replayer.cursor.record
        assert record is not None
        return record.kind

    async def _wait(self, lane: Lane, suspended: Suspended) -> None:
        replayer, waiting = self.replayer, self.replayer.waiting
        if replayer.is_over:
            await _abort()
        waiting.see(suspended.key)
        is_silent = self._is_silent(lane)
        if is_silent and not (suspended.at_start or is_keeper(suspended.key)):
            waiting.note_arrival(suspended.key, lane.ordinal)
        if replayer.passes(suspended):
            return
        waiting.spent_from = min(waiting.spent_from, replayer.trace.spent_from(suspended.key))
        await waiting.suspend(suspended, shield=not is_silent)
        if replayer.is_over:
            await _abort()

    def _is_silent(self, lane: Lane) -> bool:
        trace, place = self.replayer.trace, self.replayer.cursor.place
        return trace.is_silent(self._key(lane), lane.ordinal, place)

    async def until_cancelled(self, lane: Lane) -> None:
        """See `Sequencer`."""
        await self.replayer.waiting.until_cancelled(self._key(lane))
        raise Abort

    async def let_thread_run(self, name: str) -> None:
        """See `Sequencer`."""
        await self.replayer.baton.take(name)

    async def turn_in_thread(self, lane: Lane) -> None:
        """See `Sequencer`."""
        if not self.replayer.is_over and self._is_silent(lane):
            await take_turn(self, lane)

    def thread_stands(self) -> None:
        """See `Sequencer`."""
        self.replayer.baton.give_back()

    # The moments of the session.

    def took(self, frame: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002  the protocol's
        """The number of the `in` record that was delivered."""
        return self.replayer.delivered

    def started(self, lane: Lane) -> None:
        """Consume the start mark, if the start was worth one."""
        record = self._at_cursor()
        if record is not None and record.lane == lane.name and is_start(record):
            self.replayer.cursor.advance()

    def sent(self, frame: bytes, lane: Lane | None) -> None:
        """Compare with `out`."""
        self._consume("out", lane, frame)

    def commanded(self, lane: Lane, body: bytes) -> None:
        """Compare with `cmd`."""
        record = self._at_cursor()
        recorded = body_bytes(record) if record is not None and record.kind == "cmd" else None
        self._consume("cmd", lane, with_recorded_places(body, recorded))

    def recorded(self, lane: Lane) -> bytes | None:
        """The outcome at the cursor."""
        record = self._at_cursor()
        if record is None or record.kind not in {"res", "err"}:
            self.replayer.diverge(self._wanted("res", lane, lane.ordinal + 1, None))
        return body_bytes(record)

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Compare with the recorded outcome; a cancelled call that was never made is none."""
        is_excusable = self._is_silent(lane) or self._key(lane) in self.replayer.waiting.let_go
        if kind == "cxl" and not self.replayer.is_over and is_excusable:
            self._excuse(lane)
        else:
            self._consume(kind, lane, body)

    def _excuse(self, lane: Lane) -> None:
        """A call that the recording lacks was cancelled: it came a little too early, or is new."""
        replayer, key = self.replayer, self._key(lane)
        arrived = replayer.waiting.arrivals.pop((key, lane.ordinal), None)
        is_early = arrived is not None and self._is_early(key, arrived, trio.current_time())
        if replayer.cursor.place > replayer.trace.last_hole and not is_early:
            replayer.diverge(replayer.one_more(key))
        replayer.excused = key

    def _is_early(self, lane: Key, arrived: float, cancelled: float) -> bool:
        """Whether a lane came a little too early to what it did not do, because it was cancelled.

        Nobody knows how long a thread has calculated when it was recorded.
        """
        is_near = cancelled - arrived <= PAUSE_SECONDS_MAX
        return is_near or self.replayer.trace.is_in_thread(lane)

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Compare with `cxl`; a request that ended long before its cancellation is another one."""
        if not (unstarted or self.replayer.is_over):
            self._check_end(lane)
        self._consume("cxl", lane, UNSTARTED_BODY if unstarted else None)

    def _check_end(self, lane: Lane) -> None:
        replayer, key = self.replayer, self._key(lane)
        arrived = replayer.waiting.first_arrival(key)
        if arrived is None or not is_of_request(key):
            return
        cancelled_at = replayer.trace.cancelled_at(key, replayer.cursor.place)
        if cancelled_at is None or not self._is_early(key, arrived, cancelled_at):
            replayer.diverge(self._wanted("out", lane, lane.ordinal + 1, None))

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """Compare with `mark`, by name: the value may hold facts of the machine."""
        record = self._at_cursor()
        body: bytes | None = encode_body(MarkBody(name=name, value=value))
        if record is not None and record.kind == "mark" and mark_name(record) == name:
            value, body = decode_body(record, MarkBody).value, body_bytes(record)
        self._consume("mark", lane, body)
        if name == DRAINED or (name == SUSPENDED_MARK and value is None):
            self.replayer.note_cancellation()
        return value

    def shut(self, cause: str) -> None:
        """Compare with `shut`; what is shut because the replay is over is not compared."""
        if not self.replayer.is_over:
            record = self._at_cursor()
            self.replayer.has_shut_itself = record is None or record.kind != "shut"
            self._consume("shut", None, encode_body(ShutBody(cause=cause)))

    def flush(self) -> None:
        """Nothing is written."""

    def close(self, counts: dict[str, int]) -> None:  # noqa: ARG002  the protocol's
        """Compare with `end`, or the mark that ends one of several sessions: no turn is taken.

        The counts tell nothing that the records do not.
        """
        replayer = self.replayer
        if replayer.is_over:
            return
        place = replayer.trace.endings.get(self.channel)
        if place is not None and place >= replayer.cursor.place:
            replayer.cursor.take_ahead(place)
        else:
            record = self._at_cursor()
            self._consume("end", None, None if record is None else body_bytes(record))

    # What a lane reads in passing.

    def valued(
        self,
        lane: Lane,
        name: str,
        arguments: bytes | None,
        read: Callable[[], Outcome],  # noqa: ARG002  the protocol's
    ) -> Outcome:
        """What was read then."""
        place = self._ahead(lane)
        if place is None and self._is_too_early(lane):
            return self._unread(name)
        record = None if place is None else self.replayer.trace.journal[place]
        asked = value_body(name, arguments, b"null", is_error=False)
        asked = with_recorded_places(asked, None if record is None else _asked(record))
        if place is None or record is None or _asked(record) != self.replayer.redact("val", asked):
            self._differ(lane, record, "val", asked)
        self._take_ahead(lane, place)
        return recorded_value(record)

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether the recorded code took the new way here."""
        return self._is_marked(lane, MarkBody(name=PATCHED_MARK, value=name))

    def noted(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:
        """What the recording says; one from before there was such a mark says nothing."""
        if self.replayer.is_over:
            return is_so
        return self._is_marked(lane, MarkBody(name=name, value=value)) or is_so

    def _is_marked(self, lane: Lane, mark: MarkBody) -> bool:
        """Return whether a lane's next record is this mark; if so, it is done."""
        place = self._ahead(lane)
        if place is None:
            return False
        record = self.replayer.trace.journal[place]
        if record.kind != "mark" or decode_body(record, MarkBody) != mark:
            return False
        self._take_ahead(lane, place)
        return True

    def _is_too_early(self, lane: Lane) -> bool:
        """Return whether a lane reads what it did not come to, because its request was cancelled.

        It cannot wait for that here. So it gets something, and waits at its next call.
        """
        replayer, key = self.replayer, self._key(lane)
        is_doomed = replayer.trace.is_of_cancelled(key, replayer.cursor.place)
        return (
            is_doomed and self._is_silent(lane) and replayer.waiting.note_arrival(key, lane.ordinal)
        )

    def _unread(self, name: str) -> Outcome:
        """Something of the right form for what was not read: nothing will come of it."""
        if name == TIMEOUT:
            return Outcome("res", encode_body(self.clock_ns()))
        record = self.replayer.trace.last_read(name)
        if record is None:
            raise BlockedInReplay("the recorded request was cancelled before this was read")
        return recorded_value(record)

    def _ahead(self, lane: Lane) -> int | None:
        if self.replayer.is_over:
            raise Abort
        return self.replayer.cursor.find_ahead(self._key(lane), lane.ordinal + 1)

    def _take_ahead(self, lane: Lane, place: int) -> None:
        lane.next_ordinal()
        self.replayer.cursor.take_ahead(place)

    def _differ(self, lane: Lane, record: Record | None, kind: str, body: bytes) -> NoReturn:
        """A lane reads something else than recorded; behind a cut nobody knows what it would."""
        replayer, key, ordinal = self.replayer, self._key(lane), lane.ordinal + 1
        if record is None and replayer.trace.is_cut_before(key, ordinal):
            replayer.beyond[lane.name] = site_here()
            raise BlockedInReplay("the recording was cut before this was read")
        place = replayer.trace.place_of(key, ordinal)
        replayer.diverge(self._wanted(kind, lane, ordinal, body), place=place)

    # Comparing.

    def _at_cursor(self) -> Record | None:
        return self.replayer.cursor.record

    def _consume(self, kind: str, lane: Lane | None, body: bytes | None) -> None:
        replayer = self.replayer
        if replayer.is_over:
            raise Abort
        ordinal = None if lane is None else lane.next_ordinal()
        body = None if body is None else replayer.redact(kind, body)
        record = replayer.cursor.record
        if record is None and not replayer.trace.is_complete:
            replayer.finish()  # beyond the cut: nobody knows
            raise Abort
        if record is None or not self._is_same(record, kind, lane, ordinal, body):
            replayer.diverge(self._wanted(kind, lane, ordinal, body))
        replayer.cursor.advance()

    def _is_same(
        self, record: Record, kind: str, lane: Lane | None, ordinal: int | None, body: bytes | None
    ) -> bool:
        name = None if lane is None else lane.name
        found = (record.kind, record.channel, record.lane, record.ordinal, body_bytes(record))
        return found == (kind, self.channel, name, ordinal, body)

    def _wanted(
        self, kind: str, lane: Lane | None, ordinal: int | None, body: bytes | None
    ) -> Wanted:
        key = None if lane is None else self._key(lane)
        site = site_here() or self._near(key)
        return Wanted(kind=kind, lane=key, ordinal=ordinal, body=body, site=site)

    def _near(self, lane: Key | None) -> str:
        """Where a lane was seen last, else where its handler is: an answer has no line itself."""
        replayer = self.replayer
        session = replayer.sessions.get(self.channel)
        if lane is None or session is None:
            return ""
        if seen := replayer.waiting.sites.get(lane):
            return f"after {seen}"
        return definition_site(session.application, request_frame(replayer.trace.journal, lane[1]))


async def _abort() -> NoReturn:
    """Raise `Abort`, but yield first: a loop that swallows it must not block the run."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    raise Abort


def _asked(record: Record) -> bytes | None:
    """What was read in passing, without what it was; None if it is none of that."""
    if record.kind != "val":
        return None
    body = decode_body(record, ValueBody)
    return value_body(body.name, _raw(body.arguments), b"null", is_error=False)


def recorded_value(record: Record) -> Outcome:
    """What was read in passing."""
    body = decode_body(record, ValueBody)
    if body.error is not msgspec.UNSET:
        return Outcome("err", encode_body(body.error))
    return Outcome("res", _raw(body.value) or b"null")


def _raw(value: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    return None if value is msgspec.UNSET else bytes(value)


_NEVER: Final = math.inf


@attrs.define(eq=False)
class Repertoire:
    """What the lanes of a recording did beside sending, by name.

    Attributes:
        commands: Where each lane's commands stand.
        named: The same, by name as well; and what was read in passing.
        outcomes: For the place of a command, that of its outcome.
        places: All of these, which are not compared.
    """

    commands: defaultdict[Key, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    named: defaultdict[tuple[Key, str, str], list[int]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    outcomes: dict[int, int] = attrs.field(factory=dict[int, int])
    places: set[int] = attrs.field(factory=set[int])


def repertoire_of(trace: Trace) -> Repertoire:
    """The repertoire of a recording."""
    found = Repertoire()
    for lane, places in trace.places.items():
        for index, place in enumerate(places):
            record = trace.journal[place]
            if record.kind == "cmd":
                _note_command(found, trace, lane, places[index : index + 2])
            elif is_in_passing(record):
                found.named[lane, record.kind, _name_in_passing(record)].append(place)
                found.places.add(place)
    return found


def _note_command(found: Repertoire, trace: Trace, lane: Key, places: Sequence[int]) -> None:
    command, *rest = places
    found.commands[lane].append(command)
    found.named[lane, "cmd", mark_name(trace.journal[command])].append(command)
    found.places.add(command)
    if rest and trace.journal[rest[0]].kind in OUTCOMES:
        found.outcomes[command] = rest[0]
        found.places.add(rest[0])


def _name_in_passing(record: Record) -> str:
    if record.kind == "val":
        return mark_name(record)
    body = decode_body(record, MarkBody)
    return f"{body.name} {body.value}"


@attrs.define(eq=False)
class OutboundReplay(SessionReplay):
    """A part that compares frames only; see the module.

    `_issued` counts what a lane has done, and `_awaited` says where the outcome of its command is.
    """

    repertoire: Repertoire = attrs.field(kw_only=True)
    _issued: Counter[tuple[Key, str, str]] = attrs.field(
        factory=Counter[tuple[Key, str, str]], init=False
    )
    _commands: Counter[Key] = attrs.field(factory=Counter[Key], init=False)
    _awaited: dict[Key, float] = attrs.field(factory=dict[Key, float], init=False)

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:
        """See `Sequencer`."""
        key = self._key(lane)
        awaited = self._awaited.get(key)
        if awaited is None and not commands:
            return await super().turn(lane)
        due = self._place_of_command(key) if awaited is None else awaited
        await self._wait(lane, Suspended(key, lane.ordinal, due=due))
        if self._is_cancelled_here(key):
            return "cxl"
        return "cmd" if awaited is None else self.replayer.trace.journal[int(awaited)].kind

    def _place_of_command(self, lane: Key) -> float:
        places = self.repertoire.commands[lane]
        issued = self._commands[lane]
        return places[issued] if issued < len(places) else -1

    def _is_cancelled_here(self, lane: Key) -> bool:
        """Return whether the lane was let go only to be cancelled."""
        record, place = self.replayer.cursor.record, self.replayer.cursor.place
        if record is None or key_of(record) != lane:
            return False
        return record.kind == "cxl" and place not in self.repertoire.places

    def _is_silent(self, lane: Lane) -> bool:
        key, trace, place = self._key(lane), self.replayer.trace, self.replayer.cursor.place
        if key in self._awaited or not trace.is_complete:
            return False
        places = trace.places.get(key, ())
        to_come = len(places) - bisect_left(places, place)
        if to_come == 1 and places[-1] not in self.repertoire.places:
            return trace.is_cancelled_end(key, places[-1])
        return not to_come

    def commanded(self, lane: Lane, body: bytes) -> None:
        """Find the command by its name."""
        key, name = self._key(lane), label_of("cmd", body)
        ordinal = lane.next_ordinal()
        place = self._next_named((key, "cmd", name))
        if place is None and not self._may_be_unfinished(key):
            self.replayer.diverge(self._wanted("cmd", lane, ordinal, body))
        self._commands[key] += 1
        self._awaited[key] = _NEVER if place is None else self._outcome_of(place)

    def _may_be_unfinished(self, lane: Key) -> bool:
        """Return whether the lane was cut off, so that nobody knows what it would have done."""
        trace = self.replayer.trace
        return not trace.is_complete or trace.is_cancelled_end(lane, trace.last_place(lane))

    def _outcome_of(self, command: int) -> float:
        return self.repertoire.outcomes.get(command, _NEVER)

    def _next_named(self, name: tuple[Key, str, str]) -> int | None:
        places, issued = self.repertoire.named[name], self._issued[name]
        self._issued[name] += 1
        return places[issued] if issued < len(places) else None

    def recorded(self, lane: Lane) -> bytes | None:
        """The outcome of the command."""
        return body_bytes(self.replayer.trace.journal[int(self._awaited[self._key(lane)])])

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """An effect's outcome is not compared."""
        if self._awaited.pop(self._key(lane), None) is None:
            super().resumed(lane, kind, body)
        else:
            lane.next_ordinal()

    def valued(
        self,
        lane: Lane,
        name: str,
        arguments: bytes | None,
        read: Callable[[], Outcome],  # noqa: ARG002  the protocol's
    ) -> Outcome:
        """What was read then, with whatever arguments."""
        if self.replayer.is_over:
            raise Abort
        place = self._next_named((self._key(lane), "val", name))
        if place is None and self._is_too_early(lane):
            return self._unread(name)
        if place is None:
            body = value_body(name, arguments, b"null", is_error=False)
            self._differ(lane, None, "val", body)
        lane.next_ordinal()
        return recorded_value(self.replayer.trace.journal[place])

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether the recorded code took the new way anywhere in this lane."""
        return self._next_named((self._key(lane), "mark", f"{PATCHED_MARK} {name}")) is not None

    def noted(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:  # noqa: ARG002
        """What it looks like here: the code around it may be another."""
        return is_so

    def _is_same(
        self,
        record: Record,
        kind: str,
        lane: Lane | None,
        ordinal: int | None,  # noqa: ARG002  not compared
        body: bytes | None,
    ) -> bool:
        return super()._is_same(record, kind, lane, record.ordinal, body)
