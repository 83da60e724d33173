"""Tables: cut to the screen on a terminal, plain and uncut elsewhere.

Not those of rich, which take a second for a thousand rows; recordings have a hundred times that.
"""

import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import attrs
import click
from rich.cells import cell_len, set_cell_size

from mcp_trio._cli.terminal import styled

# A narrower screen wraps the rows, which is better than losing columns.
SCREEN_COLUMNS_MIN: Final = 110
_LAST_COLUMNS_MIN: Final = 20
_GAP: Final = "  "


@attrs.frozen
class Column:
    """A heading, and how wide the column may be on a screen; the last one gets what is left."""

    name: str
    justify: Literal["left", "right"] = "left"
    screen_columns_max: int = 60


@attrs.frozen
class Line:
    """A row of a table, its colour, and what stands below it in full."""

    cells: tuple[str, ...]
    colour: str | None = None
    below: str | None = None


def print_table(columns: Sequence[Column], lines: Sequence[Line]) -> None:
    """Print a heading and the lines to stdout."""
    heading = tuple(column.name for column in columns)
    widths = _widths(columns, [heading, *(line.cells for line in lines)])
    texts = [styled(_text(columns, heading, widths), bold=True)]
    for line in lines:
        texts.append(styled(_text(columns, line.cells, widths), colour=line.colour))
        if line.below is not None:
            texts.append(f"{_GAP}{line.below}")
    click.echo("\n".join(texts))  # once: each call flushes


def _widths(columns: Sequence[Column], rows: Iterable[tuple[str, ...]]) -> list[int]:
    """How wide each column is: enough for all of its cells, but that all fit on the screen."""
    widths = [max(map(_width, cells)) for cells in zip(*rows, strict=True)]
    screen_columns = _screen_columns()
    if screen_columns is None:
        return widths
    *firsts, last = widths
    firsts = list(map(min, firsts, (column.screen_columns_max for column in columns)))
    room = screen_columns - sum(firsts) - len(_GAP) * len(firsts)
    return [*firsts, min(last, max(room, _LAST_COLUMNS_MIN))]


def _screen_columns() -> int | None:
    """How wide the screen is; None if there is none."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, SCREEN_COLUMNS_MIN)


def _text(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(map(_justified, columns, cells, widths)).rstrip()


def _justified(column: Column, text: str, width: int) -> str:
    taken = _width(text)
    if taken > width:
        return f"{set_cell_size(text, width - 1)}…"
    padding = " " * (width - taken)
    return padding + text if column.justify == "right" else text + padding


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)
