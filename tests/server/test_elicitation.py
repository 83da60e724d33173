"""Elicitation: a handler asks its client's user to fill in a form or open a URL."""

import dataclasses
import datetime as dt
import decimal
import enum
import gc
import json
import math
import uuid
import weakref
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import annotated_types as at
import attrs
import msgspec
import pydantic
import pydantic.dataclasses
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import (
    Context,
    Elicitation,
    Limits,
    RequestError,
    Roots,
    Sampling,
    Server,
    ThreadContext,
    UrlElicitation,
    types,
)
from mcp_trio._protocol.client_features import check_form
from mcp_trio._server.forms import FormError, form_of
from mcp_trio.errors import (
    CapabilityMissing,
    LocalProtocolError,
    RemoteProtocolError,
    UrlElicitationRequired,
)
from mcp_trio.limits import RequestLimits
from tests.server.conftest import played_again

C, D = "2025-06-18", "2025-11-25"
BOTH = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
URL = "https://harbour.example/pay"


class Berth(enum.Enum):
    INNER = "i"
    OUTER_PIER = "o"


@attrs.frozen
class Mooring:
    ship: str
    nights: int = 1
    berth: Berth = Berth.INNER
    lit: bool = False


@pytest.fixture
def asked(server, serve):
    """Call a tool, answer the one question of its handler; gives the question and the result."""

    async def ask(name, answer, *, protocol_version=D, capabilities=BOTH):
        asker = await serve(server, protocol_version=protocol_version, capabilities=capabilities)
        call = await asker.begin("tools/call", {"name": name})
        question = await asker.next_message()
        await asker.wire.send_result(question, answer)
        return question, await asker.end(call)

    return ask


def text_of(answer):
    return answer["result"]["content"][0]["text"]


def accept(**content):
    return {"action": "accept", "content": content}


# Forms.


@pytest.fixture
def mooring(server):
    """Tools that ask for a mooring, from the loop and from a thread."""

    @server.tool
    async def here(ctx: Context) -> str:
        answer = await ctx.elicit("Which ship?", Mooring)
        return f"{answer.action} {answer.is_accepted} {answer.data} {answer.elicitation_id}"

    @server.tool
    def there(ctx: ThreadContext) -> str:
        answer = ctx.elicit("Which ship?", Mooring)
        return f"{answer.action} {answer.is_accepted} {answer.data} {answer.elicitation_id}"


@pytest.mark.requirement("ELIC-05", "ELIC-07", "ELIC-09", "ELIC-12", "ELIC-13")
@pytest.mark.parametrize("name", ["here", "there"])
async def test_a_user_fills_in_a_form_and_the_handler_gets_a_value(mooring, asked, name):
    question, answer = await asked(name, accept(ship="Ada", nights=3, berth="o"))
    assert question["method"] == "elicitation/create"
    assert question["params"] == {
        "message": "Which ship?",
        "mode": "form",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "ship": {"type": "string"},
                "nights": {"type": "integer", "default": 1},
                "berth": {
                    "type": "string",
                    "oneOf": [
                        {"const": "i", "title": "Inner"},
                        {"const": "o", "title": "Outer pier"},
                    ],
                    "default": "i",
                },
                "lit": {"type": "boolean", "default": False},
            },
            "required": ["ship"],
        },
    }
    expected = Mooring("Ada", 3, Berth.OUTER_PIER)
    assert text_of(answer) == f"accept True {expected} None"


@pytest.mark.requirement("ELIC-11", "TRAP-90", "TRAP-91")
async def test_a_client_of_june_2025_receives_the_form_of_its_version(mooring, asked):
    question, answer = await asked(
        "here", accept(ship="Ada"), protocol_version=C, capabilities={"elicitation": {}}
    )
    assert question["params"] == {
        "message": "Which ship?",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "ship": {"type": "string"},
                "nights": {"type": "integer"},
                "berth": {
                    "type": "string",
                    "enum": ["i", "o"],
                    "enumNames": ["Inner", "Outer pier"],
                },
                "lit": {"type": "boolean", "default": False},
            },
            "required": ["ship"],
        },
    }
    assert text_of(answer) == f"accept True {Mooring('Ada')} None"


@pytest.mark.requirement("ELIC-20")
@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("rest", [{}, {"content": {"ship": 7}}])
async def test_a_user_may_decline_or_cancel(mooring, asked, action, rest):
    _, answer = await asked("here", {"action": action, **rest})
    assert text_of(answer) == f"{action} False None None"


@pytest.mark.requirement("ELIC-15", "ELIC-16", "ELIC-19", "ELIC-21", "ELIC-23")
@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (accept(nights=3), "ship: missing"),
        ({"action": "accept"}, "ship: missing"),
        (accept(ship="Ada", nights="3"), "nights: not an integer"),
        (accept(ship="Ada", berth="Inner"), "berth: none of the choices"),
        (accept(ship={"name": "Ada"}), "elicitation/create"),
        ({"action": "perhaps"}, "elicitation/create"),
        ({}, "elicitation/create"),
    ],
)
async def test_an_invalid_answer_is_an_error_of_the_client(server, asked, result, fault):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(RemoteProtocolError, match=fault):
            await ctx.elicit("Which ship?", Mooring)
        return "caught"

    _, answer = await asked("ask", result)
    assert text_of(answer) == "caught"


@pytest.mark.requirement("ELIC-09")
async def test_a_single_value_a_schema_and_a_confirmation_are_forms(server, serve):
    schema = {"type": "object", "properties": {"depth": {"type": "number"}}}

    @server.tool
    async def ask(ctx: Context) -> list:
        answers = [
            await ctx.elicit("How many nights?", int),
            await ctx.elicit("How deep?", schema),
            await ctx.elicit("Moor?"),
        ]
        return [answer.data for answer in answers]

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "ask"})
    shown = []
    for content in ({"value": 3}, {"depth": 2.5}, {}):
        question = await asker.next_message()
        shown.append(question["params"]["requestedSchema"])
        await asker.wire.send_result(question, {"action": "accept", "content": content})
    assert shown[0]["properties"] == {"value": {"type": "integer"}}
    assert shown[1] == schema
    assert shown[2] == {"type": "object", "properties": {}}
    assert text_of(await asker.end(call)) == '[3,{"depth":2.5},null]'


# Client capabilities.


FORM, VISIT = {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}


