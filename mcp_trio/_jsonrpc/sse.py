"""Server-sent events (`text/event-stream`): encoding and incremental parsing.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from typing import Final

import attrs
import msgspec

from mcp_trio._jsonrpc.lines import BYTE_ORDER_MARK, Oversized, oversized

COMMENT: Final = b": keep-alive\n\n"
"""A comment, which clients ignore. Intermediaries see that the stream is still in use."""

# As integers, as in `lines.py`.
_LF: Final = ord("\n")
_CR: Final = ord("\r")

_MESSAGE: Final = "message"
_MESSAGE_FIELD: Final = f"event: {_MESSAGE}\n"

# A line may be longer than the limit on data by these bytes, which are not part of the data.
_MARGIN_BYTES: Final = len(BYTE_ORDER_MARK) + len(b"data: ")

# More digits than any useful time has; `int` raises for thousands of digits.
_RETRY_DIGITS_MAX: Final = 15


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event of a stream.

    Attributes:
        data: The encoded message. It is empty in an event that has only an id or a retry time, such
            as the first event of a stream.
        name: The event type; "message" by default.
        id: The field `id`, from which a client resumes; None if this event has none.
        retry_ms: The field `retry`, in milliseconds; None if this event has none.
    """

    data: bytes = b""
    name: str = _MESSAGE
    id: str | None = None
    retry_ms: int | None = None


def encode_event(event: Event) -> bytes:
    """Return the encoded event; every line end in its data becomes an LF.

    Raises:
        ValueError: The name or id contains a CR, LF or NUL, or is not valid Unicode.
    """
    name, event_id, data = event.name, event.id, event.data
    fields = _MESSAGE_FIELD if name == _MESSAGE else f"event: {_single_line(name)}\n"
    if event_id is not None:
        if not event_id.isprintable():
            event_id = _single_line(event_id)
        fields = f"{fields}id: {event_id}\n"
    if event.retry_ms is not None:
        fields = f"{fields}retry: {event.retry_ms}\n"
    if _LF in data or _CR in data:
        data = _with_lf(data).replace(b"\n", b"\ndata: ")
    return b"%bdata: %b\n\n" % (fields.encode(), data)


def _single_line(text: str) -> str:
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError(
            f"the name and the id of an event must not contain CR, LF or NUL: {text[:100]!r}"
        )
    return text


def _with_lf(text: bytes) -> bytes:
    # In an event stream CR, LF and CRLF all end a line.
    if b"\r" not in text:
        return text
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


@attrs.define(kw_only=True)
class _IncompleteEvent:
    """The fields of an event whose empty line has not arrived."""

    data: bytes | bytearray | None = None
    name: str = ""
    id: str | None = None
    retry_ms: int | None = None
    is_oversized: bool = False

    def size_with(self, line_bytes: int) -> int:
        """Return the bytes of the data with another line of that length."""
        return line_bytes if self.data is None else len(self.data) + 1 + line_bytes

    def add(self, line: bytes) -> None:
        """Add a line of data."""
        if self.data is None:
            self.data = line
            return
        if isinstance(self.data, bytes):  # a buffer takes less memory than many short lines
            self.data = bytearray(self.data)
        self.data += b"\n"
        self.data += line

    def finish(self) -> list[Event]:
        """Return the event, unless it is empty or has been reported as oversized."""
        if self.is_oversized or (self.data is None and self.id is None and self.retry_ms is None):
            return []
        return [Event(bytes(self.data or b""), self.name or _MESSAGE, self.id, self.retry_ms)]


class EventParser:
    """Splits a stream of bytes into events at empty lines.

    Lines end in CR, LF or CRLF. Comments, unknown fields and a byte order mark at the start of the
    stream are ignored, and so is an incomplete event at the end of the stream. Each byte is
    examined and copied a few times at most, however the stream is chunked. An incomplete event
    takes hardly more memory than `data_bytes_max` twice.

    Args:
        data_bytes_max: The limit on the data of an event, and on each line. An event over the limit
            is reported once, as `Oversized`, as soon as the limit is exceeded.

    Attributes:
        last_id: The id from which to resume: that of the last complete event with an id, even if
            its data was empty or oversized. None if there is none, or if that id was empty.
    """

    last_id: str | None

    def __init__(self, *, data_bytes_max: int) -> None:
        self.last_id = None
        self._data_bytes_max = data_bytes_max
        self._line_bytes_max = data_bytes_max + _MARGIN_BYTES
        self._line = bytearray()
        self._event = _IncompleteEvent()
        self._is_first_line = True
        self._is_after_cr = False

    def feed(self, chunk: bytes) -> list[Event | Oversized]:
        """Return the events that `chunk` completes, in order."""
        if not chunk:
            return []
        # A CRLF may be in two chunks; its CR has then ended the line.
        lines = chunk.removeprefix(b"\n") if self._is_after_cr else chunk
        self._is_after_cr = chunk.endswith(b"\r")
        *completed, rest = _with_lf(lines).split(b"\n")
        found: list[Event | Oversized] = []
        for end in completed:
            found += self._parse_line(end)
        self._line += rest
        if len(self._line) > self._line_bytes_max:
            found += self._report_oversized(self._without_byte_order_mark(bytes(self._line)))
            self._line[:] = b":"  # the remainder of the line is parsed as a comment
        return found

    def _parse_line(self, end: bytes) -> list[Event | Oversized]:
        """Parse the line whose last bytes are `end`; return the event that it completes."""
        whole = end
        if self._line:
            self._line += end
            whole = bytes(self._line)
            self._line.clear()
        line = self._without_byte_order_mark(whole)
        self._is_first_line = False
        if len(whole) > self._line_bytes_max:
            return self._report_oversized(line)
        if not line:
            ended, self._event = self._event, _IncompleteEvent()
            if ended.id is not None:
                self.last_id = ended.id or None
            return [*ended.finish()]
        name, value = _field(line)
        match name:
            case b"data" if not self._event.is_oversized:
                if self._event.size_with(len(value)) > self._data_bytes_max:
                    return self._report_oversized(line)
                self._event.add(value)
            case b"event":
                self._event.name = value.decode(errors="replace")
            case b"id" if b"\0" not in value:
                self._event.id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) <= _RETRY_DIGITS_MAX:
                self._event.retry_ms = int(value)
            case _:  # a comment, whose name is empty, or an unknown field
                pass
        return []

    def _without_byte_order_mark(self, line: bytes) -> bytes:
        return line.removeprefix(BYTE_ORDER_MARK) if self._is_first_line else line

    def _report_oversized(self, line: bytes) -> list[Event | Oversized]:
        """Report the event as oversized because of `line`, and drop its data; only once."""
        if self._event.is_oversized or line.startswith(b":"):
            return []
        name, value = _field(line)
        size = self._event.size_with(len(value))
        if name == b"data":
            self._event.add(value)
        beginning = bytes(self._event.data or b"")
        self._event.data = None
        self._event.is_oversized = True
        return [oversized(beginning, size, message_bytes_max=self._data_bytes_max)]


def _field(line: bytes) -> tuple[bytes, bytes]:
    name, _, value = line.partition(b":")
    return name, value.removeprefix(b" ")
