"""Let agent frameworks use our server and a control, and print where the outcomes differ.

`python tools/hosts/run_hosts.py [FRAMEWORK…] [--transport stdio|http|sse] [--environments FOLDER]`.
Each framework is installed with uv, at its pinned version, into an environment of its own. It takes
the tour of `tours.py` over each transport: with `server_ours.py`, and with `server_sdk.py`, the
same server by the official SDK. No model is needed. Status 1: a difference has no explanation.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
HOME: Final = HERE.parent.parent
ENVIRONMENTS: Final = HOME / ".nox" / "hosts"

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
    "crewai-tools": ("crewai-tools[mcp]==1.15.30", "mcp==1.30.0"),
}
CONTROL: Final = ("control", ("mcp==1.30.0",))
TRANSPORTS: Final = ("stdio", "http", "sse")

TOUR_SECONDS: Final = 300
START_SECONDS: Final = 30

# Members of schemas and results that carry no meaning for a host, or differ with each call; and
# those of protocol version 2026-07-28, which the control does not speak.
_IGNORED: Final = frozenset(
    {
        *("title", "annotations", "meta", "_meta", "metadata", "id", "$schema", "$defs"),
        *("cache_scope", "cacheScope", "ttl_ms", "ttlMs", "result_type", "resultType"),
    }
)

# The differences that stay, by the step of the tour, each with its reason.
EXPLAINED: Final[Mapping[str, str]] = {
    "hello": "a str is sent as text only, and the SDK repeats it as structured content",
    "paint": "a str is sent as text only, and the SDK repeats it as structured content",
    "numbers": "we send a list as one text of JSON, and the SDK as one text for each item",
    "place": "our text is compact JSON, and that of the SDK is indented",
    "fail": "the SDK puts 'Error executing tool fail:' before the text",
    "crash": "the SDK sends the text of any exception, and we only the name of the tool",
}


def python_of(environments: Path, name: str) -> str:
    return str(environments / name / "bin" / "python")


def install(environments: Path, name: str, packages: Sequence[str]) -> None:
    """Make the environment of a framework, unless it holds these packages already."""
    folder = environments / name
    stamp = folder / "installed"
    wanted = "\n".join([sys.version, *packages])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    uv = shutil.which("uv")
    if uv is None:
        sys.exit("uv is not installed, which makes the environments")
    subprocess.run([uv, "venv", "-q", "--clear", "-p", sys.executable, str(folder)], check=True)
    pip = [uv, "pip", "install", "-q", "-p", python_of(environments, name)]
    subprocess.run([*pip, *packages], check=True)
    stamp.write_text(wanted, encoding="utf-8")


@contextlib.contextmanager
def target(server: Sequence[str], transport: str) -> Iterator[str]:
    """Yield the TARGET of a tour; a server with a port runs until the tour is over."""
    if transport == "stdio":
        yield json.dumps([*server, "stdio"])
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*server, transport, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}/{'mcp' if transport == 'http' else 'sse'}"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    sys.exit(f"no server listens at port {port} after {START_SECONDS} s")


def tour(python: str, framework: str, transport: str, server: Sequence[str]) -> dict[str, Any]:
    """Return the outcome of each step of a tour."""
    with target(server, transport) as text:
        try:
            done = subprocess.run(
                [python, str(HERE / "tours.py"), framework, transport, text],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=TOUR_SECONDS,
                check=False,
                env={**os.environ, "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"},
            )
        except subprocess.TimeoutExpired:
            return {"tour": {"raises": "TimeoutExpired", "text": f"no end in {TOUR_SECONDS} s"}}
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


def short(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 300 else text[:299] + "…"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("frameworks", nargs="*", choices=[*FRAMEWORKS, []], metavar="FRAMEWORK")
    parser.add_argument("--transport", choices=TRANSPORTS, action="append")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS)
    parser.add_argument("--show", action="store_true", help="print explained differences, too")
    options = parser.parse_args()
    environments: Path = options.environments
    install(environments, *CONTROL)
    control = [python_of(environments, CONTROL[0]), str(HERE / "server_sdk.py")]
    ours = [sys.executable, str(HERE / "server_ours.py")]
    tours = explained = unexplained = 0
    for framework in options.frameworks or FRAMEWORKS:
        install(environments, framework, FRAMEWORKS[framework])
        python = python_of(environments, framework)
        for transport in options.transport or TRANSPORTS:
            tours += 1
            mine = tour(python, framework, transport, ours)
            theirs = tour(python, framework, transport, control)
            counts = {"explained": 0, "unexplained": 0}
            for name, kind in differences(mine, theirs):
                has_both = name in mine and name in theirs
                reason = EXPLAINED.get(name) if kind == "value" and has_both else None
                counts["explained" if reason else "unexplained"] += 1
                if reason is None or options.show:
                    print(f"    {name}: {kind}: {reason or 'UNEXPLAINED'}")
                    print(f"        ours    {short(comparable(mine.get(name)))}")
                    print(f"        control {short(comparable(theirs.get(name)))}")
            steps = len(set(mine) | set(theirs))
            print(f"{framework} over {transport}: {steps} steps, {counts}", flush=True)
            explained += counts["explained"]
            unexplained += counts["unexplained"]
    print(f"{tours} tours, {explained} differences explained, {unexplained} unexplained")
    sys.exit(1 if unexplained else 0)


if __name__ == "__main__":
    main()
