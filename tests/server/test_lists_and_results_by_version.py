"""Lists and results have the members of the protocol version of their client."""

import pytest

from mcp_trio import Audio, Context, Limits, ResourceNotFound, Server, types
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.limits import RequestLimits
from tests.server.conftest import nothing

A, B, C, D, E = PROTOCOL_VERSIONS

ICON = types.Icon(src="https://example.org/i.png", mime_type="image/png", sizes=["48x48"])
ICON_SENT = {"src": "https://example.org/i.png", "mimeType": "image/png", "sizes": ["48x48"]}
SHOWN = {"title": "A title", "icons": [ICON], "meta": {"org.example/key": 1}}
SHOWN_SENT = {"title": "A title", "icons": [ICON_SENT], "_meta": {"org.example/key": 1}}

# Which members of a row each revision has beside those of the first.
MEMBERS = {
    A: set(),
    B: set(),
    C: {"title", "_meta"},
    D: {"title", "_meta", "icons"},
    E: {"title", "_meta", "icons"},
}
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}


async def one(port):
    pass


@pytest.fixture
def server():
    made = Server("harbour", version="1")
    made.tool(name="t", annotations=types.ToolAnnotations(read_only_hint=True), **SHOWN)(nothing)
    made.prompt(name="p", **SHOWN)(nothing)
    note = types.Annotations(audience=["user"], last_modified="2026-07-28T00:00:00Z")
    made.resource("x:1", name="r", size=0, annotations=note, mime_type="a/b", **SHOWN)(nothing)
    made.resource("x:1/{port}", name="m", annotations=note, **SHOWN)(one)
    return made


@pytest.mark.requirement("TOOL-07", "PROM-02", "ICON-01", "RES-02", "TRAP-69")
@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_list_entries_have_the_members_of_the_protocol_version(
    server, serve, protocol_version, method
):
    asker = await serve(server, protocol_version=protocol_version)
    (row,) = (await asker.result(method))[LISTS[method]]
    said = {key: row[key] for key in SHOWN_SENT if key in row}
    assert said == {key: SHOWN_SENT[key] for key in MEMBERS[protocol_version]}


@pytest.mark.requirement("TOOL-07")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_tool_annotations_exist_since_the_second_protocol_version(
    server, serve, protocol_version
):
    asker = await serve(server, protocol_version=protocol_version)
    (row,) = (await asker.result("tools/list"))["tools"]
    assert row.get("annotations") == (None if protocol_version == A else {"readOnlyHint": True})


@pytest.mark.requirement("RES-18", "TRAP-72")
@pytest.mark.parametrize("protocol_version", [C, D, E])
async def test_resources_are_listed_with_size_and_annotations(server, serve, protocol_version):
    asker = await serve(server, protocol_version=protocol_version)
    (row,) = (await asker.result("resources/list"))["resources"]
    assert row["size"] == 0
    assert row["annotations"] == {"audience": ["user"], "lastModified": "2026-07-28T00:00:00Z"}


@pytest.mark.requirement("ICON-01")
async def test_server_info_has_the_members_of_the_protocol_version(serve):
    server = Server(
        "harbour",
        version="1",
        title="The harbour",
        description="Ships.",
        icons=[ICON],
        website_url="https://example.org",
    )
    name = {"name": "harbour", "version": "1"}
    assert (await serve(server)).hello["serverInfo"] == name
    titled = name | {"title": "The harbour"}
    assert (await serve(server, protocol_version=C)).hello["serverInfo"] == titled
    assert (await serve(server, protocol_version=D)).hello["serverInfo"] == titled | {
        "description": "Ships.",
        "icons": [ICON_SENT],
        "websiteUrl": "https://example.org",
    }


def test_an_unknown_option_is_rejected():
    with pytest.raises(TypeError, match="titel"):
        Server("harbour").tool(titel="A title")(nothing)


@pytest.mark.requirement("TOOL-09", "TOOL-10")
@pytest.mark.parametrize("name", ["a b", "a,b", "größe", "a/b", "a" * 129, "a\n"])
def test_an_invalid_tool_name_is_rejected(name):
    with pytest.raises(ValueError, match="is not a valid name for a tool"):
        Server("harbour").tool(name=name)(nothing)


