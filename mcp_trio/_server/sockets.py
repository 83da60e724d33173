"""Serving over WebSocket, Unix domain sockets and TCP, where each connection is a session.

The server's lifespan is entered once, around all connections. Each session has a recording of its
own, and an error in one session does not affect the others. A connection that completes no
handshake and sends no stateless request within `limits.requests.first_request_seconds` is closed.

The authentication and the TLS settings of WebSocket are here too, and are those of HTTP as well.
"""

import logging
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Required, TypeAlias, TypedDict

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.security import LOOPBACK, HostCheck, host_check_for, is_loopback
from mcp_trio._protocol.suggestions import check_option_names
from mcp_trio._protocol.websocket import upgrade_rejection, with_token_header
from mcp_trio._recorder.options import RecordTarget, holds_many_sessions
from mcp_trio._server.sessions import HandlerHttpClient, HandshakeTimeouts, SessionSource
from mcp_trio._session.exceptions import (
    exception_to_raise,
    faults_as_exceptions,
    raise_unchanged,
)
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import call_when_cancelled
from mcp_trio._transports.sockets import (
    Authorize,
    PeerCredentials,
    SocketHost,
    SocketPath,
    netloc,
    open_tcp_listeners,
    serve_sockets,
    unix_listener,
)
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._auth.resource_server import ProtectedResource, ResourceServer

logger = logging.getLogger("mcp_trio")

Serve: TypeAlias = Callable[..., Awaitable[None]]
"""Serves one channel as a session until it has ended; `task_status` receives the session."""

Handle: TypeAlias = Callable[[Channel], Awaitable[None]]
"""Handles one channel."""


async def serve_connections(
    server: SessionSource,
    listen: Callable[..., Awaitable[None]],
    *,
    transport: str,
    record: RecordTarget | None,
    task_status: trio.TaskStatus[str],
) -> None:
    """Run `listen(serve, task_status=...)` within the server's lifespan until cancelled.

    `task_status` of both gets the URL.

    A cancellation while the lifespan is starting cancels the lifespan. A later one cancels `listen`
    and the sessions, which close in bounded time; then the lifespan exits.

    Raises:
        ValueError: `record` can hold one session only.
        Exception: The error of the lifespan or of `listen`, not in an exception group.
    """
    if not holds_many_sessions(record):
        raise ValueError("record to a folder or a SharedRecording: there are several sessions")
    try:
        async with trio.open_nursery() as outer:
            stopping = trio.Event()
            outer.start_soon(call_when_cancelled, stopping.set)
            with trio.CancelScope() as shield:
                async with (
                    server.enter_lifespan(record, transport=transport) as lifespan,
                    HandlerHttpClient(server.limits.shutdown.close_seconds) as http,
                    trio.open_nursery() as nursery,
                ):
                    shield.shield = True  # Before this, no session exists that has to be closed.
                    serve = partial(server.serve_session, lifespan=lifespan, http=http)
                    url: str = await nursery.start(listen, serve)
                    task_status.started(url)
                    await stopping.wait()
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise_unchanged(exception_to_raise(group))


async def _serve_bound(
    server: SessionSource,
    accept: Callable[[Handle], Awaitable[None]],
    transport: str,
    url: str,
    *,
    record: RecordTarget | None,
    task_status: trio.TaskStatus[str],
) -> None:
    """Serve a bound address until cancelled; `accept` calls its argument with each connection.

    A connection without a first request in time is closed.
    """
    timeouts = HandshakeTimeouts(server.limits)

    async def listen(serve: Serve, *, task_status: trio.TaskStatus[str]) -> None:
        async def handle(channel: Channel) -> None:
            await serve(channel, task_status=timeouts.task_status_for(channel))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(timeouts.run)
            task_status.started(url)
            await accept(handle)

    await serve_connections(
        server, listen, transport=transport, record=record, task_status=task_status
    )


# Access over HTTP and WebSocket ------------------------------------------------------------------


class AccessOptions(TypedDict, total=False):
    """Options that restrict access over HTTP and WebSocket; `Server.serve_http` documents them."""

    hosts: Collection[str] | None
    origins: Collection[str] | None
    token: str | None


