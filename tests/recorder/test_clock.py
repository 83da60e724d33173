"""`TickClock`: time stands still in a turn of the event loop, and follows real time between them."""

import time

import trio

from mcp_trio._recorder.clock import seconds_of
from mcp_trio.recording import TickClock

BUSY_SECONDS = 0.002


def compute():
    """Keep the processor busy for `BUSY_SECONDS`."""
    until = time.perf_counter() + BUSY_SECONDS
    while time.perf_counter() < until:
        pass


def run(main):
    return trio.run(main, clock=TickClock())


def test_time_stands_still_while_a_task_computes():
    async def main():
        begin = trio.current_time()
        compute()
        return trio.current_time() - begin

    assert run(main) == 0


def test_the_tasks_of_a_turn_see_the_same_time():
    async def main():
        times = []

        async def look():
            times.append(trio.current_time())
            compute()

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(look)
        return times

    assert len(set(run(main))) == 1


def test_each_turn_has_another_time():
    async def main():
        times = []
        for _ in range(100):
            await trio.lowlevel.checkpoint()
            times.append(trio.current_time())
        return times

    times = run(main)
    assert times == sorted(set(times))


def test_time_follows_the_real_time_between_turns():
    async def main():
        begin = trio.current_time()
        compute()
        await trio.lowlevel.checkpoint()
        return trio.current_time() - begin

    assert run(main) >= BUSY_SECONDS


def test_a_deadline_that_passes_while_a_task_computes_expires_in_the_next_turn():
    async def main():
        with trio.move_on_after(BUSY_SECONDS / 2) as scope:
            compute()
            was_called = scope.cancel_called
            await trio.lowlevel.checkpoint()
        return was_called, scope.cancelled_caught

    assert run(main) == (False, True)


def test_a_sleep_takes_at_least_its_time():
    async def main():
        begin = time.perf_counter()
        await trio.sleep(BUSY_SECONDS)
        return time.perf_counter() - begin

    assert run(main) >= BUSY_SECONDS


def test_the_time_left_until_a_deadline_is_real_time():
    async def main():
        clock = trio.lowlevel.current_clock()
        deadline = trio.current_time() + 10
        compute()
        return clock.deadline_to_sleep_time(deadline)

    assert run(main) <= 10 - BUSY_SECONDS


def test_the_time_in_seconds_is_that_of_the_nanoseconds():
    async def main():
        return trio.current_time(), trio.lowlevel.current_clock().ns

    seconds, ns = run(main)
    assert seconds == seconds_of(ns) == ns / 1e9
