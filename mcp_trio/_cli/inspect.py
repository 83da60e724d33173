"""`mcp-trio show`, `diff` and `check`: look at recordings."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from mcp_trio._cli.options import together
from mcp_trio._cli.timeline import Selection, bound

if TYPE_CHECKING:
    from mcp_trio._cli.output import Line
    from mcp_trio._cli.timeline import Direction, Row, Tally
    from mcp_trio._journal.diff import Difference
    from mcp_trio._journal.reader import CheckReport, Damage
    from mcp_trio._journal.records import Record


# --------------------
# `mcp-trio show`: a recording as a timeline.


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
        "--channel", type=int, metavar="N", help="Only this session, in a recording of several."
    ),
    click.option(
        "--lane", metavar="LANE", help="Only this lane, such as r12: the request in record 12."
    ),
    click.option("--method", metavar="GLOB", help="Only these methods, such as 'tools/*'."),
    click.option("--id", metavar="ID", help="Only requests with this id."),
    click.option("--errors", is_flag=True, help="Errors only."),
    click.option(
        "--slower-than",
        metavar="MS",
        type=float,
        help="Only requests that took more than this many milliseconds.",
    ),
    click.option(
        "--kind", "kinds", metavar="KIND,...", callback=_kinds, help="Only these kinds of records."
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
@click.option("--full", is_flag=True, help="Below each message, print its complete wire text.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for other programs.")
def show_command(
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
    from mcp_trio._cli.output import Column, Line, print_table
    from mcp_trio._cli.timeline import print_stories, stories

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
    from mcp_trio._cli.output import print_table
    from mcp_trio._cli.timeline import METHOD_COLUMNS, exchanges, method_lines, slowest, totals

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
    items: "Iterable[Record | Damage]", frames: dict[int | None, str]
) -> "Iterator[Record | Damage]":
    from mcp_trio._cli.output import printable
    from mcp_trio._journal.reader import Damage
    from mcp_trio._journal.records import body_bytes

    for item in items:
        if not isinstance(item, Damage) and item.kind in {"in", "out"}:
            frame = body_bytes(item) or b""
            frames[item.number] = printable(frame.decode(errors="backslashreplace"))
        yield item


def _extras(rows: "Collection[Row]") -> Collection[str]:
    """The columns that are shown only where rows differ in them."""
    channels, clients = ({getattr(row, name) for row in rows} for name in ("channel", "client"))
    wanted = {"channel": channels != {None}, "client": len(clients - {None}) > 1}
    return {name for name, is_wanted in wanted.items() if is_wanted}


def _cells(row: "Row", extras: Collection[str]) -> Iterator[str]:
    from mcp_trio._cli.output import printable

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


# --------------------
# `mcp-trio diff`: where two recordings differ.


# How many differences are shown without --all.
SHOWN_MAX: Final = 20
_VALUE_COLUMNS_MAX: Final = 60
_COLOURS: Final[Mapping[str, str]] = {
    "changed": "yellow",
    "missing": "red",
    "extra": "green",
    "order": "cyan",
}


@click.command(
    short_help="Where two recordings differ.",
    epilog="""\b
Times, seeds, ids, numbers and the order of members do not count. Recordings of two sides, such as
a client's and a server's, are compared by what was on the wire: what one sent, the other got.

\b
Exit status: 0 the same; 1 they differ; 2 one of them is no recording.

\b
Examples:
  mcp-trio diff before.mcprec.jsonl after.mcprec.jsonl
  mcp-trio diff client.mcprec.jsonl server.mcprec.jsonl.zst --json | jq .path
""",
)
@click.argument("a")
@click.argument("b")
@click.option(
    "--all", "is_all", is_flag=True, help=f"Show all differences, not only the first {SHOWN_MAX}."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for other programs.")
@click.pass_context
def diff_command(
    context: click.Context,
    /,
    a: str,
    b: str,
    is_all: bool,  # noqa: FBT001  click passes a flag by its name
    as_json: bool,  # noqa: FBT001  the same
) -> None:
    """Compare the recordings A and B."""
    from mcp_trio._journal.diff import diff

    left, right = _records(a), _records(b)
    found = diff(left, right)
    if as_json:
        _print_json(found)
    else:
        _print(found if is_all else found[:SHOWN_MAX], left, right)
        _print_total(found, left, right, is_all=is_all)
    context.exit(1 if found else 0)


def _records(file: str) -> "list[Record]":
    """The records of a file; its flaws are told on stderr."""
    from mcp_trio._cli.output import echo_error
    from mcp_trio._cli.recordings import records_of
    from mcp_trio._journal.reader import Damage

    records: list[Record] = []
    for item in records_of(file):
        if isinstance(item, Damage):
            echo_error(f"{file}: line {item.line}: {item.text}")
        else:
            records.append(item)
    return records


def _print_json(found: "Sequence[Difference]") -> None:
    import msgspec

    plain = [
        msgspec.structs.replace(
            difference,
            left_value=_plain(difference.left_value),
            right_value=_plain(difference.right_value),
        )
        for difference in found
    ]
    click.echo(msgspec.json.Encoder().encode_lines(plain), nl=False)


def _plain(value: Any) -> Any:
    """A value as JSON has it: what stood there as bytes is text."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _print(
    found: "Sequence[Difference]", left: "Sequence[Record]", right: "Sequence[Record]"
) -> None:
    from mcp_trio._cli.output import Column, print_table

    if not found:
        return
    columns = (
        Column(""),
        Column("A", "right"),
        Column("B", "right"),
        Column("lane"),
        Column("kind"),
        Column("what", screen_columns_max=40),
        Column("difference"),
    )
    whats = _whats(left), _whats(right)
    print_table(columns, [_line(difference, *whats) for difference in found])
    click.echo()


