"""Traces: the records of a recording, checked and indexed for a replay."""

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Final, TypeAlias

import attrs
import msgspec
from msgspec import UNSET, UnsetType

from mcp_trio._journal.conversation import Conversation, conversation
from mcp_trio._journal.reader import Damage, first_loss, read_recording
from mcp_trio._journal.records import (
    KINDS,
    OTHER_SESSIONS,
    PATCHED_MARK,
    SUSPENDED_MARK,
    THREAD_RETURNED_MARK,
    TIMED_OUT_MARK,
    CommandBody,
    EndBody,
    MarkBody,
    OpenBody,
    Record,
    ShutBody,
    ValueBody,
    body_bytes,
    decode_body,
    message_at,
    message_position,
    messages_in,
)
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import with_principal
from mcp_trio._protocol.methods import CANCELLED
from mcp_trio._recorder.files import open_recording
from mcp_trio._recorder.writer import ENDED_MARK, SESSION_MARK
from mcp_trio._server.handlers import THREAD_MARK
from mcp_trio._server.subscriptions import CHOICE
from mcp_trio._session.input_required import KEEPER
from mcp_trio._session.journal import START_ORDINAL
from mcp_trio._session.nondeterminism import UNTRACKED_MARK
from mcp_trio._session.session import DRAINED
from mcp_trio.errors import RecordingError

NS_PER_SECOND: Final = 1e9

OUTCOMES: Final = frozenset({"res", "err", "cxl"})
"""The kinds of records that end an effect."""

# The marks that a lane makes without waiting for its turn.
_IMMEDIATE_MARKS: Final = frozenset({PATCHED_MARK, TIMED_OUT_MARK, THREAD_RETURNED_MARK})

_SHUT_CAUSES: Final = frozenset({"eof", "signal", "closed", "lost"})
_NO_POSITION: Final = (-1, 0)

LaneKey: TypeAlias = tuple[int, str]
"""A lane in a file: the channel of its session, and its name there."""


# Recorded messages --------------------------------------------------------------------------------


class MessageFields(msgspec.Struct):
    """The members of a message that tell its kind; all are unset if the data are no message."""

    id: int | str | UnsetType = UNSET
    method: str = ""
    params: dict[str, Any] = {}

    @property
    def is_response(self) -> bool:
        """Return whether this is the result or the error of a request."""
        return not self.method and self.id is not UNSET

    @property
    def is_request(self) -> bool:
        """Return whether this is a request."""
        return bool(self.method) and self.id is not UNSET


def message_fields(data: bytes) -> MessageFields:
    """Decode the fields of one message."""
    try:
        return msgspec.json.decode(data, type=MessageFields)
    except (ValueError, RecursionError):
        return MessageFields()


def call_text(data: bytes) -> str:
    """Return what a request calls, such as `tools/call "sell"`; empty for a response."""
    message = message_fields(data)
    target = message.params.get("name") or message.params.get("uri")
    return f'{message.method} "{target}"' if target else message.method


