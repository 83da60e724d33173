"""The benchmarked server over WebSocket on the official Python SDK 1 and uvicorn, at a PORT.

SDK 1 is the last version with this transport.
"""

import sys
from typing import Any

import uvicorn  # type: ignore[import-not-found]
from mcp.server.fastmcp import FastMCP  # type: ignore[import-not-found]
from mcp.server.websocket import websocket_server  # type: ignore[import-not-found]

server = FastMCP("bench", log_level="WARNING")


@server.tool(structured_output=False)  # type: ignore[untyped-decorator]
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Serve a session on each connection."""
    low = server._mcp_server  # noqa: SLF001  it has no other way to serve a transport of its own
    async with websocket_server(scope, receive, send) as (from_client, to_client):
        await low.run(from_client, to_client, low.create_initialization_options())


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error", lifespan="off")
