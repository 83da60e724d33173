"""Logging for servers that run for months: rotated, compressed, without blocking the event loop.

    with configure_logging(Path("server.log")):
        ...

A logger only puts its record into a bounded queue, and a thread writes the file. All users of the
standard module `logging` are included, also `mcp_trio` itself.
"""

import gzip
import json
import logging
import shutil
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from queue import Full, Queue

FILE_BYTES_MAX = 10_000_000
FILES_KEPT_MAX = 5
RECORDS_QUEUED_MAX = 10_000


@contextmanager
def configure_logging(
    path: Path | None,
    *,
    level: str = "INFO",
    file_bytes_max: int = FILE_BYTES_MAX,
    files_kept_max: int = FILES_KEPT_MAX,
    records_queued_max: int = RECORDS_QUEUED_MAX,
) -> Generator[None]:
    """Log warnings to stderr and, if a `path` is given, records from `level` on to that file.

    A file that would grow beyond `file_bytes_max` is compressed and becomes `path.1.gz`;
    `files_kept_max` such files are kept. On exit all records are written, and the earlier logging
    configuration is restored.

    Raises:
        ValueError: There is no such level.
        OSError: The file cannot be opened.
    """
    root = logging.getLogger()
    queue: Queue[logging.LogRecord] = Queue(records_queued_max)
    handler = BoundedQueueHandler(queue)
    with ExitStack() as undo:
        undo.callback(root.setLevel, root.level)
        root.setLevel(level)
        stderr = logging.StreamHandler()
        stderr.setLevel(logging.WARNING)
        stderr.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        outlets: list[logging.Handler] = [stderr]
        if path is not None:
            file = RotatingFileHandler(
                path, maxBytes=file_bytes_max, backupCount=files_kept_max, encoding="utf-8"
            )
            file.setFormatter(JSONLines())
            file.namer = lambda name: f"{name}.gz"
            file.rotator = _compress
            outlets.append(undo.enter_context(closing(file)))
        listener = QueueListener(queue, *outlets, respect_handler_level=True)
        listener.start()
        undo.callback(listener.stop)
        undo.callback(queue.join)  # `stop` needs a free slot
        undo.callback(handler.close)
        root.addHandler(handler)
        undo.callback(root.removeHandler, handler)
        yield


class BoundedQueueHandler(QueueHandler):
    """A handler that drops records while its queue is full, and logs how many."""

    def __init__(self, queue: Queue[logging.LogRecord]) -> None:
        super().__init__(queue)
        self._records = queue
        self._dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it if the queue is full; first log how many were dropped."""
        try:
            if self._dropped:
                self._records.put_nowait(self._dropped_record())
                self._dropped = 0
            self._records.put_nowait(record)
        except Full:
            self._dropped += 1

    def close(self) -> None:
        """Queue a record about the last dropped records, waiting for a free place."""
        if self._dropped:
            self._records.put(self._dropped_record())
            self._dropped = 0
        super().close()

    def _dropped_record(self) -> logging.LogRecord:
        message = f"{self._dropped} records were dropped: the log file cannot keep up"
        loss = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
        return logging.makeLogRecord({**loss, "msg": message})


class JSONLines(logging.Formatter):
    """A formatter that makes one JSON object a line, for log collectors and `jq`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON, on one line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": time, "level": record.levelname, "logger": record.name}
        return json.dumps({**line, "text": record.getMessage()}, ensure_ascii=False)


def _compress(source: str, target: str) -> None:
    with Path(source).open("rb") as plain, gzip.open(target, "wb") as packed:
        shutil.copyfileobj(plain, packed)
    Path(source).unlink()
