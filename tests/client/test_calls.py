"""Calls of a client: the request sent, the result returned, and errors."""

import dataclasses
import datetime as dt
import functools
import os
import signal
import time
import typing

import attrs
import msgspec
import pydantic
import pytest
import trio
import trio.testing

from mcp_trio import (
    Client,
    Limits,
    RequestError,
    RequestTimeout,
    ResourceNotFound,
    ToolError,
    UserRejected,
)
from mcp_trio import types as t
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError, ResultTypeError, Unencodable
from mcp_trio.hosts import ToolHints, display_name, tool_hints
from mcp_trio.limits import MessageLimits, RequestLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import ALL, QUICK, connected, text, text_of_result
from tests.client.stateless import LEGACY, STATELESS, error, legacy_client, stateless_client
from tests.processes import is_alive, python

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
        assert text_of_result(await client.call_tool("hello")) == "hello"


async def test_arguments_that_are_too_large_are_rejected_and_the_session_goes_on(bench):
    async with Client(bench, limits=Limits(messages=MessageLimits(bytes_max=2000))) as client:
        with pytest.raises(Unencodable, match=r"limits\.messages\.bytes_max=2000"):
            await client.call_tool("hello", {"name": "x" * 2000})
        assert text_of_result(await client.call_tool("hello")) == "hello"


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
        with pytest.raises(TypeError, match=r"call_tool\(\) got an unexpected argument 'timeout'"):
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


# Tools: display names, hints, and results that are checked and converted.


SCHEMA = {
    "type": "object",
    "properties": {"metres": {"type": "number"}},
    "required": ["metres"],
}
TIDE = {"name": "tide", "inputSchema": {"type": "object"}, "outputSchema": SCHEMA}


def gives(structured=..., **members):
    result = {"content": [TEXT], "structuredContent": structured, **members}
    return {name: value for name, value in result.items() if value is not ...}


# Display names and hints.


@pytest.mark.requirement("TOOL-14")
def test_the_display_name_is_the_title_the_annotated_title_or_the_name():
    annotations = t.ToolAnnotations(title="In the annotations")
    tool = t.Tool(name="tide", input_schema={})
    assert display_name(tool) == "tide"
    tool.annotations = t.ToolAnnotations()
    assert display_name(tool) == "tide"
    tool.annotations = annotations
    assert display_name(tool) == "In the annotations"
    tool.title = "The title"
    assert display_name(tool) == "The title"
    assert display_name(t.Prompt(name="plan", title="Plan")) == "Plan"
    assert display_name(t.Resource(uri="a:b", name="pier")) == "pier"
    assert display_name(t.ResourceTemplate(uri_template="a:{b}", name="n", title="T")) == "T"


@pytest.mark.requirement("TOOL-13")
def test_missing_hints_have_the_defaults_of_the_specification():
    usual = ToolHints(read_only=False, destructive=True, idempotent=False, open_world=True)
    for annotations in (None, t.ToolAnnotations()):
        tool = t.Tool(name="tide", input_schema={}, annotations=annotations)
        assert tool_hints(tool) == usual
    turned = t.ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    tool = t.Tool(name="tide", input_schema={}, annotations=turned)
    assert tool_hints(tool) == ToolHints(
        read_only=True, destructive=False, idempotent=True, open_world=False
    )


# Results that are checked.


@pytest.mark.requirement("TOOL-25")
@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (gives({"metres": 1.5}), None),
        (gives({"metres": 1.5, "more": None}), None),
        (gives({"metres": "1.5"}), "metres: '1.5' is not of type 'number'"),
        (gives({}), "'metres' is a required property"),
        (gives(None), "result: None is not of type 'object'"),
        (gives(), "has an output schema, but its result has no structuredContent"),
    ],
)
async def test_a_result_is_checked_against_the_listed_schema(nursery, result, fault):
    answers = {"tools/list": {"tools": [TIDE]}, "tools/call": result}
    client, _ = await stateless_client(nursery, answers=answers)
    await client.call_tool("tide")  # what was not listed is not known
    await client.list_tools()
    if fault is None:
        await client.call_tool("tide")
    else:
        with pytest.raises(RemoteProtocolError, match=fault):
            await client.call_tool("tide")
    await client.aclose()


