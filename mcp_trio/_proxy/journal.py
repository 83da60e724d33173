"""The recording that a proxy makes: everything that passes, told from the server's side."""

import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import attrs
import msgspec
from msgspec import Raw

from mcp_trio._journal.records import MarkBody, ShutBody, encode_body
from mcp_trio._jsonrpc.lines import Oversized
from mcp_trio._jsonrpc.messages import (
    Decoder,
    ErrorResponse,
    Malformed,
    Message,
    Request,
    Response,
    encode_error,
)
from mcp_trio._recorder.writer import (
    RecordOptions,
    RecordTarget,
    SharedRecording,
    begin_session,
    holds_many_sessions,
    options_of,
)
from mcp_trio._transports.process import signal_name
from mcp_trio.errors import RecordingError
from mcp_trio.limits import Limits

# --------------------
# What two peers agree on, seen from between them.


_NOTHING: Final = Raw(b"null")


@attrs.define(eq=False)
class Handshake:
    """Finds the answer to the latest `initialize` among the messages that pass."""

    _asked: Request | None = attrs.field(default=None, init=False)

    def to_server(self, message: Message) -> None:
        """Looks at what the client says."""
        if isinstance(message, Request) and message.method == "initialize":
            self._asked = message

    def to_client(self, message: Message) -> Mapping[str, Raw] | None:
        """Looks at what the server says; the facts, if it is the answer that settles them."""
        asked = self._asked
        if asked is None or not isinstance(message, Response | ErrorResponse):
            return None
        if message.id != asked.id:
            return None
        self._asked = None
        return _facts(asked, message) if isinstance(message, Response) else None


def _facts(asked: Request, answer: Response) -> Mapping[str, Raw]:
    """As the mark of a session of our own has them, and the server's besides."""
    params, result = _members(asked.params), _members(answer.result)
    return {
        "revision": result.get("protocolVersion", _NOTHING),
        "peer": params.get("clientInfo", _NOTHING),
        "capabilities": params.get("capabilities", _NOTHING),
        "server": result.get("serverInfo", _NOTHING),
        "server_capabilities": result.get("capabilities", _NOTHING),
    }


def _members(body: Raw | None) -> dict[str, Raw]:
    return {} if body is None else msgspec.json.decode(body, type=dict[str, Raw])


# --------------------
# A stream of bytes as lines of which nothing is dropped: joined again, they are the stream.


class Line(msgspec.Struct, frozen=True, gc=False):
    """What stood before an LF, or as much of that as is kept together.

    `part` counts the parts of a line longer than the limit, from 1; None is a whole line. Behind
    all parts but the last, and behind the end of a stream that has no LF there, `has_lf` is false.
    """

    data: bytes
    part: int | None = None
    has_lf: bool = True

    @property
    def envelope(self) -> dict[str, Any] | None:
        """What a record has to say of it besides its bytes; of a whole line nothing."""
        report_url: dict[str, Any] = {}
        if self.part is not None:
            report_url["part"] = self.part
        if not self.has_lf:
            report_url["lf"] = False
        return report_url or None


class LineSplitter:
    """Cuts a stream at each LF, and a line that grows beyond `line_bytes_max` into parts of it.

    Each byte is looked at once, and of a line no more than `line_bytes_max` is held.
    """

    def __init__(self, *, line_bytes_max: int) -> None:
        self._line_bytes_max = line_bytes_max
        self._begun = bytearray()
        self._parts = 0

    def feed(self, chunk: bytes) -> Iterator[Line]:
        """The lines and parts that `chunk` completes, in order; to be consumed wholly."""
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield from self._grow(end)
            yield self._take(has_lf=True)
        yield from self._grow(rest)

    def finish(self) -> Iterator[Line]:
        """The last line, if the stream ended within one; nothing is kept."""
        if self._begun:
            yield self._take(has_lf=False)

    def _grow(self, piece: bytes) -> Iterator[Line]:
        self._begun += piece
        while len(self._begun) > self._line_bytes_max:
            self._parts += 1
            yield Line(bytes(self._begun[: self._line_bytes_max]), self._parts, has_lf=False)
            del self._begun[: self._line_bytes_max]

    def _take(self, *, has_lf: bool) -> Line:
        part = self._parts + 1 if self._parts else None
        line = Line(bytes(self._begun), part, has_lf)
        self._begun.clear()
        self._parts = 0
        return line


