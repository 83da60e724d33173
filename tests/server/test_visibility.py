"""Hidden tools, resources and prompts: `enable` and `disable` of the server and of the context."""

import pytest

from mcp_trio import Context, Limits, Server, ThreadContext
from mcp_trio.errors import LocalProtocolError, ReplayDivergence
from mcp_trio.limits import RequestLimits
from tests.server.conftest import nothing, played_again

D = "2025-11-25"
ADMIN = {"admin"}
CHANGED = {
    "tools": "notifications/tools/list_changed",
    "resources": "notifications/resources/list_changed",
    "prompts": "notifications/prompts/list_changed",
}


def make_server():
    """A server with an entry of each kind, and another of each with the tag."""
    server = Server("harbour")

    @server.tool
    async def look() -> str:
        return "water"

    @server.tool(tags=ADMIN)
    async def drain() -> str:
        return "drained"

    @server.resource("harbour://tide")
    async def tide() -> str:
        return "high"

    @server.resource("harbour://keys", tags=ADMIN)
    async def keys() -> str:
        return "brass"

    @server.resource("harbour://log/{day}", tags=ADMIN)
    async def log(day: str) -> str:
        return day

    @server.prompt
    async def sail(port: str) -> str:
        return port

    @server.prompt(tags=ADMIN)
    async def close(port: str) -> str:
        return port

    @server.completion(close, "port")
    @server.completion(sail, "port")
    async def ports(typed: str) -> list[str]:
        return [typed]

    @server.tool
    async def unlock(ctx: Context, name: str = "") -> None:
        await ctx.enable(*filter(None, [name]), tags=() if name else ADMIN)

    @server.tool
    def lock(ctx: ThreadContext) -> None:
        ctx.disable(tags=ADMIN)

    return server


@pytest.fixture
def server():
    return make_server()


async def names(asker):
    """Return the names and URIs in a client's lists."""
    found = [it["name"] for it in (await asker.result("tools/list"))["tools"]]
    found += [it["uri"] for it in (await asker.result("resources/list"))["resources"]]
    templates = await asker.result("resources/templates/list")
    found += [it["uriTemplate"] for it in templates["resourceTemplates"]]
    found += [it["name"] for it in (await asker.result("prompts/list"))["prompts"]]
    return set(found) - {"lock", "unlock"}


PUBLIC = {"look", "harbour://tide", "sail"}
SECRET = {"drain", "harbour://keys", "harbour://log/{day}", "close"}
ALL = PUBLIC | SECRET

REQUESTS = [
    ("tools/call", {"name": "drain"}, -32602, "unknown tool: drain"),
    ("resources/read", {"uri": "harbour://keys"}, -32002, "resource not found: harbour://keys"),
    ("resources/read", {"uri": "harbour://log/1"}, -32002, "resource not found: harbour://log/1"),
    (
        "resources/subscribe",
        {"uri": "harbour://keys"},
        -32002,
        "resource not found: harbour://keys",
    ),
    ("prompts/get", {"name": "close", "arguments": {"port": "x"}}, -32602, "unknown prompt: close"),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "close"}, "argument": {"name": "port", "value": ""}},
        -32602,
        "unknown prompt: close",
    ),
]


async def methods_received(asker):
    """The methods of the notifications so far."""
    messages = [*asker.received, *await asker.wire.receive_available()]
    asker.received.clear()
    return sorted(it["method"] for it in messages)


@pytest.mark.requirement("TOOL-32", "RES-22", "PROM-15")
@pytest.mark.parametrize(("method", "params", "code", "text"), REQUESTS)
async def test_a_hidden_entry_is_answered_as_an_unknown_one(
    server, serve, method, params, code, text
):
    asker = await serve(server, protocol_version=D)
    server.disable(tags=ADMIN)
    error = await asker.error(method, params)
    assert (error["code"], error["message"]) == (code, text)
    server.enable(tags=ADMIN)
    assert "error" not in await asker.ask(method, params)


