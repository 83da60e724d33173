"""The benchmarked HTTP server on the Python SDK, with its default server; see `server_sdk.py`."""

import argparse

import function_calls
from mcp.server.mcpserver import MCPServer  # type: ignore[import-not-found]

server = MCPServer("bench", log_level="WARNING")


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the benchmark over HTTP.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--form", choices=["json", "sse", "stateless"], required=True)
    parser.add_argument("--count-calls", action="store_true")
    options = parser.parse_args()
    server.add_tool(add, structured_output=False)
    if options.count_calls:
        server.add_tool(function_calls.count, name="function_calls", structured_output=False)
        function_calls.watch()
    server.run("streamable-http", port=options.port, json_response=options.form == "json")