@pytest.mark.requirement("TOOL-09")
async def test_tool_names_keep_their_case(serve):
    server = Server("harbour")
    names = ["Sail", "sail", "a" * 128, "0._-"]
    for name in names:
        server.tool(name=name)(nothing)
    asker = await serve(server, protocol_version=E)
    assert [row["name"] for row in (await asker.result("tools/list"))["tools"]] == names


# Order.


@pytest.mark.requirement("TOOL-03", "TOOL-04", "RES-03", "PROM-03", "TRAP-73", "TRAP-74")
@pytest.mark.parametrize("method", LISTS)
async def test_every_client_gets_the_same_list_in_the_order_of_registration(serve, method):
    server = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=3)))
    for name in ("b", "c", "a"):
        server.tool(name=name)(nothing)
        server.prompt(name=name)(nothing)
        server.resource(f"x:{name}", name=name)(nothing)
        server.resource(f"x:{name}/{{port}}", name=name)(one)
    first, second = await serve(server, protocol_version=E), await serve(server, protocol_version=E)
    await first.result("tools/call", {"name": "a"})
    lists = [await asker.result(method) for asker in (first, second, first)]
    assert lists[0] == lists[1] == lists[2]
    assert [row["name"] for row in lists[0][LISTS[method]]] == ["b", "c", "a"]


# What clients may keep.


@pytest.mark.requirement("CACHE-01", "CACHE-02", "CACHE-03", "CACHE-16", "TRAP-72")
@pytest.mark.parametrize("method", LISTS)
async def test_lists_contain_cache_hints(serve, method):
    server = Server("harbour", list_ttl_seconds=1.5, cache_scope="public")
    plain = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=1)))
    for it in (server, plain):
        for name in "ab":
            it.tool(name=name)(nothing)
            it.prompt(name=name)(nothing)
            it.resource(f"x:{name}")(nothing)
            it.resource(f"x:{name}/{{port}}")(one)
    result = await (await serve(server, protocol_version=E)).result(method)
    assert (result["ttlMs"], result["cacheScope"]) == (1500, "public")
    asker = await serve(plain, protocol_version=E)
    result = await asker.result(method)
    after = await asker.result(method, {"cursor": result["nextCursor"]})
    for page in (result, after):
        assert (page["ttlMs"], page["cacheScope"]) == (0, "private")
        assert page["resultType"] == "complete"
    for protocol_version in (A, B, C, D):
        result = await (await serve(server, protocol_version=protocol_version)).result(method)
        assert result.keys() == {LISTS[method]}


@pytest.mark.requirement("CACHE-01", "CACHE-02", "CACHE-03")
async def test_resource_contents_contain_cache_hints(serve):
    server = Server("harbour")

    @server.resource("x:{name}", ttl_seconds=60, cache_scope="public")
    async def read(name: str):
        if name == "own":
            contents = [types.ResourceContents(uri="x:own", text="")]
            return types.ReadResourceResult(contents=contents, ttl_ms=0)
        return "text"

    asker = await serve(server, protocol_version=E)
    result = await asker.result("resources/read", {"uri": "x:1"})
    assert (result["ttlMs"], result["cacheScope"]) == (60_000, "public")
    result = await asker.result("resources/read", {"uri": "x:own"})
    assert (result["ttlMs"], result["cacheScope"]) == (0, "public")
    legacy = await serve(server, protocol_version=D)
    assert (await legacy.result("resources/read", {"uri": "x:1"})).keys() == {"contents"}


@pytest.mark.parametrize("options", [{"ttl_seconds": -1}, {"cache_scope": "some"}])
def test_invalid_cache_hints_of_resources_are_rejected(options):
    with pytest.raises(ValueError, match=r"ttl_seconds|cache_scope"):
        Server("harbour").resource("x:1", **options)(nothing)


def test_invalid_cache_hints_of_lists_are_rejected():
    with pytest.raises(ValueError, match="ttl_seconds"):
        Server("harbour", list_ttl_seconds=-1)
    with pytest.raises(ValueError, match="cache_scope"):
        Server("harbour", cache_scope="some")


# Errors.


