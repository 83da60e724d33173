"""One task waits for all that rest, and goes on with each in its own variables."""

import gc
import weakref
from contextvars import copy_context
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._session.leader_followers import (
    _READY_MAX,
    FirstStep,
    Leader,
    Poller,
    TaskPool,
    lead,
)
from mcp_trio._transports.socket_bytes import IdleConnection
from tests.engine.idle_connections import (
    NAME,
    Connection,
    open_descriptors,
    settled,
    task,
    tasks_living,
)
from tests.engine.test_task_pool import Job


@pytest.fixture
def warm(nursery):
    return TaskPool(nursery)


@pytest.fixture
async def open_connections(warm):
    """Opens so many, which rest, and closes what is left of them."""
    opened = []

    async def open_connections(count, act=None):
        made = [Connection(warm, act, f"{number}") for number in range(count)]
        opened.extend(made)
        for connection in made:
            warm.serve(connection)
        await settled()
        return made

    yield open_connections
    for connection in opened:
        connection.theirs.close()
    await settled()
    assert all(each.has_ended for each in opened)


@pytest.fixture(params=["ours", "none", "full", "blind"])
def poller(request, monkeypatch):
    """Whether there is one that can be used.

    Not everywhere, not if there are too many descriptors, and not if nobody knows which scopes are
    open.
    """

    def fail():
        raise OSError(24, "Too many open files")

    if request.param == "none":
        monkeypatch.setattr("mcp_trio._session.leader_followers.select", SimpleNamespace())
    elif request.param == "full":
        monkeypatch.setattr(
            "mcp_trio._session.leader_followers.select", SimpleNamespace(epoll=fail)
        )
    elif request.param == "blind":
        monkeypatch.setattr("mcp_trio._session.leader_followers._INNERMOST", "_nothing_like_it")
    return request.param


async def test_whoever_has_something_to_read_goes_on(poller, open_connections):
    connections = await open_connections(5)
    for round_ in range(1, 4):
        for place, connection in enumerate(connections):
            connection.say(b"x" if place % 2 else b"yz")
        await settled()
        assert [each.received for each in connections] == [
            b"yz" * round_ if place % 2 == 0 else b"x" * round_ for place in range(5)
        ]


async def test_one_task_goes_on_with_all(open_connections, autojump_clock):
    before = tasks_living()
    connections = await open_connections(50)
    for connection in connections:
        connection.say(b"x")
    await settled()
    assert len({each for connection in connections for each in connection.tasks}) == 1
    await trio.sleep(60)
    assert tasks_living() == before + 1


async def test_one_that_rests_alone_is_joined_by_others(open_connections):
    (first,) = await open_connections(1)
    first.say(b"x")
    await settled()
    (second,) = await open_connections(1)
    second.say(b"x")
    await settled()
    first.say(b"y")
    await settled()
    assert (first.received, second.received) == (b"xy", b"x")


async def test_what_is_there_before_it_rests_is_seen(poller, warm, open_connections):
    await open_connections(1)
    late = Connection(warm)
    late.say(b"xyz")
    warm.serve(late)
    late.theirs.close()
    await settled()
    assert (late.received, late.has_ended) == (b"xyz", True)


async def test_who_rests_may_be_interrupted(poller, open_connections):
    (connection,) = await open_connections(1)
    trio.lowlevel.notify_closing(connection.ours.fileno())
    await settled()
    connection.say(b"x")
    await settled()
    assert connection.received == b"x"


async def test_each_goes_on_in_variables_of_its_own(poller, open_connections):
    async def rename(_):
        NAME.set(NAME.get() + "+")

    connections = await open_connections(3, rename)
    for _ in range(2):
        for connection in connections:
            connection.say(b"x")
        await settled()
    assert [each.names for each in connections] == [["0", "0+"], ["1", "1+"], ["2", "2+"]]
    assert NAME.get() == "nobody"


async def test_who_waits_keeps_the_task_and_the_others_go_on(open_connections, autojump_clock):
    async def wait(data):
        if data == b"w":
            await trio.sleep(1)
            waited.append((task(), NAME.get()))

    waited = []
    first, *others = await open_connections(4, wait)
    for connection in (first, *others):
        connection.say(b"w" if connection is first else b"x")
    first.say(b"x")
    await settled()
    assert [each.received for each in others] == [b"x"] * 3
    assert first.received == b"w"
    await trio.sleep(2)
    assert first.received == b"wx"
    assert waited == [(first.tasks[0], "0")]
    assert first.names == ["0", "0"]
    others[0].say(b"y")
    await settled()
    assert others[0].received == b"xy"


