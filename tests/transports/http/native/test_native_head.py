"""What the native listener takes for a head and for chunks, and what it never does."""

import functools

import h11
import pytest
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_trio._transports import http1 as native_head
from mcp_trio._transports.http1 import (
    ChunkedBody,
    Rejected,
    encoded_response_headers,
    headers_length,
    parse_request,
)
from mcp_trio._transports.http_response import BodyTooLargeError

# The end of a head


def test_headers_end_with_an_empty_line():
    head = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert headers_length(bytearray(head + b"more"), 0, bytes_max=100) == len(head)


@pytest.mark.parametrize("cut", range(1, 27))
def test_incomplete_headers_have_no_length(cut):
    head = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    received = bytearray(head[:cut])
    assert headers_length(received, 0, bytes_max=100) == (cut == len(head)) * len(head)
    received += head[cut:]
    assert headers_length(received, cut, bytes_max=100) == len(head)


@pytest.mark.parametrize("received", [b"GET / HTTP/1.1\r\nX: " + b"x" * 90, b"GET /" + b"x" * 96])
def test_incomplete_headers_can_be_too_long(received):
    with pytest.raises(Rejected) as caught:
        headers_length(bytearray(received), 0, bytes_max=100)
    assert caught.value.status == 431


def test_complete_headers_can_be_too_long():
    head = bytearray(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert headers_length(head, 0, bytes_max=len(head)) == len(head)
    with pytest.raises(Rejected):
        headers_length(head, 0, bytes_max=len(head) - 1)


@pytest.mark.parametrize(
    "received",
    [
        b"\x16\x03\x01\x02",  # TLS
        b"\r\n",
        b" GET / HTTP/1.1",
        b"GET /\r\n",  # HTTP/0.9
        b"GET / HTTP/1.2\r\n",
        b"GET / HTTP/2.0\r\nHost: x\r\n",
        b"GET  / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\n",
        b"GET / http/1.1\r\n",
        b'{"jsonrpc": "2.0"}\n',
    ],
)
def test_data_that_cannot_become_a_request_are_rejected_at_once(received):
    with pytest.raises(Rejected) as caught:
        headers_length(bytearray(received), 0, bytes_max=100)
    assert caught.value.status == 400


# Heads


def read(lines, *, request_line=b"POST / HTTP/1.1", host=b"Host: x\r\n"):
    return parse_request(request_line + b"\r\n" + host + lines + b"\r\n", None)


def rejected(lines, **rest):
    with pytest.raises(Rejected) as caught:
        read(lines, **rest)
    return caught.value.status


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 6\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: 0x5\r\n",
        b"Content-Length: 5 5\r\n",
        b"Content-Length:\r\n",
        b"Content-Length: " + b"9" * 40 + b"\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding:\x0bchunked\r\n",
    ],
)
def test_an_ambiguous_body_length_is_rejected(lines):
    assert rejected(lines) == 400


@pytest.mark.parametrize(
    "lines",
    [
        b"X: a\r\n b\r\n",
        b"X: a\r\n\tb\r\n",
        b" X: a\r\n",
        b"X : a\r\n",
        b"X\t: a\r\n",
        b"X: a\nY: b\r\n",
        b"X: a\rY: b\r\n",
        b"X: a\r\r\n",
        b"X: a\n\r\n",
        b"X: a\0b\r\n",
        b"X: a\x01b\r\n",
        b"X: a\x7fb\r\n",
        b"X: a\x0bb\r\n",
        b"X\0: a\r\n",
        b"X\xff: a\r\n",
        b"X(y): a\r\n",
        b": a\r\n",
        b"X\r\n",
        b"Host: y\r\n",
    ],
)
def test_an_ambiguous_header_is_rejected(lines):
    assert rejected(lines) == 400


def test_a_request_needs_one_host_header():
    assert rejected(b"", host=b"") == 400


