"""Lanes: the driver reports each step of a task to the sequencers of its lanes, and hides none."""

import contextvars
import functools
import gc
import types
import weakref

import pytest
import trio
import trio.testing

from mcp_trio._session.lanes import (
    LANE,
    Lane,
    as_spawned,
    drive,
    drive_in,
    enter_lane,
    lane_in,
    operation,
    watch_lanes,
)


class Steps:
    """A sequencer that notes the steps of lanes; a lane in `held` waits for its turn."""

    def __init__(self):
        self.taken = []
        self.held = {}

    def lane(self, name, **options):
        return Lane(name, self, has_steps=True, **options)

    def step(self, lane):
        if lane.name in self.held:
            return self._turn(lane.name)
        self.taken.append(lane.name)
        return None

    async def _turn(self, name):
        with trio.CancelScope(shield=True):
            await self.held[name].wait()
        self.taken.append(name)


@pytest.fixture
def steps():
    """A sequencer that notes steps."""
    return Steps()


@types.coroutine
def two_waits():
    """Wait twice; return the error of the second wait."""
    value = yield "first"
    try:
        yield value
    except KeyError as error:
        return error


# The driver.


async def test_each_step_of_a_coroutine_is_journaled_before_it_begins(steps):
    async def acts():
        for name in "ab":
            steps.taken.append(name)
            await trio.lowlevel.checkpoint()
        return "done"

    assert await drive(acts(), (steps.lane("r1"),)) == "done"
    assert steps.taken == ["r1", "a", "r1", "b", "r1"]


def test_traps_values_errors_and_results_pass_through(steps):
    driven = drive(two_waits(), (steps.lane("r1"),))
    assert driven.send(None) == "first"
    assert driven.send("value") == "value"
    fault = KeyError("name")
    with pytest.raises(StopIteration) as stop:
        driven.throw(fault)
    assert stop.value.value is fault
    assert steps.taken == ["r1"] * 3


def test_an_error_of_the_coroutine_is_raised(steps):
    driven = drive(two_waits(), (steps.lane("r1"),))
    driven.send(None)
    with pytest.raises(ValueError, match="no"):
        driven.throw(ValueError("no"))


def test_a_coroutine_that_waits_already_takes_its_next_step_after_the_wait(steps):
    running = two_waits()
    driven = drive(running, (steps.lane("r1"),), running.send(None))
    assert driven.send(None) == "first"
    assert steps.taken == []
    assert driven.send("value") == "value"
    assert steps.taken == ["r1"]


def test_a_coroutine_that_is_closed_takes_no_step(steps):
    is_closed = []

    @types.coroutine
    def waits():
        try:
            yield
        finally:
            is_closed.append(True)

    driven = drive(waits(), (steps.lane("r1"),))
    driven.send(None)
    steps.held["r1"] = None  # A turn can no longer be awaited.
    driven.close()
    assert is_closed == [True]
    assert steps.taken == ["r1"]


async def test_a_cancellation_that_ends_a_coroutine_leaves_no_reference_cycle(steps):
    errors = []

    async def acts():
        try:
            await trio.sleep_forever()
        except trio.Cancelled as error:
            errors.append(weakref.ref(error))
            raise

    gc.collect()
    gc.disable()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(drive_in, steps.lane("r1"), acts)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await trio.lowlevel.checkpoint()
        assert [error() for error in errors] == [None]
    finally:
        gc.enable()


async def test_a_lane_of_an_outer_session_takes_the_same_steps(steps):
    outer = Steps()
    lanes = (steps.lane("r1"), outer.lane("r7"))
    await drive(trio.lowlevel.checkpoint(), lanes)
    assert (steps.taken, outer.taken) == (["r1"] * 2, ["r7"] * 2)


async def test_lanes_that_wait_for_their_turn_go_on_in_the_order_of_their_turns(steps):
    done = []

    async def acts(name):
        done.append(name)

    for name in ("r1", "r2"):
        steps.held[name] = trio.Event()
    async with trio.open_nursery() as nursery:
        for name in ("r1", "r2"):
            nursery.start_soon(drive_in, steps.lane(name), functools.partial(acts, name))
        for name in ("r2", "r1"):
            await trio.testing.wait_all_tasks_blocked()
            assert len(done) == len(steps.taken)
            steps.held[name].set()
    assert done == steps.taken == ["r2", "r1"]


@pytest.mark.parametrize("has_come", [True, False], ids=["after", "during"])
async def test_a_lane_is_cancelled_at_its_next_wait_and_not_while_it_waits_for_its_turn(
    steps, has_come
):
    events = []
    event = trio.Event()

    async def acts():
        try:
            await event.wait()
            events.append("came")
            await trio.lowlevel.checkpoint()
        except trio.Cancelled:
            events.append("cancelled")
            raise

    async with trio.open_nursery() as nursery:
        nursery.start_soon(drive_in, steps.lane("r1"), acts)
        await trio.testing.wait_all_tasks_blocked()
        steps.held["r1"] = trio.Event()
        if has_come:
            event.set()
            await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.testing.wait_all_tasks_blocked()
            assert events == []
            steps.held["r1"].set()
    assert events == ["came"] * has_come + ["cancelled"]