# The trace ----------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Trace:
    """The operations that a replay has to repeat, and the damage of their file.

    An index is a position in `journal`.

    Attributes:
        opening: The body of the `open` record.
        journal: The records after that one, in order.
        missing: For the index of each record before which records are missing, the number of the
            first missing one.
        indexes: The indexes of each lane's records, in order.
        session_ends: The index of the mark that ends a session, by its channel, in a file of
            several sessions.
        immediate: The indexes of the records that lanes make without a turn, by lane and ordinal.
        notes: Descriptions of the damage.
    """

    opening: OpenBody
    journal: Sequence[Record]
    missing: Mapping[int, int]
    indexes: Mapping[LaneKey, Sequence[int]]
    session_ends: Mapping[int, int]
    immediate: Mapping[tuple[LaneKey, int], int]
    notes: tuple[str, ...]

    @cached_property
    def last_missing(self) -> int:
        """The last index before which records are missing; -1 if none are."""
        return max(self.missing, default=-1)

    @cached_property
    def is_complete(self) -> bool:
        """Return whether the recorded session came to its end; otherwise the recording was cut."""
        return bool(self.journal) and self.journal[-1].kind == "end"

    @cached_property
    def is_shared(self) -> bool:
        """Return whether marks begin and end sessions, so that the file may hold several."""
        return any(map(begins_session, self.journal))

    @property
    def concurrent_sessions(self) -> int:
        """The number of the server's sessions that were open meanwhile and are not in this file."""
        ends = [record for record in self.journal if record.kind == "end"]
        return sum(decode_body(record, EndBody).counts.get(OTHER_SESSIONS, 0) for record in ends)

    @property
    def has_shut(self) -> bool:
        """Return whether the recorded session began to close."""
        return any(record.kind == "shut" for record in self.journal)

    # Lanes.

    def last_index(self, lane: LaneKey) -> int:
        """Return the index of a lane's last record; -1 if the lane has none."""
        indexes = self.indexes.get(lane)
        return indexes[-1] if indexes else -1

    def index_of(self, lane: LaneKey, ordinal: int) -> int | None:
        """Return the index of an operation of a lane; None if it is not recorded."""
        for index in self.indexes.get(lane, ()):
            if self.journal[index].ordinal == ordinal:
                return index
        return None

    def is_cut_before(self, lane: LaneKey, ordinal: int) -> bool:
        """Return whether the recording was cut before an operation of a lane."""
        last = self.last_index(lane)
        return not self.is_complete and (last < 0 or (self.journal[last].ordinal or 0) < ordinal)

    def finished_from(self, lane: LaneKey) -> float:
        """Return the index from which a lane has no more records; infinite if that is unknown.

        It is unknown in a recording that was cut, and for a lane whose last effect had not ended
        when the session did.
        """
        last = self.last_index(lane)
        is_in_effect = last >= 0 and self.journal[last].kind == "cmd"
        return last + 1 if self.is_complete and not is_in_effect else math.inf

    def is_quiet_after(self, lane: LaneKey, ordinal: int, index: int) -> bool:
        """Return whether a lane makes no call after its operation `ordinal`.

        The only record that it may have at `index` or later is the end of its cancelled request.
        """
        last = self.last_index(lane)
        if last >= index and self.is_cancelled_end(lane, last):
            return self.journal[last].ordinal == ordinal + 1
        return self.finished_from(lane) <= index

    def is_cancelled_end(self, lane: LaneKey, last: int) -> bool:
        """Return whether a lane's last record is the end of a request that was cancelled."""
        return self.is_complete and is_request_lane(lane) and self.journal[last].kind == "cxl"

    def is_of_cancelled_request(self, lane: LaneKey, index: int) -> bool:
        """Return whether a lane's request ends by a cancellation at `index` or later."""
        request = request_lane(lane)
        last = self.last_index(request)
        return last >= index and self.is_cancelled_end(request, last)

    def is_in_thread(self, lane: LaneKey) -> bool:
        """Return whether the handler of a lane, or a part of it, ran in a thread."""
        indexes = [*self.indexes.get(lane, ()), *self.indexes.get(request_lane(lane), ())]
        records = (self.journal[index] for index in indexes)
        return any(each.kind == "mark" and body_name(each) == THREAD_MARK for each in records)

    # Events.

    def last_value(self, name: str) -> Record | None:
        """Return the last record of a value that any lane read by this name."""
        found = (
            each
            for each in reversed(self.journal)
            if each.kind == "val" and body_name(each) == name
        )
        return next(found, None)

    def announces_change(self, index: int, until: float) -> bool:
        """Return whether a lane announces a change at `index` or later, up to a time."""
        ahead = (self.journal[each] for each in range(index, len(self.journal)))
        due = takewhile(lambda record: seconds_of(record) <= until, ahead)
        return any(
            each.kind == "mark" and each.lane is not None and body_name(each) == CHOICE
            for each in due
        )

    def cancelled_at(self, lane: LaneKey, index: int) -> float | None:
        """Return the time before `index` at which a lane's request was cancelled, if it was.

        A request is cancelled by its client, by the expiry of its wait for a retry, or by the end
        of its session.
        """
        request_ids, keeper = self._request_ids(lane), keeper_lane(lane)
        has_keeper = keeper in self.indexes
        for record in (self.journal[each] for each in reversed(range(index))):
            if record.channel != lane[0]:
                continue
            has_expired = key_of(record) == keeper and is_expiry(record)
            if has_expired or _cancels(record, request_ids, has_keeper=has_keeper):
                return seconds_of(record)
        return None

    def _request_ids(self, lane: LaneKey) -> list[int | str | UnsetType]:
        """Return the ids of a handler's requests: the one that started it, and its retries."""
        ids = [message_fields(request_data(self.journal, lane[1])).id]
        marks = (self.journal[index] for index in self.indexes.get(keeper_lane(lane), ()))
        states = [decode_body(each, MarkBody).value for each in marks if each.kind == "mark"]
        if states:
            received = [body_bytes(each) or b"" for each in self.journal if each.kind == "in"]
            found = [message_fields(each) for data in received for each in messages_in(data)]
            ids += [each.id for each in found if each.params.get("requestState") in states]
        return ids