@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_led_belongs_to_one_and_the_others_go_on(
    warm, open_connections, autojump_clock, waits
):
    async def work():
        if waits:
            await trio.sleep(1)

    async def lead_one(data):
        if data == b"l":
            jobs.append(Job(work))
            await lead(FirstStep(jobs[-1], copy_context(), warm))

    jobs = []
    connections = await open_connections(3, lead_one)
    connections[1].say(b"lx")
    for connection in connections:
        connection.say(b"x")
    await settled()
    (job,) = jobs
    assert [each.received for each in connections] == [b"x", b"lxx", b"x"]
    assert job.task is connections[1].tasks[0]
    assert job.ended.is_set() != waits
    await trio.sleep(2)
    assert job.ended.is_set()
    for connection in connections:
        connection.say(b"y")
    await settled()
    assert [each.received for each in connections] == [b"xy", b"lxxy", b"xy"]


async def test_a_job_that_cancels_itself_takes_nobody_along(warm, open_connections):
    async def cancel():
        job.scope.cancel()

    async def lead_it(data):
        if data == b"l":
            await lead(FirstStep(job, copy_context(), warm))

    job = Job(cancel)
    connections = await open_connections(2, lead_it)
    connections[0].say(b"lx")
    connections[1].say(b"x")
    await settled()
    assert [each.received for each in connections] == [b"lx", b"x"]
    assert job.ended.is_set()


async def test_a_scope_that_is_left_open_takes_nobody_along(open_connections, caplog):
    async def leave_open(data):
        if data == b"o":
            left.__enter__()

    left = trio.CancelScope()
    connections = await open_connections(3, leave_open)
    connections[0].say(b"o")
    await settled()
    left.cancel()
    for connection in connections:
        connection.say(b"x")
    await settled()
    assert [each.received for each in connections] == [b"ox", b"x", b"x"]
    assert connections[1].tasks[0] is not connections[0].tasks[0]
    (logged,) = caplog.records
    assert logged.message == "an HTTP handler left a cancel scope or a nursery open"


async def test_a_scope_that_is_left_open_in_a_task_of_ones_own_stays_behind(
    open_connections, caplog, autojump_clock
):
    async def leave_open(data):
        if data == b"o":
            await trio.sleep(1)
            left.__enter__()

    left = trio.CancelScope()
    connections = await open_connections(2, leave_open)
    connections[0].say(b"o")
    await trio.sleep(2)
    left.cancel()
    for connection in connections:
        connection.say(b"x")
    await settled()
    assert [each.received for each in connections] == [b"ox", b"x"]
    (logged,) = caplog.records
    assert logged.message == "an HTTP handler left a cancel scope or a nursery open"


async def test_nobody_is_kept_waiting_by_many_that_are_ready(open_connections):
    async def tick():
        while True:
            ticks.append(sum(len(each.received) for each in connections))
            await trio.lowlevel.checkpoint()

    ticks = [0]
    connections = await open_connections(6 * _READY_MAX)
    for connection in connections:
        connection.say(b"x")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        while not all(each.received for each in connections):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert max(late - early for early, late in pairwise(ticks)) <= 2 * _READY_MAX


async def test_cancelled_all_that_rest_are_closed(poller):
    kept = []

    def serve(connection):
        kept.append(connection())
        return kept[-1]

    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        connections = [Connection(warm) for _ in range(3)]
        for connection in connections:
            warm.serve(partial(serve, connection))
        await settled()
        nursery.cancel_scope.cancel()
    assert [each.has_ended for each in connections] == [True] * 3
    for connection in connections:
        connection.theirs.close()


async def test_cancelled_who_comes_to_rest_at_last_is_closed_as_well(autojump_clock):
    async def finish(_):
        with trio.CancelScope(shield=True):
            await trio.sleep(1)

    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        connections = [Connection(warm, finish) for _ in range(2)]
        for connection in connections:
            warm.serve(connection)
        await settled()
        connections[0].say(b"x")
        await settled()
        nursery.cancel_scope.cancel()
    assert [each.has_ended for each in connections] == [True] * 2
    for connection in connections:
        connection.theirs.close()


async def test_cancelled_with_one_that_waits_all_are_closed():
    async with trio.open_nursery() as nursery:
        warm = TaskPool(nursery)
        connections = [Connection(warm, lambda _: trio.sleep_forever()) for _ in range(3)]
        for connection in connections:
            warm.serve(connection)
        await settled()
        connections[1].say(b"x")
        await settled()
        nursery.cancel_scope.cancel()
    assert [each.has_ended for each in connections] == [True] * 3
    for connection in connections:
        connection.theirs.close()


