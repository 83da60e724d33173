"""Faulty clients, and how our server has to end their connections."""

import sys
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final, cast

import attrs
import trio
from other_client import ECHO_TEXT
from raw_peers import Lines, Messages, Script

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from load import NEWEST_LEGACY, initialize_request, tool_call
from socket_wires import BINARY, CLOSE, FIN, PING, TEXT, handshake, masked

# Not hypercorn: it keeps sockets and tasks of ended connections for some time, and its errors close
# the connections of all. The guide "Deploy behind hypercorn" has the list.
WEB: Final = ("websocket", "native")
LINES: Final = ("unix", "tcp")
TRANSPORTS: Final = (*WEB, *LINES)

MIB: Final = 1 << 20
FLOOD: Final = 1000
PINGS: Final = 500
SESSIONS: Final = 1000
_CALL: Final = tool_call("echo", {"text": ECHO_TEXT})
_WAIT: Final = tool_call("wait", {"seconds": 30.0}, 2)
_SOON: Final = tool_call("wait", {"seconds": 0.2})
_NO_UTF8: Final = b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}'
_NO_JSON: Final = b"{nothing of the kind"
_LARGE: Final = tool_call("echo", {"text": "x" * 2 * MIB})


@attrs.frozen
class Fault:
    """A fault of a client.

    Attributes:
        name: The fault.
        script: What happens on each connection.
        expected: The allowed outcomes of a connection by transport; others are not tested.
        count: The number of simultaneous connections.
        is_reading: Whether answers are read.
        has_default_limits: Whether the server has its default limits, and runs nothing else.
    """

    name: str
    script: Script
    expected: Mapping[str, Collection[str]]
    count: int = attrs.field(default=10, kw_only=True)
    is_reading: bool = attrs.field(default=True, kw_only=True)
    has_default_limits: bool = attrs.field(default=False, kw_only=True)


# Scripts of the faults.


async def send_nothing(_peer: Lines) -> None:
    await trio.sleep_forever()


async def open_only(peer: Lines) -> None:
    """Open a WebSocket, answer its pings, and send nothing."""
    await peer.open()
    await trio.sleep_forever()


async def answer_no_ping(peer: Lines) -> None:
    """Call once, and then answer no pings."""
    peer.answers_pings = False
    await peer.open()
    await peer.send(_CALL)
    await trio.sleep_forever()


async def start_a_call(peer: Lines) -> None:
    """Start a call that stays in flight, after another that was answered."""
    await peer.open()
    await peer.send(_CALL, _WAIT)
    await peer.wait_for_outcomes(1)


async def reset(peer: Lines) -> None:
    """Reset the connection during a call."""
    await start_a_call(peer)
    await peer.reset()


async def close_half(peer: Lines) -> None:
    """Close the sending side during a call, and read on."""
    await peer.open()
    await peer.send(_SOON)
    await trio.sleep(0.05)
    await Lines.close(peer)
    await trio.sleep_forever()


async def close_in_a_call(peer: Lines) -> None:
    """Send a close during a call."""
    await start_a_call(peer)
    await peer.close()
    await trio.sleep_forever()


async def read_nothing(peer: Lines) -> None:
    """Request much, and read nothing."""
    if isinstance(peer, Messages):
        await peer.send_bytes(handshake(peer.host, peer.path))
        await trio.sleep(0.2)
    await peer.send(tool_call("pour", {}, progressToken=1))
    await peer.wait_until_cut()


async def flood(peer: Lines) -> None:
    """Send calls without waiting for answers."""
    await peer.open()
    text = {"text": "x" * 100}
    await peer.send(*(tool_call("echo", text, number) for number in range(1, FLOOD + 1)))
    await peer.wait_for_outcomes(FLOOD)
    await peer.close()
    await trio.sleep_forever()


async def flood_with_pings(peer: Lines) -> None:
    """Send many pings, and call."""
    await peer.open()
    await peer.send_bytes(masked(FIN | PING, b"x" * 100) * PINGS)
    await call_then_close(peer, 1)


async def call_then_close(peer: Lines, count: int) -> None:
    """Call, wait for so many answers, and close."""
    await peer.send(_CALL)
    await peer.wait_for_outcomes(count)
    await peer.close()
    await trio.sleep_forever()


async def send_then_call(message: bytes, peer: Lines, *, is_answered: bool = True) -> None:
    """Send an invalid message, then call as usual."""
    await peer.open()
    await peer.send(message)
    await call_then_close(peer, 1 + is_answered)


async def open_then_send(data: bytes, peer: Lines) -> None:
    """Send invalid bytes after the handshake."""
    await peer.open()
    await peer.send_bytes(data)
    await trio.sleep_forever()


async def send_at_once(data: bytes, peer: Lines) -> None:
    """Send bytes in place of the handshake."""
    await peer.send_bytes(data)
    await trio.sleep_forever()


