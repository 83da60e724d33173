"""Print which transports a bridge joins: `python tools/channels/bridge_matrix.py`.

Runs the test of every pair with legacy and stateless clients. The exit status is that of the tests,
or 1 if there is no pair.
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
    """Return the result of each pair, by the client's and the server's transport."""
    return {(way, to): _WORDS[word] for word, way, to in _RESULT.findall(report)}


def rows(found: Mapping[tuple[str, str], str]) -> Iterator[str]:
    ways = list(dict.fromkeys(way for way, _ in found))
    tos = list(dict.fromkeys(to for _, to in found))
    yield "".join(f"{each:<12}" for each in ("from \\ to", *tos)).rstrip()
    for way in ways:
        texts = (found.get((way, to), "-") for to in tos)
        yield "".join(f"{each:<12}" for each in (way, *texts)).rstrip()


def main() -> int:
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", TESTS]
    done = subprocess.run(command, cwd=HOME, capture_output=True, check=False, text=True)
    found = results(done.stdout)
    print(*rows(found), sep="\n")
    return done.returncode if found else 1


if __name__ == "__main__":
    sys.exit(main())
