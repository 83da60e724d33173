"""Divergences: how they are found, and the report."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec
import trio

from mcp_trio._journal.diff import json_differences
from mcp_trio._journal.records import Record, body_bytes
from mcp_trio._journal.redaction import Redactor
from mcp_trio._replay.source_locations import is_alive, site_here, site_of
from mcp_trio._replay.trace import (
    Key,
    Trace,
    call_text,
    is_in_passing,
    key_of,
    request_frame,
    request_of,
    seconds_of,
)
from mcp_trio._session.nondeterminism import UntrackedCall
from mcp_trio.errors import ReplayDivergence

# --------------------
# Which lanes wait, for what, and at which line of people's code.


@attrs.define(eq=False)
class Suspended:
    """A lane that waits for its turn.

    `at_start` says that its handler has not begun. `due` is the place in the journal from which it
    may go on; None: it waits for a record of its own. `ordinal` is that of its operation before,
    `since` when it came here.
    """

    key: Key
    ordinal: int
    at_start: bool = False
    due: float | None = None
    since: float = attrs.field(factory=trio.current_time, init=False)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    turn: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False)
class Doomed:
    """A lane that waits for the cancellation that its record promises."""

    deadline: float
    woken: trio.Event = attrs.field(factory=trio.Event, init=False)


@attrs.define(eq=False)
class Waiting:
    """The lanes of a replay: those that wait, and where each of them was seen last.

    `arrivals` tells when a lane came to what its recording lacks, by the ordinal of its operation
    before that, if nothing had cancelled it by then. `let_go` are lanes that may be cancelled at a
    call which they never made. Before the place `spent_from` in the journal, nobody waits who has
    no turn left.
    """

    suspended: dict[Key, Suspended] = attrs.field(factory=dict[Key, Suspended], init=False)
    doomed: dict[Key, Doomed] = attrs.field(factory=dict[Key, Doomed], init=False)
    tasks: dict[Key, trio.lowlevel.Task] = attrs.field(
        factory=dict[Key, trio.lowlevel.Task], init=False
    )
    sites: dict[Key, str] = attrs.field(factory=dict[Key, str], init=False)
    arrivals: dict[tuple[Key, int], float] = attrs.field(
        factory=dict[tuple[Key, int], float], init=False
    )
    let_go: set[Key] = attrs.field(factory=set[Key], init=False)
    spent_from: float = attrs.field(default=math.inf, init=False)

    def see(self, lane: Key) -> None:
        """The calling task acts for a lane."""
        self.tasks[lane] = trio.lowlevel.current_task()
        self.sites[lane] = site_here() or self.sites.get(lane, "")

    async def suspend(self, suspended: Suspended, *, shield: bool) -> None:
        """Wait until `give_turn`, or until all are woken."""
        self.suspended[suspended.key] = suspended
        suspended.scope.shield = shield
        with suspended.scope:
            try:
                await suspended.turn.wait()
            finally:
                self.suspended.pop(suspended.key, None)

    def note_arrival(self, lane: Key, ordinal: int) -> bool:
        """The calling task comes to what is not recorded; returns whether it is not cancelled."""
        now = trio.current_time()
        is_free = trio.current_effective_deadline() > now
        if is_free:
            self.arrivals.setdefault((lane, ordinal), now)
        return is_free

    def has_arrived(self, lane: Key, before: float) -> bool:
        """Return whether a lane came to what is not recorded, before a time."""
        return any(key == lane and time < before for (key, _), time in self.arrivals.items())

    def first_arrival(self, request: Key) -> float | None:
        """When a request, or a task below it, first came to what is not recorded."""
        times = (time for (lane, _), time in self.arrivals.items() if request_of(lane) == request)
        return min(times, default=None)

    async def until_cancelled(self, lane: Key) -> None:
        """Wait for a cancellation; returns only if all are woken."""
        doomed = Doomed(trio.current_effective_deadline())
        self.doomed[lane] = doomed
        try:
            await doomed.woken.wait()
        finally:
            del self.doomed[lane]

    def give_turn(self, lane: Key) -> None:
        """Let a lane go on, if it waits for its turn."""
        suspended = self.suspended.pop(lane, None)
        if suspended is not None:
            suspended.turn.set()

    def wake_all(self) -> None:
        """The replay is over."""
        for suspended in self.suspended.values():
            suspended.turn.set()
        for doomed in self.doomed.values():
            doomed.woken.set()

    def where(self) -> dict[str, str]:
        """For each lane but the calling one, the line at which it waits."""
        return {
            name_of(key): site_of(task) + (" (for its turn)" if key in self.suspended else "")
            for key, task in self.tasks.items()
            if is_alive(task) and task is not trio.lowlevel.current_task()
        }


def name_of(lane: Key) -> str:
    """How a lane is called: by its name, and by its session if the file is of several."""
    channel, name = lane
    return name if channel == 0 else f"{name} of session {channel}"


# --------------------
# A divergence as it was found: what is recorded, what came instead, and of which kind that is.


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
    `waiting` says where each lane waits, `untracked_calls` which calls went past the context.
    `redactor` tells what was taken out of the recording.
    """

    trace: Trace
    place: int
    wanted: Wanted | None = None
    problem: str = ""
    waiting: Mapping[str, str] = attrs.field(factory=dict[str, str])
    untracked_calls: Sequence[UntrackedCall] = ()
    is_strict: bool = True
    redactor: Redactor | None = None

    @property
    def missing(self) -> int | None:
        """The number of the record that should stand here, if the file lacks one."""
        return self.trace.missing.get(self.place)

    @property
    def record(self) -> Record | None:
        """What is recorded here; None if that is missing, or nothing more is recorded."""
        journal = self.trace.journal
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
        journal = self.trace.journal
        return journal[-1].number + 1 if journal else 1

    @property
    def lane(self) -> Key | None:
        """Who differs: the lane that was recorded here, or the one that does something more."""
        is_surplus = self.record is None or (self.wanted is not None and self.wanted.kind is None)
        journal = self.trace.journal
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
        return any(s.is_outside and lane and s.lane == lane[1] for s in self.untracked_calls)

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
        """Return whether they differ at the places of redacted values only."""
        recorded, replayed = body_bytes(record), wanted.body
        if self.redactor is None or recorded is None or replayed is None:
            return False
        places = json_differences(recorded, replayed)
        texts = [str(left) for _, left, _ in places]
        return bool(texts) and all(map(self.redactor.knows, texts))

    def _comes_later(self, wanted: Wanted) -> bool:
        """Return whether the same thing is recorded of the same lane further on."""
        trace = self.trace
        everywhere = range(len(trace.journal))
        places = everywhere if wanted.lane is None else trace.places.get(wanted.lane, ())
        return any(p > self.place and is_same(trace.journal[p], wanted) for p in places)


