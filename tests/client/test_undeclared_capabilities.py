"""Requests without a capability of the server are not sent."""

import pytest

from mcp_trio.errors import LocalProtocolError, Unencodable
from tests.client.conftest import connected

NEEDS = [
    ("tools", lambda client: client.list_tools()),
    ("tools", lambda client: client.call_tool("tide")),
    ("resources", lambda client: client.list_resources()),
    ("resources", lambda client: client.list_resource_templates()),
    ("resources", lambda client: client.read_resource("tide://bergen")),
    ("resources.subscribe", lambda client: client.subscribe("tide://bergen")),
    ("resources.subscribe", lambda client: client.unsubscribe("tide://bergen")),
    ("prompts", lambda client: client.list_prompts()),
    ("prompts", lambda client: client.get_prompt("plan")),
    ("logging", lambda client: client.set_log_level("error")),
]


@pytest.mark.requirement("PROM-15", "RES-10", "LOG-04", "LIFE-14")
@pytest.mark.parametrize(("need", "call"), NEEDS)
async def test_requests_without_the_servers_capability_are_not_sent(
    scripted, nursery, autojump_clock, need, call
):
    everything = {"tools": {}, "resources": {}, "prompts": {}, "logging": {}}
    everything.pop(need, None)
    client, server = await connected(scripted, nursery, capabilities=everything)
    with pytest.raises(LocalProtocolError, match=f"'{need}', which is not announced"):
        await call(client)
    assert await server.receive_available() == []
    await client.aclose()


@pytest.mark.requirement("COMP-02")
async def test_completion_of_older_versions_needs_no_capability(scripted, nursery):
    client, server = await connected(scripted, nursery, capabilities={})
    nursery.start_soon(client.complete, "plan", "city", "O")
    assert (await server.receive())["method"] == "completion/complete"
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("TOOL-15")
@pytest.mark.parametrize("arguments", [["Bergen"], "Bergen", 7])
async def test_tool_arguments_that_are_no_object_are_rejected(
    scripted, nursery, autojump_clock, arguments
):
    client, server = await connected(scripted, nursery, capabilities={"tools": {}})
    with pytest.raises(Unencodable, match="arguments is not an object"):
        await client.call_tool("tide", arguments)
    assert await server.receive_available() == []
    await client.aclose()
