"""The calls: what leaves, what comes back, and how they end early."""

import pytest
import trio
import trio.testing

from mcp_trio import types as t
from mcp_trio._client import Client
from mcp_trio._errors import (
    LocalProtocolError,
    RemoteProtocolError,
    RequestError,
    RequestTimeout,
    ToolError,
)
from mcp_trio._limits import Limits
from mcp_trio._wire import Unencodable
from tests.client.conftest import ALL, said, text

TEXT = {"type": "text", "text": "ebb"}
TOOL = {"name": "tide", "inputSchema": {}}
PROMPT = t.PromptReference(name="plan")
ARGUMENT = t.CompletionArgument(name="city", value="O")

# A call, the request that it sends, the answer, and what the caller gets.
CALLS = [
    (
        lambda client: client.call_tool("tide", {"port": "Bergen"}),
        ("tools/call", {"name": "tide", "arguments": {"port": "Bergen"}}),
        {"content": [TEXT]},
        t.CallToolResult(content=[t.TextContent(text="ebb")]),
    ),
    (
        lambda client: client.call_tool("tide"),
        ("tools/call", {"name": "tide"}),
        {"content": []},
        t.CallToolResult(content=[]),
    ),
    (
        lambda client: client.read_resource("tide://bergen"),
        ("resources/read", {"uri": "tide://bergen"}),
        {"contents": [{"uri": "tide://bergen", "text": "ebb"}]},
        t.ReadResourceResult(contents=[t.ResourceContents(uri="tide://bergen", text="ebb")]),
    ),
    (
        lambda client: client.get_prompt("plan", {"city": "Oslo"}),
        ("prompts/get", {"name": "plan", "arguments": {"city": "Oslo"}}),
        {"messages": [{"role": "user", "content": TEXT}]},
        t.GetPromptResult(
            messages=[t.PromptMessage(role="user", content=t.TextContent(text="ebb"))]
        ),
    ),
    (
        lambda client: client.complete(PROMPT, ARGUMENT),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/prompt", "name": "plan"},
                "argument": {"name": "city", "value": "O"},
            },
        ),
        {"completion": {"values": ["Oslo"]}},
        t.CompleteResult(completion=t.Completion(values=["Oslo"])),
    ),
    (lambda client: client.ping(), ("ping", None), {}, None),
    (
        lambda client: client.set_log_level("error"),
        ("logging/setLevel", {"level": "error"}),
        {},
        None,
    ),
    (
        lambda client: client.subscribe("tide://bergen"),
        ("resources/subscribe", {"uri": "tide://bergen"}),
        {},
        None,
    ),
    (
        lambda client: client.unsubscribe("tide://bergen"),
        ("resources/unsubscribe", {"uri": "tide://bergen"}),
        {},
        None,
    ),
    (
        lambda client: client.request("tools/list", t.PaginatedParams(cursor="3")),
        ("tools/list", {"cursor": "3"}),
        {"tools": []},
        t.ListToolsResult(tools=[]),
    ),
]

LISTS = [
    (Client.list_tools, "tools/list", "tools", TOOL, t.Tool(name="tide", input_schema={})),
    (
        Client.list_resources,
        "resources/list",
        "resources",
        {"uri": "a:b", "name": "n"},
        t.Resource(uri="a:b", name="n"),
    ),
    (
        Client.list_resource_templates,
        "resources/templates/list",
        "resourceTemplates",
        {"uriTemplate": "a:{b}", "name": "n"},
        t.ResourceTemplate(uri_template="a:{b}", name="n"),
    ),
    (Client.list_prompts, "prompts/list", "prompts", {"name": "n"}, t.Prompt(name="n")),
]


async def connected(scripted, nursery, **options):
    channel, server = scripted
    client = Client(channel, **options)
    nursery.start_soon(client.__aenter__)
    await server.answer_initialize(capabilities=ALL)
    await trio.testing.wait_all_tasks_blocked()
    return client, server


