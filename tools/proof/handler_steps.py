"""The steps of `async def` handlers in generated programs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs
import external_calls
import httpx2
import trio
from generated_programs import Script, Step

from mcp_trio import Context, Elicitation, Roots, Sampling, ToolError, UrlElicitation
from mcp_trio.errors import CapabilityMissing
from mcp_trio.http import EffectTransport

EVENTS: Final = 3
TOTAL: Final = "total"


@attrs.define
class SharedState:
    """The memory that all handlers share; `locked_total` is used under a lock only."""

    total: int = 0
    locked_total: int = 0
    log: list[int] = attrs.field(factory=list[int])
    events: list[trio.Event] = attrs.field(factory=lambda: [trio.Event() for _ in range(EVENTS)])

    def __str__(self) -> str:
        """Return the state with which a replay has to end, too."""
        return str([self.total, self.log, [event.is_set() for event in self.events]])


@attrs.define
class RunningHandler:
    """A running handler; `seen` is its answer."""

    shared: SharedState
    ctx: Context
    url: str
    seen: list[Any] = attrs.field(factory=list[Any])

    def child(self) -> "RunningHandler":
        """Return a handler for a child task, which has its own `seen`."""
        return RunningHandler(self.shared, self.ctx, self.url)

    async def run(self, script: Script) -> None:
        for step in script:
            await STEPS[step.name](self, step)


_StepFunction: TypeAlias = Callable[[RunningHandler, Step], Awaitable[None]]


# Notifications and requests of the session.


@attrs.frozen
class Order:
    """The form that a user fills in."""

    size: Literal["small", "large"]
    count: int = 1
    is_gift: bool = False


FORMS: Final = (int, Order, None)
PAGE: Final = "https://example.com/sign-in"


def form_of(step: Step) -> Any:
    """Return the type of an elicited form."""
    return FORMS[step.amount % len(FORMS)]


def requests_of(step: Step) -> tuple[Any, ...]:
    """Return the requests of `ask_all`."""
    questions = (
        Roots(),
        Sampling(f"Why {step.amount}?"),
        Elicitation("One of several", form_of(step)),
        UrlElicitation("Sign in", PAGE),
    )
    return questions[: 2 + step.amount % 3]


def answer_text(answer: Any) -> str:
    """Return an answer as text, the same in all protocol versions."""
    return repr(getattr(answer, "model", getattr(answer, "data", answer)))


async def say(handler: RunningHandler, step: Step) -> None:
    await handler.ctx.info("say")
    handler.shared.log.append(step.amount)
    await handler.ctx.info(list(handler.shared.log))


async def report(handler: RunningHandler, step: Step) -> None:
    await handler.ctx.report_progress(step.amount + len(handler.seen), 100)


async def ask(handler: RunningHandler, _step: Step) -> None:
    handler.seen.append(len(await handler.ctx.list_roots()))


async def sample(handler: RunningHandler, step: Step) -> None:
    async def on_progress(params: Any) -> None:
        await handler.ctx.info(["heard", params.progress])

    answer = await handler.ctx.sample(f"Why {step.amount}?", progress=on_progress)
    handler.seen.append(answer.model)


async def elicit(handler: RunningHandler, step: Step) -> None:
    try:
        answer = await handler.ctx.elicit(f"How many of {step.amount}?", form_of(step))
    except CapabilityMissing:
        handler.seen.append("the client cannot elicit")
    else:
        handler.seen.append([answer.action, answer_text(answer)])


async def visit(handler: RunningHandler, _step: Step) -> None:
    try:
        answer = await handler.ctx.elicit_url("Sign in", PAGE)
    except CapabilityMissing:
        handler.seen.append("the client cannot open pages")
    else:
        await handler.ctx.elicitation_complete(answer.elicitation_id)
        handler.seen.append(answer.action)


async def ask_all(handler: RunningHandler, step: Step) -> None:
    try:
        answers = await handler.ctx.ask_all(*requests_of(step))
    except CapabilityMissing:
        handler.seen.append("the client cannot answer all")
    else:
        handler.seen.append([answer_text(answer) for answer in answers])


async def change(handler: RunningHandler, step: Step) -> None:
    await handler.ctx.info("change")
    handler.ctx.server.list_changed("tools" if step.amount % 2 else "prompts")


# Clocks and random numbers.


async def sleep(handler: RunningHandler, step: Step) -> None:
    await handler.ctx.sleep(step.amount / 1000)


async def sleep_raw(_act: RunningHandler, step: Step) -> None:
    await trio.sleep(step.amount / 1000)


async def look(handler: RunningHandler, _step: Step) -> None:
    begun = handler.ctx.monotonic()
    handler.seen.append(
        [handler.ctx.now().isoformat(), str(handler.ctx.uuid4()), handler.ctx.monotonic() - begun]
    )
    await handler.ctx.info(handler.seen[-1])


async def guess(handler: RunningHandler, step: Step) -> None:
    if handler.ctx.random.random() < 0.5:
        await handler.ctx.info(handler.ctx.random.randrange(step.amount))
    handler.seen.append(handler.ctx.random.choice("abc"))


async def choose(handler: RunningHandler, step: Step) -> None:
    if handler.ctx.patched(f"choose {step.amount % 3}"):
        await handler.ctx.info("the new way")


# Effects.


async def race(handler: RunningHandler, step: Step) -> None:
    """Lose updates: another handler may run during the effect."""
    await handler.ctx.info("race")
    before = handler.shared.total
    await handler.ctx.effect(external_calls.measure, step.amount)
    handler.shared.total = before + step.amount
    await handler.ctx.info([before, handler.shared.total])


async def measure(handler: RunningHandler, step: Step) -> None:
    reading = await handler.ctx.effect(external_calls.measure, amount=step.amount)
    handler.seen.append([reading.at.isoformat(), reading.value, sorted(reading.tags)])


async def weigh(handler: RunningHandler, step: Step) -> None:
    handler.seen.append(await handler.ctx.effect(external_calls.weigh, step.amount))


async def crunch(handler: RunningHandler, step: Step) -> None:
    handler.seen.append(await handler.ctx.to_thread(external_calls.crunch, step.amount, base=7))


async def roll(handler: RunningHandler, step: Step) -> None:
    handler.seen.append([external_calls.roll(step.amount), external_calls.roll(sides=6)])


async def tag(handler: RunningHandler, step: Step) -> None:
    handler.seen.append(sorted(await external_calls.fetch_tags(step.amount)))


async def query(handler: RunningHandler, step: Step) -> None:
    handler.seen.append(
        await handler.ctx.effect(external_calls.query, handler.ctx.lifespan, step.amount)
    )


async def fail(handler: RunningHandler, step: Step) -> None:
    try:
        await handler.ctx.effect(external_calls.break_down, step.amount)
    except (ValueError, OSError, KeyError, external_calls.BrokenDownError) as error:
        handler.seen.append([type(error).__name__, str(error)])


async def fail_out(handler: RunningHandler, step: Step) -> None:
    await handler.ctx.effect(external_calls.break_down_at_once, step.amount)


async def reject(_act: RunningHandler, step: Step) -> None:
    if step.amount > 10:
        raise ToolError(f"refused at {step.amount}")


async def fetch(handler: RunningHandler, step: Step) -> None:
    await _get(handler, handler.ctx.http, step)


async def fetch_own(handler: RunningHandler, step: Step) -> None:
    async with httpx2.AsyncClient(transport=EffectTransport()) as client:
        await _get(handler, client, step)


async def _get(handler: RunningHandler, client: httpx2.AsyncClient, step: Step) -> None:
    try:
        response = await client.get(f"{handler.url}/news/{step.amount}")
    except httpx2.HTTPError as error:
        handler.seen.append(type(error).__name__)
    else:
        handler.seen.append([response.status_code, response.json()])


async def post(handler: RunningHandler, step: Step) -> None:
    try:
        response = await handler.ctx.http.post(f"{handler.url}/add", json={"amount": step.amount})
    except httpx2.HTTPError as error:
        handler.seen.append(type(error).__name__)
    else:
        handler.seen.append(response.text)


# Other handlers.


async def signal(handler: RunningHandler, step: Step) -> None:
    await handler.ctx.info("signal")
    handler.shared.events[step.amount % EVENTS].set()
    await handler.ctx.info("signalled")


async def wait(handler: RunningHandler, step: Step) -> None:
    await handler.shared.events[step.amount % EVENTS].wait()


async def locked(handler: RunningHandler, step: Step) -> None:
    async with handler.ctx.lock(TOTAL):
        before = handler.shared.locked_total
        await handler.run(step.parts[0])
        handler.shared.locked_total = before + step.amount
    handler.seen.append(before)


# Scopes.


async def timeout(handler: RunningHandler, step: Step) -> None:
    try:
        with handler.ctx.timeout(step.amount / 1000):
            await handler.run(step.parts[0])
    except trio.TooSlowError:
        handler.seen.append("too slow")


async def move_on(handler: RunningHandler, step: Step) -> None:
    with trio.move_on_after(step.amount / 1000) as scope:
        await handler.run(step.parts[0])
    handler.seen.append(scope.cancelled_caught)


async def nest(handler: RunningHandler, step: Step) -> None:
    children = [handler.child() for _ in step.parts]
    async with trio.open_nursery() as nursery:
        for child, part in zip(children, step.parts, strict=True):
            nursery.start_soon(child.run, part)
    handler.seen.append([child.seen for child in children])


async def nest_and_stop(handler: RunningHandler, step: Step) -> None:
    own, *others = step.parts
    children = [handler.child() for _ in others]
    async with trio.open_nursery() as nursery:
        for child, part in zip(children, others, strict=True):
            nursery.start_soon(child.run, part)
        await handler.run(own)
        await handler.ctx.sleep(step.amount / 2000)
        nursery.cancel_scope.cancel()
    handler.seen.append([child.seen for child in children])


async def shield(handler: RunningHandler, step: Step) -> None:
    with trio.CancelScope(shield=True):
        await handler.run(step.parts[0])


async def clean_up(handler: RunningHandler, step: Step) -> None:
    try:
        await handler.run(step.parts[0])
    finally:
        with trio.CancelScope(shield=True):
            await handler.run(step.parts[1])


STEPS: Final[Mapping[str, _StepFunction]] = {
    step.__name__: step
    for step in (
        say, report, ask, sample, elicit, visit, ask_all, change, sleep, sleep_raw, look, guess,
        choose, race, measure, weigh, crunch, roll, tag, query, fail, fail_out, reject, fetch,
        fetch_own, post, signal, wait, locked, timeout, move_on, nest, nest_and_stop, shield,
        clean_up,
    )
}  # fmt: skip
