"""Matching the messages of a live server with the recorded ones."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

import attrs
import msgspec
from msgspec import Raw

from mcp_trio._journal.conversation import (
    CANCELLED,
    INPUT_RESPONSES,
    LISTEN,
    PROGRESS,
    REQUEST_STATE,
    VERSION,
    Conversation,
    InputRequest,
    InputRequired,
    RecordedMessage,
    input_required_of,
    members,
    protocol_version_of,
    reference_of,
    subscription_of,
    token_of,
    without_meta,
)
from mcp_trio._journal.diff import json_differences
from mcp_trio._jsonrpc.messages import (
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    encode_error,
    encode_response,
)
from mcp_trio._protocol.methods import INITIALIZE, PING
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, PROTOCOL_VERSIONS
from mcp_trio._replay.live_messages import (
    answer_frame,
    id_of,
    index_of,
    notification_frame,
    request_frame,
)
from mcp_trio.errors import METHOD_NOT_FOUND

# --------------------
# What a server hands out for the client to use again: cursors, URIs, ids of its own.


# The last step of a path that ends in such a word: nextCursor, uri, sessionId, task_id.
_IS_HANDED_ON: Final = re.compile(r"(^|[._])(id|uri|cursor|token)$|[a-z](Id|Uri|URI|Cursor|Token)$")


@attrs.define
class ForwardedValues:
    """Recorded texts, and what the live server has said instead of each."""

    _instead: dict[str, str] = attrs.field(factory=dict[str, str], init=False)

    def learn(self, recorded: Raw, live: Raw) -> None:
        """Note what stands in the live answer where the recorded one had a text to hand on."""
        for path, old, new in json_differences(bytes(recorded), bytes(live)):
            if isinstance(old, str) and isinstance(new, str) and _IS_HANDED_ON.search(path):
                self._instead[old] = new

    def rewritten(self, value: Any) -> Any:
        """A JSON value, with the live texts where the recorded client used the others verbatim."""
        match value:
            case str():
                return self._instead.get(value, value)
            case [*items]:
                return [self.rewritten(item) for item in items]
            case {**inner}:
                return {name: self.rewritten(item) for name, item in inner.items()}
            case _:
                return value


# --------------------
# A recorded client's retries, for a live server: under its keys, with its state.
#
# What a server calls its questions, and what it knows the retry by, is its own affair. So a
# recorded question is the live one that asks the same, or else the next of its kind.


def retried(params: dict[str, Any], recorded: InputRequired, live: InputRequired) -> dict[str, Any]:
    """The params of a recorded retry as the live server expects them.

    Answers to what it does not ask are left out.
    """
    keys = live_keys(recorded.requests, live.requests)
    said = {
        name: value
        for name, value in params.items()
        if name not in {INPUT_RESPONSES, REQUEST_STATE}
    }
    responses = params.get(INPUT_RESPONSES)
    if isinstance(responses, dict):
        given = cast("dict[str, Any]", responses)
        said[INPUT_RESPONSES] = {keys[key]: given[key] for key in given if key in keys}
    if live.request_state is not None:
        said[REQUEST_STATE] = live.request_state
    return said


def with_recorded_keys(live: Raw, recorded: Raw) -> Raw:
    """A live result with its questions under the keys of the recorded one."""
    was, now = input_required_of(recorded), input_required_of(live)
    if was is None or now is None:
        return live
    keys = live_keys(was.requests, now.requests)
    if all(key == other for key, other in keys.items()):
        return live
    names = {other: key for key, other in keys.items()}
    result = members(live)
    questions: dict[str, Any] = result["inputRequests"]
    result["inputRequests"] = {names.get(key, key): each for key, each in questions.items()}
    return Raw(msgspec.json.encode(result))


def live_keys(
    recorded: Mapping[str, InputRequest], live: Mapping[str, InputRequest]
) -> dict[str, str]:
    """The key of each recorded question, and that of the live one that it is now."""
    found: dict[str, str] = {}
    for is_exact in (True, False):
        for key, question in recorded.items():
            if key not in found:
                rest = {it: other for it, other in live.items() if it not in found.values()}
                match = _match(key, question, rest, is_exact=is_exact)
                if match is not None:
                    found[key] = match
    return found


def _match(
    key: str, question: InputRequest, live: Mapping[str, InputRequest], *, is_exact: bool
) -> str | None:
    if is_exact:
        alike = [it for it, other in live.items() if _words(other) == _words(question)]
    else:
        alike = [it for it, other in live.items() if other.method == question.method]
    same_key = (it for it in alike if it == key)
    return next(chain(same_key, alike), None)


def _words(question: InputRequest) -> bytes:
    params = msgspec.json.decode(question.params)
    return msgspec.json.encode([question.method, params], order="sorted")


# --------------------
# A recorded client's requests under another revision, of the era that they were made in.


AGREED = "$.result.protocolVersion"
"""Where a handshake's answer says the revision."""


