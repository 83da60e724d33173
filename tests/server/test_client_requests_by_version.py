"""Requests of a handler to its client at every protocol version."""

import attrs
import pytest

from mcp_trio import Context, Limits, RequestError, Server, types
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import CapabilityMissing, LocalProtocolError, RemoteProtocolError
from mcp_trio.limits import RequestLimits

A, B, C, D, E = PROTOCOL_VERSIONS
LEGACY, ASKS_FORMS, HAS_MODES = (A, B, C, D), (C, D, E), (D, E)
INVALID_PARAMS = -32602

ALL = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}, "context": {}},
    "roots": {},
}
URL = "https://harbour.example/pay"
REPLY = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "So."}}
TIDE = types.Tool(name="tide", input_schema={"type": "object"})


@attrs.frozen
class Mooring:
    ship: str
    nights: int = 1


@attrs.define(eq=False)
class Conversation:
    """One call of a tool whose handler sends a request, with some protocol version."""

    asker: object
    is_stateless: bool
    name: str
    call: int = 0
    keys: list = attrs.field(factory=list)
    rest: dict = attrs.field(factory=dict)
    last: dict = attrs.field(factory=dict)

    async def begin(self):
        self.call = await self.asker.begin("tools/call", {"name": self.name, **self.rest})

    async def question(self):
        """The method and the params of the only question that there is now."""
        if not self.is_stateless:
            self.last = await self.asker.next_message()
            return self.last["method"], self.last.get("params", {})
        result = (await self.asker.end(self.call))["result"]
        assert result["resultType"] == "input_required"
        ((key, asked),) = result["inputRequests"].items()
        self.rest = {"requestState": result["requestState"]}
        self.keys = [key]
        return asked["method"], asked.get("params", {})

    async def answer(self, result):
        if not self.is_stateless:
            await self.asker.wire.send_result(self.last, result)
            return
        self.rest["inputResponses"] = {self.keys[0]: result}
        await self.begin()

    async def end(self):
        """The whole answer to the call."""
        reply = await self.asker.end(self.call)
        assert self.asker.received == []
        return reply


@pytest.fixture
def talk(server, serve):
    """Begin a call of a handler; it is given the context."""

    async def start(handler, protocol_version, *, capabilities=ALL):
        @server.tool
        async def ask(ctx: Context) -> str:
            return str(await handler(ctx))

        asker = await serve(server, protocol_version=protocol_version, capabilities=capabilities)
        conversation = Conversation(
            asker, not PROTOCOL_VERSIONS[protocol_version].has_handshake, "ask"
        )
        await conversation.begin()
        return conversation

    return start


def text_of(reply):
    return reply["result"]["content"][0]["text"]


# Roots.


@pytest.mark.requirement("ROOT-03", "ROOT-04", "ROOT-10")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_handler_asks_for_roots(talk, protocol_version):
    async def ask(ctx):
        return [root.uri for root in await ctx.list_roots()]

    call = await talk(ask, protocol_version)
    assert await call.question() == ("roots/list", {})
    await call.answer({"roots": [{"uri": "file:///pier", "name": "pier"}]})
    assert text_of(await call.end()) == "['file:///pier']"


@pytest.mark.requirement("ROOT-10", "ELIC-04", "LIFE-14")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    ("question", "capability"),
    [
        (lambda ctx: ctx.list_roots(), "roots"),
        (lambda ctx: ctx.sample("Why?"), "sampling"),
        (lambda ctx: ctx.elicit("Moor?"), "elicitation.form"),
        (lambda ctx: ctx.elicit_url("Pay", URL), "elicitation.url"),
    ],
)
async def test_a_client_without_the_capability_is_never_asked(
    talk, protocol_version, question, capability
):
    async def ask(ctx):
        with pytest.raises(CapabilityMissing, match=f"did not announce {capability}"):
            await question(ctx)
        return "not asked"

    call = await talk(ask, protocol_version, capabilities={})
    assert text_of(await call.end()) == "not asked"


# Sampling.


@pytest.mark.requirement("SAMP-06", "SAMP-07", "SAMP-08", "SAMP-09", "SAMP-16", "SAMP-24")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_handler_samples_a_model(talk, protocol_version):
    async def ask(ctx):
        image = types.ImageContent(data="AP8=", mime_type="image/png")
        first = await ctx.sample(["Why?", image], max_tokens=9, system_prompt="Be brief.")
        second = await ctx.sample("And then?", max_tokens=5)
        return first.content.text + second.content.text

    call = await talk(ask, protocol_version)
    why = {"role": "user", "content": {"type": "text", "text": "Why?"}}
    image = {"type": "image", "data": "AP8=", "mimeType": "image/png"}
    assert await call.question() == (
        "sampling/createMessage",
        {
            "messages": [why, {"role": "user", "content": image}],
            "maxTokens": 9,
            "systemPrompt": "Be brief.",
        },
    )
    await call.answer(REPLY)
    _, second = await call.question()
    then = {"role": "user", "content": {"type": "text", "text": "And then?"}}
    assert second == {"messages": [then], "maxTokens": 5}
    await call.answer(REPLY)
    assert text_of(await call.end()) == "So.So."


