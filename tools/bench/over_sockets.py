"""Measure what a call over a socket costs, beside stdio: `python tools/bench/over_sockets.py`.

The manner is that of `stdio.py`: all servers are alive at once and take turns, the generator has so
many calls in flight on one connection, and what counts is the server's own CPU time, from the
kernel (Linux only). Two peers are there as well: the TypeScript SDK over the package `ws`, and the
last Python SDK that has WebSocket. Nothing here fails for being slow.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs
from aims import Results
from load import Pipes, ServerUnderLoad, Wire, free_port, rotated
from report import print_figures, print_ratios
from rounds import (
    Effort,
    Measurements,
    add_rows,
    asked_for,
    function_calls,
    medians_of,
    print_json,
    turns,
)
from servers import HERE, PYTHON_1_PEER, TYPESCRIPT_PEER, Workshop, python_1_peer, versions
from socket_wires import LineWire, WebSocketWire, connected, tcp_socket, unix_socket

IN_FLIGHT: Final = (1, 16, 64)
COUNTED_SECONDS: Final = 0.25
PATH: Final = "/ws"
STDIO: Final = "stdio"
OURS: Final = (STDIO, "unix", "tcp", "websocket", "native", "hypercorn")
"""WebSockets of ours are served by themselves, and at one path of each host of HTTP."""

PEERS: Final = (f"{TYPESCRIPT_PEER}, ws", f"{PYTHON_1_PEER}, ws")

Connect = Callable[[subprocess.Popen[bytes]], Wire]

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
        port = free_port()
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
    """Function calls per `add` of each server of ours; counting slows them down."""
    return {name: dict(_function_calls(bench, name)) for name in OURS}


def _function_calls(bench: Bench, name: str) -> Iterator[tuple[str, Sequence[float]]]:
    with bench.server(name, "--count-calls") as server:
        for in_flight, calls in function_calls(server, IN_FLIGHT, COUNTED_SECONDS):
            yield f"add, {in_flight} in flight", [calls]


def main(arguments: list[str]) -> int:
    """Print the tables, or everything as JSON."""
    effort, is_json = asked_for(arguments, "Measure the cost of a call over sockets.", EFFORTS)
    with tempfile.TemporaryDirectory(prefix="mcp_trio-bench-") as folder:
        bench = Bench(Workshop(Path(folder)))
        counts = count_function_calls(bench)
        results = measure(effort, bench)
    if is_json:
        print_json(results, counts)
        return 0
    print(f"{versions()}; over WebSocket: {', '.join(PEERS)}")
    print_figures("sockets: medians", results)
    others = {name: (name, STDIO) for name in results if name != STDIO}
    print_ratios("÷ ours over stdio", results, others)
    print_figures("function calls per request", counts)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
