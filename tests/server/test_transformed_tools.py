"""Transformed tools: other names, other arguments, fixed arguments and wrappers."""

import threading
from datetime import date
from typing import Annotated, Any

import msgspec
import pytest
import trio
from jsonschema import Draft202012Validator
from pydantic import Field

from mcp_trio import Context, Server, ThreadContext, ToolError, effect
from mcp_trio.recording import replay
from mcp_trio.tools import Argument, CallTool, Fixed
from tests.server.conftest import played_again

SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "limit": {"type": "integer"}, "unit": {}},
    "required": ["q", "unit"],
}


async def search(q: str, limit: int = 10, unit: str = "kg") -> str:
    """Find fish.

    Args:
        q: The words.
        unit: The unit.
    """
    return f"{q} {limit} {unit}"


CHANGES = {
    "q": Argument("query", description="A fish."),
    "limit": Argument(default=3),
    "unit": Fixed("t"),
}


@pytest.fixture
def server():
    server = Server("market")
    server.tool(title="Search", tags={"fish"}, meta={"example.com/a": 1}, structured=False)(search)
    return server


async def listed(asker):
    return {tool["name"]: tool for tool in (await asker.result("tools/list"))["tools"]}


@pytest.mark.requirement("TOOL-02", "TOOL-05")
async def test_a_transformed_tool_is_listed_with_exactly_its_own_arguments(server, serve):
    server.transform_tool("search", name="fish", description="Find a fish.", arguments=CHANGES)
    asker = await serve(server, protocol_version="2025-11-25")
    assert await listed(asker) == {
        "fish": {
            "name": "fish",
            "title": "Search",
            "description": "Find a fish.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "A fish."},
                    "limit": {"type": "integer", "default": 3},
                },
                "required": ["query"],
                "additionalProperties": False,
            },
            "_meta": {"fastmcp": {"tags": ["fish"]}, "example.com/a": 1},
        }
    }
    assert await asker.call("fish", query="cod") == "cod 3 t"
    assert await asker.call("fish", query="cod", limit=4) == "cod 4 t"


@pytest.mark.requirement("TOOL-31", "TOOL-38")
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"query": "cod", "unit": "t"}, "unit: unknown argument"),
        ({"query": "cod", "q": "cod"}, "q: unknown argument"),
        ({}, "query: missing"),
        ({"query": 3}, "query: expected str, got int"),
    ],
)
async def test_what_the_list_does_not_have_is_an_error_of_the_arguments(
    server, serve, arguments, text
):
    server.transform_tool("search", arguments=CHANGES)
    asker = await serve(server, protocol_version="2025-11-25")
    failure = await asker.failure("search", arguments)
    assert failure == f"invalid arguments: {text}"


@pytest.mark.requirement("TOOL-32")
async def test_a_renamed_tool_has_its_old_name_no_more(server, serve):
    server.transform_tool(search, name="fish")
    asker = await serve(server)
    assert list(await listed(asker)) == ["fish"]
    assert await asker.error("tools/call", {"name": "search"}) == {
        "code": -32602,
        "message": "unknown tool: search",
    }


async def test_a_tool_may_be_kept_beside_the_transformed_one(server, serve):
    server.transform_tool("search", name="fish", arguments={"q": Fixed("cod")}, keep=True)
    asker = await serve(server)
    assert list(await listed(asker)) == ["search", "fish"]
    assert await asker.call("search", q="eel") == "eel 10 kg"
    assert await asker.call("fish") == "cod 10 kg"


async def test_a_transformed_tool_keeps_all_that_is_not_changed(server, serve):
    server.transform_tool("search")
    server.transform_tool("search", arguments={"limit": Argument("most")})
    asker = await serve(server, protocol_version="2025-11-25")
    (tool,) = (await listed(asker)).values()
    assert (tool["title"], tool["description"]) == ("Search", "Find fish.")
    properties = tool["inputSchema"]["properties"]
    assert properties["q"]["description"] == "The words."
    assert properties["most"] == {"type": "integer", "default": 10}
    assert await asker.call("search", q="cod", most=2) == "cod 2 kg"


