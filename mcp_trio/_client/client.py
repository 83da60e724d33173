"""`Client`: a connection to one server, and its calls."""

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    overload,
)

import attrs
import trio

from mcp_trio import types
from mcp_trio._client.cache import Cache, CacheKey, cache_key
from mcp_trio._client.callbacks import (
    Callbacks,
    ClientApplication,
    ElicitationCallback,
    ElicitationCompleteCallback,
    ListChangedCallback,
    LogCallback,
    Report,
    ResourceUpdatedCallback,
    RootList,
    Roots,
    Sampled,
    SamplingCallback,
)
from mcp_trio._client.connect import (
    Address,
    Era,
    Lifetime,
    ProcessOptions,
    Spawn,
    Stderr,
    Target,
    VersionMemory,
    WebOptions,
    address_of,
    can_start,
    discovered,
    has_url,
    in_system_task,
    open_target,
    shaken_hands,
    speaks_legacy,
    speaks_stateless,
    tells_of_another_era,
    url_of,
    version_memory_of_this_run,
)
from mcp_trio._client.input_required import Rounds
from mcp_trio._client.results import (
    OutputSchemas,
    call_tool_params,
    complete_params,
    elicitation_ids,
    error_text,
    get_prompt_params,
    is_of_missing_resource,
    read_pages,
    typed,
)
from mcp_trio._client.subscriptions import (
    LISTS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    OwnSubscription,
    Subscription,
    listening,
    wishes,
)
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.metadata import LOG_LEVEL, check_extension, checked_trace
from mcp_trio._protocol.methods import (
    DISCOVER,
    METHODS,
    PING,
    Method,
    ParamsToSend,
    announced,
    custom_method,
)
from mcp_trio._protocol.states import Role
from mcp_trio._protocol.versions import (
    ALL_PROTOCOL_VERSIONS,
    PROTOCOL_VERSIONS,
    checked_protocol_versions,
)
from mcp_trio._recorder.writer import RecordTarget, SuccessiveSessions, begin_session
from mcp_trio._session.calls import ProgressCallback
from mcp_trio._session.handlers import Application
from mcp_trio._session.journal import Recording
from mcp_trio._session.session import Session
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.connections import Condition, OnState, State
from mcp_trio._version import __version__
from mcp_trio.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    ConnectionLost,
    LocalProtocolError,
    MCPError,
    OutcomeUnknown,
    RequestError,
    RequestTimeout,
    ResourceNotFound,
    ToolError,
    loss_as,
)
from mcp_trio.limits import DEFAULT_LIMITS, Limits
from mcp_trio.types import (
    CreateMessageParams,
    ElicitMode,
    ElicitParams,
    LoggingLevel,
    LoggingMessageParams,
    ResourceUpdatedParams,
)

if TYPE_CHECKING:
    import ssl

    import httpx


DEFAULT_PROTOCOL_VERSIONS: Final = ALL_PROTOCOL_VERSIONS
"""What a client speaks that was not told otherwise: modern servers are tried first."""

Trace: TypeAlias = Callable[[], Mapping[str, str]]
"""The trace that a request belongs to: of what it gives, `traceparent`, `tracestate`, `baggage`."""

_Told: TypeAlias = Awaitable[None] | None


class CallOptions(TypedDict, total=False):
    """How long a call may take, and who hears of its progress; see `Client.request`."""

    idle_seconds: float | None
    total_seconds: float | None
    progress: ProgressCallback | None


def shortest_seconds(options: CallOptions) -> float | None:
    """How long a call may take at most, if its options say so."""
    given = (options.get("idle_seconds"), options.get("total_seconds"))
    return min((seconds for seconds in given if seconds is not None), default=None)


class _SharedOptions(TypedDict, total=False):
    """The options of `Client` that are the same for a group."""

    name: str
    version: str
    protocol_versions: Sequence[str]
    limits: Limits
    record: RecordTarget | None
    restart: bool
    cache: bool
    raise_tool_errors: bool
    log_level: LoggingLevel | None
    version_memory: VersionMemory | None
    extensions: Mapping[str, Mapping[str, Any]] | None
    sampling_tools: bool
    elicitation_modes: Collection[ElicitMode]
    methods: Mapping[str, Any] | None


class ClientOptions(_SharedOptions, total=False):
    """The options of `Client`, for functions that pass them on."""

    env: Mapping[str, str] | None
    inherit_env: bool
    cwd: str | os.PathLike[str] | None
    stderr: Stderr | None
    http: "httpx.AsyncClient | None"
    headers: Mapping[str, str] | None
    token: str | None
    ssl_context: "ssl.SSLContext | None"
    state_changed: OnState | None
    progress: ProgressCallback | None
    log: LogCallback | None
    resource_updated: ResourceUpdatedCallback | None
    list_changed: ListChangedCallback | None
    roots: Roots | None
    sampling: SamplingCallback | None
    elicitation: ElicitationCallback | None
    elicitation_complete: ElicitationCompleteCallback | None
    trace: Trace | None


