"""Output for terminals: safe text, tables, contents of results, and progress bars."""

import logging
import os
import shutil
import sys
import threading
import time
from base64 import b64decode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Final, Literal, TextIO, TypeVar

import click
import msgspec

from mcp_trio.errors import RemoteProtocolError
from mcp_trio.limits import MIB
from mcp_trio.types import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    ProgressParams,
    ResourceContents,
    ResourceLink,
    TextContent,
)

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn

    from mcp_trio._session.calls import ProgressCallback

# Text that is safe on a terminal.

_UNIT_STEP: Final = 1024


def printable(text: str) -> str:
    """Return the text as one line, with control and other unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """Return the text with unprintable characters escaped, except line ends and tabs."""
    lines = text.split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)


def echo_peer_text(text: str) -> None:
    """Print text from a peer to stdout: unchanged, but with escapes on a terminal."""
    click.echo(printable_lines(text) if sys.stdout.isatty() else text.encode())


def echo_text(text: str) -> None:
    """Print to stdout a text that may quote a peer or a recording, with escapes."""
    click.echo(printable_lines(text))


def echo_error(text: str) -> None:
    """Print to stderr a text that may quote a peer, with unprintable characters escaped."""
    click.echo(printable_lines(text), err=True)


def echo_json(data: bytes, *, nl: bool = True) -> None:
    r"""Print JSON to stdout: unchanged, but on a terminal with unprintable characters as `\uXXXX`.

    The escaped JSON has the same value. Within strings, the JSON of any encoder has escapes already
    for the control characters of ASCII, except DEL.
    """
    if sys.stdout.isatty():
        pieces: list[str] = []
        for character in data.decode(errors="replace").replace("\r", " "):
            if character.isprintable() or character in "\n\t":
                pieces.append(character)
            else:
                units = character.encode("utf-16-be", "surrogatepass")
                pieces += (f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        data = "".join(pieces).encode()
    click.echo(data, nl=nl)


def prints_to_stderr() -> AbstractContextManager[TextIO]:
    """Return a context in which `print` writes to stderr.

    Handlers and servers in this process may print, but stdout is for the output of the command.
    """
    return redirect_stdout(sys.stderr)


class PrintableFormatter(logging.Formatter):
    """A formatter of log lines in which text from peers cannot control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with unprintable characters escaped."""
        return printable_lines(super().format(record))


def styled(text: str, *, colour: str | None = None, bold: bool = False) -> str:
    """Return the text in colour; `click.echo` removes colours unless it prints to a terminal.

    The text stays as it is if the environment variable NO_COLOR is set.
    """
    if os.environ.get("NO_COLOR") or not (colour or bold):
        return text
    return click.style(text, fg=colour, bold=bold)


def size_text(count: float) -> str:
    """Return a number of bytes with its unit, such as `17 bytes` or `4.2 MiB`."""
    if count < _UNIT_STEP:
        return f"{count:.0f} bytes"
    exponent = min((int(count).bit_length() - 1) // 10, 3)
    return f"{count / _UNIT_STEP**exponent:.1f} {' KMG'[exponent]}iB"


# Tables: cut to the screen on a terminal, complete elsewhere.
#
# The tables of rich take a second for a thousand rows, and a recording may have a hundred times as
# many.

# A narrower screen wraps the rows; cutting the columns further would make them unreadable.
SCREEN_COLUMNS_MIN: Final = 110
_LAST_COLUMNS_MIN: Final = 20
_GAP: Final = "  "


class Column(msgspec.Struct, frozen=True):
    """A column's heading, alignment and maximum width; the last column gets what is left."""

    name: str
    justify: Literal["left", "right"] = "left"
    screen_columns_max: int = 60


class Line(msgspec.Struct, frozen=True):
    """A row of a table, its colour, and a text to print below it without cutting it."""

    cells: tuple[str, ...]
    colour: str | None = None
    below: str | None = None


