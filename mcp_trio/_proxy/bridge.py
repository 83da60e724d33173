"""Any two transports joined: where clients come from, and where the server is.

At stdio there is one client; everywhere else we listen, and each session of a client is one of the
server's. Frames pass as they are. Two pairs have a proxy of their own, which passes every byte: a
host and a command over stdio, and clients and a server over HTTP.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import SplitResult, urlsplit

import attrs
import trio

from mcp_trio._client.connect import ProcessOptions, WebOptions, has_url, open_target
from mcp_trio._jsonrpc.messages import Request
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio._proxy.forwarders import (
    Clients,
    ConnectionForwarder,
    HttpForwarder,
    NegotiatedVersion,
    UpstreamConnection,
    exit_status_of,
    fail_requests,
    part,
)
from mcp_trio._proxy.http import NO_HEADERS, ListenOptions, run_http_proxy
from mcp_trio._proxy.journal import (
    Cause,
    MessageJournal,
    check_no_recording_exists,
    recording_for_sessions,
    start_message_journal,
)
from mcp_trio._proxy.stdio import run_stdio_proxy, until_signal
from mcp_trio._recorder.writer import RecordOptions
from mcp_trio._server.http_app import StandIn
from mcp_trio._server.http_options import HttpOptions
from mcp_trio._server.http_serve import Address, serve_http
from mcp_trio._server.sockets import WebSocketOptions, serve_tcp, serve_unix, serve_websocket
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.http_sessions import SessionChannel, StatelessChannel
from mcp_trio._transports.stdio import divert_stdio, open_stdio_channel
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

# --------------------
# A server that stands for another: each session here is one connection to it.
#
# It is what those serve who serve our own servers, over HTTP and over connections that are
# sessions. Over HTTP each legacy session has a connection of its own, from its first message on.
# All modern requests have one, which is opened with the first of them, and with the next one after
# its end. What cannot be had this way:
#
# - A modern client takes no requests: an error answers what the server asks there.
# - Two modern clients may choose one progress token: who comes second goes without progress.
# - A body of several lines becomes one line, a batch of the server's is answered one by one, and
#   modern requests have numbers of the application's. Otherwise frames stay as they are.


logger = logging.getLogger("mcp_trio")

Open: TypeAlias = Callable[[], Awaitable[Channel]]
"""Opens a connection to the server, or raises `ConnectionLost`."""


@attrs.define(kw_only=True, eq=False)
class BridgeHttpSession:
    """What the HTTP application takes for a session; `run` it until it ends.

    Attributes:
        site: What is opened, and what is recorded.
        clients: Its channel.
        closing: Set when it begins to end.
        connection: What was agreed on.
        negotiated: Set when a handshake has been answered.
    """

    application: "BridgeApplication"
    clients: Clients
    closing: LightEvent = attrs.field(factory=LightEvent, init=False)
    connection: NegotiatedVersion = attrs.field(factory=NegotiatedVersion, init=False)
    negotiated: LightEvent = attrs.field(init=False)
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
        is_stateless = isinstance(self.clients, StatelessChannel)
        try:
            with self._scope:
                while first := await self.clients.receive():
                    await self._serve(first, is_stateless=is_stateless)
                    if not is_stateless:
                        break
        finally:
            self.closing.set()
            await self.clients.aclose()

    async def _serve(self, first: Sequence[Received], *, is_stateless: bool) -> None:
        limits, journal, exit_status = self.application.limits, self.application.start(), None
        try:
            server = await self.application.open()
            try:
                served = UpstreamConnection(
                    clients=self.clients,
                    server=server,
                    journal=journal,
                    negotiated_version=self.connection,
                    limits=limits,
                    is_stateless=is_stateless,
                )
                await served.run(first)
            finally:
                exit_status = exit_status_of(server)
        except ConnectionLost as loss:  # there is not even a connection
            self._fail(first, journal, str(loss))
        finally:
            journal.shut(self.application.cause)
            journal.close(exit_status)

    def _fail(self, first: Sequence[Received], journal: MessageJournal, why: str) -> None:
        for frame in first:
            assert isinstance(frame, bytes)
            asked = [each for each in journal.record("in", frame) if isinstance(each, Request)]
            fail_requests(self.clients, journal, [each.id for each in asked], why)


@attrs.define(kw_only=True, eq=False)
class BridgeApplication(StandIn[BridgeHttpSession]):
    """What is served, in the place of a server of our own.

    Attributes:
        open: Opens a connection to the server that it stands for.
        joined: How a client of one connection and such a server are joined.
        start: Begins the recording of one connection.
        cause: Why sessions end that end now.
    """

    open: Open
    forwarder: type[ConnectionForwarder] = ConnectionForwarder
    start: Callable[[], MessageJournal]
    cause: Cause = attrs.field(default="closed", init=False)
    spoken: Sequence[str] = attrs.field(default=ALL_PROTOCOL_VERSIONS, init=False)

    def opened(self, channel: Channel) -> tuple[BridgeHttpSession, Callable[[], Awaitable[None]]]:
        """See `StandIn.opened`."""
        assert isinstance(channel, SessionChannel | StatelessChannel)
        session = BridgeHttpSession(application=self, clients=channel)
        return session, session.run

    async def serve_session(
        self,
        channel: Channel,
        *,
        task_status: trio.TaskStatus[ConnectionForwarder] = trio.TASK_STATUS_IGNORED,
        **_: Any,
    ) -> None:
        """Serves one connection of a client, by one of its own, until one of both ends."""
        journal, exit_status = self.start(), None
        try:
            server = await self.open()
            try:
                forwarder = self.forwarder(
                    client=channel, server=server, journal=journal, limits=self.limits
                )
                task_status.started(forwarder)
                await forwarder.run()
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


Kind: TypeAlias = Literal["stdio", "http", "websocket", "unix", "tcp"]

# A session that costs a process is dearer than one that does not.
_PROCESSES_MAX: Final = 100
_INHERITING: Final = ProcessOptions(inherit_env=True, stderr="inherit")


@attrs.frozen(kw_only=True)
class Downstream:
    """Where clients come from.

    Attributes:
        kind: How they are connected, as recordings name it.
        place: Where we listen, but for a socket file.
        socket_file: Where we listen then.
        is_open: Over TCP, whoever reaches us from elsewhere may come.
    """

    kind: Kind = "stdio"
    place: ListenOptions = attrs.field(factory=ListenOptions)
    socket_file: str = ""
    is_open: bool = False


@attrs.frozen(kw_only=True)
class Upstream:
    """The server.

    Attributes:
        target: Its URL, or its command.
        headers: What goes along with requests to a URL of the web.
    """

    target: str | Sequence[str]
    headers: Mapping[str, str] = attrs.field(default=NO_HEADERS, repr=False)

    @property
    def name(self) -> str:
        """As recordings name it, without what may be secret."""
        if not isinstance(self.target, str):
            return Path(self.target[0]).name
        parts = urlsplit(self.target)
        return parts.hostname or Path(parts.path).name

    @property
    def forwarder(self) -> type[ConnectionForwarder]:
        """What joins a client of one connection to it."""
        return HttpForwarder if has_url(self.target) else ConnectionForwarder

    async def open(self, limits: Limits) -> Channel:
        """A connection to it.

        Raises:
            ConnectionLost: There is none to be had.
        """
        process, web = ProcessOptions(), WebOptions(headers=self.headers or None)
        if not isinstance(self.target, str):
            process = _INHERITING
        return (await open_target(self.target, process=process, web=web, limits=limits)).channel


def check_server_url(url: str) -> None:
    """Look whether a server may be there.

    Raises:
        ValueError: It may not; nothing of the URL is repeated, for it may have a secret in it.
    """
    parts = urlsplit(url)
    needs = _SERVER_URLS.get(parts.scheme)
    if needs is None or not needs(parts):
        raise ValueError(
            "a server is at http://, https://, ws:// or wss:// and its host,"
            " at tcp://HOST:PORT, or at unix:PATH"
        )


def _has_host(parts: SplitResult) -> bool:
    return bool(parts.hostname)


def _has_port(parts: SplitResult) -> bool:
    return bool(parts.hostname and parts.port and not parts.path)


def _has_path(parts: SplitResult) -> bool:
    return bool(parts.path and not parts.netloc)


_SERVER_URLS: Final[Mapping[str, Callable[[SplitResult], bool]]] = {
    "http": _has_host,
    "https": _has_host,
    "ws": _has_host,
    "wss": _has_host,
    "tcp": _has_port,
    "unix": _has_path,
}


def parse_downstream(word: str) -> Downstream:
    """Where clients come from, as a word; who may come is still to be said.

    Raises:
        ValueError: It is no such place.
    """
    if word == "-":
        return Downstream()
    scheme, colon, rest = word.partition(":")
    if scheme not in _DOWNSTREAM_SCHEMES or not colon:
        raise ValueError(
            "clients come from - (stdio), http://HOST:PORT/PATH, ws://HOST:PORT/PATH,"
            " tcp://HOST:PORT or unix:PATH"
        )
    return _DOWNSTREAM_SCHEMES[scheme](rest, urlsplit(word))


def _http_downstream(_: str, parts: SplitResult) -> Downstream:
    return Downstream(kind="http", place=_place(parts, parts.path or "/mcp"))


def _websocket_downstream(_: str, parts: SplitResult) -> Downstream:
    return Downstream(kind="websocket", place=_place(parts, parts.path or "/ws"))


def _tcp_downstream(_: str, parts: SplitResult) -> Downstream:
    if parts.path:
        raise ValueError("the place of a TCP listener is tcp://HOST:PORT")
    return Downstream(kind="tcp", place=_place(parts, ""))


def _unix_downstream(rest: str, _: SplitResult) -> Downstream:
    if not rest or rest.startswith("//"):
        raise ValueError("the place of a socket file is unix:PATH")
    return Downstream(kind="unix", socket_file=rest)


def _place(parts: SplitResult, path: str) -> ListenOptions:
    if not parts.hostname or parts.port is None or parts.query or parts.username is not None:
        raise ValueError("to listen takes a host and a port (0 is any), and no query or user")
    return ListenOptions(host=parts.hostname, port=parts.port, path=path)


_DOWNSTREAM_SCHEMES: Final[Mapping[str, Callable[[str, SplitResult], Downstream]]] = {
    "http": _http_downstream,
    "ws": _websocket_downstream,
    "tcp": _tcp_downstream,
    "unix": _unix_downstream,
}


# Joining ------------------------------------------------------------------------------------------


def run_bridge(
    downstream: Downstream,
    upstream: Upstream,
    *,
    record: RecordOptions | None = None,
    report_url: Callable[[str], None],
    limits: Limits = DEFAULT_LIMITS,
) -> int:
    """Join both until their one client or its server ends, or a signal comes.

    A folder gets a file for each session, a file takes all of them. `report_url` is called with the URL
    that clients have to be given, if we listen.

    Returns:
        The exit status: that of a command over stdio; 128 plus the number of a signal; of a host
        over stdio 0 when it is done, and 1 when it or the server was lost.

    Raises:
        RecordingError: The file cannot be made, or holds something already.
        ConnectionLost: The server of a host over stdio cannot be had.
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none, or the server's URL is none.
    """
    target = upstream.target
    if downstream.kind == "stdio" and not isinstance(target, str):
        return run_stdio_proxy(target, record=record, limits=limits)
    if downstream.kind == "http" and isinstance(target, str) and has_url(target):
        return run_http_proxy(
            downstream.place,
            target,
            record=record,
            report_url=report_url,
            headers=upstream.headers,
            limits=limits,
        )
    if downstream.kind == "stdio":
        return trio.run(_run_stdio, upstream, record, limits)
    return trio.run(_run_listening, downstream, upstream, record, report_url, limits)


async def _run_stdio(upstream: Upstream, record: RecordOptions | None, limits: Limits) -> int:
    parent_pid = os.getppid()
    check_no_recording_exists(record)
    journal = start_message_journal(record, transport="stdio", name=upstream.name, limits=limits)
    descriptors = divert_stdio()

    async def serve() -> int:
        try:
            server = await upstream.open(limits)
        except ConnectionLost:
            journal.shut("lost")
            raise
        client = open_stdio_channel(*descriptors, limits=limits)
        forwarder = upstream.forwarder(client=client, server=server, journal=journal, limits=limits)
        return await forwarder.run(parent_pid=parent_pid)

    try:
        return await until_signal(serve, shut=partial(journal.shut, "signal"))
    finally:
        journal.close()


async def _run_listening(
    downstream: Downstream,
    upstream: Upstream,
    record: RecordOptions | None,
    report_url: Callable[[str], None],
    limits: Limits,
) -> int:
    with recording_for_sessions(record) as recording:
        start = partial(
            start_message_journal,
            recording,
            transport=downstream.kind,
            name=upstream.name,
            limits=limits,
        )
        application = bridge_application(downstream, upstream, start=start, limits=limits)
        serve = partial(serve_bridge, downstream, application, report_url)
        return await until_signal(serve, shut=partial(application.shut, "signal"))


def bridge_application(
    downstream: Downstream, upstream: Upstream, *, start: Callable[..., Any], limits: Limits
) -> BridgeApplication:
    """What clients get to see of the server."""
    if not isinstance(upstream.target, str):
        connections_max = (
            limits.http_connections_max if downstream.kind == "http" else _PROCESSES_MAX
        )
        limits = attrs.evolve(
            limits, http_sessions_max=_PROCESSES_MAX, http_connections_max=connections_max
        )
    opening = partial(upstream.open, limits)
    return BridgeApplication(open=opening, forwarder=upstream.forwarder, start=start, limits=limits)


async def serve_bridge(
    downstream: Downstream, application: BridgeApplication, report_url: Callable[[str], None]
) -> int:
    """Serve until cancelled, which ends all sessions and processes, in bounded time.

    Raises:
        OSError: The address cannot be bound.
        ValueError: The gate's settings are none.
    """
    async with trio.open_nursery() as nursery:
        report_url(await nursery.start(_LISTENING[downstream.kind], downstream, application))
    return 0


async def _serve_http(
    downstream: Downstream, application: BridgeApplication, *, task_status: trio.TaskStatus[str]
) -> None:
    place = downstream.place
    options: HttpOptions = {
        "hosts": place.hosts,
        "origins": place.origins,
        "allows_cors": place.allows_cors,
        "token": place.token,
        "path": place.path or "/mcp",
        "has_websocket": False,
    }
    await serve_http(
        application, Address(host=place.host, port=place.port), options, task_status=task_status
    )


async def _serve_websocket(
    downstream: Downstream, application: BridgeApplication, *, task_status: trio.TaskStatus[str]
) -> None:
    place = downstream.place
    options: WebSocketOptions = {
        "hosts": place.hosts,
        "origins": place.origins,
        "token": place.token,
        "path": place.path or "/ws",
    }
    await serve_websocket(
        application, options, host=place.host, port=place.port, task_status=task_status
    )


async def _serve_tcp(
    downstream: Downstream, application: BridgeApplication, *, task_status: trio.TaskStatus[str]
) -> None:
    place = downstream.place
    await serve_tcp(
        application,
        host=place.host,
        port=place.port,
        is_open=downstream.is_open,
        task_status=task_status,
    )


async def _serve_unix(
    downstream: Downstream, application: BridgeApplication, *, task_status: trio.TaskStatus[str]
) -> None:
    await serve_unix(application, downstream.socket_file, task_status=task_status)


_LISTENING: Final[Mapping[str, Callable[..., Awaitable[None]]]] = {
    "http": _serve_http,
    "websocket": _serve_websocket,
    "tcp": _serve_tcp,
    "unix": _serve_unix,
}
