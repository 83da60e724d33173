"""Print which transports a bridge joins: `python tools/channels/bridge_matrix.py`.

Runs the test of every pair, in both eras, and exits with its status; with 1 if there is no pair.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

HOME: Final = Path(__file__).resolve().parents[2]
TESTS: Final = "tests/proxy/test_bridge.py"
_RESULT: Final = re.compile(r"^(PASSED|FAILED|ERROR) .*\[(\w+)-(\w+)\]", re.MULTILINE)
_WORDS: Final = {"PASSED": "yes", "FAILED": "NO", "ERROR": "NO"}


def results(report: str) -> Mapping[tuple[str, str], str]:
    """What became of each pair, by where clients come from and where the server is."""
    return {(way, to): _WORDS[word] for word, way, to in _RESULT.findall(report)}


def rows(found: Mapping[tuple[str, str], str]) -> Iterator[str]:
    """The lines of the table."""
    ways = list(dict.fromkeys(way for way, _ in found))
    tos = list(dict.fromkeys(to for _, to in found))
    yield "".join(f"{each:<12}" for each in ("from \\ to", *tos)).rstrip()
    for way in ways:
        told = (found.get((way, to), "-") for to in tos)
        yield "".join(f"{each:<12}" for each in (way, *told)).rstrip()


def main() -> int:
    """Run and print; returns the exit status."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", TESTS]
    done = subprocess.run(command, cwd=HOME, capture_output=True, check=False, text=True)
    found = results(done.stdout)
    print(*rows(found), sep="\n")
    return done.returncode if found else 1


if __name__ == "__main__":
    sys.exit(main())
