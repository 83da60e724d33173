"""Sessions with the peers, each recorded by our side and counted from that."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
from method_counts import Tally, tally_of
from peers import HERE, HOME, Command, Peer, Role, Transport
from server_location import ServerFailed, last_lines, reachable

from mcp_trio.errors import RecordingError

OUR_SERVER: Final = HOME / "tools" / "conformance" / "server.py"
OUR_CLIENT: Final = HERE / "our_client.py"
OUR_DIALLER: Final = HERE / "our_dialler.py"
MCP_TRIO: Final = ("-m", "mcp_trio")
THEIR_SERVERS: Final[Mapping[Transport, Command]] = {
    "stdio": [],
    "http": ["http"],
    "sse": ["http"],
    "websocket": ["http"],
    "dialled": ["dial"],
}
SESSION_SECONDS: Final = 90.0


@attrs.frozen(kw_only=True)
class Outcome:
    """How a session with a peer went: what passed, and what went wrong, in sentences."""

    peer: Peer
    role: Role
    protocol_version: str
    transport: Transport
    tally: Tally
    checks: int
    seconds: float
    faults: list[str]

    @property
    def title(self) -> str:
        """Which session it was."""
        peer = f"{self.peer.name} {self.peer.version}"
        return f"{peer} as {self.role} at {self.protocol_version} over {self.transport}"


def hold(
    peer: Peer, role: Role, protocol_version: str, transport: Transport, folder: Path
) -> Outcome:
    """Hold a session with a peer, whose recording is left in the folder.

    Raises:
        MissingPeer: The peer is not installed.
    """
    name = f"{peer.name.lower().replace(' ', '-')}-{role}-{protocol_version}-{transport}"
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    begin = time.monotonic()
    client, server = _commands(peer, role, transport, place)
    try:
        with reachable(server, transport, folder / f"{name}.log") as reached:
            checks, faults = _told([*client, protocol_version, *reached])
    except ServerFailed as error:
        checks, faults = 0, [str(error)]
    seconds = time.monotonic() - begin
    tally = _tally_in(place)
    return Outcome(
        peer=peer,
        role=role,
        protocol_version=protocol_version,
        transport=transport,
        tally=tally,
        checks=checks,
        seconds=seconds,
        faults=[*faults, *tally.faults],
    )


def _commands(peer: Peer, role: Role, transport: Transport, place: Path) -> tuple[Command, Command]:
    """The command of the client, which is told the revision and the server; and of the server."""
    record = ["--record", f"{place}/"]
    if role == "client":
        return peer.client_command(), [sys.executable, *_our_server(transport), *record]
    ours = [sys.executable, str(OUR_CLIENT), *record]
    return ours, peer.server_command(*THEIR_SERVERS[transport])


def _our_server(transport: Transport) -> Command:
    """Our program, and what it is told; `/ws` beside the others is toured by `mounts.py`."""
    everything = str(OUR_SERVER)
    programs: Mapping[Transport, Command] = {
        "stdio": [everything, "--stdio"],
        "http": [everything, "--port=0"],
        "sse": [everything, "--port=0"],
        "websocket": [*MCP_TRIO, "run", everything, "--transport=websocket", "--port=0"],
        "dialled": [str(OUR_DIALLER)],
    }
    return programs[transport]


def _tally_in(place: Path) -> Tally:
    """What was recorded; a server of both eras records what has no session in a file of its own."""
    found = sorted(place.glob("*.mcprec.jsonl"), key=lambda path: path.stat().st_size)
    if not found:
        return Tally(faults=["no recording: there is none"])
    try:
        return tally_of(found[-1])
    except (OSError, RecordingError) as error:
        return Tally(faults=[f"no recording: {error}"])


def _told(command: Command) -> tuple[int, list[str]]:
    """How much a client has checked, and what it complains of."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SESSION_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        return 0, [f"no end after {SESSION_SECONDS:g} s: {last_lines(error.stderr or b'')}"]
    if done.returncode:
        return 0, [f"the client exited with {done.returncode}: {last_lines(done.stderr)}"]
    checks = re.search(r"^([0-9]+) checks$", done.stdout, re.MULTILINE)
    return (int(checks[1]), []) if checks else (0, ["the client told nothing of its checks"])
