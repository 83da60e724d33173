"""`def` handlers in threads, and locks that all handlers of a server share."""

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

from mcp_trio._journal.records import LOCK, THREAD_RETURNED_MARK, encode_body
from mcp_trio._session.effects import Effect, perform
from mcp_trio._session.handlers import Handling
from mcp_trio._session.journal import LANE, Lane, Sequencer
from mcp_trio._session.nondeterminism import watching_thread
from mcp_trio.errors import RequestAbandoned

# --------------------
# A `def` handler in its thread, and the way from there back into the loop.
#
# Nobody can stop a thread. So when its request is over, the thread is abandoned: what it returns is
# dropped, and each call that it still makes back into the loop, or is making, is refused.
#
# In a replay a handler's thread runs from one call of its context to the next, and no other one
# meanwhile: each has a thread of its own there, which the sequencer lets run, and which stands as
# long as the loop carries out a call for it.


Result = TypeVar("Result")

# For which thread a task in the loop carries out a call.
CALLING_THREAD: Final[ContextVar[int | None]] = ContextVar("mcp_trio_calling_thread", default=None)


@attrs.define(eq=False)
class Bridge:
    """The calls of one handler's thread into the loop, until its request is over.

    They are the handler's own acts, so they happen in its lanes, and not in those of the task which
    carries them out. The handler's `scope` ends them when it is cancelled: not only when the
    handler's task has run, for when that is, no record tells.
    """

    name: str
    sequencer: Sequencer
    lane: Lane | None
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    is_abandoned: bool = attrs.field(default=False, init=False)
    _has_ended: bool = attrs.field(default=False, init=False)
    _held: list[Callable[[], None]] = attrs.field(factory=list[Callable[[], None]], init=False)
    _innermost: Lane | None = attrs.field(factory=LANE.get, init=False)
    _running: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    _done: trio.Event | None = attrs.field(default=None, init=False)

    @property
    def is_over(self) -> bool:
        """Return whether calls are refused from now on."""
        return self.is_abandoned or self.scope.cancel_called

    def call(
        self, function: Callable[..., Awaitable[Result]], *args: Any, is_part: bool = False
    ) -> Result:
        """What `function` returns; blocks the thread, and is called there only.

        `is_part` says that another call belongs to the same operation, and follows.

        Raises:
            RequestAbandoned: The request is over, or ended meanwhile.
        """
        CALLING_THREAD.set(threading.get_ident())
        lane = LANE.set(None)  # or the task that carries it out would count as a child of the lane
        try:
            return trio.from_thread.run(self._run, self._telling(function, args, is_part=is_part))
        except trio.RunFinishedError:
            raise _over() from None
        finally:
            LANE.reset(lane)

    def _telling(
        self, function: Callable[..., Awaitable[Result]], args: tuple[Any, ...], *, is_part: bool
    ) -> Callable[[], Awaitable[Result]]:
        """The call of `function`; that it came back is a record, if nothing else of it is one.

        Else a replay would not know whether the thread went on, or was cancelled there.
        """
        lane = self.lane
        if lane is None:
            return functools.partial(function, *args)

        def tell(begun: int) -> None:
            if lane.ordinal == begun:
                self.sequencer.noted(lane, THREAD_RETURNED_MARK, None, is_so=True)

        async def call() -> Result:
            begun = lane.ordinal
            try:
                result = await function(*args)
            except Exception:
                tell(begun)
                raise
            if not is_part:
                tell(begun)
            return result

        return call

    async def _run(self, function: Callable[[], Awaitable[Result]]) -> Result:
        LANE.set(self._innermost)
        self._done = trio.Event()
        try:
            if not self.sequencer.decides_turns:
                return await self._carry_out(function)
            return await self._carry_out_in_turn(function)
        finally:
            self._done.set()

    async def _carry_out(self, function: Callable[[], Awaitable[Result]]) -> Result:
        if not self.is_over:
            with trio.CancelScope() as self._running:
                return await function()
        raise _over()

    async def _carry_out_in_turn(self, function: Callable[[], Awaitable[Result]]) -> Result:
        """The same in a replay: the thread stands meanwhile."""

        async def carry_out() -> Result:
            if self.lane is not None:
                await self.sequencer.turn_in_thread(self.lane)
            return await function()

        self.sequencer.thread_stands()
        try:
            return await self._carry_out(carry_out)
        finally:
            await self.let_run()

    def let_go(self, release: Callable[[], None]) -> None:
        """Release what the thread held: at once, or if its request is cancelled, not before `end`.

        The thread may hear of that before its handler's task, by which it is recorded; and in a
        replay, only by the record. So nobody else gets earlier what the thread had.
        """
        if self.is_over and not self._has_ended:
            self._held.append(release)
        else:
            release()

    def end(self) -> None:
        """The handler's task has left the thread, and that is recorded if it was cancelled."""
        self._has_ended = True
        for release in self._held:
            release()

    async def let_run(self) -> None:
        """Wait until the thread may run, in a replay."""
        with trio.CancelScope(shield=True):
            await self.sequencer.let_thread_run(self.name)

    async def abandon(self) -> None:
        """The request is over: the call that runs now is cancelled, later ones are refused.

        Waits for that call, so that nothing of the request happens after its end.
        """
        self.is_abandoned = True
        self._running.cancel()
        if self._done is None:
            return
        with trio.CancelScope(shield=True):
            await self._done.wait()


