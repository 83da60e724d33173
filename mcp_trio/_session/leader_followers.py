"""Leader/followers: the task that reads a request runs the handler's first step itself.

Most handlers of small requests never wait. In a task of its own such a handler costs two switches
between tasks and a cancel scope, a third of a small request. So handlers start like this, on every
transport:

- A *leader* is a coroutine that reads messages: the reader of a session, or the task of an HTTP
  connection. With `lead` it runs the first step of a handler, up to the handler's first wait.
- A handler that finishes without waiting has been answered by then, and the leader reads on.
- A handler that waits keeps the task, because Trio knows by the task what waits and what to
  cancel. The leader goes on at once in another task, the *follower*.
- Followers, and handlers that no leader could take, run in tasks of a *pool*. A pool task that has
  finished its work waits for more, in the same cancel scope, and ends after `_IDLE_SECONDS`.
- Idle HTTP connections need no task at all: one pool task waits for all of them with one *poller*,
  in which each connection stays registered, and continues those that have something to read.

Measured with the benchmark of this repository, as a share of the CPU time of a small call: leading
22 to 31 % (HTTP), the pool 18 to 32 % (stdio), the poller 11 to 16 % (HTTP, 16 connections or
more).

To change its task, a leader is driven by hand: its coroutine is stepped by `Leader`, which passes
Trio's own traps on to Trio and keeps two traps of this package: `WaitingJob` and `IdleConnection`.
A leader must not hold a cancel scope or a nursery open when it leads or becomes idle, because those
belong to the task. Where one is open, the handler starts in a pool task.

A pool task gives up its scope, and ends with it, when the scope was cancelled, or when a handler
left a scope or a nursery open in it, most often by a `break` out of an asynchronous generator that
yields inside of one. Trio raises an error when the surrounding scope exits; it is reported for that
request alone.

Caveats
-------
- Trio has no public name for the innermost cancel scope of a task. `_INNERMOST_SCOPE` is a private
  attribute of `trio.lowlevel.Task`; without it (a later Trio may rename it) no scope is used twice
  and no handler is led, and everything still works. The tests of scopes that a handler leaves open
  fail without it.
- A debugger that follows what a task awaits stops at the driver.
- Idle connections are not in the tree of tasks. The poller is `select.epoll`, which only Linux has;
  elsewhere each idle connection waits in a task.
"""

import logging
import select
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from types import coroutine
from typing import Any, Final, Protocol, TypeAlias, TypeVar, TypeVarTuple

import attrs
import msgspec
import outcome
import trio

from mcp_trio._session.lanes import LANE, Lane, Trap, as_spawned, drive, enter_lane
from mcp_trio._transports.concurrency import IdleConnection, LightEvent

T = TypeVar("T")
Values = TypeVarTuple("Values")

logger = logging.getLogger("mcp_trio")

_IDLE_TASKS_MAX: Final = 128
_IDLE_SECONDS: Final = 5.0

# The number of idle connections that may continue before all other tasks have had their turn.
_READY_MAX: Final = 16

# The private attribute of a Trio task with its innermost cancel scope; see the caveats above.
_INNERMOST_SCOPE: Final = "_cancel_status"

# The interval at which a task checks whether a nursery that a handler left open has closed.
_NURSERY_POLL_SECONDS: Final = 1.0


class Job(Protocol):
    """A handler that is run once: `run` or `run_in_leader`, then `fail` if it raised, then `end`.

    The implementation for requests is `Handling`. This module knows nothing of requests, and its
    tests run jobs of their own.
    """

    @property
    def is_cancelled(self) -> bool:
        """True if the job cancelled the scope that it was given."""
        ...

    @property
    def lane(self) -> Lane | None:
        """The lane in which the job runs; None if it is not recorded."""
        ...

    def run(self, scope: trio.CancelScope) -> Coroutine[Any, Any, None]:
        """Run the handler; cancelling `scope` cancels it and nothing else."""
        ...

    def run_in_leader(self, scope: trio.CancelScope) -> Coroutine[Any, Any, None] | None:
        """Return the coroutine of the handler, whose first step a leader runs now.

        This call journals the first step. The caller journals the later ones, by `drive`. Returns
        None if the job has to start by `run` in a task of its own.
        """
        ...

    def fail(self, error: Exception) -> None:
        """Report that the handler failed with this error."""
        ...

    def end(self) -> None:
        """Send the response; called once, outside of the scope if that was cancelled."""
        ...


