"""The recording that a proxy makes: all messages it forwards, from the server's point of view.

A `MessageJournal` records complete messages, as an HTTP proxy or a bridge has them. A `LineJournal`
records the bytes of a stdio proxy: it divides both streams into lines without dropping a byte, and
gives each line to a `MessageJournal`.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import attrs
import msgspec
from msgspec import Raw

from mcp_trio._journal.conversation import CANCELLED, LISTEN, reference_of
from mcp_trio._journal.records import LOST_MARK, MarkBody, ShutBody, encode_body
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import (
    Decoder,
    ErrorResponse,
    Malformed,
    Message,
    Notification,
    Request,
    Response,
    decoder_for,
    encode_error,
)
from mcp_trio._protocol.methods import INITIALIZE
from mcp_trio._recorder.options import (
    Opening,
    RecordOptions,
    RecordTarget,
    SharedRecording,
    holds_many_sessions,
    recorder_of_session,
)
from mcp_trio._recorder.writer import Recorder
from mcp_trio._transports.stdio import signal_name
from mcp_trio.limits import Limits
from mcp_trio.types import RequestId

if TYPE_CHECKING:
    from mcp_trio._proxy.spans import RequestSpans
    from mcp_trio._recorder.policy import PolicyRun, RecordPolicy

Line: TypeAlias = tuple[bytes, Mapping[str, Any]]
"""A line without its LF, and the envelope of its record: facts that the bytes do not contain.

The envelope of a complete line is empty. Of a line that is longer than the limit, this is a part:
`part` counts the parts from 1. `lf` is False if no LF follows: after the parts before the last, and
at the end of a stream without LF.
"""


class LosslessLineSplitter:
    """A splitter of a byte stream at each LF that drops no byte, unlike `_jsonrpc.lines`.

    A line longer than `line_bytes_max` is split into parts of that length, so no more is buffered.
    """

    def __init__(self, *, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._buffer = bytearray()
        self._parts = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """Yield the lines and parts that `chunk` completes; the iterator has to be exhausted."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield from self._append(end)
            yield self._take_line(has_lf=True)
        yield from self._append(rest)

    def finish(self) -> Iterator[Line]:
        """Yield the last line if the stream ended without LF."""
        if self._buffer:
            yield self._take_line(has_lf=False)

    def _append(self, piece: bytes) -> Iterator[Line]:
        """Add bytes to the buffer; yield the parts of a line that is too long for it."""
        self._buffer += piece
        while len(self._buffer) > self._line_bytes_max:
            self._parts += 1
            part = bytes(self._buffer[: self._line_bytes_max])
            yield part, {"part": self._parts, "lf": False}
            del self._buffer[: self._line_bytes_max]

    def _take_line(self, *, has_lf: bool) -> Line:
        """Empty the buffer; return the line in it, or the last part of the line."""
        envelope: dict[str, Any] = {"part": self._parts + 1} if self._parts else {}
        line = bytes(self._buffer), envelope if has_lf else envelope | {"lf": False}
        self._buffer.clear()
        self._parts = 0
        return line


Direction = Literal["in", "out"]
"""`in` is from the client to the server, `out` from the server to the client."""

Cause = Literal["eof", "signal", "closed", "lost"]

MakeSpans: TypeAlias = Callable[..., "RequestSpans"]
"""Returns the spans of one recording, given its `transport`, `recorder` and `open_max`."""


_COUNTS: Final = ("in", "out", "in_bytes", "out_bytes", "malformed")


