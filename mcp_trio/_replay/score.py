"""A recording as the player needs it: refused if it cannot be replayed, checked so that it can."""

import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import msgspec

from mcp_trio._engine.session import DRAINED
from mcp_trio._errors import RecordingError
from mcp_trio._journal.reader import Flaw, read_recording
from mcp_trio._journal.records import (
    KINDS,
    PATCHED,
    CommandBody,
    EndBody,
    MarkBody,
    OpenBody,
    Record,
    ShutBody,
    ValueBody,
    body_of,
    frame_of,
)
from mcp_trio._recorder.recorder import ENDED_MARK, SESSION_MARK
from mcp_trio._recorder.sink import open_recording
from mcp_trio._server.announcements import ANNOUNCE_LANE
from mcp_trio._server.neighbours import BESIDE

Key: TypeAlias = tuple[int, str]
"""A lane in a file: its channel, and its name there."""

START_ORDINAL: Final = 0
THREAD_MARK: Final = "thread"
OUTCOMES: Final = frozenset({"res", "err", "cxl"})

_CAUSES: Final = frozenset({"eof", "signal", "closed", "lost"})


@attrs.frozen(kw_only=True)
class Score:
    """What a replay has to do again, and what is known about the file.

    Attributes:
        opening: What was known when the recording began.
        journal: The records after that, in order.
        missing: For the place of a record in the journal, the number that should stand before it
            and does not.
        places: Where each lane acts, in order.
        endings: Where each of several sessions in a file ends, by its channel.
        ahead: Where what a lane read in passing stands, by lane and ordinal.
        notes: Flaws of the file.
    """

    opening: OpenBody
    journal: Sequence[Record]
    missing: Mapping[int, int]
    places: Mapping[Key, Sequence[int]]
    endings: Mapping[int, int]
    ahead: Mapping[tuple[Key, int], int]
    notes: tuple[str, ...]

    @property
    def last_hole(self) -> int:
        """The last place of `missing`; -1 if nothing is."""
        return max(self.missing, default=-1)

    @property
    def is_complete(self) -> bool:
        """Whether the recorded session came to its end; otherwise the recording was cut."""
        return bool(self.journal) and self.journal[-1].kind == "end"

    @property
    def is_of_several(self) -> bool:
        """Whether the sessions of the file begin and end with marks: several may share it."""
        return any(map(begins_session, self.journal))

    def last_place(self, lane: Key) -> int:
        """Where a lane acts for the last time; -1 if it never does."""
        places = self.places.get(lane)
        return places[-1] if places else -1

    def place_of(self, lane: Key, ordinal: int) -> int | None:
        """Where an operation of a lane stands; None if it is not recorded."""
        for place in self.places.get(lane, ()):
            if self.journal[place].ordinal == ordinal:
                return place
        return None

    def is_cut_before(self, lane: Key, ordinal: int) -> bool:
        """Whether the recording was cut before a lane could do an operation."""
        last = self.last_place(lane)
        return not self.is_complete and (last < 0 or (self.journal[last].ordinal or 0) < ordinal)

    def is_spent(self, lane: Key, place: int) -> bool:
        """Whether nothing more is recorded of a lane from `place` on, in a whole recording.

        One whose last record is a command still waited for the outcome when the session ended.
        """
        last = self.last_place(lane)
        if not self.is_complete or last >= place:
            return False
        return last < 0 or self.journal[last].kind != "cmd"

    def is_silent(self, lane: Key, ordinal: int, place: int) -> bool:
        """Whether a lane, after its operation `ordinal`, does nothing more but perhaps end so."""
        last = self.last_place(lane)
        if last >= place and self.is_cancelled_end(lane, last):
            return self.journal[last].ordinal == ordinal + 1
        return self.is_spent(lane, place)

    def is_cancelled_end(self, lane: Key, last: int) -> bool:
        """Whether the last record of a lane is the end of a request that was cancelled."""
        return self.is_complete and is_of_request(lane) and self.journal[last].kind == "cxl"

    def is_of_cancelled(self, lane: Key, place: int) -> bool:
        """Whether a lane belongs to a request that is cancelled at `place` or later."""
        request = request_of(lane)
        last = self.last_place(request)
        return last >= place and self.is_cancelled_end(request, last)

    def last_read(self, name: str) -> Record | None:
        """What was last read by a name, in whatever lane; None if nothing was."""
        found = (record for record in reversed(self.journal) if _is_read(record, name))
        return next(found, None)

    def is_in_thread(self, lane: Key) -> bool:
        """Whether a lane, or a part of it, ran in a thread."""
        records = (self.journal[place] for place in self.places.get(lane, ()))
        return any(r.kind == "mark" and mark_name(r) == THREAD_MARK for r in records)

    def is_announced(self, place: int, until_ns: float) -> bool:
        """Whether a change is announced at `place` or later, up to a time."""
        ahead = itertools.takewhile(lambda record: record.time_ns <= until_ns, self.journal[place:])
        return any(record.lane == ANNOUNCE_LANE for record in ahead)

    def cancelled_ns(self, lane: Key, place: int) -> int | None:
        """When a request was cancelled, by its client or by the end of its session."""
        request_id = _id_of(request_frame(self.journal, lane[1]))
        for record in reversed(self.journal[:place]):
            if record.channel == lane[0] and _cancels(record, request_id):
                return record.time_ns
        return None

    @property
    def sessions_beside(self) -> int:
        """How many other sessions of the server were open meanwhile, in no or another file."""
        ends = [record for record in self.journal if record.kind == "end"]
        return sum(body_of(record, EndBody).counts.get(BESIDE, 0) for record in ends)

    @property
    def has_shut(self) -> bool:
        """Whether the recorded session began to close."""
        return any(record.kind == "shut" for record in self.journal)


