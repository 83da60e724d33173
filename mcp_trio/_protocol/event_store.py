"""Stores of sent events, from which a client resumes a broken stream.

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

    A store promises: it issues an id once in a session; an id determines its stream and the events
    before it; the events that `after` returns have no gap. It does not promise to keep an event for
    any time.

    An event gets its id and is stored in the same step, without waiting. A store for several
    machines keeps the events in memory as well, and writes them later: the server awaits `settle`
    before it sends events of an open stream. So another machine that takes the session over knows
    all events that the client knows.
    """

    def open_stream(self, request_ids: Sequence[RequestId] = ()) -> int:
        """Return the number of a new stream, which will have the responses to these requests."""
        ...

    def keep(self, stream: int, data: bytes) -> str:
        """Store the next event of a stream; return its id.

        An event with empty data has no message; it only lets a client resume from its id.

        Raises:
            KeyError: The stream is not open.
        """
        ...

    def append_ended_stream(self, events: Sequence[bytes]) -> Sequence[str]:
        """Store a new stream that has ended; return the ids of an empty event and of the others.

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
        """Wait until other machines can load all events, or until they cannot be reached."""
        ...

    async def load(self) -> Mapping[int, Sequence[RequestId]]:
        """Load the events of a session that was opened on another machine.

        Returns:
            The numbers of the streams that are open, with the ids of their unanswered requests.
        """
        ...


# The stream and the number of an event; longer numbers are never issued.
_EVENT_ID: Final = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,17})")
_UNKNOWN: Final = "the event id is unknown, or its stream is no longer stored"


_Kept: TypeAlias = tuple[int, bytes]
"""An event: a number that counts all events, and the data. The lowest number is the oldest."""

_Ended: TypeAlias = tuple[int, int, *tuple[bytes, ...]]
"""An ended stream: its number, that of its first stored event, and the data from there on.

A busy server has many of these. The garbage collector does not visit tuples of numbers and bytes.
"""


@attrs.define(eq=False, repr=False)
class _Stream:
    """The newest events of an open stream; `next_number` is the number of its next event."""

    next_number: int
    events: list[_Kept]

    def ended(self, number: int) -> _Ended:
        """Return the stream as an ended one with that number."""
        first = self.next_number - len(self.events)
        return (number, first, *[data for _, data in self.events])


@attrs.define(kw_only=True, eq=False, repr=False)
class MemoryEventStore:
    """An event store in memory: the newest events of one session's streams.

    The id of an event has the number of its stream and its number in the stream.

    Args:
        events_max: Events that are stored, of all streams together.
        bytes_max: Bytes of their data. A larger event is not stored, nor is an ended stream that is
            larger.

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
    _closed: deque[_Ended] = attrs.field(factory=deque[_Ended], init=False)

    def open_stream(self, request_ids: Sequence[RequestId] = ()) -> int:  # noqa: ARG002
        """Return the number of a new stream."""
        self._streams_opened += 1
        self._open[self._streams_opened] = _Stream(1, [])
        return self._streams_opened

    def append_ended_stream(self, events: Sequence[bytes]) -> Sequence[str]:
        """Store a new stream that has ended; return the ids of an empty event and of the others."""
        self._streams_opened = number = self._streams_opened + 1
        size, ids = 0, [_event_id(number, 1)]
        for data in events:
            size += len(data)
            ids.append(_event_id(number, len(ids) + 1))
        if size <= self._bytes_max:
            is_empty = not events  # the empty first event is stored only if nothing follows it
            self._closed.append((number, 1, b"") if is_empty else (number, 2, *map(bytes, events)))
            self._kept_events += len(events) or 1
            self._kept_bytes += size
            self._forget_surplus()
        return ids

    def keep(self, stream: int, data: bytes) -> str:
        """Store the next event of a stream; return its id.

        Raises:
            KeyError: The stream is not open.
        """
        receiver = self._open[stream]
        event_id = _event_id(stream, receiver.next_number)
        receiver.next_number += 1
        self._events_numbered += 1
        receiver.events.append((self._events_numbered, bytes(data)))
        self._kept_events += 1
        self._kept_bytes += len(data)
        if len(data) > self._bytes_max:
            while receiver.events:
                self._forget_first(receiver)
        self._forget_surplus()
        return event_id

    def after(self, event_id: str) -> tuple[int, list[tuple[str, bytes]]]:
        """Return the number of an event's stream, and the ids and data of all events after it.

        Raises:
            LookupError: The id was never issued, or not all events after it are still stored.
        """
        match = _EVENT_ID.fullmatch(event_id)
        if match is None:
            raise LookupError(_UNKNOWN)
        stream, number = int(match[1]), int(match[2])
        ended = next((each for each in self._closed if each[0] == stream), None)
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
        """End a stream.

        Raises:
            KeyError: The stream is not open.
        """
        closed = self._open.pop(stream)
        if closed.events:
            self._closed.append(closed.ended(stream))

    def restore(self, stream: int, first: int, events: Sequence[bytes], *, is_open: bool) -> None:
        """Store the newest events of a stream that another store has numbered.

        Args:
            stream: The number of the stream.
            first: The number of the first of the events.
            events: The events, of which there is at least one.
            is_open: Whether more events may follow.
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
            if self._closed:
                # The oldest event of the stream that ended first; with its last event the stream.
                stream, first, *events = self._closed.popleft()
                if len(events) > 1:
                    self._closed.appendleft((stream, first + 1, *events[1:]))
                self._count_forgotten(events[0])
            else:
                streams = (stream for stream in self._open.values() if stream.events)
                self._forget_first(min(streams, key=lambda stream: stream.events[0][0]))

    def _forget_first(self, stream: _Stream) -> None:
        _, data = stream.events.pop(0)
        self._count_forgotten(data)

    def _count_forgotten(self, data: bytes) -> None:
        self._kept_events -= 1
        self._kept_bytes -= len(data)


def _event_id(stream: int, number: int) -> str:
    return f"{stream}-{number}"
