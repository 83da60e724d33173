"""The server of the tour, by the official SDK, as a control; called like `server_ours.py`."""

import base64
import sys
from dataclasses import dataclass
from typing import Literal

from mcp.server.fastmcp import FastMCP, Image
from mcp.server.fastmcp.exceptions import ToolError

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

server = FastMCP("tour", port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000)


@dataclass
class Place:
    city: str
    berths: int


@server.tool()
async def hello(name: str) -> str:
    """Greet."""
    return f"Hello, {name}!"


@server.tool()
async def place(city: str) -> Place:
    """Describe a place."""
    return Place(city, 3)


@server.tool()
async def numbers(count: int = 2) -> list[int]:
    """Count."""
    return list(range(count))


@server.tool()
async def paint(colour: Literal["red", "blue"]) -> str:
    """Paint."""
    return f"painted {colour}"


@server.tool()
async def photo() -> Image:
    """Take a photo."""
    return Image(data=PIXEL, format="png")


@server.tool()
async def fail() -> str:
    """Fail with a text for the model."""
    raise ToolError("no such city")


@server.tool()
async def crash() -> str:
    """Fail without a text for the model."""
    raise RuntimeError("boom")


@server.resource("tour://tide", mime_type="text/plain")
async def tide() -> str:
    """Read the tide."""
    return "high"


@server.prompt()
async def plan(city: str) -> str:
    """Plan a trip."""
    return f"Plan a trip to {city}."


if __name__ == "__main__":
    server.run({"stdio": "stdio", "http": "streamable-http", "sse": "sse"}[sys.argv[1]])
