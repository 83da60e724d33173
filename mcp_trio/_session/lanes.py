"""Lanes: the tasks of a session by name, and the driver that journals every step of a task.

A request's handler has the lane `r` plus the number of the request's `in` record. A child task has
the lane of its parent, a dot, and the number of tasks that the parent spawned before. Both depend
on the code and not on the order in which the scheduler runs tasks, so a replay has the same lanes
as the recording. A background task of the session has a lane with a name of its own.

A *step* is what a task runs between two waits. `drive` runs a coroutine by hand and reports each of
its steps to the sequencer before the step begins. A recording writes the steps down, in order, with
everything else that happens in the session. In a replay the step waits until the recording says
that it is the lane's turn. So whatever users' tasks do with locks, events, channels and shared
memory, they do in the recorded order. The wait for the turn cannot be cancelled: a cancellation is
delivered at the task's next wait, as Trio does when a task is already about to run.

An *operation* is a wait that does not follow from the journal, such as the call of an effect, or
the wait for room in the send queue. Steps inside an operation are not journaled, and not repeated
by a replay. The record at its end says whether the lane has waited.

A handler may itself open a client or serve a session. The tasks of that inner session descend from
the handler, so they also act in the handler's lane. A lane therefore belongs to one sequencer and
refers to the lane of the outer session in which it was created.

Child tasks are found with Trio's public `task_spawned` hook, which replaces the coroutine of the
new task, `Task.coro`, before the first step. The tests of child tasks fail without it. Trio removes
an instrument that raises an exception, so this one does nothing that could raise.
"""

import logging
import math
import sys
import warnings
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from functools import partial
from random import Random
from types import CodeType, FrameType, SimpleNamespace, coroutine
from typing import Any, Final, TypeAlias

import msgspec
import trio

from mcp_trio._session.call_sites import is_collecting_garbage, owner_of
from mcp_trio.errors import BlockedInReplay, UntrackedNondeterminism

logger = logging.getLogger("mcp_trio")


class Abort(BaseException):
    """The exception that ends every task of a replay that is over; it never leaves the replay."""


class Lane(msgspec.Struct, eq=False):
    """The path of a task within a session; its records are numbered.

    Attributes:
        name: The path, such as `r5.0`.
        owner: The sequencer that the lane belongs to, or the journal of a resumable handler.
        outer: The lane of the same task in an outer session.
        has_steps: True if the steps of its task are journaled.
        ordinal: The number of the lane's last record, or of the last operation in the journal of a
            resumable handler; 0 before the first.
        children: The number of tasks that the lane has spawned.
        random: The random number generator of the lane, made on first use.
        patches: The branch that the lane took at each change of the code, made on first use.
        is_in_operation: True while the steps of the lane are not journaled.
        has_waited: True if the current operation has waited.
        has_own_pace: True if a thread, or a task of the session without a lane, decides when it
            goes on. A replay then does not compare when the lane is ready.
        command_record: The number of the record with which the current effect began; None for a
            value, and without a recording.
        effect_begin: The time at which the current effect began, if that has a deadline.
        effect_deadline: The deadline of the current effect.
        failure: The exception that the handler has raised, in one line; set in a replay only.
    """

    name: str
    owner: object = None
    outer: "Lane | None" = None
    has_steps: bool = False
    ordinal: int = 0
    children: int = 0
    random: Random | None = None
    patches: dict[str, bool] | None = None
    is_in_operation: bool = False
    has_waited: bool = False
    has_own_pace: bool = False
    command_record: int | None = None
    effect_begin: float = 0.0
    effect_deadline: float = math.inf
    failure: str = ""

    def next_ordinal(self) -> int:
        """Count a record, or an operation of a resumable handler, and return its number."""
        self.ordinal += 1
        return self.ordinal

    def begin_effect(self, deadline: float) -> None:
        """Note the deadline of an effect that begins; `math.inf` if it has none."""
        self.effect_deadline = deadline
        if deadline < math.inf:
            self.effect_begin = trio.current_time()

    def end_effect(self) -> None:
        """Forget the deadline of the effect, which has ended."""
        self.effect_deadline = math.inf

    @property
    def expired_limit_us(self) -> int | None:
        """The microseconds that the current effect had until its deadline, which has expired."""
        if self.effect_deadline > trio.current_time():
            return None
        return round((self.effect_deadline - self.effect_begin) * 1e6)

    def generator(self, seed: object) -> Random:
        """Return the random number generator of the lane, which the seed and its name determine."""
        if self.random is None:
            self.random = Random(f"{seed}:{self.name}")  # noqa: S311 - not for secrets
        return self.random

    def child(self, *, has_own_pace: bool = False) -> "Lane":
        """Return the lane of the next task that this one spawns, or of a thread."""
        outer = None if self.outer is None else self.outer.child(has_own_pace=has_own_pace)
        lane = Lane(f"{self.name}.{self.children}", self.owner, outer, self.has_steps)
        lane.has_own_pace = has_own_pace or self.has_own_pace
        self.children += 1
        return lane


