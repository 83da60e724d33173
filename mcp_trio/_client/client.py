"""The client that people hold: one conversation with one server."""

import logging
import os
from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final, Self, Unpack

import attrs
import trio

from mcp_trio import _schema as s
from mcp_trio._client.callbacks import (
    Callbacks,
    ListChangedCallback,
    LogCallback,
    ResourceUpdatedCallback,
    SamplingCallback,
)
from mcp_trio._client.lifetime import Lifetime, Spawn, in_system_task
from mcp_trio._client.methods import methods_with
from mcp_trio._client.opening import open_session
from mcp_trio._client.options import CallOptions
from mcp_trio._client.pages import read_pages
from mcp_trio._client.params import call_tool_params, complete_params, get_prompt_params
from mcp_trio._client.roots import Roots
from mcp_trio._client.targets import ProcessOptions, Stderr, Target, open_target
from mcp_trio._engine import ProgressCallback, Session
from mcp_trio._errors import ConnectionLost, LocalProtocolError, RequestTimeout, ToolError
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._protocol import Connection, Method, ParamsToSend, Role, announced
from mcp_trio._recorder.options import RecordTo
from mcp_trio._version import __version__

logger = logging.getLogger("mcp_trio")


@attrs.define(eq=False, repr=False)
class Client:
    """A conversation with the server at `target`; `async with Client(target) as client:` has it.

    `target` is a command (`["python", "server.py"]`), a `ServerConfig`, a server object, or a
    channel. The session lives in a task of its own: exceptions of the block arrive as they are, and
    a server that dies fails the calls in flight and nothing else. Leaving a cancel scope round a
    call cancels the handler at the server. A client connects once.

    Callbacks are functions, async or not. One that raises is logged, or is the error that the
    server gets, and ends nothing but itself; only `progress` raises into the call that it is for.

    Attributes:
        name: Who we say that we are, with `version`.
        limits: What the session may cost; the time-outs are among them.
        record: Where the session is recorded: a file, a folder for a file of its own, or what
            `mcp_trio.recording` has to say more: `RecordOptions`, `SharedRecording`.
        raise_tool_errors: Whether `call_tool` raises `ToolError`.
        env: For a command: variables that it gets besides the few that are inherited.
        inherit_env: For a command: whether it inherits all our variables.
        cwd: For a command: the folder that it starts in.
        stderr: For a command: a function for each line of its stderr, or "inherit" for ours.
        progress: Called with the reports of every `call_tool` that brings no callback of its own.
        log: Called with the server's log messages.
        resource_updated: Called when a resource that was subscribed to has changed.
        list_changed: Called with "tools", "resources" or "prompts" when that list has changed.
        roots: The places that the server may work in, as `Root`, `file://` URI or path: a list, or
            a function that gives one whenever the server asks.
        sampling: Asks a model on behalf of the server; `UserRejected` says no. With a second
            parameter it gets a function that reports its progress to the server.
        methods: Methods of the server's own, for `request`, with the types of their results; None
            for a notification.

    Raises:
        TypeError: `roots` is no list and no function, or msgspec cannot decode a type of `methods`.
        ValueError: A root in the list has no `file://` URI, or `methods` has one of the protocol.
    """

    target: Target
    name: str = attrs.field(default="mcp_trio", kw_only=True)
    version: str = attrs.field(default=__version__, kw_only=True)
    limits: Limits = attrs.field(default=DEFAULT_LIMITS, kw_only=True)
    record: RecordTo | None = attrs.field(default=None, kw_only=True)
    raise_tool_errors: bool = attrs.field(default=True, kw_only=True)
    env: Mapping[str, str] | None = attrs.field(default=None, kw_only=True)
    inherit_env: bool = attrs.field(default=False, kw_only=True)
    cwd: str | os.PathLike[str] | None = attrs.field(default=None, kw_only=True)
    stderr: Stderr | None = attrs.field(default=None, kw_only=True)
    progress: ProgressCallback | None = attrs.field(default=None, kw_only=True)
    log: LogCallback | None = attrs.field(default=None, kw_only=True)
    resource_updated: ResourceUpdatedCallback | None = attrs.field(default=None, kw_only=True)
    list_changed: ListChangedCallback | None = attrs.field(default=None, kw_only=True)
    roots: Roots | None = attrs.field(default=None, kw_only=True)
    sampling: SamplingCallback | None = attrs.field(default=None, kw_only=True)
    methods: Mapping[str, Any] | None = attrs.field(default=None, kw_only=True)

    _is_connected_once: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _told_of_junk: bool = attrs.field(default=False, init=False)
    _target_name: str = attrs.field(default="", init=False)
    _lifetime: Lifetime | None = attrs.field(default=None, init=False)
    _callbacks: Callbacks = attrs.field(init=False)
    _methods: Mapping[str, Method] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._methods = methods_with(self.methods)
        self._callbacks = Callbacks(
            log=self.log,
            resource_updated=self.resource_updated,
            list_changed=self.list_changed,
            roots=self.roots,
            sampling=self.sampling,
        )

    # Connecting and closing.

    async def __aenter__(self) -> Self:
        """Connect, and shake hands within `initialize_seconds`.

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
        """Close, from any task, any number of times; returns when nothing of the session is left.

        In a callback of the session's own it only begins to close: the callback is cancelled.
        Calls in flight end with `ConnectionLost`. Shielded from cancellation, but bounded: a
        command has `close_seconds` to leave by itself, and is stopped after that.
        """
        self._shut()
        if self._lifetime is not None:
            await self._lifetime.over()
            self._tell_of_junk(self._lifetime.session)

    def _shut(self) -> None:
        """Begin to close, without waiting for the end."""
        self._is_closed = True
        if self._lifetime is not None:
            self._lifetime.session.shut("closed")

    async def _connect(self, spawn: Spawn) -> None:
        if self._is_connected_once:
            raise RuntimeError("a client connects once: make another")
        self._is_connected_once = True
        process = ProcessOptions(
            env=self.env, inherit_env=self.inherit_env, cwd=self.cwd, stderr=self.stderr
        )
        connected = await open_target(self.target, process=process, limits=self.limits)
        self._target_name = connected.name
        session = await open_session(
            connected.channel, self._connection_to_open(), self._callbacks, record=self.record
        )
        lifetime = self._lifetime = Lifetime(session=session, served=connected.served)
        if self._is_closed:
            session.shut("closed")
        try:
            spawn(lifetime.live)
        except RuntimeError:  # the caller's nursery is over; what was opened is closed elsewhere
            session.shut("closed")
            in_system_task(lifetime.live)
            raise
        await self._initialize(lifetime)

    def _connection_to_open(self) -> Connection:
        return Connection(
            our_role=Role.CLIENT,
            our_info=s.Implementation(name=self.name, version=self.version),
            our_capabilities=self._callbacks.capabilities(),
            limits=self.limits,
            methods=self._methods,
        )

    async def _initialize(self, lifetime: Lifetime) -> None:
        try:
            await lifetime.session.initialize()
        except trio.Cancelled:
            raise
        except ConnectionLost:
            await self.aclose()
            if lifetime.fault is None:
                raise
            raise lifetime.fault from lifetime.fault.__cause__
        except RequestTimeout as late:
            last_words = getattr(lifetime.session.channel, "stderr_tail", "")
            await self.aclose()
            raise RequestTimeout(
                late.method, late.budget, late.seconds, late.setting, stderr_tail=last_words
            ) from None
        except BaseException:
            await self.aclose()
            raise

    # What is known of the server.

    def __repr__(self) -> str:
        """Without the environment and whatever else has secrets in it."""
        state = "open" if self.is_open else "closed" if self._is_closed else "not connected"
        return f"<{type(self).__name__} {self.name!r} of {self._known_name!r}, {state}>"

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: connected, not closed, and not lost."""
        if self._lifetime is None:
            return False
        session = self._lifetime.session
        return session.negotiated.is_set() and session.cause is None

    @property
    def server_info(self) -> s.Implementation:
        """Name and version of the server."""
        info = self._connection.peer_info
        assert info is not None
        return info

    @property
    def server_capabilities(self) -> s.ServerCapabilities:
        """What the server offers."""
        capabilities = self._connection.peer_capabilities
        assert isinstance(capabilities, s.ServerCapabilities)
        return capabilities

    def server_can(self, capability: str) -> bool:
        """Whether the server offers it: "tools", say, or "resources.subscribe"."""
        return announced(self.server_capabilities, capability)

    @property
    def instructions(self) -> str | None:
        """The server's advice on how it is used."""
        return self._connection.instructions

    @property
    def revision(self) -> str:
        """The revision of the protocol that both sides agreed on."""
        revision = self._connection.revision
        assert revision is not None
        return revision.name

    @property
    def counts(self) -> dict[str, int]:
        """How often the server did something that was not worth an error, by name."""
        return dict(self._session.connection.counts)

    @property
    def _known_name(self) -> str:
        """How texts name the server: by its own name, as soon as it has said that."""
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

    # Calls. Each raises what `request` raises.

    async def request(
        self,
        method: str,
        params: ParamsToSend | None = None,
        *,
        idle_seconds: float | None = None,
        total_seconds: float | None = None,
        progress: ProgressCallback | None = None,
    ) -> Any:
        """The server's typed result of any request; all calls go through here.

        The params are a struct of the protocol, or a mapping with the names of the wire.
        Cancelled, or out of time: the server is told, and its late answer only counted. The budgets
        default to `request_idle_seconds` (starts again with each report) and
        `request_total_seconds`. `progress` is called in this task; what it raises arrives here.

        Raises:
            RequestError: The server answered with an error.
            RequestTimeout: A budget ran out.
            ConnectionLost: The session ended first, or had ended.
            LocalProtocolError: The protocol forbids the request, or the server does not offer it.
            RemoteProtocolError: The result does not have the method's shape.
        """
        session = self._session
        try:
            return await session.request(
                method,
                params,
                idle_seconds=idle_seconds,
                total_seconds=total_seconds,
                on_progress=progress,
            )
        finally:
            self._tell_of_junk(session)

    async def notify(self, method: str, params: ParamsToSend | None = None) -> None:
        """Tell the server something that it does not answer.

        Raises:
            LocalProtocolError: The protocol forbids it now, or does not know it, nor `methods`.
            Unencodable: The params cannot be written as JSON.
            ConnectionLost: The session has ended.
        """
        await self._session.notify(method, params)

    async def list_tools(self, **options: Unpack[CallOptions]) -> list[s.Tool]:
        """All tools; pages are read to the last, at most `pages_max`, each within the budgets.

        One page alone is `await client.request("tools/list", {"cursor": cursor})`.
        """
        return await self._list("tools/list", "tools", options)

    async def list_resources(self, **options: Unpack[CallOptions]) -> list[s.Resource]:
        """All resources; see `list_tools`."""
        return await self._list("resources/list", "resources", options)

    async def list_resource_templates(
        self, **options: Unpack[CallOptions]
    ) -> list[s.ResourceTemplate]:
        """All resource templates; see `list_tools`."""
        return await self._list("resources/templates/list", "resource_templates", options)

    async def list_prompts(self, **options: Unpack[CallOptions]) -> list[s.Prompt]:
        """All prompts; see `list_tools`."""
        return await self._list("prompts/list", "prompts", options)

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        raise_tool_errors: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> s.CallToolResult:
        """What a tool gave back.

        Raises:
            Unencodable: The arguments cannot be written as JSON.
            ToolError: The tool says that it failed; `result` is the whole result. Switched off by
                `raise_tool_errors`, here or for the client.
        """
        options.setdefault("progress", self.progress)
        params = call_tool_params(name, arguments)
        result: s.CallToolResult = await self.request("tools/call", params, **options)
        raises = self.raise_tool_errors if raise_tool_errors is None else raise_tool_errors
        if result.is_error and raises:
            raise ToolError(_error_text(name, result), result)
        return result

    async def read_resource(self, uri: str, **options: Unpack[CallOptions]) -> s.ReadResourceResult:
        """The contents of a resource."""
        params = s.ReadResourceParams(uri=uri)
        result: s.ReadResourceResult = await self.request("resources/read", params, **options)
        return result

    async def get_prompt(
        self,
        name: str,
        arguments: Mapping[str, str] | None = None,
        **options: Unpack[CallOptions],
    ) -> s.GetPromptResult:
        """A prompt, filled in.

        Raises:
            TypeError: An argument is not text (PROM-04).
        """
        params = get_prompt_params(name, arguments)
        result: s.GetPromptResult = await self.request("prompts/get", params, **options)
        return result

    async def complete(
        self, ref: s.Reference | str, argument: str, value: str, **options: Unpack[CallOptions]
    ) -> s.CompleteResult:
        """How `value`, typed so far for an argument of `ref`, could go on.

        `ref` may be text: the URI template of a resource, known by its "://", or a prompt's name.
        """
        params = complete_params(ref, argument, value)
        result: s.CompleteResult = await self.request("completion/complete", params, **options)
        return result

    async def ping(self, **options: Unpack[CallOptions]) -> None:
        """Returns when the server has answered."""
        await self.request("ping", **options)

    async def set_log_level(self, level: s.LoggingLevel, **options: Unpack[CallOptions]) -> None:
        """From now on the server logs only what is at least as severe."""
        await self.request("logging/setLevel", s.SetLevelParams(level=level), **options)

    async def subscribe(self, uri: str, **options: Unpack[CallOptions]) -> None:
        """From now on `resource_updated` is called when the resource changes."""
        await self.request("resources/subscribe", s.SubscribeParams(uri=uri), **options)

    async def unsubscribe(self, uri: str, **options: Unpack[CallOptions]) -> None:
        """The end of a subscription."""
        await self.request("resources/unsubscribe", s.UnsubscribeParams(uri=uri), **options)

    async def set_roots(self, roots: Roots) -> None:
        """Replace the roots, and tell the server to ask for them again.

        Raises:
            TypeError, ValueError: As making a client; the old ones stay.
            LocalProtocolError: The client was made without `roots`, and so cannot have any.
            ConnectionLost: The session has ended.
        """
        session = self._session
        self._callbacks.roots = self.roots = roots
        await session.notify(_ROOTS_CHANGED)

    async def notify_roots_changed(self) -> None:
        """Tell the server to ask for the roots again, after a change of the list that was given.

        Raises:
            LocalProtocolError: The client was made without `roots`.
            ConnectionLost: The session has ended.
        """
        await self.notify(_ROOTS_CHANGED)

    async def _list(self, method: str, member: str, options: CallOptions) -> list[Any]:
        fetch, pages_max = partial(self.request, **options), self.limits.pages_max
        return await read_pages(fetch, method, attrgetter(member), pages_max=pages_max)

    def _tell_of_junk(self, session: Session) -> None:
        """Name the server and the likely cause, once; each message was logged when it came."""
        count = session.connection.counts["malformed"]
        if count and not self._told_of_junk:
            self._told_of_junk = True
            logger.warning(_JUNK, self._known_name, count)


def _error_text(name: str, result: s.CallToolResult) -> str:
    texts = [part.text for part in result.content if isinstance(part, s.TextContent)]
    return "\n".join(texts) or f"the tool {name} failed and did not say why"


_ROOTS_CHANGED: Final = "notifications/roots/list_changed"
_JUNK: Final = (
    "%s sent what is no message, %d times so far: a print to stdout, its own or of something that"
    " it starts, is the usual cause"
)
