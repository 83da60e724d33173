"""The lifespan of a server: its run in a lane of a recording, and again in a replay.

A recording also holds the lifespan of its sessions, if it holds all of them: the only session of a
server over stdio, or all sessions in a `SharedRecording`. `LifespanRun` runs the coroutines of the
lifespan in the lane `lifespan`. So the recording has its steps, those of the tasks that it starts,
and its `@effect` functions. A replay runs it the same way, so that handlers and background tasks
use the memory channels, events and locks that they share in the same order.

While the server serves, the lifespan waits at its `yield`. In the journal this is an effect, named
`lifespan.sessions`: its outcome tells whether the sessions ended, were cancelled, or failed, and a
replay waits for it. When the server is cancelled from outside, the recording has a mark, at which a
replay cancels the lifespan.

A lifespan that opens a file for writing, a socket, a database or a process by itself cannot run
again in a replay. As soon as the recording notices such a call, it has a mark about the call, and
nothing of the lifespan after that. A replay then gives handlers a stand-in (`ReplayLifespan`) for
the lifespan's value.
"""

import logging
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final, cast

import attrs
import msgspec
import trio

from mcp_trio._journal.records import (
    LIFESPAN_CANCELLED_MARK,
    LIFESPAN_LANE,
    LIFESPAN_OPENED_MARK,
    LIFESPAN_SESSIONS,
)
from mcp_trio._server.effects import CURRENT_CONTEXT, NO_RESULT, CurrentContext, no_arguments
from mcp_trio._session.effects import (
    Effect,
    is_cancelled_now,
    start_effect,
    wait_for_recorded_outcome,
)
from mcp_trio._session.exceptions import exception_to_raise
from mcp_trio._session.handler_journal import HandlerJournal
from mcp_trio._session.journal import Outcome, Recording, Sequencer
from mcp_trio._session.lanes import LANE, Lane, drive, watch_lanes
from mcp_trio._session.recorded_errors import encoded_error
from mcp_trio._transports.concurrency import call_when_cancelled
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._recorder.options import RecordTarget
    from mcp_trio._recorder.policy import PolicyRun
    from mcp_trio._server.handlers import ServedSession
    from mcp_trio._server.sessions import ServerSessions
    from mcp_trio._session.untracked_calls import UntrackedCall, UntrackedCallWatch

logger = logging.getLogger("mcp_trio")

MakeLifespan = Callable[[], AbstractAsyncContextManager[Any]]


# The lifespan of a server, and those of the servers that are mounted into it ---------------------


class LifespanValues(msgspec.Struct, frozen=True, eq=False):
    """The value of a server's own lifespan, and those of the servers that are mounted into it."""

    own: Any
    mounted: "Mapping[ServerSessions, Any]"


def lifespan_of(sessions: "ServerSessions") -> MakeLifespan | None:
    """Return the function that makes the lifespan of a server and of the servers mounted into it.

    Return None if none of them has a lifespan. If a mounted server has one, the value is a
    `LifespanValues`: the lifespan of the server is entered first, then those of mounted servers.
    """
    lifespan = sessions.server.lifespan
    inner = [each for each in sessions.mounted() if each.server.lifespan is not None]
    if not inner:
        return None if lifespan is None else partial(lifespan, sessions.server)

    @asynccontextmanager
    async def enter_all() -> AsyncGenerator[LifespanValues]:
        async with AsyncExitStack() as stack:
            own = None
            if lifespan is not None:
                own = await stack.enter_async_context(lifespan(sessions.server))
            mounted: dict[ServerSessions, Any] = {}
            for each in inner:
                mounted[each] = await stack.enter_async_context(_lifespan_of_mounted(each))
            yield LifespanValues(own, mounted)

    return enter_all


@asynccontextmanager
async def _lifespan_of_mounted(sessions: "ServerSessions") -> AsyncGenerator[Any]:
    """Enter the lifespan of a mounted server; its effects are encoded as those of its handlers.

    So the context of the mounted server is current while the code of this lifespan runs, and the
    context of the outer server before and after that, and at the `yield`.
    """
    outer = inner = CURRENT_CONTEXT.get()
    if outer is not None:
        inner = CurrentContext(outer.caller, outer.served.mounted_session(sessions))
    CURRENT_CONTEXT.set(inner)
    try:
        assert sessions.server.lifespan is not None
        async with sessions.server.lifespan(sessions.server) as value:
            if inner is not None:
                inner.served.lifespan = value
            CURRENT_CONTEXT.set(outer)
            try:
                yield value
            finally:
                CURRENT_CONTEXT.set(inner)
    finally:
        CURRENT_CONTEXT.set(outer)


# Entering a lifespan ----------------------------------------------------------------------------


