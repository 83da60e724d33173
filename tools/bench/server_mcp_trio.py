"""The benchmarked server on mcp_trio; the other servers have the same tools."""

import gc
from typing import Final

import serve_sockets
import trio
from bench_options import count_function_calls, function_calls, options_parser

from mcp_trio import Context, Server
from mcp_trio.recording import RecordOptions, Redaction

server = Server("bench")
HELD: Final = frozenset({"HttpSession", "Session", "SessionChannel", "AnswerStream"})


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


async def holdings() -> str:
    """Count the tasks, and the objects that belong to sessions."""
    gc.collect()
    objects = sum(type(each).__name__ in HELD for each in gc.get_objects())
    return f"{objects} {trio.lowlevel.current_statistics().tasks_living}"


def main() -> None:
    parser = options_parser()
    parser.add_argument("--host", choices=["native", "hypercorn"], default="native")
    parser.add_argument("--transport", choices=serve_sockets.STARTS, help="over this socket")
    parser.add_argument("--address", help="a port, or the path of a socket file")
    parser.add_argument("--record", metavar="PATH")
    parser.add_argument("--redact", action="store_true", help="by the default rules")
    parser.add_argument("--effects", action="store_true", help="`add` acts through the context")
    options = parser.parse_args()
    for number in range(options.tools):
        add_tool(number)
    if options.count_calls:
        server.tool(function_calls)
        count_function_calls()
    if options.effects:
        use_effects()
    record = None if options.record is None else RecordOptions(options.record, overwrite=True)
    if options.redact:
        record = RecordOptions(options.record, redaction=Redaction(), overwrite=True)
    if options.transport:
        serve_sockets.run(server, options.transport, options.address)
    elif options.port:
        server.tool(holdings)
        streams = options.form == "sse"
        server.run("http", port=options.port, server=options.host, streams_answers=streams)
    else:
        server.run(record=record)


if __name__ == "__main__":
    main()
