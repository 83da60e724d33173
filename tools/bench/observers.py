"""Measure what observers cost: `python tools/bench/observers.py`.

One process has a server and its client, joined in memory. Sessions of some calls take turns: with
no observer, and with each of them at the server. The CPU time of a call is printed, with that of
the threads that write logs or send spans, and how much of it the observer causes. The receiver of
the spans is another process. Slowness is no failure.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio
from measuring import print_table
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NoOpTracerProvider

from mcp_trio import Client, Context, Server
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
    return {title: _server(each) for title, each in observers.items()}


def _server(observers: list[Any]) -> Server:
    server = Server("bench", observers=observers)

    @server.tool
    async def add(a: int, b: int, note: str = "") -> str:
        return f"{a + b} {note}"

    @server.tool
    async def with_effect(a: int, *, ctx: Context) -> int:
        await ctx.sleep(0)
        return a

    return server


async def session(server: Server, calls: int, tool: str) -> float:
    """Return the microseconds of CPU time of one call."""
    async with Client(server) as client:
        arguments = {"a": 1, "b": 2, "note": "a note " * 10} if tool == "add" else {"a": 1}
        await client.call_tool(tool, arguments)
        begin = time.process_time()
        for _ in range(calls):
            await client.call_tool(tool, arguments)
    return (time.process_time() - begin) / calls * 1e6


async def measure(folder: Path, url: str, turns: int, calls: int) -> None:
    """Measure in turns, and print a table."""
    results: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    exporting = TracerProvider()
    exporting.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(f"{url}/v1/traces"), max_queue_size=100_000)
    )
    made = servers(folder, exporting)
    for _ in range(turns):
        for title, server in made.items():
            for tool in ("add", "with_effect"):
                results[title, tool].append(await session(server, calls, tool))
    await trio.to_thread.run_sync(exporting.shutdown)
    rows: list[tuple[str, ...]] = []
    for title in made:
        cells = [title]
        for tool in ("add", "with_effect"):
            cost = statistics.median(results[title, tool])
            base = statistics.median(results["no observer", tool])
            cells += [f"{cost:.0f}", f"{cost - base:+.0f}"]
        rows.append(tuple(cells))
    headings = ["", "call, µs", "more", "call with an effect, µs", "more"]
    print_table("CPU time of a call: client and server", headings, rows)


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
