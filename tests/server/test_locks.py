"""`ctx.lock`: one holder at a time, by name, for all sessions of a server, and in replays."""

import threading

import pytest
import trio
import trio.testing
from memory_sessions import client_session

from mcp_trio import Client, Context, Server, ThreadContext
from mcp_trio.errors import ReplayDivergence, RequestAbandoned
from mcp_trio.recording import replay


@pytest.fixture
def locks(server):
    """Return the number of locks that a task holds or waits for."""
    return lambda: len(server._sessions.locks._locks)


@pytest.fixture
def counted(server):
    """A tool that reads, waits and writes under a lock; gives what it writes to."""
    state = {"count": 0, "waits": trio.testing.wait_all_tasks_blocked}

    @server.tool
    async def count(ctx: Context, name: str = "state") -> int:
        async with ctx.lock(name):
            found = state["count"]
            await state["waits"]()
            state["count"] = found + 1
        return found

    return state


async def test_only_one_handler_holds_a_lock(counted, serve, server, locks):
    asker = await serve(server)
    for _ in range(5):
        await asker.begin("tools/call", {"name": "count"})
    answers = [await asker.wire.receive() for _ in range(5)]
    assert [it["result"]["content"][0]["text"] for it in answers] == list("01234")
    assert locks() == 0


async def test_locks_of_different_names_are_independent(counted, serve, server):
    counted["waits"] = trio.Event().wait
    asker = await serve(server)
    for name in "ab":
        await asker.begin("tools/call", {"name": "count", "arguments": {"name": name}})
    await trio.testing.wait_all_tasks_blocked()
    assert len(server._sessions.locks._locks) == 2


async def test_sessions_share_locks(counted, server, locks):
    async with Client(server) as one, Client(server) as other, trio.open_nursery() as nursery:
        for client in one, other:
            nursery.start_soon(client.call_tool, "count")
    assert counted["count"] == 2
    assert locks() == 0


async def test_acquiring_a_lock_is_an_effect(counted, record, server):
    asker, recorded = await record(server)
    await asker.call("count")
    assert recorded() == [
        ("cmd", {"name": "ctx.lock", "arguments": {"name": "state"}}),
        ("res", None),
    ]


async def test_a_task_cancelled_while_waiting_does_not_hold_the_lock(
    counted, record, server, locks
):
    go = trio.Event()
    counted["waits"] = go.wait
    asker, recorded = await record(server)
    first = await asker.begin("tools/call", {"name": "count"})
    await trio.testing.wait_all_tasks_blocked()
    second = await asker.begin("tools/call", {"name": "count"})
    await trio.testing.wait_all_tasks_blocked()
    await asker.wire.cancel(second)
    await trio.testing.wait_all_tasks_blocked()
    go.set()
    assert "result" in await asker.end(first)
    assert [kind for kind, _ in recorded()] == ["cmd", "res", "cmd", "cxl", "cxl"]
    assert locks() == 0


async def test_a_lock_is_released_when_its_block_raises(server, serve, locks):
    @server.tool
    async def fail(ctx: Context) -> None:
        async with ctx.lock("state"):
            raise ValueError

    asker = await serve(server)
    await asker.failure("fail")
    assert locks() == 0


async def test_a_task_cannot_wait_for_a_lock_that_it_holds(server, serve, locks):
    @server.tool
    async def again(ctx: Context) -> str:
        async with ctx.lock("state"):
            try:
                async with ctx.lock("state"):
                    return "in"
            except RuntimeError as error:
                return str(error)

    asker = await serve(server)
    assert "'state' is already held" in await asker.call("again")
    assert locks() == 0


# In threads.


async def test_threads_and_tasks_exclude_each_other(server, serve, locks):
    order = []

    @server.tool
    def in_thread(ctx: ThreadContext) -> None:
        with ctx.lock("state"):
            order.append("thread in")
            ctx.sleep(0)
            order.append("thread out")

    @server.tool
    async def in_task(ctx: Context) -> None:
        async with ctx.lock("state"):
            order.append("task in")
            await trio.testing.wait_all_tasks_blocked()
            order.append("task out")

    asker = await serve(server)
    for name in ("in_thread", "in_task") * 2:
        await asker.begin("tools/call", {"name": name})
    for _ in range(4):
        await asker.wire.receive()
    assert order[1::2] == [into.replace(" in", " out") for into in order[::2]]
    assert locks() == 0


async def test_a_thread_cannot_wait_for_a_lock_that_it_holds(server, serve):
    @server.tool
    def again(ctx: ThreadContext) -> str:
        with ctx.lock("state"):
            try:
                with ctx.lock("state"):
                    return "in"
            except RuntimeError as error:
                return str(error)

    assert "'state' is already held" in await (await serve(server)).call("again")


