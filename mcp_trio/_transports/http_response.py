"""Carrying a stream to the client: as one JSON answer, or as a stream of events.

An answer that comes soon, and alone, is JSON. Whatever takes longer, or has something to say before
it ends, becomes a stream of events, unless the client takes none.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec
import trio

from mcp_trio._jsonrpc.sse import COMMENT, Event, encode_event
from mcp_trio._protocol.http_headers import EVENT_STREAM, JSON, Headers, HttpRequest
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.requests import RequestId
from mcp_trio._transports.concurrency import TimerQueue, Wakeup
from mcp_trio.limits import Limits

# --------------------
# What an HTTP application asks of who holds the connection: one request, and its answer.
#
# Two hosts make exchanges, `asgi` and `native`, and pass the same tests. An application is a
# function of an exchange; it knows nothing of sockets, chunks or HTTP versions.


class BodyTooLargeError(Exception):
    """The body of a request is over its limit; nothing more of it is read."""


class Exchange(Protocol):
    """One request and its answer, which is given by `answer`, or by `start`, `send` and `end`.

    One coroutine reads and answers; `gone` may be awaited by another task. After the application
    has returned without an answer, the host gives one: 500.
    """

    @property
    def head(self) -> HttpRequest:
        """What came before the body."""
        ...

    @property
    def may_lead(self) -> bool:
        """Whether the coroutine that answers may go on in another task, if it asks for that."""
        ...

    async def body(self, bytes_max: int) -> bytes:
        """The whole body; only the first call reads.

        Raises:
            BodyTooLargeError: It is larger.
            trio.BrokenResourceError: The client went away, or was too slow, before its end.
        """
        ...

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Give a whole answer; its length is added to the headers.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Begin an answer whose length nobody knows; the head leaves at once.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        ...

    async def send(self, piece: bytes) -> None:
        """Send a piece of it; waits while the client does not read.

        Raises:
            trio.BrokenResourceError: The client is gone, or has read nothing for too long.
        """
        ...

    async def end(self) -> None:
        """End such an answer.

        Raises:
            trio.BrokenResourceError: The client is gone.
        """
        ...

    async def gone(self) -> None:
        """Wait until the client has gone away; never returns before the body was read."""
        ...


Responder: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""An application. What it raises, but for a cancellation, is logged by the host, and ends the
exchange: with 500 if no answer has begun, else by breaking the connection off."""


# --------------------
# What is on its way to a client on one stream, whether an HTTP answer carries it now or not.


class Sent(msgspec.Struct, eq=False, gc=False):
    """A frame on a stream; its event id, where streams can be resumed."""

    frame: bytes
    event_id: str | None
    is_answer: bool