@pytest.fixture
def modes(server):
    """Tools that tell what a client would have had to announce."""

    async def outcome_of(answer):
        try:
            await answer
        except CapabilityMissing as error:
            return [str(error), error.required]
        return ["asked", None]

    @server.tool
    async def form(ctx: Context) -> list:
        return await outcome_of(ctx.elicit("Moor?"))

    @server.tool
    async def visit(ctx: Context) -> list:
        return await outcome_of(ctx.elicit_url("Pay", URL))

    return server


@pytest.mark.requirement("ELIC-03", "ELIC-04", "TRAP-89")
@pytest.mark.parametrize(
    ("protocol_version", "capabilities", "can"),
    [
        (D, {}, []),
        (D, {"elicitation": {}}, ["form"]),
        (D, FORM, ["form"]),
        (D, VISIT, ["visit"]),
        (D, BOTH, ["form", "visit"]),
        (C, {"elicitation": {}}, ["form"]),
        (C, BOTH, ["form"]),
        ("2025-03-26", {}, []),
        ("2024-11-05", {}, []),
    ],
)
async def test_a_client_receives_only_the_elicitation_modes_that_it_announced(
    modes, serve, protocol_version, capabilities, can
):
    asker = await serve(modes, protocol_version=protocol_version, capabilities=capabilities)
    for name, missing in (("form", FORM), ("visit", VISIT)):
        call = await asker.begin("tools/call", {"name": name})
        if name in can:
            await asker.wire.send_result(await asker.next_message(), {"action": "decline"})
        outcome = json.loads(text_of(await asker.end(call)))
        (mode,) = missing["elicitation"]
        rejection = [f"the client did not announce elicitation.{mode}", missing]
        assert outcome == (["asked", None] if name in can else rejection)
    assert asker.received == []


async def test_all_missing_capabilities_are_reported_at_once(server, serve):
    @server.tool
    async def tool(ctx: Context) -> str:
        with pytest.raises(CapabilityMissing) as caught:
            await ctx.ask_all(Elicitation("Moor?"), UrlElicitation("Pay", URL), Roots())
        return f"{caught.value} {caught.value.required}"

    asker = await serve(server, protocol_version=D, capabilities={"sampling": {}})
    assert await asker.call("tool") == (
        "the client did not announce elicitation.form, elicitation.url, roots"
        " {'elicitation': {'form': {}, 'url': {}}, 'roots': {}}"
    )


# Requests that are not sent.


@pytest.mark.requirement("ELIC-09", "ELIC-25", "ELIC-43")
@pytest.mark.parametrize(
    ("message", "kind", "error"),
    [
        ("Which ship?", list[Mooring], TypeError),
        ("Which ship?", {"type": "string"}, ValueError),
        ("Log in", {"type": "object", "properties": {"password": {"type": "string"}}}, None),
        ("Pay at https://harbour.example first", None, None),
    ],
)
async def test_an_invalid_form_is_never_sent(server, serve, message, kind, error):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(error or LocalProtocolError):
            await ctx.elicit(message, kind)
        return "rejected"

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    assert await asker.call("ask") == "rejected"
    assert asker.received == []


@pytest.mark.requirement("ELIC-27", "ELIC-42", "ELIC-44")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "harbour.example/pay",
        "https://",
        "https://[",
        "https://harbour.example/a b",
        "http://harbour.example/pay",
        "http://10.0.0.1/pay",
        "ftp://harbour.example/pay",
        "javascript:alert(1)",
        "https://ann@harbour.example/pay",
        "https://ann:secret@harbour.example/pay",
        "https://harbour.example/pay?access_token=1234",
        "https://harbour.example/pay?a=b#password=1234",
    ],
)
async def test_invalid_unsafe_and_credential_urls_are_rejected(server, serve, url):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(LocalProtocolError):
            await ctx.elicit_url("Pay", url)
        return "rejected"

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    assert await asker.call("ask") == "rejected"
    assert asker.received == []


@pytest.mark.requirement("ELIC-27", "ELIC-44")
@pytest.mark.parametrize(
    "url", [URL, "http://localhost:8000/pay", "http://127.0.0.1/pay?state=7", "http://[::1]/pay"]
)
async def test_in_development_a_url_of_this_machine_is_accepted(server, asked, url):
    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit_url("Pay", url)).action

    question, answer = await asked("ask", {"action": "accept"})
    assert question["params"]["url"] == url
    assert text_of(answer) == "accept"


# Several questions at once.


async def test_an_argument_of_another_sdk_is_rejected_with_what_to_write(server, serve):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(TypeError, match=r"write `ctx.elicit\(message, kind\)`"):
            await ctx.elicit("Where?", response_type=str)
        return "rejected"

    @server.tool
    def ask_in_thread(ctx: ThreadContext) -> str:
        with pytest.raises(TypeError, match=r"write `ctx.elicit\(message, kind\)`"):
            ctx.elicit("Where?", schema=str)
        return "rejected"

    asker = await serve(server, capabilities=CLIENT_CAN)
    assert await asker.call("ask") == "rejected"
    assert await asker.call("ask_in_thread") == "rejected"


@pytest.mark.requirement("ELIC-05", "SAMP-06", "ROOT-03")
@pytest.mark.parametrize("thread", [False, True])
async def test_several_questions_are_asked_at_once_and_answered_in_their_order(
    server, serve, thread
):
    questions = (
        Elicitation("How many nights?", int),
        UrlElicitation("Pay", URL),
        Sampling("Why?", max_tokens=5),
        Roots(),
    )

    def text_of_answers(answers):
        nights, visit, sample, roots = answers
        return f"{nights.data} {visit.action} {sample.model} {roots[0].uri}"

    if thread:

        @server.tool
        def ask(ctx: ThreadContext) -> str:
            return text_of_answers(ctx.ask_all(*questions))
    else:

        @server.tool
        async def ask(ctx: Context) -> str:
            return text_of_answers(await ctx.ask_all(*questions))

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "ask"})
    requests = [await asker.next_message() for _ in questions]
    results = {
        "form": {"action": "accept", "content": {"value": 3}},
        "url": {"action": "decline"},
        "sampling/createMessage": {
            "role": "assistant",
            "model": "m",
            "content": {"type": "text", "text": "So."},
        },
        "roots/list": {"roots": [{"uri": "file:///pier"}]},
    }
    for question in reversed(requests):
        kind = question.get("params", {}).get("mode", question["method"])
        await asker.wire.send_result(question, results.pop(kind))
    assert text_of(await asker.end(call)) == "3 decline m file:///pier"


