"""Forms: from a type to a form, and from its content to a value of the type."""

import dataclasses
import datetime as dt
import decimal
import enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import annotated_types as at
import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.client_features import check_form
from mcp_trio._server.elicitation import FormError, form_of
from mcp_trio.errors import LocalProtocolError


class Size(enum.Enum):
    SMALL = "s"
    VERY_LARGE = "xl"


class Grade(enum.IntEnum):
    BEST = 1


SIZES = [{"const": "s", "title": "Small"}, {"const": "xl", "title": "Very large"}]


def member(hint):
    """What the form says of a value alone."""
    schema = form_of(hint).schema
    assert schema["required"] == ["value"]
    return schema["properties"]["value"]


def rejected(hint, content):
    """The mistakes in what was filled in."""
    with pytest.raises(FormError) as caught:
        form_of(hint).read(content)
    return caught.value.lines


# What a form says.


@pytest.mark.requirement("ELIC-09", "ELIC-10", "ELIC-12", "TRAP-91")
@pytest.mark.parametrize(
    ("hint", "said"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (decimal.Decimal, {"type": "string"}),
        (dt.date, {"type": "string", "format": "date"}),
        (dt.datetime, {"type": "string", "format": "date-time"}),
        (Annotated[str, at.Len(2, 5)], {"type": "string", "minLength": 2, "maxLength": 5}),
        (Annotated[int, at.Interval(ge=2, le=5)], {"type": "integer", "minimum": 2, "maximum": 5}),
        (Annotated[int, at.Interval(gt=2, lt=5)], {"type": "integer", "minimum": 3, "maximum": 4}),
        (Annotated[float, at.Interval(gt=2, le=5)], {"type": "number", "maximum": 5}),
        (
            Annotated[str, msgspec.Meta(title="T", description="D", pattern="a")],
            {"type": "string", "title": "T", "description": "D"},
        ),
        (
            Annotated[str, msgspec.Meta(extra_json_schema={"format": "email"})],
            {"type": "string", "format": "email"},
        ),
        (Literal["b", "a"], {"type": "string", "enum": ["b", "a"]}),
        (Size, {"type": "string", "oneOf": SIZES}),
        (
            Annotated[Size, msgspec.Meta(description="D")],
            {"type": "string", "description": "D", "oneOf": SIZES},
        ),
        (list[Size], {"type": "array", "items": {"anyOf": SIZES}}),
        (set[Literal["a"]], {"type": "array", "items": {"type": "string", "enum": ["a"]}}),
        (
            Annotated[tuple[Size, ...], at.Len(1, 2)],
            {"type": "array", "minItems": 1, "maxItems": 2, "items": {"anyOf": SIZES}},
        ),
    ],
)
def test_a_single_value_is_a_field_with_all_supported_keywords(hint, said):
    assert member(hint) == said
    check_form(form_of(hint).schema)


@pytest.mark.requirement("ELIC-09")
def test_one_literal_is_not_shown_in_the_order_of_another():
    assert member(Literal["a", "b"])["enum"] == ["a", "b"]
    assert member(Literal["b", "a"])["enum"] == ["b", "a"]


@pytest.mark.requirement("ELIC-09")
@pytest.mark.parametrize("kind", [None, type(None)])
def test_a_confirmation_is_a_form_without_members(kind):
    form = form_of(kind)
    assert form.schema == {"type": "object", "properties": {}}
    assert form.read({}) is None


