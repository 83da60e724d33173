"""What handlers keep in a session, when the session goes on in another instance."""

from typing import Any

import pytest
import trio

from mcp_trio import Context, Limits, Server
from mcp_trio._server.http_sessions import HttpStores
from mcp_trio.http import MemoryInstances
from mcp_trio.limits import HttpLimits, ShutdownLimits
from mcp_trio.recording import replay
from tests.server.http.conftest import call, request, text
from tests.server.http.test_instances import EventsOfAll, ask, lose, stop

VALUES_MAX = 1000
ODD_VALUES = {
    "set": {1},
    "tuple": (1, 2),
    "bytes": b"1",
    "number as key": {1: 2},
    "no number": float("nan"),
    "surrogate": "\ud800",
    "large": "x" * VALUES_MAX,
    "object": object(),
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
    inner = Server("inner")

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

    @inner.tool
    async def hide_inner(*, ctx: Context) -> None:
        await ctx.disable("hide_inner")

    server.mount(inner, prefix=None)
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
    assert ("session_values_bytes_max=1000" if name == "large" else "JSON") in warning
    lose(stores, there)
    assert (await ask(here, client, call("recall", id=2))).status == 404
    assert not stores.instances.sessions


async def test_a_session_goes_on_when_such_a_value_is_gone(open_ports, stores, autojump_clock):
    here, there = await open_ports()
    client = await there.open()
    await client.ask(call("remember_odd", {"name": "set"}))
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


async def test_a_session_with_hidden_entries_of_a_mounted_server_ends(
    open_ports, stores, autojump_clock
):
    here, there = await open_ports()
    client = await there.open()
    await client.ask(call("hide_inner"))
    lose(stores, there)
    assert (await ask(here, client, call("recall", id=2))).status == 404


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
    for site in (here, there):
        site.runtime.close()
        await site.runtime.ended.wait()
    reports = [
        await trio.to_thread.run_sync(replay, path, port())
        for path in tmp_path.iterdir()
        if b'"tools/call"' in path.read_bytes()
    ]
    assert sorted(report.requests for report in reports) == [2, 3]


async def test_an_ended_session_is_not_stored_again(open_ports, stores, autojump_clock):
    _, there = await open_ports()
    client = await there.open()
    await client.ask(call("remember", {"value": 1}))
    assert (await there.ask("DELETE", Mcp_Session_Id=client.id)).status == 200
    await trio.sleep(10)
    assert not stores.instances.sessions
