"""A pool of tasks that run jobs one after the other, and the poller of idle connections."""

import gc
import select
import weakref
from contextvars import ContextVar, copy_context
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._session.exceptions import call_concurrently, exception_to_raise
from mcp_trio._session.lanes import LANE, Lane, watch_lanes
from mcp_trio._session.leader_followers import (
    _IDLE_TASKS_MAX,
    _READY_MAX,
    CollectedJob,
    Leader,
    Poller,
    TaskPool,
    lead,
)
from mcp_trio._transports.concurrency import IdleConnection
from tests.processes import open_descriptors
from tests.session.idle_connections import (
    NAME,
    Connection,
    settled,
    task,
    tasks_living,
)

COLOUR = ContextVar("colour", default="none")


class Job:
    """A job of a test, which tells what became of it."""

    def __init__(self, work):
        self.work = work
        self.task = self.scope = self.error = None
        self.began_with, self.lane = None, None
        self.ended = trio.Event()

    @property
    def is_cancelled(self):
        return self.scope is not None and self.scope.cancel_called

    async def run(self, scope):
        self.began_with = COLOUR.get()
        self.task, self.scope = trio.lowlevel.current_task(), scope
        await self.work()

    run_in_leader = run

    def fail(self, error):
        self.error = error

    def end(self):
        self.ended.set()


async def at_once():
    await trio.lowlevel.checkpoint()


@pytest.fixture
def warm(nursery):
    return TaskPool(nursery)


@pytest.fixture
def done(warm):
    """Has a job done, and all that follows."""

    async def done(work=at_once, context=None):
        job = Job(work)
        warm.start_job(job, context or copy_context())
        await trio.testing.wait_all_tasks_blocked()
        assert job.ended.is_set()
        return job

    return done


async def test_an_idle_task_takes_the_next_job_with_the_same_cancel_scope(done):
    first, second = await done(), await done()
    assert (first.task, first.scope) == (second.task, second.scope)


async def test_concurrent_jobs_have_separate_tasks(warm, autojump_clock):
    jobs = [Job(lambda: trio.sleep(1)) for _ in range(3)]
    for job in jobs:
        warm.start_job(job, copy_context())
    await trio.sleep(2)
    assert len({id(job.task) for job in jobs}) == 3
    assert all(job.ended.is_set() for job in jobs)


async def test_each_job_starts_with_only_the_context_variables_of_its_session(done):
    async def paint():
        COLOUR.set("red")

    green = copy_context()
    green.run(COLOUR.set, "green")
    jobs = [await done(paint), await done(paint), await done(paint, green), await done(paint)]
    assert [job.began_with for job in jobs] == ["none", "none", "green", "none"]
    assert len({id(job.task) for job in jobs}) == 1
    assert green[COLOUR] == "green"


async def test_a_job_gets_a_lane_like_a_spawned_task(done):
    watch_lanes()
    seen, context = [], copy_context()
    context.run(LANE.set, Lane("r1"))

    async def look():
        seen.append(LANE.get().name)

    for _ in range(3):
        await done(look, context)
    assert seen == ["r1.0", "r1.1", "r1.2"]


async def test_a_cancelled_scope_is_not_reused(warm, done):
    job = Job(trio.sleep_forever)
    warm.start_job(job, copy_context())
    await trio.testing.wait_all_tasks_blocked()
    assert not job.ended.is_set()
    job.scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    assert job.ended.is_set()
    assert job.error is None
    after = await done()
    assert after.scope is not job.scope
    assert after.task is job.task


async def test_a_scope_cancelled_after_its_job_is_not_reused(done):
    def cancel_late():
        job.scope.cancel()
        return trio.lowlevel.cancel_shielded_checkpoint()

    job = first = await done()
    second = await done(cancel_late)
    assert second.scope is first.scope
    third = await done()
    assert third.scope is not second.scope


async def test_a_cancel_scope_left_open_fails_only_its_own_job(done):
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
async def test_the_end_of_a_job_is_not_repeated_after_an_error(work):
    class Fragile(Job):
        ends = 0

        def end(self):
            self.ends += 1
            raise KeyError("end")

    async def run():
        work() if work is not at_once else await at_once()

    job = Fragile(run)
    with pytest.RaisesGroup(KeyError):
        async with trio.open_nursery() as nursery:
            TaskPool(nursery).start_job(job, copy_context())
    assert job.ends == 1


