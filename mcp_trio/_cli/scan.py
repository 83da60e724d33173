"""`mcp-trio scan`: what in recordings looks like a secret."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from mcp_trio._errors import RecordingError

if TYPE_CHECKING:
    from mcp_trio._cli.tables import Line
    from mcp_trio._journal.reader import Flaw
    from mcp_trio._journal.records import Record
    from mcp_trio._journal.secrets import LikelySecret

_SHOWN_CHARS: Final = 4
_MASKED_WHOLE_CHARS_MAX: Final = 12

# Flaws of lines in which more may stand than what is read of them.
_UNREAD: Final = frozenset({"torn", "damaged", "unknown-key"})


@click.command(
    short_help="What looks like a secret in recordings.",
    epilog="""\b
Looks for values under names such as password, for the shapes of known keys, and for disorder. It
may miss one, and take for one what is none. The tokens of a redacted recording do not count.

\b
Exit status: 0 nothing found; 1 something, or a line that cannot be read whole: stderr says which;
2 one of them is no recording.

\b
Examples:
  mcp-trio scan recordings/*.mcprec.jsonl
  mcp-trio scan clean.mcprec.jsonl.zst && git add clean.mcprec.jsonl.zst
""",
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.pass_context
def scan(context: click.Context, files: tuple[str, ...]) -> None:
    """Look through each recording FILE for what looks like a secret, and show where it is."""
    from mcp_trio._cli.terminal import echo_error

    statuses: list[int] = []
    for file in files:
        try:
            statuses.append(_scan(file))
        except RecordingError as error:
            echo_error(str(error))
            statuses.append(2)
    context.exit(max(statuses))


def _scan(file: str) -> int:
    """Show what is in a file; the exit status for it."""
    from mcp_trio._cli.tables import Column, print_table
    from mcp_trio._cli.terminal import echo_error
    from mcp_trio._journal.records import OpenBody, body_of

    records, unread = _read(file)
    manifest = body_of(records[0], OpenBody).redaction
    found = list(_likely(records, manifest))
    if found:
        click.echo(f"{file}: likely secrets: {len(found)}")
        print_table([Column("n", "right"), Column("what"), Column("value"), Column("path")], found)
    else:
        click.echo(f"{file}: nothing looks like a secret")
    if manifest is None:
        click.echo(f"{file}: note: it was recorded without redaction", err=True)
    for flaw in unread:
        echo_error(f"{file}: cannot be looked into: line {flaw.line}: {flaw.text}")
    return 1 if found or unread else 0


def _read(file: str) -> "tuple[list[Record], list[Flaw]]":
    """The records of a file, and the flaws behind which a secret may hide."""
    from mcp_trio._cli.recordings import records_of
    from mcp_trio._journal.reader import Flaw

    records: list[Record] = []
    unread: list[Flaw] = []
    for item in records_of(file):
        if not isinstance(item, Flaw):
            records.append(item)
        elif item.kind in _UNREAD:
            unread.append(item)
    return records, unread


def _likely(records: "list[Record]", manifest: dict[str, object] | None) -> "Iterator[Line]":
    from mcp_trio._cli.tables import Line
    from mcp_trio._cli.terminal import printable
    from mcp_trio._journal.records import frame_of
    from mcp_trio._journal.redaction import redactor_of
    from mcp_trio._journal.secrets import likely_secrets

    redactor = None if manifest is None else redactor_of(manifest, records)
    for record in records[1:]:
        for secret in likely_secrets(frame_of(record) or b"null"):
            if redactor is None or not redactor.knows(secret.value):
                path = printable(secret.path)
                yield Line((str(record.number), secret.kind, printable(_masked(secret)), path))


def _masked(secret: "LikelySecret") -> str:
    """Enough of a value to know it again."""
    value = secret.value
    shown = "" if len(value) < _MASKED_WHOLE_CHARS_MAX else value[:_SHOWN_CHARS]
    return f"{shown}… ({len(value)} characters)"
