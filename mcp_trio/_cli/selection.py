"""Which rows of a timeline to show.

Two kinds of choices. A *window* is strict: what lies outside is not shown. A *condition* is about
what happened: a row that fulfils all conditions is shown together with the request that it is about
and the answer to that, so that neither stands there alone.
"""

from collections.abc import Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

import attrs
import click

if TYPE_CHECKING:
    from mcp_trio._cli.timeline import Row

_MS_PER_SECOND: Final = 1000


@attrs.frozen(kw_only=True)
class Selection:
    """What was chosen; None and empty: everything."""

    channel: int | None = None
    lane: str | None = None
    method: str | None = None
    id: str | None = None
    slower_than: float | None = None
    errors: bool = False
    kinds: Collection[str] = ()
    begin: "Bound | None" = None
    end: "Bound | None" = None

    def rows(self, rows: "Iterable[Row]") -> "Iterator[Row]":
        """The rows to show, in order."""
        in_window = [row for row in rows if self._is_in_window(row)]
        chosen = {place for place, row in enumerate(in_window) if self._fulfils(row)}
        requests = {in_window[place].first for place in chosen} - {None}
        for place, row in enumerate(in_window):
            if place in chosen or (row.first in requests and _is_end_of_exchange(row)):
                yield row

    def _is_in_window(self, row: "Row") -> bool:
        return (
            (self.channel is None or row.channel == self.channel)
            and (not self.kinds or row.kind in self.kinds)
            and (self.begin is None or self.begin.value <= self.begin.of(row))
            and (self.end is None or self.end.of(row) <= self.end.value)
        )

    def _fulfils(self, row: "Row") -> bool:
        return (
            (self.lane is None or _is_in_lane(row, self.lane))
            and (self.method is None or fnmatchcase(row.method or "", self.method))
            and (self.id is None or str(row.id) == self.id)
            and (self.slower_than is None or (row.took_ms or 0.0) > self.slower_than)
            and (not self.errors or row.outcome == "error")
        )


@attrs.frozen
class Bound:
    """One end of a window: a record's number, or seconds since the beginning."""

    value: float
    is_seconds: bool

    def of(self, row: "Row") -> float:
        """What of a row is compared with the bound."""
        if self.is_seconds:
            return (row.ms or 0.0) / _MS_PER_SECOND
        return row.record or 0


def bound(_: click.Context, __: click.Parameter, text: str | None) -> Bound | None:
    """The bound that was typed: `12` is a record, `1.5s` a time."""
    if text is None:
        return None
    number, is_seconds = text.removesuffix("s"), text.endswith("s")
    try:
        return Bound(float(number) if is_seconds else int(number), is_seconds)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is neither a record (12) nor a time in seconds (1.5s)"
        ) from None


def _is_in_lane(row: "Row", lane: str) -> bool:
    """Whether a row is of the lane, of a child of it, or a request that it handles."""
    own = row.lane or ""
    is_own = own == lane or own.startswith(f"{lane}.")
    return is_own or lane in {f"r{row.request}", f"r{row.story}"}


def _is_end_of_exchange(row: "Row") -> bool:
    """Whether a row is a request, or its answer: what begins or ends the exchange."""
    return row.id is not None and row.kind in {"in", "out"}