class AnswerStream(msgspec.Struct, eq=False):
    """The frames of one stream that nobody has carried away yet, in order.

    It has ended when the answers to all that it `awaits` were put, or by `end`. One that awaits
    nothing ends by `end` only. Of one that nobody carries, the oldest frames are dropped for newer
    ones; one whose client has gone away holds nothing, for whoever comes back is given again what
    is kept elsewhere.

    Attributes:
        limits: How much may wait.
        number: Where the session's events are counted; None while nothing can be resumed.
        first_id: The id of an event without a message, which came before all others.
        awaits: The requests whose answers go here.
        is_narrow: The client takes nothing but the one answer.
        carrier: What takes the frames away, as events; None while nobody does.
    """

    limits: Limits
    number: int | None = None
    first_id: str | None = None
    awaits: frozenset[RequestId] = frozenset()
    is_narrow: bool = False
    carrier: trio.CancelScope | None = None
    is_ended: bool = False
    is_overrun: bool = False
    is_left: bool = False
    dropped: int = 0
    _waiting: list[Sent] = []
    _bytes: int = 0
    _news: Wakeup = msgspec.field(default_factory=Wakeup)

    @property
    def answers(self) -> Sequence[bytes] | None:
        """All answers, if the stream has ended with them and holds nothing else."""
        if not self.is_ended:
            return None
        frames: list[bytes] = []
        for sent in self._waiting:
            if not sent.is_answer:
                return None
            frames.append(sent.frame)
        return frames

    @property
    def is_carried(self) -> bool:
        """Whether somebody takes the frames away, and tells their ids."""
        return self.carrier is not None

    @property
    def has_waiting(self) -> bool:
        """Whether there is something to carry."""
        return bool(self._waiting)

    @property
    def has_news(self) -> bool:
        """Whether there is something to carry, or nothing more to wait for."""
        return bool(self._waiting) or self.is_ended or self.is_overrun

    def put(self, sent: Sent) -> None:
        """One more frame; over the bounds, who carries is too slow, and is given up."""
        if self.is_left:
            return
        self._waiting.append(sent)
        self._bytes += len(sent.frame)
        while self._is_over():
            if self.is_carried:
                self.is_overrun = True
                self.take()
            else:
                self._bytes -= len(self._waiting.pop(0).frame)
                self.dropped += 1
        self._news.ring()

    def _is_over(self) -> bool:
        """What waits before the newest frame counts: nobody is slow for one that is large."""
        if not self._waiting:
            return False
        is_many = len(self._waiting) > self.limits.http.events_kept_max
        before = self._bytes - len(self._waiting[-1].frame)
        return before > self.limits.http.unsent_bytes_max or (is_many and not self.is_carried)

    def put_again(self, events: Sequence[Sent]) -> None:
        """What a client missed goes before everything else; it is back."""
        self.is_left = False
        known = {sent.event_id for sent in events}
        self._waiting = [*events, *(sent for sent in self._waiting if sent.event_id not in known)]
        self._bytes = sum(len(sent.frame) for sent in self._waiting)
        self._news.ring()

    @property
    def frames(self) -> Sequence[bytes]:
        """Those that wait."""
        return [sent.frame for sent in self._waiting]

    def name_all(self, ids: Iterable[str]) -> None:
        """Give each frame that waits its id."""
        for sent, event_id in zip(self._waiting, ids, strict=True):
            sent.event_id = event_id

    def answered(self, request_id: RequestId) -> None:
        """One request needs no answer any more; after the last one the stream has ended."""
        self.awaits -= {request_id}
        if not self.awaits:
            self.end()

    def carry(self, carrier: trio.CancelScope) -> None:
        """The frames are this carrier's from now on; an earlier one is ended."""
        before, self.carrier = self.carrier, carrier
        if before is not None:
            before.cancel()
        self.is_overrun = False

    def put_down(self, carrier: trio.CancelScope) -> None:
        """A carrier takes no more; nothing happens if another one has taken the stream over."""
        if self.carrier is carrier:
            self.carrier = None

    def leave(self) -> None:
        """The client has gone away, and will be given all again if it comes back."""
        self.is_left = True
        self.take()

    def end(self) -> None:
        """Nothing more comes."""
        self.is_ended = True
        self._news.ring()

    def take(self) -> Sequence[Sent]:
        """All that waits, which is somebody else's now."""
        taken, self._waiting, self._bytes = self._waiting, [], 0
        return taken

    async def ended(self) -> None:
        """Wait until nothing more comes; a checkpoint in any case."""
        await trio.lowlevel.checkpoint()
        while not self.is_ended:
            await self._news.wait()

    async def soon(self, seconds: float) -> None:
        """Wait for news, but not longer; a checkpoint in any case."""
        with trio.move_on_after(seconds):
            await self.news()

    async def soon_by(self, timer_queue: TimerQueue) -> None:
        """The same, by the time of many; where there are news, a check for cancellation."""
        if self.has_news:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            await timer_queue.wait(self._news)

    async def news(self) -> None:
        """Wait until there is some; a checkpoint in any case."""
        if self.has_news:
            await trio.lowlevel.checkpoint()
        while not self.has_news:
            await self._news.wait()


STREAM_HEADERS: Final[Headers] = (
    ("Content-Type", EVENT_STREAM),
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)
"""A stream is not to be kept, changed, or held back on its way (MHTTP-19)."""

