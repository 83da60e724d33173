"""`mcp-trio redact`, `scan` and `export`, and reading recordings for all commands."""

import fcntl
import os
import secrets
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from mcp_trio._journal.reader import Damage, read_recording
from mcp_trio._journal.records import Record
from mcp_trio._recorder.files import COMPRESSED_SUFFIX, later_names, open_recording
from mcp_trio.errors import RecordingError
from mcp_trio.limits import RecordingLimits

if TYPE_CHECKING:
    from mcp_trio._cli.output import Line
    from mcp_trio._journal.redaction import Redaction
    from mcp_trio._journal.secret_detection import LikelySecret
    from mcp_trio._recorder.files import Sink
    from mcp_trio.limits import Limits


# --------------------
# Recordings that the command line names: read with a bar, and named in what goes wrong.


def lines_of(file: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a recording; a long one shows how far it was read.

    Raises:
        RecordingError: The file cannot be read, or not decompressed.
    """
    from mcp_trio._cli.progress import counted

    return counted(open_recording(file), f"reading {Path(file).name}", total_bytes=_size(file))


def records_of(file: str | os.PathLike[str]) -> Iterator[Record | Damage]:
    """The records of a recording, flaws at their places.

    Raises:
        RecordingError: As `lines_of`, or it is no recording; the text names the file.
    """
    with naming(file):
        yield from read_recording(lines_of(file))


@contextmanager
def naming(file: str | os.PathLike[str]) -> Generator[None, None, None]:
    """Put the file's name into the text of a `RecordingError` that has none."""
    name = os.fspath(file)
    try:
        yield
    except RecordingError as error:
        if f" {name}:" in str(error) or str(error).startswith(f"{name} "):
            raise
        raise RecordingError(f"{name}: {error}") from error


def is_recording_itself(output: str, file: str) -> bool:
    """Whether a file to write is the recording, or a segment of it: writing would cost that."""
    if not (Path(output).exists() and Path(file).exists()):
        return False
    return any(Path(output).samefile(each) for each in files_of(file))


def files_of(file: str | os.PathLike[str]) -> list[str]:
    """The recording's file and its later segments, as far as they can be seen."""
    name = os.fspath(file)
    try:
        return [name, *later_names(name)]
    except OSError:  # reading it will say so
        return [name]


def _size(file: str | os.PathLike[str]) -> int | None:
    """How many bytes of lines there will be, if that is known."""
    name = os.fspath(file)
    if name.endswith(COMPRESSED_SUFFIX):
        return None
    try:
        return sum(Path(each).stat().st_size for each in files_of(name))
    except OSError:
        return None


# --------------------
# `mcp-trio redact`: a recording without what is secret.


@click.command(
    short_help="Replace what is secret in a recording.",
    epilog="""\b
Secret is what stands under a name such as password, token or apiKey, what a tool's schema calls a
password, what has the shape of a well-known key, what --name, --rule and --values add, and the
same values wherever else they stand. Each becomes a token of the same shape, so that the
recording replays as before. Look at the result: `mcp-trio scan`. A JSONPATH is such as
$.params.arguments.pin, or res:$.body for the results (res) of effects, or
tools/call:$.result.structuredContent.pin for a method alone.

\b
Exit status: 0; 2 not a recording, or a damaged one, or OUT cannot be made.

\b
Examples:
  mcp-trio redact trip.mcprec.jsonl -o clean.mcprec.jsonl
  mcp-trio redact trip.mcprec.jsonl --in-place --name "house number"
  mcp-trio redact trip.mcprec.jsonl --rule '$.params.arguments.pin' --key team.key > c.jsonl
""",
)
@click.argument("file")
@click.option("-o", "--output", metavar="OUT", help="Write to this file instead of to stdout.")
@click.option("--in-place", is_flag=True, help="Replace FILE itself; its old content is lost.")
@click.option("--key", metavar="FILE", help="Make the tokens with the key in this file.")
@click.option(
    "--rule",
    "rules",
    metavar="JSONPATH",
    multiple=True,
    help="Also redact the values at this path.",
)
@click.option(
    "--name", "names", metavar="NAME", multiple=True, help="Also redact the values under this name."
)
@click.option(
    "--values", metavar="FILE", help="Also redact each value listed in this file, one per line."
)
def redact_command(
    file: str, output: str | None, key: str | None, *, in_place: bool, **besides: Any
) -> None:
    """Write the recording FILE with its secrets replaced by tokens."""
    from mcp_trio._cli.options import read_key
    from mcp_trio._journal.redaction import redact_recording
    from mcp_trio._journal.redaction_tokens import KEY_BYTES

    target = _target(file, output, in_place=in_place)
    redaction = _redaction(**besides)
    key_bytes = secrets.token_bytes(KEY_BYTES) if key is None else read_key(key)
    try:
        with naming(file):
            records = _records(file)
            lines = list(redact_recording(records, redaction, key=key_bytes, limits=_limits()))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if target is None:
        click.echo(b"".join(lines), nl=False)
    else:
        _write_redacted(target, lines)


def _target(file: str, output: str | None, *, in_place: bool) -> str | None:

    if not in_place:
        if output and is_recording_itself(output, file):
            raise click.UsageError("OUT is the recording itself: use --in-place to replace it")
        return output
    if output is not None:
        raise click.UsageError("either --in-place or -o")
    if len(files_of(file)) > 1:
        raise click.UsageError("the recording has several files: write it to another one, with -o")
    _reject_open_recording(file)
    return os.path.realpath(file)  # what a link leads to holds the secrets, not the link


def _reject_open_recording(file: str) -> None:
    """A session that is still recorded to the file would go on in one that has no name any more."""
    try:
        with Path(file).open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
            names = os.fstat(opened.fileno()).st_nlink
    except BlockingIOError as error:
        raise click.UsageError(f"a session is still being recorded to {file}") from error
    except OSError:  # it cannot be read, which is said later, or locked: nobody can tell
        return
    if names > 1:
        click.echo(f"note: {file} has another name, a hard link: that keeps all", err=True)


def _limits() -> "Limits":
    """Those of a session are for its memory and its time."""
    import attrs

    from mcp_trio.limits import DEFAULT_LIMITS

    return attrs.evolve(
        DEFAULT_LIMITS,
        recording=RecordingLimits(secrets_max=sys.maxsize, secrets_chars_max=sys.maxsize),
    )


def _redaction(rules: tuple[str, ...], names: tuple[str, ...], values: str | None) -> "Redaction":
    from mcp_trio._journal.redaction import Redaction
    from mcp_trio._journal.secret_detection import DEFAULT_SECRET_NAMES

    paths: dict[str, list[str]] = {}
    for rule in rules:
        where, dollar, path = rule.partition("$")
        paths.setdefault(where.removesuffix(":") or "*", []).append(dollar + path)
    return Redaction(
        keys={*DEFAULT_SECRET_NAMES, *names},
        paths=paths,
        secrets=[] if values is None else _values(values),
    )


def _values(file: str) -> list[str]:
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"cannot read the values in {file}: {error}") from error
    return [line for line in map(str.strip, lines) if line]


