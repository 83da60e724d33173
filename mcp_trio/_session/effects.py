"""Effects: calls of a handler to the outside of its session, and their recorded outcomes.

An effect is a command and its outcome. A live session runs the effect; a replay returns the
recorded outcome instead. In both cases the result passes through the `Codec` of the effect, so that
the handler receives the same value, recorded or not.

The code that an effect runs is not part of the handler. Its tasks have no lane, so their steps
are not recorded, and a use of the handler's context there raises an error.

A value that is read without waiting, such as a clock, has a single record, which
`Sequencer.read_value` describes.

A resumable handler runs from its start in each round. Its `HandlerJournal` keeps the outcomes of
effects, so an effect runs in one round, and later rounds return the kept outcome.

In records and outcomes, "res" is a result, "err" an error, and "cxl" a cancellation.
"""

import math
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

import msgspec
import trio

from mcp_trio._journal.records import PATCHED_MARK, command_body, encode_body
from mcp_trio._session.handler_journal import FinishedOperation, HandlerJournal, OperationId
from mcp_trio._session.handlers import RUNNING_EFFECT, EffectCaller, RunningEffect, lane_of_caller
from mcp_trio._session.journal import Outcome
from mcp_trio._session.lanes import LANE, Lane, operation
from mcp_trio._session.recorded_errors import encoded_error, is_recordable, raise_rebuilt
from mcp_trio.errors import LocalProtocolError, RequestAbandoned

if TYPE_CHECKING:
    from mcp_trio._session.observing import Observation

# Effects ----------------------------------------------------------------------------------------

# The effective deadline of a task that is cancelled, as Trio defines it.
_CANCELLED: Final = -math.inf

_ENDED: Final = object()

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)


class Codec(Protocol[Result_co]):
    """A conversion between the value of an effect, its record, and the handler's result."""

    def converted(self, value: Any) -> tuple[Result_co, bytes]:
        """Return the handler's result for `value`, and the JSON for the record.

        Raises:
            TypeError: The value has no JSON form, or would change by being recorded.
        """
        ...

    def decoded(self, body: bytes) -> Result_co:
        """Return the handler's result for the JSON of a record.

        Raises:
            TypeError: The JSON does not match the expected type.
        """
        ...


class Effect(msgspec.Struct, Generic[Result], kw_only=True, frozen=True, eq=False):
    """A call to the outside of the session.

    Attributes:
        name: The name in the record.
        arguments: Returns the arguments as a JSON object; called only if they are needed.
        run: Runs the effect; returns the value or an awaitable of it.
        codec: Converts the value.
        run_in_replay: Runs in a replay in place of the effect, if the recorded effect succeeded:
            for example, takes the same lock. A resumable handler runs such an effect in each round.
        is_counted: Whether it counts for `EffectCaller.effects`, as a call of the user's code does.
        is_repeatable: Whether it may run twice if an instance of the server dies while it runs.
    """

    name: str
    arguments: Callable[[], bytes]
    run: Callable[[], Any]
    codec: Codec[Result]
    run_in_replay: Callable[[], Awaitable[object]] | None = None
    is_counted: bool = False
    is_repeatable: bool = False

    def outcome(self, outcome: Outcome) -> Result:
        """Return the handler's result for a recorded outcome, or raise the recorded error."""
        if outcome.kind == "err":
            raise_rebuilt(outcome.body)
        return self.codec.decoded(outcome.body)


# Effects in tasks -------------------------------------------------------------------------------


def perform(caller: EffectCaller, effect: Effect[Result]) -> Coroutine[Any, Any, Result]:
    """Run an effect, or return its recorded outcome; check for cancellation in both cases.

    This is a plain function that returns a coroutine, which saves a coroutine for most effects.

    If this is cancelled, the cancellation is recorded as the outcome. The effect may have been
    carried out in part.

    Raises:
        LocalProtocolError: The task has no lane, or itself belongs to an effect.
        Exception: The effect raised it.
    """
    journal = caller.handler_journal
    if journal is None:
        return perform_once(caller, effect)
    return _perform_in_rounds(caller, journal, effect)


async def _perform_in_rounds(
    caller: EffectCaller, journal: HandlerJournal, effect: Effect[Result]
) -> Result:
    """Run an effect of a resumable handler, or return its outcome in an earlier round."""
    operation_id, earlier = _begin_operation(caller, journal, effect)
    with _WithJournal(caller, journal, effect, operation_id, earlier) as wrapped:
        if journal.on_begin is not None and wrapped.is_counted and not effect.is_repeatable:
            begin, run = journal.on_begin, wrapped.run

            async def begin_and_run() -> Any:
                await begin(operation_id)
                value = run()
                return await value if hasattr(value, "__await__") else value

            wrapped = msgspec.structs.replace(wrapped, run=begin_and_run)
        return await perform_once(caller, wrapped)


