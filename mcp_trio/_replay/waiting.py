"""Which lanes wait, for what, and at which line of people's code."""

import math

import attrs
import trio

from mcp_trio._replay.score import Key, request_of
from mcp_trio._replay.sites import is_alive, site_here, site_of


@attrs.define(eq=False)
class Parked:
    """A lane that waits for its turn.

    `at_start` says that its handler has not begun. `due` is the place in the journal from which it
    may go on; None: it waits for a record of its own. `ordinal` is that of its operation before,
    `since` when it came here.
    """

    key: Key
    ordinal: int
    at_start: bool = False
    due: float | None = None
    since: float = attrs.field(factory=trio.current_time, init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    turn: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False)
class Doomed:
    """A lane that waits for the cancellation that its record promises."""

    deadline: float
    woken: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False)
class Waiting:
    """The lanes of a replay: those that wait, and where each of them was seen last.

    `arrivals` tells when a lane came to what its recording lacks, by the ordinal of its operation
    before that, if nothing had cancelled it by then. `let_go` are lanes that may be cancelled at a
    call which they never made. Before the place `spent_from` in the journal, nobody waits who has
    no turn left.
    """

    parked: dict[Key, Parked] = attrs.field(factory=dict[Key, Parked], init=False)
    doomed: dict[Key, Doomed] = attrs.field(factory=dict[Key, Doomed], init=False)
    tasks: dict[Key, trio.lowlevel.Task] = attrs.field(
        factory=dict[Key, trio.lowlevel.Task], init=False
    )
    sites: dict[Key, str] = attrs.field(factory=dict[Key, str], init=False)
    arrivals: dict[tuple[Key, int], float] = attrs.field(
        factory=dict[tuple[Key, int], float], init=False
    )
    let_go: set[Key] = attrs.field(factory=set[Key], init=False)
    spent_from: float = attrs.field(default=math.inf, init=False)

    def see(self, lane: Key) -> None:
        """The calling task acts for a lane."""
        self.tasks[lane] = trio.lowlevel.current_task()
        self.sites[lane] = site_here() or self.sites.get(lane, "")

    async def park(self, parked: Parked, *, shield: bool) -> None:
        """Wait until `give_turn`, or until all are woken."""
        self.parked[parked.key] = parked
        parked.scope.shield = shield
        with parked.scope:
            try:
                await parked.turn.wait()
            finally:
                self.parked.pop(parked.key, None)

    def note_arrival(self, lane: Key, ordinal: int) -> bool:
        """The calling task comes to what is not recorded; returns whether it is not cancelled."""
        now = trio.current_time()
        is_free = trio.current_effective_deadline() > now
        if is_free:
            self.arrivals.setdefault((lane, ordinal), now)
        return is_free

    def has_arrived(self, lane: Key, before: float) -> bool:
        """Whether a lane came to what is not recorded, before a time."""
        return any(key == lane and time < before for (key, _), time in self.arrivals.items())

    def first_arrival(self, request: Key) -> float | None:
        """When a request, or a task below it, first came to what is not recorded."""
        times = (time for (lane, _), time in self.arrivals.items() if request_of(lane) == request)
        return min(times, default=None)

    async def until_cancelled(self, lane: Key) -> None:
        """Wait for a cancellation; returns only if all are woken."""
        doomed = Doomed(trio.current_effective_deadline())
        self.doomed[lane] = doomed
        try:
            await doomed.woken.wait()
        finally:
            del self.doomed[lane]

    def give_turn(self, lane: Key) -> None:
        """Let a lane go on, if it waits for its turn."""
        parked = self.parked.pop(lane, None)
        if parked is not None:
            parked.turn.set()

    def wake_all(self) -> None:
        """The replay is over."""
        for parked in self.parked.values():
            parked.turn.set()
        for doomed in self.doomed.values():
            doomed.woken.set()

    def where(self) -> dict[str, str]:
        """For each lane but the calling one, the line at which it waits."""
        return {
            name_of(key): site_of(task) + (" (for its turn)" if key in self.parked else "")
            for key, task in self.tasks.items()
            if is_alive(task) and task is not trio.lowlevel.current_task()
        }


def name_of(lane: Key) -> str:
    """How a lane is called: by its name, and by its session if the file is of several."""
    channel, name = lane
    return name if channel == 0 else f"{name} of session {channel}"
