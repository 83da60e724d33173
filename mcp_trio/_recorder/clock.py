"""A clock that stands still within each turn of the event loop.

Trio looks for expired deadlines once in each turn. With this clock, `trio.current_time()` and all
deadlines see the time of the turn, however long the tasks in it compute. A recording has the time
of each turn in which something happened, so a replay can let the same deadlines expire before the
same steps, and `trio.current_time()` returns the same values.
"""

import time
from typing import Final

import attrs
import trio

NS_PER_SECOND: Final = 1_000_000_000


# The original function: a recorded session replaces `time.perf_counter_ns`, to record the calls of
# handlers.
_perf_counter_ns: Final = time.perf_counter_ns


def seconds_of(ns: int) -> float:
    """Return a time in seconds, rounded in the same way in a live session and in its replay."""
    return ns / NS_PER_SECOND


@attrs.define(eq=False, repr=False)
class TickClock(trio.abc.Clock, trio.abc.Instrument):
    """A clock for `trio.run(main, clock=TickClock())`, with which sessions replay exactly.

    `server.run` and the command use it, recorded or not. Sessions can be recorded under another
    clock as well; in a replay, a deadline may then expire a step earlier or later than it did.

    Attributes:
        ns: The time of this turn of the event loop, in nanoseconds.
    """

    ns: int = attrs.field(factory=_perf_counter_ns, init=False)

    def start_clock(self) -> None:
        """Begin to follow the turns of the event loop; called by Trio."""
        trio.lowlevel.add_instrument(self)

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002  Trio's signature
        """Advance to the time of the new turn, which differs from that of the last one."""
        ns = _perf_counter_ns()
        self.ns = ns if ns > self.ns else self.ns + 1

    def current_time(self) -> float:
        """Return the time of this turn, in seconds."""
        return self.ns / NS_PER_SECOND  # `seconds_of`, inlined because Trio often calls this

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return how many seconds are left until a deadline, in real time."""
        return deadline - _perf_counter_ns() / NS_PER_SECOND
