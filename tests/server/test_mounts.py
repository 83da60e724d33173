"""Servers mounted into another server of the same process."""

from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest
import trio
import trio.testing
from memory_sessions import client_session

from mcp_trio import Client, Context, Limits, RequestError, Server, ThreadContext, ToolError, effect
from mcp_trio.auth import StaticTokens
from mcp_trio.errors import BlockedInReplay, ReplayDivergence
from mcp_trio.limits import RequestLimits
from mcp_trio.observers import RequestLog
from mcp_trio.recording import replay
from mcp_trio.types import (
    CallToolResult,
    ElicitResult,
    EmbeddedResource,
    ResourceContents,
    ResourceLink,
    TextContent,
    ToolAnnotations,
)

PROTOCOL_VERSIONS = ["2025-11-25", "2026-07-28"]


def weather(**options):
    """A server with one of everything."""
    server = Server("weather", version="2", **options)

    @server.tool
    async def forecast(city: str, *, ctx: Context) -> str:
        """Return the weather of tomorrow."""
        await ctx.report_progress(1, 2, "asking")
        await ctx.info(f"asked for {city}")
        return f"{ctx.server.name}: rain in {city}"

    @server.tool
    def measure() -> list[float]:
        return [1.5]

    @server.resource("data://stations")
    async def stations() -> str:
        return "Blindern"

    @server.resource("weather://{city}/now")
    def now(city: str, *, ctx: ThreadContext) -> str:
        return f"{city}: {ctx.read_resource('data://stations')[0].text}"

    @server.prompt
    async def plan(city: str) -> str:
        return f"Plan a day in {city}."

    @server.completion("plan", "city")
    async def cities(text: str) -> list[str]:
        return [f"{text}slo"]

    @server.completion("weather://{city}/now", "city")
    async def more_cities(text: str) -> list[str]:
        return [f"{text}ergen"]

    return server


def hub(*mounted, **options):
    """A server into which others are mounted, each with its prefix."""
    server = Server("hub", **options)
    for other, prefix in mounted:
        server.mount(other, prefix=prefix)
    return server


async def connected(server, **options):
    """Everything that a client of the server can reach at the mounted server `weather`."""
    reported = []
    options |= {"log": lambda params: reported.append(params.data)}
    async with Client(server, **options) as client:
        names = {
            *(tool.name for tool in await client.list_tools()),
            *(prompt.name for prompt in await client.list_prompts()),
            *(resource.uri for resource in await client.list_resources()),
            *(each.uri_template for each in await client.list_resource_templates()),
        }
        texts = [
            (await client.call_tool("w_forecast", {"city": "Oslo"}, progress=reported.append)).data,
            (await client.call_tool("w_measure")).structured_content,
            (await client.read_resource("data://w/stations")).contents[0].text,
            (await client.read_resource("weather://w/Oslo/now")).contents[0].text,
            (await client.get_prompt("w_plan", {"city": "Oslo"})).messages[0].content.text,
            (await client.complete("w_plan", "city", "O")).completion.values,
            (await client.complete("weather://w/{city}/now", "city", "B")).completion.values,
        ]
    return names, texts, [getattr(each, "message", each) for each in reported]


NAMES = {
    *("w_forecast", "w_measure", "w_plan"),
    *("data://w/stations", "weather://w/{city}/now"),
}
TEXTS = [
    "weather: rain in Oslo",
    {"result": [1.5]},
    "Blindern",
    "Oslo: Blindern",
    "Plan a day in Oslo.",
    ["Oslo"],
    ["Bergen"],
]


@pytest.mark.requirement("TOOL-02")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_server_offers_what_a_mounted_server_has(protocol_version):
    server = hub((weather(), "w"))
    names, texts, reported = await connected(server, protocol_versions=[protocol_version])
    assert names == NAMES
    # Since 2026-07-28 structured content need not be an object.
    measured = [1.5] if protocol_version == "2026-07-28" else TEXTS[1]
    assert texts == [TEXTS[0], measured, *TEXTS[2:]]
    assert sorted(reported) == ["asked for Oslo", "asking"]


async def test_a_mounted_server_is_reached_over_http(nursery):
    url = await nursery.start(partial(hub((weather(), "w")).serve_http, port=0))
    names, texts, _ = await connected(url, protocol_versions=["2025-11-25"])
    assert (names, texts) == (NAMES, TEXTS)


