"""Measure the catalogue and the replay of a large folder: `python tools/bench/catalogue.py`.

The recordings are copies of a few real sessions with other times, session ids and tools. With
`--folder` they are made once, and reused. The times of the commands are printed: index from nothing
(in all processors), index without a change, find, stats, the page of stats, and the replay of the
recordings of one tool in parallel processes. Slowness is no failure.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import trio
from catalogue_server import TOOLS, server
from measuring import print_table

from mcp_trio import Client
from mcp_trio._journal.records import OpenBody, RecordEncoder, decode_body, encode_body
from mcp_trio.recording import (
    Catalogue,
    Record,
    RecordOptions,
    open_recording,
    read_recording,
    statistics,
)

BEGIN: Final = datetime(2026, 11, 1, tzinfo=UTC)
DAYS: Final = 30
ERROR_SHARE: Final = 0.01
QUERIES: Final = (
    "tool:book error:tool slower:0.01ms",
    "user:ada after:2026-11-20",
    'text:"seat taken"',
    "error:any -tool:pay",
    "trace:0af7651916cd43dd8448eb211c80319c",
)
REPLAYED: Final = "tool:pay"
TARGET: Final = Path(__file__).with_name("catalogue_server.py")


async def record_sessions(folder: Path) -> None:
    """Record, of each tool, one session without and one with an error."""
    for tool in TOOLS:
        for seats in (["A1", "A2", "A3"], ["A1", "taken", "A2"]):
            path = folder / f"{tool}-{'taken' in seats:d}.mcprec.jsonl"
            server.record = RecordOptions(path)
            async with Client(server, raise_tool_errors=False) as client:
                for seat in seats:
                    await client.call_tool(tool, {"seat": seat})


def make_recordings(folder: Path, number: int) -> None:
    """Write so many recordings, which differ in time, session and tool."""
    templates: dict[tuple[str, bool], Sequence[Record]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        trio.run(record_sessions, Path(temporary))
        for tool in TOOLS:
            for fails in (False, True):
                file = Path(temporary) / f"{tool}-{fails:d}.mcprec.jsonl"
                read = read_recording(open_recording(file))
                templates[tool, fails] = [each for each in read if isinstance(each, Record)]
    choose = random.Random(1)
    for index in range(number):
        (tool,) = choose.choices([*TOOLS], [*TOOLS.values()])
        opened, *others = templates[tool, choose.random() < ERROR_SHARE]
        started = BEGIN + timedelta(days=index * DAYS / number)
        opening = msgspec.structs.replace(
            decode_body(opened, OpenBody),
            started=started.isoformat(timespec="microseconds"),
            session=f"{index:016x}",
        )
        slowness = choose.lognormvariate(0, 0.5)
        encoder = RecordEncoder()
        copies = [msgspec.structs.replace(opened, body=msgspec.Raw(encode_body(opening)))]
        copies += (
            msgspec.structs.replace(each, time_ns=round(each.time_ns * slowness), digest=None)
            for each in others
        )
        name = f"theatre-{started:%Y%m%dT%H%M%SZ}-1-{index}.mcprec.jsonl"
        (folder / name).write_bytes(encoder.lines(copies))


def seconds(work: Callable[[], object]) -> float:
    """Return how long some work takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def run_command(*arguments: str) -> str:
    """Run a command of mcp-trio; return the first line of its output."""
    command = [sys.executable, "-m", "mcp_trio", *arguments]
    output = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True).stdout
    return output.partition("\n")[0]


def measure(folder: Path, number: int) -> None:
    """Make the recordings, unless they are there, measure, and print a table."""
    rows: list[tuple[str, str]] = []

    def add_row(title: str, work: Callable[[], object]) -> None:
        rows.append((title, f"{seconds(work):.2f} s"))
        print(*rows[-1], sep=": ", file=sys.stderr)

    if not any(folder.glob("*.mcprec.jsonl")):
        add_row("make the recordings (not a command)", lambda: make_recordings(folder, number))
    for suffix in ("", "-wal", "-shm"):
        (folder / f"catalogue.sqlite{suffix}").unlink(missing_ok=True)
    text, page = str(folder), str(folder / "stats.html")
    add_row("index from nothing, all processors", lambda: run_command("index", text))
    add_row("index without a change", lambda: run_command("index", text))
    with Catalogue(folder) as catalogue:
        for query in QUERIES:
            found = catalogue.count(query)
            add_row(
                f"find {query}: {found} found, 100 rows",
                lambda: catalogue.find(query, limit=100),  # noqa: B023
            )
        add_row("statistics of all", lambda: statistics(catalogue))
    command = ("find", text, QUERIES[0], "--limit", "100")
    add_row("mcp-trio find", lambda: run_command(*command))
    add_row("mcp-trio find --no-update", lambda: run_command(*command, "--no-update"))
    add_row("mcp-trio stats", lambda: run_command("stats", text))
    add_row("mcp-trio stats --page", lambda: run_command("stats", text, "--page", page))
    summary = list[str]()
    command = ("replay", text, str(TARGET), "--where", REPLAYED)
    add_row(
        f"mcp-trio replay --where {REPLAYED}",
        lambda: summary.append(run_command(*command)),
    )
    size = (folder / "catalogue.sqlite").stat().st_size / 2**20
    rows.append(("size of the catalogue", f"{size:.0f} MiB"))
    print_table(f"{number} recordings", ["work", "result"], rows)
    print(*summary)


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recordings", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="make the recordings here, or reuse these")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        measure(folder, options.recordings)


if __name__ == "__main__":
    main()
