"""Of the streams of one HTTP/2 connection: what ends one, and what is kept of it, harms no other."""

import functools

import h2.config
import h2.connection
import h2.errors
import h2.events
import hypercorn.protocol.h2
import priority
import pytest
import trio

from mcp_trio._transports.hypercorn import HypercornConnection
from mcp_trio.limits import HttpLimits
from tests.transports.http.conftest import say_hello
from tests.transports.http.http2_client import Http2Client

SECONDS = 5.0
STREAMS_MAX = 4
PIECES = 30
WAITING_MAX = 1024
WINDOW_SIZES = [16384, 16384, 16384, 16383]
WEBSOCKET = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "http"),
    (":authority", "host.test"),
    (":path", "/ws"),
]


@pytest.fixture
def connected(open_host, monkeypatch):
    """A client in plain text, and what the host has made of its connection."""
    made = []
    serve = HypercornConnection.serve

    async def note(self, *args):
        made.append(self)
        await serve(self, *args)

    monkeypatch.setattr(HypercornConnection, "serve", note)

    async def connected(respond, **limits):
        host = await open_host("hypercorn", respond, **limits)
        config = h2.config.H2Configuration(client_side=True, validate_outbound_headers=False)
        http = h2.connection.H2Connection(config)
        http.initiate_connection()
        client = Http2Client((await host.connect()).stream, http)
        await client.flush()
        return host, client, made

    return connected


async def wait_or_say_hello(exchange):
    if exchange.head.path == "/wait":
        await exchange.start(200, [])
        await exchange.gone()
    else:
        await say_hello(exchange)


async def test_of_streams_that_are_reset_nothing_is_kept(connected, monkeypatch):
    tree = functools.partial(priority.PriorityTree, STREAMS_MAX)
    monkeypatch.setattr(hypercorn.protocol.h2.priority, "PriorityTree", tree)
    _host, client, made = await connected(wait_or_say_hello)
    with trio.fail_after(SECONDS):
        for _ in range(2 * STREAMS_MAX):
            number = await client.ask(path="/wait")
            await client.event(number, h2.events.ResponseReceived)
            client.http.reset_stream(number)
            await client.flush()
            assert (await client.exchange())[-1] == b"hello"
    [connection] = made
    assert len(connection._hypercorn.protocol.stream_buffers) <= 1
    assert len(connection._windows._queues) <= 1
    assert connection._windows._acknowledge.__self__ is connection._hypercorn.protocol.connection


async def test_an_answer_that_is_broken_off_ends_no_other_one(connected, caplog):
    go_on = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [])
        if exchange.head.path == "/bad":
            raise KeyError("a secret")
        await go_on.wait()
        await exchange.end()

    _host, client, _made = await connected(respond)
    with trio.fail_after(SECONDS):
        good, bad = await client.ask(), await client.ask(path="/bad")
        reset = await client.event(bad, h2.events.StreamReset)
        assert reset.error_code == h2.errors.ErrorCodes.INTERNAL_ERROR
        go_on.set()
        await client.event(good, h2.events.StreamEnded)


async def test_requests_that_hypercorn_rejects_leave_no_state(connected):
    _host, client, made = await connected(say_hello)
    with trio.fail_after(SECONDS):
        for _ in range(3):
            number = client.http.get_next_available_stream_id()
            client.http.send_headers(number, WEBSOCKET, end_stream=True)
            head = await client.event(number, h2.events.ResponseReceived)
            assert dict(head.headers)[b":status"] == b"400"
        assert (await client.exchange())[-1] == b"hello"
    [connection] = made
    assert len(connection._hypercorn.protocol.streams) <= 1


async def test_what_comes_for_a_rejected_request_harms_no_other(connected):
    _host, client, _made = await connected(say_hello)
    with trio.fail_after(SECONDS):
        number = client.http.get_next_available_stream_id()
        client.http.send_headers(number, WEBSOCKET)
        await client.event(number, h2.events.ResponseReceived)
        client.http.send_data(number, b"late")
        assert (await client.exchange())[-1] == b"hello"


async def test_a_head_over_its_limit_is_rejected_and_no_other_one(connected):
    _host, client, _made = await connected(say_hello, http=HttpLimits(headers_bytes_max=2000))
    with trio.fail_after(SECONDS):
        head, body = await client.exchange(headers=[("x-long", "x" * 2000)])
        assert (head[b":status"], body) == (
            b"431",
            b"the request headers are longer than limits.http.headers_bytes_max (2000)",
        )
        assert (await client.exchange())[-1] == b"hello"