def _whats(records: "Sequence[Record]") -> dict[int | None, str]:
    """What each record is about, as a timeline tells it."""
    from mcp_trio._cli.timeline import Tally, timeline

    rows = list(timeline(records, Tally()))
    return {row.record: row.what for row in reversed(rows)}  # a batch as a whole, which is first


def _line(
    difference: "Difference", left: Mapping[int | None, str], right: Mapping[int | None, str]
) -> "Line":
    from mcp_trio._cli.output import Line, printable

    what = right[difference.right] if difference.left is None else left[difference.left]
    cells = (
        difference.what,
        *("" if number is None else str(number) for number in (difference.left, difference.right)),
        difference.lane or "",
        difference.kind,
        printable(what),
        _TEXTS[difference.what](difference),
    )
    return Line(cells, _COLOURS[difference.what])


def _changed(difference: "Difference") -> str:
    values = (_value(value) for value in (difference.left_value, difference.right_value))
    return f"{difference.path}: {' -> '.join(values)}"


def _value(value: Any) -> str:
    import msgspec

    from mcp_trio._cli.output import printable, shortened

    if value is msgspec.UNSET:
        return "nothing"
    return shortened(printable(msgspec.json.encode(_plain(value)).decode()), _VALUE_COLUMNS_MAX)


_TEXTS: "Final[Mapping[str, Callable[[Difference], str]]]" = {
    "changed": _changed,
    "missing": lambda _: "only in A",
    "extra": lambda _: "only in B",
    "order": lambda _: "from here on in another order",
}


def _print_total(
    found: "Sequence[Difference]",
    left: "Sequence[Record]",
    right: "Sequence[Record]",
    *,
    is_all: bool,
) -> None:
    total = f"{len(found) or 'no'} difference{'' if len(found) == 1 else 's'}"
    hidden = 0 if is_all else max(0, len(found) - SHOWN_MAX)
    rest = f"; {hidden} more with --all" if hidden else ""
    records = f"{len(left)} and {len(right)} records{_roles(left, right)}"
    click.echo(f"{total} in {records}{rest}")


def _roles(left: "Sequence[Record]", right: "Sequence[Record]") -> str:
    from mcp_trio._journal.diff import role_of

    roles = role_of(left), role_of(right)
    return "" if roles[0] == roles[1] else f", what was on the wire: {roles[0]} and {roles[1]}"


# What the kinds of flaws mean for the file as a whole; the worst comes first.
VERDICTS: Final = {
    "damaged": "damaged: something in the middle was changed or lost",
    "digest": "damaged: something in the middle was changed or lost",
    "numbering": "damaged: something in the middle was changed or lost",
    "torn": "cut in its last line: everything before that line is intact",
    "unknown-kind": ("written by a later version: some of its content is unknown to this version"),
    "unknown-key": ("written by a later version: some of its content is unknown to this version"),
}


@click.command(
    short_help="Check that a recording is complete.",
    epilog="""\b
Exit status: 0 complete and without flaws; 1 flawed, cut, or with a loss; 2 not a recording.

\b
Examples:
  mcp-trio check recordings/trip.mcprec.jsonl
  mcp-trio check recordings/trip.mcprec.jsonl.zst && echo whole
""",
)
@click.argument("file")
@click.pass_context
def check_command(context: click.Context, file: str) -> None:
    """Verify the recording FILE: its records, numbers and digests, and whether it was closed."""
    from mcp_trio._cli.recordings import lines_of, naming
    from mcp_trio._journal.reader import check

    with naming(file):
        report = check(lines_of(file))
    click.echo(f"{file}: {verdict(report)}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.kinds.items())
    click.echo(f"{report.records} records: {kinds}")
    for flaw in report.damage:
        click.echo(f"line {flaw.line}: {flaw.kind}: {flaw.text}")
    context.exit(0 if is_whole(report) else 1)


def is_whole(report: "CheckReport") -> bool:
    """Return whether everything that happened stands in the recording, unchanged."""
    return report.complete and not report.damage and not report.has_loss


def verdict(report: "CheckReport") -> str:
    """The state of a recording in a sentence."""
    found = {flaw.kind for flaw in report.damage}
    for kind, text in VERDICTS.items():
        if kind in found:
            return text
    whole = "whole" if report.complete else "cut between two lines: the session was not closed"
    if report.has_loss:
        return f"{whole}, but with a gap: what could not be written there is missing"
    if "gap" in report.kinds:
        return f"{whole}, with a gap that lost nothing"
    return whole
