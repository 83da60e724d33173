"""Return values of handlers: content, structured content and output schemas."""

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import pathlib
import re
import subprocess
import sys
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import hypothesis
import jsonschema
import msgspec
import pytest
from annotated_types import Ge
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio import Audio, Image, Server, types
from mcp_trio._protocol.json_schema import SchemaValidator
from mcp_trio._protocol.versions import NEWEST_LEGACY, PROTOCOL_VERSIONS
from mcp_trio._server import results
from mcp_trio._server.results import BYTES_URI, JsonWriter, prompt_result
from mcp_trio.types import (
    Annotations,
    CallToolResult,
    EmbeddedResource,
    GetPromptResult,
    ImageContent,
    PromptMessage,
    ReadResourceResult,
    ResourceContents,
    TextContent,
)
from tests.server.conftest import failure_text

tool_result = functools.partial(
    results.tool_result, writer=JsonWriter(), protocol_version=NEWEST_LEGACY
)
resource_result = functools.partial(results.resource_result, writer=JsonWriter())

PIXEL = b"\x89PNG\r\n"
EMBEDDED = EmbeddedResource(
    resource=ResourceContents(uri="note:1", mime_type="text/plain", text="hello")
)


@dataclasses.dataclass
class Place:
    name: str
    height: float


@attrs.define
class Wind:
    knots: int


class Sky(msgspec.Struct):
    cover: str
    wind: Wind | None = None


class Mood(enum.StrEnum):
    SUNNY = "sunny"


class Markup(str):
    """A string as those of template engines and HTML parsers."""

    __slots__ = ()

    def __str__(self):
        return "not the string itself"


class Metres(float):
    """A number as those of NumPy."""


class Count(int):
    pass


class Digit(str, enum.Enum):  # noqa: UP042 - the value of a member is no string
    ONE = 1


def text(value):
    return TextContent(text=value)


@pytest.mark.requirement("TOOL-16", "TOOL-17")
@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, []),
        ("rain", [text("rain")]),
        ("", [text("")]),
        (Mood.SUNNY, [text("sunny")]),
        (Digit.ONE, [text("1")]),
        (Markup("<b>"), [text("<b>")]),
        (Metres(1.5), [text("1.5")]),
        ([Markup("<b>"), Count(3), Metres(2)], [text('["<b>",3,2.0]')]),
        (3, [text("3")]),
        (True, [text("true")]),
        (1.5, [text("1.5")]),
        ({"b": 1, "a": [None]}, [text('{"b":1,"a":[null]}')]),
        (Place("Oslo", 23.0), [text('{"name":"Oslo","height":23.0}')]),
        (Wind(5), [text('{"knots":5}')]),
        (Sky("low", Wind(3)), [text('{"cover":"low","wind":{"knots":3}}')]),
        (["a", "b"], [text('["a","b"]')]),
        (("a", 1), [text('["a",1]')]),
        ([], [text("[]")]),
        (pathlib.PurePosixPath("/a/b"), [text('"/a/b"')]),
        ([pathlib.PurePosixPath("x")], [text('["x"]')]),
        (dt.date(2024, 11, 5), [text('"2024-11-05"')]),
        (decimal.Decimal("1.10"), [text('"1.10"')]),
        (float("nan"), [text("null")]),
        (text("t"), [text("t")]),
        (EMBEDDED, [EMBEDDED]),
        (
            [text("t"), "s", {"n": 1}, None, [EMBEDDED]],
            [text("t"), text("s"), text('{"n":1}'), EMBEDDED],
        ),
        ((EMBEDDED,), [EMBEDDED]),
    ],
)
def test_the_return_value_of_a_tool_becomes_content(value, content):
    result = tool_result(value)
    assert result == CallToolResult(content=content)
    assert json.loads(msgspec.json.encode(result)).keys() == {"content"}
    for block in result.content:
        assert type(getattr(block, "text", "")) is str


