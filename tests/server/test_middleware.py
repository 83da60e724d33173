"""Middleware of servers, and the state of a session."""

import logging

import msgspec
import pytest
import trio
from memory_sessions import client_session

from mcp_trio import Client, Context, RequestError, Server, ToolError
from mcp_trio.errors import ReplayDivergence
from mcp_trio.middleware import CacheResults, LogRequests, ResultLimit
from mcp_trio.recording import replay
from mcp_trio.types import CallToolResult, ResourceLink, TextContent

PROTOCOL_VERSIONS = ["2024-11-05", "2025-11-25", "2026-07-28"]


@pytest.fixture
def server():
    server = Server("harbour")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @server.tool
    async def fail() -> None:
        raise ToolError("the pier is closed")

    @server.tool
    def block(a: int) -> int:
        return a

    @server.resource("sea://level")
    async def level() -> str:
        return "low"

    @server.prompt
    async def greet(name: str) -> str:
        return f"Greet {name}."

    return server


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_every_request_passes_all_middleware_in_the_order_of_registration(
    server, protocol_version
):
    passed = []

    for number in range(2):

        @server.middleware
        async def note(request, call_next, number=number):
            passed.append((number, request.method, request.name))
            result = await call_next(request)
            passed.append((number, type(result).__name__))
            return result

    async with Client(server, protocol_versions=[protocol_version]) as client:
        assert (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text == "3"
        assert (await client.call_tool("block", {"a": 1})).content[0].text == "1"
        assert (await client.read_resource("sea://level")).contents[0].text == "low"
        await client.get_prompt("greet", {"name": "Ada"})
        assert len(await client.list_tools()) == 3
    of_add = [(0, "tools/call", "add"), (1, "tools/call", "add")]
    after_add = [(1, "CallToolResult"), (0, "CallToolResult")]
    at = passed.index(of_add[0])
    assert passed[at : at + 4] == [*of_add, *after_add]
    assert (0, "resources/read", "sea://level") in passed
    assert (0, "prompts/get", "greet") in passed
    assert passed[-1] == (0, "ListToolsResult")


async def test_a_middleware_may_change_arguments_and_results(server):
    @server.middleware
    async def double(request, call_next):
        if request.method != "tools/call":
            return await call_next(request)
        doubled = {name: 2 * value for name, value in request.arguments.items()}
        result = await call_next(request.with_arguments(doubled))
        return CallToolResult(content=[*result.content, TextContent(text="doubled")])

    async with Client(server) as client:
        result = await client.call_tool("add", {"a": 1, "b": 2})
    assert [each.text for each in result.content] == ["6", "doubled"]


async def test_a_middleware_may_change_the_arguments_of_a_prompt(server):
    @server.middleware
    async def rename(request, call_next):
        if request.method == "prompts/get":
            request = request.with_arguments({"name": request.arguments["name"].upper()})
        return await call_next(request)

    async with Client(server) as client:
        (message,) = (await client.get_prompt("greet", {"name": "Ada"})).messages
        assert message.content.text == "Greet ADA."
        with pytest.raises(RequestError):
            await client.call_tool("none")


async def test_a_middleware_may_filter_a_list(server):
    @server.middleware
    async def hide(request, call_next):
        result = await call_next(request)
        if request.method != "tools/list":
            return result
        shown = [tool for tool in result.tools if tool.name != "fail"]
        return msgspec.structs.replace(result, tools=shown)

    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["add", "block"]


async def test_a_middleware_may_reject_a_request(server):
    @server.middleware
    async def guard(request, call_next):
        if request.name == "add":
            raise ToolError("not today")
        if request.method == "resources/read":
            raise RequestError(-32050, "closed")
        return await call_next(request)

    async with Client(server) as client:
        with pytest.raises(ToolError, match="not today"):
            await client.call_tool("add", {"a": 1, "b": 2})
        with pytest.raises(RequestError, match="closed"):
            await client.read_resource("sea://level")


async def test_a_middleware_without_a_result_is_named(server, caplog):
    @server.middleware
    async def forgetful(request, call_next):
        await call_next(request)

    async with Client(server) as client:
        with pytest.raises(ToolError, match="internal error in add"):
            await client.call_tool("add", {"a": 1, "b": 2})
    assert "the middleware 'forgetful' returned None for tools/call: return the" in caplog.text


def test_a_middleware_that_is_not_async_is_rejected(server):
    with pytest.raises(TypeError, match="'plain' has to be a function: `async def"):

        @server.middleware
        def plain(request, call_next):
            pass


def test_arguments_of_a_method_without_any_are_rejected(server):
    async def main():
        @server.middleware
        async def odd(request, call_next):
            if request.method == "resources/read":
                request.with_arguments({})
            return await call_next(request)

        async with Client(server) as client:
            with pytest.raises(RequestError, match="internal error"):
                await client.read_resource("sea://level")

    trio.run(main)


async def test_notifications_pass_without_a_context(server):
    passed = []

    @server.method("notifications/com.example/tide")
    async def tide(params: dict[str, int]) -> None:
        passed.append(params)

    @server.middleware
    async def note(request, call_next):
        passed.append((request.method, request.context is None))
        return await call_next(request)

    methods = {"notifications/com.example/tide": None}
    async with Client(server, protocol_versions=["2025-11-25"], methods=methods) as client:
        await client.notify("notifications/com.example/tide", {"metres": 2})
        await client.ping()
        await trio.testing.wait_all_tasks_blocked()
    assert passed == [
        ("notifications/initialized", True),
        ("notifications/com.example/tide", True),
        {"metres": 2},
    ]


async def test_what_a_middleware_does_with_the_context_is_recorded_and_replayed(server, tmp_path):
    @server.middleware
    async def stamp(request, call_next):
        result = await call_next(request)
        if request.name != "add":
            return result
        text = TextContent(text=str(request.context.now()))
        return CallToolResult(content=[*result.content, text])

    path = tmp_path / "session.mcprec.jsonl"
    async with client_session(server, path) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
    assert '"ctx.now"' in path.read_text()
    await trio.to_thread.run_sync(replay, path, server)
    server._sessions.middleware.clear()
    with pytest.raises(ReplayDivergence):
        await trio.to_thread.run_sync(replay, path, server)


async def test_the_state_belongs_to_the_session():
    server = Server("harbour")

    @server.tool
    async def count(ctx: Context) -> int:
        ctx.state["calls"] = ctx.state.get("calls", 0) + 1
        return ctx.state["calls"]

    @server.tool
    def count_in_thread(ctx: Context) -> int:
        return ctx.state["calls"]

    for _ in range(2):
        async with Client(server) as client:
            for expected in (1, 2):
                assert await client.call_tool("count", result_type=int) == expected
            assert await client.call_tool("count_in_thread", result_type=int) == 2


# Middleware to use.


async def test_requests_are_logged_with_their_outcome(server, caplog):
    caplog.set_level(logging.INFO, logger="mcp_trio")
    server.middleware(LogRequests())

    @server.tool
    async def crash() -> None:
        raise ZeroDivisionError

    async with Client(server, raise_tool_errors=False) as client:
        await client.call_tool("add", {"a": 1, "b": 2})
        await client.call_tool("fail")
        await client.call_tool("crash")
    outcomes = [
        (record.target, record.outcome)
        for record in caplog.records
        if getattr(record, "method", "") == "tools/call"
    ]
    assert outcomes == [("add", "ok"), ("fail", "failed"), ("crash", "ZeroDivisionError")]
    assert "tools/call 'add': ok in " in caplog.text


async def test_a_large_result_is_replaced_by_an_error(server):
    server.middleware(ResultLimit(bytes_max=200))

    @server.tool
    async def repeat(count: int) -> str:
        return "x" * count

    async with Client(server) as client:
        assert await client.call_tool("repeat", {"count": 3}, result_type=str) == "xxx"
        with pytest.raises(ToolError, match=r"the result has \d+ bytes, more than 200"):
            await client.call_tool("repeat", {"count": 300})


async def test_a_kept_result_is_returned_without_a_call(server):
    calls = []

    @server.tool
    async def slow(a: int) -> int:
        calls.append(a)
        return a

    @server.tool
    async def flaky() -> int:
        calls.append("flaky")
        raise ToolError("no")

    server.middleware(CacheResults({"slow", "flaky"}, seconds=60))
    async with Client(server, raise_tool_errors=False) as client:
        for a in (1, 1, 2):
            assert (await client.call_tool("slow", {"a": a})).data == a
        for _ in range(2):
            assert (await client.call_tool("flaky")).is_error
    assert calls == [1, 2, "flaky", "flaky"]


async def test_a_result_is_kept_for_its_protocol_version_only(server):
    server.middleware(CacheResults({"add"}, seconds=60))
    contents = []
    for version in ("2026-07-28", "2025-11-25"):
        async with Client(server, protocol_versions=[version]) as client:
            result = await client.call_tool("add", {"a": 1, "b": 2})
            contents.append(result.structured_content)
    assert contents == [3, {"result": 3}]


@pytest.mark.parametrize("restriction", ["condition", "session", "server", "removed"])
async def test_a_kept_result_is_only_for_clients_that_may_call_the_tool(server, restriction):
    inner = Server("inner")
    server.mount(inner, prefix="in")

    def is_harbour_master(ctx):
        return restriction != "condition" or "master" in ctx.state

    @server.tool
    async def login(ctx: Context) -> None:
        ctx.state["master"] = True

    @server.tool
    async def logout(ctx: Context) -> None:
        if restriction == "session":
            await ctx.disable("secret", "in_secret")
        elif restriction == "server":
            server.disable("secret", "in_secret")
        elif restriction == "removed":
            server.remove_tool("secret")
            inner.remove_tool("secret")

    for each in (server, inner):

        @each.tool(access=is_harbour_master)
        async def secret() -> str:
            return "the code of the gate"

    server.middleware(CacheResults({"secret", "in_secret"}, seconds=60))
    names = ("secret", "in_secret")
    legacy = {"protocol_versions": ["2025-11-25"]}
    async with Client(server, **legacy) as master, Client(server, **legacy) as other:
        await master.call_tool("login")
        for name in names:
            assert await master.call_tool(name, result_type=str) == "the code of the gate"
        await other.call_tool("logout")
        for name in names:
            with pytest.raises(RequestError):
                await other.call_tool(name)
        if restriction in ("condition", "session"):
            assert await master.call_tool("secret", result_type=str) == "the code of the gate"


async def test_a_kept_result_of_a_remote_tool_is_only_for_clients_that_may_call_it():
    remote, middle, server = Server("remote"), Server("middle"), Server("server")
    remote.tool(lambda: "the code of the gate", name="secret")
    middle.mount(Client(remote), prefix="r", access=lambda ctx: "master" in ctx.state)
    server.mount(middle, prefix="m")

    @server.tool
    async def turn(ctx: Context) -> None:
        if ctx.state.pop("master", None) is None:
            ctx.state["master"] = True

    server.middleware(CacheResults({"m_r_secret"}, seconds=60))
    async with Client(server, protocol_versions=["2025-11-25"]) as client:
        await client.call_tool("turn")
        for _ in range(2):
            assert (await client.call_tool("m_r_secret")).content[0].text == "the code of the gate"
        await client.call_tool("turn")
        with pytest.raises(RequestError):
            await client.call_tool("m_r_secret")


async def test_servers_may_share_the_object_that_keeps_results():
    cache, texts = CacheResults({"name"}, seconds=60), []
    for text in ("pier", "tower", "pier"):
        server = Server(text)
        server.middleware(cache)
        server.tool(name="name")(lambda text=text: text)
        async with Client(server) as client:
            texts.append((await client.call_tool("name")).content[0].text)
    assert texts == ["pier", "tower", "pier"]


async def test_an_expired_result_is_made_again(server):
    calls = []

    @server.tool
    async def slow() -> int:
        calls.append(1)
        return 1

    server.middleware(CacheResults({"slow"}, seconds=1e-9))
    async with Client(server) as client:
        for _ in range(2):
            await client.call_tool("slow")
    assert calls == [1, 1]


def test_one_string_is_no_set_of_tools():
    with pytest.raises(TypeError, match=r"write \{'slow'\}"):
        CacheResults("slow", seconds=60)


async def test_the_results_that_were_made_last_are_kept(server, monkeypatch):
    monkeypatch.setattr("mcp_trio._server.middleware._CACHED_MAX", 2)
    calls = []

    @server.tool
    async def slow(a: int) -> int:
        calls.append(a)
        return a

    cache = CacheResults({"slow"}, seconds=1e-9)
    server.middleware(cache)
    async with Client(server) as client:
        await client.call_tool("slow", {"a": 1})  # is not kept for long, and so made again
        cache.seconds = 60
        for a in (2, 1, 3, 1):
            await client.call_tool("slow", {"a": a})
    assert calls == [1, 2, 1, 3]


async def _add_link(request, call_next):
    """Replace the content of a result by a link, which the oldest versions do not have."""
    result = await call_next(request)
    if request.method != "tools/call":
        return result
    return msgspec.structs.replace(result, content=[ResourceLink(uri="sea://level", name="level")])


@pytest.mark.requirement("TOOL-17")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_content_that_middleware_adds_is_changed_for_the_clients_version(
    server, protocol_version
):
    server.middleware(_add_link)
    async with Client(server, protocol_versions=[protocol_version]) as client:
        (content,) = (await client.call_tool("add", {"a": 1, "b": 2})).content
    assert type(content) is (TextContent if protocol_version == "2024-11-05" else ResourceLink)


@pytest.mark.requirement("TOOL-17")
async def test_content_that_middleware_of_the_outer_server_adds_is_changed_as_well(server):
    outer = Server("sea")
    outer.mount(server, prefix=None)
    outer.middleware(_add_link)
    async with Client(outer, protocol_versions=["2024-11-05"]) as client:
        (content,) = (await client.call_tool("add", {"a": 1, "b": 2})).content
    assert content == TextContent(text="level: sea://level")


async def test_large_results_and_arguments_make_room_for_new_ones(server, monkeypatch):
    monkeypatch.setattr("mcp_trio._server.middleware._CACHED_BYTES_MAX", 10_000)
    calls = []

    @server.tool
    async def repeat(text: str, times: int) -> str:
        calls.append(text[:1])
        return text * times

    server.middleware(CacheResults({"repeat"}, seconds=60))
    async with Client(server) as client:
        for text, times in [("a", 1), ("b" * 8_000, 0), ("a", 1), ("c", 1_000), ("a", 1)]:
            await client.call_tool("repeat", {"text": text, "times": times})
        assert calls == ["a", "b", "c", "a"]
        for text, times in [("d", 8_000), ("d", 8_000), ("a", 1)]:
            await client.call_tool("repeat", {"text": text, "times": times})
    assert calls == ["a", "b", "c", "a", "d", "d"]
