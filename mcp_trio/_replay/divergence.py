"""Divergences: the difference between a recorded and a replayed operation, and its report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import attrs
import msgspec

from mcp_trio._journal.diff import json_differences
from mcp_trio._journal.records import Record, body_bytes
from mcp_trio._journal.redaction import Redactor
from mcp_trio._replay.trace import (
    LaneKey,
    Trace,
    call_text,
    is_immediate,
    key_of,
    lane_text,
    request_data,
    seconds_of,
)
from mcp_trio._session.nondeterminism import UntrackedCall, calls_at_import
from mcp_trio.errors import ReplayDivergence

# Operations of these kinds are the same if they have the same name, whatever their arguments.
_NAMED_KINDS: Final = frozenset({"cmd", "val", "mark"})

# The kind of a divergence between operations of one kind and label; "frame" for all others.
_CHANGE_KINDS: Final = {"cmd": "argument", "val": "argument"}

_RESPONSE: Final = "response"


@attrs.frozen(kw_only=True)
class Operation:
    """An operation that the replay performed, or wants to perform.

    Attributes:
        kind: The kind of the record that it would have; None if the lane still waits for its turn,
            so that its next operation is unknown.
        lane: The lane that performs it; None for the dispatcher.
        ordinal: Its number in the lane.
        body: The body of its record.
        location: The source location of its call.
    """

    kind: str | None
    lane: LaneKey | None
    ordinal: int | None = None
    body: bytes | None = None
    location: str = ""


@attrs.frozen(kw_only=True)
class Finding:
    """A divergence at `trace.journal[index]`, or after the last record.

    Attributes:
        trace: The trace of the recording.
        index: The index of the record at which the replay diverged.
        operation: The operation of the replay; None if every task waits.
        problem: An error that belongs to no record.
        suspended: For each other lane the location at which it waits.
        untracked_calls: The calls so far that bypassed the context.
        is_strict: Whether all records are compared, not only what is sent.
        redactor: The redactor of a redacted recording.
    """

    trace: Trace
    index: int
    operation: Operation | None = None
    problem: str = ""
    suspended: Mapping[str, str] = attrs.field(factory=dict[str, str])
    untracked_calls: Sequence[UntrackedCall] = ()
    is_strict: bool = True
    redactor: Redactor | None = None

    @property
    def missing(self) -> int | None:
        """The number of the first record that is missing from the file here, if any is."""
        return self.trace.missing.get(self.index)

    @property
    def record(self) -> Record | None:
        """The record at the index; None if it is missing, or if no more records follow."""
        journal = self.trace.journal
        is_recorded = self.missing is None and self.index < len(journal)
        return journal[self.index] if is_recorded else None

    @property
    def number(self) -> int:
        """The number of the record that differs."""
        if self.missing is not None:
            return self.missing
        return self.total if self.record is None else self.record.number

    @property
    def total(self) -> int:
        """The number of records in the recording."""
        journal = self.trace.journal
        return journal[-1].number + 1 if journal else 1

    @property
    def lane(self) -> LaneKey | None:
        """The lane that differs: that of the record, or of an additional operation."""
        journal = self.trace.journal
        at_index = journal[self.index] if self.index < len(journal) else None
        recorded = None if at_index is None or at_index.lane is None else key_of(at_index)
        acting = None if self.operation is None else self.operation.lane
        is_additional = self.record is None or (
            self.operation is not None and self.operation.kind is None
        )
        return (acting or recorded) if is_additional else (recorded or acting)

    @property
    def kind(self) -> str:
        """One of the kinds of `ReplayDivergence`."""
        record, operation, lane = self.record, self.operation, self.lane
        if self.problem:
            return "problem"
        if any(each.is_outside and lane and each.lane == lane[1] for each in self.untracked_calls):
            return "blocked"
        if self.missing is not None:
            return "extra"
        if operation is None:
            is_cancellation = record is not None and record.kind == "cxl"
            return "uncancelled" if is_cancellation else "missing"
        if record is None or operation.kind is None:
            return "extra"
        is_recorded_later = self._is_recorded_later(operation)
        if operation.lane == lane:
            if is_recorded_later:
                return "missing"
            if record.kind == "cxl":
                return "uncancelled"
            if skips(operation, record):
                return "missing"
            if has_same_label(record, operation):
                if self._differs_in_secrets_only(record, operation):
                    return "redacted"
                return _CHANGE_KINDS.get(record.kind, "frame")
        return "order" if is_recorded_later else "extra"

    def _differs_in_secrets_only(self, record: Record, operation: Operation) -> bool:
        recorded, replayed = body_bytes(record), operation.body
        if self.redactor is None or recorded is None or replayed is None:
            return False
        texts = [str(left) for _, left, _ in json_differences(recorded, replayed)]
        return bool(texts) and all(map(self.redactor.knows, texts))

    def _is_recorded_later(self, operation: Operation) -> bool:
        """Return whether a later record of the same lane has the same kind and body."""
        trace = self.trace
        if operation.lane is None:
            indexes: Sequence[int] = range(len(trace.journal))
        else:
            indexes = trace.indexes.get(operation.lane, ())
        wanted = (operation.kind, operation.body)
        return any(
            index > self.index and _kind_and_body(trace.journal[index]) == wanted
            for index in indexes
        )


def _kind_and_body(record: Record) -> tuple[str, bytes | None]:
    return record.kind, body_bytes(record)


def skips(operation: Operation, record: Record) -> bool:
    """Return whether a lane has skipped a record, because its operation can only come later.

    A lane reads values in the step that leads to its next call, and sends a response at its end.
    """
    if is_immediate(record) and operation.kind not in {"val", "mark"}:
        return True
    return _is_response(operation.kind, operation.body) and not _is_response(
        *_kind_and_body(record)
    )


def _is_response(kind: str | None, body: bytes | None) -> bool:
    return kind == "out" and label_of(kind, body) == _RESPONSE


def has_same_label(record: Record, operation: Operation) -> bool:
    """Return whether a record and an operation differ in their values only."""
    if record.kind != operation.kind:
        return False
    return label_of(*_kind_and_body(record)) == label_of(operation.kind, operation.body)


class _Labels(msgspec.Struct):
    method: str = _RESPONSE
    name: str = ""


def label_of(kind: str | None, body: bytes | None) -> str:
    """Return the method of a message, or the name of an effect, of a value or of a mark."""
    try:
        labels = msgspec.json.decode(body or b"{}", type=_Labels)
    except (ValueError, RecursionError):
        return ""
    return labels.method if kind == "out" else labels.name if kind in _NAMED_KINDS else ""


# The report ---------------------------------------------------------------------------------------

_TEXT_CHARACTERS_MAX: Final = 160
_DIFFERENCES_MAX: Final = 5

_OPERATIONS: Final = {
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

# The kinds of divergences that can come from code that still sends the same messages.
_REFACTORING_KINDS: Final = frozenset({"missing", "extra", "argument", "order"})


def describe(finding: Finding) -> ReplayDivergence:
    """Return the error that reports a finding: its record, the replay, a likely cause, remedies."""
    record, operation, lane = finding.record, finding.operation, finding.lane
    recorded, replayed = _recorded(finding), _replayed(finding)
    hint = _HINTS[finding.kind](finding) + _concurrency_hint(finding)
    waiting = ", ".join(f"{name} {site}".rstrip() for name, site in finding.suspended.items())
    rows = [
        ("recorded", recorded),
        ("replay", replayed),
        *(("changed", change) for change in _changes(finding)),
        ("meaning", hint),
        ("waiting", waiting or "no other lane"),
        *(("untracked", str(untracked_call)) for untracked_call in finding.untracked_calls),
        *(("untracked", str(untracked_call)) for untracked_call in calls_at_import()),
        *(("file", note) for note in finding.trace.notes),
        ("choose", " | ".join(_remedies(finding))),
    ]
    ordinal = None if record is None else record.ordinal
    if ordinal is None and operation is not None:
        ordinal = operation.ordinal
    return ReplayDivergence(
        "\n".join([_headline(finding), *(f"  {label + ':':<11}{text}" for label, text in rows)]),
        record=finding.number,
        lane=None if lane is None else lane[1],
        kind=finding.kind,
        offset_seconds=0.0 if record is None else seconds_of(record),
        ordinal=ordinal,
        recorded=recorded,
        replayed=replayed,
        hint=hint,
        suspended=finding.suspended,
        untracked_calls=finding.untracked_calls,
    )


def _headline(finding: Finding) -> str:
    record, lane = finding.record, finding.lane
    text = f"replay diverged at record {finding.number} of {finding.total}"
    if record is not None:
        text += f" (+{seconds_of(record) * 1000:.1f} ms)"
    if lane is not None:
        call = call_text(request_data(finding.trace.journal, lane[1]))
        text += f", {call and f'{call}, '}lane {lane_text(lane)}"
        if record is not None and record.lane == lane[1]:
            text += f", operation {record.ordinal}"
    return text


def _recorded(finding: Finding) -> str:
    if finding.missing is not None:
        return "missing from the file"
    if finding.record is None:
        return "no more records"
    return f"{finding.record.kind:<5} {_body_text(body_bytes(finding.record))}".rstrip()


def _replayed(finding: Finding) -> str:
    operation = finding.operation
    if finding.problem:
        return finding.problem
    if operation is None:
        return "no operation: every task waits for something else"
    kind = operation.kind or "another operation"
    lane = f" by lane {lane_text(operation.lane)}" if operation.lane else ""
    ordinal = f", operation {operation.ordinal}" if operation.ordinal is not None else ""
    location = f"  {operation.location}" if operation.location else ""
    return f"{kind:<5} {_body_text(operation.body)}{lane}{ordinal}{location}"


def _body_text(body: bytes | None) -> str:
    text = "" if body is None else body.decode("utf-8", "replace")
    return text if len(text) <= _TEXT_CHARACTERS_MAX else text[: _TEXT_CHARACTERS_MAX - 1] + "…"


def _changes(finding: Finding) -> Iterator[str]:
    """Yield the JSON paths at which the two bodies differ, if they are of one kind."""
    record, operation = finding.record, finding.operation
    if record is None or operation is None or record.kind != operation.kind:
        return
    recorded, replayed = body_bytes(record), operation.body
    if recorded is None or replayed is None:
        return
    differences = json_differences(recorded, replayed)
    if record.kind == "val":  # the replay has the arguments of a reading, but not its value
        differences = [each for each in differences if each[0] != "$.value"]
    for path, left, right in differences[:_DIFFERENCES_MAX]:
        yield f"{path}: {_value_text(left)} became {_value_text(right)}"


def _value_text(value: object) -> str:
    return "nothing" if value is msgspec.UNSET else _body_text(msgspec.json.encode(value))


# Hints.


def _missing_hint(finding: Finding) -> str:
    assert finding.record is not None
    operation = _operation_text(finding.record.kind)
    if finding.operation is not None:
        return f"the code no longer does the {operation} recorded here, or does it later"
    return f"the code no longer reaches the {operation} recorded here"


def _extra_hint(finding: Finding) -> str:
    record, operation = finding.record, finding.operation
    if finding.missing is not None:
        return "the record of an operation performed here was removed from the file"
    if record is None or operation is None or operation.kind is None:
        return "the code now performs an operation that is not in the recording"
    name = label_of(operation.kind, operation.body)
    text = _operation_text(operation.kind)
    if name and operation.kind != "out":
        text += f" {name!r}"
    return f"the code did not do this {text} here when recorded"


def _uncancelled_hint(finding: Finding) -> str:
    if finding.operation is None:
        return "the code no longer reaches the cancellation recorded here"
    return "the code continues where it was cancelled in the recording: was a timeout removed?"


def _changed_hint(finding: Finding) -> str:
    record, operation = finding.record, finding.operation
    assert record is not None and operation is not None  # noqa: PT018  of two things that differ
    if finding.is_strict and record.ordinal != operation.ordinal:
        return "the lane has performed more or fewer operations than were recorded"
    return (
        "the code now performs this operation with different values: compare the two records above"
    )


_HINTS: Final[Mapping[str, Callable[[Finding], str]]] = {
    "missing": _missing_hint,
    "extra": _extra_hint,
    "argument": _changed_hint,
    "frame": _changed_hint,
    "uncancelled": _uncancelled_hint,
    "order": lambda _: "the code now performs the same operations in a different order",
    "redacted": lambda _: "the code depends on a value that was redacted in the recording",
    "blocked": lambda _: (
        "the code used external I/O without its context, which a replay cannot provide"
    ),
    "problem": lambda _: "the replay cannot continue",
}


def _concurrency_hint(finding: Finding) -> str:
    count = finding.trace.concurrent_sessions
    if not count:
        return ""
    sessions = "other session was" if count == 1 else "other sessions were"
    return (
        f"; {count} {sessions} open at the same time: memory that sessions share is not in this"
        " file, so record such sessions together with SharedRecording"
    )


def _operation_text(kind: str) -> str:
    return _OPERATIONS.get(kind, kind)


# Remedies.


def _remedies(finding: Finding) -> Iterator[str]:
    is_refactoring = finding.kind in _REFACTORING_KINDS
    yield "fix the code"
    if is_refactoring and finding.missing is None and finding.lane is not None:
        operation = finding.operation
        name = "" if operation is None else label_of(operation.kind, operation.body)
        patch = name if name.isidentifier() else "change"
        yield f'guard the change with ctx.patched("{patch}")'
    yield "record the session again"
    if is_refactoring and finding.is_strict:
        yield 'replay(mode="outbound")'
