"""A server does what it has declared as its capabilities, and nothing else."""

import functools

import pytest

from mcp_trio import Context, Server, types
from mcp_trio.errors import LocalProtocolError

CHANGED = "notifications/resources/list_changed"
UPDATED = "notifications/resources/updated"
TIDE = "harbour://tide"


async def tide() -> str:
    return "high"


@pytest.mark.requirement("RES-01", "RES-12", "RES-13")
@pytest.mark.parametrize("subscribe", [True, None])
@pytest.mark.parametrize("list_changed", [True, None])
async def test_resources_come_with_subscriptions_and_changes_with_one_or_with_none(
    serve, subscribe, list_changed
):
    resources = types.ResourcesCapability(subscribe=subscribe, list_changed=list_changed)
    server = Server("harbour", capabilities=types.ServerCapabilities(resources=resources))
    server.resource(TIDE)(tide)
    asker = await serve(server)
    declared = {"subscribe": subscribe, "listChanged": list_changed}
    assert asker.hello["capabilities"]["resources"] == {
        name: True for name, is_declared in declared.items() if is_declared
    }
    answer = await asker.ask("resources/subscribe", {"uri": TIDE})
    assert answer.get("result") == ({} if subscribe else None)
    server.resource("harbour://wind")(tide)
    server.resource_updated(TIDE)
    told = [message["method"] for message in await asker.wire.receive_available()]
    assert told == [CHANGED] * bool(list_changed) + [UPDATED] * bool(subscribe)


@pytest.mark.requirement("TOOL-35", "PROM-11", "TOOL-01", "PROM-01")
@pytest.mark.parametrize("kind", ["tools", "prompts"])
async def test_changes_of_undeclared_lists_are_not_sent(serve, kind):
    capabilities = types.ServerCapabilities(
        tools=types.ToolsCapability(), prompts=types.PromptsCapability()
    )
    server = Server("harbour", capabilities=capabilities)
    asker = await serve(server)
    assert asker.hello["capabilities"] == {"tools": {}, "prompts": {}}
    add = {"tools": server.tool, "prompts": server.prompt}[kind]
    add(tide)
    assert await asker.wire.receive_available() == []


@pytest.mark.requirement("LOG-01", "LOG-04")
async def test_a_server_that_does_not_declare_logging_cannot_log(serve):
    server = Server("harbour", capabilities=types.ServerCapabilities(tools={}))

    @server.tool
    async def talk(ctx: Context) -> str:
        with pytest.raises(LocalProtocolError, match="logging"):
            await ctx.info("hello")
        return "said nothing"

    asker = await serve(server)
    assert await asker.call("talk") == "said nothing"
    assert asker.told == []
    assert (await asker.error("logging/setLevel", {"level": "info"}))["code"] == -32601


@pytest.mark.requirement("TOOL-02", "RES-02", "PROM-02")
@pytest.mark.parametrize(
    ("method", "empty"),
    [
        ("tools/list", {"tools": []}),
        ("resources/list", {"resources": []}),
        ("resources/templates/list", {"resourceTemplates": []}),
        ("prompts/list", {"prompts": []}),
    ],
)
async def test_a_declared_list_may_be_empty_and_needs_no_params(serve, method, empty):
    asker = await serve(Server("harbour", offers={"tools", "resources", "prompts"}))
    assert await asker.result(method) == empty
    assert await asker.result(method, {}) == empty


@pytest.mark.requirement("ROOT-10", "SAMP-06", "LIFE-14")
@pytest.mark.parametrize("declared", [{}, {"roots": {}}, {"sampling": {}}])
async def test_a_client_is_asked_only_for_declared_capabilities(serve, autojump_clock, declared):
    server = Server("harbour")

    @server.tool
    async def ask(ctx: Context) -> str:
        questions = {"roots": ctx.list_roots, "sampling": functools.partial(ctx.sample, "Why?")}
        for capability in questions.keys() - declared.keys():
            with pytest.raises(LocalProtocolError, match=f"did not announce {capability}"):
                await questions[capability]()
        return "asked nothing"

    asker = await serve(server, capabilities=declared)
    assert await asker.call("ask") == "asked nothing"
    assert asker.told == []
