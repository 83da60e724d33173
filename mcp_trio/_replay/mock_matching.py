"""Matching a live request with the recorded ones, and the closest of them.

Each recorded request fits once, in a session. Where there are none, because every request stands
for itself, those that were asked may be asked anew, the one first that was asked longest ago.

A redacted recording has tokens where its client said something else. They have the shape of what
they stand for, so there a request also fits, if no other does, whose values differ but not in
shape: letters of the same case, digits and everything else at the same places.

The answers that a retry of a modern client brings are somebody's who is alive: they fit if the same
questions are answered, and each is accepted or declined as it was then.
"""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw

from mcp_trio._journal.conversation import (
    INPUT_RESPONSES,
    Conversation,
    RecordedMessage,
    without_meta,
)
from mcp_trio._journal.diff import JsonDifference, json_differences
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE, PING
from mcp_trio._replay.live_report import value_text

_NEAREST_MAX: Final = 3
_PATHS_MAX: Final = 4

# Clients ask these as often as they like, and get the last recorded answer again.
_REPEATABLE: Final = frozenset({PING, DISCOVER, "logging/setLevel"})
_REPEATABLE_END: Final = "/list"

# Who the client is, and what it can do, is not what the recorded one said of itself.
_ALIKE_WHATEVER_PARAMS: Final = frozenset({INITIALIZE})

_ANSWERS: Final = re.compile(rf"\$\.{INPUT_RESPONSES}([.\[]|$)")


class Miss(msgspec.Struct, frozen=True):
    """A request that was not recorded, or not so often; `nearest` tells recorded ones, in words."""

    method: str
    params: Any
    nearest: tuple[str, ...]

    def __str__(self) -> str:
        """What the client that asked is told."""
        asked = f"{self.method} {value_text(self.params)} was not recorded"
        if not self.nearest:
            return f"{asked}, nor any other {self.method}"
        return f"{asked}; nearest: {'; '.join(self.nearest)}"


class Matching:
    """Finds recorded messages; each fits once, in their order where several do."""

    def __init__(self, recorded: Conversation) -> None:
        self._requests = recorded.of("client", "request")
        self._open_requests = list(self._requests)
        self._asked_requests: list[RecordedMessage] = []
        self._open_notifications = recorded.of("client", "notification")
        always = (_fits, _fits_but_for_answers)
        self._fit = (*always, _fits_in_shape) if recorded.opening.redaction else always

    @property
    def unused(self) -> list[RecordedMessage]:
        """The recorded requests that nobody has asked yet.

        Which era a server is of need not be asked.
        """
        return [each for each in self._open_requests if each.method != DISCOVER]

    def find(self, method: str, params: Raw | None) -> RecordedMessage | None:
        """The first open request of this method and these params, without `_meta`."""
        said = self._first(self._open_requests, method, params)
        if said is not None:
            self._open_requests.remove(said)
            self._asked_requests.append(said)
        return said

    def find_anew(
        self, method: str, params: Raw | None, busy: Container[int]
    ) -> RecordedMessage | None:
        """The request that fits and was asked longest ago; none of those whose index is `busy`."""
        free = [each for each in self._asked_requests if each.index not in busy]
        said = self._first(free, method, params)
        if said is not None:
            self._asked_requests.remove(said)
            self._asked_requests.append(said)
        return said

    def find_again(self, method: str, params: Raw | None) -> RecordedMessage | None:
        """The last request that fits, open or not, if clients ask it as often as they like."""
        if method not in _REPEATABLE and not method.endswith(_REPEATABLE_END):
            return None
        return self._first(self._requests[::-1], method, params)

    def _first(
        self, requests: Sequence[RecordedMessage], method: str, params: Raw | None
    ) -> RecordedMessage | None:
        asked = _asked(params)
        same = [each for each in requests if each.method == method]
        fitting = (each for fits in self._fit for each in same if fits(each, asked))
        return next(fitting, None)

    def find_notification(self, method: str) -> RecordedMessage | None:
        """The first open notification of this method."""
        said = next((each for each in self._open_notifications if each.method == method), None)
        if said is not None:
            self._open_notifications.remove(said)
        return said

    def miss(self, method: str, params: Raw | None) -> Miss:
        """What to say of a request that was not found."""
        asked = _asked(params)
        same = [(_paths(each, asked), each) for each in self._requests if each.method == method]
        same.sort(key=lambda pair: len(pair[0]))
        nearest = tuple(_told(said, paths) for paths, said in same[:_NEAREST_MAX])
        return Miss(method, without_meta(params), nearest)


def _fits(said: RecordedMessage, asked: bytes) -> bool:
    return said.method in _ALIKE_WHATEVER_PARAMS or not _differing(said, asked)


def _fits_but_for_answers(said: RecordedMessage, asked: bytes) -> bool:
    return _has_fitting_answers(said, asked) and not _differing_calls(said, asked)


def _fits_in_shape(said: RecordedMessage, asked: bytes) -> bool:
    places = _differing_calls(said, asked)
    is_same = all(_shape(old) == _shape(new) for _, old, new in places)
    return is_same and _has_fitting_answers(said, asked)


def _differing_calls(said: RecordedMessage, asked: bytes) -> list[JsonDifference]:
    """Where they differ beside their answers."""
    return [each for each in _differing(said, asked) if _ANSWERS.match(each[0]) is None]


def _has_fitting_answers(said: RecordedMessage, asked: bytes) -> bool:
    recorded, live = (_answers(params) for params in (_asked(said.body), asked))
    return recorded.keys() == live.keys() and all(
        _answer_fits(answer, live[key]) for key, answer in recorded.items()
    )


def _answers(asked: bytes) -> Mapping[str, Any]:
    answers = msgspec.json.decode(asked, type=dict[str, Any]).get(INPUT_RESPONSES)
    return cast("Mapping[str, Any]", answers) if isinstance(answers, Mapping) else {}


def _answer_fits(recorded: object, live: object) -> bool:
    """Whether both are of one kind, by their members, and say the same about the question."""
    if not isinstance(recorded, Mapping) or not isinstance(live, Mapping):
        return recorded == live
    old, new = cast("Mapping[str, Any]", recorded), cast("Mapping[str, Any]", live)
    return old.get("action") == new.get("action") and not old.keys().isdisjoint(new)


def _shape(value: Any) -> str:
    text = "" if value is UNSET else msgspec.json.encode(value).decode()
    return "".join(map(_class, text))


def _class(character: str) -> str:
    if character.isdigit():
        return "0"
    if not character.isascii():
        return str(len(character.encode()))
    return "a" if character.islower() else "A" if character.isupper() else character


def _differing(said: RecordedMessage, asked: bytes) -> Sequence[JsonDifference]:
    """Where what a live request asks for differs from what a recorded one did."""
    return json_differences(_asked(said.body), asked)


def _asked(params: Raw | None) -> bytes:
    """What a request asks for; some clients leave out arguments that others say are none."""
    return msgspec.json.encode({"arguments": {}, **without_meta(params)})


def _paths(said: RecordedMessage, asked: bytes) -> Sequence[str]:
    return [path for path, *_ in _differing(said, asked)]


def _told(said: RecordedMessage, paths: Sequence[str]) -> str:
    if not paths:
        return f"record {said.record}, which was asked already"
    more = ", …" if len(paths) > _PATHS_MAX else ""
    return f"record {said.record}, which differs at {', '.join(paths[:_PATHS_MAX])}{more}"
