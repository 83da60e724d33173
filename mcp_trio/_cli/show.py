"""`mcp-trio show`: a recording as a timeline."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import click

from mcp_trio._cli.parameters import together
from mcp_trio._cli.selection import Selection, bound

if TYPE_CHECKING:
    from mcp_trio._cli.timeline import Direction, Row, Tally
    from mcp_trio._journal.reader import Flaw
    from mcp_trio._journal.records import Record

_Path = str | os.PathLike[str]

ARROWS: Final["Mapping[Direction | None, str]"] = {"to server": "->", "to client": "<-", None: ""}
COLOURS: Final = {"error": "red", "cancelled": "yellow", None: None}
# Stands before the number of a row with an outcome, where there are no colours to see it by.
SIGNS: Final = {"error": "!", "cancelled": "~", None: ""}
_SCREEN_WHAT_COLUMNS_MAX: Final = 48


def _kinds(_: click.Context, __: click.Parameter, words: str | None) -> frozenset[str]:
    from mcp_trio._journal.records import KINDS

    kinds = frozenset(words.split(",") if words else ())
    for kind in kinds - KINDS.keys():
        raise click.BadParameter(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    return kinds


# What makes up a `Selection`.
_selecting: Final = together(
    click.option(
        "--channel", type=int, metavar="N", help="Of this session only, in a recording of several."
    ),
    click.option("--lane", metavar="LANE", help="Of this lane, such as r12: a request's number."),
    click.option("--method", metavar="GLOB", help="Of these methods, such as 'tools/*'."),
    click.option("--id", metavar="ID", help="Of requests with this id."),
    click.option("--errors", is_flag=True, help="Errors only."),
    click.option(
        "--slower-than", metavar="MS", type=float, help="What took more than these milliseconds."
    ),
    click.option(
        "--kind", "kinds", metavar="KIND,...", callback=_kinds, help="These kinds of records only."
    ),
    click.option(
        "--from",
        "begin",
        metavar="PLACE",
        callback=bound,
        help="Nothing before this record (12) or time in seconds (1.5s).",
    ),
    click.option(
        "--to", "end", metavar="PLACE", callback=bound, help="Nothing after this record or time."
    ),
)


@click.command(
    short_help="A recording as a timeline.",
    epilog="""\b
-> goes to the server, <- to the client. An answer says how long its request took. Of modern
requests over HTTP, which may be of several clients, each says whose it is. Errors
have a ! before their number, cancellations a ~. A lane is a request that a server
handled; r12.1 is the first task that its handler started. Kinds: in and out are messages;
cmd, res, err, cxl and val what a handler did; mark is a note; open, shut and end are the
session's; a gap is where records were lost.

\b
A handler that asks in rounds is called again and again: its requests say which round they
are, and below the timeline all of them are told as one story.

\b
What --lane, --method, --id, --errors and --slower-than find is shown with its request
and answer, in all rounds; they all have to be fulfilled. --channel, --kind, --from and --to
show nothing else.

\b
Exit status: 0; 2 not a recording.

\b
Examples:
  mcp-trio show recordings/trip.mcprec.jsonl --errors
  mcp-trio show recordings/trip.mcprec.jsonl --method 'tools/*' --slower-than 100
  mcp-trio show recordings/trip.mcprec.jsonl --json | jq 'select(.took_ms > 100)'
