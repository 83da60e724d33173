"""Live replay: send a recorded client's messages to a live server, and compare the responses.

`replay_live` does that, and `replay_live_async` does it inside a Trio program.

`ResponseMatcher` finds the recorded message for each message of the live server. It also adapts the
client's messages: where one repeats a value of the recorded server, such as a cursor, the live
message has the live server's value. Messages are named by their indexes in the recorded
conversation. The live id and progress token of a client's request are made from its index, so the
live server's messages lead back to it.

`RequestDriver` walks over the recorded conversation. It sends the client's messages, and at each
message of the server it waits until the live server has sent that one too. So a message that the
client sent after it had received another is sent after that again, and what was concurrent stays
concurrent.

Every wait is bounded. A response may take `limits.requests.idle_seconds`. A request or notification
of the server may take as long while a request is open, and otherwise
`limits.replay.unrequested_seconds`. If it does not come in time, the driver does not wait for later
messages of the same kind (`notification_key`). The live server may make its requests in another
order than the recorded one, and wait for a response that the client sent later. So if an expected
message does not come within `limits.replay.unrequested_seconds`, the driver sends the recorded
responses to all open requests of the server.

Over HTTP, the response to one request can be lost while others still come; then the driver waits
for that response no longer. A server that cannot be reached any more is lost as a whole.
"""

import os
import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

import attrs
import msgspec
import trio
from msgspec import UNSET, Raw

