"""The contract of HTTP hosts, checked with each of them."""

import ssl
import sys

import h11
import httpx2
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

import mcp_trio.http
from mcp_trio._protocol.http_headers import encoded_headers
from mcp_trio._protocol.stores import MemoryEventStore
from mcp_trio._transports import http_client_requests as trust
from mcp_trio._transports.concurrency import TimerQueue, Wakeup
from mcp_trio._transports.descriptors import SocketDescriptor
from mcp_trio._transports.http_client_requests import client_for
from mcp_trio._transports.http_response import BodyTooLargeError, TooManyBodiesError
from mcp_trio.errors import ConfigError
from mcp_trio.limits import HttpLimits, MessageLimits, ShutdownLimits
from tests.transports.http.conftest import HOSTS, pouring, say_goodbye, say_hello

# Requests as the application receives them


async def test_a_request_has_its_headers_as_they_were_sent(opened):
    requests = []

    async def respond(exchange):
        requests.append(exchange.request)
        await say_hello(exchange)

    host = await opened(respond)
    client = await host.connect()
    await client.put(b"GET /a%2Fb/c?d=e%20f&g HTTP/1.1\r\nHost: host.test\r\n")
    await client.put(b"X-Mixed-CASE:\t a b \r\nX-Twice: one\r\nx-twice: two\r\n")
    await client.put(b"Connection: close\r\n\r\n")
    await client.rest()
    [request] = requests
    assert (request.method, request.path, request.query) == ("GET", "/a%2Fb/c", "d=e%20f&g")
    assert request.headers == {
        "host": "host.test",
        "x-mixed-case": "a b",
        "x-twice": "one, two",
        "connection": "close",
    }
    assert request.repeated == {"x-twice"}
    scheme = "http" if host.tls is None else "https"
    assert (request.scheme, request.client, request.principal) == (scheme, "127.0.0.1", None)


async def test_a_body_can_be_read_twice(opened):
    bodies = []

    async def respond(exchange):
        bodies.extend([await exchange.body(1_000_000), await exchange.body(1_000_000)])
        await say_hello(exchange)

    client = await (await opened(respond)).connect()
    sent = bytes(range(256)) * 2000
    assert (await client.exchange("POST", body=sent)).status == 200
    assert bodies == [sent, sent]


async def test_a_chunked_body_is_joined(opened):
    bodies = []

    async def respond(exchange):
        bodies.append(await exchange.body(1000))
        await say_hello(exchange)

    client = await (await opened(respond)).connect()
    fields = [("Host", "x"), ("Transfer-Encoding", "chunked")]
    await client.put(client.http.send(h11.Request(method="POST", target="/", headers=fields)))
    await client.put(b"3\r\nabc\r\n4\r\nde")
    await client.put(b"fg\r\n0\r\n\r\n")
    assert (await client.response_headers()).status == 200
    assert bodies == [b"abcdefg"]


async def test_a_request_without_a_body_has_an_empty_one(opened):
    bodies = []

    async def respond(exchange):
        bodies.append(await exchange.body(10))
        await say_hello(exchange)

    client = await (await opened(respond)).connect()
    await client.exchange("GET")
    await client.exchange("POST")
    assert bodies == [b"", b""]


async def reject_large(exchange):
    try:
        await exchange.body(1000)
    except BodyTooLargeError:
        await exchange.answer(413, [], b"too large")
        return
    await say_hello(exchange)


async def test_a_body_of_exactly_the_limit_is_accepted(opened):
    client = await (await opened(reject_large)).connect()
    assert (await client.exchange("POST", body=b"x" * 1000)).status == 200


async def test_a_too_large_content_length_is_rejected_at_once(opened):
    client = await (await opened(reject_large)).connect()
    await client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n")
    received = await client.rest()
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.endswith(b"\r\n\r\ntoo large")


