"""Sweeps find races, and repeat them by their seeds."""

import socket
import time

import msgspec
import pytest
import trio

from mcp_trio import Context, Server
from mcp_trio._cli.replay import sweep_summary
from mcp_trio.errors import BlockedInReplay
from mcp_trio.recording import UntrackedCall, sweep

SCHEDULES = 20


def test_a_race_is_found(sums, path):
    report = sweep(path, sums.make_server, schedules=SCHEDULES)
    assert not report.is_clean
    assert report.schedules == SCHEDULES
    assert 1 < report.outcomes < SCHEDULES
    assert 0 < len(report.failing_seeds) < SCHEDULES
    assert {difference.call for difference in report.differences} == {'tools/call "total"'}
    assert {difference.recorded for difference in report.differences} == {'"11"'}
    assert {difference.swept for difference in report.differences} <= {'"1"', '"10"'}
    assert {d.path for d in report.differences} == {"answer $.result.content[0].text"}


def test_a_failing_seed_fails_again_alone(sums, path):
    report = sweep(path, sums.make_server, schedules=SCHEDULES)
    seed = report.failing_seeds[0]
    expected = tuple(each for each in report.differences if each.seed == seed)
    for _ in range(3):
        alone = sweep(path, sums.make_server, seed=seed)
        assert alone.schedules == 1
        assert alone.differences == expected


def test_a_handler_with_a_lock_has_no_differences(sums, path):
    report = sweep(path, lambda: sums.make_server(exclusive=True), schedules=SCHEDULES)
    assert report.differences == ()
    assert report.is_clean


def test_schedules_differ_also_without_effects(sums, world, tmp_path):
    """Without a delay to play with, the order in which ready tasks run is all there is."""

    def make():
        server = Server("orders")
        come = []

        @server.tool
        async def come_in(name: str) -> str:
            await trio.lowlevel.checkpoint()
            come.append(name)
            return name

        @server.tool
        async def who_came() -> str:
            return ",".join(come)

        return server

    async def talk(peer, session):
        await peer.handshake()
        names = "abcd"
        await peer.send(*(sums.call(n, "come_in", name=name) for n, name in enumerate(names, 1)))
        for _ in names:
            await peer.receive()
        await peer.send(sums.call(9, "who_came"))
        await peer.receive()

    path = world.record(make(), tmp_path / "orders.mcprec.jsonl", talk)
    assert sweep(path, make, schedules=SCHEDULES).outcomes > 8


# What else may come of a request.


def test_an_answer_that_never_comes_is_a_difference(sums, path):
    async def total() -> int:
        await trio.sleep_forever()

    report = sweep(path, lambda: sums.changed_server(total=total), schedules=2)
    (first, second) = report.differences
    assert (first.path, first.swept, second.seed) == ("answer", "nothing", 1)
    assert 'seed 0: tools/call "total" (lane r' in str(first)


def test_a_handler_that_fails_is_a_difference(sums, path):
    async def total() -> int:
        raise ZeroDivisionError

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert (difference.path, difference.swept) == ("answer $.result", "nothing")


def test_a_handler_that_loops_without_waiting_is_ended(sums, path):
    async def total() -> int:
        while True:
            await trio.lowlevel.checkpoint()

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_a_handler_that_sleeps_again_and_again_is_ended(sums, path):
    async def total() -> int:
        while True:
            await trio.sleep(0.5)

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


@pytest.mark.parametrize("seconds", [0, 0.5, float("inf")])
def test_a_shielded_handler_is_ended(sums, path, seconds):
    async def total() -> int:
        with trio.CancelScope(shield=True):
            while True:
                await trio.sleep(seconds)

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_an_unrecorded_message_is_a_difference(sums, path):
    async def total(ctx: Context) -> int:
        await ctx.info("hello")
        return 11

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert (difference.path, difference.recorded) == ("answer $.id", "3")


def test_an_unrecorded_request_to_the_client_gets_no_answer(sums, path):
    async def total(ctx: Context) -> int:
        await ctx.list_roots()
        return 11

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert difference.path == "answer"


def test_requests_that_were_cancelled_are_not_compared(world, tmp_path, desk):
    path = world.record(desk.make_server(), tmp_path / "desk.mcprec.jsonl", desk.talk)
    report = sweep(path, desk.make_server, schedules=5)
    calls = {difference.call for difference in report.differences}
    assert 'tools/call "forever"' not in calls


def test_a_direct_clock_is_reported_and_a_direct_socket_ends_the_sweep(sums, path):
    async def total() -> int:
        assert time.time()
        return 11

    async def reaching() -> int:
        return socket.socket().fileno()

    (untracked_call,) = sweep(
        path, lambda: sums.changed_server(total=total), schedules=2
    ).untracked_calls
    assert untracked_call.call == "time.time"
    with pytest.raises(BlockedInReplay, match=r"socket\.socket\(\) at test_races.py"):
        sweep(path, lambda: sums.changed_server(total=reaching), schedules=2)


# What is shown.


def test_long_values_are_cut(sums, path):
    async def total() -> str:
        return "x" * 100_000

    (difference,) = sweep(path, lambda: sums.changed_server(total=total), schedules=1).differences
    assert len(difference.swept) == 301
    assert difference.swept.endswith("x…")


def test_the_report_shows_the_first_differences_and_the_untracked_calls(sums, path):
    report = sweep(path, sums.make_server, schedules=SCHEDULES)
    many = report.differences * SCHEDULES
    untracked_call = UntrackedCall(
        call="time.time", site="at a.py:3", lane="r5", instead="ctx.now()"
    )
    text = sweep_summary(
        msgspec.structs.replace(report, differences=many, untracked_calls=(untracked_call,)),
        "a",
        "b.py",
    )
    assert f"\nand {len(many) - 10} more\n" in text
    assert "\nuntracked call: time.time() at a.py:3 in lane r5: use ctx.now()\n" in text
