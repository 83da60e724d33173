"""The messages that a client and a server exchanged, read from a recording of either side.

A recording made by a client has as `out` what a recording made by a server has as `in`; here each
message has a sender instead. Responses, cancellations and progress notifications are tied to their
requests by the ids and tokens on the wire. Each message of the server also has a cause: the client
message that it results from, so that a replay can send it at the right time. A stateless client's
retries are tied to the requests whose input requests they answer.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Literal, cast

import attrs
import msgspec
from msgspec import Raw

from mcp_trio._journal.records import (
    OpenBody,
    Record,
    body_bytes,
    decode_body,
    message_position,
    sender_of,
)
from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._jsonrpc.messages import (
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    decoder_for,
)
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS

Sender = Literal["client", "server"]
MessageKind = Literal["request", "notification", "result", "error"]
Id = int | str

INPUT_REQUIRED: Final = "input_required"
INPUT_RESPONSES: Final = "inputResponses"
REQUEST_STATE: Final = "requestState"

# The members of params that differ between a request and its retries.
_CHANGED_MEMBERS: Final = ("_meta", INPUT_RESPONSES, REQUEST_STATE)
# Params with neither of these texts are not decoded: they are not those of a retry.
_RETRY_MEMBERS: Final = (INPUT_RESPONSES.encode(), REQUEST_STATE.encode())

# The member of a notification's params that names a request, by its id or by its progress token.
CANCELLED: Final = "notifications/cancelled"
PROGRESS: Final = "notifications/progress"
REFERENCES: Final[Mapping[str, str]] = {CANCELLED: "requestId", PROGRESS: "progressToken"}

# The members of `_meta` that name the subscription a message belongs to, and the protocol version
# of a stateless request.
SUBSCRIPTION_ID: Final = "io.modelcontextprotocol/subscriptionId"
PROTOCOL_VERSION: Final = "io.modelcontextprotocol/protocolVersion"
LISTEN: Final = "subscriptions/listen"
# The notifications about a subscription that its request causes, and not a later change.
_ACKNOWLEDGEMENTS: Final = frozenset({"notifications/subscriptions/acknowledged", PROGRESS})

_OPPOSITE: Final[Mapping[Sender, Sender]] = {"client": "server", "server": "client"}


# Multi round-trip requests ------------------------------------------------------------------------


class InputRequest(msgspec.Struct, frozen=True):
    """A request for input in an `InputRequiredResult`: a method and its params, without an id."""

    method: str = ""
    params: Raw = Raw(b"{}")


class InputRequired(msgspec.Struct, frozen=True, rename="camel"):
    """A result with which a server asks for input: the input requests and the request state."""

    result_type: str | None = None
    input_requests: Mapping[str, InputRequest] | None = None
    request_state: str | None = None

    @property
    def requests(self) -> Mapping[str, InputRequest]:
        """The input requests by their keys; empty if the server only asks to be called again."""
        return self.input_requests or {}


class _RetryParams(msgspec.Struct, rename="camel"):
    request_state: str | None = None
    input_responses: dict[str, Raw] | None = None


@attrs.frozen(kw_only=True)
class RoundTrip:
    """One request of a multi round-trip request.

    `number` counts from 1. `first` is the request of the first round trip. `retry_of` is the
    request whose input requests this one answers; None in the first round trip. The caller of
    `RoundTripTracker` chooses the numbers that identify requests.
    """

    request: int
    first: int
    number: int = 1
    retry_of: int | None = None
    _method: str = attrs.field(alias="method")
    _params: Raw | None = attrs.field(alias="params")

    @property
    def call(self) -> bytes:
        """The method and the params that all round trips repeat, as JSON with sorted members.

        Params that cannot be decoded are returned as they are, and so equal no others.
        """
        try:
            params = msgspec.json.decode(self._params or b"{}", type=dict[str, Any])
        except msgspec.ValidationError:
            return bytes(self._params or b"")
        repeated = {name: value for name, value in params.items() if name not in _CHANGED_MEMBERS}
        return msgspec.json.encode([self._method, repeated], order="sorted")


class RoundTripTracker:
    """A tracker that finds, for each request of a session, the request that it retries.

    A retry has a new id. It retries the request whose result had the request state that the retry
    returns. A retry without a state retries the latest request with the same method and params
    whose result required input without a state.

    `results_max` is the number of results of each kind that are kept for later retries; None for
    all of them.
    """

    def __init__(self, results_max: int | None = None) -> None:
        self._results_max = results_max
        self._by_state: dict[str, RoundTrip] = {}
        self._by_call: dict[bytes, RoundTrip] = {}

    def add_request(self, request: int, method: str, params: Raw | None) -> RoundTrip:
        """Return the round trip that a request begins; requests are added in wire order."""
        first_trip = RoundTrip(request=request, first=request, method=method, params=params)
        retry = _retry_params(params)
        if retry is None:
            return first_trip
        if retry.request_state is None:
            earlier = self._by_call.get(first_trip.call)
        else:
            earlier = self._by_state.get(retry.request_state)
        if earlier is None:
            return first_trip
        return attrs.evolve(
            first_trip, first=earlier.first, number=earlier.number + 1, retry_of=earlier.request
        )

    def add_result(self, round_trip: RoundTrip, result: Raw) -> InputRequired | None:
        """Note the result of a round trip; return the input that it asks for, None if complete."""
        input_required = input_required_of(result)
        if input_required is not None and input_required.request_state is not None:
            self._by_state[input_required.request_state] = round_trip
            keep_latest(self._by_state, self._results_max)
        elif input_required is not None:
            self._by_call[round_trip.call] = round_trip
            keep_latest(self._by_call, self._results_max)
        return input_required


def keep_latest(entries: dict[Any, Any], entries_max: int | None) -> None:
    """Remove the oldest entry of a dict that has just become longer than this, if it is limited."""
    if entries_max is not None and len(entries) > entries_max:
        del entries[next(iter(entries))]


def input_required_of(result: Raw) -> InputRequired | None:
    """Return the input that a result asks for; None if it is complete or cannot be decoded."""
    if INPUT_REQUIRED.encode() not in bytes(result):
        return None
    try:
        decoded = msgspec.json.decode(result, type=InputRequired)
    except msgspec.ValidationError:
        return None
    return decoded if decoded.result_type == INPUT_REQUIRED else None


def input_responses_in(params: Raw | None) -> Mapping[str, Raw]:
    """Return the input responses of a retry by their keys; empty for any other request."""
    retry = _retry_params(params)
    return {} if retry is None else retry.input_responses or {}


def _retry_params(params: Raw | None) -> _RetryParams | None:
    """Return the retry members of params; None if the request is no retry."""
    text = b"" if params is None else bytes(params)
    if not any(name in text for name in _RETRY_MEMBERS):
        return None
    try:
        retry = msgspec.json.decode(text, type=_RetryParams)
    except msgspec.ValidationError:
        return None
    is_retry = retry.request_state is not None or retry.input_responses is not None
    return retry if is_retry else None


# Params and results -------------------------------------------------------------------------------


class _Meta(msgspec.Struct, rename="camel"):
    progress_token: Id | None = None
    subscription: Id | None = msgspec.field(name=SUBSCRIPTION_ID, default=None)
    version: Any = msgspec.field(name=PROTOCOL_VERSION, default=None)


class _WithMeta(msgspec.Struct):
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)


def members_of(body: object) -> dict[str, Any]:
    """Return the members of a JSON object, decoded or not; empty for anything else."""
    if isinstance(body, dict):
        return cast("dict[str, Any]", body)
    if not isinstance(body, bytes | Raw):
        return {}
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (ValueError, RecursionError):
        return {}


def without_meta(body: Raw | None) -> dict[str, Any]:
    """Return the members of params without `_meta`, which does not change what is called."""
    inner = members_of(body)
    inner.pop("_meta", None)
    return inner


def progress_token_of(params: Raw | None) -> Id | None:
    """Return the progress token of a request; None if it has none."""
    return _meta_of(params).progress_token


def subscription_of(body: Raw | None) -> Id | None:
    """Return the id of the subscription that params or a result belong to; None without one."""
    return _meta_of(body).subscription


def reference_of(message: Notification) -> Id | None:
    """Return the id or the token by which a notification names a request; None if it names none."""
    name = REFERENCES.get(message.method)
    reference = None if name is None else members_of(message.params).get(name)
    return reference if type(reference) in {int, str} else None


def protocol_version_of(params: Raw | None) -> str | None:
    """Return the protocol version of a stateless request; None for any other message."""
    version = _meta_of(params).version
    return version if isinstance(version, str) else None


def _meta_of(body: Raw | None) -> _Meta:
    try:
        return msgspec.json.decode(body or b"{}", type=_WithMeta).meta
    except msgspec.ValidationError:
        return _Meta()


# The conversation ---------------------------------------------------------------------------------


class RecordedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was received or sent while a session was recorded.

    Attributes:
        index: Its position in the conversation.
        record: The number of its record; all messages of a batch have the same.
        position: Its position in the batch; 0 for a single message.
        time_ns: When it was recorded, in nanoseconds since the recording began.
        sender: The side that sent it.
        kind: Request, notification, result or error.
        method: Its method; of a response that of its request, "" if there is none.
        id: The id of a request.
        body: Its params, result or error as JSON; None for absent params.
        request_index: The index of the request to which it responds, which it cancels or reports
            on; None if it refers to no request, or to one that was never sent.
        cause_index: For a message of the server, the index of the client message that it results
            from; None before the first.
        retry_of: For a client's request, the index of the request whose input requests it answers;
            None if it is no retry.
        auth: The facts about the user of the client, if a server has recorded them.
    """

    index: int
    record: int
    position: int
    time_ns: int
    sender: Sender
    kind: MessageKind
    method: str
    id: Id | None = None
    body: Raw | None = None
    request_index: int | None = None
    cause_index: int | None = None
    retry_of: int | None = None
    auth: AuthInfo | None = None

    @property
    def is_response(self) -> bool:
        """True for a result or an error."""
        return self.kind in {"result", "error"}


