"""Measure the cost of recording and the speed of replay: `python tools/bench/recording.py`.

The servers take turns, as in `stdio.py`, and their CPU time counts (Linux only). Their recordings
are replayed in this process. Slowness is no failure.
"""

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import server_mcp_trio
import trio
import trio.testing
from load import ServerUnderLoad
from measuring import (
    IN_FLIGHT,
    Effort,
    cpu_of_loads,
    print_table,
    ratio_text,
    ratios,
    with_rounds,
)

from mcp_trio import Client, Context, Server
from mcp_trio.recording import ReplayReport, replay
from mcp_trio.transports import memory_pair

SERVER: Final = str(Path(__file__).resolve().parent / "server_mcp_trio.py")
EFFORT: Final = Effort(rounds=5, turns=3, seconds=0.3)

# Each server, its options, and the one that it is compared with.
SERVERS: Final[Mapping[str, tuple[Sequence[str], str]]] = {
    "not recorded": ((), "not recorded"),
    "recorded": (("--record",), "not recorded"),
    "recorded, redacted": (("--record", "--redact"), "not recorded"),
    "effects, not recorded": (("--effects",), "not recorded"),
    "effects, recorded": (("--effects", "--record"), "effects, not recorded"),
}

VIRTUAL_MINUTES: Final = 60

Figures = Mapping[str, Mapping[int, Sequence[float]]]
"""Milliseconds of CPU per 1,000 calls: by server and calls in flight, one a round."""


def measure(effort: Effort, folder: Path) -> Figures:
    def start(stack: ExitStack) -> Mapping[str, ServerUnderLoad]:
        return {
            name: stack.enter_context(ServerUnderLoad(command(name, folder), os.environ))
            for name in SERVERS
        }

    return cpu_of_loads(effort, start)


def command(name: str, folder: Path) -> list[str]:
    options, _ = SERVERS[name]
    given = [sys.executable, SERVER, *options]
    if "--record" in options:
        given.insert(given.index("--record") + 1, str(recording_of(name, folder)))
    return given


def recording_of(name: str, folder: Path) -> Path:
    return folder / f"{name.replace(', ', '-')}.mcprec.jsonl"


def print_costs(figures: Figures) -> None:
    """Print each server's medians, and ratios within a round."""
    print_table(
        "server CPU per 1,000 calls, ms (ratio, lowest-highest round)",
        ["add", *(f"{in_flight} in flight" for in_flight in IN_FLIGHT)],
        (
            [name, *(cost_cell(figures, name, other, load) for load in IN_FLIGHT)]
            for name, (_, other) in SERVERS.items()
        ),
    )


def cost_cell(figures: Figures, name: str, other: str, in_flight: int) -> str:
    values = figures[name][in_flight]
    text = f"{statistics.median(values):.1f}"
    if name == other:
        return text
    return f"{text}  ({ratio_text(ratios(values, figures[other][in_flight]))})"


def print_replays(folder: Path) -> None:
    """Print the replay speed of each recording of the last round."""
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
    begin = time.perf_counter()
    report = replay(path, server)
    return report, time.perf_counter() - begin


def print_virtual_hour(folder: Path) -> None:
    """Record an hour of sleeps with a virtual clock, and print the replay's duration."""
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
    effort = with_rounds(EFFORT, arguments, "Measure the cost of recording and replay.")
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as name:
        folder = Path(name)
        print_costs(measure(effort, folder))
        print_replays(folder)
        print_virtual_hour(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
