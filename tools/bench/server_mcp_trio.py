"""The benchmarked stdio server on mcp_trio; the other servers have the same tools."""

import argparse

import function_calls

from mcp_trio import Context, Server
from mcp_trio.recording import RecordOptions, Redaction

server = Server("bench")


@server.tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool
async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def notify(count: int, *, ctx: Context) -> int:
    """Report progress so many times."""
    for step in range(count):
        await ctx.progress(step + 1, count)
    return count


def plus(a: int, b: int) -> int:
    """The effect of `add`, after `use_effects`."""
    return a + b


def use_effects() -> None:
    """Let `add` read the clock, draw a random number, and run an effect."""
    server.remove_tool("add")

    @server.tool(name="add")
    async def _(a: int, b: int, *, ctx: Context) -> int:
        ctx.now()
        ctx.random.random()
        return await ctx.effect(plus, a, b)


def add_tool(number: int) -> None:
    """Add another tool like `add`."""

    async def tool(a: int, b: int) -> int:
        return a + b + number

    server.tool(name=f"add_{number}", description=f"Add two numbers and {number}.")(tool)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Serve the benchmark over stdio.")
    parser.add_argument("--record", metavar="PATH")
    parser.add_argument("--redact", action="store_true", help="by the default rules")
    parser.add_argument("--effects", action="store_true", help="`add` acts through the context")
    parser.add_argument("--tools", type=int, default=0, help="so many tools more")
    parser.add_argument("--count-calls", action="store_true")
    options = parser.parse_args()
    for number in range(options.tools):
        add_tool(number)
    if options.count_calls:
        server.tool(name="function_calls")(function_calls.count)
        function_calls.watch()
    if options.effects:
        use_effects()
    record = options.record
    if options.redact:
        record = RecordOptions(record, redaction=Redaction())
    server.run(record=record)
