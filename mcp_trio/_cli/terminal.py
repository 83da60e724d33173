"""Texts as a terminal gets them: nothing of a peer's that steers it; colours; sizes in words."""

import os
import sys
from typing import Final

import click

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
