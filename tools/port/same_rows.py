"""The rows of the port table whose code is the same with FastMCP and with mcp_trio, or nearly.

Each public coroutine function is a row, as in `in_fastmcp.py` and `in_mcp_trio.py`. The rows run
with FastMCP if the process runs `in_fastmcp.py`, which has an environment without mcp_trio.
"""

import sys
import threading
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import anyio
import httpx2
from pydantic import BaseModel, Field

sys.path.append(str(Path(__file__).resolve().parents[1]))

from server_processes import listening

IS_FASTMCP = Path(sys.argv[0]).name == "in_fastmcp.py"

if IS_FASTMCP:
    from fastmcp import Client, Context
    from fastmcp import FastMCP as Server
    from fastmcp.exceptions import MCPError, PromptError, ToolError
    from fastmcp.server.dependencies import get_context
    from fastmcp.utilities.types import Audio, Image
    from typing_extensions import TypedDict  # pydantic demands it before Python 3.12
else:
    from typing import TypedDict

    import msgspec

    from mcp_trio import Audio, Client, Context, Image, Server, ToolError, get_context
    from mcp_trio import RequestError as MCPError

SCRIPT = Path(__file__).with_name("greeter_fastmcp.py" if IS_FASTMCP else "greeter_mcp_trio.py")
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
    """Return a type of the protocol as the dict that is sent, and other values as they are."""
    if not IS_FASTMCP:
        return msgspec.to_builtins(model)
    if not isinstance(model, BaseModel):
        return model
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def contents_of(client: Client, uri: str) -> Any:
    """Read a resource that has one part."""
    result = await client.read_resource(uri)
    [contents] = result if IS_FASTMCP else result.contents
    return contents


async def failure(call: Awaitable[Any]) -> Facts:
    """Return the class and the text of the exception that a call raises."""
    try:
        result = await call
    except Exception as error:
        return {"class": type(error).__name__, "text": str(error)}
    return {"class": None, "text": text_of(result)}


async def called(server: Server, arguments: Any, **options: Any) -> Any:
    """Call the only tool of a server."""
    async with Client(server, **options) as client:
        [tool] = await client.list_tools()
        return await client.call_tool(tool.name, arguments)


async def asked(
    server: Server, fastmcp_answer: Any, our_answer: Any, *, is_stateless: bool = False
) -> Any:
    """Call the only tool of a server, whose form the client answers."""

    async def fill(*_: Any) -> Any:
        return fastmcp_answer

    if IS_FASTMCP:
        options = {} if is_stateless else {"mode": "legacy"}
        return await called(server, {}, elicitation_handler=fill, **options)
    return await called(server, {}, elicitation=lambda _: our_answer)


def server_without_tools() -> Server:
    return Server("demo") if IS_FASTMCP else Server("demo", offers=["tools"])


def messages_of(got: Any) -> list[list[str]]:
    return [[it.role, it.content.text] for it in got.messages]


async def tool_from_function() -> Facts:
    server = Server("demo")

    @server.tool
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    async with Client(server) as client:
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
    server = Server("demo")

    @server.tool(
        name="sum",
        title="Sum",
        description="Add up.",
        tags={"maths"},
        annotations={"readOnlyHint": True},
        meta={"example.com/unit": "m"},
    )
    def add(a: int, b: int) -> int:
        return a + b

    async with Client(server) as client:
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
    server = Server("demo")

    @server.tool("sum")
    def add(a: int, b: int) -> int:
        return a + b

    async with Client(server) as client:
        return {"names": [tool.name for tool in await client.list_tools()]}


async def described_arguments() -> Facts:
    server = Server("demo")

    @server.tool
    def forecast(
        city: Annotated[str, "The city"],
        days: Annotated[int, Field(description="Days ahead", ge=1, le=7)] = 2,
    ) -> str:
        return f"{city} {days}"

    async with Client(server) as client:
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
    server = Server("demo")

    @server.tool
    def forecast(days: int = Field(default=2, description="Days ahead")) -> str:
        return f"{days} days"

    return {"text": text_of(await called(server, {}))}


async def pydantic_argument() -> Facts:
    server = Server("demo")

    @server.tool
    def add(point: Model) -> int:
        return point.x + point.y

    return {"text": text_of(await called(server, {"point": {"x": 1}}))}


async def dataclass_argument() -> Facts:
    server = Server("demo")

    @server.tool
    def add(point: Point) -> int:
        return point.x + point.y

    return {"text": text_of(await called(server, {"point": {"x": 1}}))}


