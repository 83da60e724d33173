"""`Client`: the connection to one server, and its calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from functools import partial
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
    cast,
    get_args,
    overload,
)

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._client.cache import Cache, cache_key
from mcp_trio._client.callbacks import (
    ClientApplication,
    ElicitationCallback,
    ElicitationCompleteCallback,
    ListChangedCallback,
    LogCallback,
    ReportProgress,
    ResourceUpdatedCallback,
    RootList,
    Roots,
    SamplingCallback,
    SamplingResult,
    check_modes,
    check_roots,
)
from mcp_trio._client.connect import (
    ProcessOptions,
    ServerKey,
    ServerKind,
    SessionTask,
    Spawn,
    Stderr,
    Target,
    VersionMemory,
    WebOptions,
    can_open_again,
    discover,
    is_http_target,
    may_be_of_another_kind,
    open_target,
    server_key,
    shake_hands,
    spawn_in_system_task,
    starts_command,
    supports_legacy,
    supports_stateless,
    url_of,
    version_memory_of_this_run,
    with_script_as_command,
)
from mcp_trio._client.input_required import RequestRetries
from mcp_trio._client.results import (
    OutputSchemas,
    decode_as,
    error_text,
    is_internal_error,
    is_resource_not_found,
    reference,
    required_elicitations,
)
from mcp_trio._client.subscriptions import (
    LISTS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    CallbackSubscription,
    Subscription,
    SubscriptionStream,
    subscription_filter,
)
from mcp_trio._protocol.connection import Connection
from mcp_trio._protocol.metadata import LOG_LEVEL, check_extension, checked_trace
from mcp_trio._protocol.methods import (
    DISCOVER,
    METHODS,
    PING,
    Method,
    ParamsToSend,
    Role,
    custom_method,
    has_capability,
)
from mcp_trio._protocol.shares import Rate
from mcp_trio._protocol.suggestions import checks_options, missing_attribute, unknown_option
from mcp_trio._protocol.versions import (
    ALL_PROTOCOL_VERSIONS,
    PROTOCOL_VERSIONS,
    checked_protocol_versions,
)
from mcp_trio._recorder.options import RecordTarget, SuccessiveSessions, recorder_of_session
from mcp_trio._session.calls import ProgressCallback
from mcp_trio._session.journal import Recording
from mcp_trio._session.session import Session
from mcp_trio._transports.channel import Channel
from mcp_trio._transports.connections import OnState, ReportedState, State
from mcp_trio._version import __version__
from mcp_trio.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    ConnectionLost,
    LocalProtocolError,
    MCPError,
    OutcomeUnknown,
    RemoteProtocolError,
    RequestError,
    RequestTimeout,
    ResourceNotFound,
    ToolError,
    Unencodable,
    copied,
    copied_loss,
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
    from collections.abc import AsyncGenerator

    import httpx
    import httpx2

    from mcp_trio._auth.http_auth import ClientAuth
    from mcp_trio._session.observing import Observer, Observers

logger = logging.getLogger("mcp_trio")

T = TypeVar("T")

DEFAULT_PROTOCOL_VERSIONS: Final = ALL_PROTOCOL_VERSIONS
"""The protocol versions of a client that sets none: stateless servers are tried first."""

Trace: TypeAlias = Callable[[], Mapping[str, str]]
"""Returns the trace context of a request: `traceparent`, `tracestate` and `baggage`."""

_CallbackResult: TypeAlias = Awaitable[None] | None

_ROOTS_CHANGED: Final = "notifications/roots/list_changed"


class CallOptions(TypedDict, total=False):
    """Timeouts and progress callback of a call; see `Client.request`."""

    idle_seconds: float | None
    total_seconds: float | None
    progress: ProgressCallback | None


_CALL_OPTIONS: Final = frozenset(CallOptions.__annotations__)


class _SharedOptions(TypedDict, total=False):
    """The options that `Client` and `ClientGroup` have in common."""

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
    observers: Sequence[Observer]
    extensions: Mapping[str, Mapping[str, Any]] | None
    sampling_tools: bool
    elicitation_modes: Collection[ElicitMode]
    callback_rates: Mapping[str, str | Rate]
    methods: Mapping[str, Any] | None


class ClientOptions(_SharedOptions, total=False):
    """Options of `Client`, for functions that pass them on; see `Client` for their meaning."""

    env: Mapping[str, str] | None
    inherit_env: bool
    cwd: str | os.PathLike[str] | None
    stderr: Stderr | None
    http: httpx2.AsyncClient | httpx.AsyncClient | None
    headers: Mapping[str, str] | None
    token: str | None
    auth: ClientAuth | None
    ssl_context: ssl.SSLContext | None
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
    """Options of `ClientGroup`; callbacks get the name of the server as their first argument."""

    stderr: Callable[[str, str], None] | Literal["inherit"] | None
    auth: Callable[[str], ClientAuth | None] | Literal["oauth"] | None
    progress: Callable[[str, Any], _CallbackResult] | None
    log: Callable[[str, LoggingMessageParams], _CallbackResult] | None
    resource_updated: Callable[[str, ResourceUpdatedParams], _CallbackResult] | None
    list_changed: Callable[[str, str], _CallbackResult] | None
    roots: RootList | Callable[[str], RootList | Awaitable[RootList]] | None
    sampling: (
        Callable[[str, CreateMessageParams], SamplingResult]
        | Callable[[str, CreateMessageParams, ReportProgress], SamplingResult]
        | None
    )
    elicitation: Callable[[str, ElicitParams], Any] | None
    elicitation_complete: Callable[[str, str], _CallbackResult] | None
    trace: Callable[[str], Mapping[str, str]] | None


def _unknown_argument(method: str, options: CallOptions) -> TypeError:
    """Return the error for an unknown option, which may be an argument of the tool or prompt."""
    name = next(each for each in options if each not in _CALL_OPTIONS)
    known = set(_CALL_OPTIONS)
    if method == "call_tool":
        known |= {"raise_tool_errors", "result_type"}
    advice = f"arguments must be a dict: {method}(name, {{{name!r}: …}})"
    return unknown_option("Client", method, name, known, otherwise=advice)


def _check_stderr(_client: object, _field: object, stderr: Any) -> None:
    if not (stderr is None or stderr == "inherit" or callable(stderr)):
        raise TypeError(
            f'stderr must be "inherit" or a function for each line, not {stderr!r};'
            " without it, the lines are kept for error texts only"
        )


def _check_function(_client: object, field: attrs.Attribute[Any], function: object) -> None:
    if not (function is None or callable(function)):
        raise TypeError(f"{field.name}= takes a function, not {function!r}")


_LOG_LEVELS: Final = get_args(LoggingLevel)


def _check_log_level(_client: object, _field: object, level: str | None) -> None:
    if not (level is None or level in _LOG_LEVELS):
        raise ValueError(f"the log level must be one of {', '.join(_LOG_LEVELS)}, not {level!r}")


@checks_options("Client", "__init__")
@attrs.define(eq=False, repr=False, kw_only=True)
class Client:
    """A client of one MCP server: `async with Client(target) as client:`.

    The block is entered when the client is connected, and left when the connection is closed. The
    session runs in a task of its own: exceptions of the block are raised as they are, and if the
    server ends, only the calls in flight fail. A cancelled call is cancelled at the server, too.
    A client object connects once. Methods may be called from any task.

    Callbacks are normal or async functions. An exception of a callback is logged, or sent to the
    server as the error of its request; an exception of `progress` is raised by the call.

    Args:
        target: The server: a URL (`http`, `https`, `ws`, `wss`, `unix:` or `tcp://`), a command
            such as `["python", "server.py"]`, the path of a Python or Node script, a
            `ServerConfig` of a configuration file, a `Server` object, or a channel.
        name: The name of the client in `clientInfo`.
        version: The version of the client in `clientInfo`.
        protocol_versions: The supported protocol versions; stateless ones are tried first.
        limits: The limits of the session, its timeouts among them.
        record: Where to record the session: a file, a folder in which each session gets a file, or
            `RecordOptions` or a `SharedRecording` of `mcp_trio.recording`.
        restart: Whether the next call starts a command or server object again that has ended.
            Requests that were lost and only read are then sent again. A URL is always connected to
            again.
        cache: Whether to cache results for as long as a stateless server allows.
        raise_tool_errors: Whether `call_tool` raises `ToolError` for a failed tool.
        extensions: The supported extensions and their settings, by extension identifier.
        methods: Additional methods for `request`, with the types of their results; a notification
            has None.
        trace: Called for each request; returns its `traceparent`, `tracestate` and `baggage`.
            Other keys are dropped. By default that is the trace context of an observer.
        observers: Objects called for each session and request, such as `Telemetry` and
            `RequestLog` of `mcp_trio.observers`.
        state_changed: Called with the new `state` of the connection, and with the reason for it.

        env: For a command: variables in addition to the few that it inherits.
        inherit_env: For a command: whether it inherits all variables of this process.
        cwd: For a command: its working directory.
        stderr: For a command: a function for each line of its stderr, or "inherit".

        http: For an HTTP URL: the `httpx` or `httpx2` client, with its proxies, certificates,
            authorization and connect timeout. It is not closed.
        headers: For a URL: additional headers of each request.
        token: For a URL: the token for `Authorization: Bearer`; a WebSocket also offers it as a
            subprotocol.
        auth: For an HTTP URL: how the client gets its tokens. "oauth" lets the user log in in a
            browser; the classes of `mcp_trio.auth` have options, or need no user. An `Auth` object
            of httpx2 or httpx is accepted, too. Timeouts of requests stand still during a login.
        ssl_context: For `wss://`: TLS settings in place of the system's trusted certificates.
        version_memory: For a URL: remembers which servers are stateless. By default all clients of
            a Trio run share one.

        progress: Called with the progress of each `call_tool` without a callback of its own.
        log: Called with each log message of the server.
        log_level: The minimum level of the server's log messages. By default a stateless server
            sends all messages if there is a `log` callback, and none otherwise.
        resource_updated: Called when a resource has changed that `subscribe` was called for.
        list_changed: Called with "tools", "resources" or "prompts" when that list has changed.
        roots: The roots: a list of `Root`, `file://` URIs or paths, or a function that returns one.
        sampling: Asks a model for the server and returns its text or a `CreateMessageResult`;
            raises `UserRejected` to decline. A second parameter gets a function that reports
            progress.
        sampling_tools: Whether `sampling` accepts tools for the model.
        elicitation: Asks the user for the server, by a form or a URL. Returns an `ElicitResult`,
            whether the user agrees, or the filled-in form as a mapping or an object with fields.
        elicitation_modes: The modes that `elicitation` supports: "form", "url", or both.
        elicitation_complete: Called with the id of a URL elicitation that is complete.
        callback_rates: The rates at which the server may call `sampling`, `elicitation` and
            `roots`, such as `{"sampling": "10/minute"}`; by default it may at any rate. Beyond it,
            the server gets an error that says when to try again. The server is not trusted with
            the attention of the user and the cost of the model, so hosts should set them.

    Raises:
        TypeError: `roots` is neither a list nor a function, `stderr` is neither "inherit" nor a
            function, a callback is no function, or a type in `methods` cannot be decoded by
            msgspec.
        ValueError: A root is no `file://` URI, `methods` redefines a method of the protocol, a
            protocol version is unknown, the identifier of an extension is invalid, or `restart` is
            given for a channel, which cannot be opened again. The log level, or a name or rate in
            `callback_rates`, is unknown.
    """

    target: Target = attrs.field(converter=with_script_as_command, kw_only=False)
    name: str = "mcp_trio"
    version: str = __version__
    protocol_versions: Sequence[str] = attrs.field(
        default=DEFAULT_PROTOCOL_VERSIONS, converter=checked_protocol_versions
    )
    limits: Limits = DEFAULT_LIMITS
    record: RecordTarget | None = None
    restart: bool = False
    cache: bool = True
    raise_tool_errors: bool = True
    extensions: Mapping[str, Mapping[str, Any]] | None = None
    methods: Mapping[str, Any] | None = None
    trace: Trace | None = attrs.field(default=None, validator=_check_function)
    observers: Sequence[Observer] = ()
    state_changed: OnState | None = attrs.field(default=None, validator=_check_function)
    env: Mapping[str, str] | None = None
    inherit_env: bool = False
    cwd: str | os.PathLike[str] | None = None
    stderr: Stderr | None = attrs.field(default=None, validator=_check_stderr)
    http: httpx2.AsyncClient | httpx.AsyncClient | None = None
    headers: Mapping[str, str] | None = None
    token: str | None = None
    auth: ClientAuth | None = None
    ssl_context: ssl.SSLContext | None = None
    version_memory: VersionMemory | None = None
    progress: ProgressCallback | None = attrs.field(default=None, validator=_check_function)
    log: LogCallback | None = attrs.field(default=None, validator=_check_function)
    log_level: LoggingLevel | None = attrs.field(default=None, validator=_check_log_level)
    resource_updated: ResourceUpdatedCallback | None = attrs.field(
        default=None, validator=_check_function
    )
    list_changed: ListChangedCallback | None = attrs.field(default=None, validator=_check_function)
    roots: Roots | None = attrs.field(default=None, validator=check_roots)
    sampling: SamplingCallback | None = attrs.field(default=None, validator=_check_function)
    sampling_tools: bool = False
    elicitation: ElicitationCallback | None = attrs.field(default=None, validator=_check_function)
    elicitation_modes: Collection[ElicitMode] = attrs.field(
        default=("form",), validator=check_modes
    )
    elicitation_complete: ElicitationCompleteCallback | None = attrs.field(
        default=None, validator=_check_function
    )
    callback_rates: Mapping[str, str | Rate] = attrs.field(factory=dict[str, str | Rate])
    _observers: Observers | None = attrs.field(default=None, init=False)
    _entered_observers: ExitStack = attrs.field(factory=ExitStack, init=False)
    _has_connected: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _has_logged_malformed: bool = attrs.field(default=False, init=False)
    _target_name: str = attrs.field(default="", init=False)
    _spawn: Spawn = attrs.field(default=spawn_in_system_task, init=False)
    _session_task: SessionTask | None = attrs.field(default=None, init=False)
    _own_version_memory: VersionMemory = attrs.field(factory=VersionMemory, init=False)
    _reconnecting: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    # The error of the last attempt to connect again, for the tasks that waited for it.
    _reconnect_error: MCPError | None = attrs.field(default=None, init=False)
    _application: ClientApplication = attrs.field(init=False)
    _methods: Mapping[str, Method] = attrs.field(init=False)
    _cache: Cache = attrs.field(init=False)
    _output_schemas: OutputSchemas = attrs.field(init=False)
    _subscription: CallbackSubscription = attrs.field(init=False)
    _recordings: SuccessiveSessions = attrs.field(init=False)
    _reported_state: ReportedState = attrs.field(init=False)
    _state: tuple[State, str] = attrs.field(default=("connecting", ""), init=False)

    def __attrs_post_init__(self) -> None:
        if self.restart and not (can_open_again(self.target) or is_http_target(self.target)):
            raise ValueError("restart=True is for commands, server objects and URLs")
        self._recordings = SuccessiveSessions(self.record, may_reconnect=self._reconnects)
        # An HTTP channel reports the state of its connection itself.
        self._reported_state = ReportedState(
            None if is_http_target(self.target) else self._set_state
        )
        for identifier in self.extensions or ():
            check_extension(identifier)
        if self.observers:
            from mcp_trio._session.observing import observers_of

            self._observers = observers_of(self.observers)
        if self.trace is None:
            traces = (getattr(each, "trace_context", None) for each in self.observers)
            self.trace = next((each for each in traces if each is not None), None)
        self._methods = METHODS
        if self.methods:
            taken = METHODS.keys() & self.methods.keys()
            if taken:
                text = "methods= must not redefine methods of the protocol"
                raise ValueError(f"{text}: {sorted(taken)}")
            added = {name: custom_method(name, result=it) for name, it in self.methods.items()}
            self._methods = {**METHODS, **added}
        self._cache = Cache(
            entries_max=self.limits.requests.cache_entries_max,
            bytes_max=self.limits.requests.cache_bytes_max,
        )
        self._output_schemas = OutputSchemas(self.limits)
        self._subscription = CallbackSubscription(
            () if self.list_changed is None else LISTS,
            self._on_notification,
            self._start_in_session,
        )
        self._application = ClientApplication(self, self._on_notification)

    if not TYPE_CHECKING:  # for a type checker it would give the class every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute("Client", self, name)

    def __repr__(self) -> str:
        """Return a text without the environment, headers and other values that may be secret."""
        state = "open" if self.is_open else "closed" if self._is_closed else "not connected"
        return f"<{type(self).__name__} {self.name!r} of {self._server_name!r}, {state}>"

    async def __aenter__(self) -> Self:
        """Connect to the server and negotiate the protocol version.

        A client that supports stateless protocol versions first asks the server for them. A server
        that does not answer within `limits.requests.probe_seconds` is taken for a legacy one. A
        command that ends instead of answering is started again for the handshake.

        If this fails, nothing is left running. If this is cancelled, it returns at once: the task
        of the session stops a command that was started, and `aclose` waits for that.

        Raises:
            ConnectionLost: The server could not be started or reached, or has ended.
            RequestTimeout: The server did not answer in time; with the last lines of its stderr.
            RequestError: The server rejected the handshake.
            RemoteProtocolError: Client and server have no protocol version in common.
            RecordingError: The recording cannot be created.
            RuntimeError: The calling code does not run in Trio.
            ValueError: The redaction rules of the recording are invalid.
        """
        if not trio.lowlevel.in_trio_run():
            raise RuntimeError(
                "a Client needs Trio: write trio.run(main) in place of asyncio.run(main())"
            )
        await self._connect(spawn_in_system_task)
        return self

    async def __aexit__(self, *_raised: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection, from any task and any number of times.

        Calls in flight raise `ConnectionLost`. A command has `limits.shutdown.close_seconds` to
        exit by itself, and is stopped after that. When a callback of the client calls `aclose`, the
        closing only begins, since the callback itself has to end first.

        If this is cancelled, the connection still closes, in bounded time.
        """
        self._begin_close()
        if self._session_task is not None:
            await self._session_task.wait_ended()
            self._log_malformed(self._session_task.session)
        self._recordings.end()
        self._entered_observers.close()

    @property
    def is_open(self) -> bool:
        """True while calls can be made: the client is connected, not closed, and not lost."""
        if self._session_task is None:
            return False
        session = self._session_task.session
        return session.negotiated.is_set() and session.cause is None

    @property
    def state(self) -> State:
        """The state of the connection, with which `state_changed` was called last.

        "connecting": the server has not answered yet. "open": the last request was answered.
        "retrying": the server could not be reached or was lost; the client connects again with the
        next call at the latest. "closed": the session is over. Unless the client was closed, a call
        to a URL opens another session.
        """
        return self._state[0]

    @property
    def state_reason(self) -> str:
        """The reason for the state "retrying" or "closed", else an empty string."""
        return self._state[1]

    @property
    def server_info(self) -> types.Implementation:
        """Name and version of the server."""
        info = self._connection.peer_info
        return info or types.Implementation(name=self._target_name, version="")

    @property
    def server_capabilities(self) -> types.ServerCapabilities:
        """The capabilities of the server."""
        capabilities = self._connection.peer_capabilities
        assert isinstance(capabilities, types.ServerCapabilities)
        return capabilities

    def server_can(self, capability: str) -> bool:
        """Return whether the server has a capability.

        Args:
            capability: The name of the capability, such as "tools" or "resources.subscribe".
        """
        return has_capability(self.server_capabilities, capability)

    @property
    def instructions(self) -> str | None:
        """The instructions of the server for a model, if it sent any."""
        return self._connection.instructions

    @property
    def protocol_version(self) -> str:
        """The negotiated protocol version."""
        protocol_version = self._connection.protocol_version
        assert protocol_version is not None
        return protocol_version.name

    @property
    def counts(self) -> dict[str, int]:
        """Counters of received messages that were ignored, such as late responses, by reason."""
        return dict(self._session.connection.counts)

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
        """Send a request and return its typed result; all calls go through this method.

        A stateless server may require input before it returns the result. The callbacks of the
        client answer in the calling task, and the request is sent again, in at most
        `limits.requests.rounds_max` rounds. With `rounds=False` the `InputRequiredResult` is
        returned instead.

        If this is cancelled or times out, the request is cancelled at the server.

        Args:
            method: The method, of the protocol or of the client's `methods`.
            params: A struct of `mcp_trio.types`, or a mapping with the JSON names.
            idle_seconds: The longest wait for the result or for the next progress, by default
                `limits.requests.idle_seconds`.
            total_seconds: The longest wait for the result, by default
                `limits.requests.total_seconds`. It covers all rounds, but neither the answers of
                the client's callbacks nor the time to connect again.
            progress: Called in the calling task with each progress of the request.
            rounds: Whether input requests are answered by the client's callbacks.

        Raises:
            RequestError: The server answered with an error.
            RequestTimeout: The server did not answer in time.
            ConnectionLost: The session has ended.
            OutcomeUnknown: The connection broke, or the response exceeds
                `limits.messages.bytes_max`.
            LocalProtocolError: The protocol forbids the request, or the server lacks a capability.
            RemoteProtocolError: The response is invalid, or the server requires input that it must
                not ask for.
            Exception: A callback raised it.
        """
        started = trio.current_time()
        result = await self._send(
            method,
            params,
            idle_seconds=idle_seconds,
            total_seconds=total_seconds,
            on_progress=progress,
        )
        if not (rounds and isinstance(result, types.InputRequiredResult)):
            return result

        async def send(params: ParamsToSend | None, total_seconds: float | None) -> Any:
            return await self._send(
                method,
                params,
                idle_seconds=idle_seconds,
                total_seconds=total_seconds,
                on_progress=progress,
            )

        retries = RequestRetries(
            method=method,
            send=send,
            application=self._application,
            protocol_version=PROTOCOL_VERSIONS[self.protocol_version],
            total_seconds=total_seconds,
        )
        return await retries.run(params, result, taken_seconds=trio.current_time() - started)

    async def notify(self, method: str, params: ParamsToSend | None = None) -> None:
        """Send a notification to the server.

        Args:
            method: The method, of the protocol or of the client's `methods`.
            params: A struct of `mcp_trio.types`, or a mapping with the JSON names.

        Raises:
            LocalProtocolError: The protocol does not allow it, and `methods` does not define it.
            Unencodable: The params cannot be encoded as JSON.
            ConnectionLost: The session has ended.
        """
        session = self._session
        if session.cause is None:  # another task may be connecting again
            session = await self._connected()
        await session.notify(method, params)

    async def list_tools(self, **options: Unpack[CallOptions]) -> list[types.Tool]:
        """Return all tools, from at most `limits.requests.pages_max` pages.

        Results of the listed tools are checked against their output schemas from now on. To read a
        single page, use `await client.request("tools/list", {"cursor": cursor})`.

        Args:
            **options: Timeouts for each page; see `request`.
        """
        tools = await self._list("tools/list", "tools", options)
        self._output_schemas.learn(tools)
        return tools

    async def list_resources(self, **options: Unpack[CallOptions]) -> list[types.Resource]:
        """Return all resources, from at most `limits.requests.pages_max` pages.

        Args:
            **options: Timeouts for each page; see `request`.
        """
        return await self._list("resources/list", "resources", options)

    async def list_resource_templates(
        self, **options: Unpack[CallOptions]
    ) -> list[types.ResourceTemplate]:
        """Return all resource templates, from at most `limits.requests.pages_max` pages.

        Args:
            **options: Timeouts for each page; see `request`.
        """
        return await self._list("resources/templates/list", "resource_templates", options)

    async def list_prompts(self, **options: Unpack[CallOptions]) -> list[types.Prompt]:
        """Return all prompts, from at most `limits.requests.pages_max` pages.

        Args:
            **options: Timeouts for each page; see `request`.
        """
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
        """Call a tool and return its result.

        Args:
            name: The name of the tool.
            arguments: Its arguments: any values that msgspec can encode as JSON.
            raise_tool_errors: Overrides the client's option.
            result_type: Return a value of this type, made from the structured content: any type
                that msgspec decodes, or a pydantic model. If the result has no structured content,
                the value is made from the only text: parsed as JSON, but for `str`. Without this,
                `result.data` is the value as plain Python objects.
            **options: Timeouts and progress callback; see `request`.

        Raises:
            Unencodable: The arguments cannot be encoded as JSON.
            ToolError: The tool failed; `error.result` is its result. With
                `raise_tool_errors=False` and without `result_type` the result is returned.
            RemoteProtocolError: The result does not match the tool's output schema (checked if
                the tool was listed).
            ResultTypeError: The result is valid, but no value of `result_type`.
            MCPError: As `request`.
        """
        if not options.keys() <= _CALL_OPTIONS:
            raise _unknown_argument("call_tool", options)
        options.setdefault("progress", self.progress)
        try:
            params = types.CallToolParams(
                name=name,
                arguments=msgspec.UNSET
                if arguments is None
                else msgspec.Raw(msgspec.json.encode(arguments)),
            )
        except Exception as error:  # a value of the caller's own type may raise anything
            raise Unencodable(f"the arguments cannot be encoded as JSON: {error}") from error
        result: types.CallToolResult
        try:
            result = await self.request("tools/call", params, **options)
        except RequestError as error:
            if error.code != HEADER_MISMATCH:
                raise
            # The `Mcp-Param-*` headers followed an outdated tool list. Servers reject such a
            # request before they run the tool, so that it may be sent again.
            self._cache.forget("tools/list")
            await self.list_tools()
            result = await self.request("tools/call", params, **options)
        raises = self.raise_tool_errors if raise_tool_errors is None else raise_tool_errors
        if result.is_error and (raises or result_type is not None):
            failure = ToolError(error_text(name, result), result)
            if is_internal_error(result) and self.stderr is None and starts_command(self.target):
                failure.add_note('its log has the reason: Client(…, stderr="inherit") shows it')
            raise failure
        self._output_schemas.check(name, result)
        return result if result_type is None else decode_as(name, result, result_type)

    async def read_resource(
        self, uri: str, **options: Unpack[CallOptions]
    ) -> types.ReadResourceResult:
        """Return the contents of a resource.

        Args:
            uri: The URI of the resource; it need not be listed.
            **options: Timeouts and progress callback; see `request`.

        Raises:
            ResourceNotFound: The server has no resource with this URI.
            MCPError: As `request`.
        """
        params = types.ReadResourceParams(uri=uri)
        try:
            result: types.ReadResourceResult = await self.request(
                "resources/read", params, **options
            )
        except RequestError as error:
            if not is_resource_not_found(error):
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
        """Return the messages of a prompt, with its arguments filled in.

        Args:
            name: The name of the prompt.
            arguments: Its arguments, all of them strings.
            **options: Timeouts and progress callback; see `request`.

        Raises:
            TypeError: An argument is not a string.
            MCPError: As `request`.
        """
        if not options.keys() <= _CALL_OPTIONS:
            raise _unknown_argument("get_prompt", options)
        for argument, value in cast("Mapping[str, Any]", arguments or {}).items():
            if not isinstance(value, str):
                text = f"the arguments of a prompt must be strings, not {argument}={value!r}"
                raise TypeError(text)
        params = types.GetPromptParams(
            name=name, arguments=None if arguments is None else dict(arguments)
        )
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
        """Return completions for the argument of a prompt or resource template.

        Args:
            ref: The prompt or resource template. A string is the URI template of a resource if it
                contains "://", and the name of a prompt otherwise.
            argument: The name of the argument.
            value: The beginning of its value.
            context: The values of other arguments; servers before 2025-06-18 do not get them.
            **options: Timeouts and progress callback; see `request`.

        Raises:
            LocalProtocolError: The server has no completions, as far as its protocol version can
                announce them.
            MCPError: As `request`.
        """
        await self._connected()
        if PROTOCOL_VERSIONS[self.protocol_version].announces_completions and not self.server_can(
            "completions"
        ):
            raise LocalProtocolError("the server capability 'completions' is not announced")
        params = types.CompleteParams(
            ref=reference(ref),
            argument=types.CompletionArgument(name=argument, value=value),
            context=None if context is None else types.CompletionContext(arguments=dict(context)),
        )
        result: types.CompleteResult = await self.request("completion/complete", params, **options)
        return result

    async def ping(self, **options: Unpack[CallOptions]) -> None:
        """Wait until the server has answered a ping.

        A stateless server has no ping, and is asked for `server/discover` instead.

        Args:
            **options: Timeouts; see `request`.
        """
        await self._connected()
        self._cache.forget(DISCOVER)
        await self.request(DISCOVER if self._is_stateless else PING, **options)

    async def set_log_level(self, level: LoggingLevel, **options: Unpack[CallOptions]) -> None:
        """Set the minimum level of the log messages that the server sends.

        A legacy server gets the level at once, a stateless one with each later request.

        Args:
            level: The level, from "debug" to "emergency".
            **options: Timeouts and progress callback; see `request`.

        Raises:
            ValueError: There is no such level.
            MCPError: As `request`.
        """
        _check_log_level(self, None, level)
        await self._connected()
        if not self._is_stateless:
            await self.request("logging/setLevel", types.SetLevelParams(level=level), **options)
        self.log_level = level

    @asynccontextmanager
    async def listen(
        self,
        *,
        tools: bool = False,
        prompts: bool = False,
        resources: bool = False,
        uris: Collection[str] = (),
    ) -> AsyncGenerator[Subscription]:
        """Subscribe to changes at a stateless server, for the length of a block.

        Use it as `async with client.listen(tools=True) as subscription: async for change in
        subscription: …`. Changes before the block are not reported, so read the lists inside of it.
        `subscription.left_out` holds what the server does not report. The callbacks `list_changed`
        and `resource_updated` work without this method.

        Args:
            tools: Subscribe to changes of the list of tools.
            prompts: Subscribe to changes of the list of prompts.
            resources: Subscribe to changes of the list of resources.
            uris: Subscribe to changes of the resources with these URIs.

        Raises:
            RequestTimeout: The server did not acknowledge within `limits.requests.idle_seconds`.
            RequestError: The server rejected the request.
            RemoteProtocolError: The server ended the subscription before it acknowledged it.
            LocalProtocolError: The server is a legacy one: use `list_changed` and `subscribe`.
            ConnectionLost: The session has ended.
        """
        session = await self._connected()
        chosen = {"tools": tools, "prompts": prompts, "resources": resources}
        requested = subscription_filter([kind for kind in LISTS if chosen[kind]], uris)
        stream = SubscriptionStream(requested, self._on_notification)
        await stream.begin(session)
        self._start_in_session(stream.run)
        try:
            yield Subscription(stream)
        finally:
            stream.end()

    async def subscribe(self, uri: str, **options: Unpack[CallOptions]) -> None:
        """Subscribe to changes of a resource, for which `resource_updated` is called.

        Args:
            uri: The URI of the resource.
            **options: Timeouts; see `request`.

        Raises:
            ResourceNotFound: A stateless server does not report changes of this resource.
            LocalProtocolError: The server has no subscriptions to resources.
            MCPError: As `request`.
        """
        session = await self._connected()
        if not self._is_stateless:
            await self.request(SUBSCRIBE, types.SubscribeParams(uri=uri), **options)
            self._subscription.uris |= {uri}
        elif self.server_can("resources.subscribe"):
            await self._subscription.add(session, uri, seconds=_shortest_seconds(options))
        else:
            raise LocalProtocolError("the server does not announce 'resources.subscribe'")

    async def unsubscribe(self, uri: str, **options: Unpack[CallOptions]) -> None:
        """End the subscription to a resource.

        Args:
            uri: The URI of the resource.
            **options: Timeouts; see `request`.
        """
        session = await self._connected()
        if self._is_stateless:
            await self._subscription.remove(session, uri, seconds=_shortest_seconds(options))
        else:
            # First, so that a task which connects again does not subscribe to it any more.
            self._subscription.uris -= {uri}
            await self.request(UNSUBSCRIBE, types.UnsubscribeParams(uri=uri), **options)

    async def set_roots(self, roots: Roots) -> None:
        """Replace the roots, and notify a legacy server.

        Args:
            roots: A list of `Root`, `file://` URIs or paths, or a function that returns one.

        Raises:
            TypeError, ValueError: The roots are invalid; the client keeps its old ones.
            LocalProtocolError: The client was created without `roots`.
            ConnectionLost: The session has ended.
        """
        session = self._session
        if self.roots is None and session.cause is None:
            raise LocalProtocolError("roots were not announced: create the client with roots=")
        self.roots = roots
        if session.cause is None:
            session = await self._connected()
        if not self._is_stateless:
            await session.notify(_ROOTS_CHANGED)

    async def notify_roots_changed(self) -> None:
        """Notify the server that the function in `roots` returns other roots now.

        Raises:
            LocalProtocolError: The client was created without `roots`.
            ConnectionLost: The session has ended.
        """
        await self.notify(_ROOTS_CHANGED)

    # Connecting.

    async def _connect(self, spawn: Spawn) -> None:
        """Connect, with the session in a task that `spawn` starts."""
        if self._has_connected:
            raise RuntimeError("a Client connects once: create another Client")
        self._has_connected = True
        self._spawn = spawn
        if self.observers:
            from mcp_trio._session.observing import enter_observers

            self._entered_observers = enter_observers(self.observers)
        self._reported_state.begin()
        try:
            await self._connect_session()
        except BaseException as error:
            self._entered_observers.close()
            self._reported_state.change("closed", str(error))
            self._state = "closed", str(error)  # an HTTP channel may have reported another state
            if self._session_task is None:
                self._recordings.end()
            else:
                self._session_task.session.ended.when_set(self._recordings.end)
            raise

    async def _connect_session(self) -> None:
        """Open a session and negotiate; skip `server/discover` if the server is known as legacy."""
        # Without a URL, the client remembers the kind of its own server only.
        version_memory, url = self._own_version_memory, url_of(self.target)
        key: ServerKey | None = None
        if url is not None:
            given = self.version_memory
            version_memory = version_memory_of_this_run() if given is None else given
            versions = tuple(self.protocol_versions)
            key = server_key(url, http=self.http, protocol_versions=versions)
        kind = version_memory.recall(key)
        try:
            await self._connect_as(kind)
        except MCPError as error:
            # A server of these kinds was sent `server/discover`, so the error does not come from an
            # outdated memory of its kind.
            if kind in (None, "stateless") or not may_be_of_another_kind(error):
                raise
            logger.info("%s is no longer a %s server: %s", self._target_name, kind, error)
            version_memory.forget(key)
            await self._connect_as(None)
        session = self._session
        if self._is_stateless:
            kind = "stateless"
        else:
            has_http_sse = getattr(session.channel, "uses_http_sse", False)
            kind = "HTTP+SSE" if has_http_sse else "legacy"
        version_memory.note(key, kind)
        self._reported_state.change("open")

        def report_loss() -> None:  # called before any call fails by the loss
            state: State = "retrying" if self._reconnects and not self._is_closed else "closed"
            self._reported_state.change(state, str(session.loss))

        session.closing.when_set(report_loss)

    async def _connect_as(self, kind: ServerKind | None) -> None:
        """Open a session and negotiate with a server of this kind, or of an unknown one (None)."""
        session_task = await self._start_session(tries_http_sse_first=kind == "HTTP+SSE")
        is_stateless = has_ended = False
        if kind in (None, "stateless") and supports_stateless(self.protocol_versions):
            ask = partial(discover, session_task.session)
            try:
                is_stateless = await self._negotiate(session_task, ask)
            except ConnectionLost:
                has_fallback = supports_legacy(self.protocol_versions) and can_open_again(
                    self.target
                )
                if not has_fallback or self._is_closed:
                    raise
                has_ended = True
        if has_ended:
            logger.info("%s ended on server/discover; starting it again", self._target_name)
            session_task = await self._start_session()
        session = session_task.session
        if not is_stateless and await self._negotiate(session_task, partial(shake_hands, session)):
            for step in (self._send_log_level, self._subscription.begin_legacy):
                await self._negotiate(session_task, partial(step, session))
        else:
            await self._negotiate(session_task, partial(self._subscription.begin, session))

    async def _start_session(self, *, tries_http_sse_first: bool = False) -> SessionTask:
        """Open a channel and start the task of its session, which has negotiated nothing yet."""
        connected = await open_target(
            self.target,
            process=ProcessOptions(
                env=self.env, inherit_env=self.inherit_env, cwd=self.cwd, stderr=self.stderr
            ),
            web=WebOptions(
                http=self.http,
                headers=self.headers,
                token=self.token,
                auth=self.auth,
                ssl_context=self.ssl_context,
                on_state=self._set_state if is_http_target(self.target) else None,
                user_wait=nullcontext if self.auth is None else self._paused_timeouts,
                tries_http_sse_first=tries_http_sse_first,
            ),
            limits=self.limits,
        )
        self._target_name = connected.name
        session = await self._new_session(connected.channel)
        session_task = self._session_task = SessionTask(session=session, served=connected.served)
        if self._is_closed:
            session.shut("closed")
        try:
            self._spawn(session_task.run)
        except RuntimeError:  # the caller's nursery is closed: a system task closes the session
            session.shut("closed")
            spawn_in_system_task(session_task.run)
            raise
        return session_task

    def _paused_timeouts(self) -> AbstractContextManager[None]:
        """Let no request time out within the block, while the user logs in."""
        task = self._session_task
        return nullcontext() if task is None else task.session.calls.paused_timeouts()

    async def _new_session(self, channel: Channel) -> Session:
        """Return a session that owns `channel`, and that is recorded if `record` is set."""
        capabilities = self._application.capabilities()
        extensions = {name: dict(it) for name, it in (self.extensions or {}).items()}
        auth_extension = getattr(self.auth, "extension", None)
        if auth_extension is not None:
            extensions.setdefault(auth_extension, {})
        if extensions or self.extensions is not None:
            capabilities.extensions = extensions
        connection = Connection(
            our_role=Role.CLIENT,
            our_info=types.Implementation(name=self.name, version=self.version),
            our_capabilities=capabilities,
            limits=self.limits,
            methods=self._methods,
            protocol_versions=self.protocol_versions,
            request_metadata=self._request_metadata,
        )
        record = self._recordings.record
        if record is None:
            return Session(channel, connection, self._application, observers=self._observers)
        try:
            recorder, channel_number = recorder_of_session(
                record,
                role="client",
                transport=getattr(channel, "transport", type(channel).__name__),
                name=self.name,
                version=self.version,
                limits=self.limits,
            )
        except BaseException:
            await channel.aclose()
            raise
        recording = Recording(recorder, channel_number, has_steps=False)
        return Session(channel, connection, self._application, recording, self._observers)

    def _request_metadata(self) -> dict[str, Any]:
        """Return the optional metadata of each request: trace context, and log level."""
        metadata: dict[str, Any] = {} if self.trace is None else {**checked_trace(self.trace())}
        level = self.log_level
        if level is None and self.log is not None:
            level = "debug"
        if level is not None and self._is_stateless:
            metadata[LOG_LEVEL] = level
        return metadata

    async def _negotiate(self, session_task: SessionTask, step: Callable[[], Awaitable[T]]) -> T:
        """Do a step of the negotiation; if it fails, close the session and raise the reason."""
        session = session_task.session
        try:
            return await step()
        except trio.Cancelled:
            session.shut("closed")
            raise
        except ConnectionLost as loss:
            await self._end_session(session_task)
            if session_task.failure is not None:
                raise session_task.failure from session_task.failure.__cause__
            # Never `OutcomeUnknown`: no request of the user has been sent yet.
            raise copied_loss(loss, ConnectionLost) from loss.__cause__
        except RequestTimeout as timeout:
            stderr_tail = getattr(session.channel, "stderr_tail", "")
            await self._end_session(session_task)
            raise RequestTimeout(
                timeout.method,
                timeout.budget,
                timeout.seconds,
                timeout.setting,
                server=self._target_name,
                stderr_tail=stderr_tail,
            ) from None
        except BaseException:
            await self._end_session(session_task)
            raise

    async def _end_session(self, session_task: SessionTask) -> None:
        session_task.session.shut("closed")
        await session_task.wait_ended()
        self._log_malformed(session_task.session)

    async def _send_log_level(self, session: Session) -> None:
        """Send the log level to a legacy server."""
        if self.log_level is None or not self.server_can("logging"):
            return
        try:
            await session.request("logging/setLevel", types.SetLevelParams(level=self.log_level))
        except RequestError as error:
            logger.warning("%s rejected the log level: %s", self._server_name, error)

    # Closing, losing and restoring the connection.

    def _begin_close(self) -> None:
        """Begin to close, without waiting for the end."""
        self._is_closed = True
        self._reported_state.change("closed", "closed on this side")
        if self._session_task is not None:
            self._session_task.session.shut("closed")

    def _set_state(self, state: State, reason: str) -> None:
        self._state = state, reason
        if self.state_changed is not None:
            self.state_changed(state, reason)

    @property
    def _reconnects(self) -> bool:
        return self.restart or url_of(self.target) is not None

    def _open_session(self) -> Session | None:
        """Return the session; None if the client has to connect again, or another task does so."""
        session = self._session
        if self._reconnects and not self._is_closed:
            is_connecting = self._reconnecting.locked() and not session.negotiated.is_set()
            if is_connecting or session.cause is not None:
                return None
        self._subscription.revive()
        return session

    async def _connected(self) -> Session:
        """Return the open session; if there is none, connect again, or wait for the task that does.

        Raises:
            MCPError: As connecting.
        """
        return self._open_session() or await self._reconnect()

    async def _reconnect(self) -> Session:
        """Connect again, unless another task has done so meanwhile, and return the session.

        Raises:
            MCPError: As connecting, also if another task has tried meanwhile; the next call tries
                again.
        """
        has_waited = self._reconnecting.locked()
        async with self._reconnecting:
            session = self._open_session()
            if session is None:
                if has_waited and self._reconnect_error is not None:
                    raise copied(self._reconnect_error)
                self._reconnect_error = None
                assert self._session_task is not None
                if url_of(self.target) is None:
                    logger.warning("%s has ended; starting it again", self._server_name)
                else:
                    logger.warning(
                        "the connection to %s is lost; connecting again", self._server_name
                    )
                await self._session_task.wait_ended()
                if self._is_closed:
                    return self._session
                # Another server may run now: only the kind of the server is remembered.
                self._cache.clear()
                self._output_schemas.forget()
                try:
                    await self._connect_session()
                except MCPError as error:
                    self._reconnect_error = copied(error)
                    raise
                self._subscription.revive()
                session = self._session
        return session

    def _start_in_session(self, task: Callable[[], Awaitable[None]]) -> None:
        """Start a task that lives as long as the session."""
        assert self._session_task is not None
        self._session_task.start_soon(task)

    # Facts about the session.

    @property
    def _session(self) -> Session:
        if self._session_task is None:
            raise LocalProtocolError("the client is not connected: use `async with`")
        return self._session_task.session

    @property
    def _connection(self) -> Connection:
        session = self._session
        if not session.negotiated.is_set():
            raise LocalProtocolError("the client has not finished its handshake")
        return session.connection

    @property
    def _is_stateless(self) -> bool:
        if self._session_task is None:
            return False
        protocol_version = self._session_task.session.connection.protocol_version
        return protocol_version is not None and protocol_version.is_stateless

    @property
    def _server_name(self) -> str:
        """Return the name in `serverInfo`, or the name of the target before the handshake."""
        task = self._session_task
        info = None if task is None else task.session.connection.peer_info
        return self._target_name if info is None else info.name

    def _log_malformed(self, session: Session) -> None:
        """Warn once if the server has sent malformed messages."""
        count = session.connection.counts.get("malformed", 0)
        if count and not self._has_logged_malformed:
            self._has_logged_malformed = True
            logger.warning(
                "%s has sent %d malformed messages so far. The usual cause is a print to stdout, by"
                " the server or by a program that it starts",
                self._server_name,
                count,
            )

    # Requests.

    def _on_notification(self, notification: str, params: Any) -> None:
        """Drop outdated results, before the notification's callback is called."""
        self._cache.apply(notification, params)
        if notification == "notifications/tools/list_changed":
            self._output_schemas.forget()

    async def _send(self, method: str, params: ParamsToSend | None, **options: Any) -> Any:
        """Return the result of one request, from the cache if it has a valid one.

        A request that is lost is repeated once where that is safe.
        """
        # Only stateless servers announce how long a result is valid.
        key = cache_key(method, params) if self.cache and self._is_stateless else None
        changes = 0
        if key is not None:
            cached = self._cache.get(key, trio.current_time())
            if cached is not None:
                await trio.lowlevel.checkpoint()
                return cached
            changes = self._cache.changes  # `put` keeps no result if a change is reported meanwhile
        result: Any = None
        for is_repeated in (False, True):
            session = await self._connected()
            try:
                result = await session.request(method, params, **options)
                break
            except ConnectionLost as loss:
                if is_repeated or not self._may_repeat(method, loss):
                    raise
            except RequestError as error:
                if error.code == URL_ELICITATION_REQUIRED:
                    for each in required_elicitations(error.data):
                        if each.elicitation_id is not None:
                            self._application.expect_completion(each.elicitation_id)
                raise
            finally:
                self._log_malformed(session)
        if key is not None and isinstance(result, types.CacheableResult):
            self._cache.put(key, result, now=trio.current_time(), changes=changes)
        return result

    def _may_repeat(self, method: str, loss: ConnectionLost) -> bool:
        """Return whether a lost request may be sent again."""
        reconnects_to_url = is_http_target(self.target) and self._reconnects
        row = self._methods.get(method)
        only_reads = row is not None and row.is_cacheable
        # The request was not delivered, or only to a session that had expired.
        had_no_effect = not isinstance(loss, OutcomeUnknown) and loss.http_status is None
        may_repeat = reconnects_to_url and (only_reads or had_no_effect)
        return may_repeat or (only_reads and self.restart)

    async def _list(self, method: str, member: str, options: CallOptions) -> list[Any]:
        try:
            return await self._read_pages(method, member, options)
        except RequestError as error:
            # The cursor of a cached page may have expired: read the list again from the server.
            if error.code != INVALID_PARAMS or not self._cache.forget(method):
                raise
        return await self._read_pages(method, member, options)

    async def _read_pages(self, method: str, member: str, options: CallOptions) -> list[Any]:
        """Return the items of all pages of a list, in order."""
        items: list[Any] = []
        cursors: set[types.Cursor | None] = set()
        cursor: types.Cursor | None = None
        pages_max = self.limits.requests.pages_max
        while len(cursors) < pages_max:
            page = await self.request(method, types.PaginatedParams(cursor=cursor), **options)
            items += getattr(page, member)
            cursors.add(cursor)
            cursor = page.next_cursor
            # An empty cursor is a cursor: only a missing one ends the list.
            if cursor is None:
                return items
            if cursor in cursors:
                raise RemoteProtocolError(f"{method}: the server sent the cursor {cursor!r} twice")
        raise RemoteProtocolError(
            f"{method}: the list has more than {pages_max} pages (limits.requests.pages_max)"
        )


def _shortest_seconds(options: CallOptions) -> float | None:
    given = (options.get("idle_seconds"), options.get("total_seconds"))
    return min((seconds for seconds in given if seconds is not None), default=None)


async def notifications_handled(client: Client) -> None:
    """Wait until callbacks have handled all notifications that the client has received so far.

    A server that mounts the client's server forwards a result after them.
    """
    session = client._session  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    await session.notifications_handled()


async def connect_client(
    target: Target, nursery: trio.Nursery, **options: Unpack[ClientOptions]
) -> Client:
    """Return a connected `Client` whose session runs in `nursery`.

    The session ends with `Client.aclose`, or when the nursery is cancelled. An error of the session
    or the server never cancels the nursery. Options and errors are those of `Client`.
    """
    client = Client(target, **options)
    # Only this function connects a client without `async with`.
    await client._connect(nursery.start_soon)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    return client
