"""Sequencers of a replayed session, which compare its operations with the recording.

`SessionReplay` compares every record. `OutboundReplay` compares only what is sent: it matches
effects by lane and name, the n-th to the n-th, and likewise the values that handlers read without
waiting. Effects keep the recorded order as far as the code still performs them in that order: a
lane's n-th command waits for the position of its n-th recorded one, and each outcome for its own
position. The replay skips recorded effects that the code no longer performs. When a message of a
lane is next in the recording, the lane continues, even if it waits for an effect.
"""

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, Final, NoReturn

import attrs
import msgspec
import trio

from mcp_trio._journal.records import (
    PATCHED_MARK,
    SUSPENDED_MARK,
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
from mcp_trio._replay.divergence import Operation, label_of
from mcp_trio._replay.replayer import PAUSE_SECONDS_MAX, Abort, Replayer, SuspendedLane
from mcp_trio._replay.source_locations import current_location, handler_location
from mcp_trio._replay.trace import (
    NS_PER_SECOND,
    OUTCOMES,
    LaneKey,
    Trace,
    body_name,
    is_immediate,
    is_keeper,
    is_request_lane,
    is_start,
    key_of,
    request_data,
)
from mcp_trio._server.effects import with_recorded_lifespan
from mcp_trio._session.journal import UNSTARTED_BODY, Lane, Outcome, take_turn
from mcp_trio._session.session import DRAINED
from mcp_trio.errors import BlockedInReplay


@attrs.define(eq=False)
class SessionReplay:
    """The `Sequencer` of one replayed session; `channel` is the session's number in the file."""

    replayer: Replayer
    channel: int = 0

    has_lanes: bool = attrs.field(default=True, init=False)
    decides_turns: bool = attrs.field(default=True, init=False)

    @property
    def seed(self) -> int | None:
        """The seed of the recorded session's random numbers."""
        return self.replayer.trace.opening.seed

    def clock_ns(self) -> int:
        """Return the virtual time."""
        return int(self.replayer.clock.current_time() * NS_PER_SECOND)

    def _key(self, lane: Lane) -> LaneKey:
        return self.channel, lane.name

    # Turns.

    async def turn_to_start(self, lane: Lane) -> None:
        """Wait until a handler may start."""
        await self._wait(lane, SuspendedLane(self._key(lane), lane.ordinal, at_start=True))

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:  # noqa: ARG002  used by `OutboundReplay`
        """Wait until the lane's next record is at the position; return its kind."""
        await self._wait(lane, SuspendedLane(self._key(lane), lane.ordinal))
        record = self.replayer.position.record
        assert record is not None
        return record.kind

    async def _wait(self, lane: Lane, suspended: SuspendedLane) -> None:
        replayer, lanes = self.replayer, self.replayer.lanes
        if replayer.is_over:
            await _abort()
        lanes.note_task(suspended.lane)
        is_quiet = self._is_quiet(lane)
        if is_quiet and not (suspended.at_start or is_keeper(suspended.lane)):
            lanes.note_arrival(suspended.lane, lane.ordinal)
        if replayer.continues_at_once(suspended):
            return
        finished_from = replayer.trace.finished_from(suspended.lane)
        lanes.finished_from = min(lanes.finished_from, finished_from)
        await lanes.suspend(suspended, shield=not is_quiet)
        if replayer.is_over:
            await _abort()

    def _is_quiet(self, lane: Lane) -> bool:
        """Return whether the lane makes no more calls in the recording."""
        trace, index = self.replayer.trace, self.replayer.position.index
        return trace.is_quiet_after(self._key(lane), lane.ordinal, index)

    async def until_cancelled(self, lane: Lane) -> None:
        """Wait for the cancellation that the record at the position promises."""
        await self.replayer.lanes.wait_cancelled(self._key(lane))
        raise Abort

    async def let_thread_run(self, name: str) -> None:
        """Wait until a thread of the handler `name` may run."""
        await self.replayer.thread_token.acquire(name)

    async def turn_in_thread(self, lane: Lane) -> None:
        """Wait for the lane's turn before a call of a thread, if its request is over by then."""
        if not self.replayer.is_over and self._is_quiet(lane):
            await take_turn(self, lane)

    def thread_waits(self) -> None:
        """Let another thread run: the current one waits for the event loop, or has ended."""
        self.replayer.thread_token.release()

    # Operations.

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002  of `Sequencer`
        """Return the number of the `in` record that was delivered."""
        return self.replayer.delivered

    def started(self, lane: Lane) -> None:
        """Consume the record of a handler's start, if there is one."""
        record = self.replayer.position.record
        if record is not None and record.lane == lane.name and is_start(record):
            self.replayer.position.advance()

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Compare a message with its `out` record."""
        self._compare("out", lane, message)

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Compare an effect with its `cmd` record."""
        record = self.replayer.position.record
        recorded = body_bytes(record) if record is not None and record.kind == "cmd" else None
        self._compare("cmd", lane, with_recorded_lifespan(body, recorded))

    def recorded(self, lane: Lane) -> bytes | None:
        """Return the outcome of an effect, from the record at the position."""
        record = self.replayer.position.record
        if record is None or record.kind not in {"res", "err"}:
            self.replayer.diverge(self._operation("res", lane, lane.ordinal + 1, None))
        return body_bytes(record)

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Compare the outcome of a call; the cancellation of an unrecorded call is not compared."""
        key = self._key(lane)
        may_excuse = self._is_quiet(lane) or key in self.replayer.lanes.cancellable
        if kind == "cxl" and not self.replayer.is_over and may_excuse:
            self._accept_early_cancellation(lane)
        else:
            self._compare(kind, lane, body)

    def _accept_early_cancellation(self, lane: Lane) -> None:
        """Accept the cancellation of a call that is not recorded, if the lane only came early."""
        replayer, key = self.replayer, self._key(lane)
        arrived = replayer.lanes.arrivals.pop((key, lane.ordinal), None)
        is_early = arrived is not None and self._is_early(key, arrived, trio.current_time())
        if replayer.position.index > replayer.trace.last_missing and not is_early:
            replayer.diverge(replayer.additional_operation(key))
        replayer.excused = key

    def _is_early(self, lane: LaneKey, arrived: float, cancelled: float) -> bool:
        """Return whether a lane may have come to a call only because code takes no time here.

        The time of a computation in a thread is unknown.
        """
        is_near = cancelled - arrived <= PAUSE_SECONDS_MAX
        return is_near or self.replayer.trace.is_in_thread(lane)

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Compare the end of a cancelled request; it must not come long before the cancellation."""
        replayer, key = self.replayer, self._key(lane)
        arrived = replayer.lanes.first_arrival(key)
        is_compared = not (unstarted or replayer.is_over)
        if is_compared and arrived is not None and is_request_lane(key):
            cancelled_at = replayer.trace.cancelled_at(key, replayer.position.index)
            if cancelled_at is None or not self._is_early(key, arrived, cancelled_at):
                replayer.diverge(self._operation("out", lane, lane.ordinal + 1, None))
        self._compare("cxl", lane, UNSTARTED_BODY if unstarted else None)

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """Compare a mark by its name; return its recorded value."""
        record = self.replayer.position.record
        body: bytes | None = encode_body(MarkBody(name=name, value=value))
        if record is not None and record.kind == "mark" and body_name(record) == name:
            value, body = decode_body(record, MarkBody).value, body_bytes(record)
        self._compare("mark", lane, body)
        if name == DRAINED or (name == SUSPENDED_MARK and value is None):
            self.replayer.note_cancellation()
        return value

    def shut(self, cause: str) -> None:
        """Compare the begin of a shutdown, unless the end of the replay caused it."""
        if not self.replayer.is_over:
            record = self.replayer.position.record
            self.replayer.has_shut_itself = record is None or record.kind != "shut"
            self._compare("shut", None, encode_body(ShutBody(cause=cause)))

    def flush(self) -> None:
        """Do nothing: nothing is written."""

    def close(self, counts: dict[str, int]) -> None:  # noqa: ARG002  of `Sequencer`
        """Consume the end of the session, which takes no turn."""
        replayer = self.replayer
        if replayer.is_over:
            return
        index = replayer.trace.session_ends.get(self.channel)
        if index is not None and index >= replayer.position.index:
            replayer.position.consume(index)
        else:
            record = replayer.position.record
            self._compare("end", None, None if record is None else body_bytes(record))

    # Immediate values.

    def read_value(
        self,
        lane: Lane,
        name: str,
        arguments: bytes | None,
        read: Callable[[], Outcome],  # noqa: ARG002  of `Sequencer`
    ) -> Outcome:
        """Return the recorded value, if it was read by the same name and arguments."""
        index = self._immediate(lane)
        if index is None and self._reads_after_cancellation(lane):
            return self._any_value(name)
        record = None if index is None else self.replayer.trace.journal[index]
        recorded = None if record is None else _without_value(record)
        reading = value_body(name, arguments, b"null", is_error=False)
        reading = with_recorded_lifespan(reading, recorded)
        if index is None or record is None or recorded != self.replayer.redact("val", reading):
            self._diverge_at_reading(lane, record, reading)
        self._consume_immediate(lane, index)
        return recorded_value(record)

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether the recorded code took the new branch here."""
        return self._consume_mark(lane, MarkBody(name=PATCHED_MARK, value=name))

    def observed(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:
        """Return whether the fact is recorded, or is observed here.

        Recordings from before there was this mark do not contain the fact.
        """
        if self.replayer.is_over:
            return is_so
        return self._consume_mark(lane, MarkBody(name=name, value=value)) or is_so

    def _consume_mark(self, lane: Lane, mark: MarkBody) -> bool:
        """Consume the lane's next record, if it is this mark; return whether it is."""
        index = self._immediate(lane)
        if index is None:
            return False
        record = self.replayer.trace.journal[index]
        if record.kind != "mark" or decode_body(record, MarkBody) != mark:
            return False
        self._consume_immediate(lane, index)
        return True

    def _immediate(self, lane: Lane) -> int | None:
        if self.replayer.is_over:
            raise Abort
        return self.replayer.position.find_immediate(self._key(lane), lane.ordinal + 1)

    def _consume_immediate(self, lane: Lane, index: int) -> None:
        lane.next_ordinal()
        self.replayer.position.consume(index)

    def _reads_after_cancellation(self, lane: Lane) -> bool:
        """Return whether a lane reads a value because its cancellation has not come yet.

        It cannot wait for the cancellation here, so it gets some value and waits at its next call.
        """
        replayer, key = self.replayer, self._key(lane)
        return (
            replayer.trace.is_of_cancelled_request(key, replayer.position.index)
            and self._is_quiet(lane)
            and replayer.lanes.note_arrival(key, lane.ordinal)
        )

    def _any_value(self, name: str) -> Outcome:
        """Return a value of the right form; nothing recorded follows from it."""
        if name == TIMEOUT:
            return Outcome("res", encode_body(self.clock_ns()))
        record = self.replayer.trace.last_value(name)
        if record is None:
            raise BlockedInReplay("the recorded request was cancelled before this was read")
        return recorded_value(record)

    def _diverge_at_reading(self, lane: Lane, record: Record | None, body: bytes) -> NoReturn:
        replayer, key, ordinal = self.replayer, self._key(lane), lane.ordinal + 1
        if record is None and replayer.trace.is_cut_before(key, ordinal):
            replayer.continuing[lane.name] = current_location()
            raise BlockedInReplay("the recording was cut before this was read")
        index = replayer.trace.index_of(key, ordinal)
        replayer.diverge(self._operation("val", lane, ordinal, body), index=index)

    # Comparison.

    def _compare(self, kind: str, lane: Lane | None, body: bytes | None) -> None:
        """Consume the record at the position if it is this operation; otherwise diverge."""
        replayer = self.replayer
        if replayer.is_over:
            raise Abort
        ordinal = None if lane is None else lane.next_ordinal()
        body = None if body is None else replayer.redact(kind, body)
        record = replayer.position.record
        if record is None and not replayer.trace.is_complete:
            replayer.finish()  # the recording was cut here
            raise Abort
        if record is None or not self._is_same(record, kind, lane, ordinal, body):
            replayer.diverge(self._operation(kind, lane, ordinal, body))
        replayer.position.advance()

    def _is_same(
        self, record: Record, kind: str, lane: Lane | None, ordinal: int | None, body: bytes | None
    ) -> bool:
        name = None if lane is None else lane.name
        found = (record.kind, record.channel, record.lane, record.ordinal, body_bytes(record))
        return found == (kind, self.channel, name, ordinal, body)

    def _operation(
        self, kind: str, lane: Lane | None, ordinal: int | None, body: bytes | None
    ) -> Operation:
        key = None if lane is None else self._key(lane)
        location = current_location() or self._nearby_location(key)
        return Operation(kind=kind, lane=key, ordinal=ordinal, body=body, location=location)

    def _nearby_location(self, lane: LaneKey | None) -> str:
        """Return the location of a lane's last call, or else of its handler.

        No line of users' code runs when the result of a handler is sent.
        """
        replayer = self.replayer
        session = replayer.sessions.get(self.channel)
        if lane is None or session is None:
            return ""
        if location := replayer.lanes.locations.get(lane):
            return f"after the call {location}"
        request = request_data(replayer.trace.journal, lane[1])
        return handler_location(session.application, request)


async def _abort() -> NoReturn:
    """Raise `Abort`, but yield first: a loop that catches it must not block the run."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    raise Abort


def _without_value(record: Record) -> bytes | None:
    """Return the body of a value's record without the value; None for any other record."""
    if record.kind != "val":
        return None
    body = decode_body(record, ValueBody)
    return value_body(body.name, _raw(body.arguments), b"null", is_error=False)


def recorded_value(record: Record) -> Outcome:
    """Return the value, or the error, of a value's record."""
    body = decode_body(record, ValueBody)
    if body.error is not msgspec.UNSET:
        return Outcome("err", encode_body(body.error))
    return Outcome("res", _raw(body.value) or b"null")


def _raw(value: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    return None if value is msgspec.UNSET else bytes(value)


# Outbound mode ------------------------------------------------------------------------------------

_NEVER: Final = math.inf


@attrs.define(eq=False)
class UncomparedRecords:
    """The records of a trace that outbound mode does not compare, by lane and name.

    Attributes:
        commands: The indexes of each lane's commands.
        named: The indexes of commands and immediate records by lane, kind and name.
        outcomes: The index of a command's outcome, by the index of the command.
        indexes: All of these indexes.
    """

    commands: defaultdict[LaneKey, list[int]] = attrs.field(factory=lambda: defaultdict(list))
    named: defaultdict[tuple[LaneKey, str, str], list[int]] = attrs.field(
        factory=lambda: defaultdict(list)
    )
    outcomes: dict[int, int] = attrs.field(factory=dict[int, int])
    indexes: set[int] = attrs.field(factory=set[int])


def find_uncompared(trace: Trace) -> UncomparedRecords:
    """Return the records of a trace that outbound mode does not compare."""
    found = UncomparedRecords()
    for lane, indexes in trace.indexes.items():
        for index, following in zip(indexes, [*indexes[1:], None], strict=True):
            record = trace.journal[index]
            if record.kind == "cmd":
                found.commands[lane].append(index)
                found.named[lane, "cmd", body_name(record)].append(index)
                found.indexes.add(index)
                if following is not None and trace.journal[following].kind in OUTCOMES:
                    found.outcomes[index] = following
                    found.indexes.add(following)
            elif is_immediate(record):
                name = body_name(record)
                if record.kind == "mark":
                    name = f"{name} {decode_body(record, MarkBody).value}"
                found.named[lane, record.kind, name].append(index)
                found.indexes.add(index)
    return found


@attrs.define(eq=False)
class OutboundReplay(SessionReplay):
    """A `SessionReplay` that compares only what is sent.

    `_performed` counts the operations of each lane by kind and name, `_commands` its commands.
    `_awaited` has the index of the outcome for which a lane's command waits.
    """

    uncompared: UncomparedRecords = attrs.field(kw_only=True)
    _performed: Counter[tuple[LaneKey, str, str]] = attrs.field(
        factory=Counter[tuple[LaneKey, str, str]], init=False
    )
    _commands: Counter[LaneKey] = attrs.field(factory=Counter[LaneKey], init=False)
    _awaited: dict[LaneKey, float] = attrs.field(factory=dict[LaneKey, float], init=False)

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:
        """Wait until the lane may send, start an effect, or continue after one."""
        key = self._key(lane)
        awaited = self._awaited.get(key)
        if awaited is None and not commands:
            return await super().turn(lane)
        if awaited is None:
            indexes, issued = self.uncompared.commands[key], self._commands[key]
            due: float = indexes[issued] if issued < len(indexes) else -1
        else:
            due = awaited
        await self._wait(lane, SuspendedLane(key, lane.ordinal, due=due))
        record, index = self.replayer.position.record, self.replayer.position.index
        is_end = record is not None and record.kind == "cxl" and key_of(record) == key
        if is_end and index not in self.uncompared.indexes:
            return "cxl"
        return "cmd" if awaited is None else self.replayer.trace.journal[int(awaited)].kind

    def _is_quiet(self, lane: Lane) -> bool:
        key, trace = self._key(lane), self.replayer.trace
        if key in self._awaited or not trace.is_complete:
            return False
        indexes = trace.indexes.get(key, ())
        to_come = len(indexes) - bisect_left(indexes, self.replayer.position.index)
        if to_come == 1 and indexes[-1] not in self.uncompared.indexes:
            return trace.is_cancelled_end(key, indexes[-1])
        return not to_come

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Find the outcome of an effect by its name."""
        key, name, trace = self._key(lane), label_of("cmd", body), self.replayer.trace
        ordinal = lane.next_ordinal()
        index = self._next_named((key, "cmd", name))
        # A lane that was cut off may have gone on to perform this effect.
        is_cut_off = not trace.is_complete or trace.is_cancelled_end(key, trace.last_index(key))
        if index is None and not is_cut_off:
            self.replayer.diverge(self._operation("cmd", lane, ordinal, body))
        self._commands[key] += 1
        self._awaited[key] = (
            _NEVER if index is None else self.uncompared.outcomes.get(index, _NEVER)
        )

    def _next_named(self, name: tuple[LaneKey, str, str]) -> int | None:
        indexes, performed = self.uncompared.named[name], self._performed[name]
        self._performed[name] += 1
        return indexes[performed] if performed < len(indexes) else None

    def recorded(self, lane: Lane) -> bytes | None:
        """Return the outcome of the lane's effect."""
        return body_bytes(self.replayer.trace.journal[int(self._awaited[self._key(lane)])])

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Compare the outcome of a call, unless it is an effect."""
        if self._awaited.pop(self._key(lane), None) is None:
            super().resumed(lane, kind, body)
        else:
            lane.next_ordinal()

    def read_value(
        self,
        lane: Lane,
        name: str,
        arguments: bytes | None,
        read: Callable[[], Outcome],  # noqa: ARG002  of `Sequencer`
    ) -> Outcome:
        """Return the recorded value of this name, whatever the arguments."""
        if self.replayer.is_over:
            raise Abort
        index = self._next_named((self._key(lane), "val", name))
        if index is None and self._reads_after_cancellation(lane):
            return self._any_value(name)
        if index is None:
            body = value_body(name, arguments, b"null", is_error=False)
            self._diverge_at_reading(lane, None, body)
        lane.next_ordinal()
        return recorded_value(self.replayer.trace.journal[index])

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether the recorded code took the new branch anywhere in this lane."""
        return self._next_named((self._key(lane), "mark", f"{PATCHED_MARK} {name}")) is not None

    def observed(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:  # noqa: ARG002
        """Return whether the fact is observed here: the code around it may have changed."""
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
