"""Replays of many recordings: under several scheduler seeds and hash seeds, or in parallel.

`replay_here` replays the recordings of a `ReplayJob` in this process, each under several scheduler
seeds. `replay_under_hash_seeds` does that in a new process for each hash seed. A hash seed decides
the order of sets of strings, and is fixed when Python starts. Such a process calls
`run_job_from_stdin`, which reads a `ReplayJob` from stdin, and writes a `ReplayOutcome` per line to
stdout.

`replay_in_parallel` replays each recording once, in as many processes as there are processors. A
change of the code often makes many recordings differ in the same line. `cause_of` returns the same
text for all these divergences, so that a summary can count them in one row.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any, Final, Literal

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
    TargetError: "unusable",
}


class ReplayJob(msgspec.Struct, frozen=True, kw_only=True):
    """Recordings to replay; most attributes are arguments of `replay`.

    Attributes:
        target: The server; see `import_server`.
        repeat: The number of replays of each recording, under the scheduler seeds 0, 1, 2 and so
            on; 0 means one replay, in which Trio decides the order of the tasks.
    """

    files: Sequence[str]
    target: str
    repeat: int = 0
    mode: Mode = "strict"
    key: bytes | None = None
    allow_damaged: bool = False
    all_divergences: bool = False


class ReplayOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one replay.

    Attributes:
        status: "same"; "diverged"; "nothing", if no request was compared; or "unusable".
        text: The text of the error; empty if the replay is the same.
        cause: The text of `cause_of` by which outcomes are grouped, without the file name.
        remarks: The lines of `remarks_of` about the report.
        seed: The seed of the scheduler, if it had one.
        hash_seed: The seed of Python's hashes, if it was set.
    """

    file: str
    status: Status
    text: str = ""
    cause: str = ""
    records: int = 0
    requests: int = 0
    remarks: Sequence[str] = ()
    seconds: float = 0.0
    seed: int | None = None
    hash_seed: int | None = None


def remarks_of(report: ReplayReport) -> list[str]:
    """Return a line for each fact in a report that a user should know of."""
    return [
        *([report.lifespan] if report.lifespan else []),
        *([f"a handler ended the session with {report.exit}"] if report.exit else []),
        *(f"note: {note}" for note in report.notes),
        *(f"untracked call: {call}" for call in report.untracked_calls),
        *(f"changed since the recording: {change}" for change in report.list_changes),
    ]


def replay_here(job: ReplayJob, *, hash_seed: int | None = None) -> Iterator[ReplayOutcome]:
    """Replay in this process, and yield each outcome; each replay imports the target anew.

    Raises:
        TargetError: The target names no server, or cannot be imported.
    """
    seeds: Sequence[int | None] = range(job.repeat) if job.repeat else (None,)
    for file, seed in product(job.files, seeds):
        yield _replay_file(job, file, seed, hash_seed)


def _replay_file(
    job: ReplayJob, file: str, seed: int | None = None, hash_seed: int | None = None
) -> ReplayOutcome:
    """Replay one of the recordings once, with the target imported anew."""
    schedule = nullcontext() if seed is None else seeded_schedule(seed)
    begin = time.perf_counter()
    outcome = ReplayOutcome(file=file, status="same", seed=seed, hash_seed=hash_seed)
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
            return _failed(outcome, error, time.perf_counter() - begin)
    return msgspec.structs.replace(
        outcome,
        records=report.records,
        requests=report.requests,
        remarks=remarks_of(report),
        seconds=time.perf_counter() - begin,
    )


def _failed(outcome: ReplayOutcome, error: MCPError, seconds: float = 0.0) -> ReplayOutcome:
    return msgspec.structs.replace(
        outcome,
        status=next(each for kind, each in _STATUSES.items() if isinstance(error, kind)),
        text=str(error),
        # So errors that differ only in the name of the recording are in one group.
        cause=cause_of(error).replace(outcome.file, "FILE"),
        seconds=seconds,
    )


# A process for each hash seed ---------------------------------------------------------------------


# The program of the process, which imports modules from the same folders as this one.
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop());"
    f" from {__name__} import run_job_from_stdin; run_job_from_stdin()"
)

# The member of the last line that a process writes if it could not import the target.
_TARGET_ERROR: Final = "target_error"


