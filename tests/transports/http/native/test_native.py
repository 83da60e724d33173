"""The native listener's connections: over bytes in memory, what goes in and what comes out."""

import errno
import logging
import os
import re
import socket

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._transports.http_response import BodyTooLargeError
from mcp_trio._transports.http_server import NativeHost, serve_native
from mcp_trio._transports.socket_bytes import SocketEnds
from mcp_trio.limits import KIB, HttpLimits

GET = b"GET /path HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def say_path(exchange):
    await exchange.answer(200, [], exchange.head.path.encode())


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
    head, _, body = client.undated().partition(b"\r\n\r\n")
    assert head.endswith(b"\r\ntransfer-encoding: chunked")
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


async def test_a_client_that_asks_first_and_is_rejected_keeps_its_body(connect):
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


async def test_chunks_are_read_by_one_call_alone(connect):
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


async def test_a_connection_too_many_is_answered_503_and_closed_at_once(new_client):
    host = NativeHost(respond=say_path, limits=Limits(http=HttpLimits(connections_max=1)))
    first, second = new_client(), new_client()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.serve, first)
        await settled()
        await host.serve(second)
        assert second.statuses() == [503]
        assert second.is_closed
        first.put(LAST)
        first.close_sending()
    assert first.statuses() == [200]
    third = new_client()
    third.put(LAST)
    third.close_sending()
    await host.serve(third)
    assert third.statuses() == [200]


async def test_the_listener_survives_that_there_are_no_descriptors_left(caplog, autojump_clock):
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
    """Over a real socket that says of its peer what the test wants."""

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

    heads = []

    async def respond(exchange):
        heads.append(exchange.head)
        await say_path(exchange)

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(lambda **rest: serve_native(respond, [Listener()], limits=Limits(), **rest))
    stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
    await stream.send_all(LAST)
    assert b"/last" in b"".join([data async for data in stream])
    await stream.aclose()
    assert [head.client for head in heads] == [client]
    nursery.cancel_scope.cancel()


async def test_a_connection_is_removed_from_the_poller_before_it_is_closed():
    ours, theirs = socket.socketpair()
    fd = ours.detach()
    ends, was_open = SocketEnds(fd=fd), []
    resting = ends.wait_idle().send(None)
    resting.unregister = lambda: was_open.append(os.fstat(fd))
    assert ends.wait_idle().send(None) is resting
    ends.close()
    assert (resting.fd, len(was_open)) == (fd, 1)
    assert theirs.recv(1) == b""
    theirs.close()