async def typed_dict_argument() -> Facts:
    server = Server("demo")

    @server.tool
    def add(pair: Pair) -> int:
        return pair["x"] + pair["y"]

    return {"text": text_of(await called(server, {"pair": {"x": 1, "y": 2}}))}


async def strict_arguments() -> Facts:
    server = Server("demo")

    @server.tool
    def double(a: int) -> int:
        return 2 * a

    return {
        "number as text": await failure(called(server, {"a": "3"})),
        "whole float": await failure(called(server, {"a": 3.0})),
        "unknown argument": (await failure(called(server, {"a": 3, "b": 4})))["class"],
        "missing argument": (await failure(called(server, {})))["class"],
    }


async def structured_output() -> Facts:
    server = Server("demo")

    @server.tool
    def number() -> int:
        return 3

    @server.tool
    def text() -> str:
        return "three"

    @server.tool
    def numbers() -> list[int]:
        return [1, 2]

    @server.tool
    def mapping() -> dict[str, int]:
        return {"x": 1}

    @server.tool
    def point() -> Point:
        return Point(1)

    facts: Facts = {}
    async with Client(server) as client:
        for tool in await client.list_tools():
            result = await client.call_tool(tool.name)
            structured = plain(result.structured_content)
            facts[tool.name] = {"structured": structured, "text": text_of(result)}
    return facts


async def tool_error() -> Facts:
    server = Server("demo")

    @server.tool
    def fail() -> str:
        raise ToolError("no such city")

    return await failure(called(server, {}))


async def image() -> Facts:
    server = Server("demo")

    @server.tool
    def dot() -> Image:
        return Image(data=PNG, format="png")

    result = await called(server, {})
    [block] = result.content
    return {"type": plain(block)["type"], "mime type": block.mime_type, "data": block.data}


async def audio() -> Facts:
    server = Server("demo")

    @server.tool
    def beep() -> Audio:
        return Audio(data=b"RIFF", format="wav")

    [block] = (await called(server, {})).content
    return {"type": plain(block)["type"], "mime type": block.mime_type, "data": block.data}


async def dates_and_enums() -> Facts:
    server = Server("demo")

    @server.tool
    def plan(day: date, colour: Colour, side: Literal["left", "right"]) -> str:
        return f"{day:%d.%m.%Y} {colour.name} {side}"

    arguments = {"day": "2026-07-28", "colour": "red", "side": "left"}
    return {"text": text_of(await called(server, arguments))}


async def method_as_tool() -> Facts:
    server = Server("demo")

    class Counter:
        def count(self, by: int) -> int:
            return by + 1

    server.tool(Counter().count)
    return {"text": text_of(await called(server, {"by": 2}))}


async def thread() -> Facts:
    server = Server("demo")

    @server.tool
    def name() -> bool:
        return threading.current_thread() is threading.main_thread()

    return {"in the main thread": (await called(server, {})).data}


async def tool_timeout() -> Facts:
    server = Server("demo")

    @server.tool(timeout=0.2)
    async def wait() -> None:
        await anyio.sleep(20)

    error = await failure(called(server, {}))
    return {"raised": error["class"] is not None}


async def resource() -> Facts:
    server = Server("demo")

    @server.resource("data://motd")
    def motd() -> str:
        """The message of the day."""
        return "hello"

    @server.resource("data://bytes")
    def some_bytes() -> bytes:
        return b"\x00\x01"

    async with Client(server) as client:
        listed = {str(it.uri): it.description for it in await client.list_resources()}
        read = [plain(await contents_of(client, f"data://{name}")) for name in ("motd", "bytes")]
    return {
        "description": listed["data://motd"],
        "text": read[0]["text"],
        "blob": read[1]["blob"],
        "mime types": [each.get("mimeType") for each in read],
    }


async def resource_template() -> Facts:
    server = Server("demo")

    @server.resource("weather://{city}/now")
    def weather(city: str) -> str:
        return f"{city}: sun"

    async with Client(server) as client:
        [template] = await client.list_resource_templates()
        contents = await contents_of(client, "weather://Oslo/now")
    return {"template": template.uri_template, "text": plain(contents)["text"]}


async def resource_details() -> Facts:
    server = Server("demo")

    @server.resource(
        "data://config",
        name="config",
        mime_type="application/json",
        tags={"setup"},
        meta={"example.com/unit": "m"},
    )
    def config() -> str:
        return "{}"

    async with Client(server) as client:
        listed = plain((await client.list_resources())[0])
        contents = await contents_of(client, "data://config")
    meta = listed["_meta"]
    return {
        "name": listed["name"],
        "mime types": [listed["mimeType"], contents.mime_type],
        "tags": meta["fastmcp"]["tags"],
        "meta": meta["example.com/unit"],
    }


