"""The trace of a recording: its records, checked and indexed for a replay."""

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
    PATCHED_MARK,
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
from mcp_trio._server.handlers import BESIDE, THREAD_MARK
from mcp_trio._server.subscriptions import CHOICE
from mcp_trio._session.input_required import KEEPER, SUSPENDED_MARK
from mcp_trio._session.journal import START_ORDINAL
from mcp_trio._session.session import DRAINED
from mcp_trio.errors import RecordingError

# --------------------
# Recorded frames, as far as is to be known of them to run handlers again.


class Message(msgspec.Struct):
    """As much of a frame as tells what it is; nothing of it is set in what is no message."""

    id: int | str | UnsetType = UNSET
    method: str = ""
    params: dict[str, Any] = {}

    @property
    def is_answer(self) -> bool:
        """Return whether it answers a request."""
        return not self.method and self.id is not UNSET

    @property
    def is_request(self) -> bool:
        """Return whether it wants an answer."""
        return bool(self.method) and self.id is not UNSET


def message_of(frame: bytes) -> Message:
    """What a frame is."""
    try:
        return msgspec.json.decode(frame, type=Message)
    except (ValueError, RecursionError):
        return Message()


def messages_of(frame: bytes) -> list[Message]:
    """What the messages of a frame are."""
    return [message_of(each) for each in messages_in(frame)]


def call_text(frame: bytes) -> str:
    """What a request or notification is for, such as `tools/call "sell"`; empty if it is none."""
    message = message_of(frame)
    target = message.params.get("name") or message.params.get("uri")
    return f'{message.method} "{target}"' if target else message.method


# --------------------
# A recording as the player needs it: its records, and where each of them stands.


Key: TypeAlias = tuple[int, str]
"""A lane in a file: its channel, and its name there."""

NS_PER_SECOND: Final = 1e9
_NOWHERE: Final = (-1, 0)
OUTCOMES: Final = frozenset({"res", "err", "cxl"})
_IN_PASSING: Final = frozenset({PATCHED_MARK, TIMED_OUT_MARK, THREAD_RETURNED_MARK})