async def test_without_access_to_trios_cancel_status_no_scope_is_reused(done, monkeypatch):
    monkeypatch.setattr("mcp_trio._session.leader_followers._INNERMOST_SCOPE", "_nothing_like_it")
    first, second = await done(), await done()
    assert first.scope is not second.scope
    assert second.error is None


async def test_an_idle_task_keeps_no_reference_to_its_last_job(done):
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


async def test_idle_tasks_end_after_a_while(warm, autojump_clock):
    before = tasks_living()
    for _ in range(10):
        warm.start_job(Job(lambda: trio.sleep(1)), copy_context())
    await trio.sleep(2)
    assert tasks_living() == before + 11  # with the task that watches them
    needed = []
    for _ in range(30):
        needed.append(Job(at_once))
        warm.start_job(needed[-1], copy_context())
        await trio.sleep(1)
    assert len({id(job.task) for job in needed}) == 1
    assert tasks_living() == before + 2
    await trio.sleep(30)
    assert tasks_living() == before


async def test_the_number_of_idle_tasks_is_limited(warm, autojump_clock):
    before = tasks_living()
    for _ in range(_IDLE_TASKS_MAX + 10):
        warm.start_job(Job(lambda: trio.sleep(1)), copy_context())
    await trio.sleep(2)
    assert tasks_living() == before + _IDLE_TASKS_MAX + 1


async def test_a_closed_pool_keeps_no_idle_tasks(autojump_clock):
    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        slow, quick = Job(lambda: trio.sleep(1)), Job(at_once)
        for job in (slow, quick):
            warm.start_job(job, copy_context())
        await quick.ended.wait()
        warm.close()
    assert slow.ended.is_set()
    assert trio.current_time() < 2


async def test_idle_tasks_end_with_their_nursery(autojump_clock):
    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        warm.start_job(Job(at_once), copy_context())
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert trio.current_time() < 2


# A handler that leaves a cancel scope or a nursery open fails alone.


async def timed():
    with trio.move_on_after(3600):
        yield 1
        yield 2


async def crowded():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        yield 1
        yield 2


async def first_of(generator):
    async for each in generator:
        return each
    return None


async def closed(generator):
    """Its nursery tells that its block was left early; whose task it was may end now."""
    with pytest.raises(BaseExceptionGroup) as raised:
        await generator.aclose()
    assert raised.group_contains(GeneratorExit)
    await trio.sleep(2)


async def bare_scope(kept):
    kept.append(trio.CancelScope())
    kept[0].__enter__()


async def kept_scope(kept):
    kept.append(timed())
    assert await first_of(kept[0]) == 1


async def kept_nursery(kept):
    kept.append(crowded())
    assert await first_of(kept[0]) == 1


@pytest.fixture
def kept():
    """The scopes that a handler leaves open until the end of the test."""
    left = []
    yield left
    left.clear()


@pytest.mark.parametrize("leave_open", [bare_scope, kept_scope, kept_nursery])
async def test_a_scope_left_open_by_a_handler_is_an_internal_error_of_its_request_only(
    leave_open, kept, serve, call, logged, autojump_clock
):
    async def careless(handling):
        await leave_open(kept)
        return "done"

    async def slow(handling):
        await trio.sleep(5)
        return "slow"

    _, peer = await serve({"careless": careless, "slow": slow})
    await peer.send(call("slow", 1), call("careless", 2))
    assert (await peer.receive())["error"] == {"code": -32603, "message": "internal error"}
    (line,) = logged()
    assert line.startswith("the handler of tools/call 'careless' failed: RuntimeError: ")
    await peer.send(call("slow", 3))
    answers = await peer.receive_many(2)
    assert {answer["id"] for answer in answers if "result" in answer} == {1, 3}
    if leave_open is kept_nursery:
        await closed(kept[0])


async def test_tasks_in_a_nursery_that_was_left_open_are_cancelled(
    kept, serve, call, logged, autojump_clock
):
    ended = trio.Event()

    async def ends():
        try:
            await trio.sleep_forever()
        finally:
            ended.set()

    async def crowd():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ends)
            yield

    async def careless(handling):
        kept.append(crowd())
        await first_of(kept[0])
        await trio.testing.wait_all_tasks_blocked()

    _, peer = await serve({"careless": careless})
    await peer.send(call("careless", 1))
    assert "error" in await peer.receive()
    with trio.fail_after(5):
        await ended.wait()
    (line,) = logged()
    assert line.startswith("the handler of tools/call 'careless' failed: RuntimeError: ")
    await closed(kept[0])


