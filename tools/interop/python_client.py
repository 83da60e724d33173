"""The common part of the clients on the official Python SDKs 1 and 2.

Each runs in an environment with its version of `mcp`; `python_1_client.py` and `python_2_client.py`
hold the differences.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import mount_checks
import request_scripts
import scenario
from facts import FACTS, SCRIPT, TOUR, VERSION_MODES, has, is_sse, is_url, is_websocket
from mcp import ClientSession, StdioServerParameters, stdio_client, types
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from pydantic import BaseModel
from sdk_adapter import Host, Json, OnReport, Rejected, no_subscription, subscribed, wire


class Callbacks:
    """The SDK's callbacks, which call the host."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def sample(
        self, context: Any, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResultWithTools | types.ErrorData:
        question = wire(params)

        async def report(progress: float, total: float | None) -> None:
            token = question.get("_meta", {}).get("progressToken")
            if token is not None:
                await context.session.send_progress_notification(token, progress, total)

        try:
            result = await self.host.sample(question, report)
        except Rejected as error:
            return types.ErrorData(code=error.code, message=str(error))
        return types.CreateMessageResultWithTools.model_validate(result)

    async def elicit(self, _context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        return types.ElicitResult.model_validate(await self.host.elicit(wire(params)))

    async def list_roots(self, _context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in self.host.roots])

    async def receive(self, message: object) -> None:
        if isinstance(message, Exception):
            self.host.add_failure(message)
        elif isinstance(message, BaseModel):
            notification = wire(message)
            self.host.receive(notification["method"], notification.get("params"))

    def by_name(self) -> dict[str, Any]:
        """Return the callbacks as keyword arguments of the SDK's session."""
        return {
            "sampling_callback": self.sample,
            "sampling_capabilities": types.SamplingCapability.model_validate({"tools": {}}),
            "elicitation_callback": self.elicit,
            "list_roots_callback": self.list_roots,
            "message_handler": self.receive,
        }


class Session:
    """The adapter of an SDK session or client, which is `calls`; see `sdk_adapter.Session`."""

    name: ClassVar[str]
    version: ClassVar[str]
    rejection: ClassVar[type[Exception]]
    cancels_callbacks: ClassVar[bool]

    calls: Any
    protocol_version: str
    capabilities: Json

    async def answer(self, request: Awaitable[BaseModel]) -> Json:
        """Return the result of a request as JSON, or raise `Rejected`."""
        try:
            return wire(await request)
        except self.rejection as error:
            raise Rejected(error.error.code, error.error.message) from error

    async def page(self, fetch: Callable[..., Awaitable[BaseModel]], cursor: str | None) -> Json:
        params = None if cursor is None else types.PaginatedRequestParams(cursor=cursor)
        return await self.answer(fetch(params=params))

    async def pages(self, fetch: Callable[..., Awaitable[BaseModel]], member: str) -> list[Json]:
        """Return the items of all pages."""
        page = await self.page(fetch, None)
        items = page[member]
        while "nextCursor" in page:
            page = await self.page(fetch, page["nextCursor"])
            items += page[member]
        return items

    async def ping(self) -> None:
        await self.answer(self.calls.send_ping())

    async def set_level(self, level: types.LoggingLevel) -> None:
        await self.answer(self.calls.set_logging_level(level))

    async def list_tools(self) -> list[Json]:
        return await self.pages(self.calls.list_tools, "tools")

    async def call_tool(
        self, name: str, arguments: Json | None = None, report: OnReport | None = None
    ) -> Json:
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            report(progress, total, message)

        progress_callback = None if report is None else on_progress
        return await self.answer(
            self.calls.call_tool(
                name, arguments, progress_callback=progress_callback, **self.options()
            )
        )

    def options(self) -> Json:
        """Return further arguments of a tool call."""
        return {}

    async def list_resources(self) -> list[Json]:
        return await self.pages(self.calls.list_resources, "resources")

    async def list_resource_templates(self) -> list[Json]:
        return await self.pages(self.calls.list_resource_templates, "resourceTemplates")

    async def read_resource(self, uri: str) -> list[Json]:
        return (await self.answer(self.calls.read_resource(uri)))["contents"]

    async def subscribe(self, uri: str) -> None:
        await self.answer(self.calls.subscribe_resource(uri))

    async def unsubscribe(self, uri: str) -> None:
        await self.answer(self.calls.unsubscribe_resource(uri))

    def subscription(self, uri: str) -> AbstractAsyncContextManager[None]:
        return subscribed(self, uri)

    def list_changes(self) -> AbstractAsyncContextManager[None]:
        return no_subscription()

    async def list_prompts(self) -> list[Json]:
        return await self.pages(self.calls.list_prompts, "prompts")

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> list[Json]:
        return (await self.answer(self.calls.get_prompt(name, arguments)))["messages"]

    async def complete(
        self, ref: Json, argument: str, value: str, context: dict[str, str] | None = None
    ) -> list[str]:
        kinds = {
            "ref/prompt": types.PromptReference,
            "ref/resource": types.ResourceTemplateReference,
        }
        reference = kinds[ref["type"]].model_validate(ref)
        given = {"name": argument, "value": value}
        request = self.calls.complete(reference, given, context_arguments=context)
        return (await self.answer(request))["completion"]["values"]

    async def roots_changed(self) -> None:
        await self.calls.send_roots_list_changed()


