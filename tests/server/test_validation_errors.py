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

from mcp_trio import Limits
from mcp_trio._server.signatures import ArgumentsError
from mcp_trio.limits import MessageLimits
from tests.server.conftest import lines, lines_of, signature_of


@attrs.define
class Point:
    x: int
    y: int = 0


@attrs.define
class Trip:
    stops: list[Point]
    home: Point | None = None


class Filter(TypedDict):
    title: str
    exact: NotRequired[bool]


class Pair(NamedTuple):
    left: int
    right: Point


class Closed(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    long_name: str
    tide: int = 0


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    lives: int
    legs: int


class Row(msgspec.Struct, array_like=True):
    name: str
    height: int = 0


def test_every_wrong_argument_has_its_own_line():
    def handler(
        city: str,
        days: int,
        ratio: float,
        trip: Trip,
        counts: dict[int, int],
        where: pathlib.Path,
        good: int = 1,
    ):
        pass

    wrong = {
        "days": "3",
        "ratio": None,
        "trip": {"stops": [{"x": 1}, {"x": "1"}, {"y": None}], "home": {}},
        "counts": {"a": 1},
        "where": 5,
        "good": 2,
        "cty": "Oslo",
        "a\nb": 1,
    }
    assert lines_of(handler, wrong) == [
        "city: missing",
        "days: expected int, got str",
        "ratio: expected float, got null",
        "trip.stops[1].x: expected int, got str",
        "trip.stops[2].x: missing",
        "trip.stops[2].y: expected int, got null",
        "trip.home.x: missing",
        "key in counts: expected int, got str",
        "where: expected str, got int",
        "cty: unknown argument",
        '["a\\nb"]: unknown argument',
    ]


@pytest.mark.parametrize(
    ("hint", "value", "expected"),
    [
        (Filter, {"exact": 1}, ["it.title: missing", "it.exact: expected bool, got int"]),
        (Pair, ["a", {}], ["it[0]: expected int, got str", "it[1].x: missing"]),
        (Pair, [1], ["it: expected array of length 2, got 1"]),
        (Row, [1, "a"], ["it[0]: expected str, got int", "it[1]: expected int, got str"]),
        (
            Closed,
            {"tide": "low", "tde": 1},
            [
                "it.longName: missing",
                "it.tide: expected int, got str",
                "it.tde: unknown field",
            ],
        ),
        (
            list[int],
            ["a", 1, None],
            ["it[0]: expected int, got str", "it[2]: expected int, got null"],
        ),
        (set[int], ["a"], ["it[0]: expected int, got str"]),
        (
            tuple[int, str],
            ["a", 1],
            ["it[0]: expected int, got str", "it[1]: expected str, got int"],
        ),
        (
            tuple[int, ...],
            ["a", None],
            ["it[0]: expected int, got str", "it[1]: expected int, got null"],
        ),
        (
            dict[str, int],
            {"a": None, "b c": "1", "": []},
            [
                "it.a: expected int, got null",
                'it["b c"]: expected int, got str',
                'it[""]: expected int, got array',
            ],
        ),
        (Point | None, {"y": 1}, ["it.x: missing"]),
        (Point | None, 3, ["it: expected object | null, got int"]),
        (int | str, [], ["it: expected int | str, got array"]),
        (list[int] | int, ["a"], ["it[0]: expected int, got str"]),
        (Point | list[Point], [{}], ["it[0].x: missing"]),
        (Cat | Dog, {"type": "Dog"}, ["it.lives: missing", "it.legs: missing"]),
        (Cat | Dog, {"type": "Cow"}, ["it.type: invalid value 'Cow'"]),
        (Cat | Dog, {"lives": 9}, ["it: object missing required field type"]),
        (Cat, {}, ["it.lives: missing"]),
        (Annotated[list[int], at.MaxLen(1)], [1, 2], ["it: expected array of length <= 1"]),
        (Annotated[list[int], at.MaxLen(1)], [1, "a"], ["it[1]: expected int, got str"]),
        (dict, [], ["it: expected object, got array"]),
        (list, {}, ["it: expected array, got object"]),
        (list[Any], 1, ["it: expected array, got int"]),
    ],
)
def test_each_member_of_a_value_has_its_own_line(hint, value, expected):
    assert lines(hint, value) == expected


@attrs.define
class Valid:
    name: str = attrs.field(validator=attrs.validators.instance_of(int))


@attrs.define
class Short:
    name: str

    def __attrs_post_init__(self):
        if len(self.name) > 3:
            raise ValueError("Far\n too `long`")


def test_the_text_of_the_users_own_errors_is_one_short_line():
    (line,) = lines(Valid, {"name": "x"})
    assert line.startswith("it: 'name' must be <class 'int'>")
    assert "Attribute(" not in line
    assert lines(list[Short], [{"name": "Oslo"}]) == ["it[0]: far too long"]


def test_below_a_depth_limit_one_error_stands_for_all():
    hint, value = dict[str, int], {"a": "x", "b": "y"}
    assert len(lines(hint, value)) == 2
    for _ in range(9):
        hint, value = list[hint], [value]
    assert lines(hint, value) == [f"it{'[0]' * 9}[...]: expected int, got str"]


def test_an_error_after_many_valid_members_is_found_with_its_path():
    assert lines(list[int], [0] * 5000 + ["a", "b"]) == ["it[5000]: expected int, got str"]


def test_a_long_key_is_cut_in_each_of_its_lines():
    value = {"k" * 100_000: dict.fromkeys("abc", "x")}
    found = lines(dict[str, dict[str, int]], value)
    assert len(found) == 3
    assert max(map(len, found)) == Limits().messages.validation_error_chars_max


def test_text_that_looks_like_a_path_is_not_one():
    odd = "- at `$.x` " * 3
    assert lines(Literal["a"], odd) == [f"it: invalid enum value '{odd.replace('`', '')}'"]
    assert lines(Literal["a"], " - at `$.x`" * 9)[0].startswith("it: invalid enum value ' - at")


def test_an_error_is_bounded_in_lines_and_length():
    limits = Limits(messages=MessageLimits(validation_errors_max=2, validation_error_chars_max=20))
    sent = {"a" * 1000: 1, "b": 2, "c": 3, "d": 4}
    assert lines_of(lambda: None, sent, limits=limits) == [
        "a" * 20,
        "b: unknown argument",
        "and 2 more",
    ]
    assert lines_of(lambda: None, {str(n): n for n in range(5000)})[-1] == "and at least 968 more"


@pytest.mark.parametrize(("sent", "got"), [([], "array"), ("x", "str"), (None, "null"), (3, "int")])
def test_arguments_that_are_no_object_are_rejected(sent, got):
    assert lines_of(lambda city: city, sent) == [f"arguments: expected object, got {got}"]


@pytest.mark.parametrize(
    "raw", [b'{"city":"\xff"}', b'{"city":"\\ud800"}', b'{"city":', b'{"\xff":1}']
)
def test_text_that_is_no_json_is_an_arguments_error_too(raw):
    with pytest.raises(ArgumentsError):
        signature_of(lambda city: city).decode(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["stops", "home", "x", "y", "it", "é\n"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(["it", "n", "a\nb"]), json_values))
def test_rejected_arguments_have_lines_that_each_name_a_path(sent):
    def handler(it: Trip | list[Trip] | int, n: dict[str, Point | bool] | None = None):
        pass

    signature = signature_of(handler)
    found = []
    try:
        signature.decode(json.dumps(sent).encode())
    except ArgumentsError as error:
        found = error.lines
    assert bool(found) == (not Draft202012Validator(signature.schema).is_valid(sent))
    for line in found:
        assert line.isprintable()
        assert line.startswith(("it", "n", '["a\\nb"]', "key in n"))
        assert "`" not in line
        assert "$" not in line
