"""Hold the sessions of the golden recordings that need peers, for `tools/make_recordings.py`.

    python tools/interop/golden_sessions.py --into DIR NAME...

The servers run in a folder that is the same on every machine, and see nothing else of the machine.
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
from facts import FACTS
from peers import HERE, HOME, PEERS, PYTHON_2, Command, MissingPeer, is_installed
from recorded_session import records_of

from mcp_trio.recording import Record, diff, open_recording

WORLD: Final = Path("/tmp/mcp-trio-golden")
SUFFIX: Final = ".mcprec.jsonl"
SESSION_SECONDS: Final = 60.0

RUN: Final = (sys.executable, "-m", "mcp_trio", "run")
RECORD: Final = (sys.executable, "-m", "mcp_trio", "record")


# Servers: a command that serves, and records to a file.


def example(module: str) -> "Serve":
    """An example of ours, which records by itself."""
    return lambda _folder, file: [*RUN, f"mcp_trio.examples.{module}", "--record", str(file)]


def conformance(_folder: Path, file: Path) -> Command:
    """Our "everything" server, which records by itself."""
    server = HOME / "tools" / "conformance" / "server.py"
    return [sys.executable, str(server), "--stdio", "--record", str(file)]


def proxied(peer: str) -> "Serve":
    """A published server, recorded by the proxy before it."""

    def serve(folder: Path, file: Path) -> Command:
        server = [*PEERS[peer].server_command(), *arguments_of(peer, folder)]
        return [*RECORD, "-o", str(file), "--", *server]

    return serve


# Clients: a command that tells a story to a server, which it starts.


def our_client(story: str, folder: Path, server: Command) -> Command:
    """Ours, which also records."""
    recording = str(client_recording(folder))
    return [
        sys.executable,
        str(HERE / "our_story_client.py"),
        story,
        str(folder),
        recording,
        *server,
    ]


def python_sdk(story: str, folder: Path, server: Command) -> Command:
    """That of the official Python SDK."""
    if not is_installed(PYTHON_2):
        raise MissingPeer(PYTHON_2.name)
    teller = PYTHON_2.start(str(HERE / "python_2_story_client.py"))
    return [*teller, story, str(folder), *server]


def whole_scenario(peer: str) -> "Tell":
    """An SDK's, which tells all that there is to tell to an "everything" server."""
    return lambda _story, _folder, server: PEERS[peer].client_command(
        FACTS.protocol_version, *server
    )


Serve = Callable[[Path, Path], Command]
Tell = Callable[[str, Path, Command], Command]


@attrs.frozen
class Session:
    """Who tells which story to whom."""

    story: str
    tell: Tell
    serve: Serve


PUBLISHED: Final = ("everything", "filesystem", "memory", "time", "git")

SESSIONS: Final[Mapping[str, Session]] = {
    "weather-python-sdk": Session("weather", python_sdk, example("weather")),
    "sqlite-python-sdk": Session("sqlite", python_sdk, example("sqlite_explorer")),
    "conformance-python-sdk": Session("scenario", whole_scenario("Python 2"), conformance),
    "conformance-typescript-sdk": Session("scenario", whole_scenario("TypeScript 1"), conformance),
    "asking-server": Session("asking", our_client, conformance),
    **{f"{peer}-our-client": Session(peer, our_client, proxied(peer)) for peer in PUBLISHED},
    **{f"{peer}-python-sdk": Session(peer, python_sdk, proxied(peer)) for peer in PUBLISHED},
}


def hold(name: str, into: Path, *, world: Path = WORLD) -> None:
    """Hold one session, and leave the recording that its server, or the proxy, made.

    Its server runs in a folder of the world, which is made anew.

    Raises:
        MissingPeer: A peer is not installed.
        SystemExit: The client was told something else than it should, or the two recordings of our
            client's session are not whole, or do not tell the same.
    """
    session, file = SESSIONS[name], into / f"{name}{SUFFIX}"
    folder = world / session.story
    shutil.rmtree(world, ignore_errors=True)
    prepare(session.story, folder)
    server = in_environment(folder, session.serve(folder, file))
    client = session.tell(session.story, folder, server)
    done = subprocess.run(
        client, cwd=folder, capture_output=True, text=True, check=False, timeout=SESSION_SECONDS
    )
    if done.returncode:
        raise SystemExit(f"{name}: {done.stdout}{done.stderr}")
    ours = client_recording(folder)
    if ours.exists() and (differences := diff(records(ours), records(file))):
        raise SystemExit(f"{name}: the client recorded something else: {differences}")
    if session.story == "asking":
        ours.rename(into / f"asking-client{SUFFIX}")


def client_recording(folder: Path) -> Path:
    """Where our client records, beside the folder of its server."""
    return folder.with_name(f"{folder.name}.client{SUFFIX}")


def records(file: Path) -> list[Record]:
    """The records of a recording.

    Raises:
        SystemExit: It is not whole.
    """
    found, faults = records_of(open_recording(file))
    if faults:
        raise SystemExit(f"{file.name}: {'; '.join(faults)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", metavar="DIR", type=Path, required=True)
    parser.add_argument("names", nargs="+", metavar="NAME", choices=SESSIONS)
    options = parser.parse_args()
    try:
        for name in options.names:
            hold(name, options.into)
    except MissingPeer as error:
        sys.exit(str(error))
    finally:
        shutil.rmtree(WORLD, ignore_errors=True)


if __name__ == "__main__":
    main()
