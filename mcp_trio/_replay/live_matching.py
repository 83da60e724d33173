"""Matching of a live server's messages with the recorded ones, in a live replay.

A live replay sends the messages of a recorded client to a live server. `ResponseMatcher` finds the
recorded message for each message of the live server. It also adapts what the client sends: where a
recorded message repeats a value of the recorded server, such as a cursor, the live message has the
live server's value.

Messages are named by their indexes in the recorded conversation. The live id and progress token of
a client's request are made from its index, so the live server's messages lead back to it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from mcp_trio._journal.conversation import (
    CANCELLED,
    INPUT_RESPONSES,
    LISTEN,
    PROGRESS,
    PROTOCOL_VERSION,
    REQUEST_STATE,
    Conversation,
    InputRequest,
    InputRequired,
    RecordedMessage,
    input_required_of,
    members_of,
    progress_token_of,
    protocol_version_of,
    reference_of,
    subscription_of,
    without_meta,
)
from mcp_trio._journal.diff import json_differences
from mcp_trio._jsonrpc.channel_messages import with_sender
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
    encode_recorded_notification,
    encode_recorded_request,
    encode_recorded_response,
    live_id,
    recorded_index,
)
from mcp_trio.errors import METHOD_NOT_FOUND

NEGOTIATED_VERSION_PATH: Final = "$.result.protocolVersion"
"""The JSON path of the protocol version in the response to `initialize`."""

# The end of a JSON path to a value that a client sends back later: nextCursor, uri, sessionId.
_FORWARDED_NAME: Final = re.compile(
    r"(^|[._])(id|uri|cursor|token)$|[a-z](Id|Uri|URI|Cursor|Token)$"
)

# A server chooses this id at random: requests that differ only in it match.
_ELICITATION_ID: Final = "elicitationId"

LiveResponse: TypeAlias = Response | ErrorResponse

NotificationKey: TypeAlias = tuple[str, int | None]
"""The method of a notification, and the index of the recorded request that it reports on."""


def _replaced(value: Any, live: Mapping[str, str]) -> Any:
    """Return a JSON value with the live server's texts in the place of the recorded ones."""
    match value:
        case str():
            return live.get(value, value)
        case [*items]:
            return [_replaced(item, live) for item in items]
        case {**inner}:
            return {name: _replaced(item, live) for name, item in inner.items()}
        case _:
            return value


# Multi round-trip requests ------------------------------------------------------------------------


def retry_params(
    params: dict[str, Any], recorded: InputRequired, live: InputRequired
) -> dict[str, Any]:
    """Return the params of a recorded retry with the keys and the state of the live server.

    Responses to input requests that the live server does not make are left out.
    """
    keys = live_keys(recorded.requests, live.requests)
    adapted = {name: value for name, value in params.items() if name != REQUEST_STATE}
    if INPUT_RESPONSES in adapted:
        given = members_of(adapted[INPUT_RESPONSES])
        adapted[INPUT_RESPONSES] = {keys[key]: given[key] for key in given if key in keys}
    if live.request_state is not None:
        adapted[REQUEST_STATE] = live.request_state
    return adapted


def with_recorded_keys(live: Raw, recorded: Raw) -> Raw:
    """Return a live result with its input requests under the keys of the recorded result."""
    recorded_input, live_input = input_required_of(recorded), input_required_of(live)
    if recorded_input is None or live_input is None:
        return live
    keys = live_keys(recorded_input.requests, live_input.requests)
    if all(recorded_key == live_key for recorded_key, live_key in keys.items()):
        return live
    recorded_keys = {live_key: recorded_key for recorded_key, live_key in keys.items()}
    result = members_of(live)
    requests: dict[str, Any] = result["inputRequests"]
    result["inputRequests"] = {recorded_keys.get(key, key): each for key, each in requests.items()}
    return Raw(msgspec.json.encode(result))


def live_keys(
    recorded: Mapping[str, InputRequest], live: Mapping[str, InputRequest]
) -> dict[str, str]:
    """Return the live keys by the recorded keys of the matching input requests.

    Equal requests are matched first, and the remaining ones by their method, in order. A recorded
    request without a match is left out.
    """

    def normalized(request: InputRequest) -> bytes:
        params = msgspec.json.decode(request.params)
        return msgspec.json.encode([request.method, params], order="sorted")

    found: dict[str, str] = {}
    for is_exact in (True, False):
        for key, request in recorded.items():
            if key not in found:
                wanted = normalized(request)
                candidates = [
                    live_key
                    for live_key, other in live.items()
                    if live_key not in found.values()
                    and other.method == request.method
                    and (not is_exact or normalized(other) == wanted)
                ]
                if candidates:
                    found[key] = key if key in candidates else candidates[0]
    return found


# Protocol versions --------------------------------------------------------------------------------


