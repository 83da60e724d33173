"""Effects: what a handler does outside of the session, and how it comes back.

An effect is a command and its outcome. A live session runs it; a replay does not, and gives the
recorded outcome. Either way the handler gets what `codec` has made of it, so that both are the same
to it, and so that nothing changes with the first recording.

What happens while an effect runs is none of the handler's: its tasks have no lane, and its context
is refused there (see `Handling.current_lane`).

What a handler reads in passing, such as a clock, cannot wait for a turn and is one record; see
`Sequencer.valued`.

A handler with a memory does each effect once in all its rounds: the others give what it came to.
"""

import functools
import sys
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import attrs
import msgspec
import trio

from mcp_trio._journal.records import (
    PATCHED_MARK,
    TIMED_OUT_MARK,
    TIMEOUT,
    CommandBody,
    ErrorBody,
    encode_body,
)
from mcp_trio._session.handlers import INSIDE, Handling, Inside
from mcp_trio._session.journal import (
    LANE,
    Lane,
    Memory,
    Outcome,
    Sequencer,
    Step,
    StepId,
    take_turn,
)
from mcp_trio.errors import LocalProtocolError, ReplayedError, RequestAbandoned

# --------------------
# An effect's exception as a record, and the exception again.
#
# The class is looked for among what is imported already, and its `__init__` is not called: the
# exception gets its arguments and what it knew beside them, as far as JSON can say that. If it does
# not come out with the same text, or is not found, `ReplayedError` stands for it. A group is a
# group again, whatever stands for its members: handlers take it apart, and we do when nobody else
# does.


_CUT_TEXT_CHARS: Final = 300


def encoded_error(error: Exception, *, bytes_max: int) -> bytes:
    """The body of an `err` record; of one that is too large, the class and how the text begins."""
    told = _told(error)
    body = encode_body(told)
    if len(body) <= bytes_max:
        return body
    return encode_body(ErrorBody(type=told.type, text=told.text[:_CUT_TEXT_CHARS]))


def rebuilt_error(body: bytes) -> Exception:
    """The exception that a body tells of."""
    return _found(msgspec.json.decode(body, type=ErrorBody))


def _told(error: Exception) -> ErrorBody:
    kind = type(error)
    attributes = {name: value for name, value in vars(error).items() if _is_json(value)}
    members = [_told(member) for member in _members(error)]
    args = [error.args[0]] if members else list(_args(error))
    return ErrorBody(
        type=f"{kind.__module__}.{kind.__qualname__}",
        text=_text(error),
        args=args if _is_json(args) else None,
        attributes=attributes or None,
        members=members or None,
    )


def _found(told: ErrorBody) -> Exception:
    for kind in _classes(told.type):
        error = _rebuilt(kind, told)
        if error is not None:
            return error
    return ReplayedError(told.type, told.text)


def _rebuilt(kind: type[Exception], told: ErrorBody) -> Exception | None:
    if told.args is None:
        return None
    try:
        members = () if told.members is None else ([_found(member) for member in told.members],)
        error = kind.__new__(kind, *told.args, *members)
        vars(error).update(told.attributes or {})
    except Exception:  # people's classes may do anything
        return None
    return error if _text(error) == told.text else None


def _classes(name: str) -> Iterator[type[Exception]]:
    """Yield the exceptions of this name: from the innermost module that is imported and has one.

    Errors of this package are found by their class name alone, because a recording outlives the
    module that held them when it was made. An error of httpx is found in its successor httpx2, if
    httpx is not imported.
    """
    names = name.split(".")
    if names[0] == "mcp_trio":
        names = ["mcp_trio", "errors", names[-1]]
    elif names[0] == "httpx" and "httpx" not in sys.modules:
        names[0] = "httpx2"
    for count in range(len(names) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(names[:count]))
        for step in names[count:]:
            found = getattr(found, step, None)
        if isinstance(found, type) and issubclass(found, Exception):
            yield found


def _members(error: Exception) -> tuple[Exception, ...]:
    if not isinstance(error, ExceptionGroup):
        return ()
    return cast("ExceptionGroup[Exception]", error).exceptions