# The poller of idle connections.


async def start_connections(warm, count, act=None):
    connections = [Connection(warm, act, f"{number}") for number in range(count)]
    for connection in connections:
        warm.start_leader(connection)
    await settled()
    return connections


def close_ended(connections):
    """Check that the server has closed all connections, and close the ends of their clients."""
    assert [each.has_ended for each in connections] == [True] * len(connections)
    for connection in connections:
        connection.theirs.close()


@pytest.fixture
async def open_connections(warm):
    """Opens so many, which rest, and closes what is left of them."""
    opened = []

    async def open_connections(count, act=None):
        made = await start_connections(warm, count, act)
        opened.extend(made)
        return made

    yield open_connections
    for connection in opened:
        connection.theirs.close()
    await settled()
    assert all(each.has_ended for each in opened)


@pytest.fixture(params=["ours", "none", "full", "blind"])
def poller(request, monkeypatch):
    """The conditions of a poller: where one can be used, and where not.

    Not everywhere, not if there are too many descriptors, and not if it is unknown which scopes are
    open.
    """

    def fail():
        raise OSError(24, "Too many open files")

    if request.param == "none":
        system = SimpleNamespace(platform="darwin")
        monkeypatch.setattr("mcp_trio._session.leader_followers.sys", system)
    elif request.param == "full":
        monkeypatch.setattr(
            "mcp_trio._session.leader_followers.select", SimpleNamespace(epoll=fail)
        )
    elif request.param == "blind":
        monkeypatch.setattr(
            "mcp_trio._session.leader_followers._INNERMOST_SCOPE", "_nothing_like_it"
        )
    return request.param


async def test_a_connection_with_data_is_served(poller, open_connections):
    connections = await open_connections(5)
    for round_ in range(1, 4):
        for place, connection in enumerate(connections):
            connection.send(b"x" if place % 2 else b"yz")
        await settled()
        assert [each.received for each in connections] == [
            b"yz" * round_ if place % 2 == 0 else b"x" * round_ for place in range(5)
        ]


async def test_one_task_serves_all_idle_connections(open_connections, autojump_clock):
    before = tasks_living()
    connections = await open_connections(50)
    for connection in connections:
        connection.send(b"x")
    await settled()
    assert len({each for connection in connections for each in connection.tasks}) == 1
    await trio.sleep(60)
    assert tasks_living() == before + 1


async def test_a_single_idle_connection_is_joined_by_others(open_connections):
    (first,) = await open_connections(1)
    first.send(b"x")
    await settled()
    (second,) = await open_connections(1)
    second.send(b"x")
    await settled()
    first.send(b"y")
    await settled()
    assert (first.received, second.received) == (b"xy", b"x")


async def test_data_that_arrived_before_the_wait_is_noticed(poller, warm, open_connections):
    await open_connections(1)
    late = Connection(warm)
    late.send(b"xyz")
    warm.start_leader(late)
    late.theirs.close()
    await settled()
    assert (late.received, late.has_ended) == (b"xyz", True)


async def test_a_spurious_wakeup_of_an_idle_connection_is_harmless(poller, open_connections):
    (connection,) = await open_connections(1)
    trio.lowlevel.notify_closing(connection.ours.fileno())
    await settled()
    connection.send(b"x")
    await settled()
    assert connection.received == b"x"


async def test_each_connection_is_served_with_its_own_context_variables(poller, open_connections):
    async def rename(_):
        NAME.set(NAME.get() + "+")

    connections = await open_connections(3, rename)
    for _ in range(2):
        for connection in connections:
            connection.send(b"x")
        await settled()
    assert [each.names for each in connections] == [["0", "0+"], ["1", "1+"], ["2", "2+"]]
    assert NAME.get() == "unnamed"


