"""The contents of a recording for a sweep: its inputs, recorded outcomes and order of events.

A schedule does not follow the journal. The n-th effect of a name in a lane gets the n-th recorded
outcome, and the outcome of each request is compared with the recorded one.
"""

import hashlib
import math
import os
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

import attrs
import msgspec
from msgspec import UNSET, UnsetType

from mcp_trio._journal.conversation import members_of
from mcp_trio._journal.diff import json_differences
from mcp_trio._journal.records import (
    LOCK,
    SLEEP,
    SUSPENDED_MARK,
    CommandBody,
    MarkBody,
    Record,
    ShutBody,
    ValueBody,
    body_bytes,
    decode_body,
    encode_body,
    message_name,
    messages_in,
)
from mcp_trio._journal.redaction import redactor_for_replay
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._protocol.metadata import PROGRESS_TOKEN
from mcp_trio._protocol.methods import METHODS, PROGRESS
from mcp_trio._recorder.clock import seconds_of
from mcp_trio._replay.trace import (
    MessageFields,
    Trace,
    call_text,
    load_trace,
    message_fields,
    received_data,
    request_lane_name,
)
from mcp_trio._server.caller_limits import recorded_limits
from mcp_trio.errors import NothingCompared, RecordingError

_LONGEST_SECONDS_MIN: Final = 1e-3

# Messages with no other record between them, and at most this time, were read at once.
_READ_NS: Final = 1_000_000

# The context's own calls, whose duration is not that of an external event.
_CONTEXT_CALLS: Final = frozenset({SLEEP, LOCK})

# The digit that replaces each character of a secret; valid in texts and in numbers.
_MASK: Final = b"1"


# Outcomes -----------------------------------------------------------------------------------------


@attrs.define
class RequestOutcome:
    """The outcome of a request: what it sent, and the effects of each of its lanes.

    Attributes:
        messages: The notifications, and the responses.
        commands: The encoded `CommandBody` of each effect, by lane.
        responses: The number of responses, of which a multi round-trip request has several.
    """

    messages: list[bytes] = attrs.field(factory=list[bytes])
    commands: dict[str, list[bytes]] = attrs.field(factory=dict[str, list[bytes]])
    responses: int = 0

    def changed(self, change: Callable[[str, bytes], bytes]) -> "RequestOutcome":
        """Return a copy in which `change`, called with kind and body, replaces each body."""
        return RequestOutcome(
            messages=[change("out", message) for message in self.messages],
            commands={
                lane: [change("cmd", body) for body in bodies]
                for lane, bodies in self.commands.items()
            },
            responses=self.responses,
        )


@attrs.define
class Outcomes:
    """The outcomes of all requests, by the lanes of their handlers."""

    requests: dict[str, RequestOutcome] = attrs.field(factory=dict[str, RequestOutcome])

    def add_message(self, lane: str, fields: MessageFields, message: bytes) -> None:
        """Add a message that a lane sends; requests to the client do not count."""
        if not fields.is_request:
            outcome = self._of(lane)
            outcome.messages.append(message)
            outcome.responses += fields.is_response

    def add_command(self, lane: str, command: CommandBody) -> None:
        """Add an effect of a lane.

        Locks are left out, so that a lock that fixes a race is not a difference. So is whether the
        lane was cancelled when the effect began, which is a matter of time.
        """
        if command.name != LOCK:
            body = encode_body(msgspec.structs.replace(command, cancelled=False))
            self._of(lane).commands.setdefault(lane, []).append(body)

    def _of(self, lane: str) -> RequestOutcome:
        return self.requests.setdefault(request_lane_name(lane), RequestOutcome())

    def digest(self) -> str:
        """Return a digest that is equal for equal outcomes."""
        contents: list[Any] = [
            (lane, outcome.messages, sorted(outcome.commands.items()))
            for lane, outcome in sorted(self.requests.items())
        ]
        return hashlib.sha256(msgspec.json.encode(contents)).hexdigest()[:16]


# The trace ----------------------------------------------------------------------------------------


class Input(msgspec.Struct, frozen=True):
    """Messages of the client that arrived together, as in one read.

    Attributes:
        index: The index of the first record in the journal.
        messages: The messages, or JSON-RPC batches, by the numbers of their records.
        responses_before: The number of responses that the client had received by then.
    """

    index: int
    time_ns: int
    messages: dict[int, bytes | Oversized]
    responses_before: int


