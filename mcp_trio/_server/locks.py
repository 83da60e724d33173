"""Locks by name, for all sessions of a server."""

import functools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import attrs
import trio

from mcp_trio._engine import Effect, Handling, perform
from mcp_trio._journal.records import LOCK, encode_body
from mcp_trio._server.threads import Bridge


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
            f"the lock {name!r} is held already by who wants it: it would never come"
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
