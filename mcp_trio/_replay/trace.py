"""Traces: the records of a recording, checked and indexed for a replay.

`load_trace` reads a recording for a replay of a server's handlers: it checks every body that the
replay decodes, divides `step` records into single steps, and finds the records of each lane. Live
replays and mocks need only the messages, which `load_conversation` reads. The other functions
return facts about single records, lanes and messages, for several modules of this package.
"""

import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final, TypeAlias

import attrs
import msgspec
from msgspec import UNSET, UnsetType

from mcp_trio._journal.conversation import Conversation, conversation, members_of
from mcp_trio._journal.records import (
    BEGINS_STEP,
    KINDS,
    LIFESPAN_CANCELLED_MARK,
    LIFESPAN_LANE,
    LIFESPAN_MARK,
    LIFESPAN_OPENED_MARK,
    OTHER_SESSIONS_COUNT,
    PATCHED_MARK,
    CommandBody,
    Damage,
    EndBody,
    MarkBody,
    OpenBody,
    Record,
    ShutBody,
    StepsBody,
    ValueBody,
    body_bytes,
    decode_body,
    encode_body,
    first_loss,
    message_at,
    message_position,
    read_recording,
    sender_of,
)
from mcp_trio._jsonrpc.channel_messages import with_sender
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._recorder.files import open_recording
from mcp_trio._recorder.writer import ENDED_MARK, SESSION_MARK
from mcp_trio._session.journal import Outcome
from mcp_trio._session.untracked_calls import UNTRACKED_MARK
from mcp_trio.errors import RecordingError

OUTCOMES: Final = frozenset({"res", "err", "cxl"})
"""The kinds of records that end an effect."""

_SHUT_CAUSES: Final = frozenset({"eof", "signal", "closed", "lost"})

LaneKey: TypeAlias = tuple[int, str]
"""A lane in a file: the channel of its session, and its name there."""


# Recorded messages --------------------------------------------------------------------------------


class MessageFields(msgspec.Struct):
    """The members that determine the kind of a message; all are unset if the data is no message."""

    id: int | str | UnsetType = UNSET
    method: str = ""
    params: dict[str, Any] = {}

    @property
    def is_response(self) -> bool:
        """Return whether this is the result or the error of a request."""
        return not self.method and self.id is not UNSET

    @property
    def is_request(self) -> bool:
        return bool(self.method) and self.id is not UNSET


def message_fields(data: bytes) -> MessageFields:
    try:
        return msgspec.json.decode(data, type=MessageFields)
    except (ValueError, RecursionError):
        return MessageFields()


def call_text(data: bytes) -> str:
    """Return the method and target of a request: `tools/call "sell"`; empty for a response."""
    message = message_fields(data)
    target = message.params.get("name") or message.params.get("uri")
    return f'{message.method} "{target}"' if target else message.method


# The trace ----------------------------------------------------------------------------------------


@attrs.frozen
class NamedRecords:
    """The effects of a trace, and what handlers read without waiting, by name.

    Outbound replays and sweeps do not follow the order of these records: the n-th effect of a name
    in a lane gets the outcome of the n-th recorded one.

    Attributes:
        indexes: The indexes of the records by lane, kind and name. The name of a branch has that of
            its patch.
        outcomes: The index of an effect's outcome by that of the effect; a cut recording may lack
            it.
    """

    indexes: dict[tuple[LaneKey, str, str], list[int]] = attrs.field(
        factory=dict[tuple[LaneKey, str, str], list[int]]
    )
    outcomes: dict[int, int] = attrs.field(factory=dict[int, int])

    def of(self, lane: LaneKey, kind: str, name: str) -> Sequence[int]:
        return self.indexes.get((lane, kind, name), ())


