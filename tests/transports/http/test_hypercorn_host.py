"""What only hypercorn does: TLS and HTTP/2; and what is done around it."""

import contextlib
import functools
import gc
import signal
import socket
import ssl
import struct

import attrs
import h2.events
import httpx2
import hypercorn.trio
import pytest
import trio
import trio.testing
from hypercorn.config import Config

from mcp_trio import Limits
from mcp_trio._transports.asgi import AsgiHost
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio.limits import HttpLimits, MessageLimits, ShutdownLimits
from tests.transports.http.conftest import say_goodbye
from tests.transports.http.http2_client import Http2Client

SECONDS = 5.0


@pytest.fixture
def opened(open_host):
    async def opened(respond, *, tls=None, **limits):
        return await open_host("hypercorn", respond, options=tls, **limits)

    return opened


async def say_hello(exchange):
    await exchange.answer(200, [], b"hello " + exchange.head.scheme.encode())


def said_in(caplog):
    return [each.getMessage() for each in caplog.records if each.name == "mcp_trio"]


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
    assert said_in(caplog) == []


async def test_a_tls_handshake_may_take_longer_than_the_idle_time(opened, certificate, mock_clock):
    host = await opened(say_hello, tls=certificate, http=HttpLimits(idle_seconds=2))
    await host.connect()
    await trio.testing.wait_all_tasks_blocked(0.01)
    mock_clock.jump(4)
    client = await Http2Client.connect(host, certificate)
    assert (await client.exchange())[-1] == b"hello https"


async def test_a_handshake_does_not_hold_up_the_stop(opened, certificate, caplog):
    host = await opened(say_hello, tls=certificate, shutdown=ShutdownLimits(close_seconds=60))
    await host.connect()
    await trio.testing.wait_all_tasks_blocked(0.05)
    with trio.fail_after(SECONDS):
        await host.stop()
    assert said_in(caplog) == []


@pytest.mark.parametrize("given", ["certfile", "keyfile"])
async def test_a_certificate_without_its_key_is_rejected(opened, certificate, given):
    with pytest.RaisesGroup(ValueError, allow_unwrapped=True, flatten_subgroups=True):
        await opened(say_hello, tls={given: certificate[given]})


# HTTP/2


async def test_requests_are_served_over_http2(opened, certificate):
    heads = []

    async def respond(exchange):
        heads.append(exchange.head)
        await exchange.answer(200, [("X-A", "b")], await exchange.body(1_000_000))

    client = await Http2Client.connect(await opened(respond, tls=certificate), certificate)
    sent = b"x" * 60_000
    headers, body = await client.exchange("POST", "/a?b", [("x-c", "d")], sent)
    assert (headers[b":status"], headers[b"x-a"], body) == (b"200", b"b", sent)
    assert b"server" not in headers
    [head] = heads
    assert (head.method, head.path, head.query, head.scheme) == ("POST", "/a", "b", "https")
    assert head.headers["host"] == "host.test"
    assert head.headers["x-c"] == "d"


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


async def test_a_stream_that_its_client_resets_is_gone_and_no_other(opened, certificate):
    gone = []
    is_gone = trio.Event()

    async def respond(exchange):
        path = exchange.head.path
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


async def test_a_stream_may_say_goodbye_at_the_stop_over_http2(opened, certificate):
    host = await opened(say_goodbye, tls=certificate)
    client = await Http2Client.connect(host, certificate)
    number = await client.ask()
    await client.event(number, h2.events.ResponseReceived)
    with trio.fail_after(SECONDS):
        await host.stop()
    assert (await client.event(number, h2.events.DataReceived)).data == b"goodbye"
    await client.event(number, h2.events.StreamEnded)


async def test_a_stream_that_says_no_goodbye_does_not_hold_up_the_stop_over_http2(
    opened, certificate
):
    async def respond(exchange):
        await exchange.start(200, [])
        await trio.sleep_forever()

    host = await opened(respond, tls=certificate, shutdown=ShutdownLimits(close_seconds=60))
    client = await Http2Client.connect(host, certificate)
    await client.event(await client.ask(), h2.events.ResponseReceived)
    with trio.fail_after(SECONDS):
        await host.stop()


async def test_what_comes_for_a_stream_that_was_answered_harms_no_other_over_http2(
    opened, certificate, caplog
):
    host = await opened(say_hello, tls=certificate)
    client = await Http2Client.connect(host, certificate)
    number = await client.ask("POST", is_whole=False)
    await client.event(number, h2.events.StreamEnded)
    client.http.send_data(number, b"late")
    await client.flush()
    with trio.fail_after(SECONDS):
        assert (await client.exchange())[-1] == b"hello https"
    assert said_in(caplog) == []


@pytest.mark.real_time
async def test_a_client_that_opens_no_window_is_given_up_over_http2(opened, certificate, caplog):
    errors = []
    is_over = trio.Event()

    async def respond(exchange):
        await exchange.start(200, [])
        try:
            for _ in range(1000):
                await exchange.send(b"x" * 10_000)
        except trio.BrokenResourceError as error:
            errors.append(str(error))
        is_over.set()

    limits = {
        "http": HttpLimits(unsent_bytes_max=100_000),
        "messages": MessageLimits(write_stall_seconds=0.2),
    }
    host = await opened(respond, tls=certificate, **limits)
    client = await Http2Client.connect(host, certificate)
    await client.ask()
    with trio.fail_after(SECONDS):
        await is_over.wait()
    [error] = errors
    assert "limits.messages.write_stall_seconds" in error


