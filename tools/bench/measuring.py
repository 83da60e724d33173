"""Measure servers in rounds, and print medians, ratios and aims.

In each round the servers take turns, and the median of a server's turns counts. A ratio is taken
within one round, whatever else the shared machine does in other rounds: it is printed as the median
over the rounds, with the lowest and the highest. No command fails because of a missed aim.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

import attrs
from load import Cost, ServerUnderLoad, rotated
from rich.console import Console
from rich.table import Table
from servers import PEERS

IN_FLIGHT: Final = (1, 16, 128)

Server = TypeVar("Server", bound=Hashable)
Row = TypeVar("Row", bound=Hashable)

Measurements: TypeAlias = Iterator[tuple[str, str, float]]
"""The measured values of a round: server, row and value."""


@attrs.frozen(kw_only=True)
class Effort:
    """The number of rounds, of turns in each, and the seconds of each load."""

    rounds: int
    turns: int
    seconds: float


AnyEffort = TypeVar("AnyEffort", bound=Effort)


def medians_of(
    rounds: int, measure_round: Callable[[int], Iterable[tuple[Server, Row, float]]]
) -> Mapping[Server, Mapping[Row, Sequence[float]]]:
    """Return each server's rows: for each round the median of its measured values."""
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
    """Put all servers under each load in turn; the order of servers changes."""
    for in_flight in loads:
        for turn in range(effort.turns):
            for name in rotated(list(servers), turn + round_):
                cost = servers[name].add(in_flight=in_flight, seconds=effort.seconds)
                yield name, in_flight, cost


def add_rows(title: str, cost: Cost) -> Iterator[tuple[str, float]]:
    """Yield the figures of a load of `add` calls."""
    percentiles = statistics.quantiles(cost.call_seconds, n=100)
    yield f"{title}: CPU per 1,000, ms", cost.cpu_ms_per_1000
    yield f"{title}: p50, µs", percentiles[49] * 1_000_000
    yield f"{title}: p99, µs", percentiles[98] * 1_000_000
    yield f"{title}: /s", cost.calls_per_second


def function_calls(
    server: ServerUnderLoad, loads: Sequence[int], seconds: float
) -> Iterator[tuple[int, float]]:
    """Yield how many functions a counting server calls for each `add`, by calls in flight."""
    server.initialize()
    for in_flight in loads:
        server.add(in_flight=in_flight, seconds=seconds)
        begin = int(server.call("function_calls").text)
        calls = len(server.add(in_flight=in_flight, seconds=seconds).call_seconds)
        count = int(server.call("function_calls").text) - begin
        yield in_flight, count / (calls + 1)


# Command-line options.


def effort_from(
    arguments: Sequence[str], description: str, efforts: Mapping[bool, AnyEffort]
) -> AnyEffort:
    """Parse the arguments, and return the effort."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    parser.add_argument("--quick", action="store_true", help="one short round")
    options = parser.parse_args(arguments)
    effort = efforts[options.quick]
    if options.rounds:
        effort = attrs.evolve(effort, rounds=options.rounds)
    return effort


Values: TypeAlias = Mapping[str, Sequence[float]]
"""A row's value in each round."""

Results: TypeAlias = Mapping[str, Values]
"""The rows of each server, by its name, and those of `IMPORTS`."""


def ratios(values: Sequence[float], others: Sequence[float], *, row: str = "") -> list[float]:
    """Return the ratio of costs in each round; rates are inverted."""
    if is_rate(row):
        values, others = others, values
    return [value / other for value, other in zip(values, others, strict=True)]


def is_rate(row: str) -> bool:
    """Return whether a higher value is better."""
    return row.endswith("/s")


def best_peer_values(results: Results, row: str) -> list[float]:
    """Return the best value of any peer in each round."""
    best = max if is_rate(row) else min
    peers = [results[peer][row] for peer in PEERS if row in results[peer]]
    return [best(values) for values in zip(*peers, strict=True)]


@attrs.frozen
class Aim:
    """An upper limit of a figure, which `ratios_of` returns for each round."""

    text: str
    at_most: float
    ratios_of: Callable[[Results], Sequence[float]]


BEST_PEER: Final = "the best peer"
"""Stands for the best peer of each round, in place of a server's name."""

_NO_VALUE: Final = "-"


def print_figures(title: str, results: Results) -> None:
    """Print a row for each figure of the first server, a column for each server."""
    print_table(
        title,
        ["measure", *results],
        (
            [row, *(figure_text(results[name].get(row)) for name in results)]
            for row in _first_of(results)
        ),
    )


def print_ratios(
    title: str,
    results: Results,
    columns: Mapping[str, tuple[str, str]],
    rows: Iterable[str] | None = None,
) -> None:
    """Print one server's costs divided by another's, for each column's pair."""
    print_table(
        f"{title}: median, lowest-highest round; rates are inverted",
        ["measure", *columns],
        (
            [row, *(_ratio(results, row, one, other) for one, other in columns.values())]
            for row in rows or _first_of(results)
        ),
    )


def print_aims(results: Results, aims: Iterable[Aim]) -> None:
    """Print each aim, and whether the median meets it."""
    headings = ["ratio", "at most", "measured", ""]
    print_table("aims", headings, (_aim_cells(aim, results) for aim in aims))


def _aim_cells(aim: Aim, results: Results) -> list[str]:
    measured = aim.ratios_of(results)
    is_met = statistics.median(measured) <= aim.at_most
    return [aim.text, f"{aim.at_most:g}", ratio_text(measured), "met" if is_met else "MISSED"]


def _ratio(results: Results, row: str, one: str, other: str) -> str:
    values = results[one].get(row)
    others = best_peer_values(results, row) if other == BEST_PEER else results[other].get(row)
    return ratio_text(ratios(values, others, row=row)) if values and others else _NO_VALUE


def _first_of(results: Results) -> Values:
    return next(iter(results.values()))


def figure_text(values: Sequence[float] | None) -> str:
    if not values:
        return _NO_VALUE
    value = statistics.median(values)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio_text(values: Sequence[float]) -> str:
    """Return the median, and the range of the rounds."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.median(values):.2f}, {min(values):.2f}-{max(values):.2f}"


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table whose first column has names."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if table.columns else "left")
    for row in rows:
        table.add_row(*row)
    _CONSOLE.print(table)


# Wide enough for every column, also when the output is no terminal.
_CONSOLE: Final = Console(width=180)
