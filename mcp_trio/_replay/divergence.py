"""Divergences: where a replay differs from its recording, and the report on it.

The replayer makes a `Divergence` at the record at which the replay differs: with that record, with
the `Operation` that the replay performs in its place, and with what all other lanes wait for. Its
properties classify the difference (`Divergence.kind`). `divergence_error` makes the error that
users see. The tables below have the texts for each kind (`_MEANINGS`), and the causes that a
difference may have (`CAUSES`, `POSSIBLE_CAUSES`), each found by a function of its own.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mcp_trio._journal.conversation import members_of
from mcp_trio._journal.diff import JsonDifference, json_differences
from mcp_trio._journal.records import (
    FOREIGN_CLOCK,
    Record,
    ValueBody,
    body_bytes,
    decode_body,
    encode_body,
)
from mcp_trio._journal.redaction import Redactor
from mcp_trio._journal.texts import excerpts, json_text, shortened, tool_text
from mcp_trio._recorder.clock import seconds_of
from mcp_trio._replay.source_locations import source_of
from mcp_trio._replay.trace import (
    LaneKey,
    Trace,
    call_text,
    is_immediate,
    key_of,
    lane_text,
    request_data,
    request_lane,
    request_lane_name,
)
from mcp_trio._server.effects import LIFESPAN
from mcp_trio._session.handlers import CRASH_TEXT
from mcp_trio._session.recorded_errors import losses
from mcp_trio._session.untracked_calls import UntrackedCall, calls_at_import
from mcp_trio.errors import INTERNAL_ERROR, ReplayDivergence

# Operations of these kinds are the same if they have the same name, whatever their arguments.
_NAMED_KINDS: Final = frozenset({"cmd", "val", "mark"})

# Operations of these kinds can be exchanged: one may take the outcome that another one recorded.
_EXCHANGEABLE_KINDS: Final = frozenset({"cmd", "out", "val"})

_RESPONSE: Final = "response"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that the replay performed, or wants to perform.

    Attributes:
        kind: The kind of the record that it would have; None if the lane still waits for its turn,
            so that its next operation is unknown.
        lane: The lane that performs it; None for the dispatcher.
        has_waited: False if the recorded lane waited before it, and this one did not.
        limits: The time limits that have cancelled an effect, in seconds, if they differ: the
            recorded one and that of the replay.
        failure: The exception that the handler has raised, in one line.
    """

    kind: str | None
    lane: LaneKey | None
    ordinal: int | None = None
    body: bytes | None = None
    location: str = ""
    has_waited: bool = True
    limits: tuple[float, float] | None = None
    failure: str = ""


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """A divergence at `trace.journal[index]`, or after the last record.

    Attributes:
        operation: The operation of the replay; None if every task waits.
        problem: An error that belongs to no record.
        suspended: For each other lane the location at which it waits.
        list_change: The change since the recording of what the request uses, such as `the tool
            "sell" was changed`; empty if there is none.
        is_strict: Whether all records are compared, not only what is sent.
    """

    trace: Trace
    index: int
    operation: Operation | None = None
    problem: str = ""
    suspended: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    untracked_calls: Sequence[UntrackedCall] = ()
    list_change: str = ""
    is_strict: bool = True
    redactor: Redactor | None = None

    @property
    def missing_number(self) -> int | None:
        """The number of the first record that is missing from the file here, if any is."""
        return self.trace.missing.get(self.index)

    @property
    def record(self) -> Record | None:
        """The record at the index; None if it is missing, or if no more records follow."""
        journal = self.trace.journal
        is_recorded = self.missing_number is None and self.index < len(journal)
        return journal[self.index] if is_recorded else None

    @property
    def number(self) -> int:
        if self.missing_number is not None:
            return self.missing_number
        return self.total if self.record is None else self.record.number

    @property
    def total(self) -> int:
        journal = self.trace.journal
        return journal[-1].number + 1 if journal else 1

    @property
    def lane(self) -> LaneKey | None:
        """The lane that the report names: that of the record, or else that of the operation.

        If there is no record, or the next operation of a lane is not known yet, it is that of the
        operation first, because the operation is additional.
        """
        journal = self.trace.journal
        at_index = journal[self.index] if self.index < len(journal) else None
        recorded = None if at_index is None or at_index.lane is None else key_of(at_index)
        acting = None if self.operation is None else self.operation.lane
        is_additional = self.record is None or (
            self.operation is not None and self.operation.kind is None
        )
        return (acting or recorded) if is_additional else (recorded or acting)

    @property
    def request_calls(self) -> Sequence[UntrackedCall]:
        return [call for call in self.untracked_calls if self.is_of_request(call.lane)]

    @property
    def blocked_calls(self) -> Sequence[UntrackedCall]:
        """The calls of the request that a replay blocks, because they are external I/O."""
        return [call for call in self.request_calls if call.changes_outside]

    @property
    def acting_lane(self) -> LaneKey | None:
        """The lane whose code differs: that of the operation; without one, that of the record."""
        if self.operation is not None:
            return self.operation.lane
        return None if self.record is None or self.record.lane is None else key_of(self.record)

    @property
    def differs_in_values_only(self) -> bool:
        """True if the operation may take the recorded outcome although it has other values.

        An effect that is cancelled, and was not when recorded, would have another outcome.
        """
        record, operation = self.record, self.operation
        if record is None or operation is None or operation.kind not in _EXCHANGEABLE_KINDS:
            return False
        recorded = None if record.lane is None else key_of(record)
        if operation.lane != recorded or (self.is_strict and record.ordinal != operation.ordinal):
            return False
        if self.later_record is not None or skips(operation, record):
            return False
        is_cancelled = any(path == _CANCELLED for path, _, _ in self.differences)
        return has_same_label(record, operation) and not is_cancelled

    @property
    def kind(self) -> str:
        """One of the kinds of `ReplayDivergence`."""
        record, operation, lane = self.record, self.operation, self.lane
        if self.problem:
            return "problem"
        if self.blocked_calls:
            return "blocked"
        if self.missing_number is not None:
            return "extra"
        if operation is None:
            is_cancellation = record is not None and record.kind == "cxl"
            return "uncancelled" if is_cancellation else "missing"
        if record is None or operation.kind is None:
            return "extra"
        if not operation.has_waited:
            return "missing"
        if operation.limits is not None:
            return "argument"
        is_recorded_later = self.later_record is not None
        if operation.lane == lane:
            if is_recorded_later:
                return "missing"
            if record.kind == "cxl":
                return "uncancelled"
            if skips(operation, record):
                return "missing"
            if has_same_label(record, operation):
                recorded = [str(left) for _, left, _ in self.differences]
                redactor = self.redactor
                if redactor is not None and recorded and all(map(redactor.knows, recorded)):
                    return "redacted"
                return "argument" if record.kind in {"cmd", "val"} else "message"
        return "order" if is_recorded_later else "extra"

    @property
    def differences(self) -> Sequence[JsonDifference]:
        """The differences between the two bodies, if both are of one kind."""
        record, operation = self.record, self.operation
        if record is None or operation is None or record.kind != operation.kind:
            return ()
        recorded, replayed = body_bytes(record), operation.body
        if recorded is None or replayed is None:
            return ()
        differences = json_differences(recorded, replayed)
        if record.kind == "val":  # The replay has the arguments of a reading, but not its value.
            differences = [each for each in differences if each[0] != "$.value"]
        return differences

    @property
    def later_record(self) -> Record | None:
        """The later record of the operation's lane that has its kind and body, if there is one."""
        trace, operation = self.trace, self.operation
        if operation is None:
            return None
        if operation.lane is None:
            indexes: Sequence[int] = range(len(trace.journal))
        else:
            indexes = trace.indexes.get(operation.lane, ())
        wanted = (operation.kind, operation.body)
        later = (trace.journal[index] for index in indexes if index > self.index)
        return next((record for record in later if _kind_and_body(record) == wanted), None)

    def is_of_request(self, lane: str) -> bool:
        """Return whether a lane belongs to the request of the lane that differs."""
        return self.lane is not None and request_lane_name(self.lane[1]) == request_lane_name(lane)


