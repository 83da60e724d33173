"""Groups of servers: names, lists and calls, changes of a group, and configuration files."""

import json
import signal
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import (
    Client,
    ClientGroup,
    ConnectionLost,
    Limits,
    RequestError,
    RequestTimeout,
    Server,
    ToolError,
)
from mcp_trio import types as t
from mcp_trio._transports.http_server import serve_native
from mcp_trio.errors import RESOURCE_NOT_FOUND, ConfigError, LocalProtocolError, RemoteProtocolError
from mcp_trio.hosts import ServerConfig, read_config
from mcp_trio.limits import DEFAULT_LIMITS, ShutdownLimits
from mcp_trio.transports import memory_pair
from tests.client.conftest import (
    OLD,
    QUICK,
    Bench,
    call_that_is_lost,
    running_tasks,
    text,
    text_of_result,
)
from tests.processes import is_alive, open_descriptors, python

TOOLS_ONLY = t.ServerCapabilities(tools=t.ToolsCapability())


def resource(uri):
    return t.Resource(uri=uri, name="n")


def template(uri_template):
    return t.ResourceTemplate(uri_template=uri_template, name="n")


def port(name, *, uris=(), templates=(), readable=None):
    """A server whose answers tell its name; it can read `readable`, by default what it lists."""
    readable = uris if readable is None else readable

    def read(params):
        if params.uri not in readable:
            raise RequestError(RESOURCE_NOT_FOUND, "resource not found")
        return t.ReadResourceResult(contents=[t.ResourceContents(uri=params.uri, text=name)])

    def complete(params):
        known = {"ref/prompt": ["plan"], "ref/resource": templates}
        kind = "ref/prompt" if isinstance(params.ref, t.PromptReference) else "ref/resource"
        if (params.ref.name if kind == "ref/prompt" else params.ref.uri) not in known[kind]:
            raise RequestError(-32602, "nothing of that name")
        known_values = [] if params.context is None else [*params.context.arguments.values()]
        values = [name, params.argument.value, *known_values]
        return t.CompleteResult(completion=t.Completion(values=values))

    bench = Bench(
        answers={
            "tools/list": t.ListToolsResult(
                tools=[t.Tool(name="tide", input_schema={"type": "object"})]
            ),
            "prompts/list": t.ListPromptsResult(prompts=[t.Prompt(name="plan")]),
            "resources/list": t.ListResourcesResult(resources=[resource(uri) for uri in uris]),
            "resources/templates/list": t.ListResourceTemplatesResult(
                resource_templates=[template(text) for text in templates]
            ),
            "resources/read": read,
            "prompts/get": lambda params: t.GetPromptResult(
                messages=[], description=f"{name} {params.name} {params.arguments}"
            ),
            "completion/complete": complete,
        }
    )

    @bench.tool
    async def tide(handling):
        return text(name)

    return bench


@pytest.fixture
def ports():
    return {
        "bergen": port("Bergen", uris=["tide://bergen"], templates=["tide://{day}/bergen"]),
        "oslo": port("Oslo", uris=["tide://oslo"], templates=["tide://oslo/{day}"]),
    }


# Lists


async def test_a_list_waits_for_a_server_that_is_started_again(ports, autojump_clock):
    class Slow:
        async def serve(self, channel):
            await trio.sleep(1)
            await ports["oslo"].serve(channel)

    async with ClientGroup({**ports, "oslo": Slow()}, restart=True) as group:
        ports["oslo"].sessions[0].shut("closed")
        async with trio.open_nursery() as calls:
            calls.start_soon(group["oslo"].list_prompts)
            await trio.sleep(0.5)
            assert not group["oslo"].is_open
            assert [tool.name for tool in await group.list_tools()] == ["bergen_tide", "oslo_tide"]


@pytest.mark.requirement("TOOL-11")
async def test_tools_and_prompts_of_all_servers_are_listed_with_prefixes(ports):
    async with ClientGroup(ports) as group:
        tools = await group.list_tools()
        assert [tool.name for tool in tools] == ["bergen_tide", "oslo_tide"]
        assert tools[0].input_schema == {"type": "object"}
        assert [prompt.name for prompt in await group.list_prompts()] == [
            "bergen_plan",
            "oslo_plan",
        ]


