"""What was measured, as tables: medians, and ratios taken within one round.

A ratio is a median over the rounds, with the lowest and the highest: the machine is shared, and
only what holds in every round is worth something.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import imports
from aims import AIMS, Aim, Results, Values, best_peer, ratios
from rich.console import Console
from rich.table import Table

BEST_PEER: Final = "the best peer"
"""Whichever that was in a round, in the place of a server's name."""

_NOTHING: Final = "-"


def print_figures(title: str, results: Results) -> None:
    """One row a measure of the first server, one column a server."""
    print_table(
        title,
        ["measure", *results],
        (
            [row, *(_figure(results[name].get(row)) for name in results)]
            for row in _first_of(results)
        ),
    )


def print_ratios(
    title: str,
    results: Results,
    columns: Mapping[str, tuple[str, str]],
    rows: Iterable[str] | None = None,
) -> None:
    """How much dearer one server is than another, in each column, for all rows of the first."""
    print_table(
        f"{title}: median, lowest-highest round; rates are turned round",
        ["measure", *columns],
        (
            [row, *(_ratio(results, row, one, other) for one, other in columns.values())]
            for row in rows or _first_of(results)
        ),
    )


def print_imports(rows: Values) -> None:
    """One row an import: its CPU, and that as a multiple of the unit's."""
    unit = rows[imports.UNIT]
    print_table(
        "import, CPU ms over the bare interpreter",
        ["import", "ms", f"÷ {imports.UNIT}"],
        (
            [name, _figure(values), ratio_text(ratios(values, unit, row=name))]
            for name, values in rows.items()
        ),
    )


def print_aims(results: Results, aims: Iterable[Aim] = AIMS) -> None:
    """Each aim, and whether the median meets it."""
    headings = ["ratio", "at most", "measured", ""]
    print_table("aims", headings, (_aim_cells(aim, results) for aim in aims))


def _aim_cells(aim: Aim, results: Results) -> list[str]:
    measured = aim.ratios_of(results)
    is_met = statistics.median(measured) <= aim.at_most
    return [aim.text, f"{aim.at_most:g}", ratio_text(measured), "met" if is_met else "MISSED"]


def _ratio(results: Results, row: str, one: str, other: str) -> str:
    values = results[one].get(row)
    others = best_peer(results, row) if other == BEST_PEER else results[other].get(row)
    return ratio_text(ratios(values, others, row=row)) if values and others else _NOTHING


def _first_of(results: Results) -> Values:
    return next(iter(results.values()))


def _figure(values: Sequence[float] | None) -> str:
    if not values:
        return _NOTHING
    value = statistics.median(values)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def ratio_text(values: Sequence[float]) -> str:
    """The median, and between what the rounds lie."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{statistics.median(values):.2f}, {min(values):.2f}-{max(values):.2f}"


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table, whose first column is of names."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if table.columns else "left")
    for row in rows:
        table.add_row(*row)
    _CONSOLE.print(table)


# Wide enough for every column, also when the output is no terminal.
_CONSOLE: Final = Console(width=180)
