"""Faulty clients, and how our server has to end their connections."""

import functools
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, cast

import attrs
import trio
from raw_peers import Lines, Messages, Script

sys.path += [str(Path(__file__).resolve().parents[1] / each) for each in ("", "bench")]

from load import NEWEST_LEGACY, called, hello
from observed_process import ECHO_TEXT
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
_CALL: Final = called("echo", {"text": ECHO_TEXT})
_WAIT: Final = called("wait", {"seconds": 30.0}, 2)
_SOON: Final = called("wait", {"seconds": 0.2})
_NO_UTF8: Final = b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}'
_NO_JSON: Final = b"{nothing of the kind"
_LARGE: Final = called("echo", {"text": "x" * 2 * MIB})


@attrs.frozen(kw_only=True)
class Fault:
    """A fault of a client.

    Attributes:
        name: The fault.
        script: What happens on each connection.
        expected: The allowed outcomes of a connection by transport; others are not tested.
        count: The number of simultaneous connections.
        is_reading: Whether answers are read.
        has_default_limits: Whether the server has its default limits, and nothing else runs
    meanwhile.
    """

    name: str
    script: Script
    expected: Mapping[str, Collection[str]]
    count: int = 10
    is_reading: bool = True
    has_default_limits: bool = False


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
    await peer.send(called("pour", {}, progressToken=1))
    await peer.wait_until_cut()


async def flood(peer: Lines) -> None:
    """Send calls without waiting for answers."""
    await peer.open()
    text = {"text": "x" * 100}
    await peer.send(*(called("echo", text, number) for number in range(1, FLOOD + 1)))
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
    await peer.send(hello(NEWEST_LEGACY))
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
    "a key that is none": ({"Sec_WebSocket_Key": "x"}, "HTTP 400"),
}

FAULTS: Final = (
    Fault(
        name="cut in the middle of a call",
        script=reset,
        expected=everywhere("answer, gone", "answer, gone"),
        count=50,
    ),
    Fault(
        name="half-open in the middle of a call",
        script=close_half,
        # A WebSocket that ends without a close frame is lost: calls in flight are not awaited.
        expected={**on_the_web("cut", "answer, cut"), **on_lines("answer, closed")},
        count=20,
    ),
    Fault(
        name="a close in the middle of a call",
        script=close_in_a_call,
        expected=everywhere("answer, close 1000", "answer, closed"),
        count=20,
    ),
    Fault(
        name="a reader that never reads",
        script=read_nothing,
        expected=everywhere("cut", "cut"),
        is_reading=False,
    ),
    Fault(
        name=f"a flood of {FLOOD:,} calls each",
        script=flood,
        expected=everywhere(
            f"answer x{FLOOD}, close 1000",
            f"answer x{FLOOD}, closed",
        ),
        count=2,
    ),
    Fault(
        name=f"a flood of {PINGS:,} pings each",
        script=flood_with_pings,
        expected=on_the_web("answer, close 1000"),
        count=2,
    ),
    Fault(
        name="a message over the limit",
        script=functools.partial(send_then_call, _LARGE),
        expected=everywhere("error -32600, answer, close 1000", "error -32600, answer, closed"),
    ),
    Fault(
        name="a message that is no JSON",
        script=functools.partial(send_then_call, _NO_JSON, is_answered=False),
        expected=everywhere("answer, close 1000", "answer, closed"),
    ),
    Fault(
        name="bad UTF-8, over lines",
        script=functools.partial(send_then_call, _NO_UTF8),
        expected=on_lines("error -32700, answer, closed"),
    ),
    Fault(
        name="bad UTF-8, in a frame",
        script=functools.partial(open_then_send, masked(FIN | TEXT, _NO_UTF8)),
        expected=on_the_web("close 1007"),
    ),
    Fault(
        name="a binary message",
        script=functools.partial(open_then_send, masked(FIN | BINARY, _CALL)),
        expected=on_the_web("close 1003"),
    ),
    Fault(
        name="an unknown opcode",
        script=functools.partial(open_then_send, masked(FIN | 0x3, b"x")),
        expected=on_the_web("close 1002"),
    ),
    Fault(
        name="a frame without a mask",
        script=functools.partial(open_then_send, b"\x81\x02{}"),
        expected=on_the_web("close 1002"),
    ),
    Fault(
        name="a close code that none may send",
        script=functools.partial(open_then_send, masked(FIN | CLOSE, (1006).to_bytes(2, "big"))),
        expected=on_the_web("close 1002"),
    ),
    *(
        Fault(
            name=f"a handshake with {name}",
            script=functools.partial(open_with, headers),
            expected=on_the_web(outcomes),
        )
        for name, (headers, outcomes) in _BAD_HANDSHAKES.items()
    ),
    Fault(
        name="no HTTP at all",
        script=functools.partial(send_at_once, bytes.fromhex("16030100c8010000c40303")),
        expected=on_the_web("HTTP 400"),
    ),
    Fault(
        name="HTTP where lines are expected",
        script=functools.partial(send_at_once, b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + _CALL),
        expected=on_lines("closed"),
    ),
    Fault(
        name="pings that are not answered",
        script=answer_no_ping,
        expected=on_the_web("answer, close 1011"),
        count=50,
    ),
    Fault(
        name="200 that send nothing",
        script=send_nothing,
        expected={
            "websocket": ["HTTP 408"],
            "native": ["closed"],
            **on_lines("closed"),
        },
        count=200,
    ),
    Fault(
        name="200 that open, and send nothing",
        script=open_only,
        expected=on_the_web("close 1011"),
        count=200,
    ),
    Fault(
        name="many sessions at once",
        script=complete_session,
        expected=everywhere("answer x2, close 1000", "answer x2, closed"),
        count=SESSIONS,
        has_default_limits=True,
    ),
)
