"""The servers of the golden recordings of later revisions, as `servers.py` has those of the first.

Each shows what its revision has brought; the last four ask modern clients, in rounds.
"""
# ruff: noqa: INP001  these are no package

from typing import Annotated, Any

import attrs
import trio
from msgspec import Meta

from mcp_trio import (
    Audio,
    Context,
    Elicitation,
    Limits,
    Roots,
    Sampling,
    Server,
    ToolError,
    UrlElicitation,
    effect,
)
from mcp_trio.errors import UrlElicitationRequired
from mcp_trio.limits import RequestLimits
from mcp_trio.types import (
    ElicitParams,
    Icon,
    InputRequest,
    InputRequiredResult,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
    ToolResultContent,
    ToolUseContent,
)

# batches (2025-03-26): several requests in one message, sounds, words for progress.

batches = Server("batches")
_counted = {"total": 0}


@batches.tool(annotations=ToolAnnotations(destructive_hint=False))
async def add(amount: int, *, ctx: Context) -> str:
    """Add to what was read before the client was asked."""
    before = _counted["total"]
    await ctx.report_progress(1, 2, "asking")
    roots = await ctx.list_roots()
    _counted["total"] = before + amount * len(roots)
    await ctx.report_progress(2, 2, "added")
    return f"{before} + {amount} = {_counted['total']}"


@batches.tool
async def horn(*, ctx: Context) -> list[str | Audio]:
    """Sound the horn."""
    await ctx.info("the horn")
    return ["Hoo!", Audio(b"hoo")]


# structured (2025-06-18): results with a schema, links, and forms for the user.

structured = Server("structured")
_berths = {"free": 3}


@attrs.frozen
class Stay:
    """For how long a ship stays."""

    nights: int
    with_water: bool = False


@attrs.frozen
class Berth:
    """Where a ship lies."""

    ship: str
    pier: int
    nights: int


@structured.tool(title="Book a berth")
async def book(ship: str, *, ctx: Context) -> Berth:
    """Book a berth, for as long as the user says; until then it counts as taken."""
    if not _berths["free"]:
        raise ToolError("no berth is free")
    pier = _berths["free"]
    _berths["free"] -= 1
    answer = await ctx.elicit(f"For how long does {ship} stay?", Stay)
    if answer.data is None:
        _berths["free"] += 1
        raise ToolError(f"the user said {answer.action}")
    return Berth(ship=ship, pier=pier, nights=answer.data.nights)


@structured.tool
async def chart() -> ResourceLink:
    """Where the chart is."""
    return ResourceLink(uri="harbour://chart", name="chart", title="The chart")


# forms (2025-11-25): choices, visits of URLs, icons, a model with tools, and mistakes for models.

forms = Server("forms")
PIERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "pier": {
            "type": "string",
            "oneOf": [{"const": "n", "title": "North"}, {"const": "s", "title": "South"}],
        },
        "flags": {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}},
        "name": {"type": "string", "default": "Argo"},
    },
    "required": ["pier"],
}
FEE = "https://harbour.example/fee"
TIDES = Tool(name="tides", input_schema={"type": "object"})
_paid: list[str] = []


@effect
async def settle(ship: str) -> int:
    """What the office has booked."""
    await trio.sleep(0.001)
    return 10 * len(ship)


@forms.tool(icons=[Icon(src="https://harbour.example/anchor.png")])
async def moor(ship: str, length: Annotated[int, Meta(gt=0)], *, ctx: Context) -> str:
    """Choose a pier, and pay for it on a page of the harbour."""
    where = await ctx.elicit("Where?", PIERS)
    visit = await ctx.elicit_url("Pay the fee", FEE)
    fee = await settle(ship)
    _paid.append(ship)
    await ctx.elicitation_complete(visit.elicitation_id)
    return f"{ship}, {length} m: {where.action} {where.data}, {fee} paid, {', '.join(_paid)}"


@forms.tool
async def sign_in() -> str:
    """Only for those who have been at the office."""
    raise UrlElicitationRequired([UrlElicitation("Sign in", FEE)])


@forms.tool
async def advise(*, ctx: Context) -> str:
    """Ask a model that may look at the tides."""
    asked = "When do we sail?"
    first = await ctx.sample(asked, tools=[TIDES], max_tokens=100)
    use = first.content
    if not isinstance(use, ToolUseContent):
        raise ToolError("the model did not look")
    tide = ToolResultContent(tool_use_id=use.id, content=[TextContent(text="high at noon")])
    last = await ctx.sample([asked, first, [tide]], tools=[TIDES], max_tokens=100)
    return last.model


# rounds (2026-07-28): handlers that are suspended while their client is asked.