Whole: TypeAlias = tuple[int, Headers, bytes]
"""The status, the headers and the body of an answer that leaves at once."""

_OK: Final = 200
_ACCEPTED: Final = 202
_JSON_HEADERS: Final[Headers] = (("Content-Type", JSON),)


def _nothing() -> None:
    return None


class _ErrorCode(msgspec.Struct):
    code: int = 0


class _Answer(msgspec.Struct):
    error: _ErrorCode | None = None


class Carrier(msgspec.Struct, kw_only=True, eq=False):
    """Carries one stream over one exchange.

    Attributes:
        limits: How long is waited before an answer becomes a stream, and between signs of life.
        headers: What every answer has.
        status_of: The status of a JSON answer that is the error of this code; without it, 200.
        begin: Called when the stream begins as events; gives the id of a first one without a
            message, or None.
        first_event: Another first event.
        last_id: Gives the id of a last event without a message, after which the stream goes on for
            a client that comes back (HTTP-15); None: this one would not.
        why_unanswered: What is said where the stream ends without a word; None: that it does.
        wants_stream: An answer is a stream of events also where it might be JSON.
    """

    limits: Limits
    headers: Headers = ()
    status_of: Callable[[int], int] | None = None
    begin: Callable[[], str | None] = _nothing
    first_event: Event | None = None
    last_id: Callable[[], str] | None = None
    why_unanswered: Callable[[], Rejection | None] = _nothing
    wants_stream: bool = False

    async def carry(self, exchange: Exchange, stream: AnswerStream) -> None:
        """Carry the stream to its end: as one JSON answer, or as events.

        Cancelled, or left by the client: what was taken from the stream may not have arrived.

        Raises:
            trio.BrokenResourceError: The client is gone, or too slow.
        """
        if not self._is_stream(exchange.head) or self.status_of is not None:
            await self._first_news(stream)
        if stream.is_ended:
            await exchange.answer(*self.whole(exchange.head, stream))
        else:
            await self._carry_on(exchange, stream)

    def whole(self, head: HttpRequest, stream: AnswerStream) -> Whole:
        """All that a stream has held to its end, which is taken from it, for who sent this head.

        An error that has a status of its own is one for every client (MHTTP-26, MHTTP-27).
        """
        is_stream = self._is_stream(head)
        frames = None if is_stream and self.status_of is None else stream.answers
        if frames is None or (len(frames) > 1 and not stream.is_narrow):
            return self._events(stream)
        if not frames:
            return self._why()
        status = self._status(frames[0])
        if is_stream and status == _OK:
            return self._events(stream)
        stream.take()
        body = frames[0] if len(frames) == 1 else b"[%b]" % b",".join(frames)
        return status, [*_JSON_HEADERS, *self.headers], body

    def _events(self, stream: AnswerStream) -> Whole:
        """All events at once, whose length is known: they leave with the head."""
        first = self._first_event()
        events = b"" if first is None else encode_event(first)
        events += _encoded(stream.take())
        return _OK, [*STREAM_HEADERS, *self.headers], events

    def _why(self) -> Whole:
        rejection = self.why_unanswered()
        if rejection is None:
            return _ACCEPTED, self.headers, b""
        return rejection.status, [*_JSON_HEADERS, *self.headers], rejection.body()

    def _status(self, frame: bytes) -> int:
        if self.status_of is None:
            return _OK
        error = msgspec.json.decode(frame, type=_Answer).error
        return _OK if error is None else self.status_of(error.code)

    def _is_stream(self, head: HttpRequest) -> bool:
        return not head.takes_json or (self.wants_stream and head.takes_streams)

    async def _first_news(self, stream: AnswerStream) -> None:
        """Wait for what decides; a client that takes no stream waits for its answers."""
        if stream.is_ended:
            return
        if stream.is_narrow:
            await stream.ended()
        else:
            await stream.soon(self.limits.http.stream_after_seconds)

    async def stream(self, exchange: Exchange, stream: AnswerStream) -> None:
        """Carry the stream to its end, as events; or as long as one connection may take.

        Raises:
            trio.BrokenResourceError: The client is gone, or too slow, or has come back on another
                connection, which has taken the stream over.
        """
        if stream.is_ended:  # nothing is to be waited for, and nobody else can carry it
            await exchange.answer(*self._events(stream))
        else:
            await self._carry_on(exchange, stream)

    async def _carry_on(self, exchange: Exchange, stream: AnswerStream) -> None:
        with trio.CancelScope() as scope:
            stream.carry(scope)
            try:
                await self._stream(exchange, stream, scope)
            finally:
                stream.put_down(scope)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the stream goes on over another connection")

    async def _stream(
        self, exchange: Exchange, stream: AnswerStream, scope: trio.CancelScope
    ) -> None:
        await exchange.start(_OK, [*STREAM_HEADERS, *self.headers])
        first = self._first_event()
        if first is not None:
            await exchange.send(encode_event(first))
        over_at = self._over_at()
        while stream.has_waiting or not (stream.is_ended or trio.current_time() >= over_at):
            await self._next_news(exchange, stream, over_at)
            await trio.lowlevel.checkpoint_if_cancelled()  # or it would be another carrier's
            await _send_events(exchange, stream)
        if not stream.is_ended:
            await self._break_off(exchange)
            stream.put_down(scope)  # the client may be back before our end is closed
        await exchange.end()

    def _over_at(self) -> float:
        if self.last_id is None:
            return math.inf
        return trio.current_time() + self.limits.http.stream_seconds_max

    async def _break_off(self, exchange: Exchange) -> None:
        """Tell the client to come back, and when, for what is still to come (HTTP-17)."""
        assert self.last_id is not None
        last = Event(id=self.last_id(), retry_ms=self.limits.http.sse_retry_ms)
        await exchange.send(encode_event(last))

    def _first_event(self) -> Event | None:
        first_id = self.begin()
        if first_id is None:
            return self.first_event
        return Event(id=first_id, retry_ms=self.limits.http.sse_retry_ms)

    async def _next_news(self, exchange: Exchange, stream: AnswerStream, over_at: float) -> None:
        """Wait for the next frames; a comment tells those between us that we live (MHTTP-20)."""
        while not stream.has_news:
            with (
                trio.move_on_at(over_at),
                trio.move_on_after(self.limits.http.sse_keep_alive_seconds),
            ):
                await stream.news()
            if trio.current_time() >= over_at:
                return
            if not stream.has_news:
                await exchange.send(COMMENT)