@pytest.mark.requirement("TOOL-30", "TOOL-31", "TRAP-65")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_invalid_arguments_are_tool_results_since_2025_11_25(serve, protocol_version):
    server = Server("harbour")

    @server.tool
    async def sail(days: int) -> str:
        return "sails"

    asker = await serve(server, protocol_version=protocol_version)
    answer = await asker.ask("tools/call", {"name": "sail", "arguments": {"days": "x"}})
    text = "invalid arguments: days: expected int, got str"
    if protocol_version in (D, E):
        assert answer["result"]["isError"] is True
        assert answer["result"]["content"] == [{"type": "text", "text": text}]
    else:
        assert answer["error"] == {"code": -32602, "message": text}


@pytest.mark.requirement("TOOL-32", "TRAP-65", "TRAP-66")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("params", [{"name": "row"}, {}, {"name": "t", "arguments": [1]}])
async def test_an_unknown_tool_and_a_malformed_call_are_always_protocol_errors(
    server, serve, protocol_version, params
):
    asker = await serve(server, protocol_version=protocol_version)
    assert (await asker.error("tools/call", params))["code"] == -32602


@pytest.mark.requirement("ERR-02", "ERR-03", "ERR-04", "ERR-06", "RES-08", "TRAP-67")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("uri", ["x:none", "x:1/nowhere"])
async def test_a_missing_resource_has_the_error_code_of_the_protocol_version(
    serve, protocol_version, uri
):
    server = Server("harbour")

    @server.resource("x:1/{port}")
    async def read(port: str) -> str:
        raise ResourceNotFound(f"x:1/{port}")

    asker = await serve(server, protocol_version=protocol_version)
    assert await asker.error("resources/read", {"uri": uri}) == {
        "code": -32602 if protocol_version == E else -32002,
        "message": f"resource not found: {uri}",
        "data": {"uri": uri},
    }


@pytest.mark.requirement("ERR-06", "TRAP-67")
async def test_a_resource_missing_in_a_tool_has_the_error_code_of_the_protocol_version(serve):
    server = Server("harbour")

    @server.tool
    async def sail(ctx: Context) -> str:
        await ctx.read_resource("x:none")

    for protocol_version, code in ((D, -32002), (E, -32602)):
        asker = await serve(server, protocol_version=protocol_version)
        assert (await asker.error("tools/call", {"name": "sail"}))["code"] == code


@pytest.mark.requirement("RES-16")
@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
async def test_the_newest_protocol_version_has_no_resources_subscribe(server, serve, method):
    asker = await serve(server, protocol_version=E)
    assert (await asker.error(method, {"uri": "x:1"}))["code"] == -32601


@pytest.mark.requirement("RES-23", "RES-22")
@pytest.mark.parametrize(
    "path", ["../etc/passwd", "a/../../b", "%2e%2e/b", "a%2F..%2F..%2Fb", "..%5Cb", "/etc"]
)
async def test_path_traversal_is_rejected_in_every_protocol_version(serve, path):
    server = Server("harbour")
    server.resource("file:///srv/{+port}")(one)
    asker = await serve(server, protocol_version=E)
    assert (await asker.error("resources/read", {"uri": f"file:///srv/{path}"}))["code"] == -32602


@pytest.mark.requirement("RES-21")
@pytest.mark.parametrize("uri", ["harbour/now", "1x:now", "a_b:now", ":now", "x"])
def test_a_uri_without_a_scheme_is_rejected(uri):
    with pytest.raises(ValueError, match="does not begin with a scheme"):
        Server("harbour").resource(uri)(nothing)


def test_the_size_of_a_resource_template_is_rejected():
    with pytest.raises(ValueError, match="no common size"):
        Server("harbour").resource("x:{port}", size=1)(one)


# Contents.


@pytest.mark.requirement("TOOL-17", "TOOL-18", "PROM-08", "PROM-10")
async def test_audio_and_links_are_replaced_where_the_protocol_version_lacks_them(serve):
    server = Server("harbour")
    link = types.ResourceLink(uri="x:1", name="one")

    @server.tool
    async def it():
        return ["text", Audio(b"RIFF....WAVE"), link]

    @server.prompt
    async def said():
        return [Audio(b"fLaC"), link]

    for protocol_version, kinds in {
        A: ["text", "resource", "text"],
        B: ["text", "audio", "text"],
        C: ["text", "audio", "resource_link"],
        E: ["text", "audio", "resource_link"],
    }.items():
        asker = await serve(server, protocol_version=protocol_version)
        content = (await asker.result("tools/call", {"name": "it"}))["content"]
        assert [block["type"] for block in content] == kinds
        messages = (await asker.result("prompts/get", {"name": "said"}))["messages"]
        assert [message["content"]["type"] for message in messages] == kinds[1:]
    assert content[1] == {"type": "audio", "mimeType": "audio/wav", "data": "UklGRi4uLi5XQVZF"}
    assert content[2] == {"type": "resource_link", "uri": "x:1", "name": "one"}
    assert messages[0]["content"]["mimeType"] == "audio/flac"


