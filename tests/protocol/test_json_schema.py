"""Validation by JSON Schema."""

import enum
import functools
import operator
import socket
import time
import types

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
        ({"items": {}, "prefixItems": 3}, "at prefixItems: 3 is not of type 'array'"),
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
def test_the_depth_of_a_schema_may_be_greater_than_that_of_the_stack():
    deep = Limits(messages=MessageLimits(schema_depth_max=20_000, schema_steps_max=10**6))
    limits = Limits(messages=MessageLimits(schema_depth_max=9_000, schema_steps_max=10**6))
    with pytest.raises(SchemaError, match=r"limits\.messages\.schema_depth_max=9000"):
        SchemaValidator(nested(10_000), limits=limits)
    assert SchemaValidator(nested(4_000), limits=deep).check(1) == ["value: nested too deeply"]


def doubling(times):
    """A small schema that asks for 2 ** times looks at the value."""
    definitions = {
        f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(times)
    }
    definitions[f"d{times}"] = {"type": "string"}
    return {"$schema": DRAFT_2020, "$defs": definitions, "$ref": "#/$defs/d0"}


@pytest.mark.requirement("JSCH-09")
def test_the_work_for_one_value_is_bounded():
    limits = Limits(messages=MessageLimits(schema_steps_max=2000))
    schema = SchemaValidator(doubling(12), limits=limits)
    for _ in range(2):
        assert schema.check("x") == [
            "value: takes too long to check (limits.messages.schema_steps_max=2000)"
        ]
    assert SchemaValidator(doubling(3), limits=limits).check("x") == []


@pytest.mark.requirement("JSCH-09")
def test_the_work_of_reading_a_schema_is_bounded():
    limits = Limits(messages=MessageLimits(schema_steps_max=200))
    SchemaValidator({"enum": [1] * 20}, limits=limits)
    for schema in ({"enum": [1] * 200}, doubling(12), {"pattern": "a{100}"}):
        with pytest.raises(
            SchemaError,
            match=r"schema takes too long to read \(limits\.messages\.schema_steps_max=200\)",
        ):
            SchemaValidator(schema, limits=limits)


@pytest.mark.requirement("JSCH-09")
def test_a_value_nested_too_deeply_is_an_error():
    deep = {}
    for _ in range(800):
        deep = {"a": deep}
    schema = SchemaValidator({"properties": {"a": {"$ref": "#"}}}, name="structuredContent")
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


# Schemas and values that an attacker chose: each took more than a second, or raised another error.

SECONDS_MAX = 1.0


def doubling_paths(keyword, levels):
    """A schema whose evaluation doubles at each level."""
    wrap = {
        "unevaluatedProperties": lambda it: {
            "anyOf": [it, {"properties": {"a": {}}}],
            "unevaluatedProperties": {},
        },
        "anyOf": lambda it: {"anyOf": [{"properties": {"a": it}, "type": "array"}] * 2},
    }[keyword]
    return functools.reduce(lambda it, _: wrap(it), range(levels), {})