@attrs.frozen(kw_only=True)
class Conversation:
    """All messages of one session, in the order in which they were recorded.

    `unreadable` counts what was received or sent and is no JSON-RPC message.
    """

    opening: OpenBody
    messages: tuple[RecordedMessage, ...]
    unreadable: int

    @cached_property
    def responses(self) -> Mapping[int, RecordedMessage]:
        """The responses by the indexes of their requests."""
        return {
            each.request_index: each
            for each in self.messages
            if each.is_response and each.request_index is not None
        }

    @cached_property
    def cancelled(self) -> frozenset[int]:
        """The indexes of the requests that were cancelled."""
        found = (each.request_index for each in self.messages if each.method == CANCELLED)
        return frozenset(index for index in found if index is not None)

    def lacks_response(self, request: RecordedMessage) -> bool:
        """Return whether the recording ends before the response to a request.

        A request that was cancelled has none, and a subscription need not end.
        """
        is_open = request.index not in self.responses and request.index not in self.cancelled
        return is_open and request.method != LISTEN

    @cached_property
    def stateless_request(self) -> RecordedMessage | None:
        """The last request of a stateless client; None if all of the session was legacy."""
        requests = reversed(self.of("client", "request"))
        return next((each for each in requests if protocol_version_of(each.body) is not None), None)

    def of(self, sender: Sender, *kinds: MessageKind) -> list[RecordedMessage]:
        """Return the messages of these kinds that one side sent."""
        return [each for each in self.messages if each.sender == sender and each.kind in kinds]

    @cached_property
    def caused(self) -> Mapping[int | None, list[RecordedMessage]]:
        """The server's messages by the indexes of the client messages that they result from.

        Under None are the server's messages before the first client message.
        """
        caused: dict[int | None, list[RecordedMessage]] = {}
        for each in self.messages:
            if each.sender == "server":
                caused.setdefault(each.cause_index, []).append(each)
        return caused


