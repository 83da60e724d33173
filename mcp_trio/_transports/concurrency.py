"""Additions to Trio's primitives: light events, a timer queue, a fair semaphore, idle waits."""

import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import coroutine
from typing import Final, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._protocol.shares import ClientKey, Queue

Callback: TypeAlias = Callable[[], object]
ErrorGroup: TypeAlias = BaseExceptionGroup[BaseException]


class Wakeup(msgspec.Struct, eq=False, gc=False):
    """Wakes the tasks that wait for it, any number of times.

    A `trio.lowlevel.ParkingLot` that costs next to nothing while no task waits. The order in which
    the tasks run is left to Trio.
    """

    _waiting: dict[trio.lowlevel.Task, None] | None = None

    async def wait(self) -> None:
        """Wait for the next `wake`."""
        waiting = self._waiting
        if waiting is None:
            waiting = self._waiting = {}
        task = trio.lowlevel.current_task()
        waiting[task] = None

        def abort(_: object) -> trio.lowlevel.Abort:
            del waiting[task]
            if not waiting:
                self._waiting = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def wake(self) -> None:
        """Wake all tasks that wait."""
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            for task in waiting:
                trio.lowlevel.reschedule(task)


class LightEvent(Wakeup, eq=False, gc=True):
    """An event that happens once, like `trio.Event`; functions can be called when it is set."""

    _functions: tuple[Callback, ...] | None = ()
    """The functions to call; None once the event is set."""

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._functions is None

    def when_set(self, function: Callback) -> None:
        """Call `function` when the event is set, before any task wakes; at once if it is set.

        The function must be quick, and must not raise.
        """
        if self._functions is None:
            function()
        else:
            self._functions = (*self._functions, function)

    def set(self) -> None:
        """Set the event; does nothing the second time."""
        functions, self._functions = self._functions, None
        self.wake()
        for function in functions or ():
            function()

    async def wait(self) -> None:
        """Wait until the event is set; a checkpoint in any case."""
        if self.is_set():
            await trio.lowlevel.checkpoint()
        else:
            await super().wait()


SET_EVENT: Final = LightEvent(_functions=None)
"""An event that is set. It has no state, so owners of set events share it, to save memory."""


@attrs.define(eq=False, repr=False)
class TimerQueue:
    """Wakes tasks that have waited for `seconds`; one timer for many waits of the same length.

    A cancel scope with a deadline for each wait would cost more than all other work for a response.
    The queue's system task starts with the first wait, and ends when there is none.
    """

    seconds: float
    # In the order of their ends, since all waits have the same length.
    _ends: dict[Wakeup, float] = attrs.field(factory=dict[Wakeup, float], init=False)
    _is_running: bool = attrs.field(default=False, init=False)

    async def wait(self, wakeup: Wakeup) -> None:
        """Wait for `wakeup`, which this queue wakes after `seconds` if nothing else does."""
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
                now = trio.current_time()
                due: list[Wakeup] = []
                for wakeup, end in self._ends.items():
                    if end > now:
                        break
                    due.append(wakeup)
                for wakeup in due:
                    del self._ends[wakeup]
                    wakeup.wake()
        finally:
            self._is_running = False


@attrs.define(eq=False, repr=False)
class FairSemaphore:
    """A semaphore whose clients take turns, each with a share of the places.

    Args:
        places: The places, with the maximum of one client and of all.
    """

    _queue: Queue[tuple[trio.lowlevel.Task, ClientKey]] = attrs.field(
        converter=Queue, alias="places"
    )

    async def acquire(self, client: ClientKey) -> None:
        """Take a place for a client, in its turn. A checkpoint; a cancelled call takes none."""
        await trio.lowlevel.checkpoint_if_cancelled()
        queue = self._queue
        if queue.may_start(client):
            queue.enter(client)
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        task = trio.lowlevel.current_task()
        queue.wait(client, (task, client))

        def abort(_: object) -> trio.lowlevel.Abort:
            queue.withdraw(client, (task, client))
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def release(self, client: ClientKey) -> None:
        """Give back a place of a client; the client whose turn it is gets it."""
        following = self._queue.leave(client)
        if following is not None:
            task, next_client = following
            self._queue.enter(next_client)
            trio.lowlevel.reschedule(task)


async def call_when_cancelled(function: Callback) -> None:
    """Wait until this task is cancelled, then call `function`, which must be quick.

    Start this in a nursery around shielded tasks: when the nursery is cancelled, `function` can
    tell these tasks to end, in the order that they need.
    """
    try:
        await trio.sleep_forever()
    finally:
        function()


@contextmanager
def errors_handled_by(handle: Callable[[ErrorGroup], object]) -> Generator[None]:
    """Pass the errors of a block to `handle`, so that only `Cancelled` leaves the block.

    This is for system tasks: Trio takes any other exception of such a task for an error of its own,
    and ends the run. A `KeyboardInterrupt` is raised again in the main task.
    """
    try:
        yield
    except BaseException as error:
        errors = BaseExceptionGroup("", [error]).split(trio.Cancelled)[1]
        if errors is None:
            raise
        handle(errors)
        if errors.subgroup(KeyboardInterrupt) is not None:
            # System tasks are protected from Ctrl-C, so Trio interrupts the main task.
            signal.raise_signal(signal.SIGINT)


class IdleConnection(msgspec.Struct, eq=False):
    """A connection that waits for its next request, while one poller watches many of these.

    The task of a connection yields the same object each time that the connection is idle.

    Attributes:
        fd: The descriptor to poll for input or end of file.
        network: The network of the client. If many connections are ready, those from different
            networks take turns.
        unregister: Removes `fd` from the poller; set while the poller watches `fd`.
    """

    fd: int
    network: str | None = None
    unregister: Callable[[], None] | None = None

    def end(self) -> None:
        """Remove `fd` from its poller; call this before `fd` is closed.

        The kernel goes on polling a closed descriptor if another process has inherited it.
        """
        if self.unregister is not None:
            self.unregister()


@coroutine
def wait_idle(connection: IdleConnection) -> Generator[IdleConnection, None, None]:
    """Suspend until the socket is readable.

    This yields to the `Leader` of `_session/leader_followers.py`, not to Trio. Only a coroutine
    that a `Leader` steps by hand may await this, and no cancel scope of the coroutine may be open.
    The wait may end too early. A `Leader` closes a coroutine that it never resumes.
    """
    yield connection
