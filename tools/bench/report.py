"""What was measured, as tables: medians, and ratios taken within one round.

A ratio is a median over the rounds, with the lowest and the highest: the machine is shared, and
only what holds in every round is worth something.
"""

import statistics
from collections.abc import Iterable, Sequence
from typing import Final

import imports
from aims import AIMS, Aim, Results, Values, best_peer, ratios
from rich.console import Console
from rich.table import Table
from servers import OURS, PEERS, RECORDING

_NOTHING: Final = "-"
_RECORDING_RATIOS: Final = ("recording ÷ best peer", "recording ÷ none")


def print_figures(title: str, results: Results) -> None:
    """One row a measure, one column a server."""
    print_table(
        title,
        ["measure", *results],
        ([row, *(_figure(results[name].get(row)) for name in results)] for row in _rows(results)),
    )


def print_ratios(results: Results) -> None:
    """How much dearer we are than each peer, than the best of them, and than without recording."""
    print_table(
        "our cost ÷ theirs: median, lowest-highest round; rates are turned round",
        ["measure", "÷ best peer", *(f"÷ {peer}" for peer in PEERS), *_RECORDING_RATIOS],
        ([row, *_ratio_cells(results, row)] for row in _rows(results)),
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


def _ratio_cells(results: Results, row: str) -> list[str]:
    ours, recording, best = results[OURS][row], results[RECORDING][row], best_peer(results, row)
    pairs = [(ours, best), *((ours, results[peer].get(row)) for peer in PEERS)]
    pairs += [(recording, best), (recording, ours)]
    return [ratio_text(ratios(a, b, row=row)) if b else _NOTHING for a, b in pairs]


def _rows(results: Results) -> Iterable[str]:
    return results[OURS]


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
