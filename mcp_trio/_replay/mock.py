"""Mock servers, which respond to live clients as a recorded server did.

A mock responds to a request as the recorded server responded to the same request. The messages that
the recorded server sent because of that request (see `Conversation`) come with it, in their order:
notifications before the response, and requests, for whose responses the mock waits where the
recorded server had them before it continued. Concurrent requests do not wait for each other.

Two requests are the same if they have the same method and params. `_meta` and empty arguments do
not count, nor the params of `initialize`. In a session, each recorded request is answered once,
except those that clients repeat as they like, such as lists and pings. Stateless clients over HTTP
have no session: together they are one client here, to which each recorded request can be answered
again, beginning with the one that was answered longest ago.

Two kinds of requests match more loosely, if no recorded request is the same. A redacted recording
has tokens in the place of its client's values, which have the shape of these values: a request
matches if its values have the same shapes, with letters of the same case, digits and all other
characters at the same positions. The input responses in a retry come from a live user: they match
if they answer the same input requests, and accept or decline them as the recorded ones did.

A recording of a server with authentication has the user of each message. A mock can stand for all
of them at once, as one client, or tell them apart: then a request matches only requests of the same
user, so that each user gets the lists and results, and the rejections, that were recorded for them.
"""

import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, cast

import attrs
import msgspec
import trio
from msgspec import UNSET, Raw

from mcp_trio._journal.conversation import (
    CANCELLED,
    INPUT_RESPONSES,
    PROGRESS,
    Conversation,
    Id,
    RecordedMessage,
    members_of,
    progress_token_of,
    protocol_version_of,
    reference_of,
    without_meta,
)
from mcp_trio._journal.diff import JsonDifference, json_differences
from mcp_trio._journal.texts import json_text, shortened
from mcp_trio._jsonrpc.channel_messages import AuthInfo, Lost
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
from mcp_trio._protocol.metadata import SERVER_INFO
from mcp_trio._protocol.methods import DISCOVER, INITIALIZE, PING
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, PROTOCOL_VERSIONS, ProtocolVersion
from mcp_trio._replay.live_messages import (
    LivePeer,
    encode_recorded_notification,
    encode_recorded_request,
    encode_recorded_response,
    live_id,
    recorded_index,
)
from mcp_trio._replay.trace import load_conversation
from mcp_trio._server.sessions import OtherSessionSource
from mcp_trio._server.signals import SIGNAL_STATUS_BASE, serve_until_signal
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.http_channels import StatelessChannel
from mcp_trio._transports.stdio import divert_stdio, open_stdio_channel, wait_parent_death
from mcp_trio.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    ConnectionLost,
    MockMismatch,
)
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from mcp_trio._auth.resource_server import ResourceServer
    from mcp_trio._server.http_serve import HttpOptions
    from mcp_trio._server.sockets import AccessOptions, WebSocketOptions

_CLOSEST_MAX: Final = 3
_PATHS_MAX: Final = 4
_PARAMS_CHARACTERS_MAX: Final = 100
_UNRECORDED_MAX: Final = 1000
_UNRECORDED_CHARACTERS_MAX: Final = 1000

# Requests that clients repeat as they like; each gets the last recorded response.
_REPEATABLE: Final = frozenset({PING, DISCOVER, INITIALIZE, "logging/setLevel"})
_REPEATABLE_SUFFIX: Final = "/list"

_INPUT_RESPONSES_PATH: Final = re.compile(rf"\$\.{INPUT_RESPONSES}([.\[]|$)")

# The capabilities to which methods belong, by the part of the method before the slash.
_CAPABILITIES: Final = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "completion": "completions",
}


# Matching requests --------------------------------------------------------------------------------


