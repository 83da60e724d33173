"""Record the golden sessions that need SDKs or published servers, for `tools/make_recordings.py`.

    python tools/interop/golden_sessions.py --into DIR NAME...

The servers run in a folder with the same path on every machine, and see nothing else of the
machine.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attrs
from environments import arguments_of, in_environment, prepare
from facts import FACTS, SCRIPT
from method_counts import records_of
from peers import HERE, HOME, PEERS, Command, MissingPeer

from mcp_trio.recording import Record, diff, open_recording

ROOT: Final = Path("/tmp/mcp-trio-golden")
SUFFIX: Final = ".mcprec.jsonl"
COMPRESSED_SUFFIX: Final = f"{SUFFIX}.zst"

# Recordings that are compressed, because one like it is beside it to read.
COMPRESSED: Final = frozenset({"conformance-typescript-sdk"})
SESSION_SECONDS: Final = 60.0

RUN: Final = (sys.executable, "-m", "mcp_trio", "run")
RECORD: Final = (sys.executable, "-m", "mcp_trio", "record")


# Servers: a command that serves, and records to a file.


def example(module: str) -> "ServerCommand":
    """Return the command of one of our examples, which records itself."""
    return lambda _folder, file: [*RUN, f"mcp_trio.examples.{module}", "--record", str(file)]


def conformance(_folder: Path, file: Path) -> Command:
    """Return the command of our "everything" server, which records itself."""
    server = HOME / "tools" / "conformance" / "small_server.py"
    return [*RUN, str(server), "--record", str(file)]


def proxied(peer: str) -> "ServerCommand":
    """Return the command of a published server behind the recording proxy."""

    def server(folder: Path, file: Path) -> Command:
        server = [*PEERS[peer].server_command(), *arguments_of(peer, folder)]
        return [*RECORD, "-o", str(file), "--", *server]

    return server


# Clients: commands that start a server, and send it the requests of a script.


def our_client(folder: Path, server: Command) -> Command:
    """Return the command of our client, which also records."""
    program = [sys.executable, str(HERE / "our_client.py")]
    return [*program, "--record", str(client_recording(folder)), f"{SCRIPT}{folder}", *server]


def python_sdk(folder: Path, server: Command) -> Command:
    """Return the command of the Python SDK's client."""
    return PEERS["Python 2"].client_command(f"{SCRIPT}{folder}", *server)


def scenario(peer: str) -> "ClientCommand":
    """Return the command of an SDK's client that runs the whole scenario."""
    return lambda _folder, server: PEERS[peer].client_command(FACTS.protocol_version, *server)


ServerCommand = Callable[[Path, Path], Command]
ClientCommand = Callable[[Path, Command], Command]


@attrs.frozen
class Session:
    """A script, the client that sends it, and the server."""

    script: str
    client: ClientCommand
    server: ServerCommand


PUBLISHED: Final = ("everything", "filesystem", "memory", "time", "git")

SESSIONS: Final[Mapping[str, Session]] = {
    "weather-python-sdk": Session("weather", python_sdk, example("weather")),
    "sqlite-python-sdk": Session("sqlite", python_sdk, example("sqlite_explorer")),
    "conformance-python-sdk": Session("scenario", scenario("Python 2"), conformance),
    "conformance-typescript-sdk": Session("scenario", scenario("TypeScript 1"), conformance),
    "asking-server": Session("asking", our_client, conformance),
    **{f"{peer}-our-client": Session(peer, our_client, proxied(peer)) for peer in PUBLISHED},
    **{f"{peer}-python-sdk": Session(peer, python_sdk, proxied(peer)) for peer in PUBLISHED},
}


def record_session(name: str, into: Path, *, root: Path = ROOT) -> None:
    """Record one session at the server or the proxy, in a fresh folder.

    Exits with an error if the client fails, or if the recording of our client differs.
    """
    session = SESSIONS[name]
    file = into / f"{name}{COMPRESSED_SUFFIX if name in COMPRESSED else SUFFIX}"
    folder = root / session.script
    shutil.rmtree(root, ignore_errors=True)
    file.unlink(missing_ok=True)  # a session never overwrites a recording
    prepare(session.script, folder)
    server = in_environment(folder, session.server(folder, file))
    client = session.client(folder, server)
    done = subprocess.run(
        client, cwd=folder, capture_output=True, text=True, check=False, timeout=SESSION_SECONDS
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stdout}{done.stderr}")
    ours = client_recording(folder)
    if ours.exists() and (differences := diff(records(ours), records(file))):
        raise SystemExit(f"{name}: the client recorded something else: {differences}")
    if session.script == "asking":
        ours.rename(into / f"asking-client{SUFFIX}")


def client_recording(folder: Path) -> Path:
    """Return the path of our client's recording, beside the folder of the server."""
    return folder.with_name(f"{folder.name}.client{SUFFIX}")


def records(file: Path) -> list[Record]:
    """Return the records of a recording; exit with an error if it is damaged or incomplete."""
    found, failures = records_of(open_recording(file))
    if failures:
        raise SystemExit(f"{file.name}: {'; '.join(failures)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", metavar="DIR", type=Path, required=True)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=SESSIONS)
    options = parser.parse_args()
    try:
        for name in options.names:
            record_session(name, options.into)
    except MissingPeer as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(ROOT, ignore_errors=True)


if __name__ == "__main__":
    main()
