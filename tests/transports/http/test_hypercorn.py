"""The ASGI application under hypercorn: HTTP/2, TLS, errors of hypercorn, and the stop."""

import signal
import socket
import ssl
import struct
from pathlib import Path

import h2.config
import h2.connection
import h2.events
import httpx2
import hypercorn.trio
import pytest
import trio
import trio.testing
from hypercorn.config import Config

from mcp_trio._transports.asgi import AsgiHost
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio.limits import HttpLimits, MessageLimits, ShutdownLimits
from tests.transports.http.http2_client import Http2Client

SECONDS = 5.0
WEBSOCKET = [
    (":method", "CONNECT"),
    (":protocol", "websocket"),
    (":scheme", "http"),
    (":authority", "host.test"),
    (":path", "/ws"),
]


@pytest.fixture
def opened(open_host):
    async def opened(respond, *, tls=None, **limits):
        return await open_host("hypercorn", respond, options=tls, **limits)

    return opened


@pytest.fixture
def connected(opened):
    """A host, and a client that has chosen HTTP/2 in plain text by prior knowledge."""

    async def connected(respond, **limits):
        host = await opened(respond, **limits)
        return host, await plain_client(host)

    return connected


async def plain_client(host):
    config = h2.config.H2Configuration(client_side=True, validate_outbound_headers=False)
    http = h2.connection.H2Connection(config)
    http.initiate_connection()
    client = Http2Client((await host.connect()).stream, http)
    await client.flush()
    return client


async def say_hello(exchange):
    await exchange.answer(200, [], b"hello " + exchange.request.scheme.encode())


async def wait_or_say_hello(exchange):
    if exchange.request.path == "/wait":
        await exchange.start(200, [])
        await exchange.gone()
    else:
        await say_hello(exchange)


def logged_messages(caplog):
    return [each.getMessage() for each in caplog.records if each.name == "mcp_trio"]


# TLS


async def test_a_client_speaks_http1_over_tls(opened, certificate):
    host = await opened(say_hello, tls=certificate)
    context = ssl.create_default_context(cafile=certificate["certfile"])
    async with httpx2.AsyncClient(verify=context, trust_env=False) as client:
        for _ in range(2):
            answer = await client.get(f"https://127.0.0.1:{host.port}/")
            assert (answer.status_code, answer.text) == (200, "hello https")
            assert answer.http_version == "HTTP/1.1"


async def test_a_client_without_tls_harms_no_other_client(opened, certificate, caplog):
    host = await opened(say_hello, tls=certificate)
    stranger = await host.connect()
    await stranger.put(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    await stranger.rest()
    client = await Http2Client.connect(host, certificate)
    assert (await client.exchange())[-1] == b"hello https"
    assert logged_messages(caplog) == []


async def test_a_tls_handshake_may_take_longer_than_the_idle_time(opened, certificate, mock_clock):
    host = await opened(say_hello, tls=certificate, http=HttpLimits(idle_seconds=2))
    await host.connect()
    await trio.testing.wait_all_tasks_blocked(0.01)
    mock_clock.jump(4)
    client = await Http2Client.connect(host, certificate)
    assert (await client.exchange())[-1] == b"hello https"


async def test_a_certificate_may_be_in_one_file_with_its_key(opened, certificate, tmp_path):
    both = tmp_path / "both.pem"
    parts = [Path(certificate[name]).read_text() for name in ("certfile", "keyfile")]
    both.write_text("".join(parts))
    host = await opened(say_hello, tls={"certfile": str(both)})
    client = await Http2Client.connect(host, certificate)
    assert (await client.exchange())[-1] == b"hello https"


# HTTP/2


async def test_requests_are_served_over_http2(opened, certificate):
    requests = []

    async def respond(exchange):
        requests.append(exchange.request)
        await exchange.answer(200, [("X-A", "b")], await exchange.body(1_000_000))

    client = await Http2Client.connect(await opened(respond, tls=certificate), certificate)
    sent = b"x" * 60_000
    headers, body = await client.exchange("POST", "/a?b", [("x-c", "d")], sent)
    assert (headers[b":status"], headers[b"x-a"], body) == (b"200", b"b", sent)
    assert b"server" not in headers
    [request] = requests
    assert (request.method, request.path, request.query, request.scheme) == (
        "POST",
        "/a",
        "b",
        "https",
    )
    assert request.headers["host"] == "host.test"
    assert request.headers["x-c"] == "d"


async def test_the_pieces_of_a_stream_come_at_once_over_http2(opened, certificate):
    go_on = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [])
        await exchange.send(b"one")
        await go_on.wait()
        await exchange.send(b"two")
        await exchange.end()

    client = await Http2Client.connect(await opened(respond, tls=certificate), certificate)
    number = await client.ask()
    assert (await client.event(number, h2.events.DataReceived)).data == b"one"
    go_on.set()
    assert (await client.event(number, h2.events.DataReceived)).data == b"two"
    await client.event(number, h2.events.StreamEnded)


