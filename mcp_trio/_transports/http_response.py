"""The exchange interface between an HTTP application and its hosts, and JSON or SSE responses.

The limits of request bodies are here as well, because every host checks them.

A response that comes soon, and alone, is sent as JSON. If it takes longer, or if other messages
precede it, it becomes an event stream, unless the client does not accept one.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#streamable-http
"""

import enum
import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.sse import COMMENT, Event, encode_event
from mcp_trio._protocol.http_headers import EVENT_STREAM, JSON, Headers, HttpRequest
from mcp_trio._protocol.shares import Shares, shares_of
from mcp_trio._transports.concurrency import TimerQueue, Wakeup
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId


class BodyTooLargeError(Exception):
    """A request body is longer than its limit; the rest is not read."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"the body is longer than {bytes_max} bytes")


class TooManyBodiesError(Exception):
    """The unfinished bodies of a client, or of all clients, are too long; the rest is not read."""


@attrs.define(eq=False, repr=False)
class UnfinishedBody:
    """The received bytes of a request body, or of a message, that is not complete."""

    bodies: Shares
    network: str | None
    _counted: int = attrs.field(default=0, init=False)

    def count(self, size: int) -> None:
        """Count `size` bytes: all that were received so far.

        Raises:
            TooManyBodiesError: They are too many.
        """
        exceeded = self.bodies.exceeded(self.network, size - self._counted)
        if exceeded is not None:
            raise TooManyBodiesError(f"the unfinished bodies are too long{exceeded}")
        self.bodies.take(self.network, size - self._counted)
        self._counted = size

    def release(self) -> None:
        """Stop counting the bytes: the body is complete, or has failed."""
        self.bodies.give_back(self.network, self._counted)
        self._counted = 0


def shares_of_bodies(limits: Limits) -> Shares:
    """Return the shares of a server's clients in the bytes of unfinished request bodies."""
    shares = shares_of("limits.http.bodies_bytes_max", limits)
    return attrs.evolve(shares, client_max=max(shares.client_max, limits.messages.bytes_max))


class Exchange(Protocol):
    """One HTTP request and its response: the interface between an application and its host.

    There are three hosts: the native listener (`http_server`), ASGI (`asgi`), and another instance
    that forwards the request (`_server/forwarding.py`). The application is a function of an
    exchange; it sees no sockets, no chunks and no HTTP version. It responds by `answer`, or by
    `start`, `send` and `end`, which raise `trio.BrokenResourceError` if the client has
    disconnected, or has read nothing for `limits.messages.write_stall_seconds`. If it returns
    without a response, the host sends 500. One coroutine reads and responds; another task may await
    `gone`.
    """

    @property
    def request(self) -> HttpRequest:
        """The request line and the headers."""
        ...

    @property
    def may_lead(self) -> bool:
        """True if the application may go on in another task (leader/followers)."""
        ...

    async def body(self, bytes_max: int) -> bytes:
        """Return the complete body; later calls return the same bytes.

        Raises:
            BodyTooLargeError: The body is longer than `bytes_max`.
            TooManyBodiesError: The client sends too many bodies at the same time.
            trio.BrokenResourceError: The client disconnected, or stalled, within the body.
        """
        ...

    def body_nowait(self, bytes_max: int) -> bytes | None:
        """Return the body if all of it has arrived, and it is not longer than `bytes_max`.

        Otherwise this returns None, and `body` waits or raises an error.
        """
        ...

    async def answer(self, status: int, headers: Headers, body: bytes = b"") -> None:
        """Send a complete response; the host adds `Content-Length`."""
        ...

    async def start(self, status: int, headers: Headers) -> None:
        """Send the headers of a response whose length is unknown."""
        ...

    async def send(self, piece: bytes) -> None:
        """Send a piece of a started response; this waits while the client does not read."""
        ...

    async def end(self) -> None:
        """Complete a started response."""
        ...

    async def gone(self) -> None:
        """Wait until the client disconnects.

        This does not return before the body was read, or a response was started without that.
        """
        ...

    def close_after_response(self) -> None:
        """Let no other request follow on the connection; called before the response is started."""
        ...


