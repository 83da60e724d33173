"""How long a call over HTTP takes, of one client: `python tools/bench/round_trips.py`.

Probe L15 of the survey of peers: one connection that is kept, one call after the other, a whole
client at each end. Each SDK is measured with itself, and with ours at the other end. The times are
those that pass, which only a machine with nothing else to do measures well; beside them stands
the CPU time of both ends (Linux only). Nothing here fails for being slow.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import http_servers
import msgspec
from aims import Results
from http_load import JSON_ANSWERS, STATELESS, Form, HttpServerUnderLoad
from load import NEWEST_LEGACY, STATELESS_VERSION
from report import print_figures, print_ratios
from round_trip import CALLS, WARM_UP
from rounds import Measurements, medians_of
from servers import HERE, OURS, PYTHON_PEER, TYPESCRIPT_PEER, Workshop, python_peer

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


def clients(workshop: Workshop) -> Mapping[str, Sequence[str]]:
    """What starts each client; it is told the URL and the revision."""
    return {
        OURS: [sys.executable, str(HERE / "client_http_mcp_trio.py")],
        PYTHON_PEER: python_peer("client_http_sdk.py"),
        TYPESCRIPT_PEER: workshop.node("client_http_typescript.mjs"),
    }


def measure(rounds: int, workshop: Workshop) -> Results:
    """Each pair's rows: a value for each round."""

    def measure_round(_: int) -> Measurements:
        for protocol_version, form in FORMS.items():
            servers = http_servers.commands(workshop, form)
            for client, server in PAIRS:
                with HttpServerUnderLoad(servers[server], workshop.environment(), form) as it:
                    cpu_seconds = -it.start().cpu_seconds
                    trips = take(clients(workshop)[client], it.url, protocol_version, workshop)
                    cpu_seconds += it.cpu_seconds()
                percentiles = statistics.quantiles(trips.seconds, n=100)
                cpu_each = cpu_seconds / (WARM_UP + CALLS) + trips.cpu_seconds / CALLS
                title = pair_title(client, server)
                yield title, f"{protocol_version}: p50, µs", percentiles[49] * 1_000_000
                yield title, f"{protocol_version}: p99, µs", percentiles[98] * 1_000_000
                yield title, f"{protocol_version}: CPU of both ends, µs", cpu_each * 1_000_000

    return medians_of(rounds, measure_round)


class Trips(msgspec.Struct):
    """What a client prints: how long each call took, and its CPU time of all."""

    seconds: list[float]
    cpu_seconds: float


def take(client: Sequence[str], url: str, protocol_version: str, workshop: Workshop) -> Trips:
    """Let a client make its calls.

    Raises:
        CalledProcessError: It has failed.
    """
    done = subprocess.run(
        [*client, url, protocol_version],
        env=workshop.environment(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=SECONDS_MAX,
    )
    return msgspec.json.decode(done.stdout, type=Trips)


def pair_title(client: str, server: str) -> str:
    """What a pair is called."""
    return client if client == server else f"{client} at {server}"


def main(arguments: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="Measure how long a call over HTTP takes.")
    parser.add_argument("--rounds", type=int, default=5, help="how often everything is measured")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
        results = measure(options.rounds, Workshop(Path(folder)))
    print_figures("L15: an HTTP call of one client, keep-alive: medians of the rounds", results)
    theirs = {f"÷ {peer}": (OURS, peer) for peer in (PYTHON_PEER, TYPESCRIPT_PEER)}
    print_ratios("L15: our calls ÷ theirs", results, theirs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
