"""`mcp-trio redact` replaces secrets in a recording; `mcp-trio scan` looks for remaining ones."""

import os
import secrets
import shlex
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from mcp_trio._cli.completion import complete_recordings
from mcp_trio._cli.options import (
    STDIN,
    check_overwrites_nothing,
    errors_naming,
    files_of,
    highest_status,
    is_same_recording,
    overwrite_option,
    read_key,
    records_of,
    segments_of,
)
from mcp_trio._cli.output import (
    Column,
    Line,
    busy_bar,
    echo_error,
    echo_json,
    echo_text,
    items_with_bar,
    print_table,
)
from mcp_trio._journal.reader import Damage
from mcp_trio._system import NO_FOLLOW, try_lock
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, RecordingLimits

if TYPE_CHECKING:
    from mcp_trio._journal.records import Record
    from mcp_trio._journal.redaction import Redaction, RemainingSecret


# `mcp-trio redact`.

# The number of places with short secrets that are printed.
_PLACES_MAX: Final = 20


@click.command(
    short_help="Replace secrets in a recording.",
    epilog="""\b
These are secrets: values under names such as password, token or apiKey; values that a tool's
schema calls a password; values with the shape of a well-known kind of key; what --name, --rule
and --values add; and all other occurrences of the same values. Each is replaced by a token of the
same shape, so that the recording still replays. Check the result with `mcp-trio scan`.

\b
A value of fewer than 4 characters, such as a PIN of 3 digits, is replaced only where a name,
schema or path says that it is secret: elsewhere it may be something else. If it appears
elsewhere, the places are printed, and the exit status is 1.

\b
A JSONPATH is such as $.params.arguments.pin; res:$.body applies to the results (res) of effects,
and tools/call:$.result.structuredContent.pin to one method.

\b
A FILE of - stands for the recordings that stdin names, the output of `mcp-trio find`; OUT is a
folder then. Without --key, all of them have the same random key, so equal secrets stay equal.

\b
Exit status: 0 success; 1 a short secret is still in OUT, or would be in FILE, which is then
not replaced, or stdin names no recording; 2 FILE is damaged or not a recording, or OUT cannot be
written.

\b
Examples:
  mcp-trio redact trip.mcprec.jsonl -o clean.mcprec.jsonl
  mcp-trio redact trip.mcprec.jsonl --in-place --name "house number"
  mcp-trio redact trip.mcprec.jsonl --rule '$.params.arguments.pin' --key team.key > c.jsonl
  mcp-trio find recordings/ error:any --json | mcp-trio redact - -o clean/
""",
)
@click.argument("file", shell_complete=complete_recordings)
@click.option("-o", "--output", metavar="OUT", help="Write to this file instead of to stdout.")
@overwrite_option
@click.option(
    "--in-place",
    is_flag=True,
    help="Replace FILE itself, which stays encrypted if it is; its old content is lost.",
)
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
@click.option(
    "--min-chars",
    metavar="N",
    type=click.IntRange(min=1),
    default=4,
    help="Replace secrets of N characters or more wherever they appear (default: 4).",
)
@click.pass_context
def redact_command(
    context: click.Context,
    /,
    file: str,
    output: str | None,
    key: str | None,
    *,
    overwrite: bool,
    in_place: bool,
    **rules: Any,
) -> None:
    """Write the recording FILE with its secrets replaced by tokens."""
    from mcp_trio._journal.redaction_tokens import KEY_BYTES

    redaction = _redaction(**rules)
    key_bytes = secrets.token_bytes(KEY_BYTES) if key is None else read_key(key)
    if file != STDIN:
        target = _target_file(file, output, in_place=in_place)
        if target is not None and not in_place:
            check_overwrites_nothing(target, overwrite=overwrite)
        context.exit(_redact(file, target, redaction, key_bytes, in_place=in_place))

    if output is None and not in_place:
        raise click.UsageError("- needs -o with a folder, or --in-place")
    files = files_of(file)
    if output is not None:
        try:
            Path(output).mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise click.UsageError(f"{output} cannot be created: {error.strerror}") from error
    status = 0
    for each in files:
        try:
            out = None if output is None else os.fspath(Path(output, Path(each).name))
            target = _target_file(each, out, in_place=in_place)
            if out is not None:
                check_overwrites_nothing(out, overwrite=overwrite)
            redacted = _redact(each, target, redaction, key_bytes, in_place=in_place)
            status = max(status, redacted)
        except (RecordingError, click.UsageError) as error:  # the others are redacted
            echo_error(str(error))
            status = 2
    context.exit(status)


