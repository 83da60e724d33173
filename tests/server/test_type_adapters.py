"""One row for each type that may stand in a handler's signature."""

import dataclasses
import datetime as dt
import decimal
import enum
import json
import pathlib
import sys
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
import pytest
import typing_extensions
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_trio import Server
from mcp_trio._protocol.versions import NEWEST_LEGACY
from mcp_trio._server.results import JsonWriter, tool_result
from mcp_trio._server.signatures import ArgumentsError
from mcp_trio._server.type_adapters import TypeAdapter, convert, error_line, json_schema
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

# The hint, its JSON, the value, and JSON that is rejected.
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
def test_every_type_is_decoded_as_itself(hint, sent, value, rejected, wrap, wrap_json, wrap_value):
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
def test_every_type_can_be_returned_and_decoded_again(hint, sent, value, rejected):
    (content,) = tool_result([[value]], JsonWriter(), NEWEST_LEGACY).content
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


def test_a_recursive_class_is_one_definition():
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


def test_the_description_of_a_parameter_is_kept_beside_its_type():
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


def test_an_alias_may_be_that_of_typing_extensions():
    alias: Any = typing_extensions.TypeAliasType
    paths, many = (
        alias("paths", list[pathlib.Path]),
        alias("many", dict[str, Value], type_params=(Value,)),
    )
    assert read(paths, ["a"]) == [pathlib.Path("a")]
    assert read(many[int], {"k": 1}) == {"k": 1}
    assert lines(many[paths], {"k": 1}) == ["it.k: expected array, got int"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement is of Python 3.12")
def test_an_alias_that_contains_itself_is_rejected_with_advice():
    names: dict[str, Any] = {}
    exec("type Tree = dict[str, Tree] | int\ntype Nest[T] = list[Nest[T]] | T", names)
    for hint in (names["Tree"], names["Nest"][int], names["Tree"] | None):
        with pytest.raises(TypeError, match=r"is recursive: use Any, or a class with fields"):
            signature(hint).check()


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


class Lock(typing_extensions.TypedDict, Generic[Value]):
    level: Value
    at: NotRequired[pathlib.Path]


def test_a_typed_dict_may_be_that_of_typing_extensions():
    assert read(Lock[int], {"level": 1, "at": "a"}) == {"level": 1, "at": pathlib.Path("a")}
    assert lines(Lock[int], {"level": "x", "at": 1}) == [
        "it.level: expected int, got str",
        "it.at: expected str, got int",
    ]


@pytest.mark.parametrize("kind", [int, pathlib.Path])
def test_the_keys_of_a_typed_dict_may_be_read_only(kind):
    read_only: Any = typing_extensions.ReadOnly
    wharf: Any = typing_extensions.TypedDict(
        "wharf", {"a": read_only[kind], "b": NotRequired[read_only[int]], "c": read_only[int]}
    )
    value = kind(1) if kind is int else kind("1")
    assert read(wharf, {"a": 1 if kind is int else "1", "c": 2}) == {"a": value, "c": 2}
    (definition,) = signature(wharf).schema["$defs"].values()
    assert definition["required"] == ["a", "c"]


Cargo = TypedDict("Cargo", {"x-path": pathlib.Path, "class": NotRequired[str], "1": int})


def test_the_keys_of_a_typed_dict_need_not_be_identifiers():
    assert read(Cargo, {"x-path": "a", "1": 2}) == {"x-path": pathlib.Path("a"), "1": 2}
    assert lines(Cargo, {"x-path": "a", "class": 3}) == [
        "it.class: expected str, got int",
        "it.1: missing",
    ]
    (definition,) = signature(Cargo).schema["$defs"].values()
    assert [*definition["properties"]] == ["x-path", "class", "1"]


Meta = msgspec.Meta
decodable = TypeAdapter().decodable


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
    assert decodable(hint) == translated


@pytest.mark.parametrize(
    "hint", [int, None, Any, Literal["a", 1], list, list[int], int | str, tuple[()], dt.date]
)
def test_a_type_without_constraints_is_unchanged(hint):
    assert decodable(hint) is hint


@pytest.mark.parametrize(
    ("hint", "good", "bad", "expected"),
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
        (Annotated[decimal.Decimal, at.Gt(0)], "Infinity", "NaN", "expected Decimal > 0"),
        (
            Annotated[decimal.Decimal, at.MultipleOf(5)],
            "1e5",
            "1e50",
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
def test_constraints_that_msgspec_lacks_are_checked_after_decoding(hint, good, bad, expected):
    assert convert(good, decodable(hint)) is not ...
    with pytest.raises(msgspec.ValidationError) as caught:
        convert([bad], decodable(list[hint]))
    assert error_line(caught.value) == f"[0]: {expected}"


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
def test_a_constraint_that_cannot_be_checked_is_rejected(hint):
    with pytest.raises(TypeError, match=r"the constraint .* (is not supported|does not fit \w+)$"):
        decodable(hint)


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
    schema = json_schema(decodable(list[kind]))
    assert schema["items"] == {"$ref": f"#/$defs/{kind.__name__}"}
    (definition,) = schema["$defs"].values()
    assert "'exclusiveMinimum': 0" in str(definition["properties"]["depth"])
    (built,) = convert([{"depth": 1}], decodable(list[kind]))
    assert isinstance(built, dict if kind is Typed else kind)
    with pytest.raises(
        msgspec.ValidationError, match=r"Expected `int` >= 1 - at `\$.depth` - at `\$\[0\]`"
    ):
        convert([{"depth": 0}], decodable(list[kind]))


def test_a_constraint_is_found_at_any_depth_of_classes():
    assert convert({"depth": [{"depth": 9}]}, decodable(Outer)) == Outer([Data(9)])
    with pytest.raises(msgspec.ValidationError):
        convert({"depth": [{"depth": 10}]}, decodable(Outer))


@attrs.define
class NumberTree:
    branches: "list[Tree]"
    leaves: Annotated[int, Meta(ge=0)] = 0


def test_a_class_that_msgspec_supports_is_unchanged():
    assert decodable(NumberTree) is NumberTree


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


def test_a_constraint_that_is_rejected_names_function_and_parameter():
    server = Server("harbour")

    async def sail(port: Annotated[str, at.Ge(1)]) -> str:
        pass

    text = r"sail\(\) at .*: parameter 'port': the constraint Ge\(ge=1\) does not fit str"
    with pytest.raises(TypeError, match=text):
        server.tool(sail)


# Schemas as hosts need them.


class Direction(enum.Enum):
    UP = "up"
    DOWN = "down"


class Rank(enum.IntEnum):
    SECOND = 2
    FIRST = 1


class Query(TypedDict):
    text: str
    limit: NotRequired[int]


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (Literal["up", "down"], {"enum": ["up", "down"], "type": "string"}),
        (Literal[2, 1], {"enum": [2, 1], "type": "integer"}),
        (Literal["b", 1], {"enum": ["b", 1], "type": ["string", "integer"]}),
        (Literal[True, 1], {"enum": [True, 1], "type": ["boolean", "integer"]}),
        (Direction, {"enum": ["up", "down"], "type": "string"}),
        (Rank, {"enum": [2, 1], "type": "integer"}),
        (list[Direction], {"type": "array", "items": {"enum": ["up", "down"], "type": "string"}}),
    ],
)
def test_choices_have_a_type_and_the_order_in_which_they_are_declared(hint, expected):
    assert inlined(hint) == expected


def test_the_type_of_a_tagged_struct_has_a_type():
    one, other = (msgspec.defstruct(name, [], tag=True) for name in ("One", "Other"))
    schemas = signature(one | other).schema["$defs"]
    assert schemas["One"]["properties"]["type"] == {"enum": ["One"], "type": "string"}


def test_the_keys_of_a_typed_dict_have_the_order_in_which_they_are_declared():
    assert list(signature(Query).schema["$defs"]["Query"]["properties"]) == ["text", "limit"]


def test_arrays_have_items_and_never_a_boolean_in_their_place():
    assert inlined(list) == {"type": "array", "items": {}}
    items = inlined(tuple[int, str])
    assert "items" not in items
    assert (items["minItems"], items["maxItems"]) == (2, 2)


def inlined(hint):
    """The schema of an argument, with its definition in place of a reference to it."""
    schema = signature(hint).schema
    (own,) = schema["properties"].values()
    text = json.dumps(own)
    for name, definition in schema.get("$defs", {}).items():
        text = text.replace(json.dumps({"$ref": f"#/$defs/{name}"}), json.dumps(definition))
    return json.loads(text)


# Unions in the signatures of handlers.


@attrs.define
class Spot:
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
        (Spot | Ship, {"x": 1}, Spot(1)),
        (Spot | Ship, {"x": "a"}, Ship("a")),
        (Spot | Ship, {"x": "a", "y": 1}, Ship("a")),
        (Sea | Spot, {"x": 1, "y": 2}, Spot(1, 2)),
        (Sea | Spot, {"x": 1}, Spot(1)),
        (Sea | Spot, {}, {}),
        (dict[str, int] | Spot, {"x": 1}, Spot(1)),
        (dict[str, int] | Spot, {"z": 1}, {"z": 1}),
        (Tagged | Other, {"type": "o", "where": "w"}, Other("w")),
        (Tagged | Other, {"type": "t", "where": "w"}, Tagged(pathlib.Path("w"))),
        (
            list[Spot | Ship | None],
            [{"x": 1}, None, {"x": "a"}],
            [Spot(1), None, Ship("a")],
        ),
        (Annotated[int, at.Ge(5)] | pathlib.Path, 5, 5),
    ],
)
def test_a_union_is_its_first_member_that_fits(hint, sent, value):
    assert read(hint, sent) == value
    schema = signature(hint).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"it": sent}, schema)


