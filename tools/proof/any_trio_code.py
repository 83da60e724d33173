"""Prove that any Trio code replays: record generated programs, and replay each in other processes.

    python tools/proof/any_trio_code.py --programs 1000 --replays 20
    python tools/proof/any_trio_code.py --lifespans --programs 1000 --replays 20

With `--lifespans`, programs have a lifespan whose workers meet the handlers.

Each program runs live twice, to see whether two runs differ at all. The second run is recorded, and
replayed under other scheduler seeds, half of them in a process with one hash seed and half in a
process with another. Exits 1 if a replay differs.
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

HOME: Final = Path(__file__).resolve().parent.parent.parent
sys.path.append(str(HOME))

from mcp_trio._session.tasks import seeded_schedule  # noqa: E402
from mcp_trio.errors import NothingCompared, ReplayDivergence  # noqa: E402
from mcp_trio.recording import replay  # noqa: E402
from tests.replay import generated_lifespans, generated_programs  # noqa: E402  found from HOME

HASH_SEEDS: Final = ("1", "2")


def replay_all(programs: Any, folder: Path, replays: int) -> dict[str, Any]:
    """Replay all recorded programs; return the failures, and what the replays took."""
    failures: list[str] = []
    records, seconds = 0, 0.0
    for path in sorted(folder.glob("*.json")):
        seed, recorded = int(path.stem), json.loads(path.read_text())
        for number in range(replays):
            server, logs = programs.make_server(seed)
            begin = time.perf_counter()
            seeded = seeded_schedule(f"{os.environ['PYTHONHASHSEED']} {number}")
            try:
                # A server that was cancelled early has answered no request.
                with seeded, suppress(NothingCompared):
                    records += replay(folder / f"{seed}.mcprec.jsonl", server).records
            except ReplayDivergence as divergence:
                failures.append(f"program {seed}: {divergence}")
            else:
                if str(logs) != recorded:
                    failures.append(f"program {seed}: other results")
            seconds += time.perf_counter() - begin
    return {"failures": failures, "records": records, "seconds": seconds}


def main() -> None:
    """Record, replay in a process for each hash seed, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first program")
    parser.add_argument("--replays", type=int, default=20, help="replays of each program")
    parser.add_argument("--lifespans", action="store_true", help="programs with a lifespan")
    parser.add_argument("--replay", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.disable()
    programs: Any = generated_lifespans if options.lifespans else generated_programs
    if options.replay is not None:
        print(json.dumps(replay_all(programs, options.replay, options.replays)))
        return
    differing = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(options.first, options.first + options.programs):
            first = programs.record(seed, str(folder / "first.mcprec.jsonl"))
            second = programs.record(seed, str(folder / f"{seed}.mcprec.jsonl"))
            (folder / "first.mcprec.jsonl").unlink()
            (folder / f"{seed}.json").write_text(json.dumps(second))
            differing += first != second
        each = options.replays // len(HASH_SEEDS)
        command = [sys.executable, __file__, "--replay", name, "--replays", str(each)]
        command += ["--lifespans"] * options.lifespans
        processes = [
            subprocess.Popen(
                command, env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE
            )
            for seed in HASH_SEEDS
        ]
        outputs = [process.communicate()[0] for process in processes]
    results = [json.loads(output) for output in outputs]
    failures = [failure for result in results for failure in result["failures"]]
    records = sum(result["records"] for result in results)
    seconds = sum(result["seconds"] for result in results)
    replays = options.programs * each * len(HASH_SEEDS)
    print(f"{options.programs} programs; two live runs differ for {differing}")
    print(f"{replays} replays: {replays - len(failures)} identical, {len(failures)} differ")
    print(f"{records} records, {seconds / max(records, 1) * 1e6:.0f} us each")
    print(*failures, sep="\n")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
