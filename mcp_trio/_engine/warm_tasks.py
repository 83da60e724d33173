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
  be cancelled by what nobody holds any more. So with what an application does before there is a
  handler, which is logged;
- it is one of a replay, where a handler is known by its task.

What serves a connection runs in such tasks too, and takes first steps of handlers: see `leading`.
One such task waits for all connections that rest: see `lookout`.

What is ugly: Trio has no word for the innermost scope of a task, so its private one is compared.
Where it is not to be had no task is used twice.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Final, TypeAlias, TypeVar

import attrs
import outcome
import trio

from mcp_trio._engine.jobs import Job
from mcp_trio._engine.lanes import as_spawned
from mcp_trio._engine.leading import Asked, Led, Served, until_asked
from mcp_trio._engine.lookout import Lookout, Serving
from mcp_trio._engine.strays import is_watched
from mcp_trio._transports.bell import Milestone
from mcp_trio._transports.resting import Resting

T = TypeVar("T")

logger = logging.getLogger("mcp_trio")

_RESTING_MAX: Final = 128
_REST_SECONDS: Final = 5.0

# Where Trio has the innermost scope of a task.
_INNERMOST: Final = "_cancel_status"

# How often it is looked whether a nursery that a handler left open is closed at last.
_LOOK_SECONDS: Final = 1.0


_Work: TypeAlias = Job | Serving | Lookout


