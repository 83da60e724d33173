"""Replay of sessions with subscriptions whose changes come from their own handlers."""

import pytest
import trio

from mcp_trio import Context, Limits, Server
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION, SUBSCRIPTION_ID
from mcp_trio.limits import ShutdownLimits
from mcp_trio.recording import replay

META = {PROTOCOL_VERSION: "2026-07-28", CLIENT_CAPABILITIES: {}}
EVERYTHING = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourceSubscriptions": ["fair://pie"],
}


async def nothing():
    pass


def make_server(*, prompt=True):
    server = Server(
        "fair",
        offers={"tools", "resources", "prompts"},
        limits=Limits(shutdown=ShutdownLimits(drain_seconds=0.05)),
    )

    @server.resource("fair://{stall}")
    async def stall(stall: str) -> str:
        return stall

    @server.tool
    async def grow(number: int, *, ctx: Context) -> int:
        for each in range(3):
            ctx.server.tool(name=f"t{number}.{each}")(nothing)
            await ctx.sleep(0.001 * each)
        await ctx.progress(1)
        ctx.server.remove_tool(f"t{number}.0")
        if prompt:
            ctx.server.prompt(name=f"p{number}")(nothing)
        ctx.server.resource_updated("fair://pie")
        return number

    return server


def request(id_, method, **params):
    return {"id": id_, "method": method, "params": {**params, "_meta": META}}


def listen(id_, **wishes):
    return request(id_, "subscriptions/listen", notifications=wishes)


def grow(id_):
    return request(id_, "tools/call", name="grow", arguments={"number": id_})


def cancel(id_):
    return {"method": "notifications/cancelled", "params": {"requestId": id_}}


async def talk(peer, _session):
    await peer.send(listen("all", **EVERYTHING), listen("tools", toolsListChanged=True))
    await peer.send(*(grow(number) for number in range(3)))
    await trio.sleep(0.0025)
    await peer.send(cancel("tools"), listen("late", promptsListChanged=True), grow(3))
    await trio.sleep(0.01)
    await peer.send(grow(4), cancel("late"))
    await trio.sleep(0.01)


async def leave(peer, _session):
    await peer.send(listen("all", **EVERYTHING), grow(1))
    while "result" not in await peer.receive():
        pass


async def closed(peer, session):
    await peer.send(listen("all", **EVERYTHING), listen("tools", toolsListChanged=True), grow(1))
    await trio.sleep(0.0025)
    session.shut("closed")
    await peer.receive_end()


CLIENTS = [talk, leave, closed]


@pytest.fixture
def recorded(world, tmp_path):
    def make(client, number=0, server=None):
        path = tmp_path / f"{number}.mcprec.jsonl"
        return world.record(server or make_server(), path, client, number=number)

    return make


def told(world, path):
    """What was told by subscriptions: each notification with its lane."""
    return [
        (record["l"], record["f"]["method"])
        for record in world.records(path)
        if record["k"] == "out"
        and SUBSCRIPTION_ID in record["f"].get("params", {}).get("_meta", {})
    ]


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("client", CLIENTS)
def test_notifications_of_subscriptions_replay_byte_for_byte(world, recorded, client, number):
    path = recorded(client, number)
    for other in range(3):
        heard = world.replayed(path, make_server(), number=other)
        assert heard.frames == world.sent_frames(path)
        assert heard.moments == world.played(path)


def test_each_subscription_notifies_in_the_lane_of_its_request(world, recorded):
    lanes = {lane for lane, _ in told(world, recorded(talk))}
    asked = [
        f"r{record['n']}"
        for record in world.records(recorded(talk, 1))
        if record["k"] == "in" and record["f"].get("method") == "subscriptions/listen"
    ]
    assert lanes == set(asked)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_recording_with_subscriptions_cut_anywhere_replays_up_to_the_cut(
    world, recorded, tmp_path, client
):
    path = recorded(client)
    for cut in range(2, len(world.records(path)), 3):
        part = world.rewrite(path, tmp_path / "cut.mcprec.jsonl", lambda lines, c=cut: lines[:c])
        replay(part, make_server())


def test_a_missing_change_is_a_divergence(desk, recorded):
    divergence = desk.assert_diverges(recorded(talk), make_server(prompt=False))
    assert "notifications/prompts/list_changed" in str(divergence)


def test_an_additional_change_is_a_divergence(desk, recorded):
    path = recorded(talk, server=make_server(prompt=False))
    desk.assert_diverges(path, make_server())