async def test_other_members_of_the_entry_can_be_changed(server, serve):
    server.transform_tool(
        "search",
        title="Fish",
        tags={"sea"},
        meta={"example.com/b": 2},
        annotations={"readOnlyHint": True},
    )
    asker = await serve(server, protocol_version="2025-11-25")
    (tool,) = (await listed(asker)).values()
    assert tool["title"] == "Fish"
    assert tool["annotations"] == {"readOnlyHint": True}
    assert tool["_meta"] == {"fastmcp": {"tags": ["sea"]}, "example.com/b": 2}


@pytest.mark.requirement("TOOL-35")
async def test_a_change_of_a_tool_is_one_change_of_the_list(server, serve):
    asker = await serve(server)
    server.transform_tool("search", name="fish")
    assert (await asker.next_message())["method"] == "notifications/tools/list_changed"
    await asker.result("ping")
    assert asker.received == []


async def test_a_new_description_precedes_every_other(server, serve):
    @server.tool
    async def weigh(
        a: Annotated[int, "A text."] = 1,
        b: Annotated[int, msgspec.Meta(description="By Meta.")] = 1,
        c: Annotated[int, Field(description="By Field.", ge=1)] = 1,
    ) -> None:
        pass

    change = Argument(description="New.")
    server.transform_tool("weigh", arguments=dict.fromkeys("abc", change))
    tool = (await listed(await serve(server)))["weigh"]
    descriptions = [each["description"] for each in tool["inputSchema"]["properties"].values()]
    assert descriptions == ["New."] * 3
    assert tool["inputSchema"]["properties"]["c"]["minimum"] == 1


# Each kind of handler.


class Scale:
    async def __call__(self, q: str, limit: int = 10, unit: str = "kg", *, ctx: Context) -> str:
        return f"{q} {limit} {unit}" if ctx.request_id else ""


def in_thread(q: str, limit: int = 10, unit: str = "kg", *, ctx: ThreadContext) -> str:
    assert threading.current_thread() is not threading.main_thread()
    ctx.uuid4()
    return f"{q} {limit} {unit}"


def in_loop(q: str, limit: int = 10, unit: str = "kg") -> str:
    return f"{q} {limit} {unit}"


async def taking_all(arguments: dict[str, Any]) -> str:
    return "{q} {limit} {unit}".format(**({"limit": 10} | arguments))


@pytest.mark.parametrize(
    ("handler", "options"),
    [
        (search, {}),
        (search, {"resumable": True}),
        (Scale(), {}),
        (in_thread, {}),
        (in_loop, {"thread": False}),
        (taking_all, {"input_schema": SCHEMA}),
    ],
)
@pytest.mark.parametrize("wraps", [False, True])
async def test_a_tool_of_each_kind_can_be_transformed_and_replays(record, handler, options, wraps):
    server = Server("market")
    server.tool(name="search", **options)(handler)

    async def louder(call: CallTool, arguments: dict[str, Any], ctx: Context) -> str:
        await ctx.info("asked")
        found = await call({**arguments, "query": arguments["query"].upper()})
        return f"{found}!"

    server.transform_tool("search", name="fish", arguments=CHANGES, wrap=louder if wraps else None)
    asker, recorded = await record(server)
    schema = (await listed(asker))["fish"]["inputSchema"]
    assert list(schema["properties"]) == ["query", "limit"]
    assert schema["required"] == ["query"]
    Draft202012Validator.check_schema(schema)
    assert await asker.call("fish", query="cod") == ("COD 3 t!" if wraps else "cod 3 t")
    assert await asker.call("fish", query="eel", limit=1) == ("EEL 1 t!" if wraps else "eel 1 t")
    assert (await played_again(asker, recorded, server)).requests == 3


