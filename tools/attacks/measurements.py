"""Measure a server process during attacks, and report the results.

The figures are of the server's process alone, from /proc (Linux only). Meanwhile `other_client.py`
calls the server in a process of its own, which shows delays and failures.
"""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import attrs
import trio
from other_client import count_tasks
from rich.table import Table

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("interop", "bench")]

from interop_command import new_table, show
from load import cpu_seconds_of, rss_mib_of
from server_processes import running_server

HERE: Final = Path(__file__).resolve().parent
POLL_SECONDS: Final = 0.02
"""The interval of polling a server."""

RESTARTS_MAX: Final = 20
"""How often a server may start again while its resources are read."""

QUIET_SECONDS: Final = 0.5
RELEASE_SECONDS_MAX: Final = 5.0

_OTHER_CALL_SECONDS_MAX: Final = 5.0
WEBSOCKETS: Final = ("websocket", "native", "hypercorn")

Outcome = TypeVar("Outcome")

# The server.


@attrs.frozen
class RunningTarget:
    """A running server: its transport, process id and URL."""

    transport: str
    process: int
    url: str

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    def watched(self) -> AbstractAsyncContextManager["Watch"]:
        """Watch the idle server while another client calls it."""
        other_client = [sys.executable, str(HERE / "other_client.py"), self.url]
        return watched(self.process, partial(count_tasks, self.url), other_client)


@contextmanager
def running_target(
    transport: str, limits: str, folder: Path, *certificate: str
) -> Generator[RunningTarget]:
    """Run `target.py` in a process while the block runs, with TLS by a certificate and its key."""
    address = str(folder / "socket") if transport == "unix" else "0"
    options = ["--transport", transport, "--address", address, "--limits", limits]
    if certificate:
        options += ["--certificate", *certificate]
    command = [sys.executable, str(HERE / "target.py"), *options]
    with running_server(command, folder / f"{transport}.log") as server:
        url = server.url
        if transport in WEBSOCKETS and limits != "http":
            url = f"ws://{server.address}/ws"
        yield RunningTarget(transport, server.process.pid, url)


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
        for _ in range(RESTARTS_MAX):
            # hypercorn loses all connections when it starts again after a failure.
            with suppress(ConnectionError):
                return Resources(descriptors_of(self.process), self.count_tasks())
            time.sleep(POLL_SECONDS)
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


# The report.

LATE_SECONDS: Final = 5.0
"""The delay in seconds after which an answer to the other client is late."""

HEADINGS: Final = (
    *("closed\nafter s", "CPU\nms", "RSS\nKiB", "left\nKiB", "left\nfds", "left\ntasks"),
    *("others'\ncalls", "latest\nms"),
)


@attrs.frozen(kw_only=True)
class AttackResult:
    """The result of one attack or fault.

    Attributes:
        name: The attack.
        target: The transport, or the HTTP host.
        outcomes: How the connections ended.
        seconds: How long each lasted; None if the server did not close it.
        violations: Sentences about outcomes that are not allowed.
        cost: The cost of the attack.
        late_seconds: The delay after which an answer to the other client is late.
        may_fail_others: Whether calls of the other client may fail.
    """

    name: str
    target: str
    outcomes: str
    seconds: Sequence[float | None]
    violations: Sequence[str]
    cost: Cost
    late_seconds: float = LATE_SECONDS
    may_fail_others: bool = False

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each problem."""
        yield from self.violations
        cost = self.cost
        if problem := cost.left.problem():
            yield problem
        if None in cost.calls and not self.may_fail_others:
            yield f"{cost.calls.count(None)} calls of the other client failed"
        if cost.latest > self.late_seconds or not cost.calls:
            yield f"the other client was answered after {cost.latest:.1f} s"


def table_of(target: str, results: Sequence[AttackResult]) -> Table:
    """Return the table of one target's results."""
    table = new_table(target, "clients", "outcomes", right=HEADINGS)
    for result in results:
        table.add_row(result.name, *_cells(result))
    return table


def _cells(result: AttackResult) -> Iterator[str]:
    cost = result.cost
    yield f"{len(result.seconds):,}"
    yield result.outcomes
    yield f"{max((seconds or 0 for seconds in result.seconds), default=0):.2f}"
    yield f"{cost.cpu_ms:,.0f}"
    yield from (f"{kib:,.0f}" for kib in cost.rss_kib)
    yield from (f"{left}" for left in (cost.left.descriptors, cost.left.tasks))
    yield f"{len(cost.calls)}"
    yield f"{cost.latest * 1000:.0f}"


def report(results: Sequence[AttackResult], what: str, seconds: float) -> bool:
    """Print all tables and problems; return whether there are results and no problems."""
    found = [] if results else ["nothing was done"]
    show(None, found)
    for target in dict.fromkeys(each.target for each in results):
        there = [each for each in results if each.target == target]
        problems = [
            f"{result.name}, {target}: {problem} x{count}"
            for result in there
            for problem, count in Counter(result.problems()).items()
        ]
        show(table_of(target, there), problems)
        print()
        found += problems
    print(f"{len(results)} {what}, {len(found)} problems, {seconds:.0f} s")
    return not found
