"""The audit log: a line for each use of a tool, resource, prompt or model, in a chain of digests.

Each line has the digest of the line before it, and its own, so that a line which was removed,
changed or moved breaks the chain. With a key the digests are HMACs (RFC 2104), which cannot be made
without the key. Without a key the chain finds damage and careless changes, but a person who can
write the file can compute all digests again.

A chain cannot show that its end was cut off. Therefore the file PATH.head has the number and the
digest of the last line. If an attacker can replace both files, with those of an earlier time, the
cut is not found: keep copies of the head elsewhere.

A full file becomes PATH.1, PATH.2 and so on, the oldest first, and the chain goes on in a new file.
The first complete line of each file has the format, so that a check can begin there when older
files were moved away.
"""

import hashlib
import hmac
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import attrs
import msgspec

from mcp_trio._journal.redaction import KEY_BYTES, Redaction, Redactor
from mcp_trio._observers.request_log import facts_of, path_for_process, rejection_facts
from mcp_trio._session.observing import (
    Activity,
    End,
    EndHttp,
    HttpActivity,
    HttpOutcome,
    Outcome,
)
from mcp_trio._system import NO_FOLLOW, WRITE_FLAGS, try_lock
from mcp_trio.errors import RecordingError

logger = logging.getLogger("mcp_trio")

FORMAT: Final = "mcp_trio audit 1"
HEAD_SUFFIX: Final = ".head"

# The methods by which the data and the model of a user are used.
_METHODS: Final = frozenset(
    {
        *("tools/call", "resources/read", "resources/subscribe", "prompts/get"),
        *("sampling/createMessage", "elicitation/create", "roots/list"),
    }
)

_DENIED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_DENIED_SECONDS: Final = 1.0  # for one line about denied requests

_BEFORE_FIRST: Final = "0" * 64
_DIGEST: Final = b',"digest":"'
_ARGUMENTS_BYTES_MAX: Final = 16_384
_TAIL_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 256
_KEY_BYTES_MIN: Final = 16
_OPEN_FLAGS: Final = os.O_RDWR | os.O_CREAT | NO_FOLLOW | WRITE_FLAGS


class _Line(msgspec.Struct):
    """The members of a line by which the chain is checked and continued."""

    n: int
    previous: str
    digest: str
    format: str | None = None
    has_key: bool = False


class _Head(msgspec.Struct):
    """The content of the head: the number of lines, and the digest of the last one."""

    lines: int
    digest: str
    mac: str


_Decoded = TypeVar("_Decoded", _Line, _Head)


def _digest(content: bytes, key: bytes | None) -> str:
    if key is None:
        return hashlib.sha256(content).hexdigest()
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def _head_mac(lines: int, digest: str, key: bytes | None) -> str:
    return _digest(f"head {lines} {digest}".encode(), key)


def _content_of(line: bytes) -> bytes:
    """Return the part of a line of which it has the digest."""
    return line.rpartition(_DIGEST)[0]


def _check_key(_log: object, _field: object, key: bytes | None) -> None:
    if key is not None and len(key) < _KEY_BYTES_MIN:
        raise ValueError(f"the key of an audit log needs at least {_KEY_BYTES_MIN} bytes")


