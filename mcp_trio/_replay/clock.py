"""The virtual clock of a replay, which the replayer moves."""

import math
import time
from typing import Final

import attrs
import trio

SPINS: Final = "a handler spins: let it wait for an event or a time"

_NEVER_SECONDS: Final = 1e9

# How often a run may look at the clock before somebody moves it: one that does so more often spins.
_LOOKS_MAX: Final = 50_000
_LOOKS_WHEN_FREE_MAX: Final = 2_000

# How long the end of a replay waits for what only the outside could wake, such as a thread.
_IDLE_SECONDS: Final = 0.05


@attrs.define(eq=False)
class VirtualClock(trio.abc.Clock):
    """Seconds since the start of the recorded session; never runs by itself, never goes back.

    `next_deadline` is what the tasks wait for, as it was when they last had nothing to do.

    Set free at the end of a replay, it jumps from deadline to deadline, so that everything that
    waits for a time can end. `trouble` is set when the tasks spin, when they wait for ever even
    then, or when a thread does not come back; `reason` says which.
    """

    next_deadline: float = attrs.field(default=math.inf, init=False)
    trouble: trio.Event = attrs.field(factory=trio.Event, init=False)
    reason: str = attrs.field(default=SPINS, init=False)
    _now: float = attrs.field(default=0.0, init=False)
    _is_free: bool = attrs.field(default=False, init=False)
    _looks: int = attrs.field(default=0, init=False)
    _has_idled: bool = attrs.field(default=False, init=False)
    _patience_ends: float | None = attrs.field(default=None, init=False)

    def start_clock(self) -> None:
        """Nothing starts: see `reach`."""

    def current_time(self) -> float:
        """The time that was last reached."""
        self._looks += 1
        if self._looks > (_LOOKS_WHEN_FREE_MAX if self._is_free else _LOOKS_MAX):
            self._cry(SPINS)
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Zero for what is due, otherwise for ever: only the player brings time."""
        self.next_deadline = deadline
        if deadline <= self._now:
            return 0.0
        if self._patience_ends is not None:
            return self._wait_for_thread(self._patience_ends)
        return self._leap(deadline) if self._is_free else _NEVER_SECONDS

    def _wait_for_thread(self, patience_ends: float) -> float:
        left_seconds = patience_ends - time.monotonic()
        if left_seconds <= 0:
            self._patience_ends = None
            self._cry(self.reason)
        return max(0.0, left_seconds)

    def _leap(self, deadline: float) -> float:
        if deadline < math.inf:
            self._now = deadline
            return 0.0
        if self._has_idled:
            self._cry(SPINS)
        self._has_idled = True
        return _IDLE_SECONDS

    def _cry(self, reason: str) -> None:
        self.reason = reason
        self._looks = 0
        self._has_idled = False
        self.trouble.set()

    def expect_thread(self, seconds: float, reason: str) -> None:
        """A thread runs; if it still does after a time, in reality, that is trouble."""
        self._patience_ends = time.monotonic() + seconds
        self.reason = reason

    def expect_nothing(self) -> None:
        """No thread runs."""
        self._patience_ends = None

    def reach(self, seconds: float) -> None:
        """Move on to `seconds`, if that is later."""
        self._now = max(self._now, seconds)
        self._looks = 0

    def set_free(self) -> None:
        """The replay is over: from now on time comes by itself."""
        self._is_free = True
        self._looks = 0