def check_protocol_version(recorded: Conversation, protocol_version: str) -> None:
    """Check that a recorded client's requests can be sent under another protocol version.

    Raises:
        ValueError: The version is unknown; or it has a handshake and the recorded client made none,
            or the client made a handshake and the version has none.
    """
    requests = recorded.of("client", "request")
    is_legacy = any(each.method == INITIALIZE for each in requests)
    is_stateless = recorded.stateless_request is not None
    possible = [
        name
        for name in ALL_PROTOCOL_VERSIONS
        if (is_legacy if PROTOCOL_VERSIONS[name].has_handshake else is_stateless)
    ]
    if protocol_version not in possible:
        raise ValueError(
            f"the recorded requests cannot be sent under {protocol_version}; possible protocol"
            f" versions: {', '.join(possible) or 'none'}"
        )


# The matcher --------------------------------------------------------------------------------------


class ResponseMatcher:
    """A recorded conversation, and the live server's part in it so far.

    Attributes:
        protocol_version: The protocol version of the requests; None for the recorded one.
        sent: The indexes of the client's messages that were sent.
        responses: The live responses, by the index of the recorded request.
        requests: The live server's requests, by the index of the recorded request.
        unmatched: The live messages without a recorded counterpart: requests, responses with
            unknown ids, invalid messages.
        lost: The requests whose responses will not come, by index, with the reasons.
    """

    def __init__(self, recorded: Conversation, protocol_version: str | None) -> None:
        self.recorded = recorded
        self.protocol_version = protocol_version
        self.sent: set[int] = set()
        self.responses: dict[int, LiveResponse] = {}
        self.requests: dict[int, Request] = {}
        self.notifications: dict[NotificationKey, list[Notification]] = {}
        self.unmatched: list[Message] = []
        self.lost: dict[int, str] = {}
        # The live server's cursors, URIs and ids, by those of the recorded server.
        self._live_values: dict[str, str] = {}
        # The indexes of the client's requests that were sent and have no live response.
        self._open_client_requests: set[int] = set()
        # The recorded requests of the server that the live server has not made.
        self._expected_requests = recorded.of("server", "request")
        # The indexes of the live server's requests that were not answered.
        self._open_server_requests: set[int] = set()
        client_indexes = (each.index for each in recorded.messages if each.sender == "client")
        self._last_client_index = max(client_indexes, default=-1)
        # The number of each recorded notification among those with the same key, by its index. The
        # n-th has arrived when the live server has sent n notifications with this key.
        self._notification_numbers: dict[int, int] = {}
        counts: Counter[NotificationKey] = Counter()
        for each in recorded.of("server", "notification"):
            counts[notification_key(each)] += 1
            self._notification_numbers[each.index] = counts[notification_key(each)]

    # Messages to the server.

    def encode(self, message: RecordedMessage) -> bytes | None:
        """Return a message of the recorded client, encoded for the live server, with its user.

        Return None if it was sent already, or if it is a response, or a retry with input, which the
        live server has not requested.
        """
        if message.index in self.sent:
            return None
        encoded = self._encode(message)
        if encoded is None:
            return None
        self.sent.add(message.index)
        if message.request_index is not None and message.is_response:
            self._open_server_requests.discard(message.request_index)
        elif (
            message.kind == "request"
            and message.index not in self.recorded.cancelled
            and message.method != LISTEN  # a subscription never ends by itself
        ):
            self._open_client_requests.add(message.index)
        return with_sender(encoded, message.auth)

    def due_responses(self, *, before: int | None = None) -> Iterator[bytes | None]:
        """Yield the recorded responses to open requests of the live server, encoded by `encode`.

        With `before`, only those that come before this index in the recording.
        """
        for index in sorted(self._open_server_requests):
            response = self.recorded.responses.get(index)
            if response is not None and (before is None or response.index < before):
                yield self.encode(response)

    def _encode(self, message: RecordedMessage) -> bytes | None:
        match message.kind:
            case "request":
                params = self._live_params(message)
                if message.retry_of is not None:
                    body = self.recorded.responses[message.retry_of].body
                    response, live = self.responses.get(message.retry_of), None
                    recorded = None if body is None else input_required_of(body)
                    if isinstance(response, Response):
                        live = input_required_of(response.result)
                    if recorded is None or live is None:
                        return None  # The live server does not ask for input.
                    params = retry_params(params, recorded, live)
                return encode_recorded_request(message, params)
            case "notification":
                reference = self._live_reference(message)
                return encode_recorded_notification(message, self._live_params(message), reference)
            case _:
                if message.request_index not in self.requests:
                    return None
                request = self.requests[message.request_index]
                return encode_recorded_response(message, request.id)

    def _live_params(self, message: RecordedMessage) -> dict[str, Any]:
        """Return params with the live server's values, and with the `protocol_version` if any."""
        params: dict[str, Any] = _replaced(members_of(message.body), self._live_values)
        if self.protocol_version is None:
            return params
        has_handshake = PROTOCOL_VERSIONS[self.protocol_version].has_handshake
        if message.method == INITIALIZE and has_handshake:
            params["protocolVersion"] = self.protocol_version
        if protocol_version_of(message.body) is not None and not has_handshake:
            params["_meta"][PROTOCOL_VERSION] = self.protocol_version
        return params

    def _live_reference(self, message: RecordedMessage) -> int | str | None:
        """Return the live id or token of the request to which a client's notification refers."""
        if message.request_index is None:
            return None
        if message.method == CANCELLED:
            return live_id(message.request_index) if message.request_index in self.sent else None
        request = self.requests.get(message.request_index)
        return None if request is None else progress_token_of(request.params)

    # Messages of the server.

    def receive(self, message: Message) -> bytes | None:
        """Match a message of the live server; return the response to an unrecorded request."""
        match message:
            case Request():
                return self._receive_request(message)
            case Notification():
                reference = subscription_of(message.params)
                if reference is None and message.method == PROGRESS:
                    reference = reference_of(message)
                index = recorded_index(reference)
                key = (message.method, index if index in self.sent else None)
                self.notifications.setdefault(key, []).append(message)
            case Malformed():
                self.unmatched.append(message)
            case _:
                index = recorded_index(message.id)
                if index is None or index not in self.sent or index in self.responses:
                    self.unmatched.append(message)
                    return None
                self.responses[index] = message
                self._open_client_requests.discard(index)
                response = self.recorded.responses.get(index)
                body = None if response is None else response.body
                if body is not None and isinstance(message, Response):
                    for path, old, new in json_differences(bytes(body), bytes(message.result)):
                        are_texts = isinstance(old, str) and isinstance(new, str)
                        if are_texts and _FORWARDED_NAME.search(path):
                            self._live_values[old] = new
        return None

    def _receive_request(self, message: Request) -> bytes | None:
        # Take the first expected request with equal params, or else the first of the same method.
        params = _distinguishing_params(message.params)
        of_method = [each for each in self._expected_requests if each.method == message.method]
        equal = (each for each in of_method if _distinguishing_params(each.body) == params)
        recorded = next(chain(equal, of_method), None)
        if recorded is not None:
            self._expected_requests.remove(recorded)
            self.requests[recorded.index] = message
            self._open_server_requests.add(recorded.index)
            return None
        if message.method == PING:
            return encode_response(message.id, {})
        self.unmatched.append(message)
        text = f"the recorded client received no request {message.method}, or fewer of them"
        return encode_error(message.id, METHOD_NOT_FOUND, text)

    def lose(self, index: int | None, reason: str) -> None:
        """Note that the response to the client's request with this index will not come."""
        if index in self.sent and index not in self.responses:
            self.lost[index] = reason
            self._open_client_requests.discard(index)

    # Expectations.

    @property
    def has_received(self) -> bool:
        return bool(self.responses or self.requests or self.notifications or self.unmatched)

    def has_arrived(self, message: RecordedMessage) -> bool:
        """Return whether the live server has sent the counterpart of a recorded message.

        True as well for a response that will not come, and for one that names no request.
        """
        if message.is_response:
            return (
                message.request_index is None
                or message.request_index in self.responses
                or message.request_index in self.lost
            )
        if message.kind == "request":
            return message.index in self.requests
        live = self.notifications.get(notification_key(message), ())
        return len(live) >= self._notification_numbers[message.index]

    def is_still_expected(self, message: RecordedMessage) -> bool:
        """Return whether it makes sense to wait longer for the counterpart of a recorded message.

        A response is expected unless the recorded client cancelled the request, and any other
        message while a request of the client is open.
        """
        if message.is_response:
            return message.request_index not in self.recorded.cancelled
        return bool(self._open_client_requests)

    def cannot_arrive(self, message: RecordedMessage) -> bool:
        """Return whether the live server cannot send the counterpart of a recorded message.

        It cannot respond to a request that was not sent, and it does not end a subscription as the
        recorded server did at a disconnect.
        """
        index = message.request_index
        is_unsent = index is not None and index not in self.sent
        return (message.is_response and is_unsent) or self.ends_subscription_at_disconnect(message)

    def ends_subscription_at_disconnect(self, message: RecordedMessage) -> bool:
        """Return whether a message ended a subscription after the recorded client's last message.

        The recorded server sent it when the client disconnected. The live session is closed in
        another way, so the live server does not send it.
        """
        if message.request_index is None:
            return False
        is_of_subscription = self.recorded.messages[message.request_index].method == LISTEN
        is_end = message.is_response or message.method == CANCELLED
        return is_of_subscription and is_end and message.index > self._last_client_index


def notification_key(message: RecordedMessage) -> NotificationKey:
    """Return the key of a recorded notification.

    The key has the request of a progress notification, or of a subscription. It does not have the
    request that a cancellation names: a server often makes equal requests at the same time, so the
    live server may cancel another one of them.
    """
    has_request = message.method == PROGRESS or subscription_of(message.body) is not None
    return message.method, message.request_index if has_request else None


def _distinguishing_params(params: Raw | None) -> dict[str, Any]:
    inner = without_meta(params)
    inner.pop(_ELICITATION_ID, None)
    return inner
