"""A proxy between any two transports: clients on one side (downstream), a server on the other.

At stdio there is one client; on every other transport the proxy listens, and gives each client
session a connection of its own to the server. Messages are forwarded unchanged. Two pairs have a
proxy of their own that forwards every byte: stdio to a command, and HTTP to an HTTP URL. Only with
telemetry are requests of clients changed: each has the trace context of the proxy's own span.

`BridgeApplication` takes the place of a `Server` in the HTTP application and in the listeners. Over
HTTP each legacy session has a connection from its first message on. All stateless requests share
one, which opens with the first of them and, after it has ended, again with the next. This differs
from a direct connection:

- A stateless client takes no requests: requests of the server are answered with an error.
- Two stateless clients may choose the same progress token: the later one gets no progress.
- A body of several lines becomes one line, the messages of a server's batch are sent one by one,
  and stateless requests get request ids of the application. All other messages stay unchanged.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import attrs
import msgspec
import trio

from mcp_trio._client.connect import (
    NO_PROCESS_OPTIONS,
    ProcessOptions,
    WebOptions,
    is_http_target,
    open_target,
)
from mcp_trio._jsonrpc.messages import Request
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio._proxy.forwarders import (
    ClientsChannel,
    ConnectionForwarder,
    HttpForwarder,
    NegotiatedVersion,
    UpstreamConnection,
    exit_status_of,
    fail_requests,
    send_close_reason,
)
from mcp_trio._proxy.http import ListenOptions, run_http_proxy
from mcp_trio._proxy.journal import (
    Cause,
    MakeSpans,
    MessageJournal,
    recording_for_sessions,
    start_message_journal,
)
from mcp_trio._proxy.stdio import run_stdio_proxy, shell_status, until_signal
from mcp_trio._recorder.options import RecordOptions
from mcp_trio._server.http_serve import HttpAddress, HttpOptions, serve_http
from mcp_trio._server.sessions import OtherSessionSource
from mcp_trio._server.sockets import WebSocketOptions, serve_tcp, serve_unix, serve_websocket
from mcp_trio._transports.channel import Channel, Received
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.http_channels import SessionChannel, StatelessChannel
from mcp_trio._transports.stdio import ProcessChannel, divert_stdio, open_stdio_channel
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

logger = logging.getLogger("mcp_trio")

OpenConnection: TypeAlias = Callable[[], Awaitable[Channel]]
"""Opens a connection to the server, or raises `ConnectionLost`."""


@attrs.define(kw_only=True, eq=False, repr=False)
class BridgeHttpSession:
    """A session of the HTTP application that forwards to a server; `run` serves it.

    Attributes:
        closing: Set when the session begins to close.
        connection: The object with the negotiated protocol version, as `Session.connection` is.
        negotiated: Set when the server has answered a handshake.
    """

    application: "BridgeApplication"
    clients: ClientsChannel
    closing: LightEvent = attrs.field(factory=LightEvent, init=False)
    connection: NegotiatedVersion = attrs.field(factory=NegotiatedVersion, init=False)
    negotiated: LightEvent = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.negotiated = self.connection.negotiated

    @property
    def has_begun(self) -> bool:
        """True after the server has answered a handshake."""
        return self.negotiated.is_set()

    @property
    def may_be_renewed(self) -> bool:
        """False: only an idle `Session` is replaced by a new one, to begin another recording."""
        return False

    def shut(self, cause: str) -> None:  # noqa: ARG002  as `Session.shut`
        """Begin to close the session, since the client is done or its session expired."""
        self.closing.set()
        self._scope.cancel()

    async def run(self) -> None:
        """Serve until client or server ends; for stateless clients, until cancelled."""
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
        journal = self.application.start_journal()
        exit_status: int | None = None
        try:
            server = await self.application.open_connection()
            try:
                served = UpstreamConnection(
                    clients=self.clients,
                    server=server,
                    journal=journal,
                    negotiated_version=self.connection,
                    limits=self.application.limits,
                    is_stateless=is_stateless,
                )
                await served.run(first)
            finally:
                exit_status = exit_status_of(server)
        except ConnectionLost as loss:  # the connection could not be opened
            for encoded in first:
                assert isinstance(encoded, bytes)
                requests = [
                    each for each in journal.record("in", encoded) if isinstance(each, Request)
                ]
                fail_requests(self.clients, journal, [each.id for each in requests], str(loss))
        finally:
            journal.record_cause(self.application.cause)
            journal.close(exit_status)


@attrs.define(kw_only=True, eq=False, repr=False)
class BridgeApplication(OtherSessionSource[BridgeHttpSession]):
    """An application that stands for a server and forwards each session to it.

    Attributes:
        open_connection: Opens a connection to the server.
        forwarder: The class of the forwarder for a client's connection that is one session.
        start_journal: Starts the journal of one connection, and its recording.
        cause: The reason to record for sessions that close now.
    """

    open_connection: OpenConnection
    forwarder: type[ConnectionForwarder] = ConnectionForwarder
    start_journal: Callable[[], MessageJournal]
    cause: Cause = attrs.field(default="closed", init=False)
    protocol_versions: Sequence[str] = attrs.field(default=ALL_PROTOCOL_VERSIONS, init=False)

    def new_session(
        self, channel: Channel
    ) -> tuple[BridgeHttpSession, Callable[[], Awaitable[None]]]:
        """Return a session for the HTTP application, and the function that serves it."""
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
        """Forward between a client's connection and a new one to the server, until either ends."""
        journal = self.start_journal()
        exit_status: int | None = None
        try:
            server = await self.open_connection()
            try:
                forwarder = self.forwarder(
                    client=channel, server=server, journal=journal, limits=self.limits
                )
                task_status.started(forwarder)
                await forwarder.run()
            finally:
                exit_status = exit_status_of(server)
        except ConnectionLost as loss:  # the connection could not be opened
            logger.warning("%s", loss.reason)
            journal.record_cause("lost")
            send_close_reason(channel, loss)
        finally:
            journal.record_cause(self.cause)
            journal.close(exit_status)

    def record_cause(self, cause: Cause) -> None:
        """Record this reason for all sessions that close from now on."""
        self.cause = cause