async def test_a_actor_without_steps_only_has_a_lane(steps):
    names = []

    async def acts():
        await trio.lowlevel.checkpoint()
        names.append(lane_in(steps).name)

    await drive_in(Lane("close", steps), acts)
    assert names == ["close"]
    assert steps.taken == []


# Operations.


async def test_the_steps_of_an_operation_are_not_journaled(steps):
    lane = steps.lane("r1")

    async def acts():
        with operation(lane):
            await trio.lowlevel.checkpoint()
            with operation(lane):
                pass
            await trio.lowlevel.checkpoint()
        assert lane.has_waited
        steps.taken.append("after")
        await trio.lowlevel.checkpoint()

    await drive(acts(), (lane,))
    assert steps.taken == ["r1", "after", "r1"]


async def test_an_operation_without_a_wait_has_not_waited(steps):
    lane = steps.lane("r1")

    async def acts():
        with operation(lane):
            pass
        with operation(None):
            await trio.lowlevel.checkpoint()

    await drive(acts(), (lane,))
    assert not lane.has_waited
    assert steps.taken == ["r1"] * 2


async def test_an_operation_hides_no_steps_from_an_outer_session(steps):
    outer = Steps()
    lane = steps.lane("r1")

    async def acts():
        with operation(lane):
            await trio.lowlevel.checkpoint()

    await drive(acts(), (lane, outer.lane("r7")))
    assert (steps.taken, outer.taken) == (["r1"], ["r7"] * 2)


# Child tasks.


async def test_the_steps_of_child_tasks_are_journaled(steps):
    async def acts():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.checkpoint)
            await nursery.start(starts)

    async def starts(*, task_status):
        task_status.started()
        await trio.lowlevel.checkpoint()

    watch_lanes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drive_in, steps.lane("r1"), acts)
    assert [steps.taken.count(name) for name in ("r1.0", "r1.1")] == [2, 2]
    assert set(steps.taken) == {"r1", "r1.0", "r1.1"}


async def test_a_child_task_in_the_nursery_of_another_request_has_the_lane_of_its_spawner(steps):
    names = []
    has_nursery, is_done = trio.Event(), trio.Event()
    shared = []

    async def holds():
        async with trio.open_nursery() as nursery:
            shared.append(nursery)
            has_nursery.set()
            await is_done.wait()

    async def spawns():
        await has_nursery.wait()
        shared[0].start_soon(child)
        is_done.set()

    async def child():
        names.append(lane_in(steps).name)

    watch_lanes()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drive_in, steps.lane("r1"), holds)
        nursery.start_soon(drive_in, steps.lane("r2"), spawns)
    assert names == ["r2.0"]
    assert steps.taken.count("r2.0") == 1


async def test_a_child_task_that_waits_for_its_turn_has_not_begun(steps):
    ran = []

    async def child():
        ran.append(1)

    watch_lanes()
    enter_lane(steps.lane("r1"))
    steps.held["r1.0"] = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child)
        await trio.testing.wait_all_tasks_blocked()
        assert ran == []
        steps.held["r1.0"].set()
    assert ran == [1]


async def test_a_child_task_has_a_lane_in_each_session_of_its_parent(steps):
    outer = Steps()
    watch_lanes()
    enter_lane(outer.lane("r7"))
    enter_lane(steps.lane("r1"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.lowlevel.checkpoint)
    assert (steps.taken, outer.taken) == (["r1.0"] * 2, ["r7.0"] * 2)


def test_the_lane_of_a_thread_counts_as_a_child(steps):
    lane = steps.lane("r1", outer=steps.lane("r7"))
    thread, task = lane.child(has_own_pace=True), lane.child()
    assert [(each.name, each.outer.name) for each in (thread, task)] == [
        ("r1.0", "r7.0"),
        ("r1.1", "r7.1"),
    ]
    assert [each.has_own_pace for each in (thread, thread.outer, task)] == [True, True, False]
    assert thread.has_steps


async def test_a_task_of_the_pool_has_a_lane_of_its_own_only_if_its_spawner_has_one(steps):
    plain = trio.lowlevel.current_task().context
    assert as_spawned(plain).get(LANE) is None
    enter_lane(steps.lane("r1"))
    spawned = as_spawned(trio.lowlevel.current_task().context)
    assert spawned[LANE].name == "r1.0"
    assert LANE.get().name == "r1"


# Context variables of one request.


PLACE = contextvars.ContextVar("place", default="outside")


@pytest.mark.parametrize("ending", ["result", "error", "close"])
def test_each_step_of_a_coroutine_has_its_own_context_variables(ending):
    seen = []

    @types.coroutine
    def waits():
        PLACE.set("inside")
        try:
            seen.append((yield "first"))
        finally:
            seen.append(PLACE.get())
        return "done"

    running = drive(waits(), (), context=contextvars.copy_context())
    assert running.send(None) == "first"
    if ending == "result":
        with pytest.raises(StopIteration) as stop:
            running.send("value")
        assert stop.value.value == "done"
    elif ending == "error":
        with pytest.raises(KeyError):
            running.throw(KeyError())
    else:
        running.close()
    assert seen == ["value", "inside"][ending != "result" :]
    assert PLACE.get() == "outside"
