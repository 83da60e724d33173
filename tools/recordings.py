"""Hold the golden recordings: `python tools/recordings.py`.

Every recording of role `server` is replayed 20 times, under different scheduler seeds, in processes
with different hash seeds. Then it is changed, in each way that is known to matter, and has to
diverge where that matters. Recordings of other roles are checked and shown. Prints a table, and
everything that went wrong; exits 1 if anything did.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from golden import load_server, names, path_of

from mcp_trio._cli.check import verdict
from mcp_trio._cli.show import print_timeline
from mcp_trio.recording import ReplayDivergence, check, open_recording, replay

HASH_SEEDS: Final = (0, 1, 2, 3)
REPLAYS_PER_PROCESS: Final = 5
PROCESSES_AT_ONCE: Final = 2

Line: TypeAlias = dict[str, Any]


class Change(NamedTuple):
    """A changed recording, and the numbers of the records at one of which it has to diverge."""

    kind: str
    what: str
    lines: list[bytes]
    expected: range


# Replaying, in processes of their own.


def replay_all(seed: int) -> dict[str, str]:
    """Replay each recording some times; what went wrong, by name."""
    # With the flag every order of the tasks can come, without it a batch is only turned round.
    scheduler: Any = sys.modules["trio._core._run"]
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True  # noqa: SLF001  Trio has no public way
    failures: dict[str, str] = {}
    for name in server_names():
        for number in range(REPLAYS_PER_PROCESS):
            scheduler._r.seed(seed * 1000 + number)  # noqa: SLF001  the same
            divergence = replay_once(path_of(name), name)
            if divergence is not None:
                failures[name] = str(divergence)
    return failures


def replay_once(path: Path, name: str) -> ReplayDivergence | None:
    """How a replay diverges; None if it does not."""
    try:
        replay(path, load_server(name))
    except ReplayDivergence as divergence:
        return divergence
    return None


def replay_everywhere() -> dict[str, list[str]]:
    """Replay under every hash seed; what went wrong, by name."""
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
    """A process that replays under a hash seed and scheduler seeds that follow from it."""
    return subprocess.Popen(
        [sys.executable, __file__, "--seed", str(seed)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONHASHSEED": str(seed)},
    )


# Changing.


def changes(lines: list[bytes]) -> Iterator[Change]:
    """Every change of a recording that this script knows to make."""
    records: list[Line] = [json.loads(line) for line in lines]
    for place, record in enumerate(records):
        for change in CHANGES.get(record["k"], ()):
            yield from change(lines, records, place)


def change_out(lines: list[bytes], records: list[Line], place: int) -> Iterator[Change]:
    """One byte of an `out`."""
    number = records[place]["n"]
    line = lines[place].replace(b'"jsonrpc":"2.0"', b'"jsonrpc":"2.1"')
    yield Change("out", f"byte of out {number}", replaced(lines, place, line), only(number))


def change_id(lines: list[bytes], records: list[Line], place: int) -> Iterator[Change]:
    """The id of a request: its answer differs."""
    number, request = records[place]["n"], records[place]["f"]
    answers = [r["n"] for r in records if is_answer(r, request.get("id"))]
    if "method" not in request or not answers:
        return
    line = encoded({**records[place], "f": {**request, "id": 99_000 + number}})
    yield Change("in", f"id of in {number}", replaced(lines, place, line), only(answers[0]))


def change_arguments(lines: list[bytes], records: list[Line], place: int) -> Iterator[Change]:
    """An argument that no tool has: the handler does not run.

    What it did to shared state before its first record may be missed by another lane first.
    """
    number, request = records[place]["n"], records[place]["f"]
    acts = [r for r in records if r.get("l") == f"r{number}" and r["o"]]
    if request.get("method") != "tools/call" or acts[0]["k"] != "out":
        return
    arguments = {**request["params"]["arguments"], "surplus": True}
    params = {**request["params"], "arguments": arguments}
    line = encoded({**records[place], "f": {**request, "params": params}})
    first = min(r["n"] for r in records if belongs_to(r.get("l"), number) and r["o"])
    expected = range(number + 1, first + 1)
    yield Change("in", f"arguments of in {number}", replaced(lines, place, line), expected)


def remove(lines: list[bytes], records: list[Line], place: int) -> Iterator[Change]:
    """The whole record."""
    number, kind = records[place]["n"], records[place]["k"]
    yield Change(kind, f"removed {kind} {number}", lines[:place] + lines[place + 1 :], only(number))


def only(number: int) -> range:
    return range(number, number + 1)


def is_answer(record: Line, request_id: object) -> bool:
    return record["k"] == "out" and "method" not in record["f"] and record["f"]["id"] == request_id


def belongs_to(lane: str | None, number: int) -> bool:
    return lane is not None and (lane + ".").startswith(f"r{number}.")


def replaced(lines: list[bytes], place: int, line: bytes) -> list[bytes]:
    return [*lines[:place], line, *lines[place + 1 :]]


def encoded(record: Line) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"


CHANGES: Final[Mapping[str, tuple[Callable[..., Iterator[Change]], ...]]] = {
    "in": (change_id, change_arguments),
    "out": (change_out,),
    "cxl": (remove,),
    "shut": (remove,),
}


def try_changes(name: str, folder: Path) -> tuple[Counter[str], list[str]]:
    """Replay every changed recording; how many of each kind, and which went wrong."""
    tried: Counter[str] = Counter()
    failures: list[str] = []
    changed = folder / "changed.mcprec.jsonl"
    for change in changes(path_of(name).read_bytes().splitlines(keepends=True)):
        changed.write_bytes(b"".join(change.lines))
        divergence = replay_once(changed, name)
        tried[change.kind] += 1
        if divergence is None:
            failures.append(f"{change.what}: replayed as if nothing had happened")
        elif divergence.record not in change.expected:
            failures.append(f"{change.what}: expected in {change.expected}\n{divergence}")
    return tried, failures


# Reporting.


def role_of(name: str) -> str:
    """The role that a recording was made in."""
    role: str = json.loads(next(open_recording(path_of(name))))["f"]["role"]
    return role


def server_names() -> list[str]:
    return [name for name in names() if role_of(name) == "server"]


def in_flight_max(name: str) -> int:
    """How many requests of the peer were unanswered at once."""
    records = [json.loads(line) for line in open_recording(path_of(name))]
    last: dict[str, int] = {r["l"].partition(".")[0]: r["n"] for r in records if "l" in r}
    spans = [(int(lane[1:]), end) for lane, end in last.items() if lane[1:].isdecimal()]
    return max(sum(begin <= moment <= end for begin, end in spans) for moment, _ in spans)


def hold_server(name: str, folder: Path, replays: list[str]) -> list[str]:
    """Print the row of a recording; returns what went wrong."""
    tried, failures = try_changes(name, folder)
    report = replay(path_of(name), load_server(name))
    count = len(HASH_SEEDS) * REPLAYS_PER_PROCESS
    same = count - len(replays) if replays else count
    print(
        f"{name:12}{report.records:>9}{report.requests:>10}{in_flight_max(name):>11}"
        f"{f'{same}/{count}':>10}{tried['out']:>8}{tried['in']:>8}{tried['cxl']:>8}{tried['shut']:>8}"
        f"   {'FAILED' if failures or replays else 'held'}"
    )
    return [f"{name}: {text}" for text in [*replays, *failures]]


def hold_other(name: str) -> list[str]:
    """Check and show a recording that is not replayed; returns what is wrong with it."""
    report = check(open_recording(path_of(name)))
    print(f"\n{name}, of role {role_of(name)}: {verdict(report)}, {report.records} records")
    print_timeline(path_of(name))
    return [f"{name}: line {flaw.line}: {flaw.text}" for flaw in report.flaws]


def hold_all() -> list[str]:
    begin = time.perf_counter()
    replays = replay_everywhere()
    print(
        f"{'recording':12}{'records':>9}{'requests':>10}{'in flight':>11}{'the same':>10}"
        f"{'out':>8}{'in':>8}{'cxl':>8}{'shut':>8}   changed, each at its place"
    )
    failures: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in server_names():
            failures += hold_server(name, Path(folder), replays.get(name, []))
    for name in sorted({*names()} - {*server_names()}):
        failures += hold_other(name)
    print(f"\n{len(names())} recordings in {time.perf_counter() - begin:.1f} s")
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    seed = parser.parse_args().seed
    logging.getLogger("mcp_trio").setLevel(logging.CRITICAL)
    if seed is not None:
        print(json.dumps(replay_all(seed)))
        return
    failures = hold_all()
    for failure in failures:
        print(f"\n{failure}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
