"""Groups: prefixed names, lists of several servers, and the server that a call goes to."""

import pytest
import trio
import trio.testing

from mcp_trio import ClientGroup, ConnectionLost, RequestError, RequestTimeout, Server, ToolError
from mcp_trio import types as t
from mcp_trio.errors import RESOURCE_NOT_FOUND, RemoteProtocolError
from tests.client.conftest import Bench, said, text

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
        return t.CompleteResult(completion=t.Completion(values=[name, params.argument.value]))

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
        assert said(await group.call_tool("bergen_tide")) == "Bergen"
        assert not group["oslo"].is_open


# Calls


async def test_a_prefix_chooses_the_server_of_a_tool_or_prompt(ports):
    async with ClientGroup(ports) as group:
        assert said(await group.call_tool("oslo_tide", {"hours": 3})) == "Oslo"
        prompt = await group.get_prompt("bergen_plan", {"day": "today"})
        assert prompt.description == "Bergen plan {'day': 'today'}"


async def test_the_separator_can_be_chosen_and_names_may_contain_it(ports):
    ports["new_york"] = port("New York")
    async with ClientGroup(ports, separator="__") as group:
        assert [tool.name for tool in await group.list_tools()][-1] == "new_york__tide"
        assert said(await group.call_tool("new_york__tide")) == "New York"


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
        assert said(await group.call_tool("oslo_tide", {"day": "today"})) == "oslo today"
        assert await read(group, "tide://bergen/today") == "table of bergen today"
        prompt = await group.get_prompt("bergen_plan", {"day": "today"})
        assert prompt.messages[0].content.text == "plan bergen today"
