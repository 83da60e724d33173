"""A request's body that comes in chunks, read more strictly than HTTP asks for."""

import functools
import http
import re
import time
from collections.abc import Mapping
from typing import Final

import attrs
import h11

from mcp_trio._protocol.http_headers import Headers, HttpRequest, date_at, encoded
from mcp_trio._transports.http_response import BodyTooLargeError

# --------------------
# What stands before a body in HTTP/1.1: a request's head is read, and an answer's is written.
#
# h11 reads. It forgives more than is safe behind a proxy that understands the same bytes in another
# way, so what may part the two is refused before it is asked: see `_STRICT` and `_body_bytes`.


@attrs.frozen
class Rejected(Exception):  # noqa: N818 - what became of the request, which is at fault
    """A request that no application sees: the status that it is answered with, and why."""

    status: int
    text: str


@attrs.frozen(kw_only=True)
class RequestHead:
    """The head of a request, and what it means for the connection.

    Attributes:
        head: What the application sees.
        body_bytes: How long the body is; None if it comes in chunks.
        takes_chunks: Whether the client understands an answer in chunks.
        is_last: Whether the connection ends with the answer.
        awaits_continue: Whether the client sends the body only when told to.
    """

    head: HttpRequest
    body_bytes: int | None
    takes_chunks: bool
    is_last: bool
    awaits_continue: bool


# Reading

# Whole lines, none of them folded, without control characters. A lone LF ends a head too, so that
# one that uses them is refused at once.
_STRICT: Final = re.compile(rb"(?:[^\x00-\x20\x7f][^\x00-\x08\x0a-\x1f\x7f]*\r\n)+\r\n")
_END: Final = re.compile(rb"\n\r?\n")
_PROPER_END: Final = b"\r\n\r\n"
_END_BYTES_MAX: Final = 3
_REQUEST_LINE: Final = re.compile(rb"[!-~]+ [!-~]+ HTTP/1\.[01]\r\n")
_TARGET: Final = re.compile(r"(?i:https?://[^/?#]+)(?P<rest>[/?][^#]*)?|(?P<path>/[^#]*)")
_VERSIONS: Final = frozenset({b"1.0", b"1.1"})
# Each costs h11 some microseconds; no client of MCP comes near.
_FIELDS_MAX: Final = 128
_LENGTH: Final = re.compile(rb"\r\n(?i:content-length): (0|[1-9][0-9]{0,17})\r\n")
_REMEMBERED_BYTES_MAX: Final = 2048
_SECRETS: Final = re.compile(rb"\n(?i:authorization|proxy-authorization|cookie):")


def head_bytes(received: bytearray, searched: int, *, bytes_max: int) -> int:
    """How much of what was received is a head; 0 if it has not ended yet.

    Args:
        received: What came since the request before.
        searched: How much of it was looked at by an earlier call.
        bytes_max: How long a head may be.

    Raises:
        Refused: It is too long already, or can never become the head of a request.
    """
    start = max(0, searched - _END_BYTES_MAX)
    at = received.find(_PROPER_END, start)  # one that is improper and came before is refused later
    length = at + len(_PROPER_END) if at >= 0 else _improper_end(received, start)
    if (length or len(received)) > bytes_max:
        raise Rejected(431, f"the head is longer than limits.http.headers_bytes_max ({bytes_max})")
    if not length:
        _check_beginning(received, searched)
    return length


def _improper_end(received: bytearray, start: int) -> int:
    end = _END.search(received, start)
    return end.end() if end else 0


def _check_beginning(received: bytearray, searched: int) -> None:
    """Nobody waits for the rest of TLS, of HTTP/0.9 or of HTTP/2."""
    is_text = received[0] > ord(" ")
    has_new_line = received.find(b"\n") >= searched
    if not is_text or (has_new_line and not _REQUEST_LINE.match(received)):
        raise Rejected(400, "this is not HTTP/1.1")


