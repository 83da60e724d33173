"""Connecting a client, in four steps.

1. `open_target` opens a channel to the target: a URL, a command, a server object or a channel.
2. `SessionTask` runs the session in a task of its own.
3. `discover` and `shake_hands` negotiate the protocol version.
4. `VersionMemory` remembers whether the server at a URL is stateless or legacy.

Asking a legacy server for `server/discover` costs one rejected request, and if the server does not
answer such requests at all, `limits.requests.probe_seconds`. So the kind of the server is
remembered, by default for as long as the Trio run. If a remembered kind turns out to be wrong it is
dropped, and the client connects once more without it.

https://modelcontextprotocol.io/specification/2026-07-28/basic/versioning
https://modelcontextprotocol.io/specification/2026-07-28/server/discover
"""

import logging
import os
import sys
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from http import HTTPStatus
from typing import (
    TYPE_CHECKING,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeGuard,
    cast,
    runtime_checkable,
)
from urllib.parse import urlsplit

import attrs
import msgspec
import trio

from mcp_trio._client.config import ServerConfig
from mcp_trio._protocol.methods import DISCOVER
from mcp_trio._protocol.versions import STATELESS_CODES, newest, supported_versions_in
from mcp_trio._session.exceptions import sole_exception
from mcp_trio._session.session import Session
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import ErrorGroup, errors_handled_by
from mcp_trio._transports.connections import (
    OnState,
    SocketChannelOptions,
    is_socket_url,
    open_socket_channel,
)
from mcp_trio._transports.lines import memory_pair
from mcp_trio._transports.stdio import Command, open_process_channel
from mcp_trio.errors import (
    UNSUPPORTED_PROTOCOL_VERSION,
    ConnectionLost,
    MCPError,
    RemoteProtocolError,
    RequestError,
    RequestTimeout,
)
from mcp_trio.limits import DEFAULT_LIMITS, Limits
from mcp_trio.types import DiscoverResult

if TYPE_CHECKING:
    import ssl

    import httpx
    import httpx2

    from mcp_trio._auth.http_auth import ClientAuth

logger = logging.getLogger("mcp_trio")

Stderr: TypeAlias = Callable[[str], None] | Literal["inherit"]
"""A function for each line of a command's stderr; or "inherit": this process's stderr gets it."""


@runtime_checkable
class SupportsServe(Protocol):
    """A server object in this process: anything with the method `serve`."""

    async def serve(self, channel: Channel) -> None:
        """Serve one session, until the channel ends."""
        ...


Target: TypeAlias = str | os.PathLike[str] | Command | ServerConfig | SupportsServe | Channel
"""A URL, a script, a command (program and arguments), a `ServerConfig`, a server, or a channel."""


# Quoted, so that `help(Client)` shows this name, and not the private modules of its parts.
def with_script_as_command(target: "Target") -> Target:
    """Return the command that runs a target which is the path of a Python or Node script.

    Other targets are returned as they are.

    Raises:
        ValueError: There is no such script, or it is of another kind.
    """
    if isinstance(target, os.PathLike):
        path = os.fspath(target)
    elif isinstance(target, str) and target.endswith((".py", ".js")) and ":" not in target[2:]:
        path = target
    else:
        return target
    if not os.path.isfile(path):  # noqa: PTH113 - the path stays as the user wrote it
        raise ValueError(
            f"there is no script {path!r}; a command is a list: the program and its arguments"
        )
    if path.endswith(".py"):
        return [sys.executable, path]
    if path.endswith(".js"):
        return ["node", path]
    raise ValueError(f"a script is a .py or .js file, unlike {path!r}; a command is a list")


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options for starting a command; see `open_process_channel`."""

    env: Mapping[str, str] | None = None
    inherit_env: bool = False
    cwd: str | os.PathLike[str] | None = None
    stderr: Stderr | None = None


@attrs.frozen(kw_only=True, repr=False)
class WebOptions:
    """Options for connecting to a URL; see `open_http_channel` and `open_websocket_channel`.

    `auth`, `on_state` and `user_wait` are for HTTP only. On other transports the connection is the
    session, whose state the client itself knows. `user_wait` returns a context that is entered
    while the client waits for its user to log in.
    """

    http: "httpx2.AsyncClient | httpx.AsyncClient | None" = None
    headers: Mapping[str, str] | None = None
    token: str | None = None
    auth: "ClientAuth | None" = None
    ssl_context: "ssl.SSLContext | None" = None
    on_state: OnState | None = None
    user_wait: Callable[[], AbstractContextManager[None]] = nullcontext
    tries_http_sse_first: bool = False


NO_PROCESS_OPTIONS: Final = ProcessOptions()
NO_WEB_OPTIONS: Final = WebOptions()


class Served(NamedTuple):
    """A server object and the server's end of the channel, on which it has yet to be run."""

    server: SupportsServe
    channel: Channel


