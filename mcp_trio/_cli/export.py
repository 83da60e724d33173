"""`mcp-trio export`: a recording's messages for other tools."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from mcp_trio._journal.records import Record

Export = Callable[["Record"], list[bytes]]


def _jsonld(record: "Record", *, with_record: bool) -> list[bytes]:
    from mcp_trio._journal.export import export_jsonld

    return export_jsonld(record, with_record=with_record)


FORMATS: Final[Mapping[str, Callable[..., list[bytes]]]] = {"jsonld": _jsonld}


@click.command(
    short_help="Convert messages, for other tools.",
    epilog="""\b
jsonld: a JSON-LD document a line for each message, with its context in it. Member names stand for
properties of http://modelcontextprotocol.io/ontology#. Effects, marks and the like are left out.

\b
Exit status: 0; 1 a frame is no message, or the recording is damaged: stderr says what was left
out; 2 not a recording, or OUT cannot be made.

\b
Examples:
  mcp-trio export trip.mcprec.jsonl > trip.jsonld.jsonl
  mcp-trio export trip.mcprec.jsonl --with-records -o trip.jsonld.jsonl
""",
)
@click.argument("file")
@click.option(
    "--format",
    "format_name",
    type=click.Choice(list(FORMATS)),
    default="jsonld",
    show_default=True,
    help="What to convert to.",
)
@click.option(
    "--with-records",
    is_flag=True,
    help="Put each message into a node with its number, direction, channel, lane and time.",
)
@click.option("-o", "--output", metavar="OUT", help="Write to this file, yours alone to read.")
@click.pass_context
def export(
    context: click.Context, file: str, format_name: str, output: str | None, *, with_records: bool
) -> None:
    """Write the messages of the recording FILE in another format."""
    from mcp_trio._cli.recordings import is_recording_itself
    from mcp_trio._cli.terminal import echo_error

    left_out: list[str] = []
    lines = _lines(file, partial(FORMATS[format_name], with_record=with_records), left_out)
    if output is None:
        for line in lines:
            click.echo(line)
    else:
        if is_recording_itself(output, file):
            raise click.BadParameter("OUT is the recording itself")
        _write(output, lines)
    for text in left_out:
        echo_error(f"left out: {text}")
    context.exit(1 if left_out else 0)


def _lines(file: str, convert: Export, left_out: list[str]) -> Iterator[bytes]:
    from mcp_trio._cli.recordings import records_of
    from mcp_trio._errors import RecordingError
    from mcp_trio._journal.reader import Flaw

    for item in records_of(file):
        if isinstance(item, Flaw):
            left_out.append(f"line {item.line}: {item.text}")
            continue
        try:
            yield from convert(item)
        except RecordingError as error:
            left_out.append(str(error))


def _write(output: str, lines: Iterator[bytes]) -> None:
    from mcp_trio._errors import RecordingError
    from mcp_trio._recorder.sink import FileSink

    first = list(islice(lines, 1))  # what is no recording says so before OUT is made
    try:
        with closing(FileSink(output)) as sink:
            for line in chain(first, lines):
                sink.write(line + b"\n")
    except OSError as error:
        raise RecordingError(f"cannot write {output}: {error.strerror}") from error