async def test_a_connection_that_suspends_keeps_the_task_and_the_others_continue(
    open_connections, autojump_clock
):
    async def wait(data):
        if data == b"w":
            await trio.sleep(1)
            waited.append((task(), NAME.get()))

    waited = []
    first, *others = await open_connections(4, wait)
    for connection in (first, *others):
        connection.send(b"w" if connection is first else b"x")
    first.send(b"x")
    await settled()
    assert [each.received for each in others] == [b"x"] * 3
    assert first.received == b"w"
    await trio.sleep(2)
    assert first.received == b"wx"
    assert waited == [(first.tasks[0], "0")]
    assert first.names == ["0", "0"]
    others[0].send(b"y")
    await settled()
    assert others[0].received == b"xy"


@pytest.mark.parametrize("waits", [False, True])
async def test_a_suspended_job_does_not_stop_the_other_connections(
    warm, open_connections, autojump_clock, waits
):
    async def work():
        if waits:
            await trio.sleep(1)

    async def lead_one(data):
        if data == b"l":
            jobs.append(Job(work))
            await lead([CollectedJob(jobs[-1], copy_context(), warm)])

    jobs = []
    connections = await open_connections(3, lead_one)
    connections[1].send(b"lx")
    for connection in connections:
        connection.send(b"x")
    await settled()
    (job,) = jobs
    assert [each.received for each in connections] == [b"x", b"lxx", b"x"]
    assert job.task is connections[1].tasks[0]
    assert job.ended.is_set() != waits
    await trio.sleep(2)
    assert job.ended.is_set()
    for connection in connections:
        connection.send(b"y")
    await settled()
    assert [each.received for each in connections] == [b"xy", b"lxxy", b"xy"]


async def test_a_job_that_cancels_itself_affects_no_other(warm, open_connections):
    async def cancel():
        job.scope.cancel()

    async def lead_it(data):
        if data == b"l":
            await lead([CollectedJob(job, copy_context(), warm)])

    job = Job(cancel)
    connections = await open_connections(2, lead_it)
    connections[0].send(b"lx")
    connections[1].send(b"x")
    await settled()
    assert [each.received for each in connections] == [b"lx", b"x"]
    assert job.ended.is_set()


async def test_a_cancel_scope_left_open_affects_no_other_connection(open_connections, caplog):
    async def leave_open(data):
        if data == b"o":
            left.__enter__()

    left = trio.CancelScope()
    connections = await open_connections(3, leave_open)
    connections[0].send(b"o")
    await settled()
    left.cancel()
    for connection in connections:
        connection.send(b"x")
    await settled()
    assert [each.received for each in connections] == [b"ox", b"x", b"x"]
    assert connections[1].tasks[0] is not connections[0].tasks[0]
    (logged,) = caplog.records
    assert logged.message == "an HTTP handler left a cancel scope or a nursery open"


async def test_a_cancel_scope_left_open_in_a_separate_task_affects_no_other_connection(
    open_connections, caplog, autojump_clock
):
    async def leave_open(data):
        if data == b"o":
            await trio.sleep(1)
            left.__enter__()

    left = trio.CancelScope()
    connections = await open_connections(2, leave_open)
    connections[0].send(b"o")
    await trio.sleep(2)
    left.cancel()
    for connection in connections:
        connection.send(b"x")
    await settled()
    assert [each.received for each in connections] == [b"ox", b"x"]
    (logged,) = caplog.records
    assert logged.message == "an HTTP handler left a cancel scope or a nursery open"


async def test_many_ready_connections_do_not_starve_other_tasks(open_connections):
    async def tick():
        while True:
            ticks.append(sum(len(each.received) for each in connections))
            await trio.lowlevel.checkpoint()

    ticks = [0]
    connections = await open_connections(6 * _READY_MAX)
    for connection in connections:
        connection.send(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        while not all(each.received for each in connections):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert max(late - early for early, late in pairwise(ticks)) <= 2 * _READY_MAX


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="idle connections have no poller")
async def test_ready_connections_of_different_clients_take_turns(open_connections):
    async def note(data):
        order.append(data)

    order = []
    connections = await open_connections(5 * _READY_MAX, note)
    others = connections[-3:]
    for connection in connections:
        connection.resting.network = "flood"
    for number, connection in enumerate(others):
        connection.resting.network = f"other {number % 2}"
    for connection in connections:
        connection.send(b"o" if connection in others else b"f")
    await settled()
    assert len(order) == len(connections)
    assert order.index(b"o") < _READY_MAX
    assert order[:_READY_MAX].count(b"o") == 3


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="idle connections have no poller")
@pytest.mark.parametrize("clients", [1, 2 * _READY_MAX])
async def test_connections_that_always_have_more_to_read_do_not_starve_another(
    open_connections, clients
):
    async def note(data):
        order.append(data)

    order = []
    *busy, other = connections = await open_connections(2 * _READY_MAX + 1, note)
    for number, connection in enumerate(busy):
        connection.resting.network = f"busy {number % clients}"
        connection.send(b"f" * 20)
    other.send(b"o")
    await settled()
    assert len(order) == 20 * len(busy) + 1
    assert order.index(b"o") < len(connections)


