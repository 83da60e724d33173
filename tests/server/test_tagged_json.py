"""Python values as JSON that keeps their types."""

import dataclasses
import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
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

from mcp_trio._server.tagged_json import decode_tagged, encode_tagged

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


class Doubles(msgspec.Struct):
    number: int

    def __post_init__(self):
        self.number *= 2


VALUES = [
    None,
    [1, "a", True, 1.5],
    {"a": {"b": []}},
    {"$": 1},
    {"$": "tuple", "of": [1]},
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
    time(6, 30, tzinfo=timezone(timedelta(hours=1), "ship")),
    timedelta(days=-1, microseconds=3),
    Colour.RED,
    Access.READ | Access.WRITE,
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
    decoded = decode_tagged(encode_tagged([value]))[0]
    assert decoded == value
    assert type(decoded) is type(value)
    assert repr(decoded) == repr(value)


def test_a_number_that_is_none_is_decoded():
    assert math.isnan(decode_tagged(encode_tagged(math.nan)))


def test_plain_values_are_encoded_as_they_are():
    assert encode_tagged({"a": [1, None, "b"]}) == b'{"a":[1,null,"b"]}'
    assert encode_tagged({"a": (1,)}) == b'{"a":{"$":"tuple","of":[1]}}'


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
            | st.dictionaries(st.sampled_from(["$", "of", "a"]), inner)
            | st.dictionaries(hashable, inner, max_size=3)
            | st.builds(Point, st.integers(), inner)
            | st.builds(Ship, inner)
        ),
        max_leaves=10,
    )


@given(plain_or_tagged())
def test_any_value_is_decoded(value):
    encoded = encode_tagged(value)
    assert decode_tagged(encoded) == value
    assert encode_tagged(decode_tagged(encoded)) == encoded


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
    (local_class(), "of the type tests.server.test_tagged_json.local_class.<locals>.Local"),
    (with_other_attribute(), "of the type tests.server.test_tagged_json.Loose"),
    (used_crew(), "of the type tests.server.test_tagged_json.Crew"),
    (unset_field(), "of the type tests.server.test_tagged_json.Berth"),
    (Ship(object()), "of the type builtins.object"),
    (Doubles(1), "that would be another one"),
    ("\ud800", "that cannot be encoded"),
    (("\ud800",), "that cannot be encoded"),
]


@pytest.mark.requirement("HTTP-51")
@pytest.mark.parametrize(("value", "problem"), REJECTED, ids=range(len(REJECTED)))
def test_another_value_is_rejected(value, problem):
    with pytest.raises(ValueError, match=problem):
        encode_tagged({"value": value})


DAMAGED = [
    b'{"$":"os:system","of":"ls"}',
    b'{"$":"tests.server.test_tagged_json:OSLO","of":{}}',
    b'{"$":"not_loaded:Thing","of":{}}',
    b'{"$":"tests.server.test_tagged_json:Loose","of":{"number":1,"other":2}}',
    b'{"$":"tests.server.test_tagged_json:Ship","of":{}}',
    b'{"$":"tests.server.test_tagged_json:Colour","of":1}',
    b'{"$":"list","of":[]}',
    b'{"$":1}',
    b'{"$":["tuple"],"of":[]}',
    b"[",
]


@pytest.mark.parametrize("encoded", DAMAGED, ids=bytes.decode)
def test_json_of_something_else_is_rejected(encoded):
    with pytest.raises(ValueError, match="Error"):
        decode_tagged(encoded)