COSTLY = {
    "a pattern with nested repetitions": ({"pattern": "^(a+)+$"}, "a" * 100 + "b"),
    "a pattern with many states": ({"pattern": "[01]*1[01]{1000}x"}, "0110100110010110" * 20_000),
    "many patterns": (
        {"patternProperties": {f"[01]*1[01]{{{it}}}x": {} for it in range(30)}},
        {f"{it:0100b}": it for it in range(1000)},
    ),
    "different objects": ({"uniqueItems": True}, [{"a": it} for it in range(6000)]),
    "different numbers": ({"uniqueItems": True}, list(range(13_000))),
    "integers of one hash": (
        {"uniqueItems": True},
        [(2**61 - 1) * it for it in range(10**6, 10**6 + 8000)],
    ),
    "uniqueItems often": (
        {"allOf": [{"uniqueItems": True, "title": str(it)} for it in range(1000)]},
        [[it] for it in range(6000)],
    ),
    "unevaluatedProperties often": (
        {"allOf": [{"unevaluatedProperties": {"type": "integer"}} for _ in range(1000)]},
        {str(it): it for it in range(1000)},
    ),
    "unevaluatedProperties within themselves": (
        doubling_paths("unevaluatedProperties", 24),
        {str(it): it for it in range(10)},
    ),
    "references that double": (doubling(30), "x"),
    "references that double, for an invalid value": (doubling(30), 3),
    "a reference to itself": ({"$ref": "#"}, 3),
    "a recursion with two branches": (
        {"anyOf": [{"properties": {"a": {"$ref": "#"}}, "type": "array"} for _ in range(2)]},
        functools.reduce(lambda it, _: {"a": it}, range(100), {}),
    ),
    "a large enumeration for many items": (
        {"items": {"enum": list(range(9000))}},
        list(range(10_000, 20_000)),
    ),
    "a large constant for many items": (
        {"items": {"anyOf": [{"const": ["x" * it]} for it in range(1000)]}},
        [["y" * 1000]] * 1000,
    ),
    "large integers": ({"items": {"multipleOf": 7**1500}}, [10**4000] * 10_000),
    "small divisors": ({"items": {"multipleOf": 1e-300}}, [1e300] * 100_000),
    "many errors with a large value": (
        {"allOf": [{"type": "string"} for _ in range(2000)]},
        ["x" * 1000] * 2000,
    ),
    "many errors, deep inside": (
        {"additionalProperties": {"$ref": "#"}, "items": {"type": "string"}},
        functools.reduce(lambda it, _: {"a" * 50: it}, range(100), list(range(2000))),
    ),
    "many missing members": (
        {"items": {"required": [str(it) for it in range(10_000)]}},
        [{}] * 10_000,
    ),
}


@pytest.mark.requirement("JSCH-09")
@pytest.mark.parametrize("name", COSTLY)
def test_the_check_of_a_costly_value_is_bounded(name):
    schema, value = COSTLY[name]
    validator = SchemaValidator(schema)
    begin = time.process_time()
    lines = validator.check(value)
    assert time.process_time() - begin < SECONDS_MAX
    assert len(lines) <= MessageLimits().validation_errors_max + 1
    assert all(len(line) <= MessageLimits().validation_error_chars_max for line in lines)


@pytest.mark.requirement("JSCH-09")
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$defs": {str(it): {"$ref": f"#/$defs/{it}"} for it in range(9000)}}, "too long to read"),
        ({"$defs": {str(it): {"$id": f"a{it}"} for it in range(9000)}}, "too long to read"),
        ({"enum": list(range(1_000_000))}, "too long to read"),
        ({"required": [str(it) for it in range(1_000_000)]}, "too long to read"),
        ({"patternProperties": {f"^{it}": {} for it in range(5000)}}, "too long to read"),
        ({"pattern": "((a{100}){100}){100}"}, "at pattern: .* not a regular expression"),
        ({"pattern": "[^a]{1000}" * 10}, "at pattern: .* not a regular expression"),
        ({"$ref": "#/" + "a/" * 10_000}, r"longer than limits\.messages\.uri_chars_max=4096"),
    ],
)
def test_the_reading_of_a_costly_schema_is_bounded(schema, text):
    begin = time.process_time()
    with pytest.raises(SchemaError, match=text):
        SchemaValidator(schema)
    assert time.process_time() - begin < SECONDS_MAX


