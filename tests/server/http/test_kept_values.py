"""Values that handlers keep in a session, when another instance continues the session."""

from datetime import UTC, datetime
from typing import Any

import attrs
import pytest
import trio

from mcp_trio import Client, Context, Limits, Server
from mcp_trio._server.http_sessions import HttpStores
from mcp_trio.http import MemoryInstances
from mcp_trio.limits import HttpLimits, ShutdownLimits
from tests.server.http.conftest import call, request, text
from tests.server.http.test_instances import EventsOfAll, ask, listen, lose, stop
from tests.server.http.test_kept_calls import replayed_requests
from tests.server.test_remote_mounts import Flaky

VALUES_MAX = 1000
ODD_VALUES = {
    "large": "x" * VALUES_MAX,
    "object": object(),
    "function": len,
}
PROBLEMS = {
    "large": "session_values_bytes_max=1000",
    "object": "of the type builtins.object",
    "function": "of the type builtins.builtin_function_or_method",
}


@attrs.frozen
class Order:
    number: int
    at: datetime


TYPED_VALUES = {
    "set": {1, "b"},
    "tuple": (1, (2,)),
    "bytes": b"12",
    "number as key": {1: 2},
    "time": datetime(2026, 11, 29, 6, 30, tzinfo=UTC),
    "objects": [Order(1, datetime(2026, 11, 29))],
}
ITSELF = []
ITSELF.append(ITSELF)


@pytest.fixture
def stores():
    return HttpStores(instances=MemoryInstances(), events=EventsOfAll().of)


def port():
    limits = Limits(
        http=HttpLimits(session_values_bytes_max=VALUES_MAX),
        shutdown=ShutdownLimits(hand_over_seconds=1),
    )
    server = Server("port", limits=limits)
    inner, other = Server("inner"), Server("inner")

    @server.tool
    async def remember(value: object, *, ctx: Context) -> None:
        ctx.state["value"] = value

    @server.tool
    async def fail(value: object, *, ctx: Context) -> None:
        ctx.state["value"] = value
        raise ValueError("no")

    @server.tool
    async def remember_odd(name: str, *, ctx: Context) -> None:
        ctx.state["value"] = ITSELF if name == "itself" else ODD_VALUES[name]

    @server.tool
    async def remember_typed(name: str, *, ctx: Context) -> None:
        ctx.state["value"] = TYPED_VALUES[name]

    @server.tool
    async def is_the_same(name: str, *, ctx: Context) -> bool:
        return ctx.state["value"] == TYPED_VALUES[name] is not ctx.state["value"]

    @server.tool
    async def recall(*, ctx: Context) -> dict[str, Any]:
        return {"result": ctx.state.get("value", "nothing")}

    @server.tool
    async def hide(*, ctx: Context) -> None:
        await ctx.disable(tags={"secret"})
        await ctx.enable("known_secret")

    @server.tool(tags={"secret"})
    async def known_secret() -> str:
        return "known"

    @server.tool(tags={"secret"})
    async def unknown_secret() -> str:
        return "unknown"

    for each in (inner, other):

        @each.tool
        async def hide_other(*, ctx: Context) -> None:
            await ctx.disable("other")

        @each.tool(name="other")
        async def other_tool() -> str:
            return "other"

    server.mount(inner, prefix="one")
    server.mount(other, prefix="two")
    return server


@pytest.fixture
def open_ports(open_site, stores):
    async def open_ports(**options):
        return [await open_site(port(), stores=stores, **options) for _ in range(2)]

    return open_ports


def value(answer):
    return answer.json["result"]["structuredContent"]["result"]


@pytest.mark.requirement("HTTP-51")
@pytest.mark.parametrize("kept", [1, "ä", [1.5, None, {"a": True}], {"": -(2**70)}, 1e300])
async def test_values_are_there_as_of_the_last_response(open_ports, stores, autojump_clock, kept):
    here, there = await open_ports()
    client = await there.open()
    await client.ask(call("remember", {"value": kept}))
    lose(stores, there)
    assert value(await ask(here, client, call("recall", id=2))) == kept
    assert value(await ask(here, client, call("recall", id=3))) == kept


