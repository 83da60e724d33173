"""The same handlers at a stateless client: what they ask is the answer to their own request."""

import inspect

import attrs
import pytest

from mcp_trio import Context, Elicitation, Roots, Sampling, ThreadContext, UrlElicitation, types
from mcp_trio.errors import UrlElicitationRequired

E = "2026-07-28"
ALL = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
URL = "https://harbour.example/pay"
REPLY = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "So."}}


@attrs.frozen
class Mooring:
    ship: str
    nights: int = 1


@pytest.fixture
def rounds(server, serve):
    """Answer a handler's rounds one after the other; gives the questions, and the last reply.

    The answers of a round stand in the order of its questions.
    """

    async def ask(method, params, *answers, capabilities=ALL):
        asker = await serve(server, protocol_version=E, capabilities=capabilities)
        asked, rest = [], {}
        for each in (*answers, None):
            reply = await asker.ask(method, {**params, **rest})
            if each is None:
                assert asker.told == []
                return asked, reply
            result = reply["result"]
            assert result["resultType"] == "input_required"
            asked += result["inputRequests"].values()
            keys = list(result["inputRequests"])
            rest = {
                "inputResponses": dict(zip(keys, each.values(), strict=True)),
                "requestState": result["requestState"],
            }
        raise AssertionError("there is always a last reply")

    return ask


def accept(**content):
    return {"it": {"action": "accept", "content": content}}


def text_of(reply):
    return reply["result"]["content"][0]["text"]


@pytest.mark.requirement("ELIC-06", "ELIC-07", "ELIC-09", "ELIC-15", "ELIC-16", "MRTR-01")
@pytest.mark.parametrize("name", ["here", "there"])
async def test_a_form_is_asked_for_in_a_round(server, rounds, name):
    @server.tool
    async def here(ctx: Context) -> str:
        return str((await ctx.elicit("Which ship?", Mooring)).data)

    @server.tool
    def there(ctx: ThreadContext) -> str:
        return str(ctx.elicit("Which ship?", Mooring).data)

    asked, reply = await rounds("tools/call", {"name": name}, accept(ship="Ada"))
    assert asked == [
        {
            "method": "elicitation/create",
            "params": {
                "message": "Which ship?",
                "mode": "form",
                "requestedSchema": {
                    "type": "object",
                    "properties": {
                        "ship": {"type": "string"},
                        "nights": {"type": "integer", "default": 1},
                    },
                    "required": ["ship"],
                },
            },
        }
    ]
    assert text_of(reply) == str(Mooring("Ada"))


@pytest.mark.requirement("ELIC-20")
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_user_may_decline_in_a_round(server, rounds, action):
    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.elicit("Moor?")).action

    _, reply = await rounds("tools/call", {"name": "ask"}, {"it": {"action": action}})
    assert text_of(reply) == action


@pytest.mark.requirement("ELIC-23")
async def test_an_answer_that_does_not_fit_is_rejected_in_a_round(server, rounds):
    @server.tool
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("Which ship?", Mooring)).data)

    _, reply = await rounds("tools/call", {"name": "ask"}, accept(nights=3))
    assert reply["error"]["code"] == -32602
    assert "ship: missing" in reply["error"]["message"]


@pytest.mark.requirement("ELIC-27", "ELIC-29", "TRAP-92")
async def test_a_visit_has_no_id_and_its_end_no_notice(server, rounds):
    @server.tool
    async def pay(ctx: Context) -> str:
        answer = await ctx.elicit_url("Pay", URL, elicitation_id="mine")
        await ctx.elicitation_complete(answer.elicitation_id)
        return f"{answer.action} {answer.elicitation_id}"

    asked, reply = await rounds("tools/call", {"name": "pay"}, {"it": {"action": "accept"}})
    params = {"mode": "url", "message": "Pay", "url": URL}
    assert asked == [{"method": "elicitation/create", "params": params}]
    assert text_of(reply) == "accept None"