class RequestMatcher:
    """Finds the recorded message that is the same as a live one; each is found once, in order.

    Only requests of `users` are found; None stands for all users. The methods take the user of the
    live message: only messages of the same user are found. None means that the mock does not tell
    users apart.
    """

    def __init__(self, recorded: Conversation, users: Collection[str] | None) -> None:
        self._responses = recorded.responses
        self._requests = [
            each
            for each in recorded.of("client", "request")
            if users is None or _user_of(each) in users
        ]
        self._open_requests = list(self._requests)
        self._answered_requests: list[RecordedMessage] = []
        self._open_notifications = recorded.of("client", "notification")
        self._is_redacted = bool(recorded.opening.redaction)
        # The hashes of recorded calls by index, because the calls may take much memory.
        self._hashes: dict[int, int] = {}

    @property
    def unused(self) -> list[RecordedMessage]:
        """The recorded requests that were not found; discovery is not required."""
        return [each for each in self._open_requests if each.method != DISCOVER]

    def find(self, method: str, params: Raw | None, user: str | None) -> RecordedMessage | None:
        """Return the first matching request that was not found before."""
        found = self._first(self._open_requests, method, params, user)
        if found is not None:
            self._open_requests.remove(found)
            self._answered_requests.append(found)
        return found

    def find_again(
        self, method: str, params: Raw | None, user: str | None, in_progress: Collection[int]
    ) -> RecordedMessage | None:
        """Return the matching request that was found longest ago, and is not `in_progress`."""
        free = [each for each in self._answered_requests if each.index not in in_progress]
        found = self._first(free, method, params, user)
        if found is not None:
            self._answered_requests.remove(found)
            self._answered_requests.append(found)
        return found

    def find_repeatable(
        self, method: str, params: Raw | None, user: str | None
    ) -> RecordedMessage | None:
        """Return the last matching request with a response, if clients may repeat the method."""
        if method not in _REPEATABLE and not method.endswith(_REPEATABLE_SUFFIX):
            return None
        answered = [each for each in self._requests if each.index in self._responses]
        return self._first(answered[::-1], method, params, user)

    def find_notification(self, method: str, user: str | None) -> RecordedMessage | None:
        """Return the first notification of a method that was not found before."""
        found = next(_of_user(self._open_notifications, method, user), None)
        if found is not None:
            self._open_notifications.remove(found)
        return found

    def error_for(self, method: str, params: Raw | None, user: str | None) -> tuple[int, str]:
        """Return the code and the text of the error for a request that was not found.

        The text names the recorded requests of the method that differ least.
        """
        call = _call(params)
        candidates = [
            (_call_differences(each, call), user is not None and _user_of(each) != user, each)
            for each in self._requests
            if each.method == method
        ]
        candidates.sort(key=lambda candidate: (len(candidate[0]), candidate[1]))
        closest: list[str] = []
        for differences, is_of_other, each in candidates[:_CLOSEST_MAX]:
            text = f"record {each.record}"
            if is_of_other:
                text += f" of the user {_user_of(each)!r}"
            if differences:
                paths = ", ".join(path for path, *_ in differences[:_PATHS_MAX])
                more = ", …" if len(differences) > _PATHS_MAX else ""
                text += f", which differs at {paths}{more}"
            elif not is_of_other:
                text += ", which was answered already"
            closest.append(text)
        shown = shortened(json_text(without_meta(params)), _PARAMS_CHARACTERS_MAX)
        for_user = "" if user is None else f" for the user {user!r}"
        problem = f"{method} {shown} was not recorded{for_user}"
        if not closest:
            return METHOD_NOT_FOUND, f"{problem}, nor any other {method}"
        return INVALID_PARAMS, f"{problem}; closest recorded requests: {'; '.join(closest)}"

    def _first(
        self,
        requests: Sequence[RecordedMessage],
        method: str,
        params: Raw | None,
        user: str | None,
    ) -> RecordedMessage | None:
        call = _call(params)
        rules: list[Callable[[RecordedMessage, bytes], bool]] = [self._is_same]
        if INPUT_RESPONSES in members_of(params):
            rules.append(_is_alike)
        if self._is_redacted:
            rules.append(partial(_is_alike, by_shape=True))
        found = (
            each
            for matches in rules
            for each in _of_user(requests, method, user)
            if matches(each, call)
        )
        return next(found, None)

    def _is_same(self, recorded: RecordedMessage, call: bytes) -> bool:
        if recorded.method == INITIALIZE:
            return True
        if recorded.index not in self._hashes:
            self._hashes[recorded.index] = hash(_call(recorded.body))
        return self._hashes[recorded.index] == hash(call) and _call(recorded.body) == call


