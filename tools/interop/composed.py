"""Run the scenario through a server that mounts an SDK's: `python tools/interop/composed.py`.

Our client talks with a server of ours, which mounts the "everything" server of an official SDK as a
command, at each pair of protocol versions that both sides have. The recording of the server in the
middle is then replayed, without the SDK. Prints the checks; the exit status is 1 if one failed, if
a replay differs, or if a peer is not installed.
"""

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import attrs
from interop_command import (
    new_table,
    parse,
    peer_parser,
    run_command,
    run_to_end,
    sdks,
    show,
    wrong,
)
from peers import HERE, NEWEST_VERSIONS, Command, Peer

from mcp_trio import Client, MCPError, Server
from mcp_trio.recording import replay

OUR_CLIENT: Final = HERE / "our_client.py"
SESSION_SECONDS: Final = 90.0


def composed(command: Command, protocol_version: str) -> Server:
    """Return a server that has what the server behind a command has, under the same names."""
    server = Server("composed")
    server.mount(Client(command, protocol_versions=[protocol_version]), prefix=None)
    return server


@attrs.frozen(kw_only=True)
class Outcome:
    """The result of a session through the server in the middle."""

    peer: Peer
    outer: str
    inner: str
    checks: str
    replayed: str
    failures: list[str]

    @property
    def title(self) -> str:
        return f"{self.peer.name}: {self.outer} to us, {self.inner} to the SDK"


def run_one(peer: Peer, outer: str, inner: str, folder: Path) -> Outcome:
    """Run the scenario with one pair of protocol versions, and replay it."""
    recording = folder / f"{peer.name.replace(' ', '-')}-{outer}-{inner}.mcprec.jsonl"
    middle = [sys.executable, __file__, "serve", str(recording), inner, *peer.server_command()]
    client = [sys.executable, str(OUR_CLIENT), "--record", f"{folder}/", outer, *middle]
    done = run_to_end(client, SESSION_SECONDS)
    replayed, failures = "", [done.failure] if done.failure else []
    try:
        report = replay(recording, composed(["no-such-command"], inner))
        replayed = f"{report.requests} requests"
    except (OSError, MCPError) as error:
        failures.append(f"the replay: {error}")
    return Outcome(
        peer=peer,
        outer=outer,
        inner=inner,
        checks=f"{done.checks} checks" if done.checks else "",
        replayed=replayed,
        failures=failures,
    )


def run_all(peers: Sequence[Peer], folder: Path) -> list[Outcome]:
    """Run each pair of the newest legacy and the newest stateless version that an SDK has.

    A legacy client of a stateless server is left out: the scenario asks for progress of a question,
    which no stateless server can have.
    """
    for peer in peers:
        peer.require()
    return [
        run_one(peer, outer, inner, folder)
        for peer in peers
        if peer.server is not None
        for inner in NEWEST_VERSIONS
        if inner in peer.protocol_versions
        for outer in NEWEST_VERSIONS
        if outer >= inner
    ]


def problems(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        for failure in outcome.failures:
            yield f"{outcome.title}: {failure}"


def report(outcomes: Sequence[Outcome], seconds: float) -> bool:
    """Print a table and the problems; return whether there are none."""
    table = new_table("session", right=("checks", "replayed"))
    for outcome in outcomes:
        shown = outcome.checks or "none"
        table.add_row(outcome.title, wrong(shown) if outcome.failures else shown, outcome.replayed)
    summary = (
        f"{len(outcomes)} sessions, {{}}, {seconds:.0f} s, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    )
    return show(table, problems(outcomes), summary)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["serve"]:
        _, recording, protocol_version, *command = arguments
        composed(command, protocol_version).run(record=recording)
        return 0
    parser = peer_parser(
        "Talk with official SDKs through a server that mounts them.", such_as="Python 2"
    )
    peers = [peer for peer in sdks(()) if peer.name.startswith("Python")]
    options = parse(parser, arguments, [peer.name for peer in peers])
    chosen = [peer for peer in peers if peer.name in options.peers or not options.peers]
    return run_command(lambda folder: run_all(chosen, folder), report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