LANE: Final[ContextVar[Lane | None]] = ContextVar("mcp_trio_lane", default=None)


def enter_lane(lane: Lane) -> None:
    """Let the calling task act in `lane`, while keeping its lanes in outer sessions."""
    lane.outer = LANE.get()
    LANE.set(lane)


@contextmanager
def without_lane() -> Generator[None]:
    """Let the code of the block take no part in a recording or replay: it is not the handler's."""
    token = LANE.set(None)
    try:
        yield
    finally:
        LANE.reset(token)


NO_LANE: Final = "this task has no lane: use the context only in tasks that a handler started"
"""The text of the error for a use of the context in another task."""


def lane_in(owner: object) -> Lane | None:
    """Return the calling task's lane that belongs to `owner`, if there is one."""
    lane = LANE.get()
    while lane is not None and lane.owner is not owner:
        lane = lane.outer
    return lane


class operation:  # noqa: N801  a context manager; as a generator it would cost twice as much
    """A block in which the lane, if there is one, is in an operation: no step is journaled."""

    __slots__ = ("_lane", "_was_in_operation")

    def __init__(self, lane: Lane | None) -> None:
        self._lane = lane
        self._was_in_operation = False

    def __enter__(self) -> None:
        if self._lane is not None:
            self._was_in_operation = self._lane.is_in_operation
            self._lane.is_in_operation = True

    def __exit__(self, *_: object) -> None:
        if self._lane is not None:
            self._lane.is_in_operation = self._was_in_operation


# The driver ---------------------------------------------------------------------------------------

Trap = Any
"""A value that a coroutine yields to Trio."""


@coroutine
def drive(
    running: Coroutine[Any, Any, Any],
    lanes: tuple[Lane, ...],
    trap: Trap = None,
    context: Context | None = None,
) -> Generator[Trap, Any, Any]:
    """Run a coroutine to its end, and return its result; journal its steps in these lanes.

    Trio's traps are passed on. `trap` is one that the coroutine has come to already. `context` are
    its context variables; None: it has those of the task.
    """
    run: Any = None if context is None else context.run
    send: Callable[[Any], Trap] = running.send if run is None else partial(run, running.send)
    advance = send
    value: Any = None
    while True:
        if trap is None:
            for lane in lanes:
                if lane.is_in_operation:
                    lane.has_waited = True
                    continue
                sequencer: Any = lane.owner
                turn: Awaitable[None] | None = sequencer.step(lane)
                if turn is not None:
                    yield from turn.__await__()
            try:
                trap = advance(value)
            except StopIteration as stop:
                return stop.value
            finally:
                value = None  # It may hold an error, whose traceback holds this frame.
        advance = send
        try:
            # Trio sends the results and errors of a wait as values.
            value = yield trap
        except GeneratorExit:  # A coroutine that is closed takes no step, and cannot wait.
            running.close() if run is None else run(running.close)
            raise
        except BaseException as error:
            value = error
            advance = running.throw if run is None else partial(run, running.throw)
        trap = None


# `types.coroutine` keeps the code object of the function.
DRIVER: Final[CodeType] = drive.__code__
"""The code of `drive`, whose frame stands between a task and the coroutine that it runs."""


