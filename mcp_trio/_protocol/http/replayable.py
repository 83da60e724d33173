"""What a client that comes back may still hear of a session's streams."""

import re
from typing import Final, NamedTuple

import attrs

# Numbers as `keep` writes them; longer ones were never given.
_EVENT_ID: Final = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,17})")


class _Kept(NamedTuple):
    age: int  # Counts up over all streams: the lowest is the oldest.
    data: bytes


@attrs.define
class _Stream:
    """The newest events of a stream, without a gap; `next_number` is that of its next event."""

    number: int
    next_number: int = 1
    events: list[_Kept] = attrs.field(factory=list[_Kept])

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
    the others, then the oldest of open ones. An event that is over `bytes_max` alone is not kept.
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
        self._open[self._streams_opened] = _Stream(self._streams_opened)
        return self._streams_opened

    def keep(self, stream: int, data: bytes) -> str:
        """The id of the stream's next event, which is kept.

        Raises:
            KeyError: The stream is not open.
        """
        kept_by = self._open[stream]
        event_id = _event_id(stream, kept_by.next_number)
        kept_by.next_number += 1
        self._events_given += 1
        kept_by.events.append(_Kept(self._events_given, data))
        self._kept_events += 1
        self._kept_bytes += len(data)
        if len(data) > self._bytes_max:
            self._forget(kept_by, len(kept_by.events))
        while self._kept_events > self._events_max or self._kept_bytes > self._bytes_max:
            self._forget_oldest()
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
            (_event_id(stream.number, at), kept.data)
            for at, kept in enumerate(stream.events, stream.first_number)
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

    def _forget_oldest(self) -> None:
        if self._closed:
            self._forget(next(iter(self._closed.values())), 1)
            return
        streams = (stream for stream in self._open.values() if stream.events)
        self._forget(min(streams, key=_age), 1)

    def _forget(self, stream: _Stream, count: int) -> None:
        """The oldest `count` events of a stream; a closed one without any is forgotten itself."""
        self._kept_events -= count
        self._kept_bytes -= sum(len(kept.data) for kept in stream.events[:count])
        del stream.events[:count]
        if not stream.events:
            self._closed.pop(stream.number, None)


def _event_id(stream: int, number: int) -> str:
    return f"{stream}-{number}"


def _age(stream: _Stream) -> int:
    return stream.events[0].age
