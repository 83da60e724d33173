"""How a recording begins: its file, its clock, its first record."""

import itertools
import math
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum, auto
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Required, Self, TypeAlias, TypedDict, Unpack

import attrs
import msgspec
import trio

from mcp_trio._journal.records import (
    EndBody,
    GapBody,
    MarkBody,
    OpenBody,
    Record,
    RecordEncoder,
    encode_body,
)
from mcp_trio._recorder.files import (
    COMPRESSED_SUFFIX,
    SUFFIX,
    FileSink,
    MeasuredSink,
    Segments,
    Sink,
    WritingThread,
    is_free_for_segment,
    later_names,
)
from mcp_trio._version import __version__
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from mcp_trio._journal.redaction import Redaction


# --------------------
# The writing end of a recording, which never raises, never grows and hardly ever waits.
#
# `record` only buffers. `flush` writes what is buffered with one call of the sink, in the caller's
# task, before the bytes that it explains reach the peer. That promise holds while the mode is
# DIRECT; what becomes of it otherwise, the file says itself, in `gap` records:
#
# - A write fails: PAUSED. Records are counted and dropped. Now and then `flush` tries again: what it
#   writes is a `gap` (the reason) and a `gap` (how many records are missing).
# - A write is slow: THREADED, behind a `gap` (slow disk). Writes go through a thread with a bounded
#   buffer; what does not fit is counted and dropped. When the thread has caught up, a `gap` (how many
#   are missing, often 0) leads back to DIRECT.
#
# In DIRECT mode a full segment is followed by the next. One that cannot be begun is a write that
# failed: what is tried again begins it. While PAUSED or THREADED, the file stays the same.
#
# A record that cannot be redacted costs a gap of its own, or is lost in the one that is open.


# From when on a recording that can end does so, before another file is begun for it.
_NEARLY_FULL: Final = 0.75

# What a record takes besides its body, about.
_RECORD_BYTES: Final = 64

# What each of several sessions begins and ends with.
SESSION_MARK: Final = "session"
ENDED_MARK: Final = "ended"


class Redacts(Protocol):
    """Replaces in a body what must not be written; remembers it for the bodies that follow."""

    def redact(self, kind: str, body: bytes, *, is_whole_json: bool = True) -> bytes:
        """What is written instead of `body`."""
        ...

    def redact_envelope(self, envelope: Mapping[str, Any]) -> Mapping[str, Any]:
        """What is written instead of what a record says beside its body."""
        ...

    def manifest(self) -> dict[str, Any]:
        """What `open` says of it."""
        ...


class _Mode(Enum):
    DIRECT = auto()
    PAUSED = auto()
    THREADED = auto()
    CLOSED = auto()