async def test_a_body_that_grows_too_large_is_rejected_and_the_connection_closed(opened):
    client = await (await opened(reject_large)).connect()
    await client.put(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    await client.put(b"200\r\n" + b"x" * 512 + b"\r\n200\r\n" + b"x" * 512 + b"\r\n")
    received = await client.rest()
    assert received.startswith(b"HTTP/1.1 413 ")
    assert received.endswith(b"\r\n\r\ntoo large")


async def test_an_application_that_fails_again_and_again_is_logged_once_a_second(opened, caplog):
    def logged():
        return [each.getMessage() for each in caplog.records if each.name == "mcp_trio"]

    async def respond(exchange):
        raise KeyError(exchange.request.path)

    host = await opened(respond)
    for number in range(3):
        client = await host.connect()
        assert (await client.exchange("GET", f"/{number}")).status == 500
    assert logged() == ["answering GET /0 failed"]
    assert "KeyError" in caplog.text
    await host.stop()
    assert logged()[1:] == ["answering GET /2 failed (and 2 more like this)"]


@pytest.mark.parametrize(
    ("framing", "end"),
    [(b"Content-Length: 1000", b""), (b"Transfer-Encoding: chunked", b"\r\n0\r\n\r\n")],
    ids=["length", "chunks"],
)
async def test_the_unfinished_bodies_of_one_client_are_bounded(opened, framing, end):
    async def respond(exchange):
        begun.append(exchange)
        try:
            await exchange.body(1000)
        except TooManyBodiesError as error:
            await exchange.answer(503, [], str(error).encode())
            return
        await say_hello(exchange)

    async def begin():
        client = await host.connect()
        await client.put(b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % framing)
        if end:
            await client.put(b"3e8\r\n")
        await client.put(b"x" * 900)
        await trio.testing.wait_all_tasks_blocked(0.05)
        return client

    begun = []
    limits = {"messages": MessageLimits(bytes_max=1000), "http": HttpLimits(bodies_bytes_max=1900)}
    host = await opened(respond, **limits)
    first, _, third = [await begin() for _ in range(3)]
    received = await third.rest()
    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"the unfinished bodies are too long (limits.http.bodies_bytes_max=1900)" in received
    await first.put(b"x" * 100 + end)
    with trio.fail_after(5):
        assert (await first.stream.receive_some(65536)).startswith(b"HTTP/1.1 200 ")
    fourth = await begin()  # a complete body counts no longer
    await fourth.put(b"x" * 100 + end)
    with trio.fail_after(5):
        assert (await fourth.stream.receive_some(65536)).startswith(b"HTTP/1.1 200 ")


async def test_a_single_body_may_be_as_long_as_a_message(opened):
    async def respond(exchange):
        await exchange.body(100_000)
        await say_hello(exchange)

    limits = {"messages": MessageLimits(bytes_max=100_000), "http": HttpLimits(bodies_bytes_max=10)}
    client = await (await opened(respond, **limits)).connect()
    await client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
    await client.put(b"x" * 50_000)
    await trio.testing.wait_all_tasks_blocked(0.05)
    await client.put(b"x" * 50_000)
    with trio.fail_after(5):
        assert (await client.stream.receive_some(65536)).startswith(b"HTTP/1.1 200 ")


async def test_an_answer_reaches_a_client_whose_body_is_not_read(opened):
    client = await (await opened(say_hello)).connect()
    await client.put(
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 2_000_000
    )
    received = await client.rest()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(b"\r\n\r\nhello")


async def test_a_disconnect_within_the_body_breaks_the_exchange(opened):
    errors = []
    is_over = trio.Event()

    async def respond(exchange):
        try:
            await exchange.body(1000)
        except trio.BrokenResourceError as error:
            errors.append(error)
        is_over.set()

    client = await (await opened(respond)).connect()
    await client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
    await client.aclose()
    await is_over.wait()
    assert len(errors) == 1


@pytest.mark.real_time
async def test_a_stalled_body_breaks_the_exchange(opened):
    errors = []

    async def respond(exchange):
        try:
            await exchange.body(1000)
        except trio.BrokenResourceError as error:
            errors.append(error)

    client = await (await opened(respond, http=HttpLimits(body_seconds=0.1))).connect()
    await client.put(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
    await client.rest()
    assert len(errors) == 1


async def test_a_client_that_expects_100_continue_gets_it(opened):
    async def respond(exchange):
        await exchange.answer(200, [], await exchange.body(1000))

    client = await (await opened(respond)).connect()
    request = h11.Request(
        method="POST",
        target="/",
        headers=[("Host", "x"), ("Content-Length", "5"), ("Expect", "100-continue")],
    )
    await client.put(client.http.send(request))
    informed = await client.event()
    assert (type(informed), informed.status_code) == (h11.InformationalResponse, 100)
    await client.put(
        client.http.send(h11.Data(data=b"later")) + client.http.send(h11.EndOfMessage())
    )
    assert (await client.answer()).body == b"later"


# Answers


async def test_an_answer_has_its_headers_and_its_length(opened):
    async def respond(exchange):
        await exchange.answer(418, [("X-Tea", "black"), ("x-tea", "green")], b"pot")

    client = await (await opened(respond)).connect()
    await client.ask()
    response = await client.event()
    fields = [(name, value) for name, value in response.headers if name != b"date"]
    assert sorted(fields) == [(b"content-length", b"3"), (b"x-tea", b"black"), (b"x-tea", b"green")]
    assert response.status_code == 418
    assert (await client.piece()) == b"pot"


async def test_an_answer_without_content_has_no_length(opened):
    async def respond(exchange):
        await exchange.answer(204, [])

    client = await (await opened(respond)).connect()
    answer = await client.exchange()
    assert (answer.status, answer.body) == (204, b"")
    assert "content-length" not in answer.headers
    assert (await client.exchange()).status == 204


async def test_an_accepted_post_is_answered_without_a_body(opened):
    async def respond(exchange):
        await exchange.body(100)
        await exchange.answer(202, [])

    client = await (await opened(respond)).connect()
    answer = await client.exchange("POST", body=b"{}")
    assert (answer.status, answer.headers["content-length"], answer.body) == (202, "0", b"")


async def test_a_head_request_gets_the_length_and_no_body(opened):
    client = await (await opened(say_hello)).connect()
    answer = await client.exchange("HEAD")
    assert (answer.status, answer.headers["content-length"], answer.body) == (200, "5", b"")
    assert (await client.exchange("GET")).body == b"hello"


async def test_a_large_answer_is_sent_completely(opened):
    whole = bytes(range(256)) * 20_000

    async def respond(exchange):
        await exchange.answer(200, [], whole)

    client = await (await opened(respond)).connect()
    assert (await client.exchange()).body == whole


async def test_the_pieces_of_an_answer_are_sent_at_once(opened):
    go_on = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [("content-type", "text/event-stream")])
        for piece in (b"one", b"two", b"three"):
            await go_on.wait()
            await exchange.send(piece)
        await exchange.end()

    client = await (await opened(respond)).connect()
    await client.ask()
    answer = await client.response_headers()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    for expected in (b"one", b"two", b"three"):
        go_on.set()
        assert await client.piece() == expected
        go_on = trio.Event()
    assert isinstance(await client.event(), h11.EndOfMessage)
    client.http.start_next_cycle()
    go_on.set()
    assert (await client.exchange()).body == b"onetwothree"


async def test_a_streamed_answer_to_head_has_no_body(opened):
    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"unseen")
        await exchange.end()

    client = await (await opened(respond)).connect()
    assert (await client.exchange("HEAD")).body == b""
    assert (await client.exchange("GET")).body == b"unseen"


