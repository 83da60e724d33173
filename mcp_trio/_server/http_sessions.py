"""What lives as long as a served application: its lifespan, its sessions, its modern handlers.

It is one task, with the nursery of all sessions; these are tasks only while they have something to
do. `serve_http` runs it in its own nursery; an ASGI application, which may be mounted where nobody
tells it that it begins, starts it as a system task with the first request.
"""

import logging
import math
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any, Protocol

import attrs
import trio

from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio._protocol.http_requests import Endpoint, KnownSession
from mcp_trio._protocol.metadata import Capabilities
from mcp_trio._protocol.versions import ProtocolVersion
from mcp_trio._recorder.writer import RecordTarget
from mcp_trio._server.handlers import SessionHttp
from mcp_trio._server.http_options import HttpStores, SessionFacts
from mcp_trio._server.sockets import HandshakeTimeouts, HasLifespan
from mcp_trio._server.subscriptions import Audience
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._session.tasks import sheltered
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.connections import doubled_seconds
from mcp_trio._transports.http_sessions import SessionChannel, StatelessChannel
from mcp_trio._transports.websocket import WebSocketChannel
from mcp_trio.limits import Limits
from mcp_trio.types import Implementation

# --------------------
# How long is waited before what ended by itself is begun again.


@attrs.define(eq=False)
class Restarts:
    """The pauses before one thing begins again: each twice as long, until it has lived for a while.

    They lie between `limits.http.restart_seconds` and `limits.http.restart_seconds_max`; what has
    lived for as long as the longest pause was sound.
    """

    limits: Limits
    _failures: int = attrs.field(default=0, init=False)

    def pause_seconds(self, lived_seconds: float) -> float:
        """How long to wait, now that it has ended after so many seconds."""
        longest_seconds = self.limits.http.restart_seconds_max
        if lived_seconds >= longest_seconds:
            self._failures = 0
        pause_seconds = doubled_seconds(
            self._failures, self.limits.http.restart_seconds, longest_seconds
        )
        self._failures += 1
        return pause_seconds


# --------------------
# The legacy sessions of a served application: by their ids, bounded, and ended when nobody comes.
#
# A session of whose client nothing was heard but the `initialize` is unused. It ends sooner, and if
# there are too many sessions, for another one: who only begins sessions keeps nobody out.
#
# An id is no proof of who somebody is (HTTP-59): a session belongs to the principal that began it.


_ID_BYTES = 32

# How often it is looked whether somebody has not come for too long.
_LOOKS_PER_EXPIRY = 10


class TooManySessionsError(Exception):
    """`limits.http.sessions_max` are open."""


class Agreed(Protocol):
    """What the two sides of a session have agreed on."""

    @property
    def protocol_version(self) -> ProtocolVersion | None:
        """The revision that is spoken; None before the handshake."""
        ...

    @property
    def peer_info(self) -> Implementation | None:
        """The name of the client, if it is known."""
        ...

    @property
    def peer_capabilities(self) -> Capabilities | None:
        """What the client can do, if that is known."""
        ...


class RunningSession(Protocol):
    """A session that somebody runs: an engine's `Session`, or one that plays a recording.

    `closing` is set when it begins to end, `negotiated` when the handshake has been answered.
    """

    closing: LightEvent
    negotiated: LightEvent

    @property
    def connection(self) -> Agreed:
        """What was agreed on."""
        ...

    @property
    def has_begun(self) -> bool:
        """Whether the client has said who it is."""
        ...

    def shut(self, cause: str) -> None:
        """Begin to end it; see `Session.shut`."""
        ...


@attrs.define(eq=False)
class HttpSession:
    """A session, its channel, and whose it is; `used_at` is when a client was last heard of."""

    id: str
    channel: SessionChannel
    principal: str | None
    used_at: float
    _among: "Sessions"
    session: RunningSession | None = attrs.field(default=None, init=False)

    @property
    def is_resting(self) -> bool:
        """Whether it has begun, and its client waits for nothing and listens to nothing."""
        return self.session is not None and self.channel.is_resting

    @property
    def is_closed(self) -> bool:
        """Whether it has begun to end."""
        return self.session is not None and self.session.closing.is_set()

    @property
    def is_negotiated(self) -> bool:
        """Whether the handshake has been answered."""
        return self.session is not None and self.session.negotiated.is_set()

    @property
    def primes_streams(self) -> bool:
        """Whether its client knows of events without a message (TRAP-37)."""
        protocol_version = (
            None if self.session is None else self.session.connection.protocol_version
        )
        return protocol_version is not None and protocol_version.primes_streams

    def close(self) -> None:
        """The client is done, or was too long away."""
        assert self.session is not None
        self.session.shut("closed")

    def forget(self) -> None:
        """It has ended."""
        self._among.forget(self)


