"""All modern requests over HTTP as one channel, so that one session serves them.

Clients number their requests as they like. So each request gets a number of ours on its way in, and
its own one back on its way out; it stands there for a stream, on which all about it leaves. A
client that goes away has cancelled its request (MHTTP-22), which the session hears as it would hear
it on any other transport.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, ClassVar

import attrs
import msgspec
import trio

from mcp_trio._jsonrpc.lines import has_line_end
from mcp_trio._jsonrpc.messages import (
    Addressed,
    Batch,
    Message,
    Notification,
    Request,
    Understood,
    encode_notification,
    encode_request,
    from_principal,
    renumbered,
)
from mcp_trio._protocol.event_store import EventStore, ReplayBuffer
from mcp_trio._protocol.metadata import SUBSCRIPTION_ID
from mcp_trio._protocol.methods import CANCELLED, LISTEN, METHODS
from mcp_trio._protocol.requests import RequestId
from mcp_trio._transports.channel import Received
from mcp_trio._transports.http_response import AnswerStream, Sent
from mcp_trio._transports.inboxes import RequestInbox, Take
from mcp_trio.limits import Limits
from mcp_trio.types import CancelledParams

# --------------------
# What the channels of a server over HTTP have in common: each frame goes its own way.


@attrs.define(eq=False)
class RoutedChannel(ABC):
    """A channel to which requests deliver, and whose frames leave by their streams."""

    is_addressed: ClassVar[bool] = True

    limits: Limits
    transport: str = "http"
    _inbox: RequestInbox = attrs.field(factory=RequestInbox, init=False)
    _is_closed: bool = attrs.field(default=False, init=False)

    @abstractmethod
    def _route(self, frame: bytes) -> None:
        """Put an `Addressed` frame on its stream, if it has one."""

    @abstractmethod
    def _open_streams(self) -> Iterable[AnswerStream]:
        """Those that end with the channel."""

    def finish(self) -> None:
        """Nothing more comes."""
        self._inbox.end()

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """See `Channel`: everything is taken, for its stream."""
        if self._is_closed:
            raise trio.ClosedResourceError("this side of the channel was closed")
        for frame in frames:
            self._route(frame)
        return len(frames)

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel`."""
        await trio.lowlevel.checkpoint()
        self.send_nowait(frames)

    def deliver_to(self, take: Take) -> None:
        """See `Channel`."""
        self._inbox.deliver_to(take)

    async def receive(self) -> Sequence[Received]:
        """See `Channel`."""
        return await self._inbox.receive()

    async def aclose(self) -> None:
        """See `Channel`: every stream ends."""
        self._is_closed = True
        self._inbox.close()
        for stream in self._open_streams():
            stream.end()
        await trio.lowlevel.cancel_shielded_checkpoint()


# --------------------
# A legacy session over HTTP: one channel, whose frames take many ways.
#
# Each POST with a request has a stream of its own, for the answer and what belongs to it. What
# belongs to no request takes the stream that a GET opens, and waits for one. A connection that
# breaks ends nothing: the frames are kept, and the client comes back for them with the last event's
# id.


class DuplicateIdError(Exception):
    """A request has the id of one that is not answered yet."""


class TooManyStreamsError(Exception):
    """The session has as many requests without an answer as it may have."""


