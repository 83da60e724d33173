"""The server of the tour, by mcp_trio: `server_ours.py stdio | http | sse [PORT]`."""

import base64
import sys
from dataclasses import dataclass
from typing import Literal

from mcp_trio import Image, Server, ToolError

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

server = Server("tour", version="1")


@dataclass
class Place:
    city: str
    berths: int


@server.tool
async def hello(name: str) -> str:
    """Greet."""
    return f"Hello, {name}!"


@server.tool
async def place(city: str) -> Place:
    """Describe a place."""
    return Place(city, 3)


@server.tool
async def numbers(count: int = 2) -> list[int]:
    """Count."""
    return list(range(count))


@server.tool
async def paint(colour: Literal["red", "blue"]) -> str:
    """Paint."""
    return f"painted {colour}"


@server.tool
async def photo() -> Image:
    """Take a photo."""
    return Image(PIXEL, "image/png")


@server.tool
async def fail() -> str:
    """Fail with a text for the model."""
    raise ToolError("no such city")


@server.tool
async def crash() -> str:
    """Fail without a text for the model."""
    raise RuntimeError("boom")


@server.resource("tour://tide", mime_type="text/plain")
async def tide() -> str:
    """Read the tide."""
    return "high"


@server.prompt
async def plan(city: str) -> str:
    """Plan a trip."""
    return f"Plan a trip to {city}."


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run()
    else:
        server.run("http", port=int(sys.argv[2]), has_sse=True)
