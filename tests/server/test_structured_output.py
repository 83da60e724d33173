"""Structured output of tools, and the output schemas that describe it."""

import dataclasses
import datetime as dt
import enum
import json
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import hypothesis
import msgspec
import pytest
from annotated_types import Ge
from hypothesis import strategies as st

from mcp_trio import Audio, Image, Server, types
from mcp_trio._protocol.json_schema import SchemaValidator
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS

A, B, C, D, E = PROTOCOL_VERSIONS


@attrs.define
class Port:
    """Where ships lie."""

    name: str
    berths: Annotated[int, Ge(0)] = 1


class Tree(msgspec.Struct):
    name: str
    under: list["Tree"] = []


@dataclasses.dataclass
class Trip:
    ports: list[Port]
    at: dt.datetime


class Crew(TypedDict):
    captain: str
    mates: NotRequired[list[str]]


class Place(NamedTuple):
    east: int
    north: int


class Flag(enum.Enum):
    RED = "red"


@attrs.define
class Hidden:
    _key: str


class Talk(enum.StrEnum):
    AHOY = "ahoy"


def returning(hint, value=None, **options):
    """A server with one tool, `it`, that is annotated so and returns that."""
    server = Server("harbour")

    async def it():
        return value

    it.__annotations__["return"] = hint
    server.tool(**options)(it)
    return server


async def listed(asker):
    (tool,) = (await asker.result("tools/list"))["tools"]
    return tool.get("outputSchema")


async def called(asker):
    result = await asker.result("tools/call", {"name": "it"})
    return {key: it for key, it in result.items() if key not in ("_meta", "resultType")}


def texts(result):
    return [block["text"] for block in result["content"]]


PORT_SCHEMA = {
    "type": "object",
    "description": "Where ships lie.",
    "properties": {
        "name": {"type": "string"},
        "berths": {"type": "integer", "minimum": 0, "default": 1},
    },
    "required": ["name"],
}


@pytest.mark.requirement("TOOL-21", "TOOL-23", "TOOL-24", "TOOL-26", "TRAP-68")
@pytest.mark.parametrize("protocol_version", [C, D, E])
async def test_an_object_is_structured_content_with_its_text_beside_it(serve, protocol_version):
    asker = await serve(returning(Port, Port("Oslo", 3)), protocol_version=protocol_version)
    assert await listed(asker) == PORT_SCHEMA
    assert await called(asker) == {
        "content": [{"type": "text", "text": '{"name":"Oslo","berths":3}'}],
        "structuredContent": {"name": "Oslo", "berths": 3},
    }


@pytest.mark.requirement("TRAP-68", "TRAP-69")
@pytest.mark.parametrize("protocol_version", [A, B])
async def test_older_clients_get_the_text_alone(serve, protocol_version):
    asker = await serve(returning(Port, Port("Oslo", 3)), protocol_version=protocol_version)
    assert await listed(asker) is None
    assert await called(asker) == {
        "content": [{"type": "text", "text": '{"name":"Oslo","berths":3}'}]
    }


@pytest.mark.requirement("TOOL-22", "TOOL-27", "TRAP-69", "TRAP-70")
@pytest.mark.parametrize(
    ("hint", "value", "schema"),
    [
        (list[str], ["Oslo"], {"type": "array", "items": {"type": "string"}}),
        (int, 0, {"type": "integer"}),
        (bool, False, {"type": "boolean"}),
        (float | None, None, {"anyOf": [{"type": "number"}, {"type": "null"}]}),
    ],
)
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_structured_content_other_than_objects_needs_the_newest_version(
    serve, protocol_version, hint, value, schema
):
    asker = await serve(returning(hint, value), protocol_version=protocol_version)
    result = await called(asker)
    assert texts(result) == [json.dumps(value)]
    if protocol_version == E:
        assert await listed(asker) == schema
        assert result["structuredContent"] == value
    else:
        assert await listed(asker) is None
        assert "structuredContent" not in result


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Trip, Trip([Port("Oslo")], dt.datetime(2026, 7, 28, tzinfo=dt.UTC))),
        (Tree, Tree("a", [Tree("b")])),
        (Crew, {"captain": "Ada", "mates": []}),
        (dict[str, Port], {"x": Port("Oslo")}),
        (dict, {"any": [1]}),
        (Place, Place(1, 2)),
        (list[Flag], [Flag.RED]),
        (Literal[1, 2], 1),
        (uuid.UUID, uuid.UUID(int=0)),
        (Port | Tree, Port("Oslo")),
        (Annotated[Port, "a note"], Port("Oslo")),
        (Port | types.CallToolResult, Port("Oslo")),
    ],
)
async def test_data_is_of_its_schema(serve, hint, value):
    asker = await serve(returning(hint, value), protocol_version=E)
    result = await called(asker)
    assert SchemaValidator(await listed(asker)).check(result["structuredContent"]) == []
    assert json.loads(*texts(result)) == result["structuredContent"]


