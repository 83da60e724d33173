"""The benchmarked server on mcp_trio; the other servers have the same tools."""

import gc
import time
from typing import Final

import trio
from server_options import count_function_calls, function_calls, options_parser

from mcp_trio import Context, Server, effect
from mcp_trio.limits import HttpLimits, Limits, RequestLimits

# Imports inside of functions are of what most servers do not load: they would count at the start.

# The loads have more calls in flight, and more sessions, than one client should.
LIMITS: Final = Limits(
    requests=RequestLimits(in_flight_max=10_000), http=HttpLimits(sessions_max=20_000)
)
server = Server("bench", limits=LIMITS)
HELD: Final = frozenset({"HttpSession", "Session", "SessionChannel", "ResponseStream"})


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
        await ctx.report_progress(step + 1, count)
    return count


@effect
async def plus(a: int, b: int) -> int:
    """The effect of `add`, after `use_effect`."""
    return a + b


def use_effect() -> None:
    """Let `add` call an effect."""
    server.remove_tool("add")

    @server.tool(name="add")
    async def _(a: int, b: int) -> int:
        return await plus(a, b)


def print_replay(recording: str) -> None:
    """Replay a recording; print its number of records, and the seconds of CPU time."""
    begin = time.process_time()
    from mcp_trio.recording import replay

    records = replay(recording, server).records
    print(records, time.process_time() - begin)


def watch_nothing() -> None:
    """Let a replay neither capture clocks and random numbers nor look for untracked calls."""
    from mcp_trio._session import untracked_calls

    installation = vars(untracked_calls)["_Installation"]  # Users cannot do without it.
    installation.install = lambda _: None


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
    parser.add_argument("--transport", help="over this socket, see serve_sockets.STARTS")
    parser.add_argument("--address", help="a port, or the path of a socket file")
    parser.add_argument("--record", metavar="PATH")
    parser.add_argument("--redact", action="store_true", help="by the default rules")
    parser.add_argument("--effect", action="store_true", help="`add` calls an effect")
    parser.add_argument("--replay", metavar="PATH", help="serve nothing, but replay a recording")
    parser.add_argument("--watch-nothing", action="store_true", help="in the replay")
    options = parser.parse_args()
    for number in range(options.tools):
        add_tool(number)
    if options.count_calls:
        server.tool(function_calls)
        count_function_calls()
    if options.effect:
        use_effect()
    record = None
    if options.record:
        from mcp_trio.recording import RecordOptions, Redaction

        record = RecordOptions(options.record, redaction=Redaction() if options.redact else None)
    if options.replay:
        if options.watch_nothing:
            watch_nothing()
        print_replay(options.replay)
        return
    if options.transport:
        import serve_sockets

        serve_sockets.run(server, options.transport, options.address)
    elif options.port:
        server.tool(holdings)
        streams = options.form == "sse"
        server.run(
            "http",
            port=options.port,
            server=options.host,
            streams_answers=streams,
            record=record,
        )
    else:
        server.run(record=record)


if __name__ == "__main__":
    main()
