"""The tasks of a session, each of which is there while it has something to do.

A session has no task that waits for work. It is given a nursery, and the dispatcher, which is
called with what arrives, starts there what has to be done: a handler for each request (by a task
that may be warm from another one: `warm_tasks.py`), a callback for each notification, and the
session's own **actors**. Those are few:

- the reader, where the channel does not deliver by itself;
- the writer, and who watches it, while something waits to be written;
- what the application does by itself, while it does;
- pings, if they are wished.

So a session over HTTP that rests has no task at all. Actors are gone before the channel is closed,
whatever people's code in the same nursery does.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Any, TypeAlias

import attrs
import trio

from mcp_trio._engine.groups import apart
from mcp_trio._engine.jobs import Job
from mcp_trio._engine.warm_tasks import WarmTasks
from mcp_trio._transports.bell import Bell
from mcp_trio._transports.stopping import tell_when_cancelled

Actor: TypeAlias = Callable[[], Awaitable[None]]


@asynccontextmanager
async def sheltered(on_cancelled: Callable[[], None]) -> AsyncGenerator[WarmTasks]:
    """Tasks of which nobody feels the caller's cancellation; `on_cancelled` is told of it.

    It is called at the end of the block as well.
    """
    async with trio.open_nursery() as outer:
        outer.start_soon(tell_when_cancelled, on_cancelled)
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as inner:
                warm = WarmTasks(inner)
                try:
                    yield warm
                finally:
                    warm.close()
        outer.cancel_scope.cancel()


@attrs.define(eq=False)
class Tasks:
    """Where a session starts its tasks; what was started before `open` begins with it.

    What an actor's transport raises beside a cancellation is told to `on_fault`, and does not
    leave.
    """

    on_fault: Callable[[Exception], None]
    _warm: WarmTasks | None = attrs.field(default=None, init=False)
    _context: Context | None = attrs.field(default=None, init=False)
    _early: tuple[Callable[[], None], ...] = attrs.field(default=(), init=False)
    _acting: tuple[trio.CancelScope, ...] = attrs.field(default=(), init=False)
    _gone: Bell | None = attrs.field(default=None, init=False)

    def open(self, warm: WarmTasks, context: Context) -> None:
        """All tasks are among `warm` from now on, and begin with the context variables `context`.

        Otherwise a handler that waited for a place would begin with those of the one that left it.
        """
        self._warm, self._context = warm, context
        early, self._early = self._early, ()
        for start in early:
            start()

    def start(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Begin a task that ends by itself, or is cancelled by who started it."""
        if self._warm is None or self._context is None:
            self._early = (*self._early, partial(self.start, function, *arguments))
        else:
            self._context.run(self._warm.nursery.start_soon, function, *arguments)

    def run(self, job: Job) -> None:
        """Have a handler run, in a task that may have run others before."""
        if self._warm is None or self._context is None:
            self._early = (*self._early, partial(self.run, job))
        else:
            self._warm.start(job, self._context)

    def act(self, actor: Actor) -> None:
        """Begin an actor."""
        scope = trio.CancelScope()
        self._acting = (*self._acting, scope)
        self.start(self._act, actor, scope)

    async def _act(self, actor: Actor, scope: trio.CancelScope) -> None:
        try:
            with scope:
                try:
                    await actor()
                except BaseExceptionGroup as group:
                    fault, rest = apart(group)
                    if fault is not None:
                        self.on_fault(fault)
                    raise rest from None
        finally:
            self._acting = tuple(each for each in self._acting if each is not scope)
            if self._gone is not None:
                self._gone.ring()

    async def end_actors(self) -> None:
        """Cancel the actors, and wait for their end, shielded."""
        for scope in self._acting:
            scope.cancel()
        self._gone = Bell()
        with trio.CancelScope(shield=True):
            while self._acting:
                await self._gone.wait()
