"""Record generated programs, and replay each of them to the same bytes in many processes.

    python tools/proof/replays.py blocks --programs 1000 --processes 20
    python tools/proof/replays.py calls --programs 1000 --processes 20
    python tools/proof/replays.py lifespans
    PYTHONHASHSEED=3 python tools/proof/replays.py calls --again FOLDER

There are three kinds of programs: `blocks` of everything that Trio code does, `calls` of everything
that a context has, at each protocol version, and `lifespans` whose workers meet the handlers.

Each program runs live twice, to see whether two runs differ at all. The second run is recorded, and
replayed once in each process. The processes have different hash seeds, heap layouts and scheduler
seeds. A replay has to send the recorded bytes in the recorded order, and to leave the same state in
the memory of the program. `--keep` keeps the recordings; `--again` replays them as the process with
the hash seed PYTHONHASHSEED, and prints JSON. Exits with 1 if a replay differs.
"""

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

HOME: Final = Path(__file__).resolve().parent.parent.parent
sys.path += [str(HOME), str(HOME / "tools")]

from observed_replay import NotingServer, recorded_actions  # noqa: E402

from mcp_trio._session.tasks import seeded_schedule  # noqa: E402
from mcp_trio.errors import NothingCompared, RecordingError, ReplayDivergence  # noqa: E402
from mcp_trio.recording import replay  # noqa: E402

KINDS: Final = {
    "blocks": "tests.replay.generated_programs",
    "calls": "generated_calls",
    "lifespans": "tests.replay.generated_lifespans",
}
"""The kinds of programs, each with the module that has its `record` and `make_server`."""
PROCESSES_AT_ONCE: Final = 2
HEAP_PIECES: Final = 20_000
SUFFIX: Final = ".mcprec.jsonl"


def replay_all(programs: Any, folder: Path) -> dict[str, Any]:
    """Replay the recordings in a folder; return the failures by seed, and the replays' costs."""
    hash_seed = os.environ.get("PYTHONHASHSEED", "random")
    kept = fragment_heap(random.Random(hash_seed))
    failures: dict[int, str] = {}
    records, begin = 0, time.perf_counter()
    for path in sorted(folder.glob("*.json")):
        seed = int(path.stem)
        recording = folder / f"{seed}{SUFFIX}"
        server, state = programs.make_server(seed)
        noting_server: Any = NotingServer(server)
        try:
            # A server that was cancelled early has answered no request.
            with seeded_schedule(f"{hash_seed} {seed}"), suppress(NothingCompared):
                records += replay(recording, noting_server).records
        except (ReplayDivergence, RecordingError) as error:
            failures[seed] = f"{type(error).__name__}: {error}"
        else:
            if str(state) != (recorded := json.loads(path.read_text("utf-8"))):
                failures[seed] = f"the program's memory: {recorded} became {state}"
            elif difference := recorded_actions(recording).difference(noting_server.actions):
                failures[seed] = difference
    del kept
    return {"failures": failures, "records": records, "seconds": time.perf_counter() - begin}


def fragment_heap(random_source: random.Random) -> list[bytearray]:
    """Leave holes in the heap, so that addresses differ from those of other processes."""
    pieces = [bytearray(random_source.randrange(1, 2000)) for _ in range(HEAP_PIECES)]
    random_source.shuffle(pieces)
    return pieces[: HEAP_PIECES // 3]


def record_all(programs: Any, seeds: range, folder: Path) -> int:
    """Record each program in a folder; return for how many of them two live runs differ."""
    differing = 0
    for seed in seeds:
        first = programs.record(seed, str(folder / f"first{SUFFIX}"))
        (folder / f"first{SUFFIX}").unlink()
        second = programs.record(seed, str(folder / f"{seed}{SUFFIX}"))
        (folder / f"{seed}.json").write_text(json.dumps(second), encoding="utf-8")
        differing += first != second
    return differing


def replay_in_processes(kind: str, folder: Path, processes: int) -> list[dict[str, Any]]:
    """Return the results of `replay_all` in processes with the hash seeds from 0 on."""
    command = [sys.executable, __file__, kind, "--again", str(folder)]
    results: list[dict[str, Any]] = []
    for first in range(0, processes, PROCESSES_AT_ONCE):
        started = [
            subprocess.Popen(
                command, env={**os.environ, "PYTHONHASHSEED": str(number)}, stdout=subprocess.PIPE
            )
            for number in range(first, min(first + PROCESSES_AT_ONCE, processes))
        ]
        results += [json.loads(process.communicate()[0]) for process in started]
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the recordings there")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="replay those in it")
    options = parser.parse_args()
    logging.disable()  # handlers fail on purpose
    programs = import_module(KINDS[options.kind])
    if options.again is not None:
        result = replay_all(programs, options.again)
        print(json.dumps(result))
        return bool(result["failures"])
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        seeds = range(options.first, options.first + options.programs)
        differing = record_all(programs, seeds, folder)
        print(f"{options.programs} programs; two live runs differ for {differing}", flush=True)
        results = replay_in_processes(options.kind, folder, options.processes)
    failures = [
        f"program {seed}, hash seed {number}: {text}"
        for number, result in enumerate(results)
        for seed, text in result["failures"].items()
    ]
    replays = options.programs * options.processes
    records = sum(result["records"] for result in results)
    seconds = sum(result["seconds"] for result in results)
    print(f"{replays} replays: {replays - len(failures)} identical, {len(failures)} differ")
    print(f"{records} records, {seconds / max(records, 1) * 1e6:.0f} us each")
    print(*failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