def _of_user(
    messages: Iterable[RecordedMessage], method: str, user: str | None
) -> Iterator[RecordedMessage]:
    """Return the messages of a method and a user, or of any user."""
    return (
        each
        for each in messages
        if each.method == method and (user is None or _user_of(each) == user)
    )


def _user_of(message: RecordedMessage) -> str | None:
    """Return the name of a recorded user; None if the message came without authentication."""
    return None if message.auth is None else message.auth.principal


def _call(params: Raw | None) -> bytes:
    """Return the params that are compared; some clients send empty arguments, some send none."""
    return msgspec.json.encode({"arguments": {}, **without_meta(params)}, order="sorted")


def _call_differences(recorded: RecordedMessage, call: bytes) -> Sequence[JsonDifference]:
    return json_differences(_call(recorded.body), call)


def _is_alike(recorded: RecordedMessage, call: bytes, *, by_shape: bool = False) -> bool:
    """Return whether a retry differs in its input responses only, and they decide the same.

    With `by_shape`, its other values need only have the shapes of the recorded ones.
    """
    for path, old, new in _call_differences(recorded, call):
        is_response = _INPUT_RESPONSES_PATH.match(path) is not None
        if not (is_response or (by_shape and _shape(old) == _shape(new))):
            return False
    recorded_responses, responses = (
        members_of(members_of(each).get(INPUT_RESPONSES)) for each in (_call(recorded.body), call)
    )
    return recorded_responses.keys() == responses.keys() and all(
        _is_same_decision(response, responses[key]) for key, response in recorded_responses.items()
    )


def _is_same_decision(recorded: object, live: object) -> bool:
    """Return whether two input responses are of one kind, by their members and action."""
    old, new = members_of(recorded), members_of(live)
    if not (old and new):
        return recorded == live
    return old.get("action") == new.get("action") and not old.keys().isdisjoint(new)


def _shape(value: Any) -> str:
    """Return a value as JSON, with one digit or letter in place of each that it has."""
    text = "" if value is UNSET else json_text(value)
    return "".join(
        ("0" if c.isdigit() else "a" if c.islower() else "A" if c.isupper() else c)
        if c.isascii()
        else str(len(c.encode()))
        for c in text
    )


# Version negotiation ------------------------------------------------------------------------------
#
# A client may find out in several ways whether a server is stateless or has a handshake. A mock
# answers discovery and handshakes as its server would have, whether they were recorded or not.


def negotiation_response(recorded: Conversation, request: Request) -> bytes | None:
    """Return the response to a ping, a handshake or discovery that was not recorded.

    Return None for any other request, and for a handshake with a recorded legacy server.
    """
    stateless = recorded.stateless_request
    protocol_version = None if stateless is None else protocol_version_of(stateless.body)
    if request.method == PING:
        return encode_response(request.id, {})
    if request.method == INITIALIZE and protocol_version is not None:
        requested = members_of(request.params).get("protocolVersion")
        data = {"supported": [protocol_version], "requested": requested}
        text = "this is a mock: only stateless requests were recorded, and no handshake"
        return encode_error(request.id, UNSUPPORTED_PROTOCOL_VERSION, text, data)
    if request.method != DISCOVER:
        return None
    if protocol_version is None:
        text = "this is a mock: only a session with a handshake was recorded"
        return encode_error(request.id, METHOD_NOT_FOUND, text)
    prefixes = (each.method.partition("/")[0] for each in recorded.of("client", "request"))
    metas = (
        members_of(members_of(each.body).get("_meta")) for each in recorded.of("server", "result")
    )
    server_info = next((meta[SERVER_INFO] for meta in metas if SERVER_INFO in meta), None)
    discovered: Mapping[str, Any] = {
        "resultType": "complete",
        "supportedVersions": [protocol_version],
        "capabilities": {
            _CAPABILITIES[prefix]: {} for prefix in prefixes if prefix in _CAPABILITIES
        },
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {} if server_info is None else {SERVER_INFO: server_info},
    }
    return encode_response(request.id, discovered)


