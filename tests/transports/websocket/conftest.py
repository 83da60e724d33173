"""Pairs of channels over a WebSocket, and connections of the library as their peers."""

import functools
import struct

import attrs
import pytest
import trio
import trio.testing
import wsproto
from wsproto import events

from mcp_trio import Limits
from mcp_trio._transports.http1 import parse_request
from mcp_trio._transports.http_response import shares_of_bodies
from mcp_trio._transports.http_server import serve_websocket
from mcp_trio._transports.trio_websocket import StreamUpgrade
from mcp_trio._transports.websocket import accept_websocket
from mcp_trio.limits import MIB, MessageLimits, ShutdownLimits
from mcp_trio.transports import open_websocket_channel
from tests.transports.http.conftest import certificate

__all__ = ["certificate"]

LIMITS = Limits(
    messages=MessageLimits(bytes_max=2 * MIB), shutdown=ShutdownLimits(close_seconds=0.3)
)


async def admit_all(request):
    return request


def handing_over(arrived, limits):
    """Put the channel of an upgrade into a queue, whose reader closes it."""

    async def serve_upgrade(upgrade):
        channel = await accept_websocket(upgrade, upgrade.request, limits)
        await arrived.send(channel)
        await channel.wait_ended()

    return serve_upgrade


@pytest.fixture
def served(nursery):
    """A function that starts a server: it returns the URL, and a queue of the channels."""

    async def served(*, limits=LIMITS, admit=admit_all):
        arrived, arrivals = trio.open_memory_channel(1000)

        async def handle(channel):
            await arrived.send(channel)
            await trio.sleep_forever()

        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        serve = functools.partial(serve_websocket, admit=admit, handle=handle, limits=limits)
        await nursery.start(serve, listeners)
        port = listeners[0].socket.getsockname()[1]
        return f"ws://127.0.0.1:{port}/ws", arrivals

    return served


@pytest.fixture
def make_pair(served):
    """Two ends of one connection, over a real socket."""
    server = None

    async def make_pair():
        nonlocal server
        if server is None:
            server = await served()
        url, arrivals = server
        ours = await open_websocket_channel(url, limits=LIMITS)
        return ours, await arrivals.receive()

    return make_pair


@attrs.define(eq=False)
class RawPeer:
    """A client that sends any bytes, and reads with wsproto."""

    stream: trio.abc.Stream
    protocol: wsproto.WSConnection = attrs.field(
        factory=lambda: wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    )

    async def shake_hands(self, *, subprotocols=("mcp",)):
        request = events.Request(host="127.0.0.1", target="/ws", subprotocols=list(subprotocols))
        await self.stream.send_all(self.protocol.send(request))
        return await self.event()

    async def event(self):
        """Return the next event; None at the end of the connection."""
        while True:
            for event in self.protocol.events():
                return event
            data = await self.stream.receive_some()
            if not data:
                return None
            self.protocol.receive_data(data)

    async def closed(self):
        """Return the code of the next close frame; None if the connection ends without one."""
        while (event := await self.event()) is not None:
            if isinstance(event, events.CloseConnection):
                return event.code
        return None

    async def frame(self, opcode, payload=b"", *, is_last=True):
        """Send one masked frame with any opcode."""
        size = len(payload)
        length = next(
            struct.pack(form, 0x80 | mark, *rest)
            for size_max, form, mark, rest in (
                (125, "!B", size, []),
                (0xFFFF, "!BH", 126, [size]),
                (size, "!BQ", 127, [size]),
            )
            if size <= size_max
        )
        header = struct.pack("!B", (0x80 if is_last else 0) | opcode)
        await self.stream.send_all(header + length + bytes(4) + payload)


async def raw_peer(url):
    """A connected client that has sent nothing."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    return RawPeer(await trio.open_tcp_stream("127.0.0.1", port))


async def close_at_the_end(channel):
    try:
        await trio.sleep_forever()
    finally:
        await channel.aclose()


@pytest.fixture
def in_memory(nursery):
    """A raw peer, and the server's channel with it, over streams in memory."""

    async def in_memory(*, limits=LIMITS):
        ours, theirs = trio.testing.memory_stream_pair()
        peer = RawPeer(ours)
        nursery.start_soon(peer.shake_hands)
        handshake = bytes(await theirs.receive_some())
        request = parse_request(handshake, None).request
        bodies = shares_of_bodies(limits)
        upgrade = StreamUpgrade(
            stream=theirs, request=request, encoded=handshake, limits=limits, bodies=bodies
        )
        channel = await accept_websocket(upgrade, request, limits)
        nursery.start_soon(close_at_the_end, channel)
        await trio.testing.wait_all_tasks_blocked()
        return peer, channel

    return in_memory


@pytest.fixture
def raw(served):
    """A raw peer, and the server's channel with it, over a real socket."""

    async def raw(**options):
        url, arrivals = await served(**options)
        peer = await raw_peer(url)
        peers.append(peer)
        await peer.shake_hands()
        return peer, await arrivals.receive()

    peers = []
    yield raw
    for peer in peers:
        peer.stream.socket.close()
