"""A recording as the player needs it: refused if it cannot be replayed, checked so that it can."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from mcp_trio._errors import RecordingError
from mcp_trio._journal.reader import Flaw, read_recording
from mcp_trio._journal.records import KINDS, MarkBody, OpenBody, Record, ShutBody, body_of, frame_of
from mcp_trio._recorder.sink import open_recording

THREAD_MARK: Final = "thread"

_CAUSES: Final = frozenset({"eof", "signal", "closed", "lost"})


@attrs.frozen(kw_only=True)
class Score:
    """What a replay has to do again, and what is known about the file.

    `missing` gives, for the place of a record in the journal, the number that should stand before
    it and does not. `last_places` says where each lane acts for the last time.
    """

    journal: Sequence[Record]
    missing: Mapping[int, int]
    last_places: Mapping[str, int]
    notes: tuple[str, ...]

    @property
    def last_hole(self) -> int:
        """The last place of `missing`; -1 if nothing is."""
        return max(self.missing, default=-1)

    @property
    def is_complete(self) -> bool:
        """Whether the recorded session came to its end; otherwise the recording was cut."""
        return bool(self.journal) and self.journal[-1].kind == "end"

    def is_spent(self, lane: str, place: int) -> bool:
        """Whether nothing more is recorded of a lane from `place` on, in a whole recording."""
        return self.is_complete and self.last_places.get(lane, -1) < place

    def is_cancelled_end(self, lane: str, place: int) -> bool:
        """Whether the record at `place` is the end of a cancelled request, not of a call in it."""
        is_last = self.is_complete and self.last_places.get(lane) == place
        return is_last and is_of_request(lane) and self.journal[place].kind == "cxl"

    @property
    def has_shut(self) -> bool:
        """Whether the recorded session began to close."""
        return any(record.kind == "shut" for record in self.journal)


def is_child(lane: str) -> bool:
    """Whether a lane is that of a task which a handler has started."""
    return "." in lane


def is_of_request(lane: str) -> bool:
    """Whether a lane is that of a handler, and not of a task below it or of the session itself."""
    return lane.startswith("r") and not is_child(lane)


def load_score(path: str | os.PathLike[str]) -> Score:
    """Read a recording of role `server`; a `gap` ends what can be replayed of it.

    Raises:
        RecordingError: The file is no recording, or one that strict replay cannot do.
    """
    records, notes = _read(path)
    _check_open(records[0])
    journal = _before_gap(records[1:], notes)
    for record in journal:
        _CHECKS.get(record.kind, _accept)(record)
    return Score(
        journal=journal,
        missing=_missing(journal),
        last_places={record.lane: i for i, record in enumerate(journal) if record.lane is not None},
        notes=tuple(notes),
    )


def _read(path: str | os.PathLike[str]) -> tuple[list[Record], list[str]]:
    records: list[Record] = []
    notes: list[str] = []
    for item in read_recording(open_recording(path)):
        if isinstance(item, Flaw):
            notes.append(f"line {item.line}: {item.text}")
        elif item.kind in KINDS:
            records.append(item)
    return records, notes


def _before_gap(records: list[Record], notes: list[str]) -> list[Record]:
    """A gap lost records: only what stands before it can be replayed."""
    for place, record in enumerate(records):
        if record.kind == "gap":
            notes.append(f"record {record.number}: a gap; replayed up to it")
            return records[:place]
    return records


def _missing(journal: Sequence[Record]) -> dict[int, int]:
    expected = 1
    missing: dict[int, int] = {}
    for place, record in enumerate(journal):
        if record.number > expected:
            missing[place] = expected
        expected = record.number + 1
    return missing


def _check_open(record: Record) -> None:
    body = body_of(record, OpenBody)
    if body.role != "server":
        raise RecordingError(
            f"strict replay runs the handlers of a server; this recording is of role {body.role!r}"
        )
    if body.lifespan:
        raise RecordingError(
            "this recording's server has a lifespan, which strict replay cannot stand in for yet"
        )


def _accept(record: Record) -> None:
    if record.channel:
        raise RecordingError(f"record {record.number}: strict replay plays only one channel yet")


def _check_in(record: Record) -> None:
    _accept(record)
    discarded = (record.envelope or {}).get("discarded", 0)
    if frame_of(record) is None or not isinstance(discarded, int):
        raise RecordingError(f"record {record.number}: an `in` without its frame")


def _check_shut(record: Record) -> None:
    cause = body_of(record, ShutBody).cause
    if cause not in _CAUSES:
        raise RecordingError(f"record {record.number}: an unknown cause of `shut`: {cause!r}")


def _check_mark(record: Record) -> None:
    if body_of(record, MarkBody).name == THREAD_MARK:
        raise RecordingError(
            f"record {record.number}: a `def` handler ran in a thread, which strict replay cannot"
            " order yet; make it `async def`, or pass thread=False for a trivial one"
        )


def _refuse_effect(record: Record) -> None:
    raise RecordingError(
        f"record {record.number}: an effect (`{record.kind}`), which strict replay cannot stand in"
        " for yet"
    )


_CHECKS: Final[Mapping[str, Callable[[Record], None]]] = {
    "in": _check_in,
    "shut": _check_shut,
    "mark": _check_mark,
    "cmd": _refuse_effect,
    "val": _refuse_effect,
}
