"""What was recorded of a server against what a live one has said."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import UNSET, Raw

from mcp_trio._journal.conversation import (
    REFERENCES,
    SUBSCRIPTION,
    Said,
    members,
    without_meta,
)
from mcp_trio._journal.frames import json_difference
from mcp_trio._protocol import DISCOVER, SERVER_INFO
from mcp_trio._replay.correspondence import Correspondence, Key, key_of
from mcp_trio._replay.driving import Driver
from mcp_trio._replay.ignoring import IgnoreRules
from mcp_trio._replay.inputs_report import InputDifference, InputsReport, What
from mcp_trio._replay.retries import with_recorded_keys
from mcp_trio._wire import (
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
)

_NAMES: Final = ("name", "uri")


def report_of(driver: Driver, rules: IgnoreRules) -> InputsReport:
    """Compare what was recorded with what a driver has heard.

    What a lost server could not say any more is not told one by one: it is one difference.
    """
    played = driver.played
    comparison = _Comparison(played, rules, is_lost=driver.lost is not None)
    if driver.lost is not None:
        comparison.add("lost", "the server", live=driver.lost)
    comparison.answers(driver.late)
    comparison.questions()
    comparison.notifications()
    comparison.strangers()
    said = played.recorded.said
    return InputsReport(
        requests=len(played.recorded.of("client", "request")),
        answered=len(played.answers),
        differences=tuple(comparison.found),
        ignored=comparison.ignored,
        unsent=sum(each.sender == "client" and each.index not in played.sent for each in said),
        unreadable=played.recorded.unreadable,
    )


def title(method: str, params: Raw | None) -> str:
    """What a message is, in words: its method, and the name or URI in it."""
    inner = members(params)
    named = next((inner[name] for name in _NAMES if name in inner), None)
    return method if named is None else f"{method} {named}"


class _Comparison:
    def __init__(self, played: Correspondence, rules: IgnoreRules, *, is_lost: bool) -> None:
        self._played = played
        self._rules = rules
        self._is_lost = is_lost
        self.found: list[InputDifference] = []
        self.ignored = 0

    def answers(self, late: set[int]) -> None:
        recorded = self._played.recorded
        for said in recorded.of("client", "request"):
            answer, live = recorded.answers.get(said.index), self._played.answers.get(said.index)
            about = f"answer to {title(said.method, said.body)}"
            if answer is not None and live is not None:
                self._compare(said, about, _recorded_outcome(answer), _outcome(live, answer))
            elif said.index in self._played.lost:
                self._add_lost(about, said)
            elif answer is not None and not self._played.is_farewell(answer):
                self._add_missing("late" if said.index in late else "missing", about, said)
            elif live is not None and said.index in recorded.cancelled:
                self.add("extra", f"{about}, which was cancelled", said)

    def questions(self) -> None:
        for said in self._played.recorded.of("server", "request"):
            live = self._played.questions.get(said.index)
            about = f"question {said.method}"
            if live is None:
                self._add_missing("missing", about, said)
            else:
                self._compare(said, about, _what_is_said(said), _what_is_said(live))

    def notifications(self) -> None:
        recorded: dict[Key, list[Said]] = {}
        for said in self._played.recorded.of("server", "notification"):
            recorded.setdefault(key_of(said), []).append(said)
        for key in recorded | self._played.told:
            told = self._played.told.get(key, [])
            self._pair(recorded.get(key, []), told, self._about(*key))

    def strangers(self) -> None:
        for message in self._played.strangers:
            self.add("extra", _STRANGERS[type(message)](message))

    def _pair(self, recorded: Sequence[Said], told: Sequence[Notification], about: str) -> None:
        """The same ones are a pair, and the others in their order; what is left is one-sided."""
        rest = [_what_is_said(each) for each in told]
        changed: list[tuple[Said, bytes]] = []
        for said in recorded:
            content = _what_is_said(said)
            if content in rest:
                rest.remove(content)
            else:
                changed.append((said, content))
        for (said, content), live in zip(changed, rest, strict=False):
            self._compare(said, about, content, live)
        for said, _ in changed[len(rest) :]:
            if not self._played.is_farewell(said):
                self._add_missing("missing", about, said)
        for _ in rest[len(changed) :]:
            self.add("extra", about)

    def _about(self, method: str, index: int | None) -> str:
        if index is None:
            return method
        said = self._played.recorded.said[index]
        return f"{method} for {title(said.method, said.body)}"

    def _compare(self, said: Said, about: str, recorded: bytes, live: bytes) -> None:
        for path, old, new in json_difference(recorded, live):
            if self._rules.ignores(path, old, new):
                self.ignored += 1
            else:
                self.add("changed", about, said, path=path, recorded=old, live=new)

    def _add_lost(self, about: str, said: Said) -> None:
        if not self._is_lost:
            self.add("lost", about, said, live=self._played.lost[said.index])

    def _add_missing(self, what: What, about: str, said: Said) -> None:
        if not self._is_lost:
            self.add(what, about, said)

    def add(
        self,
        what: What,
        about: str,
        said: Said | None = None,
        *,
        path: str = "",
        recorded: Any = UNSET,
        live: Any = UNSET,
    ) -> None:
        self.found.append(
            InputDifference(
                what=what,
                about=about,
                record=None if said is None else said.record,
                path=path,
                recorded=recorded,
                live=live,
            )
        )


def _recorded_outcome(answer: Said) -> bytes:
    body = answer.body if answer.kind == "error" else _told_result(answer.body, answer.method)
    return msgspec.json.encode({answer.kind: body})


def _outcome(live: Response | ErrorResponse, recorded: Said) -> bytes:
    if isinstance(live, ErrorResponse):
        return msgspec.json.encode({"error": live.error})
    result = live.result
    if recorded.kind == "result" and recorded.body is not None:
        result = with_recorded_keys(result, recorded.body)
    return msgspec.json.encode({"result": _told_result(result, recorded.method)})


def _told_result(result: Raw | None, method: str) -> Any:
    """A result without what says again who the server is, and which subscription it belongs to.

    Who it is counts in the answer to who asks for that.
    """
    own = {SUBSCRIPTION} if method == DISCOVER else {SUBSCRIPTION, SERVER_INFO}
    if result is None or not any(name.encode() in bytes(result) for name in own):
        return result
    inner = members(result)
    meta = inner.pop("_meta", None)
    if isinstance(meta, dict):
        said = cast("dict[str, Any]", meta)
        meta = {name: value for name, value in said.items() if name not in own}
    return {**inner, "_meta": meta} if meta else inner


def _what_is_said(message: Said | Request | Notification) -> bytes:
    """Its params, without what says how it is asked or which request it is about."""
    body = message.body if isinstance(message, Said) else message.params
    params = without_meta(body)
    params.pop(REFERENCES.get(message.method, ""), None)
    return msgspec.json.encode({"params": params}, order="deterministic")


def _strange_question(message: Request) -> str:
    return f"question {title(message.method, message.params)}"


def _strange_answer(message: Response | ErrorResponse) -> str:
    return f"answer to nothing, with the id {message.id!r}"


def _strange_frame(message: Malformed) -> str:
    return f"frame that is no message: {message.message}"


_STRANGERS: Final[Mapping[type[Message], Callable[[Any], str]]] = {
    Request: _strange_question,
    Response: _strange_answer,
    ErrorResponse: _strange_answer,
    Malformed: _strange_frame,
}
