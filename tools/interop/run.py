"""Run the scenario with every SDK, in both roles: `python tools/interop/run.py`.

For each transport and protocol version, print a table of all methods and features by direction,
SDK and role. The exit status is 1 if a cell is empty without an excuse, a session failed or used
another protocol version, or an SDK is not installed.
"""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import attrs
from facts import FACTS
from interop_command import new_table, parse, peer_parser, run_command, sdks, show, wrong
from method_counts import ERROR_ANSWER, Row, rows
from peers import ROLES, SDKS, TRANSPORTS, Peer, Role, Transport
from rich.table import Table
from sessions import Outcome, run_session

STATELESS: Final = ("2026-07-28",)


@attrs.frozen(kw_only=True)
class Excuse:
    """Why cells may be empty; None stands for every peer or every role."""

    reason: str
    rows: Sequence[str]
    sender: str
    protocol_versions: Sequence[str]
    peer: str | None = None
    role: Role | None = None

    def covers(self, name: str, sender: str, protocol_version: str, peer: str, role: Role) -> bool:
        return (
            name in self.rows
            and sender == self.sender
            and protocol_version in self.protocol_versions
            and self.peer in (None, peer)
            and self.role in (None, role)
        )


EXCUSES: Final = (
    Excuse(
        reason="a client without a session gets no requests: it has none to answer or report on",
        rows=(ERROR_ANSWER, "notifications/progress"),
        sender="client",
        protocol_versions=STATELESS,
    ),
    Excuse(
        reason="a server without a session sends no requests that it could give up",
        rows=("notifications/cancelled",),
        sender="server",
        protocol_versions=STATELESS,
    ),
)


AT_ONCE: Final = 2
ARROWS: Final = {"client": "→", "server": "←"}


def run_all(
    peers: Sequence[Peer],
    protocol_versions: Sequence[str],
    transports: Sequence[Transport],
    folder: Path,
) -> list[Outcome]:
    """Run a session of each kind with each peer that supports it, two at a time."""
    for peer in peers:
        peer.require()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        sessions = [
            pool.submit(run_session, peer, role, protocol_version, transport, folder)
            for transport in transports
            for protocol_version in protocol_versions
            for peer in peers
            for role in ROLES
            if peer.supports(role, protocol_version, transport)
        ]
        return [session.result() for session in sessions]


def excuse_of(row: Row, outcome: Outcome) -> Excuse | None:
    cell = (row.name, row.sender.value, outcome.protocol_version, outcome.peer.name, outcome.role)
    return next((excuse for excuse in EXCUSES if excuse.covers(*cell)), None)


def letter_of(excuse: Excuse) -> str:
    return chr(ord("a") + EXCUSES.index(excuse))


def cell_of(row: Row, outcome: Outcome) -> str:
    """Return the count, the letter of the excuse, or a red "-"."""
    if count := outcome.session_counts.seen(row):
        return str(count)
    excuse = excuse_of(row, outcome)
    return wrong("-") if excuse is None else letter_of(excuse)


def table_of(protocol_version: str, transport: str, outcomes: Sequence[Outcome]) -> Table:
    """Return the table of one protocol version over one transport."""
    title = f"{protocol_version}, {transport}\n\n→ by the client\n← by the server"
    headings = (
        "\n".join((*outcome.peer.name.split(), outcome.peer.version, outcome.role))
        for outcome in outcomes
    )
    table = new_table(title, "", right=headings)
    for row in rows(protocol_version):
        cells = [cell_of(row, outcome) for outcome in outcomes]
        table.add_row(row.name, ARROWS[row.sender.value], *cells)
    table.add_section()
    table.add_row(
        "protocol version",
        "",
        *(outcome.session_counts.protocol_version or "-" for outcome in outcomes),
    )
    table.add_row("checks by the client", "", *(str(outcome.checks) for outcome in outcomes))
    table.add_row("seconds", "", *(f"{outcome.seconds:.1f}" for outcome in outcomes))
    return table


def problems(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a sentence for each failure, wrong protocol version, and list of empty cells."""
    for outcome in outcomes:
        for failure in outcome.failures:
            yield f"{outcome.title}: {failure}"
        if outcome.session_counts.protocol_version != outcome.protocol_version:
            used = outcome.session_counts.protocol_version or "no protocol version"
            yield f"{outcome.title}: the session used {used}"
        if empty := unexcused_rows(outcome):
            names = [f"{row.name} from the {row.sender.value}" for row in empty]
            yield f"{outcome.title}: no {', no '.join(names)}"


def empty_rows(outcome: Outcome) -> list[Row]:
    return [row for row in rows(outcome.protocol_version) if not outcome.session_counts.seen(row)]


def unexcused_rows(outcome: Outcome) -> list[Row]:
    return [row for row in empty_rows(outcome) if excuse_of(row, outcome) is None]


def used_excuses(outcomes: Sequence[Outcome]) -> list[Excuse]:
    found = {excuse_of(row, outcome) for outcome in outcomes for row in empty_rows(outcome)}
    return [excuse for excuse in EXCUSES if excuse in found]


def report(outcomes: Sequence[Outcome], seconds: float) -> bool:
    """Print all tables and problems; return whether there are no problems."""
    for (protocol_version, transport), sessions in groupby(
        outcomes, attrgetter("protocol_version", "transport")
    ):
        show(table_of(protocol_version, transport, list(sessions)))
        print()
    for excuse in used_excuses(outcomes):
        print(f"{letter_of(excuse)}: {excuse.reason}")
    cells = sum(len(rows(outcome.protocol_version)) for outcome in outcomes)
    empty = sum(len(unexcused_rows(outcome)) for outcome in outcomes)
    excused = sum(len(empty_rows(outcome)) for outcome in outcomes) - empty
    checks = sum(outcome.checks for outcome in outcomes)
    summary = (
        f"{len(outcomes)} sessions, {cells} cells, {empty} empty, {excused} excused,"
        f" {checks} checks, {{}}, {seconds:.0f} s, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )
    return show(None, problems(outcomes), summary)


def main(arguments: list[str]) -> int:
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
    return run_command(
        lambda folder: run_all(peers, protocol_versions, transports, options.keep or folder),
        report,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