@pytest.mark.requirement("ELIC-06", "SAMP-07", "ROOT-04", "MRTR-06")
async def test_all_that_is_asked_at_once_is_one_round(server, rounds):
    @server.tool
    async def ask(ctx: Context) -> str:
        nights, visit, sample, roots = await ctx.ask_all(
            Elicitation("How many nights?", int),
            UrlElicitation("Pay", URL),
            Sampling("Why?"),
            Roots(),
        )
        return f"{nights.data} {visit.action} {sample.model} {roots[0].uri}"

    answers = {
        **accept(value=3),
        "visit": {"action": "decline"},
        "sample": REPLY,
        "roots": {"roots": [{"uri": "file:///pier"}]},
    }
    asked, reply = await rounds("tools/call", {"name": "ask"}, answers)
    assert [each["method"] for each in asked] == [
        "elicitation/create",
        "elicitation/create",
        "sampling/createMessage",
        "roots/list",
    ]
    assert text_of(reply) == "3 decline m file:///pier"


@pytest.mark.requirement("SAMP-04", "SAMP-17", "ELIC-04", "ERR-14", "TRAP-87", "TRAP-89", "META-17")
@pytest.mark.parametrize(
    ("capabilities", "name", "missing"),
    [
        ({}, "form", {"elicitation": {"form": {}}}),
        ({"elicitation": {"url": {}}}, "form", {"elicitation": {"form": {}}}),
        ({"elicitation": {}}, "visit", {"elicitation": {"url": {}}}),
        ({"sampling": {}}, "tools", {"sampling": {"tools": {}}}),
        ({"sampling": {}}, "context", {"sampling": {"context": {}}}),
        ({}, "roots", {"roots": {}}),
    ],
)
async def test_a_request_that_did_not_announce_what_is_needed_is_told_what_that_is(
    server, rounds, capabilities, name, missing
):
    tide = types.Tool(name="tide", input_schema={"type": "object"})
    questions = {
        "form": Elicitation("Moor?"),
        "visit": UrlElicitation("Pay", URL),
        "tools": Sampling("Why?", tools=[tide]),
        "context": Sampling("Why?", include_context="allServers"),
        "roots": Roots(),
    }

    @server.prompt
    async def ask(ctx: Context) -> str:
        await ctx.ask_all(questions[name])
        return "asked"

    _, reply = await rounds("prompts/get", {"name": "ask"}, capabilities=capabilities)
    assert reply["error"]["code"] == -32021
    assert reply["error"]["data"] == {"requiredCapabilities": missing}


@pytest.fixture
def toll(server):
    """Handlers that let nobody in before they have paid."""
    paid = []

    def check():
        if len(paid) < 2:
            paid.append("a coin")
            raise UrlElicitationRequired([UrlElicitation("Pay", URL)], "the toll is due")
        return "welcome"

    @server.tool
    async def here() -> str:
        return check()

    @server.resource("harbour://toll")
    def there() -> str:
        return check()


@pytest.mark.requirement("ELIC-29", "ELIC-30", "TRAP-92")
async def test_a_visit_that_is_needed_is_a_round_and_then_the_handler_looks_again(toll, rounds):
    agreed = {"it": {"action": "accept"}}
    asked, reply = await rounds("tools/call", {"name": "here"}, agreed, agreed)
    params = {"mode": "url", "message": "Pay", "url": URL}
    assert asked == [{"method": "elicitation/create", "params": params}] * 2
    assert text_of(reply) == "welcome"


async def test_repeated_url_elicitations_run_at_a_constant_stack_depth(server, rounds):
    depths = []

    @server.tool
    async def here() -> str:
        depths.append(len(inspect.stack(0)))
        if len(depths) < 5:
            raise UrlElicitationRequired([UrlElicitation("Pay", URL)])
        return "welcome"

    _, reply = await rounds("tools/call", {"name": "here"}, *[{"it": {"action": "accept"}}] * 4)
    assert text_of(reply) == "welcome"
    assert len(depths) == 5
    assert len(set(depths[1:])) == 1


def test_a_visit_of_nothing_is_none():
    with pytest.raises(ValueError, match="no URL"):
        UrlElicitationRequired([])


@pytest.mark.requirement("ELIC-20", "TRAP-92")
async def test_a_user_who_declines_a_required_url_receives_an_error(toll, rounds):
    declined = {"it": {"action": "decline"}}
    _, reply = await rounds("resources/read", {"uri": "harbour://toll"}, declined)
    assert reply["error"] == {
        "code": -32603,
        "message": "the toll is due, and the user has not agreed to it",
    }


@pytest.mark.requirement("ELIC-04")
async def test_a_visit_is_not_needed_of_who_cannot_be_asked(toll, rounds):
    _, reply = await rounds("tools/call", {"name": "here"}, capabilities={"elicitation": {}})
    assert reply["error"]["code"] == -32021
    assert reply["error"]["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}
