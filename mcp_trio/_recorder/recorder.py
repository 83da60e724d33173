"""The writing end of a recording, which never raises, never grows and hardly ever waits.

`record` only buffers. `flush` writes what is buffered with one call of the sink, in the caller's
task, before the bytes that it explains reach the peer. That promise holds while the mode is DIRECT;
what becomes of it otherwise, the file says itself, in `gap` records:

- A write fails: PAUSED. Records are counted and dropped. Now and then `flush` tries again: what it
  writes is a `gap` (the reason) and a `gap` (how many records are missing).
- A write is slow: THREADED, behind a `gap` (slow disk). Writes go through a thread with a bounded
  buffer; what does not fit is counted and dropped. When the thread has caught up, a `gap` (how many
  are missing, often 0) leads back to DIRECT.

In DIRECT mode a full segment is followed by the next. One that cannot be begun is a write that
failed: what is tried again begins it. While PAUSED or THREADED, the file stays the same.

A record that cannot be redacted costs a gap of its own, or is lost in the one that is open.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final, Protocol

import msgspec

from mcp_trio._journal.records import (
    EndBody,
    GapBody,
    MarkBody,
    OpenBody,
    Record,
    RecordEncoder,
    encode_body,
)
from mcp_trio._limits import Limits
from mcp_trio._recorder.segments import Segments
from mcp_trio._recorder.sink import Sink
from mcp_trio._recorder.slow_disk import WritingThread

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
    def is_long(self) -> bool:
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
