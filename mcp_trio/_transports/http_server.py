"""HTTP/1.1 on Trio sockets: the cheaper of the two hosts, for a server that needs no TLS.

A connection is served by one task at a time, one request after the other. Nothing that a client
does, and nothing that the application raises, ends more than its connection.
"""

import enum
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, NoReturn, Protocol, Self, cast

import attrs
import msgspec
import trio

from mcp_trio._protocol.http_headers import Headers, HttpRequest
from mcp_trio._protocol.websocket import asks_for_websocket
from mcp_trio._transports.http1 import (
    CONTINUE,
    ChunkedBody,
    Rejected,
    RequestHead,
    has_body,
    head_bytes,
    is_remembered,
    read_head,
    written_head,
    written_rejection,
)
from mcp_trio._transports.http_response import BodyTooLargeError, Responder
from mcp_trio._transports.socket_bytes import Ends, SocketEnds, Wire, client_of
from mcp_trio._transports.trio_websocket import WireStream
from mcp_trio._transports.websocket import Upgraded
from mcp_trio._transports.websocket_server import StreamUpgrade
from mcp_trio.limits import Limits

# --------------------
# What becomes of a connection of the native listener whose client asks for a WebSocket.


logger = logging.getLogger("mcp_trio")


async def hand_over(wire: Wire, raw: bytes, head: HttpRequest, upgraded: Upgraded) -> None:
    """Let `upgraded` have the connection, of which `raw` was read; it is closed afterwards.

    Raises:
        trio.BrokenResourceError: The client has gone away.
    """
    stream = WireStream(wire)
    received = raw + wire.take(len(wire.received))
    upgrade = StreamUpgrade(stream=stream, head=head, received=received, limits=wire.limits)
    try:
        await upgraded(upgrade)
    except trio.BrokenResourceError:
        raise
    except Exception:
        logger.exception("a WebSocket connection failed")
    finally:
        await trio.aclose_forcefully(stream)


