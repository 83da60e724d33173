"""`mcp-trio show`: a recording as a timeline."""

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal

import click

if TYPE_CHECKING:
    from mcp_trio._cli.timeline import Row, Tally

ARROWS: Final = {"to server": "->", "to client": "<-", None: ""}
STYLES: Final = {"error": "red", "cancelled": "yellow", None: ""}
# The columns and how they are justified. What stands in them is told by `_cells`, in this order.
COLUMNS: Final[Mapping[str, Literal["left", "right"]]] = {
    "record": "right",
    "ms": "right",
    "lane": "left",
    "kind": "left",
    "": "left",
    "what": "left",
    "id": "right",
    "bytes": "right",
    "took ms": "right",
    "note": "left",
}
_WHAT, _NOTE = (list(COLUMNS).index(name) for name in ("what", "note"))
# A narrower screen wraps the rows, which is better than losing columns.
SCREEN_COLUMNS_MIN: Final = 110
SCREEN_WHAT_COLUMNS_MAX: Final = 48
# Wider than nearly any row: where nobody looks at a screen, nothing is cut to its width.
PLAIN_COLUMNS: Final = 10_000


@click.command(
    short_help="A recording as a timeline.",
    epilog="""\b
-> goes to the server, <- to the client. An answer says how long its request took.

\b
Examples:
  mcp-trio show recordings/trip.mcprec.jsonl
  mcp-trio show --json recordings/trip.mcprec.jsonl | jq 'select(.took_ms > 100)'
""",
)
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for other programs.")
def show(file: str, as_json: bool) -> None:  # noqa: FBT001  click passes a flag by its name
    """Show the recording FILE as a timeline."""
    if as_json:
        print_json(file)
    else:
        print_timeline(file)


def print_json(file: str | os.PathLike[str]) -> None:
    """Print the rows of a recording, an object each.

    Raises:
        RecordingError: The file is no recording.
    """
    import msgspec

    rows, _ = read_rows(file)
    for row in rows:
        click.echo(msgspec.json.encode(row))


def print_timeline(file: str | os.PathLike[str]) -> None:
    """Print a recording as a table: coloured on a terminal, plain and uncut elsewhere.

    Raises:
        RecordingError: The file is no recording.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows, tally = read_rows(file)
    screen = Console()
    width = max(screen.width, SCREEN_COLUMNS_MIN) if screen.is_terminal else PLAIN_COLUMNS
    console = Console(highlight=False, width=width)
    table = Table(box=None, pad_edge=False, header_style="bold", expand=screen.is_terminal)
    for name, justify in COLUMNS.items():
        table.add_column(name, justify=justify, no_wrap=True)
    if screen.is_terminal:
        table.columns[_WHAT].max_width = SCREEN_WHAT_COLUMNS_MAX
        table.columns[_NOTE].ratio = 1
    for row in rows:
        table.add_row(*map(Text, _cells(row)), style=STYLES[row.outcome])
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())
    click.echo(f"\n{summary(tally)}")


def read_rows(file: str | os.PathLike[str]) -> "tuple[list[Row], Tally]":
    """All rows of a recording, and their tally.

    Raises:
        RecordingError: The file is no recording.
    """
    from mcp_trio._cli.timeline import Tally, timeline
    from mcp_trio._journal.reader import read_recording
    from mcp_trio._recorder.sink import open_recording

    tally = Tally()
    return list(timeline(read_recording(open_recording(file)), tally)), tally


def summary(tally: "Tally") -> str:
    """A tally in one line."""
    import attrs

    return ", ".join(f"{name} {count}" for name, count in attrs.asdict(tally).items())


def _cells(row: "Row") -> Iterable[str]:
    yield _number(row.record)
    yield _ms(row.ms)
    yield row.lane or ""
    yield row.kind
    yield ARROWS[row.direction]
    yield _printable(row.what)
    yield _printable(_number(row.id))
    yield _number(row.size_bytes)
    yield _ms(row.took_ms)
    yield _printable(row.note)


def _number(value: int | str | None) -> str:
    return "" if value is None else str(value)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _printable(text: str) -> str:
    """What a peer sent, without what would steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
