"""Whole conversations, over a transport of somebody else's: who sends what, at each revision."""

import json

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, Roots, Sampling, Server, ToolError, types
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.transports import memory_pair
from tests.server.conftest import nothing

*LEGACY, STATELESS = PROTOCOL_VERSIONS
SAID_BY_ALL = {
    "io.modelcontextprotocol/protocolVersion": STATELESS,
    "io.modelcontextprotocol/clientCapabilities": {"roots": {}, "sampling": {}},
}


@attrs.define(eq=False)
class Overheard:
    """A channel by somebody else: only the three methods, over memory; it keeps what it sends."""

    _inner: object
    sent: list = attrs.field(factory=list)

    async def send(self, frames):
        self.sent += frames
        await self._inner.send(frames)

    async def receive(self):
        return await self._inner.receive()

    async def aclose(self):
        await self._inner.aclose()

    @property
    def messages(self):
        return [json.loads(frame) for frame in self.sent]


def kind(message):
    """What a message is, by its members alone."""
    if "method" in message:
        return "request" if "id" in message else "notification"
    return "response"


@pytest.fixture
def harbour():
    server = Server("harbour")

    @server.tool
    async def sail(ctx: Context) -> str:
        await ctx.progress(1, message="casting off")
        await ctx.info("é\U0001f600")
        roots, answer = await ctx.ask_all(Roots(), Sampling("Which port?"))
        return f"{roots[0].uri} {answer.content.text}"

    return server


def sampled(_params):
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(text="Bergen é"), model="m"
    )


@pytest.fixture
async def overheard(harbour, nursery):
    """Sail once, at a revision; gives what the client sent, and the server."""

    async def sail(protocol_version):
        ours, theirs = map(Overheard, memory_pair())
        nursery.start_soon(harbour.serve, theirs)
        reports, options = [], {"log_level": "info"}
        options |= {"roots": ["file:///pier"], "sampling": sampled}
        async with Client(ours, protocol_versions=[protocol_version], **options) as client:
            assert client.protocol_version == protocol_version
            result = await client.call_tool("sail", progress=reports.append)
            assert result.content[0].text == "file:///pier Bergen é"
            assert [report.progress for report in reports] == [1]
            if protocol_version == STATELESS:
                async with client.listen(tools=True) as subscription:
                    harbour.tool(name="row")(nothing)
                    await subscription.__anext__()
        await trio.testing.wait_all_tasks_blocked()
        return ours, theirs, reports

    return sail


@pytest.mark.requirement("TRAN-04", "TRAN-07", "BASE-20", "BASE-22", "BASE-23")
@pytest.mark.requirement("STDIO-11", "STDIO-12", "META-11", "META-12")
async def test_a_stateless_client_sends_requests_and_a_server_answers_and_tells(overheard):
    ours, theirs, _ = await overheard(STATELESS)
    assert {kind(message) for message in ours.messages} <= {"request", "notification"}
    assert {kind(message) for message in theirs.messages} == {"response", "notification"}
    asked = [message for message in ours.messages if kind(message) == "request"]
    assert [message["method"] for message in asked] == [
        "server/discover",
        "tools/call",
        "tools/call",
        "subscriptions/listen",
    ]
    for message in asked:
        assert SAID_BY_ALL.items() <= message["params"]["_meta"].items()
    for message in (*ours.messages, *theirs.messages):
        assert message["jsonrpc"] == "2.0"


@pytest.mark.requirement("TRAN-03", "BASE-19", "LIFE-02")
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_a_legacy_pair_shakes_hands_and_asks_in_both_directions(overheard, protocol_version):
    ours, theirs, _ = await overheard(protocol_version)
    said = [message.get("method") for message in ours.messages if "method" in message]
    assert said[:2] == ["initialize", "notifications/initialized"]
    assert "tools/call" in said
    asked = [message["method"] for message in theirs.messages if kind(message) == "request"]
    assert sorted(asked) == ["roots/list", "sampling/createMessage"]


