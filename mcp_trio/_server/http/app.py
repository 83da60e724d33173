"""The application behind every HTTP host: the gate, who asks, and which endpoint answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs
import trio

from mcp_trio._protocol.http.gate import Gate, is_preflight
from mcp_trio._protocol.http.heads import JSON
from mcp_trio._protocol.http.verdicts import Refusal
from mcp_trio._server.connections import verified
from mcp_trio._server.http.asked import Asked, RefusedError
from mcp_trio._server.http.endpoint import McpEndpoint
from mcp_trio._server.http.options import Verify
from mcp_trio._server.http.runtime import Runtime
from mcp_trio._server.http.sse import SseEndpoints
from mcp_trio._server.http.websockets import WebSocketEndpoint
from mcp_trio._transports.http.exchange import Exchange
from mcp_trio._transports.websocket.upgrade import Upgraded

_HEALTH: Final = "/health"
_HEALTHY: Final = b'{"status":"ok"}'

_Route: TypeAlias = Callable[[Asked], Awaitable[None]]


@attrs.define(kw_only=True, eq=False)
class HttpApp:
    """The application; its `respond` is given to a host.

    Attributes:
        runtime: The sessions.
        gate: Who may come at all.
        path: Where the MCP endpoint is.
        verify: Who somebody is; without one nobody is anybody, and all may come.
        streams_answers: Legacy answers are streams also where they could be JSON.
        has_sse: There are the two endpoints of revision 2024-11-05 as well.
        websocket: The endpoint of WebSocket; None: there is none.
    """

    runtime: Runtime
    gate: Gate
    path: str = "/mcp"
    verify: Verify | None = None
    streams_answers: bool = False
    has_sse: bool = True
    websocket: WebSocketEndpoint | None = None
    _routes: Mapping[str, _Route] = attrs.field(init=False)
    _answering: int = attrs.field(default=0, init=False)
    _idle: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def __attrs_post_init__(self) -> None:
        mcp = McpEndpoint(self.runtime, streams_answers=self.streams_answers)
        routes: list[tuple[str, _Route]] = [(_HEALTH, _tell_health), (self.path, mcp.respond)]
        if self.has_sse and self.runtime.endpoint.has_sessions:
            sse = SseEndpoints(self.runtime)
            routes += [("/sse", sse.respond_stream), ("/messages", sse.respond_post)]
        if self.websocket is not None:
            routes.append((self.websocket.door.path, self.websocket.respond))
        _check_paths([path for path, _ in routes])
        self._routes = dict(routes)

    @property
    def upgraded(self) -> Upgraded | None:
        """What is done with who asks for a WebSocket; given to a host as well."""
        return None if self.websocket is None else self.websocket.upgrade

    async def respond(self, exchange: Exchange) -> None:
        """Answer one request; a client that goes away ends it, and nothing else."""
        head = exchange.head
        headers = self.gate.cors_headers(head)
        asked = Asked(exchange, head, headers, self.runtime.server.limits.frame_bytes_max)
        self._answering += 1
        try:
            try:
                await self._respond(asked)
            except RefusedError as error:
                await asked.refuse(error.refusal)
        except trio.BrokenResourceError:
            pass  # its client has gone away
        finally:
            self._answering -= 1
            if self._idle and not self._answering:
                self._idle.unpark_all()

    async def all_answered(self) -> None:
        """Wait until no request is without its answer, to the last frame."""
        while self._answering:
            await self._idle.park()

    # Each coroutine on the way takes its part of each wait: who only chooses gives back the next.

    def _respond(self, asked: Asked) -> Awaitable[None]:
        preflight = self.gate.preflight(asked.head) if is_preflight(asked.head) else None
        if preflight is not None:
            return asked.exchange.answer(204, preflight)
        refusal = self.gate.refusal(asked.head)
        if refusal is not None:
            raise RefusedError(refusal)
        if asked.head.path == _HEALTH:  # who asks that is a balancer, and nobody in particular
            return _tell_health(asked)
        route = self._route(asked.head.path)
        return route(asked) if self.verify is None else _verified(asked, self.verify, route)

    def _route(self, path: str) -> _Route:
        route = self._routes.get(path) or self._routes.get(path.rstrip("/"))
        if route is None:
            text = f"nothing is here; the MCP endpoint is {self.path}"
            raise RefusedError(Refusal(status=404, text=text))
        return route


async def _verified(asked: Asked, verify: Verify, route: _Route) -> None:
    head = await verified(asked.head, verify)
    if isinstance(head, Refusal):
        raise RefusedError(head)
    asked.head = head
    await route(asked)


def _check_paths(paths: Sequence[str]) -> None:
    """Refuse what could not be found, or would hide something else.

    Raises:
        ValueError: It says what.
    """
    for place, path in enumerate(paths):
        if not path.startswith("/"):
            raise ValueError(f"a path begins with a slash: {path!r}")
        if path.rstrip("/") in [each.rstrip("/") for each in paths[:place]]:
            raise ValueError(f"two things cannot be at {path}: {', '.join(paths)}")


async def _tell_health(asked: Asked) -> None:
    """A server that answers is well."""
    await asked.answer(200, [("Content-Type", JSON), ("Cache-Control", "no-store")], _HEALTHY)
