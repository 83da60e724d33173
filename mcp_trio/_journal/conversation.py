"""What a client and a server said to each other, whoever of them recorded it.

A recording of role `client` has as `out` what others have as `in`; here a message has a sender
instead. Answers, cancellations and progress are tied to the request that they are about, by the
ids and tokens on the wire; and everything that the server said has an *owner*, the message of the
client that brought it about, so that somebody else can say it again at the right time. A modern
client's retries are tied to the requests whose questions they answer.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Literal

import attrs
import msgspec
from msgspec import Raw

from mcp_trio._journal.records import OpenBody, Record, body_of, frame_of, place_of_message
from mcp_trio._jsonrpc.messages import (
    Decoder,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
)
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS

# --------------------
# Rounds: which requests of a modern session are one story.
#
# A server that needs input answers with questions, and mostly with a state. The client makes its
# request again, under a new id, with its answers and that state as it was; and so on until the
# answer is complete. Nothing but the state ties a request to the one before. Where there is none,
# the last request that is the same but for the answers is the one before.


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


Sender = Literal["client", "server"]
MessageKind = Literal["request", "notification", "result", "error"]
Id = int | str
_Members = dict[str, Any]

# Which member of a notification's params names a request, by its id or by its token.
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
REFERENCES: Final[Mapping[str, str]] = {CANCELLED: "requestId", PROGRESS: "progressToken"}

# Which member of `_meta` names the request of the subscription that a message belongs to, and
# which the revision that a modern request is made under.
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
VERSION: Final = "io.modelcontextprotocol/protocolVersion"
LISTEN: Final = "subscriptions/listen"
# What a server says of a subscription as soon as it is asked for.
_AT_ONCE: Final = frozenset({"notifications/subscriptions/acknowledged", PROGRESS})

_NOWHERE: Final = (-1, 0)
_OTHER: Final[Mapping[Sender, Sender]] = {"client": "server", "server": "client"}


class _Meta(msgspec.Struct, rename="camel"):
    progress_token: Id | None = None
    subscription: Id | None = msgspec.field(name=SUBSCRIPTION, default=None)
    version: Any = msgspec.field(name=VERSION, default=None)


class _Asked(msgspec.Struct):
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)


class RecordedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message; those of a batch have the same `record`, and their `place` in it.

    `body` is its params, result or error as JSON, None for absent params. `about` is the index of
    the request that it answers, cancels or reports on; None if it is about none, or about one that
    was never asked. `method` of an answer is that of its request, "" for such a one.
    `owner`, of a server's message, is the index of the client's message that it is due to; None
    before the first. `retries`, of a client's request, is the index of the one whose questions it
    answers; None if it is no retry.
    """

    index: int
    record: int
    place: int
    time_ns: int
    sender: Sender
    kind: MessageKind
    method: str
    id: Id | None = None
    body: Raw | None = None
    about: int | None = None
    owner: int | None = None
    retries: int | None = None

    @property
    def is_answer(self) -> bool:
        """Whether it is a result or an error."""
        return self.kind in {"result", "error"}


@attrs.frozen(kw_only=True)
class Conversation:
    """All messages of one session, in the order in which they passed.

    `unreadable` counts the frames that were no messages.
    """

    opening: OpenBody
    said: tuple[RecordedMessage, ...]
    unreadable: int

    @cached_property
    def answers(self) -> Mapping[int, RecordedMessage]:
        """The answers, by the indexes of their requests."""
        return {each.about: each for each in self.said if each.is_answer and each.about is not None}

    @cached_property
    def cancelled(self) -> frozenset[int]:
        """The indexes of the requests that somebody cancelled."""
        found = (each.about for each in self.said if each.method == CANCELLED)
        return frozenset(about for about in found if about is not None)

    @cached_property
    def stateless_request(self) -> RecordedMessage | None:
        """The last request of a modern client; None if there was only a session of a legacy one."""
        requests = reversed(self.of("client", "request"))
        return next((each for each in requests if protocol_version_of(each.body) is not None), None)

    def of(self, sender: Sender, *kinds: MessageKind) -> list[RecordedMessage]:
        """The messages of these kinds that one side sent."""
        return [each for each in self.said if each.sender == sender and each.kind in kinds]

    def owned_by(self, owner: int | None) -> list[RecordedMessage]:
        """What the server said due to a message of the client; None: before there was any."""
        return self._owned.get(owner, [])

    @cached_property
    def _owned(self) -> Mapping[int | None, list[RecordedMessage]]:
        owned: dict[int | None, list[RecordedMessage]] = {}
        for each in self.said:
            if each.sender == "server":
                owned.setdefault(each.owner, []).append(each)
        return owned


