"""Mocks: a recorded server, for live clients."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, cast

import attrs
import trio
from msgspec import Raw

from mcp_trio._journal.conversation import (
    CANCELLED,
    PROGRESS,
    Conversation,
    Id,
    RecordedMessage,
    members,
    protocol_version_of,
    reference_of,
    token_of,
)
from mcp_trio._jsonrpc.messages import (
    ErrorResponse,
    Lost,
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
    Wire,
    answer_frame,
    id_of,
    index_of,
    notification_frame,
    request_frame,
)
from mcp_trio._replay.mock_matching import Matching, Miss
from mcp_trio._replay.trace import load_conversation
from mcp_trio._server.http_app import StandIn
from mcp_trio._server.stdio import SIGNAL_STATUS_BASE, SIGNALS
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.http_sessions import StatelessChannel
from mcp_trio._transports.stdio import divert_stdio, open_stdio_channel, wait_parent_death
from mcp_trio.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    ConnectionLost,
    MockMismatch,
)
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from mcp_trio._server.http_options import HttpOptions, WhoMayCome
    from mcp_trio._server.sockets import WebSocketOptions


# --------------------
# What a mock says to a client that begins otherwise than the recorded one.
#
# A client finds out which era a server is of; some ask for it first, and some do not. So who asks a
# recorded modern server for what it is, or a legacy one, gets the answer that this server would
# have given, recorded or not.


_Answer = Callable[[Conversation, Request], bytes | None]

# The capability that goes with the methods of each name before the slash.
_CAPABILITIES: Final = {
    "tools": "tools",
    "prompts": "prompts",
    "resources": "resources",
    "completion": "completions",
}


def answer_of_era(recorded: Conversation, request: Request) -> bytes | None:
    """The answer to a request that is no part of what was recorded, but of its era.

    None if it is neither: it is a miss.
    """
    answer = _ANSWERS.get(request.method)
    return None if answer is None else answer(recorded, request)


def _ping(_: Conversation, request: Request) -> bytes:
    return encode_response(request.id, {})


def _initialize(recorded: Conversation, request: Request) -> bytes | None:
    """A modern server shakes no hands."""
    protocol_version = _stateless_protocol_version(recorded)
    if protocol_version is None:
        return None
    requested = members(request.params).get("protocolVersion")
    data = {"supported": [protocol_version], "requested": requested}
    text = "this is a mock: only a modern session was recorded"
    return encode_error(request.id, UNSUPPORTED_PROTOCOL_VERSION, text, data)


def _discover(recorded: Conversation, request: Request) -> bytes:
    """A legacy server does not know the word, and a modern one has to."""
    protocol_version = _stateless_protocol_version(recorded)
    if protocol_version is None:
        text = "this is a mock: only a legacy session was recorded"
        return encode_error(request.id, METHOD_NOT_FOUND, text)
    discovered = {
        "resultType": "complete",
        "supportedVersions": [protocol_version],
        "capabilities": _capabilities(recorded),
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": _server_info(recorded),
    }
    return encode_response(request.id, discovered)


def _stateless_protocol_version(recorded: Conversation) -> str | None:
    request = recorded.stateless_request
    return None if request is None else protocol_version_of(request.body)


def _capabilities(recorded: Conversation) -> Mapping[str, Any]:
    """What a server must have announced that was asked such things."""
    asked = (said.method.partition("/")[0] for said in recorded.of("client", "request"))
    return {_CAPABILITIES[name]: {} for name in asked if name in _CAPABILITIES}


def _server_info(recorded: Conversation) -> Mapping[str, Any]:
    """Who the server is, in what it has said with any result."""
    for said in recorded.of("server", "result"):
        meta: Any = members(said.body).get("_meta")
        if isinstance(meta, dict) and SERVER_INFO in meta:
            return {SERVER_INFO: meta[SERVER_INFO]}
    return {}


_ANSWERS: Final[Mapping[str, _Answer]] = {
    PING: _ping,
    INITIALIZE: _initialize,
    DISCOVER: _discover,
}


# --------------------
# One client of a mocked server, from its first message to its last.
#
# A request is answered as the recorded one was that it is the same as. What the recorded server
# said due to a request (see `Conversation`) comes with it, in order: notifications before the
# answer, and questions, whose replies are waited for where the recorded server had them before it
# went on. Requests in flight at once do not wait for each other.
#
# All modern clients over HTTP together are one client here, who asks the same more often than one.


class MockSession:
    """Plays the server of `recorded` over `channel`.

    `misses` are the requests that were not recorded; `matching` knows the recorded ones that nobody
    has asked. With `repeats`, each of these may be asked anew once it is answered. `negotiated` is
    set when the handshake has been answered, under `protocol_version`; `closing` when the session
    begins to end. The client `has_begun` when it has asked something.
    """

    def __init__(
        self,
        recorded: Conversation,
        channel: Channel,
        *,
        is_paced: bool,
        limits: Limits,
        repeats: bool = False,
    ) -> None:
        self.misses: list[Miss] = []
        self.matching = Matching(recorded)
        self.negotiated = LightEvent()
        self.closing = LightEvent()
        self.protocol_version: ProtocolVersion | None = None
        self.has_begun = False
        self._repeats = repeats
        self._playing = trio.CancelScope()
        self._recorded = recorded
        self._wire = Wire(channel, limits)
        self._is_paced = is_paced
        self._nursery: trio.Nursery
        self._scopes: dict[Id, trio.CancelScope] = {}
        self._live: dict[int | None, Request] = {}
        self._unanswered: set[int] = set()
        self._asked: set[int] = set()
        self._unreplied: dict[int, trio.Event] = {}

    @property
    def connection(self) -> Self:
        """Where the revision is, as in an engine's session."""
        return self

    @property
    def may_be_followed(self) -> bool:
        """No: nothing is recorded of a mock."""
        return False

    @property
    def peer_info(self) -> None:
        """Who the client is does not matter to a mock."""

    @property
    def peer_capabilities(self) -> None:
        """What the client can do, as little."""

    def shut(self, cause: str) -> None:  # noqa: ARG002  nothing that plays on asks why
        """Stops playing, from any task."""
        self.closing.set()
        self._playing.cancel()

    async def run(self) -> None:
        """Plays until the client leaves, or `shut`; closes the channel."""
        try:
            with self._playing:
                await self._play()
        finally:
            self.closing.set()
            await self._wire.channel.aclose()

    async def _play(self) -> None:
        async with trio.open_nursery() as writing:
            writing.start_soon(self._wire.write)
            async with trio.open_nursery() as self._nursery:
                self._act(None)
                with suppress(ConnectionLost):
                    await self._wire.listen(self._hear)
                deadline = trio.current_time() + self._wire.limits.shutdown.drain_seconds
                self._nursery.cancel_scope.deadline = deadline
            writing.cancel_scope.deadline = deadline
            await self._wire.drain()
            writing.cancel_scope.cancel()

    # What the client says.

    def _hear(self, message: Message | Lost) -> None:
        match message:
            case Request():
                self._hear_request(message)
            case Notification():
                self._hear_notification(message)
            case Response() | ErrorResponse():
                self._hear_reply(message.id)
            case Malformed(id=int() | str(), is_request=True):
                frame = encode_error(message.id, message.code, message.message)
                self._wire.say(frame, message.id, is_answer=True)
            case _:
                pass

    def _hear_request(self, request: Request) -> None:
        self.has_begun = True
        matching, method, params = self.matching, request.method, request.params
        if (said := self._found(method, params)) is not None:
            self._live[said.index] = request
            self._unanswered.add(said.index)
            self._act(said, request.id)
        elif (said := matching.find_again(method, params)) is not None:
            self._answer_again(said, request.id)
        elif (answer := answer_of_era(self._recorded, request)) is not None:
            self._wire.say(answer, request.id, is_answer=True)
        else:
            self._reject(request)

    def _found(self, method: str, params: Raw | None) -> RecordedMessage | None:
        """The recorded request that is to be played; None if there is none any more."""
        said = self.matching.find(method, params)
        if said is None and self._repeats:
            said = self.matching.find_anew(method, params, self._unanswered)
        return said

    def _answer_again(self, said: RecordedMessage, request_id: Id) -> None:
        answer = self._recorded.answers.get(said.index)
        if answer is not None:
            self._wire.say(answer_frame(answer, request_id), request_id, is_answer=True)

    def _reject(self, request: Request) -> None:
        miss = self.matching.miss(request.method, request.params)
        self.misses.append(miss)
        code = INVALID_PARAMS if miss.nearest else METHOD_NOT_FOUND
        frame = encode_error(request.id, code, f"this is a mock: {miss}")
        self._wire.say(frame, request.id, is_answer=True)

    def _hear_notification(self, message: Notification) -> None:
        if message.method == CANCELLED:
            request_id = reference_of(message)
            if request_id is not None:
                self._leave(request_id)
        said = self.matching.find_notification(message.method)
        if said is not None:
            self._act(said)

    def _leave(self, request_id: Id) -> None:
        """The client wants to hear no more of a request."""
        if request_id in self._scopes:
            self._scopes[request_id].cancel()
        left = [index for index, request in self._live.items() if request.id == request_id]
        for index in left:
            del self._live[index]
        self._unanswered.difference_update(left)

    def _hear_reply(self, question_id: Id | None) -> None:
        index = index_of(question_id)
        if index is None or index not in self._unreplied:
            return
        self._unreplied.pop(index).set()
        reply = self._recorded.answers.get(index)
        if reply is not None:
            self._act(reply)

    # What the server says due to it.

    def _act(self, owner: RecordedMessage | None, request_id: Id | None = None) -> None:
        """Say now what nothing has to be waited for, and the rest in a task of its own."""
        lines = self._due_to(owner)
        place = 0
        while place < len(lines) and self._may_say(lines, place):
            self._say(lines[place])
            place += 1
        if place < len(lines):
            scope = trio.CancelScope()
            if request_id is not None:
                self._scopes[request_id] = scope
            self._nursery.start_soon(self._perform, owner, place, request_id, scope)

    def _due_to(self, owner: RecordedMessage | None) -> Sequence[RecordedMessage]:
        return self._recorded.caused_by(None if owner is None else owner.index)

    async def _perform(
        self,
        owner: RecordedMessage | None,
        begin_place: int,
        request_id: Id | None,
        scope: trio.CancelScope,
    ) -> None:
        lines, begin_ns = self._due_to(owner), 0 if owner is None else owner.time_ns
        begin = trio.current_time()
        with scope:
            for place in range(begin_place, len(lines)):
                while (replied := self._awaited(lines, place)) is not None:
                    await replied.wait()
                if self._is_paced:
                    await trio.sleep_until(begin + (lines[place].time_ns - begin_ns) / 1e9)
                self._say(lines[place])
        if request_id is not None:
            self._scopes.pop(request_id, None)

    def _may_say(self, lines: Sequence[RecordedMessage], place: int) -> bool:
        return not self._is_paced and self._awaited(lines, place) is None

    def _awaited(self, lines: Sequence[RecordedMessage], place: int) -> trio.Event | None:
        """A reply that the recorded server had before it went on here, and that is not there."""
        for question in lines[:place]:
            reply = self._recorded.answers.get(question.index)
            is_due = reply is not None and reply.index < lines[place].index
            if is_due and question.index in self._unreplied:
                return self._unreplied[question.index]
        return None

    def _say(self, said: RecordedMessage) -> None:
        match said.kind:
            case "request":
                self._asked.add(said.index)
                self._unreplied[said.index] = trio.Event()
                frame = request_frame(said, members(said.body))
                self._wire.say(frame, self._live_about(said))
            case "notification":
                self._tell(said)
            case _:
                if said.request_index in self._live:
                    self._answer(said, self._live[said.request_index].id)

    def _answer(self, said: RecordedMessage, request_id: Id) -> None:
        assert said.request_index is not None
        self._unanswered.discard(said.request_index)
        if said.method == INITIALIZE and said.kind == "result":
            agreed = members(said.body).get("protocolVersion")
            self.protocol_version = (
                PROTOCOL_VERSIONS.get(agreed) if isinstance(agreed, str) else None
            )
            self.negotiated.set()
        self._wire.say(answer_frame(said, request_id), request_id, is_answer=True)

    def _tell(self, said: RecordedMessage) -> None:
        frame = notification_frame(said, members(said.body), self._live_reference(said))
        if frame is not None:
            self._wire.say(frame, self._live_about(said))

    def _live_about(self, said: RecordedMessage) -> Id | None:
        """The live request that it comes with: the one that it is about, or is due to."""
        for index in (said.request_index, said.cause_index):
            if index in self._live:
                return self._live[index].id
        return None

    def _live_reference(self, said: RecordedMessage) -> Id | None:
        """The token or id that the live client gave, or the id of what is taken back."""
        about = said.request_index
        if about in self._live and said.method == PROGRESS:
            return token_of(self._live[about].params)
        if about in self._live:
            return self._live[about].id
        return None if about is None or about not in self._asked else id_of(about)


