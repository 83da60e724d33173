"""What hostile clients get, and what they cost: `python tools/hostile.py`.

Each attack of `hostile_attacks` meets a server of its own process, over both hosts, while a client
that means well makes a call after the other, each on a new connection. Prints a table; the exit
status is 1 if a client got what it should not have, was not let go, left something behind, or kept
the other client waiting. Costs are the server's, with the well-meant calls in them (Linux only).
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import attrs
import msgspec
import trio
from hostile_attacks import ATTACKS, PATIENCE_SECONDS, Attack, Ending, Target, called

HERE: Final = Path(__file__).resolve().parent
sys.path += [str(HERE / "interop"), str(HERE / "bench")]

from http_wire import Link  # noqa: E402
from load import cpu_seconds_of, rss_mib_of  # noqa: E402
from reached import Served, served  # noqa: E402
from rich.table import Table  # noqa: E402
from sitting import empty_table, show  # noqa: E402

HOSTS: Final = ("native", "hypercorn")
LATE_SECONDS: Final = 4.0
QUIET_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.02
"""Between two looks at the server, and two calls of the client that means well."""


@attrs.frozen(kw_only=True)
class Result:
    """What an attack came to.

    Attributes:
        attack: Which.
        host: Who held the connections.
        endings: What became of each.
        cpu_ms: What it took of the server.
        rss_kib: By how much the server grew meanwhile, and how much of it is left.
        connections_left: How many did not go away.
        tasks_left: The same of tasks.
        calls: How long each of the well-meant calls took, in seconds; None: it failed.
    """

    attack: Attack
    host: str
    endings: Sequence[Ending]
    cpu_ms: float
    rss_kib: tuple[float, float]
    connections_left: int
    tasks_left: int
    calls: Sequence[float | None]

    @property
    def latest(self) -> float:
        """How late the latest of the well-meant answers came."""
        return max((seconds for seconds in self.calls if seconds is not None), default=0.0)


# What is seen of the server


@attrs.frozen
class Watched:
    """A server's process, from outside."""

    process: subprocess.Popen[bytes]
    port: int

    def connections(self) -> int:
        """How many sockets it holds, with those that it listens and wakes up by."""
        found = 0
        for each in Path(f"/proc/{self.process.pid}/fd").iterdir():
            try:
                found += str(each.readlink()).startswith("socket:")
            except FileNotFoundError:
                continue
        return found

    def tasks(self) -> int:
        """How many tasks it has."""
        with Link(self.port) as link:
            answer = link.ask(called("tasks", {}))
        return int(msgspec.json.decode(next(answer.messages()))["result"]["content"][0]["text"])

    def cpu_ms(self) -> float:
        """What it has taken so far."""
        return cpu_seconds_of(self.process.pid) * 1000

    def rss_kib(self) -> float:
        """What it holds."""
        return rss_mib_of(self.process.pid) * 1024


@attrs.define
class Neighbour:
    """The client that means well: a process of its own, so that nobody else delays it."""

    process: subprocess.Popen[str]
    _calls: list[tuple[float, float | None]] = attrs.field(factory=list)

    async def listen(self) -> None:
        """Take in what it says of its calls."""
        assert self.process.stdout is not None
        async for line in trio.wrap_file(self.process.stdout):
            begin, _, seconds = line.partition(" ")
            self._calls.append((float(begin), float(seconds) if seconds.strip() else None))

    async def calls(self, since: float) -> list[float | None]:
        """Those that have begun since then, up to one that begins now."""
        now = time.monotonic()
        with trio.move_on_after(SETTLE_SECONDS):
            while not self._calls or self._calls[-1][0] < now:  # noqa: ASYNC110  # lines of a pipe
                await trio.sleep(LOOK_SECONDS)
        return [seconds for begin, seconds in self._calls if begin >= since]


@contextmanager
def neighbour_of(port: int) -> Iterator[Neighbour]:
    """A client that means well, and calls from now on."""
    command = [sys.executable, str(HERE / "hostile_neighbour.py"), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Neighbour(process)
        finally:
            process.terminate()


# The attacks


async def suffer_all(server: Served, host: str, attacks: Sequence[Attack]) -> list[Result]:
    """Attack a server in every way, one after the other."""
    watched = Watched(server.process, int(server.origin.rpartition(":")[2]))
    with neighbour_of(watched.port) as neighbour:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour.listen)
            at_rest = await _settled(watched, Held(0, 0), QUIET_SECONDS)
            results: list[Result] = []
            for attack in attacks:
                result, at_rest = await _suffer(attack, host, watched, neighbour, at_rest)
                results.append(result)
            neighbour.process.terminate()  # which ends what it says
    return results


@attrs.frozen
class Held:
    """What a server holds."""

    connections: int
    tasks: int


