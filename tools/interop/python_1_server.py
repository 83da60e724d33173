"""The "everything" server, by the official Python SDK 1: `python python_1_server.py`."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import anyio
from everything import Everything, Json, Refused, Report
from facts import FACTS
from mcp import McpError, types
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from noted_stream import NotedStream
from pydantic import BaseModel

# The SDK's request, our method, the SDK's result.
REQUESTS: Final[Mapping[type[BaseModel], tuple[str, type[BaseModel]]]] = {
    types.ListToolsRequest: ("tools/list", types.ListToolsResult),
    types.CallToolRequest: ("tools/call", types.CallToolResult),
    types.ListResourcesRequest: ("resources/list", types.ListResourcesResult),
    types.ListResourceTemplatesRequest: (
        "resources/templates/list",
        types.ListResourceTemplatesResult,
    ),
    types.ReadResourceRequest: ("resources/read", types.ReadResourceResult),
    types.SubscribeRequest: ("resources/subscribe", types.EmptyResult),
    types.UnsubscribeRequest: ("resources/unsubscribe", types.EmptyResult),
    types.ListPromptsRequest: ("prompts/list", types.ListPromptsResult),
    types.GetPromptRequest: ("prompts/get", types.GetPromptResult),
    types.CompleteRequest: ("completion/complete", types.CompleteResult),
    types.SetLevelRequest: ("logging/setLevel", types.EmptyResult),
}
HEARD: Final = (
    types.InitializedNotification,
    types.ProgressNotification,
    types.RootsListChangedNotification,
)


class Caller:
    """What the SDK lets a handler do; see `everything.Caller`."""

    def __init__(self, server: Server, stream: NotedStream) -> None:
        self.context = server.request_context
        self.session = server.request_context.session
        self.stream = stream

    async def log(self, level: types.LoggingLevel, data: object) -> None:
        await self.session.send_log_message(level, data)

    async def progress(self, progress: float, total: float | None) -> None:
        token = self.context.meta.progressToken if self.context.meta else None
        if token is not None:
            await self.session.send_progress_notification(token, progress, total)

    async def sample(self, prompt: str, report: Report | None = None) -> str:
        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            await report(progress, total)

        content = types.TextContent(type="text", text=prompt)
        message = types.SamplingMessage(role="user", content=content)
        params = types.CreateMessageRequestParams(messages=[message], maxTokens=FACTS.max_tokens)
        request = types.CreateMessageRequest(params=params)
        async with self.stream.cancelling(self.session, request.method):
            result = await self.session.send_request(
                types.ServerRequest(request),
                types.CreateMessageResult,
                progress_callback=None if report is None else on_progress,
            )
        return result.content.text

    async def list_roots(self) -> list[str]:
        return [str(root.uri) for root in (await self.session.list_roots()).roots]

    async def ping(self) -> None:
        await self.session.send_ping()

    async def notify(self, method: str, params: Json | None = None) -> None:
        message = {"method": method, "params": params}
        await self.session.send_notification(types.ServerNotification.model_validate(message))


Handler = Callable[[BaseModel], Awaitable[types.ServerResult]]


def handler(everything: Everything, server: Server, stream: NotedStream) -> Handler:
    """The SDK's handler of every request."""

    async def handle(request: BaseModel) -> types.ServerResult:
        method, result_type = REQUESTS[type(request)]
        wire = request.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            result = await everything.answer(method, wire.get("params", {}), Caller(server, stream))
        except Refused as error:
            raise McpError(types.ErrorData(code=error.code, message=str(error))) from error
        return types.ServerResult(result_type.model_validate(result))

    return handle


async def main() -> None:
    everything = Everything()
    server = Server("everything", version="1")

    async def hear(notification: BaseModel) -> None:
        everything.heard.append(notification.method)

    async with stdio_server() as (from_client, to_client):
        stream = NotedStream(to_client)
        server.request_handlers.update(dict.fromkeys(REQUESTS, handler(everything, server, stream)))
        server.notification_handlers.update(dict.fromkeys(HEARD, hear))
        changes = NotificationOptions(
            prompts_changed=True, resources_changed=True, tools_changed=True
        )
        options = server.create_initialization_options(changes)
        # The SDK always denies subscriptions, whatever has a handler.
        options.capabilities.resources.subscribe = True
        await server.run(from_client, stream, options)


if __name__ == "__main__":
    anyio.run(main)