@pytest.mark.parametrize(
    "hint",
    [
        str,
        bytes,
        Talk,
        None,
        Any,
        object,
        list,
        list[Any],
        list[Any] | dict,
        tuple,
        str | None,
        str | int,
        Literal["a", "b"],
        Image,
        Audio,
        list[Image],
        list[str | types.TextContent],
        types.ResourceLink,
        types.CallToolResult,
        types.CallToolResult | types.InputRequiredResult,
        types.CallToolResult | None,
        complex,
        "Unknown",
        Hidden,
    ],
)
async def test_text_content_and_unreadable_types_have_no_output_schema(serve, hint):
    asker = await serve(returning(hint), protocol_version=E)
    assert await listed(asker) is None
    assert await called(asker) == {"content": []}


async def test_a_function_without_annotation_has_no_schema(serve):
    server = Server("harbour")

    @server.tool
    async def it():
        return {"a": 1}

    asker = await serve(server, protocol_version=E)
    assert await listed(asker) is None
    assert await called(asker) == {"content": [{"type": "text", "text": '{"a":1}'}]}


# What people say at registration.


async def test_structured_content_can_be_left_out(serve):
    asker = await serve(returning(Port, Port("Oslo"), structured=False), protocol_version=E)
    assert await listed(asker) is None
    assert "structuredContent" not in await called(asker)


async def test_structured_content_can_be_insisted_on(serve):
    asker = await serve(returning(str, "Oslo", structured=True), protocol_version=E)
    assert await listed(asker) == {"type": "string"}
    assert await called(asker) == {
        "content": [{"type": "text", "text": '"Oslo"'}],
        "structuredContent": "Oslo",
    }


@pytest.mark.parametrize("hint", [Any, complex, "Unknown"])
async def test_who_insists_is_told_what_is_missing(serve, hint, caplog):
    asker = await serve(returning(hint, structured=True), protocol_version=E)
    assert (await asker.error("tools/list"))["code"] == -32603
    assert "'it' cannot be listed" in caplog.text


GIVEN = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:port",
    "$comment": "kept",
    "type": "object",
    "$defs": {"name": {"$anchor": "name", "type": "string", "minLength": 2}},
    "properties": {"name": {"$ref": "#name"}, "x-own": {}},
    "if": {"required": ["berths"]},
    "then": {"properties": {"berths": {"type": "integer"}}},
    "oneOf": [{"required": ["name"]}, {"required": ["port"]}],
    "unevaluatedProperties": {"type": "integer"},
}


async def take(given):
    pass


@pytest.mark.requirement("TOOL-07", "TOOL-24", "TOOL-28", "JSCH-10")
@pytest.mark.parametrize("protocol_version", [C, D, E])
async def test_given_schemas_are_listed_as_they_are(serve, protocol_version):
    server = returning(dict, {"name": "Oslo"}, output_schema=GIVEN)
    server.tool(name="other", input_schema=GIVEN)(take)
    asker = await serve(server, protocol_version=protocol_version)
    it, other = (await asker.result("tools/list"))["tools"]
    assert it["outputSchema"] == other["inputSchema"] == GIVEN
    assert list(it["outputSchema"]) == list(other["inputSchema"]) == list(GIVEN)
    result = await asker.result("tools/call", {"name": "it"})
    assert result["structuredContent"] == {"name": "Oslo"}