def mocked_protocol_versions(recorded: Conversation) -> Sequence[str]:
    """Return the protocol versions that a mock serves, newest first.

    They are those with a handshake, or the stateless ones, or both, for which the recorded server
    gave results; if it gave none, those for which it got requests.
    """
    requests = recorded.of("client", "request")
    responses = recorded.responses
    successful = [
        each
        for each in requests
        if each.index in responses and responses[each.index].kind == "result"
    ]
    handshakes = {protocol_version_of(each.body) is None for each in successful or requests}
    return [
        name
        for name in ALL_PROTOCOL_VERSIONS
        if PROTOCOL_VERSIONS[name].has_handshake in (handshakes or {True})
    ]


# One session --------------------------------------------------------------------------------------


class MockSession:
    """A session of a mock server with one client.

    With `is_paced` the mock waits as long as the recorded server before each message. With
    `repeats` a recorded request can be answered again once it is answered. With `users` only their
    requests are answered: a message comes from `user`, or else from its sender.

    Attributes:
        unrecorded: Descriptions of the first requests without a recorded response.
        negotiated: An event that is set when the handshake has been answered.
        closing: An event that is set when the session begins to close.
    """

    def __init__(
        self,
        recorded: Conversation,
        channel: Channel,
        *,
        is_paced: bool,
        limits: Limits,
        repeats: bool,
        users: Collection[str] | None,
        user: str | None,
    ) -> None:
        self.unrecorded: list[str] = []
        self.matcher = RequestMatcher(recorded, users)
        self._distinguishes_senders = users is not None and user is None
        self._user = user
        self.negotiated = LightEvent()
        self.closing = LightEvent()
        self.protocol_version: ProtocolVersion | None = None
        self.has_begun = False
        self._repeats = repeats
        self._scope = trio.CancelScope()
        self._recorded = recorded
        self._peer = LivePeer(channel, limits)
        self._is_paced = is_paced
        self._nursery: trio.Nursery
        self._scopes: dict[Id, trio.CancelScope] = {}
        self._live_requests: dict[int | None, Request] = {}
        self._in_progress: set[int] = set()
        self._sent_requests: set[int] = set()
        self._awaited_responses: dict[int, trio.Event] = {}

    @property
    def connection(self) -> Self:
        """The object that has the negotiated protocol version."""
        return self

    @property
    def may_be_renewed(self) -> bool:
        """False: a mock is not recorded."""
        return False

    def shut(self, cause: str) -> None:  # noqa: ARG002  as `Session.shut`
        """Close the session; callable from any task."""
        self.closing.set()
        self._scope.cancel()

    async def run(self) -> None:
        """Serve the client until it disconnects, or until `shut`; close the channel."""
        try:
            with self._scope:
                async with trio.open_nursery() as writing:
                    writing.start_soon(self._peer.write)
                    async with trio.open_nursery() as self._nursery:
                        self._send_caused_by(None)
                        with suppress(ConnectionLost):
                            await self._peer.read(self._receive)
                        drain_seconds = self._peer.limits.shutdown.drain_seconds
                        deadline = trio.current_time() + drain_seconds
                        self._nursery.cancel_scope.deadline = deadline
                    writing.cancel_scope.deadline = deadline
                    await self._peer.drain()
                    writing.cancel_scope.cancel()
        finally:
            self.closing.set()
            await self._peer.channel.aclose()

    # Messages of the client.

    def _receive(self, message: Message | Lost, sender: AuthInfo | None) -> None:
        user = self._user
        if self._distinguishes_senders and sender is not None:
            user = sender.principal
        match message:
            case Request():
                self._receive_request(message, user)
            case Notification():
                self._receive_notification(message, user)
            case Response() | ErrorResponse():
                index = recorded_index(message.id)
                if index is not None and index in self._awaited_responses:
                    self._awaited_responses.pop(index).set()
                    if (response := self._recorded.responses.get(index)) is not None:
                        self._send_caused_by(response)
            case Malformed(id=int() | str(), is_request=True):
                error = encode_error(message.id, message.code, message.message)
                self._peer.put(error, message.id, is_response=True)
            case _:
                pass

    def _receive_request(self, request: Request, user: str | None) -> None:
        self.has_begun = True
        matcher, method, params = self.matcher, request.method, request.params
        recorded = matcher.find(method, params, user)
        if recorded is None and self._repeats:
            recorded = matcher.find_again(method, params, user, self._in_progress)
        repeatable = None
        if recorded is None or self._recorded.lacks_response(recorded):
            repeatable = matcher.find_repeatable(method, params, user)
        if repeatable is not None:
            response = self._recorded.responses[repeatable.index]
            encoded = encode_recorded_response(response, request.id)
            self._peer.put(encoded, request.id, is_response=True)
        elif recorded is not None:
            self._live_requests[recorded.index] = request
            self._in_progress.add(recorded.index)
            self._send_caused_by(recorded, request.id)
        elif (encoded_response := negotiation_response(self._recorded, request)) is not None:
            self._peer.put(encoded_response, request.id, is_response=True)
        else:
            code, text = matcher.error_for(method, params, user)
            if len(self.unrecorded) < _UNRECORDED_MAX:
                self.unrecorded.append(shortened(text, _UNRECORDED_CHARACTERS_MAX))
            error = encode_error(request.id, code, f"this is a mock: {text}")
            self._peer.put(error, request.id, is_response=True)

    def _receive_notification(self, message: Notification, user: str | None) -> None:
        request_id = reference_of(message) if message.method == CANCELLED else None
        if request_id is not None:
            # Send no more messages of a request that the client has cancelled.
            if request_id in self._scopes:
                self._scopes[request_id].cancel()
            cancelled = [
                index for index, request in self._live_requests.items() if request.id == request_id
            ]
            for index in cancelled:
                del self._live_requests[index]
            self._in_progress.difference_update(cancelled)
        recorded = self.matcher.find_notification(message.method, user)
        if recorded is not None:
            self._send_caused_by(recorded)

    # Messages of the server.

    def _send_caused_by(self, cause: RecordedMessage | None, request_id: Id | None = None) -> None:
        """Send the recorded server's messages that `cause` resulted in.

        Those that need not wait are sent at once, the others in a task.
        """
        messages = self._recorded.caused.get(None if cause is None else cause.index, [])
        requests = [each for each in messages if each.kind == "request"]
        position = 0
        while position < len(messages):
            if self._is_paced or self._response_awaited(requests, messages[position]) is not None:
                break
            self._send(messages[position])
            position += 1
        else:
            self._reject_without_response(cause)
            return
        scope = trio.CancelScope()
        if request_id is not None:
            self._scopes[request_id] = scope

        async def send_later() -> None:
            begin, begin_ns = trio.current_time(), 0 if cause is None else cause.time_ns
            with scope:
                for message in messages[position:]:
                    while (answered := self._response_awaited(requests, message)) is not None:
                        await answered.wait()
                    if self._is_paced:
                        await trio.sleep_until(begin + (message.time_ns - begin_ns) / 1e9)
                    self._send(message)
                self._reject_without_response(cause)
            if request_id is not None:
                self._scopes.pop(request_id, None)

        self._nursery.start_soon(send_later)

    def _reject_without_response(self, cause: RecordedMessage | None) -> None:
        """Reject a request without a recorded response; its client would wait for it in vain."""
        if cause is None or cause.index not in self._in_progress:
            return
        if not self._recorded.lacks_response(cause):
            return
        self._in_progress.discard(cause.index)
        request_id = self._live_requests[cause.index].id
        text = f"the recording has no response to {cause.method} (record {cause.record})"
        error = encode_error(request_id, INTERNAL_ERROR, f"this is a mock: {text}")
        self._peer.put(error, request_id, is_response=True)

    def _response_awaited(
        self, requests: Sequence[RecordedMessage], message: RecordedMessage
    ) -> trio.Event | None:
        """Return the event of a response that the recorded server had before this message."""
        for request in requests:
            response = self._recorded.responses.get(request.index)
            was_before = response is not None and response.index < message.index
            if was_before and request.index in self._awaited_responses:
                return self._awaited_responses[request.index]
        return None

    def _send(self, message: RecordedMessage) -> None:
        match message.kind:
            case "request":
                self._sent_requests.add(message.index)
                self._awaited_responses[message.index] = trio.Event()
                encoded = encode_recorded_request(message, members_of(message.body))
                self._peer.put(encoded, self._related_id(message))
            case "notification":
                reference = self._live_reference(message)
                notification = encode_recorded_notification(
                    message, members_of(message.body), reference
                )
                if notification is not None:
                    self._peer.put(notification, self._related_id(message))
            case _ if (index := message.request_index) in self._live_requests:
                assert index is not None
                request_id = self._live_requests[index].id
                self._in_progress.discard(index)
                if message.method == INITIALIZE and message.kind == "result":
                    agreed = members_of(message.body).get("protocolVersion")
                    self.protocol_version = PROTOCOL_VERSIONS.get(str(agreed))
                    self.negotiated.set()
                encoded = encode_recorded_response(message, request_id)
                self._peer.put(encoded, request_id, is_response=True)
            case _:
                pass  # The client has cancelled the request.

    def _related_id(self, message: RecordedMessage) -> Id | None:
        """Return the id of the live request to which a message refers, or that caused it."""
        for index in (message.request_index, message.cause_index):
            if index in self._live_requests:
                return self._live_requests[index].id
        return None

    def _live_reference(self, message: RecordedMessage) -> Id | None:
        """Return the live token or id to which a notification refers."""
        index = message.request_index
        if index in self._live_requests:
            request = self._live_requests[index]
            return progress_token_of(request.params) if message.method == PROGRESS else request.id
        return None if index is None or index not in self._sent_requests else live_id(index)


