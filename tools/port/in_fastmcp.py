"""The rows of the port table with FastMCP: `python in_fastmcp.py ROW…|--names`, in its environment.

Each public coroutine function is a row, and returns what a client gets, by name. The results are
printed as one line of JSON for each row; `--names` prints FastMCP's public names instead.
`in_mcp_trio.py` has functions of the same names. Rows whose code is the same for both are in
`same_rows.py`.
"""

import asyncio
import contextlib
import inspect
import json
import sys
import time
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import mcp_types
import same_rows
from fastmcp import Client, Context, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.exceptions import MCPError
from fastmcp.prompts import Message
from fastmcp.resources import TextResource
from fastmcp.server import create_proxy
from fastmcp.server.dependencies import get_http_headers
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool, ToolResult
from fastmcp.tools.tool_transform import ArgTransform
from same_rows import (
    SCRIPT,
    Facts,
    Point,
    called,
    contents_of,
    messages_of,
    text_of,
)
from starlette.responses import PlainTextResponse

ROW_SECONDS = 30


# Tools.


async def result_data() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def numbers() -> list[int]:
        return [1, 2]

    @mcp.tool
    def point() -> Point:
        return Point(1)

    async with Client(mcp) as client:
        result = await client.call_tool("numbers")
        listed = result.data
        one = (await client.call_tool("point")).data
    return {"list": listed, "object": [one.x, one.y], "a dict": isinstance(one, dict)}


async def whole_result() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def both() -> ToolResult:
        return ToolResult(content="one apple", structured_content={"apples": 1})

    result = await called(mcp, {})
    return {"text": text_of(result), "structured": result.structured_content}


async def text_only() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool(output_schema=None)
    def number() -> int:
        return 3

    result = await called(mcp, {})
    return {"text": text_of(result), "structured": result.structured_content}


async def name_registered_twice() -> Facts:
    mcp = FastMCP("demo")
    first, second = (lambda: "first"), (lambda: "second")
    mcp.tool(first, name="same")
    mcp.tool(second, name="same")
    return {"outcome": text_of(await called(mcp, {}))}


# Resources and prompts.


async def missing_resource() -> Facts:
    mcp = FastMCP("demo")
    async with Client(mcp) as client:
        try:
            await client.read_resource("data://none")
        except MCPError as error:
            return {"code": error.error.code}
    return {"code": None}


async def resource_of_data() -> Facts:
    mcp = FastMCP("demo")

    @mcp.resource("data://settings", mime_type="application/json")
    def settings() -> str:
        return json.dumps({"depth": 3})

    async with Client(mcp) as client:
        contents = await contents_of(client, "data://settings")
    return {"value": json.loads(contents.text)}


async def resource_object() -> Facts:
    mcp = FastMCP("demo")
    mcp.add_resource(TextResource(uri="data://note", text="a note"))
    async with Client(mcp) as client:
        contents = await contents_of(client, "data://note")
    return {"text": contents.text}


async def prompt_messages() -> Facts:
    mcp = FastMCP("demo")

    @mcp.prompt
    def chat() -> list[Message]:
        return [Message("Hi"), Message("Hello!", role="assistant")]

    async with Client(mcp) as client:
        got = await client.get_prompt("chat")
    return {"messages": messages_of(got)}


async def completion() -> Facts:
    mcp = FastMCP("demo")

    @mcp.prompt
    def plan(city: str) -> str:
        return city

    @mcp.completion
    def cities(ref: Any, argument: Any, context: Any) -> list[str]:
        return [name for name in ("Lima", "Oslo") if name.startswith(argument.value)]

    async with Client(mcp) as client:
        ref = mcp_types.PromptReference(type="ref/prompt", name="plan")
        got = await client.complete(ref, {"name": "city", "value": "L"})
    return {"values": got.values}


# The context.


async def log() -> Facts:
    mcp = FastMCP("demo")
    messages: list[Any] = []

    @mcp.tool
    async def work(ctx: Context) -> None:
        await ctx.info("half")
        await ctx.log("done", level="warning", logger_name="work")

    async def keep(message: Any) -> None:
        data = message.data
        text = data.get("msg") if isinstance(data, dict) else data
        messages.append([message.level, message.logger, text, type(data).__name__])

    await called(mcp, {}, log_handler=keep)
    return {
        "texts": [[level, logger, text] for level, logger, text, _ in messages],
        "data": messages[0][3],
    }


