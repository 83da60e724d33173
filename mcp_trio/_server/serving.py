"""A server's side of one session: each method's handler, by a table."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import attrs
import msgspec
import trio

from mcp_trio import _schema as s
from mcp_trio._engine import Handling, bare
from mcp_trio._errors import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    RequestError,
    ToolError,
)
from mcp_trio._protocol import Method
from mcp_trio._server.context import Context, LogGate, ThreadContext
from mcp_trio._server.registry import LISTS, Registered, Registry
from mcp_trio._server.results import prompt_result, resource_result, tool_result
from mcp_trio._server.signatures import ArgumentsError
from mcp_trio._server.templates import UriError
from mcp_trio._server.threads import Bridge, run_in_thread

THREAD_MARK: Final = "thread"

Result = TypeVar("Result")


@attrs.define(eq=False)
class Serving:
    """The `Application` of a session: a registry, and what belongs to this session alone."""

    registry: Registry
    lifespan: Any
    _gate: LogGate = attrs.field(factory=LogGate, init=False)
    _threads: trio.CapacityLimiter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._threads = trio.CapacityLimiter(self.registry.limits.threads_max)

    async def handle(self, handling: Handling) -> msgspec.Struct | msgspec.Raw:
        """See `Application.handle`."""
        method = handling.request.method.name
        serve = _HANDLERS.get(method)
        if serve is None:
            raise RequestError(METHOD_NOT_FOUND, f"method not found: {method}")
        return await serve(self, handling, handling.request.params)

    async def notified(self, method: Method, params: Any) -> None:
        """See `Application.notified`; a server has no use for any of them yet."""

    async def list_page(self, handling: Handling, params: s.PaginatedParams) -> msgspec.Raw:
        """Answer any of `LISTS`."""
        return self.registry.page(handling.request.method.name, params.cursor)

    async def set_level(self, _: Handling, params: s.SetLevelParams) -> s.EmptyResult:
        """Answer `logging/setLevel`."""
        self._gate.level = params.level
        return s.EmptyResult()

    async def call_tool(self, handling: Handling, params: s.CallToolParams) -> s.CallToolResult:
        """Answer `tools/call`; a `ToolError` becomes a result with `isError`."""
        tool = self.registry.tools.get(params.name)
        if tool is None:
            raise self._refusal(INVALID_PARAMS, f"unknown tool: {params.name}")
        raw = None if params.arguments is msgspec.UNSET else params.arguments
        arguments = _decoded(tool.signature.decode, raw)
        try:
            value = await self._run(tool, handling, arguments)
            return _converted(tool, functools.partial(tool_result, value))
        except Exception as error:
            failure = bare(error)
            if not isinstance(failure, ToolError):
                raise
            return s.CallToolResult(content=[s.TextContent(text=str(failure))], is_error=True)

    async def read_resource(
        self, handling: Handling, params: s.ReadResourceParams
    ) -> s.ReadResourceResult:
        """Answer `resources/read`."""
        asked = {"uri": params.uri}
        try:
            found = self.registry.find_resource(params.uri)
        except UriError as error:
            raise self._refusal(INVALID_PARAMS, str(error), asked) from error
        if found is None:
            raise self._refusal(RESOURCE_NOT_FOUND, f"resource not found: {params.uri}", asked)
        resource, values = found
        arguments = _decoded(resource.signature.decode_text, values)
        value = await self._run(resource, handling, arguments)
        convert = functools.partial(resource_result, params.uri, resource.mime_type, value)
        return _converted(resource, convert)

    async def get_prompt(self, handling: Handling, params: s.GetPromptParams) -> s.GetPromptResult:
        """Answer `prompts/get`."""
        prompt = self.registry.prompts.get(params.name)
        if prompt is None:
            raise self._refusal(INVALID_PARAMS, f"unknown prompt: {params.name}")
        arguments = _decoded(prompt.signature.decode_text, params.arguments or {})
        value = await self._run(prompt, handling, arguments)
        return _converted(prompt, functools.partial(prompt_result, prompt.description, value))

    def _refusal(self, code: int, text: str, data: Any = None) -> RequestError:
        """What quotes the peer is cut: a message is one short sentence (BASE-12)."""
        chars_max = self.registry.limits.fault_text_chars_max
        return RequestError(code, text if len(text) <= chars_max else f"{text[:chars_max]}…", data)

    async def _run(
        self, registered: Registered, handling: Handling, arguments: msgspec.Struct
    ) -> Any:
        """What a person's handler returns.

        Cancelled while its thread runs: the thread is abandoned, its result is dropped.
        """
        if registered.runs_in_thread:
            return await self._run_in_thread(registered, handling, arguments)
        context = Context(handling, self._gate, self.lifespan)
        signature = registered.signature
        value: Any = signature.handler(**signature.bind(arguments, context))
        return await value if hasattr(value, "__await__") else value

    async def _run_in_thread(
        self, registered: Registered, handling: Handling, arguments: msgspec.Struct
    ) -> Any:
        lane = handling.current_lane()
        if lane is not None:
            handling.session.sequencer.marked(THREAD_MARK, registered.name, lane)
        bridge = Bridge(lane)
        context = ThreadContext(handling, self._gate, self.lifespan, bridge)
        return await run_in_thread(
            registered.signature.handler,
            registered.signature.bind(arguments, context),
            name=registered.name,
            bridge=bridge,
            limiter=self._threads,
        )


def _decoded(decode: Callable[[Any], msgspec.Struct], raw: Any) -> msgspec.Struct:
    try:
        return decode(raw)
    except ArgumentsError as error:
        raise RequestError(INVALID_PARAMS, f"invalid arguments: {error}") from error


def _converted(registered: Registered, convert: Callable[[], Result]) -> Result:
    """The result for what a handler returned; no traceback of a fault would name the handler."""
    try:
        return convert()
    except TypeError as error:
        error.add_note(f"in what {registered.name!r} returned")
        raise


_Handler = Callable[[Serving, Handling, Any], Awaitable[msgspec.Struct | msgspec.Raw]]
_HANDLERS: Final[dict[str, _Handler]] = {
    **dict.fromkeys(LISTS, Serving.list_page),
    "tools/call": Serving.call_tool,
    "resources/read": Serving.read_resource,
    "prompts/get": Serving.get_prompt,
    "logging/setLevel": Serving.set_level,
}