def conversation(records: Iterable[Record], *, channel: int | None = None) -> Conversation:
    """Return the messages on a channel of a recording; without one, on the only one with messages.

    Raises:
        RecordingError: Several channels have messages, or the given one has none; or the records
            do not begin with an `open` record.
    """
    kept = [record for record in records if record.kind in {"open", "in", "out"}]
    if not kept or kept[0].kind != "open":
        raise RecordingError("not a recording: its first line is not a complete `open` record")
    opening = decode_body(kept[0], OpenBody)
    exchanged = [record for record in kept if record.kind != "open"]
    channels = sorted({record.channel for record in exchanged})
    if channel is None and len(channels) > 1:
        numbers = ", ".join(map(str, channels))
        raise RecordingError(
            f"the recording holds {len(channels)} sessions: choose one of the channels {numbers}"
        )
    if channel is not None and channel not in channels:
        numbers = ", ".join(map(str, channels)) or "none"
        raise RecordingError(
            f"the recording has no messages on channel {channel}; channels with messages: {numbers}"
        )
    builder = _ConversationBuilder(opening.role)
    for record in exchanged:
        if channel is None or record.channel == channel:
            builder.add(record)
    messages = tuple(builder.messages)
    return Conversation(opening=opening, messages=messages, unreadable=builder.unreadable)


