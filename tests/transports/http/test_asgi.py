"""The ASGI host by itself: scopes and messages, no server and no socket."""

import asyncio
import contextlib
import functools
import logging
import socket

import attrs
import h2.events
import msgspec
import pytest
import trio
import trio.testing
import wsproto.connection
from hypothesis import given
from hypothesis import strategies as st
from wsproto import events

from mcp_trio import ConnectionLost, Limits
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._transports import asgi
from mcp_trio._transports.asgi import AsgiHost, IncompleteResponse, request_of
from mcp_trio._transports.http_response import BodyTooLargeError
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import HttpLimits, MessageLimits, ShutdownLimits, WebSocketLimits
from tests.transports.http.http2_client import Http2Client
from tests.transports.websocket.conftest import handing_over, raw_peer

GONE = {"type": "http.disconnect"}


def piece(body=b"", *, more=False):
    return {"type": "http.request", "body": body, "more_body": more}


def scope_of(method="POST", path="/", *, headers=(), **rest):
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": list(headers),
        **rest,
    }


@attrs.define
class Server:
    """Sends messages to an application (a number is a pause), and keeps its messages."""

    messages: list = attrs.field(factory=list)
    sent: list = attrs.field(factory=list)
    stalls_at: int | None = None
    fails_at: int | None = None

    async def receive(self):
        while self.messages:
            message = self.messages.pop(0)
            if isinstance(message, dict):
                return message
            await trio.sleep(message)
        return await trio.sleep_forever()

    async def send(self, message):
        if len(self.sent) == self.stalls_at:
            await trio.sleep_forever()
        if len(self.sent) == self.fails_at:
            raise ConnectionResetError("by peer")
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def headers(self):
        return dict(self.sent[0]["headers"])

    @property
    def body(self):
        return b"".join(each["body"] for each in self.sent[1:])


async def served(respond, *messages, scope=None, limits=None, **server):
    server = Server(list(messages), **server)
    host = AsgiHost(respond, limits=limits or Limits())
    await host(scope or scope_of(), server.receive, server.send)
    return server


async def hello(exchange):
    await exchange.answer(200, [("Content-Type", "text/plain")], b"hello")


# Headers


@pytest.mark.parametrize(
    ("path", "root", "raw", "expected"),
    [
        ("/mcp", "", None, "/mcp"),
        ("/mcp", "", b"/mcp", "/mcp"),
        ("/a b/ü", "", None, "/a%20b/%C3%BC"),
        ("/a/b", "", b"/a%2Fb", "/a%2Fb"),
        ("/a", "", b"/a?b", "/a"),
        ("/sub/mcp", "/sub", b"/sub/mcp", "/mcp"),  # a framework that leaves the path whole
        ("/sub/mcp", "/sub", None, "/mcp"),
        ("/mcp", "/sub", b"/sub/mcp", "/mcp"),  # one that takes it off
        ("/mcp", "/sub", b"/mcp", "/mcp"),  # a proxy that has taken it off
        ("/mcp", "/mcp", b"/mcp/mcp", "/mcp"),
        ("/sub", "/sub", b"/sub", "/"),
        ("/sub/", "/sub/", b"/sub/", "/"),
        ("/subway", "/sub", b"/subway", "/subway"),
        ("/s b/mcp", "/s b", b"/s%20b/mcp", "/mcp"),
        ("/changed", "", b"/as/it/came", "/changed"),  # a framework that rewrites it
    ],
)
def test_the_path_excludes_the_mount_path(path, root, raw, expected):
    scope = scope_of(path=path, root_path=root)
    if raw is not None:
        scope["raw_path"] = raw
    assert request_of(scope).path == expected


def test_a_request_has_the_values_of_its_scope():
    scope = scope_of("GET", "/x", headers=[(b"A", b" b\xff "), (b"a", b"c")], scheme="https")
    request = request_of({**scope, "query_string": b"d=%20?", "client": ("::1", 1)})
    assert (request.method, request.query, request.scheme, request.client) == (
        "GET",
        "d=%20?",
        "https",
        "::1",
    )
    assert request.headers == {"a": "b\xff, c"}
    assert request.repeated == {"a"}
    assert request_of({**scope, "client": None}).client is None


