"""One row for each type that may stand in a handler's signature."""

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import json
import pathlib
import subprocess
import sys
import traceback
import types
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Required,
    TypedDict,
    TypeVar,
)

import annotated_types as at
import attrs
import jsonschema
import msgspec
import pydantic
import pytest
import trio.testing
from cattrs import Converter
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, RootModel
from pydantic.dataclasses import dataclass

from mcp_trio import Client, Context, RequestError, Server, ToolError
from mcp_trio._server import validation_errors as mistakes
from mcp_trio._server.results import JsonWriter, tool_result
from mcp_trio._server.signatures import ArgumentsError, Signature
from mcp_trio._server.type_adapters import TypeReader, convert, json_schema
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import replay
from tests.server import conftest
from tests.server.conftest import lines, read, signature, signature_of

Value = TypeVar("Value")


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Mood(enum.StrEnum):
    SUNNY = "sunny"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    OWN = 4


class Bits(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Folder:
    where: pathlib.Path
    folders: "list[Folder]" = dataclasses.field(default_factory=list)
    size: Annotated[int, at.Ge(0)] = 0
    count: int = dataclasses.field(init=False, default=7)


@attrs.define
class Trip:
    stops: list[Point]


@attrs.define
class Harbour:
    """Where ships rest."""

    depth: Annotated[decimal.Decimal, at.Gt(0)]
    _chart: pathlib.Path | None = None
    names: list[str] = attrs.field(factory=list)
    title: str = attrs.field(default="h", converter=str.upper)
    late: int = attrs.field(init=False, default=3)


class Filter(TypedDict):
    title: str
    exact: NotRequired[bool]


class Loose(TypedDict, total=False):
    where: Required[pathlib.Path]
    deep: Annotated[int, at.Lt(3)]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Paths(NamedTuple):
    first: pathlib.Path
    second: int = 2


class Sky(msgspec.Struct, rename="camel"):
    cloud_cover: int
    mood: Mood = Mood.SUNNY


class File(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    full_path: pathlib.Path
    tags: list[str] = []


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag="dog", tag_field="kind"):
    legs: pathlib.Path


class Tree(msgspec.Struct):
    leaves: int
    branches: "list[Tree]" = []


class Box(msgspec.Struct, Generic[Value]):
    value: Value
    others: list[Value] = []


@dataclasses.dataclass
class Crate(Generic[Value]):
    value: Value
    others: dict[str, Value] = dataclasses.field(default_factory=dict)


class Row(msgspec.Struct, array_like=True):
    where: pathlib.Path
    size: int = 0


Name = NewType("Name", str)
Place = NewType("Place", pathlib.Path)
MOMENT = dt.datetime(2024, 11, 5, 10, tzinfo=dt.UTC)
NUMBER = uuid.UUID(int=5)
FOLDER = {"where": "/a", "folders": [{"where": "b"}], "size": 1}

# The hint, JSON, the value, JSON that is refused.
TYPES = [
    (str, "a", "a", 1),
    (int, 1, 1, 1.5),
    (float, 1, 1.0, "1"),
    (bool, True, True, 1),
    (None, None, None, 0),
    (Any, {"a": [None]}, {"a": [None]}, ...),
    (object, [1], [1], ...),
    (bytes, "AP8=", b"\0\xff", "?"),
    (bytearray, "AP8=", bytearray(b"\0\xff"), 1),
    (dt.datetime, "2024-11-05T10:00:00Z", MOMENT, "today"),
    (dt.date, "2024-11-05", MOMENT.date(), "2024-11-32"),
    (dt.time, "10:00:00Z", MOMENT.timetz(), "10"),
    (dt.timedelta, "PT1H", dt.timedelta(hours=1), "1h"),
    (uuid.UUID, str(NUMBER), NUMBER, "5"),
    (decimal.Decimal, "1.50", decimal.Decimal("1.50"), "one"),
    (pathlib.Path, "/a", pathlib.Path("/a"), 1),
    (pathlib.PurePosixPath, "b", pathlib.PurePosixPath("b"), []),
    (Colour, "red", Colour.RED, "blue"),
    (Level, 1, Level.LOW, 2),
    (Mood, "sunny", Mood.SUNNY, "grim"),
    (Rights, 5, Rights.READ | Rights.OWN, 8),
    (Rights, 0, Rights(0), -1),
    (Bits, 3, Bits.A | Bits.B, 4),
    (Literal["x", 1], 1, 1, 2),
    (int | None, None, None, "a"),
    (Optional[int], 1, 1, "a"),  # noqa: UP045 - people still write it
    (int | str, "a", "a", []),
    (Name, "n", "n", 1),
    (Place, "n", pathlib.Path("n"), 1),
    (list, [1, "a"], [1, "a"], {}),
    (list[int], [1], [1], ["a"]),
    (Sequence[int], [1], [1], ["a"]),
    (set[int], [1, 2], {1, 2}, ["a"]),
    (frozenset[str], ["a"], frozenset("a"), [1]),
    (tuple[int, str], [1, "a"], (1, "a"), [1]),
    (tuple[int, ...], [1, 2], (1, 2), ["a"]),
    (dict, {"a": 1}, {"a": 1}, []),
    (dict[str, int], {"a": 1}, {"a": 1}, {"a": "b"}),
    (Mapping[str, int], {"a": 1}, {"a": 1}, {"a": "b"}),
    (Point, {"x": 1}, Point(1), {"y": 1}),
    (Trip, {"stops": [{"x": 1}]}, Trip([Point(1)]), {"stops": [{}]}),
    (Filter, {"title": "t"}, {"title": "t"}, {"exact": True}),
    (Pair, [1], Pair(1), []),
    (Sky, {"cloudCover": 1}, Sky(1), {"cloud_cover": 1}),
    (Cat, {"type": "Cat", "lives": 9}, Cat(9), {"type": "Dog", "lives": 9}),
    (Tree, {"leaves": 1, "branches": [{"leaves": 2}]}, Tree(1, [Tree(2)]), {"branches": []}),
    (Box[int], {"value": 1, "others": [2]}, Box(1, [2]), {"value": 1, "others": ["a"]}),
    (Crate[int], {"value": 1, "others": {"a": 2}}, Crate(1, {"a": 2}), {"value": "a"}),
    # Classes with something that msgspec cannot read.
    (Folder, FOLDER, Folder(pathlib.Path("/a"), [Folder(pathlib.Path("b"))], 1), {"where": 1}),
    (
        Harbour,
        {"depth": "2.5", "_chart": "c"},
        Harbour(decimal.Decimal("2.5"), pathlib.Path("c")),
        {"depth": "-1"},
    ),
    (Loose, {"where": "a"}, {"where": pathlib.Path("a")}, {"deep": 1}),
    (Loose, {"where": "a", "deep": 2}, {"where": pathlib.Path("a"), "deep": 2}, {"deep": 3}),
    (Paths, ["a"], Paths(pathlib.Path("a")), ["a", 1, 2]),
    (File, {"fullPath": "f"}, File(pathlib.Path("f")), {"fullPath": "f", "more": 1}),
    (Dog, {"kind": "dog", "legs": "l"}, Dog(pathlib.Path("l")), {"kind": "dog", "legs": 1}),
    (Row, ["r", 1], Row(pathlib.Path("r"), 1), [1]),
    (Box[pathlib.Path], {"value": "a"}, Box(pathlib.Path("a")), {"value": 1}),
    (
        Crate[pathlib.Path],
        {"value": "a", "others": {"b": "c"}},
        Crate(pathlib.Path("a"), {"b": pathlib.Path("c")}),
        {"value": "a", "others": {"b": 1}},
    ),
]

NESTED = [
    (lambda hint: hint, lambda it: it, lambda it: it),
    (lambda hint: list[hint], lambda it: [it], lambda it: [it]),
    (lambda hint: dict[str, hint], lambda it: {"k": it}, lambda it: {"k": it}),
    (lambda hint: Optional[hint], lambda it: it, lambda it: it),  # noqa: UP045 - made of a variable
    (lambda hint: Box[hint], lambda it: {"value": it}, Box),
    (lambda hint: tuple[int, hint], lambda it: [1, it], lambda it: (1, it)),
    (lambda hint: Annotated[hint, "a note"], lambda it: it, lambda it: it),
]


def encoded(sent):
    return json.dumps({"it": sent}).encode()


@pytest.mark.parametrize(("wrap", "wrap_json", "wrap_value"), NESTED)
@pytest.mark.parametrize(("hint", "sent", "value", "rejected"), TYPES)
def test_every_type_arrives_as_itself(hint, sent, value, rejected, wrap, wrap_json, wrap_value):
    found = signature(wrap(hint))
    jsonschema.Draft202012Validator.check_schema(found.schema)
    schema = jsonschema.Draft202012Validator(found.schema)
    assert schema.is_valid({"it": wrap_json(sent)})
    arrived = found.decode(encoded(wrap_json(sent))).it
    assert arrived == wrap_value(value)
    assert type(arrived) is type(wrap_value(value))
    if rejected is not ...:
        with pytest.raises(ArgumentsError) as caught:
            found.decode(encoded(wrap_json(rejected)))
        assert all(line.startswith("it") for line in caught.value.lines)


@pytest.mark.requirement("TOOL-16")
@pytest.mark.parametrize(("hint", "sent", "value", "rejected"), TYPES)
def test_every_type_is_a_result_that_reads_as_an_argument_again(hint, sent, value, rejected):
    (content,) = tool_result([[value]], JsonWriter()).content
    found = signature(list[list[hint]])
    read = found.decode(b'{"it":' + content.text.encode() + b"}").it
    if hint is Harbour:  # its private field stays private
        value = attrs.evolve(value, chart=None)
    assert read == [[value]]


def test_a_class_is_built_by_its_own_constructor():
    arrived = signature(Harbour).decode(encoded({"depth": 1, "title": "oslo"})).it
    assert (arrived.title, arrived.late, arrived.names) == ("OSLO", 3, [])
    other = signature(Harbour).decode(encoded({"depth": 1})).it
    assert other.title == "H"
    assert other.names is not arrived.names


def test_fields_that_no_constructor_takes_are_not_offered():
    definitions = signature(list[Harbour | None]).schema["$defs"]
    assert definitions["Harbour"] == {
        "description": "Where ships rest.",
        "type": "object",
        "properties": {
            "depth": {"type": "string", "format": "decimal"},
            "_chart": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
            "names": {"type": "array", "items": {"type": "string"}},
            "title": {"type": "string", "default": "h"},
        },
        "required": ["depth"],
    }


def test_a_class_that_holds_itself_is_one_definition():
    schema = signature(Folder).schema
    assert schema["properties"]["it"] == {"$ref": "#/$defs/Folder"}
    assert schema["$defs"]["Folder"]["properties"]["folders"] == {
        "type": "array",
        "items": {"$ref": "#/$defs/Folder"},
    }


def test_classes_of_the_same_name_are_two_definitions():
    def other():
        @attrs.define
        class Folder:
            path: pathlib.Path

        return Folder

    def handler(a: Folder, b: int):
        pass

    handler.__annotations__["b"] = other()
    schema = signature_of(handler).schema
    refs = {schema["properties"][name]["$ref"].removeprefix("#/$defs/") for name in "ab"}
    assert refs == schema["$defs"].keys()
    assert len(refs) == 2


def test_a_description_of_the_parameter_stands_beside_its_type():
    def handler(where: pathlib.Path, folder: Folder, either: int | pathlib.Path = 3):
        """Short.

        Args:
            where: Where.
            folder: Which.
            either: Or.
        """

    properties = signature_of(handler).schema["properties"]
    assert properties == {
        "where": {"type": "string", "description": "Where."},
        "folder": {"$ref": "#/$defs/Folder", "description": "Which."},
        "either": {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "description": "Or.",
            "default": 3,
        },
    }


@pytest.mark.skipif(
    sys.version_info < (3, 12),
    reason="the statement, and the class of what it makes, are of Python 3.12",
)
def test_an_alias_of_a_type_is_that_type():
    names: dict[str, Any] = {"pathlib": pathlib}
    exec("type Paths = list[pathlib.Path]\ntype Many[T] = dict[str, T]", names)
    paths = [pathlib.Path("a")]
    assert signature(names["Paths"]).decode(encoded(["a"])).it == paths
    assert signature(names["Many"][pathlib.Path]).decode(encoded({"k": "a"})).it == {"k": paths[0]}
    assert signature(names["Many"][int]).decode(encoded({"k": 1})).it == {"k": 1}


def test_text_is_read_as_these_types_too():
    def handler(rights: Rights, where: pathlib.Path, either: int | pathlib.Path, moment: dt.date):
        pass

    found = signature_of(handler)
    arguments = found.decode_text(
        {"rights": "3", "where": "w", "either": "3", "moment": "2024-11-05"}
    )
    assert msgspec.structs.astuple(arguments) == (
        Rights.READ | Rights.WRITE,
        pathlib.Path("w"),
        3,
        dt.date(2024, 11, 5),
    )


def test_the_parameters_of_a_generic_class_may_stay_open():
    assert signature(Crate).decode(encoded({"value": "a"})).it == Crate("a")
    assert typing.get_type_hints(Crate)["value"] is Value


@attrs.define
class Shelf(Generic[Value]):
    first: Value
    place: pathlib.Path
    second: Value | None = None


@attrs.define
class Rack(Shelf[list[Value]], Generic[Value]):
    third: Value | None = None
    second: str | None = None


@attrs.define
class WineRack(Rack[int]):
    year: int = 0


@dataclasses.dataclass
class Drawer(Generic[Value]):
    first: Value
    place: pathlib.Path


@dataclasses.dataclass
class Sock(Drawer[list[int]]):
    second: str | None = None


class Label(TypedDict, Generic[Value]):
    first: Value
    place: pathlib.Path


class WineLabel(Label[list[int]]):
    second: NotRequired[str]


class Tag(NamedTuple, Generic[Value]):
    first: Value
    place: pathlib.Path


class WineTag(Tag[list[int]]):
    pass


@pytest.mark.parametrize("kind", [WineRack, Rack[int], Sock, WineLabel])
def test_fields_inherited_from_a_generic_class_have_its_parameters(kind):
    with pytest.raises(ArgumentsError) as caught:
        signature(kind).decode(encoded({"first": ["x"], "place": "a"}))
    assert caught.value.lines == ["it.first[0]: expected int, got str"]
    (members,) = (it["properties"] for it in signature(kind).schema["$defs"].values())
    assert members["first"] == {"type": "array", "items": {"type": "integer"}}


def test_items_inherited_from_a_generic_tuple_have_its_parameters():
    with pytest.raises(ArgumentsError, match=r"it\[0\]\[0\]: expected int, got str"):
        signature(WineTag).decode(encoded([["x"], "a"]))


def test_a_class_may_give_a_field_of_its_base_another_type():
    with pytest.raises(ArgumentsError, match=r"it.second: expected str \| null, got array"):
        signature(WineRack).decode(encoded({"first": [1], "place": "a", "second": [1]}))


class Berth(TypedDict, total=False):
    place: Annotated[Required[pathlib.Path], "a note"]
    depth: Annotated[NotRequired[Annotated[int, at.Ge(1)]], msgspec.Meta(description="Down.")]


def test_metadata_may_stand_around_the_marks_of_a_typed_dict():
    found = signature(Berth)
    assert found.decode(encoded({"place": "a"})).it == {"place": pathlib.Path("a")}
    (definition,) = found.schema["$defs"].values()
    assert definition["required"] == ["place"]
    assert definition["properties"]["depth"] == {
        "type": "integer",
        "minimum": 1,
        "description": "Down.",
    }


# Whatever the type: its schema is valid, and accepts exactly what is decoded.


class ColourTypesAndSchemas(enum.Enum):
    RED = "a"
    BLUE = "b"


class RightsTypesAndSchemas(enum.Flag):
    READ = 1
    WRITE = 2


@attrs.define
class PointTypesAndSchemas:
    x: int
    y: Annotated[int, at.Ge(0)] = 0


class FilterTypesAndSchemas(TypedDict):
    x: str
    y: NotRequired[pathlib.Path]


class PairTypesAndSchemas(NamedTuple):
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
        ColourTypesAndSchemas,
        RightsTypesAndSchemas,
        PointTypesAndSchemas,
        FilterTypesAndSchemas,
        PairTypesAndSchemas,
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
# No floats that are whole: they are integers in JSON Schema, and none to a strict decoder.
VALUES = st.recursive(
    st.sampled_from([None, True, False, -2, 0, 1, 3, 4, 0.5, "", "a", "b", "abc"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y", "a"]), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(HINTS, VALUES)
def test_the_schema_of_every_type_is_valid_and_says_what_is_decoded(hint, value):
    found = signature(hint)
    Draft202012Validator.check_schema(found.schema)
    lines = []
    try:
        found.decode(json.dumps({"it": value}).encode())
    except ArgumentsError as error:
        lines = error.lines
    assert Draft202012Validator(found.schema).is_valid({"it": value}) == (not lines)
    assert all(line.startswith(("it", "key in it")) for line in lines)


class Money:
    """A class of somebody's library: nothing about it can be looked up."""

    def __init__(self, amount, currency):
        self.amount = amount
        self.currency = currency

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __hash__(self):
        return hash((self.amount, self.currency))


class Depth:
    def __init__(self, metres):
        self.metres = metres


class Cargo:
    def __init__(self, content):
        self.content = content


class Unknown:
    pass


class BoxTypesConverter(Generic[Value]):
    def __init__(self, content):
        self.content = content


class Code(str):
    __slots__ = ()


@attrs.define
class Leg:
    days: int
    price: Money


@attrs.define
class TripTypesConverter:
    legs: list[Leg]
    extras: dict[str, int]
    total: Money


@dataclasses.dataclass
class Bill:
    total: Money
    tip: Money | None = None


class Order(msgspec.Struct):
    price: Money


class Offer(TypedDict):
    price: Money


class PairTypesConverter(NamedTuple):
    one: Money
    other: Money


def make_converter():
    converter = Converter(forbid_extra_keys=True)

    @converter.register_structure_hook
    def structure_money(text: str, _: Any) -> Money:
        amount, currency = text.split()
        if currency not in {"EUR", "NOK"}:
            raise ValueError(f"No such currency: {currency}")
        return Money(int(amount), currency)

    @converter.register_unstructure_hook
    def unstructure_money(money: Money) -> str:
        return f"{money.amount} {money.currency}"

    converter.register_structure_hook(Depth, lambda value, _: Depth(10 / value["metres"]))
    converter.register_unstructure_hook(Depth, lambda depth: {"metres": {depth.metres}})
    converter.register_structure_hook(
        Cargo, lambda value, _: Cargo(converter.structure(value, TripTypesConverter))
    )
    converter.register_structure_hook_func(
        lambda kind: getattr(kind, "__origin__", None) is BoxTypesConverter,
        lambda value, kind: BoxTypesConverter(converter.structure(value, kind.__args__[0])),
    )
    return converter


CONVERTER = make_converter()
NOK = Money(3, "NOK")
EUR = Money(1, "EUR")


signature_types_converter = functools.partial(conftest.signature, converter=CONVERTER)
read_types_converter = functools.partial(conftest.read, converter=CONVERTER)
lines_types_converter = functools.partial(conftest.lines, converter=CONVERTER)


def written(value):
    return json.loads(JsonWriter(CONVERTER).encode(value))


@pytest.mark.parametrize(
    ("hint", "sent", "value"),
    [
        (Money, "3 NOK", NOK),
        (Annotated[Money, "a note"], "3 NOK", NOK),
        (list[Money], ["3 NOK", "1 EUR"], [NOK, EUR]),
        (dict[str, Money], {"a": "3 NOK"}, {"a": NOK}),
        (dict[Money, int], {"3 NOK": 1}, {NOK: 1}),
        (tuple[Money, int], ["3 NOK", 1], (NOK, 1)),
        (Money | None, None, None),
        (Money | None, "3 NOK", NOK),
        (int | Money, "3 NOK", NOK),
        (Leg, {"days": 2, "price": "3 NOK"}, Leg(2, NOK)),
        (list[Leg], [{"days": 2, "price": "3 NOK"}], [Leg(2, NOK)]),
        (Bill, {"total": "3 NOK", "tip": "1 EUR"}, Bill(NOK, EUR)),
        (Order, {"price": "3 NOK"}, Order(NOK)),
        (Offer, {"price": "3 NOK"}, {"price": NOK}),
        (PairTypesConverter, ["3 NOK", "1 EUR"], PairTypesConverter(NOK, EUR)),
        (collections.deque[int], [1, 2], collections.deque([1, 2])),
    ],
)
def test_a_type_that_only_the_converter_knows_is_read_wherever_it_stands(hint, sent, value):
    found = read_types_converter(hint, sent)
    assert found == value
    assert type(found) is type(value)
    jsonschema.Draft202012Validator(signature_types_converter(hint).schema).validate({"it": sent})
    if not isinstance(value, collections.deque):  # cattrs leaves those as they are
        assert written(value) == sent


def test_a_generic_class_is_read_with_its_parameter():
    assert read_types_converter(BoxTypesConverter[int], 3).content == 3
    assert lines_types_converter(BoxTypesConverter[int], "x") == ["it: expected Box[int]"]


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (Money, {"type": "string"}),
        (Depth, {}),
        (collections.deque[int], {}),
        (
            Annotated[Money, msgspec.Meta(extra_json_schema={"pattern": r"^\d+ [A-Z]{3}$"})],
            {"type": "string", "pattern": r"^\d+ [A-Z]{3}$"},
        ),
        (
            Annotated[
                Depth, msgspec.Meta(description="Down.", extra_json_schema={"type": "object"})
            ],
            {"type": "object", "description": "Down."},
        ),
        (list[Money], {"type": "array", "items": {"type": "string"}}),
    ],
)
def test_the_schema_is_that_of_what_the_hook_takes_or_what_the_annotation_says(hint, schema):
    assert signature_types_converter(hint).schema["properties"]["it"] == schema


class Sent(msgspec.Struct):
    price: int


def taking(annotation):
    def hook(value, _):
        return Depth(value)

    hook.__annotations__["value"] = annotation
    converter = Converter()
    converter.register_structure_hook(Depth, hook)
    return converter


def test_a_hook_receives_the_type_that_it_is_annotated_with():
    converter = taking(Sent)
    assert read_types_converter(Depth, {"price": 3}, converter=converter).metres == Sent(3)
    assert lines_types_converter(Depth, {"price": "3"}, converter=converter) == [
        "it.price: expected int, got str"
    ]
    schema = signature_types_converter(Depth, converter=converter).schema
    assert schema["$defs"]["Sent"]["required"] == ["price"]
    assert schema["properties"]["it"] == {"$ref": "#/$defs/Sent"}


@pytest.mark.parametrize("annotation", [Depth, "Missing", list[Unknown], Any, int | Depth])
def test_a_hook_with_an_unreadable_annotation_receives_plain_json(annotation):
    converter = taking(annotation)
    assert signature_types_converter(Depth, converter=converter).schema["properties"]["it"] == {}
    assert read_types_converter(Depth, [1], converter=converter).metres == [1]


def test_a_hook_that_is_no_python_function_receives_plain_json():
    converter = Converter()
    converter.register_structure_hook(fractions.Fraction, fractions.Fraction)
    assert (
        signature_types_converter(fractions.Fraction, converter=converter).schema["properties"][
            "it"
        ]
        == {}
    )


@pytest.mark.parametrize(
    ("hint", "sent", "expected"),
    [
        (Money, "3 XXX", ["it: no such currency: XXX"]),
        (Money, "3", ["it: expected Money"]),
        (Money, 3, ["it: expected str, got int"]),
        (list[Money], ["3 NOK", "3 XXX", 3], [
            "it[1]: no such currency: XXX",
            "it[2]: expected str, got int",
        ]),
        (dict[str, Money], {"a b": "3 XXX"}, ['it["a b"]: no such currency: XXX']),
        (Leg, {"days": "x", "price": "3 XXX"}, [
            "it.days: expected int, got str",
            "it.price: no such currency: XXX",
        ]),
        (Depth, {}, ["it.metres: missing"]),
        (Depth, [], ["it: expected Depth"]),
        (Depth, {"metres": 0}, ["it: expected Depth"]),
        (Depth | list[int], {"metres": "x"}, ["it: expected Depth | list[int]"]),
    ],
)  # fmt: skip
def test_a_value_that_a_hook_rejects_has_a_line_with_its_field(hint, sent, expected):
    assert lines_types_converter(hint, sent) == expected


def test_all_errors_of_the_converter_are_reported_with_nested_paths():
    sent = {
        "legs": [{"days": "x", "price": "1 EUR", "odd": 1}, {"price": "3 XXX"}, 5],
        "extras": {"a b": "x"},
    }
    assert sorted(lines_types_converter(list[Cargo], [sent])) == [
        'it[0].extras["a b"]: expected int',
        "it[0].legs[0].days: expected int",
        "it[0].legs[0].odd: unknown field",
        "it[0].legs[1].days: missing",
        "it[0].legs[1].price: no such currency: XXX",
        "it[0].legs[2]: expected Leg",
        "it[0].total: missing",
    ]


def test_a_hook_may_decode_a_value_that_differs_from_the_input():
    converter = make_converter()
    converter.register_structure_hook(
        Cargo,
        lambda value, _: converter.structure(
            {"legs": value, "extras": {}, "total": {}}, TripTypesConverter
        ),
    )
    assert sorted(
        lines_types_converter(Cargo, [{"days": "x", "price": "1 EUR"}], converter=converter)
    ) == [
        "it.legs[0].days: expected int",
        "it.total: expected Money",
    ]


def test_a_converter_that_stops_at_the_first_error_reports_that_error():
    converter = Converter(detailed_validation=False)
    converter.register_structure_hook(Cargo, lambda value, _: converter.structure(value, Leg))
    converter.register_structure_hook(Money, lambda value, _: Money(1, value))
    assert lines_types_converter(Cargo, {"price": "EUR"}, converter=converter) == [
        "it.days: missing"
    ]


@attrs.define
class Wrong:
    it: Unknown


def broken_hook(_value, _kind):
    raise OSError("no such table")


@pytest.mark.parametrize("hint", [Depth, list[Depth]])
@pytest.mark.parametrize("detailed", [False, True])
def test_an_error_unrelated_to_the_input_is_not_a_validation_error(hint, detailed):
    converter = Converter(detailed_validation=detailed)
    converter.register_structure_hook(Unknown, broken_hook)
    converter.register_structure_hook(Depth, lambda value, _: converter.structure(value, Wrong))
    with pytest.raises((OSError, ExceptionGroup)) as caught:
        read_types_converter(hint, {"it": 1} if hint is Depth else [{"it": 1}], converter=converter)
    assert "OSError: no such table" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("converter", [None, CONVERTER])
@pytest.mark.parametrize("hint", [Unknown, list[Unknown], Wrong, type, collections.abc.Callable])
def test_a_type_without_a_hook_is_rejected_with_advice(hint, converter):
    with pytest.raises(
        TypeError, match=r"parameter 'it': the type .* has no JSON form.*converter="
    ):
        signature_types_converter(hint, converter=converter).schema  # noqa: B018
    with pytest.raises(TypeError, match=r"Unknown.*has no JSON form.*Server\(converter="):
        JsonWriter(converter).encode([Unknown()])


def test_text_arguments_are_decoded_as_the_type_that_the_hook_takes():
    converter = Converter()

    @converter.register_structure_hook
    def depth(metres: float, _: Any) -> Depth:
        return Depth(metres)

    decode = signature_types_converter(Depth, converter=converter).decode_text
    assert decode({"it": "2.5"}).it.metres == 2.5
    with pytest.raises(ArgumentsError, match="it: expected float, got str"):
        decode({"it": "deep"})


def test_a_default_is_listed_as_plain_json_and_never_shared():
    missing, nothing = object(), Unknown()

    def handler(
        price: Money = NOK, other: Money = missing, depth: Depth = nothing, code: Code = "x"
    ):
        pass

    found = Signature(handler=handler, context_type=Context, converter=CONVERTER)
    assert found.schema["properties"]["price"] == {"type": "string", "default": "3 NOK"}
    assert "default" not in found.schema["properties"]["other"]
    one, two = found.decode(None), found.decode(None)
    assert one.price == two.price == NOK
    assert one.price is not two.price
    assert one.other is missing
    assert one.depth is nothing


def test_types_that_msgspec_supports_do_not_reach_the_converter():
    converter = Converter()
    converter.register_structure_hook(Sent, lambda _value, _: 1 / 0)
    assert read_types_converter(Sent, {"price": 1}, converter=converter) == Sent(1)


def test_the_output_of_a_hook_is_put_in_a_stable_order():
    assert written({"a": {EUR, NOK}, "b": Depth(2)}) == {
        "a": ["1 EUR", "3 NOK"],
        "b": {"metres": [2]},
    }


def make_server(converter=CONVERTER):
    server = Server("shop", converter=converter)

    @server.tool
    async def pay(bill: Bill, by: dict[str, Money], *, ctx: Context) -> list[Money]:
        await ctx.info(bill.total.currency)
        return [bill.total, *by.values()]

    @server.tool(thread=False)
    def spend(price: Money):
        return Unknown()

    @server.resource("prices://{price}")
    async def price(price: Money) -> Bill:
        return Bill(price)

    @server.prompt
    def haggle(price: Money) -> str:
        return f"Less than {price.amount}?"

    @server.method("acme/price")
    async def quote(params: dict) -> dict:
        return {"price": NOK}

    return server


PAID = {"bill": {"total": "3 NOK"}, "by": {"ida": "1 EUR"}}


async def test_a_server_with_a_converter_uses_it_for_arguments_and_results():
    async with Client(make_server(), methods={"acme/price": dict}) as client:
        result = await client.call_tool("pay", PAID)
        assert json.loads(result.content[0].text) == ["3 NOK", "1 EUR"]
        (contents,) = (await client.read_resource("prices://3%20NOK")).contents
        assert json.loads(contents.text) == {"total": "3 NOK", "tip": None}
        prompt = await client.get_prompt("haggle", {"price": "3 NOK"})
        assert prompt.messages[0].content.text == "Less than 3?"
        assert (await client.request("acme/price", {}))["price"] == "3 NOK"
        with pytest.raises(ToolError, match=r"bill.total: no such currency: XXX"):
            await client.call_tool("pay", {"bill": {"total": "3 XXX"}, "by": {}})


async def test_a_result_that_cannot_be_encoded_is_an_internal_error(caplog):
    async with Client(make_server()) as client:
        with pytest.raises(RequestError, match="internal error"):
            await client.call_tool("spend", {"price": "3 NOK"})
    assert "Server(converter=" in caplog.text


async def test_values_of_a_converter_replay_to_the_same_bytes(tmp_path, serve):
    path = tmp_path / "shop.mcprec.jsonl"
    asker = await serve(make_server(), record=path)
    await asker.result("tools/list")
    assert json.loads(await asker.call("pay", **PAID)) == ["3 NOK", "1 EUR"]
    await asker.error("tools/call", {"name": "pay", "arguments": {"bill": {"total": "3 X"}}})
    await asker.wire.aclose()
    await trio.testing.wait_all_tasks_blocked()
    report = await trio.to_thread.run_sync(replay, path, make_server())
    assert report.is_complete
    assert report.requests == 3
    other = make_converter()
    other.register_unstructure_hook(Money, lambda money: money.amount)
    with pytest.raises(ReplayDivergence):
        await trio.to_thread.run_sync(replay, path, make_server(other))


def test_cattrs_is_imported_only_if_a_converter_is_given():
    code = """
import sys
import traceback
from mcp_trio import Server
server = Server("plain")
@server.tool
def handler(a: list[int] | None, b: int = 3): pass
tool = server._registry.tools["handler"]
assert tool.signature.schema and tool.signature.decode(b'{"a":[1]}') and server._sessions.writer.encode([{1, 2}])
assert "cattrs" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


class Address(BaseModel):
    """Where someone lives."""

    city: str
    number: int = Field(gt=0)


class CatTypesPydantic(BaseModel):
    kind: Literal["cat"]
    lives: int


class DogTypesPydantic(BaseModel):
    kind: Literal["dog"]
    legs: int


Pet = Annotated[CatTypesPydantic | DogTypesPydantic, Field(discriminator="kind")]


class Person(BaseModel):
    name: str = Field(alias="fullName")
    address: Address
    pets: list[Pet] = []
    either: int | list[int] | None = None
    friend: Optional["Person"] = None
    tags: set[str] = set()

    @pydantic.field_validator("name")
    @classmethod
    def not_bad(cls, name):
        if name == "bad":
            raise ValueError("No such\n name")
        if name == "worse":
            raise AssertionError("Even less")
        return name


class ClosedTypesPydantic(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    where: pathlib.Path
    pair: tuple[int, int]


class Page(BaseModel, Generic[Value]):
    items: list[Value]


class Depths(BaseModel):
    by_name: dict[str, int] = {}


class Names(RootModel[list[str]]):
    pass


@dataclass
class Tide:
    height: int = Field(gt=0, default=3)


@dataclass
class LevelTypesPydantic(Generic[Value]):
    value: Value


@attrs.define
class HarbourTypesPydantic:
    address: Address
    people: list[Person] = attrs.Factory(list)


OSLO = {"city": "Oslo", "number": 1}
ADDRESS = Address(**OSLO)
PERSON = {"fullName": "Ida", "address": OSLO, "pets": [{"kind": "cat", "lives": 9}]}


@pytest.mark.parametrize(
    ("hint", "sent", "value"),
    [
        (Address, OSLO, ADDRESS),
        (Address | None, None, None),
        (list[Address], [OSLO], [ADDRESS]),
        (dict[str, Address], {"a": OSLO}, {"a": ADDRESS}),
        (Person, PERSON, Person(**PERSON)),
        (Address | int, 3, 3),
        (Address | int, OSLO, ADDRESS),
        (
            CatTypesPydantic | DogTypesPydantic,
            {"kind": "dog", "legs": 4},
            DogTypesPydantic(kind="dog", legs=4),
        ),
        (Pet, {"kind": "dog", "legs": 4}, DogTypesPydantic(kind="dog", legs=4)),
        (Page[int], {"items": [1]}, Page[int](items=[1])),
        (Names, ["a"], Names(["a"])),
        (Tide, {"height": 2}, Tide(2)),
        (Tide, {}, Tide()),
        (LevelTypesPydantic[int], {"value": 1}, LevelTypesPydantic[int](1)),
        (
            ClosedTypesPydantic,
            {"where": "a", "pair": [1, 2]},
            ClosedTypesPydantic(where=pathlib.Path("a"), pair=(1, 2)),
        ),
        (Annotated[int, Field(gt=1)], 2, 2),
        (HttpUrl, "http://a/", HttpUrl("http://a/")),
        (HarbourTypesPydantic, {"address": OSLO}, HarbourTypesPydantic(ADDRESS)),
        (
            HarbourTypesPydantic,
            {"address": OSLO, "people": [PERSON]},
            HarbourTypesPydantic(ADDRESS, [Person(**PERSON)]),
        ),
    ],
)
def test_pydantic_values_arrive_as_their_classes(hint, sent, value):
    arrived = read(hint, sent)
    assert arrived == value
    assert type(arrived) is type(value)
    schema = signature(hint).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"it": sent}, schema)


def test_its_definitions_join_ours_without_the_titles_of_fields():
    def handler(
        harbour: HarbourTypesPydantic,
        person: Person,
        days: Annotated[int, Field(description="How many.")],
    ):
        """Short.

        Args:
            person: Who.
        """

    schema = signature_of(handler).schema
    assert schema["properties"] == {
        "harbour": {"$ref": "#/$defs/Harbour"},
        "person": {"$ref": "#/$defs/Person", "description": "Who."},
        "days": {"type": "integer", "description": "How many."},
    }
    assert schema["$defs"].keys() == {"Harbour", "Address", "Person", "Cat", "Dog"}
    assert schema["$defs"]["Address"] == {
        "type": "object",
        "description": "Where someone lives.",
        "properties": {
            "city": {"type": "string"},
            "number": {"type": "integer", "exclusiveMinimum": 0},
        },
        "required": ["city", "number"],
    }


def other_address():
    class Inner(BaseModel):
        way: str

    @attrs.define
    class Person:
        age: int

    class Address(BaseModel):
        inner: Inner
        next: Optional["Address"] = None

    return Address, Person


def test_names_that_are_taken_get_a_number():
    def handler(a: Address, b: int, c: Person, d: int):
        pass

    handler.__annotations__["b"], handler.__annotations__["d"] = other_address()
    schema = signature_of(handler).schema
    places = [schema["properties"][name]["$ref"] for name in "abcd"]
    assert places == ["#/$defs/Address", "#/$defs/Address_2", "#/$defs/Person_3", "#/$defs/Person"]
    assert schema["$defs"].keys() >= {"Address_2", "Inner_2", "Cat_3", "Person_3", "Person"}
    sent = {"a": OSLO, "b": {"inner": {"way": "w"}, "next": {"inner": {"way": "v"}}}}
    sent |= {"c": PERSON, "d": {"age": 3}}
    jsonschema.validate(sent, schema)
    for wrong in ({"b": OSLO}, {"c": {"age": 3}}, {"b": {"inner": {"way": 3}}}):
        assert not jsonschema.Draft202012Validator(schema).is_valid(sent | wrong)


@pytest.mark.parametrize(
    ("hint", "sent", "expected"),
    [
        (
            Person,
            {
                "fullName": "bad",
                "address": {"number": "x"},
                "pets": [{"kind": "cat"}, {"kind": "cow"}],
                "either": ["a"],
            },
            [
                "it.fullName: no such name",
                "it.address.city: missing",
                "it.address.number: should be a valid integer, unable to parse string as an integer",
                "it.pets[0].lives: missing",
                "it.pets[1]: tag 'cow' found using 'kind' does not match any of the expected tags: 'cat', 'dog'",
                "it.either: should be a valid integer",
                "it.either[0]: should be a valid integer, unable to parse string as an integer",
            ],
        ),
        (Person, {"fullName": "worse", "address": OSLO}, ["it.fullName: even less"]),
        (
            ClosedTypesPydantic,
            {"where": 1, "more": 2},
            ["it.where: should be a valid string", "it.pair: missing", "it.more: unknown field"],
        ),
        (Address, 3, ["it: should be an object"]),
        (list[Address], [OSLO, {}], ["it[1].city: missing", "it[1].number: missing"]),
        (Address | int, "x", ["it: expected Address | int"]),
        (Annotated[int, Field(gt=1)], 1, ["it: should be greater than 1"]),
        (Tide, {"height": 0}, ["it.height: should be greater than 0"]),
        (
            HarbourTypesPydantic,
            {"address": {}, "people": [{"fullName": 1}]},
            [
                "it.address.city: missing",
                "it.address.number: missing",
                "it.people[0].fullName: should be a valid string",
                "it.people[0].address: missing",
            ],
        ),
    ],
)
def test_all_that_pydantic_finds_has_a_short_line(hint, sent, expected):
    assert lines(hint, sent) == expected


def test_odd_keys_are_quoted_in_its_paths_too():
    assert lines(Depths, {"by_name": {"a b": "x"}}) == [
        'it.by_name["a b"]: should be a valid integer, unable to parse string as an integer'
    ]


def test_a_default_of_its_classes_is_never_shared_between_calls():
    def handler(it: Depths = Depths()):  # noqa: B008 - the default is what is tested
        pass

    found = signature_of(handler)
    found.decode(None).it.by_name["a"] = 1
    assert found.decode(None).it.by_name == {}


def test_a_deeply_nested_error_keeps_its_path():
    hint, sent = Address, {"number": 0}
    for _ in range(9):
        hint, sent = list[hint], [sent]
    assert lines(hint, sent) == [f"it{'[0]' * 9}.city: missing"]


def test_text_is_read_by_its_rules():
    def handler(days: Annotated[int, Field(gt=1)]):
        pass

    found = signature_of(handler)
    assert found.decode_text({"days": "2"}).days == 2
    with pytest.raises(ArgumentsError, match=r"^days: should be greater than 1$"):
        found.decode_text({"days": "1"})


def test_an_exception_that_is_no_verdict_passes():
    class Broken(BaseModel):
        name: str

        @pydantic.field_validator("name")
        @classmethod
        def fail(cls, name):
            raise KeyError(name)

    with pytest.raises(KeyError, match="x"):
        read(Broken, {"name": "x"})


class Bag(BaseModel):
    sets: dict[int, set[str]]
    pairs: tuple[frozenset[str], ...] = ()
    odd: set[str] = set()

    @pydantic.field_serializer("odd")
    def joined(self, odd):
        return "-".join(sorted(odd))


@pytest.mark.requirement("TOOL-16")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ADDRESS, '{"city":"Oslo","number":1}'),
        ([ADDRESS, 3], '[{"city":"Oslo","number":1},3]'),
        ({"a": ADDRESS}, '{"a":{"city":"Oslo","number":1}}'),
        (HarbourTypesPydantic(ADDRESS), '{"address":{"city":"Oslo","number":1},"people":[]}'),
        (Tide(4), '{"height":4}'),
        (Names(["b", "a"]), '["b","a"]'),
        (HttpUrl("http://a/"), '"http://a/"'),
        (
            Person(fullName="Ida", address=ADDRESS, tags={"c", "a", "b"}),
            (
                '{"fullName":"Ida","address":{"city":"Oslo","number":1},"pets":[],"either":null,'
                '"friend":null,"tags":["a","b","c"]}'
            ),
        ),
        (
            Bag(sets={1: {"b", "a"}}, pairs=({"d", "c"},), odd={"f", "e"}),
            '{"sets":{"1":["a","b"]},"pairs":[["c","d"]],"odd":"e-f"}',
        ),
    ],
)
def test_pydantic_output_has_fields_in_order_and_sorted_sets(value, text):
    assert tool_result(value, JsonWriter()).content[0].text == text


def test_an_annotation_that_pydantic_cannot_read_names_function_and_parameter():
    with pytest.raises(TypeError, match="handler: parameter 'it': "):
        signature(Annotated[types.SimpleNamespace, Field()]).schema  # noqa: B018


async def test_a_tool_takes_and_gives_models(serve):
    server = Server("harbour")

    @server.tool
    async def move(person: Person, to: Address | None = None) -> Person:
        person.address = to or person.address
        return person

    asker = await serve(server)
    moved = json.loads(await asker.call("move", person=PERSON, to={"city": "Bergen", "number": 2}))
    assert moved["address"]["city"] == "Bergen"
    (tool,) = (await asker.result("tools/list"))["tools"]
    assert "url" not in json.dumps(tool)
    arguments = {"person": {"fullName": 3}, "to": {}}
    error = await asker.error("tools/call", {"name": "move", "arguments": arguments})
    assert error["message"].splitlines() == [
        "invalid arguments: person.fullName: should be a valid string",
        "person.address: missing",
        "to.city: missing",
        "to.number: missing",
    ]


def test_pydantic_is_imported_only_if_a_type_of_it_is_used():
    code = """
import sys
from mcp_trio._server.results import JsonWriter
from mcp_trio._server.signatures import Signature
class Mine:
    __get_pydantic_core_schema__ = None
def handler(a: list[int] | None, b: int = 3): pass
found = Signature(handler=handler, context_type=Mine)
found.schema, found.decode(b'{"a":[1]}'), JsonWriter().encode([{1, 2}])
assert "pydantic" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@attrs.define
class PointTypesUnions:
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
        (PointTypesUnions | Ship, {"x": 1}, PointTypesUnions(1)),
        (PointTypesUnions | Ship, {"x": "a"}, Ship("a")),
        (PointTypesUnions | Ship, {"x": "a", "y": 1}, Ship("a")),
        (Sea | PointTypesUnions, {"x": 1, "y": 2}, PointTypesUnions(1, 2)),
        (Sea | PointTypesUnions, {"x": 1}, PointTypesUnions(1)),
        (Sea | PointTypesUnions, {}, {}),
        (dict[str, int] | PointTypesUnions, {"x": 1}, PointTypesUnions(1)),
        (dict[str, int] | PointTypesUnions, {"z": 1}, {"z": 1}),
        (Tagged | Other, {"type": "o", "where": "w"}, Other("w")),
        (Tagged | Other, {"type": "t", "where": "w"}, Tagged(pathlib.Path("w"))),
        (
            list[PointTypesUnions | Ship | None],
            [{"x": 1}, None, {"x": "a"}],
            [PointTypesUnions(1), None, Ship("a")],
        ),
        (Annotated[int, at.Ge(5)] | pathlib.Path, 5, 5),
    ],
)
def test_a_union_is_its_first_member_that_fits(hint, sent, value):
    assert read(hint, sent) == value
    schema = signature(hint).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"it": sent}, schema)


