"""A server that asks, and that gives back more than text."""

from typing import Annotated, Any, Literal

import msgspec

from mcp_trio import Audio, Context, Server
from mcp_trio.types import CallToolResult, ResourceLink, TextContent

server = Server("asking", version="1")


class Trip(msgspec.Struct):
    city: Annotated[str, msgspec.Meta(min_length=2)]
    days: int = 2
    quiet: bool = True


class Easy(msgspec.Struct):
    level: Literal["low", "high"] = "low"


@server.tool
async def plan(*, ctx: Context) -> str:
    answer = await ctx.elicit("Where to?", Trip)
    return f"{answer.action}: {answer.data}"


@server.tool
async def easy(*, ctx: Context) -> str:
    answer = await ctx.elicit("How?", Easy)
    return f"{answer.action}: {answer.data}"


@server.tool
async def visit(*, ctx: Context) -> str:
    return (await ctx.elicit_url("Sign", "https://example.com/sign")).action


@server.tool
async def structured() -> dict[str, Any]:
    return {"a": 1}


@server.tool
async def apart() -> CallToolResult:
    return CallToolResult(content=[TextContent(text="other")], structured_content={"b": [2]})


@server.tool
async def media() -> list[Any]:
    return [
        Audio(b"x" * 10),
        ResourceLink(uri="some://link", name="link", mime_type="text/plain"),
    ]


if __name__ == "__main__":
    server.run()
