"""The records of a journal, their encoding as lines of a recording, and reading these again.

A recording is JSON Lines: one record a line, its keys always in the order of `Record`. A body is in
its line verbatim (`f`) if a JSON reader gives back the same bytes, else in base64 (`b`). The bodies
of `in` and `out` are messages of JSON-RPC; those of other kinds have the types in this module.

Numbers run from 0 without a hole, except that records lost to a `gap` keep their numbers, since
lanes are named after them. Every 64th record and `end` have a running digest (`h`) of all lines
since the last digest, so that damage can be located. It starts again at each `gap`, which has none.

A recording may go on in further files, its segments. Each begins with an `open` record that has the
number of the record after it, so that the records are the same however they are cut into files.

The lane of a request is named after the number of its `in` record, and in a batch also after its
position there, except for the first message: `r5`, `r5-1`, `r5-2`.
"""

import hashlib
import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio.errors import RecordingError

FORMAT_VERSION: Final = 2
DIGEST_INTERVAL: Final = 64

KINDS: Final[Mapping[str, str]] = {
    "open": "the recording begins, with the facts known then",
    "in": "a message was received",
    "step": "tasks of handlers went on, in this order",
    "cmd": "a handler started an effect",
    "res": "an operation's task resumed with a value",
    "err": "an operation's task resumed with an error",
    "cxl": "an operation was cancelled, or a lane ended without a response",
    "val": "a handler read a value without waiting, such as a clock",
    "out": "a message was sent",
    "mark": "a named fact: the negotiation, a round, an annotation",
    "gap": "records are lost from here on, with the reason; a second one closes it",
    "shut": "the session began to close",
    "end": "the recording is complete",
}

# The mark with the branch that a lane took where a handler asks whether its code was patched.
PATCHED_MARK: Final = "patched"

# The mark of a handler that was suspended; its value is the random state that its client returns.
SUSPENDED_MARK: Final = "suspended"

# The marks with the decision of an access rule.
ALLOWED_MARK: Final = "access allowed"
DENIED_MARK: Final = "access denied"

# The mark of a request that gets no response, with its id and the error; in a recording of a proxy,
# of a request of the client that the server does not answer.
LOST_MARK: Final = "lost"

# A member of the envelope of `cxl`: the time limit of the cancelled effect, in microseconds. It is
# there if the limit was the cause, that is if the deadline had expired when the effect ended.
EXPIRED_LIMIT: Final = "limit_us"

# The lane of a server's lifespan, the marks about it, and the name of the effect for which it waits
# while the server serves its sessions.
LIFESPAN_LANE: Final = "lifespan"
LIFESPAN_MARK: Final = "lifespan"
LIFESPAN_CANCELLED_MARK: Final = "lifespan cancelled"
LIFESPAN_OPENED_MARK: Final = "lifespan opened"
LIFESPAN_SESSIONS: Final = "lifespan.sessions"

# The names of the effects and values of the context itself; names of users' effects have no dot.
SLEEP: Final = "ctx.sleep"
LOCK: Final = "ctx.lock"
HTTP: Final = "ctx.http"
HTTP_CLOSE: Final = "ctx.http.aclose"
NOW: Final = "ctx.now"
MONOTONIC: Final = "ctx.monotonic"

# The values of `Record.step_start`; 0 is a record with which no step of its lane starts.
HAS_WAITED: Final = 1
BEGINS_STEP: Final = 2

RECORD_BYTES: Final = 64
"""An estimate of the bytes that a record takes in a file besides its body."""

# The kinds at which the running digest starts again, whatever the number of the record.
_DIGEST_KINDS: Final = frozenset({"gap", "end", "open"})

# Numbers that databases, clocks and programs in other languages can hold. A sum of counts can be
# held as well.
_Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]

_SPACE: Final = ord(" ")
_LF: Final = ord("\n")
_CR: Final = ord("\r")

