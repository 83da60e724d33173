"""`mcp-trio inspect`: the page, its JSON, and the types in schemas."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._cli.inspect import argument_rows, schema_budget, type_text

SOME = Path(__file__).with_name("some_server.py")
ODD = ["--", sys.executable, str(Path(__file__).with_name("odd_server.py"))]
KEYS = ["server", "protocolVersion", "capabilities", "instructions"]
LISTS = ["tools", "resources", "resourceTemplates", "prompts"]


def lines_of_page(invoke, *arguments):
    shown = invoke("inspect", *arguments)
    assert shown.exit_code == 0, shown.output
    return shown.stdout.splitlines()


def test_the_page_begins_with_the_server(invoke):
    lines = lines_of_page(invoke, "mcp_trio.examples.weather")
    assert lines[:2] == ["weather 1.0", "protocol version 2026-07-28"]
    assert lines[2].startswith("capabilities: logging, prompts (listChanged), resources (subscribe")
    assert "  Ask for a forecast before you advise." in lines


def test_each_tool_has_a_table_of_its_arguments(invoke):
    lines = lines_of_page(invoke, SOME)
    begin = lines.index("echo")
    assert lines[begin : begin + 13] == [
        "echo",
        "  Give back what came.",
        "",
        "  Not the first line.",
        "  argument  type                    required  default",
        '  text      string                  no        ""',
        "  count     integer                 no        1",
        "  ratio     number | null           no        null",
        "  point     object | null           no        null",
        "  point.x   integer                 yes",
        "  point.y   integer                 no        0",
        "  words     array of string | null  no        null",
        '  level     "low" | "high"          no        "low"',
    ]
    assert "  steps     integer, >= 1  no        100" in lines


def test_the_members_of_a_result_are_listed(invoke):
    lines = lines_of_page(invoke, "mcp_trio.examples.weather")
    begin = lines.index("  result      type             required")
    assert [line.split()[0] for line in lines[begin + 1 : begin + 5]] == [
        *("array", "[].day", "[].celsius", "[].sky")
    ]


def test_resources_templates_and_prompts_have_their_descriptions(invoke):
    lines = lines_of_page(invoke, SOME)
    assert lines[lines.index("some://text") :][:3] == [
        *("some://text", "  text, text/plain", "  A text.")
    ]
    assert "some://{name}/now" in lines
    assert lines[lines.index("greet") :] == [
        "greet",
        "  Greet somebody.",
        "  argument  required",
        "  name      yes",
        "  tone      no",
    ]


DESCRIBED = """
from mcp_trio import Server
from mcp_trio.types import ToolAnnotations

server = Server("described", version="1", title="A title", description="It describes\\x1b[2J.")

