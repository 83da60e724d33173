"""The "everything" server, by the official Python SDK 2: `python python_2_server.py`."""

import warnings
from collections.abc import Mapping
from typing import Any, Final

import anyio
import python_server
from everything import Everything
from mcp import MCPDeprecationWarning, MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import RequestHandler
from mcp.server.stdio import stdio_server
from parties import Json, Refused
from pydantic import BaseModel
from python_words import wire

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


class Caller(python_server.Caller):
    """What this SDK lets a handler do."""

    async def progress(self, progress: float, total: float | None) -> None:
        await self.session.report_progress(progress, total)


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
        try:
            return await everything.answer(method, wire(params), Caller(context.session))
        except Refused as error:
            raise MCPError(error.code, str(error)) from error

    return handle


async def main() -> None:
    everything = Everything()
    server = Server("everything", version="2")
    server.middleware.append(listener(everything))
    for method, params in PARAMS.items():
        server.add_request_handler(method, params, handler(everything, method))
    options = server.create_initialization_options(python_server.CHANGES)
    async with stdio_server() as (from_client, to_client):
        await server.run(from_client, to_client, options)


if __name__ == "__main__":
    # The newest revision has deprecated much of what this is about.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    anyio.run(main)
