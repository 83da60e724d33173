"""Recording sessions to files: the recorder, its options, and recordings of several sessions.

`Recorder.record` only buffers. `Recorder.flush` writes the buffered records with one call of the
sink, in the caller's task, before the bytes that they explain reach the peer. That holds in DIRECT
mode. In the other modes the file itself says in `gap` records what is missing:

- A write fails: PAUSED. Records are counted and dropped. Every `limits.recording.retry_seconds`
  `flush` tries again: it writes a `gap` with the reason and a `gap` with the count of lost records.
- A write is slow: THREADED, after a `gap` with the reason "slow disk". A thread writes, from a
  buffer of bounded size; records that do not fit are counted and dropped. When the thread has
  caught up, a `gap` with the count of lost records, often 0, leads back to DIRECT.

In DIRECT mode a full segment is followed by the next. A segment that cannot be created counts as a
failed write, and is created when writing is tried again. While PAUSED or THREADED, the file stays
the same. A record that cannot be redacted is lost in a gap of its own, or in the one that is open.
"""

import itertools
import math
import os
import platform
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum, auto
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Required,
    Self,
    TypeAlias,
    TypedDict,
    Unpack,
)

import attrs
import msgspec
import trio

from mcp_trio._journal.records import (
    BEGINS_STEP,
    HAS_WAITED,
    KEPT_PREFIX,
    LIFESPAN_MARK,
    EndBody,
    GapBody,
    MarkBody,
    OpenBody,
    Record,
    RecordEncoder,
    StepsBody,
    encode_body,
)
from mcp_trio._recorder.clock import NS_PER_SECOND, TickClock
from mcp_trio._recorder.encryption import EncryptedSink, recording_keys
from mcp_trio._recorder.files import (
    COMPRESSED_SUFFIX,
    EXISTS,
    SUFFIX,
    CompressedSink,
    FileSink,
    Segments,
    Sink,
    WritingThread,
    is_free_for_segment,
    later_names,
    segment_name,
)
from mcp_trio._system import NO_FOLLOW
from mcp_trio._version import __version__
from mcp_trio.errors import RecordingError
from mcp_trio.limits import DEFAULT_LIMITS, Limits

if TYPE_CHECKING:
    from mcp_trio._journal.redaction import Redaction, Redactor


# A recording that can end does so when its file is filled to this share of the maximum.
_NEARLY_FULL: Final = 0.75

# An estimate of the bytes that a record takes besides its body.
_RECORD_BYTES: Final = 64

# The different reasons of handlers that a recording counts, and the name for all others.
_REASONS_MAX: Final = 100
_OTHER_REASONS: Final = "other reasons"

# The most steps that a record lists.
_STEPS_MAX: Final = 64

# The marks with which each session of a shared recording begins and ends.
SESSION_MARK: Final = "session"
ENDED_MARK: Final = "ended"


class _Mode(Enum):
    DIRECT = auto()
    PAUSED = auto()
    THREADED = auto()
    CLOSED = auto()


_DIRECT: Final = _Mode.DIRECT  # each record needs it, and CPython 3.11 calls a function for it