@pytest.mark.parametrize("name", TYPED_VALUES)
async def test_values_keep_their_types(open_ports, stores, tmp_path, autojump_clock, name):
    here, there = await open_ports(record=tmp_path)
    client = await there.open()
    await client.ask(call("remember_typed", {"name": name}))
    lose(stores, there)
    for number in (2, 3):
        assert (
            value(await ask(here, client, call("is_the_same", {"name": name}, id=number))) is True
        )
    assert await replayed_requests((here, there), tmp_path, port) == [1, 2]


async def test_a_session_ends_if_its_values_are_unknown_to_the_other_instance(
    open_ports, stores, caplog, monkeypatch, autojump_clock
):
    here, there = await open_ports()
    client = await there.open()
    await client.ask(call("remember_typed", {"name": "objects"}))
    lose(stores, there)
    monkeypatch.delitem(globals(), "Order")
    assert (await ask(here, client, call("recall", id=2))).status == 404
    assert not stores.instances.sessions
    assert (
        "a session ends, because this instance cannot restore its values: LookupError: there is no class"
        in caplog.text
    )


async def test_values_of_a_call_that_failed_are_there(open_ports, stores, autojump_clock):
    here, there = await open_ports()
    client = await there.open()
    assert (await client.ask(call("fail", {"value": 1}))).json["result"]["isError"]
    lose(stores, there)
    assert value(await ask(here, client, call("recall", id=2))) == 1


async def test_values_are_there_after_a_stop_and_on_a_third_instance(
    open_ports, open_site, stores, autojump_clock
):
    here, there = await open_ports()
    third = await open_site(port(), stores=stores)
    client = await there.open()
    await client.ask(call("remember", {"value": "tea"}))
    await stop(there)
    assert (
        await ask(here, client, request("logging/setLevel", {"level": "error"}, 2))
    ).status == 200
    lose(stores, here)
    assert value(await ask(third, client, call("recall", id=3))) == "tea"


@pytest.mark.parametrize("name", [*ODD_VALUES, "itself"])
async def test_a_session_with_another_value_ends_with_its_owner(
    open_ports, stores, caplog, autojump_clock, name
):
    here, there = await open_ports()
    client = await there.open()
    for number in range(2):
        await client.ask(call("remember_odd", {"name": name}, id=number))
    (warning,) = [each for each in caplog.messages if "ctx.state" in each]
    assert PROBLEMS.get(name, "without a JSON form") in warning
    lose(stores, there)
    assert (await ask(here, client, call("recall", id=2))).status == 404
    assert not stores.instances.sessions


async def test_a_session_goes_on_when_such_a_value_is_gone(open_ports, stores, autojump_clock):
    here, there = await open_ports()
    client = await there.open()
    await client.ask(call("remember_odd", {"name": "object"}))
    await client.ask(call("remember", {"value": 1}, id=2))
    lose(stores, there)
    assert value(await ask(here, client, call("recall", id=3))) == 1


async def test_hidden_entries_stay_hidden(open_ports, stores, autojump_clock):
    here, there = await open_ports()
    client = await there.open()
    await client.ask(call("hide"))
    lose(stores, there)
    listed = await ask(here, client, request("tools/list", {}, 2))
    names = {each["name"] for each in listed.json["result"]["tools"]}
    assert ("known_secret" in names, "unknown_secret" in names) == (True, False)
    assert text((await ask(here, client, call("known_secret", id=3))).json) == "known"
    assert "error" in (await ask(here, client, call("unknown_secret", id=4))).json


async def test_hidden_entries_of_mounted_servers_stay_hidden(
    open_ports, stores, tmp_path, autojump_clock
):
    here, there = await open_ports(record=tmp_path)
    client = await there.open()
    await client.ask(call("two_hide_other"))
    lose(stores, there)
    listed = await ask(here, client, request("tools/list", {}, 2))
    names = {each["name"] for each in listed.json["result"]["tools"]}
    assert ("one_other" in names, "two_other" in names) == (True, False)
    assert "error" in (await ask(here, client, call("two_other", id=3))).json
    assert await replayed_requests((here, there), tmp_path, port) == [1, 2]


async def test_a_session_with_hidden_entries_ends_if_the_server_is_not_mounted(
    open_site, open_ports, stores, autojump_clock
):
    _, there = await open_ports()
    without = await open_site(Server("port"), stores=stores)
    client = await there.open()
    await client.ask(call("two_hide_other"))
    lose(stores, there)
    assert (await ask(without, client, call("other", id=2))).status == 404


