"""The journal of a session: the order of its events, and the operations of resumable handlers.

The session reports each event to its `Sequencer`, recorded or not: `Unrecorded` ignores them,
`Recording` writes a record for each, and the sequencer of a replay compares each with the record at
its position in the recording.

The journal is also the schedule of the handlers' tasks: `drive` reports each of their steps
(`lanes.py`), and a replay lets a task go on only when the next step in the recording is its own.

- If the first thing that a lane does in a step is recorded, that record has `s`, and stands for the
  step too. All other steps are listed in `step` records.
- A lane that waits in an operation, such as an effect, has no steps. The record at the end of the
  operation has `s` if the lane has waited.
- Tasks of the session itself that only write a record now and then have a lane without steps. They
  await `turn` before the record, which returns when the record is next.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import attrs
import msgspec
import trio

from mcp_trio._journal.records import (
    LIMIT,
    PATCHED_MARK,
    MarkBody,
    ShutBody,
    sender_envelope,
    value_body,
)
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._session.lanes import Lane, lane_in
from mcp_trio.errors import LocalProtocolError

if TYPE_CHECKING:
    from mcp_trio._recorder.writer import Recorder

# Operations of resumable handlers ---------------------------------------------------------------
#
# A resumable handler does not wait for the client's answers. It ends at its questions, and runs
# again from its beginning when the answers have arrived. Its operations are identified by lane and
# ordinal; the lanes are those of the memory, `h` for the handler, `h.0` for its first task, and so
# on. A finished operation is kept with its outcome, and is not run again.
#
# The code may change between two rounds. If an operation has another name or other arguments than
# the one kept, the outcome does not apply: that operation and all later ones are forgotten, and run
# again.

HANDLER: Final = "h"
NOTHING: Final = msgspec.Raw(b"null")
_DIGEST_BYTES: Final = 8

# The keys of questions: q1, q2, and so on.
_QUESTION: Final = "q{}"


class OperationId(msgspec.Struct, frozen=True, array_like=True):
    """The identity of an operation: its lane, ordinal and name, and a digest of its arguments."""

    lane: str
    ordinal: int
    name: str
    digest: str


class FinishedOperation(msgspec.Struct, frozen=True, array_like=True):
    """A finished operation: a value (`res`), an error (`err`) or a cancellation (`cxl`)."""

    id: OperationId
    kind: str
    body: msgspec.Raw = NOTHING


@attrs.define(eq=False, repr=False)
class Memory:
    """The finished operations of one handler, in all its rounds.

    Attributes:
        seed: The seed of the handler's random numbers, the same in each round.
        asked: The number of questions in all rounds.
        has_changed: A function that decides whether an operation with another identity means that
            the code has changed. In the replay of a redacted recording it does not: there the
            arguments differ because of the redaction.
        lane: The lane of the handler.
        scope: The scope of the handler's run, cancelled when the round is over.
        questions: The questions without an answer, with their operations, by key.
        has_asked: An event that is set while there is a question.
    """

    seed: str
    asked: int = 0
    has_changed: Callable[[], bool] = attrs.field(default=lambda: True, kw_only=True)
    lane: Lane = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    questions: dict[str, tuple[OperationId, Any]] = attrs.field(
        factory=dict[str, tuple[OperationId, Any]], init=False
    )
    has_asked: trio.Event = attrs.field(factory=trio.Event, init=False)
    _operations: dict[tuple[str, int], FinishedOperation] = attrs.field(
        factory=dict[tuple[str, int], FinishedOperation], init=False
    )
    _passed: set[tuple[str, int]] = attrs.field(factory=set[tuple[str, int]], init=False)

    def __attrs_post_init__(self) -> None:
        self.lane = Lane(HANDLER, self)

    def remember(self, operations: Iterable[FinishedOperation]) -> None:
        """Add the operations of earlier rounds."""
        for operation in operations:
            self._operations[operation.id.lane, operation.id.ordinal] = operation

    @property
    def operations(self) -> list[FinishedOperation]:
        """The operations for the next round, in order."""
        return list(self._operations.values())

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

    def begin_operation(
        self, name: str, arguments: bytes
    ) -> tuple[OperationId, FinishedOperation | None]:
        """Begin the next operation of the calling task; return its outcome in an earlier round.

        An operation during clean-up, when the round is over, does not count: the next round
        continues at its ordinal.
        """
        lane = self.here()
        digest = hashlib.sha256(arguments).digest()[:_DIGEST_BYTES].hex()
        operation_id = OperationId(lane.name, lane.next_ordinal(), name, digest)
        if self.scope.cancel_called:
            return operation_id, None
        key = (operation_id.lane, operation_id.ordinal)
        earlier = self._operations.get(key)
        if earlier is not None and earlier.id != operation_id and self.has_changed():
            self._forget_from(key)
            earlier = None
        self._passed.add(key)
        return operation_id, earlier

    def _forget_from(self, key: tuple[str, int]) -> None:
        """Forget an operation and the later ones, except those that this round has already used."""
        keys = list(self._operations)
        for later in keys[keys.index(key) :]:
            if later not in self._passed:
                del self._operations[later]

    def keep(self, operation_id: OperationId, kind: str, body: bytes | None) -> None:
        """Keep the outcome of an operation, unless only the end of the round has cancelled it."""
        if kind == "cxl" and self.scope.cancel_called:
            return
        key = (operation_id.lane, operation_id.ordinal)
        if key in self._passed and key not in self._operations:
            self._operations[key] = FinishedOperation(
                operation_id, kind, NOTHING if body is None else msgspec.Raw(body)
            )

    @property
    def is_recalling(self) -> bool:
        """Return whether the next operation of the calling task has an outcome already."""
        lane = self.here()
        return (lane.name, lane.ordinal + 1) in self._operations

    # Changes of the code, and random numbers.

    def takes_patch(self, name: str) -> bool:
        """Return whether the calling task takes the new branch at a change of the code.

        It does if no earlier round has reached this point, or if an earlier round took the new
        branch here. It does not if an earlier round ran the old code here.
        """
        lane = self.here()
        earlier = self._operations.get((lane.name, lane.ordinal + 1))
        if earlier is not None and earlier.id.name != name:
            return False
        operation_id, earlier = self.begin_operation(name, b"")
        if earlier is None:
            self.keep(operation_id, "res", b"true")
        return True

    def randomness(self) -> Random:
        """Return the random number generator of the calling task."""
        lane = self.here()
        if lane.random is None:
            lane.random = Random(f"{self.seed}:{lane.name}")  # noqa: S311 - not for secrets
        return lane.random

    # Questions.

    def ask(self, questions: Mapping[OperationId, Any]) -> None:
        """Add questions to the round, which ends when all tasks have had a chance to ask."""
        for operation_id, question in questions.items():
            self.asked += 1
            self.questions[_QUESTION.format(self.asked)] = (operation_id, question)
        self.has_asked.set()

    def withdraw(self, ids: Iterable[OperationId]) -> None:
        """Remove questions whose task no longer waits, before the round is over."""
        if self.scope.cancel_called:
            return
        gone = set(ids)
        self.questions = {key: it for key, it in self.questions.items() if it[0] not in gone}
        self.has_asked = trio.Event()
        if self.questions:
            self.has_asked.set()


# The order of events ----------------------------------------------------------------------------

_encode = msgspec.json.Encoder().encode
UNSTARTED_BODY: Final = b'"unstarted"'

CANCELLED_MEANWHILE: Final = {"cancelled": True}
"""The envelope of an effect's outcome whose task was cancelled while the effect ran."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of an effect: a result as JSON (`res`), or an encoded `ErrorBody` (`err`)."""

    kind: Literal["res", "err"]
    body: bytes