@attrs.define(eq=False)
class SessionChannel(RoutedChannel):
    """The channel of one session; see the module.

    Attributes:
        limits: How much may wait for clients, and how many streams there may be.
        has_one_stream: All answers take it, too (SSE-04); nobody comes back for what it carried.
        principal: Who sends all that is delivered; None where nobody knows.
        events: What clients may come back for; None: a `ReplayBuffer` within the limits, once
            there is something to keep.
        unasked: The stream for what belongs to no request.
    """

    has_one_stream: bool = False
    principal: str | None = None
    events: EventStore | None = None
    unasked: AnswerStream = attrs.field(init=False)
    _streams: dict[int, AnswerStream] = attrs.field(factory=dict[int, AnswerStream], init=False)
    _of_request: dict[RequestId, AnswerStream] = attrs.field(
        factory=dict[RequestId, AnswerStream], init=False
    )

    def __attrs_post_init__(self) -> None:
        self.unasked = AnswerStream(self.limits)

    @property
    def _kept(self) -> EventStore:
        """Made when something is to be kept: most sessions are answered in JSON, and many rest."""
        if self.events is None:
            limits = self.limits
            self.events = ReplayBuffer(
                events_max=limits.http.events_kept_max, bytes_max=limits.http.events_kept_bytes_max
            )
        return self.events

    @property
    def is_resting(self) -> bool:
        """Whether no request waits for its answer, and nobody carries the stream of the others."""
        return not (self._of_request or self.unasked.is_carried)

    # What the client sends.

    def deliver(
        self,
        frame: bytes,
        message: Message | Batch,
        awaited: Sequence[RequestId] = (),
        *,
        is_narrow: bool = False,
    ) -> AnswerStream | None:
        """The session hears this now; the stream of the answers, if it `awaits` any.

        It `is_narrow` if its client takes nothing but the one answer.

        Raises:
            DuplicateIdError: One of them is awaited already; nothing was delivered.
            TooManyStreamsError: `limits.http.streams_max` are open; nothing was delivered.
        """
        stream = self._open_for(awaited, is_narrow=is_narrow) if awaited else None
        for each in message.messages if type(message) is Batch else (message,):
            if type(each) is Notification and each.method == CANCELLED:
                self._end_cancelled(each)
        self._inbox.put(Understood(frame, message, self.principal))
        return stream

    def _open_for(self, awaited: Sequence[RequestId], *, is_narrow: bool) -> AnswerStream:
        of_request, ids = self._of_request, frozenset(awaited)
        if len(ids) < len(awaited) or not ids.isdisjoint(of_request):
            raise DuplicateIdError
        if len(of_request) + len(ids) > self.limits.http.streams_max:
            raise TooManyStreamsError
        stream = AnswerStream(self.limits, awaits=ids, is_narrow=is_narrow)
        for each in ids:
            of_request[each] = stream
        return stream

    def _end_cancelled(self, message: Notification) -> None:
        """What the client cancels is not answered: its stream need not wait (CANC-06)."""
        try:
            cancelled = METHODS[CANCELLED].decode_params(message.params).request_id
        except msgspec.MsgspecError:
            return  # the session says what is wrong with it
        self._settle(cancelled)

    def _settle(self, request_id: RequestId) -> None:
        """The stream that has ended is its carrier's, or nobody's: its events are kept."""
        stream = self._of_request.pop(request_id, None)
        if stream is None:
            return
        if not self._of_request:
            self._of_request.clear()  # an emptied one keeps its size
        stream.answered(request_id)
        if stream.is_ended and stream.number is not None:
            self._kept.close_stream(stream.number)
            self._streams.pop(stream.number, None)

    # What the session sends.

    def _route(self, frame: bytes) -> None:
        """An answer that its client has cancelled goes nowhere, least of all there (HTTP-32)."""
        assert isinstance(frame, Addressed)
        stream = None if frame.about is None else self._of_request.get(frame.about)
        if stream is None or (stream.is_narrow and not frame.is_answer):
            if frame.is_answer and not self.has_one_stream:
                return
            stream = self.unasked
        if stream.number is None and not (frame.is_answer or self.has_one_stream):
            self._number(stream)
        event_id = None if stream.number is None else self._kept.keep(stream.number, frame)
        stream.put(Sent(frame, event_id, frame.is_answer))
        if frame.is_answer and frame.about is not None:
            self._settle(frame.about)

    # What a client takes, and comes back for.

    def begin(self, stream: AnswerStream) -> str | None:
        """The stream goes out as events, if it has not before.

        Returns the id of one without a message, after which all that waits comes (HTTP-14); None:
        what waits came before, so that nothing stands between.
        """
        if stream.is_ended and stream.number is None:
            return self._number_whole(stream)
        number = self._number(stream) if stream.number is None else stream.number
        if stream is self.unasked and not stream.has_waiting:
            return self._kept.keep(number, b"")
        first_id, stream.first_id = stream.first_id, None
        return first_id

    def begin_unseen(self, stream: AnswerStream) -> None:
        """The same for a client that does not know events without a message (TRAP-37)."""
        self.begin(stream)

    def _number(self, stream: AnswerStream) -> int:
        """From now on each of its frames has an id, and is kept; a mere answer needs neither."""
        kept = self._kept
        number = stream.number = kept.open_stream()
        stream.first_id = kept.keep(number, b"")
        stream.name_all([kept.keep(number, frame) for frame in stream.frames])
        self._streams[number] = stream
        return number

    def _number_whole(self, stream: AnswerStream) -> str:
        """The same for one on which nothing more comes; the id of its first event."""
        first_id, *ids = self._kept.keep_whole(stream.frames)
        stream.name_all(ids)
        return first_id

    def last_id(self, stream: AnswerStream) -> str:
        """The id of an event without a message, after which comes what is not there yet."""
        assert stream.number is not None
        return self._kept.keep(stream.number, b"")

    def resumed(self, last_event_id: str) -> AnswerStream:
        """The stream on which an event went out, with all that came behind it (HTTP-42, HTTP-43).

        One that is carried may be taken over: a client whose network has changed is back before
        anybody sees that its old connection leads nowhere. And that an ended one was carried to
        its end does not say that it has arrived: as long as its events are kept, they can be asked
        for.

        Raises:
            LookupError: It is not known, or not kept any more.
        """
        number, events = self._kept.after(last_event_id)
        stream = self._streams.get(number)
        if stream is None:
            stream = AnswerStream(self.limits, number)
            stream.end()
        missed = [Sent(frame, event_id, is_answer=False) for event_id, frame in events if frame]
        stream.put_again(missed)
        return stream

    def left(self, stream: AnswerStream) -> None:
        """The client of a stream has gone away before its end, which cancels nothing (HTTP-25).

        It may be here already, on another connection.
        """
        if stream is not self.unasked and not stream.is_carried:
            stream.leave()

    # The end.

    def _open_streams(self) -> Iterable[AnswerStream]:
        return {self.unasked, *self._of_request.values()}