@pytest.mark.requirement("TOOL-18")
def test_an_image_is_base64_with_its_mime_type():
    (png, jpeg) = tool_result([Image(PIXEL), Image(PIXEL, format="jpeg")]).content
    assert isinstance(png, ImageContent)
    assert base64.b64decode(png.data) == PIXEL
    assert (png.mime_type, jpeg.mime_type) == ("image/png", "image/jpeg")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (PIXEL, "png"),
        (b"\xff\xd8\xff\xe0", "jpeg"),
        (b"GIF89a", "gif"),
        (b"RIFF1234WEBPVP8", "webp"),
        (b"1234ftypavif", "avif"),
        (b"BM12", "bmp"),
        (b"II*\0", "tiff"),
        (b"MM\0*", "tiff"),
        (b"<svg>", "svg+xml"),
        (b"", "png"),
        (b"odd", "png"),
    ],
)
def test_the_format_of_an_image_is_detected_from_its_first_bytes(data, expected, tmp_path):
    assert Image(data).format == expected
    assert Image(data, format="jpeg").mime_type == "image/jpeg"
    assert Image(data, "image/jpeg").mime_type == "image/jpeg"
    file = tmp_path / "image.heic"
    file.write_bytes(data)
    assert Image(path=str(file)).data == data
    assert Image(path=file).format == (expected if data not in (b"", b"odd") else "heic")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.JPG", "jpeg"), ("a.svg", "svg+xml"), ("a.tif", "tiff"), ("a.png", "png"), ("a", "png")],
)
def test_the_format_of_an_unknown_file_follows_from_its_suffix(name, expected, tmp_path):
    (tmp_path / name).write_bytes(b"odd")
    assert Image(path=tmp_path / name).format == expected


def test_an_image_with_the_mime_type_of_audio_is_rejected():
    with pytest.raises(ValueError, match=r"Image\(\) takes image/\.\.\., not audio/\.\.\."):
        Image(PIXEL, "audio/wav")


@pytest.mark.parametrize("given", [{}, {"data": b"", "path": "x"}])
def test_an_image_has_data_or_a_path(given):
    with pytest.raises(TypeError, match="takes either data or path"):
        Image(**given)


def test_the_annotations_of_content_stay_untouched():
    note = TextContent(text="t", annotations=Annotations(audience=["user"], priority=0.5))
    (first, second) = tool_result([note, Image(PIXEL)]).content
    assert first is note
    assert second.annotations is None
    assert tool_result(note).content[0] is note


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (TextContent(text=5), "TextContent is malformed: Expected `str`, got `int` - at `$.text`"),
        ([TextContent(text="a"), TextContent(text=None)], "TextContent is malformed"),
        (CallToolResult(content="moored"), "CallToolResult is malformed: Expected `array`"),
        (CallToolResult(content=["moored"]), r"Expected `object`, got `str` - at `$.content[0]`"),
    ],
)
def test_content_of_a_wrong_type_is_rejected(made, text):
    with pytest.raises(TypeError, match=re.escape(text)):
        tool_result(made)


def test_a_path_in_place_of_bytes_is_rejected_with_the_right_argument():
    with pytest.raises(TypeError, match=r"write Image\(path='chart.png'\)"):
        Image("chart.png")


async def test_a_generator_is_rejected_by_name(serve, caplog):
    server = Server("harbour")

    @server.tool
    def waves():
        return (height for height in [1, 2])

    asker = await serve(server)
    assert await asker.failure("waves") == "internal error in waves"
    assert "the type <class 'generator'> has no JSON form" in caplog.text


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_from_a_tool_are_an_embedded_blob(kind):
    (content,) = tool_result(kind(b"\0\xff")).content
    assert content.resource == ResourceContents(
        uri=BYTES_URI, mime_type="application/octet-stream", blob="AP8="
    )


def test_a_complete_result_is_sent_unchanged():
    tool = CallToolResult(content=[], is_error=True, meta={"a": 1})
    resource = ReadResourceResult(contents=[])
    prompt = GetPromptResult(messages=[], description="other")
    assert tool_result(tool) is tool
    assert resource_result("x:1", None, resource) is resource
    assert prompt_result("d", prompt) == prompt


