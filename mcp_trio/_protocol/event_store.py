"""Stores of sent events, from which a client resumes a broken stream."""

import re
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import attrs

# --------------------
# What a client of a session may come back for: the interface; `ReplayBuffer` is one in memory.


class EventStore(Protocol):
    """The events of one session's streams, by their ids.

    Promised: no id is given twice in a session; an id tells its stream, and what came before it
    there; what `after` gives has no hole. Not promised: that an event is kept, or for how long.

    Nothing here waits: an event has its id, and is kept, in the very step in which it is sent. Else
    a client might hold an id that means nothing yet, and each event would cost a wait. So a store
    for several machines makes the ids here, from the session's own and a count, and writes behind;
    who comes to another machine before that has arrived gets what it would get for events that are
    kept no more. When the session has ended, nothing of it is asked any more: see
    `SessionStore.forget`.
    """

    def open_stream(self) -> int:
        """The number of a new stream."""
        ...

    def keep(self, stream: int, data: bytes) -> str:
        """The id of the stream's next event, which is kept; no data: it only marks a place.

        Raises:
            KeyError: The stream is not open.
        """
        ...

    def append_ended_stream(self, events: Sequence[bytes]) -> Sequence[str]:
        """The ids of all events of a new stream that has ended, and before them that of a mark.

        As if it was opened, the mark and each event were kept, and it was closed; most streams come
        like that.
        """
        ...

    def after(self, event_id: str) -> tuple[int, Sequence[tuple[str, bytes]]]:
        """The event's stream, and all that came on it behind the event: ids and data, in order.

        Raises:
            LookupError: No such id was given, or not all that followed it is still kept.
        """
        ...

    def close_stream(self, stream: int) -> None:
        """The stream has ended: nothing follows on it, and its events may be forgotten first.

        Raises:
            KeyError: It is not open.
        """
        ...


# Numbers as `keep` writes them; longer ones were never given.
_EVENT_ID: Final = re.compile(r"([1-9][0-9]{0,17})-([1-9][0-9]{0,17})")
_UNKNOWN: Final = "that event id is unknown, or its stream is no longer kept"


_Kept: TypeAlias = tuple[int, bytes]
"""An age, which counts up over all open streams, so that the lowest is the oldest; and data."""

_Ended: TypeAlias = tuple[int, int, *tuple[bytes, ...]]
"""An ended stream's number, that of its first event that is kept, and the data from there on.

Most of what a busy server holds is these, and the garbage collector follows none of them.
"""


@attrs.define(eq=False)
class _Stream:
    """The newest events of a stream, without a gap; `next_number` is that of its next event."""

    next_number: int
    events: list[_Kept]

    def ended(self, number: int) -> _Ended:
        """The stream of that number, if nothing follows."""
        first = self.next_number - len(self.events)
        return (number, first, *[data for _, data in self.events])


@attrs.define(kw_only=True, eq=False)
class ReplayBuffer:
    """The latest events of one session's streams, for those who lost a connection.

    An event's id names its stream, and its number in it; no id is given twice in a session
    (requirements HTTP-38, HTTP-39). At most `events_max` events and `bytes_max` bytes of data are
    kept over all streams. Beyond that those of closed streams go first, the longest closed before
    the others, then the oldest of open ones. An event that is over `bytes_max` alone is not kept,
    nor are events of a stream that comes whole and is over it; the mark at the beginning of one
    need not be. An open stream itself is remembered even if nothing of it is kept.
    """

    _events_max: int = attrs.field(alias="events_max")
    _bytes_max: int = attrs.field(alias="bytes_max")
    _streams_opened: int = attrs.field(default=0, init=False)
    _events_given: int = attrs.field(default=0, init=False)
    _kept_events: int = attrs.field(default=0, init=False)
    _kept_bytes: int = attrs.field(default=0, init=False)
    _open: dict[int, _Stream] = attrs.field(factory=dict[int, _Stream], init=False)
    # Of thousands that come and go one is looked for, once in a while.
    _closed: deque[_Ended] = attrs.field(factory=deque[_Ended], init=False)

    def open_stream(self) -> int:
        """The number of a new stream."""
        self._streams_opened += 1
        self._open[self._streams_opened] = _Stream(1, [])
        return self._streams_opened

    def append_ended_stream(self, events: Sequence[bytes]) -> Sequence[str]:
        """The ids of all events of a new stream that has ended, and before them that of a mark."""
        self._streams_opened = number = self._streams_opened + 1
        size, ids = 0, [_event_id(number, 1)]
        for data in events:
            size += len(data)
            ids.append(_event_id(number, len(ids) + 1))
        if size <= self._bytes_max:
            is_empty = not events  # what follows the mark says all that it does
            self._closed.append((number, 1, b"") if is_empty else (number, 2, *map(bytes, events)))
            self._kept_events += len(events) or 1
            self._kept_bytes += size
            self._forget_surplus()
        return ids

    def keep(self, stream: int, data: bytes) -> str:
        """The id of the stream's next event, which is kept.

        Raises:
            KeyError: The stream is not open.
        """
        kept_by = self._open[stream]
        event_id = _event_id(stream, kept_by.next_number)
        kept_by.next_number += 1
        self._events_given += 1
        kept_by.events.append((self._events_given, bytes(data)))
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
        stream, number = _numbers_in(event_id)
        _, first, *events = self._ended(stream)
        if number >= first + len(events):
            raise LookupError(_UNKNOWN)
        if number + 1 < first:
            limits = "limits.http.events_kept_max, limits.http.events_kept_bytes_max"
            raise LookupError(f"some of what followed that event is no longer kept ({limits})")
        return stream, [
            (_event_id(stream, at), data) for at, data in enumerate(events, first) if at > number
        ]

    def close_stream(self, stream: int) -> None:
        """The stream has ended: nothing follows on it, and its events may be forgotten first.

        Raises:
            KeyError: It is not open.
        """
        closed = self._open.pop(stream)
        if closed.events:
            self._closed.append(closed.ended(stream))

    def _ended(self, stream: int) -> _Ended:
        if stream in self._open:
            return self._open[stream].ended(stream)
        for ended in self._closed:
            if ended[0] == stream:
                return ended
        raise LookupError(_UNKNOWN)

    def _forget_surplus(self) -> None:
        while self._kept_events > self._events_max or self._kept_bytes > self._bytes_max:
            if self._closed:
                self._forget_closed()
            else:
                streams = (stream for stream in self._open.values() if stream.events)
                self._forget_first(min(streams, key=_age))

    def _forget_closed(self) -> None:
        """The oldest event of the longest closed stream; without any it is forgotten itself."""
        stream, first, *events = self._closed.popleft()
        if len(events) > 1:
            self._closed.appendleft((stream, first + 1, *events[1:]))
        self._forgot(events[0])

    def _forget_first(self, stream: _Stream) -> None:
        _, data = stream.events.pop(0)
        self._forgot(data)

    def _forgot(self, data: bytes) -> None:
        self._kept_events -= 1
        self._kept_bytes -= len(data)


def _numbers_in(event_id: str) -> tuple[int, int]:
    """A stream, and an event on it."""
    if match := _EVENT_ID.fullmatch(event_id):
        return int(match[1]), int(match[2])
    raise LookupError(_UNKNOWN)


def _event_id(stream: int, number: int) -> str:
    return f"{stream}-{number}"


def _age(stream: _Stream) -> int:
    return stream.events[0][0]
