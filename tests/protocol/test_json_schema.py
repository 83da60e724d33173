"""Validation by JSON Schema."""

import socket

import pytest

from mcp_trio import Limits
from mcp_trio._protocol.json_schema import DIALECTS, SchemaValidator
from mcp_trio.errors import SchemaError
from mcp_trio.limits import MessageLimits

DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
TUPLE = {"prefixItems": [{"type": "string"}], "items": False}
OLD_TUPLE = {"items": [{"type": "string"}], "additionalItems": False}


def accepts(schema, value):
    return SchemaValidator(schema).check(value) == []


@pytest.mark.requirement("JSCH-01", "TRAP-79")
@pytest.mark.parametrize("named", [{}, {"$schema": DRAFT_2020}, {"$schema": DRAFT_2020 + "#"}])
def test_a_schema_that_names_no_dialect_is_of_2020_12(named):
    assert accepts(named | TUPLE, ["Oslo"])
    assert not accepts(named | TUPLE, ["Oslo", "Bergen"])
    assert accepts(named | {"additionalItems": False}, [1])


@pytest.mark.requirement("JSCH-02", "JSCH-03")
@pytest.mark.parametrize("named", [DRAFT_7, DRAFT_7.removesuffix("#")])
def test_a_schema_is_read_by_the_dialect_that_it_names(named):
    assert not accepts({"$schema": named} | OLD_TUPLE, ["Oslo", "Bergen"])
    assert accepts({"$schema": named} | TUPLE | {"items": True}, [1])


@pytest.mark.requirement("JSCH-04")
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_listed_dialect_is_supported(dialect):
    assert SchemaValidator({"$schema": dialect, "type": "string"}).check(3) == [
        "value: 3 is not of type 'string'"
    ]


@pytest.mark.requirement("JSCH-03")
@pytest.mark.parametrize("named", ["urn:mine", "http://json-schema.org/draft-03/schema#", 7, None])
def test_an_unknown_dialect_is_rejected_and_the_known_ones_are_named(named):
    with pytest.raises(
        SchemaError, match=r"unknown dialect .*: choose one of https://json-schema\.org"
    ):
        SchemaValidator({"$schema": named})


@pytest.mark.requirement("JSCH-03")
def test_a_part_of_another_dialect_is_rejected():
    part = {"$id": "urn:part", "$schema": DRAFT_7, "type": "string"}
    with pytest.raises(SchemaError, match="has another dialect than"):
        SchemaValidator({"properties": {"port": part}})
    assert accepts({"properties": {"port": part | {"$schema": DRAFT_2020}}}, {"port": "Oslo"})


@pytest.mark.requirement("JSCH-05")
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "strin"}, "at type: 'strin' is not valid"),
        ({"properties": {"port": {"pattern": "("}}}, r"at properties\.port\.pattern: '\('"),
        ({"required": "port"}, "at required: 'port' is not of type 'array'"),
        ({"$schema": DRAFT_7, "items": 3}, "at items: 3 is not"),
    ],
)
def test_an_invalid_schema_is_rejected_with_the_path(schema, text):
    with pytest.raises(SchemaError, match=f"invalid schema, {text}"):
        SchemaValidator(schema)


@pytest.mark.requirement("JSCH-06", "JSCH-08", "TRAP-79")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.org/port.json"},
        {"$dynamicRef": "https://example.org/port.json#it"},
        {"properties": {"port": {"$ref": "port.json"}}},
        {"$id": "https://example.org/", "anyOf": [{"type": "null"}, {"$ref": "port.json"}]},
        {"$ref": "#/$defs/port"},
        {"$ref": "#port"},
        {"$ref": "#/x/port", "x": {"port": {"$ref": "file:///etc/passwd"}}},
    ],
)
def test_a_reference_out_of_the_schema_is_rejected_and_never_fetched(schema, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)
    with pytest.raises(SchemaError, match="leads nowhere in the schema, and nothing is fetched"):
        SchemaValidator(schema)


@pytest.mark.requirement("JSCH-06")
def test_a_reference_inside_data_is_ignored():
    assert accepts(
        {"const": {"$ref": "urn:x", "$schema": "urn:x"}}, {"$ref": "urn:x", "$schema": "urn:x"}
    )


def test_a_reference_to_a_value_that_is_no_schema_is_rejected():
    with pytest.raises(SchemaError, match="leads to a value that is not a schema"):
        SchemaValidator({"$ref": "#/x", "x": [3]})


