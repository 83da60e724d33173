"""Compare stateless and legacy calls: `python tools/bench/stateless_cost.py`.

Each server runs twice, with either version; all take turns, as in `stdio.py`, and their CPU time
counts (Linux only). The aim is that our stateless call costs at most 1.15 times a legacy one;
slowness is no failure.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

import attrs
from load import NEWEST_LEGACY, STATELESS_VERSION, ServerUnderLoad
from measuring import IN_FLIGHT, Effort, medians_of, print_table, ratio_text, ratios, turns
from servers import OURS, STATELESS_PEERS, BenchFolder

EFFORT: Final = Effort(rounds=5, turns=4, seconds=0.3)

ServerAtVersion = tuple[str, str]
"""A server, and the protocol version of its client."""

Figures = Mapping[ServerAtVersion, Mapping[int, Sequence[float]]]
"""Milliseconds of CPU per 1,000 calls: by calls in flight, one a round."""


def measure(effort: Effort, bench_folder: BenchFolder) -> Figures:
    def measure_round(round_: int) -> Iterator[tuple[ServerAtVersion, int, float]]:
        with ExitStack() as stack:
            servers = {
                (name, version): stack.enter_context(
                    ServerUnderLoad(command, bench_folder.environment(), version)
                )
                for name, command in bench_folder.stateless_commands().items()
                for version in (NEWEST_LEGACY, STATELESS_VERSION)
            }
            for server in servers.values():
                server.initialize()
            for name, in_flight, cost in turns(servers, IN_FLIGHT, effort, round_):
                yield name, in_flight, cost.cpu_ms_per_1000

    return medians_of(effort.rounds, measure_round)


def print_figures(figures: Figures) -> None:
    """Print both versions of each server, and their ratio within a round."""
    print_table(
        "server CPU per 1,000 calls, ms: legacy, stateless (ratio, lowest-highest)",
        ["add", *(f"{in_flight} in flight" for in_flight in IN_FLIGHT)],
        (
            [name, *(cell(figures, name, in_flight) for in_flight in IN_FLIGHT)]
            for name in (OURS, *STATELESS_PEERS)
        ),
    )


def cell(figures: Figures, name: str, in_flight: int) -> str:
    legacy, stateless = (
        figures[name, protocol_version][in_flight]
        for protocol_version in (NEWEST_LEGACY, STATELESS_VERSION)
    )
    medians = f"{statistics.median(legacy):.1f}, {statistics.median(stateless):.1f}"
    return f"{medians}  ({ratio_text(ratios(stateless, legacy))})"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure the cost of stateless calls.")
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    rounds = parser.parse_args(arguments).rounds or EFFORT.rounds
    effort = attrs.evolve(EFFORT, rounds=rounds)
    with BenchFolder.temporary() as bench_folder:
        print_figures(measure(effort, bench_folder))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
