"""Requests of handlers to stateless clients, which answer them in rounds."""

import inspect
import json
import time
import uuid
from types import SimpleNamespace

import attrs
import msgspec
import pytest
import trio

from mcp_trio import (
    Context,
    Elicitation,
    KeyRing,
    Roots,
    Sampling,
    Server,
    ThreadContext,
    UrlElicitation,
    types,
)
from mcp_trio._protocol.metadata import UNKNOWN_PEER
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import SUSPENDED_PREFIX, IncomingRequest
from mcp_trio._server.resumable import _binding
from mcp_trio.auth import AuthInfo
from mcp_trio.errors import UrlElicitationRequired
from mcp_trio.http import MemoryStore
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from mcp_trio.recording import RecordOptions, Redaction, replay
from tests.server.conftest import played_again
from tests.server.rounds import NOT_VALID, TRUE, asking_at_its_end

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
                assert asker.received == []
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
async def test_a_url_elicitation_in_a_round_has_no_id_and_no_completion_notification(
    server, rounds
):
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
async def test_the_error_names_the_missing_client_capability(
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
    """Handlers that require a payment first."""
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
async def test_a_required_url_is_a_round_and_the_handler_runs_again(toll, rounds):
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


def test_an_empty_list_of_required_urls_is_rejected():
    with pytest.raises(ValueError, match="no URL"):
        UrlElicitationRequired([])


@pytest.mark.requirement("ELIC-20", "TRAP-92")
async def test_declining_a_required_url_is_an_error(toll, rounds):
    declined = {"it": {"action": "decline"}}
    _, reply = await rounds("resources/read", {"uri": "harbour://toll"}, declined)
    assert reply["error"] == {
        "code": -32603,
        "message": "the toll is due, and the user has not agreed to it",
    }


@pytest.mark.requirement("ELIC-04")
async def test_a_client_without_url_elicitation_is_not_asked_for_a_required_url(toll, rounds):
    _, reply = await rounds("tools/call", {"name": "here"}, capabilities={"elicitation": {}})
    assert reply["error"]["code"] == -32021
    assert reply["error"]["data"] == {"requiredCapabilities": {"elicitation": {"url": {}}}}


# Handlers that return their requests, and states that are used once.


INTERNAL = {"code": -32603, "message": "internal error"}
FORM = {"type": "object", "properties": {"value": {"type": "boolean"}}}
SURE = types.InputRequest(
    method="elicitation/create", params=types.ElicitParams(message="sure?", requested_schema=FORM)
)
ROOTS = types.InputRequest(method="roots/list")
SAMPLE = types.InputRequest(
    method="sampling/createMessage",
    params={
        "maxTokens": 1,
        "messages": [{"role": "user", "content": {"type": "text", "text": "?"}}],
    },
)


@pytest.fixture
def plain(chain):
    """A chain for a handler that is not resumable."""

    def start(handler, **options):
        return chain(lambda server: server.tool(name="it")(handler), **options)

    return start


def asks(state=None, **requests):
    return types.InputRequiredResult(input_requests=requests or None, request_state=state)


async def count_up(*, ctx: Context) -> types.InputRequiredResult | str:
    """Asks twice, and counts in a state of its own."""
    values = [answer.content["value"] for answer in ctx.input_responses.values()]
    state = (ctx.request_state or "") + json.dumps(values)
    return state if "true" in state else asks(state, mine=SURE)


# Handlers that return their requests.


@pytest.mark.requirement("MRTR-02", "MRTR-04", "MRTR-06", "MRTR-20", "MRTR-22")
async def test_a_handler_may_ask_by_its_result_and_keep_a_text(plain):
    it = plain(count_up)
    first = await it.begin()
    last = await it.go_on(first, mine=TRUE)

    assert first["inputRequests"]["mine"]["params"]["message"] == "sure?"
    assert "[" not in first["requestState"]
    assert last["content"][0]["text"] == "[][true]"
    state = first["requestState"]
    bad = state[:50] + ("A" if state[50] != "A" else "B") + state[51:]
    assert await it.rejected(requestState=bad, inputResponses={"mine": TRUE}) == NOT_VALID


@pytest.mark.requirement("MRTR-22", "STATE-08", "ELIC-45", "ELIC-53")
def test_a_state_is_bound_to_the_authenticated_principal():
    params = types.CallToolParams(name="it")

    def bound(principal):
        auth = None if principal is None else AuthInfo(subject=principal)
        peer = msgspec.structs.replace(UNKNOWN_PEER, auth=auth)
        request = IncomingRequest(1, METHODS["tools/call"], params, peer=peer)
        return _binding(SimpleNamespace(request=request)).bytes_for("shop")

    assert bound("anna") == bound("anna")
    assert len({bound(name) for name in ("anna", "bert", None)}) == 3


async def test_a_state_without_questions_is_a_round_too(plain):
    async def later(*, ctx: Context) -> types.InputRequiredResult | str:
        return "done" if ctx.request_state == "busy" else asks("busy")

    it = plain(later)
    first = await it.begin()

    assert "inputRequests" not in first
    assert (await it.go_on(first))["content"][0]["text"] == "done"


async def test_answers_without_a_state_are_decoded_by_their_shape(plain):
    async def ask(*, ctx: Context) -> types.InputRequiredResult | str:
        if not ctx.input_responses:
            return asks(a=SURE, b=ROOTS, c=SAMPLE)
        return " ".join(type(it).__name__ for it in ctx.input_responses.values())

    it = plain(ask)
    first = await it.begin()
    sampled = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "!"}}
    last = await it.go_on(first, a=TRUE, b={"roots": []}, c=sampled)

    assert "requestState" not in first
    assert first["inputRequests"]["b"]["method"] == "roots/list"
    assert last["content"][0]["text"] == "ElicitResult ListRootsResult CreateMessageResult"


