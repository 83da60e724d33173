"""`mcp-trio show`, `diff`, `check`, `redact`, `scan`, `export` and `test`: use recordings."""

import os
import re
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from mcp_trio._cli.completion import complete_recordings, complete_targets
from mcp_trio._cli.options import (
    STDIN,
    check_overwrites_nothing,
    combined,
    errors_naming,
    files_of,
    highest_status,
    is_same_recording,
    lines_of,
    overwrite_option,
    read_key,
    recordings_on_stdin,
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
    printable,
)
from mcp_trio._cli.timeline import (
    Selection,
    Timeline,
    cell_text,
    parse_bound,
    print_timeline,
    read_rows,
)
from mcp_trio._journal.records import KINDS, Damage
from mcp_trio._journal.texts import json_text, shortened
from mcp_trio._system import NO_FOLLOW, try_lock
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, RecordingLimits

if TYPE_CHECKING:
    from mcp_trio._journal.records import CheckReport, Record
    from mcp_trio._journal.redaction import Redaction, RemainingSecret
    from mcp_trio._recorder.encryption import KeyMissingError


# `mcp-trio show`.


def _kinds(_: click.Context, __: click.Parameter, text: str | None) -> frozenset[str]:
    kinds = frozenset(text.split(",") if text else ())
    for kind in kinds - KINDS.keys():
        raise click.BadParameter(f"no kind {kind!r}; the kinds are {', '.join(KINDS)}")
    return kinds


# The parameters of `Selection`.
_selection_options: Final = combined(
    click.option(
        "--at", metavar="N", type=int, help="Only this record, with its request and the response."
    ),
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
        metavar="START",
        callback=parse_bound,
        help="Nothing before this record (12) or time in seconds (1.5s).",
    ),
    click.option(
        "--to",
        "end",
        metavar="END",
        callback=parse_bound,
        help="Nothing after this record or time.",
    ),
)


