"""Handlers that ask by their result, and states that are used once."""

import json
import uuid
from types import SimpleNamespace

import attrs
import pytest

from mcp_trio import Context, Server, types
from mcp_trio._protocol.metadata import UNKNOWN_PEER
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import IncomingRequest
from mcp_trio._server.resumable import _binding
from mcp_trio.http import MemoryStore
from mcp_trio.limits import DEFAULT_LIMITS, RequestLimits
from tests.server.rounds import NOT_VALID, TRUE

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
    said = [answer.content["value"] for answer in ctx.input_responses.values()]
    state = (ctx.request_state or "") + json.dumps(said)
    return state if "true" in state else asks(state, mine=SURE)


# Handlers that ask by their result --------------------------------------------------------------


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

    def bound(**facts):
        peer = attrs.evolve(UNKNOWN_PEER, **facts)
        request = IncomingRequest(1, METHODS["tools/call"], params, peer=peer)
        return _binding(SimpleNamespace(request=request)).at("shop")

    assert bound(principal="anna") == bound(principal="anna")
    assert len({bound(principal=name) for name in ("anna", "bert", None)}) == 3


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
async def test_an_answer_that_looks_like_none_is_rejected(plain, answer):
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

    assert await plain(ask).rejected() == INTERNAL


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

    assert await resumable(ask).rejected() == INTERNAL


async def test_a_handler_of_the_whole_method_may_ask_by_its_result(chain):
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
async def test_a_visit_that_a_legacy_client_is_asked_for_has_an_id_and_an_end(serve, own_id):
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
    assert [told["params"]["elicitationId"] for told in asker.told] == ([own_id] if own_id else [])
    assert result["content"][0]["text"] == "accept"


async def test_a_handler_that_asks_a_legacy_client_without_end_is_stopped(serve, autojump_clock):
    server = Server(
        "shop", limits=attrs.evolve(DEFAULT_LIMITS, requests=RequestLimits(rounds_max=3))
    )
    rounds = []

    @server.tool
    async def ask(*, ctx: Context) -> types.InputRequiredResult:
        rounds.append(ctx.request_state)
        return asks("again")

    asker = await serve(server, protocol_version="2025-06-18")

    assert await asker.error("tools/call", {"name": "ask"}) == INTERNAL
    assert rounds == [None, "again", "again"]


async def test_a_uri_that_is_rejected_has_no_rounds(chain):
    def register(server):
        @server.resource("shop://{item}")
        async def item(item: str) -> str:
            return item

    it = chain(register)
    it.method, it.params = "resources/read", {"uri": "shop://.."}

    assert (await it.rejected())["code"] == -32602


# Once only --------------------------------------------------------------------------------------


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

    assert await it.rejected(requestState=state) == INTERNAL
    assert await it.rejected(requestState=state) == NOT_VALID


async def test_a_destructive_tool_is_resumable_only_with_a_store():
    hints = types.ToolAnnotations(destructive_hint=True)

    async def wipe() -> None:
        pass

    with pytest.raises(ValueError, match="give the server `states`"):
        Server("shop").tool(resumable=True, annotations=hints)(wipe)
    Server("shop", states=MemoryStore()).tool(resumable=True, annotations=hints)(wipe)
