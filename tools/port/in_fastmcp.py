"""The rows of the port table with FastMCP: `python in_fastmcp.py [ROW…]`, in its environment.

Each public coroutine function is a row, and returns what a client gets, by name. The results are
printed as one line of JSON for each row. `in_mcp_trio.py` has the same functions.
"""

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import httpx2
import mcp_types
from fastmcp import Client, Context, FastMCP
from fastmcp.dependencies import Depends
from fastmcp.exceptions import MCPError, PromptError, ToolError
from fastmcp.prompts import Message
from fastmcp.resources import TextResource
from fastmcp.server import create_proxy
from fastmcp.server.dependencies import get_context, get_http_headers
from fastmcp.server.middleware import Middleware
from fastmcp.tools import Tool, ToolResult
from fastmcp.tools.tool_transform import ArgTransform
from fastmcp.utilities.types import Audio, Image
from pydantic import BaseModel, Field
from starlette.responses import PlainTextResponse
from typing_extensions import TypedDict

sys.path.append(str(Path(__file__).resolve().parents[1]))

from server_processes import listening

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "greeter_fastmcp.py"
ROW_SECONDS = 30
PNG = b"\x89PNG\r\n\x1a\n"

Facts = dict[str, Any]


class Model(BaseModel):
    x: int
    y: int = 2


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 2


class Pair(TypedDict):
    x: int
    y: int


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content)