async def test_without_a_prefix_the_names_stay_as_they_are():
    async with Client(hub((weather(), None))) as client:
        assert {tool.name for tool in await client.list_tools()} == {"forecast", "measure"}
        (contents,) = (await client.read_resource("weather://Oslo/now")).contents
    assert (contents.uri, contents.text) == ("weather://Oslo/now", "Oslo: Blindern")


async def test_mounts_may_be_nested_and_a_server_mounted_twice():
    inner = weather()
    server = hub((hub((inner, "w")), "a"), (inner, "b"))
    async with Client(server) as client:
        names = [tool.name for tool in await client.list_tools()]
        first = await client.call_tool("a_w_forecast", {"city": "Oslo"})
        second = await client.call_tool("b_forecast", {"city": "Bergen"})
        (contents,) = (await client.read_resource("data://a/w/stations")).contents
    assert names == ["a_w_forecast", "a_w_measure", "b_forecast", "b_measure"]
    assert [first.data, second.data] == ["weather: rain in Oslo", "weather: rain in Bergen"]
    assert contents.uri == "data://a/w/stations"


# Prefixes.


@pytest.mark.parametrize("prefix", ["a b", "ø", "-a", "a/b", "x" * 128])
def test_a_prefix_that_a_name_must_not_have_is_an_error(prefix):
    with pytest.raises(ValueError, match="is not a valid prefix"):
        Server("hub").mount(Server("weather"), prefix=prefix)


@pytest.mark.parametrize(
    ("own", "outer", "handler", "values"),
    [
        ("data://info", "data://w/info", lambda: "", {}),
        ("data:///info", "data://w//info", lambda: "", {}),
        ("file:/etc/motd", "file:w//etc/motd", lambda: "", {}),
        ("urn:isbn:1", "urn:w/isbn:1", lambda: "", {}),
        ("weather://{city}/now", "weather://w/{city}/now", lambda city: city, {"city": "oslo"}),
        (
            *("{scheme}://{host}", "{scheme}://w/{host}"),
            *(lambda scheme, host: scheme + host, {"scheme": "data", "host": "oslo"}),
        ),
    ],
)
async def test_the_prefix_stands_after_the_scheme_and_is_removed_on_reading(
    own, outer, handler, values
):
    other = Server("weather")
    other.resource(own)(handler)
    async with Client(hub((other, "w"))) as client:
        listed = [it.uri for it in await client.list_resources()]
        listed += [it.uri_template for it in await client.list_resource_templates()]
        uri = outer.format(**values)
        (contents,) = (await client.read_resource(uri)).contents
        with pytest.raises(RequestError, match="not found"):
            await client.read_resource(own.format(**values))
    assert (listed, contents.uri, contents.text) == ([outer], uri, "".join(values.values()))


def test_a_uri_without_a_place_for_the_prefix_is_an_error():
    other = Server("weather")
    other.resource("{+uri}")(lambda uri: uri)
    with pytest.raises(ValueError, match="has no scheme"):
        Server("hub").mount(other, prefix="w")
    Server("hub").mount(other, prefix=None)


def test_a_name_that_the_prefix_makes_too_long_is_an_error():
    other = Server("weather")
    other.tool("x" * 127)(lambda: None)
    server = Server("hub")
    with pytest.raises(ValueError, match="is longer than the 128 characters"):
        server.mount(other, prefix="w")


# Collisions.


def test_two_equal_names_are_an_error_of_the_mount_and_nothing_is_mounted():
    first, second = Server("first"), Server("second")
    first.tool("one")(lambda: 1)
    second.prompt("other")(lambda: "")
    second.tool("one")(lambda: 1)
    server = hub((first, None))
    with pytest.raises(ValueError) as caught:
        server.mount(second, prefix=None)
    text = str(caught.value)
    assert text.count("test_mounts.py:") == 2
    assert "of the server 'first', mounted without a prefix" in text
    assert "of the server 'second', mounted without a prefix cannot" in text
    second.tool("two")(lambda: 1)
    server.tool("two")(lambda: 1)  # the other server is not mounted, and has not taken the name


@pytest.mark.parametrize("is_inner_first", [False, True])
def test_two_equal_names_are_an_error_of_the_registration(is_inner_first):
    inner = Server("weather")
    server = hub((inner, "w"))
    top = hub((server, None))
    first = partial(inner.tool, "now") if is_inner_first else partial(top.tool, "w_now")
    second = partial(top.tool, "w_now") if is_inner_first else partial(inner.tool, "now")
    first()(lambda: 1)
    with pytest.raises(ValueError, match="'w_now' is registered already, by"):
        second()(lambda: 1)
    if not is_inner_first:
        inner.tool("later")(lambda: 1)
        top.remove_tool("w_now")
        second()(lambda: 1)  # the first try has left nothing behind


