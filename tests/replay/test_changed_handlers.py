"""Divergences of changed handlers: their record and their report."""

import re

import pytest
import trio

# Changed handlers.


async def add_in_another_order(state, ctx, amount):
    await ctx.info("before")
    await ctx.list_roots()
    return 0


async def add_without_asking(state, ctx, amount):
    state["total"] += amount
    return state["total"]


async def add_and_say_so(state, ctx, amount):
    before = state["total"]
    await ctx.list_roots()
    await ctx.info("added")
    return before


async def add_wrongly(state, ctx, amount):
    await ctx.list_roots()
    return amount + 7


@pytest.mark.parametrize(
    ("handler", "ordinal"),
    [
        (add_in_another_order, 1),
        (add_without_asking, 1),
        (add_and_say_so, 3),
        (add_wrongly, 3),
    ],
)
def test_a_changed_handler_diverges_at_the_first_record_that_it_affects(
    desk, world, path, handler, ordinal
):
    divergence = desk.assert_diverges(path, desk.make_server(add=handler))
    place = desk.first_of_add(path, ordinal)
    assert (divergence.record, divergence.lane) == (place, world.records(path)[place]["l"])


async def without_timeout(state, ctx, amount):
    await ctx.list_roots()
    return 1


def test_a_removed_timeout_diverges_at_the_cancellation(desk, world, path):
    divergence = desk.assert_diverges(path, desk.make_server(in_time=without_timeout))
    assert world.records(path)[divergence.record]["k"] == "cxl"
    assert "no longer comes to the cancellation" in str(divergence)


async def longer_sleep(state, ctx, amount):
    await trio.sleep(0.2)
    await ctx.progress(1)
    state["door"].set()
    return amount


def test_a_longer_sleep_diverges_at_the_next_record(desk, world, path):
    divergence = desk.assert_diverges(path, desk.make_server(open_door=longer_sleep))
    place = world.place_of(
        path,
        lambda r: r["k"] == "out" and r["f"].get("params") == {"progressToken": 12, "progress": 1},
    )
    assert divergence.record == place


async def beat_once_more(state, ctx, amount):
    async def beat():
        await trio.sleep(0.001)
        await ctx.info("alive")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
    return 0


async def beat_twice(state, ctx, amount):
    async def beat():
        await trio.sleep(0.001)
        await ctx.info("alive")
        await ctx.info("alive")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(beat)
    return 0


def test_a_child_task_that_does_more_is_named(desk, world, tmp_path):
    async def ask(peer, session):
        await peer.handshake()
        await peer.send(desk.call(1, "heartbeat", 1), desk.call(2, "heartbeat", 1))
        await trio.sleep(0.1)

    recorded = desk.make_server(heartbeat=beat_once_more)
    path = world.record(recorded, tmp_path / "a.mcprec.jsonl", ask)
    divergence = desk.assert_diverges(path, desk.make_server(heartbeat=beat_twice))
    result = world.place_of(path, lambda r: r["k"] == "out" and r.get("l") in {"r5", "r6"})
    assert divergence.record == result  # the handler's result waits for its child task
    assert divergence.lane == f"{world.records(path)[result]['l']}.0"
    assert "an operation that is not in the recording" in str(divergence)


def test_a_request_that_does_not_end_any_more_diverges(desk, path):
    async def never(state, ctx, amount):
        await trio.sleep_forever()

    assert "no longer comes to" in str(desk.assert_diverges(path, desk.make_server(add=never)))


def test_the_report_names_records_changes_waiting_lanes_and_remedies(desk, world, path):
    place = desk.first_of_add(path, 1)
    record = world.records(path)[place]
    total = len(world.records(path))
    lines = str(desk.assert_diverges(path, desk.make_server(add=add_in_another_order))).splitlines()
    assert lines[0] == (
        f"replay diverged at record {place} of {total} (+{record['t'] / 1e6:.1f} ms),"
        f' tools/call "add", lane {record["l"]}, operation 1'
    )
    assert lines[1].startswith('  recorded:  out   {"jsonrpc":"2.0","id":1,"method":"roots/list"')
    assert lines[2].startswith(
        '  replay:    out   {"jsonrpc":"2.0","method":"notifications/message"'
    )
    assert f" by lane {record['l']}, operation 1  at test_changed_handlers.py:" in lines[2]
    assert lines[3].startswith("  changed:   $.id: 1 became nothing")
    assert "  meaning:   the code did not do this send here when recorded" in lines
    waiting = next(line for line in lines if line.startswith("  waiting:"))
    assert re.search(
        r"r6 in add at conftest\.py:\d+ \(not started\),"
        r" r7 in wait at conftest\.py:\d+ \(not started\)$",
        waiting,
    )
    assert lines[-1] == (
        '  choose:    fix the code | guard the change with ctx.patched("change")'
        ' | record the session again | replay(mode="outbound")'
    )


def test_the_report_of_a_changed_result_has_the_location_of_the_last_call_and_of_waiting_lanes(
    desk, path
):
    divergence = desk.assert_diverges(path, desk.make_server(add=add_wrongly))
    assert re.search(r"r7 at conftest\.py:\d+[,\n]", str(divergence))
    assert re.search(r"r6 at test_changed_handlers\.py:\d+ \(for its turn\)", str(divergence))
    assert "operation 3  after the call at test_changed_handlers.py:" in str(divergence)
