"""Tools, resources, prompts, completions and logging at every protocol version."""

import base64
import json

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import (
    Audio,
    Client,
    Context,
    Image,
    Limits,
    RequestError,
    Roots,
    Sampling,
    Server,
    ToolError,
    types,
)
from mcp_trio._protocol.metadata import LOG_LEVEL
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, OLDEST, PROTOCOL_VERSIONS
from mcp_trio.errors import RemoteProtocolError
from mcp_trio.limits import MessageLimits, RequestLimits
from mcp_trio.transports import memory_pair
from tests.server.conftest import failure_text, nothing

A, B, C, D, E = PROTOCOL_VERSIONS
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
REJECTED = {"code": INVALID_PARAMS, "message": "not for you"}
PNG = b"\x89PNG\r\n\x1a\n...."
PICTURE = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgouLi4u"}
ARGUMENT = {"name": "port", "value": "O"}
OF_PROMPT = {"ref": {"type": "ref/prompt", "name": "sail"}, "argument": ARGUMENT}
TIDE = "harbour://tide"


@pytest.fixture(params=PROTOCOL_VERSIONS)
def protocol_version_calls_at_every_version(request):
    return request.param


@pytest.fixture
def asks(server, serve, protocol_version_calls_at_every_version):
    """Serve the server with each protocol version."""

    async def start(**options):
        return await serve(
            server, protocol_version=protocol_version_calls_at_every_version, **options
        )

    return start


# Tools.


@pytest.mark.requirement("TOOL-16", "TOOL-18")
async def test_a_result_has_content_and_is_error_only_for_errors(server, asks):
    @server.tool
    async def nothing() -> None:
        pass

    @server.tool
    async def picture() -> Image:
        return Image(PNG)

    asker = await asks()
    result = await asker.result("tools/call", {"name": "nothing", "arguments": {}})
    assert result["content"] == []
    assert "isError" not in result
    assert (await asker.result("tools/call", {"name": "picture"}))["content"] == [PICTURE]


@pytest.mark.requirement("TOOL-18", "PROM-08")
async def test_audio_is_base64_or_replaced_where_the_version_lacks_it(
    server, asks, protocol_version_calls_at_every_version
):
    @server.tool
    @server.prompt
    async def horn() -> Audio:
        return Audio(b"fLaC")

    asker = await asks()
    (tool,) = (await asker.result("tools/call", {"name": "horn"}))["content"]
    (message,) = (await asker.result("prompts/get", {"name": "horn"}))["messages"]
    for block in (tool, message["content"]):
        audio = block["resource"] if protocol_version_calls_at_every_version == A else block
        member = "blob" if protocol_version_calls_at_every_version == A else "data"
        assert (audio["mimeType"], audio[member]) == ("audio/flac", "ZkxhQw==")


@pytest.mark.requirement("TOOL-29")
async def test_a_tool_error_is_a_result(server, asks):
    @server.tool
    async def sink() -> str:
        raise ToolError("the ship has sunk")

    asker = await asks()
    result = await asker.result("tools/call", {"name": "sink"})
    assert result["isError"] is True
    assert result["content"] == [{"type": "text", "text": "the ship has sunk"}]


@pytest.mark.requirement("TOOL-19", "PROM-09", "RES-05")
async def test_embedded_resources_can_be_read(server, asks):
    @server.resource(TIDE, mime_type="text/tide")
    async def tide() -> str:
        return "high"

    @server.tool
    async def tell(ctx: Context) -> types.EmbeddedResource:
        (contents,) = await ctx.read_resource(TIDE)
        return types.EmbeddedResource(resource=contents)

    @server.prompt
    async def show(ctx: Context):
        (contents,) = await ctx.read_resource(TIDE)
        return types.EmbeddedResource(resource=contents)

    asker = await asks()
    assert "resources" in asker.hello["capabilities"]
    contents = {"uri": TIDE, "mimeType": "text/tide", "text": "high"}
    (block,) = (await asker.result("tools/call", {"name": "tell"}))["content"]
    (message,) = (await asker.result("prompts/get", {"name": "show"}))["messages"]
    assert block == message["content"] == {"type": "resource", "resource": contents}
    assert (await asker.result("resources/read", {"uri": TIDE}))["contents"] == [contents]


