"""Counts of methods in a session, by direction and kind of answer.

Counted in our recording of the session: not what a peer says that it did, but what went by. A
question that travels in a result, see `input required`, counts as the request that it stands for.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import msgspec
from facts import has
from features import FEATURES, Passed
from recorded_session import records_of

from mcp_trio._journal.records import MarkBody, OpenBody, decode_body
from mcp_trio._protocol.metadata import PROTOCOL_VERSION
from mcp_trio._protocol.methods import CANCELLED, METHODS, Role
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.recording import Record, body_bytes

ERROR_ANSWER: Final = "(error answer)"

# Requests of servers that are questions in results where there is no session.
QUESTIONS: Final = ("sampling/createMessage", "roots/list", "elicitation/create")


class Row(NamedTuple):
    """A method, a feature or an error answer, and who sends it."""

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
    peer cancelled and that did not stop, words of ours that the revision does not know.
    """

    protocol_version: str = ""
    counts: dict[Row, Count] = attrs.field(factory=dict)
    faults: list[str] = attrs.field(factory=list)

    def count(self, row: Row) -> Count:
        """The counts of a row."""
        return self.counts.setdefault(row, Count())

    def seen(self, row: Row) -> int:
        """What fills the cell: what passed, and for most requests, what got its result."""
        count, method = self.count(row), METHODS.get(row.name)
        # A request that stands gets none when nobody wants it any more.
        is_answered = method is not None and method.is_request and not method.is_subscription
        return count.answered if is_answered else count.sent


def rows(protocol_version: str) -> list[Row]:
    """Every method of a revision by each side that may send it, its features, and error answers."""
    facts = PROTOCOL_VERSIONS[protocol_version]
    methods = [
        Row(method.name, sender)
        for method in METHODS.values()
        for sender in Role
        if sender in method.senders
        and (method.exists_in(facts) or (facts.is_stateless and method.name in QUESTIONS))
    ]
    features = [
        Row(each.name, each.sender) for each in FEATURES if has(protocol_version, each.since)
    ]
    return [*methods, *features, *(Row(ERROR_ANSWER, sender) for sender in Role)]


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
    params: dict[str, Any] = {}
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class _Counter:
    def __init__(self) -> None:
        self.tally = Tally()
        self.senders: Mapping[str, Role] = {}
        self.ours: Role | None = None
        # Requests without an answer by who sent them, and the lanes that those would have here.
        self.pending: dict[tuple[Role, int | str | None], tuple[Row, str]] = {}
        self.unstopped: set[str] = set()
        # The methods of the questions in results, by their keys.
        self.questions: dict[str, str] = {}
        self.our_features: set[str] = set()

    def read(self, records: Iterable[Record], faults: Iterable[str]) -> Tally:
        for record in records:
            _READERS.get(record.kind, _pass)(self, record)
        self.tally.faults += [f"lane {lane} was cancelled, and went on" for lane in self.unstopped]
        self.tally.faults += self.foreign_words()
        self.tally.faults += faults
        return self.tally

    def foreign_words(self) -> list[str]:
        """What we sent that the revision does not know."""
        if not (protocol_version := self.tally.protocol_version):
            return []
        known = {feature.name for feature in FEATURES if has(protocol_version, feature.since)}
        return [
            f"we sent {name} at {protocol_version}" for name in sorted(self.our_features - known)
        ]

    def open(self, record: Record) -> None:
        is_client = decode_body(record, OpenBody).role == "client"
        self.ours, theirs = (Role.CLIENT, Role.SERVER) if is_client else (Role.SERVER, Role.CLIENT)
        self.senders = {"out": self.ours, "in": theirs}

    def mark(self, record: Record) -> None:
        mark = decode_body(record, MarkBody)
        if mark.name == "negotiated":
            self.tally.protocol_version = mark.value["revision"]

    def frame(self, record: Record) -> None:
        sender = self.senders[record.kind]
        message = msgspec.json.decode(body_bytes(record) or b"{}", type=_Message)
        if message.method is None:
            self.answer(sender, message)
            return
        row = Row(message.method, sender)
        self.tally.count(row).sent += 1
        self.note(Passed(sender, message.method, params=message.params))
        if message.id is not None:
            self.pending[sender, message.id] = row, f"r{record.number}"
            self.read_metadata(message.params)
        elif message.method == CANCELLED and record.kind == "in":
            # One that crossed the answer finds nothing to stop.
            cancelled = self.pending.get((sender, message.params["requestId"]))
            if cancelled is not None:
                self.unstopped.add(cancelled[1])

    def read_metadata(self, params: Mapping[str, Any]) -> None:
        """What a request without a session tells: the revision, and the answers to questions."""
        protocol_version = (params.get("_meta") or {}).get(PROTOCOL_VERSION)
        self.tally.protocol_version = self.tally.protocol_version or protocol_version or ""
        for key, response in (params.get("inputResponses") or {}).items():
            method = self.questions.pop(key)
            self.tally.count(Row(method, Role.SERVER)).answered += 1
            self.note(Passed(Role.CLIENT, method, result=response))

    def answer(self, sender: Role, message: _Message) -> None:
        asker = next(role for role in Role if role is not sender)
        row, _ = self.pending.pop((asker, message.id), (None, ""))
        if row is None:
            self.tally.faults.append(f"the {sender.value} answered {message.id!r}: no request")
        elif message.error is not None:
            self.tally.count(Row(ERROR_ANSWER, sender)).sent += 1
            self.note(Passed(sender, row.name, error=message.error))
        else:
            self.tally.count(row).answered += 1
            self.note(Passed(sender, row.name, result=message.result or {}))
            self.ask((message.result or {}).get("inputRequests") or {})

    def ask(self, questions: Mapping[str, Mapping[str, Any]]) -> None:
        """A result asks for more."""
        for key, question in questions.items():
            self.questions[key] = question["method"]
            self.tally.count(Row(question["method"], Role.SERVER)).sent += 1
            params = question.get("params") or {}
            self.note(Passed(Role.SERVER, question["method"], params=params))

    def note(self, passed: Passed) -> None:
        """Count the features of what was sent."""
        for feature in FEATURES:
            if feature.passes(passed):
                self.tally.count(Row(feature.name, feature.sender)).sent += 1
                if passed.sender is self.ours:
                    self.our_features.add(feature.name)

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