async def test_a_failed_request_withdraws_the_others(server, serve):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(RemoteProtocolError, match="value: missing"):
            await ctx.ask_all(Elicitation("How many nights?", int), Roots())
        return "caught"

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "ask"})
    requests = {question["method"]: question for question in await asker.wire.receive_many(2)}
    await asker.wire.send_result(requests["elicitation/create"], {"action": "accept"})
    assert text_of(await asker.end(call)) == "caught"
    (cancelled,) = asker.received
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == requests["roots/list"]["id"]


# Recordings.


async def test_a_replayed_session_sends_the_same_requests_with_the_same_ids(server, record):
    @server.tool
    async def ask(ctx: Context) -> str:
        nights, visit = await ctx.ask_all(
            Elicitation("How many nights?", int), UrlElicitation("Pay", URL)
        )
        await ctx.elicitation_complete(visit.elicitation_id)
        return f"{nights.data}"

    @server.tool
    def toll() -> str:
        raise UrlElicitationRequired([UrlElicitation("Pay", URL)])

    asker, recorded = await record(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "ask"})
    for question in await asker.wire.receive_many(2):
        is_form = question["params"]["mode"] == "form"
        result = accept(value=3) if is_form else {"action": "accept"}
        await asker.wire.send_result(question, result)
    assert text_of(await asker.end(call)) == "3"
    assert (await asker.error("tools/call", {"name": "toll"}))["code"] == -32042
    await played_again(asker, recorded, server)


# Forms: from a type to a form, and from its content to a value of the type.


class Size(enum.Enum):
    SMALL = "s"
    VERY_LARGE = "xl"


class Grade(enum.IntEnum):
    BEST = 1


SIZES = [{"const": "s", "title": "Small"}, {"const": "xl", "title": "Very large"}]


def member(hint):
    """Return the schema of the only member of a value's form."""
    schema = form_of(hint).schema
    assert schema["required"] == ["value"]
    return schema["properties"]["value"]


def rejected(hint, content):
    """Return the validation errors of the values of a form."""
    with pytest.raises(FormError) as caught:
        form_of(hint).read(content)
    return caught.value.lines


# Contents of a form.


@pytest.mark.requirement("ELIC-09", "ELIC-10", "ELIC-12", "TRAP-91")
@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (decimal.Decimal, {"type": "string"}),
        (dt.date, {"type": "string", "format": "date"}),
        (dt.datetime, {"type": "string", "format": "date-time"}),
        (Annotated[str, at.Len(2, 5)], {"type": "string", "minLength": 2, "maxLength": 5}),
        (Annotated[int, at.Interval(ge=2, le=5)], {"type": "integer", "minimum": 2, "maximum": 5}),
        (Annotated[int, at.Interval(gt=2, lt=5)], {"type": "integer", "minimum": 3, "maximum": 4}),
        (Annotated[float, at.Interval(gt=2, le=5)], {"type": "number", "maximum": 5}),
        (
            Annotated[str, msgspec.Meta(title="T", description="D", pattern="a")],
            {"type": "string", "title": "T", "description": "D"},
        ),
        (
            Annotated[str, msgspec.Meta(extra_json_schema={"format": "email"})],
            {"type": "string", "format": "email"},
        ),
        (Literal["b", "a"], {"type": "string", "enum": ["b", "a"]}),
        (Size, {"type": "string", "oneOf": SIZES}),
        (
            Annotated[Size, msgspec.Meta(description="D")],
            {"type": "string", "description": "D", "oneOf": SIZES},
        ),
        (list[Size], {"type": "array", "items": {"anyOf": SIZES}}),
        (set[Literal["a"]], {"type": "array", "items": {"type": "string", "enum": ["a"]}}),
        (
            Annotated[tuple[Size, ...], at.Len(1, 2)],
            {"type": "array", "minItems": 1, "maxItems": 2, "items": {"anyOf": SIZES}},
        ),
    ],
)
def test_a_single_value_is_a_field_with_all_supported_keywords(hint, expected):
    assert member(hint) == expected
    check_form(form_of(hint).schema)


@pytest.mark.requirement("ELIC-09")
def test_equal_literals_keep_their_own_order():
    assert member(Literal["a", "b"])["enum"] == ["a", "b"]
    assert member(Literal["b", "a"])["enum"] == ["b", "a"]


def test_a_list_of_strings_is_a_choice():
    assert form_of(["red", "blue"]).schema == form_of(Literal["red", "blue"]).schema


@pytest.mark.requirement("ELIC-09")
@pytest.mark.parametrize("kind", [None, type(None)])
def test_a_confirmation_is_a_form_without_members(kind):
    form = form_of(kind)
    assert form.schema == {"type": "object", "properties": {}}
    assert form.read({}) is None


