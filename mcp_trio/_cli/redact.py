"""`mcp-trio redact`: a recording without what is secret."""

import fcntl
import os
import secrets
import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mcp_trio._journal.records import Record
    from mcp_trio._journal.redaction import Redaction
    from mcp_trio._limits import Limits
    from mcp_trio._recorder.sink import Sink


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
@click.option("--in-place", is_flag=True, help="Replace FILE itself; what was in it is gone.")
@click.option("--key", metavar="FILE", help="Make the tokens with the key in this file.")
@click.option("--rule", "rules", metavar="JSONPATH", multiple=True, help="Secret besides: a path.")
@click.option("--name", "names", metavar="NAME", multiple=True, help="Secret besides: a name.")
@click.option("--values", metavar="FILE", help="Secret besides: each line of this file.")
def redact(
    file: str, output: str | None, key: str | None, *, in_place: bool, **besides: Any
) -> None:
    """Write the recording FILE again, with tokens for what is secret in it."""
    from mcp_trio._cli.recording_options import read_key
    from mcp_trio._cli.recordings import naming
    from mcp_trio._journal.redaction import KEY_BYTES
    from mcp_trio._journal.redaction.afterwards import redacted_again

    target = _target(file, output, in_place=in_place)
    redaction = _redaction(**besides)
    key_bytes = secrets.token_bytes(KEY_BYTES) if key is None else read_key(key)
    try:
        with naming(file):
            records = _records(file)
            lines = list(redacted_again(records, redaction, key=key_bytes, limits=_limits()))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if target is None:
        click.echo(b"".join(lines), nl=False)
    else:
        _write(target, lines)


def _target(file: str, output: str | None, *, in_place: bool) -> str | None:
    from mcp_trio._cli.recordings import files_of, is_recording_itself

    if not in_place:
        if output and is_recording_itself(output, file):
            raise click.UsageError("OUT is the recording itself: that is --in-place")
        return output
    if output is not None:
        raise click.UsageError("either --in-place or -o")
    if len(files_of(file)) > 1:
        raise click.UsageError("the recording has several files: write it to another one, with -o")
    _refuse_open_recording(file)
    return os.path.realpath(file)  # what a link leads to holds the secrets, not the link


def _refuse_open_recording(file: str) -> None:
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

    from mcp_trio._limits import DEFAULT_LIMITS

    return attrs.evolve(
        DEFAULT_LIMITS, redaction_values_max=sys.maxsize, redaction_chars_max=sys.maxsize
    )


def _redaction(rules: tuple[str, ...], names: tuple[str, ...], values: str | None) -> "Redaction":
    from mcp_trio._journal.redaction import DEFAULT_SECRET_NAMES, Redaction

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
    from mcp_trio._cli.recordings import records_of
    from mcp_trio._cli.terminal import echo_error
    from mcp_trio._errors import RecordingError
    from mcp_trio._journal.reader import Flaw

    records: list[Record] = []
    for item in records_of(file):
        if not isinstance(item, Flaw):
            records.append(item)
        elif item.kind == "torn":
            echo_error(f"left out: line {item.line}: {item.text}")
        else:
            raise RecordingError(f"line {item.line}: {item.kind}: {item.text}")
    return records


def _write(target: str, lines: Iterable[bytes]) -> None:
    """Write a file beside the target, and put it in its place when it is whole."""
    from mcp_trio._errors import RecordingError

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
    from mcp_trio._recorder.compressed import CompressedSink
    from mcp_trio._recorder.names import COMPRESSED_SUFFIX
    from mcp_trio._recorder.sink import FileSink

    file = FileSink(part)
    return CompressedSink(file) if target.endswith(COMPRESSED_SUFFIX) else file
