"""One timer for many waits."""

import trio
import trio.testing

from mcp_trio._transports.concurrency import TimerQueue, Wakeup


def tasks():
    return trio.lowlevel.current_statistics().tasks_living


async def test_each_wait_ends_when_it_has_taken_too_long(autojump_clock):
    patience, waited = TimerQueue(3), []

    async def wait():
        began = trio.current_time()
        await patience.wait(Wakeup())
        waited.append(trio.current_time() - began)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(wait)
            await trio.sleep(1)
    assert waited == [3] * 5


async def test_who_is_woken_in_time_waits_no_longer(autojump_clock):
    patience, wakeups = TimerQueue(3), [Wakeup(), Wakeup()]

    async with trio.open_nursery() as nursery:
        for wakeup in wakeups:
            nursery.start_soon(patience.wait, wakeup)
        await trio.sleep(1)
        wakeups[1].wake()
        wakeups[0].wake()
    assert trio.current_time() == 1
    await patience.wait(Wakeup())
    assert trio.current_time() == 4


async def test_nothing_runs_while_nobody_waits(autojump_clock):
    patience, before = TimerQueue(3), tasks()
    for _ in range(2):
        with trio.move_on_after(1):
            await patience.wait(Wakeup())
        assert tasks() == before + 1
        await trio.sleep(5)
        assert tasks() == before