class CollectedJob(msgspec.Struct, eq=False):
    """A job that was started while a leader collected jobs, and that `lead` will run."""

    job: Job
    context: Context
    pool: "TaskPool"

    def run_in_pool(self) -> None:
        """Run the job in a task of the pool, and not in a leader."""
        self.pool.run(self.job, self.context)


class WaitingJob(msgspec.Struct, eq=False):
    """The trap with which a leader gives its task to a job that waits, or has used up the scope.

    `trap` is the wait, one of Trio's own traps; `_ENDED` if the job has ended.
    """

    job: Job
    running: Coroutine[Any, Any, None]
    context: Context
    trap: Any


@coroutine
def lead(jobs: list[CollectedJob]) -> Generator[WaitingJob, None, None]:
    """Run the first steps of these jobs in the leader that calls this. Empties the list.

    Afterwards each job has ended, or has kept a task; the leader may continue in another task. Not
    a checkpoint. When the leader is closed meanwhile, the remaining jobs run in pool tasks.
    """
    jobs.reverse()
    try:
        while jobs:
            waiting = _POOL_TASKS[trio.lowlevel.current_task()].run_first_steps(jobs)
            if waiting is not None:
                yield waiting
                del waiting  # it must not stay in memory while the leader goes on
    finally:
        while jobs:
            jobs.pop().run_in_pool()


PoolTrap: TypeAlias = WaitingJob | IdleConnection | None
"""A trap that the pool handles, and does not pass on to Trio; None if the leader has ended."""


# In place of a trap, if a job has ended in its first step. None may be a trap: the one of a `yield`
# without a value, such as that of `asyncio.sleep(0)`.
_ENDED: Final = object()
# Trio gets this in place of None, and raises a TypeError in the handler, as for any unknown trap.
_BARE_YIELD: Final = "None"


@attrs.define(eq=False, repr=False)
class Leader:
    """A coroutine that reads messages and leads handlers; the task that runs it may change.

    Attributes:
        driven: The coroutine; it raises nothing that is an `Exception`.
        context: Its context variables.
        idle: Its entry in the poller, while it has one.
        has_turn: Whether it is in the poller's queue of connections that have something to read.
        scope: The scope of the task that drives it.
        is_cancelled: Whether `cancel` was called.
    """

    driven: Coroutine[Any, Any, None]
    context: Context
    idle: IdleConnection | None = attrs.field(default=None, init=False)
    has_turn: bool = attrs.field(default=False, init=False)
    scope: trio.CancelScope | None = attrs.field(default=None, init=False)
    is_cancelled: bool = attrs.field(default=False, init=False)
    _is_waiting: bool = attrs.field(default=False, init=False)

    def cancel(self) -> None:
        """Cancel the wait that the leader is in, or the next one.

        The scope belongs to the task, which may be running the first step of a handler just now:
        it is cancelled only while the leader itself waits.
        """
        self.is_cancelled = True
        if self._is_waiting and self.scope is not None:
            self.scope.cancel()

    def step(self) -> Trap:
        """Run one step in the calling task; return the trap at which the step ends.

        The task of the poller continues idle connections with this: most of them come to a trap of
        the pool, and so never need a task of their own.
        """
        return self.context.run(next, self.driven.__await__(), None)

    @coroutine
    def run_until_pool_trap(
        self, scope: trio.CancelScope, trap: Trap = None
    ) -> Generator[Any, Any, PoolTrap]:
        """Continue in the calling task, whose scope this is, up to a trap of the pool.

        `trap` is one of Trio that it has come to already.
        """
        self.scope = scope
        try:
            trap = trap or self.driven.send(None)
            while type(trap) is not WaitingJob and type(trap) is not IdleConnection:
                self._is_waiting = True
                if self.is_cancelled:
                    scope.cancel()
                sent = yield trap
                self._is_waiting = False
                trap = self.driven.send(sent)
        except StopIteration:
            return None
        finally:
            self.scope = None
        return trap