@pytest.mark.parametrize("value", [object(), [object()], {"a": object()}, iter([])])
def test_a_value_without_a_json_form_is_rejected_by_its_type(value):
    with pytest.raises(TypeError, match=r"the type <class '\w+'> has no JSON form"):
        tool_result(value)


@pytest.mark.slow
def test_a_set_has_the_same_order_whatever_the_hash_seed():
    code = (
        "from mcp_trio._server.results import JsonWriter;"
        "print(JsonWriter().encode({'s': {'a', 'b', 'c', 'd', 'e'}}).decode())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert runs == {b'{"s":["a","b","c","d","e"]}\n'}


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.text() | st.integers(-(2**63), 2**64 - 1),
        lambda inner: st.dictionaries(st.text(), inner),
    )
)
def test_a_dict_is_its_own_json(value):
    (content,) = tool_result({"value": value}).content
    assert json.loads(content.text) == {"value": value}


@pytest.mark.requirement("RES-05", "RES-22")
@pytest.mark.parametrize(
    ("value", "contents"),
    [
        ("hi", {"text": "hi", "mime_type": "text/plain"}),
        (Markup("<b>"), {"text": "<b>", "mime_type": "text/plain"}),
        (b"\0\xff", {"blob": "AP8=", "mime_type": "application/octet-stream"}),
        (bytearray(b"\0\xff"), {"blob": "AP8=", "mime_type": "application/octet-stream"}),
        (memoryview(b"\0\xff"), {"blob": "AP8=", "mime_type": "application/octet-stream"}),
        (Image(b"\0\xff"), {"blob": "AP8=", "mime_type": "image/png"}),
        ({"a": 1}, {"text": '{"a":1}', "mime_type": "application/json"}),
        ([1, 2], {"text": "[1,2]", "mime_type": "application/json"}),
        ([], {"text": "[]", "mime_type": "application/json"}),
        (None, {"text": "null", "mime_type": "application/json"}),
        (
            Place("Oslo", 23.0),
            {"text": '{"name":"Oslo","height":23.0}', "mime_type": "application/json"},
        ),
    ],
)
def test_the_return_value_of_a_resource_becomes_text_or_a_blob(value, contents):
    result = resource_result("x:1", None, value)
    assert result.contents == [ResourceContents(uri="x:1", **contents)]
    assert msgspec.json.decode(msgspec.json.encode(result), type=ReadResourceResult) == result


@pytest.mark.parametrize("value", ["hi", b"hi", Image(b"hi"), {"a": 1}])
def test_the_declared_mime_type_of_a_resource_has_precedence(value):
    (contents,) = resource_result("x:1", "text/markdown", value).contents
    assert contents.mime_type == "text/markdown"


@pytest.mark.requirement("RES-06")
def test_a_resource_may_give_several_contents():
    one = ResourceContents(uri="x:1", text="1")
    two = ResourceContents(uri="x:2", blob="Mg==")
    assert resource_result("x:", None, one).contents == [one]
    assert resource_result("x:", None, [one, two]).contents == [one, two]
    assert resource_result("x:", None, (one, two)).contents == [one, two]


USER_HI = PromptMessage(role="user", content=text("hi"))
ASSISTANT_YO = PromptMessage(role="assistant", content=text("yo"))


@pytest.mark.requirement("PROM-05")
@pytest.mark.parametrize(
    ("value", "messages"),
    [
        ("hi", [USER_HI]),
        (USER_HI, [USER_HI]),
        (("assistant", "yo"), [ASSISTANT_YO]),
        (("assistant", Markup("yo")), [ASSISTANT_YO]),
        (["hi", ("assistant", "yo")], [USER_HI, ASSISTANT_YO]),
        ((USER_HI, ASSISTANT_YO), [USER_HI, ASSISTANT_YO]),
        (("hi", "hi"), [USER_HI, USER_HI]),
        (["user", "hi"], [PromptMessage(role="user", content=text("user")), USER_HI]),
        ([("user", EMBEDDED)], [PromptMessage(role="user", content=EMBEDDED)]),
        (text("hi"), [USER_HI]),
        ([], []),
    ],
)
def test_the_return_value_of_a_prompt_becomes_messages(value, messages):
    result = prompt_result("greets", value)
    assert result == GetPromptResult(messages=messages, description="greets")
    assert msgspec.json.decode(msgspec.json.encode(result), type=GetPromptResult) == result