class TripStruct(msgspec.Struct, rename="camel"):
    to_city: str
    days: Annotated[int, at.Ge(1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


@attrs.frozen
class TripAttrs:
    to_city: str
    days: Annotated[int, at.Ge(1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


@dataclasses.dataclass
class TripData:
    to_city: str
    days: Annotated[int, at.Ge(1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


class TripTuple(NamedTuple):
    to_city: str
    days: Annotated[int, at.Ge(1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


class TripModel(pydantic.BaseModel):
    to_city: str
    days: Annotated[int, pydantic.Field(ge=1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


@pydantic.dataclasses.dataclass
class TripPydantic:
    to_city: str
    days: Annotated[int, pydantic.Field(ge=1)] = 1
    size: Size = Size.SMALL
    note: str | None = None


@pytest.mark.requirement("ELIC-09", "ELIC-13")
@pytest.mark.parametrize(
    "kind", [TripStruct, TripAttrs, TripData, TripTuple, TripModel, TripPydantic]
)
def test_each_kind_of_class_is_a_form_with_its_fields_and_their_defaults(kind):
    city = "toCity" if kind is TripStruct else "to_city"
    form = form_of(kind)
    assert form.schema == {
        "type": "object",
        "properties": {
            city: {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "default": 1},
            "size": {"type": "string", "oneOf": SIZES, "default": "s"},
            "note": {"type": "string"},
        },
        "required": [city],
    }
    check_form(form.schema)
    assert form.read({city: "Oslo"}) == kind(to_city="Oslo")
    content = {city: "Oslo", "days": 3, "size": "xl", "note": "n", "unknown": 7}
    assert form.read(content) == kind(to_city="Oslo", days=3, size=Size.VERY_LARGE, note="n")
    assert form_of(kind) is form


@pytest.mark.parametrize("base", [msgspec.Struct, pydantic.BaseModel])
def test_infinity_is_no_default_in_a_form(base):
    class Wait(base):
        seconds: float = math.inf

    form = form_of(Wait)
    assert form.schema["properties"] == {"seconds": {"type": "number"}}
    assert form.read({}) == Wait()


def test_classes_that_were_made_for_one_form_are_freed():
    classes = weakref.WeakSet()
    for number in range(600):
        kind = msgspec.defstruct(f"Pick{number}", [("port", str)])
        form_of(kind)
        classes.add(kind)
    del kind
    gc.collect()
    assert len(classes) < 550


@pytest.mark.parametrize("kind", [int, int | None, Annotated[int, at.Gt(2)]])
def test_an_integer_may_have_a_fraction_of_zero(kind):
    value = form_of(kind).read({"value": 3.0})
    assert (value, type(value)) == (3, int)
    with pytest.raises(FormError, match="value: not an integer"):
        form_of(kind).read({"value": 3.5})


class TripDict(TypedDict, total=False):
    to_city: str
    day: dt.date


def test_a_typed_dict_is_a_form_with_the_content_as_value():
    form = form_of(TripDict)
    assert "required" not in form.schema
    assert form.read({"day": "2024-02-29"}) == {"day": dt.date(2024, 2, 29)}


@attrs.frozen
class Maybe:
    day: dt.date | None
    size: Annotated[Size | None, msgspec.Meta(description="D")]
    many: list[Literal["a"]] | None = None
    some: set[Size] = attrs.field(factory=set)
    switch: bool = False


@pytest.mark.requirement("ELIC-09")
def test_an_optional_field_is_not_required_in_the_form():
    form = form_of(Maybe)
    assert "required" not in form.schema
    assert form.schema["properties"]["size"] == {
        "type": "string",
        "description": "D",
        "oneOf": SIZES,
    }
    assert form.read({}) == Maybe(None, None)
    assert form.read({"some": ["s"], "many": ["a"]}) == Maybe(None, None, ["a"], {Size.SMALL})
    assert form_of(int | None).read({}) is None
    assert form_of(int | None).read({"value": 3}) == 3


# Models of pydantic.


class Visit(pydantic.BaseModel):
    """When, and how."""

    model_config = pydantic.ConfigDict(extra="forbid")

    first: dt.date = pydantic.Field(description="The first day.", alias="from")
    last: dt.date | None
    class_: Annotated[Literal["b", "a"], "The class."] = pydantic.Field("a", alias="class")
    days: Annotated[float, pydantic.Field(gt=0, le=9)] = 1
    sizes: list[Size] = pydantic.Field(default_factory=lambda: [Size.SMALL], max_length=2)
    home: pydantic.AnyUrl = pydantic.Field(
        "a:b", validation_alias=pydantic.AliasChoices("page", "site")
    )
    is_paid: bool = pydantic.Field(default=False, title="Paid")

    @pydantic.model_validator(mode="after")
    def check_order(self) -> "Visit":
        if self.last is not None and self.last < self.first:
            raise ValueError("the last day is before the first")
        return self


@pytest.mark.requirement("ELIC-09", "ELIC-13", "ELIC-14")
def test_a_pydantic_model_is_a_form_with_its_own_keywords():
    form = form_of(Visit)
    assert form.schema == {
        "type": "object",
        "properties": {
            "from": {"type": "string", "format": "date", "description": "The first day."},
            "last": {"type": "string", "format": "date"},
            "class": {
                "type": "string",
                "enum": ["b", "a"],
                "description": "The class.",
                "default": "a",
            },
            "days": {"type": "number", "maximum": 9, "default": 1},
            "sizes": {"type": "array", "maxItems": 2, "items": {"anyOf": SIZES}},
            "page": {"type": "string", "minLength": 1, "format": "uri", "default": "a:b"},
            "is_paid": {"type": "boolean", "title": "Paid", "default": False},
        },
        "required": ["from"],
    }
    check_form(form.schema)
    visit = form.read({"from": "2024-02-29", "class": "b", "sizes": ["xl"], "unknown": 7})
    assert visit == Visit.model_validate(
        {"from": "2024-02-29", "last": None, "class": "b", "sizes": ["xl"]}
    )
    assert type(visit) is Visit


@pytest.mark.requirement("ELIC-20")
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ({}, ["from: missing"]),
        ({"from": "2024-02-29", "days": 0}, ["days: should be greater than 0"]),
        ({"from": "2024-02-29", "last": "2024-02-28"}, ["the last day is before the first"]),
    ],
)
def test_a_pydantic_model_checks_the_content_of_its_form(content, lines):
    assert rejected(Visit, content) == lines


def test_a_root_model_is_a_form_for_one_value():
    days = pydantic.RootModel[Annotated[int, pydantic.Field(ge=1)]]
    form = form_of(days)
    assert form.schema["properties"] == {"value": {"type": "integer", "minimum": 1}}
    assert form.read({"value": 3}) == days(3)


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (int | None, {"type": "integer"}),
        (Size, {"type": "string", "enum": [it.value for it in Size]}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
    ],
)
def test_a_field_may_be_a_root_model(hint, schema):
    form = form_of(pydantic.create_model("Outer", it=(pydantic.RootModel[hint], ...)))
    assert form.schema["properties"] == {"it": schema}


# Types that no form supports.


@attrs.frozen
class Inner:
    it: int


class Opaque:
    """A class that has no JSON form."""


class InnerModel(pydantic.BaseModel):
    it: int


def one(hint: Any) -> type:
    return attrs.make_class("Outer", {"it": attrs.field(type=hint)})


@pytest.mark.requirement("ELIC-09")
@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (InnerModel, "a form is flat and cannot have a InnerModel"),
        (InnerModel | None, "a form is flat and cannot have a InnerModel"),
        (list[InnerModel], "a list in a form has to be a list of choices"),
        (list[str], "a list in a form has to be a list of choices"),
        (dict[str, int], "a form is flat"),
        (int | str, "a form is flat"),
        (Grade, "the choices of a form have to be strings"),
    ],
)
def test_a_pydantic_model_that_is_not_flat_is_rejected_with_its_field_named(hint, why):
    with pytest.raises(TypeError, match=f"Outer, it: .*{why}"):
        form_of(pydantic.create_model("Outer", it=(hint, ...)))


def test_a_pydantic_model_without_a_json_schema_is_rejected():
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    with pytest.raises(TypeError, match=r"\AOuter: .*Opaque.*\Z"):
        form_of(pydantic.create_model("Outer", __config__=config, it=(Opaque, ...)))


@pytest.mark.requirement("ELIC-24")
def test_a_pydantic_model_asks_for_no_secrets():
    with pytest.raises(LocalProtocolError, match=r"pin: .* elicit_url"):
        form_of(pydantic.create_model("Login", pin=(pydantic.SecretStr, ...)))


@pytest.mark.requirement("ELIC-09")
@pytest.mark.parametrize(
    ("hint", "why"),
    [
        (Inner, "a form is flat and cannot have a Inner"),
        (Inner | None, "a form is flat and cannot have a Inner"),
        (dict[str, int], "a form is flat"),
        (Any, "a form is flat"),
        (int | str, "a form is flat"),
        (None, "a form is flat"),
        (list[str], "a list in a form has to be a list of choices"),
        (list, "a list in a form has to be a list of choices"),
        (list[Inner], "a list in a form has to be a list of choices"),
        (tuple[Size, Size], "a list in a form has to be a list of choices"),
        (Literal["a", 1], "the choices of a form have to be strings"),
        (Grade, "the choices of a form have to be strings"),
        (list[Grade], "the choices of a form have to be strings"),
        (Annotated[int, at.Unit("m")], "Unit"),
        (complex, "complex"),
    ],
)
def test_a_type_that_is_not_flat_is_rejected_with_its_field_named(hint, why):
    with pytest.raises(TypeError, match=f"Outer, it: .*{why}"):
        form_of(one(hint))


@pytest.mark.requirement("ELIC-24", "ELIC-25", "ELIC-26")
@pytest.mark.parametrize("name", ["password", "apiKey", "github_token", "card_number", "cvv"])
def test_a_form_asks_for_no_secrets(name):
    with pytest.raises(LocalProtocolError, match=f"{name}: .* elicit_url"):
        form_of(attrs.make_class("Login", {name: attrs.field(type=str)}))
    schema = {"type": "object", "properties": {name: {"type": "string"}}}
    with pytest.raises(LocalProtocolError, match=f"{name}: .* elicit_url"):
        form_of(schema)


@pytest.mark.requirement("ELIC-25", "ELIC-26")
def test_a_form_has_no_hidden_text():
    hidden = msgspec.Meta(extra_json_schema={"format": "password"})
    with pytest.raises(LocalProtocolError, match=r"value: .* elicit_url"):
        form_of(Annotated[str, hidden])
    with pytest.raises(LocalProtocolError, match=r"word: .* elicit_url"):
        form_of(
            {"type": "object", "properties": {"word": {"type": "string", "format": "password"}}}
        )


@pytest.mark.requirement("ELIC-43")
@pytest.mark.parametrize("word", ["title", "description"])
def test_the_texts_of_a_form_must_not_contain_links(word):
    keywords = {word: "See HTTPS://example.org"}
    with pytest.raises(LocalProtocolError, match="must not contain links"):
        form_of(Annotated[str, msgspec.Meta(**keywords)])
    with pytest.raises(LocalProtocolError, match="must not contain links"):
        form_of({"type": "object", "properties": {"it": {"type": "string", **keywords}}})


# Schemas as they are.


@pytest.mark.requirement("ELIC-12", "TRAP-91")
def test_a_given_schema_is_the_form_and_its_value_the_content():
    schema = {
        "type": "object",
        "properties": {"it": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]}},
        "required": ["it"],
    }
    form = form_of(schema)
    assert form.schema == schema
    assert form.read({"it": "b", "other": 7}) == {"it": "b", "other": 7}
    assert rejected(schema, {"it": "A"}) == ["it: none of the choices"]


@pytest.mark.requirement("ELIC-09")
def test_a_schema_that_is_no_form_is_rejected():
    with pytest.raises(ValueError, match="it: the type of a field must be"):
        form_of({"type": "object", "properties": {"it": {"type": "object"}}})
    with pytest.raises(ValueError, match='"type": "object"'):
        form_of({"type": "string"})
    with pytest.raises(ValueError, match='"properties"'):
        form_of({"type": "object", "properties": ["it"]})
    with pytest.raises(ValueError, match="it: the type of a field must be"):
        form_of({"type": "object", "properties": {"it": "string"}})


# Invalid answers.


@attrs.frozen
class Range:
    low: Annotated[int, at.MultipleOf(2)]
    high: Annotated[str, at.Predicate(str.islower)] = "a"
    amount: decimal.Decimal | None = None

    def __attrs_post_init__(self) -> None:
        if self.low > 10:
            raise ValueError("low is too high")


@pytest.mark.requirement("ELIC-16", "ELIC-20", "ELIC-23")
@pytest.mark.parametrize(
    ("content", "lines"),
    [
        ({}, ["low: missing"]),
        ({"low": "2"}, ["low: not an integer"]),
        ({"low": 2, "high": 3}, ["high: not a string"]),
        ({"low": 3}, ["low: expected int that's a multiple of 2"]),
        (
            {"low": 3, "amount": "x"},
            ["low: expected int that's a multiple of 2", "amount: invalid decimal string"],
        ),
        ({"low": 2, "high": "A"}, ["high: expected str that islower accepts"]),
        ({"low": 12}, ["low is too high"]),
    ],
)
def test_an_invalid_form_answer_has_one_line_for_each_field(content, lines):
    assert rejected(Range, content) == lines


# All values are decoded as they were encoded.

TEXTS = st.text(max_size=5)
ROWS = [
    (str, TEXTS),
    (int, st.integers(-(2**53), 2**53)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bool, st.booleans()),
    (Size, st.sampled_from(Size)),
    (Literal["b", "a"], st.sampled_from(["b", "a"])),
    (dt.date, st.dates()),
    (dt.datetime, st.datetimes(timezones=st.just(dt.UTC))),
    (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (list[Size], st.lists(st.sampled_from(Size), max_size=3)),
    (frozenset[Literal["a", "b"]], st.frozensets(st.sampled_from(["a", "b"]))),
    (Annotated[int, at.Interval(gt=2, le=9)], st.integers(3, 9)),
    (Annotated[str, at.Len(1, 3)], st.text(min_size=1, max_size=3)),
]


@st.composite
def classes_and_values(draw):
    rows = draw(st.lists(st.sampled_from(ROWS), min_size=1, max_size=6))
    fields, values = {}, {}
    for place, (hint, value) in enumerate(rows):
        optional = draw(st.booleans())
        fields[f"m{place}"] = attrs.field(type=hint | None if optional else hint)
        values[f"m{place}"] = draw(st.none() | value) if optional else draw(value)
    return attrs.make_class("Generated", fields), values


@pytest.mark.slow
@pytest.mark.requirement("ELIC-09", "ELIC-16")
@given(classes_and_values())
def test_every_value_of_a_flat_class_comes_back_as_it_was(generated):
    kind, values = generated
    form = form_of(kind)
    check_form(form.schema)
    plain = msgspec.to_builtins(values)
    content = {name: value for name, value in plain.items() if value is not None}
    assert form.read(content) == kind(**values)


# Requests of handlers: to the client, to its model, and to resources of their own server.


CLIENT_CAN = {"roots": {"listChanged": True}, "sampling": {}}


# Questions to the client.


@pytest.mark.requirement("ROOT-03", "SAMP-06", "SAMP-08", "BASE-21")
async def test_a_handler_asks_its_client(server, serve):
    question = types.CreateMessageParams(
        messages=[types.SamplingMessage(role="user", content=types.TextContent(text="Why?"))],
        max_tokens=9,
    )

    @server.tool
    async def ask(ctx: Context) -> str:
        roots = await ctx.list_roots()
        answer = await ctx.sample(question)
        return f"{roots[0].uri} {answer.content.text}"

    @server.tool
    def ask_in_thread(ctx: ThreadContext) -> str:
        roots = ctx.list_roots()
        answer = ctx.sample(question)
        return f"{roots[0].uri} {answer.content.text}"

    asker = await serve(server, capabilities=CLIENT_CAN)
    for name in ("ask", "ask_in_thread"):
        call = await asker.begin("tools/call", {"name": name})
        asked = await asker.next_message()
        assert asked["method"] == "roots/list"
        await asker.wire.send_result(asked, {"roots": [{"uri": "file:///pier"}]})
        asked = await asker.next_message()
        assert asked["method"] == "sampling/createMessage"
        assert asked["params"] == {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Why?"}}],
            "maxTokens": 9,
        }
        sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "So."}}
        await asker.wire.send_result(asked, sampled)
        result = (await asker.end(call))["result"]
        assert result["content"][0]["text"] == "file:///pier So."


@pytest.mark.requirement("LIFE-14", "ROOT-10", "SAMP-06")
async def test_a_client_without_the_capability_is_not_asked(server, serve):
    caught = []

    @server.tool
    async def ask(ctx: Context) -> None:
        for question in (
            ctx.list_roots(),
            ctx.sample(types.CreateMessageParams(messages=[], max_tokens=1)),
        ):
            try:
                await question
            except LocalProtocolError as error:
                caught.append(str(error))

    @server.tool
    def ask_in_thread(ctx: ThreadContext) -> None:
        try:
            ctx.list_roots()
        except LocalProtocolError as error:
            caught.append(str(error))

    asker = await serve(server)
    for name in ("ask", "ask_in_thread"):
        await asker.result("tools/call", {"name": name})
    assert ["roots" in text for text in caught] == [True, False, True]
    assert asker.received == []


async def test_a_handler_pings_its_client(server, serve):
    @server.tool
    async def ping(ctx: Context) -> str:
        await ctx.ping()
        return "alive"

    @server.tool
    def ping_from_thread(ctx: ThreadContext) -> str:
        ctx.ping()
        return "alive"

    asker = await serve(server)
    for name in ("ping", "ping_from_thread"):
        call = await asker.begin("tools/call", {"name": name})
        asked = await asker.next_message()
        assert asked["method"] == "ping"
        await asker.wire.send_result(asked, {})
        assert (await asker.end(call))["result"]["content"][0]["text"] == "alive"


# Sampling.


def text_message(text, role="user"):
    return {"role": role, "content": {"type": "text", "text": text}}


TEXT = types.TextContent(text="Why?")
IMAGE = types.ImageContent(data="AP8=", mime_type="image/png")
REPLY = types.SamplingMessage(role="assistant", content=types.TextContent(text="So."))


@pytest.mark.requirement("SAMP-08", "SAMP-09")
@pytest.mark.parametrize(
    ("question", "messages"),
    [
        ("Why?", [text_message("Why?")]),
        (TEXT, [text_message("Why?")]),
        (REPLY, [text_message("So.", "assistant")]),
        (
            ["Why?", REPLY, IMAGE],
            [
                text_message("Why?"),
                text_message("So.", "assistant"),
                {
                    "role": "user",
                    "content": {"type": "image", "data": "AP8=", "mimeType": "image/png"},
                },
            ],
        ),
        (
            types.CreateMessageParams(messages=[REPLY], max_tokens=5),
            [text_message("So.", "assistant")],
        ),
    ],
)
async def test_sampling_accepts_texts_contents_messages_and_results(
    server, serve, question, messages
):
    @server.tool
    async def ask(ctx: Context) -> str:
        answer = await ctx.sample(
            question,
            max_tokens=7,
            system_prompt="Be brief.",
            temperature=0.5,
            stop_sequences=["."],
            include_context="none",
            metadata={"a": 1},
            model_preferences=types.ModelPreferences(cost_priority=1),
        )
        return answer.content.text

    asker = await serve(server, capabilities=CLIENT_CAN)
    call = await asker.begin("tools/call", {"name": "ask"})
    asked = await asker.next_message()
    assert asked["params"] == {
        "messages": messages,
        "maxTokens": 7,
        "systemPrompt": "Be brief.",
        "temperature": 0.5,
        "stopSequences": ["."],
        "includeContext": "none",
        "metadata": {"a": 1},
        "modelPreferences": {"costPriority": 1},
    }
    await asker.wire.send_result(asked, {**text_message("So.", "assistant"), "model": "m"})
    assert (await asker.end(call))["result"]["content"][0]["text"] == "So."


@pytest.mark.parametrize("thread", [True, False])
async def test_a_sampling_request_has_a_default_for_max_tokens(server, serve, thread):
    if thread:

        @server.tool
        def ask(ctx: ThreadContext) -> str:
            return ctx.sample("Why?", system_prompt="Be brief.").model
    else:

        @server.tool
        async def ask(ctx: Context) -> str:
            return (await ctx.sample("Why?", system_prompt="Be brief.")).model

    asker = await serve(server, capabilities=CLIENT_CAN)
    call = await asker.begin("tools/call", {"name": "ask"})
    asked = await asker.next_message()
    assert asked["params"]["maxTokens"] == 1024
    assert asked["params"]["systemPrompt"] == "Be brief."
    await asker.wire.send_result(asked, {**text_message("So.", "assistant"), "model": "m"})
    assert (await asker.end(call))["result"]["content"][0]["text"] == "m"


@pytest.mark.parametrize(
    ("question", "options", "rejection"),
    [
        (7, {}, "a message is a text"),
        ([b"x"], {}, "a message is a text"),
        ("Why?", {"colour": "blue"}, "'colour'"),
        ("Why?", {"model_preferences": "fast"}, r"Expected `object \| null`, got `str`"),
        ("Why?", {"metadata": {"why": print}}, "builtin_function_or_method"),
    ],
)
async def test_an_invalid_sampling_request_is_never_sent(
    server, serve, question, options, rejection
):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(TypeError, match=rejection):
            await ctx.sample(question, **options)
        return "rejected"

    asker = await serve(server, capabilities=CLIENT_CAN)
    assert await asker.call("ask") == "rejected"
    assert asker.received == []


async def test_a_sampling_request_can_report_progress(server, serve):
    seen = []

    @server.tool
    async def ask(ctx: Context) -> str:
        async def report(params):
            seen.append(params.progress)
            await ctx.info(params.progress)

        return (await ctx.sample("Why?", progress=report)).model

    asker = await serve(server, capabilities=CLIENT_CAN)
    call = await asker.begin("tools/call", {"name": "ask"})
    asked = await asker.next_message()
    token = asked["params"]["_meta"]["progressToken"]
    for progress in (1, 2):
        await asker.wire.send_notification(
            "notifications/progress", {"progressToken": token, "progress": progress}
        )
    await asker.wire.send_result(asked, {**text_message("So.", "assistant"), "model": "m"})
    assert (await asker.end(call))["result"]["content"][0]["text"] == "m"
    assert seen == [1, 2]
    assert [message["params"]["data"] for message in asker.received] == [1, 2]


@pytest.mark.requirement("SAMP-28", "SAMP-10")
async def test_an_invalid_sampling_result_is_an_error_of_the_client(server, serve):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(RemoteProtocolError, match="sampling/createMessage"):
            await ctx.sample("Why?")
        return "caught"

    asker = await serve(server, capabilities=CLIENT_CAN)
    for answer in ({}, text_message("So."), {**text_message("So.", "captain"), "model": "m"}):
        call = await asker.begin("tools/call", {"name": "ask"})
        await asker.wire.send_result(await asker.next_message(), answer)
        assert (await asker.end(call))["result"]["content"][0]["text"] == "caught"


# Resources of the same server.


@pytest.fixture
def library(server):
    @server.resource("harbour://{port}/tide", mime_type="text/tide")
    async def tide(port: str, ctx: Context) -> str:
        return f"high in {port} for {ctx.method}"

    @server.resource("harbour://chart")
    def chart(ctx: ThreadContext) -> str:
        return ctx.read_resource("harbour://depth")[0].text

    @server.resource("harbour://depth")
    def depth() -> str:
        return "3"

    return server


async def test_a_handler_reads_resources_of_its_own_server(library, serve):
    @library.tool
    async def here(ctx: Context) -> str:
        (contents,) = await ctx.read_resource("harbour://oslo/tide")
        assert contents.mime_type == "text/tide"
        return contents.text

    @library.tool
    def there(ctx: ThreadContext) -> str:
        return ctx.read_resource("harbour://lima/tide")[0].text

    asker = await serve(library)
    assert await asker.call("here") == "high in oslo for tools/call"
    assert await asker.call("there") == "high in lima for tools/call"


async def test_a_nested_resource_read_in_a_thread_needs_no_further_thread(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(threads_max=1)))

    @server.resource("harbour://depth")
    def depth() -> str:
        return "3"

    @server.resource("harbour://chart")
    def chart(ctx: ThreadContext) -> str:
        return ctx.read_resource("harbour://depth")[0].text

    @server.tool
    def there(ctx: ThreadContext) -> str:
        return ctx.read_resource("harbour://chart")[0].text

    @server.tool
    async def here(ctx: Context) -> str:
        return (await ctx.read_resource("harbour://chart"))[0].text

    asker = await serve(server)
    assert await asker.call("there") == "3"
    assert await asker.call("here") == "3"


async def test_a_missing_resource_is_an_error_of_the_request(library, serve):
    @library.tool
    async def careless(ctx: Context) -> str:
        await ctx.read_resource("harbour://nowhere")

    @library.tool
    async def careful(ctx: Context) -> str:
        with pytest.raises(RequestError, match="resource not found"):
            await ctx.read_resource("harbour://nowhere")
        return "caught"

    asker = await serve(library)
    assert (await asker.error("tools/call", {"name": "careless"}))["code"] == -32002
    assert await asker.call("careful") == "caught"


# URL elicitation, and the notification that it is complete.


@pytest.mark.requirement("ELIC-27", "ELIC-28", "ELIC-30", "ELIC-31", "TRAP-92")
@pytest.mark.parametrize("thread", [False, True])
async def test_a_user_accepts_a_url_and_the_client_is_notified_of_the_completion(
    server, serve, thread
):
    if thread:

        @server.tool
        def pay(ctx: ThreadContext) -> str:
            answer = ctx.elicit_url("Pay", URL)
            assert (answer.is_accepted, answer.data) == (True, None)
            ctx.elicitation_complete(answer.elicitation_id)
            return answer.elicitation_id
    else:

        @server.tool
        async def pay(ctx: Context) -> str:
            answer = await ctx.elicit_url("Pay", URL)
            assert (answer.is_accepted, answer.data) == (True, None)
            await ctx.elicitation_complete(answer.elicitation_id)
            return answer.elicitation_id

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    seen = set()
    for _ in range(2):
        call = await asker.begin("tools/call", {"name": "pay"})
        question = await asker.next_message()
        elicitation_id = question["params"].pop("elicitationId")
        assert question["params"] == {"mode": "url", "message": "Pay", "url": URL}
        await asker.wire.send_result(question, {"action": "accept"})
        assert text_of(await asker.end(call)) == elicitation_id
        (notification,) = asker.received
        asker.received.clear()
        assert notification["method"] == "notifications/elicitation/complete"
        assert notification["params"] == {"elicitationId": elicitation_id}
        seen.add(uuid.UUID(elicitation_id))
    assert len(seen) == 2


@pytest.mark.requirement("ELIC-28", "ELIC-32", "ELIC-45", "ELIC-47")
async def test_only_the_asked_client_is_notified_of_the_completion_and_once(server, serve):
    @server.tool
    async def pay(ctx: Context) -> str:
        answer = await ctx.elicit_url("Pay", URL, elicitation_id="payment-7")
        return answer.elicitation_id

    @server.tool
    async def paid(ctx: Context) -> str:
        try:
            await ctx.elicitation_complete("payment-7")
        except LocalProtocolError as error:
            return str(error)
        return "told"

    first = await serve(server, protocol_version=D, capabilities=BOTH)
    second = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await first.begin("tools/call", {"name": "pay"})
    question = await first.next_message()
    assert question["params"]["elicitationId"] == "payment-7"
    await first.wire.send_result(question, {"action": "accept"})
    assert text_of(await first.end(call)) == "payment-7"
    rejection = "the URL elicitation 'payment-7' was not sent to this client, or is complete"
    assert await second.call("paid") == rejection
    assert await first.call("paid") == "told"
    assert await first.call("paid") == rejection
    assert [message["params"] for message in first.received] == [{"elicitationId": "payment-7"}]
    assert second.received == []


async def test_a_completion_that_was_cancelled_can_be_sent_later(server, serve):
    @server.tool
    async def pay(ctx: Context) -> str:
        answer = await ctx.elicit_url("Pay", URL, elicitation_id="payment-7")
        with trio.CancelScope() as scope:
            scope.cancel()
            await ctx.elicitation_complete(answer.elicitation_id)
        assert scope.cancelled_caught
        await ctx.elicitation_complete(answer.elicitation_id)
        return "told"

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "pay"})
    await asker.wire.send_result(await asker.next_message(), {"action": "accept"})
    assert text_of(await asker.end(call)) == "told"
    assert [message["params"] for message in asker.received] == [{"elicitationId": "payment-7"}]


