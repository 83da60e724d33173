"""Raw ends of a connection for `run_faults.py`: they send given bytes and note all replies.

A peer speaks lines, or text messages of a WebSocket, which it opens first.
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

from socket_wires import CLOSE, PING, PONG, TEXT, WHOLE, frames_in, handshake, masked

CHUNK_BYTES: Final = 1 << 16
UNREAD_BYTES: Final = 1 << 14
ANSWER: Final = "answer"
CUT: Final = "cut"
GONE: Final = "gone"
HUNG_UP: Final = "closed"
_HEAD_END: Final = b"\r\n\r\n"
_PAUSE_SECONDS: Final = 0.05


@attrs.define(eq=False)
class Lines:
    """A connection of lines.

    Attributes:
        stream: The connection.
        words: What has come back, a word for each answer, and for the end.
        answers_pings: Whether it does, where there are any.
    """

    stream: trio.SocketStream
    words: list[str] = attrs.field(factory=list[str], init=False)
    answers_pings: bool = attrs.field(default=True, init=False)
    _rest: bytes = attrs.field(default=b"", init=False)
    _came: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)
    _due: list[bytes] = attrs.field(factory=list[bytes], init=False)
    _sending: trio.Lock = attrs.field(factory=trio.Lock, init=False)

    async def open(self) -> None:
        """Do what comes before the first message."""

    async def say(self, *messages: bytes) -> None:
        """Send messages, as one piece."""
        await self.put(b"".join(each + b"\n" for each in messages))

    async def put(self, data: bytes) -> None:
        """Send bytes, as far as the other end takes them."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._sending:
                await self.stream.send_all(data)
                while self._due:  # what must be said behind it, and kept nobody from reading
                    await self.stream.send_all(self._due.pop(0))

    async def leave(self) -> None:
        """Say that nothing more comes."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._sending:
                await self.stream.send_eof()

    async def vanish(self) -> None:
        """Be gone at once, and take back what has not arrived."""
        self.words.append(GONE)
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await trio.aclose_forcefully(self.stream)

    async def answered(self, count: int) -> None:
        """Return when so many words have come."""
        while len(self.words) < count:
            await self._came.park()

    async def until_cut(self) -> None:
        """Read nothing, until the other end has given up."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, UNREAD_BYTES)
        with contextlib.suppress(trio.BrokenResourceError):
            while True:
                await trio.sleep(_PAUSE_SECONDS)
                await self.stream.send_all(self.filling)
        self.words.append(CUT)

    @property
    def filling(self) -> bytes:
        """What means nothing."""
        return b"\n"

    async def read(self) -> None:
        """Note all that comes, up to the other end's close; a reset is one, too."""
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self.stream.receive_some(CHUNK_BYTES):
                self._rest += data
                await self.take()
                self._came.unpark_all()
        if GONE not in self.words:
            self.words += self.last_words()

    async def take(self) -> None:
        """Note the whole messages that have come."""
        *lines, self._rest = self._rest.split(b"\n")
        self.words += [word for line in lines for word in words_of(line)]

    def last_words(self) -> Sequence[str]:
        """What the end of the connection means."""
        return [HUNG_UP]


@attrs.define(eq=False)
class Messages(Lines):
    """A WebSocket."""

    host: str
    path: str
    _is_open: bool = attrs.field(default=False, init=False)
    _has_close: bool = attrs.field(default=False, init=False)

    async def open(self, **others: str) -> None:
        """Shake hands, with these headers in the place of others; returns when that is answered."""
        await self.put(handshake(self.host, self.path, **others))
        while not (self._is_open or self.words):
            await self._came.park()

    async def say(self, *messages: bytes) -> None:
        """See `Lines.say`."""
        await self.put(b"".join(masked(WHOLE | TEXT, each) for each in messages))

    async def leave(self) -> None:
        """See `Lines.leave`: with the close code for it."""
        await self.put(masked(WHOLE | CLOSE, (1000).to_bytes(2, "big")))

    @property
    def filling(self) -> bytes:
        """See `Lines.filling`."""
        return masked(WHOLE | PONG, b"")

    async def take(self) -> None:
        """See `Lines.take`."""
        if not self._is_open:
            head, end, self._rest = self._rest.partition(_HEAD_END)
            if not end:
                self._rest = head
                return
            status = head.split(b" ", 2)[1].decode()
            self._is_open = status == "101"
            if not self._is_open:
                self.words.append(f"HTTP {status}")
                return
        elif self.words[:1] and self.words[0].startswith("HTTP"):
            return  # what is in the body of a refusal
        frames, self._rest = frames_in(self._rest)
        for each in frames:
            await self._note(each.first_byte & ~WHOLE, each.payload)

    async def _note(self, opcode: int, payload: bytes) -> None:
        if opcode == CLOSE:
            self._has_close = True
            self.words.append(f"close {int.from_bytes(payload[:2], 'big')}")
        elif opcode == PING and self.answers_pings:
            self._due.append(masked(WHOLE | PONG, payload))
            if not self._sending.locked():
                await self.put(b"")
        elif opcode == TEXT:
            self.words += words_of(payload)

    def last_words(self) -> Sequence[str]:
        """See `Lines.last_words`; behind a close, or a refusal, it says nothing new."""
        if not self._is_open:
            return [] if self.words else [HUNG_UP]
        return [] if self._has_close else [CUT]


def words_of(message: bytes) -> Sequence[str]:
    """What an answer is, in a word; a notification is none."""
    decoded = json.loads(message)
    if "error" in decoded:
        return [f"error {decoded['error']['code']}"]
    return [ANSWER] if "result" in decoded else []


def in_words(words: Sequence[str]) -> str:
    """The words in a text; those that follow each other are counted: `answer x3, close 1000`."""
    counted = [(word, sum(1 for _ in each)) for word, each in groupby(words)]
    return ", ".join(word if count == 1 else f"{word} x{count}" for word, count in counted)


Script: TypeAlias = Callable[[Lines], Awaitable[None]]
"""What is done with a connection; all that comes is read meanwhile, if it is not said otherwise."""
