"""Sessions with the peers, each recorded by our side and counted from that."""

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import attrs
from peers import HERE, HOME, Command, Peer, Role
from tally import Tally, tally_of

from mcp_trio import RecordingError

OUR_SERVER: Final = HOME / "tools" / "conformance" / "server.py"
OUR_CLIENT: Final = HERE / "our_client.py"
SESSION_SECONDS: Final = 90.0
LAST_LINES: Final = 12


@attrs.frozen(kw_only=True)
class Outcome:
    """How a session with a peer went: what passed, and what went wrong, in sentences."""

    peer: Peer
    role: Role
    revision: str
    tally: Tally
    checks: int
    seconds: float
    faults: list[str]

    @property
    def title(self) -> str:
        """Which session it was."""
        return f"{self.peer.name} {self.peer.version} as {self.role} at {self.revision}"


def hold(peer: Peer, role: Role, revision: str, folder: Path) -> Outcome:
    """Hold a session with a peer, whose recording is left in the folder.

    Raises:
        MissingPeer: The peer is not installed.
    """
    name = f"{peer.name.lower().replace(' ', '-')}-{role}-{revision}"
    recording = folder / f"{name}.mcprec.jsonl"
    begin = time.monotonic()
    checks, faults = _told(_command(peer, role, revision, recording))
    seconds = time.monotonic() - begin
    try:
        tally = tally_of(recording)
    except (OSError, RecordingError) as error:
        tally = Tally(faults=[f"no recording: {error}"])
    return Outcome(
        peer=peer,
        role=role,
        revision=revision,
        tally=tally,
        checks=checks,
        seconds=seconds,
        faults=[*faults, *tally.faults],
    )


def _command(peer: Peer, role: Role, revision: str, recording: Path) -> Command:
    """The command of the client, which starts the server."""
    if role == "client":
        ours = [sys.executable, str(OUR_SERVER), "--stdio", "--record", str(recording)]
        return peer.client_command(revision, *ours)
    client = [sys.executable, str(OUR_CLIENT), "--record", str(recording)]
    return [*client, revision, *peer.server_command()]


def _told(command: Command) -> tuple[int, list[str]]:
    """How much a client has checked, and what it complains of."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=SESSION_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        return 0, [f"no end after {SESSION_SECONDS:g} s: {_last_lines(error.stderr or b'')}"]
    if done.returncode:
        return 0, [f"the client exited with {done.returncode}: {_last_lines(done.stderr)}"]
    checks = re.search(r"^([0-9]+) checks$", done.stdout, re.MULTILINE)
    return (int(checks[1]), []) if checks else (0, ["the client told nothing of its checks"])


def _last_lines(text: str | bytes) -> str:
    decoded = text.decode(errors="replace") if isinstance(text, bytes) else text
    return "\n".join(["", *decoded.splitlines()[-LAST_LINES:]])
