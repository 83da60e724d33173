"""What a client that comes back may still hear of a session's streams."""

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs

# Numbers as `keep` writes them; longer ones were never given.
_EVENT_ID: Final = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,17})")


_Kept: TypeAlias = tuple[int, bytes]
"""An age, which counts up over all open streams, so that the lowest is the oldest; and data."""

_AGELESS: Final = 0


@attrs.define(eq=False)
class _Stream:
    """The newest events of a stream, without a gap; `next_number` is that of its next event."""

    number: int
    next_number: int
    events: list[_Kept]

    @property
    def first_number(self) -> int:
        """The number of the oldest event that is kept, or would be."""
        return self.next_number - len(self.events)


@attrs.define(kw_only=True, eq=False)
class ReplayBuffer:
    """The latest events of one session's streams, for those who lost a connection.

    An event's id names its stream, and its number in it; no id is given twice in a session
    (requirements HTTP-38, HTTP-39). At most `events_max` events and `bytes_max` bytes of data are
    kept over all streams. Beyond that those of closed streams go first, the longest closed before
    the others, then the oldest of open ones. An event that is over `bytes_max` alone is not kept,
    nor are events of a stream that comes whole and is over it.
    An open stream itself is remembered even if nothing of it is kept.
    """

    _events_max: int = attrs.field(alias="events_max")
    _bytes_max: int = attrs.field(alias="bytes_max")
    _streams_opened: int = attrs.field(default=0, init=False)
    _events_given: int = attrs.field(default=0, init=False)
    _kept_events: int = attrs.field(default=0, init=False)
    _kept_bytes: int = attrs.field(default=0, init=False)
    _open: dict[int, _Stream] = attrs.field(factory=dict[int, _Stream], init=False)
    _closed: dict[int, _Stream] = attrs.field(factory=dict[int, _Stream], init=False)

    def open_stream(self) -> int:
        """The number of a new stream."""
        self._streams_opened += 1
        self._open[self._streams_opened] = _Stream(self._streams_opened, 1, [])
        return self._streams_opened

    def keep_whole(self, events: Sequence[bytes]) -> Sequence[str]:
        """The ids of all events of a new stream, which has ended; they are kept."""
        self._streams_opened = number = self._streams_opened + 1
        size, count = sum(map(len, events)), len(events)
        if events and size <= self._bytes_max:
            kept = [(_AGELESS, data) for data in events]
            self._closed[number] = _Stream(number, count + 1, kept)
            self._kept_events += count
            self._kept_bytes += size
            self._forget_surplus()
        return [_event_id(number, at) for at in range(1, count + 1)]

    def keep(self, stream: int, data: bytes) -> str:
        """The id of the stream's next event, which is kept.

        Raises:
            KeyError: The stream is not open.
        """
        kept_by = self._open[stream]
        event_id = _event_id(stream, kept_by.next_number)
        kept_by.next_number += 1
        self._events_given += 1
        kept_by.events.append((self._events_given, data))
        self._kept_events += 1
        self._kept_bytes += len(data)
        if len(data) > self._bytes_max:
            while kept_by.events:
                self._forget_first(kept_by)
        self._forget_surplus()
        return event_id

    def after(self, event_id: str) -> tuple[int, list[tuple[str, bytes]]]:
        """The event's stream, and all that came on it behind the event: ids and data, in order.

        Raises:
            LookupError: This session gave no such id, or not all that followed it is still kept.
        """
        stream, number = self._found(event_id)
        if number + 1 < stream.first_number:
            limits = "http_events_kept_max, http_bytes_kept_max"
            raise LookupError(f"some of what followed that event is no longer kept ({limits})")
        return stream.number, [
            (_event_id(stream.number, at), data)
            for at, (_, data) in enumerate(stream.events, stream.first_number)
            if at > number
        ]

    def close_stream(self, stream: int) -> None:
        """The stream has ended: nothing follows on it, and its events may be forgotten first.

        Raises:
            KeyError: It is not open.
        """
        closed = self._open.pop(stream)
        if closed.events:
            self._closed[stream] = closed

    def _found(self, event_id: str) -> tuple[_Stream, int]:
        if match := _EVENT_ID.fullmatch(event_id):
            stream_number, number = int(match[1]), int(match[2])
            stream = self._open.get(stream_number) or self._closed.get(stream_number)
            if stream and number < stream.next_number:
                return stream, number
        raise LookupError("that event id is unknown, or its stream is no longer kept")

    def _forget_surplus(self) -> None:
        while self._kept_events > self._events_max or self._kept_bytes > self._bytes_max:
            if self._closed:
                self._forget_closed(next(iter(self._closed.values())))
            else:
                streams = (stream for stream in self._open.values() if stream.events)
                self._forget_first(min(streams, key=_age))

    def _forget_closed(self, stream: _Stream) -> None:
        """The oldest event of a closed stream; without any it is forgotten itself."""
        self._forget_first(stream)
        if not stream.events:
            del self._closed[stream.number]

    def _forget_first(self, stream: _Stream) -> None:
        _, data = stream.events.pop(0)
        self._kept_events -= 1
        self._kept_bytes -= len(data)


def _event_id(stream: int, number: int) -> str:
    return f"{stream}-{number}"


def _age(stream: _Stream) -> int:
    return stream.events[0][0]
