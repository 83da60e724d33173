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
import select
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from types import coroutine
from typing import Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

import attrs
import msgspec
import outcome
import trio

from mcp_trio._session.journal import as_spawned
from mcp_trio._session.nondeterminism import is_watched
from mcp_trio._transports.concurrency import LightEvent
from mcp_trio._transports.socket_bytes import Resting

# --------------------
# What a task is given to do, and who has tasks.


class Job(Protocol):
    """One handler, which is run and then ended."""

    @property
    def wants_own_task(self) -> bool:
        """Whether the task that runs it may run nothing else."""
        ...

    @property
    def is_cancelled(self) -> bool:
        """Whether the scope that it was given is cancelled."""
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


class Begins(Protocol):
    """Who has tasks for jobs."""

    def begin(self, work: Job, context: Context) -> None:
        """Begin a job, in a task that begins with a copy of these context variables."""
        ...


# --------------------
# Who serves a connection takes the first step of the handlers that it brings.
#
# Most handlers of small requests wait for nothing. In a task of its own such a handler costs two
# switches between tasks, and what wakes and puts them to rest: a seventh of a small request over
# HTTP. So a task that serves may `lead`: it runs the handler itself, up to the first wait. If there
# is none the answer is there, and the task goes on. If there is one, the task is the handler's from
# then on, for by it Trio knows who waits; and what it has served goes on in another task, which
# follows.
#
# To change its task, what is served is driven by hand: it is a coroutine whose traps are passed on
# to Trio, but for those by which it asks to lead, or to rest (see `lookout`). It must hold no scope
# and no nursery open where it does that, because those belong to the task. Where one is open, the
# handler begins in a task of its own; as does one of a replay, and one of a strict recording, whose
# steps are looked at.
#
# What is ugly: a debugger that follows the chain of what a task awaits ends at the driver.


Served: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
"""What serves, and may lead; it raises nothing but what is no `Exception`."""


class Led(msgspec.Struct, eq=False):
    """A job whose first step somebody has promised to take, who would have started it otherwise."""

    job: Job
    context: Context
    among: Begins

    def begin(self) -> None:
        """Nobody takes it: it begins in a task of its own."""
        self.among.begin(self.job, self.context)


@coroutine
def lead(led: Led) -> Generator[Led, None, None]:
    """Take the first step of a job; only for what is driven as this module says.

    Afterwards the job has ended, or the calling coroutine is in another task. No checkpoint.
    """
    yield led


Asked: TypeAlias = Any
"""What a step came to: `Led`, or `Resting`, or a trap that is Trio's; None: it has ended."""


def step(driven: Coroutine[Any, Any, Any]) -> Asked:
    """Begin with what is driven, or go on where it has led or rested."""
    try:
        return driven.send(None)
    except StopIteration:
        return None


@coroutine
def until_asked(
    driven: Coroutine[Any, Any, Any], trap: Asked = None
) -> Generator[Any, Any, Led | Resting | None]:
    """Go on with what is driven, and has perhaps come to a trap, until it asks; None: it ended.

    What Trio has for a task it sends, errors too.
    """
    try:
        trap = trap or driven.send(None)
        while type(trap) is not Led and type(trap) is not Resting:
            trap = driven.send((yield trap))
    except StopIteration:
        return None
    return trap


# --------------------
# One task that waits for all connections that rest.
#
# Trio arms its poller anew for each wait, and wakes a task for each descriptor: of a small request
# on one of many connections that is an eighth. So what serves connections may `rest`. It is then no
# task's any more: one task waits for all of them, by a poller of ours in which each stays armed,
# and goes on with one after the other, by hand. Most requests are served in there from their first
# byte to their last. What waits for anything else keeps the task, by which Trio knows it, and
# another task takes the lookout over; as with what leads, see `leading`.
#
# Each goes on in context variables of its own. It is closed where nobody waits for it any more.
#
# What is ugly: who rests is seen in no tree of tasks, and only Linux has this poller. Elsewhere, or
# if the system has no room for one, each is waited for in its task.


# So many may go on before all other tasks have their turn.
_READY_MAX: Final = 64


class _Ours:
    """What a task does that is no job."""

    __slots__ = ()

    wants_own_task: ClassVar[bool] = False
    is_cancelled: ClassVar[bool] = False

    def enter(self) -> None:
        """See `Job`; it has no variables of its own."""

    def fail(self, error: Exception) -> None:
        """See `Job`; it is our own fault."""
        raise error

    async def end(self) -> None:
        """See `Job`; nobody waits for it."""


@attrs.define(eq=False)
class Serving(_Ours):
    """What serves, in whichever task; while it rests, in none.

    Attributes:
        driven: How far it has come.
        context: Its context variables.
        resting: By what the lookout has it, if it does.
    """

    driven: Coroutine[Any, Any, None]
    context: Context
    resting: Resting | None = attrs.field(default=None, init=False)

    def step(self) -> Asked:
        """Go on, in the variables of its own."""
        return self.context.run(step, self.driven)


@attrs.define(eq=False)
class Lookout(_Ours):
    """What rests, by its descriptor; `is_kept` while some task has the lookout."""

    is_kept: bool = attrs.field(default=False, init=False)
    _resting: dict[int, Serving] = attrs.field(factory=dict[int, Serving], init=False)
    _ready: list[Serving] = attrs.field(factory=list[Serving], init=False)
    _poller: "select.epoll | None" = attrs.field(default=None, init=False)

    def __bool__(self) -> bool:
        """Whether anything rests."""
        return bool(self._resting)

    def add(self, serving: Serving, resting: Resting) -> bool:
        """It rests from now on, also when it has gone on; False if it cannot be looked after."""
        if not hasattr(select, "epoll"):
            return False
        try:
            if self._poller is None:
                self._poller = select.epoll()
            self._poller.register(resting.fd, select.EPOLLIN)
        except OSError:  # no more descriptors, or no more room for what is polled
            return False
        if len(self._resting) == 1:
            self._look_again()
        self._resting[resting.fd], serving.resting = serving, resting
        resting.let_go = partial(self.remove, serving)
        return True

    def remove(self, serving: Serving) -> None:
        """It is about to end, or waits for something else; again does nothing."""
        resting, serving.resting = serving.resting, None
        if resting is None:
            return
        assert self._poller is not None
        resting.let_go = None
        del self._resting[resting.fd]
        self._poller.unregister(resting.fd)
        if not self._resting:
            self._poller.close()
            self._poller = None

    async def next(self) -> Serving | None:
        """Wait for one that can go on; None: not yet. Cancelled, all that rest are as they were."""
        if not self._ready:
            await (self._only_one() if len(self._resting) == 1 else self._any())
        return self._ready.pop() if self._ready else None

    async def _only_one(self) -> None:
        """One is waited for by itself, which costs less."""
        ((fd, serving),) = self._resting.items()
        with suppress(trio.ClosedResourceError):  # it is no longer the only one
            await trio.lowlevel.wait_readable(fd)
            self._ready.append(serving)

    def _look_again(self) -> None:
        (fd,) = self._resting
        trio.lowlevel.notify_closing(fd)

    async def _any(self) -> None:
        assert self._poller is not None
        await trio.lowlevel.wait_readable(self._poller)
        ready = self._poller.poll(0, _READY_MAX)
        self._ready = [self._resting[fd] for fd, _ in ready]

    def close(self) -> None:
        """Nobody waits for them any more."""
        self._ready.clear()
        for serving in [*self._resting.values()]:
            self.remove(serving)
            serving.context.run(serving.driven.close)


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
    _closing: LightEvent = attrs.field(factory=LightEvent, init=False)
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