Direction = Literal["in", "out"]
"""From the client to the server, and from the server to the client."""

Cause = Literal["eof", "signal", "closed", "lost"]

LOST_MARK: Final = "lost"
"""The name of the mark of a request that we have answered by an error, instead of the server."""


class Writes(Protocol):
    """A `Recorder`, as far as a proxy needs one."""

    def record(
        self,
        kind: str,
        body: bytes | None = None,
        *,
        channel: int = 0,
        envelope: Mapping[str, Any] | None = None,
        embed: bool = True,
    ) -> int:
        """Buffers a record."""
        ...

    def flush(self) -> None:
        """Hands what is buffered to the system."""
        ...

    def close(self, counts: dict[str, int], *, channel: int = 0) -> None:
        """Ends the recording."""
        ...


class NullRecorder:
    """Takes the place of a `Recorder` where nobody wants a recording."""

    def record(self, *_: Any, **__: Any) -> int:
        """Nothing is kept."""
        return 0

    def flush(self) -> None:
        """There is nothing."""

    def close(self, *_: Any, **__: Any) -> None:
        """There is nothing."""


_COUNTS: Final = ("in", "out", "in_bytes", "out_bytes", "malformed")


@attrs.define(kw_only=True, eq=False)
class MessageJournal:
    """Records the frames of one session as they pass; made by `start_message_journal`.

    What was recorded is with the system after `flush`, which comes before the bytes are sent on.

    Attributes:
        recorder: What writes the file.
        limits: How deep JSON may be.
        channel: Which session of the file this is, if that holds several.
        counts: What has passed; frames are counted here, bytes by who sees them.
        is_negotiated: Whether a handshake has passed.
    """

    recorder: Writes
    limits: Limits
    channel: int = 0
    counts: Counter[str] = attrs.field(init=False)
    is_negotiated: bool = attrs.field(default=False, init=False)
    _decoder: Decoder = attrs.field(init=False)
    _handshake: Handshake = attrs.field(factory=Handshake, init=False)
    _cause: Cause | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._decoder = Decoder(json_depth_max=self.limits.json_depth_max)
        self.counts = Counter(dict.fromkeys(_COUNTS, 0))

    def read(self, frame: bytes) -> Sequence[Message]:
        """The messages that a frame is; nothing is recorded."""
        return self._decoder.messages(frame)

    def record(
        self,
        direction: Direction,
        frame: bytes,
        *,
        envelope: Mapping[str, Any] | None = None,
        messages: Sequence[Message] | None = None,
    ) -> Sequence[Message]:
        """Records a frame; returns the messages that it is, which somebody may know already."""
        if messages is None:
            messages = self.read(frame)
        is_accepted = not any(isinstance(message, Malformed) for message in messages)
        self.counts["malformed"] += not is_accepted
        self.record_part(direction, frame, envelope=envelope, embed=is_accepted)
        for message in messages:
            self._look_at(direction, message)
        return messages

    def record_part(
        self,
        direction: Direction,
        data: bytes,
        *,
        envelope: Mapping[str, Any] | None,
        embed: bool = False,
    ) -> None:
        """Records what is not, or not yet, a whole frame; the envelope says in what way."""
        self.counts[direction] += 1
        self.recorder.record(direction, data, envelope=envelope, embed=embed, channel=self.channel)

    def record_oversized(self, direction: Direction, frame: Oversized) -> None:
        """Records how a frame begins that is too large to pass."""
        self.record_part(direction, frame.head, envelope={"discarded": frame.size})

    def answer(self, request_id: int | str, code: int, text: str) -> bytes:
        """Records that a request is answered instead of the server; returns the answer to send."""
        self.mark(LOST_MARK, {"id": request_id, "error": text})
        return encode_error(request_id, code, text)

    def mark(self, name: str, value: Any) -> None:
        """Records a fact."""
        body = encode_body(MarkBody(name=name, value=value))
        self.recorder.record("mark", body, channel=self.channel)

    def flush(self) -> None:
        """Hands what was recorded to the system."""
        self.recorder.flush()

    def shut(self, cause: Cause) -> None:
        """Records why the session ends; only the first cause is one."""
        if self._cause is None:
            self._cause = cause
            self.recorder.record("shut", encode_body(ShutBody(cause=cause)), channel=self.channel)
            self.recorder.flush()

    def close(self, exit_status: int | None = None) -> None:
        """Ends the recording, with how the server ended; None: it did not, or never began."""
        self.shut("closed")
        if exit_status is not None:
            ending = exit_status if exit_status >= 0 else signal_name(-exit_status)
            self.mark("exited", ending)
        self.recorder.close(dict(self.counts), channel=self.channel)

    def _look_at(self, direction: Direction, message: Message) -> None:
        if direction == "in":
            self._handshake.to_server(message)
        elif facts := self._handshake.to_client(message):
            self.is_negotiated = True
            self.mark("negotiated", facts)


