"""Logging for servers that run for months: rotated, compressed, without blocking the event loop.

A logger only puts its record into a bounded queue, and a thread writes the file. All users of the
standard module `logging` are included, also `mcp_trio` itself. structlog is not needed for that: of
it, only the formatter would be used, and that is a call of msgspec.
"""

import copy
import gzip
import logging
import os
import shutil
import sys
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal, Self

import attrs
import msgspec

from mcp_trio._journal.texts import shortened
from mcp_trio._session.observing import (
    CURRENT_ACTIVITY,
    Activity,
    End,
    EndHttp,
    HttpActivity,
    HttpOutcome,
    Outcome,
)

logger = logging.getLogger("mcp_trio")

_REQUESTS: Final = logging.getLogger("mcp_trio.requests")

PEER_CHARS_MAX: Final = 1000
"""The characters of a text that the peer chooses, such as the name of a tool."""

# The members of a line that come from the request during which it was logged.
_FACTS: Final = "mcp_trio_facts"


def facts_of(activity: Activity) -> dict[str, Any]:
    """Return the members of a log line that name a request; long texts of the peer are cut."""
    facts = {
        "session": activity.session_id or f"{id(activity.session):x}",
        "request": _bounded(activity.request_id),
        "method": _bounded(activity.name),
        "target": _bounded(activity.target),
        "principal": activity.principal,
        "trace": activity.trace_id,
        "record": activity.record,
    }
    return {name: value for name, value in facts.items() if value not in ("", None)}


def _bounded(value: str | int | None) -> str | int | None:
    return shortened(value, PEER_CHARS_MAX) if isinstance(value, str) else value


def path_for_process(path: str | os.PathLike[str]) -> str:
    """Return a path in which `{pid}` is replaced by the number of this process."""
    return os.fspath(path).replace("{pid}", str(os.getpid()))


_AT_LEAST_1: Final = attrs.validators.ge(1)


