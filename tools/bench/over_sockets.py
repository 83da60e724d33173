"""Measure what a call over a socket costs, beside stdio: `python tools/bench/over_sockets.py`.

The manner is that of `stdio.py`: all servers are alive at once and take turns, the generator has so
many calls in flight on one connection, and what counts is the server's own CPU time, from the
kernel (Linux only). Two peers are there as well: the TypeScript SDK over the package `ws`, and the
last Python SDK that has WebSocket. Nothing here fails for being slow.
"""

import argparse
import socket
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
import msgspec
from aims import ratios
from load import Pipes, ServerUnderLoad, Wire, rotated
from report import print_table, ratio_text
from servers import HERE, PYTHON_1_PEER, TYPESCRIPT_PEER, Workshop, python_1_peer, versions
from socket_wires import LineWire, WebSocketWire, connected, tcp_socket, unix_socket

IN_FLIGHT: Final = (1, 16, 64)
COUNTED_SECONDS: Final = 0.25
PATH: Final = "/ws"
STDIO: Final = "stdio"
OURS: Final = (STDIO, "unix", "tcp", "websocket", "native", "hypercorn")
"""WebSockets of ours are served by themselves, and at one path of each host of HTTP."""

PEERS: Final = (f"{TYPESCRIPT_PEER}, ws", f"{PYTHON_1_PEER}, ws")

Results = Mapping[str, Mapping[str, Sequence[float]]]
"""Each server's rows: a value for each round."""

Connect = Callable[[subprocess.Popen[bytes]], Wire]


@attrs.frozen(kw_only=True)
class Effort:
    """How long to look; a round has so many turns at each number of calls in flight."""

    rounds: int
    turns: int
    seconds: float


EFFORTS: Final = {
    False: Effort(rounds=5, turns=4, seconds=0.4),
    True: Effort(rounds=1, turns=2, seconds=0.25),
}


@attrs.frozen
class Bench:
    """Starts servers, each at a place of its own."""

    workshop: Workshop

    def server(self, name: str, *options: str) -> ServerUnderLoad:
        """One of the servers, whose process has just been started and listens."""
        command, connect = self._started(name)
        return ServerUnderLoad([*command, *options], self.workshop.environment(), connect=connect)

    def _started(self, name: str) -> tuple[Sequence[str], Connect]:
        if name == STDIO:
            return [sys.executable, str(HERE / "server_mcp_trio.py")], Pipes
        if name == "unix":
            path = Path(tempfile.mkdtemp(dir=self.workshop.folder), "socket")
            return _ours(name, str(path)), lambda process: _over_unix(path, process)
        port = _free_port()
        if name == "tcp":
            return _ours(name, str(port)), lambda process: _over_tcp(port, process)
        return self._of_websocket(name, str(port)), lambda process: _over_websocket(port, process)

    def _of_websocket(self, name: str, port: str) -> Sequence[str]:
        if name == PEERS[0]:
            return self.workshop.node("server_typescript.mjs", "--websocket", port)
        if name == PEERS[1]:
            return python_1_peer("server_websocket_sdk_1.py", "--place", port)
        return _ours(name, port)


def _ours(transport: str, place: str) -> Sequence[str]:
    script = str(HERE / "server_sockets_mcp_trio.py")
    return [sys.executable, script, "--transport", transport, "--place", place]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _over_unix(path: Path, process: subprocess.Popen[bytes]) -> Wire:
    return LineWire(connected(lambda: unix_socket(path), process))


def _over_tcp(port: int, process: subprocess.Popen[bytes]) -> Wire:
    return LineWire(connected(lambda: tcp_socket(port), process))


def _over_websocket(port: int, process: subprocess.Popen[bytes]) -> Wire:
    wire = WebSocketWire(connected(lambda: tcp_socket(port), process))
    wire.open(PATH)
    return wire


# What is measured