@pytest.mark.parametrize("row", CALLS, ids=[row[1][0] for row in CALLS])
@pytest.mark.requirement("TOOL-15", "RES-04", "PROM-04", "COMP-03", "LOG-04", "RES-10", "CANC-02")
async def test_a_call_sends_one_request_and_returns_its_typed_result(scripted, nursery, row):
    call, sent, answer, result = row
    client, server = await connected(scripted, nursery)
    results = []

    async def run():
        results.append(await call(client))

    nursery.start_soon(run)
    request = await server.receive()
    assert (request["method"], request.get("params")) == sent
    await server.send_result(request, answer)
    await trio.testing.wait_all_tasks_blocked()
    assert results == [result]
    await client.aclose()
    assert await server.receive_end() == []


# Lists


async def play_pages(server, member, item, cursors):
    """Answers list requests with a page each, whose cursors are given; returns what was asked."""
    asked = []
    for cursor in cursors:
        request = await server.receive()
        asked.append(request["params"].get("cursor"))
        page = {member: [item]} if cursor is None else {member: [item], "nextCursor": cursor}
        await server.send_result(request, page)
    return asked


@pytest.mark.parametrize("row", LISTS, ids=[row[1] for row in LISTS])
@pytest.mark.requirement("PAG-02", "PAG-03", "PAG-04", "PAG-07", "PROM-14")
async def test_a_list_is_read_to_its_last_page(scripted, nursery, row):
    list_all, _method, member, item, typed = row
    client, server = await connected(scripted, nursery)
    asked = []

    async def play():
        asked.extend(await play_pages(server, member, item, ["b", "", None]))

    nursery.start_soon(play)
    assert await list_all(client) == [typed] * 3
    assert asked == [None, "b", ""]
    await client.aclose()


async def test_a_cursor_that_comes_twice_is_the_servers_fault(scripted, nursery):
    client, server = await connected(scripted, nursery)
    nursery.start_soon(play_pages, server, "tools", TOOL, ["a", "b", "a"])
    with pytest.raises(RemoteProtocolError, match="cursor 'a' twice"):
        await client.list_tools()
    await client.aclose()


async def test_a_list_without_end_is_given_up(scripted, nursery):
    client, server = await connected(scripted, nursery, limits=Limits(pages_max=3))
    nursery.start_soon(play_pages, server, "tools", TOOL, "abcd")
    with pytest.raises(RemoteProtocolError, match=r"more than 3 pages \(pages_max\)"):
        await client.list_tools()
    nursery.cancel_scope.cancel()


# Tools that fail


@pytest.fixture
def failing(bench):
    @bench.tool
    async def fail(handling):
        content = [t.TextContent(text="no tide"), t.TextContent(text="today")]
        return t.CallToolResult(content=content, is_error=True)

    @bench.tool
    async def fail_silently(handling):
        return t.CallToolResult(content=[], is_error=True)

    return bench


async def test_a_tool_that_fails_raises_with_its_words_and_result(failing):
    async with Client(failing) as client:
        with pytest.raises(ToolError) as caught:
            await client.call_tool("fail")
        assert str(caught.value) == "no tide\ntoday"
        assert caught.value.result.is_error
        with pytest.raises(ToolError, match="fail_silently failed and did not say why"):
            await client.call_tool("fail_silently")


async def test_raising_can_be_switched_off_for_the_client_and_for_a_call(failing):
    async with Client(failing) as client:
        assert (await client.call_tool("fail", raise_tool_errors=False)).is_error
    async with Client(failing, raise_tool_errors=False) as client:
        assert (await client.call_tool("fail")).is_error
        with pytest.raises(ToolError):
            await client.call_tool("fail", raise_tool_errors=True)


# Errors


async def test_an_error_answer_is_raised_with_its_code_and_data(bench):
    @bench.tool
    async def refuse(handling):
        raise RequestError(-32602, "no such port", {"port": "Bergen"})

    async with Client(bench) as client:
        with pytest.raises(RequestError, match="no such port") as caught:
            await client.call_tool("refuse")
    assert (caught.value.code, caught.value.data) == (-32602, {"port": "Bergen"})


