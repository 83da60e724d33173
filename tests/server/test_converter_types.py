"""Types that a converter of the user encodes and decodes."""

import collections
import dataclasses
import fractions
import functools
import json
import traceback
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import attrs
import jsonschema
import msgspec
import pytest
import trio.testing
from cattrs import Converter

from mcp_trio import Client, Context, Server, ToolError
from mcp_trio._server.results import JsonWriter
from mcp_trio._server.signatures import ArgumentsError, Signature
from mcp_trio.errors import ReplayDivergence
from mcp_trio.recording import replay
from tests.processes import loaded_by
from tests.server import conftest

Value = TypeVar("Value")


class Money:
    """A class of another library, of which no fields can be looked up."""

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


class Box(Generic[Value]):
    def __init__(self, content):
        self.content = content


class Code(str):
    __slots__ = ()


@attrs.define
class Leg:
    days: int
    price: Money


@attrs.define
class Trip:
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


class Pair(NamedTuple):
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
        Cargo, lambda value, _: Cargo(converter.structure(value, Trip))
    )
    converter.register_structure_hook_func(
        lambda kind: getattr(kind, "__origin__", None) is Box,
        lambda value, kind: Box(converter.structure(value, kind.__args__[0])),
    )
    return converter


CONVERTER = make_converter()
NOK = Money(3, "NOK")
EUR = Money(1, "EUR")


signature = functools.partial(conftest.signature, converter=CONVERTER)
read = functools.partial(conftest.read, converter=CONVERTER)
lines = functools.partial(conftest.lines, converter=CONVERTER)


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
        (Pair, ["3 NOK", "1 EUR"], Pair(NOK, EUR)),
        (collections.deque[int], [1, 2], collections.deque([1, 2])),
    ],
)
def test_a_type_that_only_the_converter_knows_is_read_wherever_it_stands(hint, sent, value):
    found = read(hint, sent)
    assert found == value
    assert type(found) is type(value)
    jsonschema.Draft202012Validator(signature(hint).schema).validate({"it": sent})
    if not isinstance(value, collections.deque):  # cattrs leaves those as they are
        assert written(value) == sent


def test_a_generic_class_is_read_with_its_parameter():
    assert read(Box[int], 3).content == 3
    assert lines(Box[int], "x") == ["it: expected Box[int]"]


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
def test_the_schema_is_from_the_type_of_the_hook_or_from_the_annotation(hint, schema):
    assert signature(hint).schema["properties"]["it"] == schema


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
    assert read(Depth, {"price": 3}, converter=converter).metres == Sent(3)
    assert lines(Depth, {"price": "3"}, converter=converter) == ["it.price: expected int, got str"]
    schema = signature(Depth, converter=converter).schema
    assert schema["$defs"]["Sent"]["required"] == ["price"]
    assert schema["properties"]["it"] == {"$ref": "#/$defs/Sent"}


@pytest.mark.parametrize("annotation", [Depth, "Missing", list[Unknown], Any, int | Depth])
def test_a_hook_with_an_unreadable_annotation_receives_plain_json(annotation):
    converter = taking(annotation)
    assert signature(Depth, converter=converter).schema["properties"]["it"] == {}
    assert read(Depth, [1], converter=converter).metres == [1]


def test_a_hook_that_is_no_python_function_receives_plain_json():
    converter = Converter()
    converter.register_structure_hook(fractions.Fraction, fractions.Fraction)
    assert signature(fractions.Fraction, converter=converter).schema["properties"]["it"] == {}


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
    assert lines(hint, sent) == expected


def test_all_errors_of_the_converter_are_reported_with_nested_paths():
    sent = {
        "legs": [{"days": "x", "price": "1 EUR", "odd": 1}, {"price": "3 XXX"}, 5],
        "extras": {"a b": "x"},
    }
    assert sorted(lines(list[Cargo], [sent])) == [
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
        lambda value, _: converter.structure({"legs": value, "extras": {}, "total": {}}, Trip),
    )
    assert sorted(lines(Cargo, [{"days": "x", "price": "1 EUR"}], converter=converter)) == [
        "it.legs[0].days: expected int",
        "it.total: expected Money",
    ]


def test_a_converter_that_stops_at_the_first_error_reports_that_error():
    converter = Converter(detailed_validation=False)
    converter.register_structure_hook(Cargo, lambda value, _: converter.structure(value, Leg))
    converter.register_structure_hook(Money, lambda value, _: Money(1, value))
    assert lines(Cargo, {"price": "EUR"}, converter=converter) == ["it.days: missing"]


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
        read(hint, {"it": 1} if hint is Depth else [{"it": 1}], converter=converter)
    assert "OSError: no such table" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("converter", [None, CONVERTER])
@pytest.mark.parametrize("hint", [Unknown, list[Unknown], Wrong, type, collections.abc.Callable])
def test_a_type_without_a_hook_is_rejected_with_advice(hint, converter):
    with pytest.raises(
        TypeError, match=r"parameter 'it': the type .* has no JSON form.*converter="
    ):
        signature(hint, converter=converter).schema  # noqa: B018
    with pytest.raises(TypeError, match=r"Unknown.*has no JSON form.*Server\(converter="):
        JsonWriter(converter).encode([Unknown()])


def test_text_arguments_are_decoded_as_the_type_that_the_hook_takes():
    converter = Converter()

    @converter.register_structure_hook
    def depth(metres: float, _: Any) -> Depth:
        return Depth(metres)

    decode = signature(Depth, converter=converter).decode_text
    assert decode({"it": "2.5"}).it.metres == 2.5
    with pytest.raises(ArgumentsError, match="it: expected float, got str"):
        decode({"it": "deep"})


def test_a_default_is_listed_as_plain_json_and_never_shared():
    missing, nothing = object(), Unknown()

    def handler(
        price: Money = NOK, other: Money = missing, depth: Depth = nothing, code: Code = "x"
    ):
        pass

    found = Signature(handler=handler, context_types=(Context,), converter=CONVERTER)
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
    assert read(Sent, {"price": 1}, converter=converter) == Sent(1)


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
        with pytest.raises(ToolError, match="internal error in spend"):
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


@pytest.mark.slow
def test_cattrs_is_imported_only_if_a_converter_is_given():
    code = """
from mcp_trio import Server
server = Server("plain")
@server.tool
def handler(a: list[int] | None, b: int = 3): pass
tool = server._registry.tools["handler"]
assert tool.signature.schema and tool.signature.decode(b'{"a":[1]}') and server._sessions.writer.encode([{1, 2}])
"""
    assert "cattrs" not in loaded_by(code)
