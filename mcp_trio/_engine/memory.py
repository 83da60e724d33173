"""What a resumable handler did in earlier rounds, so that a later one does it again without doing.

Such a handler does not wait for the client's answers: it ends at its questions, and begins anew
with the answers. Each operation on its context is a step, known by lane and ordinal, with a lane of
the memory's own order: `h` for the handler, `h.0` for its first task, and so on. A step that ended
is remembered with its outcome, and is not done again.

Code changes. A step that is now another one (another name, or called with something else) cannot
have the outcome that is remembered in its place: that is forgotten, and with it all that happened
after it.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, Final

import attrs
import msgspec
import trio

from mcp_trio._engine.lanes import Lane, lane_in
from mcp_trio._errors import LocalProtocolError

HANDLER: Final = "h"
NOTHING: Final = msgspec.Raw(b"null")
_DIGEST_BYTES: Final = 8

# Keys of questions: the first is q1.
_QUESTION: Final = "q{}"


class Place(msgspec.Struct, frozen=True, array_like=True):
    """An operation of a handler: which, and a digest of what it is called with."""

    lane: str
    ordinal: int
    name: str
    digest: str


class Step(msgspec.Struct, frozen=True, array_like=True):
    """What an operation came to: a value (`res`), an error (`err`), or a cancellation (`cxl`)."""

    place: Place
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
    questions: dict[str, tuple[Place, Any]] = attrs.field(
        factory=dict[str, tuple[Place, Any]], init=False
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

    def come_to(self, name: str, arguments: bytes) -> tuple[Place, Step | None]:
        """The calling task comes to its next operation; what that was, if it is remembered.

        What cleans up when the round is over is no step: where it stands, the next round goes on.
        """
        lane = self.here()
        digest = hashlib.sha256(arguments).digest()[:_DIGEST_BYTES].hex()
        place = Place(lane.name, lane.next_ordinal(), name, digest)
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

    def keep(self, place: Place, kind: str, body: bytes | None) -> None:
        """A step has ended. What only the end of the round has cancelled, has not."""
        if kind == "cxl" and self.scope.cancel_called:
            return
        key = (place.lane, place.ordinal)
        if key in self._passed and key not in self._steps:
            self._steps[key] = Step(place, kind, NOTHING if body is None else msgspec.Raw(body))

    @property
    def is_recalling(self) -> bool:
        """Whether the calling task has not yet come to where it stood in an earlier round."""
        lane = self.here()
        return (lane.name, lane.ordinal + 1) in self._steps

    # Change, and chance.

    def takes_patch(self, name: str) -> bool:
        """Whether the calling task takes the new way at a change of the code.

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

    def ask(self, questions: Mapping[Place, Any]) -> None:
        """Put questions into the round, which is over when everybody has had a turn to ask."""
        for place, question in questions.items():
            self.asked += 1
            self.questions[_QUESTION.format(self.asked)] = (place, question)
        self.has_asked.set()

    def withdraw(self, places: Iterable[Place]) -> None:
        """Who has asked does not wait any more, though the round is not over."""
        if self.scope.cancel_called:
            return
        gone = set(places)
        self.questions = {key: it for key, it in self.questions.items() if it[0] not in gone}
        self.has_asked = trio.Event()
        if self.questions:
            self.has_asked.set()