def plain(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def failure(call: Awaitable[Any]) -> Facts:
    """Return the class and the text of the exception that a call raises."""
    try:
        result = await call
    except Exception as error:
        return {"class": type(error).__name__, "text": str(error)}
    return {"class": None, "text": text_of(result)}


async def called(server: FastMCP, arguments: Any, **options: Any) -> Any:
    """Call the only tool of a server."""
    async with Client(server, **options) as client:
        [tool] = await client.list_tools()
        return await client.call_tool(tool.name, arguments)


# Tools.


async def tool_from_function() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    async with Client(mcp) as client:
        [tool] = await client.list_tools()
        schema = tool.input_schema
        result = await client.call_tool("add", {"a": 2})
    kinds = {name: it["type"] for name, it in schema["properties"].items()}
    return {
        "name": tool.name,
        "description": tool.description,
        "arguments": kinds,
        "required": schema["required"],
        "text": text_of(result),
        "default": schema["properties"]["b"]["default"],
    }


async def tool_details() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool(
        name="sum",
        title="Sum",
        description="Add up.",
        tags={"maths"},
        annotations={"readOnlyHint": True},
        meta={"example.com/unit": "m"},
    )
    def add(a: int, b: int) -> int:
        return a + b

    async with Client(mcp) as client:
        [tool] = await client.list_tools()
    listed = plain(tool)
    meta = listed["_meta"]
    return {
        **{key: listed[key] for key in ("name", "title", "description")},
        "read-only hint": listed["annotations"]["readOnlyHint"],
        "tags": meta["fastmcp"]["tags"],
        "meta": meta["example.com/unit"],
    }


async def positional_name() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool("sum")
    def add(a: int, b: int) -> int:
        return a + b

    async with Client(mcp) as client:
        return {"names": [tool.name for tool in await client.list_tools()]}


async def described_arguments() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def forecast(
        city: Annotated[str, "The city"],
        days: Annotated[int, Field(description="Days ahead", ge=1, le=7)] = 2,
    ) -> str:
        return f"{city} {days}"

    async with Client(mcp) as client:
        [tool] = await client.list_tools()
        properties = tool.input_schema["properties"]
        wrong = await failure(client.call_tool("forecast", {"city": "Oslo", "days": 9}))
    days = properties["days"]
    return {
        "text in Annotated": properties["city"].get("description"),
        "Field": {key: days[key] for key in ("description", "minimum", "maximum", "default")},
        "error": wrong["class"],
        "text of the error": wrong["text"].splitlines()[0],
    }


async def field_as_default() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def forecast(days: int = Field(default=2, description="Days ahead")) -> str:
        return f"{days} days"

    return {"text": text_of(await called(mcp, {}))}


async def pydantic_argument() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def add(point: Model) -> int:
        return point.x + point.y

    return {"text": text_of(await called(mcp, {"point": {"x": 1}}))}


async def dataclass_argument() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def add(point: Point) -> int:
        return point.x + point.y

    return {"text": text_of(await called(mcp, {"point": {"x": 1}}))}


async def typed_dict_argument() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def add(pair: Pair) -> int:
        return pair["x"] + pair["y"]

    return {"text": text_of(await called(mcp, {"pair": {"x": 1, "y": 2}}))}


async def strict_arguments() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def double(a: int) -> int:
        return 2 * a

    return {
        "number as text": await failure(called(mcp, {"a": "3"})),
        "whole float": await failure(called(mcp, {"a": 3.0})),
        "unknown argument": (await failure(called(mcp, {"a": 3, "b": 4})))["class"],
        "missing argument": (await failure(called(mcp, {})))["class"],
    }


async def structured_output() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def number() -> int:
        return 3

    @mcp.tool
    def text() -> str:
        return "three"

    @mcp.tool
    def numbers() -> list[int]:
        return [1, 2]

    @mcp.tool
    def mapping() -> dict[str, int]:
        return {"x": 1}

    @mcp.tool
    def point() -> Point:
        return Point(1)

    facts: Facts = {}
    async with Client(mcp) as client:
        for tool in await client.list_tools():
            result = await client.call_tool(tool.name)
            facts[tool.name] = {"structured": result.structured_content, "text": text_of(result)}
    return facts


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


async def tool_error() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def fail() -> str:
        raise ToolError("no such city")

    return await failure(called(mcp, {}))


async def other_exception() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def fail() -> str:
        raise ValueError("no such city")

    return await failure(called(mcp, {}))


async def masked_exception() -> Facts:
    mcp = FastMCP("demo", mask_error_details=True)

    @mcp.tool
    def fail() -> str:
        raise ValueError("secret")

    error = await failure(called(mcp, {}))
    return {**error, "has the secret": "secret" in error["text"]}


async def image() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def dot() -> Image:
        return Image(data=PNG, format="png")

    result = await called(mcp, {})
    [block] = result.content
    return {"type": block.type, "mime type": block.mime_type, "data": block.data}


async def audio() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def beep() -> Audio:
        return Audio(data=b"RIFF", format="wav")

    [block] = (await called(mcp, {})).content
    return {"type": block.type, "mime type": block.mime_type, "data": block.data}


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


async def dates_and_enums() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def plan(day: date, colour: Colour, side: Literal["left", "right"]) -> str:
        return f"{day:%d.%m.%Y} {colour.name} {side}"

    arguments = {"day": "2026-07-28", "colour": "red", "side": "left"}
    return {"text": text_of(await called(mcp, arguments))}


async def method_as_tool() -> Facts:
    mcp = FastMCP("demo")

    class Counter:
        def count(self, by: int) -> int:
            return by + 1

    mcp.tool(Counter().count)
    return {"text": text_of(await called(mcp, {"by": 2}))}


async def name_registered_twice() -> Facts:
    mcp = FastMCP("demo")
    first, second = (lambda: "first"), (lambda: "second")
    mcp.tool(first, name="same")
    mcp.tool(second, name="same")
    return {"outcome": text_of(await called(mcp, {}))}


async def thread() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def name() -> bool:
        return threading.current_thread() is threading.main_thread()

    return {"in the main thread": (await called(mcp, {})).data}


# Resources and prompts.


async def resource() -> Facts:
    mcp = FastMCP("demo")

    @mcp.resource("data://motd")
    def motd() -> str:
        """The message of the day."""
        return "hello"

    @mcp.resource("data://bytes")
    def some_bytes() -> bytes:
        return b"\x00\x01"

    async with Client(mcp) as client:
        listed = {str(it.uri): it.description for it in await client.list_resources()}
        [text] = await client.read_resource("data://motd")
        [blob] = await client.read_resource("data://bytes")
    return {
        "description": listed["data://motd"],
        "text": text.text,
        "blob": blob.blob,
        "mime types": [text.mime_type, blob.mime_type],
    }


async def missing_resource() -> Facts:
    mcp = FastMCP("demo")
    async with Client(mcp) as client:
        try:
            await client.read_resource("data://none")
        except MCPError as error:
            return {"code": error.error.code}
    return {"code": None}


async def resource_template() -> Facts:
    mcp = FastMCP("demo")

    @mcp.resource("weather://{city}/now")
    def weather(city: str) -> str:
        return f"{city}: sun"

    async with Client(mcp) as client:
        [template] = await client.list_resource_templates()
        [contents] = await client.read_resource("weather://Oslo/now")
    return {"template": template.uri_template, "text": contents.text}


async def resource_details() -> Facts:
    mcp = FastMCP("demo")

    @mcp.resource(
        "data://config",
        name="config",
        mime_type="application/json",
        tags={"setup"},
        meta={"example.com/unit": "m"},
    )
    def config() -> str:
        return "{}"

    async with Client(mcp) as client:
        listed = plain((await client.list_resources())[0])
        [contents] = await client.read_resource("data://config")
    meta = listed["_meta"]
    return {
        "name": listed["name"],
        "mime types": [listed["mimeType"], contents.mime_type],
        "tags": meta["fastmcp"]["tags"],
        "meta": meta["example.com/unit"],
    }


async def resource_of_data() -> Facts:
    mcp = FastMCP("demo")

    @mcp.resource("data://settings", mime_type="application/json")
    def settings() -> str:
        return json.dumps({"depth": 3})

    async with Client(mcp) as client:
        [contents] = await client.read_resource("data://settings")
    return {"value": json.loads(contents.text)}


async def resource_object() -> Facts:
    mcp = FastMCP("demo")
    mcp.add_resource(TextResource(uri="data://note", text="a note"))
    async with Client(mcp) as client:
        [contents] = await client.read_resource("data://note")
    return {"text": contents.text}


async def prompt() -> Facts:
    mcp = FastMCP("demo")

    @mcp.prompt
    def plan(city: str, days: int = 2) -> str:
        """Plan a trip."""
        return f"Plan {days} days in {city}."

    async with Client(mcp) as client:
        [listed] = await client.list_prompts()
        got = await client.get_prompt("plan", {"city": "Oslo", "days": "3"})
    return {
        "description": listed.description,
        "required": {it.name: bool(it.required) for it in listed.arguments or []},
        "messages": [[it.role, it.content.text] for it in got.messages],
    }


async def prompt_messages() -> Facts:
    mcp = FastMCP("demo")

    @mcp.prompt
    def chat() -> list[Message]:
        return [Message("Hi"), Message("Hello!", role="assistant")]

    async with Client(mcp) as client:
        got = await client.get_prompt("chat")
    return {"messages": [[it.role, it.content.text] for it in got.messages]}


async def prompt_dicts() -> Facts:
    mcp = FastMCP("demo")

    @mcp.prompt
    def chat() -> list:
        return [{"role": "assistant", "content": "Hello!"}]

    async with Client(mcp) as client:
        try:
            got = await client.get_prompt("chat")
        except Exception as error:
            return {"outcome": type(error).__name__}
    return {"outcome": [[it.role, it.content.text] for it in got.messages]}


async def prompt_error() -> Facts:
    mcp = FastMCP("demo")

    @mcp.prompt
    def plan() -> str:
        raise PromptError("no such city")

    async with Client(mcp) as client:
        try:
            await client.get_prompt("plan")
        except MCPError as error:
            return {"has the text": "no such city" in str(error), "code": error.error.code}
    return {"has the text": None}


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


async def context_by_type() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def whoami(a: int, ctx: Context) -> bool:
        return bool(ctx.request_id)

    async with Client(mcp) as client:
        [tool] = await client.list_tools()
        result = await client.call_tool("whoami", {"a": 1})
    return {"arguments": list(tool.input_schema["properties"]), "has an id": result.data}


async def context_by_name() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def whoami(a: int, ctx) -> int:  # noqa: ANN001
        return a

    async with Client(mcp) as client:
        [tool] = await client.list_tools()
    return {"arguments": list(tool.input_schema["properties"])}


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


async def progress() -> Facts:
    mcp = FastMCP("demo")
    seen: list[Any] = []

    @mcp.tool
    async def work(ctx: Context) -> None:
        await ctx.report_progress(1, 2, "half")
        await ctx.report_progress(2, 2)

    async def keep(done: float, total: float | None, message: str | None) -> None:
        seen.append([done, total, message])

    async with Client(mcp) as client:
        await client.call_tool("work", progress_handler=keep)
    return {"seen": seen}


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


async def elicit_model() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Where?", Model)
        return f"{answer.action} {answer.data.x} {answer.data.y}"

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"x": 1, "y": 2}

    result = await failure(called(mcp, {}, elicitation_handler=fill, mode="legacy"))
    return {"text": result["text"]}