@pytest.mark.parametrize(
    "field", [("x-a", "b\r\nx-evil: c"), ("x-a\r\nx-evil", "b"), ("x-a", "b\nc"), ("x-a", "\0")]
)
async def test_an_injected_header_is_rejected_before_anything_is_sent(opened, field):
    errors = []

    async def respond(exchange):
        for attempt in (exchange.answer, exchange.start):
            with pytest.raises(ValueError) as caught:
                await attempt(200, [field])
            errors.append(caught.value)
        await say_hello(exchange)

    client = await (await opened(respond)).connect()
    answer = await client.exchange()
    assert (answer.status, answer.body, len(errors)) == (200, b"hello", 2)
    assert "x-evil" not in answer.headers


# Applications that fail


async def fail(exchange):
    raise KeyError("a secret")


async def fail_in_group(exchange):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail, exchange)


async def say_nothing(exchange):
    await exchange.body(100)


@pytest.mark.parametrize("respond", [fail, fail_in_group])
async def test_an_error_of_the_application_is_answered_with_an_empty_500(opened, caplog, respond):
    host = await opened(respond)
    client = await host.connect()
    answer = await client.exchange("GET", "/x")
    assert (answer.status, answer.body) == (500, b"")
    assert "secret" not in str(answer.headers)
    assert [each.levelname for each in caplog.records if each.name == "mcp_trio"] == ["ERROR"]
    assert "a secret" in caplog.text
    assert (await (await host.connect()).exchange()).status == 500


async def test_an_application_that_does_not_answer_is_answered_with_500(opened, caplog):
    client = await (await opened(say_nothing)).connect()
    answer = await client.exchange("POST", body=b"x")
    assert (answer.status, answer.body) == (500, b"")