class ResponseState(enum.Enum):
    """The state of a response."""

    NOT_STARTED = "nothing was sent yet"
    STARTED = "its headers were sent"
    COMPLETE = "it is complete"


Responder: TypeAlias = Callable[[Exchange], Awaitable[None]]
"""An HTTP application. The host logs its errors. It then answers 500, or closes the connection if
a response has started."""


class QueuedMessage(msgspec.Struct, eq=False, gc=False):
    """A JSON-RPC message in the queue of a response stream.

    Attributes:
        event_id: The SSE event id; None where the stream cannot be resumed.
        is_response: Whether the message is the response to a request of the stream.
    """

    message: bytes
    event_id: str | None
    is_response: bool


class ResponseStream(msgspec.Struct, eq=False):
    """The queue of one stream's messages that no HTTP response has sent yet, in order.

    The stream ends when the responses to all requests in `awaits` were put, or by `end`. While no
    HTTP response sends the stream, the oldest messages are dropped for newer ones over the limits.
    After `mark_disconnected`, the queue stays empty: a client that reconnects gets its messages
    from the session's event store.

    Attributes:
        number: The stream's number in the session's event store; None while the stream cannot be
            resumed.
        first_event_id: The id of an event without a message that precedes all others.
        awaits: The ids of the requests whose responses go to this stream.
        is_json_only: Whether the client accepts no event stream, so that responses alone go to it.
        sender: The cancel scope of the HTTP response that sends the stream as events; None while
            there is none.
        is_ended: Whether no message follows those in the queue.
        is_overrun: Whether the client has read too slowly, so that its HTTP response must fail.
        is_disconnected: Whether the client has disconnected before the end.
        dropped: The number of messages that were dropped over the limits.
    """

    limits: Limits
    number: int | None = None
    first_event_id: str | None = None
    awaits: frozenset[RequestId] = frozenset()
    is_json_only: bool = False
    sender: trio.CancelScope | None = None
    is_ended: bool = False
    is_overrun: bool = False
    is_disconnected: bool = False
    dropped: int = 0
    _queue: list[QueuedMessage] = []
    _bytes: int = 0
    # Made by the first wait: most streams end before anything waits for them.
    _changed: Wakeup | None = None

    @property
    def responses(self) -> Sequence[bytes] | None:
        """The responses, if the stream has ended and holds nothing else; otherwise None."""
        if not self.is_ended:
            return None
        responses: list[bytes] = []
        for queued in self._queue:
            if not queued.is_response:
                return None
            responses.append(queued.message)
        return responses

    @property
    def sole_response(self) -> bytes | None:
        """The response, if the stream has ended and holds only this one; otherwise None."""
        queue = self._queue
        if len(queue) == 1 and queue[0].is_response and self.is_ended:
            return queue[0].message
        return None

    @property
    def queue(self) -> Sequence[QueuedMessage]:
        """The messages in the queue, which stay in it."""
        return self._queue

    @property
    def has_messages(self) -> bool:
        """True if the queue holds a message."""
        return bool(self._queue)

    @property
    def is_ready(self) -> bool:
        """True if the queue holds a message, or a wait for one has become pointless."""
        return bool(self._queue) or self.is_ended or self.is_overrun

    def put(self, queued: QueuedMessage) -> None:
        """Append a message; over the limits, drop the oldest ones, or fail the HTTP response."""
        if self.is_disconnected:
            return
        queue = self._queue
        queue.append(queued)
        self._bytes += len(queued.message)
        if len(queue) > 1:
            self._drop_surplus()
        if self._changed is not None:
            self._changed.wake()

    def _drop_surplus(self) -> None:
        """Keep the limits; a single message may be of any size."""
        http = self.limits.http
        while self._queue:
            # The newest message does not count: one large message does not make a client slow.
            before = self._bytes - len(self._queue[-1].message)
            is_many = len(self._queue) > http.events_kept_max and self.sender is None
            if before <= http.unsent_bytes_max and not is_many:
                break
            if self.sender is not None:
                self.is_overrun = True
                self.take()
            else:
                self._bytes -= len(self._queue.pop(0).message)
                self.dropped += 1

    async def _wait(self) -> None:
        if self._changed is None:
            self._changed = Wakeup()
        await self._changed.wait()

    def put_missed(self, missed: Sequence[QueuedMessage]) -> None:
        """Put the messages that a reconnected client has missed in front of the queue."""
        self.is_disconnected = False
        known = {queued.event_id for queued in missed}
        self._queue = [*missed, *(each for each in self._queue if each.event_id not in known)]
        self._bytes = sum(len(queued.message) for queued in self._queue)
        if self._changed is not None:
            self._changed.wake()

    def mark_answered(self, request_id: RequestId) -> None:
        """Remove a request from `awaits`; after the last one, end the stream."""
        self.awaits -= {request_id}
        if not self.awaits:
            self.end()

    def start_sending(self, sender: trio.CancelScope) -> None:
        """Let the HTTP response with this cancel scope send the stream; cancel the previous one."""
        previous, self.sender = self.sender, sender
        if previous is not None:
            previous.cancel()
        self.is_overrun = False

    def stop_sending(self, sender: trio.CancelScope) -> None:
        """End `start_sending`, unless another HTTP response has taken the stream over."""
        if self.sender is sender:
            self.sender = None

    def mark_disconnected(self) -> None:
        """Empty the queue: a client that reconnects gets the messages from the event store."""
        self.is_disconnected = True
        self.take()

    def end(self) -> None:
        """End the stream after the messages in the queue."""
        self.is_ended = True
        if self._changed is not None:
            self._changed.wake()

    def take(self) -> Sequence[QueuedMessage]:
        """Remove and return all messages in the queue."""
        taken, self._queue, self._bytes = self._queue, [], 0
        return taken

    async def wait_ended(self) -> None:
        """Wait until the stream has ended; this always executes a checkpoint."""
        await trio.lowlevel.checkpoint()
        while not self.is_ended:
            await self._wait()

    async def wait_ready(self) -> None:
        """Wait until `is_ready`; this always executes a checkpoint."""
        if self.is_ready:
            await trio.lowlevel.checkpoint()
        while not self.is_ready:
            await self._wait()

    async def wait_ready_or_timeout(self, timer_queue: TimerQueue) -> None:
        """Wait until `is_ready`, or until a timer expires that many streams share.

        If the stream is ready, this only checks for cancellation.
        """
        if self.is_ready:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._changed = self._changed or Wakeup()
            await timer_queue.wait(self._changed)


