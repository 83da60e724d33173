"""The rows of the port table with mcp_trio: each public coroutine function is a row.

A row returns what a client gets, by name; `in_fastmcp.py` has functions of the same names. Rows
whose code is the same for both are in `same_rows.py`.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import trio
from same_rows import (
    SCRIPT,
    Facts,
    Point,
    called,
    contents_of,
    messages_of,
    plain,
    text_of,
)

from mcp_trio import (
    Client,
    ClientGroup,
    Context,
    ResourceNotFound,
    Server,
)
from mcp_trio.middleware import CallNext, MiddlewareRequest
from mcp_trio.tools import Fixed
from mcp_trio.types import (
    CallToolResult,
    Content,
    ElicitParams,
    PromptMessage,
    ResourceUpdatedParams,
    TextContent,
)

# Tools.


async def result_data() -> Facts:
    server = Server("demo")

    @server.tool
    def numbers() -> list[int]:
        return [1, 2]

    @server.tool
    def point() -> Point:
        return Point(1)

    async with Client(server) as client:
        result = await client.call_tool("numbers")
        listed = result.data
        one = await client.call_tool("point", result_type=Point)
        untyped = (await client.call_tool("point")).data
    return {"list": listed, "object": [one.x, one.y], "a dict": isinstance(untyped, dict)}


async def whole_result() -> Facts:
    server = Server("demo")

    @server.tool
    def both() -> CallToolResult:
        content: list[Content] = [TextContent(text="one apple")]
        return CallToolResult(content=content, structured_content={"apples": 1})

    result = await called(server, {})
    return {"text": text_of(result), "structured": result.data}


async def text_only() -> Facts:
    server = Server("demo")

    @server.tool(structured=False)
    def number() -> int:
        return 3

    result = await called(server, {})
    return {"text": text_of(result), "structured": result.data}


async def name_registered_twice() -> Facts:
    server = Server("demo")
    server.tool(name="same")(lambda: "first")
    try:
        server.tool(name="same")(lambda: "second")
    except ValueError as error:
        return {"outcome": type(error).__name__}
    return {"outcome": text_of(await called(server, {}))}


# Resources and prompts.


async def missing_resource() -> Facts:
    server = Server("demo", offers=["resources"])
    async with Client(server) as client:
        try:
            await client.read_resource("data://none")
        except ResourceNotFound as error:
            return {"code": error.code}
    return {"code": None}


async def resource_of_data() -> Facts:
    server = Server("demo")

    @server.resource("data://settings")
    def settings() -> dict[str, int]:
        return {"depth": 3}

    async with Client(server) as client:
        contents = await contents_of(client, "data://settings")
    return {"value": json.loads(plain(contents)["text"])}


async def resource_object() -> Facts:
    server = Server("demo")
    server.resource("data://note", name="note")(lambda: "a note")
    async with Client(server) as client:
        return {"text": plain(await contents_of(client, "data://note"))["text"]}


async def prompt_messages() -> Facts:
    server = Server("demo")

    @server.prompt
    def chat() -> list[str | PromptMessage]:
        hello = TextContent(text="Hello!")
        return ["Hi", PromptMessage(role="assistant", content=hello)]

    async with Client(server) as client:
        return {"messages": messages_of(await client.get_prompt("chat"))}


async def completion() -> Facts:
    server = Server("demo")

    @server.prompt
    def plan(city: str) -> str:
        return city

    @server.completion(plan, "city")
    def cities(value: str) -> list[str]:
        return [name for name in ("Lima", "Oslo") if name.startswith(value)]

    async with Client(server) as client:
        got = await client.complete("plan", "city", "L")
    return {"values": got.completion.values}


# The context.


async def log() -> Facts:
    server = Server("demo")
    messages: list[Any] = []

    @server.tool
    async def work(ctx: Context) -> None:
        await ctx.info("half")
        await ctx.log("warning", "done", logger="work")

    await called(server, {}, log=messages.append)
    return {
        "texts": [[each.level, each.logger, each.data] for each in messages],
        "data": type(messages[0].data).__name__,
    }


async def sample() -> Facts:
    server = Server("demo")

    @server.tool
    async def ask(ctx: Context) -> str:
        result = await ctx.sample("2 + 2?", max_tokens=9)
        return str(plain(result.content)["text"])

    def answer(params: Any) -> str:
        return f"{params.messages[0].content.text} 4"

    return {"text": text_of(await called(server, {}, sampling=answer))}


async def elicit_dataclass() -> Facts:
    server = Server("demo")

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Where?", Point)
        assert answer.data is not None
        return f"{answer.action} {answer.data.x} {answer.data.y}"

    def fill(_params: ElicitParams) -> Point:
        return Point(x=1, y=2)

    return {"text": text_of(await called(server, {}, elicitation=fill))}


async def elicit_scalar() -> Facts:
    server = Server("demo")

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return f"{answer.action} {answer.data}"

    return {"text": text_of(await called(server, {}, elicitation=lambda _: 3))}


async def elicit_declined() -> Facts:
    server = Server("demo")

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return answer.action

    return {"text": text_of(await called(server, {}, elicitation=lambda _: False))}


async def list_roots() -> Facts:
    server = Server("demo")

    @server.tool
    async def roots(ctx: Context) -> str:
        found = await ctx.list_roots()
        return found[0].uri

    async with Client(server, roots=["file:///srv"]) as client:
        return {"text": text_of(await client.call_tool("roots"))}


async def root_paths() -> Facts:
    server = Server("demo")
    Client(server, roots=["/srv"])
    Client(server, roots=[Path("/srv")])
    return {"accepted": True}


async def lifespan() -> Facts:
    @asynccontextmanager
    async def opened(_server: Server) -> AsyncIterator[dict[str, str]]:
        yield {"unit": "m"}

    server = Server("demo", lifespan=opened)

    @server.tool
    async def unit(ctx: Context) -> str:
        return str(ctx.lifespan["unit"])

    return {"text": text_of(await called(server, {}))}


async def authorization() -> Facts:
    from mcp_trio.auth import StaticTokens

    tokens = {"secret": "ada"}
    server = Server("demo", auth=StaticTokens(tokens))
    return {"is set": server.auth is not None}


async def client_info() -> Facts:
    server = Server("demo")

    @server.tool
    async def who(ctx: Context) -> str:
        assert ctx.client_info is not None
        return ctx.client_info.name

    return {"text": text_of(await called(server, {}, name="host", version="1"))}


async def run_time_changes() -> Facts:
    server = Server("demo")
    changed: list[str] = []

    def late() -> str:
        return "late"

    @server.tool
    async def grow() -> None:
        server.tool(late)

    async with Client(server, list_changed=changed.append) as client:
        before = [tool.name for tool in await client.list_tools()]
        await client.call_tool("grow")
        grown = sorted(tool.name for tool in await client.list_tools())
        server.remove_tool("late")
        after = [tool.name for tool in await client.list_tools()]
        await trio.sleep(0.1)
    return {"before": before, "grown": grown, "after": after, "told": bool(changed)}


async def resource_updates() -> Facts:
    server = Server("demo")
    updated: list[str] = []

    @server.resource("data://motd")
    def motd() -> str:
        return "hello"

    @server.tool
    async def change() -> None:
        server.resource_updated("data://motd")

    def keep(params: ResourceUpdatedParams) -> None:
        updated.append(params.uri)

    async with Client(server, resource_updated=keep) as client:
        await client.subscribe("data://motd")
        await client.call_tool("change")
        await trio.sleep(0.1)
    return {"updated": updated}


# Running and connecting.


async def run_stdio() -> Facts:
    async with Client([sys.executable, str(SCRIPT)]) as client:
        return {"text": text_of(await client.call_tool("greet", {"name": "Ada"}))}


async def client_of_config() -> Facts:
    server = {"command": sys.executable, "args": [str(SCRIPT)]}
    config = {"mcpServers": {"one": server, "two": server}}
    async with ClientGroup.from_config(config) as group:
        names = sorted(tool.name for tool in await group.list_tools())
        result = await group.call_tool("one_greet", {"name": "Ada"})
    return {"tools": names, "text": text_of(result)}


async def ping() -> Facts:
    async with Client(Server("demo")) as client:
        await client.ping()
    return {"result": None}


async def session_state() -> Facts:
    server = Server("demo")

    @server.tool
    async def count(ctx: Context) -> int:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return int(ctx.state["count"])

    async with Client(server, protocol_versions=["2025-11-25"]) as client:
        return {"counts": [(await client.call_tool("count")).data for _ in range(2)]}


async def custom_route() -> Facts:
    server = Server("demo")

    @server.route("/hello", methods=["GET"])
    async def hello(request: Any) -> str:
        return "hello"

    transport = httpx2.ASGITransport(server.asgi())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        got, post = await http.get("/hello"), await http.post("/hello")
    return {"got": [got.status_code, got.text], "post": post.status_code}


async def middleware() -> Facts:
    seen: list[str | None] = []
    server = Server("demo")

    @server.middleware
    async def log(request: MiddlewareRequest, call_next: CallNext) -> Any:
        if request.method == "tools/call":
            seen.append(request.name)
        return await call_next(request)

    @server.tool
    def hello() -> str:
        return "hello"

    await called(server, {})
    return {"seen": seen}


async def tool_transformation() -> Facts:
    server = Server("demo")

    @server.tool
    def add(a: int, b: int) -> int:
        return a + b

    server.transform_tool("add", name="plus_one", arguments={"b": Fixed(1)})
    return {"text": text_of(await called(server, {"a": 2}))}


async def proxy() -> Facts:
    server = Server("demo")
    server.mount(SCRIPT, prefix=None)
    async with Client(server) as client:
        return {"text": text_of(await client.call_tool("greet", {"name": "Ada"}))}


async def session_visibility() -> Facts:
    server = Server("demo")

    @server.tool(tags={"admin"})
    def drop() -> str:
        return "gone"

    @server.tool
    async def unlock(ctx: Context) -> None:
        await ctx.enable(tags={"admin"})

    server.disable(tags={"admin"})
    async with (
        Client(server, protocol_versions=["2025-11-25"]) as client,
        Client(server, protocol_versions=["2025-11-25"]) as other,
    ):
        await client.call_tool("unlock", {})
        return {
            "tools": sorted(tool.name for tool in await client.list_tools()),
            "tools of others": [tool.name for tool in await other.list_tools()],
        }
