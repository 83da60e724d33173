import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, Limits, Server, ThreadContext
from mcp_trio._server.threads import ClientThreads
from mcp_trio.errors import RequestAbandoned
from mcp_trio.limits import RequestLimits

# Each test releases its abandoned threads, which would otherwise run on.


@pytest.fixture
def server():
    return Server("harbour", limits=Limits(requests=RequestLimits(threads_max=2)))


@pytest.fixture
def release():
    made = threading.Event()
    yield made
    made.set()


async def wait_thread(event):
    """Wait for a `threading.Event`, in Trio."""
    assert await trio.to_thread.run_sync(event.wait, 10)


async def test_a_def_handler_does_not_block_the_others(server, serve, release):
    @server.tool
    def block() -> str:
        assert release.wait(10)
        return threading.current_thread() is not threading.main_thread() and "free"

    asker = await serve(server)
    call = await asker.begin("tools/call", {"name": "block"})
    assert await asker.result("ping") == {}
    release.set()
    answer = await asker.end(call)
    assert answer["result"]["content"][0]["text"] == "free"


async def test_at_most_threads_max_handlers_run_and_the_others_wait(server, serve, release):
    running, most = [], []

    @server.tool
    def block(number: int) -> int:
        running.append(number)
        most.append(len(running))
        assert release.wait(10)
        running.remove(number)
        return number

    asker = await serve(server)
    for number in range(5):
        await asker.begin("tools/call", {"name": "block", "arguments": {"number": number}})
    while len(running) < 2:
        await trio.to_thread.run_sync(threading.Event().wait, 0.001)
    assert await asker.result("ping") == {}
    assert len(running) == 2
    release.set()
    answers = await asker.wire.receive_many(5)
    assert {message["id"] for message in answers} == {1, 2, 3, 4, 5}
    assert max(most) == 2


async def test_a_cancelled_def_handler_is_abandoned_and_its_calls_are_rejected(
    server, serve, release
):
    entered, left = threading.Event(), threading.Event()
    seen = []

    @server.tool
    def block(ctx: ThreadContext) -> str:
        seen.append(ctx.is_cancelled)
        entered.set()
        assert release.wait(10)
        seen.append(ctx.is_cancelled)
        for call in (
            lambda: ctx.report_progress(1),
            lambda: ctx.info("never sent"),
            ctx.list_roots,
        ):
            with pytest.raises(RequestAbandoned, match="is over"):
                call()
        left.set()
        return "dropped"

    asker = await serve(server, capabilities={"roots": {}})
    call = await asker.begin("tools/call", {"name": "block"})
    await wait_thread(entered)
    await asker.wire.cancel(call)
    assert await asker.result("ping") == {}
    release.set()
    await wait_thread(left)
    assert seen == [False, True]
    assert await asker.result("ping") == {}
    assert asker.received == []


async def test_a_call_that_waits_in_the_loop_ends_with_its_request(server, serve):
    left = threading.Event()

    @server.tool
    def ask(ctx: ThreadContext) -> None:
        with pytest.raises(RequestAbandoned):
            ctx.list_roots()
        left.set()

    asker = await serve(server, capabilities={"roots": {}})
    call = await asker.begin("tools/call", {"name": "ask"})
    asked = await asker.next_message()
    await asker.wire.cancel(call)
    await wait_thread(left)
    cancelled = await asker.next_message()
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == asked["id"]


async def test_a_request_that_is_cancelled_before_it_gets_a_thread_never_runs(serve, release):
    server = Server("harbour", limits=Limits(requests=RequestLimits(threads_max=1)))
    entered, ran = threading.Event(), []

    @server.tool
    def block(number: int) -> int:
        entered.set()
        ran.append(number)
        assert release.wait(10)
        return number

    asker = await serve(server)
    first, second = [
        await asker.begin("tools/call", {"name": "block", "arguments": {"number": n}})
        for n in range(2)
    ]
    await wait_thread(entered)
    (kept,) = {0, 1} - {1 - ran[0]}
    dropped = (first, second)[1 - kept]
    await asker.wire.cancel(dropped)
    assert await asker.result("ping") == {}
    release.set()
    await asker.end((first, second)[kept])
    assert ran == [kept]


async def test_calls_of_a_context_after_its_handler_ended_are_rejected(server, serve):
    kept = []

    @server.tool
    def leak(ctx: ThreadContext) -> str:
        kept.append(ctx)
        return "left"

    @server.tool
    def use() -> str:
        with pytest.raises(RequestAbandoned):
            kept[0].info("late")
        return "rejected"

    asker = await serve(server)
    assert await asker.call("leak") == "left"
    assert await asker.call("use") == "rejected"
    assert asker.received == []