def test_its_schema_is_any_of_its_members():
    assert signature(str | uuid.UUID | PointTypesUnions).schema["properties"]["it"] == {
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
            PointTypesUnions | Ship,
            {"x": None, "y": None},
            ["it.x: expected int, got null", "it.y: expected int, got null"],
        ),
        (PointTypesUnions | Ship, {"sails": 1}, ["it.x: missing"]),
        (PointTypesUnions | Ship, {"z": 1}, ["it: expected Point | Ship"]),
        (Tagged | Other, {"type": "t"}, ["it.where: missing"]),
        (
            list[PointTypesUnions | Ship],
            [{"y": 1}, 3],
            ["it[0].x: missing", "it[1]: expected Point | Ship"],
        ),
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
        TypeError, match=r"'it': .*holds itself: make its members structs with a tag"
    ):
        signature(Left).schema  # noqa: B018


HINTS_TYPES_UNIONS = st.lists(
    st.sampled_from(
        [int, str, bool, None, PointTypesUnions, Ship, Sea, list[int], list[str], dict[str, int]]
    ),
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


@settings(max_examples=150, deadline=None)
@given(HINTS_TYPES_UNIONS, SENT)
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


Meta = msgspec.Meta
readable = TypeReader().readable


@pytest.mark.parametrize(
    ("hint", "translated"),
    [
        (Annotated[int, at.Ge(1)], Annotated[int, Meta(ge=1)]),
        (Annotated[int, at.Gt(1)], Annotated[int, Meta(gt=1)]),
        (Annotated[float, at.Le(1.5)], Annotated[float, Meta(le=1.5)]),
        (Annotated[float, at.Lt(1.5)], Annotated[float, Meta(lt=1.5)]),
        (Annotated[int, at.MultipleOf(5)], Annotated[int, Meta(multiple_of=5)]),
        (Annotated[str, at.MinLen(1)], Annotated[str, Meta(min_length=1)]),
        (Annotated[str, at.MaxLen(2)], Annotated[str, Meta(max_length=2)]),
        (Annotated[str, at.Len(1, 2)], Annotated[str, Meta(min_length=1, max_length=2)]),
        (Annotated[int, at.Interval(gt=1, le=5)], Annotated[int, Meta(gt=1, le=5)]),
        (Annotated[int, at.Ge(1), at.Le(5)], Annotated[int, Meta(ge=1, le=5)]),
        (Annotated[int, at.doc("How many.")], Annotated[int, Meta(description="How many.")]),
        (Annotated[int, at.Ge(1), Meta(title="t")], Annotated[int, Meta(title="t"), Meta(ge=1)]),
        (Annotated[int, "a note"], Annotated[int, "a note"]),
        (Annotated[int | None, at.Ge(1)], Annotated[int, Meta(ge=1)] | None),
        (
            Annotated[dt.datetime, at.Timezone(...)],
            Annotated[dt.datetime, Meta(tz=True)],
        ),
        (list[Annotated[int, at.Ge(1)]], list[Annotated[int, Meta(ge=1)]]),
        (dict[str, Annotated[int, at.Ge(1)]], dict[str, Annotated[int, Meta(ge=1)]]),
        (tuple[Annotated[int, at.Ge(1)], ...], tuple[Annotated[int, Meta(ge=1)], ...]),
        (Annotated[int, at.Ge(1)] | None, Annotated[int, Meta(ge=1)] | None),
        (Optional[Annotated[int, at.Ge(1)]], Annotated[int, Meta(ge=1)] | None),  # noqa: UP045
        (
            Annotated[list[Annotated[str, at.MinLen(1)]], at.MaxLen(3)],
            Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=3)],
        ),
    ],
)
def test_a_constraint_becomes_the_meta_of_msgspec(hint, translated):
    assert readable(hint) == translated