async def perform_once(caller: EffectCaller, effect: Effect[Result]) -> Result:
    """Run an effect as `perform` does, but do not look for its outcome in earlier rounds."""
    lane = lane_of_caller(caller)
    if lane is None:
        await trio.lowlevel.checkpoint_if_cancelled()
        with _InsideEffect(caller, effect, None):
            value = effect.run()
            value = await value if hasattr(value, "__await__") else value
        return effect.codec.converted(value)[0]
    sequencer = caller.sequencer
    deadline = start_effect(caller, effect, lane)
    was_cancelled = deadline == _CANCELLED
    has_deadline = _CANCELLED < deadline < math.inf
    if has_deadline:
        lane.begin_effect(deadline)
    if sequencer.replays:
        outcome = await wait_for_recorded_outcome(caller, effect, lane, was_cancelled=was_cancelled)
        return effect.outcome(outcome)
    kind, body = "cxl", None
    try:
        with _InsideEffect(caller, effect, lane):
            if was_cancelled:
                await trio.lowlevel.checkpoint()
            value = effect.run()
            value = await value if hasattr(value, "__await__") else value
        result, body = effect.codec.converted(value)
        kind = "res"
        return result  # noqa: TRY300 - the order of statements is the order of events
    except BaseException as error:
        if is_recordable(error):
            kind, body = "err", _encoded(caller, error)
        raise
    finally:
        is_cancelled = kind != "cxl" and not was_cancelled and is_cancelled_now()
        sequencer.resumed(lane, kind, body, is_cancelled=is_cancelled)
        if has_deadline:
            lane.end_effect()


def start_effect(caller: EffectCaller, effect: Effect[Any], lane: Lane) -> float:
    """Record that a lane starts an effect; return the deadline of the calling task."""
    deadline = trio.current_effective_deadline()
    body = command_body(effect.name, effect.arguments(), is_cancelled=deadline == _CANCELLED)
    caller.sequencer.effect_started(lane, body)
    return deadline


def is_cancelled_now() -> bool:
    """Return whether the calling task is cancelled and no shield protects it."""
    # Trio computes the deadline from all scopes around the task. The coroutine of this checkpoint
    # ends at once if the task is not cancelled, in less than half of the time.
    checkpoint = trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC105
    if next(checkpoint.__await__(), _ENDED) is _ENDED:
        return False
    checkpoint.close()
    return trio.current_effective_deadline() == _CANCELLED


async def wait_for_recorded_outcome(
    caller: EffectCaller, effect: Effect[Any], lane: Lane, *, was_cancelled: bool
) -> Outcome:
    """Return the recorded outcome of an effect, which the calling task waits for in a replay."""
    sequencer = caller.sequencer
    try:
        with operation(lane):
            outcome = await sequencer.outcome(lane)
            if outcome.kind == "res" and effect.run_in_replay is not None:
                await effect.run_in_replay()
    except trio.Cancelled:
        sequencer.resumed(lane, "cxl")
        raise
    finally:
        lane.end_effect()
    is_cancelled = not was_cancelled and is_cancelled_now()
    sequencer.resumed(lane, outcome.kind, outcome.body, is_cancelled=is_cancelled)
    return outcome


def perform_in_thread(
    call: Callable[..., Any], caller: EffectCaller, effect: Effect[Result]
) -> Result:
    """Run an effect in the calling thread of a handler, as `perform` does in a task.

    `call` runs a function in the Trio loop, which records the effect. The effect itself runs in the
    calling thread.

    Raises:
        RequestAbandoned: The request has ended; the effect may have been carried out.
    """
    journal = caller.handler_journal
    if journal is None:
        return _perform_in_thread(call, caller, effect)

    async def begin_operation() -> tuple[OperationId, FinishedOperation | None]:
        return _begin_operation(caller, journal, effect)

    operation_id, earlier = call(begin_operation)
    with _WithJournal(caller, journal, effect, operation_id, earlier) as wrapped:
        if journal.on_begin is not None and wrapped.is_counted and not effect.is_repeatable:
            begin, run = journal.on_begin, wrapped.run

            def begin_and_run() -> Any:
                call(begin, operation_id)
                return run()

            wrapped = msgspec.structs.replace(wrapped, run=begin_and_run)
        return _perform_in_thread(call, caller, wrapped)


def _perform_in_thread(
    call: Callable[..., Any], caller: EffectCaller, effect: Effect[Result]
) -> Result:
    async def begin() -> Lane | None:
        lane = lane_of_caller(caller)
        if lane is not None:
            start_effect(caller, effect, lane)
            # The thread journals no steps until the effect has ended.
            lane.is_in_operation = True
        return lane

    async def recorded(lane: Lane) -> Outcome:
        outcome = await caller.sequencer.outcome(lane, is_in_thread=True)
        await _end_for_thread(caller, lane, outcome)
        return outcome

    lane: Lane | None = call(begin)
    if lane is not None and caller.sequencer.replays:
        return effect.outcome(call(recorded, lane, awaits_outcome=True))
    try:
        result, body = _run_in_place(caller, effect, lane)
    except BaseException as error:
        if is_recordable(error):
            call(_end_for_thread, caller, lane, Outcome("err", _encoded(caller, error)))
        raise
    call(_end_for_thread, caller, lane, Outcome("res", body))
    return result