def _args(error: Exception) -> tuple[Any, ...]:
    """Return the constructor arguments; `OSError.args` lacks the file names."""
    if not isinstance(error, OSError):
        return error.args
    reduced: Any = error.__reduce__()
    args: tuple[Any, ...] = reduced[1]
    return args


def _text(error: Exception) -> str:
    """Return the text of an error, with characters that UTF-8 cannot encode escaped."""
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:  # the same
        return ""


def _is_json(value: object) -> bool:
    """Return whether a value is unchanged by encoding it as JSON and decoding it."""
    try:
        return _is_same(msgspec.json.decode(msgspec.json.encode(value)), value)
    except Exception:  # as above, for `==`
        return False


def _is_same(read: Any, value: Any) -> bool:
    """Equal, and of the same types: an enum's member or a named tuple would not come back."""
    kind = read.__class__
    if kind is not value.__class__:
        return False
    if kind is list:
        return all(map(_is_same, read, value))
    if kind is dict:
        return read.keys() == value.keys() and all(_is_same(read[key], value[key]) for key in read)
    return bool(read == value)


_NS_PER_SECOND: Final = 1e9

Result = TypeVar("Result")
Kept_co = TypeVar("Kept_co", covariant=True)


class Codec(Protocol[Kept_co]):
    """Between what an effect returned, and what its handler gets and its record holds."""

    def converted(self, value: Any) -> tuple[Kept_co, bytes]:
        """What the handler gets for `value`, and the record's JSON.

        Raises:
            TypeError: It does not survive that.
        """
        ...

    def decoded(self, body: bytes) -> Kept_co:
        """What the handler gets for a record's JSON.

        Raises:
            TypeError: It is not of the form that is expected now.
        """
        ...


@attrs.frozen(kw_only=True, eq=False)
class Effect(Generic[Result]):
    """Something to be done outside of the session.

    `run` does it, at once or by something to await. `arguments` is asked for only if somebody wants
    to know, and says them as a JSON object. `again` is what a replay does as well, at the moment at
    which the effect had succeeded.
    """

    name: str
    arguments: Callable[[], bytes]
    run: Callable[[], Any]
    codec: Codec[Result]
    again: Callable[[], Awaitable[object]] | None = None

    def command(self) -> bytes:
        """The body of its `cmd` record."""
        arguments = msgspec.Raw(self.arguments())
        return encode_body(CommandBody(name=self.name, arguments=arguments))

    def outcome(self, outcome: Outcome) -> Result:
        """Return the recorded result to the handler, or raise the recorded error."""
        if outcome.kind == "err":
            raise rebuilt_error(outcome.body)
        return self.codec.decoded(outcome.body)


# Effects that are waited for.


async def perform(handling: Handling, effect: Effect[Result]) -> Result:
    """Run an effect, or have run it; in any case a check for cancellation.

    Cancelled: that is the lane's outcome, and what the effect did until then stays done.

    Raises:
        LocalProtocolError: The task has no lane, or runs an effect itself.
        Exception: What the effect raises.
    """
    memory = handling.memory
    if memory is None:
        return await perform_once(handling, effect)
    with _remembered(handling, memory, effect, *_come_to(handling, memory, effect)) as remembered:
        return await perform_once(handling, remembered)


async def perform_once(handling: Handling, effect: Effect[Result]) -> Result:
    """`perform`, whatever an earlier round of the handler has done."""
    lane = handling.current_lane()
    outcome = await _begin(handling, effect, lane)
    if outcome is not None:
        return effect.outcome(outcome)
    kind, body = "cxl", None
    try:
        with _inside(handling, effect, lane):
            value = effect.run()
            value = await value if hasattr(value, "__await__") else value
        result, body = effect.codec.converted(value)
        kind = "res"
        return result  # noqa: TRY300  read in the order in which it happens
    except Exception as error:
        kind, body = "err", None if lane is None else _encoded(handling, error)
        raise
    finally:
        if lane is not None:
            handling.session.sequencer.resumed(lane, kind, body)


