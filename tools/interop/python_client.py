"""A client by either official Python SDK, as far as the two are used alike.

`python_1_client` and `python_2_client` say what is different. They run in environments of their
own, each with its version of `mcp`; what is imported of it here, both have.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import scenario
from facts import FACTS
from mcp import ClientSession, StdioServerParameters, stdio_client, types
from parties import Host, Json, OnReport, Refused
from pydantic import BaseModel
from python_words import wire


class Callbacks:
    """What the SDK calls, for the host."""

    def __init__(self, host: Host) -> None:
        self.host = host

    async def sample(
        self, context: Any, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.ErrorData:
        question = wire(params)

        async def report(progress: float, total: float | None) -> None:
            token = question.get("_meta", {}).get("progressToken")
            if token is not None:
                await context.session.send_progress_notification(token, progress, total)

        try:
            result = await self.host.sample(question, report)
        except Refused as error:
            return types.ErrorData(code=error.code, message=str(error))
        return types.CreateMessageResult.model_validate(result)

    async def list_roots(self, _context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in self.host.roots])

    async def hear(self, message: object) -> None:
        if isinstance(message, Exception):
            self.host.complain(message)
        elif isinstance(message, BaseModel):
            notification = wire(message)
            self.host.hear(notification["method"], notification.get("params"))


class Session:
    """See `parties.Session`; `name` and `version` are what the server is told of the client."""

    name: ClassVar[str]
    version: ClassVar[str]
    refusal: ClassVar[type[Exception]]
    cancels_callbacks: ClassVar[bool]

    def __init__(self, host: Host, from_server: Any, to_server: Any) -> None:
        callbacks = Callbacks(host)
        self.session = ClientSession(
            from_server,
            to_server,
            sampling_callback=callbacks.sample,
            list_roots_callback=callbacks.list_roots,
            message_handler=callbacks.hear,
        )

    async def initialize(self) -> None:
        """Shake hands at the revision that this is about: the SDK would offer a newer one."""
        words = {
            "protocolVersion": FACTS.revision,
            "capabilities": {"sampling": {}, "roots": {"listChanged": True}},
            "clientInfo": {"name": self.name, "version": self.version},
        }
        params = types.InitializeRequestParams.model_validate(words)
        request = types.InitializeRequest(params=params)
        self.adopt(await self.session.send_request(request, types.InitializeResult))
        await self.session.send_notification(types.InitializedNotification())

    def adopt(self, server: types.InitializeResult) -> None:
        """The server has agreed."""
        agreed = wire(server)
        self.revision: str = agreed["protocolVersion"]
        self.capabilities: Json = agreed["capabilities"]

    async def answer(self, request: Awaitable[BaseModel]) -> Json:
        """The result of a request in the words of the wire, or its refusal."""
        try:
            return wire(await request)
        except self.refusal as error:
            raise Refused(error.error.code, error.error.message) from error

    async def pages(self, fetch: Callable[..., Awaitable[BaseModel]], member: str) -> list[Json]:
        """The items of all pages."""
        page = await self.answer(fetch())
        items = page[member]
        while "nextCursor" in page:
            params = types.PaginatedRequestParams(cursor=page["nextCursor"])
            page = await self.answer(fetch(params=params))
            items += page[member]
        return items

    async def ping(self) -> None:
        await self.answer(self.session.send_ping())

    async def set_level(self, level: types.LoggingLevel) -> None:
        await self.answer(self.session.set_logging_level(level))

    async def list_tools(self) -> list[Json]:
        return await self.pages(self.session.list_tools, "tools")

    async def call_tool(
        self, name: str, arguments: Json | None = None, report: OnReport | None = None
    ) -> Json:
        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            report(progress, total)

        progress_callback = None if report is None else on_progress
        return await self.answer(
            self.session.call_tool(name, arguments, progress_callback=progress_callback)
        )

    async def list_resources(self) -> list[Json]:
        return await self.pages(self.session.list_resources, "resources")

    async def list_resource_templates(self) -> list[Json]:
        return await self.pages(self.session.list_resource_templates, "resourceTemplates")

    async def read_resource(self, uri: str) -> list[Json]:
        return (await self.answer(self.session.read_resource(uri)))["contents"]

    async def subscribe(self, uri: str) -> None:
        await self.answer(self.session.subscribe_resource(uri))

    async def unsubscribe(self, uri: str) -> None:
        await self.answer(self.session.unsubscribe_resource(uri))

    async def list_prompts(self) -> list[Json]:
        return await self.pages(self.session.list_prompts, "prompts")

    async def get_prompt(self, name: str, arguments: dict[str, str] | None = None) -> list[Json]:
        return (await self.answer(self.session.get_prompt(name, arguments)))["messages"]

    async def complete(self, ref: Json, argument: str, value: str) -> list[str]:
        kinds = {
            "ref/prompt": types.PromptReference,
            "ref/resource": types.ResourceTemplateReference,
        }
        reference = kinds[ref["type"]].model_validate(ref)
        request = self.session.complete(reference, {"name": argument, "value": value})
        return (await self.answer(request))["completion"]["values"]

    async def roots_changed(self) -> None:
        await self.session.send_roots_list_changed()


@asynccontextmanager
async def connect(
    make: type[Session], host: Host, command: Sequence[str]
) -> AsyncIterator[Session]:
    """An SDK's session with the server that a command starts."""
    parameters = StdioServerParameters(command=command[0], args=list(command[1:]))
    async with stdio_client(parameters) as streams:
        session = make(host, *streams)
        async with session.session:
            await session.initialize()
            yield session


async def tell_scenario(make: type[Session], command: Sequence[str]) -> None:
    """Tell the scenario to the server that a command starts."""
    host = Host()
    async with connect(make, host, command) as session:
        await scenario.tell(session, host)