from mcp_trio._client.connect import (
    NO_WEB_OPTIONS,
    ProcessOptions,
    Served,
    Target,
    WebOptions,
    open_target,
)
from mcp_trio._journal.conversation import (
    CANCELLED,
    INPUT_RESPONSES,
    LISTEN,
    PROGRESS,
    PROTOCOL_VERSION,
    REFERENCES,
    REQUEST_STATE,
    SUBSCRIPTION_ID,
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
from mcp_trio._journal.texts import excerpts, json_text
from mcp_trio._jsonrpc.channel_messages import AuthInfo, Lost, PrincipalMessage, with_sender
from mcp_trio._jsonrpc.messages import (
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    encode_error,
    encode_request,
    encode_response,
)
from mcp_trio._protocol.metadata import SERVER_INFO
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE, PING
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, PROTOCOL_VERSIONS
from mcp_trio._replay.live_messages import (
    LivePeer,
    encode_recorded_notification,
    encode_recorded_request,
    encode_recorded_response,
    live_id,
    recorded_index,
)
from mcp_trio._replay.trace import load_conversation
from mcp_trio._session.exceptions import sole_exception
from mcp_trio._transports.channel import Channel, Received
from mcp_trio.errors import METHOD_NOT_FOUND, ConnectionLost, NothingCompared, OutcomeUnknown
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# The JSON path of the protocol version in the response to `initialize`.
_NEGOTIATED_VERSION_PATH: Final = "$.result.protocolVersion"

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
    """Return a live result with its input requests under the keys of the recorded result.

    An additional input request keeps its key, unless a matching one needs that.
    """
    recorded_input, live_input = input_required_of(recorded), input_required_of(live)
    if recorded_input is None or live_input is None:
        return live
    keys = live_keys(recorded_input.requests, live_input.requests)
    if all(recorded_key == live_key for recorded_key, live_key in keys.items()):
        return live
    recorded_keys = {live_key: recorded_key for recorded_key, live_key in keys.items()}
    result = members_of(live)
    requests: dict[str, Any] = result["inputRequests"]
    result["inputRequests"] = {
        recorded_keys.get(key) or (f"{key} (live)" if key in keys else key): each
        for key, each in requests.items()
    }
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


# The driver ---------------------------------------------------------------------------------------

# The id of a request that follows the recorded ones.
_FINAL_REQUEST_ID: Final = "the last ping"

# A server that leaves so many requests in a row unanswered, and sends nothing else, is lost.
_SILENT_REQUESTS_MAX: Final = 2


@attrs.define(eq=False, repr=False)
class ChannelWithUsers:
    """The server's end of a memory channel, which gives each message its recorded user.

    The memory channel carries only bytes. It keeps messages whole and in order, so the next of the
    `users` of sent messages belongs to the next message. The server takes it for a channel of the
    recorded `transport`: stateless requests over HTTP have their own `ctx.state`.
    """

    channel: Channel
    transport: str
    users: deque[AuthInfo | None] = attrs.field(factory=deque["AuthInfo | None"])

    async def send(self, messages: Sequence[bytes]) -> None:
        await self.channel.send(messages)

    async def receive(self) -> Sequence[Received]:
        received = await self.channel.receive()
        # One that is too large for the server takes its user from the deque, too.
        users = [self.users.popleft() for _ in received]
        return [
            with_sender(message, user) if isinstance(message, bytes) else message
            for message, user in zip(received, users, strict=True)
        ]

    async def aclose(self) -> None:
        await self.channel.aclose()


class RequestDriver:
    """A driver that sends the messages of a recorded client to one live server.

    Attributes:
        lost: The reason why the server could not be driven to the end, if it could not.
        first_request_error: The error if the server could not be reached for the first request.
        late: The indexes of the requests whose responses did not come in time.
    """

    def __init__(self, matcher: ResponseMatcher, channel: Channel, limits: Limits) -> None:
        self.matcher = matcher
        self.channel = channel
        self.limits = limits
        self.lost: str | None = None
        self.first_request_error: ConnectionLost | None = None
        self.late: set[int] = set()
        self._users: deque[AuthInfo | None] | None = None
        self._peer = LivePeer(channel, limits)
        self._changed = trio.lowlevel.ParkingLot()
        self._received_count = 0
        self._has_final_response = False
        self._silent_requests = 0
        self._kinds_given_up: set[NotificationKey] = set()

    async def run(self, served: Served | None = None) -> None:
        """Send all messages, receive the responses, and close the channel.

        A failure of the server raises no error; `lost` describes it.
        """
        try:
            async with trio.open_nursery() as nursery:
                if served is not None:
                    at_server = ChannelWithUsers(
                        served.channel, self.matcher.recorded.opening.transport
                    )
                    self._users = at_server.users
                    nursery.start_soon(self._serve, Served(served.server, at_server))
                nursery.start_soon(self._peer.write)
                nursery.start_soon(self._read)
                await self._send_recorded()
                nursery.cancel_scope.cancel()
        finally:
            await self.channel.aclose()

    # The recorded conversation.

    async def _send_recorded(self) -> None:
        recorded = self.matcher.recorded
        for message in recorded.messages:
            if self.lost is not None:
                return
            if message.sender == "client":
                self._put([self.matcher.encode(message)])
            else:
                await self._wait_for(message)
                self._put(self.matcher.due_responses(before=message.index))
        # The server may still send notifications for the recorded requests. Wait for them until it
        # has answered one more request, which every server answers at once: `ping`, or
        # `server/discover` in the stateless protocol versions.
        final = encode_request(_FINAL_REQUEST_ID, PING)
        if (stateless := recorded.stateless_request) is not None:
            meta: dict[str, Any] = members_of(stateless.body)["_meta"]
            meta.pop("progressToken", None)
            final = encode_request(_FINAL_REQUEST_ID, DISCOVER, {"_meta": meta})
        self._put([final])
        await self._wait_until(
            lambda: self._has_final_response, self.limits.replay.unrequested_seconds
        )

    def _put(self, messages: Iterable[bytes | None]) -> None:
        for message in messages:
            if message is not None:
                if self._users is not None:
                    user = message.auth if isinstance(message, PrincipalMessage) else None
                    self._users.append(user)
                self._peer.put(message)

    async def _wait_for(self, message: RecordedMessage) -> None:
        if self.matcher.cannot_arrive(message):
            return
        if not message.is_response:
            key = notification_key(message)
            if key not in self._kinds_given_up and not await self._arrives_in_time(message):
                self._kinds_given_up.add(key)
            return
        received_before = self._received_count
        if await self._arrives_in_time(message):
            self._silent_requests = 0
        elif message.request_index is not None and self.matcher.is_still_expected(message):
            self.late.add(message.request_index)
            is_silent = received_before == self._received_count
            self._silent_requests = self._silent_requests + 1 if is_silent else 0
            if self._silent_requests >= _SILENT_REQUESTS_MAX:
                self._lose(f"it left {_SILENT_REQUESTS_MAX} requests unanswered and sent nothing")

    async def _arrives_in_time(self, message: RecordedMessage) -> bool:
        """Wait for the live server's counterpart of a recorded message; return whether it came."""
        matcher, limits = self.matcher, self.limits
        seconds = min(limits.replay.unrequested_seconds, limits.requests.idle_seconds)
        await self._wait_until(lambda: matcher.has_arrived(message), seconds)
        if not matcher.has_arrived(message) and matcher.is_still_expected(message):
            # The server may be waiting for a response that the client sent later in the recording.
            # Send it now, and again after each message, which may be a further request.
            def respond_and_check() -> bool:
                self._put(matcher.due_responses())
                return matcher.has_arrived(message) or not matcher.is_still_expected(message)

            await self._wait_until(respond_and_check, limits.requests.idle_seconds - seconds)
        return matcher.has_arrived(message)

    async def _wait_until(self, condition: Callable[[], bool], seconds: float) -> None:
        with trio.move_on_after(seconds):
            while not condition() and self.lost is None:
                await self._changed.park()

    # The server.

    async def _read(self) -> None:
        try:
            await self._peer.read(self._receive)
            self._lose("it closed the connection")
        except ConnectionLost as error:
            self._lose(str(error))

    def _receive(self, message: Message | Lost, _: AuthInfo | None) -> None:
        if isinstance(message, Response | ErrorResponse | Lost) and message.id == _FINAL_REQUEST_ID:
            self._has_final_response = True
        elif isinstance(message, Lost):
            error = message.error
            if isinstance(error, ConnectionLost) and not isinstance(error, OutcomeUnknown):
                # The server did not take the request, and will take no other one either.
                self.first_request_error = None if self.matcher.has_received else error
                self._lose(str(error))
            self.matcher.lose(recorded_index(message.id), str(error))
        else:
            self._put([self.matcher.receive(message)])
        self._received_count += 1
        self._changed.unpark_all()

    async def _serve(self, served: Served) -> None:
        try:
            await served.server.serve(served.channel)
        except Exception as error:
            self._lose(f"the server object failed: {sole_exception(error)!r}")
        finally:
            await served.channel.aclose()

    def _lose(self, reason: str) -> None:
        self.lost = self.lost or reason
        self._changed.unpark_all()


# Ignored differences ------------------------------------------------------------------------------

# A step to a member whose name is written as a JSON string; see `member_step`.
_QUOTED_STEP: Final = r'\["(?:[^"\\]|\\.)*"\]'
_PATH_PART: Final = re.compile(rf"{_QUOTED_STEP}|\[\*\]|\.\*|.", re.DOTALL)
_WILDCARDS: Final = {"[*]": r"\[[0-9]+\]", ".*": rf"(?:\.[A-Za-z0-9_$]+|{_QUOTED_STEP})"}

# Values that only their server understands: clients send them back unchanged.
_OPAQUE_NAMES: Final = (".nextCursor", ".requestState", ".elicitationId")

_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.,][0-9]+)?)?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?"
)