def _kind_and_body(record: Record) -> tuple[str, bytes | None]:
    return record.kind, body_bytes(record)


def skips(operation: Operation, record: Record) -> bool:
    """Return whether a lane has skipped a record, because its operation can only come later.

    A lane reads values in the step that leads to its next call, and sends a response at its end.
    """
    if is_immediate(record) and operation.kind not in {"val", "mark"}:
        return True
    return is_response(operation.kind, operation.body) and not is_response(*_kind_and_body(record))


def is_response(kind: str | None, body: bytes | None) -> bool:
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

# Of longer texts the report shows this much, around the first difference.
_TEXT_CHARS_MAX: Final = 160
_VALUE_CHARS_MAX: Final = 80

# The report shows so many rows of a kind, or lanes in a row; of the others it shows the number.
_DIFFERENCES_MAX: Final = 5
_CAUSES_MAX: Final = 3
_UNTRACKED_MAX: Final = 5
_IMPORT_CALLS_MAX: Final = 5
_WAITING_MAX: Final = 5

_OPERATIONS: Final = {
    "out": "send",
    "cmd": "effect",
    "cxl": "cancellation, or end without a response,",
    "res": "resumption with a value",
    "err": "resumption with an error",
    "val": "reading",
    "mark": "mark",
    "shut": "shutdown",
    "end": "end of the session",
}