async def _end_for_thread(caller: EffectCaller, lane: Lane | None, outcome: Outcome) -> None:
    if lane is not None:
        lane.is_in_operation = False
        caller.sequencer.resumed(lane, outcome.kind, outcome.body)


def abandon_effect(caller: EffectCaller, lane: Lane) -> None:
    """Record an effect that still runs in a handler's thread as cancelled, at the request's end."""
    if lane.is_in_operation:
        lane.is_in_operation = False
        caller.sequencer.resumed(lane, "cxl")


# Effects and values without waiting -------------------------------------------------------------


def perform_without_waiting(caller: EffectCaller, effect: Effect[Result]) -> Result:
    """Run a synchronous effect in place; it is not a checkpoint, and is never cancelled.

    Raises:
        LocalProtocolError: The task has no lane, or itself belongs to an effect; or the caller is a
            thread.
        Exception: The effect raised it.
    """
    journal = caller.handler_journal
    if journal is None:
        return _perform_without_waiting(caller, effect)
    with _WithJournal(
        caller, journal, effect, *_begin_operation(caller, journal, effect)
    ) as wrapped:
        return _perform_without_waiting(caller, wrapped)


def _perform_without_waiting(caller: EffectCaller, effect: Effect[Result]) -> Result:
    lane = _lane_in_loop(caller)
    if lane is None:
        return _run_in_place(caller, effect, None)[0]
    lane.command_record = None  # the record follows when the value is known
    errors: list[BaseException] = []

    def read() -> Outcome:
        try:
            return Outcome("res", _run_in_place(caller, effect, lane)[1])
        except BaseException as error:
            if not is_recordable(error):
                raise
            errors.append(error)
            return Outcome("err", _encoded(caller, error))

    outcome = caller.sequencer.read_value(lane, effect.name, effect.arguments(), read)
    if errors:
        raise errors[0]
    return effect.outcome(outcome)


def read_clock(
    caller: EffectCaller, name: str, read: Callable[[], Result], kind: type[Result]
) -> Result:
    """Read a clock, or return its recorded value; JSON can express the value exactly."""
    lane, journal = _lane_in_loop(caller), caller.handler_journal
    if lane is None and journal is None:
        return read()
    operation_id = earlier = None
    if journal is not None:
        operation_id, earlier = journal.begin_operation(name, b"")
    values: list[Result] = []

    def read_live() -> Outcome:
        values.append(read() if earlier is None else msgspec.json.decode(earlier.body, type=kind))
        return Outcome("res", encode_body(values[0]))

    if lane is None:
        outcome = read_live()
    else:
        outcome = caller.sequencer.read_value(lane, name, None, read_live)
    if journal is not None and operation_id is not None and earlier is None:
        journal.finish_operation(operation_id, "res", outcome.body)
    return values[0] if values else msgspec.json.decode(outcome.body, type=kind)


def _lane_in_loop(caller: EffectCaller) -> Lane | None:
    """Return the lane of the calling task.

    Raises:
        LocalProtocolError: `lane_of_caller` raises it, or the caller is a thread.
    """
    if not trio.lowlevel.in_trio_task():
        raise LocalProtocolError(
            "a thread cannot use this part of the context: use it before the thread starts"
        )
    return lane_of_caller(caller)


# Random numbers and changes of the code ---------------------------------------------------------


def randomness(caller: EffectCaller) -> Random:
    """Return the random number generator of the calling lane, or of the request if unrecorded."""
    lane = lane_of_caller(caller)
    if caller.handler_journal is not None:
        return caller.handler_journal.randomness()
    if lane is None:
        if caller.random is None:
            caller.random = Random()  # noqa: S311 - not for secrets, as documented
        return caller.random
    return lane.generator(caller.sequencer.seed)


def takes_patch(caller: EffectCaller, name: str) -> bool:
    """Return whether the calling lane takes the new branch where the code was changed.

    A recording, or an earlier round, from before the change takes the old branch.
    """
    lane, journal = _lane_in_loop(caller), caller.handler_journal
    patched_lane = lane if journal is None else journal.current_lane()
    if patched_lane is None:
        return True
    if patched_lane.patches is None:
        patched_lane.patches = {}
    if name not in patched_lane.patches:
        # The lane takes the new branch only if both the earlier rounds and the recording did.
        patched_lane.patches[name] = (
            journal is None or journal.takes_patch(f"{PATCHED_MARK} {name}")
        ) and (lane is None or caller.sequencer.patched(lane, name))
    return patched_lane.patches[name]