async def test_resources_of_all_servers_are_listed_as_they_are(ports):
    async with ClientGroup(ports) as group:
        assert await group.list_resources() == [
            resource("tide://bergen"),
            resource("tide://oslo"),
        ]
        assert await group.list_resource_templates() == [
            template("tide://{day}/bergen"),
            template("tide://oslo/{day}"),
        ]


async def test_all_pages_are_read_of_all_servers(ports):
    def page(params):
        names = {None: ("a", "next"), "next": ("b", None)}
        name, cursor = names[params.cursor]
        tool = t.Tool(name=name, input_schema={})
        return t.ListToolsResult(tools=[tool], next_cursor=cursor)

    ports["bergen"].answers["tools/list"] = page
    async with ClientGroup(ports) as group:
        names = [tool.name for tool in await group.list_tools()]
    assert names == ["bergen_a", "bergen_b", "oslo_tide"]


async def test_a_server_without_a_capability_is_not_asked_for_its_list(ports):
    ports["oslo"] = Bench(capabilities=TOOLS_ONLY, answers=ports["oslo"].answers)
    async with ClientGroup(ports) as group:
        assert [prompt.name for prompt in await group.list_prompts()] == ["bergen_plan"]
        assert await group.list_resources() == [resource("tide://bergen")]
        assert len(await group.list_tools()) == 2


async def test_the_error_of_a_failed_list_names_its_server(ports):
    ports["oslo"].answers["tools/list"] = t.ListPromptsResult(prompts=[])
    async with ClientGroup(ports) as group:
        with pytest.raises(RemoteProtocolError) as caught:
            await group.list_tools()
    assert caught.value.__notes__ == ["this was the server 'oslo'"]


async def test_a_server_that_has_ended_is_left_out_of_lists_and_fails_its_own_calls(ports, caplog):
    async with ClientGroup(ports) as group:
        ports["oslo"].sessions[0].shut("closed")
        await trio.testing.wait_all_tasks_blocked()
        assert [tool.name for tool in await group.list_tools()] == ["bergen_tide"]
        assert "the list lacks the server 'oslo': the peer closed" in caplog.text
        with pytest.raises(ConnectionLost):
            await group.call_tool("oslo_tide")
        assert text_of_result(await group.call_tool("bergen_tide")) == "Bergen"
        assert not group["oslo"].is_open


# Calls


async def test_a_prefix_chooses_the_server_of_a_tool_or_prompt(ports):
    async with ClientGroup(ports) as group:
        assert text_of_result(await group.call_tool("oslo_tide", {"hours": 3})) == "Oslo"
        prompt = await group.get_prompt("bergen_plan", {"day": "today"})
        assert prompt.description == "Bergen plan {'day': 'today'}"


async def test_the_separator_can_be_chosen_and_names_may_contain_it(ports):
    ports["new_york"] = port("New York")
    async with ClientGroup(ports, separator="__") as group:
        assert [tool.name for tool in await group.list_tools()][-1] == "new_york__tide"
        assert text_of_result(await group.call_tool("new_york__tide")) == "New York"


async def test_a_name_without_a_known_prefix_is_rejected(ports):
    async with ClientGroup(ports) as group:
        for call in (group.call_tool, group.get_prompt):
            with pytest.raises(
                LookupError, match=r"'osl_tide' begins with the prefix of no server .*: 'b"
            ):
                await call("osl_tide")
        with pytest.raises(LookupError, match="no server 'osl'; its servers: 'bergen', "):
            group["osl"]
    async with ClientGroup({}) as group:
        with pytest.raises(LookupError, match="the prefixes: none"):
            await group.call_tool("oslo_tide")


@pytest.mark.parametrize(
    ("names", "separator"),
    [
        (["a", "a_b"], "_"),
        (["a_b", "a"], "_"),
        (["a", "a_"], "_"),
        (["a", "ab"], ""),
    ],
)
def test_prefixes_that_begin_alike_are_rejected(names, separator):
    with pytest.raises(ValueError, match="begin alike"):
        ClientGroup(dict.fromkeys(names, ("true",)), separator=separator)


@pytest.mark.parametrize(
    ("names", "separator"),
    [(["a", "ab"], "_"), (["a_b", "a_c"], "_"), (["a", "b"], ""), ([], "_")],
)
def test_unambiguous_prefixes_are_accepted(names, separator):
    ClientGroup(dict.fromkeys(names, ("true",)), separator=separator)


