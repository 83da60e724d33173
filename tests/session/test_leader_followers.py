"""A leader runs the first step of a job in its own task and continues in another if it suspends."""

import gc
import weakref
from contextvars import ContextVar, copy_context

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._session.leader_followers import CollectedJob, TaskPool, lead
from tests.session.test_task_pool import Job

COLOUR = ContextVar("colour", default="none")


async def settled():
    await trio.testing.wait_all_tasks_blocked()


async def nothing():
    """A handler that waits for nothing."""


class Serving:
    """Serves one job after the other, and tells in which task it was before each, and at the end."""

    def __init__(self, warm, jobs, context=None):
        self.warm, self.jobs, self.context = warm, jobs, context or copy_context()
        self.tasks = []
        self.has_ended = False

    async def __call__(self):
        try:
            for job in self.jobs:
                self.tasks.append(trio.lowlevel.current_task())
                await lead([CollectedJob(job, self.context, self.warm)])
            self.tasks.append(trio.lowlevel.current_task())
        finally:
            self.has_ended = True


@pytest.fixture
def warm(nursery):
    return TaskPool(nursery)


@pytest.fixture
def serve(warm):
    """Has jobs served, until nothing goes on any more."""

    async def serve(*jobs, context=None):
        serving = Serving(warm, jobs, context)
        warm.start_leader(serving)
        await settled()
        return serving

    return serve


async def test_a_job_that_does_not_suspend_runs_in_the_task_of_the_leader(serve):
    jobs = [Job(nothing), Job(nothing)]
    serving = await serve(*jobs)
    assert len({*serving.tasks, *(job.task for job in jobs)}) == 1
    assert all(job.ended.is_set() for job in jobs)
    assert serving.has_ended


async def test_a_job_that_suspends_keeps_the_task_and_the_leader_continues_in_another(
    serve, autojump_clock
):
    slow, quick = Job(lambda: trio.sleep(1)), Job(nothing)
    serving = await serve(slow, quick)
    assert serving.has_ended
    assert quick.ended.is_set()
    assert not slow.ended.is_set()
    first, *later = serving.tasks
    assert slow.task is first
    assert first not in later
    assert quick.task in later
    await slow.ended.wait()
    assert slow.error is None


class FullJob(Job):
    """A job that has to wait before its first step."""

    def run_in_leader(self, _):
        return None


async def test_a_job_that_has_to_wait_before_its_first_step_gets_another_task(serve):
    full, quick = FullJob(nothing), Job(nothing)
    serving = await serve(full, quick)
    assert full.ended.is_set()
    assert full.task not in serving.tasks
    assert {quick.task} == {*serving.tasks}


async def test_a_cancelled_scope_cancels_only_its_suspended_job(serve):
    slow, quick = Job(trio.sleep_forever), Job(nothing)
    serving = await serve(slow, quick)
    slow.scope.cancel()
    await settled()
    assert slow.ended.is_set()
    assert slow.error is None
    assert not quick.scope.cancel_called
    assert serving.has_ended


async def test_a_job_that_cancels_its_own_scope_cancels_no_other_job(serve):
    async def cancel():
        hasty.scope.cancel()

    hasty, slow = Job(cancel), Job(trio.lowlevel.checkpoint)
    serving = await serve(hasty, slow)
    assert hasty.ended.is_set()
    assert slow.ended.is_set()
    assert not slow.scope.cancel_called
    assert serving.has_ended


async def test_each_job_has_its_own_context_variables_before_and_after_a_checkpoint(serve):
    painted, looked = [], []

    async def paint():
        painted.append(COLOUR.get())
        COLOUR.set("red")
        await trio.lowlevel.checkpoint()
        painted.append(COLOUR.get())

    async def look():
        looked.append(COLOUR.get())
        COLOUR.set("blue")

    green = copy_context()
    green.run(COLOUR.set, "green")
    await serve(Job(look), Job(paint), Job(look), context=green)
    assert (painted, looked) == (["green", "red"], ["green", "green"])
    assert green[COLOUR] == "green"
    assert COLOUR.get() == "none"


@pytest.mark.parametrize("waits", [False, True])
async def test_a_failing_job_does_not_affect_other_jobs(serve, waits):
    async def fail():
        if waits:
            await trio.lowlevel.checkpoint()
        raise KeyError("x")

    failing, after = Job(fail), Job(nothing)
    serving = await serve(failing, after)
    assert isinstance(failing.error, KeyError)
    assert failing.ended.is_set()
    assert after.error is None
    assert serving.has_ended


@pytest.mark.parametrize("waits", [False, True])
async def test_a_cancel_scope_left_open_fails_only_its_own_job(serve, waits):
    left = trio.CancelScope()

    async def careless():
        left.__enter__()
        if waits:
            await trio.lowlevel.checkpoint()

    first, second = Job(careless), Job(trio.lowlevel.checkpoint)
    serving = await serve(first, second)
    left.cancel()
    third = Job(trio.lowlevel.checkpoint)
    await serve(third)
    assert "Cancel scope stack corrupted" in str(first.error)
    assert (second.error, third.error) == (None, None)
    assert all(job.ended.is_set() for job in (first, second, third))
    assert serving.has_ended