# Effects of resumable handlers ------------------------------------------------------------------


class _RememberingCodec(msgspec.Struct, Generic[Result], eq=False):
    """A codec that keeps the JSON of the result for later rounds.

    If an earlier round has kept the JSON in `body`, each value is replaced by that.
    """

    codec: Codec[Result]
    body: bytes | None

    def converted(self, value: Any) -> tuple[Result, bytes]:
        if self.body is not None:
            return self.codec.decoded(self.body), self.body
        result, self.body = self.codec.converted(value)
        return result, self.body

    def decoded(self, body: bytes) -> Result:
        self.body = body
        return self.codec.decoded(body)


def _begin_operation(
    caller: EffectCaller, journal: HandlerJournal, effect: Effect[Any]
) -> tuple[OperationId, FinishedOperation | None]:
    lane_of_caller(caller)  # This raises an error if the caller is the code of another effect.
    return journal.begin_operation(effect.name, effect.arguments())


class _WithJournal(Generic[Result]):
    """A context manager that keeps the outcome of an effect in the journal of its handler.

    `with` gets the effect, or one that repeats the `earlier` outcome. A generator in its place
    would set an attribute of the exception, which fails if that is a frozen dataclass.
    """

    __slots__ = ("_caller", "_codec", "_earlier", "_effect", "_id", "_journal")

    def __init__(
        self,
        caller: EffectCaller,
        journal: HandlerJournal,
        effect: Effect[Result],
        operation_id: OperationId,
        earlier: FinishedOperation | None,
    ) -> None:
        # An effect with a part for replays, such as taking a lock, runs in each round.
        if effect.run_in_replay is not None:
            earlier = None
        body = None if earlier is None or earlier.kind != "res" else bytes(earlier.body)
        self._caller, self._journal, self._id = caller, journal, operation_id
        self._effect, self._earlier = effect, earlier
        self._codec = _RememberingCodec(effect.codec, body)

    def __enter__(self) -> Effect[Result]:
        effect, earlier = self._effect, self._earlier

        def repeat() -> Any:
            assert earlier is not None
            if earlier.kind == "err":
                raise_rebuilt(bytes(earlier.body))
            if earlier.kind != "cxl":
                return None  # `_RememberingCodec` returns the kept value in any case.
            sleep: Any = trio.sleep_forever
            return sleep()  # The caller awaits it, and is cancelled meanwhile.

        run = effect.run if earlier is None else repeat
        is_counted = effect.is_counted and earlier is None
        return msgspec.structs.replace(effect, run=run, codec=self._codec, is_counted=is_counted)

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error is None:
            self._journal.finish_operation(self._id, "res", self._codec.body)
        elif isinstance(error, trio.Cancelled | RequestAbandoned):
            self._journal.finish_operation(self._id, "cxl", None)
        elif is_recordable(error):
            self._journal.finish_operation(self._id, "err", _encoded(self._caller, error))


# Running effects --------------------------------------------------------------------------------


def _run_in_place(
    caller: EffectCaller, effect: Effect[Result], lane: Lane | None
) -> tuple[Result, bytes]:
    with _InsideEffect(caller, effect, lane):
        value = effect.run()
    return effect.codec.converted(value)


class _InsideEffect:
    """A context manager around the code of an effect, which has no lane of the handler.

    To save a function call for each effect, the constructor enters the context.
    """

    __slots__ = ("_inside", "_lane", "_observation", "_outer", "_was_inside")

    def __init__(self, caller: EffectCaller, effect: Effect[Any], lane: Lane | None) -> None:
        caller.effects += effect.is_counted
        self._lane = innermost = lane
        if lane is not None:  # as `operation` does, without a second context manager
            self._was_inside = lane.is_in_operation
            lane.is_in_operation = True
        elif caller.handler_journal is not None:
            innermost = caller.handler_journal.current_lane()
        self._inside = RUNNING_EFFECT.set(RunningEffect(caller, effect.name))
        self._outer = None if innermost is None else LANE.set(innermost.outer)
        request = caller.observation
        self._observation: Observation | None = None
        if request is not None:
            number = None if lane is None else lane.command_record
            self._observation = request.effect(effect.name, number)
            self._observation.__enter__()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if self._observation is not None:
            self._observation.__exit__()
            self._observation.raised(error)
        RUNNING_EFFECT.reset(self._inside)
        if self._outer is not None:
            LANE.reset(self._outer)
        if self._lane is not None:
            self._lane.is_in_operation = self._was_inside


def _encoded(caller: EffectCaller, error: BaseException) -> bytes:
    return encoded_error(error, bytes_max=caller.limits.requests.effect_bytes_max)
