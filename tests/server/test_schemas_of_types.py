"""The schema of every type is valid and accepts exactly the values that can be decoded."""

import enum
import json
import pathlib
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import annotated_types as at
import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from mcp_trio._server.signatures import ArgumentsError
from tests.server.conftest import signature


class Colour(enum.Enum):
    RED = "a"
    BLUE = "b"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@attrs.define
class Point:
    x: int
    y: Annotated[int, at.Ge(0)] = 0


class Filter(TypedDict):
    x: str
    y: NotRequired[pathlib.Path]


class Pair(NamedTuple):
    left: int
    right: Annotated[str, at.MaxLen(1)] = ""


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    x: int | None = None
    a: "list[Closed]" = []


LEAVES = st.sampled_from(
    [
        Any,
        None,
        bool,
        int,
        str,
        pathlib.Path,
        Colour,
        Rights,
        Point,
        Filter,
        Pair,
        Closed,
        Literal["a", 1],
        Annotated[int, at.Interval(ge=-1, lt=3)],
        Annotated[str, at.Len(1, 2)],
    ]
)


HINTS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda hint: list[hint], inner)
        | st.builds(lambda hint: dict[str, hint], inner)
        | st.builds(lambda one, other: tuple[one, other], inner, inner)
        | st.builds(lambda hint: hint | None, inner.filter(lambda hint: hint is not None))
        | st.builds(lambda hint: Annotated[list[hint], at.MaxLen(1)], inner)
        | st.builds(lambda hint: hint | pathlib.Path, inner.filter(lambda hint: hint is not None))
    ),
    max_leaves=3,
)
# No floats without a fraction: JSON Schema takes them as integers, a strict decoder does not.
VALUES = st.recursive(
    st.sampled_from([None, True, False, -2, 0, 1, 3, 4, 0.5, "", "a", "b", "abc"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "a"]), inner)
    ),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(HINTS, VALUES)
def test_the_schema_of_every_type_accepts_exactly_what_is_decoded(hint, value):
    found = signature(hint)
    Draft202012Validator.check_schema(found.schema)
    lines = []
    try:
        found.decode(json.dumps({"it": value}).encode())
    except ArgumentsError as error:
        lines = error.lines
    assert Draft202012Validator(found.schema).is_valid({"it": value}) == (not lines)
    assert all(line.startswith(("it", "key in it")) for line in lines)