def test_a_prompt_may_show_an_image():
    (message,) = prompt_result(None, Image(PIXEL)).messages
    assert isinstance(message.content, ImageContent)


@pytest.mark.parametrize("value", [None, 3, [["user", "hi"]], [("system", "hi")], [("user", 3)]])
def test_a_prompt_that_returns_anything_else_is_rejected(value):
    with pytest.raises(TypeError, match="assistant or user and text, but this one returned a"):
        prompt_result(None, value)


@pytest.mark.parametrize(
    "content", ["Moor first.", {"type": "text", "text": "Moor first."}], ids=["text", "object"]
)
def test_a_message_of_a_prompt_may_be_a_dict(content):
    value = [{"role": "assistant", "content": content}]
    (message,) = prompt_result(None, value).messages
    assert message == PromptMessage(role="assistant", content=TextContent(text="Moor first."))


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"role": "user"}, "missing required field `content`"),
        ({"role": "system", "content": "hi"}, "Invalid enum value 'system'"),
        ({"role": "user", "content": 3}, "Expected `object`, got `int`"),
        (PromptMessage(role="system", content=text("hi")), "Invalid enum value 'system'"),
        (GetPromptResult(messages=[{"role": "user"}]), "missing required field `content`"),
    ],
)
def test_a_dict_that_is_no_message_is_rejected_with_an_example(value, fault):
    with pytest.raises(TypeError, match=r'a dict such as \{"role": "user"') as caught:
        prompt_result(None, value)
    assert fault in str(caught.value)


def test_a_message_of_a_prompt_may_have_a_text_as_its_content():
    message = PromptMessage(role="user", content="Moor first.")
    moored = PromptMessage(role="user", content=text("Moor first."))
    assert prompt_result(None, message).messages == [moored]
    assert prompt_result(None, GetPromptResult(messages=[message])).messages == [moored]


@pytest.mark.parametrize(
    "made",
    [
        ReadResourceResult(contents="moored"),
        ResourceContents(uri="x:1", text=5),
        [ResourceContents(uri=5, text="moored")],
    ],
)
def test_contents_of_a_wrong_type_are_rejected(made):
    with pytest.raises(TypeError, match="is malformed: Expected `"):
        resource_result("x:1", None, made)


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tools/call", {"name": "odd"}),
        ("resources/read", {"uri": "odd://one"}),
        ("prompts/get", {"name": "odd"}),
    ],
)
async def test_the_log_names_the_handler_whose_value_cannot_be_sent(serve, caplog, method, params):
    server = Server("harbour")

    async def odd() -> object:
        return object()

    for offer in (server.tool, server.prompt, server.resource("odd://one")):
        offer(odd)
    asker = await serve(server)
    answer = await asker.ask(method, params)
    if method == "tools/call":
        assert failure_text(answer["result"]) == "internal error in odd"
    else:
        assert answer["error"]["message"] == "internal error"
    assert "in the value that 'odd' returned" in caplog.text


# Structured output of tools, and the output schemas that describe it.


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


class PlaceStructuredOutput(NamedTuple):
    east: int
    north: int


class Flag(enum.Enum):
    RED = "red"


@attrs.define
class Hidden:
    _key: str


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
async def test_structured_content_other_than_an_object_is_wrapped_if_the_version_has_only_objects(
    serve, protocol_version, hint, value, schema
):
    asker = await serve(returning(hint, value), protocol_version=protocol_version)
    result = await called(asker)
    assert texts(result) == [json.dumps(value)]
    if protocol_version == E:
        assert await listed(asker) == schema
        assert result["structuredContent"] == value
    elif protocol_version in (C, D):
        assert await listed(asker) == {
            "type": "object",
            "properties": {"result": schema},
            "required": ["result"],
            "x-fastmcp-wrap-result": True,
        }
        assert result["structuredContent"] == {"result": value}
    else:
        assert await listed(asker) is None
        assert "structuredContent" not in result