class Connected(NamedTuple):
    """A channel to the target, and the name of the target for error texts before `serverInfo`."""

    channel: Channel
    name: str
    served: Served | None = None


async def open_target(
    target: Target, *, process: ProcessOptions, web: WebOptions, limits: Limits
) -> Connected:
    """Open a channel to `target`, which the caller owns.

    Raises:
        ConnectionLost: The command could not be started, or the server not reached.
        TypeError: `target` is of no known kind, or options are given that do not fit its kind.
        ValueError: The URL is invalid.
    """
    if isinstance(target, ServerConfig):
        # The options of the client precede those of the configuration.
        config = target
        if config.command is None:
            assert config.url is not None
            target = config.url
            web = attrs.evolve(web, headers={**config.headers, **(web.headers or {})})
        else:
            target = [config.command, *config.args]
            process = msgspec.structs.replace(
                process, env={**config.env, **(process.env or {})}, cwd=process.cwd or config.cwd
            )
    if not isinstance(target, str) and web != NO_WEB_OPTIONS:
        raise TypeError("http, headers, token, auth and ssl_context are for URLs only")
    if not is_command(target) and process != NO_PROCESS_OPTIONS:
        raise TypeError("env, inherit_env, cwd and stderr are for commands only")
    if isinstance(target, str):
        return await _open_url(target, web, limits)
    if is_command(target):
        channel = await open_process_channel(
            target,
            env=process.env,
            inherit_env=process.inherit_env,
            cwd=process.cwd,
            stderr=process.stderr,
            limits=limits,
        )
        return Connected(channel, os.fspath(target[0]))
    if isinstance(target, SupportsServe):
        client_end, server_end = memory_pair(limits=limits)
        return Connected(client_end, "the server object", Served(target, server_end))
    if all(hasattr(target, name) for name in ("send", "receive", "aclose")):
        return Connected(cast("Channel", target), "the server")
    is_config = isinstance(target, Mapping)
    hint = "; a configuration is for ClientGroup.from_config" if is_config else ""
    raise TypeError(
        "a client connects to a URL, a script, a command (a list: the program and its arguments),"
        f" a ServerConfig, a server object or a channel, not {target!r}{hint}"
    )


async def _open_url(url: str, web: WebOptions, limits: Limits) -> Connected:
    if is_socket_url(url):
        if web.http is not None:
            raise TypeError("http is for http:// and https:// only")
        if web.auth is not None:
            raise TypeError("auth is for http:// and https:// only: here use token=")
        options = SocketChannelOptions(
            headers=web.headers, token=web.token, ssl_context=web.ssl_context
        )
        connection = await open_socket_channel(url, options, limits)
        return Connected(connection, connection.name)
    if not url.lower().startswith(("http://", "https://")):
        raise ValueError(
            "the URL of a server has to begin with http:// or https:// and its host, or with ws://,"
            " wss://, unix: or tcp://; a script is a .py or .js file, and a command is a list: the"
            " program and its arguments"
        )
    if web.ssl_context is not None:
        raise TypeError("ssl_context is for wss:// only: for https:// use http=")
    from mcp_trio._protocol.websocket import bearer_header
    from mcp_trio._transports.http_client import open_http_channel

    headers = {**bearer_header(web.token), **(web.headers or {})}
    auth = None
    if web.auth is not None:
        from mcp_trio._auth.http_auth import auth_for

        if any(name.lower() == "authorization" for name in headers):
            raise TypeError("auth= takes the place of token= and of an Authorization header")
        auth = auth_for(url, web.auth, http=web.http, limits=limits, user_wait=web.user_wait)
    channel = await open_http_channel(
        url,
        http=web.http,
        headers=headers,
        auth=auth,
        limits=limits,
        on_state=web.on_state,
        tries_http_sse_first=web.tries_http_sse_first,
    )
    return Connected(channel, channel.name)


