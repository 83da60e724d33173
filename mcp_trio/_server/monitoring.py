"""Endpoints for monitoring systems: `/health`, `/ready` and `/metrics`.

Load balancers send no credentials, so `/health` and `/ready` need none. Anyone who reaches the port
may read them, so they have nothing about sessions, users or paths. `/metrics` has its own port.
"""

from collections.abc import Awaitable, Sequence
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
_METRICS_HEADERS: Final = [("Content-Type", "text/plain; version=0.0.4; charset=utf-8")]
_STORE_SECONDS: Final = 2.0


async def respond_health(runtime: Runtime, exchange: Exchange, headers: Headers = ()) -> None:
    """Answer with status 200: a process that answers is alive.

    A recording that cannot be written is reported, but is no reason to restart the server.
    """
    content = {"status": "ok"}
    if runtime.is_recording_degraded:
        content["recording"] = "degraded"
    await exchange.answer(HTTPStatus.OK, [*_HEADERS, *headers], msgspec.json.encode(content))


async def respond_ready(runtime: Runtime, exchange: Exchange, headers: Headers = ()) -> None:
    """Answer with status 200 if the server can take requests, else 503 with the reasons."""
    status, content = HTTPStatus.OK, dict[str, Any](status="ready")
    if reasons := await _reasons_not_ready(runtime):
        status = HTTPStatus.SERVICE_UNAVAILABLE
        content = {"status": "not ready", "reasons": reasons}
    await exchange.answer(status, [*_HEADERS, *headers], msgspec.json.encode(content))


async def _reasons_not_ready(runtime: Runtime) -> list[str]:
    # While it hands its sessions over, it takes no more connections.
    if runtime.is_closing or runtime.leaving.is_set():
        return ["the server is stopping"]
    if not runtime.has_begun:
        return ["the lifespan has not started yet"]
    shared = runtime.sessions.stores
    stores: dict[str, Any] = {
        "changes": shared.changes,
        "instances": shared.instances,
        "limits": shared.limits,
    }
    if isinstance(runtime.server, ServerSessions):
        stores["states"] = runtime.server.server.states
    reasons: list[str] = []
    for name, store in stores.items():
        if not hasattr(store, "check"):  # it is in the memory of this process
            continue
        try:
            with trio.fail_after(_STORE_SECONDS):
                await store.check()
        except Exception:  # users write stores, which may fail in any way
            reasons.append(f"the store of {name} cannot be reached")
    return reasons


def metrics_of(sessions: SessionSource) -> "Metrics":
    """Return the `Metrics` among the observers of a `Server`; if there is none, add one.

    Raises:
        ImportError: `prometheus-client` is not installed.
    """
    from mcp_trio._observers.metrics import Metrics

    assert isinstance(sessions, ServerSessions)  # bridges and mocks have no port for metrics
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
    from mcp_trio._transports.http_server import serve_native

    host_check = host_check_for([listener.socket.getsockname()[:2] for listener in listeners])

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
            # Until the lifespan is entered, there is no status of recordings.
            metrics.record_status = runtime.record_status
            return exchange.answer(HTTPStatus.OK, _METRICS_HEADERS, metrics.text())
        return exchange.answer(HTTPStatus.NOT_FOUND, ())

    await serve_native(respond, listeners, limits=runtime.server.limits, task_status=task_status)
