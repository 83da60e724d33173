"""The timing loop of the Python clients of `round_trips.py`."""

import json
import time
from collections.abc import Awaitable, Callable
from typing import Final

WARM_UP: Final = 100
CALLS: Final = 500


async def measure(call: Callable[[int], Awaitable[str]]) -> None:
    """Make calls one after the other; print their durations and the total CPU time."""
    seconds: list[float] = []
    cpu_begin = 0.0
    for number in range(WARM_UP + CALLS):
        if number == WARM_UP:
            cpu_begin = time.process_time()
        begin = time.perf_counter()
        answer = await call(number)
        seconds.append(time.perf_counter() - begin)
        if answer != str(number + 1):
            raise ValueError(f"{number} and 1 are {answer}")
    cpu_seconds = time.process_time() - cpu_begin
    print(json.dumps({"seconds": seconds[WARM_UP:], "cpu_seconds": cpu_seconds}))
