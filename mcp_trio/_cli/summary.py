"""What a timeline adds up to: its requests by method, and the slowest of them."""

from collections.abc import Iterable, Iterator
from statistics import median
from typing import Final

import attrs

from mcp_trio._cli.tables import Column, Line
from mcp_trio._cli.terminal import printable, shortened
from mcp_trio._cli.timeline import Row, Tally

SLOWEST_MAX: Final = 3
_WHAT_COLUMNS_MAX: Final = 60
METHOD_COLUMNS: Final = (
    Column("method"),
    Column("requests", "right"),
    Column("answers", "right"),
    Column("errors", "right"),
    Column("cancelled", "right"),
    Column("median ms", "right"),
    Column("slowest ms", "right"),
)


@attrs.define
class _Exchange:
    """A request and what became of it."""

    method: str
    what: str
    record: int
    took_ms: float | None = None
    is_error: bool = False
    is_cancelled: bool = False


def exchanges(rows: Iterable[Row]) -> list[_Exchange]:
    """The requests of a timeline, in order; those of a batch are told apart by their ids."""
    found: dict[int, dict[int | str | None, _Exchange]] = {}
    for row in rows:
        if row.request is None:
            continue
        same = found.setdefault(row.request, {})
        if row.record == row.request:
            same[row.id] = _Exchange(row.method or "", row.what, row.request)
        elif row.id in same or len(same) == 1:
            _tell(same.get(row.id) or next(iter(same.values())), row)
    return [exchange for same in found.values() for exchange in same.values()]


def _tell(exchange: _Exchange, row: Row) -> None:
    if row.outcome == "cancelled":
        exchange.is_cancelled = True
    elif row.took_ms is not None:
        exchange.took_ms = row.took_ms
        exchange.is_error = row.outcome == "error"


def method_lines(found: Iterable[_Exchange]) -> list[Line]:
    """A line for each method, the most frequent first."""
    by_method: dict[str, list[_Exchange]] = {}
    for exchange in found:
        by_method.setdefault(exchange.method, []).append(exchange)
    lists = sorted(by_method.values(), key=len, reverse=True)
    return [Line(tuple(_cells(list_))) for list_ in lists]


def _cells(same: list[_Exchange]) -> Iterator[str]:
    answered = [exchange.took_ms for exchange in same if exchange.took_ms is not None]
    yield printable(same[0].method)
    yield str(len(same))
    yield str(len(answered))
    yield str(sum(exchange.is_error for exchange in same))
    yield str(sum(exchange.is_cancelled for exchange in same))
    yield f"{median(answered):.1f}" if answered else ""
    yield f"{max(answered):.1f}" if answered else ""


def slowest(found: Iterable[_Exchange]) -> str:
    """The slowest requests that were answered, in one line; empty if there are none."""
    answered = [(each.took_ms, each) for each in found if each.took_ms is not None]
    answered.sort(key=lambda pair: pair[0], reverse=True)
    return "; ".join(
        f"{took_ms:.1f} ms {shortened(printable(each.what), _WHAT_COLUMNS_MAX)}"
        f" (record {each.record})"
        for took_ms, each in answered[:SLOWEST_MAX]
    )


def totals(tally: Tally) -> str:
    """A tally in one line."""
    counts = attrs.asdict(tally, filter=lambda _, value: isinstance(value, int))
    revisions = ", ".join(map(printable, tally.revisions))
    spoken = (f"revision {revisions}",) if revisions else ()
    return ", ".join((*(f"{name} {count}" for name, count in counts.items()), *spoken))
