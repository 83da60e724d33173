"""Recordings of a theatre, made by real sessions."""

import pytest
import trio

from mcp_trio import Client, Context, Server, ToolError
from mcp_trio.errors import MCPError
from mcp_trio.recording import RecordOptions


def theatre(**options):
    server = Server("theatre", version="2.1", **options)

    @server.tool
    async def book(seat: str, password: str = "") -> str:
        if seat == "taken":
            raise ToolError("seat taken")
        return f"{seat} is booked"

    @server.tool
    async def pay(ctx: Context, seconds: float = 0.0) -> str:
        await ctx.sleep(seconds)
        return "paid"

    @server.resource("theatre://plan")
    async def plan() -> str:
        return "plan"

    return server


async def session(server, *calls, **options):
    async with Client(server, **options) as client:
        for name, arguments in calls:
            try:
                if name.startswith("theatre:"):
                    await client.read_resource(name)
                else:
                    await client.call_tool(name, arguments)
            except (ToolError, MCPError):
                pass


@pytest.fixture
def folder(tmp_path):
    """A folder with four recordings: a booking, a taken seat, a slow payment, a resource."""
    path = tmp_path / "recordings"
    path.mkdir()

    async def main():
        server = theatre(record=RecordOptions(path))
        await session(server, ("book", {"seat": "A1"}), ("book", {"seat": "B2"}))
        await session(server, ("book", {"seat": "taken"}), ("nothing", {}))
        await session(server, ("pay", {"seconds": 3}), ("book", {"seat": "gallery"}))
        await session(server, ("theatre://plan", {}))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return path