@click.command(
    short_help="Show a recording as a timeline.",
    epilog="""\b
-> is a message to the server, <- one to the client. An answer shows how long its request took. If
stateless requests came from several clients, a column names them. Before a record's number, !
marks an error and ~ a cancellation. A lane is a request that the server handled; r12.1 is the
first task that the handler of request 12 started.

\b
Kinds: in and out are messages; cmd, res, err, cxl and val are a handler's effects; step lists
handlers that went on; mark is a note; open, shut and end are about the session; gap stands for
lost records.

\b
If a server asks its client for input during a call, the call takes several requests. Each shows
its round, and the messages of each such call are listed once more below the timeline.

\b
If requests have a trace context, a column has their trace ids; `mcp-trio find DIR trace:ID`
finds them. The attributes mcp_trio.recording.file and mcp_trio.recording.record of a span are
FILE and the number for --at.

\b
--at, --lane, --method, --id, --errors and --slower-than also show the request and response of
the rows that they select, in all rounds; together, they select the rows that meet all of them.
--channel, --kind, --from and --to hide everything else.

\b
A FILE of - stands for the recordings that stdin names: the output of `mcp-trio find`.

\b
Exit status: 0 success; 1 stdin names no recording; 2 not a recording.

\b
Examples:
  mcp-trio show recordings/trip.mcprec.jsonl --errors
  mcp-trio find recordings/ error:internal --json | mcp-trio show - --errors
  mcp-trio show recordings/trip.mcprec.jsonl --at 12 --full
  mcp-trio show recordings/trip.mcprec.jsonl --method 'tools/*' --slower-than 100
  mcp-trio show recordings/trip.mcprec.jsonl --json | jq 'select(.took_ms > 100)'
""",
)
@click.argument("file", shell_complete=complete_recordings)
@_selection_options
@click.option("--full", is_flag=True, help="Print each message completely, below its row.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
def show_command(file: str, *, full: bool, as_json: bool, **chosen: Any) -> None:
    """Show the recording FILE as a timeline."""
    selection = Selection(**chosen)
    for number, each in enumerate(files_of(file)):
        if as_json:
            rows, *_ = read_rows(each)
            shown: Sequence[Any] = list(selection.rows(rows))
            if file == STDIN:
                shown = [{"file": each, **msgspec.to_builtins(row)} for row in shown]
            echo_json(msgspec.json.Encoder().encode_lines(shown), nl=False)
            continue
        if file == STDIN:
            echo_text(f"\n{each}:" if number else f"{each}:")
        print_timeline(each, selection, with_messages=full)


# `mcp-trio diff`.

# The number of differences that are shown without --all.
SHOWN_MAX: Final = 20
_VALUE_COLUMNS_MAX: Final = 60
_DIFFERENCE_COLUMNS: Final = (
    Column(""),
    Column("A", "right"),
    Column("B", "right"),
    Column("lane"),
    Column("kind"),
    Column("what", screen_columns_max=40),
    Column("difference"),
)
# The colour and the text of each kind of difference; that of a change has the values.
_DIFFERENCES: Final = {
    "changed": ("yellow", ""),
    "missing": ("red", "only in A"),
    "extra": ("green", "only in B"),
    "order": ("cyan", "from here on in another order"),
}


@click.command(
    short_help="Show where two recordings differ.",
    epilog="""\b
Times, seeds, ids, record numbers and the order of JSON members are not compared. Recordings of
different sides, such as a client's and a server's, are compared by their messages: those that one
side sent are those that the other received.

\b
A - in place of A or B is the next recording that stdin names.

\b
Exit status: 0 no difference; 1 differences, or stdin names no recording; 2 a file is not a
recording.

\b
Examples:
  mcp-trio diff before.mcprec.jsonl after.mcprec.jsonl
  mcp-trio diff client.mcprec.jsonl server.mcprec.jsonl.zst --json | jq .path
  mcp-trio find recordings/ tool:book --limit 2 --json | mcp-trio diff - -
""",
)
@click.argument("a", shell_complete=complete_recordings)
@click.argument("b", shell_complete=complete_recordings)
@click.option(
    "--all",
    "show_all",
    is_flag=True,
    help=f"Show all differences, not only the first {SHOWN_MAX}.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per difference.")
@click.pass_context
def diff_command(
    context: click.Context, /, a: str, b: str, *, show_all: bool, as_json: bool
) -> None:
    """Compare the recordings A and B."""
    from mcp_trio._journal.diff import diff, role_of

    if places := [a, b].count(STDIN):
        found_files = [each.file for each in recordings_on_stdin()]
        if len(found_files) != places:
            raise click.UsageError(
                f"stdin names {len(found_files)} recordings for {places} -: two are compared"
            )
        a, b = (found_files.pop(0) if each == STDIN else each for each in (a, b))
    (left, left_damage), (right, right_damage) = map(_records_and_damage, (a, b))
    for file, damage in ((a, left_damage), (b, right_damage)):
        for item in damage:
            echo_error(f"{file}: line {item.line}: {item.text}")
    with busy_bar("comparing"):
        found = diff(left, right)
    if as_json:
        plain = [
            msgspec.structs.replace(
                difference,
                left_value=_plain(difference.left_value),
                right_value=_plain(difference.right_value),
            )
            for difference in found
        ]
        echo_json(msgspec.json.Encoder().encode_lines(plain), nl=False)
    else:
        shown = found if show_all else found[:SHOWN_MAX]
        if shown:
            left_texts, right_texts = _texts_by_record(left), _texts_by_record(right)
            lines: list[Line] = []
            for each in shown:
                colour, text = _DIFFERENCES[each.what]
                if each.what == "changed":
                    values = map(json_text, (each.left_value, each.right_value))
                    old, new = (shortened(printable(value), _VALUE_COLUMNS_MAX) for value in values)
                    text = f"{each.path}: {old} -> {new}"
                cells = (
                    each.what,
                    cell_text(each.left),
                    cell_text(each.right),
                    each.lane or "",
                    each.kind,
                    right_texts[each.right] if each.left is None else left_texts[each.left],
                    text,
                )
                lines.append(Line(cells, colour))
            print_table(_DIFFERENCE_COLUMNS, lines)
            click.echo()
        count = f"{len(found) or 'no'} difference{'' if len(found) == 1 else 's'}"
        compared = f"{len(left)} and {len(right)} records"
        roles = role_of(left), role_of(right)
        if roles[0] != roles[1]:
            compared += f", by the messages of {roles[0]} and {roles[1]}"
        hidden = len(found) - len(shown)
        click.echo(f"{count} in {compared}{f'; {hidden} more with --all' if hidden else ''}")
    context.exit(1 if found else 0)


def _records_and_damage(file: str) -> "tuple[list[Record], list[Damage]]":
    items = list(records_of(file))
    records = [item for item in items if not isinstance(item, Damage)]
    return records, [item for item in items if isinstance(item, Damage)]


def _plain(value: Any) -> Any:
    """Return bytes as text, and other values, which are JSON, as they are."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _texts_by_record(records: "Sequence[Record]") -> dict[int | None, str]:
    """Return the text of each record in the timeline; for a batch, that of the batch."""
    timeline = Timeline()
    rows = [row for record in records for row in timeline.rows(record)]
    return {row.record: row.what for row in reversed(rows)}  # the first row of a record remains


# `mcp-trio check`.

# What the kinds of damage mean for the recording, the worst first.
DAMAGE_TEXTS: Final = {
    "damaged": "damaged: a line in the middle was changed or lost",
    "digest": "damaged: a line in the middle was changed or lost",
    "numbering": "damaged: a line in the middle was changed or lost",
    "torn": "cut in its last line: all earlier lines are intact",
    "unknown-kind": "written by a later version: this version does not know all of its content",
    "unknown-key": "written by a later version: this version does not know all of its content",
}


@click.command(
    short_help="Check that a recording or an audit log is complete.",
    epilog="""\b
An encrypted recording is checked without its key as far as that is possible: the order, the
lengths and the digests of its encrypted parts, and whether its files were closed.

\b
An audit log is checked with its earlier files FILE.1 and so on: by its chain of digests, which
names the lines that were removed, changed or moved, and by FILE.head, which tells where the log
ends. Without the key that it was written
with, changed lines are not looked for.

\b
A FILE of - stands for the recordings that stdin names: the output of `mcp-trio find`.

\b
Exit status: 0 complete and undamaged; 1 damaged, cut, or with lost records, or stdin names no
recording; 2 not a recording. Of several, the highest one.

\b
Examples:
  mcp-trio check recordings/trip.mcprec.jsonl
  mcp-trio check recordings/trip.mcprec.jsonl.zst && echo complete
  mcp-trio check audit.jsonl --key audit.key
  mcp-trio find recordings/ after:7d --files | mcp-trio check -
""",
)
@click.argument("file", shell_complete=complete_recordings)
@click.option("--key", metavar="FILE", help="For an audit log: the key that it was written with.")
@click.pass_context
def check_command(context: click.Context, /, file: str, key: str | None) -> None:
    """Check the recording or audit log FILE: records, numbers and digests, and its end."""
    from mcp_trio._observers.audit_log import check_audit_log, is_audit_log

    if Path(file).is_file() and is_audit_log(file):  # a pipe can be read only once
        audit = check_audit_log(file, key=None if key is None else read_key(key))
        state = "damaged" if audit.problems else "complete"
        echo_text(f"{file}: {state}: an audit log of {audit.lines} lines")
        for text in audit.problems:
            echo_text(text)
        for text in audit.notes:
            echo_text(f"note: {text}")
        context.exit(1 if audit.problems else 0)
    if key is not None:
        raise click.UsageError("--key is for audit logs")
    context.exit(highest_status(files_of(file), _check_recording))


def _check_recording(file: str) -> int:
    """Print the state of a recording; return the exit status for it."""
    from mcp_trio._journal.records import check
    from mcp_trio._recorder.encryption import KeyMissingError

    try:
        with errors_naming(file):
            report = check(lines_of(file))
    except KeyMissingError as error:
        return 0 if _check_encrypted(file, error) else 1
    echo_text(f"{file}: {check_summary(report)}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in report.kinds.items())
    echo_text(f"{report.records} records: {kinds}")
    for damage in report.damage:
        echo_text(f"line {damage.line}: {damage.kind}: {damage.text}")
    return 0 if is_intact(report) else 1


def _check_encrypted(file: str, missing: "KeyMissingError") -> bool:
    """Check the files of a recording whose key is missing; return whether they are intact."""
    from mcp_trio._recorder.encryption import check_frames

    echo_text(f"its records were not checked: {missing}")
    reports = {name: check_frames(name) for name in segments_of(file)}
    for name, report in reports.items():
        state = "closed" if report.is_closed else "cut, or still being written"
        echo_text(
            f"{name}: {report.frames} encrypted parts, key {report.key!r}: {report.damage or state}"
        )
    return all(each.is_closed and not each.damage for each in reports.values())


def is_intact(report: "CheckReport") -> bool:
    """Return whether the recording is complete, undamaged, and lost no records."""
    return report.complete and not report.damage and not report.has_loss


def check_summary(report: "CheckReport") -> str:
    """Return the state of a recording in a sentence."""
    found = {damage.kind for damage in report.damage}
    for kind, text in DAMAGE_TEXTS.items():
        if kind in found:
            return text
    state = "complete" if report.complete else "cut between two lines: the session was not closed"
    if report.has_loss:
        return f"{state}, but with a gap: records that could not be written are missing"
    if "gap" in report.kinds:
        return f"{state}, with a gap in which nothing was lost"
    return state


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
    from mcp_trio._journal.redaction import KEY_BYTES

    redaction = _redaction(**rules)
    key_bytes = os.urandom(KEY_BYTES) if key is None else read_key(key)

    def redact(each: str, out: str | None) -> int:
        target = _target_file(each, out, in_place=in_place)
        if out is not None:
            check_overwrites_nothing(out, overwrite=overwrite)
        return _redact(each, target, redaction, key_bytes, in_place=in_place)

    if file != STDIN:
        context.exit(redact(file, output))
    if output is None:
        if not in_place:
            raise click.UsageError("- needs -o with a folder, or --in-place")
        context.exit(highest_status(files_of(file), lambda each: redact(each, None)))
    files, folder = files_of(file), Path(output)
    for name, count in Counter(Path(each).name for each in files).items():
        if count > 1:
            raise click.UsageError(f"stdin names {count} recordings {name}: OUT has room for one")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"{output} cannot be created: {error.strerror}") from error
    context.exit(highest_status(files, lambda each: redact(each, str(folder / Path(each).name))))


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
            records, damage = _records_and_damage(file)
            for each in damage:
                if each.kind != "torn":  # new digests would hide it
                    raise RecordingError(
                        f"line {each.line}: {each.kind}: {each.text}; a damaged recording cannot be"
                        " redacted"
                    )
                echo_error(f"left out: line {each.line}: {each.text}")
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
        begin = max(rule.find("$"), 0)
        paths.setdefault(rule[:begin].removesuffix(":") or "*", []).append(rule[begin:])
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
        with Path(part).open("rb") as written:
            os.fsync(written.fileno())
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

    records, damage = _records_and_damage(file)
    unread = [each for each in damage if each.kind in _UNREAD_DAMAGE]
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
    for each in unread:
        echo_error(f"{file}: cannot be scanned: line {each.line}: {each.text}")
    return 1 if found or unread else 0


# `mcp-trio export`.


@click.command(
    short_help="Convert a recording's messages for other tools.",
    epilog="""\b
jsonld is a JSON-LD document per line and message, with its context. Member names stand for
properties of http://modelcontextprotocol.io/ontology#. Only messages are exported.

\b
Exit status: 0 success; 1 a malformed message or damage was left out, and listed on stderr; 2 not
a recording, or OUT cannot be written.

\b
Examples:
  mcp-trio export trip.mcprec.jsonl > trip.jsonld.jsonl
  mcp-trio export trip.mcprec.jsonl --with-records -o trip.jsonld.jsonl
""",
)
@click.argument("file", shell_complete=complete_recordings)
@click.option(
    "--format",
    type=click.Choice(["jsonld"]),
    default="jsonld",
    show_default=True,
    expose_value=False,
    help="The format to convert to.",
)
@click.option(
    "--with-records",
    is_flag=True,
    help="Put each message into a node with its number, direction, channel, lane and time.",
)
@click.option(
    "-o", "--output", metavar="OUT", help="Write to this file, readable by you alone (mode 0600)."
)
@overwrite_option
@click.pass_context
def export_command(
    context: click.Context,
    /,
    file: str,
    output: str | None,
    *,
    overwrite: bool,
    with_records: bool,
) -> None:
    """Write the messages of the recording FILE in another format."""
    from mcp_trio._journal.export import export_jsonld
    from mcp_trio._recorder.files import FileSink

    left_out: list[str] = []

    def converted() -> Iterator[bytes]:
        for item in records_of(file):
            if isinstance(item, Damage):
                left_out.append(f"line {item.line}: {item.text}")
                continue
            try:
                yield from export_jsonld(item, with_record=with_records)
            except RecordingError as error:
                left_out.append(str(error))

    lines = converted()
    if output is None:
        for line in lines:
            echo_json(line)
    else:
        if is_same_recording(output, file):
            raise click.BadParameter("OUT is the recording itself: name another file")
        check_overwrites_nothing(output, overwrite=overwrite)
        first = list(islice(lines, 1))  # if FILE is not a recording, this raises before OUT exists
        try:
            with closing(FileSink(output, overwrite=True)) as sink:
                for line in chain(first, lines):
                    sink.write(line + b"\n")
        except OSError as error:
            raise RecordingError(f"cannot write {output}: {error.strerror}") from error
    for text in left_out:
        echo_error(f"left out: {text}")
    context.exit(1 if left_out else 0)


# `mcp-trio test`.

_TEST_FILE: Final = '''"""{what}"""

import pytest


@pytest.mark.mcp_recording({recording!r})
def test_{name}(mcp_replay):
    mcp_replay({target!r})
'''


@click.command(
    short_help="Write a test that keeps a recording.",
    epilog="""\b
The recording is copied into a folder `recordings` beside the test. The test finds a TARGET that
is a file from its own folder, and package.module[:object] from the folder in which pytest runs.

\b
Exit status: 0 success; 2 FILE is not a recording, or a file exists.

\b
Examples:
  mcp-trio test recordings/shop-20261128T101500Z-1-7.mcprec.jsonl shop:server
  mcp-trio test trip.mcprec.jsonl server.py -o tests/test_taken_seat.py
""",
)
@click.argument("file", shell_complete=complete_recordings)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="The test; by default tests/test_NAME.py with the name of the recording.",
)
@overwrite_option
def test_command(file: str, target: str, output: str | None, *, overwrite: bool) -> None:
    """Write a pytest file that replays a copy of the recording FILE against TARGET."""
    from mcp_trio._catalogue.catalogue import summarize
    from mcp_trio._recorder.encryption import is_encrypted
    from mcp_trio._recorder.files import open_recording
    from mcp_trio._replay.targets import split_target

    with errors_naming(file):
        summary = summarize(open_recording(file))
    title = _identifier(Path(file).name.partition(".mcprec")[0])
    test = Path(output or f"tests/test_{title}.py")
    source, colon, name = split_target(target)
    if source.endswith(".py"):
        if not Path(source).is_file():
            raise click.UsageError(f"{source}: no such file")
        source = Path(os.path.relpath(source, test.parent)).as_posix()
    elif not all(map(str.isidentifier, source.split("."))):
        raise click.UsageError(f"{source!r} is not a module name; a file name must end with .py")
    recordings = test.parent / "recordings"
    copies = {each: recordings / Path(each).name for each in segments_of(file)}
    if is_same_recording(os.fspath(recordings / Path(file).name), file):  # it is there already
        copies = {}
    for path in (test, *copies.values()):
        check_overwrites_nothing(os.fspath(path), overwrite=overwrite)
    tools = sorted({call.name or call.method for call in summary.calls})
    errors = sorted({call.error for call in summary.calls if call.error})
    what = f"A session of {summary.opening.started[:10]} with {', '.join(tools) or 'no calls'}"
    what += f", and errors: {', '.join(errors)}." if errors else "."
    text = _TEST_FILE.format(
        what=printable(what).replace("\\", "\\\\").replace('"', "'"),
        recording=f"recordings/{Path(file).name}",
        name=_identifier(test.stem.removeprefix("test_")) or title,
        target=f"{source}{colon}{name}",
    )
    try:
        recordings.mkdir(parents=True, exist_ok=True)
        for source, copy in copies.items():
            shutil.copy(source, copy)  # with its mode: a recording may hold secrets
        test.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"cannot write {test}: {error.strerror}") from error
    echo_text(f"wrote {test} and {recordings / Path(file).name}")
    if is_encrypted(file):
        echo_error("the recording is encrypted: wherever the test runs, it needs the key")
    elif summary.opening.redaction is None:
        echo_error("the recording is not redacted: look for secrets with mcp-trio scan")


def _identifier(text: str) -> str:
    """Return a text as a part of a name in Python."""
    return re.sub(r"\W+", "_", text).strip("_").lower()
