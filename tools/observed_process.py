"""Measure a server process during attacks: memory, file descriptors, tasks, CPU time, other calls.

The figures are of this process alone, from /proc (Linux only). A well-behaved client in a process
of its own calls the server again and again, and prints a line for each call: so delays and failures
are seen.
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

POLL_SECONDS: Final = 0.02
"""The interval of polling a server."""

QUIET_SECONDS: Final = 0.5
RELEASE_SECONDS_MAX: Final = 5.0
PAUSE_SECONDS: Final = 0.05
CLOSE_SECONDS_MAX: Final = 15.0
"""The time within which the server has to close a useless connection."""

ECHO_TEXT: Final = "Is anybody there?"
"""The text that the well-behaved client sends, and a server returns."""

_OTHER_CALL_SECONDS_MAX: Final = 5.0

Outcome = TypeVar("Outcome")

# CPU time and memory.


@attrs.define
class Meter:
    """The CPU time and memory that a process uses from now on."""

    process: int
    _cpu_seconds: float = attrs.field(init=False)
    _rss_mib: float = attrs.field(init=False)
    _peak_mib: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._cpu_seconds = cpu_seconds_of(self.process)
        self._rss_mib = self._peak_mib = rss_mib_of(self.process)

    async def poll(self) -> None:
        """Follow the memory's peak until cancelled."""
        while True:
            self._peak_mib = max(self._peak_mib, rss_mib_of(self.process))
            await trio.sleep(POLL_SECONDS)

    def cpu_ms(self) -> float:
        """Return the CPU time, the kernel's share included."""
        return (cpu_seconds_of(self.process) - self._cpu_seconds) * 1000

    def rss_kib(self) -> tuple[float, float]:
        """Return the growth of the memory at its peak and now."""
        now_mib = rss_mib_of(self.process)
        peak_mib = max(self._peak_mib, now_mib)
        return (peak_mib - self._rss_mib) * 1024, (now_mib - self._rss_mib) * 1024


# File descriptors and tasks.


@attrs.frozen
class Resources:
    """The open file descriptors and the tasks of a process."""

    descriptors: int
    tasks: int

    def excess_over(self, other: "Resources") -> "Resources":
        return Resources(self.descriptors - other.descriptors, self.tasks - other.tasks)

    def problem(self) -> str:
        """Return a sentence about leaked resources, or an empty text."""
        if self.descriptors <= 0 and self.tasks <= 0:
            return ""
        return f"{self.descriptors} descriptors and {self.tasks} tasks are left"


def descriptors_of(process: int) -> int:
    return sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())


async def wait_until_released(
    poll: Callable[[], Awaitable[Resources]], baseline: Resources, seconds: float
) -> Resources:
    """Poll until nothing is held beyond the baseline, for so many seconds; return the minimum."""
    resources = await poll()
    with trio.move_on_after(seconds):
        while resources.descriptors > baseline.descriptors or resources.tasks > baseline.tasks:
            await trio.sleep(POLL_SECONDS)
            now = await poll()
            resources = Resources(
                min(resources.descriptors, now.descriptors), min(resources.tasks, now.tasks)
            )
    return resources


# The other client.


@attrs.define
class OtherClient:
    """The well-behaved client, which runs `call_forever`."""

    process: subprocess.Popen[str]
    _calls: list[tuple[float, float | None]] = attrs.field(factory=list[tuple[float, float | None]])

    async def read_calls(self) -> None:
        """Store what the client prints, until it is stopped."""
        assert self.process.stdout is not None
        async for line in trio.wrap_file(self.process.stdout):
            begin, _, seconds = line.partition(" ")
            self._calls.append((float(begin), float(seconds) if seconds.strip() else None))

    def stop(self) -> None:
        self.process.terminate()

    async def calls(self, since: float) -> list[float | None]:
        """Return the durations of all calls that began since then, up to one that begins now."""
        now = time.monotonic()
        with trio.move_on_after(_OTHER_CALL_SECONDS_MAX):
            while not self._calls or self._calls[-1][0] < now:  # noqa: ASYNC110  # lines of a pipe
                await trio.sleep(POLL_SECONDS)
        return [seconds for begin, seconds in self._calls if begin >= since]


@contextmanager
def other_client_calling(command: Sequence[str]) -> Generator[OtherClient]:
    """Run a well-behaved client while the block runs."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        other_client = OtherClient(process)
        try:
            yield other_client
        finally:
            other_client.stop()


def call_forever(is_answered: Callable[[], bool]) -> NoReturn:
    """Call again and again; `is_answered` makes a call and returns whether its answer is right.

    Prints the monotonic time at which each call began, a space, and its duration, or nothing if it
    failed.
    """
    while True:
        begin = time.monotonic()
        was_answered = is_answered()
        print(begin, time.monotonic() - begin if was_answered else "", flush=True)
        time.sleep(PAUSE_SECONDS)


# All figures of an attack.


@attrs.frozen(kw_only=True)
class Cost:
    """The cost of an attack.

    Attributes:
        cpu_ms: The server's CPU time.
        rss_kib: The growth of the server's memory at its peak and afterwards.
        left: The leaked file descriptors and tasks.
        calls: The durations of the other client's calls, in seconds; None for a failed one.
    """

    cpu_ms: float
    rss_kib: tuple[float, float]
    left: Resources
    calls: Sequence[float | None]

    @property
    def latest(self) -> float:
        """Return the longest duration of a call."""
        return max((seconds for seconds in self.calls if seconds is not None), default=0.0)


@attrs.define
class Watch:
    """Measures a server by its process id, its own count of tasks, and the other client's calls."""

    process: int
    other_client: OtherClient
    count_tasks: Callable[[], int]
    baseline: Resources = attrs.field(default=Resources(0, 0), init=False)

    async def resources(self) -> Resources:
        """Return the larger of two readings, taken in a thread, as this one may be busy.

        While hypercorn starts again after a failure, its listening sockets are missing for a
        moment. A baseline from such a reading would be too low for good.
        """
        first = await trio.to_thread.run_sync(self._resources)
        await trio.sleep(POLL_SECONDS)
        second = await trio.to_thread.run_sync(self._resources)
        return Resources(max(first.descriptors, second.descriptors), max(first.tasks, second.tasks))

    def _resources(self) -> Resources:
        return Resources(descriptors_of(self.process), self.count_tasks())

    async def cost_of(self, attack: Callable[[], Awaitable[Outcome]]) -> tuple[Outcome, Cost]:
        """Run an attack; return its outcome and its cost."""
        meter, begin = Meter(self.process), time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(meter.poll)
            outcome = await attack()
            nursery.cancel_scope.cancel()
        cpu_ms = meter.cpu_ms()
        baseline = self.baseline
        self.baseline = await wait_until_released(self.resources, baseline, RELEASE_SECONDS_MAX)
        return outcome, Cost(
            cpu_ms=cpu_ms,
            rss_kib=meter.rss_kib(),
            left=self.baseline.excess_over(baseline),
            calls=await self.other_client.calls(begin),
        )


@asynccontextmanager
async def watched(
    process: int, count_tasks: Callable[[], int], other_client_command: Sequence[str]
) -> AsyncGenerator[Watch]:
    """Watch an idle server while another client calls it."""
    with other_client_calling(other_client_command) as other_client:
        watch = Watch(process, other_client, count_tasks)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other_client.read_calls)
            try:
                await other_client.calls(0.0)
                watch.baseline = await wait_until_released(
                    watch.resources, Resources(0, 0), QUIET_SECONDS
                )
                yield watch
            finally:
                other_client.stop()  # or the thread that listens would wait for its next call