# The server ---------------------------------------------------------------------------------------


@attrs.define(kw_only=True, eq=False, repr=False)
class MockApplication(OtherSessionSource[MockSession]):
    """A mock in the place of a `Server`, for the functions that serve it."""

    make_session: Callable[[Channel], tuple[MockSession, Callable[[], Awaitable[None]]]]

    def new_session(self, channel: Channel) -> tuple[MockSession, Callable[[], Awaitable[None]]]:
        """Return a session, and the function that serves the session to its end."""
        return self.make_session(channel)


def mock_server(
    path: str | os.PathLike[str],
    *,
    strict: bool = False,
    pace: bool = False,
    channel: int | None = None,
    user: str | None = None,
    tokens: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> "MockServer":
    """Return a mock of the server in a recording, as a target for `Client`.

    Args:
        path: A recording of any role.
        strict: Whether the mock, as a context manager, checks at its end that its clients made the
            recorded requests and no others.
        pace: Whether the mock waits as long as the recorded server before each message.
        channel: The session in a recording of several.
        user: A user in the recording of a server with authentication: every client gets what this
            user got.
        tokens: The users in such a recording, by the bearer tokens that stand for them. Over HTTP
            and WebSocket, a client with one of these tokens gets what its user got; any other
            client gets status 401. The tokens are not kept.
        limits: The limits of the sessions.

    Raises:
        RecordingError: The file is no recording, or holds several sessions and no `channel` is
            chosen.
        ValueError: A user has no request in the recording; a token is empty or has characters other
            than visible ASCII; or both `user` and `tokens` are given.
    """
    recorded = load_conversation(path, channel=channel)
    if tokens is not None and user is not None:
        raise ValueError("give either user= or tokens=, not both")
    users: Collection[str] | None = None if user is None else (user,)
    auth = None
    if tokens is not None:
        from mcp_trio._auth.resource_server import ResourceServer
        from mcp_trio._auth.verification import StaticTokens

        users, auth = frozenset(tokens.values()), ResourceServer(StaticTokens(tokens))
    known = {_user_of(each) for each in recorded.of("client", "request")} - {None}
    if unknown := sorted(set(users or ()) - known):
        names = ", ".join(map(repr, sorted(map(str, known)))) or "none"
        raise ValueError(f"no request of the user {unknown[0]!r} was recorded; users: {names}")
    return MockServer(
        recorded=recorded,
        strict=strict,
        pace=pace,
        limits=limits,
        user=user,
        users=users,
        auth=auth,
    )


@attrs.define(kw_only=True, eq=False)
class MockServer:
    """A server that gives the responses of a recorded server.

    It is a target for `Client`. `serve_http`, `serve_websocket`, `serve_unix` and `serve_tcp` serve
    it to any client. Each session starts at the beginning of the recording.

    A request gets the response to the first recorded request with the same method and params that
    was not made before; `_meta`, empty arguments and the params of `initialize` are not compared.
    Lists and pings can be repeated. Any other request gets an error that names the closest recorded
    requests. The notifications and requests of the recorded server come with the response, in their
    order. Over HTTP, stateless clients have no sessions: unless the mock is strict, recorded
    requests can be repeated there. Users count only with `user` or `tokens` of `mock_server`.

    As a context manager, a strict mock calls `check` at its end.
    """

    limits: Limits
    _recorded: Conversation = attrs.field(alias="recorded")
    _is_strict: bool = attrs.field(alias="strict")
    _is_paced: bool = attrs.field(alias="pace")
    _user: str | None = attrs.field(alias="user")
    _users: Collection[str] | None = attrs.field(alias="users")
    _auth: "ResourceServer | None" = attrs.field(alias="auth")
    _unrecorded: list[str] = attrs.field(factory=list[str], init=False)
    _unused: list[RecordedMessage] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._unused = RequestMatcher(self._recorded, self._users).unused

    @property
    def unrecorded(self) -> tuple[str, ...]:
        """Descriptions of the requests that were not recorded, in all sessions that have ended.

        There are at most 1,000, the first ones.
        """
        return tuple(self._unrecorded)

    @property
    def unused(self) -> tuple[str, ...]:
        """Descriptions of the recorded requests that were not made in the last ended session."""
        return tuple(f"{each.method} (record {each.record})" for each in self._unused)

    async def serve(self, channel: Channel) -> None:
        """Serve one session over `channel`; return when the client has disconnected.

        The channel is closed, also if this call is cancelled.

        Raises:
            ValueError: The mock has `tokens`, which clients over this channel cannot send.
        """
        self._check_no_tokens()
        _, run = self._new_session(channel)
        await run()

    def _new_session(self, channel: Channel) -> tuple[MockSession, Callable[[], Awaitable[None]]]:
        session = MockSession(
            self._recorded,
            channel,
            is_paced=self._is_paced,
            limits=self.limits,
            repeats=isinstance(channel, StatelessChannel) and not self._is_strict,
            users=self._users,
            user=self._user,
        )

        async def run() -> None:
            try:
                await session.run()
            finally:
                self._unrecorded += session.unrecorded[: _UNRECORDED_MAX - len(self._unrecorded)]
                self._unused = session.matcher.unused

        return session, run

    async def serve_http(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        allows_cors: bool = False,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **access: Unpack["AccessOptions"],
    ) -> None:
        """Serve HTTP until cancelled, as `Server.serve_http` does, under the recorded versions.

        The URL of the MCP endpoint is reported through `task_status`. Port 0 is any free port.

        Raises:
            OSError: The address cannot be bound.
            ValueError: The access options contradict each other.
        """
        from mcp_trio._server.http_serve import HttpAddress, serve_http

        address = HttpAddress(host=host, port=port)
        options = cast("HttpOptions", {**access, "allows_cors": allows_cors})
        await serve_http(self._application(), address, options, task_status=task_status)

    async def serve_websocket(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **access: Unpack["AccessOptions"],
    ) -> None:
        """Serve WebSocket until cancelled, as `Server.serve_websocket` does.

        The URL is reported through `task_status`.

        Raises:
            OSError: The address cannot be bound.
            ValueError: The access options contradict each other.
        """
        from mcp_trio._server.sockets import serve_websocket

        options = cast("WebSocketOptions", access)
        await serve_websocket(
            self._application(), options, host=host, port=port, task_status=task_status
        )

    async def serve_unix(
        self,
        path: str | os.PathLike[str],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a Unix socket until cancelled, as `Server.serve_unix` does.

        The URL is reported through `task_status`.

        Raises:
            OSError: The file cannot be made, or another server listens there.
            ValueError: The mock has `tokens`, which need HTTP or WebSocket.
        """
        self._check_no_tokens()
        from mcp_trio._server.sockets import serve_unix

        await serve_unix(self._application(), path, task_status=task_status)

    async def serve_tcp(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        is_open: bool = False,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a TCP port until cancelled, as `Server.serve_tcp` does.

        The URL is reported through `task_status`.

        Raises:
            OSError: The address cannot be bound.
            ValueError: The address can be reached from other machines, and `is_open` is not set;
                or the mock has `tokens`, which need HTTP or WebSocket.
        """
        self._check_no_tokens()
        from mcp_trio._server.sockets import serve_tcp

        await serve_tcp(
            self._application(), host=host, port=port, is_open=is_open, task_status=task_status
        )

    def _check_no_tokens(self) -> None:
        if self._auth is not None:
            raise ValueError("tokens= needs HTTP or WebSocket; for one user give user=")

    def _application(self) -> MockApplication:
        return MockApplication(
            limits=self.limits,
            auth=self._auth,
            protocol_versions=mocked_protocol_versions(self._recorded),
            make_session=self._new_session,
        )

    def check(self) -> None:
        """Check that the clients made the recorded requests and no others.

        Raises:
            MockMismatch: They did not; the text has a line for each request.
        """
        lines = [*self.unrecorded, *(f"not requested: {each}" for each in self.unused)]
        if lines:
            raise MockMismatch("\n".join(lines))

    def __enter__(self) -> Self:
        """Return the mock."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Check a strict mock, unless the block raised an error.

        Raises:
            MockMismatch: As for `check`.
        """
        if self._is_strict and error is None:
            self.check()


# The process --------------------------------------------------------------------------------------


def run_mock(mock: MockServer) -> int:
    """Serve one session over stdin and stdout of this process, in a Trio run.

    The session ends when the client disconnects, when the parent process exits, and at SIGINT and
    SIGTERM. Return the exit status: 0, or 128 plus the number of the signal.
    """
    parent_pid = os.getppid()
    # Before Trio starts: if stdin was never open, Trio would use its descriptor for something else.
    descriptors = divert_stdio()

    async def serve(*, task_status: trio.TaskStatus[str]) -> None:
        channel = open_stdio_channel(*descriptors, limits=mock.limits)
        task_status.started("stdio")
        await mock.serve(channel)

    serve_process = partial(
        serve_until_signal,
        serve,
        lambda _: None,
        mock.limits.shutdown.exit_seconds,
        until=partial(wait_parent_death, parent_pid=parent_pid, limits=mock.limits),
    )
    number = trio.run(serve_process)
    return SIGNAL_STATUS_BASE + number if number else 0
