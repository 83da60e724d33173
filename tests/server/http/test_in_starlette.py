"""Our application mounted in Starlette's, under hypercorn on Trio."""

import httpx
import pytest
import trio
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from mcp_trio._client.client import Client
from mcp_trio._server.server import Server
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio._transports.websocket_client import open_websocket_channel
from mcp_trio.errors import ConnectionLost

LEGACY, MODERN = "2025-11-25", "2026-07-28"


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


@pytest.mark.parametrize("revision", [LEGACY, MODERN])
@pytest.mark.parametrize("place", ["ws://{}/deep/down/ws", "http://{}/deep/down/mcp"])
async def test_a_mounted_application_serves_both_transports_and_eras(site, place, revision):
    async with Client(place.format(site), revisions=[revision]) as client:
        assert client.revision == revision
        assert (await client.call_tool("tide")).content[0].text == "high"


async def test_what_is_beside_it_stays_the_applications(site):
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"http://{site}/")).text == "home"
    with pytest.raises(ConnectionLost, match=r"HTTP 40[34]"):
        await open_websocket_channel(f"ws://{site}/ws")


async def test_a_page_of_another_origin_is_refused_there_too(site):
    with pytest.raises(ConnectionLost, match="403"):
        await open_websocket_channel(
            f"ws://{site}/deep/down/ws", headers={"Origin": "https://evil.example"}
        )
