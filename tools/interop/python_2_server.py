"""The "everything" server, by the official Python SDK 2: `python python_2_server.py`."""

import warnings
from collections.abc import Mapping
from typing import Any, Final

import anyio
import mcp_types as types
from everything import Everything, Json, Refused, Report
from facts import FACTS
from mcp import MCPDeprecationWarning, MCPError
from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import RequestHandler
from mcp.server.stdio import stdio_server
from pydantic import BaseModel, TypeAdapter

PARAMS: Final[Mapping[str, type[BaseModel]]] = {
    "tools/list": types.PaginatedRequestParams,
    "tools/call": types.CallToolRequestParams,
    "resources/list": types.PaginatedRequestParams,
    "resources/templates/list": types.PaginatedRequestParams,
    "resources/read": types.ReadResourceRequestParams,
    "resources/subscribe": types.SubscribeRequestParams,
    "resources/unsubscribe": types.UnsubscribeRequestParams,
    "prompts/list": types.PaginatedRequestParams,
    "prompts/get": types.GetPromptRequestParams,
    "completion/complete": types.CompleteRequestParams,
    "logging/setLevel": types.SetLevelRequestParams,
}
NOTIFICATION: Final = TypeAdapter(types.ServerNotification)


class Caller:
    """What the SDK lets a handler do; see `everything.Caller`."""

    def __init__(self, context: ServerRequestContext) -> None:
        self.session = context.session

    async def log(self, level: types.LoggingLevel, data: object) -> None:
        await self.session.send_log_message(level, data)

    async def progress(self, progress: float, total: float | None) -> None:
        await self.session.report_progress(progress, total)

    async def sample(self, prompt: str, report: Report | None = None) -> str:
        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            await report(progress, total)

        content = types.TextContent(type="text", text=prompt)
        message = types.SamplingMessage(role="user", content=content)
        params = types.CreateMessageRequestParams(messages=[message], max_tokens=FACTS.max_tokens)
        result = await self.session.send_request(
            types.CreateMessageRequest(params=params),
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
        await self.session.send_notification(NOTIFICATION.validate_python(message))


def listener(everything: Everything) -> Any:
    """A middleware that remembers each notification."""

    async def listen(context: ServerRequestContext, call_next: CallNext) -> HandlerResult:
        if context.request_id is None:
            everything.heard.append(context.method)
        return await call_next(context)

    return listen


def handler(everything: Everything, method: str) -> RequestHandler:
    """The SDK's handler of a method."""

    async def handle(context: ServerRequestContext, params: BaseModel) -> Json:
        wire_params = params.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            return await everything.answer(method, wire_params, Caller(context))
        except Refused as error:
            raise MCPError(error.code, str(error)) from error

    return handle


async def main() -> None:
    everything = Everything()
    server = Server("everything", version="2")
    server.middleware.append(listener(everything))
    for method, params in PARAMS.items():
        server.add_request_handler(method, params, handler(everything, method))
    changes = NotificationOptions(prompts_changed=True, resources_changed=True, tools_changed=True)
    async with stdio_server() as (from_client, to_client):
        await server.run(from_client, to_client, server.create_initialization_options(changes))


if __name__ == "__main__":
    # The newest revision has deprecated much of what this is about.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    anyio.run(main)
