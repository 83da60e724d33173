"""Run one recorded session with an SDK, and count its methods and features."""

import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
from interop_command import reachable_server, run_to_end
from method_counts import SessionCounts, count_session
from peers import HERE, HOME, Command, Peer, Role, Transport
from server_processes import ServerFailed

from mcp_trio.errors import RecordingError

OUR_SERVER: Final = HOME / "tools" / "conformance" / "server.py"
OUR_CLIENT: Final = HERE / "our_client.py"
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
    """The result of a session; `failures` are sentences."""

    peer: Peer
    role: Role
    protocol_version: str
    transport: Transport
    session_counts: SessionCounts
    checks: int
    seconds: float
    failures: list[str]

    @property
    def title(self) -> str:
        peer = f"{self.peer.name} {self.peer.version}"
        return f"{peer} as {self.role} at {self.protocol_version} over {self.transport}"


def run_session(
    peer: Peer, role: Role, protocol_version: str, transport: Transport, folder: Path
) -> Outcome:
    """Run a session with a peer, and leave our side's recording in the folder."""
    name = f"{peer.name.lower().replace(' ', '-')}-{role}-{protocol_version}-{transport}"
    session_folder = folder / name
    shutil.rmtree(session_folder, ignore_errors=True)
    session_folder.mkdir(parents=True)
    begin = time.monotonic()
    client, server = _commands(peer, role, transport, session_folder)
    try:
        with reachable_server(server, transport, folder / f"{name}.log") as reached:
            checks, failures = _run_client([*client, protocol_version, *reached])
    except ServerFailed as error:
        checks, failures = 0, [str(error)]
    seconds = time.monotonic() - begin
    session_counts = _counts_in(session_folder)
    return Outcome(
        peer=peer,
        role=role,
        protocol_version=protocol_version,
        transport=transport,
        session_counts=session_counts,
        checks=checks,
        seconds=seconds,
        failures=[*failures, *session_counts.failures],
    )


def _commands(
    peer: Peer, role: Role, transport: Transport, session_folder: Path
) -> tuple[Command, Command]:
    """Return the commands of the client (without protocol version and server) and of the server."""
    record = ["--record", f"{session_folder}/"]
    if role == "client":
        return peer.client_command(), [sys.executable, *_our_server(transport), *record]
    ours = [sys.executable, str(OUR_CLIENT), *record]
    return ours, peer.server_command(*THEIR_SERVERS[transport])


def _our_server(transport: Transport) -> Command:
    """Return the arguments that make Python run our server over a transport."""
    everything = str(OUR_SERVER)
    programs: Mapping[Transport, Command] = {
        "stdio": [everything, "--stdio"],
        "http": [everything, "--port=0"],
        "sse": [everything, "--port=0"],
        "websocket": [*MCP_TRIO, "run", everything, "--transport=websocket", "--port=0"],
        "dialled": [everything, "--dial"],
    }
    return programs[transport]


def _counts_in(session_folder: Path) -> SessionCounts:
    """Count the largest recording in the folder, which is that of the session."""
    found = sorted(session_folder.glob("*.mcprec.jsonl"), key=lambda path: path.stat().st_size)
    if not found:
        return SessionCounts(failures=["no recording: there is none"])
    try:
        return count_session(found[-1])
    except (OSError, RecordingError) as error:
        return SessionCounts(failures=[f"no recording: {error}"])


def _run_client(command: Command) -> tuple[int, list[str]]:
    """Run a client; return how many checks it made, and its failures."""
    done = run_to_end(command, SESSION_SECONDS)
    if done.failure:
        return 0, [done.failure]
    if done.checks is None:
        return 0, ["the client did not print its checks"]
    return done.checks, []
