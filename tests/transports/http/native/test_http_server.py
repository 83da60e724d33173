"""Connections of the native HTTP listener, over bytes in memory."""

import errno
import functools
import logging
import os
import re
import socket

import attrs
import h11
import pytest
import trio
import trio.testing
from hypothesis import example, given
from hypothesis import strategies as st
from wsproto import events

from mcp_trio import Limits
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._transports import http1
from mcp_trio._transports.buffered_sockets import (
    BufferedSocket,
    BufferedSocketStream,
    ConnectedSocket,
)
from mcp_trio._transports.concurrency import wait_idle
from mcp_trio._transports.http1 import (
    ChunkedBody,
    HttpError,
    RepeatedHeaders,
    encoded_response_headers,
    headers_length,
    parse_request,
)
from mcp_trio._transports.http_response import BodyTooLargeError
from mcp_trio._transports.http_server import NativeHost, serve_native
from mcp_trio.limits import KIB, HttpLimits, MessageLimits, ShutdownLimits
from tests.transports.websocket.conftest import RawPeer, handing_over

GET = b"GET /path HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def say_path(exchange):
    await exchange.answer(200, [], exchange.request.path.encode())


async def echo(exchange):
    await exchange.answer(200, [], await exchange.body(1000 * KIB))


async def settled():
    await trio.testing.wait_all_tasks_blocked()


# One answer


async def test_a_small_answer_is_sent_in_one_write(connect):
    client = await connect(echo)
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
    await settled()
    assert client.undated() == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"
    assert client.writes == 1


async def test_the_body_is_kept_for_a_second_read(connect):
    async def respond(exchange):
        await exchange.body(10)
        await echo(exchange)

    client = await connect(respond)
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
    await settled()
    assert client.sent.endswith(b"\r\n\r\nabc")


async def test_each_answer_has_a_date(connect):
    client = await connect(say_path)
    client.put(GET)
    await settled()
    assert re.search(rb"\r\ndate: \w\w\w, \d\d \w\w\w \d{4} \d\d:\d\d:\d\d GMT\r\n", client.sent)


async def test_a_request_byte_by_byte_is_the_same_request(connect):
    client = await connect(echo)
    for (
        byte
    ) in b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n":
        client.put(bytes([byte]))
        await settled()
    assert client.undated() == b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"


async def test_a_stream_is_sent_in_chunks(connect):
    async def respond(exchange):
        await exchange.start(200, [("content-type", "text/event-stream")])
        await exchange.send(b"one")
        await exchange.send(b"")
        await exchange.send(b"x" * 16)
        await exchange.end()

    client = await connect(respond)
    client.put(GET)
    await settled()
    request, _, body = client.undated().partition(b"\r\n\r\n")
    assert request.endswith(b"\r\ntransfer-encoding: chunked")
    assert body == b"3\r\none\r\n10\r\nxxxxxxxxxxxxxxxx\r\n0\r\n\r\n"
    assert not client.is_closed


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
async def test_a_stream_that_can_have_no_body_consists_of_headers_only(connect, method, status):
    async def respond(exchange):
        await exchange.start(status, [])
        await exchange.send(b"one")
        await exchange.end()

    client = await connect(respond)
    client.put(method.encode() + b" / HTTP/1.1\r\nHost: x\r\n\r\n")
    await settled()
    assert client.sent.endswith(b"\r\n\r\n")
    assert client.sent.count(b"\r\n\r\n") == 1
    assert (b"transfer-encoding" in client.sent) == (status == 200)


@pytest.mark.parametrize("status", [100, 199, 600])
async def test_an_answer_has_a_final_status(connect, status):
    errors = []

    async def respond(exchange):
        with pytest.raises(ValueError, match="not a final HTTP status") as caught:
            await exchange.answer(status, [])
        errors.append(caught.value)
        await exchange.answer(299, [])

    client = await connect(respond)
    client.put(GET)
    await settled()
    assert errors
    assert client.sent.startswith(b"HTTP/1.1 299 \r\n")


@pytest.mark.parametrize("call", ["answer", "start"])
@pytest.mark.parametrize(
    "header",
    [
        ("x", "a\r\nset-cookie: b=c"),
        ("x", "a\nb"),
        ("x", "a\rb"),
        ("x", "a\0b"),
        ("x", "a\x7fb"),
        ("x", "snow\N{SNOWMAN}man"),
        ("x\r\ny", "a"),
        ("x: y\r\nz", "a"),
        ("x y", "a"),
        ("", "a"),
        ("Content-Length", "0"),
        ("transfer-encoding", "chunked"),
        ("connection", "upgrade"),
    ],
)
async def test_a_header_that_would_inject_something_is_rejected_before_anything_is_sent(
    connect, call, header
):
    async def respond(exchange):
        with pytest.raises(ValueError):
            await getattr(exchange, call)(200, [("a", "b"), header])
        assert client.sent == b""
        await exchange.answer(200, [], b"clean")

    client = await connect(respond)
    client.put(GET)
    await settled()
    assert client.sent.endswith(b"\r\n\r\nclean")


async def test_a_second_answer_raises(connect):
    async def respond(exchange):
        with pytest.raises(RuntimeError):
            await exchange.send(b"x")
        with pytest.raises(RuntimeError):
            await exchange.end()
        await exchange.start(200, [])
        with pytest.raises(RuntimeError):
            await exchange.answer(200, [])
        await exchange.end()
        with pytest.raises(RuntimeError):
            await exchange.send(b"x")

    client = await connect(respond)
    client.put(GET + LAST)
    await settled()
    assert client.statuses() == [200, 200]