@attrs.frozen(kw_only=True)
class Trace:
    """The events that a replay has to repeat, and the damage of their file.

    An index is a position in `journal`.

    Attributes:
        opening: The body of the `open` record.
        journal: The records after that one, in order. Each step in a `step` record is one of its
            own, with the lane that it belongs to.
        missing: For the index of each record before which records are missing, the number of the
            first missing one.
        indexes: The indexes of each lane's records, in order.
        session_ends: The index of the mark that ends a session, by its channel, where sessions have
            marks.
        notes: Descriptions of the damage.
        has_session_marks: Whether marks begin and end sessions, of which there may be several.
        lifespans: The channels of the lifespans in the journal.
        lifespan_of: The channel of the lifespan of each session, by the channel of the session.
        opened: For the channel of each lifespan that opened something by itself, the call. The
            journal does not hold such a lifespan.
    """

    opening: OpenBody
    journal: Sequence[Record]
    missing: Mapping[int, int]
    indexes: Mapping[LaneKey, Sequence[int]]
    session_ends: Mapping[int, int]
    notes: tuple[str, ...]
    has_session_marks: bool
    lifespans: Collection[int]
    lifespan_of: Mapping[int, int]
    opened: Mapping[int, str]

    @cached_property
    def last_missing(self) -> int:
        """The last index before which records are missing; -1 if none are."""
        return max(self.missing, default=-1)

    @cached_property
    def is_complete(self) -> bool:
        """Return whether the recorded session came to its end; otherwise the recording was cut."""
        return bool(self.journal) and self.journal[-1].kind == "end"

    @cached_property
    def named(self) -> NamedRecords:
        """The effects, and what handlers read without waiting."""
        found = NamedRecords()
        for lane, all_indexes in self.indexes.items():
            indexes = [index for index in all_indexes if self.journal[index].kind != "step"]
            for index, following in zip_longest(indexes, indexes[1:]):
                record = self.journal[index]
                if record.kind != "cmd" and not is_immediate(record):
                    continue
                name = body_name(record)
                if record.kind == "mark":
                    name = patch_name(decode_body(record, MarkBody).value)
                found.indexes.setdefault((lane, record.kind, name), []).append(index)
                if following is not None and self.journal[following].kind in OUTCOMES:
                    found.outcomes[index] = following
        return found

    @cached_property
    def request_lanes(self) -> Mapping[LaneKey, Sequence[LaneKey]]:
        """The lanes of each request or notification: that of its handler, and of child tasks."""
        found: dict[LaneKey, list[LaneKey]] = {}
        for lane in self.indexes:
            found.setdefault(request_lane(lane), []).append(lane)
        return found

    @cached_property
    def concurrent_sessions(self) -> int:
        """The number of the server's sessions that were open meanwhile and are not in this file."""
        ends = [record for record in self.journal if record.kind == "end"]
        return sum(
            decode_body(record, EndBody).counts.get(OTHER_SESSIONS_COUNT, 0) for record in ends
        )

    def may_lack_record(self, index: int) -> bool:
        """Return whether a record at `index` or later may be missing from the file."""
        return not self.is_complete or index <= self.last_missing

    # Lanes.

    def next_index(self, lane: LaneKey, index: int) -> int | None:
        """Return the index of a lane's first record at `index` or later; None if it has none."""
        indexes = self.indexes.get(lane, ())
        found = bisect_left(indexes, index)
        return indexes[found] if found < len(indexes) else None

    def next_record(self, lane: LaneKey, index: int) -> Record | None:
        """Return a lane's first record at `index` or later; None if it has none."""
        found = self.next_index(lane, index)
        return None if found is None else self.journal[found]

    def last_index(self, lane: LaneKey) -> int:
        """Return the index of a lane's last record; -1 if the lane has none."""
        indexes = self.indexes.get(lane)
        return indexes[-1] if indexes else -1


# Records and lanes --------------------------------------------------------------------------------


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


def is_notification_lane(lane: LaneKey) -> bool:
    """Return whether a lane is that of a handler of notifications, or of its child task."""
    return lane[1].startswith("n")


def request_lane(lane: LaneKey) -> LaneKey:
    """Return the lane of the handler to which a lane belongs."""
    return lane[0], request_lane_name(lane[1])


def request_lane_name(name: str) -> str:
    """Return the name of the handler's lane to which a lane belongs."""
    return name.partition(".")[0]


def is_immediate(record: Record) -> bool:
    """Return whether a record is a value that a lane read, or a branch that it took."""
    return record.kind == "val" or (
        record.kind == "mark" and record.lane is not None and body_name(record) == PATCHED_MARK
    )


def is_untracked_call(record: Record) -> bool:
    """Return whether a record only notes an untracked call of the recorded session."""
    return mark_name(record) == UNTRACKED_MARK


