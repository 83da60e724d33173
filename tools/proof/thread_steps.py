"""The steps of `def` handlers of generated programs, by a table.

Their threads run beside the loop, so they touch what is shared only under its lock.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs
import external_calls
from handler_steps import TOTAL, World, form_of, questions_of, words_of
from programs import Script, Step

from mcp_trio import ThreadContext, ToolError
from mcp_trio.errors import CapabilityMissing


@attrs.define
class ThreadAct:
    """One handler at work in its thread; see `Act`."""

    world: World
    ctx: ThreadContext
    seen: list[Any] = attrs.field(factory=list[Any])

    def play(self, script: Script) -> None:
        """Do one step after the other."""
        for step in script:
            STEPS[step.name](self, step)


_StepFunction: TypeAlias = Callable[[ThreadAct, Step], None]


def say(act: ThreadAct, step: Step) -> None:
    act.ctx.info(["from a thread", step.amount])


def report(act: ThreadAct, step: Step) -> None:
    act.ctx.progress(step.amount + len(act.seen), 100)


def ask(act: ThreadAct, _step: Step) -> None:
    act.seen.append(len(act.ctx.list_roots()))


def sample(act: ThreadAct, step: Step) -> None:
    act.seen.append(act.ctx.sample(f"Why {step.amount}?").model)


def elicit(act: ThreadAct, step: Step) -> None:
    try:
        answer = act.ctx.elicit(f"How many of {step.amount}?", form_of(step))
    except CapabilityMissing:
        act.seen.append("nobody to ask")
    else:
        act.seen.append([answer.action, words_of(answer)])


def ask_all(act: ThreadAct, step: Step) -> None:
    try:
        answers = act.ctx.ask_all(*questions_of(step))
    except CapabilityMissing:
        act.seen.append("not everybody to ask")
    else:
        act.seen.append([words_of(answer) for answer in answers])


def sleep(act: ThreadAct, step: Step) -> None:
    act.ctx.sleep(step.amount / 1000)


def look(act: ThreadAct, _step: Step) -> None:
    begun = act.ctx.monotonic()
    act.seen.append([act.ctx.now().isoformat(), str(act.ctx.uuid4()), act.ctx.monotonic() - begun])


def guess(act: ThreadAct, step: Step) -> None:
    if act.ctx.random.random() < 0.5:
        act.ctx.info(act.ctx.random.randrange(step.amount))


def choose(act: ThreadAct, step: Step) -> None:
    if act.ctx.patched(f"choose {step.amount % 3}"):
        act.ctx.info("the new way")


def weigh(act: ThreadAct, step: Step) -> None:
    act.seen.append(act.ctx.effect(external_calls.crunch, step.amount))


def roll(act: ThreadAct, step: Step) -> None:
    act.seen.append([external_calls.roll(step.amount), external_calls.roll(sides=6)])


def fail(act: ThreadAct, step: Step) -> None:
    try:
        act.ctx.effect(external_calls.break_down_at_once, step.amount)
    except (ValueError, OSError, KeyError, external_calls.BrokenDownError) as error:
        act.seen.append([type(error).__name__, str(error)])


def fail_out(act: ThreadAct, step: Step) -> None:
    act.ctx.effect(external_calls.break_down_at_once, step.amount)


def reject(_act: ThreadAct, step: Step) -> None:
    if step.amount > 9:
        raise ToolError(f"refused at {step.amount}")


def locked(act: ThreadAct, step: Step) -> None:
    with act.ctx.lock(TOTAL):
        before = act.world.locked_total
        act.play(step.parts[0])
        act.world.locked_total = before + step.amount
    act.seen.append(before)


STEPS: Final[Mapping[str, _StepFunction]] = {
    step.__name__: step
    for step in (
        say, report, ask, sample, elicit, ask_all, sleep, look, guess, choose, weigh, roll, fail,
        fail_out, reject, locked,
    )
}  # fmt: skip
