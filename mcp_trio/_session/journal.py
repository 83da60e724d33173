"""The total order of a session: everything that happens to it passes here, in one synchronous step.

The engine calls a sequencer at each of these moments, whether anything is recorded or not. Three
things implement the protocol: `Unrecorded` (nobody looks), `Recording` (a record each), and the
replay's player, which compares each call with the record at its cursor.

A sequencer that `decides_turns` decides when a lane may go on. Before an operation the lane awaits
`turn`, which returns when the lane's next record is at the cursor; whatever the operation then does
up to its record happens in the same step. A live sequencer has no turns: the order in which lanes
come is the order.

What a handler reads without waiting, such as a clock, takes no turn either: a replay finds it by
lane and ordinal, wherever it stands ahead of the cursor.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, ContextVar
from random import Random
from typing import Any, Final, Literal, Protocol

import attrs
import msgspec
import trio

from mcp_trio._journal.records import PATCHED_MARK, MarkBody, ShutBody, value_body
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import DecodedMessage, PrincipalMessage
from mcp_trio._recorder.writer import Recorder
from mcp_trio.errors import LocalProtocolError

# --------------------
# Lanes: who did it.
#
# A request's handler has the lane `r` plus the number of the request's `in` record. A child task
# has its spawner's lane, a dot, and the spawner's spawn count. Both depend on what the code does
# and not on the order in which the scheduler runs tasks, so that the lanes of a replay are those of
# the recording. What the session itself does at moments of its own has a lane named for it.
#
# A handler may hold a session itself: a client that it opened, a server beside it. The tasks of
# that inner session descend from the handler, and so act in its lane too. So a lane belongs to one
# total order, and remembers the lane of the outer session in which it came to be: a callback of the
# inner session has its own lane there, and one below the handler's here.
#
# Spawning is seen through Trio's public `task_spawned` hook. Trio removes an instrument that
# raises, so this one does nothing that can.


START_ORDINAL: Final = 0


class Lane(msgspec.Struct, eq=False):
    """One line of execution; operations on it are numbered from 1, its start is 0.

    `order` is the sequencer that it belongs to; `outer` is what else the task is, elsewhere.
    `random` and `patches` are made at first need: its randomness, and which way it took at each
    change of the code. `is_in_effect` while one that it has begun runs in a thread.
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
        """The number of the operation that happens now."""
        self.ordinal += 1
        return self.ordinal

    def child(self) -> "Lane":
        """The lane of the next task that this one spawns."""
        outer = None if self.outer is None else self.outer.child()
        lane = Lane(f"{self.name}.{self.children}", self.order, outer)
        self.children += 1
        return lane


LANE: Final[ContextVar[Lane | None]] = ContextVar("mcp_trio_lane", default=None)


def enter_lane(lane: Lane) -> None:
    """The calling task is one of `lane` from now on, and remains what it was elsewhere."""
    lane.outer = LANE.get()
    LANE.set(lane)


def lane_in(order: object) -> Lane | None:
    """The calling task's lane in the total order of a sequencer; None if it has none there."""
    lane = LANE.get()
    while lane is not None and lane.order is not order:
        lane = lane.outer
    return lane


def as_spawned(context: Context) -> Context:
    """The context variables of a task that is spawned with these, but begins by other means."""
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
    """From now on each task of this Trio run gets its lane; one instrument a run, whoever asks."""
    if _INSTRUMENT.get() is None:
        instrument = _LaneInstrument()
        trio.lowlevel.add_instrument(instrument)
        _INSTRUMENT.set(instrument)


# --------------------
# What a resumable handler did in earlier rounds, so that a later one does it again without doing.
#
# Such a handler does not wait for the client's answers: it ends at its questions, and begins anew
# with the answers. Each operation on its context is a step, known by lane and ordinal, with a lane
# of the memory's own order: `h` for the handler, `h.0` for its first task, and so on. A step that
# ended is remembered with its outcome, and is not done again.
#
# Code changes. A step that is now another one (another name, or called with something else) cannot
# have the outcome that is remembered in its place: that is forgotten, and with it all that happened
# after it.


HANDLER: Final = "h"
NOTHING: Final = msgspec.Raw(b"null")
_DIGEST_BYTES: Final = 8

# Keys of questions: the first is q1.
_QUESTION: Final = "q{}"


class StepId(msgspec.Struct, frozen=True, array_like=True):
    """An operation of a handler: which, and a digest of what it is called with."""

    lane: str
    ordinal: int
    name: str
    digest: str