def mark_name(record: Record) -> str:
    """Return the name of a mark without a lane; empty for any other record."""
    return body_name(record) if record.kind == "mark" and record.lane is None else ""


def patch_name(patch: object) -> str:
    """Return the name in `NamedRecords` of the branch that a patch lets a handler take."""
    return f"{PATCHED_MARK} {patch}"


def recorded_outcome(record: Record) -> Outcome:
    """Return the value, or the error, of an effect's outcome."""
    return Outcome("err" if record.kind == "err" else "res", body_bytes(record) or b"null")


def recorded_value(record: Record) -> Outcome:
    """Return the value, or the error, of a `val` record."""
    body = decode_body(record, ValueBody)
    if body.error is not UNSET:
        return Outcome("err", encode_body(body.error))
    return Outcome("res", b"null" if body.value is UNSET else bytes(body.value))


class _Named(msgspec.Struct):
    name: str = ""


def body_name(record: Record) -> str:
    """Return the name of a mark, of an effect or of a value."""
    return decode_body(record, _Named).name


def request_data(journal: Sequence[Record], lane: str) -> bytes:
    """Return the request or notification to which a lane belongs; empty if none is recorded."""
    found = message_position(lane)
    if found is None:
        return b""
    number, position = found
    index = bisect_left(journal, number, key=lambda record: record.number)
    is_recorded = index < len(journal) and journal[index].number == number
    return message_at(body_bytes(journal[index]) or b"", position) if is_recorded else b""


def received_data(record: Record) -> bytes | Oversized:
    """Return the data that the transport delivered for an `in` record, with its sender.

    For a message over the size limit that is the beginning of the message.
    """
    data, envelope = body_bytes(record), record.envelope or {}
    assert data is not None
    if "discarded" in envelope:
        return Oversized(size=envelope["discarded"], prefix=data)
    return with_sender(data, sender_of(envelope), envelope.get("client", 0))


# Loading ------------------------------------------------------------------------------------------

# The kinds of damage after which the records may not be those of the session. A last line that was
# cut off is none of them, nor is a record of a later version of the format.
_DAMAGING: Final = frozenset({"damaged", "digest", "numbering"})


def _read(
    path: str | os.PathLike[str], *, rejects_damage: bool
) -> tuple[list[Record], list[Damage]]:
    """Return the records of a recording and its damage; it may be cut at its end.

    Raises:
        RecordingError: A line was changed or lost, or a gap lost records, and this is rejected.
    """
    records: list[Record] = []
    damage: list[Damage] = []
    for item in read_recording(open_recording(path)):
        if isinstance(item, Damage):
            damage.append(item)
        else:
            records.append(item)
    if not rejects_damage:
        return records, damage
    texts = [f"line {each.line}: {each.text}" for each in damage if each.kind in _DAMAGING]
    if first_loss(records) is not None:
        texts.append("a gap: records that could not be written are missing")
    if texts:
        more = f", and {len(texts) - 1} more" if len(texts) > 1 else ""
        raise RecordingError(
            f"the recording is damaged: {texts[0]}{more}; record the session again, or replay what"
            " can be read: --allow-damaged, or replay(allow_damaged=True)"
        )
    return records, damage


def load_conversation(
    path: str | os.PathLike[str], *, channel: int | None = None, rejects_damage: bool = False
) -> Conversation:
    """Load the messages of a recording of any role; damaged lines are skipped.

    Raises:
        RecordingError: The file is no recording, or holds several sessions and `channel` names
            none of them, or is damaged, and this is rejected.
    """
    records, _ = _read(path, rejects_damage=rejects_damage)
    return conversation(records, channel=channel)


_LIFESPAN_MARKS: Final = frozenset({LIFESPAN_MARK, LIFESPAN_CANCELLED_MARK, LIFESPAN_OPENED_MARK})

CHANNEL_MARKS: Final = _LIFESPAN_MARKS | {SESSION_MARK, ENDED_MARK}
"""The marks of sessions and lifespans; a file of one session without a lifespan has none."""

# The types of the bodies that a replay decodes.
_BODY_TYPES: Final[Mapping[str, type[Any]]] = {
    "mark": MarkBody,
    "step": StepsBody,
    "cmd": CommandBody,
    "val": ValueBody,
    "end": EndBody,
}


