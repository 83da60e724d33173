"""`def` handlers in threads, and their calls back into the event loop.

A thread cannot be cancelled. When its request is over, the thread is abandoned: its result is
dropped, and every call that it makes into the event loop raises `RequestAbandoned`.

The thread has a lane of its own, a child of the handler's lane. The steps of the task that performs
the thread's calls are recorded in that lane, so a replay lets the thread go on at the same place as
in the recording. A replay runs each handler in a thread of its own, and lets only one thread run at
a time, from one call of its context to the next. The sequencer is notified when the thread waits
for such a call.
"""

import functools
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import attrs
import msgspec
import outcome
import trio

from mcp_trio._session.captured import capturing_in_thread
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import LANE, Lane, drive, lane_in, lanes_with_steps, operation
from mcp_trio._transports.concurrency import FairSemaphore
from mcp_trio.errors import RequestAbandoned

Result = TypeVar("Result")

# The id of the thread for which a task in the event loop performs a call.
CALLING_THREAD: Final[ContextVar[int | None]] = ContextVar("mcp_trio_calling_thread", default=None)


# The beginning of Trio's error in a thread that is not one of its own.
_FOREIGN_THREAD: Final = "this thread wasn't created by Trio"


@attrs.define(eq=False, repr=False)
class ThreadBridge:
    """The calls of one handler's thread into the event loop, until its request is over.

    Attributes:
        innermost_lane: The lane in which the thread's calls are recorded. A resumable handler has
            lanes of its own, and a handler may run a session inside of its own session; then this
            is the lane of the inner journal or session, and `Lane.outer` leads to the lane in the
            handler's session.
        scope: The cancel scope of the handler; once it is cancelled, calls are rejected.
    """

    name: str
    sequencer: Sequencer
    innermost_lane: Lane | None = None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_abandoned: bool = attrs.field(default=False, init=False)
    trio_token: trio.lowlevel.TrioToken = attrs.field(
        factory=trio.lowlevel.current_trio_token, init=False
    )
    _has_ended: bool = attrs.field(default=False, init=False)
    _locks_to_release: list[Callable[[], None]] = attrs.field(factory=list[Any], init=False)
    # The scopes of the call that runs now: of one in the thread's lane, and of one that waits for a
    # recorded outcome.
    _call_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _outcome_scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _waits_for_turn: bool = attrs.field(default=False, init=False)
    _call_done: trio.Event | None = attrs.field(default=None, init=False)

    @property
    def lane(self) -> Lane | None:
        """Return the lane of the thread in the handler's session."""
        lane = self.innermost_lane
        while lane is not None and lane.owner is not self.sequencer:
            lane = lane.outer
        return lane

    @property
    def is_over(self) -> bool:
        """Return whether calls are rejected from now on."""
        return self.is_abandoned or self.scope.cancel_called

    def call(
        self, function: Callable[..., Awaitable[Result]], *args: Any, awaits_outcome: bool = False
    ) -> Result:
        """Return the result of an async function that runs in the event loop.

        Called in the thread, which it blocks. `awaits_outcome` is True if `function` waits for the
        recorded outcome of an effect, in a replay. `abandon` does not wait for its end, as it does
        not wait in a live session for an effect that runs in the thread.

        Raises:
            RequestAbandoned: The request is over, or was cancelled meanwhile.
            Exception: The error that `function` raised.
        """
        CALLING_THREAD.set(threading.get_ident())
        # Without this, the task that performs the call would be a child task of the lane.
        lane = LANE.set(None)
        try:
            call = functools.partial(function, *args)
            return trio.from_thread.run(self._perform, call, awaits_outcome)
        except trio.RunFinishedError:
            raise _abandoned() from None
        except RuntimeError as error:
            if not str(error).startswith(_FOREIGN_THREAD):
                raise
            raise RuntimeError(
                "the context of a `def` handler works only in the handler's own thread: let the"
                " threads that it starts return their values to it"
            ) from error
        finally:
            LANE.reset(lane)

    async def _perform(
        self,
        function: Callable[[], Awaitable[Result]],
        awaits_outcome: bool,  # noqa: FBT001  trio passes no keywords
    ) -> Result:
        if self.is_over:
            raise _abandoned()
        LANE.set(self.innermost_lane)
        lanes = tuple(lanes_with_steps(self.innermost_lane))
        running: Any
        if awaits_outcome:
            running = self._run_until_abandoned(function)
        else:
            running = drive(self._run(function), lanes)
            self._waits_for_turn = True
        return cast("Result", await self._await_for_thread(running))

    async def _await_for_thread(self, running: Awaitable[Any]) -> Any:
        """Return the result for which the thread waits; then wait until it may run."""
        if not self.sequencer.replays:
            return await running
        self.sequencer.thread_waits()
        try:
            return await running
        finally:
            # This is no operation of the thread's lane: if the request ends meanwhile,
            # `abandon_effect` would take it for an effect.
            await self.let_run(None)

    async def _run_until_abandoned(self, function: Callable[[], Awaitable[Result]]) -> Result:
        with trio.CancelScope() as self._outcome_scope:
            return await function()
        raise _abandoned()

    async def _run(self, function: Callable[[], Awaitable[Result]]) -> Result:
        """Run a call, which in a replay begins when its turn has come."""
        self._waits_for_turn = False
        if self.is_over:
            raise _abandoned()
        self._call_done = trio.Event()
        try:
            with trio.CancelScope() as self._call_scope:
                return await function()
            raise _abandoned()
        finally:
            self._call_done.set()

    def run(self, function: Callable[..., Awaitable[Result]], *args: Any) -> Result:
        """Run an async function of the handler in the event loop, as `trio.from_thread.run` does.

        Called in the thread. The function has a lane of its own, and runs even if the request is
        over.
        """
        lane = LANE.set(None)
        try:
            return trio.from_thread.run(self._run_in_child_lane, function, *args)
        finally:
            LANE.reset(lane)

    async def _run_in_child_lane(
        self, function: Callable[..., Awaitable[Result]], *args: Any
    ) -> Result:
        async def call() -> Result:
            return await function(*args)

        lane = None if self.innermost_lane is None else self.innermost_lane.child()
        LANE.set(lane)
        running: Any = drive(call(), tuple(lanes_with_steps(lane)))
        return cast("Result", await self._await_for_thread(running))

    def release(self, release_lock: Callable[[], None]) -> None:
        """Release a lock of the thread: now, or in `end` if the request was cancelled.

        The thread may see a cancellation before the handler's task has recorded it. A replay
        cancels the thread only at that record. So the lock is kept until then, and another handler
        gets it at the same place in the recording and in the replay.
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

    async def let_run(self, lane: Lane | None) -> None:
        """Wait until the replay lets the thread run; the caller takes no step in `lane`."""
        with operation(lane), trio.CancelScope(shield=True):
            await self.sequencer.let_thread_run(self.name)

    async def abandon(self) -> None:
        """Cancel the call that runs now, wait for its end, and reject later calls.

        After this, nothing that the thread does can change the session.
        """
        self.is_abandoned = True
        if self._waits_for_turn and self.lane is not None:
            self.sequencer.withdraw(self.lane)
        self._call_scope.cancel()
        self._outcome_scope.cancel()
        if self._call_done is None:
            return
        with trio.CancelScope(shield=True):
            await self._call_done.wait()


def _abandoned() -> RequestAbandoned:
    return RequestAbandoned("the request of this handler is over: its result is not sent")


class Limiter(Protocol):
    """A limiter of threads: `trio.CapacityLimiter`, or the share of one client in all threads."""

    async def acquire_on_behalf_of(self, borrower: object, /) -> None:
        """Wait until a thread may start; a cancellation leaves nothing behind."""
        ...

    def release_on_behalf_of(self, borrower: object, /) -> None:
        """Note that the thread has ended."""
        ...


# The limiter of threads that are started while a handler's thread waits for them: that thread holds
# a place of its client's share, and would wait for itself if it needed another one.
NESTED_LIMITER: Final[ContextVar[Limiter | None]] = ContextVar("mcp_trio_limiter", default=None)


class ClientThreads(msgspec.Struct, frozen=True, eq=False):
    """The limiter of the threads of one client."""

    threads: FairSemaphore
    client: str | int

    async def acquire_on_behalf_of(self, borrower: object) -> None:  # noqa: ARG002  of `Limiter`
        """Wait until a thread may start; a cancellation leaves nothing behind."""
        await self.threads.acquire(self.client)

    def release_on_behalf_of(self, borrower: object) -> None:  # noqa: ARG002  of `Limiter`
        """Note that the thread has ended."""
        self.threads.release(self.client)


async def run_in_thread(
    handler: Callable[..., Result],
    keywords: Mapping[str, Any],
    *,
    bridge: ThreadBridge,
    limiter: Limiter,
) -> Result:
    """Return the result of a handler in a thread, after waiting for a thread of the limiter.

    If this is cancelled, the thread is abandoned at once; the limiter counts it until it ends.
    """
    call = functools.partial(_call, handler, keywords, bridge)
    lane = lane_in(bridge.sequencer)
    if lane is None and not bridge.sequencer.replays:
        any_limiter: Any = limiter  # Trio accepts every object with the two methods.
        try:
            return await trio.to_thread.run_sync(
                call, abandon_on_cancel=True, limiter=any_limiter, thread_name=bridge.name
            )
        finally:
            await bridge.abandon()
    thread = _RecordedThread(call, bridge, lane, None if bridge.sequencer.replays else limiter)
    if lane is not None:
        await thread.acquire(lane)
    # The thread gets a copy of the context variables, and with them its own lane.
    outer = LANE.set(bridge.innermost_lane)
    try:
        return await thread.run_sync()
    finally:
        LANE.reset(outer)


def _call(
    handler: Callable[..., Result], keywords: Mapping[str, Any], bridge: ThreadBridge
) -> Result:
    with capturing_in_thread(bridge.call, bridge.run, bridge.trio_token):
        result = handler(**keywords)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            "a `def` handler returned a coroutine: make it `async def`, and `await` the coroutine;"
            " a decorator that wraps an `async def` function must use functools.wraps"
        )
    return result


# Threads of recorded handlers ---------------------------------------------------------------------

# The mark of a lane whose handler starts to run in a thread.
_THREAD_MARK: Final = "thread"

# The mark of a lane whose handler's thread has ended, before the request was cancelled.
_THREAD_ENDED_MARK: Final = "thread ended"


@attrs.define(eq=False, repr=False)
class _RecordedThread(Generic[Result]):
    """The thread of a handler whose session is recorded or replayed.

    `lane` is the lane of the handler. It is None for the handler of a notification, whose thread is
    one of these in a replay only.

    The journal does not contain how long two waits take, so both are operations of the lane. The
    wait for a thread depends on other sessions; it ends with the mark `_THREAD_MARK`, and needs no
    `limiter` in a replay. The wait for the end of the thread depends on how long it computes; it
    ends with the mark `_THREAD_ENDED_MARK`, or cancelled. A replay takes the end that was recorded,
    even if the thread has computed in less time.

    A thread of a replay runs only when the sequencer lets it run. Its end is reported to the
    sequencer once: by the task that waits for it, or by the thread if that task was cancelled.
    """

    call: Callable[[], Result]
    bridge: ThreadBridge
    lane: Lane | None
    limiter: Limiter | None
    _has_started: bool = attrs.field(default=False, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _is_abandoned: bool = attrs.field(default=False, init=False)
    _has_reported: bool = attrs.field(default=False, init=False)

    async def acquire(self, lane: Lane) -> None:
        """Wait until the thread may start."""
        sequencer = self.bridge.sequencer
        try:
            if self.limiter is None:
                await sequencer.turn(lane)
            else:
                with operation(lane):
                    await self.limiter.acquire_on_behalf_of(self)
        except trio.Cancelled:
            sequencer.resumed(lane, "cxl")
            raise
        sequencer.marked(_THREAD_MARK, self.bridge.name, lane)

    async def run_sync(self) -> Result:
        """Run the thread, and return the handler's result."""
        sequencer, lane = self.bridge.sequencer, self.lane
        limiter: Any = self
        try:
            with operation(lane):
                result = await trio.to_thread.run_sync(
                    self._run, abandon_on_cancel=True, limiter=limiter, thread_name=self.bridge.name
                )
            self._report_end()
            if lane is not None:
                await sequencer.turn(lane)
                sequencer.marked(_THREAD_ENDED_MARK, None, lane)
        except trio.Cancelled:
            self._is_abandoned = True
            self._report_end()
            if not self._has_started:
                self.release_on_behalf_of(self)
            if lane is not None:
                with suppress(trio.Cancelled):
                    await sequencer.turn(lane)
                sequencer.resumed(lane, "cxl")
            raise
        finally:
            await self.bridge.abandon()
        return result.unwrap()

    def _run(self) -> outcome.Outcome[Result]:
        result = outcome.capture(self.call)
        self._has_ended = True
        return result

    def _report_end(self) -> None:
        if self.limiter is None and self._has_ended and not self._has_reported:
            self._has_reported = True
            self.bridge.sequencer.thread_waits()

    # The limiter of Trio's thread. The thread has been counted by `limiter` before; in a replay it
    # starts when the sequencer lets it run.

    async def acquire_on_behalf_of(self, _: object) -> None:
        """Let the thread start after one step; in a replay, when the sequencer lets it run."""
        self._has_started = True
        await trio.lowlevel.cancel_shielded_checkpoint()
        if self.limiter is None:
            await self.bridge.let_run(self.lane)

    def release_on_behalf_of(self, _: object) -> None:
        """Note that the thread has ended, or could not start."""
        if self.limiter is not None:
            self.limiter.release_on_behalf_of(self)
        elif self._is_abandoned:
            self._report_end()
