"""Clients that do wrong, and what our server has to do."""

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
from observed_process import WORDS
from socket_wires import BINARY, CLOSE, PING, TEXT, WHOLE, handshake, masked

# Not hypercorn: it keeps sockets and tasks of ended connections for some time, and its errors close
# the connections of all. The guide "Deploy behind hypercorn" has the list.
WEB: Final = ("websocket", "native")
LINES: Final = ("unix", "tcp")
WAYS: Final = (*WEB, *LINES)

MIB: Final = 1 << 20
FLOOD: Final = 1000
PINGS: Final = 500
SESSIONS: Final = 1000
_CALL: Final = called("echo", {"text": WORDS})
_WAIT: Final = called("wait", {"seconds": 30.0}, 2)
_SOON: Final = called("wait", {"seconds": 0.2})
_NO_UTF8: Final = b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}'
_NO_JSON: Final = b"{nothing of the kind"
_LARGE: Final = called("echo", {"text": "x" * 2 * MIB})


@attrs.frozen(kw_only=True)
class Fault:
    """One of the rows.

    Attributes:
        name: What is done.
        script: With each connection.
        expected: What is to come of each connection, by the way; who is not in it is left out.
        count: On how many connections, all at once.
        is_reading: Whether what comes back is read.
        is_patient: The server has the limits of production; nothing else happens meanwhile.
    """

    name: str
    script: Script
    expected: Mapping[str, Collection[str]]
    count: int = 10
    is_reading: bool = True
    is_patient: bool = False


# What is done


async def say_nothing(_peer: Lines) -> None:
    """Keep the connection."""
    await trio.sleep_forever()


async def open_only(peer: Lines) -> None:
    """Open a WebSocket, answer its pings, and say nothing."""
    await peer.open()
    await trio.sleep_forever()


async def answer_no_ping(peer: Lines) -> None:
    """Begin well, and be there no more."""
    peer.answers_pings = False
    await peer.open()
    await peer.say(_CALL)
    await trio.sleep_forever()


async def have_a_call(peer: Lines) -> None:
    """Be in the middle of one, after another that was answered."""
    await peer.open()
    await peer.say(_CALL, _WAIT)
    await peer.answered(1)


async def vanish(peer: Lines) -> None:
    """Be gone in the middle of a call."""
    await have_a_call(peer)
    await peer.vanish()


async def close_half(peer: Lines) -> None:
    """Say no more, in the middle of a call, and listen."""
    await peer.open()
    await peer.say(_SOON)
    await trio.sleep(0.05)
    await Lines.leave(peer)
    await trio.sleep_forever()


async def close_in_a_call(peer: Lines) -> None:
    """Say goodbye in the middle of a call."""
    await have_a_call(peer)
    await peer.leave()
    await trio.sleep_forever()


async def read_nothing(peer: Lines) -> None:
    """Ask for much."""
    if isinstance(peer, Messages):
        await peer.put(handshake(peer.host, peer.path))
        await trio.sleep(0.2)
    await peer.say(called("pour", {}, progressToken=1))
    await peer.until_cut()


async def flood(peer: Lines) -> None:
    """Ask faster than anybody answers."""
    await peer.open()
    text = {"text": "x" * 100}
    await peer.say(*(called("echo", text, number) for number in range(1, FLOOD + 1)))
    await peer.answered(FLOOD)
    await peer.leave()
    await trio.sleep_forever()


async def flood_with_pings(peer: Lines) -> None:
    """Ping faster than anybody answers, and call."""
    await peer.open()
    await peer.put(masked(WHOLE | PING, b"x" * 100) * PINGS)
    await go_on(peer, 1)


async def go_on(peer: Lines, count: int) -> None:
    """Call, and leave when so many answers have come."""
    await peer.say(_CALL)
    await peer.answered(count)
    await peer.leave()
    await trio.sleep_forever()


async def say_and_go_on(message: bytes, peer: Lines, *, is_answered: bool = True) -> None:
    """Say what is wrong, and go on well."""
    await peer.open()
    await peer.say(message)
    await go_on(peer, 1 + is_answered)


async def put_raw(data: bytes, peer: Lines) -> None:
    """Send bytes that none may send."""
    await peer.open()
    await peer.put(data)
    await trio.sleep_forever()


async def put_at_once(data: bytes, peer: Lines) -> None:
    """The same in the place of the beginning."""
    await peer.put(data)
    await trio.sleep_forever()


async def open_badly(headers: Mapping[str, str], peer: Lines) -> None:
    """Shake hands as nobody should."""
    await cast("Messages", peer).open(**headers)
    await trio.sleep_forever()


