"""Which arguments a tool wants mirrored, as its schema says."""

import pytest

from mcp_trio._protocol.http_headers import AnnotationError, parameter_paths


def tool(**properties):
    return {"type": "object", "properties": properties}


def param_headers(name="Region", kind="string", **more):
    return {"type": kind, "x-mcp-header": name, **more}


@pytest.mark.requirement("HDR-08", "HDR-13", "HDR-15", "TRAP-49")
def test_annotated_properties_are_found_at_any_depth_of_properties():
    schema = tool(
        region=param_headers("Region"),
        plain={"type": "string"},
        page=tool(limit=param_headers("Limit", "integer"), deeper=tool(x=param_headers("X-1"))),
        dry=param_headers("Dry", "boolean"),
        odd=True,
    )
    found = {
        "Region": ("region",),
        "Dry": ("dry",),
        "Limit": ("page", "limit"),
        "X-1": ("page", "deeper", "x"),
    }
    assert parameter_paths(schema) == found
    assert parameter_paths({"type": "object"}) == {}


@pytest.mark.requirement("HDR-10", "HDR-11")
@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a:b",
        "a\n",
        "a\tb",
        "\x00",
        "\x7f",
        "K\xf8b",
        "a/b",
        "a,b",
        '"a"',
        "(a)",
        None,
        1,
        pytest.param(10**5000, id="huge"),
        ["A"],
    ],
)
def test_an_annotation_that_is_no_token_is_rejected(name):
    with pytest.raises(AnnotationError, match=r"x-mcp-header of 'region' is not a token"):
        parameter_paths(tool(region=param_headers(name)))


def test_any_token_will_do():
    names = ["!#$%&'*+-.^_`|~", "0", "a.B_c"]
    schema = tool(**{f"p{number}": param_headers(name) for number, name in enumerate(names)})
    assert list(parameter_paths(schema)) == names


@pytest.mark.requirement("HDR-12")
@pytest.mark.parametrize("other", ["Region", "region", "REGION"])
def test_two_annotations_that_are_the_same_in_any_case_are_rejected(other):
    with pytest.raises(
        AnnotationError, match=f"two properties have the same x-mcp-header {other!r}"
    ):
        parameter_paths(tool(a=param_headers("Region"), b=tool(c=param_headers(other))))


@pytest.mark.requirement("HDR-13", "TRAP-49")
@pytest.mark.parametrize(
    "kind", ["number", "object", "array", "null", "text", ["string"], ["string", "null"], None]
)
def test_only_strings_integers_and_booleans_are_sent_in_headers(kind):
    with pytest.raises(AnnotationError, match="'region' must be a string, integer or boolean"):
        parameter_paths(tool(region=param_headers(kind=kind)))


def test_a_property_that_says_no_type_is_not_sent_in_a_header():
    with pytest.raises(AnnotationError, match="must be a string"):
        parameter_paths(tool(page=tool(region={"x-mcp-header": "Region", "$ref": "#/$defs/r"})))


@pytest.mark.requirement("HDR-15")
@pytest.mark.parametrize(
    "schema",
    [
        param_headers(),
        tool(a={"type": "array", "items": param_headers()}),
        tool(a={"type": "array", "items": [{}, param_headers()]}),
        tool(a={"type": "array", "prefixItems": [param_headers()]}),
        tool(a={"type": "array", "contains": tool(b=param_headers())}),
        tool(a={"anyOf": [param_headers(), {"type": "null"}]}),
        {"allOf": [tool(a=param_headers())]},
        {"oneOf": [tool(a=param_headers())]},
        {"not": tool(a=param_headers())},
        {"if": tool(a=param_headers())},
        {"then": tool(a=param_headers())},
        {"else": tool(a=param_headers())},
        {"$defs": {"a": param_headers()}},
        {"definitions": {"a": tool(b=param_headers())}},
        {"additionalProperties": param_headers()},
        {"patternProperties": {"^a": param_headers()}},
        {"dependentSchemas": {"a": tool(b=param_headers())}},
        {"dependencies": {"c": ["a"], "a": tool(b=param_headers())}},
        {"propertyNames": param_headers()},
        {"unevaluatedProperties": param_headers()},
        tool(a={"contentSchema": param_headers()}),
        tool(fine=param_headers("Fine"), a={"items": param_headers()}),
    ],
)
def test_an_annotation_that_properties_alone_do_not_lead_to_is_rejected(schema):
    with pytest.raises(AnnotationError, match="`properties` alone do not lead to"):
        parameter_paths(schema)


def test_what_only_looks_like_an_annotation_is_none():
    looks = {"x-mcp-header": "a b"}
    schema = tool(
        **{"x-mcp-header": {"type": "string", "default": looks, "examples": [looks]}},
        a={"const": looks, "enum": [looks], "x-other": looks},
        properties=param_headers("P"),
    )
    assert parameter_paths(schema | {"$defs": {"x-mcp-header": {}}}) == {"P": ("properties",)}


def test_a_schema_of_odd_shape_has_no_annotations():
    assert parameter_paths({"properties": [], "$defs": 1, "items": None, "allOf": [1, None]}) == {}


def test_a_deep_schema_is_read():
    schema = param_headers()
    for _ in range(5000):
        schema = tool(a=schema)
    assert parameter_paths(schema) == {"Region": ("a",) * 5000}