@attrs.define(eq=False)
class Slot:
    """One exchange: the number of its request here, the client's own id, and the stream."""

    number: int
    id: RequestId
    method: str
    stream: AnswerStream


@attrs.define(eq=False)
class StatelessChannel(RoutedChannel):
    """See the module."""

    _slots: dict[RequestId, Slot] = attrs.field(factory=dict[RequestId, Slot], init=False)
    _numbers: "count[int]" = attrs.field(factory=lambda: count(1), init=False)

    # What clients send.

    def deliver(
        self, request: Request, principal: str | None = None, *, is_narrow: bool = False
    ) -> Slot:
        """The session hears this request now; `principal` is who sends it, if that is known.

        Its stream `is_narrow` if the client takes nothing but the one answer.
        """
        number, depth_max = next(self._numbers), self.limits.messages.json_depth_max
        frame = encode_request(number, request.method, request.params, json_depth_max=depth_max)
        stream = AnswerStream(self.limits, awaits=frozenset((number,)), is_narrow=is_narrow)
        slot = self._slots[number] = Slot(number, request.id, request.method, stream)
        if request.params is None or not has_line_end(bytes(request.params)):
            message = Request(number, request.method, request.params)
            self._inbox.put(Understood(frame, message, principal))
        else:  # the frame has other space in it, and what is decoded is to be what is recorded
            self._inbox.put(from_principal(frame, principal))
        return slot

    def notify(self, notification: Notification) -> None:
        """The session hears this notification now.

        Not so a cancellation: over HTTP there is none but to go away (MHTTP-13), and what it named
        would be the number of somebody else's request.
        """
        if notification.method == CANCELLED:
            return
        self._inbox.put(encode_notification(notification.method, notification.params))

    def abandon(self, slot: Slot) -> None:
        """The client has gone away: nothing more leaves for its request (MHTTP-24)."""
        if self._slots.pop(slot.number, None) is not None:
            params = CancelledParams(request_id=slot.number, reason="the client closed the stream")
            self._inbox.put(encode_notification(CANCELLED, params))

    @property
    def is_resting(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._slots

    # What the session sends.

    def _route(self, frame: bytes) -> None:
        """What is about a request that nobody waits for, or about none, goes nowhere (MHTTP-16)."""
        assert isinstance(frame, Addressed)
        slot = None if frame.about is None else self._slots.get(frame.about)
        if slot is None:
            return
        if frame.is_answer:
            del self._slots[slot.number]
            text = renumbered(_tagged(frame, slot), slot.id)
            slot.stream.put(Sent(text, None, is_answer=True))
            slot.stream.answered(slot.number)
        elif not slot.stream.is_narrow:
            slot.stream.put(Sent(_tagged(frame, slot), None, is_answer=False))

    # The end.

    def _open_streams(self) -> Iterable[AnswerStream]:
        return [slot.stream for slot in self._slots.values()]


def _tagged(frame: bytes, slot: Slot) -> bytes:
    """The frame; all that goes to a subscription names it by the client's own id (SUB-08)."""
    if slot.method != LISTEN:
        return bytes(frame)
    message: dict[str, Any] = msgspec.json.decode(frame)
    meta = message.get("params", message.get("result", {})).get("_meta", {})
    if SUBSCRIPTION_ID in meta:
        meta[SUBSCRIPTION_ID] = slot.id
    return msgspec.json.encode(message)