def check_protocol_version(recorded: Conversation, protocol_version: str) -> None:
    """Refuse a revision under which a recorded client cannot say what it said.

    Raises:
        ValueError: It is unknown, or of an era in which the client has asked nothing.
    """
    fitting = protocol_versions_of(recorded)
    if protocol_version not in fitting:
        known = ", ".join(fitting) or "none"
        raise ValueError(
            f"what was recorded cannot be said under {protocol_version}, but under: {known}"
        )


def protocol_versions_of(recorded: Conversation) -> Sequence[str]:
    """The revisions of the eras that a recorded client spoke, from the newest."""
    requests = recorded.of("client", "request")
    has_handshake = any(each.method == INITIALIZE for each in requests)
    is_stateless = recorded.stateless_request is not None
    eras = {*([True] if has_handshake else ()), *([False] if is_stateless else ())}
    return [name for name in ALL_PROTOCOL_VERSIONS if PROTOCOL_VERSIONS[name].has_handshake in eras]


def under_protocol_version(
    said: RecordedMessage, params: dict[str, Any], protocol_version: str
) -> dict[str, Any]:
    """The params of a recorded message with another revision, where they say one of its era."""
    has_handshake = PROTOCOL_VERSIONS[protocol_version].has_handshake
    if said.method == INITIALIZE and has_handshake:
        params["protocolVersion"] = protocol_version
    if protocol_version_of(said.body) is not None and not has_handshake:
        params["_meta"][VERSION] = protocol_version
    return params


_DRAWN: Final = "elicitationId"

Answer = Response | ErrorResponse
Key = tuple[str, int | None]
"""What tells notifications apart: the method, and the request that they report on."""