class GroupOptions(_SharedOptions, total=False):
    """The options of `ClientGroup`; its callbacks get the server's name first."""

    stderr: Callable[[str, str], None] | Literal["inherit"] | None
    progress: Callable[[str, Any], _Told] | None
    log: Callable[[str, LoggingMessageParams], _Told] | None
    resource_updated: Callable[[str, ResourceUpdatedParams], _Told] | None
    list_changed: Callable[[str, str], _Told] | None
    roots: RootList | Callable[[str], RootList | Awaitable[RootList]] | None
    sampling: (
        Callable[[str, CreateMessageParams], Sampled]
        | Callable[[str, CreateMessageParams, Report], Sampled]
        | None
    )
    elicitation: Callable[[str, ElicitParams], Any] | None
    elicitation_complete: Callable[[str, str], _Told] | None
    trace: Callable[[str], Mapping[str, str]] | None


def methods_with(own: Mapping[str, Any] | None) -> Mapping[str, Method]:
    """The table of methods, with a row for each of `own`, which maps it to the type of its result.

    None for a type says that it is a notification.

    Raises:
        ValueError: The protocol has one of these methods, with a result of its own.
        TypeError: A type that msgspec cannot decode.
    """
    if not own:
        return METHODS
    taken = METHODS.keys() & own.keys()
    if taken:
        raise ValueError(f"methods of the protocol have their own results: {sorted(taken)}")
    rows = {name: custom_method(name, result=result) for name, result in own.items()}
    return {**METHODS, **rows}


async def open_session(
    channel: Channel,
    connection: Connection,
    application: Application,
    *,
    record: RecordTarget | None,
) -> Session:
    """A session that owns `channel`, recorded if there is a place to `record` it.

    Raises:
        RecordingError: The recording cannot be made; the channel is closed.
        ValueError: Its redaction is wrong in itself; the channel is closed.
    """
    if record is None:
        return Session(channel, connection, application)
    try:
        recorder, channel_number = begin_session(
            record,
            role="client",
            transport=getattr(channel, "transport", type(channel).__name__),
            name=connection.our_info.name,
            version=connection.our_info.version,
            limits=connection.limits,
        )
    except BaseException:
        await channel.aclose()
        raise
    return Session(channel, connection, application, Recording(recorder, channel_number))


logger = logging.getLogger("mcp_trio")

T = TypeVar("T")


# Of a modern server all has to be asked again but its era; that is found out along the way.
_UNKNOWN: Final = (None, "modern")

_JUNK: Final = (
    "%s sent what is no message, %d times so far: a print to stdout, its own or of something that"
    " it starts, is the usual cause"
)


