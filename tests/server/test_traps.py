"""Where the specification misleads its readers: a test for each such place on a server's side.

The ids are those of `tools/traps.tsv`. Traps that the tests of a feature catch are not here again.
"""

import base64

import pytest

from mcp_trio import Context, Limits, Server, types
from mcp_trio._protocol.metadata import LOG_LEVEL
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, OLDEST
from mcp_trio.errors import RemoteProtocolError
from mcp_trio.limits import RequestLimits
from tests.server.conftest import nothing


def names_of(result):
    return [tool["name"] for tool in result["tools"]]


# TRAP-64: a notification shares the channel with the answer, and comes before it.


@pytest.mark.requirement("PROG-09", "LOG-03", "TRAP-64")
@pytest.mark.parametrize("protocol_version", ALL_PROTOCOL_VERSIONS)
async def test_notifications_of_a_handler_are_sent_in_order_before_its_response(
    server, serve, protocol_version
):
    @server.tool
    async def load(ctx: Context) -> str:
        await ctx.info("casting off")
        await ctx.progress(1)
        await ctx.info("at sea")
        return "there"

    asker = await serve(server, protocol_version=protocol_version)
    meta = {"progressToken": "p", LOG_LEVEL: "info"}
    await asker.begin("tools/call", {"name": "load", "_meta": meta})
    messages = await asker.wire.receive_available()
    assert [message.get("method") for message in messages] == [
        "notifications/message",
        "notifications/progress",
        "notifications/message",
        None,
    ]


# TRAP-68, TRAP-69: structured content came with 2025-06-18; before it there is only `content`.


@pytest.mark.requirement("TOOL-16")
async def test_structured_content_is_also_sent_as_text(server, serve):
    @server.tool
    async def weigh() -> dict[str, int]:
        return {"tons": 3}

    asker = await serve(server)
    (tool,) = (await asker.result("tools/list"))["tools"]
    assert tool.keys() == {"name", "inputSchema"}
    assert await asker.result("tools/call", {"name": "weigh"}) == {
        "content": [{"type": "text", "text": '{"tons":3}'}]
    }


# TRAP-72: what is empty, zero or false was said, and is not left out.


@pytest.mark.requirement("TOOL-16", "COMP-05", "LOG-03", "RES-18")
async def test_empty_and_zero_values_are_sent(server, serve):
    note = types.Annotations(audience=[], priority=0)

    @server.tool
    async def weigh(ctx: Context) -> types.CallToolResult:
        for data in (0, "", False, [], {}):
            await ctx.info(data, logger="")
        await ctx.progress(0, 0)
        content = [types.TextContent(text="", annotations=note)]
        return types.CallToolResult(content=content, is_error=False)

    @server.prompt
    async def sail(port: str = "") -> str:
        return port

    @server.completion(sail, "port")
    async def ports(typed: str) -> types.Completion:
        return types.Completion(values=[], total=0, has_more=False)

    asker = await serve(server)
    called = await asker.result("tools/call", {"name": "weigh", "_meta": {"progressToken": 0}})
    text = {"type": "text", "text": "", "annotations": {"audience": [], "priority": 0}}
    assert called == {"content": [text], "isError": False}
    *logged, progress = (message["params"] for message in asker.told)
    assert logged == [
        {"level": "info", "data": data, "logger": ""} for data in (0, "", False, [], {})
    ]
    assert progress == {"progressToken": 0, "progress": 0, "total": 0}
    reference = {"type": "ref/prompt", "name": "sail"}
    params = {"ref": reference, "argument": {"name": "port", "value": ""}}
    assert await asker.result("completion/complete", params) == {
        "completion": {"values": [], "total": 0, "hasMore": False}
    }


# TRAP-73: pages neither repeat nor skip what was there all the time.


@pytest.mark.requirement("PAG-08")
async def test_a_page_follows_the_previous_one_although_the_list_has_changed(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=2)))
    for name in "abcdef":
        server.tool(name=name)(nothing)
    asker = await serve(server)
    first = await asker.result("tools/list")
    assert names_of(first) == ["a", "b"]
    server.remove_tool("a")
    server.tool(name="g")(nothing)
    second = await asker.result("tools/list", {"cursor": first["nextCursor"]})
    assert names_of(second) == ["c", "d"]
    server.remove_tool("b")
    server.remove_tool("c")
    third = await asker.result("tools/list", {"cursor": second["nextCursor"]})
    assert names_of(third) == ["e", "f"]
    fourth = await asker.result("tools/list", {"cursor": third["nextCursor"]})
    assert names_of(fourth) == ["g"]
    assert "nextCursor" not in fourth