async def test_a_thread_that_the_handler_started_itself_cannot_use_its_context(server, serve):
    @server.tool
    def tides(ctx: ThreadContext) -> str:
        with ThreadPoolExecutor() as threads:
            return str(threads.submit(ctx.report_progress, 1).exception())

    asker = await serve(server)
    assert "works only in the handler's own thread" in await asker.call("tides")


@pytest.mark.parametrize("is_run_over", [False, True])
def test_calls_of_a_thread_that_outlives_its_session_are_rejected(release, is_run_over):
    from mcp_trio.testing import WirePeer
    from mcp_trio.transports import memory_pair

    server = Server("harbour")
    entered, left = threading.Event(), threading.Event()
    caught = []

    @server.tool
    def block(ctx: ThreadContext) -> None:
        entered.set()
        assert release.wait(10)
        for call in (lambda: ctx.report_progress(1), lambda: ctx.info("late"), ctx.list_roots):
            try:
                call()
            except RequestAbandoned as error:
                caught.append(error)
        left.set()

    async def main():
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            await nursery.start(server.serve, theirs)
            wire = WirePeer(ours)
            await wire.handshake(capabilities={"roots": {}})
            await wire.send_request("tools/call", {"name": "block"}, id=1)
            await wait_thread(entered)
            nursery.cancel_scope.cancel()
        if not is_run_over:
            release.set()
            await wait_thread(left)

    trio.run(main)
    release.set()
    assert left.wait(10)
    assert len(caught) == 3


async def test_nested_resource_reads_in_threads_do_not_deadlock_at_the_limit(serve):
    server = Server("desk", limits=Limits(requests=RequestLimits(threads_max=1)))

    @server.resource("desk://leaf")
    def leaf() -> str:
        return "leaf"

    @server.resource("desk://branch")
    async def branch(ctx: Context) -> str:
        return (await ctx.read_resource("desk://leaf"))[0].text

    @server.tool
    def climb(ctx: ThreadContext) -> str:
        return ctx.read_resource("desk://branch")[0].text

    asker = await serve(server)
    with trio.fail_after(10):
        assert await asker.call("climb") == "leaf"


async def test_an_error_response_of_the_client_is_raised_in_the_thread(server, serve):
    @server.tool
    def ask(ctx: ThreadContext) -> str:
        try:
            ctx.list_roots()
        except Exception as error:
            return type(error).__name__

    asker = await serve(server, capabilities={"roots": {}})
    call = await asker.begin("tools/call", {"name": "ask"})
    asked = await asker.next_message()
    await asker.wire.send({"id": asked["id"], "error": {"code": -32603, "message": "no"}})
    answer = await asker.end(call)
    assert answer["result"]["content"][0]["text"] == "RequestError"


async def test_a_def_decorator_around_an_async_def_gets_an_error_that_names_functools_wraps(
    server, serve, caplog
):
    def decorated(handler):
        def call() -> str:
            return handler()

        return call

    async def forecast() -> str:
        return "rain"

    server.tool(name="forecast")(decorated(forecast))
    asker = await serve(server)
    assert await asker.failure("forecast") == "internal error in forecast"
    assert "functools.wraps" in caplog.text


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_a_request_that_is_cancelled_as_it_gets_a_thread_gives_it_back(
    serve, tmp_path, monkeypatch, is_recorded
):
    server = Server("harbour", limits=Limits(requests=RequestLimits(threads_max=1)))
    acquire, to_cancel = ClientThreads.acquire_on_behalf_of, []

    async def acquire_and_cancel(threads, borrower):
        await acquire(threads, borrower)
        if to_cancel:
            with trio.CancelScope(shield=True):
                await asker.wire.cancel(to_cancel.pop())
                await trio.testing.wait_all_tasks_blocked()

    monkeypatch.setattr(ClientThreads, "acquire_on_behalf_of", acquire_and_cancel)

    @server.tool
    def free() -> str:
        return "free"

    asker = await serve(server, record=tmp_path / "it.mcprec.jsonl" if is_recorded else None)
    to_cancel.append(1)
    assert await asker.begin("tools/call", {"name": "free"}) == 1
    await trio.testing.wait_all_tasks_blocked()
    assert not to_cancel
    with trio.fail_after(5):
        assert await asker.call("free") == "free"


async def test_an_error_of_sqlite_in_a_thread_says_what_to_write(caplog):
    server = Server("desk")
    database = sqlite3.connect(":memory:")

    @server.tool
    def count() -> int:
        return database.execute("SELECT 1").fetchone()[0]

    async with Client(server, raise_tool_errors=False) as client:
        await client.call_tool("count")
    database.close()
    assert "; open it with check_same_thread=False, or use it in `async def`" in caplog.text
