"""Handlers that ask a client for a capability which it did not declare."""

import pytest

from mcp_trio import Context, ThreadContext, ToolError
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS

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
