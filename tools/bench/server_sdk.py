"""The benchmarked server on the official Python SDK, with the options that make it cheap.

These are: `async def` tools, no structured output besides the text, no log messages of its own.
"""

from bench_options import count_function_calls, function_calls, options_parser
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

    description = f"Add two numbers and {number}."
    server.add_tool(tool, f"add_{number}", description=description, structured_output=False)


if __name__ == "__main__":
    options = options_parser().parse_args()
    for offered in (add, echo, notify):
        server.add_tool(offered, structured_output=False)
    for number in range(options.tools):
        add_tool(number)
    if options.count_calls:
        server.add_tool(function_calls, structured_output=False)
        count_function_calls()
    if options.port:
        server.run("streamable-http", port=options.port, json_response=options.form == "json")
    else:
        server.run("stdio")
