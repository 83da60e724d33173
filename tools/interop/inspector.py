"""Use our server with the MCP Inspector's command line: `python tools/interop/inspector.py`.

The Inspector lists the tools and calls some, over each transport, with legacy and stateless
versions. Prints a table of durations; the exit status is 1 if a result was wrong, or if the
Inspector is not installed.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import attrs
from facts import FACTS
from interop_command import (
    Finished,
    new_table,
    reachable_server,
    run_command,
    run_to_end,
    show,
    wrong,
)
from peers import INSPECTOR, Command, MissingPeer, Transport, is_installed
from rich.table import Table
from sessions import OUR_SERVER

PACKAGE: Final = "@modelcontextprotocol/inspector"
PROGRAM: Final = f"node_modules/{PACKAGE}/clients/launcher/build/index.js"
AT_ONCE: Final = 2
SECONDS_MAX: Final = 30.0
SHOWN_CHARS: Final = 500

Json = dict[str, Any]

CONNECTIONS: Final[Sequence[tuple[Transport, str]]] = (
    ("stdio", "legacy"),
    ("stdio", "modern"),
    ("http", "legacy"),
    ("http", "modern"),
    ("sse", "legacy"),
)
"""The Inspector's transport and its own name for legacy or stateless protocol versions."""


@attrs.frozen
class Request:
    """A request: the Inspector's options for it, and a check of the printed result."""

    name: str
    options: Sequence[str]
    is_right: Callable[[Json], bool]


def _calls(tool: str, **arguments: str) -> list[str]:
    given = ["--tool-args-json", json.dumps(arguments)]
    return ["--method", "tools/call", "--tool-name", tool, *given]


REQUESTS: Final = (
    Request(
        "tools/list",
        ["--method", "tools/list"],
        lambda it: "test_simple_text" in [tool["name"] for tool in it["tools"]],
    ),
    Request(
        "tools/call",
        _calls("test_simple_text"),
        lambda it: bool(it["content"] == [{"type": "text", "text": FACTS.simple_text}]),
    ),
    Request(
        "tools/call with arguments",
        _calls("test_structured_content", city="Oslo"),
        lambda it: bool(it["structuredContent"] == FACTS.structured),
    ),
)


@attrs.frozen(kw_only=True)
class Result:
    """The duration of a request, and what was wrong with its result, or an empty text."""

    request: str
    connection: tuple[Transport, str]
    seconds: float
    failure: str


def run_request(
    request: Request, connection: tuple[Transport, str], server: Command, home: Path
) -> Result:
    """Let the Inspector send a request to a server, given as a command or a URL."""
    transport, mode = connection
    how = ["--transport", transport, "--protocol-era", mode, "--format", "json"]
    command = [*INSPECTOR.start(PROGRAM), "--cli", *how, *request.options, *server]
    begin = time.monotonic()
    environment = {**os.environ, "HOME": str(home)}  # where it keeps settings
    done = run_to_end(command, SECONDS_MAX, name="the Inspector", env=environment)
    return Result(
        request=request.name,
        connection=connection,
        seconds=time.monotonic() - begin,
        failure=done.failure or _failure_of(request, done),
    )


def _failure_of(request: Request, done: Finished) -> str:
    try:
        is_right = request.is_right(json.loads(done.stdout)["result"])
    except (ValueError, LookupError, TypeError):
        is_right = False
    return "" if is_right else f"the Inspector printed {done.stdout[:SHOWN_CHARS]}"


def run_all(folder: Path) -> list[Result]:
    """Send every request over every connection, two at a time."""
    if not is_installed(INSPECTOR):
        raise MissingPeer(f"{PACKAGE} {INSPECTOR.pins()[PACKAGE]}")
    with ExitStack() as stack, ThreadPoolExecutor(AT_ONCE) as pool:
        servers = dict(_servers(folder, stack))
        results = [
            pool.submit(run_request, request, connection, servers[connection[0]], folder)
            for connection in CONNECTIONS
            for request in REQUESTS
        ]
        return [result.result() for result in results]


def _servers(folder: Path, stack: ExitStack) -> Iterator[tuple[Transport, Command]]:
    """Start our servers; yield the arguments by which the Inspector reaches each."""
    ours = [sys.executable, str(OUR_SERVER)]
    for transport in dict.fromkeys(transport for transport, _ in CONNECTIONS):
        how = ["--stdio"] if transport == "stdio" else ["--port", "0"]
        log = folder / f"{transport}.log"
        yield transport, stack.enter_context(reachable_server([*ours, *how], transport, log))


def table_of(results: Sequence[Result]) -> Table:
    """Return the table of durations in seconds; red ones had a wrong result."""
    cells: Mapping[tuple[str, object], Result] = {(it.request, it.connection): it for it in results}
    connections = list(dict.fromkeys(result.connection for result in results))
    title = f"{PACKAGE} {INSPECTOR.pins()[PACKAGE]} --cli, s"
    table = new_table(title, right=map("\n".join, connections))
    for request in dict.fromkeys(result.request for result in results):
        table.add_row(request, *(_cell(cells[request, connection]) for connection in connections))
    return table


def _cell(result: Result) -> str:
    cell = f"{result.seconds:.1f}"
    return wrong(cell) if result.failure else cell


def report(results: Sequence[Result], seconds: float) -> bool:
    found = [
        f"{it.request} over {' '.join(it.connection)}: {it.failure}" for it in results if it.failure
    ]
    return show(table_of(results), found, f"{len(results)} requests, {{}}, {seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(run_command(run_all, report))
