"""`def` handlers in threads, and their calls back into the event loop.

A thread cannot be cancelled. When its request is over, the thread is abandoned: its result is
dropped, and every call that it makes into the event loop raises `RequestAbandoned`.

A replay runs each handler in a thread of its own, and lets only one thread run at a time, from one
call of its context to the next. The thread reports to the sequencer when it waits for such a call.
"""

import functools
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, Generic, TypeVar

import attrs
import trio

from mcp_trio._journal.records import THREAD_RETURNED_MARK
from mcp_trio._session.captured import capturing_in_thread
from mcp_trio._session.journal import LANE, Lane, Sequencer
from mcp_trio.errors import RequestAbandoned

Result = TypeVar("Result")

# The id of the thread for which a task in the event loop performs a call.
CALLING_THREAD: Final[ContextVar[int | None]] = ContextVar("mcp_trio_calling_thread", default=None)


@attrs.define(eq=False)
class ThreadBridge:
    """The calls of one handler's thread into the event loop, until its request is over.

    A call happens in the lanes of the handler, not of the task that performs the call. It is
    rejected as soon as `scope`, the handler's cancel scope, is cancelled: the moment at which the
    handler's task notices the cancellation is not recorded.
    """

    name: str
    sequencer: Sequencer
    lane: Lane | None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_abandoned: bool = attrs.field(default=False, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _locks_to_release: list[Callable[[], None]] = attrs.field(
        factory=list[Callable[[], None]], init=False
    )
    _innermost_lane: Lane | None = attrs.field(factory=LANE.get, init=False)
    _running: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _done: trio.Event | None = attrs.field(default=None, init=False)

    @property
    def is_over(self) -> bool:
        """Return whether calls are rejected from now on."""
        return self.is_abandoned or self.scope.cancel_called

    def call(
        self, function: Callable[..., Awaitable[Result]], *args: Any, is_part: bool = False
    ) -> Result:
        """Return the result of an async function that runs in the event loop.

        Called in the thread, which it blocks. `is_part` is True if another call follows that
        belongs to the same operation of the context.

        Raises:
            RequestAbandoned: The request is over, or was cancelled meanwhile.
            Exception: The error that `function` raised.
        """
        CALLING_THREAD.set(threading.get_ident())
        # Without this, the task that performs the call would be a child task of the lane.
        lane = LANE.set(None)
        try:
            return trio.from_thread.run(self._perform, functools.partial(function, *args), is_part)
        except trio.RunFinishedError:
            raise _abandoned() from None
        finally:
            LANE.reset(lane)

    async def _perform(self, function: Callable[[], Awaitable[Result]], is_part: bool) -> Result:  # noqa: FBT001  trio passes no keywords
        LANE.set(self._innermost_lane)
        self._done = trio.Event()
        try:
            if not self.sequencer.decides_turns:
                return await self._run(function, is_part=is_part)
            self.sequencer.thread_waits()
            try:
                return await self._run(function, is_part=is_part)
            finally:
                await self.let_run()
        finally:
            self._done.set()

    async def _run(self, function: Callable[[], Awaitable[Result]], *, is_part: bool) -> Result:
        """Run `function`, and record that it returned unless it wrote a record itself.

        Without that record, a replay would not know whether the thread continued after the call, or
        was cancelled in it.
        """
        if self.is_over:
            raise _abandoned()
        with trio.CancelScope() as self._running:
            lane = self.lane
            if lane is None:
                return await function()
            if self.sequencer.decides_turns:
                await self.sequencer.turn_in_thread(lane)
            ordinal = lane.ordinal
            try:
                result = await function()
            except Exception:
                self._record_return(lane, ordinal)
                raise
            if not is_part:
                self._record_return(lane, ordinal)
            return result
        raise _abandoned()

    def _record_return(self, lane: Lane, ordinal_before: int) -> None:
        if lane.ordinal == ordinal_before:
            self.sequencer.observed(lane, THREAD_RETURNED_MARK, None, is_so=True)

    def release(self, release_lock: Callable[[], None]) -> None:
        """Release a lock of the thread: now, or in `end` if its request is cancelled.

        The thread may notice the cancellation before the handler's task does, which records it; a
        replay notices it by that record. Therefore no other handler gets the lock earlier.
        """
        if self.is_over and not self._has_ended:
            self._locks_to_release.append(release_lock)
        else:
            release_lock()

    def end(self) -> None:
        """Release the thread's locks; called when the handler's task no longer waits for it."""
        self._has_ended = True
        for release_lock in self._locks_to_release:
            release_lock()

    async def let_run(self) -> None:
        """Wait until the replay lets the thread run."""
        with trio.CancelScope(shield=True):
            await self.sequencer.let_thread_run(self.name)

    async def abandon(self) -> None:
        """Cancel the call that runs now, wait for it, and reject later calls.

        So nothing of a request happens after its end.
        """
        self.is_abandoned = True
        self._running.cancel()
        if self._done is None:
            return
        with trio.CancelScope(shield=True):
            await self._done.wait()


def _abandoned() -> RequestAbandoned:
    return RequestAbandoned("the request of this handler is over: its result is not sent")


async def run_in_thread(
    handler: Callable[..., Result],
    keywords: Mapping[str, Any],
    *,
    bridge: ThreadBridge,
    limiter: trio.CapacityLimiter,
) -> Result:
    """Return the result of a handler in a thread, after waiting for a thread of the limiter.

    If this is cancelled, the thread is abandoned at once; the limiter counts it until it ends.
    """
    call = functools.partial(_call, handler, keywords, bridge)
    if bridge.sequencer.decides_turns:
        return await _run_in_turn(call, bridge)
    try:
        return await trio.to_thread.run_sync(
            call, abandon_on_cancel=True, limiter=limiter, thread_name=bridge.name
        )
    finally:
        await bridge.abandon()


def _call(
    handler: Callable[..., Result], keywords: Mapping[str, Any], bridge: ThreadBridge
) -> Result:
    with capturing_in_thread(bridge.call):
        result = handler(**keywords)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            "a `def` handler returned a coroutine: if a decorator wraps an `async def` function in"
            " a `def` function, it must use functools.wraps"
        )
    return result