def _records(file: str) -> "list[Record]":
    """The records; what was cut is told, and left out.

    Raises:
        RecordingError: It is no recording, or damaged: new digests would hide that.
    """
    from mcp_trio._cli.output import echo_error
    from mcp_trio._journal.reader import Damage
    from mcp_trio.errors import RecordingError

    records: list[Record] = []
    for item in records_of(file):
        if not isinstance(item, Damage):
            records.append(item)
        elif item.kind == "torn":
            echo_error(f"left out: line {item.line}: {item.text}")
        else:
            raise RecordingError(f"line {item.line}: {item.kind}: {item.text}")
    return records


def _write_redacted(target: str, lines: Iterable[bytes]) -> None:
    """Write a file beside the target, and put it in its place when it is whole."""
    from mcp_trio.errors import RecordingError

    part = f"{target}.{os.getpid()}.part"
    try:
        with closing(_sink(part, target)) as sink:
            for line in lines:
                sink.write(line)
        _sync(part)
        Path(part).replace(target)
    except OSError as error:
        raise RecordingError(f"cannot write {target}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            Path(part).unlink()


def _sync(part: str) -> None:
    """With the disk before it takes the place of what is with the disk."""
    descriptor = os.open(part, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sink(part: str, target: str) -> "Sink":
    from mcp_trio._recorder.files import COMPRESSED_SUFFIX, CompressedSink, FileSink

    file = FileSink(part)
    return CompressedSink(file) if target.endswith(COMPRESSED_SUFFIX) else file


# --------------------
# `mcp-trio scan`: what in recordings looks like a secret.


_SHOWN_CHARS: Final = 4
_MASKED_WHOLE_CHARS_MAX: Final = 12

# Flaws of lines in which more may stand than what is read of them.
_UNREAD: Final = frozenset({"torn", "damaged", "unknown-key"})


@click.command(
    short_help="What looks like a secret in recordings.",
    epilog="""\b
Looks for values under names such as password, for the shapes of known keys, and for high
entropy. It may miss one, and take for one what is none. The tokens of a redacted recording do not
count.

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
def scan_command(context: click.Context, files: tuple[str, ...]) -> None:
    """Look through each recording FILE for what looks like a secret, and show where it is."""
    from mcp_trio._cli.output import echo_error

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
    from mcp_trio._cli.output import Column, echo_error, print_table
    from mcp_trio._journal.records import OpenBody, decode_body

    records, unread = _read(file)
    manifest = decode_body(records[0], OpenBody).redaction
    found = list(_likely(records, manifest))
    if found:
        click.echo(f"{file}: likely secrets: {len(found)}")
        print_table([Column("n", "right"), Column("what"), Column("value"), Column("path")], found)
    else:
        click.echo(f"{file}: nothing looks like a secret")
    if manifest is None:
        click.echo(f"{file}: note: it was recorded without redaction", err=True)
    for flaw in unread:
        echo_error(f"{file}: cannot be scanned: line {flaw.line}: {flaw.text}")
    return 1 if found or unread else 0


def _read(file: str) -> "tuple[list[Record], list[Damage]]":
    """The records of a file, and the flaws behind which a secret may hide."""
    from mcp_trio._journal.reader import Damage

    records: list[Record] = []
    unread: list[Damage] = []
    for item in records_of(file):
        if not isinstance(item, Damage):
            records.append(item)
        elif item.kind in _UNREAD:
            unread.append(item)
    return records, unread


def _likely(records: "list[Record]", manifest: dict[str, object] | None) -> "Iterator[Line]":
    from mcp_trio._cli.output import Line, printable
    from mcp_trio._journal.records import body_bytes
    from mcp_trio._journal.redaction import redactor_for_replay
    from mcp_trio._journal.secret_detection import likely_secrets

    redactor = None if manifest is None else redactor_for_replay(manifest, records)
    for record in records[1:]:
        for secret in likely_secrets(body_bytes(record) or b"null"):
            if redactor is None or not redactor.knows(secret.value):
                path = printable(secret.path)
                yield Line((str(record.number), secret.kind, printable(_masked(secret)), path))


def _masked(secret: "LikelySecret") -> str:
    """Enough of a value to know it again."""
    value = secret.value
    shown = "" if len(value) < _MASKED_WHOLE_CHARS_MAX else value[:_SHOWN_CHARS]
    return f"{shown}… ({len(value)} characters)"


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
@click.option(
    "-o", "--output", metavar="OUT", help="Write to this file, which only you can read (mode 0600)."
)
@click.pass_context
def export_command(
    context: click.Context, file: str, format_name: str, output: str | None, *, with_records: bool
) -> None:
    """Write the messages of the recording FILE in another format."""
    from mcp_trio._cli.output import echo_error

    left_out: list[str] = []
    lines = _lines(file, partial(FORMATS[format_name], with_record=with_records), left_out)
    if output is None:
        for line in lines:
            click.echo(line)
    else:
        if is_recording_itself(output, file):
            raise click.BadParameter("OUT is the recording itself")
        _write_export(output, lines)
    for text in left_out:
        echo_error(f"left out: {text}")
    context.exit(1 if left_out else 0)


def _lines(file: str, convert: Export, left_out: list[str]) -> Iterator[bytes]:
    from mcp_trio._journal.reader import Damage
    from mcp_trio.errors import RecordingError

    for item in records_of(file):
        if isinstance(item, Damage):
            left_out.append(f"line {item.line}: {item.text}")
            continue
        try:
            yield from convert(item)
        except RecordingError as error:
            left_out.append(str(error))


def _write_export(output: str, lines: Iterator[bytes]) -> None:
    from mcp_trio._recorder.files import FileSink
    from mcp_trio.errors import RecordingError

    first = list(islice(lines, 1))  # what is no recording says so before OUT is made
    try:
        with closing(FileSink(output)) as sink:
            for line in chain(first, lines):
                sink.write(line + b"\n")
    except OSError as error:
        raise RecordingError(f"cannot write {output}: {error.strerror}") from error