@pytest.mark.parametrize("arguments", [{"port": object()}, {"port": "\ud800"}, {1: {2j: 3}}])
async def test_arguments_that_are_no_json_are_refused_and_the_session_goes_on(bench, arguments):
    async with Client(bench) as client:
        with pytest.raises(Unencodable):
            await client.call_tool("hello", arguments)
        assert said(await client.call_tool("hello")) == "hello"


async def test_a_result_of_the_wrong_shape_is_the_servers_fault(scripted, nursery):
    client, server = await connected(scripted, nursery)

    async def play():
        await server.send_result(await server.receive(), {"content": 7})

    nursery.start_soon(play)
    with pytest.raises(RemoteProtocolError, match="tools/call"):
        await client.call_tool("tide")
    await client.aclose()


async def test_a_method_that_no_client_sends_is_refused(bench):
    async with Client(bench) as client:
        with pytest.raises(LocalProtocolError):
            await client.request("roots/list")


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


@pytest.mark.requirement("CANC-01", "CANC-05", "CANC-08")
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
        ("idle", Limits(request_idle_seconds=5), {}),
        ("total", Limits(request_total_seconds=5), {}),
        ("idle", Limits(), {"idle_seconds": 5}),
        ("total", Limits(), {"total_seconds": 5}),
    ],
)
@pytest.mark.requirement("TIME-01", "LIFE-16")
async def test_a_call_has_two_budgets(bench, autojump_clock, budget, limits, options):
    async with Client(bench, limits=limits) as client:
        before = trio.current_time()
        with pytest.raises(RequestTimeout) as caught:
            await client.call_tool("forever", **options)
        assert caught.value.budget == budget
        assert trio.current_time() - before == pytest.approx(5, abs=0.1)
        assert said(await client.call_tool("hello")) == "hello"


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
async def test_progress_is_told_in_order_in_the_callers_task(reporting, autojump_clock):
    caller = trio.lowlevel.current_task()
    reports = []

    async def report(params):
        assert trio.lowlevel.current_task() is caller
        reports.append((params.progress, params.total))

    async with Client(reporting) as client:
        assert said(await client.call_tool("climb", progress=report)) == "up"
    assert reports == [(0.5, 1.5), (1.0, 1.5), (1.5, 1.5)]


@pytest.mark.requirement("PROG-01", "PROG-02", "PROG-10")
async def test_each_call_hears_of_its_own_progress(scripted, nursery):
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


async def test_a_call_without_a_callback_asks_for_no_progress(scripted, nursery):
    client, server = await connected(scripted, nursery)
    nursery.start_soon(client.call_tool, "tide")
    assert "_meta" not in (await server.receive())["params"]
    nursery.cancel_scope.cancel()


async def test_progress_keeps_an_idle_budget_alive(reporting, autojump_clock):
    async with Client(reporting) as client:
        assert await client.call_tool("climb", progress=lambda _: None, idle_seconds=5)
        with pytest.raises(RequestTimeout):
            await client.call_tool("climb", idle_seconds=5)


async def test_a_client_may_have_one_progress_callback_for_all_calls(reporting, autojump_clock):
    ours, own = [], []
    async with Client(reporting, progress=ours.append) as client:
        await client.call_tool("climb")
        await client.call_tool("climb", progress=own.append)
    assert (len(ours), len(own)) == (3, 3)


async def test_what_a_progress_callback_raises_arrives_at_the_caller(reporting, autojump_clock):
    def report(params):
        raise KeyError(params.progress)

    async with Client(reporting) as client:
        with pytest.raises(KeyError):
            await client.call_tool("climb", progress=report)
        assert said(await client.call_tool("hello")) == "hello"


@pytest.mark.requirement("PROG-10")
async def test_late_progress_does_no_harm(scripted, nursery):
    client, server = await connected(scripted, nursery)
    await server.send_notification("notifications/progress", {"progressToken": 77, "progress": 1})
    await trio.testing.wait_all_tasks_blocked()
    assert client.counts == {"late progress": 1}
    await client.aclose()