_KEYS: Final = {
    "number": "n",
    "kind": "k",
    "channel": "c",
    "lane": "l",
    "ordinal": "o",
    "step_start": "s",
    "time_ns": "t",
    "envelope": "x",
    "body": "f",
    "body_base64": "b",
    "digest": "h",
}


class Record(
    msgspec.Struct,
    kw_only=True,
    frozen=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    gc=False,
    rename=_KEYS,
):
    """One line of a recording; `body_bytes` returns its body.

    Attributes:
        number: The number of the record, from 0.
        kind: One of `KINDS`.
        channel: The session in a shared recording; 0 in a recording of one session.
        lane: The path of a task within the session: the request, then child tasks.
        ordinal: The number of the record among those of its lane, from 1.
        step_start: How a step of the lane starts with this record: `HAS_WAITED` after a wait in
            the operation that the record ends; `BEGINS_STEP` after another wait, or because the
            lane has just started.
        time_ns: Nanoseconds since the recording began.
        envelope: Facts about a message that are not in its bytes.
        body: The body, verbatim.
        body_base64: The body in base64, if it cannot be embedded verbatim.
        digest: The running digest of the lines before, in every 64th record and in `end`.
    """

    number: _Int64
    kind: str
    channel: _Int64 = 0
    lane: str | None = None
    ordinal: _Int64 | None = None
    step_start: int = 0
    time_ns: _Int64
    envelope: Mapping[str, Any] | None = None
    body: Raw | UnsetType = UNSET
    body_base64: str | None = None
    digest: str | None = None


LISTED_KINDS: Final = ("tools", "prompts", "resources", "templates")
"""The keys of `OpenBody.listed`."""

TICK_CLOCK: Final = "tick"
"""`OpenBody.clock` of a `TickClock`, which stands still within a turn of the event loop."""

VIRTUAL_CLOCK: Final = "virtual"
"""`OpenBody.clock` of a clock that moves only while all tasks wait, such as Trio's `MockClock`."""

FOREIGN_CLOCK: Final = "foreign"
"""`OpenBody.clock` of any other clock, such as Trio's own."""