def protected_resource(
    auth: "ResourceServer | None",
    token: str | None,
    *,
    path: str,
    bound: Sequence[tuple[str, int]],
    is_tls: bool,
    has_certificates: bool,
    scopes: Callable[[], Iterable[str]],
) -> "ProtectedResource | None":
    """Return the object that authenticates the clients of a listener; None if all are accepted.

    `token` is the only bearer token that is accepted, in place of `auth`. An ASGI application has
    no `bound` addresses. With `has_certificates`, clients can prove certificates of their own.

    Raises:
        ValueError: Both `auth` and `token` are given; the token is invalid; or the resource has to
            be given, since its URL is not known.
    """
    if auth is None and token is None:
        return None
    from mcp_trio._auth.resource_server import ProtectedResource, ResourceServer

    if auth is None:
        from mcp_trio._auth.verification import StaticTokens

        assert token is not None
        auth = ResourceServer(StaticTokens({token: "bearer"}))
    elif token is not None:
        raise ValueError("give either token= or Server(auth=…), not both")
    resources = [auth.resource] if auth.resource is not None else []
    if not resources:
        scheme, default_port = ("https", ":443") if is_tls else ("http", ":80")
        names = (netloc(name, port) for host, port in bound for name in _url_hosts(host))
        # Clients leave out the default port, in `Host` and in the audience of their tokens.
        hosts = dict.fromkeys(name.removesuffix(default_port) for name in names)
        resources = [f"{scheme}://{host}{path}" for host in hosts]
    if auth.issuers and not resources:
        raise ValueError(
            "the public URL of the server is not known: give"
            ' Server(auth=ResourceServer(…, resource="https://HOST/mcp"))'
        )
    return ProtectedResource(
        settings=auth,
        resources=resources,
        path=path,
        scopes_supported=scopes,
        has_certificates=has_certificates,
    )


def _url_hosts(host: str) -> Sequence[str]:
    """Return the hosts in the URLs of a bound address; none for an address such as 0.0.0.0."""
    try:
        address = ip_address(host)
    except ValueError:
        return (host,)
    if address.is_unspecified:
        return ()
    return (host, *LOOPBACK) if address.is_loopback else (host,)


def tls_context(
    certfile: str | None, keyfile: str | None, client_cafile: str | None = None
) -> ssl.SSLContext | None:
    """Return the TLS settings of a listener for HTTP/1.1 and WebSocket; None without a certificate.

    Raises:
        OSError: A certificate or the key cannot be read.
        ValueError: There is a key, or `client_cafile`, without a certificate.
    """
    if certfile is None:
        for name, given in (("keyfile", keyfile), ("client_cafile", client_cafile)):
            if given is not None:
                raise ValueError(f"{name}= needs certfile=")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certfile, keyfile)
    except OSError as error:  # its own text names no file
        files = certfile if keyfile is None else f"{certfile} and {keyfile}"
        raise OSError(f"no usable certificate and key in {files}: {error}") from error
    if client_cafile is not None:
        try:
            context.load_verify_locations(client_cafile)
        except OSError as error:
            raise OSError(f"no usable certificates in {client_cafile}: {error}") from error
        # Anyone may read the metadata of the protected resource, and not every token is bound to a
        # certificate.
        context.verify_mode = ssl.CERT_OPTIONAL
    context.set_alpn_protocols(["http/1.1"])
    return context


# WebSocket ----------------------------------------------------------------------------------------


class WebSocketOptions(AccessOptions, total=False):
    """Options of `Server.serve_websocket`, without the address."""

    path: str
    certfile: str | None
    keyfile: str | None
    client_cafile: str | None
    record: RecordTarget | None


class RunWebSocketOptions(WebSocketOptions, total=False):
    """Options of `Server.serve_websocket`."""

    host: str
    port: int


class HandshakeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The checks that a WebSocket handshake has to pass.

    Attributes:
        protected: The object that authenticates clients; None accepts all, without a principal.
    """

    host_check: HostCheck
    path: str
    protected: "ProtectedResource | None"

    async def admit(self, request: HttpRequest) -> HttpRequest | Rejection:
        """Return the request with its sender, or the rejection."""
        rejection = self.host_check.rejection(request) or upgrade_rejection(request, path=self.path)
        if rejection is not None:
            return rejection
        request = with_token_header(request)
        if self.protected is None:
            return request
        with faults_as_exceptions():
            auth = await self.protected.authenticate(request)
        return auth if isinstance(auth, Rejection) else request.with_auth(auth)


async def serve_websocket(
    server: SessionSource,
    options: WebSocketOptions,
    *,
    host: str,
    port: int,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve WebSocket until cancelled; `Server.serve_websocket` documents the arguments."""
    check_option_names("a WebSocket server", options, RunWebSocketOptions.__annotations__)
    async with bound_websocket(
        options, host=host, port=port, auth=server.auth, scopes=server.scopes
    ) as bound:
        await _serve_bound(
            server,
            partial(bound.serve, limits=server.limits),
            "websocket",
            bound.url,
            record=options.get("record"),
            task_status=task_status,
        )


