"""Sleeps that end in a replay although they were cancelled just before their end."""

import json

import pytest
import trio

from mcp_trio import Context, Server
from mcp_trio.recording import replay

# Longer than what comes to cut it short, by less than a recorded time can tell.
JUST_LONGER = 0.0100005


async def sleeping(ctx):
    await trio.sleep(JUST_LONGER)
    await ctx.info("never said")


async def sleeping_child(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeping, ctx)


async def sleeping_child_in_time(ctx):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleeping, ctx)
        await trio.sleep(0.010)
        await ctx.info("enough")
        nursery.cancel_scope.cancel()


async def woken_and_cancelled(ctx):
    """The child is woken before it is cancelled, so its call is made, and cancelled."""
    wakeup = trio.Event()

    async def listen():
        await wakeup.wait()
        await ctx.info("never said")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.sleep(0.005)
        await ctx.info("ring")
        wakeup.set()
        nursery.cancel_scope.cancel()


def make_server(handler):
    server = Server("early")

    @server.tool
    async def run(*, ctx: Context) -> str:
        await handler(ctx)
        return "done"

    return server


async def cut_short(peer, _session):
    await peer.handshake()
    params = {"name": "run", "arguments": {}}
    await peer.send_request("tools/call", params, id=1)
    await peer.send_request("tools/call", params, id=2)
    await trio.sleep(0.010)
    await peer.cancel(1)
    await peer.cancel(2)
    await trio.sleep(0.1)


@pytest.fixture(params=[sleeping, sleeping_child, sleeping_child_in_time, woken_and_cancelled])
def handler(request):
    return request.param


@pytest.fixture
def recorded(world, tmp_path, handler):
    return world.record(make_server(handler), tmp_path / "early.mcprec.jsonl", cut_short)


def test_a_call_cancelled_just_before_it_is_no_divergence(world, recorded, handler):
    heard = world.replayed(recorded, make_server(handler))
    assert heard.frames == world.sent_frames(recorded)
    assert heard.moments == world.played(recorded)


def test_each_removed_cxl_diverges(desk, world, recorded, handler):
    numbers = [r["n"] for r in world.records(recorded) if r["k"] == "cxl"]
    for number in numbers:
        without = world.rewrite(
            recorded,
            recorded.with_name("without.jsonl"),
            lambda lines, n=number: lines[:n] + lines[n + 1 :],
        )
        divergence = desk.assert_diverges(without, make_server(handler))
        assert divergence.record == number


def test_a_removed_shut_diverges_at_its_index(desk, world, recorded, handler):
    number = world.place_of(recorded, lambda r: r["k"] == "shut")
    without = world.rewrite(
        recorded,
        recorded.with_name("without.jsonl"),
        lambda lines: lines[:number] + lines[number + 1 :],
    )
    assert desk.assert_diverges(without, make_server(handler)).record == number


def test_two_sleeps_in_a_row_both_end_in_time(world, tmp_path):
    async def sleep_twice(ctx):
        await trio.sleep(0.003)
        await trio.sleep(0.004)
        await ctx.info("awake")

    path = world.record(make_server(sleep_twice), tmp_path / "a.mcprec.jsonl", cut_short)
    assert replay(path, make_server(sleep_twice)).is_complete


@pytest.mark.parametrize("number", range(6))
def test_a_late_call_does_not_delay_an_earlier_sleep(world, tmp_path, number):
    """The recording machine paused between two tasks: the one slept already, the other told."""

    async def sleep_and_tell(ctx):
        await trio.sleep(0.009)
        await ctx.info("awake")

    async def in_a_nursery(ctx):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ctx.info, "late")
            nursery.start_soon(sleep_and_tell, ctx)

    async def once(peer, _session):
        await peer.handshake()
        await peer.send_request("tools/call", {"name": "run", "arguments": {}}, id=1)
        await trio.sleep(0.1)

    def pause(lines):
        place = world.place_of(path, lambda r: r["k"] == "out" and r["f"].get("params"))
        record = json.loads(lines[place])
        record["t"] += 5_000_000
        lines[place] = json.dumps(record, separators=(",", ":")).encode() + b"\n"

    path = world.record(make_server(in_a_nursery), tmp_path / "a.mcprec.jsonl", once)
    late = world.rewrite(path, tmp_path / "late.jsonl", pause)
    heard = world.replayed(late, make_server(in_a_nursery), number=number)
    assert heard.moments == world.played(late)
