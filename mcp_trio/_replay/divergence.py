"""What a divergence looks like to the person who has to do something about it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec

from mcp_trio._errors import ReplayDivergence
from mcp_trio._journal.frames import json_difference
from mcp_trio._journal.records import Record, frame_of

_TEXT_CHARACTERS_MAX: Final = 160
_PLACES_MAX: Final = 5
_NS_PER_MS: Final = 1e6
_DOINGS: Final = {
    "out": "send",
    "cxl": "cancellation, or end without an answer,",
    "res": "resumption with a value",
    "err": "resumption with an error",
    "mark": "mark",
    "shut": "shutdown",
    "end": "end of the session",
}


@attrs.frozen(kw_only=True)
class Wanted:
    """What the replay did, or wants to do; `kind` is None for "one more operation"."""

    kind: str | None
    lane: str | None
    ordinal: int | None = None
    body: bytes | None = None
    site: str = ""


@attrs.frozen(kw_only=True)
class Finding:
    """A divergence at `journal[cursor]`, or beyond the end.

    `missing` is the number of the record that should stand there, if the file lacks one. `wanted`
    is what came instead, if anything did; `problem`, what went wrong outside the records. `waiting`
    says where each lane waits.
    """

    journal: Sequence[Record]
    cursor: int
    missing: int | None = None
    wanted: Wanted | None = None
    problem: str = ""
    waiting: Mapping[str, str] = attrs.field(factory=dict[str, str])
    notes: Sequence[str] = ()

    @property
    def record(self) -> Record | None:
        """What is recorded here; None if that is missing, or nothing more is recorded."""
        is_here = self.missing is None and self.cursor < len(self.journal)
        return self.journal[self.cursor] if is_here else None

    @property
    def number(self) -> int:
        """The number of the record that differs."""
        if self.missing is not None:
            return self.missing
        return self.total if self.record is None else self.record.number

    @property
    def total(self) -> int:
        """How many records there are."""
        return self.journal[-1].number + 1 if self.journal else 1

    @property
    def lane(self) -> str | None:
        """Who differs: the lane that was recorded here, or the one that does something more."""
        is_surplus = self.record is None or (self.wanted is not None and self.wanted.kind is None)
        recorded = self.journal[self.cursor].lane if self.cursor < len(self.journal) else None
        acting = None if self.wanted is None else self.wanted.lane
        return (acting or recorded) if is_surplus else (recorded or acting)


def describe(finding: Finding) -> ReplayDivergence:
    """The error that says where, what was recorded, what the replay did, and what can be done."""
    lines = [
        _headline(finding),
        f"  recorded: {_recorded(finding)}",
        f"  replay:   {_replayed(finding)}",
        *_places(finding),
        f"  meaning:  {_meaning(finding)}",
        f"  parked:   {_parked(finding.waiting)}",
        *(f"  file:     {note}" for note in finding.notes),
        "  choose:   fix the code | record the session again",
    ]
    return ReplayDivergence("\n".join(lines), record=finding.number, lane=finding.lane)


def _headline(finding: Finding) -> str:
    record = finding.record
    text = f"replay diverged at record {finding.number} of {finding.total}"
    if record is not None:
        text += f" (+{record.time_ns / _NS_PER_MS:.1f} ms)"
    if finding.lane is not None:
        text += (
            f", {_request_text(request_frame(finding.journal, finding.lane))}lane {finding.lane}"
        )
        if record is not None and record.lane == finding.lane:
            text += f", operation {record.ordinal}"
    return text


def request_frame(journal: Sequence[Record], lane: str) -> bytes:
    """The request or notification that a lane belongs to; empty if none is recorded."""
    number = lane.split(".", maxsplit=1)[0][1:]
    frames = (frame_of(record) for record in journal if str(record.number) == number)
    return next(frames, None) or b""


class _Request(msgspec.Struct):
    method: str
    params: dict[str, Any] = {}


def _request_text(frame: bytes) -> str:
    try:
        request = msgspec.json.decode(frame, type=_Request)
    except (ValueError, RecursionError):
        return ""
    target = request.params.get("name") or request.params.get("uri")
    return f'{request.method} "{target}", ' if target else f"{request.method}, "


def _recorded(finding: Finding) -> str:
    if finding.missing is not None:
        return "missing from the file"
    if finding.record is None:
        return "nothing more"
    return f"{finding.record.kind:<5} {_text(frame_of(finding.record))}".rstrip()


def _replayed(finding: Finding) -> str:
    wanted = finding.wanted
    if finding.problem:
        return finding.problem
    if wanted is None:
        return "nothing: every task waits for something else"
    what = wanted.kind or "another operation"
    who = f" by lane {wanted.lane}" if wanted.lane else ""
    operation = f", operation {wanted.ordinal}" if wanted.ordinal is not None else ""
    site = f"  {wanted.site}" if wanted.site else ""
    return f"{what:<5} {_text(wanted.body)}{who}{operation}{site}"


def _text(body: bytes | None) -> str:
    text = "" if body is None else body.decode("utf-8", "replace")
    return text if len(text) <= _TEXT_CHARACTERS_MAX else text[: _TEXT_CHARACTERS_MAX - 1] + "…"


def _places(finding: Finding) -> Iterator[str]:
    """Where two frames differ, by JSON path."""
    record, wanted = finding.record, finding.wanted
    if record is None or wanted is None or record.kind != wanted.kind:
        return
    recorded, replayed = frame_of(record), wanted.body
    if recorded is None or replayed is None:
        return
    for path, left, right in json_difference(recorded, replayed)[:_PLACES_MAX]:
        yield f"  changed:  {path}: {_shown(left)} became {_shown(right)}"


def _shown(value: object) -> str:
    return "nothing" if value is msgspec.UNSET else _text(msgspec.json.encode(value))


def _meaning(finding: Finding) -> str:
    record, wanted = finding.record, finding.wanted
    if finding.problem:
        return "the replay cannot go on"
    if finding.missing is not None:
        return "the session did something here that was taken out of the file"
    if record is None or (wanted is not None and wanted.kind is None):
        return "the code now does something more than it did when recorded"
    if wanted is None:
        return f"the code no longer comes to the {_doing(record.kind)} recorded here"
    if (record.kind, record.lane) != (wanted.kind, wanted.lane):
        return f"the code now does a {_doing(wanted.kind)} here instead"
    if record.ordinal != wanted.ordinal:
        return "the lane has done more or fewer operations than when recorded"
    return "the code now does this with something else in it: see what changed"


def _doing(kind: str | None) -> str:
    return _DOINGS.get(kind or "", str(kind))


def _parked(waiting: Mapping[str, str]) -> str:
    return ", ".join(f"{lane} {site}".rstrip() for lane, site in waiting.items()) or "nothing"