def _over() -> RequestAbandoned:
    return RequestAbandoned("the request of this handler is over: nobody waits for its result")


async def run_in_thread(
    handler: Callable[..., Result],
    keywords: Mapping[str, Any],
    *,
    bridge: Bridge,
    limiter: trio.CapacityLimiter,
) -> Result:
    """What the handler returns; waits for one of the limiter's threads first.

    Cancelled: the thread is abandoned at once, but counts for the limiter until it ends.
    """
    if bridge.sequencer.decides_turns:
        return await _run_in_turn(functools.partial(_called, handler, keywords), bridge)
    try:
        return await trio.to_thread.run_sync(
            functools.partial(_called, handler, keywords),
            abandon_on_cancel=True,
            limiter=limiter,
            thread_name=bridge.name,
        )
    finally:
        await bridge.abandon()


def _called(handler: Callable[..., Result], keywords: Mapping[str, Any]) -> Result:
    with watching_thread():
        result = handler(**keywords)
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(
            "a `def` handler returned a coroutine: if it decorates an `async def`, functools.wraps"
            " makes that known"
        )
    return result


# In a replay.


@attrs.define(eq=False)
class _LedThread(Generic[Result]):
    """A thread that runs only when it is let.

    It stands for good when the loop has learned that it ended; an abandoned one tells by itself.
    """

    call: Callable[[], Result]
    bridge: Bridge
    token: trio.lowlevel.TrioToken = attrs.field(factory=trio.lowlevel.current_trio_token)
    has_ended: bool = attrs.field(default=False, init=False)
    _has_stopped: bool = attrs.field(default=False, init=False)

    def run(self) -> Result:
        """What the handler returns; for the thread to call."""
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
        """It stands for good."""
        if not self._has_stopped:
            self._has_stopped = True
            self.bridge.sequencer.thread_stands()


async def _run_in_turn(call: Callable[[], Result], bridge: Bridge) -> Result:
    led = _LedThread(call, bridge)
    await bridge.let_run()
    try:
        await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        led.stop()
        raise
    try:
        # The thread does begin: nothing is awaited before that but a limit that is never reached.
        return await trio.to_thread.run_sync(
            led.run,
            abandon_on_cancel=True,
            limiter=trio.CapacityLimiter(math.inf),
            thread_name=bridge.name,
        )
    finally:
        await bridge.abandon()
        if led.has_ended:
            led.stop()


