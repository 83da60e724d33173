"""What we aim for, as ratios of cost, and whether a run meets it.

A ratio is taken within one round, against the best peer of that round or against ourselves without
recording. Nothing fails for missing an aim: times on a shared machine prove nothing by themselves.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import attrs
import imports
from measures import CROWDED, IN_FLIGHT
from servers import OURS, PEERS, RECORDING

Values: TypeAlias = Mapping[str, Sequence[float]]
"""A row's value in each round."""

Results: TypeAlias = Mapping[str, Values]
"""The rows of each server, by its name, and those of `IMPORTS`."""

IMPORTS: Final = "import"

RECORDING_SHARE: Final = 0.1


def ratios(values: Sequence[float], others: Sequence[float], *, row: str = "") -> list[float]:
    """How much dearer `values` are, round by round; those of a rate are turned round."""
    if is_rate(row):
        values, others = others, values
    return [value / other for value, other in zip(values, others, strict=True)]


def is_rate(row: str) -> bool:
    """Whether more is better."""
    return row.endswith("/s")


def best_peer(results: Results, row: str) -> list[float]:
    """The best that any peer reached in each round."""
    best = max if is_rate(row) else min
    peers = [results[peer][row] for peer in PEERS if row in results[peer]]
    return [best(values) for values in zip(*peers, strict=True)]


@attrs.frozen
class Aim:
    """At most so much of something, which `ratios_of` finds for each round."""

    text: str
    at_most: float
    ratios_of: Callable[[Results], Sequence[float]]


def _of_best(row: str, at_most: float, *, server: str = OURS) -> Aim:
    def ratios_of(results: Results) -> Sequence[float]:
        return ratios(results[server][row], best_peer(results, row), row=row)

    recording = ", recording" if server == RECORDING else ""
    return Aim(f"{_title(row)}{recording} ÷ best peer", at_most, ratios_of)


def _of_allowance(row: str, least: float) -> Aim:
    """What recording adds, as a multiple of what it may: 10 %, or `least` in the row's unit."""

    def ratios_of(results: Results) -> Sequence[float]:
        return [
            (recorded - plain) / max(plain * RECORDING_SHARE, least)
            for plain, recorded in zip(results[OURS][row], results[RECORDING][row], strict=True)
        ]

    return Aim(f"{_title(row)}: what recording adds ÷ what it may", 1.0, ratios_of)


def _of_unit(name: str) -> Aim:
    def ratios_of(results: Results) -> Sequence[float]:
        rows = results[IMPORTS]
        return ratios(rows[name], rows[imports.UNIT], row=name)

    return Aim(f"import of {name} ÷ {imports.UNIT}", 1.3, ratios_of)


def _title(row: str) -> str:
    return row.rpartition(":")[0]


_ADD: Final = {n: f"add, {n} in flight: CPU per 1,000, ms" for n in IN_FLIGHT}
_PROGRESS: Final = "progress: CPU per 1,000 notifications, ms"
_ECHO: Final = "echo 1 MiB: CPU per MB, ms"

# 3 µs a call, or a notification, is 3 ms for a thousand of them.
_US_3_PER_1000: Final = 3.0
_US_3_PER_MB: Final = 0.003

AIMS: Final = (
    _of_best(_ADD[1], 1.2),
    _of_best(_ADD[16], 0.9),
    _of_best(_ADD[128], 0.9),
    _of_best(_ADD[16], 1.0, server=RECORDING),
    _of_best(_ADD[128], 1.0, server=RECORDING),
    *(_of_allowance(row, _US_3_PER_1000) for row in (*_ADD.values(), _PROGRESS)),
    _of_allowance(_ECHO, _US_3_PER_MB),
    _of_best(_PROGRESS, 1.0),
    _of_best(_ECHO, 0.9),
    _of_best("start to first answer: CPU, ms", 0.8),
    _of_best(f"start with {CROWDED} to first answer: CPU, ms", 0.8),
    _of_best(f"tools/list, {CROWDED}, later: CPU, ms", 0.1),
    _of_unit("mcp_trio"),
    _of_unit("mcp_trio.Server"),
)
