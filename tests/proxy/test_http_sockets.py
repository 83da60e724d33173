"""A proxy over real sockets: our client before it, our server behind it, and what is made of that."""

import ssl
from contextlib import asynccontextmanager
from functools import partial

import attrs
import httpx2
import pytest
import trio

from mcp_trio import Client, Context, Limits, Server
from mcp_trio._proxy.http import ListenOptions, OpenRecordings, serve_http_proxy
from mcp_trio._proxy.journal import start_message_journal
from mcp_trio._transports.http_client_requests import Link, client_for
from mcp_trio.recording import run_inputs
from mcp_trio.testing import mock_server

ERAS = {"legacy": ("2025-11-25",), "stateless": ("2026-07-28",)}


def harbour(ended=None):
    server = Server("harbour", version="1")

    @server.tool
    async def tide(port: str, *, ctx: Context) -> str:
        await ctx.warning(f"asked for {port}")
        answer = await ctx.elicit("Which unit?", Unit)
        return f"3 {answer.data.unit} at {port}"

    @server.tool
    async def wait(*, ctx: Context) -> str:
        await ctx.warning("waiting")
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    return server


@attrs.frozen
class Unit:
    unit: str


@asynccontextmanager
async def proxy_to(url, folder, *, http=None):
    """The URL that stands for the server's."""
    limits = Limits()
    parsed = httpx2.URL(url)
    link = Link(http=http or client_for(parsed), url=parsed, headers={}, limits=limits)
    start = partial(
        start_message_journal, folder, transport="http", name=parsed.host, limits=limits
    )
    recordings = OpenRecordings(start=start, limits=limits)
    async with link.http, trio.open_nursery() as nursery:
        yield await nursery.start(serve_http_proxy, ListenOptions(), link, recordings)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def serving(served, **options):
    async with trio.open_nursery() as nursery:
        serve = partial(served.serve_http, port=0, **options)
        yield await nursery.start(lambda task_status: serve(task_status=task_status))
        nursery.cancel_scope.cancel()


async def converse(url, protocol_versions):
    async with Client(
        url, protocol_versions=protocol_versions, elicitation=lambda _: {"unit": "m"}
    ) as client:
        results = [await client.call_tool("tide", {"port": port}) for port in ("Oslo", "Rome")]
        await client.list_tools()
    return [result.content[0].text for result in results]


@pytest.mark.parametrize("era", ERAS)
async def test_what_was_recorded_can_be_mocked_and_asked_again(tmp_path, recorded, era):
    async with serving(harbour()) as url:
        async with proxy_to(url, tmp_path) as proxied:
            said = await converse(proxied, ERAS[era])
        assert said == ["3 m at Oslo", "3 m at Rome"]
        (file,) = tmp_path.iterdir()
        session = recorded(file)
        assert session.counts["malformed"] == 0
        assert session.kinds()[-2:] == ["shut", "end"]
        report = await run_inputs(file, harbour())
        assert report.is_same, report.differences
    mock = mock_server(file)
    assert await converse(mock, ERAS[era]) == said
    assert mock.unrecorded == ()


async def test_a_stateless_client_that_goes_away_cancels_at_the_server(tmp_path):
    begun, ended = trio.Event(), trio.Event()
    async with (
        serving(harbour(ended)) as url,
        proxy_to(url, tmp_path) as proxied,
        Client(proxied, log=lambda _: begun.set()) as client,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "wait")
            with trio.fail_after(10):
                await begun.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(10):
            await ended.wait()


async def test_a_server_behind_tls_is_reached_by_the_given_client(tmp_path, certificate):
    trusting = httpx2.AsyncClient(
        verify=ssl.create_default_context(cafile=certificate["certfile"]), timeout=None
    )
    async with serving(harbour(), server="hypercorn", **certificate) as url:
        assert url.startswith("https://")
        async with proxy_to(url, tmp_path, http=trusting) as proxied:
            assert (await converse(proxied, ERAS["stateless"]))[0] == "3 m at Oslo"
        async with proxy_to(url, tmp_path) as proxied, httpx2.AsyncClient() as client:
            answered = await client.post(proxied, json={"jsonrpc": "2.0", "id": 1, "method": "x"})
            assert answered.status_code == 502
            assert "certificate" in answered.json()["error"]["message"]


async def test_a_server_that_is_not_there_is_a_502_and_later_it_is(tmp_path):
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    message = {"jsonrpc": "2.0", "id": 7, "method": "x"}
    async with proxy_to(f"http://127.0.0.1:{port}/mcp", tmp_path) as proxied:
        async with httpx2.AsyncClient() as client:
            answered = await client.post(proxied, json=message)
        assert (answered.status_code, answered.json()["id"]) == (502, 7)
        assert f"http://127.0.0.1:{port}/mcp" in answered.json()["error"]["message"]
        serve = partial(harbour().serve_http, port=port)
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: serve(task_status=task_status))
            assert (await converse(proxied, ERAS["legacy"]))[1] == "3 m at Rome"
            nursery.cancel_scope.cancel()