@attrs.define(eq=False)
class Sessions:
    """See the module; `stores` is what others may know of them."""

    limits: Limits
    stores: HttpStores = attrs.field(factory=HttpStores)
    _open: dict[str, HttpSession] = attrs.field(factory=dict[str, HttpSession], init=False)
    _unused: dict[str, HttpSession] = attrs.field(factory=dict[str, HttpSession], init=False)
    _connected: int = attrs.field(default=0, init=False)

    def __iter__(self) -> Iterator[HttpSession]:
        return iter(tuple(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, principal: str | None, *, transport: str = "http") -> HttpSession:
        """A session with an id that nobody can guess (HTTP-45, HTTP-46, HTTP-60).

        Raises:
            TooManySessionsError: There is no place for it.
        """
        self._make_room()
        session_id, make = secrets.token_urlsafe(_ID_BYTES), self.stores.events
        channel = SessionChannel(
            self.limits,
            transport,
            has_one_stream=transport != "http",
            principal=principal,
            events=None if make is None else make(session_id),
        )
        begun = HttpSession(session_id, channel, principal, trio.current_time(), self)
        self._open[begun.id] = self._unused[begun.id] = begun
        return begun

    def agreed(self, session: HttpSession) -> None:
        """The handshake has been answered: others may know of the session from now on."""
        assert session.session is not None
        connection = session.session.connection
        assert connection.protocol_version is not None
        facts = SessionFacts(
            principal=session.principal,
            protocol_version=connection.protocol_version.name,
            client=connection.peer_info,
            capabilities=connection.peer_capabilities,
        )
        self.stores.sessions.keep(session.id, facts)

    async def is_elsewhere(self, session_id: str, principal: str | None) -> bool:
        """Whether somebody's session of that id lives, but not here; none that is ending does."""
        if session_id in self._open:
            return False
        facts = await self.stores.sessions.find(session_id)
        return facts is not None and facts.principal == principal

    @contextmanager
    def place(self) -> Generator[None]:
        """The place of a session that is a connection, and has neither id nor channel here.

        Raises:
            TooManySessionsError: There is none.
        """
        self._make_room()
        self._connected += 1
        try:
            yield
        finally:
            self._connected -= 1

    def _make_room(self) -> None:
        """If it is needed, the unused session that has rested longest ends.

        Raises:
            TooManySessionsError: There is none.
        """
        if len(self._open) + self._connected < self.limits.http.sessions_max:
            return
        unused = next((each for each in self._unused.values() if each.is_resting), None)
        if unused is None:
            raise TooManySessionsError
        unused.close()
        self.forget(unused)

    def used(self, session_id: str) -> HttpSession:
        """The session of an id that is known; its client is here."""
        session = self._open[session_id]
        self._unused.pop(session_id, None)
        session.used_at = trio.current_time()
        return session

    def known(self, session_id: str, *, transport: str = "http") -> KnownSession | None:
        """What a verdict needs to know of it; None once it has ended, or if it goes another way."""
        found = self._open.get(session_id)
        if found is None or found.is_closed or found.channel.transport != transport:
            return None
        connection = None if found.session is None else found.session.connection
        return KnownSession(
            None if connection is None else connection.protocol_version, found.principal
        )

    def forget(self, session: HttpSession) -> None:
        """It has ended (HTTP-51)."""
        if self._open.pop(session.id, None) is not None:
            self._unused.pop(session.id, None)
            self.stores.sessions.forget(session.id)

    async def expire(self) -> None:
        """End sessions of which nobody was heard for `limits.http.session_idle_seconds`.

        Unused ones end after `limits.http.session_unused_seconds`.
        """
        unused_seconds = self.limits.http.session_unused_seconds
        look_seconds = min(unused_seconds, self.limits.http.session_idle_seconds)
        while True:
            await trio.sleep(look_seconds / _LOOKS_PER_EXPIRY)
            self._end_forgotten(trio.current_time())

    def _end_forgotten(self, now: float) -> None:
        """What this looked at must not outlive the look, so the loop is no part of the task."""
        idle_seconds = self.limits.http.session_idle_seconds
        unused_seconds = min(idle_seconds, self.limits.http.session_unused_seconds)
        for session in self:
            seconds = unused_seconds if session.id in self._unused else idle_seconds
            if session.used_at <= now - seconds and session.is_resting:
                session.close()


logger = logging.getLogger("mcp_trio")


class StatelessSession(RunningSession, Protocol):
    """One that knows nothing of its clients from one request to the next."""

    @property
    def may_be_followed(self) -> bool:
        """See `Session.may_be_followed`."""
        ...


class ServesSessions(HasLifespan, Protocol):
    """A server, as far as its runtime needs it."""

    @property
    def audience(self) -> Audience:
        """Who hears of its changes."""
        ...

    @property
    def spoken(self) -> Sequence[str]:
        """Those that it speaks, from the newest."""
        ...

    def param_header_paths(self, tool: str) -> Any:
        """Which arguments of a tool are mirrored in the head; None if it is not known."""
        ...

    def begin_session(
        self,
        channel: Channel,
        pool: TaskPool,
        variables: Context,
        *,
        lifespan: Any,
        http: SessionHttp,
        record: RecordTarget | None,
        on_ended: Callable[[], None],
    ) -> StatelessSession:
        """Serves one channel, by tasks of the caller's that begin with these context variables.

        It goes on until it is shut, or the client has left; `on_ended` is called then.
        """
        ...


def _nothing() -> None:
    """Nobody wants to know."""


def _send_away(channel: WebSocketChannel, session: RunningSession) -> None:
    channel.goes_away()
    session.shut("closed")


@attrs.define(eq=False)
class Runtime:
    """See the module.

    Attributes:
        server: Whose application it is.
        record: Where sessions are recorded.
        stores: What those share that serve together.
        sessions: The legacy ones.
        endpoint: The rules by which requests are judged.
        stateless: Where modern requests go; another one after its session was lost.
    """

    server: ServesSessions
    record: RecordTarget | None = None
    stores: HttpStores = attrs.field(factory=HttpStores)
    sessions: Sessions = attrs.field(init=False)
    endpoint: Endpoint = attrs.field(init=False)
    stateless: StatelessChannel = attrs.field(init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    pool: TaskPool = attrs.field(init=False)
    _variables: Context = attrs.field(init=False)
    _lifespan: Any = attrs.field(default=None, init=False)
    _http: SessionHttp = attrs.field(init=False)
    _stateless: StatelessSession | None = attrs.field(default=None, init=False)
    _renewable_at: float = attrs.field(default=-math.inf, init=False)
    _handshake_timeouts: HandshakeTimeouts = attrs.field(init=False)
    _closing: trio.Event = attrs.field(factory=trio.Event, init=False)
    _connected: dict[WebSocketChannel, RunningSession] = attrs.field(
        factory=dict[WebSocketChannel, RunningSession], init=False
    )

    def __attrs_post_init__(self) -> None:
        limits = self.server.limits
        self.sessions, self.stateless = Sessions(limits, self.stores), StatelessChannel(limits)
        self._handshake_timeouts = HandshakeTimeouts(limits)
        self.endpoint = Endpoint(
            protocol_versions=self.server.spoken,
            decoder=Decoder(
                json_depth_max=limits.messages.json_depth_max,
                batch_messages_max=limits.messages.batch_size_max,
            ),
            find=self.sessions.known,
            parameter_paths=self.server.param_header_paths,
        )

    async def run(
        self, *, task_status: trio.TaskStatus["Runtime"] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Hold everything until `close`, and then wind it down in bounded time.

        Cancelled: the sessions are wound down, each in bounded time.

        Raises:
            Exception: What the lifespan raises.
        """
        try:
            close_seconds = self.server.limits.shutdown.close_seconds
            audience = self.server.audience
            async with (
                self.server.entered_lifespan() as value,
                SessionHttp(close_seconds) as http,
                self.stores.changes.joined(audience.hear) as tell,
            ):
                self._lifespan, self._http = value, http
                with audience.relayed_by(tell):
                    await self._hold(task_status)
        finally:
            self.ended.set()

    async def _hold(self, task_status: trio.TaskStatus["Runtime"]) -> None:
        self._variables = copy_context()
        async with trio.open_nursery() as beside:
            beside.start_soon(self.sessions.expire)
            beside.start_soon(self._handshake_timeouts.see_off)
            async with sheltered(self.close) as self.pool:
                try:
                    self._begin_stateless(beside)
                    task_status.started(self)
                    await self._closing.wait()
                finally:
                    self.close()
                    self._shut_all()
            beside.cancel_scope.cancel()

    def _begin_stateless(self, beside: trio.Nursery) -> None:
        if self.endpoint.is_stateless:
            self._stateless = self._start(self.stateless)
            beside.start_soon(self._keep_stateless, self._stateless)

    def _shut_all(self) -> None:
        """Each session winds down, in bounded time."""
        begun = [self._stateless, *(each.session for each in self.sessions)]
        for session in begun:
            if session is not None:
                session.shut("closed")
        for channel, connected in self._connected.items():
            _send_away(channel, connected)

    @property
    def is_closing(self) -> bool:
        """Whether it takes no more requests."""
        return self._closing.is_set()

    # The session of all modern requests.

    @property
    def has_stateless(self) -> bool:
        """Whether it is there; it is not for a while after it was lost."""
        return self._stateless is not None and not self._stateless.closing.is_set()

    def renew_stateless(self) -> None:
        """At rest, a long recording ends: what follows has one of its own, and replays alone.

        Where that cannot begin, the old one goes on, and it is tried again after a while.
        """
        before = self._stateless
        if self.record is None or before is None or before.closing.is_set():
            return
        may_follow = self.stateless.is_resting and before.may_be_followed
        now = trio.current_time()
        if not may_follow or now < self._renewable_at:
            return
        if self._begin_stateless_again() is None:
            self._renewable_at = now + self.server.limits.recording.retry_seconds
        else:
            before.shut("closed")

    async def _keep_stateless(self, stateless: StatelessSession) -> None:
        """Begin another one each time that a defect of ours has ended it."""
        restarts = Restarts(self.server.limits)
        while True:
            began_at = trio.current_time()
            await stateless.closing.wait()
            if self.is_closing:
                return
            if self._stateless is not None and self._stateless is not stateless:  # it was renewed
                stateless = self._stateless
                continue
            pause_seconds = restarts.pause_seconds(trio.current_time() - began_at)
            logger.error("the session of stateless requests was lost; anew in %g s", pause_seconds)
            with trio.move_on_after(pause_seconds):
                await self._closing.wait()
                return
            stateless = self._begin_stateless_again() or stateless

    def _begin_stateless_again(self) -> StatelessSession | None:
        channel = StatelessChannel(self.server.limits)
        try:
            self._stateless = self._start(channel)
        except Exception:
            logger.exception("the session of modern requests cannot begin")
            return None
        self.stateless = channel
        return self._stateless

    # Sessions.

    def _start(self, channel: Channel, on_ended: Callable[[], None] = _nothing) -> StatelessSession:
        return self.server.begin_session(
            channel,
            self.pool,
            self._variables,
            lifespan=self._lifespan,
            http=self._http,
            record=self.record,
            on_ended=on_ended,
        )

    def begin_session(self, principal: str | None, *, transport: str = "http") -> HttpSession:
        """A legacy session that is served, and forgotten when it has ended.

        Raises:
            TooManySessionsError: There is no place for it.
        """
        begun = self.sessions.begin(principal, transport=transport)
        try:
            begun.session = self._start(begun.channel, begun.forget)
        except BaseException:
            begun.forget()
            raise
        return begun

    async def serve(self, channel: WebSocketChannel) -> None:
        """Serve a channel that is a session by itself, until that has ended; closes the channel.

        Cancelled, or with the runtime: the client is told that the server goes away, and the
        session winds down in bounded time.

        Raises:
            RecordingError: The recording cannot be made; nothing was served.
        """
        try:
            if self.is_closing:
                channel.goes_away()
                return
            ended = trio.Event()
            session = self._start(channel, ended.set)
            self._handshake_timeouts.welcome(channel).started(session)
            self._connected[channel] = session
            try:
                await ended.wait()
            finally:
                _send_away(channel, session)
                with trio.CancelScope(shield=True):
                    await ended.wait()
                del self._connected[channel]
        finally:
            await channel.aclose()

    def close(self) -> None:
        """Begin to end all sessions; `ended` is set when they have."""
        self._closing.set()
