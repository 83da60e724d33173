"""A peer that takes long to read one large message, and can say nothing meanwhile, is not lost."""

import functools
import socket

import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._transports.asgi import AsgiHost
from mcp_trio._transports.http_server import serve_native
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio._transports.websocket import accepted
from mcp_trio.limits import ShutdownLimits, WebSocketLimits
from tests.transports.websocket.conftest import raw_peer

LIMITS = Limits(
    websocket=WebSocketLimits(ping_interval_seconds=0.3, pong_seconds=0.3),
    shutdown=ShutdownLimits(close_seconds=0.1),
)
BUFFER_BYTES = 2**16  # or the system would take all of it at once
SIZE = 2**21
READING_SECONDS = 1.5


async def nobody(_exchange):
    raise AssertionError("everybody asks for a WebSocket here")


def on_hypercorn(upgraded, listeners):
    app = AsgiHost(nobody, upgraded=upgraded, limits=LIMITS)
    return functools.partial(serve_hypercorn, app, listeners, limits=LIMITS)


def on_native(upgraded, listeners):
    return functools.partial(serve_native, nobody, listeners, limits=LIMITS, upgraded=upgraded)


@pytest.mark.real_time
@pytest.mark.parametrize("host", [on_hypercorn, on_native])
async def test_a_peer_that_reads_slowly_but_steadily_gets_all_messages(nursery, host):
    arrived, arrivals = trio.open_memory_channel(1)

    async def upgraded(upgrade):
        channel = await accepted(upgrade, upgrade.head, LIMITS)
        await arrived.send(channel)
        await channel.wait_left()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    listeners[0].socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    await nursery.start(host(upgraded, listeners))
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