def _check_body(record: Record) -> None:
    """Raise `RecordingError` if a replay cannot decode the body of a record."""
    if record.kind == "shut":
        cause = decode_body(record, ShutBody).cause
        if cause not in _SHUT_CAUSES:
            raise RecordingError(f"record {record.number}: an unknown cause of `shut`: {cause!r}")
    elif record.kind in _BODY_TYPES:
        decode_body(record, _BODY_TYPES[record.kind])
    elif record.kind == "in":
        body, envelope = body_bytes(record), record.envelope or {}
        try:
            sender_of(envelope)
        except msgspec.ValidationError:
            body = None
        numbers = (envelope.get("discarded", 0), envelope.get("client", 0))
        if body is None or not all(isinstance(number, int) for number in numbers):
            raise RecordingError(f"record {record.number}: an `in` record without a valid message")
    else:
        body_bytes(record)


def load_trace(
    path: str | os.PathLike[str],
    *,
    purpose: str = "strict replay",
    runs_lifespans: bool = True,
    rejects_damage: bool = False,
) -> Trace:
    """Load a recording of role `server` as a trace, for a `purpose` that errors name.

    A `gap` by which records were lost ends the journal. Without `runs_lifespans` the journal holds
    no lifespan.

    Raises:
        RecordingError: The file is no recording, is of another role, holds an invalid record, or is
            damaged, and this is rejected.
    """
    records, damage = _read(path, rejects_damage=rejects_damage)
    notes = [f"line {each.line}: {each.text}" for each in damage]
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
    known = [record for record in usable if record.kind in KINDS and record.kind != "gap"]
    for record in known:
        _check_body(record)
    tracked = (record for record in known if not is_untracked_call(record))
    journal = [each for record in tracked for each in _single_steps(record)]
    marks = [record for record in journal if mark_name(record) in CHANNEL_MARKS]
    lifespans, opened, lifespan_of = set[int](), dict[int, str](), dict[int, int]()
    for mark in marks:
        name, value = mark_name(mark), members_of(decode_body(mark, MarkBody).value)
        if name == LIFESPAN_MARK and runs_lifespans:
            lifespans.add(mark.channel)
        elif name == LIFESPAN_OPENED_MARK:
            target = value.get("target", "")
            call = f"{value.get('call', '')}({target and repr(target)})"
            opened[mark.channel] = f"{call} {value.get('location', '')}"
        elif name == SESSION_MARK and isinstance(value.get("lifespan"), int):
            lifespan_of[mark.channel] = value["lifespan"]
    lifespans -= opened.keys()
    lifespan_of = {session: each for session, each in lifespan_of.items() if each in lifespans}
    journal = [
        record
        for record in journal
        if record.channel in lifespans
        or (
            request_lane_name(record.lane or "") != LIFESPAN_LANE
            and mark_name(record) not in _LIFESPAN_MARKS
        )
    ]
    numbers = {record.number for record in usable}
    missing: dict[int, int] = {}
    indexes: dict[LaneKey, list[int]] = {}
    session_ends: dict[int, int] = {}
    expected = 1
    for index, record in enumerate(journal):
        # A record that was read is not missing, although it takes no part in a replay.
        while expected < record.number and expected in numbers:
            expected += 1
        if record.number > expected:
            missing[index] = expected
        expected = record.number + 1
        if record.lane is not None:
            indexes.setdefault(key_of(record), []).append(index)
        elif mark_name(record) == ENDED_MARK:
            session_ends[record.channel] = index
    return Trace(
        opening=opening,
        journal=journal,
        missing=missing,
        indexes=indexes,
        session_ends=session_ends,
        notes=tuple(notes),
        has_session_marks=bool(marks),
        lifespans=lifespans,
        lifespan_of=lifespan_of,
        opened=opened,
    )


def _single_steps(record: Record) -> Iterator[Record]:
    """Yield a record for each step that a `step` record lists; yield any other record itself."""
    if record.kind != "step":
        yield record
        return
    time_ns = record.time_ns
    for lane in decode_body(record, StepsBody).lanes:
        if isinstance(lane, int):
            time_ns += lane
        else:
            yield Record(
                number=record.number,
                kind="step",
                channel=record.channel,
                lane=lane,
                step_start=BEGINS_STEP,
                time_ns=time_ns,
            )
