"""The attacks of hostile HTTP clients: a table for `run_attacks.py`."""

import contextlib
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio
from harmful_requests import (
    BROKEN_HEADERS,
    BROKEN_OFF,
    CHUNKED,
    CONFLICTING_LENGTHS,
    HUGE_HEADERS,
    INVALID_CHUNKING,
    OFTEN_ACCEPTED,
    POST,
    PREFACE,
    damaged,
    statuses,
)

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from load import STATELESS_VERSION, tool_call

CLOSE_SECONDS_MAX: Final = 15.0
"""The time within which the server has to close a useless connection."""

TRICKLE_SECONDS: Final = 0.1
UNREAD_BYTES: Final = 1 << 14
CHUNK_BYTES: Final = 1 << 16

Headers: TypeAlias = Mapping[str, str]


@attrs.frozen
class Target:
    port: int

    async def connect(self) -> trio.SocketStream:
        sock = trio.socket.socket()  # without the cost of a name lookup
        await sock.connect(("127.0.0.1", self.port))
        return trio.SocketStream(sock)


@attrs.frozen
class Ending:
    """The end of a connection.

    Attributes:
        answers: The statuses of all answers.
        seconds: How long the server took to close it; None if it did not.
        has_leaked: Whether text from the request came back as a header.
    """

    answers: tuple[int, ...]
    seconds: float | None
    has_leaked: bool = False


Attempt: TypeAlias = Callable[[trio.SocketStream], Awaitable[bytes]]
"""Uses a connection; returns all received bytes, up to the server's close."""


@attrs.frozen
class Attack:
    """An attack.

    Attributes:
        name: The attack.
        attempts: A function for each connection; all start at once, or with pauses between them.
        statuses: The allowed statuses of answers.
        answers_max: The allowed number of answers on one connection.
        hosts: The hosts whose outcomes are checked; others are only shown. An error of hypercorn
            closes all of its connections.
    """

    name: str
    attempts: Sequence[Attempt]
    statuses: Collection[int]
    answers_max: int = attrs.field(default=1, kw_only=True)
    pause_seconds: float = attrs.field(default=0.0, kw_only=True)
    hosts: Collection[str] = attrs.field(default=("native", "hypercorn"), kw_only=True)

    async def run(self, target: Target) -> list[Ending]:
        """Run all attempts, and return how each connection ended."""
        endings: list[Ending] = []
        async with trio.open_nursery() as nursery:
            for attempt in self.attempts:
                nursery.start_soon(_end_of, attempt, target, endings.append)
                await trio.sleep(self.pause_seconds)
        return endings


async def _end_of(attempt: Attempt, target: Target, add: Callable[[Ending], None]) -> None:
    async with await target.connect() as stream:
        begin = time.monotonic()
        received, is_closed = b"", False
        with trio.move_on_after(CLOSE_SECONDS_MAX):
            received = await attempt(stream)
            is_closed = True
        seconds = time.monotonic() - begin if is_closed else None
        has_leaked = b"\r\ninjected:" in received.lower()
        add(Ending(tuple(statuses(received)), seconds, has_leaked))


# Attempts: functions of one connection.


async def read_to_end(stream: trio.SocketStream) -> bytes:
    """Read until the server closes or resets the connection."""
    received = bytearray()
    with contextlib.suppress(trio.BrokenResourceError):
        while data := await stream.receive_some(CHUNK_BYTES):
            received += data
    return bytes(received)


async def _put(stream: trio.SocketStream, pieces: Sequence[bytes], pause: float) -> None:
    with contextlib.suppress(trio.BrokenResourceError):
        for piece in pieces:
            await stream.send_all(piece)
            await trio.sleep(pause)


def sending(*pieces: bytes, pause: float = 0.0, then_eof: bool = False) -> Attempt:
    """Return an attempt that sends pieces while it reads."""

    async def attempt(stream: trio.SocketStream) -> bytes:
        async def put() -> None:
            await _put(stream, pieces, pause)
            if then_eof:
                with contextlib.suppress(trio.BrokenResourceError):
                    await stream.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put)
            received = await read_to_end(stream)
            nursery.cancel_scope.cancel()
        return received

    return attempt