async def test_an_answer_whose_application_raises_is_broken_off(opened, caplog):
    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"half")
        raise KeyError("a secret")

    client = await (await opened(respond)).connect()
    await client.ask()
    received = await client.rest()
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b"half" in received
    assert not received.endswith(b"0\r\n\r\n")
    assert b"secret" not in received


async def test_an_answer_that_is_not_ended_is_broken_off(opened):
    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"half")

    client = await (await opened(respond)).connect()
    await client.ask()
    received = await client.rest()
    assert b"half" in received
    assert not received.endswith(b"0\r\n\r\n")


# Connections that are lost, kept, rejected and stopped.


SECONDS = 5.0  # for what takes milliseconds


async def test_a_client_that_closes_while_its_answer_is_computed_is_gone(opened):
    begun, is_gone = trio.Event(), trio.Event()

    async def respond(exchange):
        await exchange.body(100)
        begun.set()
        await exchange.gone()
        is_gone.set()

    client = await (await opened(respond)).connect()
    await client.ask("POST", body=b"{}")
    await begun.wait()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not is_gone.is_set()
    await client.aclose()
    await is_gone.wait()


@pytest.mark.requirement("HTTP-25", "TRAP-38")
async def test_a_disconnect_does_not_cancel_the_application(opened):
    begun, has_closed, is_done = trio.Event(), trio.Event(), trio.Event()
    bodies = []

    async def respond(exchange):
        bodies.append(await exchange.body(100))
        begun.set()
        await has_closed.wait()
        await trio.testing.wait_all_tasks_blocked(0.02)
        is_done.set()
        await exchange.answer(202, [])

    client = await (await opened(respond)).connect()
    await client.ask("POST", body=b"{}")
    await begun.wait()
    await client.aclose()
    has_closed.set()
    with trio.fail_after(SECONDS):
        await is_done.wait()
    assert bodies == [b"{}"]


@pytest.mark.requirement("HTTP-25")
async def test_a_request_is_served_although_its_client_closed_at_once(opened):
    bodies = []
    is_done = trio.Event()

    async def respond(exchange):
        bodies.append(await exchange.body(100))
        await trio.testing.wait_all_tasks_blocked(0.02)
        is_done.set()

    client = await (await opened(respond)).connect()
    await client.ask("POST", body=b"{}")
    await client.aclose()
    with trio.fail_after(SECONDS):
        await is_done.wait()
    assert bodies == [b"{}"]


async def test_a_client_that_closes_in_the_middle_of_a_stream_is_gone(opened):
    is_gone = trio.Event()
    errors = []

    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"one")
        await exchange.gone()
        with pytest.raises(trio.BrokenResourceError) as caught:
            await exchange.send(b"two")
        errors.append(caught.value)
        is_gone.set()

    client = await (await opened(respond)).connect()
    await client.ask()
    await client.response_headers()
    assert await client.piece() == b"one"
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not is_gone.is_set()
    await client.aclose()
    await is_gone.wait()
    assert len(errors) == 1


@pytest.mark.parametrize("waits_early", [False, True])
async def test_a_client_whose_body_is_never_read_is_gone_once_a_stream_has_begun(
    opened, waits_early
):
    is_gone = trio.Event()

    async def wait_gone(exchange):
        await exchange.gone()
        is_gone.set()

    async def respond(exchange):
        async with trio.open_nursery() as nursery:
            if waits_early:
                nursery.start_soon(wait_gone, exchange)
                await trio.testing.wait_all_tasks_blocked(0.01)
            await exchange.start(200, [])
            if not waits_early:
                await wait_gone(exchange)

    client = await (await opened(respond)).connect()
    await client.ask("POST", body=b"{}")
    await client.response_headers()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert not is_gone.is_set()
    await client.aclose()
    with trio.fail_after(SECONDS):
        await is_gone.wait()


async def test_a_half_closed_client_counts_as_disconnected(opened):
    is_gone = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.gone()
        is_gone.set()

    client = await (await opened(respond)).connect()
    await client.ask()
    await client.response_headers()
    await client.end_sending()
    await is_gone.wait()


async def test_a_client_whose_body_is_not_read_yet_is_not_gone(opened):
    order = []

    async def wait_gone(exchange):
        await exchange.gone()
        order.append("gone")

    async def respond(exchange):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_gone, exchange)
            await trio.testing.wait_all_tasks_blocked(0.01)
            assert await exchange.body(100) == b"{}"
            await trio.testing.wait_all_tasks_blocked(0.01)
            order.append("read")
            nursery.cancel_scope.cancel()
        await say_hello(exchange)

    client = await (await opened(respond)).connect()
    assert (await client.exchange("POST", body=b"{}")).status == 200
    assert order == ["read"]


