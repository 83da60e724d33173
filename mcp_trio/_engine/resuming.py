"""The questions of a resumable handler: answered in an earlier round, or the end of this one.

A question is a step like any other, whose outcome is the client's answer. One that nobody has
answered yet is waited for in vain: when all tasks that could go on have had a turn to ask as well,
the handler is cancelled, and the round asks its questions.
"""

import functools
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import attrs
import msgspec
import trio

from mcp_trio._engine.calls import Asked
from mcp_trio._engine.effects import Effect, command, perform_once
from mcp_trio._engine.handling import Handling
from mcp_trio._engine.lanes import LANE, enter_lane, watch_lanes
from mcp_trio._engine.memory import Memory, Place
from mcp_trio._engine.sequencer import resume, take_turn
from mcp_trio._errors import INVALID_PARAMS, LocalProtocolError, RemoteProtocolError, RequestError
from mcp_trio._journal.records import encode_body
from mcp_trio._protocol import METHODS
from mcp_trio._schema import EmptyParams

ROUND: Final = "round"
"""The name of the mark by which a round ends; its value are the keys of the questions."""

CHANGED: Final = "ctx.changed"
"""What is marked as patched where a handler does not do what it did in an earlier round."""

ASK_ALL: Final = "ctx.ask_all"


async def run_resumably(
    handling: Handling, memory: Memory, handler: Callable[[], Awaitable[Any]]
) -> Any:
    """What a handler returns, with what its earlier rounds have done; None if it has to ask.

    Then `memory.questions` holds what. Effects that ran at that moment are cancelled, and begin
    anew in the next round.

    Raises:
        Exception: What the handler raises.
    """
    watch_lanes()
    memory.has_changed = functools.partial(_has_changed, handling)
    handling.memory, parked = memory, handling.asker
    handling.asker = functools.partial(_ask_all, memory)
    result, fault = None, None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_end_round, handling, memory)
        enter_lane(memory.lane)
        try:
            with memory.scope:
                result = await handler()
        except Exception as error:
            fault = error
        finally:
            LANE.set(memory.lane.outer)
            handling.memory, handling.asker = None, parked
        nursery.cancel_scope.cancel()
    if fault is not None:
        raise fault
    return None if memory.scope.cancelled_caught else result


def _has_changed(handling: Handling) -> bool:
    """In a live session it has; in a replay if it had."""
    lane = handling.current_lane()
    return lane is None or handling.session.sequencer.patched(lane, CHANGED)


async def _end_round(handling: Handling, memory: Memory) -> None:
    """End the handler when it has asked; who could run since then has had a turn to ask."""
    lane, sequencer = handling.current_lane(), handling.session.sequencer
    while True:
        await memory.has_asked.wait()
        await trio.lowlevel.checkpoint()  # who has just been woken may ask as well
        if lane is not None:
            await take_turn(sequencer, lane)
        if memory.questions:  # who asked may have gone since
            break
    if lane is not None:
        sequencer.marked(ROUND, list(memory.questions), lane)
    memory.scope.cancel()


async def _ask_all(memory: Memory, handling: Handling, asked: Sequence[Asked]) -> list[Any]:
    steps = [memory.come_to(each.method, _params_of(each)) for each in asked]
    open_ = {place: each for each, (place, step) in zip(asked, steps, strict=True) if step is None}
    if open_:
        await _ask(handling, memory, open_)
    bodies = [bytes(step.body) for _, step in steps if step is not None]
    return [
        await perform_once(handling, _question(each, body))
        for each, body in zip(asked, bodies, strict=True)
    ]


async def _ask(handling: Handling, memory: Memory, asked: Mapping[Place, Asked]) -> NoReturn:
    """Put questions into the round, and wait for its end."""
    lane, sequencer = handling.current_lane(), handling.session.sequencer
    await command(handling, asking(list(asked.values())), lane)
    hindrance = _hindrance(memory)
    if hindrance is not None:
        if lane is not None:
            sequencer.resumed(lane, "err")
        raise LocalProtocolError(hindrance)
    memory.ask(asked)
    try:
        if lane is not None:
            await take_turn(sequencer, lane)
        await trio.sleep_forever()
    finally:
        memory.withdraw(asked)
        if lane is not None:
            await resume(sequencer, lane, "cxl")


def _hindrance(memory: Memory) -> str | None:
    """Why the calling task cannot ask now; None if it can."""
    if memory.scope.cancel_called:
        return "the handler is ending, since it asked: it cannot ask more"
    if _is_shielded_from(memory.scope):
        return "a resumable handler ends at its questions, so it cannot ask behind a shield"
    return None


def _is_shielded_from(scope: trio.CancelScope) -> bool:
    """Whether the calling task would not be cancelled with a scope: its deadline is none to it.

    What a handler's thread calls is done by a system task, which others cancel; threads have no
    shields.
    """
    nursery = trio.lowlevel.current_task().parent_nursery
    if nursery is None or nursery.parent_task is trio.lowlevel.current_root_task():
        return False
    deadline, scope.deadline = scope.deadline, -math.inf
    try:
        return trio.current_effective_deadline() > scope.deadline
    finally:
        scope.deadline = deadline


def asking(asked: Sequence[Asked]) -> Effect[None]:
    """What the record says of questions that are open."""
    if len(asked) == 1:
        return _question(asked[0])
    questions = [{"method": it.method, "params": msgspec.Raw(_params_of(it))} for it in asked]
    arguments = functools.partial(encode_body, {"questions": questions})
    return attrs.evolve(_question(asked[0]), name=ASK_ALL, arguments=arguments)


def _question(asked: Asked, body: bytes = b"") -> Effect[Any]:
    return Effect(
        name=asked.method,
        arguments=functools.partial(_params_of, asked),
        run=_nothing,
        codec=_Answer(asked, body),
    )


def _nothing() -> None:
    """The answer is there already."""


def _params_of(asked: Asked) -> bytes:
    return encode_body(EmptyParams() if asked.params is None else asked.params)


@attrs.frozen
class _Answer:
    """The client's answer to a question, as it came: it is looked at in each round."""

    asked: Asked
    body: bytes

    def converted(self, value: Any) -> tuple[Any, bytes]:  # noqa: ARG002  the protocol's
        return self.decoded(self.body), self.body

    def decoded(self, body: bytes) -> Any:
        try:
            result = METHODS[self.asked.method].decode_result(msgspec.Raw(body))
            self.asked.check(result)
        except (msgspec.MsgspecError, RemoteProtocolError) as error:
            raise RequestError(INVALID_PARAMS, f"invalid input response: {error}") from error
        return result