def await_frames(task: trio.lowlevel.Task) -> Iterator[tuple[FrameType, int]]:
    """Yield the frames of what a task awaits, also of a coroutine that the task drives by hand."""
    followed: Any = task
    while followed is not None:
        frames = trio.lowlevel.Task.iter_await_frames(followed)
        followed = None
        for frame, line in frames:
            if frame.f_code is DRIVER:
                followed = SimpleNamespace(coro=frame.f_locals["running"])
                break
            yield frame, line


async def drive_in(lane: Lane, function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run an actor of a session in a lane, whose steps are journaled if it has any."""
    enter_lane(lane)
    return await drive(function(), (lane,) if lane.has_steps else ())


# Child tasks --------------------------------------------------------------------------------------


def as_spawned(context: Context, lane: Lane | None = None) -> Context:
    """Return a copy of context variables for a task of the pool, which Trio does not spawn anew.

    `lane` is the lane of the handler that the task runs next, if it has one.
    """
    copied = context.copy()
    outer = _enter_child_lane(copied) if LANE in copied else None
    if lane is not None:  # as `enter_lane` does, without a call of Python code in the context
        lane.outer = outer
        copied.run(LANE.set, lane)
    return copied


def _enter_child_lane(context: Context, *, has_own_pace: bool = False) -> Lane | None:
    """Replace the lane in the context of a new task by a child of it; return the child, if any."""
    spawner = context.get(LANE)
    if spawner is None:
        return None
    child = spawner.child(has_own_pace=has_own_pace)
    context.run(LANE.set, child)
    return child


async def _as_coroutine(running: Coroutine[Any, Any, Any], lanes: tuple[Lane, ...]) -> Any:
    # The generator that `drive` returns cannot be the coroutine of a task.
    return await drive(running, lanes)


def lanes_with_steps(lane: Lane | None) -> Iterator[Lane]:
    """Yield the lanes of a task whose steps are journaled: its own, and those in outer sessions."""
    while lane is not None:
        if lane.has_steps:
            yield lane
        lane = lane.outer


class _LaneInstrument(trio.abc.Instrument):
    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        lanes = tuple(lanes_with_steps(_enter_child_lane(task.context)))
        if lanes:
            driven: Any = _as_coroutine(task.coro, lanes)
            task.coro = driven


# System tasks and callbacks -----------------------------------------------------------------------
#
# `trio.lowlevel.spawn_system_task` and `TrioToken.run_sync_soon` run functions of a handler with
# the context variables of the Trio run. Here these get the variables of this package, and with them
# a lane: otherwise a replay would not notice what such a function changes outside.

_OWN_VARIABLES: Final = "mcp_trio"  # the beginning of their names
_Variables: TypeAlias = list[tuple[ContextVar[Any], Any]]


def _own_variables() -> _Variables:
    return [each for each in copy_context().items() if each[0].name.startswith(_OWN_VARIABLES)]


def _with_variables(context: Context | None, variables: _Variables) -> Context:
    if context is None:
        root = trio.lowlevel.current_root_task()
        assert root is not None
        context = root.context
    context = context.copy()
    for variable, value in variables:
        context.run(variable.set, value)
    return context


def _is_of_handler(caller: FrameType) -> bool:
    """Return whether code of a handler, or of a library that it uses, makes a call in a lane."""
    is_in_lane = next(lanes_with_steps(LANE.get()), None) is not None
    return is_in_lane and owner_of(caller.f_code.co_filename) not in {"trio", "mcp_trio"}


async def _run_for_handler(async_fn: Callable[..., Awaitable[Any]], *args: Any) -> None:
    """Run a function of a system task, and log the error that rejects an untracked call in it.

    Trio ends the whole run if a system task raises an exception.
    """
    try:
        await async_fn(*args)
    except* (BlockedInReplay, UntrackedNondeterminism) as group:
        for error in group.exceptions:
            logger.warning("a system task of a handler ended: %s", error)
    except* Abort:
        pass


def in_lane_of_spawner(spawn: Callable[..., Any]) -> Callable[..., Any]:
    """Return a `spawn_system_task` whose task, if a handler spawns it, is in a lane."""

    def spawn_in_lane(
        async_fn: Callable[..., Any], *args: Any, context: Context | None = None, **options: Any
    ) -> Any:
        if not _is_of_handler(sys._getframe(1)):  # noqa: SLF001
            return spawn(async_fn, *args, context=context, **options)
        if context is None or context.get(LANE) is None:
            context = _with_variables(context, _own_variables())
        options.setdefault("name", async_fn)
        return spawn(_run_for_handler, async_fn, *args, context=context, **options)

    return spawn_in_lane


def in_lane_of_caller(run_sync_soon: Callable[..., None]) -> Callable[..., None]:
    """Return a `run_sync_soon` whose callback, if a handler passes it, is a task in a lane.

    Calls that Trio may discard because an equal one is pending are not discarded then.
    """

    def run_in_lane(
        token: trio.lowlevel.TrioToken,
        sync_fn: Callable[..., object],
        *args: Any,
        idempotent: bool = False,
    ) -> None:
        lane = LANE.get()
        if lane is None or not _is_of_handler(sys._getframe(1)):  # noqa: SLF001
            run_sync_soon(token, sync_fn, *args, idempotent=idempotent)
            return
        variables = [*_own_variables(), (LANE, lane.child(has_own_pace=True))]

        async def call() -> None:
            sync_fn(*args)

        def start() -> None:
            try:
                context = _with_variables(None, variables)
                trio.lowlevel.spawn_system_task(_run_for_handler, call, context=context)
            except RuntimeError:  # the Trio run ends, and no task begins any more
                sync_fn(*args)

        run_sync_soon(token, start)

    return run_in_lane


# Async generators ---------------------------------------------------------------------------------
#
# When a task drops an async generator before its end, Trio closes the generator in a system task,
# which has no lane. Here that task has one: a child of the lane that dropped the generator, with
# the number of that moment. A generator that the garbage collector finds is closed by Trio, because
# the recording does not have that moment.

_LOGGER: Final = logging.getLogger("trio.async_generator_errors")  # the one that Trio uses
AnyAsyncGenerator = AsyncGenerator[Any, Any]


def _finalize(
    trio_finalizer: Callable[[AnyAsyncGenerator], None],
    token: trio.lowlevel.TrioToken,
    generator: AnyAsyncGenerator,
) -> None:
    """Close a generator that nothing refers to any more, in a task with a lane."""
    lane = LANE.get()
    if is_collecting_garbage() or next(lanes_with_steps(lane), None) is None:
        trio_finalizer(generator)
        return
    context = copy_context()
    _enter_child_lane(context, has_own_pace=True)  # Trio starts the task in some later turn

    def start_to_close() -> None:
        try:
            trio.lowlevel.spawn_system_task(_close, generator, context=context)
        except RuntimeError:  # the Trio run ends, and closes all generators by itself
            trio_finalizer(generator)

    token.run_sync_soon(start_to_close)
    name = getattr(generator, "__qualname__", generator)
    warnings.warn(
        f"the async generator {name!r} was dropped before its end: iterate over it inside of"
        " `async with aclosing(...)`, so that it is closed at once",
        ResourceWarning,
        source=generator,
        stacklevel=2,
    )


async def _close(generator: AnyAsyncGenerator) -> None:
    """Close a generator in a cancelled scope, so that it cannot wait."""
    try:
        with trio.CancelScope(shield=True) as scope:
            scope.cancel()
            await generator.aclose()
    except BaseException:
        _LOGGER.exception("the async generator %r failed while it was closed", generator)


_INSTRUMENT: Final = trio.lowlevel.RunVar[_LaneInstrument | None]("mcp_trio_lanes", None)


def watch_lanes() -> None:
    """Give each task that this Trio run spawns from now on a lane; repeated calls do nothing."""
    if _INSTRUMENT.get() is None:
        instrument = _LaneInstrument()
        trio.lowlevel.add_instrument(instrument)
        _INSTRUMENT.set(instrument)
        trio_finalizer = sys.get_asyncgen_hooks().finalizer
        if trio_finalizer is not None:  # Trio removes the hooks when its run ends
            token = trio.lowlevel.current_trio_token()
            sys.set_asyncgen_hooks(finalizer=partial(_finalize, trio_finalizer, token))
