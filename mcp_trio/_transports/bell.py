"""What tasks wait for, which costs next to nothing while nobody does."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import trio

Told: TypeAlias = Callable[[], object]


class Bell(msgspec.Struct, eq=False):
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

    def ring(self) -> None:
        """Wake everybody who waits."""
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            for task in waiting:
                trio.lowlevel.reschedule(task)


class Milestone(Bell, eq=False):
    """Something that happens once; like `trio.Event`, and functions may hear of it as well."""

    _told: tuple[Told, ...] | None = ()
    """Those; None: it has happened."""

    def is_set(self) -> bool:
        """Whether it has happened."""
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
        self.ring()
        for told in heard or ():
            told()

    async def wait(self) -> None:
        """Wait until it has happened; a checkpoint in any case."""
        if self.is_set():
            await trio.lowlevel.checkpoint()
        else:
            await super().wait()