def _redact(
    file: str, target: str | None, redaction: "Redaction", key: bytes, *, in_place: bool
) -> int:
    """Redact a recording to a file, or to stdout without a target; return the exit status."""
    from mcp_trio._journal.redaction import redact_recording
    from mcp_trio._recorder.encryption import is_encrypted

    # Without the limits on secrets and searches for them, which protect live sessions only.
    limits = msgspec.structs.replace(
        DEFAULT_LIMITS,
        recording=RecordingLimits(
            secrets_max=sys.maxsize, secrets_chars_max=sys.maxsize, secret_searches_max=sys.maxsize
        ),
    )
    remaining: list[RemainingSecret] = []
    try:
        with errors_naming(file):
            records = _intact_records(file)
            with busy_bar("redacting"):
                lines = list(
                    redact_recording(
                        records, redaction, key=key, limits=limits, on_remaining=remaining.append
                    )
                )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if remaining:
        _report_remaining(remaining)
    if target is None:
        echo_json(b"".join(lines), nl=False)
    elif in_place and remaining:
        # Redacting a redacted file again could not find the values.
        echo_error(f"{file} is unchanged")
    else:
        _write_and_replace(target, lines, encrypt=in_place and is_encrypted(target))
    return 1 if remaining else 0


def _report_remaining(remaining: "Sequence[RemainingSecret]") -> None:
    """Print where secrets are left that are too short to be replaced, without the secrets."""
    places = list(dict.fromkeys((each.record, each.kind, each.path) for each in remaining))
    for record, kind, path in places[:_PLACES_MAX]:
        rule = path if kind in ("in", "out") else f"{kind}:{path}"
        advice = f": --rule {shlex.quote(rule)}" if path.startswith(("$.", '$["')) else ""
        echo_error(f"a short secret is left in record {record} ({kind}){advice}")
    if len(places) > _PLACES_MAX:
        echo_error(f"… and in {len(places) - _PLACES_MAX} more places")
    shortest = min(len(each.value) for each in remaining)
    echo_error(
        "These values are replaced where a name, schema or path says that they are secret, but are"
        " too short to be replaced elsewhere. Redact FILE again: with such a rule, or with"
        f" --min-chars {shortest} to replace them wherever they appear."
    )


def _target_file(file: str, output: str | None, *, in_place: bool) -> str | None:
    """Return the file to write, OUT or the recording itself; None for stdout."""
    if not in_place:
        if output and is_same_recording(output, file):
            raise click.UsageError("OUT is the recording itself: use --in-place to replace it")
        return output
    if output is not None:
        raise click.UsageError("--in-place and -o cannot be used together")
    if len(segments_of(file)) > 1:
        raise click.UsageError("--in-place cannot replace a recording of several files: use -o")
    links = 0
    try:
        with Path(file).open("rb") as opened:
            if not try_lock(opened.fileno(), is_shared=True):
                # The session would continue in a deleted file.
                raise click.UsageError(f"a session is still being recorded to {file}")
            links = os.fstat(opened.fileno()).st_nlink
    except OSError:  # reading reports the error
        pass
    if links > 1:
        click.echo(f"note: {file} has another name, a hard link, which keeps the secrets", err=True)
    return os.path.realpath(file)  # replace the file with the secrets, not a link to it


def _redaction(
    rules: tuple[str, ...], names: tuple[str, ...], values: str | None, min_chars: int
) -> "Redaction":
    from mcp_trio._journal.redaction import Redaction
    from mcp_trio._journal.secret_names import DEFAULT_SECRET_NAMES

    paths: dict[str, list[str]] = {}
    for rule in rules:
        scope, dollar, path = rule.partition("$")
        paths.setdefault(scope.removesuffix(":") or "*", []).append(dollar + path)
    lines: list[str] = []
    if values is not None:
        try:
            lines = Path(values).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"cannot read the values in {values}: {error}") from error
    return Redaction(
        keys={*DEFAULT_SECRET_NAMES, *names},
        paths=paths,
        secrets=[line for line in map(str.strip, lines) if line],
        follow_chars_min=min_chars,
    )


