"""`sweep`: replay a recording's inputs under many schedules, to find handlers that race.

A recording shows one order of events, perhaps a lucky one. A sweep runs the handlers again and
again, each time with another order of tasks and other delays, all from one seed, and compares the
outcome of each request with the recorded one. Unlike a replay, a schedule does not follow the
journal:

- A message of the client arrives at its recorded time, but not before the responses that the client
  had by then.
- Effects, and the client's responses, have their recorded outcomes, after a time that the seed
  decides. A lane's n-th effect of a name gets the n-th recorded outcome. One that was not recorded
  fails: the handler has taken another branch, which the outcome of its request then shows.
- Everything else is as in production: tasks take turns, locks exclude.

The order of tasks is controlled by a flag of Trio that is meant for tests (`seeded_schedule`).

Handlers keep state in modules, so every schedule needs a fresh process or a fresh server. The sweep
of a TARGET runs in a process of its own, which imports everything and then forks once for each
schedule.
"""

import functools
import hashlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import attrs
import msgspec
import trio
from msgspec import UNSET, UnsetType

from mcp_trio._journal.diff import json_differences
from mcp_trio._journal.records import (
    LOCK,
    PATCHED_MARK,
    SLEEP,
    SUSPENDED_MARK,
    CommandBody,
    ErrorBody,
    MarkBody,
    OpenBody,
    Record,
    ValueBody,
    body_bytes,
    decode_body,
    encode_body,
    message_name,
    messages_in,
)
from mcp_trio._journal.redaction import Redactor, redactor_for_replay
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._replay.replay import SilentChannel
from mcp_trio._replay.replayer import unshield
from mcp_trio._replay.trace import (
    MessageFields,
    call_text,
    load_recording,
    message_fields,
    received_data,
    request_lane_name,
    seconds_of,
)
from mcp_trio._server.effects import ReplayLifespan
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.journal import Outcome
from mcp_trio._session.lanes import Lane, operation
from mcp_trio._session.nondeterminism import UntrackedCall, UntrackedCallWatch
from mcp_trio._session.session import Session
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import BlockedInReplay, RecordingError, SweepUnavailable

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

DEFAULT_SCHEDULES: Final = 100

# The number of schedules that run at the same time, each in a process.
_PROCESSES_MAX: Final = os.cpu_count() or 1

# The first differences of a schedule explain the others.
_DIFFERENCES_PER_SCHEDULE_MAX: Final = 3
_TEXT_CHARACTERS_MAX: Final = 300

_NEVER_SECONDS: Final = 1e9

# A task that reads the clock more often than this without waiting counts as looping; then the clock
# advances by so many seconds.
_READINGS_MAX: Final = 5_000
_LOOP_SECONDS: Final = 1.0

# Messages that arrived within this time arrive at once, as in one read.
_BATCH_SECONDS: Final = 1e-3

# The longest delay of an effect or a response, as a multiple of the longest recorded one.
_DELAY_FACTOR: Final = 2.0
_LONGEST_SECONDS_MIN: Final = 1e-3

# The time beyond the recorded duration and all delays after which a missing response never comes.
_EXTRA_SECONDS_MAX: Final = 10.0

# The context's own calls, whose duration is not that of an external event.
_CONTEXT_CALLS: Final = frozenset({SLEEP, LOCK})

# The digit that replaces each character of a secret; valid in texts and in numbers.
_MASK: Final = b"1"


# The recording ------------------------------------------------------------------------------------


@attrs.frozen
class RecordedOutcome:
    """The outcome of an effect or of a reading: kind and body of its record."""

    kind: str
    body: bytes


@attrs.frozen(kw_only=True)
class Input:
    """A message, or a batch, that the client sent.

    Attributes:
        number: The number of its record.
        seconds: The time at which it arrived.
        data: The message.
        responses_before: The number of responses that the client had received by then.
    """

    number: int
    seconds: float
    data: bytes | Oversized
    responses_before: int


@attrs.define
class RequestOutcome:
    """The outcome of a request: what it sent, and the effects of each of its lanes.

    Attributes:
        messages: The notifications, and the response.
        commands: The encoded `CommandBody` of each effect, by lane.
        is_answered: Whether there is a response.
    """

    messages: list[bytes] = attrs.field(factory=list[bytes])
    commands: dict[str, list[bytes]] = attrs.field(factory=dict[str, list[bytes]])
    is_answered: bool = False

    def changed(self, change: Callable[[str, bytes], bytes]) -> "RequestOutcome":
        """Return a copy in which `change`, called with kind and body, replaces each body."""
        return RequestOutcome(
            messages=[change("out", message) for message in self.messages],
            commands={
                lane: [change("cmd", body) for body in bodies]
                for lane, bodies in self.commands.items()
            },
            is_answered=self.is_answered,
        )


