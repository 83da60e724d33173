"""A legacy session over HTTP: one channel, whose frames take many ways.

Each POST with a request has a stream of its own, for the answer and what belongs to it. What
belongs to no request takes the stream that a GET opens, and waits for one. A connection that breaks
ends nothing: the frames are kept, and the client comes back for them with the last event's id.
"""

from collections.abc import Iterable, Sequence

import attrs
import msgspec

from mcp_trio._protocol import CANCELLED, METHODS, RequestId
from mcp_trio._protocol.http.event_store import EventStore
from mcp_trio._protocol.http.replayable import ReplayBuffer
from mcp_trio._transports.http.answer_stream import AnswerStream, Sent
from mcp_trio._transports.http.routed import RoutedChannel
from mcp_trio._wire import Addressed, Batch, Message, Notification, Understood


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
                events_max=limits.http_events_kept_max, bytes_max=limits.http_bytes_kept_max
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
            TooManyStreamsError: `http_streams_max` are open; nothing was delivered.
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
        if len(of_request) + len(ids) > self.limits.http_streams_max:
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
