"""What goes wrong on sockets, and what becomes of it: `python tools/faults/troubling.py`.

Each fault of `at_servers` meets a server of its own process over every socket transport,
while a client that means well calls in a session that it keeps. Prints a table for each transport;
the exit status is 1 if a client got what it should not have, was not let go, left something
behind, or kept the other one waiting. Costs are the server's, with the well-meant calls in them
(Linux only). `at_clients` is the other way round: what our client makes of bad servers.
"""

import argparse
import contextlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import at_clients
import attrs
import trio
from at_servers import FAULTS, SESSIONS, WAYS, WEB, Fault
from raw_ends import Lines, Messages, called, in_words
from session_neighbour import connected, text_of

HERE: Final = Path(__file__).resolve().parent
sys.path += [str(HERE.parent / each) for each in ("interop", "bench", "hostile")]

from rich.table import Table  # noqa: E402
from sitting import empty_table, show  # noqa: E402
from under_attack import Held, Meter, Neighbour, descriptors_of, neighbour_of, settled  # noqa: E402

PATIENCE_SECONDS: Final = 15.0
"""How long it takes at most until a connection is closed that the server has no use for."""

_ROUND_SECONDS: Final = 60.0  # and until as many sessions as can be have had their turn

LATE_SECONDS: Final = 5.0
_LATE_BESIDE_MANY_SECONDS: Final = 15.0
QUIET_SECONDS: Final = 0.3
SETTLE_SECONDS: Final = 4.0
END_SECONDS: Final = 10.0


@attrs.frozen
class Ending:
    """What became of a connection: in words, and after how long; None: the server kept it."""

    words: str
    seconds: float | None


@attrs.frozen(kw_only=True)
class Result:
    """What a fault came to.

    Attributes:
        fault: Which.
        way: Over which transport.
        endings: What became of each connection.
        cpu_ms: What it took of the server.
        rss_kib: By how much the server grew meanwhile, and how much of it is left.
        left: The descriptors and tasks that did not go away.
        calls: How long each of the well-meant calls took, in seconds; None: it failed.
    """

    fault: Fault
    way: str
    endings: Sequence[Ending]
    cpu_ms: float
    rss_kib: tuple[float, float]
    left: Held
    calls: Sequence[float | None]

    @property
    def latest(self) -> float:
        """How late the latest of the well-meant answers came."""
        return max((seconds for seconds in self.calls if seconds is not None), default=0.0)


# A server, and what is done to it


@attrs.frozen
class Troubled:
    """A server: its transport, its process, and where it is."""

    way: str
    process: int
    url: str

    async def connect(self) -> Lines:
        """A connection on which nothing was said."""
        parts = urlsplit(self.url)
        if parts.scheme == "unix":
            return Lines(await trio.open_unix_socket(parts.path))
        assert parts.port is not None
        stream = await trio.open_tcp_stream("127.0.0.1", parts.port)
        return Messages(stream, parts.netloc, parts.path) if self.way in WEB else Lines(stream)

    async def held(self) -> Held:
        """What it holds; another thread asks, for this one may have much else to do."""
        return await trio.to_thread.run_sync(self._held)

    def _held(self) -> Held:
        descriptors = descriptors_of(self.process)
        wire = connected(self.url)
        try:
            return Held(descriptors, int(text_of(wire, called("tasks"))))
        finally:
            wire.close()


@contextlib.contextmanager
def served(way: str, folder: Path, *options: str) -> Generator[Troubled]:
    """A server of its own process.

    Raises:
        RuntimeError: It did not begin.
        TimeoutExpired: It did not end.
    """
    place = str(folder / "socket") if way == "unix" else "0"
    script = str(HERE / "troubled_server.py")
    command = [sys.executable, script, "--transport", way, "--place", place, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            if not url:
                raise RuntimeError(f"the server does not serve: {command}")
            yield Troubled(way, process.pid, _of_websocket(url) if way in WEB else url)
            process.send_signal(signal.SIGTERM)
            process.wait(END_SECONDS)
        finally:
            process.kill()


def _of_websocket(url: str) -> str:
    return url if url.startswith("ws") else f"ws://{urlsplit(url).netloc}/ws"


async def trouble(server: Troubled, faults: Sequence[Fault]) -> list[Result]:
    """Do everything to a server, one after the other."""
    results: list[Result] = []
    with neighbour_of(
        [sys.executable, str(HERE / "session_neighbour.py"), server.url]
    ) as neighbour:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(neighbour.listen)
            await neighbour.calls(0.0)
            at_rest = await settled(server.held, Held(0, 0), QUIET_SECONDS)
            for fault in faults:
                if server.way in fault.expected:
                    result, at_rest = await _suffer(fault, server, neighbour, at_rest)
                    results.append(result)
            neighbour.silence()
    return results


async def _suffer(
    fault: Fault, server: Troubled, neighbour: Neighbour, at_rest: Held
) -> tuple[Result, Held]:
    """Do it once; returns what is held after it as well."""
    meter, begin = Meter(server.process), time.monotonic()
    endings: list[Ending] = []
    async with trio.open_nursery() as looking:
        looking.start_soon(meter.look)
        async with trio.open_nursery() as peers:
            for _ in range(fault.count):
                peers.start_soon(_end_of, fault, server, endings)
        looking.cancel_scope.cancel()
    cpu_ms = meter.cpu_ms()
    held = await settled(server.held, at_rest, SETTLE_SECONDS)
    result = Result(
        fault=fault,
        way=server.way,
        endings=endings,
        cpu_ms=cpu_ms,
        rss_kib=meter.rss_kib(),
        left=Held(held.descriptors - at_rest.descriptors, held.tasks - at_rest.tasks),
        calls=await neighbour.calls(begin),
    )
    return result, held


async def _end_of(fault: Fault, server: Troubled, endings: list[Ending]) -> None:
    peer = await server.connect()
    begin = time.monotonic()
    seconds_max = _ROUND_SECONDS if fault.is_patient else PATIENCE_SECONDS
    with trio.move_on_after(seconds_max) as patience:
        async with peer.stream, trio.open_nursery() as nursery:
            if fault.is_reading:
                nursery.start_soon(fault.script, peer)
                await peer.read()
            else:
                await fault.script(peer)
            nursery.cancel_scope.cancel()
    seconds = None if patience.cancelled_caught else time.monotonic() - begin
    endings.append(Ending(in_words(peer.words), seconds))


def run(ways: Collection[str], faults: Sequence[Fault]) -> list[Result]:
    """Start a server for each way, all at the same time, and trouble it; the patient ones alone."""
    results: list[Result] = []

    async def trouble_one(server: Troubled) -> None:
        hasty = [each for each in faults if not each.is_patient]
        results.extend(await trouble(server, hasty))

    async def trouble_all(servers: Sequence[Troubled]) -> None:
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(trouble_one, server)

    with tempfile.TemporaryDirectory(prefix="mcp_trio-faults-") as made:
        folder, patient = Path(made), [each for each in faults if each.is_patient]
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(served(way, folder)) for way in ways]
            trio.run(partial(trouble_all, servers))
        for way in ways if patient else ():
            with served(way, folder, "--patient") as server:
                results += trio.run(trouble, server, patient)
    return results