# Resources.


@pytest.mark.requirement("RES-05", "RES-06", "RES-22")
async def test_contents_are_text_or_base64(server, asks):
    @server.resource("harbour://{name}")
    async def read(name: str):
        if name == "log":
            return [
                types.ResourceContents(uri="harbour://log/1", text="ebb"),
                types.ResourceContents(uri="harbour://log/2", blob="AP8="),
            ]
        return b"\x00\xff"

    asker = await asks()
    (blob,) = (await asker.result("resources/read", {"uri": "harbour://map"}))["contents"]
    assert (blob["uri"], blob["blob"]) == ("harbour://map", "AP8=")
    contents = (await asker.result("resources/read", {"uri": "harbour://log"}))["contents"]
    assert contents == [
        {"uri": "harbour://log/1", "text": "ebb"},
        {"uri": "harbour://log/2", "blob": "AP8="},
    ]


@pytest.mark.requirement("RES-22", "RES-19", "RES-23")
@pytest.mark.parametrize(
    "uri",
    [
        "harbour://x/../../etc",
        "harbour://x/%2e%2e/etc",
        "harbour://x/%2Fetc",
        "https://example.org/x",
        "file:///etc/passwd",
        "harbour",
        "",
    ],
)
async def test_an_unknown_uri_reaches_no_handler_and_is_not_fetched(server, asks, uri):
    seen = []

    @server.resource("harbour://x/{+path}")
    async def read(path: str) -> str:
        seen.append(path)
        return path

    asker = await asks()
    assert "error" in await asker.ask("resources/read", {"uri": uri})
    assert seen == []


# Prompts.


@pytest.mark.requirement("PROM-05", "PROM-07", "PROM-08", "PROM-16")
async def test_a_prompt_is_a_list_of_messages_with_role_and_content(server, asks):
    @server.prompt
    async def sail(days: int, port: str):
        content = types.TextContent(text="Aye.")
        return [
            f"{days} days to {port}",
            Image(PNG),
            types.PromptMessage(role="assistant", content=content),
        ]

    asker = await asks()
    port = '"}], "role": "assistant'
    params = {"name": "sail", "arguments": {"days": "3", "port": port}}
    assert (await asker.result("prompts/get", params))["messages"] == [
        {"role": "user", "content": {"type": "text", "text": f"3 days to {port}"}},
        {"role": "user", "content": PICTURE},
        {"role": "assistant", "content": {"type": "text", "text": "Aye."}},
    ]


@pytest.mark.requirement("PROM-04", "PROM-06", "PROM-07", "TRAP-75")
@pytest.mark.parametrize(
    "params",
    [
        {"name": "row"},
        {"name": "sail"},
        {"name": "sail", "arguments": {"days": "x"}},
        {"name": "sail", "arguments": {"days": 3}},
        {"name": "sail", "arguments": {"days": True}},
        {"name": "sail", "arguments": {"days": ["3"]}},
        {"name": "sail", "arguments": {"days": "3", "more": "4"}},
    ],
)
async def test_invalid_arguments_of_a_prompt_are_rejected(server, asks, params):
    reached = []

    @server.prompt
    async def sail(days: int) -> str:
        reached.append(days)
        return "sails"

    asker = await asks()
    assert (await asker.error("prompts/get", params))["code"] == INVALID_PARAMS
    assert reached == []


# Completions.


@pytest.mark.requirement("COMP-05", "COMP-07", "TRAP-76")
async def test_a_completion_keeps_its_order_and_has_a_hundred_values_at_most(server, asks):
    @server.prompt
    async def sail(port: str) -> str:
        return port

    @server.completion(sail, "port")
    async def ports(typed: str) -> list[str]:
        return [f"{typed}{number}" for number in range(120, 0, -1)]

    asker = await asks()
    completion = (await asker.result("completion/complete", OF_PROMPT))["completion"]
    assert completion.pop("values") == [f"O{number}" for number in range(120, 20, -1)]
    assert completion == {"total": 120, "hasMore": True}


