"""A Trio run of recorded sessions, in which a controller decides what happens next.

There are two controllers: a `Replayer` follows the journal, and a sweep's `Scheduler` a schedule.
`run_controlled` opens the sessions and lifespans that the controller asks for. When the controller
is over, or the clock stalls, it ends every task: with `Abort`, without shields, and without waiting
for the threads of `def` handlers.
"""

import gc
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from contextvars import copy_context
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol, TypeAlias

import outcome
import trio
from trio.testing import wait_all_tasks_blocked

from mcp_trio._journal.records import LIFESPAN_LANE, OpenBody
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._replay.clock import VirtualClock
from mcp_trio._replay.source_locations import error_location, lifespan_use
from mcp_trio._server.caller_limits import with_added_limits
from mcp_trio._server.effects import ReplayLifespan
from mcp_trio._server.lifespan import LifespanRun
from mcp_trio._server.middleware import Middleware
from mcp_trio._server.sessions import sessions_of
from mcp_trio._session.exceptions import group_members
from mcp_trio._session.journal import Sequencer
from mcp_trio._session.lanes import Abort
from mcp_trio._session.session import Session
from mcp_trio._session.untracked_calls import UntrackedCall, watch_of_replay

if TYPE_CHECKING:
    from mcp_trio._server.server import Server

# The number of threads that may still run one after another once the replay is over.
_THREADS_AFTER_END_MAX: Final = 1000


async def raise_abort() -> NoReturn:
    """Raise `Abort`, but yield first: a loop that catches it must not block the run."""
    await trio.lowlevel.cancel_shielded_checkpoint()
    raise Abort


# Shields of tasks ---------------------------------------------------------------------------------
#
# Trio cannot end a task that waits for ever under a shield, and a replay has to end. The frames of
# a task refer to the cancel scopes that it has entered; `gc` finds them there, whether or not they
# are in local variables.


# The types of the objects that lead from a frame to a scope entered in it.
_SCOPE_HOLDERS: Final = (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncGeneratorType,
    CoroutineType,
    GeneratorType,
    MethodType,
)


def entered_scopes(task: trio.lowlevel.Task) -> Iterator[trio.CancelScope]:
    """Yield the scopes that a waiting task has entered, without those of its child tasks."""
    seen = {id(task.coro)}
    found: list[object] = [task.coro]
    while found:
        for inner in gc.get_referents(found.pop()):
            # `is_relative` is None if the scope was entered.
            if isinstance(inner, trio.CancelScope) and inner.is_relative is None:
                yield inner
            elif id(inner) not in seen and _may_hold_scope(inner):
                seen.add(id(inner))
                found.append(inner)


def _may_hold_scope(value: object) -> bool:  # a function, so that type checkers narrow nothing
    return isinstance(value, _SCOPE_HOLDERS)


def unshield(task: trio.lowlevel.Task) -> None:
    for scope in entered_scopes(task):
        scope.shield = False
    for nursery in task.child_nurseries:
        nursery.cancel_scope.shield = False
        for child in nursery.child_tasks:
            unshield(child)


# The threads of `def` handlers --------------------------------------------------------------------