@pytest.mark.requirement("BASE-18")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_what_leaves_is_utf_8_in_one_line(overheard, protocol_version):
    for channel in (await overheard(protocol_version))[:2]:
        text = b"\n".join(channel.sent).decode("utf-8", "strict")
        assert "é" in text
        assert len(text.split("\n")) == len(channel.sent)


@pytest.mark.requirement("PROG-08")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_people_read_what_a_handler_says_of_its_progress(overheard, protocol_version):
    (report,) = (await overheard(protocol_version))[2]
    assert report.message == (None if protocol_version == LEGACY[0] else "casting off")


# What is told, and what is refused.


@pytest.mark.requirement("PROG-01", "PROG-03", "PROG-04", "PROG-05", "PROG-06", "PROG-09")
@pytest.mark.requirement("TRAP-61", "TRAP-62", "TRAP-64")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_each_request_hears_of_its_own_progress_while_it_grows(serve, protocol_version):
    server, left = Server("harbour"), []

    @server.tool
    async def load(ctx: Context) -> str:
        left.append(ctx)
        for progress in (0.5, 0.5, 0.2, 2):
            await ctx.progress(progress, 2)
        return "loaded"

    asker = await serve(server, protocol_version=protocol_version)
    for token in ("1", 1, ""):
        call = {"name": "load", "_meta": {"progressToken": token}}
        await asker.result("tools/call", call)
        await left[-1].progress(3)
        told = [message["params"] for message in asker.told]
        asker.told.clear()
        assert told == [
            {"progressToken": token, "progress": progress, "total": 2} for progress in (0.5, 2)
        ]
        assert {type(each["progressToken"]) for each in told} == {type(token)}
    await asker.result("tools/call", {"name": "load"})
    assert await asker.wire.receive_available() == []
    assert asker.told == []


@pytest.mark.requirement("BASE-01", "BASE-02", "BASE-03", "BASE-30", "BASE-31", "BASE-32")
@pytest.mark.requirement("BASE-34", "BASE-35", "TRAP-04")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_the_codes_of_json_rpc_are_the_same_at_every_protocol_version(
    serve, protocol_version
):
    server = Server("harbour")

    @server.prompt
    async def sail() -> str:
        raise OSError("secret")

    asker = await serve(server, protocol_version=protocol_version)
    meta = {"_meta": asker.metadata} if asker.metadata else {}

    async def code(frame):
        await asker.wire.send(frame)
        told = await asker.wire.receive()
        assert told["id"] == "q"
        assert "secret" not in json.dumps(told)
        return told["error"]["code"]

    asked = {"jsonrpc": "2.0", "id": "q", "method": "prompts/get", "params": {"name": "sail"}}
    asked["params"] |= meta
    assert await code(asked) == -32603
    assert await code({**asked, "params": meta}) == -32602
    assert await code({**asked, "method": "prompts/sing"}) == -32601
    assert await code({**asked, "jsonrpc": "1.0"}) == -32600
    assert await code(b'{"jsonrpc":"2.0","id":"q","method":"prompts/get","params":{"name":}}') == (
        -32700
    )
    for bad in (None, True, 1.5, [1]):
        await asker.wire.send({**asked, "id": bad})
        for told in await asker.wire.receive_available():
            assert "id" not in told
            assert told["error"]["code"] == -32600


# What is cancelled.


@pytest.mark.requirement("STDIO-15", "STDIO-16", "CANC-15", "CANC-16")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_cancelled_request_stops_and_is_never_heard_of_again(serve, protocol_version):
    server, ended, later = Server("harbour"), trio.Event(), trio.Event()

    @server.tool
    async def sail(ctx: Context) -> str:
        await ctx.progress(1)
        try:
            await trio.sleep_forever()
        finally:
            ended.set()
            with trio.CancelScope(shield=True):
                await later.wait()
                await ctx.progress(2)
                await ctx.critical("too late")

    @server.tool
    async def row() -> str:
        return "row"

    asker = await serve(server, protocol_version=protocol_version)
    meta = {"progressToken": "p", "io.modelcontextprotocol/logLevel": "debug"}
    call = await asker.begin("tools/call", {"name": "sail", "_meta": meta})
    assert (await asker.wire.receive())["params"]["progress"] == 1
    for unknown in (call + 100, str(call), "never"):
        await asker.wire.cancel(unknown)
    assert not ended.is_set()
    await asker.wire.cancel(call, "the user left")
    with trio.fail_after(1):
        await ended.wait()
    later.set()
    assert await asker.wire.receive_available() == []
    await asker.wire.cancel(call)
    assert await asker.call("row") == "row"
    assert asker.told == []