@attrs.define(eq=False)
class WarmTasks:
    """See the module; all tasks are in `nursery`, which waits for those that rest until `close`."""

    nursery: trio.Nursery
    _resting: list[trio.lowlevel.Task] = attrs.field(factory=list[trio.lowlevel.Task], init=False)
    _nobodys: Context = attrs.field(factory=Context, init=False)
    _unneeded: int = attrs.field(default=0, init=False)
    _has_watcher: bool = attrs.field(default=False, init=False)
    _closing: Milestone = attrs.field(factory=Milestone, init=False)
    _is_holding: bool = attrs.field(default=False, init=False)
    _held: Led | None = attrs.field(default=None, init=False)
    _lookout: Lookout = attrs.field(factory=Lookout, init=False)

    def start(self, job: Job, context: Context) -> None:
        """Begin a job, in a task that begins with a copy of these context variables."""
        may_be_held = self._is_holding and self._held is None
        if may_be_held and not (job.wants_own_task or is_watched(context)):
            self._held = Led(job, context, self)
        else:
            self.begin(job, context)

    def first_of(self, deliver: Callable[[], T]) -> tuple[T, Led | None]:
        """Call `deliver`; the first job that it starts is not begun, but given to the caller.

        Who has to `lead` it at once. None: there is none, or it needs a task of its own, or is
        watched. Where `deliver` raises, what it has started is begun.
        """
        self._is_holding = True
        try:
            delivered = deliver()
        except BaseException:
            held = self._let_go()
            if held is not None:
                held.begin()
            raise
        return delivered, self._let_go()

    def _let_go(self) -> Led | None:
        held, self._held, self._is_holding = self._held, None, False
        return held

    def serve(self, served: Served) -> None:
        """Begin what serves, and may lead."""
        context = copy_context()
        self.begin(Serving(served(), context), context)

    def look_after(self, serving: Serving, resting: Resting) -> bool:
        """Let it rest until there is something to read; False: it has to wait in its task."""
        is_added = self._lookout.add(serving, resting)
        if is_added and not self._lookout.is_kept:
            self.hand_over(self._lookout)
        return is_added

    def hand_over(self, lookout: Lookout) -> None:
        """Another task has the lookout from now on."""
        lookout.is_kept = True
        self.begin(lookout, self._nobodys)

    def begin(self, work: _Work, context: Context) -> None:
        """Begin what was started."""
        if self._resting and not work.wants_own_task:
            resting = self._resting.pop()
            self._unneeded = min(self._unneeded, len(self._resting))
            resting.context = as_spawned(context)
            resting.context.run(work.enter)
            trio.lowlevel.reschedule(resting, outcome.Value(work))
        else:
            task = _WarmTask(self, work, rests=not work.wants_own_task)
            context.run(self.nursery.start_soon, task.run)

    async def rest(self) -> _Work | None:
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

        job: _Work | None = await trio.lowlevel.wait_task_rescheduled(leave)
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
    job: _Work | None
    rests: bool
    _task: trio.lowlevel.Task = attrs.field(init=False)
    _scope: trio.CancelScope = attrs.field(init=False)
    _innermost: object = attrs.field(init=False)
    _is_spoilt: bool = attrs.field(init=False)

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
        with trio.CancelScope() as scope:
            self._scope, self._task = scope, trio.lowlevel.current_task()
            self._is_spoilt = False
            self._innermost = getattr(self._task, _INNERMOST, self)
            while self.job is not None:
                if isinstance(self.job, Serving):
                    await self._serve(self.job)
                elif isinstance(self.job, Lookout):
                    await self._look_out(self.job)
                else:
                    await self.job.run(scope)
                if self._is_spent_by(self.job):
                    self._is_spoilt = self._has_left_open()
                    return False
                await self._end_job()
                self.job = await self._rest()
        return self.job is None

    def _is_spent_by(self, work: _Work) -> bool:
        """Whether the scope is of no use any more."""
        return work.is_cancelled or self._has_left_open()

    def _has_left_open(self) -> bool:
        """Whether something in the scope is not closed, or nobody knows."""
        return getattr(self._task, _INNERMOST, None) is not self._innermost

    # What serves.

    async def _serve(self, serving: Serving, trap: Asked = None) -> None:
        """Go on with what serves until it ends or rests, or has led what is `job` now."""
        serving.context = self._task.context
        try:
            while self.job is serving:
                asked = await until_asked(serving.driven, trap)
                trap = None
                if isinstance(asked, Led):
                    await self._lead(asked, serving)
                elif asked is None or await self._rests(serving, asked):
                    return
                del asked  # who waits for the next one keeps no session
        except BaseException:
            if self.job is serving:
                serving.driven.close()
            raise

    async def _rests(self, serving: Serving, resting: Resting) -> bool:
        """Whether the lookout waits for it; else it has been waited for here.

        What it has left open stays behind with this task, and is logged. Where nobody could tell
        that, there is no lookout.
        """
        if hasattr(self._task, _INNERMOST) and self.among.look_after(serving, resting):
            return True
        with suppress(trio.ClosedResourceError):  # it is told when it reads
            await trio.lowlevel.wait_readable(resting.fd)
        return False

    async def _lead(self, led: Led, serving: Serving) -> None:
        """Take the first step of a job; if it waits, or has spent the scope, it is ours."""
        if self._has_left_open():
            led.begin()
            return
        context = as_spawned(led.context)
        context.run(led.job.enter)
        running, trap = led.job.run(self._scope), None
        try:
            trap = context.run(running.send, None)
        except StopIteration:
            pass
        except Exception as error:
            led.job.fail(error)
        if trap is None and not self._is_spent_by(led.job):
            await led.job.end()
            return
        self._keep_for(led.job, serving)
        self.among.begin(serving, serving.context.copy())
        if trap is not None:
            self._task.context = context
            await until_asked(running, trap)

    def _keep_for(self, work: _Work, serving: Serving) -> None:
        """This is its task from now on; if it had the lookout, another one has."""
        lookout, self.job = self.job, work
        if isinstance(lookout, Lookout):
            lookout.remove(serving)
            self._leave(lookout)

    # The lookout.

    async def _look_out(self, lookout: Lookout) -> None:
        """Go on with who can go on, while this is the task for it and somebody rests."""
        try:
            while self.job is lookout and lookout and not self._has_left_open():
                await self._go_on(lookout, await lookout.next())
            if self.job is lookout:
                self._leave(lookout)
        except BaseException:
            if self.job is lookout:
                lookout.close()
                lookout.is_kept = False
            raise

    def _leave(self, lookout: Lookout) -> None:
        if lookout:
            self.among.hand_over(lookout)
        else:
            lookout.is_kept = False

    async def _go_on(self, lookout: Lookout, serving: Serving | None) -> None:
        """Until it rests again, has ended, or waits: then the task is its own."""
        if serving is None:
            return
        while isinstance(asked := serving.step(), Led):
            await self._lead(asked, serving)
            if self.job is not lookout:
                return
        if asked is None:
            lookout.remove(serving)
        elif not isinstance(asked, Resting):
            self._keep_for(serving, serving)
            self._task.context = serving.context
            await self._serve(serving, asked)

    def _fail(self, error: Exception) -> None:
        if self.job is None:  # it was about to end, and that is our own fault
            raise error
        if self._is_spoilt and isinstance(self.job, Serving | Lookout):
            logger.error("what answers has left a scope or a nursery open", exc_info=error)
        else:
            self.job.fail(error)

    async def _end_job(self) -> None:
        """What fails in here is no fault of the job, which is not ended twice."""
        job, self.job = self.job, None
        assert job is not None
        await job.end()

    async def _rest(self) -> _Work | None:
        return await self.among.rest() if self.rests else None


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