def test_an_empty_server_name_is_rejected():
    with pytest.raises(ValueError, match="must not be empty"):
        ClientGroup({"": ["true"]})


async def test_the_options_of_a_call_reach_the_client(ports, autojump_clock):
    @ports["oslo"].tool
    async def wait(handling):
        await handling.progress(1)
        await trio.sleep_forever()

    @ports["oslo"].tool
    async def fail(handling):
        return t.CallToolResult(content=[], is_error=True)

    reports = []
    async with ClientGroup(ports) as group:
        with pytest.raises(RequestTimeout):
            await group.call_tool("oslo_wait", total_seconds=3, progress=reports.append)
        with pytest.raises(ToolError):
            await group.call_tool("oslo_fail")
        assert (await group.call_tool("oslo_fail", raise_tool_errors=False)).is_error
    assert len(reports) == 1


async def test_result_type_converts_the_result_of_a_tool(ports):
    @ports["oslo"].tool
    async def depth(handling):
        return t.CallToolResult(content=[t.TextContent(text="7")])

    async with ClientGroup(ports) as group:
        assert await group.call_tool("oslo_depth", result_type=int) == 7


# Resources


async def read(group, uri, **options):
    return (await group.read_resource(uri, **options)).contents[0].text


async def test_a_resource_is_read_from_the_server_that_lists_it(ports):
    async with ClientGroup(ports) as group:
        assert await read(group, "tide://oslo") == "Oslo"
        assert await read(group, "tide://bergen") == "Bergen"


async def test_an_unlisted_resource_is_read_from_servers_with_a_matching_template(ports):
    ports["oslo"] = port("Oslo", templates=["tide://oslo/{day}"], readable=["tide://oslo/today"])
    ports["bergen"] = port(
        "Bergen", templates=["{any}", "tide://{day}/bergen"], readable=["tide://oslo/bergen"]
    )
    ports["cork"] = port("Cork", templates=["buoy://{day}"], readable=["tide://oslo/bergen"])
    async with ClientGroup(ports) as group:
        assert await read(group, "tide://oslo/today") == "Oslo"
        assert await read(group, "tide://oslo/bergen") == "Bergen"
        with pytest.raises(RequestError, match="resource not found"):
            await group.read_resource("tide://oslo/tomorrow")


async def test_a_resource_without_a_matching_server_is_rejected(ports):
    async with ClientGroup(ports) as group:
        with pytest.raises(LookupError, match=r"a template that begins like it$"):
            await group.read_resource("buoy://9")


async def test_the_error_for_an_unlisted_resource_names_lost_servers(ports):
    async with ClientGroup(ports) as group:
        ports["oslo"].sessions[0].shut("closed")
        with pytest.raises(LookupError, match=r"begins like it; not connected: 'oslo'$"):
            await group.read_resource("buoy://oslo")


async def test_the_caller_chooses_among_several_servers_of_a_resource(ports):
    ports["bergen"] = port("Bergen", uris=["tide://oslo"])
    async with ClientGroup(ports) as group:
        with pytest.raises(
            ValueError, match=r"several servers list .* \['bergen', 'oslo'\]: choose one"
        ):
            await group.read_resource("tide://oslo")
        assert await read(group, "tide://oslo", server="bergen") == "Bergen"
        with pytest.raises(LookupError, match="no server 'cork'"):
            await group.read_resource("tide://oslo", server="cork")


async def test_with_a_named_server_no_other_is_asked(ports):
    ports["bergen"].answers["resources/list"] = None
    async with ClientGroup(ports) as group:
        assert await read(group, "tide://oslo", server="oslo") == "Oslo"


# Completion


@pytest.mark.parametrize(
    ("ref", "options", "who"),
    [
        ("oslo_plan", {}, "Oslo"),
        (t.PromptReference(name="bergen_plan"), {}, "Bergen"),
        ("tide://oslo/{day}", {}, "Oslo"),
        (t.ResourceReference(uri="tide://{day}/bergen"), {}, "Bergen"),
        ("tide://oslo/{day}", {"server": "oslo"}, "Oslo"),
    ],
)
async def test_an_argument_is_completed_by_its_own_server(ports, ref, options, who):
    async with ClientGroup(ports) as group:
        result = await group.complete(ref, "day", "to", **options)
        assert result.completion.values == [who, "to"]
        result = await group.complete(ref, "day", "to", context={"city": "A"}, **options)
        assert result.completion.values == [who, "to", "A"]