@pytest.mark.parametrize(
    "hint", [int, None, Any, Literal["a", 1], list, list[int], int | str, tuple[()], dt.date]
)
def test_what_has_no_constraint_stays_itself(hint):
    assert readable(hint) is hint


@pytest.mark.parametrize(
    ("hint", "good", "bad", "line"),
    [
        (Annotated[decimal.Decimal, at.Gt(0)], "0.1", "0", "expected Decimal > 0"),
        (Annotated[decimal.Decimal, at.Lt(decimal.Decimal(2))], "1.9", "2", "expected Decimal < 2"),
        (
            Annotated[dt.date, at.Ge(dt.date(2024, 1, 1))],
            "2024-01-01",
            "2023-12-31",
            "expected date >= 2024-01-01",
        ),
        (
            Annotated[dt.time, at.Le(dt.time(12))],
            "12:00:00",
            "12:00:01",
            "expected time <= 12:00:00",
        ),
        (
            Annotated[decimal.Decimal, at.MultipleOf(5)],
            "15",
            "16",
            "expected Decimal that's a multiple of 5",
        ),
        (Annotated[str, at.Ge("b")], "b", "a", "expected str >= b"),
        (Annotated[str, at.Predicate(str.islower)], "a", "A", "expected str that islower accepts"),
        (at.LowerCase[str], "a", "A", "expected str that islower accepts"),
        (Annotated[int, at.Predicate(lambda n: n != 3)], 2, 3, "expected another int"),
        (Annotated[float, at.Ge(1), at.Predicate(lambda n: n != 3)], 2, 0, "expected float >= 1.0"),
        (
            Annotated[pathlib.Path, at.Predicate(pathlib.Path.is_absolute)],
            "/a",
            "a",
            "expected Path that is_absolute accepts",
        ),
        (
            Annotated[dt.datetime, at.Timezone(...)],
            "2024-01-01T00:00:00Z",
            "2024-01-01T00:00:00",
            "expected datetime with a timezone component",
        ),
        (
            Annotated[dt.datetime, at.Timezone(None)],
            "2024-01-01T00:00:00",
            "2024-01-01T00:00:00Z",
            "expected datetime with no timezone component",
        ),
    ],
)
def test_what_msgspec_cannot_say_is_checked_after_it(hint, good, bad, line):
    assert convert(good, readable(hint)) is not ...
    with pytest.raises(msgspec.ValidationError) as caught:
        convert([bad], readable(list[hint]))
    assert mistakes.line(caught.value) == f"[0]: {line}"


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[str, at.Timezone("UTC")],
        Annotated[int, at.Unit("m")],
        Annotated[str, at.Ge(1)],
        Annotated[dt.date, at.Gt(1)],
        Annotated[int, at.MinLen(1)],
        Annotated[pathlib.Path, at.MaxLen(1)],
        Annotated[Any, at.Ge(1)],
    ],
)
def test_a_constraint_that_nobody_could_check_is_rejected(hint):
    with pytest.raises(TypeError, match=r"the constraint .* (is not supported|does not fit \w+)$"):
        readable(hint)


