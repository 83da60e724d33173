"""The journal of a resumable handler: its finished operations, in all its rounds.

A resumable handler does not wait for the client's answers. Its run ends when it has asked, and it
runs again from its beginning when the answers have arrived. Its operations are identified by lane
and ordinal; the lanes are those of this journal, `h` for the handler, `h.0` for its first task, and
so on. The journal has the outcome of each finished operation, which is not run again.

The code may change between two rounds. If an operation has another name or other arguments than in
the journal, the outcome there does not apply: that operation and all later ones are removed from
the journal, and run again.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import Random
from typing import Any, Final

import attrs
import msgspec
import trio

from mcp_trio._session.lanes import NO_LANE, Lane, lane_in
from mcp_trio.errors import LocalProtocolError

HANDLER_LANE: Final = "h"
STATE_USED: Final = "ctx.state"
_NULL: Final = msgspec.Raw(b"null")
_DIGEST_BYTES: Final = 8


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
    body: msgspec.Raw = _NULL


@attrs.define(eq=False, repr=False)
class HandlerJournal:
    """The finished operations of one handler in all its rounds, and the questions of this round.

    Attributes:
        seed: The seed of the handler's random numbers, the same in each round.
        asked: The number of questions in all rounds.
        code_has_changed: A function that is called when an operation has another identity than in
            the journal. It returns True if the code has changed; in the replay of a redacted
            recording it returns False, because redaction changes the arguments. For a kept call,
            whose effects must not run twice, it raises an error if the code has changed.
        on_begin: A function that is awaited before each effect of the user that must not run twice;
            None where no other instance continues the handler.
        on_finished: A function that is called with each operation that has finished.
        is_kept: Whether the handler is that of a kept call, so that another instance may continue
            it; it runs in one session at a time, and `operations` has only the earlier ones.
        has_used_state: Whether a handler of a kept call has used `ctx.state`.
        lane: The lane of the handler.
        scope: The scope of the handler's run, cancelled when the round is over.
        questions: The questions without an answer, with their operations, by key.
        has_asked: An event that is set while there is a question.
    """

    seed: str
    asked: int = 0
    code_has_changed: Callable[[], bool] = attrs.field(default=lambda: True, kw_only=True)
    on_begin: Callable[[OperationId], Awaitable[None]] | None = attrs.field(
        default=None, init=False
    )
    on_finished: Callable[[FinishedOperation], None] | None = attrs.field(default=None, init=False)
    is_kept: bool = attrs.field(default=False, kw_only=True)
    has_used_state: bool = attrs.field(default=False, init=False)
    lane: Lane = attrs.field(init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    questions: dict[str, tuple[OperationId, Any]] = attrs.field(
        factory=dict[str, tuple[OperationId, Any]], init=False
    )
    has_asked: trio.Event = attrs.field(factory=trio.Event, init=False)
    _operations: dict[tuple[str, int], FinishedOperation] = attrs.field(
        factory=dict[tuple[str, int], FinishedOperation], init=False
    )
    _begun: set[tuple[str, int]] = attrs.field(factory=set[tuple[str, int]], init=False)

    def __attrs_post_init__(self) -> None:
        self.lane = Lane(HANDLER_LANE, self)

    def add_earlier(self, operations: Iterable[FinishedOperation]) -> None:
        """Add the operations of earlier rounds."""
        for operation in operations:
            self._operations[operation.id.lane, operation.id.ordinal] = operation

    @property
    def operations(self) -> list[FinishedOperation]:
        """The operations for the next round, in order."""
        return list(self._operations.values())

    # Operations.

    def use_state(self, encoded: Callable[[], bytes]) -> None:
        """Note, once, that the handler of a kept call uses `ctx.state`, which has this JSON.

        The journal has a digest of the state, not the state. Another instance that continues the
        handler must have the same state.
        """
        if self.is_kept and not self.has_used_state:
            self.has_used_state = True
            operation_id, earlier = self.begin_operation(STATE_USED, encoded())
            if earlier is None:
                self.finish_operation(operation_id, "res", None)

    def current_lane(self) -> Lane:
        """Return the lane of the calling task.

        Raises:
            LocalProtocolError: The task does not descend from the handler.
        """
        lane = lane_in(self)
        if lane is None:
            raise LocalProtocolError(NO_LANE)
        return lane

    def begin_operation(
        self, name: str, arguments: bytes
    ) -> tuple[OperationId, FinishedOperation | None]:
        """Begin the next operation of the calling task; return its outcome in an earlier round.

        An operation during clean-up, when the round is over, does not count: the next round
        continues at its ordinal.
        """
        lane = self.current_lane()
        digest = hashlib.sha256(arguments).digest()[:_DIGEST_BYTES].hex()
        operation_id = OperationId(lane.name, lane.next_ordinal(), name, digest)
        if self.scope.cancel_called:
            return operation_id, None
        key = (operation_id.lane, operation_id.ordinal)
        earlier = self._operations.get(key)
        if earlier is not None and earlier.id != operation_id and self.code_has_changed():
            # Remove the operation and later ones, except those that this round has already begun.
            keys = list(self._operations)
            for later in keys[keys.index(key) :]:
                if later not in self._begun:
                    del self._operations[later]
            earlier = None
        self._begun.add(key)
        return operation_id, earlier

    def finish_operation(self, operation_id: OperationId, kind: str, body: bytes | None) -> None:
        """Add the outcome of an operation, unless only the end of the round has cancelled it."""
        if kind == "cxl" and self.scope.cancel_called:
            return
        key = (operation_id.lane, operation_id.ordinal)
        if key in self._begun and key not in self._operations:
            outcome = _NULL if body is None else msgspec.Raw(body)
            operation = FinishedOperation(operation_id, kind, outcome)
            if self.is_kept:  # There is no next round, and a long call would fill the memory.
                self._begun.discard(key)
            else:
                self._operations[key] = operation
            if self.on_finished is not None:
                self.on_finished(operation)

    @property
    def has_next_outcome(self) -> bool:
        """True if the next operation of the calling task has finished in an earlier round."""
        lane = self.current_lane()
        return (lane.name, lane.ordinal + 1) in self._operations

    # Changes of the code, and random numbers.

    def takes_patch(self, name: str) -> bool:
        """Return whether the calling task takes the new branch at a patch, a change of the code.

        It does if no earlier round has reached this point, or if an earlier round took the new
        branch here. It does not if an earlier round ran the old code here.
        """
        lane = self.current_lane()
        earlier = self._operations.get((lane.name, lane.ordinal + 1))
        if earlier is not None and earlier.id.name != name:
            return False
        operation_id, earlier = self.begin_operation(name, b"")
        if earlier is None:
            self.finish_operation(operation_id, "res", b"true")
        return True

    def randomness(self) -> Random:
        """Return the random number generator of the calling task."""
        return self.current_lane().generator(self.seed)

    # Questions.

    def ask(self, questions: Mapping[OperationId, Any]) -> None:
        """Add questions to the round, which ends when all tasks have had a chance to ask."""
        for operation_id, question in questions.items():
            self.asked += 1
            self.questions[f"q{self.asked}"] = (operation_id, question)
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