def conversation(records: Iterable[Record], *, channel: int | None = None) -> Conversation:
    """What was said on a channel of a recording; None: on the only one that has frames.

    Raises:
        RecordingError: There are several such channels, or none of that number; or the recording
            does not begin as one.
    """
    kept = [record for record in records if record.kind in {"open", "in", "out"}]
    if not kept or kept[0].kind != "open":
        raise RecordingError("not a recording: its first line is no whole `open` record")
    opening = body_of(kept[0], OpenBody)
    frames = [record for record in kept if record.kind in {"in", "out"}]
    teller = _Teller(role=opening.role)
    for record in _on_channel(frames, channel):
        teller.tell(record)
    said = tuple(teller.said)
    return Conversation(opening=opening, said=said, unreadable=teller.unreadable)


def _on_channel(frames: list[Record], channel: int | None) -> list[Record]:
    channels = sorted({record.channel for record in frames})
    if channel is None and len(channels) > 1:
        numbers = ", ".join(map(str, channels))
        raise RecordingError(f"it holds {len(channels)} sessions: choose a channel of {numbers}")
    if channel is not None and channel not in channels:
        raise RecordingError(f"nothing was said on channel {channel}")
    return [record for record in frames if channel is None or record.channel == channel]


def members(body: Raw | None) -> dict[str, Any]:
    """A body that is an object, as one that may be changed; empty for absent params."""
    return {} if body is None else msgspec.json.decode(body, type=dict[str, Any])


def without_meta(body: Raw | None) -> dict[str, Any]:
    """The members of params without `_meta`, which says how something was asked and not what."""
    inner = members(body)
    inner.pop("_meta", None)
    return inner


def token_of(params: Raw | None) -> Id | None:
    """The progress token of a request; None if it has none."""
    return _meta_of(params).progress_token


def subscription_of(body: Raw | None) -> Id | None:
    """The id of the subscription that params or a result belong to; None if to none."""
    return _meta_of(body).subscription


def reference_of(message: Notification) -> Id | None:
    """How a notification names the request that it is about; None if it names none."""
    name = REFERENCES.get(message.method)
    reference = None if name is None else members(message.params).get(name)
    return reference if type(reference) in {int, str} else None


def protocol_version_of(params: Raw | None) -> str | None:
    """The revision that a modern request is made under; None for any other."""
    version = _meta_of(params).version
    return version if isinstance(version, str) else None


def _meta_of(body: Raw | None) -> _Meta:
    try:
        return msgspec.json.decode(body or b"{}", type=_Asked).meta
    except msgspec.ValidationError:
        return _Meta()