class Recorder:
    """A writer of records that never raises, holds a bounded amount and hardly ever waits.

    It numbers records, encodes them as lines and writes these to the sink, which it owns.
    `clock_ns` gives the records' times; `write_clock`, in seconds, only measures how long a write
    takes. `seed` is the random seed in the `open` record, `sessions` the number of sessions that
    have begun by a mark. `redactor` redacts every body before it is buffered, except the bodies of
    `gap` and `end`, which hold no data of users. `observe` is called with each record that is
    buffered. `path` is the first file of the recording, if that is in files.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        clock_ns: Callable[[], int],
        limits: Limits,
        write_clock: Callable[[], float] = time.perf_counter,
        seed: int | None = None,
        redactor: "Redactor | None" = None,
        observe: Callable[[Record], object] | None = None,
    ) -> None:
        self._sink = sink
        self._observe = observe
        self._segments = sink if isinstance(sink, Segments) else None
        self._redactor = redactor
        self._opening: OpenBody | None = None
        self._unwritten_opening = b""
        self.seed = seed
        self.path: Path | None = None
        self.clock_ns = clock_ns
        self._write_clock = write_clock
        self.limits = limits
        self._slow_seconds = limits.recording.write_ms_max / 1000
        self._encoder = RecordEncoder()
        self._mode = _Mode.DIRECT
        self._buffer: list[Record] = []
        self._buffered_bytes = 0  # an estimate, kept only while THREADED
        self._lost: int = 0
        self._lost_before: int = 0
        self._reason = ""
        self._failed_at = 0.0
        self._thread: WritingThread | None = None
        self.sessions = self._lifespans = self._channels = self._open = 0
        self._counts: dict[str, int] = {}
        self._unwritten_bytes = 0
        self._unwritten_bytes_max = limits.recording.unwritten_bytes_max
        # The last step, until a record follows it, and the steps since the last record before it.
        self._step: tuple[int, str, int] | None = None
        self._steps: list[str | int] = []
        self._steps_channel = self._steps_begin_ns = self._steps_end_ns = 0

    @property
    def next_number(self) -> int:
        """The number of the next record."""
        return self._encoder.next_number

    @property
    def is_paused(self) -> bool:
        """True while records are only counted, because a write has failed."""
        return self._mode is _Mode.PAUSED

    @property
    def session_id(self) -> str:
        """The id of the recording; empty before it is open."""
        return "" if self._opening is None else self._opening.session

    @property
    def lost_records(self) -> int:
        """The number of records that were lost so far, as the disk did not take them."""
        return self._lost_before + self._lost

    @property
    def waiting_bytes(self) -> int:
        """The bytes of records, by an estimate, that wait to be written."""
        thread = self._thread
        return (
            self._unwritten_bytes
            if thread is None
            else (thread.waiting_bytes + self._buffered_bytes)
        )

    @property
    def is_nearly_full(self) -> bool:
        """True if the current segment is nearly full or is not the first.

        A recording that can end does so then, and another recording begins.
        """
        if self._segments is None or self._opening is None:
            return False
        return self._opening.segment > 1 or self._segments.filled >= _NEARLY_FULL

    def open(self, body: OpenBody) -> None:
        """Write the `open` record, which also begins each later segment.

        If the write fails, the record is written before the `gap`: a file without it is no
        recording.
        """
        self._opening = body
        body_bytes = opening_bytes(body, self._redactor)
        record = self._encoder.record("open", body_bytes, self.clock_ns())
        self._buffer.append(record)
        self.flush()
        if self._mode is _Mode.PAUSED:
            self._unwritten_opening = self._encoder.lines([record])
            self._lost = 0

    def begin_session(
        self, transport: str, *, lifespan: int | None = None, is_sole: bool = False
    ) -> int:
        """Record by a mark that a session begins; return the session's channel.

        `lifespan` is the channel of its lifespan, if that is recorded. A session that `is_sole` has
        the file to itself, and channel 0.
        """
        self.sessions += 1
        value: dict[str, Any] = {"transport": transport}
        if lifespan is not None:
            value["lifespan"] = lifespan
        return self._begin_channel(SESSION_MARK, value, has_channel=not is_sole)

    def begin_lifespan(self) -> int:
        """Record by a mark that a lifespan begins; return its channel, 0 for the first."""
        self._lifespans += 1
        return self._begin_channel(LIFESPAN_MARK, None, has_channel=self._lifespans > 1)

    def _begin_channel(self, name: str, value: Any, *, has_channel: bool) -> int:
        self._channels += has_channel
        channel = self._channels if has_channel else 0
        self._open += 1
        self._mark(name, value, channel=channel)
        return channel

    def end_session(self, counts: dict[str, int], *, channel: int) -> None:
        """Record that a session ends: by a mark if it began by one, else with its file."""
        if not self.sessions:
            self.close(counts)
        elif self._mode is not _Mode.CLOSED:
            self._open -= 1
            if not channel:
                self._counts |= counts
            self._mark(ENDED_MARK, {"counts": counts}, channel=channel)
            self.flush()

    def add_schemas(self, schemas: Callable[[], Mapping[str, Any]]) -> None:
        """Redact the passwords that these input schemas declare, if this recording is redacted."""
        if self._redactor is not None:
            self._redactor.add_schemas(schemas())

    def keep(self, why: str) -> None:
        """Note a reason to keep the recording, which a handler gives, in the `end` record."""
        name = KEPT_PREFIX + why
        if name not in self._counts and len(self._counts) >= _REASONS_MAX:
            name = KEPT_PREFIX + _OTHER_REASONS
        self._counts[name] = self._counts.get(name, 0) + 1

    def end_lifespan(self) -> None:
        """Note that a lifespan has ended, after its last record."""
        self._open -= 1

    def _mark(self, name: str, value: Any, *, channel: int) -> None:
        self.record("mark", encode_body(MarkBody(name=name, value=value)), channel=channel)

    def step(self, lane: str, channel: int) -> None:
        """Note that a lane begins a step; it is recorded unless the next record implies it.

        As with `record`, many accumulated records are written.
        """
        step, self._step = self._step, None
        if step is not None:
            self._list_step(*step)
        self._step = channel, lane, self.clock_ns()

    def _list_step(self, channel: int, lane: str, time_ns: int) -> None:
        if channel != self._steps_channel or len(self._steps) >= _STEPS_MAX:
            self._record_steps()
        if not self._steps:
            self._steps_channel, self._steps_begin_ns = channel, time_ns
        elif time_ns != self._steps_end_ns:
            self._steps.append(time_ns - self._steps_end_ns)
        self._steps_end_ns = time_ns
        self._steps.append(lane)

    def _record_steps(self) -> None:
        """Record the listed steps, but not the last one."""
        if self._steps:
            lanes, self._steps = self._steps, []
            body = encode_body(StepsBody(lanes=lanes))
            self.record("step", body, channel=self._steps_channel, time_ns=self._steps_begin_ns)

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
        has_waited: bool = False,
        time_ns: int | None = None,
    ) -> int:
        """Buffer a record and return its number, which it has even if it is lost.

        `body` is a message or a JSON text; `embed=False` is for bytes that may not be JSON in
        UTF-8. `has_waited` is True if the lane has waited in the operation that ends here.
        `time_ns` is the time of the record, by default now. When many records have accumulated,
        they are written.
        """
        if self._unwritten_bytes > self._unwritten_bytes_max:
            self.flush()
        step_start = HAS_WAITED if has_waited else 0
        step, self._step = self._step, None
        if step is not None:
            # A lane that has waited in an operation since that step has begun another one.
            if step[0] == channel and step[1] == lane and not has_waited:
                step_start = BEGINS_STEP
            else:
                self._list_step(*step)
        if self._steps:
            self._record_steps()
        self._unwritten_bytes += _RECORD_BYTES + (0 if body is None else len(body))
        if self._mode is not _DIRECT:
            thread, has_room = self._thread, False
            if thread is not None:
                waiting_bytes = thread.waiting_bytes + self._buffered_bytes
                has_room = waiting_bytes < self.limits.recording.buffer_bytes_max
            if not has_room:
                self._lost += 1
                return self._encoder.skip()
            self._buffered_bytes += _RECORD_BYTES + len(body or b"")
        if self._redactor is not None and body is not None:
            try:
                body = self._redactor.redact(kind, body, is_whole_json=embed)
                envelope = None if envelope is None else self._redactor.redact_envelope(envelope)
            # Losing the record is better than writing a secret; the error's text may hold one too.
            except Exception as error:
                return self._lose(f"redaction failed: {type(error).__name__}")
        if time_ns is None:
            time_ns = self.clock_ns()
        record = self._encoder.record(
            kind,
            body,
            time_ns,
            lane,
            ordinal,
            channel,
            envelope,
            embed=embed,
            step_start=step_start,
        )
        self._buffer.append(record)
        if self._observe is not None:
            self._observe(record)
        return record.number

    def flush(self) -> None:
        """Write the buffered records; in DIRECT mode the system has them when this returns."""
        self._unwritten_bytes = 0
        if self._mode is _DIRECT:
            self._flush_directly()
        elif self._mode is _Mode.PAUSED:
            if self._write_clock() - self._failed_at >= self.limits.recording.retry_seconds:
                self._resume()
        elif self._mode is _Mode.THREADED:
            self._flush_through_thread()

    def close(self, counts: dict[str, int]) -> None:
        """Write the buffered records and `end` with `counts`, and close the sink; idempotent.

        The counts of a sole session, which has ended by a mark, are added. If sessions or lifespans
        that began by a mark are still open, the recording gets no `end` record and so counts as
        cut. Waits for a slow disk for at most `limits.recording.close_seconds`; after that the
        writing thread keeps the sink.
        """
        if self._mode is _Mode.CLOSED:
            return
        step, self._step = self._step, None
        if step is not None:
            self._list_step(*step)
        self._record_steps()
        self.flush()
        if self._mode is _Mode.PAUSED:
            self._resume()
        if self._mode is _Mode.THREADED:
            self._append_gap(count=self._lost)
        if self._mode is not _Mode.PAUSED and not self._open:
            self._append("end", EndBody(counts=counts | self._counts))
        lines, records = self._take_buffered()
        thread, self._thread = self._thread, None
        owns_sink = True
        if thread is not None:
            thread.write(lines, records)
            owns_sink = thread.finish(self.limits.recording.close_seconds)
        else:
            with suppress(Exception):  # a recording without `end` counts as cut
                self._sink.write(lines)
        self._mode = _Mode.CLOSED
        if owns_sink:
            with suppress(Exception):
                self._sink.close()

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
            assert self._opening is not None
            opening = msgspec.structs.replace(self._opening, segment=self._opening.segment + 1)
            try:
                body = opening_bytes(opening, self._redactor)
            # As in `record`: the current file goes on, and the next write tries to redact again.
            except Exception:
                return
            self._opening = opening
            self._segments.begin_next(self._encoder.segment_line(body, self.clock_ns()))

    def _lose(self, reason: str) -> int:
        """Return the number of a record that is lost; in DIRECT mode it gets a gap of its own."""
        if self._mode is not _Mode.DIRECT:
            self._lost += 1
            return self._encoder.skip()
        self._append_gap(reason=reason)
        number = self._encoder.skip()
        self._append_gap(count=1)
        return number

    def _flush_through_thread(self) -> None:
        thread = self._thread
        assert thread is not None
        if thread.failure is not None:
            _, records = self._take_buffered()
            self._pause(str(thread.failure), records + thread.waiting_records)
        elif thread.has_caught_up and thread.finish(self.limits.recording.close_seconds):
            self._thread = None
            self._append_gap(count=self._lost)
            self._lost_before += self._lost
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
        """Try to write the gap; if that fails, the next attempt uses the same record numbers."""
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
            self._lost_before += self._lost
            self._lost = 0
            self._mode = _Mode.DIRECT

    def _start_thread(self) -> None:
        try:
            self._thread = WritingThread(
                self._sink, write_clock=self._write_clock, fast_seconds_max=self._slow_seconds
            )
        except RuntimeError:  # no thread can be started: writes stay slow, but no record is lost
            return
        self._mode = _Mode.THREADED
        self._append_gap(reason="slow disk")
        self._thread.write(*self._take_buffered())

    def _append_gap(self, *, reason: str | None = None, count: int | None = None) -> None:
        self._append("gap", GapBody(reason=reason, count=count))

    def _append(self, kind: str, body: GapBody | EndBody) -> None:
        self._buffer.append(self._encoder.record(kind, encode_body(body), self.clock_ns()))

    def _take_buffered(self) -> tuple[bytes, int]:
        lines, records = self._encoder.lines(self._buffer), len(self._buffer)
        self._buffer.clear()
        self._buffered_bytes = 0
        return lines, records


def opening_bytes(opening: OpenBody, redactor: "Redactor | None") -> bytes:
    """Return the body of the `open` record, with the rules of the redaction and its tokens."""
    if redactor is None:
        return encode_body(opening)
    body = encode_body(msgspec.structs.replace(opening, redaction=redactor.manifest()))
    return redactor.redact("open", body)


# The `record=` option -----------------------------------------------------------------------------


def check_positive(_: object, attribute: "attrs.Attribute[Any]", value: float | None) -> None:
    """Check, for attrs, that a value is a finite number above 0, or None."""
    if value is not None and not 0 < value < math.inf:
        raise ValueError(f"{attribute.name} is {value}: it has to be a number above 0, or None")


@attrs.frozen
class RecordOptions:
    """Options for recording a session; a bare path in their place stands for the defaults.

    Attributes:
        path: A new file, or a folder in which each session gets a file of its own. A file whose
            name ends in `.zst` is compressed.
        encrypt: Whether files are encrypted, with the first key that is found in the environment:
            in `MCP_TRIO_RECORDING_KEYS`, or by `MCP_TRIO_RECORDING_KEY_COMMAND`. Reading needs the
            same variables.
        compress: Whether files in a folder are compressed. For a single file the name decides.
        redaction: The secrets to replace before anything is written.
        segment_bytes_max: The size, in bytes, from which on the recording goes on in another file:
            `trip.2.mcprec.jsonl` after `trip.mcprec.jsonl`. Reading the first file reads them all.
            Stateless requests over HTTP start another recording instead, which replays alone, as
            soon as none of them is open and the file is nearly full.
        segment_seconds_max: The age of a file, in seconds, from which on the next write goes to
            another file.
        sync_seconds: The seconds between two syncs of the file to the disk, by a thread, so that it
            survives a power cut; None leaves that to the system. A crash of the process alone loses
            nothing in either case.
        strict: Whether a handler gets an error when it does what no replay could repeat; for
            servers.
        overwrite: Whether a file that exists, and later segments of its name, may be replaced.
            Without it, a session that would replace one gets a `RecordingError` when it begins.
        observer: Called when a recording begins; returns a function that gets each of its records
            from the first message on, before they are written. That function runs in tasks of
            sessions, and must neither wait nor raise.

    Raises:
        ValueError: A number is not above 0.
    """

    # Whether this is a `RecordPolicy`, which a server that has none need not import.
    is_policy: ClassVar[bool] = False

    path: str | os.PathLike[str]
    compress: bool = attrs.field(default=False, kw_only=True)
    encrypt: bool = attrs.field(default=False, kw_only=True)
    redaction: "Redaction | None" = attrs.field(default=None, kw_only=True)
    segment_bytes_max: int | None = attrs.field(
        default=None, kw_only=True, validator=check_positive
    )
    segment_seconds_max: float | None = attrs.field(
        default=None, kw_only=True, validator=check_positive
    )
    sync_seconds: float | None = attrs.field(default=None, kw_only=True, validator=check_positive)
    strict: bool = attrs.field(default=False, kw_only=True)
    overwrite: bool = attrs.field(default=False, kw_only=True)
    observer: Callable[[], Callable[[Record], object]] | None = attrs.field(
        default=None, kw_only=True
    )


class SharedRecording:
    """A recording of several sessions in one file, in the order in which their events happened.

    Put `with SharedRecording(path) as shared:` around the sessions, and give each `record=shared`.
    A replay then also repeats how handlers of different sessions use memory that they share. The
    first session creates the file; leaving the block completes it. A session that is still open
    then is cut there, and so is the recording.

    All sessions have the same Trio run, role and name. Any other session, and one that begins after
    the block, gets a `RecordingError`.

    Raises:
        RecordingError: The file exists and is not empty, and `RecordOptions.overwrite` is not set.
    """

    # Whether there is one session, and its lifespan: both have channel 0, as a single session has.
    _is_of_sole_session: ClassVar[bool] = False

    def __init__(self, record: str | os.PathLike[str] | RecordOptions) -> None:
        check_no_recording_exists(record)
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
        """Complete the file; idempotent."""
        self._is_closed = True
        if self._recorder is not None:
            counts = {} if self._is_of_sole_session else {"sessions": self._recorder.sessions}
            self._recorder.close(counts)

    def begin_session(
        self,
        start: Callable[[RecordOptions], Recorder],
        *,
        role: str,
        name: str,
        transport: str,
        lifespan: int | None,
    ) -> tuple[Recorder, int]:
        """Return the recorder, which `start` opens if this is the first, and a new channel.

        `lifespan` is the channel of the session's lifespan, if that is recorded.

        Raises:
            RecordingError: The recording is closed, belongs to another Trio run, role or name, or
                its file cannot be created.
        """
        recorder = self._opened(start, role=role, name=name)
        is_sole = self._is_of_sole_session
        return recorder, recorder.begin_session(transport, lifespan=lifespan, is_sole=is_sole)

    def begin_lifespan(
        self, start: Callable[[RecordOptions], Recorder], *, role: str, name: str
    ) -> tuple[Recorder, int]:
        """Return the recorder, and a channel for a lifespan, as `begin_session` does."""
        recorder = self._opened(start, role=role, name=name)
        return recorder, recorder.begin_lifespan()

    def _opened(
        self, start: Callable[[RecordOptions], Recorder], *, role: str, name: str
    ) -> Recorder:
        owner = (trio.lowlevel.current_trio_token(), role, name)
        if self._is_closed:
            raise RecordingError(
                "the shared recording is closed: begin sessions inside its `with` block"
            )
        if self._recorder is None:
            self._recorder = start(self.options)
            self._owner = owner
        if owner != self._owner:
            raise RecordingError(
                "all sessions of a shared recording need the same Trio run, role and name"
            )
        return self._recorder


class SoleSessionRecording(SharedRecording):
    """A recording of one session and of its lifespan, which begins before and ends after it."""

    _is_of_sole_session = True


RecordTarget: TypeAlias = str | os.PathLike[str] | RecordOptions | SharedRecording
"""The file of a recording: a path, a path with options, or a recording shared with sessions."""


def options_of(record: RecordTarget) -> RecordOptions:
    """Return the options in `record`; for a bare path, the defaults."""
    if isinstance(record, SharedRecording):
        return record.options
    return record if isinstance(record, RecordOptions) else RecordOptions(record)


def check_no_recording_exists(record: RecordTarget | None) -> None:
    """Check that a session recorded to `record` would overwrite no file, or is allowed to.

    `open_recorder` checks it again, when it creates the file. This function reports the error
    earlier: before a process is started, or a connection made.

    Raises:
        RecordingError: The file is not empty, and `RecordOptions.overwrite` is not set; or the
            path looks like a folder, and there is none; or there is no key for the encryption.
    """
    if record is None or isinstance(record, SharedRecording):
        return
    options = options_of(record)
    path = Path(options.path)
    if not path.suffix and not path.exists() and path.parent.is_dir():
        raise RecordingError(
            f"cannot record to {path}: there is no such folder; make it, or name a file such as"
            f" {path}.mcprec.jsonl"
        )
    if not options.overwrite and path.is_file() and path.stat().st_size:
        raise RecordingError(f"cannot record to {path}: {EXISTS}")
    if options.encrypt:
        recording_keys()


def holds_many_sessions(record: RecordTarget | None) -> bool:
    """Return whether a second session can be recorded without replacing the first."""
    if record is None or isinstance(record, SharedRecording):
        return True
    text = os.fspath(options_of(record).path)
    return text.endswith("/") or os.path.isdir(text)  # noqa: PTH112  the path is text already


@attrs.define(eq=False, init=False, repr=False)
class SuccessiveSessions:
    """The recording of sessions that follow one another when a client or a server reconnects.

    If `may_reconnect`, and `record` names a single file, the file becomes a shared recording in
    which each session has a channel.

    Attributes:
        record: The target to record each session to.

    Raises:
        RecordingError: The file exists and is not empty, and `RecordOptions.overwrite` is not set.
    """

    record: RecordTarget | None
    _own: SharedRecording | None

    def __init__(self, record: RecordTarget | None, *, may_reconnect: bool = True) -> None:
        check_no_recording_exists(record)
        self.record, self._own = record, None
        if record is not None and may_reconnect and not holds_many_sessions(record):
            self.record = self._own = SharedRecording(options_of(record))

    def end(self) -> None:
        """Complete the shared file, if there is one; a session that is still open is cut."""
        if self._own is not None:
            self._own.close()


_ID_BYTES: Final = 8

# JavaScript and jq read JSON numbers as floats, which hold integers of 53 bits exactly.
_SEED_BITS: Final = 53

_WRITER: Final = f"mcp_trio/{__version__} Python/{platform.python_version()}"
_session_numbers = itertools.count(1)


class Opening(TypedDict, total=False):
    """The arguments of `open_recorder`."""

    role: Required[str]
    transport: Required[str]
    name: Required[str]
    version: Required[str]
    listed: Mapping[str, Sequence[str]]
    earlier_sessions: int
    lifespan: bool
    schemas: Callable[[], Mapping[str, Any]]
    limits: Limits


def begin_session(
    record: RecordTarget, *, lifespan_channel: int | None = None, **opening: Unpack[Opening]
) -> tuple[Recorder, int]:
    """Return the recorder for a session that begins now, and the session's channel in it.

    In a shared recording, the arguments of `open_recorder` count for the first session or lifespan;
    `lifespan_channel` is the channel of the session's lifespan, if that is recorded.

    Raises:
        RecordingError: The file cannot be created, or the shared recording rejects this session.
        ValueError: The redaction options are invalid.
    """
    start = partial(open_recorder, **opening)
    if isinstance(record, SharedRecording):
        recorder, channel = record.begin_session(
            start,
            role=opening["role"],
            transport=opening["transport"],
            name=opening["name"],
            lifespan=lifespan_channel,
        )
        # The lifespan may have registered tools since the file was opened.
        recorder.add_schemas(opening.get("schemas", dict))
        return recorder, channel
    return start(options_of(record)), 0


def begin_lifespan(record: SharedRecording, **opening: Unpack[Opening]) -> tuple[Recorder, int]:
    """Return the recorder for a lifespan that begins now, and its channel, as `begin_session` does.

    Raises:
        RecordingError, ValueError: As for `begin_session`.
    """
    start = partial(open_recorder, **opening)
    return record.begin_lifespan(start, role=opening["role"], name=opening["name"])


def utc_now() -> datetime:
    """Return the time of day."""
    return datetime.now(UTC)


OpenSink: TypeAlias = Callable[[], Sink]
MakeRecorder: TypeAlias = Callable[..., Recorder]


def open_recorder(
    record: str | os.PathLike[str] | RecordOptions,
    *,
    role: str,
    transport: str,
    name: str,
    version: str,
    listed: Mapping[str, Sequence[str]] = MappingProxyType({}),
    earlier_sessions: int = 0,
    lifespan: bool = False,
    schemas: Callable[[], Mapping[str, Any]] = dict,
    limits: Limits = DEFAULT_LIMITS,
    make: Callable[[Path, OpenSink], MakeRecorder] | None = None,
    now: Callable[[], datetime] = utc_now,
) -> Recorder:
    """Create the file of a recording, write its `open` record and return the recorder.

    A path that is a folder, or ends with a slash, gets a new file for this session, named after
    `name`, the time and the process. Only the file's owner can read it. Times count from now, on
    the clock of the Trio run. `schemas` returns the input schemas of the tools by tool name, in
    which passwords may be declared; it is called only for redaction.

    `make` gets the path of the file and a function that creates it, and returns what makes the
    recorder in place of `Recorder`. `now` returns the time of day, which the `open` record and the
    name of the file have.

    Raises:
        RecordingError: The file cannot be created, or it or a later segment would overwrite a file
            without `RecordOptions.overwrite`.
        ValueError: The redaction options are invalid; no file was created.
    """
    options = options_of(record)
    started = now()
    seed = secrets.randbits(_SEED_BITS)
    clock, begin_ns, clock_ns = _clock()
    # Invalid redaction options raise before the file is created.
    redactor = _redactor(options, schemas, limits)
    check_no_recording_exists(record)
    path = _target(options, name, started)
    open_sink = partial(_sink, path, options, limits)
    make_recorder = partial(Recorder, open_sink()) if make is None else make(path, open_sink)
    recorder: Recorder = make_recorder(
        clock_ns=clock_ns,
        limits=limits,
        seed=seed,
        redactor=redactor,
        observe=None if options.observer is None else options.observer(),
    )
    recorder.path = path
    body = OpenBody(
        transport=transport,
        role=role,
        name=name,
        version=version,
        listed={kind: [*lines] for kind, lines in listed.items()},
        earlier_sessions=earlier_sessions,
        seed=seed,
        started=started.isoformat(timespec="microseconds"),
        lifespan=lifespan,
        session=secrets.token_hex(_ID_BYTES),
        writer=_WRITER,
        clock=clock,
        clock_ns=begin_ns,
    )
    recorder.open(body)
    return recorder


def _redactor(
    options: RecordOptions, schemas: Callable[[], Mapping[str, Any]], limits: Limits
) -> "Redactor | None":
    if options.redaction is None:
        return None
    from mcp_trio._journal.redaction import Redactor
    from mcp_trio._journal.redaction_tokens import KEY_BYTES

    key = options.redaction.key or secrets.token_bytes(KEY_BYTES)
    return Redactor(options.redaction, key=key, schemas=schemas(), limits=limits)


def _sink(target: Path, options: RecordOptions, limits: Limits) -> Sink:
    path = os.fspath(target)
    is_named_by_user = target == Path(options.path)
    keys = recording_keys() if options.encrypt else None

    def open_file(name: str) -> FileSink | EncryptedSink | CompressedSink:
        flags = NO_FOLLOW
        if name == path:
            flags = 0 if is_named_by_user else os.O_EXCL
        file = FileSink(
            name,
            overwrite=options.overwrite,
            sync_seconds=options.sync_seconds,
            limits=limits,
            flags=flags,
        )
        sink = file if keys is None else EncryptedSink(file, keys)
        return CompressedSink(sink) if name.endswith(COMPRESSED_SUFFIX) else sink

    try:
        if options.segment_bytes_max is None and options.segment_seconds_max is None:
            return open_file(path)
        if is_named_by_user:
            _check_room(path, overwrite=options.overwrite)
        return Segments(
            path,
            open_file=open_file,
            bytes_max=options.segment_bytes_max,
            seconds_max=options.segment_seconds_max,
        )
    except OSError as error:
        raise RecordingError(f"cannot record to {target}: {error.strerror}") from error


def _check_room(target: str, *, overwrite: bool) -> None:
    """Check that no later segment will replace a file, unless it is a segment and `overwrite`."""
    if Path(target).exists() and not Path(target).is_file():
        raise RecordingError(
            f"cannot record to {target} in segments: it is not a regular file; leave out"
            " segment_bytes_max and segment_seconds_max"
        )
    for name in later_names(target):
        if not overwrite and Path(name).stat().st_size:
            raise RecordingError(
                f"cannot record to {target}: a later segment would replace {name}; record to a"
                " folder, or overwrite: --overwrite, or RecordOptions(path, overwrite=True)"
            )
        if not is_free_for_segment(name):
            raise RecordingError(
                f"cannot record to {target}: a later segment would replace {name},"
                " which is not a segment"
            )


def _clock() -> tuple[str, int, Callable[[], int]]:
    """Return the kind of Trio's clock, the time now, and a clock of nanoseconds since now."""
    clock = trio.lowlevel.current_clock()
    if isinstance(clock, TickClock):
        begin_ns = clock.ns
        return "tick", begin_ns, lambda: clock.ns - begin_ns

    def now_ns() -> int:
        return round(clock.current_time() * NS_PER_SECOND)

    begin_ns = now_ns()
    # Importing `trio.testing` imports pytest where that is installed, which takes as long as all
    # other imports of a recorder. There is no `MockClock` before that import.
    testing = sys.modules.get("trio.testing")
    is_mock = testing is not None and isinstance(clock, testing.MockClock)
    is_virtual = is_mock and not getattr(clock, "rate", 0)
    return "virtual" if is_virtual else "foreign", begin_ns, lambda: now_ns() - begin_ns


def _target(options: RecordOptions, name: str, started: datetime) -> Path:
    text = os.fspath(options.path)
    if not (text.endswith("/") or Path(text).is_dir()):
        if options.compress and not text.endswith(COMPRESSED_SUFFIX):
            raise RecordingError(
                f"cannot record to {text}: compress=True is for folders;"
                f" a single file is compressed if its name ends in {COMPRESSED_SUFFIX}"
            )
        return Path(text)
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    stamp = started.strftime("%Y%m%dT%H%M%SZ")
    suffix = SUFFIX + COMPRESSED_SUFFIX * options.compress
    for number in _session_numbers:
        # A process of another container may have the same number, and record to the same folder.
        path = Path(text) / f"{plain}-{stamp}-{os.getpid()}-{number}{suffix}"
        second = Path(segment_name(os.fspath(path), 2))
        if not (os.path.lexists(path) or os.path.lexists(second)):
            return path
    raise AssertionError  # the numbers do not end