async def test_url_elicitations_that_are_never_completed_are_dropped(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(elicitations_remembered_max=1)))

    @server.tool
    async def pay(ctx: Context) -> str:
        for name in ("one", "two"):
            await ctx.elicit_url("Pay", URL, elicitation_id=name)
        await ctx.elicitation_complete("two")
        with pytest.raises(LocalProtocolError, match="'one'"):
            await ctx.elicitation_complete("one")
        await ctx.elicitation_complete(None)
        return "done"

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "pay"})
    for _ in range(2):
        await asker.wire.send_result(await asker.next_message(), {"action": "accept"})
    assert text_of(await asker.end(call)) == "done"
    assert [message["params"] for message in asker.received] == [{"elicitationId": "two"}]


# Handlers that need a visited URL before they continue.


@pytest.fixture
def toll(server):
    """A tool, a prompt and a resource that want a visit first."""

    def visits():
        return UrlElicitationRequired(
            [UrlElicitation("Pay", URL), UrlElicitation("Log in", URL, elicitation_id="mine")],
            "the toll is due",
        )

    @server.tool
    async def here() -> str:
        raise visits()

    @server.tool
    def there() -> str:
        raise visits()

    @server.prompt
    async def ask() -> str:
        raise ExceptionGroup("of a nursery", [visits()])

    @server.resource("harbour://toll")
    async def read() -> str:
        raise visits()

    return server


