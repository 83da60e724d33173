"""The server that is measured, by mcp_trio; `server_sdk.py` offers the same tools."""

import argparse

import function_calls

from mcp_trio import Context, Server

BLOBS = {mb: "x" * (mb * 1_000_000) for mb in (1, 4, 8)}

server = Server("bench")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def notify(count: int, *, ctx: Context) -> int:
    """Report progress so many times."""
    for step in range(count):
        await ctx.progress(step + 1, count)
    return count


@server.tool
async def blob(mb: int) -> str:
    """Return so many megabytes."""
    return BLOBS[mb]


@server.tool(name="function_calls")
async def count_function_calls() -> int:
    """Tell how many functions were called so far."""
    return function_calls.count()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the benchmark over stdio.")
    parser.add_argument("--record", metavar="PATH")
    parser.add_argument("--count-calls", action="store_true")
    options = parser.parse_args()
    if options.count_calls:
        function_calls.watch()
    server.run(record=options.record)