@pytest.mark.requirement("TOOL-35", "RES-20", "PROM-10")
async def test_the_lists_of_all_clients_change_and_each_is_notified(server, serve):
    server.disable(tags=ADMIN)
    one, other = await serve(server, protocol_version=D), await serve(server, protocol_version=D)
    assert await names(one) == await names(other) == PUBLIC
    server.enable(tags=ADMIN)
    assert await methods_received(one) == await methods_received(other) == sorted(CHANGED.values())
    assert await names(one) == await names(other) == ALL
    server.enable(tags=ADMIN)  # nothing changes
    server.disable("look")
    assert await methods_received(one) == [CHANGED["tools"]]
    assert await names(one) == ALL - {"look"}


@pytest.mark.parametrize(
    ("selections", "shown"),
    [
        ([("disable", ["look", "harbour://log/{day}"], {})], ALL - {"look", "harbour://log/{day}"}),
        ([("disable", [], {"tags": ADMIN, "kinds": {"tools"}})], ALL - {"drain"}),
        ([("disable", ["look"], {"tags": ADMIN, "kinds": {"tools"}})], ALL - {"drain", "look"}),
        ([("disable", [], {"kinds": {"prompts"}})], ALL - {"sail", "close"}),
        (
            [
                ("disable", [], {"kinds": ["tools", "resources", "prompts"]}),
                ("enable", [], {"tags": ADMIN}),
            ],
            SECRET,
        ),
        ([("disable", [], {"tags": ADMIN}), ("enable", ["drain"], {})], PUBLIC | {"drain"}),
        ([("enable", ["drain"], {}), ("disable", [], {"tags": ADMIN})], PUBLIC),
        ([("disable", [], {"tags": {"unused"}})], ALL),
    ],
)
async def test_the_latest_decision_about_an_entry_counts(server, serve, selections, shown):
    for method, positional, keywords in selections:
        getattr(server, method)(*positional, **keywords)
    assert await names(await serve(server, protocol_version=D)) == shown


async def test_an_entry_that_is_registered_later_is_hidden_by_its_tag(server, serve):
    server.disable(tags=ADMIN)
    server.tool(name="late", tags=ADMIN)(nothing)
    assert await names(await serve(server, protocol_version=D)) == PUBLIC


async def test_a_page_after_a_hidden_entry_has_the_entries_that_follow(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=2)))
    for number in range(6):
        server.tool(name=f"t{number}", tags=ADMIN if number in {1, 3} else ())(nothing)
    server.disable(tags=ADMIN)
    asker = await serve(server)
    found, params = [], {}
    for _ in range(2):
        page = await asker.result("tools/list", params)
        found.append([it["name"] for it in page["tools"]])
        params = {"cursor": page.get("nextCursor")}
    assert found == [["t0", "t2"], ["t4", "t5"]]
    assert params == {"cursor": None}


# Decisions of one session.


@pytest.mark.requirement("TOOL-35")
async def test_a_handler_changes_what_its_own_client_sees(server, serve):
    server.disable(tags=ADMIN)
    one, other = await serve(server, protocol_version=D), await serve(server, protocol_version=D)
    await one.result("tools/call", {"name": "unlock"})
    assert await methods_received(one) == sorted(CHANGED.values())
    assert await names(one) == ALL
    assert await one.call("drain") == "drained"
    assert await methods_received(other) == []
    assert await names(other) == PUBLIC
    assert await other.error("tools/call", {"name": "drain"})

    server.disable("drain")  # the session has decided otherwise
    assert await one.call("drain") == "drained"
    await one.result("tools/call", {"name": "lock"})
    await methods_received(one)
    assert await names(one) == PUBLIC
    await one.result("tools/call", {"name": "lock"})
    assert await methods_received(one) == []


async def test_a_session_may_show_one_entry_by_its_name(server, serve):
    server.disable(tags=ADMIN)
    asker = await serve(server, protocol_version=D)
    await asker.result("tools/call", {"name": "unlock", "arguments": {"name": "drain"}})
    assert await methods_received(asker) == [CHANGED["tools"]]
    assert await names(asker) == PUBLIC | {"drain"}
    failure = await asker.failure("unlock", {"name": "drian"})
    assert failure == "internal error in unlock"


