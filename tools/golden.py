"""The golden recordings: what each of them is, and the servers that replay them. One table."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from mcp_trio import Server
from mcp_trio.examples import sqlite_explorer, weather

HOME: Final = Path(__file__).resolve().parent.parent
RECORDINGS: Final = HOME / "recordings"
REFUSED: Final = RECORDINGS / "refused"
SUFFIX: Final = ".mcprec.jsonl"

Role = Literal["server", "client", "proxy"]

STRICTLY: Final = "strictly"
OTHER_ROLE: Final = "strict replay runs the handlers of a server"
LIFESPAN: Final = "has a lifespan, which strict replay cannot stand in for yet"


@attrs.frozen(kw_only=True)
class Golden:
    """A recording, and how it is held.

    `replays` is `STRICTLY`, or what replay has to say when it refuses; `server` is the one that
    replay is given, any where the role is another. `needs_peers`: made by `golden_sessions.py`, not
    scripted in `make_recordings.py`.
    """

    name: str
    role: Role = "server"
    replays: str = STRICTLY
    server: str
    needs_peers: bool = False

    @property
    def path(self) -> Path:
        """Where it is."""
        return path_of(self.name)


def path_of(name: str) -> Path:
    """Where the recording of that name is."""
    return RECORDINGS / f"{name}{SUFFIX}"


def _with_peers(name: str, server: str, role: Role = "server", replays: str = STRICTLY) -> Golden:
    return Golden(name=name, role=role, replays=replays, server=server, needs_peers=True)


_OF_SERVERS_PY: Final = (
    *("auction", "cancelled", "counter", "deadlines", "leaving"),
    *("ledger", "nursery", "relay", "stopped"),
)
_PUBLISHED: Final = ("everything", "filesystem", "memory", "time", "git")

GOLDEN: Final[Mapping[str, Golden]] = {
    golden.name: golden
    for golden in (
        *(Golden(name=name, server=name) for name in _OF_SERVERS_PY),
        Golden(name="weather", server="weather"),
        Golden(name="client", server="weather", role="client", replays=OTHER_ROLE),
        _with_peers("weather-python-sdk", "weather"),
        _with_peers("sqlite-python-sdk", "sqlite", replays=LIFESPAN),
        _with_peers("conformance-python-sdk", "conformance"),
        _with_peers("conformance-typescript-sdk", "conformance"),
        _with_peers("asking-server", "conformance"),
        _with_peers("asking-client", "conformance", "client", OTHER_ROLE),
        *(
            _with_peers(f"{server}-{client}", "weather", "proxy", OTHER_ROLE)
            for server in _PUBLISHED
            for client in ("our-client", "python-sdk")
        ),
    )
}

# Recordings of the two sides of one session.
SIDES: Final = (("asking-client", "asking-server"),)


# Servers.


def load_server(name: str) -> Server:
    """The server of that name, made anew: nothing of an earlier session is left in it."""
    return _LOADERS.get(name, _of_servers_py)(name)


def _of_servers_py(name: str) -> Server:
    return _load(RECORDINGS / "servers.py", name)


def _conformance(_name: str) -> Server:
    folder = HOME / "tools" / "conformance"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # it imports what lies beside it
    return _load(folder / "server.py", "server")


def _load(path: Path, name: str) -> Server:
    spec = importlib.util.spec_from_file_location("golden_servers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server: Server = getattr(module, name)
    return server


# The examples keep nothing between sessions.
_LOADERS: Final[Mapping[str, Callable[[str], Server]]] = {
    "weather": lambda _: weather.server,
    "sqlite": lambda _: sqlite_explorer.server,
    "conformance": _conformance,
}
