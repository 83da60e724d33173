"""The scenario, told by the official Python SDK 1: `python python_1_client.py SERVER COMMAND…`."""

import sys
from collections.abc import Awaitable, Callable

import anyio
import scenario
from facts import FACTS
from mcp import ClientSession, McpError, StdioServerParameters, stdio_client, types
from mcp.shared.context import RequestContext
from noted_stream import NotedStream
from parties import Host, Json, OnReport, Refused
from pydantic import BaseModel


def wire(value: BaseModel) -> Json:
    """A typed value in the words of the wire."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


async def answer(request: Awaitable[BaseModel]) -> Json:
    """The result of a request in the words of the wire, or its refusal."""
    try:
        return wire(await request)
    except McpError as error:
        raise Refused(error.error.code, error.error.message) from error


class Session:
    """See `scenario.Session`."""

    # The SDK runs callbacks in its reader: it hears of a cancellation when they have returned.
    cancels_callbacks = False

    def __init__(
        self, session: ClientSession, stream: NotedStream, server: types.InitializeResult
    ) -> None:
        self.session = session
        self.stream = stream
        self.revision = server.protocolVersion
        self.capabilities = wire(server.capabilities)

    async def ping(self) -> None:
        await answer(self.session.send_ping())

    async def set_level(self, level: types.LoggingLevel) -> None:
        await answer(self.session.set_logging_level(level))

    async def list_tools(self) -> list[Json]:
        return await pages(self.session.list_tools, "tools")

    async def call_tool(
        self, name: str, arguments: Json | None = None, report: OnReport | None = None
    ) -> Json:
        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            report(progress, total)

        progress_callback = None if report is None else on_progress
        async with self.stream.cancelling(self.session, "tools/call"):
            return await answer(
                self.session.call_tool(name, arguments, progress_callback=progress_callback)
            )

    async def list_resources(self) -> list[Json]:
        return await pages(self.session.list_resources, "resources")

    async def list_resource_templates(self) -> list[Json]:
        return await pages(self.session.list_resource_templates, "resourceTemplates")

    async def read_resource(self, uri: str) -> list[Json]:
        return (await answer(self.session.read_resource(uri)))["contents"]

    async def subscribe(self, uri: str) -> None:
        await answer(self.session.subscribe_resource(uri))

    async def unsubscribe(self, uri: str) -> None:
        await answer(self.session.unsubscribe_resource(uri))

    async def list_prompts(self) -> list[Json]:
        return await pages(self.session.list_prompts, "prompts")

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> list[Json]:
        return (await answer(self.session.get_prompt(name, arguments)))["messages"]

    async def complete(self, ref: Json, argument: str, value: str) -> list[str]:
        kinds = {
            "ref/prompt": types.PromptReference,
            "ref/resource": types.ResourceTemplateReference,
        }
        reference = kinds[ref["type"]].model_validate(ref)
        request = self.session.complete(reference, {"name": argument, "value": value})
        return (await answer(request))["completion"]["values"]

    async def roots_changed(self) -> None:
        await self.session.send_roots_list_changed()


async def pages(fetch: Callable[..., Awaitable[BaseModel]], member: str) -> list[Json]:
    """The items of all pages."""
    page = await answer(fetch())
    items = page[member]
    while "nextCursor" in page:
        page = await answer(fetch(params=types.PaginatedRequestParams(cursor=page["nextCursor"])))
        items += page[member]
    return items


class Callbacks:
    """What the SDK calls, for the host."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def sample(
        self, context: RequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        async def report(progress: float, total: float | None) -> None:
            token = context.meta.progressToken if context.meta else None
            if token is not None:
                await context.session.send_progress_notification(token, progress, total)

        try:
            result = await self.host.sample(wire(params), report)
        except Refused as error:
            return types.ErrorData(code=error.code, message=str(error))
        return types.CreateMessageResult.model_validate(result)

    async def list_roots(self, _context: RequestContext) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in self.host.roots])

    async def hear(self, message: object) -> None:
        if isinstance(message, Exception):
            self.host.complain(message)
        elif isinstance(message, types.ServerNotification):
            self.host.hear(message.root.method, wire(message.root).get("params"))


async def initialize(session: ClientSession) -> types.InitializeResult:
    """Shake hands at the revision that this is about: the SDK itself would offer a newer one."""
    capabilities = types.ClientCapabilities(
        sampling=types.SamplingCapability(), roots=types.RootsCapability(listChanged=True)
    )
    params = types.InitializeRequestParams(
        protocolVersion=FACTS.revision,
        capabilities=capabilities,
        clientInfo=types.Implementation(name="python 1", version="1"),
    )
    request = types.ClientRequest(types.InitializeRequest(params=params))
    result = await session.send_request(request, types.InitializeResult)
    await session.send_notification(types.ClientNotification(types.InitializedNotification()))
    return result


async def main(command: str, *args: str) -> None:
    host = Host()
    callbacks = Callbacks(host)
    parameters = StdioServerParameters(command=command, args=list(args))
    async with stdio_client(parameters) as (from_server, to_server):
        stream = NotedStream(to_server)
        async with ClientSession(
            from_server,
            stream,
            sampling_callback=callbacks.sample,
            list_roots_callback=callbacks.list_roots,
            message_handler=callbacks.hear,
        ) as session:
            server = await initialize(session)
            await scenario.tell(Session(session, stream, server), host)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
