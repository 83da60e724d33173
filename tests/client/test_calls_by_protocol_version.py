"""Calls of a client with each protocol version."""

import socket

import pytest
import trio
import trio.testing

from mcp_trio import Client, RequestError, RequestTimeout, ToolError, UserRejected
from mcp_trio import types as t
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError
from mcp_trio.hosts import display_name, tool_hints
from tests.client.stateless import legacy_client, stateless_client

A, B, C, D, E = PROTOCOL_VERSIONS
TEXT = {"type": "text", "text": "ebb"}
DONE = {"content": [TEXT]}
TIDE = {"name": "tide", "inputSchema": {"type": "object"}}
PROMPT = {"type": "ref/prompt", "name": "plan"}


@pytest.fixture
def connect(nursery):
    """A client of a server with some protocol version that gives `answers`, and that server."""

    async def start(protocol_version, answers, **options):
        if PROTOCOL_VERSIONS[protocol_version].is_stateless:
            return await stateless_client(nursery, answers=answers, **options)
        return await legacy_client(
            nursery, protocol_version=protocol_version, answers=answers, **options
        )

    return start


# Sent requests.

CALLS = [
    (
        lambda client: client.call_tool("tide", {"port": "Bergen"}),
        ("tools/call", {"name": "tide", "arguments": {"port": "Bergen"}}),
        DONE,
    ),
    (lambda client: client.call_tool("tide"), ("tools/call", {"name": "tide"}), DONE),
    (
        lambda client: client.read_resource("tide://bergen"),
        ("resources/read", {"uri": "tide://bergen"}),
        {"contents": []},
    ),
    (
        lambda client: client.get_prompt("plan", {"days": "3"}),
        ("prompts/get", {"name": "plan", "arguments": {"days": "3"}}),
        {"messages": []},
    ),
    (
        lambda client: client.complete("plan", "city", "O"),
        ("completion/complete", {"ref": PROMPT, "argument": {"name": "city", "value": "O"}}),
        {"completion": {"values": []}},
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
        {"completion": {"values": ["Bergen"], "total": 0, "hasMore": False}},
    ),
]


@pytest.mark.requirement("TOOL-15", "RES-04", "PROM-04", "COMP-03", "COMP-08")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(("call", "sent", "answer"), CALLS)
async def test_a_call_sends_one_complete_request(connect, protocol_version, call, sent, answer):
    method, params = sent
    client, server = await connect(protocol_version, {method: answer})
    await call(client)
    assert server.asked(method) == [params]
    await client.aclose()


@pytest.mark.requirement("PROM-04", "PROM-16", "TRAP-75")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("value", [3, True, None, ["a"], {}])
async def test_prompt_arguments_that_are_not_strings_are_never_sent(
    connect, protocol_version, value
):
    client, server = await connect(protocol_version, {})
    with pytest.raises(TypeError):
        await client.get_prompt("plan", {"days": value})
    assert server.asked("prompts/get") == []
    await client.aclose()


@pytest.mark.requirement("PROM-15", "LIFE-14")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_only_declared_capabilities_are_requested(connect, protocol_version):
    info = {"capabilities": {}, "serverInfo": {"name": "n", "version": "1"}}
    answers = {
        "initialize": {"protocolVersion": protocol_version, **info},
        "server/discover": {"supportedVersions": [protocol_version], **info},
    }
    client, server = await connect(protocol_version, answers)
    for call in (client.list_tools, client.list_prompts, client.list_resources):
        with pytest.raises(LocalProtocolError, match="is not announced"):
            await call()
    assert not [it for it in server.requests if it["method"].endswith("/list")]
    await client.aclose()


# Pages.


@pytest.mark.requirement(
    "PAG-02", "PAG-03", "PAG-04", "PAG-05", "PAG-06", "PAG-07", "PROM-14", "TRAP-77"
)
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("pages", "cursors"),
    [
        ([1], [None]),
        ([0], [None]),
        ([2, 0, 3], [None, "", "eyJwIjoxfQ=="]),
        ([1, 4, 1, 0], [None, " 1 ", '{"p": 1}', "é\n"]),
    ],
)
async def test_a_list_is_read_from_its_first_page_to_its_last(
    connect, protocol_version, pages, cursors
):
    def answer(params):
        place = cursors.index(params.get("cursor"))
        rows = [{"name": f"{place}-{number}"} for number in range(pages[place])]
        after = cursors[place + 1 :]
        return {"prompts": rows, **({"nextCursor": after[0]} if after else {})}

    for _ in range(2):
        client, server = await connect(protocol_version, {"prompts/list": answer})
        for _ in range(2):
            assert len(await client.list_prompts()) == sum(pages)
        asked = [params.get("cursor") for params in server.asked("prompts/list")]
        assert asked == cursors * 2
        await client.aclose()


