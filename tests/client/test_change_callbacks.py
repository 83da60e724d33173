"""Callbacks for changes at stateless and legacy servers."""

import pytest
import trio
import trio.testing

from mcp_trio import Client, ResourceNotFound, Server
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError
from tests.client.conftest import nothing

STATELESS = "2026-07-28"


def stateless(target, **options):
    return Client(target, protocol_versions=[STATELESS], **options)


@pytest.mark.requirement("TOOL-36", "RES-14", "RES-15", "PROM-12")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_callbacks_get_changes_of_stateless_and_legacy_servers(server, protocol_version):
    heard = []
    async with Client(
        server,
        protocol_versions=[protocol_version],
        list_changed=heard.append,
        resource_updated=lambda params: heard.append(params.uri),
    ) as client:
        await client.subscribe("harbour://oslo")
        await client.subscribe("harbour://lima")
        await client.unsubscribe("harbour://oslo")
        await client.unsubscribe("harbour://none")
        server.tool(nothing)
        for port in ("oslo", "lima"):
            server.resource_updated(f"harbour://{port}")
        await trio.testing.wait_all_tasks_blocked()
        assert heard == ["tools", "harbour://lima"]
        await client.unsubscribe("harbour://lima")
        server.resource_updated("harbour://lima")
        await trio.testing.wait_all_tasks_blocked()
    assert heard == ["tools", "harbour://lima"]


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_callback_may_subscribe(server, protocol_version):
    heard = []

    async def changed(kind):
        await client.subscribe(f"harbour://{kind}")
        heard.append(kind)

    async with Client(server, protocol_versions=[protocol_version], list_changed=changed) as client:
        server.tool(nothing)
        await trio.testing.wait_all_tasks_blocked()
    assert heard == ["tools"]


async def test_subscribing_to_an_unacknowledged_resource_raises_not_found(server):
    async with stateless(server) as client:
        await client.subscribe("harbour://oslo")
        with pytest.raises(ResourceNotFound, match="none:1") as caught:
            await client.subscribe("none:1")
        assert caught.value.data == {"uri": "none:1"}
        await trio.testing.wait_all_tasks_blocked()
        (listener,) = [it for it in server._change_notifier._listeners if hasattr(it, "honoured")]
        assert listener.uris == ["harbour://oslo"]


async def test_a_server_without_subscriptions_gets_no_subscribe_request():
    async with stateless(Server("harbour")) as client:
        with pytest.raises(LocalProtocolError, match=r"resources\.subscribe"):
            await client.subscribe("x:1")


@pytest.mark.requirement("SUB-17", "STDIO-21")
async def test_a_restarted_server_is_subscribed_to_again(server):
    heard = []
    async with Client(
        server,
        protocol_versions=[STATELESS],
        restart=True,
        list_changed=heard.append,
        resource_updated=lambda params: heard.append(params.uri),
    ) as client:
        await client.subscribe("harbour://oslo")
        client._session.shut("lost")
        await client.list_tools()
        server.tool(nothing)
        server.resource_updated("harbour://oslo")
        await trio.testing.wait_all_tasks_blocked()
    assert heard == ["tools", "harbour://oslo"]


@pytest.mark.requirement("SUB-18", "TRAP-108")
async def test_the_start_of_a_subscription_empties_the_cache():
    server = Server("harbour", offers={"tools"}, list_ttl_seconds=1000)
    async with stateless(server) as client:
        assert await client.list_tools() == []
        server.tool(nothing)
        assert await client.list_tools() == []  # cached, without a notification
        async with client.listen(tools=True):
            assert len(await client.list_tools()) == 1
            server.tool(name="another")(nothing)
            await trio.testing.wait_all_tasks_blocked()
            assert len(await client.list_tools()) == 2