# What came of it


def told(endings: Sequence[Ending]) -> str:
    """How often connections ended how, such as `close 1007 x10`."""
    counted = Counter(
        each.words if each.seconds is not None else f"{each.words or 'nothing'}, kept"
        for each in endings
    )
    return "; ".join(f"{words or 'nothing'} ({count:,})" for words, count in counted.most_common())


def complaints(result: Result) -> Iterator[str]:
    """What must not be, in sentences."""
    expected = result.fault.expected[result.way]
    for ending in result.endings:
        if ending.seconds is None:
            yield f"a connection was kept: {ending.words or 'nothing'}"
        elif ending.words not in expected:
            yield f"{ending.words or 'nothing'}, and not {' or '.join(expected)}"
    if result.left.descriptors > 0 or result.left.tasks > 0:
        yield f"{result.left.descriptors} descriptors and {result.left.tasks} tasks are left"
    if None in result.calls:
        yield f"{result.calls.count(None)} calls of the other client failed"
    late_seconds = _LATE_BESIDE_MANY_SECONDS if result.fault.is_patient else LATE_SECONDS
    if result.latest > late_seconds or not result.calls:
        yield f"the other client was answered after {result.latest:.1f} s"


def table_of(way: str, results: Sequence[Result]) -> Table:
    """What each fault came to over one transport."""
    table = empty_table()
    table.add_column(way, no_wrap=True)
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
        table.add_row(f"{result.fault.name} ({len(result.endings):,})", *_cells(result))
    return table


def _cells(result: Result) -> Iterator[str]:
    yield told(result.endings)
    yield f"{max((each.seconds or 0 for each in result.endings), default=0):.2f}"
    yield f"{result.cpu_ms:,.0f}"
    yield from (f"{kib:,.0f}" for kib in result.rss_kib)
    yield from (f"{left}" for left in (result.left.descriptors, result.left.tasks))
    yield f"{len(result.calls)}"
    yield f"{result.latest * 1000:.0f}"


def report(results: Sequence[Result], seconds: float) -> bool:
    """Print everything; returns whether it is as it should be."""
    found: list[str] = []
    for way in dict.fromkeys(each.way for each in results):
        of_way = [each for each in results if each.way == way]
        wrong = [
            f"{result.fault.name}, {way}: {complaint} x{count}"
            for result in of_way
            for complaint, count in Counter(complaints(result)).items()
        ]
        show(table_of(way, of_way), wrong)
        print()
        found += wrong
    print(f"{len(results)} faults at servers, {len(found)} complaints, {seconds:.0f} s")
    return not found


def main(arguments: list[str]) -> int:
    """Do it in all ways, and report."""
    parser = argparse.ArgumentParser(description="Do to servers and clients what goes wrong.")
    parser.add_argument("--way", choices=WAYS, action="append", help="may be repeated")
    parser.add_argument("--fault", metavar="WORDS", help="only those whose name has these words")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="how many at once")
    options = parser.parse_args(arguments)
    # Thousands of connections are thousands of descriptors.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    begin = time.monotonic()
    faults = [
        attrs.evolve(each, count=options.sessions) if each.is_patient else each
        for each in FAULTS
        if (options.fault or "") in each.name
    ]
    is_well = report(run(options.way or WAYS, faults), time.monotonic() - begin)
    if not (options.way or options.fault):
        is_well &= at_clients.report(at_clients.run())
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
