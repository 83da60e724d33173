"""The well-behaved client beside attacks: `python well_behaved_caller.py PORT`.

It makes each call on a new connection; see `observed_process.call_forever` for the output.
"""

import sys
from functools import partial
from pathlib import Path

from attacks import call

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "bench")]

from http_wire import Link
from observed_process import ECHO_TEXT, call_forever


def is_answered(port: int) -> bool:
    try:
        with Link(port) as link:
            answer = link.ask(call("echo", {"text": ECHO_TEXT}))
    except (OSError, RuntimeError):
        return False
    return answer.status == 200 and ECHO_TEXT.encode() in answer.body


if __name__ == "__main__":
    call_forever(partial(is_answered, int(sys.argv[1])))