async def test_a_reset_http2_stream_affects_no_other(opened, certificate):
    gone = []
    is_gone = trio.Event()

    async def respond(exchange):
        path = exchange.request.path
        if path == "/wait":
            await exchange.start(200, [])
            await exchange.gone()
            gone.append(path)
            is_gone.set()
        await say_hello(exchange)

    client = await Http2Client.connect(await opened(respond, tls=certificate), certificate)
    first, second = await client.ask(path="/wait"), await client.ask(path="/wait")
    await client.event(second, h2.events.ResponseReceived)
    client.http.reset_stream(first)
    await client.flush()
    await is_gone.wait()
    assert (await client.exchange())[-1] == b"hello https"
    assert gone == ["/wait"]


async def test_an_http2_stream_does_not_delay_the_stop(opened, certificate):
    async def respond(exchange):
        await exchange.start(200, [])
        await trio.sleep_forever()

    host = await opened(respond, tls=certificate, shutdown=ShutdownLimits(close_seconds=60))
    client = await Http2Client.connect(host, certificate)
    await client.event(await client.ask(), h2.events.ResponseReceived)
    with trio.fail_after(SECONDS):
        await host.stop()


async def test_too_long_headers_over_http2_are_rejected_and_no_other_request(connected):
    _host, client = await connected(say_hello, http=HttpLimits(headers_bytes_max=2000))
    with trio.fail_after(SECONDS):
        headers, body = await client.exchange(headers=[("x-long", "x" * 2000)])
        assert (headers[b":status"], body) == (
            b"431",
            b"the request headers are longer than limits.http.headers_bytes_max (2000)",
        )
        assert (await client.exchange())[-1] == b"hello http"


async def test_data_for_a_rejected_request_affect_no_other_request(connected):
    _host, client = await connected(say_hello)
    with trio.fail_after(SECONDS):
        number = client.http.get_next_available_stream_id()
        client.http.send_headers(number, WEBSOCKET)
        await client.event(number, h2.events.ResponseReceived)
        client.http.send_data(number, b"late")
        assert (await client.exchange())[-1] == b"hello http"


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_answer_over_http2_ends_when_its_request_has_ended(connected, method, caplog):
    """hypercorn would fail as a whole if data arrived for a stream that it has ended."""
    _host, client = await connected(say_hello)
    with trio.fail_after(SECONDS):
        number = await client.ask(method, is_whole=False)
        assert (await client.event(number, h2.events.DataReceived)).data == b"hello http"
        client.http.send_data(number, b"late")
        assert (await client.exchange())[-1] == b"hello http"
        client.http.end_stream(number)
        await client.event(number, h2.events.StreamEnded)
    assert logged_messages(caplog) == []