def trickling(first: bytes, rest: bytes) -> Attempt:
    """Return an attempt that sends the rest one byte at a time."""
    return sending(first, *(bytes([byte]) for byte in rest), pause=TRICKLE_SECONDS)


def not_reading(request: bytes) -> Attempt:
    """Return an attempt that requests much and reads nothing, until the server gives up."""

    async def attempt(stream: trio.SocketStream) -> bytes:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
        await stream.send_all(request)
        await _until_cut(stream)
        return b""

    return attempt


async def _until_cut(stream: trio.SocketStream) -> None:
    """Write until the server has closed the connection, as nothing is read."""
    with contextlib.suppress(trio.BrokenResourceError):
        while True:
            await trio.sleep(TRICKLE_SECONDS)
            await stream.send_all(b"\r\n")


def vanishing(data: bytes, *, resets: bool) -> Attempt:
    """Return an attempt that sends data, and closes or resets the connection."""

    async def attempt(stream: trio.SocketStream) -> bytes:
        await stream.send_all(data)
        if resets:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return b""

    return attempt


# Requests.


def posted(body: bytes, headers: Headers | None = None) -> bytes:
    """Return a complete POST request that closes the connection."""
    fields = {"Content-Length": str(len(body)), **_ACCEPT, "Connection": "close", **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return POST + lines.encode("latin-1") + b"\r\n" + body


def call(tool: str, arguments: Mapping[str, object], **meta: object) -> bytes:
    """Return a tool call of a stateless client."""
    headers = {
        "MCP-Protocol-Version": STATELESS_VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": tool,
    }
    return posted(tool_call(tool, arguments, 1, **meta), headers)


_ACCEPT: Final = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}

_LENGTH: Final = b"Content-Length: 1000\r\n\r\n"
_HEALTH: Final = b"GET /health HTTP/1.1\r\nHost: x\r\n"
_HEALTH_AND_CLOSE: Final = _HEALTH + b"Connection: close\r\n\r\n"
_WHOLE: Final = posted(b"{}").replace(b"Connection: close\r\n", b"")

_OPTIONS: Final = b"OPTIONS /outer HTTP/1.1\r\nHost: x\r\nAccess-Control-Request-Method: POST\r\n"

_NO_TEXT: Final = (
    posted(b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}'),
    posted(b"\xff\xff\xff\xff"),
    posted(b'{"jsonrpc":"2.0","id":1,"method":"\\ud800"}'),
    posted(b"{}", {"Mcp-Name": "\xff\xfe"}),
    posted(b"{}", {"Mcp-Session-Id": "\xc3\x28"}),
    b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /%ff%fe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
)
_HEAVY_JSON: Final = (
    posted(b"[" * 1_000_000),
    posted(b'{"a":' * 200_000),
    posted(b"9" * 1_000_000),
    posted(b'{"jsonrpc":"2.0","id":1e999,"method":"ping"}'),
    posted(b"[" + b",".join([b"{}"] * 100_000) + b"]"),
    posted(b'"' + b"\\u0000" * 100_000 + b'"'),
)
_INJECTED: Final = (
    posted(b"{}", {"Mcp-Session-Id": "a\r\nInjected: 1"}),
    posted(b"{}", {"Origin": "http://x\r\n\tInjected: 1"}),
    posted(b"{}", {"Mcp-Session-Id": "a%0d%0aInjected:%201"}),
    posted(b"{}", {"Origin": "http://x%0d%0aInjected:1"}),
    posted(b"{}", {"MCP-Protocol-Version": "a\\r\\nInjected: 1"}),
    b"GET /a%0d%0aInjected:%201 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /a\rInjected:1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    _HEALTH + b"Origin: http://x\nInjected: 1\r\nConnection: close\r\n\r\n",
)
_FOREIGN: Final = (
    posted(b"{}").replace(b"Host: x", b"Host: example.com"),
    posted(b"{}", {"Origin": "https://example.com"}),
    posted(b"{}", {"Origin": "null"}),
    _OPTIONS + b"Origin: https://example.com\r\nConnection: close\r\n\r\n",
)
_NO_HTTP: Final = (
    bytes.fromhex("16030100c8010000c40303") + bytes(200),  # TLS
    PREFACE,
    PREFACE + bytes(64),
    b"SSH-2.0-OpenSSH_9.9\r\n",
    b"\x00" * 1000,
    b"\r\n" * 1000,
    b"GET /health\r\n\r\n",
)
_UPGRADE: Final = _HEALTH + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: "
_UPGRADES: Final = (
    _UPGRADE + b"h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
    _UPGRADE + b"h2c\r\nHTTP2-Settings: none\x7f\r\n\r\n",
    _UPGRADE + b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n",
    b"CONNECT example.com:80 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"TRACE /outer HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
)
_GUESSES: Final = tuple(
    posted(b'{"jsonrpc":"2.0","id":1,"method":"ping"}', {"Mcp-Session-Id": f"{number:032x}"})
    for number in range(200)
)