NESTED = functools.reduce(
    lambda it, _: {"anyOf": [it, {"properties": {"a": {}}}], "unevaluatedProperties": {}},
    range(24),
    {},
)
TOO_LONG = (
    "a result of the tool tide is not checked: it takes too long to check"
    " (limits.messages.schema_steps_max=100000)"
)


@pytest.mark.requirement("JSCH-09")
@pytest.mark.parametrize(
    ("schema", "structured", "fault", "logged"),
    [
        ({"pattern": "^(a+)+$"}, "a" * 60 + "b", r"does not match '\^\(a\+\)\+\$'", []),
        ({"uniqueItems": True}, [{"a": it} for it in range(6000)], None, []),
        ({"uniqueItems": True}, [{"a": it} for it in range(60_000)], None, [TOO_LONG]),
        (
            {"properties": {f"p{it}": {"unevaluatedProperties": False} for it in range(1000)}},
            {f"p{it}": {str(its): 1 for its in range(20)} for it in range(1000)},
            None,
            [TOO_LONG],
        ),
        (NESTED, {str(it): it for it in range(10)}, None, [TOO_LONG]),
        ({"multipleOf": 10**400}, 3, "3 is not a multiple of", []),
    ],
)
async def test_a_schema_of_a_hostile_server_does_not_stop_a_client(
    nursery, caplog, schema, structured, fault, logged
):
    tool = {**TIDE, "outputSchema": schema}
    answers = {"tools/list": {"tools": [tool]}, "tools/call": gives(structured)}
    client, _ = await stateless_client(nursery, answers=answers)
    await client.list_tools()
    for _ in range(2):
        begin = time.process_time()
        if fault is None:
            await client.call_tool("tide")
        else:
            with pytest.raises(RemoteProtocolError, match=fault):
                await client.call_tool("tide")
        assert time.process_time() - begin < 2
    await client.aclose()
    assert caplog.messages == logged


@pytest.mark.requirement("JSCH-06")
@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$id": "http://[::1"}, "is not a URI"),
        ({"$ref": "#/minimum/0", "minimum": 1}, "leads nowhere in the schema"),
        ({"$ref": "http://127.0.0.1:9/x"}, "nothing is fetched"),
        ({"pattern": "(?=a)"}, "can be searched in linear time"),
        ({"pattern": r"(a)\1"}, "can be searched in linear time"),
        ({"enum": list(range(200_000))}, r"limits.messages.schema_steps_max=100000"),
        (functools.reduce(lambda it, _: {"not": it}, range(200), {}), "schema_depth_max=64"),
    ],
)
async def test_results_are_not_checked_by_a_schema_that_cannot_be_used(
    nursery, caplog, schema, reason
):
    tool = {**TIDE, "outputSchema": schema}
    answers = {"tools/list": {"tools": [tool]}, "tools/call": gives({"metres": 1.5})}
    client, _ = await stateless_client(nursery, answers=answers)
    await client.list_tools()
    for _ in range(2):
        assert (await client.call_tool("tide")).structured_content == {"metres": 1.5}
    (warning,) = [it.message for it in caplog.records if "are not checked" in it.message]
    assert reason in warning
    await client.aclose()


@pytest.mark.requirement("TRAP-71")
@pytest.mark.parametrize("structured", [..., {}, {"metres": "deep"}])
async def test_an_error_result_is_not_checked(nursery, structured):
    answers = {"tools/list": {"tools": [TIDE]}, "tools/call": gives(structured, isError=True)}
    client, _ = await stateless_client(nursery, answers=answers)
    await client.list_tools()
    with pytest.raises(ToolError, match="ebb"):
        await client.call_tool("tide")
    result = await client.call_tool("tide", raise_tool_errors=False)
    assert result.is_error
    await client.aclose()


@pytest.mark.requirement("TOOL-25")
async def test_a_new_list_brings_new_schemas_and_an_old_one_is_forgotten(nursery):
    listed = [[TIDE], [{**TIDE, "outputSchema": {"type": "string"}}], [{**TIDE} | {"name": "x"}]]
    left = iter(listed)
    answers = {
        "tools/list": lambda _params: {"tools": next(left)},
        "tools/call": gives("deep"),
    }
    client, server = await stateless_client(nursery, answers=answers)
    async with client.listen(tools=True):
        await client.list_tools()
        with pytest.raises(RemoteProtocolError):
            await client.call_tool("tide")
        await server.notify("notifications/tools/list_changed")
        await trio.testing.wait_all_tasks_blocked()
        await client.call_tool("tide")
    for _ in range(2):
        await client.list_tools()
        await client.call_tool("tide")
    await client.aclose()