STATUSES_WITHOUT_BODY: Final = frozenset({204, 304})
"""The statuses of responses that have neither a body nor a `Content-Length` (RFC 9110)."""

PLAIN_TEXT_HEADERS: Final[Headers] = (("content-type", "text/plain; charset=utf-8"),)

STREAM_HEADERS: Final[Headers] = (
    ("Content-Type", EVENT_STREAM),
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)
"""Headers that keep proxies from caching, transforming or buffering an event stream."""

CompleteResponse: TypeAlias = tuple[int, Headers, bytes]
"""The status, the headers and the body of a complete response."""

_OK: Final = 200
_ACCEPTED: Final = 202
_JSON_HEADER: Final = ("Content-Type", JSON)


class _Error(msgspec.Struct):
    code: int = 0
    data: Any = None


class _Response(msgspec.Struct):
    error: _Error | None = None


_decode_response: Final = msgspec.json.Decoder(_Response).decode


class StreamSource:
    """The session or the stateless request whose messages a response stream has.

    Attributes:
        may_reconnect: Whether the connection may close before the stream has ended, with an event
            after which the client reconnects.
    """

    __slots__ = ()

    @property
    def may_reconnect(self) -> bool:
        return False

    def begin_events(self, stream: ResponseStream) -> Event | None:  # noqa: ARG002
        """Prepare a stream to be sent as events; return a first event, if there is one."""
        return None

    def add_last_event(self, stream: ResponseStream) -> str:
        """Add an event without a message, and return the id with which a client can reconnect."""
        raise NotImplementedError

    def unanswered(self, stream: ResponseStream) -> CompleteResponse | None:  # noqa: ARG002
        """Return the response for a stream that has ended without a message.

        None: the response is empty.
        """
        return None

    async def settle(self) -> None:
        """Wait until other instances can load the events of the stream."""