async def elicit_scalar() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return f"{answer.action} {answer.data}"

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"value": 3}

    return {"text": text_of(await called(mcp, {}, elicitation_handler=fill, mode="legacy"))}


async def elicit_choices() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Which?", ["red", "blue"])
        return f"{answer.action} {answer.data}"

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"value": "blue"}

    return {"text": text_of(await called(mcp, {}, elicitation_handler=fill, mode="legacy"))}


async def elicit_stateless() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return f"{answer.action} {answer.data}"

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return {"value": 3}

    error = await failure(called(mcp, {}, elicitation_handler=fill))
    return {"answered": error["class"] is None, "text": error["text"]}


async def elicit_declined() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return answer.action

    async def fill(message: str, kind: Any, params: Any, context: Any) -> Any:
        return mcp_types.ElicitResult(action="decline")

    return {"text": text_of(await called(mcp, {}, elicitation_handler=fill, mode="legacy"))}


async def read_resource() -> Facts:
    mcp = FastMCP("demo")

    @mcp.resource("data://motd")
    def motd() -> str:
        return "hello"

    @mcp.tool
    async def read(ctx: Context) -> str:
        result = await ctx.read_resource("data://motd")
        return result.contents[0].content

    return {"text": text_of(await called(mcp, {}))}


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


