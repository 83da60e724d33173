"""Our application mounted in Starlette's, under hypercorn on Trio."""

import httpx2
import pytest
import trio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from mcp_trio import Client, ConnectionLost, Server
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio.transports import open_websocket_channel

LEGACY, STATELESS = "2025-11-25", "2026-07-28"


@pytest.fixture
async def site(nursery):
    """Where Starlette is, with our application under `/deep/down`."""
    server = Server("harbour")

    @server.tool
    async def tide() -> str:
        return "high"

    async def home(_request):
        return PlainTextResponse("home")

    mounted = server.asgi()
    app = Starlette(routes=[Route("/", home), Mount("/deep/down", app=mounted)])
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    await nursery.start(serve_hypercorn, app, listeners)
    yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    await mounted.aclose()
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol_version", [LEGACY, STATELESS])
@pytest.mark.parametrize("place", ["ws://{}/deep/down/ws", "http://{}/deep/down/mcp"])
async def test_a_mounted_application_serves_both_transports_and_eras(site, place, protocol_version):
    async with Client(place.format(site), protocol_versions=[protocol_version]) as client:
        assert client.protocol_version == protocol_version
        assert (await client.call_tool("tide")).content[0].text == "high"


async def test_what_is_beside_it_stays_the_applications(site):
    async with httpx2.AsyncClient() as http:
        assert (await http.get(f"http://{site}/")).text == "home"
    with pytest.raises(ConnectionLost, match=r"HTTP 40[34]"):
        await open_websocket_channel(f"ws://{site}/ws")


async def test_a_page_of_another_origin_is_rejected_there_too(site):
    with pytest.raises(ConnectionLost, match="403"):
        await open_websocket_channel(
            f"ws://{site}/deep/down/ws", headers={"Origin": "https://evil.example"}
        )
