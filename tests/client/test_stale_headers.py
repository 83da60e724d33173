"""Calls whose parameter headers follow an outdated list of tools."""

import pytest

from mcp_trio import Client, RequestError, Server
from mcp_trio import types as t
from mcp_trio.errors import HEADER_MISMATCH, INVALID_PARAMS


def make_server(*rejections):
    """A server that refuses the first calls so; `asked` tells in which order it was asked."""
    server = Server("strict", list_ttl_seconds=60)
    asked, left = [], list(rejections)

    @server.method("tools/list")
    async def tools(_params):
        asked.append("list")
        return t.ListToolsResult(tools=[], ttl_ms=60_000)

    @server.method("tools/call")
    async def call(_params):
        asked.append("call")
        if left:
            raise RequestError(left.pop(0), "the head does not say what the body says")
        return t.CallToolResult(content=[t.TextContent(text="done")])

    return server, asked


@pytest.mark.requirement("HDR-32", "TRAP-52")
async def test_a_header_mismatch_lists_the_tools_and_repeats_the_call():
    server, asked = make_server(HEADER_MISMATCH)
    async with Client(server) as client:
        await client.list_tools()
        assert (await client.call_tool("it")).content == [t.TextContent(text="done")]
    assert asked == ["list", "call", "list", "call"]


@pytest.mark.requirement("HDR-32", "TRAP-52")
async def test_a_call_is_repeated_only_once():
    server, asked = make_server(HEADER_MISMATCH, HEADER_MISMATCH)
    async with Client(server) as client:
        with pytest.raises(RequestError, match="the head does not say"):
            await client.call_tool("it")
    assert asked == ["call", "list", "call"]


async def test_other_rejections_are_not_repeated():
    server, asked = make_server(INVALID_PARAMS)
    async with Client(server) as client:
        with pytest.raises(RequestError, match="the head does not say"):
            await client.call_tool("it")
    assert asked == ["call"]