async def test_a_stream_to_a_disconnected_client_fails(opened):
    """Also where the application never checks whether the client is connected."""
    respond, errors = pouring(1000)
    client = await (await opened(respond)).connect()
    await client.ask()
    await client.response_headers()
    await client.aclose()
    with trio.fail_after(SECONDS):
        await errors.receive()


@pytest.mark.real_time
async def test_a_client_that_reads_nothing_breaks_the_exchange(opened):
    respond, errors = pouring(100_000)
    client = await (
        await opened(respond, messages=MessageLimits(write_stall_seconds=0.2))
    ).connect()
    await client.ask()
    with trio.fail_after(SECONDS):
        await errors.receive()


async def test_disconnects_are_not_logged(opened, caplog):
    is_over = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [])
        try:
            await exchange.gone()
            await exchange.send(b"too late")
        finally:
            is_over.set()

    host = await opened(respond)
    client = await host.connect()
    await client.ask()
    await client.response_headers()
    await client.aclose()
    await is_over.wait()
    await host.stop()
    assert [each for each in caplog.records if each.levelname in {"WARNING", "ERROR"}] == []


# Connections


async def test_requests_follow_each_other_on_a_connection(opened):
    async def respond(exchange):
        await exchange.answer(200, [], await exchange.body(100))

    client = await (await opened(respond)).connect()
    for number in range(5):
        text = str(number).encode()
        assert (await client.exchange("POST", body=text)).body == text


async def test_pipelined_requests_are_answered_in_order(opened):
    async def respond(exchange):
        await exchange.answer(200, [], exchange.request.path.encode())

    client = await (await opened(respond)).connect()
    await client.put(
        b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % number for number in range(3))
        + b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    received = await client.rest()
    bodies = [part.partition(b"HTTP/1.1")[0] for part in received.split(b"\r\n\r\n")[1:]]
    assert bodies == [b"/0", b"/1", b"/2", b"/last"]


async def test_connection_close_closes_the_connection(opened):
    client = await (await opened(say_hello)).connect()
    answer = await client.exchange(headers=[("Connection", "close")])
    assert answer.headers["connection"] == "close"
    assert await client.rest() == b""


