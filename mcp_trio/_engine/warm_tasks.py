"""Tasks that run one handler after the other.

A task and a cancel scope of its own are a fifth of what a small request costs. So a task that is
done with a handler waits for another one, in the scope that it is in, and begins with that one as
if it were new: with context variables as they were when its session began, and a lane as a spawned
task would have it. Tasks that nobody needed for `_REST_SECONDS` end, so where nothing happens there
is no task.

A task is given up, with its scope, when

- its handler was cancelled, for that is the scope's end;
- its handler has left a cancel scope or a nursery open, most often by a `break` out of an
  asynchronous generator that yields inside of one. Trio tells that when the scope around it is
  left. It is the fault of that handler, and the failure of its request alone: the next one must not
  be cancelled by what nobody holds any more;
- it is one of a replay, where a handler is known by its task.

What is ugly: Trio has no word for the innermost scope of a task, so its private one is compared.
Where it is not to be had no task is used twice.
"""

from contextvars import Context
from typing import Final, Protocol

import attrs
import outcome
import trio

from mcp_trio._engine.lanes import as_spawned
from mcp_trio._transports.bell import Milestone

_RESTING_MAX: Final = 128
_REST_SECONDS: Final = 5.0

# How often it is looked whether a nursery that a handler left open is closed at last.
_LOOK_SECONDS: Final = 1.0


class Job(Protocol):
    """One handler, which is run and then ended."""

    @property
    def wants_own_task(self) -> bool:
        """Whether the task that runs it may run nothing else."""
        ...

    def enter(self) -> None:
        """The context variables are its own from now on; called before it runs."""
        ...

    async def run(self, scope: trio.CancelScope) -> None:
        """Run it; `scope` is all that cancels it, but for the end of everything."""
        ...

    def fail(self, error: Exception) -> None:
        """What it has done is worth nothing: it has failed with this."""
        ...

    async def end(self) -> None:
        """Say what has become of it; called once, outside of the scope if that was cancelled."""
        ...


@attrs.define(eq=False)
class WarmTasks:
    """See the module; all tasks are in `nursery`, which waits for those that rest until `close`."""

    nursery: trio.Nursery
    _resting: list[trio.lowlevel.Task] = attrs.field(factory=list[trio.lowlevel.Task], init=False)
    _nobodys: Context = attrs.field(factory=Context, init=False)
    _unneeded: int = attrs.field(default=0, init=False)
    _has_watcher: bool = attrs.field(default=False, init=False)
    _closing: Milestone = attrs.field(factory=Milestone, init=False)

    def start(self, job: Job, context: Context) -> None:
        """Begin a job, in a task that begins with a copy of these context variables."""
        if self._resting and not job.wants_own_task:
            resting = self._resting.pop()
            self._unneeded = min(self._unneeded, len(self._resting))
            resting.context = as_spawned(context)
            resting.context.run(job.enter)
            trio.lowlevel.reschedule(resting, outcome.Value(job))
        else:
            task = _WarmTask(self, job, rests=not job.wants_own_task)
            context.run(self.nursery.start_soon, task.run)

    async def rest(self) -> Job | None:
        """Wait for the next job of the calling task; None: there is none any more."""
        if self._closing.is_set() or len(self._resting) >= _RESTING_MAX:
            return None
        task = trio.lowlevel.current_task()
        task.context = self._nobodys
        self._resting.append(task)
        if not self._has_watcher:
            self._has_watcher = True
            self._nobodys.run(self.nursery.start_soon, self._watch)

        def leave(_: object) -> trio.lowlevel.Abort:
            self._resting.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        job: Job | None = await trio.lowlevel.wait_task_rescheduled(leave)
        return job

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._closing.set()
        self._dismiss(len(self._resting))

    async def _watch(self) -> None:
        """Dismiss those that were not needed between two looks; there while some rest."""
        while self._resting:
            self._unneeded = len(self._resting)
            with trio.move_on_after(_REST_SECONDS):
                await self._closing.wait()
            self._dismiss(self._unneeded)
        self._has_watcher = False

    def _dismiss(self, count: int) -> None:
        """The last one to rest is the first to work, so the first ones have rested longest."""
        dismissed, self._resting = self._resting[:count], self._resting[count:]
        for task in dismissed:
            trio.lowlevel.reschedule(task, outcome.Value(None))


@attrs.define(eq=False)
class _WarmTask:
    """One of them; only `job` refers to what it runs, for what rests must keep no session."""

    among: WarmTasks
    job: Job | None
    rests: bool

    async def run(self) -> None:
        """What the task does; the job with which it begins enters here, later ones before."""
        self._enter()
        while self.job is not None:
            is_done = False
            try:
                is_done = await self._run_in_one_scope()
            except Exception as error:
                self._fail(error)
            if not is_done:
                await self._end_job()
                await _outlive_nurseries()
                self.job = await self._rest()

    def _enter(self) -> None:
        assert self.job is not None
        self.job.enter()

    async def _run_in_one_scope(self) -> bool:
        """Run jobs until the scope is spent, or none comes; returns whether all of them ended."""
        task = trio.lowlevel.current_task()
        with trio.CancelScope() as scope:
            innermost = _innermost(task)
            while self.job is not None:
                await self.job.run(scope)
                if scope.cancel_called or _innermost(task) is not innermost:
                    return False
                await self._end_job()
                self.job = await self._rest()
        return self.job is None

    def _fail(self, error: Exception) -> None:
        if self.job is None:  # it was about to end, and that is our own fault
            raise error
        self.job.fail(error)

    async def _end_job(self) -> None:
        """What fails in here is no fault of the job, which is not ended twice."""
        job, self.job = self.job, None
        assert job is not None
        await job.end()

    async def _rest(self) -> Job | None:
        return await self.among.rest() if self.rests else None


def _innermost(task: trio.lowlevel.Task) -> object:
    """What stands for the innermost scope of a task; something else each time if nobody knows."""
    return getattr(task, "_cancel_status", None) or object()


async def _outlive_nurseries() -> None:
    """Cancel what was left open, and stay until it is closed.

    If the calling task ended before, Trio would cancel all that is beside it. A generator closes
    what it has opened when nothing refers to it any more.
    """
    task = trio.lowlevel.current_task()
    for nursery in task.child_nurseries:
        nursery.cancel_scope.cancel()
    while task.child_nurseries:  # noqa: ASYNC110 - Trio tells nobody
        await trio.sleep(_LOOK_SECONDS)