# --------------------
# A mocked server over HTTP, and over connections that are sessions: a recording is served.


def spoken_in(recorded: Conversation) -> Sequence[str]:
    """The revisions of the eras in which the recorded server gave a result, from the newest.

    A client that looks for the era of its server asks in both, and gets results in one. A server
    that gave none at all is of the era in which it was asked.
    """
    asked = recorded.of("client", "request")
    answers = recorded.answers
    given = [
        each for each in asked if each.index in answers and answers[each.index].kind == "result"
    ]
    handshakes = {protocol_version_of(each.body) is None for each in given or asked} or {True}
    return [
        name
        for name in ALL_PROTOCOL_VERSIONS
        if PROTOCOL_VERSIONS[name].has_handshake in handshakes
    ]


@attrs.define(kw_only=True, eq=False)
class MockedSite(StandIn[MockSession]):
    """What is served in the place of a server: its sessions are opened, and played."""

    spoken: Sequence[str]
    open_session: Callable[[Channel], MockSession]
    play: Callable[[MockSession], Awaitable[None]]

    def opened(self, channel: Channel) -> tuple[MockSession, Callable[[], Awaitable[None]]]:
        """See `StandIn.opened`."""
        session = self.open_session(channel)
        return session, partial(self.play, session)

    async def serve_session(
        self,
        channel: Channel,
        *,
        task_status: trio.TaskStatus[MockSession] = trio.TASK_STATUS_IGNORED,
        **_: Any,
    ) -> None:
        """Play the one session of a connection."""
        session = self.open_session(channel)
        task_status.started(session)
        await self.play(session)