@attrs.define(eq=False)
class ResponseMatcher:
    """The recorded conversation, and what the live server says of it.

    `answers` and `questions` are by the indexes of the recorded requests, `told` are notifications.
    `strangers` are messages that were never recorded: questions, and answers to nothing. `lost` are
    the requests whose answers will not come, with the reasons.
    `protocol_version` is what requests are made under instead of the recorded one.
    """

    recorded: Conversation
    protocol_version: str | None = None
    sent: set[int] = attrs.field(factory=set[int], init=False)
    answers: dict[int, Answer] = attrs.field(factory=dict[int, Answer], init=False)
    questions: dict[int, Request] = attrs.field(factory=dict[int, Request], init=False)
    told: dict[Key, list[Notification]] = attrs.field(
        factory=dict[Key, list[Notification]], init=False
    )
    strangers: list[Message] = attrs.field(factory=list[Message], init=False)
    lost: dict[int, str] = attrs.field(factory=dict[int, str], init=False)
    _forwarded_values: ForwardedValues = attrs.field(factory=ForwardedValues, init=False)
    _open_requests: set[int] = attrs.field(factory=set[int], init=False)
    _open_questions: list[RecordedMessage] = attrs.field(init=False)
    _unreplied: set[int] = attrs.field(factory=set[int], init=False)
    _ordinals: dict[int, int] = attrs.field(init=False)
    _last_of_client: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        ours = (each.index for each in self.recorded.messages if each.sender == "client")
        self._last_of_client = max(ours, default=-1)
        counts: Counter[Key] = Counter()
        self._open_questions = self.recorded.of("server", "request")
        self._ordinals = {}
        for each in self.recorded.of("server", "notification"):
            counts[key_of(each)] += 1
            self._ordinals[each.index] = counts[key_of(each)]

    # What the client says.

    def frame(self, said: RecordedMessage) -> bytes | None:
        """The frame that says to the live server what the recorded client said.

        None if it cannot be said: it is about a question that was not asked, in a round or by a
        request, or was said already.
        """
        if said.index in self.sent:
            return None
        frame = self._live_frame(said)
        if frame is not None:
            self._note_sent(said)
        return frame

    def _note_sent(self, said: RecordedMessage) -> None:
        self.sent.add(said.index)
        if said.request_index is not None and said.is_answer:
            self._unreplied.discard(said.request_index)
        elif said.kind == "request" and self._keeps_waiting(said):
            self._open_requests.add(said.index)

    def _keeps_waiting(self, said: RecordedMessage) -> bool:
        """Whether what the server says may be due to a request: a subscription tells for ever."""
        return said.index not in self.recorded.cancelled and said.method != LISTEN

    def due_replies(self, *, before: int | None = None) -> Iterator[bytes | None]:
        """The recorded replies, at most those `before` an index, to what was asked and waits."""
        replies = [self.recorded.answers.get(index) for index in sorted(self._unreplied)]
        for reply in replies:
            if reply is not None and (before is None or reply.index < before):
                yield self.frame(reply)

    def _live_frame(self, said: RecordedMessage) -> bytes | None:
        match said.kind:
            case "request":
                params = self._params(said)
                return None if params is None else request_frame(said, params)
            case "notification":
                return notification_frame(said, self._rewritten(said), self._live_reference(said))
            case _:
                question = (
                    None if said.request_index is None else self.questions.get(said.request_index)
                )
                return None if question is None else answer_frame(said, question.id)

    def _params(self, said: RecordedMessage) -> dict[str, Any] | None:
        """The params of a request; None for a retry if the live server has not asked."""
        params = self._rewritten(said)
        if said.retry_of is None:
            return params
        asking, recorded = (
            self._live_asking(said.retry_of),
            self.recorded.answers[said.retry_of].body,
        )
        was = None if recorded is None else input_required_of(recorded)
        return None if asking is None or was is None else retried(params, was, asking)

    def _live_asking(self, index: int) -> InputRequired | None:
        """What the live server asks for in its answer to a recorded request."""
        answer = self.answers.get(index)
        return input_required_of(answer.result) if isinstance(answer, Response) else None

    def _live_reference(self, said: RecordedMessage) -> int | str | None:
        """The live id or token of the request that a notification of the client is about."""
        if said.request_index is None:
            return None
        if said.method == CANCELLED:
            return id_of(said.request_index) if said.request_index in self.sent else None
        question = self.questions.get(said.request_index)
        return None if question is None else token_of(question.params)

    def _rewritten(self, said: RecordedMessage) -> dict[str, Any]:
        rewritten: dict[str, Any] = self._forwarded_values.rewritten(members(said.body))
        if self.protocol_version is None:
            return rewritten
        return under_protocol_version(said, rewritten, self.protocol_version)

    # What the server says.

    def hear(self, message: Message) -> bytes | None:
        """Take note of a live message; returns the reply to one that nobody has recorded."""
        match message:
            case Request():
                return self._hear_question(message)
            case Notification():
                self._hear_notification(message)
            case Malformed():
                self.strangers.append(message)
            case _:
                self._hear_answer(message)
        return None

    def _hear_answer(self, message: Answer) -> None:
        index = index_of(message.id)
        if index is None or index not in self.sent or index in self.answers:
            self.strangers.append(message)
            return
        self.answers[index] = message
        self._open_requests.discard(index)
        recorded = self.recorded.answers.get(index)
        if recorded is not None and recorded.body is not None and isinstance(message, Response):
            self._forwarded_values.learn(recorded.body, message.result)

    def _hear_notification(self, message: Notification) -> None:
        self.told.setdefault((message.method, self._about(message)), []).append(message)

    def _about(self, message: Notification) -> int | None:
        """The recorded request that a live notification reports on, or is told for."""
        reference = subscription_of(message.params)
        if reference is None and message.method == PROGRESS:
            reference = reference_of(message)
        index = index_of(reference)
        return index if index in self.sent else None

    def _hear_question(self, message: Request) -> bytes | None:
        index = self._recorded_question(message)
        if index is not None:
            self.questions[index] = message
            self._unreplied.add(index)
            return None
        if message.method == PING:
            return encode_response(message.id, {})
        self.strangers.append(message)
        text = f"the recorded client was never asked {message.method}, or not so often"
        return encode_error(message.id, METHOD_NOT_FOUND, text)

    def _recorded_question(self, message: Request) -> int | None:
        """Take the first one that is still open and the same, or else of the same method."""
        params = _question(message.params)
        alike = [each for each in self._open_questions if each.method == message.method]
        same = (each for each in alike if _question(each.body) == params)
        said = next(chain(same, alike), None)
        if said is None:
            return None
        self._open_questions.remove(said)
        return said.index

    def lose(self, index: int | None, reason: str) -> None:
        """Take note that the answer to a request will not come."""
        if index in self.sent and index not in self.answers:
            self.lost[index] = reason
            self._open_requests.discard(index)

    # What is still to come.

    @property
    def has_heard(self) -> bool:
        """Return whether the live server has said anything."""
        return bool(self.answers or self.questions or self.told or self.strangers)

    def has_come(self, said: RecordedMessage) -> bool:
        """Return whether the live server has said what the recorded one said."""
        if said.is_answer:
            return (
                said.request_index is None
                or said.request_index in self.answers
                or said.request_index in self.lost
            )
        if said.kind == "request":
            return said.index in self.questions
        return len(self.told.get(key_of(said), ())) >= self._ordinals[said.index]

    def may_come(self, said: RecordedMessage) -> bool:
        """Return whether a request is open that such a message could be due to."""
        if said.is_answer:
            return said.request_index not in self.recorded.cancelled
        return bool(self._open_requests)

    def never_comes(self, said: RecordedMessage) -> bool:
        """Return whether it answers what was not said again, or is a farewell."""
        is_unasked = (
            said.is_answer
            and said.request_index is not None
            and said.request_index not in self.sent
        )
        return is_unasked or self.is_final(said)

    def is_final(self, said: RecordedMessage) -> bool:
        """Whether it ends a subscription because the client has left, which this one never does."""
        asked = None if said.request_index is None else self.recorded.messages[said.request_index]
        is_of_subscription = asked is not None and asked.method == LISTEN
        is_end = said.is_answer or said.method == CANCELLED
        return is_of_subscription and is_end and said.index > self._last_of_client


def key_of(said: RecordedMessage) -> Key:
    """What tells a recorded notification apart.

    Which question is taken back does not: those of concurrent requests are often the same.
    """
    is_about = said.method == PROGRESS or subscription_of(said.body) is not None
    return said.method, said.request_index if is_about else None


def _question(params: Raw | None) -> dict[str, Any]:
    """What is asked, without the id that a server has drawn for it."""
    inner = without_meta(params)
    inner.pop(_DRAWN, None)
    return inner