# Results.


@pytest.mark.requirement("TOOL-33", "TOOL-29", "TOOL-34")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_tool_error_carries_its_complete_result(connect, protocol_version):
    content = [TEXT, {"type": "text", "text": "no wind"}]
    answers = {
        "tools/call": lambda params: (
            {"content": content, "isError": True}
            if params["name"] == "tide"
            else {"error": {"code": -32602, "message": "unknown tool: row", "data": ["tide"]}}
        )
    }
    client, _ = await connect(protocol_version, answers)
    with pytest.raises(ToolError, match="ebb\nno wind") as caught:
        await client.call_tool("tide")
    assert [block.text for block in caught.value.result.content] == ["ebb", "no wind"]
    result = await client.call_tool("tide", raise_tool_errors=False)
    assert (result.is_error, len(result.content)) == (True, 2)
    with pytest.raises(RequestError, match="unknown tool: row") as rejected:
        await client.call_tool("row")
    assert (rejected.value.code, rejected.value.data) == (-32602, ["tide"])
    await client.aclose()


@pytest.mark.requirement("TOOL-40", "TOOL-16", "RES-05", "PROM-05", "COMP-05")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("call", "method", "result"),
    [
        (lambda client: client.call_tool("tide"), "tools/call", {}),
        (lambda client: client.call_tool("tide"), "tools/call", {"content": [{"type": "film"}]}),
        (
            lambda client: client.read_resource("a:b"),
            "resources/read",
            {"contents": [{"text": "no uri"}]},
        ),
        (
            lambda client: client.get_prompt("plan"),
            "prompts/get",
            {"messages": [{"role": "captain", "content": TEXT}]},
        ),
        (
            lambda client: client.complete("plan", "city", ""),
            "completion/complete",
            {"completion": {"values": [1]}},
        ),
    ],
)
async def test_a_malformed_result_is_rejected(connect, protocol_version, call, method, result):
    client, _ = await connect(protocol_version, {method: result})
    with pytest.raises(RemoteProtocolError, match=method):
        await call(client)
    await client.aclose()


@pytest.mark.requirement("TOOL-40")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_call_times_out(connect, autojump_clock, protocol_version):
    client, server = await connect(protocol_version, {"tools/call": None})
    with pytest.raises(RequestTimeout):
        await client.call_tool("tide", total_seconds=5)
    await trio.testing.wait_all_tasks_blocked()
    assert server.requests[-1]["method"] == "notifications/cancelled"
    await client.aclose()


SCHEMA = {"type": "object", "properties": {"metres": {"type": "number"}}, "required": ["metres"]}


@pytest.mark.requirement("TOOL-24", "TOOL-25", "TOOL-40", "TRAP-71")
@pytest.mark.parametrize("protocol_version", [C, D, E])
@pytest.mark.parametrize(
    ("change", "is_believed"),
    [
        ({"structuredContent": {"metres": 1.5}}, True),
        ({"structuredContent": {"metres": "deep"}}, False),
        ({"structuredContent": {}}, False),
        ({}, False),
        ({"isError": True}, True),
    ],
)
async def test_a_structured_result_is_checked_against_its_schema(
    connect, protocol_version, change, is_believed
):
    answers = {
        "tools/list": {"tools": [{**TIDE, "outputSchema": SCHEMA}]},
        "tools/call": {**DONE, **change},
    }
    client, _ = await connect(protocol_version, answers, raise_tool_errors=False)
    await client.list_tools()
    if is_believed:
        assert (await client.call_tool("tide")).content == [t.TextContent(text="ebb")]
    else:
        with pytest.raises(RemoteProtocolError):
            await client.call_tool("tide")
    await client.aclose()


# Descriptions of tools and resources.


