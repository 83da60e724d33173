"""The frame of a command that holds sessions with peers: arguments, output, exit status."""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, TypeVar

from peers import SDKS, MissingPeer, Peer
from rich import box
from rich.console import Console
from rich.table import Table

Outcome = TypeVar("Outcome")

# Wide enough for every column, also when the output is no terminal.
_CONSOLE: Final = Console(width=140, highlight=False)


def peer_parser(description: str, *, such_as: str) -> argparse.ArgumentParser:
    """A parser of the names of peers, to which a command may add its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"only these, such as {such_as!r}")
    return parser


def parse(
    parser: argparse.ArgumentParser, arguments: Sequence[str], known: Collection[str]
) -> argparse.Namespace:
    """The options.

    Raises:
        SystemExit: There is a peer that is not known.
    """
    options = parser.parse_args(arguments)
    if unknown := set(options.peers) - set(known):
        parser.error(f"no peers: {', '.join(sorted(unknown))}")
    return options


def sdks(names: Collection[str]) -> list[Peer]:
    """The official SDKs of these names; without any, all of them."""
    return [peer for peer in SDKS if peer.name in names or not names]


def sit(
    hold: Callable[[Path], Sequence[Outcome]], report: Callable[[Sequence[Outcome], float], bool]
) -> int:
    """Hold sessions in a folder that is gone afterwards, and report; the exit status.

    It is 1 if there was nothing to hold: that shows nothing.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mcp_trio-interop-") as folder:
        try:
            outcomes = hold(Path(folder).resolve())
        except MissingPeer as error:
            print(error, file=sys.stderr)
            return 1
    if not outcomes:
        print("there was nothing to do", file=sys.stderr)
        return 1
    return 0 if report(outcomes, time.monotonic() - begin) else 1


def empty_table() -> Table:
    """A table, with lines where a person looks at it."""
    return Table(box=box.SIMPLE_HEAD if _CONSOLE.is_terminal else None, pad_edge=False)


def show(table: Table | None, complaints: Iterable[str]) -> None:
    """Print what was found, and what must not be."""
    if table is not None:
        _CONSOLE.print(table)
    for complaint in complaints:
        _CONSOLE.print(complaint, markup=False, style="red", soft_wrap=True)
