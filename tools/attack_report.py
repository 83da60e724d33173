"""The report of attacks and faults: tables and problems."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
from observed_process import Cost
from rich.table import Table

sys.path.append(str(Path(__file__).resolve().parent / "interop"))

from interop_command import new_table, show

LATE_SECONDS: Final = 5.0
"""The delay in seconds after which an answer to the other client is late."""


@attrs.frozen(kw_only=True)
class AttackResult:
    """The result of one attack or fault.

    Attributes:
        name: The attack.
        target: The transport, or the HTTP host.
        outcomes: How the connections ended.
        seconds: How long each lasted; None if the server did not close it.
        violations: Sentences about outcomes that are not allowed.
        cost: The cost of the attack.
        late_seconds: The delay after which an answer to the other client is late.
        may_fail_others: Whether calls of the other client may fail.
    """

    name: str
    target: str
    outcomes: str
    seconds: Sequence[float | None]
    violations: Sequence[str]
    cost: Cost
    late_seconds: float = LATE_SECONDS
    may_fail_others: bool = False

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each problem."""
        yield from self.violations
        cost = self.cost
        if problem := cost.left.problem():
            yield problem
        if None in cost.calls and not self.may_fail_others:
            yield f"{cost.calls.count(None)} calls of the other client failed"
        if cost.latest > self.late_seconds or not cost.calls:
            yield f"the other client was answered after {cost.latest:.1f} s"


def table_of(target: str, results: Sequence[AttackResult]) -> Table:
    """Return the table of one target's results."""
    table = new_table()
    table.add_column(target, no_wrap=True)
    table.add_column("clients", justify="right")
    table.add_column("outcomes")
    for heading in (
        "closed\nafter s",
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


def _cells(result: AttackResult) -> Iterator[str]:
    cost = result.cost
    yield f"{len(result.seconds):,}"
    yield result.outcomes
    yield f"{max((seconds or 0 for seconds in result.seconds), default=0):.2f}"
    yield f"{cost.cpu_ms:,.0f}"
    yield from (f"{kib:,.0f}" for kib in cost.rss_kib)
    yield from (f"{left}" for left in (cost.left.descriptors, cost.left.tasks))
    yield f"{len(cost.calls)}"
    yield f"{cost.latest * 1000:.0f}"


def report(results: Sequence[AttackResult], what: str, seconds: float) -> bool:
    """Print all tables and problems; return whether there are results and no problems."""
    found = [] if results else ["nothing was done"]
    show(None, found)
    for target in dict.fromkeys(each.target for each in results):
        there = [each for each in results if each.target == target]
        problems = [
            f"{result.name}, {target}: {problem} x{count}"
            for result in there
            for problem, count in Counter(result.problems()).items()
        ]
        show(table_of(target, there), problems)
        print()
        found += problems
    print(f"{len(results)} {what}, {len(found)} problems, {seconds:.0f} s")
    return not found