@pytest.mark.requirement("MRTR-24")
@pytest.mark.parametrize("answer", [{"action": "maybe"}, {"neither": 1}, [], "text"])
async def test_an_answer_of_unknown_shape_is_rejected(plain, answer):
    async def ask(*, ctx: Context) -> types.InputRequiredResult:
        return asks(a=SURE)

    error = await plain(ask).rejected(inputResponses={"a": answer})

    assert error["code"] == -32602
    assert error["message"].startswith("inputResponses['a']: ")


@pytest.mark.requirement("MRTR-04", "MRTR-06")
@pytest.mark.parametrize(
    "result",
    [
        asks(),
        types.InputRequiredResult(input_requests={}),
        asks(a=types.InputRequest(method="tools/list")),
        asks(a=types.InputRequest(method="elicitation/create", params={"message": 1})),
    ],
    ids=["nothing", "none of none", "no question", "no params"],
)
async def test_an_invalid_input_required_result_fails_the_request(plain, result):
    async def ask(*, ctx: Context) -> types.InputRequiredResult:
        return result

    assert await plain(ask).failure() == "internal error in it"


@pytest.mark.requirement("MRTR-07")
@pytest.mark.parametrize(
    ("request_", "missing"),
    [
        (SURE, {"elicitation": {"form": {}}}),
        (ROOTS, {"roots": {}}),
        (SAMPLE, {"sampling": {}}),
        (
            types.InputRequest(
                method="elicitation/create",
                params={"mode": "url", "message": "pay", "url": "https://shop.example/pay"},
            ),
            {"elicitation": {"url": {}}},
        ),
    ],
    ids=["form", "roots", "sampling", "url"],
)
async def test_nothing_is_asked_that_the_client_did_not_declare(plain, request_, missing):
    async def ask(*, ctx: Context) -> types.InputRequiredResult:
        return asks(a=request_)

    it = plain(ask)
    it.options = {"capabilities": {}}
    error = await it.rejected()

    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": missing}


