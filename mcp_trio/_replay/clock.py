"""The virtual clock of a replay and of a sweep, which their controller advances."""

import math
import time
from typing import Final

import trio

from mcp_trio._journal.records import FOREIGN_CLOCK, TICK_CLOCK, VIRTUAL_CLOCK
from mcp_trio._recorder.clock import seconds_of

BUSY_LOOP: Final = "a task loops without waiting: let it wait for an event or a time"

_NEVER_SECONDS: Final = 1e9

# The number of readings of the clock without an advance after which a task counts as looping.
_READINGS_MAX: Final = 50_000
_READINGS_AFTER_END_MAX: Final = 2_000

# The times of records are whole nanoseconds. Under a clock that has other times, a deadline that is
# nearer than this has expired.
ROUNDING_SECONDS: Final = 2e-9

# The real time that a replay waits at its end for an external event, such as the end of a thread.
_IDLE_SECONDS: Final = 0.05


class VirtualClock(trio.abc.Clock, trio.abc.Instrument):
    """A clock that shows the times of a recording and never runs by itself.

    Trio looks for expired deadlines in each turn of the event loop. A replay needs several turns
    for what a live session did in one, so deadlines expire only in the first turn after
    `advance_to`.

    `run_freely` ends the replay: from then on the clock jumps to the next deadline, so that every
    task that sleeps can end.

    Attributes:
        begin_ns: The time at which the recording begins.
        kind: The kind of the recorded clock, as in `OpenBody.clock`.
        next_deadline: The earliest deadline of all tasks when they were last blocked.
        stalled: An event that is set when tasks loop without waiting, when they wait for ever at
            the end, or when a thread does not return.
        reason: A description of what set `stalled`.
    """

    def __init__(self, begin_ns: int, kind: str = FOREIGN_CLOCK) -> None:
        self.begin_ns = begin_ns
        self.kind = kind
        self.next_deadline = math.inf
        self.stalled = trio.Event()
        self.reason = BUSY_LOOP
        # The times and deadlines of a `TickClock` are the same numbers in the replay.
        self._rounding_seconds = 0.0 if kind == TICK_CLOCK else ROUNDING_SECONDS
        self._now = seconds_of(begin_ns)
        # Whether deadlines may expire in the next turn, and whether Trio is about to read the clock
        # in order to let them expire.
        self._has_advanced = False
        self._is_expiring = False
        self._is_free = False
        self._readings = 0
        self._has_idled = False
        self._thread_deadline: float | None = None

    def start_clock(self) -> None:
        """Begin to follow the event loop; only `advance_to` moves the clock."""
        trio.lowlevel.add_instrument(self)

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002  Trio's signature
        """Note that Trio reads the clock next, to let deadlines expire."""
        self._is_expiring = True

    def current_time(self) -> float:
        if self._is_expiring:
            self._is_expiring = False
            if self._is_free:
                self._count_reading()
            if not (self._has_advanced or self._is_free):
                return -math.inf
            self._has_advanced = False
            return self._now + self._rounding_seconds
        self._count_reading()
        return self._now

    def _count_reading(self) -> None:
        self._readings += 1
        if self._readings > (_READINGS_AFTER_END_MAX if self._is_free else _READINGS_MAX):
            self._stall(BUSY_LOOP)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return how long Trio sleeps: not at all if the deadline has passed, else for ever.

        While a thread runs, Trio sleeps in real time until the thread counts as stalled.
        """
        self.next_deadline = deadline
        if self._has_advanced and deadline <= self._now + self._rounding_seconds:
            return 0.0
        if self._thread_deadline is not None:
            left_seconds = self._thread_deadline - time.monotonic()
            if left_seconds <= 0:
                self._thread_deadline = None
                self._stall(self.reason)
            return max(0.0, left_seconds)
        if not self._is_free:
            return _NEVER_SECONDS
        if deadline < math.inf:
            self._now = max(self._now, deadline)
            return 0.0
        if self._has_idled:
            self._stall(BUSY_LOOP)
        self._has_idled = True
        return _IDLE_SECONDS

    def _stall(self, reason: str) -> None:
        self.reason = reason
        self._readings = 0
        self._has_idled = False
        self.stalled.set()

    def expect_thread(self, seconds: float, reason: str) -> None:
        """Set `stalled` for `reason` unless `expect_no_thread` is called within real `seconds`."""
        self._thread_deadline = time.monotonic() + seconds
        self.reason = reason

    def expect_no_thread(self) -> None:
        self._thread_deadline = None

    def advance_to(self, deadline: float) -> None:
        """Advance to a deadline, and let it expire in the next turn."""
        self._now = max(self._now, deadline)
        self._has_advanced = True
        self._readings = 0

    def time_of(self, time_ns: int) -> float:
        return seconds_of(self.begin_ns + time_ns)

    def is_due_by(self, time_ns: int) -> bool:
        return self.next_deadline <= self.time_of(time_ns) + self._rounding_seconds

    def has_deadline_by(self, time_ns: int) -> bool:
        """Return whether a deadline of any task may expire by the time of a record.

        The sum of the time and the difference to the deadline is not exactly the deadline.
        """
        seconds = trio.lowlevel.current_statistics().seconds_to_next_deadline
        return self._now + seconds <= self.time_of(time_ns) + ROUNDING_SECONDS

    def is_early(self, time_ns: int) -> bool:
        """Return whether a task that is ready now would have taken its step before a record.

        On a virtual clock no time passes while a task is ready.
        """
        return self.kind == VIRTUAL_CLOCK and self._now < self.time_of(time_ns) - ROUNDING_SECONDS

    def run_freely(self) -> None:
        """Jump to the next deadline from now on, whenever all tasks are blocked."""
        self._is_free = True
        self._readings = 0
