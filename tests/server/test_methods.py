"""Handlers for methods by name, and servers without any decorator."""

import enum
from pathlib import Path

import attrs
import msgspec
import pytest
import trio.testing

from mcp_trio import Context, RequestError, Server, ThreadContext, ToolError, types
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS


class Search(types.Params, kw_only=True):
    text: str
    limit: int = 3


@attrs.define
class Found:
    names: list[str]
    where: Path


# Methods outside the protocol.


async def test_a_new_method_is_handled_with_typed_params_and_a_context(server, serve):
    @server.method("acme/search")
    async def search(params: Search, ctx: Context) -> Found:
        await ctx.report_progress(1)
        return Found([params.text] * params.limit, Path("pier"))

    @server.method("acme/count")
    def count(ctx: ThreadContext, params: dict) -> dict:
        return {"count": len(params), "method": ctx.method, "set": {2, 1}}

    asker = await serve(server)
    params = {"text": "x", "limit": 2, "_meta": {"progressToken": "t"}}
    found = await asker.result("acme/search", params)
    assert found == {"names": ["x", "x"], "where": "pier"}
    assert [message["params"]["progressToken"] for message in asker.received] == ["t"]
    assert await asker.result("acme/count", {"a": 1}) == {
        "count": 1,
        "method": "acme/count",
        "set": [1, 2],
    }


async def test_progress_works_with_params_of_any_type(server, serve):
    class Bare(msgspec.Struct):
        text: str

    @server.method("acme/bare")
    async def bare(params: Bare, ctx: Context) -> None:
        await ctx.report_progress(1)

    asker = await serve(server)
    params = {"text": "x", "_meta": {"progressToken": 7}}
    assert await asker.result("acme/bare", params) == {}
    assert asker.received[0]["params"] == {"progressToken": 7, "progress": 1}
    params["_meta"]["progressToken"] = 1.5
    assert (await asker.error("acme/bare", params))["code"] == -32602


async def test_a_handler_may_have_no_parameters(server, serve):
    @server.method("acme/nothing", thread=False)
    def nothing():
        pass

    @server.method("acme/anything")
    async def anything(params):
        return params

    asker = await serve(server)
    assert await asker.result("acme/nothing", {"any": "thing"}) == {}
    assert await asker.result("acme/anything", {"any": "thing"}) == {"any": "thing"}
    assert await asker.result("acme/anything") == {}


async def test_invalid_params_are_reported_in_one_line(server, serve):
    @server.method("acme/search")
    async def search(params: Search):
        raise AssertionError

    asker = await serve(server)
    for params in ({}, {"text": 3}, {"text": "x", "limit": "y"}, None):
        error = await asker.error("acme/search", params)
        assert error["code"] == -32602
        assert error["message"].startswith("invalid params: ")
        assert "\n" not in error["message"]


@pytest.mark.parametrize("value", [3, "x", [1], object()])
async def test_a_return_value_that_is_no_object_is_an_internal_error(server, serve, value, caplog):
    @server.method("acme/odd")
    async def odd():
        return value

    asker = await serve(server)
    assert (await asker.error("acme/odd"))["message"] == "internal error"
    assert "in the value that 'acme/odd' returned" in caplog.text


async def test_a_handler_may_raise_a_request_error(server, serve):
    @server.method("acme/no")
    async def no():
        raise RequestError(42, "no", {"why": "tide"})

    asker = await serve(server)
    assert await asker.error("acme/no") == {"code": 42, "message": "no", "data": {"why": "tide"}}


async def test_a_method_may_be_registered_while_a_session_is_open(server, serve):
    asker = await serve(server)
    assert (await asker.error("acme/late"))["code"] == -32601
    server.method("acme/late")(lambda: {"late": True})
    assert await asker.result("acme/late") == {"late": True}
    server.method("acme/late")(lambda: {"late": False})
    assert await asker.result("acme/late") == {"late": False}


