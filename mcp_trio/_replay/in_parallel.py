"""Replaying many recordings in parallel processes, and what made them differ.

A change of the code makes many recordings differ at the same place. `cause_of` gives such
divergences the same text, so that a summary has one line for one root cause.
"""

import multiprocessing
import os
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Final, Literal

import msgspec

from mcp_trio._replay.replay import Mode, replay
from mcp_trio._replay.targets import TargetError, fresh_server
from mcp_trio.errors import NothingCompared, RecordingError, ReplayDivergence

_CHUNK: Final = 8
_REQUEST: Final = re.compile(r'^replay diverged at record [^,]*, (\S+(?: "[^"]*")?)', re.MULTILINE)
_FACT: Final = re.compile(r"^  (line|changed|cause|meaning): +(.*)$", re.MULTILINE)
# A cause that is possible for each recording, and differs between them by a number.
_OTHER_SESSIONS: Final = re.compile(r"[0-9]+ other sessions? ")

Status = Literal["same", "diverged", "nothing", "unusable"]


class ReplayedFile(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of the replay of one recording.

    Attributes:
        file: The recording.
        status: "same"; "diverged"; "nothing", if no request was compared; or "unusable".
        seconds: How long the replay took.
        requests: The number of requests that were handled.
        text: The text of the error; empty if the replay is the same.
        cause: The same text for all divergences with the same cause.
    """

    file: str
    status: Status
    seconds: float
    requests: int = 0
    text: str = ""
    cause: str = ""


def cause_of(error: Exception) -> str:
    """Return what the texts of divergences with the same cause have in common.

    That is the request, the line of the handler, and the paths of the values that changed.
    """
    text = str(error)
    if not isinstance(error, ReplayDivergence):
        return text
    request = _REQUEST.search(text)
    facts: dict[str, list[str]] = {}
    for name, value in _FACT.findall(text):
        facts.setdefault(name, []).append(value)
    causes = [text for text in facts.get("cause", []) if not _OTHER_SESSIONS.match(text)]
    changed = [value.partition(": ")[0] for value in facts.get("changed", [])]
    parts = [
        request[1] if request is not None else f"record of kind {error.kind}",
        *facts.get("line", [])[:1],
        *causes[:1],
        f"changed: {', '.join(changed)}" if changed else "",
    ]
    if len([part for part in parts if part]) == 1:
        parts += facts.get("meaning", [])[:1]
    return "; ".join(part for part in parts if part)


def replay_in_parallel(
    files: Sequence[str], target: str, *, mode: Mode = "strict", processes: int | None = None
) -> Iterator[ReplayedFile]:
    """Replay recordings in processes, and yield each outcome, in the order of the files.

    Args:
        files: The recordings.
        target: The server; see `import_server`.
        mode: As of `replay`.
        processes: The number of processes; by default one for each processor.

    Raises:
        TargetError: The target names no server, or cannot be imported.
    """
    with fresh_server(target):  # an error is reported here rather than in each process
        pass
    work = partial(_replay_file, target, mode)
    number = max(min(processes or os.cpu_count() or 1, len(files)), 1)
    # A process that is forked from one with threads may hang.
    context: Any = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=context) as pool:
        yield from pool.map(work, files, chunksize=min(_CHUNK, len(files) // number or 1))


def _replay_file(target: str, mode: Mode, file: str) -> ReplayedFile:
    begin = time.perf_counter()

    def ended(status: Status, **facts: Any) -> ReplayedFile:
        seconds = time.perf_counter() - begin
        return ReplayedFile(file=file, status=status, seconds=seconds, **facts)

    try:
        with fresh_server(target) as server:
            report = replay(file, server, mode=mode)
    except ReplayDivergence as error:
        return ended("diverged", text=str(error), cause=cause_of(error))
    except NothingCompared as error:
        return ended("nothing", text=str(error), cause=str(error))
    except (RecordingError, TargetError) as error:
        return ended("unusable", text=str(error), cause=str(error).replace(file, "FILE"))
    return ended("same", requests=report.requests)