async def test_a_legacy_server_can_change_its_list_too(nursery):
    answers = {"tools/list": {"tools": [TIDE]}, "tools/call": gives("deep")}
    client, server = await legacy_client(nursery, answers=answers)
    await client.list_tools()
    with pytest.raises(RemoteProtocolError):
        await client.call_tool("tide")
    await server.peer.send_notification("notifications/tools/list_changed")
    await trio.testing.wait_all_tasks_blocked()
    await client.call_tool("tide")
    await client.aclose()


@pytest.mark.requirement("JSCH-03", "JSCH-08")
@pytest.mark.parametrize(
    "schema",
    [{"$schema": "https://example.com/own"}, {"$ref": "https://example.com/x.json"}, {"type": 7}],
)
async def test_an_unusable_schema_is_logged_once_and_checks_nothing(nursery, caplog, schema):
    tools = [{**TIDE, "outputSchema": schema}]
    answers = {"tools/list": {"tools": tools}, "tools/call": gives(7)}
    client, _ = await stateless_client(nursery, answers=answers)
    for _ in range(2):
        await client.list_tools()
        await client.call_tool("tide")
    assert caplog.text.count("results of the tool tide are not checked") == 1
    await client.aclose()


# Results as values.


class Tide(msgspec.Struct):
    metres: float


@attrs.define
class AttrsTide:
    metres: float


@dataclasses.dataclass
class DataTide:
    metres: float


class DictTide(typing.TypedDict):
    metres: float


@dataclasses.dataclass
class Forecast:
    """A class whose fields all have defaults, and one of which is called `result`."""

    metres: float = 0.0
    result: typing.Any = None


@dataclasses.dataclass
class Outcome:
    result: int


@dataclasses.dataclass
class Wind:
    """A class whose fields all have defaults."""

    knots: int = 0


class PydanticWind(pydantic.BaseModel):
    knots: int = 0


@pytest.mark.parametrize(
    ("kind", "structured", "value"),
    [
        (Tide, {"metres": 1.5}, Tide(1.5)),
        (AttrsTide, {"metres": 1}, AttrsTide(1)),
        (DataTide, {"metres": 1.5}, DataTide(1.5)),
        (DictTide, {"metres": 1.5}, {"metres": 1.5}),
        (dict[str, float], {"metres": 1.5}, {"metres": 1.5}),
        (list[Tide], [{"metres": 1.5}], [Tide(1.5)]),
        (dt.date, "2026-07-28", dt.date(2026, 7, 28)),
        (int | None, None, None),
        (bool, False, False),
        (int, 0, 0),
        (str, "", ""),
        (list[int], {"result": [1]}, [1]),
        (str, {"result": "ebb"}, "ebb"),
        (dict[str, int], {"result": 1}, {"result": 1}),
        (dict[str, dict[str, int]], {"result": {"a": 1}}, {"result": {"a": 1}}),
        (Wind, {"result": {"knots": 7}}, Wind(7)),
        (Wind, {"result": {}}, Wind()),
        (PydanticWind, {"result": {"knots": 7}}, PydanticWind(knots=7)),
        (Wind | None, {"result": {"knots": 7}}, Wind(7)),
        (Wind | None, {"result": None}, None),
        (Wind, {"result": 7}, Wind()),
        (Forecast, {"result": {"metres": 1.5}}, Forecast(result={"metres": 1.5})),
        (Forecast, {"metres": 1.5, "result": 2}, Forecast(1.5, 2)),
        (Outcome, {"result": 2}, Outcome(2)),
        (Outcome, {"result": {"result": 2}}, Outcome(2)),
    ],
)
async def test_result_type_converts_the_structured_content(nursery, kind, structured, value):
    client, _ = await stateless_client(nursery, answers={"tools/call": gives(structured)})
    assert await client.call_tool("tide", {}, result_type=kind) == value
    await client.aclose()


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Tide, '{"metres": 1.5}', Tide(1.5)),
        (list[int], "[1, 2]", [1, 2]),
        (int, "7", 7),
        (str, "7", "7"),
        (str, '"7"', '"7"'),
    ],
)
async def test_result_type_parses_text_without_structured_content(
    scripted, nursery, kind, text, value
):
    client, server = await connected(scripted, nursery)

    async def answer():
        asked = await server.receive()
        await server.send_result(asked, {"content": [{"type": "text", "text": text}]})

    nursery.start_soon(answer)
    assert await client.call_tool("tide", result_type=kind) == value
    await client.aclose()


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (gives({"metres": "deep"}), "Expected `float`, got `str` - at `\\$.metres`"),
        (gives([]), "Expected `object`, got `array`"),
        (gives(), "JSON is malformed"),
        (gives(content=[]), "it has no structured content, and \\d text contents"),
        (gives(content=[TEXT, TEXT]), "it has no structured content, and \\d text contents"),
    ],
)
async def test_a_result_that_does_not_fit_result_type_is_an_error_of_the_caller(
    nursery, result, why
):
    client, _ = await stateless_client(nursery, answers={"tools/call": result})
    text = f"the result of the tool tide does not fit result_type=Tide: {why}"
    with pytest.raises(ResultTypeError, match=text):
        await client.call_tool("tide", result_type=Tide)
    await client.aclose()


