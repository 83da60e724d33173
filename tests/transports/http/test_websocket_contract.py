"""A WebSocket through each HTTP host keeps the contract of a channel, over real sockets."""

import functools

import pytest
import trio

from mcp_trio._limits import MIB, Limits
from mcp_trio._testing import channel_contract
from mcp_trio._transports.http.asgi import AsgiHost
from mcp_trio._transports.http.hypercorn_host import serve_hypercorn
from mcp_trio._transports.http.native import serve_native
from mcp_trio._transports.websocket.client import open_websocket_channel
from mcp_trio._transports.websocket.upgrade import accepted
from mcp_trio.testing import CHANNEL_CHECKS, check_channel_for

SECONDS = 60.0
LIMITS = Limits(frame_bytes_max=2 * MIB, close_seconds=0.3)


async def nobody(_exchange):
    raise AssertionError("everybody asks for a WebSocket here")


def hypercorn(upgraded, listeners, **options):
    app = AsgiHost(nobody, upgraded=upgraded, limits=LIMITS)
    return serve_hypercorn(app, listeners, limits=LIMITS, **options)


def native(upgraded, listeners, **options):
    return serve_native(nobody, listeners, upgraded=upgraded, limits=LIMITS, **options)


HOSTS = {"hypercorn": hypercorn, "native": native}


@pytest.fixture
def make_pair(nursery, request):
    """Two ends of one connection, of which the server's is held by the host."""
    arrived, arrivals = trio.open_memory_channel(10)
    site = None

    async def upgraded(upgrade):
        channel = await accepted(upgrade, upgrade.head, LIMITS)
        await arrived.send(channel)
        await channel._left.wait()

    async def make_pair():
        nonlocal site
        if site is None:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            await nursery.start(functools.partial(HOSTS[request.param], upgraded, listeners))
            site = f"ws://127.0.0.1:{listeners[0].socket.getsockname()[1]}/ws"
        ours = await open_websocket_channel(site, limits=LIMITS)
        return ours, await arrivals.receive()

    return make_pair


@pytest.mark.real_time
@pytest.mark.requirement("TRAN-01", "TRAN-02")
@pytest.mark.parametrize("make_pair", HOSTS, indirect=True)
@pytest.mark.parametrize("check", CHANNEL_CHECKS)
async def test_a_websocket_through_a_host_keeps_the_contract(make_pair, check, monkeypatch):
    # Hypercorn switches tasks several times for each of 20,000 messages.
    monkeypatch.setattr(channel_contract, "PATIENCE_SECONDS", SECONDS)
    await check_channel_for(check, make_pair, limits=LIMITS)
