"""A handler lends its client's model some tools, and gives it what they say."""

import pytest

from mcp_trio import Context, Limits, Server, ThreadContext, types
from mcp_trio.errors import CapabilityMissing, LocalProtocolError, RemoteProtocolError
from mcp_trio.limits import RequestLimits

C, D = "2025-06-18", "2025-11-25"
PLAIN = {"sampling": {}}
TOOLS = {"sampling": {"tools": {}}}
ALL = {"sampling": {"tools": {}, "context": {}}}

TIDE = types.Tool(name="tide", input_schema={"type": "object"})
NO_TOOLS = types.ToolChoice(mode="none")
TEXT = types.TextContent(text="High.")
AUDIO = types.AudioContent(data="AP8=", mime_type="audio/wav")


def use(use_id, **meta):
    return {"type": "tool_use", "id": use_id, "name": "tide", "input": {"at": "noon"}, **meta}


def reply(*blocks):
    content = blocks[0] if len(blocks) == 1 else blocks
    return {"role": "assistant", "model": "m", "content": content, "stopReason": "toolUse"}


def say(text):
    return {"type": "text", "text": text}


def results_of(answer):
    """What the tools say that the model wants to use."""
    blocks = answer.content if isinstance(answer.content, list) else [answer.content]
    return [
        types.ToolResultContent(tool_use_id=block.id, content=[TEXT], meta=block.meta)
        for block in blocks
        if isinstance(block, types.ToolUseContent)
    ]


@pytest.fixture
def ask_once(server, serve):
    """Let a handler ask by `ctx.sample`; gives what the client is told, or None with the error."""

    async def ask(question, *, protocol_version=D, capabilities=ALL, error=None, **options):
        @server.tool
        async def tool(ctx: Context) -> str:
            if error is None:
                return (await ctx.sample(question, **options)).model
            with pytest.raises(error[0], match=error[1]):
                await ctx.sample(question, **options)
            return "rejected"

        asker = await serve(server, protocol_version=protocol_version, capabilities=capabilities)
        call = await asker.begin("tools/call", {"name": "tool"})
        if error is not None:
            assert (await asker.end(call))["result"]["content"][0]["text"] == "rejected"
            assert asker.told == []
            return None
        asked = await asker.next_told()
        await asker.wire.send_result(asked, reply(say("So.")))
        assert (await asker.end(call))["result"]["content"][0]["text"] == "m"
        return asked["params"]

    return ask


@pytest.mark.requirement("SAMP-09", "SAMP-18", "SAMP-19", "SAMP-23", "TRAP-86")
@pytest.mark.parametrize("thread", [False, True])
async def test_a_model_uses_tools_and_continues_with_their_results(server, serve, thread):
    if thread:

        @server.tool
        def ask(ctx: ThreadContext) -> str:
            said = ["When is high water?"]
            for _ in range(3):
                answer = ctx.sample(said, tools=[TIDE])
                results = results_of(answer)
                if not results:
                    return answer.content.text
                said += [answer, results]
            return "never"
    else:

        @server.tool
        async def ask(ctx: Context) -> str:
            said = ["When is high water?"]
            for _ in range(3):
                answer = await ctx.sample(said, tools=[TIDE])
                results = results_of(answer)
                if not results:
                    return answer.content.text
                said += [answer, results]
            return "never"

    asker = await serve(server, protocol_version=D, capabilities=TOOLS)
    call = await asker.begin("tools/call", {"name": "ask"})
    first = await asker.next_told()
    assert first["params"]["tools"] == [{"name": "tide", "inputSchema": {"type": "object"}}]
    uses = [use("a", _meta={"k": 1}), use("b")]
    await asker.wire.send_result(first, reply(say("Let me see."), *uses))
    second = await asker.next_told()
    question, answer, results = second["params"]["messages"]
    assert question == {"role": "user", "content": say("When is high water?")}
    assert answer == {"role": "assistant", "content": [say("Let me see."), *uses]}
    told = {"type": "tool_result", "content": [say("High.")]}
    assert results == {
        "role": "user",
        "content": [
            {**told, "toolUseId": "a", "_meta": {"k": 1}},
            {**told, "toolUseId": "b"},
        ],
    }
    await asker.wire.send_result(second, reply(say("At noon.")))
    assert (await asker.end(call))["result"]["content"][0]["text"] == "At noon."


@pytest.mark.requirement("SAMP-09", "TRAP-85")
@pytest.mark.parametrize(
    ("question", "content"),
    [
        (AUDIO, {"type": "audio", "data": "AP8=", "mimeType": "audio/wav"}),
        (types.SamplingMessage(role="user", content=[TEXT, TEXT]), [say("High."), say("High.")]),
        (types.SamplingMessage(role="user", content=[TEXT]), [say("High.")]),
    ],
)
async def test_a_message_is_one_block_or_a_list(ask_once, question, content):
    params = await ask_once(question)
    assert params["messages"] == [{"role": "user", "content": content}]


@pytest.mark.requirement("SAMP-09", "TRAP-85")
async def test_an_older_client_gets_a_block_and_no_list(ask_once):
    message = types.SamplingMessage(role="user", content=[TEXT])
    params = await ask_once(message, protocol_version=C, capabilities=PLAIN)
    assert params["messages"] == [{"role": "user", "content": say("High.")}]


