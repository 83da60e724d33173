"""Pydantic types in the signatures of handlers."""

import json
import pathlib
import types
from decimal import Decimal
from typing import Annotated, Generic, Literal, Optional, TypeVar

import attrs
import jsonschema
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, RootModel
from pydantic.dataclasses import dataclass

from mcp_trio import Server
from mcp_trio._protocol.versions import NEWEST_LEGACY
from mcp_trio._server.results import JsonWriter, tool_result
from mcp_trio._server.signatures import ArgumentsError
from tests.processes import loaded_by
from tests.server.conftest import lines, read, signature, signature_of

Value = TypeVar("Value")


class Address(BaseModel):
    """Where someone lives."""

    city: str
    number: int = Field(gt=0)


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    legs: int


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


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


class Closed(BaseModel):
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
class Level(Generic[Value]):
    value: Value


@attrs.define
class Harbour:
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
        (Cat | Dog, {"kind": "dog", "legs": 4}, Dog(kind="dog", legs=4)),
        (Pet, {"kind": "dog", "legs": 4}, Dog(kind="dog", legs=4)),
        (Page[int], {"items": [1]}, Page[int](items=[1])),
        (Names, ["a"], Names(["a"])),
        (Tide, {"height": 2}, Tide(2)),
        (Tide, {}, Tide()),
        (Level[int], {"value": 1}, Level[int](1)),
        (Closed, {"where": "a", "pair": [1, 2]}, Closed(where=pathlib.Path("a"), pair=(1, 2))),
        (Annotated[int, Field(gt=1)], 2, 2),
        (HttpUrl, "http://a/", HttpUrl("http://a/")),
        (Harbour, {"address": OSLO}, Harbour(ADDRESS)),
        (Harbour, {"address": OSLO, "people": [PERSON]}, Harbour(ADDRESS, [Person(**PERSON)])),
    ],
)
def test_pydantic_values_arrive_as_their_classes(hint, sent, value):
    arrived = read(hint, sent)
    assert arrived == value
    assert type(arrived) is type(value)
    schema = signature(hint).schema
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"it": sent}, schema)


def test_definitions_of_pydantic_join_the_schema_without_titles_of_fields():
    def handler(
        harbour: Harbour, person: Person, days: Annotated[int, Field(description="How many.")]
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
            Closed,
            {"where": 1, "more": 2},
            ["it.where: should be a valid string", "it.pair: missing", "it.more: unknown field"],
        ),
        (Address, 3, ["it: should be an object"]),
        (list[Address], [OSLO, {}], ["it[1].city: missing", "it[1].number: missing"]),
        (Address | int, "x", ["it: expected Address | int"]),
        (Annotated[int, Field(gt=1)], 1, ["it: should be greater than 1"]),
        (Tide, {"height": 0}, ["it.height: should be greater than 0"]),
        (
            Harbour,
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


def test_an_exception_that_is_no_validation_error_is_raised():
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


class Mark(BaseModel, frozen=True):
    name: str
    nearby: frozenset[frozenset[str]] = frozenset()


class Chart(BaseModel):
    marks: set[Mark] = Field(alias="allMarks")
    tags: set[str] = set()


@pytest.mark.requirement("TOOL-16")
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ADDRESS, '{"city":"Oslo","number":1}'),
        ([ADDRESS, 3], '[{"city":"Oslo","number":1},3]'),
        ({"a": ADDRESS}, '{"a":{"city":"Oslo","number":1}}'),
        (Harbour(ADDRESS), '{"address":{"city":"Oslo","number":1},"people":[]}'),
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
        (
            Chart(allMarks={Mark(name=name) for name in "cab"}, tags={"f", "d", "e"}),
            (
                '{"allMarks":[{"name":"a","nearby":[]},{"name":"b","nearby":[]},'
                '{"name":"c","nearby":[]}],"tags":["d","e","f"]}'
            ),
        ),
        (
            Mark(name="a", nearby=frozenset({frozenset("dcb"), frozenset("gfe")})),
            '{"name":"a","nearby":[["b","c","d"],["e","f","g"]]}',
        ),
    ],
)
def test_pydantic_output_has_fields_in_order_and_sorted_sets(value, text):
    assert tool_result(value, JsonWriter(), NEWEST_LEGACY).content[0].text == text


class Soundings(BaseModel):
    metres: list[int]


def test_more_than_a_thousand_errors_are_only_counted():
    assert (
        lines(Soundings, {"metres": [None] * 1000})[0] == "it.metres[0]: should be a valid integer"
    )
    assert lines(Soundings, {"metres": [None] * 1001}) == ["it: has 1001 validation errors"]


def test_an_annotation_that_pydantic_cannot_read_names_function_and_parameter():
    with pytest.raises(TypeError, match="parameter 'it': "):
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


class Ship(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(validation_alias="shipName", serialization_alias="called")
    tons: Decimal = Decimal("1.5")
    secret: int = Field(default=1, exclude=True)
    harbour: str

    @pydantic.field_serializer("harbour")
    def code(self, harbour: str) -> list[str]:
        return [harbour]

    @pydantic.computed_field
    @property
    def heavy(self) -> bool:
        return self.tons > 1


SHIP = {"called": "Fram", "tons": "1.5", "harbour": ["Oslo"], "heavy": True}


@pytest.mark.parametrize(
    ("hint", "wrap"), [(Ship, lambda ship: ship), (list[Ship], lambda ship: [ship])]
)
async def test_the_output_schema_is_that_of_the_form_that_pydantic_writes(serve, hint, wrap):
    server = Server("harbour")

    async def ship() -> hint:
        return wrap(Ship(shipName="Fram", harbour="Oslo"))

    server.tool(ship)
    asker = await serve(server, protocol_version="2026-07-28")
    (tool,) = (await asker.result("tools/list"))["tools"]
    result = await asker.result("tools/call", {"name": "ship", "arguments": {}})
    assert result["structuredContent"] == wrap(SHIP)
    jsonschema.validate(wrap(SHIP), tool["outputSchema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrap(SHIP | {"secret": 1}), tool["outputSchema"])


async def test_a_dict_that_does_not_fit_the_form_that_pydantic_writes_fails(serve, caplog):
    server = Server("harbour")

    @server.tool
    async def ship() -> Ship:
        return SHIP | {"heavy": "yes"}

    asker = await serve(server)
    assert await asker.failure("ship") == "internal error in ship"
    assert "it does not match the output schema: heavy" in caplog.text


def test_pydantic_is_imported_only_if_a_type_of_it_is_used():
    code = """
from mcp_trio._server.results import JsonWriter
from mcp_trio._server.signatures import Signature
class Mine:
    __get_pydantic_core_schema__ = None
def handler(a: list[int] | None, b: int = 3): pass
found = Signature(handler=handler, context_types=(Mine,))
found.schema, found.decode(b'{"a":[1]}'), JsonWriter().encode([{1, 2}])
"""
    assert "pydantic" not in loaded_by(code)
