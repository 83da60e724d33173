"""Flood HTTP servers on the level of connections and frames: `python tools/attacks/floods.py`.

Idle connections, WebSocket storms and stalled TLS handshakes are aimed at our own listener, and
HTTP/2 floods at hypercorn. Meanwhile 19 other clients call the server, as in `fairness.py`. Prints
their latency, the server's memory at its peak and afterwards, and its CPU time; the exit status is
1 if a bound of our own listener is exceeded (Linux only). For hypercorn the figures are only shown:
`docs/how-to/deploy-behind-hypercorn.md` lists what it does not bound.
"""

import argparse
import contextlib
import struct
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio
from fairness import (
    ECHO,
    FULL_SECONDS,
    LATENCY_HEADINGS,
    Client,
    Flood,
    Latencies,
    others,
    wait_for_connections,
)
from harmful_requests import PREFACE
from measurements import Meter, RunningTarget, running_target
from target import allow_descriptors

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "interop", "bench")]

from certificates import self_signed
from interop_command import new_table, show
from socket_wires import FIN, PING, TEXT, handshake, masked

SECONDS: Final = 2.0
AFTER_SECONDS: Final = 1.0
CHUNK_BYTES: Final = 1 << 16
IDLE: Final = 10_000
ADDRESSES: Final = 8

Attack: TypeAlias = Callable[[trio.SocketStream], Awaitable[None]]
"""Uses one connection until it is cancelled, or the server has closed it."""


@attrs.frozen(kw_only=True)
class Storm:
    """A flood of many connections.

    Attributes:
        name: The flood.
        host: The HTTP host.
        count: The number of connections at once; one that ends is opened again.
        attack: The use of each.
        has_tls: Whether the server uses TLS.
        addresses: The number of client addresses.
        is_bounded: Whether the host is expected to keep the bounds.
        limits: The name of the server's limits.
    """

    name: str
    host: str
    count: int
    attack: Attack
    has_tls: bool = False
    addresses: int = 1
    is_bounded: bool = True
    limits: str = "fair"


async def stay(stream: trio.SocketStream) -> None:
    """Receive, and send nothing more."""
    while await stream.receive_some(CHUNK_BYTES):
        pass


def sending(*first: bytes, again: bytes = b"") -> Attack:
    """Return an attack that sends some bytes, then others again and again, and receives nothing."""

    async def attack(stream: trio.SocketStream) -> None:
        for piece in first:
            await stream.send_all(piece)
        while again:
            await stream.send_all(again)
        await stay(stream)

    return attack


_UNFINISHED: Final = (
    b"POST /outer HTTP/1.1\r\nHost: x\r\nContent-Length: 33554432\r\n\r\n",
    bytes(31 << 20),
)


# WebSocket.

_WS: Final = handshake("x", "/ws")
_PINGS: Final = masked(FIN | PING, b"x" * 100) * 100
_FRAGMENTS: Final = masked(0, b"x") * 1000
_EMPTY_FRAGMENTS: Final = masked(0, b"") * 1000


# HTTP/2 frames, in plain text with prior knowledge.

_DATA, _HEADERS, _RESET, _SETTINGS, _H2_PING, _CONTINUATION = 0, 1, 3, 4, 6, 9
_END_STREAM, _END_HEADERS = 1, 4
_CANCEL: Final = struct.pack("!I", 8)
_INITIAL_WINDOW: Final = 4