class PydanticTide(pydantic.BaseModel):
    metres: float


@pytest.mark.parametrize("content", [{"metres": 1.5}, {"result": {"metres": 1.5}}])
async def test_result_type_may_be_a_pydantic_model(nursery, content):
    client, _ = await stateless_client(nursery, answers={"tools/call": gives(content)})
    assert await client.call_tool("tide", result_type=PydanticTide) == PydanticTide(metres=1.5)
    with pytest.raises(ResultTypeError, match="does not fit result_type=str"):
        await client.call_tool("tide", result_type=str)
    await client.aclose()


async def test_a_value_that_a_pydantic_model_rejects_is_no_such_result(nursery):
    client, _ = await stateless_client(nursery, answers={"tools/call": gives({"metres": "low"})})
    with pytest.raises(ResultTypeError, match="result_type=PydanticTide: 1 validation error"):
        await client.call_tool("tide", result_type=PydanticTide)
    await client.aclose()


@pytest.mark.parametrize(
    ("structured", "data"),
    [
        (msgspec.UNSET, None),
        (None, None),
        ({"result": [1]}, [1]),
        ({"result": 1, "more": 2}, {"result": 1, "more": 2}),
        ({"metres": 1.5}, {"metres": 1.5}),
        ([1], [1]),
        (msgspec.Raw(b'{"result":3}'), 3),
    ],
)
def test_the_data_of_a_result_are_its_structured_content_without_a_wrapper(structured, data):
    assert t.CallToolResult(content=[], structured_content=structured).data == data


async def test_result_type_always_raises_tool_errors(nursery):
    answers = {"tools/call": gives({"metres": 1.5}, isError=True)}
    client, _ = await stateless_client(nursery, answers=answers, raise_tool_errors=False)
    with pytest.raises(ToolError, match="ebb"):
        await client.call_tool("tide", result_type=Tide)
    await client.aclose()


@pytest.mark.requirement("TRAP-70")
@pytest.mark.parametrize("structured", [..., None, {}, [], 0])
async def test_null_is_structured_content(nursery, structured):
    client, _ = await stateless_client(nursery, answers={"tools/call": gives(structured)})
    result = await client.call_tool("tide")
    expected = msgspec.UNSET if structured is ... else structured
    assert (type(result.structured_content), result.structured_content) == (
        type(expected),
        expected,
    )
    await client.aclose()


# Missing resources.


