"""Measure what observers cost: `python tools/bench/observers.py`.

One process has a server and its client, joined in memory. Sessions of some calls take turns: with
no observer, and with each of them at the server. The CPU time of a call is printed, with that of
the threads that write logs or send spans, and how much of it the observer causes. The receiver of
the spans is another process. Slowness is no failure.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from in_process import bench_server, measure_in_turns
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracerProvider

from mcp_trio import Server
from mcp_trio.observers import AuditLog, Metrics, RequestLog, Telemetry

RECEIVER = """
import sys
sys.path.insert(0, sys.argv[1])
from otlp_receiver import OtlpReceiver
with OtlpReceiver() as receiver:
    print(receiver.url, flush=True)
    sys.stdin.read()
"""


class Nothing:
    """An observer that does nothing: the cost of observing itself."""

    def begin(self, _: Any) -> None:
        """Do nothing."""


def servers(folder: Path, exporting: TracerProvider) -> Mapping[str, Server]:
    """Return a server for each observer."""
    observers: dict[str, list[Any]] = {
        "no observer": [],
        "an observer that does nothing": [Nothing()],
        "Telemetry, API only": [Telemetry(NoOpTracerProvider())],
        "Telemetry, SDK and OTLP exporter": [Telemetry(exporting)],
        "Metrics": [Metrics()],
        "RequestLog": [RequestLog(folder / "server.log")],
        "AuditLog": [AuditLog(folder / "audit.jsonl", key=b"a key of 16 byte")],
    }
    return {title: bench_server(observers=each) for title, each in observers.items()}


async def measure(folder: Path, url: str, turns: int, calls: int) -> None:
    """Measure in turns, and print a table."""
    exporting = TracerProvider()
    exporting.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces"), max_queue_size=100_000)
    )
    await measure_in_turns(servers(folder, exporting), turns, calls)
    await trio.to_thread.run_sync(exporting.shutdown)


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--calls", type=int, default=400)
    options = parser.parse_args()
    interop = str(Path(__file__).resolve().parent.parent / "interop")
    command = [sys.executable, "-c", RECEIVER, interop]
    with (
        tempfile.TemporaryDirectory() as temporary,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as receiver,
    ):
        assert receiver.stdout is not None
        url = receiver.stdout.readline().strip()
        trio.run(measure, Path(temporary), url, options.turns, options.calls)
        receiver.communicate("")


if __name__ == "__main__":
    main()
