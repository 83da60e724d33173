"""The sessions of a server: how they open, the state that they share, the handshake timeout.

`Server` is the interface for users; each has one `ServerSessions`, which the transports use. Where
no `Server` answers, an `OtherSessionSource` takes its place: a mock of a recorded server, a bridge.
"""

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    closing,
    nullcontext,
)
from contextvars import Context as Variables
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Protocol, Self, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import attrs
import msgspec
import trio

from mcp_trio._journal.records import OTHER_SESSIONS_COUNT
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.uri_templates import UriError
from mcp_trio._protocol.versions import ProtocolVersion
from mcp_trio._server.access import AccessRule
from mcp_trio._server.context import Locks
from mcp_trio._server.effects import EffectCodecs, ReplayLifespan
from mcp_trio._server.handlers import ServedSession
from mcp_trio._server.lifespan import (
    EnteredLifespan,
    LifespanRecording,
    LifespanRun,
    LifespanValues,
    lifespan_of,
    watch_of_lifespan,
    without_group,
)
from mcp_trio._server.middleware import Middleware
from mcp_trio._server.mounts import Mount, Prefix
from mcp_trio._server.registry import Registry
from mcp_trio._server.results import JsonWriter
from mcp_trio._server.resumable import SealedRounds
from mcp_trio._server.sealed_state import Sealer
from mcp_trio._server.subscriptions import Announcer, ChangeNotifier
from mcp_trio._session.exceptions import raise_unchanged
from mcp_trio._session.journal import UNRECORDED, Recording, SampledOut, Sequencer
from mcp_trio._session.leader_followers import TaskPool
from mcp_trio._session.session import Session
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.peer_log import PeerLog
from mcp_trio.errors import ConnectionLost
from mcp_trio.limits import Limits
from mcp_trio.types import Implementation, ServerCapabilities

# The functions below import what only some servers need, such as recordings, so that others start
# without these modules.
if TYPE_CHECKING:
    import httpx2

    from mcp_trio._auth.resource_server import ResourceServer
    from mcp_trio._recorder.options import Opening, RecordTarget, SharedRecording
    from mcp_trio._recorder.policy import PolicyRun
    from mcp_trio._recorder.writer import Recorder
    from mcp_trio._server.caller_limits import LimitStore
    from mcp_trio._server.http_sessions import HttpStores
    from mcp_trio._server.routes import Routes
    from mcp_trio._server.server import Server
    from mcp_trio._session.untracked_calls import UntrackedCallWatch

logger = logging.getLogger("mcp_trio")

T = TypeVar("T")

# The capabilities of a connection until its client asks for them: then `get_capabilities` returns
# those that the server has at that time.
_NOT_DECLARED: Final = ServerCapabilities()


@attrs.define(eq=False, repr=False)
class HandlerHttpClient:
    """The HTTP client behind `ctx.http`, whose requests are effects.

    A context manager: at the end it closes the client, within `close_seconds`, also if it is
    cancelled.
    """

    close_seconds: float
    _client: "httpx2.AsyncClient | None" = attrs.field(default=None, init=False)

    @property
    def client(self) -> "httpx2.AsyncClient":
        """The client; it is created, and httpx2 is imported, on first use."""
        if self._client is None:
            from mcp_trio._server.http_effects import EffectClient

            self._client = EffectClient()
        return self._client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            with trio.move_on_after(self.close_seconds, shield=True):
                await self._client.aclose()


# Counting the sessions that are open at the same time ---------------------------------------------


class _Counts(msgspec.Struct, eq=False):
    """The numbers of sessions that have opened and closed so far."""

    opened: int = 0
    closed: int = 0


