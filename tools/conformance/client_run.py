"""Run one client of the suite and note how it ended: `python client_run.py FOLDER COMMAND… URL`.

The suite starts the clients of all scenarios at once, and forgets how each has ended. Here they
wait for each other, so that none is late because all the others are busy; and what their suite
forgets stands in a file each: the exit status, or that the time was up.
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
    with turn(Path(folder)):
        ending = ending_of(command)
    scenario = os.environ[SCENARIO]
    note = json.dumps({"scenario": scenario, **ending})
    Path(folder, f"{scenario.replace('/', '.')}.json").write_text(note, encoding="utf-8")
    raise SystemExit(ending.get("status", 1))


def ending_of(command: list[str]) -> dict[str, int]:
    """How a command ends; without a status if it had to be ended."""
    try:
        done = subprocess.run(command, check=False, timeout=CLIENT_SECONDS)
    except subprocess.TimeoutExpired:
        return {}
    return {"status": done.returncode}


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Hold one of the few places, which the system gives back whatever happens."""
    places = [folder / f"place-{number}" for number in range(AT_ONCE)]
    while True:
        for place in places:
            with place.open("w") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(WAIT_SECONDS)


if __name__ == "__main__":
    main()
