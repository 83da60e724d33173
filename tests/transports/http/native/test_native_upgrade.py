"""Connections of the native listener that become WebSockets."""

import functools

import pytest
import trio
import trio.testing
from wsproto import events

from mcp_trio import Limits
from mcp_trio._protocol.http_requests import Rejection
from mcp_trio._transports.http_server import serve_native
from mcp_trio._transports.socket_bytes import SocketEnds, Wire, WireStream
from mcp_trio.limits import HttpLimits, ShutdownLimits
from tests.transports.websocket.conftest import RawPeer, handing_over

LIMITS = Limits(shutdown=ShutdownLimits(close_seconds=0.3), http=HttpLimits(idle_seconds=2))
FRAME = b'{"jsonrpc":"2.0","method":"check"}'
ASKS = (
    b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


async def hello(exchange):
    await exchange.answer(200, [], b"hello")


@pytest.fixture
def connect(nursery):
    """A stream to a listener, and the channels that arrive there."""

    async def connect(upgraded=None):
        arrived, arrivals = trio.open_memory_channel(1)
        upgraded = upgraded or handing_over(arrived, LIMITS)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        serve = functools.partial(serve_native, hello, listeners, limits=LIMITS, upgraded=upgraded)
        await nursery.start(serve)
        return await trio.testing.open_stream_to_socket_listener(listeners[0]), arrivals

    return connect


async def test_a_websocket_may_follow_other_requests_and_loses_no_data(connect):
    stream, arrivals = await connect()
    async with stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await stream.receive_some()).endswith(b"hello")
        await stream.send_all(ASKS + b"\r\n" + b"\x81\x82\0\0\0\0{}")
        channel = await arrivals.receive()
        assert await channel.receive() == [b"{}"]
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")
        await channel.aclose()


async def test_an_open_websocket_is_not_idle(connect, mock_clock):
    stream, arrivals = await connect()
    async with stream:
        peer = RawPeer(stream)
        await peer.shake_hands()
        channel = await arrivals.receive()
        await trio.testing.wait_all_tasks_blocked(0.01)
        mock_clock.jump(3 * LIMITS.http.idle_seconds)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await channel.send([FRAME])
        event = await peer.event()
        assert isinstance(event, events.TextMessage)
        await peer.frame(0x8, (1000).to_bytes(2, "big"))
        assert await channel.receive() == []
        await channel.aclose()


async def test_a_handshake_with_a_body_is_rejected(connect):
    stream, _arrivals = await connect()
    async with stream:
        await stream.send_all(ASKS + b"Content-Length: 2\r\n\r\n{}")
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 400 ")


async def test_a_rejection_is_the_last_answer_of_its_connection(connect):
    async def reject(upgrade):
        await upgrade.reject(Rejection(status=403, text="no"))

    stream, _arrivals = await connect(reject)
    async with stream:
        await stream.send_all(ASKS + b"\r\n")
        await stream.send_all(b"more")
        answer = b""
        while chunk := await stream.receive_some():
            answer += chunk
        assert answer.startswith(b"HTTP/1.1 403 ")
        assert b"connection: close" in answer


@pytest.mark.parametrize(
    ("error", "is_logged"), [(ValueError, True), (trio.BrokenResourceError, False)]
)
async def test_what_the_application_raises_ends_the_connection(connect, caplog, error, is_logged):
    async def fail(_upgrade):
        raise error("ouch")

    stream, _arrivals = await connect(fail)
    async with stream:
        await stream.send_all(ASKS + b"\r\n")
        assert await stream.receive_some() == b""
    assert ("a WebSocket connection failed" in caplog.text) is is_logged


async def test_a_wire_stream_sends_receives_and_ends():
    ours, theirs = trio.socket.socketpair()
    wire = Wire(ends=SocketEnds(fd=theirs.detach()), limits=LIMITS)
    stream, peer = WireStream(wire), trio.SocketStream(ours)
    await stream.wait_send_all_might_not_block()
    with trio.testing.assert_checkpoints():
        await stream.send_all(memoryview(b"hello"))
    assert await peer.receive_some() == b"hello"
    await peer.send_all(b"back")
    assert [await stream.receive_some(3), await stream.receive_some()] == [b"bac", b"k"]
    await stream.send_eof()
    assert await peer.receive_some() == b""
    async with trio.open_nursery() as nursery:

        async def receive():
            with pytest.raises(trio.ClosedResourceError):
                await stream.receive_some()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
    await stream.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await stream.send_all(b"more")
    assert await stream.receive_some() == b""
    await peer.aclose()