@attrs.define(eq=False)
class AuditLog:
    """An observer that appends a line to an audit log for each use of data or of the model.

    A line has the principal, the method, the name of the tool or prompt or the URI of the resource,
    the arguments with secrets replaced, the decision ("allowed", "denied" by an access rule, or
    "rejected" by the protocol, a limit or a user), the outcome, and the record, if the session is
    recorded. Questions to the client, such as sampling, have lines too. A line is written when the
    request has ended, before its response is sent.

    A request over HTTP that is denied before it reaches a session, with status 401 or 403, has a
    line as well; of many in a second one, which has their number: clients without a token cannot
    fill the disk.

    The file is open while a server serves or a client is connected, and belongs to one process. If
    a line cannot be written, the request goes on, an error is logged, and the next line has the
    number of lines that are missing.

    Attributes:
        path: The file, which is created for its owner only; `{pid}` in it stands for the number of
            the process.
        key: The key of the digests, at least 16 bytes; without one, they only find careless
            changes.
        redaction: The secrets to replace; with None, lines have no arguments.
        sync: Whether each line is forced to the disk, which takes some milliseconds of the event
            loop.
        file_bytes_max: The size from which on a file is closed and becomes `PATH.1`, `PATH.2` and
            so on, the oldest first. These are never removed.

    Raises:
        ValueError: The key is too short, a rule of the redaction is invalid, or `file_bytes_max` is
            less than 1.
        OSError: The file cannot be opened, when the server begins to serve.
        RecordingError: The file is no audit log, its end or its head is missing, it was written
            with another key, or another process writes it.
    """

    path: str | os.PathLike[str]
    key: bytes | None = attrs.field(default=None, kw_only=True, repr=False, validator=_check_key)
    redaction: Redaction | None = attrs.field(factory=Redaction, kw_only=True)
    sync: bool = attrs.field(default=False, kw_only=True)
    file_bytes_max: int = attrs.field(
        default=100_000_000, kw_only=True, validator=attrs.validators.ge(1)
    )
    _open_count: int = attrs.field(default=0, init=False)
    _file: int = attrs.field(default=-1, init=False)
    _head: int = attrs.field(default=-1, init=False)
    _size: int = attrs.field(default=0, init=False)
    _has_line: bool = attrs.field(default=False, init=False)  # the file has a complete line
    _full_at: int = attrs.field(default=0, init=False)
    _lines: int = attrs.field(default=0, init=False)
    _last_digest: str = attrs.field(default=_BEFORE_FIRST, init=False)
    _missing: int = attrs.field(default=0, init=False)
    _ends_within_line: bool = attrs.field(default=False, init=False)
    _denied: int = attrs.field(default=0, init=False)
    _denied_at: float = attrs.field(default=-math.inf, init=False)
    _redactor: Redactor | None = attrs.field(default=None, init=False)
    _schemas: dict[str, Any] = attrs.field(factory=dict[str, Any], init=False)

    def __attrs_post_init__(self) -> None:
        self._full_at = self.file_bytes_max
        self._redactor = self._new_redactor()

    def _new_redactor(self) -> Redactor | None:
        if self.redaction is None:
            return None
        key = self.redaction.key or secrets.token_bytes(KEY_BYTES)
        return Redactor(self.redaction, key=key, schemas=self._schemas)

    # The file.

    def __enter__(self) -> Self:
        if not self._open_count:
            self._open(path_for_process(self.path))
        self._open_count += 1
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file, if nothing else uses it any more."""
        self._open_count -= 1
        if not self._open_count:
            # With the denied requests that no line has counted.
            requests = {"requests_denied": self._denied} if self._denied else {}
            self._append({"event": "close", **requests})
            self._close()

    def _open(self, path: str) -> None:
        try:
            self._open_file(path)
            self._head = os.open(path + HEAD_SUFFIX, _OPEN_FLAGS, 0o600)
            # The head is locked as well, for the moment in which a full file is replaced.
            _lock(self._head, path)
            self._continue(path)
        except BaseException:
            self._close()
            raise
        self._append({"event": "open", "pid": os.getpid()})

    def _open_file(self, path: str) -> None:
        descriptor = os.open(path, _OPEN_FLAGS | os.O_APPEND, 0o600)
        try:
            _lock(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        self._file, self._size = descriptor, os.fstat(descriptor).st_size

    def _close(self) -> None:
        for descriptor in (self._file, self._head):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._head = -1

    def _continue(self, path: str) -> None:
        """Find the last line of an existing file, so that the chain goes on."""
        head = _decoded(os.read(self._head, _HEAD_BYTES), _Head)
        self._lines, self._last_digest = 0, _BEFORE_FIRST
        self._has_line = self._ends_within_line = False
        incomplete: list[bytes] = []  # the lines of files that have no complete one
        for each in reversed(files_of_log(path)):
            with each.open("rb") as file:
                file.seek(max(0, each.stat().st_size - _TAIL_BYTES))
                texts = file.read().split(b"\n")
            if each == Path(path):
                self._ends_within_line = bool(texts[-1])
            # There may be several incomplete lines at the end.
            lines = ((text, _decoded(text, _Line)) for text in reversed(texts))
            last, line = next(((text, line) for text, line in lines if line), (b"", None))
            if line is None:  # A new file follows the last one that was full.
                incomplete += filter(None, texts)
                continue
            if line.digest != _digest(_content_of(last), self.key):
                raise RecordingError(
                    f"cannot append to {path}: its last line was changed, or has another key;"
                    f" see `mcp-trio check {path}`"
                )
            self._lines, self._last_digest = line.n, line.digest
            self._has_line = each == Path(path)
            break
        # After a loss of power, the part of a line that did not reach the disk may be null bytes.
        begin = b'{"n":%d,"time":"' % (self._lines + 1)
        cut = (text.rstrip(b"\0") for text in incomplete)
        if not all(text.startswith(begin[: len(text)]) for text in cut):
            raise RecordingError(f"cannot append to {path}: it is not an audit log")
        problem = ""
        if head is None and self._lines > 1:  # the head of the first line may not be written yet
            problem = f"its head {path}{HEAD_SUFFIX} is missing or damaged"
        elif head is not None and head.mac != _head_mac(head.lines, head.digest, self.key):
            problem = f"its head {path}{HEAD_SUFFIX} was changed, or has another key"
        elif head is not None and head.lines > self._lines:
            problem = f"it ends at line {self._lines} of {head.lines}"
        if problem:
            raise RecordingError(
                f"cannot append to {path}: {problem}; keep both files for the inquiry, and write to"
                " a new file"
            )
        if self._ends_within_line:
            logger.warning(
                "the audit log %s ends within line %d, because its process was killed, the power"
                " failed, or the disk was full; the incomplete line stays in the file, and the"
                " chain goes on after it",
                path,
                self._lines + 1,
            )

    def _append(self, members: dict[str, Any]) -> None:
        number = self._lines + 1
        line = {"n": number, "time": datetime.now(UTC).isoformat(timespec="microseconds")}
        if not self._has_line:
            line |= {"format": FORMAT, "has_key": self.key is not None}
        if self._missing:
            line["missing"] = self._missing
        line |= members | {"previous": self._last_digest}
        content = msgspec.json.encode(line)[:-1]
        digest = _digest(content, self.key)
        data = content + _DIGEST + digest.encode() + b'"}\n'
        if self._ends_within_line:  # Start a new line, so that the incomplete one stays apart.
            data = b"\n" + data
        try:
            if self._file < 0:  # it could not be created
                self._open_file(path_for_process(self.path))
            written = os.write(self._file, data)
            self._size += written
            self._ends_within_line = written < len(data)
            if written < len(data) - 1:  # A line that lacks only its LF is complete.
                raise OSError("the disk is full")  # noqa: TRY301
        except (OSError, RecordingError) as error:
            self._missing += 1
            logger.error("a line of the audit log %s is lost: %s", self.path, error)  # noqa: TRY400
            return
        self._lines, self._last_digest, self._missing = number, digest, 0
        self._has_line = True
        head = _Head(number, digest, _head_mac(number, digest, self.key))
        try:
            os.lseek(self._head, 0, os.SEEK_SET)
            os.write(self._head, msgspec.json.encode(head).ljust(_HEAD_BYTES - 1) + b"\n")
            # The line is in the file even if this fails, so the chain goes on after it.
            if self.sync:
                os.fsync(self._file)
        except OSError as error:
            text = "the audit log %s, or its head, cannot be written to the disk: %s"
            logger.error(text, self.path, error)  # noqa: TRY400  no traceback is needed
        if self._size >= self._full_at:
            self._begin_file(path_for_process(self.path))

    def _begin_file(self, path: str) -> None:
        """Let the next line begin a new file, or go on in this one if it cannot be renamed."""
        os.close(self._file)
        self._file = -1
        problem: Exception | None = None
        try:
            *_, last = [0, *_numbers_of_full_files(path)]
            Path(path).rename(f"{path}.{last + 1}")
            self._size, self._has_line, self._ends_within_line = 0, False, False
        except OSError as error:
            problem = error
        try:
            self._open_file(path)
        except (OSError, RecordingError) as error:  # the next line tries again
            problem = error
        self._full_at = self.file_bytes_max
        if problem is not None:
            text = "the audit log %s is full, and cannot go on in a new file: %s"
            logger.error(text, self.path, problem)
            self._full_at += self._size

    # The lines.

    def begin(self, activity: Activity) -> End | None:
        """Return the function that appends the line when the request or call has ended."""
        if activity.kind == "session":
            registry = getattr(activity.session.application, "registry", None)
            if registry is not None and self._redactor is not None:
                schemas = registry.tool_schemas()
                self._redactor.add_schemas(schemas)
                # Those of all servers that share the log, for a redactor that takes its place.
                self._schemas |= schemas
            return None
        if activity.kind == "effect" or activity.name not in _METHODS:
            return None
        return partial(self._log, activity)

    def begin_http(self, activity: HttpActivity) -> EndHttp:
        """Return the function that appends a line if the request over HTTP is denied."""
        return partial(self._log_denied, activity)

    def _log_denied(self, activity: HttpActivity, outcome: HttpOutcome) -> None:
        if outcome.status not in _DENIED or not outcome.rejection:
            return
        self._denied += 1
        now = time.monotonic()
        if now - self._denied_at < _DENIED_SECONDS:
            return
        self._denied_at = now
        facts = rejection_facts(activity, outcome)
        members = {"event": "http request", **facts, "decision": "denied", "outcome": "denied"}
        if self._denied > 1:
            members["requests"] = self._denied
        self._denied = 0
        self._append(members)

    def _log(self, activity: Activity, outcome: Outcome) -> None:
        is_rejected = outcome.error in ("protocol", "limited")
        decision = "rejected" if is_rejected else "allowed"
        members: dict[str, Any] = {
            "event": "asked the peer" if activity.kind == "call" else "request",
            **facts_of(activity),
            "decision": "denied" if activity.is_denied else decision,
            "outcome": outcome.error or "ok",
        }
        recording = activity.recording
        if recording is not None:
            members["recording"] = recording.name
        if outcome.asked:
            members["asked"] = [*outcome.asked]
        if (arguments := self._arguments(activity)) is not None:
            members["arguments"] = arguments
        self._append(members)

    def _arguments(self, activity: Activity) -> Any:
        """Return the arguments of a tool or prompt with secrets replaced; None if there are none.

        Arguments that are too long, or cannot be redacted, are replaced by their size.
        """
        given: object = getattr(activity.params, "arguments", None)
        if not given or self._redactor is None:
            return None
        params = {"name": activity.target, "arguments": given}
        message = msgspec.json.encode({"method": activity.name, "id": 0, "params": params})
        if len(message) > _ARGUMENTS_BYTES_MAX:
            return {"bytes": len(message)}
        # Redaction fails if a function of the user raises, or if there are too many secrets.
        with suppress(Exception):
            return _redacted_arguments(self._redactor, message)
        # The redactor counts the secrets of all lines. A new one, for this line alone, may succeed.
        with suppress(Exception):
            self._redactor = self._new_redactor()
            return _redacted_arguments(self._redactor, message)
        return {"bytes": len(message)}


def _lock(descriptor: int, path: str) -> None:
    if not try_lock(descriptor):
        raise RecordingError(
            f"cannot append to {path}: another process writes this audit log;"
            " give each process its own, with {pid} in the name"
        )


def _redacted_arguments(redactor: Redactor | None, message: bytes) -> Any:
    assert redactor is not None
    return msgspec.json.decode(redactor.redact("in", message))["params"].get("arguments")


def _decoded(text: bytes, kind: type[_Decoded]) -> _Decoded | None:
    """Return the members of a line, or of the head; None if it is damaged."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


