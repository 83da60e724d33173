"""A handler asks what its client cannot be asked, and does not catch that."""

import pytest

from mcp_trio._protocol.versions import REVISIONS
from mcp_trio._server.context import Context, ThreadContext
from mcp_trio.errors import ToolError

INTERNAL_ERROR, MISSING_CAPABILITY = -32603, -32021
MODERN = "2026-07-28"
LEGACY = [name for name in REVISIONS if name != MODERN]
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
@pytest.mark.parametrize("revision", LEGACY)
async def test_a_legacy_model_hears_what_its_client_lacks(asking, serve, revision, tool, caplog):
    asker = await serve(asking, revision=revision)
    result = await asker.result("tools/call", {"name": tool})
    assert result["isError"]
    assert [each["text"] for each in result["content"]] == [TEXT]
    assert not caplog.records


@pytest.mark.parametrize(
    "asked",
    [("prompts/get", {"name": "prompt"}), ("resources/read", {"uri": "harbour://roots"})],
    ids=["prompt", "resource"],
)
@pytest.mark.parametrize("revision", LEGACY)
async def test_a_legacy_client_hears_it_where_there_is_no_result_for_it(
    asking, serve, revision, asked, caplog
):
    asker = await serve(asking, revision=revision)
    error = await asker.error(*asked)
    assert (error["code"], error["message"]) == (INTERNAL_ERROR, TEXT)
    assert not caplog.records


@pytest.mark.requirement("ERR-14")
@pytest.mark.parametrize("tool", ["tool", "nested", "blocking"])
async def test_a_modern_client_hears_it_by_an_error_of_its_own(asking, serve, tool):
    asker = await serve(asking, revision=MODERN)
    error = await asker.error("tools/call", {"name": tool})
    assert (error["code"], error["message"]) == (MISSING_CAPABILITY, TEXT)
    assert error["data"] == {"requiredCapabilities": {"roots": {}}}


@pytest.mark.parametrize("revision", REVISIONS)
async def test_who_says_something_else_of_it_is_heard(asking, serve, revision):
    asker = await serve(asking, revision=revision)
    result = await asker.result("tools/call", {"name": "wraps"})
    assert [each["text"] for each in result["content"]] == ["no roots"]
