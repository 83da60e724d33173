"""Channels between a server's sessions and the HTTP requests of its clients.

`SessionChannel` serves one legacy session (protocol versions with a handshake). Each POST with
requests has a stream of its own, for the responses and the messages that belong to them. Other
messages go to the stream of the client's GET. A broken connection cancels no request: the messages
are kept, and the client reconnects with the id of the last event that it has received.

`StatelessChannel` serves all stateless requests by one session. Clients choose their request ids
independently, so the channel renumbers each request, and restores the client's id in everything
that it sends about that request. A client cancels a stateless request by closing the connection;
the channel then delivers `notifications/cancelled` to the session, as other transports do.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, ClassVar, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.channel_messages import AuthInfo, DecodedMessage, RelatedMessage, with_sender
from mcp_trio._jsonrpc.lines import has_line_end
from mcp_trio._jsonrpc.messages import (
    Batch,
    Message,
    Notification,
    Request,
    decoder_for,
    encode_notification,
    encode_request,
    with_id_replaced,
)
from mcp_trio._protocol.empty import NO_ITEMS
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID, ToolCall
from mcp_trio._protocol.methods import CANCELLED, LISTEN, METHODS
from mcp_trio._protocol.shares import network_of
from mcp_trio._protocol.stores import EventStore, MemoryEventStore
from mcp_trio._transports.channel import CLOSED_TEXT, Received
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio._transports.http_response import QueuedMessage, ResponseStream
from mcp_trio.limits import Limits
from mcp_trio.types import CancelledParams, RequestId

OnReceived: TypeAlias = Callable[[Sequence[Received]], None]
"""The session's function for received messages; an empty sequence is the end of the input."""


@attrs.define(eq=False, repr=False)
class RoutedChannel(ABC):
    """A channel that receives from many HTTP requests, and sends each message to one stream.

    A session that has called `deliver_to` gets each message synchronously. Otherwise the message is
    kept until `receive` or `deliver_to` is called.
    """

    # All messages to send are `RelatedMessage`s; see `Channel`.
    takes_related_messages: ClassVar[bool] = True

    limits: Limits
    transport: str = "http"
    _on_received: OnReceived | None = attrs.field(default=None, init=False)
    # The messages that are kept for `receive`, which `_received_changed` wakes. A channel whose
    # session has called `deliver_to` needs neither.
    _received: tuple[Received, ...] = attrs.field(default=(), init=False)
    _received_changed: Wakeup | None = attrs.field(default=None, init=False)
    _has_input_ended: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    @abstractmethod
    def _route(self, message: RelatedMessage) -> None:
        """Put a message on its stream, or drop it."""

    @abstractmethod
    def _open_streams(self) -> Iterable[ResponseStream]:
        """Return the streams that end with the channel."""

    # Received messages

    def deliver_to(self, on_received: OnReceived) -> None:
        """Pass the messages that are kept, and all later ones, to `on_received`."""
        self._on_received = on_received
        received, self._received = self._received, ()
        if received:
            on_received(received)
        if self._has_input_ended:
            on_received([])

    def _pass_to_session(self, message: bytes) -> None:
        """Pass one message to the session, or keep it; a closed channel drops it."""
        if self._is_closed:
            return
        if self._on_received is not None:
            self._on_received([message])
        else:
            self._received = (*self._received, message)
            self._wake_receiver()

    async def receive(self) -> Sequence[Received]:
        """Return the messages that have been received, as `Channel.receive` documents."""
        await trio.lowlevel.checkpoint()
        while not (self._received or self._has_input_ended or self._is_closed):
            self._received_changed = self._received_changed or Wakeup()
            await self._received_changed.wait()
        if self._is_closed:
            raise trio.ClosedResourceError(CLOSED_TEXT)
        received, self._received = self._received, ()
        return received

    def end_input(self) -> None:
        """End the session's input."""
        self._has_input_ended = True
        self._wake_receiver()
        if self._on_received is not None:
            self._on_received([])

    def _wake_receiver(self) -> None:
        if self._received_changed is not None:
            self._received_changed.wake()

    # Sent messages

    def send_nowait(self, messages: Sequence[bytes]) -> int:
        """Put each message on its stream; return the number of messages, as all are accepted.

        Raises:
            trio.ClosedResourceError: The channel is closed.
        """
        if self._is_closed:
            raise trio.ClosedResourceError(CLOSED_TEXT)
        related: Any = messages
        for message in related:
            self._route(message)
        return len(messages)

    async def send(self, messages: Sequence[bytes]) -> None:
        """Put each message on its stream, as `send_nowait` does."""
        await trio.lowlevel.checkpoint()
        self.send_nowait(messages)

    async def aclose(self) -> None:
        """Close the channel, and end the session's input and all streams."""
        self._is_closed = True
        self.end_input()
        self._on_received = None
        for stream in self._open_streams():
            stream.end()
        await trio.lowlevel.cancel_shielded_checkpoint()