@pytest.mark.parametrize(
    "line",
    [
        b"GET /",
        b"GET / HTTP/0.9",
        b"GET / HTTP/1.2",
        b"GET / HTTP/2.0",
        b"PRI * HTTP/2.0",
        b"GET / HTTP/11",
        b"GET  / HTTP/1.1",
        b"GET /\tHTTP/1.1",
        b"GET / HTTP/1.1 ",
        b"G@T / HTTP/1.1",
        b"GET /\xff HTTP/1.1",
        b"GET /#fragment HTTP/1.1",
        b"GET path HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET ftp://x/ HTTP/1.1",
        b"GET http:///path HTTP/1.1",
        b"CONNECT x:443 HTTP/1.1",
        b"CONNECT / HTTP/1.1",
    ],
)
def test_a_malformed_request_line_is_rejected(line):
    assert rejected(b"", request_line=line) == 400


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", ""),
        (b"/a%2F?b?c", "/a%2F", "b?c"),
        (b"//a", "//a", ""),
        (b"http://other.test/a?b", "/a", "b"),
        (b"HTTPS://other.test:1/a", "/a", ""),
        (b"http://other.test", "/", ""),
        (b"http://other.test?b=/", "/", "b=/"),
    ],
)
def test_the_path_is_taken_from_each_form_of_target(target, path, query):
    head = read(b"", request_line=b"GET " + target + b" HTTP/1.1").head
    assert (head.path, head.query, head.header("host")) == (path, query, "x")


def test_a_server_as_a_whole_may_be_asked_for_its_options():
    assert read(b"", request_line=b"OPTIONS * HTTP/1.1").head.path == "*"


@pytest.mark.parametrize(
    ("lines", "body_bytes"),
    [
        (b"", 0),
        (b"Content-Length: 0\r\n", 0),
        (b"Content-Length: 12\r\n", 12),
        (b"content-length:12\t\r\n", 12),
        (b"Content-Length: 12\r\nContent-Length: 12\r\n", 12),
        (b"Transfer-Encoding: Chunked\r\n", None),
    ],
)
def test_the_length_of_the_body_is_known(lines, body_bytes):
    assert read(lines).body_bytes == body_bytes


def test_an_old_client_has_no_chunks_and_one_request():
    old = read(b"Expect: 100-continue\r\n", request_line=b"POST / HTTP/1.0", host=b"")
    assert (old.is_last, old.takes_chunks, old.awaits_continue) == (True, False, False)
    assert rejected(b"Transfer-Encoding: chunked\r\n", request_line=b"POST / HTTP/1.0") == 400


@pytest.mark.parametrize(
    ("field", "is_last"),
    [
        (b"Connection: close", True),
        (b"Connection: Keep-Alive, CLOSE", True),
        (b"Connection: keep-alive\r\nConnection: close", True),
        (b"Connection: keep-alive", False),
        (b"Connection: closed", False),
    ],
)
def test_a_client_may_end_the_connection(field, is_last):
    assert read(field + b"\r\n").is_last is is_last


def test_too_many_headers_are_rejected():
    assert len(read(b"X: a\r\n" * 127).head.headers) == 2
    assert rejected(b"X: a\r\n" * 128) == 431


def test_equal_headers_are_parsed_once_unless_they_are_long():
    assert read(b"X: a\r\n") is read(b"X: a\r\n")
    assert read(b"X: a\r\n") is not read(b"X: b\r\n")
    assert read(b"Content-Length: 7\r\n").body_bytes == 7
    assert read(b"Content-Length: 8\r\n").head.header("content-length") == "8"
    long = b"X: " + b"a" * 3000 + b"\r\n"
    assert read(long) is not read(long)
    assert read(long) == read(long)


_LINES = st.sampled_from(
    [
        b"Content-Length: 0",
        b"content-length: 5",
        b"Content-Length: 12",
        b"Content-Length: 012",
        b"Content-Length:5",
        b"Content-Length: 5, 5",
        b"Content-Length: 0, 5",
        b"Content-Length : 5",
        b"Content-Length: -1",
        b" Content-Length: 5",
        b"Transfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"Connection: close",
        b"X: Content-Length: 5",
    ]
)


