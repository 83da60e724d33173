"""A server's process under attack, seen from outside: what it holds, what it takes, whom it serves.

Costs are of the process alone, whatever else the machine does meanwhile (Linux only). Whom it still
serves is told by a neighbour, a client that means well: a process of its own, so that nobody else
delays it, which calls again and again and prints a line for each call.
"""

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import trio

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from load import cpu_seconds_of, rss_mib_of

LOOK_SECONDS: Final = 0.02
"""Between two looks at a server."""

_CALL_SECONDS_MAX: Final = 5.0

# What it takes


@attrs.define
class Meter:
    """What a server's process takes from now on."""

    process: int
    _cpu_seconds: float = attrs.field(init=False)
    _rss_mib: float = attrs.field(init=False)
    _peak_mib: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._cpu_seconds = cpu_seconds_of(self.process)
        self._rss_mib = self._peak_mib = rss_mib_of(self.process)

    async def look(self) -> None:
        """See how large it grows, until cancelled."""
        while True:
            self._peak_mib = max(self._peak_mib, rss_mib_of(self.process))
            await trio.sleep(LOOK_SECONDS)

    def cpu_ms(self) -> float:
        """The time of the processors, with the kernel's share."""
        return (cpu_seconds_of(self.process) - self._cpu_seconds) * 1000

    def rss_kib(self) -> tuple[float, float]:
        """By how much it grew at most, and how much of that is left."""
        now_mib = rss_mib_of(self.process)
        peak_mib = max(self._peak_mib, now_mib)
        return (peak_mib - self._rss_mib) * 1024, (now_mib - self._rss_mib) * 1024


# What it holds


@attrs.frozen
class Held:
    """How many descriptors a server's process has open, and how many tasks live in it."""

    descriptors: int
    tasks: int


def descriptors_of(process: int) -> int:
    """How many files and sockets a process has open, by its id."""
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


async def settled(look: Callable[[], Awaitable[Held]], at_rest: Held, seconds: float) -> Held:
    """What is held once that is no more than at rest, or at least: the neighbour comes and goes."""
    held = await look()
    with trio.move_on_after(seconds):
        while held.descriptors > at_rest.descriptors or held.tasks > at_rest.tasks:
            await trio.sleep(LOOK_SECONDS)
            now = await look()
            held = Held(min(held.descriptors, now.descriptors), min(held.tasks, now.tasks))
    return held


# Whom it serves


@attrs.define
class Neighbour:
    """The client that means well.

    Of each call it prints when that began, on the monotonic clock, a space, and how long it took;
    nothing behind the space: it failed.
    """

    process: subprocess.Popen[str]
    _calls: list[tuple[float, float | None]] = attrs.field(factory=list[tuple[float, float | None]])

    async def listen(self) -> None:
        """Take in what it says, until it is `silenced`."""
        assert self.process.stdout is not None
        async for line in trio.wrap_file(self.process.stdout):
            begin, _, seconds = line.partition(" ")
            self._calls.append((float(begin), float(seconds) if seconds.strip() else None))

    def silence(self) -> None:
        """It calls no more."""
        self.process.terminate()

    async def calls(self, since: float) -> list[float | None]:
        """How long those took that have begun since then, up to one that begins now."""
        now = time.monotonic()
        with trio.move_on_after(_CALL_SECONDS_MAX):
            while not self._calls or self._calls[-1][0] < now:  # noqa: ASYNC110  # lines of a pipe
                await trio.sleep(LOOK_SECONDS)
        return [seconds for begin, seconds in self._calls if begin >= since]


@contextmanager
def neighbour_of(command: Sequence[str]) -> Generator[Neighbour]:
    """A client that means well, and calls from now on."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        neighbour = Neighbour(process)
        try:
            yield neighbour
        finally:
            neighbour.silence()
