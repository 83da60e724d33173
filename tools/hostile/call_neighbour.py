"""A client that means well, beside those of `attacking.py`: `python call_neighbour.py PORT`.

Calls from a new connection each time, and prints when that was, and how long it took if it was
answered.
"""

import sys
import time
from pathlib import Path
from typing import Final

from attacks import called

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from http_wire import Link

PAUSE_SECONDS: Final = 0.05
WORDS: Final = "Is anybody there?"


def is_answered(port: int) -> bool:
    """Whether a call is answered as it should be."""
    try:
        with Link(port) as link:
            answer = link.ask(called("echo", {"text": WORDS}))
    except (OSError, RuntimeError):
        return False
    return answer.status == 200 and WORDS.encode() in answer.body


def main(port: int) -> None:
    while True:
        begin = time.monotonic()
        was_answered = is_answered(port)
        seconds = time.monotonic() - begin
        print(begin, seconds if was_answered else "", flush=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
