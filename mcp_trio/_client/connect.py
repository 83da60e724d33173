"""Connecting a client: targets, the negotiation of a protocol version, and the session's task.

To find it out costs a legacy server a question that it does not know, and one that is silent about
that `limits.requests.probe_seconds`. So what was found out at an address of the web is kept, by
default for as long as the run of Trio, and not asked again (VER-08). A memory that proves wrong
costs one refusal: it is forgotten, and everything is tried from the beginning, once (VER-09).
"""

import logging
import os
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from typing import (
    TYPE_CHECKING,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    cast,
    runtime_checkable,
)
from urllib.parse import urlsplit

import attrs
import trio

from mcp_trio._client.config import ServerConfig
from mcp_trio._protocol.methods import DISCOVER
from mcp_trio._protocol.versions import STATELESS_CODES, newest, supported_versions_in
from mcp_trio._session.session import Session
from mcp_trio._session.tasks import bare
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import Faults, contained
from mcp_trio._transports.connections import (
    ConnectionOptions,
    OnState,
    is_of_connection,
    open_connection,
)
from mcp_trio._transports.lines import memory_pair
from mcp_trio._transports.process import Command, open_process_channel
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


# --------------------
# What a client connects to, and how a channel to it is opened: one row for each kind.


Stderr: TypeAlias = Callable[[str], None] | Literal["inherit"]


@runtime_checkable
class Serving(Protocol):
    """A server object, known by its ability to serve a channel."""

    async def serve(self, channel: Channel) -> None:
        """Serves one session, until the channel ends."""
        ...


Target: TypeAlias = str | Command | ServerConfig | Serving | Channel
"""A URL, a command (a program and its arguments), one of both from a file, a server, a channel."""


@attrs.frozen(kw_only=True)
class ProcessOptions:
    """How a command is started; see `open_process_channel`."""

    env: Mapping[str, str] | None = None
    inherit_env: bool = False
    cwd: str | os.PathLike[str] | None = None
    stderr: Stderr | None = None


@attrs.frozen(kw_only=True, repr=False)
class WebOptions:
    """How a URL is asked; see `open_http_channel` and `open_websocket_channel`.

    `on_state` is for HTTP: how a connection stands that is one session, its client sees itself.
    """

    http: "httpx.AsyncClient | None" = None
    headers: Mapping[str, str] | None = None
    token: str | None = None
    ssl_context: "ssl.SSLContext | None" = None
    on_state: OnState | None = None
    is_old: bool = False


@attrs.frozen
class _Means:
    process: ProcessOptions
    web: WebOptions
    limits: Limits


NO_WEB_OPTIONS: Final = WebOptions()

_OF_HTTP: Final = ("http://", "https://")


class Served(NamedTuple):
    """A server object and its end of the channel: somebody has to bring them together."""

    server: Serving
    channel: Channel


class Connected(NamedTuple):
    """A channel to the target, and how texts name the target until it has said its own name."""

    channel: Channel
    name: str
    served: Served | None = None


async def open_target(
    target: Target,
    *,
    process: ProcessOptions,
    web: WebOptions = NO_WEB_OPTIONS,
    limits: Limits,
) -> Connected:
    """A channel to `target`, which the caller owns.

    Raises:
        ConnectionLost: The command could not be started.
        TypeError: `target` is of no known kind, or `process` says how to start what is no command,
            or `web` how to ask what is no URL.
        ValueError: A URL is none.
    """
    means = _Means(process, web, limits)
    for is_it, open_it in _KINDS:
        if is_it(target):
            return await open_it(target, means)
    raise TypeError(
        "a client connects to a URL, a command (a list: the program and its arguments),"
        f" a ServerConfig, a server object or a channel, not {target!r}"
    )


def _is_url(target: object) -> bool:
    return isinstance(target, str)


def url_of(target: object) -> str | None:
    """Where it is reached by a URL; None if it is not."""
    if isinstance(target, ServerConfig) and target.command is None:
        return target.url
    return target if isinstance(target, str) else None