async def test_a_stream_over_http_1_0_ends_with_the_connection(opened):
    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"one")
        await exchange.send(b"two")
        await exchange.end()

    client = await (await opened(respond)).connect()
    await client.put(b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    assert (await client.rest()).endswith(b"\r\n\r\nonetwo")


@pytest.mark.slow
async def test_many_requests_are_served_at_the_same_time(opened):
    count = 50
    waiting = 0
    all_are_here = trio.Event()

    async def respond(exchange):
        nonlocal waiting
        waiting += 1
        if waiting == count:
            all_are_here.set()
        await all_are_here.wait()
        await exchange.answer(200, [], exchange.request.path.encode())

    host = await opened(respond)

    async def ask(number):
        client = await host.connect()
        assert (await client.exchange(target=f"/{number}")).body == b"/%d" % number

    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(ask, number)


async def test_connections_beyond_the_limit_are_rejected(opened_by_listener):
    host = await opened_by_listener(say_hello, http=HttpLimits(connections_max=2))
    first, second, third = [await host.connect() for _ in range(3)]
    await first.exchange()
    await second.exchange()
    rejection = b"HTTP/1.1 503 " if host.tls is None else b""  # over TLS, the handshake fails
    assert (await third.rest()).startswith(rejection)
    await second.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert (await first.exchange()).status == 200
    assert (await (await host.connect()).exchange()).status == 200


async def test_an_idle_connection_is_closed(opened, mock_clock):
    client = await (await opened(say_hello, http=HttpLimits(idle_seconds=2))).connect()
    await client.exchange()
    await trio.testing.wait_all_tasks_blocked(0.01)
    mock_clock.jump(4)
    assert await client.rest() == b""


async def test_too_long_headers_are_rejected(opened):
    client = await (await opened(say_hello, http=HttpLimits(headers_bytes_max=4096))).connect()
    await client.put(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 200_000)
    assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


# The stop


async def test_a_stop_cancels_open_exchanges(opened):
    begun = trio.Event()
    ends = []

    async def respond(exchange):
        await exchange.body(100)
        begun.set()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            ends.append("cancelled")
            raise

    host = await opened(respond)
    idle, busy = await host.connect(), await host.connect()
    await busy.ask("POST", body=b"{}")
    await begun.wait()
    with trio.fail_after(SECONDS):
        await host.stop()
    assert ends == ["cancelled"]
    assert await idle.rest() == b""
    assert not (await busy.rest()).startswith(b"HTTP/1.1 2")
    with pytest.raises(OSError, match="fail"):
        await host.connect()


async def test_a_stream_may_send_a_final_message_at_the_stop(opened):
    host = await opened(say_goodbye)
    client = await host.connect()
    await client.ask()
    await client.response_headers()
    with trio.fail_after(SECONDS):
        await host.stop()
    assert (await client.body()) == b"goodbye"


@pytest.mark.real_time
async def test_a_client_that_reads_nothing_does_not_delay_the_stop(opened_by_listener):
    sent = 0

    async def respond(exchange):
        nonlocal sent
        await exchange.start(200, [])
        while True:
            await exchange.send(b"x" * 100_000)
            sent += 1

    host = await opened_by_listener(respond, shutdown=ShutdownLimits(close_seconds=0.2))
    client = await host.connect()
    await client.ask()
    while not sent:
        await trio.sleep(0.01)
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(SECONDS):
        await host.stop()


def _coroutines(task):
    """The names of all coroutines that a task and those below it are in."""
    coroutine = task.coro
    while hasattr(coroutine, "cr_code"):
        yield coroutine.cr_code.co_qualname
        coroutine = coroutine.cr_await
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _coroutines(child)


@pytest.mark.skipif(sys.platform != "linux", reason="the poller is of Linux")
async def test_idle_connections_have_no_task(open_host):
    host = await open_host("resting", say_hello)
    clients = [await host.connect() for _ in range(20)]
    for _ in range(2):
        for client in clients:
            assert (await client.exchange()).status == 200
        await trio.testing.wait_all_tasks_blocked(0.01)
        names = [*_coroutines(trio.lowlevel.current_root_task())]
        assert "NativeConnection.serve" not in names
        assert names.count("Poller.next") == 1


# Requests to upgrade to protocols other than WebSocket, which our own listener ignores.
#
# hypercorn upgrades to HTTP/2 in plain text, which RFC 9113, section 3.1, has made obsolete.


HTTP2_SETTINGS = "AAMAAABkAARAAAAAAAIAAAAA"
WISHES = {
    "HTTP/2 in plain text": [
        ("Connection", "Upgrade, HTTP2-Settings"),
        ("Upgrade", "h2c"),
        ("HTTP2-Settings", HTTP2_SETTINGS),
    ],
    "the same, without its settings": [("Connection", "upgrade"), ("UPGRADE", "H2C")],
    "the same, behind another": [
        ("Connection", "upgrade"),
        ("Upgrade", "TLS/1.0"),
        ("Upgrade", "h2c"),
    ],
    "another protocol": [("Connection", "upgrade"), ("Upgrade", "IRC/6.9")],
}


@pytest.mark.parametrize("headers", WISHES.values(), ids=WISHES)
async def test_an_upgrade_to_another_protocol_is_ignored(opened_by_listener, headers):
    requests = []

    async def respond(exchange):
        requests.append(exchange.request)
        await say_hello(exchange)

    client = await (await opened_by_listener(respond)).connect()
    for target in ("/a?b", "/c"):  # the connection is one of HTTP/1.1 still
        answer = await client.exchange(target=target, headers=headers)
        assert (answer.status, answer.body, answer.informational) == (200, b"hello", [])
    assert [(each.method, each.path, each.query) for each in requests] == [
        ("GET", "/a", "b"),
        ("GET", "/c", ""),
    ]
    assert {each.headers["host"] for each in requests} == {"host.test"}


@pytest.mark.parametrize("headers", WISHES.values(), ids=WISHES)
async def test_a_disconnect_after_an_upgrade_request_is_noticed(opened_by_listener, headers):
    is_asked, is_gone = trio.Event(), trio.Event()

    async def respond(exchange):
        await exchange.body(100)
        is_asked.set()
        await exchange.gone()
        is_gone.set()

    client = await (await opened_by_listener(respond)).connect()
    await client.ask("POST", headers=headers, body=b"{}")
    await is_asked.wait()
    await client.aclose()
    with trio.fail_after(5):
        await is_gone.wait()


# Requests whose end is ambiguous are rejected.


BEGINNING = b"POST / HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture
async def opened_framing(open_host, request):
    """A host that keeps the paths of what its application has seen."""
    seen = []

    async def respond(exchange):
        seen.append(exchange.request.path)
        await exchange.answer(200, [], b"hello")

    async def opened(name):
        return await open_host(name, respond), seen

    return opened


both_lengths = pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
    ],
    ids=["length-first", "coding-first"],
)