def read_head(raw: bytes, client: str | None) -> RequestHead:
    """The head of a request of `client`, from all of its bytes.

    Clients say the same over and over, but for the length of the body, and reading it is most of
    the work for a small request: so the short heads that came last are remembered without it. One
    with somebody's secrets is not.

    Raises:
        Refused: It is not HTTP/1.1, or two readers could understand it in two ways.
    """
    if not is_remembered(raw):
        return _read_head(raw, client)
    length = _LENGTH.search(raw)
    if length is None or raw.lower().count(b"content-length") > 1:
        return _remembered_head(raw, client)
    start, end = length.span(1)
    without = _remembered_head(raw[:start] + b"0" + raw[end:], client)
    return _with_length(without, length[1].decode("ascii"))


def is_remembered(raw: bytes) -> bool:
    """Whether a head may be kept for the next request that begins with the same bytes."""
    return len(raw) <= _REMEMBERED_BYTES_MAX and not _SECRETS.search(raw)


def _with_length(without: RequestHead, length: str) -> RequestHead:
    return RequestHead(
        head=without.head.with_field("content-length", length),
        body_bytes=int(length),
        takes_chunks=without.takes_chunks,
        is_last=without.is_last,
        awaits_continue=without.awaits_continue,
    )


@functools.lru_cache(maxsize=256)
def _remembered_head(raw: bytes, client: str | None) -> RequestHead:
    return _read_head(raw, client)


def _read_head(raw: bytes, client: str | None) -> RequestHead:
    if not _STRICT.fullmatch(raw):
        raise Rejected(400, "the head has a folded line, a lone CR or LF, or a control character")
    if raw.count(b"\n") > _FIELDS_MAX + 2:
        raise Rejected(431, f"the head has more than {_FIELDS_MAX} fields")
    request = _parsed(raw)
    method = request.method.decode("ascii")
    target = _target(method, request.target)
    head = HttpRequest.of(method, target, request.headers.raw_items(), client=client)
    is_new = request.http_version == b"1.1"
    return RequestHead(
        head=head,
        body_bytes=_body_bytes(head.headers, is_new=is_new),
        takes_chunks=is_new,
        is_last=not is_new or "close" in _elements(head.header("connection")),
        awaits_continue=is_new and _awaits_continue(head),
    )


def _parsed(raw: bytes) -> h11.Request:
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=len(raw))
    parser.receive_data(raw)
    try:
        request = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise Rejected(400, "the head is malformed") from error
    assert isinstance(request, h11.Request)
    if request.http_version not in _VERSIONS:
        raise Rejected(400, "this is not HTTP/1.1")
    return request


def _body_bytes(fields: Mapping[str, str], *, is_new: bool) -> int | None:
    """h11 has seen that a length is one number, and that a coding is nothing but `chunked`."""
    if "transfer-encoding" not in fields:
        return int(fields.get("content-length", "0"))
    if "content-length" in fields:
        raise Rejected(400, "the head has both Content-Length and Transfer-Encoding")
    if not is_new:
        raise Rejected(400, "HTTP/1.0 has no Transfer-Encoding")
    return None


def _target(method: str, target: bytes) -> str:
    """The path and the query, also of a target that names the whole URL."""
    text = target.decode("ascii")
    if method == "OPTIONS" and text == "*":
        return text
    match = _TARGET.fullmatch(text)
    if match is None or method == "CONNECT":
        raise Rejected(400, "the target is neither a path nor a URL")
    path = match["path"] or match["rest"] or "/"
    return path if path.startswith("/") else f"/{path}"


def _awaits_continue(head: HttpRequest) -> bool:
    expected = head.header("expect")
    if expected is not None and expected.lower() != "100-continue":
        raise Rejected(417, "nothing but 100-continue can be expected")
    return expected is not None


def _elements(field: str | None) -> list[str]:
    return [] if field is None else [each.strip(" \t").lower() for each in field.split(",")]


# Writing

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in http.HTTPStatus
}
_STATUSES: Final = range(200, 600)
_WITHOUT_BODY: Final = frozenset({204, 304})
_PLAIN_TEXT: Final = [("content-type", "text/plain; charset=utf-8")]
_OURS: Final = frozenset({b"connection", b"content-length", b"date", b"transfer-encoding"})


def has_body(status: int) -> bool:
    """Whether an answer with this status has a body at all, be it empty."""
    return status not in _WITHOUT_BODY