def mock_server(
    path: str | os.PathLike[str],
    *,
    strict: bool = False,
    pace: bool = False,
    channel: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> "MockServer":
    """The server of a recording of any role, for `Client` to connect to; see `MockServer`.

    `pace` waits as long as the recorded server did before each thing that it said.

    Raises:
        RecordingError: The file is no recording, or holds several sessions: choose a `channel`.
    """
    recorded = load_conversation(path, channel=channel)
    return MockServer(recorded=recorded, strict=strict, pace=pace, limits=limits)


@attrs.define(kw_only=True, eq=False)
class MockServer:
    """Stands in for a recorded server; each session begins at the beginning.

    It is a target of `Client`. To any client it is served by `serve_http`, `serve_websocket`,
    `serve_unix` and `serve_tcp`.

    A request is answered as the first recorded one that has its method and its params (`_meta` and
    empty arguments do not count, nor who says `initialize`) and was not asked yet; lists and pings
    may be asked again. Any other gets an error that says which recorded ones come nearest. What the
    recorded server said meanwhile, and what it asked, comes as it came then. Over HTTP modern
    clients have no session to begin: unless it is strict, what all have asked is asked anew.

    As a context manager it raises `MockMismatch` at the end, if it is strict and was asked what was
    not recorded, or was not asked all that was.
    """

    limits: Limits = DEFAULT_LIMITS
    _recorded: Conversation = attrs.field(alias="recorded")
    _is_strict: bool = attrs.field(alias="strict", default=False)
    _is_paced: bool = attrs.field(alias="pace", default=False)
    _misses: list[Miss] = attrs.field(factory=list[Miss], init=False)
    _unused: list[RecordedMessage] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._unused = self._recorded.of("client", "request")

    @property
    def misses(self) -> tuple[str, ...]:
        """A line for each request that was not recorded, in all sessions that have ended."""
        return tuple(map(str, self._misses))

    @property
    def unused(self) -> tuple[str, ...]:
        """A line for each recorded request that nobody has asked in the session that ended last."""
        return tuple(f"{said.method} (record {said.record})" for said in self._unused)

    async def serve(self, channel: Channel) -> None:
        """Serve one session over `channel`, and close that; returns when the client has left.

        Cancelled: closes the channel.
        """
        await self._play(self._open_session(channel))

    def _open_session(self, channel: Channel) -> MockSession:
        return MockSession(
            self._recorded,
            channel,
            is_paced=self._is_paced,
            limits=self.limits,
            repeats=isinstance(channel, StatelessChannel) and not self._is_strict,
        )

    async def _play(self, session: MockSession) -> None:
        try:
            await session.run()
        finally:
            self._misses += session.misses
            self._unused = session.matching.unused

    async def serve_http(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        allows_cors: bool = False,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **who: Unpack["WhoMayCome"],
    ) -> None:
        """Serve HTTP until cancelled, in the eras that were recorded, as `Server.serve_http` does.

        Reports the URL of the MCP endpoint. Port 0 is any free one.

        Raises:
            OSError: The address cannot be bound.
            ValueError: What says who may come contradicts itself.
        """
        from mcp_trio._server.http_serve import Address, serve_http

        address = Address(host=host, port=port)
        options = cast("HttpOptions", {**who, "allows_cors": allows_cors})
        await serve_http(self._site(), address, options, task_status=task_status)

    async def serve_websocket(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **who: Unpack["WhoMayCome"],
    ) -> None:
        """Serve WebSocket until cancelled, as `Server.serve_websocket` does; reports the URL.

        Raises:
            OSError: The address cannot be bound.
            ValueError: What says who may come contradicts itself.
        """
        from mcp_trio._server.sockets import serve_websocket

        options = cast("WebSocketOptions", who)
        await serve_websocket(self._site(), options, host=host, port=port, task_status=task_status)

    async def serve_unix(
        self,
        path: str | os.PathLike[str],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve at a socket file until cancelled, as `Server.serve_unix` does; reports the URL.

        Raises:
            OSError: The file cannot be made, or another server listens there.
        """
        from mcp_trio._server.sockets import serve_unix

        await serve_unix(self._site(), path, task_status=task_status)

    async def serve_tcp(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        is_open: bool = False,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve at a TCP port until cancelled, as `Server.serve_tcp` does; reports the URL.

        Raises:
            OSError: The address cannot be bound.
            ValueError: It would be open to others, and `is_open` does not say so.
        """
        from mcp_trio._server.sockets import serve_tcp

        await serve_tcp(
            self._site(), host=host, port=port, is_open=is_open, task_status=task_status
        )

    def _site(self) -> MockedSite:
        return MockedSite(
            limits=self.limits,
            spoken=spoken_in(self._recorded),
            open_session=self._open_session,
            play=self._play,
        )

    def check(self) -> None:
        """Compare what was asked with what was recorded, strict or not.

        Raises:
            MockMismatch: They differ; a line for each request.
        """
        lines = [*self.misses, *(f"never asked: {each}" for each in self.unused)]
        if lines:
            raise MockMismatch("\n".join(lines))

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Check, if it is strict and nothing else went wrong.

        Raises:
            MockMismatch: As `check`.
        """
        if self._is_strict and error is None:
            self.check()


# --------------------
# A mocked server as a process over stdio, for clients in any language.


def run_mock(mock: MockServer) -> int:
    """Serve one session over our own stdin and stdout, in a Trio run of its own.

    Ends when the client leaves, when the parent process dies, and at SIGINT and SIGTERM.

    Returns:
        The exit status: 0, or 128 plus the number of the signal that ended it.
    """
    return trio.run(_run, mock)


async def _run(mock: MockServer) -> int:
    parent_pid = os.getppid()
    channel = open_stdio_channel(*divert_stdio(), limits=mock.limits)
    ending = _Ending()
    with trio.open_signal_receiver(*SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ending.on_signal, signals, nursery.cancel_scope)
            nursery.start_soon(_on_parent_death, parent_pid, mock.limits, nursery.cancel_scope)
            await mock.serve(channel)
            nursery.cancel_scope.cancel()
    return ending.status


async def _on_parent_death(parent_pid: int, limits: Limits, scope: trio.CancelScope) -> None:
    await wait_parent_death(parent_pid=parent_pid, limits=limits)
    scope.cancel()


@attrs.define
class _Ending:
    status: int = attrs.field(default=0, init=False)

    async def on_signal(self, signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
        async for number in signals:
            self.status = SIGNAL_STATUS_BASE + number
            scope.cancel()
