"""The context of a handler: client and request, progress, log messages and sampling."""

import fractions
import json
import pathlib

import cattrs
import pytest
import trio
import trio.testing

from mcp_trio import Context, Limits, Server, ThreadContext, effect, get_context, types
from mcp_trio.errors import CapabilityMissing, LocalProtocolError, RemoteProtocolError
from mcp_trio.limits import MessageLimits, RequestLimits

E = "2026-07-28"


def log_messages(asker):
    return [
        (message["params"]["level"], message["params"]["data"])
        for message in asker.received
        if message["method"] == "notifications/message"
    ]


# Properties.


async def test_the_context_has_the_properties_of_client_and_request(server, serve):
    def facts(ctx):
        return [
            ctx.request_id,
            ctx.protocol_version,
            ctx.client_info.name,
            ctx.client_can("roots"),
            ctx.client_can("roots.listChanged"),
            ctx.client_can("sampling"),
            ctx.client_capabilities.roots.list_changed,
            ctx.is_cancelled,
            ctx.lifespan,
            ctx.method,
            ctx.progress_token,
            ctx.log_level,
            ctx.server is server,
        ]

    @server.tool
    async def here(ctx: Context) -> list:
        return facts(ctx)

    @server.tool
    def there(ctx: ThreadContext) -> list:
        return facts(ctx)

    asker = await serve(server, capabilities={"roots": {"listChanged": True}})
    end = '"2024-11-05","wire peer",true,true,false,true,false,null,"tools/call",null,"debug",true]'
    assert await asker.call("here") == f"[1,{end}"
    assert await asker.call("there") == f"[2,{end}"
    await asker.result("logging/setLevel", {"level": "error"})
    params = {"name": "here", "_meta": {"progressToken": "t"}}
    result = await asker.result("tools/call", params)
    assert '"tools/call","t","error",true]' in result["content"][0]["text"]


async def test_a_function_below_a_handler_finds_the_context(server, serve):
    def context_facts():
        context = get_context()
        return [type(context).__name__, context.request_id]

    @server.tool
    async def here() -> list:
        return context_facts()

    @server.tool
    def there() -> list:
        return context_facts()

    asker = await serve(server)
    assert await asker.call("here") == '["Context",1]'
    assert await asker.call("there") == '["ThreadContext",2]'


async def test_there_is_no_context_outside_of_handlers_and_in_effects(server, serve):
    @effect
    async def look() -> None:
        get_context()

    @server.tool
    async def here() -> str:
        with pytest.raises(RuntimeError, match="not inside of an effect"):
            await look()
        return "none"

    with pytest.raises(RuntimeError, match="only while a handler runs"):
        get_context()
    assert await (await serve(server)).call("here") == "none"


