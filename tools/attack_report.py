"""The report on attacks: tables, the complaints, and the exit status."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
from observed_process import Toll
from rich.table import Table

sys.path.append(str(Path(__file__).resolve().parent / "interop"))

from interop_command import new_table, show

LATE_SECONDS: Final = 5.0
"""After so long an answer to the client that means well is late."""


@attrs.frozen(kw_only=True)
class Suffered:
    """What an attack came to.

    Attributes:
        name: What was done.
        place: Over which transport, or at which host.
        told: What became of the connections.
        seconds: How long each lasted; None: the server kept it.
        wrong: What of that must not be, in sentences.
        toll: What it took.
        late_seconds: After how long an answer to the client that means well is late.
        may_fail_others: Whether calls of the client that means well may fail.
    """

    name: str
    place: str
    told: str
    seconds: Sequence[float | None]
    wrong: Sequence[str]
    toll: Toll
    late_seconds: float = LATE_SECONDS
    may_fail_others: bool = False

    def complaints(self) -> Iterator[str]:
        """All that must not be."""
        yield from self.wrong
        toll = self.toll
        if complaint := toll.left.complaint():
            yield complaint
        if None in toll.calls and not self.may_fail_others:
            yield f"{toll.calls.count(None)} calls of the other client failed"
        if toll.latest > self.late_seconds or not toll.calls:
            yield f"the other client was answered after {toll.latest:.1f} s"


def table_of(place: str, results: Sequence[Suffered]) -> Table:
    """What each attack came to in one place."""
    table = new_table()
    table.add_column(place, no_wrap=True)
    table.add_column("clients", justify="right")
    table.add_column("what they got")
    for heading in (
        "let go\nafter s",
        "CPU\nms",
        "RSS\nKiB",
        "left\nKiB",
        "left\nfds",
        "left\ntasks",
        "others'\ncalls",
        "latest\nms",
    ):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(result.name, *_cells(result))
    return table


def _cells(result: Suffered) -> Iterator[str]:
    toll = result.toll
    yield f"{len(result.seconds):,}"
    yield result.told
    yield f"{max((seconds or 0 for seconds in result.seconds), default=0):.2f}"
    yield f"{toll.cpu_ms:,.0f}"
    yield from (f"{kib:,.0f}" for kib in toll.rss_kib)
    yield from (f"{left}" for left in (toll.left.descriptors, toll.left.tasks))
    yield f"{len(toll.calls)}"
    yield f"{toll.latest * 1000:.0f}"


def report(results: Sequence[Suffered], what: str, seconds: float) -> bool:
    """Print everything; returns whether it is as it should be, which nothing at all is not."""
    found = [] if results else ["nothing was done"]
    show(None, found)
    for place in dict.fromkeys(each.place for each in results):
        there = [each for each in results if each.place == place]
        complaints = [
            f"{result.name}, {place}: {complaint} x{count}"
            for result in there
            for complaint, count in Counter(result.complaints()).items()
        ]
        show(table_of(place, there), complaints)
        print()
        found += complaints
    print(f"{len(results)} {what}, {len(found)} problems, {seconds:.0f} s")
    return not found