@pytest.mark.parametrize("closed", [False, True])
async def test_fixed_and_renamed_arguments_of_a_given_schema_are_rejected(serve, closed):
    server = Server("market")
    schema = SCHEMA | ({"additionalProperties": False} if closed else {})
    server.tool(name="search", input_schema=schema)(taking_all)
    server.transform_tool("search", arguments=CHANGES)
    asker = await serve(server, protocol_version="2025-11-25")
    for name in "q", "unit":
        failure = await asker.failure("search", {"query": "cod", name: "x"})
        assert failure.startswith("invalid arguments: ")
        assert name in failure
    assert "'query' is a required property" in await asker.failure("search", {})


# Wrappers.


async def test_a_wrapper_may_give_other_arguments_and_a_fixed_one(server, serve):
    async def wrap(call: CallTool, arguments: dict[str, Any]) -> str:
        assert arguments == {"query": "cod", "limit": 3}
        return await call({"query": "eel", "unit": "g"})

    server.transform_tool("search", arguments=CHANGES, wrap=wrap)
    assert await (await serve(server)).call("search", query="cod") == "eel 3 g"


async def test_a_wrapper_may_answer_without_the_tool(server, serve):
    async def refuse(call: CallTool, arguments: dict[str, Any]) -> str:
        raise ToolError("not today")

    server.transform_tool("search", wrap=refuse)
    assert await (await serve(server)).failure("search", {"q": "cod"}) == "not today"


async def test_a_tool_error_of_the_tool_reaches_the_wrapper(server, serve):
    @server.tool
    async def weigh() -> None:
        raise ToolError("too heavy")

    async def wrap(call: CallTool, arguments: dict[str, Any]) -> str:
        try:
            return await call(arguments)
        except ToolError as error:
            return f"caught: {error}"

    server.transform_tool("weigh", wrap=wrap)
    assert await (await serve(server)).call("weigh") == "caught: too heavy"


async def test_a_wrong_argument_of_a_wrapper_is_an_error_of_the_server(server, serve, caplog):
    async def wrap(call: CallTool, arguments: dict[str, Any]) -> str:
        return await call({**arguments, "q": "eel"})

    server.transform_tool("search", arguments=CHANGES, wrap=wrap)
    failure = await (await serve(server)).failure("search", {"query": "cod"})
    assert failure == "internal error in search"
    assert "the argument 'q' has the name 'query' here" in caplog.text


async def test_a_missing_argument_of_a_wrapper_has_its_new_name(server, serve, caplog):
    async def wrap(call: CallTool, _arguments: dict[str, Any]) -> str:
        return await call({"limit": 1})

    server.transform_tool("search", arguments=CHANGES, wrap=wrap)
    assert await (await serve(server)).failure("search", {"query": "cod"})
    assert "the argument 'query' is missing" in caplog.text


async def test_the_annotation_of_a_wrapper_gives_the_output_schema(serve):
    server = Server("market")

    @server.tool
    async def weigh(q: str) -> dict[str, int]:
        return {q: 3}

    async def total(call, arguments) -> int:
        return sum((await call(arguments)).values())

    async def same(call, arguments):
        return await call(arguments)

    server.transform_tool("weigh", name="total", wrap=total, keep=True)
    server.transform_tool("weigh", name="same", wrap=same, keep=True)
    asker = await serve(server, protocol_version="2026-07-28")
    tools = await listed(asker)
    assert tools["total"]["outputSchema"] == {"type": "integer"}
    assert tools["same"]["outputSchema"] == tools["weigh"]["outputSchema"]
    for name, content in ("total", 3), ("same", {"cod": 3}):
        params = {"name": name, "arguments": {"q": "cod"}}
        result = await asker.result("tools/call", params)
        assert result["structuredContent"] == content


