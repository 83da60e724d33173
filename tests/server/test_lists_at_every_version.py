"""Capabilities, pages of lists and notifications of changes at every protocol version."""

import pytest

from mcp_trio import Limits, Server
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.limits import RequestLimits
from tests.server.conftest import nothing

A, B, C, D, E = PROTOCOL_VERSIONS
LEGACY = (A, B, C, D)
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
# What a page at the newest revision has beside its rows.
USUAL = {A: {}, B: {}, C: {}, D: {}, E: {"resultType": "complete", "cacheScope": "private"}}


async def one(port):
    pass


def offer(server, name):
    """One more of everything."""
    server.tool(name=name)(nothing)
    server.prompt(name=name)(one)
    server.resource(f"x:{name}", name=name)(nothing)
    server.resource(f"x:{name}/{{port}}", name=name)(one)


@pytest.fixture
def server():
    return Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=2)))


def names_of(result, method):
    return [row["name"] for row in result[LISTS[method]]]


# What is declared.


@pytest.mark.requirement("TOOL-01", "RES-01", "PROM-01", "LOG-01", "COMP-01")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_registered_kinds_are_declared(server, serve, protocol_version):
    asker = await serve(server, protocol_version=protocol_version)
    assert asker.hello["capabilities"] == {"logging": {}}
    offer(server, "a")

    @server.completion("a", "port")
    async def ports(typed: str) -> list[str]:
        return [typed]

    asker = await serve(server, protocol_version=protocol_version)
    assert asker.hello["capabilities"] == {
        "logging": {},
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        **({} if protocol_version == A else {"completions": {}}),
    }


@pytest.mark.requirement("PROM-15", "LIFE-14")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("method", LISTS)
async def test_methods_of_undeclared_kinds_are_not_found(server, serve, protocol_version, method):
    asker = await serve(server, protocol_version=protocol_version)
    assert (await asker.error(method))["code"] == -32601


# What is listed.


@pytest.mark.requirement("TOOL-02", "RES-02", "PROM-02")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("method", LISTS)
async def test_a_list_may_be_empty(serve, protocol_version, method):
    offers = {"tools", "prompts", "resources"}
    asker = await serve(Server("harbour", offers=offers), protocol_version=protocol_version)
    result = await asker.result(method)
    assert result[LISTS[method]] == []
    assert "nextCursor" not in result


@pytest.mark.requirement("PAG-01", "PAG-08", "TOOL-02", "RES-02", "PROM-02")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("method", LISTS)
async def test_a_list_comes_in_pages_and_its_cursors_stay_valid(
    server, serve, protocol_version, method
):
    for name in "abc":
        offer(server, name)
    asker = await serve(server, protocol_version=protocol_version)
    first = await asker.result(method)
    assert names_of(first, method) == ["a", "b"]
    offer(server, "d")
    for _ in range(2):
        last = await asker.result(method, {"cursor": first["nextCursor"]})
        assert names_of(last, method) == ["c", "d"]
        assert (
            last.keys() & {"nextCursor", "resultType", "cacheScope"}
            == USUAL[protocol_version].keys()
        )


@pytest.mark.requirement("PAG-08", "PAG-09")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("cursor", ["", "7", "b"])
async def test_an_unknown_cursor_is_rejected(server, serve, protocol_version, cursor):
    for name in "abc":
        offer(server, name)
    asker = await serve(server, protocol_version=protocol_version)
    for method in LISTS:
        error = await asker.error(method, {"cursor": cursor})
        assert error == {"code": -32602, "message": "invalid cursor"}


@pytest.mark.requirement("TOOL-05", "TOOL-06", "TOOL-08")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_tools_have_unique_names_and_object_schemas(server, serve, protocol_version):
    server.tool(name="a")(nothing)
    server.tool(name="b")(one)
    with pytest.raises(ValueError, match="already"):
        server.tool(name="a")(one)
    asker = await serve(server, protocol_version=protocol_version)
    first, second = (await asker.result("tools/list"))["tools"]
    assert (first["name"], second["name"]) == ("a", "b")
    for row, names in ((first, []), (second, ["port"])):
        schema = row["inputSchema"]
        assert (schema["type"], schema["additionalProperties"]) == ("object", False)
        assert list(schema["properties"]) == schema["required"] == names


@pytest.mark.requirement("PROM-02", "RES-07")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_prompt_lists_its_arguments_and_a_template_its_variables(
    server, serve, protocol_version
):
    async def sail(port: str, ship: str = "") -> str:
        """Sails.

        Args:
            port: From where.
        """

    server.prompt(sail)
    server.resource("x:{port}{?ship}", name="m")(sail)
    asker = await serve(server, protocol_version=protocol_version)
    (prompt,) = (await asker.result("prompts/list"))["prompts"]
    assert prompt["arguments"] == [
        {"name": "port", "description": "From where.", "required": True},
        {"name": "ship", "required": False},
    ]
    (row,) = (await asker.result("resources/templates/list"))["resourceTemplates"]
    assert row["uriTemplate"] == "x:{port}{?ship}"


# What changes.


@pytest.mark.requirement("TOOL-35", "RES-13", "PROM-11")
@pytest.mark.parametrize("protocol_version", LEGACY)
@pytest.mark.parametrize(
    ("kind", "add"),
    [
        ("tools", lambda server: server.tool(name="n")(nothing)),
        ("prompts", lambda server: server.prompt(name="n")(nothing)),
        ("resources", lambda server: server.resource("x:n")(nothing)),
    ],
)
async def test_clients_are_notified_of_a_changed_list(server, serve, protocol_version, kind, add):
    offer(server, "a")
    asker = await serve(server, protocol_version=protocol_version)
    add(server)
    (told,) = await asker.wire.receive_available()
    assert told == {"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"}


@pytest.mark.requirement("RES-11", "RES-12", "RES-10")
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_a_subscribed_client_is_notified_until_it_unsubscribes(
    server, serve, protocol_version
):
    offer(server, "a")
    asker = await serve(server, protocol_version=protocol_version)
    assert await asker.result("resources/subscribe", {"uri": "x:a"}) == {}
    server.resource_updated("x:a")
    (told,) = await asker.wire.receive_available()
    assert told["method"] == "notifications/resources/updated"
    assert told["params"] == {"uri": "x:a"}
    assert await asker.result("resources/unsubscribe", {"uri": "x:a"}) == {}
    server.resource_updated("x:a")
    assert await asker.wire.receive_available() == []