class _Nothing:
    """The result of what only happens."""

    def converted(self, value: Any) -> tuple[None, bytes]:
        return value, b"null"

    def decoded(self, body: bytes) -> None:  # noqa: ARG002  the protocol's
        return None


NOTHING: Final = _Nothing()


@attrs.define(eq=False)
class _Row:
    """The lock of one name; `users` hold it or wait for it."""

    limiter: trio.CapacityLimiter
    users: int = 0


@attrs.define(eq=False)
class Locks:
    """The locks of a server, each for as long as somebody holds it or waits for it.

    A lock belongs to the Trio run in which it is used: a replay of the same server, in another
    thread, has its own.
    """

    _rows: dict[tuple[object, str], _Row] = attrs.field(
        factory=dict[tuple[object, str], _Row], init=False
    )

    def enter(self, name: str) -> _Row:
        """The row of a lock, which has one user more."""
        key = (trio.lowlevel.current_trio_token(), name)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(trio.CapacityLimiter(1))
        row.users += 1
        return row

    def leave(self, name: str) -> _Row:
        """The row of a lock, which has one user less."""
        key = (trio.lowlevel.current_trio_token(), name)
        row = self._rows[key]
        row.users -= 1
        if not row.users:
            del self._rows[key]
        return row


async def acquire(handling: Handling, locks: Locks, name: str, holder: object) -> None:
    """Wait for a lock, in the order of those who wait, and hold it for `holder`.

    Cancelled: it is not held.

    Raises:
        RuntimeError: `holder` holds it, and would wait for itself.
    """
    limiter = locks.enter(name).limiter
    try:
        _check_holder(limiter, name, holder)
        take = functools.partial(limiter.acquire_on_behalf_of, holder)
        await perform(handling, _effect(name, take, functools.partial(_take_now, limiter, holder)))
    except BaseException:
        locks.leave(name)
        raise


def _check_holder(limiter: trio.CapacityLimiter, name: str, holder: object) -> None:
    if holder in limiter.statistics().borrowers:
        raise RuntimeError(
            f"the lock {name!r} is already held by this handler: it would wait for itself"
        )


def _effect(
    name: str, run: Callable[[], Awaitable[None]], again: Callable[[], Awaitable[None]]
) -> Effect[None]:
    return Effect(
        name=LOCK,
        arguments=functools.partial(encode_body, {"name": name}),
        run=run,
        codec=NOTHING,
        again=again,
    )


async def _take_now(limiter: trio.CapacityLimiter, holder: object) -> None:
    """Take the lock without yielding; in a replay it is free, or somebody did not let go of it."""
    try:
        limiter.acquire_on_behalf_of_nowait(holder)
    except trio.WouldBlock:
        await limiter.acquire_on_behalf_of(holder)


def release(locks: Locks, name: str, holder: object) -> None:
    """Let go of a lock that `holder` holds."""
    locks.leave(name).limiter.release_on_behalf_of(holder)


@attrs.define(eq=False)
class TaskLock:
    """`async with ctx.lock(name):`, for the task that enters it."""

    _handling: Handling
    _locks: Locks
    name: str

    async def __aenter__(self) -> None:
        holder = trio.lowlevel.current_task()
        await acquire(self._handling, self._locks, self.name, holder)

    async def __aexit__(self, *_: object) -> None:
        release(self._locks, self.name, trio.lowlevel.current_task())


@attrs.define(eq=False)
class ThreadLock:
    """`with ctx.lock(name):`, for a handler's thread.

    It is let go of also when the request is over: the thread was in the middle of something. See
    `Bridge.let_go` for when.
    """

    _handling: Handling
    _locks: Locks
    _bridge: Bridge
    name: str

    def __enter__(self) -> None:
        self._bridge.call(acquire, self._handling, self._locks, self.name, self._bridge)

    def __exit__(self, *_: object) -> None:
        let_go = functools.partial(release, self._locks, self.name, self._bridge)
        with suppress(trio.RunFinishedError):  # and with the run its locks
            trio.from_thread.run_sync(self._bridge.let_go, let_go)
