"""The "everything" server on the official Python SDK 2: `python python_2_server.py [http]`."""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final

import caller
import python_server
from everything import Everything
from facts import has
from mcp import MCPDeprecationWarning, MCPError, types
from mcp.server import Server, ServerRequestContext
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import RequestHandler
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from pydantic import BaseModel
from sdk_adapter import Json, Rejected, wire

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


# Published where there is no session, by the notification that they become.
EVENTS: Final[Mapping[str, Callable[..., ServerEvent]]] = {
    "notifications/tools/list_changed": ToolsListChanged,
    "notifications/prompts/list_changed": PromptsListChanged,
    "notifications/resources/list_changed": ResourcesListChanged,
    "notifications/resources/updated": ResourceUpdated,
}
CACHED: Final = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)
BUS: Final = InMemorySubscriptionBus()


class Caller(python_server.Caller):
    """The actions of a handler through this SDK in a session."""

    async def progress(
        self, progress: float, total: float | None, message: str | None = None
    ) -> None:
        await self.session.report_progress(progress, total, message)


class InputRequiredCaller(python_server.Notifier, caller.InputRequiredCaller):
    """The actions of a handler through this SDK without a session."""

    def __init__(self, params: Json, *session_facts: Any) -> None:
        python_server.Notifier.__init__(self, *session_facts)
        caller.InputRequiredCaller.__init__(self, params)

    progress = Caller.progress

    async def notify(self, method: str, params: Json | None = None) -> None:
        await BUS.publish(EVENTS[method](**(params or {})))


def caller_of(context: ServerRequestContext, params: Json) -> caller.Caller:
    session_facts = context.session, context.protocol_version, context.request_id
    is_session = has(context.protocol_version, "sessions")
    return Caller(*session_facts) if is_session else InputRequiredCaller(params, *session_facts)


def listener(everything: Everything) -> Any:
    """Return a middleware that keeps the method of each notification."""

    async def listen(context: ServerRequestContext, call_next: CallNext) -> HandlerResult:
        if context.request_id is None:
            everything.received.append(context.method)
        return await call_next(context)

    return listen


def handler(everything: Everything, method: str) -> RequestHandler:
    """Return the SDK's handler of a method."""

    async def handle(context: ServerRequestContext, params: BaseModel) -> Json:
        params_json = wire(params)
        is_session = has(context.protocol_version, "sessions")
        try:
            result = await everything.answer(method, params_json, caller_of(context, params_json))
        except Rejected as error:
            raise MCPError(error.code, str(error), error.data) from error
        return result if is_session else {"resultType": "complete", **result}

    return handle


class ChangingServer(Server):
    """A server whose lists have `listChanged`."""

    def create_initialization_options(self, *_: Any) -> InitializationOptions:
        return super().create_initialization_options(python_server.CHANGES)


def make_server() -> Server:
    """Return the server, for one session or for all stateless requests."""
    everything = Everything()
    server = ChangingServer(
        "everything",
        version="2",
        on_subscriptions_listen=ListenHandler(BUS),
        cache_hints=dict.fromkeys(CACHED, CacheHint(ttl_ms=0, scope="private")),
    )
    server.middleware.append(listener(everything))
    for method, params in PARAMS.items():
        server.add_request_handler(method, params, handler(everything, method))
    return server


if __name__ == "__main__":
    # The newest protocol version deprecates some of the tested features.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
    python_server.serve(make_server(), sys.argv[1:])
