"""Deadlines at the very time of a cancellation replay as recorded."""

import pytest
import trio

from mcp_trio import Context, Limits, Server
from mcp_trio.limits import ShutdownLimits

AFTER_SECONDS = 0.010

# As late as the sum of a few times may come out in floating point, and not visible in nanoseconds.
A_BIT_SECONDS = 1e-12


async def tell_under_shield(ctx):
    try:
        await trio.sleep(1)
    finally:
        with trio.CancelScope(shield=True):
            await ctx.info("cleaned up")


async def last_under_shield(_ctx):
    with trio.CancelScope(shield=True):
        await trio.sleep(1)


async def at_once(_ctx):
    pass


async def of_a_child(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tell_under_shield, ctx)


async def announce(ctx):
    ctx.server.list_changed("tools")
    await trio.sleep(1)


def make_server(seconds, then):
    server = Server(
        "ties",
        limits=Limits(shutdown=ShutdownLimits(drain_seconds=AFTER_SECONDS)),
        offers=["tools"],
    )

    @server.tool
    async def run(*, ctx: Context) -> str:
        await trio.sleep(seconds)
        await then(ctx)
        return "done"

    return server


async def call(peer):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)


async def cancelled(peer, _session):
    await call(peer)
    await trio.sleep(AFTER_SECONDS)
    await peer.cancel(1)
    await trio.sleep(2)


async def left(peer, _session):
    """Leaves at once, so that the drain ends when the sleep does."""
    await call(peer)


def assert_replays(world, tmp_path, client, seconds, then):
    path = world.record(make_server(seconds, then), tmp_path / "a.mcprec.jsonl", client)
    heard = world.replayed(path, make_server(seconds, then))
    assert heard.frames == world.sent_frames(path)
    assert heard.moments == world.played(path)
    return [record["k"] for record in world.records(path) if record.get("l", "").startswith("r")]


@pytest.mark.parametrize("client", [cancelled, left])
@pytest.mark.parametrize("then", [tell_under_shield, last_under_shield, at_once, of_a_child])
def test_a_sleep_cancelled_just_before_its_end_is_cancelled_again(world, tmp_path, client, then):
    seconds = AFTER_SECONDS + A_BIT_SECONDS
    kinds = assert_replays(world, tmp_path, client, seconds, then)
    assert kinds[-1] == "cxl"


@pytest.mark.parametrize("client", [cancelled, left])
@pytest.mark.parametrize("then", [tell_under_shield, last_under_shield, at_once, announce])
def test_a_sleep_that_ended_just_before_a_cancellation_ends_again(world, tmp_path, client, then):
    assert_replays(world, tmp_path, client, AFTER_SECONDS - A_BIT_SECONDS, then)


# A deadline, and what ends all that lies around it, at one time.


def make_racer():
    server = Server("races")

    async def hurry(ctx):
        try:
            with ctx.timeout(1):
                await ctx.sleep(5)
        except trio.TooSlowError:
            await ctx.info("too slow")

    async def break_down(ctx):
        await ctx.sleep(1)
        raise ValueError("the end of all")

    @server.tool
    async def race(*, ctx: Context) -> str:
        async with trio.open_nursery() as outer:
            outer.start_soon(hurry, ctx)
            async with trio.open_nursery() as inner:
                inner.start_soon(break_down, ctx)
        return "never"

    return server


async def call_racer(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "race", "arguments": {}}, id=1)
    await trio.sleep(2)


def recorded_races(world, tmp_path):
    """Recordings under several schedules, by what they tell."""
    found = {}
    for number in range(20):
        path = tmp_path / f"{number}.mcprec.jsonl"
        world.record(make_racer(), path, call_racer, number=number)
        found[tuple(world.played(path))] = path
    return found


def test_a_deadline_at_the_time_of_the_session_end_expires_again(world, tmp_path):
    races = recorded_races(world, tmp_path)
    assert len(races) > 1
    for path in races.values():
        for number in range(8):
            heard = world.replayed(path, make_racer(), number=number)
            assert heard.frames == world.sent_frames(path)
            assert heard.moments == world.played(path)
