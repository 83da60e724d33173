"""A server that stands for another: each session here is one connection to it.

It is what those serve who serve our own servers, over HTTP and over connections that are sessions.
Over HTTP each legacy session has a connection of its own, from its first message on. All modern
requests have one, which is opened with the first of them, and with the next one after its end.
What cannot be had this way:

- A modern client takes no requests: an error answers what the server asks there.
- Two modern clients may choose one progress token: who comes second goes without progress.
- A body of several lines becomes one line, a batch of the server's is answered one by one, and
  modern requests have numbers of the application's. Otherwise frames stay as they are.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

import attrs
import trio

from mcp_trio._errors import ConnectionLost
from mcp_trio._protocol import ALL_REVISIONS
from mcp_trio._proxy.joined import Joined, exit_status_of, part
from mcp_trio._proxy.journal import Cause, FrameJournal
from mcp_trio._proxy.served_connection import Agreed, Clients, ServedConnection, fail
from mcp_trio._server.http.standing_in import StandIn
from mcp_trio._transports.bell import Milestone
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.http.session_channel import SessionChannel
from mcp_trio._transports.http.stateless_channel import StatelessChannel
from mcp_trio._wire import Request

logger = logging.getLogger("mcp_trio")

Open: TypeAlias = Callable[[], Awaitable[Channel]]
"""Opens a connection to the server, or raises `ConnectionLost`."""


@attrs.define(kw_only=True, eq=False)
class SiteSession:
    """What the HTTP application takes for a session; `run` it until it ends.

    Attributes:
        site: What is opened, and what is recorded.
        clients: Its channel.
        closing: Set when it begins to end.
        connection: What was agreed on.
        negotiated: Set when a handshake has been answered.
    """

    site: "Site"
    clients: Clients
    closing: Milestone = attrs.field(factory=Milestone, init=False)
    connection: Agreed = attrs.field(factory=Agreed, init=False)
    negotiated: Milestone = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.negotiated = self.connection.negotiated

    @property
    def has_begun(self) -> bool:
        """Whether a handshake has been answered."""
        return self.negotiated.is_set()

    @property
    def may_be_followed(self) -> bool:
        """No: all that goes by is in one recording, the site's."""
        return False

    def shut(self, cause: str) -> None:  # noqa: ARG002  the site's is recorded
        """Begins to end it: the client is done, or was too long away."""
        self.closing.set()
        self._scope.cancel()

    async def run(self) -> None:
        """Serves until the client is done, or the server has ended; modern clients: for ever."""
        is_modern = isinstance(self.clients, StatelessChannel)
        try:
            with self._scope:
                while first := await self.clients.receive():
                    await self._serve(first, is_modern=is_modern)
                    if not is_modern:
                        break
        finally:
            self.closing.set()
            await self.clients.aclose()

    async def _serve(self, first: Sequence[Received], *, is_modern: bool) -> None:
        limits, journal, exit_status = self.site.limits, self.site.start(), None
        try:
            server = await self.site.open()
            try:
                served = ServedConnection(
                    clients=self.clients,
                    server=server,
                    journal=journal,
                    agreed=self.connection,
                    limits=limits,
                    is_modern=is_modern,
                )
                await served.run(first)
            finally:
                exit_status = exit_status_of(server)
        except ConnectionLost as loss:  # there is not even a connection
            self._fail(first, journal, str(loss))
        finally:
            journal.shut(self.site.cause)
            journal.close(exit_status)

    def _fail(self, first: Sequence[Received], journal: FrameJournal, why: str) -> None:
        for frame in first:
            assert isinstance(frame, bytes)
            asked = [each for each in journal.passes("in", frame) if isinstance(each, Request)]
            fail(self.clients, journal, [each.id for each in asked], why)


@attrs.define(kw_only=True, eq=False)
class Site(StandIn[SiteSession]):
    """What is served, in the place of a server of our own.

    Attributes:
        open: Opens a connection to the server that it stands for.
        joined: How a client of one connection and such a server are joined.
        start: Begins the recording of one connection.
        cause: Why sessions end that end now.
    """

    open: Open
    joined: type[Joined] = Joined
    start: Callable[[], FrameJournal]
    cause: Cause = attrs.field(default="closed", init=False)
    spoken: Sequence[str] = attrs.field(default=ALL_REVISIONS, init=False)

    def opened(self, channel: Channel) -> tuple[SiteSession, Callable[[], Awaitable[None]]]:
        """See `StandIn.opened`."""
        assert isinstance(channel, SessionChannel | StatelessChannel)
        session = SiteSession(site=self, clients=channel)
        return session, session.run

    async def serve_session(
        self,
        channel: Channel,
        *,
        task_status: trio.TaskStatus[Joined] = trio.TASK_STATUS_IGNORED,
        **_: Any,
    ) -> None:
        """Serves one connection of a client, by one of its own, until one of both ends."""
        journal, exit_status = self.start(), None
        try:
            server = await self.open()
            try:
                joined = self.joined(
                    client=channel, server=server, journal=journal, limits=self.limits
                )
                task_status.started(joined)
                await joined.run()
            finally:
                exit_status = exit_status_of(server)
        except ConnectionLost as loss:  # there is not even a connection
            logger.warning("%s", loss.reason)
            journal.shut("lost")
            part(channel, loss)
        finally:
            journal.shut(self.cause)
            journal.close(exit_status)

    def shut(self, cause: Cause) -> None:
        """All sessions end, for this reason."""
        self.cause = cause
