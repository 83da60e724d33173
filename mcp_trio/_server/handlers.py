"""The server's side of one session: a table with the handler of each method."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, TypeVarTuple

import attrs
import msgspec
import trio

from mcp_trio import types
from mcp_trio._protocol.forms import OpenElicitations
from mcp_trio._protocol.methods import LISTEN, Method
from mcp_trio._protocol.requests import IncomingRequest
from mcp_trio._recorder.writer import RecordTarget, SharedRecording
from mcp_trio._server.context import Context, ThreadContext, visit_first
from mcp_trio._server.effects import CURRENT_CONTEXT, CurrentContext
from mcp_trio._server.facts import LogLevelFilter
from mcp_trio._server.registration import Offering
from mcp_trio._server.registry import (
    LISTS,
    CacheHints,
    Registered,
    RegisteredEntry,
    RegisteredMethod,
    RegisteredResource,
    Registry,
    completion_result,
    method_result,
    target_of,
)
from mcp_trio._server.results import prompt_result, resource_result, tool_result
from mcp_trio._server.resumable import SealedRounds
from mcp_trio._server.signatures import ArgumentsError
from mcp_trio._server.subscriptions import Announcer, Subscription, Subscriptions, honoured_filter
from mcp_trio._server.threads import Bridge, run_in_thread
from mcp_trio._server.uri_templates import UriError
from mcp_trio._session.effects import abandon_effect
from mcp_trio._session.handlers import AccompaniedSession, Handling
from mcp_trio._session.journal import Recording
from mcp_trio._session.tasks import bare
from mcp_trio.errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    SERVER_BUSY,
    CapabilityMissing,
    RequestError,
    ResourceNotFound,
    ToolError,
)

if TYPE_CHECKING:
    import httpx2

# --------------------
# Which sessions of a server are open at the same time.


BESIDE: Final = "sessions beside"


@attrs.define
class _Tally:
    """How many sessions have come and gone."""

    come: int = 0
    gone: int = 0


@attrs.define(eq=False)
class SessionCounter:
    """The open sessions of one server object, by where each is recorded.

    What a handler reads of memory that sessions share may come from another session, which the
    recording of one does not hold. So each session counts those that were open while it was, but
    for those in the same file: when a replay differs, the count tells where to look. It is a
    difference of tallies, so that a session costs the same however many are open.
    """

    all: _Tally = attrs.field(factory=_Tally, init=False)
    _by_file: dict[SharedRecording, _Tally] = attrs.field(
        factory=dict[SharedRecording, _Tally], init=False
    )

    def join(self, record: RecordTarget | None) -> "Beside":
        """A session is open from now on, until it has to `leave`."""
        file = record if isinstance(record, SharedRecording) else None
        same = _ALONE
        if file is not None:
            same = self._by_file.setdefault(file, _Tally())
            same.come += 1
        self.all.come += 1
        return Beside(self, same, file)

    def forget(self, file: SharedRecording) -> None:
        """All sessions in a file have ended."""
        del self._by_file[file]


_ALONE: Final = _Tally(come=1)
"""What is in the file of a session that has one of its own."""


@attrs.define(eq=False)
class Beside:
    """An open session, and those that were open while it was."""

    _session_counter: SessionCounter
    _same: _Tally
    _file: SharedRecording | None
    _others_gone_before: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._others_gone_before = self._session_counter.all.gone - self._same.gone

    def count(self) -> int:
        """How many there were, but for those in the same file."""
        return self._session_counter.all.come - self._same.come - self._others_gone_before

    def leave(self) -> None:
        """It is open no more."""
        self._session_counter.all.gone += 1
        if self._file is not None:
            self._same.gone += 1
            if self._same.come == self._same.gone:
                self._session_counter.forget(self._file)


@attrs.define(eq=False)
class RecordingBeside(Recording):
    """A recording that ends with the count of `SessionCounter`, if there were any."""

    beside: Callable[[], int] = attrs.field(kw_only=True)

    def close(self, counts: dict[str, int]) -> None:
        """See `Sequencer.close`."""
        others = self.beside()
        super().close(counts | {BESIDE: others} if others else counts)


THREAD_MARK: Final = "thread"

_Answer: TypeAlias = msgspec.Struct | msgspec.Raw

Result = TypeVar("Result")
Values = TypeVarTuple("Values")


@attrs.define(eq=False)
class SessionHttp:
    """The HTTP client of one session's handlers, whose requests are effects.

    To be entered round the session: at the end the client is closed, within
    `limits.shutdown.close_seconds`, also when that is a cancellation.
    """

    close_seconds: float
    _client: "httpx2.AsyncClient | None" = attrs.field(default=None, init=False)

    @property
    def client(self) -> "httpx2.AsyncClient":
        """The client; httpx2 is imported here, when a client is needed for the first time."""
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


@attrs.define(eq=False)
class Serving:
    """The `Application` of a session: a server's offering, and what is this session's alone."""

    server: Offering
    registry: Registry
    announcer: Announcer
    lifespan: Any
    http: SessionHttp
    rounds: SealedRounds
    log_level_filter: LogLevelFilter = attrs.field(factory=LogLevelFilter, init=False)
    _session: AccompaniedSession = attrs.field(init=False)
    _elicitations: OpenElicitations | None = attrs.field(default=None, init=False)
    _subscriptions: Subscriptions | None = attrs.field(default=None, init=False)
    _limiter: trio.CapacityLimiter | None = attrs.field(default=None, init=False)

    # What not every session needs is made for the first who does.

    @property
    def elicitations(self) -> OpenElicitations:
        """See `ServedSession`."""
        if self._elicitations is None:
            self._elicitations = OpenElicitations(
                self.registry.limits.requests.elicitations_remembered_max
            )
        return self._elicitations

    @property
    def subscriptions(self) -> Subscriptions:
        """Those of modern clients."""
        if self._subscriptions is None:
            self._subscriptions = Subscriptions(self.registry.limits, self._session)
        return self._subscriptions

    @property
    def _threads(self) -> trio.CapacityLimiter:
        """How many handlers of this session run in threads at once."""
        if self._limiter is None:
            self._limiter = trio.CapacityLimiter(self.registry.limits.requests.threads_max)
        return self._limiter

    def accompany(self, session: AccompaniedSession) -> None:
        """See `Application.accompany`."""
        self._session = session
        self.announcer.accompany(session)

    def depart(self) -> None:
        """See `Application.depart`."""
        self.announcer.leave()

    # Each coroutine between the engine and a handler takes its part of each wait. So those who only
    # choose who answers give back what is to be awaited.

    def handle(self, handling: Handling) -> Awaitable[_Answer]:
        """See `Application.handle`."""
        if handling.request.has_rounds:
            return self.rounds.answer(handling, self)
        return self._handled_at_once(handling)

    async def _handled_at_once(self, handling: Handling) -> _Answer:
        request, result = handling.request, await self.handled(handling)
        if isinstance(result, types.InputRequiredResult):
            raise TypeError(f"{request.method.name} has no rounds: it cannot ask by its result")
        return result

    def entry(self, request: IncomingRequest) -> RegisteredEntry | None:
        """Return the registered handler of a request that may have rounds, if there is one."""
        method = request.method.name
        if method in self.registry.methods:
            return None
        try:
            return _ENTRIES[method](self.registry, request.params)
        except UriError:
            return None

    async def handled(self, handling: Handling) -> _Answer:
        """Run the handler of a request from its beginning, and return its result."""
        while True:
            try:
                return await self._handled(handling)
            except Exception as error:
                await visit_first(handling, self, error)

    def _handled(self, handling: Handling) -> Awaitable[_Answer]:
        method, params = handling.request.method.name, handling.request.params
        own = self.registry.methods.get(method)
        if own is not None:
            return self._handled_by_own(own, handling, params)
        return _HANDLERS[method](self, handling, params)

    async def _handled_by_own(
        self, own: RegisteredMethod, handling: Handling, params: Any
    ) -> _Answer:
        value = await self._run(own, handling, params)
        return _converted(own, method_result, value, self.server.writer)

    def hears(self, method: Method) -> bool:
        """See `Application.hears`: what people have given handlers to."""
        return method.name in self.registry.methods

    async def notified(self, method: Method, params: Any) -> None:
        """See `Application.notified`."""
        own = self.registry.methods[method.name]
        handler, keywords = own.signature.handler, own.signature.bind(params, None)
        if own.runs_in_thread:
            sequencer = self.announcer.session.sequencer
            sequencer.marked(THREAD_MARK, own.name)
            bridge = Bridge(own.name, sequencer, None)
            await run_in_thread(handler, keywords, bridge=bridge, limiter=self._threads)
        else:
            value: Any = handler(**keywords)
            if hasattr(value, "__await__"):
                await value

    async def list_page(self, handling: Handling, params: types.PaginatedParams) -> msgspec.Raw:
        """Answer any of `LISTS`."""
        request = handling.request
        return self.registry.page(request.method.name, params.cursor, request.peer.protocol_version)

    async def set_level(self, _: Handling, params: types.SetLevelParams) -> types.EmptyResult:
        """Answer `logging/setLevel`."""
        self.log_level_filter.level = params.level
        return types.EmptyResult()

    async def call_tool(
        self, handling: Handling, params: types.CallToolParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Answer `tools/call`; a `ToolError` becomes a result with `isError`.

        So do arguments that do not fit, where the revision wants the model to hear of them, and the
        lack of a capability, where it has no error for that.
        """
        tool = self.registry.tools.get(params.name)
        if tool is None:
            raise self._rejection(INVALID_PARAMS, f"unknown tool: {params.name}")
        raw = None if params.arguments is msgspec.UNSET else params.arguments
        try:
            arguments = _decoded(tool.signature.decode, raw)
        except RequestError as error:
            if not handling.request.peer.protocol_version.argument_errors_are_results:
                raise
            return _failure(error.message)
        try:
            value = await self._run(tool, handling, arguments)
            return _converted(tool, tool_result, value, self.server.writer, tool.output)
        except Exception as error:
            failure, protocol_version = bare(error), handling.request.peer.protocol_version
            told = ToolError if protocol_version.is_stateless else ToolError | CapabilityMissing
            if not isinstance(failure, told):
                raise
            return _failure(str(failure))

    async def read_resource(
        self, handling: Handling, params: types.ReadResourceParams
    ) -> types.ReadResourceResult | types.InputRequiredResult:
        """Answer `resources/read`."""
        return await self._read(handling, params.uri)

    async def read(
        self, handling: Handling, uri: str, *, limiter: trio.CapacityLimiter | None = None
    ) -> types.ReadResourceResult:
        """See `ServedSession.read`."""
        result = await self._read(handling, uri, limiter)
        if isinstance(result, types.InputRequiredResult):
            raise TypeError(f"{uri!r} returned questions, which only its own request can ask")
        return result

    async def _read(
        self, handling: Handling, uri: str, limiter: trio.CapacityLimiter | None = None
    ) -> types.ReadResourceResult | types.InputRequiredResult:
        try:
            resource, values = self._found(uri)
            arguments = _decoded(resource.signature.decode_text, values)
            value = await self._run(resource, handling, arguments, limiter)
        except Exception as error:
            failure = bare(error)
            if not isinstance(failure, RequestError) or failure.code != RESOURCE_NOT_FOUND:
                raise
            if handling.request.peer.protocol_version.resource_not_found_code == failure.code:
                raise  # as it is: recordings hold what these revisions were told
            said, data = self._brief(failure.message), failure.data or {"uri": uri}
            raise ResourceNotFound(uri, message=said, data=data) from error
        writer = self.server.writer
        result = _converted(resource, resource_result, uri, resource.mime_type, value, writer)
        return _hinted(result, resource.hints)

    def _found(self, uri: str) -> tuple[RegisteredResource, dict[str, str]]:
        try:
            found = self.registry.find_resource(uri)
        except UriError as error:
            raise self._rejection(INVALID_PARAMS, str(error), {"uri": uri}) from error
        if found is None:
            raise self._rejection(RESOURCE_NOT_FOUND, f"resource not found: {uri}", {"uri": uri})
        return found

    async def subscribe(self, _: Handling, params: types.SubscribeParams) -> types.EmptyResult:
        """Answer `resources/subscribe`; what nobody could read is not found."""
        self._found(params.uri)
        subscribed, limits = self.announcer.subscribed, self.registry.limits
        if params.uri not in subscribed and len(subscribed) >= limits.requests.subscriptions_max:
            subscriptions_max = limits.requests.subscriptions_max
            text = f"too many subscriptions (limits.requests.subscriptions_max={subscriptions_max})"
            raise RequestError(SERVER_BUSY, text)
        subscribed[params.uri] = None
        return types.EmptyResult()

    async def unsubscribe(self, _: Handling, params: types.UnsubscribeParams) -> types.EmptyResult:
        """Answer `resources/unsubscribe`, also of what was not subscribed to."""
        self.announcer.unsubscribe(params.uri)
        return types.EmptyResult()

    async def listen(self, handling: Handling, params: types.ListenParams) -> types.ListenResult:
        """Answer `subscriptions/listen`, at the end of the session."""
        self.subscriptions.check_room(params.notifications)
        capabilities = handling.session.connection.current_capabilities()
        wanted = honoured_filter(params, capabilities, self._is_readable)
        return await self.subscriptions.run(Subscription(self.announcer.notifier, handling, wanted))

    def _is_readable(self, uri: str) -> bool:
        try:
            self._found(uri)
        except RequestError:
            return False
        return True

    async def complete(
        self, handling: Handling, params: types.CompleteParams
    ) -> types.CompleteResult:
        """Answer `completion/complete`; an argument that nobody completes gets no proposals."""
        registry, argument = self.registry, params.argument
        if not registry.completions:
            raise RequestError(METHOD_NOT_FOUND, "method not found: nothing is completed here")
        target = target_of(params.ref)
        arguments = registry.arguments_of(target)
        if arguments is None:
            what = f"unknown {target[0].removesuffix('s')}: {target[1]}"
            raise self._rejection(INVALID_PARAMS, what)
        if argument.name not in arguments:
            raise self._rejection(INVALID_PARAMS, f"unknown argument: {argument.name}")
        completion = registry.completions.get((target, argument.name))
        if completion is None:
            return completion_result(None)
        value = await self._run(completion, handling, params)
        return _converted(completion, completion_result, value)

    async def get_prompt(
        self, handling: Handling, params: types.GetPromptParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        """Answer `prompts/get`."""
        prompt = self.registry.prompts.get(params.name)
        if prompt is None:
            raise self._rejection(INVALID_PARAMS, f"unknown prompt: {params.name}")
        arguments = _decoded(prompt.signature.decode_text, params.arguments or {})
        value = await self._run(prompt, handling, arguments)
        return _converted(prompt, prompt_result, prompt.description, value)

    def _rejection(self, code: int, text: str, data: Any = None) -> RequestError:
        return RequestError(code, self._brief(text), data)

    def _brief(self, text: str) -> str:
        """Cut what quotes the peer: a message is one short sentence (BASE-12)."""
        chars_max = self.registry.limits.messages.error_text_chars_max
        return text if len(text) <= chars_max else f"{text[:chars_max]}…"

    async def _run(
        self,
        registered: Registered,
        handling: Handling,
        arguments: Any,
        limiter: trio.CapacityLimiter | None = None,
    ) -> Any:
        """What a person's handler returns.

        Cancelled while its thread runs: the thread is abandoned, its result is dropped.
        """
        if registered.runs_in_thread:
            return await self._run_in_thread(
                registered, handling, arguments, limiter or self._threads
            )
        signature = registered.signature
        asks = signature.context_parameter is not None
        context = Context(handling, self, limiter) if asks else None
        CURRENT_CONTEXT.set(CurrentContext(handling, self))
        value: Any = signature.handler(**signature.bind(arguments, context))
        return await value if hasattr(value, "__await__") else value

    async def _run_in_thread(
        self,
        registered: Registered,
        handling: Handling,
        arguments: Any,
        limiter: trio.CapacityLimiter,
    ) -> Any:
        lane, sequencer = handling.current_lane(), handling.session.sequencer
        if lane is not None:
            if sequencer.decides_turns:
                await sequencer.turn(lane)
            sequencer.marked(THREAD_MARK, registered.name, lane)
        bridge = Bridge(registered.name, sequencer, lane, handling.scope)
        context = ThreadContext(handling, self, bridge)
        outer = CURRENT_CONTEXT.set(CurrentContext(handling, self, bridge))
        try:
            return await run_in_thread(
                registered.signature.handler,
                registered.signature.bind(arguments, context),
                bridge=bridge,
                limiter=limiter,
            )
        finally:
            abandon_effect(handling)
            bridge.end()
            CURRENT_CONTEXT.reset(outer)  # the caller's, if this is a resource that a handler reads


def _decoded(decode: Callable[[Any], Any], raw: Any) -> Any:
    try:
        return decode(raw)
    except ArgumentsError as error:
        raise RequestError(INVALID_PARAMS, f"invalid arguments: {error}") from error


def _failure(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _hinted(
    result: types.ReadResourceResult | types.InputRequiredResult, hints: CacheHints
) -> types.ReadResourceResult | types.InputRequiredResult:
    """The result with those hints that its handler has not given itself."""
    if isinstance(result, types.InputRequiredResult):  # never kept (CACHE-04)
        return result
    members = hints.members().items()
    left = {name: it for name, it in members if getattr(result, name) is None}
    return msgspec.structs.replace(result, **left)


def _converted(
    registered: Registered, convert: Callable[[*Values], Result], *values: *Values
) -> Result:
    """The result for what a handler returned; no traceback of a fault would name the handler."""
    try:
        return convert(*values)
    except TypeError as error:
        error.add_note(f"in what {registered.name!r} returned")
        raise


def _resource_at(registry: Registry, params: types.ReadResourceParams) -> RegisteredResource | None:
    found = registry.find_resource(params.uri)
    return None if found is None else found[0]


_ENTRIES: Final[dict[str, Callable[[Registry, Any], RegisteredEntry | None]]] = {
    "tools/call": lambda registry, params: registry.tools.get(params.name),
    "prompts/get": lambda registry, params: registry.prompts.get(params.name),
    "resources/read": _resource_at,
}

_Handler = Callable[[Serving, Handling, Any], Awaitable[_Answer]]
_HANDLERS: Final[dict[str, _Handler]] = {
    **dict.fromkeys(LISTS, Serving.list_page),
    "tools/call": Serving.call_tool,
    "resources/read": Serving.read_resource,
    "resources/subscribe": Serving.subscribe,
    "resources/unsubscribe": Serving.unsubscribe,
    LISTEN: Serving.listen,
    "completion/complete": Serving.complete,
    "prompts/get": Serving.get_prompt,
    "logging/setLevel": Serving.set_level,
}
