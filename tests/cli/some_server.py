"""A server with one of everything that the command line shows."""

from typing import Annotated, Any, Literal

import msgspec
import trio

from mcp_trio import Context, Image, Server, ToolError

server = Server("some", version="1")


class Point(msgspec.Struct):
    x: int
    y: int = 0


@server.tool
async def echo(
    text: str = "",
    count: int = 1,
    ratio: float | None = None,
    point: Point | None = None,
    words: list[str] | None = None,
    level: Literal["low", "high"] = "low",
    anything: Any = None,
) -> dict[str, Any]:
    """Give back what came.

    Not the first line.
    """
    return {
        "text": text,
        "count": count,
        "ratio": ratio,
        "point": point,
        "words": words,
        "level": level,
        "anything": anything,
    }


@server.tool
async def mixed() -> list[Any]:
    return ["line \x1b[31mone\nline two", Image(b"\x89PNG" + b"x" * 2044), b"12345"]


@server.tool
async def broken() -> str:
    raise ToolError("out of \x1border")


@server.tool
async def noisy(*, ctx: Context) -> str:
    print("printed by the tool")
    await ctx.info("told by the tool")
    await ctx.log("error", {"code": 7}, logger="db")
    return "quiet"


@server.tool
async def slow(
    steps: Annotated[int, msgspec.Meta(ge=1)] = 100, total: bool = True, *, ctx: Context
) -> str:
    """Take a while."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps if total else None)
        await trio.sleep(0.02)
    return "done"


@server.resource("some://text", mime_type="text/plain")
async def text() -> str:
    """A text."""
    return "grüße\x1b"


@server.resource("some://bytes", mime_type="application/x-some")
async def binary() -> bytes:
    return bytes(range(256)) * 8


@server.resource("some://{name}/now")
async def now(name: str) -> str:
    return name


@server.prompt
async def greet(name: str, tone: str = "kind") -> str:
    """Greet somebody."""
    return f"Greet {name} in a {tone} way.\x1b"
