"""Changes that a session announces by itself are replayed if its handlers caused them."""

import pytest
import trio

from mcp_trio import Context, Limits, Server
from mcp_trio.limits import ShutdownLimits
from mcp_trio.recording import replay

OFFERS = {"tools", "resources", "prompts"}
ANNOUNCE = "announce"


async def nothing():
    pass


def make_server(*, changes=3, prompt=True, **options):
    """A server whose handlers change what it offers; `changes` and `prompt` make it another."""
    server = Server(
        "fair", offers=OFFERS, limits=Limits(shutdown=ShutdownLimits(drain_seconds=0.05)), **options
    )

    @server.resource("fair://{stall}")
    async def stall(stall: str) -> str:
        return stall

    @server.tool
    async def grow(number: int, *, ctx: Context) -> int:
        for each in range(changes):
            ctx.server.tool(name=f"t{number}.{each}")(nothing)
            await trio.sleep(0.001 * each)
        await ctx.info("grown")
        ctx.server.remove_tool(f"t{number}.0")
        if prompt:
            ctx.server.prompt(name=f"p{number}")(nothing)
        ctx.server.resource_updated("fair://pie")
        return number

    @server.tool
    async def flicker(ctx: Context) -> str:
        ctx.server.resource_updated("fair://pie")
        return "done"

    return server


def call(request_id, name, **arguments):
    params = {"name": name, "arguments": arguments}
    return {"id": request_id, "method": "tools/call", "params": params}


async def talk(peer, session):
    await peer.handshake()
    await peer.send({"id": 1, "method": "resources/subscribe", "params": {"uri": "fair://pie"}})
    await peer.send(*(call(number, "grow", number=number) for number in (2, 3, 4)))
    await trio.sleep(0.0025)
    await peer.send(call(5, "flicker"), call(6, "flicker"))
    await trio.sleep(0.01)
    await peer.send({"id": 7, "method": "resources/unsubscribe", "params": {"uri": "fair://pie"}})
    await trio.sleep(0.01)
    await peer.send(call(8, "grow", number=8))
    await trio.sleep(0.01)


async def leave(peer, session):
    await peer.handshake()
    await peer.send(call(1, "grow", number=1), call(2, "flicker"))
    while True:
        message = await peer.receive()
        if "result" in message:
            return


@pytest.fixture
def recorded(world, tmp_path):
    def make(number=0, client=talk):
        return world.record(
            make_server(), tmp_path / f"{number}.mcprec.jsonl", client, number=number
        )

    return make


def announced(world, path):
    return [
        r["f"]["method"] for r in world.records(path) if r.get("l") == ANNOUNCE and r["k"] == "out"
    ]


@pytest.mark.parametrize("number", range(6))
def test_announcements_are_replayed_byte_for_byte(world, recorded, number):
    path = recorded(number)
    told = announced(world, path)
    assert {method.split("/")[1] for method in told} == {"tools", "prompts", "resources"}
    assert len(told) < 20  # 16 changes of tools, 4 of prompts, 5 updates
    for other in range(3):
        heard = world.replayed(path, make_server(), number=other)
        assert heard.frames == world.sent_frames(path)
        assert heard.moments == world.played(path)


@pytest.mark.parametrize("number", range(12))
def test_a_session_that_ends_before_all_announcements_replays(world, recorded, number):
    path = recorded(number, leave)
    assert replay(path, make_server()).is_complete


def test_some_sessions_ended_before_all_announcements_were_sent(world, recorded):
    kinds = {
        record["k"]
        for number in range(12)
        for record in world.records(recorded(number, leave))
        if record.get("l") == ANNOUNCE
    }
    assert kinds == {"mark", "out", "cxl"}


def test_a_missing_announcement_is_a_divergence(desk, recorded):
    divergence = desk.assert_diverges(recorded(), make_server(prompt=False))
    assert "notifications/prompts/list_changed" in str(divergence)


def test_an_additional_announcement_is_a_divergence(desk, world, tmp_path):
    path = tmp_path / "x.mcprec.jsonl"
    world.record(make_server(prompt=False), path, talk)
    divergence = desk.assert_diverges(path, make_server())
    assert divergence.lane == ANNOUNCE


def test_a_withdrawn_update_is_replayed(world, tmp_path):
    def make():
        server = make_server()

        @server.tool
        async def regret(ctx: Context) -> str:
            ctx.server.resource_updated("fair://pie")
            await trio.lowlevel.checkpoint()
            await ctx.info("regretted")
            return "done"

        return server

    async def client(peer, session):
        await peer.handshake()
        subject = {"params": {"uri": "fair://pie"}}
        await peer.send({"id": 1, "method": "resources/subscribe", **subject})
        await trio.sleep(0.001)
        await peer.send(call(2, "regret"), {"id": 3, "method": "resources/unsubscribe", **subject})
        await trio.sleep(0.001)

    kinds = set()
    for number in range(8):
        path = world.record(make(), tmp_path / f"{number}.mcprec.jsonl", client, number=number)
        kinds |= {r["k"] for r in world.records(path) if r.get("l") == ANNOUNCE}
        assert replay(path, make()).is_complete
    assert "mark" in kinds