def ignored_paths(paths: Collection[str]) -> re.Pattern[str]:
    """Return a pattern for JSON paths at which differences are ignored, and all paths below.

    In a path such as `$.result.content[*].text`, `[*]` matches any item and `.*` any member.

    Raises:
        ValueError: A path does not begin with `$`.
    """
    for path in paths:
        if not path.startswith("$"):
            raise ValueError(
                f"{path!r} is not a JSON path: it has to begin with $, as $.result.content"
            )
    patterns = (
        "".join(_WILDCARDS.get(part) or re.escape(part) for part in _PATH_PART.findall(path))
        for path in paths
    )
    return re.compile(rf"(?:{'|'.join(patterns) or '(?!)'})(?:[.\[].*)?", re.DOTALL)


# The report ---------------------------------------------------------------------------------------

_VALUE_CHARACTERS_MAX: Final = 100

DifferenceKind: TypeAlias = Literal["changed", "missing", "extra", "late", "lost"]


class InputDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A difference between a live server and the recorded one.

    Attributes:
        kind: "changed" (a value at `path`), "missing" (a recorded message did not come), "extra" (a
            message that is not recorded came), "late" (a response did not come in time) or "lost"
            (the server, or the response to one request, was lost; `live` has the reason).
        subject: The message that differs, such as `answer to tools/call add`.
        record: The number of the recorded message, if there is one.
        path: The JSON path of a changed value.
        recorded: The recorded value.
        live: The live value.
    """

    kind: DifferenceKind
    subject: str
    record: int | None = None
    path: str = ""
    recorded: Any = UNSET
    live: Any = UNSET

    def __str__(self) -> str:
        text = f"{self.kind} {self.subject}"
        if self.record is not None:
            text += f" (record {self.record})"
        if self.kind == "changed":
            recorded, live = value_texts(self)
            text += f": {self.path}: {recorded} -> {live}"
        elif self.kind == "lost":
            text += f": {self.live}"
        return text


def value_texts(difference: InputDifference) -> tuple[str, str]:
    """Return the two values as JSON; long ones are cut around the point where they differ."""
    texts = json_text(difference.recorded), json_text(difference.live)
    return excerpts(*texts, chars_max=_VALUE_CHARACTERS_MAX)


class InputsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a live replay.

    Attributes:
        requests: The number of recorded requests.
        answered: The number of requests that the live server answered.
        differences: The differences between the live server and the recorded one.
        ignored: The number of differences that were ignored.
        unsent: The number of the client's messages that were not sent, because the live server did
            not make the requests that they answer, or was lost.
        unreadable: The number of recorded messages that are invalid, which are not sent.
        uncompared: The number of recorded requests to which the recording has no response, because
            it ends before, so that the live response is not compared.
    """

    requests: int
    answered: int
    differences: tuple[InputDifference, ...]
    ignored: int
    unsent: int
    unreadable: int
    uncompared: int = 0

    @property
    def is_same(self) -> bool:
        """Return whether there are no differences, except ignored ones."""
        return not self.differences

    @property
    def summary(self) -> str:
        """The numbers on one line."""
        count = len(self.differences)
        numbers = {
            "ignored": self.ignored,
            "client messages not sent": self.unsent,
            "recorded messages invalid": self.unreadable,
            "without a recorded response": self.uncompared,
        }
        return ", ".join(
            [
                f"{count or 'no'} difference{'' if count == 1 else 's'}",
                f"{self.answered} of {self.requests} requests answered",
                *(f"{number} {text}" for text, number in numbers.items() if number),
            ]
        )

    def __str__(self) -> str:
        return "\n".join([*map(str, self.differences), self.summary])