# What spans requests.


@pytest.mark.requirement("STATE-03", "STATE-05", "STATE-06")
async def test_what_spans_requests_is_found_by_its_state_and_not_by_its_connection(chain):
    def register(server):
        @server.tool(name="it", resumable=True)
        async def it(port: str, ctx: Context) -> str:
            (root,) = await ctx.list_roots()
            return f"{port}: {root.uri}"

    def roots(path):
        return {"roots": [{"uri": f"file:///{path}"}]}

    here, there = chain(register, port="Bergen"), chain(register, port="Oslo")
    first, second = await here.begin(), await there.begin()
    assert first["requestState"] != second["requestState"]
    ((key, _),) = second["inputRequests"].items()
    done = await there.go_on(second, **{key: roots("o")})
    assert done["content"][0]["text"] == "Oslo: file:///o"
    assert (await there.send(inputResponses={key: roots("o")}))["result"]["inputRequests"]
    done = await here.go_on(first, **{key: roots("b")})
    assert done["content"][0]["text"] == "Bergen: file:///b"


@pytest.mark.requirement("STATE-06", "STATE-02", "META-16")
async def test_two_conversations_share_a_connection_and_know_nothing_of_each_other(serve):
    server = Server("harbour")

    @server.tool
    async def it(port: str, ctx: Context) -> str:
        (root,) = await ctx.list_roots()
        return f"{port}: {root.uri}"

    asker = await serve(server, protocol_version=STATELESS, capabilities={"roots": {}})
    asked = {}
    for port in ("Bergen", "Oslo"):
        params = {"name": "it", "arguments": {"port": port}}
        asked[port] = (params, await asker.result("tools/call", params))
    for port, (params, result) in reversed(asked.items()):
        ((key, _),) = result["inputRequests"].items()
        roots = {key: {"roots": [{"uri": f"file:///{port}"}]}}
        retry = {**params, "requestState": result["requestState"], "inputResponses": roots}
        done = await asker.result("tools/call", retry)
        assert done["content"][0]["text"] == f"{port}: file:///{port}"


@pytest.mark.requirement("STATE-10")
async def test_a_tool_says_to_the_model_that_it_does_not_know_a_handle(serve):
    server = Server("harbour")

    @server.tool
    async def leave(berth: str) -> str:
        raise ToolError(f"there is no berth {berth}, or it has been given up")

    asker = await serve(server, protocol_version=STATELESS)
    result = await asker.result("tools/call", {"name": "leave", "arguments": {"berth": "b7"}})
    assert result["isError"] is True
    assert result["content"][0]["text"] == "there is no berth b7, or it has been given up"


# What was not announced.


@pytest.mark.requirement("META-17", "ERR-14")
@pytest.mark.parametrize("question", ["roots", "sampling"])
async def test_a_request_without_the_capability_is_not_asked_although_another_has_it(
    serve, question
):
    server = Server("harbour")

    @server.tool
    async def ask(ctx: Context) -> str:
        await (ctx.list_roots() if question == "roots" else ctx.sample("Why?"))
        return "asked"

    asker = await serve(server, protocol_version=STATELESS, capabilities={question: {}})
    first = await asker.result("tools/call", {"name": "ask"})
    assert first["resultType"] == "input_required"
    without = {"io.modelcontextprotocol/clientCapabilities": {}}
    error = await asker.error("tools/call", {"name": "ask", "_meta": without})
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {question: {}}}
