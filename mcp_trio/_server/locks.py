"""Locks that all handlers of a server share: `ctx.lock(name)`.

Taking a lock is an effect, so that a replay takes the locks in the recorded order.
"""

import functools
from contextlib import suppress
from typing import Any, Final

import attrs
import trio

from mcp_trio._journal.records import LOCK, encode_body
from mcp_trio._server.threads import ThreadBridge
from mcp_trio._session.effects import Effect, perform
from mcp_trio._session.handlers import Handling


class NoResult:
    """The codec of effects that return None."""

    def converted(self, value: Any) -> tuple[None, bytes]:
        """Return the value and its JSON."""
        return value, b"null"

    def decoded(self, body: bytes) -> None:  # noqa: ARG002  the codec's protocol
        """Return None."""
        return


NO_RESULT: Final = NoResult()


@attrs.define(eq=False, repr=False)
class _Lock:
    """A lock, and the number of its users: holders and tasks or threads that wait for it."""

    limiter: trio.CapacityLimiter
    users: int = 0


@attrs.define(eq=False, repr=False)
class Locks:
    """The locks of a server by name; each exists only while it has users.

    A lock belongs to the Trio run in which it is used: a replay of the same server in another
    thread has locks of its own.
    """

    _locks: dict[tuple[object, str], _Lock] = attrs.field(
        factory=dict[tuple[object, str], _Lock], init=False
    )

    async def acquire(self, handling: Handling, name: str, holder: object) -> None:
        """Wait for a lock, first come, first served, and hold it for `holder`.

        If this is cancelled, the lock is not held.

        Args:
            handling: The handler that takes the lock, and records this as its effect.
            name: The name of the lock.
            holder: The task, or the bridge of the thread, that holds the lock.

        Raises:
            RuntimeError: `holder` holds the lock already.
        """
        key = (trio.lowlevel.current_trio_token(), name)
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = _Lock(trio.CapacityLimiter(1))
        limiter = lock.limiter
        if holder in limiter.statistics().borrowers:
            raise RuntimeError(
                f"the lock {name!r} is already held by this handler: it would wait for itself"
            )

        async def acquire_again() -> None:
            # A replay runs this where the recorded task got the lock. The lock is then free, and is
            # taken without a checkpoint, unless a handler has not released it yet.
            try:
                limiter.acquire_on_behalf_of_nowait(holder)
            except trio.WouldBlock:
                await limiter.acquire_on_behalf_of(holder)

        lock.users += 1
        try:
            effect = Effect(
                name=LOCK,
                arguments=functools.partial(encode_body, {"name": name}),
                run=functools.partial(limiter.acquire_on_behalf_of, holder),
                codec=NO_RESULT,
                again=acquire_again,
            )
            await perform(handling, effect)
        except BaseException:
            self._leave(name)
            raise

    def release(self, name: str, holder: object) -> None:
        """Release a lock that `holder` holds."""
        self._leave(name).limiter.release_on_behalf_of(holder)

    def _leave(self, name: str) -> _Lock:
        """Return a lock after the removal of one user; the last user removes the lock too."""
        key = (trio.lowlevel.current_trio_token(), name)
        lock = self._locks[key]
        lock.users -= 1
        if not lock.users:
            del self._locks[key]
        return lock


@attrs.define(eq=False, repr=False)
class TaskLock:
    """The async context manager `ctx.lock(name)`, for the task that enters it."""

    _handling: Handling
    _locks: Locks
    name: str

    async def __aenter__(self) -> None:
        await self._locks.acquire(self._handling, self.name, trio.lowlevel.current_task())

    async def __aexit__(self, *_: object) -> None:
        self._locks.release(self.name, trio.lowlevel.current_task())


@attrs.define(eq=False, repr=False)
class ThreadLock:
    """The context manager `ctx.lock(name)` of a handler in a thread.

    The lock is released even if the request is over. If the request was cancelled,
    `ThreadBridge.release` postpones this until the handler's task has noticed the cancellation.
    """

    _handling: Handling
    _locks: Locks
    _bridge: ThreadBridge
    name: str

    def __enter__(self) -> None:
        self._bridge.call(self._locks.acquire, self._handling, self.name, self._bridge)

    def __exit__(self, *_: object) -> None:
        release = functools.partial(self._locks.release, self.name, self._bridge)
        with suppress(trio.RunFinishedError):  # The locks have ended with the run.
            trio.from_thread.run_sync(self._bridge.release, release)