class StreamSender(msgspec.Struct, kw_only=True, eq=False):
    """Sends response streams, each over one exchange, as JSON or as events.

    Attributes:
        status_of: Returns the HTTP status of a JSON response with this JSON-RPC error code; without
            it, the status is 200.
        challenge_of: Returns further headers of a JSON response whose status is not 200, given the
            request and the data of its error.
        prefers_events: Whether to send events to a client that accepts both events and JSON.
    """

    limits: Limits
    status_of: Callable[[int], int] | None = None
    challenge_of: Callable[[HttpRequest, Any], Headers] | None = None
    prefers_events: bool = False

    async def send(
        self, exchange: Exchange, stream: ResponseStream, source: StreamSource, headers: Headers
    ) -> None:
        """Send the stream to its end: as one JSON response, or as events.

        `headers` are further headers of the response. After a cancellation or a disconnect,
        messages that were taken from the stream may not have arrived.

        Raises:
            trio.BrokenResourceError: The client has disconnected, or reads too slowly.
        """
        may_be_json = not self._uses_events(exchange.request) or self.status_of is not None
        if may_be_json and not stream.is_ended:
            if stream.is_json_only:
                await stream.wait_ended()
            else:
                with trio.move_on_after(self.limits.http.stream_after_seconds):
                    await stream.wait_ready()
        if stream.is_ended:
            await exchange.answer(
                *self._complete_response(exchange.request, stream, source, headers)
            )
        else:
            await self._send_open_stream(exchange, stream, source, headers)

    async def send_while_connected(
        self,
        exchange: Exchange,
        stream: ResponseStream,
        source: StreamSource,
        headers: Headers,
        timer_queue: TimerQueue,
    ) -> bool:
        """Send the stream, and stop when the client disconnects; return False in that case.

        Most streams end before the timer of `timer_queue` expires, and are sent without a task that
        watches for the disconnect.

        Raises:
            trio.BrokenResourceError: The client had disconnected when such a stream was sent.
        """
        if not stream.is_ended:
            await stream.wait_ready_or_timeout(timer_queue)
            if not stream.is_ended:
                return await run_while_connected(
                    exchange, partial(self.send, exchange, stream, source, headers)
                )
        status, all_headers, body = self._complete_response(
            exchange.request, stream, source, headers
        )
        await exchange.answer(status, all_headers, body)
        return True

    async def send_events(
        self, exchange: Exchange, stream: ResponseStream, source: StreamSource, headers: Headers
    ) -> None:
        """Send the stream as events to its end, or for `limits.http.stream_seconds_max`.

        Raises:
            trio.BrokenResourceError: The client has disconnected, reads too slowly, or has
                reconnected, so that another response has taken the stream over.
        """
        if stream.is_ended:
            await exchange.answer(*_complete_events(stream, source, headers))
        else:
            await self._send_open_stream(exchange, stream, source, headers)

    def _complete_response(
        self, request: HttpRequest, stream: ResponseStream, source: StreamSource, headers: Headers
    ) -> CompleteResponse:
        """Return the complete response of an ended stream, in the form that `request` accepts.

        A JSON-RPC error with an HTTP status of its own is sent as JSON to every client, since the
        status of an event stream is always 200.
        """
        uses_events, status_of, status = self._uses_events(request), self.status_of, _OK
        may_be_json = not uses_events or status_of is not None
        body = stream.sole_response if may_be_json else None
        if body is None:
            if not stream.has_messages and (response := source.unanswered(stream)) is not None:
                status, own_headers, body = response
                return status, [*own_headers, *headers], body
            responses = stream.responses if may_be_json else None
            if responses is None or (responses and not stream.is_json_only):
                return _complete_events(stream, source, headers)
            if not responses:
                return _ACCEPTED, headers, b""
            body = b"[%b]" % b",".join(responses)
        elif status_of is not None and (error := _decode_response(body).error) is not None:
            status = status_of(error.code)
            if status != _OK and self.challenge_of is not None:
                headers = [*headers, *self.challenge_of(request, error.data)]
        if uses_events and status == _OK:
            return _complete_events(stream, source, headers)
        return status, (_JSON_HEADER, *headers), body

    def _uses_events(self, request: HttpRequest) -> bool:
        return not request.accepts_json or (self.prefers_events and request.accepts_event_streams)

    async def _send_open_stream(
        self, exchange: Exchange, stream: ResponseStream, source: StreamSource, headers: Headers
    ) -> None:
        """Send events as messages are put on the stream."""
        with trio.CancelScope() as sender:
            stream.start_sending(sender)
            try:
                await exchange.start(_OK, [*STREAM_HEADERS, *headers])
                await self._send_until_ended(exchange, stream, source, sender)
            finally:
                stream.stop_sending(sender)
        if sender.cancelled_caught:
            raise trio.BrokenResourceError(
                "the client has reconnected: another connection has taken the stream over"
            )

    async def _send_until_ended(
        self,
        exchange: Exchange,
        stream: ResponseStream,
        source: StreamSource,
        sender: trio.CancelScope,
    ) -> None:
        http = self.limits.http
        first = source.begin_events(stream)
        if first is not None:
            await source.settle()
            await exchange.send(encode_event(first))
        end_at = math.inf
        if source.may_reconnect:
            end_at = trio.current_time() + http.stream_seconds_max
        while stream.has_messages or not (stream.is_ended or trio.current_time() >= end_at):
            if not stream.is_ready:
                seconds = http.sse_keep_alive_seconds
                with trio.move_on_at(end_at), trio.move_on_after(seconds) as silence:
                    await stream.wait_ready()
                if silence.cancelled_caught:
                    await exchange.send(COMMENT)  # proxies close connections that are silent
                    continue
            # Another response that has taken the stream over has cancelled this one, and sends the
            # messages itself; so they are not taken here.
            await trio.lowlevel.checkpoint_if_cancelled()
            events = _encoded(stream.take())
            if stream.is_overrun:
                raise trio.BrokenResourceError(
                    "the client reads too slowly (limits.http.unsent_bytes_max)"
                )
            if events:
                await source.settle()
                await exchange.send(events)
        if not stream.is_ended:
            # The last event has the id and the delay with which the client is to reconnect.
            last = Event(id=source.add_last_event(stream), retry_ms=http.sse_retry_ms)
            await exchange.send(encode_event(last))
            stream.stop_sending(sender)  # the client may reconnect before this response has ended
        await exchange.end()


def _complete_events(
    stream: ResponseStream, source: StreamSource, headers: Headers
) -> CompleteResponse:
    """Return all events of an ended stream as one response with a known length."""
    first = source.begin_events(stream)
    events = _encoded(stream.take())
    if first is not None:
        events = encode_event(first) + events
    return _OK, (*STREAM_HEADERS, *headers), events


def _encoded(queued: Sequence[QueuedMessage]) -> bytes:
    return b"".join([encode_event(Event(each.message, id=each.event_id)) for each in queued])


async def run_while_connected(exchange: Exchange, work: Callable[[], Awaitable[None]]) -> bool:
    """Run `work`, and cancel it when the client disconnects; return False in that case."""
    is_connected = False

    async def watch(scope: trio.CancelScope) -> None:
        await exchange.gone()
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        with suppress(trio.BrokenResourceError):
            await work()
            is_connected = True
        nursery.cancel_scope.cancel()
    return is_connected