class DuplicateIdError(Exception):
    """A request has the id of another request that is not answered yet."""

    def __init__(self, request_id: RequestId) -> None:
        super().__init__(request_id)
        self.id = request_id


class TooManyStreamsError(Exception):
    """The session has `limits.http.streams_max` unanswered requests already."""


@attrs.define(eq=False, repr=False)
class SessionChannel(RoutedChannel):
    """The channel of one legacy session.

    Attributes:
        has_one_stream: Whether the transport is HTTP+SSE of 2024-11-05, where responses, too, go to
            the stream of the GET, and streams cannot be resumed.
        events: The store of sent events for clients that reconnect. By default, a
            `MemoryEventStore` is made when the first event is to be kept.
        network: The network of the client that opened the session; None if it is unknown.
    """

    has_one_stream: bool = False
    events: EventStore | None = None
    network: str | None = None
    _standalone: ResponseStream | None = attrs.field(default=None, init=False)
    # The streams whose events the event store keeps, by their numbers there.
    _numbered: dict[int, ResponseStream] = attrs.field(default=NO_ITEMS, init=False)
    _stream_of: dict[RequestId, ResponseStream] = attrs.field(default=NO_ITEMS, init=False)
    # The streams of requests that began on another machine, until an HTTP request asks for them.
    _continued: dict[RequestId, ResponseStream] = attrs.field(default=NO_ITEMS, init=False)
    _has_left: bool = attrs.field(default=False, init=False)

    @property
    def standalone(self) -> ResponseStream:
        """The stream of the GET, for messages that belong to no request; made on first use."""
        if self._standalone is None:
            self._standalone = ResponseStream(self.limits)
        return self._standalone

    @property
    def _event_store(self) -> EventStore:
        """The event store, made on first use, since most sessions send JSON responses only."""
        if self.events is None:
            limits = self.limits
            self.events = MemoryEventStore(
                events_max=limits.http.events_kept_max, bytes_max=limits.http.events_kept_bytes_max
            )
        return self.events

    @property
    def is_idle(self) -> bool:
        """True if the session is idle: all requests are answered, and no GET is open."""
        has_get = self._standalone is not None and self._standalone.sender is not None
        return not (self._stream_of or has_get)

    @property
    def is_answered(self) -> bool:
        """True if all requests of the client are answered."""
        return not self._stream_of

    # Received messages

    def deliver(
        self,
        encoded: bytes,
        message: ToolCall | Message | Batch,
        awaited: Sequence[RequestId] = (),
        *,
        auth: AuthInfo | None = None,
        is_json_only: bool = False,
    ) -> ResponseStream | None:
        """Deliver the body of a POST, a message or batch, to the session.

        Returns:
            The stream of the responses to `awaited`, the ids of its requests; None without any.

        Raises:
            DuplicateIdError: A request has the id of an unanswered one; nothing was delivered.
            TooManyStreamsError: `limits.http.streams_max` are open; nothing was delivered.
        """
        stream = None
        if awaited:
            ids, stream_of = frozenset(awaited), self._stream_of
            if len(ids) < len(awaited) or not ids.isdisjoint(stream_of):
                raise DuplicateIdError(
                    next(it for it in awaited if it in stream_of or awaited.count(it) > 1)
                )
            if len(stream_of) + len(ids) > self.limits.http.streams_max:
                raise TooManyStreamsError
            stream = ResponseStream(self.limits, awaits=ids, is_json_only=is_json_only)
            if not stream_of:
                stream_of = self._stream_of = {}
            for request_id in ids:
                stream_of[request_id] = stream
        if type(message) is Notification:
            self._note_cancelled(message)
        elif type(message) is Batch:
            for each in message.messages:
                if type(each) is Notification:
                    self._note_cancelled(each)
        self._pass_to_session(DecodedMessage(encoded, message, auth))
        return stream

    def _note_cancelled(self, notification: Notification) -> None:
        """Expect no response to a request that the client cancels."""
        if notification.method == CANCELLED:
            # The session reports a malformed notification.
            with suppress(msgspec.MsgspecError):
                params = METHODS[CANCELLED].decode_params(notification.params)
                self._mark_answered(params.request_id)

    def _mark_answered(self, request_id: RequestId) -> None:
        """Count a request as answered; forget its stream after the last one."""
        stream = self._stream_of.pop(request_id, None)
        if stream is None:
            return
        if not self._stream_of:
            self._stream_of = NO_ITEMS
        stream.mark_answered(request_id)
        if stream.is_ended and stream.number is not None:
            self._event_store.close_stream(stream.number)
            self._numbered.pop(stream.number, None)

    # Sent messages

    def _route(self, message: RelatedMessage) -> None:
        """Send a message to the stream of its request, or else to the stream of the GET."""
        if self._has_left:
            return
        request_id = message.related_request_id
        stream = None if request_id is None else self._stream_of.get(request_id)
        is_response = message.is_response
        if stream is None or (stream.is_json_only and not is_response):
            if is_response and not self.has_one_stream:
                return  # the client has cancelled the request; a GET never carries responses
            stream = self.standalone
        number = stream.number
        if number is None and not (is_response or self.has_one_stream):
            number = self._register(stream)
        event_id = None if number is None else self._event_store.keep(number, message)
        stream.put(QueuedMessage(message, event_id, is_response))
        if is_response and request_id is not None:
            self._mark_answered(request_id)

    # Event streams, and clients that reconnect

    def begin_events(self, stream: ResponseStream, *, has_first_event: bool = True) -> str | None:
        """Prepare a stream to be sent as events: give each message in its queue an event id.

        Return the id of a first event without a message, with which the client can reconnect before
        the first message arrives. Return None without `has_first_event`, since some clients fail on
        such an event, or if the stream has to start with a message.
        """
        if stream.is_ended and stream.number is None:
            first_id: str | None
            queue = stream.queue
            first_id, *others = self._event_store.append_ended_stream(
                [queued.message for queued in queue]
            )
            for queued, event_id in zip(queue, others, strict=True):
                queued.event_id = event_id
            return first_id if has_first_event else None
        number = self._register(stream) if stream.number is None else stream.number
        if stream is self._standalone and not stream.has_messages:
            first_id = self._event_store.keep(number, b"")
        else:
            first_id, stream.first_event_id = stream.first_event_id, None
        return first_id if has_first_event else None

    def _register(self, stream: ResponseStream) -> int:
        """Make the event store keep all messages of a stream; return the stream's number there."""
        store = self._event_store
        number = stream.number = store.open_stream(tuple(stream.awaits))
        stream.first_event_id = store.keep(number, b"")
        for queued in stream.queue:
            queued.event_id = store.keep(number, queued.message)
        self._add_numbered(number, stream)
        return number

    def _add_numbered(self, number: int, stream: ResponseStream) -> None:
        if not self._numbered:
            self._numbered = {}
        self._numbered[number] = stream

    def add_last_event(self, stream: ResponseStream) -> str:
        """Add an event without a message, and return the id with which a client can reconnect."""
        assert stream.number is not None
        return self._event_store.keep(stream.number, b"")

    def resume(self, last_event_id: str) -> ResponseStream:
        """Return the stream of an event, with all messages that followed the event in its queue.

        This also works for a stream that another response is still sending: a client whose network
        has changed reconnects before the server notices that the old connection is dead. And it
        works for an ended stream, as long as its events are kept, since a stream that was sent
        completely may not have arrived.

        Raises:
            LookupError: The event is unknown, or is not kept any longer.
        """
        number, events = self._event_store.after(last_event_id)
        stream = self._numbered.get(number)
        if stream is None:
            stream = ResponseStream(self.limits, number)
            stream.end()
        missed = [
            QueuedMessage(message, event_id, is_response=False)
            for event_id, message in events
            if message
        ]
        stream.put_missed(missed)
        return stream

    async def restore(
        self, outcome_of: Callable[[RequestId], bytes], continued: Collection[RequestId] = ()
    ) -> None:
        """Continue the streams of a session that was opened on another machine.

        Messages that belong to no request go on in the stream of the client's GET. The streams of
        the `continued` requests go on as well. The other requests that were not answered end with
        the message that `outcome_of` returns for their ids.
        """
        store = self._event_store
        for number, request_ids in (await store.load()).items():
            if not request_ids:
                self.standalone.number = number
                self._add_numbered(number, self.standalone)
                continue
            going_on = frozenset(request_ids).intersection(continued)
            for request_id in request_ids:
                if request_id not in going_on:
                    store.keep(number, outcome_of(request_id))
            if going_on:
                stream = ResponseStream(self.limits, number, awaits=going_on)
                self._add_numbered(number, stream)
                self._stream_of = {**self._stream_of, **dict.fromkeys(going_on, stream)}
            else:
                store.close_stream(number)

    def deliver_again(
        self, encoded: bytes, request: Request, auth: AuthInfo | None, *, is_json_only: bool
    ) -> None:
        """Deliver a request that has begun on another machine; see `deliver`."""
        stream = self._stream_of.get(request.id)
        if stream is None:
            awaits = frozenset((request.id,))
            stream = ResponseStream(self.limits, awaits=awaits, is_json_only=is_json_only)
            self._stream_of = {**self._stream_of, request.id: stream}
        self._continued = {**self._continued, request.id: stream}
        self._pass_to_session(DecodedMessage(encoded, request, auth))

    def take_continued(self, request_id: RequestId) -> ResponseStream | None:
        """Return the stream of a request that `deliver_again` has delivered, once; else None."""
        return self._continued.pop(request_id, None)

    def leave(self) -> None:
        """End all streams now, because the session goes on in another instance.

        Later messages are dropped: the events of the session belong to the other instance.
        """
        self._has_left = True
        for stream in self._open_streams():
            stream.end()

    def mark_disconnected(self, stream: ResponseStream) -> None:
        """Note that the client of a stream has disconnected, which cancels no request.

        This changes nothing if the client has reconnected already.
        """
        if stream is not self._standalone and stream.sender is None:
            stream.mark_disconnected()

    def _open_streams(self) -> Iterable[ResponseStream]:
        return {self.standalone, *self._stream_of.values()}


