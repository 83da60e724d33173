"""A concierge: asks the user, the client's model and its roots; some handlers run in threads.

One of the servers whose source `mutated_servers.py` changes. All external calls are effects.
"""

from collections.abc import Sequence
from typing import Annotated

import attrs
import trio
from msgspec import Meta

from mcp_trio import Context, Server, ThreadContext, ToolError, effect
from mcp_trio.types import TextContent

server: Server = Server("concierge", version="0.9", instructions="Be polite.")

TABLES = {"Asado": 3, "Bistro": 0, "Curry": 5}
GREETINGS = ("Hello", "Welcome")


@attrs.frozen
class Party:
    """The guests of a table, as the user gives them."""

    guests: Annotated[int, Meta(ge=1, le=12)]
    name: str = "guest"


@attrs.define
class Book:
    """The reservations of today."""

    entries: list[str] = attrs.field(factory=list[str])


book: Book = Book()


# Effects.


@effect
async def call_restaurant(place: str, guests: int) -> bool:
    """Ask a restaurant whether it has a table."""
    await trio.sleep(0.005)
    return TABLES.get(place, 0) >= guests


@effect
def look_up_phone(place: str) -> str:
    """Look up a telephone number."""
    if place not in TABLES:
        raise LookupError(f"{place} is not in the book")
    return f"555-{len(place):04}"


@effect
def weigh_parcel(parcel: str) -> int:
    """Put a parcel on the scales."""
    return len(parcel) * 100


@effect
async def send_text(number: str, text: str, *, urgent: bool = False) -> None:
    """Send a text to a telephone."""
    await trio.sleep(0.001 if urgent else 0.0001 * len(number + text))


# Handlers that ask.


@server.tool
async def reserve_table(place: str, *, ctx: Context) -> str:
    """Reserve a table; asks for the guests."""
    await ctx.info(f"reserving at {place}")
    answer = await ctx.elicit(f"How many guests go to {place}?", Party)
    party = answer.data
    if answer.action != "accept" or party is None:
        await ctx.warning("not reserved")
        raise ToolError("the user does not want a table")
    if not await call_restaurant(place, party.guests):
        await ctx.report_progress(0.5, 1)
        return f"{place} is full"
    async with ctx.lock("book"):
        book.entries.append(f"{place} for {party.guests}")
        await send_text("555-0001", f"{party.name} at {place}", urgent=party.guests > 4)
    await ctx.report_progress(1, 1)
    return f"reserved for {party.name}, number {len(book.entries)}"


@server.tool
async def recommend(places: list[str], tokens: int = 50, *, ctx: Context) -> str:
    """Let the client's model choose among restaurants that have a table."""
    free: list[str] = []

    async def ask(place: str) -> None:
        if await call_restaurant(place, 1):
            free.append(place)

    with ctx.timeout(1):
        async with trio.open_nursery() as nursery:
            for place in places:
                nursery.start_soon(ask, place)
    if not free:
        raise ToolError("every place is full")
    prompt = f"Which is the best of {', '.join(sorted(free))}?"
    reply = await ctx.sample(prompt, max_tokens=tokens, system_prompt="You are a critic.")
    content = reply.content
    text = content.text if isinstance(content, TextContent) else "no text"
    await ctx.debug({"model": reply.model})
    return f"{text} ({len(free)} of {len(places)})"


@server.tool
async def folders(*, ctx: Context) -> list[str]:
    """List where the client keeps its files."""
    roots = await ctx.list_roots()
    names = [root.uri.rpartition("/")[2] for root in roots]
    await ctx.info(f"{len(names)} folders")
    return sorted(names)


# Handlers in threads.


@server.tool
def weigh(parcels: list[str], *, ctx: ThreadContext) -> dict[str, int]:
    """Weigh parcels, one after another, in a thread."""
    total = 0
    with ctx.lock("scales"):
        for number, parcel in enumerate(parcels, start=1):
            total += weigh_parcel(parcel)
            ctx.report_progress(number, len(parcels))
    if total > 1000:
        ctx.warning(f"{total} g is heavy")
    return {"grams": total, "parcels": len(parcels)}


@server.tool
def phone(place: str, *, ctx: ThreadContext) -> str:
    """Return the telephone number of a restaurant."""
    try:
        number = look_up_phone(place)
    except LookupError as error:
        ctx.error(str(error))
        raise ToolError(f"{place} has no telephone") from error
    ticket = ctx.uuid4().hex[:8]
    ctx.info(f"ticket {ticket}")
    return number


# What can be read, and prompts.


@server.resource("concierge://book")
async def today() -> str:
    """The reservations of today."""
    return "\n".join(book.entries) or "nothing"


@server.resource("concierge://{place}/tables")
async def tables(place: str, *, ctx: Context) -> str:
    """How many tables a restaurant has."""
    if place not in TABLES:
        await ctx.warning(f"no {place}")
        return "unknown"
    return f"{TABLES[place]} tables"


@server.prompt
async def invite(name: str, time: str = "noon", *, ctx: Context) -> Sequence[str]:
    """Write an invitation."""
    contents = await ctx.read_resource("concierge://book")
    greeting = GREETINGS[1] if time == "evening" else GREETINGS[0]
    return [f"{greeting}, {name}.", f"The book has {len(contents)} part."]


@server.completion(invite, "name")
async def names(prefix: str) -> list[str]:
    """Return the guests whose names begin with `prefix`."""
    guests = ["Ada", "Alan", "Barbara"]
    return [guest for guest in guests if guest.startswith(prefix)]
