"""Measure the catalogue: `python tools/bench/catalogue.py --recordings 100000`.

The recordings are copies of a few real sessions with other times, session ids, users and tools. The
times of the commands are printed: index from nothing (in all processors, and in one), index without
a change, find, and stats. Slowness is no failure.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import trio
from measuring import print_table

from mcp_trio import Client, Context, Server
from mcp_trio.errors import ToolError
from mcp_trio.recording import Catalogue, RecordOptions, statistics

BEGIN: Final = datetime(2026, 11, 1, tzinfo=UTC)
QUERIES: Final = (
    "tool:book error:tool slower:0.01ms",
    "user:ada after:2026-11-20",
    'text:"seat taken"',
    "error:any -tool:pay",
    "trace:0af7651916cd43dd8448eb211c80319c",
)


def theatre() -> Server:
    """Return a server with a tool that fails at times."""
    server = Server("theatre", version="2.1")

    @server.tool
    async def book(seat: str, *, ctx: Context) -> str:
        if seat == "taken":
            raise ToolError("seat taken")
        await ctx.sleep(0)
        return f"{seat} is booked"

    return server


async def record_sessions(folder: Path) -> None:
    """Record one session without and one with an error."""
    server = theatre()
    for seats in (["A1", "A2", "A3"], ["A1", "taken", "A2"]):
        record = RecordOptions(folder)
        channel_client = Client(server, raise_tool_errors=False)
        server.record = record
        async with channel_client as client:
            for seat in seats:
                await client.call_tool("book", {"seat": seat})


def make_recordings(folder: Path, number: int) -> None:
    """Write so many recordings, which differ in time, session and tool."""
    with tempfile.TemporaryDirectory() as temporary:
        trio.run(record_sessions, Path(temporary))
        texts = [path.read_text() for path in sorted(Path(temporary).iterdir())]
    parts: list[tuple[dict[str, Any], str]] = []
    for text in texts:
        first, _, rest = text.partition("\n")
        parts.append((json.loads(first), rest))
    choose = random.Random(1)
    for index in range(number):
        opening, rest = parts[choose.random() < 0.01]
        started = BEGIN + timedelta(seconds=index * 30 * 24 * 3600 / number)
        opening["f"]["started"] = started.isoformat(timespec="microseconds")
        opening["f"]["session"] = f"{index:016x}"
        tool = choose.choice(["book", "pay", "list", "show"])
        name = f"theatre-{started:%Y%m%dT%H%M%SZ}-1-{index}.mcprec.jsonl"
        content = json.dumps(opening, separators=(",", ":")) + "\n" + rest
        (folder / name).write_text(content.replace('"name":"book"', f'"name":"{tool}"'))


def seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def run_command(*arguments: str) -> None:
    """Run a command of mcp-trio."""
    subprocess.run(
        [sys.executable, "-m", "mcp_trio", *arguments], check=False, stdout=subprocess.DEVNULL
    )


def main() -> None:
    """Make the recordings, measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=int, default=100_000)
    options = parser.parse_args()
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        made = seconds(lambda: make_recordings(folder, options.recordings))
        rows.append(("make the recordings (not measured)", f"{made:.1f} s"))
        for title, arguments in (
            ("index from nothing, all processors", ("index", temporary)),
            ("index without a change", ("index", temporary)),
        ):
            rows.append((title, f"{seconds(lambda: run_command(*arguments)):.2f} s"))  # noqa: B023
        with Catalogue(folder) as catalogue:
            for query in QUERIES:
                found = catalogue.count(query)
                taken = seconds(lambda: catalogue.find(query, limit=100))  # noqa: B023
                rows.append((f"find {query}: {found} found, 100 rows", f"{taken:.3f} s"))
            rows.append(("statistics of all", f"{seconds(lambda: statistics(catalogue)):.2f} s"))
        command = ("find", temporary, QUERIES[0], "--no-update", "--limit", "100")
        rows.append(
            ("mcp-trio find --no-update", f"{seconds(lambda: run_command(*command)):.2f} s")
        )
        taken = seconds(lambda: run_command("find", temporary, QUERIES[0], "--limit", "100"))
        rows.append(("mcp-trio find", f"{taken:.2f} s"))
        taken = seconds(lambda: run_command("stats", temporary, "--no-update"))
        rows.append(("mcp-trio stats --no-update", f"{taken:.2f} s"))
        size = (folder / "catalogue.sqlite").stat().st_size / 2**20
        rows.append(("size of the catalogue", f"{size:.0f} MiB"))
    print_table(f"{options.recordings} recordings", ["work", "result"], rows)


if __name__ == "__main__":
    main()