@attrs.define(kw_only=True, eq=False, repr=False)
class MessageJournal:
    """The journal of the messages of one session; created by `start_message_journal`.

    `flush` hands the records to the operating system; the proxy calls it before it forwards bytes.

    Attributes:
        recorder: The recorder of the file; None records nothing.
        policy_session: Begins this session again under its policy; None without a policy.
        limits: The limits, of which only `limits.messages.json_depth_max` is used.
        channel: The session's channel, in a file of several sessions.
        counts: Counters of messages, which this class updates, and of bytes, which its callers
            update.
        is_negotiated: Whether the server has answered a handshake.
        spans: The spans of the requests; None without telemetry.
    """

    recorder: Recorder | None
    limits: Limits
    channel: int = 0
    policy_session: "PolicySession | None" = None
    counts: Counter[str] = attrs.field(init=False)
    is_negotiated: bool = attrs.field(default=False, init=False)
    spans: "RequestSpans | None" = None
    _decoder: Decoder = attrs.field(init=False)
    # The latest `initialize` that the server has not answered.
    _initialize: Request | None = attrs.field(default=None, init=False)
    _cause: Cause | None = attrs.field(default=None, init=False)
    _open: dict[RequestId, None] = attrs.field(factory=dict[RequestId, None], init=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = decoder_for(self.limits.messages)
        self._reset_counts()

    def _reset_counts(self) -> None:
        self.counts = Counter(dict.fromkeys(_COUNTS, 0))

    def note_headers(self, headers: Mapping[str, str]) -> None:
        """Keep the headers of the HTTP request for a policy that depends on headers."""
        session = self.policy_session
        if session is not None and session.run.headers:
            session.run.current_headers.set(headers)

    def renew_if_due(self) -> None:
        """Begin another recording if the policy should decide again about what follows.

        A recording that the requests of many clients share has no end of its own. Its proxy calls
        this when a request arrives and none is open.
        """
        session = self.policy_session
        if session is not None and session.is_due(self.recorder):
            self.close()
            self._reset_counts()
            self._cause = None
            self.recorder = session.begin()
            if self.spans is not None:
                self.spans.recorder = self.recorder

    def read(self, data: bytes) -> Sequence[Message]:
        """Return the messages in the bytes of a message or batch, without recording anything."""
        return self._decoder.messages(data)

    def record_received(self, data: bytes, messages: Sequence[Message]) -> bytes:
        """Record and flush a message or batch of the client; return the bytes to forward.

        With telemetry, they have the trace context of the proxy's own spans.
        """
        if self.spans is not None:
            data = self.spans.begin(data, messages)
        self.record("in", data, messages=messages)
        self.flush()
        return data

    def record(
        self,
        direction: Direction,
        data: bytes,
        *,
        envelope: Mapping[str, Any] | None = None,
        messages: Sequence[Message] | None = None,
    ) -> Sequence[Message]:
        """Record the bytes of a message or batch; return its messages.

        A caller that has decoded them already passes `messages`.
        """
        if messages is None:
            messages = self.read(data)
        is_accepted = not any(isinstance(message, Malformed) for message in messages)
        self.counts["malformed"] += not is_accepted
        record = self.record_bytes(direction, data, envelope=envelope, embed=is_accepted)
        if self.spans is not None and direction == "in":
            self.spans.add_record(messages, record)
        elif self.spans is not None:
            self.spans.end_answered(data, messages)
        for message in messages:
            if direction == "in":
                self._note_sent(message)
            elif isinstance(message, Response | ErrorResponse):
                if message.id is not None:
                    self._open.pop(message.id, None)
                self._note_response(message)
        return messages

    def _note_sent(self, message: Message) -> None:
        """Note a request or a cancellation of the client."""
        if isinstance(message, Request):
            if message.method == INITIALIZE:
                self._initialize = message
            if message.method != LISTEN and len(self._open) < self.limits.requests.queued_max:
                self._open[message.id] = None
        elif isinstance(message, Notification) and message.method == CANCELLED:
            cancelled = reference_of(message)
            if cancelled is not None:
                self._open.pop(cancelled, None)

    def _note_response(self, message: Response | ErrorResponse) -> None:
        """If this answers `initialize`, record what was negotiated, as a session does."""
        request = self._initialize
        if request is None or message.id != request.id:
            return
        self._initialize = None
        if isinstance(message, Response):
            self.is_negotiated = True
            # Values are kept as they are written: Python could not write all of them again.
            params, result = (
                msgspec.json.decode(body or b"{}", type=dict[str, Raw])
                for body in (request.params, message.result)
            )
            self.mark(
                "negotiated",
                {
                    "protocol_version": result.get("protocolVersion"),
                    "peer": params.get("clientInfo"),
                    "capabilities": params.get("capabilities"),
                    "server": result.get("serverInfo"),
                    "server_capabilities": result.get("capabilities"),
                },
            )

    def record_bytes(
        self,
        direction: Direction,
        data: bytes,
        *,
        envelope: Mapping[str, Any] | None,
        embed: bool = False,
    ) -> int:
        """Record bytes without decoding them.

        Args:
            direction: The direction in which they are forwarded.
            data: The bytes of a message or batch, or of a part of one.
            envelope: Members of the record that say how the bytes are incomplete, if they are.
            embed: Whether the bytes are JSON in UTF-8, which the record contains as it is.

        Returns:
            The number of the record; 0 if nothing is recorded.
        """
        self.counts[direction] += 1
        return self._write(direction, data, envelope=envelope, embed=embed)

    def _write(self, kind: str, body: bytes, **options: Any) -> int:
        if self.recorder is None:
            return 0
        return self.recorder.record(kind, body, channel=self.channel, **options)

    def record_oversized(self, direction: Direction, message: Oversized) -> None:
        """Record the beginning of a message that is too large to be forwarded."""
        self.record_bytes(direction, message.prefix, envelope={"discarded": message.size})

    def answer(self, request_id: int | str, code: int, text: str) -> bytes:
        """Record that the proxy answers a request with an error; return the response to send."""
        self.give_up(request_id, text)
        return encode_error(request_id, code, text)

    def give_up(self, request_id: RequestId, reason: str | None) -> None:
        """End the spans of a request that the server will not answer.

        With a reason, the request has failed for it, which is recorded.
        """
        if self.spans is not None:
            self.spans.end(request_id)
        self._open.pop(request_id, None)
        if reason is not None:
            self.mark(LOST_MARK, {"id": request_id, "error": reason})

    def server_ended(self, reason: str) -> None:
        """Note that the server has ended; if the client has not, its open requests have failed."""
        if self._cause is None:
            for request_id in [*self._open]:
                self.give_up(request_id, reason)

    def mark(self, name: str, value: Any) -> None:
        """Record a named fact."""
        self._write("mark", encode_body(MarkBody(name=name, value=value)))

    def flush(self) -> None:
        """Write the buffered records."""
        if self.recorder is not None:
            self.recorder.flush()

    def record_cause(self, cause: Cause) -> None:
        """Record why the session closes; only the first call counts."""
        if self._cause is None:
            self._cause = cause
            self._write("shut", encode_body(ShutBody(cause=cause)))
            self.flush()

    def close(self, exit_status: int | None = None) -> None:
        """Complete the recording.

        `exit_status` is that of the server's process; None if there is none or it has not exited.
        """
        self.record_cause("closed")
        if self.spans is not None:
            self.spans.end_all()
        if exit_status is not None:
            ending = exit_status if exit_status >= 0 else signal_name(-exit_status)
            self.mark("exited", ending)
        if self.recorder is not None:
            self.recorder.end_session(dict(self.counts), channel=self.channel)


@attrs.define(kw_only=True, eq=False, repr=False)
class LineJournal:
    """The journal of two byte streams, line by line; created by `start_line_journal`.

    `record` hands the record of a line to the operating system before it returns. The
    envelope of a record is `{"lf": false}` if no LF follows: at the end of a stream, or with
    `{"part": 1}` for a part of a line longer than `limits.messages.bytes_max`. So the records hold
    exactly the bytes that were forwarded.
    """

    messages: MessageJournal
    _lines: dict[Direction, LosslessLineSplitter] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        line_bytes_max = self.messages.limits.messages.bytes_max
        self._lines = {
            "in": LosslessLineSplitter(line_bytes_max=line_bytes_max),
            "out": LosslessLineSplitter(line_bytes_max=line_bytes_max),
        }

    def record(self, direction: Direction, chunk: bytes) -> None:
        """Record the lines that `chunk` completes; call it before forwarding the chunk."""
        self.messages.counts[f"{direction}_bytes"] += len(chunk)
        self._write(direction, self._lines[direction].feed(chunk))

    def end(self, direction: Direction) -> None:
        """Record the end of a stream, and its last line if that has no LF."""
        self._write(direction, self._lines[direction].finish())
        if direction == "in":
            self.messages.record_cause("eof")

    def close(self, exit_status: int | None) -> None:
        """Record last lines without LF and complete the recording; see `MessageJournal.close`."""
        for direction, splitter in self._lines.items():
            self._write(direction, splitter.finish())
        self.messages.close(exit_status)

    def _write(self, direction: Direction, lines: Iterable[Line]) -> None:
        for line, envelope in lines:
            record = self.messages.record_bytes if "part" in envelope else self.messages.record
            record(direction, line, envelope=envelope or None)
        self.messages.flush()


@attrs.define(eq=False, repr=False)
class PolicySession:
    """A session of a proxy under a policy; `opening` is what its recordings begin with.

    The policy decides about it when it begins, and again for requests that many clients share.
    """

    run: "PolicyRun"
    opening: Opening
    _is_choice_due: Callable[[], bool] = attrs.field(init=False)

    def begin(self) -> Recorder | None:
        """Return the recorder of the session that begins now; None if it is not recorded."""
        self._is_choice_due = self.run.new_choice_timer()
        return self.run.begin_session(self.opening)

    def is_due(self, recorder: Recorder | None) -> bool:
        """Return whether another session should begin, after the one with this recorder."""
        return self._is_choice_due() if recorder is None else recorder.is_nearly_full


ProxyTarget: TypeAlias = "RecordTarget | PolicyRun | None"
"""Where a proxy records its sessions; None records nothing."""


def start_line_journal(
    record: ProxyTarget, command: Sequence[str], *, limits: Limits
) -> LineJournal:
    """Return the journal of a session over stdio, recorded under the name of the command's program.

    Raises:
        RecordingError: The file cannot be created, or is not empty.
    """
    name = Path(command[0]).name
    return LineJournal(
        messages=start_message_journal(record, transport="stdio", name=name, limits=limits)
    )


def start_message_journal(
    record: ProxyTarget,
    *,
    transport: str,
    name: str,
    limits: Limits,
    make_spans: MakeSpans | None = None,
) -> MessageJournal:
    """Return the journal of a session that begins now, in a file of its own or a shared one.

    `make_spans` returns the spans of its requests, with telemetry.

    Raises:
        RecordingError: The file cannot be created.
    """
    opening: Opening = {
        "role": "proxy",
        "transport": transport,
        "name": name,
        "version": "",
        "limits": limits,
    }
    recorder, channel, policy_session = None, 0, None
    if isinstance(record, str | PathLike | RecordOptions | SharedRecording):
        recorder, channel = recorder_of_session(record, **opening)
    elif record is not None:
        policy_session = PolicySession(record, opening)
        recorder = policy_session.begin()
    spans = None
    if make_spans is not None:
        open_max = limits.requests.queued_max
        spans = make_spans(transport=transport, recorder=recorder, open_max=open_max)
    return MessageJournal(
        recorder=recorder,
        channel=channel,
        policy_session=policy_session,
        limits=limits,
        spans=spans,
    )


@asynccontextmanager
async def recording_for_sessions(
    record: RecordOptions | None,
    *,
    is_sole: bool = False,
    has_http_headers: bool = False,
) -> AsyncGenerator[ProxyTarget]:
    """Open the target of the sessions of a proxy within the block.

    Args:
        record: A policy, a folder for a file each, or a file, which many sessions share.
        is_sole: Whether there is one session only.
        has_http_headers: Whether the proxy has the HTTP headers of a message that it records.

    Raises:
        RecordingError: The file is not empty; or the folder of the policy cannot be used.
        ValueError: The policy has a rule that this proxy cannot follow.
    """
    if record is not None and record.is_policy:
        from mcp_trio._catalogue.maintenance import run_policy
        from mcp_trio._recorder.policy import RecordPolicy

        assert isinstance(record, RecordPolicy)
        _check_policy(record, has_http_headers=has_http_headers)
        async with run_policy(record) as run:
            yield run
    elif record is None or is_sole or holds_many_sessions(record):
        yield record
    else:
        with SharedRecording(record) as recording:
            yield recording


def _check_policy(policy: "RecordPolicy", *, has_http_headers: bool) -> None:
    if policy.principals:
        raise ValueError(
            "a proxy cannot keep the sessions of a user (principals, --keep-user): the server"
            " behind it authenticates the users, and messages do not name them"
        )
    if policy.headers and not has_http_headers:
        raise ValueError(
            "a proxy can keep sessions for their HTTP headers (headers, --keep-header) only between"
            " HTTP clients and a server at an http:// or https:// URL"
        )
    if policy.strict:
        raise ValueError("a proxy cannot be strict: handlers run in the server behind it")
