"""Rounds at a whole server: whatever has them, recorded and replayed."""

import pytest

from mcp_trio import Context, Elicitation, Roots, Server, ThreadContext
from mcp_trio._protocol.requests import SUSPENDED_PREFIX
from tests.server.conftest import played_again

STATELESS = "2026-07-28"
REPLY = {"q1": {"action": "accept", "content": {"value": "reed"}}}
PARAMS = {
    "tools/call": {"name": "boat", "arguments": {}},
    "prompts/get": {"name": "sail"},
    "resources/read": {"uri": "port://boats"},
}


@pytest.fixture
def server():
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
async def test_three_methods_ask_by_their_answers_and_replay(server, record, method):
    asker, told = await record(server, protocol_version=STATELESS, capabilities={"elicitation": {}})
    params = PARAMS[method]
    first = await asker.result(method, params)
    assert first["resultType"] == "input_required"
    assert first["requestState"].startswith(SUSPENDED_PREFIX)
    state = {"requestState": first["requestState"], "inputResponses": REPLY}
    last = await asker.result(method, {**params, **state})
    assert last["resultType"] == "complete"
    assert "reed" in str(last)
    assert asker.told == []
    assert (await played_again(asker, told, server)).is_complete


@pytest.mark.requirement("MRTR-07", "TRAP-101")
async def test_a_question_needs_a_capability_declared_in_the_same_request(server, serve):
    asker = await serve(
        server, protocol_version=STATELESS, capabilities={"elicitation": {}, "roots": {}}
    )
    params = {"name": "row", "arguments": {}}
    assert (await asker.result("tools/call", params))["resultType"] == "input_required"
    capabilities = "io.modelcontextprotocol/clientCapabilities"
    asker.metadata[capabilities] = {"elicitation": {}}
    error = await asker.error("tools/call", params)
    assert error["code"] == -32021
    assert error["data"] == {"requiredCapabilities": {"roots": {}}}


@pytest.mark.requirement("BASE-22", "STDIO-11")
async def test_a_stateless_client_is_not_pinged(server, serve):
    asker = await serve(server, protocol_version=STATELESS)
    answer = await asker.ask("tools/call", {"name": "greet", "arguments": {}})
    assert "error" in answer
    assert asker.told == []
