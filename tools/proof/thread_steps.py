"""The steps of `def` handlers in generated programs, which use shared memory under its lock."""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

import attrs
import external_calls
from generated_programs import Script, Step
from handler_steps import TOTAL, SharedState, answer_text, form_of, requests_of

from mcp_trio import ThreadContext, ToolError
from mcp_trio.errors import CapabilityMissing


@attrs.define
class RunningThreadHandler:
    """A handler that runs in a thread."""

    shared: SharedState
    ctx: ThreadContext
    seen: list[Any] = attrs.field(factory=list[Any])

    def run(self, script: Script) -> None:
        for step in script:
            STEPS[step.name](self, step)


_StepFunction: TypeAlias = Callable[[RunningThreadHandler, Step], None]


def say(handler: RunningThreadHandler, step: Step) -> None:
    handler.ctx.info(["from a thread", step.amount])


def report(handler: RunningThreadHandler, step: Step) -> None:
    handler.ctx.report_progress(step.amount + len(handler.seen), 100)


def ask(handler: RunningThreadHandler, _step: Step) -> None:
    handler.seen.append(len(handler.ctx.list_roots()))


def sample(handler: RunningThreadHandler, step: Step) -> None:
    handler.seen.append(handler.ctx.sample(f"Why {step.amount}?").model)


def elicit(handler: RunningThreadHandler, step: Step) -> None:
    try:
        answer = handler.ctx.elicit(f"How many of {step.amount}?", form_of(step))
    except CapabilityMissing:
        handler.seen.append("the client cannot elicit")
    else:
        handler.seen.append([answer.action, answer_text(answer)])


def ask_all(handler: RunningThreadHandler, step: Step) -> None:
    try:
        answers = handler.ctx.ask_all(*requests_of(step))
    except CapabilityMissing:
        handler.seen.append("the client cannot answer all")
    else:
        handler.seen.append([answer_text(answer) for answer in answers])


def sleep(handler: RunningThreadHandler, step: Step) -> None:
    handler.ctx.sleep(step.amount / 1000)


def look(handler: RunningThreadHandler, _step: Step) -> None:
    begun = handler.ctx.monotonic()
    handler.seen.append(
        [handler.ctx.now().isoformat(), str(handler.ctx.uuid4()), handler.ctx.monotonic() - begun]
    )


def guess(handler: RunningThreadHandler, step: Step) -> None:
    if handler.ctx.random.random() < 0.5:
        handler.ctx.info(handler.ctx.random.randrange(step.amount))


def choose(handler: RunningThreadHandler, step: Step) -> None:
    if handler.ctx.patched(f"choose {step.amount % 3}"):
        handler.ctx.info("the new way")


def weigh(handler: RunningThreadHandler, step: Step) -> None:
    handler.seen.append(handler.ctx.effect(external_calls.crunch, step.amount))


def roll(handler: RunningThreadHandler, step: Step) -> None:
    handler.seen.append([external_calls.roll(step.amount), external_calls.roll(sides=6)])


def fail(handler: RunningThreadHandler, step: Step) -> None:
    try:
        handler.ctx.effect(external_calls.break_down_at_once, step.amount)
    except (ValueError, OSError, KeyError, external_calls.BrokenDownError) as error:
        handler.seen.append([type(error).__name__, str(error)])


def fail_out(handler: RunningThreadHandler, step: Step) -> None:
    handler.ctx.effect(external_calls.break_down_at_once, step.amount)


def reject(_act: RunningThreadHandler, step: Step) -> None:
    if step.amount > 9:
        raise ToolError(f"refused at {step.amount}")


def locked(handler: RunningThreadHandler, step: Step) -> None:
    with handler.ctx.lock(TOTAL):
        before = handler.shared.locked_total
        handler.run(step.parts[0])
        handler.shared.locked_total = before + step.amount
    handler.seen.append(before)


STEPS: Final[Mapping[str, _StepFunction]] = {
    step.__name__: step
    for step in (
        say, report, ask, sample, elicit, ask_all, sleep, look, guess, choose, weigh, roll, fail,
        fail_out, reject, locked,
    )
}  # fmt: skip