@pytest.mark.requirement("JSCH-05", "JSCH-06")
@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"$id": "http://[::1"}, r"at \$id: 'http://\[::1' is not a URI: Invalid IPv6 URL"),
        ({"$ref": "http://[::1"}, r"at \$ref: 'http://\[::1' is not a URI"),
        ({"$ref": "#/minimum/0", "minimum": 3}, "'#/minimum/0' leads nowhere in the schema"),
        ({"$ref": "#/x/9999999999", "x": []}, "leads nowhere in the schema"),
        ({"$dynamicRef": "#/x"}, "'#/x' leads nowhere in the schema"),
        ({"$ref": 3}, r"at \$ref: 3 is not of type 'string'"),
        ({"$anchor": 3}, r"at \$anchor: 3 is not of type 'string'"),
        ({"$id": []}, r"at \$id: \[\] is not of type 'string'"),
        ({"minLength": float("inf")}, "at minLength: inf is not an integer of at least 0"),
        ({"minLength": -1}, "at minLength: -1 is not an integer of at least 0"),
        ({"minimum": "3"}, "at minimum: '3' is not of type 'number'"),
        ({"multipleOf": 0}, "at multipleOf: 0 is not a number above 0"),
        ({"type": []}, r"at type: \[\] is not a list of different types"),
        ({"type": [["string"]]}, r"at type: \['string'\] is not valid"),
        ({"allOf": []}, r"at allOf: \[\] should be non-empty"),
        ({"anyOf": [3]}, r"at anyOf\[0\]: 3 is not of type 'object', 'boolean'"),
        ({"required": [3]}, "at required: 3 is not of type 'string'"),
        ({"properties": []}, r"at properties: \[\] is not of type 'object'"),
        ({"title": 3}, "at title: 3 is not of type 'string'"),
        ({"uniqueItems": 1}, "at uniqueItems: 1 is not of type 'boolean'"),
        ({"examples": 1}, "at examples: 1 is not of type 'array'"),
        ({"const": {1, 2}}, "a value of class set is not JSON"),
        ({"properties": {1: {}}}, "the key 1 is not a string"),
        ({"const": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_an_unusable_schema_is_rejected_with_a_documented_error(schema, text):
    with pytest.raises(SchemaError, match=text):
        SchemaValidator(schema)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?=a)b", "invalid perl operator"),
        ("(?<!a)b", "invalid"),
        (r"(a)\1", "invalid escape sequence"),
        ("a{1001}", "invalid repetition size"),
        ("(", "missing"),
    ],
)
@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
def test_a_pattern_that_cannot_be_searched_in_linear_time_is_rejected(keyword, pattern, reason):
    value = pattern if keyword == "pattern" else {pattern: {}}
    text = (
        r"not a regular expression that can be searched in linear time, without look-around and"
        rf" back references: {reason}"
    )
    with pytest.raises(SchemaError, match=text):
        SchemaValidator({"items": {keyword: value}})


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"^\d+$", "12", "\u0661"),
        ("a$", "a", "a\n"),
        (r"^\u00e9\u{1F600}$", "\u00e9\U0001f600", "e"),
        (r"^\cA$", "\x01", "A"),
        (r"^(?<year>\d{4})\/\-$", "2026/-", "2026"),
        (r"^\p{Greek}$", "\u03b1", "a"),
        ("^.{2}$", "\U0001f600\U0001f600", "\U0001f600"),
    ],
)
def test_patterns_are_those_of_json_schema(pattern, matching, other):
    assert accepts({"pattern": pattern}, matching)
    assert not accepts({"pattern": pattern}, other)


@pytest.mark.parametrize(
    ("multiple", "valid", "invalid"),
    [
        (0.1, [1.1, 3, 0.3], [0.15]),
        (10**400, [0, 10**401], [3, 1e300]),
        (1e-8, [12391239123], []),
        (2, [4.0, 2**1000], [3, 2.5]),
        (0.5, [10**400], [0.25]),
    ],
)
def test_multiples_are_exact(multiple, valid, invalid):
    for number in valid:
        assert accepts({"multipleOf": multiple}, number)
    for number in invalid:
        assert not accepts({"multipleOf": multiple}, number)


