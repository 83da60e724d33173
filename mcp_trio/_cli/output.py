"""Output for terminals: safe text, tables, and content of results."""

import binascii
import os
import shutil
import sys
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import attrs
import click

from mcp_trio.errors import RemoteProtocolError
from mcp_trio.types import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

# --------------------
# Texts as a terminal gets them: nothing of a peer's that steers it; colours; sizes in words.


_UNITS: Final = ("bytes", "KiB", "MiB", "GiB")
_STEP: Final = 1024


def printable(text: str) -> str:
    """A text on one line; what does not show, or steers a terminal, is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The same, but lines and tabs stay."""
    lines = text.split("\n")
    return "\n".join("\t".join(map(printable, line.split("\t"))) for line in lines)


def echo_theirs(text: str) -> None:
    """Print a peer's text to stdout: as it is, but harmless on a terminal."""
    click.echo(printable_lines(text) if sys.stdout.isatty() else text.encode())


def echo_error(text: str) -> None:
    """Print to stderr what somebody else may have a word in: harmless on a terminal."""
    click.echo(printable_lines(text), err=True)


def styled(text: str, *, colour: str | None = None, bold: bool = False) -> str:
    """The text with colours, which `click.echo` takes off for a file; none if NO_COLOR is set."""
    if os.environ.get("NO_COLOR") or not (colour or bold):
        return text
    return click.style(text, fg=colour, bold=bold)


def shortened(text: str, columns_max: int) -> str:
    """The text, or its beginning and an ellipsis."""
    return text if len(text) <= columns_max else f"{text[: columns_max - 1]}…"


def size(count: float) -> str:
    """A number of bytes for people: 17 bytes, 4.2 MiB."""
    for unit in _UNITS[:-1]:
        if count < _STEP:
            return _quantity(count, unit)
        count /= _STEP
    return _quantity(count, _UNITS[-1])


def _quantity(count: float, unit: str) -> str:
    return f"{count:.0f} {unit}" if isinstance(count, int) else f"{count:.1f} {unit}"


# --------------------
# Tables: cut to the screen on a terminal, plain and uncut elsewhere.
#
# Not those of rich, which take a second for a thousand rows; recordings have a hundred times that.


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
    texts = [styled(_table_line(columns, heading, widths), bold=True)]
    for line in lines:
        texts.append(styled(_table_line(columns, line.cells, widths), colour=line.colour))
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


def _table_line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(map(_justified, columns, cells, widths)).rstrip()


def _justified(column: Column, text: str, width: int) -> str:
    taken = _width(text)
    if taken > width:
        from rich.cells import set_cell_size

        return f"{set_cell_size(text, width - 1)}…"
    padding = " " * (width - taken)
    return padding + text if column.justify == "right" else text + padding


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def content_text(parts: Iterable[Content]) -> str:
    """Parts of content one under the other: texts as they are, of the rest kind, type and size."""
    return "\n".join(_TEXTS[type(part)](part) for part in parts)


def resource_text(contents: ResourceContents) -> str:
    """The text of a resource under its URI, or what kind of bytes it has."""
    if contents.text is not None:
        return f"[resource: {_joined(contents.uri, contents.mime_type)}]\n{contents.text}"
    count = size(len(resource_bytes(contents)))
    return f"[resource: {_joined(contents.uri, contents.mime_type, count)}]"


def resource_bytes(contents: ResourceContents) -> bytes:
    """The bytes of a resource; those of a text in UTF-8.

    Raises:
        RemoteProtocolError: Its blob is not base64.
    """
    if contents.text is not None:
        return contents.text.encode()
    return _decoded(contents.blob or "", contents.uri)


def _image_text(image: ImageContent) -> str:
    return f"[image: {image.mime_type}, {size(len(_decoded(image.data, 'an image')))}]"


def _audio_text(audio: AudioContent) -> str:
    return f"[audio: {audio.mime_type}, {size(len(_decoded(audio.data, 'audio')))}]"


def _link_text(link: ResourceLink) -> str:
    return f"[link: {_joined(link.uri, link.mime_type)}]"


def _decoded(text: str, what: str) -> bytes:
    try:
        return b64decode(text)
    except (binascii.Error, ValueError) as error:
        raise RemoteProtocolError(f"{what}: the data are not base64: {error}") from error


def _joined(*facts: str | None) -> str:
    return ", ".join(fact for fact in facts if fact is not None)


def _text(part: TextContent) -> str:
    return part.text


def _embedded_text(part: EmbeddedResource) -> str:
    return resource_text(part.resource)


_TEXTS: Final[Mapping[type[Content], Callable[[Any], str]]] = {
    TextContent: _text,
    ImageContent: _image_text,
    AudioContent: _audio_text,
    ResourceLink: _link_text,
    EmbeddedResource: _embedded_text,
}
