"""Measure a client's call over HTTP and stdio: `python tools/bench/round_trips.py`.

Complete clients and servers, one kept connection, one call at a time. Over HTTP each SDK is
measured with itself and with ours at the other end; over stdio, the clients with our server.
Latencies are reliable on an idle machine only, so the CPU time of the client, and of both ends, is
shown as well (Linux only). Slowness is no failure.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
from http_load import JSON_ANSWERS, STATELESS, Form, HttpServerUnderLoad
from load import NEWEST_LEGACY, STATELESS_VERSION
from measuring import Measurements, Results, medians_of, print_figures, print_ratios
from round_trips_client import CALLS, WARM_UP
from servers import (
    HERE,
    OURS,
    PYTHON_PEER,
    TYPESCRIPT_PEER,
    BenchFolder,
    http_commands,
    python_peer,
)

SECONDS_MAX: Final = 120.0

FORMS: Final[Mapping[str, Form]] = {NEWEST_LEGACY: JSON_ANSWERS, STATELESS_VERSION: STATELESS}

PAIRS: Final = (
    (OURS, OURS),
    (PYTHON_PEER, PYTHON_PEER),
    (TYPESCRIPT_PEER, TYPESCRIPT_PEER),
    (OURS, PYTHON_PEER),
    (PYTHON_PEER, OURS),
    (TYPESCRIPT_PEER, OURS),
)
"""A client, and its server."""


def clients(bench_folder: BenchFolder) -> Mapping[str, Sequence[str]]:
    """Return the command of each client, without the protocol version and the target."""
    return {
        OURS: [sys.executable, str(HERE / "round_trips_client.py"), "mcp_trio"],
        PYTHON_PEER: python_peer("round_trips_client.py", "sdk"),
        TYPESCRIPT_PEER: bench_folder.node("round_trips_client.mjs"),
    }


def measure(rounds: int, bench_folder: BenchFolder) -> Results:
    """Return each pair's rows, with a value for each round."""

    def measure_round(_: int) -> Measurements:
        for protocol_version, form in FORMS.items():
            servers = http_commands(bench_folder, form)
            for client, server in PAIRS:
                with HttpServerUnderLoad(servers[server], bench_folder.environment(), form) as it:
                    cpu_seconds = -it.start().cpu_seconds
                    timings = run_client(client, protocol_version, [it.url], bench_folder)
                    cpu_seconds += it.cpu_seconds()
                title, row = pair_title(client, server), f"HTTP, {protocol_version}"
                for name, value in timings.rows():
                    yield title, f"{row}: {name}", value
                cpu_each = cpu_seconds / (WARM_UP + CALLS) + timings.cpu_seconds / CALLS
                yield title, f"{row}: CPU of both ends, µs", cpu_each * 1_000_000
            for client in clients(bench_folder):
                command = bench_folder.commands()[OURS]
                timings = run_client(client, protocol_version, command, bench_folder)
                for name, value in timings.rows():
                    title = pair_title(client, OURS)
                    yield title, f"stdio, {protocol_version}: {name}", value

    return medians_of(rounds, measure_round)


class Timings(msgspec.Struct):
    """The output of a client: the duration of each call, and its CPU time in total."""

    seconds: list[float]
    cpu_seconds: float

    def rows(self) -> Iterator[tuple[str, float]]:
        """Yield the names and values of the client's figures, in µs."""
        percentiles = statistics.quantiles(self.seconds, n=100)
        yield "p50, µs", percentiles[49] * 1_000_000
        yield "p99, µs", percentiles[98] * 1_000_000
        yield "CPU of the client, µs", self.cpu_seconds / CALLS * 1_000_000


def run_client(
    client: str, protocol_version: str, target: Sequence[str], bench_folder: BenchFolder
) -> Timings:
    done = subprocess.run(
        [*clients(bench_folder)[client], protocol_version, *target],
        env=bench_folder.environment(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=SECONDS_MAX,
    )
    return msgspec.json.decode(done.stdout, type=Timings)


def pair_title(client: str, server: str) -> str:
    return client if client == server else f"{client} at {server}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure the calls of clients.")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    options = parser.parse_args(arguments)
    with BenchFolder.temporary() as bench_folder:
        results = measure(options.rounds, bench_folder)
    print_figures("a call of one client: medians of the rounds", results)
    theirs = {f"÷ {peer}": (OURS, peer) for peer in (PYTHON_PEER, TYPESCRIPT_PEER)}
    print_ratios("our client and server ÷ theirs", results, theirs)
    peers = (PYTHON_PEER, TYPESCRIPT_PEER)
    at_ours = {f"÷ {peer}": (OURS, pair_title(peer, OURS)) for peer in peers}
    print_ratios("our client ÷ theirs, at our server", results, at_ours)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
