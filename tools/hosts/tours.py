"""One tour with each framework: `tours.py FRAMEWORK TRANSPORT TARGET`, in its environment.

TARGET is the JSON of a command, or a URL. The tour lists the tools and calls each, reads a resource
and gets a prompt where the framework can, and prints the outcome of each step as one JSON object: a
value as the framework returns it, or the class of the exception that leaves the framework.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

CALLS: dict[str, dict[str, Any]] = {
    "hello": {"name": "Ada"},
    "place": {"city": "Oslo"},
    "numbers": {"count": 3},
    "paint": {"colour": "blue"},
    "photo": {},
    "fail": {},
    "crash": {},
}
URI, PROMPT = "tour://tide", {"city": "Oslo"}

outcomes: dict[str, Any] = {}


def plain(value: Any) -> Any:
    """Return a value as JSON; objects of the frameworks as their public members."""
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(it) for key, it in value.items()}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json", exclude_none=True))
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if hasattr(value, "__dict__") and type(value).__module__ != "builtins":
        return {key: plain(it) for key, it in vars(value).items() if not key.startswith("_")}
    return repr(value)


async def step(name: str, use: Callable[[], Any]) -> None:
    try:
        value = use()
        value = await value if isinstance(value, Awaitable) else value
        outcomes[name] = {"value": plain(value)}
    except Exception as error:
        outcomes[name] = {"raises": type(error).__name__, "text": str(error)[:200]}


async def fastmcp(transport: str, target: Any) -> None:
    from fastmcp import Client
    from fastmcp.client import transports as t

    kinds = {"http": t.StreamableHttpTransport, "sse": t.SSETransport}
    where = (
        t.StdioTransport(target[0], target[1:])
        if transport == "stdio"
        else kinds[transport](target)
    )
    async with Client(where) as client:
        await step("tools", lambda: tools_of(client.list_tools))
        for name, arguments in CALLS.items():

            async def call(name: str = name, arguments: Any = arguments) -> Any:
                result = await client.call_tool(name, arguments)
                structured = result.structured_content
                return {"data": result.data, "structured": structured, "content": result.content}

            await step(name, call)
        await step("resource", lambda: client.read_resource(URI))
        await step("prompt", lambda: client.get_prompt("plan", PROMPT))


async def tools_of(fetch: Callable[[], Any]) -> Any:
    """Return name, description and input schema of each tool of the SDK's type."""
    found = await fetch()
    found = getattr(found, "tools", found)
    return {
        tool.name: [
            tool.description,
            getattr(tool, "inputSchema", None) or getattr(tool, "input_schema", None),
        ]
        for tool in found
    }


async def langchain_mcp_adapters(transport: str, target: Any) -> None:
    from langchain_mcp_adapters.client import MultiServerMCPClient

    options = {
        "stdio": lambda: {"transport": "stdio", "command": target[0], "args": target[1:]},
        "http": lambda: {"transport": "streamable_http", "url": target},
        "sse": lambda: {"transport": "sse", "url": target},
    }[transport]()
    client = MultiServerMCPClient({"tour": options})
    tools = {tool.name: tool for tool in await client.get_tools()}
    await step("tools", lambda: {name: [t.description, t.args_schema] for name, t in tools.items()})
    for name, arguments in CALLS.items():
        call = {"name": name, "args": arguments, "id": "1", "type": "tool_call"}

        async def invoke(name: str = name, call: Any = call) -> Any:
            message = await tools[name].ainvoke(call)
            return {"content": without_ids(message.content), "artifact": message.artifact}

        await step(name, invoke)
    await step("resource", lambda: client.get_resources("tour", uris=[URI]))
    await step("prompt", lambda: client.get_prompt("tour", "plan", arguments=PROMPT))


