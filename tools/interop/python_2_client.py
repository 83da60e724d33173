"""The scenario, told by the official Python SDK 2: `python python_2_client.py SERVER COMMAND…`."""

import sys
import warnings
from collections.abc import Awaitable, Callable

import anyio
import mcp_types as types
import scenario
from facts import FACTS
from mcp import ClientSession, MCPDeprecationWarning, MCPError, StdioServerParameters, stdio_client
from mcp.client.session import ClientRequestContext, IncomingMessage
from parties import Host, Json, OnReport, Refused
from pydantic import BaseModel


def wire(value: BaseModel) -> Json:
    """A typed value in the words of the wire."""
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


async def answer(request: Awaitable[BaseModel]) -> Json:
    """The result of a request in the words of the wire, or its refusal."""
    try:
        return wire(await request)
    except MCPError as error:
        raise Refused(error.code, error.message) from error


class Session:
    """See `scenario.Session`."""

    cancels_callbacks = True

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.revision = session.protocol_version
        self.capabilities = wire(session.server_capabilities)

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
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        async def report(progress: float, total: float | None) -> None:
            token = (context.meta or {}).get("progress_token")
            if token is not None:
                await context.session.send_progress_notification(token, progress, total)

        try:
            result = await self.host.sample(wire(params), report)
        except Refused as error:
            return types.ErrorData(code=error.code, message=str(error))
        return types.CreateMessageResult.model_validate(result)

    async def list_roots(self, _context: ClientRequestContext) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in self.host.roots])

    async def hear(self, message: IncomingMessage) -> None:
        if isinstance(message, Exception):
            self.host.complain(message)
        else:
            self.host.hear(message.method, wire(message).get("params"))


async def initialize(session: ClientSession) -> None:
    """Shake hands at the revision that this is about: the SDK itself would offer a newer one."""
    capabilities = types.ClientCapabilities(
        sampling=types.SamplingCapability(), roots=types.RootsCapability(list_changed=True)
    )
    params = types.InitializeRequestParams(
        protocol_version=FACTS.revision,
        capabilities=capabilities,
        client_info=types.Implementation(name="python 2", version="2"),
    )
    request = types.InitializeRequest(params=params)
    session.adopt(await session.send_request(request, types.InitializeResult))
    await session.send_notification(types.InitializedNotification())


async def main(command: str, *args: str) -> None:
    host = Host()
    callbacks = Callbacks(host)
    async with (
        stdio_client(StdioServerParameters(command=command, args=list(args))) as streams,
        ClientSession(
            *streams,
            sampling_callback=callbacks.sample,
            list_roots_callback=callbacks.list_roots,
            message_handler=callbacks.hear,
        ) as session,
    ):
        await initialize(session)
        await scenario.tell(Session(session), host)


if __name__ == "__main__":
    # The newest revision has deprecated much of what this is about.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    anyio.run(main, *sys.argv[1:])
