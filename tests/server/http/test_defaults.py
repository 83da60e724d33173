"""What a server over HTTP is, if nobody says otherwise."""

import inspect

import pytest
import trio

from mcp_trio import Context, Server
from mcp_trio._server.http_serve import Address
from tests.server.http.conftest import request


@pytest.mark.requirement("SEC-08", "HTTP-04", "MHTTP-07", "SSE-06")
def test_a_server_is_reached_by_stdio_or_from_its_own_machine_only():
    assert inspect.signature(Server.run).parameters["transport"].default == "stdio"
    assert inspect.signature(Server.serve_http).parameters["host"].default == "127.0.0.1"
    assert Address().host == "127.0.0.1"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"server": "apache"}, "native or hypercorn"),
        ({"keyfile": "a.key"}, "certfile="),
    ],
)
async def test_invalid_options_are_rejected(options, text):
    with pytest.raises(ValueError, match=text):
        await Server("x").serve_http(port=0, **options)


async def test_a_taken_address_is_an_error(nursery):
    server = Server("x")
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        await server.serve_http(port=listener.socket.getsockname()[1])
    await listener.aclose()


@pytest.mark.requirement("HTTP-57", "TRAP-35", "TRAP-36")
@pytest.mark.parametrize("protocol_version", ["2025-06-18", "2025-11-25"])
async def test_a_session_knows_its_protocol_version_without_the_head(
    open_site, protocol_version, autojump_clock
):
    server = Server("x")

    @server.tool
    async def spoken(*, ctx: Context) -> str:
        return ctx.protocol_version

    client = await (await open_site(server)).open(protocol_version)
    ask = request("tools/call", {"name": "spoken", "arguments": {}})
    answer = await client.ask(ask, MCP_Protocol_Version=None)
    assert answer.json["result"]["content"] == [{"type": "text", "text": protocol_version}]
