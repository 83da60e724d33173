"""The inputs of a sweep: messages, results of effects, and outcomes of a recording."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import msgspec
from msgspec import UNSET, UnsetType

from mcp_trio._journal.records import (
    LOCK,
    PATCHED_MARK,
    SLEEP,
    TIMEOUT,
    CommandBody,
    MarkBody,
    OpenBody,
    Record,
    ValueBody,
    body_bytes,
    decode_body,
    encode_body,
    message_name,
    messages_in,
)
from mcp_trio._journal.redaction import Redactor, redactor_for_replay
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._replay.trace import (
    Message,
    call_text,
    frame_in,
    load,
    message_of,
    root_of,
    seconds_of,
)
from mcp_trio._session.input_required import SUSPENDED_MARK
from mcp_trio.errors import RecordingError

# These do not end as recorded: a lock excludes, and a sleep takes the time that it says.
_OWN: Final = frozenset({SLEEP, LOCK, TIMEOUT})

# What stands for each character of a secret; good in texts and in numbers.
_MASK: Final = b"1"

# The shortest time that counts as the longest which anything took.
_LONGEST_SECONDS_MIN: Final = 1e-3


@attrs.frozen
class Told:
    """How something ended that a handler waited for: the kind and the body of its record."""

    kind: str
    body: bytes


@attrs.frozen(kw_only=True)
class Input:
    """A frame of the client. `after` tells how many answers it had when it sent it."""

    number: int
    seconds: float
    frame: bytes | Oversized
    after: int


@attrs.define
class RequestOutcome:
    """What a request came to: its notifications and its answer, and each lane's effects."""

    frames: list[bytes] = attrs.field(factory=list[bytes])
    commands: dict[str, list[bytes]] = attrs.field(factory=dict[str, list[bytes]])
    is_answered: bool = False

    def changed(self, change: Callable[[str, bytes], bytes]) -> "RequestOutcome":
        """The same, with what `change` makes of each record's kind and body."""
        return RequestOutcome(
            frames=[change("out", frame) for frame in self.frames],
            commands={
                lane: [change("cmd", body) for body in bodies]
                for lane, bodies in self.commands.items()
            },
            is_answered=self.is_answered,
        )


@attrs.define
class Outcomes:
    """What all requests came to, by the lanes of their handlers."""

    requests: dict[str, RequestOutcome] = attrs.field(factory=dict[str, RequestOutcome])

    def sent(self, lane: str, message: Message, frame: bytes) -> None:
        """A lane sends a message; questions to the client do not count."""
        if not message.is_request:
            outcome = self._of(lane)
            outcome.frames.append(frame)
            outcome.is_answered |= message.is_answer

    def commanded(self, lane: str, command: CommandBody) -> None:
        """A lane does an effect; a timeout is none, nor a lock, being what a race is mended by."""
        if command.name not in {LOCK, TIMEOUT}:
            self._of(lane).commands.setdefault(lane, []).append(encode_body(command))

    def _of(self, lane: str) -> RequestOutcome:
        return self.requests.setdefault(root_of(lane), RequestOutcome())


def passing_command(name: str, arguments: bytes) -> CommandBody:
    """What is done in passing, as if it were waited for."""
    return CommandBody(name=name, arguments=msgspec.json.decode(arguments))


@attrs.frozen(kw_only=True)
class SweepTrace:
    """A recorded session, taken apart.

    Attributes:
        opening: What was known when the recording began.
        inputs: What the client sent, but for its answers.
        answered: The lanes of the requests that were answered, in that order.
        effects: How effects ended, by lane and name, in order.
        values: What was read in passing, alike.
        answers: What the client answered, by lane and method, in order.
        patches: The changes of the code that lanes knew.
        outcomes: What the requests came to.
        calls: What each request asks for, in words.
        longest_seconds: How long the slowest effect or answer took.
        seconds: How long the session took.
        redactor: What knows the secrets of a redacted recording.
    """

    opening: OpenBody
    inputs: Sequence[Input]
    answered: Sequence[str]
    effects: Mapping[tuple[str, str], Sequence[Told]]
    values: Mapping[tuple[str, str], Sequence[Told]]
    answers: Mapping[tuple[str, str], Sequence[bytes]]
    patches: frozenset[tuple[str, Any]]
    outcomes: Outcomes
    calls: Mapping[str, str]
    longest_seconds: float
    seconds: float
    redactor: Redactor | None

    def without_secrets(self, *outcomes: RequestOutcome) -> Sequence[RequestOutcome]:
        """The outcomes with the same at every place of a secret.

        A recording has tokens there. Without its key, the token of what the handlers themselves put
        there is another one now. A shorter one than is followed stays: it would be found anywhere.
        """
        if self.redactor is None:
            return outcomes
        redacted = [outcome.changed(self.redactor.redact) for outcome in outcomes]
        manifest = self.redactor.manifest()
        tokens = [each for each in manifest["tokens"] if len(each) >= manifest["follow_chars_min"]]
        tokens.sort(key=len, reverse=True)
        found = re.compile("|".join(map(re.escape, tokens)).encode())
        return [outcome.changed(lambda _, body: found.sub(_mask, body)) for outcome in redacted]


def _mask(token: re.Match[bytes]) -> bytes:
    return _MASK * len(token[0])


