"""How sessions through a bridge end: each side's end is the other's, with words where there are."""

import sys
from contextlib import asynccontextmanager

import pytest
import trio

from mcp_trio import Client, ConnectionLost, Limits, RequestError, Server
from mcp_trio._proxy.bridge import Downstream, Upstream, bridge_application
from mcp_trio.limits import RequestLimits
from mcp_trio.transports import open_websocket_channel
from tests.proxy.bridged import bridged
from tests.server.watched import watched
from tests.ways import CONNECTIONS, opened, sent_away, served

pytestmark = [pytest.mark.real_time, pytest.mark.slow]

HARBOUR = """
import os, sys
from pathlib import Path
from mcp_trio import Server

server = Server("harbour")

@server.tool
async def who() -> str:
    return str(os.getpid())

@server.tool
async def crash() -> str:
    os._exit(7)

server.run()
Path(sys.argv[1]).write_text("done")
"""
SECONDS = 20


@pytest.fixture
def harbour(tmp_path):
    (tmp_path / "harbour.py").write_text(HARBOUR)
    return [sys.executable, str(tmp_path / "harbour.py"), str(tmp_path / "done")]


@pytest.fixture
def sites(tmp_path, all_in):
    """Opens a bridge; gives its URL, and reads what it recorded."""
    folder = tmp_path / "recorded"
    folder.mkdir()

    @asynccontextmanager
    async def bridge(direction, target, **limits):
        with trio.fail_after(SECONDS):
            async with bridged(direction, target, tmp_path, record=folder, **limits) as url:
                yield url

    bridge.recorded = lambda: all_in(folder)
    return bridge


async def text_of(client, tool):
    return (await client.call_tool(tool)).content[0].text


async def until(condition):
    while not condition():
        await trio.sleep(0.01)


@pytest.mark.parametrize("direction", CONNECTIONS)
async def test_each_client_has_a_server_of_its_own_and_takes_it_along(
    sites, harbour, tmp_path, direction
):
    async with sites(direction, harbour) as url:
        async with Client(url) as one, Client(url) as other:
            assert await text_of(one, "who") != await text_of(other, "who")
        await until((tmp_path / "done").exists)
        await until(lambda: all(each.kinds()[-1] == "end" for each in sites.recorded()))
    assert [each.cause for each in sites.recorded()] == ["eof", "eof"]
    assert [each.marks()["exited"] for each in sites.recorded()] == [0, 0]


@pytest.mark.parametrize("direction", CONNECTIONS)
async def test_a_server_that_dies_is_lost_to_its_client(sites, harbour, caplog, direction):
    async with sites(direction, harbour) as url:
        words = "exited with status 7" if direction == "websocket" else None
        async with Client(url) as client, Client(url) as other:
            with pytest.raises(ConnectionLost, match=words):
                await client.call_tool("crash")
            assert await text_of(other, "who")
    assert "exited with status 7" in caplog.text
    dead, _ = sites.recorded()
    assert (dead.cause, dead.marks()["exited"]) == ("lost", 7)


@pytest.mark.parametrize("direction", CONNECTIONS)
async def test_who_asks_nothing_is_sent_away_and_who_has_asked_stays(sites, direction, mock_clock):
    async with (
        served(watched("there"), "tcp") as (there, _scope),
        sites(direction, there, requests=RequestLimits(first_request_seconds=2)) as url,
        Client(url) as busy,
    ):
        await sent_away(await opened(url), mock_clock, 2)
        assert len(await busy.list_tools()) == 1


async def test_a_bridge_from_http_has_no_other_transport_beside_it(sites, harbour):
    async with sites("http", harbour) as url:
        with pytest.raises(ConnectionLost, match="HTTP 404"):
            await open_websocket_channel(url.replace("http:", "ws:").replace("/here", "/ws"))


@pytest.mark.parametrize("direction", CONNECTIONS)
async def test_a_server_that_cannot_be_had_is_lost_to_its_client(sites, caplog, direction):
    async with sites(direction, "unix:/no/such/socket") as url:
        words = "cannot connect to unix:/no/such/socket" if direction == "websocket" else None
        with pytest.raises(ConnectionLost, match=words):
            async with Client(url, protocol_versions=["2025-11-25"]):
                pass
    assert "cannot connect to unix:/no/such/socket" in caplog.text
    assert [each.cause for each in sites.recorded()] == ["lost"]


async def test_a_server_of_one_connection_that_goes_fails_what_is_asked_over_http(sites):
    server = Server("there")
    stop = trio.CancelScope()

    @server.tool
    async def leave() -> str:
        stop.cancel()
        await trio.sleep_forever()

    async def serve(*, task_status):
        with stop:
            await server.serve_tcp(port=0, task_status=task_status)

    async with (
        trio.open_nursery() as nursery,
        sites("http", await nursery.start(serve)) as url,
        Client(url, protocol_versions=["2026-07-28"]) as client,
    ):
        with pytest.raises(RequestError, match="the server has closed the connection"):
            await client.call_tool("leave")
        with pytest.raises(RequestError, match="cannot connect to tcp://"):
            await client.call_tool("leave")


async def test_a_bridge_that_stops_says_so_and_ends_its_processes(sites, harbour):
    async with sites("websocket", harbour) as url:
        channel = await open_websocket_channel(url)
        await until(sites.recorded)
    assert await channel.receive() == []  # close code 1001
    await channel.aclose()
    (session,) = sites.recorded()
    assert session.cause == "closed"
    assert "exited" in session.marks()


def test_of_processes_there_are_only_so_many(harbour):
    application = bridge_application(
        Downstream(kind="tcp"), Upstream(target=harbour), start=print, limits=Limits()
    )
    assert application.limits.http.connections_max == application.limits.http.sessions_max == 100
    application = bridge_application(
        Downstream(kind="http"), Upstream(target=harbour), start=print, limits=Limits()
    )
    assert application.limits.http.connections_max == Limits().http.connections_max