class Recorder:
    """Numbers records, turns them into lines and writes these to its sink, which it owns.

    `clock_ns` dates the records, `write_clock` (in seconds) only tells how long a write took.
    `seed` is the one that `open` says, `sessions` how many of several have begun. Every body passes
    `redactor` before it is kept, but those of `gap` and `end`, which are our own.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        clock_ns: Callable[[], int],
        limits: Limits,
        write_clock: Callable[[], float] = time.perf_counter,
        seed: int | None = None,
        redactor: Redacts | None = None,
    ) -> None:
        self._sink = sink
        self._segments = sink if isinstance(sink, Segments) else None
        self._redactor = redactor
        self._opening: OpenBody | None = None
        self._unwritten_opening = b""
        self.seed = seed
        self.clock_ns = clock_ns
        self._write_clock = write_clock
        self.limits = limits
        self._slow_seconds = limits.journal_write_ms_max / 1000
        self._encoder = RecordEncoder()
        self._mode = _Mode.DIRECT
        self._buffer: list[Record] = []
        self._buffered_bytes = 0  # roughly, and only while THREADED
        self._lost = 0
        self._reason = ""
        self._failed_at = 0.0
        self._thread: WritingThread | None = None
        self.sessions = self._sessions_ended = 0

    @property
    def next_number(self) -> int:
        """The number that the next record will have."""
        return self._encoder.next_number

    @property
    def is_nearly_full(self) -> bool:
        """Whether its file is nearly full, or is not its first: another one would better follow."""
        if self._segments is None or self._opening is None:
            return False
        return self._opening.segment > 1 or self._segments.filled >= _NEARLY_FULL

    def open(self, body: OpenBody) -> None:
        """Write `open`, with which each later segment begins as well.

        If that fails, it is written with the gap: a file without it is no recording.
        """
        self._opening = body
        body_bytes = _opening_bytes(body, self._redactor)
        record = self._encoder.record("open", body_bytes, self.clock_ns())
        self._buffer.append(record)
        self.flush()
        if self._mode is _Mode.PAUSED:
            self._unwritten_opening = self._encoder.lines([record])
            self._lost = 0

    def begin_session(self, transport: str) -> int:
        """Record that one of several sessions begins; returns the channel that is its own."""
        self.sessions += 1
        self._mark(SESSION_MARK, {"transport": transport}, channel=self.sessions)
        return self.sessions

    def _end_session(self, counts: dict[str, int], *, channel: int) -> None:
        self._sessions_ended += 1
        self._mark(ENDED_MARK, {"counts": counts}, channel=channel)
        self.flush()

    def _mark(self, name: str, value: Any, *, channel: int) -> None:
        self.record("mark", encode_body(MarkBody(name=name, value=value)), channel=channel)

    def record(
        self,
        kind: str,
        body: bytes | None = None,
        *,
        lane: str | None = None,
        ordinal: int | None = None,
        channel: int = 0,
        envelope: Mapping[str, Any] | None = None,
        embed: bool = True,
        time_ns: int | None = None,
    ) -> int:
        """Buffer a record and return its number, whether or not it can be kept.

        `body` is a frame or a JSON text; `embed=False` is for bytes that may not be JSON in UTF-8.
        `time_ns` is for what happened before it was worth a record.
        """
        if self._mode is not _Mode.DIRECT and not self._makes_room(body):
            self._lost += 1
            return self._encoder.skip()
        if self._redactor is not None and body is not None:
            try:
                body = self._redactor.redact(kind, body, is_whole_json=embed)
                envelope = None if envelope is None else self._redactor.redact_envelope(envelope)
            except Exception as error:  # better lost than told; its text may tell as well
                return self._lose(f"redaction failed: {type(error).__name__}")
        if time_ns is None:
            time_ns = self.clock_ns()
        record = self._encoder.record(
            kind, body, time_ns, lane, ordinal, channel, envelope, embed=embed
        )
        self._buffer.append(record)
        return record.number

    def flush(self) -> None:
        """Write all that is buffered; in DIRECT mode it is with the system when this returns."""
        if self._mode is _Mode.DIRECT:
            self._flush_directly()
        elif self._mode is _Mode.PAUSED:
            self._flush_while_paused()
        elif self._mode is _Mode.THREADED:
            self._flush_through_thread()

    def close(self, counts: dict[str, int], *, channel: int = 0) -> None:
        """Write what is buffered and `end` with `counts`, and close the sink; again does nothing.

        A `channel` is that of one session among several: only that one ends, by a mark. While one
        of them goes on, the recording is cut here: it gets no `end`. Waits for a slow disk at most
        `journal_close_seconds`, and leaves it the sink after that.
        """
        if self._mode is _Mode.CLOSED:
            return
        if channel:
            self._end_session(counts, channel=channel)
            return
        self.flush()
        if self._mode is _Mode.PAUSED:
            self._resume()
        if self._mode is _Mode.THREADED:
            self._append_gap(count=self._lost)
        if self._mode is not _Mode.PAUSED and self._sessions_ended == self.sessions:
            self._append("end", EndBody(counts=counts))
        is_ours = self._write_last()
        self._mode = _Mode.CLOSED
        if is_ours:
            with suppress(Exception):
                self._sink.close()

    def _write_last(self) -> bool:
        """Write what is left; whether the sink is ours afterwards."""
        lines, records = self._take_buffered()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.write(lines, records)
            return thread.finish(self.limits.journal_close_seconds)
        with suppress(Exception):  # without its `end`, the recording says that it was cut
            self._sink.write(lines)
        return True

    def _flush_directly(self) -> None:
        if not self._buffer:
            return
        lines, records = self._take_buffered()
        begin = self._write_clock()
        try:
            self._sink.write(lines)
        except Exception as error:  # a disk may fail in any way; the session goes on
            self._pause(str(error), records)
            return
        if self._write_clock() - begin > self._slow_seconds:
            self._start_thread()
        elif self._segments is not None and self._segments.filled >= 1:
            self._begin_segment(self._segments)

    def _lose(self, reason: str) -> int:
        """The number of a record that is lost, and only that one: in a gap of its own."""
        if self._mode is not _Mode.DIRECT:
            self._lost += 1
            return self._encoder.skip()
        self._append_gap(reason=reason)
        number = self._encoder.skip()
        self._append_gap(count=1)
        return number

    def _begin_segment(self, segments: Segments) -> None:
        assert self._opening is not None
        opening = msgspec.structs.replace(self._opening, segment=self._opening.segment + 1)
        try:
            body = _opening_bytes(opening, self._redactor)
        except Exception:  # as in `record`; the present file goes on, and the next write asks again
            return
        self._opening = opening
        segments.begin_next(self._encoder.segment_line(body, self.clock_ns()))

    def _flush_while_paused(self) -> None:
        if self._write_clock() - self._failed_at >= self.limits.journal_retry_seconds:
            self._resume()

    def _flush_through_thread(self) -> None:
        thread = self._thread
        assert thread is not None
        if thread.failure is not None:
            _, records = self._take_buffered()
            self._pause(str(thread.failure), records + thread.waiting_records)
        elif thread.has_caught_up and thread.finish(self.limits.journal_close_seconds):
            self._thread = None
            self._append_gap(count=self._lost)
            self._lost = 0
            self._mode = _Mode.DIRECT
            self._flush_directly()
        elif self._buffer:
            thread.write(*self._take_buffered())

    def _pause(self, reason: str, records: int) -> None:
        self._mode = _Mode.PAUSED
        self._thread = None
        self._lost += records
        self._reason = reason
        self._failed_at = self._write_clock()

    def _resume(self) -> None:
        """Try to write the gap; as long as that fails, its numbers are used again."""
        number = self._encoder.next_number
        self._append_gap(reason=self._reason)
        self._append_gap(count=self._lost)
        lines, _ = self._take_buffered()
        try:
            self._sink.write(self._unwritten_opening + lines)
        except Exception as error:  # as in a direct flush
            self._encoder.next_number = number
            self._pause(str(error), 0)
        else:
            self._unwritten_opening = b""
            self._lost = 0
            self._mode = _Mode.DIRECT

    def _start_thread(self) -> None:
        try:
            self._thread = WritingThread(
                self._sink, write_clock=self._write_clock, fast_seconds_max=self._slow_seconds
            )
        except RuntimeError:  # no more threads: the next writes are slow, but none is lost
            return
        self._mode = _Mode.THREADED
        self._append_gap(reason="slow disk")
        self._thread.write(*self._take_buffered())

    def _makes_room(self, body: bytes | None) -> bool:
        if self._thread is None:
            return False
        waiting_bytes = self._thread.waiting_bytes + self._buffered_bytes
        if waiting_bytes >= self.limits.journal_buffer_bytes_max:
            return False
        self._buffered_bytes += _RECORD_BYTES + len(body or b"")
        return True

    def _append_gap(self, *, reason: str | None = None, count: int | None = None) -> None:
        self._append("gap", GapBody(reason=reason, count=count))

    def _append(self, kind: str, body: GapBody | EndBody) -> None:
        self._buffer.append(self._encoder.record(kind, encode_body(body), self.clock_ns()))

    def _take_buffered(self) -> tuple[bytes, int]:
        lines, records = self._encoder.lines(self._buffer), len(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        return lines, records


def _opening_bytes(opening: OpenBody, redactor: Redacts | None) -> bytes:
    if redactor is None:
        return encode_body(opening)
    body = encode_body(msgspec.structs.replace(opening, redaction=redactor.manifest()))
    return redactor.redact("open", body)


# --------------------
# Where and how sessions are recorded: what `record=` takes.


_Path: TypeAlias = str | os.PathLike[str]


def _positive(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} is {value}: it has to be a number above 0, or None")


@attrs.frozen
class RecordOptions:
    """How a session is recorded; a bare path in its place stands for the defaults.

    Attributes:
        path: A file, or a folder in which each session gets a file of its own. A name that ends in
            `.zst` is written compressed.
        compress: Whether the files in a folder get such names. A file has its name already.
        redaction: What of a message or an effect is replaced before anything is written.
        segment_bytes_max: Behind the write that fills a file so far, the recording goes on in the
            next: `trip.2.mcprec.jsonl` behind `trip.mcprec.jsonl`. What reads the first reads all.
            Modern requests over HTTP, as soon as none of them goes on when the file is nearly full,
            begin another recording instead, which replays alone.
        segment_seconds_max: The same by a file's age, at the first write behind it.
        sync_seconds: How often what was written is made to survive a power cut, by a thread; None
            leaves that to the system. A crash of the process alone loses nothing either way.
        strict: Whether a handler is refused what no replay could repeat; for servers.

    Raises:
        ValueError: A number that is not above 0.
    """

    path: _Path
    compress: bool = attrs.field(default=False, kw_only=True)
    redaction: "Redaction | None" = attrs.field(default=None, kw_only=True)
    segment_bytes_max: int | None = attrs.field(default=None, kw_only=True, validator=_positive)
    segment_seconds_max: float | None = attrs.field(default=None, kw_only=True, validator=_positive)
    sync_seconds: float | None = attrs.field(default=None, kw_only=True, validator=_positive)
    strict: bool = attrs.field(default=False, kw_only=True)


class SharedRecording:
    """One file for several sessions, in the order in which everything happened to them.

    `with SharedRecording(path) as shared:` around the sessions, each with `record=shared`. What
    handlers do to memory that the sessions share is then replayed as well. The file is made with
    the first session, and whole when the block is left; a session that still goes on is cut there,
    and so is the recording.

    All sessions belong to one Trio run, and are of one role and name. Another one is refused by a
    `RecordingError`, as is one that begins after the end of the block.
    """

    def __init__(self, record: _Path | RecordOptions) -> None:
        self.options: RecordOptions = options_of(record)
        self._recorder: Recorder | None = None
        self._owner: tuple[object, ...] | None = None
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Make the file whole; again does nothing."""
        self._is_closed = True
        if self._recorder is not None:
            self._recorder.close({"sessions": self._recorder.sessions})

    def begin_session(
        self, start: Callable[[RecordOptions], Recorder], *, role: str, name: str, transport: str
    ) -> tuple[Recorder, int]:
        """The recorder, which `start` makes for the first session, and this session's channel.

        Raises:
            RecordingError: The recording is over, of another run, role or name, or cannot be made.
        """
        owner = (trio.lowlevel.current_trio_token(), role, name)
        if self._is_closed:
            raise RecordingError("the shared recording is over: begin sessions inside its block")
        if self._recorder is None:
            self._recorder = start(self.options)
            self._owner = owner
        if owner != self._owner:
            raise RecordingError("a shared recording is of one Trio run, one role and one name")
        return self._recorder, self._recorder.begin_session(transport)