@pytest.mark.parametrize("is_reader_thread", [True, False])
@pytest.mark.parametrize("is_outer_thread", [True, False])
async def test_a_resource_cannot_wait_for_a_lock_of_the_handler_that_reads_it(
    server, serve, locks, is_outer_thread, is_reader_thread
):
    if is_outer_thread:

        @server.tool
        def read(ctx: ThreadContext) -> str:
            with ctx.lock("state"):
                return ctx.read_resource("harbour://state")[0].text
    else:

        @server.tool
        async def read(ctx: Context) -> str:
            async with ctx.lock("state"):
                return (await ctx.read_resource("harbour://state"))[0].text

    if is_reader_thread:

        @server.resource("harbour://state")
        def state(ctx: ThreadContext) -> str:
            with pytest.raises(RuntimeError, match="'state' is already held"), ctx.lock("state"):
                pass
            with ctx.lock("other"):
                return "read"
    else:

        @server.resource("harbour://state")
        async def state(ctx: Context) -> str:
            with pytest.raises(RuntimeError, match="'state' is already held"):
                async with ctx.lock("state"):
                    pass
            async with ctx.lock("other"):
                return "read"

    asker = await serve(server)
    with trio.fail_after(5):
        assert await asker.call("read") == "read"
    assert locks() == 0


async def test_a_thread_of_a_cancelled_request_holds_its_lock_until_the_block_ends(
    server, serve, locks
):
    inside, go, gone = threading.Event(), threading.Event(), threading.Event()

    @server.tool
    def slow(ctx: ThreadContext) -> None:
        try:
            with ctx.lock("state"):
                inside.set()
                assert go.wait(10)
                with pytest.raises(RequestAbandoned):
                    ctx.sleep(0)
        finally:
            gone.set()

    asker = await serve(server)
    call = await asker.begin("tools/call", {"name": "slow"})
    assert await trio.to_thread.run_sync(inside.wait, 10)
    await asker.wire.cancel(call)
    await trio.testing.wait_all_tasks_blocked()
    assert locks() == 1
    go.set()
    assert await trio.to_thread.run_sync(gone.wait, 10)
    assert locks() == 0


async def test_a_lock_is_released_only_when_the_handlers_task_has_been_cancelled(
    server, serve, locks
):
    inside, go, left, end = (threading.Event() for _ in range(4))
    ended, held = trio.Event(), []

    @server.resource("slow://thread")
    def slow(ctx: ThreadContext) -> str:
        try:
            with ctx.lock("state"):
                inside.set()
                assert go.wait(10)
                ctx.sleep(0)
        finally:
            left.set()
            assert end.wait(10)

    @server.tool
    async def read(ctx: Context) -> None:
        with trio.CancelScope(shield=True), pytest.raises(RequestAbandoned):
            await ctx.read_resource("slow://thread")  # the shield lets the thread be notified first
        held.append(locks())
        ended.set()

    asker = await serve(server)
    call = await asker.begin("tools/call", {"name": "read"})
    assert await trio.to_thread.run_sync(inside.wait, 10)
    await asker.wire.cancel(call)
    await trio.testing.wait_all_tasks_blocked()
    go.set()
    assert await trio.to_thread.run_sync(left.wait, 10)
    assert locks() == 1
    end.set()
    await ended.wait()
    assert held == [0]


def test_a_thread_that_outlives_the_trio_run_leaves_its_lock_without_error(server):
    inside, go, gone = threading.Event(), threading.Event(), threading.Event()

    @server.tool
    def slow(ctx: ThreadContext) -> None:
        with ctx.lock("state"):
            inside.set()
            assert go.wait(10)
        gone.set()

    async def main():
        async with Client(server) as client, trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "slow")
            assert await trio.to_thread.run_sync(inside.wait, 10)
            nursery.cancel_scope.cancel()

    trio.run(main)
    go.set()
    assert gone.wait(10)


# In a replay.


async def race(server, path, calls):
    async with client_session(server, path) as client, trio.open_nursery() as calling:
        for _ in range(calls):
            calling.start_soon(client.call_tool, "count")


def counting(*, is_locked=True, is_kept=False):
    """A server whose tool counts by a lock, or does not; or never lets go of it."""
    server = Server("harbour")
    count = 0

    @server.tool(name="count")
    async def add(ctx: Context) -> int:
        nonlocal count
        if not is_locked:
            return count
        lock = ctx.lock("state")
        await lock.__aenter__()
        found = count
        await ctx.sleep(0.001)
        count = found + 1
        if not is_kept:
            await lock.__aexit__(None, None, None)
        return found

    return server


async def test_a_race_for_a_lock_replays_in_the_recorded_order(tmp_path):
    path = tmp_path / "race.mcprec.jsonl"
    await race(counting(), path, 4)
    server = counting()
    report = await trio.to_thread.run_sync(replay, path, server)
    assert report.requests == 4
    assert not server._sessions.locks._locks


async def test_a_lock_that_is_taken_at_replay_is_a_divergence(tmp_path):
    path = tmp_path / "race.mcprec.jsonl"
    await race(counting(), path, 2)
    with pytest.raises(ReplayDivergence):
        await trio.to_thread.run_sync(replay, path, counting(is_kept=True))


async def test_a_lock_that_is_no_longer_acquired_is_a_divergence(tmp_path):
    path = tmp_path / "race.mcprec.jsonl"
    await race(counting(), path, 2)
    with pytest.raises(ReplayDivergence):
        await trio.to_thread.run_sync(replay, path, counting(is_locked=False))
