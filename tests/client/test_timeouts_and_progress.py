"""Timeouts, cancellation and progress of calls."""

import pytest
import trio
import trio.testing

from mcp_trio import Client, Limits, RequestTimeout
from mcp_trio import types as t
from mcp_trio.limits import RequestLimits
from tests.client.conftest import connected, said, text

# Leaving early


@pytest.mark.requirement("CANC-01", "CANC-06")
async def test_leaving_a_scope_cancels_the_handler(bench):
    cancelled = trio.Event()

    @bench.tool
    async def wait(handling):
        try:
            await trio.sleep_forever()
        finally:
            assert handling.is_cancelled
            cancelled.set()

    async with Client(bench) as client:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "wait")
                await trio.testing.wait_all_tasks_blocked()
                scope.cancel()
        with trio.fail_after(1):
            await cancelled.wait()
        assert said(await client.call_tool("hello")) == "hello"


@pytest.mark.requirement("CANC-01", "CANC-05", "CANC-08", "TRAP-59")
async def test_a_late_answer_is_counted_and_the_server_told_once(scripted, nursery):
    client, server = await connected(scripted, nursery)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as inner:
            inner.start_soon(client.call_tool, "tide")
            request = await server.receive()
            scope.cancel()
    await server.send_result(request, {"content": []})
    (cancelled,) = await server.receive_available()
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == request["id"]
    assert client.counts == {"late answer": 1}
    await client.aclose()


@pytest.mark.parametrize(
    ("budget", "limits", "options"),
    [
        ("idle", Limits(requests=RequestLimits(idle_seconds=5)), {}),
        ("total", Limits(requests=RequestLimits(total_seconds=5)), {}),
        ("idle", Limits(), {"idle_seconds": 5}),
        ("total", Limits(), {"total_seconds": 5}),
    ],
)
@pytest.mark.requirement("TIME-01", "LIFE-16")
async def test_a_call_has_an_idle_and_a_total_timeout(
    bench, autojump_clock, budget, limits, options
):
    async with Client(bench, limits=limits) as client:
        before = trio.current_time()
        with pytest.raises(RequestTimeout) as caught:
            await client.call_tool("forever", **options)
        assert caught.value.budget == budget
        assert trio.current_time() - before == pytest.approx(5, abs=0.1)
        assert said(await client.call_tool("hello")) == "hello"


EVERY_CALL = {
    "call_tool": ("tide",),
    "read_resource": ("tide://bergen",),
    "get_prompt": ("plan",),
    "complete": ("plan", "city", "O"),
    "list_tools": (),
    "list_resources": (),
    "list_resource_templates": (),
    "list_prompts": (),
    "ping": (),
    "set_log_level": ("error",),
    "subscribe": ("tide://bergen",),
    "unsubscribe": ("tide://bergen",),
    "request": ("tools/list",),
}


@pytest.mark.parametrize("name", EVERY_CALL)
@pytest.mark.requirement("TIME-01", "TOOL-40")
async def test_every_call_takes_timeouts_and_a_progress_callback(
    scripted, nursery, autojump_clock, name
):
    client, server = await connected(scripted, nursery)
    reports = []

    async def report_once():
        token = (await server.receive())["params"]["_meta"]["progressToken"]
        await trio.sleep(3)
        params = {"progressToken": token, "progress": 1}
        await server.send_notification("notifications/progress", params)

    nursery.start_soon(report_once)
    before = trio.current_time()
    options = {"idle_seconds": 4, "total_seconds": 5, "progress": reports.append}
    with pytest.raises(RequestTimeout) as caught:
        await getattr(client, name)(*EVERY_CALL[name], **options)
    assert (caught.value.budget, caught.value.setting) == ("total", "total_seconds")
    assert trio.current_time() - before == pytest.approx(5, abs=0.1)
    assert [report.progress for report in reports] == [1]
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("COMP-08")
async def test_a_new_completion_may_cancel_the_previous_one(scripted, nursery):
    client, server = await connected(scripted, nursery)
    with trio.CancelScope() as typing:
        async with trio.open_nursery() as inner:
            inner.start_soon(client.complete, "plan", "city", "O")
            early = await server.receive()
            typing.cancel()
    results = []

    async def complete():
        results.append(await client.complete("plan", "city", "Os"))

    nursery.start_soon(complete)
    cancelled, late = await server.receive_many(2)
    assert cancelled["params"]["requestId"] == early["id"]
    await server.send_result(early, {"completion": {"values": ["Oban"]}})
    await server.send_result(late, {"completion": {"values": ["Oslo"]}})
    await trio.testing.wait_all_tasks_blocked()
    assert results == [t.CompleteResult(completion=t.Completion(values=["Oslo"]))]
    await client.aclose()


