"""Calls of a client: the request sent, the result returned, and errors."""

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Client, Limits, RequestError, ToolError, UserRejected
from mcp_trio import types as t
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError, Unencodable
from mcp_trio.limits import RequestLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import ALL, connected, said

TEXT = {"type": "text", "text": "ebb"}
TOOL = {"name": "tide", "inputSchema": {}}
PROMPT = t.PromptReference(name="plan")

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
        lambda client: client.complete(PROMPT, "city", "O"),
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
    (
        lambda client: client.complete("plan", "city", "O"),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/prompt", "name": "plan"},
                "argument": {"name": "city", "value": "O"},
            },
        ),
        {"completion": {"values": [], "total": 300, "hasMore": True}},
        t.CompleteResult(completion=t.Completion(values=[], total=300, has_more=True)),
    ),
    (
        lambda client: client.complete("tide://{port}", "port", ""),
        (
            "completion/complete",
            {
                "ref": {"type": "ref/resource", "uri": "tide://{port}"},
                "argument": {"name": "port", "value": ""},
            },
        ),
        {"completion": {"values": ["Bergen"]}},
        t.CompleteResult(completion=t.Completion(values=["Bergen"])),
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
    (
        lambda client: client.request("prompts/list", {"cursor": "3"}),
        ("prompts/list", {"cursor": "3"}),
        {"prompts": [], "nextCursor": "4"},
        t.ListPromptsResult(prompts=[], next_cursor="4"),
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


@pytest.mark.requirement("PAG-06")
async def test_another_session_starts_at_the_first_page(nursery):
    for _ in range(2):
        pair = memory_pair()
        client, server = await connected((pair[0], WirePeer(pair[1])), nursery)
        asked = []

        async def play(server=server, asked=asked):
            asked.extend(await play_pages(server, "tools", TOOL, ["b", None]))

        nursery.start_soon(play)
        await client.list_tools()
        await client.aclose()
        assert asked == [None, "b"]


async def test_a_repeated_cursor_is_a_protocol_error_of_the_server(scripted, nursery):
    client, server = await connected(scripted, nursery)
    nursery.start_soon(play_pages, server, "tools", TOOL, ["a", "b", "a"])
    with pytest.raises(RemoteProtocolError, match="cursor 'a' twice"):
        await client.list_tools()
    await client.aclose()


async def test_a_list_with_too_many_pages_raises_an_error(scripted, nursery):
    client, server = await connected(
        scripted, nursery, limits=Limits(requests=RequestLimits(pages_max=3))
    )
    nursery.start_soon(play_pages, server, "tools", TOOL, "abcd")
    with pytest.raises(
        RemoteProtocolError, match=r"more than 3 pages \(limits\.requests\.pages_max\)"
    ):
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


async def test_a_failed_tool_raises_an_error_with_its_text_and_result(failing):
    async with Client(failing) as client:
        with pytest.raises(ToolError) as caught:
            await client.call_tool("fail")
        assert str(caught.value) == "no tide\ntoday"
        assert caught.value.result.is_error
        with pytest.raises(ToolError, match="fail_silently failed without an error text"):
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
    async def reject(handling):
        raise RequestError(-32602, "no such port", {"port": "Bergen"})

    async with Client(bench) as client:
        with pytest.raises(RequestError, match="no such port") as caught:
            await client.call_tool("reject")
    assert (caught.value.code, caught.value.data) == (-32602, {"port": "Bergen"})


@pytest.mark.parametrize("arguments", [{"port": object()}, {"port": "\ud800"}, {1: {2j: 3}}])
async def test_arguments_that_cannot_be_encoded_are_rejected_and_the_session_goes_on(
    bench, arguments
):
    async with Client(bench) as client:
        with pytest.raises(Unencodable):
            await client.call_tool("hello", arguments)
        assert said(await client.call_tool("hello")) == "hello"


@pytest.mark.requirement("TOOL-40")
async def test_a_malformed_result_is_a_protocol_error_of_the_server(scripted, nursery):
    client, server = await connected(scripted, nursery)

    async def play():
        await server.send_result(await server.receive(), {"content": 7})

    nursery.start_soon(play)
    with pytest.raises(RemoteProtocolError, match="tools/call"):
        await client.call_tool("tide")
    await client.aclose()


async def test_a_call_takes_no_option_that_it_does_not_know(bench):
    async with Client(bench) as client:
        with pytest.raises(TypeError, match=r"request\(\) got an unexpected keyword .*'timeout'"):
            await client.call_tool("hello", timeout=3)


@pytest.mark.requirement("PROM-04", "PROM-16")
async def test_prompt_arguments_that_are_not_strings_are_rejected(bench):
    async with Client(bench) as client:
        with pytest.raises(
            TypeError, match="the arguments of a prompt must be strings, not days=3"
        ):
            await client.get_prompt("plan", {"city": "Oslo", "days": 3})


async def test_a_method_that_only_servers_send_is_rejected(bench):
    async with Client(bench) as client:
        with pytest.raises(LocalProtocolError):
            await client.request("roots/list")


@pytest.mark.requirement("TOOL-39")
async def test_a_subclass_may_inspect_and_deny_every_request(scripted, nursery, autojump_clock):
    asked = []

    class Cautious(Client):
        async def request(self, method, params=None, **options):
            asked.append((method, params))
            if method == "tools/call" and params.name == "open_the_lock":
                raise UserRejected
            return await super().request(method, params, **options)

    channel, server = scripted
    client = Cautious(channel)
    nursery.start_soon(client.__aenter__)
    await server.answer_initialize(capabilities=ALL)
    await trio.testing.wait_all_tasks_blocked()
    with pytest.raises(UserRejected):
        await client.call_tool("open_the_lock", {"key": 3})
    nursery.start_soon(client.ping)
    assert (await server.receive())["method"] == "ping"
    assert [method for method, _ in asked] == ["tools/call", "ping"]
    assert asked[0][1] == t.CallToolParams(
        name="open_the_lock", arguments=msgspec.Raw(b'{"key":3}')
    )
    nursery.cancel_scope.cancel()