@pytest.mark.requirement("PAG-08", "PAG-09")
async def test_a_cursor_after_a_removed_entry_is_invalid_params(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=1)))
    for name in "ab":
        server.tool(name=name)(nothing)
    asker = await serve(server)
    cursor = (await asker.result("tools/list"))["nextCursor"]
    server.remove_tool("a")
    error = await asker.error("tools/list", {"cursor": cursor})
    assert error == {"code": -32602, "message": "invalid cursor"}
    assert names_of(await asker.result("tools/list")) == ["b"]


async def test_cursors_computed_by_a_client_use_no_memory():
    server = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=5)))
    for number in range(20):
        server.tool(name=f"n{number:02}")(nothing)
    registry = server._registry
    given = registry.page("tools/list", None, OLDEST)
    for number in range(20):
        made_up = base64.urlsafe_b64encode(f"tools/list after n{number:02}".encode()).decode()
        registry.page("tools/list", made_up, OLDEST)
    assert registry.page("tools/list", None, OLDEST) is given
    assert len(registry._pages) <= 5


# TRAP-79: a schema without `$schema` is JSON Schema 2020-12; one with it is what it says.


@pytest.mark.parametrize(
    ("schema", "rejected"),
    [
        ({"properties": {"a": {"prefixItems": [{"type": "integer"}]}}}, True),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"prefixItems": [{"type": "integer"}]}},
            },
            False,
        ),
        (
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"a": {"items": [{"type": "integer"}]}},
            },
            True,
        ),
    ],
)
@pytest.mark.requirement("TOOL-38")
async def test_a_given_schema_is_validated_in_its_own_dialect(server, serve, schema, rejected):
    @server.tool(input_schema={"type": "object", **schema})
    async def sail(given: dict) -> str:
        return "sails"

    asker = await serve(server)
    answer = await asker.ask("tools/call", {"name": "sail", "arguments": {"a": ["x"]}})
    assert answer.get("error", {}).get("code") == (-32602 if rejected else None)


# TRAP-85: a message of sampling holds one block or a list, and tools only where there are some.


@pytest.mark.requirement("SAMP-09", "SAMP-28")
@pytest.mark.parametrize(
    "content",
    [
        [{"type": "video"}],
        {"type": "tool_use", "id": "1", "name": "t", "input": {}},
        {"type": "resource", "resource": {"uri": "a:b", "text": "t"}},
    ],
)
async def test_an_elicitation_result_of_another_form_is_the_clients_error(server, serve, content):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(RemoteProtocolError, match="sampling/createMessage"):
            await ctx.sample("Why?")
        return "caught"

    asker = await serve(server, capabilities={"sampling": {}})
    call = await asker.begin("tools/call", {"name": "ask"})
    asked = await asker.next_told()
    await asker.wire.send_result(asked, {"role": "assistant", "model": "m", "content": content})
    assert (await asker.end(call))["result"]["content"][0]["text"] == "caught"


# TRAP-10: what a newer client adds is ignored.


@pytest.mark.requirement("ROOT-05", "TRAP-10")
async def test_unknown_members_of_roots_are_ignored(server, serve):
    @server.tool
    async def ask(ctx: Context) -> list:
        (root,) = await ctx.list_roots()
        return [root.uri, root.name]

    asker = await serve(server, capabilities={"roots": {"listChanged": True, "x": 1}, "tasks": {}})
    call = await asker.begin("tools/call", {"name": "ask", "task": {"ttl": 1}})
    root = {"uri": "file:///pier", "name": "pier", "_meta": {"icon": 1}, "size": 3}
    await asker.wire.send_result(await asker.next_told(), {"roots": [root], "nextCursor": "n"})
    result = (await asker.end(call))["result"]
    assert result["content"][0]["text"] == '["file:///pier","pier"]'


@pytest.mark.requirement("SAMP-10")
async def test_unknown_members_of_an_answer_are_ignored(server, serve):
    @server.tool
    async def ask(ctx: Context) -> list:
        answer = await ctx.sample("Why?")
        return [answer.content.text, answer.stop_reason, answer.model]

    asker = await serve(server, capabilities={"sampling": {"tools": {}}})
    call = await asker.begin("tools/call", {"name": "ask"})
    text = {"type": "text", "text": "So.", "_meta": {}, "annotations": None}
    said = {"role": "assistant", "model": "m", "content": text, "stopReason": "tired", "cost": 1}
    await asker.wire.send_result(await asker.next_told(), said)
    result = (await asker.end(call))["result"]
    assert result["content"][0]["text"] == '["So.","tired","m"]'