# Comparison ---------------------------------------------------------------------------------------


def _title(method: str, params: Raw | None) -> str:
    """Return a request's method, and the name or URI in its params."""
    inner = members_of(params)
    name = inner.get("name", inner.get("uri"))
    return method if name is None else f"{method} {name}"


class Comparison:
    """A comparison of the recorded conversation with the live one.

    If the server was lost, that is one difference, and no message is reported as missing.
    """

    def __init__(self, driver: RequestDriver, ignored: re.Pattern[str]) -> None:
        self._driver = driver
        self._matcher = driver.matcher
        self._ignored = ignored
        self._is_lost = driver.lost is not None
        self._found: list[InputDifference] = []
        self._ignored_count = 0

    def report(self) -> InputsReport:
        """Compare the conversations; return the differences."""
        matcher = self._matcher
        if self._is_lost:
            self._add("lost", "the server", live=self._driver.lost)
        self._compare_responses()
        self._compare_requests()
        self._compare_notifications()
        for message in matcher.unmatched:
            match message:
                case Request():
                    subject = f"server request {_title(message.method, message.params)}"
                case Malformed():
                    subject = f"invalid message: {message.message}"
                case Response() | ErrorResponse():
                    subject = f"answer with the unknown id {message.id!r}"
                case _:
                    subject = message.method
            self._add("extra", subject)
        of_client = (each for each in matcher.recorded.messages if each.sender == "client")
        requests = matcher.recorded.of("client", "request")
        return InputsReport(
            requests=len(requests),
            answered=len(matcher.responses),
            differences=tuple(self._found),
            ignored=self._ignored_count,
            unsent=sum(each.index not in matcher.sent for each in of_client),
            unreadable=matcher.recorded.unreadable,
            uncompared=sum(map(matcher.recorded.lacks_response, requests)),
        )

    def _compare_responses(self) -> None:
        matcher = self._matcher
        recorded = matcher.recorded
        for request in recorded.of("client", "request"):
            index = request.index
            response, live = recorded.responses.get(index), matcher.responses.get(index)
            subject = f"answer to {_title(request.method, request.body)}"
            if response is not None and live is not None:
                self._compare(request, subject, *_outcomes(response, live))
            elif index in matcher.lost:
                if not self._is_lost:
                    self._add("lost", subject, request, live=matcher.lost[index])
            elif response is not None and not matcher.ends_subscription_at_disconnect(response):
                self._add_missing(
                    "late" if index in self._driver.late else "missing", subject, request
                )
            elif live is not None and index in recorded.cancelled:
                self._add("extra", f"{subject}, which was cancelled", request)

    def _compare_requests(self) -> None:
        for request in self._matcher.recorded.of("server", "request"):
            live = self._matcher.requests.get(request.index)
            subject = f"server request {request.method}"
            if live is None:
                self._add_missing("missing", subject, request)
            else:
                self._compare(request, subject, _content(request), _content(live))

    def _compare_notifications(self) -> None:
        recorded: dict[NotificationKey, list[RecordedMessage]] = {}
        for message in self._matcher.recorded.of("server", "notification"):
            recorded.setdefault(notification_key(message), []).append(message)
        live = self._matcher.notifications
        for method, index in recorded | live:
            subject = method
            if index is not None:
                request = self._matcher.recorded.messages[index]
                subject = f"{method} for {_title(request.method, request.body)}"
            messages = recorded.get((method, index), [])
            contents = [_content(each) for each in messages]
            live_contents = [_content(each) for each in live.get((method, index), [])]
            # Equal notifications match first, the remaining ones in their order.
            changed = _indexes_of_unequal(contents, live_contents)
            live_changed = _indexes_of_unequal(live_contents, contents)
            for at, live_at in zip(changed, live_changed, strict=False):
                self._compare(messages[at], subject, contents[at], live_contents[live_at])
            for at in changed[len(live_changed) :]:
                if not self._matcher.ends_subscription_at_disconnect(messages[at]):
                    self._add_missing("missing", subject, messages[at])
            for _ in live_changed[len(changed) :]:
                self._add("extra", subject)

    def _compare(
        self, message: RecordedMessage, subject: str, recorded: bytes, live: bytes
    ) -> None:
        for path, old, new in json_differences(recorded, live):
            is_ignored = self._ignored.fullmatch(path) is not None
            if isinstance(old, str) and isinstance(new, str):
                are_times = _TIME.fullmatch(old) is not None and _TIME.fullmatch(new) is not None
                is_ignored |= path.endswith(_OPAQUE_NAMES) or are_times
            if is_ignored:
                self._ignored_count += 1
            else:
                self._add("changed", subject, message, path=path, recorded=old, live=new)

    def _add_missing(self, kind: DifferenceKind, subject: str, message: RecordedMessage) -> None:
        if not self._is_lost:
            self._add(kind, subject, message)

    def _add(
        self,
        kind: DifferenceKind,
        subject: str,
        message: RecordedMessage | None = None,
        *,
        path: str = "",
        recorded: Any = UNSET,
        live: Any = UNSET,
    ) -> None:
        self._found.append(
            InputDifference(
                kind=kind,
                subject=subject,
                record=None if message is None else message.record,
                path=path,
                recorded=recorded,
                live=live,
            )
        )