@pytest.mark.requirement("ERR-05", "TRAP-67")
@pytest.mark.parametrize("protocol_version", [LEGACY[-1], STATELESS])
@pytest.mark.parametrize(
    ("code", "data", "is_missing"),
    [
        (-32002, None, True),
        (-32002, {"uri": "a:b"}, True),
        (-32602, {"uri": "a:b"}, True),
        (-32602, None, False),
        (-32602, "a:b", False),
        (-32603, {"uri": "a:b"}, False),
    ],
)
async def test_a_missing_resource_raises_resource_not_found(
    nursery, protocol_version, code, data, is_missing
):
    info = {"serverInfo": {"name": "n", "version": "0"}, "capabilities": {"resources": {}}}
    answers = {
        "resources/read": error(code, "not here", data),
        "initialize": {"protocolVersion": protocol_version, **info},
    }
    client, _ = await stateless_client(
        nursery, protocol_versions=[protocol_version], answers=answers
    )
    with pytest.raises(RequestError) as caught:
        await client.read_resource("a:b")
    assert isinstance(caught.value, ResourceNotFound) is is_missing
    assert (caught.value.code, caught.value.message) == (code, "not here")
    await client.aclose()


# Requests and notifications that the protocol does not define.


class Found(msgspec.Struct):
    """The result of a search."""

    names: list[str]


@attrs.frozen
class Report:
    """The same, of another family of classes."""

    names: list[str]


@pytest.mark.parametrize(
    ("kind", "result"),
    [(Found, Found(["Oslo"])), (Report, Report(["Oslo"])), (dict, {"names": ["Oslo"]})],
)
async def test_a_custom_method_has_a_typed_result(scripted, nursery, kind, result):
    client, server = await connected(scripted, nursery, methods={"acme/search": kind})
    results = []

    async def search():
        results.append(await client.request("acme/search", {"text": "os"}))

    nursery.start_soon(search)
    asked = await server.receive()
    assert (asked["method"], asked["params"]) == ("acme/search", {"text": "os"})
    await server.send_result(asked, {"names": ["Oslo"]})
    await trio.testing.wait_all_tasks_blocked()
    assert results == [result]
    await client.aclose()


async def test_a_malformed_result_of_a_custom_method_is_rejected(scripted, nursery):
    client, server = await connected(scripted, nursery, methods={"acme/search": Found})

    async def play():
        await server.send_result(await server.receive(), {"names": 7})

    nursery.start_soon(play)
    with pytest.raises(RemoteProtocolError, match="acme/search"):
        await client.request("acme/search")
    await client.aclose()


async def test_a_custom_method_reports_progress(scripted, nursery):
    client, server = await connected(scripted, nursery, methods={"acme/search": dict})
    reports = []

    async def search():
        await client.request("acme/search", {"text": "os"}, progress=reports.append)

    nursery.start_soon(search)
    asked = await server.receive()
    params = {"progressToken": asked["params"]["_meta"]["progressToken"], "progress": 1}
    assert asked["params"]["text"] == "os"
    await server.send_notification("notifications/progress", params)
    await server.send_result(asked, {})
    await trio.testing.wait_all_tasks_blocked()
    assert [report.progress for report in reports] == [1]
    await client.aclose()


@pytest.mark.parametrize("method", ["acme/moored", "notifications/acme/moored"])
async def test_a_custom_notification_is_sent(scripted, nursery, method):
    client, server = await connected(scripted, nursery, methods={method: None})
    await client.notify(method, {"port": "Oslo"})
    message = await server.receive()
    assert message == {"jsonrpc": "2.0", "method": method, "params": {"port": "Oslo"}}
    await client.aclose()


async def test_an_unknown_method_is_rejected(bench):
    async with Client(bench) as client:
        with pytest.raises(LocalProtocolError, match="no such request: 'acme/search'"):
            await client.request("acme/search")
        with pytest.raises(LocalProtocolError, match="no such notification"):
            await client.notify("notifications/acme/moored")


def test_a_method_of_the_protocol_keeps_its_own_result():
    with pytest.raises(ValueError, match=r"must not redefine methods of the protocol: \['ping'\]"):
        Client((), methods={"ping": dict, "acme/search": dict})


def test_a_type_that_cannot_be_decoded_is_rejected_at_once():
    with pytest.raises(TypeError, match="not supported"):
        Client((), methods={"acme/search": dict[Found, str] | dict[str, str]})


# Requests without a capability of the server are not sent.