async def test_an_answer_that_is_broken_off_ends_no_other_one(connected, caplog):
    go_on = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [])
        if exchange.request.path == "/bad":
            raise KeyError("a secret")
        await go_on.wait()
        await exchange.end()

    _host, client = await connected(respond)
    with trio.fail_after(SECONDS):
        good, bad = await client.ask(), await client.ask(path="/bad")
        await client.event(bad, h2.events.ResponseReceived)
        go_on.set()
        await client.event(good, h2.events.StreamEnded)


async def test_http2_in_plain_text_needs_prior_knowledge(connected):
    """RFC 9113, section 3.3."""
    _host, client = await connected(say_hello)
    assert (await client.exchange())[-1] == b"hello http"


async def test_a_request_that_comes_during_the_stop_is_ended_too(opened, certificate):
    """A connection that stays open until its stream has ended may carry one more request."""
    is_ending, has_come = trio.Event(), trio.Event()
    ends = []

    async def respond(exchange):
        if exchange.request.path == "/late":
            has_come.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(SECONDS) as scope:
                scope.shield = True
                is_ending.set()
                await has_come.wait()
            ends.append(exchange.request.path)

    host = await opened(respond, tls=certificate, shutdown=ShutdownLimits(close_seconds=10))
    client = await Http2Client.connect(host, certificate)
    await client.ask(path="/early")
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(host.stop)
            await is_ending.wait()
            await client.ask(path="/late")
    assert sorted(ends) == ["/early", "/late"]


# Errors of hypercorn

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize("strange", [{"path": "/\xff"}, {"method": "G\xcbT"}])
async def test_hypercorn_starts_again_after_an_error_of_its_own(connected, strange, caplog):
    host, client = await connected(wait_or_say_hello)
    with trio.fail_after(SECONDS):
        await client.ask(**strange)
        assert await client.stream.receive_some() != b""  # its settings
        while await client.stream.receive_some():
            pass
        await served_again(host)
    assert logged_messages(caplog) == ["hypercorn has failed, and all its connections are closed"]


@pytest.mark.usefixtures("mock_clock")
async def test_repeated_errors_of_hypercorn_are_logged_once_a_second(connected, caplog):
    host, client = await connected(wait_or_say_hello)
    with trio.fail_after(SECONDS):
        for _ in range(3):
            await client.ask(path="/\xff")
            while await client.stream.receive_some():
                pass
            client = await plain_client(host)
    assert logged_messages(caplog) == ["hypercorn has failed, and all its connections are closed"]


async def test_data_before_a_websocket_is_accepted_leave_the_server_running(opened):
    """hypercorn issue 225."""
    host = await opened(say_hello)
    client = await host.connect()
    await client.put(UPGRADE + b"x")
    with trio.fail_after(SECONDS):
        await client.rest()
        await served_again(host)