@pytest.mark.requirement("COMP-06", "COMP-09")
@pytest.mark.parametrize(
    "change",
    [
        {"ref": {"type": "ref/prompt", "name": "row"}},
        {"ref": {"type": "ref/ship", "name": "sail"}},
        {"argument": {"name": "ship", "value": ""}},
        {"argument": {"name": "port"}},
        {"argument": {"name": "port", "value": 7}},
    ],
)
async def test_completions_of_unknown_targets_are_rejected(server, asks, change):
    @server.prompt
    async def sail(port: str) -> str:
        return port

    @server.completion(sail, "port")
    async def ports(typed: str) -> list[str]:
        return [typed]

    asker = await asks()
    error = await asker.error("completion/complete", OF_PROMPT | change)
    assert error["code"] == INVALID_PARAMS


# Rules for all protocol versions.


CALLS = [
    ("tools/call", {"name": "sail", "arguments": {"port": "Oslo"}}),
    ("prompts/get", {"name": "sail", "arguments": {"port": "Oslo"}}),
    ("resources/read", {"uri": "harbour://Oslo"}),
    ("completion/complete", OF_PROMPT),
]


def offer(server, handler):
    """Let a handler be everything that can be called."""
    server.tool(name="sail")(handler)
    server.prompt(name="sail")(handler)
    server.resource("harbour://{port}")(handler)
    server.completion("sail", "port")(handler)


@pytest.mark.requirement("TOOL-38", "RES-24", "PROM-16", "COMP-09", "CACHE-20")
@pytest.mark.parametrize(("method", "params"), CALLS)
async def test_each_request_is_authorized_by_its_own_handler(
    serve, protocol_version_calls_at_every_version, method, params
):
    server = Server("harbour", cache_scope="public", list_ttl_seconds=3600)

    async def sail(port: str, ctx: Context) -> str:
        if not ctx.client_can("roots"):
            raise RequestError(INVALID_PARAMS, "not for you")
        return "sails"

    server.resource("harbour://{port}", ttl_seconds=3600, cache_scope="public")(sail)
    server.tool(sail)
    server.prompt(sail)

    @server.completion("sail", "port")
    async def ports(typed: str, ctx: Context) -> list[str]:
        return [await sail(typed, ctx)]

    allowed = await serve(
        server, protocol_version=protocol_version_calls_at_every_version, capabilities={"roots": {}}
    )
    await allowed.result(method, params)
    barred = await serve(server, protocol_version=protocol_version_calls_at_every_version)
    assert await barred.error(method, params) == REJECTED


@pytest.mark.requirement("RES-09", "PROM-06", "COMP-06", "LOG-14", "TOOL-38", "PROM-16")
@pytest.mark.parametrize(("method", "params"), CALLS)
async def test_an_unexpected_error_is_an_internal_error_without_its_text(
    server, asks, caplog, method, params
):
    async def sail(port: str) -> str:
        raise OSError("password=hunter2")

    offer(server, sail)
    asker = await asks()
    answer = await asker.ask(method, params)
    if method == "tools/call":
        assert failure_text(answer["result"]) == "internal error in sail"
    else:
        assert answer["error"] == {"code": INTERNAL_ERROR, "message": "internal error"}
    assert "hunter2" in caplog.text
    assert all(b"hunter2" not in message for message in asker.wire.received)


@pytest.mark.requirement("TOOL-38", "COMP-07", "COMP-09")
@pytest.mark.parametrize(("method", "params"), CALLS)
async def test_too_many_requests_at_once_are_rejected(
    serve, protocol_version_calls_at_every_version, method, params
):
    server = Server("harbour", limits=Limits(requests=RequestLimits(in_flight_max=1, queued_max=1)))
    release = trio.Event()

    async def sail(port: str):
        await release.wait()
        return ["sails"] if method == "completion/complete" else "sails"

    offer(server, sail)
    asker = await serve(server, protocol_version=protocol_version_calls_at_every_version)
    asked = [await asker.begin(method, params) for _ in range(3)]
    (rejected,) = await asker.wire.receive_available()
    assert rejected["id"] == asked[2]
    assert "limits.requests.queued_max" in rejected["error"]["message"]
    release.set()
    for request_id in asked[:2]:
        assert "result" in await asker.end(request_id)