async def test_a_client_that_opens_its_window_late_gets_all_over_http2(opened, certificate):
    whole = b"x" * 300_000

    async def respond(exchange):
        await exchange.start(200, [])
        for first in range(0, len(whole), 10_000):
            await exchange.send(whole[first : first + 10_000])
        is_sent.set()
        await exchange.end()

    is_sent = trio.Event()
    host = await opened(respond, tls=certificate, http=HttpLimits(unsent_bytes_max=100_000))
    client = await Http2Client.connect(host, certificate)
    number = await client.ask()
    await client.event(number, h2.events.ResponseReceived)
    await trio.testing.wait_all_tasks_blocked(0.05)
    assert not is_sent.is_set()
    received = b""
    while len(received) < len(whole):
        received += (await client.event(number, h2.events.DataReceived)).data
    await client.event(number, h2.events.StreamEnded)
    assert received == whole


# Around it


async def test_a_client_that_resets_its_connection_leaves_nothing(opened):
    host = await opened(say_hello, http=HttpLimits(connections_max=1))
    for _ in range(3):
        client = await host.connect()
        assert (await client.exchange()).status == 200
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await client.aclose()
        await trio.testing.wait_all_tasks_blocked(0.01)


async def test_over_tls_one_connection_too_many_is_closed(opened, certificate, caplog):
    host = await opened(say_hello, tls=certificate, http=HttpLimits(connections_max=1))
    client = await Http2Client.connect(host, certificate)
    assert await (await host.connect()).rest() == b""
    assert (await client.exchange())[-1] == b"hello https"
    assert "limits.http.connections_max" in caplog.text


@pytest.mark.real_time
async def test_a_client_that_keeps_its_side_open_is_not_waited_for_at_the_end(opened):
    host = await opened(
        say_hello, http=HttpLimits(connections_max=1), shutdown=ShutdownLimits(close_seconds=0.1)
    )
    client = await host.connect()
    await client.exchange(headers=[("Connection", "close")])
    assert await client.rest() == b""
    await trio.sleep(0.3)
    assert (await (await host.connect()).exchange()).status == 200


async def test_a_connection_that_waits_for_its_client_does_not_hold_up_the_stop(opened):
    host = await opened(say_hello, shutdown=ShutdownLimits(close_seconds=60))
    client = await host.connect()
    await client.exchange(headers=[("Connection", "close")])
    assert await client.rest() == b""
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
    assert said_in(caplog) == []


@attrs.define(eq=False)
class Accepting(trio.abc.Listener):
    """A listener to which one client has come, who reads nothing."""

    client: socket.socket
    accepted: list

    @classmethod
    def one(cls):
        client, accepted = socket.socketpair()
        accepted.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                accepted.send(bytes(65536))
        return cls(client, [trio.SocketStream(trio.socket.from_stdlib_socket(accepted))])

    @property
    def socket(self):
        return self.client

    async def accept(self):
        if not self.accepted:
            await trio.sleep_forever()
        return self.accepted.pop()

    async def aclose(self):
        await trio.lowlevel.checkpoint()


async def test_a_rejected_client_that_does_not_read_is_cut_off_at_the_stop(caplog):
    """Its socket is closed, and not left to whoever collects the garbage, who would warn."""
    limits = Limits(http=HttpLimits(connections_max=0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            functools.partial(serve_hypercorn, None, [Accepting.one()], limits=limits)
        )
        await trio.testing.wait_all_tasks_blocked()
        assert "limits.http.connections_max" in caplog.text
        nursery.cancel_scope.cancel()
    gc.collect()


async def test_a_request_that_comes_during_the_stop_is_ended_too(opened, certificate):
    """A connection that goes on until its stream has said goodbye may bring one more."""
    is_ending, has_come = trio.Event(), trio.Event()
    ends = []

    async def respond(exchange):
        if exchange.head.path == "/late":
            has_come.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.move_on_after(SECONDS) as scope:
                scope.shield = True
                is_ending.set()
                await has_come.wait()
            ends.append(exchange.head.path)

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


async def test_no_signal_handler_is_installed(opened):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    await opened(say_hello)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_nothing_is_said_of_the_server(opened):
    client = await (await opened(say_hello)).connect()
    assert "server" not in (await client.exchange()).headers


async def test_a_broken_server_is_logged_and_the_next_connection_served(
    opened, caplog, monkeypatch
):
    from mcp_trio._transports.hypercorn import HypercornConnection

    async def serve(self, *_):
        raise KeyError("a fault of hypercorn")

    host = await opened(say_hello)
    with monkeypatch.context() as broken:
        broken.setattr(HypercornConnection, "serve", serve)
        client = await host.connect()
        assert await client.rest() == b""
    assert "a fault of hypercorn" in caplog.text
    assert (await (await host.connect()).exchange()).status == 200


# The same application under hypercorn as it is


async def test_it_is_served_below_a_mount(nursery):
    from hypercorn.middleware.dispatcher import TrioDispatcherMiddleware

    paths = []

    async def respond(exchange):
        paths.append(exchange.head.path)
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


async def test_another_application_that_fails_is_logged_and_cut_off(nursery, caplog):
    async def app(scope, receive, send):
        raise KeyError("a fault of somebody's application")

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await nursery.start(serve_hypercorn, app, listeners)
    async with httpx2.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx2.TransportError):
            await client.get(f"http://127.0.0.1:{port}/")
    assert "a fault of somebody's application" in caplog.text
    nursery.cancel_scope.cancel()


async def test_it_is_served_and_ended_by_hypercorn_itself(nursery):
    story = []

    async def ended():
        story.append("ended")

    shutdown, is_over = trio.Event(), trio.Event()

    async def serve(*, task_status):
        config = Config()
        config.bind = ["127.0.0.1:0"]
        config.errorlog = None
        app = AsgiHost(say_hello, ended=ended)
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