class RequestUpdate(msgspec.Struct, frozen=True):
    """A message of the client about a handler's request to it: progress, or the response.

    `index` is that of its record in the journal.
    """

    index: int
    message: bytes

    def to_request(self, request: MessageFields) -> bytes:
        """Return the message for a request that may have another id than the recorded one."""
        message = msgspec.json.decode(self.message)
        if "method" in message:
            token = members_of(request.params.get("_meta")).get(PROGRESS_TOKEN)
            message["params"]["progressToken"] = token
        else:
            message["id"] = request.id
        return encode_body(message)


class SweepTrace:
    """A recorded session, with its inputs, outcomes and order.

    Attributes:
        named: The effects and values in the journal.
        notes: Descriptions of the damage of the file.
        limits: The limits per caller of the command that has recorded the session.
        inputs: The client's messages, except its responses.
        responses: The lanes of the responses to the client, in order; a lane may have several.
        turns: For each lane, the indexes of the records with which it went on, in order.
        states: The request states of a lane that suspends a handler, in order.
        updates: The client's updates on each request of a lane, by lane and method, in order.
        calls: A description of each request, by lane.
        longest_seconds: The longest duration of an effect or of a request to the client.
        seconds: The duration of the session.
    """

    def __init__(self, trace: Trace) -> None:
        redaction, journal = trace.opening.redaction, trace.journal
        self.opening = trace.opening
        self.journal = journal
        self.named = trace.named
        self.notes = trace.notes
        self.digest = hashlib.sha256(msgspec.json.encode(journal)).hexdigest()[:16]
        self.redactor = None if redaction is None else redactor_for_replay(redaction, journal)
        self.limits = recorded_limits(journal)
        self.inputs: list[Input] = []
        self.responses: list[str] = []
        self.turns: dict[str, list[int]] = {}
        self.states: dict[str, list[str]] = {}
        self.updates: defaultdict[tuple[str, str], list[list[RequestUpdate]]] = defaultdict(list)
        self.outcomes = Outcomes()
        self.calls: dict[str, str] = {}
        self.longest_seconds = _LONGEST_SECONDS_MIN
        self.seconds = 0.0
        # While the records are read: the subscriptions, the cause of the shutdown, whether the last
        # record was an input, and the requests to the client that have not ended.
        self._subscriptions: set[str] = set()
        self._cause: str | None = None
        self._is_after_input = False
        self._open_requests: dict[int | str, tuple[list[RequestUpdate], float]] = {}
        for index, record in enumerate(journal):
            self._read(index, record)
        for (_, kind, name), indexes in self.named.indexes.items():
            if kind == "cmd" and name not in _CONTEXT_CALLS:
                for index in indexes:
                    outcome = journal[self.named.outcomes.get(index, index)]
                    seconds = seconds_of(outcome.time_ns) - seconds_of(journal[index].time_ns)
                    self.longest_seconds = max(self.longest_seconds, seconds)

    def time_ns_at(self, rank: float) -> int:
        """Return the time of the record with this index, or of the one after a number between."""
        return self.journal[math.ceil(rank)].time_ns

    def index_at(self, time_ns: float) -> int:
        """Return the index of the first record at a time or later."""
        return bisect_left(self.journal, time_ns, key=lambda record: record.time_ns)

    def without_secrets(self, *outcomes: RequestOutcome) -> Sequence[RequestOutcome]:
        """Return the outcomes with every redacted value replaced by the same digits.

        A redacted recording has tokens in the place of secrets. Without its key, a sweep makes
        other tokens for the values that the handlers return. Tokens too short for the redactor to
        search for are kept, because they would be found in unrelated texts, too.
        """
        if self.redactor is None:
            return outcomes
        redacted = [outcome.changed(self.redactor.redact) for outcome in outcomes]
        manifest = self.redactor.manifest()
        tokens = [each for each in manifest["tokens"] if len(each) >= manifest["follow_chars_min"]]
        tokens.sort(key=len, reverse=True)
        found = re.compile("|".join(map(re.escape, tokens)).encode())
        return [
            outcome.changed(lambda _, body: found.sub(lambda token: _MASK * len(token[0]), body))
            for outcome in redacted
        ]

    def _read(self, index: int, record: Record) -> None:
        self.seconds = seconds_of(record.time_ns)
        lane = record.lane or ""
        if record.lane is not None and record.step_start:
            self.turns.setdefault(lane, []).append(index)
        if record.kind == "in":
            self._read_in(index, record)
            return
        self._is_after_input = False
        match record.kind:
            case "out" if record.lane is not None:
                # No schedule comes to the shutdown of the session, so what it causes is left out:
                # the last messages of subscriptions, and all others if the cause is not "eof".
                is_subscription = request_lane_name(lane) in self._subscriptions
                if self._cause is None or (self._cause == "eof" and not is_subscription):
                    message = body_bytes(record) or b""
                    fields = message_fields(message)
                    self.outcomes.add_message(lane, fields, message)
                    if fields.is_request and not isinstance(fields.id, UnsetType):
                        updates: list[RequestUpdate] = []
                        self.updates[lane, fields.method].append(updates)
                        self._open_requests[fields.id] = (updates, self.seconds)
                    elif fields.is_response:
                        self.responses.append(lane)
            case "cmd":
                self.outcomes.add_command(lane, decode_body(record, CommandBody))
            case "val":
                value = decode_body(record, ValueBody)
                if isinstance(value.arguments, msgspec.Raw):
                    arguments = msgspec.json.decode(value.arguments)
                    command = CommandBody(name=value.name, arguments=arguments)
                    self.outcomes.add_command(lane, command)
            case "mark":
                mark = decode_body(record, MarkBody)
                if mark.name == SUSPENDED_MARK and mark.value is not None:
                    self.states.setdefault(lane, []).append(mark.value)
            case "shut":
                self._cause = decode_body(record, ShutBody).cause
            case _:
                pass

    def _read_in(self, index: int, record: Record) -> None:
        messages = messages_in(body_bytes(record) or b"")
        are_updates = [self._read_update(index, message) for message in messages]
        if all(are_updates):
            return
        for position, message in enumerate(messages):
            lane = f"r{message_name(record.number, position)}"
            method = message_fields(message).method
            self.calls[lane] = call_text(message)
            if method in METHODS and METHODS[method].is_subscription:
                self._subscriptions.add(lane)
        if not (self._is_after_input and record.time_ns <= self.inputs[-1].time_ns + _READ_NS):
            self.inputs.append(Input(index, record.time_ns, {}, len(self.responses)))
        self.inputs[-1].messages[record.number] = received_data(record)
        self._is_after_input = True

    def _read_update(self, index: int, message: bytes) -> bool:
        """Keep an update on a request of a handler; return whether the message is one."""
        fields = message_fields(message)
        about: object = fields.id if fields.is_response else UNSET
        if fields.method == PROGRESS:
            about = fields.params.get(PROGRESS_TOKEN)
        if not isinstance(about, int | str) or about not in self._open_requests:
            return False
        updates, begin = self._open_requests[about]
        updates.append(RequestUpdate(index, message))
        self.longest_seconds = max(self.longest_seconds, self.seconds - begin)
        return True


