"""The journal of a session: lanes, the steps of resumable handlers, and the order of events.

The session reports each event to its `Sequencer`, recorded or not: `Unrecorded` ignores them,
`Recording` writes a record for each, and the sequencer of a replay compares each with the record at
its position in the recording.

A sequencer that `decides_turns` also decides when a lane may go on; only a replay does. Before an
operation the lane awaits `turn`, which returns when the next record is the lane's. All that the
operation does until its record is written happens in the same synchronous step. In a live session
there are no turns, and the order of events is the order in which the scheduler runs the lanes.

A value that a handler reads without waiting, such as a clock, takes no turn: a replay looks it up
by lane and ordinal, anywhere after its position.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, ContextVar
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import attrs
import msgspec
import trio

from mcp_trio._journal.records import PATCHED_MARK, MarkBody, ShutBody, value_body
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import DecodedMessage, PrincipalMessage
from mcp_trio.errors import LocalProtocolError

if TYPE_CHECKING:
    from mcp_trio._recorder.writer import Recorder

# Lanes ------------------------------------------------------------------------------------------
#
# A request's handler has the lane `r` plus the number of the request's `in` record. A child task
# has the lane of its parent, a dot, and the number of tasks that the parent spawned before. Both
# depend on the code and not on the order in which the scheduler runs tasks, so a replay has the
# same lanes as the recording. A background task of the session has a lane with a name of its own.
#
# A handler may itself open a client or serve a session. The tasks of that inner session descend
# from the handler, so they also act in the handler's lane. A lane therefore belongs to one
# sequencer and refers to the lane of the outer session in which it was created.
#
# Spawning is observed with Trio's public `task_spawned` hook. Trio removes an instrument that
# raises an exception, so this one does nothing that could raise.

START_ORDINAL: Final = 0


class Lane(msgspec.Struct, eq=False):
    """The path of a task within a session; the operations on it are numbered.

    Attributes:
        name: The path, such as `r5.0`.
        order: The sequencer that the lane belongs to.
        outer: The lane of the same task in an outer session.
        ordinal: The number of the last operation; the start of the lane is 0.
        children: The number of tasks that the lane has spawned.
        random: The random number generator of the lane, made on first use.
        patches: The branch that the lane took at each change of the code, made on first use.
        is_in_effect: True while an effect of the lane runs in a thread.
    """

    name: str
    order: object = None
    outer: "Lane | None" = None
    ordinal: int = START_ORDINAL
    children: int = 0
    random: Random | None = None
    patches: dict[str, bool] | None = None
    is_in_effect: bool = False

    def next_ordinal(self) -> int:
        """Count an operation, and return its number."""
        self.ordinal += 1
        return self.ordinal

    def child(self) -> "Lane":
        """Return the lane of the next task that this one spawns."""
        outer = None if self.outer is None else self.outer.child()
        lane = Lane(f"{self.name}.{self.children}", self.order, outer)
        self.children += 1
        return lane


LANE: Final[ContextVar[Lane | None]] = ContextVar("mcp_trio_lane", default=None)


def enter_lane(lane: Lane) -> None:
    """Let the calling task act in `lane`, while keeping its lanes in outer sessions."""
    lane.outer = LANE.get()
    LANE.set(lane)


def lane_in(order: object) -> Lane | None:
    """Return the calling task's lane that belongs to the sequencer `order`, if there is one."""
    lane = LANE.get()
    while lane is not None and lane.order is not order:
        lane = lane.outer
    return lane


def as_spawned(context: Context) -> Context:
    """Return a copy of context variables for a task of the pool, which Trio does not spawn anew."""
    copied = context.copy()
    if LANE in copied:
        _take_child(copied)
    return copied


def _take_child(context: Context) -> None:
    spawner = context.get(LANE)
    if spawner is not None:
        context.run(LANE.set, spawner.child())


class _LaneInstrument(trio.abc.Instrument):
    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        _take_child(task.context)


_INSTRUMENT: Final = trio.lowlevel.RunVar[_LaneInstrument | None]("mcp_trio_lanes", None)


def watch_lanes() -> None:
    """Give each task that this Trio run spawns from now on a lane; repeated calls do nothing."""
    if _INSTRUMENT.get() is None:
        instrument = _LaneInstrument()
        trio.lowlevel.add_instrument(instrument)
        _INSTRUMENT.set(instrument)