def url_of(target: object) -> str | None:
    """Return the URL of the target; None if it has none."""
    if isinstance(target, ServerConfig) and target.command is None:
        return target.url
    return target if isinstance(target, str) else None


def is_http_target(target: object) -> bool:
    """Return whether the target has an HTTP URL: its session is not bound to one connection."""
    url = url_of(target)
    return url is not None and not is_socket_url(url)


def is_command(target: object) -> TypeGuard[Command]:
    """Return whether the target is a program with its arguments."""
    return isinstance(target, Sequence) and not isinstance(target, str | bytes)


def starts_command(target: object) -> bool:
    """Return whether connecting to the target starts a process."""
    return is_command(target) or (isinstance(target, ServerConfig) and url_of(target) is None)


def can_open_again(target: object) -> bool:
    """Return whether the client can open the channel again.

    That is not so for a channel that the user has opened, and not needed for an HTTP channel, which
    connects again by itself.
    """
    url = url_of(target)
    has_socket_url = url is not None and is_socket_url(url)
    return starts_command(target) or isinstance(target, SupportsServe) or has_socket_url


Spawn: TypeAlias = Callable[[Callable[[], Awaitable[None]]], object]
"""A function that starts a task, such as `nursery.start_soon`."""


def spawn_in_system_task(task: Callable[[], Awaitable[None]]) -> None:
    """Start `task` in a Trio system task, with the context of the caller."""
    trio.lowlevel.spawn_system_task(task, context=copy_context())


