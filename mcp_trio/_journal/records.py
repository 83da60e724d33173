"""The records of a journal, and the bytes that they are in a recording.

A recording is JSON Lines: one record a line, its keys always in the order of `Record`. A frame or
body stands in its line verbatim (`f`) if that gives back the same bytes, else in base64 (`b`).

Numbers run from 0 without a hole, except that what a `gap` lost keeps its numbers: lanes are named
by them. A running digest (`h`) stands in every 64th record and in `end`; it covers everything since
the last one, so damage shows in its own stretch. It starts anew at each `gap`, which has none.

A recording may go on in further files, its segments. The `open` that each begins with has the
number of the record behind it, so that the records are the same however they were cut into files.
"""

import hashlib
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, Raw, UnsetType

from mcp_trio.errors import RecordingError

# --------------------
# The messages in a recorded frame: one, or those of a batch, and what lanes are named after them.
#
# The lane of a request is named by the number of its `in` record, and in a batch, but for the first
# message, by its place there as well: `r5`, `r5-1`, `r5-2`.


_MEMBERS: Final = msgspec.json.Decoder(list[Raw])
_NAME: Final = re.compile(r"[a-z]([0-9]+)(?:-([0-9]+))?")


def message_name(number: int, place: int) -> str:
    """What a message is called by lanes: by the number of its record, and its place in that."""
    return f"{number}-{place}" if place else str(number)


def message_position(lane: str) -> tuple[int, int] | None:
    """The number of the record and the place in it that a lane is named after, if it is so."""
    match = _NAME.match(lane)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def messages_in(frame: bytes) -> list[bytes]:
    """Each message in a frame, verbatim."""
    if not frame.lstrip().startswith(b"["):
        return [frame]
    try:
        return [bytes(member) for member in _MEMBERS.decode(frame)]
    except (ValueError, RecursionError):
        return [frame]


def message_at(frame: bytes, place: int) -> bytes:
    """The message at a place of a frame, verbatim; empty if there is none."""
    messages = messages_in(frame)
    return messages[place] if place < len(messages) else b""


FORMAT_VERSION: Final = 1
DIGEST_INTERVAL: Final = 64

KINDS: Final[Mapping[str, str]] = {
    "open": "the recording begins: what is known then",
    "in": "the dispatcher took a frame",
    "cmd": "a handler started an effect",
    "res": "an operation's task resumed with a value",
    "err": "an operation's task resumed with an error",
    "cxl": "an operation was cancelled, or a lane ended without an answer",
    "val": "a handler read something in passing, such as a clock",
    "out": "a frame was handed to the writer",
    "mark": "a named fact: a handler's start, the negotiation, an annotation",
    "gap": "records are lost from here on, it says why; a second one closes it",
    "shut": "the dispatcher began to close",
    "end": "the recording is whole",
}

# The name of a mark that tells which way a lane took at a change of the code.
PATCHED_MARK: Final = "patched"

# The name of a mark that tells that a block of `ctx.timeout` ended by its own deadline.
TIMED_OUT_MARK: Final = "ran out"

# The name of a mark that tells that a thread's call came back of which no other record tells.
THREAD_RETURNED_MARK: Final = "came back"

# The names of what the context does and reads by itself; those of people's functions have no dot.
SLEEP: Final = "ctx.sleep"
LOCK: Final = "ctx.lock"
HTTP: Final = "ctx.http"
TIMEOUT: Final = "ctx.timeout"
NOW: Final = "ctx.now"
MONOTONIC: Final = "ctx.monotonic"

# Kinds that begin a new stretch of the digest, whatever their number.
_TURNS: Final = frozenset({"gap", "end", "open"})

_SPACE: Final = ord(" ")
_LF: Final = ord("\n")
_CR: Final = ord("\r")

