"""The "everything" server on the official Python SDK 1: `python python_1_server.py [http]`."""

import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import python_server
from caller import Question
from everything import Everything
from mcp import McpError, types
from mcp.server.lowlevel import Server
from mcp.server.models import InitializationOptions
from mcp.server.websocket import websocket_server
from pydantic import BaseModel
from request_id_stream import RequestIdStream
from sdk_adapter import Json, Rejected, Report, wire
from starlette.routing import WebSocketRoute

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
NOTIFICATIONS: Final = (
    types.InitializedNotification,
    types.ProgressNotification,
    types.RootsListChangedNotification,
)


class TrackedServer(Server):
    """A server for one session, which notes the ids of its requests."""

    stream: RequestIdStream

    async def run(self, from_client: Any, to_client: Any, *options: Any, **more: Any) -> None:
        self.stream = RequestIdStream(to_client)
        await super().run(from_client, self.stream, *options, **more)

    def create_initialization_options(self, *_: Any) -> InitializationOptions:
        options = super().create_initialization_options(python_server.CHANGES)
        # The SDK always denies subscriptions, even with a handler.
        options.capabilities.resources.subscribe = True
        return options


class Caller(python_server.Caller):
    """The actions of a handler through this SDK; it also cancels requests, as the SDK does not."""

    def __init__(self, server: TrackedServer) -> None:
        context = server.request_context
        protocol_version = str(context.session.client_params.protocolVersion)
        super().__init__(context.session, protocol_version, context.request_id)
        self.meta = context.meta
        self.stream = server.stream

    async def progress(
        self, progress: float, total: float | None, message: str | None = None
    ) -> None:
        token = None if self.meta is None else self.meta.progressToken
        if token is not None:
            await self.session.send_progress_notification(
                token, progress, total, message, self.request_id
            )

    async def request(self, question: Question, report: Report | None = None) -> Json:
        async with self.stream.cancelling(self.session, question.method):
            return await super().request(question, report)


Handler = Callable[[BaseModel], Awaitable[types.ServerResult]]


def handler(everything: Everything, server: TrackedServer) -> Handler:
    """Return the SDK's handler of all requests."""

    async def handle(request: BaseModel) -> types.ServerResult:
        method, result_type = REQUESTS[type(request)]
        params = wire(request).get("params", {})
        try:
            result = await everything.answer(method, params, Caller(server))
        except Rejected as error:
            rejection = types.ErrorData(code=error.code, message=str(error), data=error.data)
            raise McpError(rejection) from error
        return types.ServerResult(result_type.model_validate(result))

    return handle


def make_server() -> TrackedServer:
    everything = Everything()
    server = TrackedServer("everything", version="1")

    async def receive(notification: BaseModel) -> None:
        everything.received.append(notification.method)

    server.request_handlers.update(dict.fromkeys(REQUESTS, handler(everything, server)))
    server.notification_handlers.update(dict.fromkeys(NOTIFICATIONS, receive))
    return server


class Sockets:
    """The ASGI application that serves a session over WebSocket."""

    def __init__(self, server: TrackedServer) -> None:
        self.server = server

    async def __call__(self, *connection: Any) -> None:
        async with websocket_server(*connection) as (from_client, to_client):
            options = self.server.create_initialization_options()
            await self.server.run(from_client, to_client, options)


if __name__ == "__main__":
    running_server = make_server()
    python_server.serve(
        running_server, sys.argv[1:], WebSocketRoute("/ws", Sockets(running_server))
    )
