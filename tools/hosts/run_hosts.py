"""Let agent frameworks and gateways use our server and a control, and print where they differ.

`python tools/hosts/run_hosts.py [NAME…] [--transport stdio|http|sse|websocket]
[--environments FOLDER]`. Each Python framework is installed with uv, at its pinned version, into an
environment of its own, and those of npm at the versions in `node/package-lock.json`. Each takes
the tour of `tours.py` over each transport: with `server_ours.py`, and with `server_sdk.py`, the
same server by the official SDK. Through a gateway, three clients of the official SDK take the tour
one after another. No model is needed. Status 1: a difference has no explanation.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

sys.path += [str(Path(__file__).resolve().parents[1] / folder) for folder in ("", "interop")]

from install import ensure
from interop_command import new_table, show
from peers import NODE, NodeEnvironment, PythonEnvironment
from server_processes import listening

HERE: Final = Path(__file__).resolve().parent
HOME: Final = HERE.parent.parent
ENVIRONMENTS: Final = HOME / ".nox" / "frameworks"

# The packages of each framework, at the versions that were tested last.
FRAMEWORKS: Final[Mapping[str, Sequence[str]]] = {
    "fastmcp": ("fastmcp==4.2.3", "mcp==2.3.0"),
    "pydantic-ai": ("pydantic-ai-slim[mcp]==2.68.0", "mcp==2.3.0"),
    "langchain-mcp-adapters": ("langchain-mcp-adapters==0.3.2", "mcp==1.30.0"),
    "openai-agents": ("openai-agents==0.24.0", "mcp==2.3.0"),
    "mcp-use": ("mcp-use==1.7.1", "mcp==1.30.0"),
    "smolagents": ("smolagents[mcp]==1.26.0", "mcp==1.30.0"),
    "strands-agents": ("strands-agents==1.62.0", "mcp==2.1.1"),
    "llama-index-tools-mcp": ("llama-index-tools-mcp==0.6.0", "mcp==2.3.0"),
    "autogen-ext": ("autogen-ext[mcp]==0.7.5", "autogen-agentchat==0.7.5", "mcp==1.30.0"),
    "semantic-kernel": ("semantic-kernel[mcp]==1.45.0", "mcp==1.30.0"),
    "google-adk": ("google-adk[mcp]==2.13.0", "mcp==2.3.0"),
    "agno": ("agno[mcp]==3.1.10", "mcp==2.3.0"),
    "crewai-tools": ("crewai-tools[mcp]==1.15.30", "mcp==1.30.0"),
}
CONTROL: Final = "control"
CONTROL_PACKAGES: Final = ("mcp==1.30.0", "websockets==17.4")
TOURS: Final = str(HERE / "tours.py")
NPM: Final = NodeEnvironment(name="hosts", folder=HERE / "node", node=NODE)
NPM_FRAMEWORKS: Final = ("@ai-sdk/mcp", "@langchain/mcp-adapters")
TRANSPORTS: Final = ("stdio", "http", "sse")


@attrs.frozen
class Gateway:
    """A program of npm that has a server over one transport, and clients over another.

    `arguments` may hold {url} or {command} of the server, and the {port} for the clients.
    """

    package: str
    program: str
    server: str
    client: str
    arguments: str
    path: str = ""

    def start(self, **values: Any) -> list[str]:
        """Return the command, with these values in its arguments."""
        program = str(NPM.folder / "node_modules" / self.package / self.program)
        arguments = [each.format(**values) for each in shlex.split(self.arguments)]
        return [str(NPM.bin() / "node"), program, *arguments]


_REMOTE: Final = ("mcp-remote", "dist/proxy.js")
_SUPER: Final = ("supergateway", "dist/index.js")
_PROXY: Final = ("mcp-proxy", "dist/bin/mcp-proxy.mjs")
_STREAMABLE: Final = "--stdio {command} --port {port} --outputTransport streamableHttp"

GATEWAYS: Final = (
    Gateway(*_REMOTE, "http", "stdio", "{url} --transport http-only"),
    Gateway(*_REMOTE, "sse", "stdio", "{url} --transport sse-only"),
    Gateway(*_SUPER, "http", "stdio", "--streamableHttp {url}"),
    Gateway(*_SUPER, "sse", "stdio", "--sse {url}"),
    # All clients share one server process; the other modes have one for each session or request.
    Gateway(*_SUPER, "stdio", "sse", "--stdio {command} --port {port}", "/sse"),
    Gateway(*_SUPER, "stdio", "http", _STREAMABLE, "/mcp"),
    Gateway(*_SUPER, "stdio", "http", f"{_STREAMABLE} --stateful", "/mcp"),
    Gateway(
        *_SUPER,
        "stdio",
        "websocket",
        "--stdio {command} --port {port} --outputTransport ws",
        "/message",
    ),
    Gateway(*_PROXY, "stdio", "http", "--port {port} --server stream --shell -- {command}", "/mcp"),
    Gateway(*_PROXY, "stdio", "sse", "--port {port} --server sse --shell -- {command}", "/sse"),
)

PACKAGES: Final = tuple(dict.fromkeys(gateway.package for gateway in GATEWAYS))
NAMES: Final = (*FRAMEWORKS, *NPM_FRAMEWORKS, *PACKAGES)

AT_ONCE: Final = 6  # Tours wait most of the time.
TOUR_SECONDS: Final = 300

# Members of schemas and results that carry no meaning for a host, or differ with each call; and
# those of protocol version 2026-07-28, which the control does not speak.
_IGNORED: Final = frozenset(
    {
        *("title", "annotations", "meta", "_meta", "metadata", "id", "$schema", "$defs"),
        *("cache_scope", "cacheScope", "ttl_ms", "ttlMs", "result_type", "resultType"),
    }
)

# The differences that stay, by the step of the tour: a text that our outcome has to hold all the
# same, and the reason.
_STR: Final = (
    "the SDK wraps a str with every version; before 2025-06-18 there is no structured content, and"
    " from 2026-07-28 on it may be any value"
)
EXPLAINED: Final[Mapping[str, tuple[str, str]]] = {
    "hello": ("Hello, Ada!", _STR),
    "paint": ("painted blue", _STR),
    "numbers": (
        "[0,1,2]",
        "we send a list as one text of JSON, and the SDK as one text for each item",
    ),
    "place": ("Oslo", "our text is compact JSON, and that of the SDK is indented"),
    "fail": ("no such city", "the SDK puts 'Error executing tool fail:' before the text"),
    "crash": (
        "internal error in crash",
        "the SDK sends the text of any exception, and we only the name of the tool",
    ),
}


def framework(environments: Path, name: str) -> PythonEnvironment:
    """Return the environment of a framework or of the control, installed unless it is already."""
    packages = FRAMEWORKS.get(name, CONTROL_PACKAGES)
    environment = PythonEnvironment(name=name, packages=packages, base=environments)
    ensure(environment)
    return environment


@contextlib.contextmanager
def direct(transport: str, server: Sequence[str]) -> Iterator[str]:
    """Yield the TARGET of a tour; a server with a port runs until the tour is over."""
    if transport == "stdio":
        yield json.dumps([*server, "stdio"])
        return
    with listening(lambda port: [*server, transport, str(port)]) as running:
        yield f"{running.url}/{'mcp' if transport == 'http' else 'sse'}"


@contextlib.contextmanager
def behind(gateway: Gateway, server: Sequence[str]) -> Iterator[str]:
    """Yield the TARGET of a tour that goes through a gateway."""
    with direct(gateway.server, server) as url:
        command = shlex.join([*server, "stdio"])
        start = partial(gateway.start, url=url, command=command)
        if gateway.client == "stdio":
            yield json.dumps(start())
            return
        scheme = "ws" if gateway.client == "websocket" else "http"
        with listening(lambda port: start(port=port)) as running:
            yield f"{scheme}://{running.address}{gateway.path}"


@attrs.frozen
class Way:
    """A host over one transport: the command of the tour, and the context of its TARGET."""

    name: str
    transport: str
    command: Sequence[str]
    target: Callable[[Sequence[str]], AbstractContextManager[str]]


def tour(way: Way, server: Sequence[str], variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the outcome of each step of a tour."""
    try:
        with way.target(server) as text:
            done = subprocess.run(
                [*way.command, text],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=TOUR_SECONDS,
                check=False,
                env={**os.environ, **variables},
            )
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"tour": {"raises": type(error).__name__, "text": str(error)}}
    lines = done.stdout.decode().strip().splitlines()
    try:
        outcomes: dict[str, Any] = json.loads(lines[-1])
    except (IndexError, ValueError):
        return {"tour": {"raises": "no outcome", "text": f"status {done.returncode}"}}
    return outcomes