RecordTarget: TypeAlias = str | os.PathLike[str] | RecordOptions | SharedRecording
"""Where a session is recorded: a path, or a path with options, or a file with other sessions."""


def options_of(record: RecordTarget) -> RecordOptions:
    """The options that `record` brings, or those that a bare path stands for."""
    if isinstance(record, SharedRecording):
        return record.options
    return record if isinstance(record, RecordOptions) else RecordOptions(record)


def holds_many_sessions(record: RecordTarget | None) -> bool:
    """Whether a second session is recorded without replacing the first."""
    if record is None or isinstance(record, SharedRecording):
        return True
    text = os.fspath(options_of(record).path)
    return text.endswith("/") or os.path.isdir(text)  # noqa: PTH112  it is text already


# --------------------
# Sessions that follow each other, as one story: those of a client, or of a server that dials.


@attrs.define(eq=False, init=False)
class SuccessiveSessions:
    """Where sessions are recorded of which one may follow another; `may_reconnect` says whether.

    One file then takes them all, each a channel of it.

    Attributes:
        record: Where each session is recorded.
    """

    record: RecordTarget | None
    _own: SharedRecording | None

    def __init__(self, record: RecordTarget | None, *, may_reconnect: bool = True) -> None:
        self.record, self._own = record, None
        if record is not None and may_reconnect and not holds_many_sessions(record):
            self.record = self._own = SharedRecording(options_of(record))

    def end(self) -> None:
        """There are no more sessions; one that still goes on is cut."""
        if self._own is not None:
            self._own.close()