class Step(msgspec.Struct, frozen=True, array_like=True):
    """The outcome of an operation: a value (`res`), an error (`err`) or a cancellation (`cxl`)."""

    place: StepId
    kind: str
    body: msgspec.Raw = NOTHING


@attrs.define(eq=False)
class Memory:
    """The steps of one handler, those of its earlier rounds first.

    Attributes:
        seed: What its randomness comes from, in every round the same.
        has_changed: Says whether a step that is another one now is so because the code changed; in
            the replay of a redacted recording it is not.
        scope: Ends the handler's run, when it has asked what nobody has answered.
        questions: What it has asked so, by key.
        has_asked: Is set when there is a question.
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
        """Learn what happened in earlier rounds."""
        for step in steps:
            self._steps[step.place.lane, step.place.ordinal] = step

    @property
    def steps(self) -> list[Step]:
        """All that is to be remembered in the next round, in order."""
        return list(self._steps.values())

    # Steps.

    def here(self) -> Lane:
        """The lane of the calling task.

        Raises:
            LocalProtocolError: No handler started it.
        """
        lane = lane_in(self)
        if lane is None:
            raise LocalProtocolError(
                "this task has no lane: use the context only in tasks that a handler started"
            )
        return lane

    def come_to(self, name: str, arguments: bytes) -> tuple[StepId, Step | None]:
        """The calling task comes to its next operation; what that was, if it is remembered.

        What cleans up when the round is over is no step: where it stands, the next round goes on.
        """
        lane = self.here()
        digest = hashlib.sha256(arguments).digest()[:_DIGEST_BYTES].hex()
        place = StepId(lane.name, lane.next_ordinal(), name, digest)
        if self.scope.cancel_called:
            return place, None
        key = (place.lane, place.ordinal)
        step = self._steps.get(key)
        if step is not None and step.place != place and self.has_changed():
            self._forget_from(key)
            step = None
        self._passed.add(key)
        return place, step

    def _forget_from(self, key: tuple[str, int]) -> None:
        """Forget a step and what came after it, except what this round has already built on."""
        keys = list(self._steps)
        for later in keys[keys.index(key) :]:
            if later not in self._passed:
                del self._steps[later]

    def keep(self, place: StepId, kind: str, body: bytes | None) -> None:
        """A step has ended. What only the end of the round has cancelled, has not."""
        if kind == "cxl" and self.scope.cancel_called:
            return
        key = (place.lane, place.ordinal)
        if key in self._passed and key not in self._steps:
            self._steps[key] = Step(place, kind, NOTHING if body is None else msgspec.Raw(body))

    @property
    def is_recalling(self) -> bool:
        """Return whether the calling task has not reached the point of an earlier round."""
        lane = self.here()
        return (lane.name, lane.ordinal + 1) in self._steps

    # Change, and chance.

    def takes_patch(self, name: str) -> bool:
        """Return whether the calling task takes the new branch at a change of the code.

        It does where no round has been yet, and where it did in an earlier one.
        """
        lane = self.here()
        step = self._steps.get((lane.name, lane.ordinal + 1))
        if step is not None and step.place.name != name:
            return False
        place, step = self.come_to(name, b"")
        if step is None:
            self.keep(place, "res", b"true")
        return True

    def randomness(self) -> Random:
        """The calling task's own generator."""
        lane = self.here()
        if lane.random is None:
            lane.random = Random(f"{self.seed}:{lane.name}")  # noqa: S311  not for secrets
        return lane.random

    # Questions.

    def ask(self, questions: Mapping[StepId, Any]) -> None:
        """Put questions into the round, which is over when everybody has had a turn to ask."""
        for place, question in questions.items():
            self.asked += 1
            self.questions[_QUESTION.format(self.asked)] = (place, question)
        self.has_asked.set()

    def withdraw(self, places: Iterable[StepId]) -> None:
        """Withdraw questions whose task no longer waits, before the round is over."""
        if self.scope.cancel_called:
            return
        gone = set(places)
        self.questions = {key: it for key, it in self.questions.items() if it[0] not in gone}
        self.has_asked = trio.Event()
        if self.questions:
            self.has_asked.set()


_encode = msgspec.json.Encoder().encode
START_BODY: Final = _encode(MarkBody(name="start", value=None))
UNSTARTED_BODY: Final = b'"unstarted"'