class OpenBody(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `open`: the facts that are known when a recording begins.

    Each later segment begins with the same body, except for its `segment`.

    Attributes:
        format_version: The version of the format.
        transport: The transport, such as "stdio", or the class name of a custom channel.
        role: "server", "client" or "proxy": the side that was recorded.
        name: The name of the recorded server or client.
        version: Its version.
        listed: A line for each tool, prompt, resource and template as the server lists it, by
            `LISTED_KINDS`: 8 hexadecimal digits of a digest, a space, and the name or URI. A list
            that is too long has one line, for all of it, without a name.
        earlier_sessions: The number of the server's sessions in this process that had ended when
            the recording began.
        seed: The seed of all random numbers of the session; None if it has none.
        redaction: The rules by which values were redacted; None if nothing was.
        started: The wall clock at the beginning, in ISO 8601.
        lifespan: Whether the server had a lifespan function.
        session: A random id; files with the same id are segments of one recording.
        segment: The number of this file among the segments, from 1.
        writer: The versions of the library and of Python that wrote the file.
        clock: The kind of the Trio run's clock: `TICK_CLOCK`, `VIRTUAL_CLOCK` or `FOREIGN_CLOCK`.
        clock_ns: The time on that clock at which the recording began, in nanoseconds.
        strict: Whether handlers got an error when they did what no replay could repeat.
    """

    format_version: int = FORMAT_VERSION
    transport: str
    role: str
    name: str
    version: str
    listed: dict[str, list[str]] = {}
    earlier_sessions: int = 0
    seed: int | None = None
    redaction: dict[str, Any] | None = None
    started: str
    lifespan: bool = False
    session: str = ""
    segment: int = 1
    writer: str = ""
    clock: str = FOREIGN_CLOCK
    clock_ns: int = 0
    strict: bool = False


class MarkBody(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `mark`: a fact and its name."""

    name: str
    value: Any = None


class CommandBody(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The body of `cmd`: an effect's name and arguments.

    `cancelled` is true if its task was cancelled already, so that only a shield lets it wait.
    """

    name: str
    arguments: Any = None
    cancelled: bool = False


class StepsBody(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `step`: the names of lanes, in the order in which they went on.

    A number among them is the time that passed since the step before, in nanoseconds.
    """

    lanes: list[str | int]


class ErrorBody(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The body of `err`: an exception, as far as JSON can represent it.

    Attributes:
        type: The class, as `module.qualname`.
        text: The text.
        args: The arguments; None if a value of them has no JSON form.
        attributes: The attributes that have a JSON form.
        members: The exceptions of an exception group.
        notes: The notes, as `BaseException.add_note` adds them.
        cause: The exception in `raise ... from`.
        context: The exception that was being handled, unless it is suppressed.
        suppresses_context: Whether a traceback does not show the context.
        lost: What a replay cannot rebuild, and what to do about it.
    """

    type: str
    text: str
    args: list[Any] | None = None
    attributes: dict[str, Any] | None = None
    members: "list[ErrorBody] | None" = None
    notes: list[str] | None = None
    cause: "ErrorBody | None" = None
    context: "ErrorBody | None" = None
    suppresses_context: bool = False
    lost: str = ""


class ValueBody(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The body of `val`: a value that a handler read, or the error that reading it raised."""

    name: str
    arguments: Raw | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class ShutBody(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `shut`: why the session closed, which is eof, signal, closed or lost."""

    cause: str


OTHER_SESSIONS_COUNT: Final = "sessions beside"
"""The count, at the end of a recording, of other sessions that were open meanwhile."""

KEPT_PREFIX: Final = "kept: "
"""The prefix of the counts of the reasons for which a recording is kept."""

MASKED_PREFIX: Final = "masked: "
"""The prefix of the counts of secrets that were replaced, by the name of their member."""


class EndBody(msgspec.Struct, kw_only=True, frozen=True):
    """The body of `end`: counters of the session."""

    counts: dict[str, _Count]


class GapBody(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """The body of `gap`: the reason in the first record, the count of lost ones in the second.

    A record in the place of a single lost one has both.
    """

    reason: str | None = None
    count: int | None = None


# Lines are hashed when they have this size, so that not too many are kept in memory.
_HASHED_BYTES: Final = 64 * 1024


class RunningDigest:
    """The digest `h` of the lines before a record, which writer and reader compute.

    Lines are hashed together, since each update of a hash costs time.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self, previous: str = "") -> None:
        """Start again; `previous` is the digest of the lines before."""
        self._hash = hashlib.sha256(previous.encode())
        self._lines: list[bytes] = []
        self._size = 0

    def add(self, lines: bytes) -> None:
        """Add lines, including their LF."""
        self._lines.append(lines)
        self._size += len(lines)
        if self._size > _HASHED_BYTES:
            self._hash_lines()

    def value(self) -> str:
        """Return the digest of the lines since the start."""
        self._hash_lines()
        return self._hash.hexdigest()[:16]

    def _hash_lines(self) -> None:
        if self._size > _HASHED_BYTES:
            for lines in self._lines:  # Joining them would copy large messages.
                self._hash.update(lines)
        else:
            self._hash.update(b"".join(self._lines))
        self._lines.clear()
        self._size = 0


_ENCODER: Final = msgspec.json.Encoder()
_kind_of: Final = attrgetter("kind")


class RecordEncoder:
    """An encoder that numbers records from 0 and encodes them as lines in that order.

    `next_number` may be set back to use the numbers of unwritten records again, if a `gap` is the
    next record.
    """

    def __init__(self) -> None:
        self.next_number = 0
        self._digest = RunningDigest()

    def record(
        self,
        kind: str,
        body: bytes | None,
        time_ns: int,
        lane: str | None = None,
        ordinal: int | None = None,
        channel: int = 0,
        envelope: Mapping[str, Any] | None = None,
        embed: bool = True,  # noqa: FBT001, FBT002 - keywords would take longer
        step_start: int = 0,
    ) -> Record:
        """Return the next record.

        `body` is a message or a JSON text; `embed=False` is for bytes that may not be JSON in
        UTF-8.
        """
        number = self.next_number
        self.next_number = number + 1
        embedded: Raw | UnsetType = UNSET
        body_base64 = None
        if body is not None:
            # A JSON reader returns one line without space around it unchanged.
            if (
                embed
                and body
                and body[0] > _SPACE
                and body[-1] > _SPACE
                and _LF not in body
                and _CR not in body
            ):
                embedded = Raw(body)
            else:
                body_base64 = b64encode(body).decode()
        return Record(
            number=number,
            kind=kind,
            channel=channel,
            lane=lane,
            ordinal=ordinal,
            step_start=step_start,
            time_ns=time_ns,
            envelope=envelope,
            body=embedded,
            body_base64=body_base64,
        )

    def skip(self) -> int:
        """Return the next number, for a record that is lost to a gap."""
        self.next_number += 1
        return self.next_number - 1

    def segment_line(self, body: bytes, time_ns: int) -> bytes:
        """Return the line of the `open` record with which a later segment begins."""
        line = self.lines([self.record("open", body, time_ns)])
        self.next_number -= 1
        return line

    def lines(self, records: Sequence[Record]) -> bytes:
        """Return the lines, each with its LF, of the next records."""
        if not records:
            return b""
        digest, begin, count, first = self._digest, 0, len(records), records[0].number
        lines: list[bytes] = []
        indices: Iterable[int] = range(-first % DIGEST_INTERVAL, count, DIGEST_INTERVAL)
        # The records need to be looked at one by one only if some are lost, or of a special kind.
        if records[-1].number - first != count - 1 or not _DIGEST_KINDS.isdisjoint(
            map(_kind_of, records)
        ):
            indices = [
                index
                for index, record in enumerate(records)
                if not record.number % DIGEST_INTERVAL or record.kind in _DIGEST_KINDS
            ]
        for index in indices:
            record = records[index]
            if begin < index:
                before = _ENCODER.encode_lines(records[begin:index])
                digest.add(before)
                lines.append(before)
            line = record
            if record.kind == "gap":  # It has no digest; the next one begins after it.
                digest.restart()
            elif record.number:
                value = digest.value()
                digest.restart(value)
                line = msgspec.structs.replace(record, digest=value)
            encoded = _ENCODER.encode_lines([line])
            digest.add(encoded)
            lines.append(encoded)
            begin = index + 1
        if begin == count:
            return b"".join(lines)
        rest = _ENCODER.encode_lines(records[begin:] if begin else records)
        digest.add(rest)
        return b"".join([*lines, rest]) if lines else rest


def body_bytes(record: Record) -> bytes | None:
    """Return the body of a record, verbatim; None if it has none.

    For `in` and `out` that is the message, or the batch, as it was received or sent.

    Raises:
        RecordingError: The body's base64 is damaged.
    """
    if record.body is not UNSET:
        return bytes(record.body)
    if record.body_base64 is None:
        return None
    try:
        return b64decode(record.body_base64, validate=True)
    except ValueError as error:
        raise RecordingError(f"record {record.number}: damaged base64: {error}") from error


def encode_body(body: Any) -> bytes:
    """Return the bytes of one of the bodies above, or of any value that JSON can represent."""
    return _ENCODER.encode(body)


def command_body(name: str, arguments: bytes, *, is_cancelled: bool) -> bytes:
    """Return the bytes of a `CommandBody` whose arguments are encoded already."""
    # Joining the parts takes a third of the time of encoding a `CommandBody`.
    end = b',"cancelled":true}' if is_cancelled else b"}"
    return b'{"name":' + _ENCODER.encode(name) + b',"arguments":' + arguments + end


def value_body(name: str, arguments: bytes | None, outcome: bytes, *, is_error: bool) -> bytes:
    """Return the bytes of a `ValueBody` from parts that are encoded already."""
    return _ENCODER.encode(
        ValueBody(
            name=name,
            arguments=UNSET if arguments is None else Raw(arguments),
            value=UNSET if is_error else Raw(outcome),
            error=msgspec.json.decode(outcome, type=ErrorBody) if is_error else UNSET,
        )
    )


_Body = TypeVar("_Body")


def decode_body(record: Record, body_type: type[_Body]) -> _Body:
    """Return the body of a record, decoded.

    Raises:
        RecordingError: The body is not of this type, or is nested too deeply to be decoded.
    """
    try:
        return msgspec.json.decode(body_bytes(record) or b"", type=body_type)
    except (ValueError, RecursionError) as error:
        raise RecordingError(f"record {record.number} ({record.kind}): {error}") from error


# Reading ------------------------------------------------------------------------------------------
#
# The reader streams. It raises only if the lines are no recording at all; all other damage is
# reported between the records, and reading goes on. A last line that was cut off ("torn"), because
# the writer was killed, is distinguished from damage elsewhere: a line that is no record, a hole in
# the numbers that no `gap` explains, or a digest that does not match the lines it covers.
#
# The `open` record of a later segment is checked like every line, but not returned as a record.

_CR_LF_TEXT: Final = (
    "the lines end in CR LF instead of LF, as after a checkout by Git with core.autocrlf: write"
    " `*.mcprec.jsonl -text` to .gitattributes, and check the file out again"
)

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

    Each line ends in LF, unless the recording was cut in it. A later version of the format may have
    further kinds of records, and further keys: before such a record, this yields a `Damage` that
    names it. A caller skips a record of an unknown kind, and may use one with unknown keys.

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
                if line.endswith(b"\r\n"):
                    text = _CR_LF_TEXT
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


# The sender of a message --------------------------------------------------------------------------


def sender_envelope(auth: AuthInfo) -> dict[str, Any]:
    """Return the envelope of `in` for a message with an authenticated sender.

    The name of the sender stands for all facts if there are no others.
    """
    if auth == AuthInfo(subject=auth.principal):
        return {"principal": auth.principal}
    return {"principal": auth.principal, "sender": auth.members()}


def sender_of(envelope: Mapping[str, Any]) -> AuthInfo | None:
    """Return the sender in the envelope of `in`; None if it has none.

    Raises:
        msgspec.ValidationError: The sender is malformed.
    """
    principal = envelope.get("principal")
    if principal is None:
        return None
    return msgspec.convert(envelope.get("sender", {"subject": principal}), AuthInfo)


# The messages of a record, and the lanes named after them -----------------------------------------


_BATCH: Final = msgspec.json.Decoder(list[Raw])
# Python converts no text of some thousand digits to a number, and no recording has such numbers.
_LANE: Final = re.compile(r"[a-z]([0-9]{1,18})(?:-([0-9]{1,18}))?(?![0-9])")


def message_name(number: int, position: int) -> str:
    """Return the part of lane names for the message at a position in a record."""
    return f"{number}-{position}" if position else str(number)


def message_position(lane: str) -> tuple[int, int] | None:
    """Return the record's number and the position in it of the message that a lane is named after.

    None if the lane is not named after a message.
    """
    match = _LANE.match(lane)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def messages_in(body: bytes) -> list[bytes]:
    """Return the messages of a batch, each verbatim; a body that is no batch is one message."""
    if not body.lstrip().startswith(b"["):
        return [body]
    try:
        return [bytes(message) for message in _BATCH.decode(body)]
    except (ValueError, RecursionError):
        return [body]


def message_at(body: bytes, position: int) -> bytes:
    """Return the message at a position in a body, verbatim; empty if there is none."""
    messages = messages_in(body)
    return messages[position] if position < len(messages) else b""