class _ConversationBuilder:
    """A builder that takes `in` and `out` records in order and relates their messages."""

    def __init__(self, role: str) -> None:
        self.messages: list[RecordedMessage] = []
        self.unreadable = 0
        self._role = role
        self._decoder = decoder_for(DEFAULT_LIMITS.messages)
        # The indexes of requests, by the member that refers to them, their sender, and id or token.
        self._requests: dict[tuple[str, Sender, Id | None], int] = {}
        # The indexes of the client's open requests, the newest last.
        self._in_flight: dict[int, None] = {}
        # The indexes of client messages, by the number of the record and the position in its batch.
        self._by_position: dict[tuple[int, int], int] = {}
        self._last_of_client: int | None = None
        self._tracker = RoundTripTracker()
        self._round_trips: dict[int, RoundTrip] = {}
        self._retried_by: dict[int, int] = {}

    def add(self, record: Record) -> None:
        """Add the messages of a record."""
        is_of_client = (record.kind == "out") is (self._role == "client")
        sender: Sender = "client" if is_of_client else "server"
        messages = self._decoder.messages(body_bytes(record) or b"")
        try:
            auth = sender_of(record.envelope or {})
        except msgspec.ValidationError:
            auth = None  # the recording is damaged
        for position, message in enumerate(messages):
            if isinstance(message, Malformed):
                self.unreadable += 1
                continue
            added = RecordedMessage(
                index=len(self.messages),
                record=record.number,
                position=position,
                time_ns=record.time_ns,
                sender=sender,
                auth=auth,
                **self._fields_of(message, sender),
            )
            if added.kind == "request":
                self._requests["requestId", sender, added.id] = added.index
                token = progress_token_of(added.body)
                if token is not None:
                    self._requests["progressToken", sender, token] = added.index
            if sender == "client":
                self._by_position[record.number, position] = added.index
                self._last_of_client = added.index
                if added.kind == "request":
                    self._in_flight[added.index] = None
            is_over = added.is_response or added.method == CANCELLED
            if added.request_index is not None and is_over:
                self._in_flight.pop(added.request_index, None)
            if sender == "server":
                cause_index = self._cause_of(added, record.lane)
                added = msgspec.structs.replace(added, cause_index=cause_index)
            self.messages.append(added)

    def _fields_of(self, message: Message, sender: Sender) -> dict[str, Any]:
        """Return the fields of a `RecordedMessage` that depend on the type of the message.

        The round trips of requests and results are noted.
        """
        if isinstance(message, Request):
            index = len(self.messages)
            round_trip = self._tracker.add_request(index, message.method, message.params)
            self._round_trips[index] = round_trip
            if round_trip.retry_of is not None:
                self._retried_by[round_trip.retry_of] = index
            return {
                "kind": "request",
                "method": message.method,
                "id": message.id,
                "body": message.params,
                "retry_of": round_trip.retry_of,
            }
        if isinstance(message, Notification):
            subscription, reference = subscription_of(message.params), reference_of(message)
            request_index = None
            if subscription is not None:
                request_index = self._requests.get(("requestId", _OPPOSITE[sender], subscription))
            elif reference is not None:
                # The sender of a cancellation has sent the request; the sender of a progress
                # notification has received it.
                requester = sender if message.method == CANCELLED else _OPPOSITE[sender]
                request_index = self._requests.get(
                    (REFERENCES[message.method], requester, reference)
                )
            return {
                "kind": "notification",
                "method": message.method,
                "body": message.params,
                "request_index": request_index,
            }
        assert isinstance(message, Response | ErrorResponse)
        request_index = self._requests.get(("requestId", _OPPOSITE[sender], message.id))
        method = "" if request_index is None else self.messages[request_index].method
        facts = {"method": method, "request_index": request_index}
        if isinstance(message, ErrorResponse):
            return facts | {"kind": "error", "body": Raw(msgspec.json.encode(message.error))}
        if request_index is not None:
            self._tracker.add_result(self._round_trips[request_index], message.result)
        return facts | {"kind": "result", "body": message.result}

    def _cause_of(self, message: RecordedMessage, lane: str | None) -> int | None:
        """Return the index of the client message that a message of the server results from.

        That is the client's request to which it refers, else the message that its lane is named
        after, else the newest request in flight, else the client's last message. A subscription's
        notifications, and its end, result from what happens long after its request: for them the
        newest request in flight counts.
        """
        related = None if message.request_index is None else self.messages[message.request_index]
        if related is not None:
            if related.method == LISTEN and message.method not in _ACKNOWLEDGEMENTS:
                return self._newest_in_flight()
            return related.cause_index if related.sender == "server" else related.index
        position = message_position(lane or "")
        index = None if position is None else self._by_position.get(position)
        if index is None:
            return self._newest_in_flight()
        while index in self._retried_by:  # the lane goes on in the retries of its request
            index = self._retried_by[index]
        return index

    def _newest_in_flight(self) -> int | None:
        """Return the newest open request that is no subscription, else the last client message."""
        newest = (
            each for each in reversed(self._in_flight) if self.messages[each].method != LISTEN
        )
        return next(newest, self._last_of_client)