@pytest.mark.requirement("MRTR-03", "TRAP-95")
async def test_only_methods_with_rounds_ask_by_their_result(chain):
    def register(server):
        @server.method("acme/ask")
        async def ask(params: dict) -> types.InputRequiredResult:
            return asks(a=SURE)

    it = chain(register)
    it.method = "acme/ask"

    assert await it.rejected() == INTERNAL


async def test_a_resumable_handler_asks_by_its_context_only(resumable):
    async def ask(*, ctx: Context) -> types.InputRequiredResult:
        return asks(a=SURE)

    assert await resumable(ask).failure() == "internal error in it"


async def test_a_handler_of_a_method_may_ask_by_its_result(chain):
    def register(server):
        @server.method("tools/call")
        async def call(
            params: types.CallToolParams, *, ctx: Context
        ) -> types.InputRequiredResult | types.CallToolResult:
            if ctx.request_state is None:
                return asks("kept", a=SURE)
            return types.CallToolResult(content=[types.TextContent(text=ctx.request_state)])

    it = chain(register)

    assert (await it.go_on(await it.begin(), a=TRUE))["content"][0]["text"] == "kept"


async def test_a_legacy_client_is_asked_the_same_by_requests(serve):
    server = Server("shop")
    server.tool(name="it")(count_up)
    asker = await serve(server, protocol_version="2025-06-18", capabilities={"elicitation": {}})
    call = await asker.begin("tools/call", {"name": "it"})
    question = await asker.wire.receive()
    await asker.wire.send_result(question, TRUE)
    result = (await asker.end(call))["result"]

    assert question["method"] == "elicitation/create"
    assert result["content"][0]["text"] == "[][true]"


@pytest.mark.requirement("ELIC-28", "ELIC-31")
@pytest.mark.parametrize("own_id", [None, "payment-7"])
async def test_a_legacy_url_elicitation_has_an_id_and_a_completion_notification(serve, own_id):
    server = Server("shop")
    visit = types.ElicitParams(
        message="pay", mode="url", url="https://shop.example/pay", elicitation_id=own_id
    )

    @server.tool
    async def pay(*, ctx: Context) -> types.InputRequiredResult | str:
        if ctx.request_state is None:
            asked = types.InputRequest(method="elicitation/create", params=visit)
            return asks("paying", visit=asked)
        await ctx.elicitation_complete(own_id)
        return ctx.input_responses["visit"].action

    asker = await serve(
        server, protocol_version="2025-11-25", capabilities={"elicitation": {"form": {}, "url": {}}}
    )
    call = await asker.begin("tools/call", {"name": "pay"})
    question = await asker.wire.receive()
    await asker.wire.send_result(question, {"action": "accept"})
    result = (await asker.end(call))["result"]

    elicitation_id = question["params"]["elicitationId"]
    assert elicitation_id == (own_id or str(uuid.UUID(elicitation_id)))
    assert [message["params"]["elicitationId"] for message in asker.received] == (
        [own_id] if own_id else []
    )
    assert result["content"][0]["text"] == "accept"


async def test_a_handler_that_asks_a_legacy_client_without_end_is_stopped(serve, autojump_clock):
    server = Server(
        "shop", limits=msgspec.structs.replace(DEFAULT_LIMITS, requests=RequestLimits(rounds_max=3))
    )
    rounds = []

    @server.tool
    async def ask(*, ctx: Context) -> types.InputRequiredResult:
        rounds.append(ctx.request_state)
        return asks("again")

    asker = await serve(server, protocol_version="2025-06-18")

    assert await asker.failure("ask") == "internal error in ask"
    assert rounds == [None, "again", "again"]


async def test_a_uri_that_is_rejected_has_no_rounds(chain):
    def register(server):
        @server.resource("shop://{item}")
        async def item(item: str) -> str:
            return item

    it = chain(register)
    it.method, it.params = "resources/read", {"uri": "shop://.."}

    assert (await it.rejected())["code"] == -32602


# States that are used once.


