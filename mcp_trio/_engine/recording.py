"""How a session comes to be recorded: the file, its first record, the sequencer that fills it."""

import itertools
import os
import re
import secrets
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import trio

from mcp_trio._engine.sequencer import Recording
from mcp_trio._errors import RecordingError
from mcp_trio._journal.records import OpenBody, encode_body
from mcp_trio._limits import DEFAULT_LIMITS, Limits
from mcp_trio._recorder.recorder import Recorder
from mcp_trio._recorder.sink import FileSink

SUFFIX: Final = ".mcprec.jsonl"
_NS_PER_SECOND: Final = 1_000_000_000
_session_numbers = itertools.count(1)


def start_recording(
    path: str | os.PathLike[str],
    *,
    role: str,
    transport: str,
    name: str,
    version: str,
    tools_digest: str | None = None,
    lifespan: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Recording:
    """A sequencer that records a session to `path`, from now on; to be given to one `Session`.

    A `path` that is a folder, or ends with a slash, gets a new file for this session, named after
    the server, the time and the process. The file may be read by its owner only.

    Raises:
        RecordingError: The file cannot be made.
    """
    started = datetime.now(UTC)
    target = _target(path, name, started)
    try:
        sink = FileSink(target)
    except OSError as error:
        raise RecordingError(f"cannot record to {target}: {error.strerror}") from error
    clock = _ns_since_now()
    recorder = Recorder(sink, clock_ns=clock, limits=limits)
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
    return Recording(recorder, clock)


def _ns_since_now() -> Callable[[], int]:
    """A clock of nanoseconds since now, on the clock of the Trio run."""
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
