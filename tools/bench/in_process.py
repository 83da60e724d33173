"""Measure variants of one server in turns, each in the process of its client.

Server and client are joined in memory. Sessions of some calls take turns, and the CPU time of a
call is compared with that of the first variant.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from measuring import print_table

from mcp_trio import Client, Context, Server

ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "add": {"a": 1, "b": 2, "note": "a note " * 10},
    "with_effect": {"a": 1},
}


def bench_server(**options: Any) -> Server:
    """Return a server with the tools of `ARGUMENTS`; the options are those of `Server`."""
    server = Server("bench", **options)

    @server.tool
    async def add(a: int, b: int, note: str = "") -> str:
        return f"{a + b} {note}"

    @server.tool
    async def with_effect(a: int, *, ctx: Context) -> int:
        await ctx.sleep(0)
        return a

    return server


async def measure_in_turns(servers: Mapping[str, Server], turns: int, calls: int) -> None:
    """Measure each server `turns` times, and print the medians."""
    results: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(turns):
        for title, server in servers.items():
            for tool in ARGUMENTS:
                results[title, tool].append(await _us_per_call(server, calls, tool))
    base, rows = next(iter(servers)), list[tuple[str, ...]]()
    for title in servers:
        cells = [title]
        for tool in ARGUMENTS:
            cost = statistics.median(results[title, tool])
            more = cost - statistics.median(results[base, tool])
            cells += [f"{cost:.0f}", f"{more:+.0f}"]
        rows.append(tuple(cells))
    headings = ["", "call, µs", "more", "call with an effect, µs", "more"]
    print_table("CPU time of a call: client and server", headings, rows)


async def _us_per_call(server: Server, calls: int, tool: str) -> float:
    async with Client(server) as client:
        await client.call_tool(tool, ARGUMENTS[tool])
        begin = time.process_time()
        for _ in range(calls):
            await client.call_tool(tool, ARGUMENTS[tool])
    return (time.process_time() - begin) / calls * 1e6