def load_sweep_trace(path: str | os.PathLike[str]) -> SweepTrace:
    """Read a recording of role `server`, of one session.

    Raises:
        RecordingError: It is another, or no recording.
    """
    loaded = load(path, purpose="a sweep")
    if any(record.channel for record in loaded.journal):
        raise RecordingError("a sweep takes a recording of one session; this one holds several")
    reading = _Reading()
    for record in loaded.journal:
        reading.read(record)
    redaction = loaded.opening.redaction
    redactor = None if redaction is None else redactor_for_replay(redaction, loaded.journal)
    return reading.trace(loaded.opening, redactor)


_Found = defaultdict[tuple[str, str], list[Told]]


@attrs.define
class _Reading:
    """Takes a journal apart, record by record."""

    inputs: list[Input] = attrs.field(factory=list[Input])
    effects: _Found = attrs.field(factory=lambda: _Found(list))
    values: _Found = attrs.field(factory=lambda: _Found(list))
    answers: dict[tuple[str, str], list[bytes]] = attrs.field(
        factory=dict[tuple[str, str], list[bytes]]
    )
    patches: set[tuple[str, Any]] = attrs.field(factory=set[tuple[str, Any]])
    outcomes: Outcomes = attrs.field(factory=Outcomes)
    calls: dict[str, str] = attrs.field(factory=dict[str, str])
    answered: list[str] = attrs.field(factory=list[str])
    longest_seconds: float = _LONGEST_SECONDS_MIN
    seconds: float = 0.0
    _asked: dict[int | str, tuple[str, str, float]] = attrs.field(
        factory=dict[int | str, tuple[str, str, float]]
    )
    _running: dict[str, tuple[CommandBody, float]] = attrs.field(
        factory=dict[str, tuple[CommandBody, float]]
    )

    def read(self, record: Record) -> None:
        """One more record."""
        self.seconds = seconds_of(record)
        read = _READERS.get(record.kind)
        if read is not None:
            read(self, record)

    def trace(self, opening: OpenBody, redactor: Redactor | None) -> SweepTrace:
        """All of it; an effect that goes on where the recording was cut never ends."""
        for lane, (command, _) in self._running.items():
            self.effects[lane, command.name].append(Told("cxl", b"null"))
        return SweepTrace(
            opening=opening,
            inputs=self.inputs,
            answered=self.answered,
            effects=self.effects,
            values=self.values,
            answers=self.answers,
            patches=frozenset(self.patches),
            outcomes=self.outcomes,
            calls=self.calls,
            longest_seconds=self.longest_seconds,
            seconds=self.seconds,
            redactor=redactor,
        )

    def _took_since(self, began: float) -> None:
        self.longest_seconds = max(self.longest_seconds, self.seconds - began)

    def took(self, record: Record) -> None:
        """`in`: an answer belongs to who asked, anything else is an input."""
        messages = messages_in(body_bytes(record) or b"")
        answers = [self._took_answer(frame) for frame in messages]
        if all(answers):
            return
        for place, frame in enumerate(messages):
            self.calls[f"r{message_name(record.number, place)}"] = call_text(frame)
        self.inputs.append(
            Input(
                number=record.number,
                seconds=self.seconds,
                frame=frame_in(record),
                after=len(self.answered),
            )
        )

    def _took_answer(self, frame: bytes) -> bool:
        message = message_of(frame)
        asked = None if isinstance(message.id, UnsetType) else self._asked.get(message.id)
        if not message.is_answer or asked is None:
            return False
        lane, method, began = asked
        self.answers.setdefault((lane, method), []).append(frame)
        self._took_since(began)
        return True

    def sent(self, record: Record) -> None:
        """`out`."""
        if record.lane is None:
            return
        frame = body_bytes(record) or b""
        message = message_of(frame)
        self.outcomes.sent(record.lane, message, frame)
        if message.is_request and not isinstance(message.id, UnsetType):
            self._asked[message.id] = (record.lane, message.method, self.seconds)
        elif message.is_answer:
            self.answered.append(record.lane)

    def commanded(self, record: Record) -> None:
        """`cmd`."""
        command = decode_body(record, CommandBody)
        self._running[record.lane or ""] = (command, self.seconds)
        self.outcomes.commanded(record.lane or "", command)

    def resumed(self, record: Record) -> None:
        """`res`, `err` or `cxl`: of an effect, if the lane had one begun."""
        running = self._running.pop(record.lane or "", None)
        if running is not None:
            command, began = running
            told = Told(record.kind, body_bytes(record) or b"null")
            self.effects[record.lane or "", command.name].append(told)
            if command.name not in _OWN:
                self._took_since(began)

    def valued(self, record: Record) -> None:
        """`val`."""
        body = decode_body(record, ValueBody)
        if isinstance(body.arguments, msgspec.Raw):
            command = passing_command(body.name, bytes(body.arguments))
            self.outcomes.commanded(record.lane or "", command)
        if body.error is UNSET:
            told = Told("res", bytes(body.value) if isinstance(body.value, msgspec.Raw) else b"")
        else:
            told = Told("err", encode_body(body.error))
        self.values[record.lane or "", body.name].append(told)

    def marked(self, record: Record) -> None:
        """`mark`."""
        body = decode_body(record, MarkBody)
        if body.name == SUSPENDED_MARK:
            raise RecordingError(
                "a sweep does not take a recording in which handlers asked in rounds: with which"
                " state a client comes back is not known before they have asked"
            )
        if body.name == PATCHED_MARK:
            self.patches.add((record.lane or "", body.value))


_READERS: Final = {
    "in": _Reading.took,
    "out": _Reading.sent,
    "cmd": _Reading.commanded,
    "res": _Reading.resumed,
    "err": _Reading.resumed,
    "cxl": _Reading.resumed,
    "val": _Reading.valued,
    "mark": _Reading.marked,
}
