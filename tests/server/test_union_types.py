"""Unions in the signatures of handlers."""

import dataclasses
import datetime as dt
import json
import pathlib
import uuid
from typing import Annotated, TypedDict

import annotated_types as at
import attrs
import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio._server.signatures import ArgumentsError
from tests.server.conftest import lines, read, signature


@attrs.define
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Ship:
    x: str
    sails: int = 0


class Tagged(msgspec.Struct, tag="t"):
    where: pathlib.Path


class Other(msgspec.Struct, tag="o"):
    where: str


class Sea(TypedDict, total=False):
    name: str
    depth: int


NUMBER = uuid.UUID(int=5)


@pytest.mark.parametrize(
    ("hint", "sent", "value"),
    [
        (int | pathlib.Path, 3, 3),
        (int | pathlib.Path, "3", pathlib.Path("3")),
        (str | dt.datetime | uuid.UUID, str(NUMBER), NUMBER),
        (str | dt.datetime | uuid.UUID, "2024-11-05T10:00:00", dt.datetime(2024, 11, 5, 10)),
        (str | dt.datetime | uuid.UUID, "Oslo", "Oslo"),
        (dt.date | dt.datetime | None, "2024-11-05", dt.date(2024, 11, 5)),
        (dt.date | dt.datetime | None, None, None),
        (list[int] | list[str], ["a"], ["a"]),
        (list[int] | set[str], [], []),
        (Point | Ship, {"x": 1}, Point(1)),
        (Point | Ship, {"x": "a"}, Ship("a")),
        (Point | Ship, {"x": "a", "y": 1}, Ship("a")),
        (Sea | Point, {"x": 1, "y": 2}, Point(1, 2)),
        (Sea | Point, {"x": 1}, Point(1)),
        (Sea | Point, {}, {}),
        (dict[str, int] | Point, {"x": 1}, Point(1)),
        (dict[str, int] | Point, {"z": 1}, {"z": 1}),
        (Tagged | Other, {"type": "o", "where": "w"}, Other("w")),
        (Tagged | Other, {"type": "t", "where": "w"}, Tagged(pathlib.Path("w"))),
        (list[Point | Ship | None], [{"x": 1}, None, {"x": "a"}], [Point(1), None, Ship("a")]),
        (Annotated[int, at.Ge(5)] | pathlib.Path, 5, 5),
    ],
)
def test_a_union_is_its_first_member_that_fits(hint, sent, value):
    assert read(hint, sent) == value
    schema = signature(hint).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"it": sent}, schema)


def test_its_schema_is_any_of_its_members():
    assert signature(str | uuid.UUID | Point).schema["properties"]["it"] == {
        "anyOf": [
            {"type": "string"},
            {"type": "string", "format": "uuid"},
            {"$ref": "#/$defs/Point"},
        ]
    }


@pytest.mark.parametrize(
    ("hint", "sent", "expected"),
    [
        (str | uuid.UUID, 3, ["it: expected str | UUID"]),
        (int | pathlib.Path | None, [], ["it: expected int | Path | null"]),
        (list[int] | list[str], [1, "a"], ["it: expected list[int] | list[str]"]),
        (
            Point | Ship,
            {"x": None, "y": None},
            ["it.x: expected int, got null", "it.y: expected int, got null"],
        ),
        (Point | Ship, {"sails": 1}, ["it.x: missing"]),
        (Point | Ship, {"z": 1}, ["it: expected Point | Ship"]),
        (Tagged | Other, {"type": "t"}, ["it.where: missing"]),
        (list[Point | Ship], [{"y": 1}, 3], ["it[0].x: missing", "it[1]: expected Point | Ship"]),
    ],
)
def test_a_value_that_fits_no_union_member_has_the_errors_of_the_likeliest(hint, sent, expected):
    assert lines(hint, sent) == expected


@attrs.define
class Left:
    inner: "list[Left] | list[Right] | int"


@attrs.define
class Right:
    inner: "list[Left] | list[Right] | str"


def test_a_union_that_holds_itself_is_rejected_for_it_could_take_for_ever():
    with pytest.raises(
        TypeError, match=r"'it': .*is recursive: make its members structs with a tag"
    ):
        signature(Left).schema  # noqa: B018


HINTS = st.lists(
    st.sampled_from([int, str, bool, None, Point, Ship, Sea, list[int], list[str], dict[str, int]]),
    min_size=2,
    max_size=4,
    unique=True,
)
SENT = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["x", "y", "sails", "name", "depth"]), inner, max_size=3)
    ),
    max_leaves=4,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(HINTS, SENT)
def test_schema_and_decoder_agree_on_every_union(hints, sent):
    union = hints[0]
    for hint in hints[1:]:
        union = union | hint if union is not None else hint | None
    found = signature(union)
    accepts = jsonschema.Draft202012Validator(found.schema).is_valid({"it": sent})
    try:
        found.decode(json.dumps({"it": sent}).encode())
        lines = []
    except ArgumentsError as error:
        lines = error.lines
    assert accepts == (lines == [])
