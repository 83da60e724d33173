"""The task that a client's session lives in, and the wall between it and everybody else.

A session has a nursery, and a nursery in somebody's `async with` would tie that block to the
session's faults, wrap its exceptions in groups, and forbid closing from another task. So the
session lives in a task of its own, which lets nothing but `Cancelled` out: faults become the loss
that fails the calls in flight, and closing is to shut the session and wait.
"""

import logging
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import TypeAlias

import attrs
import trio

from mcp_trio._client.targets import Served
from mcp_trio._engine import Session, bare
from mcp_trio._errors import ConnectionLost
from mcp_trio._limits import Limits
from mcp_trio._transports.system_task import Faults, contained

logger = logging.getLogger("mcp_trio")

Spawn: TypeAlias = Callable[[Callable[[], Awaitable[None]]], object]


def in_system_task(live: Callable[[], Awaitable[None]]) -> None:
    """Start `live` in a Trio system task, with the context of the caller."""
    trio.lowlevel.spawn_system_task(live, context=copy_context())


@attrs.define(kw_only=True, eq=False)
class Lifetime:
    """A session, and the server object at its other end, if that lives in this process.

    `ended` is set when nothing of either runs any more. `fault` is what went wrong on this side of
    the channel, if anything did: the session may only have seen the channel's end.
    """

    session: Session
    served: Served | None
    ended: trio.Event = attrs.field(factory=trio.Event, init=False)
    fault: ConnectionLost | None = attrs.field(default=None, init=False)
    _task: trio.lowlevel.Task | None = attrs.field(default=None, init=False)
    _nursery: trio.Nursery = attrs.field(init=False)

    async def live(self) -> None:
        """The task: run the session until somebody shuts it or it ends by itself."""
        self._task = trio.lowlevel.current_task()
        try:
            with contained(self._contain):
                await self._live()
        finally:
            self.ended.set()

    async def _live(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self.served is not None:
                nursery.start_soon(self._serve, self.served)
            await self.session.run()
            limits = self._limits
            grace_seconds = limits.drain_seconds + limits.close_seconds
            nursery.cancel_scope.deadline = trio.current_time() + grace_seconds

    def start_soon(self, task: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside the session, which lives; it has to return when that is over."""
        self._nursery.start_soon(task)

    async def over(self) -> None:
        """Wait, shielded, until everything has ended; bounded, since people's code may hang.

        A task of the session itself (a callback) would wait for its own end, and does not.
        """
        if self._holds_current_task():
            return
        seconds_max = _closing_seconds_max(self._limits)
        with trio.move_on_after(seconds_max, shield=True):
            await self.ended.wait()
            return
        logger.error("the session has not ended within %g s: a callback is shielded", seconds_max)

    def _holds_current_task(self) -> bool:
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None and task is not self._task:
            task = None if task.parent_nursery is None else task.parent_nursery.parent_task
        return task is not None

    @property
    def _limits(self) -> Limits:
        return self.session.connection.limits

    async def _serve(self, served: Served) -> None:
        try:
            await served.server.serve(served.channel)
        except Exception as error:
            logger.exception("the server object failed")
            self._lose("the server object failed", bare(error))
        finally:
            await served.channel.aclose()

    def _contain(self, faults: Faults) -> None:
        """Keep as the loss what must not leave this task."""
        logger.error("the session failed", exc_info=faults)
        self._lose("the session failed", faults)

    def _lose(self, what: str, error: BaseException) -> None:
        self.fault = ConnectionLost(f"{what}: {error!r}")
        self.fault.__cause__ = error
        self.session.shut("lost", self.fault)


def _closing_seconds_max(limits: Limits) -> float:
    """More than the steps of closing take: two sessions wind down, channel and journal close."""
    winding_seconds = limits.drain_seconds + 2 * limits.close_seconds
    ladder_seconds = limits.close_seconds + limits.terminate_seconds + limits.kill_seconds
    channel_seconds = ladder_seconds + limits.exit_status_seconds
    return 2 * winding_seconds + channel_seconds + limits.journal_close_seconds