async def test_the_definitions_of_a_wrapped_schema_stay_at_its_root(serve):
    asker = await serve(returning(list[Tree], [Tree("a", [Tree("b")])]), protocol_version=D)
    schema = await listed(asker)
    assert schema["properties"]["result"] == {"type": "array", "items": {"$ref": "#/$defs/Tree"}}
    assert list(schema["$defs"]) == ["Tree"]
    content = (await called(asker))["structuredContent"]
    jsonschema.validate(content, schema)
    assert content["result"][0]["name"] == "a"


async def test_the_definitions_of_a_wrapped_schema_in_an_older_dialect_stay_at_its_root(serve):
    given = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "array",
        "items": {"$ref": "#/definitions/name"},
        "definitions": {"name": {"type": "string"}},
    }
    asker = await serve(returning(list, ["a"], output_schema=given), protocol_version=D)
    schema = await listed(asker)
    jsonschema.validate((await called(asker))["structuredContent"], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"result": [1]}, schema)


async def test_a_union_with_an_object_is_wrapped_whatever_its_value(serve):
    asker = await serve(returning(Port | None, Port("Oslo")), protocol_version=D)
    assert (await called(asker))["structuredContent"] == {"result": {"name": "Oslo", "berths": 1}}


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (Trip, Trip([Port("Oslo")], dt.datetime(2026, 7, 28, tzinfo=dt.UTC))),
        (Tree, Tree("a", [Tree("b")])),
        (Crew, {"captain": "Ada", "mates": []}),
        (dict[str, Port], {"x": Port("Oslo")}),
        (dict, {"any": [1]}),
        (PlaceStructuredOutput, PlaceStructuredOutput(1, 2)),
        (list[Flag], [Flag.RED]),
        (Literal[1, 2], 1),
        (uuid.UUID, uuid.UUID(int=0)),
        (Port | Tree, Port("Oslo")),
        (Annotated[Port, "a note"], Port("Oslo")),
        (Port | types.CallToolResult, Port("Oslo")),
    ],
)
async def test_structured_content_matches_its_schema(serve, hint, value):
    asker = await serve(returning(hint, value), protocol_version=E)
    result = await called(asker)
    assert SchemaValidator(await listed(asker)).check(result["structuredContent"]) == []
    assert json.loads(*texts(result)) == result["structuredContent"]


@pytest.mark.parametrize(
    "hint",
    [
        bytes,
        None,
        Any,
        object,
        list,
        list[Any],
        list[Any] | dict,
        tuple,
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
async def test_bytes_content_and_unreadable_types_have_no_output_schema(serve, hint):
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


# Options at registration.


async def test_structured_content_can_be_left_out(serve):
    asker = await serve(returning(Port, Port("Oslo"), structured=False), protocol_version=E)
    assert await listed(asker) is None
    assert "structuredContent" not in await called(asker)


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (str, "Oslo", "Oslo"),
        (Annotated[str, "a note"], '"quoted"', '"quoted"'),
        (Literal["a", "b"], "a", "a"),
        (str | int, "5", "5"),
        (str | int, 5, "5"),
        (str | None, "Oslo", "Oslo"),
        (str | None, None, "null"),
        (str, Markup("<b>"), "<b>"),
        (Mood, Mood.SUNNY, "sunny"),
        (float, Metres(1.5), "1.5"),
        (Digit, Digit.ONE, "1"),
    ],
)
async def test_a_string_is_structured_content_and_the_text_without_quotes(serve, hint, value, text):
    asker = await serve(returning(hint, value), protocol_version=E)
    content = [{"type": "text", "text": text}]
    result = await called(asker)
    assert result == {"content": content, "structuredContent": getattr(value, "value", value)}
    assert SchemaValidator(await listed(asker)).check(result["structuredContent"]) == []


