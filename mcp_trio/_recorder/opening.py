"""How a recording begins: its file, its clock, its first record."""

import itertools
import os
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from mcp_trio._errors import RecordingError
from mcp_trio._journal.records import OpenBody, encode_body
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._recorder.recorder import Recorder
from mcp_trio._recorder.sink import COMPRESSED_SUFFIX, FileSink

SUFFIX: Final = ".mcprec.jsonl"
_NS_PER_SECOND: Final = 1_000_000_000
_session_numbers = itertools.count(1)


def open_recorder(
    path: str | os.PathLike[str],
    *,
    role: str,
    transport: str,
    name: str,
    version: str,
    tools_digest: str | None = None,
    lifespan: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Recorder:
    """A recorder for one session, which begins now; `open` is written.

    A `path` that is a folder, or ends with a slash, gets a new file for this session, named after
    `name`, the time and the process. The file may be read by its owner only. Times count from now,
    on the clock of the Trio run.

    Raises:
        RecordingError: The file cannot be made, or its name says that it is compressed.
    """
    started = datetime.now(UTC)
    target = _target(path, name, started)
    recorder = Recorder(_sink(target), clock_ns=_ns_since_now(), limits=limits)
    body = OpenBody(
        transport=transport,
        role=role,
        name=name,
        version=version,
        tools_digest=tools_digest,
        seed=secrets.randbits(63),
        started=started.isoformat(timespec="microseconds"),
        lifespan=lifespan,
    )
    recorder.record("open", encode_body(body))
    recorder.flush()
    return recorder


def _sink(target: Path) -> FileSink:
    if target.suffix == COMPRESSED_SUFFIX:
        raise RecordingError(
            f"cannot record to {target}: recordings are written uncompressed; compress it later"
        )
    try:
        return FileSink(target)
    except OSError as error:
        raise RecordingError(f"cannot record to {target}: {error.strerror}") from error


def _ns_since_now() -> Callable[[], int]:
    now = trio.lowlevel.current_clock().current_time
    start = now()
    return lambda: int((now() - start) * _NS_PER_SECOND)


def _target(path: str | os.PathLike[str], name: str, started: datetime) -> Path:
    text = os.fspath(path)
    if not (text.endswith("/") or Path(text).is_dir()):
        return Path(text)
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name)
    stamp = started.strftime("%Y%m%dT%H%M%SZ")
    return Path(text) / f"{plain}-{stamp}-{os.getpid()}-{next(_session_numbers)}{SUFFIX}"
