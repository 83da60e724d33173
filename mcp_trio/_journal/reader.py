"""Reading the records of a recording from its lines, and reporting damage in them.

The reader streams. It raises only if the lines are no recording at all; all other damage is
reported between the records, and reading goes on. A last line that was cut off ("torn"), because
the writer was killed, is distinguished from damage elsewhere: a line that is no record, a hole in
the numbers that no `gap` explains, or a digest that does not match the lines it covers.

The `open` record of a later segment is checked like every line, but not returned as a record.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import Any, Final, Literal

import msgspec

from mcp_trio._journal.records import (
    FORMAT_VERSION,
    KINDS,
    GapBody,
    OpenBody,
    Record,
    RunningDigest,
    body_bytes,
    decode_body,
)
from mcp_trio.errors import RecordingError

DamageKind = Literal["torn", "damaged", "digest", "numbering", "unknown-kind", "unknown-key"]


class Damage(msgspec.Struct, frozen=True):
    """Damage in a line, counted from 1: its kind, and a text for users."""

    line: int
    kind: DamageKind
    text: str


class CheckReport(msgspec.Struct, frozen=True):
    """A report on a recording.

    Attributes:
        records: The number of records.
        kinds: The number of records of each kind.
        damage: All damage that was found.
        complete: Whether the recording was closed.
        has_loss: Whether records are missing in a `gap`, or may be missing.
    """

    records: int
    kinds: dict[str, int]
    damage: list[Damage]
    complete: bool
    has_loss: bool


class _TolerantRecord(Record, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A record that may have keys of a later version of the format."""


_DECODE: Final = msgspec.json.Decoder(Record).decode
_DECODE_TOLERANTLY: Final = msgspec.json.Decoder(_TolerantRecord).decode


def read_recording(lines: Iterable[bytes]) -> Iterator[Record | Damage]:
    """Yield the records of a recording, each after the damage that was found in its line.

    `lines` end in LF, except where the recording was cut. A record of an unknown kind, or with
    unknown keys, follows a `Damage` that says so. Ignore records of unknown kinds; records with
    unknown keys can be used.

    Raises:
        RecordingError: The lines are no recording, or one of another format version.
    """
    has_begun, is_in_gap, digest = False, False, RunningDigest()
    next_number: int | None = 0
    lines_and_end: Iterator[Any] = chain(lines, (None,))
    line: bytes
    for line_number, (line, following) in enumerate(pairwise(lines_and_end), 1):
        is_last = following is None
        record = None if is_last and not line.endswith(b"\n") else _decode(line)
        if not has_begun:
            _check_opening(record)
            has_begun = True
        if record is None:
            if is_last:
                yield Damage(line_number, "torn", "the recording was cut in its last line")
            else:
                yield Damage(line_number, "damaged", "not a record")
            next_number = None
            digest.add(line)
            continue
        if record.kind not in KINDS:
            yield Damage(line_number, "unknown-kind", f"a record of kind {record.kind!r}")
        if isinstance(record, _TolerantRecord):
            yield Damage(line_number, "unknown-key", "a record with unknown keys")
        expected, next_number = next_number, record.number + 1
        is_gap = record.kind == "gap"
        is_explained = is_in_gap or is_gap
        if is_gap:
            is_in_gap = decode_body(record, GapBody).count is None
            digest.restart()
        if expected is not None and (
            record.number < expected or (record.number > expected and not is_explained)
        ):
            text = f"record {record.number} where {expected} is expected"
            yield Damage(line_number, "numbering", text)
        if record.digest is not None and not is_gap:
            if record.digest != digest.value():
                text = "a line between the last digest and this record was changed"
                yield Damage(line_number, "digest", text)
            digest.restart(record.digest)
        digest.add(line)
        if record.kind == "open" and line_number > 1:
            next_number = record.number
        else:
            yield record
    if not has_begun:
        raise RecordingError("not a recording: it is empty")


def check(lines: Iterable[bytes]) -> CheckReport:
    """Read a recording to its end and return a report on it.

    Raises:
        RecordingError: As `read_recording`.
    """
    kinds: Counter[str] = Counter()
    damage: list[Damage] = []
    gaps: list[Record] = []
    last = ""
    for item in read_recording(lines):
        if isinstance(item, Damage):
            damage.append(item)
        else:
            last = item.kind
            kinds[last] += 1
            if last == "gap":
                gaps.append(item)
    return CheckReport(
        records=kinds.total(),
        kinds=dict(kinds),
        damage=damage,
        complete=last == "end",
        has_loss=first_loss(gaps) is not None,
    )


def first_loss(records: Iterable[Record]) -> int | None:
    """Return the position of the first `gap` that lost records, or may have; None if none did.

    A disk that was slow for a while leaves a gap that closes with a count of 0: no record was lost,
    but records may have been written after the bytes that they explain. A gap that was never
    closed, because the writer was killed, may have lost records.
    """
    opened = None
    for position, record in enumerate(records):
        if record.kind != "gap":
            continue
        if opened is None:
            opened = position
        count = decode_body(record, GapBody).count
        if count:
            return opened
        if count == 0:
            opened = None
    return opened


class _FormatVersion(msgspec.Struct):
    format_version: int


def _check_opening(record: Record | None) -> None:
    """Check that the first record opens a recording of this format version."""
    if record is None or record.kind != "open":
        raise RecordingError("not a recording: its first line is not a complete `open` record")
    version = decode_body(record, _FormatVersion).format_version
    if version != FORMAT_VERSION:
        raise RecordingError(
            f"cannot read format version {version}; this version of mcp_trio reads {FORMAT_VERSION}"
        )
    segment = decode_body(record, OpenBody).segment
    if segment > 1:
        raise RecordingError(
            f"this is segment {segment} of a recording: read it from its first file"
        )


def _decode(line: bytes) -> Record | None:
    """Return the record in a line; None if the line is no record."""
    try:
        if not line.isascii():
            line.decode()  # msgspec does not check the UTF-8 of a `Raw` body
        try:
            record = _DECODE(line)
        except msgspec.ValidationError:
            record = _DECODE_TOLERANTLY(line)
        if record.kind == "gap":
            decode_body(record, GapBody)
        body_bytes(record)
    except (ValueError, RecursionError, RecordingError):
        return None
    return record
