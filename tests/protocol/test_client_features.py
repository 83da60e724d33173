"""Elicitation forms, and tools in sampling."""

import pytest

from mcp_trio import types as s
from mcp_trio._protocol.client_features import (
    check_form,
    forbidden_tool_use,
    form_errors,
    unbalanced_tool_use,
    with_defaults,
)

# Elicitation forms.


def form(**members):
    return {"type": "object", "properties": members}


def mistake(member, value):
    """Return the error of a value of a form's only member, or None."""
    lines = form_errors({"it": value}, form(it=member))
    assert len(lines) <= 1
    return lines[0].removeprefix("it: ") if lines else None


TEXT = {"type": "string"}
NUMBER = {"type": "number"}
INTEGER = {"type": "integer"}
SWITCH = {"type": "boolean"}
COLOURS = {"type": "string", "enum": ["red", "blue"]}
TITLED = {"type": "string", "oneOf": [{"const": "r", "title": "Red"}, {"const": "b", "title": ""}]}
SOME = {"type": "array", "items": {"type": "string", "enum": ["red", "blue"]}}
SOME_TITLED = {"type": "array", "items": {"anyOf": [{"const": "r", "title": "Red"}]}}


@pytest.mark.requirement("ELIC-10", "ELIC-12", "ELIC-16", "ELIC-19", "ELIC-22", "ELIC-23")
@pytest.mark.parametrize(
    ("member", "value", "fault"),
    [
        (TEXT, "a", None),
        (TEXT, 1, "not a string"),
        ({**TEXT, "minLength": 2}, "a", "less than 2 characters"),
        ({**TEXT, "maxLength": 2}, "abc", "more than 2 characters"),
        ({**TEXT, "maxLength": 2}, "ab", None),
        (NUMBER, 1.5, None),
        (NUMBER, 1, None),
        (NUMBER, True, "not a number"),
        (NUMBER, "1", "not a number"),
        (NUMBER, float("nan"), "not a number"),
        pytest.param(NUMBER, 10**400, None, id="huge"),
        pytest.param({**INTEGER, "maximum": 2}, 10**400, "more than 2", id="too huge"),
        pytest.param({**INTEGER, "maximum": 10**400}, 3, None, id="huge maximum"),
        ({**NUMBER, "minimum": 2}, 1.5, "less than 2"),
        ({**NUMBER, "maximum": 2}, 2.5, "more than 2"),
        (INTEGER, 3, None),
        (INTEGER, 3.0, None),
        (INTEGER, 3.5, "not an integer"),
        (INTEGER, False, "not an integer"),
        (INTEGER, float("inf"), "not an integer"),
        ({**INTEGER, "maximum": 2}, 3, "more than 2"),
        (SWITCH, True, None),
        (SWITCH, 1, "not a boolean"),
        (COLOURS, "red", None),
        (COLOURS, "green", "none of the choices"),
        ({**COLOURS, "enumNames": ["Red", "Blue"]}, "Red", "none of the choices"),
        (TITLED, "r", None),
        (TITLED, "Red", "none of the choices"),
        (SOME, ["red", "blue"], None),
        (SOME, ["green"], "contains a value that is none of the choices"),
        (SOME, "red", "not a list of strings"),
        (SOME, [1], "not a list of strings"),
        ({**SOME, "minItems": 1}, [], "less than 1 items"),
        ({**SOME, "maxItems": 1}, ["red", "red"], "more than 1 items"),
        (SOME_TITLED, ["r"], None),
        (SOME_TITLED, ["Red"], "contains a value that is none of the choices"),
    ],
)
def test_each_invalid_value_of_a_form_is_reported_in_one_line(member, value, fault):
    assert mistake(member, value) == fault


@pytest.mark.requirement("ELIC-10", "ELIC-16")
@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("email", ["a@b", "a.b+c@d.e"], ["a", "a@", "a b@c", "a@b@c"]),
        ("uri", ["https://a.b/c", "mailto:a@b", "urn:x"], ["a", "https://a b", "//a", "http://["]),
        (
            "date",
            ["2024-02-29"],
            ["2024-13-01", "2024-1-1", "2023-02-29", "a", "2024-01-01T", "2024-W01-1"],
        ),
        (
            "date-time",
            ["2024-02-29T12:00:00Z", "2024-02-29T12:00:00.5+01:00", "2024-02-29t23:59:59z"],
            [
                *("2024-02-29", "2024-02-29T24:00:00Z", "2024-02-29T12:00Z", "now"),
                *("2023-02-29T12:00:00Z", "2024-02-29T12:00:00+99:00"),
            ],
        ),
        ("hostname", ["anything"], []),
    ],
)
def test_a_text_has_the_format_that_the_form_asks_for(name, good, bad):
    member = {"type": "string", "format": name}
    assert [value for value in good if mistake(member, value)] == []
    for value in bad:
        assert mistake(member, value) == f"not of the format {name}"


