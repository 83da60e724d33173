"""Cause faults on sockets, and check how both sides end: `python tools/attacks/run_faults.py`.

Each fault of `faulty_clients.py` runs against a server process over every socket transport, while a
well-behaved client calls in a session of its own. Prints a table for each transport; the exit
status is 1 if a connection ended in another way than expected, was not closed, left resources
behind, or delayed the other client. Costs are the server's, including the other client's calls
(Linux only). `faulty_servers.py` tests our client with faulty servers.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import attrs
import faulty_servers
import trio
from faulty_clients import FAULTS, TRANSPORTS, WEB, Fault
from http_attacks import CLOSE_SECONDS_MAX
from measurements import LATE_SECONDS, AttackResult, RunningTarget, Watch, report, running_target
from raw_peers import Lines, Messages, summary_of
from target import allow_descriptors

_ROUND_SECONDS: Final = 60.0  # the same where thousands of sessions have their turn

LATE_BESIDE_MANY_SECONDS: Final = 15.0


@attrs.frozen
class Ending:
    """The end of a connection: a summary, and the seconds; None if the server did not close it."""

    outcomes: str
    seconds: float | None


# Run faults against a server.


async def connect(server: RunningTarget) -> Lines:
    """Open a connection, without sending anything."""
    parts = urlsplit(server.url)
    if parts.scheme == "unix":
        return Lines(await trio.open_unix_socket(parts.path))
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    if server.transport in WEB:
        return Messages(stream, parts.netloc, parts.path)
    return Lines(stream)


async def run_at(server: RunningTarget, faults: Sequence[Fault]) -> list[AttackResult]:
    """Run all faults against a server, one after the other."""
    async with server.watched() as watch:
        return [
            await _measure(fault, server, watch)
            for fault in faults
            if server.transport in fault.expected
        ]


async def _measure(fault: Fault, server: RunningTarget, watch: Watch) -> AttackResult:
    endings, cost = await watch.cost_of(partial(_run_connections, fault, server))
    return AttackResult(
        name=fault.name,
        target=server.transport,
        outcomes=outcomes(endings),
        seconds=[each.seconds for each in endings],
        violations=list(violations(endings, fault.expected[server.transport])),
        cost=cost,
        late_seconds=LATE_BESIDE_MANY_SECONDS if fault.has_default_limits else LATE_SECONDS,
    )


async def _run_connections(fault: Fault, server: RunningTarget) -> list[Ending]:
    """Run a fault on all of its connections at once."""
    endings: list[Ending] = []
    async with trio.open_nursery() as peers:
        for _ in range(fault.count):
            peers.start_soon(_end_of, fault, server, endings)
    return endings


async def _end_of(fault: Fault, server: RunningTarget, endings: list[Ending]) -> None:
    peer = await connect(server)
    begin = time.monotonic()
    seconds_max = _ROUND_SECONDS if fault.has_default_limits else CLOSE_SECONDS_MAX
    with trio.move_on_after(seconds_max) as scope:
        async with peer.stream, trio.open_nursery() as nursery:
            if fault.is_reading:
                nursery.start_soon(fault.script, peer)
                await peer.read()
            else:
                await fault.script(peer)
            nursery.cancel_scope.cancel()
    seconds = None if scope.cancelled_caught else time.monotonic() - begin
    endings.append(Ending(summary_of(peer.outcomes), seconds))


def run(transports: Sequence[str], faults: Sequence[Fault]) -> list[AttackResult]:
    """Run the faults at all transports at once; then those with default limits, one by one."""
    results: list[AttackResult] = []

    async def run_one(server: RunningTarget) -> None:
        with_short_limits = [each for each in faults if not each.has_default_limits]
        results.extend(await run_at(server, with_short_limits))

    async def run_all(servers: Sequence[RunningTarget]) -> None:
        async with trio.open_nursery() as nursery:
            for server in servers:
                nursery.start_soon(run_one, server)

    with tempfile.TemporaryDirectory(prefix="mcp_trio-faults-") as made:
        folder, with_default_limits = (
            Path(made),
            [each for each in faults if each.has_default_limits],
        )
        with contextlib.ExitStack() as stack:
            servers = [
                stack.enter_context(running_target(transport, "sockets", folder))
                for transport in transports
            ]
            trio.run(run_all, servers)
        for transport in transports if with_default_limits else ():
            with running_target(transport, "default", folder) as server:
                results += trio.run(run_at, server, with_default_limits)
    return sorted(results, key=lambda result: transports.index(result.target))


# Outcomes.


def outcomes(endings: Sequence[Ending]) -> str:
    """Return how often connections ended in which way, such as `close 1007 (10)`."""
    counted = Counter(
        each.outcomes if each.seconds is not None else f"{each.outcomes or 'nothing'}, kept"
        for each in endings
    )
    return "; ".join(
        f"{outcomes or 'nothing'} ({count:,})" for outcomes, count in counted.most_common()
    )


def violations(endings: Sequence[Ending], expected: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each connection that did not end as expected."""
    for ending in endings:
        if ending.seconds is None:
            yield f"a connection was kept: {ending.outcomes or 'nothing'}"
        elif ending.outcomes not in expected:
            yield f"{ending.outcomes or 'nothing'}, and not {' or '.join(expected)}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Test servers and clients with faulty peers.")
    parser.add_argument("--transport", choices=TRANSPORTS, action="append", help="may be repeated")
    parser.add_argument("--fault", metavar="WORDS", help="only those whose name has these words")
    options = parser.parse_args(arguments)
    allow_descriptors()
    begin = time.monotonic()
    faults = [each for each in FAULTS if (options.fault or "") in each.name]
    results = run(options.transport or TRANSPORTS, faults)
    is_well = report(results, "faults at servers", time.monotonic() - begin)
    if not (options.transport or options.fault):
        is_well &= faulty_servers.report(faulty_servers.run())
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
