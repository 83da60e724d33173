"""The golden recordings, and the servers that they were made with."""

import importlib.util
from pathlib import Path
from typing import Final

from mcp_trio import Server
from mcp_trio.examples import weather

HOME: Final = Path(__file__).resolve().parent.parent
RECORDINGS: Final = HOME / "recordings"
SUFFIX: Final = ".mcprec.jsonl"
SERVERS: Final = RECORDINGS / "servers.py"


def path_of(name: str) -> Path:
    """Where the recording of that name is."""
    return RECORDINGS / f"{name}{SUFFIX}"


def names() -> list[str]:
    """The names of all golden recordings."""
    return sorted(path.name.removesuffix(SUFFIX) for path in RECORDINGS.glob(f"*{SUFFIX}"))


def load_server(name: str) -> Server:
    """The server of that name, made anew: nothing of an earlier session is left in it."""
    if name == "weather":
        return weather.server
    spec = importlib.util.spec_from_file_location("golden_servers", SERVERS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    server: Server = getattr(module, name)
    return server