def has_url(target: object) -> bool:
    """Return whether it is asked by requests of HTTP, of which each can be lost by itself."""
    url = url_of(target)
    return url is not None and not is_of_connection(url)


def has_connection(target: object) -> bool:
    """Return whether it is reached by a URL whose connection is one session."""
    url = url_of(target)
    return url is not None and is_of_connection(url)


def _is_command(target: object) -> bool:
    return isinstance(target, Sequence) and not isinstance(target, str | bytes)


def _is_config(target: object) -> bool:
    return isinstance(target, ServerConfig)


def starts_command(target: object) -> bool:
    """Return whether a process is started for `target`."""
    return _is_command(target) or (isinstance(target, ServerConfig) and url_of(target) is None)


def can_start(target: object) -> bool:
    """Return whether a server can be had there once more when the first one has ended."""
    return starts_command(target) or _is_server(target) or has_connection(target)


def _is_server(target: object) -> bool:
    return isinstance(target, Serving)


def _is_channel(target: object) -> bool:
    return all(hasattr(target, name) for name in ("send", "receive", "aclose"))


async def _open_url(url: str, means: _Means) -> Connected:
    _reject_process_options(means)
    web = means.web
    if is_of_connection(url):
        return await _open_connection(url, web, means.limits)
    if not url.lower().startswith(_OF_HTTP):
        raise ValueError(
            "the URL of a server begins with http:// or https:// and its host, or with ws://,"
            " wss://, unix: or tcp://; a command is a list: the program and its arguments"
        )
    if web.ssl_context is not None:
        raise TypeError("ssl_context is for wss:// only: bring http= for https://")
    from mcp_trio._protocol.websocket import bearer_header
    from mcp_trio._transports.http_client import open_http_channel

    channel = await open_http_channel(
        url,
        http=web.http,
        headers={**bearer_header(web.token), **(web.headers or {})},
        limits=means.limits,
        on_state=web.on_state,
        is_old=web.is_old,
    )
    return Connected(channel, channel.name)


async def _open_connection(url: str, web: WebOptions, limits: Limits) -> Connected:
    if web.http is not None:
        raise TypeError("http is for http:// and https:// only")
    options = ConnectionOptions(headers=web.headers, token=web.token, ssl_context=web.ssl_context)
    channel = await open_connection(url, options, limits)
    return Connected(channel, channel.name)


async def _open_command(command: Command, means: _Means) -> Connected:
    _reject_web_options(means)
    process = means.process
    channel = await open_process_channel(
        command,
        env=process.env,
        inherit_env=process.inherit_env,
        cwd=process.cwd,
        stderr=process.stderr,
        limits=means.limits,
    )
    return Connected(channel, os.fspath(command[0]))


async def _open_config(config: ServerConfig, means: _Means) -> Connected:
    if config.command is None:
        assert config.url is not None
        headers = {**config.headers, **(means.web.headers or {})}
        web = attrs.evolve(means.web, headers=headers)
        return await _open_url(config.url, attrs.evolve(means, web=web))
    given = means.process
    process = attrs.evolve(
        given, env={**config.env, **(given.env or {})}, cwd=given.cwd or config.cwd
    )
    command = [config.command, *config.args]
    return await _open_command(command, attrs.evolve(means, process=process))


async def _open_server(server: Serving, means: _Means) -> Connected:
    _reject_process_options(means)
    _reject_web_options(means)
    ours, theirs = memory_pair(limits=means.limits)
    return Connected(ours, "the server object", Served(server, theirs))


async def _open_channel(channel: Channel, means: _Means) -> Connected:
    _reject_process_options(means)
    _reject_web_options(means)
    return Connected(channel, "the server")


def _reject_process_options(means: _Means) -> None:
    if means.process != ProcessOptions():
        raise TypeError("env, inherit_env, cwd and stderr are for commands only")


def _reject_web_options(means: _Means) -> None:
    if means.web != NO_WEB_OPTIONS:
        raise TypeError("http, headers, token and ssl_context are for URLs only")