NEEDS = [
    ("tools", lambda client: client.list_tools()),
    ("tools", lambda client: client.call_tool("tide")),
    ("resources", lambda client: client.list_resources()),
    ("resources", lambda client: client.list_resource_templates()),
    ("resources", lambda client: client.read_resource("tide://bergen")),
    ("resources.subscribe", lambda client: client.subscribe("tide://bergen")),
    ("resources.subscribe", lambda client: client.unsubscribe("tide://bergen")),
    ("prompts", lambda client: client.list_prompts()),
    ("prompts", lambda client: client.get_prompt("plan")),
    ("logging", lambda client: client.set_log_level("error")),
]


@pytest.mark.requirement("PROM-15", "RES-10", "LOG-04", "LIFE-14")
@pytest.mark.parametrize(("need", "call"), NEEDS)
async def test_requests_without_the_servers_capability_are_not_sent(
    scripted, nursery, autojump_clock, need, call
):
    everything = {"tools": {}, "resources": {}, "prompts": {}, "logging": {}}
    everything.pop(need, None)
    client, server = await connected(scripted, nursery, capabilities=everything)
    with pytest.raises(LocalProtocolError, match=f"'{need}', which is not announced"):
        await call(client)
    assert await server.receive_available() == []
    await client.aclose()


@pytest.mark.requirement("COMP-02")
async def test_completion_of_older_versions_needs_no_capability(scripted, nursery):
    client, server = await connected(scripted, nursery, capabilities={})
    nursery.start_soon(client.complete, "plan", "city", "O")
    assert (await server.receive())["method"] == "completion/complete"
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("TOOL-15")
@pytest.mark.parametrize("arguments", [["Bergen"], "Bergen", 7])
async def test_tool_arguments_that_are_no_object_are_rejected(
    scripted, nursery, autojump_clock, arguments
):
    client, server = await connected(scripted, nursery, capabilities={"tools": {}})
    with pytest.raises(Unencodable, match="arguments is not an object"):
        await client.call_tool("tide", arguments)
    assert await server.receive_available() == []
    await client.aclose()


# Timeouts and cancellation with each protocol version.


PROTOCOL_VERSIONS = [*reversed(LEGACY), STATELESS]
CANCELLED = "notifications/cancelled"