@pytest.mark.requirement("TOOL-12", "TOOL-13", "TOOL-14")
@pytest.mark.parametrize("protocol_version", [B, C, D, E])
async def test_tool_hints_are_reported_as_the_server_sent_them(connect, protocol_version):
    annotations = {
        "title": "Safe",
        "readOnlyHint": True,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    tools = [{**TIDE, "annotations": annotations}, {**TIDE, "name": "flood"}]
    client, server = await connect(
        protocol_version, {"tools/list": {"tools": tools}, "tools/call": DONE}
    )
    safe, usual = await client.list_tools()
    assert (tool_hints(safe).read_only, tool_hints(usual).read_only) == (True, False)
    assert tool_hints(usual).destructive
    assert (display_name(safe), display_name(usual)) == ("Safe", "flood")
    for _ in range(2):  # no call is cached, left out or repeated because of an annotation
        await client.call_tool("tide")
    assert len(server.asked("tools/call")) == 2
    await client.aclose()


@pytest.mark.requirement("TOOL-39", "TOOL-12")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_host_may_deny_a_call_whatever_its_hints(connect, protocol_version, monkeypatch):
    seen = []
    usual = Client.request

    async def request(self, method, params=None, **options):
        seen.append(method)
        if method == "tools/call":
            raise UserRejected
        return await usual(self, method, params, **options)

    monkeypatch.setattr(Client, "request", request)
    annotations = {"readOnlyHint": True, "destructiveHint": False}
    client, server = await connect(
        protocol_version, {"tools/list": {"tools": [{**TIDE, "annotations": annotations}]}}
    )
    await client.list_tools()
    with pytest.raises(UserRejected):
        await client.call_tool("tide")
    assert seen == ["tools/list", "tools/call"]
    assert server.asked("tools/call") == []
    await client.aclose()


@pytest.mark.requirement("TOOL-20")
@pytest.mark.parametrize("protocol_version", [C, D, E])
async def test_a_link_is_read_whether_or_not_it_is_listed(connect, protocol_version):
    link = {"type": "resource_link", "uri": "tide://bergen", "name": "tide"}
    answers = {
        "tools/call": {"content": [link]},
        "resources/read": {"contents": [{"uri": "tide://bergen", "text": "ebb"}]},
        "resources/list": {"resources": []},
    }
    client, server = await connect(protocol_version, answers)
    assert await client.list_resources() == []
    (block,) = (await client.call_tool("tide")).content
    (contents,) = (await client.read_resource(block.uri)).contents
    assert contents.text == "ebb"
    assert server.asked("resources/read") == [{"uri": "tide://bergen"}]
    await client.aclose()


def barred(*_args, **_options):
    raise AssertionError("the icon was fetched")


SRCS = [
    "https://harbour.example/i.png",
    "http://10.0.0.1/i.jpg",
    "https://elsewhere.example/i.svg",
    "data:image/webp;base64,AAAA",
    "data:image/svg+xml,<svg onload='alert(1)'/>",
    "javascript:alert(1)",
    "file:///etc/passwd",
]


@pytest.mark.requirement("ICON-01", "ICON-02", "ICON-03", "ICON-04", "ICON-05", "ICON-06")
@pytest.mark.parametrize("protocol_version", [D, E])
@pytest.mark.parametrize("mime_type", ["image/png", "image/jpeg", "image/svg+xml", "image/webp"])
async def test_an_icon_is_returned_unchanged_and_never_fetched(
    connect, protocol_version, monkeypatch, mime_type
):
    for name in ("socket.getaddrinfo", "webbrowser.open", "urllib.request.urlopen"):
        monkeypatch.setattr(name, barred)
    monkeypatch.setattr(socket.socket, "connect", barred)
    monkeypatch.setattr("trio.open_tcp_stream", barred)
    icons = [{"src": src, "mimeType": mime_type, "theme": "dark"} for src in SRCS]
    shown = [t.Icon(src=src, mime_type=mime_type, theme="dark") for src in SRCS]
    answers = {
        "tools/list": {"tools": [{**TIDE, "icons": icons}]},
        "prompts/list": {"prompts": [{"name": "plan", "icons": icons}]},
        "resources/list": {"resources": [{"name": "n", "uri": "a:b", "icons": icons}]},
        "tools/call": {
            "content": [{"type": "resource_link", "uri": "a:b", "name": "n", "icons": icons}]
        },
    }
    client, _ = await connect(protocol_version, answers)
    for rows in (
        await client.list_tools(),
        await client.list_prompts(),
        await client.list_resources(),
        (await client.call_tool("tide")).content,
    ):
        assert [row.icons for row in rows] == [shown]
    await trio.testing.wait_all_tasks_blocked()
    await client.aclose()


# Options that are not enabled.


@pytest.mark.requirement("ROOT-13", "SAMP-30", "LIFE-14")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_client_announces_only_what_its_options_enable(connect, protocol_version):
    client, server = await connect(protocol_version, {"tools/call": DONE})
    await client.call_tool("tide")
    hello = server.requests[0]["params"]
    key = "io.modelcontextprotocol/clientCapabilities"
    assert (hello["_meta"][key] if protocol_version == E else hello["capabilities"]) == {}
    await client.aclose()


@pytest.mark.requirement("CACHE-06", "CACHE-10", "CACHE-11")
async def test_a_client_never_repeats_a_failed_call_by_itself(connect, autojump_clock):
    answers = {"tools/list": {"tools": [], "ttlMs": 50}, "resources/read": {"contents": []}}
    client, server = await connect(E, answers)
    await client.list_tools()
    for _ in range(2):
        await client.read_resource("a:b")
    before = len(server.requests)
    await trio.sleep(3600)
    assert len(server.requests) == before == 4
    await client.aclose()
