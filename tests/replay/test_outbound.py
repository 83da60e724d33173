"""Replay in outbound mode, which compares only what is sent."""

import functools

import pytest
import trio

from mcp_trio import Context, Server, effect
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import replay


@effect
async def fetch(key: str) -> str:
    await trio.sleep(0.001)
    return f"value of {key}"


@effect
async def weigh(key: str) -> int:
    await trio.sleep(0.002)
    return len(key)


@effect
def look(key: str) -> str:
    return f"seen {key}"


async def count(state, key="a"):
    """What many handlers begin with: a shared total, and an effect that it must outlast."""
    before = state["total"]
    value = await fetch(key)
    state["total"] = before + 1
    return value


async def finish(ctx):
    await ctx.list_roots()
    await ctx.info("done")


async def steps(ctx, state):
    first = await count(state)
    await ctx.info(state["total"])
    weight = await weigh("a")
    ctx.now()
    seen = look("a")
    second = await fetch("b")
    await finish(ctx)
    return [first, second, str(weight), seen, str(ctx.patched("x"))]


async def in_another_order(ctx, state):
    first = await count(state)
    await ctx.info(state["total"])
    second = await fetch("b")
    patched = ctx.patched("x")
    seen = look("a")
    weight = await weigh("a")
    await finish(ctx)
    return [first, second, str(weight), seen, str(patched)]


async def moved_before_a_frame(ctx, state):
    first = await count(state)
    weight, second = await weigh("a"), await fetch("b")
    await ctx.info(state["total"])
    seen = look("a")
    await finish(ctx)
    return [first, second, str(weight), seen, str(ctx.patched("x"))]


async def with_other_arguments(ctx, state):
    first = await count(state, "other")
    await ctx.info(state["total"])
    second = await fetch("arguments")
    await finish(ctx)
    return [first, second, "1", look("else"), str(ctx.patched("x"))]


async def saying_more(ctx, state):
    await ctx.info("more")
    return await steps(ctx, state)


async def saying_less(ctx, state):
    await fetch("a")
    await ctx.info(1)
    await fetch("b")
    await ctx.list_roots()
    return []


async def with_an_unknown_effect(ctx, state):
    await fetch("a")
    await ctx.effect(unknown)


async def fetching_once_too_often(ctx, state):
    for key in "abc":
        await fetch(key)


async def looking_once_too_often(ctx, state):
    look("a")
    look("a")


def unknown() -> int:
    return 1


def make_server(handler):
    server = Server("outbound")
    state = {"total": 0}

    @server.tool
    async def run(*, ctx: Context) -> list[str]:
        return await handler(ctx, state) or []

    return server


async def client(peer, _session, *, cancels=False):
    await peer.handshake(capabilities={"roots": {}})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_roots, peer)
        for number in range(3):
            params = {"name": "run", "arguments": {}}
            await peer.send_request("tools/call", params, id=number)
            await trio.sleep(0.0015)
        if cancels:
            await peer.cancel(2)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()


async def answer_roots(peer):
    while True:
        message = await peer.receive()
        if message.get("method") == "roots/list":
            await trio.sleep(0.003)
            await peer.send_result(message, {"roots": []})


@pytest.fixture
def path(world, tmp_path):
    return world.record(make_server(steps), tmp_path / "a.mcprec.jsonl", client)


@pytest.mark.parametrize("handler", [steps, in_another_order, with_other_arguments])
@pytest.mark.parametrize("number", range(3))
def test_a_cancelled_lane_may_have_an_effect_that_is_not_recorded(world, tmp_path, handler, number):
    cancelling = functools.partial(client, cancels=True)
    path = world.record(make_server(steps), tmp_path / "a.mcprec.jsonl", cancelling)
    assert world.records(path)[world.place_of(path, lambda r: r["k"] == "cxl")]["l"] == "r19"
    heard = world.replayed(path, make_server(handler), number=number, mode="outbound")
    assert heard.frames == world.sent_frames(path)


@pytest.mark.parametrize(
    "handler", [steps, in_another_order, moved_before_a_frame, with_other_arguments]
)
@pytest.mark.parametrize("number", range(3))
def test_effects_in_another_order_replay_if_the_messages_are_the_same(world, path, handler, number):
    heard = world.replayed(path, make_server(handler), number=number, mode="outbound")
    assert heard.frames == world.sent_frames(path)


@pytest.mark.parametrize("handler", [in_another_order, moved_before_a_frame, with_other_arguments])
def test_effects_in_another_order_diverge_in_strict_mode(path, handler):
    with pytest.raises(ReplayDivergence):
        replay(path, make_server(handler))


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (saying_more, "frame"),
        (saying_less, "frame"),
        (with_an_unknown_effect, "extra"),
        (fetching_once_too_often, "extra"),
        (looking_once_too_often, "extra"),
    ],
)
def test_another_message_or_an_unrecorded_effect_diverges(path, handler, kind):
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(handler), mode="outbound")
    assert caught.value.kind == kind
    assert 'mode="outbound"' not in str(caught.value)


def test_a_cut_recording_replays_up_to_the_cut(world, path, tmp_path):
    lines = path.read_bytes().splitlines(keepends=True)
    for count in range(1, len(lines)):
        cut = world.rewrite(path, tmp_path / "cut.jsonl", lambda lines, n=count: lines[:n])
        report = replay(cut, make_server(in_another_order), mode="outbound", watches=False)
        assert report.records == count - 1


def test_an_unknown_mode_is_rejected(path):
    with pytest.raises(ValueError, match="unknown mode 'lax': one of strict, outbound"):
        replay(path, make_server(steps), mode="lax")