async def _begin(handling: Handling, effect: Effect[Any], lane: Lane | None) -> Outcome | None:
    """The outcome, if a replay has one; None: the effect is to be run now, and to be ended."""
    await command(handling, effect, lane)
    sequencer = handling.session.sequencer
    return (
        None
        if lane is None or not sequencer.decides_turns
        else await _recorded(sequencer, lane, effect)
    )


async def command(handling: Handling, effect: Effect[Any], lane: Lane | None) -> None:
    """A lane begins an effect, in its turn; a check for cancellation."""
    if lane is None:
        await trio.lowlevel.checkpoint_if_cancelled()
        return
    sequencer = handling.session.sequencer
    body = effect.command()
    try:
        if sequencer.decides_turns:
            await take_turn(sequencer, lane, commands=True)
        else:
            await trio.lowlevel.checkpoint_if_cancelled()
    except trio.Cancelled:
        sequencer.resumed(lane, "cxl")
        raise
    sequencer.commanded(lane, body)


async def _recorded(sequencer: Sequencer, lane: Lane, effect: Effect[Any]) -> Outcome:
    try:
        kind = await sequencer.turn(lane)
        if kind == "cxl":
            await sequencer.until_cancelled(lane)
        if kind == "res" and effect.again is not None:
            await effect.again()
    except trio.Cancelled:
        await sequencer.turn(lane)
        sequencer.resumed(lane, "cxl")
        raise
    outcome = Outcome("err" if kind == "err" else "res", sequencer.recorded(lane) or b"null")
    sequencer.resumed(lane, outcome.kind, outcome.body)
    return outcome


def perform_in_thread(
    call: Callable[..., Any], handling: Handling, effect: Effect[Result]
) -> Result:
    """`perform` for a handler's thread, in which the effect runs; `call` runs the rest in the loop.

    Raises:
        RequestAbandoned: The request is over; what the effect did stays done.
    """
    memory = handling.memory
    if memory is None:
        return _perform_in_thread(call, handling, effect)
    at = call(_come_to_in_thread, handling, memory, effect, is_part=True)
    with _remembered(handling, memory, effect, *at) as remembered:
        return _perform_in_thread(call, handling, remembered)


def _perform_in_thread(
    call: Callable[..., Any], handling: Handling, effect: Effect[Result]
) -> Result:
    lane = handling.current_lane()
    outcome = call(_begin_in_thread, handling, effect, lane)
    if outcome is not None:
        return effect.outcome(outcome)
    try:
        result, body = _run_in_place(handling, effect, lane)
    except Exception as error:
        call(_end_in_thread, handling, lane, Outcome("err", _encoded(handling, error)))
        raise
    call(_end_in_thread, handling, lane, Outcome("res", body))
    return result


async def _begin_in_thread(
    handling: Handling, effect: Effect[Any], lane: Lane | None
) -> Outcome | None:
    outcome = await _begin(handling, effect, lane)
    if lane is not None:
        lane.is_in_effect = outcome is None
    return outcome


async def _end_in_thread(handling: Handling, lane: Lane | None, outcome: Outcome) -> None:
    if lane is not None:
        lane.is_in_effect = False
        handling.session.sequencer.resumed(lane, outcome.kind, outcome.body)


def abandon_effect(handling: Handling) -> None:
    """The thread of a handler is over, or nobody waits for it any more.

    If an effect runs there, then for the lane it is cancelled.
    """
    lane = handling.current_lane()
    if lane is not None and lane.is_in_effect:
        lane.is_in_effect = False
        handling.session.sequencer.resumed(lane, "cxl")


# What is read in passing.


def perform_in_passing(handling: Handling, effect: Effect[Result]) -> Result:
    """Run an effect that nobody can wait for: in place, and never cancelled.

    Raises:
        LocalProtocolError: As in `perform`; or this is no task, but a thread.
        Exception: What the effect raises.
    """
    memory = handling.memory
    if memory is None:
        return _perform_in_passing(handling, effect)
    with _remembered(handling, memory, effect, *_come_to(handling, memory, effect)) as remembered:
        return _perform_in_passing(handling, remembered)