_KINDS: Final[tuple[tuple[Callable[[object], bool], Callable[..., Awaitable[Connected]]], ...]] = (
    (_is_url, _open_url),
    (_is_command, _open_command),
    (_is_config, _open_config),
    (_is_server, _open_server),
    (_is_channel, _open_channel),
)


# --------------------
# The task that a client's session lives in, and the wall between it and everybody else.
#
# A session has a nursery, and a nursery in somebody's `async with` would tie that block to the
# session's faults, wrap its exceptions in groups, and forbid closing from another task. So the
# session lives in a task of its own, which lets nothing but `Cancelled` out: faults become the loss
# that fails the calls in flight, and closing is to shut the session and wait.


logger = logging.getLogger("mcp_trio")

Spawn: TypeAlias = Callable[[Callable[[], Awaitable[None]]], object]


def in_system_task(live: Callable[[], Awaitable[None]]) -> None:
    """Start `live` in a Trio system task, with the context of the caller."""
    trio.lowlevel.spawn_system_task(live, context=copy_context())


@attrs.define(kw_only=True, eq=False)
class Lifetime:
    """A session, and the server object at its other end, if that lives in this process.

    `ended` is set when nothing of either runs any more. `fault` is what went wrong on this side of
    the channel, if anything did: the session may only have seen the channel's end.
    """

    session: Session
    served: Served | None
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    fault: ConnectionLost | None = attrs.field(default=None, init=False)
    _task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)

    async def live(self) -> None:
        """The task: run the session until somebody shuts it or it ends by itself."""
        self._task = trio.lowlevel.current_task()
        try:
            with contained(self._contain):
                await self._live()
        finally:
            self.ended.set()

    async def _live(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.served is not None:
                nursery.start_soon(self._serve, self.served)
            await self.session.run()
            limits = self._limits
            grace_seconds = limits.shutdown.drain_seconds + limits.shutdown.close_seconds
            nursery.cancel_scope.deadline = trio.current_time() + grace_seconds

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside the session, which lives; it has to return when that is over."""
        self._nursery.start_soon(task)

    async def over(self) -> None:
        """Wait, shielded, until everything has ended; bounded, since people's code may hang.

        A task of the session itself (a callback) would wait for its own end, and does not.
        """
        if self._holds_current_task():
            return
        seconds_max = _closing_seconds_max(self._limits)
        with trio.move_on_after(seconds_max, shield=True):
            await self.ended.wait()
            return
        logger.error("the session has not ended within %g s: a callback is shielded", seconds_max)

    def _holds_current_task(self) -> bool:
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None and task is not self._task:
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        return task is not None

    @property
    def _limits(self) -> Limits:
        return self.session.connection.limits

    async def _serve(self, served: Served) -> None:
        try:
            await served.server.serve(served.channel)
        except Exception as error:
            logger.exception("the server object failed")
            self._lose("the server object failed", bare(error))
        finally:
            await served.channel.aclose()

    def _contain(self, faults: Faults) -> None:
        """Keep as the loss what must not leave this task."""
        logger.error("the session failed", exc_info=faults)
        self._lose("the session failed", faults)

    def _lose(self, what: str, error: BaseException) -> None:
        self.fault = ConnectionLost(f"{what}: {error!r}")
        self.fault.__cause__ = error
        self.session.shut("lost", self.fault)


def _closing_seconds_max(limits: Limits) -> float:
    """More than the steps of closing take: two sessions wind down, channel and journal close."""
    winding_seconds = limits.shutdown.drain_seconds + 2 * limits.shutdown.close_seconds
    ladder_seconds = (
        limits.shutdown.close_seconds
        + limits.shutdown.terminate_seconds
        + limits.shutdown.kill_seconds
    )
    channel_seconds = ladder_seconds + limits.shutdown.exit_status_seconds
    return 2 * winding_seconds + channel_seconds + limits.recording.close_seconds


# --------------------
# Which era a server is of: a client that speaks both asks in the modern way first.
#
# What is expected of each pair:
#
#     client       legacy server    server of both    modern server
#     legacy       handshake        handshake         refused, with the server's revisions
#     both         handshake        modern            modern
#     modern       error            modern            modern
#
# Only the codes that modern revisions define tell that a server is modern. Any other error,
# silence, and a result that is none tell that it is not (VER-15, VER-16, TRAP-23). What was found
# out holds for the session, which is the life of the process (VER-08), and over the web for those
# that come later (see `era_memory`). A server that was silent may have been slow: if it then
# refuses the handshake as a modern one does, or has answered by then, it is asked again.


_COMPLETE: Final = (None, "complete")

_Reply: TypeAlias = DiscoverResult | RequestError | RequestTimeout | RemoteProtocolError


def speaks_stateless(protocol_versions: Sequence[str]) -> bool:
    """Return whether there is one among them that has no handshake."""
    return newest(protocol_versions, has_handshake=False) is not None


def speaks_legacy(protocol_versions: Sequence[str]) -> bool:
    """Return whether there is one among them that has a handshake."""
    return newest(protocol_versions, has_handshake=True) is not None


async def discovered(session: Session) -> bool:
    """Ask the server what it speaks; False when the handshake is the way to go on with it.

    Raises:
        RemoteProtocolError: There is no revision that both sides speak.
        RequestError: It is modern, and refuses for another reason.
        RequestTimeout: It is silent, and there is no handshake to try instead.
        ConnectionLost: It has ended.
    """
    ours = session.connection.protocol_versions
    reply = await _probe(session)
    if _names_ours(session, reply):
        reply = await _probe(session)
    supported = _supported(reply)
    if supported is None:
        if not speaks_legacy(ours):
            raise _unfit(session, cast("Exception", reply))
        return False
    if (
        isinstance(reply, DiscoverResult)
        and session.connection.common_stateless_version(supported) is not None
    ):
        session.accept(reply)
        return True
    if speaks_legacy([name for name in ours if name in supported]):
        return False
    raise _rejection(reply, supported, ours)


async def shaken_hands(session: Session) -> bool:
    """Shake hands; False when the server is a modern one after all, and that is settled.

    Raises:
        RequestError: It refuses.
        MCPError: As `Session.initialize`.
    """
    try:
        await session.initialize()
    except RequestError as rejection:
        if not (_may_be_stateless(session, rejection) and await _is_discovered(session)):
            raise
        return False
    return True


def _may_be_stateless(session: Session, rejection: RequestError) -> bool:
    """Whether there is reason to ask again; before the handshake, only the question can be late."""
    connection = session.connection
    has_reason = rejection.code in STATELESS_CODES or connection.counts["late answer"] > 0
    return has_reason and speaks_stateless(connection.protocol_versions)


async def _is_discovered(session: Session) -> bool:
    reply = await _probe(session)
    if not isinstance(reply, DiscoverResult):
        return False
    if session.connection.common_stateless_version(reply.supported_versions) is None:
        return False
    session.accept(reply)
    return True


async def _probe(session: Session) -> _Reply:
    """What the server answers; if there is no handshake to try instead, it has the time of one."""
    limits = session.connection.limits
    has_other_way = speaks_legacy(session.connection.protocol_versions)
    seconds = limits.requests.probe_seconds if has_other_way else limits.requests.initialize_seconds
    try:
        result = await session.discover(seconds)
    except (RequestError, RequestTimeout, RemoteProtocolError) as error:
        return error
    if result.result_type not in _COMPLETE:
        return RemoteProtocolError(f"{DISCOVER}: a result of an unknown kind: {result.result_type}")
    return result


def _supported(reply: _Reply) -> Sequence[str] | None:
    """What the server says that it speaks; None when nothing tells that it is modern."""
    if isinstance(reply, DiscoverResult):
        return reply.supported_versions
    if isinstance(reply, RequestError) and reply.code in STATELESS_CODES:
        return supported_versions_in(reply.data)
    return None


def _names_ours(session: Session, reply: _Reply) -> bool:
    """Whether a refused revision is worth another try: the server names a modern one of ours.

    As long as there is only one of these it is the one that was refused, by a server that was not
    yet what it is now, or stands behind others that are not (VER-03).
    """
    is_rejection = isinstance(reply, RequestError) and reply.code == UNSUPPORTED_PROTOCOL_VERSION
    return (
        is_rejection
        and session.connection.common_stateless_version(_supported(reply) or ()) is not None
    )


def _unfit(session: Session, reply: Exception) -> Exception:
    """Why a client that speaks modern revisions only cannot go on with a legacy server (VER-17)."""
    limits = session.connection.limits
    if isinstance(reply, RequestTimeout):
        return RequestTimeout(
            DISCOVER,
            "total",
            limits.requests.initialize_seconds,
            "limits.requests.initialize_seconds",
        )
    ours = ", ".join(session.connection.protocol_versions)
    error = RemoteProtocolError(f"the server does not speak {ours}: {reply}")
    error.__cause__ = reply
    return error


def _rejection(reply: _Reply, supported: Sequence[str], ours: Sequence[str]) -> Exception:
    names_ours = any(name in ours for name in supported)
    if isinstance(reply, RequestError) and (names_ours or not supported):
        return reply  # its own words say more
    named = ", ".join(supported) or "nothing"
    return RemoteProtocolError(f"the server speaks {named}; known here: {', '.join(ours)}")


Era: TypeAlias = Literal["modern", "legacy", "HTTP+SSE"]
"""How a server is talked to: without a handshake, with one, or with one over the old transport."""

_UNAUTHORIZED: Final = 401
_FORBIDDEN: Final = 403
_PORTS: Final = {"http": 80, "https": 443}


class Address(NamedTuple):
    """Who is talked to, and by whom: another client may be led elsewhere, or speak other revisions.

    Nothing secret of the URL is in it. `http` is a weak reference, so that nobody is kept alive.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    http: "weakref.ref[httpx.AsyncClient] | None"
    protocol_versions: tuple[str, ...]


def address_of(
    url: str, *, http: "httpx.AsyncClient | None", protocol_versions: tuple[str, ...]
) -> Address | None:
    """What is remembered of `url` belongs here; None if it is no URL, as who opens it will say."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    reference = None if http is None else weakref.ref(http)
    return Address(
        parts.scheme, parts.hostname or "", port, parts.path, reference, protocol_versions
    )


@attrs.define(eq=False, repr=False)
class VersionMemory:
    """The kinds of the servers at URLs: stateless or legacy; the oldest entry is dropped first.

    Each run of Trio has one. Pass another as `Client(version_memory=…)` to keep clients apart, or
    one with `servers_max=0`, so that each client asks its server.
    """

    servers_max: int = attrs.field(
        default=DEFAULT_LIMITS.requests.servers_remembered_max, kw_only=True
    )
    _eras: OrderedDict[Address | None, Era] = attrs.field(
        factory=OrderedDict[Address | None, Era], init=False
    )

    def recall(self, address: Address | None) -> Era | None:
        """The era of a server; None if it is not known."""
        return self._eras.get(address)

    def note(self, address: Address | None, era: Era) -> None:
        """This is what a server turned out to be."""
        self._eras[address] = era
        self._eras.move_to_end(address)
        while len(self._eras) > self.servers_max:
            self._eras.popitem(last=False)

    def forget(self, address: Address | None) -> None:
        """It turned out to be something else."""
        self._eras.pop(address, None)


_ours: Final = trio.lowlevel.RunVar[VersionMemory]("eras")


def version_memory_of_this_run() -> VersionMemory:
    """The memory of those who were given none; another run of Trio knows nothing of it."""
    try:
        return _ours.get()
    except LookupError:
        memory = VersionMemory()
        _ours.set(memory)
        return memory


def tells_of_another_era(error: MCPError) -> bool:
    """Return whether a server that refuses so is there, but may be another one than it was.

    One that cannot be reached, or does not know who we are, tells nothing.
    """
    if not isinstance(error, ConnectionLost):
        return isinstance(error, RequestError | RemoteProtocolError)
    status = error.http_status or 0
    return status // 100 == 4 and status not in (_UNAUTHORIZED, _FORBIDDEN)  # noqa: PLR2004
