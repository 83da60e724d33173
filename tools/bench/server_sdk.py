"""The server that is measured beside ours, by the official Python SDK, with what makes it cheap.

That is: `async def` tools, no structured output besides the text, no log messages of its own.
"""

import argparse

import function_calls
from mcp.server.mcpserver import Context, MCPServer  # type: ignore[import-not-found]

server = MCPServer("bench", log_level="WARNING")


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def echo(text: str) -> str:
    """Return the text."""
    return text


async def notify(count: int, ctx: Context) -> int:
    """Report progress so many times."""
    for step in range(count):
        await ctx.report_progress(step + 1, count)
    return count


def add_tool(number: int) -> None:
    """Add another tool like `add`."""

    async def tool(a: int, b: int) -> int:
        return a + b + number

    server.add_tool(
        tool,
        name=f"add_{number}",
        description=f"Add two numbers and {number}.",
        structured_output=False,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the benchmark over stdio.")
    parser.add_argument("--tools", type=int, default=0, help="so many tools more")
    parser.add_argument("--count-calls", action="store_true")
    options = parser.parse_args()
    for offered in (add, echo, notify):
        server.add_tool(offered, structured_output=False)
    for number in range(options.tools):
        add_tool(number)
    if options.count_calls:
        server.add_tool(function_calls.count, name="function_calls", structured_output=False)
        function_calls.watch()
    server.run("stdio")