def test_a_cycle_of_mounts_is_an_error():
    inner, outer = Server("inner"), Server("outer")
    outer.mount(inner, prefix="a")
    for server, other in [(inner, outer), (inner, inner)]:
        with pytest.raises(ValueError, match="would form a cycle"):
            server.mount(other, prefix="b")


def test_only_the_mounted_server_removes_what_it_has():
    inner = weather()
    server = hub((inner, "w"))
    with pytest.raises(LookupError, match=r"registered here: it is that of .*forecast"):
        server.remove_tool("w_forecast")
    inner.remove_tool("forecast")
    with pytest.raises(LookupError):
        server.remove_tool("w_forecast")


# Changes.


@pytest.mark.requirement("TOOL-35")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_clients_are_notified_of_what_changes_at_a_mounted_server(protocol_version):
    inner, changes = weather(), []
    server = hub((hub((inner, "w")), "a"))
    send, receive = trio.open_memory_channel(10)
    options = {
        "list_changed": lambda kind: changes.append(kind) or send.send_nowait(kind),
        "resource_updated": lambda params: send.send_nowait(params.uri),
        "protocol_versions": [protocol_version],
    }
    async with Client(server, **options) as client:
        assert len(await client.list_tools()) == 2
        await client.subscribe("weather://a/w/Oslo/now")
        inner.tool("later")(lambda: 1)
        assert await receive.receive() == "tools"
        assert len(await client.list_tools()) == 3
        inner.remove_tool("later")
        assert await receive.receive() == "tools"
        assert len(await client.list_tools()) == 2
        inner.resource_updated("weather://Oslo/now")
        inner.resource_updated("no URI")
        assert await receive.receive() == "weather://a/w/Oslo/now"
        inner.remove_completion("plan", "city")
        assert (await client.complete("a_w_plan", "city", "O")).completion.values == []
        inner.remove_prompt("plan")
        assert await receive.receive() == "prompts"
        with pytest.raises(RequestError):
            await client.get_prompt("a_w_plan", {"city": "Oslo"})


async def test_the_offers_of_a_mounted_server_are_declared():
    async with Client(hub((Server("weather", offers={"prompts"}), "w"))) as client:
        assert client.server_can("prompts.listChanged")
        assert not client.server_can("tools")


# Handlers of a mounted server.


async def test_a_mounted_handler_has_the_session_of_the_outer_server():
    inner, server = Server("weather"), Server("hub")

    @inner.tool
    async def add(ctx: Context) -> list[str]:
        ctx.state.setdefault("calls", []).append(ctx.server.name)
        answer = await ctx.elicit("sure?", bool)
        roots = await ctx.list_roots()
        message = await ctx.sample("hello")
        return [*ctx.state["calls"], str(answer.data), roots[0].uri, message.content.text]

    @server.tool
    async def first(ctx: Context) -> None:
        ctx.state.setdefault("calls", []).append(ctx.server.name)

    server.mount(inner, prefix="w")
    options = {
        "elicitation": lambda _params: True,
        "roots": ["file:///r"],
        "sampling": lambda _params: "hi",
    }
    for protocol_version in PROTOCOL_VERSIONS:
        async with Client(server, protocol_versions=[protocol_version], **options) as client:
            await client.call_tool("first")
            result = await client.call_tool("w_add")
        assert result.data == ["hub", "weather", "True", "file:///r", "hi"]


async def test_a_mounted_handler_is_cancelled_with_its_request():
    inner, has_ended = Server("weather"), trio.Event()

    @inner.tool
    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            has_ended.set()

    async with Client(hub((inner, "w"))) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "w_wait")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await has_ended.wait()