""",
)
@click.argument("file")
@_selecting
@click.option("--full", is_flag=True, help="Below each message what stood on the wire, uncut.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for other programs.")
def show(
    file: str,
    full: bool,  # noqa: FBT001  click passes a flag by its name
    as_json: bool,  # noqa: FBT001  the same
    **chosen: Any,
) -> None:
    """Show the recording FILE as a timeline."""
    selection = Selection(**chosen)
    if as_json:
        print_json(file, selection)
    else:
        print_timeline(file, selection, with_frames=full)


def print_json(file: _Path, selection: Selection) -> None:
    """Print the rows of a recording, an object each.

    Raises:
        RecordingError: The file is no recording.
    """
    import msgspec

    rows, _ = read_rows(file)
    lines = msgspec.json.Encoder().encode_lines(list(selection.rows(rows)))
    click.echo(lines, nl=False)


def print_timeline(
    file: _Path, selection: Selection | None = None, *, with_frames: bool = False
) -> None:
    """Print a recording as a table and what it adds up to: coloured and cut on a terminal only.

    Raises:
        RecordingError: The file is no recording.
    """
    from mcp_trio._cli.stories import print_stories, stories
    from mcp_trio._cli.tables import Column, Line, print_table

    frames: dict[int | None, str] = {}
    rows, tally = read_rows(file, frames if with_frames else None)
    extras = _extras(rows)
    columns = (
        Column("record", "right"),
        Column("ms", "right"),
        *([Column("channel", "right")] if "channel" in extras else ()),
        *([Column("client")] if "client" in extras else ()),
        Column("lane"),
        Column("kind"),
        Column(""),
        Column("what", screen_columns_max=_SCREEN_WHAT_COLUMNS_MAX),
        Column("id", "right"),
        Column("bytes", "right"),
        Column("took ms", "right"),
        Column("note"),
    )
    shown = list(selection.rows(rows) if selection else rows)
    lines = [
        Line(tuple(_cells(row, extras)), COLOURS[row.outcome], frames.get(row.record))
        for row in shown
    ]
    print_table(columns, lines)
    click.echo()
    print_stories(stories(shown), ARROWS)
    _print_summary(rows, tally, len(shown))


def _print_summary(rows: "list[Row]", tally: "Tally", shown: int) -> None:
    from mcp_trio._cli.summary import METHOD_COLUMNS, exchanges, method_lines, slowest, totals
    from mcp_trio._cli.tables import print_table

    found = exchanges(rows)
    if found:
        print_table(METHOD_COLUMNS, method_lines(found))
        click.echo()
    if slow := slowest(found):
        click.echo(f"slowest: {slow}")
    if shown < len(rows):
        click.echo(f"shown: {shown} of {len(rows)} rows; the figures are of all of them")
    click.echo(totals(tally))


def read_rows(
    file: _Path, frames: dict[int | None, str] | None = None
) -> "tuple[list[Row], Tally]":
    """All rows of a recording, and their tally; fills `frames`, by number, if it is given.

    Raises:
        RecordingError: The file is no recording.
    """
    from mcp_trio._cli.recordings import records_of
    from mcp_trio._cli.timeline import Tally, timeline

    tally = Tally()
    items = records_of(file)
    if frames is not None:
        items = _kept(items, frames)
    return list(timeline(items, tally)), tally


def _kept(
    items: "Iterable[Record | Flaw]", frames: dict[int | None, str]
) -> "Iterator[Record | Flaw]":
    from mcp_trio._cli.terminal import printable
    from mcp_trio._journal.reader import Flaw
    from mcp_trio._journal.records import frame_of

    for item in items:
        if not isinstance(item, Flaw) and item.kind in {"in", "out"}:
            frame = frame_of(item) or b""
            frames[item.number] = printable(frame.decode(errors="backslashreplace"))
        yield item


def _extras(rows: "Collection[Row]") -> Collection[str]:
    """The columns that are shown only where rows differ in them."""
    channels, clients = ({getattr(row, name) for row in rows} for name in ("channel", "client"))
    wanted = {"channel": channels != {None}, "client": len(clients - {None}) > 1}
    return {name for name, is_wanted in wanted.items() if is_wanted}


def _cells(row: "Row", extras: Collection[str]) -> Iterator[str]:
    from mcp_trio._cli.terminal import printable

    yield SIGNS[row.outcome] + _number(row.record)
    yield _ms(row.ms)
    if "channel" in extras:
        yield _number(row.channel)
    if "client" in extras:
        yield printable(row.client or "")
    yield row.lane or ""
    yield row.kind
    yield ARROWS[row.direction]
    yield printable(row.what)
    yield printable(_number(row.id))
    yield _number(row.size_bytes)
    yield _ms(row.took_ms)
    yield printable(row.note)


def _number(value: int | str | None) -> str:
    return "" if value is None else str(value)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
