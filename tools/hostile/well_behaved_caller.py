"""A well-behaved client beside attacks: `python well_behaved_caller.py PORT`.

Calls from a new connection each time; what it prints is told in `observed_process.call_for_ever`.
"""

import sys
from functools import partial
from pathlib import Path

from attacks import call

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "bench")]

from http_wire import Link
from observed_process import WORDS, call_for_ever


def is_answered(port: int) -> bool:
    """Whether a call is answered as it should be."""
    try:
        with Link(port) as link:
            answer = link.ask(call("echo", {"text": WORDS}))
    except (OSError, RuntimeError):
        return False
    return answer.status == 200 and WORDS.encode() in answer.body


if __name__ == "__main__":
    call_for_ever(partial(is_answered, int(sys.argv[1])))
