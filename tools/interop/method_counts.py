"""Counts of methods and protocol features in a recorded session, by direction.

The counts come from our side's recording, not from what a peer claims. An input request in an
`input_required` result counts as the server request that it replaces.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import attrs
import msgspec
from facts import FACTS, has

from mcp_trio._journal.records import MarkBody, OpenBody, decode_body
from mcp_trio._protocol.metadata import LOG_LEVEL, PROTOCOL_VERSION, SERVER_INFO, SUBSCRIPTION_ID
from mcp_trio._protocol.methods import CANCELLED, METHODS, Role
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.recording import Damage, Record, body_bytes, read_recording


def records_of(lines: Iterable[bytes]) -> tuple[list[Record], list[str]]:
    """Return the records of a recording, and sentences about its damage or missing end."""
    records: list[Record] = []
    failures: list[str] = []
    for item in read_recording(lines):
        if isinstance(item, Damage):
            failures.append(f"line {item.line} of the recording: {item.text}")
        else:
            records.append(item)
    if not records or records[-1].kind != "end":
        failures.append("the recording has no end")
    return records, failures


Json: TypeAlias = Mapping[str, Any]

NOTHING: Final[Json] = MappingProxyType({})


class Sent(NamedTuple):
    """A request, a notification, or the result or error of a request."""

    sender: Role
    method: str
    params: Json = NOTHING
    result: Json = NOTHING
    error: Json = NOTHING

    @property
    def meta(self) -> Json:
        found: Json = (self.params or self.result).get("_meta") or {}
        return found


@attrs.frozen
class Feature:
    """A feature that one side uses; `since` names its protocol versions in `facts.json`."""

    name: str
    sender: Role
    since: str
    is_in: Callable[[Sent], bool]

    def passes(self, sent: Sent) -> bool:
        """Return whether the sent message uses the feature."""
        return sent.sender is self.sender and self.is_in(sent)


def _of(method: str, is_in: Callable[[Sent], object]) -> Callable[[Sent], bool]:
    return lambda sent: sent.method == method and bool(is_in(sent))


def _tools(member: str) -> Callable[[Sent], bool]:
    return _of("tools/list", lambda it: any(member in tool for tool in it.result.get("tools", ())))


def _content(kind: str) -> Callable[[Sent], bool]:
    return _of("tools/call", lambda it: kind in _kinds(it.result.get("content", ())))


def _kinds(content: Any) -> list[str]:
    blocks: Iterable[Json] = content if isinstance(content, list) else [content] if content else ()
    return [block["type"] for block in blocks]


def _fields(sent: Sent) -> Iterable[Json]:
    fields: Iterable[Json] = sent.params.get("requestedSchema", {}).get("properties", {}).values()
    return fields


def _in_params(method: str, member: str) -> Callable[[Sent], bool]:
    return _of(method, lambda it: member in it.params)


def _is_url(sent: Sent) -> bool:
    return sent.params.get("mode") == "url"


def _has_default(sent: Sent) -> bool:
    """Return whether a form has the default of a text; defaults of booleans are older."""
    return any(isinstance(field.get("default"), str) for field in _fields(sent))


_SAMPLING: Final = "sampling/createMessage"
_ELICITATION: Final = "elicitation/create"
_SERVER, _CLIENT = Role.SERVER, Role.CLIENT


FEATURES: Final = (
    Feature("annotations of tools", _SERVER, "annotations", _tools("annotations")),
    Feature("titles", _SERVER, "titles", _tools("title")),
    Feature("icons", _SERVER, "icons", _tools("icons")),
    Feature("output schemas", _SERVER, "structure", _tools("outputSchema")),
    Feature(
        "structured content", _SERVER, "structure", lambda it: "structuredContent" in it.result
    ),
    Feature("audio", _SERVER, "audio", _content("audio")),
    Feature("resource links", _SERVER, "links", _content("resource_link")),
    Feature(
        "completions capability",
        _SERVER,
        "completions",
        lambda it: "completions" in it.result.get("capabilities", {}),
    ),
    Feature(
        "messages of progress",
        _SERVER,
        "progress_messages",
        _in_params("notifications/progress", "message"),
    ),
    Feature(
        "context of completions",
        _CLIENT,
        "completion_context",
        _in_params("completion/complete", "context"),
    ),
    Feature("forms", _SERVER, "elicitation", _of(_ELICITATION, _fields)),
    Feature("defaults of forms", _SERVER, "choices", _of(_ELICITATION, _has_default)),
    Feature("questions by URL", _SERVER, "urls", _of(_ELICITATION, _is_url)),
    Feature(
        "errors that require a URL",
        _SERVER,
        "url_errors",
        lambda it: it.error.get("code") == FACTS.url_required,
    ),
    Feature("tools for models", _SERVER, "model_tools", _in_params(_SAMPLING, "tools")),
    Feature(
        "use of tools by models",
        _CLIENT,
        "model_tools",
        _of(_SAMPLING, lambda it: "tool_use" in _kinds(it.result.get("content"))),
    ),
    Feature(
        "input required",
        _SERVER,
        "rounds",
        lambda it: it.result.get("resultType") == "input_required",
    ),
    Feature("input responses", _CLIENT, "rounds", lambda it: "inputResponses" in it.params),
    Feature("request states", _CLIENT, "rounds", lambda it: "requestState" in it.params),
    Feature("subscription ids", _SERVER, "rounds", lambda it: SUBSCRIPTION_ID in it.meta),
    Feature("cache hints", _SERVER, "rounds", lambda it: "ttlMs" in it.result),
    Feature("log levels of requests", _CLIENT, "rounds", lambda it: LOG_LEVEL in it.meta),
    Feature("server info of results", _SERVER, "rounds", lambda it: SERVER_INFO in it.meta),
)


ERROR_ANSWER: Final = "(error answer)"

# Requests of servers that are questions in results where there is no session.
QUESTIONS: Final = ("sampling/createMessage", "roots/list", "elicitation/create")


class Row(NamedTuple):
    """A method, a feature or an error answer, and the side that sends it."""

    name: str
    sender: Role


@attrs.define
class Count:
    """The number of messages sent, and of requests among them that got a result."""

    sent: int = 0
    answered: int = 0


@attrs.define
class SessionCounts:
    """The counts of one recording.

    `failures` are sentences: damage of the recording, handlers of ours that went on after their
    cancellation, and features of ours that the protocol version does not have.
    """

    protocol_version: str = ""
    counts: dict[Row, Count] = attrs.field(factory=dict)
    failures: list[str] = attrs.field(factory=list)

    def count(self, row: Row) -> Count:
        return self.counts.setdefault(row, Count())

    def seen(self, row: Row) -> int:
        """Return the number of results for a request, and of messages for everything else."""
        count, method = self.count(row), METHODS.get(row.name)
        # A cancelled subscription request gets no result.
        is_answered = method is not None and method.is_request and not method.is_subscription
        return count.answered if is_answered else count.sent


def rows(protocol_version: str) -> list[Row]:
    """Return the table's rows: methods by sender, features, and error answers."""
    facts = PROTOCOL_VERSIONS[protocol_version]
    methods = [
        Row(method.name, sender)
        for method in METHODS.values()
        for sender in Role
        if sender in method.senders
        and (facts in method.protocol_versions or (facts.is_stateless and method.name in QUESTIONS))
    ]
    features = [
        Row(each.name, each.sender) for each in FEATURES if has(protocol_version, each.since)
    ]
    return [*methods, *features, *(Row(ERROR_ANSWER, sender) for sender in Role)]


