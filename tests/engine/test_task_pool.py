"""Tasks that run one handler after the other."""

import gc
import weakref
from contextvars import ContextVar, copy_context

import pytest
import trio
import trio.testing

from mcp_trio._session.journal import LANE, Lane, watch_lanes
from mcp_trio._session.leader_followers import _IDLE_TASKS_MAX, TaskPool

COLOUR = ContextVar("colour", default="none")


def tasks_living():
    return trio.lowlevel.current_statistics().tasks_living


class Job:
    """A job of a test, which tells what became of it."""

    def __init__(self, work, *, wants_own_task=False):
        self.work, self.wants_own_task = work, wants_own_task
        self.task = self.scope = self.error = None
        self.began_with = None
        self.ended = trio.Event()

    @property
    def is_cancelled(self):
        return self.scope is not None and self.scope.cancel_called

    def enter(self):
        self.began_with = COLOUR.get()

    async def run(self, scope):
        self.task, self.scope = trio.lowlevel.current_task(), scope
        await self.work()

    def fail(self, error):
        self.error = error

    async def end(self):
        self.ended.set()


async def at_once():
    await trio.lowlevel.checkpoint()


@pytest.fixture
def warm(nursery):
    return TaskPool(nursery)


@pytest.fixture
def done(warm):
    """Has a job done, and all that follows."""

    async def done(work=at_once, context=None, **options):
        job = Job(work, **options)
        warm.start(job, context or copy_context())
        await trio.testing.wait_all_tasks_blocked()
        assert job.ended.is_set()
        return job

    return done


async def test_a_task_that_is_done_takes_the_next_job_in_the_scope_that_it_has(done):
    first, second = await done(), await done()
    assert (first.task, first.scope) == (second.task, second.scope)


async def test_what_runs_at_once_has_a_task_each(warm, autojump_clock):
    jobs = [Job(lambda: trio.sleep(1)) for _ in range(3)]
    for job in jobs:
        warm.start(job, copy_context())
    await trio.sleep(2)
    assert len({id(job.task) for job in jobs}) == 3
    assert all(job.ended.is_set() for job in jobs)


async def test_each_job_begins_with_the_variables_of_its_session_alone(done):
    async def paint():
        COLOUR.set("red")

    green = copy_context()
    green.run(COLOUR.set, "green")
    jobs = [await done(paint), await done(paint), await done(paint, green), await done(paint)]
    assert [job.began_with for job in jobs] == ["none", "none", "green", "none"]
    assert len({id(job.task) for job in jobs}) == 1
    assert green[COLOUR] == "green"


async def test_a_job_takes_a_lane_as_a_task_that_is_spawned_would(done):
    watch_lanes()
    seen, context = [], copy_context()
    context.run(LANE.set, Lane("r1"))

    async def look():
        seen.append(LANE.get().name)

    for own in (False, False, True, False):
        await done(look, context, wants_own_task=own)
    assert seen == ["r1.0", "r1.1", "r1.2", "r1.3"]


async def test_a_job_that_wants_a_task_of_its_own_shares_none(done):
    warm_one = await done()
    alone = [await done(wants_own_task=True) for _ in range(2)]
    assert len({id(job.task) for job in (warm_one, *alone)}) == 3
    assert (await done()).task is warm_one.task


async def test_a_cancelled_scope_is_used_no_more(warm, done):
    job = Job(trio.sleep_forever)
    warm.start(job, copy_context())
    await trio.testing.wait_all_tasks_blocked()
    assert not job.ended.is_set()
    job.scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert job.ended.is_set()
    assert job.error is None
    after = await done()
    assert after.scope is not job.scope
    assert after.task is job.task


async def test_a_scope_that_was_cancelled_too_late_is_used_no_more_either(done):
    def cancel_late():
        job.scope.cancel()
        return trio.lowlevel.cancel_shielded_checkpoint()

    job = first = await done()
    second = await done(cancel_late)
    assert second.scope is first.scope
    third = await done()
    assert third.scope is not second.scope


async def test_what_is_left_open_fails_its_job_and_touches_no_other(done):
    left = trio.CancelScope()

    async def careless():
        left.__enter__()

    first = await done(careless)
    assert "Cancel scope stack corrupted" in str(first.error)
    left.cancel()
    second = await done(at_once)
    assert second.error is None
    assert second.scope is not first.scope


@pytest.mark.parametrize("work", [at_once, trio.CancelScope().__enter__])
async def test_what_goes_wrong_at_the_end_is_not_tried_again(work):
    class Fragile(Job):
        ends = 0

        async def end(self):
            self.ends += 1
            raise KeyError("end")

    async def run():
        work() if work is not at_once else await at_once()

    job = Fragile(run)
    with pytest.RaisesGroup(KeyError):
        async with trio.open_nursery() as nursery:
            TaskPool(nursery).start(job, copy_context())
    assert job.ends == 1


async def test_where_trio_does_not_tell_scopes_no_scope_is_used_twice(done, monkeypatch):
    monkeypatch.setattr("mcp_trio._session.leader_followers._INNERMOST", "_nothing_like_it")
    first, second = await done(), await done()
    assert first.scope is not second.scope
    assert second.error is None


async def test_what_rests_keeps_nothing_of_what_it_did(done):
    class Session:
        pass

    session = Session()

    async def work(session=session):
        COLOUR.set(session)

    job = await done(work)
    gone = [weakref.ref(each) for each in (session, job)]
    del session, job, work
    gc.collect()
    assert [each() for each in gone] == [None, None]


async def test_tasks_that_nobody_needs_end(warm, autojump_clock):
    before = tasks_living()
    for _ in range(10):
        warm.start(Job(lambda: trio.sleep(1)), copy_context())
    await trio.sleep(2)
    assert tasks_living() == before + 11  # with who looks after them
    needed = []
    for _ in range(30):
        needed.append(Job(at_once))
        warm.start(needed[-1], copy_context())
        await trio.sleep(1)
    assert len({id(job.task) for job in needed}) == 1
    assert tasks_living() == before + 2
    await trio.sleep(30)
    assert tasks_living() == before


async def test_only_so_many_rest(warm, autojump_clock):
    before = tasks_living()
    for _ in range(_IDLE_TASKS_MAX + 10):
        warm.start(Job(lambda: trio.sleep(1)), copy_context())
    await trio.sleep(2)
    assert tasks_living() == before + _IDLE_TASKS_MAX + 1


async def test_closed_nobody_rests_any_more(autojump_clock):
    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        slow, quick = Job(lambda: trio.sleep(1)), Job(at_once)
        for job in (slow, quick):
            warm.start(job, copy_context())
        await quick.ended.wait()
        warm.close()
    assert slow.ended.is_set()
    assert trio.current_time() < 2


async def test_the_end_of_the_nursery_ends_those_that_rest(autojump_clock):
    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        warm.start(Job(at_once), copy_context())
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert trio.current_time() < 2