# Completion.


@pytest.fixture
def completing():
    server = Server("harbour")

    @server.prompt
    async def sail(port: str, ship: str = "") -> str:
        return ""

    @server.completion(sail, "ship")
    async def ships(typed: str, settled: dict[str, str]) -> list[str]:
        return [f"{typed} of {settled.get('port')}"]

    return server


@pytest.mark.requirement("COMP-01", "COMP-02", "TRAP-76")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_completions_are_declared_where_the_protocol_version_has_the_capability(
    completing, serve, protocol_version
):
    asker = await serve(completing, protocol_version=protocol_version)
    assert asker.hello["capabilities"].get("completions") == (None if protocol_version == A else {})
    params = {"ref": {"type": "ref/prompt", "name": "sail"}}
    params["argument"] = {"name": "ship", "value": "Thor"}
    result = await asker.result("completion/complete", params)
    assert result["completion"] == {"values": ["Thor of None"]}


@pytest.mark.requirement("COMP-04")
@pytest.mark.parametrize("protocol_version", [C, D, E])
async def test_a_completion_gets_the_arguments_that_are_already_given(
    completing, serve, protocol_version
):
    asker = await serve(completing, protocol_version=protocol_version)
    params = {"ref": {"type": "ref/prompt", "name": "sail"}}
    params["argument"] = {"name": "ship", "value": "Thor"}
    params["context"] = {"arguments": {"port": "Oslo"}}
    result = await asker.result("completion/complete", params)
    assert result["completion"] == {"values": ["Thor of Oslo"]}


@pytest.mark.requirement("COMP-06")
@pytest.mark.parametrize("protocol_version", [B, C, D, E])
async def test_invalid_completion_requests_are_errors_in_every_version(
    server, completing, serve, protocol_version
):
    params = {"ref": {"type": "ref/prompt", "name": "sail"}}
    params["argument"] = {"name": "ship", "value": ""}
    asker = await serve(server, protocol_version=protocol_version)
    assert "completions" not in asker.hello["capabilities"]
    assert (await asker.error("completion/complete", params))["code"] == -32601
    asker = await serve(completing, protocol_version=protocol_version)
    for odd in (
        {"ref": {"type": "ref/prompt", "name": "row"}},
        {"argument": {"name": "crew", "value": ""}},
        {"argument": {}},
    ):
        assert (await asker.error("completion/complete", params | odd))["code"] == -32602


# Resources that ask before they can be read.


@pytest.fixture
def asking():
    server = Server("harbour")

    @server.resource("x:1", ttl_seconds=60)
    async def read() -> types.InputRequiredResult:
        asked = types.InputRequest(method="roots/list")
        return types.InputRequiredResult(input_requests={"r": asked})

    @server.tool
    async def sail(ctx: Context) -> str:
        await ctx.read_resource("x:1")

    return server


@pytest.mark.requirement("RES-17", "CACHE-04")
async def test_input_required_results_have_no_cache_hints(asking, serve):
    asker = await serve(asking, protocol_version=E, capabilities={"roots": {}})
    result = await asker.result("resources/read", {"uri": "x:1"})
    assert result["resultType"] == "input_required"
    assert result["inputRequests"]["r"]["method"] == "roots/list"
    assert not result.keys() & {"ttlMs", "cacheScope"}


async def test_read_resource_rejects_a_resource_that_returns_questions(asking, serve, caplog):
    asker = await serve(asking, protocol_version=E, capabilities={"roots": {}})
    assert (await asker.error("tools/call", {"name": "sail"}))["code"] == -32603
    assert "'x:1' returned questions" in caplog.text
