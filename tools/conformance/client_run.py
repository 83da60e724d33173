"""Run one client of the suite, and store its exit status: `client_run.py FOLDER COMMAND… URL`.

The suite starts the clients of all scenarios at once, and ignores their exit statuses. This script
lets two run at a time, so that no client times out because of the others, and writes a file with
the exit status, or without one after a timeout.
"""

import fcntl
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

AT_ONCE: Final = 2
CLIENT_SECONDS: Final = 30.0
WAIT_SECONDS: Final = 0.05
SCENARIO: Final = "MCP_CONFORMANCE_SCENARIO"


def main() -> None:
    folder, *command = sys.argv[1:]
    with running_slot(Path(folder)):
        ending = ending_of(command)
    scenario = os.environ[SCENARIO]
    note = json.dumps({"scenario": scenario, **ending})
    Path(folder, f"{scenario.replace('/', '.')}.json").write_text(note, encoding="utf-8")
    raise SystemExit(ending.get("status", 1))


def ending_of(command: list[str]) -> dict[str, int]:
    """Return the exit status of a command, or nothing if it timed out."""
    try:
        done = subprocess.run(command, check=False, timeout=CLIENT_SECONDS)
    except subprocess.TimeoutExpired:
        return {}
    return {"status": done.returncode}


@contextmanager
def running_slot(folder: Path) -> Iterator[None]:
    """Hold one of the two slots; the file lock ends with the process."""
    slots = [folder / f"place-{number}" for number in range(AT_ONCE)]
    while True:
        for slot in slots:
            with slot.open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(WAIT_SECONDS)


if __name__ == "__main__":
    main()
