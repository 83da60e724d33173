"""Progress on stderr while a command takes its time: bars on a terminal, or lines."""

import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)

from mcp_trio._cli.output import printable
from mcp_trio._session.calls import ProgressCallback
from mcp_trio.limits import MIB
from mcp_trio.types import ProgressParams

# What takes less shows no bar.
PATIENCE_SECONDS: Final = 1.0
# A bar that moves with every line costs more than reading the line.
_STEP_BYTES: Final = MIB


# A call.


@contextmanager
def call_progress(
    name: str, *, on_any_stderr: bool
) -> Generator[ProgressCallback | None, None, None]:
    """Who hears of a call's progress: a bar on a terminal, else lines if they are wanted."""
    if sys.stderr.isatty():
        with _bar(TextColumn("{task.fields[amount]}")) as bar:
            yield _BarOfCall(bar, name).report
    else:
        yield _print_report if on_any_stderr else None


# Set while somebody types on the terminal; then nothing may move there.
_hidden: Final = threading.Event()
_bars: Final[set[Progress]] = set()


@contextmanager
def bars_hidden() -> Generator[None, None, None]:
    """Take the bars off the screen for a question; the next report shows them again."""
    _hidden.set()
    for bar in _bars:
        bar.stop()
    try:
        yield
    finally:
        _hidden.clear()


class _BarOfCall:
    """The bar of a call, which is shown from the first report on."""

    def __init__(self, bar: Progress, name: str) -> None:
        self._bar = bar
        self._task = bar.add_task(name, amount="")

    def report(self, params: ProgressParams) -> None:
        """Move the bar."""
        if not _hidden.is_set():
            self._bar.start()
        self._bar.update(
            self._task,
            completed=params.progress,
            total=params.total,
            amount=_amount(params),
        )


def _print_report(params: ProgressParams) -> None:
    click.echo(f"progress: {_amount(params)}", err=True)


def _amount(params: ProgressParams) -> str:
    of = "" if params.total is None else f" of {params.total:g}"
    message = "" if params.message is None else f" {printable(params.message)}"
    return f"{params.progress:g}{of}{message}"


# A long file, a long replay.


@contextmanager
def patience(what: str, *, seconds: float = PATIENCE_SECONDS) -> Generator[None, None, None]:
    """Show on a terminal that something runs, if it does so for long."""
    if sys.stderr.isatty():
        with _bar() as bar, _started_after(bar, seconds):
            bar.add_task(what, total=None)
            yield
    else:
        yield


def counted(
    lines: Iterable[bytes],
    what: str,
    *,
    total_bytes: int | None,
    seconds: float = PATIENCE_SECONDS,
) -> Iterator[bytes]:
    """The lines; on a terminal it is shown how many bytes of them went by, if that takes long."""
    if not sys.stderr.isatty():
        yield from lines
        return
    with _bar(DownloadColumn()) as bar, _started_after(bar, seconds):
        task = bar.add_task(what, total=total_bytes)
        seen_bytes = 0
        for line in lines:
            seen_bytes += len(line)
            if seen_bytes >= _STEP_BYTES:
                bar.advance(task, seen_bytes)
                seen_bytes = 0
            yield line


@contextmanager
def _bar(*columns: ProgressColumn) -> Generator[Progress, None, None]:
    """A bar that nobody sees yet, and that leaves nothing on the screen."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    _bars.add(bar)
    try:
        yield bar
    finally:
        _bars.discard(bar)
        bar.stop()


@contextmanager
def _started_after(bar: Progress, seconds: float) -> Generator[None, None, None]:
    timer = threading.Timer(seconds, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