# The kinds of divergences that can come from code that still sends the same messages.
_REFACTORING_KINDS: Final = frozenset({"missing", "extra", "argument", "order"})


def divergence_error(*divergences: Divergence) -> ReplayDivergence:
    """Return the error that reports the first divergence, with the later ones in `later`.

    Divergences that differ in the same way, at the same line, share a paragraph of the text.
    """
    keys = [_group_key(divergence) for divergence in divergences]
    errors = list(map(_error_of, divergences, _origins(divergences, keys)))
    first = errors[0]
    first.later = errors[1:]
    if not first.later:
        return first
    alike: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        alike.setdefault(key, []).append(index)
    paragraphs: list[str] = []
    for shown, *others in alike.values():
        rows: list[tuple[str, str]] = []
        for divergence in (divergences[index] for index in others):
            location = _line(divergence).partition(": ")[0]
            rows.append(("also at", f"{_position(divergence)}{location and f', {location}'}"))
        paragraphs.append(report_text(str(errors[shown]), rows))
    requests = {
        request_lane(divergence.acting_lane)
        for divergence in divergences
        if divergence.acting_lane is not None
    }
    in_requests = "1 request" if len(requests) == 1 else f"{len(requests)} requests"
    in_ways = "1 way" if len(alike) == 1 else f"{len(alike)} ways"
    count = f"{len(divergences)} divergences in {in_requests}, in {in_ways}"
    first.args = ("\n\n".join([count, *paragraphs]),)
    return first


