"""Measure what a modern call costs beside a legacy one: `python tools/bench/modern_cost.py`.

Each server of a round is there once for each era; all are alive at once and take turns, as in
`stdio.py`. What counts is the server's CPU time, from the kernel (Linux only). Nothing here fails
for being slow: the aim is that a modern call of ours costs at most 1.15 of a legacy one.
"""

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from load import MODERN, ServerUnderLoad, rotated
from measures import IN_FLIGHT
from rich.console import Console
from rich.table import Table
from servers import MODERN_PEERS, OURS, Workshop

NEWEST_LEGACY: Final = "2025-11-25"
SECONDS: Final = 0.3
TURNS: Final = 4

Place = tuple[str, str]
"""A server, and the revision that it is spoken to."""

Figures = Mapping[Place, Mapping[int, Sequence[float]]]
"""Milliseconds of CPU per 1,000 calls: by calls in flight, one a round."""


def measure(rounds: int, workshop: Workshop) -> Figures:
    """Each server's figures; the median of its turns, for each round."""
    figures: dict[Place, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    environment = workshop.environment()
    for round_ in range(rounds):
        with ExitStack() as stack:
            servers = {
                (name, revision): stack.enter_context(
                    ServerUnderLoad(command, environment, revision)
                )
                for name, command in workshop.modern_commands().items()
                for revision in (NEWEST_LEGACY, MODERN)
            }
            for server in servers.values():
                server.initialize()
            for place, by_load in measure_round(servers, round_).items():
                for in_flight, values in by_load.items():
                    figures[place][in_flight].append(statistics.median(values))
        print(f"round {round_ + 1} of {rounds} is done", file=sys.stderr)
    return figures


def measure_round(servers: Mapping[Place, ServerUnderLoad], round_: int) -> Figures:
    """What each server takes at each turn; who goes first changes."""
    samples: dict[Place, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    places = [f"{name}\n{revision}" for name, revision in servers]
    for turn in range(TURNS):
        for said in rotated(places, turn + round_):
            name, _, revision = said.partition("\n")
            for in_flight in IN_FLIGHT:
                cost = servers[name, revision].add(in_flight=in_flight, seconds=SECONDS)
                samples[name, revision][in_flight].append(cost.cpu_ms_per_1000)
    return samples


def print_figures(figures: Figures) -> None:
    """A row a server: both eras, and the ratio of the modern one, taken within a round."""
    table = Table(title="server CPU per 1,000 calls, ms: legacy, modern (ratio: lowest-highest)")
    table.add_column("add")
    for in_flight in IN_FLIGHT:
        table.add_column(f"{in_flight} in flight", justify="right")
    for name in (OURS, *MODERN_PEERS):
        table.add_row(name, *(cell(figures, name, in_flight) for in_flight in IN_FLIGHT))
    Console(width=140).print(table)


def cell(figures: Figures, name: str, in_flight: int) -> str:
    """Two medians, and how they stand to each other."""
    legacy, modern = (figures[name, era][in_flight] for era in (NEWEST_LEGACY, MODERN))
    ratios = [a / b for a, b in zip(modern, legacy, strict=True)]
    medians = f"{statistics.median(legacy):.1f}, {statistics.median(modern):.1f}"
    return f"{medians}  ({statistics.median(ratios):.2f}: {min(ratios):.2f}-{max(ratios):.2f})"


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what a modern call costs.")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as name:
        print_figures(measure(options.rounds, Workshop(Path(name))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