async def test_a_new_session_on_the_same_connection_begins_anew(server, serve):
    server.disable(tags=ADMIN)
    asker = await serve(server, protocol_version=D)
    await asker.result("tools/call", {"name": "unlock"})
    assert await names(asker) == ALL
    await asker.wire.handshake(protocol_version=D)
    assert await names(asker) == PUBLIC


async def test_a_handler_may_read_a_resource_that_its_client_does_not_see(server, serve):
    @server.tool
    async def read(ctx: Context) -> str:
        (contents,) = await ctx.read_resource("harbour://keys")
        return contents.text

    server.disable(tags=ADMIN)
    assert await (await serve(server, protocol_version=D)).call("read") == "brass"


@pytest.mark.requirement("TOOL-03", "RES-03", "PROM-03")
async def test_the_lists_of_a_stateless_client_do_not_depend_on_its_calls(server, serve):
    seen = []

    @server.tool
    async def unlock_it(ctx: Context) -> None:
        with pytest.raises(LocalProtocolError, match=r"use server\.enable and server\.disable"):
            await ctx.enable(tags=ADMIN)
        seen.append("rejected")

    server.disable(tags=ADMIN)
    asker = await serve(server, protocol_version="2026-07-28")
    await asker.result("tools/call", {"name": "unlock_it"})
    assert seen == ["rejected"]
    assert await names(asker) == PUBLIC | {"unlock_it"}
    server.enable(tags=ADMIN)
    assert await names(asker) == ALL | {"unlock_it"}


async def test_an_effect_cannot_change_what_the_client_sees(server, serve):
    @server.tool
    async def tool(ctx: Context) -> str:
        async def change() -> None:
            await ctx.disable("look")

        try:
            await ctx.effect(change)
        except LocalProtocolError as error:
            return str(error)
        return "let in"

    text = await (await serve(server)).call("tool")
    assert text.startswith("the context cannot be used inside the effect")


# Replay.


@pytest.mark.parametrize("version", ["2024-11-05", D])
async def test_decisions_of_a_session_replay(server, record, version):
    server.disable(tags=ADMIN)
    asker, recorded = await record(server, protocol_version=version)
    for name in "unlock", "lock", "unlock":
        await asker.result("tools/call", {"name": name})
        await names(asker)
        await asker.ask("tools/call", {"name": "drain"})
    fresh = make_server()
    fresh.disable(tags=ADMIN)
    assert (await played_again(asker, recorded, fresh)).requests > 6


async def test_another_decision_of_a_session_is_a_divergence(server, record):
    server.disable(tags=ADMIN)
    asker, recorded = await record(server, protocol_version=D)
    await asker.result("tools/call", {"name": "unlock", "arguments": {"name": "drain"}})
    await names(asker)
    changed = make_server()
    changed.disable(tags=ADMIN)

    async def unlock(ctx: Context, name: str = "") -> None:
        await ctx.enable(name, "harbour://keys")

    changed.remove_tool("unlock")
    changed.tool(unlock)
    with pytest.raises(ReplayDivergence):
        await played_again(asker, recorded, changed)


# Errors.


@pytest.mark.parametrize(
    ("positional", "keywords", "error", "text"),
    [
        (["dran"], {}, LookupError, "no prompt or resource or tool 'dran' is registered"),
        (["look"], {"kinds": {"prompts"}}, LookupError, "no prompt 'look' is registered"),
        ([], {}, ValueError, "nothing is selected"),
        ([], {"tags": ()}, ValueError, "nothing is selected"),
        ([], {"kinds": {"tool"}}, ValueError, r"unknown kinds \['tool'\]: choose from tools"),
        ([], {"tags": "admin"}, TypeError, r"tags are a set of strings: write \{'admin'\}"),
    ],
)
@pytest.mark.parametrize("method", ["enable", "disable"])
def test_a_selection_of_nothing_is_an_error(server, method, positional, keywords, error, text):
    with pytest.raises(error, match=text):
        getattr(server, method)(*positional, **keywords)