@pytest.fixture
async def held(connected):
    """A client, and what lets its requests for /held be read, whose bodies are the answers."""
    may_read = trio.Event()

    async def respond(exchange):
        if exchange.head.path == "/held":
            await may_read.wait()
        await exchange.answer(200, [], await exchange.body(2**20))

    _host, client, _made = await connected(respond)
    await client.event(None, h2.events.RemoteSettingsChanged)
    return client, may_read


async def test_a_body_that_is_not_read_yet_delays_no_other_request(held):
    client, may_read = held
    with trio.fail_after(SECONDS):
        number = await client.ask("POST", "/held", is_whole=False)
        for _ in range(PIECES):
            client.http.send_data(number, b"x" * 100)
        assert (await client.exchange("POST", body=b"hello"))[-1] == b"hello"
        client.http.end_stream(number)
        may_read.set()
        assert (await client.answer(number))[-1] == b"x" * 100 * PIECES


async def test_a_body_that_is_not_read_is_bounded_by_its_window(held):
    client, may_read = held
    with trio.fail_after(SECONDS):
        number = await client.ask("POST", "/held", is_whole=False)
        for size in WINDOW_SIZES:
            client.http.send_data(number, b"x" * size)
        await client.flush()
        while client.http.outbound_flow_control_window < 40_000:
            await client.event(0, h2.events.WindowUpdated)
        assert (await client.exchange("POST", body=b"y" * 40_000))[-1] == b"y" * 40_000
        assert client.http.local_flow_control_window(number) == 0
        may_read.set()
        while client.http.local_flow_control_window(number) < 16384:
            await client.event(number, h2.events.WindowUpdated)
        client.http.send_data(number, b"z" * 16384, end_stream=True)
        _, body = await client.answer(number)
    assert body == b"x" * sum(WINDOW_SIZES) + b"z" * 16384


@pytest.mark.real_time
async def test_a_flood_of_small_pieces_waits_until_they_are_read(held):
    client, may_read = held
    with trio.fail_after(SECONDS):
        number = await client.ask("POST", "/held", is_whole=False)
        for _ in range(WAITING_MAX + 1):
            client.http.send_data(number, b"")
        other = await client.ask("POST", body=b"hello")
        with trio.move_on_after(0.1) as patience:
            await client.event(other, h2.events.ResponseReceived)
        assert patience.cancelled_caught
        may_read.set()
        assert (await client.answer(other))[-1] == b"hello"


async def test_goaway_after_unread_data_is_noticed_and_no_error(held, caplog):
    client, may_read = held
    with trio.fail_after(SECONDS):
        number = await client.ask("POST", "/held", is_whole=False)
        for _ in range(PIECES):
            client.http.send_data(number, b"x")
        client.http.send_data(number, b"x", end_stream=True)
        client.http.close_connection()
        await client.flush()
        may_read.set()
        assert await said_at_the_end(client) == []
    assert caplog.text == ""


async def said_at_the_end(client):
    events = []
    while data := await client.stream.receive_some(65536):
        events += client.http.receive_data(data)
    return events


async def test_goaway_names_the_last_request_at_a_stop(connected):
    host, client, _made = await connected(say_hello)
    with trio.fail_after(SECONDS):
        await client.exchange()
        await host.stop()
        [told] = await said_at_the_end(client)
    assert isinstance(told, h2.events.ConnectionTerminated)
    assert (told.error_code, told.last_stream_id) == (0, 1)


@pytest.mark.real_time
async def test_an_idle_client_gets_goaway(connected):
    _host, client, _made = await connected(say_hello, http=HttpLimits(idle_seconds=0.1))
    with trio.fail_after(SECONDS):
        await client.exchange()
        [told] = await said_at_the_end(client)
    assert isinstance(told, h2.events.ConnectionTerminated)


@pytest.mark.parametrize("strange", [{"path": "/\xff"}, {"method": "G\xcbT"}])
async def test_a_request_that_hypercorn_cannot_read_ends_no_other_one(connected, strange, caplog):
    _host, client, _made = await connected(wait_or_say_hello)
    with trio.fail_after(SECONDS):
        other = await client.ask(path="/wait")
        await client.event(other, h2.events.ResponseReceived)
        reset = await client.event(await client.ask(**strange), h2.events.StreamReset)
        assert reset.error_code == h2.errors.ErrorCodes.PROTOCOL_ERROR
        assert (await client.exchange())[-1] == b"hello"
    assert caplog.text == ""
