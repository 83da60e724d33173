"""Replaying recordings many times: under scheduler seeds and hash seeds, or from a folder.

A hash seed decides the order of sets of strings, and is fixed when Python starts. So each hash seed
has a process of its own, which runs `work`: it reads a `ReplayJob` from stdin, and writes an
`Outcome` per line to stdout.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import product
from typing import Final, Literal

import msgspec

from mcp_trio._replay.replay import Mode, ReplayReport, replay
from mcp_trio._replay.targets import TargetError, fresh_server
from mcp_trio._session.tasks import seeded_schedule
from mcp_trio.errors import MCPError, NothingCompared, RecordingError, ReplayDivergence

HASH_SEEDS: Final = (1, 2)

_STDERR_LINES_MAX: Final = 20

Status = Literal["same", "diverged", "nothing", "unusable"]

_STATUSES: Final[dict[type[MCPError], Status]] = {
    ReplayDivergence: "diverged",
    NothingCompared: "nothing",
    RecordingError: "unusable",
}


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """Recordings to replay, each under every seed from 0; see `replay` for the other fields.

    Attributes:
        files: The recordings.
        target: The server; see `import_server`.
        repeat: The number of scheduler seeds; 0 leaves the order of the tasks to Trio.
    """

    files: Sequence[str]
    target: str
    repeat: int = 0
    mode: Mode = "strict"
    key: bytes | None = None
    allow_damaged: bool = False
    all_divergences: bool = False


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one replay.

    Attributes:
        file: The recording.
        status: "same"; "diverged"; "nothing", if no request was compared; or "unusable".
        text: The text of the error; empty if the replay is the same.
        records: The number of records that were replayed.
        requests: The number of requests that were handled.
        remarks: Notes, untracked calls and changed lists of the report.
        seed: The seed of the scheduler, if it had one.
        hash_seed: The seed of Python's hashes, if it was set.
    """

    file: str
    status: Status
    text: str = ""
    records: int = 0
    requests: int = 0
    remarks: Sequence[str] = ()
    seed: int | None = None
    hash_seed: int | None = None


def remarks_of(report: ReplayReport) -> list[str]:
    """Return the notes, the untracked calls and the changed lists of a report, one text each."""
    return [
        *([report.lifespan] if report.lifespan else []),
        *(f"note: {note}" for note in report.notes),
        *(f"untracked call: {call}" for call in report.untracked_calls),
        *(f"listed otherwise: {change}" for change in report.list_changes),
    ]


def replay_here(job: ReplayJob, *, hash_seed: int | None = None) -> Iterator[Outcome]:
    """Replay in this process, and yield each outcome; the target is imported anew for each.

    Raises:
        TargetError: The target names no server, or cannot be imported.
    """
    seeds: Sequence[int | None] = range(job.repeat) if job.repeat else (None,)
    for file, seed in product(job.files, seeds):
        schedule = nullcontext() if seed is None else seeded_schedule(seed)
        outcome = Outcome(file=file, status="same", seed=seed, hash_seed=hash_seed)
        with fresh_server(job.target) as server, schedule:
            try:
                report = replay(
                    file,
                    server,
                    mode=job.mode,
                    key=job.key,
                    allow_damaged=job.allow_damaged,
                    all_divergences=job.all_divergences,
                )
            except (ReplayDivergence, NothingCompared, RecordingError) as error:
                status = _STATUSES[type(error)]
                outcome = msgspec.structs.replace(outcome, status=status, text=str(error))
            else:
                outcome = msgspec.structs.replace(
                    outcome,
                    records=report.records,
                    requests=report.requests,
                    remarks=remarks_of(report),
                )
        yield outcome


# In processes -------------------------------------------------------------------------------------


# The process imports from the same folders as this one.
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop());"
    f" from {__name__} import work; work()"
)

# The member of the last line that a process writes if it could not import the target.
_TARGET_ERROR: Final = "target_error"


def replay_repeatedly(
    job: ReplayJob, *, on_outcome: Callable[[Outcome], object] = lambda _: None
) -> list[Outcome]:
    """Replay in a process for each of `HASH_SEEDS`, at once; return the outcomes.

    `on_outcome` is called from other threads, one call at a time.

    Raises:
        TargetError: The target names no server, or cannot be imported.
        RuntimeError: A process ended early, as by a handler that ends it.
    """
    processes: list[subprocess.Popen[bytes]] = []
    with ThreadPoolExecutor(len(HASH_SEEDS), "mcp_trio replay") as threads:
        try:
            replays = [
                threads.submit(_replay_in_process, job, seed, processes, on_outcome)
                for seed in HASH_SEEDS
            ]
            return [outcome for each in replays for outcome in each.result()]
        finally:
            for process in processes:
                process.kill()


# Held during a call of `on_outcome`.
_outcome_lock: Final = threading.Lock()


def _replay_in_process(
    job: ReplayJob,
    hash_seed: int,
    processes: list[subprocess.Popen[bytes]],
    on_outcome: Callable[[Outcome], object],
) -> list[Outcome]:
    """Start a process, add it to `processes`, send it the job, and read its outcomes."""
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryFile() as stderr,
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, msgspec.json.encode(sys.path).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        ) as process,
    ):
        processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin as stdin:
            stdin.write(msgspec.json.encode(job))
        for line in process.stdout:
            read = msgspec.json.decode(line, type=dict[str, object])
            if _TARGET_ERROR in read:
                raise TargetError(str(read[_TARGET_ERROR]))
            outcome = msgspec.json.decode(line, type=Outcome)
            outcomes.append(outcome)
            with _outcome_lock:
                on_outcome(outcome)
        if status := process.wait():
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").splitlines()
            tail = "\n".join(lines[-_STDERR_LINES_MAX:])
            raise RuntimeError(f"a process that replays ended with status {status}:\n{tail}")
    return outcomes


def work() -> None:
    """Run the job that stdin names; for a process of `replay_repeatedly`."""
    # What handlers print must not get between the outcomes.
    with os.fdopen(os.dup(1), "wb", buffering=0) as output:
        os.dup2(2, 1)
        job = msgspec.json.decode(sys.stdin.buffer.read(), type=ReplayJob)
        try:
            for outcome in replay_here(job, hash_seed=int(os.environ["PYTHONHASHSEED"])):
                output.write(msgspec.json.encode(outcome) + b"\n")
        except TargetError as error:
            output.write(msgspec.json.encode({_TARGET_ERROR: str(error)}) + b"\n")