@pytest.mark.parametrize("outer", ["generic", "message"])
@pytest.mark.parametrize("inner", ["generic", "message"])
async def test_each_server_decides_about_the_texts_of_its_errors(outer, inner):
    mounted = Server("weather", errors=inner)
    server = hub((hub((mounted, "w"), errors=outer), None), errors=outer)

    @mounted.tool
    async def fail() -> None:
        raise OSError("the disk is full")

    mounted.resource("data://fail")(fail)
    server.tool("fail")(fail)
    texts = {"generic": "internal error in {}", "message": "error in {}: the disk is full"}
    async with Client(server, raise_tool_errors=False) as client:
        for name, setting in {"fail": outer, "w_fail": inner}.items():
            (content,) = (await client.call_tool(name)).content
            assert content.text == texts[setting].format(name)
        with pytest.raises(RequestError) as caught:
            await client.read_resource("data://w/fail")
        assert ("disk" in str(caught.value)) == (inner == "message")


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_errors_of_a_mounted_server_have_the_names_of_the_outer_one(protocol_version):
    inner = weather()

    @inner.resource("list://{name}")
    async def entry(name: str) -> str:
        raise RequestError(-32002, f"resource not found: list://{name}", {"uri": f"list://{name}"})

    async with Client(hub((inner, "w")), protocol_versions=[protocol_version]) as client:
        for uri in ("list://w/it", "data://stations", "data://w/none"):
            with pytest.raises(RequestError) as caught:
                await client.read_resource(uri)
            assert caught.value.message == f"resource not found: {uri}"
            assert caught.value.data == {"uri": uri}
        with pytest.raises(RequestError, match="unknown tool: forecast"):
            await client.call_tool("forecast")
        with pytest.raises(ToolError, match="invalid arguments"):
            await client.call_tool("w_forecast", {"city": 1})


async def test_resources_in_results_have_the_uris_of_the_outer_server():
    inner = weather()

    @inner.tool
    async def find() -> CallToolResult:
        contents = ResourceContents(uri="data://stations", text="")
        links = [
            ResourceLink(name="now", uri=uri)
            for uri in ("weather://Oslo/now", "https://example.com/weather")
        ]
        return CallToolResult(content=[*links, EmbeddedResource(resource=contents)])

    async with Client(hub((inner, "w"))) as client:
        oslo, elsewhere, embedded = (await client.call_tool("w_find")).content
        assert oslo.uri == "weather://w/Oslo/now"
        assert elsewhere.uri == "https://example.com/weather"
        assert embedded.resource.uri == "data://w/stations"


async def test_a_resumable_handler_has_the_version_and_needs_the_states_of_its_servers():
    inner = Server("weather", version="7", states=object())

    @inner.tool(resumable=True)
    async def ask(ctx: Context) -> str:
        return str((await ctx.elicit("sure?", bool)).data)

    server = hub((inner, "w"))
    options = {"elicitation": lambda _params: True, "protocol_versions": ["2026-07-28"]}
    async with Client(server, **options) as client:
        assert (await client.call_tool("w_ask")).data == "True"

    inner.tool("drop", resumable=True, annotations=ToolAnnotations(destructive_hint=False))(ask)
    hints = ToolAnnotations(destructive_hint=True)
    with pytest.raises(ValueError, match=r"'erase' of the server 'weather', mounted .* `states`"):
        inner.tool("erase", resumable=True, annotations=hints)(ask)
    assert "erase" not in {tool.name for tool in await _tools(inner)}


async def _tools(server):
    async with Client(server) as client:
        return await client.list_tools()


# Middleware.


async def test_middleware_of_a_mounted_server_runs_inside_of_that_of_the_outer_one():
    inner, passed = weather(), []
    server = hub((inner, "w"))

    def noting(name):
        async def note(request, call_next):
            passed.append((name, request.method, request.name))
            return await call_next(request)

        return note

    server.middleware(noting("hub"))
    inner.middleware(noting("weather"))
    async with Client(server, cache=False) as client:
        await client.call_tool("w_forecast", {"city": "Oslo"})
        await client.read_resource("weather://w/Oslo/now")
        await client.list_prompts()
    assert [each for each in passed if each[1] in {"tools/call", "resources/read"}] == [
        ("hub", "tools/call", "w_forecast"),
        ("weather", "tools/call", "forecast"),
        ("hub", "resources/read", "weather://w/Oslo/now"),
        ("weather", "resources/read", "weather://Oslo/now"),
    ]
    assert passed[-2:] == [("hub", "prompts/list", None), ("weather", "prompts/list", None)]


async def test_middleware_of_a_mounted_server_filters_its_own_lists_only():
    inner = weather()

    @inner.middleware
    async def hide(request, call_next):
        result = await call_next(request)
        if request.method != "tools/list":
            return result
        return msgspec.structs.replace(result, tools=result.tools[:1])

    limits = Limits(requests=RequestLimits(page_items_max=1))
    server = Server("hub", limits=limits)
    for name in ("one", "two"):
        server.tool(name)(lambda: 1)
    server.mount(hub((inner, "w")), prefix="a")
    async with Client(server) as client:
        assert [tool.name for tool in await client.list_tools()] == ["one", "two", "a_w_forecast"]
        with pytest.raises(RequestError, match="invalid cursor"):
            await client.request("tools/list", {"cursor": "x"})