Positive = Annotated[int, at.Gt(0)]


@attrs.define
class Attrs:
    depth: Positive


@dataclasses.dataclass
class Data:
    depth: Annotated[Positive, at.Le(9)]


class Struct(msgspec.Struct):
    depth: Positive | None = None


class Typed(TypedDict):
    depth: Positive


@attrs.define
class Outer:
    depth: "list[Data]"


@pytest.mark.parametrize("kind", [Attrs, Data, Struct, Typed])
def test_a_constraint_at_a_field_of_a_class_is_checked_and_in_the_schema(kind):
    schema = json_schema(readable(list[kind]))
    assert schema["items"] == {"$ref": f"#/$defs/{kind.__name__}"}
    (definition,) = schema["$defs"].values()
    assert "'exclusiveMinimum': 0" in str(definition["properties"]["depth"])
    (built,) = convert([{"depth": 1}], readable(list[kind]))
    assert isinstance(built, dict if kind is Typed else kind)
    with pytest.raises(
        msgspec.ValidationError, match=r"Expected `int` >= 1 - at `\$.depth` - at `\$\[0\]`"
    ):
        convert([{"depth": 0}], readable(list[kind]))


def test_a_constraint_is_found_at_any_depth_of_classes():
    assert convert({"depth": [{"depth": 9}]}, readable(Outer)) == Outer([Data(9)])
    with pytest.raises(msgspec.ValidationError):
        convert({"depth": [{"depth": 10}]}, readable(Outer))