@given(st.lists(_LINES, max_size=4), st.sampled_from([b"0", b"1"]))
@example([b"Content-Length: 5", b"Content-Length: 0"], b"1")
@example([b"Content-Length: 5", b"content-length: 0"], b"1")
def test_cached_headers_equal_parsed_ones(lines, version):
    raw = b"\r\n".join([b"POST / HTTP/1." + version, b"Host: x", *lines, b"", b""])
    assert outcome(parse_request, raw) == outcome(
        functools.partial(native_head._parse_request, scheme="http"), raw
    )


def outcome(read, raw):
    try:
        return read(raw, "client")
    except Rejected as rejected:
        return (rejected.status, rejected.text)


def test_cached_headers_have_the_address_of_their_client():
    raw = b"GET /mine HTTP/1.1\r\nHost: x\r\n\r\n"
    assert parse_request(raw, "10.0.0.1").head.client == "10.0.0.1"
    assert parse_request(raw, "10.0.0.2").head.client == "10.0.0.2"


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=4))
@example([(b"x", b"a\r\ny: b")])
def test_similar_headers_have_no_meaning(fields):
    """What is accepted has one line for each field, and no byte that could end one."""
    raw = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
    try:
        head = read(raw).head
    except Rejected:
        return
    lines = raw.split(b"\r\n")[:-1]
    names = [line.partition(b":")[0].decode("latin-1").lower() for line in lines]
    assert set(head.headers) == {"host", *names}
    assert not any(set(value) & set("\r\n\0") for value in head.headers.values())


@given(
    st.lists(st.tuples(st.text(max_size=6), st.text(max_size=6)), max_size=4),
    st.integers(200, 599),
)
def test_written_headers_are_read_by_h11(headers, status):
    try:
        written = encoded_response_headers(
            status, headers, framing=b"content-length: 0\r\n", is_last=True
        )
    except ValueError:
        return
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(written)
    response = client.next_event()
    assert response.status_code == status
    given_ones = [
        (name.lower().encode(), value.strip(" \t").encode("latin-1")) for name, value in headers
    ]
    ours = {b"content-length", b"date", b"connection"}
    assert [each for each in response.headers if each[0] not in ours] == given_ones


# Chunks


def chunked(sent, *, bytes_max=1000, framing_bytes_max=1000, piece_bytes=None):
    """The data and what is left behind, or None for a body that has not ended."""
    body = ChunkedBody(bytes_max=bytes_max, framing_bytes_max=framing_bytes_max)
    received = bytearray()
    step = piece_bytes or max(len(sent), 1)
    for at in range(0, len(sent), step):
        received += sent[at : at + step]
        body.take(received)
    return (bytes(body.data), bytes(received)) if body.is_ended else None


def test_chunks_are_joined():
    sent = b"3\r\nabc\r\n00a\r\n0123456789\r\n0\r\n\r\n"
    assert chunked(sent + b"GET") == (b"abc0123456789", b"GET")
    assert chunked(sent, piece_bytes=1) == (b"abc0123456789", b"")


@pytest.mark.parametrize("end", range(18))
def test_incomplete_chunks_are_awaited(end):
    assert chunked(b"3\r\nabc\r\n0\r\nX: a\r\n\r\n"[:end]) is None


def test_chunk_extensions_and_trailers_are_skipped():
    assert chunked(b'3;a="b c";d\r\nabc\r\n0;e\r\nX-Sum: 1\r\nY:\r\n\r\n') == (b"abc", b"")