def test_decoded_headers_are_cached_unless_they_have_credentials():
    plain, repeated = [(b"accept", b"once-only/x")], [(b"a", b"b"), (b"a", b"once-only")]
    for headers, is_remembered in (
        (plain, True),
        (repeated, False),
        ([*plain, (b"authorization", b"Bearer x")], False),
        ([*plain, (b"cookie", b"x")], False),
        ([*plain, (b"sec-websocket-protocol", b"mcp, mcp.token.eA")], False),
        ([*plain, (b"x", b"x" * 5000)], False),
        ([*plain, (b"x" * 5000, b"x")], False),
    ):
        asgi._cached_decoded_headers.cache_clear()
        found = [request_of(scope_of(headers=headers)).headers for _ in range(2)]
        assert found[0] == found[1]
        assert asgi._cached_decoded_headers.cache_info().currsize == is_remembered


# The body


async def read(exchange):
    await exchange.answer(200, [], await exchange.body(10))


async def test_a_body_comes_in_pieces():
    server = await served(read, piece(b"one", more=True), piece(b"", more=True), piece(b"two"))
    assert server.body == b"onetwo"


async def test_a_body_over_http2_needs_no_content_length():
    server = await served(read, piece(b"one"), scope=scope_of(http_version="2"))
    assert server.body == b"one"


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "OPTIONS"])
async def test_no_body_is_read_for_methods_without_one(method):
    assert (await served(read, scope=scope_of(method))).status == 200


@pytest.mark.parametrize("length", [b"11", b"9" * 5000, b"0" * 30])
async def test_a_too_large_content_length_is_rejected_before_the_body(length, autojump_clock):
    async def respond(exchange):
        with pytest.raises(BodyTooLargeError, match="longer than 10"):
            await exchange.body(10)
        await exchange.answer(413, [])

    scope = scope_of(headers=[(b"content-length", length)])
    assert (await served(respond, scope=scope)).status == 413


async def test_a_content_length_that_is_not_a_number_is_ignored():
    scope = scope_of(headers=[(b"content-length", "²".encode("latin-1"))])
    assert (await served(read, piece(b"one"), scope=scope)).body == b"one"


async def test_a_stalled_body_is_answered_with_408(autojump_clock, caplog):
    server = await served(
        read, piece(b"one", more=True), limits=Limits(http=HttpLimits(body_seconds=5))
    )
    assert server.status == 408
    assert server.body == b"the body stalled for 5 seconds (limits.http.body_seconds)"
    assert caplog.records == []
    # After the answer, the client has some time to end its request.
    assert trio.current_time() == 5 + Limits().shutdown.close_seconds