# Logs.


LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
STATELESS_LEVEL = "io.modelcontextprotocol/logLevel"


@pytest.fixture
def talking(server):
    @server.tool
    async def talk(ctx: Context) -> None:
        for level in LEVELS:
            await ctx.log(level, {"level": level, "n": [None, 0]}, logger="harbour.talk")

    return server


async def received_log_params(asker, level, protocol_version):
    """Return the params of the log messages to a client that asked for a level and above."""
    meta = {"_meta": {STATELESS_LEVEL: level}} if protocol_version == E else {}
    if protocol_version != E:
        assert await asker.result("logging/setLevel", {"level": level}) == {}
    await asker.result("tools/call", {"name": "talk", **meta})
    params = [message["params"] for message in asker.received]
    asker.received.clear()
    return params


@pytest.mark.requirement("LOG-02", "LOG-03", "LOG-04", "LOG-06", "LOG-09")
async def test_a_client_receives_log_messages_of_its_level_and_above(
    talking, asks, protocol_version_calls_at_every_version
):
    asker = await asks()
    for number, level in enumerate(LEVELS):
        params = await received_log_params(asker, level, protocol_version_calls_at_every_version)
        assert params == [
            {"level": it, "data": {"level": it, "n": [None, 0]}, "logger": "harbour.talk"}
            for it in LEVELS[number:]
        ]


@pytest.mark.requirement("LOG-07", "LOG-11")
@pytest.mark.parametrize("level", ["loud", "", 3, None, "DEBUG"])
async def test_an_unknown_log_level_is_rejected(
    talking, asks, protocol_version_calls_at_every_version, level
):
    asker = await asks()
    if protocol_version_calls_at_every_version == E:
        answer = await asker.error(
            "tools/call", {"name": "talk", "_meta": {STATELESS_LEVEL: level}}
        )
    else:
        answer = await asker.error("logging/setLevel", {"level": level})
    assert answer["code"] == INVALID_PARAMS
    assert asker.received == []


@pytest.mark.requirement("LOG-12")
async def test_the_log_level_of_a_session_ends_with_the_session(
    talking, asks, protocol_version_calls_at_every_version
):
    asker = await asks()
    answer = await asker.ask("logging/setLevel", {"level": "error"})
    assert answer.get("error", {}).get("code") == (
        -32601 if protocol_version_calls_at_every_version == E else None
    )


@pytest.mark.requirement("LOG-13")
async def test_a_flood_of_messages_waits_for_a_client_that_does_not_read(
    serve, protocol_version_calls_at_every_version
):
    sent = []
    server = Server(
        "harbour",
        limits=Limits(messages=MessageLimits(send_queue_bytes_max=2000, write_stall_seconds=1e6)),
    )

    @server.tool
    async def talk(ctx: Context) -> None:
        for number in range(100_000):
            await ctx.info({"step": number}, logger="harbour.talk")
            sent.append(number)

    asker = await serve(server, protocol_version=protocol_version_calls_at_every_version)
    params = {"name": "talk", "_meta": {STATELESS_LEVEL: "info"}}
    await asker.begin("tools/call", params)
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < len(sent) < 50_000
    assert (await asker.next_message())["params"]["data"] == {"step": 0}


@pytest.mark.requirement("LOG-15", "LOG-14")
async def test_messages_of_the_package_itself_go_to_python_logging_only(
    server, asks, caplog, protocol_version_calls_at_every_version
):
    @server.tool
    async def crash() -> None:
        raise OSError("the hull is open")

    asker = await asks()
    if protocol_version_calls_at_every_version != E:
        await asker.result("logging/setLevel", {"level": "debug"})
    text = await asker.failure("crash", _meta={STATELESS_LEVEL: "debug"})
    assert text == "internal error in crash"
    assert asker.received == []
    assert "the hull is open" in caplog.text