async def test_the_recordings_of_both_instances_replay(
    open_ports, stores, tmp_path, autojump_clock
):
    here, there = await open_ports(record=tmp_path)
    client = await there.open()
    await client.ask(call("remember", {"value": "tea"}))
    await client.ask(call("hide", id=2))
    lose(stores, there)
    assert value(await ask(here, client, call("recall", id=3))) == "tea"
    await ask(here, client, call("unknown_secret", id=4))
    await ask(here, client, call("remember", {"value": "rum"}, id=5))
    assert await replayed_requests((here, there), tmp_path, port) == [2, 3]


async def test_an_ended_session_is_not_stored_again(open_ports, stores, autojump_clock):
    _, there = await open_ports()
    client = await there.open()
    await client.ask(call("remember", {"value": 1}))
    assert (await there.ask("DELETE", Mcp_Session_Id=client.id)).status == 200
    await trio.sleep(10)
    assert not stores.instances.sessions


# Servers behind a client.


def lighthouse():
    """A server that keeps a number for each of its sessions."""
    server = Server("lighthouse")

    @server.tool
    async def count(*, ctx: Context) -> int:
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return ctx.state["count"]

    @server.resource("sea://light")
    async def light() -> str:
        return "on"

    return server


def hub_of(behind):
    server = Server("hub")
    server.mount(Client(behind, protocol_versions=["2025-11-25"]), prefix="far")
    return server


@pytest.fixture
def behind():
    return lighthouse()


@pytest.fixture
def open_hubs(open_site, stores, behind):
    async def open_hubs(**options):
        return [await open_site(hub_of(behind), stores=stores, **options) for _ in range(2)]

    return open_hubs


async def test_a_session_with_a_server_behind_a_client_goes_on(
    open_hubs, stores, tmp_path, autojump_clock
):
    here, there = await open_hubs(record=tmp_path)
    client = await there.open()
    for number in (1, 2):
        assert value(await client.ask(call("far_count", id=number))) == number
    lose(stores, there)
    assert value(await ask(here, client, call("far_count", id=3))) == 1  # in a session of its own
    assert await replayed_requests((here, there), tmp_path, lambda: hub_of(lighthouse())) == [1, 2]


async def test_a_client_is_notified_of_lists_that_may_have_changed_behind_another_client(
    open_hubs, stores, autojump_clock
):
    here, there = await open_hubs()
    client = await there.open()
    await client.ask(call("far_count"))
    lose(stores, there)
    listening = listen(here, client)
    await listening.event()
    await ask(here, client, call("far_count", id=2))
    methods = {(await listening.message())["method"] for _ in range(3)}
    assert methods == {
        f"notifications/{kind}/list_changed" for kind in ("tools", "resources", "prompts")
    }


async def test_subscriptions_at_a_server_behind_a_client_go_on(
    open_hubs, stores, behind, autojump_clock
):
    here, there = await open_hubs()
    client = await there.open()
    subscribing = request("resources/subscribe", {"uri": "sea://far/light"})
    assert "error" not in (await client.ask(subscribing)).json
    lose(stores, there)
    listening = listen(here, client)
    await listening.event()
    behind.resource_updated("sea://light")
    while (message := await listening.message())["method"].endswith("list_changed"):
        pass
    assert message["params"]["uri"] == "sea://far/light"


async def test_subscriptions_go_on_when_a_server_behind_a_client_is_there_again(
    open_site, stores, behind, autojump_clock
):
    targets = [Flaky(behind), Flaky(behind)]
    here, there = [await open_site(hub_of(each), stores=stores) for each in targets]
    client = await there.open()
    subscribing = request("resources/subscribe", {"uri": "sea://far/light"})
    assert "error" not in (await client.ask(subscribing)).json
    targets[0].refuses = True
    lose(stores, there)
    listening = listen(here, client)
    await listening.event()
    targets[0].refuses = False
    await trio.sleep(100)  # longer than the pause before the connection is opened again
    behind.resource_updated("sea://light")
    while (message := await listening.message())["method"].endswith("list_changed"):
        pass
    assert message["params"]["uri"] == "sea://far/light"