_NS_PER_SECOND: Final = 1_000_000_000
_ID_BYTES: Final = 8

# As many as a number of JavaScript's holds, or jq's.
_SEED_BITS: Final = 53

_WRITER: Final = f"mcp_trio/{__version__} Python/{platform.python_version()}"
_session_numbers = itertools.count(1)


class Facts(TypedDict, total=False):
    """What `open` says of a session, besides what each of a shared recording has of its own."""

    version: Required[str]
    tools_digest: str | None
    lifespan: bool
    schemas: Callable[[], Mapping[str, Any]]
    limits: Limits


def begin_session(
    record: RecordTarget, *, role: str, transport: str, name: str, **facts: Unpack[Facts]
) -> tuple[Recorder, int]:
    """The recorder for a session that begins now, and the channel that is the session's there.

    In a shared recording the `facts` of the first session count; see `open_recorder`.

    Raises:
        RecordingError: The recording cannot be made, or the shared one does not take this session.
        ValueError: The redaction is wrong in itself.
    """

    def start(options: RecordOptions) -> Recorder:
        return open_recorder(options, role=role, transport=transport, name=name, **facts)

    if isinstance(record, SharedRecording):
        return record.begin_session(start, role=role, transport=transport, name=name)
    return start(options_of(record)), 0