CALLS = [
    ("tools/call", {"name": "here"}),
    ("tools/call", {"name": "there"}),
    ("prompts/get", {"name": "ask"}),
    ("resources/read", {"uri": "harbour://toll"}),
]


@pytest.mark.requirement("ERR-16", "ERR-17", "ELIC-28", "TRAP-92")
@pytest.mark.parametrize(("method", "params"), CALLS)
async def test_a_client_of_2025_11_25_gets_an_error_with_the_required_urls(
    toll, serve, method, params
):
    asker = await serve(toll, protocol_version=D, capabilities=BOTH)
    error = await asker.error(method, params)
    assert (error["code"], error["message"]) == (-32042, "the toll is due")
    first, second = error["data"]["elicitations"]
    assert uuid.UUID(first.pop("elicitationId"))
    assert first == {"mode": "url", "message": "Pay", "url": URL}
    assert second == {"mode": "url", "message": "Log in", "url": URL, "elicitationId": "mine"}


@pytest.mark.requirement("ELIC-04", "ERR-16")
@pytest.mark.parametrize(
    ("protocol_version", "capabilities"),
    [(D, {"elicitation": {}}), (C, {"elicitation": {}}), (D, {})],
)
async def test_a_client_without_url_elicitation_receives_no_url(
    toll, serve, protocol_version, capabilities
):
    asker = await serve(toll, protocol_version=protocol_version, capabilities=capabilities)
    error = await asker.error("prompts/get", {"name": "ask"})
    text = "the client did not announce elicitation.url"
    assert (error["code"], error["message"]) == (-32603, text)


async def test_a_handler_gets_an_instance_of_its_pydantic_model_and_replays(server, record):
    @server.tool
    async def moor(ctx: Context) -> str:
        answer = await ctx.elicit("When?", Visit)
        assert type(answer.data) is Visit
        return f"{answer.data.first:%d.%m.%Y} {answer.data.sizes}"

    asker, recorded = await record(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "moor", "arguments": {}})
    question = await asker.next_message()
    await asker.wire.send_result(question, {"action": "accept", "content": {"from": "2024-02-29"}})
    answer = await asker.end(call)
    text = "29.02.2024 [<Size.SMALL: 's'>]"
    assert answer["result"]["content"] == [{"type": "text", "text": text}]
    assert (await played_again(asker, recorded, server)).requests == 1
