"""Elicitation: a handler asks its client's user to fill in a form or open a URL."""

import enum
import json

import attrs
import pytest

from mcp_trio import Context, Elicitation, Roots, Sampling, ThreadContext, UrlElicitation
from mcp_trio.errors import (
    CapabilityMissing,
    LocalProtocolError,
    RemoteProtocolError,
    UrlElicitationRequired,
)
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
        question = await asker.next_told()
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
async def test_a_value_alone_a_schema_and_a_mere_confirmation_are_forms_too(server, serve):
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
        question = await asker.next_told()
        shown.append(question["params"]["requestedSchema"])
        await asker.wire.send_result(question, {"action": "accept", "content": content})
    assert shown[0]["properties"] == {"value": {"type": "integer"}}
    assert shown[1] == schema
    assert shown[2] == {"type": "object", "properties": {}}
    assert text_of(await asker.end(call)) == '[3,{"depth":2.5},null]'


# What a client has to announce.


FORM, VISIT = {"elicitation": {"form": {}}}, {"elicitation": {"url": {}}}


@pytest.fixture
def modes(server):
    """Tools that tell what a client would have had to announce."""

    async def told(answer):
        try:
            await answer
        except CapabilityMissing as error:
            return [str(error), error.required]
        return ["asked", None]

    @server.tool
    async def form(ctx: Context) -> list:
        return await told(ctx.elicit("Moor?"))

    @server.tool
    async def visit(ctx: Context) -> list:
        return await told(ctx.elicit_url("Pay", URL))

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
            await asker.wire.send_result(await asker.next_told(), {"action": "decline"})
        told = json.loads(text_of(await asker.end(call)))
        (mode,) = missing["elicitation"]
        rejection = [f"the client did not announce elicitation.{mode}", missing]
        assert told == (["asked", None] if name in can else rejection)
    assert asker.told == []


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


# What is never asked.


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
async def test_a_form_that_must_not_be_never_leaves(server, serve, message, kind, error):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(error or LocalProtocolError):
            await ctx.elicit(message, kind)
        return "rejected"

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    assert await asker.call("ask") == "rejected"
    assert asker.told == []


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
    assert asker.told == []


@pytest.mark.requirement("ELIC-27", "ELIC-44")
@pytest.mark.parametrize(
    "url", [URL, "http://localhost:8000/pay", "http://127.0.0.1/pay?state=7", "http://[::1]/pay"]
)
async def test_in_development_a_url_of_this_machine_will_do(server, asked, url):
    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit_url("Pay", url)).action

    question, answer = await asked("ask", {"action": "accept"})
    assert question["params"]["url"] == url
    assert text_of(answer) == "accept"


# Several questions at once.


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

    def said(answers):
        nights, visit, sample, roots = answers
        return f"{nights.data} {visit.action} {sample.model} {roots[0].uri}"

    if thread:

        @server.tool
        def ask(ctx: ThreadContext) -> str:
            return said(ctx.ask_all(*questions))
    else:

        @server.tool
        async def ask(ctx: Context) -> str:
            return said(await ctx.ask_all(*questions))

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "ask"})
    told = [await asker.next_told() for _ in questions]
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
    for question in reversed(told):
        kind = question.get("params", {}).get("mode", question["method"])
        await asker.wire.send_result(question, results.pop(kind))
    assert text_of(await asker.end(call)) == "3 decline m file:///pier"


async def test_one_question_that_fails_takes_the_others_back(server, serve):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(RemoteProtocolError, match="value: missing"):
            await ctx.ask_all(Elicitation("How many nights?", int), Roots())
        return "caught"

    asker = await serve(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "ask"})
    told = {question["method"]: question for question in await asker.wire.receive_many(2)}
    await asker.wire.send_result(told["elicitation/create"], {"action": "accept"})
    assert text_of(await asker.end(call)) == "caught"
    (cancelled,) = asker.told
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == told["roots/list"]["id"]


# Recordings.


async def test_a_recorded_session_asks_the_same_again_with_the_same_ids(server, record):
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

    asker, told = await record(server, protocol_version=D, capabilities=BOTH)
    call = await asker.begin("tools/call", {"name": "ask"})
    for question in await asker.wire.receive_many(2):
        is_form = question["params"]["mode"] == "form"
        result = accept(value=3) if is_form else {"action": "accept"}
        await asker.wire.send_result(question, result)
    assert text_of(await asker.end(call)) == "3"
    assert (await asker.error("tools/call", {"name": "toll"}))["code"] == -32042
    await played_again(asker, told, server)