DownstreamKind: TypeAlias = Literal["stdio", "http", "websocket", "unix", "tcp"]

# The maximum number of sessions if each has a process.
_PROCESSES_MAX: Final = 100
_WITH_ENVIRONMENT: Final = ProcessOptions(inherit_env=True, stderr="inherit")


class Downstream(msgspec.Struct, frozen=True, kw_only=True):
    """The side of the clients.

    Attributes:
        kind: The transport, by its name in recordings.
        listen: The address to listen on, except for a socket file.
        socket_file: The path of the socket file to listen on.
        is_open: Whether a TCP listener accepts all clients that reach it, from other machines too.
    """

    kind: DownstreamKind = "stdio"
    listen: ListenOptions = msgspec.field(default_factory=ListenOptions)
    socket_file: str = ""
    is_open: bool = False


@attrs.frozen(kw_only=True)
class Upstream:
    """The side of the server.

    Attributes:
        target: The server's URL, or its command.
        headers: Headers for all requests to an HTTP or WebSocket URL.
    """

    target: str | Sequence[str]
    headers: Mapping[str, str] = attrs.field(factory=dict[str, str], repr=False)

    @property
    def name(self) -> str:
        """The name in recordings: a host, a path or a program, without anything secret."""
        if not isinstance(self.target, str):
            return Path(self.target[0]).name
        parts = urlsplit(self.target)
        return parts.hostname or Path(parts.path).name

    @property
    def transport(self) -> str:
        """The transport, by its name in recordings."""
        if not isinstance(self.target, str):
            return "stdio"
        scheme = urlsplit(self.target).scheme
        return {"https": "http", "ws": "websocket", "wss": "websocket"}.get(scheme, scheme)

    @property
    def forwarder(self) -> type[ConnectionForwarder]:
        """The class of the forwarder between a client's connection and this server."""
        return HttpForwarder if is_http_target(self.target) else ConnectionForwarder

    async def open(self, limits: Limits) -> Channel:
        """Open a connection to the server.

        Raises:
            ConnectionLost: The connection cannot be opened.
        """
        process = NO_PROCESS_OPTIONS if isinstance(self.target, str) else _WITH_ENVIRONMENT
        web = WebOptions(headers=self.headers or None)
        return (await open_target(self.target, process=process, web=web, limits=limits)).channel


