"""Channels between a server's sessions and the HTTP requests of its clients.

`SessionChannel` serves one legacy session (protocol versions with a handshake). Each POST with
requests has a stream of its own, for the responses and the messages that belong to them. Other
messages go to the stream of the client's GET. A broken connection ends nothing: the messages are
kept, and the client reconnects with the id of the last event that it has received.

`StatelessChannel` serves all stateless requests by one session. Clients choose their request ids
independently, so the channel renumbers each request, and restores the client's id in everything
that it sends about that request. A client cancels a stateless request by closing the connection;
the channel then delivers `notifications/cancelled` to the session, as other transports do.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, ClassVar, TypeAlias

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.auth_info import AuthInfo
from mcp_trio._jsonrpc.lines import has_line_end
from mcp_trio._jsonrpc.messages import (
    Batch,
    DecodedMessage,
    Message,
    Notification,
    RelatedMessage,
    Request,
    encode_notification,
    encode_request,
    with_id_replaced,
    with_sender,
)
from mcp_trio._protocol.event_store import EventStore, ReplayBuffer
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._protocol.methods import CANCELLED, LISTEN, METHODS
from mcp_trio._protocol.shares import network_of
from mcp_trio._transports.channel import Received
from mcp_trio._transports.concurrency import Wakeup
from mcp_trio._transports.http_response import ResponseStream, Sent
from mcp_trio.limits import Limits
from mcp_trio.types import CancelledParams, RequestId

Take: TypeAlias = Callable[[Sequence[Received]], None]
"""The session's synchronous receiver; an empty sequence means that the channel has ended."""