# Methods of the protocol.


async def test_a_built_in_method_is_replaced_and_its_capability_declared(server, serve):
    @server.method("tools/list")
    async def list_tools(params: types.PaginatedParams) -> types.ListToolsResult:
        tool = types.Tool(name=f"after {params.cursor}", input_schema={"type": "object"})
        return types.ListToolsResult(tools=[tool])

    @server.method("tools/call")
    async def call_tool(params: dict, ctx: Context) -> dict:
        return {"content": [], "called": params["name"], "by": ctx.client_info.name}

    asker = await serve(server)
    assert asker.hello["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}
    listed = await asker.result("tools/list", {"cursor": "x"})
    assert listed["tools"][0]["name"] == "after x"
    called = await asker.result("tools/call", {"name": "n"})
    assert called == {"content": [], "called": "n", "by": "wire peer"}


async def test_an_unannotated_handler_gets_the_params_of_the_specification(server, serve):
    seen = []

    @server.method("logging/setLevel")
    async def set_level(params) -> None:
        seen.append(params.level)

    asker = await serve(server)
    assert await asker.result("logging/setLevel", {"level": "error"}) == {}
    assert (await asker.error("logging/setLevel", {"level": "loud"}))["code"] == -32602
    assert seen == ["error"]


async def test_a_server_without_decorators_serves(serve):
    async def list_tools(params: types.PaginatedParams) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[])

    server = Server(
        "bare",
        capabilities=types.ServerCapabilities(tools=types.ToolsCapability()),
        methods={"tools/list": list_tools},
    )
    asker = await serve(server)
    assert asker.hello["capabilities"] == {"tools": {}}
    assert await asker.result("tools/list") == {"tools": []}


# Notifications.


async def test_notifications_are_handled_in_order(server, serve):
    received = []

    @server.method("notifications/acme/moored")
    async def moored(params: Search) -> None:
        received.append(params.text)

    @server.method("notifications/roots/list_changed", thread=False)
    def roots_changed() -> None:
        received.append("roots")

    @server.method("notifications/acme/slow")
    def slow(params: dict) -> None:
        received.append(params)

    asker = await serve(server, capabilities={"roots": {"listChanged": True}})
    await asker.wire.send_notification("notifications/acme/moored", {"text": "one"})
    await asker.wire.send_notification("notifications/acme/moored", {"text": 2})
    await asker.wire.send_notification("notifications/acme/slow", {"n": 3})
    await asker.wire.send_notification("notifications/roots/list_changed")
    await asker.wire.send_notification("notifications/acme/unknown")
    while len(received) < 3:
        await trio.testing.wait_all_tasks_blocked(0.01)
    assert received == ["one", {"n": 3}, "roots"]
    assert await asker.wire.receive_available() == []


async def test_an_error_of_a_notifications_handler_is_logged_and_the_next_one_is_handled(
    server, serve, caplog
):
    received = []

    @server.method("notifications/acme/odd")
    async def odd(params: dict) -> None:
        received.append(params)
        raise OSError("aground")

    asker = await serve(server)
    for number in range(2):
        await asker.wire.send_notification("notifications/acme/odd", {"n": number})
    await trio.testing.wait_all_tasks_blocked()
    assert received == [{"n": 0}, {"n": 1}]
    assert caplog.text.count("OSError: aground") == 1  # the second is counted, not written


# Rejected registrations.


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("initialize", "is handled by mcp_trio itself"),
        ("ping", "is handled by mcp_trio itself"),
        ("notifications/cancelled", "is handled by mcp_trio itself"),
        ("sampling/createMessage", "a client does not send sampling/createMessage"),
        ("notifications/message", "a client does not send notifications/message"),
    ],
)
def test_a_method_that_no_handler_can_receive_is_rejected(server, name, text):
    with pytest.raises(ValueError, match=text):
        server.method(name)
    with pytest.raises(ValueError, match=text):
        Server("bare", methods={name: lambda: None})