def open_recorder(
    record: str | os.PathLike[str] | RecordOptions,
    *,
    role: str,
    transport: str,
    name: str,
    version: str,
    tools_digest: str | None = None,
    lifespan: bool = False,
    schemas: Callable[[], Mapping[str, Any]] = dict,
    limits: Limits = DEFAULT_LIMITS,
) -> Recorder:
    """A recorder for one session, which begins now; `open` is written.

    A path that is a folder, or ends with a slash, gets a new file for this session, named after
    `name`, the time and the process. The file may be read by its owner only. Times count from now,
    on the clock of the Trio run. `schemas` gives those of the tools' arguments, by name, which may
    say what is to be redacted.

    Raises:
        RecordingError: The file cannot be made, or its later segments would replace what is none.
        ValueError: The redaction is wrong in itself; no file was made.
    """
    options = options_of(record)
    started = datetime.now(UTC)
    seed = secrets.randbits(_SEED_BITS)
    # What is wrong with it is said before there is a file.
    redactor = _redactor(options, schemas, limits)
    recorder = Recorder(
        _sink(_target(options, name, started), options, limits),
        clock_ns=_ns_since_now(),
        limits=limits,
        seed=seed,
        redactor=redactor,
    )
    body = OpenBody(
        transport=transport,
        role=role,
        name=name,
        version=version,
        tools_digest=tools_digest,
        seed=seed,
        started=started.isoformat(timespec="microseconds"),
        lifespan=lifespan,
        session=secrets.token_hex(_ID_BYTES),
        writer=_WRITER,
    )
    recorder.open(body)
    return recorder


def _redactor(
    options: RecordOptions, schemas: Callable[[], Mapping[str, Any]], limits: Limits
) -> Redacts | None:
    if options.redaction is None:
        return None
    from mcp_trio._journal.redaction import Redactor
    from mcp_trio._journal.redaction_tokens import KEY_BYTES

    key = options.redaction.key or secrets.token_bytes(KEY_BYTES)
    return Redactor(options.redaction, key=key, schemas=schemas(), limits=limits)


def _sink(target: Path, options: RecordOptions, limits: Limits) -> Segments:
    try:
        if options.segment_bytes_max or options.segment_seconds_max:
            _check_room(os.fspath(target))
        return Segments(
            target,
            open_file=partial(_open_file, sync_seconds=options.sync_seconds, limits=limits),
            bytes_max=options.segment_bytes_max,
            seconds_max=options.segment_seconds_max,
        )
    except OSError as error:
        raise RecordingError(f"cannot record to {target}: {error.strerror}") from error


def _check_room(target: str) -> None:
    """The user named the first file; the others must not cost something else."""
    if Path(target).exists() and not Path(target).is_file():
        raise RecordingError(f"cannot record to {target}: it is no file that segments could follow")
    for name in later_names(target):
        if not is_free_for_segment(name):
            raise RecordingError(
                f"cannot record to {target}: a segment would replace {name}, which is none"
            )


def _open_file(path: str, *, sync_seconds: float | None, limits: Limits) -> MeasuredSink:
    file = FileSink(path, sync_seconds=sync_seconds, limits=limits)
    if not path.endswith(COMPRESSED_SUFFIX):
        return file
    from mcp_trio._recorder.files import CompressedSink

    return CompressedSink(file)


def _ns_since_now() -> Callable[[], int]:
    now = trio.lowlevel.current_clock().current_time
    start = now()
    return lambda: int((now() - start) * _NS_PER_SECOND)


def _target(options: RecordOptions, name: str, started: datetime) -> Path:
    text = os.fspath(options.path)
    if not (text.endswith("/") or Path(text).is_dir()):
        if options.compress and not text.endswith(COMPRESSED_SUFFIX):
            raise RecordingError(
                f"cannot record to {text}: a file is compressed if its name ends in"
                f" {COMPRESSED_SUFFIX}; only those in a folder get such names"
            )
        return Path(text)
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    stamp = started.strftime("%Y%m%dT%H%M%SZ")
    suffix = SUFFIX + COMPRESSED_SUFFIX * options.compress
    return Path(text) / f"{plain}-{stamp}-{os.getpid()}-{next(_session_numbers)}{suffix}"
