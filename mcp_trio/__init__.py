"""A Trio-native engine for the Model Context Protocol, with recording and deterministic replay.

A server, and a client of it:

    import trio
    from mcp_trio import Client, Context, Server

    server = Server("greeter")

    @server.tool
    async def greet(name: str, *, ctx: Context) -> str:
        await ctx.info(f"{name} came")
        return f"Hello, {name}!"

    async def main():
        async with Client(server) as client:
            result = await client.call_tool("greet", {"name": "Ada"})
            print(result.data)

    trio.run(main)

`help(Server)`, `help(Client)` and `help(Context)` describe their methods and options. The modules
beside them:

    mcp_trio.types       the types of the protocol, such as `TextContent` and `ToolAnnotations`
    mcp_trio.errors      all exceptions
    mcp_trio.recording   recording and replay: `replay`, `RecordOptions`, `SharedRecording`
    mcp_trio.middleware  `MiddlewareRequest`, `CallNext`, and middleware to use
    mcp_trio.observers   traces, metrics, request logs and audit logs
    mcp_trio.tools       changes of registered tools: `Argument`, `Fixed`
    mcp_trio.auth        authorization of servers and clients: `StaticTokens`, `OAuth`
    mcp_trio.http        routes beside the MCP endpoint, HTTP as an effect, and stores
    mcp_trio.transports  channels, and transports of your own
    mcp_trio.limits      all limits, by name
    mcp_trio.testing     stand-ins for tests: `WirePeer`, `FaultyChannel`, `simulate`
    mcp_trio.hosts       hosts that use several servers

`mcp-trio --help` lists the commands.
"""

import importlib
from typing import Any

from mcp_trio._public_names import lazy_names

# Each name is imported when it is first used, so that a server does not load the client, nor a
# client the server.
_public_name, __dir__, __all__ = lazy_names(__name__, __file__)

# The modules to search for a name that this one lacks.
_MODULES = (
    *("types", "errors", "limits", "recording", "middleware", "tools", "auth", "http"),
    *("transports", "hosts", "observers", "testing"),
)


def __getattr__(name: str) -> Any:
    try:
        return _public_name(name)
    except AttributeError:
        # `from mcp_trio import types` calls this function before it imports the submodule, which it
        # does after an `AttributeError`.
        if name.startswith("_") or name in _MODULES:
            raise
        # The names that FastMCP and the official SDK have in the package, with what to write here.
        from mcp_trio._protocol.other_sdk_names import PACKAGE

        # `from mcp_trio import NAME` replaces the text of an `AttributeError` by its own, but not
        # that of an `ImportError`.
        if name in PACKAGE:
            raise ImportError(f"mcp_trio has no {name!r}; {PACKAGE[name]}", name=__name__) from None
        for module in _MODULES:
            found = getattr(importlib.import_module(f"{__name__}.{module}"), name, None)
            # Modules also have names that they import from elsewhere, such as `Any`.
            if getattr(found, "__module__", "").startswith(__name__):
                text = f"{name!r} is in mcp_trio.{module}: from mcp_trio.{module} import {name}"
                raise ImportError(text, name=__name__) from None
        raise
