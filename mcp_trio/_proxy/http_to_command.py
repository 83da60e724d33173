"""A proxy between clients over HTTP and a server that speaks stdio.

The application that serves our own servers over HTTP stands in front; what it takes for a session
is here a process. Each legacy session has one of its own, from its first message on. All modern
requests have one, which is started with the first of them, and with the next one after its end.
What cannot be had this way:

- A modern client takes no requests: an error answers what the server asks there.
- Two modern clients may choose one progress token: who comes second goes without progress.
- A body of several lines becomes one line, a batch of the server's is answered one by one, and
  modern requests have numbers of the application's. Otherwise frames stay as they are.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from mcp_trio._errors import ConnectionLost
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol import ALL_REVISIONS
from mcp_trio._proxy.http import TRANSPORT, Place
from mcp_trio._proxy.journal import Cause, FrameJournal, recorded_to, start_frames
from mcp_trio._proxy.served_connection import Agreed, Clients, ServedConnection, fail
from mcp_trio._proxy.signals import until_signal
from mcp_trio._recorder.options import RecordOptions
from mcp_trio._server.announcements import Audience
from mcp_trio._server.http.serving import Address, serve_http
from mcp_trio._transports.bell import Milestone
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.http.session_channel import SessionChannel
from mcp_trio._transports.http.stateless_channel import StatelessChannel
from mcp_trio._transports.stdio_client import open_process_channel
from mcp_trio._wire import Request

logger = logging.getLogger("mcp_trio")

# A session that costs a process is dearer than one that does not.
_LIMITS: Final = attrs.evolve(DEFAULT_LIMITS, http_sessions_max=100)


@attrs.define(kw_only=True, eq=False)
class CommandSession:
    """What the application takes for a session; `run` it until it ends.

    Attributes:
        site: What is started, and what is recorded.
        clients: Its channel.
        closing: Set when it begins to end.
        connection: What was agreed on.
        negotiated: Set when a handshake has been answered.
    """

    site: "CommandSite"
    clients: Clients
    closing: Milestone = attrs.field(factory=Milestone, init=False)
    connection: Agreed = attrs.field(factory=Agreed, init=False)
    negotiated: Milestone = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.negotiated = self.connection.negotiated

    def shut(self, cause: str) -> None:  # noqa: ARG002  the site's is recorded
        """Begins to end it: the client is done, or was too long away."""
        self.closing.set()
        self._scope.cancel()

    async def run(self) -> None:
        """Serves until the client is done, or the process has ended; modern clients: for ever."""
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
            process = await open_process_channel(
                self.site.command, inherit_env=True, stderr="inherit", limits=limits
            )
            try:
                served = ServedConnection(
                    clients=self.clients,
                    server=process,
                    journal=journal,
                    agreed=self.connection,
                    limits=limits,
                    is_modern=is_modern,
                )
                await served.run(first)
            finally:
                exit_status = process.exit_status
        except ConnectionLost as loss:  # it could not even be started
            self._fail(first, journal, str(loss))
        finally:
            journal.shut(self.site.cause)
            journal.close(exit_status)

    def _fail(self, first: Sequence[Received], journal: FrameJournal, why: str) -> None:
        for frame in first:
            assert isinstance(frame, bytes)
            asked = [each for each in journal.passes("in", frame) if isinstance(each, Request)]
            fail(self.clients, journal, {each.id: each for each in asked}, why)


@attrs.define(kw_only=True, eq=False)
class CommandSite:
    """What the application takes for a server.

    Attributes:
        command: The server.
        start: Begins the recording of one process.
        limits: What a session may cost.
        cause: Why sessions end that end now.
    """

    command: Sequence[str]
    start: Callable[[], FrameJournal]
    limits: Limits
    audience: Audience = attrs.field(factory=Audience, init=False)  # changes pass as they come
    cause: Cause = attrs.field(default="closed", init=False)
    spoken: Sequence[str] = attrs.field(default=ALL_REVISIONS, init=False)

    def entered_lifespan(self) -> AbstractAsyncContextManager[None]:
        """There is none."""
        return nullcontext()

    def mirrored_parameters(self, tool: str) -> None:
        """Not known: what clients repeat in their heads is not held against what they say."""

    def begin_session(
        self,
        channel: Channel,
        nursery: trio.Nursery,
        variables: Context,
        *,
        on_ended: Callable[[], None],
        **_: Any,
    ) -> CommandSession:
        """Serves one session; what goes wrong with it ends no other."""
        assert isinstance(channel, SessionChannel | StatelessChannel)
        session = CommandSession(site=self, clients=channel)
        variables.run(nursery.start_soon, self._run, session, on_ended)
        return session

    async def _run(self, session: CommandSession, on_ended: Callable[[], None]) -> None:
        try:
            await session.run()
        except Exception:
            logger.exception("a session with %s failed", self.command[0])
        finally:
            on_ended()

    def shut(self, cause: Cause) -> None:
        """All sessions end, for this reason."""
        self.cause = cause


def run_command_proxy(
    place: Place,
    command: Sequence[str],
    *,
    record: RecordOptions,
    told: Callable[[str], None],
    limits: Limits = _LIMITS,
) -> int:
    """Record what clients of ours and processes of `command` say, until a signal comes.

    A folder gets a file for each process, a file takes all of them. `told` is called with the URL
    that clients have to be given.

    Returns:
        The exit status: 128 plus the number of the signal.

    Raises:
        RecordingError: The file holds something already.
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none.
    """
    return trio.run(_run, place, command, record, told, limits)


async def _run(
    place: Place,
    command: Sequence[str],
    record: RecordOptions,
    told: Callable[[str], None],
    limits: Limits,
) -> int:
    with recorded_to(record) as recording:
        name = Path(command[0]).name
        start = partial(start_frames, recording, transport=TRANSPORT, name=name, limits=limits)
        site = CommandSite(command=command, start=start, limits=limits)
        serve = partial(serve_command, place, site, told)
        return await until_signal(serve, shut=partial(site.shut, "signal"))


async def serve_command(place: Place, site: CommandSite, told: Callable[[str], None]) -> int:
    """Serve until cancelled, which stops all processes, in bounded time.

    Raises:
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none.
    """
    address = Address(host=place.host, port=place.port)
    serve = partial(serve_http, site, address, {"hosts": place.hosts, "origins": place.origins})
    async with trio.open_nursery() as nursery:
        told(await nursery.start(serve))
    return 0
