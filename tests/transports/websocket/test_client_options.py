"""Options of a WebSocket client that are checked before anything is connected."""

import pytest
import trio

from mcp_trio import ConnectionLost
from mcp_trio._transports import websocket_client as client
from mcp_trio.transports import open_websocket_channel


@pytest.fixture
async def nowhere():
    """A port at which nobody listens."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    return f"127.0.0.1:{port}"


@pytest.mark.parametrize("headers", [{"X-Two": "lines\r\nX-Three: 3"}, {"not a name": "x"}])
async def test_invalid_headers_are_rejected_before_connecting(nowhere, headers):
    with pytest.raises(ValueError, match=r"name of a header|of the header"):
        await open_websocket_channel(f"ws://{nowhere}", headers=headers)


async def test_the_systems_certificates_are_read_once(nowhere):
    client._trusted_by_system.cache_clear()
    for _ in range(3):
        with pytest.raises(ConnectionLost):
            await open_websocket_channel(f"wss://{nowhere}")
    assert client._trusted_by_system.cache_info().misses == 1
