"""Measure a stateless call beside a legacy one: `python tools/bench/stateless_cost.py`.

Each server of a round is there once for each era; all are alive at once and take turns, as in
`stdio.py`. What counts is the server's CPU time, from the kernel (Linux only). Nothing here fails
for being slow: the aim is that a stateless call of ours costs at most 1.15 of a legacy one.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
from aims import ratios
from load import NEWEST_LEGACY, STATELESS_VERSION, ServerUnderLoad
from measures import IN_FLIGHT
from report import print_table, ratio_text
from rounds import Effort, medians_of, turns
from servers import OURS, STATELESS_PEERS, Workshop

EFFORT: Final = Effort(rounds=5, turns=4, seconds=0.3)

Place = tuple[str, str]
"""A server, and the revision that it is spoken to."""

Figures = Mapping[Place, Mapping[int, Sequence[float]]]
"""Milliseconds of CPU per 1,000 calls: by calls in flight, one a round."""


def measure(effort: Effort, workshop: Workshop) -> Figures:
    """Each server's figures; the median of its turns, for each round."""
    environment = workshop.environment()

    def measure_round(round_: int) -> Iterator[tuple[Place, int, float]]:
        with ExitStack() as stack:
            servers = {
                (name, protocol_version): stack.enter_context(
                    ServerUnderLoad(command, environment, protocol_version)
                )
                for name, command in workshop.stateless_commands().items()
                for protocol_version in (NEWEST_LEGACY, STATELESS_VERSION)
            }
            for server in servers.values():
                server.initialize()
            for place, in_flight, cost in turns(servers, IN_FLIGHT, effort, round_):
                yield place, in_flight, cost.cpu_ms_per_1000

    return medians_of(effort.rounds, measure_round)


def print_figures(figures: Figures) -> None:
    """A row a server: both eras, and the ratio of the stateless one, taken within a round."""
    print_table(
        "server CPU per 1,000 calls, ms: legacy, stateless (ratio, lowest-highest)",
        ["add", *(f"{in_flight} in flight" for in_flight in IN_FLIGHT)],
        (
            [name, *(cell(figures, name, in_flight) for in_flight in IN_FLIGHT)]
            for name in (OURS, *STATELESS_PEERS)
        ),
    )


def cell(figures: Figures, name: str, in_flight: int) -> str:
    """Two medians, and how they stand to each other."""
    legacy, stateless = (
        figures[name, era][in_flight] for era in (NEWEST_LEGACY, STATELESS_VERSION)
    )
    medians = f"{statistics.median(legacy):.1f}, {statistics.median(stateless):.1f}"
    return f"{medians}  ({ratio_text(ratios(stateless, legacy))})"


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what a stateless call costs.")
    parser.add_argument(
        "--rounds", type=int, default=EFFORT.rounds, help="how often everything is measured"
    )
    effort = attrs.evolve(EFFORT, rounds=parser.parse_args(arguments).rounds)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as name:
        print_figures(measure(effort, Workshop(Path(name))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