_KEYS: Final = {
    "number": "n",
    "kind": "k",
    "channel": "c",
    "lane": "l",
    "ordinal": "o",
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
    """One line of a recording; `body_bytes` gives its frame or body."""

    number: int
    kind: str
    channel: int = 0
    lane: str | None = None
    ordinal: int | None = None
    time_ns: int
    envelope: Mapping[str, Any] | None = None
    body: Raw | UnsetType = UNSET
    body_base64: str | None = None
    digest: str | None = None


class OpenBody(msgspec.Struct, kw_only=True, frozen=True):
    """What is known when a recording begins; `started` is the wall clock in ISO 8601.

    `version` is that of what is called `name`; `writer` is what wrote the file, in which Python.

    A recording that goes on in another file begins it with the same, but for the `segment`. By the
    `session` they find each other.
    """

    format_version: int = FORMAT_VERSION
    transport: str
    role: str
    name: str
    version: str
    tools_digest: str | None = None
    seed: int | None = None
    redaction: dict[str, Any] | None = None
    started: str
    lifespan: bool = False
    session: str = ""
    segment: int = 1
    writer: str = ""


class MarkBody(msgspec.Struct, kw_only=True, frozen=True):
    """A fact and its name."""

    name: str
    value: Any = None


class CommandBody(msgspec.Struct, kw_only=True, frozen=True):
    """An effect's name and what it was called with."""

    name: str
    arguments: Any = None


class ErrorBody(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """An exception: its class as `module.qualname`, its text, and what JSON can say of the rest.

    The `members` are those of an exception group.
    """

    type: str
    text: str
    args: list[Any] | None = None
    attributes: dict[str, Any] | None = None
    members: "list[ErrorBody] | None" = None


class ValueBody(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What was read in passing, with what it was asked for; a value, or the error instead."""

    name: str
    arguments: Raw | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    error: ErrorBody | UnsetType = UNSET


class ShutBody(msgspec.Struct, kw_only=True, frozen=True):
    """Why the dispatcher began to close: eof, signal, closed or lost."""

    cause: str


class EndBody(msgspec.Struct, kw_only=True, frozen=True):
    """What happened how often."""

    counts: dict[str, int]


class GapBody(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A gap opens with its reason, and closes with the count of records that it lost."""

    reason: str | None = None
    count: int | None = None


class RunningDigest:
    """What `h` says of the lines before it; writer and reader of a recording each keep one."""

    def __init__(self) -> None:
        self.restart()

    def restart(self, previous: str = "") -> None:
        """Begin a stretch of lines, behind the digest that ended the one before."""
        self._hash = hashlib.sha256(previous.encode())

    def add(self, lines: bytes) -> None:
        """Cover more lines, including their LF."""
        self._hash.update(lines)

    def value(self) -> str:
        """The digest of the stretch so far."""
        return self._hash.hexdigest()[:16]


_ENCODER: Final = msgspec.json.Encoder()


class RecordEncoder:
    """Numbers records from 0, and turns them into lines in that order.

    `next_number` may be set back over records that nobody will ever see, if a `gap` comes next.
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
        *,
        embed: bool = True,
    ) -> Record:
        """The next record.

        `body` is a frame or a JSON text; `embed=False` is for bytes that may not be JSON in UTF-8.
        """
        number = self.next_number
        self.next_number = number + 1
        embedded: Raw | UnsetType = UNSET
        body_base64 = None
        if body is not None:
            if embed and _is_verbatim_in_json(body):
                embedded = Raw(body)
            else:
                body_base64 = b64encode(body).decode()
        return Record(
            number=number,
            kind=kind,
            channel=channel,
            lane=lane,
            ordinal=ordinal,
            time_ns=time_ns,
            envelope=envelope,
            body=embedded,
            body_base64=body_base64,
        )

    def skip(self) -> int:
        """The number of a record that is lost to a gap."""
        self.next_number += 1
        return self.next_number - 1

    def segment_line(self, body: bytes, time_ns: int) -> bytes:
        """The line of the `open` that the next record's segment begins with."""
        line = self.lines([self.record("open", body, time_ns)])
        self.next_number -= 1
        return line

    def lines(self, records: Sequence[Record]) -> bytes:
        """The lines, each with its LF, of the records that come next in the recording."""
        stretches: list[bytes] = []
        begin = 0
        for index, record in enumerate(records):
            if not record.number % DIGEST_INTERVAL or record.kind in _TURNS:
                stretches.append(self._covered(records[begin:index]))
                stretches.append(self._turn(record))
                begin = index + 1
        stretches.append(self._covered(records[begin:]))
        return b"".join(stretches)

    def _turn(self, record: Record) -> bytes:
        """The line of a record that begins a new stretch of the digest."""
        if record.kind == "gap":
            self._digest.restart()
        elif record.number:
            digest = self._digest.value()
            self._digest.restart(digest)
            record = msgspec.structs.replace(record, digest=digest)
        return self._covered([record])

    def _covered(self, records: Sequence[Record]) -> bytes:
        lines = _ENCODER.encode_lines(records)
        self._digest.add(lines)
        return lines


def _is_verbatim_in_json(body: bytes) -> bool:
    """Whether a JSON reader gives `body` back as it is: on one line, no space around it."""
    return (
        body != b""
        and body[0] > _SPACE
        and body[-1] > _SPACE
        and _LF not in body
        and _CR not in body
    )


def body_bytes(record: Record) -> bytes | None:
    """The frame or body of a record, verbatim; None if it has none.

    Raises:
        RecordingError: its base64 is damaged.
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
    """The bytes of one of the bodies above, or of any value that JSON can say."""
    return _ENCODER.encode(body)


def value_body(name: str, arguments: bytes | None, outcome: bytes, *, is_error: bool) -> bytes:
    """The bytes of a `ValueBody` whose parts are JSON already."""
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
    """The body of a record, as what a record of its kind holds.

    Raises:
        RecordingError: it holds something else.
    """
    try:
        return msgspec.json.decode(body_bytes(record) or b"", type=body_type)
    except ValueError as error:
        raise RecordingError(f"record {record.number} ({record.kind}): {error}") from error