class ThreadToken:
    """A token that lets one thread of a `def` handler run at a time, in the order of the journal.

    A thread gives the token back when it calls the context, and when it ends. The clock stalls if a
    thread keeps it for longer than `seconds` of real time.
    """

    def __init__(self, clock: VirtualClock, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self._is_abandoned = False
        self._runs_left = math.inf
        self._is_taken = False
        self._waiting = trio.lowlevel.ParkingLot()
        self._given_back = trio.Event()

    @property
    def is_taken(self) -> bool:
        return self._is_taken and not self._is_abandoned

    async def acquire(self, name: str) -> None:
        while self.is_taken:
            await self._waiting.park()
        self._is_taken = True
        self._given_back = trio.Event()
        self._runs_left -= 1
        self._is_abandoned |= self._runs_left < 0
        self.clock.expect_thread(
            self.seconds,
            f"the thread of {name!r} neither ended nor used its context within {self.seconds:g} s"
            " (limits.replay.thread_seconds)",
        )

    def release(self) -> None:
        """Give the token back: the thread waits for the event loop, or has ended."""
        self._is_taken = False
        self.clock.expect_no_thread()
        self._given_back.set()
        self._waiting.unpark()

    def limit_runs(self) -> None:
        """Let threads end after the replay, but not run for ever."""
        self._runs_left = _THREADS_AFTER_END_MAX

    def abandon(self) -> None:
        """Let the replay wait for threads no longer."""
        self._is_abandoned = True
        self._given_back.set()
        self._waiting.unpark_all()

    async def wait_all_released(self) -> None:
        """Wait until no thread runs and no other one takes the token."""
        is_taken = True
        while is_taken:
            await self.wait_released()
            for _ in range(2):  # A task that waits for the token takes it in its next step.
                await trio.lowlevel.cancel_shielded_checkpoint()
            is_taken = self.is_taken

    async def settle(self) -> None:
        """Wait until all tasks are blocked and no thread runs."""
        await wait_all_tasks_blocked()
        while self.is_taken:
            await self.wait_released()
            await wait_all_tasks_blocked()

    async def wait_released(self) -> None:
        while self.is_taken:
            await self._given_back.wait()


# Controllers --------------------------------------------------------------------------------------

BeginSession: TypeAlias = Callable[[int, LifespanRun | None, str], Awaitable[Session]]


class RunController(Protocol):
    """The part of a replay, or of a sweep's schedule, that decides what happens next in the run.

    Attributes:
        untracked_calls: The untracked calls so far, in order, each once.
        is_over: Whether every task has to end.
        goes_on_after_exit: Whether the run goes on when a handler has ended its session with
            `SystemExit` or `KeyboardInterrupt`.
    """

    clock: VirtualClock
    thread_token: ThreadToken
    untracked_calls: dict[UntrackedCall, None]
    is_over: bool
    goes_on_after_exit: bool

    async def run_sessions(
        self, begin: BeginSession, start_lifespan: Callable[[LifespanRun], None]
    ) -> None:
        """Let all sessions and lifespans come to their end.

        `begin` opens the session of a channel, within a lifespan if it is part of the replay, as
        one over the recorded transport, and lets it run; `start_lifespan` does so for a lifespan.
        """
        ...

    def fail(self, problem: str) -> None:
        """End everything because of an error that belongs to no operation of a lane."""
        ...

    def may_exit_here(self, exception: str) -> bool:
        """Return whether the recorded session may have ended with this exit or interrupt."""
        ...


def end_run(controller: RunController, waiting: Iterable[tuple[trio.lowlevel.Task, bool]]) -> None:
    """End a controller: wake every lane, and let sleeping tasks wake.

    `waiting` has the task of each lane that waits, and whether it waits in an operation. It gets
    `Abort` then. A lane that waits before a step goes on, as code of Trio may run in that step, and
    gets `Abort` at its next operation.
    """
    controller.is_over = True
    controller.clock.run_freely()
    controller.thread_token.limit_runs()
    for task, has_operation in waiting:
        result = outcome.Error(Abort()) if has_operation else outcome.Value(None)
        trio.lowlevel.reschedule(task, result)


class SilentChannel:
    """A channel without a peer: the sequencer compares what is sent and delivers what arrives."""

    def __init__(self, transport: str) -> None:
        self.transport = transport

    def send_nowait(self, messages: Sequence[bytes]) -> int:
        return len(messages)

    async def send(self, messages: Sequence[bytes]) -> None:  # noqa: ARG002  of `Channel`
        await trio.lowlevel.checkpoint()

    def deliver_to(self, on_received: Callable[[Sequence[bytes | Oversized]], None]) -> None:
        """Do nothing: the replayer gives each message to the session itself."""

    async def receive(self) -> Sequence[bytes | Oversized]:
        """Wait for ever; a session does not call this, because the channel has `deliver_to`."""
        await trio.sleep_forever()

    async def aclose(self) -> None:
        """Do nothing but let other tasks run."""
        await trio.lowlevel.checkpoint()


# The run ------------------------------------------------------------------------------------------


def run_controlled(
    controller: RunController,
    server: "Server",
    opening: OpenBody,
    limits: Sequence[Middleware],
    make_sequencer: Callable[[int], Sequencer],
    lifespan: AbstractAsyncContextManager[Any] | None = None,
) -> None:
    """Let a controller run sessions of a server in a Trio run, until all tasks have ended.

    Errors of sessions are passed to `controller.fail`. `limits` are those of the command that has
    recorded the sessions. `lifespan` gives the value for sessions without a lifespan in the
    journal; by default, that is a stand-in if the recorded server had a lifespan.

    Raises:
        Exception: Opening a session, or `lifespan`, raised it.
        KeyboardInterrupt: It was raised in the run, and the recording does not have it.
    """
    errors: list[BaseException] = []
    setup_errors: list[Exception] = []

    def note_lifespan_use(attribute: str, instead: str) -> None:
        controller.untracked_calls[lifespan_use(attribute, instead)] = None

    def open_session(value: Any, channel: int, transport: str) -> Session:
        try:
            return sessions_of(server).open_session(
                SilentChannel(transport), sequencer=make_sequencer(channel), lifespan=value
            )
        except Exception as error:
            setup_errors.append(error)
            raise Abort from error

    async def run() -> None:
        scope = trio.CancelScope()
        watch = watch_of_replay(
            controller.untracked_calls.setdefault, is_strict=opening.strict, exempt=LIFESPAN_LANE
        )
        entered = lifespan or nullcontext(
            ReplayLifespan(on_use=note_lifespan_use) if opening.lifespan else None
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_stalled, controller, scope)
            try:
                with scope, watch:
                    async with entered as value:
                        errors.extend(await _run_sessions(controller, open_session, value))
            except Exception as error:  # of the lifespan: errors of sessions are returned
                setup_errors.append(error)
            await controller.thread_token.wait_all_released()
            nursery.cancel_scope.cancel()

    with with_added_limits(server, limits):
        trio.run(run, clock=controller.clock)
    problems: list[str] = []
    for error in errors:
        if isinstance(error, Abort | trio.Cancelled):
            continue
        name = f"{type(error).__name__}: {error}".removesuffix(": ")
        text = f"{name}  {error_location(error)}".rstrip()
        if _is_exit(error) and controller.may_exit_here(text):
            continue
        if isinstance(error, KeyboardInterrupt):
            raise error
        problems.append(text)
    if setup_errors:
        raise setup_errors[0]
    for problem in problems:
        controller.fail(problem)


async def _run_sessions(
    controller: RunController, open_session: Callable[[Any, int, str], Session], stand_in: Any
) -> list[BaseException]:
    """Replay all sessions and lifespans; return the errors that left them.

    Sessions without a lifespan in the journal get the `stand_in` for its value.
    """
    exits: list[BaseException] = []

    async def run_lifespan(run: LifespanRun) -> None:
        try:
            async with run.enter():
                await run.wait_for_sessions()
        except BaseException as error:
            # Its end is compared with the recording. What happens after the replay does not count.
            if any(isinstance(each, KeyboardInterrupt) for each in _leaves(error)):
                raise

    async def run_session(session: Session, started: trio.Event) -> None:
        try:
            async with trio.open_nursery() as own:
                await own.start(session.run)
                started.set()
        except BaseException as error:
            leaves = list(_leaves(error))
            may_go_on = started.is_set() and controller.goes_on_after_exit
            if not (may_go_on and any(map(_is_exit, leaves))):
                raise
            # The recording may have what the session did after this, up to its end.
            exits.extend(leaves)

    async def begin(channel: int, lifespan: LifespanRun | None, transport: str) -> Session:
        context, value = copy_context(), stand_in
        if lifespan is not None:
            assert lifespan.variables is not None  # The controller has checked it.
            context, value = lifespan.variables.copy(), lifespan.value
        session = open_session(value, channel, transport)
        started = trio.Event()
        # `Nursery.start` cannot start a task in another context than the caller's.
        context.run(nursery.start_soon, run_session, session, started)
        await started.wait()
        return session

    try:
        async with trio.open_nursery() as nursery:
            await controller.run_sessions(begin, lambda run: nursery.start_soon(run_lifespan, run))
            nursery.cancel_scope.cancel()
    except BaseException as error:
        return [*exits, *_leaves(error)]
    return exits


async def _cancel_stalled(controller: RunController, scope: trio.CancelScope) -> None:
    """Whenever the clock stalls, cancel all tasks, shielded or not."""
    main = trio.lowlevel.current_task().parent_nursery
    assert main is not None
    while True:
        await controller.clock.stalled.wait()
        controller.clock.stalled = trio.Event()
        if not controller.is_over:
            controller.fail(controller.clock.reason)
        controller.thread_token.abandon()
        scope.cancel()
        unshield(main.parent_task)


def _is_exit(error: BaseException) -> bool:
    return isinstance(error, SystemExit | KeyboardInterrupt)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors in an exception group and in its inner groups, or the error itself."""
    members = group_members(error)
    if not members:
        yield error
    for each in members:
        yield from _leaves(each)