class TripStruct(msgspec.Struct, rename="camel"):
    to_city: str
    days: Annotated[int, at.Ge(1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


@attrs.frozen
class TripAttrs:
    to_city: str
    days: Annotated[int, at.Ge(1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


@dataclasses.dataclass
class TripData:
    to_city: str
    days: Annotated[int, at.Ge(1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


class TripTuple(NamedTuple):
    to_city: str
    days: Annotated[int, at.Ge(1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


@pytest.mark.requirement("ELIC-09", "ELIC-13")
@pytest.mark.parametrize("kind", [TripStruct, TripAttrs, TripData, TripTuple])
def test_each_kind_of_class_is_a_form_with_its_fields_and_their_defaults(kind):
    city = "toCity" if kind is TripStruct else "to_city"
    form = form_of(kind)
    assert form.schema == {
        "type": "object",
        "properties": {
            city: {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "default": 1},
            "size": {"type": "string", "oneOf": SIZES, "default": "s"},
            "note": {"type": "string"},
        },
        "required": [city],
    }
    check_form(form.schema)
    assert form.read({city: "Oslo"}) == kind(to_city="Oslo")
    content = {city: "Oslo", "days": 3, "size": "xl", "note": "n", "unknown": 7}
    assert form.read(content) == kind(to_city="Oslo", days=3, size=Size.VERY_LARGE, note="n")
    assert form_of(kind) is form


class TripDict(TypedDict, total=False):
    to_city: str
    day: dt.date


def test_a_typed_dict_is_a_form_with_the_content_as_value():
    form = form_of(TripDict)
    assert "required" not in form.schema
    assert form.read({"day": "2024-02-29"}) == {"day": dt.date(2024, 2, 29)}


@attrs.frozen
class Maybe:
    day: dt.date | None
    size: Annotated[Size | None, msgspec.Meta(description="D")]
    many: list[Literal["a"]] | None = None
    some: set[Size] = attrs.field(factory=set)
    switch: bool = False


@pytest.mark.requirement("ELIC-09")
def test_an_optional_field_is_not_required_in_the_form():
    form = form_of(Maybe)
    assert "required" not in form.schema
    assert form.schema["properties"]["size"] == {
        "type": "string",
        "description": "D",
        "oneOf": SIZES,
    }
    assert form.read({}) == Maybe(None, None)
    assert form.read({"some": ["s"], "many": ["a"]}) == Maybe(None, None, ["a"], {Size.SMALL})
    assert form_of(int | None).read({}) is None
    assert form_of(int | None).read({"value": 3}) == 3


# What no form can say.


@attrs.frozen
class Inner:
    it: int


def one(hint: Any) -> type:
    return attrs.make_class("Outer", {"it": attrs.field(type=hint)})


@pytest.mark.requirement("ELIC-09")
@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (Inner, "a form is flat and cannot have a Inner"),
        (Inner | None, "a form is flat and cannot have a Inner"),
        (dict[str, int], "a form is flat"),
        (Any, "a form is flat"),
        (int | str, "a form is flat"),
        (None, "a form is flat"),
        (list[str], "a list in a form has to be a list of choices"),
        (list, "a list in a form has to be a list of choices"),
        (list[Inner], "a list in a form has to be a list of choices"),
        (tuple[Size, Size], "a list in a form has to be a list of choices"),
        (Literal["a", 1], "the choices of a form have to be strings"),
        (Grade, "the choices of a form have to be strings"),
        (list[Grade], "the choices of a form have to be strings"),
        (Annotated[int, at.Unit("m")], "Unit"),
        (complex, "complex"),
    ],
)
def test_a_type_that_is_not_flat_is_rejected_with_its_field_named(hint, why):
    with pytest.raises(TypeError, match=f"Outer, it: .*{why}"):
        form_of(one(hint))


@pytest.mark.requirement("ELIC-24", "ELIC-25", "ELIC-26")
@pytest.mark.parametrize("name", ["password", "apiKey", "github_token", "card_number", "cvv"])
def test_a_form_asks_for_no_secrets(name):
    with pytest.raises(LocalProtocolError, match=f"{name}: .* elicit_url"):
        form_of(attrs.make_class("Login", {name: attrs.field(type=str)}))
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    with pytest.raises(LocalProtocolError, match=f"{name}: .* elicit_url"):
        form_of(schema)


@pytest.mark.requirement("ELIC-25", "ELIC-26")
def test_a_form_has_no_hidden_text():
    hidden = msgspec.Meta(extra_json_schema={"format": "password"})
    with pytest.raises(LocalProtocolError, match=r"value: .* elicit_url"):
        form_of(Annotated[str, hidden])
    with pytest.raises(LocalProtocolError, match=r"word: .* elicit_url"):
        form_of(
            {"type": "object", "properties": {"word": {"type": "string", "format": "password"}}}
        )


@pytest.mark.requirement("ELIC-43")
@pytest.mark.parametrize("word", ["title", "description"])
def test_the_texts_of_a_form_must_not_contain_links(word):
    said = {word: "See HTTPS://example.org"}
    with pytest.raises(LocalProtocolError, match="must not contain links"):
        form_of(Annotated[str, msgspec.Meta(**said)])
    with pytest.raises(LocalProtocolError, match="must not contain links"):
        form_of({"type": "object", "properties": {"it": {"type": "string", **said}}})


# Schemas as they are.


@pytest.mark.requirement("ELIC-12", "TRAP-91")
def test_a_given_schema_is_the_form_and_its_value_the_content():
    schema = {
        "type": "object",
        "properties": {"it": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]}},
        "required": ["it"],
    }
    form = form_of(schema)
    assert form.schema == schema
    assert form.read({"it": "b", "other": 7}) == {"it": "b", "other": 7}
    assert rejected(schema, {"it": "A"}) == ["it: none of the choices"]


@pytest.mark.requirement("ELIC-09")
def test_a_schema_that_is_no_form_is_rejected():
    with pytest.raises(ValueError, match="it: a form has"):
        form_of({"type": "object", "properties": {"it": {"type": "object"}}})
    with pytest.raises(ValueError, match='"type": "object"'):
        form_of({"type": "string"})
    with pytest.raises(ValueError, match='"properties"'):
        form_of({"type": "object", "properties": ["it"]})
    with pytest.raises(ValueError, match="it: a form has"):
        form_of({"type": "object", "properties": {"it": "string"}})


# What is wrong with an answer.


@attrs.frozen
class Range:
    low: Annotated[int, at.MultipleOf(2)]
    high: Annotated[str, at.Predicate(str.islower)] = "a"
    amount: decimal.Decimal | None = None

    def __attrs_post_init__(self) -> None:
        if self.low > 10:
            raise ValueError("low is too high")


@pytest.mark.requirement("ELIC-16", "ELIC-20", "ELIC-23")
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ({}, ["low: missing"]),
        ({"low": "2"}, ["low: not an integer"]),
        ({"low": 2, "high": 3}, ["high: not a string"]),
        ({"low": 3}, ["low: expected int that's a multiple of 2"]),
        (
            {"low": 3, "amount": "x"},
            ["low: expected int that's a multiple of 2", "amount: invalid decimal string"],
        ),
        ({"low": 2, "high": "A"}, ["high: expected str that islower accepts"]),
        ({"low": 12}, ["low is too high"]),
    ],
)
def test_an_invalid_form_answer_has_one_line_for_each_field(content, lines):
    assert rejected(Range, content) == lines


# All values come back as they were.

TEXTS = st.text(max_size=5)
ROWS = [
    (str, TEXTS),
    (int, st.integers(-(2**53), 2**53)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (Size, st.sampled_from(Size)),
    (Literal["b", "a"], st.sampled_from(["b", "a"])),
    (dt.date, st.dates()),
    (dt.datetime, st.datetimes(timezones=st.just(dt.UTC))),
    (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (list[Size], st.lists(st.sampled_from(Size), max_size=3)),
    (frozenset[Literal["a", "b"]], st.frozensets(st.sampled_from(["a", "b"]))),
    (Annotated[int, at.Interval(gt=2, le=9)], st.integers(3, 9)),
    (Annotated[str, at.Len(1, 3)], st.text(min_size=1, max_size=3)),
]


@st.composite
def classes_and_values(draw):
    rows = draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=6))
    fields, values = {}, {}
    for place, (hint, value) in enumerate(rows):
        optional = draw(st.booleans())
        fields[f"m{place}"] = attrs.field(type=hint | None if optional else hint)
        values[f"m{place}"] = draw(st.none() | value) if optional else draw(value)
    return attrs.make_class("Generated", fields), values


@pytest.mark.requirement("ELIC-09", "ELIC-16")
@given(classes_and_values())
def test_every_value_of_a_flat_class_comes_back_as_it_was(generated):
    kind, values = generated
    form = form_of(kind)
    check_form(form.schema)
    plain = msgspec.to_builtins(values)
    content = {name: value for name, value in plain.items() if value is not None}
    assert form.read(content) == kind(**values)