async def test_what_is_no_exception_leaves_and_closes_all():
    async def leave(_):
        raise SystemExit(1)

    with pytest.RaisesGroup(SystemExit):
        async with trio.open_nursery() as nursery:
            warm = TaskPool(nursery)
            connections = [Connection(warm, leave) for _ in range(3)]
            for connection in connections:
                warm.serve(connection)
            await settled()
            connections[0].say(b"x")
            await trio.sleep_forever()
    assert [each.has_ended for each in connections] == [True] * 3
    for connection in connections:
        connection.theirs.close()


async def test_when_the_last_one_has_ended_nothing_is_left(warm):
    before = open_descriptors()
    for _ in range(3):
        connections = [Connection(warm) for _ in range(3)]
        for connection in connections:
            warm.serve(connection)
        await settled()
        for connection in connections:
            connection.theirs.close()
        await settled()
        assert all(each.has_ended for each in connections)
        assert open_descriptors() == before


async def test_a_closed_lookout_knows_nobody_any_more(warm):
    lookout = Poller()
    connections = [Connection(warm) for _ in range(4)]
    *closed, later = [Leader(connection(), copy_context()) for connection in connections]
    for connection, serving in zip(connections, [*closed, later], strict=True):
        assert isinstance(serving.step(), IdleConnection)
        connection.say(b"x")
        if serving is not later:
            lookout.add(serving, connection.resting)
    assert await lookout.next() in closed
    lookout.close()
    assert not lookout
    lookout.add(later, connections[-1].resting)
    assert await lookout.next() is later
    lookout.close()
    assert all(each.has_ended for each in connections)
    assert all(each.resting.unregister is None for each in connections)
    for connection in connections:
        connection.theirs.close()


async def test_what_another_process_has_as_well_is_not_watched_any_more(open_connections):
    """As after a fork, whose child has copies of all descriptors."""

    async def leave(data):
        if data == b"q":
            raise EOFError

    connections = await open_connections(3)
    connections[0].act = leave
    with connections[0].ours.dup():
        connections[0].say(b"q")
        await settled()
        assert connections[0].has_ended
        connections[0].say(b"xyz")
        handshake_timeouts = await open_connections(2)
        for connection in (*connections[1:], *handshake_timeouts):
            connection.say(b"x")
        await settled()
        assert [each.received for each in (*connections[1:], *handshake_timeouts)] == [b"x"] * 4
        assert [each.wakings for each in (*connections[1:], *handshake_timeouts)] == [1] * 4


async def test_the_lookout_keeps_nothing_of_who_has_gone(warm, open_connections):
    await open_connections(2)
    connection = Connection(warm)
    gone = weakref.ref(connection)
    warm.serve(connection)
    await settled()
    connection.theirs.close()
    await settled()
    del connection
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("waits", [False, True])
async def test_who_rests_keeps_nothing_of_what_it_led(warm, open_connections, waits):
    async def work():
        if waits:
            await trio.lowlevel.checkpoint()

    async def lead_one(_):
        await lead(FirstStep(jobs.pop(), copy_context(), warm))

    jobs = [Job(work)]
    gone = weakref.ref(jobs[0])
    connection, _ = await open_connections(2, lead_one)
    connection.say(b"x")
    await settled()
    gc.collect()
    assert gone() is None


STEPS = st.tuples(st.integers(0, 4), st.sampled_from([b"x", b"w", b"l", b"s", b"c"]))


@given(st.lists(st.lists(STEPS, max_size=12), max_size=8))
def test_whatever_comes_to_whom_is_read_once_and_in_order(batches):
    async def main():
        async def act(data):
            if data == b"w":
                await trio.sleep(1)
            elif data in {b"l", b"s"}:
                waits = data == b"s"
                job = Job(lambda: trio.sleep(1 if waits else 0))
                await lead(FirstStep(job, copy_context(), warm))

        async with trio.open_nursery() as nursery:
            warm = TaskPool(nursery)
            connections = [Connection(warm, act) for _ in range(5)]
            for connection in connections:
                warm.serve(connection)
            said = [b""] * 5
            for batch in batches:
                for place, data in batch:
                    if data != b"c" and connections[place].theirs.fileno() >= 0:
                        connections[place].say(data)
                        said[place] += data
                    else:
                        connections[place].theirs.close()
                await settled()
            await trio.sleep(100)
            await settled()
            for connection in connections:
                connection.theirs.close()
            await settled()
            warm.close()
            assert [each.received for each in connections] == said
            assert all(each.has_ended for each in connections)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.001))