@attrs.define
class Outcomes:
    """The outcomes of all requests, by the lanes of their handlers."""

    requests: dict[str, RequestOutcome] = attrs.field(factory=dict[str, RequestOutcome])

    def add_message(self, lane: str, fields: MessageFields, message: bytes) -> None:
        """Add a message that a lane sends; requests to the client do not count."""
        if not fields.is_request:
            outcome = self._of(lane)
            outcome.messages.append(message)
            outcome.is_answered |= fields.is_response

    def add_command(self, lane: str, command: CommandBody) -> None:
        """Add an effect of a lane.

        Timeouts and locks are left out, so that a lock that fixes a race is not a difference.
        """
        if command.name != LOCK:
            self._of(lane).commands.setdefault(lane, []).append(encode_body(command))

    def _of(self, lane: str) -> RequestOutcome:
        return self.requests.setdefault(request_lane_name(lane), RequestOutcome())


@attrs.frozen(kw_only=True)
class SweepTrace:
    """The inputs and outcomes of a recorded session.

    Attributes:
        opening: The body of the `open` record.
        inputs: The client's messages, except its responses.
        answered: The lanes of the requests that were answered, in that order.
        effects: The outcomes of effects, by lane and name, in order.
        values: The values that were read without waiting, likewise.
        responses: The client's responses, by lane and method, in order.
        patches: The code changes whose new branches were taken, each with its lane.
        outcomes: The outcomes of the requests.
        calls: A description of each request, by lane.
        longest_seconds: The longest duration of an effect or of a request to the client.
        seconds: The duration of the session.
        redactor: The redactor of a redacted recording.
    """

    opening: OpenBody
    inputs: Sequence[Input]
    answered: Sequence[str]
    effects: Mapping[tuple[str, str], Sequence[RecordedOutcome]]
    values: Mapping[tuple[str, str], Sequence[RecordedOutcome]]
    responses: Mapping[tuple[str, str], Sequence[bytes]]
    patches: frozenset[tuple[str, Any]]
    outcomes: Outcomes
    calls: Mapping[str, str]
    longest_seconds: float
    seconds: float
    redactor: Redactor | None

    def without_secrets(self, *outcomes: RequestOutcome) -> Sequence[RequestOutcome]:
        """Return the outcomes with every redacted value replaced by the same digits.

        A redacted recording has tokens in the place of secrets. Without its key, a sweep makes
        other tokens for the values that the handlers return. Tokens too short for the redactor to
        search for are kept, because they would be found in unrelated texts, too.
        """
        if self.redactor is None:
            return outcomes
        redacted = [outcome.changed(self.redactor.redact) for outcome in outcomes]
        manifest = self.redactor.manifest()
        tokens = [each for each in manifest["tokens"] if len(each) >= manifest["follow_chars_min"]]
        tokens.sort(key=len, reverse=True)
        found = re.compile("|".join(map(re.escape, tokens)).encode())
        return [
            outcome.changed(lambda _, body: found.sub(lambda token: _MASK * len(token[0]), body))
            for outcome in redacted
        ]


def load_sweep_trace(path: str | os.PathLike[str]) -> SweepTrace:
    """Load the recording of one session of role `server`.

    Raises:
        RecordingError: The file is no such recording.
    """
    loaded = load_recording(path, purpose="a sweep")
    if any(record.channel for record in loaded.journal):
        raise RecordingError("a sweep takes a recording of one session; this one holds several")
    reader = _TraceReader()
    for record in loaded.journal:
        reader.read(record)
    redaction = loaded.opening.redaction
    redactor = None if redaction is None else redactor_for_replay(redaction, loaded.journal)
    return reader.trace(loaded.opening, redactor)


_OutcomesByName: TypeAlias = defaultdict[tuple[str, str], list[RecordedOutcome]]


def _immediate_command(name: str, arguments: bytes) -> CommandBody:
    """Return the command of an effect that a handler performed without waiting."""
    return CommandBody(name=name, arguments=msgspec.json.decode(arguments))