def _cancels(
    record: Record, request_ids: Sequence[int | str | UnsetType], *, has_keeper: bool
) -> bool:
    if record.kind == "mark":
        return body_name(record) == DRAINED
    if record.kind == "shut":
        return has_keeper
    if record.kind != "in":
        return False
    messages = map(message_fields, messages_in(body_bytes(record) or b""))
    return any(
        each.method == CANCELLED and each.params.get("requestId") in request_ids
        for each in messages
    )


# Records and lanes --------------------------------------------------------------------------------


def seconds_of(record: Record) -> float:
    """Return the time of a record, in seconds since its session began."""
    return record.time_ns / NS_PER_SECOND


def key_of(record: Record) -> LaneKey:
    """Return the lane of a record; its name is empty for a record of the dispatcher."""
    return record.channel, record.lane or ""


def lane_text(lane: LaneKey) -> str:
    """Return a lane's name for a report, with the session if the file holds several."""
    channel, name = lane
    return name if channel == 0 else f"{name} of session {channel}"


def is_child(lane: LaneKey) -> bool:
    """Return whether a lane is that of a task which a handler has started."""
    return "." in lane[1]


def is_request_lane(lane: LaneKey) -> bool:
    """Return whether a lane is a handler's own, not that of a child task or of the session."""
    return lane[1].startswith("r") and not is_child(lane)


def request_lane(lane: LaneKey) -> LaneKey:
    """Return the lane of the handler to which a lane belongs."""
    return lane[0], request_lane_name(lane[1])


def request_lane_name(name: str) -> str:
    """Return the name of the handler's lane to which a lane belongs."""
    return name.partition(".")[0]


def keeper_lane(lane: LaneKey) -> LaneKey:
    """Return the lane that answers for a handler during multi round-trip requests."""
    return lane[0], f"{request_lane_name(lane[1])}.{KEEPER}"


def is_keeper(lane: LaneKey) -> bool:
    """Return whether a lane answers for a handler during multi round-trip requests."""
    return lane[1].endswith(f".{KEEPER}")


def is_expiry(record: Record) -> bool:
    """Return whether a record says that a suspended handler got no retry in time."""
    return (
        record.kind == "mark"
        and body_name(record) == SUSPENDED_MARK
        and decode_body(record, MarkBody).value is None
    )


def is_start(record: Record) -> bool:
    """Return whether a record is the start of a handler."""
    return record.lane is not None and record.kind == "mark" and record.ordinal == START_ORDINAL


def is_immediate(record: Record) -> bool:
    """Return whether a lane made a record without waiting for its turn."""
    return record.kind == "val" or (
        record.kind == "mark" and record.lane is not None and body_name(record) in _IMMEDIATE_MARKS
    )


def is_untracked_call(record: Record) -> bool:
    """Return whether a record only notes an untracked call of the recorded session."""
    return record.kind == "mark" and record.lane is None and body_name(record) == UNTRACKED_MARK


def begins_session(record: Record) -> bool:
    """Return whether a record begins one of the sessions of a file."""
    return record.kind == "mark" and record.lane is None and body_name(record) == SESSION_MARK


class _Named(msgspec.Struct):
    name: str = ""


def body_name(record: Record) -> str:
    """Return the name of a mark, of an effect or of a value."""
    return decode_body(record, _Named).name


def request_data(journal: Sequence[Record], lane: str) -> bytes:
    """Return the request or notification to which a lane belongs; empty if none is recorded."""
    number, position = message_position(lane) or _NO_POSITION
    received = (body_bytes(record) for record in journal if record.number == number)
    return message_at(next(received, None) or b"", position)


def received_data(record: Record) -> bytes | Oversized:
    """Return what the transport delivered for an `in` record, with its principal.

    For a message over the size limit that is the beginning of the message.
    """
    data, envelope = body_bytes(record), record.envelope or {}
    assert data is not None
    if "discarded" in envelope:
        return Oversized(size=envelope["discarded"], prefix=data)
    return with_principal(data, envelope.get("principal"))


# Loading ------------------------------------------------------------------------------------------


