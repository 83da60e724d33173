"""Measure what options of a server cost: `python tools/bench/option_costs.py KIND`.

One process has a server and its client, joined in memory. Sessions of some calls take turns: with
none of the options, and with each of them. The CPU time of a call is printed, and how much of it
the option causes. Slowness is no failure. The kinds:

- limits: limits of callers, not recorded and recorded
- observers: logs, metrics and spans, with the threads that write or send them; the receiver of the
  spans is another process
- policy: recordings: left out by a policy, held and forgotten, recorded, redacted, encrypted
"""

import argparse
import base64
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeAlias

import trio
from measuring import print_table
from server_processes import running_server

from mcp_trio import Client, Context, Server
from mcp_trio._recorder.encryption import KEYS_VARIABLE
from mcp_trio.middleware import ConcurrencyLimit, LogLimit, Middleware, Quota, Rate, RateLimit
from mcp_trio.observers import AuditLog, Metrics, RequestLog, Telemetry
from mcp_trio.recording import RecordOptions, RecordPolicy

HERE: Final = Path(__file__).resolve().parent

Servers: TypeAlias = Mapping[str, Server]

ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "add": {"a": 1, "b": 2, "note": "a note " * 10},
    "with_effect": {"a": 1},
}
LIMITS: Final[Mapping[str, Sequence[Middleware]]] = {
    "no limit": (),
    "RateLimit": (RateLimit(Rate(per_minute=1e9, burst=10**6)),),
    "RateLimit with costs": (
        RateLimit(Rate(per_minute=1e9, burst=10**6), per=("user", "tool"), cost={"add": 2}),
    ),
    "ConcurrencyLimit": (ConcurrencyLimit(1000),),
    "Quota of effects": (Quota(Rate(per_minute=1e9, burst=10**9), of="effects"),),
    "Quota of bytes": (Quota(Rate(per_minute=1e12, burst=10**12), of="bytes"),),
    "LogLimit": (LogLimit("100/second"),),
}


# The servers, by kind.


def bench_server(**options: Any) -> Server:
    """Return a server with the tools of `ARGUMENTS`; the options are those of `Server`."""
    server = Server("bench", **options)

    @server.tool
    async def add(a: int, b: int, note: str = "") -> str:
        return f"{a + b} {note}"

    @server.tool
    async def with_effect(a: int, *, ctx: Context) -> int:
        await ctx.sleep(0)
        return a

    return server


def with_limits(folder: Path, _stack: ExitStack) -> Servers:
    found: dict[str, Server] = {}
    for end, record in {"": None, ", recorded": RecordOptions(folder)}.items():
        for title, limits in LIMITS.items():
            server = found[f"{title}{end}"] = bench_server(record=record)
            for limit in limits:
                server.middleware(limit)
    return found


class Nothing:
    """An observer that does nothing: the cost of observing itself."""

    def begin(self, _: Any) -> None:
        """Do nothing."""


def with_observers(folder: Path, stack: ExitStack) -> Servers:
    # Only this kind needs the SDK of OpenTelemetry.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import NoOpTracerProvider

    receiver = [sys.executable, str(HERE.parent / "interop" / "otlp_receiver.py")]
    server = stack.enter_context(running_server(receiver, folder / "receiver.log"))
    exporting, exporter = TracerProvider(), OTLPSpanExporter(f"{server.url}/v1/traces")
    exporting.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=100_000))
    stack.callback(exporting.shutdown)
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


def with_policies(folder: Path, _stack: ExitStack) -> Servers:
    (folder / "plain").mkdir()
    (folder / "encrypted").mkdir()
    os.environ[KEYS_VARIABLE] = "bench:" + base64.b64encode(bytes(32)).decode()
    records = {
        "not recorded": None,
        "policy, left out by the rate": RecordPolicy(folder / "out", rate=0, errors=False),
        "policy, held and forgotten": RecordPolicy(folder / "held", rate=0, slow_seconds=9),
        "recorded": RecordOptions(folder / "plain"),
        "policy, kept and redacted": RecordPolicy(folder / "kept"),
        "recorded and encrypted": RecordOptions(folder / "encrypted", encrypt=True),
    }
    return {title: bench_server(record=record) for title, record in records.items()}


KINDS: Final[Mapping[str, Callable[[Path, ExitStack], Servers]]] = {
    "limits": with_limits,
    "observers": with_observers,
    "policy": with_policies,
}


# Measuring.


async def measure_in_turns(servers: Servers, turns: int, calls: int) -> None:
    """Measure each server `turns` times, and print the medians."""
    results: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(turns):
        for title, server in servers.items():
            for tool in ARGUMENTS:
                results[title, tool].append(await _us_per_call(server, calls, tool))
    base, rows = next(iter(servers)), list[tuple[str, ...]]()
    for title in servers:
        cells = [title]
        for tool in ARGUMENTS:
            cost = statistics.median(results[title, tool])
            more = cost - statistics.median(results[base, tool])
            cells += [f"{cost:.0f}", f"{more:+.0f}"]
        rows.append(tuple(cells))
    headings = ["", "call, µs", "more", "call with an effect, µs", "more"]
    print_table("CPU time of a call: client and server", headings, rows)


async def _us_per_call(server: Server, calls: int, tool: str) -> float:
    async with Client(server) as client:
        await client.call_tool(tool, ARGUMENTS[tool])
        begin = time.process_time()
        for _ in range(calls):
            await client.call_tool(tool, ARGUMENTS[tool])
    return (time.process_time() - begin) / calls * 1e6


def main() -> None:
    """Measure with the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--turns", type=int, default=15, help="of each server (%(default)s)")
    parser.add_argument("--calls", type=int, default=400, help="in each turn (%(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        servers = KINDS[options.kind](Path(folder), stack)
        trio.run(measure_in_turns, servers, options.turns, options.calls)


if __name__ == "__main__":
    main()
