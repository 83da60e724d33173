"""A `def` handler in its thread, and the way from there back into the loop.

Nobody can stop a thread. So when its request is over, the thread is abandoned: what it returns is
dropped, and each call that it still makes back into the loop, or is making, is refused.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import attrs
import trio

from mcp_trio._engine import LANE, Lane
from mcp_trio._errors import RequestAbandoned

Result = TypeVar("Result")


@attrs.define(eq=False)
class Bridge:
    """The calls of one handler's thread into the loop, until its request is over.

    They are the handler's own acts, so they happen in its lane, and not in that of the task which
    carries them out.
    """

    lane: Lane | None
    is_abandoned: bool = attrs.field(default=False, init=False)
    _running: trio.CancelScope | None = attrs.field(default=None, init=False)

    def call(self, function: Callable[..., Awaitable[Result]], *args: Any) -> Result:
        """What `function` returns; blocks the thread, and is called there only.

        Raises:
            RequestAbandoned: The request is over, or ended meanwhile.
        """
        try:
            return trio.from_thread.run(self._run, function, args)
        except trio.RunFinishedError:
            raise _over() from None

    async def _run(
        self, function: Callable[..., Awaitable[Result]], args: tuple[Any, ...]
    ) -> Result:
        if self.lane is not None:
            LANE.set(self.lane)
        if not self.is_abandoned:
            with trio.CancelScope() as self._running:
                return await function(*args)
        raise _over()

    def abandon(self) -> None:
        """The request is over: the call that runs now is cancelled, later ones are refused."""
        self.is_abandoned = True
        if self._running is not None:
            self._running.cancel()


def _over() -> RequestAbandoned:
    return RequestAbandoned("the request of this handler is over: nobody waits for its result")


async def run_in_thread(
    handler: Callable[..., Result],
    keywords: Mapping[str, Any],
    *,
    name: str,
    bridge: Bridge,
    limiter: trio.CapacityLimiter,
) -> Result:
    """What the handler returns; waits for one of the limiter's threads first.

    Cancelled: the thread is abandoned at once, but counts for the limiter until it ends.
    """
    try:
        return await trio.to_thread.run_sync(
            functools.partial(_called, handler, keywords),
            abandon_on_cancel=True,
            limiter=limiter,
            thread_name=name,
        )
    finally:
        bridge.abandon()


def _called(handler: Callable[..., Result], keywords: Mapping[str, Any]) -> Result:
    result = handler(**keywords)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            "a `def` handler returned a coroutine: if it decorates an `async def`, functools.wraps"
            " makes that known"
        )
    return result