@pytest.mark.requirement("ELIC-16")
def test_a_required_member_that_is_missing_is_named():
    schema = {**form(name=TEXT, age=INTEGER), "required": ["name", "age"]}
    assert form_errors({"age": 3}, schema) == ["name: missing"]
    assert form_errors({}, schema) == ["name: missing", "age: missing"]


@pytest.mark.requirement("ELIC-18", "ELIC-19")
@pytest.mark.parametrize("member", [{}, {"anyOf": [TEXT, {"type": "null"}]}, {"type": "object"}, 7])
def test_unexpected_keywords_of_a_form_still_require_simple_values(member):
    for value in ("a", 1, 1.5, True, ["a"]):
        assert mistake(member, value) is None
    for value in ({}, None, [1], float("nan")):
        assert "neither a string" in mistake(member, value)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"properties": 7, "required": 7},
        {"required": [["it"], {}, 7]},
        form(it={"type": "string", "minLength": "a", "maxLength": None, "enum": 7, "oneOf": {}}),
        form(it={"type": "string", "format": 7}),
        form(it={"type": ["string"]}),
    ],
)
def test_nonsense_in_a_form_is_not_checked_and_does_no_harm(schema):
    assert form_errors({"it": "a"}, schema) == []
    assert with_defaults({"it": "a"}, schema) == {"it": "a"}


@pytest.mark.requirement("ELIC-13", "ELIC-14")
def test_defaults_replace_only_absent_values():
    schema = form(
        name={**TEXT, "default": "Ann"},
        age={**INTEGER, "default": 0},
        some={**SOME, "default": ["red"]},
        other=TEXT,
    )
    content = {"name": "Bob"}
    assert with_defaults(content, schema) == {"name": "Bob", "age": 0, "some": ["red"]}
    assert content == {"name": "Bob"}


@pytest.mark.requirement("ELIC-09", "ELIC-10", "ELIC-12")
@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({}, '"type": "object"'),
        ({"type": "object"}, '"properties"'),
        (
            form(it={"type": "object", "properties": {}}),
            "it: the type of a field must be one of .*, not 'object'",
        ),
        (form(it={}), "it: the type of a field must be one of .*, not None"),
        (
            form(it={"type": "string", "pattern": "a"}),
            "it: a field of type string in a form cannot have pattern",
        ),
        (
            form(it={"type": "boolean", "minimum": 1}),
            "it: a field of type boolean in a form cannot have minimum",
        ),
        (form(it={"type": "string", "format": "ipv4"}), "it: a form has no format 'ipv4'"),
        (form(it={"type": "array", "items": {"type": "string"}}), "it: a list in a form"),
        (form(it={"type": "array"}), "it: a list in a form"),
        ({"type": "object", "properties": ["it"]}, '"properties"'),
        ({**form(it=TEXT), "required": ["it", "that"]}, r"\"required\" .*'that'"),
        ({**form(it=TEXT), "required": "it"}, '"required"'),
        ({**form(it=TEXT), "required": [1]}, '"required"'),
        (form(it="string"), "it: the type of a field must be one of .*, not None"),
        (form(it={"type": ["string"]}), "it: the type of a field must be one of"),
        (form(it={"type": "string", "format": ["email"]}), "it: a form has no format"),
        (
            form(it={"type": "string", 1: 2, "a": 3}),
            "it: a field of type string in a form cannot have 1, a",
        ),
        (form(it={"type": "string", "enum": "ab"}), "it: the choices of a form must be texts"),
        (form(it={"type": "string", "enum": [1]}), "it: the choices of a form must be texts"),
        (form(it={"type": "string", "enumNames": None}), "it: the choices of a form must be texts"),
        (form(it={**TEXT, "oneOf": [{"const": "r"}]}), "it: a choice of oneOf.* a title"),
        (form(it={**TEXT, "oneOf": [{"const": 1, "title": "r"}]}), "it: a choice of oneOf"),
        (form(it={**TEXT, "oneOf": ["r"]}), "it: a choice of oneOf"),
        (form(it={**TEXT, "oneOf": {}}), "it: a choice of oneOf"),
        (form(it={"type": "array", "items": {"anyOf": [{"const": "r"}]}}), "it: a choice of oneOf"),
    ],
)
def test_a_schema_that_is_no_form_is_rejected_with_the_member_named(schema, fault):
    with pytest.raises(ValueError, match=fault):
        check_form(schema)


