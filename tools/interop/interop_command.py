"""The parts of every interop command: arguments, programs of clients and servers, and tables."""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import attrs
import trio
from facts import HUB
from peers import SDKS, Command, MissingPeer, Peer, Transport
from rich import box
from rich.console import Console
from rich.table import Table

sys.path.append(str(Path(__file__).resolve().parents[1]))

from server_processes import last_lines, running_server

Outcome = TypeVar("Outcome")

# Wide enough for every column, also when the output is no terminal.
_CONSOLE: Final = Console(width=140, highlight=False)


def peer_parser(description: str, *, such_as: str) -> argparse.ArgumentParser:
    """Return a parser of peer names, to which the command adds its own options."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"only these, such as {such_as!r}")
    return parser


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str], known: Collection[str]
) -> argparse.Namespace:
    """Parse the arguments; exit with an error if a peer name is unknown."""
    options = parser.parse_args(arguments)
    if unknown := set(options.peers) - set(known):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}")
    return options


def sdks(names: Collection[str]) -> list[Peer]:
    """Return the official SDKs with these names, or all of them if no names are given."""
    return [peer for peer in SDKS if peer.name in names or not names]


def run_command(
    run: Callable[[Path], Sequence[Outcome]], report: Callable[[Sequence[Outcome], float], bool]
) -> int:
    """Run sessions in a temporary folder, report the outcomes, and return the exit status.

    The status is also 1 if there was nothing to run, or if a peer is not installed.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mcp_trio-interop-") as folder:
        try:
            outcomes = run(Path(folder).resolve())
        except MissingPeer as error:
            print(error, file=sys.stderr)
            return 1
    if not outcomes:
        print("no sessions were selected", file=sys.stderr)
        return 1
    return 0 if report(outcomes, time.monotonic() - begin) else 1


def new_table(*headings: str, right: Iterable[str] = ()) -> Table:
    """Return an empty table, with rules if the output is a terminal.

    The columns of `right` follow the others, and are aligned to the right.
    """
    table = Table(box=box.SIMPLE_HEAD if _CONSOLE.is_terminal else None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, no_wrap=not table.columns)
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def wrong(cell: str) -> str:
    """Return the cell of a wrong outcome."""
    return f"[bold red]{cell}[/]"


def show(table: Table | None, problems: Iterable[str] = (), summary: str = "") -> bool:
    """Print a table, the problems in red, and a summary; return whether there are no problems."""
    if table is not None:
        _CONSOLE.print(table)
    found = list(problems)
    for problem in found:
        _CONSOLE.print(problem, markup=False, style="red", soft_wrap=True)
    if summary:
        print(summary.format(f"{len(found)} problems"))
    return not found


URLS: Final[Mapping[Transport, str]] = {
    "http": "http://{}/mcp",
    "sse": "http://{}/sse",
    "websocket": "ws://{}/ws",
}
COMMAND_PREFIXES: Final[Mapping[Transport, Command]] = {"stdio": [], "dialled": [HUB]}


@contextmanager
def reachable_server(command: Command, transport: Transport, log: Path) -> Generator[Command]:
    """Run a server, if it has a URL, and yield the arguments by which a client reaches it.

    Over stdio the client starts the server itself: the arguments are the server's command.
    A server that dials gets the word "hub" before its command: the client then listens.
    """
    if transport in COMMAND_PREFIXES:
        yield [*COMMAND_PREFIXES[transport], *command]
        return
    with running_server(command, log) as server:
        yield [URLS[transport].format(server.address)]


NO_END: Final = "no end"
"""The failure of a program that has to be killed begins with these words."""


class Finished(NamedTuple):
    """The output of a program that has been run, and how it failed, or an empty text."""

    stdout: str
    stderr: str
    failure: str

    @property
    def checks(self) -> int | None:
        """The number of checks that a client of the scenario printed at its end."""
        found = re.search(r"^([0-9]+) checks$", self.stdout, re.MULTILINE)
        return int(found[1]) if found else None


def run_to_end(
    command: Sequence[str], seconds: float, *, name: str = "the client", **options: Any
) -> Finished:
    """Run a program, with options of `subprocess.run`; kill it after so many seconds."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=seconds, **options
        )
    except subprocess.TimeoutExpired as error:
        return Finished("", "", _failure(f"{NO_END} after {seconds:g} s", error.stderr or b""))
    exited = f"{name} exited with {done.returncode}"
    failure = _failure(exited, done.stderr or done.stdout) if done.returncode else ""
    return Finished(done.stdout, done.stderr, failure)


def _failure(text: str, output: str | bytes) -> str:
    tail = last_lines(output)
    return f"{text}: {tail}" if tail else text


@attrs.define(kw_only=True)
class Progress:
    """The outcomes of a program's steps, as printed so far, and its last line on stderr."""

    outcomes: dict[str, str] = attrs.field(factory=dict[str, str])
    last_error: str = ""

    def note(self, line: str) -> None:
        """Store a printed line of the form "step: outcome"."""
        step, _, outcome = line.partition(": ")
        self.outcomes[step] = outcome

    def note_error(self, line: str) -> None:
        self.last_error = line or self.last_error


async def run_program(
    command: Sequence[str], note: Callable[[str], None], note_error: Callable[[str], None]
) -> int:
    """Run a program, pass on each line of its output, and return its exit status.

    Cancellation kills the program.
    """
    run = partial(
        trio.run_process, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False
    )
    async with trio.open_nursery() as nursery:
        process: trio.Process = await nursery.start(run)
        assert process.stdout is not None
        assert process.stderr is not None
        nursery.start_soon(read_lines, process.stdout, note)
        nursery.start_soon(read_lines, process.stderr, note_error)
    return await process.wait()


async def read_lines(stream: trio.abc.ReceiveStream, note: Callable[[str], None]) -> None:
    rest = b""
    async for chunk in stream:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            note(line.decode("utf-8", "replace"))