@server.tool(
    title="Delete",
    description="word " * 40,
    annotations=ToolAnnotations(destructive_hint=True, read_only_hint=False),
    meta={"example.com/unit": "m"},
)
def delete(path: str) -> None: ...
"""


def test_annotations_and_long_texts_are_shown_and_escapes_are_not_sent(invoke, tmp_path):
    (tmp_path / "described.py").write_text(DESCRIBED)
    lines = lines_of_page(invoke, tmp_path / "described.py")
    assert lines[1:3] == ["A title", "It describes\\x1b[2J."]
    assert "  annotations: readOnlyHint: false, destructiveHint: true" in lines
    assert '  _meta: example.com/unit: "m"' in lines
    words = [line for line in lines if line.startswith("  word")]
    assert sum(line.count("word") for line in words) == 40
    assert max(map(len, lines)) <= 100


def test_the_json_has_the_same_keys_for_every_server(invoke):
    some = json.loads(invoke("inspect", SOME, "--json").stdout)
    odd = json.loads(invoke("inspect", "--json", *ODD).stdout)
    assert list(some) == list(odd) == [*KEYS, *LISTS]
    assert some["server"] == {"name": "some", "version": "1"}
    assert [tool["name"] for tool in some["tools"]][:2] == ["echo", "mixed"]
    assert some["instructions"] is None


def test_the_items_in_the_json_are_as_the_server_sent_them(invoke):
    shown = json.loads(invoke("inspect", "--json", *ODD).stdout)
    assert shown["tools"][0] == {"name": "one", "title": "The One", "inputSchema": {}}
    assert (shown["resources"], shown["resourceTemplates"], shown["prompts"]) == ([], [], [])


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "any"),
        (True, "any"),
        ({"type": "integer", "minimum": 1, "maximum": 7}, "integer, >= 1, <= 7"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"type": "string", "format": "date"}, "string, date"),
        ({"enum": ["a", 1, None]}, '"a" | 1 | null'),
        ({"const": "a"}, '"a"'),
        ({"type": "array", "items": {"$ref": "#/$defs/Day"}}, "array of integer"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "null"}]}, "string | null"),
        ({"$ref": "#/$defs/Loop"}, "any"),
    ],
)
def test_types_are_written_in_words(schema, text):
    root = {"$defs": {"Day": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}}
    assert type_text(schema, root, schema_budget()) == text


def test_a_schema_that_contains_itself_ends():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    rows = list(argument_rows({**node, "$defs": {"Node": node}}, schema_budget()))
    assert [row[0] for row in rows] == ["next", "next.next"]


def test_a_schema_that_contains_itself_in_many_places_is_listed_once():
    names = ["not", "if", "then", "else", "items", "contains", "propertyNames"]
    members = {name: {"$ref": "#/$defs/Schema"} for name in names}
    members["allOf"] = {"type": "array", "items": {"$ref": "#/$defs/Schema"}}
    schema = {"type": "object", "properties": members}
    root = {"properties": {"a": schema}, "$defs": {"Schema": schema}}
    rows = argument_rows(root, schema_budget())
    assert sum(1 for _ in rows) == 1 + len(members) * (1 + len(members))


# There are more than 10 ** 10 ways of seven references.
NAMES = [f"T{number}" for number in range(30)]
REFERENCES = [{"$ref": f"#/$defs/{name}"} for name in NAMES]


@pytest.mark.parametrize(
    "each",
    [
        {"anyOf": REFERENCES},
        {"type": "array", "items": {"oneOf": REFERENCES}},
        {"type": "object", "properties": dict(zip(NAMES, REFERENCES, strict=True))},
    ],
)
def test_schemas_that_refer_to_each_other_are_shown_in_part(invoke, tmp_path, each):
    schema = {"type": "object", "properties": {"a": REFERENCES[0], "b": {"type": "string"}}}
    schema["$defs"] = dict.fromkeys(NAMES, each)
    (tmp_path / "tangled.py").write_text(
        "from mcp_trio import Server\n"
        "server = Server('tangled', version='1')\n"
        f"@server.tool(input_schema={schema})\n"
        "def tool(arguments): ...\n"
    )
    lines = lines_of_page(invoke, tmp_path / "tangled.py")
    assert any(line.startswith("  b ") for line in lines)
    assert lines[-1] == "  the schemas are too large to be shown completely: see --json"
    assert "[b=string]" in invoke("list", tmp_path / "tangled.py").stdout


def test_a_description_beside_a_reference_counts():
    schema = {
        "properties": {"day": {"$ref": "#/$defs/Day", "description": "near"}},
        "$defs": {"Day": {"type": "integer", "description": "far", "default": 3}},
    }
    assert list(argument_rows(schema, schema_budget())) == [("day", "integer", "no", "3", "near")]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "items", "anyOf", "enum", "required", "$ref", "default"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["properties", "required", "$defs"]), JSON_VALUES))
def test_any_schema_can_be_shown(schema):
    for row in argument_rows(schema, schema_budget()):
        assert all(isinstance(cell, str) for cell in row)