def check_server_url(url: str) -> None:
    """Check that a URL can be that of a server.

    Raises:
        ValueError: It cannot; the text repeats nothing of the URL, which may hold a secret.
    """
    parts = urlsplit(url)
    match parts.scheme:
        case "http" | "https" | "ws" | "wss":
            is_valid = bool(parts.hostname)
        case "tcp":
            is_valid = bool(parts.hostname and parts.port and not parts.path)
        case "unix":
            is_valid = bool(parts.path and not parts.netloc)
        case _:
            is_valid = False
    if not is_valid:
        raise ValueError(
            "the server has to be at http://, https://, ws:// or wss:// and its host,"
            " at tcp://HOST:PORT, or at unix:PATH"
        )


# The kind and the default path for each scheme of an address to listen on.
_DOWNSTREAM_SCHEMES: Final[Mapping[str, tuple[DownstreamKind, str]]] = {
    "http": ("http", "/mcp"),
    "ws": ("websocket", "/"),
    "tcp": ("tcp", ""),
    "unix": ("unix", ""),
}


def parse_downstream(address: str) -> Downstream:
    """Return the clients' side at an address; its options that accept or reject clients are unset.

    Raises:
        ValueError: The address is invalid.
    """
    if address == "-":
        return Downstream()
    scheme, colon, rest = address.partition(":")
    if scheme not in _DOWNSTREAM_SCHEMES or not colon:
        raise ValueError(
            "clients connect through - (stdio), http://HOST:PORT/PATH, ws://HOST:PORT/PATH,"
            " tcp://HOST:PORT or unix:PATH"
        )
    kind, default_path = _DOWNSTREAM_SCHEMES[scheme]
    parts = urlsplit(address)
    if kind == "unix":
        if not rest or rest.startswith("//"):
            raise ValueError("the address of a socket file has to be unix:PATH")
        return Downstream(kind=kind, socket_file=rest)
    if kind == "tcp" and parts.path:
        raise ValueError("the address of a TCP listener has to be tcp://HOST:PORT")
    if not parts.hostname or parts.port is None or parts.query or parts.username is not None:
        raise ValueError(
            "the address to listen on needs a host and a port (0 is any), and no query or user"
        )
    listen = ListenOptions(host=parts.hostname, port=parts.port, path=parts.path or default_path)
    return Downstream(kind=kind, listen=listen)


# Running.


def run_bridge(
    downstream: Downstream,
    upstream: Upstream,
    *,
    record: RecordOptions | None,
    report_url: Callable[[str], None],
    tracer: "Tracer | None",
) -> int:
    """Run a proxy until its only client or the server ends, or a signal arrives.

    A folder gets a file for each session; a single file gets all sessions; a `RecordPolicy` decides
    which sessions are kept. `report_url` is called with the URL for clients, if the proxy listens.
    With a tracer of OpenTelemetry, the proxy makes spans, and forwards each request of a client
    with the context of its own span.

    Returns:
        The exit status: that of a command over stdio; 128 plus the number of a signal; for a host
        over stdio 0 after its end of file, and 1 if the host or the server was lost.

    Raises:
        RecordingError: The file cannot be created, or is not empty; or the folder of the policy
            cannot be used.
        ConnectionLost: The server of a host over stdio cannot be reached.
        OSError: The address cannot be bound.
        ValueError: An option for the host check or the token, or the server's URL, is invalid; or
            the policy has a rule that a proxy cannot follow.
    """
    target = upstream.target
    make_spans: MakeSpans | None = None
    if tracer is not None:
        from mcp_trio._proxy.spans import RequestSpans

        make_spans = partial(RequestSpans, tracer=tracer, upstream_transport=upstream.transport)
    if downstream.kind == "stdio" and not isinstance(target, str) and make_spans is None:
        return trio.run(run_stdio_proxy, target, record)
    if downstream.kind == "http" and isinstance(target, str) and is_http_target(target):
        return trio.run(
            run_http_proxy,
            downstream.listen,
            target,
            record,
            report_url,
            upstream.headers,
            make_spans,
        )
    if downstream.kind == "stdio":
        return trio.run(_run_stdio, upstream, record, make_spans)
    return trio.run(_run_listening, downstream, upstream, record, report_url, make_spans)