async def test_a_request_with_two_body_lengths_is_rejected_with_the_reason():
    headers = [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    server = await served(hello, piece(b"one"), scope=scope_of(headers=headers))
    assert (server.status, server.body) == (
        400,
        b"the request has both Content-Length and Transfer-Encoding",
    )


async def test_each_chunk_of_a_body_restarts_the_time_limit(autojump_clock):
    limits = Limits(http=HttpLimits(body_seconds=5), messages=MessageLimits(chunk_bytes=2))
    steps = [4, piece(b"ab", more=True), 4, piece(b"cd", more=True), 4, piece(b"ef")]
    assert (await served(read, *steps, limits=limits)).body == b"abcdef"


async def test_a_trickling_body_does_not_restart_the_time_limit(autojump_clock):
    limits = Limits(http=HttpLimits(body_seconds=5), messages=MessageLimits(chunk_bytes=4))
    steps = [3, piece(b"a", more=True), 3, piece(b"b", more=True), 3, piece(b"c")]
    assert (await served(read, *steps, limits=limits)).status == 408


@pytest.mark.parametrize(
    ("version", "announces_close"), [("1.1", True), ("1.0", True), ("2", False)]
)
async def test_an_answer_before_the_body_announces_the_close(version, announces_close):
    scope = scope_of(headers=[(b"content-length", b"3")], http_version=version)
    server = await served(hello, piece(b"one"), scope=scope)
    assert (server.headers.get(b"connection") == b"close") is announces_close


async def test_an_unread_body_is_dropped_while_the_answer_is_sent(autojump_clock):
    taken = trio.Event()

    async def send(message):
        if message["type"] == "http.response.body":
            await taken.wait()

    async def receive():
        if not steps:
            taken.set()
            await trio.sleep_forever()
        return steps.pop(0)

    steps = [piece(b"x", more=True)] * 3
    await AsgiHost(hello)(scope_of(), receive, send)


@pytest.mark.parametrize(("version", "seconds"), [("1.1", 2), ("2", 1000)])
async def test_the_end_of_an_answer_waits_for_the_rest_of_the_body(
    version, seconds, autojump_clock
):
    """A server may reset a connection or fail if it has ended the answer before."""
    steps = [piece(b"x", more=True), 1000, piece(b"y")]
    limits = Limits(shutdown=ShutdownLimits(close_seconds=2))
    server = await served(hello, *steps, scope=scope_of(http_version=version), limits=limits)
    assert [each.get("more_body") for each in server.sent] == [None, True, False]
    assert trio.current_time() == seconds


async def test_a_cancellation_interrupts_no_message(autojump_clock):
    async def send(message):
        await trio.sleep(1)
        sent.append(message)

    async def respond(exchange):
        with trio.move_on_after(0.5):
            await exchange.start(200, [])

    sent = []
    with pytest.raises(IncompleteResponse):
        await AsgiHost(respond)(scope_of("GET"), Server().receive, send)
    assert [each["type"] for each in sent] == ["http.response.start"]


# The answer


@given(size=st.integers(0, 40))
def test_an_answer_is_sent_in_pieces_of_a_chunk(size):
    body = bytes(range(size))

    async def respond(exchange):
        await exchange.body(10)
        await exchange.answer(200, [], body)

    server = trio.run(run_served, respond, Limits(messages=MessageLimits(chunk_bytes=8)))
    assert server.body == body
    assert server.headers[b"content-length"] == str(size).encode()
    pieces = server.sent[1:]
    assert [each["more_body"] for each in pieces] == [True] * (len(pieces) - 1) + [False]
    assert len(pieces) == max(1, -(-size // 8))


async def run_served(respond, limits):
    return await served(respond, piece(), limits=limits)


async def test_the_headers_of_a_stream_are_sent_at_once():
    async def respond(exchange):
        await exchange.start(200, [])
        assert [each["type"] for each in server.sent] == [
            "http.response.start",
            "http.response.body",
        ]
        await exchange.end()

    server = Server([piece()])
    await AsgiHost(respond)(scope_of(), server.receive, server.send)
    assert [each.get("more_body") for each in server.sent] == [None, True, False]


async def test_calls_of_an_exchange_in_the_wrong_order_raise():
    async def respond(exchange):
        with pytest.raises(RuntimeError, match="nothing was sent"):
            await exchange.send(b"")
        with pytest.raises(RuntimeError, match="nothing was sent"):
            await exchange.end()
        await exchange.start(200, [])
        with pytest.raises(RuntimeError, match="its headers were sent"):
            await exchange.answer(200, [])
        with pytest.raises(RuntimeError, match="its headers were sent"):
            await exchange.start(200, [])
        await exchange.end()
        for late in (exchange.end(), exchange.send(b""), exchange.answer(200, [])):
            with pytest.raises(RuntimeError, match="it is complete"):
                await late

    assert len((await served(respond, piece())).sent) == 3


async def test_a_client_that_stalls_its_http2_stream_breaks_the_answer_off(autojump_clock, caplog):
    async def respond(exchange):
        await exchange.start(200, [])
        with pytest.raises(
            trio.BrokenResourceError, match=r"limits\.messages\.write_stall_seconds"
        ):
            await exchange.send(b"one")
        with pytest.raises(trio.BrokenResourceError):
            await exchange.send(b"two")

    limits = Limits(messages=MessageLimits(write_stall_seconds=7))
    scope = scope_of(http_version="2")
    with pytest.raises(IncompleteResponse):
        await served(respond, piece(), scope=scope, stalls_at=2, limits=limits)
    assert trio.current_time() == 7


@pytest.mark.parametrize("fails_at", [0, 1])
async def test_an_error_of_send_means_that_the_client_has_disconnected(fails_at):
    async def respond(exchange):
        with pytest.raises(trio.BrokenResourceError, match="by peer"):
            await exchange.answer(200, [], b"x")
        await exchange.gone()

    await served(respond, piece(), fails_at=fails_at)


async def test_an_error_of_receive_means_that_the_client_has_disconnected():
    async def receive():
        raise ConnectionError

    async def respond(exchange):
        await exchange.gone()
        with pytest.raises(trio.BrokenResourceError):
            await exchange.answer(200, [])

    server = Server()
    await AsgiHost(respond)(scope_of("GET"), receive, server.send)
    assert server.sent == []


async def test_a_default_answer_to_a_disconnected_client_is_no_error():
    async def respond(exchange):
        pass

    assert (await served(respond, piece(), fails_at=0)).sent == []


async def test_every_wait_for_the_client_ends_when_it_disconnects(autojump_clock):
    times = []

    async def wait(exchange):
        await exchange.gone()
        times.append(trio.current_time())

    async def respond(exchange):
        await exchange.body(10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, exchange)
            nursery.start_soon(wait, exchange)
        await wait(exchange)

    assert (await served(respond, piece(), 3, GONE)).sent == []
    assert times == [3, 3, 3]


async def test_a_client_that_disconnects_within_its_body_gets_no_answer():
    async def respond(exchange):
        with pytest.raises(trio.BrokenResourceError):
            await exchange.body(10)
        await exchange.gone()

    assert (await served(respond, piece(b"x", more=True), GONE)).sent == []


async def test_a_broken_channel_of_the_application_itself_is_logged(caplog):
    async def respond(exchange):
        raise trio.BrokenResourceError("of something else")

    assert (await served(respond, piece())).status == 500
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "something else" in caplog.text


# Not HTTP


async def test_the_lifespan_shutdown_waits_for_the_sessions():
    story = []

    async def ended():
        await trio.lowlevel.checkpoint()
        story.append("ended")

    async def send(message):
        story.append(message["type"])

    server = Server([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    await AsgiHost(hello, on_shutdown=ended)({"type": "lifespan"}, server.receive, send)
    assert story == ["lifespan.startup.complete", "ended", "lifespan.shutdown.complete"]


async def test_the_lifespan_is_answered_without_a_shutdown_function():
    server = Server([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    await AsgiHost(hello)({"type": "lifespan"}, server.receive, server.send)
    assert len(server.sent) == 2


async def test_a_websocket_without_an_application_is_rejected():
    server = Server([{"type": "websocket.connect"}])
    await AsgiHost(hello)({"type": "websocket"}, server.receive, server.send)
    assert server.sent == [{"type": "websocket.close", "code": 1000}]


async def test_an_unknown_scope_is_an_error():
    with pytest.raises(NotImplementedError, match="telepathy"):
        await AsgiHost(hello)({"type": "telepathy"}, None, None)


def test_under_asyncio_the_answer_names_the_worker_to_use():
    server = Server()
    asyncio.run(AsgiHost(hello)(scope_of(), server.receive, server.send))
    assert server.status == 500
    assert b"hypercorn --worker-class trio" in server.body
    assert server.headers[b"content-length"] == str(len(server.body)).encode()


def test_under_asyncio_the_lifespan_is_answered_too():
    async def ended():
        raise AssertionError

    server = Server([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    asyncio.run(
        AsgiHost(hello, on_shutdown=ended)({"type": "lifespan"}, server.receive, server.send)
    )
    assert len(server.sent) == 2


# WebSockets through ASGI: of a scripted server, and of hypercorn with misbehaving peers.


LIMITS = Limits(messages=MessageLimits(bytes_max=1000), shutdown=ShutdownLimits(close_seconds=0.3))
MESSAGE = b'{"jsonrpc":"2.0","method":"check"}'
SECONDS = 10.0


async def no_response(_exchange):
    raise AssertionError("each request here asks for a WebSocket")


# A scripted server


def scope_of_asgi_upgrade(**more):
    return {
        "type": "websocket",
        "scheme": "ws",
        "http_version": "1.1",
        "path": "/ws",
        "raw_path": b"/ws",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"sec-websocket-protocol", b"mcp")],
        "client": ("127.0.0.1", 1),
        "subprotocols": ["mcp"],
        **more,
    }


@attrs.define(eq=False)
class Scripted:
    """A server that sends the given messages; `host_check` delays those that it receives."""

    sent: list = attrs.field(factory=list)
    host_check: trio.Event = attrs.field(factory=trio.Event)
    events_in: trio.MemorySendChannel = attrs.field(init=False)
    events_out: trio.MemoryReceiveChannel = attrs.field(init=False)
    is_shielded: bool = False

    def __attrs_post_init__(self):
        self.events_in, self.events_out = trio.open_memory_channel(100)
        self.events_in.send_nowait({"type": "websocket.connect"})
        self.host_check.set()

    def text(self, message):
        self.events_in.send_nowait({"type": "websocket.receive", "text": message.decode()})

    async def send(self, message):
        self.sent.append(message)
        with trio.CancelScope(shield=self.is_shielded):
            await self.host_check.wait()

    async def run(self, serve_upgrade, **more):
        app = AsgiHost(no_response, serve_upgrade=serve_upgrade, limits=LIMITS)
        await app(scope_of_asgi_upgrade(**more), self.events_out.receive, self.send)

    @property
    def kinds(self):
        return [each["type"].removeprefix("websocket.") for each in self.sent]


@pytest.fixture
def opened(nursery):
    """A scripted server, the channel over it, and what the application raised in the end."""

    async def opened(**more):
        server, raised = Scripted(**more), []
        arrived, arrivals = trio.open_memory_channel(1)

        async def run():
            try:
                await server.run(handing_over(arrived, LIMITS))
            except IncompleteResponse as error:
                raised.append(error)

        nursery.start_soon(run)
        return server, await arrivals.receive(), raised

    return opened


async def test_messages_go_both_ways_and_the_close_is_reported(opened, autojump_clock):
    server, channel, raised = await opened()
    assert server.sent == [{"type": "websocket.accept", "subprotocol": "mcp"}]
    server.text(MESSAGE)
    assert await channel.receive() == [MESSAGE]
    await channel.send([MESSAGE, MESSAGE])
    assert [each.get("text") for each in server.sent[1:]] == [MESSAGE.decode()] * 2
    server.events_in.send_nowait({"type": "websocket.disconnect", "code": 1001})
    assert await channel.receive() == []
    with pytest.raises(trio.BrokenResourceError):
        await channel.send([MESSAGE])
    await channel.aclose()
    assert not raised


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"type": "websocket.disconnect"}, "close code 1006"),
        ({"type": "websocket.disconnect", "code": 1011, "reason": "ouch"}, "failed .*1011.*ouch"),
        ({"type": "websocket.receive", "bytes": b"x"}, "binary"),
    ],
)
async def test_abnormal_closes_are_lost_connections(opened, message, complaint, autojump_clock):
    server, channel, _raised = await opened()
    server.events_in.send_nowait(message)
    with pytest.raises(OutcomeUnknown, match=complaint):
        await channel.receive()
    await channel.aclose()


async def test_an_error_of_receive_loses_the_connection(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.events_in.close()
    with pytest.raises(ConnectionLost, match="1006"):
        await channel.receive()


async def test_an_error_of_send_loses_the_connection(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.host_check = None
    with pytest.raises(trio.BrokenResourceError):
        await channel.send([MESSAGE])


async def test_a_cancelled_send_completes_one_message_and_drops_the_rest(opened, autojump_clock):
    server, channel, _raised = await opened(is_shielded=True)
    server.host_check = trio.Event()
    with trio.move_on_after(1):
        await channel.send([b"%d" % number for number in range(10)])
    server.host_check.set()
    await channel.send([b"end"])
    texts = [each["text"] for each in server.sent[1:]]
    assert texts == ["0", "end"]


async def test_a_write_that_cannot_be_cancelled_breaks_the_connection_off(opened, autojump_clock):
    server, channel, raised = await opened(is_shielded=True)
    server.host_check = trio.Event()
    with trio.move_on_after(1):
        await channel.send([MESSAGE])
    await channel.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert len(raised) == 1
    server.host_check.set()


async def test_a_silent_peer_is_left_to_the_asgi_server(opened, autojump_clock):
    server, channel, _raised = await opened()
    await trio.sleep(10 * (LIMITS.websocket.ping_interval_seconds + LIMITS.websocket.pong_seconds))
    await channel.send([MESSAGE])
    assert server.kinds == ["accept", "send"]
    await channel.aclose()


async def test_messages_are_sent_without_waiting_while_the_queue_is_empty(opened, autojump_clock):
    server, channel, _raised = await opened()
    assert channel.send_nowait([MESSAGE, MESSAGE]) == 2
    assert channel.send_nowait([MESSAGE]) == 0
    await channel.send([MESSAGE])
    assert [each.get("text") for each in server.sent[1:]] == [MESSAGE.decode()] * 3
    chunk = b"x" * LIMITS.messages.chunk_bytes
    assert channel.send_nowait([chunk, MESSAGE]) == 1
    assert not channel.is_unfinished
    server.events_in.send_nowait({"type": "websocket.disconnect"})
    with pytest.raises(OutcomeUnknown):
        await channel.receive()
    with pytest.raises(OutcomeUnknown):
        channel.send_nowait([MESSAGE])
    await channel.aclose()


async def test_sending_to_a_disconnected_client_fails_at_once(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.events_in.send_nowait({"type": "websocket.disconnect"})
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(trio.BrokenResourceError):
        channel.send_nowait([MESSAGE])
    await channel.aclose()


async def test_a_client_that_reads_nothing_is_lost_without_a_pending_send(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.host_check = trio.Event()
    assert channel.send_nowait([MESSAGE]) == 1
    started = trio.current_time()
    with pytest.raises(OutcomeUnknown, match="did not respond"):
        await channel.receive()
    assert LIMITS.messages.write_stall_seconds <= trio.current_time() - started <= 100
    await channel.aclose()


async def test_a_close_ends_a_send_that_waits(opened, autojump_clock):
    server, channel, _raised = await opened()
    server.host_check = trio.Event()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def send():
            with pytest.raises(trio.ClosedResourceError):
                await channel.send([MESSAGE])

        await trio.testing.wait_all_tasks_blocked()
        await channel.aclose()


async def test_a_peer_that_does_not_answer_the_close_is_not_waited_for(opened, autojump_clock):
    server, channel, raised = await opened()
    started = trio.current_time()
    await channel.aclose()
    assert trio.current_time() - started == pytest.approx(LIMITS.shutdown.close_seconds)
    assert server.sent[-1] == {"type": "websocket.close", "code": 1000, "reason": ""}
    assert not raised


async def refusing(upgrade):
    await upgrade.reject(Rejection(status=403, text="no", headers=[("X-Why", "so")]))


async def test_a_rejection_is_an_answer_where_the_server_can_give_one():
    server = Scripted()
    await server.run(refusing, extensions={"websocket.http.response": {}})
    assert server.kinds == ["http.response.start", "http.response.body"]
    assert server.sent[0]["status"] == 403
    assert (b"x-why", b"so") in server.sent[0]["headers"]
    server = Scripted()
    await server.run(refusing)
    assert server.kinds == ["close"]


async def test_a_disconnected_client_is_neither_accepted_nor_rejected(caplog):
    server = Scripted()
    server.events_out.receive_nowait()
    server.events_in.send_nowait({"type": "websocket.disconnect"})
    await server.run(refusing)
    assert server.sent == []
    server = Scripted(host_check=trio.Event())
    server.host_check = None
    await server.run(refusing)
    assert not caplog.records


async def test_an_exception_of_the_application_is_logged(caplog):
    async def fail(_upgrade):
        raise ValueError("ouch")

    await Scripted().run(fail)
    assert "a WebSocket connection failed" in caplog.text


async def test_an_application_without_websockets_rejects_them():
    server = Scripted()
    await AsgiHost(no_response)(scope_of_asgi_upgrade(), server.events_out.receive, server.send)
    assert server.kinds == ["close"]


async def test_the_handshake_request_is_one_of_http(autojump_clock):
    requests = []

    async def look(upgrade):
        requests.append(upgrade.request)

    await Scripted().run(look, scheme="wss", path="/app/ws", raw_path=b"/app/ws", root_path="/app")
    assert (requests[0].method, requests[0].scheme, requests[0].path) == ("GET", "https", "/ws")


# Hypercorn


@pytest.fixture
def on_hypercorn(nursery):
    """The URL of a host, and the channels of its clients."""

    async def on_hypercorn(**options):
        limits = msgspec.structs.replace(LIMITS, **options)
        arrived, arrivals = trio.open_memory_channel(10)
        app = AsgiHost(no_response, serve_upgrade=handing_over(arrived, limits), limits=limits)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(functools.partial(serve_hypercorn, app, listeners, limits=limits))
        return f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ws", arrivals

    return on_hypercorn


@pytest.fixture
def raw_asgi_upgrade(on_hypercorn):
    """A raw peer, and the server's channel with it."""

    async def raw(**options):
        url, arrivals = await on_hypercorn(**options)
        peer = await raw_peer(url)
        await peer.shake_hands()
        return peer, await arrivals.receive()

    return raw


@pytest.mark.parametrize("code", [1000, 1011])
async def test_a_peer_that_closes_is_reported_without_its_close_code(raw_asgi_upgrade, code):
    """hypercorn reports every close as an abnormal one (1006)."""
    peer, channel = await raw_asgi_upgrade()
    async with peer.stream:
        await peer.frame(0x8, code.to_bytes(2, "big") + b"bye")
        assert await peer.closed() == code
        with pytest.raises(OutcomeUnknown, match="1006"):
            await channel.receive()
        await channel.aclose()


async def test_a_peer_that_is_cut_off_is_a_loss(raw_asgi_upgrade):
    peer, channel = await raw_asgi_upgrade()
    await peer.stream.aclose()
    with pytest.raises(OutcomeUnknown, match="1006"):
        await channel.receive()
    await channel.aclose()


async def test_a_message_over_the_limit_closes_the_connection(raw_asgi_upgrade):
    peer, channel = await raw_asgi_upgrade()
    async with peer.stream:
        await peer.frame(0x1, b"x" * 1001)
        assert await peer.closed() == 1009
        await channel.aclose()


async def test_a_binary_message_closes_the_connection(raw_asgi_upgrade):
    peer, channel = await raw_asgi_upgrade()
    async with peer.stream:
        await peer.frame(0x2, b"x" * 500)
        with pytest.raises(OutcomeUnknown, match="binary"):
            await channel.receive()
        await channel.aclose()
        assert await peer.closed() == 1003


@pytest.mark.real_time
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs TCP_USER_TIMEOUT")
async def test_a_peer_that_reads_nothing_is_cut_off(raw_asgi_upgrade):
    peer, channel = await raw_asgi_upgrade(
        messages=MessageLimits(bytes_max=2**26, write_stall_seconds=0.3)
    )
    async with peer.stream:
        with trio.fail_after(SECONDS):
            with contextlib.suppress(trio.BrokenResourceError):
                await channel.send([b"x" * 2**25])
            with pytest.raises(OutcomeUnknown):
                await channel.receive()
        await channel.aclose()


@pytest.mark.real_time
async def test_a_peer_that_answers_pings_is_kept(raw_asgi_upgrade):
    peer, channel = await raw_asgi_upgrade(websocket=WebSocketLimits(ping_interval_seconds=0.05))
    async with peer.stream:
        for _ in range(5):
            event = await peer.event()
            assert isinstance(event, events.Ping)
            await peer.stream.send_all(peer.protocol.send(event.response()))
        await peer.frame(0x1, MESSAGE)
        assert await channel.receive() == [MESSAGE]
        await channel.aclose()


# HTTP/2


@contextlib.asynccontextmanager
async def over_http2(on_hypercorn):
    """A client, the number of its stream, the frames on that, and the channel at the other end."""
    url, arrivals = await on_hypercorn()
    client = await Http2Client.over((await raw_peer(url)).stream)
    async with client.stream:
        await client.event(None, h2.events.RemoteSettingsChanged)
        asked = [(":protocol", "websocket"), ("sec-websocket-version", "13")]
        asked.append(("sec-websocket-protocol", "mcp"))
        number = await client.ask("CONNECT", "/ws", asked, is_whole=False)
        answer = dict((await client.event(number, h2.events.ResponseReceived)).headers)
        assert (answer[b":status"], answer[b"sec-websocket-protocol"]) == (b"200", b"mcp")
        framed = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT)
        yield client, number, framed, await arrivals.receive()


async def test_a_websocket_over_http2_is_one_as_well(on_hypercorn):
    async with over_http2(on_hypercorn) as (client, number, framed, channel):
        client.http.send_data(number, framed.send(events.TextMessage(data=MESSAGE.decode())))
        await client.flush()
        assert await channel.receive() == [MESSAGE]
        await channel.send([MESSAGE])
        events_received = []
        while not any(
            isinstance(each, events.TextMessage) for each in events_received
        ):  # pings come, too
            framed.receive_data((await client.event(number, h2.events.DataReceived)).data)
            events_received += framed.events()
        assert events_received[-1].data == MESSAGE.decode()
        client.http.send_data(number, framed.send(events.CloseConnection(code=1000)))
        await client.flush()
        with pytest.raises(OutcomeUnknown, match="1006"):
            await channel.receive()
        await channel.aclose()
