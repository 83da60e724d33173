"""What type checkers must see: mypy and pyright read this file, nobody runs it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import assert_type

import trio

from mcp_trio import (
    Client,
    ConnectionLost,
    Context,
    Image,
    Limits,
    RequestError,
    Server,
    ThreadContext,
    ToolError,
    connect_client,
)
from mcp_trio.transports import memory_pair
from mcp_trio.types import (
    CallToolResult,
    ClientCapabilities,
    CreateMessageParams,
    CreateMessageResult,
    GetPromptResult,
    Implementation,
    Prompt,
    ReadResourceResult,
    Resource,
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
    limits=Limits(threads_max=4),
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


async def functions_stay_themselves() -> None:
    """Decorated functions are called like any other."""
    assert_type(await tide("Oslo", hours=3), float)
    assert_type(depth("Oslo"), int)
    assert_type(chart("Oslo"), Image)
    assert_type(sail("Oslo"), str)
    assert_type(await pull("Oslo"), list[str])


@server.tool
async def ask(ctx: Context, question: CreateMessageParams) -> str:
    """Use everything that a context has."""
    assert_type(ctx.request_id, int | str)
    assert_type(ctx.revision, str)
    assert_type(ctx.client_info, Implementation | None)
    assert_type(ctx.client_capabilities, ClientCapabilities | None)
    assert_type(ctx.client_can("roots"), bool)
    assert_type(ctx.is_cancelled, bool)
    await ctx.progress(1, total=2)
    await ctx.info({"any": "JSON"})
    await ctx.log("alert", "text", logger="tower")
    assert_type(await ctx.list_roots(), list[Root])
    assert_type(await ctx.sample(question), CreateMessageResult)
    raise ToolError("no")


@server.tool
def ask_in_thread(ctx: ThreadContext, question: CreateMessageParams) -> str:
    """Do the same without an await."""
    ctx.progress(1, total=2)
    ctx.warning("text")
    assert_type(ctx.is_cancelled, bool)
    assert_type(ctx.list_roots(), list[Root])
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
        assert_type(client.revision, str)
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