rounds = Server(
    "rounds", limits=Limits(requests=RequestLimits(in_flight_max=2, suspended_seconds=0.1))
)
_voyages: list[str] = []


@rounds.tool
async def sail(port: str, *, ctx: Context) -> str:
    """Ask in two rounds; others sail meanwhile."""
    begun = len(_voyages)
    ship = await ctx.elicit(f"Which ship sails to {port}?", str)
    await ctx.info(f"{ship.data} is made ready")
    await ctx.report_progress(1, 2, "ready")
    crew, harbours = await ctx.ask_all(Sampling("Who is aboard?", max_tokens=10), Roots())
    _voyages.append(f"{ship.data} to {port}")
    await ctx.report_progress(2, 2)
    return f"{begun} before, {crew.model}, {len(harbours)} harbours: {'; '.join(_voyages)}"


@rounds.tool
async def wait_for_pilot(*, ctx: Context) -> str:
    """Ask, and leave word if nobody comes back."""
    try:
        pilot = await ctx.elicit("Who is the pilot?", str)
    finally:
        _voyages.append("a pilot was asked for")
        with trio.CancelScope(shield=True):
            await ctx.info("no longer waiting")
    return f"{pilot.data}"


# crew (2026-07-28): tasks of one handler that ask, each in its time.

crew = Server("crew")


@crew.tool
async def muster(hands: int, *, ctx: Context) -> list[str]:
    """Ask each hand; the first two at once, the others later, while a bell rings."""
    aboard: list[str] = []

    async def ask(number: int) -> None:
        await ctx.sleep(0.004 * (number // 2))
        answer = await ctx.elicit(f"Hand {number}?", str)
        aboard.append(f"{number}: {answer.data}")
        await ctx.info(list(aboard))

    async def ring() -> None:
        for wakeup in range(1, 4):
            await ctx.sleep(0.003)
            await ctx.report_progress(wakeup, 3)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ring)
        for number in range(hands):
            nursery.start_soon(ask, number)
    return aboard


# galley (2026-07-28): handlers that end at their questions, and begin anew with the answers.

galley = Server("galley", version="1")
_served: list[str] = []


@effect
async def price(dish: str) -> int:
    """What a dish costs today."""
    await trio.sleep(0.001)
    return 3 * len(dish)


async def cook(dish: str) -> str:
    """Cook; once is enough."""
    await trio.sleep(0.002)
    _served.append(dish)
    return f"{dish} number {len(_served)}"


@galley.tool(resumable=True)
async def order(dish: str, *, ctx: Context) -> str:
    """Two rounds, with steps before, between and behind."""
    cost = await price(dish)
    ticket = ctx.random.randrange(1000)
    await ctx.info(f"{dish} is ordered")
    if not (await ctx.elicit(f"{cost} for {dish}?", bool)).data:
        raise ToolError("not ordered")
    served = await ctx.effect(cook, dish)
    salt, cutlery = await ctx.ask_all(
        Elicitation(f"Salt? It is {served}.", bool),
        Elicitation(f"How many spoons? It is {served}.", int),
    )
    return f"{ctx.now().isoformat()} {ticket}: {served}, {salt.data}, {cutlery.data} spoons"


@galley.tool
async def reserve(guests: int, *, ctx: Context) -> str | InputRequiredResult:
    """The same by hand: the questions are the result, and what is to be kept a text."""
    if ctx.request_state is None:
        form = {"type": "object", "properties": {"value": {"type": "string"}}}
        question = ElicitParams(message="What name?", requested_schema=form)
        requests = {"name": InputRequest(method="elicitation/create", params=question)}
        return InputRequiredResult(input_requests=requests, request_state=f"for {guests}")
    name = ctx.input_responses["name"]
    return f"{ctx.request_state}, {name}"


# tides (2026-07-28): subscriptions, and what changes meanwhile.

tides = Server("tides")
_level = {"metres": 0}


@tides.resource("harbour://level")
async def level() -> str:
    """How high the water is."""
    return f"{_level['metres']} m"


@tides.tool
async def rise(metres: int, *, ctx: Context) -> str:
    """The water rises."""
    await ctx.info("rising")
    _level["metres"] += metres
    ctx.server.resource_updated("harbour://level")
    await ctx.sleep(0.002)
    return f"{_level['metres']} m"


@tides.tool
async def build(name: str, *, ctx: Context) -> str:
    """Build a tool, or pull it down."""
    await ctx.info("building")
    try:
        ctx.server.remove_tool(name)
    except LookupError:
        ctx.server.tool(name=name)(_stand)
        return "built"
    return "pulled down"


async def _stand() -> str:
    return "It stands."
