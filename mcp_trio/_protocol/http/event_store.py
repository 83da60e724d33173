"""What a client of a session may come back for: the interface; `ReplayBuffer` is one in memory."""

from collections.abc import Sequence
from typing import Protocol


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

    def keep_whole(self, events: Sequence[bytes]) -> Sequence[str]:
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
