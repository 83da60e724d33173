"""Writing records: the recorder of a session, which buffers, numbers, redacts and encodes them.

`Recorder.record` only buffers. `Recorder.flush` writes the buffered records with one call of the
sink, in the caller's task, before the bytes that they explain reach the peer. That holds in DIRECT
mode. In the other modes, `gap` records in the file mark what is missing:

- A write fails: PAUSED. Records are counted and dropped. Every `limits.recording.retry_seconds`
  `flush` tries again: it writes a `gap` with the reason and a `gap` with the count of lost records.
- A write is slow: THREADED, after a `gap` with the reason "slow disk". A thread writes, from a
  buffer of bounded size; records that do not fit are counted and dropped. When the thread has
  caught up, a `gap` with the count of lost records, often 0, leads back to DIRECT.

In DIRECT mode a full segment is followed by the next. A segment that cannot be created counts as a
failed write, and is created when writing is tried again. While PAUSED or THREADED, the file stays
the same. A record that cannot be redacted is lost in a gap of its own, or in the one that is open.

`Recorder.record` makes any record. `Recording`, the sequencer of a session, makes most of its
records by `Recorder.append`, which costs half as much: `Recorder.open_step` says when that is
allowed.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec import Raw

from mcp_trio._journal.records import (
    BEGINS_STEP,
    HAS_WAITED,
    KEPT_PREFIX,
    LIFESPAN_MARK,
    RECORD_BYTES,
    EndBody,
    GapBody,
    MarkBody,
    OpenBody,
    Record,
    RecordEncoder,
    StepsBody,
    encode_body,
)
from mcp_trio._recorder.clock import NanosecondClock
from mcp_trio._recorder.files import Segments, Sink, WritingThread
from mcp_trio.limits import Limits

if TYPE_CHECKING:
    from mcp_trio._journal.redaction import Redactor

logger = logging.getLogger("mcp_trio")

# A recording that can end does so when its file is filled to this share of the maximum.
_NEARLY_FULL: Final = 0.75

# How many different reasons of handlers a recording counts, and the name for all others.
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


_LF: Final = ord("\n")
_CR: Final = ord("\r")

_DIRECT: Final = _Mode.DIRECT  # each record needs it, and CPython 3.11 calls a function for it

OpenStep: TypeAlias = tuple[Any, int, int]
"""A step that a lane has begun: the `Lane`, its channel, and the time of the clock."""

# The value of `Recorder.open_step` with which only `Recorder.record` makes records.
_NO_SHORTCUT: Final[OpenStep] = (..., 0, 0)


class Recorder:
    """A writer of records that never raises, holds a bounded amount and hardly ever waits.

    It numbers records, encodes them as lines and writes these to the sink, which it owns. The time
    of a record is that of `clock`, less `begin_ns`; `write_clock`, in seconds, only measures how
    long a write takes. `seed` is the random seed in the `open` record, `sessions` the number of
    sessions that have begun by a mark. `redactor` redacts every body before it is buffered, except
    the bodies of `gap` and `end`, which hold no data of users. `observe` is called with each record
    that is buffered. `path` is the first file of the recording, if that is in files.

    `open_step` says whether `Recording` may make a record by `append`. If it
    is None, any record may follow. If it is the step of a lane, a record of that lane may follow,
    which implies the step. Everything else needs `record`: other steps that have to be listed,
    redaction, observers, and a disk that is slow or full.
    """

    # Python finds the attributes of an object with more than 30 of them faster in slots.
    __slots__ = (
        *("_buffered_bytes", "_channels", "_counts"),
        *("_failed_at", "_lifespans", "_lost", "_lost_before", "_mode", "_observe"),
        *("_open_count", "_opening", "_reason", "_redactor", "_segments", "_sink"),
        *("_slow_seconds", "_step"),
        *("_steps", "_steps_begin_ns", "_steps_channel", "_steps_end_ns", "_thread"),
        *("_unwritten_opening", "_write_clock"),
        *("begin_ns", "clock", "encoder", "limits", "open_step", "path", "records", "seed"),
        *("sessions", "unwritten_bytes", "unwritten_bytes_max", "__weakref__"),
    )

    def __init__(
        self,
        sink: Sink,
        *,
        clock: NanosecondClock,
        begin_ns: int = 0,
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
        self.clock = clock
        self.begin_ns = begin_ns
        self._write_clock = write_clock
        self.limits = limits
        self._slow_seconds = limits.recording.write_ms_max / 1000
        self.encoder = RecordEncoder()
        self._mode = _Mode.DIRECT
        self.records: list[Record] = []
        self._buffered_bytes = 0  # an estimate, kept only while THREADED
        self._lost: int = 0  # records that the next `gap` counts
        self._lost_before: int = 0  # records that earlier `gap` records count
        self._reason = ""  # the error of the failed write, while PAUSED
        self._failed_at = 0.0
        self._thread: WritingThread | None = None
        self.sessions = self._lifespans = self._channels = 0
        self._open_count = 0  # of sessions and lifespans that began by a mark
        self._counts: dict[str, int] = {}
        self.unwritten_bytes = 0
        self.unwritten_bytes_max = limits.recording.unwritten_bytes_max
        # The last step, until a record follows it, and the steps since the last record before it.
        is_plain = redactor is None and observe is None
        self.open_step: OpenStep | None = None if is_plain else _NO_SHORTCUT
        self._step: tuple[int, str, int] | None = None
        self._steps: list[str | int] = []
        self._steps_channel = self._steps_begin_ns = self._steps_end_ns = 0

    @property
    def time_ns(self) -> int:
        """The time of a record that is made now: nanoseconds since the recording began."""
        return self.clock.ns - self.begin_ns

    @property
    def next_number(self) -> int:
        """The number of the next record."""
        return self.encoder.next_number

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
        if self._thread is None:
            return self.unwritten_bytes
        return self._thread.waiting_bytes + self._buffered_bytes

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
        record = self.encoder.record("open", body_bytes, self.time_ns)
        self.records.append(record)
        self.flush()
        if self._mode is _Mode.PAUSED:
            self._unwritten_opening = self.encoder.lines([record])
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
        self._open_count += 1
        self._mark(name, value, channel=channel)
        return channel

    def end_session(self, counts: dict[str, int], *, channel: int) -> None:
        """Record that a session ends: by a mark if it began by one, else with its file."""
        if not self.sessions:
            self.close(counts)
        elif self._mode is not _Mode.CLOSED:
            self._open_count -= 1
            if not channel:
                self._counts |= counts
            self._mark(ENDED_MARK, {"counts": counts}, channel=channel)
            self.flush()

    def add_schemas(self, schemas: Callable[[], Mapping[str, Any]]) -> None:
        """Redact the passwords that input schemas declare, if this recording is redacted.

        `schemas` returns the schemas by the names of their tools; otherwise it is not called.
        """
        if self._redactor is not None:
            self._redactor.add_schemas(schemas())

    def keep(self, why: str) -> None:
        """Note a reason to keep the recording, which a handler gives, in the `end` record."""
        # A file name, for example, may have lone surrogates, which UTF-8 cannot encode.
        name = KEPT_PREFIX + why.encode(errors="backslashreplace").decode()
        if name not in self._counts and len(self._counts) >= _REASONS_MAX:
            name = KEPT_PREFIX + _OTHER_REASONS
        self._counts[name] = self._counts.get(name, 0) + 1

    def end_lifespan(self) -> None:
        """Note that a lifespan has ended, after its last record."""
        self._open_count -= 1

    def _mark(self, name: str, value: Any, *, channel: int) -> None:
        self.record("mark", encode_body(MarkBody(name=name, value=value)), channel=channel)

    def step(self, lane: str, channel: int) -> None:
        """Note that a lane begins a step; it is recorded unless the next record implies it.

        If many records have accumulated, this may write them, as `record` does.
        """
        self._end_shortcut()
        if (step := self._step) is not None:
            self._step = None
            self._list_step(*step)
            self.open_step = _NO_SHORTCUT  # also if that has made a record
        self._step = channel, lane, self.clock.ns - self.begin_ns

    def _end_shortcut(self) -> None:
        """Let `record` make all records, until it finds that nothing needs it any more."""
        open_step, self.open_step = self.open_step, _NO_SHORTCUT
        if open_step is not None and open_step is not _NO_SHORTCUT:
            lane, channel, ns = open_step
            self._step = channel, lane.name, ns - self.begin_ns

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

    def append(
        self,
        kind: str,
        body: bytes,
        channel: int,
        lane: str | None = None,
        ordinal: int | None = None,
        step_start: int = 0,
    ) -> int | None:
        """Append a record whose body is JSON to the buffer; return its number.

        `open_step` has to allow it. None: `record` has to make the record, because its body has
        more than one line, or the buffer is full.
        """
        size = self.unwritten_bytes + len(body)
        if _LF in body or _CR in body or size > self.unwritten_bytes_max:
            return None
        self.unwritten_bytes = size + RECORD_BYTES
        encoder = self.encoder
        number = encoder.next_number
        encoder.next_number = number + 1
        self.records.append(
            Record(
                number=number,
                kind=kind,
                channel=channel,
                lane=lane,
                ordinal=ordinal,
                step_start=step_start,
                time_ns=self.clock.ns - self.begin_ns,
                body=Raw(body),
            )
        )
        return number

    def record(
        self,
        kind: str,
        body: bytes | None = None,
        lane: str | None = None,
        ordinal: int | None = None,
        channel: int = 0,
        envelope: Mapping[str, Any] | None = None,
        embed: bool = True,  # noqa: FBT001, FBT002 - keywords would take longer
        has_waited: bool = False,  # noqa: FBT001, FBT002
        time_ns: int | None = None,
    ) -> int:
        """Buffer a record and return its number, which it has even if it is lost.

        `body` is a message or a JSON text; `embed=False` is for bytes that may not be JSON in
        UTF-8. `has_waited` is True if the lane has waited in the operation that ends here.
        `time_ns` is the time of the record, by default now. When many records have accumulated,
        they are written.
        """
        if self.open_step is not _NO_SHORTCUT:
            self._end_shortcut()
        if self.unwritten_bytes > self.unwritten_bytes_max:
            self.flush()
        step_start = HAS_WAITED if has_waited else 0
        if (step := self._step) is not None:
            self._step = None
            # A lane that has waited in an operation since that step has begun another one.
            if step[0] == channel and step[1] == lane and not has_waited:
                step_start = BEGINS_STEP
            else:
                self._list_step(*step)
        if self._steps:
            self._record_steps()
        self.unwritten_bytes += RECORD_BYTES + (0 if body is None else len(body))
        if self._mode is not _DIRECT:
            bytes_max = self.limits.recording.buffer_bytes_max
            if self._thread is None or self.waiting_bytes >= bytes_max:
                self._lost += 1
                return self.encoder.skip()
            self._buffered_bytes += RECORD_BYTES + len(body or b"")
        if self._redactor is not None and body is not None:
            try:
                body = self._redactor.redact(kind, body, is_whole_json=embed)
                envelope = None if envelope is None else self._redactor.redact_envelope(envelope)
            # Losing the record is better than writing a secret; the error's text may hold one too.
            except Exception as error:
                return self._lose(f"redaction failed: {type(error).__name__}")
        if time_ns is None:
            time_ns = self.clock.ns - self.begin_ns
        record = self.encoder.record(
            kind, body, time_ns, lane, ordinal, channel, envelope, embed, step_start
        )
        self.records.append(record)
        if self._observe is not None:
            self._observe(record)
        elif self._redactor is None and self._mode is _DIRECT:
            self.open_step = None
        return record.number

    def flush(self) -> None:
        """Write the buffered records; in DIRECT mode the system has them when this returns."""
        self.unwritten_bytes = 0
        if self._mode is not _DIRECT:
            self._flush_indirectly()
            return
        records, clock = self.records, self._write_clock
        count = len(records)
        if not count:
            return
        lines = self.encoder.lines(records)
        records.clear()
        begin = clock()
        try:
            self._sink.write(lines)
        except Exception as error:  # a disk may fail in any way; the session goes on
            self._pause(str(error), count)
            return
        if clock() - begin > self._slow_seconds:
            self._start_thread()
        segments = self._segments
        if segments is not None:
            is_direct = self._mode is _DIRECT  # also after a slow write without a thread
            if is_direct and segments.filled >= 1:
                self._begin_segment(segments)

    def close(self, counts: dict[str, int]) -> None:
        """Write the buffered records and `end` with `counts`, and close the sink; idempotent.

        The counts of a sole session, which has ended by a mark, are added. If sessions or lifespans
        that began by a mark are still open, the recording gets no `end` record and so counts as
        cut. Waits for a slow disk for at most `limits.recording.close_seconds`; after that the
        writing thread keeps the sink. An error of closing the sink is logged.
        """
        if self._mode is _Mode.CLOSED:
            return
        self._end_shortcut()
        step, self._step = self._step, None
        if step is not None:
            self._list_step(*step)
        self._record_steps()
        self.flush()
        thread, owns_sink = self._thread, True
        if thread is not None:
            self._append_gap(count=self._lost)
            self._append_end(counts)
            thread.write(*self._take_buffered())
            owns_sink = thread.finish(self.limits.recording.close_seconds)
            if thread.failure is not None:
                self._pause(str(thread.failure), thread.waiting_records)
                owns_sink = True
        if self._mode is _Mode.PAUSED:
            self._resume()
        if self._mode is _Mode.DIRECT:
            self._append_end(counts)
            lines, _ = self._take_buffered()
            with suppress(Exception):  # a recording without `end` counts as cut
                self._sink.write(lines)
        self._end_shortcut()
        self._mode, self._thread = _Mode.CLOSED, None
        if not owns_sink:
            return
        try:
            self._sink.close()
        except Exception as error:  # a disk may fail in any way
            name = self.path or "a recording"
            logger.warning("the end of %s may not be on the disk: %s", name, error)

    def _append_end(self, counts: dict[str, int]) -> None:
        """Append `end`, unless a session or a lifespan that began by a mark is still open."""
        if not self._open_count:
            self._append("end", EndBody(counts=counts | self._counts))

    def _begin_segment(self, segments: Segments) -> None:
        """Let the next write begin a new file."""
        assert self._opening is not None
        opening = msgspec.structs.replace(self._opening, segment=self._opening.segment + 1)
        try:
            body = opening_bytes(opening, self._redactor)
        # As in `record`: the current file goes on, and the next write tries to redact again.
        except Exception:
            return
        self._opening = opening
        segments.begin_next(self.encoder.segment_line(body, self.time_ns))

    def _lose(self, reason: str) -> int:
        """Return the number of a record that is lost; in DIRECT mode it gets a gap of its own."""
        if self._mode is not _Mode.DIRECT:
            self._lost += 1
            return self.encoder.skip()
        self._append_gap(reason=reason)
        number = self.encoder.skip()
        self._append_gap(count=1)
        return number

    def _flush_indirectly(self) -> None:
        """Write through the thread, or try to write again after a failure."""
        if self._mode is _Mode.PAUSED:
            if self._write_clock() - self._failed_at >= self.limits.recording.retry_seconds:
                self._resume()
            return
        thread = self._thread
        if thread is None:  # the recording is closed
            return
        if thread.failure is not None:
            _, records = self._take_buffered()
            self._pause(str(thread.failure), records + thread.waiting_records)
        elif thread.has_caught_up:
            thread.finish()  # at once, as it has nothing to write
            self._thread = None
            self._append_gap(count=self._lost)
            self._lost_before += self._lost
            self._lost = 0
            self._mode = _Mode.DIRECT
            self._buffered_bytes = 0
            self.flush()
        elif self.records:
            thread.write(*self._take_buffered())

    def _pause(self, reason: str, records: int) -> None:
        self._end_shortcut()
        self._mode = _Mode.PAUSED
        self._thread = None
        self._lost += records
        self._reason = reason
        self._failed_at = self._write_clock()

    def _resume(self) -> None:
        """Try to write the gap; if that fails, the next attempt uses the same record numbers."""
        number = self.encoder.next_number
        self._append_gap(reason=self._reason)
        self._append_gap(count=self._lost)
        lines, _ = self._take_buffered()
        try:
            self._sink.write(self._unwritten_opening + lines)
        except Exception as error:  # as in a direct flush
            self.encoder.next_number = number
            self._pause(str(error), 0)
        else:
            self._unwritten_opening = b""
            self._lost_before += self._lost
            self._lost = 0
            self._mode = _Mode.DIRECT

    def _start_thread(self) -> None:
        try:
            self._thread = WritingThread(
                self._sink, write_clock=self._write_clock, slow_seconds=self._slow_seconds
            )
        except RuntimeError:  # no thread can be started: writes stay slow, but no record is lost
            return
        self._end_shortcut()
        self._mode = _Mode.THREADED
        self._append_gap(reason="slow disk")
        self._thread.write(*self._take_buffered())

    def _append_gap(self, *, reason: str | None = None, count: int | None = None) -> None:
        self._append("gap", GapBody(reason=reason, count=count))

    def _append(self, kind: str, body: GapBody | EndBody) -> None:
        self.records.append(self.encoder.record(kind, encode_body(body), self.time_ns))

    def _take_buffered(self) -> tuple[bytes, int]:
        lines, records = self.encoder.lines(self.records), len(self.records)
        self.records.clear()
        self._buffered_bytes = 0
        return lines, records


def opening_bytes(opening: OpenBody, redactor: "Redactor | None") -> bytes:
    """Return the body of the `open` record, with the rules of the redaction and its tokens."""
    if redactor is None:
        return encode_body(opening)
    body = encode_body(msgspec.structs.replace(opening, redaction=redactor.manifest()))
    return redactor.redact("open", body)