@pytest.mark.requirement("SAMP-04", "TRAP-87")
@pytest.mark.parametrize("options", [{"tools": [TIDE]}, {"tool_choice": types.ToolChoice()}])
@pytest.mark.parametrize(
    ("protocol_version", "capabilities"), [(D, PLAIN), (C, PLAIN), ("2024-11-05", PLAIN)]
)
async def test_a_client_that_did_not_announce_tools_gets_none(
    ask_once, protocol_version, capabilities, options
):
    error = (CapabilityMissing, "sampling.tools")
    await ask_once(
        "Why?", protocol_version=protocol_version, capabilities=capabilities, error=error, **options
    )


@pytest.mark.requirement("SAMP-16")
async def test_sampling_asks_for_no_context_by_default(ask_once):
    assert "includeContext" not in await ask_once("Why?")


@pytest.mark.requirement("SAMP-17")
@pytest.mark.parametrize("context", ["thisServer", "allServers"])
async def test_context_is_asked_for_only_where_it_is_announced(ask_once, context):
    error = (CapabilityMissing, r"sampling\.context")
    await ask_once("Why?", capabilities=TOOLS, error=error, include_context=context)


@pytest.mark.requirement("SAMP-08", "SAMP-17")
@pytest.mark.parametrize(
    ("protocol_version", "capabilities", "context"),
    [(D, ALL, "thisServer"), (D, PLAIN, "none"), (C, PLAIN, "thisServer")],
)
async def test_context_that_may_be_asked_for_is(ask_once, protocol_version, capabilities, context):
    params = await ask_once(
        "Why?",
        protocol_version=protocol_version,
        capabilities=capabilities,
        include_context=context,
    )
    assert params["includeContext"] == context


RESULT = types.ToolResultContent(tool_use_id="a", content=[TEXT])
USE = types.SamplingMessage(
    role="assistant", content=types.ToolUseContent(id="a", name="tide", input={})
)


@pytest.mark.requirement("SAMP-18", "SAMP-19", "TRAP-86")
@pytest.mark.parametrize(
    ("question", "fault"),
    [
        (RESULT, "an unknown tool use 'a'"),
        ([USE], "no result for the tool use 'a'"),
        ([USE, "High."], "no result for the tool use 'a'"),
        (
            [USE, types.SamplingMessage(role="user", content=[RESULT, TEXT])],
            "must contain tool results only",
        ),
        (types.CreateMessageParams(messages=[USE], max_tokens=1), "no result"),
    ],
)
async def test_tool_results_without_a_matching_tool_use_are_not_sent(ask_once, question, fault):
    await ask_once(question, error=(LocalProtocolError, fault))


@pytest.mark.parametrize("question", [[[]], [[RESULT, "High."]], [types.ToolChoice()]])
async def test_a_value_that_is_no_message_is_not_sent_to_a_model(ask_once, question):
    await ask_once(question, error=(TypeError, "a message is a text"))


@pytest.mark.requirement("SAMP-22")
async def test_a_handler_that_never_stops_asking_is_stopped(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(sent_per_handler_max=3)))

    @server.tool
    async def ask(ctx: Context) -> str:
        said = ["When is high water?"]
        try:
            while True:
                answer = await ctx.sample(said, tools=[TIDE])
                said += [answer, results_of(answer)]
        except LocalProtocolError as error:
            return str(error)

    asker = await serve(server, protocol_version=D, capabilities=TOOLS)
    call = await asker.begin("tools/call", {"name": "ask"})
    for _ in range(3):
        await asker.wire.send_result(await asker.next_told(), reply(use("a")))
    assert (await asker.end(call))["result"]["content"][0]["text"] == (
        "a handler cannot ask more than limits.requests.sent_per_handler_max=3"
    )
    assert asker.told == []


@pytest.mark.requirement("SAMP-24")
@pytest.mark.parametrize("protocol_version", [D, "2024-11-05"])
async def test_an_earlier_conversation_is_sent_only_if_the_handler_passes_it(
    server, serve, protocol_version
):
    @server.tool
    async def ask(ctx: Context) -> str:
        await ctx.sample("Ebb?")
        return (await ctx.sample("Flow?")).model

    asker = await serve(server, protocol_version=protocol_version, capabilities=PLAIN)
    call = await asker.begin("tools/call", {"name": "ask"})
    for question in ("Ebb?", "Flow?"):
        asked = await asker.next_told()
        assert asked["params"]["messages"] == [{"role": "user", "content": say(question)}]
        await asker.wire.send_result(asked, reply(say("So.")))
    assert (await asker.end(call))["result"]["content"][0]["text"] == "m"


@pytest.mark.requirement("SAMP-09", "TRAP-85")
@pytest.mark.parametrize("protocol_version", [D, C])
async def test_an_answer_that_is_a_list_of_one_block_is_that_block(server, serve, protocol_version):
    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("Why?")).content.text

    asker = await serve(server, protocol_version=protocol_version, capabilities=PLAIN)
    call = await asker.begin("tools/call", {"name": "ask"})
    answer = {**reply(say("")), "content": [say("So.")]}
    await asker.wire.send_result(await asker.next_told(), answer)
    assert (await asker.end(call))["result"]["content"][0]["text"] == "So."


@pytest.mark.requirement("SAMP-21", "SAMP-28")
@pytest.mark.parametrize("options", [{}, {"tools": [TIDE], "tool_choice": NO_TOOLS}])
async def test_a_use_of_unknown_tools_is_an_error_of_the_client(server, serve, options):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(RemoteProtocolError, match="it uses 'tide', which it was not given"):
            await ctx.sample("Why?", **options)
        return "caught"

    asker = await serve(server, protocol_version=D, capabilities=TOOLS)
    call = await asker.begin("tools/call", {"name": "ask"})
    await asker.wire.send_result(await asker.next_told(), reply(use("a")))
    assert (await asker.end(call))["result"]["content"][0]["text"] == "caught"
