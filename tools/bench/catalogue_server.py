"""A server of a theatre, whose recordings are measured by the thousand."""

from typing import Final

from mcp_trio import Context, Server
from mcp_trio.errors import ToolError

TOOLS: Final = {"book": 0.5, "list_seats": 0.3, "show_seat": 0.15, "pay": 0.05}
"""The tools, and their shares of the sessions."""

server = Server("theatre", version="2.1")


async def sell(seat: str, *, ctx: Context) -> str:
    """Sell a seat, unless it is taken."""
    if seat == "taken":
        raise ToolError("seat taken")
    await ctx.sleep(0.02)
    return f"{seat} is booked"


for tool in TOOLS:
    server.tool(name=tool)(sell)