def _error_of(divergence: Divergence, origin: tuple[int, str] | None) -> ReplayDivergence:
    record, operation, lane = divergence.record, divergence.operation, divergence.lane
    recorded, replayed = _recorded_and_replayed(divergence)
    meaning = _MEANINGS[divergence.kind](divergence)
    causes = likely_causes(divergence)
    untracked_calls = [*divergence.untracked_calls, *calls_at_import()]
    untracked_calls.sort(key=lambda call: not divergence.is_of_request(call.lane))
    untracked = [*map(str, untracked_calls[:_UNTRACKED_MAX])]
    if len(untracked_calls) > _UNTRACKED_MAX:
        untracked.append(f"and {len(untracked_calls) - _UNTRACKED_MAX} more calls")
    line = _line(divergence)
    is_refactoring = divergence.kind in _REFACTORING_KINDS
    remedies = ["fix the code"]
    if is_refactoring and divergence.missing_number is None and lane is not None:
        is_effect = operation is not None and operation.kind == "cmd"
        name = label_of("cmd", operation.body) if operation is not None and is_effect else ""
        patch = name if name.isidentifier() else "change"
        remedies.append(f'guard the change with ctx.patched("{patch}")')
    remedies.append("record the session again")
    if is_refactoring and divergence.is_strict:
        remedies.append('replay(mode="outbound")')
    rows = [
        ("recorded", recorded),
        ("replay", replayed),
        *((("line", line),) if line else ()),
        *(("changed", change) for change in _changes(divergence)),
        ("meaning", meaning),
        *(("cause", cause) for cause in causes),
        *(() if origin is None else (("follows", origin[1]),)),
        ("waiting", _waiting(divergence)),
        *(("untracked", text) for text in untracked),
        *(("file", note) for note in divergence.trace.notes),
        ("choose", " | ".join(remedies)),
    ]
    ordinal = None if record is None else record.ordinal
    if ordinal is None and operation is not None:
        ordinal = operation.ordinal
    headline = f"replay diverged at {_position(divergence)}"
    return ReplayDivergence(
        report_text(headline, rows),
        record=divergence.number,
        lane=None if lane is None else lane[1],
        kind=divergence.kind,
        offset_seconds=0.0 if record is None else seconds_of(record.time_ns),
        ordinal=ordinal,
        recorded=recorded,
        replayed=f"{replayed}  {operation.location}"
        if operation and operation.location
        else replayed,
        hint=causes[0] if causes else meaning,
        causes=causes,
        suspended=divergence.suspended,
        untracked_calls=divergence.untracked_calls,
        follows=None if origin is None else origin[0],
    )


def report_text(headline: str, rows: Iterable[tuple[str, str]]) -> str:
    """Return a headline, and below it the rows, each with its label."""
    return "\n".join([headline, *(f"  {label + ':':<11}{text}" for label, text in rows)])


# Several divergences.


def _origins(
    divergences: Sequence[Divergence], keys: Sequence[object]
) -> list[tuple[int, str] | None]:
    """Return for each divergence the record of an earlier one from which it may follow, and a text.

    One of another request that differs in the same way, so that their `keys` are equal, has the
    same cause, and does not follow.
    """
    origins: list[tuple[int, str] | None] = []
    by_key: dict[object, tuple[int, str] | None] = {}
    by_request: dict[LaneKey, tuple[int, str]] = {}
    of_first_left_out: tuple[int, str] | None = None
    for each, key in zip(divergences, keys, strict=True):
        lane, number = each.acting_lane, each.number
        request = None if lane is None else request_lane(lane)
        if key not in by_key:
            in_request = None if request is None else by_request.get(request)
            by_key[key] = in_request or of_first_left_out
        origins.append(by_key[key])
        if request is None:
            continue
        text = f"perhaps from record {number}, at which this request diverged"
        by_request[request] = number, text
        if of_first_left_out is None and not each.differs_in_values_only:
            call = call_text(request_data(each.trace.journal, request[1]))
            text = (
                f"perhaps from record {number}: from there on the replay goes on without"
                f" {call and f'{call}, '}lane {lane_text(request)}"
            )
            of_first_left_out = number, text
    return origins


def _group_key(divergence: Divergence) -> object:
    """Return a value that is equal for divergences of requests that differ in the same way."""
    lane, operation = divergence.acting_lane, divergence.operation
    call = "" if lane is None else call_text(request_data(divergence.trace.journal, lane[1]))
    recorded = None if divergence.record is None else label_of(*_kind_and_body(divergence.record))
    replayed = None if operation is None else (operation.kind, operation.location)
    paths = tuple(path for path, _, _ in divergence.differences)
    return call, recorded, replayed, paths, _line(divergence)


