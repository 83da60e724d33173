"""Stores that the instances of a server may share: of sent events, and of used keys.

From an `EventStore` a client resumes a broken stream; `MemoryEventStore` is that of a server alone.
A `StateStore` marks sealed states and DPoP proofs as used. It can also keep a value under a key for
a while: the result of the retry that used a state, or the facts that an authorization server
returns about a token.

https://modelcontextprotocol.io/specification/2025-11-25/basic/transports#resumability-and-redelivery
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import attrs

from mcp_trio.types import RequestId


class EventStore(Protocol):
    """The events of one session's streams, by their ids.

    A store issues an id once in a session. An id determines its stream and the events before it.
    The events that `after` returns have no gap. A store may forget any event at any time.

    `keep` gives an event its id and stores it without waiting. A store that several machines share
    keeps the events in memory as well, and writes them later; the server awaits `settle` before it
    sends events of an open stream. So another machine that takes over the session can load all
    events that the client has received.
    """

    def open_stream(self, request_ids: Sequence[RequestId] = ()) -> int:
        """Return the number of a new stream, which will have the responses to these requests."""
        ...

    def keep(self, stream: int, data: bytes) -> str:
        """Store the next event of a stream; return its id.

        An event with empty data has no message. From its id a client can resume the stream before
        its first message, or after the last one so far.

        Raises:
            KeyError: The stream is not open.
        """
        ...

    def append_ended_stream(self, events: Sequence[bytes]) -> Sequence[str]:
        """Store a new stream that has ended; return the ids of its first, empty event and of these.

        The effect is that of `open_stream`, `keep` with empty data, `keep` for each event, and
        `close_stream`. Most streams are stored in this way.
        """
        ...

    def after(self, event_id: str) -> tuple[int, Sequence[tuple[str, bytes]]]:
        """Return the number of an event's stream, and the ids and data of all events after it.

        Raises:
            LookupError: The id was never issued, or not all events after it are still stored.
        """
        ...

    def close_stream(self, stream: int) -> None:
        """End a stream. Its events may be forgotten before those of open streams.

        Raises:
            KeyError: The stream is not open.
        """
        ...

    async def settle(self) -> None:
        """Wait until other machines can load all events, or the store that they share fails."""
        ...

    async def load(self) -> Mapping[int, Sequence[RequestId]]:
        """Load the events of a session that was opened on another machine.

        Returns:
            The numbers of the streams that are open, with the ids of their unanswered requests.
        """
        ...


class StateStore(Protocol):
    """A store of used keys, shared by all instances of a server.

    A key identifies a sealed state, which is one round of one request, a DPoP proof, or a token.
    The store may forget a key after `seconds`. While it is unavailable, `take` and `kept` raise
    `RequestError` (server busy); `keep` does not raise, and the value may be lost.
    """

    async def take(self, key: str, *, seconds: float, client: str | int) -> bool:
        """Mark a key as used, atomically; return False if it was used before.

        `client` is the principal of the client, or a number that stands for its address. A store
        that limits its states counts them by client, so that no client fills it for the others.
        """
        ...

    async def keep(self, key: str, reply: bytes, *, seconds: float) -> None:
        """Keep `reply` under a key that was taken: a retry's result, or facts about a token."""
        ...

    async def kept(self, key: str) -> bytes | None:
        """Return the value that is kept under a key; None if there is none."""
        ...


# The event store in memory ------------------------------------------------------------------------

# The number of a stream, and that of an event in it; longer numbers are never issued.
_EVENT_ID: Final = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,17})")
_UNKNOWN: Final = "the event id is unknown, or its stream is no longer stored"

_EndedStream: TypeAlias = tuple[int, int, *tuple[bytes, ...]]
"""The number of a stream, the number in it of its first stored event, and the data from there on.

A busy server has many of these, and the garbage collector does not visit tuples of numbers and
bytes.
"""


@attrs.define(eq=False, repr=False)
class _Stream:
    """An open stream: the number in it of the next event, and its newest events.

    The number of an event in `events` is that among the events of all streams, which tells their
    age.
    """

    next_number: int
    events: list[tuple[int, bytes]]

    def ended(self, number: int) -> _EndedStream:
        """Return the stream, which has this number, as an ended one."""
        first = self.next_number - len(self.events)
        return (number, first, *[data for _, data in self.events])