def _perform_in_passing(handling: Handling, effect: Effect[Result]) -> Result:
    lane = _lane_in_loop(handling)
    if lane is None:
        return _run_in_place(handling, effect, None)[0]
    faults: list[Exception] = []

    def read() -> Outcome:
        try:
            return Outcome("res", _run_in_place(handling, effect, lane)[1])
        except Exception as error:
            faults.append(error)
            return Outcome("err", _encoded(handling, error))

    outcome = handling.session.sequencer.valued(lane, effect.name, effect.arguments(), read)
    if faults:
        raise faults[0]
    return effect.outcome(outcome)


def read_clock(
    handling: Handling, name: str, read: Callable[[], Result], kind: type[Result]
) -> Result:
    """Read a clock, whose value JSON can express exactly."""
    memory = handling.memory
    if memory is None:
        return _read_clock(handling, name, read, kind)
    _lane_in_loop(handling)
    place, step = memory.come_to(name, b"")
    if step is not None:
        body = step.body
        return _read_clock(handling, name, lambda: msgspec.json.decode(body, type=kind), kind)
    value = _read_clock(handling, name, read, kind)
    memory.keep(place, "res", encode_body(value))
    return value


def _read_clock(
    handling: Handling, name: str, read: Callable[[], Result], kind: type[Result]
) -> Result:
    lane = _lane_in_loop(handling)
    if lane is None:
        return read()
    value: list[Result] = []

    def say() -> Outcome:
        value.append(read())
        return Outcome("res", encode_body(value[0]))

    outcome = handling.session.sequencer.valued(lane, name, None, say)
    return value[0] if value else msgspec.json.decode(outcome.body, type=kind)


def _lane_in_loop(handling: Handling) -> Lane | None:
    """The lane of the calling task, for what happens in place.

    Raises:
        LocalProtocolError: As `Handling.current_lane`; or this is no task, but a thread.
    """
    if not trio.lowlevel.in_trio_task():
        raise LocalProtocolError(
            "the context belongs to the handler's task: read what you need before the thread begins"
        )
    return handling.current_lane()


@contextmanager
def time_limit(handling: Handling, seconds: float) -> Generator[trio.CancelScope]:
    """Cancel the block when so many seconds are over.

    Where what lies around it is cancelled too before it is left, Trio lets the outer one have it. A
    replay may come to that by another way than the recording, so the journal tells who had it.

    Raises:
        trio.TooSlowError: At the end of a block that was cancelled by this.
        ValueError: The seconds are negative, or no number.
    """
    lane = _lane_in_loop(handling)
    scope = trio.CancelScope(deadline=_deadline(handling, lane, seconds))
    begun = -1 if lane is None else lane.ordinal

    def has_run_out(*, is_caught: bool) -> bool:
        if lane is None:
            return is_caught
        return handling.session.sequencer.noted(lane, TIMED_OUT_MARK, begun, is_so=is_caught)

    try:
        with scope:
            yield scope
    except BaseException as error:
        if not (_is_cancellation(error) and has_run_out(is_caught=False)):
            raise
        raise trio.TooSlowError from None
    if scope.cancelled_caught and has_run_out(is_caught=True):
        raise trio.TooSlowError


def _is_cancellation(error: BaseException) -> bool:
    """And nothing else with it."""
    return BaseExceptionGroup("", [error]).split(trio.Cancelled)[1] is None


def _deadline(handling: Handling, lane: Lane | None, seconds: float) -> float:
    """The time of the run at which so many seconds are over."""
    if not seconds >= 0:
        raise ValueError("`seconds` must be non-negative")
    now = trio.current_time()
    if lane is not None:
        sequencer = handling.session.sequencer

        def say() -> Outcome:
            return Outcome("res", encode_body(sequencer.clock_ns()))

        outcome = sequencer.valued(lane, TIMEOUT, encode_body({"seconds": seconds}), say)
        if sequencer.decides_turns:
            now = msgspec.json.decode(outcome.body, type=int) / _NS_PER_SECOND
    return now + seconds


# What follows from the seed and the lane.


