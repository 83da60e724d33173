"""Callbacks of a client for its server's requests and notifications."""

import pytest
import trio
import trio.testing

from mcp_trio import Client
from mcp_trio import types as t
from tests.client.conftest import OLD, connected, said, text

MESSAGE = t.LoggingMessageParams(level="info", data={"sea": "calm"}, logger="weather")


@pytest.fixture
def talkative(bench):
    bench.protocol_versions = OLD  # no subscription is needed

    @bench.tool
    async def tell(handling):
        await handling.notify("notifications/message", MESSAGE)
        await handling.notify(
            "notifications/resources/updated", t.ResourceUpdatedParams(uri="tide://bergen")
        )
        for kind in ("tools", "resources", "prompts"):
            await handling.notify(f"notifications/{kind}/list_changed")
        return text("told")

    return bench


@pytest.mark.parametrize("waits", [False, True])
async def test_each_notification_goes_to_its_callback(talkative, waits):
    heard = []

    def listener(name):
        async def wait(value):
            await trio.lowlevel.checkpoint()
            heard.append((name, value))

        return wait if waits else lambda value: heard.append((name, value))

    names = ("log", "resource_updated", "list_changed")
    async with Client(talkative, **{name: listener(name) for name in names}) as client:
        await client.call_tool("tell")
        await trio.testing.wait_all_tasks_blocked()
    assert heard == [
        ("log", MESSAGE),
        ("resource_updated", t.ResourceUpdatedParams(uri="tide://bergen")),
        ("list_changed", "tools"),
        ("list_changed", "resources"),
        ("list_changed", "prompts"),
    ]


async def test_notifications_without_a_callback_are_ignored(talkative, caplog):
    async with Client(talkative, protocol_versions=OLD) as client:
        assert said(await client.call_tool("tell")) == "told"
        await trio.testing.wait_all_tasks_blocked()
        await client.ping()
    assert not caplog.records


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("name", ["log", "resource_updated", "list_changed"])
async def test_a_callback_that_fails_is_logged_and_the_next_ones_run(
    talkative, caplog, name, waits
):
    heard = []

    async def fail_later(_value):
        await trio.lowlevel.checkpoint()
        raise ValueError("cannot print")

    def fail(_value):
        raise ValueError("cannot print")

    listeners = dict.fromkeys(("log", "resource_updated", "list_changed"), heard.append)
    listeners[name] = fail_later if waits else fail
    async with Client(talkative, **listeners) as client:
        assert said(await client.call_tool("tell")) == "told"
        await trio.testing.wait_all_tasks_blocked()
        await client.ping()
    assert len(heard) == (2 if name == "list_changed" else 4)
    assert "the callback for notifications/" in caplog.text
    assert "cannot print" in caplog.text


async def test_a_callback_may_call_the_server(talkative):
    answers = []

    async def list_changed(kind):
        answers.append(said(await client.call_tool("hello")))

    async with Client(talkative, list_changed=list_changed) as client:
        await client.call_tool("tell")
        await trio.testing.wait_all_tasks_blocked()
    assert answers == ["hello"] * 3


@pytest.mark.requirement("PING-01")
async def test_a_ping_is_answered_before_and_after_the_handshake(scripted, nursery):
    channel, server = scripted
    client = Client(channel, protocol_versions=OLD)
    nursery.start_soon(client.__aenter__)
    asked = await server.receive()
    await server.send_request("ping", id="early")
    assert await server.receive() == {"jsonrpc": "2.0", "id": "early", "result": {}}
    info = {"name": "raw", "version": "1"}
    result = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": info}
    await server.send_result(asked, result)
    await server.send_request("ping", id="late")
    answers = [message for message in await server.receive_many(2) if "id" in message]
    assert answers == [{"jsonrpc": "2.0", "id": "late", "result": {}}]
    await client.aclose()


@pytest.mark.parametrize("method", ["roots/list", "sampling/createMessage"])
@pytest.mark.requirement("ROOT-08")
async def test_a_request_without_its_capability_is_an_unknown_method(scripted, nursery, method):
    client, server = await connected(scripted, nursery)
    await server.send_request(method, id=1)
    assert (await server.receive())["error"]["code"] == -32601
    await client.aclose()