# Lifespans and recordings.


def counted(name, opened):
    """A lifespan whose value is the name."""

    @asynccontextmanager
    async def lifespan(_server):
        opened.append(f"+{name}")
        yield name
        opened.append(f"-{name}")

    return lifespan


def with_lifespans(opened, answer="{}"):
    """A server with two mounted ones, each with a lifespan, and one of them mounted twice."""
    inner = Server("weather", lifespan=counted("weather", opened))
    middle = Server("middle", lifespan=counted("middle", opened))
    outer = Server("hub", lifespan=counted("hub", opened))
    for server in (inner, middle, outer):

        @server.tool
        async def value(ctx: Context) -> str:
            return answer.format(ctx.lifespan)

    middle.mount(inner, prefix="w")
    outer.mount(middle, prefix="m")
    outer.mount(inner, prefix="w")
    return outer


TOOLS = ("value", "m_value", "m_w_value", "w_value")
VALUES = ["hub", "middle", "weather", "weather"]


async def record(server, path, *, names=TOOLS, arguments=None, **options):
    """Return the texts of calls in one recorded session."""
    async with client_session(server, path, **options) as client:
        return [(await client.call_tool(name, arguments or {})).data for name in names]


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_the_lifespans_of_mounted_servers_are_entered_in_order_and_run_again_in_a_replay(
    tmp_path, protocol_version
):
    opened, path = [], tmp_path / "it.mcprec.jsonl"
    server = with_lifespans(opened)
    options = {"protocol_versions": [protocol_version]}
    assert await record(server, path, **options) == VALUES
    order = ["+hub", "+middle", "+weather", "-weather", "-middle", "-hub"]
    assert opened == order
    report = await trio.to_thread.run_sync(replay, path, with_lifespans(opened))
    assert report.lifespan == "the lifespan ran again"
    assert opened == 2 * order
    with pytest.raises(ReplayDivergence):
        await trio.to_thread.run_sync(replay, path, with_lifespans(opened, "no {}"))


async def test_a_lifespan_that_was_not_recorded_has_a_stand_in_for_each_mounted_server(tmp_path):
    opened, path = [], tmp_path / "it.mcprec.jsonl"
    await record(with_lifespans(opened), path, names=("w_value",))
    text = path.read_text()

    def given(_server):
        return counted("given", opened)(_server)

    with pytest.raises((ReplayDivergence, BlockedInReplay)):
        # The lifespan that is passed stands for that of the outer server only.
        await trio.to_thread.run_sync(partial(replay, path, with_lifespans(opened), lifespan=given))
    assert path.read_text() == text


async def test_effects_of_a_mounted_lifespan_are_recorded(tmp_path):
    ran = []

    @effect
    async def read(name: str) -> str:
        ran.append(name)
        return f"{name} {len(ran)}"

    def made():
        @asynccontextmanager
        async def lifespan(_server):
            yield await read("station")
            await read("end")

        inner = Server("weather", lifespan=lifespan)
        inner.tool("value")(_value)
        return hub((inner, "w"))

    path = tmp_path / "it.mcprec.jsonl"
    assert await record(made(), path, names=("w_value",)) == ["station 1"]
    assert ran == ["station", "end"]
    await trio.to_thread.run_sync(replay, path, made())
    assert ran == ["station", "end"]


async def _value(ctx: Context) -> str:
    return ctx.lifespan


async def test_a_server_with_a_lifespan_is_mounted_before_the_outer_one_is_served():
    server = Server("hub")
    other = Server("weather", lifespan=counted("weather", []))
    async with Client(hub((server, "a"))):
        with pytest.raises(RuntimeError, match="mount it before 'hub' is served"):
            server.mount(other, prefix="w")
        server.mount(weather(), prefix="w")
    server.mount(other, prefix="v")