@attrs.define
class _Teller:
    """Listens to one frame after the other, and knows who asked what."""

    role: str = attrs.field(kw_only=True)
    said: list[RecordedMessage] = attrs.field(factory=list[RecordedMessage], init=False)
    unreadable: int = attrs.field(default=0, init=False)
    _decoder: Decoder = attrs.field(
        factory=lambda: Decoder(json_depth_max=DEFAULT_LIMITS.json_depth_max), init=False
    )
    _requests: dict[tuple[str, Sender, Id | None], int] = attrs.field(
        factory=dict[tuple[str, Sender, Id | None], int], init=False
    )
    _in_flight: dict[int, None] = attrs.field(factory=dict[int, None], init=False)
    _by_place: dict[tuple[int, int], int] = attrs.field(
        factory=dict[tuple[int, int], int], init=False
    )
    _last_of_client: int | None = attrs.field(default=None, init=False)
    _stories: Stories = attrs.field(factory=Stories, init=False)
    _rounds: dict[int, Round] = attrs.field(factory=dict[int, Round], init=False)
    _retried_by: dict[int, int] = attrs.field(factory=dict[int, int], init=False)

    def tell(self, record: Record) -> None:
        """Add what the frame of a record says."""
        for place, message in enumerate(self._decoder.messages(frame_of(record) or b"")):
            if isinstance(message, Malformed):
                self.unreadable += 1
            else:
                self._tell(record, place, message)

    def _tell(self, record: Record, place: int, message: Message) -> None:
        sender: Sender = "client" if (record.kind == "in") is (self.role != "client") else "server"
        said = RecordedMessage(
            index=len(self.said),
            record=record.number,
            place=place,
            time_ns=record.time_ns,
            sender=sender,
            **_READ[type(message)](self, message, sender),
        )
        self._note(said)
        if sender == "server":
            said = msgspec.structs.replace(said, owner=self._owner(said, record.lane))
        self.said.append(said)

    def request(self, message: Request, _sender: Sender) -> _Members:
        index = len(self.said)
        round_ = self._rounds[index] = self._stories.begin(index, message.method, message.params)
        if round_.before is not None:
            self._retried_by[round_.before] = index
        return {
            "kind": "request",
            "method": message.method,
            "id": message.id,
            "body": message.params,
            "retries": round_.before,
        }

    def notification(self, message: Notification, sender: Sender) -> _Members:
        return {
            "kind": "notification",
            "method": message.method,
            "body": message.params,
            "about": self._referenced(message, sender),
        }

    def result(self, message: Response, sender: Sender) -> _Members:
        answer = self._answer("result", message, sender, message.result)
        if answer["about"] is not None:
            self._stories.answered(self._rounds[answer["about"]], message.result)
        return answer

    def error(self, message: ErrorResponse, sender: Sender) -> _Members:
        return self._answer("error", message, sender, Raw(msgspec.json.encode(message.error)))

    def _answer(
        self, kind: MessageKind, message: Response | ErrorResponse, sender: Sender, body: Raw
    ) -> _Members:
        about = self._requests.get(("requestId", _OTHER[sender], message.id))
        method = "" if about is None else self.said[about].method
        return {"kind": kind, "method": method, "body": body, "about": about}

    def _referenced(self, message: Notification, sender: Sender) -> int | None:
        """Who cancels asked it; who reports was asked, or was asked for a subscription."""
        subscription = subscription_of(message.params)
        if subscription is not None:
            return self._requests.get(("requestId", _OTHER[sender], subscription))
        reference = reference_of(message)
        if reference is None:
            return None
        asker = sender if message.method == CANCELLED else _OTHER[sender]
        return self._requests.get((REFERENCES[message.method], asker, reference))

    def _note(self, said: RecordedMessage) -> None:
        if said.kind == "request":
            self._requests["requestId", said.sender, said.id] = said.index
            token = token_of(said.body)
            if token is not None:
                self._requests["progressToken", said.sender, token] = said.index
        if said.sender == "client":
            self._by_place[said.record, said.place] = self._last_of_client = said.index
            if said.kind == "request":
                self._in_flight[said.index] = None
        if said.about is not None and (said.is_answer or said.method == CANCELLED):
            self._in_flight.pop(said.about, None)

    def _owner(self, said: RecordedMessage, lane: str | None) -> int | None:
        """Whoever asked for it, else the request that was asked last and is open, else the last.

        What a subscription tells was asked for long ago, and is due to what happens meanwhile; so
        is its end.
        """
        asked = None if said.about is None else self.said[said.about]
        if asked is not None and asked.method == LISTEN and said.method not in _AT_ONCE:
            return self._newest_in_flight()
        if asked is not None:
            return asked.owner if asked.sender == "server" else asked.index
        due = self._by_place.get(place_of_message(lane or "") or _NOWHERE)
        return self._newest_in_flight() if due is None else self._last_round(due)

    def _last_round(self, index: int) -> int:
        """The last of the requests by which a handler was called so far."""
        while index in self._retried_by:
            index = self._retried_by[index]
        return index

    def _newest_in_flight(self) -> int | None:
        """The open request that was asked last, else the last message; no subscription is one."""
        in_flight = (each for each in reversed(self._in_flight) if self.said[each].method != LISTEN)
        return next(in_flight, self._last_of_client)


_READ: Final[Mapping[type[Message], Callable[[_Teller, Any, Sender], _Members]]] = {
    Request: _Teller.request,
    Notification: _Teller.notification,
    Response: _Teller.result,
    ErrorResponse: _Teller.error,
}
