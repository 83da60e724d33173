"""Pair clients and servers of each protocol version: `python tools/interop/protocol_versions.py`.

Clients and servers of ours, and of the SDKs, are held to one era or speak both; each of ours meets
all of the others, and ours, over stdio or with `--transport` over Streamable HTTP or WebSocket.
Prints what was expected and what came of it. The exit status is 1 if something else came of it, or
a peer is missing.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Final

import attrs
from facts import ERAS, FACTS
from interop_command import empty_table, parse, peer_parser, sdks, show, sit
from peers import LEGACY, SDKS, Command, Peer, Transport
from rich.table import Table
from server_location import ServerFailed, reachable
from sessions import OUR_CLIENT, OUR_SERVER, THEIR_SERVERS

AT_ONCE: Final = 2
SESSION_SECONDS: Final = 30.0
OURS: Final = "mcp_trio"
REJECTED: Final = "rejected"

_OLD, _NEW = LEGACY[-1], FACTS.protocol_versions[-1]

# What comes of a client of one era and a server of another.
EXPECTED: Final[Mapping[tuple[str, str], str]] = {
    ("legacy", "legacy"): _OLD,
    ("legacy", "both"): _OLD,
    ("legacy", "stateless"): REJECTED,
    ("both", "legacy"): _OLD,
    ("both", "both"): _NEW,
    ("both", "stateless"): _NEW,
    ("stateless", "legacy"): REJECTED,
    ("stateless", "both"): _NEW,
    ("stateless", "stateless"): _NEW,
}

_SPOKEN: Final[Mapping[str, Sequence[str]]] = {
    "legacy": LEGACY,
    "both": FACTS.protocol_versions,
    "stateless": [_NEW],
}


@attrs.frozen
class Party:
    """One side that speaks to an era, and the command that starts it."""

    name: str
    era: str
    command: tuple[str, ...]


@attrs.frozen
class Meeting:
    """A client that met a server, and what came of it: a revision, or `rejected` and why."""

    client: Party
    server: Party
    observed: str
    reason: str

    @property
    def expected(self) -> str:
        """What should have come of it."""
        return EXPECTED[self.client.era, self.server.era]


def clients(peers: Sequence[Peer]) -> list[Party]:
    """Our clients, and those of the peers.

    Raises:
        MissingPeer: A peer is not installed.
    """
    ours = [Party(OURS, era, (sys.executable, str(OUR_CLIENT), era)) for era in ERAS]
    theirs = [
        Party(peer.name, era, tuple(peer.client_command(era)))
        for peer in peers
        for era in peer.client_eras
    ]
    return [*ours, *theirs]


def servers(peers: Sequence[Peer], transport: Transport) -> list[Party]:
    """Our servers, and those of the peers.

    Raises:
        MissingPeer: A peer is not installed.
    """
    how = THEIR_SERVERS[transport]
    ours = [Party(OURS, era, tuple(_our_server(era, transport))) for era in ERAS]
    theirs = [
        Party(peer.name, era, tuple(peer.server_command(*how, *arguments)))
        for peer in peers
        for era, arguments in peer.server_eras.items()
    ]
    return [*ours, *theirs]


def _our_server(era: str, transport: Transport) -> Command:
    spoken = [f"--protocol-version={name}" for name in _SPOKEN[era]]
    how = ["--stdio"] if transport == "stdio" else ["--port=0"]
    return [sys.executable, str(OUR_SERVER), *how, *spoken]


def meet(client: Party, server: Party, place: AbstractContextManager[Command]) -> Meeting:
    """Let a client greet a server, which is at that place meanwhile: a command, or a URL."""
    try:
        with place as told:
            return _greeted(client, server, told)
    except ServerFailed as error:
        return Meeting(client, server, "no server", str(error))


def _greeted(client: Party, server: Party, told: Command) -> Meeting:
    command = [*client.command, *told]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SESSION_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Meeting(client, server, "no end", f"after {SESSION_SECONDS:g} s")
    if done.returncode:
        return Meeting(client, server, REJECTED, _reason(done.stderr))
    said = re.search("^at (.+)$", done.stdout, re.MULTILINE)
    return Meeting(client, server, said[1] if said else "nothing", "")


def _reason(stderr: str) -> str:
    """The line that says what was wrong: the last that begins with the name of an error."""
    lines = [line.strip(" |") for line in stderr.splitlines()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Required|Lost|Exception)\b", line)]
    return (named or lines or [""])[-1]


def meet_all(peers: Sequence[Peer], transport: Transport, folder: Path) -> list[Meeting]:
    """Let all meet of whom at least one is ours.

    A server of ours serves all of its clients; one of a peer is there for one client only.

    Raises:
        MissingPeer: A peer is not installed.
        ServerFailed: A server of ours does not serve, or does not stop.
    """
    number = itertools.count()

    def place_of(server: Party) -> AbstractContextManager[Command]:
        log = folder / f"{next(number)}.log"
        return reachable(list(server.command), transport, log)

    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        meetings: list[Future[Meeting]] = []
        for server in servers(peers, transport):
            is_ours = server.name == OURS
            standing = nullcontext(stack.enter_context(place_of(server))) if is_ours else None
            meetings += [
                pool.submit(meet, client, server, standing or place_of(server))
                for client in clients(peers)
                if is_ours or client.name == OURS
            ]
        return [meeting.result() for meeting in meetings]


def expectations() -> Table:
    """What should come of each client and each server."""
    table = empty_table()
    for heading in ("expected: client", *(f"{era} server" for era in ERAS)):
        table.add_column(heading)
    for client in ERAS:
        table.add_row(client, *(EXPECTED[client, server] for server in ERAS))
    return table


def observations(meetings: Sequence[Meeting]) -> Table:
    """What came of each."""
    observed = {(meeting.client, meeting.server): meeting for meeting in meetings}
    columns = list(dict.fromkeys(meeting.server for meeting in meetings))
    table = empty_table()
    table.add_column("observed: client", no_wrap=True)
    for server in columns:
        table.add_column("\n".join([*server.name.split(), server.era]))
    for client in dict.fromkeys(meeting.client for meeting in meetings):
        cells = [cell_of(observed.get((client, server))) for server in columns]
        table.add_row(f"{client.name} {client.era}", *cells)
    return table


def cell_of(meeting: Meeting | None) -> str:
    """What came of it, red if it should not have."""
    if meeting is None:
        return ""
    is_right = meeting.observed == meeting.expected
    return meeting.observed if is_right else f"[bold red]{meeting.observed}[/]"


def complaints(meetings: Sequence[Meeting]) -> Iterator[str]:
    """What should not have come of it, in sentences."""
    for meeting in meetings:
        if meeting.observed != meeting.expected:
            sides = f"{meeting.client.name} {meeting.client.era} at {meeting.server.name}"
            yield (
                f"{sides} {meeting.server.era}: {meeting.observed}, not {meeting.expected}:"
                f" {meeting.reason}"
            )


def report(meetings: Sequence[Meeting], transport: Transport, seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    show(expectations(), ())
    print()
    found = list(complaints(meetings))
    show(observations(meetings), found)
    print(f"{len(meetings)} meetings over {transport}, {len(found)} complaints, {seconds:.0f} s")
    return not found


def main(arguments: list[str]) -> int:
    """Let them meet and report."""
    parser = peer_parser("See which eras understand each other.", such_as="Python 2")
    ways = ("stdio", "http", "websocket")
    parser.add_argument("--transport", choices=ways, default="stdio")
    options = parse(parser, arguments, [peer.name for peer in SDKS])
    transport = options.transport
    peers = [peer for peer in sdks(options.peers) if peer.speaks("client", _OLD, transport)]
    return sit(
        lambda folder: meet_all(peers, transport, folder),
        lambda meetings, seconds: report(meetings, transport, seconds),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
