"""The tasks of a session, and the order in which Trio runs tasks.

The tasks of a session run in its nursery, and are started when they are needed: a handler for each
request, a callback for each notification, and the *actors* of the session itself:

- the reader, if the channel does not deliver messages by itself;
- the writer and its watcher, while messages wait to be written;
- the timer of the requests of this side, from the first one to the next deadline;
- background tasks of the application;
- pings, if they are enabled.

An idle session over HTTP thus has no task at all. All actors have ended before the channel is
closed, even if the user's handlers in the same nursery go on.

The reader, like the task of an HTTP connection, is a *leader* (`leader_followers.py`): it collects
the handlers of the requests that it has read, and runs their first steps itself. A handler that no
leader collects starts in a task of the pool.
"""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import Context
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeAlias

import attrs
import trio

from mcp_trio._session.exceptions import raise_unchanged, split_faults
from mcp_trio._session.leader_followers import Job, Leader, TaskPool
from mcp_trio._transports.concurrency import Wakeup, call_when_cancelled

# Seeded scheduling ------------------------------------------------------------------------------
#
# Trio runs tasks that are ready at the same time in random order, and has no public way to seed it.
# This is the only use of the private flag and random source that Trio's own tests use for that.

_FLAG: Final = "_ALLOW_DETERMINISTIC_SCHEDULING"


@contextmanager
def seeded_schedule(seed: int | str) -> Generator[None]:
    """Enter a context in which `trio.run` runs its tasks in an order that follows from `seed`.

    The seed is global to the process, and must not be used while other threads run Trio.

    Raises:
        RuntimeError: This version of Trio has no such flag.
    """
    scheduler = getattr(getattr(trio, "_core", None), "_run", None)
    random_source = getattr(scheduler, "_r", None)
    if not (isinstance(random_source, random.Random) and hasattr(scheduler, _FLAG)):
        text = f"Trio {trio.__version__} has no seed for the order in which tasks run"
        raise RuntimeError(text)
    assert isinstance(scheduler, ModuleType)
    flag, state = getattr(scheduler, _FLAG), random_source.getstate()
    setattr(scheduler, _FLAG, True)
    random_source.seed(seed)
    try:
        yield
    finally:
        setattr(scheduler, _FLAG, flag)
        random_source.setstate(state)


# Tasks ------------------------------------------------------------------------------------------

Actor: TypeAlias = Callable[[], Awaitable[None]]


@asynccontextmanager
async def open_shielded_pool(on_cancelled: Callable[[], None]) -> AsyncGenerator[TaskPool]:
    """Open a pool of tasks that the caller's cancellation does not cancel.

    `on_cancelled` is called when the caller is cancelled, and at the end of the block.
    """
    async with trio.open_nursery() as outer:
        outer.start_soon(call_when_cancelled, on_cancelled)
        async with trio.open_nursery() as inner:
            # Each recorded effect looks at all scopes up to this one, so there is no other for it.
            inner.cancel_scope.shield = True
            pool = TaskPool(inner)
            try:
                yield pool
            finally:
                pool.close()
        outer.cancel_scope.cancel()


@attrs.define(eq=False, repr=False)
class Tasks:
    """The tasks of a session; those started before `open` begin then.

    `on_error` is called with an error that an actor raises together with a cancellation.
    """

    on_error: Callable[[Exception], None] | None
    _pool: TaskPool | None = attrs.field(default=None, init=False)
    _context: Context | None = attrs.field(default=None, init=False)
    # Tuples, because the many sessions that are idle share the empty one.
    _early: tuple[Callable[[], None], ...] = attrs.field(default=(), init=False)
    _actors: tuple[trio.CancelScope | Leader, ...] = attrs.field(default=(), init=False)
    _actor_ended: Wakeup | None = attrs.field(default=None, init=False)

    def open(self, pool: TaskPool, context: Context) -> None:
        """Start all tasks in `pool` from now on, with the context variables `context`.

        All tasks have the same context, whichever task starts them: the handler that frees a place
        also starts the next handler, which must not inherit its context variables.
        """
        self._pool, self._context = pool, context
        early, self._early = self._early, ()
        for start in early:
            start()

    def start(self, function: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Start a task that ends by itself, or that its starter cancels."""
        if self._pool is None or self._context is None:
            self._early = (*self._early, partial(self.start, function, *arguments))
        else:
            self._context.run(self._pool.nursery.start_soon, function, *arguments)

    def start_job(self, job: Job) -> None:
        """Start a handler: in the leader that collects handlers now, else in a task of the pool."""
        if self._pool is None or self._context is None:
            self._early = (*self._early, partial(self.start_job, job))
        else:
            self._pool.start_job(job, self._context)

    def start_leader(self, function: Actor) -> Leader:
        """Start an actor that is a leader, after `open`."""
        assert self._pool is not None
        assert self._context is not None

        async def run() -> None:
            try:
                await function()
            except BaseExceptionGroup as group:
                self._report(group)
            finally:
                self._remove_actor(leader)

        leader = self._context.run(self._pool.start_leader, run)
        self._actors = (*self._actors, leader)
        return leader

    def start_actor(self, function: Actor) -> None:
        """Start an actor, which `end_actors` cancels unless it ends before."""
        scope = trio.CancelScope()

        async def run() -> None:
            try:
                with scope:
                    try:
                        await function()
                    except BaseExceptionGroup as group:
                        self._report(group)
            finally:
                self._remove_actor(scope)

        self._actors = (*self._actors, scope)
        self.start(run)

    def _report(self, group: BaseExceptionGroup[BaseException]) -> None:
        """Pass the errors in a group to `on_error`, and raise the rest, which is a cancellation.

        The transport of an actor may raise both together.
        """
        error, rest = split_faults(group)
        try:
            if error is not None and self.on_error is not None:
                self.on_error(error)
            if rest is not None:
                raise_unchanged(rest)
        finally:
            del error, rest  # Their tracebacks have this frame.

    def _remove_actor(self, ended: "trio.CancelScope | Leader") -> None:
        self._actors = tuple(each for each in self._actors if each is not ended)
        if self._actor_ended is not None:
            self._actor_ended.wake()

    async def end_actors(self) -> None:
        """Cancel the actors, and wait for their end, shielded."""
        for each in self._actors:
            each.cancel()
        self._actor_ended = Wakeup()
        with trio.CancelScope(shield=True):
            while self._actors:
                await self._actor_ended.wait()
        # It refers to the session, which refers to this object: without this cycle, the session is
        # freed at once, and not by the garbage collector.
        self.on_error = None
