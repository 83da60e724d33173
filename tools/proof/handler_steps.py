"""The steps of `async def` handlers of generated programs, by a table.

Memory that handlers share is touched only between two calls of the context, as the promise of a
faithful replay demands. What only one task touches is free.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs
import external_calls
import httpx2
import trio
from programs import Script, Step

from mcp_trio import Context, Elicitation, Roots, Sampling, ToolError, UrlElicitation
from mcp_trio.errors import CapabilityMissing
from mcp_trio.http import EffectTransport

EVENTS: Final = 3
TOTAL: Final = "total"


@attrs.define
class World:
    """What the handlers of one server share; `locked_total` only under its lock."""

    total: int = 0
    locked_total: int = 0
    log: list[int] = attrs.field(factory=list[int])
    events: list[trio.Event] = attrs.field(factory=lambda: [trio.Event() for _ in range(EVENTS)])

    def state(self) -> list[Any]:
        """What a replay has to end with as well."""
        return [self.total, self.log, [event.is_set() for event in self.events]]


@attrs.define
class Act:
    """One handler at work; `seen` is what it answers in the end."""

    world: World
    ctx: Context
    url: str
    seen: list[Any] = attrs.field(factory=list[Any])

    def child(self) -> "Act":
        """The same in a child task, which sees for itself: its parent reads that when it is over.

        What it does before its first call of the context is in no order, so it shares nothing yet.
        """
        return Act(self.world, self.ctx, self.url)

    async def play(self, script: Script) -> None:
        """Do one step after the other."""
        for step in script:
            await STEPS[step.name](self, step)


_StepFunction: TypeAlias = Callable[[Act, Step], Awaitable[None]]


# What the session sends and asks.


@attrs.frozen
class Order:
    """What a user fills in."""

    size: Literal["small", "large"]
    count: int = 1
    is_gift: bool = False


FORMS: Final = (int, Order, None)
PAGE: Final = "https://example.com/sign-in"


def form_of(step: Step) -> Any:
    """What the user is asked for."""
    return FORMS[step.amount % len(FORMS)]


def questions_of(step: Step) -> tuple[Any, ...]:
    """What is asked at once: with a form for the user, or without."""
    questions = (
        Roots(),
        Sampling(f"Why {step.amount}?"),
        Elicitation("One of several", form_of(step)),
        UrlElicitation("Sign in", PAGE),
    )
    return questions[: 2 + step.amount % 3]


def words_of(answer: Any) -> str:
    """What came back, in words that do not depend on the era."""
    return repr(getattr(answer, "model", getattr(answer, "data", answer)))


async def say(act: Act, step: Step) -> None:
    await act.ctx.info("say")
    act.world.log.append(step.amount)
    await act.ctx.info(list(act.world.log))


async def report(act: Act, step: Step) -> None:
    await act.ctx.progress(step.amount + len(act.seen), 100)


async def ask(act: Act, _step: Step) -> None:
    act.seen.append(len(await act.ctx.list_roots()))


async def sample(act: Act, step: Step) -> None:
    async def hear(params: Any) -> None:
        await act.ctx.info(["heard", params.progress])

    answer = await act.ctx.sample(f"Why {step.amount}?", progress=hear)
    act.seen.append(answer.model)


async def elicit(act: Act, step: Step) -> None:
    try:
        answer = await act.ctx.elicit(f"How many of {step.amount}?", form_of(step))
    except CapabilityMissing:
        act.seen.append("nobody to ask")
    else:
        act.seen.append([answer.action, words_of(answer)])


async def visit(act: Act, _step: Step) -> None:
    try:
        answer = await act.ctx.elicit_url("Sign in", PAGE)
    except CapabilityMissing:
        act.seen.append("nobody to send")
    else:
        await act.ctx.elicitation_complete(answer.elicitation_id)
        act.seen.append(answer.action)


async def ask_all(act: Act, step: Step) -> None:
    try:
        answers = await act.ctx.ask_all(*questions_of(step))
    except CapabilityMissing:
        act.seen.append("not everybody to ask")
    else:
        act.seen.append([words_of(answer) for answer in answers])


async def change(act: Act, step: Step) -> None:
    await act.ctx.info("change")
    act.ctx.server.list_changed("tools" if step.amount % 2 else "prompts")


# Clocks and dice.


async def sleep(act: Act, step: Step) -> None:
    await act.ctx.sleep(step.amount / 1000)


async def sleep_raw(_act: Act, step: Step) -> None:
    await trio.sleep(step.amount / 1000)


async def look(act: Act, _step: Step) -> None:
    begun = act.ctx.monotonic()
    act.seen.append([act.ctx.now().isoformat(), str(act.ctx.uuid4()), act.ctx.monotonic() - begun])
    await act.ctx.info(act.seen[-1])


async def guess(act: Act, step: Step) -> None:
    if act.ctx.random.random() < 0.5:
        await act.ctx.info(act.ctx.random.randrange(step.amount))
    act.seen.append(act.ctx.random.choice("abc"))


async def choose(act: Act, step: Step) -> None:
    if act.ctx.patched(f"choose {step.amount % 3}"):
        await act.ctx.info("the new way")


# Effects.


async def race(act: Act, step: Step) -> None:
    """A lost update: another handler may act while this one is outside."""
    await act.ctx.info("race")
    before = act.world.total
    await act.ctx.effect(external_calls.measure, step.amount)
    act.world.total = before + step.amount
    await act.ctx.info([before, act.world.total])


async def measure(act: Act, step: Step) -> None:
    reading = await act.ctx.effect(external_calls.measure, amount=step.amount)
    act.seen.append([reading.at.isoformat(), reading.value, sorted(reading.tags)])


async def weigh(act: Act, step: Step) -> None:
    act.seen.append(await act.ctx.effect(external_calls.weigh, step.amount))


async def crunch(act: Act, step: Step) -> None:
    act.seen.append(await act.ctx.to_thread(external_calls.crunch, step.amount, base=7))


async def roll(act: Act, step: Step) -> None:
    act.seen.append([external_calls.roll(step.amount), external_calls.roll(sides=6)])


async def tag(act: Act, step: Step) -> None:
    act.seen.append(sorted(await external_calls.fetch_tags(step.amount)))


async def query(act: Act, step: Step) -> None:
    act.seen.append(await act.ctx.effect(external_calls.query, act.ctx.lifespan, step.amount))


async def fail(act: Act, step: Step) -> None:
    try:
        await act.ctx.effect(external_calls.break_down, step.amount)
    except (ValueError, OSError, KeyError, external_calls.BrokenDownError) as error:
        act.seen.append([type(error).__name__, str(error)])


async def fail_out(act: Act, step: Step) -> None:
    await act.ctx.effect(external_calls.break_down_at_once, step.amount)


async def reject(_act: Act, step: Step) -> None:
    if step.amount > 10:
        raise ToolError(f"refused at {step.amount}")


async def fetch(act: Act, step: Step) -> None:
    await _get(act, act.ctx.http, step)


async def fetch_own(act: Act, step: Step) -> None:
    async with httpx2.AsyncClient(transport=EffectTransport()) as client:
        await _get(act, client, step)


async def _get(act: Act, client: httpx2.AsyncClient, step: Step) -> None:
    try:
        response = await client.get(f"{act.url}/news/{step.amount}")
    except httpx2.HTTPError as error:
        act.seen.append(type(error).__name__)
    else:
        act.seen.append([response.status_code, response.json()])


async def post(act: Act, step: Step) -> None:
    try:
        response = await act.ctx.http.post(f"{act.url}/add", json={"amount": step.amount})
    except httpx2.HTTPError as error:
        act.seen.append(type(error).__name__)
    else:
        act.seen.append(response.text)


# Other handlers.


async def signal(act: Act, step: Step) -> None:
    await act.ctx.info("signal")
    act.world.events[step.amount % EVENTS].set()
    await act.ctx.info("signalled")


async def wait(act: Act, step: Step) -> None:
    await act.world.events[step.amount % EVENTS].wait()


async def locked(act: Act, step: Step) -> None:
    async with act.ctx.lock(TOTAL):
        before = act.world.locked_total
        await act.play(step.parts[0])
        act.world.locked_total = before + step.amount
    act.seen.append(before)


# Scopes.


async def timeout(act: Act, step: Step) -> None:
    try:
        with act.ctx.timeout(step.amount / 1000):
            await act.play(step.parts[0])
    except trio.TooSlowError:
        act.seen.append("too slow")


async def move_on(act: Act, step: Step) -> None:
    with trio.move_on_after(step.amount / 1000) as scope:
        await act.play(step.parts[0])
    act.seen.append(scope.cancelled_caught)


async def _join(act: Act, children: list[Act]) -> None:
    """A nursery's end is a raw wait: what follows counts from the next call of the context."""
    await act.ctx.info("joined")
    act.seen.append([child.seen for child in children])