@attrs.frozen(kw_only=True)
class Trace:
    """What a replay has to do again, and what is known about the file.

    Attributes:
        opening: What was known when the recording began.
        journal: The records after that, in order.
        missing: For the place of a record in the journal, the number that should stand before it
            and does not.
        places: Where each lane acts, in order.
        endings: Where each of several sessions in a file ends, by its channel.
        ahead: Where what a lane read in passing stands, by lane and ordinal.
        notes: Flaws of the file.
    """

    opening: OpenBody
    journal: Sequence[Record]
    missing: Mapping[int, int]
    places: Mapping[Key, Sequence[int]]
    endings: Mapping[int, int]
    ahead: Mapping[tuple[Key, int], int]
    notes: tuple[str, ...]

    @cached_property
    def last_hole(self) -> int:
        """The last place of `missing`; -1 if nothing is."""
        return max(self.missing, default=-1)

    @cached_property
    def is_complete(self) -> bool:
        """Return whether the recorded session came to its end; otherwise the recording was cut."""
        return bool(self.journal) and self.journal[-1].kind == "end"

    @cached_property
    def is_of_several(self) -> bool:
        """Whether the sessions of the file begin and end with marks: several may share it."""
        return any(map(begins_session, self.journal))

    def last_place(self, lane: Key) -> int:
        """Where a lane acts for the last time; -1 if it never does."""
        places = self.places.get(lane)
        return places[-1] if places else -1

    def place_of(self, lane: Key, ordinal: int) -> int | None:
        """Where an operation of a lane stands; None if it is not recorded."""
        for place in self.places.get(lane, ()):
            if self.journal[place].ordinal == ordinal:
                return place
        return None

    def is_cut_before(self, lane: Key, ordinal: int) -> bool:
        """Return whether the recording was cut before a lane could do an operation."""
        last = self.last_place(lane)
        return not self.is_complete and (last < 0 or (self.journal[last].ordinal or 0) < ordinal)

    def spent_from(self, lane: Key) -> float:
        """From which place on nothing more is recorded of a lane; never, if it was cut.

        One whose last record is a command still waited for the outcome when the session ended.
        """
        last = self.last_place(lane)
        is_waiting = last >= 0 and self.journal[last].kind == "cmd"
        return last + 1 if self.is_complete and not is_waiting else math.inf

    def is_spent(self, lane: Key, place: int) -> bool:
        """Whether nothing more is recorded of a lane from `place` on, in a whole recording."""
        return self.spent_from(lane) <= place

    def is_silent(self, lane: Key, ordinal: int, place: int) -> bool:
        """Whether a lane, after its operation `ordinal`, does nothing more but perhaps end so."""
        last = self.last_place(lane)
        if last >= place and self.is_cancelled_end(lane, last):
            return self.journal[last].ordinal == ordinal + 1
        return self.is_spent(lane, place)

    def is_cancelled_end(self, lane: Key, last: int) -> bool:
        """Return whether the last record of a lane is the end of a request that was cancelled."""
        return self.is_complete and is_of_request(lane) and self.journal[last].kind == "cxl"

    def is_of_cancelled(self, lane: Key, place: int) -> bool:
        """Return whether a lane belongs to a request that is cancelled at `place` or later."""
        request = request_of(lane)
        last = self.last_place(request)
        return last >= place and self.is_cancelled_end(request, last)

    def last_read(self, name: str) -> Record | None:
        """What was last read by a name, in whatever lane; None if nothing was."""
        found = (record for record in reversed(self.journal) if _is_read(record, name))
        return next(found, None)

    def is_in_thread(self, lane: Key) -> bool:
        """Whether a lane, or a part of it, ran in a thread, or for a thread of its handler."""
        places = [*self.places.get(lane, ()), *self.places.get(request_of(lane), ())]
        records = (self.journal[place] for place in places)
        return any(r.kind == "mark" and mark_name(r) == THREAD_MARK for r in records)

    def is_announced(self, place: int, until: float) -> bool:
        """Return whether a change is announced at `place` or later, up to a time."""
        ahead = (self.journal[each] for each in range(place, len(self.journal)))
        due = takewhile(lambda record: seconds_of(record) <= until, ahead)
        return any(_is_announcement(record) for record in due)

    def cancelled_at(self, lane: Key, place: int) -> float | None:
        """When a request was cancelled: by its client, its keeper, or the end of its session."""
        request_ids, keeper = self._request_ids(lane), keeper_of(lane)
        has_keeper = keeper in self.places
        for record in (self.journal[each] for each in reversed(range(place))):
            if record.channel != lane[0]:
                continue
            is_expiry = key_of(record) == keeper and is_expired(record)
            if is_expiry or _cancels(record, request_ids, is_kept=has_keeper):
                return seconds_of(record)
        return None

    def _request_ids(self, lane: Key) -> list[int | str | UnsetType]:
        """The ids of a handler's requests: the one that started it, and the retries."""
        ids = [message_of(request_frame(self.journal, lane[1])).id]
        marks = (self.journal[place] for place in self.places.get(keeper_of(lane), ()))
        states = [decode_body(each, MarkBody).value for each in marks if each.kind == "mark"]
        if states:
            frames = [body_bytes(each) or b"" for each in self.journal if each.kind == "in"]
            found = [message for frame in frames for message in messages_of(frame)]
            ids += [each.id for each in found if each.params.get("requestState") in states]
        return ids

    @property
    def sessions_beside(self) -> int:
        """How many other sessions of the server were open meanwhile, in no or another file."""
        ends = [record for record in self.journal if record.kind == "end"]
        return sum(decode_body(record, EndBody).counts.get(BESIDE, 0) for record in ends)

    @property
    def has_shut(self) -> bool:
        """Return whether the recorded session began to close."""
        return any(record.kind == "shut" for record in self.journal)


def seconds_of(record: Record) -> float:
    """When a record was made, since its session began."""
    return record.time_ns / NS_PER_SECOND


def key_of(record: Record) -> Key:
    """The lane of a record; its name is empty for what the dispatcher does."""
    return record.channel, record.lane or ""


def is_child(lane: Key) -> bool:
    """Return whether a lane is that of a task which a handler has started."""
    return "." in lane[1]


def request_of(lane: Key) -> Key:
    """The lane of the handler that a lane is, or is below."""
    return lane[0], root_of(lane[1])


def root_of(name: str) -> str:
    """`request_of`, of the name of a lane."""
    return name.partition(".")[0]


def is_of_request(lane: Key) -> bool:
    """Whether a lane is that of a handler, and not of a task below it or of the session itself."""
    return lane[1].startswith("r") and not is_child(lane)


def keeper_of(lane: Key) -> Key:
    """The lane that answers for a handler when it asks in rounds."""
    return lane[0], f"{root_of(lane[1])}.{KEEPER}"