@pytest.mark.parametrize("protocol_version", [C, D])
async def test_a_string_is_wrapped_where_structured_content_has_to_be_an_object(
    serve, protocol_version
):
    asker = await serve(returning(str, "Oslo"), protocol_version=protocol_version)
    assert await listed(asker) == {
        "type": "object",
        "properties": {"result": {"type": "string"}},
        "required": ["result"],
        "x-fastmcp-wrap-result": True,
    }
    assert await called(asker) == {
        "content": [{"type": "text", "text": "Oslo"}],
        "structuredContent": {"result": "Oslo"},
    }


async def test_structured_content_can_be_switched_off(serve):
    asker = await serve(returning(str, "Oslo", structured=False), protocol_version=E)
    assert await listed(asker) is None
    assert await called(asker) == {"content": [{"type": "text", "text": "Oslo"}]}


async def test_structured_content_can_be_required(serve):
    asker = await serve(
        returning(types.TextContent, types.TextContent(text="Oslo"), structured=True),
        protocol_version=E,
    )
    assert (await listed(asker))["type"] == "object"
    assert (await called(asker))["structuredContent"]["text"] == "Oslo"


@pytest.mark.parametrize("hint", [Any, complex])
def test_a_tool_that_requires_structured_content_without_a_schema_is_rejected(hint):
    with pytest.raises(TypeError):
        returning(hint, structured=True)


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


async def test_a_result_whose_check_would_take_too_long_is_sent_unchecked(serve, caplog):
    rows = [{"id": row, "name": "Oslo"} for row in range(50_000)]
    schema = {"type": "array", "items": {"type": "object", "properties": {"id": {"minimum": 0}}}}
    asker = await serve(returning(list, rows, output_schema=schema), protocol_version=E)
    for _ in range(2):
        assert (await called(asker))["structuredContent"] == rows
    (line,) = caplog.messages
    assert line == (
        "a result of the tool it is not checked: it takes too long to check"
        " (limits.messages.schema_steps_max=100000)"
    )


@pytest.mark.requirement("TOOL-26", "TOOL-27")
async def test_a_given_non_object_schema_is_wrapped_if_the_version_has_only_objects(serve):
    server = returning(list, [1], output_schema={"type": "array"})
    assert await listed(await serve(server, protocol_version=E)) == {"type": "array"}
    asker = await serve(server, protocol_version=D)
    schema = await listed(asker)
    assert schema["properties"] == {"result": {"type": "array"}}
    assert (await called(asker))["structuredContent"] == {"result": [1]}


def test_a_given_schema_with_structured_content_disabled_is_rejected():
    with pytest.raises(ValueError, match="structured=False"):
        returning(dict, output_schema=GIVEN, structured=False)


# Results that do not match their schema.


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
    assert await asker.failure("it") == "internal error in it"
    assert why in caplog.text
    assert "in the value that 'it' returned" in caplog.text


# Complete results.


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
async def test_an_error_result_need_not_match_the_schema(serve, data):
    text = types.TextContent(text="fog")
    whole = types.CallToolResult(content=[text], structured_content=data, is_error=True)
    asker = await serve(returning(Port, whole), protocol_version=E)
    result = await called(asker)
    assert result["isError"] is True
    assert result.get("structuredContent", msgspec.UNSET) == data


@pytest.mark.requirement("TOOL-37")
async def test_an_input_required_result_is_not_structured_content():
    from mcp_trio._server.results import JsonWriter, prompt_result, resource_result

    asks = types.InputRequiredResult(request_state="s")
    assert tool_result(asks) is asks
    assert resource_result("x:1", None, asks, JsonWriter()) is asks
    assert prompt_result(None, asks) is asks


# Schemas agree with types.


@pytest.mark.slow
@hypothesis.settings(max_examples=60)
@hypothesis.given(st.data())
def test_every_value_of_the_type_is_valid_by_the_schema(data):
    hint = data.draw(
        st.sampled_from([Trip, Tree, Crew, PlaceStructuredOutput, dict[str, Port], list[Flag]])
    )
    (tool,) = returning(hint)._registry.tools.values()
    value = data.draw(st.from_type(hint))
    encoded = Server("harbour")._sessions.writer.encode(value)
    assert tool.output.validation_errors(encoded) == []
    assert SchemaValidator(tool.output.schema).check(json.loads(encoded)) == []
