"""Measure what recording costs and how fast a replay is: `python tools/bench/recording.py`.

The servers of a round are all alive at once and take turns, as in `stdio.py`; their CPU time comes
from the kernel (Linux only). The recordings that they leave are replayed in this process. Nothing
here fails for being slow.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import server_mcp_trio
import trio
import trio.testing
from load import ServerUnderLoad, rotated
from measures import IN_FLIGHT
from rich.console import Console
from rich.table import Table

from mcp_trio import Client, Context, Server
from mcp_trio.recording import ReplayReport, replay
from mcp_trio.transports import memory_pair

SERVER: Final = str(Path(__file__).resolve().parent / "server_mcp_trio.py")
SECONDS: Final = 0.3
TURNS: Final = 3

# Each server, its options, and the one that it is compared with.
SERVERS: Final[Mapping[str, tuple[Sequence[str], str]]] = {
    "not recorded": ((), "not recorded"),
    "recorded": (("--record",), "not recorded"),
    "recorded, redacted": (("--record", "--redact"), "not recorded"),
    "effects, not recorded": (("--effects",), "not recorded"),
    "effects, recorded": (("--effects", "--record"), "effects, not recorded"),
}

VIRTUAL_MINUTES: Final = 60

Figures = dict[str, dict[int, list[float]]]
"""Milliseconds of CPU per 1,000 calls: by server and calls in flight, one a round."""


def measure(rounds: int, folder: Path) -> Figures:
    """Each server's figures; the median of its turns, for each round."""
    figures: Figures = {name: {in_flight: [] for in_flight in IN_FLIGHT} for name in SERVERS}
    for round_ in range(rounds):
        with ExitStack() as stack:
            servers = {
                name: stack.enter_context(ServerUnderLoad(command(name, folder), os.environ))
                for name in SERVERS
            }
            for server in servers.values():
                server.initialize()
            for name, by_load in measure_round(servers, round_).items():
                for in_flight, values in by_load.items():
                    figures[name][in_flight].append(statistics.median(values))
        print(f"round {round_ + 1} of {rounds} is done", file=sys.stderr)
    return figures


def command(name: str, folder: Path) -> list[str]:
    """How a server is started; one that records leaves a file that is named after it."""
    options, _ = SERVERS[name]
    given = [sys.executable, SERVER, *options]
    if "--record" in options:
        given.insert(given.index("--record") + 1, str(recording_of(name, folder)))
    return given


def recording_of(name: str, folder: Path) -> Path:
    """What a server records to; each round anew."""
    return folder / f"{name.replace(', ', '-')}.mcprec.jsonl"


def measure_round(servers: Mapping[str, ServerUnderLoad], round_: int) -> Figures:
    """What each server takes at each turn; who goes first changes."""
    samples: Figures = defaultdict(lambda: defaultdict(list))
    for turn in range(TURNS):
        for name in rotated(list(servers), turn + round_):
            for in_flight in IN_FLIGHT:
                cost = servers[name].add(in_flight=in_flight, seconds=SECONDS)
                samples[name][in_flight].append(cost.cpu_ms_per_1000)
    return samples


def print_costs(figures: Figures) -> None:
    """A row a server: medians, and ratios to what it is compared with, taken within a round."""
    table = Table(title="server CPU per 1,000 calls, ms (ratio: lowest-highest round)")
    table.add_column("add")
    for in_flight in IN_FLIGHT:
        table.add_column(f"{in_flight} in flight", justify="right")
    for name, (_, other) in SERVERS.items():
        table.add_row(name, *(cost_cell(figures, name, other, load) for load in IN_FLIGHT))
    Console(width=140).print(table)


def cost_cell(figures: Figures, name: str, other: str, in_flight: int) -> str:
    """A median, and its ratio to that of the other server."""
    values = figures[name][in_flight]
    text = f"{statistics.median(values):.1f}"
    if name == other:
        return text
    ratios = [a / b for a, b in zip(values, figures[other][in_flight], strict=True)]
    return f"{text}  ({statistics.median(ratios):.2f}: {min(ratios):.2f}-{max(ratios):.2f})"


def print_replays(folder: Path) -> None:
    """How fast each recording of the last round is replayed."""
    for name, (options, _) in SERVERS.items():
        if "--record" in options and "--redact" not in options:
            if "--effects" in options:
                server_mcp_trio.use_effects()
            report, seconds = timed_replay(recording_of(name, folder), server_mcp_trio.server)
            print(
                f"replay, {name}: {report.records:,} records, {report.requests:,} requests in"
                f" {seconds:.2f} s: {report.records / seconds:,.0f} records/s,"
                f" {seconds * 1e6 / report.records:.0f} µs each"
            )


def timed_replay(path: Path, server: Server) -> tuple[ReplayReport, float]:
    """A replay, and how many seconds it took."""
    begin = time.perf_counter()
    report = replay(path, server)
    return report, time.perf_counter() - begin


def print_virtual_hour(folder: Path) -> None:
    """An hour of sleeps, recorded on a clock that jumps, and replayed."""
    server = Server("hour")

    @server.tool
    async def wait(*, ctx: Context) -> None:
        for minute in range(VIRTUAL_MINUTES):
            await ctx.sleep(60)
            await ctx.info(minute)

    async def session() -> None:
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: server.serve(ours, record=path))
            async with Client(theirs, log_level="info") as client:
                await client.call_tool("wait", idle_seconds=7200, total_seconds=7200)

    path = folder / "hour.mcprec.jsonl"
    trio.run(session, clock=trio.testing.MockClock(autojump_threshold=0))
    report, seconds = timed_replay(path, server)
    print(f"{report.recorded_seconds:,.0f} recorded seconds replayed in {seconds * 1000:.1f} ms")


def main(arguments: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Measure what recording and replay cost.")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as name:
        folder = Path(name)
        print_costs(measure(options.rounds, folder))
        print_replays(folder)
        print_virtual_hour(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
