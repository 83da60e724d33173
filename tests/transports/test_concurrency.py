"""Wakeups, light events and fair semaphores."""

import signal

import pytest
import trio
import trio.testing

from mcp_trio._protocol.shares import Shares
from mcp_trio._transports.concurrency import FairSemaphore, LightEvent, Wakeup, errors_handled_by


@pytest.fixture
def waiters(nursery):
    """Let this number of tasks wait; returns those that were woken."""

    async def start(what, count=2):
        woken = []

        async def wait(number):
            await what.wait()
            woken.append(number)

        for number in range(count):
            nursery.start_soon(wait, number)
        await trio.testing.wait_all_tasks_blocked()
        return woken

    return start


async def test_a_waiting_task_is_woken_by_the_next_wake_only(waiters):
    wakeup = Wakeup()
    wakeup.wake()
    woken = await waiters(wakeup)
    assert woken == []
    wakeup.wake()
    late = await waiters(wakeup)
    assert (sorted(woken), late) == ([0, 1], [])
    wakeup.wake()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(late) == [0, 1]


async def test_nothing_is_kept_without_waiting_tasks(waiters, autojump_clock):
    wakeup = Wakeup()
    for seconds in (1, 2):
        with trio.move_on_after(seconds):
            await wakeup.wait()
        assert wakeup._waiting is None
    await waiters(wakeup)
    with trio.move_on_after(1):
        await wakeup.wait()
    assert wakeup._waiting is not None
    wakeup.wake()
    assert wakeup._waiting is None


async def test_an_event_is_set_once(waiters):
    milestone = LightEvent()
    woken = await waiters(milestone)
    assert not milestone.is_set()
    for _ in range(2):
        milestone.set()
        assert milestone.is_set()
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(woken) == [0, 1]
    with trio.testing.assert_checkpoints():
        await milestone.wait()


async def test_functions_are_called_once_and_before_waiting_tasks(waiters):
    milestone, story = LightEvent(), []
    woken = await waiters(milestone)
    for name in "ab":
        milestone.when_set(lambda name=name: story.append((name, milestone.is_set(), list(woken))))
    assert story == []
    for _ in range(2):
        milestone.set()
    assert story == [("a", True, []), ("b", True, [])]
    milestone.when_set(lambda: story.append("late"))
    assert story[2:] == ["late"]
    await trio.testing.wait_all_tasks_blocked()
    assert sorted(woken) == [0, 1]


# Errors of system tasks are contained; cancellation and interrupts are passed on.


def test_errors_are_contained_alone_and_in_groups():
    kept = []
    for fault in (ValueError("a"), ExceptionGroup("", [ValueError("b")]), SystemExit(3)):
        with errors_handled_by(kept.append):
            raise fault
    first, second, third = kept
    assert [str(each) for each in first.exceptions] == ["a"]
    assert second.subgroup(ValueError) is not None
    assert third.subgroup(SystemExit) is not None


async def test_a_cancellation_leaves_but_not_together_with_an_error():
    kept = []
    with trio.CancelScope() as scope:
        scope.cancel()
        with errors_handled_by(kept.append):
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert kept == []
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.cancel()
        with errors_handled_by(kept.append):
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                raise ValueError("c")
    (fault,) = kept
    assert fault.subgroup(trio.Cancelled) is None


def test_an_interrupt_reaches_the_main_task():
    kept, come = [], []
    before = signal.signal(signal.SIGINT, lambda *_: come.append(True))
    try:
        with errors_handled_by(kept.append):
            raise KeyboardInterrupt
        assert come == [True]
        with errors_handled_by(kept.append):
            raise ValueError
        assert come == [True]
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(kept) == 2


def test_without_an_error_nothing_is_contained():
    with errors_handled_by(pytest.fail):
        pass


async def test_clients_take_turns_at_a_semaphore(nursery):
    semaphore, order = FairSemaphore(Shares(1, 2, "places")), []

    async def take(client, number):
        await semaphore.acquire(client)
        order.append((client, number))

    for client in ("a", "a", "a", "b"):
        nursery.start_soon(take, client, len(order))
        await trio.testing.wait_all_tasks_blocked()
    assert order == [("a", 0), ("b", 1)]
    semaphore.release("b")
    await trio.testing.wait_all_tasks_blocked()
    assert order == [("a", 0), ("b", 1)]
    semaphore.release("a")
    await trio.testing.wait_all_tasks_blocked()
    assert order == [("a", 0), ("b", 1), ("a", 1)]


async def test_a_cancelled_wait_takes_no_place(autojump_clock):
    semaphore = FairSemaphore(Shares(1, 2, "places"))
    await semaphore.acquire("a")
    with trio.move_on_after(1) as timeout:
        await semaphore.acquire("a")
    assert timeout.cancelled_caught
    semaphore.release("a")
    with trio.fail_after(1):
        await semaphore.acquire("a")