def _indexes_of_unequal(contents: Sequence[bytes], others: Sequence[bytes]) -> list[int]:
    """Return the indexes of the contents that have no equal of their own among the others."""
    equal = Counter(others)
    found: list[int] = []
    for index, content in enumerate(contents):
        if equal[content]:
            equal[content] -= 1
        else:
            found.append(index)
    return found


def _outcomes(recorded: RecordedMessage, live: Response | ErrorResponse) -> tuple[bytes, bytes]:
    """Return the recorded response and the live one as JSON, to be compared.

    Members that `_compared_result` leaves out are missing, and the input requests of the live
    result have the recorded keys.
    """
    recorded_body: Any = recorded.body
    if recorded.kind == "result":
        recorded_body = _compared_result(recorded.body, recorded.method)
    if isinstance(live, ErrorResponse):
        outcome: dict[str, Any] = {"error": live.error}
    else:
        result = live.result
        if recorded.kind == "result" and recorded.body is not None:
            result = with_recorded_keys(result, recorded.body)
        outcome = {"result": _compared_result(result, recorded.method)}
    return msgspec.json.encode({recorded.kind: recorded_body}), msgspec.json.encode(outcome)


def _compared_result(result: Raw | None, method: str) -> Any:
    """Return a result without the id of its subscription and without the server info.

    The result of `server/discover` keeps the server info; other results only repeat it.
    """
    ignored = {SUBSCRIPTION_ID} if method == DISCOVER else {SUBSCRIPTION_ID, SERVER_INFO}
    if result is None or not any(name.encode() in bytes(result) for name in ignored):
        return result
    inner = members_of(result)
    meta = members_of(inner.pop("_meta", None))
    meta = {name: value for name, value in meta.items() if name not in ignored}
    return {**inner, "_meta": meta} if meta else inner


def _content(message: RecordedMessage | Request | Notification) -> bytes:
    """Return the params without metadata and without the request to which they refer."""
    body = message.body if isinstance(message, RecordedMessage) else message.params
    params = without_meta(body)
    params.pop(REFERENCES.get(message.method, ""), None)
    return msgspec.json.encode({"params": params}, order="deterministic")


