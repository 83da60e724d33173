"""One task that waits for all connections that rest.

Trio arms its poller anew for each wait, and wakes a task for each descriptor: of a small request on
one of many connections that is an eighth. So what serves connections may `rest`. It is then no
task's any more: one task waits for all of them, by a poller of ours in which each stays armed, and
goes on with one after the other, by hand. Most requests are served in there from their first byte
to their last. What waits for anything else keeps the task, by which Trio knows it, and another task
takes the lookout over; as with what leads, see `leading`.

Each goes on in context variables of its own. It is closed where nobody waits for it any more.

What is ugly: who rests is seen in no tree of tasks, and only Linux has this poller. Elsewhere, or
if the system has no room for one, each is waited for in its task.
"""

import select
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, ClassVar, Final

import attrs
import trio

from mcp_trio._engine.leading import Asked, step
from mcp_trio._transports.resting import Resting

# So many may go on before all other tasks have their turn.
_READY_MAX: Final = 64


class _Ours:
    """What a task does that is no job."""

    __slots__ = ()

    wants_own_task: ClassVar[bool] = False
    is_cancelled: ClassVar[bool] = False

    def enter(self) -> None:
        """See `Job`; it has no variables of its own."""

    def fail(self, error: Exception) -> None:
        """See `Job`; it is our own fault."""
        raise error

    async def end(self) -> None:
        """See `Job`; nobody waits for it."""


@attrs.define(eq=False)
class Serving(_Ours):
    """What serves, in whichever task; while it rests, in none.

    Attributes:
        driven: How far it has come.
        context: Its context variables.
        resting: By what the lookout has it, if it does.
    """

    driven: Coroutine[Any, Any, None]
    context: Context
    resting: Resting | None = attrs.field(default=None, init=False)

    def step(self) -> Asked:
        """Go on, in the variables of its own."""
        return self.context.run(step, self.driven)


@attrs.define(eq=False)
class Lookout(_Ours):
    """What rests, by its descriptor; `is_kept` while some task has the lookout."""

    is_kept: bool = attrs.field(default=False, init=False)
    _resting: dict[int, Serving] = attrs.field(factory=dict[int, Serving], init=False)
    _ready: list[Serving] = attrs.field(factory=list[Serving], init=False)
    _poller: "select.epoll | None" = attrs.field(default=None, init=False)

    def __bool__(self) -> bool:
        """Whether anything rests."""
        return bool(self._resting)

    def add(self, serving: Serving, resting: Resting) -> bool:
        """It rests from now on, also when it has gone on; False if it cannot be looked after."""
        if not hasattr(select, "epoll"):
            return False
        try:
            if self._poller is None:
                self._poller = select.epoll()
            self._poller.register(resting.fd, select.EPOLLIN)
        except OSError:  # no more descriptors, or no more room for what is polled
            return False
        if len(self._resting) == 1:
            self._look_again()
        self._resting[resting.fd], serving.resting = serving, resting
        resting.let_go = partial(self.remove, serving)
        return True

    def remove(self, serving: Serving) -> None:
        """It is about to end, or waits for something else; again does nothing."""
        resting, serving.resting = serving.resting, None
        if resting is None:
            return
        assert self._poller is not None
        resting.let_go = None
        del self._resting[resting.fd]
        self._poller.unregister(resting.fd)
        if not self._resting:
            self._poller.close()
            self._poller = None

    async def next(self) -> Serving | None:
        """Wait for one that can go on; None: not yet. Cancelled, all that rest are as they were."""
        if not self._ready:
            await (self._only_one() if len(self._resting) == 1 else self._any())
        return self._ready.pop() if self._ready else None

    async def _only_one(self) -> None:
        """One is waited for by itself, which costs less."""
        ((fd, serving),) = self._resting.items()
        with suppress(trio.ClosedResourceError):  # it is no longer the only one
            await trio.lowlevel.wait_readable(fd)
            self._ready.append(serving)

    def _look_again(self) -> None:
        (fd,) = self._resting
        trio.lowlevel.notify_closing(fd)

    async def _any(self) -> None:
        assert self._poller is not None
        await trio.lowlevel.wait_readable(self._poller)
        ready = self._poller.poll(0, _READY_MAX)
        self._ready = [self._resting[fd] for fd, _ in ready]

    def close(self) -> None:
        """Nobody waits for them any more."""
        self._ready.clear()
        for serving in [*self._resting.values()]:
            self.remove(serving)
            serving.context.run(serving.driven.close)