# Progress


@pytest.fixture
def reporting(bench):
    @bench.tool
    async def climb(handling):
        for step in range(1, 4):
            await trio.sleep(4)
            await handling.progress(step / 2, 1.5)
        return text("up")

    return bench


@pytest.mark.requirement("PROG-04", "PROG-07")
async def test_progress_is_reported_in_order_in_the_callers_task(reporting, autojump_clock):
    caller = trio.lowlevel.current_task()
    reports = []

    async def report(params):
        assert trio.lowlevel.current_task() is caller
        reports.append((params.progress, params.total))

    async with Client(reporting) as client:
        assert said(await client.call_tool("climb", progress=report)) == "up"
    assert reports == [(0.5, 1.5), (1.0, 1.5), (1.5, 1.5)]


@pytest.mark.requirement("PROG-01", "PROG-02", "PROG-10")
async def test_each_call_gets_its_own_progress(scripted, nursery):
    client, server = await connected(scripted, nursery)
    reports = {"a": [], "b": []}

    async def call(name):
        await client.call_tool(name, progress=lambda params: reports[name].append(params.progress))

    nursery.start_soon(call, "a")
    nursery.start_soon(call, "b")
    asked = {request["params"]["name"]: request for request in await server.receive_many(2)}
    tokens = {name: asked[name]["params"]["_meta"]["progressToken"] for name in asked}
    assert {type(token) for token in tokens.values()} <= {int, str}
    assert tokens["a"] != tokens["b"]
    for name, progress in (("b", 1), ("a", 2), ("b", 3)):
        params = {"progressToken": tokens[name], "progress": progress}
        await server.send_notification("notifications/progress", params)
    await server.send_result(asked["a"], {"content": []})
    params = {"progressToken": tokens["a"], "progress": 4}
    await server.send_notification("notifications/progress", params)
    await server.send_result(asked["b"], {"content": []})
    await trio.testing.wait_all_tasks_blocked()
    assert reports == {"a": [2], "b": [1, 3]}
    assert client.counts == {"late progress": 1}
    await client.aclose()


async def test_a_call_without_a_callback_requests_no_progress(scripted, nursery):
    client, server = await connected(scripted, nursery)
    nursery.start_soon(client.call_tool, "tide")
    assert "_meta" not in (await server.receive())["params"]
    nursery.cancel_scope.cancel()


async def test_progress_restarts_the_idle_timeout(reporting, autojump_clock):
    async with Client(reporting) as client:
        called = await client.call_tool("climb", progress=lambda _: None, idle_seconds=5)
        assert said(called) == "up"
        with pytest.raises(RequestTimeout, match="idle"):
            await client.call_tool("climb", idle_seconds=5)


async def test_a_client_may_have_one_progress_callback_for_all_calls(reporting, autojump_clock):
    ours, own = [], []
    async with Client(reporting, progress=ours.append) as client:
        await client.call_tool("climb")
        await client.call_tool("climb", progress=own.append)
    assert (len(ours), len(own)) == (3, 3)


async def test_a_call_may_switch_the_client_wide_progress_callback_off(reporting, autojump_clock):
    reports = []
    async with Client(reporting, progress=reports.append) as client:
        await client.call_tool("climb", progress=None)
    assert reports == []


async def test_an_exception_of_a_progress_callback_is_raised_by_the_call(reporting, autojump_clock):
    def report(params):
        raise KeyError(params.progress)

    async with Client(reporting) as client:
        with pytest.raises(KeyError, match=r"0\.5"):
            await client.call_tool("climb", progress=report)
        assert said(await client.call_tool("hello")) == "hello"


@pytest.mark.requirement("PROG-10")
async def test_progress_after_the_end_of_a_call_is_ignored(scripted, nursery):
    client, server = await connected(scripted, nursery)
    await server.send_notification("notifications/progress", {"progressToken": 77, "progress": 1})
    await trio.testing.wait_all_tasks_blocked()
    assert client.counts == {"late progress": 1}
    await client.aclose()