@attrs.define(kw_only=True, eq=False, repr=False)
class SessionTask:
    """The task of a client's session, and of a server object in this process.

    A nursery in the user's `async with` block would cancel the block when the session fails, wrap
    its exceptions in groups, and forbid closing from another task. So the session has a task of its
    own, out of which only `Cancelled` gets: an error fails the calls in flight as `ConnectionLost`,
    and to close a client means to shut the session and wait for this task.

    Attributes:
        session: The session.
        served: The server object that the session connects to, if any.
        ended: Set when neither the session nor the server object runs any more.
        failure: The error of the session or the server object, if one of them has failed. The
            session itself may only have seen the end of the channel.
    """

    session: Session
    served: Served | None
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    failure: ConnectionLost | None = attrs.field(default=None, init=False)
    _task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)

    @property
    def _limits(self) -> Limits:
        return self.session.connection.limits

    async def run(self) -> None:
        """Run the session until it is shut or ends by itself."""
        self._task = trio.lowlevel.current_task()
        try:
            with errors_handled_by(self._fail):
                async with trio.open_nursery() as nursery:
                    self._nursery = nursery
                    if self.served is not None:
                        nursery.start_soon(self._serve, self.served)
                    await self.session.run()
                    shutdown = self._limits.shutdown
                    grace_seconds = shutdown.drain_seconds + shutdown.close_seconds
                    nursery.cancel_scope.deadline = trio.current_time() + grace_seconds
        finally:
            self.ended.set()

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside the open session; it has to return when the session is over."""
        self._nursery.start_soon(task)

    async def wait_ended(self) -> None:
        """Wait, shielded, until everything has ended; bounded, because a callback may hang.

        Called by a task of the session itself, such as a callback, it returns at once.
        """
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None:
            if task is self._task:
                return
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        # More than all steps of closing take: two sessions, the channel, the recording.
        shutdown = self._limits.shutdown
        session_seconds = shutdown.drain_seconds + 2 * shutdown.close_seconds
        process_seconds = (
            shutdown.close_seconds
            + shutdown.terminate_seconds
            + shutdown.kill_seconds
            + shutdown.exit_status_seconds
        )
        recording_seconds = self._limits.recording.close_seconds
        seconds_max = 2 * session_seconds + process_seconds + recording_seconds
        with trio.move_on_after(seconds_max, shield=True):
            await self.ended.wait()
            return
        logger.error("the session has not ended within %g s: a callback is shielded", seconds_max)

    async def _serve(self, served: Served) -> None:
        try:
            await served.server.serve(served.channel)
        except Exception as error:
            logger.exception("the server object failed")
            self._lose("the server object failed", sole_exception(error))
        finally:
            await served.channel.aclose()

    def _fail(self, errors: ErrorGroup) -> None:
        logger.error("the session failed", exc_info=errors)
        self._lose("the session failed", errors)

    def _lose(self, text: str, error: BaseException) -> None:
        self.failure = ConnectionLost(f"{text}: {error!r}")
        self.failure.__cause__ = error
        self.session.shut("lost", self.failure)


# Negotiation. A client that supports both kinds of protocol versions sends `server/discover` first:
#
#     client       legacy server    server of both    stateless server
#     legacy       handshake        handshake         rejected, with the server's versions
#     both         handshake        stateless         stateless
#     stateless    error            stateless         stateless
#
# Only an error code that stateless versions define shows that a server is stateless. After any
# other error, no response, or an invalid result the client tries the handshake. A server that did
# not answer may only have been slow: if it then rejects the handshake as a stateless server does,
# or its response has arrived by then, it is asked once more. The result holds for the session.

# The response to `server/discover`, or the error in its place.
_ProbeOutcome: TypeAlias = DiscoverResult | RequestError | RequestTimeout | RemoteProtocolError


def supports_stateless(protocol_versions: Sequence[str]) -> bool:
    """Return whether one of the protocol versions has no handshake."""
    return newest(protocol_versions, has_handshake=False) is not None


def supports_legacy(protocol_versions: Sequence[str]) -> bool:
    """Return whether one of the protocol versions has a handshake."""
    return newest(protocol_versions, has_handshake=True) is not None


async def discover(session: Session) -> bool:
    """Ask the server for its protocol versions; return False if a handshake has to follow.

    Raises:
        RemoteProtocolError: Client and server have no protocol version in common.
        RequestError: The server is stateless, and rejected the request for another reason.
        RequestTimeout: The server did not answer, and the client supports no handshake.
        ConnectionLost: The session has ended.
    """
    ours = session.connection.protocol_versions
    reply = await _probe(session)
    is_rejection = isinstance(reply, RequestError) and reply.code == UNSUPPORTED_PROTOCOL_VERSION
    named = _supported(reply) if is_rejection else None
    if named and session.connection.common_stateless_version(named) is not None:
        # The server rejected our protocol version, and yet names it as supported. That happens
        # while a server is updated, or if a load balancer has older servers behind it.
        reply = await _probe(session)
    supported = _supported(reply)
    if supported is None:
        if supports_legacy(ours):
            return False
        if isinstance(reply, RequestTimeout):
            seconds = session.connection.limits.requests.initialize_seconds
            raise RequestTimeout(DISCOVER, "total", seconds, "limits.requests.initialize_seconds")
        text = f"the server does not support {', '.join(ours)}: {reply}"
        raise RemoteProtocolError(text) from cast("Exception", reply)
    if (
        isinstance(reply, DiscoverResult)
        and session.connection.common_stateless_version(supported) is not None
    ):
        session.accept_discovery(reply)
        return True
    common = [name for name in ours if name in supported]
    if supports_legacy(common):
        return False
    if isinstance(reply, RequestError) and (common or not supported):
        raise reply  # its own text is more precise
    theirs = ", ".join(supported) or "none"
    raise RemoteProtocolError(
        f"the server supports the protocol versions {theirs}; this client: {', '.join(ours)}"
    )


async def shake_hands(session: Session) -> bool:
    """Do the handshake; return False if the server turned out to be stateless.

    The session has then accepted the server's response to `server/discover`, and needs no
    handshake.

    Raises:
        RequestError: The server rejected the handshake.
        MCPError: As `Session.initialize`.
    """
    try:
        await session.initialize()
    except RequestError as rejection:
        connection = session.connection
        # Before the handshake only the response to `server/discover` can be late.
        has_reason = rejection.code in STATELESS_CODES or "late answer" in connection.counts
        if not has_reason or not supports_stateless(connection.protocol_versions):
            raise
        reply = await _probe(session)
        if not isinstance(reply, DiscoverResult):
            raise
        if connection.common_stateless_version(reply.supported_versions) is None:
            raise
        session.accept_discovery(reply)
        return False
    return True


async def _probe(session: Session) -> _ProbeOutcome:
    """Return the response to `server/discover`, or its error.

    The timeout is short only if the client can try a handshake after it.
    """
    limits = session.connection.limits.requests
    has_fallback = supports_legacy(session.connection.protocol_versions)
    seconds = limits.probe_seconds if has_fallback else limits.initialize_seconds
    try:
        result = await session.discover(seconds)
    except (RequestError, RequestTimeout, RemoteProtocolError) as error:
        return error
    if result.result_type not in (None, "complete"):
        return RemoteProtocolError(f"{DISCOVER}: unknown resultType {result.result_type!r}")
    return result


def _supported(reply: _ProbeOutcome) -> Sequence[str] | None:
    """Return the server's protocol versions; None if nothing shows that it is stateless."""
    if isinstance(reply, DiscoverResult):
        return reply.supported_versions
    if isinstance(reply, RequestError) and reply.code in STATELESS_CODES:
        return supported_versions_in(reply.data)
    return None


