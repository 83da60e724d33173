"""Measure what a flood of one client costs the others: `python tools/attacks/fairness.py`.

Twenty clients of the stateless protocol version call one HTTP server, each from an address of its
own. One of them floods the server with slow calls. The others make one quick call after the other,
once without the flood and once beside it. Prints the latency and the failures of the others; the
exit status is 1 if a call of theirs failed, or if their latency with the flood is out of bounds
(Linux only, where all addresses 127.0.0.0/8 are local).
"""

import argparse
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import attrs
import msgspec
import trio
from http_attacks import call
from http_wire import Response, ResponseReader
from measurements import (
    POLL_SECONDS,
    Meter,
    RunningTarget,
    descriptors_of,
    running_target,
)
from target import allow_descriptors

sys.path.append(str(Path(__file__).resolve().parents[1] / "interop"))

from interop_command import new_table, show

CLIENTS: Final = 20
SECONDS: Final = 4.0
FULL_SECONDS: Final = 6.0
"""The time for which the others call beside a flood, by default and with `--full`."""

QUIET_SECONDS: Final = 2.0
"""The time for which they call without the flood."""

FLOOD_SECONDS: Final = 9.0
"""The duration of one slow call."""

FILL_SECONDS_MAX: Final = 40.0
"""The time that a flood has to arrive, before the others begin."""

ANSWER_SECONDS_MAX: Final = 2 * FLOOD_SECONDS
PAUSE_SECONDS: Final = 0.02
CHUNK_BYTES: Final = 1 << 16

# The default context would load the certificates of the system, which takes a while.
_UNVERIFIED: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_UNVERIFIED.check_hostname, _UNVERIFIED.verify_mode = False, ssl.CERT_NONE

P99_MS_MAX: Final = 500.0
"""The highest latency of the others, at the 99th percentile: much less than one slow call."""

MEMORY_MIB_MAX: Final = 100.0

LATENCY_HEADINGS: Final = ("calls", "median\nms", "p99\nms", "max\nms", "failed")

_ELICITATION: Final[Mapping[str, Mapping[str, object]]] = {
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}
}


@attrs.frozen
class Flood:
    """A flood, and the call that the other clients make.

    Attributes:
        name: The flood.
        calls: The number of calls that the flooding client sends at once, each on a connection.
        flood: The slow call.
        quick: The call of the others.
        goes_on: Whether the client repeats each call when it is answered.
        pause_seconds: The pause of the others between two calls.
        has_tls: Whether the server uses TLS.
    """

    name: str
    calls: int
    flood: bytes
    quick: bytes
    goes_on: bool = attrs.field(default=True, kw_only=True)
    pause_seconds: float = attrs.field(default=PAUSE_SECONDS, kw_only=True)
    has_tls: bool = attrs.field(default=False, kw_only=True)


def _call(tool: str, arguments: Mapping[str, object], **meta: object) -> bytes:
    """Return a call on a connection that is kept."""
    return call(tool, arguments, **meta).replace(b"Connection: close\r\n", b"")


_WAIT: Final = _call("wait", {"seconds": FLOOD_SECONDS})
ECHO: Final = _call("echo", {"text": "quick"})
_ASK: Final = _call("ask", {}, **_ELICITATION)

FLOODS: Final = (
    Flood("256 slow calls", 256, _WAIT, ECHO),
    Flood("1,400 slow calls", 1400, _WAIT, ECHO),
    Flood("1,400 connections with quick calls", 1400, ECHO, ECHO),
    Flood(
        "256 blocked threads",
        256,
        _call("block", {"seconds": FLOOD_SECONDS}),
        _call("block", {"seconds": 0}),
    ),
    Flood("400 questions without an answer", 400, _ASK, _ASK, goes_on=False, pause_seconds=2.0),
)


@attrs.define
class Latencies:
    """The latencies of the calls of several clients.

    Attributes:
        ms: The latency of each successful call, in milliseconds.
        failures: The text of each failure.
    """

    ms: list[float] = attrs.field(factory=list[float])
    failures: list[str] = attrs.field(factory=list[str])

    def add(self, response: Response | None, seconds: float) -> None:
        """Add the response to a call; None: the server has closed the connection."""
        if response is None or response.status != 200 or "error" in _decoded(response):
            self.failures.append(
                "closed" if response is None else f"{response.status} {response.body[:200]!r}"
            )
        else:
            self.ms.append(seconds * 1000)

    @property
    def p99_ms(self) -> float:
        return sorted(self.ms)[int(len(self.ms) * 0.99)] if self.ms else float("inf")

    def problems(self, memory_mib: float) -> Iterator[str]:
        """Yield a sentence for each bound that was exceeded, also that of the server's memory."""
        if self.failures:
            yield f"calls of others failed: {self.failures[0]}"
        if self.p99_ms > P99_MS_MAX:
            yield f"p99 is {self.p99_ms:.0f} ms, over {P99_MS_MAX:g}"
        if memory_mib > MEMORY_MIB_MAX:
            yield f"{memory_mib:.0f} MiB of memory, over {MEMORY_MIB_MAX:g}"

    def cells(self) -> list[str]:
        """Return the cells of `LATENCY_HEADINGS`."""
        median_ms = statistics.median(self.ms) if self.ms else float("inf")
        figures = (median_ms, self.p99_ms, max(self.ms, default=float("inf")))
        return [str(len(self.ms)), *(f"{ms:.1f}" for ms in figures), str(len(self.failures))]