# Servers of this package


async def test_a_group_works_with_real_servers():
    def harbour(name):
        server = Server(name, version="1")

        @server.tool
        async def tide(day: str) -> str:
            return f"{name} {day}"

        @server.resource(f"tide://{name}/{{day}}")
        async def table(day: str) -> str:
            return f"table of {name} {day}"

        @server.prompt
        def plan(day: str) -> str:
            return f"plan {name} {day}"

        return server

    async with ClientGroup({name: harbour(name) for name in ("oslo", "bergen")}) as group:
        assert [tool.name for tool in await group.list_tools()] == ["oslo_tide", "bergen_tide"]
        assert text_of_result(await group.call_tool("oslo_tide", {"day": "today"})) == "oslo today"
        assert await read(group, "tide://bergen/today") == "table of bergen today"
        prompt = await group.get_prompt("bergen_plan", {"day": "today"})
        assert prompt.messages[0].content.text == "plan bergen today"


# Added, removed and lost servers


DEAF = "import time; time.sleep(600)"


def talkative(name):
    """A server with a tool that talks about everything, and one that does not answer."""
    bench = Bench(protocol_versions=OLD)

    @bench.tool
    async def talk(handling):
        message = t.LoggingMessageParams(level="info", data=name)
        await handling.notify("notifications/message", message)
        updated = t.ResourceUpdatedParams(uri=f"tide://{name}")
        await handling.notify("notifications/resources/updated", updated)
        await handling.notify("notifications/tools/list_changed")
        await handling.progress(1)
        roots = await handling.ask("roots/list")
        asked = t.CreateMessageParams(messages=[], max_tokens=9)
        sampled = await handling.ask("sampling/createMessage", asked)
        return text(f"{roots.roots[0].uri} {sampled.content.text}")

    @bench.tool
    async def forever(handling):
        await trio.sleep_forever()

    return bench


class Held:
    """A server object that serves when it is released."""

    def __init__(self):
        self.begun, self.release = trio.Event(), trio.Event()

    async def serve(self, channel):
        self.begun.set()
        await self.release.wait()
        await Bench().serve(channel)


@attrs.define(eq=False)
class SlowToClose:
    """A channel that takes a second to close."""

    channel: object
    is_closed: bool = False

    def __getattr__(self, name):
        return getattr(self.channel, name)

    async def aclose(self):
        await trio.sleep(1)
        await self.channel.aclose()
        self.is_closed = True


async def test_servers_are_connected_at_the_same_time_and_closed_with_the_block():
    tasks = running_tasks()
    held = {name: Held() for name in "ab"}
    group = ClientGroup(held)
    assert repr(group) == "<ClientGroup of nothing, not open>"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.__aenter__)
        for server in held.values():
            await server.begun.wait()
        assert await group.list_tools() == []
        for server in held.values():
            server.release.set()
    assert repr(group) == "<ClientGroup of a, b, open>"
    assert all(client.is_open for client in group.clients.values())
    assert list(group.clients) == ["a", "b"]
    await group.aclose()
    await group.aclose()
    assert not any(client.is_open for client in group.clients.values())
    assert running_tasks() == tasks


async def test_a_server_that_cannot_be_reached_is_named_and_the_others_are_closed(program):
    tasks, descriptors = running_tasks(), open_descriptors()
    servers = {"good": program, "bad": ["no-such-program-anywhere"], "ours": Bench()}
    with pytest.raises(ConnectionLost, match="not found on PATH") as caught:
        await ClientGroup(servers).__aenter__()
    assert caught.value.__notes__ == ["this was the server 'bad'"]
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


async def test_an_invalid_target_opens_no_server():
    tasks = running_tasks()
    with pytest.raises(TypeError, match="a client connects to"):
        await ClientGroup({"good": Bench(), "bad": 7}).__aenter__()
    assert running_tasks() == tasks


async def test_an_exception_of_the_block_is_raised_without_a_group():
    with pytest.raises(KeyError) as caught:
        async with ClientGroup({"a": Bench(), "b": Bench()}):
            raise KeyError("mine")
    assert caught.value.args == ("mine",)