@pytest.mark.parametrize(
    ("one", "other", "is_equal"),
    [
        (1, 1.0, True),
        (1e20, 10**20, True),
        (-0.0, 0, True),
        ({"a": 1, "b": [2.0]}, {"b": [2], "a": 1.0}, True),
        (1, True, False),
        (0, False, False),
        ("1", 1, False),
        ("1.0", "1", False),
        ([1], [1, 1], False),
        (2**64, float(2**64), True),
        (2**64, 2**64 + 1, False),
        (None, 0, False),
    ],
)
def test_equality_is_that_of_json(one, other, is_equal):
    assert accepts({"const": one}, other) is is_equal
    assert accepts({"enum": [one]}, other) is is_equal
    assert accepts({"uniqueItems": True}, [one, other]) is not is_equal


def test_instances_of_subclasses_are_plain_values():
    class Kind(enum.Enum):
        HIGH = "high"

    class Level(int, enum.Enum):
        HIGH = 3

    class Name(enum.StrEnum):
        HIGH = "high"

    schema = types.MappingProxyType({"enum": (Level.HIGH, Name.HIGH)})
    assert accepts(schema, 3)
    assert SchemaValidator(schema).check(4) == ["value: 4 is not one of [3, 'high']"]
    with pytest.raises(SchemaError, match="a value of class Kind is not JSON"):
        SchemaValidator({"const": Kind.HIGH})