async def live_shortly(peer: Lines) -> None:
    """Do all that a session does."""
    await peer.open()
    await peer.say(hello(NEWEST_LEGACY))
    await peer.answered(1)
    await peer.say(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    await peer.say(
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":'
        b'{"name":"echo","arguments":{"text":"x"}}}'
    )
    await peer.answered(2)
    await peer.leave()
    await trio.sleep_forever()


# What is to come of it


def everywhere(web: str, lines: str) -> Mapping[str, Collection[str]]:
    """The same in all ways of a kind."""
    return {**dict.fromkeys(WEB, (web,)), **dict.fromkeys(LINES, (lines,))}


def on_the_web(*words: str) -> Mapping[str, Collection[str]]:
    """There is no such thing where there are only lines."""
    return dict.fromkeys(WEB, words)


def on_lines(*words: str) -> Mapping[str, Collection[str]]:
    """There is no such thing on the web."""
    return dict.fromkeys(LINES, words)


_BAD_HANDSHAKES: Final[Mapping[str, tuple[Mapping[str, str], str]]] = {
    "a foreign Host": ({"Host": "example.com"}, "HTTP 403"),
    "a foreign Origin": ({"Origin": "https://example.com"}, "HTTP 403"),
    "an old version of WebSocket": ({"Sec_WebSocket_Version": "8"}, "HTTP 426"),
    "a key that is none": ({"Sec_WebSocket_Key": "x"}, "HTTP 400"),
}

FAULTS: Final = (
    Fault(
        name="cut in the middle of a call",
        script=vanish,
        expected=everywhere("answer, gone", "answer, gone"),
        count=50,
    ),
    Fault(
        name="half-open in the middle of a call",
        script=close_half,
        # A WebSocket that ends without a close has broken off: nobody waits for what is in flight.
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
        script=functools.partial(say_and_go_on, _LARGE),
        expected=everywhere("error -32600, answer, close 1000", "error -32600, answer, closed"),
    ),
    Fault(
        name="a message that is no JSON",
        script=functools.partial(say_and_go_on, _NO_JSON, is_answered=False),
        expected=everywhere("answer, close 1000", "answer, closed"),
    ),
    Fault(
        name="bad UTF-8, over lines",
        script=functools.partial(say_and_go_on, _NO_UTF8),
        expected=on_lines("error -32700, answer, closed"),
    ),
    Fault(
        name="bad UTF-8, in a frame",
        script=functools.partial(put_raw, masked(WHOLE | TEXT, _NO_UTF8)),
        expected=on_the_web("close 1007"),
    ),
    Fault(
        name="a binary message",
        script=functools.partial(put_raw, masked(WHOLE | BINARY, _CALL)),
        expected=on_the_web("close 1003"),
    ),
    Fault(
        name="an unknown opcode",
        script=functools.partial(put_raw, masked(WHOLE | 0x3, b"x")),
        expected=on_the_web("close 1002"),
    ),
    Fault(
        name="a frame without a mask",
        script=functools.partial(put_raw, b"\x81\x02{}"),
        expected=on_the_web("close 1002"),
    ),
    Fault(
        name="a close code that none may send",
        script=functools.partial(put_raw, masked(WHOLE | CLOSE, (1006).to_bytes(2, "big"))),
        expected=on_the_web("close 1002"),
    ),
    *(
        Fault(
            name=f"a handshake with {name}",
            script=functools.partial(open_badly, headers),
            expected=on_the_web(words),
        )
        for name, (headers, words) in _BAD_HANDSHAKES.items()
    ),
    Fault(
        name="no HTTP at all",
        script=functools.partial(put_at_once, bytes.fromhex("16030100c8010000c40303")),
        expected=on_the_web("HTTP 400"),
    ),
    Fault(
        name="HTTP where lines are spoken",
        script=functools.partial(put_at_once, b"POST / HTTP/1.1\r\nHost: x\r\n\r\n" + _CALL),
        expected=on_lines("closed"),
    ),
    Fault(
        name="pings that are not answered",
        script=answer_no_ping,
        expected=on_the_web("answer, close 1011"),
        count=50,
    ),
    Fault(
        name="200 that say nothing",
        script=say_nothing,
        expected={
            "websocket": ["HTTP 408"],
            "native": ["closed"],
            **on_lines("closed"),
        },
        count=200,
    ),
    Fault(
        name="200 that open, and say nothing",
        script=open_only,
        expected=on_the_web("close 1011"),
        count=200,
    ),
    Fault(
        name="many sessions at once",
        script=live_shortly,
        expected=everywhere("answer x2, close 1000", "answer x2, closed"),
        count=SESSIONS,
        is_patient=True,
    ),
)