@pytest.mark.slow
@pytest.mark.real_time
async def test_a_callers_timeout_is_kept_while_the_group_connects(program):
    tasks, descriptors = running_tasks(), open_descriptors()
    group = ClientGroup(
        {"deaf": python(DEAF), "good": program},
        limits=Limits(shutdown=ShutdownLimits(close_seconds=1.5)),
    )
    with trio.move_on_after(0.5) as scope:
        await group.__aenter__()
    assert scope.cancelled_caught
    assert trio.current_time() < scope.deadline + 1
    await group.aclose()
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


async def test_a_group_that_was_cancelled_while_it_opened_is_closed(autojump_clock):
    group = ClientGroup({"held": Held()})
    with trio.move_on_after(0.05):
        await group.__aenter__()
    assert repr(group) == "<ClientGroup of held, not open>"
    with pytest.raises(ConnectionLost, match="the group was closed"):
        await group.add("b", Bench())
    await group.aclose()


@pytest.mark.slow
@pytest.mark.real_time
async def test_closing_waits_for_the_server_of_a_cancelled_addition(program):
    tasks, descriptors = running_tasks(), open_descriptors()
    async with ClientGroup(
        {"good": program}, limits=Limits(shutdown=ShutdownLimits(close_seconds=0.5))
    ) as group:
        with trio.move_on_after(0.3) as scope:
            await group.add("deaf", python(DEAF))
        assert scope.cancelled_caught
        assert list(group.clients) == ["good"]
    assert running_tasks() == tasks
    assert open_descriptors() == descriptors


async def test_closing_waits_for_a_server_that_is_being_removed(autojump_clock):
    channel, theirs = memory_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(Bench().serve, theirs)
        slow = SlowToClose(channel)
        async with ClientGroup({"a": slow}) as group:
            nursery.start_soon(group.remove, "a")
            await trio.testing.wait_all_tasks_blocked()
            assert not group.clients
            assert not slow.is_closed
        assert slow.is_closed


class Interrupting:
    """A server object that serves until its channel ends, with Ctrl-C before or after."""

    def __init__(self, when):
        self.when = when

    async def serve(self, channel):
        if self.when == "opening":
            signal.raise_signal(signal.SIGINT)
            await trio.sleep_forever()
        await Bench().serve(channel)
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("when", ["opening", "closing"])
def test_an_interrupt_is_raised_without_a_group(when):
    async def main():
        async with ClientGroup({"a": Bench(), "b": Interrupting(when)}):
            pass

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)


async def test_a_group_opens_once():
    async with ClientGroup({"a": Bench()}) as group:
        with pytest.raises(RuntimeError, match="opens once"):
            await group.__aenter__()
        await group["a"].ping()


async def test_a_killed_server_fails_its_own_calls_and_the_others_go_on(program):
    async with ClientGroup({"a": program, "b": program}) as group:
        pid = int(text_of_result(await group.call_tool("a_pid")))
        async with call_that_is_lost(group.call_tool, "a_hang", match="exited with status 3"):
            with pytest.raises(ConnectionLost):
                await group.call_tool("a_die")
        assert not is_alive(pid)
        assert is_alive(int(text_of_result(await group.call_tool("b_pid"))))


# Adding and removing


async def test_a_server_is_added_and_removed_while_the_group_is_open():
    async with ClientGroup({"a": Bench()}) as group:
        tasks = running_tasks()
        client = await group.add("b", Bench())
        assert group["b"] is client
        assert list(group.clients) == ["a", "b"]
        await group.remove("b")
        assert not client.is_open
        assert running_tasks() == tasks
        assert list(group.clients) == ["a"]


async def test_calls_in_flight_end_when_their_server_is_removed(autojump_clock):
    async with ClientGroup({"a": Bench(), "b": talkative("b")}) as group:
        async with call_that_is_lost(group.call_tool, "b_forever", match="closed on this side"):
            await group.remove("b")
        with pytest.raises(LookupError):
            await group.remove("b")
        with pytest.raises(LookupError):
            await group.call_tool("b_forever")
        await group["a"].ping()
        await group.add("b", Bench())
        assert list(group.clients) == ["a", "b"]


@pytest.mark.parametrize("name", ["", "a", "a_b"])
async def test_a_server_is_not_added_under_a_name_that_is_taken(name):
    async with ClientGroup({"a": Bench()}) as group:
        with pytest.raises(
            ValueError, match=r"must not be empty|already has a server 'a'|begin alike"
        ):
            await group.add(name, Bench())
        assert list(group.clients) == ["a"]