async def test_the_context_has_the_metadata_of_a_stateless_request(server, serve):
    @server.tool
    async def here(ctx: Context) -> list:
        return [
            ctx.protocol_version,
            ctx.client_info,
            ctx.client_can("roots"),
            ctx.log_level,
            *ctx.trace,
        ]

    asker = await serve(server, protocol_version=E, capabilities={"roots": {}})
    assert await asker.call("here") == f'["{E}",null,true,null]'
    metadata = {
        "io.modelcontextprotocol/clientInfo": {"name": "skiff", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/logLevel": "error",
        "baggage": "a=b",
    }
    result = await asker.result("tools/call", {"name": "here", "_meta": metadata})
    values = json.loads(result["content"][0]["text"])
    assert values == [E, {"name": "skiff", "version": "1"}, False, "error", "baggage"]


@pytest.mark.parametrize("version", ["2025-11-25", E])
async def test_a_handler_that_changes_the_facts_about_its_client_changes_them_for_no_other(
    server, serve, version
):
    @server.tool
    async def rename(ctx: Context) -> list:
        before = [ctx.client_info and ctx.client_info.name, ctx.client_capabilities.experimental]
        if ctx.client_info is not None:
            ctx.client_info.name = "renamed"
        ctx.client_capabilities.experimental["tides"]["high"] = False
        return before

    for _ in range(2):
        asker = await serve(
            server,
            protocol_version=version,
            capabilities={"experimental": {"tides": {"high": True}}},
        )
        before = [None if version == E else "wire peer", {"tides": {"high": True}}]
        assert json.loads(await asker.call("rename")) == before
        assert json.loads(await asker.call("rename")) == before


@pytest.mark.requirement("LOG-08", "LOG-09", "LOG-10", "TRAP-63")
async def test_a_stateless_request_gets_log_messages_of_the_level_it_names(server, serve):
    @server.tool
    async def here(ctx: Context) -> str:
        for level in ("debug", "warning", "critical"):
            await ctx.log(level, level)
        return "logged"

    asker = await serve(server, protocol_version=E)

    async def levels_logged(**metadata):
        params = {
            "name": "here",
            "_meta": {f"io.modelcontextprotocol/{key}": it for key, it in metadata.items()},
        }
        await asker.result("tools/call", params)
        levels = [message["params"]["level"] for message in asker.received]
        asker.received.clear()
        return levels

    assert await levels_logged() == []
    assert await levels_logged(logLevel="warning") == ["warning", "critical"]
    assert await levels_logged(logLevel="debug") == ["debug", "warning", "critical"]
    assert await levels_logged() == []


# Progress.


@pytest.mark.requirement("PROG-03", "PROG-04", "PROG-06", "PROG-07", "PROG-09")
async def test_progress_is_sent_only_if_requested_and_increasing(server, serve):
    left = []

    @server.tool
    async def load(ctx: Context) -> str:
        left.append(ctx)
        for progress in (0, 0.5, 0.5, 0.2, 2):
            await ctx.report_progress(progress, 2)
        await ctx.report_progress(3)
        return "loaded"

    @server.tool
    def load_in_thread(ctx: ThreadContext) -> str:
        ctx.report_progress(1, total=2)
        ctx.report_progress(1)
        return "loaded"

    asker = await serve(server)
    assert await asker.call("load") == "loaded"
    assert asker.received == []
    for name in ("load", "load_in_thread"):
        await asker.result("tools/call", {"name": name, "_meta": {"progressToken": name}})
    await left[1].report_progress(4)
    assert [message["params"] for message in asker.received] == [
        {"progressToken": "load", "progress": 0, "total": 2},
        {"progressToken": "load", "progress": 0.5, "total": 2},
        {"progressToken": "load", "progress": 2, "total": 2},
        {"progressToken": "load", "progress": 3},
        {"progressToken": "load_in_thread", "progress": 1, "total": 2},
    ]
    assert await asker.wire.receive_available() == []


# Logs.


@pytest.mark.requirement("LOG-03", "LOG-05")
async def test_log_messages_of_all_levels_are_sent_until_the_client_sets_a_level(server, serve):
    @server.tool
    async def talk(ctx: Context) -> None:
        await ctx.debug("d")
        await ctx.info({"n": [1]})
        await ctx.warning(None)
        await ctx.error("e")
        await ctx.log("alert", "a", logger="tower")
        await ctx.info("named", logger="pier")

    @server.tool
    def talk_in_thread(ctx: ThreadContext) -> None:
        ctx.debug("d")
        ctx.info({"n": [1]})
        ctx.warning(None)
        ctx.error("e")
        ctx.log("alert", "a", logger="tower")
        ctx.info("named", logger="pier")

    asker = await serve(server)
    for name in ("talk", "talk_in_thread"):
        asker.received.clear()
        await asker.result("tools/call", {"name": name})
        assert [message["params"] for message in asker.received] == [
            {"level": "debug", "data": "d"},
            {"level": "info", "data": {"n": [1]}},
            {"level": "warning", "data": None},
            {"level": "error", "data": "e"},
            {"level": "alert", "data": "a", "logger": "tower"},
            {"level": "info", "data": "named", "logger": "pier"},
        ]


async def test_the_data_of_a_log_message_has_any_type_that_a_tool_may_return(serve):
    converter = cattrs.Converter()
    converter.register_unstructure_hook(fractions.Fraction, str)
    server = Server("harbour", converter=converter)
    letters = {chr(97 + number) for number in range(26)}

    @server.tool
    async def talk(ctx: Context) -> None:
        await ctx.info({"at": pathlib.PurePosixPath("/a"), "share": fractions.Fraction(1, 3)})
        await ctx.info(letters)

    asker = await serve(server)
    await asker.result("tools/call", {"name": "talk"})
    assert log_messages(asker) == [
        ("info", {"at": "/a", "share": "1/3"}),
        ("info", sorted(letters)),
    ]


@pytest.mark.requirement("LOG-02", "LOG-04", "LOG-06")
async def test_only_log_messages_of_the_set_level_or_above_are_sent(server, serve):
    levels = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

    @server.tool
    async def talk(ctx: Context) -> None:
        for level in levels:
            await ctx.log(level, level)

    asker = await serve(server)
    for number, level in enumerate(levels):
        asker.received.clear()
        assert await asker.result("logging/setLevel", {"level": level}) == {}
        await asker.result("tools/call", {"name": "talk"})
        assert log_messages(asker) == [(louder, louder) for louder in levels[number:]]


@pytest.mark.requirement("LOG-07")
async def test_an_unknown_level_is_invalid_params_and_changes_nothing(server, serve):
    @server.tool
    async def talk(ctx: Context) -> None:
        await ctx.debug("d")

    asker = await serve(server)
    assert (await asker.error("logging/setLevel", {"level": "loud"}))["code"] == -32602
    await asker.result("tools/call", {"name": "talk"})
    assert log_messages(asker) == [("debug", "d")]


async def test_logging_at_an_unknown_level_raises_an_error_with_the_known_levels(
    server, serve, caplog
):
    @server.tool
    async def shout(ctx: Context) -> None:
        await ctx.log("warn", "ahoy")

    asker = await serve(server)
    assert await asker.failure("shout") == "internal error in shout"
    assert "unknown level 'warn': choose from debug, info, notice, warning," in caplog.text


async def test_the_level_belongs_to_one_session(server, serve):
    @server.tool
    async def talk(ctx: Context) -> None:
        await ctx.info("i")

    quiet, loud = await serve(server), await serve(server)
    await quiet.result("logging/setLevel", {"level": "error"})
    for asker in (quiet, loud):
        await asker.result("tools/call", {"name": "talk"})
    assert (log_messages(quiet), log_messages(loud)) == ([], [("info", "i")])


@pytest.mark.parametrize("level", ["debug", "error"])
async def test_logging_is_a_cancellation_point_even_if_nothing_is_sent(server, serve, level):
    started, ended = trio.Event(), trio.Event()

    @server.tool
    async def talk(ctx: Context) -> None:
        started.set()
        try:
            with trio.CancelScope(shield=True):
                while not ctx.is_cancelled:
                    await trio.lowlevel.checkpoint()
            await ctx.log(level, "too late")
        finally:
            ended.set()

    asker = await serve(server)
    await asker.result("logging/setLevel", {"level": "error"})
    call = await asker.begin("tools/call", {"name": "talk"})
    await started.wait()
    await asker.wire.cancel(call)
    await ended.wait()
    assert await asker.result("ping") == {}
    assert asker.received == []


@pytest.mark.requirement("LOG-13")
async def test_a_flood_of_log_messages_waits_for_a_client_that_does_not_read(
    nursery, autojump_clock
):
    from mcp_trio.testing import WirePeer
    from mcp_trio.transports import memory_pair

    sent = []
    server = Server("harbour", limits=Limits(messages=MessageLimits(send_queue_bytes_max=2000)))

    @server.tool
    async def talk(ctx: Context) -> None:
        for number in range(1000):
            await ctx.info({"step": number}, logger="harbour.talk")
            sent.append(number)

    ours, theirs = memory_pair(buffer_bytes_max=1000)
    session = await nursery.start(server.serve, theirs)
    peer = WirePeer(ours)
    await peer.handshake()
    await peer.send_request("tools/call", {"name": "talk"}, id=1)
    await trio.testing.wait_all_tasks_blocked()
    assert 0 < len(sent) < 50
    assert session.send_queue.queued_bytes < 4000
    params = (await peer.receive())["params"]
    assert params == {"level": "info", "data": {"step": 0}, "logger": "harbour.talk"}
    session.shut("closed")


@pytest.mark.requirement("LOG-14")
async def test_the_text_of_an_unexpected_error_is_logged_and_not_sent(server, serve, caplog):
    @server.tool
    async def crash(ctx: Context) -> None:
        raise OSError("password=hunter2")

    asker = await serve(server)
    assert await asker.failure("crash") == "internal error in crash"
    assert asker.received == []
    assert "hunter2" in caplog.text
    assert all(b"hunter2" not in message for message in asker.wire.received)


# Sampling with tools.


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


def text_content(text):
    return {"type": "text", "text": text}


def results_of(answer):
    """Return the results of the tools that the model wants to use."""
    blocks = answer.content if isinstance(answer.content, list) else [answer.content]
    return [
        types.ToolResultContent(tool_use_id=block.id, content=[TEXT], meta=block.meta)
        for block in blocks
        if isinstance(block, types.ToolUseContent)
    ]


@pytest.fixture
def ask_once(server, serve):
    """Call `ctx.sample` in a handler; returns the client's request, or None with the error."""

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
            assert asker.received == []
            return None
        asked = await asker.next_message()
        await asker.wire.send_result(asked, reply(text_content("So.")))
        assert (await asker.end(call))["result"]["content"][0]["text"] == "m"
        return asked["params"]

    return ask


@pytest.mark.requirement("SAMP-09", "SAMP-18", "SAMP-19", "SAMP-23", "TRAP-86")
@pytest.mark.parametrize("thread", [False, True])
async def test_a_model_uses_tools_and_continues_with_their_results(server, serve, thread):
    if thread:

        @server.tool
        def ask(ctx: ThreadContext) -> str:
            messages = ["When is high water?"]
            for _ in range(3):
                answer = ctx.sample(messages, tools=[TIDE])
                results = results_of(answer)
                if not results:
                    return answer.content.text
                messages += [answer, results]
            return "never"
    else:

        @server.tool
        async def ask(ctx: Context) -> str:
            messages = ["When is high water?"]
            for _ in range(3):
                answer = await ctx.sample(messages, tools=[TIDE])
                results = results_of(answer)
                if not results:
                    return answer.content.text
                messages += [answer, results]
            return "never"

    asker = await serve(server, protocol_version=D, capabilities=TOOLS)
    call = await asker.begin("tools/call", {"name": "ask"})
    first = await asker.next_message()
    assert first["params"]["tools"] == [{"name": "tide", "inputSchema": {"type": "object"}}]
    uses = [use("a", _meta={"k": 1}), use("b")]
    await asker.wire.send_result(first, reply(text_content("Let me see."), *uses))
    second = await asker.next_message()
    question, answer, results = second["params"]["messages"]
    assert question == {"role": "user", "content": text_content("When is high water?")}
    assert answer == {"role": "assistant", "content": [text_content("Let me see."), *uses]}
    tool_result = {"type": "tool_result", "content": [text_content("High.")]}
    assert results == {
        "role": "user",
        "content": [
            {**tool_result, "toolUseId": "a", "_meta": {"k": 1}},
            {**tool_result, "toolUseId": "b"},
        ],
    }
    await asker.wire.send_result(second, reply(text_content("At noon.")))
    assert (await asker.end(call))["result"]["content"][0]["text"] == "At noon."


@pytest.mark.requirement("SAMP-09", "TRAP-85")
@pytest.mark.parametrize(
    ("question", "content"),
    [
        (AUDIO, {"type": "audio", "data": "AP8=", "mimeType": "audio/wav"}),
        (
            types.SamplingMessage(role="user", content=[TEXT, TEXT]),
            [text_content("High."), text_content("High.")],
        ),
        (types.SamplingMessage(role="user", content=[TEXT]), [text_content("High.")]),
    ],
)
async def test_a_message_is_one_block_or_a_list(ask_once, question, content):
    params = await ask_once(question)
    assert params["messages"] == [{"role": "user", "content": content}]


@pytest.mark.requirement("SAMP-09", "TRAP-85")
async def test_an_older_client_gets_a_block_and_no_list(ask_once):
    message = types.SamplingMessage(role="user", content=[TEXT])
    params = await ask_once(message, protocol_version=C, capabilities=PLAIN)
    assert params["messages"] == [{"role": "user", "content": text_content("High.")}]


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
async def test_announced_context_is_requested(ask_once, protocol_version, capabilities, context):
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
        messages = ["When is high water?"]
        try:
            while True:
                answer = await ctx.sample(messages, tools=[TIDE])
                messages += [answer, results_of(answer)]
        except LocalProtocolError as error:
            return str(error)

    asker = await serve(server, protocol_version=D, capabilities=TOOLS)
    call = await asker.begin("tools/call", {"name": "ask"})
    for _ in range(3):
        await asker.wire.send_result(await asker.next_message(), reply(use("a")))
    assert (await asker.end(call))["result"]["content"][0]["text"] == (
        "a handler cannot send more requests than limits.requests.sent_per_handler_max=3"
    )
    assert asker.received == []


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
        asked = await asker.next_message()
        assert asked["params"]["messages"] == [{"role": "user", "content": text_content(question)}]
        await asker.wire.send_result(asked, reply(text_content("So.")))
    assert (await asker.end(call))["result"]["content"][0]["text"] == "m"


@pytest.mark.requirement("SAMP-09", "TRAP-85")
@pytest.mark.parametrize("protocol_version", [D, C])
async def test_an_answer_that_is_a_list_of_one_block_is_that_block(server, serve, protocol_version):
    @server.tool
    async def ask(ctx: Context) -> str:
        return (await ctx.sample("Why?")).content.text

    asker = await serve(server, protocol_version=protocol_version, capabilities=PLAIN)
    call = await asker.begin("tools/call", {"name": "ask"})
    answer = {**reply(text_content("")), "content": [text_content("So.")]}
    await asker.wire.send_result(await asker.next_message(), answer)
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
    await asker.wire.send_result(await asker.next_message(), reply(use("a")))
    assert (await asker.end(call))["result"]["content"][0]["text"] == "caught"
