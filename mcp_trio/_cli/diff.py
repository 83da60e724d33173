"""`mcp-trio diff`: where two recordings differ."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from mcp_trio._cli.tables import Line
    from mcp_trio._journal.diff import Difference
    from mcp_trio._journal.records import Record

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
@click.option("--all", "is_all", is_flag=True, help=f"All differences, not only {SHOWN_MAX}.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for other programs.")
@click.pass_context
def diff(
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
    from mcp_trio._cli.recordings import records_of
    from mcp_trio._cli.terminal import echo_error
    from mcp_trio._journal.reader import Flaw

    records: list[Record] = []
    for item in records_of(file):
        if isinstance(item, Flaw):
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
    from mcp_trio._cli.tables import Column, print_table

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
    from mcp_trio._cli.tables import Line
    from mcp_trio._cli.terminal import printable

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

    from mcp_trio._cli.terminal import printable, shortened

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