@attrs.define
class TreeConstraints:
    branches: "list[Tree]"
    leaves: Annotated[int, Meta(ge=0)] = 0


def test_a_class_that_msgspec_can_read_stays_itself():
    assert readable(TreeConstraints) is TreeConstraints


async def test_constraints_show_in_the_schema_and_are_checked(serve):
    server = Server("harbour")

    @server.tool
    async def sail(
        days: Annotated[int, at.Interval(ge=1, le=14)],
        ports: Annotated[list[Annotated[str, at.MinLen(2)]], at.MaxLen(2)] = (),
    ) -> str:
        """Go.

        Args:
            days: How long.
        """
        return "gone"

    asker = await serve(server)
    (tool,) = (await asker.result("tools/list"))["tools"]
    assert tool["inputSchema"]["properties"] == {
        "days": {"type": "integer", "minimum": 1, "maximum": 14, "description": "How long."},
        "ports": {
            "type": "array",
            "items": {"type": "string", "minLength": 2},
            "maxItems": 2,
            "default": [],
        },
    }
    assert await asker.call("sail", days=14, ports=["Oslo"]) == "gone"
    arguments = {"days": 15, "ports": ["Oslo", "A"]}
    error = await asker.error("tools/call", {"name": "sail", "arguments": arguments})
    assert error["message"].splitlines() == [
        "invalid arguments: days: expected int <= 14",
        "ports[1]: expected str of length >= 2",
    ]


async def test_a_constraint_that_is_rejected_names_function_and_parameter(serve, caplog):
    server = Server("harbour")

    @server.tool
    async def sail(port: Annotated[str, at.Ge(1)]) -> str:
        pass

    asker = await serve(server)
    assert (await asker.error("tools/list"))["code"] == -32603
    assert "sail: parameter 'port': the constraint Ge(ge=1) does not fit str" in caplog.text
    assert json.dumps(await asker.result("ping")) == "{}"