# Statements of the specification that are easily misread by servers.
#
# The ids are those of `tools/traps.tsv`; tests of a feature cover the others.


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
        await ctx.report_progress(1)
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
        await ctx.report_progress(0, 0)
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
    *logged, progress = (message["params"] for message in asker.received)
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
    asked = await asker.next_message()
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
    await asker.wire.send_result(await asker.next_message(), {"roots": [root], "nextCursor": "n"})
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
    sampled = {"role": "assistant", "model": "m", "content": text, "stopReason": "tired", "cost": 1}
    await asker.wire.send_result(await asker.next_message(), sampled)
    result = (await asker.end(call))["result"]
    assert result["content"][0]["text"] == '["So.","tired","m"]'


# Complete sessions with each protocol version, over a transport that is no part of the package.


*LEGACY, STATELESS = PROTOCOL_VERSIONS
META_OF_ALL = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {"roots": {}, "sampling": {}},
}


@attrs.define(eq=False)
class ObservedChannel:
    """A channel of another library: only the three methods, over memory; it keeps its messages."""

    _inner: object
    sent: list = attrs.field(factory=list)

    async def send(self, frames):
        self.sent += frames
        await self._inner.send(frames)

    async def receive(self):
        return await self._inner.receive()

    async def aclose(self):
        await self._inner.aclose()

    @property
    def messages(self):
        return [json.loads(frame) for frame in self.sent]


def kind(message):
    """Return the kind of a message, by its members alone."""
    if "method" in message:
        return "request" if "id" in message else "notification"
    return "response"


@pytest.fixture
def sailing_server():
    server = Server("harbour")

    @server.tool
    async def sail(ctx: Context) -> str:
        await ctx.report_progress(1, message="casting off")
        await ctx.info("é\U0001f600")
        roots, answer = await ctx.ask_all(Roots(), Sampling("Which port?"))
        return f"{roots[0].uri} {answer.content.text}"

    return server


def sampled(_params):
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(text="Bergen é"), model="m"
    )


@pytest.fixture
async def sail_and_record(sailing_server, nursery):
    """Call `sail` with a protocol version; returns the messages of both sides."""

    async def sail(protocol_version):
        ours, theirs = map(ObservedChannel, memory_pair())
        nursery.start_soon(sailing_server.serve, theirs)
        reports, options = [], {"log_level": "info"}
        options |= {"roots": ["file:///pier"], "sampling": sampled}
        async with Client(ours, protocol_versions=[protocol_version], **options) as client:
            assert client.protocol_version == protocol_version
            result = await client.call_tool("sail", progress=reports.append)
            assert result.content[0].text == "file:///pier Bergen é"
            assert [report.progress for report in reports] == [1]
            if protocol_version == STATELESS:
                async with client.listen(tools=True) as subscription:
                    sailing_server.tool(name="row")(nothing)
                    await subscription.__anext__()
        await trio.testing.wait_all_tasks_blocked()
        return ours, theirs, reports

    return sail


@pytest.mark.requirement("TRAN-04", "TRAN-07", "BASE-20", "BASE-22", "BASE-23")
@pytest.mark.requirement("STDIO-11", "STDIO-12", "META-11", "META-12")
async def test_a_stateless_client_sends_requests_and_receives_responses_and_notifications(
    sail_and_record,
):
    ours, theirs, _ = await sail_and_record(STATELESS)
    assert {kind(message) for message in ours.messages} <= {"request", "notification"}
    assert {kind(message) for message in theirs.messages} == {"response", "notification"}
    asked = [message for message in ours.messages if kind(message) == "request"]
    assert [message["method"] for message in asked] == [
        "server/discover",
        "tools/call",
        "tools/call",
        "subscriptions/listen",
    ]
    for message in asked:
        assert META_OF_ALL.items() <= message["params"]["_meta"].items()
    for message in (*ours.messages, *theirs.messages):
        assert message["jsonrpc"] == "2.0"


