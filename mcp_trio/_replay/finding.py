"""A divergence as it was found: what is recorded, what came instead, and of which kind that is."""

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import msgspec

from mcp_trio._engine.stray_calls import Stray
from mcp_trio._journal.frames import json_difference
from mcp_trio._journal.records import Record, frame_of
from mcp_trio._journal.redaction import Redactor
from mcp_trio._replay.score import Key, Score, is_in_passing, key_of

# What is compared by a name in its body.
_NAMED: Final = frozenset({"cmd", "val", "mark"})

# How what is alike but not the same is called; a frame in all other cases.
_CHANGES: Final = {"cmd": "argument", "val": "argument"}

_ANSWER: Final = "answer"


@attrs.frozen(kw_only=True)
class Wanted:
    """What the replay did, or wants to do; `kind` is None for "one more operation"."""

    kind: str | None
    lane: Key | None
    ordinal: int | None = None
    body: bytes | None = None
    site: str = ""


@attrs.frozen(kw_only=True)
class Finding:
    """A divergence at `score.journal[place]`, or beyond the end.

    `wanted` is what came instead, if anything did; `problem`, what went wrong outside the records.
    `waiting` says where each lane waits, `strays` which calls went past the context. `redactor`
    tells what was taken out of the recording.
    """

    score: Score
    place: int
    wanted: Wanted | None = None
    problem: str = ""
    waiting: Mapping[str, str] = attrs.field(factory=dict[str, str])
    strays: Sequence[Stray] = ()
    is_strict: bool = True
    redactor: Redactor | None = None

    @property
    def missing(self) -> int | None:
        """The number of the record that should stand here, if the file lacks one."""
        return self.score.missing.get(self.place)

    @property
    def record(self) -> Record | None:
        """What is recorded here; None if that is missing, or nothing more is recorded."""
        journal = self.score.journal
        is_here = self.missing is None and self.place < len(journal)
        return journal[self.place] if is_here else None

    @property
    def number(self) -> int:
        """The number of the record that differs."""
        if self.missing is not None:
            return self.missing
        return self.total if self.record is None else self.record.number

    @property
    def total(self) -> int:
        """How many records there are."""
        journal = self.score.journal
        return journal[-1].number + 1 if journal else 1

    @property
    def lane(self) -> Key | None:
        """Who differs: the lane that was recorded here, or the one that does something more."""
        is_surplus = self.record is None or (self.wanted is not None and self.wanted.kind is None)
        journal = self.score.journal
        here = journal[self.place] if self.place < len(journal) else None
        recorded = None if here is None or here.lane is None else key_of(here)
        acting = None if self.wanted is None else self.wanted.lane
        return (acting or recorded) if is_surplus else (recorded or acting)

    @property
    def kind(self) -> str:
        """One of the kinds of `ReplayDivergence`."""
        record, wanted = self.record, self.wanted
        if self.problem:
            return "problem"
        if self._is_blocked:
            return "blocked"
        if self.missing is not None:
            return "extra"
        if wanted is None:
            is_cancelled = record is not None and record.kind == "cxl"
            return "uncancelled" if is_cancelled else "missing"
        if record is None or wanted.kind is None:
            return "extra"
        return self._kind_of_other(record, wanted)

    @property
    def _is_blocked(self) -> bool:
        lane = self.lane
        return any(s.is_outside and lane and s.lane == lane[1] for s in self.strays)

    def _kind_of_other(self, record: Record, wanted: Wanted) -> str:
        """Two things stand against each other."""
        is_own = wanted.lane == self.lane
        if is_own and self._comes_later(wanted):
            return "missing"
        if is_own and record.kind == "cxl":
            return "uncancelled"
        if is_own and is_left_out(record, wanted):
            return "missing"
        if is_own and is_alike(record, wanted):
            return (
                "redacted"
                if self._is_redacted(record, wanted)
                else _CHANGES.get(record.kind, "frame")
            )
        return "order" if self._comes_later(wanted) else "extra"

    def _is_redacted(self, record: Record, wanted: Wanted) -> bool:
        """Whether they differ at the places of redacted values only."""
        recorded, replayed = frame_of(record), wanted.body
        if self.redactor is None or recorded is None or replayed is None:
            return False
        places = json_difference(recorded, replayed)
        texts = [str(left) for _, left, _ in places]
        return bool(texts) and all(map(self.redactor.knows, texts))

    def _comes_later(self, wanted: Wanted) -> bool:
        """Whether the same thing is recorded of the same lane further on."""
        score = self.score
        everywhere = range(len(score.journal))
        places = everywhere if wanted.lane is None else score.places.get(wanted.lane, ())
        return any(p > self.place and is_same(score.journal[p], wanted) for p in places)


def is_same(record: Record, wanted: Wanted) -> bool:
    """Whether a record holds what is wanted, whatever its ordinal."""
    return _said(record) == (wanted.kind, wanted.body)


def is_left_out(record: Record, wanted: Wanted) -> bool:
    """Whether a lane has gone past what is recorded: nothing can come between them, or it ends."""
    is_read = is_in_passing(record) and wanted.kind not in {"val", "mark"}
    return is_read or (is_answer(wanted.kind, wanted.body) and not is_answer(*_said(record)))


def is_answer(kind: str | None, body: bytes | None) -> bool:
    """Whether something sent is the end of a request."""
    return kind == "out" and label_of(kind, body) == _ANSWER


def _said(record: Record) -> tuple[str, bytes | None]:
    return record.kind, frame_of(record)


def is_alike(record: Record, wanted: Wanted) -> bool:
    """Whether the same thing is done with something else in it."""
    mine, theirs = label_of(*_said(record)), label_of(wanted.kind, wanted.body)
    return (record.kind, mine) == (wanted.kind, theirs)


class _Labelled(msgspec.Struct):
    method: str = _ANSWER
    name: str = ""


def label_of(kind: str | None, body: bytes | None) -> str:
    """What distinguishes things of one kind: the method of a frame, the name of an effect."""
    try:
        labels = msgspec.json.decode(body or b"{}", type=_Labelled)
    except (ValueError, RecursionError):
        return ""
    return labels.method if kind == "out" else labels.name if kind in _NAMED else ""
