"""Pair clients and servers of all protocol versions: `python tools/interop/protocol_versions.py`.

Our clients and servers, and those of the SDKs, support legacy versions, stateless ones, or both;
each of ours is paired with all others, over stdio or with `--transport` over Streamable HTTP or
WebSocket. Prints the expected and the observed protocol versions. The exit status is 1 if they
differ, or if a peer is not installed.
"""

import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Final

import attrs
from facts import FACTS, VERSION_MODES
from interop_command import (
    NO_END,
    new_table,
    parse,
    peer_parser,
    reachable_server,
    run_command,
    run_to_end,
    sdks,
    show,
    wrong,
)
from peers import LEGACY, SDKS, Command, Peer, Transport
from rich.table import Table
from server_processes import ServerFailed
from sessions import OUR_CLIENT, OUR_SERVER, THEIR_SERVERS

AT_ONCE: Final = 2
SESSION_SECONDS: Final = 30.0
OURS: Final = "mcp_trio"
REJECTED: Final = "rejected"

_OLD, _NEW = LEGACY[-1], FACTS.protocol_versions[-1]

# The version that a client (first) and a server agree on.
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

_PROTOCOL_VERSIONS: Final[Mapping[str, Sequence[str]]] = {
    "legacy": LEGACY,
    "both": FACTS.protocol_versions,
    "stateless": [_NEW],
}


@attrs.frozen
class Side:
    """A client or a server, its version mode, and the command that starts it."""

    name: str
    mode: str
    command: tuple[str, ...]


@attrs.frozen
class Pairing:
    """A client and a server, and the version that they agreed on, or "rejected" and why."""

    client: Side
    server: Side
    observed: str
    reason: str

    @property
    def expected(self) -> str:
        return EXPECTED[self.client.mode, self.server.mode]


def clients(peers: Sequence[Peer]) -> list[Side]:
    """Return our clients, and those of the peers."""
    ours = [Side(OURS, mode, (sys.executable, str(OUR_CLIENT), mode)) for mode in VERSION_MODES]
    theirs = [
        Side(peer.name, mode, tuple(peer.client_command(mode)))
        for peer in peers
        for mode in peer.client_modes
    ]
    return [*ours, *theirs]


def servers(peers: Sequence[Peer], transport: Transport) -> list[Side]:
    """Return our servers, and those of the peers."""
    how = THEIR_SERVERS[transport]
    ours = [Side(OURS, mode, tuple(_our_server(mode, transport))) for mode in VERSION_MODES]
    theirs = [
        Side(peer.name, mode, tuple(peer.server_command(*how, *arguments)))
        for peer in peers
        for mode, arguments in peer.server_modes.items()
    ]
    return [*ours, *theirs]


def _our_server(mode: str, transport: Transport) -> Command:
    versions = [f"--protocol-version={name}" for name in _PROTOCOL_VERSIONS[mode]]
    how = ["--stdio"] if transport == "stdio" else ["--port=0"]
    return [sys.executable, str(OUR_SERVER), *how, *versions]


def pair(client: Side, server: Side, location: AbstractContextManager[Command]) -> Pairing:
    """Let a client greet the server, which runs while `location` is entered."""
    try:
        with location as server_arguments:
            return _pair_running(client, server, server_arguments)
    except ServerFailed as error:
        return Pairing(client, server, "no server", str(error))


def _pair_running(client: Side, server: Side, server_arguments: Command) -> Pairing:
    done = run_to_end([*client.command, *server_arguments], SESSION_SECONDS)
    if done.failure.startswith(NO_END):
        return Pairing(client, server, NO_END, done.failure)
    if done.failure:
        return Pairing(client, server, REJECTED, _reason(done.stderr))
    found = re.search("^at (.+)$", done.stdout, re.MULTILINE)
    return Pairing(client, server, found[1] if found else "nothing", "")


def _reason(stderr: str) -> str:
    """Return the last line of stderr that begins with the name of an error."""
    lines = [line.strip(" |") for line in stderr.splitlines()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Required|Lost|Exception)\b", line)]
    return (named or lines or [""])[-1]


def pair_all(peers: Sequence[Peer], transport: Transport, folder: Path) -> list[Pairing]:
    """Pair each side of ours with every other side.

    One process of our server serves all of its clients; a peer's server is started for each client.
    """
    number = itertools.count()

    def location_of(server: Side) -> AbstractContextManager[Command]:
        log = folder / f"{next(number)}.log"
        return reachable_server(list(server.command), transport, log)

    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        pairings: list[Future[Pairing]] = []
        for server in servers(peers, transport):
            is_ours = server.name == OURS
            standing = nullcontext(stack.enter_context(location_of(server))) if is_ours else None
            pairings += [
                pool.submit(pair, client, server, standing or location_of(server))
                for client in clients(peers)
                if is_ours or client.name == OURS
            ]
        return [pairing.result() for pairing in pairings]


def expectations() -> Table:
    """Return the table of what each client and server should agree on."""
    table = new_table("expected: client", *(f"{mode} server" for mode in VERSION_MODES))
    for client in VERSION_MODES:
        table.add_row(client, *(EXPECTED[client, server] for server in VERSION_MODES))
    return table


def observations(pairings: Sequence[Pairing]) -> Table:
    observed = {(pairing.client, pairing.server): pairing for pairing in pairings}
    columns = list(dict.fromkeys(pairing.server for pairing in pairings))
    headings = ("\n".join([*server.name.split(), server.mode]) for server in columns)
    table = new_table("observed: client", *headings)
    for client in dict.fromkeys(pairing.client for pairing in pairings):
        cells = [cell_of(observed.get((client, server))) for server in columns]
        table.add_row(f"{client.name} {client.mode}", *cells)
    return table


def cell_of(pairing: Pairing | None) -> str:
    if pairing is None:
        return ""
    is_right = pairing.observed == pairing.expected
    return pairing.observed if is_right else wrong(pairing.observed)


def problems(pairings: Sequence[Pairing]) -> Iterator[str]:
    for pairing in pairings:
        if pairing.observed != pairing.expected:
            sides = f"{pairing.client.name} {pairing.client.mode} at {pairing.server.name}"
            yield (
                f"{sides} {pairing.server.mode}: {pairing.observed}, not {pairing.expected}:"
                f" {pairing.reason}"
            )


def report(pairings: Sequence[Pairing], transport: Transport, seconds: float) -> bool:
    """Print both tables and the problems; return whether there are no problems."""
    show(expectations())
    print()
    summary = f"{len(pairings)} pairings over {transport}, {{}}, {seconds:.0f} s"
    return show(observations(pairings), problems(pairings), summary)


def main(arguments: list[str]) -> int:
    parser = peer_parser("Check which protocol versions are negotiated.", such_as="Python 2")
    ways = ("stdio", "http", "websocket")
    parser.add_argument("--transport", choices=ways, default="stdio")
    options = parse(parser, arguments, [peer.name for peer in SDKS])
    transport = options.transport
    peers = [peer for peer in sdks(options.peers) if peer.supports("client", _OLD, transport)]
    return run_command(
        lambda folder: pair_all(peers, transport, folder),
        lambda pairings, seconds: report(pairings, transport, seconds),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