async def sample() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        content = mcp_types.TextContent(type="text", text="2 + 2?")
        message = mcp_types.SamplingMessage(role="user", content=content)
        result = await ctx.session.create_message([message], max_tokens=9)
        return result.content.text

    async def answer(messages: Any, params: Any, context: Any) -> str:
        return f"{messages[0].content.text} 4"

    result = await called(mcp, {}, sampling_handler=answer, mode="legacy")
    return {"text": text_of(result)}


async def elicit_dataclass() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Where?", Point)
        return f"{answer.action} {answer.data.x} {answer.data.y}"

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return kind(x=1, y=2)

    return {"text": text_of(await called(mcp, {}, elicitation_handler=fill, mode="legacy"))}


async def elicit_scalar() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return f"{answer.action} {answer.data}"

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"value": 3}

    return {"text": text_of(await called(mcp, {}, elicitation_handler=fill, mode="legacy"))}


async def elicit_declined() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return answer.action

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return mcp_types.ElicitResult(action="decline")

    return {"text": text_of(await called(mcp, {}, elicitation_handler=fill, mode="legacy"))}


async def list_roots() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def roots(ctx: Context) -> str:
        result = await ctx.session.list_roots()
        return str(result.roots[0].uri)

    async with Client(mcp, roots=["file:///srv"], mode="legacy") as client:
        return {"text": text_of(await client.call_tool("roots"))}


async def root_paths() -> Facts:
    mcp = FastMCP("demo")
    try:
        Client(mcp, roots=["/srv"])
    except Exception as error:
        return {"accepted": type(error).__name__}
    return {"accepted": True}


async def lifespan() -> Facts:
    @asynccontextmanager
    async def opened(server: FastMCP) -> Any:
        yield {"unit": "m"}

    mcp = FastMCP("demo", lifespan=opened)

    @mcp.tool
    def unit(ctx: Context) -> str:
        return ctx.lifespan_context["unit"]

    return {"text": text_of(await called(mcp, {}))}


async def client_info() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def who(ctx: Context) -> str:
        return ctx.session.client_params.client_info.name

    info = mcp_types.Implementation(name="host", version="1")
    return {"text": text_of(await called(mcp, {}, client_info=info, mode="legacy"))}


async def run_time_changes() -> Facts:
    mcp = FastMCP("demo")
    changed: list[str] = []

    def late() -> str:
        return "late"

    @mcp.tool
    async def grow(ctx: Context) -> None:
        mcp.add_tool(late)
        await ctx.send_notification(mcp_types.ToolListChangedNotification())

    async def keep(message: Any) -> None:
        if "list_changed" in getattr(message, "method", ""):
            changed.append(message.method)

    async with Client(mcp, message_handler=keep, mode="legacy") as client:
        before = [tool.name for tool in await client.list_tools()]
        await client.call_tool("grow")
        grown = sorted(tool.name for tool in await client.list_tools())
        mcp.local_provider.remove_tool("late")
        after = [tool.name for tool in await client.list_tools()]
        await asyncio.sleep(0.1)
    return {"before": before, "grown": grown, "after": after, "told": bool(changed)}


async def resource_updates() -> Facts:
    mcp = FastMCP("demo")
    updated: list[str] = []

    @mcp.resource("data://motd")
    def motd() -> str:
        return "hello"

    @mcp.tool
    async def change(ctx: Context) -> None:
        params = mcp_types.ResourceUpdatedNotificationParams(uri="data://motd")
        await ctx.send_notification(mcp_types.ResourceUpdatedNotification(params=params))

    async def keep(message: Any) -> None:
        if getattr(message, "method", "") == "notifications/resources/updated":
            updated.append(str(message.params.uri))

    async with Client(mcp, message_handler=keep, mode="legacy") as client:
        await client.call_tool("change")
        await asyncio.sleep(0.1)
    return {"updated": updated}


# Running and connecting.


async def run_stdio() -> Facts:
    config = {"mcpServers": {"greeter": {"command": sys.executable, "args": [str(SCRIPT)]}}}
    async with Client(config) as client:
        return {"text": text_of(await client.call_tool("greet", {"name": "Ada"}))}


async def client_of_config() -> Facts:
    server = {"command": sys.executable, "args": [str(SCRIPT)]}
    config = {"mcpServers": {"one": server, "two": server}}
    async with Client(config) as client:
        names = sorted(tool.name for tool in await client.list_tools())
        result = await client.call_tool("one_greet", {"name": "Ada"})
    return {"tools": names, "text": text_of(result)}


async def ping() -> Facts:
    async with Client(FastMCP("demo"), mode="legacy") as client:
        return {"result": await client.ping()}


# What mcp_trio does not have.


