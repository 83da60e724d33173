"""Measure the latency of a client's call over HTTP: `python tools/bench/round_trips.py`.

Complete clients and servers, one kept connection, one call at a time. Each SDK is measured with
itself and with ours at the other end. Latencies are reliable on an idle machine only, so the CPU
time of both ends is shown as well (Linux only). Slowness is no failure.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from client_http import CALLS, WARM_UP
from http_load import JSON_ANSWERS, STATELESS, Form, HttpServerUnderLoad
from load import NEWEST_LEGACY, STATELESS_VERSION
from measuring import Measurements, Results, medians_of, print_figures, print_ratios
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
    """Return the command of each client, without the URL and protocol version."""
    return {
        OURS: [sys.executable, str(HERE / "client_http.py"), "mcp_trio"],
        PYTHON_PEER: python_peer("client_http.py", "sdk"),
        TYPESCRIPT_PEER: bench_folder.node("client_http_typescript.mjs"),
    }


def measure(rounds: int, bench_folder: BenchFolder) -> Results:
    """Return each pair's rows, with a value for each round."""

    def measure_round(_: int) -> Measurements:
        for protocol_version, form in FORMS.items():
            servers = http_commands(bench_folder, form)
            for client, server in PAIRS:
                with HttpServerUnderLoad(servers[server], bench_folder.environment(), form) as it:
                    cpu_seconds = -it.start().cpu_seconds
                    timings = run_client(
                        clients(bench_folder)[client], it.url, protocol_version, bench_folder
                    )
                    cpu_seconds += it.cpu_seconds()
                percentiles = statistics.quantiles(timings.seconds, n=100)
                cpu_each = cpu_seconds / (WARM_UP + CALLS) + timings.cpu_seconds / CALLS
                title = pair_title(client, server)
                yield title, f"{protocol_version}: p50, µs", percentiles[49] * 1_000_000
                yield title, f"{protocol_version}: p99, µs", percentiles[98] * 1_000_000
                yield title, f"{protocol_version}: CPU of both ends, µs", cpu_each * 1_000_000

    return medians_of(rounds, measure_round)


class Timings(msgspec.Struct):
    """The output of a client: the duration of each call, and its CPU time in total."""

    seconds: list[float]
    cpu_seconds: float


def run_client(
    client: Sequence[str], url: str, protocol_version: str, bench_folder: BenchFolder
) -> Timings:
    done = subprocess.run(
        [*client, url, protocol_version],
        env=bench_folder.environment(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=SECONDS_MAX,
    )
    return msgspec.json.decode(done.stdout, type=Timings)


def pair_title(client: str, server: str) -> str:
    return client if client == server else f"{client} at {server}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Measure how long a call over HTTP takes.")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
        results = measure(options.rounds, BenchFolder(Path(folder)))
    print_figures("L15: an HTTP call of one client, keep-alive: medians of the rounds", results)
    theirs = {f"÷ {peer}": (OURS, peer) for peer in (PYTHON_PEER, TYPESCRIPT_PEER)}
    print_ratios("L15: our calls ÷ theirs", results, theirs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