def measure(effort: Effort, bench: Bench) -> Results:
    """Each server's rows: the median of its turns, for each round."""
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for round_ in range(effort.rounds):
        for name, rows in _measure_round(effort, bench, round_).items():
            for row, values in rows.items():
                results[name][row].append(statistics.median(values))
        print(f"round {round_ + 1} of {effort.rounds} is done", file=sys.stderr)
    return results


def _measure_round(effort: Effort, bench: Bench, round_: int) -> Results:
    samples: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with ExitStack() as stack:
        names = rotated([*OURS, *PEERS], round_)
        servers = {name: stack.enter_context(bench.server(name)) for name in names}
        for server in servers.values():
            server.initialize()
            server.add(in_flight=IN_FLIGHT[1], seconds=effort.seconds)  # let caches fill
        for in_flight in IN_FLIGHT:
            for turn in range(effort.turns):
                for name in rotated(list(servers), turn + round_):
                    for row, value in _rows(servers[name], in_flight, effort.seconds):
                        samples[name][row].append(value)
    return samples


def _rows(server: ServerUnderLoad, in_flight: int, seconds: float) -> Iterator[tuple[str, float]]:
    cost = server.add(in_flight=in_flight, seconds=seconds)
    percentiles = statistics.quantiles(cost.call_seconds, n=100)
    title = f"add, {in_flight} in flight"
    yield f"{title}: CPU per 1,000, ms", cost.cpu_ms_per_1000
    yield f"{title}: p50, µs", percentiles[49] * 1_000_000
    yield f"{title}: p99, µs", percentiles[98] * 1_000_000
    yield f"{title}: /s", cost.calls_per_second


def count_function_calls(bench: Bench) -> Results:
    """Function calls per `add` of each server of ours; counting slows them down."""
    return {name: dict(_function_calls(bench, name)) for name in OURS}


def _function_calls(bench: Bench, name: str) -> Iterator[tuple[str, Sequence[float]]]:
    with bench.server(name, "--count-calls") as server:
        server.initialize()
        for in_flight in IN_FLIGHT:
            server.add(in_flight=in_flight, seconds=COUNTED_SECONDS)
            begin = int(server.call("function_calls").text)
            calls = len(server.add(in_flight=in_flight, seconds=COUNTED_SECONDS).call_seconds)
            count = int(server.call("function_calls").text) - begin
            yield f"add, {in_flight} in flight", [count / (calls + 1)]


# What came of it


def print_figures(title: str, results: Results) -> None:
    """One row a measure, one column a server; medians of the rounds."""
    rows = results[STDIO]
    print_table(
        title,
        ["measure", *results],
        (
            [row, *(f"{statistics.median(each[row]):,.4g}" for each in results.values())]
            for row in rows
        ),
    )


def print_ratios(results: Results) -> None:
    """How much dearer each server is than ours over stdio."""
    others = [name for name in results if name != STDIO]
    print_table(
        "÷ ours over stdio: median, lowest-highest round; rates are turned round",
        ["measure", *others],
        ([row, *(_ratio(results, name, row) for name in others)] for row in results[STDIO]),
    )


def _ratio(results: Results, name: str, row: str) -> str:
    return ratio_text(ratios(results[name][row], results[STDIO][row], row=row))


def main(arguments: list[str]) -> int:
    """Print the tables, or everything as JSON."""
    parser = argparse.ArgumentParser(description="Measure the cost of a call over sockets.")
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    parser.add_argument("--quick", action="store_true", help="one short round: does it work?")
    parser.add_argument("--json", action="store_true", help="print every value as JSON")
    options = parser.parse_args(arguments)
    effort = EFFORTS[options.quick]
    if options.rounds:
        effort = attrs.evolve(effort, rounds=options.rounds)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
        bench = Bench(Workshop(Path(folder)))
        counts = count_function_calls(bench)
        results = measure(effort, bench)
    if options.json:
        everything = {"function calls": counts, **results}
        print(msgspec.json.format(msgspec.json.encode(everything)).decode())
        return 0
    print(f"{versions()}; over WebSocket: {', '.join(PEERS)}")
    print_figures("sockets: medians", results)
    print_ratios(results)
    print_figures("function calls per request", counts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