def load_conversation(path: str | os.PathLike[str], *, channel: int | None = None) -> Conversation:
    """Load the messages of a recording of any role; damaged lines are skipped.

    Raises:
        RecordingError: The file is no recording, or holds several sessions and `channel` names
            none of them.
    """
    items = read_recording(open_recording(path))
    return conversation((item for item in items if not isinstance(item, Damage)), channel=channel)


@attrs.frozen(kw_only=True)
class LoadedRecording:
    """A server's recording up to the first lost record.

    Attributes:
        opening: The body of the `open` record.
        journal: The records after that one, except those of unknown kinds.
        numbers: The numbers of all records, also of unknown kinds.
        notes: Descriptions of the damage.
    """

    opening: OpenBody
    journal: Sequence[Record]
    numbers: Collection[int]
    notes: tuple[str, ...]


def load_recording(path: str | os.PathLike[str], *, purpose: str) -> LoadedRecording:
    """Load a recording of role `server` and check its records.

    A `gap` by which records were lost ends the journal.

    Raises:
        RecordingError: The file is no recording, is of another role, or holds an invalid record;
            the text names the `purpose`.
    """
    records: list[Record] = []
    notes: list[str] = []
    for item in read_recording(open_recording(path)):
        if isinstance(item, Damage):
            notes.append(f"line {item.line}: {item.text}")
        else:
            records.append(item)
    opening = decode_body(records[0], OpenBody)
    if opening.role != "server":
        raise RecordingError(
            f"{purpose} runs the handlers of a server; this recording is of role {opening.role!r}"
        )
    usable = records[1:]
    loss = first_loss(usable)
    if loss is not None:
        notes.append(f"record {usable[loss].number}: a gap, at which the replay ends")
        usable = usable[:loss]
    journal = [record for record in usable if record.kind in KINDS and record.kind != "gap"]
    for record in journal:
        _CHECKS.get(record.kind, body_bytes)(record)
    journal = [record for record in journal if not is_untracked_call(record)]
    return LoadedRecording(
        opening=opening,
        journal=journal,
        numbers={record.number for record in usable},
        notes=tuple(notes),
    )


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """Load a recording of role `server` as a trace.

    Raises:
        RecordingError: The file is no recording, or cannot be replayed strictly.
    """
    loaded = load_recording(path, purpose="strict replay")
    journal = loaded.journal
    indexes: dict[LaneKey, list[int]] = {}
    session_ends: dict[int, int] = {}
    immediate: dict[tuple[LaneKey, int], int] = {}
    for index, record in enumerate(journal):
        if record.lane is not None:
            indexes.setdefault(key_of(record), []).append(index)
        elif record.kind == "mark" and body_name(record) == ENDED_MARK:
            session_ends[record.channel] = index
        if record.kind in {"val", "mark"} and is_immediate(record):
            immediate[key_of(record), record.ordinal or 0] = index
    return Trace(
        opening=loaded.opening,
        journal=journal,
        missing=_missing(journal, loaded.numbers),
        indexes=indexes,
        session_ends=session_ends,
        immediate=immediate,
        notes=loaded.notes,
    )


def _missing(journal: Sequence[Record], numbers: Collection[int]) -> dict[int, int]:
    """Return `Trace.missing`; a record of an unknown kind is not missing."""
    expected = 1
    missing: dict[int, int] = {}
    for index, record in enumerate(journal):
        while expected < record.number and expected in numbers:
            expected += 1
        if record.number > expected:
            missing[index] = expected
        expected = record.number + 1
    return missing


def _check_in(record: Record) -> None:
    envelope = record.envelope or {}
    is_valid = isinstance(envelope.get("discarded", 0), int)
    is_valid = is_valid and isinstance(envelope.get("principal", ""), str)
    if body_bytes(record) is None or not is_valid:
        raise RecordingError(f"record {record.number}: an `in` record without a valid message")


def _check_shut(record: Record) -> None:
    cause = decode_body(record, ShutBody).cause
    if cause not in _SHUT_CAUSES:
        raise RecordingError(f"record {record.number}: an unknown cause of `shut`: {cause!r}")


def _check_body(body_type: type[Any]) -> Callable[[Record], object]:
    return lambda record: decode_body(record, body_type)


_CHECKS: Final[Mapping[str, Callable[[Record], object]]] = {
    "in": _check_in,
    "shut": _check_shut,
    "mark": _check_body(MarkBody),
    "cmd": _check_body(CommandBody),
    "val": _check_body(ValueBody),
    "end": _check_body(EndBody),
}
