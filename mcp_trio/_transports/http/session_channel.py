"""A legacy session over HTTP: one channel, whose frames take many ways.

Each POST with a request has a stream of its own, for the answer and what belongs to it. What
belongs to no request takes the stream that a GET opens, and waits for one. A connection that breaks
ends nothing: the frames are kept, and the client comes back for them with the last event's id.
"""

from collections.abc import Sequence
from typing import Final

import attrs
import msgspec
import trio

from mcp_trio._limits import Limits
from mcp_trio._protocol import CANCELLED, METHODS, RequestId
from mcp_trio._protocol.http.replayable import ReplayBuffer
from mcp_trio._transports.http.answer_stream import AnswerStream, Sent
from mcp_trio._wire import Addressed, Batch, Message, Notification, Oversized


class DuplicateIdError(Exception):
    """A request has the id of one that is not answered yet."""


class TooManyStreamsError(Exception):
    """The session has as many requests without an answer as it may have."""


@attrs.define(eq=False)
class Inbox:
    """What was posted and not read yet: a channel's receiving side."""

    _frames: list[bytes | Oversized] = attrs.field(factory=list[bytes | Oversized], init=False)
    _is_closed: bool = attrs.field(default=False, init=False)
    _has_eof: bool = attrs.field(default=False, init=False)
    _news: trio.lowlevel.ParkingLot = attrs.field(factory=trio.lowlevel.ParkingLot, init=False)

    def put(self, frame: bytes) -> None:
        """One more."""
        self._frames.append(frame)
        self._news.unpark_all()

    def end(self) -> None:
        """The peer sends no more."""
        self._has_eof = True
        self._news.unpark_all()

    def close(self) -> None:
        """Nobody reads any more."""
        self._is_closed = True
        self._news.unpark_all()

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `Channel.receive`."""
        await trio.lowlevel.checkpoint()
        while not (self._frames or self._has_eof or self._is_closed):
            await self._news.park()
        if self._is_closed:
            raise trio.ClosedResourceError
        taken, self._frames = self._frames, []
        return taken


@attrs.define(eq=False)
class SessionChannel:
    """The channel of one session; see the module.

    Attributes:
        limits: How much may wait for clients, and how many streams there may be.
        has_one_stream: All answers take it, too (SSE-04).
        unasked: The stream for what belongs to no request.
    """

    limits: Limits
    transport: str = "http"
    has_one_stream: bool = False
    unasked: AnswerStream = attrs.field(init=False)
    is_addressed: Final = True
    _inbox: Inbox = attrs.field(factory=Inbox, init=False)
    _kept: ReplayBuffer = attrs.field(init=False)
    _streams: dict[int, AnswerStream] = attrs.field(factory=dict[int, AnswerStream], init=False)
    _of_request: dict[RequestId, AnswerStream] = attrs.field(
        factory=dict[RequestId, AnswerStream], init=False
    )

    def __attrs_post_init__(self) -> None:
        limits = self.limits
        self._kept = ReplayBuffer(
            events_max=limits.http_events_kept_max, bytes_max=limits.http_bytes_kept_max
        )
        self.unasked = self._open()

    @property
    def is_resting(self) -> bool:
        """Whether no request waits for its answer, and nobody carries the stream of the others."""
        return not (self._of_request or self.unasked.is_carried)

    # What the client sends.

    def deliver(
        self, frame: bytes, message: Message | Batch, awaited: Sequence[RequestId] = ()
    ) -> AnswerStream | None:
        """The session reads this next; the stream of the answers, if it `awaits` any.

        Raises:
            DuplicateIdError: One of them is awaited already; nothing was delivered.
            TooManyStreamsError: `http_streams_max` are open; nothing was delivered.
        """
        stream = self._open_for(awaited) if awaited else None
        self._inbox.put(frame)
        for each in message.messages if isinstance(message, Batch) else (message,):
            if isinstance(each, Notification) and each.method == CANCELLED:
                self._end_cancelled(each)
        return stream

    def finish(self) -> None:
        """The client is done."""
        self._inbox.end()

    def _open_for(self, awaited: Sequence[RequestId]) -> AnswerStream:
        if not self._of_request.keys().isdisjoint(awaited) or len(set(awaited)) < len(awaited):
            raise DuplicateIdError
        if len(self._of_request) + len(awaited) > self.limits.http_streams_max:
            raise TooManyStreamsError
        stream = self._open()
        stream.awaits.update(awaited)
        self._of_request.update(dict.fromkeys(awaited, stream))
        return stream

    def _open(self) -> AnswerStream:
        stream = AnswerStream(self.limits, self._kept.open_stream())
        assert stream.number is not None
        self._streams[stream.number] = stream
        stream.first_id = self._kept.keep(stream.number, b"")
        return stream

    def _end_cancelled(self, message: Notification) -> None:
        """What the client cancels is not answered: its stream need not wait (CANC-06)."""
        try:
            cancelled = METHODS[CANCELLED].decode_params(message.params).request_id
        except msgspec.MsgspecError:
            return  # the session says what is wrong with it
        self._settle(cancelled)

    def _settle(self, request_id: RequestId) -> None:
        """The stream that has ended is its carrier's, or nobody's: its frames are kept."""
        stream = self._of_request.pop(request_id, None)
        if stream is None:
            return
        stream.answered(request_id)
        if stream.is_ended:
            assert stream.number is not None
            self._kept.close_stream(stream.number)
            self._streams.pop(stream.number, None)

    # What the session sends.

    def send_nowait(self, frames: Sequence[bytes]) -> int:
        """See `Channel`: everything is taken, for its stream."""
        for frame in frames:
            self._route(frame)
        return len(frames)

    async def send(self, frames: Sequence[bytes]) -> None:
        """See `Channel`."""
        await trio.lowlevel.checkpoint()
        self.send_nowait(frames)

    def _route(self, frame: bytes) -> None:
        """An answer that its client has cancelled goes nowhere, least of all there (HTTP-32)."""
        assert isinstance(frame, Addressed)
        stream = None if frame.about is None else self._of_request.get(frame.about)
        if stream is None or (stream.is_narrow and not frame.is_answer):
            if frame.is_answer and not self.has_one_stream:
                return
            stream = self.unasked
        assert stream.number is not None
        event_id = self._kept.keep(stream.number, frame)
        stream.put(Sent(frame, event_id, frame.is_answer))
        if frame.is_answer and frame.about is not None:
            self._settle(frame.about)

    # What a client takes, and comes back for.

    def first_id(self, stream: AnswerStream) -> str | None:
        """The id of an event without a message, after which all that waits comes (HTTP-14).

        None: what waits came before, so that nothing stands between.
        """
        assert stream.number is not None
        if stream is self.unasked and not stream.has_waiting:
            return self._kept.keep(stream.number, b"")
        first_id, stream.first_id = stream.first_id, None
        return first_id

    def last_id(self, stream: AnswerStream) -> str:
        """The id of an event without a message, after which comes what is not there yet."""
        assert stream.number is not None
        return self._kept.keep(stream.number, b"")

    def resumed(self, last_event_id: str) -> AnswerStream:
        """The stream on which an event went out, with all that came behind it (HTTP-42, HTTP-43).

        One that is carried is given as it is. That an ended one was carried to its end does not
        say that it has arrived: as long as its events are kept, they can be asked for.

        Raises:
            LookupError: It is not known, or not kept any more.
        """
        number, events = self._kept.after(last_event_id)
        stream = self._streams.get(number)
        if stream is None:
            stream = AnswerStream(self.limits, number)
            stream.end()
        if not stream.is_carried:
            missed = [Sent(frame, event_id, is_answer=False) for event_id, frame in events if frame]
            stream.put_again(missed)
        return stream

    def left(self, stream: AnswerStream) -> None:
        """The client of a stream has gone away before its end, which cancels nothing (HTTP-25)."""
        if stream is not self.unasked:
            stream.leave()

    def arrived(self, stream: AnswerStream) -> None:
        """A stream was carried to its end; a mere answer told no event's id to come back by."""
        assert stream.number is not None
        if not stream.was_streamed:
            self._kept.forget_stream(stream.number)

    # The end.

    async def receive(self) -> Sequence[bytes | Oversized]:
        """See `Channel`."""
        return await self._inbox.receive()

    async def aclose(self) -> None:
        """See `Channel`: every stream ends."""
        self._inbox.close()
        for stream in self._streams.values():
            stream.end()
        await trio.lowlevel.cancel_shielded_checkpoint()