def count_session(recording: Path) -> SessionCounts:
    """Count the messages of a recorded session."""
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
        self.session_counts = SessionCounts()
        self.senders: Mapping[str, Role] = {}
        self.ours: Role | None = None
        # Requests without an answer by sender and id, and the lanes of their handlers here.
        self.pending: dict[tuple[Role, int | str | None], tuple[Row, str]] = {}
        self.unstopped: set[str] = set()
        # The methods of the questions in results, by their keys.
        self.questions: dict[str, str] = {}
        self.our_features: set[str] = set()

    def read(self, records: Iterable[Record], failures: Iterable[str]) -> SessionCounts:
        for record in records:
            _READERS.get(record.kind, _pass)(self, record)
        self.session_counts.failures += [
            f"lane {lane} went on after its cancellation" for lane in self.unstopped
        ]
        self.session_counts.failures += self.unsupported_features()
        self.session_counts.failures += failures
        return self.session_counts

    def unsupported_features(self) -> list[str]:
        if not (protocol_version := self.session_counts.protocol_version):
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
            self.session_counts.protocol_version = mark.value["protocol_version"]

    def message(self, record: Record) -> None:
        sender = self.senders[record.kind]
        message = msgspec.json.decode(body_bytes(record) or b"{}", type=_Message)
        if message.method is None:
            self.answer(sender, message)
            return
        row = Row(message.method, sender)
        self.session_counts.count(row).sent += 1
        self.note(Sent(sender, message.method, params=message.params))
        if message.id is not None:
            self.pending[sender, message.id] = row, f"r{record.number}"
            self.read_metadata(message.params)
        elif message.method == CANCELLED and record.kind == "in":
            # One that crossed the answer finds nothing to stop.
            cancelled = self.pending.get((sender, message.params["requestId"]))
            if cancelled is not None:
                self.unstopped.add(cancelled[1])

    def read_metadata(self, params: Mapping[str, Any]) -> None:
        """Read the protocol version and the input responses of a stateless request."""
        protocol_version = (params.get("_meta") or {}).get(PROTOCOL_VERSION)
        self.session_counts.protocol_version = (
            self.session_counts.protocol_version or protocol_version or ""
        )
        for key, response in (params.get("inputResponses") or {}).items():
            method = self.questions.pop(key)
            self.session_counts.count(Row(method, Role.SERVER)).answered += 1
            self.note(Sent(Role.CLIENT, method, result=response))

    def answer(self, sender: Role, message: _Message) -> None:
        asker = next(role for role in Role if role is not sender)
        row, _ = self.pending.pop((asker, message.id), (None, ""))
        if row is None:
            self.session_counts.failures.append(
                f"the {sender.value} answered {message.id!r}: no request"
            )
        elif message.error is not None:
            self.session_counts.count(Row(ERROR_ANSWER, sender)).sent += 1
            self.note(Sent(sender, row.name, error=message.error))
        else:
            self.session_counts.count(row).answered += 1
            self.note(Sent(sender, row.name, result=message.result or {}))
            self.ask((message.result or {}).get("inputRequests") or {})

    def ask(self, questions: Mapping[str, Mapping[str, Any]]) -> None:
        """Count the input requests of an `input_required` result."""
        for key, question in questions.items():
            self.questions[key] = question["method"]
            self.session_counts.count(Row(question["method"], Role.SERVER)).sent += 1
            params = question.get("params") or {}
            self.note(Sent(Role.SERVER, question["method"], params=params))

    def note(self, sent: Sent) -> None:
        """Count the features of a sent message."""
        for feature in FEATURES:
            if feature.passes(sent):
                self.session_counts.count(Row(feature.name, feature.sender)).sent += 1
                if sent.sender is self.ours:
                    self.our_features.add(feature.name)

    def stop(self, record: Record) -> None:
        self.unstopped.discard(record.lane or "")


def _pass(_counter: _Counter, _record: Record) -> None:
    """Ignore records of handlers."""


_READERS: Final = {
    "open": _Counter.open,
    "mark": _Counter.mark,
    "in": _Counter.message,
    "out": _Counter.message,
    "cxl": _Counter.stop,
}