@pytest.mark.requirement("MRTR-23")
async def test_a_state_that_was_used_gets_the_same_reply_and_does_nothing(resumable, plain):
    store, done = MemoryStore(), []

    def step(name: str) -> None:
        done.append(name)

    async def ask(*, ctx: Context) -> str:
        first = (await ctx.elicit("first?", bool)).data
        await ctx.effect(step, str(first))
        second = (await ctx.elicit("second?", bool)).data
        return f"{first} {second}"

    it = resumable(ask, options={"states": store})
    first = await it.begin()
    second = await it.go_on(first, q1=TRUE)
    again = await it.go_on(first, q1={"action": "decline"})
    last = await it.go_on(second, q2=TRUE)
    assert again == second
    assert await it.go_on(second, q2={"action": "decline"}) == last
    assert last["content"][0]["text"] == "True True"
    assert done == ["True"]


@pytest.mark.requirement("MRTR-23", "CACHE-01")
async def test_a_repeated_reply_has_the_same_cache_metadata(chain):
    def register(server):
        @server.method("resources/read")
        async def read(
            params: types.ReadResourceParams, *, ctx: Context
        ) -> types.InputRequiredResult | types.ReadResourceResult:
            if ctx.request_state is None:
                return asks("kept", q1=SURE)
            return types.ReadResourceResult(contents=[])

    it = chain(register, options={"states": MemoryStore()})
    it.method, it.params = "resources/read", {"uri": "shop://stock"}
    first = await it.begin()
    last = await it.go_on(first, q1=TRUE)

    assert (last["ttlMs"], last["cacheScope"]) == (0, "private")
    assert await it.go_on(first, q1=TRUE) == last


@pytest.mark.requirement("MRTR-23")
async def test_a_state_that_led_to_an_error_is_used_up(plain):
    async def ask(*, ctx: Context) -> types.InputRequiredResult:
        if ctx.request_state:
            raise RuntimeError("boom")
        return asks("kept", a=SURE)

    it = plain(ask, options={"states": MemoryStore()})
    state = (await it.begin())["requestState"]

    assert await it.failure(requestState=state) == "internal error in it"
    assert await it.rejected(requestState=state) == NOT_VALID


@pytest.mark.requirement("MRTR-23")
async def test_a_used_state_is_stored_until_it_ends_by_all_clocks(plain, monkeypatch):
    async def ask(*, ctx: Context) -> types.InputRequiredResult:
        return asks("again", a=SURE)

    limits = msgspec.structs.replace(
        DEFAULT_LIMITS, requests=RequestLimits(state_seconds=600, state_chain_seconds=600)
    )
    now, begun = 0.0, time.time()
    it = plain(ask, options={"states": MemoryStore(1, now=lambda: now), "limits": limits})
    state = (await it.begin())["requestState"]
    # The clock of the instance that accepts the state is 500 seconds late.
    monkeypatch.setattr(time, "time", lambda: begun - 500 + now)

    first = (await it.send(requestState=state))["result"]
    now = 700.0  # The state is still valid there.
    assert (await it.send(requestState=state))["result"] == first


async def test_a_destructive_tool_is_resumable_only_with_a_store():
    hints = types.ToolAnnotations(destructive_hint=True)

    async def wipe() -> None:
        pass

    with pytest.raises(ValueError, match="give the server `states`"):
        Server("shop").tool(resumable=True, annotations=hints)(wipe)
    Server("shop", states=MemoryStore()).tool(resumable=True, annotations=hints)(wipe)


# Rounds of tools, prompts and resources, recorded and replayed.


STATELESS = "2026-07-28"
REPLY_ROUNDS = {"q1": {"action": "accept", "content": {"value": "reed"}}}
PARAMS = {
    "tools/call": {"name": "boat", "arguments": {}},
    "prompts/get": {"name": "sail"},
    "resources/read": {"uri": "port://boats"},
}