@pytest.mark.parametrize("name", HOSTS)
@both_lengths
async def test_a_request_with_length_and_coding_is_rejected_and_disconnected(
    opened_framing, name, fields
):
    host, seen = await opened_framing(name)
    client = await host.connect()
    await client.put(BEGINNING + fields + b"\r\n0\r\n\r\n")
    with trio.fail_after(5):
        received = await client.rest()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert seen == []


@pytest.mark.parametrize("name", HOSTS)
@both_lengths
async def test_data_after_an_ambiguous_request_are_not_served(opened_framing, name, fields, caplog):
    host, seen = await opened_framing(name)
    for _ in range(3):
        client = await host.connect()
        await client.put(
            BEGINNING + fields + b"\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        with trio.fail_after(5):
            assert (await client.rest()).count(b"HTTP/1.1") <= 1
    assert seen == []
    assert name == "hypercorn" or caplog.records == []


@pytest.mark.parametrize("name", ["native", "resting"])
async def test_headers_and_body_of_an_answer_are_sent_together(opened_framing, name, monkeypatch):
    host, _ = await opened_framing(name)
    sent = []
    for kind, method in ((SocketDescriptor, "write_nowait"), (trio.SocketStream, "send_all")):
        monkeypatch.setattr(kind, method, noting(getattr(kind, method), sent))
    client = await host.connect()
    await client.put(BEGINNING + b"Content-Length: 3\r\nConnection: close\r\n\r\nabc")
    await client.rest()
    answers = [data for data in sent if data.startswith(b"HTTP/1.1")]
    assert len(answers) == 1
    assert answers[0].endswith(b"hello")


def noting(send, sent):
    def noted(self, data, *options):
        sent.append(bytes(data))
        return send(self, data, *options)

    return noted


@pytest.mark.parametrize("name", HOSTS)
async def test_a_connection_is_kept_after_an_unread_empty_body(opened_framing, name):
    host, seen = await opened_framing(name)
    client = await host.connect()
    for _ in range(2):
        await client.put(BEGINNING + b"Content-Length: 0\r\n\r\n")
        with trio.fail_after(5):
            while not (received := await client.stream.receive_some()).endswith(b"hello"):
                assert b"connection: close" not in received
    assert seen == ["/", "/"]


# Header fields as bytes.


def test_header_names_are_lower_case_and_values_unchanged():
    fields = [("Mcp-Session-Id", "AbC"), ("x", ""), ("y", "a \t b"), ("z", "\xe9")]
    assert encoded_headers(fields) == [
        (b"mcp-session-id", b"AbC"),
        (b"x", b""),
        (b"y", b"a \t b"),
        (b"z", b"\xe9"),
    ]


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\n", "\n", "é", ":status"])
def test_a_header_name_must_be_a_token(name):
    with pytest.raises(ValueError, match="is not a valid name of a header"):
        encoded_headers([(name, "x")])


@pytest.mark.parametrize("value", ["\n", "a\r\nb", "a\n", "\0", " a", "a\t", "a\x7f", "\u20ac"])
def test_a_header_value_has_no_line_break(value):
    with pytest.raises(ValueError, match="the value of the header x-a"):
        encoded_headers([("x-a", value)])


@given(st.text())
def test_a_header_value_is_one_line(value):
    try:
        [(_, sent)] = encoded_headers([("a", value)])
    except ValueError:
        return
    assert sent.decode("latin-1") == value
    assert not set(b"\r\n\0") & set(sent)


# A rejection for a limit names its setting.


POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
SECONDS_NAMED_LIMITS = 10.0


async def answer(exchange):
    await exchange.answer(200, [], await exchange.body(1000))


async def answer_to(client, data):
    """The answer to this, up to the end of the connection."""
    await client.put(data)
    with trio.fail_after(SECONDS_NAMED_LIMITS):
        return await client.rest()


@pytest.mark.parametrize(
    ("data", "limits", "status", "setting"),
    [
        (
            b"GET / HTTP/1.1\r\nX: " + b"x" * 3000,
            {"http": HttpLimits(headers_bytes_max=2000)},
            431,
            "limits.http.headers_bytes_max (2000)",
        ),
        (
            POST[:20],
            {"http": HttpLimits(headers_seconds=0.1)},
            408,
            "0.1 seconds (limits.http.headers_seconds)",
        ),
        (
            POST + b"Content-Length: 9\r\n\r\nabc",
            {"http": HttpLimits(body_seconds=0.1)},
            408,
            "0.1 seconds (limits.http.body_seconds)",
        ),
    ],
)
@pytest.mark.real_time
async def test_the_native_listener_names_the_limit(open_host, data, limits, status, setting):
    host = await open_host("native", answer, **limits)
    received = await answer_to(await host.connect(), data)
    assert received.startswith(b"HTTP/1.1 %d " % status)
    assert setting.encode() in received


def test_the_error_for_a_dropped_event_names_the_limits():
    buffer = MemoryEventStore(events_max=1, bytes_max=100)
    stream = buffer.open_stream()
    first, *_ = (buffer.keep(stream, b"data") for _ in range(3))
    with pytest.raises(
        LookupError, match=r"limits\.http\.events_kept_max, limits\.http\.events_kept_bytes_max"
    ):
        buffer.after(first)


@pytest.mark.parametrize("name", ["native", "resting"])
async def test_the_rejection_of_a_connection_over_the_limit_names_it(open_host, name):
    host = await open_host(name, answer, http=HttpLimits(connections_max=1))
    first = await host.connect()
    await first.exchange()
    second = await host.connect()
    with trio.fail_after(SECONDS_NAMED_LIMITS):
        rejected = await second.exchange()
    assert (rejected.status, rejected.headers["connection"]) == (503, "close")
    assert rejected.body == b"there are too many connections (limits.http.connections_max=1)"
    assert (await first.exchange()).status == 200


# One timer for many waits.


def tasks():
    return trio.lowlevel.current_statistics().tasks_living


async def test_each_wait_ends_when_it_has_taken_too_long(autojump_clock):
    patience, waited = TimerQueue(3), []

    async def wait():
        began = trio.current_time()
        await patience.wait(Wakeup())
        waited.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(wait)
            await trio.sleep(1)
    assert waited == [3] * 5


async def test_a_task_woken_before_its_timeout_continues_at_once(autojump_clock):
    patience, wakeups = TimerQueue(3), [Wakeup(), Wakeup()]

    async with trio.open_nursery() as nursery:
        for wakeup in wakeups:
            nursery.start_soon(patience.wait, wakeup)
        await trio.sleep(1)
        wakeups[1].wake()
        wakeups[0].wake()
    assert trio.current_time() == 1
    await patience.wait(Wakeup())
    assert trio.current_time() == 4


async def test_a_timer_queue_has_no_task_while_no_task_waits(autojump_clock):
    patience, before = TimerQueue(3), tasks()
    for _ in range(2):
        with trio.move_on_after(1):
            await patience.wait(Wakeup())
        assert tasks() == before + 1
        await trio.sleep(5)
        assert tasks() == before


# The trusted certificates of HTTP clients are read once per process.


@pytest.fixture
def read(monkeypatch):
    """One for each time that they are."""
    real, read = httpx2.create_ssl_context, []

    def reading():
        read.append(1)
        return real()

    trust.default_ssl_context.cache_clear()
    monkeypatch.setattr(httpx2, "create_ssl_context", reading)
    yield read
    trust.default_ssl_context.cache_clear()


async def test_certificates_are_read_once_for_all_https_clients(read):
    for _ in range(3):
        async with client_for(httpx2.URL("https://host.test")):
            pass
    assert len(read) == 1
    assert trust.default_ssl_context().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.usefixtures("read")
@pytest.mark.parametrize("content", [None, "no certificate"])
async def test_an_error_for_unreadable_certificates_names_the_variable(
    tmp_path, monkeypatch, content
):
    path = tmp_path / "certificates.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    with pytest.raises(ConfigError, match="SSL_CERT_FILE"):
        client_for(httpx2.URL("https://host.test"))


async def test_http_clients_read_no_certificates(read):
    async with client_for(httpx2.URL("http://host.test")):
        assert read == []


async def test_certificates_are_read_once_for_all_clients_of_handlers(read):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    for _ in range(3):
        async with httpx2.AsyncClient(transport=mcp_trio.http.EffectTransport()) as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get(f"http://127.0.0.1:{port}")
    assert len(read) == 1