@attrs.define(kw_only=True, eq=False, repr=False)
class MemoryEventStore:
    """An `EventStore` in memory: the newest events of one session's streams.

    The id of an event consists of the number of its stream and its number in the stream.

    Args:
        events_max: The maximum number of stored events, of all streams together.
        bytes_max: The maximum size of their data. A larger event is not stored, nor is an ended
            stream that is larger.

    When a limit is exceeded, the events of ended streams are forgotten first, those of the stream
    that ended first before the others, then the oldest events of open streams. An open stream
    stays known even if no event of it is stored.
    """

    _events_max: int = attrs.field(alias="events_max")
    _bytes_max: int = attrs.field(alias="bytes_max")
    _streams_opened: int = attrs.field(default=0, init=False)
    _events_numbered: int = attrs.field(default=0, init=False)
    _kept_events: int = attrs.field(default=0, init=False)
    _kept_bytes: int = attrs.field(default=0, init=False)
    _open: dict[int, _Stream] = attrs.field(factory=dict[int, _Stream], init=False)
    # Searched from the beginning, because only few of thousands of streams are ever resumed.
    _ended: deque[_EndedStream] = attrs.field(factory=deque[_EndedStream], init=False)

    def open_stream(self, request_ids: Sequence[RequestId] = ()) -> int:  # noqa: ARG002
        """Return the number of a new stream."""
        self._streams_opened += 1
        self._open[self._streams_opened] = _Stream(1, [])
        return self._streams_opened

    def append_ended_stream(self, events: Sequence[bytes]) -> Sequence[str]:
        """Store a new stream that has ended."""
        self._streams_opened = number = self._streams_opened + 1
        size = sum(map(len, events))
        if size <= self._bytes_max:
            # A client can resume from the first, empty event even if only the others are stored.
            self._ended.append((number, 2, *map(bytes, events)) if events else (number, 1, b""))
            self._kept_events += len(events) or 1
            self._kept_bytes += size
            self._forget_surplus()
        return [_event_id(number, at) for at in range(1, len(events) + 2)]

    def keep(self, stream: int, data: bytes) -> str:
        """Store the next event of a stream."""
        opened = self._open[stream]
        event_id = _event_id(stream, opened.next_number)
        opened.next_number += 1
        self._events_numbered += 1
        opened.events.append((self._events_numbered, bytes(data)))
        self._kept_events += 1
        self._kept_bytes += len(data)
        if len(data) > self._bytes_max:
            # Without this event, a client cannot resume from the events before it.
            while opened.events:
                self._forget_first(opened)
        self._forget_surplus()
        return event_id

    def after(self, event_id: str) -> tuple[int, list[tuple[str, bytes]]]:
        """Return the number of an event's stream, and all events after it."""
        match = _EVENT_ID.fullmatch(event_id)
        if match is None:
            raise LookupError(_UNKNOWN)
        stream, number = int(match[1]), int(match[2])
        ended = next((each for each in self._ended if each[0] == stream), None)
        if stream in self._open:
            ended = self._open[stream].ended(stream)
        if ended is None:
            raise LookupError(_UNKNOWN)
        _, first, *events = ended
        if number >= first + len(events):
            raise LookupError(_UNKNOWN)
        if number + 1 < first:
            limits = "limits.http.events_kept_max, limits.http.events_kept_bytes_max"
            raise LookupError(f"some events after that event are no longer stored ({limits})")
        return stream, [
            (_event_id(stream, at), data) for at, data in enumerate(events, first) if at > number
        ]

    def close_stream(self, stream: int) -> None:
        """End a stream."""
        closed = self._open.pop(stream)
        if closed.events:
            self._ended.append(closed.ended(stream))

    def restore(self, stream: int, first: int, events: Sequence[bytes], *, is_open: bool) -> None:
        """Store the newest events of a stream that another store has numbered.

        There is at least one event; `first` is the number of the first. If the stream `is_open`,
        more events may follow.
        """
        self._streams_opened = max(self._streams_opened, stream)
        self._open[stream] = _Stream(first, [])
        for data in events:
            self.keep(stream, data)
        if not is_open:
            self.close_stream(stream)

    async def settle(self) -> None:
        """Do nothing: no other machine can load the events."""

    async def load(self) -> Mapping[int, Sequence[RequestId]]:
        """Return no stream: no other machine has stored events."""
        return {}

    def _forget_surplus(self) -> None:
        while self._kept_events > self._events_max or self._kept_bytes > self._bytes_max:
            if self._ended:
                # Forget the oldest event of the stream that ended first, and with the last event of
                # a stream the stream itself.
                stream, first, *events = self._ended.popleft()
                if len(events) > 1:
                    self._ended.appendleft((stream, first + 1, *events[1:]))
                self._count_forgotten(events[0])
            else:
                streams = (stream for stream in self._open.values() if stream.events)
                self._forget_first(min(streams, key=lambda stream: stream.events[0][0]))

    def _forget_first(self, stream: _Stream) -> None:
        self._count_forgotten(stream.events.pop(0)[1])

    def _count_forgotten(self, data: bytes) -> None:
        self._kept_events -= 1
        self._kept_bytes -= len(data)


def _event_id(stream: int, number: int) -> str:
    return f"{stream}-{number}"