async def _run_stdio(
    upstream: Upstream, record: RecordOptions | None, make_spans: MakeSpans | None
) -> int:
    parent_pid, limits = os.getppid(), DEFAULT_LIMITS
    async with recording_for_sessions(record, is_sole=True) as recording:
        journal = start_message_journal(
            recording, transport="stdio", name=upstream.name, limits=limits, make_spans=make_spans
        )
        descriptors = divert_stdio()

        exit_status: int | None = None

        async def serve() -> int:
            nonlocal exit_status
            try:
                server = await upstream.open(limits)
            except ConnectionLost:
                journal.record_cause("lost")
                raise
            client = open_stdio_channel(*descriptors, limits=limits)
            forwarder = upstream.forwarder(
                client=client, server=server, journal=journal, limits=limits
            )
            try:
                status = await forwarder.run(parent_pid=parent_pid)
            finally:
                exit_status = exit_status_of(server)
            return shell_status(exit_status) if isinstance(server, ProcessChannel) else status

        try:
            return await until_signal(serve, on_signal=partial(journal.record_cause, "signal"))
        finally:
            journal.close(exit_status)


async def _run_listening(
    downstream: Downstream,
    upstream: Upstream,
    record: RecordOptions | None,
    report_url: Callable[[str], None],
    make_spans: MakeSpans | None,
) -> int:
    limits = DEFAULT_LIMITS
    async with recording_for_sessions(record) as recording:
        start_journal = partial(
            start_message_journal,
            recording,
            transport=downstream.kind,
            name=upstream.name,
            limits=limits,
            make_spans=make_spans,
        )
        application = bridge_application(
            downstream, upstream, start_journal=start_journal, limits=limits
        )
        serve = partial(serve_bridge, downstream, application, report_url)
        return await until_signal(serve, on_signal=partial(application.record_cause, "signal"))


def bridge_application(
    downstream: Downstream, upstream: Upstream, *, start_journal: Callable[..., Any], limits: Limits
) -> BridgeApplication:
    """Return the application that forwards to a server."""
    if not isinstance(upstream.target, str):
        connections_max = (
            limits.http.connections_max if downstream.kind == "http" else _PROCESSES_MAX
        )
        limits = msgspec.structs.replace(
            limits,
            http=msgspec.structs.replace(
                limits.http, sessions_max=_PROCESSES_MAX, connections_max=connections_max
            ),
        )
    return BridgeApplication(
        open_connection=partial(upstream.open, limits),
        forwarder=upstream.forwarder,
        start_journal=start_journal,
        limits=limits,
    )


async def serve_bridge(
    downstream: Downstream, application: BridgeApplication, report_url: Callable[[str], None]
) -> int:
    """Serve until cancelled, which ends all sessions and processes in bounded time.

    Raises:
        OSError: The address cannot be bound.
        ValueError: An option for the host check or the token is invalid.
    """
    listen = downstream.listen
    serve: Callable[..., Awaitable[None]]
    if downstream.kind == "http":
        http_options: HttpOptions = {
            "hosts": listen.hosts,
            "origins": listen.origins,
            "allows_cors": listen.allows_cors,
            "token": listen.token,
            "path": listen.path or "/mcp",
            "has_websocket": False,
        }
        address = HttpAddress(host=listen.host, port=listen.port)
        serve = partial(serve_http, application, address, http_options)
    elif downstream.kind == "websocket":
        websocket_options: WebSocketOptions = {
            "hosts": listen.hosts,
            "origins": listen.origins,
            "token": listen.token,
            "path": listen.path or "/",
        }
        serve = partial(
            serve_websocket, application, websocket_options, host=listen.host, port=listen.port
        )
    elif downstream.kind == "tcp":
        serve = partial(
            serve_tcp, application, host=listen.host, port=listen.port, is_open=downstream.is_open
        )
    else:
        serve = partial(serve_unix, application, downstream.socket_file)
    async with trio.open_nursery() as nursery:
        report_url(await nursery.start(serve))
    return 0