@pytest.mark.requirement("SAMP-10", "SAMP-28")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    "change",
    [
        {"role": "captain"},
        {"model": 7},
        {"content": {"type": "video"}},
        {"content": None},
        {"stopReason": 3},
    ],
)
async def test_an_invalid_sampling_result_never_reaches_the_handler(talk, protocol_version, change):
    async def ask(ctx):
        try:
            return await ctx.sample("Why?")
        except RemoteProtocolError:
            return "not believed"

    call = await talk(ask, protocol_version)
    await call.question()
    await call.answer({**REPLY, **change})
    reply = await call.end()
    if protocol_version == E:
        assert reply["error"]["code"] == INVALID_PARAMS
    else:
        assert text_of(reply) == "not believed"


@pytest.mark.requirement("SAMP-04", "SAMP-17")
@pytest.mark.parametrize("protocol_version", HAS_MODES)
@pytest.mark.parametrize(
    ("options", "capability"),
    [
        ({"tools": [TIDE]}, "sampling.tools"),
        ({"tool_choice": types.ToolChoice(mode="none")}, "sampling.tools"),
        ({"include_context": "thisServer"}, "sampling.context"),
        ({"include_context": "allServers"}, "sampling.context"),
    ],
)
async def test_sampling_requests_use_only_announced_capabilities(
    talk, protocol_version, options, capability
):
    async def ask(ctx):
        with pytest.raises(CapabilityMissing, match=f"did not announce {capability}"):
            await ctx.sample("Why?", **options)
        return "not asked"

    call = await talk(ask, protocol_version, capabilities={"sampling": {}})
    assert text_of(await call.end()) == "not asked"


def use(use_id):
    meta = {"org.example/kept": use_id}
    return {"type": "tool_use", "id": use_id, "name": "tide", "input": {}, "_meta": meta}


@pytest.mark.requirement("SAMP-09", "SAMP-18", "SAMP-19", "SAMP-21", "SAMP-23", "TRAP-86")
@pytest.mark.parametrize("protocol_version", HAS_MODES)
async def test_each_use_of_a_tool_is_answered_in_the_next_message(talk, protocol_version):
    async def ask(ctx):
        answer = await ctx.sample("Why?", tools=[TIDE])
        messages = ["Why?", answer, "because"]
        with pytest.raises(LocalProtocolError, match="tool"):
            await ctx.sample(messages, tools=[TIDE])
        content = [types.TextContent(text="High.")]
        results = [
            types.ToolResultContent(tool_use_id=block.id, content=content, meta=block.meta)
            for block in answer.content
        ]
        with pytest.raises(LocalProtocolError, match="tool"):
            await ctx.sample(["Why?", answer, results[:1]], tools=[TIDE])
        return (await ctx.sample(["Why?", answer, results], tools=[TIDE])).content.text

    call = await talk(ask, protocol_version)
    _, first = await call.question()
    assert first["tools"] == [{"name": "tide", "inputSchema": {"type": "object"}}]
    uses = [use("a"), use("b")]
    await call.answer({**REPLY, "content": uses, "stopReason": "toolUse"})
    _, second = await call.question()
    assert second["messages"][1] == {"role": "assistant", "content": uses}
    results = second["messages"][2]["content"]
    assert [(block["type"], block["toolUseId"]) for block in results] == [
        ("tool_result", "a"),
        ("tool_result", "b"),
    ]
    assert [block["_meta"] for block in results] == [block["_meta"] for block in uses]
    await call.answer(REPLY)
    assert text_of(await call.end()) == "So."


@pytest.mark.requirement("SAMP-22")
@pytest.mark.parametrize("protocol_version", HAS_MODES)
async def test_a_handler_that_never_stops_asking_is_stopped(serve, protocol_version):
    server = Server(
        "harbour", limits=Limits(requests=RequestLimits(sent_per_handler_max=2, rounds_max=2))
    )

    @server.tool
    async def ask(ctx: Context) -> str:
        while True:
            await ctx.sample("Why?", tools=[TIDE])

    asker = await serve(server, protocol_version=protocol_version, capabilities=ALL)
    call = Conversation(asker, not PROTOCOL_VERSIONS[protocol_version].has_handshake, "ask")
    await call.begin()
    for _ in range(2):
        await call.question()
        await call.answer(REPLY)
    assert (await call.end())["result"]["isError"]


