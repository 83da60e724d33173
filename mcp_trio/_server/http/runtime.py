"""What lives as long as a served application: its lifespan, its sessions, its modern handlers.

It is one task. `serve_http` runs it in its own nursery; an ASGI application, which may be mounted
where nobody tells it that it begins, starts it as a system task with the first request.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import attrs
import trio

from mcp_trio._engine import Session
from mcp_trio._limits import Limits
from mcp_trio._protocol.http.verdicts import Endpoint
from mcp_trio._recorder.options import RecordTo
from mcp_trio._server.http.sessions import HttpSession, Sessions
from mcp_trio._server.http_client import SessionHttp
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.http.stateless_channel import StatelessChannel
from mcp_trio._wire import Decoder


class ServesSessions(Protocol):
    """A server, as far as its runtime needs it."""

    limits: Limits

    @property
    def spoken(self) -> Sequence[str]:
        """Those that it speaks, from the newest."""
        ...

    def entered_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """What is entered once, round all sessions."""
        ...

    def mirrored_parameters(self, tool: str) -> Any:
        """Which arguments of a tool are mirrored in the head; None if it is not known."""
        ...

    async def serve_session(
        self,
        channel: Channel,
        *,
        lifespan: Any,
        http: SessionHttp,
        record: RecordTo | None,
        task_status: trio.TaskStatus[Session],
    ) -> None:
        """Serves one channel, until its session ends."""
        ...


@attrs.define(eq=False)
class Runtime:
    """See the module.

    Attributes:
        server: Whose application it is.
        record: Where sessions are recorded.
        sessions: The legacy ones.
        endpoint: The rules by which requests are judged.
        stateless: Where modern requests go.
    """

    server: ServesSessions
    record: RecordTo | None = None
    sessions: Sessions = attrs.field(init=False)
    endpoint: Endpoint = attrs.field(init=False)
    stateless: StatelessChannel = attrs.field(init=False)
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    _modern: Session | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)
    _lifespan: Any = attrs.field(default=None, init=False)
    _http: SessionHttp = attrs.field(init=False)
    _closing: trio.Event = attrs.field(factory=trio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        limits = self.server.limits
        self.sessions, self.stateless = Sessions(limits), StatelessChannel(limits)
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
            async with self.server.entered_lifespan() as value, SessionHttp(close_seconds) as http:
                self._lifespan, self._http = value, http
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    nursery.start_soon(self.sessions.expire)
                    await self._begin_modern()
                    task_status.started(self)
                    await self._closing.wait()
                    nursery.cancel_scope.cancel()  # each session winds down in bounded time
        finally:
            self.ended.set()

    @property
    def is_closing(self) -> bool:
        """Whether it takes no more requests."""
        has_lost_modern = self._modern is not None and self._modern.closing.is_set()
        return has_lost_modern or self._closing.is_set()

    async def _begin_modern(self) -> None:
        if self.endpoint.is_modern:
            self._modern = await self._start(self.stateless)

    async def _start(self, channel: Channel) -> Session:
        async def serve(*, task_status: trio.TaskStatus[Session]) -> None:
            await self.server.serve_session(
                channel,
                lifespan=self._lifespan,
                http=self._http,
                record=self.record,
                task_status=task_status,
            )

        session: Session = await self._nursery.start(serve)
        return session

    async def begin_session(self, principal: str | None, *, transport: str = "http") -> HttpSession:
        """A legacy session that runs, and is forgotten when it has ended.

        Raises:
            TooManySessionsError: There is no place for it.
        """
        begun = self.sessions.begin(principal, transport=transport)
        try:
            begun.session = await self._start(begun.channel)
        except BaseException:
            self.sessions.forget(begun)
            raise
        self._nursery.start_soon(self._forget_ended, begun, begun.session)
        return begun

    async def _forget_ended(self, begun: HttpSession, session: Session) -> None:
        try:
            await session.closing.wait()
        finally:
            self.sessions.forget(begun)

    def close(self) -> None:
        """Begin to end all sessions; `ended` is set when they have."""
        self._closing.set()
