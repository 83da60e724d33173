"""Sequencers of a replayed session, which compare its operations with the recording.

The `Replayer` has the position in the recording and runs all sessions. A session calls its
sequencer for each operation, and before each step of a lane; the sequencer compares the operation
with the record at the position, or lets the lane wait for its turn.

`SessionReplay` compares every record. `OutboundReplay` compares only what is sent. It gives the
n-th effect of a name in a lane the outcome of the n-th recorded one, and does the same for the
values that handlers read without waiting. Steps keep the recorded order as far as the code still
takes them; recorded steps that it does not take are skipped. When a message of a lane is next in
the recording, the lane goes on until it sends one, even if it waits for an effect. If it cannot go
on, other lanes go on, because it may wait for one of them.
"""

import math
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cached_property
from itertools import chain
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET

from mcp_trio._journal.records import (
    EXPIRED_LIMIT,
    FOREIGN_CLOCK,
    HAS_WAITED,
    PATCHED_MARK,
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
from mcp_trio._replay.controlled_run import raise_abort
from mcp_trio._replay.divergence import Operation, label_of
from mcp_trio._replay.replayer import Replayer
from mcp_trio._replay.source_locations import current_location, handler_location
from mcp_trio._replay.trace import (
    OUTCOMES,
    LaneKey,
    body_name,
    is_notification_lane,
    key_of,
    patch_name,
    recorded_outcome,
    recorded_value,
    request_data,
)
from mcp_trio._server.effects import with_recorded_lifespan
from mcp_trio._session.effects import is_cancelled_now
from mcp_trio._session.journal import CANCELLED_MEANWHILE, UNSTARTED_BODY, Outcome, Sequencer
from mcp_trio._session.lanes import Abort, Lane, operation
from mcp_trio.errors import ToolError

# Times are floating-point numbers, which lose some nanoseconds.
_LIMIT_ROUNDING_US: Final = 1


class SessionReplay(Sequencer):
    """The `Sequencer` of one replayed session; `channel` is its number in the recording."""

    has_lanes = has_steps = replays = True

    def __init__(self, replayer: Replayer, channel: int) -> None:
        self.replayer = replayer
        self.channel = channel

    @property
    def seed(self) -> int | None:
        return self.replayer.trace.opening.seed

    def _key(self, lane: Lane) -> LaneKey:
        return self.channel, lane.name

    # Turns.

    def step(self, lane: Lane) -> Awaitable[None] | None:
        """Return an awaitable that waits for the lane's turn; None if the lane goes on at once."""
        replayer, key = self.replayer, self._key(lane)
        if replayer.is_over or key in replayer.left_out:
            return None
        replayer.note_task(key)
        if replayer.is_turn(key):
            replayer.take_turn(key)
            return None
        return replayer.wait_for_turn(key, has_own_pace=lane.has_own_pace)

    async def turn(self, lane: Lane) -> None:
        """Wait until the next record is the lane's; raise `Cancelled` if it is its cancellation."""
        replayer, key = self.replayer, self._key(lane)
        await self._check_not_over(key)
        trace, index = replayer.trace, replayer.position.index
        following = trace.next_record(key, index)
        while lane.has_own_pace and following is not None and following.kind == "step":
            # The recorded task waited here until something woke it; this one need not wait.
            await self._check_not_over(key)
            step = self.step(lane)
            if step is not None:
                await step
            index = replayer.position.index
            following = trace.next_record(key, index)
        if following is None:
            # A handler of notifications may outlive its session.
            has_waited = trace.may_lack_record(index) or is_notification_lane(key)
        else:
            has_waited = following.step_start == HAS_WAITED
        await self._take_turn(lane, waits=has_waited or not lane.has_steps)

    async def _take_turn(self, lane: Lane, *, waits: bool) -> None:
        """Take the lane's turn, after a wait or at once."""
        replayer, key = self.replayer, self._key(lane)
        with operation(lane):
            if waits:
                await self._wait_in_operation(key)
            record = replayer.position.record
            if record is not None and record.kind == "cxl" and key_of(record) == key:
                await trio.lowlevel.checkpoint_if_cancelled()
        replayer.restore_id(key)

    async def turn_to_end(self) -> None:
        """Wait until the session's `end` record is next; return at once if a mark ends it."""
        replayer = self.replayer
        record = replayer.position.record
        is_awaited = self.channel not in replayer.trace.session_ends and not replayer.is_over
        if is_awaited and (record is None or record.kind != "end"):
            await replayer.wait_for_turn((self.channel, ""), has_operation=True)

    async def _wait_in_operation(self, key: LaneKey, *, outcome_index: int | None = None) -> None:
        replayer, record = self.replayer, self.replayer.position.record
        # The task that cancels this one may come later in the same turn of the event loop.
        awaits_cancellation = record is not None and record.kind == "cxl" and not is_cancelled_now()
        if not awaits_cancellation and replayer.is_turn(key, has_operation=True):
            replayer.take_turn(key)
        else:
            await replayer.wait_for_turn(key, has_operation=True, outcome_index=outcome_index)
        if key in replayer.left_out:
            await replayer.wait_left_out()

    async def _check_not_over(self, key: LaneKey) -> None:
        """Raise `Abort` if the replay is over; wait for the cancellation of a left-out request."""
        if self.replayer.is_over:
            await raise_abort()
        if key in self.replayer.left_out:
            await self.replayer.wait_left_out()

    async def outcome(self, lane: Lane, *, is_in_thread: bool = False) -> Outcome:
        """Wait for the outcome of the lane's effect, which is its next record."""
        replayer, key = self.replayer, self._key(lane)
        await self._check_not_over(key)
        record = replayer.trace.next_record(key, replayer.position.index)
        if record is None or (is_in_thread and record.kind == "cxl"):
            # The recording, or the request of the thread, ends before the effect does.
            may_lack_record = replayer.trace.may_lack_record(replayer.position.index)
            await self._wait_cancelled(key, has_turn=record is None and may_lack_record)
        elif record.kind not in OUTCOMES or (record.kind == "cxl" and record.step_start):
            # A cancellation is recorded, or the outcome is missing from the file.
            await self._wait_cancelled(key, has_turn=True)
        elif record.kind == "cxl":
            await trio.lowlevel.checkpoint_if_cancelled()
        elif record.step_start:
            await self._wait_in_operation(key)
        record = replayer.position.record if record is None else record
        if record is None or record.kind not in {"res", "err"}:
            replayer.diverge(self._operation("res", lane, lane.ordinal + 1, None))
            await replayer.wait_left_out()
        return recorded_outcome(record)

    async def _wait_cancelled(self, key: LaneKey, *, has_turn: bool) -> None:
        """Wait for a cancellation, and then for the lane's turn if the recording has one."""
        replayer = self.replayer
        try:
            await replayer.wait_for_cancellation(key)
        except trio.Cancelled:
            if has_turn and not replayer.is_over and key not in replayer.left_out:
                await self._wait_in_operation(key)
            raise

    def withdraw(self, lane: Lane) -> None:
        """Let a call of an abandoned thread go on without a turn: the recording has none for it."""
        wait = self.replayer.waiting_lanes.pop(self._key(lane), None)
        if wait is not None:
            trio.lowlevel.reschedule(wait.task)

    async def let_thread_run(self, name: str) -> None:
        await self.replayer.thread_token.acquire(name)

    def thread_waits(self) -> None:
        self.replayer.thread_token.release()

    # Operations.

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002  of `Sequencer`
        """Return the number of the `in` record that was delivered."""
        return self.replayer.last_delivered

    def sent(self, message: bytes, lane: Lane | None) -> None:
        self._compare("out", lane, message)

    def effect_started(self, lane: Lane, body: bytes) -> None:
        record = self.replayer.position.record
        recorded = body_bytes(record) if record is not None and record.kind == "cmd" else None
        self._compare("cmd", lane, with_recorded_lifespan(body, recorded))

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
        """Compare the outcome of a call, and whether the task was cancelled during an effect.

        A replay does not run effects, so it cannot know whether an effect would have ended before
        the cancellation. So the cancellation itself is compared, except under a foreign clock.
        """
        record, replayer = self.replayer.position.record, self.replayer
        may_differ = not replayer.is_over and self._key(lane) not in replayer.left_out
        may_differ = may_differ and replayer.clock.kind != FOREIGN_CLOCK
        if record is not None and kind == record.kind and may_differ:
            envelope = record.envelope or {}
            was_cancelled = envelope == CANCELLED_MEANWHILE
            if was_cancelled != is_cancelled:
                ended = "cxl" if is_cancelled else kind
                replayer.diverge(self._operation(ended, lane, lane.ordinal + 1, None))
            # The time limits by which the effect was cancelled.
            recorded_us, limit_us = envelope.get(EXPIRED_LIMIT), lane.expired_limit_us
            if (
                replayer.position.record is record
                and key_of(record) == self._key(lane)
                and isinstance(recorded_us, int)
                and limit_us is not None
                and abs(recorded_us - limit_us) > _LIMIT_ROUNDING_US
            ):
                operation = self._operation("cxl", lane, lane.ordinal + 1, None)
                limits = (recorded_us / 1e6, limit_us / 1e6)
                replayer.diverge(msgspec.structs.replace(operation, limits=limits))
        self._compare(kind, lane, body)

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        self._compare("cxl", lane, UNSTARTED_BODY if unstarted else None)

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """Compare a mark by its name; return its recorded value."""
        record = self.replayer.position.record
        body: bytes | None = encode_body(MarkBody(name=name, value=value))
        if record is not None and record.kind == "mark" and body_name(record) == name:
            value, body = decode_body(record, MarkBody).value, body_bytes(record)
        self._compare("mark", lane, body)
        return value

    def shut(self, cause: str) -> None:
        """Compare the beginning of a shutdown, unless the end of the replay caused it."""
        replayer, body = self.replayer, encode_body(ShutBody(cause=cause))
        if replayer.is_over:
            return
        if (index := self._index_of_later_shut(body)) is not None:
            replayer.position.consume(index)
            return
        record = replayer.position.record
        is_recorded = record is not None and record.kind == "shut"
        replayer.divergences_before_shut = None if is_recorded else len(replayer.divergences)
        self._compare("shut", None, body)

    def _index_of_later_shut(self, body: bytes) -> int | None:
        """Return the index of the same shutdown, if only cancellations are recorded before it.

        A handler that exits cancels all others, and makes the session shut down, in any order.
        """
        position, journal = self.replayer.position, self.replayer.trace.journal
        for index in range(position.index, len(journal)):
            record = journal[index]
            if record.kind == "shut" and record.channel == self.channel:
                is_later = index > position.index and not position.is_at_missing
                return index if is_later and body_bytes(record) == body else None
            if record.kind not in {"cxl", "step"}:
                break
        return None

    def flush(self) -> None:
        """Do nothing: nothing is written."""

    def close(self, counts: dict[str, int]) -> None:  # noqa: ARG002  of `Sequencer`
        """Consume the record of the session's end, without waiting for its turn."""
        replayer = self.replayer
        if replayer.is_over:
            return
        index = replayer.trace.session_ends.get(self.channel)
        if index is not None and index >= replayer.position.index:
            replayer.position.consume(index)
        else:
            record = replayer.position.record
            self._compare("end", None, None if record is None else body_bytes(record))

    def read_value(
        self,
        lane: Lane,
        name: str,
        arguments: bytes | None,
        read: Callable[[], Outcome],  # noqa: ARG002  of `Sequencer`
    ) -> Outcome:
        """Return the recorded value; diverge unless it was read by the same name and arguments."""
        record = self.replayer.position.record
        recorded = None
        if record is not None and record.kind == "val":
            body = decode_body(record, ValueBody)
            recorded_arguments = None if body.arguments is UNSET else bytes(body.arguments)
            recorded = value_body(body.name, recorded_arguments, b"null", is_error=False)
        reading = value_body(name, arguments, b"null", is_error=False)
        reading = with_recorded_lifespan(reading, recorded)
        if recorded is not None and recorded == self.replayer.redact("val", reading):
            assert record is not None
            self._compare("val", lane, body_bytes(record), is_redacted=True)
            return recorded_value(record)
        self._compare("val", lane, reading)
        return self._value_after_divergence(lane, record)

    def _value_after_divergence(self, lane: Lane, record: Record | None) -> Outcome:
        """Return the recorded value of a reading that diverged in its arguments only.

        Raises:
            ToolError: The request is left out; this error is neither logged nor sent.
        """
        if record is None or self._key(lane) in self.replayer.left_out:
            raise ToolError("this request has diverged, and its replay is over")
        return recorded_value(record)

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether the recorded code took the new branch here."""
        if self.replayer.is_over:
            raise Abort
        if self._key(lane) in self.replayer.left_out:
            return True
        record, mark = self.replayer.position.record, MarkBody(name=PATCHED_MARK, value=name)
        if record is None or record.kind != "mark" or key_of(record) != self._key(lane):
            return False
        if decode_body(record, MarkBody) != mark:
            return False
        self._compare("mark", lane, body_bytes(record))
        return True

    # Comparison.

    def _compare(
        self, kind: str, lane: Lane | None, body: bytes | None, *, is_redacted: bool = False
    ) -> None:
        """Consume the record at the position if it is this operation; otherwise diverge.

        An operation of a request that is left out is not compared.
        """
        replayer = self.replayer
        while replayer.is_uncompared():
            replayer.position.advance()
        if replayer.is_over:
            raise Abort
        if lane is not None and self._key(lane) in replayer.left_out:
            return
        ordinal = None if lane is None else lane.next_ordinal()
        if body is not None and not is_redacted:
            body = replayer.redact(kind, body)
        record = replayer.position.record
        if record is None and not replayer.trace.is_complete:
            replayer.finish()  # the recording was cut here
            raise Abort
        if replayer.stop is not None and replayer.stop.is_at(record):
            replayer.stop_here(self._operation(kind, lane, ordinal, body))
        index, is_missing = replayer.position.index, replayer.position.is_at_missing
        if record is None or is_missing or not self._is_same(record, kind, lane, ordinal, body):
            operation = self._operation(kind, lane, ordinal, body)
            if not replayer.accept_other_values(operation):
                replayer.diverge(operation)
        elif lane is not None and lane.has_steps and not replayer.is_in_step(record):
            operation = self._operation(kind, lane, ordinal, body)
            replayer.diverge(msgspec.structs.replace(operation, has_waited=False))
        else:
            replayer.position.advance()
        # Reports name the last call of a lane, but only up to the lane's last record.
        if (
            lane is not None
            and kind in {"out", "cmd"}
            and replayer.trace.last_index(self._key(lane)) > index
            and (location := current_location())
        ):
            replayer.call_locations[self._key(lane)] = location

    def _is_same(
        self, record: Record, kind: str, lane: Lane | None, ordinal: int | None, body: bytes | None
    ) -> bool:
        if self.replayer.is_strict and record.ordinal != ordinal:
            return False
        name = None if lane is None else lane.name
        found = (record.kind, record.channel, record.lane, body_bytes(record))
        return found == (kind, self.channel, name, body)

    def _operation(
        self, kind: str, lane: Lane | None, ordinal: int | None, body: bytes | None
    ) -> Operation:
        replayer = self.replayer
        key = None if lane is None else self._key(lane)
        location, session = current_location(), replayer.sessions.get(self.channel)
        if not location and key is not None and session is not None:
            # When the result of a handler is sent, no line of users' code runs that could be named.
            if key in replayer.call_locations:
                location = f"after the call {replayer.call_locations[key]}"
            else:
                request = request_data(replayer.trace.journal, key[1])
                location = handler_location(session.application, request)
        failure = "" if lane is None else lane.failure
        return Operation(
            kind=kind, lane=key, ordinal=ordinal, body=body, location=location, failure=failure
        )


# Outbound mode ------------------------------------------------------------------------------------

# How many times lanes may go on before one of them sends the message that is next.
_FORCED_STEPS_MAX: Final = 10_000


class OutboundReplayer(Replayer):
    """A `Replayer` that compares only what is sent."""

    is_strict = False

    def is_uncompared(self) -> bool:
        """Return whether the record at the position is not compared.

        False where records are missing before it, which nothing can pass.
        """
        return self.position.index in self._uncompared and not self.position.is_at_missing

    @cached_property
    def _uncompared(self) -> set[int]:
        named, journal = self.trace.named, self.trace.journal
        steps = (index for index, record in enumerate(journal) if record.kind == "step")
        return {*steps, *chain(*named.indexes.values()), *named.outcomes.values()}

    def is_turn(self, lane: LaneKey, *, has_operation: bool = False) -> bool:  # noqa: ARG002
        """Return False: the records decide which lane goes on."""
        return False

    def is_in_step(self, record: Record) -> bool:  # noqa: ARG002
        """Return True: waits are not compared."""
        return True

    def resume_lane(self, lane: LaneKey) -> None:
        """Let a lane go on, if it waits for the record at the position."""
        wait, record = self.waiting_lanes.get(lane), self.position.record
        index, is_uncompared = self.position.index, self.is_uncompared()
        if wait is not None and record is not None:
            if not is_uncompared:
                may_go = not wait.is_for_cancellation
            elif record.kind == "step" or not wait.has_operation:
                may_go = not wait.has_operation and bool(record.step_start)
            else:
                may_go = wait.outcome_index is not None and wait.outcome_index <= index
            if may_go:
                self._resume(lane)
        if is_uncompared:
            self.position.advance()

    def _resume(self, lane: LaneKey) -> None:
        self._lanes_begun.add(lane)
        trio.lowlevel.reschedule(self.waiting_lanes.pop(lane).task)

    async def advance_until_made(self, record: Record) -> None:
        """Let lanes go on until one of them makes the record; if none can, advance the clock."""
        index, wanted = self.position.index, key_of(record)
        for _ in range(_FORCED_STEPS_MAX):
            if self.position.index != index or self.is_over:
                return
            waits = [(k, v) for k, v in self.waiting_lanes.items() if not v.is_for_cancellation]
            steps = [lane for lane, wait in waits if not wait.has_operation]
            outcomes = [
                (wait.outcome_index, lane) for lane, wait in waits if wait.outcome_index is not None
            ]
            if any(lane == wanted for lane, _ in waits):
                self._resume(wanted)
            elif steps:
                self._resume(steps[0])
            elif outcomes:
                self._resume(min(outcomes)[1])
            elif self.clock.next_deadline < math.inf:
                self.clock.advance_to(self.clock.next_deadline)
            else:
                return
            await self.thread_token.settle()


class OutboundReplay(SessionReplay):
    """A `SessionReplay` that compares only what is sent."""

    def __init__(self, replayer: Replayer, channel: int) -> None:
        super().__init__(replayer, channel)
        # The number of operations of each lane by kind and name.
        self._performed: Counter[tuple[LaneKey, str, str]] = Counter()
        # For each lane with an effect, the index of the outcome that the effect gets; None if it
        # has no outcome, so that the lane waits until it is cancelled.
        self._awaited: dict[LaneKey, int | None] = {}

    async def turn(self, lane: Lane) -> None:
        """Wait until the next compared record is the lane's."""
        key, record = self._key(lane), self.replayer.position.record
        await self._check_not_over(key)
        waits = record is None or key_of(record) != key or self.replayer.is_uncompared()
        await self._take_turn(lane, waits=waits)

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Find the outcome of an effect by its name."""
        key, name, trace = self._key(lane), label_of("cmd", body), self.replayer.trace
        if self.replayer.is_over:
            raise Abort
        if key in self.replayer.left_out:
            return
        ordinal = lane.next_ordinal()
        index = self._next_named(key, "cmd", name)
        # A cut recording, or a lane that was cancelled, may have ended before this effect.
        last = trace.last_index(key)
        is_cut_off = not trace.is_complete or (last >= 0 and trace.journal[last].kind == "cxl")
        if index is None and not is_cut_off:
            self.replayer.diverge(self._operation("cmd", lane, ordinal, body))
        self._awaited[key] = None if index is None else trace.named.outcomes.get(index)

    def _next_named(self, lane: LaneKey, kind: str, name: str) -> int | None:
        """Return the index of the recorded operation that this one stands for, if there is one."""
        indexes = self.replayer.trace.named.of(lane, kind, name)
        performed = self._performed[lane, kind, name]
        self._performed[lane, kind, name] += 1
        return indexes[performed] if performed < len(indexes) else None

    async def outcome(self, lane: Lane, *, is_in_thread: bool = False) -> Outcome:  # noqa: ARG002
        """Wait for the outcome of the lane's effect, unless it has come already."""
        replayer, key = self.replayer, self._key(lane)
        await self._check_not_over(key)
        index = self._awaited[key]
        record = None if index is None else replayer.trace.journal[index]
        if record is None or record.kind == "cxl":
            await replayer.wait_for_cancellation(key)
        assert index is not None
        assert record is not None
        if index >= replayer.position.index:
            await self._wait_in_operation(key, outcome_index=index)
        return recorded_outcome(record)

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
        """Compare the outcome of a call, unless it is an effect."""
        if self._key(lane) in self._awaited:
            del self._awaited[self._key(lane)]
            lane.next_ordinal()
        else:
            super().resumed(lane, kind, body, is_cancelled=is_cancelled)

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
        if self._key(lane) in self.replayer.left_out:
            return self._value_after_divergence(lane, None)
        index = self._next_named(self._key(lane), "val", name)
        if index is None:
            body = value_body(name, arguments, b"null", is_error=False)
            self.replayer.diverge(self._operation("val", lane, lane.ordinal + 1, body))
            return self._value_after_divergence(lane, None)
        lane.next_ordinal()
        return recorded_value(self.replayer.trace.journal[index])

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether the recorded code took the new branch anywhere in this lane."""
        return self._next_named(self._key(lane), "mark", patch_name(name)) is not None
