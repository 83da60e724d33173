"""Lanes: who did it.

A request's handler has the lane `r` plus the number of the request's `in` record. A child task has
its spawner's lane, a dot, and the spawner's spawn count. Both depend on what the code does and not
on the order in which the scheduler runs tasks, so that the lanes of a replay are those of the
recording. What the session itself does at moments of its own has a lane named for it.

A handler may hold a session itself: a client that it opened, a server beside it. The tasks of that
inner session descend from the handler, and so act in its lane too. So a lane belongs to one total
order, and remembers the lane of the outer session in which it came to be: a callback of the inner
session has its own lane there, and one below the handler's here.

Spawning is seen through Trio's public `task_spawned` hook. Trio removes an instrument that raises,
so this one does nothing that can.
"""

from contextvars import Context, ContextVar
from random import Random
from typing import Final

import msgspec
import trio

START_ORDINAL: Final = 0


class Lane(msgspec.Struct, eq=False):
    """One line of execution; operations on it are numbered from 1, its start is 0.

    `order` is the sequencer that it belongs to; `outer` is what else the task is, elsewhere.
    `random` and `patches` are made at first need: its randomness, and which way it took at each
    change of the code. `is_in_effect` while one that it has begun runs in a thread.
    """

    name: str
    order: object = None
    outer: "Lane | None" = None
    ordinal: int = START_ORDINAL
    children: int = 0
    random: Random | None = None
    patches: dict[str, bool] | None = None
    is_in_effect: bool = False

    def next_ordinal(self) -> int:
        """The number of the operation that happens now."""
        self.ordinal += 1
        return self.ordinal

    def child(self) -> "Lane":
        """The lane of the next task that this one spawns."""
        outer = None if self.outer is None else self.outer.child()
        lane = Lane(f"{self.name}.{self.children}", self.order, outer)
        self.children += 1
        return lane


LANE: Final[ContextVar[Lane | None]] = ContextVar("mcp_trio_lane", default=None)


def enter_lane(lane: Lane) -> None:
    """The calling task is one of `lane` from now on, and remains what it was elsewhere."""
    lane.outer = LANE.get()
    LANE.set(lane)


def lane_in(order: object) -> Lane | None:
    """The calling task's lane in the total order of a sequencer; None if it has none there."""
    lane = LANE.get()
    while lane is not None and lane.order is not order:
        lane = lane.outer
    return lane


def as_spawned(context: Context) -> Context:
    """The context variables of a task that is spawned with these, but begins by other means."""
    copied = context.copy()
    if LANE in copied:
        _take_child(copied)
    return copied


def _take_child(context: Context) -> None:
    spawner = context.get(LANE)
    if spawner is not None:
        context.run(LANE.set, spawner.child())


class _LaneInstrument(trio.abc.Instrument):
    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        _take_child(task.context)


_INSTRUMENT: Final = trio.lowlevel.RunVar[_LaneInstrument | None]("mcp_trio_lanes", None)


def watch_lanes() -> None:
    """From now on each task of this Trio run gets its lane; one instrument a run, whoever asks."""
    if _INSTRUMENT.get() is None:
        instrument = _LaneInstrument()
        trio.lowlevel.add_instrument(instrument)
        _INSTRUMENT.set(instrument)