@attrs.define(eq=False, repr=False)
class RequestInbox:
    """The receiving side of an HTTP server's channel, filled by the exchanges of its clients.

    A session that has called `deliver_to` gets each message synchronously, within `put`. Otherwise
    the message is kept until `receive` or `deliver_to` is called.
    """

    _take: Take | None = attrs.field(default=None, init=False)
    _waiting: tuple[Received, ...] = attrs.field(default=(), init=False)
    _has_eof: bool = attrs.field(default=False, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _news: Wakeup = attrs.field(factory=Wakeup, init=False)

    def deliver_to(self, take: Take) -> None:
        """Pass the messages that are kept, and all later ones, to `take`."""
        self._take = take
        waiting, self._waiting = self._waiting, ()
        if waiting:
            take(waiting)
        if self._has_eof:
            take([])

    def put(self, message: bytes) -> None:
        """Pass one message to the session, or keep it; a closed inbox drops it."""
        if self._is_closed:
            return
        if self._take is not None:
            self._take([message])
        else:
            self._waiting = (*self._waiting, message)
            self._news.wake()

    def end(self) -> None:
        """Report the end of input to the session."""
        self._has_eof = True
        self._news.wake()
        if self._take is not None:
            self._take([])

    def close(self) -> None:
        """Drop all later messages, and report the end of input to the session."""
        self._is_closed = True
        self.end()
        self._take = None

    async def receive(self) -> Sequence[Received]:
        """Return the messages that are kept, at least one; an empty sequence at the end of input.

        Cancellation loses no message.

        Raises:
            trio.ClosedResourceError: The inbox is closed.
        """
        await trio.lowlevel.checkpoint()
        while not (self._waiting or self._has_eof or self._is_closed):
            await self._news.wait()
        if self._is_closed:
            raise trio.ClosedResourceError
        taken, self._waiting = self._waiting, ()
        return taken


@attrs.define(eq=False, repr=False)
class RoutedChannel(ABC):
    """A channel that receives from many HTTP requests, and sends each message to one stream.

    Attributes:
        limits: The bounds of the streams, and their number.
        transport: The name of the transport in recordings and logs.
    """

    # All messages to send are `RelatedMessage`s; see `Channel`.
    is_addressed: ClassVar[bool] = True

    limits: Limits
    transport: str = "http"
    _inbox: RequestInbox = attrs.field(factory=RequestInbox, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    @abstractmethod
    def _route(self, frame: bytes) -> None:
        """Put a `RelatedMessage` on its stream, or drop it."""

    @abstractmethod
    def _open_streams(self) -> Iterable[ResponseStream]:
        """Return the streams that end with the channel."""

    def finish(self) -> None:
        """End the session's input."""
        self._inbox.end()

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """Put each message on its stream; return the number of messages, as all are accepted.

        Raises:
            trio.ClosedResourceError: The channel is closed.
        """
        if self._is_closed:
            raise trio.ClosedResourceError("this side of the channel was closed")
        for frame in frames:
            self._route(frame)
        return len(frames)

    async def send(self, frames: Sequence[bytes]) -> None:
        """Put each message on its stream, as `send_nowait` does."""
        await trio.lowlevel.checkpoint()
        self.send_nowait(frames)

    def deliver_to(self, take: Take) -> None:
        """Pass each received message to `take` synchronously."""
        self._inbox.deliver_to(take)

    async def receive(self) -> Sequence[Received]:
        """Return the messages that have been received, as `Channel.receive` documents."""
        return await self._inbox.receive()

    async def aclose(self) -> None:
        """Close the channel, and end all of its streams."""
        self._is_closed = True
        self._inbox.close()
        for stream in self._open_streams():
            stream.end()
        await trio.lowlevel.cancel_shielded_checkpoint()


class DuplicateIdError(Exception):
    """A request has the id of another request that is not answered yet."""


class TooManyStreamsError(Exception):
    """The session has `limits.http.streams_max` unanswered requests already."""


@attrs.define(eq=False, repr=False)
class SessionChannel(RoutedChannel):
    """The channel of one legacy session.

    Attributes:
        has_one_stream: Whether the transport is HTTP+SSE of 2024-11-05, where responses, too, go to
            the stream of the GET, and streams cannot be resumed.
        events: The store of sent events for clients that reconnect. By default, a `ReplayBuffer`
            is made when the first event is to be kept.
        unasked: The stream of the GET, for messages that belong to no request.
    """

    has_one_stream: bool = False
    events: EventStore | None = None
    unasked: ResponseStream = attrs.field(init=False)
    _streams: dict[int, ResponseStream] = attrs.field(factory=dict[int, ResponseStream], init=False)
    _of_request: dict[RequestId, ResponseStream] = attrs.field(
        factory=dict[RequestId, ResponseStream], init=False
    )

    def __attrs_post_init__(self) -> None:
        self.unasked = ResponseStream(self.limits)

    @property
    def _kept(self) -> EventStore:
        """The event store, made on first use, since most sessions send JSON responses only."""
        if self.events is None:
            limits = self.limits
            self.events = ReplayBuffer(
                events_max=limits.http.events_kept_max, bytes_max=limits.http.events_kept_bytes_max
            )
        return self.events

    @property
    def is_idle(self) -> bool:
        """Return whether the session is idle: no request is unanswered, and no GET is open."""
        return not (self._of_request or self.unasked.is_carried)

    # Received messages

    def deliver(
        self,
        frame: bytes,
        message: Message | Batch,
        awaited: Sequence[RequestId] = (),
        *,
        auth: AuthInfo | None = None,
        is_narrow: bool = False,
    ) -> ResponseStream | None:
        """Deliver the body of a POST to the session.

        Args:
            frame: The encoded message or batch.
            message: The same, decoded.
            awaited: The ids of its requests.
            auth: The authenticated sender; None without authentication.
            is_narrow: Whether the client accepts JSON only.

        Returns:
            The stream of the responses; None without requests.

        Raises:
            DuplicateIdError: A request has the id of an unanswered one; nothing was delivered.
            TooManyStreamsError: `limits.http.streams_max` are open; nothing was delivered.
        """
        stream = None
        if awaited:
            of_request, ids = self._of_request, frozenset(awaited)
            if len(ids) < len(awaited) or not ids.isdisjoint(of_request):
                raise DuplicateIdError
            if len(of_request) + len(ids) > self.limits.http.streams_max:
                raise TooManyStreamsError
            stream = ResponseStream(self.limits, awaits=ids, is_narrow=is_narrow)
            for request_id in ids:
                of_request[request_id] = stream
        for each in message.messages if type(message) is Batch else (message,):
            if type(each) is Notification and each.method == CANCELLED:
                try:
                    cancelled_id = METHODS[CANCELLED].decode_params(each.params).request_id
                except msgspec.MsgspecError:
                    continue  # the session reports the malformed notification
                self._settle(cancelled_id)
        self._inbox.put(DecodedMessage(frame, message, auth))
        return stream

    def _settle(self, request_id: RequestId) -> None:
        """Count a request as answered; forget its stream after the last one."""
        stream = self._of_request.pop(request_id, None)
        if stream is None:
            return
        if not self._of_request:
            self._of_request.clear()  # `pop` does not release the memory of an emptied dict
        stream.answered(request_id)
        if stream.is_ended and stream.number is not None:
            self._kept.close_stream(stream.number)
            self._streams.pop(stream.number, None)

    # Sent messages

    def _route(self, frame: bytes) -> None:
        """Send a message to the stream of its request, or else to the stream of the GET."""
        assert isinstance(frame, RelatedMessage)
        request_id = frame.related_request_id
        stream = None if request_id is None else self._of_request.get(request_id)
        if stream is None or (stream.is_narrow and not frame.is_answer):
            if frame.is_answer and not self.has_one_stream:
                return  # the client has cancelled the request; a GET never carries responses
            stream = self.unasked
        if stream.number is None and not (frame.is_answer or self.has_one_stream):
            self._number(stream)
        event_id = None if stream.number is None else self._kept.keep(stream.number, frame)
        stream.put(Sent(frame, event_id, frame.is_answer))
        if frame.is_answer and request_id is not None:
            self._settle(request_id)

    # Event streams, and clients that reconnect

    def begin(self, stream: ResponseStream) -> str | None:
        """Give the stream's events ids, because it is about to be sent as events.

        Returns:
            The id of a first event without a message, with which the client can reconnect before
            the first message arrives; None if the stream must start with a message.
        """
        if stream.is_ended and stream.number is None:
            first, *others = self._kept.append_ended_stream(stream.frames)
            stream.name_all(others)
            return first
        number = self._number(stream) if stream.number is None else stream.number
        if stream is self.unasked and not stream.has_waiting:
            return self._kept.keep(number, b"")
        first_id, stream.first_id = stream.first_id, None
        return first_id

    def begin_unseen(self, stream: ResponseStream) -> None:
        """Give the stream's events ids, as `begin` does, but return no id of a first event.

        Some clients fail on an event without a message.
        """
        self.begin(stream)

    def _number(self, stream: ResponseStream) -> int:
        """Register the stream with the event store, which keeps all of its messages from now on."""
        kept = self._kept
        number = stream.number = kept.open_stream()
        stream.first_id = kept.keep(number, b"")
        stream.name_all([kept.keep(number, frame) for frame in stream.frames])
        self._streams[number] = stream
        return number

    def last_id(self, stream: ResponseStream) -> str:
        """Return the id of a new event without a message, which precedes all later messages."""
        assert stream.number is not None
        return self._kept.keep(stream.number, b"")

    def resumed(self, last_event_id: str) -> ResponseStream:
        """Return the stream of an event, with all messages that followed the event in its queue.

        This also works for a stream that another response is still sending: a client whose network
        has changed reconnects before the server notices that the old connection is dead. And it
        works for an ended stream, as long as its events are kept, since a stream that was sent
        completely may not have arrived.

        Raises:
            LookupError: The event is unknown, or is not kept any longer.
        """
        number, events = self._kept.after(last_event_id)
        stream = self._streams.get(number)
        if stream is None:
            stream = ResponseStream(self.limits, number)
            stream.end()
        missed = [Sent(frame, event_id, is_answer=False) for event_id, frame in events if frame]
        stream.put_again(missed)
        return stream

    def left(self, stream: ResponseStream) -> None:
        """Note that the client of a stream has disconnected, which cancels no request.

        This changes nothing if the client has reconnected already.
        """
        if stream is not self.unasked and not stream.is_carried:
            stream.leave()

    def _open_streams(self) -> Iterable[ResponseStream]:
        return {self.unasked, *self._of_request.values()}


@attrs.define(eq=False, repr=False)
class StatelessRequest:
    """One unanswered stateless request.

    Attributes:
        number: The request's id within the channel.
        id: The request's id at its client.
        method: The request's method.
        stream: The stream of the response.
    """

    number: int
    id: RequestId
    method: str
    stream: ResponseStream


@attrs.define(eq=False, repr=False)
class StatelessChannel(RoutedChannel):
    """The channel of all stateless requests to one server."""

    _slots: dict[RequestId, StatelessRequest] = attrs.field(
        factory=dict[RequestId, StatelessRequest], init=False
    )
    # The numbers of the clients by their networks, in the order in which they were last seen.
    _clients: dict[str | None, int] = attrs.field(factory=dict[str | None, int], init=False)
    _clients_seen: int = attrs.field(default=0, init=False)
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1), init=False)

    # Received messages

    def deliver(
        self,
        request: Request,
        auth: AuthInfo | None = None,
        *,
        address: str | None = None,
        is_narrow: bool = False,
    ) -> StatelessRequest:
        """Deliver a renumbered request to the session.

        Args:
            request: The request with the client's id.
            auth: The authenticated sender; None without authentication.
            address: The address of the client, which tells clients without authentication apart.
            is_narrow: Whether the client accepts JSON only.
        """
        client = self._number_of(address) if auth is None else 0
        number, depth_max = next(self._numbers), self.limits.messages.json_depth_max
        frame = encode_request(number, request.method, request.params, json_depth_max=depth_max)
        stream = ResponseStream(self.limits, awaits=frozenset((number,)), is_narrow=is_narrow)
        slot = self._slots[number] = StatelessRequest(number, request.id, request.method, stream)
        if request.params is None or not has_line_end(bytes(request.params)):
            message = Request(number, request.method, request.params)
            self._inbox.put(DecodedMessage(frame, message, auth, client))
        else:  # encoding has changed the params' white space: decode the bytes that are recorded
            self._inbox.put(with_sender(frame, auth, client))
        return slot

    def _number_of(self, address: str | None) -> int:
        """Return the number of a client, which stands for its address in recordings.

        A number is used once. The client that was not seen for longest is forgotten when there are
        more than `limits.http.clients_remembered_max`; it gets another number when it comes back.
        """
        network, clients = network_of(address), self._clients
        number = clients.pop(network, None)
        if number is None:
            number = self._clients_seen
            self._clients_seen += 1
            if len(clients) >= self.limits.http.clients_remembered_max:
                del clients[next(iter(clients))]
        clients[network] = number
        return number

    def notify(self, notification: Notification) -> None:
        """Deliver a notification to the session.

        `notifications/cancelled` is dropped: a stateless client cancels by disconnecting, and the
        id that it names could be the number of another client's request.
        """
        if notification.method == CANCELLED:
            return
        self._inbox.put(encode_notification(notification.method, notification.params))

    def abandon(self, slot: StatelessRequest) -> None:
        """Cancel the request of a client that has disconnected; send nothing more about it."""
        if self._slots.pop(slot.number, None) is not None:
            params = CancelledParams(request_id=slot.number, reason="the client closed the stream")
            self._inbox.put(encode_notification(CANCELLED, params))

    @property
    def is_idle(self) -> bool:
        """Return whether the channel is idle: no request is unanswered."""
        return not self._slots

    # Sent messages

    def _route(self, frame: bytes) -> None:
        """Send a message to the stream of its request; drop messages about no open request."""
        assert isinstance(frame, RelatedMessage)
        slot = (
            None if frame.related_request_id is None else self._slots.get(frame.related_request_id)
        )
        if slot is None:
            return
        if frame.is_answer:
            del self._slots[slot.number]
            text = with_id_replaced(_tagged(frame, slot), slot.id)
            slot.stream.put(Sent(text, None, is_answer=True))
            slot.stream.answered(slot.number)
        elif not slot.stream.is_narrow:
            slot.stream.put(Sent(_tagged(frame, slot), None, is_answer=False))

    def _open_streams(self) -> Iterable[ResponseStream]:
        return [slot.stream for slot in self._slots.values()]


def _tagged(frame: bytes, slot: StatelessRequest) -> bytes:
    """Return the message with the client's own request id as its subscription id, if it has one."""
    if slot.method != LISTEN:
        return bytes(frame)
    message: dict[str, Any] = msgspec.json.decode(frame)
    meta = message.get("params", message.get("result", {})).get("_meta", {})
    if SUBSCRIPTION_ID in meta:
        meta[SUBSCRIPTION_ID] = slot.id
    return msgspec.json.encode(message)
