"""Measure what an attack costs the process that is attacked (Linux only).

The event loop is held while its thread uses the processor between two turns: other processes that
make the machine busy do not count.
"""

import gc
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

import attrs
import trio

HELD_MS_MAX: Final = 50.0
MEMORY_MIB_MAX: Final = 100.0


@attrs.frozen
class AttackCost:
    """The longest time for which the loop was held, the memory above rest, and the outcome."""

    held_ms: float
    memory_mib: float
    seconds: float
    outcome: str

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each limit that was exceeded."""
        if self.held_ms > HELD_MS_MAX:
            yield f"the event loop was held for {self.held_ms:,.0f} ms"
        if self.memory_mib > MEMORY_MIB_MAX:
            yield f"the memory grew by {self.memory_mib:,.0f} MiB"


async def cost_of(attack: Callable[[], Awaitable[str]]) -> AttackCost:
    """Run an attack on this process, which returns its outcome, and measure it."""
    held_seconds = 0.0

    async def watch_loop() -> None:
        nonlocal held_seconds
        while True:
            before = time.thread_time()
            try:
                await trio.sleep(0.001)
            finally:  # the turn in which the attack ends counts, too
                held_seconds = max(held_seconds, time.thread_time() - before)

    rest_mib, begin = _rest_mib(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_loop)
        outcome = await attack()
        nursery.cancel_scope.cancel()
    memory_mib, seconds = _peak_mib() - rest_mib, time.perf_counter() - begin
    return AttackCost(held_seconds * 1000, memory_mib, seconds, " ".join(outcome.split()))


def _rest_mib() -> float:
    """Forget the peak of the memory so far, and return the memory at rest."""
    gc.collect()
    gc.freeze()  # what the script made before is not the attacked side's
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _peak_mib()


def _peak_mib() -> float:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def print_cost(cost: AttackCost) -> None:
    """Print a cost for `cost_in_process`."""
    print(json.dumps(attrs.astuple(cost)))


def cost_in_process(script: str, *options: str, seconds_max: float) -> AttackCost:
    """Run a script that attacks itself and prints the cost; a failure is an outcome as well."""
    try:
        done = subprocess.run(
            [sys.executable, script, *options],
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return AttackCost(seconds_max * 1000, 0.0, seconds_max, "not over by then")
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        return AttackCost(0.0, 0.0, 0.0, f"Traceback: {last[0]}")
    return AttackCost(*json.loads(done.stdout))