async def prompt() -> Facts:
    server = Server("demo")

    @server.prompt
    def plan(city: str, days: int = 2) -> str:
        """Plan a trip."""
        return f"Plan {days} days in {city}."

    async with Client(server) as client:
        [listed] = await client.list_prompts()
        got = await client.get_prompt("plan", {"city": "Oslo", "days": "3"})
    return {
        "description": listed.description,
        "required": {it.name: bool(it.required) for it in listed.arguments or []},
        "messages": messages_of(got),
    }


async def prompt_dicts() -> Facts:
    server = Server("demo")

    @server.prompt
    def chat() -> list[dict[str, str]]:
        return [{"role": "assistant", "content": "Hello!"}]

    async with Client(server) as client:
        try:
            return {"outcome": messages_of(await client.get_prompt("chat"))}
        except Exception as error:
            return {"outcome": type(error).__name__}


async def context_by_type() -> Facts:
    server = Server("demo")

    @server.tool
    async def whoami(a: int, ctx: Context) -> bool:
        return ctx.request_id is not None

    async with Client(server) as client:
        [tool] = await client.list_tools()
        result = await client.call_tool("whoami", {"a": 1})
    return {"arguments": list(tool.input_schema["properties"]), "has an id": result.data}


async def run_http() -> Facts:
    with listening(lambda port: [sys.executable, str(SCRIPT), "http", str(port)]) as running:
        url = f"{running.url}/mcp"
        async with Client(url) as client:
            return {"text": text_of(await client.call_tool("greet", {"name": "Ada"}))}


async def client_of_script() -> Facts:
    async with Client(SCRIPT) as client:
        return {"text": text_of(await client.call_tool("greet", {"name": "Ada"}))}


async def server_info() -> Facts:
    server = Server("demo", version="1.2", instructions="Use it.")
    async with Client(server) as client:
        info = client.server_info
        return {"info": [info.name, info.version], "instructions": client.instructions}


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
    server = Server.from_openapi(spec, client=client)
    async with Client(server) as mine:
        tool = (await mine.list_tools())[0]
        result = await mine.call_tool("city", {"city": "Oslo", "days": 2})
        schema = tool.input_schema
    return {
        "tool": tool.name,
        "arguments": sorted(schema["properties"]),
        "required": schema["required"],
        "seen": seen,
        "structured": result.structured_content,
    }


async def context_anywhere() -> Facts:
    server = Server("demo")

    def has_id() -> bool:
        return bool(get_context().request_id)

    @server.tool
    async def whoami() -> bool:
        return has_id()

    return {"has an id": (await called(server, {})).data}


async def visibility() -> Facts:
    server = Server("demo")

    @server.tool(tags={"admin"})
    def drop() -> str:
        return "gone"

    server.disable(tags={"admin"})
    async with Client(server) as client:
        return {"tools": [tool.name for tool in await client.list_tools()]}


# Rows in which one line differs.


async def other_exception() -> Facts:
    if IS_FASTMCP:  # noqa: SIM108  the page quotes both lines
        server = Server("demo")
    else:
        server = Server("demo", errors="message")

    @server.tool
    def fail() -> str:
        raise ValueError("no such city")

    return await failure(called(server, {}))


async def masked_exception() -> Facts:
    if IS_FASTMCP:  # noqa: SIM108  the page quotes both lines
        server = Server("demo", mask_error_details=True)
    else:
        server = Server("demo")

    @server.tool
    def fail() -> str:
        raise ValueError("secret")

    error = await failure(called(server, {}))
    return {**error, "has the secret": "secret" in error["text"]}


async def prompt_error() -> Facts:
    server = Server("demo")

    @server.prompt
    def plan() -> str:
        if IS_FASTMCP:
            raise PromptError("no such city")
        raise ToolError("no such city")

    async with Client(server) as client:
        try:
            await client.get_prompt("plan")
        except MCPError as error:
            code = error.error.code if IS_FASTMCP else error.code
            return {"has the text": "no such city" in str(error), "code": code}
    return {"has the text": None}


async def context_by_name() -> Facts:
    server = Server("demo")

    @server.tool
    async def whoami(a: int, ctx) -> int:  # noqa: ANN001  by its name
        assert IS_FASTMCP or ctx.request_id is not None
        return a

    async with Client(server) as client:
        [tool] = await client.list_tools()
    return {"arguments": list(tool.input_schema["properties"])}


