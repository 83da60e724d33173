"""A server's process, observed from outside during attacks: memory, descriptors, CPU, answers.

Costs are of the process alone, whatever else the machine does meanwhile (Linux only). Whom it still
serves is told by a neighbour, a client that means well: a process of its own, so that nobody else
delays it, which calls again and again and prints a line for each call.
"""

import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import attrs
import trio

sys.path.append(str(Path(__file__).resolve().parent / "bench"))

from load import cpu_seconds_of, rss_mib_of

LOOK_SECONDS: Final = 0.02
"""Between two looks at a server."""

QUIET_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 0.05
PATIENCE_SECONDS: Final = 15.0
"""How long it takes at most until a connection is closed that the server has no use for."""

WORDS: Final = "Is anybody there?"
"""What the client that means well says, to a server that is to return it."""

_CALL_SECONDS_MAX: Final = 5.0

Outcome = TypeVar("Outcome")

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

    def beyond(self, other: "Held") -> "Held":
        """How many more these are."""
        return Held(self.descriptors - other.descriptors, self.tasks - other.tasks)

    def complaint(self) -> str:
        """What must not be of what is left, in a sentence; empty if nothing is."""
        if self.descriptors <= 0 and self.tasks <= 0:
            return ""
        return f"{self.descriptors} descriptors and {self.tasks} tasks are left"


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
    """The client that means well, which is to `call_for_ever`."""

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


def call_for_ever(is_answered: Callable[[], bool]) -> NoReturn:
    """Be the client that means well, whose call says whether it was answered as it should be.

    Of each call it prints when that began, on the monotonic clock, a space, and how long it took;
    nothing behind the space: it failed.
    """
    while True:
        begin = time.monotonic()
        was_answered = is_answered()
        print(begin, time.monotonic() - begin if was_answered else "", flush=True)
        time.sleep(PAUSE_SECONDS)


# All of it


@attrs.frozen(kw_only=True)
class Toll:
    """What an attack took.

    Attributes:
        cpu_ms: Of the server's time.
        rss_kib: By how much the server grew meanwhile, and how much of it is left.
        left: The descriptors and tasks that did not go away.
        calls: How long each of the well-meant calls took, in seconds; None: it failed.
    """

    cpu_ms: float
    rss_kib: tuple[float, float]
    left: Held
    calls: Sequence[float | None]

    @property
    def latest(self) -> float:
        """How late the latest of the well-meant answers came."""
        return max((seconds for seconds in self.calls if seconds is not None), default=0.0)


@attrs.define
class Watch:
    """Looks at a server: by the id of its process, by its own word, and by its neighbour's."""

    process: int
    neighbour: Neighbour
    count_tasks: Callable[[], int]
    at_rest: Held = attrs.field(default=Held(0, 0), init=False)

    async def held(self) -> Held:
        """What the server holds; another thread asks, for this one may have much else to do."""
        return await trio.to_thread.run_sync(self._held)

    def _held(self) -> Held:
        return Held(descriptors_of(self.process), self.count_tasks())

    async def toll_of(self, attack: Callable[[], Awaitable[Outcome]]) -> tuple[Outcome, Toll]:
        """Attack it once: what came of that, and what it took."""
        meter, begin = Meter(self.process), time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(meter.look)
            outcome = await attack()
            nursery.cancel_scope.cancel()
        cpu_ms = meter.cpu_ms()
        at_rest = self.at_rest
        self.at_rest = await settled(self.held, at_rest, SETTLE_SECONDS)
        return outcome, Toll(
            cpu_ms=cpu_ms,
            rss_kib=meter.rss_kib(),
            left=self.at_rest.beyond(at_rest),
            calls=await self.neighbour.calls(begin),
        )


@asynccontextmanager
async def watched(
    process: int, count_tasks: Callable[[], int], neighbour_command: Sequence[str]
) -> AsyncGenerator[Watch]:
    """Look at a server, which is at rest yet, while a client that means well calls it."""
    with neighbour_of(neighbour_command) as neighbour:
        watch = Watch(process, neighbour, count_tasks)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour.listen)
            try:
                await neighbour.calls(0.0)
                watch.at_rest = await settled(watch.held, Held(0, 0), QUIET_SECONDS)
                yield watch
            finally:
                neighbour.silence()  # or the thread that listens would wait for its next call