@attrs.define(eq=False, repr=False)
class Poller:
    """The leaders of idle connections, by file descriptor, and those that have something to read.

    The networks of clients take turns, and so do the connections from one network. The kernel's
    order would not do: a connection that has more to read, because its client sends without waiting
    for responses, stays in front of all others.

    Attributes:
        has_task: Whether a pool task runs the poller.
    """

    has_task: bool = attrs.field(default=False, init=False)
    _idle: dict[int, Leader] = attrs.field(factory=dict[int, Leader], init=False)
    # Those that have something to read, by network; the network whose turn is next comes first.
    _turns: dict[str | None, deque[Leader]] = attrs.field(
        factory=dict[str | None, deque[Leader]], init=False
    )
    # How many of them may continue before the poller waits, so that other tasks run.
    _turns_left: int = attrs.field(default=0, init=False)
    _epoll: Any = attrs.field(default=None, init=False)  # a `select.epoll`, of Linux

    @property
    def has_idle_connections(self) -> bool:
        """True while any connection is idle."""
        return bool(self._idle)

    def add(self, leader: Leader, connection: IdleConnection) -> bool:
        """Register an idle connection; return False if that is not possible."""
        if sys.platform != "linux":  # only Linux has epoll
            return False
        try:
            if self._epoll is None:
                self._epoll = select.epoll()
            self._epoll.register(connection.fd, select.EPOLLIN)
        except OSError:  # too many descriptors are open, or are polled in the whole system
            return False
        if len(self._idle) == 1:  # End the wait for the connection that was the only one.
            (fd,) = self._idle
            trio.lowlevel.notify_closing(fd)
        self._idle[connection.fd], leader.idle = leader, connection
        connection.unregister = partial(self.remove, leader)
        return True

    def remove(self, leader: Leader) -> None:
        """Unregister a connection that ends, or waits for something else, if it is registered."""
        connection, leader.idle = leader.idle, None
        if connection is None:
            return
        assert self._epoll is not None
        connection.unregister = None
        del self._idle[connection.fd]
        self._epoll.unregister(connection.fd)
        if not self._idle:
            self._epoll.close()
            self._epoll = None

    async def next(self) -> Leader | None:
        """Wait for a leader that has something to read, and return it.

        Returns None if that leader is not idle any more, or if `add` has ended the wait; the caller
        calls this again. If this is cancelled, all connections are still registered.
        """
        if not self._turns and len(self._idle) == 1:
            # Waiting for the only idle connection directly costs less than through epoll.
            ((fd, only),) = self._idle.items()
            try:
                await trio.lowlevel.wait_readable(fd)
            except trio.ClosedResourceError:  # `add` has ended the wait
                return None
            return only if only.idle is not None else None
        if not self._turns or not self._turns_left:
            assert self._epoll is not None
            await trio.lowlevel.wait_readable(self._epoll)
            for fd, _ in self._epoll.poll(0, max(len(self._idle), 1)):
                self._add_turn(self._idle[fd])
            self._turns_left = _READY_MAX
        while self._turns:
            network = next(iter(self._turns))
            leaders = self._turns.pop(network)
            leader = leaders.popleft()
            if leaders:
                self._turns[network] = leaders
            leader.has_turn = False
            if leader.idle is not None:  # it has not been removed
                self._turns_left -= 1
                return leader
        return None

    def _add_turn(self, leader: Leader) -> None:
        if not leader.has_turn:
            assert leader.idle is not None
            leader.has_turn = True
            self._turns.setdefault(leader.idle.network, deque()).append(leader)

    def close(self) -> None:
        """Close all leaders that are idle."""
        self._turns.clear()
        for leader in [*self._idle.values()]:
            self.remove(leader)
            leader.context.run(leader.driven.close)