def state_text(divergence: Divergence) -> str:
    """Return the next operation of a stopped replay, and all other lanes with their lines."""
    recorded, replayed = _recorded_and_replayed(divergence)
    record, operation, lane = divergence.record, divergence.operation, divergence.lane
    own = "" if lane is None else lane_text(lane)
    is_other = operation is not None and (
        record is None or _kind_and_body(record) != (operation.kind, operation.body)
    )
    line = _line(divergence)
    rows = [
        ("recorded", recorded),
        *((("replay", replayed),) if is_other else ()),
        *((("line", line),) if line else ()),
        *(
            ("waiting", source_of(f"{name} {location}".rstrip()))
            for name, location in divergence.suspended.items()
            if name != own
        ),
    ]
    return report_text(f"stopped at {_position(divergence)}", rows)


def _position(divergence: Divergence) -> str:
    record, lane = divergence.record, divergence.lane
    text = f"record {divergence.number} of {divergence.total}"
    if record is not None:
        text += f" (+{seconds_of(record.time_ns) * 1000:.1f} ms)"
    if lane is not None:
        call = call_text(request_data(divergence.trace.journal, lane[1]))
        text += f", {call and f'{call}, '}lane {lane_text(lane)}"
        if record is not None and record.lane == lane[1] and record.ordinal is not None:
            text += f", operation {record.ordinal}"
    return text


# The recorded and the replayed operation, as texts.


def _recorded_and_replayed(divergence: Divergence) -> tuple[str, str]:
    """Return the two operations; long ones are cut around their first difference."""
    record, operation = divergence.record, divergence.operation
    left = "" if record is None else json_text(body_bytes(record) or b"")
    right = "" if operation is None else json_text(operation.body or b"")
    if record is not None and operation is not None and operation.body is not None:
        left, right = excerpts(left, right, chars_max=_TEXT_CHARS_MAX)
    else:
        left, right = shortened(left, _TEXT_CHARS_MAX), shortened(right, _TEXT_CHARS_MAX)
    if divergence.missing_number is not None:
        recorded = "missing from the file"
    elif record is None:
        recorded = "no more records"
    else:
        recorded = f"{record.kind:<5} {left}".rstrip()
    if divergence.problem:
        replayed = divergence.problem
    elif operation is None:
        replayed = "no operation: every task waits for something else"
    else:
        kind = operation.kind or "another operation"
        lane = f" by lane {lane_text(operation.lane)}" if operation.lane else ""
        ordinal = f", operation {operation.ordinal}" if operation.ordinal is not None else ""
        replayed = f"{kind:<5} {right}{lane}{ordinal}"
    return recorded, replayed


def _line(divergence: Divergence) -> str:
    """Return the line of the user's code that acts, or at which the lane waits; empty if unknown.

    It begins with its source location.
    """
    operation, lane = divergence.operation, divergence.lane
    location = "" if operation is None else operation.location
    if divergence.kind == "blocked":
        location = divergence.blocked_calls[-1].location
    if not location and lane is not None:
        location = divergence.suspended.get(lane_text(lane), "")
    return source_of(location) if location else ""


def _changes(divergence: Divergence) -> Iterator[str]:
    """Yield the JSON paths at which the two bodies differ, if they are of one kind."""
    differences = divergence.differences
    for path, left, right in differences[:_DIFFERENCES_MAX]:
        before, after = excerpts(json_text(left), json_text(right), chars_max=_VALUE_CHARS_MAX)
        yield f"{path}: {before} became {after}"
    if len(differences) > _DIFFERENCES_MAX:
        yield f"and {len(differences) - _DIFFERENCES_MAX} more values"