@attrs.define(eq=False, repr=False)
class Client:
    """A client of the server at `target`, for `async with Client(target) as client:`.

    `target` is a URL, a command (`["python", "server.py"]`), a `ServerConfig`, a `Server` object or
    a channel. The session lives in a task of its own: exceptions of the block arrive as they are,
    and a server that ends fails the calls in flight and nothing else. Leaving a cancel scope around
    a call cancels the handler at the server. A client connects once.

    Callbacks are functions, async or not. An exception in a callback is logged, or sent to the
    server as an error; only `progress` raises into the call that it belongs to.

    Attributes:
        name: The name in `clientInfo`, sent with `version`.
        protocol_versions: The protocol versions to use; the stateless ones are tried first.
        limits: The limits of the session, timeouts among them.
        record: The recording of the session: a file, a folder that gets a file for each session, or
            `RecordOptions` or a `SharedRecording` of `mcp_trio.recording`.
        restart: Whether the next call starts a command or a server object again that has ended.
            Lost requests that only read are then sent again. A URL is always connected to again.
        cache: Whether results are cached for as long as a stateless server allows.
        raise_tool_errors: Whether `call_tool` raises `ToolError`.
        env: For a command: variables in addition to the few that it inherits.
        inherit_env: For a command: whether it inherits all variables of this process.
        cwd: For a command: its working directory.
        http: For a URL: the HTTP client to use, with its proxies, certificates, authorization and
            connect timeout; it is not closed.
        headers: For a URL: headers of each request.
        token: For a URL: the token for `Authorization: Bearer`; a WebSocket also offers it as a
            subprotocol.
        ssl_context: For `wss://`: the TLS settings, in place of the system's certificates.
        state_changed: Called with the state of the connection, and its reason.
        version_memory: For a URL: remembers which servers are stateless; shared by all clients of a
            Trio run by default.
        stderr: For a command: a function for each line of its stderr, or "inherit".
        progress: Called with the progress of each `call_tool` without a callback of its own.
        log: Called with the log messages of the server.
        log_level: The minimum level of the server's log messages. By default a stateless server
            sends all messages if there is a `log` callback, and none otherwise.
        resource_updated: Called when a subscribed resource has changed.
        list_changed: Called with "tools", "resources" or "prompts" when that list has changed.
        roots: The roots: a list of `Root`, `file://` URIs or paths, or a function that returns one.
        sampling: Asks a model for the server; raise `UserRejected` to decline. With a second
            parameter it gets a function that reports progress to the server.
        sampling_tools: Whether `sampling` accepts tools for the model.
        elicitation: Asks the user for the server, by a form or a URL. Returns an `ElicitResult`,
            whether the user agrees, or the filled-in form as a mapping or typed value.
        elicitation_modes: What `elicitation` supports: "form", "url", or both.
        elicitation_complete: Called with the id of a URL elicitation that is complete.
        trace: Called for each request: returns its trace as `traceparent`, `tracestate` and
            `baggage`; other keys are dropped.
        extensions: The supported extensions and their settings, by identifier.
        methods: Methods of your own for `request`, with the types of their results; None for a
            notification.

    Raises:
        TypeError: `roots` is neither a list nor a function, or msgspec cannot decode a type in
            `methods`.
        ValueError: A root has no `file://` URI, `methods` contains a method of the protocol, a
            protocol version is unknown, an extension has no prefix, or `restart` is given for a
            target that cannot be started again.
    """

    target: Target
    name: str = attrs.field(default="mcp_trio", kw_only=True)
    version: str = attrs.field(default=__version__, kw_only=True)
    protocol_versions: Sequence[str] = attrs.field(
        default=DEFAULT_PROTOCOL_VERSIONS, kw_only=True, converter=checked_protocol_versions
    )
    limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True)
    record: RecordTarget | None = attrs.field(default=None, kw_only=True)
    restart: bool = attrs.field(default=False, kw_only=True)
    env: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    inherit_env: bool = attrs.field(default=False, kw_only=True)
    cwd: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    stderr: Stderr | None = attrs.field(default=None, kw_only=True)
    http: "httpx.AsyncClient | None" = attrs.field(default=None, kw_only=True)
    headers: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    token: str | None = attrs.field(default=None, kw_only=True)
    ssl_context: "ssl.SSLContext | None" = attrs.field(default=None, kw_only=True)
    state_changed: OnState | None = attrs.field(default=None, kw_only=True)
    version_memory: VersionMemory | None = attrs.field(default=None, kw_only=True)
    cache: bool = attrs.field(default=True, kw_only=True)
    log: LogCallback | None = attrs.field(default=None, kw_only=True)
    log_level: types.LoggingLevel | None = attrs.field(default=None, kw_only=True)
    resource_updated: ResourceUpdatedCallback | None = attrs.field(default=None, kw_only=True)
    list_changed: ListChangedCallback | None = attrs.field(default=None, kw_only=True)
    roots: Roots | None = attrs.field(default=None, kw_only=True)
    sampling: SamplingCallback | None = attrs.field(default=None, kw_only=True)
    sampling_tools: bool = attrs.field(default=False, kw_only=True)
    elicitation: ElicitationCallback | None = attrs.field(default=None, kw_only=True)
    elicitation_modes: Collection[types.ElicitMode] = attrs.field(default=("form",), kw_only=True)
    elicitation_complete: ElicitationCompleteCallback | None = attrs.field(
        default=None, kw_only=True
    )
    trace: Trace | None = attrs.field(default=None, kw_only=True)
    extensions: Mapping[str, Mapping[str, Any]] | None = attrs.field(default=None, kw_only=True)
    methods: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)

    def _process_options(self) -> ProcessOptions:
        """Return the options for starting a command."""
        return ProcessOptions(
            env=self.env, inherit_env=self.inherit_env, cwd=self.cwd, stderr=self.stderr
        )

    def _web_options(self, **facts: Any) -> WebOptions:
        """Return the options for connecting to a URL."""
        return WebOptions(
            http=self.http,
            headers=self.headers,
            token=self.token,
            ssl_context=self.ssl_context,
            **facts,
        )

    def _want_log_level(self, level: types.LoggingLevel) -> None:
        """Set the log level, which a stateless server gets with the next request."""
        self.log_level = level

    def _choose_roots(self, roots: Roots) -> None:
        """Set the roots that the server gets when it asks."""
        self.roots = roots

    _is_connected_once: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _told_of_junk: bool = attrs.field(default=False, init=False)
    _target_name: str = attrs.field(default="", init=False)
    _spawn: Spawn = attrs.field(default=in_system_task, init=False)
    _lifetime: Lifetime | None = attrs.field(default=None, init=False)
    _own_version_memory: VersionMemory = attrs.field(factory=VersionMemory, init=False)
    _starting: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _callbacks: Callbacks = attrs.field(init=False)
    _methods: Mapping[str, Method] = attrs.field(init=False)
    _cache: Cache = attrs.field(init=False)
    _outputs: OutputSchemas = attrs.field(init=False)
    _listening: OwnSubscription = attrs.field(init=False)
    _recordings: SuccessiveSessions = attrs.field(init=False)
    _condition: Condition = attrs.field(init=False)
    _how_it_stands: tuple[State, str] = attrs.field(default=("connecting", ""), init=False)

    def __attrs_post_init__(self) -> None:
        if self.restart and not (can_start(self.target) or has_url(self.target)):
            raise ValueError("restart=True is for commands, server objects and URLs")
        self._recordings = SuccessiveSessions(self.record, may_reconnect=self._begins_again)
        self._condition = Condition(None if has_url(self.target) else self._hear_state)
        for identifier in self.extensions or ():
            check_extension(identifier)
        self._methods = methods_with(self.methods)
        self._cache = Cache(
            entries_max=self.limits.requests.cache_entries_max,
            bytes_max=self.limits.requests.cache_bytes_max,
        )
        self._outputs = OutputSchemas(self.limits)
        self._listening = OwnSubscription(
            () if self.list_changed is None else LISTS, self._notice, self._beside
        )
        self._callbacks = ClientApplication(
            log=self.log,
            resource_updated=self.resource_updated,
            list_changed=self.list_changed,
            roots=self.roots,
            sampling=self.sampling,
            sampling_tools=self.sampling_tools,
            elicitation=self.elicitation,
            elicitation_modes=self.elicitation_modes,
            elicitation_complete=self.elicitation_complete,
            limits=self.limits,
            notice=self._notice,
        )

    def _notice(self, notification: str, params: Any) -> None:
        """Act upon a notification before its callback is called."""
        self._cache.notice(notification, params)
        if notification == "notifications/tools/list_changed":
            self._outputs.forget()

    # Connecting and closing.

    async def __aenter__(self) -> Self:
        """Connect, and agree on a revision: by a handshake within its time limit.

        If modern revisions are spoken the server is asked for them first, and has
        `limits.requests.probe_seconds` to answer before it is taken for a legacy one, unless it is
        remembered as such. A command that ends instead of answering is started once more, for the
        handshake.

        Failed: nothing is left. Cancelled: returns at once; a server that was started is stopped by
        the session's task, and `aclose` waits for that.

        Raises:
            ConnectionLost: The server could not be started or has ended; why, if that is known.
            RequestTimeout: It did not answer in time; with the last words of a command.
            RequestError: It refused.
            RemoteProtocolError: It speaks no revision that is known here.
            RecordingError: The recording cannot be made.
            ValueError: Its redaction is wrong in itself.
        """
        await self._connect(in_system_task)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the client, from any task and any number of times; return when nothing is left.

        In a callback of the session's own it only begins to close: the callback is cancelled.
        Calls in flight end with `ConnectionLost`. Shielded from cancellation, but bounded: a
        command has `limits.shutdown.close_seconds` to leave by itself, and is stopped after that.
        """
        self._shut()
        if self._lifetime is not None:
            await self._lifetime.over()
            self._tell_of_junk(self._lifetime.session)
        self._recordings.end()

    def _shut(self) -> None:
        """Begin to close, without waiting for the end."""
        self._is_closed = True
        self._condition.become("closed", "closed on this side")
        if self._lifetime is not None:
            self._lifetime.session.shut("closed")

    async def _connect(self, spawn: Spawn) -> None:
        if self._is_connected_once:
            raise RuntimeError("a client connects once: make another")
        self._is_connected_once = True
        self._spawn = spawn
        self._condition.begin()
        try:
            await self._begin()
        except BaseException as error:
            self._condition.become("closed", str(error))
            self._how_it_stands = "closed", str(error)
            self._close_recordings()
            raise

    def _close_recordings(self) -> None:
        if self._lifetime is None:
            self._recordings.end()
        else:
            self._lifetime.session.ended.when_set(self._recordings.end)

    async def _begin(self) -> None:
        """Open a session and negotiate; a server that is remembered is not asked first."""
        version_memory, address = self._remembered()
        era = version_memory.recall(address)
        try:
            await self._begin_as(era)
        except MCPError as error:
            if era in _UNKNOWN or not tells_of_another_era(error):
                raise
            logger.info("%s is not as it was: %s", self._target_name, error)
            version_memory.forget(address)
            await self._begin_as(None)
        version_memory.note(address, self._era)
        self._stands(self._session)

    def _stands(self, session: Session) -> None:
        """Report the state of the connection; a loss is reported before any call fails by it."""
        self._condition.become("open")
        session.closing.when_set(partial(self._note_loss, session))

    def _note_loss(self, session: Session) -> None:
        state: State = "retrying" if self._begins_again and not self._is_closed else "closed"
        self._condition.become(state, str(session.loss))

    def _hear_state(self, state: State, reason: str) -> None:
        self._how_it_stands = state, reason
        if self.state_changed is not None:
            self.state_changed(state, reason)

    def _remembered(self) -> tuple[VersionMemory, Address | None]:
        """Where the era of the server is kept, and under what.

        Nobody else's memory counts for what is no URL.
        """
        url = url_of(self.target)
        if url is None:
            return self._own_version_memory, None
        version_memory = (
            version_memory_of_this_run() if self.version_memory is None else self.version_memory
        )
        return version_memory, address_of(
            url, http=self.http, protocol_versions=tuple(self.protocol_versions)
        )

    @property
    def _era(self) -> Era:
        """Return whether the server of the session is stateless or legacy."""
        if self._is_stateless:
            return "modern"
        return "HTTP+SSE" if getattr(self._session.channel, "is_old", False) else "legacy"

    async def _begin_as(self, era: Era | None) -> None:
        """Open a session and negotiate as with that kind of server; with None, find out."""
        lifetime = await self._open(is_old=era == "HTTP+SSE")
        asks = speaks_stateless(self.protocol_versions) and era in _UNKNOWN
        is_stateless = asks and await self._discover(lifetime)
        lifetime = self._lifetime or lifetime  # it may have been started again
        session = lifetime.session
        if not is_stateless and await self._agree(lifetime, partial(shaken_hands, session)):
            for step in (self._tell_log_level, self._listening.begin_legacy):
                await self._agree(lifetime, partial(step, session))
        else:
            await self._agree(lifetime, partial(self._listening.begin, session))

    async def _open(self, *, is_old: bool = False) -> Lifetime:
        """Open a session that has negotiated nothing yet."""
        on_state = self._hear_state if has_url(self.target) else None
        connected = await open_target(
            self.target,
            process=self._process_options(),
            web=self._web_options(on_state=on_state, is_old=is_old),
            limits=self.limits,
        )
        self._target_name = connected.name
        session = await open_session(
            connected.channel,
            self._connection_to_open(),
            self._callbacks,
            record=self._recordings.record,
        )
        lifetime = self._lifetime = Lifetime(session=session, served=connected.served)
        if self._is_closed:
            session.shut("closed")
        try:
            self._spawn(lifetime.live)
        except RuntimeError:  # the caller's nursery is over; what was opened is closed elsewhere
            session.shut("closed")
            in_system_task(lifetime.live)
            raise
        return lifetime

    def _connection_to_open(self) -> Connection:
        capabilities = self._callbacks.capabilities()
        if self.extensions is not None:
            capabilities.extensions = {name: dict(it) for name, it in self.extensions.items()}
        return Connection(
            our_role=Role.CLIENT,
            our_info=types.Implementation(name=self.name, version=self.version),
            our_capabilities=capabilities,
            limits=self.limits,
            methods=self._methods,
            protocol_versions=self.protocol_versions,
            own_metadata=self._own_metadata,
        )

    def _own_metadata(self) -> dict[str, Any]:
        """Return the optional metadata of each request: trace, and log level if stateless."""
        said: dict[str, Any] = {} if self.trace is None else {**checked_trace(self.trace())}
        level = self._wanted_level
        if level is not None and self._is_stateless:
            said[LOG_LEVEL] = level
        return said

    @property
    def _wanted_level(self) -> types.LoggingLevel | None:
        """Return the log level to request: all messages, if there is a `log` callback."""
        return "debug" if self.log_level is None and self.log is not None else self.log_level

    async def _discover(self, lifetime: Lifetime) -> bool:
        """Ask whether the server is stateless; start it again if the question ended it."""
        try:
            return await self._agree(lifetime, partial(discovered, lifetime.session))
        except ConnectionLost:
            can_shake_hands = speaks_legacy(self.protocol_versions) and can_start(self.target)
            if not can_shake_hands or self._is_closed:
                raise
        logger.info("%s has ended when it was asked for its revisions", self._target_name)
        await self._open()
        return False

    async def _agree(self, lifetime: Lifetime, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step of the negotiation; when it fails, close the session and report the reason."""
        try:
            return await step()
        except trio.Cancelled:
            lifetime.session.shut("closed")
            raise
        except ConnectionLost as loss:
            await self._end(lifetime)
            if lifetime.fault is None:  # nothing was asked for yet whose outcome could matter
                raise loss_as(ConnectionLost, loss) from loss.__cause__
            raise lifetime.fault from lifetime.fault.__cause__
        except RequestTimeout as late:
            last_words = getattr(lifetime.session.channel, "stderr_tail", "")
            await self._end(lifetime)
            raise RequestTimeout(
                late.method,
                late.budget,
                late.seconds,
                late.setting,
                server=self._target_name,
                stderr_tail=last_words,
            ) from None
        except BaseException:
            await self._end(lifetime)
            raise

    async def _end(self, lifetime: Lifetime) -> None:
        lifetime.session.shut("closed")
        await lifetime.over()
        self._tell_of_junk(lifetime.session)

    async def _tell_log_level(self, session: Session) -> None:
        """Send the log level to a legacy server."""
        if self.log_level is None or not self.server_can("logging"):
            return
        try:
            await session.request("logging/setLevel", types.SetLevelParams(level=self.log_level))
        except RequestError as error:
            logger.warning("%s refuses the log level: %s", self._known_name, error)

    def _replace_roots(self, roots: Roots) -> None:
        self._callbacks.roots = roots
        self._choose_roots(roots)

    # Starting again.

    async def _living_session(self) -> Session:
        """Return the open session; with `restart`, start a command again that has ended.

        Raises:
            MCPError: As connecting; the next call tries again.
        """
        if self._is_to_start:
            async with self._starting:
                if self._is_to_start:
                    await self._begin_again()
        self._listening.revive()
        return self._session

    @property
    def _is_to_start(self) -> bool:
        lifetime = self._lifetime
        has_ended = lifetime is not None and lifetime.session.cause is not None
        return has_ended and self._begins_again and not self._is_closed

    @property
    def _begins_again(self) -> bool:
        """Return whether the next call connects anew; to a URL always."""
        return self.restart or url_of(self.target) is not None

    async def _begin_again(self) -> None:
        """Forget what was known of the old process, except its kind."""
        assert self._lifetime is not None
        is_started = url_of(self.target) is None
        words = "has ended, and is started again" if is_started else "is lost, and connected again"
        logger.warning("%s %s", self._known_name, words)
        await self._lifetime.over()
        self._cache.clear()
        self._outputs.forget()
        await self._begin()

    def _beside(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task that lives with the session."""
        assert self._lifetime is not None
        self._lifetime.start_soon(task)

    # What is known of the server.

    def __repr__(self) -> str:
        """Return a text without the environment and other values that may be secret."""
        state = "open" if self.is_open else "closed" if self._is_closed else "not connected"
        return f"<{type(self).__name__} {self.name!r} of {self._known_name!r}, {state}>"

    @property
    def is_open(self) -> bool:
        """Return whether calls can be made: connected, not closed, and not lost."""
        if self._lifetime is None:
            return False
        session = self._lifetime.session
        return session.negotiated.is_set() and session.cause is None

    @property
    def state(self) -> State:
        """Return the state of the connection, as `state_changed` was last called with.

        "connecting": nothing was heard yet. "open": the server answered last. "retrying": it could
        not be reached, or was lost, and is tried again with the next call at the latest. "closed":
        the session is over, and unless we closed it a call to a URL begins another.
        """
        return self._how_it_stands[0]

    @property
    def state_reason(self) -> str:
        """Return the reason for "retrying" or "closed", else an empty text."""
        return self._how_it_stands[1]

    @property
    def server_info(self) -> types.Implementation:
        """Return name and version of the server."""
        info = self._connection.peer_info
        return info or types.Implementation(name=self._target_name, version="")

    @property
    def server_capabilities(self) -> types.ServerCapabilities:
        """Return the capabilities of the server."""
        capabilities = self._connection.peer_capabilities
        assert isinstance(capabilities, types.ServerCapabilities)
        return capabilities

    def server_can(self, capability: str) -> bool:
        """Return whether the server has a capability: "tools", or "resources.subscribe"."""
        return announced(self.server_capabilities, capability)

    @property
    def instructions(self) -> str | None:
        """Return the instructions of the server, if it sent any."""
        return self._connection.instructions

    @property
    def protocol_version(self) -> str:
        """Return the protocol version of the connection."""
        protocol_version = self._connection.protocol_version
        assert protocol_version is not None
        return protocol_version.name

    @property
    def counts(self) -> dict[str, int]:
        """Return the counts of irregularities that were no errors, by name."""
        return dict(self._session.connection.counts)

    @property
    def _is_stateless(self) -> bool:
        """Return whether the server is known to be stateless."""
        protocol_version = (
            None if self._lifetime is None else self._lifetime.session.connection.protocol_version
        )
        return protocol_version is not None and protocol_version.is_stateless

    @property
    def _known_name(self) -> str:
        """Return the name of the server for error texts."""
        info = None if self._lifetime is None else self._lifetime.session.connection.peer_info
        return self._target_name if info is None else info.name

    @property
    def _session(self) -> Session:
        if self._lifetime is None:
            raise LocalProtocolError("the client is not connected: use `async with`")
        return self._lifetime.session

    @property
    def _connection(self) -> Connection:
        session = self._session
        if not session.negotiated.is_set():
            raise LocalProtocolError("the client has not shaken hands")
        return session.connection

    def _tell_of_junk(self, session: Session) -> None:
        """Log once that the server sends junk, with the likely cause."""
        count = session.connection.counts["malformed"]
        if count and not self._told_of_junk:
            self._told_of_junk = True
            logger.warning(_JUNK, self._known_name, count)

    raise_tool_errors: bool = attrs.field(default=True, kw_only=True)
    progress: ProgressCallback | None = attrs.field(default=None, kw_only=True)

    # Requests.

    async def request(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        idle_seconds: float | None = None,
        total_seconds: float | None = None,
        progress: ProgressCallback | None = None,
        rounds: bool = True,
    ) -> Any:
        """Send any request and return its typed result; all calls go through here.

        The params are a struct of the protocol, or a mapping with the names of the wire.
        Cancelled, or out of time: the server is told, and its late answer only counted. The budgets
        default to `limits.requests.idle_seconds` (starts again with each report) and
        `limits.requests.total_seconds`. `progress` is called in this task; what it raises arrives
        here.

        A modern server may ask something before it gives its result. Our callbacks answer in this
        task, and the request is sent again, at most `limits.requests.rounds_max` times; what they
        raise arrives here. Without `rounds` the result is then an `InputRequiredResult`, and the
        rest is yours.

        Raises:
            RequestError: The server answered with an error.
            RequestTimeout: A budget ran out. The total is that of all rounds, without the answers.
            ConnectionLost: The session ended first, or had ended.
            OutcomeUnknown: The answer is over `limits.messages.bytes_max`, or the connection broke.
            LocalProtocolError: The protocol forbids the request, or the server does not offer it.
            RemoteProtocolError: The answer is no message, or does not have the method's shape, or
                the server asks what it must not.
        """

        async def send(params: ParamsToSend | None, total_seconds: float | None) -> Any:
            return await self._send(
                method,
                params,
                idle_seconds=idle_seconds,
                total_seconds=total_seconds,
                on_progress=progress,
            )

        started = trio.current_time()
        result = await send(params, total_seconds)
        if not (rounds and isinstance(result, types.InputRequiredResult)):
            return result
        whole = Rounds(
            method=method,
            send=send,
            answer=self._callbacks.answer,
            capabilities=self._callbacks.capabilities(),
            protocol_version=PROTOCOL_VERSIONS[self.protocol_version],
            limits=self.limits,
            total_seconds=total_seconds,
        )
        return await whole.run(params, result, taken_seconds=trio.current_time() - started)

    async def _send(self, method: str, params: ParamsToSend | None, **options: Any) -> Any:
        """Return the result of one request, from the cache if it is fresh there."""
        key = self._cache_key(method, params)
        if key is None:
            return await self._ask(method, params, options)
        kept = self._cache.fresh(key, trio.current_time())
        if kept is not None:
            await trio.lowlevel.checkpoint()
            return kept
        changes = self._cache.changes
        result = await self._ask(method, params, options)
        if isinstance(result, types.CacheableResult):
            self._cache.keep(key, result, now=trio.current_time(), changes=changes)
        return result

    def _cache_key(self, method: str, params: ParamsToSend | None) -> CacheKey | None:
        """Return the key in the cache; only stateless servers say how long a result is valid."""
        return cache_key(method, params) if self.cache and self._is_stateless else None

    async def _ask(self, method: str, params: ParamsToSend | None, options: Any) -> Any:
        session = await self._living_session()
        try:
            return await session.request(method, params, **options)
        except ConnectionLost as loss:
            if not (self._may_repeat(method) or self._did_nothing(loss)):
                raise
        except RequestError as error:
            self._note_awaited(error)
            raise
        finally:
            self._tell_of_junk(session)
        session = await self._living_session()
        return await session.request(method, params, **options)

    def _note_awaited(self, error: RequestError) -> None:
        """The server will say when what it wants the user to do at some URLs is done (ELIC-33)."""
        if error.code == URL_ELICITATION_REQUIRED:
            for elicitation_id in elicitation_ids(error.data):
                self._callbacks.awaits(elicitation_id)

    def _may_repeat(self, method: str) -> bool:
        """Return whether a lost request may be repeated: it only reads."""
        row = self._methods.get(method)
        is_chosen = self.restart or (has_url(self.target) and self._begins_again)
        return is_chosen and row is not None and row.is_cacheable

    def _did_nothing(self, loss: ConnectionLost) -> bool:
        """Return whether the request had no effect: not delivered, or its session was over."""
        is_unsure = isinstance(loss, OutcomeUnknown) or loss.http_status is not None
        return has_url(self.target) and self._begins_again and not is_unsure

    async def notify(self, method: str, params: ParamsToSend | None = None) -> None:
        """Send a notification to the server.

        Raises:
            LocalProtocolError: The protocol forbids it now, or does not know it, nor `methods`.
            Unencodable: The params cannot be written as JSON.
            ConnectionLost: The session has ended.
        """
        await self._session.notify(method, params)

    async def list_tools(self, **options: Unpack[CallOptions]) -> list[types.Tool]:
        """Return all tools, from at most `limits.requests.pages_max` pages.

        One page alone is `await client.request("tools/list", {"cursor": cursor})`. From now on the
        results of tools with an output schema are checked against that.
        """
        tools = await self._list("tools/list", "tools", options)
        self._outputs.learn(tools)
        return tools

    async def list_resources(self, **options: Unpack[CallOptions]) -> list[types.Resource]:
        """Return all resources, from all pages."""
        return await self._list("resources/list", "resources", options)

    async def list_resource_templates(
        self, **options: Unpack[CallOptions]
    ) -> list[types.ResourceTemplate]:
        """Return all resource templates, from all pages."""
        return await self._list("resources/templates/list", "resource_templates", options)

    async def list_prompts(self, **options: Unpack[CallOptions]) -> list[types.Prompt]:
        """Return all prompts, from all pages."""
        return await self._list("prompts/list", "prompts", options)

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        raise_tool_errors: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> types.CallToolResult: ...

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        result_type: type[T],
        **options: Unpack[CallOptions],
    ) -> T: ...

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        raise_tool_errors: bool | None = None,
        result_type: Any = None,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Call a tool and return its result; with `result_type`, a value of that type.

        That value comes from the structured content, or else, as from servers that have none, from
        the only text: as JSON, but for `str` as it is.

        Raises:
            Unencodable: The arguments cannot be written as JSON.
            ToolError: The tool says that it failed; `result` is the whole result. Without
                `result_type` switched off by `raise_tool_errors`, here or for the client.
            RemoteProtocolError: The result does not conform to the tool's output schema, if that
                was listed, or makes no value of `result_type`.
        """
        options.setdefault("progress", self.progress)
        params = call_tool_params(name, arguments)
        result = await self._called(params, options)
        raises = self.raise_tool_errors if raise_tool_errors is None else raise_tool_errors
        if result.is_error and (raises or result_type is not None):
            raise ToolError(error_text(name, result), result)
        self._outputs.check(name, result)
        return result if result_type is None else typed(name, result, result_type)

    async def _called(
        self, params: types.CallToolParams, options: CallOptions
    ) -> types.CallToolResult:
        """What came of a call; one whose arguments were mirrored as an old list said, of another.

        Servers refuse the first before they do anything (HDR-32, TRAP-52).
        """
        result: types.CallToolResult
        try:
            result = await self.request("tools/call", params, **options)
        except RequestError as error:
            if error.code != HEADER_MISMATCH:
                raise
            self._cache.forget("tools/list")
            await self.list_tools()
            result = await self.request("tools/call", params, **options)
        return result

    async def read_resource(
        self, uri: str, **options: Unpack[CallOptions]
    ) -> types.ReadResourceResult:
        """Return the contents of a resource.

        Raises:
            ResourceNotFound: The server says, by either code, that there is none (ERR-05).
        """
        params = types.ReadResourceParams(uri=uri)
        try:
            result: types.ReadResourceResult = await self.request(
                "resources/read", params, **options
            )
        except RequestError as error:
            if not is_of_missing_resource(error):
                raise
            raise ResourceNotFound(
                uri, code=error.code, message=error.message, data=error.data
            ) from None
        return result

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        **options: Unpack[CallOptions],
    ) -> types.GetPromptResult:
        """Return a prompt with its arguments filled in.

        Raises:
            TypeError: An argument is not text (PROM-04).
        """
        params = get_prompt_params(name, arguments)
        result: types.GetPromptResult = await self.request("prompts/get", params, **options)
        return result

    async def complete(
        self,
        ref: types.Reference | str,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
        **options: Unpack[CallOptions],
    ) -> types.CompleteResult:
        """Return proposals for `value`, as typed so far for an argument of `ref`.

        `ref` may be text: the URI template of a resource, known by its "://", or a prompt's name.
        `context` are the arguments that have their values already; older servers do not get it.

        Raises:
            LocalProtocolError: The server does not offer completions; not all revisions can tell.
        """
        if PROTOCOL_VERSIONS[self.protocol_version].announces_completions and not self.server_can(
            "completions"
        ):
            raise LocalProtocolError("the server capability 'completions' is not announced")
        params = complete_params(ref, argument, value, context)
        result: types.CompleteResult = await self.request("completion/complete", params, **options)
        return result

    async def ping(self, **options: Unpack[CallOptions]) -> None:
        """Return when the server has answered a ping."""
        self._cache.forget(DISCOVER)  # it is the answer that counts
        await self.request(DISCOVER if self._is_stateless else PING, **options)

    async def set_log_level(
        self, level: types.LoggingLevel, **options: Unpack[CallOptions]
    ) -> None:
        """Set the minimum level of the log messages that the server sends.

        A modern server hears of it with each request.
        """
        if not self._is_stateless:
            await self.request("logging/setLevel", types.SetLevelParams(level=level), **options)
        self._want_log_level(level)

    @asynccontextmanager
    async def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Collection[str] = (),
    ) -> AsyncGenerator[Subscription]:
        """Subscribe to changes at a stateless server: of its lists, and of the resources at `uris`.

        `async with client.listen(tools=True) as subscription: async for change in subscription: …`.
        What the server left out of the wishes is `subscription.left_out`. Nothing is told of what
        changed before: ask anew for what was kept. A stream that breaks is begun again, and then
        all that it is about comes as `missed`. The callbacks of the client need none of this.

        Raises:
            RequestTimeout: The server has not acknowledged within `limits.requests.idle_seconds`.
            RequestError: It refuses.
            RemoteProtocolError: It ended the subscription instead.
            LocalProtocolError: It is a legacy one: use `list_changed` and `subscribe`.
            ConnectionLost: The session has ended.
        """
        session = await self._living_session()
        chosen = {"tools": tools, "prompts": prompts, "resources": resources}
        asked = wishes([kind for kind in LISTS if chosen[kind]], uris)
        async with listening(session, asked, self._notice, self._beside) as subscription:
            yield subscription

    async def subscribe(self, uri: str, **options: Unpack[CallOptions]) -> None:
        """Subscribe to changes of a resource, for which `resource_updated` is called.

        Raises:
            ResourceNotFound: A modern server does not tell of changes of the resource.
        """
        session = await self._living_session()
        if not self._is_stateless:
            await self.request(SUBSCRIBE, types.SubscribeParams(uri=uri), **options)
            self._listening.remember(uri)
        elif self.server_can("resources.subscribe"):
            await self._listening.add(session, uri, seconds=shortest_seconds(options))
        else:
            raise LocalProtocolError("the server does not announce 'resources.subscribe'")

    async def unsubscribe(self, uri: str, **options: Unpack[CallOptions]) -> None:
        """End a subscription."""
        session = await self._living_session()
        if self._is_stateless:
            await self._listening.remove(session, uri, seconds=shortest_seconds(options))
        else:
            await self.request(UNSUBSCRIBE, types.UnsubscribeParams(uri=uri), **options)
            self._listening.forget(uri)

    async def set_roots(self, roots: Roots) -> None:
        """Replace the roots, and notify a legacy server.

        Raises:
            TypeError, ValueError: As making a client; the old ones stay.
            LocalProtocolError: The client was made without `roots`, and so cannot have any.
            ConnectionLost: The session has ended.
        """
        session = self._session
        self._replace_roots(roots)
        if not self._is_stateless:
            await session.notify(_ROOTS_CHANGED)

    async def notify_roots_changed(self) -> None:
        """Notify the server that the roots have changed.

        Raises:
            LocalProtocolError: The client was made without `roots`.
            ConnectionLost: The session has ended.
        """
        await self.notify(_ROOTS_CHANGED)

    async def _list(self, method: str, member: str, options: CallOptions) -> list[Any]:
        read = partial(
            read_pages,
            partial(self.request, **options),
            method,
            attrgetter(member),
            pages_max=self.limits.requests.pages_max,
        )
        try:
            return await read()
        except RequestError as error:
            # The cursor of a page that was kept is none any more (CACHE-18).
            if error.code != INVALID_PARAMS or not self._cache.forget(method):
                raise
        return await read()


_ROOTS_CHANGED: Final = "notifications/roots/list_changed"


async def connect_client(
    target: Target, nursery: trio.Nursery, **options: Unpack[ClientOptions]
) -> Client:
    """A connected `Client` whose session lives in `nursery`, until `aclose`, or its cancellation.

    What the server does, even its death, never ends the nursery. Options and errors are those of
    `Client` and of entering it.
    """
    client = Client(target, **options)
    # Its class is for `async with`; this function is its other half.
    await client._connect(nursery.start_soon)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return client