Work: TypeAlias = Job | Leader | Poller


@attrs.define(eq=False, repr=False)
class TaskPool:
    """Tasks of one nursery that run handlers, leaders and the poller, one after the other.

    The nursery waits for idle tasks until `close`.
    """

    nursery: trio.Nursery
    # The idle tasks, the one that has been idle longest first.
    _idle: list[trio.lowlevel.Task] = attrs.field(factory=list[trio.lowlevel.Task], init=False)
    # The empty context variables of idle tasks, so that these keep no session in memory.
    _idle_context: Context = attrs.field(factory=Context, init=False)
    # The fewest tasks that were idle at one time since `_end_unneeded` has looked.
    _unneeded: int = attrs.field(default=0, init=False)
    # Whether a task runs `_end_unneeded`.
    _has_watcher: bool = attrs.field(default=False, init=False)
    _closing: LightEvent = attrs.field(factory=LightEvent, init=False)
    # The jobs that were started within `collect`; None outside of it.
    _collected: list[CollectedJob] | None = attrs.field(default=None, init=False)
    _poller: Poller = attrs.field(factory=Poller, init=False)

    def start_job(self, job: Job, context: Context) -> None:
        """Start a job with a copy of these context variables: collect it, or run it in a task."""
        if self._collected is None:
            self.run(job, context)
        else:
            self._collected.append(CollectedJob(job, context, self))

    def collect(
        self, deliver: Callable[[*Values], T], *values: *Values
    ) -> tuple[T, list[CollectedJob]]:
        """Call `deliver`, and return its result with the jobs that it started and the caller leads.

        When `deliver` raises, the jobs run in pool tasks.
        """
        jobs = self._collected = []
        try:
            return deliver(*values), jobs
        except BaseException:
            for job in jobs:
                job.run_in_pool()
            raise
        finally:
            self._collected = None

    def start_leader(self, function: Callable[[], Coroutine[Any, Any, None]]) -> Leader:
        """Run a leader, the coroutine of `function`, in the current context variables."""
        context = copy_context()
        leader = Leader(function(), context)
        self.run(leader, context)
        return leader

    def watch(self, leader: Leader, connection: IdleConnection) -> bool:
        """Give an idle connection to the poller; return False if it has to wait in its own task."""
        is_added = self._poller.add(leader, connection)
        if is_added and not self._poller.has_task:
            self.run_poller()
        return is_added

    def run_poller(self) -> None:
        """Give the poller a task."""
        self._poller.has_task = True
        self.run(self._poller, self._idle_context)

    def run(self, work: Work, context: Context) -> None:
        """Run something in an idle task, or in a new one."""
        if self._idle:
            task = self._idle.pop()
            self._unneeded = min(self._unneeded, len(self._idle))
            task.context = as_spawned(
                context, None if isinstance(work, Leader | Poller) else work.lane
            )
            trio.lowlevel.reschedule(task, outcome.Value(work))
        else:
            context.run(self.nursery.start_soon, _PoolTask(self, work).run)

    async def next_work(self) -> Work | None:
        """Wait, as an idle task, for something to run; return None if the task has to end."""
        if self._closing.is_set() or len(self._idle) >= _IDLE_TASKS_MAX:
            return None
        task = trio.lowlevel.current_task()
        task.context = self._idle_context
        self._idle.append(task)
        if not self._has_watcher:
            self._has_watcher = True
            self._idle_context.run(self.nursery.start_soon, self._end_unneeded)

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        work: Work | None = await trio.lowlevel.wait_task_rescheduled(abort)
        return work

    def close(self) -> None:
        """End all idle tasks, and let no task become idle."""
        self._closing.set()
        self._end_idle(len(self._idle))

    async def _end_unneeded(self) -> None:
        """End the idle tasks that nothing needed between two looks; runs while there are some."""
        while self._idle:
            self._unneeded = len(self._idle)
            with trio.move_on_after(_IDLE_SECONDS):
                await self._closing.wait()
            self._end_idle(self._unneeded)
        self._has_watcher = False

    def _end_idle(self, count: int) -> None:
        """End those that have been idle longest: the last one to become idle is used first."""
        ended, self._idle = self._idle[:count], self._idle[count:]
        for task in ended:
            trio.lowlevel.reschedule(task, outcome.Value(None))


