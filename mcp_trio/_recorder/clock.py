"""The clocks of recordings: `TickClock`, which stands still within each turn of the event loop.

Trio looks for expired deadlines once in each turn. With a `TickClock`, `trio.current_time()` and
all deadlines see the time of the turn, however long the tasks in it compute. A recording has the
time of each turn in which something happened, so a replay can let the same deadlines expire before
the same steps, and `trio.current_time()` returns the same values. Under any other clock of Trio, a
recorder reads that clock for each record.
"""

import sys
import time
from typing import Final, Protocol

import attrs
import trio

from mcp_trio._journal.records import FOREIGN_CLOCK, TICK_CLOCK, VIRTUAL_CLOCK

NS_PER_SECOND: Final = 1_000_000_000


# The original function: a recorded session replaces `time.perf_counter_ns`, to record the calls of
# handlers.
_perf_counter_ns: Final = time.perf_counter_ns


def seconds_of(ns: int) -> float:
    """Return a time in seconds, rounded in the same way in a live session and in its replay."""
    return ns / NS_PER_SECOND


class NanosecondClock(Protocol):
    """A clock whose time is an attribute: a `TickClock`, or another clock of Trio behind one."""

    @property
    def ns(self) -> int:
        """The time, in nanoseconds."""
        ...


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


class _OtherClock:
    """The clock of a Trio run that is no `TickClock`."""

    def __init__(self, clock: trio.abc.Clock) -> None:
        self._clock = clock

    @property
    def ns(self) -> int:
        return round(self._clock.current_time() * NS_PER_SECOND)


def clock_of_run() -> tuple[str, NanosecondClock]:
    """Return the kind of the clock of this Trio run, as in `OpenBody.clock`, and the clock."""
    clock = trio.lowlevel.current_clock()
    if isinstance(clock, TickClock):
        return TICK_CLOCK, clock
    # Importing `trio.testing` imports pytest where that is installed, which takes as long as all
    # other imports of a recorder. There is no `MockClock` before that import.
    testing = sys.modules.get("trio.testing")
    is_mock = testing is not None and isinstance(clock, testing.MockClock)
    is_virtual = is_mock and not getattr(clock, "rate", 0)
    return VIRTUAL_CLOCK if is_virtual else FOREIGN_CLOCK, _OtherClock(clock)
