"""Raw client connections for `run_faults.py`, which send given bytes and note all answers.

A peer exchanges lines, or text messages of a WebSocket.
"""

import contextlib
import json
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, TypeAlias

import attrs
import trio

sys.path.append(str(Path(__file__).resolve().parent.parent / "bench"))

from socket_wires import CLOSE, FIN, PING, PONG, TEXT, frames_in, handshake, masked

CHUNK_BYTES: Final = 1 << 16
UNREAD_BYTES: Final = 1 << 14
ANSWER: Final = "answer"
CUT: Final = "cut"
GONE: Final = "gone"
HUNG_UP: Final = "closed"
_HEADERS_END: Final = b"\r\n\r\n"
_PAUSE_SECONDS: Final = 0.05


@attrs.define(eq=False)
class Lines:
    """A connection that exchanges lines.

    Attributes:
        stream: The connection.
        outcomes: A word for each received answer, and for the end.
        answers_pings: Whether a WebSocket peer answers pings.
    """

    stream: trio.SocketStream
    outcomes: list[str] = attrs.field(factory=list[str], init=False)
    answers_pings: bool = attrs.field(default=True, init=False)
    _rest: bytes = attrs.field(default=b"", init=False)
    _received: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _pongs: list[bytes] = attrs.field(factory=list[bytes], init=False)
    _sending: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def open(self) -> None:
        """Do what comes before the first message."""

    async def send(self, *messages: bytes) -> None:
        """Send messages, in one write."""
        await self.send_bytes(b"".join(each + b"\n" for each in messages))

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes, unless the server has closed the connection."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._sending:
                await self.stream.send_all(data)
                while self._pongs:  # pongs that were due during the write
                    await self.stream.send_all(self._pongs.pop(0))

    async def close(self) -> None:
        """Close the sending side."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._sending:
                await self.stream.send_eof()

    async def reset(self) -> None:
        """Reset the connection."""
        self.outcomes.append(GONE)
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self.stream)

    async def wait_for_outcomes(self, count: int) -> None:
        while len(self.outcomes) < count:
            await self._received.park()

    async def wait_until_cut(self) -> None:
        """Read nothing, and write until the server has closed the connection."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await trio.sleep(_PAUSE_SECONDS)
                await self.stream.send_all(self.filler)
        self.outcomes.append(CUT)

    @property
    def filler(self) -> bytes:
        """Return bytes that have no effect."""
        return b"\n"

    async def read(self) -> None:
        """Note all answers until the server closes or resets the connection."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self.stream.receive_some(CHUNK_BYTES):
                self._rest += data
                await self.parse()
                self._received.unpark_all()
        if GONE not in self.outcomes:
            self.outcomes += self.final_outcomes()

    async def parse(self) -> None:
        """Note the complete messages among the received bytes."""
        *lines, self._rest = self._rest.split(b"\n")
        self.outcomes += [word for line in lines for word in outcomes_of(line)]

    def final_outcomes(self) -> Sequence[str]:
        """Return what the end of the connection means."""
        return [HUNG_UP]


@attrs.define(eq=False)
class Messages(Lines):
    """A WebSocket connection."""

    host: str
    path: str
    _is_open: bool = attrs.field(default=False, init=False)
    _has_close: bool = attrs.field(default=False, init=False)

    async def open(self, **others: str) -> None:
        """Send the handshake, with these headers changed, and wait for its answer."""
        await self.send_bytes(handshake(self.host, self.path, **others))
        while not (self._is_open or self.outcomes):
            await self._received.park()

    async def send(self, *messages: bytes) -> None:
        await self.send_bytes(b"".join(masked(FIN | TEXT, each) for each in messages))

    async def close(self) -> None:
        """Send a close frame."""
        await self.send_bytes(masked(FIN | CLOSE, (1000).to_bytes(2, "big")))

    @property
    def filler(self) -> bytes:
        return masked(FIN | PONG, b"")

    async def parse(self) -> None:
        if not self._is_open:
            headers, end, self._rest = self._rest.partition(_HEADERS_END)
            if not end:
                self._rest = headers
                return
            status = headers.split(b" ", 2)[1].decode()
            self._is_open = status == "101"
            if not self._is_open:
                self.outcomes.append(f"HTTP {status}")
                return
        elif self.outcomes[:1] and self.outcomes[0].startswith("HTTP"):
            return  # the body of a rejection
        frames, self._rest = frames_in(self._rest)
        for each in frames:
            await self._note(each.first_byte & ~FIN, each.payload)

    async def _note(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self._has_close = True
            self.outcomes.append(f"close {int.from_bytes(payload[:2], 'big')}")
        elif opcode == PING and self.answers_pings:
            self._pongs.append(masked(FIN | PONG, payload))
            if not self._sending.locked():
                await self.send_bytes(b"")
        elif opcode == TEXT:
            self.outcomes += outcomes_of(payload)

    def final_outcomes(self) -> Sequence[str]:
        """Return nothing after a close frame or a rejected handshake."""
        if not self._is_open:
            return [] if self.outcomes else [HUNG_UP]
        return [] if self._has_close else [CUT]


def outcomes_of(message: bytes) -> Sequence[str]:
    """Return a word for an answer, nothing for a notification."""
    decoded = json.loads(message)
    if "error" in decoded:
        return [f"error {decoded['error']['code']}"]
    return [ANSWER] if "result" in decoded else []


def summary_of(outcomes: Sequence[str]) -> str:
    """Return the words as text, with repeated ones counted: `answer x3, close 1000`."""
    counted = [(word, sum(1 for _ in each)) for word, each in groupby(outcomes)]
    return ", ".join(word if count == 1 else f"{word} x{count}" for word, count in counted)


Script: TypeAlias = Callable[[Lines], Awaitable[None]]
"""Uses a connection; answers are read meanwhile, unless the fault turns that off."""
