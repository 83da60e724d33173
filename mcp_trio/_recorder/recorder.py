"""The writing end of a recording, which never raises, never grows and hardly ever waits.

`record` only buffers. `flush` writes what is buffered with one call of the sink, in the caller's
task, before the bytes that it explains reach the peer. That promise holds while the mode is DIRECT;
what becomes of it otherwise, the file says itself, in `gap` records:

- A write fails: PAUSED. Records are counted and dropped. Now and then `flush` tries again: what it
  writes is a `gap` (the reason) and a `gap` (how many records are missing).
- A write is slow: THREADED, behind a `gap` (slow disk). Writes go through a thread with a bounded
  buffer; what does not fit is counted and dropped. When the thread has caught up, a `gap` (how many
  are missing, often 0) leads back to DIRECT.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum, auto
from typing import Any, Final

from mcp_trio._journal.records import EndBody, GapBody, Record, RecordEncoder, encode_body
from mcp_trio._limits import Limits
from mcp_trio._recorder.sink import Sink
from mcp_trio._recorder.slow_disk import WritingThread

# What a record takes besides its body, about.
_RECORD_BYTES: Final = 64


class _Mode(Enum):
    DIRECT = auto()
    PAUSED = auto()
    THREADED = auto()
    CLOSED = auto()


class Recorder:
    """Numbers records, turns them into lines and writes these to its sink, which it owns.

    `clock_ns` dates the records, `write_clock` (in seconds) only tells how long a write took.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        clock_ns: Callable[[], int],
        limits: Limits,
        write_clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._sink = sink
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

    @property
    def next_number(self) -> int:
        """The number that the next record will have."""
        return self._encoder.next_number

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

    def close(self, counts: dict[str, int]) -> None:
        """Write what is buffered and `end` with `counts`, and close the sink; again does nothing.

        Waits for a slow disk at most `journal_close_seconds`, and leaves it the sink after that.
        """
        if self._mode is _Mode.CLOSED:
            return
        self.flush()
        if self._mode is _Mode.PAUSED:
            self._resume()
        if self._mode is _Mode.THREADED:
            self._append_gap(count=self._lost)
        if self._mode is not _Mode.PAUSED:
            self._append("end", EndBody(counts=counts))
        is_ours = self._write_last()
        self._mode = _Mode.CLOSED
        if is_ours:
            with suppress(Exception):
                self._sink.close()

    def _write_last(self) -> bool:
        """Write what is left; whether the sink is ours afterwards."""
        lines, records = self._take_buffered()
        if self._thread:
            self._thread.write(lines, records)
            return self._thread.finish(self.limits.journal_close_seconds)
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
            self._pause(error, records)
            return
        if self._write_clock() - begin > self._slow_seconds:
            self._start_thread()

    def _flush_while_paused(self) -> None:
        if self._write_clock() - self._failed_at >= self.limits.journal_retry_seconds:
            self._resume()

    def _flush_through_thread(self) -> None:
        thread = self._thread
        assert thread is not None
        if thread.failure is not None:
            _, records = self._take_buffered()
            self._pause(thread.failure, records + thread.waiting_records)
        elif thread.has_caught_up and thread.finish(self.limits.journal_close_seconds):
            self._thread = None
            self._append_gap(count=self._lost)
            self._lost = 0
            self._mode = _Mode.DIRECT
            self._flush_directly()
        elif self._buffer:
            thread.write(*self._take_buffered())

    def _pause(self, error: Exception, records: int) -> None:
        self._mode = _Mode.PAUSED
        self._thread = None
        self._lost += records
        self._reason = str(error)
        self._failed_at = self._write_clock()

    def _resume(self) -> None:
        """Try to write the gap; as long as that fails, its numbers are used again."""
        number = self._encoder.next_number
        self._append_gap(reason=self._reason)
        self._append_gap(count=self._lost)
        lines, _ = self._take_buffered()
        try:
            self._sink.write(lines)
        except Exception as error:  # as in a direct flush
            self._encoder.next_number = number
            self._pause(error, 0)
        else:
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