async def test_transformed_tools_can_be_transformed_and_wrapped_again(server, serve):
    def adding(text: str):
        async def wrap(call: CallTool, arguments: dict[str, Any]) -> str:
            return f"{text}({await call(arguments)})"

        return wrap

    server.transform_tool("search", arguments=CHANGES, wrap=adding("a"))
    change = {"query": Argument(default="cod"), "limit": Fixed(1)}
    server.transform_tool("search", name="fish", arguments=change, wrap=adding("b"))
    asker = await serve(server)
    assert list((await listed(asker))["fish"]["inputSchema"]["properties"]) == ["query"]
    assert await asker.call("fish") == "b(a(cod 1 t))"


async def test_a_time_limit_stays_and_names_the_transformed_tool(serve, autojump_clock):
    server = Server("market")

    @server.tool(timeout=0.5)
    async def slow() -> None:
        await trio.sleep_forever()

    server.transform_tool("slow", name="slower")
    failure = await (await serve(server)).failure("slower")
    assert failure == "'slower' timed out: it did not finish within 0.5 s"


async def test_a_fixed_list_is_not_shared_by_calls(serve):
    server = Server("market")

    @server.tool
    async def weigh(q: list[str], seen: list[str]) -> list[str]:
        seen += q
        return seen

    server.transform_tool("weigh", arguments={"seen": Fixed([]), "q": Argument(default=["cod"])})
    asker = await serve(server)
    assert [await asker.call("weigh") for _ in range(2)] == ['["cod"]'] * 2


async def test_a_wrapper_uses_effects_which_a_replay_repeats(server, record):
    prices = iter([3, 4, 5])

    @effect
    def price() -> int:
        return next(prices)

    async def wrap(call: CallTool, arguments: dict[str, Any]) -> str:
        return f"{await call(arguments)} {price()}"

    server.transform_tool("search", wrap=wrap)
    asker, recorded = await record(server)
    assert await asker.call("search", q="cod") == "cod 10 kg 3"
    await asker.wire.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert (await trio.to_thread.run_sync(replay, recorded.path, server)).requests == 1
    assert next(prices) == 4


async def test_a_resumable_tool_stays_resumable_with_its_wrapper(chain):
    """Each round reaches another instance, on which the wrapper and the tool run again."""

    def register(server):
        @server.tool(name="book", resumable=True)
        async def book(boat: str, ctx: Context) -> str:
            day = await ctx.elicit("When?", str)
            return f"{boat} {day.data}"

        async def wrap(call: CallTool, arguments: dict[str, Any], ctx: Context) -> str:
            crew = await ctx.elicit("With whom?", str)
            return f"{await call(arguments)} {crew.data}"

        server.transform_tool("book", name="it", arguments={"boat": Argument("ship")}, wrap=wrap)

    def answer(request):
        value = request["params"]["message"].lower()
        return {"action": "accept", "content": {"value": value}}

    result, asked = await chain(register, ship="Fram").finish(answer)
    assert len(asked) == 2
    assert result["content"] == [{"type": "text", "text": "Fram when? with whom?"}]


# Invalid changes, which are reported where the tool is transformed.


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"arguments": {"limt": Fixed(1)}}, ValueError, "no argument 'limt'; did you mean 'limit'"),
        ({"arguments": {"ctx": Fixed(1)}}, ValueError, "'search' has no argument 'ctx'"),
        (
            {"arguments": {"q": Argument("limit")}},
            ValueError,
            "two arguments of 'search' would have the name 'limit'",
        ),
        ({"arguments": {"q": Argument("max-q")}}, ValueError, "'max-q' cannot be the name"),
        (
            {"arguments": {"limit": Fixed("many")}},
            ValueError,
            "'many' cannot be the argument 'limit' of 'search': Expected `int`, got `str`",
        ),
        (
            {"arguments": {"limit": Argument(default=1.5)}},
            ValueError,
            "1.5 cannot be the argument 'limit'",
        ),
        ({"name": "fi sh"}, ValueError, "'fi sh' is not a valid name"),
        ({"name": "other"}, ValueError, "'other' is registered already"),
        ({"keep": True}, ValueError, "'search' is registered already"),
        ({"tags": "fish"}, TypeError, "tags are a set of strings"),
        ({"wrap": in_loop}, TypeError, "'in_loop' has to be `async def`"),
        ({"wrap": search}, TypeError, "parameter 'unit' receives no value"),
    ],
)
def test_an_invalid_change_is_reported_where_the_tool_is_transformed(server, options, error, text):
    async def search(q: str, limit: int, unit: str) -> str:
        return ""

    server.tool(name="other")(in_loop)
    if options.get("wrap") is not None and options["wrap"] is not in_loop:
        options = {"wrap": search}
    with pytest.raises(error, match=text.replace("(", r"\(")):
        server.transform_tool("search", **options)
    assert list(server._registry.tools) == ["search", "other"]


