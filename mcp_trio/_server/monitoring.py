"""Endpoints for monitoring systems: `/health`, `/ready` and `/metrics`.

Anyone who reaches the port may read the first two. So they have nothing about sessions, users or
paths, and need no credentials: load balancers send none. `/metrics` is on a port of its own.
"""

from collections.abc import Awaitable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
import trio

from mcp_trio._protocol.http_headers import JSON, Headers
from mcp_trio._protocol.security import host_check_for
from mcp_trio._server.http_sessions import Runtime
from mcp_trio._server.sessions import ServerSessions, SessionSource
from mcp_trio._transports.http_response import Exchange

if TYPE_CHECKING:
    from mcp_trio._observers.metrics import Metrics

HEALTH: Final = "/health"
READY: Final = "/ready"
METRICS: Final = "/metrics"

_HEADERS: Final[Headers] = [("Content-Type", JSON), ("Cache-Control", "no-store")]
_STORE_SECONDS: Final = 2.0


async def respond_health(runtime: Runtime, exchange: Exchange, headers: Headers = ()) -> None:
    """Answer that the process is alive; a server that answers at all is.

    A recording that cannot be written is named, but is no reason to restart the server.
    """
    content = {"status": "ok"}
    if runtime.is_recording_degraded:
        content["recording"] = "degraded"
    await exchange.answer(HTTPStatus.OK, [*_HEADERS, *headers], msgspec.json.encode(content))


async def respond_ready(runtime: Runtime, exchange: Exchange, headers: Headers = ()) -> None:
    """Answer with status 200 if the server can take requests, else 503 with the reasons."""
    reasons = await _reasons_not_ready(runtime)
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    content = {"status": "not ready", "reasons": reasons} if reasons else {"status": "ready"}
    await exchange.answer(status, [*_HEADERS, *headers], msgspec.json.encode(content))


async def _reasons_not_ready(runtime: Runtime) -> list[str]:
    if runtime.is_closing:
        return ["the server is stopping"]
    if not runtime.has_begun:
        return ["the lifespan has not started yet"]
    shared = runtime.sessions.stores
    stores: dict[str, Any] = {"changes": shared.changes, "instances": shared.instances}
    if isinstance(runtime.server, ServerSessions):
        stores["states"] = runtime.server.server.states
    reasons: list[str] = []
    for name, store in stores.items():
        if not hasattr(store, "check"):  # it is in this process
            continue
        is_reached = False
        with trio.move_on_after(_STORE_SECONDS), suppress(Exception):  # it may fail in any way
            await store.check()
            is_reached = True
        if not is_reached:
            reasons.append(f"the store of {name} cannot be reached")
    return reasons


def metrics_of(sessions: SessionSource) -> "Metrics":
    """Return the `Metrics` among the observers of a server; if there is none, add one.

    Raises:
        ImportError: `prometheus-client` is not installed.
        ValueError: The sessions are not those of a `Server`.
    """
    from mcp_trio._observers.metrics import Metrics

    if not isinstance(sessions, ServerSessions):
        raise ValueError("metrics are those of a Server")  # noqa: TRY004  the option is wrong here
    server = sessions.server
    found = next((each for each in server.observers if isinstance(each, Metrics)), None)
    if found is None:
        found = Metrics()
        server.observers = [*server.observers, found]
    return found


async def serve_metrics(
    runtime: Runtime,
    metrics: "Metrics",
    listeners: Sequence[trio.SocketListener],
    *,
    task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve `/metrics`, `/health` and `/ready` until cancelled; then close the listeners."""
    bound = [listener.socket.getsockname()[:2] for listener in listeners]
    host_check = host_check_for(bound)

    async def respond_metrics(exchange: Exchange) -> None:
        metrics.record_status = runtime.record_status  # None until the lifespan is entered
        text = "text/plain; version=0.0.4; charset=utf-8"
        await exchange.answer(HTTPStatus.OK, [("Content-Type", text)], metrics.text())

    def respond(exchange: Exchange) -> Awaitable[None]:
        rejection = host_check.rejection(exchange.request)
        if rejection is not None:
            return exchange.answer(*rejection.response())
        path = exchange.request.path
        if path == HEALTH:
            return respond_health(runtime, exchange)
        if path == READY:
            return respond_ready(runtime, exchange)
        if path == METRICS:
            return respond_metrics(exchange)
        return exchange.answer(HTTPStatus.NOT_FOUND, ())

    from mcp_trio._transports.http_server import serve_native

    await serve_native(respond, listeners, limits=runtime.server.limits, task_status=task_status)
