"""The client that people hold: the calls of one conversation with one server."""

from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar, Unpack, overload

import attrs
import trio

from mcp_trio import _schema as s
from mcp_trio._client.cache import CacheKey, cache_key
from mcp_trio._client.conversation import Conversation
from mcp_trio._client.failures import elicitation_ids, error_text, is_of_missing_resource
from mcp_trio._client.listening import (
    LISTS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Subscription,
    listening,
    wishes,
)
from mcp_trio._client.options import CallOptions, shortest_seconds
from mcp_trio._client.pages import read_pages
from mcp_trio._client.params import call_tool_params, complete_params, get_prompt_params
from mcp_trio._client.roots import Roots
from mcp_trio._client.rounds import Rounds
from mcp_trio._client.targets import has_url
from mcp_trio._client.tools import typed
from mcp_trio._engine import ProgressCallback
from mcp_trio._errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    ConnectionLost,
    LocalProtocolError,
    OutcomeUnknown,
    RequestError,
    ResourceNotFound,
    ToolError,
)
from mcp_trio._protocol import DISCOVER, PING, REVISIONS, ParamsToSend

T = TypeVar("T")


@attrs.define(eq=False, repr=False)
class Client(Conversation):
    """A conversation with the server at `target`; `async with Client(target) as client:` has it.

    `target` is a URL, a command (`["python", "server.py"]`), a `ServerConfig`, a server object, or
    a channel. The session lives in a task of its own: exceptions of the block arrive as they are,
    and a server that dies fails the calls in flight and nothing else. Leaving a cancel scope round
    a call cancels the handler at the server. A client connects once.

    Callbacks are functions, async or not. One that raises is logged, or is the error that the
    server gets, and ends nothing but itself; only `progress` raises into the call that it is for.

    Attributes:
        name: Who we say that we are, with `version`.
        revisions: The names of the revisions that are spoken; those of servers without a handshake
            are tried first.
        limits: What the session may cost; the time-outs are among them.
        record: Where the session is recorded: a file, a folder for a file of its own, or what
            `mcp_trio.recording` has to say more: `RecordOptions`, `SharedRecording`. One file
            holds all sessions of a client that comes back, each as a channel.
        restart: Whether a command, or a server object, that has ended is started again by the next
            call; what only reads, and was lost with it, is then asked for once more. A URL is
            connected to again in any case.
        cache: Whether what a modern server says may be kept is kept, for as long as it says.
        raise_tool_errors: Whether `call_tool` raises `ToolError`.
        env: For a command: variables that it gets besides the few that are inherited.
        inherit_env: For a command: whether it inherits all our variables.
        cwd: For a command: the folder that it starts in.
        http: For a URL: what sends the requests, with its proxies, certificates, authorization and
            the time that connecting may take; it is not closed here.
        headers: For a URL: what goes along with each request.
        token: For a URL: goes along as `Authorization: Bearer`; a WebSocket offers it as a
            subprotocol, too.
        ssl_context: For `wss://`: whom to trust, if not whom the system trusts.
        state_changed: Called with how the connection stands, and why.
        eras: For a URL: what remembers the eras of servers; by default, all clients of a Trio run.
        stderr: For a command: a function for each line of its stderr, or "inherit" for ours.
        progress: Called with the reports of every `call_tool` that brings no callback of its own.
        log: Called with the server's log messages.
        log_level: From which level on the server is to log for us; if it is not said, a modern
            server is to log everything if there is a `log`, and else nothing.
        resource_updated: Called when a resource that was subscribed to has changed.
        list_changed: Called with "tools", "resources" or "prompts" when that list has changed.
        roots: The places that the server may work in, as `Root`, `file://` URI or path: a list, or
            a function that gives one whenever the server asks.
        sampling: Asks a model on behalf of the server; `UserRejected` says no. With a second
            parameter it gets a function that reports its progress to the server.
        sampling_tools: Whether `sampling` takes tools for the model.
        elicitation: Asks the user on behalf of the server, by a form or a URL; what it returns is
            an `ElicitResult`, whether they agree, or the form as a mapping or a typed value.
        elicitation_modes: How it can ask: "form", "url", or both.
        elicitation_complete: Called with the id of a visit to a URL that is over.
        trace: Called for each request: the trace that it belongs to, as `traceparent`, `tracestate`
            and `baggage`; anything else that it gives is left out.
        extensions: The extensions that we support, and their settings, by identifier.
        methods: Methods of the server's own, for `request`, with the types of their results; None
            for a notification.

    Raises:
        TypeError: `roots` is no list and no function, or msgspec cannot decode a type of `methods`.
        ValueError: A root in the list has no `file://` URI, `methods` has one of the protocol, a
            revision is unknown, an identifier has no prefix, or nothing could be started again.
    """

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
        """The server's typed result of any request; all calls go through here.

        The params are a struct of the protocol, or a mapping with the names of the wire.
        Cancelled, or out of time: the server is told, and its late answer only counted. The budgets
        default to `request_idle_seconds` (starts again with each report) and
        `request_total_seconds`. `progress` is called in this task; what it raises arrives here.

        A modern server may ask something before it gives its result. Our callbacks answer in this
        task, and the request is sent again, at most `rounds_max` times; what they raise arrives
        here. Without `rounds` the result is then an `InputRequiredResult`, and the rest is yours.

        Raises:
            RequestError: The server answered with an error.
            RequestTimeout: A budget ran out. The total is that of all rounds, without the answers.
            ConnectionLost: The session ended first, or had ended.
            OutcomeUnknown: The answer is over `frame_bytes_max`, or the connection broke.
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
        if not (rounds and isinstance(result, s.InputRequiredResult)):
            return result
        whole = Rounds(
            method=method,
            send=send,
            answer=self._callbacks.answer,
            capabilities=self._callbacks.capabilities(),
            revision=REVISIONS[self.revision],
            limits=self.limits,
            total_seconds=total_seconds,
        )
        return await whole.run(params, result, taken_seconds=trio.current_time() - started)

    async def _send(self, method: str, params: ParamsToSend | None, **options: Any) -> Any:
        """The result of one request, from the cache if it is fresh there."""
        key = self._cache_key(method, params)
        if key is None:
            return await self._ask(method, params, options)
        kept = self._cache.fresh(key, trio.current_time())
        if kept is not None:
            await trio.lowlevel.checkpoint()
            return kept
        changes = self._cache.changes
        result = await self._ask(method, params, options)
        if isinstance(result, s.CacheableResult):
            self._cache.keep(key, result, now=trio.current_time(), changes=changes)
        return result

    def _cache_key(self, method: str, params: ParamsToSend | None) -> CacheKey | None:
        """Only modern servers say for how long a result holds."""
        return cache_key(method, params) if self.cache and self._is_modern else None

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
        """What was lost may have been done: only what changes nothing is asked for again."""
        row = self._methods.get(method)
        is_chosen = self.restart or (has_url(self.target) and self._begins_again)
        return is_chosen and row is not None and row.is_cacheable

    def _did_nothing(self, loss: ConnectionLost) -> bool:
        """Whether the request came nowhere, or to a server that said that its session is over."""
        is_unsure = isinstance(loss, OutcomeUnknown) or loss.http_status is not None
        return has_url(self.target) and self._begins_again and not is_unsure

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

        One page alone is `await client.request("tools/list", {"cursor": cursor})`. From now on the
        results of tools with an output schema are checked against that.
        """
        tools = await self._list("tools/list", "tools", options)
        self._outputs.learn(tools)
        return tools

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

    @overload
    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        raise_tool_errors: bool | None = None,
        **options: Unpack[CallOptions],
    ) -> s.CallToolResult: ...

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
        """What a tool gave back; with `result_type` a value of that type, made of what it gave.

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

    async def _called(self, params: s.CallToolParams, options: CallOptions) -> s.CallToolResult:
        """What came of a call; one whose arguments were mirrored as an old list said, of another.

        Servers refuse the first before they do anything (HDR-32, TRAP-52).
        """
        result: s.CallToolResult
        try:
            result = await self.request("tools/call", params, **options)
        except RequestError as error:
            if error.code != HEADER_MISMATCH:
                raise
            self._cache.forget("tools/list")
            await self.list_tools()
            result = await self.request("tools/call", params, **options)
        return result

    async def read_resource(self, uri: str, **options: Unpack[CallOptions]) -> s.ReadResourceResult:
        """The contents of a resource.

        Raises:
            ResourceNotFound: The server says, by either code, that there is none (ERR-05).
        """
        params = s.ReadResourceParams(uri=uri)
        try:
            result: s.ReadResourceResult = await self.request("resources/read", params, **options)
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
    ) -> s.GetPromptResult:
        """A prompt, filled in.

        Raises:
            TypeError: An argument is not text (PROM-04).
        """
        params = get_prompt_params(name, arguments)
        result: s.GetPromptResult = await self.request("prompts/get", params, **options)
        return result

    async def complete(
        self,
        ref: s.Reference | str,
        argument: str,
        value: str,
        *,
        context: Mapping[str, str] | None = None,
        **options: Unpack[CallOptions],
    ) -> s.CompleteResult:
        """How `value`, typed so far for an argument of `ref`, could go on.

        `ref` may be text: the URI template of a resource, known by its "://", or a prompt's name.
        `context` are the arguments that have their values already; older servers do not get it.

        Raises:
            LocalProtocolError: The server does not offer completions; not all revisions can tell.
        """
        if REVISIONS[self.revision].announces_completions and not self.server_can("completions"):
            raise LocalProtocolError("the server capability 'completions' is not announced")
        params = complete_params(ref, argument, value, context)
        result: s.CompleteResult = await self.request("completion/complete", params, **options)
        return result

    async def ping(self, **options: Unpack[CallOptions]) -> None:
        """Returns when the server has answered; a modern one is asked what it speaks."""
        self._cache.forget(DISCOVER)  # it is the answer that counts
        await self.request(DISCOVER if self._is_modern else PING, **options)

    async def set_log_level(self, level: s.LoggingLevel, **options: Unpack[CallOptions]) -> None:
        """From now on the server logs only what is at least as severe.

        A modern server hears of it with each request.
        """
        if not self._is_modern:
            await self.request("logging/setLevel", s.SetLevelParams(level=level), **options)
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
        """Hear of changes at a modern server: of its lists, and of the resources at `uris`.

        `async with client.listen(tools=True) as subscription: async for change in subscription: …`.
        What the server left out of the wishes is `subscription.left_out`. Nothing is told of what
        changed before: ask anew for what was kept. A stream that breaks is begun again, and then
        all that it is about comes as `missed`. The callbacks of the client need none of this.

        Raises:
            RequestTimeout: The server has not acknowledged within `request_idle_seconds`.
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
        """From now on `resource_updated` is called when the resource changes.

        Raises:
            ResourceNotFound: A modern server does not tell of changes of the resource.
        """
        session = await self._living_session()
        if not self._is_modern:
            await self.request(SUBSCRIBE, s.SubscribeParams(uri=uri), **options)
            self._listening.remember(uri)
        elif self.server_can("resources.subscribe"):
            await self._listening.add(session, uri, seconds=shortest_seconds(options))
        else:
            raise LocalProtocolError("the server does not announce 'resources.subscribe'")

    async def unsubscribe(self, uri: str, **options: Unpack[CallOptions]) -> None:
        """The end of a subscription."""
        session = await self._living_session()
        if self._is_modern:
            await self._listening.remove(session, uri, seconds=shortest_seconds(options))
        else:
            await self.request(UNSUBSCRIBE, s.UnsubscribeParams(uri=uri), **options)
            self._listening.forget(uri)

    async def set_roots(self, roots: Roots) -> None:
        """Replace the roots, and tell a legacy server to ask for them again.

        Raises:
            TypeError, ValueError: As making a client; the old ones stay.
            LocalProtocolError: The client was made without `roots`, and so cannot have any.
            ConnectionLost: The session has ended.
        """
        session = self._session
        self._replace_roots(roots)
        if not self._is_modern:
            await session.notify(_ROOTS_CHANGED)

    async def notify_roots_changed(self) -> None:
        """Tell the server to ask for the roots again, after a change of the list that was given.

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
            pages_max=self.limits.pages_max,
        )
        try:
            return await read()
        except RequestError as error:
            # The cursor of a page that was kept is none any more (CACHE-18).
            if error.code != INVALID_PARAMS or not self._cache.forget(method):
                raise
        return await read()


_ROOTS_CHANGED: Final = "notifications/roots/list_changed"