# Forms.


@pytest.mark.requirement(
    "ELIC-05", "ELIC-06", "ELIC-07", "ELIC-08", "ELIC-09", "ELIC-15", "ELIC-16", "TRAP-90"
)
@pytest.mark.parametrize("protocol_version", ASKS_FORMS)
async def test_a_handler_asks_its_user_by_a_form(talk, protocol_version):
    async def ask(ctx):
        return (await ctx.elicit("Which ship?", Mooring)).data

    call = await talk(ask, protocol_version)
    method, params = await call.question()
    assert method == "elicitation/create"
    assert params.pop("mode", None) == (None if protocol_version == C else "form")
    assert params["message"] == "Which ship?"
    schema = params["requestedSchema"]
    assert (schema["type"], schema["required"]) == ("object", ["ship"])
    assert schema["properties"]["ship"] == {"type": "string"}
    assert schema["properties"]["nights"]["type"] == "integer"
    await call.answer({"action": "accept", "content": {"ship": "Ada", "nights": 3}})
    assert text_of(await call.end()) == str(Mooring("Ada", 3))


@pytest.mark.requirement("ELIC-20")
@pytest.mark.parametrize("protocol_version", ASKS_FORMS)
@pytest.mark.parametrize("action", ["accept", "decline", "cancel"])
async def test_a_handler_receives_the_action_of_its_user(talk, protocol_version, action):
    async def ask(ctx):
        answer = await ctx.elicit("Moor?")
        return f"{answer.action} {answer.is_accepted}"

    call = await talk(ask, protocol_version)
    await call.question()
    await call.answer({"action": action, **({"content": {}} if action == "accept" else {})})
    assert text_of(await call.end()) == f"{action} {action == 'accept'}"


@pytest.mark.requirement("ELIC-15", "ELIC-16", "ELIC-18", "ELIC-19", "ELIC-21", "ELIC-23")
@pytest.mark.parametrize("protocol_version", ASKS_FORMS)
@pytest.mark.parametrize(
    "result",
    [
        {"action": "accept"},
        {"action": "accept", "content": {"nights": 3}},
        {"action": "accept", "content": {"ship": {"name": "Ada"}}},
        {"action": "accept", "content": {"ship": None}},
        {"action": "perhaps"},
    ],
)
async def test_an_invalid_form_response_never_reaches_the_handler(talk, protocol_version, result):
    async def ask(ctx):
        try:
            return (await ctx.elicit("Which ship?", Mooring)).data
        except RemoteProtocolError:
            return "not believed"

    call = await talk(ask, protocol_version)
    await call.question()
    await call.answer(result)
    reply = await call.end()
    if protocol_version == E:
        assert reply["error"]["code"] == INVALID_PARAMS
    else:
        assert text_of(reply) == "not believed"


@pytest.mark.requirement("ELIC-10", "ELIC-12", "ELIC-13", "TRAP-91")
@pytest.mark.parametrize("protocol_version", HAS_MODES)
async def test_a_form_has_every_keyword_that_forms_support(talk, protocol_version):
    titled = [{"const": "i", "title": "Inner"}, {"const": "o", "title": "Outer"}]
    properties = {
        "ship": {"type": "string", "minLength": 1, "maxLength": 9, "default": "Ada"},
        "mail": {"type": "string", "format": "email"},
        "depth": {"type": "number", "minimum": 0.5, "maximum": 9, "default": 1},
        "lit": {"type": "boolean", "default": True},
        "berth": {"type": "string", "enum": ["i", "o"], "default": "i"},
        "pier": {"type": "string", "oneOf": titled},
        "old": {"type": "string", "enum": ["i", "o"], "enumNames": ["Inner", "Outer"]},
        "days": {"type": "array", "items": {"type": "string", "enum": ["i", "o"]}, "maxItems": 2},
        "piers": {"type": "array", "items": {"anyOf": titled}, "minItems": 1, "default": ["o"]},
    }
    form = {"type": "object", "properties": properties, "required": ["ship", "piers"]}
    content = {"ship": "Ada", "piers": ["o", "i"]}

    async def ask(ctx):
        return (await ctx.elicit("Which ship?", form)).data["piers"]

    call = await talk(ask, protocol_version)
    _, params = await call.question()
    assert params["requestedSchema"] == form
    await call.answer({"action": "accept", "content": content})
    assert text_of(await call.end()) == "['o', 'i']"