ServerKind: TypeAlias = Literal["stateless", "legacy", "HTTP+SSE"]
"""A server without a handshake, with one, or with one over the transport of 2024-11-05."""

_PORTS: Final = {"http": 80, "https": 443}


ServerKey: TypeAlias = tuple[Hashable, ...]
"""The key of a server in `VersionMemory`; it holds no secret of the URL."""


def server_key(
    url: str,
    *,
    http: "httpx2.AsyncClient | httpx.AsyncClient | None",
    protocol_versions: tuple[str, ...],
) -> ServerKey | None:
    """Return the key for the server at `url`; None if the URL is invalid, which opening reports.

    The HTTP client is part of it, because another one may use a proxy that leads to another server,
    and so are the client's protocol versions, on which the response depends. The HTTP client is
    held by a weak reference.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    reference = None if http is None else weakref.ref(http)
    return parts.scheme, parts.hostname or "", port, parts.path, reference, protocol_versions


@attrs.define(eq=False, repr=False)
class VersionMemory:
    """The kinds of the servers at URLs: stateless or legacy; the oldest entry is dropped first.

    All clients of a Trio run share one. Pass another as `Client(version_memory=…)` to keep clients
    apart, or one with `servers_max=0` to let each client ask its server.
    """

    servers_max: int = attrs.field(
        default=DEFAULT_LIMITS.requests.servers_remembered_max, kw_only=True
    )
    _kinds: OrderedDict[ServerKey | None, ServerKind] = attrs.field(
        factory=OrderedDict[ServerKey | None, ServerKind], init=False
    )

    def recall(self, key: ServerKey | None) -> ServerKind | None:
        """Return the kind of a server; None if it is not known."""
        return self._kinds.get(key)

    def note(self, key: ServerKey | None, kind: ServerKind) -> None:
        """Remember the kind of a server."""
        self._kinds[key] = kind
        self._kinds.move_to_end(key)
        while len(self._kinds) > self.servers_max:
            self._kinds.popitem(last=False)

    def forget(self, key: ServerKey | None) -> None:
        """Forget the kind of a server."""
        self._kinds.pop(key, None)


_shared_memory: Final = trio.lowlevel.RunVar[VersionMemory]("version_memory")


def version_memory_of_this_run() -> VersionMemory:
    """Return the memory that all clients of this Trio run share by default."""
    try:
        return _shared_memory.get()
    except LookupError:
        memory = VersionMemory()
        _shared_memory.set(memory)
        return memory


def may_be_of_another_kind(error: MCPError) -> bool:
    """Return whether a remembered server that failed with `error` may have changed its kind.

    A server that cannot be reached, that rejects the client's credentials, or that has too many
    requests may still be of the same kind.
    """
    if not isinstance(error, ConnectionLost):
        return isinstance(error, RequestError | RemoteProtocolError)
    status = error.http_status or 0
    others = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
    return status // 100 == 4 and status not in others  # noqa: PLR2004
