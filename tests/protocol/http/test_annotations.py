"""Which arguments a tool wants mirrored, as its schema says."""

import pytest

from mcp_trio._protocol.http_headers import AnnotationError, parameter_paths


def tool(**properties):
    return {"type": "object", "properties": properties}


def mirrored(name="Region", kind="string", **more):
    return {"type": kind, "x-mcp-header": name, **more}


@pytest.mark.requirement("HDR-08", "HDR-13", "HDR-15", "TRAP-49")
def test_annotated_properties_are_found_at_any_depth_of_properties():
    schema = tool(
        region=mirrored("Region"),
        plain={"type": "string"},
        page=tool(limit=mirrored("Limit", "integer"), deeper=tool(x=mirrored("X-1"))),
        dry=mirrored("Dry", "boolean"),
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
def test_an_annotation_that_is_no_token_is_refused(name):
    with pytest.raises(AnnotationError, match=r"x-mcp-header of 'region' is no token"):
        parameter_paths(tool(region=mirrored(name)))


def test_any_token_will_do():
    names = ["!#$%&'*+-.^_`|~", "0", "a.B_c"]
    schema = tool(**{f"p{number}": mirrored(name) for number, name in enumerate(names)})
    assert list(parameter_paths(schema)) == names


@pytest.mark.requirement("HDR-12")
@pytest.mark.parametrize("other", ["Region", "region", "REGION"])
def test_two_annotations_that_are_the_same_in_any_case_are_refused(other):
    with pytest.raises(AnnotationError, match=f"{other!r} stands at two properties"):
        parameter_paths(tool(a=mirrored("Region"), b=tool(c=mirrored(other))))


@pytest.mark.requirement("HDR-13", "TRAP-49")
@pytest.mark.parametrize(
    "kind", ["number", "object", "array", "null", "text", ["string"], ["string", "null"], None]
)
def test_only_strings_integers_and_booleans_are_mirrored(kind):
    with pytest.raises(AnnotationError, match="'region' is no string, integer or boolean"):
        parameter_paths(tool(region=mirrored(kind=kind)))


def test_a_property_that_says_no_type_is_not_mirrored():
    with pytest.raises(AnnotationError, match="no string"):
        parameter_paths(tool(page=tool(region={"x-mcp-header": "Region", "$ref": "#/$defs/r"})))


@pytest.mark.requirement("HDR-15")
@pytest.mark.parametrize(
    "schema",
    [
        mirrored(),
        tool(a={"type": "array", "items": mirrored()}),
        tool(a={"type": "array", "items": [{}, mirrored()]}),
        tool(a={"type": "array", "prefixItems": [mirrored()]}),
        tool(a={"type": "array", "contains": tool(b=mirrored())}),
        tool(a={"anyOf": [mirrored(), {"type": "null"}]}),
        {"allOf": [tool(a=mirrored())]},
        {"oneOf": [tool(a=mirrored())]},
        {"not": tool(a=mirrored())},
        {"if": tool(a=mirrored())},
        {"then": tool(a=mirrored())},
        {"else": tool(a=mirrored())},
        {"$defs": {"a": mirrored()}},
        {"definitions": {"a": tool(b=mirrored())}},
        {"additionalProperties": mirrored()},
        {"patternProperties": {"^a": mirrored()}},
        {"dependentSchemas": {"a": tool(b=mirrored())}},
        {"dependencies": {"c": ["a"], "a": tool(b=mirrored())}},
        {"propertyNames": mirrored()},
        {"unevaluatedProperties": mirrored()},
        tool(a={"contentSchema": mirrored()}),
        tool(fine=mirrored("Fine"), a={"items": mirrored()}),
    ],
)
def test_an_annotation_that_properties_alone_do_not_lead_to_is_refused(schema):
    with pytest.raises(AnnotationError, match="no path of `properties` alone"):
        parameter_paths(schema)


def test_what_only_looks_like_an_annotation_is_none():
    looks = {"x-mcp-header": "a b"}
    schema = tool(
        **{"x-mcp-header": {"type": "string", "default": looks, "examples": [looks]}},
        a={"const": looks, "enum": [looks], "x-other": looks},
        properties=mirrored("P"),
    )
    assert parameter_paths(schema | {"$defs": {"x-mcp-header": {}}}) == {"P": ("properties",)}


def test_a_schema_of_odd_shape_has_no_annotations():
    assert parameter_paths({"properties": [], "$defs": 1, "items": None, "allOf": [1, None]}) == {}


def test_a_deep_schema_is_read():
    schema = mirrored()
    for _ in range(5000):
        schema = tool(a=schema)
    assert parameter_paths(schema) == {"Region": ("a",) * 5000}