def _decoded(response: Response) -> Mapping[str, object]:
    message: Mapping[str, object] = msgspec.json.decode(list(response.messages())[-1])
    return message


@attrs.define
class Client:
    """A client with one connection from an address of its own.

    Attributes:
        number: The number of the client, which is the last part of its address.
        port: The port of the server.
        has_tls: Whether the server uses TLS.
    """

    number: int
    port: int
    has_tls: bool = False

    async def connect(self) -> trio.abc.Stream:
        stream = await self.connect_plainly()
        if not self.has_tls:
            return stream
        return trio.SSLStream(stream, _UNVERIFIED, https_compatible=True)

    async def connect_plainly(self) -> trio.SocketStream:
        sock = trio.socket.socket()
        await sock.bind((f"127.0.0.{self.number + 2}", 0))
        await sock.connect(("127.0.0.1", self.port))
        return trio.SocketStream(sock)

    async def call_repeatedly(self, flood: Flood, latencies: Latencies) -> None:
        """Call again and again until cancelled, on a connection that is kept while it is open."""
        while True:
            async with await self.connect() as stream:
                response: Response | None = Response(0, {}, b"")
                while response is not None:
                    begin = time.monotonic()
                    response = await _answer(stream, flood.quick)
                    latencies.add(response, time.monotonic() - begin)
                    await trio.sleep(flood.pause_seconds)

    async def flood(self, flood: Flood) -> None:
        """Send slow calls on one connection until cancelled."""
        while True:
            async with await self.connect() as stream:
                while await _answer(stream, flood.flood) is not None and flood.goes_on:
                    pass
            if not flood.goes_on:
                return
            await trio.sleep(PAUSE_SECONDS)


async def _answer(stream: trio.abc.Stream, request: bytes) -> Response | None:
    """Send a request, and return its response; None if the server closes the connection."""
    reader = ResponseReader()
    try:
        await stream.send_all(request)
        while data := await stream.receive_some(CHUNK_BYTES):
            response = reader.feed(bytes(data))
            if response is not None:
                return response
    except trio.BrokenResourceError:
        pass
    return None


async def others(port: int, flood: Flood, seconds: float) -> Latencies:
    """Let all clients but the first call for some seconds, and return their latencies."""
    latencies = Latencies()
    async with trio.open_nursery() as nursery:
        for number in range(1, CLIENTS):
            client = Client(number, port, flood.has_tls)
            nursery.start_soon(client.call_repeatedly, flood, latencies)
        await trio.sleep(seconds)
        # Also count the calls that the flood delays for longer.
        expected = len(latencies.ms) + len(latencies.failures) + CLIENTS - 1
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            while len(latencies.ms) + len(latencies.failures) < expected:  # noqa: ASYNC110
                await trio.sleep(PAUSE_SECONDS)
        nursery.cancel_scope.cancel()
    return latencies


async def wait_for_connections(server: RunningTarget, count: int) -> None:
    """Wait until the server has so many connections, or for `FILL_SECONDS_MAX`."""
    with trio.move_on_after(FILL_SECONDS_MAX):
        while descriptors_of(server.process) < count:  # noqa: ASYNC110
            await trio.sleep(POLL_SECONDS)


async def measure(
    server: RunningTarget, flood: Flood, seconds: float
) -> tuple[Latencies, Latencies, float]:
    """Return the latencies of the others without and with a flood, and the memory in MiB."""
    port = server.port
    without = await others(port, flood, max(QUIET_SECONDS, 2 * flood.pause_seconds))
    meter = Meter(server.process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.poll)
        for _ in range(flood.calls):
            nursery.start_soon(Client(0, port).flood, flood)
        await wait_for_connections(server, flood.calls)
        beside = await others(port, flood, seconds)
        nursery.cancel_scope.cancel()
    return without, beside, meter.rss_kib()[0] / 1024


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Flood a server from one of 20 clients.")
    parser.add_argument("--host", choices=("native", "hypercorn"), default="native")
    parser.add_argument("--flood", default="", metavar="WORDS", help="only those with these words")
    parser.add_argument("--full", action="store_true", help="measure each flood for longer")
    options = parser.parse_args(arguments)
    seconds = FULL_SECONDS if options.full else SECONDS
    allow_descriptors()
    table = new_table("flood", right=(*LATENCY_HEADINGS, "memory\nMiB"))
    problems: list[str] = []
    for flood in FLOODS:
        if options.flood not in flood.name:
            continue
        with (
            tempfile.TemporaryDirectory(prefix="mcp_trio-hostile-") as folder,
            running_target(options.host, "fair", Path(folder)) as server,
        ):
            without, beside, mib = trio.run(measure, server, flood, seconds)
        table.add_row(f"without {flood.name}", *without.cells(), "")
        table.add_row(f"with {flood.name}", *beside.cells(), f"{mib:.0f}")
        problems += (f"{flood.name}: {problem}" for problem in beside.problems(mib))
    return 0 if show(table, problems) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
