"""What was measured, as tables: medians, and ratios taken within one round."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

Values = Mapping[str, Sequence[float]]
"""Each measure's value in each round."""


def print_servers(title: str, servers: Mapping[str, Values]) -> None:
    """One column a server; all but the first have their ratio to the first in brackets.

    The ratio is the median over the rounds, with the lowest and the highest: the machine is shared,
    and only what holds in every round is worth something.
    """
    names = list(servers)
    table = Table(title=title, title_justify="left")
    table.add_column("measure")
    for name in names:
        table.add_column(name, justify="right")
    ours = servers[names[0]]
    for measure in ours:
        theirs = [_beside(servers[name].get(measure, ()), ours[measure]) for name in names[1:]]
        table.add_row(measure, _number(statistics.median(ours[measure])), *theirs)
    _CONSOLE.print(table)


def print_imports(imports: Mapping[str, Sequence[float]], *, bare: str, unit: str) -> None:
    """One row an import: its CPU over the bare interpreter, and that as a multiple of `unit`'s."""
    over_bare = {
        name: [value - nothing for value, nothing in zip(values, imports[bare], strict=True)]
        for name, values in imports.items()
        if name != bare
    }
    table = Table(title="import, CPU ms over the bare interpreter", title_justify="left")
    for heading in ("import", "ms", f"of {unit}"):
        table.add_column(heading, justify="left" if heading == "import" else "right")
    for name, values in over_bare.items():
        table.add_row(name, _number(statistics.median(values)), _ratio(values, over_bare[unit]))
    _CONSOLE.print(table)


def _beside(values: Sequence[float], ours: Sequence[float]) -> str:
    if not values:
        return "-"
    return f"{_number(statistics.median(values))} ({_ratio(values, ours)})"


def _ratio(values: Sequence[float], others: Sequence[float]) -> str:
    ratios = [value / other for value, other in zip(values, others, strict=True)]
    if len(ratios) == 1:
        return f"{ratios[0]:.2f}"
    return f"{statistics.median(ratios):.2f}, {min(ratios):.2f}-{max(ratios):.2f}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# Wide enough for every column, also when the output is no terminal.
_CONSOLE: Final = Console(width=160)
