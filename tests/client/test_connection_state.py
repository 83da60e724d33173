"""The state of a client's connection, read or reported to a callback."""

import contextlib

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, RequestTimeout, Server
from tests.transports.http.scripted_server import URL, Forgetful, Legacy, Script, result

LEGACY = ["2025-11-25"]


async def said(seen):
    return result(seen, content=[])


@contextlib.asynccontextmanager
async def asked(answer, **options):
    """A client of a scripted server, not yet connected, and what it was told of its connection."""
    told = []
    async with httpx2.AsyncClient(transport=Script(answer)) as http:
        note = lambda *news: told.append(news)  # noqa: E731
        yield Client(URL, http=http, protocol_versions=LEGACY, state_changed=note, **options), told


def stands(client):
    return client.state, client.state_reason


async def test_the_state_with_a_server_object_is_the_one_last_reported():
    told = []
    client = Client(Server("harbour"), state_changed=lambda *news: told.append(news))
    assert stands(client) == ("connecting", "")
    async with client:
        assert stands(client) == told[-1] == ("open", "")
    assert stands(client) == told[-1] == ("closed", "closed on this side")


async def test_the_state_can_be_read_without_a_callback():
    async with Client(Server("harbour")) as client:
        assert client.state == "open"
        client._session.shut("lost", ConnectionLost("cut"))
        assert stands(client) == ("closed", "cut")


@pytest.mark.parametrize("restart", [False, True])
async def test_a_loss_is_reported_before_the_call_fails(restart, nursery):
    told = []
    server = Server("harbour")
    called = trio.Event()

    @server.tool
    async def leave() -> str:
        called.set()
        await trio.sleep_forever()

    async def sink():
        await called.wait()
        client._session.shut("lost", ConnectionLost("sunk"))

    client = Client(server, restart=restart, state_changed=lambda *news: told.append(news))
    async with client:
        nursery.start_soon(sink)
        with pytest.raises(ConnectionLost, match="sunk"):
            await client.call_tool("leave")
        assert stands(client) == told[-1] == ("retrying" if restart else "closed", "sunk")


async def test_the_state_with_a_url_is_the_one_last_reported_in_each_session():
    server = Forgetful(answers={"tools/call": said})
    async with asked(server) as (client, told), client:
        assert stands(client) == ("open", "")
        server.forget()
        await client.call_tool("add")
        assert stands(client) == told[-1] == ("open", "")
        assert ("closed", "the server has ended the session") in told
    assert stands(client) == told[-1] == ("closed", "closed on this side")


async def test_an_unreachable_server_has_the_state_retrying():
    server, is_away = Legacy(answers={"tools/call": said}), False

    async def answer(seen):
        if is_away:
            raise httpx2.ConnectError("rejected")
        return await server(seen)

    async with asked(answer) as (client, told), client:
        is_away = True
        with pytest.raises(ConnectionLost, match="rejected"):
            await client.call_tool("add")
        assert stands(client) == told[-1]
        assert client.state == "retrying"
        assert "rejected" in client.state_reason
        is_away = False
        await client.call_tool("add")
        assert stands(client) == ("open", "")


@pytest.mark.parametrize("url", [URL, "http://user:secret@mcp.test/mcp?token=secret"])
async def test_the_timeout_error_names_the_server_without_secrets(autojump_clock, url):
    async def answer(_seen):
        await trio.sleep_forever()

    async with httpx2.AsyncClient(transport=Script(answer)) as http:
        client = Client(url, http=http, protocol_versions=LEGACY)
        with pytest.raises(RequestTimeout) as caught:
            await client.__aenter__()
    assert caught.value.server.endswith("mcp.test/mcp")
    assert f"no answer from {caught.value.server} within" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert stands(client) == ("closed", str(caught.value))


async def test_a_client_that_could_not_connect_has_a_state_reason():
    client = Client("http://")
    with pytest.raises(ValueError, match="begins with http://") as caught:
        await client.__aenter__()
    assert stands(client) == ("closed", str(caught.value))
