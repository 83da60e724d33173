"""Code for type checkers: mypy and pyright read this file; it is never run."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, assert_type

import trio

from mcp_trio import (
    Answer,
    Client,
    ClientGroup,
    ConnectionLost,
    Context,
    Elicitation,
    Image,
    Limits,
    RequestError,
    Roots,
    Sampling,
    Server,
    ThreadContext,
    ToolError,
    UrlElicitation,
    UserRejected,
    connect_client,
)
from mcp_trio.hosts import ServerConfig, read_config
from mcp_trio.limits import RequestLimits
from mcp_trio.transports import memory_pair
from mcp_trio.types import (
    CallToolResult,
    ClientCapabilities,
    CompleteResult,
    CreateMessageParams,
    CreateMessageResult,
    GetPromptResult,
    Implementation,
    LoggingMessageParams,
    Params,
    Prompt,
    ReadResourceResult,
    Resource,
    ResourceContents,
    ResourceTemplate,
    Root,
    ServerCapabilities,
    Tool,
)

# Servers: each way to make one, and decorators that leave the function's type alone.


@asynccontextmanager
async def lifespan(server: Server) -> AsyncGenerator[list[str]]:
    """Yield what handlers see as `ctx.lifespan`."""
    yield [server.name]


server = Server(
    "harbour",
    version="2.1",
    instructions="Moor first.",
    lifespan=lifespan,
    limits=Limits(requests=RequestLimits(threads_max=4)),
)


@server.tool
async def tide(port: str, hours: int = 12) -> float:
    """Be a tool, bare."""
    return len(port) / hours


@server.tool(name="depths", description="How deep.", thread=False)
def depth(port: str) -> int:
    """Be a tool, called."""
    return len(port)


@server.resource("harbour://{port}/chart", mime_type="image/png")
def chart(port: str) -> Image:
    """Be a resource."""
    return Image(port.encode())


@server.prompt
def sail(port: str) -> str:
    """Be a prompt, bare."""
    return port


@server.prompt(name="row")
async def pull(port: str) -> list[str]:
    """Be a prompt, called."""
    return [port]


@server.tool(input_schema={"type": "object"})
async def moor(arguments: dict[str, object]) -> str:
    """Be a tool whose schema is given."""
    return str(arguments)


@server.completion(sail, "port")
def ports(typed: str) -> list[str]:
    """Be a completion."""
    return [typed]


@server.method("acme/search")
async def search(params: Params, ctx: Context) -> dict[str, str]:
    """Be a low-level method."""
    return {"method": ctx.method, "meta": str(params.meta)}


bare = Server("bare", methods={"acme/search": search}, capabilities=ServerCapabilities())


async def functions_stay_themselves() -> None:
    """Decorated functions are called like any other."""
    assert_type(await moor({}), str)
    assert_type(ports("O"), list[str])
    assert_type(await tide("Oslo", hours=3), float)
    assert_type(depth("Oslo"), int)
    assert_type(chart("Oslo"), Image)
    assert_type(sail("Oslo"), str)
    assert_type(await pull("Oslo"), list[str])


@server.tool
async def ask(ctx: Context, question: CreateMessageParams) -> str:
    """Use everything that a context has."""
    assert_type(ctx.request_id, int | str)
    assert_type(ctx.protocol_version, str)
    assert_type(ctx.client_info, Implementation | None)
    assert_type(ctx.client_capabilities, ClientCapabilities)
    assert_type(ctx.client_can("roots"), bool)
    assert_type(ctx.is_cancelled, bool)
    await ctx.report_progress(1, total=2)
    await ctx.info({"any": "JSON"})
    await ctx.log("alert", "text", logger="tower")
    assert_type(await ctx.list_roots(), list[Root])
    assert_type(await ctx.sample(question), CreateMessageResult)
    assert_type(await ctx.sample("Why?", max_tokens=5, temperature=0.5), CreateMessageResult)
    assert_type(await ctx.elicit("Moor?"), Answer[None])
    assert_type(await ctx.elicit("How many nights?", int), Answer[int])
    assert_type((await ctx.elicit("Who?", Implementation)).data, Implementation | None)
    assert_type(await ctx.elicit("Which?", {"type": "object"}), Answer[dict[str, Any]])
    assert_type(await ctx.elicit("Which?", Literal["a", "b"]), Answer[Any])
    assert_type(await ctx.elicit_url("Pay", "https://harbour.example"), Answer[None])
    nights, sampled = await ctx.ask_all(Elicitation("Nights?", int), Sampling("Why?", max_tokens=5))
    assert_type(nights, Answer[int])
    assert_type(sampled, CreateMessageResult)
    visit, roots, moor = await ctx.ask_all(
        UrlElicitation("Pay", "https://a.b"), Roots(), Elicitation("Moor?")
    )
    assert_type(visit, Answer[None])
    assert_type(roots, list[Root])
    assert_type(moor, Answer[None])
    assert_type(await ctx.read_resource("harbour://Oslo/chart"), list[ResourceContents])
    assert_type(ctx.server.tool(sail)("Oslo"), str)
    ctx.server.remove_tool("sail")
    ctx.server.resource_updated("harbour://Oslo/chart")
    await ctx.ping()
    raise ToolError("no")


@server.tool
def ask_in_thread(ctx: ThreadContext, question: CreateMessageParams) -> str:
    """Do the same without an await."""
    ctx.report_progress(1, total=2)
    ctx.warning("text")
    assert_type(ctx.is_cancelled, bool)
    assert_type(ctx.list_roots(), list[Root])
    assert_type(ctx.elicit("How many nights?", int), Answer[int])
    _wider: Answer[object] = Answer[int](action="accept", data=3)
    assert_type(ctx.ask_all(Roots(), Elicitation("Moor?")), tuple[list[Root], Answer[None]])
    assert_type(ctx.read_resource("harbour://Oslo/chart"), list[ResourceContents])
    return assert_type(ctx.sample(question), CreateMessageResult).model


async def serve() -> None:
    """Serve in a nursery of one's own."""
    ours, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, theirs)
        await nursery.start(server.serve_stdio)
        async with Client(ours):
            pass