def print_table(columns: Sequence[Column], lines: Sequence[Line]) -> None:
    """Print a heading and the lines to stdout, with unprintable characters escaped."""
    lines = [
        msgspec.structs.replace(
            line,
            cells=tuple(map(printable, line.cells)),
            below=None if line.below is None else printable_lines(line.below),
        )
        for line in lines
    ]
    heading = tuple(column.name for column in columns)
    rows = [heading, *(line.cells for line in lines)]
    widths = [max(map(_width, cells)) for cells in zip(*rows, strict=True)]
    if sys.stdout.isatty():  # the columns are cut if the screen is too narrow
        screen_columns = max(shutil.get_terminal_size().columns, SCREEN_COLUMNS_MIN)
        *firsts, last = widths
        firsts = list(map(min, firsts, (column.screen_columns_max for column in columns)))
        room = screen_columns - sum(firsts) - len(_GAP) * len(firsts)
        widths = [*firsts, min(last, max(room, _LAST_COLUMNS_MIN))]
    texts = [styled(_table_line(columns, heading, widths), bold=True)]
    for line in lines:
        texts.append(styled(_table_line(columns, line.cells, widths), colour=line.colour))
        if line.below is not None:
            texts.append(f"{_GAP}{line.below}")
    click.echo("\n".join(texts))  # one call, because each call flushes


def _table_line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    texts: list[str] = []
    for column, text, width in zip(columns, cells, widths, strict=True):
        text_width = _width(text)
        padding = " " * (width - text_width)
        if text_width > width:
            from rich.cells import set_cell_size

            texts.append(f"{set_cell_size(text, width - 1)}…")
        else:
            texts.append(padding + text if column.justify == "right" else text + padding)
    return _GAP.join(texts).rstrip()


def _width(text: str) -> int:
    """Return the number of terminal columns that the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


# Contents of results.


def content_text(parts: Iterable[Content]) -> str:
    """Return texts as they are, and the kind, type and size of other content, one per line."""
    texts: list[str] = []
    for part in parts:
        match part:
            case TextContent():
                texts.append(part.text)
            case ImageContent():
                count = size_text(len(_decoded(part.data, "an image")))
                texts.append(f"[image: {part.mime_type}, {count}]")
            case AudioContent():
                count = size_text(len(_decoded(part.data, "audio")))
                texts.append(f"[audio: {part.mime_type}, {count}]")
            case ResourceLink():
                texts.append(f"[link: {_joined(part.uri, part.mime_type)}]")
            case EmbeddedResource():
                texts.append(resource_text(part.resource))
    return "\n".join(texts)


def resource_text(contents: ResourceContents) -> str:
    """Return a resource's URI and type, and below them its text, or after them its size."""
    if contents.text is not None:
        return f"[resource: {_joined(contents.uri, contents.mime_type)}]\n{contents.text}"
    count = size_text(len(resource_bytes(contents)))
    return f"[resource: {_joined(contents.uri, contents.mime_type, count)}]"


def resource_bytes(contents: ResourceContents) -> bytes:
    """Return the bytes of a resource; a text is encoded in UTF-8.

    Raises:
        RemoteProtocolError: The resource's blob is not base64.
    """
    if contents.text is not None:
        return contents.text.encode()
    return _decoded(contents.blob or "", contents.uri)


def _decoded(text: str, source: str) -> bytes:
    try:
        return b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise RemoteProtocolError(f"{source}: the data are not base64: {error}") from error


def _joined(*facts: str | None) -> str:
    return ", ".join(fact for fact in facts if fact is not None)


# Progress on stderr: a bar on a terminal, lines elsewhere.

# Faster work shows no bar.
_BAR_DELAY_SECONDS: Final = 1.0
# Updating the bar for every line would cost more than reading the line.
_UPDATE_BYTES: Final = MIB

# Set while a question is asked on the terminal: bars must not be drawn over it.
_are_bars_hidden: Final = threading.Event()
_bars: Final["set[Progress]"] = set()


