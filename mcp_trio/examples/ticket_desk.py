"""A ticket desk with a race, and what finds it.

Two buyers who come at the same moment may get the same ticket: the desk looks how many are left,
waits for the bank, and then writes one less than it saw. On a lucky day nobody notices. Record one:

    python -m mcp_trio.examples.ticket_desk lucky.mcprec.jsonl

The same buyers under a hundred other schedules; then one that failed, again and again, by the seed
that the sweep has shown; and then the desk that takes one buyer at a time:

    mcp-trio sweep lucky.mcprec.jsonl mcp_trio.examples.ticket_desk:desk
    mcp-trio sweep lucky.mcprec.jsonl mcp_trio.examples.ticket_desk:desk --seed SEED
    mcp-trio sweep lucky.mcprec.jsonl mcp_trio.examples.ticket_desk:locked_desk
"""

import sys
from contextlib import nullcontext

import attrs
import trio

from mcp_trio import Client, Context, Server, effect
from mcp_trio.types import TextContent


@attrs.define
class Drawer:
    """Where the tickets lie."""

    tickets: int = 100


@effect
async def charge(buyer: str) -> str:
    """Have the bank charge a buyer; returns the receipt."""
    await trio.sleep(0.010)
    return f"{buyer} has paid"


@effect
async def print_ticket(buyer: str) -> str:
    """Print a ticket, which is slow; returns its text."""
    await trio.sleep(0.040)
    return f"one ticket for {buyer}"


def make_desk(*, is_locked: bool = False) -> Server:
    """A server with a full drawer; `is_locked` is the desk that serves one buyer at a time."""
    server = Server("ticket-desk", version="1.0")
    drawer = Drawer()

    async def sell(buyer: str) -> None:
        before = drawer.tickets
        await charge(buyer)
        drawer.tickets = before - 1

    @server.tool
    async def buy(buyer: str, *, ctx: Context) -> str:
        """Buy a ticket.

        Args:
            buyer: Whom it is for.
        """
        async with ctx.lock("drawer") if is_locked else nullcontext():
            await sell(buyer)
        return await print_ticket(buyer)

    @server.tool
    async def tickets_left() -> int:
        """How many tickets are left."""
        return drawer.tickets

    return server


desk: Server = make_desk()
locked_desk: Server = make_desk(is_locked=True)


async def lucky_day(client: Client) -> int:
    """Two buyers, the second one just after the first has paid; returns how many are left."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "buy", {"buyer": "Ann"})
        await trio.sleep(0.025)
        nursery.start_soon(client.call_tool, "buy", {"buyer": "Bo"})
    result = await client.call_tool("tickets_left")
    assert isinstance(result.content[0], TextContent)
    return int(result.content[0].text)


async def record(file: str) -> None:
    """Record a lucky day with the racing desk."""
    command = [sys.executable, "-m", "mcp_trio", "run", f"{__spec__.name}:desk", "--record", file]
    async with Client(command) as client:
        print(f"tickets left: {await lucky_day(client)}")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(f"usage: python -m {__spec__.name} FILE")
    trio.run(record, sys.argv[1])