def randomness(handling: Handling) -> Random:
    """The calling lane's own generator; while nothing records, the request's."""
    lane = handling.current_lane()
    if handling.memory is not None:
        return handling.memory.randomness()
    if lane is None:
        if handling.random is None:
            handling.random = Random()  # noqa: S311  not for secrets, as `Context.random` says
        return handling.random
    if lane.random is None:
        lane.random = Random(f"{handling.session.sequencer.seed}:{lane.name}")  # noqa: S311  the same
    return lane.random


def takes_patch(handling: Handling, name: str) -> bool:
    """Return whether the calling lane takes the new branch at a change of the code."""
    lane, memory = _lane_in_loop(handling), handling.memory
    keeper = lane if memory is None else memory.here()
    if keeper is None:
        return True
    if keeper.patches is None:
        keeper.patches = {}
    if name not in keeper.patches:
        keeper.patches[name] = _takes_patch(handling, memory, lane, name)
    return keeper.patches[name]


def _takes_patch(handling: Handling, memory: Memory | None, lane: Lane | None, name: str) -> bool:
    """Both the earlier rounds and a recording must have had it."""
    if memory is not None and not memory.takes_patch(f"{PATCHED_MARK} {name}"):
        return False
    return lane is None or handling.session.sequencer.patched(lane, name)


# What a handler did in an earlier round.


@attrs.define(eq=False)
class _Noting(Generic[Result]):
    """A codec that keeps the last body, or has one already."""

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


def _come_to(handling: Handling, memory: Memory, effect: Effect[Any]) -> tuple[StepId, Step | None]:
    handling.current_lane()  # refuses it inside of an effect
    return memory.come_to(effect.name, effect.arguments())


async def _come_to_in_thread(
    handling: Handling, memory: Memory, effect: Effect[Any]
) -> tuple[StepId, Step | None]:
    return _come_to(handling, memory, effect)


@contextmanager
def _remembered(
    handling: Handling, memory: Memory, effect: Effect[Result], place: StepId, step: Step | None
) -> Generator[Effect[Result]]:
    """The effect as it is to be performed; what it comes to is remembered.

    One that a replay does as well, such as to take a lock, is done in each round.
    """
    if effect.again is not None:
        step = None
    noting = _Noting(effect.codec, None if step is None or step.kind != "res" else bytes(step.body))
    run = effect.run if step is None else functools.partial(_recall, step)
    with _keeping(handling, memory, place, noting):
        yield attrs.evolve(effect, run=run, codec=noting)


@contextmanager
def _keeping(
    handling: Handling, memory: Memory, place: StepId, noting: _Noting[Any]
) -> Generator[None]:
    try:
        yield
    except (trio.Cancelled, RequestAbandoned):
        memory.keep(place, "cxl", None)
        raise
    except Exception as error:
        memory.keep(place, "err", _encoded(handling, error))
        raise
    memory.keep(place, "res", noting.body)


def _recall(step: Step) -> Any:
    """Come to the same again: a value is the codec's, and a cancellation comes as it did."""
    if step.kind == "err":
        raise rebuilt_error(bytes(step.body))
    return _wait_for_cancellation() if step.kind == "cxl" else None


async def _wait_for_cancellation() -> None:
    await trio.sleep_forever()


# What runs, and what it raises.


def _run_in_place(
    handling: Handling, effect: Effect[Result], lane: Lane | None
) -> tuple[Result, bytes]:
    with _inside(handling, effect, lane):
        value = effect.run()
    return effect.codec.converted(value)


@contextmanager
def _inside(handling: Handling, effect: Effect[Any], lane: Lane | None) -> Generator[None]:
    """Meanwhile the caller is no part of the handler."""
    inside = INSIDE.set(Inside(handling, effect.name))
    innermost = lane if handling.memory is None else lane or handling.memory.here()
    outer = None if innermost is None else LANE.set(innermost.outer)
    try:
        yield
    finally:
        INSIDE.reset(inside)
        if outer is not None:
            LANE.reset(outer)


def _encoded(handling: Handling, error: Exception) -> bytes:
    limits = handling.session.connection.limits
    return encoded_error(error, bytes_max=limits.requests.effect_bytes_max)