async def open_with(headers: Mapping[str, str], peer: Lines) -> None:
    """Send a handshake with invalid headers."""
    await cast("Messages", peer).open(**headers)
    await trio.sleep_forever()


async def complete_session(peer: Lines) -> None:
    """Initialize, call and close."""
    await peer.open()
    await peer.send(initialize_request(NEWEST_LEGACY))
    await peer.wait_for_outcomes(1)
    await peer.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    await peer.send(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
        b'{"name":"echo","arguments":{"text":"x"}}}'
    )
    await peer.wait_for_outcomes(2)
    await peer.close()
    await trio.sleep_forever()


# Expected outcomes.


def everywhere(web: str, lines: str) -> Mapping[str, Collection[str]]:
    """Return the same outcome for each kind of transport."""
    return {**dict.fromkeys(WEB, (web,)), **dict.fromkeys(LINES, (lines,))}


def closed_after(outcomes: str) -> Mapping[str, Collection[str]]:
    """Return these outcomes, followed by a regular close."""
    return everywhere(f"{outcomes}, close 1000", f"{outcomes}, closed")


def on_the_web(*outcomes: str) -> Mapping[str, Collection[str]]:
    """Return the outcomes of a fault that only WebSockets have."""
    return dict.fromkeys(WEB, outcomes)


def on_lines(*outcomes: str) -> Mapping[str, Collection[str]]:
    """Return the outcomes of a fault that only lines have."""
    return dict.fromkeys(LINES, outcomes)


_BAD_HANDSHAKES: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    "a foreign Host": ({"Host": "example.com"}, "HTTP 403"),
    "a foreign Origin": ({"Origin": "https://example.com"}, "HTTP 403"),
    "an old version of WebSocket": ({"Sec_WebSocket_Version": "8"}, "HTTP 426"),
    "an invalid key": ({"Sec_WebSocket_Key": "x"}, "HTTP 400"),
}
_BAD_FRAMES: Final[Mapping[str, tuple[bytes, str]]] = {
    "bad UTF-8, in a frame": (masked(FIN | TEXT, _NO_UTF8), "close 1007"),
    "a binary message": (masked(FIN | BINARY, _CALL), "close 1003"),
    "an unknown opcode": (masked(FIN | 0x3, b"x"), "close 1002"),
    "a frame without a mask": (b"\x81\x02{}", "close 1002"),
    "an invalid close code": (masked(FIN | CLOSE, (1006).to_bytes(2, "big")), "close 1002"),
}
_TLS: Final = bytes.fromhex("16030100c8010000c40303")
_HTTP: Final = b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + _CALL

# A WebSocket that ends without a close frame is lost: calls in flight are not awaited.
_HALF_OPEN: Final = {**on_the_web("cut", "answer, cut"), **on_lines("answer, closed")}
_SILENT: Final = {"websocket": ["HTTP 408"], "native": ["closed"], **on_lines("closed")}

FAULTS: Final = (
    Fault("a reset during a call", reset, everywhere("answer, gone", "answer, gone"), count=50),
    Fault("a half-open connection during a call", close_half, _HALF_OPEN, count=20),
    Fault("a close during a call", close_in_a_call, closed_after("answer"), count=20),
    Fault("a reader that never reads", read_nothing, everywhere("cut", "cut"), is_reading=False),
    Fault(f"a flood of {FLOOD:,} calls each", flood, closed_after(f"answer x{FLOOD}"), count=2),
    Fault(
        f"a flood of {PINGS:,} pings each",
        flood_with_pings,
        on_the_web("answer, close 1000"),
        count=2,
    ),
    Fault(
        "a message over the limit",
        partial(send_then_call, _LARGE),
        closed_after("error -32600, answer"),
    ),
    Fault(
        "a message that is no JSON",
        partial(send_then_call, _NO_JSON, is_answered=False),
        closed_after("answer"),
    ),
    Fault(
        "bad UTF-8, over lines",
        partial(send_then_call, _NO_UTF8),
        on_lines("error -32700, answer, closed"),
    ),
    *(
        Fault(name, partial(open_then_send, data), on_the_web(outcome))
        for name, (data, outcome) in _BAD_FRAMES.items()
    ),
    *(
        Fault(f"a handshake with {name}", partial(open_with, headers), on_the_web(outcome))
        for name, (headers, outcome) in _BAD_HANDSHAKES.items()
    ),
    Fault("no HTTP at all", partial(send_at_once, _TLS), on_the_web("HTTP 400")),
    Fault("HTTP where lines are expected", partial(send_at_once, _HTTP), on_lines("closed")),
    Fault("unanswered pings", answer_no_ping, on_the_web("answer, close 1011"), count=50),
    Fault("200 that send nothing", send_nothing, _SILENT, count=200),
    Fault("200 that open, and send nothing", open_only, on_the_web("close 1011"), count=200),
    Fault(
        "many sessions at once",
        complete_session,
        closed_after("answer x2"),
        count=SESSIONS,
        has_default_limits=True,
    ),
)