def replay_under_hash_seeds(
    job: ReplayJob, *, on_outcome: Callable[[ReplayOutcome], object] = lambda _: None
) -> list[ReplayOutcome]:
    """Replay in a process for each of `HASH_SEEDS` at the same time, and return the outcomes.

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
            # After an error or Ctrl-C, the threads would wait for the other processes to end.
            for process in processes:
                process.kill()


# Held during a call of `on_outcome`.
_outcome_lock: Final = threading.Lock()


def _replay_in_process(
    job: ReplayJob,
    hash_seed: int,
    processes: list[subprocess.Popen[bytes]],
    on_outcome: Callable[[ReplayOutcome], object],
) -> list[ReplayOutcome]:
    """Start a process, add it to `processes`, send it the job, and read its outcomes."""
    outcomes: list[ReplayOutcome] = []
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
            outcome = msgspec.json.decode(line, type=ReplayOutcome)
            outcomes.append(outcome)
            with _outcome_lock:
                on_outcome(outcome)
        if status := process.wait():
            stderr.seek(0)
            lines = stderr.read().decode(errors="replace").splitlines()
            tail = "\n".join(lines[-_STDERR_LINES_MAX:])
            raise RuntimeError(f"a process that replays ended with status {status}:\n{tail}")
    return outcomes


def run_job_from_stdin() -> None:
    """Run the job that is read from stdin, and write its outcomes to stdout."""
    # Texts that handlers print to stdout go to stderr, so that they do not mix with the outcomes.
    with os.fdopen(os.dup(1), "wb", buffering=0) as output:
        os.dup2(2, 1)
        job = msgspec.json.decode(sys.stdin.buffer.read(), type=ReplayJob)
        try:
            for outcome in replay_here(job, hash_seed=int(os.environ["PYTHONHASHSEED"])):
                output.write(msgspec.json.encode(outcome) + b"\n")
        except TargetError as error:
            output.write(msgspec.json.encode({_TARGET_ERROR: str(error)}) + b"\n")


# Recordings in parallel ---------------------------------------------------------------------------

# The number of recordings that a process gets at a time, at most.
_RECORDINGS_PER_TASK_MAX: Final = 8
# The text of a divergence has the request in its first line, and below it labelled lines. These
# two patterns find the request, and the labelled lines that may be equal in several recordings.
_REQUEST: Final = re.compile(r'^replay diverged at record [^,]*, (\S+(?: "[^"]*")?)', re.MULTILINE)
_LABELLED_LINE: Final = re.compile(r"^  (line|changed|cause|meaning): +(.*)$", re.MULTILINE)
# A line such as `cause: 2 other sessions ended before` is ignored: any recording of a server with
# several sessions can have it, and with other numbers, so it would split up a group.
_OTHER_SESSIONS: Final = re.compile(r"[0-9]+ other sessions? ")


def cause_of(error: Exception) -> str:
    """Return a text that is equal for divergences which one change of the code probably caused.

    For a divergence it consists of the request, the line of the handler, the first line labelled
    `cause`, and the paths of the changed values. For another error it is the error's text.
    """
    text = str(error)
    if not isinstance(error, ReplayDivergence):
        return text
    request = _REQUEST.search(text)
    labelled: dict[str, list[str]] = {}
    for label, value in _LABELLED_LINE.findall(text):
        labelled.setdefault(label, []).append(value)
    causes = [text for text in labelled.get("cause", []) if not _OTHER_SESSIONS.match(text)]
    changed = [value.partition(": ")[0] for value in labelled.get("changed", [])]
    parts = [
        request[1] if request is not None else f"record of kind {error.kind}",
        *labelled.get("line", [])[:1],
        *causes[:1],
        f"changed: {', '.join(changed)}" if changed else "",
    ]
    if len([part for part in parts if part]) == 1:
        # The request alone would put different divergences into one group.
        parts += labelled.get("meaning", [])[:1]
    return "; ".join(part for part in parts if part)


def replay_in_parallel(
    files: Sequence[str], target: str, *, mode: Mode = "strict", processes: int | None = None
) -> Iterator[ReplayOutcome]:
    """Replay recordings in processes, and yield each outcome, in the order of the files.

    By default, there is one process for each processor.

    Raises:
        TargetError: The target names no server, or cannot be imported.
    """
    with fresh_server(target):  # an error is reported here rather than in each process
        pass
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    replay_one = partial(_replay_in_worker, ReplayJob(files=(), target=target, mode=mode))
    number = max(min(processes or os.cpu_count() or 1, len(files)), 1)
    # A process that is forked from one with threads may hang.
    context: Any = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(number, mp_context=context) as pool:
        yield from pool.map(
            replay_one, files, chunksize=min(_RECORDINGS_PER_TASK_MAX, len(files) // number or 1)
        )


def _replay_in_worker(job: ReplayJob, file: str) -> ReplayOutcome:
    try:
        return _replay_file(job, file)
    except TargetError as error:  # for example because several processes import it at the same time
        return _failed(ReplayOutcome(file=file, status="unusable"), error)