def _intact_records(file: str) -> "list[Record]":
    """Return the records; a last line that was cut is reported and left out.

    Other damage raises an error, because new digests would hide it.
    """
    records: list[Record] = []
    for item in records_of(file):
        if not isinstance(item, Damage):
            records.append(item)
        elif item.kind == "torn":
            echo_error(f"left out: line {item.line}: {item.text}")
        else:
            raise RecordingError(
                f"line {item.line}: {item.kind}: {item.text}; a damaged recording cannot be"
                " redacted"
            )
    return records


def _write_and_replace(target: str, lines: Iterable[bytes], *, encrypt: bool) -> None:
    """Write a file next to the target, and rename it to the target once it is on the disk."""
    from mcp_trio._recorder.encryption import EncryptedSink, recording_keys
    from mcp_trio._recorder.files import COMPRESSED_SUFFIX, CompressedSink, FileSink

    part = f"{target}.{os.getpid()}.part"
    try:
        file = FileSink(part, overwrite=True, flags=NO_FOLLOW)
        encrypted = EncryptedSink(file, recording_keys()) if encrypt else file
        sink = CompressedSink(encrypted) if target.endswith(COMPRESSED_SUFFIX) else encrypted
        with closing(sink):
            for line in lines:
                sink.write(line)
        descriptor = os.open(part, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        Path(part).replace(target)
    except OSError as error:
        raise RecordingError(f"cannot write {target}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            Path(part).unlink()


# `mcp-trio scan`.

# The number of characters of a value that are shown, if it is not shorter than the second number.
_SHOWN_CHARS: Final = 4
_SHOWN_VALUE_CHARS_MIN: Final = 12

# Kinds of damage of a line that may hold more than was read.
_UNREAD_DAMAGE: Final = frozenset({"torn", "damaged", "unknown-key"})


@click.command(
    short_help="Look for likely secrets in recordings.",
    epilog="""\b
Finds values under names such as password, values with the shape of a known kind of key, and
values with high entropy. It can miss a secret, and report another value. The tokens of a
redacted recording are not reported.

\b
A FILE of - stands for the recordings that stdin names: the output of `mcp-trio find`.

\b
Exit status: 0 nothing found; 1 a likely secret, or a line that cannot be read completely, or
stdin names no recording; 2 a file is not a recording.

\b
Examples:
  mcp-trio scan recordings/*.mcprec.jsonl
  mcp-trio scan clean.mcprec.jsonl.zst && git add clean.mcprec.jsonl.zst
""",
)
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, shell_complete=complete_recordings
)
@click.pass_context
def scan_command(context: click.Context, /, files: tuple[str, ...]) -> None:
    """Look for likely secrets in each recording FILE, and print where they are."""
    context.exit(highest_status(chain.from_iterable(map(files_of, files)), _scan))


def _scan(file: str) -> int:
    """Print the likely secrets of a file; return the exit status for it."""
    from mcp_trio._journal.records import OpenBody, body_bytes, decode_body
    from mcp_trio._journal.redaction import redactor_for_replay
    from mcp_trio._journal.secrets import likely_secrets

    records: list[Record] = []
    unread: list[Damage] = []
    for item in records_of(file):
        if not isinstance(item, Damage):
            records.append(item)
        elif item.kind in _UNREAD_DAMAGE:
            unread.append(item)

    manifest = decode_body(records[0], OpenBody).redaction
    redactor = None if manifest is None else redactor_for_replay(manifest, records)
    found: list[Line] = []
    for record in items_with_bar(records[1:], f"scanning {Path(file).name}", len(records) - 1):
        if record.kind == "end":  # It has counts only, such as that of masked passwords.
            continue
        for secret in likely_secrets(body_bytes(record) or b"null"):
            value = secret.value
            if redactor is None or not redactor.knows(value):
                shown = "" if len(value) < _SHOWN_VALUE_CHARS_MIN else value[:_SHOWN_CHARS]
                masked = f"{shown}… ({len(value)} characters)"
                found.append(Line((str(record.number), secret.kind, masked, secret.path)))
    if found:
        echo_text(f"{file}: likely secrets: {len(found)}")
        columns = [Column("record", "right"), Column("what"), Column("value"), Column("path")]
        print_table(columns, found)
    else:
        echo_text(f"{file}: nothing looks like a secret")
    if manifest is None:
        click.echo(f"{file}: note: it was recorded without redaction", err=True)
    for damage in unread:
        echo_error(f"{file}: cannot be scanned: line {damage.line}: {damage.text}")
    return 1 if found or unread else 0
