"""The ASGI host by itself: scopes and messages, no server and no socket."""

import asyncio
import logging

import attrs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Limits
from mcp_trio._transports import asgi
from mcp_trio._transports.asgi import AnswerBrokenOff, AsgiHost, request_of
from mcp_trio._transports.http_response import BodyTooLargeError
from mcp_trio.limits import HttpLimits, MessageLimits, ShutdownLimits

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
    """Plays messages to an application (a number is a pause), and keeps what it says."""

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


# The head


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
    head = request_of({**scope, "query_string": b"d=%20?", "client": ("::1", 1)})
    assert (head.method, head.query, head.scheme, head.client) == ("GET", "d=%20?", "https", "::1")
    assert head.headers == {"a": "b\xff, c"}
    assert head.repeated == {"a"}
    assert request_of({**scope, "client": None}).client is None


def test_decoded_headers_are_cached_unless_they_have_credentials():
    plain, repeated = [(b"accept", b"once-only/x")], [(b"a", b"b"), (b"a", b"once-only")]
    for headers, is_remembered in (
        (plain, True),
        (repeated, False),
        ([*plain, (b"authorization", b"Bearer x")], False),
        ([*plain, (b"cookie", b"x")], False),
        ([*plain, (b"x", b"x" * 5000)], False),
    ):
        asgi._cached_decoded_headers.cache_clear()
        heads = [request_of(scope_of(headers=headers)).headers for _ in range(2)]
        assert heads[0] == heads[1]
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
async def test_a_too_large_content_length_is_rejected_before_the_body(length):
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
    # After the answer, the client has some time to end its request.
    assert trio.current_time() == 5 + Limits().shutdown.close_seconds


async def test_each_chunk_of_a_body_restarts_the_time_limit(autojump_clock):
    limits = Limits(http=HttpLimits(body_seconds=5), messages=MessageLimits(chunk_bytes=2))
    steps = [4, piece(b"ab", more=True), 4, piece(b"cd", more=True), 4, piece(b"ef")]
    assert (await served(read, *steps, limits=limits)).body == b"abcdef"


async def test_a_trickling_body_does_not_restart_the_time_limit(autojump_clock):
    limits = Limits(http=HttpLimits(body_seconds=5), messages=MessageLimits(chunk_bytes=4))
    steps = [3, piece(b"a", more=True), 3, piece(b"b", more=True), 3, piece(b"c")]
    assert (await served(read, *steps, limits=limits)).status == 408


@pytest.mark.parametrize(("version", "says"), [("1.1", True), ("1.0", True), ("2", False)])
async def test_an_answer_before_the_body_announces_the_close(version, says):
    scope = scope_of(headers=[(b"content-length", b"3")], http_version=version)
    server = await served(hello, piece(b"one"), scope=scope)
    assert (server.headers.get(b"connection") == b"close") is says


async def test_an_unread_body_is_dropped_while_the_answer_is_sent():
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
    with pytest.raises(AnswerBrokenOff):
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
        with pytest.raises(RuntimeError, match="it was started"):
            await exchange.answer(200, [])
        with pytest.raises(RuntimeError, match="it was started"):
            await exchange.start(200, [])
        await exchange.end()
        for late in (exchange.end(), exchange.send(b""), exchange.answer(200, [])):
            with pytest.raises(RuntimeError, match="it was sent completely"):
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
    with pytest.raises(AnswerBrokenOff):
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
    heard = []

    async def wait(exchange):
        await exchange.gone()
        heard.append(trio.current_time())

    async def respond(exchange):
        await exchange.body(10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, exchange)
            nursery.start_soon(wait, exchange)
        await wait(exchange)

    assert (await served(respond, piece(), 3, GONE)).sent == []
    assert heard == [3, 3, 3]


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
    await AsgiHost(hello, ended=ended)({"type": "lifespan"}, server.receive, send)
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
    asyncio.run(AsgiHost(hello, ended=ended)({"type": "lifespan"}, server.receive, server.send))
    assert len(server.sent) == 2