@pytest.mark.parametrize(
    "schema",
    [
        {"$defs": {"port": {"type": "string"}}, "$ref": "#/$defs/port"},
        {"$defs": {"port": {"$anchor": "port", "type": "string"}}, "$ref": "#port"},
        {"$defs": {"port": {"$dynamicAnchor": "it", "type": "string"}}, "$dynamicRef": "#it"},
        {"$id": "urn:a", "$defs": {"p": {"$id": "urn:p", "type": "string"}}, "$ref": "urn:p"},
        {"$schema": DRAFT_7, "definitions": {"p": {"type": "string"}}, "$ref": "#/definitions/p"},
        {"$ref": "#/x/0", "x": [{"type": "string"}]},
    ],
)
def test_references_inside_of_the_schema_are_followed(schema):
    assert accepts(schema, "Oslo")
    assert not accepts(schema, 3)


def test_the_published_schema_of_a_dialect_may_be_referred_to_and_stays_as_it_is():
    for _ in range(2):
        assert accepts({"$ref": DRAFT_2020}, {"$schema": DRAFT_2020, "type": "string"})
        assert not accepts({"$ref": DRAFT_2020}, {"type": "strin"})


def test_a_schema_may_hold_itself():
    tree = {
        "$schema": DRAFT_2020,
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}},
        "additionalProperties": False,
    }
    assert accepts(tree, {"left": {"left": {}}, "right": {}})
    assert SchemaValidator(tree).check({"left": {"right": {"up": 1}}}) == [
        "left.right: Additional properties are not allowed ('up' was unexpected)"
    ]


def test_the_given_schema_stays_as_it_was():
    given = {"$schema": DRAFT_2020, "$defs": {"a": {"$schema": DRAFT_2020}}}
    SchemaValidator(given).check(1)
    assert given == {"$schema": DRAFT_2020, "$defs": {"a": {"$schema": DRAFT_2020}}}


# Limits.


def nested(depth):
    schema = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.requirement("JSCH-09")
def test_a_schema_that_is_too_deep_or_too_large_is_rejected_by_name():
    small = Limits(messages=MessageLimits(schema_depth_max=3, schema_objects_max=4))
    SchemaValidator(nested(2), limits=small)
    with pytest.raises(SchemaError, match=r"limits\.messages\.schema_depth_max=3"):
        SchemaValidator(nested(3), limits=small)
    SchemaValidator({"enum": [[], []]}, limits=small)
    with pytest.raises(SchemaError, match=r"limits\.messages\.schema_objects_max=4"):
        SchemaValidator({"enum": [[], [], []]}, limits=small)


@pytest.mark.requirement("JSCH-09")
def test_a_schema_for_which_the_stack_is_too_short_is_rejected():
    with pytest.raises(SchemaError, match="nested too deeply"):
        SchemaValidator(nested(500), limits=Limits(messages=MessageLimits(schema_depth_max=1000)))


def doubling(times):
    """A small schema that asks for 2 ** times looks at the value."""
    definitions = {
        f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(times)
    }
    definitions[f"d{times}"] = {"type": "string"}
    return {"$schema": DRAFT_2020, "$defs": definitions, "$ref": "#/$defs/d0"}


@pytest.mark.requirement("JSCH-09")
def test_the_work_for_one_value_is_bounded():
    schema = SchemaValidator(
        doubling(12), limits=Limits(messages=MessageLimits(schema_steps_max=1000))
    )
    for _ in range(2):
        assert schema.check("x") == [
            "value: takes too long to check (limits.messages.schema_steps_max=1000)"
        ]
    assert (
        SchemaValidator(
            doubling(3), limits=Limits(messages=MessageLimits(schema_steps_max=1000))
        ).check("x")
        == []
    )


@pytest.mark.requirement("JSCH-09")
def test_a_value_nested_too_deeply_is_an_error():
    deep = {}
    for _ in range(800):
        deep = {"a": deep}
    schema = SchemaValidator({"properties": {"a": {"$ref": "#"}}}, of="structuredContent")
    assert schema.check(deep) == ["structuredContent: nested too deeply"]


@pytest.mark.requirement("JSCH-09")
def test_errors_are_limited_in_number_and_length():
    limits = Limits(
        messages=MessageLimits(
            validation_errors_max=1, validation_error_chars_max=9, validation_error_members_max=3
        )
    )
    schema = SchemaValidator({"items": {"type": "string"}}, limits=limits)
    assert schema.check([1, 2]) == ["[0]: 1 is", "and 1 more"]
    assert schema.check([1] * 9) == ["[0]: 1 is", "and at least 2 more"]