# What a record takes besides its body, about.
_RECORD_BYTES: Final = 64


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of an effect: a result as JSON (`res`), or an encoded `ErrorBody` (`err`)."""

    kind: Literal["res", "err"]
    body: bytes


class Sequencer(Protocol):
    """The moments of a session; see the module.

    `seed` is what all randomness of the session's handlers comes from; None when nothing records.
    """

    has_lanes: bool
    decides_turns: bool

    @property
    def seed(self) -> int | None:
        """Return the seed of the handlers' random numbers; None when nothing records."""
        ...

    def clock_ns(self) -> int:
        """Nanoseconds since the session began, as its records are dated."""
        ...

    def took(self, frame: bytes | Oversized, *, embed: bool) -> int:
        """The dispatcher takes a frame; returns the number that names a request's lane."""
        ...

    def started(self, lane: Lane) -> None:
        """A handler begins."""
        ...

    def sent(self, frame: bytes, lane: Lane | None) -> None:
        """A frame is handed to the writer, by a lane or by the dispatcher."""
        ...

    def commanded(self, lane: Lane, body: bytes) -> None:
        """A lane starts an effect; `body` is an encoded `CommandBody`."""
        ...

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """A lane has resumed with a value (`res`), an error (`err`) or a cancellation (`cxl`)."""
        ...

    def recorded(self, lane: Lane) -> bytes | None:
        """The body of the record at the cursor, after `turn` has said `res` or `err`.

        Called only of a sequencer that gates: an effect is not run there, this is its outcome.
        """
        ...

    def valued(
        self, lane: Lane, name: str, arguments: bytes | None, read: Callable[[], Outcome]
    ) -> Outcome:
        """Return what a lane reads without a turn: from `read`, or in a replay from the record.

        `arguments` is JSON. The outcome is that of (lane, next ordinal) in a replay, and `read` is
        not called then.
        """
        ...

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether a lane takes the new branch at a change of the code; once a lane and name.

        True, and a `mark`, in a live session; in a replay whether (lane, next ordinal) is that
        mark: if not, no ordinal is used.
        """
        ...

    def noted(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:
        """Return whether a fact holds that a lane observes; `is_so` is what it observes here.

        A `mark` in a live session, if it is. A replay may come to it in another way, so there it is
        so as well if (lane, next ordinal) is that mark: where it is not, no ordinal is used.
        """
        ...

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """A lane ends without an answer."""
        ...

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:
        """A fact worth a record; returns the value that holds: in a replay, the recorded one."""
        ...

    def shut(self, cause: str) -> None:
        """The dispatcher begins to close."""
        ...

    def flush(self) -> None:
        """Hand the records so far to the system, before the bytes that they explain are sent."""
        ...

    def close(self, counts: dict[str, int]) -> None:
        """The session is over."""
        ...

    async def turn_to_start(self, lane: Lane) -> None:
        """Wait until the lane's first record is at the cursor."""
        ...

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:
        """Wait until the lane's next record is at the cursor; returns its kind.

        `commands` says that the lane wants to start an effect.
        """
        ...

    async def until_cancelled(self, lane: Lane) -> None:
        """Wait for the cancellation that the record at the cursor promises; never returns."""
        ...

    async def let_thread_run(self, name: str) -> None:
        """Wait until no other thread of a handler runs; then that of the handler `name` does.

        Called only of a sequencer that gates, as are `thread_stands` and `turn_in_thread`.
        """
        ...

    async def turn_in_thread(self, lane: Lane) -> None:
        """A thread comes to a call: if its request is over by the next record, wait for that."""
        ...

    def thread_stands(self) -> None:
        """The thread that ran waits for the loop now, or has ended."""
        ...


async def take_turn(sequencer: Sequencer, lane: Lane, *, commands: bool = False) -> None:
    """Wait for the lane's turn to go on; if a cancellation is what comes next, for that."""
    if sequencer.decides_turns and await sequencer.turn(lane, commands=commands) == "cxl":
        await sequencer.until_cancelled(lane)


async def resume(sequencer: Sequencer, lane: Lane, kind: str) -> None:
    """The lane has resumed; a cancellation may have struck before it was its turn."""
    if kind == "cxl" and sequencer.decides_turns:
        await sequencer.turn(lane)
    sequencer.resumed(lane, kind)