def asking(question="sure?"):
    inner = Server("weather")

    @inner.tool
    async def roll(ctx: Context) -> str:
        await ctx.report_progress(ctx.random.random())
        answer = await ctx.elicit(question, bool)
        await ctx.info(f"{ctx.uuid4()} {ctx.now()}")
        ctx.server.tool("later")(_value)
        return str(answer.data)

    return hub((inner, "w"))


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_session_through_a_mount_is_one_recording_and_replays_the_same(
    tmp_path, protocol_version
):
    path = tmp_path / "it.mcprec.jsonl"
    options = {
        "elicitation": lambda _params: ElicitResult(action="accept", content={"value": True}),
        "log": lambda _params: None,
        "list_changed": lambda _kind: None,
        "progress": lambda _progress: None,
        "protocol_versions": [protocol_version],
    }
    assert await record(asking(), path, names=("w_roll",), **options) == ["True"]
    report = await trio.to_thread.run_sync(replay, path, asking())
    assert report.requests >= 1
    assert report.is_complete
    with pytest.raises(ReplayDivergence, match="sure"):
        await trio.to_thread.run_sync(replay, path, asking("really?"))


async def test_a_value_that_a_thread_of_a_mounted_server_reads_needs_no_second_thread():
    inner = Server("weather")

    @inner.resource("data://one")
    def one() -> str:
        return "one"

    server = Server("hub", limits=Limits(requests=RequestLimits(threads_max=1)))

    @server.tool
    def read(ctx: ThreadContext) -> str:
        return ctx.read_resource("data://w/one")[0].text

    server.mount(inner, prefix="w")
    async with Client(server) as client:
        with trio.fail_after(5):
            result = await client.call_tool("read")
    assert result.content == [TextContent(text="one")]


# Hidden entries.


async def names(client):
    return [tool.name for tool in await client.list_tools()]


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("hides", ["inner", "outer"])
@pytest.mark.parametrize("has_middleware", [False, True])
async def test_an_entry_is_hidden_if_either_server_hides_it(
    protocol_version, hides, has_middleware
):
    inner, outer = weather(), Server("outer")
    outer.mount(inner, prefix="w")
    if has_middleware:

        @inner.middleware
        async def pass_on(request, call_next):
            return await call_next(request)

    if hides == "inner":
        inner.disable("measure", "data://stations", "plan")
    else:
        outer.disable("w_measure", "data://w/stations", "w_plan")
    async with Client(outer, protocol_versions=(protocol_version,)) as client:
        assert await names(client) == ["w_forecast"]
        assert await client.list_resources() == []
        assert await client.list_prompts() == []
        with pytest.raises(RequestError, match="unknown tool: w_measure"):
            await client.call_tool("w_measure", {})
        with pytest.raises(RequestError, match="unknown prompt: w_plan"):
            await client.get_prompt("w_plan", {"city": "Oslo"})
        with pytest.raises(RequestError, match="data://w/stations"):
            await client.read_resource("data://w/stations")
        # A handler of the mounted server reads what it hides.
        (contents,) = (await client.read_resource("weather://w/Oslo/now")).contents
        assert contents.text == "Oslo: Blindern"
        assert len(await names(client)) == 1
        if hides == "inner":
            inner.enable("measure")
        else:
            outer.enable("w_measure")
        assert (await client.call_tool("w_measure", {})).data == [1.5]


async def test_a_handler_of_a_mounted_server_hides_its_own_tools_in_its_session():
    inner, outer = weather(), Server("outer")
    outer.mount(inner, prefix="w")

    @inner.tool
    async def finish(*, ctx: Context) -> None:
        await ctx.disable("measure", "finish")

    versions = ("2025-11-25",)
    async with (
        Client(outer, protocol_versions=versions) as first,
        Client(outer, protocol_versions=versions) as second,
    ):
        await first.call_tool("w_finish", {})
        assert await names(first) == ["w_forecast"]
        assert await names(second) == ["w_forecast", "w_measure", "w_finish"]
        with pytest.raises(RequestError, match="unknown tool"):
            await first.call_tool("w_measure", {})
        await second.call_tool("w_measure", {})


def test_a_protected_server_is_not_mounted_into_an_open_one():
    tokens = StaticTokens({"a-token": "ada"})
    protected = Server("vault", auth=tokens)
    with pytest.raises(ValueError, match="give auth= to the outer server"):
        Server("outer").mount(protected, prefix="v")
    Server("outer", auth=tokens).mount(protected, prefix="v")


def test_a_server_with_an_observer_of_its_own_is_not_mounted_because_nothing_would_call_it():
    observer = RequestLog()
    inner = Server("inner", observers=[observer])
    with pytest.raises(ValueError, match=r"'inner' has observers=, .* to the outer server as well"):
        Server("outer").mount(inner, prefix="in")
    Server("outer", observers=[observer]).mount(inner, prefix="in")
