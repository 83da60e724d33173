"""Tools, resources, prompts, completions and logging at every protocol version."""

import pytest
import trio
import trio.testing

from mcp_trio import Audio, Context, Image, Limits, RequestError, Server, ToolError, types
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.limits import MessageLimits, RequestLimits

A, B, C, D, E = PROTOCOL_VERSIONS
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603
CRASHED = {"code": INTERNAL_ERROR, "message": "internal error"}
REJECTED = {"code": INVALID_PARAMS, "message": "not for you"}
PNG = b"\x89PNG\r\n\x1a\n...."
PICTURE = {"type": "image", "mimeType": "image/png", "data": "iVBORw0KGgouLi4u"}
ARGUMENT = {"name": "port", "value": "O"}
OF_PROMPT = {"ref": {"type": "ref/prompt", "name": "sail"}, "argument": ARGUMENT}
TIDE = "harbour://tide"


@pytest.fixture(params=PROTOCOL_VERSIONS)
def protocol_version(request):
    return request.param


@pytest.fixture
def asks(server, serve, protocol_version):
    """Serve the server at each revision."""

    async def start(**options):
        return await serve(server, protocol_version=protocol_version, **options)

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
    server, asks, protocol_version
):
    @server.tool
    @server.prompt
    async def horn() -> Audio:
        return Audio(b"fLaC")

    asker = await asks()
    (tool,) = (await asker.result("tools/call", {"name": "horn"}))["content"]
    (message,) = (await asker.result("prompts/get", {"name": "horn"}))["messages"]
    for block in (tool, message["content"]):
        said = block["resource"] if protocol_version == A else block
        member = "blob" if protocol_version == A else "data"
        assert (said["mimeType"], said[member]) == ("audio/flac", "ZkxhQw==")


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
        said = types.TextContent(text="Aye.")
        return [
            f"{days} days to {port}",
            Image(PNG),
            types.PromptMessage(role="assistant", content=said),
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


# What holds for all of them.


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
    serve, protocol_version, method, params
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

    allowed = await serve(server, protocol_version=protocol_version, capabilities={"roots": {}})
    await allowed.result(method, params)
    barred = await serve(server, protocol_version=protocol_version)
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
    assert await asker.error(method, params) == CRASHED
    assert "hunter2" in caplog.text
    assert all(b"hunter2" not in message for message in asker.wire.received)


@pytest.mark.requirement("TOOL-38", "COMP-07", "COMP-09")
@pytest.mark.parametrize(("method", "params"), CALLS)
async def test_too_many_requests_at_once_are_rejected(serve, protocol_version, method, params):
    server = Server("harbour", limits=Limits(requests=RequestLimits(in_flight_max=1, queued_max=1)))
    release = trio.Event()

    async def sail(port: str):
        await release.wait()
        return ["sails"] if method == "completion/complete" else "sails"

    offer(server, sail)
    asker = await serve(server, protocol_version=protocol_version)
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


async def heard(asker, level, protocol_version):
    """The params of what is told to a client that wants to hear of a level and above."""
    meta = {"_meta": {STATELESS_LEVEL: level}} if protocol_version == E else {}
    if protocol_version != E:
        assert await asker.result("logging/setLevel", {"level": level}) == {}
    await asker.result("tools/call", {"name": "talk", **meta})
    told = [message["params"] for message in asker.told]
    asker.told.clear()
    return told


@pytest.mark.requirement("LOG-02", "LOG-03", "LOG-04", "LOG-06", "LOG-09")
async def test_a_client_receives_log_messages_of_its_level_and_above(
    talking, asks, protocol_version
):
    asker = await asks()
    for number, level in enumerate(LEVELS):
        told = await heard(asker, level, protocol_version)
        assert told == [
            {"level": it, "data": {"level": it, "n": [None, 0]}, "logger": "harbour.talk"}
            for it in LEVELS[number:]
        ]


@pytest.mark.requirement("LOG-07", "LOG-11")
@pytest.mark.parametrize("level", ["loud", "", 3, None, "DEBUG"])
async def test_an_unknown_log_level_is_rejected(talking, asks, protocol_version, level):
    asker = await asks()
    if protocol_version == E:
        answer = await asker.error(
            "tools/call", {"name": "talk", "_meta": {STATELESS_LEVEL: level}}
        )
    else:
        answer = await asker.error("logging/setLevel", {"level": level})
    assert answer["code"] == INVALID_PARAMS
    assert asker.told == []


@pytest.mark.requirement("LOG-12")
async def test_the_log_level_of_a_session_ends_with_the_session(talking, asks, protocol_version):
    asker = await asks()
    answer = await asker.ask("logging/setLevel", {"level": "error"})
    assert answer.get("error", {}).get("code") == (-32601 if protocol_version == E else None)


@pytest.mark.requirement("LOG-13")
async def test_a_flood_of_messages_waits_for_a_client_that_does_not_read(serve, protocol_version):
    told = []
    server = Server(
        "harbour",
        limits=Limits(messages=MessageLimits(send_queue_bytes_max=2000, write_stall_seconds=1e6)),
    )

    @server.tool
    async def talk(ctx: Context) -> None:
        for number in range(100_000):
            await ctx.info({"step": number}, logger="harbour.talk")
            told.append(number)

    asker = await serve(server, protocol_version=protocol_version)
    params = {"name": "talk", "_meta": {STATELESS_LEVEL: "info"}}
    await asker.begin("tools/call", params)
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < len(told) < 50_000
    assert (await asker.next_told())["params"]["data"] == {"step": 0}


@pytest.mark.requirement("LOG-15", "LOG-14")
async def test_messages_of_the_package_itself_go_to_python_logging_only(
    server, asks, caplog, protocol_version
):
    @server.tool
    async def crash() -> None:
        raise OSError("the hull is open")

    asker = await asks()
    if protocol_version != E:
        await asker.result("logging/setLevel", {"level": "debug"})
    params = {"name": "crash", "_meta": {STATELESS_LEVEL: "debug"}}
    assert await asker.error("tools/call", params) == CRASHED
    assert asker.told == []
    assert "the hull is open" in caplog.text
