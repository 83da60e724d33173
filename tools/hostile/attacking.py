"""What hostile clients get, and what they cost: `python tools/hostile/attacking.py`.

Each attack of `attacks` meets a server of its own process, while a client that means well
makes a call after the other, each on a new connection. Both hosts are attacked at the same time.
Prints a table for each; the exit status is 1 if a client got what it should not have, was not let
go, left something behind, or kept the other client waiting. Costs are the server's, with the
well-meant calls in them (Linux only).
"""

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import attrs
import msgspec
import trio
from attacks import ATTACKS, PATIENCE_SECONDS, Attack, Ending, Target, called

HERE: Final = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / each) for each in ("interop", "bench")]

from http_wire import Link  # noqa: E402
from reached import Served, served  # noqa: E402
from rich.table import Table  # noqa: E402
from sitting import empty_table, show  # noqa: E402
from under_attack import Held, Meter, Neighbour, descriptors_of, neighbour_of, settled  # noqa: E402

HOSTS: Final = ("native", "hypercorn")
LATE_SECONDS: Final = 5.0
QUIET_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 5.0


@attrs.frozen(kw_only=True)
class Result:
    """What an attack came to.

    Attributes:
        attack: Which.
        host: Who held the connections.
        endings: What became of each.
        cpu_ms: What it took of the server.
        rss_kib: By how much the server grew meanwhile, and how much of it is left.
        descriptors_left: How many connections and files did not go away.
        tasks_left: The same of tasks.
        calls: How long each of the well-meant calls took, in seconds; None: it failed.
    """

    attack: Attack
    host: str
    endings: Sequence[Ending]
    cpu_ms: float
    rss_kib: tuple[float, float]
    descriptors_left: int
    tasks_left: int
    calls: Sequence[float | None]

    @property
    def latest(self) -> float:
        """How late the latest of the well-meant answers came."""
        return max((seconds for seconds in self.calls if seconds is not None), default=0.0)


# The attacks


@attrs.frozen
class Watched:
    """A server, as it is attacked and looked at.

    Attributes:
        host: Who holds the connections.
        process: The id of its process.
        port: Where it listens.
    """

    host: str
    process: int
    port: int

    async def held(self) -> Held:
        """What it holds; another thread asks, for it may have much else to do."""
        return await trio.to_thread.run_sync(self._held)

    def _held(self) -> Held:
        descriptors = descriptors_of(self.process)
        with Link(self.port) as link:
            answer = link.ask(called("tasks", {}))
        result = msgspec.json.decode(next(answer.messages()))["result"]
        return Held(descriptors, int(result["content"][0]["text"]))


async def suffer_everywhere(
    servers: Mapping[str, Served], attacks: Sequence[Attack]
) -> list[Result]:
    """Attack the servers, by their hosts, all at the same time."""
    results: list[Result] = []

    async def suffer(host: str, server: Served) -> None:
        port = int(server.origin.rpartition(":")[2])
        results.extend(await _suffer_all(Watched(host, server.process.pid, port), attacks))

    async with trio.open_nursery() as nursery:
        for host, server in servers.items():
            nursery.start_soon(suffer, host, server)
    return sorted(results, key=lambda result: [*servers].index(result.host))


async def _suffer_all(watched: Watched, attacks: Sequence[Attack]) -> list[Result]:
    """Attack a server in every way, one after the other."""
    results: list[Result] = []
    command = [sys.executable, str(HERE / "call_neighbour.py"), str(watched.port)]
    with neighbour_of(command) as neighbour:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour.listen)
            at_rest = await settled(watched.held, Held(0, 0), QUIET_SECONDS)
            for attack in attacks:
                result, at_rest = await _suffer(attack, watched, neighbour, at_rest)
                results.append(result)
            neighbour.silence()
    return results


async def _suffer(
    attack: Attack, watched: Watched, neighbour: Neighbour, at_rest: Held
) -> tuple[Result, Held]:
    """Attack once; returns what is held after it as well."""
    meter, begin = Meter(watched.process), time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.look)
        endings = await attack.run(Target(watched.port))
        nursery.cancel_scope.cancel()
    cpu_ms = meter.cpu_ms()
    left = await settled(watched.held, at_rest, SETTLE_SECONDS)
    result = Result(
        attack=attack,
        host=watched.host,
        endings=endings,
        cpu_ms=cpu_ms,
        rss_kib=meter.rss_kib(),
        descriptors_left=left.descriptors - at_rest.descriptors,
        tasks_left=left.tasks - at_rest.tasks,
        calls=await neighbour.calls(begin),
    )
    return result, left


def run(hosts: Sequence[str], attacks: Sequence[Attack]) -> list[Result]:
    """Start a server for each host, and attack it.

    Raises:
        ServerFailed: One did not begin, or did not end.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcp_trio-hostile-")))
        servers = {
            host: stack.enter_context(served(_command(host), folder / host)) for host in hosts
        }
        return trio.run(partial(suffer_everywhere, servers, attacks))


def _command(host: str) -> list[str]:
    return [sys.executable, str(HERE / "attacked_server.py"), "--host", host]


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
    if result.descriptors_left > 0 or result.tasks_left > 0:
        yield f"{result.descriptors_left} descriptors and {result.tasks_left} tasks are left"
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
        "left\nfds",
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
    yield from (f"{left}" for left in (result.descriptors_left, result.tasks_left))
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
    """Attack the hosts, and report."""
    parser = argparse.ArgumentParser(description="Attack a server in every way.")
    parser.add_argument("--host", choices=HOSTS, action="append", help="may be repeated")
    parser.add_argument("--attack", metavar="WORDS", help="only those whose name has these words")
    options = parser.parse_args(arguments)
    attacks = [each for each in ATTACKS if (options.attack or "") in each.name]
    # Thousands of connections are thousands of descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begin = time.monotonic()
    results = run(options.host or HOSTS, attacks)
    return 0 if report(results, time.monotonic() - begin) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