@attrs.frozen(kw_only=True)
class BoundWebSocket:
    """A bound address that accepts WebSockets."""

    url: str
    port: int
    handshake_check: HandshakeCheck
    _listeners: Sequence[trio.SocketListener] = attrs.field(alias="listeners")
    _tls: ssl.SSLContext | None = attrs.field(alias="tls")

    async def serve(self, handle: Handle, limits: Limits) -> None:
        """Call `handle` with each channel until cancelled; close the channel after the call."""
        from mcp_trio._transports.http_server import serve_websocket

        await serve_websocket(
            self._listeners,
            admit=self.handshake_check.admit,
            handle=handle,
            limits=limits,
            tls=self._tls,
        )


@asynccontextmanager
async def bound_websocket(
    options: WebSocketOptions,
    *,
    host: str,
    port: int,
    auth: "ResourceServer | None" = None,
    scopes: Callable[[], Iterable[str]] = tuple,
) -> AsyncGenerator[BoundWebSocket]:
    """Bind an address for WebSockets within the block; for errors see `Server.serve_websocket`."""
    client_cafile = options.get("client_cafile")
    tls = tls_context(options.get("certfile"), options.get("keyfile"), client_cafile)
    bound = await open_tcp_listeners(host, port)
    with _closing(bound):
        addresses: list[tuple[str, int]] = [each.socket.getsockname()[:2] for each in bound]
        port = addresses[0][1]
        path = options.get("path", "/ws")
        handshake_check = HandshakeCheck(
            host_check=host_check_for(
                addresses, hosts=options.get("hosts"), origins=options.get("origins")
            ),
            path=path,
            protected=protected_resource(
                auth,
                options.get("token"),
                path=path,
                bound=[(host, port), *addresses],
                is_tls=tls is not None,
                has_certificates=client_cafile is not None,
                scopes=scopes,
            ),
        )
        yield BoundWebSocket(
            url=f"{'ws' if tls is None else 'wss'}://{netloc(host, port)}{path}",
            port=port,
            handshake_check=handshake_check,
            listeners=bound,
            tls=tls,
        )


# Unix domain sockets and TCP ----------------------------------------------------------------------


class RunUnixOptions(TypedDict, total=False):
    """Options of `Server.serve_unix`."""

    path: Required[SocketPath]
    authorize: Authorize | None
    record: RecordTarget | None


class RunTcpOptions(TypedDict, total=False):
    """Options of `Server.serve_tcp`."""

    host: str
    port: int
    authorize: Authorize | None
    is_open: bool
    record: RecordTarget | None


async def serve_unix(
    server: SessionSource,
    path: SocketPath,
    *,
    authorize: Authorize | None = None,
    record: RecordTarget | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at a socket file until cancelled; `Server.serve_unix` documents the arguments."""
    async with unix_listener(path) as bound:
        accept = partial(_accept_lines, [bound], "unix", authorize, server.limits)
        await _serve_bound(
            server, accept, "unix", f"unix:{path}", record=record, task_status=task_status
        )


async def serve_tcp(
    server: SessionSource,
    *,
    host: str,
    port: int,
    authorize: Authorize | None = None,
    is_open: bool = False,
    record: RecordTarget | None = None,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve at a TCP port until cancelled; `Server.serve_tcp` documents the arguments."""
    if not (is_open or authorize is not None or is_loopback(host)):
        raise ValueError(
            f"TCP does not authenticate: every client that reaches {host} could use this server."
            " Pass authorize=, or is_open=True to accept all clients"
        )
    bound = await open_tcp_listeners(host, port)
    with _closing(bound):
        accept = partial(_accept_lines, bound, "tcp", authorize, server.limits)
        url = f"tcp://{netloc(host, bound[0].socket.getsockname()[1])}"
        await _serve_bound(server, accept, "tcp", url, record=record, task_status=task_status)


async def _accept_lines(
    listeners: Sequence[trio.SocketListener],
    transport: str,
    authorize: Authorize | None,
    limits: Limits,
    handle: Handle,
) -> None:
    """Accept connections with one message per line, and call `handle` with each of them."""

    async def checked(peer: PeerCredentials) -> AuthInfo | str | None:
        assert authorize is not None
        with faults_as_exceptions():
            return await authorize(peer)

    host = SocketHost(
        transport=transport,
        authorize=None if authorize is None else checked,
        handle=handle,
        limits=limits,
    )
    await serve_sockets(listeners, host)


def _closing(bound: Sequence[trio.SocketListener]) -> ExitStack:
    """Close listeners at the end of a block, without a checkpoint that could hide its error."""
    stack = ExitStack()
    for each in bound:
        stack.callback(each.socket.close)
    return stack