class EnteredLifespan(msgspec.Struct, frozen=True):
    """A lifespan that was entered, and the recording of its sessions.

    Attributes:
        value: The value of the lifespan, which is `ctx.lifespan` in handlers.
        channel: The channel of the lifespan in that recording; None if it does not hold it.
        policy_run: The run of the policy that chooses the sessions to record; None if `record` is
            no policy.
    """

    value: Any = None
    record: "RecordTarget | None" = None
    channel: int | None = None
    policy_run: "PolicyRun | None" = None


def without_group(error: BaseException) -> BaseException:
    """Return the exception to raise at the `yield` of a lifespan, given that of its sessions.

    The nurseries between the lifespan and its sessions put it into a group. A replay does not have
    these nurseries.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    if group.split(trio.Cancelled)[1] is not None:
        return exception_to_raise(group)
    # There is only `Cancelled` in the group; the lifespan gets one of them.
    return without_group(group.exceptions[0])


@attrs.define(eq=False, repr=False)
class LifespanRecording(Recording):
    """The sequencer of a lifespan in a recording.

    Attributes:
        is_stopped: Whether nothing more is recorded: the lifespan has opened something by itself,
            or the process ends.
    """

    is_stopped: bool = attrs.field(default=False, init=False)

    def step(self, lane: Lane) -> None:
        """Record the step."""
        if not self.is_stopped:
            super().step(lane)

    def stop_at(self, call: "UntrackedCall") -> None:
        """Record a call by which the lifespan changes the outside, and nothing after it."""
        if self.is_stopped:
            return
        logger.info("%s, in the lifespan: a replay uses a stand-in for its value", call.text)
        value = {"call": call.call, "location": call.location}
        if call.target:
            value["target"] = call.target
        self.marked(LIFESPAN_OPENED_MARK, value)
        self.is_stopped = True

    def sent(self, message: bytes, lane: Lane | None, kind: str = "out") -> int | None:
        """Record a record of this kind."""
        return None if self.is_stopped else super().sent(message, lane, kind)

    def _record(self, *args: Any, **keywords: Any) -> int | None:
        return None if self.is_stopped else super()._record(*args, **keywords)


def watch_of_lifespan(sequencer: LifespanRecording) -> "UntrackedCallWatch":
    """Return the watch for untracked calls of a recorded lifespan; it rejects no call."""
    # Only servers that record need this module.
    from mcp_trio._session.untracked_calls import UntrackedCallWatch, watch_of_recording

    token = trio.lowlevel.current_trio_token()
    record_read = watch_of_recording(sequencer, is_strict=False).on_untracked_call

    def record(call: "UntrackedCall") -> None:
        if sequencer.is_stopped:
            return
        if not call.changes_outside:
            record_read(call)
        elif trio.lowlevel.in_trio_task():
            sequencer.stop_at(call)
        else:
            token.run_sync_soon(sequencer.stop_at, call)

    return UntrackedCallWatch(on_untracked_call=record)


# The effect for which a lifespan waits while its sessions are served. Nothing calls its `run`: its
# outcome is that of the block in which the lifespan is entered.
_SERVE_SESSIONS: Final = Effect(
    name=LIFESPAN_SESSIONS, arguments=no_arguments, run=trio.sleep_forever, codec=NO_RESULT
)


@attrs.define(eq=False, repr=False)
class LifespanRun:
    """A run of a server's lifespan in the lane `lifespan`, recorded or replayed.

    It is the `EffectCaller` of the lifespan and the tasks that it starts, and has the attributes
    that this requires.

    Attributes:
        served: Encodes the effects of the lifespan.
        watch: The watch for untracked calls of the lifespan; None in a replay, which has its own.
        effects: The number of calls of effects by users' code.
        value: The value of the lifespan for its sessions, once the lifespan is entered.
        variables: The context variables that sessions get; None until the lifespan is entered.
        has_ended: Whether the end of the lifespan is recorded.
    """

    make: MakeLifespan
    sequencer: Sequencer
    served: "ServedSession"
    watch: "UntrackedCallWatch | None" = None
    lane: Lane = attrs.field(init=False)
    handler_journal: HandlerJournal | None = attrs.field(default=None, init=False)
    observation: None = attrs.field(default=None, init=False)
    random: Random | None = attrs.field(default=None, init=False)
    effects: int = attrs.field(default=0, init=False)
    value: Any = attrs.field(default=None, init=False)
    variables: Variables | None = attrs.field(default=None, init=False)
    has_ended: bool = attrs.field(default=False, init=False)
    _scope: trio.CancelScope = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.lane = Lane(LIFESPAN_LANE, self.sequencer, LANE.get(), has_steps=True)
        # The cancellation of the server reaches the lifespan through a mark in the journal.
        self._scope = trio.CancelScope(shield=True)

    @property
    def limits(self) -> Limits:
        """The limits of the server."""
        return self.served.shared.limits

    def cancel(self) -> None:
        """Cancel the lifespan; a replay does this where the server was cancelled from outside."""
        self._scope.cancel()

    @asynccontextmanager
    async def enter(self) -> AsyncGenerator[Any]:
        """Enter the lifespan within the block, which gets its value.

        A cancellation of the block from outside cancels the lifespan, which then cancels the block.
        """
        watch_lanes()
        failure: BaseException | None = None
        try:
            async with trio.open_nursery() as outer:
                outer.start_soon(call_when_cancelled, self._cancel_from_outside)
                try:
                    with self._scope:
                        manager, value = await self._in_lane(self._enter)
                        self.value, self.variables = value, copy_context()
                        has_several_values = isinstance(value, LifespanValues)
                        self.served.lifespan = value.own if has_several_values else value
                        error: BaseException | None = None
                        was_cancelled = False
                        try:
                            # The `yield` below serves the sessions.
                            deadline = start_effect(self, _SERVE_SESSIONS, self.lane)
                            was_cancelled = deadline == -math.inf  # Trio's for a cancelled task
                            if not was_cancelled:
                                self.lane.begin_effect(deadline)
                            yield value
                        except BaseException as raised:
                            error = without_group(raised)
                        if not self.sequencer.replays:  # A replay calls `wait_for_sessions`.
                            self._record_end_of_sessions(error, was_cancelled=was_cancelled)
                        await self._in_lane(partial(self._exit, manager, error))
                except BaseException as raised:
                    failure = raised
                self._record_end(failure)
                outer.cancel_scope.cancel()
        finally:
            # The nursery raises the cancellation from outside, which must not hide an error.
            if failure is not None:
                raise failure
        await trio.lowlevel.checkpoint_if_cancelled()

    async def wait_for_sessions(self) -> None:
        """Wait, in the block of `enter` in a replay, until the recorded sessions have ended.

        Raises:
            Cancelled: They were cancelled.
            Exception: They failed.
        """
        was_cancelled = is_cancelled_now()
        outcome = await wait_for_recorded_outcome(
            self, _SERVE_SESSIONS, self.lane, was_cancelled=was_cancelled
        )
        _SERVE_SESSIONS.outcome(outcome)

    async def _enter(self) -> tuple[AbstractAsyncContextManager[Any], Any]:
        manager = self.make()
        return manager, await manager.__aenter__()

    async def _exit(
        self, manager: AbstractAsyncContextManager[Any], error: BaseException | None
    ) -> None:
        traceback = None if error is None else error.__traceback__
        kind = None if error is None else type(error)
        if not await manager.__aexit__(kind, error, traceback) and error is not None:
            raise error

    async def _in_lane(self, function: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run the part of the lifespan before or after its `yield`, in its lane.

        Both context variables are reset at the end, so that sessions do not run in the lane of the
        lifespan. Other context variables that the lifespan sets stay set for the sessions.
        """
        lane = LANE.set(self.lane)
        context = CURRENT_CONTEXT.set(CurrentContext(self, self.served))
        try:
            with self.watch or nullcontext():
                return await drive(function(), (self.lane,))
        finally:
            CURRENT_CONTEXT.reset(context)
            LANE.reset(lane)

    def _cancel_from_outside(self) -> None:
        """Cancel the lifespan, because its block was cancelled or has ended."""
        if not self.has_ended and not self.sequencer.replays:
            self.sequencer.marked(LIFESPAN_CANCELLED_MARK, None)
        self._scope.cancel()

    def _record_end_of_sessions(self, error: BaseException | None, *, was_cancelled: bool) -> None:
        """Record how the sessions have ended; `was_cancelled` is whether they began cancelled."""
        outcome = self._outcome(error, value=b"null")
        self.lane.has_waited = True  # The record of the outcome begins a step.
        if outcome is not None:
            is_cancelled = not was_cancelled and is_cancelled_now()
            kind, body = outcome.kind, outcome.body
            self.sequencer.resumed(self.lane, kind, body, is_cancelled=is_cancelled)
        elif isinstance(error, trio.Cancelled):
            self.sequencer.resumed(self.lane, "cxl")
        elif isinstance(self.sequencer, LifespanRecording):  # The process ends, as by Ctrl-C.
            self.sequencer.is_stopped = True
        self.lane.end_effect()

    def _record_end(self, error: BaseException | None) -> None:
        """Record how the lifespan has ended, unless the process ends, or the replay."""
        outcome = self._outcome(error, value=b"")
        if outcome is not None:
            kind = "cxl" if self._scope.cancelled_caught and error is None else outcome.kind
            self.sequencer.resumed(self.lane, kind, outcome.body or None)
            self.has_ended = True

    def _outcome(self, error: BaseException | None, *, value: bytes) -> Outcome | None:
        """Return the recorded form of an end; None if it is a cancellation or ends the process."""
        if error is None:
            return Outcome("res", value)
        if not isinstance(error, Exception):
            return None
        bytes_max = self.limits.requests.effect_bytes_max
        return Outcome("err", encoded_error(error, bytes_max=bytes_max))
