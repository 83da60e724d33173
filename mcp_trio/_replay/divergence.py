"""What a divergence looks like to the person who has to do something about it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from mcp_trio._errors import ReplayDivergence
from mcp_trio._journal.frames import json_difference
from mcp_trio._journal.records import frame_of
from mcp_trio._replay.finding import Finding, Wanted, label_of
from mcp_trio._replay.messages import call_text
from mcp_trio._replay.score import Key, request_frame, seconds_of
from mcp_trio._replay.waiting import name_of

_TEXT_CHARACTERS_MAX: Final = 160
_PLACES_MAX: Final = 5
_DOINGS: Final = {
    "out": "send",
    "cmd": "effect",
    "cxl": "cancellation, or end without an answer,",
    "res": "resumption with a value",
    "err": "resumption with an error",
    "val": "reading",
    "mark": "mark",
    "shut": "shutdown",
    "end": "end of the session",
}

# What may differ when the code behind the frames was rearranged.
_OF_EFFECTS: Final = frozenset({"missing", "extra", "argument", "order"})


def describe(finding: Finding) -> ReplayDivergence:
    """The error that says where, what was recorded, what the replay did, and what can be done."""
    hint = _HINTS[finding.kind](finding) + _beside(finding)
    recorded, replayed = _recorded(finding), _replayed(finding)
    lines = [
        _headline(finding),
        f"  recorded: {recorded}",
        f"  replay:   {replayed}",
        *_places(finding),
        f"  meaning:  {hint}",
        f"  parked:   {_parked(finding.waiting)}",
        *(f"  stray:    {stray}" for stray in finding.strays),
        *(f"  file:     {note}" for note in finding.score.notes),
        f"  choose:   {' | '.join(_choices(finding))}",
    ]
    record, lane = finding.record, finding.lane
    return ReplayDivergence(
        "\n".join(lines),
        record=finding.number,
        lane=None if lane is None else lane[1],
        kind=finding.kind,
        offset_seconds=0.0 if record is None else seconds_of(record),
        ordinal=_ordinal(finding),
        recorded=recorded,
        replayed=replayed,
        hint=hint,
        parked=finding.waiting,
        strays=finding.strays,
    )


def _ordinal(finding: Finding) -> int | None:
    record, wanted = finding.record, finding.wanted
    if record is not None and record.ordinal is not None:
        return record.ordinal
    return None if wanted is None else wanted.ordinal


def _headline(finding: Finding) -> str:
    record, lane = finding.record, finding.lane
    text = f"replay diverged at record {finding.number} of {finding.total}"
    if record is not None:
        text += f" (+{seconds_of(record) * 1000:.1f} ms)"
    if lane is not None:
        text += f", {_request_text(finding, lane)}lane {name_of(lane)}"
        if record is not None and record.lane == lane[1]:
            text += f", operation {record.ordinal}"
    return text


def _request_text(finding: Finding, lane: Key) -> str:
    text = call_text(request_frame(finding.score.journal, lane[1]))
    return text and f"{text}, "


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
    who = f" by lane {name_of(wanted.lane)}" if wanted.lane else ""
    operation = f", operation {wanted.ordinal}" if wanted.ordinal is not None else ""
    site = f"  {wanted.site}" if wanted.site else ""
    return f"{what:<5} {_text(wanted.body)}{who}{operation}{site}"


def _text(body: bytes | None) -> str:
    text = "" if body is None else body.decode("utf-8", "replace")
    return text if len(text) <= _TEXT_CHARACTERS_MAX else text[: _TEXT_CHARACTERS_MAX - 1] + "…"


def _places(finding: Finding) -> Iterator[str]:
    """Where two bodies differ, by JSON path."""
    for path, left, right in differences(finding)[:_PLACES_MAX]:
        yield f"  changed:  {path}: {_shown(left)} became {_shown(right)}"


def differences(finding: Finding) -> list[tuple[str, Any, Any]]:
    """Where what was recorded and what came instead differ, if they are of one kind."""
    record, wanted = finding.record, finding.wanted
    if record is None or wanted is None or record.kind != wanted.kind:
        return []
    recorded, replayed = frame_of(record), wanted.body
    if recorded is None or replayed is None:
        return []
    places = json_difference(recorded, replayed)
    # What was asked for is compared; what was answered, only the recording knows.
    return [place for place in places if record.kind != "val" or place[0] != "$.value"]


def _shown(value: object) -> str:
    return "nothing" if value is msgspec.UNSET else _text(msgspec.json.encode(value))


# What it means.


def _missing_hint(finding: Finding) -> str:
    assert finding.record is not None
    if finding.wanted is not None:
        return (
            f"the code does not do the {_doing(finding.record.kind)} recorded here: no longer, or"
            " later than it did"
        )
    return f"the code no longer comes to the {_doing(finding.record.kind)} recorded here"


def _extra_hint(finding: Finding) -> str:
    record, wanted = finding.record, finding.wanted
    if finding.missing is not None:
        return "the session did something here that was taken out of the file"
    if record is None or wanted is None or wanted.kind is None:
        return "the code now does something more than it did when recorded"
    name = label_of(wanted.kind, wanted.body)
    what = _doing(wanted.kind) + (f" {name!r}" if name and wanted.kind != "out" else "")
    return f"the code did not do this {what} here when recorded"


def _cancelled_hint(finding: Finding) -> str:
    """A cancellation that does not come, or an end that comes too early."""
    if finding.wanted is None:
        return "the code no longer comes to the cancellation recorded here"
    return "the code goes on where it was cancelled when recorded: was a timeout removed?"


def _frame_hint(finding: Finding) -> str:
    record, wanted = finding.record, finding.wanted
    assert record is not None and wanted is not None  # noqa: PT018  of two things that differ
    if finding.is_strict and record.ordinal != wanted.ordinal:
        return "the lane has done more or fewer operations than when recorded"
    return "the code now does this with something else in it: see what changed"


_HINTS: Final[Mapping[str, Callable[[Finding], str]]] = {
    "missing": _missing_hint,
    "extra": _extra_hint,
    "argument": _frame_hint,
    "frame": _frame_hint,
    "uncancelled": _cancelled_hint,
    "order": lambda _: "the code now does the same things in another order",
    "redacted": lambda _: (
        "the code depends on a value that was taken out of the recording: see what changed"
    ),
    "blocked": lambda _: (
        "the code reached past its context for the outside world, which a replay has none of"
    ),
    "problem": lambda _: "the replay cannot go on",
}


def _beside(finding: Finding) -> str:
    """Whose doing it may be as well."""
    others = finding.score.sessions_beside
    if not others:
        return ""
    sessions = "other session was" if others == 1 else "other sessions were"
    return (
        f"; {others} {sessions} open beside it: memory that they share is not in this file, record"
        " them together by SharedRecording"
    )


def _doing(kind: str | None) -> str:
    return _DOINGS.get(kind or "", str(kind))


def _parked(waiting: Mapping[str, str]) -> str:
    return ", ".join(f"{lane} {site}".rstrip() for lane, site in waiting.items()) or "nothing"


# What can be done.


def _choices(finding: Finding) -> Iterator[str]:
    yield "fix the code"
    if finding.kind in _OF_EFFECTS and _is_of_code(finding):
        yield f'guard the change with ctx.patched("{_patch_name(finding.wanted)}")'
    yield "record the session again"
    if finding.kind in _OF_EFFECTS and finding.is_strict:
        yield 'replay(mode="outbound")'


def _is_of_code(finding: Finding) -> bool:
    return finding.missing is None and finding.lane is not None


def _patch_name(wanted: Wanted | None) -> str:
    name = "" if wanted is None else label_of(wanted.kind, wanted.body)
    return name if name.isidentifier() else "change"