@attrs.define(kw_only=True, eq=False)
class LineJournal:
    """Records the lines of both directions as they pass; made by `start_line_journal`.

    A record is handed to the system by the call that completes its line, so before the caller sends
    the line's last byte on. `x` of a record says `{"lf": false}` where no LF stands behind the
    frame: it is the end of its direction, or with `{"part": 1}` a part of a line longer than
    `frame_bytes_max`. Frames joined in this way are the bytes that passed.
    """

    frames: MessageJournal
    _lines: dict[Direction, LineSplitter] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        line_bytes_max = self.frames.limits.frame_bytes_max
        self._lines = {
            "in": LineSplitter(line_bytes_max=line_bytes_max),
            "out": LineSplitter(line_bytes_max=line_bytes_max),
        }

    def record(self, direction: Direction, chunk: bytes) -> None:
        """Records the lines that `chunk` completes; it may be sent on then."""
        self.frames.counts[f"{direction}_bytes"] += len(chunk)
        self._write(direction, self._lines[direction].feed(chunk))

    def ends(self, direction: Direction) -> None:
        """Records a last line without LF; when the client has ended, that the session does."""
        self._write(direction, self._lines[direction].finish())
        if direction == "in":
            self.shut("eof")

    def shut(self, cause: Cause) -> None:
        """See `MessageJournal.shut`."""
        self.frames.shut(cause)

    def close(self, exit_status: int | None) -> None:
        """Records what is left, and how the server ended; see `MessageJournal.close`."""
        for direction, cutter in self._lines.items():
            self._write(direction, cutter.finish())
        self.frames.close(exit_status)

    def _write(self, direction: Direction, lines: Iterable[Line]) -> None:
        for line in lines:
            if line.part is None:
                self.frames.record(direction, line.data, envelope=line.envelope)
            else:
                self.frames.record_part(direction, line.data, envelope=line.envelope)
        self.frames.flush()


def start_line_journal(
    record: RecordTarget | None, command: Sequence[str], *, limits: Limits
) -> LineJournal:
    """A recording to a new or empty file, or in a folder, named after the command's program.

    None: nothing is recorded, here and below.

    Raises:
        RecordingError: The file cannot be made, or holds something already.
    """
    check_no_recording_exists(record)
    name = Path(command[0]).name
    return LineJournal(
        frames=start_message_journal(record, transport="stdio", name=name, limits=limits)
    )


def start_message_journal(
    record: RecordTarget | None, *, transport: str, name: str, limits: Limits
) -> MessageJournal:
    """The recording of a session that begins now, be it a file or a part of one.

    Raises:
        RecordingError: The file cannot be made.
    """
    if record is None:
        return MessageJournal(recorder=NullRecorder(), limits=limits)
    recorder, channel = begin_session(
        record, role="proxy", transport=transport, name=name, version="", limits=limits
    )
    return MessageJournal(recorder=recorder, channel=channel, limits=limits)


@contextmanager
def recording_for_sessions(record: RecordOptions | None) -> Generator[RecordTarget | None]:
    """Where many sessions are recorded: each to its own file in a folder, or all to one file.

    Raises:
        RecordingError: The file holds something already.
    """
    if record is None or holds_many_sessions(record):
        yield record
        return
    check_no_recording_exists(record)
    with SharedRecording(record) as recording:
        yield recording


def check_no_recording_exists(record: RecordTarget | None) -> None:
    """Leave alone what somebody may still want.

    Raises:
        RecordingError: There is such a file already, with something in it.
    """
    if record is None:
        return
    path = Path(os.fspath(options_of(record).path))
    if path.is_file() and path.stat().st_size:
        raise RecordingError(
            f"cannot record to {path}: it is there already; "
            "a folder gets a file of its own for each session"
        )
