"""`Server`: what users register, and the ways to serve it."""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from contextvars import Context as Variables
from functools import partial
from inspect import isasyncgenfunction
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

import attrs
import trio

from mcp_trio import types
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.versions import (
    ALL_PROTOCOL_VERSIONS,
    PROTOCOL_VERSIONS,
    checked_protocol_versions,
)
from mcp_trio._recorder.writer import RecordTarget, begin_session, options_of
from mcp_trio._server.context import Context, ThreadContext
from mcp_trio._server.handlers import RecordingBeside, Serving, SessionCounter, SessionHttp
from mcp_trio._server.http_options import HostKind, HttpOptions, RunHttpOptions
from mcp_trio._server.registration import Offering
from mcp_trio._server.resumable import SealedRounds
from mcp_trio._server.sealed_state import Sealer
from mcp_trio._server.stdio import run_stdio, serve_stdio
from mcp_trio._server.subscriptions import Announcer, ChangeNotifier
from mcp_trio._session.journal import UNRECORDED, Sequencer
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._session.nondeterminism import strict_watch
from mcp_trio._session.session import Session
from mcp_trio._transports.channel import Channel

if TYPE_CHECKING:
    from mcp_trio._server.dialing import DialOptions
    from mcp_trio._server.http_app import MountedApp
    from mcp_trio._server.sockets import (
        RunTcpOptions,
        RunUnixOptions,
        RunWebSocketOptions,
        WebSocketOptions,
    )
    from mcp_trio._transports.sockets import Authorize


# --------------------
# The transports of `Server.run`: for each a Trio run of its own, which owns the signals.


def _run_http(server: Any, /, **options: Any) -> None:
    from mcp_trio._server.http_serve import run_http

    run_http(server, **options)


def _run_until_signal(
    serve_of: Callable[[Any], Callable[..., Awaitable[None]]], server: Any, /, **options: Any
) -> None:
    from mcp_trio._server.http_serve import run_until_signal

    run_until_signal(serve_of(server), **options)


RUNNERS: Final[Mapping[str, Callable[..., None]]] = {
    "stdio": run_stdio,
    "http": _run_http,
    "websocket": partial(_run_until_signal, attrgetter("serve_websocket")),
    "unix": partial(_run_until_signal, attrgetter("serve_unix")),
    "tcp": partial(_run_until_signal, attrgetter("serve_tcp")),
}


T = TypeVar("T")

_NOT_DECLARED: Final = types.ServerCapabilities()

Lifespan: TypeAlias = Callable[["Server"], AbstractAsyncContextManager[Any]]


