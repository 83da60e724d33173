"""Measure the cost of a call over sockets, beside stdio: `python tools/bench/over_sockets.py`.

As in `stdio.py`, servers take turns, and their CPU time counts (Linux only); the load generator
keeps several calls in flight on one connection. Two SDKs are measured as well: TypeScript with
`ws`, and the last Python SDK with WebSocket. Slowness is no failure.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import attrs
from load import Pipes, ServerUnderLoad, Wire, rotated
from measuring import (
    Effort,
    Measurements,
    Results,
    add_rows,
    effort_from,
    function_calls,
    medians_of,
    print_figures,
    print_ratios,
    turns,
)
from peers import PYTHON_1
from server_processes import connected, free_port
from servers import HERE, PYTHON_1_PEER, TYPESCRIPT_PEER, BenchFolder, versions
from socket_wires import LineWire, WebSocketWire, tcp_socket, unix_socket

IN_FLIGHT: Final = (1, 16, 64)
COUNTED_SECONDS: Final = 0.25
PATH: Final = "/ws"
STDIO: Final = "stdio"
OURS: Final = (STDIO, "unix", "tcp", "websocket", "native", "hypercorn")
"""Our transports; WebSockets are served alone, and beside HTTP by either host."""

PEERS: Final = (f"{TYPESCRIPT_PEER}, ws", f"{PYTHON_1_PEER}, ws")

Connect = Callable[[subprocess.Popen[bytes]], Wire]

EFFORTS: Final = {
    False: Effort(rounds=5, turns=4, seconds=0.4),
    True: Effort(rounds=1, turns=2, seconds=0.25),
}


@attrs.frozen
class Bench:
    """Starts each server at a port or path of its own."""

    bench_folder: BenchFolder

    def server(self, name: str, *options: str) -> ServerUnderLoad:
        """Start one of the servers."""
        command, connect = self._started(name)
        return ServerUnderLoad(
            [*command, *options], self.bench_folder.environment(), connect=connect
        )

    def _started(self, name: str) -> tuple[Sequence[str], Connect]:
        if name == STDIO:
            return [sys.executable, str(HERE / "server_mcp_trio.py")], Pipes
        if name == "unix":
            path = Path(tempfile.mkdtemp(dir=self.bench_folder.folder), "socket")
            over_unix = partial(connected, lambda: unix_socket(path))
            return _ours(name, str(path)), lambda process: LineWire(over_unix(process))
        port = free_port()
        if name == "tcp":
            over_tcp = partial(connected, lambda: tcp_socket(port))
            return _ours(name, str(port)), lambda process: LineWire(over_tcp(process))
        return self._of_websocket(name, str(port)), lambda process: _over_websocket(port, process)

    def _of_websocket(self, name: str, port: str) -> Sequence[str]:
        if name == PEERS[0]:
            return self.bench_folder.node("server_typescript.mjs", "--websocket", port)
        if name == PEERS[1]:
            return [*PYTHON_1.start(str(HERE / "server_websocket_sdk_1.py")), port]
        return _ours(name, port)


def _ours(transport: str, address: str) -> Sequence[str]:
    script = str(HERE / "server_mcp_trio.py")
    return [sys.executable, script, "--transport", transport, "--address", address]


def _over_websocket(port: int, process: subprocess.Popen[bytes]) -> Wire:
    wire = WebSocketWire(connected(lambda: tcp_socket(port), process))
    wire.open(PATH)
    return wire


# Measure.


def measure(effort: Effort, bench: Bench) -> Results:
    """Return each server's rows, with a value for each round."""

    def measure_round(round_: int) -> Measurements:
        with ExitStack() as stack:
            names = rotated([*OURS, *PEERS], round_)
            servers = {name: stack.enter_context(bench.server(name)) for name in names}
            for server in servers.values():
                server.initialize()
                server.add(in_flight=IN_FLIGHT[1], seconds=effort.seconds)  # let caches fill
            for name, in_flight, cost in turns(servers, IN_FLIGHT, effort, round_):
                for row, value in add_rows(f"add, {in_flight} in flight", cost):
                    yield name, row, value

    return medians_of(effort.rounds, measure_round)


def count_function_calls(bench: Bench) -> Results:
    """Count function calls per `add` of our servers; counting slows them down."""
    return {name: dict(_function_calls(bench, name)) for name in OURS}


def _function_calls(bench: Bench, name: str) -> Iterator[tuple[str, Sequence[float]]]:
    with bench.server(name, "--count-calls") as server:
        for in_flight, calls in function_calls(server, IN_FLIGHT, COUNTED_SECONDS):
            yield f"add, {in_flight} in flight", [calls]


def main(arguments: list[str]) -> int:
    effort = effort_from(arguments, "Measure the cost of a call over sockets.", EFFORTS)
    with BenchFolder.temporary() as bench_folder:
        bench = Bench(bench_folder)
        counts = count_function_calls(bench)
        results = measure(effort, bench)
    print(f"{versions()}; over WebSocket: {', '.join(PEERS)}")
    print_figures("sockets: medians", results)
    others = {name: (name, STDIO) for name in results if name != STDIO}
    print_ratios("÷ ours over stdio", results, others)
    print_figures("function calls per request", counts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