@attrs.define(eq=False, repr=False)
class _PoolTask:
    """One task of a pool. Only `work` refers to what it runs: an idle task keeps no session."""

    pool: TaskPool
    work: Work | None
    _task: trio.lowlevel.Task = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(init=False)
    # What Trio knows as the innermost scope of the task while only `_scope` is open in it.
    _innermost: object = attrs.field(init=False)
    # Whether `_scope` has closed because the work left a scope or a nursery open in it.
    _had_open_scope: bool = attrs.field(init=False)

    async def run(self) -> None:
        """Run the first work, in the context variables of the spawn, and what follows."""
        if not isinstance(self.work, Leader | Poller | None) and self.work.lane is not None:
            enter_lane(self.work.lane)
        task = trio.lowlevel.current_task()
        _POOL_TASKS[task] = self
        try:
            while self.work is not None:
                has_ended = False
                try:
                    has_ended = await self._run_in_one_scope()
                except Exception as error:
                    self._fail(error)
                if not has_ended:
                    # The scope has closed; if the job was cancelled, it has caught `Cancelled`.
                    self._end_work()
                    await _close_nurseries_left_open()
                    self.work = await self.pool.next_work()
        finally:
            del _POOL_TASKS[task]

    async def _run_in_one_scope(self) -> bool:
        """Run work until there is none (True), or until the scope cannot be used again (False)."""
        with trio.CancelScope() as scope:
            self._scope, self._task = scope, trio.lowlevel.current_task()
            self._had_open_scope = False
            self._innermost = getattr(self._task, _INNERMOST_SCOPE, self)
            while self.work is not None:
                if isinstance(self.work, Leader):
                    await self._drive(self.work)
                elif isinstance(self.work, Poller):
                    await self._poll(self.work)
                else:
                    await self.work.run(scope)
                # If the leader or the poller has given this task to a job, `work` is that job now.
                is_cancelled = not isinstance(self.work, Poller) and self.work.is_cancelled
                if is_cancelled or self._has_open_scope():
                    self._had_open_scope = self._has_open_scope()
                    return False
                self._end_work()
                self.work = await self.pool.next_work()
        return self.work is None

    def _has_open_scope(self) -> bool:
        """Return whether a scope is open inside of `_scope`, or Trio does not reveal it."""
        return getattr(self._task, _INNERMOST_SCOPE, None) is not self._innermost

    async def _drive(self, leader: Leader, trap: Trap = None) -> None:
        """Continue a leader until it ends, becomes idle, or led a handler that keeps this task."""
        leader.context = self._task.context
        try:
            while self.work is leader:
                pool_trap = await leader.run_until_pool_trap(self._scope, trap)
                trap = None
                if isinstance(pool_trap, WaitingJob):
                    await self._run_job(pool_trap, leader)
                    return
                # An idle leader leaves this task only where Trio tells the innermost scope: a scope
                # that the leader left open would otherwise stay behind with the task unnoticed.
                if pool_trap is None or (
                    hasattr(self._task, _INNERMOST_SCOPE) and self.pool.watch(leader, pool_trap)
                ):
                    return
                with suppress(trio.ClosedResourceError):  # the leader meets it when it reads
                    await trio.lowlevel.wait_readable(pool_trap.fd)
                del pool_trap
        except BaseException:
            if self.work is leader:
                leader.driven.close()
            raise

    def run_first_steps(self, jobs: list[CollectedJob]) -> WaitingJob | None:
        """Run the first steps of jobs; return the first job that has to keep this task."""
        task, scope, innermost = self._task, self._scope, self._innermost
        has_open_scope = self._has_open_scope()
        while jobs:
            collected = jobs.pop()
            job, context = collected.job, collected.context
            running = None if has_open_scope else job.run_in_leader(scope)
            if running is None:
                collected.run_in_pool()
                continue
            lane, trap = job.lane, _ENDED
            is_in_no_lane = lane is None and LANE not in context  # as in most sessions
            context = context.copy() if is_in_no_lane else as_spawned(context, lane)
            try:
                # As `send`, but without a `StopIteration` at the end of the handler.
                trap = context.run(next, running.__await__(), _ENDED)
            except Exception as error:
                job.fail(error)
            # As `_has_open_scope`, which costs more.
            has_open_scope = getattr(task, _INNERMOST_SCOPE, None) is not innermost
            if trap is not _ENDED or has_open_scope or job.is_cancelled:
                return WaitingJob(job, running, context, trap)
            job.end()
        return None

    async def _run_job(self, waiting: WaitingJob, leader: Leader) -> None:
        """Run a job to its end in this task, and the leader in another one."""
        self._keep_task_for(waiting.job, leader)
        # A copy: if this task runs in the leader's context, no other task can enter that.
        self.pool.run(leader, leader.context.copy())
        if waiting.trap is not _ENDED:
            lane = waiting.job.lane
            lanes = () if lane is None or not lane.has_steps else (lane,)
            self._task.context = waiting.context
            await drive(waiting.running, lanes, waiting.trap or _BARE_YIELD)

    def _keep_task_for(self, work: Work, leader: Leader) -> None:
        """Give this task to `work`, which is a job of `leader` or the leader itself.

        If the task ran the poller, the leader is no longer idle, and the poller gets another task.
        """
        poller, self.work = self.work, work
        if isinstance(poller, Poller):
            poller.remove(leader)
            self._leave(poller)

    async def _poll(self, poller: Poller) -> None:
        """Continue connections that have something to read, while there are idle ones."""
        try:
            while (
                self.work is poller and poller.has_idle_connections and not self._has_open_scope()
            ):
                leader = await poller.next()
                if leader is not None:
                    await self._continue(poller, leader)
            if self.work is poller:
                self._leave(poller)
        except BaseException:
            if self.work is poller:
                poller.close()
                poller.has_task = False
            raise

    def _leave(self, poller: Poller) -> None:
        """Give the poller another task, or none while no connection is idle."""
        if poller.has_idle_connections:
            self.pool.run_poller()
        else:
            poller.has_task = False

    async def _continue(self, poller: Poller, leader: Leader) -> None:
        """Continue a connection until it is idle or has ended; if it waits, it keeps the task."""
        trap = leader.step()
        if isinstance(trap, WaitingJob):
            await self._run_job(trap, leader)
        elif trap is None:
            poller.remove(leader)
        elif not isinstance(trap, IdleConnection):
            self._keep_task_for(leader, leader)
            self._task.context = leader.context
            await self._drive(leader, trap)

    def _fail(self, error: Exception) -> None:
        if self.work is None:  # an error of the pool itself
            raise error
        if not isinstance(self.work, Leader | Poller):
            self.work.fail(error)
        elif self._had_open_scope:
            logger.error("an HTTP handler left a cancel scope or a nursery open", exc_info=error)
        else:
            raise error

    def _end_work(self) -> None:
        """End a job; when that fails, it is not tried again."""
        work, self.work = self.work, None
        if not isinstance(work, Leader | Poller | None):
            work.end()


_POOL_TASKS: Final[dict[trio.lowlevel.Task, _PoolTask]] = {}
"""The running tasks of all pools, in which `lead` finds the one that runs its caller."""


async def _close_nurseries_left_open() -> None:
    """Cancel nurseries that a handler left open, and wait until they are closed.

    Trio would cancel the whole pool if this task ended before them. The generator that opened such
    a nursery closes it when it is garbage collected.
    """
    task = trio.lowlevel.current_task()
    for nursery in task.child_nurseries:
        nursery.cancel_scope.cancel()
    while task.child_nurseries:  # noqa: ASYNC110 - Trio has no event for this
        await trio.sleep(_NURSERY_POLL_SECONDS)