# Live replays -------------------------------------------------------------------------------------


def replay_live(
    path: str | os.PathLike[str],
    target: Target,
    *,
    ignore: Collection[str] = (),
    channel: int | None = None,
    protocol_version: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
    allow_damaged: bool = False,
) -> InputsReport:
    """Send the messages of a recorded client to a live server, and compare its responses.

    A server object receives each message with its recorded user, so `ctx.auth` and the rules of
    access are those of the recording; any other target knows only the credentials of `headers`.

    The client's messages get the live session's ids and progress tokens, and the live server's
    cursors and URIs where the client used those of the recorded server. Requests of the server get
    the recorded answers. How the recorded client was connected does not matter. This function calls
    `trio.run`; inside a Trio program, use `replay_live_async`.

    Args:
        path: A recording of any role.
        target: The server: anything that `Client` connects to.
        ignore: JSON paths at which differences are ignored, such as `$.result.content[*].text`.
            Times and cursors are always ignored.
        channel: The number of the session, if the recording holds several.
        protocol_version: Another protocol version for the requests: one with a handshake if the
            client made a handshake, a stateless one if it made stateless requests.
        limits: The limits of the live session and its waits.
        inherit_env: Whether a command gets the environment of this process.
        headers: HTTP headers for each request to a URL.
        allow_damaged: True uses a recording in which lines were changed or lost, as far as it can
            be read.

    Raises:
        RecordingError: The file is no recording, is damaged, or holds several sessions and no
            `channel` is chosen.
        NothingCompared: The recording holds no request that was answered.
        ConnectionLost: A command could not be started, or the server at a URL does not take the
            first request. Later failures are in the report.
        ValueError: A path in `ignore`, the `protocol_version` or a URL is invalid.
    """
    run = partial(
        replay_live_async,
        path,
        target,
        ignore=ignore,
        channel=channel,
        protocol_version=protocol_version,
        limits=limits,
        inherit_env=inherit_env,
        headers=headers,
        allow_damaged=allow_damaged,
    )
    return trio.run(run)


async def replay_live_async(
    path: str | os.PathLike[str],
    target: Target,
    *,
    ignore: Collection[str] = (),
    channel: int | None = None,
    protocol_version: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
    allow_damaged: bool = False,
) -> InputsReport:
    """Do the same as `replay_live`, inside a Trio program.

    Each wait is bounded by `limits.requests.idle_seconds` and `limits.replay.unrequested_seconds`.
    If this call is cancelled, the connection is closed and the process of a command is stopped.

    Raises:
        RecordingError, NothingCompared, ConnectionLost, ValueError: As for `replay_live`.
    """
    recorded = load_conversation(path, channel=channel, rejects_damage=not allow_damaged)
    if protocol_version is not None:
        check_protocol_version(recorded, protocol_version)
        ignore = (*ignore, _NEGOTIATED_VERSION_PATH)
    ignored = ignored_paths(ignore)
    matcher = ResponseMatcher(recorded, protocol_version)
    process = ProcessOptions(inherit_env=inherit_env)
    web = WebOptions(headers=headers) if headers else NO_WEB_OPTIONS
    connected = await open_target(target, process=process, web=web, limits=limits)
    driver = RequestDriver(matcher, connected.channel, limits)
    await driver.run(connected.served)
    if driver.first_request_error is not None:
        raise driver.first_request_error
    report = Comparison(driver, ignored).report()
    is_compared = any(each.index in recorded.responses for each in recorded.of("client", "request"))
    if not (is_compared or report.differences):
        raise NothingCompared(
            "nothing was compared: the recording holds no request that was answered; record a"
            " session that makes requests"
        )
    return report


async def mock_client(
    path: str | os.PathLike[str],
    target: Target,
    *,
    channel: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
    inherit_env: bool = False,
    headers: Mapping[str, str] | None = None,
) -> InputsReport:
    """Act as a recorded client, whatever the live server answers.

    This is `replay_live_async` with every value ignored: the report contains only messages that are
    missing, extra, late or lost. A damaged recording is used as far as it can be read.

    Raises:
        RecordingError, NothingCompared, ConnectionLost, ValueError: As for `replay_live` with
            `allow_damaged`.
    """
    return await replay_live_async(
        path,
        target,
        ignore=("$",),
        channel=channel,
        limits=limits,
        inherit_env=inherit_env,
        headers=headers,
        allow_damaged=True,
    )