def key_of(record: Record) -> Key:
    """The lane of a record; its name is empty for what the dispatcher does."""
    return record.channel, record.lane or ""


def is_child(lane: Key) -> bool:
    """Whether a lane is that of a task which a handler has started."""
    return "." in lane[1]


def request_of(lane: Key) -> Key:
    """The lane of the handler that a lane is, or is below."""
    return lane[0], lane[1].split(".", maxsplit=1)[0]


def is_of_request(lane: Key) -> bool:
    """Whether a lane is that of a handler, and not of a task below it or of the session itself."""
    return lane[1].startswith("r") and not is_child(lane)


def is_start(record: Record) -> bool:
    """Whether a record is the start of a handler."""
    is_named = record.lane is not None and record.kind == "mark"
    return is_named and record.ordinal == START_ORDINAL


def is_in_passing(record: Record) -> bool:
    """Whether a record is of something that a lane did without waiting for its turn."""
    return record.kind == "val" or (
        record.kind == "mark" and record.lane is not None and mark_name(record) == PATCHED
    )


def begins_session(record: Record) -> bool:
    """Whether a record is the beginning of one of the sessions of a file."""
    return record.kind == "mark" and record.lane is None and mark_name(record) == SESSION_MARK


class _Named(msgspec.Struct):
    name: str = ""


def mark_name(record: Record) -> str:
    """The name of a mark, and likewise of an effect or of what was read."""
    return body_of(record, _Named).name


def _is_read(record: Record, name: str) -> bool:
    return record.kind == "val" and mark_name(record) == name


def request_frame(journal: Sequence[Record], lane: str) -> bytes:
    """The request or notification that a lane belongs to; empty if none is recorded."""
    number = lane.split(".", maxsplit=1)[0][1:]
    frames = (frame_of(record) for record in journal if str(record.number) == number)
    return next(frames, None) or b""


class _Message(msgspec.Struct):
    """As much of a frame as tells whether it cancels a request."""

    id: Any = None
    method: str = ""
    params: dict[str, Any] = {}


def _message_of(frame: bytes) -> _Message:
    try:
        return msgspec.json.decode(frame, type=_Message)
    except (ValueError, RecursionError):
        return _Message()


def _id_of(frame: bytes) -> Any:
    return _message_of(frame).id


