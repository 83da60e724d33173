"""A server as an ASGI application, wherever it is mounted.

Nobody has to tell it that it begins: the first request starts its runtime, as a system task of the
Trio run. It ends by a lifespan event, if one comes, by `aclose`, or with the run.
"""

import logging
from collections.abc import Awaitable, Callable

import attrs
import trio

from mcp_trio._server.http.app import HttpApp
from mcp_trio._server.http.runtime import Runtime
from mcp_trio._transports.http.asgi import AsgiHost, Receive, Scope, Send
from mcp_trio._transports.http.exchange import Exchange
from mcp_trio._transports.system_task import Faults, contained
from mcp_trio._transports.websocket.upgrade import Upgrade

logger = logging.getLogger("mcp_trio")


@attrs.define(eq=False)
class MountedApp:
    """The application; `make` makes what serves one Trio run."""

    _make: Callable[[], HttpApp]
    _host: AsgiHost = attrs.field(init=False)
    _app: HttpApp | None = attrs.field(default=None, init=False)
    _starting: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        app = self._make()
        self._host = AsgiHost(
            self._respond,
            limits=app.runtime.server.limits,
            ended=self.aclose,
            upgraded=None if app.websocket is None else self._upgrade,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what an ASGI server asks for."""
        await self._host(scope, receive, send)

    async def _respond(self, exchange: Exchange) -> None:
        app = await self._running()
        await app.respond(exchange)

    async def _upgrade(self, upgrade: Upgrade) -> None:
        app = await self._running()
        assert app.websocket is not None
        await app.websocket.upgrade(upgrade)

    async def _running(self) -> HttpApp:
        """The application with a runtime that runs; that of an earlier Trio run has ended.

        Raises:
            Exception: What the lifespan raises; the next request tries again.
        """
        async with self._starting:
            if self._app is None or self._app.runtime.ended.is_set():
                app = self._make()
                await _started(app.runtime.run)
                self._app = app
            return self._app

    async def aclose(self) -> None:
        """End all sessions, in bounded time; a later request begins anew."""
        app, self._app = self._app, None
        if app is not None:
            app.runtime.close()
            await app.runtime.ended.wait()


async def _started(run: Callable[..., Awaitable[None]]) -> None:
    """Run something as a system task; returns when it has begun, or raises why it has not."""
    begun = trio.Event()
    faults: list[BaseException] = []

    class Status:
        def started(self, _value: Runtime) -> None:
            begun.set()

    def contain(group: Faults) -> None:
        faults.extend(group.exceptions)  # which is one
        if begun.is_set():
            logger.error("the lifespan of a mounted server failed at its end", exc_info=faults[0])

    async def run_contained() -> None:
        try:
            with contained(contain):
                await run(task_status=Status())
        finally:
            begun.set()

    trio.lowlevel.spawn_system_task(run_contained)
    await begun.wait()
    if faults:
        raise faults[0]