async def request_ids() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def ids(ctx: Context) -> list[bool]:
        return [ctx.request_id is not None, ctx.client_id is not None]

    request_id, client_id = (await called(mcp, {})).data
    return {"request_id": request_id, "client_id without authentication": client_id}


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


async def run_http() -> Facts:
    with listening(lambda port: [sys.executable, str(SCRIPT), "http", str(port)]) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        async with Client(url) as client:
            return {"text": text_of(await client.call_tool("greet", {"name": "Ada"}))}


async def client_of_script() -> Facts:
    async with Client(SCRIPT) as client:
        return {"text": text_of(await client.call_tool("greet", {"name": "Ada"}))}


async def client_of_server() -> Facts:
    mcp = FastMCP("demo")
    async with Client(mcp) as client:
        return {"tools": await client.list_tools()}


async def client_of_config() -> Facts:
    server = {"command": sys.executable, "args": [str(SCRIPT)]}
    config = {"mcpServers": {"one": server, "two": server}}
    async with Client(config) as client:
        names = sorted(tool.name for tool in await client.list_tools())
        result = await client.call_tool("one_greet", {"name": "Ada"})
    return {"tools": names, "text": text_of(result)}


async def server_info() -> Facts:
    mcp = FastMCP("demo", version="1.2", instructions="Use it.")
    async with Client(mcp) as client:
        info = client.server_info
        assert info is not None
        return {"info": [info.name, info.version], "instructions": client.instructions}


async def call_timeout() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    async def wait() -> None:
        await asyncio.sleep(20)

    async with Client(mcp) as client:
        error = await failure(client.call_tool("wait", timeout=0.2))
    return {"raises": error["class"] is not None, "class": error["class"]}


