"""How a handler reaches what is outside of its session: clocks, chance, functions, HTTP, locks.

All of it works the same whether something records or not. What is recorded of it is what a replay
gives back instead of doing it, so that the handler does the same there.
"""

import functools
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import UTC, datetime
from random import Random
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

import attrs
import trio

from mcp_trio._engine import (
    Effect,
    perform,
    perform_in_thread,
    randomness,
    read_clock,
    takes_patch,
    time_limit,
)
from mcp_trio._journal.records import MONOTONIC, NOW, SLEEP, encode_body
from mcp_trio._server.callables import returns_awaitable
from mcp_trio._server.effect_calls import effect_of
from mcp_trio._server.facts import Facts
from mcp_trio._server.locks import NOTHING, TaskLock, ThreadLock
from mcp_trio._server.threads import Bridge

if TYPE_CHECKING:
    import httpx

P = ParamSpec("P")
Result = TypeVar("Result")

_UUID_BITS = 128


@attrs.define(eq=False)
class Outside(Facts):
    """What an `async def` handler's context can do outside of the session.

    Each of these raises `LocalProtocolError` inside of an effect, which a replay does not run, and
    while something records also in a task that no handler started. But requests by `http` are plain
    inside of an effect.
    """

    # Time.

    def now(self) -> datetime:
        """The time of day, in UTC."""
        return read_clock(self._handling, NOW, _utc_now, datetime)

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; only differences mean something."""
        return read_clock(self._handling, MONOTONIC, trio.current_time, float)

    async def sleep(self, seconds: float) -> None:
        """Do nothing for so many seconds.

        Raises:
            ValueError: They are negative.
        """
        await perform(self._handling, _sleeping(seconds))

    def timeout(self, seconds: float) -> AbstractContextManager[trio.CancelScope]:
        """`with ctx.timeout(5):`, which cancels its block when the time is over.

        Raises:
            trio.TooSlowError: At the end of a block that was cancelled by this.
            ValueError: The seconds are negative.
        """
        return time_limit(self._handling, seconds)

    # Chance.

    @property
    def random(self) -> Random:
        """A generator of random numbers, which a recording seeds; not for secrets.

        Each task has its own, so ask for it in the task that uses it.
        """
        return randomness(self._handling)

    def uuid4(self) -> uuid.UUID:
        """A random UUID out of `random`; not for secrets."""
        return uuid.UUID(int=self.random.getrandbits(_UUID_BITS), version=4)

    # Functions.

    @overload
    async def effect(
        self, function: Callable[P, Awaitable[Result]], *args: P.args, **keywords: P.kwargs
    ) -> Result: ...

    @overload
    async def effect(
        self, function: Callable[P, Result], *args: P.args, **keywords: P.kwargs
    ) -> Result: ...

    async def effect(
        self, function: Callable[..., object], *args: object, **keywords: object
    ) -> object:
        """What a function returns; a replay does not call it, and gives what it returned.

        The function may be `async def` or `def`; the latter runs here, and must not block. Its
        result goes through JSON always, and comes back as its annotation says. Cancelled: as the
        function itself. Let it take what it needs of the lifespan as an argument: in a replay,
        nothing of that can be called.

        Raises:
            TypeError: The result would not be the same after that.
            Exception: What the function raises; in a replay `ReplayedError`, if that cannot be
                made again.
        """
        return await perform(self._handling, effect_of(self._served, function, args, keywords))

    async def to_thread(
        self, function: Callable[P, Result], *args: P.args, **keywords: P.kwargs
    ) -> Result:
        """`effect` for a `def` function that blocks: it runs in a thread.

        Cancelled: waits for the function, which can ask `trio.from_thread.check_cancelled`.
        """
        run = functools.partial(
            trio.to_thread.run_sync, functools.partial(function, *args, **keywords)
        )
        effect: Effect[Result] = effect_of(self._served, function, args, keywords, run=run)
        return await perform(self._handling, effect)

    @property
    def http(self) -> "httpx.AsyncClient":
        """An HTTP client, each of whose requests is an effect; closed with the session.

        See `EffectTransport` for what of a request and its response is recorded.
        """
        return self._served.http.client

    # Order, and change.

    def lock(self, name: str) -> AbstractAsyncContextManager[None]:
        """`async with ctx.lock(name):`, one at a time of all handlers of the server.

        Raises:
            RuntimeError: On entering, the task holds this lock already.
        """
        return TaskLock(self._handling, self._served.server.locks, name)

    def patched(self, name: str) -> bool:
        """Whether to take the new way at a change of the code; False in replays from before it.

        Once a task has been told, it is told the same again.
        """
        return takes_patch(self._handling, name)


@attrs.define(eq=False)
class ThreadOutside(Facts):
    """What a `def` handler's context can do outside of the session; each call blocks the thread."""

    _bridge: Bridge

    @property
    def _outside(self) -> Outside:
        return Outside(self._handling, self._served)

    def now(self) -> datetime:
        """See `Context.now`."""
        return self._bridge.call(_soon(self._outside.now))

    def monotonic(self) -> float:
        """See `Context.monotonic`."""
        return self._bridge.call(_soon(self._outside.monotonic))

    def sleep(self, seconds: float) -> None:
        """See `Context.sleep`."""
        self._bridge.call(self._outside.sleep, seconds)

    @property
    def random(self) -> Random:
        """See `Context.random`."""
        return self._outside.random

    def uuid4(self) -> uuid.UUID:
        """See `Context.uuid4`."""
        return self._outside.uuid4()

    @overload
    def effect(
        self, function: Callable[P, Awaitable[Result]], *args: P.args, **keywords: P.kwargs
    ) -> Result: ...

    @overload
    def effect(
        self, function: Callable[P, Result], *args: P.args, **keywords: P.kwargs
    ) -> Result: ...

    def effect(self, function: Callable[..., object], *args: object, **keywords: object) -> object:
        """See `Context.effect`; a `def` function runs in this thread, and may block."""
        effect = effect_of(self._served, function, args, keywords)
        if returns_awaitable(function):
            return self._bridge.call(perform, self._handling, effect)
        return perform_in_thread(self._bridge.call, self._handling, effect)

    def lock(self, name: str) -> AbstractContextManager[None]:
        """See `Context.lock`; here it is `with ctx.lock(name):`."""
        return ThreadLock(self._handling, self._served.server.locks, self._bridge, name)

    def patched(self, name: str) -> bool:
        """See `Context.patched`."""
        return self._bridge.call(_soon(self._outside.patched), name)


def _soon(function: Callable[P, Result]) -> Callable[P, Coroutine[Any, Any, Result]]:
    """The function, to be called by the loop."""

    async def call(*args: P.args, **keywords: P.kwargs) -> Result:
        return function(*args, **keywords)

    return call


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _sleeping(seconds: float) -> Effect[None]:
    return Effect(
        name=SLEEP,
        arguments=functools.partial(encode_body, {"seconds": seconds}),
        run=functools.partial(trio.sleep, seconds),
        codec=NOTHING,
    )
