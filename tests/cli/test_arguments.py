"""What a person types becomes what a tool's schema wants."""

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._cli.call import (
    parse_arguments,
    prompt_arguments,
    schema_types,
    tool_arguments,
    typed_names,
)

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "flag": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "choice": {"enum": ["a", 1]},
        "one": {"const": 7},
        "point": {"$ref": "#/$defs/Point"},
        "words": {"oneOf": [{"type": "array"}]},
        "any": {},
        "loop": {"$ref": "#/$defs/Loop"},
        "odd": {"type": 5, "enum": "x", "anyOf": {}},
        "lost": {"$ref": "https://example.com/schema"},
        "true": True,
    },
    "required": ["text", "count"],
    "$defs": {"Point": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}},
}


def typed(*words):
    return tool_arguments(parse_arguments(words), SCHEMA)


def rejection(call, *arguments):
    with pytest.raises(click.UsageError) as caught:
        call(*arguments)
    assert "\n" not in caught.value.message
    return caught.value.message


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=5", "5"),
        ("text=null", "null"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ('text:="5"', "5"),
        ("text:=5", 5),
        ("count=5", 5),
        ("ratio=5", 5),
        ("ratio=0.5", 0.5),
        ("flag=true", True),
        ("maybe=null", None),
        ("either=5", "5"),
        ("either:=5", 5),
        ("choice=1", "1"),
        ("one=7", 7),
        ('point={"x":1}', {"x": 1}),
        ("words=[1]", [1]),
        ("any=5", 5),
        ("any=a b", "a b"),
        ("loop=[]", []),
        ("odd=x", "x"),
        ("lost=1", 1),
        ("true=1", 1),
        ("unknown=1", 1),
        ("unknown=one", "one"),
    ],
)
def test_a_value_is_what_the_schema_wants(word, value):
    (found,) = typed(word).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("count=x", "count: the tool expects integer, not 'x'"),
        ("count=1.5", "count: the tool expects integer, not '1.5'"),
        ("maybe=x", "maybe: the tool expects integer or null, not 'x'"),
        ("flag=1", "flag: the tool expects boolean, not '1'"),
        ("count:=x", "count: not JSON: "),
    ],
)
def test_a_value_that_the_schema_does_not_want_is_rejected_in_one_line(word, text):
    assert rejection(typed, word).startswith(text)


@pytest.mark.parametrize("word", ["city", "=Oslo", ":=1", ""])
def test_a_word_that_is_no_argument_is_rejected(word):
    assert rejection(parse_arguments, [word]).startswith(
        f"{word!r} is not an argument: write key=value"
    )


def test_a_name_that_is_given_twice_is_rejected():
    assert (
        rejection(parse_arguments, ["a=1", "b=2", "a:=1"])
        == "a: given twice; write a list as a:='[...]'"
    )


def test_a_single_object_is_all_arguments():
    assert parse_arguments(['{"a": {"b": 1}}']) == {"a": {"b": 1}}
    assert parse_arguments([]) == []


def test_an_object_among_others_is_no_argument():
    assert "is not an argument" in rejection(parse_arguments, ["a=1", "{}"])


def test_a_file_can_hold_all_arguments(tmp_path):
    path = tmp_path / "arguments.json"
    path.write_bytes(b'{"a": 1}\n')
    assert parse_arguments([f"@{path}"]) == {"a": 1}
    assert rejection(parse_arguments, [f"@{path}.not"]).endswith(
        "cannot be read: No such file or directory"
    )


def test_stdin_can_hold_all_arguments():
    @click.command()
    @click.argument("words", nargs=-1)
    def command(words):
        click.echo(parse_arguments(words)["a"])

    assert CliRunner().invoke(command, ["-"], input='{"a": "text"}').output == "text\n"


@pytest.mark.parametrize("text", ["{", "{}x", '{"a":1', "{" * 5000])
def test_what_is_no_object_is_rejected(text):
    assert rejection(parse_arguments, [text]).startswith("the arguments are not a JSON object: ")


def test_a_prompts_arguments_are_texts():
    assert prompt_arguments(parse_arguments(["a=1", 'b:="x"'])) == {"a": "1", "b": "x"}
    assert prompt_arguments({"a": "1"}) == {"a": "1"}
    assert rejection(prompt_arguments, {"a": 1}) == "a: the arguments of a prompt must be strings"
    assert rejection(prompt_arguments, parse_arguments(["a:=1"])).startswith("a: ")


def test_the_arguments_of_a_schema_are_named_as_they_are_typed():
    names = typed_names(SCHEMA)
    assert names.startswith("text=string count=integer [ratio=number] [flag=boolean]")
    assert "[maybe=integer|null]" in names
    assert "[any=any]" in names
    assert typed_names({}) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "enum", "const", "anyOf", "$ref", "properties", "required", "a"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON, JSON)
def test_no_schema_of_a_server_breaks_the_command_line(schema, root):
    root = root if isinstance(root, dict) else {"properties": root}
    assert all(isinstance(name, str) for name in schema_types(schema, root))
    assert isinstance(typed_names(root), str)