async def served_again(host):
    """Wait until the host answers, since it may accept a last connection when it fails."""
    while True:
        client = await host.connect()
        await client.put(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        if (await client.rest()).startswith(b"HTTP/1.1 200 "):
            return


async def test_an_error_before_hypercorn_listens_is_raised(opened, tmp_path):
    with pytest.RaisesGroup(OSError, allow_unwrapped=True, flatten_subgroups=True):
        await opened(say_hello, tls={"certfile": str(tmp_path / "missing.pem")})


# The stop, and limits


async def test_a_client_that_resets_its_connection_leaves_no_task(opened):
    host = await opened(say_hello, http=HttpLimits(connections_max=1))
    for _ in range(3):
        client = await host.connect()
        assert (await client.exchange()).status == 200
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_concurrent_requests_beyond_the_limit_are_rejected(opened, caplog):
    host = await opened(wait_or_say_hello, http=HttpLimits(connections_max=1))
    client = await host.connect()
    await client.ask(target="/wait")
    await client.response_headers()
    other = await host.connect()
    for _ in range(2):
        rejected = await other.exchange()
        assert rejected.status == 503
        assert rejected.body == b"there are too many requests (limits.http.connections_max=1)"
    await other.put(UPGRADE)
    assert (await other.rest()).startswith(b"HTTP/1.1 403 ")
    await client.aclose()
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert (await (await host.connect()).exchange()).status == 200


@pytest.mark.real_time
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT")
async def test_the_kernel_cuts_off_a_client_that_reads_nothing(opened):
    errors = []

    async def respond(exchange):
        await exchange.start(200, [])
        try:
            while True:
                await exchange.send(b"x" * 100_000)
        except trio.BrokenResourceError as error:
            errors.append(error)
            raise

    host = await opened(respond, messages=MessageLimits(write_stall_seconds=0.3))
    client = await host.connect()
    await client.ask()
    with trio.fail_after(SECONDS):
        while not errors:
            await trio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT")
async def test_a_client_that_reads_nothing_delays_the_stop_until_it_is_cut_off(opened):
    sent = 0

    async def respond(exchange):
        nonlocal sent
        await exchange.start(200, [])
        while True:
            await exchange.send(b"x" * 100_000)
            sent += 1

    host = await opened(
        respond,
        messages=MessageLimits(write_stall_seconds=1),
        shutdown=ShutdownLimits(close_seconds=0.2),
    )
    client = await host.connect()
    await client.ask()
    while not sent:
        await trio.sleep(0.01)
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(SECONDS):
        await host.stop()


async def test_an_answer_that_begins_under_the_stop_s_cancellation_is_an_error(opened, caplog):
    has_come = trio.Event()

    async def respond(exchange):
        has_come.set()
        try:
            await trio.sleep_forever()
        finally:
            await exchange.answer(200, [], b"goodbye")

    host = await opened(respond)
    client = await host.connect()
    await client.ask()
    await has_come.wait()
    await host.stop()
    assert (await client.rest()).startswith(b"HTTP/1.1 500 ")
    assert logged_messages(caplog) == []


async def test_no_signal_handler_is_installed(opened):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    await opened(say_hello)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_answers_have_no_server_header(opened):
    client = await (await opened(say_hello)).connect()
    assert "server" not in (await client.exchange()).headers


# Other applications, and other ways to run hypercorn


async def test_the_application_is_served_below_a_mount(nursery):
    from hypercorn.middleware.dispatcher import TrioDispatcherMiddleware

    paths = []

    async def respond(exchange):
        paths.append(exchange.request.path)
        await say_hello(exchange)

    app = TrioDispatcherMiddleware({"/sub": AsgiHost(respond)})
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await nursery.start(serve_hypercorn, app, listeners)
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://127.0.0.1:{port}/sub/mcp?a=b")
    assert answer.text == "hello http"
    assert paths == ["/mcp"]
    nursery.cancel_scope.cancel()


async def test_an_error_of_another_mounted_application_is_logged_and_answered(nursery, caplog):
    async def app(scope, receive, send):
        raise KeyError("an error of the application")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await nursery.start(serve_hypercorn, app, listeners)
    async with httpx2.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 500
    assert "an error of the application" in caplog.text
    nursery.cancel_scope.cancel()


async def test_hypercorn_starts_and_stops_the_application(nursery):
    story = []

    async def ended():
        story.append("ended")

    shutdown, is_over = trio.Event(), trio.Event()

    async def serve(*, task_status):
        config = Config()
        config.bind = ["127.0.0.1:0"]
        config.errorlog = None
        app = AsgiHost(say_hello, on_shutdown=ended)
        await hypercorn.trio.serve(
            app, config, shutdown_trigger=shutdown.wait, task_status=task_status
        )
        is_over.set()

    [address] = await nursery.start(serve)
    async with httpx2.AsyncClient(trust_env=False) as client:
        for _ in range(2):
            assert (await client.post(address, content=b"{}")).text == "hello http"
    shutdown.set()
    with trio.fail_after(SECONDS):
        await is_over.wait()
    assert story == ["ended"]
