"""What the MCP Inspector's command line sees of our server: `python tools/interop/inspector.py`.

It lists the tools and calls some, over each transport and in each era. Prints a table of what it
took; the exit status is 1 if it complained, or saw something else, or is not installed.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
from facts import FACTS
from interop_command import empty_table, show, sit
from peers import INSPECTOR, Command, MissingPeer, Transport, is_installed
from rich.table import Table
from server_location import last_lines, reachable
from sessions import OUR_SERVER

PACKAGE: Final = "@modelcontextprotocol/inspector"
PROGRAM: Final = f"node_modules/{PACKAGE}/clients/launcher/build/index.js"
AT_ONCE: Final = 2
SECONDS_MAX: Final = 30.0
SHOWN_CHARS: Final = 500

Json = dict[str, Any]

PLACES: Final[Sequence[tuple[Transport, str]]] = (
    ("stdio", "legacy"),
    ("stdio", "modern"),
    ("http", "legacy"),
    ("http", "modern"),
    ("sse", "legacy"),
)
"""Where it meets our server, and what it is told to speak."""


@attrs.frozen
class Errand:
    """Something that it is to do: what it is told, and whether what it prints is right."""

    name: str
    options: Sequence[str]
    is_right: Callable[[Json], bool]


def _calls(tool: str, **arguments: str) -> list[str]:
    given = ["--tool-args-json", json.dumps(arguments)]
    return ["--method", "tools/call", "--tool-name", tool, *given]


ERRANDS: Final = (
    Errand(
        "tools/list",
        ["--method", "tools/list"],
        lambda it: "test_simple_text" in [tool["name"] for tool in it["tools"]],
    ),
    Errand(
        "tools/call",
        _calls("test_simple_text"),
        lambda it: bool(it["content"] == [{"type": "text", "text": FACTS.simple_text}]),
    ),
    Errand(
        "tools/call with arguments",
        _calls("test_structured_content", city="Oslo"),
        lambda it: bool(it["structuredContent"] == FACTS.structured),
    ),
)


@attrs.frozen(kw_only=True)
class Sight:
    """What came of an errand; `fault` is what is wrong with that, or nothing."""

    errand: str
    place: tuple[Transport, str]
    seconds: float
    fault: str


def see(errand: Errand, place: tuple[Transport, str], server: Command, home: Path) -> Sight:
    """Send it on an errand to a server, which is a command or a URL."""
    transport, era = place
    how = ["--transport", transport, "--protocol-era", era, "--format", "json"]
    command = [*INSPECTOR.start(PROGRAM), "--cli", *how, *errand.options, *server]
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
            env={**os.environ, "HOME": str(home)},  # where it keeps settings
        )
        fault = _fault_of(errand, done)
    except subprocess.TimeoutExpired:
        fault = f"no end after {SECONDS_MAX:g} s"
    return Sight(errand=errand.name, place=place, seconds=time.monotonic() - begin, fault=fault)


def _fault_of(errand: Errand, done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode:
        return f"it exited with {done.returncode}: {last_lines(done.stderr + done.stdout)}"
    try:
        is_right = errand.is_right(json.loads(done.stdout)["result"])
    except (ValueError, LookupError, TypeError):
        is_right = False
    return "" if is_right else f"it printed {done.stdout[:SHOWN_CHARS]}"


def see_all(folder: Path) -> list[Sight]:
    """Send it on every errand to every place.

    Raises:
        MissingPeer: It is not installed.
        ServerFailed: Our server does not serve, or does not stop.
    """
    if not is_installed(INSPECTOR):
        raise MissingPeer(f"{PACKAGE} {INSPECTOR.pins()[PACKAGE]}")
    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        servers = dict(_servers(folder, stack))
        sights = [
            pool.submit(see, errand, place, servers[place[0]], folder)
            for place in PLACES
            for errand in ERRANDS
        ]
        return [sight.result() for sight in sights]


def _servers(folder: Path, stack: ExitStack) -> Iterator[tuple[Transport, Command]]:
    """Our servers, as it is told of them."""
    ours = [sys.executable, str(OUR_SERVER)]
    for transport in dict.fromkeys(transport for transport, _ in PLACES):
        how = ["--stdio"] if transport == "stdio" else ["--port", "0"]
        log = folder / f"{transport}.log"
        yield transport, stack.enter_context(reachable([*ours, *how], transport, log))


def table_of(sights: Sequence[Sight]) -> Table:
    """How long each took, in seconds; red if it was not right."""
    cells: Mapping[tuple[str, object], Sight] = {(it.errand, it.place): it for it in sights}
    table = empty_table()
    table.add_column(f"{PACKAGE} {INSPECTOR.pins()[PACKAGE]} --cli, s", no_wrap=True)
    places = list(dict.fromkeys(sight.place for sight in sights))
    for place in places:
        table.add_column("\n".join(place), justify="right")
    for errand in dict.fromkeys(sight.errand for sight in sights):
        table.add_row(errand, *(_cell(cells[errand, place]) for place in places))
    return table


def _cell(sight: Sight) -> str:
    return f"[bold red]{sight.seconds:.1f}[/]" if sight.fault else f"{sight.seconds:.1f}"


def report(sights: Sequence[Sight], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    found = [f"{it.errand} over {' '.join(it.place)}: {it.fault}" for it in sights if it.fault]
    show(table_of(sights), found)
    print(f"{len(sights)} errands, {len(found)} complaints, {seconds:.0f} s")
    return not found


if __name__ == "__main__":
    sys.exit(sit(see_all, report))
