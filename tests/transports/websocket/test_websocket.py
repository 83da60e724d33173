"""WebSocket channels: over a scripted socket, and over the library's connections."""

import contextlib
import functools
import json
import socket
import ssl
from contextlib import suppress

import attrs
import pytest
import trio
import trio.testing
from wsproto.events import CloseConnection, Ping

from mcp_trio import Client, ConnectionLost, Limits, Server
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._testing.peers import notification, request
from mcp_trio._transports import trio_websocket
from mcp_trio._transports.asgi import AsgiHost
from mcp_trio._transports.http_server import serve_native, serve_websocket
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio._transports.websocket import SocketEnd, accept_websocket, start_channel
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import KIB, MIB, HttpLimits, MessageLimits, ShutdownLimits, WebSocketLimits
from mcp_trio.testing import check_channel
from mcp_trio.transports import Oversized, open_websocket_channel
from tests.transports.websocket.conftest import LIMITS, admit_all, raw_peer

LIMITS_CHANNEL = Limits(
    messages=MessageLimits(bytes_max=2 * 1024 * 1024), shutdown=ShutdownLimits(close_seconds=0.3)
)
MESSAGE = b'{"jsonrpc":"2.0","method":"check"}'


@attrs.define(eq=False)
class Mailboxes:
    """A socket in memory, as a host of another kind may bring it."""

    sender: trio.MemorySendChannel
    receiver: trio.MemoryReceiveChannel
    fault: Exception | None = None
    bytes_sent: int = 0
    closed_with: CloseCode | None = None

    async def send_texts(self, texts):
        for text in texts:
            self.bytes_sent += len(text)
            await self.sender.send(text)

    is_unfinished = False
    ending = SocketEnd(CloseCode.NORMAL_CLOSURE)

    def send_texts_nowait(self, texts):
        taken = 0
        with contextlib.suppress(trio.WouldBlock):
            for text in texts:
                self.sender.send_nowait(text)
                self.bytes_sent += len(text)
                taken += 1
        return taken

    async def receive(self):
        try:
            frame = (await self.receiver.receive()).encode()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return []
        too_large = len(frame) > LIMITS_CHANNEL.messages.bytes_max
        return [Oversized(len(frame), frame[:4096]) if too_large else frame]

    async def ping(self):
        await trio.lowlevel.checkpoint()
        if self.fault is not None:
            raise self.fault

    def is_silent_since(self, _moment):
        return True

    async def close(self, code, _reason):
        self.closed_with = code
        self.sender.close()
        self.receiver.close()


@contextlib.asynccontextmanager
async def opening(socket):
    try:
        yield socket
    finally:
        socket.sender.close()
        socket.receiver.close()


async def pair(**options):
    there, back = (trio.open_memory_channel(4) for _ in range(2))
    sockets = Mailboxes(there[0], back[1], **options), Mailboxes(back[0], there[1])
    channels = [
        await start_channel(opening(each), name="it", limits=LIMITS_CHANNEL) for each in sockets
    ]
    return *channels, *sockets


@pytest.mark.real_time
async def test_a_channel_over_any_socket_keeps_the_contract():
    async def make_pair():
        return (await pair())[:2]

    await check_channel(make_pair, limits=LIMITS_CHANNEL)


async def test_an_unexpected_error_is_contained_and_reported(autojump_clock, caplog):
    ours, theirs, socket, _ = await pair(fault=ValueError("a defect"))
    with pytest.raises(ConnectionLost, match="the connection to it failed"):
        await ours.receive()
    with pytest.raises(ConnectionLost, match="the connection to it failed"):
        await ours.send([MESSAGE])
    assert "the WebSocket channel failed" in caplog.text
    assert socket.closed_with is None
    assert await theirs.receive() == []
    for channel in (ours, theirs):
        await channel.aclose()


async def test_a_socket_whose_peer_is_gone_is_pinged_no_more(autojump_clock):
    ours, theirs, socket, _ = await pair(fault=trio.BrokenResourceError())
    await trio.sleep(1000)
    await theirs.send([MESSAGE])
    assert await ours.receive() == [MESSAGE]
    for channel in (ours, theirs):
        await channel.aclose()
    assert socket.closed_with == CloseCode.NORMAL_CLOSURE


async def test_the_first_cause_of_the_end_is_reported(autojump_clock):
    ours, theirs, *_ = await pair()
    await theirs.aclose()
    assert await ours.receive() == []
    ours.fail(ConnectionLost("too late"))
    assert await ours.receive() == []
    await ours.aclose()