def comparable(outcome: Any) -> Any:
    """Return an outcome without what carries no meaning for a host."""
    if isinstance(outcome, list):
        return [comparable(item) for item in outcome]
    if isinstance(outcome, dict):
        members = {key: it for key, it in outcome.items() if key not in _IGNORED and it is not None}
        # Our schemas are closed, since unknown arguments are rejected.
        if members.get("additionalProperties") is False:
            del members["additionalProperties"]
        if members.get("required") == []:
            del members["required"]
        return {key: comparable(it) for key, it in members.items()}
    # The text of an object may hold its address.
    return re.sub("0x[0-9a-f]+", "0x…", outcome) if isinstance(outcome, str) else outcome


def differences(ours: Mapping[str, Any], control: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each step whose outcomes differ, and the kind of the difference."""
    for name in dict.fromkeys([*control, *ours]):
        if name == "tour":  # It did not take place, or broke off.
            yield name, "the tour failed"
            continue
        mine, theirs = comparable(ours.get(name)), comparable(control.get(name))
        if mine == theirs:
            continue
        raised = [(outcome or {}).get("raises") for outcome in (mine, theirs)]
        yield name, "value" if raised[0] == raised[1] else f"raises {raised[0]}, not {raised[1]}"


def reason_of(name: str, kind: str, outcome: Any) -> str | None:
    """Return the reason of a difference in a step, if it has one."""
    text, reason = EXPLAINED.get(name.partition(" of ")[0], ("", None))
    is_held = text.replace(" ", "") in json.dumps(outcome).replace(" ", "")
    return reason if kind == "value" and is_held else None


def short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 300 else text[:299] + "…"


def ways(environments: Path, names: Sequence[str], transports: Sequence[str]) -> Iterator[Way]:
    """Yield the chosen ways; install each host before its first one."""
    for name in names:
        if name in FRAMEWORKS:
            command = [*framework(environments, name).start(TOURS), name]
        else:
            ensure(NPM)
            command = [*NPM.start("tours.mjs"), name]
        for transport in TRANSPORTS if name not in PACKAGES else ():
            if transport in transports:
                yield Way(name, transport, [*command, transport], partial(direct, transport))
        command = [*framework(environments, CONTROL).start(TOURS), "sdk"]
        for gateway in GATEWAYS:
            if gateway.package == name and gateway.client in transports:
                over = f"{gateway.client} to {gateway.server}"
                over += ", stateful" if "--stateful" in gateway.arguments else ""
                yield Way(name, over, [*command, gateway.client], partial(behind, gateway))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="NAME")
    parser.add_argument("--transport", choices=[*TRANSPORTS, "websocket"], action="append")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--show", action="store_true", help="print explained differences, too")
    options = parser.parse_args()
    environments: Path = options.environments
    control = framework(environments, CONTROL).start(str(HERE / "server_sdk.py"))
    ours = [sys.executable, str(HERE / "server_ours.py")]
    variables = {
        "CREWAI_DISABLE_TELEMETRY": "true",
        "OTEL_SDK_DISABLED": "true",
        "MCP_REMOTE_CONFIG_DIR": str(environments / "mcp-remote"),
    }
    table = new_table("host", "over", right=("steps", "equal", "explained", "unexplained"))
    total = 0
    transports = options.transport or (*TRANSPORTS, "websocket")
    pool = ThreadPoolExecutor(AT_ONCE)
    tours = [
        (way, [pool.submit(tour, way, server, variables) for server in (ours, control)])
        for way in ways(environments, options.names or NAMES, transports)
    ]
    for way, running in tours:
        mine, theirs = (future.result() for future in running)
        explained = unexplained = 0
        for name, kind in differences(mine, theirs):
            has_both = name in mine and name in theirs
            reason = reason_of(name, kind, mine[name]) if has_both else None
            explained += reason is not None
            unexplained += reason is None
            if reason is None or options.show:
                print(f"    {name}: {kind}: {reason or 'UNEXPLAINED'}")
                print(f"        ours    {short(comparable(mine.get(name)))}")
                print(f"        control {short(comparable(theirs.get(name)))}")
        steps = len(set(mine) | set(theirs))
        equal = steps - explained - unexplained
        counts = f"{steps} steps, {explained} explained, {unexplained} unexplained"
        print(f"{way.name} over {way.transport}: {counts}", flush=True)
        table.add_row(way.name, way.transport, *map(str, (steps, equal, explained, unexplained)))
        total += unexplained
    show(table, summary=f"{table.row_count} tours, {total} unexplained differences")
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