async def _send_events(exchange: Exchange, stream: AnswerStream) -> None:
    """Send what waits, as one piece."""
    events = _encoded(stream.take())
    if stream.is_overrun:
        raise trio.BrokenResourceError("the client reads too slowly (limits.http.unsent_bytes_max)")
    if events:
        await exchange.send(events)


def _encoded(taken: Sequence[Sent]) -> bytes:
    return b"".join([encode_event(Event(each.frame, id=each.event_id)) for each in taken])


async def carried(
    exchange: Exchange, carrier: Carrier, stream: AnswerStream, timer_queue: TimerQueue
) -> bool:
    """Carry, but stop when the client goes away; returns whether it stayed to the end.

    Most answers come while there is `timer_queue`, and need nobody to watch.

    Raises:
        trio.BrokenResourceError: The client was gone when such an answer came.
    """
    if not stream.is_ended:
        await stream.soon_by(timer_queue)
    if not stream.is_ended:
        return await until_gone(exchange, partial(carrier.carry, exchange, stream))
    await exchange.answer(*carrier.whole(exchange.head, stream))
    return True


async def until_gone(exchange: Exchange, carry: Callable[[], Awaitable[None]]) -> bool:
    """Carry, but stop when the client goes away; returns whether it stayed to the end."""
    has_stayed = False

    async def watch(scope: trio.CancelScope) -> None:
        await exchange.gone()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        with suppress(trio.BrokenResourceError):
            await carry()
            has_stayed = True
        nursery.cancel_scope.cancel()
    return has_stayed