class Sequencer(Protocol):
    """The receiver of a session's events, in their order.

    Attributes:
        has_lanes: True if operations need a lane, because they are recorded or replayed.
        has_steps: True if the steps of handlers' tasks are journaled.
        replays: True if lanes have to await their turn, and effects have recorded outcomes.
    """

    has_lanes: bool
    has_steps: bool
    replays: bool

    @property
    def seed(self) -> int | None:
        """Return the seed of the handlers' random numbers; None when nothing records."""
        ...

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:
        """Note that the dispatcher has received a message; return the number of its record."""
        ...

    def step(self, lane: Lane) -> Awaitable[None] | None:
        """Note that a lane begins a step, after its start or after a wait outside of operations.

        A replay returns what to await before the step, unless it is the lane's turn already.
        """
        ...

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Note that a lane, or the dispatcher, has given a message to the writer."""
        ...

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Note that a lane starts an effect; `body` is an encoded `CommandBody`."""
        ...

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
        """Note that a lane goes on with a value (`res`), an error (`err`), or cancelled (`cxl`).

        `is_cancelled` is True if an effect ended with a value or an error although its task was
        cancelled meanwhile.
        """
        ...

    def read_value(
        self, lane: Lane, name: str, arguments: bytes | None, read: Callable[[], Outcome]
    ) -> Outcome:
        """Return a value that a lane reads without waiting.

        A live session calls `read`; a replay returns the recorded value. `arguments` is JSON.
        """
        ...

    def patched(self, lane: Lane, name: str) -> bool:
        """Return whether a lane takes the new branch at a change of the code.

        Called once for each lane and name. A live session returns True and records a `mark`. A
        replay returns whether the next record is that mark; if it is not, no ordinal is used.
        """
        ...

    def ended(self, lane: Lane, *, unstarted: bool = False) -> None:
        """Note that a lane ends without a response."""
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

    async def turn_to_end(self) -> None:
        """Wait until the next record is the end of the session; not a checkpoint if it is live."""
        ...

    async def turn(self, lane: Lane) -> None:
        """Wait until the next record is the lane's; not a checkpoint in a live session.

        A lane with steps waits only if its next record says that it has waited, and is cancelled
        here if that record is a cancellation.
        """
        ...

    async def outcome(self, lane: Lane, *, is_in_thread: bool = False) -> Outcome:
        """Wait for the recorded outcome of the effect that the lane has started, in a replay.

        In a thread, an effect that was cancelled never ends: its request does.

        Raises:
            Cancelled: The recorded effect was cancelled.
        """
        ...

    def withdraw(self, lane: Lane) -> None:
        """Let a call of an abandoned thread go on, to be rejected, without its turn."""
        ...

    async def let_thread_run(self, name: str) -> None:
        """Wait until no other handler's thread runs, and then let that of the handler `name` run.

        Called in a replay only, as is `thread_waits`.
        """
        ...

    def thread_waits(self) -> None:
        """Note that the running thread now waits for the Trio loop, or has ended."""
        ...


