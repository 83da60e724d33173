"""A call that is not recorded is accepted only if its lane came to it a little too early."""

import pytest
import trio

from mcp_trio import Context, Server
from mcp_trio.errors import BlockedInReplay, ReplayDivergence
from mcp_trio.recording import replay


async def forever(ctx):
    await trio.sleep_forever()


async def telling_first(ctx):
    await ctx.info("new")
    await trio.sleep_forever()


async def telling_late(ctx):
    await trio.sleep(0.5)
    await ctx.info("new")
    await trio.sleep_forever()


async def telling_under_shield(ctx):
    with trio.CancelScope(shield=True):
        await ctx.info("new")
    await trio.sleep_forever()


async def telling_in_the_end(ctx):
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await ctx.info("new")


async def telling_unshielded_in_the_end(ctx):
    try:
        await trio.sleep_forever()
    finally:
        await ctx.info("new")


async def reading_first(ctx):
    ctx.monotonic()
    await trio.sleep_forever()


async def reading_in_the_end(ctx):
    try:
        await trio.sleep_forever()
    finally:
        ctx.monotonic()


async def reading_in_a_child(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading_first, ctx)


async def choosing_first(ctx):
    ctx.patched("new")
    await ctx.info("new")


async def sleeping_as_an_effect(ctx):
    await ctx.sleep(1000)


async def answering_at_once(ctx):
    pass


async def answering_soon(ctx):
    await trio.sleep(0.5)


async def telling_in_a_child(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(telling_late, ctx)


def make_server(handler):
    server = Server("excused")

    @server.tool
    async def run(*, ctx: Context) -> str:
        await handler(ctx)
        return "done"

    return server


async def cancelled(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await trio.sleep(5)
    await peer.cancel(1)
    await trio.sleep(1)


async def left(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await trio.sleep(5)


@pytest.mark.parametrize("client", [cancelled, left])
@pytest.mark.parametrize(
    "handler",
    [
        telling_first,
        telling_late,
        telling_under_shield,
        telling_in_the_end,
        telling_unshielded_in_the_end,
        reading_first,
        reading_in_the_end,
        reading_in_a_child,
        choosing_first,
        sleeping_as_an_effect,
        answering_at_once,
        answering_soon,
        telling_in_a_child,
    ],
)
def test_new_operations_long_before_a_cancellation_diverge(world, tmp_path, client, handler):
    path = world.record(make_server(forever), tmp_path / "a.mcprec.jsonl", client)
    assert replay(path, make_server(forever)).is_complete
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(handler))
    assert caught.value.lane.startswith("r")


# A lane that comes a little too early.


async def waiting_first(ctx):
    ctx.monotonic()
    with ctx.timeout(10):
        await ctx.sleep(1)
    await trio.sleep(5.001)
    await reading(ctx)


async def waiting_less(ctx):
    ctx.monotonic()
    with ctx.timeout(10):
        await ctx.sleep(1)
    await trio.sleep(3.999)
    await reading(ctx)


async def reading(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reading_all, ctx)
        await reading_all(ctx)


async def reading_all(ctx):
    assert ctx.monotonic() >= 0
    with ctx.timeout(10):
        await trio.sleep(0)
    await ctx.info("never said")


@pytest.mark.parametrize("client", [cancelled, left])
def test_a_value_read_shortly_before_a_cancellation_is_no_divergence(world, tmp_path, client):
    path = world.record(make_server(waiting_first), tmp_path / "a.mcprec.jsonl", client)
    heard = world.replayed(path, make_server(waiting_less))
    assert heard.moments == world.played(path)
    assert replay(path, make_server(waiting_less), mode="outbound").is_complete


async def shielding(ctx):
    with trio.CancelScope(shield=True):
        await ctx.info("never said")


async def shielding_in_time(ctx):
    await trio.sleep(5.001)
    await shielding(ctx)


async def shielding_early(ctx):
    await trio.sleep(4.999)
    await shielding(ctx)


@pytest.mark.parametrize("client", [cancelled, left])
def test_a_shield_that_a_lane_entered_too_early_is_removed(world, tmp_path, client):
    path = world.record(make_server(shielding_in_time), tmp_path / "a.mcprec.jsonl", client)
    heard = world.replayed(path, make_server(shielding_early))
    assert heard.moments == world.played(path)


async def begin_to_tell(ctx):
    await ctx.info("cleaning up")


async def begin_to_read(ctx):
    ctx.monotonic()


def cleaning_up(begin, *, after_seconds):
    """A handler that tells, and if it was cancelled before that cleans up."""

    async def handler(ctx):
        try:
            await trio.sleep(after_seconds)
            await ctx.info("never said")
        finally:
            with trio.CancelScope(shield=True):
                await begin(ctx)
                await ctx.info("cleaned up")
                await ctx.sleep(0.1)

    return make_server(handler)


@pytest.mark.parametrize("client", [cancelled, left])
@pytest.mark.parametrize("begin", [begin_to_tell, begin_to_read])
def test_a_call_overtaken_by_its_cancellation_is_not_compared(world, tmp_path, client, begin):
    in_time = cleaning_up(begin, after_seconds=5.001)
    path = world.record(in_time, tmp_path / "a.mcprec.jsonl", client)
    heard = world.replayed(path, cleaning_up(begin, after_seconds=4.999))
    assert heard.moments == world.played(path)
    assert heard.frames == world.sent_frames(path)


def test_a_value_that_was_never_recorded_is_blocked(world, tmp_path):
    read = []

    async def reading_a_name_that_is_new(ctx):
        await trio.sleep(4.999)
        with pytest.raises(BlockedInReplay):
            ctx.now()
        read.append("rejected")
        await ctx.info("never said")

    path = world.record(make_server(forever), tmp_path / "a.mcprec.jsonl", cancelled)
    assert replay(path, make_server(reading_a_name_that_is_new)).is_complete
    assert read
