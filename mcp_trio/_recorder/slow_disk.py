"""Writing to a slow disk in a thread of its own, so that nobody waits for it."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import attrs

from mcp_trio._recorder.sink import Sink


@attrs.frozen(kw_only=True)
class _Batch:
    data: bytes
    records: int


class WritingThread:
    """Writes batches in order until told to finish, or until a write fails.

    Each counter is written by one side only: what was handed in by the caller, what was written by
    the thread. After a failure the thread has ended, and the sink is the caller's again.

    Raises:
        RuntimeError: no thread can be started.
    """

    def __init__(
        self, sink: Sink, *, write_clock: Callable[[], float], fast_seconds_max: float
    ) -> None:
        self.failure: Exception | None = None
        self._sink = sink
        self._write_clock = write_clock
        self._fast_seconds_max = fast_seconds_max
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._handed_bytes = self._handed_records = 0
        self._written_bytes = self._written_records = 0
        self._last_was_fast = False
        self._thread = threading.Thread(target=self._run, name="mcp_trio recorder", daemon=False)
        self._thread.start()

    def write(self, data: bytes, records: int) -> None:
        """Hand in the lines of so many records; never waits."""
        self._handed_bytes += len(data)
        self._handed_records += records
        self._batches.put(_Batch(data=data, records=records))

    @property
    def waiting_bytes(self) -> int:
        """How much is not yet written."""
        return self._handed_bytes - self._written_bytes

    @property
    def waiting_records(self) -> int:
        """How many records are not yet written; after a failure, never will be."""
        return self._handed_records - self._written_records

    @property
    def has_caught_up(self) -> bool:
        """Whether all is written, the last batch fast."""
        return self._last_was_fast and not self.waiting_bytes

    def finish(self, seconds_max: float) -> bool:
        """Let the thread write what it has, and end; False if it did not in time."""
        self._batches.put(None)
        self._thread.join(seconds_max)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            begin = self._write_clock()
            try:
                self._sink.write(batch.data)
            except Exception as error:  # a disk may fail in any way; the recorder says it in a gap
                self.failure = error
                return
            self._last_was_fast = self._write_clock() - begin <= self._fast_seconds_max
            self._written_records += batch.records
            self._written_bytes += len(batch.data)
