"""Wakeups and light events."""

import pytest
import trio
import trio.testing

from mcp_trio._transports.concurrency import LightEvent, Wakeup


@pytest.fixture
def waiters(nursery):
    """Let so many tasks wait; returns who has been woken."""

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