@pytest.mark.requirement("TRAN-03", "BASE-19", "LIFE-02")
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_after_a_legacy_handshake_both_sides_send_requests(sail_and_record, protocol_version):
    ours, theirs, _ = await sail_and_record(protocol_version)
    methods = [message.get("method") for message in ours.messages if "method" in message]
    assert methods[:2] == ["initialize", "notifications/initialized"]
    assert "tools/call" in methods
    asked = [message["method"] for message in theirs.messages if kind(message) == "request"]
    assert sorted(asked) == ["roots/list", "sampling/createMessage"]


@pytest.mark.requirement("BASE-18")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_messages_are_sent_as_utf_8_in_one_line(sail_and_record, protocol_version):
    for channel in (await sail_and_record(protocol_version))[:2]:
        text = b"\n".join(channel.sent).decode("utf-8", "strict")
        assert "é" in text
        assert len(text.split("\n")) == len(channel.sent)


@pytest.mark.requirement("PROG-08")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_progress_contains_the_message_of_the_handler(sail_and_record, protocol_version):
    (report,) = (await sail_and_record(protocol_version))[2]
    assert report.message == (None if protocol_version == LEGACY[0] else "casting off")


# Notifications and errors.


@pytest.mark.requirement("PROG-01", "PROG-03", "PROG-04", "PROG-05", "PROG-06", "PROG-09")
@pytest.mark.requirement("TRAP-61", "TRAP-62", "TRAP-64")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_each_request_receives_only_its_own_increasing_progress(serve, protocol_version):
    server, left = Server("harbour"), []

    @server.tool
    async def load(ctx: Context) -> str:
        left.append(ctx)
        for progress in (0.5, 0.5, 0.2, 2):
            await ctx.report_progress(progress, 2)
        return "loaded"

    asker = await serve(server, protocol_version=protocol_version)
    for token in ("1", 1, ""):
        call = {"name": "load", "_meta": {"progressToken": token}}
        await asker.result("tools/call", call)
        await left[-1].report_progress(3)
        reports = [message["params"] for message in asker.received]
        asker.received.clear()
        assert reports == [
            {"progressToken": token, "progress": progress, "total": 2} for progress in (0.5, 2)
        ]
        assert {type(each["progressToken"]) for each in reports} == {type(token)}
    await asker.result("tools/call", {"name": "load"})
    assert await asker.wire.receive_available() == []
    assert asker.received == []


@pytest.mark.requirement("BASE-01", "BASE-02", "BASE-03", "BASE-30", "BASE-31", "BASE-32")
@pytest.mark.requirement("BASE-34", "BASE-35", "TRAP-04")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_the_codes_of_json_rpc_are_the_same_at_every_protocol_version(
    serve, protocol_version
):
    server = Server("harbour")

    @server.prompt
    async def sail() -> str:
        raise OSError("secret")

    asker = await serve(server, protocol_version=protocol_version)
    meta = {"_meta": asker.metadata} if asker.metadata else {}

    async def code(frame):
        await asker.wire.send(frame)
        message = await asker.wire.receive()
        assert message["id"] == "q"
        assert "secret" not in json.dumps(message)
        return message["error"]["code"]

    asked = {"jsonrpc": "2.0", "id": "q", "method": "prompts/get", "params": {"name": "sail"}}
    asked["params"] |= meta
    assert await code(asked) == -32603
    assert await code({**asked, "params": meta}) == -32602
    assert await code({**asked, "method": "prompts/sing"}) == -32601
    assert await code({**asked, "jsonrpc": "1.0"}) == -32600
    assert await code(b'{"jsonrpc":"2.0","id":"q","method":"prompts/get","params":{"name":}}') == (
        -32700
    )
    for bad in (None, True, 1.5, [1]):
        await asker.wire.send({**asked, "id": bad})
        for message in await asker.wire.receive_available():
            assert "id" not in message
            assert message["error"]["code"] == -32600


# Cancellation.


