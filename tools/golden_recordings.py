"""The golden recordings, and the servers that replay them: one table."""

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import attrs

from mcp_trio import Server
from mcp_trio._recorder.files import COMPRESSED_SUFFIX, SUFFIX, segment_name
from mcp_trio.examples import sqlite_explorer, weather

HOME: Final = Path(__file__).resolve().parent.parent
RECORDINGS: Final = HOME / "recordings"
REJECTED: Final = RECORDINGS / "refused"

Role = Literal["server", "client", "proxy"]

STRICTLY: Final = "strictly"
OTHER_ROLE: Final = "strict replay runs the handlers of a server"

# The key with which the secret of the redacted recording was replaced.
KEY: Final = b"the key of the golden recordings"


@attrs.frozen(kw_only=True)
class Golden:
    """A recording, and how it is checked.

    Attributes:
        replays: `STRICTLY`, or the text of the error with which replay rejects it.
        server: The server that replays it; any server if it was not recorded at a server.
        recorded: The server that was recorded, if it was another one.
        needs_peers: Made by `golden_sessions.py`, not scripted in `make_recordings.py`.
        is_cut: It has no `end` record, or has a gap, up to which it is replayed.
        is_seeded: The messages of its handlers depend on the seed.
        suffix: The end of the name of its file.
        segments: The number of its files.
        key: The key of its redaction.
    """

    name: str
    role: Role = "server"
    replays: str = STRICTLY
    server: str
    recorded: str = attrs.field(default=attrs.Factory(lambda self: self.server, takes_self=True))
    needs_peers: bool = False
    is_cut: bool = False
    is_seeded: bool = False
    suffix: str = SUFFIX
    segments: int = 1
    key: bytes | None = None

    @property
    def path(self) -> Path:
        return RECORDINGS / f"{self.name}{self.suffix}"

    @property
    def files(self) -> list[Path]:
        numbers = range(2, self.segments + 1)
        return [self.path, *(Path(segment_name(str(self.path), each)) for each in numbers)]


def _with_peers(name: str, server: str, role: Role = "server", replays: str = STRICTLY) -> Golden:
    return Golden(name=name, role=role, replays=replays, server=server, needs_peers=True)


_OF_SERVERS_PY: Final = (
    *("auction", "cancelled", "counter", "deadlines", "leaving"),
    *("http", "ledger", "nursery", "patched", "relay", "shared", "stopped"),
)
_OF_LATER_PROTOCOL_VERSIONS: Final = (
    "batches",
    "structured",
    "forms",
    "rounds",
    "crew",
    "galley",
    "tides",
)
_PUBLISHED: Final = ("everything", "filesystem", "memory", "time", "git")

GOLDEN: Final[Mapping[str, Golden]] = {
    golden.name: golden
    for golden in (
        *(Golden(name=name, server=name) for name in _OF_SERVERS_PY),
        *(Golden(name=name, server=name) for name in _OF_LATER_PROTOCOL_VERSIONS),
        Golden(name="effects", server="effects", is_seeded=True),
        Golden(name="threads", server="threads", is_seeded=True),
        Golden(name="unpatched", server="patched", recorded="unpatched"),
        Golden(name="cut", server="effects", is_cut=True),
        Golden(name="gap", server="effects", is_cut=True),
        Golden(name="rotated", server="ledger", segments=3),
        Golden(name="compressed", server="counter", suffix=SUFFIX + COMPRESSED_SUFFIX),
        Golden(name="redacted", server="redacted", key=KEY),
        Golden(name="weather", server="weather"),
        Golden(name="client", server="weather", role="client", replays=OTHER_ROLE),
        _with_peers("weather-python-sdk", "weather"),
        _with_peers("sqlite-python-sdk", "sqlite"),
        _with_peers("conformance-python-sdk", "conformance"),
        Golden(
            name="conformance-typescript-sdk",
            server="conformance",
            needs_peers=True,
            suffix=SUFFIX + COMPRESSED_SUFFIX,
        ),
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
    """Return a fresh server of that name."""
    return _LOADERS.get(name, _of_servers_py)(name)


def _of_servers_py(name: str) -> Server:
    return _load(RECORDINGS / "servers.py", name)


def _of_later_servers_py(name: str) -> Server:
    return _load(RECORDINGS / "later_servers.py", name)


def _conformance(_name: str) -> Server:
    folder = HOME / "tools" / "conformance"
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # it imports what lies beside it
    return _load(folder / "small_server.py", "server")


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
    **dict.fromkeys(_OF_LATER_PROTOCOL_VERSIONS, _of_later_servers_py),
    "weather": lambda _: weather.server,
    "sqlite": lambda _: sqlite_explorer.server,
    "conformance": _conformance,
}