# Clients: each kind of target, and the type of every call.


async def call() -> None:
    """Call everything."""
    async with Client(["python", "server.py"], env={"A": "b"}) as client:
        assert_type(client.server_info, Implementation)
        assert_type(client.server_capabilities, ServerCapabilities)
        assert_type(client.protocol_version, str)
        assert_type(await client.list_tools(), list[Tool])
        assert_type(await client.list_resources(), list[Resource])
        assert_type(await client.list_resource_templates(), list[ResourceTemplate])
        assert_type(await client.list_prompts(), list[Prompt])
        assert_type(await client.read_resource("harbour://Oslo/chart"), ReadResourceResult)
        assert_type(await client.get_prompt("sail", {"port": "Oslo"}), GetPromptResult)
        try:
            result = await client.call_tool("tide", {"port": "Oslo"}, idle_seconds=3)
            assert_type(result, CallToolResult)
        except ToolError as error:
            assert_type(str(error), str)
        except RequestError as error:
            assert_type(error.code, int)
        except ConnectionLost as error:
            assert_type(error.exit_status, int | None)
    async with Client(server) as client, trio.open_nursery() as nursery:
        await client.ping()
        assert_type(await connect_client(server, nursery), Client)


def sample_in_place(params: CreateMessageParams) -> CreateMessageResult:
    """Answer at once."""
    raise UserRejected(params.messages[0].role)


async def sample_with_progress(
    params: CreateMessageParams, report: Callable[[float, float], Awaitable[None]]
) -> CreateMessageResult:
    """Take a while, and say so."""
    await report(1, params.max_tokens)
    raise UserRejected


def roots_of(name: str) -> list[Path | str | Root]:
    """Say where one of a group's servers may work."""
    return [Path(name), f"file:///{name}", Root(uri="file:///")]


async def log_of(name: str, params: LoggingMessageParams) -> None:
    """Receive a log message of one of a group's servers."""
    assert_type(params.logger, str | None)


async def call_in_time() -> None:
    """Give options to calls, and callbacks to clients."""
    async with Client(server, sampling=sample_in_place, roots=[Path()]) as client:
        assert_type(await client.list_tools(total_seconds=3), list[Tool])
        assert_type(await client.complete("sail", "port", "O", idle_seconds=3), CompleteResult)
        assert_type(client.server_can("tools"), bool)
        await client.set_roots(lambda: ["file:///sea"])
    async with Client(
        server, sampling=sample_with_progress, methods={"acme/search": dict}
    ) as client:
        await client.request("acme/search", {"text": "tide"}, progress=print)


async def call_several() -> None:
    """Call everything in a group."""
    servers = assert_type(read_config("mcp.json"), dict[str, ServerConfig])
    group = ClientGroup({"harbour": server, **servers}, roots=roots_of, log=log_of, name="me")
    async with group, ClientGroup.from_config("mcp.json", separator="."):
        assert_type(group["harbour"], Client)
        assert_type(await group.add("more", ["python", "server.py"]), Client)
        assert_type(await group.list_tools(), list[Tool])
        assert_type(await group.list_resources(), list[Resource])
        assert_type(await group.list_resource_templates(), list[ResourceTemplate])
        assert_type(await group.list_prompts(), list[Prompt])
        assert_type(await group.call_tool("harbour_tide", {"port": "Oslo"}), CallToolResult)
        assert_type(await group.call_tool("harbour_tide", result_type=int), int)
        assert_type(await group.get_prompt("harbour_sail"), GetPromptResult)
        assert_type(await group.read_resource("a:b", server="harbour"), ReadResourceResult)
        assert_type(await group.complete("harbour_sail", "port", "O"), CompleteResult)
        await group.remove("more")
