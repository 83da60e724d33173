"""HTTP/1.1 without I/O: parse request headers and chunked bodies, encode response headers.

h11 parses the request headers. It accepts some input that a proxy in front of this server might
parse differently, which would allow request smuggling. So this module rejects such input before
h11 gets it (RFC 9112, section 11.2), and reads bodies itself.
"""

import functools
import http
import re
import time
from collections.abc import Mapping
from typing import Final

import attrs
import h11
import msgspec

from mcp_trio._protocol.http_headers import Headers, HttpRequest, date_at, encoded_headers
from mcp_trio._protocol.http_requests import RETRY_SECONDS, SESSION_ID
from mcp_trio._protocol.websocket import is_websocket_upgrade
from mcp_trio._transports.http_response import PLAIN_TEXT_HEADERS, BodyTooLargeError


@attrs.frozen
class HttpError(Exception):
    """An error for which the listener itself answers a request; the application never sees it.

    Attributes:
        status: The HTTP status of the response.
        text: The body of the response, which tells the client's author the reason.
    """

    status: int
    text: str


class ParsedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request line with its headers, and their consequences for the connection.

    Attributes:
        body_bytes: The length of the body; None for a chunked body.
        accepts_chunks: Whether the client accepts a chunked response.
        is_last: Whether the connection closes after the response.
        awaits_continue: Whether the client sends the body only after `100 Continue`.
        is_websocket_upgrade: Whether the client asks for an upgrade to WebSocket.
    """

    request: HttpRequest
    body_bytes: int | None
    accepts_chunks: bool
    is_last: bool
    awaits_continue: bool
    is_websocket_upgrade: bool


# Parsing

# Complete lines, none of them folded, without control characters.
_STRICT_HEADERS: Final = re.compile(rb"(?:[^\x00-\x20\x7f][^\x00-\x08\x0a-\x1f\x7f]*\r\n)+\r\n")
# Lone LFs end the headers, too. So a request with lone LFs is rejected at once, by
# `_STRICT_HEADERS`, and not when the time for its headers is over.
_END: Final = re.compile(rb"\n\r?\n")
_PROPER_END: Final = b"\r\n\r\n"
# The most bytes of an end that an earlier search may have seen without finding it.
_END_BYTES_MAX: Final = 3
_REQUEST_LINE: Final = re.compile(rb"[!-~]+ [!-~]+ HTTP/1\.[01]\r\n")
_TARGET: Final = re.compile(r"(?i:https?://)(?P<host>[^/?#]+)(?P<rest>[/?][^#]*)?|(?P<path>/[^#]*)")
# Each header costs h11 some microseconds; MCP clients send about ten.
_FIELDS_MAX: Final = 128
# The headers that differ between the requests of one client, and the value that stands for each.
_VARYING: Final = [
    (b"content-length", re.compile(rb"\r\n(?i:content-length): (0|[1-9][0-9]{0,17})\r\n"), b"0"),
    (b"mcp-session-id", re.compile(rb"\r\n(?i:mcp-session-id): ([!-~]+)\r\n"), b"-"),
]
_LENGTH: Final = re.compile(rb"(?:0|[1-9][0-9]{0,17})(?=\r\n)")
_CACHED_BYTES_MAX: Final = 2048
# A browser can send the token of a WebSocket only as a subprotocol.
_CREDENTIALS: Final = re.compile(
    rb"\n(?i:authorization|proxy-authorization|cookie|sec-websocket-protocol):"
)


def headers_length(received: bytearray, searched: int, *, bytes_max: int) -> int:
    """Return the length of the request headers in `received`; 0 while they are incomplete.

    `searched` is the number of bytes in which an earlier call has found no end.

    Raises:
        HttpError: The headers are too long already, or the bytes cannot become an HTTP/1.1 request.
    """
    start = max(0, searched - _END_BYTES_MAX) if searched else 0
    # If an improper end comes before the proper one, `_STRICT_HEADERS` rejects the headers.
    at = received.find(_PROPER_END, start)
    if at >= 0:
        length = at + len(_PROPER_END)
        if length <= bytes_max:
            return length
    else:
        end = _END.search(received, start)
        length = end.end() if end else 0
    is_too_long = (length or len(received)) > bytes_max
    if is_too_long or not length:
        # TLS, HTTP/0.9 and HTTP/2 are rejected by their first bytes, without waiting for more. The
        # request line is checked once: by the call that finds its end.
        is_text = received[0] > ord(" ")
        has_new_line = received.find(b"\n") >= searched
        if not is_text or (has_new_line and not _REQUEST_LINE.match(received)):
            raise HttpError(400, "the request is not HTTP/1.1")
    if is_too_long:
        raise HttpError(
            431, f"the request headers are longer than limits.http.headers_bytes_max ({bytes_max})"
        )
    return length


def parse_request(
    raw: bytes, client: str | None, scheme: str = "http", certificate: str | None = None
) -> ParsedRequest:
    """Parse the request line and headers `raw` that `client` (an IP address) has sent.

    `certificate` is the thumbprint of the client's TLS certificate.

    A client repeats its headers with each request, and parsing them is most of the work of a small
    request. So short headers without credentials are cached. The content length and the id of the
    session are replaced before the look-up: the headers of many requests differ in nothing else.

    Raises:
        HttpError: They are not HTTP/1.1, or two implementations could parse them differently.
    """
    if not is_cacheable(raw):
        return _parse_request(raw, client, scheme, certificate)
    common, lower, varying = raw, raw.lower(), dict[str, str]()
    for name, line, replacement in _VARYING:
        match = line.search(common) if lower.count(name) == 1 else None
        if match is not None:
            start, end = match.span(1)
            varying[name.decode("ascii")] = match[1].decode("ascii")
            common = common[:start] + replacement + common[end:]
    cached = _cached_request(common, client, scheme, certificate)
    return _with_varying(cached, varying) if varying else cached


def _with_varying(parsed: ParsedRequest, varying: Mapping[str, str]) -> ParsedRequest:
    """Return a parsed request with other values of some of the headers in `_VARYING`."""
    length = varying.get("content-length")
    return msgspec.structs.replace(
        parsed,
        request=parsed.request.with_headers(varying),
        body_bytes=parsed.body_bytes if length is None else int(length),
    )


class RepeatedHeaders(msgspec.Struct, eq=False):
    """The headers of a connection's last request, which the next one may repeat.

    Most clients send the same headers with each request of a connection, but for the content
    length. Comparing them costs a quarter of the look-up in the cache.

    Attributes:
        raw: The request line and the headers.
        parsed: Their parsed form.
        length_at: The place of the content length, from its first digit to its last; None if the
            headers have none, or more than one.
    """

    raw: bytes
    parsed: ParsedRequest
    length_at: tuple[int, int] | None = None

    @classmethod
    def of(cls, raw: bytes, parsed: ParsedRequest) -> "RepeatedHeaders":
        """Return these headers, which have been parsed already."""
        name, line, _ = _VARYING[0]
        match = line.search(raw) if raw.lower().count(name) == 1 else None
        return cls(raw, parsed, None if match is None else match.span(1))

    def with_length_in(self, received: bytearray, *, bytes_max: int) -> "RepeatedHeaders | None":
        """Return the headers at the front of `received`, if only the content length differs."""
        if self.length_at is None:
            return None
        start, end = self.length_at
        if not received.startswith(self.raw[:start]):
            return None
        match, after = _LENGTH.match(received, start), self.raw[end:]
        if match is None or not received.startswith(after, match.end()):
            return None
        digits, end = match[0], match.end()
        if end + len(after) > bytes_max:
            return None
        parsed = _with_varying(self.parsed, {"content-length": digits.decode("ascii")})
        return RepeatedHeaders(bytes(received[: end + len(after)]), parsed, (start, end))


def is_cacheable(raw: bytes) -> bool:
    """Return whether the parsed form of these headers may be cached."""
    return len(raw) <= _CACHED_BYTES_MAX and not _CREDENTIALS.search(raw)


@functools.lru_cache(maxsize=256)
def _cached_request(
    raw: bytes, client: str | None, scheme: str, certificate: str | None
) -> ParsedRequest:
    parsed = _parse_request(raw, client, scheme, certificate)
    # Its copies for single requests keep the mark and the cached properties.
    request = parsed.request.as_common()
    _ = request.host, request.is_preflight, request.is_json
    _ = request.accepts_json, request.accepts_event_streams
    return msgspec.structs.replace(parsed, request=request)


def _parse_request(
    raw: bytes, client: str | None, scheme: str, certificate: str | None
) -> ParsedRequest:
    if not _STRICT_HEADERS.fullmatch(raw):
        raise HttpError(
            400, "the headers have a folded line, a lone CR or LF, or a control character"
        )
    if not _REQUEST_LINE.match(raw):
        raise HttpError(400, "the request is not HTTP/1.1")
    if raw.count(b"\n") > _FIELDS_MAX + 2:  # with the request line and the empty line
        raise HttpError(431, f"the request has more than {_FIELDS_MAX} headers")
    parser = h11.Connection(h11.SERVER, max_incomplete_event_size=len(raw))
    parser.receive_data(raw)
    try:
        parsed = parser.next_event()
    except h11.RemoteProtocolError as error:
        raise HttpError(400, "the request line or a header is malformed") from error
    assert isinstance(parsed, h11.Request)
    method = parsed.method.decode("ascii")
    target, host = parsed.target.decode("ascii"), None
    if method != "OPTIONS" or target != "*":
        match = _TARGET.fullmatch(target)
        if match is None or method == "CONNECT":
            raise HttpError(400, "the request target is neither a path nor a URL")
        path, host = match["path"] or match["rest"] or "/", match["host"]
        target = path if path.startswith("/") else f"/{path}"
    request = HttpRequest.of(
        method,
        target,
        parsed.headers.raw_items(),
        scheme=scheme,
        client=client,
        certificate=certificate,
    )
    if host is not None:  # The host of a URL has precedence (RFC 9112, section 3.2.2).
        request = request.with_headers({"host": host})
    is_http_1_1 = parsed.http_version == b"1.1"
    # h11 has checked that a length is one number, and that the only coding is `chunked`.
    body_bytes: int | None = None
    if "transfer-encoding" not in request.headers:
        body_bytes = int(request.headers.get("content-length", "0"))
    elif "content-length" in request.headers:
        raise HttpError(400, "the request has both Content-Length and Transfer-Encoding")
    elif not is_http_1_1:
        raise HttpError(400, "an HTTP/1.0 request cannot have Transfer-Encoding")
    expected = request.header("expect") if is_http_1_1 else None
    if expected is not None and expected.lower() != "100-continue":
        raise HttpError(417, "the only Expect value that this server supports is 100-continue")
    connection = (request.header("connection") or "").lower().split(",")
    return ParsedRequest(
        request=request,
        body_bytes=body_bytes,
        accepts_chunks=is_http_1_1,
        is_last=not is_http_1_1 or "close" in [each.strip(" \t") for each in connection],
        awaits_continue=expected is not None,
        is_websocket_upgrade=is_websocket_upgrade(request),
    )


# Encoding

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii")
    for status in http.HTTPStatus
}
_STATUSES: Final = range(200, 600)
# The headers that the listener sets, and no application.
_OWN_HEADERS: Final = frozenset({b"connection", b"content-length", b"date", b"transfer-encoding"})


def encoded_response_headers(
    status: int, headers: Headers, *, framing: bytes, is_last: bool
) -> bytes:
    """Return the encoded status line and headers of a response, with those that the listener sets.

    `framing` is a complete `Content-Length` or `Transfer-Encoding` line, or nothing.

    Raises:
        ValueError: The status is not a final one, a header has characters that would start another
            header, or only the listener may set one of the headers.
    """
    own = b""
    if headers and headers[0][0] == SESSION_ID:
        session_id = headers[0][1]
        if session_id.isascii() and session_id.isprintable():
            # Not cached, since each session has another one.
            own, headers = b"mcp-session-id: %b\r\n" % session_id.encode("ascii"), headers[1:]
    return b"%b%b%bdate: %b%b" % (
        _encoded_response_headers(status, tuple(headers)),
        own,
        framing,
        date_at(int(time.time())),
        b"\r\nconnection: close\r\n\r\n" if is_last else b"\r\n\r\n",
    )


# Most responses have the same status and headers as an earlier one, except for the length.
@functools.lru_cache(maxsize=256)
def _encoded_response_headers(status: int, headers: tuple[tuple[str, str], ...]) -> bytes:
    if status not in _STATUSES:
        raise ValueError(f"{status} is not a final HTTP status (200 to 599)")
    fields = encoded_headers(headers)
    if not _OWN_HEADERS.isdisjoint(dict(fields)):
        raise ValueError(
            "only the HTTP server itself may set these headers:"
            f" {b', '.join(sorted(_OWN_HEADERS)).decode()}"
        )
    line = _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return line + b"".join([b"%b: %b\r\n" % field for field in fields])


def encoded_last_response(status: int, headers: Headers, body: bytes) -> bytes:
    """Return a complete encoded response, after which the connection closes."""
    framing = b"content-length: %d\r\n" % len(body)
    return encoded_response_headers(status, headers, framing=framing, is_last=True) + body


def encoded_error(error: HttpError) -> bytes:
    """Return the complete encoded response for an error; the connection then closes."""
    headers = PLAIN_TEXT_HEADERS
    if error.status == http.HTTPStatus.SERVICE_UNAVAILABLE:
        headers = [*headers, ("Retry-After", RETRY_SECONDS)]
    return encoded_last_response(error.status, headers, error.text.encode())


# Chunked bodies

_LINE_BYTES_MAX: Final = 4096
# Chunk extensions are legal and are ignored. White space around the size is rejected, because HTTP
# implementations differ in how they parse it.
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,8})(?:;[\t -~\x80-\xff]*)?\r\n")
_TRAILER: Final = re.compile(rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]+:[^\x00-\x08\x0a-\x1f\x7f]*\r\n")
_EMPTY: Final = b"\r\n"


@attrs.define(kw_only=True)
class ChunkedBody:
    """An incremental parser of one chunked body.

    Chunk sizes, extensions and trailers together may be as long as `framing_bytes_max` plus the
    data. So a client cannot send long extensions or a flood of tiny chunks for little data.

    Attributes:
        framing_bytes_max: The allowance for framing beside the length of the data.
        is_ended: Whether the last chunk and the trailers were read.
    """

    bytes_max: int
    framing_bytes_max: int
    data: bytearray = attrs.field(factory=bytearray, init=False)
    is_ended: bool = attrs.field(default=False, init=False)
    _left: int = attrs.field(default=0, init=False)
    _framing_bytes: int = attrs.field(default=0, init=False)
    _is_after_data: bool = attrs.field(default=False, init=False)
    _is_in_trailers: bool = attrs.field(default=False, init=False)

    def take(self, received: bytearray) -> bool:
        """Remove the body's bytes from the front of `received`; return whether the body has ended.

        Raises:
            HttpError: The framing is malformed or too long.
            BodyTooLargeError: The data are longer than `bytes_max`.
        """
        while not self.is_ended and received:
            if self._left:
                piece = received[: self._left]
                del received[: self._left]
                self.data += piece
                self._left -= len(piece)
                self._is_after_data = not self._left
                continue
            length = received.find(b"\n", 0, _LINE_BYTES_MAX) + 1
            self._framing_bytes += length
            if not length and len(received) >= _LINE_BYTES_MAX:
                raise HttpError(
                    400, f"a line of the chunked body is longer than {_LINE_BYTES_MAX} bytes"
                )
            if self._framing_bytes > self.framing_bytes_max + len(self.data):
                raise HttpError(400, "the body's chunks have more framing than data")
            if not length:
                break  # the line is incomplete
            line = bytes(received[:length])
            del received[:length]
            if self._is_after_data:
                if line != _EMPTY:
                    raise HttpError(400, "the data of a chunk are not followed by CR LF")
                self._is_after_data = False
            elif self._is_in_trailers:
                if line == _EMPTY:
                    self.is_ended = True
                elif not _TRAILER.fullmatch(line):
                    raise HttpError(400, "a trailer of the chunked body is malformed")
            else:
                match = _SIZE.fullmatch(line)
                if match is None:
                    raise HttpError(400, "the size of a chunk is malformed")
                self._left = int(match[1], 16)
                self._is_in_trailers = not self._left
                if len(self.data) + self._left > self.bytes_max:
                    raise BodyTooLargeError(self.bytes_max)
        return self.is_ended
