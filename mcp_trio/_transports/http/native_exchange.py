"""One request on a connection of the native listener, and its answer."""

import enum
from collections.abc import Callable
from typing import Final, Self

import msgspec
import trio

from mcp_trio._protocol.http import Head, Headers
from mcp_trio._transports.http.exchange import BodyTooLargeError
from mcp_trio._transports.http.native_chunks import ChunkedBody
from mcp_trio._transports.http.native_head import (
    CONTINUE,
    Refused,
    RequestHead,
    has_body,
    written_head,
)
from mcp_trio._transports.http.native_wire import Wire

_CHUNKED: Final = b"transfer-encoding: chunked\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Answer(enum.Enum):
    """How far an answer has come."""

    NONE = "none"
    BEGUN = "begun"
    ENDED = "ended"


class NativeExchange(msgspec.Struct, kw_only=True, eq=False):
    """See `Exchange`.

    Attributes:
        head: See `Exchange.head`.
        may_lead: See `Exchange.may_lead`.
        answered: How far the answer has come.
        refusal: What is wrong with the body, if the application has met it.
        is_last: Whether the connection ends with the answer.
    """

    request: RequestHead
    wire: Wire
    head: Head
    may_lead: bool = False
    answered: Answer = Answer.NONE
    refusal: Refused | None = None
    is_last: bool
    _body: bytes | None = None
    _has_chunks_begun: bool = False
    _was_read: trio.Event | None = None
    _has_body: bool = False
    _has_chunks: bool = False

    @classmethod
    def of(cls, request: RequestHead, wire: Wire, *, may_lead: bool = False) -> Self:
        """That of a request whose head has been read."""
        return cls(
            request=request,
            wire=wire,
            head=request.head,
            may_lead=may_lead,
            is_last=request.is_last,
            _body=b"" if request.body_bytes == 0 else None,
        )

    # The body

    async def body(self, bytes_max: int) -> bytes:
        """See `Exchange.body`."""
        if self._body is None:
            try:
                self._body = await self._read(bytes_max)
            except Refused as refusal:
                self.refusal = refusal
                raise trio.BrokenResourceError(refusal.text) from refusal
            if self._was_read is not None:
                self._was_read.set()
        return self._body

    async def _read(self, bytes_max: int) -> bytes:
        received, length = self.wire.received, self.request.body_bytes
        if length is None:
            return await self._read_chunks(bytes_max)
        if length > bytes_max:
            raise BodyTooLargeError(f"the body is longer than {bytes_max} bytes")
        if length > len(received):
            await self._wait_until(lambda: len(received) >= length)
        return self.wire.take(length)

    async def _read_chunks(self, bytes_max: int) -> bytes:
        if self._has_chunks_begun:
            raise trio.BrokenResourceError("an earlier call has not read the whole body")
        self._has_chunks_begun = True
        framing_bytes_max = self.wire.limits.http_head_bytes_max
        chunks = ChunkedBody(bytes_max=bytes_max, framing_bytes_max=framing_bytes_max)
        await self._wait_until(lambda: chunks.take(self.wire.received))
        return bytes(chunks.data)

    async def _wait_until(self, is_whole: Callable[[], bool]) -> None:
        if self.request.awaits_continue and not self.wire.received:
            await self.wire.write(CONTINUE)
        seconds = self.wire.limits.http_body_seconds
        try:
            is_there = await self.wire.receive_until(is_whole, seconds=seconds)
        except trio.BrokenResourceError as error:  # who has closed one half may read the other
            raise Refused(400, "the body has not come to its end") from error
        if not is_there:
            raise Refused(408, f"the body has not come for {seconds:g} s (http_body_seconds)")

    def skip_body(self) -> None:
        """Makes way for the next request, after an answer that was not the last one."""
        if self._body is None:
            self.wire.take(self.request.body_bytes or 0)

    def _is_body_there(self) -> bool:
        length = self.request.body_bytes
        is_received = length is not None and length <= len(self.wire.received)
        return self._body is not None or is_received

    # The answer

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """See `Exchange.answer`; head and body leave together, and most often at once."""
        is_sent = has_body(status)
        framing = b"content-length: %d\r\n" % len(body) if is_sent else b""
        head = self._begin(status, headers, framing)
        is_sent = is_sent and self.head.method != "HEAD"
        rest = self.wire.begin_write(head + body if is_sent else head)
        if rest:
            await self.wire.write_rest(rest)
        self.answered = Answer.ENDED

    async def start(self, status: int, headers: Headers) -> None:
        """See `Exchange.start`."""
        is_sent = has_body(status)
        has_chunks = is_sent and self.request.takes_chunks
        head = self._begin(status, headers, _CHUNKED if has_chunks else b"")
        self._has_chunks = has_chunks
        self._has_body = is_sent and self.head.method != "HEAD"
        await self.wire.write(head)

    def _begin(self, status: int, headers: Headers, framing: bytes) -> bytes:
        if self.answered is not Answer.NONE:
            raise RuntimeError("an answer was given already")
        is_last = self.is_last or not self._is_body_there()
        head = written_head(status, headers, framing=framing, is_last=is_last)
        self.is_last = is_last
        self.answered = Answer.BEGUN
        return head

    async def send(self, piece: bytes) -> None:
        """See `Exchange.send`."""
        self._check_begun()
        if self._has_body and piece:
            await self.wire.write(
                b"%x\r\n%b\r\n" % (len(piece), piece) if self._has_chunks else piece
            )

    async def end(self) -> None:
        """See `Exchange.end`."""
        self._check_begun()
        if self._has_body and self._has_chunks:
            await self.wire.write(_LAST_CHUNK)
        self.answered = Answer.ENDED

    def _check_begun(self) -> None:
        if self.answered is not Answer.BEGUN:
            raise RuntimeError("no answer has been started, or it has ended")

    # The client

    async def gone(self) -> None:
        """See `Exchange.gone`; nothing more can be sent then, though it may have closed but a half.

        What the client sends meanwhile is kept for its next request. One that has sent
        `http_head_bytes_max` of that is not read any more: its going away shows in `send` alone.
        """
        if self._body is None:
            self._was_read = self._was_read or trio.Event()
            await self._was_read.wait()
        while len(self.wire.received) < self.wire.limits.http_head_bytes_max:
            if not await self.wire.receive():
                self.wire.is_broken = True
                return
        await trio.sleep_forever()