REJECTIONS: Final = frozenset(
    {400, 403, 404, 405, 406, 408, 413, 414, 415, 417, 426, 431, 501, 505}
)


def _each(requests: Sequence[bytes], *, then_eof: bool = False) -> list[Attempt]:
    return [sending(request, then_eof=then_eof) for request in requests]


NATIVE: Final = ("native",)

ATTACKS: Final = (
    Attack("headers, byte by byte", [trickling(b"", POST * 10)] * 200, {408}),
    Attack(
        "a body, byte by byte", [trickling(POST + _LENGTH, b"x" * 1000)] * 200, {408}, hosts=NATIVE
    ),
    Attack("a body that stops", [sending(POST + _LENGTH + b"abc")] * 200, {400, 408}),
    Attack("half-closed after a half", _each(BROKEN_OFF[:4] * 20, then_eof=True), {400, 408}),
    Attack("half-closed after all of it", _each([_WHOLE] * 50, then_eof=True), {400}),
    Attack(
        "vanished at any point",
        [vanishing(data, resets=resets) for data in BROKEN_OFF * 20 for resets in (False, True)],
        (),
    ),
    Attack(
        "400 requests at once",
        [sending((_HEALTH + b"\r\n") * 399 + _HEALTH_AND_CLOSE)],
        {200},
        answers_max=400,
    ),
    Attack("lengths that conflict", _each(CONFLICTING_LENGTHS), {400}),
    Attack("invalid chunking", _each(INVALID_CHUNKING), {400, 501}),
    Attack("invalid headers", _each(BROKEN_HEADERS), {400}),
    Attack("what others accept", _each(OFTEN_ACCEPTED), {400}, hosts=NATIVE),
    Attack(
        "requests with damage",
        _each(list(damaged(60)), then_eof=True),
        REJECTIONS,
        answers_max=2,  # damage after a complete request is a second one
    ),
    Attack("huge headers", _each(HUGE_HEADERS), {400, 431}),
    Attack(
        "huge bodies",
        [
            sending(POST + b"Content-Length: 1000000000000\r\n\r\n" + b"x" * 1_000_000),
            sending(CHUNKED, *[b"100000\r\n" + b"x" * (1 << 20) + b"\r\n"] * 40),
            sending(CHUNKED + b"1\r\nx\r\n" * 300_000),
        ],
        {400, 408, 413},
    ),
    Attack("headers that are injected", _each(_INJECTED), REJECTIONS | {200}),
    Attack("invalid text encodings", _each(_NO_TEXT), REJECTIONS),
    Attack("expensive JSON", _each(_HEAVY_JSON), {400, 408, 413}),
    Attack("foreign hosts and origins", _each(_FOREIGN), {403}),
    Attack("no HTTP at all", _each(_NO_HTTP), REJECTIONS, hosts=NATIVE),
    Attack("upgrades and tunnels", _each(_UPGRADES), REJECTIONS | {200}, hosts=NATIVE),
    Attack("guesses at session ids", _each(_GUESSES), {400, 404}),
    Attack(
        "long answers never read", [not_reading(call("large", {"mib": 8}))] * 10, (), hosts=NATIVE
    ),
    Attack("streams never read", [not_reading(call("pour", {}, progressToken=1))] * 20, ()),
    Attack("2,000 that send nothing", [read_to_end] * 2000, {408}, pause_seconds=0.001),
)