@pytest.mark.requirement("STDIO-15", "STDIO-16", "CANC-15", "CANC-16")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_cancelled_request_stops_and_sends_nothing_more(serve, protocol_version):
    server, ended, later = Server("harbour"), trio.Event(), trio.Event()

    @server.tool
    async def sail(ctx: Context) -> str:
        await ctx.report_progress(1)
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
            with trio.CancelScope(shield=True):
                await later.wait()
                await ctx.report_progress(2)
                await ctx.critical("too late")

    @server.tool
    async def row() -> str:
        return "row"

    asker = await serve(server, protocol_version=protocol_version)
    meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    call = await asker.begin("tools/call", {"name": "sail", "_meta": meta})
    assert (await asker.wire.receive())["params"]["progress"] == 1
    for unknown in (call + 100, str(call), "never"):
        await asker.wire.cancel(unknown)
    assert not ended.is_set()
    await asker.wire.cancel(call, "the user left")
    with trio.fail_after(1):
        await ended.wait()
    later.set()
    assert await asker.wire.receive_available() == []
    await asker.wire.cancel(call)
    assert await asker.call("row") == "row"
    assert asker.received == []


# State across requests.


@pytest.mark.requirement("STATE-03", "STATE-05", "STATE-06")
async def test_a_handler_is_resumed_by_its_state_on_any_connection(chain):
    def register(server):
        @server.tool(name="it", resumable=True)
        async def it(port: str, ctx: Context) -> str:
            (root,) = await ctx.list_roots()
            return f"{port}: {root.uri}"

    def roots(path):
        return {"roots": [{"uri": f"file:///{path}"}]}

    here, there = chain(register, port="Bergen"), chain(register, port="Oslo")
    first, second = await here.begin(), await there.begin()
    assert first["requestState"] != second["requestState"]
    ((key, _),) = second["inputRequests"].items()
    done = await there.go_on(second, **{key: roots("o")})
    assert done["content"][0]["text"] == "Oslo: file:///o"
    assert (await there.send(inputResponses={key: roots("o")}))["result"]["inputRequests"]
    done = await here.go_on(first, **{key: roots("b")})
    assert done["content"][0]["text"] == "Bergen: file:///b"


@pytest.mark.requirement("STATE-06", "STATE-02", "META-16")
async def test_two_conversations_on_one_connection_are_independent(serve):
    server = Server("harbour")

    @server.tool
    async def it(port: str, ctx: Context) -> str:
        (root,) = await ctx.list_roots()
        return f"{port}: {root.uri}"

    asker = await serve(server, protocol_version=STATELESS, capabilities={"roots": {}})
    asked = {}
    for port in ("Bergen", "Oslo"):
        params = {"name": "it", "arguments": {"port": port}}
        asked[port] = (params, await asker.result("tools/call", params))
    for port, (params, result) in reversed(asked.items()):
        ((key, _),) = result["inputRequests"].items()
        roots = {key: {"roots": [{"uri": f"file:///{port}"}]}}
        retry = {**params, "requestState": result["requestState"], "inputResponses": roots}
        done = await asker.result("tools/call", retry)
        assert done["content"][0]["text"] == f"{port}: file:///{port}"


@pytest.mark.requirement("STATE-10")
async def test_an_unknown_handle_is_a_tool_error(serve):
    server = Server("harbour")

    @server.tool
    async def leave(berth: str) -> str:
        raise ToolError(f"there is no berth {berth}, or it has been given up")

    asker = await serve(server, protocol_version=STATELESS)
    result = await asker.result("tools/call", {"name": "leave", "arguments": {"berth": "b7"}})
    assert result["isError"] is True
    assert result["content"][0]["text"] == "there is no berth b7, or it has been given up"


# Missing capabilities.


@pytest.mark.requirement("META-17", "ERR-14")
@pytest.mark.parametrize("question", ["roots", "sampling"])
async def test_a_request_without_the_capability_is_not_asked_although_another_has_it(
    serve, question
):
    server = Server("harbour")

    @server.tool
    async def ask(ctx: Context) -> str:
        await (ctx.list_roots() if question == "roots" else ctx.sample("Why?"))
        return "asked"

    asker = await serve(server, protocol_version=STATELESS, capabilities={question: {}})
    first = await asker.result("tools/call", {"name": "ask"})
    assert first["resultType"] == "input_required"
    without = {"io.modelcontextprotocol/clientCapabilities": {}}
    error = await asker.error("tools/call", {"name": "ask", "_meta": without})
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {question: {}}}
