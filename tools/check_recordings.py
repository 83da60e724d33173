"""Check the golden recordings: `python tools/check_recordings.py`. Needs no peers.

Every recording that replays strictly is replayed 20 times, under different scheduler seeds, in
processes with different hash seeds. Then it is changed, in each way that a replay has to notice,
and has to diverge at the changed record, with the right kind. The others are checked, and replay
has to reject them for the reason in the table. The recordings of two sides of one session have to
be the same. Bad ones have to be rejected, and all have to be small and without secrets. Prints
tables and all failures; exits 1 if there is one.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

from bad_recordings import TABLE, problems_of
from golden_recordings import GOLDEN, RECORDINGS, SIDES, STRICTLY, Golden, load_server
from recording_changes import CHANGES, Change, changes
from recording_secrets import leaks, lines_of, names_of_this_machine

from mcp_trio._cli.recordings import check_summary, is_intact
from mcp_trio._recorder.files import SUFFIX
from mcp_trio.errors import RecordingError, ReplayDivergence
from mcp_trio.recording import Record, check, diff, open_recording, read_recording, replay

HASH_SEEDS: Final = (0, 1, 2, 3)
REPLAYS_PER_PROCESS: Final = 5
PROCESSES_AT_ONCE: Final = 2
CHANGES_MAX: Final = 40
BYTES_MAX: Final = 60 * 1024
TOTAL_BYTES_MAX: Final = 700 * 1024
CHANGED: Final = ("open", *CHANGES)

REPLAYED: Final = [golden for golden in GOLDEN.values() if golden.replays == STRICTLY]
OTHERS: Final = [golden for golden in GOLDEN.values() if golden.replays != STRICTLY]


# Replaying, in processes of their own.


def replay_all(seed: int) -> dict[str, str]:
    """Replay each recording some times; return the failures by name."""
    # With the flag every order of the tasks can come, without it a batch is only turned round.
    scheduler: Any = sys.modules["trio._core._run"]
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001  Trio has no public way
    failures: dict[str, str] = {}
    for golden in REPLAYED:
        for number in range(REPLAYS_PER_PROCESS):
            scheduler._r.seed(seed * 1000 + number)  # noqa: SLF001  the same
            divergence = replay_once(golden.path, golden)
            if divergence is not None:
                failures[golden.name] = str(divergence)
    return failures


def replay_once(path: Path, golden: Golden) -> ReplayDivergence | None:
    """Return how a replay diverges, or None."""
    try:
        replay(path, load_server(golden.server), allow_damaged=True)
    except ReplayDivergence as divergence:
        return divergence
    return None


def replay_everywhere() -> dict[str, list[str]]:
    """Replay under every hash seed; return the failures by name."""
    failures: dict[str, list[str]] = {}
    waiting = list(HASH_SEEDS)
    while waiting:
        now, waiting = waiting[:PROCESSES_AT_ONCE], waiting[PROCESSES_AT_ONCE:]
        for process in [start_process(seed) for seed in now]:
            output, _ = process.communicate()
            if process.returncode:
                raise SystemExit(f"a process that replays ended with {process.returncode}")
            for name, text in json.loads(output).items():
                failures.setdefault(name, []).append(text)
    return failures


def start_process(seed: int) -> "subprocess.Popen[bytes]":
    """Start a process that replays with a hash seed."""
    return subprocess.Popen(
        [sys.executable, __file__, "--seed", str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
    )


# Changing.


def try_changes(name: str) -> tuple[Counter[str], list[str]]:
    """Replay changed recordings; return their number by kind, and the failures."""
    be_quiet()
    golden = GOLDEN[name]
    tried: Counter[str] = Counter()
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder, "changed.mcprec.jsonl")
        lines = list(open_recording(golden.path))
        for change in spread(list(changes(lines, is_seeded=golden.is_seeded))):
            changed.write_bytes(b"".join(change.lines))
            tried[change.kind] += 1
            if problem := problem_of(change, replay_once(changed, golden)):
                failures.append(f"{change.what}: {problem}")
    return tried, failures


def problem_of(change: Change, divergence: ReplayDivergence | None) -> str:
    """Return what is wrong with the replay of a change, or an empty text."""
    if divergence is None:
        return "the change was not noticed"
    if divergence.record not in change.expected:
        return f"expected in {change.expected}\n{divergence}"
    if divergence.kind not in change.ways:
        return f"expected {' or '.join(sorted(change.ways))}, not {divergence.kind}\n{divergence}"
    return ""


def spread(found: Sequence[Change]) -> Iterator[Change]:
    """Return at most so many changes of each kind, from all parts of the recording."""
    for kind in dict.fromkeys(change.kind for change in found):
        of_kind = [change for change in found if change.kind == kind]
        step = -(-len(of_kind) // CHANGES_MAX)
        yield from of_kind[::step]


# Checking.


def in_flight_max(golden: Golden) -> int:
    """Return the highest number of unanswered requests."""
    records = [json.loads(line) for line in open_recording(golden.path)]
    last: dict[str, int] = {r["l"].partition(".")[0]: r["n"] for r in records if "l" in r}
    spans = [(int(lane[1:]), end) for lane, end in last.items() if lane[1:].isdecimal()]
    return max(sum(begin <= moment <= end for begin, end in spans) for moment, _ in spans)


def check_replayed(
    golden: Golden, replays: list[str], tried: Counter[str], failures: list[str]
) -> list[str]:
    """Check a recording that replays strictly; print its row and return the failures."""
    try:
        report = replay(
            golden.path, load_server(golden.server), key=golden.key, allow_damaged=golden.is_cut
        )
    except ReplayDivergence as divergence:
        print(f"{golden.name:28}FAILED", flush=True)
        return [f"{golden.name}: {divergence}"]
    if report.is_complete is golden.is_cut:
        failures = [*failures, f"replayed to the end: {report.is_complete}"]
    count = len(HASH_SEEDS) * REPLAYS_PER_PROCESS
    same = count - len(replays) if replays else count
    print(
        f"{golden.name:28}{report.records:>9}{report.requests:>10}{in_flight_max(golden):>11}"
        f"{f'{same}/{count}':>10}{''.join(f'{tried[kind]:>6}' for kind in CHANGED)}"
        f"   {'FAILED' if failures or replays else 'as expected'}",
        flush=True,
    )
    return [f"{golden.name}: {text}" for text in [*replays, *failures]]


def check_all_replayed() -> list[str]:
    """Replay all recordings and their changes; return the failures."""
    print(
        f"{'recording, replayed':28}{'records':>9}{'requests':>10}{'in flight':>11}{'the same':>10}"
        f"{''.join(f'{kind:>6}' for kind in CHANGED)}   changed, each at its place",
        flush=True,
    )
    replays = replay_everywhere()
    failures: list[str] = []
    with ProcessPoolExecutor(PROCESSES_AT_ONCE) as pool:
        changed = pool.map(try_changes, [golden.name for golden in REPLAYED])
        for golden, (tried, found) in zip(REPLAYED, changed, strict=True):
            failures += check_replayed(golden, replays.get(golden.name, []), tried, found)
    return failures


def check_other(golden: Golden) -> list[str]:
    """Check a recording that does not replay; print its row and return the failures."""
    report = check(open_recording(golden.path))
    failures = [f"line {flaw.line}: {flaw.text}" for flaw in report.damage]
    if not is_intact(report):
        failures.append(check_summary(report))
    if golden.role != (role := role_of(golden)):
        failures.append(f"of role {role}, not {golden.role}")
    if (reason := rejection(golden)) is None:
        failures.append(f"replays, though it should not yet: {golden.replays}")
    elif golden.replays not in reason:
        failures.append(f"replay rejects it for another reason: {reason}")
    messages = report.kinds.get("in", 0), report.kinds.get("out", 0)
    print(
        f"{golden.name:28}{report.records:>9}{messages[0]:>10}{messages[1]:>11}{golden.role:>10}"
        f"   {'FAILED' if failures else check_summary(report)}; replay: {golden.replays}"
    )
    return [f"{golden.name}: {text}" for text in failures]


def role_of(golden: Golden) -> str:
    role: str = json.loads(next(open_recording(golden.path)))["f"]["role"]
    return role


def rejection(golden: Golden) -> str | None:
    """Return the error of replay for a recording, or None."""
    try:
        replay(golden.path, load_server(golden.server))
    except (RecordingError, ReplayDivergence) as error:
        return str(error)
    return None


def check_others() -> list[str]:
    """Check the recordings that do not replay; return the failures."""
    print(f"\n{'recording, checked':28}{'records':>9}{'in':>10}{'out':>11}{'role':>10}")
    failures = [text for golden in OTHERS for text in check_other(golden)]
    for sides in SIDES:
        differences = diff(*([*records_of(GOLDEN[side])] for side in sides))
        print(f"{' and '.join(sides)}: {len(differences)} differences")
        failures += [f"{' and '.join(sides)}: {difference}" for difference in differences]
    return failures


def records_of(golden: Golden) -> Iterator[Record]:
    items = read_recording(open_recording(golden.path))
    return (item for item in items if isinstance(item, Record))


def check_rejected() -> list[str]:
    """Check that bad recordings are rejected; return the failures."""
    print(f"\n{'recording, rejected':28}{'check':64}replay")
    failures: list[str] = []
    for rejected in TABLE:
        found = problems_of(rejected)
        print(f"{rejected.name:28}{rejected.check:64}{'FAILED' if found else rejected.replay}")
        failures += [f"refused/{rejected.name}: {text}" for text in found]
    return failures


def check_files() -> list[str]:
    """Check that all files are known and small, and have no secrets or machine names."""
    paths = sorted(RECORDINGS.rglob(f"*{SUFFIX}*"))
    of_golden = [file for golden in GOLDEN.values() for file in golden.files]
    known = {*of_golden, *(rejected.path for rejected in TABLE)}
    failures = [f"{path.name}: not in the tables, or not here" for path in {*paths} ^ known]
    names = names_of_this_machine()
    for path in paths:
        if path.stat().st_size > BYTES_MAX:
            failures.append(f"{path.name}: more than {BYTES_MAX} bytes")
        failures += [f"{path.name}: {leak}" for leak in leaks(lines_of(path), names)]
    total = sum(path.stat().st_size for path in paths)
    print(f"\n{len(paths)} files of {total // 1024} KiB")
    if total > TOTAL_BYTES_MAX:
        failures.append(f"more than {TOTAL_BYTES_MAX} bytes")
    return failures


def be_quiet() -> None:
    """Turn off logging, as some handlers fail on purpose."""
    logging.getLogger("mcp_trio").setLevel(logging.CRITICAL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    seed = parser.parse_args().seed
    be_quiet()
    if seed is not None:
        print(json.dumps(replay_all(seed)))
        return
    begin = time.perf_counter()
    failures = [*check_all_replayed(), *check_others(), *check_rejected(), *check_files()]
    print(f"checked in {time.perf_counter() - begin:.1f} s, {len(failures)} problems")
    for failure in failures:
        print(f"\n{failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