@contextmanager
def hidden_bars() -> Generator[None, None, None]:
    """Within this context, no bar is drawn; the next update draws it again afterwards."""
    _are_bars_hidden.set()
    for bar in _bars:
        bar.stop()
    try:
        yield
    finally:
        _are_bars_hidden.clear()


@contextmanager
def call_bar(name: str, *, on_any_stderr: bool) -> "Generator[ProgressCallback | None, None, None]":
    """Yield a callback for a call's progress, which draws a bar on a terminal.

    If stderr is not a terminal, the callback prints a line for each report with `on_any_stderr`,
    and is None without it.
    """
    if not sys.stderr.isatty():
        yield (
            (lambda params: click.echo(f"progress: {_amount(params)}", err=True))
            if on_any_stderr
            else None
        )
        return

    from rich.progress import TextColumn

    with _bar(TextColumn("{task.fields[amount]}", markup=False), is_delayed=False) as bar:
        task = bar.add_task(name, amount="")

        def report(params: ProgressParams) -> None:
            if not _are_bars_hidden.is_set():
                bar.start()
            bar.update(task, completed=params.progress, total=params.total, amount=_amount(params))

        yield report


def _amount(params: ProgressParams) -> str:
    of = "" if params.total is None else f" of {params.total:g}"
    message = "" if params.message is None else f" {printable(params.message)}"
    return f"{params.progress:g}{of}{message}"


@contextmanager
def busy_bar(text: str) -> Generator[None, None, None]:
    """Within this context, show a bar on a terminal if the work takes long."""
    if sys.stderr.isatty():
        with _bar() as bar:
            bar.add_task(text, total=None)
            yield
    else:
        yield


@contextmanager
def counting_bar(
    text: str, total: int, *, in_thread: bool = True
) -> Generator[Callable[[], None], None, None]:
    """Yield a function to call for each step, which a bar on a terminal shows.

    If there are more steps than `total`, the bar stays full. Unless it is drawn `in_thread`, for
    work that forks this process, only a step draws it.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return

    from rich.progress import MofNCompleteColumn

    begin = time.monotonic()
    with _bar(MofNCompleteColumn(), in_thread=in_thread, is_delayed=in_thread) as bar:
        task = bar.add_task(text, total=total)

        def advance() -> None:
            bar.advance(task)
            completed = bar.tasks[task].completed
            bar.update(task, total=max(total, completed))
            if not in_thread and time.monotonic() - begin > _BAR_DELAY_SECONDS:
                bar.start()
                bar.refresh()

        yield advance


_Item = TypeVar("_Item")


def items_with_bar(items: Iterable[_Item], text: str, total: int) -> Iterator[_Item]:
    """Yield the items; on a terminal, count them in a bar if that takes long."""
    with counting_bar(text, total) as advance:
        for item in items:
            yield item
            advance()


def lines_with_bar(
    lines: Iterable[bytes], text: str, *, total_bytes: int | None
) -> Iterator[bytes]:
    """Yield the lines; on a terminal, show the bytes read if that takes long."""
    if not sys.stderr.isatty():
        yield from lines
        return

    from rich.progress import DownloadColumn

    with _bar(DownloadColumn()) as bar:
        task = bar.add_task(text, total=total_bytes)
        read_bytes = 0
        for line in lines:
            read_bytes += len(line)
            if read_bytes >= _UPDATE_BYTES:
                bar.advance(task, read_bytes)
                read_bytes = 0
            yield line


@contextmanager
def _bar(
    *columns: "ProgressColumn", in_thread: bool = True, is_delayed: bool = True
) -> "Generator[Progress, None, None]":
    """Yield a bar that is erased at the end, and drawn by a thread or not.

    It is drawn once it is started, which a timer does if `is_delayed`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        *columns,
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=in_thread,
    )
    _bars.add(bar)
    timer = threading.Timer(_BAR_DELAY_SECONDS, bar.start)
    timer.daemon = True
    if is_delayed:
        timer.start()
    try:
        yield bar
    finally:
        if is_delayed:
            timer.cancel()
            timer.join()
        _bars.discard(bar)
        bar.stop()