def test_a_handler_of_a_notification_cannot_take_a_context(server):
    with pytest.raises(TypeError, match="its handler gets no context"):

        @server.method("notifications/acme/x")
        async def x(params: dict, ctx: Context):
            pass


def test_params_of_a_type_that_cannot_be_decoded_are_rejected(server):
    class Odd(enum.Enum):
        A = object()

    with pytest.raises(TypeError, match=r"Odd.* is not supported"):

        @server.method("acme/x")
        async def x(params: Odd):
            pass


def test_a_second_parameter_cannot_be_filled_unless_it_has_a_default(server):
    @server.method("acme/ok")
    async def ok(params: dict, more: int = 3):
        pass

    with pytest.raises(TypeError, match="parameter 'more' receives no value"):

        @server.method("acme/x")
        async def x(params: dict, more: int):
            pass


# Handlers that ask a client for a capability which it did not declare.


INTERNAL_ERROR, MISSING_CAPABILITY = -32603, -32021
STATELESS = "2026-07-28"
LEGACY = [name for name in PROTOCOL_VERSIONS if name != STATELESS]
TEXT = "the client did not announce roots"


@pytest.fixture
def asking(server):
    """A server of which everything asks for roots."""

    @server.tool
    async def tool(ctx: Context) -> list:
        return await ctx.list_roots()

    @server.tool
    async def nested(ctx: Context) -> list:
        try:
            return await ctx.list_roots()
        except Exception as error:
            raise ExceptionGroup("in a nursery", [error]) from None

    @server.tool
    async def wraps(ctx: Context) -> list:
        try:
            return await ctx.list_roots()
        except Exception as error:
            raise ToolError("no roots") from error

    @server.tool
    def blocking(ctx: ThreadContext) -> list:
        return ctx.list_roots()

    @server.prompt
    async def prompt(ctx: Context) -> str:
        return str(await ctx.list_roots())

    @server.resource("harbour://roots")
    async def resource(ctx: Context) -> str:
        return str(await ctx.list_roots())

    return server


@pytest.mark.parametrize("tool", ["tool", "nested", "blocking"])
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_a_legacy_tool_result_names_the_missing_capability(
    asking, serve, protocol_version, tool, caplog
):
    asker = await serve(asking, protocol_version=protocol_version)
    result = await asker.result("tools/call", {"name": tool})
    assert result["isError"]
    assert [each["text"] for each in result["content"]] == [TEXT]
    assert not caplog.records


@pytest.mark.parametrize(
    "asked",
    [("prompts/get", {"name": "prompt"}), ("resources/read", {"uri": "harbour://roots"})],
    ids=["prompt", "resource"],
)
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_other_legacy_methods_respond_with_an_error_for_a_missing_capability(
    asking, serve, protocol_version, asked, caplog
):
    asker = await serve(asking, protocol_version=protocol_version)
    error = await asker.error(*asked)
    assert (error["code"], error["message"]) == (INTERNAL_ERROR, TEXT)
    assert not caplog.records


@pytest.mark.requirement("ERR-14")
@pytest.mark.parametrize("tool", ["tool", "nested", "blocking"])
async def test_a_stateless_client_gets_the_error_for_a_missing_capability(asking, serve, tool):
    asker = await serve(asking, protocol_version=STATELESS)
    error = await asker.error("tools/call", {"name": tool})
    assert (error["code"], error["message"]) == (MISSING_CAPABILITY, TEXT)
    assert error["data"] == {"requiredCapabilities": {"roots": {}}}


@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_handler_may_replace_the_error_for_a_missing_capability(
    asking, serve, protocol_version
):
    asker = await serve(asking, protocol_version=protocol_version)
    result = await asker.result("tools/call", {"name": "wraps"})
    assert [each["text"] for each in result["content"]] == ["no roots"]