def _waiting(divergence: Divergence) -> str:
    """Return the other lanes and where they wait; of many lanes, the first ones and a count."""
    own = "" if divergence.lane is None else lane_text(divergence.lane)
    others = (item for item in divergence.suspended.items() if item[0] != own)
    lanes = [f"{name} {location}".rstrip() for name, location in others]
    shown = ", ".join(lanes[:_WAITING_MAX])
    more = len(lanes) - _WAITING_MAX
    if more > 0:
        return f"{shown} and {more} more {'lane' if more == 1 else 'lanes'}"
    return shown or "no other lane"


# The meaning of the difference --------------------------------------------------------------------


def _missing_meaning(divergence: Divergence) -> str:
    assert divergence.record is not None
    operation = _OPERATIONS.get(divergence.record.kind, divergence.record.kind)
    if divergence.record.kind == "in" and divergence.operation is not None:
        return "the code now does this before the message arrives that is recorded here"
    if divergence.operation is not None and not divergence.operation.has_waited:
        return (
            f"the code no longer waits before the {operation} recorded here: was a lock, a sleep or"
            " a checkpoint removed?"
        )
    if divergence.operation is not None:
        return f"the code no longer does the {operation} recorded here, or does it later"
    return f"the code no longer reaches the {operation} recorded here"


def _extra_meaning(divergence: Divergence) -> str:
    record, operation = divergence.record, divergence.operation
    if divergence.missing_number is not None:
        return "the record of an operation performed here was removed from the file"
    if record is None or operation is None or operation.kind is None:
        return "the code now performs an operation that is not in the recording"
    name = label_of(operation.kind, operation.body)
    text = _OPERATIONS.get(operation.kind, operation.kind)
    if name and operation.kind != "out":
        text += f" {name!r}"
    return f"the code did not do this {text} here when recorded"


def _changed_meaning(divergence: Divergence) -> str:
    record, operation = divergence.record, divergence.operation
    assert record is not None
    assert operation is not None
    if operation.limits is not None:
        recorded, replayed = operation.limits
        return f"the time limit of this effect was {recorded:g} s when recorded, now {replayed:g} s"
    if divergence.is_strict and record.ordinal != operation.ordinal:
        return "the lane has performed more or fewer operations than were recorded"
    if _shield_cause(divergence):
        return "the effect begins under a cancellation, and did not when recorded, or the reverse"
    return (
        "the code now performs this operation with different values: compare the two records above"
    )


_MEANINGS: Final[Mapping[str, Callable[[Divergence], str]]] = {
    "missing": _missing_meaning,
    "extra": _extra_meaning,
    "argument": _changed_meaning,
    "message": _changed_meaning,
    "uncancelled": lambda divergence: (
        "the code no longer reaches the cancellation recorded here"
        if divergence.operation is None
        else "the code continues where it was cancelled in the recording: was a timeout removed?"
    ),
    "order": lambda _: "the code now performs the same operations in a different order",
    "redacted": lambda _: "the code depends on a value that was redacted in the recording",
    "blocked": lambda _: (
        "the code used external I/O without its context, which a replay cannot provide"
    ),
    "problem": lambda _: "the replay cannot continue",
}


# Likely causes ------------------------------------------------------------------------------------
#
# Each function returns the text of a cause with what to do about it; an empty text if the
# divergence has no sign of that cause. The table is ordered by how certain a sign is.

# A member of `cmd`: the caller was already cancelled when the effect began.
_CANCELLED: Final = "$.cancelled"

# The kinds of divergences that a deadline leads to if it expires in another turn.
_DEADLINE_KINDS: Final = frozenset({"uncancelled", "missing", "extra", "order"})

_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{6,}")

_SET_CAUSE: Final = (
    "the same values in another order: the order of a set differs in each process, so use sorted(),"
    " a list or a dict"
)
# The step of a JSON path to an item of an array, and an item in a text such as `['a', 'b']`.
_ITEM: Final = re.compile(r"\[[0-9]+\]")
_WORD: Final = re.compile(r"[^\s,;|'\"\\()\[\]{}]+")