@pytest.fixture
def server_rounds():
    server = Server("harbour")

    @server.tool
    def boat(ctx: ThreadContext) -> str:
        return f"{ctx.elicit('Which boat?', str).data}"

    @server.prompt
    async def sail(ctx: Context) -> str:
        return f"{(await ctx.elicit('Which boat?', str)).data}"

    @server.resource("port://boats")
    async def boats(ctx: Context) -> str:
        return f"{(await ctx.elicit('Which boat?', str)).data}"

    @server.tool
    async def row(ctx: Context) -> str:
        _, roots = await ctx.ask_all(Elicitation("Which oar?", str), Roots())
        return str(len(roots))

    @server.tool
    async def greet(ctx: Context) -> str:
        await ctx.ping()
        return ""

    return server


@pytest.mark.requirement("MRTR-01", "MRTR-02", "BASE-22", "STDIO-11")
@pytest.mark.parametrize("method", list(PARAMS))
async def test_three_methods_have_rounds_that_replay(server_rounds, record, method):
    asker, recorded = await record(
        server_rounds, protocol_version=STATELESS, capabilities={"elicitation": {}}
    )
    params = PARAMS[method]
    first = await asker.result(method, params)
    assert first["resultType"] == "input_required"
    assert first["requestState"].startswith(SUSPENDED_PREFIX)
    state = {"requestState": first["requestState"], "inputResponses": REPLY_ROUNDS}
    last = await asker.result(method, {**params, **state})
    assert last["resultType"] == "complete"
    assert "reed" in str(last)
    assert asker.received == []
    assert (await played_again(asker, recorded, server_rounds)).is_complete


@pytest.mark.requirement("MRTR-07", "TRAP-101")
async def test_a_question_needs_a_capability_declared_in_the_same_request(server_rounds, serve):
    asker = await serve(
        server_rounds, protocol_version=STATELESS, capabilities={"elicitation": {}, "roots": {}}
    )
    params = {"name": "row", "arguments": {}}
    assert (await asker.result("tools/call", params))["resultType"] == "input_required"
    capabilities = "io.modelcontextprotocol/clientCapabilities"
    asker.metadata[capabilities] = {"elicitation": {}}
    error = await asker.error("tools/call", params)
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"roots": {}}}


@pytest.mark.requirement("BASE-22", "STDIO-11")
async def test_a_stateless_client_is_not_pinged(server_rounds, serve):
    asker = await serve(server_rounds, protocol_version=STATELESS)
    assert await asker.failure("greet") == "internal error in greet"
    assert asker.received == []


# Rounds in recordings, each a file of its own: they replay without a key.


@pytest.mark.parametrize("redaction", [None, Redaction(key=b"0123456789abcdef")])
async def test_each_round_is_replayed_without_the_key(resumable, tmp_path, redaction):
    done, secret = [], "hunter2-hunter2"

    def charge(password: str) -> str:
        done.append(password)
        return f"paid by {password}"

    async def ask(password: str, *, ctx: Context) -> str:
        total, answers = await ctx.effect(charge, password), []

        async def one(name: str) -> None:
            answers.append((await ctx.elicit(f"{name} {password}?", bool)).data)
            await ctx.effect(done.append, name)

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(one, name)
        last = await ctx.elicit(f"pay with {password}?", bool)
        return f"{total} {answers} {last.data} {ctx.random.random()} {ctx.now()}"

    it, paths = resumable(ask, password=secret, options={"states": MemoryStore()}), []

    def next_path():
        paths.append(tmp_path / f"{len(paths)}.mcprec.jsonl")
        it.options = {"record": RecordOptions(paths[-1], redaction=redaction)}

    next_path()
    result = await it.begin()
    while result["resultType"] == "input_required":
        next_path()
        result = await it.go_on(result, **dict.fromkeys(result["inputRequests"], TRUE))
    await trio.testing.wait_all_tasks_blocked()
    elsewhere = Server("shop", version="1", keys=KeyRing.random(), states=MemoryStore())
    elsewhere.tool(name="it", resumable=True)(ask)
    done.clear()

    assert len(paths) == 3
    for path in paths:
        assert (secret.encode() in path.read_bytes()) is (redaction is None)
        await trio.to_thread.run_sync(replay, path, elsewhere)
    assert done == []