async def ping() -> Facts:
    async with Client(FastMCP("demo"), mode="legacy") as client:
        return {"result": await client.ping()}


async def raise_on_error() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def fail() -> str:
        raise ToolError("no such city")

    async with Client(mcp) as client:
        result = await client.call_tool("fail", raise_on_error=False)
        raised = await failure(client.call_tool("fail"))
    return {"is_error": result.is_error, "text": text_of(result), "raised": raised["class"]}


async def unknown_tool() -> Facts:
    async with Client(FastMCP("demo")) as client:
        return {"raised": (await failure(client.call_tool("none")))["class"]}


async def raw_result() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool
    def number() -> int:
        return 3

    async with Client(mcp) as client:
        result = await client.call_tool_mcp("number", {})
    return {"text": text_of(result), "is_error": bool(result.is_error)}


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


async def mount() -> Facts:
    child = FastMCP("child")

    @child.tool
    def hello() -> str:
        return "hello"

    @child.resource("data://note")
    def note() -> str:
        return "a note"

    mcp = FastMCP("demo")
    mcp.mount(child, namespace="child")

    @child.tool
    def later() -> str:
        return "later"

    async with Client(mcp) as client:
        names = [tool.name for tool in await client.list_tools()]
        text = text_of(await client.call_tool("child_hello", {}))
        (contents,) = await client.read_resource("data://child/note")
    return {"tools": names, "text": text, "resource": contents.text}


async def from_openapi() -> Facts:
    seen: list[str] = []

    def answer(request: Any) -> Any:
        seen.append(f"{request.method} {request.url}")
        return httpx2.Response(200, json={"name": "Oslo"})

    parameters = [
        {"name": "city", "in": "path", "required": True, "schema": {"type": "string"}},
        {"name": "days", "in": "query", "schema": {"type": "integer"}},
    ]
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    content = {"application/json": {"schema": schema}}
    responses = {"200": {"description": "OK", "content": content}}
    get = {"operationId": "city", "parameters": parameters, "responses": responses}
    spec: dict[str, Any] = {"openapi": "3.1.0", "info": {"title": "demo", "version": "1"}}
    spec["paths"] = {"/cities/{city}": {"get": get}}
    transport = httpx2.MockTransport(answer)
    client = httpx2.AsyncClient(base_url="http://127.0.0.1:9", transport=transport)
    mcp = FastMCP.from_openapi(spec, client=client)
    async with Client(mcp) as mine:
        tool = (await mine.list_tools())[0]
        result = await mine.call_tool("city", {"city": "Oslo", "days": 2})
        schema = tool.inputSchema
    return {
        "tool": tool.name,
        "arguments": sorted(schema["properties"]),
        "required": schema["required"],
        "seen": seen,
        "structured": result.structured_content,
    }


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


async def context_anywhere() -> Facts:
    mcp = FastMCP("demo")

    def has_id() -> bool:
        return bool(get_context().request_id)

    @mcp.tool
    async def whoami() -> bool:
        return has_id()

    return {"has an id": (await called(mcp, {})).data}


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


async def tool_timeout() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool(timeout=0.2)
    async def wait() -> None:
        await asyncio.sleep(20)

    error = await failure(called(mcp, {}))
    return {"raised": error["class"] is not None}


async def visibility() -> Facts:
    mcp = FastMCP("demo")

    @mcp.tool(tags={"admin"})
    def drop() -> str:
        return "gone"

    mcp.disable(tags={"admin"})
    async with Client(mcp) as client:
        return {"tools": [tool.name for tool in await client.list_tools()]}


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
        facts = await asyncio.wait_for(globals()[name](), ROW_SECONDS)
    except Exception as error:
        facts = {"failed": f"{type(error).__name__}: {error}"}
    return {"row": name, "facts": facts, "seconds": time.monotonic() - begin}


def main() -> None:
    for name in sys.argv[1:]:
        with contextlib.redirect_stdout(sys.stderr):
            line = json.dumps(asyncio.run(_run(name)), default=str)
        print(line, flush=True)


if __name__ == "__main__":
    main()
