"""How often each method passed in a session, in which direction, and how it was answered.

Counted in our recording of the session: not what a peer says that it did, but what went by.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import msgspec
from recorded import records_of

from mcp_trio._journal.records import MarkBody, OpenBody, body_of
from mcp_trio._protocol.methods import CANCELLED, METHODS
from mcp_trio._protocol.states import Role
from mcp_trio.recording import Record, frame_of

ERROR_ANSWER: Final = "(error answer)"


class Row(NamedTuple):
    """A method, or an error answer, and who sends it."""

    name: str
    sender: Role


@attrs.define
class Count:
    """How often a method was sent, and how many of these were answered with a result."""

    sent: int = 0
    answered: int = 0


@attrs.define
class Tally:
    """What is known of a session from its recording.

    `faults` are sentences about what must not be: flaws of the recording, handlers of ours that the
    peer cancelled and that did not stop.
    """

    revision: str = ""
    counts: dict[Row, Count] = attrs.field(factory=dict)
    faults: list[str] = attrs.field(factory=list)

    def count(self, row: Row) -> Count:
        """The counts of a row."""
        return self.counts.setdefault(row, Count())

    def seen(self, row: Row) -> int:
        """What fills the cell: a notification that passed, a request that got its result."""
        count = self.count(row)
        method = METHODS.get(row.name)
        return count.answered if method is not None and method.is_request else count.sent


def rows() -> list[Row]:
    """Every method of the protocol by each side that may send it, and error answers by both."""
    methods = [
        Row(method.name, sender)
        for method in METHODS.values()
        for sender in Role
        if sender in method.senders
    ]
    return [*methods, *(Row(ERROR_ANSWER, sender) for sender in Role)]


def tally_of(recording: Path) -> Tally:
    """Count what passed in a session.

    Raises:
        RecordingError: The file is no recording.
    """
    with recording.open("rb") as lines:
        return _Counter().read(*records_of(lines))


class _Message(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    params: Mapping[str, Any] | None = None
    error: Any = None


class _Counter:
    def __init__(self) -> None:
        self.tally = Tally()
        self.senders: Mapping[str, Role] = {}
        # Requests without an answer by who sent them, and the lanes that those would have here.
        self.pending: dict[tuple[Role, int | str | None], tuple[Row, str]] = {}
        self.unstopped: set[str] = set()

    def read(self, records: Iterable[Record], faults: Iterable[str]) -> Tally:
        for record in records:
            _READERS.get(record.kind, _pass)(self, record)
        self.tally.faults += [f"lane {lane} was cancelled, and went on" for lane in self.unstopped]
        self.tally.faults += faults
        return self.tally

    def open(self, record: Record) -> None:
        is_client = body_of(record, OpenBody).role == "client"
        ours, theirs = (Role.CLIENT, Role.SERVER) if is_client else (Role.SERVER, Role.CLIENT)
        self.senders = {"out": ours, "in": theirs}

    def mark(self, record: Record) -> None:
        mark = body_of(record, MarkBody)
        if mark.name == "negotiated":
            self.tally.revision = mark.value["revision"]

    def frame(self, record: Record) -> None:
        sender = self.senders[record.kind]
        message = msgspec.json.decode(frame_of(record) or b"{}", type=_Message)
        if message.method is None:
            self.answer(sender, message)
            return
        row = Row(message.method, sender)
        self.tally.count(row).sent += 1
        if message.id is not None:
            self.pending[sender, message.id] = row, f"r{record.number}"
        elif message.method == CANCELLED and record.kind == "in":
            # One that crossed the answer finds nothing to stop.
            cancelled = self.pending.get((sender, (message.params or {})["requestId"]))
            if cancelled is not None:
                self.unstopped.add(cancelled[1])

    def answer(self, sender: Role, message: _Message) -> None:
        asker = next(role for role in Role if role is not sender)
        row, _ = self.pending.pop((asker, message.id), (None, ""))
        if row is None:
            self.tally.faults.append(f"the {sender.value} answered {message.id!r}: no request")
        elif message.error is None:
            self.tally.count(row).answered += 1
        else:
            self.tally.count(Row(ERROR_ANSWER, sender)).sent += 1

    def stop(self, record: Record) -> None:
        self.unstopped.discard(record.lane or "")


def _pass(_counter: _Counter, _record: Record) -> None:
    """The other kinds are about handlers."""


_READERS: Final = {
    "open": _Counter.open,
    "mark": _Counter.mark,
    "in": _Counter.frame,
    "out": _Counter.frame,
    "cxl": _Counter.stop,
}
