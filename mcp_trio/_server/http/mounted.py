"""A server as an ASGI application, wherever it is mounted.

Nobody has to tell it that it begins: the first request starts its runtime, as a system task of the
Trio run. It ends by a lifespan event, if one comes, by `aclose`, or with the run.
"""

import logging
from collections.abc import Callable

import attrs
import trio

from mcp_trio._server.http.app import HttpApp
from mcp_trio._transports.http.asgi import AsgiHost, Receive, Scope, Send
from mcp_trio._transports.http.exchange import Exchange
from mcp_trio._transports.system_task import Faults, contained
from mcp_trio._transports.websocket.upgrade import Upgrade

logger = logging.getLogger("mcp_trio")


@attrs.define(eq=False)
class _Life:
    """An application in a system task of its own, so that nobody who waits for it can end it.

    Attributes:
        app: The application.
        begun: Set when its runtime runs, or never will.
        fault: Why it never will.
    """

    app: HttpApp
    begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    fault: BaseException | None = attrs.field(default=None, init=False)

    def started(self, value: object = None) -> None:  # noqa: ARG002  that it runs is enough
        """See `trio.TaskStatus`."""
        self.begun.set()

    async def live(self) -> None:
        """The task."""
        try:
            with contained(self._contain):
                await self.app.runtime.run(task_status=self)
        finally:
            self.begun.set()

    def _contain(self, faults: Faults) -> None:
        fault = faults.exceptions[0]  # there is one
        if self.begun.is_set():
            logger.error("the lifespan of a mounted server failed at its end", exc_info=fault)
        else:
            self.fault = fault

    async def running(self) -> HttpApp:
        """The application, when it runs.

        Raises:
            Exception: What the lifespan raises.
        """
        await self.begun.wait()
        if self.fault is not None:
            raise self.fault
        return self.app

    async def end(self) -> None:
        """Wind it down; returns when nothing of it runs."""
        self.app.runtime.close()
        await self.app.runtime.ended.wait()


@attrs.define(eq=False)
class MountedApp:
    """The application; `make` makes what serves one Trio run."""

    _make: Callable[[], HttpApp]
    _host: AsgiHost = attrs.field(init=False)
    _life: _Life | None = attrs.field(default=None, init=False)

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

        Cancelled: it goes on to begin, for whoever comes next.

        Raises:
            Exception: What the lifespan raises; the next request tries again.
        """
        life = self._life
        if life is None or life.app.runtime.ended.is_set():
            life = self._life = _Life(self._make())
            trio.lowlevel.spawn_system_task(life.live)
        return await life.running()

    async def aclose(self) -> None:
        """End all sessions, in bounded time; a later request begins anew."""
        life, self._life = self._life, None
        if life is not None:
            await life.end()
