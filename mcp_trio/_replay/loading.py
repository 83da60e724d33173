"""Reading a recording to run its handlers again: refused or checked, so that this can be done."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import attrs

from mcp_trio._errors import RecordingError
from mcp_trio._journal.reader import Flaw, first_loss, read_recording
from mcp_trio._journal.records import (
    KINDS,
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
from mcp_trio._recorder.recorder import ENDED_MARK
from mcp_trio._recorder.sink import open_recording
from mcp_trio._replay.score import Key, Score, is_in_passing, key_of, mark_name
from mcp_trio._wire import Oversized, from_principal

_CAUSES: Final = frozenset({"eof", "signal", "closed", "lost"})


@attrs.frozen(kw_only=True)
class Loaded:
    """A recording of a server, up to its first loss: records of known kinds, and what was flawed.

    `numbers` are those of all records, of known kinds or not.
    """

    opening: OpenBody
    journal: Sequence[Record]
    numbers: Collection[int]
    notes: tuple[str, ...]


def load(path: str | os.PathLike[str], *, purpose: str) -> Loaded:
    """Read a recording of role `server`; a `gap` that lost something ends its use.

    Raises:
        RecordingError: The file is no recording, or one that does not serve the `purpose`.
    """
    records, notes = _read(path)
    opening = body_of(records[0], OpenBody)
    if opening.role != "server":
        raise RecordingError(
            f"{purpose} runs the handlers of a server; this recording is of role {opening.role!r}"
        )
    whole = _before_loss(records[1:], notes)
    journal = [record for record in whole if record.kind in KINDS and record.kind != "gap"]
    for record in journal:
        _CHECKS.get(record.kind, _accept)(record)
    return Loaded(
        opening=opening,
        journal=journal,
        numbers={record.number for record in whole},
        notes=tuple(notes),
    )


def frame_in(record: Record) -> bytes | Oversized:
    """What an `in` record delivers, and from whom; of a frame over the limit, how it began."""
    frame, envelope = frame_of(record), record.envelope or {}
    assert frame is not None
    if "discarded" in envelope:
        return Oversized(size=envelope["discarded"], head=frame)
    return from_principal(frame, envelope.get("principal"))


def _read(path: str | os.PathLike[str]) -> tuple[list[Record], list[str]]:
    records: list[Record] = []
    notes: list[str] = []
    for item in read_recording(open_recording(path)):
        if isinstance(item, Flaw):
            notes.append(f"line {item.line}: {item.text}")
        else:
            records.append(item)
    return records, notes


def _before_loss(records: list[Record], notes: list[str]) -> list[Record]:
    """Only what stands before lost records can be used."""
    place = first_loss(records)
    if place is None:
        return records
    notes.append(f"record {records[place].number}: a gap; replayed up to it")
    return records[:place]


# As the player needs it.


def load_score(path: str | os.PathLike[str]) -> Score:
    """A recording as the player needs it.

    Raises:
        RecordingError: The file is no recording, or one that strict replay cannot do.
    """
    loaded = load(path, purpose="strict replay")
    journal = loaded.journal
    return Score(
        opening=loaded.opening,
        journal=journal,
        missing=_missing(journal, loaded.numbers),
        places=_places(journal),
        endings=_endings(journal),
        ahead=_ahead(journal),
        notes=loaded.notes,
    )


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
    envelope = record.envelope or {}
    said = isinstance(envelope.get("discarded", 0), int)
    said = said and isinstance(envelope.get("principal", ""), str)
    if frame_of(record) is None or not said:
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
