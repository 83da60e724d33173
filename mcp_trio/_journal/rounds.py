"""Rounds: which requests of a modern session are one story.

A server that needs input answers with questions, and mostly with a state. The client makes its
request again, under a new id, with its answers and that state as it was; and so on until the answer
is complete. Nothing but the state ties a request to the one before. Where there is none, the last
request that is the same but for the answers is the one before.
"""

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec
from msgspec import Raw

INPUT_REQUIRED: Final = "input_required"
RESPONSES: Final = "inputResponses"
STATE: Final = "requestState"

# What a retry says beside what it repeats.
_NOT_REPEATED: Final = ("_meta", RESPONSES, STATE)
_MARKS: Final = (RESPONSES.encode(), STATE.encode())


class Question(msgspec.Struct, frozen=True):
    """What a server wants to know: a request without an envelope."""

    method: str = ""
    params: Raw = Raw(b"{}")


class Asking(msgspec.Struct, frozen=True, rename="camel"):
    """A result that asks: its questions by their keys, and the state that has to come back."""

    result_type: str | None = None
    input_requests: Mapping[str, Question] | None = None
    request_state: str | None = None

    @property
    def questions(self) -> Mapping[str, Question]:
        """What is asked; empty if only time is asked for."""
        return self.input_requests or {}


class _Retry(msgspec.Struct, rename="camel"):
    request_state: str | None = None
    input_responses: dict[str, Raw] | None = None


@attrs.frozen(kw_only=True)
class Round:
    """A request as a part of its story.

    `number` counts from 1, `first` is the request that the story begins with, and `before` the one
    whose questions this one answers; None in the first round. Requests are numbers of the caller's.
    """

    request: int
    first: int
    number: int = 1
    before: int | None = None
    _method: str = attrs.field(alias="method")
    _params: Raw | None = attrs.field(alias="params")

    @property
    def call(self) -> bytes:
        """What all rounds of a story have in common, however it is spelled.

        Nothing is in common with params that hold what no value here can be.
        """
        try:
            inner = msgspec.json.decode(self._params or b"{}", type=dict[str, Any])
        except msgspec.ValidationError:
            return bytes(self._params or b"")
        kept = {name: value for name, value in inner.items() if name not in _NOT_REPEATED}
        return msgspec.json.encode([self._method, kept], order="sorted")


@attrs.define
class Stories:
    """Finds the story of each request of a session, which it is told of in order."""

    _by_state: dict[str, Round] = attrs.field(factory=dict[str, Round], init=False)
    _by_call: dict[bytes, Round] = attrs.field(factory=dict[bytes, Round], init=False)

    def begin(self, request: int, method: str, params: Raw | None) -> Round:
        """A request was made: the round that it begins."""
        alone = Round(request=request, first=request, method=method, params=params)
        retry = _retry(params)
        if retry is None:
            return alone
        if retry.request_state is None:
            before = self._by_call.get(alone.call)
        else:
            before = self._by_state.get(retry.request_state)
        if before is None:
            return alone
        return attrs.evolve(
            alone, first=before.first, number=before.number + 1, before=before.request
        )

    def answered(self, round_: Round, result: Raw) -> Asking | None:
        """The request of a round was answered: what that asks for, if it does."""
        asking = asking_of(result)
        if asking is not None and asking.request_state is not None:
            self._by_state[asking.request_state] = round_
        elif asking is not None:
            self._by_call[round_.call] = round_
        return asking


def asking_of(result: Raw) -> Asking | None:
    """What a result asks for; None if it is complete, or asks in no way that is known."""
    if INPUT_REQUIRED.encode() not in bytes(result):
        return None
    try:
        asking = msgspec.json.decode(result, type=Asking)
    except msgspec.ValidationError:
        return None
    return asking if asking.result_type == INPUT_REQUIRED else None


def responses_in(params: Raw | None) -> Mapping[str, Raw]:
    """The answers that a retry brings, by their keys."""
    retry = _retry(params)
    return {} if retry is None else retry.input_responses or {}


def _retry(params: Raw | None) -> _Retry | None:
    """What a request says as a retry; None if it is none."""
    text = b"" if params is None else bytes(params)
    if not any(mark in text for mark in _MARKS):
        return None
    try:
        retry = msgspec.json.decode(text, type=_Retry)
    except msgspec.ValidationError:
        return None
    is_retry = retry.request_state is not None or retry.input_responses is not None
    return retry if is_retry else None