def likely_causes(divergence: Divergence) -> list[str]:
    """Return the likely causes of a divergence, the likeliest first; else the possible ones."""
    for table in (CAUSES, POSSIBLE_CAUSES):
        causes = [cause for find in table if (cause := find(divergence))]
        if causes:
            return causes[:_CAUSES_MAX]
    return []


def _shield_cause(divergence: Divergence) -> str:
    changes = divergence.differences
    if divergence.record is None or divergence.record.kind != "cmd" or len(changes) != 1:
        return ""
    path, recorded, replayed = changes[0]
    if path != _CANCELLED:
        return ""
    if replayed is True and recorded is not True:
        return (
            "a shield was removed: the scope around this effect is cancelled, and the recorded code"
            " kept the cancellation from it with trio.CancelScope(shield=True)"
        )
    return (
        "a shield was added, or a time limit or a cancellation removed: when this was recorded, the"
        " scope around the effect was cancelled"
    )


def _failure_cause(divergence: Divergence) -> str:
    operation = divergence.operation
    if operation is None or operation.kind != "out":
        return ""
    # The recorded handler failed as well, or the exception says that a call was blocked.
    if divergence.later_record is not None or divergence.kind == "blocked":
        return ""
    response = members_of(operation.body)
    error, result = members_of(response.get("error")), members_of(response.get("result"))
    is_crash = result.get("isError") is True and tool_text(result).startswith(CRASH_TEXT)
    if error.get("code") != INTERNAL_ERROR and not is_crash:
        return ""
    failure = shortened(operation.failure or "an exception", _TEXT_CHARS_MAX)
    return f"the handler raised {failure}: its response is an internal error"


def _lost_exception_cause(divergence: Divergence) -> str:
    trace, lane = divergence.trace, divergence.lane
    lanes = () if lane is None else trace.request_lanes.get(request_lane(lane), ())
    indexes = sorted(index for each in lanes for index in trace.indexes[each])
    earlier = indexes[: bisect_left(indexes, divergence.index)]
    for record in (trace.journal[index] for index in reversed(earlier)):
        if record.kind not in {"err", "val"}:
            continue
        error: bytes | None = None
        if record.kind == "err":
            error = body_bytes(record)
        else:
            value_error = decode_body(record, ValueBody).error
            error = None if value_error is msgspec.UNSET else encode_body(value_error)
        lost = losses(error) if error is not None and error.startswith(b"{") else []
        if lost:
            return f"the exception in record {record.number} is incomplete: {'; '.join(lost)}"
    return ""


def _thread_cause(divergence: Divergence) -> str:
    threads = (call for call in divergence.request_calls if "thread" in call.call.lower())
    if (call := next(threads, None)) is None:
        return ""
    return f"{call.text} starts a thread, whose order a replay cannot repeat: use {call.instead}"


def _lifespan_cause(divergence: Divergence) -> str:
    if not any(call.call.startswith(LIFESPAN) for call in divergence.request_calls):
        return ""
    if divergence.trace.opened:
        opened = ", ".join(dict.fromkeys(divergence.trace.opened.values()))
        return f"the lifespan did not run again, because it opened something by itself: {opened}"
    return (
        "the lifespan did not run again, because this recording does not hold it: record all"
        " sessions of the process together with SharedRecording"
    )


def _untracked_call_cause(divergence: Divergence) -> str:
    calls = [call for call in divergence.request_calls if "thread" not in call.call.lower()]
    if not calls:
        return ""
    return f"a call before it that is not recorded: {calls[-1].text}: use {calls[-1].instead}"


