"""The kinds of divergences."""

from contextlib import suppress

import pytest

from mcp_trio import Context, Server, ToolError, effect
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import replay


async def recorded_one(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    clock = ctx.monotonic()
    await ctx.info(["it is", clock])
    await ctx.sleep(0)
    return clock


async def without_clock(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    await ctx.info(["it is", "late"])
    await ctx.sleep(0)


async def without_guard(ctx):
    await ctx.info("newer")
    clock = ctx.monotonic()
    await ctx.info(["it is", clock])


async def ending_early(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    return ctx.monotonic()


async def failing_early(ctx):
    raise ToolError(await ending_early(ctx))


async def reading_something_else(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    ctx.now()
    await ctx.info("it is")


async def reading_at_the_guard(ctx):
    ctx.now()


async def with_a_newer_guard(ctx):
    if ctx.patched("new"):
        await ctx.info("new")
    if ctx.patched("newer"):
        await ctx.info("newer")
    clock = ctx.monotonic()
    await ctx.info(["it is", clock])
    await ctx.sleep(0)
    return clock


def make_server(handler):
    server = Server("kinds")

    @server.tool
    async def run(*, ctx: Context) -> str:
        return str(await handler(ctx))

    return server


async def call(peer, _session):
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
    await peer.receive_many(3)


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        (without_clock, ("missing", 3, "val")),
        (without_guard, ("missing", 1, "mark")),
        (ending_early, ("missing", 4, "out")),
        (failing_early, ("missing", 4, "out")),
        (reading_at_the_guard, ("extra", 1, "mark")),
        (reading_something_else, ("extra", 3, "val")),
    ],
)
def test_an_operation_that_is_left_out_is_missing(world, tmp_path, handler, found):
    path = world.record(make_server(recorded_one), tmp_path / "a.mcprec.jsonl", call)
    with pytest.raises(ReplayDivergence) as caught:
        replay(path, make_server(handler))
    recorded = caught.value.recorded.split(maxsplit=1)[0]
    assert (caught.value.kind, caught.value.ordinal, recorded) == found


def test_a_new_guard_before_a_reading_takes_the_old_branch(world, tmp_path):
    path = world.record(make_server(recorded_one), tmp_path / "a.mcprec.jsonl", call)
    assert replay(path, make_server(with_a_newer_guard)).is_complete


@effect
def weigh(thing: str) -> int:
    raise ValueError(thing)


async def weighing(ctx):
    with pytest.raises(ValueError, match="a feather"):
        weigh("a feather")
    await ctx.info(1)
    await ctx.info(2)


def test_an_error_of_a_reading_is_raised_again(world, tmp_path):
    path = world.record(make_server(weighing), tmp_path / "a.mcprec.jsonl", call)
    heard = world.replayed(path, make_server(weighing))
    assert heard.frames == world.sent_frames(path)


def test_a_record_that_is_no_outcome_diverges(world, tmp_path):
    path = world.record(make_server(recorded_one), tmp_path / "a.mcprec.jsonl", call)
    place = world.place_of(path, lambda r: r["k"] == "res")

    def change(lines):
        lines[place] = lines[place].replace(b'"k":"res"', b'"k":"mark"')
        lines[place] = lines[place].replace(b'"f":null', b'"f":{"name":"a","value":1}')

    changed = world.rewrite(path, tmp_path / "changed.jsonl", change)
    with pytest.raises(ReplayDivergence) as caught:
        replay(changed, make_server(recorded_one))
    assert caught.value.record == place


async def going_on_when_aborted(ctx):
    with suppress(BaseException):
        await ctx.info("something else")
    LEFT.append("asks")
    ctx.monotonic()
    LEFT.append("goes on")


LEFT = []


@pytest.mark.parametrize("mode", ["strict", "outbound"])
def test_no_values_are_read_after_the_end_of_a_replay(world, tmp_path, mode):
    path = world.record(make_server(recorded_one), tmp_path / "a.mcprec.jsonl", call)
    LEFT.clear()
    with pytest.raises(ReplayDivergence):
        replay(path, make_server(going_on_when_aborted), mode=mode)
    assert LEFT == ["asks"]