# `:method: GET`, `:scheme: http`, `:path: /health` and `:authority: x`, encoded by HPACK.
_GET_HEALTH: Final = b"\x82\x86\x04\x07/health\x41\x01x"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return an HTTP/2 frame."""
    size = struct.pack("!I", len(payload))[1:]
    return size + struct.pack("!BBI", kind, flags, stream) + payload


def opened(settings: bytes = b"") -> bytes:
    """Return the beginning of an HTTP/2 connection."""
    return PREFACE + frame(_SETTINGS, 0, 0, settings)


def gets(count: int, *, is_reset: bool) -> bytes:
    """Return requests on as many new streams; each is cancelled at once, or not at all."""
    frames: list[bytes] = []
    for stream in range(1, 2 * count, 2):
        frames.append(frame(_HEADERS, _END_STREAM | _END_HEADERS, stream, _GET_HEALTH))
        if is_reset:
            frames.append(frame(_RESET, 0, stream, _CANCEL))
    return b"".join(frames)


_H2_STORMS: Final[Sequence[tuple[str, Attack]]] = (
    ("HTTP/2: requests that are reset", sending(opened(), gets(20_000, is_reset=True))),
    (
        "HTTP/2: headers without end",
        sending(
            opened(),
            frame(_HEADERS, _END_STREAM, 1, _GET_HEALTH),
            again=frame(_CONTINUATION, 0, 1, b"\x00\x01a\x01b" * 100) * 10,
        ),
    ),
    (
        "HTTP/2: settings",
        sending(opened(), again=frame(_SETTINGS, 0, 0, struct.pack("!HI", 3, 100)) * 500),
    ),
    ("HTTP/2: pings", sending(opened(), again=frame(_H2_PING, 0, 0, b"x" * 8) * 500)),
    (
        "HTTP/2: windows of 0",
        sending(opened(struct.pack("!HI", _INITIAL_WINDOW, 0)), gets(90, is_reset=False)),
    ),
)

STORMS: Final = (
    Storm(
        name=f"{IDLE:,} idle connections",
        host="native",
        count=IDLE,
        attack=stay,
        addresses=ADDRESSES,
        limits="many",
    ),
    Storm(
        name=f"{IDLE:,} idle after a call",
        host="native",
        count=IDLE,
        attack=sending(ECHO),
        addresses=ADDRESSES,
        limits="many",
    ),
    *(
        Storm(name=f"unfinished bodies, {host}", host=host, count=16, attack=sending(*_UNFINISHED))
        for host in ("native", "hypercorn")
    ),
    Storm(name="WebSocket: half handshakes", host="native", count=500, attack=sending(_WS[:-4])),
    Storm(name="WebSocket: handshakes", host="native", count=500, attack=sending(_WS)),
    Storm(name="WebSocket: pings", host="native", count=20, attack=sending(_WS, again=_PINGS)),
    Storm(
        name="WebSocket: small fragments",
        host="native",
        count=20,
        attack=sending(_WS, masked(TEXT, b"{"), again=_FRAGMENTS),
    ),
    Storm(
        name="WebSocket: empty fragments",
        host="native",
        count=20,
        attack=sending(_WS, masked(TEXT, b"{"), again=_EMPTY_FRAGMENTS),
    ),
    Storm(
        name="TLS: half handshakes",
        host="native",
        count=4000,
        attack=sending(bytes.fromhex("16030100c8010000c40303")),
        has_tls=True,
    ),
    Storm(name="TLS: silence", host="native", count=500, attack=stay, has_tls=True),
    *(
        Storm(name=name, host="hypercorn", count=5, attack=attack, is_bounded=False)
        for name, attack in _H2_STORMS
    ),
)


async def storm_on(storm: Storm, port: int, number: int) -> None:
    """Open one connection again and again, with a pause, until cancelled."""
    client = Client(number % storm.addresses + 100, port)
    while True:
        with contextlib.suppress(OSError, trio.BrokenResourceError):
            async with await client.connect_plainly() as stream:
                await storm.attack(stream)
        await trio.sleep(1.0)


async def measure(
    server: RunningTarget, storm: Storm, seconds: float
) -> tuple[Latencies, Sequence[float]]:
    """Return the latencies of the others, and figures of the server.

    The figures are its memory at the peak and after the flood, in MiB, the memory of each
    connection in KiB, and its CPU time in seconds.
    """
    port = server.port
    quick = Flood("", 0, b"", ECHO, has_tls=storm.has_tls)
    await others(port, quick, seconds=1.0)
    meter = Meter(server.process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(meter.poll)
        async with trio.open_nursery() as attackers:
            for number in range(storm.count):
                attackers.start_soon(storm_on, storm, port, number)
            await wait_for_connections(server, storm.count)
            each_kib = meter.rss_kib()[1] / storm.count
            latencies = await others(port, quick, seconds)
            attackers.cancel_scope.cancel()
        await trio.sleep(AFTER_SECONDS)
        nursery.cancel_scope.cancel()
    peak_kib, left_kib = meter.rss_kib()
    return latencies, (peak_kib / 1024, left_kib / 1024, each_kib, meter.cpu_ms() / 1000)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Flood servers with connections and frames.")
    parser.add_argument("--storm", default="", metavar="WORDS", help="only those with these words")
    parser.add_argument("--full", action="store_true", help="measure each flood for longer")
    options = parser.parse_args(arguments)
    seconds = FULL_SECONDS if options.full else SECONDS
    allow_descriptors()
    more = ("peak\nMiB", "left\nMiB", "each\nKiB", "CPU\ns")
    table, problems = new_table("flood", right=(*LATENCY_HEADINGS, *more)), list[str]()
    for storm in STORMS:
        if options.storm not in storm.name:
            continue
        with tempfile.TemporaryDirectory(prefix="mcp_trio-hostile-") as folder:
            tls = self_signed(Path(folder)).values() if storm.has_tls else ()
            with running_target(storm.host, storm.limits, Path(folder), *tls) as server:
                latencies, figures = trio.run(measure, server, storm, seconds)
        table.add_row(storm.name, *latencies.cells(), *(f"{figure:.1f}" for figure in figures))
        if storm.is_bounded:
            problems += (f"{storm.name}: {problem}" for problem in latencies.problems(figures[0]))
    return 0 if show(table, problems) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