@attrs.define(eq=False, repr=False)
class StatelessRequest:
    """One unanswered stateless request.

    Attributes:
        number: The request's id within the channel.
        id: The request's id at its client.
    """

    number: int
    id: RequestId
    method: str
    stream: ResponseStream


@attrs.define(eq=False, repr=False)
class StatelessChannel(RoutedChannel):
    """The channel of all stateless requests to one server.

    Attributes:
        needs_encoded: Whether the session reads the bytes of a delivered message, as one does that
            is recorded or replayed. Otherwise it only counts them.
        networks: The networks of the clients by their numbers.
    """

    needs_encoded: bool = attrs.field(default=True, init=False)
    networks: dict[int, str | None] = attrs.field(factory=dict[int, str | None], init=False)

    _open: dict[RequestId, StatelessRequest] = attrs.field(
        factory=dict[RequestId, StatelessRequest], init=False
    )
    # The numbers of the clients by their networks, in the order in which they were last seen.
    _clients: dict[str | None, int] = attrs.field(factory=dict[str | None, int], init=False)
    _clients_seen: int = attrs.field(default=0, init=False)
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1), init=False)

    # Received messages

    def deliver(
        self,
        request: ToolCall | Request,
        auth: AuthInfo | None = None,
        *,
        body: bytes = b"",
        address: str | None = None,
        is_json_only: bool = False,
    ) -> StatelessRequest:
        """Deliver a request to the session, renumbered.

        A decoded call of a tool comes with its encoded `body`. `address` tells clients without
        authentication apart.
        """
        client = self._client_number(address) if auth is None else 0
        number = next(self._numbers)
        message: ToolCall | Request
        raw: Message | Batch | None = None
        if isinstance(request, ToolCall):
            message, encoded = ToolCall("2.0", number, request.params), body
            if self.needs_encoded:
                raw = decoder_for(self.limits.messages).decode(body)
        else:
            message, encoded = Request(number, request.method, request.params), b""
            raw = request
        has_line_ends = False
        if isinstance(raw, Request):
            depth_max = self.limits.messages.json_depth_max
            encoded = encode_request(number, raw.method, raw.params, json_depth_max=depth_max)
            has_line_ends = raw.params is not None and has_line_end(bytes(raw.params))
        stream = ResponseStream(self.limits, awaits=frozenset((number,)), is_json_only=is_json_only)
        opened = self._open[number] = StatelessRequest(number, request.id, request.method, stream)
        if has_line_ends:
            # `encoded` has no line ends in its params. The session records these bytes, so it has
            # to decode them as well.
            self._pass_to_session(with_sender(encoded, auth, client))
        else:
            self._pass_to_session(DecodedMessage(encoded, message, auth, client))
        return opened

    def _client_number(self, address: str | None) -> int:
        """Return the number of a client, which stands for its address in recordings.

        A number is used for one client only. When there are more clients than
        `limits.http.clients_remembered_max`, the least recently seen one is forgotten; it gets
        another number when it comes back.
        """
        network, clients = network_of(address), self._clients
        number = clients.pop(network, None)
        if number is None:
            number = self._clients_seen
            self._clients_seen += 1
            if len(clients) >= self.limits.http.clients_remembered_max:
                del self.networks[clients.pop(next(iter(clients)))]
            self.networks[number] = network
        clients[network] = number
        return number

    def notify(self, notification: Notification) -> None:
        """Deliver a notification to the session.

        `notifications/cancelled` is dropped: a stateless client cancels by disconnecting, and the
        id that it names could be the number of another client's request.
        """
        if notification.method == CANCELLED:
            return
        depth_max = self.limits.messages.json_depth_max
        self._pass_to_session(
            encode_notification(notification.method, notification.params, json_depth_max=depth_max)
        )

    def cancel(self, request: StatelessRequest) -> None:
        """Cancel the request of a client that has disconnected; send nothing more about it."""
        if self._open.pop(request.number, None) is not None:
            params = CancelledParams(
                request_id=request.number, reason="the client closed the stream"
            )
            self._pass_to_session(encode_notification(CANCELLED, params))

    @property
    def is_idle(self) -> bool:
        """True if the channel is idle: all requests are answered."""
        return not self._open

    @property
    def is_answered(self) -> bool:
        """True if all requests are answered, except subscriptions, which the server ends."""
        return all(request.method == LISTEN for request in self._open.values())

    # Sent messages

    def _route(self, message: RelatedMessage) -> None:
        """Send a message to the stream of its request; drop messages about no open request."""
        number = message.related_request_id
        request = None if number is None else self._open.get(number)
        if request is None:
            return
        if message.is_response:
            del self._open[request.number]
            response = with_id_replaced(_with_subscription_id(message, request), request.id)
            request.stream.put(QueuedMessage(response, None, is_response=True))
            request.stream.mark_answered(request.number)
        elif not request.stream.is_json_only:
            notification = _with_subscription_id(message, request)
            request.stream.put(QueuedMessage(notification, None, is_response=False))

    def _open_streams(self) -> Iterable[ResponseStream]:
        return [request.stream for request in self._open.values()]


def _with_subscription_id(message: bytes, request: StatelessRequest) -> bytes:
    """Return the message with the client's own request id as its subscription id, if it has one."""
    if request.method != LISTEN:
        return bytes(message)
    decoded: dict[str, Any] = msgspec.json.decode(message)
    meta = decoded.get("params", decoded.get("result", {})).get("_meta", {})
    if SUBSCRIPTION_ID in meta:
        meta[SUBSCRIPTION_ID] = request.id
    return msgspec.json.encode(decoded)