async def custom_route() -> Facts:
    mcp = FastMCP("demo")

    @mcp.custom_route("/hello", methods=["GET"])
    async def hello(request: Any) -> PlainTextResponse:
        return PlainTextResponse("hello")

    transport = httpx2.ASGITransport(mcp.http_app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        got, post = await http.get("/hello"), await http.post("/hello")
    return {"got": [got.status_code, got.text], "post": post.status_code}


async def middleware() -> Facts:
    seen: list[str] = []

    class Logging(Middleware):
        async def on_call_tool(self, context: Any, call_next: Any) -> Any:
            seen.append(context.message.name)
            return await call_next(context)

    mcp = FastMCP("demo")
    mcp.add_middleware(Logging())

    @mcp.tool
    def hello() -> str:
        return "hello"

    await called(mcp, {})
    return {"seen": seen}


async def proxy() -> Facts:
    mcp = create_proxy(SCRIPT)
    async with Client(mcp) as client:
        return {"text": text_of(await client.call_tool("greet", {"name": "Ada"}))}


async def tool_transformation() -> Facts:
    def add(a: int, b: int) -> int:
        return a + b

    mcp = FastMCP("demo")
    plus_one = Tool.from_tool(
        add, name="plus_one", transform_args={"b": ArgTransform(hide=True, default=1)}
    )
    mcp.add_tool(plus_one)
    return {"text": text_of(await called(mcp, {"a": 2}))}


async def dependencies() -> Facts:
    mcp = FastMCP("demo")

    def unit() -> str:
        return "m"

    @mcp.tool
    async def measure(unit: str = Depends(unit)) -> str:
        return unit

    return {"text": text_of(await called(mcp, {}))}


async def http_headers() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def count() -> int:
        return len(get_http_headers())

    return {"without HTTP": (await called(mcp, {})).data}


async def session_state() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def count(ctx: Context) -> int:
        number = (await ctx.get_state("count") or 0) + 1
        await ctx.set_state("count", number)
        return number

    async with Client(mcp, mode="legacy") as client:
        return {"counts": [(await client.call_tool("count")).data for _ in range(2)]}


async def session_visibility() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool(tags={"admin"})
    def drop() -> str:
        return "gone"

    @mcp.tool
    async def unlock(ctx: Context) -> None:
        await ctx.enable_components(tags={"admin"})

    mcp.disable(tags={"admin"})
    async with Client(mcp, mode="legacy") as client, Client(mcp, mode="legacy") as other:
        await client.call_tool("unlock", {})
        return {
            "tools": sorted(tool.name for tool in await client.list_tools()),
            "tools of others": [tool.name for tool in await other.list_tools()],
        }


async def authorization() -> Facts:
    from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

    tokens = {"secret": {"client_id": "ada", "scopes": []}}
    mcp = FastMCP("demo", auth=StaticTokenVerifier(tokens))
    return {"is set": mcp.auth is not None}


async def _run(name: str) -> Facts:
    begin = time.monotonic()
    try:
        row = globals().get(name) or getattr(same_rows, name)
        facts = await asyncio.wait_for(row(), ROW_SECONDS)
    except Exception as error:
        facts = {"failed": f"{type(error).__name__}: {error}"}
    return {"row": name, "facts": facts, "seconds": time.monotonic() - begin}


def public_names() -> dict[str, dict[str, list[str]]]:
    """Return the public names of classes, and the arguments of their methods that users type.

    Classes and methods have the names that they have in mcp_trio.
    """
    methods_of = {
        FastMCP: ("__init__", "tool", "resource", "prompt", "mount", "run_http_async"),
        Client: ("__init__", "call_tool"),
        Context: ("elicit", "log", "info"),
    }
    # `run` passes its options on to `run_http_async`.
    ours = {FastMCP: "Server", Client: "Client", Context: "Context", "run_http_async": "run"}
    found: dict[str, dict[str, list[str]]] = {}
    for kind, methods in methods_of.items():
        found[ours[kind]] = {"": [name for name in dir(kind) if not name.startswith("_")]}
        for method in methods:
            parameters = inspect.signature(getattr(kind, method)).parameters.values()
            found[ours[kind]][ours.get(method, method)] = [
                parameter.name
                for parameter in parameters
                if parameter.name != "self" and parameter.kind is not parameter.VAR_KEYWORD
            ]
    return found


def main() -> None:
    if sys.argv[1:] == ["--names"]:
        print(json.dumps(public_names()))
        return
    for name in sys.argv[1:]:
        with contextlib.redirect_stdout(sys.stderr):
            line = json.dumps(asyncio.run(_run(name)), default=str)
        print(line, flush=True)


if __name__ == "__main__":
    main()