async def test_a_server_that_cannot_be_added_leaves_the_group_as_it_was():
    async with ClientGroup({"a": Bench()}) as group:
        with pytest.raises(ConnectionLost, match="not found on PATH"):
            await group.add("b", ["no-such-program-anywhere"])
        assert list(group.clients) == ["a"]
        await group["a"].ping()


async def test_a_server_may_be_removed_and_replaced_while_it_is_added():
    held = Held()
    async with ClientGroup({}) as group, trio.open_nursery() as nursery:

        async def add():
            with pytest.raises(ConnectionLost, match="closed on this side"):
                await group.add("b", held)

        nursery.start_soon(add)
        await held.begun.wait()
        nursery.start_soon(group.remove, "b")
        await trio.testing.wait_all_tasks_blocked()
        second = await group.add("b", Bench())
        held.release.set()
    assert group.clients == {"b": second}


CALLS = [
    lambda group: group.add("b", Bench()),
    lambda group: group.list_tools(),
    lambda group: group.call_tool("a_hello"),
    lambda group: group.read_resource("tide://a"),
    lambda group: group.read_resource("tide://a", server="a"),
]


@pytest.mark.parametrize("call", CALLS)
async def test_calls_of_an_unopened_group_are_rejected(call):
    with pytest.raises(LocalProtocolError, match="the group is not open"):
        await call(ClientGroup({"a": Bench()}))


@pytest.mark.parametrize("call", CALLS)
async def test_calls_of_a_group_that_was_closed_are_lost(call):
    async with ClientGroup({"a": Bench()}) as group:
        pass
    with pytest.raises(ConnectionLost, match="closed"):
        await call(group)


async def test_a_group_that_is_closed_while_it_adds_a_server_gives_up():
    held = Held()
    async with ClientGroup({}, limits=QUICK) as group, trio.open_nursery() as nursery:

        async def add():
            with pytest.raises(ConnectionLost, match="closed on this side"):
                await group.add("b", held)

        nursery.start_soon(add)
        await held.begun.wait()
        nursery.start_soon(group.aclose)
        await trio.testing.wait_all_tasks_blocked()
        held.release.set()


# Callbacks


async def test_callbacks_get_the_name_of_the_server():
    received = []

    def listen(name, value):
        received.append((name, value))

    async def sample(name, params, report):
        await report(1)
        return t.CreateMessageResult(
            role="assistant", content=t.TextContent(text=f"for {name}"), model="m"
        )

    options = dict.fromkeys(("progress", "log", "resource_updated", "list_changed"), listen)
    async with ClientGroup(
        {name: talkative(name) for name in ("a", "b")},
        sampling=sample,
        roots=lambda name: [f"file:///{name}"],
        **options,
    ) as group:
        assert text_of_result(await group.call_tool("a_talk")) == "file:///a for a"
        assert text_of_result(await group.call_tool("b_talk")) == "file:///b for b"
        await trio.testing.wait_all_tasks_blocked()
    assert {name for name, _ in received} == {"a", "b"}
    assert len(received) == 8
    assert ("b", "tools") in received
    assert ("a", t.ResourceUpdatedParams(uri="tide://a")) in received


async def test_a_callback_may_close_the_whole_group(autojump_clock):
    tasks = running_tasks()
    closed = trio.Event()

    async def log(_name, _params):
        try:
            await group.aclose()
        finally:
            closed.set()

    bench = Bench()

    @bench.tool
    async def speak(handling):
        message = t.LoggingMessageParams(level="info", data="x")
        await handling.notify("notifications/message", message)
        await trio.sleep_forever()

    group = ClientGroup({"a": bench, "b": Bench()}, log=log)
    async with group:
        with pytest.raises(ConnectionLost):
            await group.call_tool("a_speak")
        await closed.wait()
    assert running_tasks() == tasks


async def test_lines_of_stderr_carry_the_name_of_their_server(program):
    lines = []

    def listen(name, line):
        lines.append((name, line))

    servers = {
        "a": program,
        "ours": Bench(),
        "b": ServerConfig(command=program[0], args=program[1:]),
    }
    async with ClientGroup(servers, stderr=listen) as group:
        for name in "ab":
            with pytest.raises(ConnectionLost):
                await group.call_tool(f"{name}_die")
    assert sorted(lines) == [
        ("a", "has turned"),
        ("a", "the tide"),
        ("b", "has turned"),
        ("b", "the tide"),
    ]