async def test_a_task_inside_a_cancel_scope_does_not_lead(warm, autojump_clock):
    slow, quick, tasks = Job(lambda: trio.sleep(5)), Job(nothing), []

    async def serving():
        with trio.move_on_after(9):
            for job in (slow, quick):
                tasks.append(trio.lowlevel.current_task())
                await lead([CollectedJob(job, copy_context(), warm)])
        tasks.append(trio.lowlevel.current_task())

    warm.start_leader(serving)
    await slow.ended.wait()
    await settled()
    assert len(set(tasks)) == 1
    assert not {slow.task, quick.task} & set(tasks)


async def test_without_access_to_trios_cancel_status_no_task_leads(serve, monkeypatch):
    monkeypatch.setattr("mcp_trio._session.leader_followers._INNERMOST_SCOPE", "_nothing_like_it")
    job = Job(nothing)
    serving = await serve(job)
    assert job.ended.is_set()
    assert job.task not in serving.tasks


@pytest.mark.parametrize("waits", [False, True])
async def test_a_leader_keeps_no_reference_to_a_finished_job(warm, waits):
    async def work():
        if waits:
            await trio.lowlevel.checkpoint()

    async def serving():
        await lead([CollectedJob(jobs.pop(), copy_context(), warm)])
        await trio.sleep_forever()

    jobs = [Job(work)]
    gone = weakref.ref(jobs[0])
    warm.start_leader(serving)
    await settled()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("waits", [False, True])
async def test_a_base_exception_propagates(waits):
    async def leave():
        if waits:
            await trio.lowlevel.checkpoint()
        raise SystemExit(1)

    with pytest.RaisesGroup(SystemExit):
        async with trio.open_nursery() as nursery:
            warm = TaskPool(nursery)
            serving = Serving(warm, [Job(leave), Job(trio.sleep_forever)])
            warm.start_leader(serving)
    assert serving.has_ended


async def test_an_error_at_the_end_of_a_job_propagates_and_ends_the_leader():
    class Fragile(Job):
        def end(self):
            raise KeyError("end")

    with pytest.RaisesGroup(KeyError):
        async with trio.open_nursery() as nursery:
            warm = TaskPool(nursery)
            serving = Serving(warm, [Fragile(nothing)])
            warm.start_leader(serving)
    assert serving.has_ended


async def test_a_leader_is_cancelled_in_any_task_that_it_continues_in():
    seen = []

    async def serving():
        await lead([CollectedJob(Job(trio.sleep_forever), copy_context(), warm)])
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            seen.append("cancelled")
            raise

    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        warm.start_leader(serving)
        await settled()
        nursery.cancel_scope.cancel()
    assert seen == ["cancelled"]


async def test_a_leader_catches_the_errors_of_its_own_waits(warm):
    caught = []

    async def serving():
        await lead([CollectedJob(Job(trio.lowlevel.checkpoint), copy_context(), warm)])
        try:
            with trio.fail_after(0):
                await trio.sleep_forever()
        except trio.TooSlowError as error:
            caught.append(error)

    warm.start_leader(serving)
    await settled()
    assert len(caught) == 1


# The first steps of jobs


async def test_collect_returns_the_started_jobs(warm):
    first, second = Job(nothing), Job(nothing)

    def deliver():
        for job in (first, second):
            warm.start_job(job, copy_context())
        return "delivered"

    delivered, collected = warm.collect(deliver)
    await settled()
    assert delivered == "delivered"
    assert [each.job for each in collected] == [first, second]
    assert not first.ended.is_set()
    assert not second.ended.is_set()
    for each in collected:
        each.run_in_pool()
    later = Job(nothing)
    warm.start_job(later, copy_context())
    await settled()
    assert (first.ended.is_set(), later.ended.is_set()) == (True, True)


async def test_collect_returns_no_steps_if_no_job_is_started(warm):
    assert warm.collect(lambda: None) == (None, [])


async def test_jobs_started_before_an_error_in_collect_still_run(warm):
    job = Job(nothing)

    def deliver():
        warm.start_job(job, copy_context())
        raise KeyError("x")

    with pytest.raises(KeyError):
        warm.collect(deliver)
    await settled()
    assert job.ended.is_set()


# Served connections


@pytest.mark.slow
@given(st.lists(st.lists(st.sampled_from(["sleep", "yield", "fail"]), max_size=3), max_size=6))
def test_every_step_of_every_job_runs_once_and_in_order(programs):
    seen = []

    def job(place, steps):
        async def work():
            for at, step in enumerate(steps):
                seen.append((place, at))
                if step == "fail":
                    raise KeyError(place)
                await (trio.sleep(1) if step == "sleep" else trio.lowlevel.checkpoint())

        return Job(work)

    async def main():
        jobs = [job(place, steps) for place, steps in enumerate(programs)]
        async with trio.open_nursery() as nursery:
            warm = TaskPool(nursery)
            warm.start_leader(Serving(warm, jobs))
            await trio.sleep(10)
            warm.close()
        return jobs

    jobs = trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert all(job.ended.is_set() for job in jobs)
    for place, steps in enumerate(programs):
        reached = steps.index("fail") + 1 if "fail" in steps else len(steps)
        assert [at for who, at in seen if who == place] == list(range(reached))
        assert isinstance(jobs[place].error, KeyError) == ("fail" in steps)
    begun = [who for who, at in seen if at == 0]
    assert begun == sorted(begun)
