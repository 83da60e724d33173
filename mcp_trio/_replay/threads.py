"""The threads of `def` handlers in a replay: one runs at a time, in the order of the journal."""

import math
from typing import Final

import attrs
import trio

from mcp_trio._replay.clock import VirtualClock

# How often threads may still run when the replay is over, until nobody waits for them.
_LAST_RUNS_MAX: Final = 1000


@attrs.define(eq=False)
class Baton:
    """Who holds it runs; the others stand at a call of theirs, or have not begun.

    A thread that keeps it for longer than `seconds` of real time is trouble of the clock.
    """

    clock: VirtualClock
    seconds: float
    is_given_up: bool = attrs.field(default=False, init=False)
    _runs_left: float = attrs.field(default=math.inf, init=False)
    _is_held: bool = attrs.field(default=False, init=False)
    _waiting: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _given_back: trio.Event = attrs.field(factory=trio.Event, init=False)

    @property
    def is_held(self) -> bool:
        """Whether a thread runs, and is waited for."""
        return self._is_held and not self.is_given_up

    async def take(self, name: str) -> None:
        """Wait until no thread runs; then one of the handler `name` does."""
        while self.is_held:
            await self._waiting.park()
        self._is_held = True
        self._given_back = trio.Event()
        self._runs_left -= 1
        self.is_given_up |= self._runs_left < 0
        self.clock.expect_thread(
            self.seconds,
            f"the thread of {name!r} did not come back within {self.seconds:g} s"
            " (replay_thread_seconds)",
        )

    def give_back(self) -> None:
        """The thread that ran stands now, or has ended."""
        self._is_held = False
        self.clock.expect_nothing()
        self._given_back.set()
        self._waiting.unpark()

    def hurry(self) -> None:
        """The replay is over: threads may end, but not go on for ever."""
        self._runs_left = _LAST_RUNS_MAX

    def give_up(self) -> None:
        """Nobody waits for threads any more."""
        self.is_given_up = True
        self._given_back.set()
        self._waiting.unpark_all()

    async def wait_until_free(self) -> None:
        """Wait until no thread runs."""
        while self.is_held:
            await self._given_back.wait()