def _cancels(record: Record, request_id: Any) -> bool:
    if record.kind == "mark":
        return mark_name(record) == DRAINED
    if record.kind != "in":
        return False
    message = _message_of(frame_of(record) or b"")
    is_cancel = message.method == "notifications/cancelled"
    return is_cancel and message.params.get("requestId") == request_id


def load_score(path: str | os.PathLike[str]) -> Score:
    """Read a recording of role `server`; a `gap` ends what can be replayed of it.

    Raises:
        RecordingError: The file is no recording, or one that strict replay cannot do.
    """
    records, notes = _read(path)
    opening = body_of(records[0], OpenBody)
    if opening.role != "server":
        raise RecordingError(
            f"strict replay runs the handlers of a server; this recording is of role"
            f" {opening.role!r}"
        )
    whole = _before_gap(records[1:], notes)
    journal = [record for record in whole if record.kind in KINDS]
    for record in journal:
        _CHECKS.get(record.kind, _accept)(record)
    return Score(
        opening=opening,
        journal=journal,
        missing=_missing(journal, {record.number for record in whole}),
        places=_places(journal),
        endings=_endings(journal),
        ahead=_ahead(journal),
        notes=tuple(notes),
    )


def _read(path: str | os.PathLike[str]) -> tuple[list[Record], list[str]]:
    records: list[Record] = []
    notes: list[str] = []
    for item in read_recording(open_recording(path)):
        if isinstance(item, Flaw):
            notes.append(f"line {item.line}: {item.text}")
        elif item.kind != "open" or not records:
            records.append(item)
    return records, notes


def _before_gap(records: list[Record], notes: list[str]) -> list[Record]:
    """A gap lost records: only what stands before it can be replayed."""
    for place, record in enumerate(records):
        if record.kind == "gap":
            notes.append(f"record {record.number}: a gap; replayed up to it")
            return records[:place]
    return records


def _missing(journal: Sequence[Record], numbers: Collection[int]) -> dict[int, int]:
    """Where records are missing; what is of a kind that is not known here is passed over."""
    expected = 1
    missing: dict[int, int] = {}
    for place, record in enumerate(journal):
        while expected < record.number and expected in numbers:
            expected += 1
        if record.number > expected:
            missing[place] = expected
        expected = record.number + 1
    return missing


def _places(journal: Sequence[Record]) -> dict[Key, list[int]]:
    places: dict[Key, list[int]] = {}
    for place, record in enumerate(journal):
        if record.lane is not None:
            places.setdefault(key_of(record), []).append(place)
    return places


def _endings(journal: Sequence[Record]) -> dict[int, int]:
    return {
        record.channel: place
        for place, record in enumerate(journal)
        if record.kind == "mark" and record.lane is None and mark_name(record) == ENDED_MARK
    }


def _ahead(journal: Sequence[Record]) -> dict[tuple[Key, int], int]:
    return {
        (key_of(record), record.ordinal or 0): place
        for place, record in enumerate(journal)
        if record.kind in {"val", "mark"} and is_in_passing(record)
    }


# What is refused.


def _accept(record: Record) -> None:
    frame_of(record)


def _check_in(record: Record) -> None:
    discarded = (record.envelope or {}).get("discarded", 0)
    if frame_of(record) is None or not isinstance(discarded, int):
        raise RecordingError(f"record {record.number}: an `in` without its frame")


def _check_shut(record: Record) -> None:
    cause = body_of(record, ShutBody).cause
    if cause not in _CAUSES:
        raise RecordingError(f"record {record.number}: an unknown cause of `shut`: {cause!r}")


def _check_body(body_type: type[Any]) -> Callable[[Record], None]:
    def check(record: Record) -> None:
        body_of(record, body_type)

    return check


_CHECKS: Final[Mapping[str, Callable[[Record], None]]] = {
    "in": _check_in,
    "shut": _check_shut,
    "mark": _check_body(MarkBody),
    "cmd": _check_body(CommandBody),
    "val": _check_body(ValueBody),
    "end": _check_body(EndBody),
}
