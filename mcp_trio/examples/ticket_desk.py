"""A ticket desk with a race, and a sweep that finds the race.

Two buyers at the same time may get the same ticket: the desk reads how many tickets are left, waits
for the bank, and then writes one less than it had read. In a lucky session that does no harm.
Record one:

    python -m mcp_trio.examples.ticket_desk lucky.mcprec.jsonl

A sweep runs the same requests under a hundred other schedules, and writes the shortest schedule
that goes wrong to a file. A replay repeats that schedule at the same desk, and then at a desk that
serves one buyer at a time, where nothing goes wrong:

    mcp-trio sweep lucky.mcprec.jsonl mcp_trio.examples.ticket_desk:desk
    mcp-trio replay lucky.mcprec.jsonl mcp_trio.examples.ticket_desk:desk \
        --schedule lucky.schedule.json
    mcp-trio replay lucky.mcprec.jsonl mcp_trio.examples.ticket_desk:locked_desk \
        --schedule lucky.schedule.json
"""

import sys
from contextlib import nullcontext

import attrs
import trio

from mcp_trio import Client, Context, Server, effect
from mcp_trio.types import TextContent


@attrs.define
class Stock:
    """The state of the desk: the number of tickets that are left."""

    tickets: int = 100


@effect
async def charge(buyer: str) -> str:
    """Let the bank charge a buyer; return the receipt."""
    await trio.sleep(0.010)
    return f"{buyer} has paid"


@effect
async def print_ticket(buyer: str) -> str:
    """Print a ticket, which is slow; return its text."""
    await trio.sleep(0.040)
    return f"one ticket for {buyer}"


def make_desk(*, is_locked: bool = False) -> Server:
    """Make a server with a full stock; with `is_locked` it serves one buyer at a time."""
    server = Server("ticket-desk", version="1.0")
    stock = Stock()

    async def sell(buyer: str) -> None:
        before = stock.tickets
        await charge(buyer)
        stock.tickets = before - 1

    @server.tool
    async def buy(buyer: str, *, ctx: Context) -> str:
        """Buy a ticket.

        Args:
            buyer: The name of the buyer.
        """
        async with ctx.lock("stock") if is_locked else nullcontext():
            await sell(buyer)
        return await print_ticket(buyer)

    @server.tool
    async def tickets_left() -> int:
        """Return the number of tickets that are left."""
        return stock.tickets

    return server


desk: Server = make_desk()
locked_desk: Server = make_desk(is_locked=True)


async def buy_two(client: Client) -> int:
    """Buy two tickets, the second just after the first is paid; return how many are left."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "buy", {"buyer": "Ann"})
        await trio.sleep(0.025)
        nursery.start_soon(client.call_tool, "buy", {"buyer": "Bo"})
    result = await client.call_tool("tickets_left")
    assert isinstance(result.content[0], TextContent)
    return int(result.content[0].text)


async def record(file: str) -> None:
    """Record a lucky session with the racing desk."""
    command = [sys.executable, "-m", "mcp_trio", "run", f"{__spec__.name}:desk", "--record", file]
    async with Client(command) as client:
        print(f"tickets left: {await buy_two(client)}")


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(f"usage: python -m {__spec__.name} FILE")
    trio.run(record, sys.argv[1])