async def test_a_stopping_server_closes_once_with_going_away(autojump_clock):
    ours, theirs, socket, _ = await pair()
    ours.mark_going_away()
    await ours.aclose()
    assert socket.closed_with == CloseCode.GOING_AWAY
    await theirs.aclose()


async def test_an_error_is_reported_although_the_server_is_stopping(autojump_clock):
    ours, theirs, socket, _ = await pair()
    ours.fail(ConnectionLost("silent"))
    ours.mark_going_away()
    await ours.aclose()
    assert socket.closed_with == CloseCode.INTERNAL_ERROR
    await theirs.aclose()


async def test_a_channel_shows_no_secrets(served):
    url, arrivals = await served()
    channel = await open_websocket_channel(f"{url}?key=secret", token="secret")
    assert repr(channel) == f"<WebSocketChannel with {url}>"
    assert repr(await arrivals.receive()) == "<WebSocketChannel with 127.0.0.1>"
    await channel.aclose()


# Options of a WebSocket client that are checked before anything is connected.


@pytest.fixture
async def nowhere():
    """A port at which no process listens."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("headers", [{"X-Two": "lines\r\nX-Three: 3"}, {"not a name": "x"}])
async def test_invalid_headers_are_rejected_before_connecting(nowhere, headers):
    with pytest.raises(ValueError, match=r"name of a header|of the header"):
        await open_websocket_channel(f"ws://{nowhere}", headers=headers)


async def test_the_path_and_the_query_of_a_url_may_have_any_characters(served):
    requests = []

    async def admit(request):
        requests.append(request)
        return request

    url, arrivals = await served(admit=admit)
    channel = await open_websocket_channel(f"{url}/Ålesund 1%2F?q=“ø 2”", limits=LIMITS)
    async with trio.open_nursery() as closing:
        closing.start_soon((await arrivals.receive()).aclose)
        closing.start_soon(channel.aclose)
    assert requests[0].path == "/ws/%C3%85lesund%201%2F"
    assert requests[0].query == "q=%E2%80%9C%C3%B8%202%E2%80%9D"


async def test_the_systems_certificates_are_read_once(nowhere):
    trio_websocket._trusted_by_system.cache_clear()
    for _ in range(3):
        with pytest.raises(ConnectionLost):
            await open_websocket_channel(f"wss://{nowhere}")
    assert trio_websocket._trusted_by_system.cache_info().misses == 1


# Protocol errors of a peer, and the close codes that it receives.


CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


FAULTS = {
    "binary message": ([(BINARY, MESSAGE)], 1003, "binary"),
    "bad UTF-8": ([(TEXT, b'"\xff"')], 1007, "not UTF-8"),
    "bad UTF-8 in an unfinished character": ([(TEXT, b'"\xc3')], 1007, "not UTF-8"),
    "unknown opcode": ([(0x3, MESSAGE)], 1002, "violated the WebSocket protocol"),
    "unknown control opcode": ([(0xB, b"")], 1002, "violated the WebSocket protocol"),
    "continuation of nothing": ([(CONTINUATION, MESSAGE)], 1002, "violated the WebSocket protocol"),
    "large control frame": ([(PING, b"x" * 126)], 1002, "violated the WebSocket protocol"),
    "close of one byte": ([(CLOSE, b"\x03")], 1002, "violated the WebSocket protocol"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_peer_that_violates_the_protocol_gets_a_close_code(raw, name):
    frames, code, complaint = FAULTS[name]
    peer, channel = await raw()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def attack():
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                for opcode, payload in frames:
                    await peer.frame(opcode, payload)

        for _ in range(2):
            with trio.fail_after(10), pytest.raises(OutcomeUnknown, match=complaint):
                await channel.receive()
        with pytest.raises(OutcomeUnknown, match=complaint):
            await channel.send([MESSAGE])
        nursery.start_soon(channel.aclose)
        assert await peer.closed() == code
        await peer.stream.aclose()


async def test_an_unmasked_frame_of_a_client_is_a_protocol_error(raw):
    peer, channel = await raw()
    await peer.stream.send_all(b"\x81\x02{}")
    with pytest.raises(OutcomeUnknown, match="violated the WebSocket protocol"):
        await channel.receive()
    await peer.stream.aclose()


@pytest.mark.parametrize("kib", [5, 500])
async def test_an_oversized_message_is_reported_once_and_the_session_continues(raw, nursery, kib):
    peer, channel = await raw(
        limits=Limits(
            messages=MessageLimits(bytes_max=8 * KIB), shutdown=ShutdownLimits(close_seconds=0.3)
        )
    )
    for each in range(2):
        nursery.start_soon(peer.frame, TEXT, "ä".encode() * kib * KIB)
        [oversized] = await channel.receive()
        assert oversized.prefix == "ä".encode() * 2 * KIB
        assert 8 * KIB < oversized.size <= 2 * kib * KIB
        await trio.testing.wait_all_tasks_blocked(0.01)
        await peer.frame(TEXT, b"%d" % each, is_last=False)
        await peer.frame(CONTINUATION, MESSAGE)
        assert await received(channel, 1) == [b"%d" % each + MESSAGE]


async def test_an_oversized_fragmented_message_uses_bounded_memory(raw):
    peer, channel = await raw(
        limits=Limits(
            messages=MessageLimits(bytes_max=100), shutdown=ShutdownLimits(close_seconds=0.3)
        )
    )
    for _ in range(200):
        await peer.frame(CONTINUATION if _ else TEXT, b"x", is_last=False)
    await peer.frame(CONTINUATION, b"x")
    await peer.frame(TEXT, MESSAGE)
    assert await received(channel, 2) == [Oversized(101, b"x" * 100), MESSAGE]


async def received(channel, count):
    messages = []
    while len(messages) < count:
        messages += await channel.receive()
    return messages


async def test_a_fragmented_message_is_joined(raw):
    peer, channel = await raw()
    await peer.frame(TEXT, MESSAGE[:9], is_last=False)
    await peer.frame(PING, b"are you there?")
    await peer.frame(CONTINUATION, MESSAGE[9:])
    assert await channel.receive() == [MESSAGE]
    pong = await peer.event()
    assert pong.payload == b"are you there?"
    await peer.stream.aclose()


async def test_a_message_of_several_lines_arrives_as_one_line(raw):
    peer, channel = await raw()
    await peer.frame(TEXT, b'{\r\n  "a": "b"\n}')
    await peer.frame(TEXT, b"no\nJSON")
    await peer.frame(TEXT, b"")
    assert await received(channel, 3) == [b'{\t\t  "a": "b"\t}', b"no\tJSON", b""]
    await peer.stream.aclose()


CLOSES = {
    1000: None,
    1001: None,
    1002: "reports an error in the WebSocket protocol",
    1003: "does not accept this kind of message",
    1007: "reports text that is not UTF-8",
    1008: "rejected the connection",
    1009: "message of this size",
    1011: "failed",
    1012: "is restarting",
    1013: "try again later",
    4000: "closed the connection",
}


@pytest.mark.parametrize("code", CLOSES)
async def test_the_close_code_and_reason_of_the_peer_are_reported(raw, code):
    peer, channel = await raw()
    await peer.frame(CLOSE, code.to_bytes(2, "big") + b"because")
    if CLOSES[code] is None:
        assert await channel.receive() == await channel.receive() == []
    else:
        with pytest.raises(OutcomeUnknown, match=f"{CLOSES[code]}.*{code}.*because"):
            await channel.receive()
    with pytest.raises(trio.BrokenResourceError if CLOSES[code] is None else OutcomeUnknown):
        await channel.send([MESSAGE])
    await channel.aclose()
    assert await peer.closed() == code  # echoed, as the protocol demands
    await peer.stream.aclose()


async def test_a_close_without_a_code_is_an_end(raw):
    peer, channel = await raw()
    await peer.frame(CLOSE)
    assert await channel.receive() == []
    await peer.stream.aclose()


@pytest.mark.parametrize("begun", [b"", b"\x81", b"\x81\x8a\0\0\0\0{"])
async def test_a_cut_connection_leaves_the_outcome_unknown(raw, begun):
    peer, channel = await raw()
    await peer.stream.send_all(begun)
    await peer.stream.aclose()
    with pytest.raises(
        OutcomeUnknown, match=r"127\.0\.0\.1 closed the connection without a close frame"
    ):
        await channel.receive()


# A peer that is silent


async def test_a_peer_that_answers_no_ping_is_lost(in_memory, autojump_clock):
    peer, channel = await in_memory()
    started = trio.current_time()
    with pytest.raises(
        OutcomeUnknown,
        match=r"limits\.websocket\.ping_interval_seconds, limits\.websocket\.pong_seconds",
    ):
        await channel.receive()
    limits = Limits()
    waited = limits.websocket.ping_interval_seconds + limits.websocket.pong_seconds
    assert trio.current_time() - started == pytest.approx(waited)
    assert await peer.closed() == 1011


async def test_a_peer_that_answers_pings_is_kept(in_memory, autojump_clock, nursery):
    peer, channel = await in_memory()

    @nursery.start_soon
    async def answer():
        while isinstance(event := await peer.event(), Ping):
            await peer.frame(PONG, event.payload)

    with trio.move_on_after(1000):
        await channel.receive()
    await channel.send([MESSAGE])


async def test_a_peer_that_sends_a_long_message_is_not_lost(in_memory, autojump_clock):
    peer, channel = await in_memory()
    message = b'"' + b"x" * 100 + b'"'
    header = b"\x81" + bytes([0x80 | len(message)]) + bytes(4)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def trickle():
            for byte in header + message:
                await peer.stream.send_all(bytes([byte]))
                await trio.sleep(10)

        assert await channel.receive() == [message]


async def test_a_peer_that_is_not_read_from_does_not_count_as_silent(in_memory, autojump_clock):
    peer, channel = await in_memory()
    large = b'"' + b"x" * 65 * KIB + b'"'
    await peer.frame(TEXT, large)
    for _ in range(5):
        await peer.frame(TEXT, MESSAGE)
    await trio.sleep(1000)  # in which no task reads them, or the messages after them
    assert await received(channel, 1) == [large]
    assert await received(channel, 5) == [MESSAGE] * 5


# Sending


async def test_a_send_cancelled_within_a_message_is_the_last(raw):
    peer, channel = await raw()
    before = channel.bytes_sent
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, [b'"' + b"x" * (64 * MIB) + b'"'])
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert channel.bytes_sent > before
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.BrokenResourceError):
        await channel.send([MESSAGE])
    with trio.fail_after(10):
        await channel.aclose()
    await peer.stream.aclose()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 100_000])
async def test_a_message_of_any_length_is_one_frame(raw, size):
    peer, channel = await raw()
    message = "ä" * (size // 2) + "x" * (size % 2)
    await channel.send([message.encode(), MESSAGE])
    text = ""
    while not text.endswith(MESSAGE.decode()):
        text += (await peer.event()).data
    assert text == message + MESSAGE.decode()
    await peer.stream.aclose()


async def test_a_message_is_unfinished_until_it_has_been_sent(raw):
    peer, channel = await raw()
    large = b'"' + b"x" * (16 * MIB) + b'"'
    channel.send_nowait([large])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, [])
        await trio.testing.wait_all_tasks_blocked()
        assert channel.is_unfinished
        text = ""
        while len(text) < len(large):
            text += (await peer.event()).data
    assert not channel.is_unfinished
    await peer.stream.aclose()


async def test_a_message_cut_off_by_a_cancelled_send_is_not_unfinished(raw):
    peer, channel = await raw()
    channel.send_nowait([b'"' + b"x" * (16 * MIB) + b'"'])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, [])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not channel.is_unfinished
    await peer.stream.aclose()


async def test_bytes_that_did_not_fit_into_the_socket_are_sent_first(raw, nursery):
    peer, channel = await raw()
    large = b'"' + b"x" * (16 * MIB) + b'"'
    assert channel.send_nowait([large, MESSAGE]) == 1
    assert channel.is_unfinished
    assert channel.send_nowait([MESSAGE]) == 0
    nursery.start_soon(channel.send, [])
    nursery.start_soon(peer.frame, PING, b"meanwhile")
    nursery.start_soon(channel.send, [MESSAGE])
    text, pongs = "", 0
    while not text.endswith(MESSAGE.decode()) or not pongs:
        event = await peer.event()
        text += getattr(event, "data", "")
        pongs += hasattr(event, "payload")
    assert text == large.decode() + MESSAGE.decode()
    assert not channel.is_unfinished
    await peer.stream.aclose()


async def test_a_close_finishes_a_message_sent_in_part(raw, nursery):
    peer, channel = await raw()
    large = b'"' + b"x" * (16 * MIB) + b'"'
    assert channel.send_nowait([large]) == 1
    nursery.start_soon(channel.aclose)
    size, event = 0, None
    while not hasattr(event, "code"):
        event = await peer.event()
        size += len(getattr(event, "data", ""))
    assert (size, event.code) == (len(large), 1000)
    with pytest.raises(trio.ClosedResourceError):
        channel.send_nowait([MESSAGE])
    await peer.stream.aclose()


async def test_nothing_is_sent_at_once_to_a_peer_that_is_gone(raw):
    peer, channel = await raw()
    await peer.frame(CLOSE, (1011).to_bytes(2, "big"))
    with pytest.raises(OutcomeUnknown):
        await channel.receive()
    with pytest.raises(OutcomeUnknown):
        channel.send_nowait([MESSAGE])
    await peer.stream.aclose()


async def test_a_binary_frame_is_rejected(make_pair):
    ours, theirs = await make_pair()
    with pytest.raises(ValueError, match="utf-8"):
        await ours.send([b"\xff"])
    await ours.send([MESSAGE])
    assert await theirs.receive() == [MESSAGE]
    await ours.aclose()


async def test_a_peer_that_never_closes_its_side_is_waited_for_in_bounded_time(
    in_memory, autojump_clock
):
    peer, channel = await in_memory()
    started = trio.current_time()
    await channel.aclose()
    assert trio.current_time() - started == pytest.approx(LIMITS.shutdown.close_seconds)
    assert await peer.closed() == 1000


async def test_pings_and_many_messages_do_not_mix(raw):
    peer, channel = await raw()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, [MESSAGE] * 5000)
        for number in range(200):
            await peer.frame(PING, b"%d" % number)
        text, pongs = "", 0
        while len(text) < 5000 * len(MESSAGE) or pongs < 200:
            event = await peer.event()
            text += getattr(event, "data", "")
            pongs += hasattr(event, "payload")
    assert text == MESSAGE.decode() * 5000
    await peer.stream.aclose()


# A client


@pytest.fixture
def meets(nursery):
    """A server that handles each connection with the given function."""

    async def meets(serve):
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        await nursery.start(trio.serve_listeners, serve, listeners)
        return f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ws?key=secret"

    return meets


def answers(answer, *, lingers=True):
    async def serve(stream):
        await stream.receive_some()
        with suppress(trio.BrokenResourceError):
            await stream.send_all(answer)
        if lingers:
            await trio.sleep_forever()
        await stream.aclose()

    return serve


REJECTIONS = {
    "with a text": (b"HTTP/1.1 403 No\r\nContent-Length: 5\r\n\r\ngo\nhm", r"HTTP 403: go hm"),
    "in chunks": (
        b"HTTP/1.1 500 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
        "no",
    ),
    "without": (b"HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n", r"HTTP 404$"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", "is not a WebSocket server"),
    "no WebSocket": (b"HTTP/1.1 101 x\r\n\r\n", "is not a WebSocket server"),
    "another key": (
        b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n",
        "is not a WebSocket server",
    ),
    "endless": (
        b"HTTP/1.1 403 x\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 3 * MIB,
        "is not a WebSocket server",
    ),
}


@pytest.mark.parametrize("kind", REJECTIONS)
async def test_a_rejection_is_reported_with_its_text_and_without_secrets(meets, kind):
    answer, complaint = REJECTIONS[kind]
    url = await meets(answers(answer))
    with trio.fail_after(5), pytest.raises(ConnectionLost, match=complaint) as caught:
        await open_websocket_channel(url)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert "secret" not in str(caught.value)


async def test_a_server_that_hangs_up_is_noticed_at_once(meets):
    url = await meets(answers(b"", lingers=False))
    with (
        trio.fail_after(5),
        pytest.raises(ConnectionLost, match="disconnected during the handshake"),
    ):
        await open_websocket_channel(url)


async def test_a_silent_server_is_waited_for_in_bounded_time(meets, autojump_clock):
    url = await meets(answers(b""))
    with pytest.raises(ConnectionLost, match=r"10 s \(limits\.http\.headers_seconds"):
        await open_websocket_channel(url)


async def test_a_cancelled_handshake_leaves_no_connection(meets):
    come, gone = trio.Event(), trio.Event()

    async def serve(stream):
        while await stream.receive_some():
            come.set()
        gone.set()

    url = await meets(serve)
    async with trio.open_nursery() as opening:
        opening.start_soon(open_websocket_channel, url)
        await come.wait()
        opening.cancel_scope.cancel()
    with trio.fail_after(5):
        await gone.wait()


# A peer that reads one large message slowly is not disconnected.


LIMITS_SLOW_READER = Limits(
    websocket=WebSocketLimits(ping_interval_seconds=0.3, pong_seconds=0.3),
    shutdown=ShutdownLimits(close_seconds=0.1),
)
BUFFER_BYTES = 2**16  # or the system would take all of it at once
SIZE = 2**21
READING_SECONDS = 1.5


async def nobody(_exchange):
    raise AssertionError("everybody asks for a WebSocket here")


def on_hypercorn(serve_upgrade, listeners):
    app = AsgiHost(nobody, serve_upgrade=serve_upgrade, limits=LIMITS_SLOW_READER)
    return functools.partial(serve_hypercorn, app, listeners, limits=LIMITS_SLOW_READER)


def on_native(serve_upgrade, listeners):
    return functools.partial(
        serve_native, nobody, listeners, limits=LIMITS_SLOW_READER, serve_upgrade=serve_upgrade
    )


@pytest.mark.slow
@pytest.mark.real_time
@pytest.mark.parametrize("host", [on_hypercorn, on_native])
async def test_a_peer_that_reads_slowly_but_steadily_gets_all_messages(nursery, host):
    arrived, arrivals = trio.open_memory_channel(1)

    async def serve_upgrade(upgrade):
        channel = await accept_websocket(upgrade, upgrade.request, LIMITS_SLOW_READER)
        await arrived.send(channel)
        await channel.wait_ended()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listeners[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    await nursery.start(host(serve_upgrade, listeners))
    peer = await raw_peer(f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ws")
    await peer.shake_hands()
    channel = await arrivals.receive()
    peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    received, is_sent = 0, trio.Event()

    async def send():
        await channel.send([b"x" * SIZE])
        is_sent.set()

    async with peer.stream:
        nursery.start_soon(send)
        while received < SIZE:
            chunk = await peer.stream.receive_some(BUFFER_BYTES)
            assert chunk, f"cut off behind {received} bytes"
            received += len(chunk)
            await trio.sleep(READING_SECONDS * len(chunk) / SIZE)
        await is_sent.wait()
    await channel.aclose()


# Upgrades that a listener accepts and rejects.


SECONDS = 10.0
HELLO = request(
    "initialize",
    {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "raw", "version": "1"},
    },
    id=1,
)
CALL = request("tools/call", {"name": "load"}, id=2)


@pytest.fixture
def answered(served):
    """A function that sends a request and returns the response, until the connection is closed."""

    async def answered(request, **options):
        url, _channels = await served(**options)
        answer = b""
        async with (await raw_peer(url)).stream as stream:
            await stream.send_all(request)
            while chunk := await stream.receive_some():
                answer += chunk
        return answer

    return answered


# Upgrade requests


REJECTED = {
    "no HTTP": (b"\x16\x03\x01\x02\x00", 400, "not HTTP/1.1"),
    "a line of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\n", 400, "not HTTP/1.1"),
    "no host": (b"GET /ws HTTP/1.1\r\n\r\n", 400, "malformed"),
    "a body": (
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\n{}",
        400,
        "cannot have a body",
    ),
    "two lengths": (
        b"GET /ws HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
        "both",
    ),
    "huge headers": (b"GET /ws HTTP/1.1\r\nX: " + b"x" * 70_000, 431, "longer than"),
}


@pytest.mark.parametrize("kind", REJECTED)
async def test_an_invalid_request_is_rejected(answered, kind):
    request, status, complaint = REJECTED[kind]
    answer = await answered(request)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert complaint in answer.decode()


@pytest.mark.parametrize("begun", [b"", b"GET /ws HTTP/1.1\r\nHost: x\r\n"])
async def test_a_connection_whose_headers_take_too_long_is_closed(served, autojump_clock, begun):
    url, _channels = await served()
    started = trio.current_time()
    async with (await raw_peer(url)).stream as stream:
        if begun:
            await stream.send_all(begun)
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 408 ")
        assert await stream.receive_some() == b""
    seconds = LIMITS.http.headers_seconds
    assert seconds <= trio.current_time() - started <= 1.25 * seconds


@pytest.mark.parametrize("upgrade", [b"", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"])
async def test_a_rejection_is_an_http_response_with_its_headers(answered, upgrade):
    async def reject(_request):
        return Rejection(status=401, text="who are you?", headers=[("WWW-Authenticate", "Bearer")])

    closing = b"" if upgrade else b"Connection: close\r\n"
    request = b"GET /ws HTTP/1.1\r\nHost: x\r\n" + upgrade + closing + b"\r\n"
    headers, _, body = (await answered(request, admit=reject)).partition(b"\r\n\r\n")
    assert headers.startswith(b"HTTP/1.1 401 ")
    assert b"www-authenticate: Bearer" in headers
    assert json.loads(body)["error"]["message"] == "who are you?"


async def test_a_client_that_disconnects_before_its_handshake_harms_no_other(served, caplog):
    url, channels = await served()
    async with (await raw_peer(url)).stream as stream:
        await stream.send_all(b"GET /ws HT")
    other = await open_websocket_channel(url, limits=LIMITS)
    await channels.receive()
    await other.aclose()
    assert not caplog.records


async def test_an_internal_error_ends_only_its_connection_and_is_logged(served, caplog):
    failures = [ValueError("no")]

    async def admit(request):
        if failures:
            raise failures.pop()
        return request

    url, arrivals = await served(admit=admit)
    with pytest.raises(ConnectionLost, match="disconnected during the handshake"):
        await open_websocket_channel(url)
    assert "a WebSocket connection failed" in caplog.text
    ours = await open_websocket_channel(url, limits=LIMITS)
    await arrivals.receive()
    await ours.aclose()


async def test_an_invalid_upgrade_is_rejected_by_the_library(answered, caplog):
    answer = await answered(b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert not caplog.records


# Negotiated parameters


async def test_the_subprotocol_is_selected_if_it_is_offered(served):
    url, arrivals = await served()
    for offered, chosen in (
        (["mcp"], "mcp"),
        (["graphql-ws", "mcp"], "mcp"),
        (["mcp.token.c2VzYW1l", "mcp"], "mcp"),
        (["graphql-ws"], None),
        ([], None),
    ):
        peer = await raw_peer(url)
        async with peer.stream:
            assert (await peer.shake_hands(subprotocols=offered)).subprotocol == chosen
            channel = await arrivals.receive()
            await peer.frame(0x1, MESSAGE)
            assert await channel.receive() == [MESSAGE]
            await channel.send([MESSAGE])
            assert (await peer.event()).data == MESSAGE.decode()


async def test_frames_received_with_the_headers_are_not_lost(served):
    url, arrivals = await served()
    peer = await raw_peer(url)
    async with peer.stream:
        await peer.stream.send_all(
            b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
            b"\x81\x82\0\0\0\0{}"
        )
        channel = await arrivals.receive()
        assert await channel.receive() == [b"{}"]


async def test_the_rejection_of_a_connection_over_the_limit_names_the_setting(served):
    url, arrivals = await served(
        limits=Limits(
            http=HttpLimits(connections_max=1), shutdown=ShutdownLimits(close_seconds=0.3)
        )
    )
    first = await open_websocket_channel(url, limits=LIMITS)
    await arrivals.receive()
    with pytest.raises(ConnectionLost, match=r"HTTP 503.*limits\.http\.connections_max"):
        await open_websocket_channel(url)
    await first.aclose()


async def test_a_message_in_too_many_fragments_ends_the_connection(served):
    url, arrivals = await served(limits=Limits(websocket=WebSocketLimits(fragments_max=10)))
    for count in (9, 10):
        peer = await raw_peer(url)
        async with peer.stream:
            await peer.shake_hands()
            channel = await arrivals.receive()
            fragments = [b"\x01\x81\0\0\0\0{"] + [b"\0\x81\0\0\0\0 "] * (count - 1)
            await peer.stream.send_all(b"".join(fragments))
            if count < 10:
                await peer.stream.send_all(b"\x80\x81\0\0\0\0}")
                assert await channel.receive() == [b"{        }"]
            else:
                with pytest.raises(ConnectionLost, match=r"limits\.websocket\.fragments_max=10"):
                    await channel.receive()
                await channel.aclose()
                assert (await peer.event()).code == 1009


async def test_unfinished_messages_of_one_client_are_limited_together(served):
    limits = Limits(
        messages=MessageLimits(bytes_max=100_000), http=HttpLimits(bodies_bytes_max=150_000)
    )
    url, arrivals = await served(limits=limits)
    part = b"{" + b" " * 79_999
    async with contextlib.AsyncExitStack() as stack:
        peers = [await raw_peer(url) for _ in range(3)]
        channels = []
        for peer in peers:
            await stack.enter_async_context(peer.stream)
            await peer.shake_hands()
            channels.append(await arrivals.receive())
        first, second, third = peers
        await first.frame(TEXT, part, is_last=False)
        await trio.testing.wait_all_tasks_blocked()
        await second.frame(TEXT, part, is_last=False)
        await second.frame(CONTINUATION, b"}")
        with pytest.raises(ConnectionLost, match=r"limits\.http\.bodies_bytes_max=150000"):
            await channels[1].receive()
        await channels[1].aclose()
        assert await second.closed() == 1013
        await first.frame(CONTINUATION, b"}")
        assert await channels[0].receive() == [part + b"}"]
        await third.frame(TEXT, part, is_last=False)  # the others have given their shares back
        await third.frame(CONTINUATION, b"}")
        assert await channels[2].receive() == [part + b"}"]


async def test_connections_that_send_many_fragments_take_turns(served):
    """Otherwise a flood on many connections would fill each turn of the event loop."""
    connections, fragments = 10, 2560
    url, arrivals = await served()
    message = b"\x01\x81\0\0\0\0{" + b"\0\x81\0\0\0\0 " * (fragments - 2) + b"\x80\x81\0\0\0\0}"
    loop = LoopTurns()
    async with contextlib.AsyncExitStack() as stack:
        peers = [await raw_peer(url) for _ in range(connections)]
        for peer in peers:
            await stack.enter_async_context(peer.stream)
            await peer.shake_hands()
        channels = [await arrivals.receive() for _ in range(connections)]
        trio.lowlevel.add_instrument(loop)
        async with trio.open_nursery() as sending:
            for peer in peers:
                sending.start_soon(peer.stream.send_all, message)
        for channel in channels:
            [received] = await channel.receive()
            assert len(received) == fragments
        trio.lowlevel.remove_instrument(loop)
    assert loop.count >= connections * fragments // 64 * 3 // 4


class LoopTurns(trio.abc.Instrument):
    """Counts the turns of the event loop."""

    def __init__(self):
        self.count = 0

    def before_io_wait(self, _timeout):
        self.count += 1


# The end of a server


async def test_a_stopping_server_closes_with_going_away():
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    url = f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ws"
    codes = []

    async def hold(channel):
        try:
            assert await channel.receive() == [MESSAGE]
            await trio.sleep_forever()
        finally:
            await channel.aclose()

    async def listen(*, task_status):
        await serve_websocket(
            listeners, admit=admit_all, handle=hold, limits=LIMITS, task_status=task_status
        )

    async def connect(*, task_status):
        peer = await raw_peer(url)
        async with peer.stream:
            await peer.shake_hands()
            await peer.frame(0x1, MESSAGE)
            task_status.started()
            codes.append(await peer.closed())

    async with trio.open_nursery() as clients, trio.open_nursery() as serving:
        await serving.start(listen)
        for _ in range(3):
            await clients.start(connect)
        await trio.testing.wait_all_tasks_blocked(0.05)
        serving.cancel_scope.cancel()
    assert codes == [1001] * 3


async def test_a_server_that_stops_finishes_the_answer_that_is_leaving():
    server = Server("harbour", limits=Limits(messages=MessageLimits(bytes_max=64 * MIB)))

    @server.tool
    async def load() -> str:
        return "x" * 3 * MIB  # in the answer twice: more than the system's buffers hold

    async with trio.open_nursery() as serving:
        peer = await raw_peer(
            await serving.start(functools.partial(server.serve_websocket, port=0, hosts=["*"]))
        )
        peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        await peer.shake_hands()
        for message in (HELLO, notification("notifications/initialized"), CALL):
            await peer.frame(0x1, json.dumps({"jsonrpc": "2.0", **message}).encode())
        await peer.event()  # the answer to the first
        await trio.testing.wait_all_tasks_blocked(0.1)  # the answer is being sent, and is not read
        serving.cancel_scope.cancel()
        with trio.CancelScope(shield=True), trio.fail_after(SECONDS):
            text, event = "", await peer.event()
            while not isinstance(event, CloseConnection):
                text, event = text + event.data, await peer.event()
            assert event.code == 1001
            await peer.stream.aclose()
    assert len(json.loads(text)["result"]["content"][0]["text"]) == 3 * MIB


# TLS


async def test_a_server_with_a_certificate_uses_tls(certificate, nursery):
    serve = functools.partial(Server("harbour").serve_websocket, port=0, **certificate)
    url = await nursery.start(serve)
    assert url.startswith("wss://127.0.0.1:")
    trusting = ssl.create_default_context(cafile=certificate["certfile"])
    trusting.check_hostname = False
    channel = await open_websocket_channel(url, ssl_context=trusting, limits=LIMITS)
    async with Client(channel) as client:
        await client.ping()
    with pytest.raises(ConnectionLost, match="certificate verify failed"):
        await open_websocket_channel(url)
    with pytest.raises(ValueError, match="wss://"):
        await open_websocket_channel(url.replace("wss", "ws"), ssl_context=trusting)
    with trio.fail_after(SECONDS), pytest.raises(ConnectionLost):
        await open_websocket_channel(url.replace("wss", "ws"))