class _Ungated:
    """A live session: nobody waits for a turn."""

    decides_turns = False

    async def turn_to_start(self, lane: Lane) -> None:
        """Go on."""

    async def turn(self, lane: Lane, *, commands: bool = False) -> str:  # noqa: ARG002  the protocol's
        """Go on."""
        return ""

    async def until_cancelled(self, lane: Lane) -> None:
        """Go on."""

    def recorded(self, lane: Lane) -> bytes | None:
        """Nothing was."""

    async def let_thread_run(self, name: str) -> None:
        """Go on."""

    async def turn_in_thread(self, lane: Lane) -> None:
        """Go on."""

    def thread_stands(self) -> None:
        """Nobody waits for that."""


class Unrecorded(_Ungated):
    """Nobody looks."""

    has_lanes = False
    seed = None

    def clock_ns(self) -> int:
        """Nothing is dated."""
        return 0

    def took(self, frame: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002 (the same)
        """Nothing is kept, no number needed."""
        return 0

    def started(self, lane: Lane) -> None:
        """Nothing is kept."""

    def sent(self, frame: bytes, lane: Lane | None) -> None:
        """Nothing is kept."""

    def commanded(self, lane: Lane, body: bytes) -> None:
        """Nothing is kept."""

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Nothing is kept."""

    def valued(
        self,
        lane: Lane,  # noqa: ARG002  the protocol's words
        name: str,  # noqa: ARG002
        arguments: bytes | None,  # noqa: ARG002
        read: Callable[[], Outcome],
    ) -> Outcome:
        """Nothing is kept."""
        return read()

    def patched(self, lane: Lane, name: str) -> bool:  # noqa: ARG002  the same
        """Nothing is kept; the code that runs is the newest."""
        return True

    def noted(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:  # noqa: ARG002
        """Nothing is kept."""
        return is_so

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Nothing is kept."""

    def marked(self, name: str, value: Any, lane: Lane | None = None) -> Any:  # noqa: ARG002
        """Nothing is kept."""
        return value

    def shut(self, cause: str) -> None:
        """Nothing is kept."""

    def flush(self) -> None:
        """Nothing is kept."""

    def close(self, counts: dict[str, int]) -> None:
        """Nothing is kept."""


UNRECORDED: Final = Unrecorded()
"""The one of all sessions that nobody records."""


@attrs.define(eq=False)
class Recording(_Ungated):
    """Writes a record for each moment.

    The start of a handler is a record of its own only if something else happens before the lane's
    first record; `_begun` remembers the one that was not written yet, and when it was. Records are
    written out before the bytes that they explain, and early if nothing is sent for a long time.
    """

    has_lanes = True

    recorder: Recorder
    channel: int = 0
    _begun: Lane | None = attrs.field(default=None, init=False)
    _begun_ns: int = attrs.field(default=0, init=False)
    _unwritten_bytes: int = attrs.field(default=0, init=False)

    @property
    def is_nearly_full(self) -> bool:
        """Return whether the recording is full, so that another may follow."""
        return not self.channel and self.recorder.is_nearly_full

    @property
    def seed(self) -> int | None:
        """Return the seed in the `open` record."""
        return self.recorder.seed

    def clock_ns(self) -> int:
        """The recorder's clock."""
        return self.recorder.clock_ns()

    def took(self, frame: bytes | Oversized, *, embed: bool) -> int:
        """Record `in`."""
        if self._begun is not None:
            self._write_start(self._begun)
        envelope: dict[str, Any] | None = None
        if isinstance(frame, Oversized):
            envelope = {"discarded": frame.size}
            frame = frame.prefix
            embed = False
        elif isinstance(frame, PrincipalMessage | DecodedMessage) and frame.principal is not None:
            envelope = {"principal": frame.principal}
        number = self.recorder.record(
            "in", frame, envelope=envelope, embed=embed, channel=self.channel
        )
        self._count(frame)
        return number

    def started(self, lane: Lane) -> None:
        """Record a start mark, unless the very next record is the lane's own.

        Among several sessions that is not known: another one's may come between.
        """
        if self._begun is not None:
            self._write_start(self._begun)
        self._begun = lane
        self._begun_ns = self.recorder.clock_ns()
        if self.channel:
            self._write_start(lane)

    def sent(self, frame: bytes, lane: Lane | None) -> None:
        """Record `out`."""
        self._record("out", frame, lane)

    def commanded(self, lane: Lane, body: bytes) -> None:
        """Record `cmd`."""
        self._record("cmd", body, lane)

    def resumed(self, lane: Lane, kind: str, body: bytes | None = None) -> None:
        """Record the outcome."""
        self._record(kind, body, lane)

    def valued(
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

    def noted(self, lane: Lane, name: str, value: Any, *, is_so: bool) -> bool:
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
        """One write of everything recorded since the last."""
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
