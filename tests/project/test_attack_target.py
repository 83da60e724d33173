"""What a server that is to be attacked tells of its tasks."""

import pytest
import target
import trio
import trio.testing

from mcp_trio import Client, Server

pytestmark = pytest.mark.slow


async def count():
    return int(await target.tasks())


async def test_each_task_counts_and_what_it_has_begun(nursery):
    before = await count()

    async def begin():
        async with trio.open_nursery() as inner:
            inner.start_soon(trio.sleep_forever)

    nursery.start_soon(begin)
    await trio.testing.wait_all_tasks_blocked()
    assert await count() == before + 2
    nursery.cancel_scope.cancel()


async def test_a_task_that_only_waits_for_a_handler_does_not_count():
    server = Server("attacked")
    release = trio.Event()

    @server.tool
    async def wait() -> str:
        await release.wait()
        return "waited"

    async with Client(server, cache=False) as client:
        before = await count()
        living = trio.lowlevel.current_statistics().tasks_living
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(client.call_tool, "wait")
            await trio.testing.wait_all_tasks_blocked()
            assert await count() >= before + 10  # of each a caller and a handler
            release.set()
        await trio.testing.wait_all_tasks_blocked()
        assert await count() == before
        assert trio.lowlevel.current_statistics().tasks_living > living