@attrs.define
class _TraceReader:
    """Collects the contents of a `SweepTrace`, record by record."""

    inputs: list[Input] = attrs.field(factory=list[Input])
    effects: _OutcomesByName = attrs.field(factory=lambda: defaultdict(list))
    values: _OutcomesByName = attrs.field(factory=lambda: defaultdict(list))
    responses: dict[tuple[str, str], list[bytes]] = attrs.field(
        factory=dict[tuple[str, str], list[bytes]]
    )
    patches: set[tuple[str, Any]] = attrs.field(factory=set[tuple[str, Any]])
    outcomes: Outcomes = attrs.field(factory=Outcomes)
    calls: dict[str, str] = attrs.field(factory=dict[str, str])
    answered: list[str] = attrs.field(factory=list[str])
    longest_seconds: float = _LONGEST_SECONDS_MIN
    seconds: float = 0.0
    _open_requests: dict[int | str, tuple[str, str, float]] = attrs.field(
        factory=dict[int | str, tuple[str, str, float]]
    )
    _running: dict[str, tuple[CommandBody, float]] = attrs.field(
        factory=dict[str, tuple[CommandBody, float]]
    )

    def read(self, record: Record) -> None:
        self.seconds = seconds_of(record)
        match record.kind:
            case "in":
                self._read_in(record)
            case "out" if record.lane is not None:
                self._read_out(record.lane, body_bytes(record) or b"")
            case "cmd":
                command = decode_body(record, CommandBody)
                self._running[record.lane or ""] = (command, self.seconds)
                self.outcomes.add_command(record.lane or "", command)
            case "res" | "err" | "cxl":
                self._read_outcome(record)
            case "val":
                self._read_value(record)
            case "mark":
                self._read_mark(record)
            case _:
                pass

    def trace(self, opening: OpenBody, redactor: Redactor | None) -> SweepTrace:
        # An effect that still runs at the end of the recording never ends in a schedule.
        for lane, (command, _) in self._running.items():
            self.effects[lane, command.name].append(RecordedOutcome("cxl", b"null"))
        return SweepTrace(
            opening=opening,
            inputs=self.inputs,
            answered=self.answered,
            effects=self.effects,
            values=self.values,
            responses=self.responses,
            patches=frozenset(self.patches),
            outcomes=self.outcomes,
            calls=self.calls,
            longest_seconds=self.longest_seconds,
            seconds=self.seconds,
            redactor=redactor,
        )

    def _note_duration(self, begin: float) -> None:
        self.longest_seconds = max(self.longest_seconds, self.seconds - begin)

    def _read_in(self, record: Record) -> None:
        messages = messages_in(body_bytes(record) or b"")
        are_responses = [self._read_response(message) for message in messages]
        if all(are_responses):
            return
        for position, message in enumerate(messages):
            self.calls[f"r{message_name(record.number, position)}"] = call_text(message)
        self.inputs.append(
            Input(
                number=record.number,
                seconds=self.seconds,
                data=received_data(record),
                responses_before=len(self.answered),
            )
        )

    def _read_response(self, message: bytes) -> bool:
        """Keep a response of the client; return whether the message is one."""
        fields = message_fields(message)
        if isinstance(fields.id, UnsetType) or not fields.is_response:
            return False
        request = self._open_requests.get(fields.id)
        if request is None:
            return False
        lane, method, begin = request
        self.responses.setdefault((lane, method), []).append(message)
        self._note_duration(begin)
        return True

    def _read_out(self, lane: str, message: bytes) -> None:
        fields = message_fields(message)
        self.outcomes.add_message(lane, fields, message)
        if fields.is_request and not isinstance(fields.id, UnsetType):
            self._open_requests[fields.id] = (lane, fields.method, self.seconds)
        elif fields.is_response:
            self.answered.append(lane)

    def _read_outcome(self, record: Record) -> None:
        running = self._running.pop(record.lane or "", None)
        if running is not None:
            command, begin = running
            outcome = RecordedOutcome(record.kind, body_bytes(record) or b"null")
            self.effects[record.lane or "", command.name].append(outcome)
            if command.name not in _CONTEXT_CALLS:
                self._note_duration(begin)

    def _read_value(self, record: Record) -> None:
        body = decode_body(record, ValueBody)
        if isinstance(body.arguments, msgspec.Raw):
            command = _immediate_command(body.name, bytes(body.arguments))
            self.outcomes.add_command(record.lane or "", command)
        if body.error is UNSET:
            value = bytes(body.value) if isinstance(body.value, msgspec.Raw) else b""
            outcome = RecordedOutcome("res", value)
        else:
            outcome = RecordedOutcome("err", encode_body(body.error))
        self.values[record.lane or "", body.name].append(outcome)

    def _read_mark(self, record: Record) -> None:
        body = decode_body(record, MarkBody)
        if body.name == SUSPENDED_MARK:
            raise RecordingError(
                "a sweep does not take a recording with multi round-trip requests: the request"
                " state of a retry is not known before the handler has asked"
            )
        if body.name == PATCHED_MARK:
            self.patches.add((record.lane or "", body.value))