class HandshakeSession(Session):
    """A session with a handshake at a chosen protocol version."""

    def __init__(self, host: Host, from_server: Any, to_server: Any) -> None:
        self.calls = ClientSession(from_server, to_server, **Callbacks(host).by_name())

    async def initialize(self, protocol_version: str) -> None:
        """Initialize at this protocol version, where the SDK would offer a newer one."""
        params_json = {
            "protocolVersion": protocol_version,
            "capabilities": capabilities_at(protocol_version),
            "clientInfo": {"name": self.name, "version": self.version},
        }
        params = types.InitializeRequestParams.model_validate(params_json)
        request = types.InitializeRequest(params=params)
        self.adopt(await self.calls.send_request(request, types.InitializeResult))
        await self.calls.send_notification(types.InitializedNotification())

    def adopt(self, server: types.InitializeResult) -> None:
        """Store what the server has agreed to."""
        agreed = wire(server)
        self.protocol_version = agreed["protocolVersion"]
        self.capabilities = agreed["capabilities"]


def capabilities_at(protocol_version: str) -> Json:
    """Return all client capabilities of a protocol version."""
    offered: Json = {"sampling": {}, "roots": {"listChanged": True}}
    if has(protocol_version, "elicitation"):
        offered["elicitation"] = {}
    if has(protocol_version, "urls"):
        offered["elicitation"] = {"form": {}, "url": {}}
    if has(protocol_version, "model_tools"):
        offered["sampling"] = {"tools": {}}
    return offered


def process_of(command: Sequence[str]) -> StdioServerParameters:
    return StdioServerParameters(command=command[0], args=list(command[1:]))


def streams_to(server: Sequence[str]) -> AbstractAsyncContextManager[Any]:
    """Return the SDK's streams to a server."""
    if not is_url(server[0]):
        return stdio_client(process_of(server))
    (url,) = server
    if is_websocket(url):
        from mcp.client.websocket import websocket_client  # only the SDK 1 has it

        return websocket_client(url)
    return sse_client(url) if is_sse(url) else streamable_http_client(url)


@asynccontextmanager
async def connected_by_handshake(
    make: type[HandshakeSession], host: Host, protocol_version: str, server: Sequence[str]
) -> AsyncIterator[Session]:
    """Connect to a server by a command or a URL, and initialize the session."""
    async with streams_to(server) as (from_server, to_server, *_):
        session = make(host, from_server, to_server)
        async with session.calls:
            await session.initialize(protocol_version)
            yield session


Connect = Callable[[Host, str, Sequence[str]], AbstractAsyncContextManager[Session]]


async def run_scenario(connect: Connect, mode: str, server: Sequence[str]) -> None:
    """Run what the mode says: see `facts.py`; at a protocol version the scenario."""
    if mode.startswith(SCRIPT):
        folder = Path(mode.removeprefix(SCRIPT))
        host = request_scripts.ScriptHost(folder)
        async with connect(host, FACTS.protocol_version, server) as session:
            await request_scripts.run_script(folder, session, host)
        return
    host = Host()
    protocol_version = mode.removeprefix(TOUR)
    async with connect(host, protocol_version, server) as session:
        if mode in VERSION_MODES:
            await scenario.greet(session)
        elif mode != protocol_version:
            await mount_checks.run(session, host, protocol_version)
        else:
            await scenario.run(session, host, mode)
