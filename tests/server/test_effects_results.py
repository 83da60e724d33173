"""What effects return goes through JSON always, and comes back as it is annotated, or not at all."""

import datetime as dt
import decimal
import enum
import fractions
import math
import pathlib
import typing
import uuid

import attrs
import msgspec
import pydantic
import pytest
from cattrs import Converter
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Limits
from mcp_trio._server.effect_results import EffectResults
from mcp_trio._server.results import JsonWriter
from mcp_trio.limits import RequestLimits


class Colour(enum.Enum):
    RED = "red"


class Boat(msgspec.Struct):
    name: str


class Ship(Boat):
    masts: int


@attrs.frozen
class Crew:
    names: set[str]
    since: dt.date


class Load(pydantic.BaseModel):
    tons: float
    codes: list[int] = []


class Known(typing.TypedDict):
    name: str


class Angle:
    def __init__(self, degrees):
        self.degrees = degrees

    def __eq__(self, other):
        return self.degrees == other.degrees

    __hash__ = None


def make_converter():
    converter = Converter()

    def read(degrees: float, _) -> Angle:
        return Angle(degrees)

    converter.register_structure_hook(Angle, read)
    converter.register_unstructure_hook(Angle, lambda angle: angle.degrees)
    return converter


def returning(hint):
    def function():
        pass

    if hint is not None:
        function.__annotations__["return"] = hint
    return function


def codec(hint, *, converter=None, **limits):
    results = EffectResults(converter, JsonWriter(converter), Limits(**limits))
    return results.of(returning(hint))


UTC = dt.UTC


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (type(None), None),
        (int, 3),
        (int, 2**70),
        (str, "ada\n\0"),
        (bytes, b"\xff"),
        (Colour, Colour.RED),
        (Boat, Boat("Ada")),
        (Ship | None, Ship("Ada", 3)),
        (Crew, Crew({"b", "a"}, dt.date(2026, 1, 2))),
        (Load, Load(tons=1.5, codes=[1])),
        (Known, {"name": "Ada"}),
        (tuple[int, ...], (1, 2)),
        (dict[int, Boat], {1: Boat("Ada")}),
        (list[Boat | str], [Boat("Ada"), "Grace"]),
        (dict[str, typing.Any], {"a": [1, {"b": None}]}),
        (tuple[object, ...], (1, "a")),
        (typing.Annotated[dict, msgspec.Meta(extra_json_schema={})], {"a": 1}),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (dt.datetime, dt.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
        (uuid.UUID, uuid.UUID(int=5)),
        (pathlib.PurePosixPath, pathlib.PurePosixPath("a/b")),
        (typing.Any, {"a": [1, 2.5, None, True]}),
        (None, ["no annotation"]),
        (None, None),
        ("list[Boat]", [Boat("by name")]),
    ],
)
def test_a_result_that_json_preserves_is_returned_equal(hint, value):
    it = codec(hint)
    result, body = it.converted(value)
    assert result == value
    assert type(result) is type(value)
    assert it.decoded(body) == value


def test_the_users_converter_is_used():
    it = codec(Angle, converter=make_converter())
    result, body = it.converted(Angle(90.0))
    assert (result, body) == (Angle(90.0), b"90.0")
    assert it.decoded(body) == result


@pytest.mark.parametrize(
    ("hint", "value", "result"),
    [
        (float, 1, 1.0),
        (tuple[int, ...], [1], (1,)),
        (list[int], (1,), [1]),
        (frozenset[int], {1}, frozenset({1})),
        (Boat, {"name": "Ada"}, Boat("Ada")),
        (Crew, {"names": ["a"], "since": "2026-01-02"}, Crew({"a"}, dt.date(2026, 1, 2))),
    ],
)
def test_an_effect_returns_the_annotated_type(hint, value, result):
    assert codec(hint).converted(value)[0] == result


@pytest.mark.parametrize(
    ("hint", "value", "why"),
    [
        (None, (1, 2), "annotate what the function returns"),
        (None, {1: 2}, "annotate"),
        (None, Boat("Ada"), "annotate"),
        (typing.Any, Crew({"a"}, dt.date(2026, 1, 2)), "annotate"),
        (None, math.nan, "annotate"),
        (None, b"bytes", "annotate"),
        (Boat, Ship("Ada", 3), "would lose something"),
        (dict[str, typing.Any], {"at": dt.date(2026, 1, 2)}, "would lose something"),
        (dict[str, object] | None, {"it": (1, 2)}, "would lose something"),
        (list, [math.nan], "would lose something"),
        (Known, {"name": "Ada", "masts": 3}, "would lose something"),
        (float, math.nan, "is not what it is annotated with"),
        (type(None), 3, "is not what it is annotated with"),
        (str, 3, "is not what it is annotated with"),
        (str, "\ud800", "has no JSON form"),
        (None, object(), "has no JSON form"),
        (None, fractions.Fraction(1, 2), "has no JSON form"),
        (int, lambda: 3, "has no JSON form"),
    ],
)
def test_a_result_that_json_would_change_is_rejected_with_the_functions_name(hint, value, why):
    with pytest.raises(TypeError, match=why) as caught:
        codec(hint).converted(value)
    assert f"the result of the effect {__name__}.returning.<locals>.function" in str(caught.value)


def test_a_large_result_is_rejected_with_the_settings_name():
    it = codec(str, requests=RequestLimits(effect_bytes_max=10))
    assert it.converted("a" * 8)[0] == "a" * 8
    with pytest.raises(TypeError, match=r"11 bytes.*limits\.requests\.effect_bytes_max=10"):
        it.converted("a" * 9)


@pytest.mark.parametrize("hint", ["Nobody", Angle])
def test_an_annotation_that_cannot_be_read_is_rejected_with_the_functions_name(hint):
    with pytest.raises(TypeError, match=r"returning\.<locals>\.function"):
        codec(hint)


def test_a_recorded_result_of_another_form_is_rejected():
    with pytest.raises(TypeError, match="is not what it is annotated with"):
        codec(int).decoded(b'"three"')


def test_how_results_are_kept_is_found_out_once_for_each_function():
    results = EffectResults(None, JsonWriter(), Limits())
    function = returning(int)
    assert results.of(function) is results.of(function)
    assert results.of(function) is not results.of(returning(int))


class Slotted:
    __slots__ = ()

    def __call__(self) -> int:
        return 3


@pytest.mark.parametrize("function", [Slotted(), print, int])
def test_anything_that_can_be_called_has_results(function):
    it = EffectResults(None, JsonWriter(), Limits()).of(function)
    assert it.converted(3) == (3, b"3")


def test_the_annotation_of_an_object_that_is_called_counts():
    with pytest.raises(TypeError, match=r"Slotted\.__call__"):
        EffectResults(None, JsonWriter(), Limits()).of(Slotted()).converted("three")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(plain)
def test_plain_json_comes_back_equal_or_is_rejected(value):
    it = codec(None)
    try:
        result, body = it.converted(value)
    except TypeError:
        return
    assert repr(result) == repr(it.decoded(body)) == repr(value)