def load_sweep_trace(path: str | os.PathLike[str]) -> SweepTrace:
    """Load the recording of one session of role `server`.

    Raises:
        RecordingError: The file is no such recording.
        NothingCompared: No request was answered, except handshakes, before the session was shut.
    """
    trace = load_trace(path, purpose="a sweep", runs_lifespans=False)
    if any(record.channel for record in trace.journal):
        raise RecordingError(
            "a sweep takes a recording of one session, and this one holds several: record to a"
            " folder, in which each session gets a file of its own"
        )
    swept = SweepTrace(trace)
    if not swept.responses:  # handshakes are answered without a lane
        raise NothingCompared(
            "nothing would be compared: the recording holds no request that was answered before its"
            " end, except handshakes; record a session that makes requests"
        )
    return swept


# Comparison ---------------------------------------------------------------------------------------


def outcome_differences(
    recorded: RequestOutcome, swept: RequestOutcome
) -> Iterator[tuple[str, object, object]]:
    """Yield the first difference of each lane's effects, then that of the messages.

    A difference has a path, the recorded value and the value under the schedule; `UNSET` stands for
    an absent value.
    """
    for lane in recorded.commands | swept.commands:
        left, right = recorded.commands.get(lane, []), swept.commands.get(lane, [])
        yield from _first_difference(f"effect of lane {lane}", left, right)
    if swept.responses < recorded.responses:
        yield "answer", recorded.messages[-1], UNSET
        return
    yield from _first_difference("", recorded.messages, swept.messages)


def _first_difference(
    name: str, recorded: Sequence[bytes], swept: Sequence[bytes]
) -> Iterator[tuple[str, object, object]]:
    """Yield the first difference of two lists of effects, or of messages if there is no `name`."""
    for left, right in zip_longest(recorded, swept, fillvalue=UNSET):
        if isinstance(left, UnsetType) or isinstance(right, UnsetType):
            yield name or "messages", left, right
            return
        for path, old, new in json_differences(left, right)[:1]:
            yield f"{name or message_fields(left).method or 'answer'} {path}", old, new
            return
