"""Talk with every peer, in both roles and at each revision: `python tools/interop/run.py`.

Prints a table for each transport and revision of all methods and features, by direction, peer and
role. The exit status is 1 if a cell is empty without an excuse, a session failed or was at another
revision, or a peer is missing.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from facts import FACTS
from interop_command import empty_table, parse, peer_parser, sdks, show, sit
from method_counts import Row, rows
from peers import ROLES, SDKS, TRANSPORTS, Peer, Transport
from rich.table import Table
from sessions import Outcome, hold
from unsupported import EXCUSES, Excuse

AT_ONCE: Final = 2
ARROWS: Final = {"client": "→", "server": "←"}


def hold_all(
    peers: Sequence[Peer],
    protocol_versions: Sequence[str],
    transports: Sequence[Transport],
    folder: Path,
) -> list[Outcome]:
    """Hold a session of each kind with each peer that speaks it, a few at once.

    Raises:
        MissingPeer: A peer is not installed.
    """
    for peer in peers:
        peer.require()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sessions = [
            pool.submit(hold, peer, role, protocol_version, transport, folder)
            for transport in transports
            for protocol_version in protocol_versions
            for peer in peers
            for role in ROLES
            if peer.speaks(role, protocol_version, transport)
        ]
        return [session.result() for session in sessions]


def excuse_of(row: Row, outcome: Outcome) -> Excuse | None:
    """Why a cell may be empty."""
    cell = (row.name, row.sender.value, outcome.protocol_version, outcome.peer.name, outcome.role)
    return next((excuse for excuse in EXCUSES if excuse.covers(*cell)), None)


def letter_of(excuse: Excuse) -> str:
    """What an excuse is called in the table."""
    return chr(ord("a") + EXCUSES.index(excuse))


def cell_of(row: Row, outcome: Outcome) -> str:
    """How often something passed, or why it did not."""
    if count := outcome.tally.seen(row):
        return str(count)
    excuse = excuse_of(row, outcome)
    return "[bold red]-[/]" if excuse is None else letter_of(excuse)


def table_of(protocol_version: str, transport: str, outcomes: Sequence[Outcome]) -> Table:
    """What passed in each session at a revision over a transport."""
    table = empty_table()
    table.add_column(
        f"{protocol_version}, {transport}\n\n→ by the client\n← by the server", no_wrap=True
    )
    table.add_column("")
    for outcome in outcomes:
        heading = (*outcome.peer.name.split(), outcome.peer.version, outcome.role)
        table.add_column("\n".join(heading), justify="right")
    for row in rows(protocol_version):
        cells = [cell_of(row, outcome) for outcome in outcomes]
        table.add_row(row.name, ARROWS[row.sender.value], *cells)
    table.add_section()
    table.add_row("revision", "", *(outcome.tally.protocol_version or "-" for outcome in outcomes))
    table.add_row("checks by the client", "", *(str(outcome.checks) for outcome in outcomes))
    table.add_row("seconds", "", *(f"{outcome.seconds:.1f}" for outcome in outcomes))
    return table


def complaints(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """What must not be, in sentences."""
    for outcome in outcomes:
        for fault in outcome.faults:
            yield f"{outcome.title}: {fault}"
        if outcome.tally.protocol_version != outcome.protocol_version:
            spoken = outcome.tally.protocol_version or "no protocol version"
            yield f"{outcome.title}: the session was at {spoken}"
        if empty := empty_rows(outcome):
            names = [f"{row.name} from the {row.sender.value}" for row in empty]
            yield f"{outcome.title}: no {', no '.join(names)}"


def unseen_rows(outcome: Outcome) -> list[Row]:
    """The rows that a session leaves empty."""
    return [row for row in rows(outcome.protocol_version) if not outcome.tally.seen(row)]


def empty_rows(outcome: Outcome) -> list[Row]:
    """The rows that a session leaves empty without an excuse."""
    return [row for row in unseen_rows(outcome) if excuse_of(row, outcome) is None]


def used_excuses(outcomes: Sequence[Outcome]) -> list[Excuse]:
    """The excuses that the tables need."""
    found = {excuse_of(row, outcome) for outcome in outcomes for row in unseen_rows(outcome)}
    return [excuse for excuse in EXCUSES if excuse in found]


def report(outcomes: Sequence[Outcome], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    for (protocol_version, transport), sessions in groupby(
        outcomes, attrgetter("protocol_version", "transport")
    ):
        show(table_of(protocol_version, transport, list(sessions)), ())
        print()
    for excuse in used_excuses(outcomes):
        print(f"{letter_of(excuse)}: {excuse.reason}")
    found = list(complaints(outcomes))
    show(None, found)
    cells = sum(len(rows(outcome.protocol_version)) for outcome in outcomes)
    empty = sum(len(empty_rows(outcome)) for outcome in outcomes)
    excused = sum(len(unseen_rows(outcome)) for outcome in outcomes) - empty
    checks = sum(outcome.checks for outcome in outcomes)
    print(
        f"{len(outcomes)} sessions, {cells} cells, {empty} empty, {excused} excused,"
        f" {checks} checks, {len(found)} complaints, {seconds:.0f} s,"
        f" {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )
    return not found


def main(arguments: list[str]) -> int:
    """Hold the sessions and report."""
    parser = peer_parser("Talk with every peer in both roles.", such_as="Python 2")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="leave the recordings there")
    parser.add_argument(
        "--protocol-version",
        action="append",
        choices=FACTS.protocol_versions,
        help="only at this one",
    )
    parser.add_argument("--transport", action="append", choices=TRANSPORTS, help="only over this")
    options = parse(parser, arguments, [peer.name for peer in SDKS])
    peers, protocol_versions = (
        sdks(options.peers),
        options.protocol_version or FACTS.protocol_versions,
    )
    transports = options.transport or TRANSPORTS
    return sit(
        lambda folder: hold_all(peers, protocol_versions, transports, options.keep or folder),
        report,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