# --------------------
# One request on a connection of the native listener, and its answer.


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
    head: HttpRequest
    may_lead: bool = False
    answered: Answer = Answer.NONE
    rejection: Rejected | None = None
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
            except Rejected as rejection:
                self.rejection = rejection
                raise trio.BrokenResourceError(rejection.text) from rejection
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
        framing_bytes_max = self.wire.limits.http.headers_bytes_max
        chunks = ChunkedBody(bytes_max=bytes_max, framing_bytes_max=framing_bytes_max)
        await self._wait_until(lambda: chunks.take(self.wire.received))
        return bytes(chunks.data)

    async def _wait_until(self, is_whole: Callable[[], bool]) -> None:
        if self.request.awaits_continue and not self.wire.received:
            await self.wire.write(CONTINUE)
        seconds = self.wire.limits.http.body_seconds
        try:
            is_there = await self.wire.receive_until(is_whole, seconds=seconds)
        except trio.BrokenResourceError as error:  # who has closed one half may read the other
            raise Rejected(400, "the body has not come to its end") from error
        if not is_there:
            raise Rejected(
                408, f"the body has not come for {seconds:g} s (limits.http.body_seconds)"
            )

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
        `limits.http.headers_bytes_max` of that is not read any more: its going away shows in `send`
        alone.
        """
        if self._body is None:
            self._was_read = self._was_read or trio.Event()
            await self._was_read.wait()
        while len(self.wire.received) < self.wire.limits.http.headers_bytes_max:
            if not await self.wire.receive():
                self.wire.is_broken = True
                return
        await trio.sleep_forever()


# --------------------
# One connection of the native listener: its requests, one after the other.


_BUSY: Final = math.inf


@attrs.define(eq=False)
class Clock:
    """One that is looked at now and then: `last_look` is the time that it showed."""

    last_look: float = attrs.field(factory=trio.current_time)


@attrs.define(kw_only=True, eq=False)
class NativeConnection:
    """Reads requests, gives them to the application, and sees that each is answered.

    Attributes:
        wire: Its bytes.
        respond: The application.
        upgraded: What it does with who asks for a WebSocket; None: it answers as to anybody.
        client: The address of the peer.
        clock: How late it is, about.
        may_lead: See `Exchange.may_lead`; between requests it rests (see `resting`).
        idle_since: Since when, by that clock, it has waited for a request; infinite if it does not.
        is_over: No more requests are taken.
    """

    wire: Wire
    respond: Responder
    upgraded: Upgraded | None = None
    client: str | None
    clock: Clock
    may_lead: bool = False
    idle_since: float = attrs.field(default=_BUSY, init=False)
    is_over: bool = attrs.field(default=False, init=False)
    _last_raw: bytes = attrs.field(default=b"", init=False)
    _last_head: RequestHead | None = attrs.field(default=None, init=False)

    def end(self) -> None:
        """It was idle for too long."""
        self.is_over = True
        self.wire.ends.end()

    async def serve(self) -> None:
        """Serves until one of both sides ends it.

        Raises:
            trio.BrokenResourceError: The client has gone away in the middle of something.
        """
        try:
            while raw := await self._next_head():
                if not await self._serve_request(raw):
                    break
        except Rejected as rejection:
            await self.wire.write(written_rejection(rejection))
        await self.wire.linger()

    # Requests

    async def _next_head(self) -> bytes:
        """The bytes of the next head; empty if none comes any more."""
        received = self.wire.received
        if received:  # it was sent before the last answer; now it is the turn of other connections
            await trio.lowlevel.checkpoint()
        else:
            self.idle_since = self.clock.last_look
            has_begun = await self.wire.receive(rests=self.may_lead)
            self.idle_since = _BUSY
            if self.is_over or not has_begun:
                return b""
        length = head_bytes(received, 0, bytes_max=self.wire.limits.http.headers_bytes_max)
        return self.wire.take(length or await self._rest_of_head())

    async def _rest_of_head(self) -> int:
        received, limits = self.wire.received, self.wire.limits
        length = searched = 0

        def is_whole() -> bool:
            nonlocal length, searched
            length = head_bytes(received, searched, bytes_max=limits.http.headers_bytes_max)
            searched = len(received)
            return length > 0

        if not await self.wire.receive_until(is_whole, seconds=limits.http.headers_seconds):
            seconds = limits.http.headers_seconds
            raise Rejected(
                408, f"the head has not come for {seconds:g} s (limits.http.headers_seconds)"
            )
        return length

    # Answers

    async def _serve_request(self, raw: bytes) -> bool:
        """Whether another request may follow."""
        request = self._read_head(raw)
        if self.upgraded is not None and asks_for_websocket(request.head):
            await self._upgrade(raw, request, self.upgraded)
            return False
        exchange = NativeExchange.of(request, self.wire, may_lead=self.may_lead)
        try:
            await self.respond(exchange)
        except Exception as error:
            self._log(exchange, error)
        except BaseExceptionGroup as group:  # of what is no Exception, but perhaps not only of that
            raise self._log_errors_of(exchange, group) from None
        if exchange.answered is Answer.NONE:
            if exchange.rejection is not None:
                raise exchange.rejection
            await exchange.answer(500, [])
        if exchange.answered is Answer.BEGUN or exchange.is_last:
            return False  # the client sees that a half of an answer lacks its end
        exchange.skip_body()
        return True

    def _read_head(self, raw: bytes) -> RequestHead:
        """Of what is sent again, but for somebody's secrets, it is known what it means."""
        if raw == self._last_raw and self._last_head is not None:
            return self._last_head
        request = read_head(raw, self.client)
        if is_remembered(raw):
            self._last_raw, self._last_head = raw, request
        return request

    async def _upgrade(self, raw: bytes, request: RequestHead, upgraded: Upgraded) -> None:

        if request.body_bytes != 0:
            raise Rejected(400, "what becomes a WebSocket has no body")
        await hand_over(self.wire, raw, request.head, upgraded)

    def _log_errors_of(
        self, exchange: NativeExchange, group: BaseExceptionGroup
    ) -> BaseExceptionGroup:
        """What is left of the group."""
        errors, rest = group.split(Exception)
        if errors is not None:
            self._log(exchange, errors)
        assert rest is not None
        return rest

    def _log(self, exchange: NativeExchange, error: BaseException) -> None:
        """That a client has gone away, or has sent a body that is none, is no fault of anybody."""
        is_gone = self.wire.is_broken or self.wire.has_ended or exchange.rejection is not None
        if not (is_gone and _is_broken(error)):
            head = exchange.head
            logger.error("the answer to %s %s failed", head.method, head.path, exc_info=error)