async def test_cancellation_closes_all_idle_connections(poller):
    kept = []

    def serve(connection):
        kept.append(connection())
        return kept[-1]

    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        connections = [Connection(warm) for _ in range(3)]
        for connection in connections:
            warm.start_leader(partial(serve, connection))
        await settled()
        nursery.cancel_scope.cancel()
    assert [each.has_ended for each in connections] == [True] * 3
    for connection in connections:
        connection.theirs.close()


async def test_cancellation_closes_a_connection_that_becomes_idle_later(autojump_clock):
    async def finish(_):
        with trio.CancelScope(shield=True):
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        connections = await start_connections(TaskPool(nursery), 2, finish)
        connections[0].send(b"x")
        await settled()
        nursery.cancel_scope.cancel()
    close_ended(connections)


async def test_cancellation_closes_all_connections_although_one_is_suspended():
    async with trio.open_nursery() as nursery:
        connections = await start_connections(TaskPool(nursery), 3, lambda _: trio.sleep_forever())
        connections[1].send(b"x")
        await settled()
        nursery.cancel_scope.cancel()
    close_ended(connections)


async def test_a_base_exception_propagates_and_closes_all_connections():
    async def leave(_):
        raise SystemExit(1)

    with pytest.RaisesGroup(SystemExit):
        async with trio.open_nursery() as nursery:
            connections = await start_connections(TaskPool(nursery), 3, leave)
            connections[0].send(b"x")
            await trio.sleep_forever()
    close_ended(connections)


async def test_after_the_last_connection_no_task_is_left(warm):
    before = open_descriptors()
    for _ in range(3):
        connections = await start_connections(warm, 3)
        for connection in connections:
            connection.theirs.close()
        await settled()
        assert all(each.has_ended for each in connections)
        assert open_descriptors() == before


async def test_a_closed_poller_has_no_connections(warm):
    poller = Poller()
    connections = [Connection(warm) for _ in range(4)]
    *closed, later = [Leader(connection(), copy_context()) for connection in connections]
    for connection, serving in zip(connections, [*closed, later], strict=True):
        assert isinstance(serving.step(), IdleConnection)
        connection.send(b"x")
        if serving is not later:
            poller.add(serving, connection.resting)
    assert await poller.next() in closed
    poller.close()
    assert not poller.has_idle_connections
    poller.add(later, connections[-1].resting)
    assert await poller.next() is later
    poller.close()
    assert all(each.has_ended for each in connections)
    assert all(each.resting.unregister is None for each in connections)
    for connection in connections:
        connection.theirs.close()


async def test_a_removed_socket_that_another_process_shares_is_not_polled(open_connections):
    """As after a fork, whose child has copies of all descriptors."""

    async def leave(data):
        if data == b"q":
            raise EOFError

    connections = await open_connections(3)
    connections[0].act = leave
    with connections[0].ours.dup():
        connections[0].send(b"q")
        await settled()
        assert connections[0].has_ended
        connections[0].send(b"xyz")
        handshake_timeouts = await open_connections(2)
        for connection in (*connections[1:], *handshake_timeouts):
            connection.send(b"x")
        await settled()
        assert [each.received for each in (*connections[1:], *handshake_timeouts)] == [b"x"] * 4
        assert [each.wakings for each in (*connections[1:], *handshake_timeouts)] == [1] * 4


async def test_the_poller_keeps_no_reference_to_a_removed_connection(warm, open_connections):
    await open_connections(2)
    connection = Connection(warm)
    gone = weakref.ref(connection)
    warm.start_leader(connection)
    await settled()
    connection.theirs.close()
    await settled()
    del connection
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("waits", [False, True])
async def test_an_idle_connection_keeps_no_reference_to_its_last_job(warm, open_connections, waits):
    async def work():
        if waits:
            await trio.lowlevel.checkpoint()

    async def lead_one(_):
        await lead([CollectedJob(jobs.pop(), copy_context(), warm)])

    jobs = [Job(work)]
    gone = weakref.ref(jobs[0])
    connection, _ = await open_connections(2, lead_one)
    connection.send(b"x")
    await settled()
    gc.collect()
    assert gone() is None