# Checking.


@attrs.define
class AuditReport:
    """The result of a check.

    Attributes:
        lines: The number of lines.
        problems: The faults of the log, in order.
        notes: What could not be checked, and why.
    """

    lines: int = 0
    problems: list[str] = attrs.field(factory=list[str])
    notes: list[str] = attrs.field(factory=list[str])


def is_audit_log(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins like an audit log, or has the head of one."""
    try:
        with Path(path).open("rb") as file:
            begin = file.read(_HEAD_BYTES)
    except OSError:
        return False
    return f'"format":"{FORMAT}"'.encode() in begin or Path(f"{path}{HEAD_SUFFIX}").exists()


def check_audit_log(path: str | os.PathLike[str], *, key: bytes | None = None) -> AuditReport:
    """Check the digests, the numbers and the order of the lines of an audit log, and its end.

    Args:
        path: The log; its head is in `PATH.head`, and its earlier files in `PATH.1` and so on.
        key: The key with which it was written.

    Raises:
        OSError: The file cannot be read.
    """
    report = AuditReport()
    last = _check_lines(files_of_log(path) or [Path(path)], key, report)
    _check_head(f"{os.fspath(path)}{HEAD_SUFFIX}", last, key, report)
    return report


def _numbers_of_full_files(path: str | os.PathLike[str]) -> list[int]:
    """Return the numbers of the files of a log that were full, in order."""
    name = Path(path).name + "."
    names = (each.name for each in Path(path).parent.iterdir())
    endings = (each.removeprefix(name) for each in names if each.startswith(name))
    return sorted(int(each) for each in endings if each.isascii() and each.isdecimal())


def files_of_log(path: str | os.PathLike[str]) -> list[Path]:
    """Return the existing files of an audit log, the oldest first."""
    files = [Path(f"{path}.{number}") for number in _numbers_of_full_files(path)]
    return [*files, *([Path(path)] if Path(path).exists() else [])]


def _lines_of_log(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yield each line with its position for a reader."""
    for path in files:
        name = "the file" if len(files) == 1 else path.name
        with path.open("rb") as file:
            for position, raw in enumerate(file, 1):
                yield f"line {position} of {name}", raw.removesuffix(b"\n")


def _check_lines(files: Sequence[Path], key: bytes | None, report: AuditReport) -> _Line | None:
    expected, previous = 1, _BEFORE_FIRST
    last: _Line | None = None
    checks_digests = True
    for position, text in _lines_of_log(files):
        report.lines += 1
        line = _decoded(text, _Line)
        if line is None:
            report.problems.append(f"{position} is damaged, or incomplete")
            continue
        if line.format is not None and line.has_key and key is None and checks_digests:
            checks_digests = False
            report.notes.append("changed lines were not looked for: the log needs --key FILE")
        if last is None and line.n > 1 and line.format is not None:
            # The first complete line of a file that followed another one.
            report.notes.append(f"{_lines_are(1, line.n - 1)} in earlier files, which are not here")
            expected, previous = line.n, line.previous
        if checks_digests and line.digest != _digest(_content_of(text), key):
            report.problems.append(f"line {line.n} was changed")
        if line.n > expected:
            missing = _lines_are(expected, line.n - 1)
            report.problems.append(f"{missing} missing before line {line.n}")
        elif line.n < expected:
            report.problems.append(f"line {line.n} is out of order, after line {expected - 1}")
        elif line.previous != previous:
            report.problems.append(
                f"line {line.n - 1} was replaced: line {line.n} followed another"
            )
        if line.n >= expected:
            expected, previous, last = line.n + 1, line.digest, line
    if last is not None and not key and checks_digests:
        report.notes.append("the log has no key: a person who can write it can make a valid chain")
    return last


def _lines_are(first: int, last: int) -> str:
    """Return these lines as the subject of a sentence, with its verb."""
    return f"line {first} is" if first == last else f"lines {first} to {last} are"


def _check_head(path: str, last: _Line | None, key: bytes | None, report: AuditReport) -> None:
    try:
        head = _decoded(Path(path).read_bytes(), _Head)
    except FileNotFoundError:
        report.notes.append(f"lines cut off at the end were not looked for: there is no {path}")
        return
    lines = 0 if last is None else last.n
    if head is None:
        report.problems.append(f"{path} is damaged: it does not tell where the log ends")
    elif key is not None and head.mac != _head_mac(head.lines, head.digest, key):
        report.problems.append(f"{path} was changed, or has another key")
    elif head.lines > lines:
        report.problems.append(f"{_lines_are(lines + 1, head.lines)} cut off at the end")
    elif head.lines == lines and last is not None and head.digest != last.digest:
        report.problems.append(f"line {lines} was replaced: {path} has another digest")
    elif head.lines < lines - 1:
        report.problems.append(f"{path} is older than the log: it ends at line {head.lines}")
