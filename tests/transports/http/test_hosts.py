"""What every host promises to an application: each of these tests runs over all of them."""

import h11
import pytest
import trio
import trio.testing

from mcp_trio._transports.http_response import BodyTooLargeError
from mcp_trio.limits import HttpLimits
from tests.transports.http.conftest import say_hello

# What the application is given


async def test_a_request_has_its_headers_as_they_were_sent(opened):
    heads = []

    async def respond(exchange):
        heads.append(exchange.head)
        await say_hello(exchange)

    host = await opened(respond)
    client = await host.connect()
    await client.put(b"GET /a%2Fb/c?d=e%20f&g HTTP/1.1\r\nHost: host.test\r\n")
    await client.put(b"X-Mixed-CASE:\t a b \r\nX-Twice: one\r\nx-twice: two\r\n")
    await client.put(b"Connection: close\r\n\r\n")
    await client.rest()
    [head] = heads
    assert (head.method, head.path, head.query) == ("GET", "/a%2Fb/c", "d=e%20f&g")
    assert head.headers == {
        "host": "host.test",
        "x-mixed-case": "a b",
        "x-twice": "one, two",
        "connection": "close",
    }
    assert head.repeated == {"x-twice"}
    scheme = "http" if host.tls is None else "https"
    assert (head.scheme, head.client, head.principal) == (scheme, "127.0.0.1", None)


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
    assert (await client.head()).status == 200
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
    head = h11.Request(
        method="POST",
        target="/",
        headers=[("Host", "x"), ("Content-Length", "5"), ("Expect", "100-continue")],
    )
    await client.put(client.http.send(head))
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
    head = await client.head()
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
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