STEPS = st.tuples(st.integers(0, 4), st.sampled_from([b"x", b"w", b"l", b"s", b"c"]))


@pytest.mark.slow
@given(st.lists(st.lists(STEPS, max_size=12), max_size=8))
def test_all_data_of_all_connections_is_read_once_and_in_order(batches):
    async def main():
        async def act(data):
            if data == b"w":
                await trio.sleep(1)
            elif data in {b"l", b"s"}:
                waits = data == b"s"
                job = Job(lambda: trio.sleep(1 if waits else 0))
                await lead([CollectedJob(job, copy_context(), warm)])

        async with trio.open_nursery() as nursery:
            warm = TaskPool(nursery)
            connections = [Connection(warm, act) for _ in range(5)]
            for connection in connections:
                warm.start_leader(connection)
            written = [b""] * 5
            for batch in batches:
                for place, data in batch:
                    if data != b"c" and connections[place].theirs.fileno() >= 0:
                        connections[place].send(data)
                        written[place] += data
                    else:
                        connections[place].theirs.close()
                await settled()
            await trio.sleep(100)
            await settled()
            for connection in connections:
                connection.theirs.close()
            await settled()
            warm.close()
            assert [each.received for each in connections] == written
            assert all(each.has_ended for each in connections)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.001))


# The exception that leaves an internal nursery.


FAULT = KeyError("people's")


@pytest.fixture
async def cancelled():
    """A cancellation, as Trio raises it."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as caught:
            found = caught
            raise
    return found


def test_a_single_error_is_raised_without_its_group():
    assert exception_to_raise(ExceptionGroup("", [ExceptionGroup("", [FAULT])])) is FAULT


async def test_an_error_takes_precedence_over_cancellations(cancelled):
    inner = ExceptionGroup("", [FAULT])
    group = BaseExceptionGroup("", [cancelled, inner, BaseExceptionGroup("", [cancelled])])
    assert exception_to_raise(group) is FAULT


async def test_an_exception_that_is_neither_is_not_lost(cancelled):
    for members in ([cancelled], [FAULT, KeyboardInterrupt()]):
        group = BaseExceptionGroup("", members)
        assert exception_to_raise(group) is group


# Concurrent calls for several keys, and their errors.


async def test_the_answers_have_the_order_of_the_keys():
    async def ask(key):
        for _ in range(3 - key):
            await trio.lowlevel.checkpoint()
        return key * 2

    assert list((await call_concurrently([1, 3, 2], ask)).items()) == [(1, 2), (3, 6), (2, 4)]


async def test_of_simultaneous_errors_the_first_in_order_is_raised_without_a_group():
    for _ in range(20):
        go = trio.Event()

        async def ask(key, go=go):
            if key == "slow":
                await trio.sleep_forever()
            if key == "last":
                await trio.testing.wait_all_tasks_blocked()
                go.set()
                await trio.sleep_forever()
            await go.wait()
            raise ValueError(key)

        with pytest.raises(ValueError, match="a") as caught:
            await call_concurrently(["slow", "a", "b", "last"], ask, note="for {!r}")
        assert caught.value.args == ("a",)
        assert caught.value.__notes__ == ["for 'a'"]


async def test_an_error_is_raised_although_the_caller_is_cancelled():
    with trio.CancelScope() as scope:

        async def ask(key):
            scope.cancel()
            raise ValueError(key)

        with pytest.raises(ValueError, match="a") as caught:
            await call_concurrently("a", ask)
        assert not hasattr(caught.value, "__notes__")
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_a_cancellation_without_errors_is_raised():
    with trio.move_on_after(0) as scope:
        await call_concurrently("ab", lambda _: trio.sleep_forever())
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("interrupt", "raised"),
    [(KeyboardInterrupt, KeyboardInterrupt), (SystemExit, BaseExceptionGroup)],
)
async def test_an_interrupt_takes_precedence_over_an_error(interrupt, raised):
    async def ask(key):
        raise {"a": ValueError, "b": interrupt}[key]

    with pytest.raises(raised) as caught:
        await call_concurrently("ab", ask)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