# The body


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 3\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"],
)
async def test_100_continue_is_sent_only_when_the_body_is_read(connect, body):
    is_wanted = trio.Event()

    async def respond(exchange):
        await is_wanted.wait()
        await echo(exchange)

    client = await connect(respond)
    framing, _, body = body.partition(b"\r\n\r\n")
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-Continue\r\n" + framing + b"\r\n\r\n")
    await settled()
    assert client.sent == b""
    is_wanted.set()
    await settled()
    assert client.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.put(body)
    await settled()
    assert client.statuses() == [100, 200]


async def test_a_client_that_expects_100_continue_and_is_rejected_keeps_its_body(connect):
    client = await connect(say_path)
    client.put(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
    await settled()
    assert client.statuses() == [200]
    assert b"\r\nconnection: close\r\n" in client.sent
    assert client.is_shut


async def test_a_client_that_sends_its_body_early_gets_no_100_continue(connect):
    client = await connect(echo)
    client.put(
        b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 6\r\n\r\nabc"
    )
    await settled()
    client.put(b"def")
    await settled()
    assert client.statuses() == [200]


async def test_other_expectations_are_ignored(connect):
    client = await connect(say_path)
    client.put(b"POST /x HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n")
    await settled()
    assert client.statuses() == [417]


async def test_a_small_unread_body_does_not_close_the_connection(connect):
    client = await connect(say_path)
    client.put(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /" + LAST)
    await settled()
    assert client.statuses() == [200, 200]
    assert client.sent.endswith(b"/last")


@pytest.mark.parametrize(
    "unread",
    [
        b"Content-Length: 50\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_an_unread_body_is_never_parsed_as_a_request(connect, unread):
    client = await connect(say_path)
    client.put(b"POST /x HTTP/1.1\r\nHost: x\r\n" + unread)
    await settled()
    assert client.statuses() == [200]
    assert b"\r\nconnection: close\r\n" in client.sent
    assert client.is_shut


async def test_a_body_that_is_too_large_ends_the_connection(connect):
    async def respond(exchange):
        for _ in range(2):
            with pytest.raises(BodyTooLargeError):
                await exchange.body(10)
        await exchange.answer(413, [])

    client = await connect(respond)
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n")
    await settled()
    assert client.statuses() == [413]
    assert client.is_shut


async def test_a_chunked_body_cannot_be_read_again_after_its_rejection(connect):
    async def respond(exchange):
        with pytest.raises(BodyTooLargeError):
            await exchange.body(10)
        with pytest.raises(trio.BrokenResourceError):
            await exchange.body(100)
        await exchange.answer(413, [])

    client = await connect(respond)
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n")
    await settled()
    assert client.statuses() == [413]


async def test_malformed_chunks_are_rejected_by_the_host(connect, caplog):
    client = await connect(echo)
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n")
    await settled()
    assert client.statuses() == [400]
    assert client.is_shut
    assert caplog.records == []


async def test_a_cancelled_read_of_the_body_can_be_repeated(connect, autojump_clock):
    async def respond(exchange):
        with trio.move_on_after(1):
            await exchange.body(10)
        await echo(exchange)

    client = await connect(respond)
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc")
    await trio.sleep(2)
    client.put(b"def")
    await trio.sleep(1)
    assert client.sent.endswith(b"\r\n\r\nabcdef")


# The application


async def test_a_broken_resource_is_logged_while_the_client_is_connected(connect, caplog):
    async def respond(exchange):
        raise trio.BrokenResourceError("of something else")

    client = await connect(respond)
    client.put(GET)
    await settled()
    assert client.statuses() == [500]
    [record] = caplog.records
    assert (record.name, record.levelno) == ("mcp_trio", logging.ERROR)
    assert record.getMessage() == "answering GET /path failed"


async def test_an_error_beside_a_cancellation_is_logged_and_the_cancellation_goes_on(
    new_client, caplog
):
    async def fail():
        try:
            await trio.sleep_forever()
        finally:
            raise KeyError("beside")

    async def respond(exchange):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await settled()

    client = new_client()
    host = NativeHost(respond=respond, limits=Limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.serve, client)
        client.put(GET)
        await settled()
        nursery.cancel_scope.cancel()
    assert client.is_closed
    assert "beside" in caplog.text


@pytest.mark.parametrize("beside", [False, True])
async def test_base_exceptions_are_not_caught(new_client, caplog, beside):
    async def respond(exchange):
        errors = [SystemExit(1), KeyError("x")] if beside else [SystemExit(1)]
        raise BaseExceptionGroup("both", errors)

    client = new_client()
    client.put(GET)
    with pytest.raises(BaseExceptionGroup) as caught:
        await NativeHost(respond=respond, limits=Limits()).serve(client)
    assert [type(error) for error in caught.value.exceptions] == [SystemExit]
    assert len(caplog.records) == beside
    assert client.is_closed


# The listener


async def test_a_connection_over_the_limit_is_answered_503_and_closed(new_client):
    host = NativeHost(respond=say_path, limits=Limits(http=HttpLimits(connections_max=1)))
    first, second = new_client(), new_client()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.serve, first)
        await settled()
        nursery.start_soon(host.serve, second)
        await settled()
        assert second.statuses() == [503]
        assert second.is_shut
        second.close_sending()
        await settled()
        assert second.is_closed
        first.put(LAST)
        first.close_sending()
    assert first.statuses() == [200]
    third = new_client()
    third.put(LAST)
    third.close_sending()
    await host.serve(third)
    assert third.statuses() == [200]


async def test_connections_of_one_client_leave_places_to_the_others(new_client):
    host = NativeHost(respond=say_path, limits=Limits(http=HttpLimits(connections_max=2)))
    flood = [new_client() for _ in range(3)]
    other, same_network = new_client(), new_client()
    async with trio.open_nursery() as nursery:
        for number, client in enumerate(flood):
            address = f"2001:db8:0:1::{number}"
            nursery.start_soon(functools.partial(host.serve, client, client=address))
            await settled()
        assert [client.is_shut for client in flood] == [False, False, True]
        assert flood[2].statuses() == [503]
        assert b"retry-after: 1" in flood[2].sent
        flood[2].close_sending()
        same_network.close_sending()
        await host.serve(same_network, client="2001:db8:0:1::ffff")
        assert same_network.statuses() == [503]
        other.put(LAST)
        other.close_sending()
        await host.serve(other, client="192.0.2.1")
        assert other.statuses() == [200]
        for client in flood[:2]:
            client.put(LAST)
            client.close_sending()
    assert [client.statuses() for client in flood[:2]] == [[200], [200]]


async def test_connections_far_over_the_limit_are_closed_without_a_response(new_client):
    host = NativeHost(respond=say_path, limits=Limits(http=HttpLimits(connections_max=1)))
    clients = [new_client() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        for client in clients:
            nursery.start_soon(host.serve, client)
            await settled()
        assert [client.statuses() for client in clients] == [[], [503], []]
        assert [client.is_closed for client in clients] == [False, False, True]
        nursery.cancel_scope.cancel()
    assert all(client.is_closed for client in clients)


async def test_the_listener_survives_a_lack_of_descriptors(caplog, autojump_clock):
    """`accept` fails for a while, as it does when another part of the program has used them up."""

    @attrs.define
    class Listener(trio.abc.Listener):
        failures: int = 3

        async def accept(self):
            await trio.lowlevel.checkpoint()
            if self.failures:
                self.failures -= 1
                raise OSError(errno.EMFILE, "too many open files")
            await trio.sleep_forever()

        async def aclose(self):
            await trio.lowlevel.checkpoint()

    listener = Listener()
    async with trio.open_nursery() as nursery:
        started = await nursery.start(
            lambda **rest: serve_native(say_path, [listener], limits=Limits(), **rest)
        )
        await trio.sleep(1)
        assert started == [listener]
        assert listener.failures == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("family", "error", "client"),
    [
        (socket.AF_INET, None, "10.0.0.1"),
        (socket.AF_INET6, None, "10.0.0.1"),
        (socket.AF_INET, OSError(errno.ENOTCONN, "gone before it was taken"), None),
        (socket.AF_UNIX, None, None),
    ],
)
async def test_a_client_may_have_an_address(nursery, family, error, client):
    """Over a real socket that reports the peer that the test sets."""

    @attrs.define
    class Named:
        real: object
        family: int

        def getpeername(self):
            if error:
                raise error
            return ("10.0.0.1", 4711)

        def __getattr__(self, name):
            return getattr(self.real, name)

    class Listener(trio.abc.Listener):
        async def accept(self):
            stream = await listener.accept()
            stream.socket = Named(stream.socket, family)
            return stream

        async def aclose(self):
            await listener.aclose()

    requests = []

    async def respond(exchange):
        requests.append(exchange.request)
        await say_path(exchange)

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(lambda **rest: serve_native(respond, [Listener()], limits=Limits(), **rest))
    stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    await stream.send_all(LAST)
    assert b"/last" in b"".join([data async for data in stream])
    await stream.aclose()
    assert [request.client for request in requests] == [client]
    nursery.cancel_scope.cancel()


async def test_a_connection_is_removed_from_the_poller_before_it_is_closed():
    ours, theirs = socket.socketpair()
    fd = ours.detach()
    connected, was_open = ConnectedSocket(fd=fd), []
    idle = connected.idle
    idle.unregister = lambda: was_open.append(os.fstat(fd))
    assert wait_idle(idle).send(None) is idle
    connected.close()
    assert (idle.fd, len(was_open)) == (fd, 1)
    assert theirs.recv(1) == b""
    theirs.close()


# Headers and chunks that the native listener accepts and rejects.


# The end of the headers


def test_headers_end_with_an_empty_line():
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert headers_length(bytearray(request + b"more"), 0, bytes_max=100) == len(request)


@pytest.mark.parametrize("cut", range(1, 27))
def test_incomplete_headers_have_no_length(cut):
    request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    received = bytearray(request[:cut])
    assert headers_length(received, 0, bytes_max=100) == (cut == len(request)) * len(request)
    received += request[cut:]
    assert headers_length(received, cut, bytes_max=100) == len(request)


@pytest.mark.parametrize("received", [b"GET / HTTP/1.1\r\nX: " + b"x" * 90, b"GET /" + b"x" * 96])
def test_incomplete_headers_can_be_too_long(received):
    with pytest.raises(HttpError) as caught:
        headers_length(bytearray(received), 0, bytes_max=100)
    assert caught.value.status == 431


@pytest.mark.parametrize("bytes_max", [100, 10_000])
@pytest.mark.parametrize("size", [1, 20, 10_000])
def test_what_is_not_http_is_rejected_as_such_however_long_and_in_any_pieces(size, bytes_max):
    received = b"GET / HTTP/1\r\n" + b"X: x\r\n" * 129 + b"\r\n"
    with pytest.raises(HttpError) as caught:  # noqa: PT012 - either may raise it
        for end in range(size, len(received) + size, size):
            headers_length(bytearray(received[:end]), end - size, bytes_max=bytes_max)
        parse_request(received, None)
    assert caught.value.status == 400


def test_complete_headers_can_be_too_long():
    request = bytearray(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert headers_length(request, 0, bytes_max=len(request)) == len(request)
    with pytest.raises(HttpError):
        headers_length(request, 0, bytes_max=len(request) - 1)


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
    with pytest.raises(HttpError) as caught:
        headers_length(bytearray(received), 0, bytes_max=100)
    assert caught.value.status == 400


# Headers


def read(lines, *, request_line=b"POST / HTTP/1.1", host=b"Host: x\r\n"):
    return parse_request(request_line + b"\r\n" + host + lines + b"\r\n", None)


def rejected(lines, **rest):
    with pytest.raises(HttpError) as caught:
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
    ("target", "path", "query", "host"),
    [
        (b"/", "/", "", "x"),
        (b"/a%2F?b?c", "/a%2F", "b?c", "x"),
        (b"//a", "//a", "", "x"),
        (b"http://other.test/a?b", "/a", "b", "other.test"),
        (b"HTTPS://other.test:1/a", "/a", "", "other.test:1"),
        (b"http://other.test", "/", "", "other.test"),
        (b"http://other.test?b=/", "/", "b=/", "other.test"),
    ],
)
def test_path_and_host_are_taken_from_each_form_of_target(target, path, query, host):
    """The host of a URL has precedence over the header (RFC 9112, section 3.2.2)."""
    request = read(b"", request_line=b"GET " + target + b" HTTP/1.1").request
    assert (request.path, request.query, request.header("host")) == (path, query, host)


def test_a_server_as_a_whole_may_be_asked_for_its_options():
    assert read(b"", request_line=b"OPTIONS * HTTP/1.1").request.path == "*"


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
    assert (old.is_last, old.accepts_chunks, old.awaits_continue) == (True, False, False)
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
    assert len(read(b"X: a\r\n" * 127).request.headers) == 2
    assert rejected(b"X: a\r\n" * 128) == 431


def test_equal_headers_are_parsed_once_unless_they_are_long():
    assert read(b"X: a\r\n") is read(b"X: a\r\n")
    assert read(b"X: a\r\n") is not read(b"X: b\r\n")
    assert read(b"Content-Length: 7\r\n").body_bytes == 7
    assert read(b"Content-Length: 8\r\n").request.header("content-length") == "8"
    long = b"X: " + b"a" * 3000 + b"\r\n"
    assert read(long) is not read(long)
    assert read(long) == read(long)


def test_requests_of_several_sessions_have_their_other_headers_parsed_once():
    parsed_before = http1._cached_request.cache_info().misses
    for name in (b"one", b"two", b"three"):
        headers = read(b"X: sessions\r\nMcp-Session-Id: %b\r\nContent-Length: 7\r\n" % name)
        assert headers.request.header("mcp-session-id") == name.decode()
        assert headers.body_bytes == 7
    assert http1._cached_request.cache_info().misses == parsed_before + 1


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
        b"Mcp-Session-Id: a1",
        b"mcp-session-id: b2",
        b"MCP-Session-Id:c3",
        b"Mcp-Session-Id: d 4",
        b"X: Mcp-Session-Id: e5",
    ]
)


@given(st.lists(_LINES, max_size=4), st.sampled_from([b"0", b"1"]))
@example([b"Content-Length: 5", b"Content-Length: 0"], b"1")
@example([b"Content-Length: 5", b"content-length: 0"], b"1")
@example([b"Content-Length: 5", b"Mcp-Session-Id: a1"], b"1")
@example([b"Mcp-Session-Id: a1", b"mcp-session-id: b2"], b"1")
@example([b"Mcp-Session-Id: d 4", b"Transfer-Encoding: chunked"], b"1")
def test_cached_headers_equal_parsed_ones(lines, version):
    raw = b"\r\n".join([b"POST / HTTP/1." + version, b"Host: x", *lines, b"", b""])
    assert outcome(parse_request, raw) == outcome(
        functools.partial(http1._parse_request, scheme="http", certificate=None), raw
    )


def outcome(read, raw):
    try:
        return read(raw, "client")
    except HttpError as rejected:
        return (rejected.status, rejected.text)


def test_requests_that_differ_only_in_length_and_session_share_what_was_computed():
    raw = b"POST / HTTP/1.1\r\nHost: x:%d\r\nAccept: application/json\r\n"
    raw += b"Content-Type: application/json\r\nContent-Length: %d\r\nMcp-Session-Id: %b\r\n\r\n"
    first, second = (parse_request(raw % (7, *it), "c").request for it in [(5, b"a"), (6, b"b")])
    other = parse_request(raw % (8, 5, b"a"), "c").request
    assert first.host is second.host == ("x", "7")
    assert vars(first).keys() >= {"host", "is_preflight", "is_json", "accepts_json"}
    assert [it.header("mcp-session-id") for it in (first, second)] == ["a", "b"]
    assert (second.is_json, second.accepts_json, second.accepts_event_streams) == (
        True,
        True,
        False,
    )
    assert other.host == ("x", "8")


REPEATED = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\nAccept: */*\r\n\r\n"


def repeated(first, received, bytes_max=1000):
    headers = RepeatedHeaders.of(first, parse_request(first, "c"))
    return headers.with_length_in(bytearray(received), bytes_max=bytes_max)


@pytest.mark.parametrize("length", [b"0", b"7", b"42", b"123456789012345678"])
def test_repeated_headers_are_parsed_like_any_others(length):
    raw = REPEATED % length
    found = repeated(REPEATED % b"15", raw + b"body")
    assert (found.raw, found.parsed) == (raw, parse_request(raw, "c"))
    assert found.parsed.body_bytes == int(length)
    assert found.parsed.request.header("content-length") == length.decode()
    again = found.with_length_in(bytearray(REPEATED % b"15"), bytes_max=1000)
    assert again.parsed == parse_request(REPEATED % b"15", "c")
    assert repeated(REPEATED % b"15", raw, bytes_max=len(raw) - 1) is None


@pytest.mark.parametrize(
    "received",
    [
        *(REPEATED % length for length in (b"", b"07", b"+7", b"7 ", b"7, 7", b"0x7", b"1" * 19)),
        REPEATED[:-2] % b"7",
        (REPEATED % b"7")[:-2] + b"X: y\r\n\r\n",
        (REPEATED % b"7").replace(b"\r\n", b"\n"),
        (REPEATED % b"7").replace(b"Host: x", b"Host: y"),
        b"",
    ],
)
def test_other_headers_are_no_repetition(received):
    assert repeated(REPEATED % b"15", received) is None


def test_headers_without_a_single_length_are_not_repeated_with_another():
    without = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    twice = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\ncontent-length: 5\r\n\r\n"
    for first in (without, twice):
        assert repeated(first, first) is None


async def test_requests_on_a_connection_may_differ_in_their_length_only(connect):
    client = await connect(echo)
    for body in (b"a", b"bc", b"", b"d" * 12, b"e"):
        client.put(REPEATED % str(len(body)).encode() + body)
        await settled()
        assert client.sent.endswith(b"\r\n\r\n" + body)
        client.sent.clear()


def test_cached_headers_have_the_address_of_their_client():
    raw = b"GET /mine HTTP/1.1\r\nHost: x\r\n\r\n"
    assert parse_request(raw, "10.0.0.1").request.client == "10.0.0.1"
    assert parse_request(raw, "10.0.0.2").request.client == "10.0.0.2"


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=4))
@example([(b"x", b"a\r\ny: b")])
def test_similar_headers_have_no_meaning(fields):
    """Accepted headers have one line for each field, and no byte that could end one."""
    raw = b"".join(name + b": " + value + b"\r\n" for name, value in fields)
    try:
        request = read(raw).request
    except HttpError:
        return
    lines = raw.split(b"\r\n")[:-1]
    names = [line.partition(b":")[0].decode("latin-1").lower() for line in lines]
    assert set(request.headers) == {"host", *names}
    assert not any(set(value) & set("\r\n\0") for value in request.headers.values())


@given(
    st.lists(
        st.tuples(st.text(max_size=6) | st.just("Mcp-Session-Id"), st.text(max_size=6)), max_size=4
    ),
    st.integers(200, 599),
)
@example([("Mcp-Session-Id", "a"), ("Mcp-Session-Id", "b"), ("x", "c")], 200)
@example([("Mcp-Session-Id", "a\r\nb: c")], 200)
@example([("Mcp-Session-Id", "a\nb: c")], 200)
@example([("Mcp-Session-Id", "ä")], 200)
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
    assert sorted(each for each in response.headers if each[0] not in ours) == sorted(given_ones)


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
    with pytest.raises(HttpError) as caught:
        chunked(sent, piece_bytes=piece_bytes)
    assert caught.value.status == 400


def test_a_too_long_line_of_a_chunked_body_is_rejected():
    with pytest.raises(HttpError, match="a line of the chunked body is longer than 4096 bytes"):
        chunked(b"3;" + b"x" * 5000)


@pytest.mark.parametrize(
    "sent",
    [
        b"3;" + b"x" * 1000 + b"\r\nabc\r\n",
        b"1\r\na\r\n" * 300,
        b"0\r\n" + b"X: abc\r\n" * 200,
    ],
)
def test_framing_longer_than_the_data_is_rejected(sent):
    with pytest.raises(HttpError, match="more framing than data"):
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
    except HttpError:
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


@pytest.mark.parametrize(
    "field", [b"Authorization", b"COOKIE", b"proxy-authorization", b"Sec-WebSocket-Protocol"]
)
def test_headers_with_credentials_are_not_cached(field):
    raw = b"GET / HTTP/1.1\r\nHost: here\r\n" + field + b": s3cret\r\n\r\n"
    before = http1._cached_request.cache_info().currsize
    assert parse_request(raw, None).request.header(field.decode()) == "s3cret"
    assert http1._cached_request.cache_info().currsize == before


@pytest.mark.parametrize(
    ("field", "is_kept"), [(b"X-A: 1", True), (b"Authorization: x", False), (b"Cookie: x", False)]
)
async def test_repeated_headers_are_parsed_once_unless_they_have_credentials(
    connect, field, is_kept
):
    requests, length = [], b"Content-Length: 0"

    async def respond(exchange):
        requests.append(exchange.request)
        await exchange.answer(200, [])

    client = await connect(respond)
    for target in (b"/a", b"/a", b"/b", b"/a"):
        client.put(b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n%b\r\n\r\n" % (target, field, length))
        await trio.testing.wait_all_tasks_blocked()
    assert [request.path for request in requests] == ["/a", "/a", "/b", "/a"]
    assert (requests[0] is requests[1]) is is_kept


# Slow clients and lost clients of the native listener.


# Timeouts


async def test_late_headers_are_rejected(connect, autojump_clock):
    client = await connect(say_path, http=HttpLimits(headers_seconds=10))
    for byte in GET[:11]:
        client.put(bytes([byte]))
        await trio.sleep(0.9)
    assert client.statuses() == []
    await trio.sleep(0.2)
    assert client.statuses() == [408]
    assert client.is_shut
    await trio.sleep(10)
    assert client.is_closed


async def test_a_stalled_body_is_rejected_by_the_host(connect, autojump_clock, caplog):
    client = await connect(echo, http=HttpLimits(body_seconds=10))
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
    await trio.sleep(9)
    client.put(b"a")
    await trio.sleep(0.9)
    assert client.statuses() == []
    await trio.sleep(0.2)
    assert client.statuses() == [408]
    assert caplog.records == []


async def test_a_large_body_may_take_its_time_as_long_as_it_comes(connect, autojump_clock):
    client = await connect(echo, http=HttpLimits(body_seconds=10))
    size = 256 * KIB
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
    for _ in range(32):
        client.put(b"x" * (size // 32))
        await trio.sleep(1)
    assert client.statuses() == [200]


async def test_an_idle_connection_is_closed_without_an_answer(connect, autojump_clock):
    client = await connect(say_path, http=HttpLimits(idle_seconds=80))
    await trio.sleep(50)
    client.put(GET)
    await trio.sleep(79)
    assert not client.is_closed
    await trio.sleep(22)
    assert client.is_closed
    assert client.statuses() == [200]


async def test_a_connection_without_a_request_is_idle(connect, autojump_clock):
    client = await connect(say_path, http=HttpLimits(idle_seconds=80))
    await trio.sleep(101)
    assert client.is_closed
    assert client.sent == b""


async def test_a_request_may_take_longer_than_a_connection_may_be_idle(connect, autojump_clock):
    async def respond(exchange):
        await trio.sleep(1000)
        await say_path(exchange)

    client = await connect(respond, http=HttpLimits(idle_seconds=80))
    client.put(GET)
    await trio.sleep(1001)
    assert client.statuses() == [200]
    assert not client.is_closed


async def test_a_request_that_meets_the_end_of_an_idle_connection_is_not_begun(new_client, connect):
    calls = []

    async def respond(exchange):
        calls.append(exchange)

    client = new_client()
    host = NativeHost(respond=respond, limits=Limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.serve, client)
        await settled()
        [connection] = host._connections
        connection.end()
        client.put(GET)
    assert calls == []
    assert client.is_closed


# The end of a listener whose clients see no error.


@pytest.fixture
def drained(nursery, new_client):
    """A host whose connections are drained once `refuse` is called."""

    @attrs.define
    class Drained:
        host: NativeHost = attrs.field(
            factory=lambda: NativeHost(respond=say_path, limits=Limits())
        )
        ended: trio.Event = attrs.field(factory=trio.Event)

        async def connect(self):
            client = new_client()
            nursery.start_soon(self.host.serve, client)
            await settled()
            return client

        def refuse(self):
            nursery.start_soon(self.drain)

        async def drain(self):
            await self.host.drain()
            self.ended.set()

    return Drained()


@pytest.mark.requirement("LIFE-17")
async def test_a_drained_connection_gets_one_more_request(drained, autojump_clock):
    client = await drained.connect()
    client.put(GET)
    await settled()
    drained.refuse()
    await trio.sleep(5.5)
    assert not client.is_shut
    assert not drained.ended.is_set()
    client.put(GET)
    await trio.sleep(0.2)
    assert client.statuses() == [200, 200]
    assert client.sent.count(b"connection: close") == 1
    assert client.is_shut
    assert drained.ended.is_set()


@pytest.mark.requirement("LIFE-17")
async def test_a_drained_connection_gets_the_request_that_has_begun(drained, autojump_clock):
    client = await drained.connect()
    client.put(GET + GET[:10])
    await settled()
    drained.refuse()
    await trio.sleep(1)
    assert not drained.ended.is_set()
    client.put(GET[10:])
    await trio.sleep(0.2)
    assert client.statuses() == [200, 200]
    assert drained.ended.is_set()


async def test_a_drained_connection_that_stays_idle_is_closed(drained, autojump_clock):
    client = await drained.connect()
    drained.refuse()
    await trio.sleep(6.1)
    assert client.is_closed
    assert client.sent == b""
    assert drained.ended.is_set()


@pytest.mark.requirement("LIFE-17")
async def test_a_request_that_arrives_before_the_end_of_a_connection_is_answered(drained):
    client = await drained.connect()
    [connection] = drained.host._connections
    client.put(GET)
    connection.end()
    await settled()
    assert client.statuses() == [200]


@pytest.mark.requirement("LIFE-17")
async def test_a_listener_takes_all_connections_before_it_closes(nursery):
    draining, drained = trio.Event(), trio.Event()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(
        functools.partial(
            serve_native,
            say_path,
            listeners,
            limits=Limits(),
            draining=draining,
            drained=drained,
        )
    )
    address = listeners[0].socket.getsockname()
    draining.set()  # Trio accepts no more: only the kernel has accepted what follows.
    peers = [socket.create_connection(address) for _ in range(3)]
    streams = [trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in peers]
    for stream in streams:
        await stream.send_all(GET)
        data = b"".join([piece async for piece in stream])
        assert data.endswith(b"/path")
        await stream.aclose()
    with pytest.raises(OSError, match="failed"):
        await trio.open_tcp_stream(*address)
    with trio.fail_after(5):
        await drained.wait()
    nursery.cancel_scope.cancel()


async def test_a_client_that_reads_nothing_breaks_its_exchange(connect, autojump_clock):
    errors = []

    async def respond(exchange):
        await exchange.start(200, [])
        with pytest.raises(trio.BrokenResourceError, match="30") as caught:
            await exchange.send(b"x" * 1000)
        errors.append(caught.value)
        with pytest.raises(trio.BrokenResourceError, match="broken"):
            await exchange.end()

    client = await connect(respond, room=500, messages=MessageLimits(write_stall_seconds=30))
    client.put(GET)
    await trio.sleep(29)
    assert not errors
    client.read(10)
    await trio.sleep(29)
    assert not errors
    await trio.sleep(2)
    assert errors
    assert client.is_closed
    assert not client.is_shut


@pytest.mark.parametrize("room", [0, 100])
async def test_a_slow_reader_gets_everything(connect, autojump_clock, room):
    whole = bytes(range(256)) * 4

    async def respond(exchange):
        await exchange.answer(200, [], whole)

    client = await connect(respond, room=room)
    client.put(GET)
    for _ in range(130):
        await trio.sleep(1)
        client.read(10)
    await settled()
    assert client.sent.endswith(b"\r\n\r\n" + whole)


async def test_an_answer_that_is_cancelled_in_the_middle_is_the_last(connect, autojump_clock):
    async def respond(exchange):
        await exchange.start(200, [])
        with trio.move_on_after(1):
            await exchange.send(b"x" * 1000)
        with pytest.raises(trio.BrokenResourceError):
            await exchange.send(b"y")

    client = await connect(respond, room=500)
    client.put(GET)
    await trio.sleep(2)
    assert client.is_closed
    assert len(client.sent) == 500


async def test_a_client_is_waited_for_until_it_has_read_its_rejection(connect, autojump_clock):
    client = await connect(say_path, shutdown=ShutdownLimits(close_seconds=2))
    client.put(b"nonsense\r\n\r\n" + b"x" * 100_000)
    await trio.sleep(1)
    assert (client.is_shut, client.is_closed) == (True, False)
    client.close_sending()
    await settled()
    assert client.is_closed


async def test_a_client_that_sends_on_after_its_rejection_is_cut_off(connect, autojump_clock):
    client = await connect(say_path, shutdown=ShutdownLimits(close_seconds=2))
    client.put(b"nonsense\r\n\r\n")
    for _ in range(15):
        client.put(b"x" * 1000)
        await trio.sleep(0.1)
    assert not client.is_closed
    await trio.sleep(0.6)
    assert client.is_closed


# Clients that disconnect


async def test_data_sent_during_an_answer_are_the_next_request(connect):
    go_on = trio.Event()

    async def respond(exchange):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.gone)
            await go_on.wait()
            nursery.cancel_scope.cancel()
        await say_path(exchange)

    client = await connect(respond)
    client.put(GET)
    await settled()
    client.put(LAST[:20])
    await settled()
    client.put(LAST[20:])
    await settled()
    go_on.set()
    await settled()
    assert client.statuses() == [200, 200]
    assert client.sent.endswith(b"/last")


async def test_at_most_one_set_of_headers_is_read_ahead(connect):
    async def respond(exchange):
        await exchange.gone()

    client = await connect(respond, http=HttpLimits(headers_bytes_max=1000))
    client.put(GET)
    await settled()
    client.put(b"x" * 200_000)
    await settled()
    assert 100_000 < len(client._arrived) < 200_000
    assert not client.is_closed


async def test_a_disconnect_is_noticed_after_the_body(connect):
    order = []

    async def wait_gone(exchange):
        await exchange.gone()
        order.append("gone")

    async def respond(exchange):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_gone, exchange)
            for _ in range(5):
                await trio.lowlevel.checkpoint()
            order.append(await exchange.body(10))

    client = await connect(respond)
    client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
    client.close_sending()
    await settled()
    assert order == [b"abc", "gone"]


@pytest.mark.parametrize("go_away", ["close_sending", "reset"])
async def test_nothing_can_be_sent_to_a_disconnected_client(connect, caplog, go_away):
    async def respond(exchange):
        await exchange.gone()
        await say_path(exchange)

    client = await connect(respond)
    client.put(GET)
    await settled()
    getattr(client, go_away)()
    await settled()
    assert client.is_closed
    assert client.sent == b""
    assert caplog.records == []


@pytest.mark.parametrize(
    "sent", [b"", GET[:10], b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na"]
)
async def test_a_disconnect_between_requests_is_not_logged(connect, caplog, sent):
    client = await connect(echo)
    client.put(sent)
    await settled()
    client.close_sending()
    await settled()
    assert client.is_closed
    assert client.statuses() in ([], [400])
    assert caplog.records == []


async def test_a_reset_breaks_the_write(connect, caplog):
    begun, go_on = trio.Event(), trio.Event()

    async def respond(exchange):
        begun.set()
        await go_on.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.answer, 200, [])

    client = await connect(respond)
    client.put(GET)
    await begun.wait()
    client.reset()
    go_on.set()
    await settled()
    assert client.is_closed
    assert caplog.records == []


async def test_pipelined_requests_do_not_delay_other_connections(connect):
    paths = []

    async def respond(exchange):
        paths.append(exchange.request.path)
        await say_path(exchange)

    hasty, patient = await connect(respond), await connect(respond)
    hasty.put(GET * 100)
    patient.put(LAST)
    await settled()
    assert len(paths) == 101
    assert paths.index("/last") < 5


async def test_an_answer_that_is_not_ended_is_the_last_and_lacks_its_end(connect):
    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"half")

    client = await connect(respond)
    client.put(GET + LAST)
    await settled()
    assert client.statuses() == [200]
    assert client.sent.endswith(b"\r\n4\r\nhalf\r\n")
    assert client.is_shut


async def test_a_spurious_wakeup_is_waited_out(connect):
    """As the system may say of a packet whose sum turns out to be wrong."""
    client = await connect(say_path, false_alarms=3)
    client.put(GET)
    await settled()
    assert client.statuses() == [200]


# Connections of the native listener that become WebSockets.


LIMITS = Limits(shutdown=ShutdownLimits(close_seconds=0.3), http=HttpLimits(idle_seconds=2))
MESSAGE = b'{"jsonrpc":"2.0","method":"check"}'
ASKS = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


async def hello(exchange):
    await exchange.answer(200, [], b"hello")


@pytest.fixture
def connect_native_upgrade(nursery):
    """A stream to a listener, and the channels that arrive there."""

    async def connect(serve_upgrade=None):
        arrived, arrivals = trio.open_memory_channel(1)
        serve_upgrade = serve_upgrade or handing_over(arrived, LIMITS)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        serve = functools.partial(
            serve_native, hello, listeners, limits=LIMITS, serve_upgrade=serve_upgrade
        )
        await nursery.start(serve)
        return await trio.testing.open_stream_to_socket_listener(listeners[0]), arrivals

    return connect


async def test_a_websocket_may_follow_other_requests_and_loses_no_data(connect_native_upgrade):
    stream, arrivals = await connect_native_upgrade()
    async with stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive_some()).endswith(b"hello")
        await stream.send_all(ASKS + b"\r\n" + b"\x81\x82\0\0\0\0{}")
        channel = await arrivals.receive()
        assert await channel.receive() == [b"{}"]
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")
        await channel.aclose()


async def test_an_open_websocket_is_not_idle(connect_native_upgrade, mock_clock):
    stream, arrivals = await connect_native_upgrade()
    async with stream:
        peer = RawPeer(stream)
        await peer.shake_hands()
        channel = await arrivals.receive()
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(3 * LIMITS.http.idle_seconds)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await channel.send([MESSAGE])
        event = await peer.event()
        assert isinstance(event, events.TextMessage)
        await peer.frame(0x8, (1000).to_bytes(2, "big"))
        assert await channel.receive() == []
        await channel.aclose()


async def test_a_handshake_with_a_body_is_rejected(connect_native_upgrade):
    stream, _arrivals = await connect_native_upgrade()
    async with stream:
        await stream.send_all(ASKS + b"Content-Length: 2\r\n\r\n{}")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")


async def test_a_rejection_is_the_last_answer_of_its_connection(connect_native_upgrade):
    async def reject(upgrade):
        await upgrade.reject(Rejection(status=403, text="no"))

    stream, _arrivals = await connect_native_upgrade(reject)
    async with stream:
        await stream.send_all(ASKS + b"\r\n")
        await stream.send_all(b"more")
        answer = b""
        while chunk := await stream.receive_some():
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"connection: close" in answer


@pytest.mark.parametrize(
    ("error", "is_logged"), [(ValueError, True), (trio.BrokenResourceError, False)]
)
async def test_an_exception_of_the_application_ends_the_connection(
    connect_native_upgrade, caplog, error, is_logged
):
    async def fail(_upgrade):
        raise error("ouch")

    stream, _arrivals = await connect_native_upgrade(fail)
    async with stream:
        await stream.send_all(ASKS + b"\r\n")
        assert await stream.receive_some() == b""
    assert ("a WebSocket connection failed" in caplog.text) is is_logged


@pytest.mark.parametrize("method", ["end", "close"])
async def test_a_connection_that_is_closed_during_a_write_is_broken(method):
    ours, theirs = trio.socket.socketpair()
    buffered = BufferedSocket(socket=ConnectedSocket(fd=theirs.detach()), limits=LIMITS)
    async with trio.open_nursery() as nursery:

        async def write():
            with pytest.raises(trio.BrokenResourceError, match="the connection was closed"):
                await buffered.write(bytes(10_000_000))

        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        getattr(buffered, method)()
    assert not await buffered.receive()
    buffered.close()
    ours.close()


async def test_a_socket_stream_sends_receives_and_ends():
    ours, theirs = trio.socket.socketpair()
    buffered = BufferedSocket(socket=ConnectedSocket(fd=theirs.detach()), limits=LIMITS)
    stream, peer = BufferedSocketStream(buffered), trio.SocketStream(ours)
    await stream.wait_send_all_might_not_block()
    with trio.testing.assert_checkpoints():
        await stream.send_all(memoryview(b"hello"))
    assert await peer.receive_some() == b"hello"
    await peer.send_all(b"back")
    assert [await stream.receive_some(3), await stream.receive_some()] == [b"bac", b"k"]
    await stream.send_eof()
    assert await peer.receive_some() == b""
    async with trio.open_nursery() as nursery:

        async def receive():
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
    await stream.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"more")
    assert await stream.receive_some() == b""
    await peer.aclose()