# Threads in a replay ------------------------------------------------------------------------------


@attrs.define(eq=False)
class _ReplayThread(Generic[Result]):
    """A thread of a replay, which runs only when the sequencer lets it run.

    The end of the thread is reported to the sequencer once: by the task that waits for the thread,
    or by the thread itself if it was abandoned.
    """

    call: Callable[[], Result]
    bridge: ThreadBridge
    token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    has_ended: bool = attrs.field(default=False, init=False)
    _has_stopped: bool = attrs.field(default=False, init=False)

    def run(self) -> Result:
        """Return the result of the handler; called in the thread."""
        try:
            return self.call()
        finally:
            self.has_ended = True
            with suppress(trio.RunFinishedError):
                self.token.run_sync_soon(self._stop_if_abandoned)

    def _stop_if_abandoned(self) -> None:
        if self.bridge.is_abandoned:
            self.stop()

    def stop(self) -> None:
        """Report to the sequencer that the thread runs no more."""
        if not self._has_stopped:
            self._has_stopped = True
            self.bridge.sequencer.thread_waits()


async def _run_in_turn(call: Callable[[], Result], bridge: ThreadBridge) -> Result:
    thread = _ReplayThread(call, bridge)
    await bridge.let_run()
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        thread.stop()
        raise
    try:
        # The thread certainly starts: the limiter never makes it wait.
        return await trio.to_thread.run_sync(
            thread.run,
            abandon_on_cancel=True,
            limiter=trio.CapacityLimiter(math.inf),
            thread_name=bridge.name,
        )
    finally:
        await bridge.abandon()
        if thread.has_ended:
            thread.stop()