def _order_cause(divergence: Divergence) -> str:
    record, operation, later = divergence.record, divergence.operation, divergence.later_record
    if (
        record is None
        or operation is None
        or later is None
        or operation.kind not in _EXCHANGEABLE_KINDS
    ):
        return ""
    if is_response(operation.kind, operation.body):
        return ""
    before, after = _name(record.kind, body_bytes(record)), _name(operation.kind, operation.body)
    if before == after:
        members = (members_of(body_bytes(record)), members_of(operation.body))
        arguments = (json_text(each.get("arguments", each.get("params", b""))) for each in members)
        before, after = (f"{before} {text[:_VALUE_CHARS_MAX]}" for text in arguments)
    return (
        f"another order: the recording has {before} in record {record.number} and {after} in record"
        f" {later.number}, and the code now begins with the second"
    )


def _name(kind: str, body: bytes | None) -> str:
    text, name = f"the {_OPERATIONS.get(kind, kind)}", label_of(kind, body)
    return f"{text} {name!r}" if name else text


def _unobservable_cause(divergence: Divergence) -> str:
    """Name a cause that no replay can observe: the order of a set, or an object's address."""
    items: dict[str, list[tuple[str, str]]] = {}
    for path, left, right in divergence.differences:
        before, after = json_text(left), json_text(right)
        if _ADDRESS.search(before) and _ADDRESS.sub("", before) == _ADDRESS.sub("", after):
            return "the address of an object, as in its default repr(), differs in each process"
        items.setdefault(_ITEM.sub("[*]", path), []).append((before, after))
        if _is_reordered(_WORD.findall(before), _WORD.findall(after)):
            return _SET_CAUSE
    for pairs in items.values():
        if _is_reordered(*map(list, zip(*pairs, strict=True))):
            return _SET_CAUSE
    return ""


def _is_reordered(before: list[str], after: list[str]) -> bool:
    return before != after and sorted(before) == sorted(after)


def _clock_cause(divergence: Divergence) -> str:
    record = divergence.record
    is_near_deadline = divergence.kind in _DEADLINE_KINDS or (
        record is not None and record.kind == "cxl"
    )
    if divergence.trace.opening.clock != FOREIGN_CLOCK or not is_near_deadline:
        return ""
    return (
        "a deadline that expired in another turn of the event loop: the recording was made under"
        " another Trio clock; record with `server.run()`, the command, or"
        " `trio.run(main, clock=TickClock())`"
    )


def _earlier_sessions_cause(divergence: Divergence) -> str:
    count = divergence.trace.opening.earlier_sessions
    if not count:
        return ""
    sessions = "1 other session" if count == 1 else f"{count} other sessions"
    return (
        f"{sessions} of the recorded process ended before this one began, and memory that they"
        " left, such as a module's globals, is not in this file: record such sessions together with"
        " SharedRecording"
    )


def _concurrent_sessions_cause(divergence: Divergence) -> str:
    count = divergence.trace.concurrent_sessions
    if not count:
        return ""
    sessions = "1 other session was" if count == 1 else f"{count} other sessions were"
    return (
        f"{sessions} open at the same time: memory that sessions share is not in this file, so"
        " record such sessions together with SharedRecording"
    )


def _import_cause(_: Divergence) -> str:
    calls = calls_at_import()
    if not calls:
        return ""
    texts = [call.text for call in calls[:_IMPORT_CALLS_MAX]]
    more = len(calls) - len(texts)
    count = "a call that is" if len(calls) == 1 else "calls that are"
    return (
        f"{count} not recorded: {', '.join(texts)}{f' and {more} more' if more else ''}, when the"
        f" module was imported: use {calls[0].instead}"
    )


CAUSES: Final[Sequence[Callable[[Divergence], str]]] = (
    _shield_cause,
    _failure_cause,
    _lost_exception_cause,
    _thread_cause,
    _lifespan_cause,
    _untracked_call_cause,
    lambda divergence: divergence.list_change and f"{divergence.list_change} since the recording",
    _order_cause,
    _unobservable_cause,
    _clock_cause,
)

# Facts about the recording, or about the import, that hold for all of its divergences.
POSSIBLE_CAUSES: Final[Sequence[Callable[[Divergence], str]]] = (
    _earlier_sessions_cause,
    _concurrent_sessions_cause,
    _import_cause,
)
