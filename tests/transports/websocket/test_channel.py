"""A channel over a socket of messages that is nobody's library."""

import contextlib

import attrs
import pytest
import trio

from mcp_trio import ConnectionLost, Limits
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._transports.websocket import SocketEnded, begin_channel
from mcp_trio.limits import MessageLimits, ShutdownLimits
from mcp_trio.testing import check_channel
from mcp_trio.transports import Oversized, open_websocket_channel

LIMITS = Limits(
    messages=MessageLimits(bytes_max=2 * 1024 * 1024), shutdown=ShutdownLimits(close_seconds=0.3)
)
FRAME = b'{"jsonrpc":"2.0","method":"check"}'


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
            raise SocketEnded(CloseCode.NORMAL_CLOSURE) from None
        too_large = len(frame) > LIMITS.messages.bytes_max
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
    channels = [await begin_channel(opening(each), name="it", limits=LIMITS) for each in sockets]
    return *channels, *sockets


@pytest.mark.real_time
async def test_a_channel_over_any_socket_keeps_the_contract():
    async def make_pair():
        return (await pair())[:2]

    await check_channel(make_pair, limits=LIMITS)


async def test_an_unexpected_error_is_contained_and_reported(autojump_clock, caplog):
    ours, theirs, socket, _ = await pair(fault=ValueError("a defect"))
    with pytest.raises(ConnectionLost, match="the connection to it failed"):
        await ours.receive()
    with pytest.raises(ConnectionLost, match="the connection to it failed"):
        await ours.send([FRAME])
    assert "the WebSocket channel failed" in caplog.text
    assert socket.closed_with is None
    assert await theirs.receive() == []
    for channel in (ours, theirs):
        await channel.aclose()


async def test_a_socket_whose_peer_is_gone_is_pinged_no_more(autojump_clock):
    ours, theirs, socket, _ = await pair(fault=trio.BrokenResourceError())
    await trio.sleep(1000)
    await theirs.send([FRAME])
    assert await ours.receive() == [FRAME]
    for channel in (ours, theirs):
        await channel.aclose()
    assert socket.closed_with == CloseCode.NORMAL_CLOSURE


async def test_the_first_cause_of_the_end_is_reported(autojump_clock):
    ours, theirs, *_ = await pair()
    await theirs.aclose()
    assert await ours.receive() == []
    ours.fail(ConnectionLost("too late"), CloseCode.INTERNAL_ERROR)
    assert await ours.receive() == []
    await ours.aclose()


async def test_a_server_that_stops_says_so_once(autojump_clock):
    ours, theirs, socket, _ = await pair()
    ours.mark_going_away()
    await ours.aclose()
    assert socket.closed_with == CloseCode.GOING_AWAY
    await theirs.aclose()


async def test_an_error_is_reported_although_the_server_is_stopping(autojump_clock):
    ours, theirs, socket, _ = await pair()
    ours.fail(ConnectionLost("silent"), CloseCode.INTERNAL_ERROR)
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