def without_ids(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [{k: v for k, v in part.items() if k != "id"} for part in content]


async def openai_agents(transport: str, target: Any) -> None:
    from agents.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp

    kinds = {"http": MCPServerStreamableHttp, "sse": MCPServerSse}
    server: Any = (
        MCPServerStdio(params={"command": target[0], "args": target[1:]})
        if transport == "stdio"
        else kinds[transport](params={"url": target})
    )
    async with server:
        await step("tools", lambda: tools_of(server.list_tools))
        for name, arguments in CALLS.items():
            await step(name, lambda n=name, a=arguments: server.call_tool(n, a))
        await step("resource", lambda: server.read_resource(URI))
        await step("prompt", lambda: server.get_prompt("plan", PROMPT))


async def mcp_use(transport: str, target: Any) -> None:
    from mcp_use import MCPClient

    one = {"command": target[0], "args": target[1:]} if transport == "stdio" else {"url": target}
    if transport == "sse":
        one["transport"] = "sse"
    client = MCPClient.from_dict({"mcpServers": {"tour": one}})
    session = await client.create_session("tour")
    try:
        await step("tools", lambda: tools_of(session.list_tools))
        for name, arguments in CALLS.items():
            await step(name, lambda n=name, a=arguments: session.call_tool(n, a))
        await step("resource", lambda: session.read_resource(URI))
        await step("prompt", lambda: session.get_prompt("plan", PROMPT))
    finally:
        await client.close_all_sessions()


async def strands_agents(transport: str, target: Any) -> None:
    from mcp import StdioServerParameters, stdio_client
    from mcp.client.sse import sse_client
    from strands.tools.mcp import MCPClient

    def connect() -> Any:
        if transport == "stdio":
            return stdio_client(StdioServerParameters(command=target[0], args=target[1:]))
        if transport == "sse":
            return sse_client(target)
        from mcp.client import streamable_http as http

        make = getattr(http, "streamable_http_client", None) or http.streamablehttp_client
        return make(target)

    def tour() -> None:
        with MCPClient(connect) as client:
            tools = {tool.tool_name: tool for tool in client.list_tools_sync()}
            outcomes["tools"] = {
                "value": {
                    name: plain(tool.tool_spec["inputSchema"]) for name, tool in tools.items()
                }
            }
            for name, arguments in CALLS.items():
                asyncio.run(
                    step(name, lambda n=name, a=arguments: client.call_tool_sync("1", n, a))
                )
            asyncio.run(step("resource", lambda: client.read_resource_sync(URI)))
            asyncio.run(step("prompt", lambda: client.get_prompt_sync("plan", PROMPT)))

    await asyncio.to_thread(tour)


async def llama_index_tools_mcp(transport: str, target: Any) -> None:
    from llama_index.tools.mcp import BasicMCPClient, McpToolSpec

    client = (
        BasicMCPClient(target[0], args=target[1:])
        if transport == "stdio"
        else BasicMCPClient(target)
    )
    tools = {t.metadata.name: t for t in await McpToolSpec(client).to_tool_list_async()}
    await step("tools", lambda: {n: t.metadata.get_parameters_dict() for n, t in tools.items()})
    for name, arguments in CALLS.items():

        async def call(name: str = name, arguments: Any = arguments) -> Any:
            return str(await tools[name].acall(**arguments))

        await step(name, call)
    await step("resource", lambda: client.read_resource(URI))
    await step("prompt", lambda: client.get_prompt("plan", PROMPT))


async def autogen_ext(transport: str, target: Any) -> None:
    from autogen_core import CancellationToken
    from autogen_ext.tools.mcp import (
        SseServerParams,
        StdioServerParams,
        StreamableHttpServerParams,
        mcp_server_tools,
    )

    kinds: Any = {"http": StreamableHttpServerParams, "sse": SseServerParams}
    params = (
        StdioServerParams(command=target[0], args=target[1:])
        if transport == "stdio"
        else kinds[transport](url=target)
    )
    tools = {tool.name: tool for tool in await mcp_server_tools(params)}
    await step("tools", lambda: {name: tool.schema["parameters"] for name, tool in tools.items()})
    for name, arguments in CALLS.items():
        await step(name, lambda n=name, a=arguments: tools[n].run_json(a, CancellationToken()))


async def semantic_kernel(transport: str, target: Any) -> None:
    from semantic_kernel.connectors import mcp

    plugin: Any = (
        mcp.MCPStdioPlugin(name="tour", command=target[0], args=target[1:])
        if transport == "stdio"
        else {"http": mcp.MCPStreamableHttpPlugin, "sse": mcp.MCPSsePlugin}[transport](
            name="tour", url=target
        )
    )
    async with plugin:
        await step("tools", lambda: tools_of(plugin.session.list_tools))
        for name, arguments in CALLS.items():
            await step(name, lambda n=name, a=arguments: plugin.call_tool(n, **a))
        await step("prompt", lambda: plugin.get_prompt("plan", **PROMPT))


async def pydantic_ai(transport: str, target: Any) -> None:
    from pydantic_ai import mcp

    if hasattr(mcp, "MCPToolset"):
        from fastmcp.client import transports as t

        where: Any = (
            t.StdioTransport(target[0], target[1:])
            if transport == "stdio"
            else {"http": t.StreamableHttpTransport, "sse": t.SSETransport}[transport](target)
        )
        server: Any = mcp.MCPToolset(where)
    else:
        kinds = {"http": mcp.MCPServerStreamableHTTP, "sse": mcp.MCPServerSSE}
        server = (
            mcp.MCPServerStdio(target[0], target[1:])
            if transport == "stdio"
            else kinds[transport](target)
        )
    async with server:
        await step("tools", lambda: tools_of(server.list_tools))
        for name, arguments in CALLS.items():
            await step(name, lambda n=name, a=arguments: server.direct_call_tool(n, a))
        await step("resource", lambda: server.read_resource(URI))


def _parameters(transport: str, target: Any) -> Any:
    """Return the parameters of a server for hosts that use mcpadapt."""
    from mcp import StdioServerParameters

    if transport == "stdio":
        return StdioServerParameters(command=target[0], args=target[1:])
    return {"url": target, "transport": {"http": "streamable-http", "sse": "sse"}[transport]}


async def smolagents(transport: str, target: Any) -> None:
    from smolagents import MCPClient

    def tour() -> None:
        with MCPClient(_parameters(transport, target), structured_output=True) as found:
            tools = {tool.name: tool for tool in found}
            outcomes["tools"] = {"value": {name: plain(t.inputs) for name, t in tools.items()}}
            for name, arguments in CALLS.items():
                asyncio.run(step(name, lambda n=name, a=arguments: tools[n](**a)))

    await asyncio.to_thread(tour)


async def crewai_tools(transport: str, target: Any) -> None:
    from crewai_tools import MCPServerAdapter

    def tour() -> None:
        with MCPServerAdapter(_parameters(transport, target)) as found:
            tools = {tool.name: tool for tool in found}
            outcomes["tools"] = {
                "value": {name: t.args_schema.model_json_schema() for name, t in tools.items()}
            }
            for name, arguments in CALLS.items():
                asyncio.run(step(name, lambda n=name, a=arguments: tools[n].run(**a)))

    await asyncio.to_thread(tour)


async def google_adk(transport: str, target: Any) -> None:
    from google.adk.agents import LlmAgent
    from google.adk.agents.invocation_context import InvocationContext
    from google.adk.sessions import InMemorySessionService
    from google.adk.tools import ToolContext
    from google.adk.tools import mcp_tool as adk
    from mcp import StdioServerParameters

    kinds = {"http": adk.StreamableHTTPConnectionParams, "sse": adk.SseConnectionParams}
    params: Any = (
        adk.StdioConnectionParams(
            server_params=StdioServerParameters(command=target[0], args=target[1:]), timeout=30
        )
        if transport == "stdio"
        else kinds[transport](url=target)
    )
    service = InMemorySessionService()
    context = ToolContext(
        InvocationContext(
            session_service=service,
            session=await service.create_session(app_name="tour", user_id="Ada"),
            invocation_id="1",
            agent=LlmAgent(name="agent"),
        ),
        function_call_id="1",
    )
    toolset = adk.McpToolset(connection_params=params)
    try:
        tools = {tool.name: tool for tool in await toolset.get_tools()}
        await step("tools", lambda: {n: t._get_declaration() for n, t in tools.items()})  # noqa: SLF001  what a model gets
        for name, arguments in CALLS.items():
            await step(
                name, lambda n=name, a=arguments: tools[n].run_async(args=a, tool_context=context)
            )
        await step("resource", lambda: toolset.read_resource("tide"))
    finally:
        await toolset.close()


async def agno(transport: str, target: Any) -> None:
    from agno.tools.mcp import MCPTools
    from mcp import StdioServerParameters

    names = {"http": "streamable-http", "sse": "sse"}
    toolkit: Any = (
        MCPTools(server_params=StdioServerParameters(command=target[0], args=target[1:]))
        if transport == "stdio"
        else MCPTools(url=target, transport=names[transport])
    )
    async with toolkit:
        tools = toolkit.functions
        await step("tools", lambda: {n: [t.description, t.parameters] for n, t in tools.items()})
        for name, arguments in CALLS.items():

            async def call(name: str = name, arguments: Any = arguments) -> Any:
                result = await tools[name].entrypoint(**arguments)
                images = [[image.mime_type, len(image.content)] for image in result.images or ()]
                return {"content": result.content, "data": result.metadata, "images": images}

            await step(name, call)


async def sdk(transport: str, target: Any) -> None:
    """Let three clients of the official SDK take the tour, one after another."""
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.sse import sse_client
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.client.websocket import websocket_client

    def connect() -> Any:
        if transport == "stdio":
            variables = dict(os.environ)
            parameters = StdioServerParameters(command=target[0], args=target[1:], env=variables)
            return stdio_client(parameters)
        kinds = {"http": streamable_http_client, "sse": sse_client, "websocket": websocket_client}
        return kinds[transport](target)

    for client in ("", " of client 2", " of client 3"):
        async with connect() as streams, ClientSession(*streams[:2]) as session:
            await session.initialize()
            await step(f"tools{client}", lambda s=session: tools_of(s.list_tools))
            for name, arguments in CALLS.items():
                await step(
                    f"{name}{client}", lambda s=session, n=name, a=arguments: s.call_tool(n, a)
                )
            await step(f"resource{client}", lambda s=session: s.read_resource(URI))
            await step(f"prompt{client}", lambda s=session: s.get_prompt("plan", PROMPT))


async def main() -> None:
    framework, transport, text = sys.argv[1:]
    target = json.loads(text) if transport == "stdio" else text
    tour = globals()[framework.replace("-", "_")]
    try:
        await tour(transport, target)
    except BaseException as error:
        outcomes["tour"] = {"raises": type(error).__name__, "text": str(error)[:300]}
    print("\n" + json.dumps(outcomes, default=repr))


if __name__ == "__main__":
    asyncio.run(main())