# Steps of resumable handlers --------------------------------------------------------------------
#
# A resumable handler does not wait for the client's answers. It ends at its questions, and runs
# again from its beginning when the answers have arrived. Each operation on its context is a step,
# identified by lane and ordinal; the lanes are those of the memory, `h` for the handler, `h.0` for
# its first task, and so on. A finished step is kept with its outcome, and is not run again.
#
# The code may change between two rounds. If a step has another name or other arguments than the one
# kept, the outcome does not apply: that step and all later ones are forgotten, and run again.

HANDLER: Final = "h"
NOTHING: Final = msgspec.Raw(b"null")
_DIGEST_BYTES: Final = 8

# The keys of questions: q1, q2, and so on.
_QUESTION: Final = "q{}"


class StepId(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a step: its lane, ordinal and name, and a digest of its arguments."""

    lane: str
    ordinal: int
    name: str
    digest: str


class Step(msgspec.Struct, frozen=True, array_like=True):
    """A finished step: a value (`res`), an error (`err`) or a cancellation (`cxl`)."""

    id: StepId
    kind: str
    body: msgspec.Raw = NOTHING


@attrs.define(eq=False)
class Memory:
    """The finished steps of one handler, in all its rounds.

    Attributes:
        seed: The seed of the handler's random numbers, the same in each round.
        asked: The number of questions in all rounds.
        has_changed: A function that decides whether a step with another identity means that the
            code has changed. In the replay of a redacted recording it does not: there the arguments
            differ because of the redaction.
        lane: The lane of the handler.
        scope: The scope of the handler's run, cancelled when the round is over.
        questions: The questions without an answer, with their steps, by key.
        has_asked: An event that is set while there is a question.
    """

    seed: str
    asked: int = 0
    has_changed: Callable[[], bool] = attrs.field(default=lambda: True, kw_only=True)
    lane: Lane = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    questions: dict[str, tuple[StepId, Any]] = attrs.field(
        factory=dict[str, tuple[StepId, Any]], init=False
    )
    has_asked: trio.Event = attrs.field(factory=trio.Event, init=False)
    _steps: dict[tuple[str, int], Step] = attrs.field(
        factory=dict[tuple[str, int], Step], init=False
    )
    _passed: set[tuple[str, int]] = attrs.field(factory=set[tuple[str, int]], init=False)

    def __attrs_post_init__(self) -> None:
        self.lane = Lane(HANDLER, self)

    def remember(self, steps: Iterable[Step]) -> None:
        """Add the steps of earlier rounds."""
        for step in steps:
            self._steps[step.id.lane, step.id.ordinal] = step

    @property
    def steps(self) -> list[Step]:
        """The steps for the next round, in order."""
        return list(self._steps.values())

    # Steps.

    def here(self) -> Lane:
        """Return the lane of the calling task.

        Raises:
            LocalProtocolError: The task does not descend from the handler.
        """
        lane = lane_in(self)
        if lane is None:
            raise LocalProtocolError(
                "this task has no lane: use the context only in tasks that a handler started"
            )
        return lane

    def next_step(self, name: str, arguments: bytes) -> tuple[StepId, Step | None]:
        """Begin the next operation of the calling task; return its outcome in an earlier round.

        An operation during clean-up, when the round is over, is not counted as a step: the next
        round continues at its ordinal.
        """
        lane = self.here()
        digest = hashlib.sha256(arguments).digest()[:_DIGEST_BYTES].hex()
        step_id = StepId(lane.name, lane.next_ordinal(), name, digest)
        if self.scope.cancel_called:
            return step_id, None
        key = (step_id.lane, step_id.ordinal)
        step = self._steps.get(key)
        if step is not None and step.id != step_id and self.has_changed():
            self._forget_from(key)
            step = None
        self._passed.add(key)
        return step_id, step

    def _forget_from(self, key: tuple[str, int]) -> None:
        """Forget a step and the later ones, except those that this round has already used."""
        keys = list(self._steps)
        for later in keys[keys.index(key) :]:
            if later not in self._passed:
                del self._steps[later]

    def keep(self, step_id: StepId, kind: str, body: bytes | None) -> None:
        """Keep the outcome of a step, unless only the end of the round has cancelled it."""
        if kind == "cxl" and self.scope.cancel_called:
            return
        key = (step_id.lane, step_id.ordinal)
        if key in self._passed and key not in self._steps:
            self._steps[key] = Step(step_id, kind, NOTHING if body is None else msgspec.Raw(body))

    @property
    def is_recalling(self) -> bool:
        """Return whether the next operation of the calling task has an outcome already."""
        lane = self.here()
        return (lane.name, lane.ordinal + 1) in self._steps

    # Changes of the code, and random numbers.

    def takes_patch(self, name: str) -> bool:
        """Return whether the calling task takes the new branch at a change of the code.

        It does if no earlier round has come to this point, and if an earlier round did so.
        """
        lane = self.here()
        step = self._steps.get((lane.name, lane.ordinal + 1))
        if step is not None and step.id.name != name:
            return False
        step_id, step = self.next_step(name, b"")
        if step is None:
            self.keep(step_id, "res", b"true")
        return True

    def randomness(self) -> Random:
        """Return the random number generator of the calling task."""
        lane = self.here()
        if lane.random is None:
            lane.random = Random(f"{self.seed}:{lane.name}")  # noqa: S311 - not for secrets
        return lane.random

    # Questions.

    def ask(self, questions: Mapping[StepId, Any]) -> None:
        """Add questions to the round, which ends when all tasks have had a chance to ask."""
        for step_id, question in questions.items():
            self.asked += 1
            self.questions[_QUESTION.format(self.asked)] = (step_id, question)
        self.has_asked.set()

    def withdraw(self, step_ids: Iterable[StepId]) -> None:
        """Remove questions whose task no longer waits, before the round is over."""
        if self.scope.cancel_called:
            return
        gone = set(step_ids)
        self.questions = {key: it for key, it in self.questions.items() if it[0] not in gone}
        self.has_asked = trio.Event()
        if self.questions:
            self.has_asked.set()


# The order of events ----------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
START_BODY: Final = _encode(MarkBody(name="start", value=None))
UNSTARTED_BODY: Final = b'"unstarted"'

# The approximate size of a record without its body.
_RECORD_BYTES: Final = 64


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of an effect: a result as JSON (`res`), or an encoded `ErrorBody` (`err`)."""

    kind: Literal["res", "err"]
    body: bytes


class Sequencer(Protocol):
    """The receiver of a session's events, in their order.

    Attributes:
        has_lanes: True if operations need a lane, because they are recorded or replayed.
        decides_turns: True if lanes have to await their turn, in a replay.
    """

    has_lanes: bool
    decides_turns: bool

    @property
    def seed(self) -> int | None:
        """Return the seed of the handlers' random numbers; None when nothing records."""
        ...

    def clock_ns(self) -> int:
        """Return the nanoseconds since the session began, the time of a record written now."""
        ...

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:
        """Note that the dispatcher has received a message; return the number of its record."""
        ...

    def started(self, lane: Lane) -> None:
        """Note that a handler starts."""
        ...

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Note that a lane, or the dispatcher, has given a message to the writer."""
        ...

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Note that a lane starts an effect; `body` is an encoded `CommandBody`."""
        ...

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Note that a lane goes on with a value (`res`), an error (`err`), or cancelled (`cxl`)."""
        ...

    def recorded(self, lane: Lane) -> bytes | None:
        """Return the body of the current record, after `turn` has returned `res` or `err`.

        Called in a replay only: it is the outcome of an effect, which a replay does not run.
        """
        ...

    def read_value(
        self, lane: Lane, name: str, arguments: bytes | None, read: Callable[[], Outcome]
    ) -> Outcome:
        """Return a value that a lane reads without a turn.

        A live session calls `read`. A replay does not: it returns the recorded value of the lane
        and its next ordinal. `arguments` is JSON.
        """
        ...

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether a lane takes the new branch at a change of the code.

        Called once for each lane and name. A live session returns True and records a `mark`. A
        replay returns whether the record of the lane's next ordinal is that mark; if it is not, no
        ordinal is used.
        """
        ...

    def observed(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:
        """Return whether a fact holds that a lane observes; `is_so` is the lane's observation.

        A live session records a `mark` if it does. A replay may reach this point in another way, so
        there the fact also holds if the record of the lane's next ordinal is that mark; if it is
        not, no ordinal is used.
        """
        ...

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Note that a lane ends without an answer."""
        ...

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """Note a named fact; return its value, which is the recorded value in a replay."""
        ...

    def shut(self, cause: str) -> None:
        """Note that the dispatcher begins to close."""
        ...

    def flush(self) -> None:
        """Write the records so far to the file, before the bytes that they explain are sent."""
        ...

    def close(self, counts: dict[str, int]) -> None:
        """Note the end of the session, with the number of messages and errors."""
        ...

    async def turn_to_start(self, lane: Lane) -> None:
        """Wait until the next record is the first record of the lane."""
        ...

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:
        """Wait until the next record is the lane's; return the kind of the record.

        `commands` is True if the lane is about to start an effect.
        """
        ...

    async def until_cancelled(self, lane: Lane) -> None:
        """Wait for the cancellation that the current record reports; never return."""
        ...

    async def let_thread_run(self, name: str) -> None:
        """Wait until no other handler's thread runs, and then let that of the handler `name` run.

        Called in a replay only, as are `thread_waits` and `turn_in_thread`.
        """
        ...

    async def turn_in_thread(self, lane: Lane) -> None:
        """Let a thread make a call; if its request ends with the next record, wait for that."""
        ...

    def thread_waits(self) -> None:
        """Note that the running thread now waits for the Trio loop, or has ended."""
        ...


async def take_turn(sequencer: Sequencer, lane: Lane, *, commands: bool = False) -> None:
    """Wait for the lane's turn, or for its cancellation if that is the next record."""
    if sequencer.decides_turns and await sequencer.turn(lane, commands=commands) == "cxl":
        await sequencer.until_cancelled(lane)


async def resume(sequencer: Sequencer, lane: Lane, kind: str) -> None:
    """Note that a lane goes on."""
    # A cancellation may have reached the lane before its turn.
    if kind == "cxl" and sequencer.decides_turns:
        await sequencer.turn(lane)
    sequencer.resumed(lane, kind)


class _Live:
    """The base of the sequencers of live sessions, in which no lane waits for a turn."""

    decides_turns = False

    async def turn_to_start(self, lane: Lane) -> None:
        """Return at once."""

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:  # noqa: ARG002
        """Return at once."""
        return ""

    async def until_cancelled(self, lane: Lane) -> None:
        """Return at once."""

    def recorded(self, lane: Lane) -> bytes | None:
        """Return None: a live session runs the effect."""

    async def let_thread_run(self, name: str) -> None:
        """Return at once."""

    async def turn_in_thread(self, lane: Lane) -> None:
        """Return at once."""

    def thread_waits(self) -> None:
        """Return at once."""


class Unrecorded(_Live):
    """The sequencer of a session that is not recorded."""

    has_lanes = False
    seed = None

    def clock_ns(self) -> int:
        """Return 0: nothing has a time."""
        return 0

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002
        """Return 0: nothing is recorded."""
        return 0

    def started(self, lane: Lane) -> None:
        """Record nothing."""

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Record nothing."""

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Record nothing."""

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Record nothing."""

    def read_value(
        self,
        lane: Lane,  # noqa: ARG002
        name: str,  # noqa: ARG002
        arguments: bytes | None,  # noqa: ARG002
        read: Callable[[], Outcome],
    ) -> Outcome:
        """Record nothing."""
        return read()

    def patched(self, lane: Lane, name: str) -> bool:  # noqa: ARG002
        """Return True: the code that runs is the newest."""
        return True

    def observed(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:  # noqa: ARG002
        """Record nothing."""
        return is_so

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Record nothing."""

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:  # noqa: ARG002
        """Record nothing."""
        return value

    def shut(self, cause: str) -> None:
        """Record nothing."""

    def flush(self) -> None:
        """Record nothing."""

    def close(self, counts: dict[str, int]) -> None:
        """Record nothing."""


UNRECORDED: Final = Unrecorded()
"""The sequencer of all sessions that are not recorded."""


@attrs.define(eq=False)
class Recording(_Live):
    """A sequencer that writes a record for each event.

    The start of a handler has a record of its own only if the next record is not the lane's first
    one; `_begun` is the lane whose start has not been recorded. Records are written to the file
    before the bytes that they explain are sent, or when many have accumulated.
    """

    has_lanes = True

    recorder: "Recorder"
    channel: int = 0
    _begun: Lane | None = attrs.field(default=None, init=False)
    _begun_ns: int = attrs.field(default=0, init=False)
    _unwritten_bytes: int = attrs.field(default=0, init=False)

    @property
    def is_nearly_full(self) -> bool:
        """Return whether the recording is nearly full, so that another file should follow."""
        return not self.channel and self.recorder.is_nearly_full

    @property
    def seed(self) -> int | None:
        """Return the seed in the `open` record."""
        return self.recorder.seed

    def clock_ns(self) -> int:
        """Return the time of the recorder's clock."""
        return self.recorder.clock_ns()

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:
        """Record `in`."""
        if self._begun is not None:
            self._write_start(self._begun)
        envelope: dict[str, Any] | None = None
        if isinstance(message, Oversized):
            envelope = {"discarded": message.size}
            message = message.prefix
            embed = False
        elif (
            isinstance(message, PrincipalMessage | DecodedMessage) and message.principal is not None
        ):
            envelope = {"principal": message.principal}
        number = self.recorder.record(
            "in", message, envelope=envelope, embed=embed, channel=self.channel
        )
        self._count(message)
        return number

    def started(self, lane: Lane) -> None:
        """Record a start mark, unless the next record is the lane's own."""
        if self._begun is not None:
            self._write_start(self._begun)
        self._begun = lane
        self._begun_ns = self.recorder.clock_ns()
        # Several sessions share the recording: a record of another session may come next.
        if self.channel:
            self._write_start(lane)

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Record `out`."""
        self._record("out", message, lane)

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Record `cmd`."""
        self._record("cmd", body, lane)

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Record the outcome."""
        self._record(kind, body, lane)

    def read_value(
        self, lane: Lane, name: str, arguments: bytes | None, read: Callable[[], Outcome]
    ) -> Outcome:
        """Record `val`."""
        outcome = read()
        is_error = outcome.kind == "err"
        self._record("val", value_body(name, arguments, outcome.body, is_error=is_error), lane)
        return outcome

    def patched(self, lane: Lane, name: str) -> bool:
        """Record `mark`."""
        self.marked(PATCHED_MARK, name, lane)
        return True

    def observed(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:
        """Record `mark`."""
        if is_so:
            self.marked(name, value, lane)
        return is_so

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Record `cxl`."""
        self._record("cxl", UNSTARTED_BODY if unstarted else None, lane)

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """Record `mark`."""
        self._record("mark", _encode(MarkBody(name=name, value=value)), lane)
        return value

    def shut(self, cause: str) -> None:
        """Record `shut`."""
        self._record("shut", _encode(ShutBody(cause=cause)), None)

    def flush(self) -> None:
        """Write the records since the last flush to the file."""
        self._unwritten_bytes = 0
        self.recorder.flush()

    def close(self, counts: dict[str, int]) -> None:
        """Record that the session has ended, and close its file."""
        if self._begun is not None:
            self._write_start(self._begun)
        self.recorder.close(counts, channel=self.channel)

    def _record(self, kind: str, body: bytes | None, lane: Lane | None) -> None:
        if self._begun is lane:
            self._begun = None
        elif self._begun is not None:
            self._write_start(self._begun)
        if lane is None:
            self.recorder.record(kind, body, channel=self.channel)
        else:
            self.recorder.record(
                kind, body, lane=lane.name, ordinal=lane.next_ordinal(), channel=self.channel
            )
        self._count(body)

    def _count(self, body: bytes | None) -> None:
        self._unwritten_bytes += _RECORD_BYTES + len(body or b"")
        if self._unwritten_bytes > self.recorder.limits.recording.unwritten_bytes_max:
            self.flush()

    def _write_start(self, begun: Lane) -> None:
        self._begun = None
        self.recorder.record(
            "mark",
            START_BODY,
            lane=begun.name,
            ordinal=START_ORDINAL,
            time_ns=self._begun_ns,
            channel=self.channel,
        )