async def nest(act: Act, step: Step) -> None:
    children = [act.child() for _ in step.parts]
    async with trio.open_nursery() as nursery:
        for child, part in zip(children, step.parts, strict=True):
            nursery.start_soon(child.play, part)
    await _join(act, children)


async def nest_and_stop(act: Act, step: Step) -> None:
    own, *others = step.parts
    children = [act.child() for _ in others]
    async with trio.open_nursery() as nursery:
        for child, part in zip(children, others, strict=True):
            nursery.start_soon(child.play, part)
        await act.play(own)
        await act.ctx.sleep(step.amount / 2000)
        nursery.cancel_scope.cancel()
    await _join(act, children)


async def shield(act: Act, step: Step) -> None:
    with trio.CancelScope(shield=True):
        await act.play(step.parts[0])


async def clean_up(act: Act, step: Step) -> None:
    try:
        await act.play(step.parts[0])
    finally:
        with trio.CancelScope(shield=True):
            await act.play(step.parts[1])


STEPS: Final[Mapping[str, _StepFunction]] = {
    step.__name__: step
    for step in (
        say, report, ask, sample, elicit, visit, ask_all, change, sleep, sleep_raw, look, guess,
        choose, race, measure, weigh, crunch, roll, tag, query, fail, fail_out, reject, fetch,
        fetch_own, post, signal, wait, locked, timeout, move_on, nest, nest_and_stop, shield,
        clean_up,
    )
}  # fmt: skip