@attrs.define(eq=False)
class RequestLog:
    """An observer that logs a line for each request, and writes all logs of the program to a file.

    The line is logged by the logger `mcp_trio.requests`: the session, the id, the method, the name
    of the tool, the principal, the outcome, the milliseconds, the bytes of request and response,
    the trace id, and the number of the record if the session is recorded. Lines that a handler logs
    have the same members as far as they are known. Arguments and results are not logged. A request
    over HTTP that is rejected before it reaches a session has a line with its status and the
    reason.

    The file is open while a server serves, or a client is connected. It is written by a thread; if
    that cannot keep up, or the disk is full, lines are dropped, and their number is logged.

    Attributes:
        path: The file; with None the lines only go to the handlers of the application. `{pid}` in
            it stands for the number of the process, as worker processes cannot share a file.
        format: "json" for one JSON object a line, or "text".
        level: The least severe level that is written to the file.
        file_bytes_max: The size from which on the file is compressed and becomes `path.1.gz`. If
            that fails, an error is logged, and the file takes as many bytes more.
        files_kept_max: The number of compressed files that are kept.
        lines_queued_max: The number of lines that may wait for the thread.

    Raises:
        ValueError: There is no such format or level, or a maximum is less than 1.
        OSError: The file cannot be opened, when the server begins to serve.
    """

    path: str | os.PathLike[str] | None = None
    format: Literal["json", "text"] = attrs.field(
        default="json", kw_only=True, validator=attrs.validators.in_(("json", "text"))
    )
    level: str = attrs.field(
        default="INFO", kw_only=True, validator=attrs.validators.in_(logging.getLevelNamesMapping())
    )
    file_bytes_max: int = attrs.field(default=10_000_000, kw_only=True, validator=_AT_LEAST_1)
    files_kept_max: int = attrs.field(default=5, kw_only=True, validator=_AT_LEAST_1)
    lines_queued_max: int = attrs.field(default=10_000, kw_only=True, validator=_AT_LEAST_1)
    _open_count: int = attrs.field(default=0, init=False)
    _opened: ExitStack = attrs.field(factory=ExitStack, init=False)

    def begin(self, activity: Activity) -> End | None:
        """Return the function that logs the request when it ends; None for other activities."""
        if activity.kind != "request":
            return None
        return partial(_log_request, activity)

    def begin_http(self, activity: HttpActivity) -> EndHttp:
        """Return the function that logs the request over HTTP if it is rejected."""
        return partial(_log_rejection, activity)

    def __enter__(self) -> Self:
        if not self._open_count and self.path is not None:
            self._opened = self._open(Path(path_for_process(self.path)))
        self._open_count += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Write the lines that wait, and close the file, if nothing else uses it any more."""
        self._open_count -= 1
        if not self._open_count:
            self._opened.close()

    def _open(self, path: Path) -> ExitStack:
        root = logging.getLogger()
        with ExitStack() as undo:
            file = _LogFile(path, bytes_max=self.file_bytes_max, files_kept_max=self.files_kept_max)
            undo.callback(file.close)
            file.setFormatter(JSONLines() if self.format == "json" else TextLines())
            outlets: list[logging.Handler] = [file]
            if not root.handlers:  # Python writes warnings to stderr only if there is no handler.
                stderr = logging.StreamHandler()
                stderr.setLevel(logging.WARNING)
                stderr.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
                outlets.append(stderr)
            queue: SimpleQueue[logging.LogRecord] = SimpleQueue()
            handler = BoundedQueueHandler(queue, self.lines_queued_max)
            handler.setLevel(self.level)
            listener = QueueListener(queue, *outlets, respect_handler_level=True)
            listener.start()
            undo.callback(listener.stop)
            undo.callback(handler.close)
            level = logging.getLevelNamesMapping()[self.level]
            for logger in (root, _REQUESTS):
                if logger.getEffectiveLevel() > level:
                    undo.callback(logger.setLevel, logger.level)
                    logger.setLevel(level)
            root.addHandler(handler)
            undo.callback(root.removeHandler, handler)
            return undo.pop_all()


def _log_request(activity: Activity, outcome: Outcome) -> None:
    ended: dict[str, Any] = {
        "outcome": outcome.error or "ok",
        "ms": round(outcome.seconds * 1000, 3),
        "bytes_in": activity.size_bytes,
        "bytes_out": outcome.size_bytes,
    }
    if outcome.asked:
        ended["asked"] = [*outcome.asked]
    facts = facts_of(activity)
    _REQUESTS.info(
        "%s: %s in %.1f ms",
        f"{facts.get('method', '')} {facts.get('target', '')}".rstrip(),
        ended["outcome"],
        ended["ms"],
        extra={_FACTS: facts | ended},
    )


def rejection_facts(activity: HttpActivity, outcome: HttpOutcome) -> dict[str, Any]:
    """Return the members of a log line about a request over HTTP that was rejected."""
    facts = {
        "http": _bounded(f"{activity.method} {activity.path}"),
        "principal": outcome.principal,
        "trace": activity.trace_id,
        "status": None if outcome.status is None else int(outcome.status),
        "reason": _bounded(outcome.rejection),
    }
    return {name: value for name, value in facts.items() if value not in ("", None)}


def _log_rejection(activity: HttpActivity, outcome: HttpOutcome) -> None:
    if not outcome.rejection:
        return
    facts = rejection_facts(activity, outcome)
    ended = {"outcome": "rejected", "ms": round(outcome.seconds * 1000, 3)}
    _REQUESTS.info(
        "%s: %s, %s",
        facts["http"],
        facts.get("status", "disconnected"),
        facts["reason"],
        extra={_FACTS: facts | ended},
    )


def _loss(message: str) -> logging.LogRecord:
    """Return a record that says how many lines are missing."""
    loss = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}
    return logging.makeLogRecord({**loss, "msg": message})


class BoundedQueueHandler(QueueHandler):
    """A handler that drops records while its queue is full, and logs how many."""

    def __init__(self, queue: "SimpleQueue[logging.LogRecord]", records_max: int) -> None:
        super().__init__(queue)
        self._records = queue
        self._records_max = records_max
        self._dropped = 0

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a copy with the facts about the current request, which the thread cannot know."""
        record = copy.copy(record)  # other handlers of the program get the original
        if not hasattr(record, _FACTS):
            activity = CURRENT_ACTIVITY.get()
            if activity is not None and activity.outer is not None:
                activity = activity.outer
            if activity is not None:
                record.__dict__[_FACTS] = facts_of(activity)
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.msg, record.args, record.exc_info = record.getMessage(), None, None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it if the queue is full; first log how many were dropped."""
        if self._records.qsize() >= self._records_max:
            self._dropped += 1
            return
        self._queue_number_of_dropped()
        self._records.put_nowait(record)

    def close(self) -> None:
        """Queue a record about the last dropped records."""
        self._queue_number_of_dropped()
        super().close()

    def _queue_number_of_dropped(self) -> None:
        if self._dropped:
            message = f"{self._dropped} lines were dropped: the log file cannot keep up"
            self._records.put_nowait(_loss(message))
            self._dropped = 0


class _LogFile(RotatingFileHandler):
    """A log file that is compressed when it is full; the numbers of the kept files are shifted.

    While it cannot be written, lines are lost. The first loss is logged, for other handlers, and a
    line in the file has the number of lost lines as soon as it can be written again.
    """

    def __init__(self, path: Path, *, bytes_max: int, files_kept_max: int) -> None:
        super().__init__(path, maxBytes=bytes_max, backupCount=files_kept_max, encoding="utf-8")
        self._bytes_max = bytes_max
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; after others that were lost, also their number."""
        lost = self._lost
        super().emit(record)
        if lost and self._lost == lost:
            self._lost = 0
            super().emit(_loss(f"up to {lost} lines were lost: the log file could not be written"))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Count a record that cannot be written; the base class prints a traceback for each."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._lost += 1
        if self._lost == 1:
            text = "the log file %s cannot be written, and loses lines: %s"
            logger.error(text, self.baseFilename, error)

    def rotation_filename(self, default_name: str) -> str:
        """Return the name of a kept file."""
        return f"{default_name}.gz"

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: ARG002, N802
        """Return whether the file is full; the base class would format each record for that."""
        return self.stream is not None and self.stream.tell() >= self.maxBytes

    def doRollover(self) -> None:  # noqa: N802
        """Begin a new file, or go on in this one if it cannot be compressed, and log an error.

        It is compressed before the base class shifts the kept files, so that they remain if that
        fails, for example because the disk is full.
        """
        compressed = f"{self.baseFilename}.tmp.gz"
        size_bytes = 0 if self.stream is None else self.stream.tell()
        try:
            with Path(self.baseFilename).open("rb") as plain, gzip.open(compressed, "wb") as packed:
                shutil.copyfileobj(plain, packed)
        except OSError as error:
            with suppress(OSError):
                Path(compressed).unlink()
            self.maxBytes = size_bytes + self._bytes_max
            text = "the log file %s is full, and cannot be compressed: %s"
            logger.error(text, self.baseFilename, error)  # noqa: TRY400  no traceback is needed
            return
        self.maxBytes = self._bytes_max
        super().doRollover()

    def rotate(self, source: str, dest: str) -> None:
        """Replace the full file by its compressed form."""
        Path(f"{source}.tmp.gz").rename(dest)
        Path(source).unlink()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _encodable(text: str) -> str:
    """Return a text that UTF-8 can encode: the names of files may have lone surrogates."""
    return text.encode(errors="backslashreplace").decode()


def _time_of(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class JSONLines(logging.Formatter):
    """A formatter that makes one JSON object a line, for log collectors and `jq`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON, on one line."""
        line: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname,
            "logger": record.name,
            "text": _encodable(record.getMessage()),
            **getattr(record, _FACTS, {}),
        }
        if record.exc_text:
            line["traceback"] = _encodable(record.exc_text)
        return _json(line)


class TextLines(logging.Formatter):
    """A formatter that makes one line for each record, with its facts at the end."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line; only a traceback is on further lines."""
        facts: dict[str, Any] = getattr(record, _FACTS, {})
        # A text of the client must not begin another line.
        text = _json(_encodable(record.getMessage()))[1:-1]
        parts = [_time_of(record), record.levelname, record.name, text]
        parts += [f"{name}={_json(value)}" for name, value in facts.items()]
        line = " ".join(parts)
        return f"{line}\n{_encodable(record.exc_text)}" if record.exc_text else line
