"""The server that is measured beside ours, by the official SDK, with what makes it cheap.

That is: `async def` tools, no structured output besides the text, no log messages of its own.
"""

import argparse

import function_calls
from mcp.server.mcpserver import Context, MCPServer  # type: ignore[import-not-found]

BLOBS = {mb: "x" * (mb * 1_000_000) for mb in (1, 4, 8)}


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def notify(count: int, ctx: Context) -> int:
    """Report progress so many times."""
    for step in range(count):
        await ctx.report_progress(step + 1, count)
    return count


async def blob(mb: int) -> str:
    """Return so many megabytes."""
    return BLOBS[mb]


async def count_function_calls() -> int:
    """Tell how many functions were called so far."""
    return function_calls.count()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the benchmark over stdio.")
    parser.add_argument("--count-calls", action="store_true")
    options = parser.parse_args()
    server = MCPServer("bench", log_level="WARNING")
    for tool in (add, notify, blob):
        server.add_tool(tool, structured_output=False)
    server.add_tool(count_function_calls, name="function_calls", structured_output=False)
    if options.count_calls:
        function_calls.watch()
    server.run("stdio")
