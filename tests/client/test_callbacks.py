"""What a server asks or tells, and the callbacks that answer or listen."""

import pytest
import trio
import trio.testing

from mcp_trio import types as t
from mcp_trio._client import Client
from mcp_trio._errors import RequestError, UserRejected
from tests.client.conftest import ALL, said, text

MESSAGE = t.LoggingMessageParams(level="info", data={"sea": "calm"}, logger="weather")
SAMPLE = t.CreateMessageParams(messages=[], max_tokens=9)
SAMPLED = t.CreateMessageResult(role="assistant", content=t.TextContent(text="hm"), model="m")


@pytest.fixture
def talkative(bench):
    @bench.tool
    async def tell(handling):
        await handling.notify("notifications/message", MESSAGE)
        await handling.notify(
            "notifications/resources/updated", t.ResourceUpdatedParams(uri="tide://bergen")
        )
        for kind in ("tools", "resources", "prompts"):
            await handling.notify(f"notifications/{kind}/list_changed")
        return text("told")

    @bench.tool
    async def ask_roots(handling):
        result = await handling.ask("roots/list")
        return text(" ".join(f"{root.uri}={root.name}" for root in result.roots))

    @bench.tool
    async def sample(handling):
        result = await handling.ask("sampling/createMessage", SAMPLE)
        return text(result.content.text)

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


async def test_notifications_that_nobody_listens_to_do_no_harm(talkative, caplog):
    async with Client(talkative) as client:
        assert said(await client.call_tool("tell")) == "told"
        await trio.testing.wait_all_tasks_blocked()
        await client.ping()
    assert not caplog.records


async def test_a_callback_that_fails_is_logged_and_the_next_one_runs(talkative, caplog):
    changed = []

    def log(params):
        raise ValueError("cannot print")

    async with Client(talkative, log=log, list_changed=changed.append) as client:
        assert said(await client.call_tool("tell")) == "told"
        await trio.testing.wait_all_tasks_blocked()
    assert changed == ["tools", "resources", "prompts"]
    assert "the callback for notifications/message failed" in caplog.text
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
    client = Client(channel)
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


# Roots

ROOTS = ["file:///sea", t.Root(uri="file:///land", name="land")]


async def roots_later():
    await trio.lowlevel.checkpoint()
    return ROOTS


@pytest.mark.parametrize("roots", [ROOTS, tuple(ROOTS), lambda: ROOTS, roots_later])
@pytest.mark.requirement("ROOT-01", "ROOT-05")
async def test_a_server_is_told_the_roots(talkative, roots):
    async with Client(talkative, roots=roots) as client:
        listed = said(await client.call_tool("ask_roots"))
    assert listed == "file:///sea=None file:///land=land"


@pytest.mark.requirement("ROOT-06")
async def test_a_change_of_the_roots_is_told_and_the_new_ones_are_listed(talkative):
    roots = []
    async with Client(talkative, roots=roots) as client:
        assert said(await client.call_tool("ask_roots")) == ""
        roots.append("file:///sea")
        await client.notify_roots_changed()
        assert said(await client.call_tool("ask_roots")) == "file:///sea=None"
    assert "notifications/roots/list_changed" in talkative.notifications


@pytest.mark.requirement("ROOT-05", "ROOT-08")
async def test_a_root_that_is_no_file_is_never_told(talkative, caplog):
    async with Client(talkative, roots=["https://example.org"]) as client:
        with pytest.raises(RequestError, match="internal error"):
            await client.call_tool("ask_roots")
    assert "the URI of a root starts with file://" in caplog.text


@pytest.mark.parametrize("method", ["roots/list", "sampling/createMessage"])
@pytest.mark.requirement("ROOT-08")
async def test_what_was_not_announced_is_an_unknown_method(scripted, nursery, method):
    channel, server = scripted
    client = Client(channel)
    nursery.start_soon(client.__aenter__)
    await server.answer_initialize(capabilities=ALL)
    await server.send_request(method, id=1)
    assert (await server.receive())["error"]["code"] == -32601
    await client.aclose()


# Sampling


@pytest.mark.requirement("SAMP-01", "SAMP-10")
async def test_a_server_may_ask_the_clients_model(talkative):
    async def sampling(params):
        assert params == SAMPLE
        return SAMPLED

    async with Client(talkative, sampling=sampling) as client:
        assert said(await client.call_tool("sample")) == "hm"


@pytest.mark.parametrize("rejection", [UserRejected(), UserRejected("not today")])
@pytest.mark.requirement("ERR-18", "SAMP-25")
async def test_a_user_who_says_no_is_code_minus_one(scripted, nursery, rejection):
    async def sampling(params):
        raise rejection

    channel, server = scripted
    client = Client(channel, sampling=sampling)
    nursery.start_soon(client.__aenter__)
    await server.answer_initialize()
    await server.send_request("sampling/createMessage", {"messages": [], "maxTokens": 1}, id="s")
    answer = await server.receive()
    assert answer == {
        "jsonrpc": "2.0",
        "id": "s",
        "error": {"code": -1, "message": rejection.message},
    }
    await client.aclose()


async def test_a_model_that_gives_something_else_is_an_internal_error(talkative, caplog):
    async def sampling(params):
        return "hm"

    async with Client(talkative, sampling=sampling) as client:
        with pytest.raises(RequestError, match="internal error"):
            await client.call_tool("sample")
    assert "returns a CreateMessageResult, not 'hm'" in caplog.text


@pytest.mark.requirement("CANC-06")
async def test_a_server_may_cancel_what_it_asked(scripted, nursery):
    cancelled = trio.Event()

    async def sampling(params):
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    channel, server = scripted
    client = Client(channel, sampling=sampling)
    nursery.start_soon(client.__aenter__)
    await server.answer_initialize()
    await server.send_request("sampling/createMessage", {"messages": [], "maxTokens": 1}, id="s")
    await trio.testing.wait_all_tasks_blocked()
    await server.cancel("s")
    with trio.fail_after(1):
        await cancelled.wait()
    assert await server.receive_available() == []
    await client.aclose()