# One schedule: clock, sequencer and inputs --------------------------------------------------------


@attrs.define(eq=False)
class JumpingClock(trio.abc.Clock):
    """A clock that jumps to the next deadline whenever all tasks are blocked.

    Attributes:
        on_stall: A function that is called when no deadline is left, and when tasks loop without
            waiting; once the session `is_over`, also when tasks wait again and again.
        is_held: Whether the clock stands, because a thread runs.
        is_over: Whether the session of the schedule is over.
    """

    on_stall: Callable[[], None] = attrs.field(default=lambda: None)
    is_held: bool = attrs.field(default=False, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _now: float = attrs.field(default=0.0, init=False)
    _readings: int = attrs.field(default=0, init=False)

    def start_clock(self) -> None:
        """Do nothing: the clock starts at zero and only jumps."""

    def current_time(self) -> float:
        """Return the time of the clock."""
        self._readings += 1
        if self._readings > _READINGS_MAX:
            self._readings = 0
            self._now += _LOOP_SECONDS
            self.on_stall()
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump to the deadline and return zero; while a thread runs, wait for ever."""
        if self.is_held and deadline > self._now:
            return _NEVER_SECONDS
        if not self.is_over:
            self._readings = 0
        if deadline == math.inf:
            self.on_stall()
        else:
            self._now = max(self._now, deadline)
        return 0.0


@attrs.define(eq=False)
class SweepSequencer:
    """The `Sequencer` of one schedule, which gives effects their recorded outcomes.

    It `replays`, so that effects ask it for their outcomes; but every step begins at once,
    the first one of a task after other tasks have run.

    Attributes:
        trace: The trace of the recording.
        seed: The seed of the recorded session's random numbers.
        schedule_seed: The seed of the delays.
        clock: The clock of the schedule's Trio run.
        outcomes: The outcomes of the requests so far.
        done: The lanes whose requests have ended.
        delivering: The number of the record of the current input.
        changed: A parking lot that is unparked whenever a request ends.
        deliver_response: A function that delivers a response of the client after a delay.
    """

    trace: SweepTrace
    seed: int | None
    schedule_seed: int
    clock: JumpingClock
    outcomes: Outcomes = attrs.field(factory=Outcomes, init=False)
    done: set[str] = attrs.field(factory=set[str], init=False)
    delivering: int = attrs.field(default=0, init=False)
    changed: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    deliver_response: Callable[[float, bytes], None] = attrs.field(init=False)
    has_lanes: bool = attrs.field(default=True, init=False)
    has_steps: bool = attrs.field(default=True, init=False)
    replays: bool = attrs.field(default=True, init=False)
    _started: dict[str, tuple[float, RecordedOutcome]] = attrs.field(
        factory=dict[str, tuple[float, RecordedOutcome]], init=False
    )
    _counts: Counter[tuple[str, str, str]] = attrs.field(
        factory=Counter[tuple[str, str, str]], init=False
    )
    _begun: set[Lane] = attrs.field(factory=set[Lane], init=False)
    _thread: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(1), init=False)

    # Messages.

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002  of `Sequencer`
        """Return the number of the message's record, by which lanes get their recorded names."""
        return self.delivering

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Keep a message; deliver the recorded response to a request."""
        if lane is None or self.clock.is_over:
            return
        fields = message_fields(message)
        self.outcomes.add_message(lane.name, fields, message)
        if fields.is_response:
            self._finish(lane)
        elif fields.is_request:
            nth = self._count("request", lane, fields.method)
            recorded = self.trace.responses.get((lane.name, fields.method), ())
            if nth < len(recorded):
                response = msgspec.json.decode(recorded[nth], type=dict[str, msgspec.Raw])
                response["id"] = msgspec.Raw(encode_body(fields.id))
                delay = self._delay("request", lane, fields.method, nth)
                self.deliver_response(delay, encode_body(response))

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:  # noqa: ARG002  of `Sequencer`
        """Note the end of a request that was cancelled."""
        self._finish(lane)

    def _finish(self, lane: Lane) -> None:
        if not self.clock.is_over:
            self.done.add(lane.name)
            self.changed.unpark_all()

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
        """Do nothing."""

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:  # noqa: ARG002
        """Return the value."""
        return value

    def shut(self, cause: str) -> None:
        """Do nothing."""

    def flush(self) -> None:
        """Do nothing."""

    def close(self, counts: dict[str, int]) -> None:
        """Do nothing."""

    # Effects and values.

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Start an effect, whose outcome will be the recorded one."""
        command = msgspec.json.decode(body, type=CommandBody)
        self.outcomes.add_command(lane.name, command)
        nth = self._count("effect", lane, command.name)
        recorded = self.trace.effects.get((lane.name, command.name), ())
        seconds = _context_seconds(command)
        if seconds is not None and all(each.kind == "cxl" or each == _DONE for each in recorded):
            outcome = _DONE
        else:
            outcome = recorded[nth] if nth < len(recorded) else _unrecorded(command.name)
            seconds = self._delay("effect", lane, command.name, nth)
        self._started[lane.name] = (seconds, outcome)

    def step(self, lane: Lane) -> Awaitable[None] | None:
        """Let other tasks run before a task starts."""
        if lane in self._begun:
            return None
        self._begun.add(lane)
        return trio.lowlevel.cancel_shielded_checkpoint()  # noqa: ASYNC105  the driver awaits it

    async def turn_to_end(self) -> None:
        """Return at once."""

    async def turn(self, lane: Lane) -> None:
        """Let other tasks run; check for cancellation."""
        with operation(lane):
            await trio.lowlevel.checkpoint()

    async def outcome(self, lane: Lane, *, is_in_thread: bool = False) -> Outcome:  # noqa: ARG002
        """Wait for the end of the effect that was started; return its outcome."""
        seconds, outcome = self._started.pop(lane.name)
        if outcome.kind == "cxl":
            await trio.sleep_forever()
        await trio.sleep(seconds)
        return Outcome("err" if outcome.kind == "err" else "res", outcome.body)

    def read_value(
        self,
        lane: Lane,
        name: str,
        arguments: bytes | None,
        read: Callable[[], Outcome],
    ) -> Outcome:
        """Return the recorded value; call `read` for a clock after its last recorded value."""
        nth = self._count("value", lane, name)
        recorded = self.trace.values.get((lane.name, name), ())
        if arguments is not None:
            self.outcomes.add_command(lane.name, _immediate_command(name, arguments))
        elif nth >= len(recorded):
            return read()
        outcome = recorded[nth] if nth < len(recorded) else _unrecorded(name)
        return Outcome("err" if outcome.kind == "err" else "res", outcome.body)

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether the recorded lane took the new branch."""
        return (lane.name, name) in self.trace.patches

    def withdraw(self, lane: Lane) -> None:
        """Do nothing: a call never waits for a turn."""

    async def let_thread_run(self, name: str) -> None:  # noqa: ARG002  of `Sequencer`
        """Wait until no other thread runs; then stop the clock."""
        await self._thread.acquire()
        self.clock.is_held = True

    def thread_waits(self) -> None:
        """Let the clock and other threads run."""
        self.clock.is_held = False
        self._thread.release()

    def _count(self, category: str, lane: Lane, name: str) -> int:
        """Return how many operations of this name the lane has performed before this one."""
        key = (category, lane.name, name)
        self._counts[key] += 1
        return self._counts[key] - 1

    def _delay(self, category: str, lane: Lane, name: str, nth: int) -> float:
        seed = f"{self.schedule_seed}:{category}:{lane.name}:{name}:{nth}"
        random_source = Random(seed)  # noqa: S311  not for secrets
        return random_source.uniform(0, _DELAY_FACTOR * self.trace.longest_seconds)


_DONE: Final = RecordedOutcome("res", b"null")


def _context_seconds(command: CommandBody) -> float | None:
    """Return the duration of the context's own `sleep` or `lock`; None for users' effects."""
    if command.name == LOCK:
        return 0.0
    if command.name != SLEEP:
        return None
    seconds = command.arguments["seconds"]
    if seconds is None:  # JSON has no infinity
        return math.inf
    return seconds if isinstance(seconds, int | float) else None


def _unrecorded(name: str) -> RecordedOutcome:
    text = f"the effect {name!r} was not performed here when the session was recorded"
    kind = f"{BlockedInReplay.__module__}.{BlockedInReplay.__qualname__}"
    return RecordedOutcome("err", encode_body(ErrorBody(type=kind, text=text, args=[text])))


@attrs.define(eq=False)
class InputDriver:
    """Delivers the client's messages to a session, each after the responses that it followed.

    It waits for a response until the clock stalls, or all recorded delays have passed.
    """

    trace: SweepTrace
    session: Session
    sequencer: SweepSequencer
    nursery: trio.Nursery
    _is_stalled: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.sequencer.deliver_response = self._deliver_response
        self.sequencer.clock.on_stall = self._stall

    async def run(self) -> None:
        """Deliver all inputs; return when each recorded response has come, or never will."""
        trace = self.trace
        delays = sum(map(len, trace.effects.values())) + sum(map(len, trace.responses.values()))
        longest_seconds = trace.longest_seconds * _DELAY_FACTOR * delays
        with trio.move_on_at(trace.seconds + longest_seconds + _EXTRA_SECONDS_MAX):
            received = 0
            for each in trace.inputs:
                await self._wait_answered(trace.answered[received : each.responses_before])
                received = each.responses_before
                if each.seconds > trio.current_time() + _BATCH_SECONDS:
                    await trio.sleep_until(each.seconds)
                self._is_stalled = False
                self.sequencer.delivering = each.number
                self.session.take(each.data)
            await self._wait_answered(trace.answered[received:])

    async def _wait_answered(self, lanes: Sequence[str]) -> None:
        for lane in lanes:
            while not (lane in self.sequencer.done or self._is_stalled):
                await self.sequencer.changed.park()

    def _stall(self) -> None:
        self._is_stalled = True
        self.sequencer.changed.unpark_all()

    def _deliver_response(self, seconds: float, message: bytes) -> None:
        async def deliver() -> None:
            await trio.sleep(seconds)
            self.session.take(message)

        self.nursery.start_soon(deliver)


# Reports ------------------------------------------------------------------------------------------


class ScheduleDifference(msgspec.Struct, kw_only=True, frozen=True):
    """A request whose outcome under the schedule of a seed differs from the recorded one.

    Attributes:
        seed: The seed of the schedule.
        lane: The lane of the request.
        call: The call of the request, such as `tools/call "sell"`.
        path: The message or effect that differs, and the JSON path in it.
        recorded: The recorded value as JSON, cut if it is long.
        swept: The value under the schedule, likewise.
    """

    seed: int
    lane: str
    call: str
    path: str
    recorded: str
    swept: str

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.call} (lane {self.lane}), {self.path}:"
            f" {self.recorded} recorded, {self.swept} now"
        )


class SweepReport(msgspec.Struct, kw_only=True, frozen=True):
    """The result of a sweep.

    Attributes:
        schedules: The number of schedules that were run.
        outcomes: The number of different outcomes among them.
        differences: The differences from the recording, by seed. `sweep(seed=…)` runs the schedule
            of one seed again.
        untracked_calls: The clocks and random sources that handlers used directly in the first
            schedule. No seed decides their results, so they can make schedules differ.
        seconds: The duration of the sweep.
    """

    schedules: int
    outcomes: int
    differences: tuple[ScheduleDifference, ...]
    untracked_calls: tuple[UntrackedCall, ...]
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Return whether every schedule had the recorded outcome."""
        return not self.differences

    @property
    def failing_seeds(self) -> list[int]:
        """The seeds of the schedules that had other outcomes."""
        return sorted({difference.seed for difference in self.differences})


class ScheduleOutcome(msgspec.Struct, kw_only=True, frozen=True):
    """The outcome of one schedule; `digest` is equal for equal outcomes."""

    digest: str
    differences: tuple[ScheduleDifference, ...]
    untracked_calls: tuple[UntrackedCall, ...]


# Sweeps -------------------------------------------------------------------------------------------


def sweep(
    path: str | os.PathLike[str],
    target: "str | Callable[[], Server]",
    *,
    schedules: int = DEFAULT_SCHEDULES,
    seed: int | None = None,
) -> SweepReport:
    """Run the handlers of a server under many schedules, and compare the outcomes of requests.

    A response that may depend on the order of requests differs too; whether such a difference is a
    race has to be judged. Redacted values are not compared.

    Args:
        path: The recording.
        target: A TARGET as on the command line, such as `server.py`, which is swept in a process of
            its own; or a function that returns a new server, with new state, for each schedule.
            Then the sweep runs in this process, in which no other thread may run Trio meanwhile.
        schedules: The number of schedules. Their seeds are 0, 1, 2 and so on.
        seed: Run only the schedule of this seed.

    Raises:
        RecordingError: The file is no recording of one session of role `server`.
        BlockedInReplay: A handler used external I/O without an effect, and was prevented from it,
            in the first schedule. For a TARGET, that is `SweepUnavailable`.
        SweepUnavailable: This version of Trio, or the process, cannot do it; the text says why.
        ValueError: `schedules` is less than 1.
    """
    if isinstance(target, str):
        return _sweep_in_process(path, target, schedules=schedules, seed=seed)
    trace, begin = load_sweep_trace(path), time.perf_counter()
    first, *others = _seeds(schedules, seed)
    outcomes = [_raise_if_blocked(run_schedule(trace, target(), first, is_watched=True))]
    outcomes += [run_schedule(trace, target(), each) for each in others]
    return _report(outcomes, begin)


def sweep_forked(
    path: str | os.PathLike[str],
    server: "Server",
    *,
    schedules: int = DEFAULT_SCHEDULES,
    seed: int | None = None,
) -> SweepReport:
    """Sweep `server` by forking this process, which must have a single thread, per schedule.

    Raises:
        RecordingError, BlockedInReplay, SweepUnavailable, ValueError: As for `sweep`.
    """
    if not hasattr(os, "fork"):
        raise SweepUnavailable("this system cannot fork a process for each schedule")
    trace, begin = load_sweep_trace(path), time.perf_counter()
    first, *others = _seeds(schedules, seed)
    outcomes = [_raise_if_blocked(_fork(trace, server, first, is_watched=True).outcome())]
    running: deque[_Fork] = deque()
    try:
        for each in others:
            if len(running) == _PROCESSES_MAX:
                outcomes.append(running.popleft().outcome())
            running.append(_fork(trace, server, each))
        while running:
            outcomes.append(running.popleft().outcome())
    finally:
        for fork in running:
            fork.kill()
    return _report(outcomes, begin)


def _seeds(schedules: int, seed: int | None) -> Sequence[int]:
    if schedules < 1:
        raise ValueError("a sweep takes one schedule at least")
    return range(schedules) if seed is None else (seed,)


def _raise_if_blocked(outcome: ScheduleOutcome) -> ScheduleOutcome:
    for untracked_call in outcome.untracked_calls:
        if untracked_call.is_outside:
            raise BlockedInReplay(
                f"a sweep cannot run handlers that use external I/O directly: {untracked_call}"
            )
    return outcome


def _report(outcomes: Sequence[ScheduleOutcome], begin: float) -> SweepReport:
    return SweepReport(
        schedules=len(outcomes),
        outcomes=len({outcome.digest for outcome in outcomes}),
        differences=tuple(each for outcome in outcomes for each in outcome.differences),
        untracked_calls=outcomes[0].untracked_calls,
        seconds=time.perf_counter() - begin,
    )


def _sweep_in_process(
    path: str | os.PathLike[str], target: str, *, schedules: int, seed: int | None
) -> SweepReport:
    _seeds(schedules, seed)  # errors of the arguments are raised here
    load_sweep_trace(path)
    command = [sys.executable, "-m", "mcp_trio", "sweep", os.fspath(path), target, "--json"]
    options = ["--schedules", str(schedules)] if seed is None else ["--seed", str(seed)]
    run = subprocess.run([*command, *options], capture_output=True, check=False)
    try:
        return msgspec.json.decode(run.stdout, type=SweepReport)
    except ValueError:
        text = run.stderr.decode(errors="replace").strip()
        raise SweepUnavailable(
            f"the process of the sweep exited with status {run.returncode}: {text}"
        ) from None


@attrs.frozen
class _Fork:
    """A process that runs one schedule and writes the outcome into a pipe."""

    seed: int
    process: int
    pipe: int

    def outcome(self) -> ScheduleOutcome:
        """Wait for the process; return the outcome."""
        with os.fdopen(self.pipe, "rb") as pipe:
            text = pipe.read()
        os.waitpid(self.process, 0)
        try:
            return msgspec.json.decode(text, type=ScheduleOutcome)
        except ValueError:
            reason = text.decode(errors="replace") or "its process ended by itself"
            raise SweepUnavailable(f"schedule {self.seed} could not be run: {reason}") from None

    def kill(self) -> None:
        """Kill the process and wait for its end."""
        os.kill(self.process, signal.SIGKILL)
        os.close(self.pipe)
        os.waitpid(self.process, 0)


def _fork(trace: SweepTrace, server: "Server", seed: int, *, is_watched: bool = False) -> _Fork:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:  # pragma: no cover  a fork does not report its coverage
        _run_fork(
            writing, functools.partial(run_schedule, trace, server, seed, is_watched=is_watched)
        )
    os.close(writing)
    return _Fork(seed, process, reading)


def _run_fork(writing: int, run: Callable[[], ScheduleOutcome]) -> None:  # pragma: no cover
    """Run a schedule, write its outcome and exit; what handlers print goes to stderr."""
    sys.stdout = sys.stderr
    os.dup2(2, 1)
    try:
        text = msgspec.json.encode(run())
    except BaseException as error:
        text = repr(error).encode()
    try:
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(text)
    finally:
        os._exit(0)


def run_schedule(
    trace: SweepTrace, server: "Server", seed: int, *, is_watched: bool = False
) -> ScheduleOutcome:
    """Run one schedule of a new server in this process.

    The watch for untracked calls triples the time.

    Raises:
        SweepUnavailable: This version of Trio has no deterministic schedules.
    """
    clock, untracked_calls = JumpingClock(), dict[UntrackedCall, None]()
    sequencer = SweepSequencer(trace, trace.opening.seed, seed, clock)
    watch = UntrackedCallWatch(
        on_untracked_call=lambda untracked_call: untracked_calls.update({untracked_call: None}),
        blocks=True,
    )
    try:
        with seeded_schedule(seed):
            trio.run(_run, trace, server, sequencer, watch if is_watched else None, clock=clock)
    except RuntimeError as error:
        raise SweepUnavailable(str(error)) from error
    return ScheduleOutcome(
        digest=_digest(sequencer.outcomes),
        differences=tuple(_differences(trace, sequencer, seed))[:_DIFFERENCES_PER_SCHEDULE_MAX],
        untracked_calls=tuple(untracked_calls),
    )


async def _run(
    trace: SweepTrace,
    server: "Server",
    sequencer: SweepSequencer,
    watch: UntrackedCallWatch | None,
) -> None:
    lifespan = ReplayLifespan() if trace.opening.lifespan else None
    session = sessions_of(server).open_session(
        SilentChannel(), sequencer=sequencer, lifespan=lifespan
    )
    clock = sequencer.clock
    with watch or nullcontext():
        async with trio.open_nursery() as nursery:
            await nursery.start(session.run)
            await InputDriver(trace, session, sequencer, nursery).run()
            clock.is_over = True
            clock.on_stall = functools.partial(unshield, trio.lowlevel.current_task())
            nursery.cancel_scope.cancel()


# Comparison ---------------------------------------------------------------------------------------


def _differences(
    trace: SweepTrace, sequencer: SweepSequencer, seed: int
) -> Iterator[ScheduleDifference]:
    for lane, recorded in trace.outcomes.requests.items():
        swept = sequencer.outcomes.requests.get(lane, RequestOutcome())
        was_cancelled = lane in sequencer.done and not swept.is_answered
        if not recorded.is_answered or was_cancelled:
            continue
        for path, left, right in _outcome_differences(*trace.without_secrets(recorded, swept)):
            yield ScheduleDifference(
                seed=seed,
                lane=lane,
                call=trace.calls.get(lane, ""),
                path=path,
                recorded=_value_text(left),
                swept=_value_text(right),
            )


def _outcome_differences(
    recorded: RequestOutcome, swept: RequestOutcome
) -> Iterator[tuple[str, object, object]]:
    """Yield the first difference of each lane's effects, then that of the messages."""
    for lane in recorded.commands | swept.commands:
        left, right = recorded.commands.get(lane, []), swept.commands.get(lane, [])
        yield from _first_difference(f"effect of lane {lane}", left, right)
    if not swept.is_answered:
        yield "answer", recorded.messages[-1], msgspec.UNSET
        return
    yield from _first_difference("", recorded.messages, swept.messages)


def _first_difference(
    name: str, recorded: Sequence[bytes], swept: Sequence[bytes]
) -> Iterator[tuple[str, object, object]]:
    """Yield the first difference of two lists of effects, or of messages if there is no `name`."""
    for left, right in zip(recorded, swept, strict=False):
        for path, old, new in json_differences(left, right)[:1]:
            yield f"{name or message_fields(left).method or 'answer'} {path}", old, new
            return
    if len(recorded) != len(swept):
        common = min(len(recorded), len(swept))
        yield name or "messages", _at(recorded, common), _at(swept, common)


def _at(messages: Sequence[bytes], index: int) -> object:
    return messages[index] if index < len(messages) else UNSET


def _value_text(value: object) -> str:
    if value is msgspec.UNSET:
        return "nothing"
    text = (value if isinstance(value, bytes) else msgspec.json.encode(value)).decode()
    return text if len(text) <= _TEXT_CHARACTERS_MAX else f"{text[:_TEXT_CHARACTERS_MAX]}…"


def _digest(outcomes: Outcomes) -> str:
    contents: list[Any] = [
        (lane, outcome.messages, sorted(outcome.commands.items()))
        for lane, outcome in sorted(outcomes.requests.items())
    ]
    return hashlib.sha256(msgspec.json.encode(contents)).hexdigest()[:16]
