"""Everything is measured in rounds: in each, servers take turns, and the median of theirs counts.

So that ratios can be taken within a round, whatever else the machine does in another one.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import attrs
import msgspec
from load import Cost, ServerUnderLoad, rotated

Server = TypeVar("Server", bound=Hashable)
Row = TypeVar("Row", bound=Hashable)

Measurements: TypeAlias = Iterator[tuple[str, str, float]]
"""What a round comes to: a server, a row and a value, many times."""


@attrs.frozen(kw_only=True)
class Effort:
    """How long to look; a round has so many turns at each load."""

    rounds: int
    turns: int
    seconds: float


AnyEffort = TypeVar("AnyEffort", bound=Effort)


def medians_of(
    rounds: int, measure_round: Callable[[int], Iterable[tuple[Server, Row, float]]]
) -> Mapping[Server, Mapping[Row, Sequence[float]]]:
    """Each server's rows: for each round the median of what was measured in it."""
    results: dict[Server, dict[Row, list[float]]] = defaultdict(lambda: defaultdict(list))
    for round_ in range(rounds):
        samples: dict[tuple[Server, Row], list[float]] = defaultdict(list)
        for server, row, value in measure_round(round_):
            samples[server, row].append(value)
        for (server, row), values in samples.items():
            results[server][row].append(statistics.median(values))
        print(f"round {round_ + 1} of {rounds} is done", file=sys.stderr)
    return {server: dict(rows) for server, rows in results.items()}


def turns(
    servers: Mapping[Server, ServerUnderLoad], loads: Sequence[int], effort: Effort, round_: int
) -> Iterator[tuple[Server, int, Cost]]:
    """Put all servers under each load in turn, so many calls in flight; who goes first changes."""
    for in_flight in loads:
        for turn in range(effort.turns):
            for name in rotated(list(servers), turn + round_):
                cost = servers[name].add(in_flight=in_flight, seconds=effort.seconds)
                yield name, in_flight, cost


def add_rows(title: str, cost: Cost) -> Iterator[tuple[str, float]]:
    """What is told of a load of calls of `add`."""
    percentiles = statistics.quantiles(cost.call_seconds, n=100)
    yield f"{title}: CPU per 1,000, ms", cost.cpu_ms_per_1000
    yield f"{title}: p50, µs", percentiles[49] * 1_000_000
    yield f"{title}: p99, µs", percentiles[98] * 1_000_000
    yield f"{title}: /s", cost.calls_per_second


def function_calls(
    server: ServerUnderLoad, loads: Sequence[int], seconds: float
) -> Iterator[tuple[int, float]]:
    """How many functions a server that counts them calls for each `add`, by calls in flight."""
    server.initialize()
    for in_flight in loads:
        server.add(in_flight=in_flight, seconds=seconds)
        begin = int(server.call("function_calls").text)
        calls = len(server.add(in_flight=in_flight, seconds=seconds).call_seconds)
        count = int(server.call("function_calls").text) - begin
        yield in_flight, count / (calls + 1)


# What a command is told


def asked_for(
    arguments: Sequence[str], description: str, efforts: Mapping[bool, AnyEffort]
) -> tuple[AnyEffort, bool]:
    """How long to look, by whether that is to be quick; and whether to `print_json`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--json", action="store_true", help="print every value as JSON")
    options = parser.parse_args(arguments)
    effort = efforts[options.quick]
    if options.rounds:
        effort = attrs.evolve(effort, rounds=options.rounds)
    return effort, options.json


def print_json(results: Mapping[str, object], counts: object) -> None:
    """Print every value: of each server, and how many functions it calls."""
    everything = {"function calls": counts, **results}
    print(msgspec.json.format(msgspec.json.encode(everything)).decode())