# Any schema, any value.

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text("ab", max_size=3)
)
NAMES = st.sampled_from(["a", "b", "ab", "$ref", "$id", "x"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(["null", "boolean", "object", "array", "number", "integer", "string"])
REFERENCES = st.sampled_from(["#", "#/$defs/a", "#/$defs/b", "#a", "#/properties/a", "a", "#/not"])


def schemas(inner):
    """Schemas with valid keywords."""
    keywords = {
        "type": KINDS | st.lists(KINDS, min_size=1, max_size=2, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum"), st.integers(-3, 3)),
        "multipleOf": st.integers(1, 4),
        **dict.fromkeys(
            ("minLength", "maxLength", "minItems", "maxItems", "maxProperties", "minContains"),
            st.integers(0, 3),
        ),
        "pattern": st.sampled_from(["^a", "b$", "a{2}"]),
        "uniqueItems": st.booleans(),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "format": st.just("email"),
        "$ref": REFERENCES,
        **dict.fromkeys(
            ("properties", "dependentSchemas"), st.dictionaries(NAMES, inner, max_size=3)
        ),
        "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=2),
        "$defs": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
        **dict.fromkeys(
            ("allOf", "anyOf", "oneOf", "prefixItems"), st.lists(inner, min_size=1, max_size=3)
        ),
        **dict.fromkeys(
            (
                *("additionalProperties", "propertyNames", "items", "contains", "not", "if"),
                *("then", "else", "unevaluatedProperties", "unevaluatedItems"),
            ),
            inner,
        ),
        "dependentRequired": st.dictionaries(
            NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2
        ),
    }
    pairs = st.sampled_from(sorted(keywords)).flatmap(
        lambda name: st.tuples(st.just(name), keywords[name])
    )
    return st.lists(pairs, max_size=4).map(dict)


VALID_SCHEMAS = st.recursive(st.booleans() | schemas(st.booleans()), schemas, max_leaves=8).filter(
    lambda schema: isinstance(schema, dict)
)
ANY_SCHEMAS = st.dictionaries(
    st.sampled_from(
        sorted(functools.reduce(operator.or_, (it.keywords for it in DIALECTS.values())))
    ),
    VALUES,
    max_size=5,
)


@given(VALID_SCHEMAS, VALUES)
def test_the_result_is_that_of_a_library(schema, value):
    try:
        validator = SchemaValidator(schema)
    except SchemaError as error:
        assert "leads" in str(error)  # noqa: PT017 - most generated references lead somewhere
        return
    lines = validator.check(value)
    assume(lines != ["value: nested too deeply"])
    assert (lines == []) == jsonschema.Draft202012Validator(schema).is_valid(value)


STRING = {"type": "string"}
# A schema for each keyword whose meaning depends on the dialect, or on other keywords.
ARRAYS = ([], [1], ["a"], ["a", 1], ["a", "b", 1], [1, 1.0], [True, 1], [{"a": 1}, {"a": 1.0}])
LARGE = ([2**70, 2.0**70], [1e300, [2**70]], [2**70, 2**70 + 1])
OBJECTS = ({}, {"a": 1}, {"a": "x"}, {"a": 1, "b": 2}, {"c": 1, "d": 2}, {"abc": 1, "b": "x"})
NUMBERS = (1, 2, 3, 3.0, 4.5, True, "x")
BY_DIALECT = [
    ({"contains": STRING}, ARRAYS),
    ({"contains": STRING, "minContains": 2}, ARRAYS),
    ({"contains": STRING, "minContains": 0, "maxContains": 1}, ARRAYS),
    ({"items": [STRING], "additionalItems": {"type": "integer"}}, ARRAYS),
    ({"items": [STRING], "additionalItems": False}, ARRAYS),
    ({"items": STRING, "additionalItems": False}, ARRAYS),
    ({"items": [STRING], "unevaluatedItems": False}, ARRAYS),
    ({"uniqueItems": True}, (*ARRAYS, *LARGE)),
    ({"uniqueItems": False}, ARRAYS),
    ({"enum": [[1, 1.0], {"a": 1.0}, 2**70]}, (*ARRAYS, *OBJECTS, 2**70)),
    ({"minimum": 3, "exclusiveMinimum": True}, NUMBERS),
    ({"maximum": 3, "exclusiveMaximum": False}, NUMBERS),
    ({"exclusiveMinimum": 3}, NUMBERS),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, NUMBERS),
    ({"if": {"minimum": 2}, "then": {"type": "integer"}, "else": {"maximum": 1}}, NUMBERS),
    ({"patternProperties": {"^a": STRING}, "additionalProperties": False}, OBJECTS),
    ({"patternProperties": {"^a": {}}, "unevaluatedProperties": False}, OBJECTS),
    ({"properties": {"a": {}}, "unevaluatedProperties": {"type": "integer"}}, OBJECTS),
    ({"propertyNames": {"maxLength": 2}}, OBJECTS),
    ({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, OBJECTS),
    ({"dependentRequired": {"a": ["b"]}}, OBJECTS),
    (
        {"dependentSchemas": {"a": {"properties": {"b": {}}}}, "unevaluatedProperties": False},
        OBJECTS,
    ),
    ({"definitions": {"x": {"id": "#x", **STRING}}, "allOf": [{"$ref": "#x"}]}, NUMBERS),
    ({"$recursiveAnchor": True, "properties": {"a": {"$recursiveRef": "#"}}}, OBJECTS),
    ({"not": {"$ref": "#/definitions/x"}, "definitions": {"x": STRING}}, NUMBERS),
]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(("keywords", "values"), BY_DIALECT)
def test_the_keywords_of_each_dialect_have_the_meaning_that_a_library_gives_them(
    dialect, keywords, values
):
    schema = {"$schema": dialect, **keywords}
    library = jsonschema.validators.validator_for(schema)
    try:
        validator = SchemaValidator(schema)
    except SchemaError:  # a form that only other dialects have
        with pytest.raises(Exception, match=r"is not|PointerToNowhere|NoSuchAnchor"):
            library.check_schema(schema) or library(schema).is_valid(values[0])
        return
    for value in (*values, "of another type"):
        assert (validator.check(value) == []) == library(schema).is_valid(value), value


@given(
    st.dictionaries(st.text(max_size=3), VALUES) | ANY_SCHEMAS, st.sampled_from([*DIALECTS]), VALUES
)
def test_any_schema_and_value_give_a_result_or_a_documented_error(schema, dialect, value):
    begin = time.process_time()
    try:
        lines = SchemaValidator({**schema, "$schema": dialect}).check(value)
    except SchemaError:
        lines = []
    assert all(isinstance(line, str) for line in lines)
    assert time.process_time() - begin < SECONDS_MAX