async def _suffer(
    attack: Attack, host: str, watched: Watched, neighbour: Neighbour, at_rest: Held
) -> tuple[Result, Held]:
    """Attack once; returns what is held after it as well."""
    cpu_ms, rss_kib, begin = watched.cpu_ms(), watched.rss_kib(), time.monotonic()
    peak_kib = rss_kib

    async def look() -> None:
        nonlocal peak_kib
        while True:
            peak_kib = max(peak_kib, watched.rss_kib())
            await trio.sleep(LOOK_SECONDS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        endings = await attack.run(Target(watched.port))
        nursery.cancel_scope.cancel()
    cpu_ms = watched.cpu_ms() - cpu_ms
    left = await _settled(watched, at_rest, SETTLE_SECONDS)
    result = Result(
        attack=attack,
        host=host,
        endings=endings,
        cpu_ms=cpu_ms,
        rss_kib=(peak_kib - rss_kib, watched.rss_kib() - rss_kib),
        connections_left=left.connections - at_rest.connections,
        tasks_left=left.tasks - at_rest.tasks,
        calls=await neighbour.calls(begin),
    )
    return result, left


async def _settled(watched: Watched, at_rest: Held, seconds: float) -> Held:
    """What is held once that is no more than at rest, or at least: the neighbour comes and goes."""
    connections, tasks = watched.connections(), watched.tasks()
    with trio.move_on_after(seconds):
        while connections > at_rest.connections or tasks > at_rest.tasks:
            await trio.sleep(LOOK_SECONDS)
            connections = min(connections, watched.connections())
            tasks = min(tasks, watched.tasks())
    return Held(connections, tasks)


def run(host: str, attacks: Sequence[Attack]) -> list[Result]:
    """Start a server, and attack it.

    Raises:
        ServerFailed: It did not begin, or did not end.
    """
    command = [sys.executable, str(HERE / "hostile_server.py"), "--host", host]
    with (
        tempfile.TemporaryDirectory(prefix="mcp_trio-hostile-") as folder,
        served(command, Path(folder) / "log") as server,
    ):
        return trio.run(suffer_all, server, host, attacks)


# What came of it


def told(endings: Sequence[Ending]) -> str:
    """How often connections ended how, such as `400 x5, silence x2`."""
    counted = Counter(_in_a_word(each) for each in endings)
    return ", ".join(f"{word} x{count}" for word, count in counted.most_common())


def _in_a_word(ending: Ending) -> str:
    answers = Counter(ending.answers)
    words = [
        f"{status}" if count == 1 else f"{status} {count:,} times"
        for status, count in answers.items()
    ]
    is_open = ["open"] if ending.seconds is None else []
    return "+".join([*words, *is_open]) or "silence"


def complaints(result: Result) -> Iterator[str]:
    """What must not be, in sentences."""
    attack, host = result.attack, result.host
    if host in attack.hosts:
        for ending in result.endings:
            yield from _complaints_of(attack, ending)
    if any(ending.has_leaked for ending in result.endings):
        yield "a header was injected"
    if result.connections_left > 0 or result.tasks_left > 0:
        yield f"{result.connections_left} connections and {result.tasks_left} tasks are left"
    if None in result.calls:
        yield f"{result.calls.count(None)} calls of the other client failed"
    if result.latest > LATE_SECONDS or not result.calls:
        yield f"the other client was answered after {result.latest:.1f} s"


def _complaints_of(attack: Attack, ending: Ending) -> Iterator[str]:
    if ending.seconds is None:
        yield f"a connection was kept for {PATIENCE_SECONDS:g} s: {_in_a_word(ending)}"
    if len(ending.answers) > attack.answers_max:
        yield f"{len(ending.answers)} answers"
    if not set(ending.answers).issubset(attack.statuses):
        yield f"answered with {_in_a_word(ending)}"


def table_of(host: str, results: Sequence[Result]) -> Table:
    """What each attack came to at one host."""
    table = empty_table()
    table.add_column(f"{host}", no_wrap=True)
    table.add_column("clients", justify="right")
    table.add_column("what they got")
    for heading in (
        "let go\nafter s",
        "CPU\nms",
        "RSS\nKiB",
        "left\nKiB",
        "left\nconn.",
        "left\ntasks",
        "others'\ncalls",
        "latest\nms",
    ):
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(result.attack.name, *_cells(result))
    return table


def _cells(result: Result) -> Iterator[str]:
    yield f"{len(result.endings):,}"
    yield told(result.endings)
    yield f"{max((each.seconds or 0 for each in result.endings), default=0):.2f}"
    yield f"{result.cpu_ms:,.0f}"
    yield from (f"{kib:,.0f}" for kib in result.rss_kib)
    yield from (f"{left}" for left in (result.connections_left, result.tasks_left))
    yield f"{len(result.calls)}"
    yield f"{result.latest * 1000:.0f}"


def report(results: Sequence[Result], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    found: list[str] = []
    for host, rows in groupby(results, attrgetter("host")):
        of_host = list(rows)
        wrong = [
            f"{result.attack.name}, {host}: {complaint} x{count}"
            for result in of_host
            for complaint, count in Counter(complaints(result)).items()
        ]
        show(table_of(host, of_host), wrong)
        print()
        found += wrong
    print(f"{len(results)} attacks, {len(found)} complaints, {seconds:.0f} s")
    return not found


def main(arguments: list[str]) -> int:
    """Attack both hosts, and report."""
    parser = argparse.ArgumentParser(description="Attack a server in every way.")
    parser.add_argument("--host", choices=HOSTS, action="append", help="may be repeated")
    parser.add_argument("--attack", metavar="WORDS", help="only those whose name has these words")
    options = parser.parse_args(arguments)
    attacks = [each for each in ATTACKS if (options.attack or "") in each.name]
    # Thousands of connections are thousands of descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begin = time.monotonic()
    results = [result for host in options.host or HOSTS for result in run(host, attacks)]
    return 0 if report(results, time.monotonic() - begin) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
