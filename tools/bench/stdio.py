"""Measure what a call over stdio costs, beside the official SDK: `python tools/bench/stdio.py`.

The servers of a round are all alive at once and take turns within each measure, so that a ratio
compares moments that are close together. Times move by a factor of two on a shared machine: read
the ratios and their range, or the function calls per request. Nothing here fails for being slow.

The figures are the server's own CPU time, from the kernel; Linux only.
"""

import argparse
import importlib.metadata
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import imports
import msgspec
import report
from load import ServerUnderLoad

HERE: Final = Path(__file__).resolve().parent
OURS: Final = "mcp_trio"
RECORDING: Final = "mcp_trio, recording"
SDK: Final = f"mcp {importlib.metadata.version('mcp')}"

NOTIFICATIONS: Final = 1000
COUNTED_SECONDS: Final = 0.25
BLOBS_MB: Final = (1, 4, 8)
IN_FLIGHT: Final = (1, 16, 128)

Measured = Iterator[tuple[str, float]]


@attrs.frozen(kw_only=True)
class Effort:
    """How long to look."""

    rounds: int
    seconds: float
    repeats: int
    import_rounds: int


EFFORTS: Final = {
    False: Effort(rounds=5, seconds=1.2, repeats=5, import_rounds=7),
    True: Effort(rounds=1, seconds=0.25, repeats=1, import_rounds=1),
}


# What is measured, a function for a few rows of the table.


def start(server: ServerUnderLoad, _: Effort) -> Measured:
    """From nothing to the answer to `initialize`."""
    yield "start to first answer: CPU, ms", server.initialize() * 1000


def warm_up(server: ServerUnderLoad, effort: Effort) -> Measured:
    """Measure nothing: let caches fill."""
    for in_flight in IN_FLIGHT:
        server.add(in_flight=in_flight, seconds=effort.seconds / 4)
    yield from ()


def one_in_flight(server: ServerUnderLoad, effort: Effort) -> Measured:
    """Call after call: the cost, and the round trip that a person's host sees."""
    cost = server.add(in_flight=1, seconds=effort.seconds)
    percentiles = statistics.quantiles(cost.call_seconds, n=100)
    yield "add, 1 in flight: CPU per 1,000, ms", cost.cpu_ms_per_1000
    yield "add, 1 in flight: round trip p50, µs", percentiles[49] * 1_000_000
    yield "add, 1 in flight: round trip p99, µs", percentiles[98] * 1_000_000


def many_in_flight(server: ServerUnderLoad, effort: Effort) -> Measured:
    """Calls in batches."""
    for in_flight in IN_FLIGHT[1:]:
        cost = server.add(in_flight=in_flight, seconds=effort.seconds)
        yield f"add, {in_flight} in flight: CPU per 1,000, ms", cost.cpu_ms_per_1000


def progress(server: ServerUnderLoad, effort: Effort) -> Measured:
    """One call that reports much."""
    begin = server.cpu_seconds()
    for _ in range(effort.repeats):
        answer = server.call("notify", count=NOTIFICATIONS)
        if answer.notifications != NOTIFICATIONS:
            raise RuntimeError(f"{answer.notifications} notifications of {NOTIFICATIONS}")
    cpu_ms = (server.cpu_seconds() - begin) * 1000 / effort.repeats
    yield "progress: CPU per 1,000 notifications, ms", cpu_ms * 1000 / NOTIFICATIONS


def large_results(server: ServerUnderLoad, effort: Effort) -> Measured:
    """Results of megabytes; a server that is linear costs the same per MB for each."""
    for mb in BLOBS_MB:
        begin = server.cpu_seconds()
        for _ in range(effort.repeats):
            text = server.call("blob", mb=mb).text
            if len(text) != mb * 1_000_000:
                raise RuntimeError(f"{len(text)} characters of {mb} MB")
        cpu_ms = (server.cpu_seconds() - begin) * 1000 / effort.repeats
        yield f"result of {mb} MB: CPU per MB, ms", cpu_ms / mb


def memory(server: ServerUnderLoad, _: Effort) -> Measured:
    """What the server holds, after everything."""
    yield "RSS after the run, MiB", server.rss_mib()


MEASURES: Final[Sequence[Callable[[ServerUnderLoad, Effort], Measured]]] = (
    start,
    warm_up,
    one_in_flight,
    many_in_flight,
    progress,
    large_results,
    memory,
)


# Rounds.


def commands(folder: Path, *options: str) -> Mapping[str, list[str]]:
    """How each server is started; recordings go to `folder`."""
    ours = [sys.executable, str(HERE / "server_mcp_trio.py"), *options]
    return {
        OURS: ours,
        RECORDING: [*ours, "--record", f"{folder}/"],
        SDK: [sys.executable, str(HERE / "server_sdk.py"), *options],
    }


Results = Mapping[str, Mapping[str, Sequence[float]]]


def measure(effort: Effort, folder: Path) -> Results:
    """Each server's values of each measure, one a round."""
    results: dict[str, defaultdict[str, list[float]]] = {
        name: defaultdict(list) for name in commands(folder)
    }
    for round_ in range(effort.rounds):
        with ExitStack() as stack:
            servers = [
                (name, stack.enter_context(ServerUnderLoad(command)))
                for name, command in commands(folder).items()
            ]
            first = round_ % len(servers)
            for measure_it in MEASURES:
                for name, server in servers[first:] + servers[:first]:
                    for row, value in measure_it(server, effort):
                        results[name][row].append(value)
        print(f"round {round_ + 1} of {effort.rounds} is done", file=sys.stderr)
    return results


def count_function_calls(folder: Path) -> Results:
    """Function calls per `add`, in servers of their own: counting slows them down."""
    results: dict[str, dict[str, list[float]]] = defaultdict(dict)
    for name, command in commands(folder, "--count-calls").items():
        with ServerUnderLoad(command) as server:
            server.initialize()
            for in_flight in IN_FLIGHT:
                per_call = _function_calls(server, in_flight)
                results[name][f"function calls per add, {in_flight} in flight"] = [per_call]
    return results


def _function_calls(server: ServerUnderLoad, in_flight: int) -> float:
    server.add(in_flight=in_flight, seconds=COUNTED_SECONDS)
    begin = int(server.call("function_calls").text)
    calls = len(server.add(in_flight=in_flight, seconds=COUNTED_SECONDS).call_seconds)
    return (int(server.call("function_calls").text) - begin) / (calls + 1)


def main(arguments: list[str]) -> int:
    """Print the tables, or everything as JSON."""
    parser = argparse.ArgumentParser(description="Measure the cost of a call over stdio.")
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--json", action="store_true", help="print every value as JSON")
    options = parser.parse_args(arguments)
    effort = EFFORTS[options.quick]
    if options.rounds:
        effort = attrs.evolve(effort, rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
        counts = count_function_calls(Path(folder))
        servers = measure(effort, Path(folder))
    costs = imports.measure(effort.import_rounds)
    if options.json:
        everything = {"servers": servers, "function calls": counts, "import, CPU ms": costs}
        print(msgspec.json.format(msgspec.json.encode(everything)).decode())
        return 0
    report.print_servers("stdio: median (ratio to mcp_trio, lowest-highest round)", servers)
    report.print_servers("function calls per request (ratio to mcp_trio)", counts)
    report.print_imports(costs, bare=imports.BARE, unit=imports.UNIT)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
