"""Event streams (`text/event-stream`): encoding and incremental parsing.

The format is that of the HTML standard, section "Server-sent events".
"""

from typing import Final

import attrs
import msgspec

from mcp_trio._jsonrpc.lines import Oversized, has_line_end

COMMENT: Final = b": keep-alive\n\n"
"""Shows those on the way that a silent stream is alive; a reader ignores it."""

_MESSAGE: Final = "message"
_OF_MESSAGE: Final = f"event: {_MESSAGE}\n"

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_HEAD_BYTES: Final = 4096

# What a line may hold beside an event's data; before its end they cannot be told apart.
_MARGIN_BYTES: Final = len(_BYTE_ORDER_MARK) + len(b"data: ")

# More digits mean no time that anyone waits, and very many are an error to `int`.
_RETRY_DIGITS_MAX: Final = 15


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event of a stream.

    `id` and `retry_ms` are those that this event brought, else None. `data` is empty in events that
    only bring one of them, such as a stream's first (requirement HTTP-14): there is no frame in it.
    """

    data: bytes = b""
    name: str = _MESSAGE
    id: str | None = None
    retry_ms: int | None = None


def encode_event(event: Event) -> bytes:
    """The event as it stands in a stream; each line end in its data arrives as LF.

    Raises:
        ValueError: Its name or id holds a CR, LF or NUL, or is no valid Unicode.
    """
    name, event_id, retry_ms, data = event.name, event.id, event.retry_ms, event.data
    fields = _OF_MESSAGE if name == _MESSAGE else f"event: {_single_line(name)}\n"
    if event_id is not None:
        fields = f"{fields}id: {_single_line(event_id)}\n"
    if retry_ms is not None:
        fields = f"{fields}retry: {retry_ms}\n"
    if has_line_end(data):
        data = _with_plain_ends(data).replace(b"\n", b"\ndata: ")
    return fields.encode() + b"data: " + data + b"\n\n"


def _single_line(text: str) -> str:
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError(f"an event's name and id hold no CR, LF or NUL, not {text[:100]!r}")
    return text


def _with_plain_ends(text: bytes) -> bytes:
    """CR and CRLF end lines in a stream as LF does: kept as they are they would begin a field."""
    if b"\r" not in text:
        return text
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


@attrs.define(kw_only=True)
class _Arriving:
    """What has come of an event whose end has not."""

    data: bytes | bytearray | None = None
    name: str = ""
    id: str | None = None
    retry_ms: int | None = None
    is_oversized: bool = False

    def size_with(self, line_bytes: int) -> int:
        """How long the data is with another line of that length."""
        return line_bytes if self.data is None else len(self.data) + 1 + line_bytes

    def add(self, line: bytes) -> None:
        """One more line of data; many short ones cost no more memory than their bytes."""
        if self.data is None:
            self.data = line
            return
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        self.data += b"\n"
        self.data += line

    def events(self) -> list[Event]:
        """The event, if there is anything in it."""
        if self.is_oversized or (self.data is None and self.id is None and self.retry_ms is None):
            return []
        return [Event(bytes(self.data or b""), self.name or _MESSAGE, self.id, self.retry_ms)]


class EventParser:
    """Cuts a stream of bytes into events at empty lines.

    Lines end in CR, LF or CRLF; comments, unknown fields and a byte order mark at the start of the
    stream are ignored. An event whose data, or one of whose lines, is over `data_bytes_max` is
    reported once as `Oversized`, as soon as that is known, with the begin of its data; the rest of
    it is discarded, and the events behind it arrive as usual. An event that the stream's end cuts
    off never arrives. Each byte is looked at and copied a few times at most, however the stream is
    chunked, and what is held takes hardly more memory than an event may have bytes, twice.

    `last_id` is the id to resume behind: that of the last event with one which arrived whole, also
    if it had no data or too much. It is None if there is none, or the last one was empty.
    """

    last_id: str | None

    def __init__(self, *, data_bytes_max: int) -> None:
        self.last_id = None
        self._event_bytes_max = data_bytes_max
        self._line_bytes_max = data_bytes_max + _MARGIN_BYTES
        self._line = bytearray()
        self._arriving = _Arriving()
        self._is_first_line = True
        self._is_after_cr = False

    def feed(self, chunk: bytes) -> list[Event | Oversized]:
        """The events that `chunk` completes, in order."""
        *ends, rest = self._cut(chunk)
        found: list[Event | Oversized] = []
        for end in ends:
            found += self._end_line(end)
        return found + self._hold(rest)

    def _cut(self, chunk: bytes) -> list[bytes]:
        if not chunk:
            return [chunk]
        rest = chunk.removeprefix(b"\n") if self._is_after_cr else chunk
        self._is_after_cr = chunk.endswith(b"\r")
        return _with_plain_ends(rest).split(b"\n")

    def _hold(self, piece: bytes) -> list[Event | Oversized]:
        self._line += piece
        if len(self._line) <= self._line_bytes_max:
            return []
        found = self._oversized(self._unmarked(bytes(self._line)))
        self._line[:] = b":"  # What is still to come of the line is a comment.
        return found

    def _end_line(self, end: bytes) -> list[Event | Oversized]:
        if self._line:
            self._line += end
            end = bytes(self._line)
            self._line.clear()
        line = self._unmarked(end)
        self._is_first_line = False
        if len(end) > self._line_bytes_max:
            return self._oversized(line)
        return self._take_field(line) if line else self._end_event()

    def _unmarked(self, line: bytes) -> bytes:
        return line.removeprefix(_BYTE_ORDER_MARK) if self._is_first_line else line

    def _take_field(self, line: bytes) -> list[Event | Oversized]:
        name, value = _field(line)
        match name:
            case b"data" if not self._arriving.is_oversized:
                return self._take_data(line, value)
            case b"event":
                self._arriving.name = value.decode(errors="replace")
            case b"id" if b"\0" not in value:
                self._arriving.id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) <= _RETRY_DIGITS_MAX:
                self._arriving.retry_ms = int(value)
            case _:  # A comment has no name.
                pass
        return []

    def _take_data(self, line: bytes, value: bytes) -> list[Event | Oversized]:
        if self._arriving.size_with(len(value)) > self._event_bytes_max:
            return self._oversized(line)
        self._arriving.add(value)
        return []

    def _oversized(self, line: bytes) -> list[Event | Oversized]:
        """What to report for a line that is too much; a comment is no part of an event."""
        if self._arriving.is_oversized or line.startswith(b":"):
            return []
        name, value = _field(line)
        size = self._arriving.size_with(len(value))
        if name == b"data":
            self._arriving.add(value)
        head = bytes(self._arriving.data or b"")[: min(_HEAD_BYTES, self._event_bytes_max)]
        self._arriving.data = None
        self._arriving.is_oversized = True
        return [Oversized(size, head)]

    def _end_event(self) -> list[Event | Oversized]:
        ended, self._arriving = self._arriving, _Arriving()
        if ended.id is not None:
            self.last_id = ended.id or None
        return [*ended.events()]


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")