def is_same(record: Record, wanted: Wanted) -> bool:
    """Return whether a record holds what is wanted, whatever its ordinal."""
    return _said(record) == (wanted.kind, wanted.body)


def is_left_out(record: Record, wanted: Wanted) -> bool:
    """Whether a lane has gone past what is recorded: nothing can come between them, or it ends."""
    is_read = is_in_passing(record) and wanted.kind not in {"val", "mark"}
    return is_read or (is_answer(wanted.kind, wanted.body) and not is_answer(*_said(record)))


def is_answer(kind: str | None, body: bytes | None) -> bool:
    """Return whether something sent is the end of a request."""
    return kind == "out" and label_of(kind, body) == _ANSWER


def _said(record: Record) -> tuple[str, bytes | None]:
    return record.kind, body_bytes(record)


def is_alike(record: Record, wanted: Wanted) -> bool:
    """Return whether the same thing is done with something else in it."""
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
        f"  parked:   {_suspended(finding.waiting)}",
        *(f"  stray:    {untracked_call}" for untracked_call in finding.untracked_calls),
        *(f"  file:     {note}" for note in finding.trace.notes),
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
        suspended=finding.waiting,
        untracked_calls=finding.untracked_calls,
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
    text = call_text(request_frame(finding.trace.journal, lane[1]))
    return text and f"{text}, "


def _recorded(finding: Finding) -> str:
    if finding.missing is not None:
        return "missing from the file"
    if finding.record is None:
        return "nothing more"
    return f"{finding.record.kind:<5} {_text(body_bytes(finding.record))}".rstrip()


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
    recorded, replayed = body_bytes(record), wanted.body
    if recorded is None or replayed is None:
        return []
    places = json_differences(recorded, replayed)
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
        return "the record of an operation performed here was removed from the file"
    if record is None or wanted is None or wanted.kind is None:
        return "the code now performs an operation that is not in the recording"
    name = label_of(wanted.kind, wanted.body)
    what = _doing(wanted.kind) + (f" {name!r}" if name and wanted.kind != "out" else "")
    return f"the code did not do this {what} here when recorded"


def _cancelled_hint(finding: Finding) -> str:
    """A cancellation that does not come, or an end that comes too early."""
    if finding.wanted is None:
        return "the code no longer comes to the cancellation recorded here"
    return "the code continues where it was cancelled in the recording: was a timeout removed?"


def _frame_hint(finding: Finding) -> str:
    record, wanted = finding.record, finding.wanted
    assert record is not None and wanted is not None  # noqa: PT018  of two things that differ
    if finding.is_strict and record.ordinal != wanted.ordinal:
        return "the lane has performed more or fewer operations than were recorded"
    return (
        "the code now performs this operation with different values: compare the two records above"
    )


_HINTS: Final[Mapping[str, Callable[[Finding], str]]] = {
    "missing": _missing_hint,
    "extra": _extra_hint,
    "argument": _frame_hint,
    "frame": _frame_hint,
    "uncancelled": _cancelled_hint,
    "order": lambda _: "the code now performs the same operations in a different order",
    "redacted": lambda _: "the code depends on a value that was redacted in the recording",
    "blocked": lambda _: (
        "the code used external I/O without its context, which a replay cannot provide"
    ),
    "problem": lambda _: "the replay cannot go on",
}


def _beside(finding: Finding) -> str:
    """Whose doing it may be as well."""
    others = finding.trace.sessions_beside
    if not others:
        return ""
    sessions = "other session was" if others == 1 else "other sessions were"
    return (
        f"; {others} {sessions} open beside it: memory that they share is not in this file, record"
        " them together by SharedRecording"
    )


def _doing(kind: str | None) -> str:
    return _DOINGS.get(kind or "", str(kind))


def _suspended(waiting: Mapping[str, str]) -> str:
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
