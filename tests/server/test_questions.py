"""What a handler asks: its client, its client's model, its own server."""

import pytest

from mcp_trio import Context, Limits, RequestError, Server, ThreadContext, types
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError
from mcp_trio.limits import RequestLimits

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
        asked = await asker.next_told()
        assert asked["method"] == "roots/list"
        await asker.wire.send_result(asked, {"roots": [{"uri": "file:///pier"}]})
        asked = await asker.next_told()
        assert asked["method"] == "sampling/createMessage"
        assert asked["params"] == {
            "messages": [{"role": "user", "content": {"type": "text", "text": "Why?"}}],
            "maxTokens": 9,
        }
        said = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "So."}}
        await asker.wire.send_result(asked, said)
        result = (await asker.end(call))["result"]
        assert result["content"][0]["text"] == "file:///pier So."


@pytest.mark.requirement("LIFE-14", "ROOT-10", "SAMP-06")
async def test_a_client_that_cannot_is_not_asked(server, serve):
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
    assert asker.told == []


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
        asked = await asker.next_told()
        assert asked["method"] == "ping"
        await asker.wire.send_result(asked, {})
        assert (await asker.end(call))["result"]["content"][0]["text"] == "alive"


# What is asked of a model.


def say(text, role="user"):
    return {"role": role, "content": {"type": "text", "text": text}}


TEXT = types.TextContent(text="Why?")
IMAGE = types.ImageContent(data="AP8=", mime_type="image/png")
REPLY = types.SamplingMessage(role="assistant", content=types.TextContent(text="So."))


@pytest.mark.requirement("SAMP-08", "SAMP-09")
@pytest.mark.parametrize(
    ("question", "messages"),
    [
        ("Why?", [say("Why?")]),
        (TEXT, [say("Why?")]),
        (REPLY, [say("So.", "assistant")]),
        (
            ["Why?", REPLY, IMAGE],
            [
                say("Why?"),
                say("So.", "assistant"),
                {
                    "role": "user",
                    "content": {"type": "image", "data": "AP8=", "mimeType": "image/png"},
                },
            ],
        ),
        (types.CreateMessageParams(messages=[REPLY], max_tokens=5), [say("So.", "assistant")]),
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
    asked = await asker.next_told()
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
    await asker.wire.send_result(asked, {**say("So.", "assistant"), "model": "m"})
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
    asked = await asker.next_told()
    assert asked["params"]["maxTokens"] == 1024
    assert asked["params"]["systemPrompt"] == "Be brief."
    await asker.wire.send_result(asked, {**say("So.", "assistant"), "model": "m"})
    assert (await asker.end(call))["result"]["content"][0]["text"] == "m"


@pytest.mark.parametrize(
    ("question", "options", "rejection"),
    [
        (7, {}, "a message is a text"),
        ([b"x"], {}, "a message is a text"),
        ("Why?", {"colour": "blue"}, "'colour'"),
    ],
)
async def test_a_question_that_is_none_never_leaves(server, serve, question, options, rejection):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(TypeError, match=rejection):
            await ctx.sample(question, **options)
        return "rejected"

    asker = await serve(server, capabilities=CLIENT_CAN)
    assert await asker.call("ask") == "rejected"
    assert asker.told == []


async def test_a_model_may_report_how_far_it_is(server, serve):
    seen = []

    @server.tool
    async def ask(ctx: Context) -> str:
        async def report(params):
            seen.append(params.progress)
            await ctx.info(params.progress)

        return (await ctx.sample("Why?", progress=report)).model

    asker = await serve(server, capabilities=CLIENT_CAN)
    call = await asker.begin("tools/call", {"name": "ask"})
    asked = await asker.next_told()
    token = asked["params"]["_meta"]["progressToken"]
    for progress in (1, 2):
        await asker.wire.send_notification(
            "notifications/progress", {"progressToken": token, "progress": progress}
        )
    await asker.wire.send_result(asked, {**say("So.", "assistant"), "model": "m"})
    assert (await asker.end(call))["result"]["content"][0]["text"] == "m"
    assert seen == [1, 2]
    assert [message["params"]["data"] for message in asker.told] == [1, 2]


@pytest.mark.requirement("SAMP-28", "SAMP-10")
async def test_an_answer_that_is_no_message_is_an_error_of_the_clients(server, serve):
    @server.tool
    async def ask(ctx: Context) -> str:
        with pytest.raises(RemoteProtocolError, match="sampling/createMessage"):
            await ctx.sample("Why?")
        return "caught"

    asker = await serve(server, capabilities=CLIENT_CAN)
    for answer in ({}, say("So."), {**say("So.", "captain"), "model": "m"}):
        call = await asker.begin("tools/call", {"name": "ask"})
        await asker.wire.send_result(await asker.next_told(), answer)
        assert (await asker.end(call))["result"]["content"][0]["text"] == "caught"


# Resources of one's own.


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


async def test_a_thread_that_reads_what_needs_a_thread_never_waits_for_its_own_place(serve):
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


async def test_a_resource_that_is_not_there_is_an_error_of_the_request(library, serve):
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
