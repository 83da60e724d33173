"""What a peer may do wrong, what becomes of it, and what the peer is told."""

from contextlib import suppress

import pytest
import trio
import trio.testing
from wsproto.events import Ping

from mcp_trio import ConnectionLost, Limits
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import KIB, MIB, MessageLimits, ShutdownLimits
from mcp_trio.transports import Oversized, open_websocket_channel
from tests.transports.websocket.conftest import LIMITS

FRAME = b'{"jsonrpc":"2.0","method":"check"}'
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


FAULTS = {
    "binary message": ([(BINARY, FRAME)], 1003, "binary"),
    "bad UTF-8": ([(TEXT, b'"\xff"')], 1007, "not UTF-8"),
    "bad UTF-8 in an unfinished character": ([(TEXT, b'"\xc3')], 1007, "not UTF-8"),
    "unknown opcode": ([(0x3, FRAME)], 1002, "violated the WebSocket protocol"),
    "unknown control opcode": ([(0xB, b"")], 1002, "violated the WebSocket protocol"),
    "continuation of nothing": ([(CONTINUATION, FRAME)], 1002, "violated the WebSocket protocol"),
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
            await channel.send([FRAME])
        nursery.start_soon(channel.aclose)
        assert await peer.closed() == code
        await peer.stream.aclose()


async def test_text_in_an_unmasked_frame_is_against_the_rules(raw):
    peer, channel = await raw()
    await peer.stream.send_all(b"\x81\x02{}")
    with pytest.raises(OutcomeUnknown, match="violated the WebSocket protocol"):
        await channel.receive()
    await peer.stream.aclose()


@pytest.mark.parametrize("kib", [5, 500])
async def test_what_is_too_large_is_reported_once_and_the_session_goes_on(raw, nursery, kib):
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
        await peer.frame(CONTINUATION, FRAME)
        assert await received(channel, 1) == [b"%d" % each + FRAME]


async def test_a_message_of_many_pieces_that_gets_too_large_takes_no_more_than_it_may(raw):
    peer, channel = await raw(
        limits=Limits(
            messages=MessageLimits(bytes_max=100), shutdown=ShutdownLimits(close_seconds=0.3)
        )
    )
    for _ in range(200):
        await peer.frame(CONTINUATION if _ else TEXT, b"x", is_last=False)
    await peer.frame(CONTINUATION, b"x")
    await peer.frame(TEXT, FRAME)
    assert await received(channel, 2) == [Oversized(101, b"x" * 100), FRAME]


async def received(channel, count):
    messages = []
    while len(messages) < count:
        messages += await channel.receive()
    return messages


async def test_a_message_in_pieces_is_one_message(raw):
    peer, channel = await raw()
    await peer.frame(TEXT, FRAME[:9], is_last=False)
    await peer.frame(PING, b"are you there?")
    await peer.frame(CONTINUATION, FRAME[9:])
    assert await channel.receive() == [FRAME]
    pong = await peer.event()
    assert pong.payload == b"are you there?"
    await peer.stream.aclose()


async def test_a_message_of_several_lines_arrives_as_one_line(raw):
    peer, channel = await raw()
    await peer.frame(TEXT, b'{\r\n  "a": "b"\n}')
    await peer.frame(TEXT, b"no\nJSON")
    await peer.frame(TEXT, b"")
    assert await received(channel, 3) == [b'{"a":"b"}', b"no JSON", b""]
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
        await channel.send([FRAME])
    await channel.aclose()
    assert await peer.closed() == code  # as the protocol wants it, it is said back
    await peer.stream.aclose()


async def test_a_close_without_a_code_is_an_end(raw):
    peer, channel = await raw()
    await peer.frame(CLOSE)
    assert await channel.receive() == []
    await peer.stream.aclose()


@pytest.mark.parametrize("begun", [b"", b"\x81", b"\x81\x8a\0\0\0\0{"])
async def test_a_connection_that_is_cut_leaves_open_what_was_done(raw, begun):
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
    await channel.send([FRAME])


async def test_a_peer_whose_message_takes_long_is_alive(in_memory, autojump_clock):
    peer, channel = await in_memory()
    message = b'"' + b"x" * 100 + b'"'
    head = b"\x81" + bytes([0x80 | len(message)]) + bytes(4)
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def trickle():
            for byte in head + message:
                await peer.stream.send_all(bytes([byte]))
                await trio.sleep(10)

        assert await channel.receive() == [message]


async def test_a_peer_that_is_not_read_from_does_not_count_as_silent(in_memory, autojump_clock):
    peer, channel = await in_memory()
    large = b'"' + b"x" * 65 * KIB + b'"'
    await peer.frame(TEXT, large)
    for _ in range(5):
        await peer.frame(TEXT, FRAME)
    await trio.sleep(1000)  # in which nobody takes them, nor sees what is behind them
    assert await received(channel, 1) == [large]
    assert await received(channel, 5) == [FRAME] * 5


# Sending


async def test_a_send_that_is_cancelled_in_a_message_is_the_last(raw):
    peer, channel = await raw()
    before = channel.bytes_sent
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, [b'"' + b"x" * (64 * MIB) + b'"'])
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert channel.bytes_sent > before
        nursery.cancel_scope.cancel()
    with pytest.raises(trio.BrokenResourceError):
        await channel.send([FRAME])
    with trio.fail_after(10):
        await channel.aclose()
    await peer.stream.aclose()


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 100_000])
async def test_a_message_of_any_length_is_one_frame(raw, size):
    peer, channel = await raw()
    message = "ä" * (size // 2) + "x" * (size % 2)
    await channel.send([message.encode(), FRAME])
    text = ""
    while not text.endswith(FRAME.decode()):
        text += (await peer.event()).data
    assert text == message + FRAME.decode()
    await peer.stream.aclose()


async def test_what_is_leaving_is_unfinished_until_it_has_left(raw):
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


async def test_what_is_cut_is_not_unfinished(raw):
    peer, channel = await raw()
    channel.send_nowait([b'"' + b"x" * (16 * MIB) + b'"'])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(channel.send, [])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert not channel.is_unfinished
    await peer.stream.aclose()


async def test_what_the_system_has_no_room_for_goes_before_all_else(raw, nursery):
    peer, channel = await raw()
    large = b'"' + b"x" * (16 * MIB) + b'"'
    assert channel.send_nowait([large, FRAME]) == 1
    assert channel.is_unfinished
    assert channel.send_nowait([FRAME]) == 0
    nursery.start_soon(channel.send, [])
    nursery.start_soon(peer.frame, PING, b"meanwhile")
    nursery.start_soon(channel.send, [FRAME])
    text, pongs = "", 0
    while not text.endswith(FRAME.decode()) or not pongs:
        event = await peer.event()
        text += getattr(event, "data", "")
        pongs += hasattr(event, "payload")
    assert text == large.decode() + FRAME.decode()
    assert not channel.is_unfinished
    await peer.stream.aclose()


async def test_a_close_finishes_what_was_begun(raw, nursery):
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
        channel.send_nowait([FRAME])
    await peer.stream.aclose()


async def test_nothing_is_sent_at_once_to_a_peer_that_is_gone(raw):
    peer, channel = await raw()
    await peer.frame(CLOSE, (1011).to_bytes(2, "big"))
    with pytest.raises(OutcomeUnknown):
        await channel.receive()
    with pytest.raises(OutcomeUnknown):
        channel.send_nowait([FRAME])
    await peer.stream.aclose()


async def test_a_frame_that_is_no_text_is_rejected(make_pair):
    ours, theirs = await make_pair()
    with pytest.raises(ValueError, match="utf-8"):
        await ours.send([b"\xff"])
    await ours.send([FRAME])
    assert await theirs.receive() == [FRAME]
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
        nursery.start_soon(channel.send, [FRAME] * 5000)
        for number in range(200):
            await peer.frame(PING, b"%d" % number)
        text, pongs = "", 0
        while len(text) < 5000 * len(FRAME) or pongs < 200:
            event = await peer.event()
            text += getattr(event, "data", "")
            pongs += hasattr(event, "payload")
    assert text == FRAME.decode() * 5000
    await peer.stream.aclose()


# A client and what it may meet


@pytest.fixture
def meets(nursery):
    """A server that does with each connection what it is told."""

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


async def test_a_server_that_says_nothing_is_waited_for_in_bounded_time(meets, autojump_clock):
    url = await meets(answers(b""))
    with pytest.raises(ConnectionLost, match=r"10 s \(limits\.http\.headers_seconds"):
        await open_websocket_channel(url)


async def test_an_opening_that_is_cancelled_leaves_nothing(meets):
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
