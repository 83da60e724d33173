"""The common part of the "everything" servers on the official Python SDKs 1 and 2."""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import anyio
import uvicorn
from caller import Question, SessionCaller
from mcp import types
from mcp.server.lowlevel import NotificationOptions
from mcp.server.sse import SseServerTransport
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, TypeAdapter
from sdk_adapter import Json, Report, wire
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route

CHANGES: Final = NotificationOptions(
    prompts_changed=True, resources_changed=True, tools_changed=True
)
NOTIFICATION: Final = TypeAdapter(types.ServerNotification)

# The SDK's request, and its result.
QUESTIONS: Final[Mapping[str, tuple[type[BaseModel], type[BaseModel]]]] = {
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResultWithTools),
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
    "ping": (types.PingRequest, types.EmptyResult),
}


class Notifier:
    """The actions of a handler through the SDK without requests, for `caller.Caller`."""

    def __init__(self, session: Any, protocol_version: str, request_id: types.RequestId) -> None:
        self.session = session
        self.protocol_version = protocol_version
        # Messages about a request travel on the stream of its answer.
        self.request_id = request_id

    async def log(self, level: types.LoggingLevel, data: object) -> None:
        await self.session.send_log_message(level, data, related_request_id=self.request_id)

    async def notify(self, method: str, params: Json | None = None) -> None:
        message = {"method": method, "params": params}
        await self.session.send_notification(NOTIFICATION.validate_python(message))


class Caller(Notifier, SessionCaller):
    """The actions of a handler through the SDK in a session, without `progress`."""

    async def request(self, question: Question, report: Report | None = None) -> Json:
        async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
            await report(progress, total)

        request_type, result_type = QUESTIONS[question.method]
        message = {"method": question.method, "params": question.params or None}
        result = await self.session.send_request(
            request_type.model_validate(message),
            result_type,
            metadata=ServerMessageMetadata(related_request_id=self.request_id),
            progress_callback=None if report is None else on_progress,
        )
        return wire(result)


# Serving.


async def serve_stdio(server: Any, *_: BaseRoute) -> None:
    async with stdio_server() as (from_client, to_client):
        await server.run(from_client, to_client, server.create_initialization_options())


async def serve_http(server: Any, *more: BaseRoute) -> None:
    """Serve over HTTP and HTTP+SSE at a free port, and print the URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    manager = StreamableHTTPSessionManager(app=server)
    async with manager.run():
        config = uvicorn.Config(_app(server, manager, more), log_level="warning")
        await uvicorn.Server(config).serve([listener])


class Events:
    """The ASGI application that serves a session over HTTP+SSE."""

    def __init__(self, server: Any, transport: SseServerTransport) -> None:
        self.server = server
        self.transport = transport

    async def __call__(self, *connection: Any) -> None:
        async with self.transport.connect_sse(*connection) as (from_client, to_client):
            options = self.server.create_initialization_options()
            await self.server.run(from_client, to_client, options)


def _app(
    server: Any, manager: StreamableHTTPSessionManager, more: Sequence[BaseRoute]
) -> Starlette:
    sse = SseServerTransport("/messages/")
    return Starlette(
        routes=[
            Route("/mcp", manager.asgi_app),
            Route("/sse", Events(server, sse), methods=["GET"]),
            Mount("/messages/", sse.handle_post_message),
            *more,
        ]
    )


SERVE: Final[Mapping[str, Callable[..., Awaitable[None]]]] = {
    "stdio": serve_stdio,
    "http": serve_http,
}


def serve(server: Any, arguments: list[str], *more: BaseRoute) -> None:
    """Serve over the transport that the arguments name, or over stdio."""
    (transport,) = arguments or ["stdio"]
    anyio.run(SERVE[transport], server, *more)