# A stateless server without any of our code. `tools/call` answers its process id; "hang" is silence.
PROGRAM = """
import json, os, sys

META = {"io.modelcontextprotocol/serverInfo": {"name": "program", "version": "1"}}
DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
}

for line in sys.stdin:
    message = json.loads(line)
    method = message["method"]
    result = DISCOVERED
    if method == "tools/call":
        if message["params"]["name"] == "hang":
            continue
        result = {"content": [{"type": "text", "text": str(os.getpid())}]}
    if "id" in message:
        result = {"resultType": "complete", "_meta": META, **result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


async def connected_time_and_cancellation(nursery, protocol_version, **options):
    """A client, and its server, which is silent when it is called."""
    answers = {"tools/call": None, "tools/list": {"tools": []}, **options.pop("answers", {})}
    if protocol_version == STATELESS:
        return await stateless_client(nursery, answers=answers, **options)
    client, server = await legacy_client(
        nursery, protocol_version=protocol_version, answers=answers, **options
    )
    assert client.protocol_version == protocol_version
    return client, server


def about(server, method):
    return [message for message in server.requests if message.get("method") == method]


@pytest.mark.requirement("TIME-01", "TIME-02", "TIME-03", "STDIO-14", "CANC-13")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_timeout_cancels_the_request_once_and_the_session_goes_on(
    nursery, autojump_clock, protocol_version
):
    client, server = await connected_time_and_cancellation(nursery, protocol_version)
    for seconds in (2, 5):
        began = trio.current_time()
        with pytest.raises(RequestTimeout):
            await client.call_tool("tide", total_seconds=seconds)
        assert trio.current_time() - began == pytest.approx(seconds, abs=0.1)
    await trio.testing.wait_all_tasks_blocked()
    calls = [message["id"] for message in about(server, "tools/call")]
    ids = [message["params"]["requestId"] for message in about(server, CANCELLED)]
    assert ids == calls
    assert await client.list_tools() == []
    await client.aclose()


@pytest.mark.requirement("TIME-04", "PROG-10")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_progress_restarts_the_idle_timeout_but_not_the_total(
    nursery, autojump_clock, protocol_version
):
    client, server = await connected_time_and_cancellation(nursery, protocol_version)

    async def report():
        await trio.testing.wait_all_tasks_blocked()
        token = about(server, "tools/call")[-1]["params"]["_meta"]["progressToken"]
        for progress in range(10):
            await trio.sleep(2)
            params = {"progressToken": token, "progress": progress}
            await server.peer.send_notification("notifications/progress", params)

    nursery.start_soon(report)
    began = trio.current_time()
    with pytest.raises(RequestTimeout) as caught:
        await client.call_tool("tide", idle_seconds=3, total_seconds=9, progress=lambda _: None)
    assert caught.value.budget == "total"
    assert trio.current_time() - began == pytest.approx(9, abs=0.1)
    await client.aclose()


@pytest.mark.requirement("CANC-02", "CANC-14", "CANC-08", "CANC-17", "TRAP-58", "TRAP-59")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_only_what_is_in_flight_is_cancelled_and_its_late_answer_is_ignored(
    nursery, protocol_version
):
    client, server = await connected_time_and_cancellation(nursery, protocol_version)
    await client.list_tools()  # has its answer
    with trio.CancelScope() as outer:
        async with trio.open_nursery() as calls:
            calls.start_soon(client.call_tool, "tide")
            await trio.testing.wait_all_tasks_blocked()
            outer.cancel()
    await trio.testing.wait_all_tasks_blocked()
    (call,), (cancelled,) = about(server, "tools/call"), about(server, CANCELLED)
    assert cancelled["params"]["requestId"] == call["id"]
    await server.peer.send_result(call, {"content": [], "resultType": "complete"})
    await trio.testing.wait_all_tasks_blocked()
    assert client.counts == {"late answer": 1}
    assert await client.list_tools() == []
    await client.aclose()
    assert len(about(server, CANCELLED)) == 1


@pytest.mark.requirement("STATE-04", "STDIO-17")
async def test_a_process_serves_one_task_after_the_other_and_ends_with_its_client():
    async with Client(python(PROGRAM), protocol_versions=[STATELESS], limits=QUICK) as client:
        pids = []

        async def converse():
            pids.append(text_of_result(await client.call_tool("pid")))
            await client.call_tool("hang")

        for _ in range(3):
            async with trio.open_nursery() as task:
                task.start_soon(converse)
                seen = len(pids)
                with trio.fail_after(10):
                    while len(pids) == seen:
                        await trio.testing.wait_all_tasks_blocked(0.01)
                task.cancel_scope.cancel()
        assert len(pids) == 3
        assert len(set(pids)) == 1
        assert is_alive(int(pids[0]))
    assert not is_alive(int(pids[0]))


@pytest.mark.real_time
@pytest.mark.requirement("STDIO-17", "TRAP-130")
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_stateless_process_that_does_not_exit_is_killed_even_under_cancellation(
    is_cancelled,
):
    stubborn = "import time\ntry:\n    exec(PROGRAM)\nfinally:\n    time.sleep(600)"
    command = python(f"PROGRAM = {PROGRAM!r}\n{stubborn}")
    with trio.CancelScope() as scope:
        async with Client(command, protocol_versions=[STATELESS], limits=QUICK) as client:
            pid = int(text_of_result(await client.call_tool("pid")))
            assert is_alive(pid)
            if is_cancelled:
                scope.cancel()
    assert not is_alive(pid)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


# Timeouts, cancellation and progress of calls.


# Timeouts and cancellation


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
        assert text_of_result(await client.call_tool("hello")) == "hello"


@pytest.mark.requirement("CANC-01", "CANC-05", "CANC-08", "TRAP-59")
async def test_a_late_answer_is_counted_and_the_server_notified_once(scripted, nursery):
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
        assert text_of_result(await client.call_tool("hello")) == "hello"


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
        assert text_of_result(await client.call_tool("climb", progress=report)) == "up"
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
        assert text_of_result(called) == "up"
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
        assert text_of_result(await client.call_tool("hello")) == "hello"


@pytest.mark.requirement("PROG-10")
async def test_progress_after_the_end_of_a_call_is_ignored(scripted, nursery):
    client, server = await connected(scripted, nursery)
    await server.send_notification("notifications/progress", {"progressToken": 77, "progress": 1})
    await trio.testing.wait_all_tasks_blocked()
    assert client.counts == {"late progress": 1}
    await client.aclose()