@pytest.mark.requirement("ELIC-24", "ELIC-25", "ELIC-26", "ELIC-43", "ELIC-48")
@pytest.mark.parametrize("protocol_version", ASKS_FORMS)
@pytest.mark.parametrize("name", ["password", "api_key", "access_token", "card_number"])
async def test_no_form_asks_for_secrets(talk, protocol_version, name):
    async def ask(ctx):
        form = {"type": "object", "properties": {name: {"type": "string"}}}
        with pytest.raises(LocalProtocolError, match=name):
            await ctx.elicit("Log in", form)
        with pytest.raises(LocalProtocolError):
            await ctx.elicit(f"Log in at {URL}")
        return "not asked"

    call = await talk(ask, protocol_version)
    assert text_of(await call.end()) == "not asked"


# URL elicitation.


@pytest.mark.requirement("ELIC-27", "ELIC-28", "ELIC-29", "ELIC-30", "ELIC-44", "TRAP-92")
@pytest.mark.parametrize("protocol_version", HAS_MODES)
async def test_a_handler_asks_its_user_to_visit_a_url(talk, protocol_version):
    async def ask(ctx):
        answer = await ctx.elicit_url("Pay", URL)
        return f"{answer.action} {answer.data}"

    call = await talk(ask, protocol_version)
    _, params = await call.question()
    assert ("elicitationId" in params) is (protocol_version == D)
    params.pop("elicitationId", None)
    assert params == {"mode": "url", "message": "Pay", "url": URL}
    await call.answer({"action": "accept"})
    assert text_of(await call.end()) == "accept None"


@pytest.mark.requirement("ELIC-27", "ELIC-42", "ELIC-44", "ELIC-48")
@pytest.mark.parametrize("protocol_version", HAS_MODES)
@pytest.mark.parametrize(
    "url",
    [
        "harbour.example/pay",
        "http://harbour.example/pay",
        "javascript:alert(1)",
        "https://ann:secret@harbour.example/pay",
        "https://harbour.example/pay?access_token=1",
    ],
)
async def test_unsafe_urls_are_rejected(talk, protocol_version, url):
    async def ask(ctx):
        with pytest.raises(LocalProtocolError):
            await ctx.elicit_url("Pay", url)
        return "not asked"

    call = await talk(ask, protocol_version)
    assert text_of(await call.end()) == "not asked"


@pytest.mark.requirement("ELIC-03", "ELIC-04", "TRAP-89")
@pytest.mark.parametrize("protocol_version", HAS_MODES)
@pytest.mark.parametrize(
    ("announced", "can"),
    [
        ({}, {"form"}),
        ({"form": {}}, {"form"}),
        ({"url": {}}, {"visit"}),
        ({"form": {}, "url": {}}, {"form", "visit"}),
    ],
)
async def test_a_mode_that_was_not_announced_is_not_used(
    server, serve, protocol_version, announced, can
):
    @server.tool
    async def form(ctx: Context) -> str:
        return (await ctx.elicit("Moor?")).action

    @server.tool
    async def visit(ctx: Context) -> str:
        return (await ctx.elicit_url("Pay", URL)).action

    asker = await serve(
        server, protocol_version=protocol_version, capabilities={"elicitation": announced}
    )
    for name in ("form", "visit"):
        call = Conversation(asker, not PROTOCOL_VERSIONS[protocol_version].has_handshake, name)
        await call.begin()
        if name in can:
            await call.question()
            await call.answer({"action": "decline"})
            assert text_of(await call.end()) == "decline"
            continue
        answer, mode = await call.end(), {"form": "form", "visit": "url"}[name]
        if protocol_version == E:
            assert answer["error"]["code"] == -32021
        else:
            assert text_of(answer) == f"the client did not announce elicitation.{mode}"


# Rejections.


@pytest.mark.requirement("TRAP-88")
@pytest.mark.parametrize("protocol_version", LEGACY)
@pytest.mark.parametrize("code", [-1, -32601, -32603])
async def test_a_rejected_question_raises_in_the_handler(server, serve, protocol_version, code):
    @server.tool
    async def ask(ctx: Context) -> str:
        try:
            await ctx.sample("Why?")
        except RequestError as error:
            return str(error.code)

    asker = await serve(server, protocol_version=protocol_version, capabilities=ALL)
    call = await asker.begin("tools/call", {"name": "ask"})
    asked = await asker.next_message()
    await asker.wire.send({"id": asked["id"], "error": {"code": code, "message": "no"}})
    assert text_of(await asker.end(call)) == str(code)