async def test_a_channel_can_be_a_member_of_a_group(nursery):
    ours, theirs = memory_pair()
    nursery.start_soon(talkative("c").serve, theirs)
    async with ClientGroup({"c": ours}) as group:
        with pytest.raises(RequestError, match="internal error"):
            await group.call_tool("c_talk")


async def test_each_session_is_recorded_in_a_file_of_its_own(tmp_path):
    async with ClientGroup({"a": Bench(), "b": Bench()}, record=tmp_path) as group:
        await group["a"].ping()
    assert len(list(tmp_path.glob("*.mcprec.jsonl"))) == 2


# Configuration files of hosts


VARIABLES = {"HOME": "/home/ada", "EMPTY": "", "TOKEN": "s3cret"}

FULL = {
    "command": "npx",
    "args": ["-y", "server", "${HOME}/sea"],
    "env": {"TOKEN": "${TOKEN}", "MODE": "fast"},
    "cwd": "${env:HOME}",
    "type": "stdio",
    "autoApprove": ["tide"],
}


def read_one(entry, **options):
    return read_config({"mcpServers": {"it": entry}}, variables=VARIABLES, **options)["it"]


@pytest.mark.parametrize("group", ["mcpServers", "servers"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_a_file_of_a_host_is_read_in_its_order(tmp_path, group, bom):
    path = tmp_path / "mcp.json"
    servers = {"full": FULL, "bare": {"command": "true"}}
    path.write_bytes(bom + json.dumps({group: servers, "inputs": []}).encode())
    for source in (path, str(path)):
        read = read_config(source, variables=VARIABLES)
        assert list(read) == ["full", "bare"]
        assert read["bare"] == ServerConfig(command="true")
        assert read["full"] == ServerConfig(
            command="npx",
            args=["-y", "server", "/home/ada/sea"],
            env={"TOKEN": "s3cret", "MODE": "fast"},
            cwd="/home/ada",
        )


def test_a_remote_server_has_a_url_and_headers():
    entry = {
        "type": "http",
        "url": "https://${HOST:-example.org}/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN}"},
    }
    assert read_one(entry) == ServerConfig(
        url="https://example.org/mcp", headers={"Authorization": "Bearer s3cret"}
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$HOME {HOME} $$", "$HOME {HOME} $$"),
        ("${HOME}:${env:HOME}", "/home/ada:/home/ada"),
        ("${NONE:-fall back}", "fall back"),
        ("${env:NONE:-a:-b}", "a:-b"),
        ("${EMPTY:-fall back}", "fall back"),
        ("${NONE:-}", ""),
        ("${EMPTY}", ""),
    ],
)
def test_references_to_variables_are_replaced(text, value):
    assert read_one({"command": "true", "args": [text]}).args == [value]


def test_variables_are_those_of_the_environment_by_default(monkeypatch):
    monkeypatch.setenv("HARBOUR", "Bergen")
    read = read_config({"servers": {"it": {"command": "${HARBOUR}"}}})
    assert read["it"].command == "Bergen"


def test_the_type_decides_between_a_command_and_a_url():
    entry = {"command": "true", "url": "https://example.org", "env": {"A": "b"}}
    assert read_one({**entry, "type": "stdio"}) == ServerConfig(command="true", env={"A": "b"})
    assert read_one({**entry, "type": "sse"}).command is None