@attrs.define(eq=False)
class Server(Offering):
    """A server: a named set of tools, resources, prompts and other methods.

    Attributes:
        name: The name in `serverInfo`, sent with `version` and `instructions`.
        title: The name to display, sent with `description`, `icons` and `website_url`.
        lifespan: A function that makes an async context manager from the server. Its value is
            `ctx.lifespan` in every handler. It is entered once for each served channel, before the
            handshake, and once for all sessions of an HTTP application or a listener.
        limits: The limits of each session.
        offers: Those of "tools", "resources" and "prompts" that are declared as capabilities even
            while nothing of the kind is registered.
        capabilities: The capabilities to declare, in place of those that follow from the above.
        methods: Handlers by method name; see `method`.
        list_ttl_seconds: Seconds for which clients may cache the lists; 0: not at all.
        cache_scope: "public" if other clients may share a cached list, else "private".
        protocol_versions: The protocol versions to serve; all known ones by default.
        converter: A cattrs converter for arguments and results of your own classes. The type that
            a hook takes gives the schema; the text of its `ValueError` is sent to the client.
        keys: The keys that seal `requestState`, the same for all instances of the server. By
            default a random key that only this object has.
        states: A store that lets each sealed state be used once; without it, states can be reused.

    Raises:
        TypeError: `lifespan` is an async generator without `contextlib.asynccontextmanager`.
        ValueError: `offers` contains another name, a method cannot be handled, a protocol version
            is unknown, `list_ttl_seconds` is negative, or `cache_scope` is unknown.
    """

    name: str
    version: str = attrs.field(default="0", kw_only=True)
    instructions: str | None = attrs.field(default=None, kw_only=True)
    title: str | None = attrs.field(default=None, kw_only=True)
    description: str | None = attrs.field(default=None, kw_only=True)
    icons: Sequence[types.Icon] | None = attrs.field(default=None, kw_only=True)
    website_url: str | None = attrs.field(default=None, kw_only=True)
    lifespan: Lifespan | None = attrs.field(default=None, kw_only=True)
    protocol_versions: Sequence[str] = attrs.field(
        default=ALL_PROTOCOL_VERSIONS, kw_only=True, converter=checked_protocol_versions
    )

    _session_counter: SessionCounter = attrs.field(factory=SessionCounter, init=False)
    _in_sessions: dict[type, Any] = attrs.field(factory=dict[type, Any], init=False)

    _contexts: ClassVar = (Context, ThreadContext)

    def __attrs_post_init__(self) -> None:
        if isasyncgenfunction(self.lifespan):
            raise TypeError("a lifespan is decorated with contextlib.asynccontextmanager")
        super().__attrs_post_init__()

    # Serving.

    def open_session(
        self,
        channel: Channel,
        *,
        sequencer: Sequencer | None = None,
        lifespan: Any = None,
        http: SessionHttp | None = None,
    ) -> Session:
        """Make a session over `channel` that nothing runs yet; `serve` is the usual way.

        `http` is what `ctx.http` stands on, and is closed by whoever gives it. Without one, nobody
        closes what handlers open by that.
        """
        connection = Connection(
            our_role=Role.SERVER,
            our_info=self._shared(self._info()),
            our_capabilities=_NOT_DECLARED,
            get_capabilities=self.declared,
            instructions=self.instructions,
            limits=self.limits,
            methods=self._registry.rows,
            protocol_versions=self.protocol_versions,
        )
        http = http or SessionHttp(self.limits.shutdown.close_seconds)
        rounds = SealedRounds(
            sealer=Sealer(server=self.name, keys=self.keys, limits=self.limits),
            store=self.states,
            version=self.version,
        )
        announcer = Announcer(self._change_notifier)
        serving = Serving(self, self._registry, announcer, lifespan, http, self._shared(rounds))
        return Session(channel, connection, serving, sequencer or UNRECORDED)

    def _shared(self, value: T) -> T:
        """Return an equal value that another session already has, to save memory."""
        before: T | None = self._in_sessions.get(type(value))
        if before is None or before != value:
            before = self._in_sessions[type(value)] = value
        return before

    def _info(self) -> types.Implementation:
        return types.Implementation(
            name=self.name,
            version=self.version,
            title=self.title,
            description=self.description,
            icons=None if self.icons is None else [*self.icons],
            website_url=self.website_url,
        )

    async def serve(
        self,
        channel: Channel,
        *,
        record: RecordTarget | None = None,
        task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve one channel until its session ends, then close it; reports the session.

        `record` is a file, a folder in which each session gets a file of its own, or what
        `mcp_trio.recording` has to say more: `RecordOptions`, `SharedRecording`.
        Cancelled: the session is wound down in bounded time.

        Raises:
            RecordingError: The recording cannot be made; nothing was served.
            ValueError: Its redaction is wrong in itself; nothing was served.
            Exception: What the lifespan raises, as it is.
        """
        try:
            async with (
                self.entered_lifespan() as value,
                SessionHttp(self.limits.shutdown.close_seconds) as http,
            ):
                await self.serve_session(
                    channel, lifespan=value, http=http, record=record, task_status=task_status
                )
        finally:
            await channel.aclose()  # the peer of a server that never came to be learns it so

    def speak_stateless_only(self) -> None:
        """Serve only protocol versions without sessions from now on."""
        self.protocol_versions = [
            name for name in self.protocol_versions if PROTOCOL_VERSIONS[name].is_stateless
        ]

    @property
    def change_notifier(self) -> ChangeNotifier:
        """Return the sessions that are notified of changes of this server."""
        return self._change_notifier

    @property
    def spoken(self) -> Sequence[str]:
        """Return the protocol versions that are served, from the newest."""
        return self.protocol_versions

    def entered_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """Return the lifespan as a context manager; its value is `ctx.lifespan`."""
        return nullcontext() if self.lifespan is None else self.lifespan(self)

    async def serve_session(
        self,
        channel: Channel,
        *,
        lifespan: Any,
        http: SessionHttp,
        record: RecordTarget | None = None,
        task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve one channel inside of a lifespan that is already entered.

        Raises:
            RecordingError: The recording cannot be made; nothing was served.
        """
        session = self._opened(channel, lifespan=lifespan, http=http, record=record)
        with strict_watch() if _is_strict(record) else nullcontext():
            await session.run(task_status=task_status)

    def begin_session(
        self,
        channel: Channel,
        pool: TaskPool,
        variables: Variables,
        *,
        lifespan: Any,
        http: SessionHttp,
        record: RecordTarget | None,
        on_ended: Callable[[], None],
    ) -> Session:
        """Serve one channel by tasks of the caller; see `Session.begin`.

        `on_ended` is called when the session has ended, and must be quick.

        Raises:
            RecordingError: The recording cannot be made; nothing is served.
        """
        session = self._opened(channel, lifespan=lifespan, http=http, record=record)
        if _is_strict(record):
            variables, watch = variables.copy(), strict_watch()
            variables.run(watch.__enter__)
            session.ended.when_set(partial(variables.run, watch.__exit__))
        session.ended.when_set(on_ended)
        session.begin(pool, variables)
        return session

    def _opened(
        self, channel: Channel, *, lifespan: Any, http: SessionHttp, record: RecordTarget | None
    ) -> Session:
        beside = self._session_counter.join(record)
        try:
            sequencer = self._sequencer(channel, record, beside.count)
        except BaseException:
            beside.leave()
            raise
        session = self.open_session(channel, sequencer=sequencer, lifespan=lifespan, http=http)
        session.ended.when_set(beside.leave)
        return session

    def param_header_paths(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """Return the arguments of a tool that HTTP requests repeat in headers, if known."""
        return self._registry.param_header_paths(tool)

    async def serve_stdio(
        self,
        *,
        record: RecordTarget | None = None,
        task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve stdin and stdout of this process, which are redirected at once; see `serve`.

        Signals are the caller's affair: `run` handles them.
        """
        await serve_stdio(self, record=record, task_status=task_status)

    async def serve_http(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        server: HostKind = "native",
        certfile: str | None = None,
        keyfile: str | None = None,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **options: Unpack[HttpOptions],
    ) -> None:
        """Serve HTTP until cancelled: `url = await nursery.start(server.serve_http)`.

        Reports the URL of the MCP endpoint. At the same port there is WebSocket, at `/ws`
        (`has_websocket`, `ws_path`), and HTTP+SSE, at `/sse` (`has_sse`). All of them use TLS
        if a certificate is given (`certfile`, `keyfile`). `server` names the HTTP server that holds
        the connections: "native", our own listener, for HTTP/1.1, or "hypercorn", for HTTP/2 as
        well. Port 0 chooses a free port. If this is cancelled, every stream ends as its protocol demands.

        Raises:
            ValueError: Options that contradict each other.
            OSError: The address cannot be bound, or the certificate cannot be read.
            Exception: What the lifespan raises.
        """
        from mcp_trio._server.http_serve import Address, serve_http

        address = Address(host=host, port=port, holder=server, certfile=certfile, keyfile=keyfile)
        await serve_http(self, address, options, task_status=task_status)

    async def serve_websocket(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **options: Unpack["WebSocketOptions"],
    ) -> None:
        """Serve WebSocket until cancelled: `url = await nursery.start(server.serve_websocket)`.

        Reports the URL; port 0 is any free one. Each connection is a session, in one lifespan.
        Cancelled: each ends in bounded time, with close code 1001.

        Raises:
            ValueError: Options that contradict each other.
            OSError: The address cannot be bound, or the certificate not be read.
            Exception: What the lifespan raises.
        """
        from mcp_trio._server.sockets import serve_websocket

        await serve_websocket(self, options, host=host, port=port, task_status=task_status)

    async def serve_unix(
        self,
        path: str | os.PathLike[str],
        *,
        authorize: "Authorize | None" = None,
        record: RecordTarget | None = None,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve at a Unix domain socket until cancelled, one message a line.

        The file is for its owner alone (0600), takes the place of a dead server's and is removed at
        the end. `authorize` tells who somebody is by their credentials, or None to send them away.
        Reports `unix:` and the path. Each connection is a session, in one lifespan.

        Raises:
            OSError: The file cannot be made, or another server listens there.
            ValueError: Sessions cannot be recorded so.
            Exception: What the lifespan raises.
        """
        from mcp_trio._server.sockets import serve_unix

        await serve_unix(self, path, authorize=authorize, record=record, task_status=task_status)

    async def serve_tcp(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        authorize: "Authorize | None" = None,
        is_open: bool = False,
        record: RecordTarget | None = None,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve at a TCP port until cancelled, one message a line; nothing is encrypted.

        Reached from other machines only if `authorize` says who may come, by the address, or
        `is_open` that everybody may. Reports the URL. Each connection is a session, and all are in
        one lifespan.

        Raises:
            OSError: The address cannot be bound.
            ValueError: It would be open to others; or sessions cannot be recorded so.
            Exception: What the lifespan raises.
        """
        from mcp_trio._server.sockets import serve_tcp

        await serve_tcp(
            self,
            host=host,
            port=port,
            authorize=authorize,
            is_open=is_open,
            record=record,
            task_status=task_status,
        )

    async def dial(
        self,
        url: str,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
        **options: Unpack["DialOptions"],
    ) -> None:
        """Open a connection to a hub, and serve on it until cancelled: `ws://`, `unix:`, `tcp://`.

        A connection that breaks, or cannot be opened, is tried again, after longer and longer
        pauses. Each one is a session, in one lifespan. Reports the URL when the first is open.

        Raises:
            ConnectionLost: The hub does not want us (401, 403, close code 1008).
            ValueError: The URL, or something of the options, is wrong; so for `TypeError`.
            Exception: What the lifespan raises.
        """
        from mcp_trio._server.dialing import dial

        await dial(self, url, options, task_status=task_status)

    def asgi(self, **options: Unpack[HttpOptions]) -> "MountedApp":
        """Return an ASGI application of this server, to mount into any application on Trio.

        Needs no lifespan events. `await app.aclose()` ends it early.
        """
        from mcp_trio._server.http_app import MountedApp
        from mcp_trio._server.http_serve import app_of

        return MountedApp(lambda: app_of(self, options, []))

    @overload
    def run(
        self, transport: Literal["stdio"] = "stdio", *, record: RecordTarget | None = None
    ) -> None: ...

    @overload
    def run(self, transport: Literal["http"], **options: Unpack[RunHttpOptions]) -> None: ...

    @overload
    def run(
        self, transport: Literal["websocket"], **options: Unpack["RunWebSocketOptions"]
    ) -> None: ...

    @overload
    def run(self, transport: Literal["unix"], **options: Unpack["RunUnixOptions"]) -> None: ...

    @overload
    def run(self, transport: Literal["tcp"], **options: Unpack["RunTcpOptions"]) -> None: ...

    def run(self, transport: str = "stdio", **options: Any) -> None:
        """Serve until the client disconnects or a signal arrives; handles signals.

        Over stdio it ends with the parent, too. The options of "http" are those of `serve_http`,
        and `workers`, the number of processes that serve the address together. Several of them are
        for modern clients: no session is begun, and a handler asks its client only if it is
        `resumable`. Those of "websocket", "unix" and "tcp" are those of `serve_websocket`,
        `serve_unix` and `serve_tcp`.

        Raises:
            ValueError: Unknown transport, or options that contradict each other.
            SystemExit: After SIGINT or SIGTERM, with status 128 plus its number.
        """
        if transport not in RUNNERS:
            raise ValueError(f"unknown transport {transport!r}: one of {', '.join(RUNNERS)}")
        RUNNERS[transport](self, **options)

    def _sequencer(
        self, channel: Channel, record: RecordTarget | None, beside: Callable[[], int]
    ) -> Sequencer:
        if record is None:
            return UNRECORDED
        recorder, channel_number = begin_session(
            record,
            role="server",
            transport=getattr(channel, "transport", type(channel).__name__),
            name=self.name,
            version=self.version,
            tools_digest=self._registry.tools_digest(),
            lifespan=self.lifespan is not None,
            schemas=self._registry.tool_schemas,
            limits=self.limits,
        )
        return RecordingBeside(recorder, channel_number, beside=beside)


def _is_strict(record: RecordTarget | None) -> bool:
    """Return whether handlers are refused what no replay could repeat."""
    return record is not None and options_of(record).strict
