"""What a handler asks its client, and the answers."""

from collections.abc import Sequence
from typing import Any

import trio

from mcp_trio._engine.calls import Asked
from mcp_trio._engine.effects import command
from mcp_trio._engine.handling import Handling
from mcp_trio._engine.resuming import asking
from mcp_trio._engine.sequencer import resume, take_turn
from mcp_trio._engine.together import together
from mcp_trio._errors import LocalProtocolError


async def ask_all(handling: Handling, questions: Sequence[Asked]) -> list[Any]:
    """The typed results of the questions, in their order; they are all asked at once, if any.

    A legacy client gets requests, of which the others are cancelled if one fails; of several that
    fail at once the first is raised. For a modern one the handling has an `asker`, which has a
    round for them.

    Raises:
        LocalProtocolError: The handler has asked too much (`questions_max`, SAMP-22).
        RequestError, RequestTimeout, ConnectionLost: The client did not answer.
        RemoteProtocolError: It answered something else.
    """
    _count(handling, len(questions))
    if not questions:
        await trio.lowlevel.checkpoint()
        return []
    if handling.asker is not None:
        return await handling.asker(handling, questions)
    if len(questions) == 1:
        return [await _ask(handling, questions[0])]
    return await _ask_together(handling, questions)


async def _ask_together(handling: Handling, questions: Sequence[Asked]) -> list[Any]:
    """One request each, in a task each; together they are an operation of the calling lane.

    So a replay is told how the wait for them has ended, which is none of theirs.
    """
    lane, sequencer = handling.current_lane(), handling.session.sequencer

    async def turn() -> None:
        if lane is not None:
            await take_turn(sequencer, lane)

    await command(handling, asking(questions), lane)
    kind = "cxl"
    try:
        results = await together(
            range(len(questions)), lambda place: _ask(handling, questions[place]), meanwhile=turn
        )
        kind = "res"
    except Exception:
        kind = "err"
        raise
    finally:
        if lane is not None:
            await resume(sequencer, lane, kind)
    return [*results.values()]


async def _ask(handling: Handling, question: Asked) -> Any:
    result = await handling.ask(question.method, question.params, on_progress=question.on_progress)
    question.check(result)
    return result


def _count(handling: Handling, number: int) -> None:
    handling.questions += number
    questions_max = handling.session.connection.limits.questions_max
    if handling.questions > questions_max:
        raise LocalProtocolError(f"a handler asks no more than questions_max={questions_max}")
