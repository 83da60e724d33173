import base64
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import pathlib
import subprocess
import sys

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio import Image, Server
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

tool_result = functools.partial(results.tool_result, writer=JsonWriter())
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


async def test_a_generator_is_rejected_by_name(serve, caplog):
    server = Server("harbour")

    @server.tool
    def waves():
        yield 1

    asker = await serve(server)
    assert (await asker.error("tools/call", {"name": "waves"}))["message"] == "internal error"
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
    assert resource_result("x:1", None, value).contents == [ResourceContents(uri="x:1", **contents)]


@pytest.mark.parametrize("value", ["hi", b"hi", Image(b"hi"), {"a": 1}])
def test_the_declared_mime_type_of_a_resource_wins(value):
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
    assert prompt_result("greets", value) == GetPromptResult(
        messages=messages, description="greets"
    )


def test_a_prompt_may_show_an_image():
    (message,) = prompt_result(None, Image(PIXEL)).messages
    assert isinstance(message.content, ImageContent)


@pytest.mark.parametrize(
    "value", [None, 3, {"role": "user"}, [["user", "hi"]], [("system", "hi")], [("user", 3)]]
)
def test_a_prompt_that_returns_anything_else_is_rejected(value):
    with pytest.raises(TypeError, match="assistant or user and text, but this one returned a"):
        prompt_result(None, value)


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
    assert (await asker.error(method, params))["message"] == "internal error"
    assert "in what 'odd' returned" in caplog.text
