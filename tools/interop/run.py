"""Talk with every peer, in both roles, and print what passed: `python tools/interop/run.py`.

A table of all methods of the protocol, by direction, peer and role. The exit status is 1 if a cell
is empty, a session failed or was at another revision, or a peer is missing.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from facts import FACTS
from peers import SDKS, Peer
from rich.table import Table
from sessions import Outcome, Role, hold
from sitting import empty_table, parse, peer_parser, sdks, show, sit
from tally import Row, rows

ROLES: Final[tuple[Role, ...]] = ("client", "server")
AT_ONCE: Final = 2
ARROWS: Final = {"client": "client → server", "server": "server → client"}


def hold_all(peers: Sequence[Peer], folder: Path) -> list[Outcome]:
    """Hold a session with each peer in each role, a few at once.

    Raises:
        MissingPeer: A peer is not installed.
    """
    for peer in peers:
        peer.require()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sessions = [pool.submit(hold, peer, role, folder) for peer in peers for role in ROLES]
        return [session.result() for session in sessions]


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """What passed in each session."""
    table = empty_table()
    table.add_column("method")
    table.add_column("direction")
    for outcome in outcomes:
        heading = f"{outcome.peer.name}\n{outcome.peer.version}\n{outcome.role}"
        table.add_column(heading, justify="right")
    for row in rows():
        counts = [outcome.tally.seen(row) for outcome in outcomes]
        cells = [str(count) if count else "[bold red]-[/]" for count in counts]
        table.add_row(row.name, ARROWS[row.sender.value], *cells)
    table.add_section()
    table.add_row("revision", "", *(outcome.tally.revision or "-" for outcome in outcomes))
    table.add_row("checks by the client", "", *(str(outcome.checks) for outcome in outcomes))
    table.add_row("seconds", "", *(f"{outcome.seconds:.1f}" for outcome in outcomes))
    return table


def complaints(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What must not be, in sentences."""
    for outcome in outcomes:
        for fault in outcome.faults:
            yield f"{outcome.title}: {fault}"
        if outcome.tally.revision != FACTS.revision:
            yield f"{outcome.title}: the session was not at revision {FACTS.revision}"
        if empty := empty_rows(outcome):
            names = [f"{row.name} from the {row.sender.value}" for row in empty]
            yield f"{outcome.title}: no {', no '.join(names)}"


def empty_rows(outcome: Outcome) -> list[Row]:
    """The rows that a session leaves empty."""
    return [row for row in rows() if not outcome.tally.seen(row)]


def report(outcomes: Sequence[Outcome], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    found = list(complaints(outcomes))
    show(table_of(outcomes), found)
    cells = len(outcomes) * len(rows())
    empty = sum(len(empty_rows(outcome)) for outcome in outcomes)
    checks = sum(outcome.checks for outcome in outcomes)
    print(
        f"{len(outcomes)} sessions, {cells} cells, {empty} empty, {checks} checks,"
        f" {len(found)} complaints, {seconds:.0f} s, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )
    return not found


def main(arguments: list[str]) -> int:
    """Hold the sessions and report."""
    parser = peer_parser("Talk with every peer in both roles.", such_as="Python 2")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave the recordings there")
    options = parse(parser, arguments, [peer.name for peer in SDKS])
    peers = sdks(options.peers)
    return sit(lambda folder: hold_all(peers, options.keep or folder), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