@pytest.mark.requirement("ELIC-09", "ELIC-10", "ELIC-12", "ELIC-13", "TRAP-91")
def test_every_form_of_the_specification_is_accepted():
    texts = {"title": "t", "description": "d"}
    check_form(
        form(
            text={**TEXT, **texts, "minLength": 1, "maxLength": 2, "format": "email"},
            number={**NUMBER, **texts, "minimum": 1, "maximum": 2, "default": 1.5},
            integer={**INTEGER, **texts, "default": 1},
            switch={**SWITCH, **texts, "default": True},
            named={**COLOURS, **texts, "enumNames": ["Red", "Blue"], "default": "red"},
            titled={**TITLED, **texts, "default": "r"},
            some={**SOME, **texts, "minItems": 1, "maxItems": 2, "default": ["red"]},
            some_titled=SOME_TITLED,
        )
    )


# Sampling with tools.

HUM = s.TextContent(text="hm")


def use(use_id, name="tide"):
    return s.ToolUseContent(id=use_id, name=name, input={})


def result(use_id):
    return s.ToolResultContent(tool_use_id=use_id, content=[HUM])


def user(*blocks):
    return s.SamplingMessage(role="user", content=[*blocks])


def model(*blocks):
    return s.SamplingMessage(role="assistant", content=[*blocks])


@pytest.mark.requirement("SAMP-18", "SAMP-19", "TRAP-86")
@pytest.mark.parametrize(
    "messages",
    [
        [],
        [user(HUM)],
        [s.SamplingMessage(role="user", content=HUM)],
        [
            user(HUM),
            model(use("a"), use("b"), HUM),
            user(result("b"), result("a")),
            model(HUM),
        ],
        [
            s.SamplingMessage(role="assistant", content=use("a")),
            s.SamplingMessage(role="user", content=result("a")),
            model(use("a")),
            user(result("a")),
        ],
    ],
)
def test_a_conversation_in_which_each_use_has_its_result_is_right(messages):
    assert unbalanced_tool_use(messages) is None


@pytest.mark.requirement("SAMP-18", "SAMP-19", "TRAP-86")
@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([model(use("a"))], "no result for the tool use 'a'"),
        (
            [model(use("a")), user(HUM), user(result("a"))],
            "no result for the tool use 'a'",
        ),
        ([model(use("a"), use("b")), user(result("a"))], "no result for the tool use 'b'"),
        (
            [model(use("a")), user(result("a"), HUM)],
            "must contain tool results only",
        ),
        ([user(result("a"))], "an unknown tool use 'a'"),
        ([model(use("a")), user(result("a"), result("b"))], "an unknown tool use 'b'"),
        ([model(use("a")), user(result("a")), user(result("a"))], "an unknown tool use 'a'"),
    ],
)
def test_a_conversation_in_which_uses_and_results_differ_is_wrong(messages, fault):
    assert fault in unbalanced_tool_use(messages)


def question(mode=None, *names):
    tools = [s.Tool(name=name, input_schema={"type": "object"}) for name in names]
    choice = None if mode is None else s.ToolChoice(mode=mode)
    return s.CreateMessageParams(messages=[], max_tokens=1, tools=tools or None, tool_choice=choice)


def reply(*blocks):
    return s.CreateMessageResult(role="assistant", content=[*blocks], model="m")


@pytest.mark.requirement("SAMP-21")
@pytest.mark.parametrize(
    ("params", "blocks", "fault"),
    [
        (question(), [HUM], None),
        (question(None, "tide"), [HUM], None),
        (question(None, "tide"), [use("a")], None),
        (question("auto", "tide"), [use("a"), HUM], None),
        (question("required", "tide"), [use("a")], None),
        (question("none", "tide"), [HUM], None),
        (question(), [use("a")], "it uses 'tide', which it was not given"),
        (question(None, "wind"), [use("a")], "it uses 'tide', which it was not given"),
        (question("none", "tide"), [use("a")], "it uses 'tide', which it was not given"),
        (question("required", "tide"), [HUM], "it had to use a tool"),
    ],
)
def test_a_model_must_use_only_its_tools_and_obey_the_tool_choice(params, blocks, fault):
    assert forbidden_tool_use(params, reply(*blocks)) == fault