def test_a_name_that_is_no_string_is_rejected():
    with pytest.raises(TypeError, match="name=5 has to be a string"):
        Argument(5)


async def test_a_value_of_json_is_read_as_that_of_a_call_would_be(serve):
    server = Server("harbour")

    @server.tool
    async def tides(day: date, height: float = 1.0) -> str:
        return f"{day:%d %B} {height}"

    server.transform_tool(
        "tides", arguments={"day": Argument(default="2026-11-30"), "height": Fixed(2)}
    )
    asker = await serve(server)
    assert await asker.call("tides") == "30 November 2.0"


def test_a_tool_that_is_not_registered_cannot_be_transformed(server):
    with pytest.raises(LookupError, match="no tool is registered for 'serch'"):
        server.transform_tool("serch")
    server.tool(name="again")(search)
    with pytest.raises(LookupError, match="more than one tool is registered for <function"):
        server.transform_tool(search)


def test_arguments_of_a_schema_with_other_keywords_cannot_be_changed():
    server = Server("market")
    schema = SCHEMA | {"dependentRequired": {"q": ["unit"]}}
    server.tool(name="search", input_schema=schema)(taking_all)
    server.transform_tool("search", name="fish")
    with pytest.raises(ValueError, match="its input schema has 'dependentRequired'"):
        server.transform_tool("fish", arguments={"q": Fixed("cod")})


@pytest.mark.requirement("HDR-08")
def test_a_renamed_argument_is_repeated_in_its_header():
    server = Server("market")
    region = {"type": "string", "x-mcp-header": "Region"}
    schema = {"type": "object", "properties": {"place": region, "depth": {}}}
    server.tool(name="tide", input_schema=schema)(taking_all)
    server.transform_tool("tide", arguments={"place": Argument("region"), "depth": Fixed(1)})
    assert server._sessions.param_header_paths("tide") == {"Region": ("region",)}


@pytest.mark.requirement("TOOL-32", "TOOL-35")
@pytest.mark.parametrize("prefix", ["m", None])
async def test_a_hidden_tool_stays_hidden_under_its_new_name(server, serve, prefix):
    outer = Server("outer")
    outer.mount(server, prefix=prefix)
    name = "m_{}".format if prefix else str
    server.disable("search")
    server.transform_tool("search", name="fish", arguments=CHANGES)
    asker = await serve(server)
    assert await listed(asker) == {}
    assert (await asker.error("tools/call", {"name": "fish"}))["message"] == "unknown tool: fish"
    server.enable("fish")
    assert await asker.call("fish", query="cod") == "cod 3 t"

    outer.disable(name("fish"))
    server.transform_tool("fish", name="find")
    asker = await serve(outer)
    assert await listed(asker) == {}
    outer.enable(name("find"))
    assert await asker.call(name("find"), query="cod") == "cod 3 t"
    server.tool(name="fish")(search)  # the decision about the former name has left with the tool
    assert {*await listed(asker)} == {name("find"), name("fish")}


async def test_a_hidden_tool_that_is_kept_does_not_hide_the_transformed_one(server, serve):
    server.disable("search")
    server.transform_tool("search", name="fish", arguments=CHANGES, keep=True)
    assert {*await listed(await serve(server))} == {"fish"}