def written_head(status: int, headers: Headers, *, framing: bytes, is_last: bool) -> bytes:
    """The head of an answer.

    Args:
        status: A final one.
        headers: The application's; those of the connection, and the date, are added here.
        framing: A whole line that tells the client where the body ends, or nothing.
        is_last: Whether the connection ends with this answer.

    Raises:
        ValueError: The status or a header is none: it would inject another, or is not the
            application's to give.
    """
    written = _written(status, tuple(headers))
    end = b"\r\nconnection: close\r\n\r\n" if is_last else b"\r\n\r\n"
    return written + framing + b"date: " + date_at(int(time.time())) + end


# Most answers say what one before has said, but for the length.
@functools.lru_cache(maxsize=256)
def _written(status: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    if status not in _STATUSES:
        raise ValueError(f"{status} is no status of an answer")
    fields = encoded(headers)
    if not _OURS.isdisjoint(dict(fields)):
        raise ValueError(f"these headers belong to the host: {b', '.join(sorted(_OURS)).decode()}")
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return line + b"".join([b"%b: %b\r\n" % field for field in fields])


def written_rejection(rejection: Rejected) -> bytes:
    """A whole answer, the last one of its connection."""
    text = rejection.text.encode()
    framing = b"content-length: %d\r\n" % len(text)
    return written_head(rejection.status, _PLAIN_TEXT, framing=framing, is_last=True) + text


_LINE_BYTES_MAX: Final = 4096
# Extensions are legal and nobody needs them; they are read over. White space is not: readers
# differ in what they make of it.
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")
_EMPTY: Final = b"\r\n"


@attrs.define(kw_only=True)
class ChunkedBody:
    """Takes chunks from what was received, until the last one.

    Sizes, extensions and trailers together may be as long as `framing_bytes_max` and the data: so
    neither long extensions nor myriads of tiny chunks cost more than they bring.
    """

    bytes_max: int
    framing_bytes_max: int
    data: bytearray = attrs.field(factory=bytearray, init=False)
    is_ended: bool = attrs.field(default=False, init=False)
    _left: int = attrs.field(default=0, init=False)
    _framing_bytes: int = attrs.field(default=0, init=False)
    _is_behind_data: bool = attrs.field(default=False, init=False)
    _is_in_trailers: bool = attrs.field(default=False, init=False)

    def take(self, received: bytearray) -> bool:
        """Takes from the front what there is of the body; returns whether it has ended.

        Raises:
            Refused: It breaks the rules.
            BodyTooLargeError: Its data are longer than `bytes_max`.
        """
        while not self.is_ended and received:
            if self._left:
                self._take_data(received)
            elif not self._take_line(received):
                break
        return self.is_ended

    def _take_data(self, received: bytearray) -> None:
        piece = received[: self._left]
        del received[: self._left]
        self.data += piece
        self._left -= len(piece)
        self._is_behind_data = not self._left

    def _take_line(self, received: bytearray) -> bool:
        """Whether there was a whole one."""
        length = received.find(b"\n", 0, _LINE_BYTES_MAX) + 1
        self._framing_bytes += length
        is_too_long = not length and len(received) >= _LINE_BYTES_MAX
        if is_too_long or self._framing_bytes > self.framing_bytes_max + len(self.data):
            raise Rejected(400, "the chunks of the body are more frame than data")
        line = bytes(received[:length])
        del received[:length]
        if length:
            self._read_line(line)
        return bool(length)

    def _read_line(self, line: bytes) -> None:
        if self._is_behind_data and line == _EMPTY:
            self._is_behind_data = False
        elif self._is_in_trailers and line == _EMPTY:
            self.is_ended = True
        elif self._is_behind_data or (self._is_in_trailers and not _TRAILER.fullmatch(line)):
            raise Rejected(400, "the body is not in chunks")
        elif not self._is_in_trailers:
            self._read_size(line)

    def _read_size(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise Rejected(400, "the body is not in chunks")
        self._left = int(match[1], 16)
        self._is_in_trailers = not self._left
        if len(self.data) + self._left > self.bytes_max:
            raise BodyTooLargeError(f"the body is longer than {self.bytes_max} bytes")