async def progress() -> Facts:
    server = Server("demo")
    seen: list[Any] = []

    @server.tool
    async def work(ctx: Context) -> None:
        await ctx.report_progress(1, 2, "half")
        await ctx.report_progress(2, 2)

    async def keep(done: float, total: float | None, message: str | None) -> None:
        seen.append([done, total, message])

    def keep_report(report: Any) -> None:
        seen.append([report.progress, report.total, report.message])

    handler = {"progress_handler": keep} if IS_FASTMCP else {"progress": keep_report}
    async with Client(server) as client:
        await client.call_tool("work", **handler)
    return {"seen": seen}


async def elicit_model() -> Facts:
    server, answer = Server("demo"), {"x": 1, "y": 2}

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Where?", Model)
        return f"{answer.action} {answer.data.x} {answer.data.y}"

    return {"text": (await failure(asked(server, answer, answer)))["text"]}


async def elicit_choices() -> Facts:
    server = Server("demo")

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("Which?", ["red", "blue"])
        return f"{answer.action} {answer.data}"

    return {"text": text_of(await asked(server, {"value": "blue"}, "blue"))}


async def elicit_stateless() -> Facts:
    server = Server("demo")

    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.elicit("How many?", int)
        return f"{answer.action} {answer.data}"

    error = await failure(asked(server, {"value": 3}, 3, is_stateless=True))
    return {"answered": error["class"] is None, "text": error["text"]}


async def read_resource() -> Facts:
    server = Server("demo")

    @server.resource("data://motd")
    def motd() -> str:
        return "hello"

    @server.tool
    async def read(ctx: Context) -> str:
        if IS_FASTMCP:
            result = await ctx.read_resource("data://motd")
            return result.contents[0].content
        contents = await ctx.read_resource("data://motd")
        return plain(contents[0])["text"]

    return {"text": text_of(await called(server, {}))}


async def request_ids() -> Facts:
    server = Server("demo")

    @server.tool
    async def ids(ctx: Context) -> list[bool]:
        user = ctx.client_id if IS_FASTMCP else ctx.principal
        return [ctx.request_id is not None, user is not None]

    request_id, client_id = (await called(server, {})).data
    return {"request_id": request_id, "client_id without authentication": client_id}


async def client_of_server() -> Facts:
    server = server_without_tools()
    async with Client(server) as client:
        return {"tools": await client.list_tools()}


async def unknown_tool() -> Facts:
    async with Client(server_without_tools()) as client:
        return {"raised": (await failure(client.call_tool("none")))["class"]}


async def call_timeout() -> Facts:
    server = Server("demo")

    @server.tool
    async def wait() -> None:
        await anyio.sleep(20)

    async with Client(server) as client:
        if IS_FASTMCP:
            error = await failure(client.call_tool("wait", timeout=0.2))
        else:
            error = await failure(client.call_tool("wait", total_seconds=0.2))
    return {"raises": error["class"] is not None, "class": error["class"]}


async def raise_on_error() -> Facts:
    server = Server("demo")

    @server.tool
    def fail() -> str:
        raise ToolError("no such city")

    async with Client(server) as client:
        if IS_FASTMCP:
            result = await client.call_tool("fail", raise_on_error=False)
        else:
            result = await client.call_tool("fail", raise_tool_errors=False)
        raised = await failure(client.call_tool("fail"))
    return {"is_error": result.is_error, "text": text_of(result), "raised": raised["class"]}


async def raw_result() -> Facts:
    server = Server("demo")

    @server.tool
    def number() -> int:
        return 3

    async with Client(server) as client:
        if IS_FASTMCP:
            result = await client.call_tool_mcp("number", {})
        else:
            result = await client.request("tools/call", {"name": "number", "arguments": {}})
    return {"text": text_of(result), "is_error": bool(result.is_error)}


async def mount() -> Facts:
    child = Server("child")

    @child.tool
    def hello() -> str:
        return "hello"

    @child.resource("data://note")
    def note() -> str:
        return "a note"

    server = Server("demo")
    if IS_FASTMCP:
        server.mount(child, namespace="child")
    else:
        server.mount(child, prefix="child")

    @child.tool
    def later() -> str:
        return "later"

    async with Client(server) as client:
        names = [tool.name for tool in await client.list_tools()]
        text = text_of(await client.call_tool("child_hello", {}))
        contents = await contents_of(client, "data://child/note")
    return {"tools": names, "text": text, "resource": contents.text}