@pytest.mark.requirement("TOOL-26", "TOOL-27")
async def test_a_given_schema_of_no_object_is_for_the_newest_protocol_version_alone(serve):
    server = returning(list, [1], output_schema={"type": "array"})
    assert await listed(await serve(server, protocol_version=E)) == {"type": "array"}
    assert await listed(await serve(server, protocol_version=D)) is None


def test_a_given_schema_and_none_at_all_are_not_both_to_be_had():
    with pytest.raises(ValueError, match="structured=False"):
        returning(dict, output_schema=GIVEN, structured=False)


# What does not fit.


@pytest.mark.requirement("TOOL-24")
@pytest.mark.parametrize(
    ("server", "why"),
    [
        (returning(Port, {"name": 3}), "name: expected str, got int"),
        (returning(Port, None), "result: expected object, got null"),
        (returning(Port, Port("Oslo", -1)), "berths: expected int >= 0"),
        (returning(list[int], [1, "x"]), "[1]: expected int, got str"),
        (returning(Any, {"name": "x"}, output_schema=GIVEN), "name: 'x' is too short"),
        (
            returning(Port, types.CallToolResult(content=[], structured_content={})),
            "missing required field name",
        ),
        (
            returning(Port, types.CallToolResult(content=[])),
            "has an output schema, but its result no structured content",
        ),
    ],
)
@pytest.mark.parametrize("protocol_version", [A, E])
async def test_a_result_that_does_not_match_its_schema_is_never_sent(
    serve, protocol_version, server, why, caplog
):
    asker = await serve(server, protocol_version=protocol_version)
    error = await asker.error("tools/call", {"name": "it"})
    assert error == {"code": -32603, "message": "internal error"}
    assert why in caplog.text
    assert "in what 'it' returned" in caplog.text


# Whole results.


@pytest.mark.requirement("TOOL-23", "TRAP-68", "TRAP-70")
@pytest.mark.parametrize("data", [None, {"name": "Oslo"}, [1], 0])
async def test_a_complete_result_gets_missing_text_content(serve, data):
    whole = types.CallToolResult(content=[], structured_content=data)
    asker = await serve(returning(types.CallToolResult, whole), protocol_version=E)
    assert await called(asker) == {
        "content": [{"type": "text", "text": json.dumps(data, separators=(",", ":"))}],
        "structuredContent": data,
    }


async def test_a_complete_result_keeps_its_content_and_may_hold_any_data(serve):
    text = types.TextContent(text="the port of Oslo")
    whole = types.CallToolResult(content=[text], structured_content=Port("Oslo"))
    asker = await serve(returning(Port, whole), protocol_version=E)
    assert await called(asker) == {
        "content": [{"type": "text", "text": "the port of Oslo"}],
        "structuredContent": {"name": "Oslo", "berths": 1},
    }


@pytest.mark.requirement("TRAP-71")
@pytest.mark.parametrize("data", [msgspec.UNSET, {"why": "fog"}])
async def test_a_failure_need_not_be_of_the_schema(serve, data):
    text = types.TextContent(text="fog")
    whole = types.CallToolResult(content=[text], structured_content=data, is_error=True)
    asker = await serve(returning(Port, whole), protocol_version=E)
    result = await called(asker)
    assert result["isError"] is True
    assert result.get("structuredContent", msgspec.UNSET) == data


@pytest.mark.requirement("TOOL-37")
async def test_a_result_that_asks_for_input_is_no_data():
    from mcp_trio._server.results import JsonWriter, prompt_result, resource_result, tool_result

    asks = types.InputRequiredResult(request_state="s")
    assert tool_result(asks, JsonWriter()) is asks
    assert resource_result("x:1", None, asks, JsonWriter()) is asks
    assert prompt_result(None, asks) is asks


# The schema and the type say the same.


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.data())
def test_every_value_of_the_type_is_valid_by_the_schema(data):
    hint = data.draw(st.sampled_from([Trip, Tree, Crew, Place, dict[str, Port], list[Flag]]))
    (tool,) = returning(hint)._registry.tools.values()
    value = data.draw(st.from_type(hint))
    encoded = Server("harbour")._sessions.writer.encode(value)
    assert tool.output.validation_errors(encoded) == []
    assert SchemaValidator(tool.output.schema).check(json.loads(encoded)) == []
