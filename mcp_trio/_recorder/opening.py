"""How a recording begins: its file, its clock, its first record."""

import itertools
import os
import platform
import re
import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Required, TypedDict, Unpack

import trio

from mcp_trio._errors import RecordingError
from mcp_trio._journal.records import OpenBody
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._recorder.names import COMPRESSED_SUFFIX, SUFFIX, later_names
from mcp_trio._recorder.options import RecordOptions, RecordTo, SharedRecording, options_of
from mcp_trio._recorder.recorder import Recorder, Redacts
from mcp_trio._recorder.segments import MeasuredSink, Segments
from mcp_trio._recorder.sink import FileSink, is_free_for_segment
from mcp_trio._version import __version__

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
    record: RecordTo, *, role: str, transport: str, name: str, **facts: Unpack[Facts]
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
    from mcp_trio._journal.redaction import KEY_BYTES, Redactor

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
    from mcp_trio._recorder.compressed import CompressedSink

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