def test_null_members_are_ignored():
    entry = {"command": "true", "url": None, "cwd": None, "env": None, "type": None}
    assert read_one(entry) == ServerConfig(command="true")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        (7, "must be an object"),
        ({}, "command: missing"),
        ({"type": "http", "command": "true"}, "url: missing"),
        ({"type": "stdio", "url": "https://example.org"}, "command: missing"),
        ({"command": "true", "url": "x"}, "type: missing, although there are both"),
        ({"command": ["true"]}, "command: Expected `str | null`, got `array`"),
        ({"command": ""}, "command: Expected `str` of length >= 1"),
        ({"command": "true", "args": "-y"}, "args: Expected `array`, got `str`"),
        ({"command": "true", "args": ["-y", 8080]}, "args[1]: Expected `str`, got `int`"),
        ({"command": "true", "env": {"PORT": 8080}}, "env[...]: Expected `str`, got `int`"),
        ({"command": "true", "disabled": "yes"}, "disabled: Expected `bool`, got `str`"),
        ({"command": "${NONE}"}, "command: the variable NONE is not set"),
        ({"command": "true", "args": ["${env:NONE}"]}, "args: the variable NONE is not set"),
        ({"command": "true", "env": {"A": "${NONE}"}}, "env.A: the variable NONE is not set"),
        (
            {"env": {"A": "${NONE}"}, "cwd": "${NO}", "args": ["${NO}"], "command": "${NO}"},
            "env.A: the variable NONE is not set",  # the first in the file
        ),
        ({"command": "${input:key}"}, "command: ${input:key} is not a reference to a variable"),
    ],
)
def test_an_error_names_the_server_and_the_member_in_one_line(entry, complaint):
    with pytest.raises(ConfigError) as caught:
        read_one(entry)
    text = str(caught.value)
    assert text.startswith(f"the configuration: server 'it': {complaint}")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{", "Input data was truncated"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff"),
        (b"[]", "Expected `object`, got `array`"),
        (b"[" * 100_000, ""),
        (b"{}", "mcpServers: must be an object"),
        (b'{"servers": []}', "servers: must be an object"),
        (b'{"servers": {"it": {}}}', "server 'it': command: missing"),
        (
            b'{"servers": {"it": {"command": "true", "args": [%s]}}}' % (b"[" * 900 + b"]" * 900),
            "server 'it': args[0]: Expected `str`, got `array`",
        ),
    ],
)
def test_an_error_names_the_file_in_one_line(tmp_path, content, complaint):
    path = tmp_path / "mcp.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"{path}: {complaint}")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read_config(tmp_path / "mcp.json")


def test_the_repr_of_a_server_config_holds_no_secrets():
    config = read_one({"command": "true", "args": ["${TOKEN}"], "env": {"A": "${TOKEN}"}})
    assert repr(config) == "ServerConfig(command='true', cwd=None, disabled=False)"
    config = read_one({"url": "https://${TOKEN}", "headers": {"A": "${TOKEN}"}})
    assert "s3cret" not in repr(config)


# As a target


async def test_a_configured_command_gets_its_arguments_and_environment(
    program, tmp_path, monkeypatch
):
    monkeypatch.setenv("SECRET_TOKEN", "x")
    command, *args = program
    config = ServerConfig(command=command, args=args, env={"A": "1", "B": "2"}, cwd=str(tmp_path))
    async with Client(config, env={"B": "3"}) as client:
        variables = json.loads(text_of_result(await client.call_tool("variables")))
    assert (variables["A"], variables["B"]) == ("1", "3")
    assert "SECRET_TOKEN" not in variables


async def test_the_working_directory_of_a_configured_command_may_be_overridden(program, tmp_path):
    command, *args = program
    config = ServerConfig(command=command, args=args, cwd=str(tmp_path / "none"))
    async with Client(config, cwd=tmp_path):
        pass
    with pytest.raises(ConnectionLost, match="there is no working directory"):
        await Client(config).__aenter__()


async def test_a_remote_server_gets_its_configured_headers():
    headers = []

    async def respond(exchange):
        headers.append(exchange.request.header("authorization"))
        await exchange.answer(401, [])

    async with trio.open_nursery() as nursery:
        serve = partial(serve_native, respond, await trio.open_tcp_listeners(0, host="127.0.0.1"))
        (listener,) = await nursery.start(partial(serve, limits=DEFAULT_LIMITS))
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp?key=s3cret"
        config = ServerConfig(url=url, headers={"Authorization": "Bearer mine"})
        with pytest.raises(ConnectionLost, match="HTTP 401") as caught:
            await Client(config).__aenter__()
        nursery.cancel_scope.cancel()
    assert set(headers) == {"Bearer mine"}
    assert "s3cret" not in str(caught.value)


def test_a_disabled_server_needs_none_of_its_variables():
    entry = {"command": "${NOWHERE}", "disabled": True}
    found = read_config({"mcpServers": {"off": entry}}, variables={})
    assert found["off"].command == "${NOWHERE}"


async def test_a_group_skips_disabled_servers(program):
    command, *args = program
    entry = {"command": command, "args": args}
    source = {"mcpServers": {"on": entry, "off": {**entry, "disabled": True}}}
    async with ClientGroup.from_config(source, separator=".", name="me") as group:
        assert list(group.clients) == ["on"]
        assert group["on"].name == "me"
        assert int(text_of_result(await group.call_tool("on.pid")))
        await group.add("more", Bench())
