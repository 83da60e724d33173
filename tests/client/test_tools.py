"""Tools: display names, hints, and results that are checked and converted."""

import dataclasses
import datetime as dt
import typing

import attrs
import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import RequestError, ResourceNotFound, ToolError
from mcp_trio import types as t
from mcp_trio.errors import RemoteProtocolError
from mcp_trio.hosts import ToolHints, display_name, tool_hints
from tests.client.conftest import connected
from tests.client.stateless import LEGACY, STATELESS, error, legacy_client, stateless_client

SCHEMA = {
    "type": "object",
    "properties": {"metres": {"type": "number"}},
    "required": ["metres"],
}
TIDE = {"name": "tide", "inputSchema": {"type": "object"}, "outputSchema": SCHEMA}
TEXT = {"type": "text", "text": "ebb"}


def gives(structured=..., **members):
    result = {"content": [TEXT], "structuredContent": structured, **members}
    return {name: value for name, value in result.items() if value is not ...}


# What people see.


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
        await server.tell("notifications/tools/list_changed")
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
        (gives(content=[]), "it has no structured content, and \\d texts"),
        (gives(content=[TEXT, TEXT]), "it has no structured content, and \\d texts"),
    ],
)
async def test_a_result_that_does_not_fit_result_type_is_a_protocol_error(nursery, result, why):
    client, _ = await stateless_client(nursery, answers={"tools/call": result})
    with pytest.raises(RemoteProtocolError, match=f"the tool tide is no Tide: {why}"):
        await client.call_tool("tide", result_type=Tide)
    await client.aclose()


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


# Resources that are not there.


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