class _Live:
    """The base of the sequencers of live sessions, in which no lane waits for a turn."""

    replays = False

    async def turn_to_end(self) -> None:
        """Return at once."""

    async def turn(self, lane: Lane) -> None:
        """Return at once."""

    async def outcome(self, lane: Lane, *, is_in_thread: bool = False) -> Outcome:
        """Raise an error: a live session runs the effect."""
        raise NotImplementedError

    def withdraw(self, lane: Lane) -> None:
        """Do nothing: a call never waits for a turn."""

    async def let_thread_run(self, name: str) -> None:
        """Return at once."""

    def thread_waits(self) -> None:
        """Return at once."""


class Unrecorded(_Live):
    """The sequencer of a session that is not recorded."""

    has_lanes = has_steps = False
    seed = None

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:  # noqa: ARG002
        """Return 0: nothing is recorded."""
        return 0

    def step(self, lane: Lane) -> None:
        """Record nothing."""

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Record nothing."""

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Record nothing."""

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
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


class SampledOut(Unrecorded):
    """The sequencer of a session that a policy does not record.

    `is_choice_due` returns whether the policy has to decide again, about a new session.
    """

    def __init__(self, is_choice_due: Callable[[], bool]) -> None:
        self._is_choice_due = is_choice_due

    @property
    def is_due_for_renewal(self) -> bool:
        """Return whether a new session should replace this one."""
        return self._is_choice_due()


UNRECORDED: Final = Unrecorded()
"""The sequencer of all sessions that are not recorded."""


@attrs.define(eq=False, repr=False)
class Recording(_Live):
    """A sequencer that writes a record for each event.

    Attributes:
        recorder: The recorder, which several sessions may share.
        channel: The number of the session in the file.
        has_steps: False for a client, whose recording is never replayed in its own code.
    """

    has_lanes = True

    recorder: "Recorder"
    channel: int = 0
    has_steps: bool = True

    @property
    def is_due_for_renewal(self) -> bool:
        """Return whether a new session, with a new file, should replace this one."""
        return not self.channel and self.recorder.is_nearly_full

    @property
    def seed(self) -> int | None:
        """Return the seed in the `open` record."""
        return self.recorder.seed

    def received(self, message: bytes | Oversized, *, embed: bool) -> int:
        """Record `in`."""
        envelope: dict[str, Any] | None = None
        if type(message) is Oversized:
            envelope = {"discarded": message.size}
            message = message.prefix
            embed = False
        elif type(message) is bytes:
            pass  # Nothing is known about the sender.
        elif (auth := getattr(message, "auth", None)) is not None:
            envelope = sender_envelope(auth)
        elif client := getattr(message, "client", 0):
            envelope = {"client": client}
        return self.recorder.record(
            "in", message, envelope=envelope, embed=embed, channel=self.channel
        )

    def step(self, lane: Lane) -> None:
        """Record the step, unless the next record implies it."""
        self.recorder.step(lane.name, self.channel)

    def sent(self, message: bytes, lane: Lane | None) -> None:
        """Record `out`."""
        self._record("out", message, lane)

    def effect_started(self, lane: Lane, body: bytes) -> None:
        """Record `cmd`."""
        self._record("cmd", body, lane)

    def resumed(
        self, lane: Lane, kind: str, body: bytes | None = None, *, is_cancelled: bool = False
    ) -> None:
        """Record the outcome."""
        envelope: dict[str, Any] | None = CANCELLED_MEANWHILE if is_cancelled else None
        if kind == "cxl" and (limit_us := lane.expired_limit_us) is not None:
            envelope = {LIMIT: limit_us}
        self._record(kind, body, lane, envelope)

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
        self.recorder.flush()

    def close(self, counts: dict[str, int]) -> None:
        """Record that the session has ended, and close its file."""
        self.recorder.end_session(counts, channel=self.channel)

    def _record(
        self,
        kind: str,
        body: bytes | None,
        lane: Lane | None,
        envelope: dict[str, Any] | None = None,
    ) -> None:
        if lane is None:
            self.recorder.record(kind, body, channel=self.channel)
            return
        has_waited, lane.has_waited = lane.has_waited, False
        self.recorder.record(
            kind,
            body,
            lane=lane.name,
            ordinal=lane.next_ordinal(),
            channel=self.channel,
            envelope=envelope,
            has_waited=has_waited,
        )
