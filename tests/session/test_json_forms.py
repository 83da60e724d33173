"""JSON forms of Python values, from which the same values are made again."""

import dataclasses
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, auto
from functools import cached_property
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._session.json_forms import decode_value, encode_value

OSLO = ZoneInfo("Europe/Oslo")


class Colour(Enum):
    RED = (255, 0, 0)


class Access(Flag):
    READ = auto()
    WRITE = auto()


class Point(NamedTuple):
    x: int
    y: object


class Ship(msgspec.Struct, rename="camel"):
    cargo_of: object


@dataclasses.dataclass(frozen=True)
class Crew:
    names: tuple[str, ...]

    @cached_property
    def number(self):
        return len(self.names)


@dataclasses.dataclass(slots=True)
class Mate:
    name: str
    secret: int = dataclasses.field(init=False, default=7)


@attrs.define
class Berth:
    _number: int
    opened: list[object] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self):
        self.opened.append("now")


@attrs.define(slots=False)
class Loose:
    number: int


class Outer:
    @attrs.frozen
    class Inner:
        number: int


class Fixed(tzinfo):
    def utcoffset(self, _):
        return timedelta(0)


ITSELF = []
ITSELF.append(ITSELF)


class Doubles(msgspec.Struct):
    number: int

    def __post_init__(self):
        self.number *= 2


VALUES = [
    None,
    [1, "a", True, 1.5],
    {"a": {"b": []}},
    {"$": 1},
    {"$tuple": [1]},
    {"$tuple": [1], "b": (1,)},
    "\ud800",
    2**70,
    {1: "a", (1, 2): {"b": {3}}},
    (),
    ((1,), [2], {"c": (3,)}),
    {1, "b", None, (2, 3)},
    frozenset({1}),
    b"\x00\xff",
    math.inf,
    Decimal("1.50"),
    UUID(int=1),
    date(2026, 11, 29),
    datetime(2026, 11, 29, 6, 30, 1, 5),
    datetime(2026, 11, 29, tzinfo=UTC),
    datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=OSLO),
    time(6, 30, tzinfo=timezone(timedelta(hours=1))),
    timedelta(days=-1, microseconds=3),
    Colour.RED,
    Point(1, (2, 3)),
    Ship([Colour.RED]),
    Crew(("ada", "bob")),
    Mate("ada"),
    Berth(4),
    Loose(1),
    Outer.Inner(2),
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_and_its_type_are_decoded(value):
    encoded = encode_value([value])
    (decoded,) = decode_value(encoded)
    assert decoded == value
    assert type(decoded) is type(value)
    assert encode_value([decoded]) == encoded


def test_a_number_that_is_none_is_decoded():
    assert math.isnan(decode_value(encode_value(math.nan)))


def test_plain_values_are_encoded_as_they_are():
    assert encode_value({"a": [1, None, "b"]}) == b'{"a":[1,null,"b"]}'
    assert encode_value({"a": (1,)}) == b'{"a":{"$tuple":[1]}}'
    assert encode_value({1, 3, 2}) == b'{"$set":[1,2,3]}'


def plain_or_tagged():
    leaves = (
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
    )
    hashable = st.recursive(
        leaves
        | st.binary(max_size=3)
        | st.dates()
        | st.timedeltas()
        | st.decimals(allow_nan=False),
        lambda inner: st.frozensets(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
        max_leaves=5,
    )
    return st.recursive(
        hashable | st.datetimes(timezones=st.none() | st.timezones()),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["$tuple", "$set", "a"]), inner)
            | st.dictionaries(hashable, inner, max_size=3)
            | st.builds(Point, st.integers(), inner)
            | st.builds(Ship, inner)
        ),
        max_leaves=10,
    )


@given(plain_or_tagged())
def test_any_value_is_decoded(value):
    encoded = encode_value(value)
    assert decode_value(encoded) == value
    assert encode_value(decode_value(encoded)) == encoded


def local_class():
    @attrs.frozen
    class Local:
        number: int

    return Local(1)


def with_other_attribute():
    loose = Loose(1)
    loose.other = 2
    return loose


def used_crew():
    crew = Crew(("ada",))
    assert crew.number == 1
    return crew


def unset_field():
    return object.__new__(Berth)


REJECTED = [
    (object(), "of the type builtins.object"),
    ([len], "of the type builtins.builtin_function_or_method"),
    (OrderedDict(), "of the type collections.OrderedDict"),
    (type("Number", (int,), {})(1), "of the type "),
    (local_class(), "of the type tests.session.test_json_forms.local_class.<locals>.Local"),
    (with_other_attribute(), "of the type tests.session.test_json_forms.Loose"),
    (used_crew(), "of the type tests.session.test_json_forms.Crew"),
    (unset_field(), "of the type tests.session.test_json_forms.Berth"),
    (Ship(object()), "of the type builtins.object"),
    (Doubles(1), "that JSON would change"),
    (Access.READ | Access.WRITE, "of the type tests.session.test_json_forms.Access"),
    (ITSELF, "without a JSON form"),
    (datetime(2026, 11, 29, tzinfo=Fixed()), "of the type Fixed"),
]


@pytest.mark.requirement("HTTP-51")
@pytest.mark.parametrize(("value", "problem"), REJECTED, ids=range(len(REJECTED)))
def test_another_value_is_rejected(value, problem):
    with pytest.raises(ValueError, match=problem):
        encode_value({"value": value})


DAMAGED = [
    b'{"$object":["os.system",{}]}',
    b'{"$object":["tests.session.test_json_forms.OSLO",{}]}',
    b'{"$object":["not_loaded.Thing",{"number":1}]}',
    b'{"$object":["tests.session.test_json_forms.Loose",{"number":1,"other":2}]}',
    b'{"$object":["tests.session.test_json_forms.Ship",{}]}',
    b'{"$object":["tests.session.test_json_forms.Loose"]}',
    b'{"$enum":["tests.session.test_json_forms.Colour","BLUE"]}',
    b'{"$other":[]}',
    b'{"$tuple":1}',
    b"[",
]


@pytest.mark.parametrize("encoded", DAMAGED, ids=bytes.decode)
def test_json_of_something_else_is_rejected(encoded):
    with pytest.raises(ValueError, match="Error"):
        decode_value(encoded)