@pytest.fixture
def replayed(tmp_path):
    """Record the requests of a chain; gives what replays all of them, with a server's handler."""
    paths = []

    def next_path():
        paths.append(tmp_path / f"{len(paths)}.mcprec.jsonl")
        return paths[-1]

    async def again(*handlers):
        await trio.testing.wait_all_tasks_blocked()
        for path, handler in zip(paths, handlers, strict=True):
            server = Server("shop", version="1")
            server.tool(name="it", resumable=True)(handler)
            await trio.to_thread.run_sync(replay, path, server)

    again.next_path = next_path
    return again


async def test_a_handler_that_asks_at_its_end_is_replayed(resumable, replayed):
    errors = []
    ask = asking_at_its_end(errors)
    it = resumable(ask)
    it.options = {"record": replayed.next_path()}
    await it.begin()
    await replayed(ask)

    assert len(errors) == 2
    assert len(set(errors)) == 1


async def test_clean_up_in_each_round_is_replayed(resumable, replayed):
    done = []

    async def ask(*, ctx: Context) -> str:
        answers = []

        async def one(name: str) -> None:
            try:
                answers.append((await ctx.elicit(name, bool)).data)
            finally:
                with trio.CancelScope(shield=True):
                    await ctx.info(f"{name} {ctx.now()}")
                    await ctx.effect(done.append, name)

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(one, name)
        return f"{answers} {ctx.random.random()}"

    it = resumable(ask)
    it.params["_meta"] = {"io.modelcontextprotocol/logLevel": "info"}
    it.options = {"record": replayed.next_path()}
    first = await it.begin()
    it.options = {"record": replayed.next_path()}
    await it.go_on(first, q1=TRUE, q2=TRUE)
    await replayed(ask, ask)

    assert sorted(done) == ["a", "a", "b", "b"]
    assert len(it.received) == 4


async def test_a_round_of_a_changed_handler_is_replayed(resumable, replayed):
    def version(question):
        async def ask(*, ctx: Context) -> str:
            return str((await ctx.elicit(question, bool)).data)

        return ask

    old, new = version("delete one?"), version("delete all?")
    it, later = resumable(old), resumable(new)
    it.options = {"record": replayed.next_path()}
    first = await it.begin()
    later.options = {"record": replayed.next_path()}
    second = await later.go_on(first, q1=TRUE)
    later.options = {"record": replayed.next_path()}
    await later.go_on(second, q2=TRUE)

    await replayed(old, new, new)


async def test_a_handler_in_a_thread_is_replayed(resumable, replayed):
    def price() -> int:
        return 30

    def ask(*, ctx: ThreadContext) -> str:
        total = ctx.effect(price)
        answer = ctx.elicit(f"pay {total}?", bool)
        return f"{total} {answer.data} {ctx.patched('new')} {ctx.now()} {ctx.random.random()}"

    it = resumable(ask)
    it.options = {"record": replayed.next_path()}
    first = await it.begin()
    it.options = {"record": replayed.next_path()}
    await it.go_on(first, q1=TRUE)

    await replayed(ask, ask)


async def test_a_cancelled_question_beside_another_is_replayed(resumable, replayed):
    async def ask(*, ctx: Context) -> str:
        async def vain() -> None:
            with trio.move_on_after(0) as scope:
                await ctx.elicit("vain?", bool)
            assert scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            nursery.start_soon(vain)
            nursery.start_soon(ctx.elicit, "sure?", bool)
        return "asked"

    it = resumable(ask)
    it.options = {"record": replayed.next_path()}
    result = await it.begin()
    await replayed(ask)

    assert "sure?" in {each["params"]["message"] for each in result["inputRequests"].values()}