def _is_broken(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return all(_is_broken(each) for each in group.exceptions)
    return isinstance(error, trio.BrokenResourceError)


_LOOKS_PER_IDLE_TIME: Final = 8
_FULL: Final = Rejected(503, "there are too many connections (limits.http.connections_max)")


class Serves(Protocol):
    """Who has tasks for what serves, and may lead."""

    def serve(self, served: Callable[[], Coroutine[Any, Any, None]], /) -> object:
        """Begin it; it may go on in another task wherever it asks for that."""
        ...


async def serve_native(
    respond: Responder,
    listeners: Sequence[trio.SocketListener],
    *,
    limits: Limits,
    upgraded: Upgraded | None = None,
    tasks_in: Callable[[trio.Nursery], Serves] | None = None,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serves an application to whoever connects, until it is cancelled.

    Args:
        respond: The application; for each connection one call of it at a time.
        listeners: Bound sockets, which are closed at the end.
        limits: What a connection may cost, and how many there may be.
        upgraded: What is done with who asks for a WebSocket; None: they are answered as anybody.
        tasks_in: Gives who serves the connections in a nursery, so that `respond` may lead (see
            `Exchange.may_lead`); None: each has one task.
        task_status: Is given the listeners once they take connections.

    Cancelled: the listeners and the idle connections are closed at once, and the calls of `respond`
    are cancelled; returns when these have returned.
    """
    host = NativeHost(respond=respond, limits=limits, upgraded=upgraded)

    async with trio.open_nursery() as nursery:
        tasks = None if tasks_in is None else tasks_in(nursery)

        async def take(stream: trio.SocketStream) -> None:
            client = client_of(stream)
            ends = SocketEnds(fd=stream.socket.detach(), chunk_bytes=limits.messages.chunk_bytes)
            if tasks is None:
                await host.serve(ends, client=client)
            else:
                tasks.serve(partial(host.serve, ends, client=client, may_lead=True))

        nursery.start_soon(host.close_idle)
        await trio.serve_listeners(
            take, list(listeners), handler_nursery=nursery, task_status=task_status
        )


@attrs.define(kw_only=True, eq=False)
class NativeHost:
    """The connections to one application."""

    respond: Responder
    limits: Limits
    upgraded: Upgraded | None = None
    _connections: set[NativeConnection] = attrs.field(factory=set[NativeConnection], init=False)
    _clock: Clock = attrs.field(factory=Clock, init=False)

    async def serve(self, ends: Ends, *, client: str | None = None, may_lead: bool = False) -> None:
        """Serves one connection until it ends, and closes it.

        Raises nothing but cancellations, and what is no `Exception`.
        """
        connection = NativeConnection(
            wire=Wire(ends=ends, limits=self.limits),
            respond=self.respond,
            upgraded=self.upgraded,
            client=client,
            clock=self._clock,
            may_lead=may_lead,
        )
        try:
            if len(self._connections) >= self.limits.http.connections_max:
                await connection.wire.write(written_rejection(_FULL))
                return
            self._connections.add(connection)
            await connection.serve()
        except trio.BrokenResourceError:
            pass  # the client has gone away, which ends a connection like any other way
        finally:
            self._connections.discard(connection)
            ends.close()

    async def close_idle(self) -> NoReturn:
        """Closes connections on which no request has begun for `limits.http.idle_seconds`.

        One look at all of them every now and then costs less than a timer for each request, and
        closes none too early and none later than two looks after its time.
        """
        idle_seconds = self.limits.http.idle_seconds
        pause = idle_seconds / _LOOKS_PER_IDLE_TIME
        while True:
            await trio.sleep(pause)
            self._clock.last_look = now = trio.current_time()
            for connection in self._connections:
                if now - connection.idle_since >= idle_seconds + pause:
                    connection.end()