@pytest.mark.parametrize(
    "sent",
    [
        b"g\r\n",
        b"\r\n",
        b"-1\r\n",
        b"+3\r\n",
        b"0x3\r\n",
        b"3 \r\n",
        b" 3\r\n",
        b"3 ;a\r\n",
        b"3\n",
        b"3\rabc\r\n",
        b"3;a\rb\r\n",
        b"3;a\nb\r\n",
        b"3;a\0\r\n",
        b"1_0\r\n",
        b"123456789\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\n",
        b"3\r\nabc0\r\n\r\n",
        b"3\r\nabc\r\r\n",
        b"0\r\n X: a\r\n",
        b"0\r\nX : a\r\n",
        b"0\r\nX\r\n",
        b"0\r\nX: a\n",
        b"0\r\n\n",
        b"0\n\r\n",
    ],
)
@pytest.mark.parametrize("piece_bytes", [None, 1])
def test_a_malformed_chunk_is_rejected(sent, piece_bytes):
    with pytest.raises(Rejected) as caught:
        chunked(sent, piece_bytes=piece_bytes)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "sent",
    [
        b"3;" + b"x" * 5000,
        b"3;" + b"x" * 1000 + b"\r\nabc\r\n",
        b"1\r\na\r\n" * 300,
        b"0\r\n" + b"X: abc\r\n" * 200,
    ],
)
def test_framing_longer_than_the_data_is_rejected(sent):
    with pytest.raises(Rejected, match="more framing than data"):
        chunked(sent)


def test_many_chunks_with_data_are_accepted():
    sent = b"10\r\n0123456789abcdef\r\n" * 5000 + b"0\r\n\r\n"
    assert chunked(sent, bytes_max=80_000) == (b"0123456789abcdef" * 5000, b"")


@pytest.mark.parametrize("sent", [b"b\r\n", b"5\r\nabcde\r\n6\r\n", b"ffffffff\r\n"])
def test_a_body_is_too_large_as_soon_as_it_is_announced(sent):
    with pytest.raises(BodyTooLargeError):
        chunked(sent, bytes_max=10)


def test_a_body_of_exactly_the_limit_is_accepted():
    assert chunked(b"5\r\nabcde\r\n5\r\nfghij\r\n0\r\n\r\n", bytes_max=10) == (b"abcdefghij", b"")


_PARTS = st.sampled_from([b"0", b"3", b"a", b"\r", b"\n", b"\r\n", b";", b" ", b"xyz", b"X: y"])


@given(st.lists(_PARTS, max_size=14).map(b"".join), st.integers(1, 5))
@example(b"3;a\r\nxyz\r\n0\r\nX: y\r\n\r\nxyz", 2)
def test_chunks_are_decoded_as_by_h11(sent, piece_bytes):
    """In pieces of any length, and leaving the same bytes for the next request."""
    try:
        ours = chunked(sent, bytes_max=16**8, piece_bytes=piece_bytes)
    except Rejected:
        return
    assert ours is None or ours == _by_h11(sent)


def _by_h11(sent):
    reader = h11.Connection(h11.SERVER)
    reader.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + sent)
    reader.next_event()
    data = b""
    while isinstance(event := reader.next_event(), h11.Data):
        data += event.data
    return (data, reader.trailing_data[0]) if isinstance(event, h11.EndOfMessage) else None


@pytest.mark.parametrize("field", [b"Authorization", b"COOKIE", b"proxy-authorization"])
def test_headers_with_credentials_are_not_cached(field):
    raw = b"GET / HTTP/1.1\r\nHost: here\r\n" + field + b": s3cret\r\n\r\n"
    before = native_head._cached_request.cache_info().currsize
    assert parse_request(raw, None).head.header(field.decode()) == "s3cret"
    assert native_head._cached_request.cache_info().currsize == before


@pytest.mark.parametrize(
    ("field", "is_kept"), [(b"X-A: 1", True), (b"Authorization: x", False), (b"Cookie: x", False)]
)
async def test_repeated_headers_are_parsed_once_unless_they_have_credentials(
    connect, field, is_kept
):
    heads, length = [], b"Content-Length: 0"

    async def respond(exchange):
        heads.append(exchange.head)
        await exchange.answer(200, [])

    client = await connect(respond)
    for target in (b"/a", b"/a", b"/b", b"/a"):
        client.put(b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n%b\r\n\r\n" % (target, field, length))
        await trio.testing.wait_all_tasks_blocked()
    assert [head.path for head in heads] == ["/a", "/a", "/b", "/a"]
    assert (heads[0] is heads[1]) is is_kept
