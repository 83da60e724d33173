"""Measure what a recording policy costs: `python tools/bench/policy.py`.

One process has a server and its client, joined in memory. Sessions of some calls take turns: not
recorded; with a policy that never keeps them; held and forgotten; recorded; recorded with
redaction, as a policy does at rate 1; recorded and encrypted. The CPU time of a call is printed,
and how much of it the recording causes. Slowness is no failure.
"""

import argparse
import base64
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import trio
from measuring import print_table

from mcp_trio import Client, Context, Server
from mcp_trio._recorder.encryption import KEYS_VARIABLE
from mcp_trio.recording import RecordOptions, RecordPolicy


def servers(folder: Path) -> Mapping[str, Server]:
    """Return a server for each way to record it."""
    (folder / "plain").mkdir()
    (folder / "encrypted").mkdir()
    os.environ[KEYS_VARIABLE] = "bench:" + base64.b64encode(bytes(32)).decode()
    records = {
        "not recorded": None,
        "policy, left out by the rate": RecordPolicy(folder / "out", rate=0, errors=False),
        "policy, held and forgotten": RecordPolicy(folder / "held", rate=0, slow_seconds=9),
        "recorded": RecordOptions(folder / "plain"),
        "policy, kept and redacted": RecordPolicy(folder / "kept"),
        "recorded and encrypted": RecordOptions(folder / "encrypted", encrypt=True),
    }
    return {title: _server(record) for title, record in records.items()}


def _server(record: RecordOptions | None) -> Server:
    server = Server("bench", record=record)

    @server.tool
    async def add(a: int, b: int, note: str = "") -> str:
        return f"{a + b} {note}"

    @server.tool
    async def with_effect(a: int, *, ctx: Context) -> int:
        await ctx.sleep(0)
        return a

    return server


async def session(server: Server, calls: int, tool: str) -> float:
    """Return the microseconds of CPU time of one call."""
    async with Client(server) as client:
        arguments = {"a": 1, "b": 2, "note": "a note " * 10} if tool == "add" else {"a": 1}
        await client.call_tool(tool, arguments)
        begin = time.process_time()
        for _ in range(calls):
            await client.call_tool(tool, arguments)
        return (time.process_time() - begin) / calls * 1e6


async def measure(folder: Path, turns: int, calls: int) -> None:
    """Measure in turns, and print a table."""
    results: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    made = servers(folder)
    for _ in range(turns):
        for title, server in made.items():
            for tool in ("add", "with_effect"):
                results[title, tool].append(await session(server, calls, tool))
    rows: list[tuple[str, ...]] = []
    for title in made:
        cells = [title]
        for tool in ("add", "with_effect"):
            cost = statistics.median(results[title, tool])
            base = statistics.median(results["not recorded", tool])
            cells += [f"{cost:.0f}", f"{cost - base:+.0f}"]
        rows.append(tuple(cells))
    headings = ["", "call, µs", "more", "call with an effect, µs", "more"]
    print_table("CPU time of a call: client and server", headings, rows)


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        trio.run(measure, Path(temporary), options.turns, options.calls)


if __name__ == "__main__":
    main()