@attrs.define(eq=False, repr=False)
class SessionCounter:
    """A counter of the sessions of one server, by the file in which each is recorded.

    A handler may read memory that a handler of another session wrote, which the recording of one
    session does not contain. Therefore a recording ends with the number of other sessions that were
    open meanwhile and are not in the same file: when a replay differs, the number helps to find the
    reason. The number is a difference of counts, so its cost does not grow with the sessions.
    """

    _all: _Counts = attrs.field(factory=_Counts, init=False)
    _by_file: "WeakKeyDictionary[SharedRecording, _Counts]" = attrs.field(
        factory=WeakKeyDictionary["SharedRecording", _Counts], init=False
    )
    # A bound method takes 64 bytes, so all sessions without a recording get the same one.
    unrecorded_closed: Callable[[], None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.unrecorded_closed = self._count_unrecorded_closed

    def count_unrecorded(self) -> None:
        """Count a session without a recording as open until `unrecorded_closed` is called."""
        self._all.opened += 1

    def _count_unrecorded_closed(self) -> None:
        self._all.closed += 1

    def count_recorded(self, record: "RecordTarget") -> "CountedSession":
        """Count a session as open until its `count_closed` is called."""
        from mcp_trio._recorder.options import SharedRecording

        same_file = _Counts()
        if isinstance(record, SharedRecording):
            same_file = self._by_file.setdefault(record, same_file)
        return CountedSession(self._all, same_file)

    def closed_outside(self, record: "SharedRecording") -> int:
        """Return the number of sessions that have closed, and are not in this file."""
        return self._all.closed - self._by_file.get(record, _Counts()).closed


@attrs.define(eq=False, repr=False)
class CountedSession:
    """An open session, and the number of others that were open at the same time."""

    _all: _Counts
    _same_file: _Counts
    earlier: int = attrs.field(init=False)
    """The number of sessions that had closed when this one opened, and are not in the same file."""

    def __attrs_post_init__(self) -> None:
        self._all.opened += 1
        self._same_file.opened += 1
        self.earlier = self._all.closed - self._same_file.closed

    def others(self) -> int:
        """Return how many other sessions were open meanwhile and are not in the same file."""
        return self._all.opened - self._same_file.opened - self.earlier

    def count_closed(self) -> None:
        """Count the session as closed."""
        self._all.closed += 1
        self._same_file.closed += 1


@attrs.define(eq=False, repr=False)
class CountingRecording(Recording):
    """A recording that ends with the number of other sessions, if there were any."""

    counted: CountedSession = attrs.field(kw_only=True)

    def close(self, counts: dict[str, int]) -> None:
        """Close the recording of this session."""
        others = self.counted.others()
        super().close(counts | {OTHER_SESSIONS_COUNT: others} if others else counts)


class HandshakeResult(Protocol):
    """The result of the handshake of a session."""

    @property
    def protocol_version(self) -> ProtocolVersion | None:
        """The protocol version of the session; None before the handshake."""
        ...


class RunningSession(Protocol):
    """A running session: a `Session` of the engine, or one that replays a recording.

    `closing` is set when the session starts to close, `negotiated` when the handshake is answered.
    """

    closing: LightEvent
    negotiated: LightEvent

    @property
    def connection(self) -> HandshakeResult:
        """The result of the handshake."""
        ...

    @property
    def has_begun(self) -> bool:
        """Return whether the client has sent `initialize` or a stateless request."""
        ...

    def shut(self, cause: str) -> None:
        """Start to close the session."""
        ...

    @property
    def may_be_renewed(self) -> bool:
        """Return whether a new session should replace this idle one, for a recording of its own."""
        ...


@attrs.define(eq=False, repr=False)
class ServerSessions:
    """The sessions of one `Server`: opens them, and holds the state that they share.

    Attributes:
        writer: The JSON encoder for results, with the server's converter.
        effect_codecs: The codecs for results of effects.
        locks: The locks that handlers take with `ctx.lock`.
        middleware: The middleware, the outermost first.
        stores: The stores of the HTTP applications that serve now, the newest last.
    """

    server: "Server"
    registry: Registry
    change_notifier: ChangeNotifier
    writer: JsonWriter = attrs.field(init=False)
    effect_codecs: EffectCodecs = attrs.field(init=False)
    locks: Locks = attrs.field(factory=Locks, init=False)
    middleware: list[Middleware] = attrs.field(factory=list[Middleware], init=False)
    stores: "list[HttpStores]" = attrs.field(factory=list[Any], init=False)
    # The lifespans that are entered now, of all served channels, applications and listeners.
    _lifespans_entered: int = attrs.field(default=0, init=False)
    _entered_observers: ExitStack = attrs.field(factory=ExitStack, init=False)
    _counter: SessionCounter = attrs.field(factory=SessionCounter, init=False)
    _interned: dict[type, Any] = attrs.field(factory=dict[type, Any], init=False)
    _routes: "Routes | None" = attrs.field(default=None, init=False)
    # The bound method `declared_capabilities`, which all sessions share.
    _get_capabilities: Callable[[], ServerCapabilities] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._get_capabilities = self.declared_capabilities
        self.writer = JsonWriter(self.server.converter)
        self.effect_codecs = EffectCodecs(self.server.converter, self.writer, self.limits)

    @property
    def limits(self) -> Limits:
        """The limits of each session."""
        return self.server.limits

    @property
    def protocol_versions(self) -> Sequence[str]:
        """The protocol versions that are served, newest first."""
        return self.server.protocol_versions

    @property
    def routes(self) -> "Routes":
        """The custom HTTP routes; the module is imported on first use."""
        if self._routes is None:
            from mcp_trio._server.routes import Routes

            self._routes = Routes(self.limits, self.writer)
        return self._routes

    @property
    def auth(self) -> "ResourceServer | None":
        """The settings by which clients over HTTP and WebSocket are authenticated."""
        return self.server.auth

    @property
    def limit_store(self) -> "LimitStore | None":
        """The store that the instances of the server share for limits per caller."""
        return next(filter(None, (each.limits for each in reversed(self.stores))), None)

    def scopes(self) -> Iterable[str]:
        """Return the scopes that the registered entries need."""
        return self.registry.scopes()

    @asynccontextmanager
    async def enter_lifespan(
        self, record: "RecordTarget | None", *, transport: str, is_sole: bool = False
    ) -> AsyncGenerator[EnteredLifespan]:
        """Check what is registered, and enter the lifespan, once around all sessions.

        The recording holds the lifespan too if it is shared, or if there is only one session.

        Raises:
            RecordingError: The recording, which holds the lifespan, cannot be made.
            TypeError: A handler has an annotation that cannot be resolved or decoded.
            ValueError: An entry needs a scope, and the server has no `auth`.
        """
        for each in (self, *self.mounted()):
            each.registry.check()
        if self.server.auth is None and (needed := sorted(self.registry.scopes())):
            raise ValueError(
                f"the scopes {', '.join(needed)} are needed, but no client can have them without"
                " Server(auth=…), which verifies tokens"
            )
        if record is None:
            record = self.server.record
        lifespan = lifespan_of(self)
        if self.server.observers and not self._lifespans_entered:
            from mcp_trio._session.observing import enter_observers

            self._entered_observers = enter_observers(self.server.observers)
        self._lifespans_entered += 1
        try:
            async with AsyncExitStack() as stack:
                policy_run = await stack.enter_async_context(_policy_run(record))
                if lifespan is None:
                    yield EnteredLifespan(record=record, policy_run=policy_run)
                    return
                if record is not None:
                    from mcp_trio._recorder.options import SharedRecording, SoleSessionRecording

                    if is_sole and not isinstance(record, SharedRecording):
                        # The recording begins now, and not with its session, to hold the lifespan.
                        if policy_run is None:
                            record = stack.enter_context(SoleSessionRecording(record))
                        elif (sole := policy_run.sole_recording()) is None:
                            record = policy_run = None
                        else:
                            record = stack.enter_context(sole)
                    if isinstance(record, SharedRecording):
                        recorded = self._enter_recorded(record, transport)
                        yield await stack.enter_async_context(recorded)
                        return
                value = await stack.enter_async_context(lifespan())
                try:
                    yield EnteredLifespan(value, record, policy_run=policy_run)
                except BaseExceptionGroup as group:
                    raise_unchanged(without_group(group))
        finally:
            self._lifespans_entered -= 1
            if not self._lifespans_entered:
                self._entered_observers.close()

    @asynccontextmanager
    async def _enter_recorded(
        self, record: "SharedRecording", transport: str
    ) -> AsyncGenerator[EnteredLifespan]:
        earlier_sessions = self._counter.closed_outside(record)
        recorder, channel = record.begin_lifespan(self._opening(transport, earlier_sessions))
        sequencer = LifespanRecording(recorder, channel)
        run = self.lifespan_run(sequencer, watch_of_lifespan(sequencer))
        try:
            async with run.enter() as value:
                yield EnteredLifespan(value, record, channel)
        finally:
            if run.has_ended:
                recorder.end_lifespan()

    def lifespan_run(
        self, sequencer: Sequencer, watch: "UntrackedCallWatch | None" = None
    ) -> LifespanRun:
        """Return a run of the server's lifespan in a lane; `watch` is for a recording."""
        make = lifespan_of(self)
        assert make is not None
        return LifespanRun(make, sequencer, self._served_session(), watch)

    # Mounted servers.

    def mount(self, inner: "ServerSessions", prefix: Prefix, rule: AccessRule | None) -> None:
        """Mount another server; see `Server.mount`."""
        if inner is self or self in inner.mounted():
            raise ValueError(
                f"the server {inner.server.name!r} cannot be mounted into {self.server.name!r},"
                " which is mounted into it: the mounts would form a cycle"
            )
        for each in (self, *self._outer()):
            if each._lifespans_entered and lifespan_of(inner) is not None:  # noqa: SLF001
                raise RuntimeError(
                    f"the server {inner.server.name!r} has a lifespan, which begins with that of"
                    f" {each.server.name!r}: mount it before {each.server.name!r} is served"
                )
        mount = Mount(prefix, self, inner, rule)
        self.registry.mount(mount)
        inner.change_notifier.relays.add(mount.relay)

    def mounted(self) -> "list[ServerSessions]":
        """Return all servers that are mounted into this one, also indirectly, each once."""
        found: dict[ServerSessions, None] = {}
        for mount in tuple(self.registry.mounts):
            found |= dict.fromkeys((mount.inner, *mount.inner.mounted()))
        return list(found)

    def mounted_by_name(self) -> "dict[str, ServerSessions]":
        """Return the mounted servers by names that they also have on other instances.

        Servers with the same name are numbered in the order in which they were mounted.
        """
        found: dict[str, ServerSessions] = {}
        for each in self.mounted():
            name = own = each.server.name
            numbers = itertools.count(2)
            while name in found:
                name = f"{own} {next(numbers)}"
            found[name] = each
        return found

    def _outer(self) -> "Iterator[ServerSessions]":
        """Yield all servers into which this one is mounted, also indirectly."""
        for mount in tuple(self.registry.mounted_as):
            yield mount.outer
            yield from mount.outer._outer()  # noqa: SLF001

    @property
    def makes_lists_per_request(self) -> bool:
        """Return whether the lists are made for each request, and not kept.

        Middleware of mounted servers, and remote servers, may answer each one differently.
        """
        if self.registry.remotes:
            return True
        inner = [mount.inner for mount in self.registry.mounts]
        return any(each.middleware or each.makes_lists_per_request for each in inner)

    def has_resource(self, uri: str) -> bool:
        """Return whether a resource, or a template, has this URI."""
        try:
            return self.registry.find_resource(uri) is not None
        except UriError:
            return False

    @property
    def has_lifespan(self) -> bool:
        """Return whether the server, or one that is mounted into it, has a lifespan."""
        return lifespan_of(self) is not None

    def declared_capabilities(self) -> ServerCapabilities:
        """Return the capabilities that `Server` was given, or else those of what is registered."""
        given = self.server.capabilities
        return self.registry.capabilities() if given is None else given

    def param_header_paths(self, tool: str) -> Mapping[str, tuple[str, ...]] | None:
        """Return the paths of a tool's arguments that HTTP requests repeat in headers, by header.

        The result is None if there is no such tool.
        """
        registered = self.registry.tools.get(tool)
        return None if registered is None else registered.param_headers

    async def serve_session(
        self,
        channel: Channel,
        *,
        lifespan: EnteredLifespan,
        http: HandlerHttpClient,
        task_status: trio.TaskStatus[Session] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve one channel within a lifespan, until its session ends.

        Raises:
            RecordingError: The recording cannot be made; nothing was served.
        """
        session = self._open_recorded(channel, lifespan, http)
        watch = _watch_of(session, lifespan.record)
        with nullcontext() if watch is None else watch:
            await session.run(task_status=task_status)

    def begin_session(
        self,
        channel: Channel,
        pool: TaskPool,
        variables: Variables,
        *,
        lifespan: EnteredLifespan,
        http: HandlerHttpClient,
        on_ended: Callable[[], None],
    ) -> Session:
        """Start to serve one channel, in tasks of `pool` that start with these context variables.

        The session goes on until `shut` is called or the client is gone; then `on_ended` is called,
        which must be quick.

        Raises:
            RecordingError: The recording cannot be made; nothing is served.
        """
        session = self._open_recorded(channel, lifespan, http)
        watch = _watch_of(session, lifespan.record)
        if watch is not None:
            variables = variables.copy()
            variables.run(watch.__enter__)
            session.ended.when_set(partial(variables.run, watch.__exit__))
        session.ended.when_set(on_ended)
        session.begin(pool, variables)
        return session

    def _open_recorded(
        self, channel: Channel, lifespan: EnteredLifespan, http: HandlerHttpClient
    ) -> Session:
        """Open a counted session, with a recording if the lifespan has a target for one."""
        record, sequencer = lifespan.record, UNRECORDED
        if record is None:
            self._counter.count_unrecorded()
            count_closed = self._counter.unrecorded_closed
        else:
            counted = self._counter.count_recorded(record)
            count_closed = counted.count_closed
            try:
                sequencer = self._begin_recording(channel, lifespan, record, counted)
            except BaseException:
                count_closed()
                raise
        session = self.open_session(
            channel, sequencer=sequencer, lifespan=lifespan.value, http=http
        )
        session.ended.when_set(count_closed)
        return session

    def _begin_recording(
        self,
        channel: Channel,
        lifespan: EnteredLifespan,
        record: "RecordTarget",
        counted: CountedSession,
    ) -> Sequencer:
        from mcp_trio._recorder.options import recorder_of_session

        opening = self._opening(transport_of(channel), counted.earlier)
        recorder: Recorder | None
        if lifespan.policy_run is not None:
            recorder, channel_number = lifespan.policy_run.begin_session(opening), 0
        else:
            recorder, channel_number = recorder_of_session(
                record, lifespan_channel=lifespan.channel, **opening
            )
        if recorder is not None:
            return CountingRecording(recorder, channel_number, counted=counted)
        assert lifespan.policy_run is not None  # It records only a sample of the sessions.
        return SampledOut(lifespan.policy_run.new_choice_timer())

    def _opening(self, transport: str, earlier_sessions: int) -> "Opening":
        return {
            "role": "server",
            "transport": transport,
            "name": self.server.name,
            "version": self.server.version,
            "listed": self.registry.list_digests(),
            "earlier_sessions": earlier_sessions,
            "lifespan": self.has_lifespan,
            "schemas": self.registry.tool_schemas,
            "limits": self.limits,
        }

    def open_session(
        self,
        channel: Channel,
        *,
        sequencer: Sequencer = UNRECORDED,
        lifespan: Any = None,
        http: HandlerHttpClient | None = None,
    ) -> Session:
        """Return a session over `channel`, which `Session.run` or `Session.begin` starts.

        `lifespan` is the value of the lifespan. The caller closes `http`; without it, an HTTP
        client that a handler uses is never closed.
        """
        server = self.server
        info = Implementation(
            name=server.name,
            version=server.version,
            title=server.title,
            description=server.description,
            icons=None if server.icons is None else [*server.icons],
            website_url=server.website_url,
        )
        connection = Connection(
            our_role=Role.SERVER,
            our_info=self._intern(info),
            our_capabilities=_NOT_DECLARED,
            get_capabilities=self._get_capabilities,
            instructions=server.instructions,
            limits=self.limits,
            methods=self.registry.known_methods,
            protocol_versions=self.protocol_versions,
        )
        observers = None
        if server.observers:
            from mcp_trio._session.observing import observers_of

            observers = observers_of(server.observers, replays=sequencer.replays)
        return Session(
            channel, connection, self._served_session(lifespan, http), sequencer, observers
        )

    def _served_session(
        self, lifespan: Any = None, http: HandlerHttpClient | None = None
    ) -> ServedSession:
        server = self.server
        rounds = SealedRounds(
            sealer=Sealer(server=server.name, keys=server.keys, limits=self.limits),
            store=server.states,
            version=server.version,
        )
        lifespans = None
        if isinstance(lifespan, LifespanValues):
            lifespan, lifespans = lifespan.own, lifespan.mounted
        return ServedSession(
            shared=self,
            registry=self.registry,
            announcer=Announcer(self.change_notifier),
            lifespan=lifespan,
            mounted_lifespans=lifespans,
            http=http or HandlerHttpClient(self.limits.shutdown.close_seconds),
            rounds=self._intern(rounds),
        )

    def mounted_in(self, outer: ServedSession) -> ServedSession:
        """Return the `ServedSession` of this server as one that is mounted into that of `outer`."""
        lifespans, lifespan = outer.mounted_lifespans or {}, None
        if self in lifespans:
            lifespan = lifespans[self]
        elif self.server.lifespan is not None:
            # A replay does not enter the lifespan, or enters one for the outer server only.
            is_stand_in = isinstance(outer.lifespan, ReplayLifespan)
            lifespan = outer.lifespan if is_stand_in else ReplayLifespan()
        return ServedSession(
            shared=self,
            registry=self.registry,
            announcer=outer.announcer,
            lifespan=lifespan,
            http=outer.http,
            rounds=outer.rounds,
            outer=outer,
        )

    def _intern(self, value: T) -> T:
        """Return the equal value of an earlier session, if there is one, to save memory."""
        before: T | None = self._interned.get(type(value))
        if before is None or before != value:
            before = self._interned[type(value)] = value
        return before


def sessions_of(server: "Server") -> ServerSessions:
    """Return the sessions of a server, which are private to this package."""
    return server._sessions  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]


def transport_of(channel: Channel) -> str:
    """Return the name of a channel's transport, for a recording."""
    return getattr(channel, "transport", type(channel).__name__)


def _watch_of(session: Session, record: "RecordTarget | None") -> "UntrackedCallWatch | None":
    """Return the watch for calls of handlers that a replay could not repeat.

    The result is None if the session is not recorded.
    """
    if record is None or not session.sequencer.has_lanes:
        return None
    from mcp_trio._recorder.options import options_of
    from mcp_trio._session.untracked_calls import watch_of_recording

    return watch_of_recording(session.sequencer, is_strict=options_of(record).strict)


def _policy_run(
    record: "RecordTarget | None",
) -> AbstractAsyncContextManager["PolicyRun | None"]:
    """Return the context manager that runs the policy, if the target of the recordings is one."""
    # Neither a path nor a shared recording has this attribute.
    if not getattr(record, "is_policy", False):
        return nullcontext()
    from mcp_trio._catalogue.maintenance import run_policy
    from mcp_trio._recorder.policy import RecordPolicy

    assert isinstance(record, RecordPolicy)
    return run_policy(record)


SessionT = TypeVar("SessionT", bound=RunningSession)


@attrs.define(kw_only=True, eq=False, repr=False)
class OtherSessionSource(ABC, Generic[SessionT]):
    """A source of sessions that have no `Server`: the base class of bridges and mocks.

    Attributes:
        protocol_versions: The protocol versions that are served, newest first.
        change_notifier: An empty set of subscribers: the sessions report changes themselves.
        routes: None: there are no custom routes.
        auth: Authenticates the clients over HTTP and WebSocket; None if at most a bearer token
            restricts the access.
        stores: The stores of the HTTP applications that serve now.
    """

    limits: Limits
    protocol_versions: Sequence[str]
    auth: "ResourceServer | None" = None
    change_notifier: ChangeNotifier = attrs.field(factory=ChangeNotifier, init=False)
    routes: None = attrs.field(default=None, init=False)
    stores: "list[HttpStores]" = attrs.field(factory=list[Any], init=False)

    def scopes(self) -> Iterable[str]:
        """Return no scopes."""
        return ()

    @abstractmethod
    def new_session(self, channel: Channel) -> tuple[SessionT, Callable[[], Awaitable[None]]]:
        """Return a session, and the function that serves the session to its end."""

    def enter_lifespan(
        self, record: "RecordTarget | None", **_: Any
    ) -> AbstractAsyncContextManager[EnteredLifespan]:
        """Return a context manager that does nothing: there is no lifespan."""
        return nullcontext(EnteredLifespan(record=record))

    def param_header_paths(self, tool: str) -> None:
        """Return None: parameter headers are not compared with the arguments of a call."""

    async def serve_session(
        self,
        channel: Channel,
        *,
        task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
        **_: Any,
    ) -> None:
        """Serve one channel until its session ends."""
        session, serve = self.new_session(channel)
        task_status.started(session)
        await serve()

    def begin_session(
        self,
        channel: Channel,
        pool: TaskPool,
        variables: Variables,
        *,
        on_ended: Callable[[], None],
        **_: Any,
    ) -> SessionT:
        """Serve one channel in a task; an error of its session is logged, and ends no other."""
        session, serve = self.new_session(channel)

        async def run() -> None:
            try:
                await serve()
            except Exception:
                logger.exception("a session failed")
            finally:
                on_ended()

        variables.run(pool.nursery.start_soon, run)
        return session


SessionSource: TypeAlias = ServerSessions | OtherSessionSource[Any]
"""The server as transports use it."""


# Closing connections whose client sends no first request -----------------------------------------

_CHECKS_PER_TIMEOUT: Final = 8

# Ended connections leave the list after this time, even if the timeout itself is longer.
_CHECK_SECONDS_MAX: Final = 10.0


@attrs.define(eq=False, repr=False)
class PendingHandshake:
    """A connection whose client may not have sent its first request yet.

    It is the `trio.TaskStatus` with which to serve the connection, because the time starts when the
    session opens. Before that nothing reads from the client, and the delay may be caused elsewhere,
    for example by the server to which a bridge connects for this client.
    """

    _timeouts: "HandshakeTimeouts"
    channel: Channel
    session: RunningSession = attrs.field(init=False)
    opened_at: float = attrs.field(default=0.0, init=False)

    def started(self, session: RunningSession) -> None:
        """Start the handshake timeout of the session, which has just opened."""
        self.session, self.opened_at = session, trio.current_time()
        self._timeouts.pending.append(self)


@attrs.define(eq=False, repr=False)
class HandshakeTimeouts:
    """The connections whose client has not sent its first request, and the timeout for that."""

    limits: Limits
    pending: list[PendingHandshake] = attrs.field(factory=list[PendingHandshake], init=False)

    def task_status_for(self, channel: Channel) -> PendingHandshake:
        """Return the task status with which to serve a new connection."""
        return PendingHandshake(self, channel)

    async def run(self) -> NoReturn:
        """Close connections without a first request in `limits.requests.first_request_seconds`.

        A periodic check of all connections costs less than a timer for each connection.
        """
        seconds = self.limits.requests.first_request_seconds
        with closing(PeerLog()) as log:
            while True:
                await trio.sleep(min(seconds / _CHECKS_PER_TIMEOUT, _CHECK_SECONDS_MAX))
                self._close_overdue(seconds, log)

    def _close_overdue(self, seconds: float, log: PeerLog) -> None:
        # In `run` itself, the variables would keep sessions in memory while it sleeps.
        text = f"no first request for {seconds:g} s (limits.requests.first_request_seconds)"
        checked, self.pending = self.pending, []
        for each in checked:
            if each.session.has_begun or each.session.closing.is_set():
                continue
            if trio.current_time() < each.opened_at + seconds:
                self.pending.append(each)
            # A WebSocket can report the reason to the client, and reports it to the session.
            elif (fail := getattr(each.channel, "fail", None)) is not None:
                fail(ConnectionLost(text))
            else:
                log.report("no first request", f"a connection is closed: {text}")
                each.session.shut("lost")
