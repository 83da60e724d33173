"""Live replay: send a recorded client's messages to a live server, and compare the responses.

`replay_live` does that, and `replay_live_async` does it inside a Trio program.

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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Final, Literal, TypeAlias

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
    REFERENCES,
    SUBSCRIPTION_ID,
    RecordedMessage,
    members_of,
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
    encode_request,
)
from mcp_trio._protocol.metadata import SERVER_INFO
from mcp_trio._protocol.methods import DISCOVER, PING
from mcp_trio._replay.live_matching import (
    NEGOTIATED_VERSION_PATH,
    NotificationKey,
    ResponseMatcher,
    check_protocol_version,
    notification_key,
    with_recorded_keys,
)
from mcp_trio._replay.live_messages import LivePeer, recorded_index
from mcp_trio._replay.trace import load_conversation
from mcp_trio._session.exceptions import sole_exception
from mcp_trio._transports.channel import Channel, Received
from mcp_trio.errors import ConnectionLost, NothingCompared, OutcomeUnknown
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# The id of a request that follows the recorded ones.
_FINAL_REQUEST_ID: Final = "the last ping"

# A server that leaves so many requests in a row unanswered, and sends nothing else, is lost.
_SILENT_REQUESTS_MAX: Final = 2


# The driver ---------------------------------------------------------------------------------------


@attrs.define(eq=False, repr=False)
class ChannelWithUsers:
    """The server's end of a memory channel, which gives each message its recorded user.

    The memory channel carries only bytes. It keeps messages whole and in order, so the next user in
    `users` belongs to the next message.

    Attributes:
        channel: The server's end of the channel.
        users: The users of the messages that were sent and not yet received.
    """

    transport: ClassVar[str] = "memory"

    channel: Channel
    users: deque[AuthInfo | None] = attrs.field(factory=deque["AuthInfo | None"])

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send messages to the client."""
        await self.channel.send(messages)

    async def receive(self) -> Sequence[Received]:
        """Return the messages that have arrived, with their users."""
        received = await self.channel.receive()
        # One that is too large for the server takes its user from the deque, too.
        users = [self.users.popleft() for _ in received]
        return [
            with_sender(message, user) if isinstance(message, bytes) else message
            for message, user in zip(received, users, strict=True)
        ]

    async def aclose(self) -> None:
        """Close the channel."""
        await self.channel.aclose()


class RequestDriver:
    """A driver that sends the messages of a recorded client to one live server.

    Attributes:
        matcher: The recorded conversation, and the live server's part in it.
        channel: The channel to the live server.
        limits: The limits of the session and of its waits.
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
                    at_server = ChannelWithUsers(served.channel)
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
    """

    requests: int
    answered: int
    differences: tuple[InputDifference, ...]
    ignored: int
    unsent: int
    unreadable: int

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

_NAME_MEMBERS: Final = ("name", "uri")


def _title(method: str, params: Raw | None) -> str:
    """Return a request's method, and the name or URI in its params."""
    inner = members_of(params)
    name = next((inner[member] for member in _NAME_MEMBERS if member in inner), None)
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
        return InputsReport(
            requests=len(matcher.recorded.of("client", "request")),
            answered=len(matcher.responses),
            differences=tuple(self._found),
            ignored=self._ignored_count,
            unsent=sum(each.index not in matcher.sent for each in of_client),
            unreadable=matcher.recorded.unreadable,
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
        live_kind, live_body = "error", live.error
    else:
        result = live.result
        if recorded.kind == "result" and recorded.body is not None:
            result = with_recorded_keys(result, recorded.body)
        live_kind, live_body = "result", _compared_result(result, recorded.method)
    return (
        msgspec.json.encode({recorded.kind: recorded_body}),
        msgspec.json.encode({live_kind: live_body}),
    )


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
        NothingCompared: The recording holds no request.
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
        ignore = (*ignore, NEGOTIATED_VERSION_PATH)
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
    if not report.requests:
        raise NothingCompared(
            "nothing was compared: the recording holds no request; record a session that makes"
            " requests"
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
