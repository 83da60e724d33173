"""Light events, a timer queue, and system tasks.

Whatever else left a system task would end the whole Trio run, as a fault of Trio's own.
"""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import takewhile
from typing import TypeAlias

import attrs
import msgspec
import trio

# --------------------
# What tasks wait for, which costs next to nothing while nobody does.


Told: TypeAlias = Callable[[], object]


class Wakeup(msgspec.Struct, eq=False):
    """Wakes whoever waits, as often as it is rung; who of them runs first is for Trio to say."""

    _waiting: dict[trio.lowlevel.Task, None] | None = None

    async def wait(self) -> None:
        """Wait until it is rung next."""
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = {}
        task = trio.lowlevel.current_task()
        waiting[task] = None

        def leave(_: object) -> trio.lowlevel.Abort:
            del waiting[task]
            if self._waiting is waiting and not waiting:
                self._waiting = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    def wake(self) -> None:
        """Wake everybody who waits."""
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            for task in waiting:
                trio.lowlevel.reschedule(task)


class LightEvent(Wakeup, eq=False):
    """Something that happens once; like `trio.Event`, and functions may hear of it as well."""

    _told: tuple[Told, ...] | None = ()
    """Those; None: it has happened."""

    def is_set(self) -> bool:
        """Return whether it has happened."""
        return self._told is None

    def when_set(self, told: Told) -> None:
        """Call `told` when it happens, before any task wakes; at once if it has happened.

        It must be quick, and not raise.
        """
        if self._told is None:
            told()
        else:
            self._told = (*self._told, told)

    def set(self) -> None:
        """It happens now, if it has not yet."""
        heard, self._told = self._told, None
        self.wake()
        for told in heard or ():
            told()

    async def wait(self) -> None:
        """Wait until it has happened; a checkpoint in any case."""
        if self.is_set():
            await trio.lowlevel.checkpoint()
        else:
            await super().wait()


# --------------------
# Many waits that take the same time at most, ended by one timer.


@attrs.define(eq=False)
class TimerQueue:
    """Rings for who has waited for `seconds`, while the wait goes on.

    A scope with a deadline for each wait would cost more than all else that is done to carry an
    answer. The task behind this begins with a wait, and ends when it finds none.
    """

    seconds: float
    # By the ends, since all last equally long.
    _ends: dict[Wakeup, float] = attrs.field(factory=dict[Wakeup, float], init=False)
    _is_running: bool = attrs.field(default=False, init=False)

    async def wait(self, wakeup: Wakeup) -> None:
        """Wait until it is rung by others, or until that has taken too long."""
        self._ends[wakeup] = trio.current_time() + self.seconds
        if not self._is_running:
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._run)
        try:
            await wakeup.wait()
        finally:
            self._ends.pop(wakeup, None)

    async def _run(self) -> None:
        try:
            while self._ends:
                await trio.sleep_until(next(iter(self._ends.values())))
                self._ring(trio.current_time())
        finally:
            self._is_running = False

    def _ring(self, now: float) -> None:
        due = list(takewhile(lambda wakeup: self._ends[wakeup] <= now, self._ends))
        for wakeup in due:
            del self._ends[wakeup]
            wakeup.wake()


# --------------------
# How those are told that have to wind down in their own order when they are cancelled.


async def call_when_cancelled(told: Callable[[], object]) -> None:
    """For a nursery beside or outside of them; `told` is called at once, and must be quick."""
    try:
        await trio.sleep_forever()
    finally:
        told()


ErrorGroup: TypeAlias = BaseExceptionGroup[BaseException]


@contextmanager
def contained(contain: Callable[[ErrorGroup], object]) -> Generator[None]:
    """Within, `contain` gets what must not leave the task; an interrupt goes to the main task."""
    try:
        yield
    except BaseException as error:
        faults = BaseExceptionGroup("", [error]).split(trio.Cancelled)[1]
        if faults is None:
            raise
        contain(faults)
        if faults.subgroup(KeyboardInterrupt) is not None:
            signal.raise_signal(signal.SIGINT)  # this task is protected: Trio tells the main task