def test_the_members_of_a_union_are_not_examined_for_each_value():
    hint, calls = decodable(list[Spot | Ship]), 0

    def count_calls(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    convert([{"x": 1}], hint)
    before = sys.getprofile()
    sys.setprofile(count_calls)
    try:
        convert([{"x": 1}] * 100, hint)
    finally:
        sys.setprofile(before)
    assert calls < 30 * 100


def test_its_schema_is_any_of_its_members():
    assert signature(str | uuid.UUID | Spot).schema["properties"]["it"] == {
        "anyOf": [
            {"type": "string"},
            {"type": "string", "format": "uuid"},
            {"$ref": "#/$defs/Spot"},
        ]
    }


@pytest.mark.parametrize(
    ("hint", "sent", "expected"),
    [
        (str | uuid.UUID, 3, ["it: expected str | UUID"]),
        (int | pathlib.Path | None, [], ["it: expected int | Path | null"]),
        (list[int] | list[str], [1, "a"], ["it: expected list[int] | list[str]"]),
        (
            Spot | Ship,
            {"x": None, "y": None},
            ["it.x: expected int, got null", "it.y: expected int, got null"],
        ),
        (Spot | Ship, {"sails": 1}, ["it.x: missing"]),
        (Spot | Ship, {"z": 1}, ["it: expected Spot | Ship"]),
        (Tagged | Other, {"type": "t"}, ["it.where: missing"]),
        (
            list[Spot | Ship],
            [{"y": 1}, 3],
            ["it[0].x: missing", "it[1]: expected Spot | Ship"],
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
        TypeError, match=r"'it': .*is recursive: make its members structs with a tag"
    ):
        signature(Left).schema  # noqa: B018


HINTS = st.lists(
    st.sampled_from([int, str, bool, None, Spot, Ship, Sea, list[int], list[str], dict[str, int]]),
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
