"""Faults on sockets and what has to come of them: `python tools/faults/run_faults.py`.

Each fault of `at_servers` meets a server of its own process over every socket transport,
while a client that means well calls in a session that it keeps. Prints a table for each transport;
the exit status is 1 if a client got what it should not have, was not let go, left something
behind, or kept the other one waiting. Costs are the server's, with the well-meant calls in them
(Linux only). `at_clients` is the other way round: what our client makes of bad servers.
"""

import argparse
import contextlib
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

import attrs
import faulty_servers
import trio
from faulty_clients import FAULTS, WAYS, WEB, Fault
from raw_peers import Lines, Messages, in_words
from well_behaved_session import connected, text_of

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "bench")]

from attack_report import LATE_SECONDS, Suffered, report
from attack_target import allow_descriptors
from load import called
from observed_process import PATIENCE_SECONDS, Watch, watched

HERE: Final = Path(__file__).resolve().parent

_ROUND_SECONDS: Final = 60.0  # the same where thousands of sessions have their turn

LATE_BESIDE_MANY_SECONDS: Final = 15.0
END_SECONDS: Final = 10.0


@attrs.frozen
class Ending:
    """What became of a connection: in words, and after how long; None: the server kept it."""

    words: str
    seconds: float | None


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

    def count_tasks(self) -> int:
        """How many live in it."""
        wire = connected(self.url)
        try:
            return int(text_of(wire, called("tasks", {})))
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
    script = str(HERE / "fault_target.py")
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


async def trouble(server: Troubled, faults: Sequence[Fault]) -> list[Suffered]:
    """Do everything to a server, one after the other."""
    neighbour = [sys.executable, str(HERE / "well_behaved_session.py"), server.url]
    async with watched(server.process, server.count_tasks, neighbour) as watch:
        return [
            await _suffer(fault, server, watch) for fault in faults if server.way in fault.expected
        ]


async def _suffer(fault: Fault, server: Troubled, watch: Watch) -> Suffered:
    endings, toll = await watch.toll_of(partial(_do, fault, server))
    return Suffered(
        name=fault.name,
        place=server.way,
        told=told(endings),
        seconds=[each.seconds for each in endings],
        wrong=list(wrong(endings, fault.expected[server.way])),
        toll=toll,
        late_seconds=LATE_BESIDE_MANY_SECONDS if fault.is_patient else LATE_SECONDS,
    )


async def _do(fault: Fault, server: Troubled) -> list[Ending]:
    """Do it on all connections at once."""
    endings: list[Ending] = []
    async with trio.open_nursery() as peers:
        for _ in range(fault.count):
            peers.start_soon(_end_of, fault, server, endings)
    return endings


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


def run(ways: Sequence[str], faults: Sequence[Fault]) -> list[Suffered]:
    """Start a server for each way, all at the same time, and trouble it; the patient ones alone."""
    results: list[Suffered] = []

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
            trio.run(trouble_all, servers)
        for way in ways if patient else ():
            with served(way, folder, "--patient") as server:
                results += trio.run(trouble, server, patient)
    return sorted(results, key=lambda result: ways.index(result.place))


# What came of it


def told(endings: Sequence[Ending]) -> str:
    """How often connections ended how, such as `close 1007 x10`."""
    counted = Counter(
        each.words if each.seconds is not None else f"{each.words or 'nothing'}, kept"
        for each in endings
    )
    return "; ".join(f"{words or 'nothing'} ({count:,})" for words, count in counted.most_common())


def wrong(endings: Sequence[Ending], expected: Collection[str]) -> Iterator[str]:
    """What must not be of the connections, in sentences."""
    for ending in endings:
        if ending.seconds is None:
            yield f"a connection was kept: {ending.words or 'nothing'}"
        elif ending.words not in expected:
            yield f"{ending.words or 'nothing'}, and not {' or '.join(expected)}"


def main(arguments: list[str]) -> int:
    """Do it in all ways, and report."""
    parser = argparse.ArgumentParser(description="Do to servers and clients what goes wrong.")
    parser.add_argument("--way", choices=WAYS, action="append", help="may be repeated")
    parser.add_argument("--fault", metavar="WORDS", help="only those whose name has these words")
    options = parser.parse_args(arguments)
    allow_descriptors()
    begin = time.monotonic()
    faults = [each for each in FAULTS if (options.fault or "") in each.name]
    results = run(options.way or WAYS, faults)
    is_well = report(results, "faults at servers", time.monotonic() - begin)
    if not (options.way or options.fault):
        is_well &= faulty_servers.report(faulty_servers.run())
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
