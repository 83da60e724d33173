"""What lives as long as a served application: its lifespan, its sessions, its modern handlers.

It is one task, with the nursery of all sessions; these are tasks only while they have something to
do. `serve_http` runs it in its own nursery; an ASGI application, which may be mounted where nobody
tells it that it begins, starts it as a system task with the first request.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from typing import Any, Protocol

import attrs
import trio

from mcp_trio._engine import WarmTasks, sheltered
from mcp_trio._protocol.http.verdicts import Endpoint
from mcp_trio._recorder.options import RecordTo
from mcp_trio._server.announcements import Audience
from mcp_trio._server.connections import HasLifespan
from mcp_trio._server.http.restarts import Restarts
from mcp_trio._server.http.sessions import HttpSession, RunningSession, Sessions
from mcp_trio._server.http.stores import HttpStores
from mcp_trio._server.http_client import SessionHttp
from mcp_trio._server.newcomers import Newcomers
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.http.stateless_channel import StatelessChannel
from mcp_trio._transports.websocket.channel import WebSocketChannel
from mcp_trio._wire import Decoder

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

    def mirrored_parameters(self, tool: str) -> Any:
        """Which arguments of a tool are mirrored in the head; None if it is not known."""
        ...

    def begin_session(
        self,
        channel: Channel,
        warm: WarmTasks,
        variables: Context,
        *,
        lifespan: Any,
        http: SessionHttp,
        record: RecordTo | None,
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
    record: RecordTo | None = None
    stores: HttpStores = attrs.field(factory=HttpStores)
    sessions: Sessions = attrs.field(init=False)
    endpoint: Endpoint = attrs.field(init=False)
    stateless: StatelessChannel = attrs.field(init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    warm: WarmTasks = attrs.field(init=False)
    _variables: Context = attrs.field(init=False)
    _lifespan: Any = attrs.field(default=None, init=False)
    _http: SessionHttp = attrs.field(init=False)
    _modern: StatelessSession | None = attrs.field(default=None, init=False)
    _renewable_at: float = attrs.field(default=-math.inf, init=False)
    _newcomers: Newcomers = attrs.field(init=False)
    _closing: trio.Event = attrs.field(factory=trio.Event, init=False)
    _connected: dict[WebSocketChannel, RunningSession] = attrs.field(
        factory=dict[WebSocketChannel, RunningSession], init=False
    )

    def __attrs_post_init__(self) -> None:
        limits = self.server.limits
        self.sessions, self.stateless = Sessions(limits, self.stores), StatelessChannel(limits)
        self._newcomers = Newcomers(limits)
        self.endpoint = Endpoint(
            revisions=self.server.spoken,
            decoder=Decoder(
                json_depth_max=limits.json_depth_max, batch_messages_max=limits.batch_messages_max
            ),
            find=self.sessions.known,
            parameter_paths=self.server.mirrored_parameters,
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
            close_seconds = self.server.limits.close_seconds
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
            beside.start_soon(self._newcomers.see_off)
            async with sheltered(self.close) as self.warm:
                try:
                    self._begin_modern(beside)
                    task_status.started(self)
                    await self._closing.wait()
                finally:
                    self.close()
                    self._shut_all()
            beside.cancel_scope.cancel()

    def _begin_modern(self, beside: trio.Nursery) -> None:
        if self.endpoint.is_modern:
            self._modern = self._start(self.stateless)
            beside.start_soon(self._keep_modern, self._modern)

    def _shut_all(self) -> None:
        """Each session winds down, in bounded time."""
        begun = [self._modern, *(each.session for each in self.sessions)]
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
    def has_modern(self) -> bool:
        """Whether it is there; it is not for a while after it was lost."""
        return self._modern is not None and not self._modern.closing.is_set()

    def renew_modern(self) -> None:
        """At rest, a long recording ends: what follows has one of its own, and replays alone.

        Where that cannot begin, the old one goes on, and it is tried again after a while.
        """
        before = self._modern
        if self.record is None or before is None or before.closing.is_set():
            return
        may_follow = self.stateless.is_resting and before.may_be_followed
        now = trio.current_time()
        if not may_follow or now < self._renewable_at:
            return
        if self._begin_modern_again() is None:
            self._renewable_at = now + self.server.limits.journal_retry_seconds
        else:
            before.shut("closed")

    async def _keep_modern(self, modern: StatelessSession) -> None:
        """Begin another one each time that a defect of ours has ended it."""
        restarts = Restarts(self.server.limits)
        while True:
            began_at = trio.current_time()
            await modern.closing.wait()
            if self.is_closing:
                return
            if self._modern is not None and self._modern is not modern:  # it was renewed
                modern = self._modern
                continue
            pause_seconds = restarts.pause_seconds(trio.current_time() - began_at)
            logger.error("the session of modern requests was lost; anew in %g s", pause_seconds)
            with trio.move_on_after(pause_seconds):
                await self._closing.wait()
                return
            modern = self._begin_modern_again() or modern

    def _begin_modern_again(self) -> StatelessSession | None:
        channel = StatelessChannel(self.server.limits)
        try:
            self._modern = self._start(channel)
        except Exception:
            logger.exception("the session of modern requests cannot begin")
            return None
        self.stateless = channel
        return self._modern

    # Sessions.

    def _start(self, channel: Channel, on_ended: Callable[[], None] = _nothing) -> StatelessSession:
        return self.server.begin_session(
            channel,
            self.warm,
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
            self._newcomers.welcome(channel).started(session)
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