def is_keeper(lane: Key) -> bool:
    """Return whether a lane is such a one."""
    return lane[1].endswith(f".{KEEPER}")


def is_expired(record: Record) -> bool:
    """Return whether a record tells that nobody has come back to a handler that had asked."""
    return (
        record.kind == "mark"
        and mark_name(record) == SUSPENDED_MARK
        and decode_body(record, MarkBody).value is None
    )


def is_start(record: Record) -> bool:
    """Return whether a record is the start of a handler."""
    is_named = record.lane is not None and record.kind == "mark"
    return is_named and record.ordinal == START_ORDINAL


def is_in_passing(record: Record) -> bool:
    """Return whether a record is of something that a lane did without waiting for its turn."""
    return record.kind == "val" or (
        record.kind == "mark" and record.lane is not None and mark_name(record) in _IN_PASSING
    )


def begins_session(record: Record) -> bool:
    """Return whether a record is the beginning of one of the sessions of a file."""
    return record.kind == "mark" and record.lane is None and mark_name(record) == SESSION_MARK


class _Named(msgspec.Struct):
    name: str = ""


def mark_name(record: Record) -> str:
    """The name of a mark, and likewise of an effect or of what was read."""
    return decode_body(record, _Named).name


def _is_announcement(record: Record) -> bool:
    return record.kind == "mark" and record.lane is not None and mark_name(record) == CHOICE


def _is_read(record: Record, name: str) -> bool:
    return record.kind == "val" and mark_name(record) == name


def request_frame(journal: Sequence[Record], lane: str) -> bytes:
    """The request or notification that a lane belongs to; empty if none is recorded."""
    number, place = message_position(lane) or _NOWHERE
    frames = (body_bytes(record) for record in journal if record.number == number)
    return message_at(next(frames, None) or b"", place)


def _cancels(
    record: Record, request_ids: Sequence[int | str | UnsetType], *, is_kept: bool
) -> bool:
    if record.kind == "mark":
        return mark_name(record) == DRAINED
    if record.kind == "shut":
        return is_kept
    if record.kind != "in":
        return False
    messages = messages_of(body_bytes(record) or b"")
    cancels = (each for each in messages if each.method == CANCELLED)
    return any(each.params.get("requestId") in request_ids for each in cancels)


# --------------------
# A recording of any role as the conversation that it holds.


def load_conversation(path: str | os.PathLike[str], *, channel: int | None = None) -> Conversation:
    """What client and server said in a recording; flaws of the file are passed over.

    Raises:
        RecordingError: The file is no recording, or holds several sessions and `channel` names
            none of them.
    """
    items = read_recording(open_recording(path))
    return conversation((item for item in items if not isinstance(item, Damage)), channel=channel)


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
    opening = decode_body(records[0], OpenBody)
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
    frame, envelope = body_bytes(record), record.envelope or {}
    assert frame is not None
    if "discarded" in envelope:
        return Oversized(size=envelope["discarded"], prefix=frame)
    return with_principal(frame, envelope.get("principal"))


def _read(path: str | os.PathLike[str]) -> tuple[list[Record], list[str]]:
    records: list[Record] = []
    notes: list[str] = []
    for item in read_recording(open_recording(path)):
        if isinstance(item, Damage):
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


def load_trace(path: str | os.PathLike[str]) -> Trace:
    """A recording as the player needs it.

    Raises:
        RecordingError: The file is no recording, or one that strict replay cannot do.
    """
    loaded = load(path, purpose="strict replay")
    journal = loaded.journal
    return Trace(
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
    body_bytes(record)


def _check_in(record: Record) -> None:
    envelope = record.envelope or {}
    said = isinstance(envelope.get("discarded", 0), int)
    said = said and isinstance(envelope.get("principal", ""), str)
    if body_bytes(record) is None or not said:
        raise RecordingError(f"record {record.number}: an `in` without its frame")


def _check_shut(record: Record) -> None:
    cause = decode_body(record, ShutBody).cause
    if cause not in _CAUSES:
        raise RecordingError(f"record {record.number}: an unknown cause of `shut`: {cause!r}")


def _check_body(body_type: type[Any]) -> Callable[[Record], None]:
    def check(record: Record) -> None:
        decode_body(record, body_type)

    return check


_CHECKS: Final[Mapping[str, Callable[[Record], None]]] = {
    "in": _check_in,
    "shut": _check_shut,
    "mark": _check_body(MarkBody),
    "cmd": _check_body(CommandBody),
    "val": _check_body(ValueBody),
    "end": _check_body(EndBody),
}
