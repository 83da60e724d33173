"""Lists of a server: pages, capabilities and notifications of changes."""

import base64
import contextlib
import gc
import re
import threading
import weakref
from functools import partial

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Audio, Client, Context, Limits, ResourceNotFound, Server, ThreadContext, types
from mcp_trio._protocol.versions import OLDEST, PROTOCOL_VERSIONS
from mcp_trio.limits import MessageLimits, RequestLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.server.conftest import harbour, nothing

INVALID_PARAMS = -32602

METHODS = ["tools/list", "resources/list", "resources/templates/list", "prompts/list"]


def offer(server, number):
    """One more of everything."""

    async def nothing():
        pass

    async def one(port):
        pass

    server.tool(name=f"n{number}")(nothing)
    server.prompt(name=f"n{number}")(nothing)
    server.resource(f"x:{number}", name=f"n{number}")(nothing)
    server.resource(f"x:{number}/{{port}}", name=f"n{number}")(one)


@pytest.fixture
def server():
    made = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=2)))
    for number in range(5):
        offer(made, number)
    return made


def names_of(result):
    (rows,) = (rows for member, rows in result.items() if member != "nextCursor")
    return [row["name"] for row in rows]


@pytest.mark.requirement("PAG-01", "TOOL-02", "RES-02", "PROM-02")
@pytest.mark.parametrize("method", METHODS)
async def test_a_long_list_comes_in_pages_and_the_last_has_no_cursor(server, serve, method):
    asker = await serve(server)
    pages, params = [], {}
    while True:
        result = await asker.result(method, params)
        pages.append(names_of(result))
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    assert pages == [["n0", "n1"], ["n2", "n3"], ["n4"]]


async def test_a_list_that_fills_its_pages_exactly_has_no_empty_last_page(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=2)))
    offer(server, 0)
    offer(server, 1)
    asker = await serve(server)
    assert (await asker.result("tools/list")).keys() == {"tools"}


@pytest.mark.requirement("PAG-08", "PAG-09")
@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "7",
        "!",
        "é",
        "n1",
        base64.urlsafe_b64encode(b"tools/list after ").decode(),
        base64.urlsafe_b64encode(b"tools/list after n7").decode(),
        base64.urlsafe_b64encode(b"prompts/list after n1").decode(),
        base64.urlsafe_b64encode(b"tools/list after n1").decode().rstrip("="),
    ],
)
async def test_an_unknown_cursor_is_invalid_params(server, serve, cursor):
    asker = await serve(server)
    error = await asker.error("tools/list", {"cursor": cursor})
    assert error == {"code": INVALID_PARAMS, "message": "invalid cursor"}
    assert len(names_of(await asker.result("tools/list"))) == 2


@pytest.mark.requirement("PAG-08")
async def test_a_cursor_belongs_to_one_list(server, serve):
    asker = await serve(server)
    cursor = (await asker.result("tools/list"))["nextCursor"]
    assert (await asker.error("prompts/list", {"cursor": cursor}))["code"] == INVALID_PARAMS
    assert names_of(await asker.result("tools/list", {"cursor": cursor})) == ["n2", "n3"]


@pytest.mark.requirement("PAG-08")
async def test_a_new_entry_is_listed_at_once_and_cursors_stay_valid(server, serve):
    asker = await serve(server)
    cursor = (await asker.result("tools/list"))["nextCursor"]
    last = (await asker.result("tools/list", {"cursor": cursor}))["nextCursor"]
    assert names_of(await asker.result("tools/list", {"cursor": last})) == ["n4"]
    offer(server, 5)
    assert names_of(await asker.result("tools/list", {"cursor": last})) == ["n4", "n5"]


async def test_a_page_is_encoded_once_until_something_is_registered(server):
    registry = server._registry
    first = registry.page("tools/list", None, OLDEST)
    assert registry.page("tools/list", None, OLDEST) is first
    offer(server, 5)
    assert registry.page("tools/list", None, OLDEST) is not first


def test_the_digests_of_the_tools_cover_every_page_and_change_with_each():
    one, other = (
        Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=1))) for _ in range(2)
    )
    for server, last in ((one, "yes"), (other, "no")):
        offer(server, 0)
        server.tool(name="last", description=last)(lambda: 1)
    first, second = (server._registry.list_digests()["tools"] for server in (one, other))
    assert first[:-1] == second[:-1]
    assert first[-1] != second[-1]
    assert all(re.fullmatch("[0-9a-f]{8} last", lines[-1]) for lines in (first, second))
    other.remove_tool("last")
    assert other._registry.list_digests()["tools"] == first[:-1]


def test_a_long_list_has_one_digest():
    server = Server("harbour")
    for number in range(1001):
        server.tool(name=f"tool{number}")(lambda: 1)
    (line,) = server._registry.list_digests()["tools"]
    assert re.fullmatch("[0-9a-f]{8} ", line)


def test_tools_that_cannot_be_listed_have_no_digest():
    server = Server("harbour")

    @server.tool
    async def tide(port: "Nowhere"):  # noqa: F821 - the name is what is tested
        pass

    assert server._registry.list_digests() == {"tools": ["-------- tide"]}


@pytest.mark.requirement("LIFE-05", "TOOL-01", "RES-01", "PROM-01", "LOG-01", "LIFE-19")
async def test_registered_kinds_are_declared_as_capabilities(serve):
    server = Server("harbour", version="2.1", instructions="Moor first.")
    assert (await serve(server)).hello == {
        "protocolVersion": "2024-11-05",
        "capabilities": {"logging": {}},
        "serverInfo": {"name": "harbour", "version": "2.1"},
        "instructions": "Moor first.",
    }
    offer(server, 0)
    assert (await serve(server)).hello["capabilities"] == {
        "logging": {},
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
    }


async def test_entries_registered_before_the_handshake_are_declared(nursery):
    from mcp_trio.testing import WirePeer
    from mcp_trio.transports import memory_pair

    server = Server("harbour")
    ours, theirs = memory_pair()
    await nursery.start(server.serve, theirs)
    await trio.testing.wait_all_tasks_blocked()
    offer(server, 0)
    hello = await WirePeer(ours).handshake()
    assert hello["result"]["capabilities"].keys() == {"logging", "tools", "resources", "prompts"}


async def test_offers_are_declared_and_served_as_empty_lists(serve):
    asker = await serve(Server("harbour", offers={"tools"}))
    assert asker.hello["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}
    assert await asker.result("tools/list") == {"tools": []}


def test_an_unknown_offer_is_rejected():
    with pytest.raises(ValueError, match=r"unknown offers \['boats'\]: choose from completions"):
        Server("harbour", offers={"boats", "tools"})


async def test_given_capabilities_replace_those_of_registered_entries(serve):
    server = Server("harbour", capabilities=types.ServerCapabilities(experimental={"x": {}}))
    offer(server, 0)
    asker = await serve(server)
    assert asker.hello["capabilities"] == {"experimental": {"x": {}}}
    assert (await asker.error("tools/list"))["code"] == -32601


# Removing.


@pytest.mark.parametrize("method", METHODS)
async def test_removed_entries_are_not_listed(server, serve, method):
    asker = await serve(server)
    assert names_of(await asker.result(method)) == ["n0", "n1"]
    server.remove_tool("n0")
    server.remove_prompt("n0")
    server.remove_resource("x:0")
    server.remove_resource("x:0/{port}")
    assert names_of(await asker.result(method)) == ["n1", "n2"]


async def test_removed_entries_are_not_served_and_can_be_registered_again(server, serve):
    asker = await serve(server)
    server.remove_tool("n0")
    server.remove_prompt("n0")
    server.remove_resource("x:0")
    assert "unknown tool" in (await asker.error("tools/call", {"name": "n0"}))["message"]
    assert "unknown prompt" in (await asker.error("prompts/get", {"name": "n0"}))["message"]
    assert (await asker.error("resources/read", {"uri": "x:0"}))["code"] == -32002
    server.remove_resource("x:0/{port}")
    offer(server, 0)
    assert await asker.result("tools/call", {"name": "n0"})


async def test_a_call_that_runs_survives_the_removal_of_its_tool(serve):
    server = Server("harbour")

    @server.tool
    async def scuttle() -> str:
        server.remove_tool("scuttle")
        await trio.lowlevel.checkpoint()
        return "sunk"

    asker = await serve(server)
    assert await asker.call("scuttle") == "sunk"


@pytest.mark.parametrize(
    ("remove", "text"),
    [
        (lambda server: server.remove_tool("x"), "no tool 'x' is registered"),
        (lambda server: server.remove_prompt("x"), "no prompt 'x' is registered"),
        (lambda server: server.remove_resource("x:1"), "no resource 'x:1' is registered"),
    ],
)
def test_removing_an_unknown_entry_raises_lookup_error(remove, text):
    with pytest.raises(LookupError, match=text):
        remove(Server("harbour"))


def test_threads_can_register_and_remove_at_the_same_time():
    server = Server("harbour")
    registry = server._registry
    stop = threading.Event()

    def churn(first):
        for number in range(first, first + 200):
            server.tool(name=f"n{number}")(lambda: None)
            if number % 2:
                server.remove_tool(f"n{number}")

    def read():
        while not stop.is_set():
            registry.page("tools/list", None, OLDEST)

    writers = [threading.Thread(target=churn, args=[1000 * n]) for n in range(4)]
    reader = threading.Thread(target=read)
    for thread in (*writers, reader):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    listed = msgspec.json.decode(registry.page("tools/list", None, OLDEST))["tools"]
    assert {tool["name"] for tool in listed} == registry.tools.keys()
    assert len(listed) == 400


@pytest.mark.requirement("LIFE-14", "PROM-15")
@pytest.mark.parametrize("method", METHODS)
async def test_methods_of_undeclared_capabilities_are_not_found(serve, method):
    asker = await serve(Server("harbour"))
    assert (await asker.error(method))["code"] == -32601


# Capabilities, pages of lists and notifications of changes at every protocol version.


A, B, C, D, E = PROTOCOL_VERSIONS
LEGACY = (A, B, C, D)
LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
# Members of a page with the newest protocol version, beside its rows.
USUAL = {A: {}, B: {}, C: {}, D: {}, E: {"resultType": "complete", "cacheScope": "private"}}


async def one(port):
    pass


def offer_lists_at_every_version(server, name):
    """One more of everything."""
    server.tool(name=name)(nothing)
    server.prompt(name=name)(one)
    server.resource(f"x:{name}", name=name)(nothing)
    server.resource(f"x:{name}/{{port}}", name=name)(one)


@pytest.fixture
def server_lists_at_every_version():
    return Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=2)))


def names_of_lists_at_every_version(result, method):
    return [row["name"] for row in result[LISTS[method]]]


# Capabilities.


@pytest.mark.requirement("TOOL-01", "RES-01", "PROM-01", "LOG-01", "COMP-01")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_registered_kinds_are_declared(
    server_lists_at_every_version, serve, protocol_version
):
    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
    assert asker.hello["capabilities"] == {"logging": {}}
    offer_lists_at_every_version(server_lists_at_every_version, "a")

    @server_lists_at_every_version.completion("a", "port")
    async def ports(typed: str) -> list[str]:
        return [typed]

    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
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
async def test_methods_of_undeclared_kinds_are_not_found(
    server_lists_at_every_version, serve, protocol_version, method
):
    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
    assert (await asker.error(method))["code"] == -32601


# Members of lists.


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
    server_lists_at_every_version, serve, protocol_version, method
):
    for name in "abc":
        offer_lists_at_every_version(server_lists_at_every_version, name)
    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
    first = await asker.result(method)
    assert names_of_lists_at_every_version(first, method) == ["a", "b"]
    offer_lists_at_every_version(server_lists_at_every_version, "d")
    for _ in range(2):
        last = await asker.result(method, {"cursor": first["nextCursor"]})
        assert names_of_lists_at_every_version(last, method) == ["c", "d"]
        assert (
            last.keys() & {"nextCursor", "resultType", "cacheScope"}
            == USUAL[protocol_version].keys()
        )


@pytest.mark.requirement("PAG-08", "PAG-09")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("cursor", ["", "7", "b"])
async def test_an_unknown_cursor_is_rejected(
    server_lists_at_every_version, serve, protocol_version, cursor
):
    for name in "abc":
        offer_lists_at_every_version(server_lists_at_every_version, name)
    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
    for method in LISTS:
        error = await asker.error(method, {"cursor": cursor})
        assert error == {"code": -32602, "message": "invalid cursor"}


@pytest.mark.requirement("TOOL-05", "TOOL-06", "TOOL-08")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_tools_have_unique_names_and_object_schemas(
    server_lists_at_every_version, serve, protocol_version
):
    server_lists_at_every_version.tool(name="a")(nothing)
    server_lists_at_every_version.tool(name="b")(one)
    with pytest.raises(ValueError, match="already"):
        server_lists_at_every_version.tool(name="a")(one)
    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
    first, second = (await asker.result("tools/list"))["tools"]
    assert (first["name"], second["name"]) == ("a", "b")
    for row, names in ((first, []), (second, ["port"])):
        schema = row["inputSchema"]
        assert (schema["type"], schema["additionalProperties"]) == ("object", False)
        assert list(schema["properties"]) == schema["required"] == names


@pytest.mark.requirement("PROM-02", "RES-07")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_a_prompt_lists_its_arguments_and_a_template_its_variables(
    server_lists_at_every_version, serve, protocol_version
):
    async def sail(port: str, ship: str = "") -> str:
        """Sails.

        Args:
            port: From where.
        """

    server_lists_at_every_version.prompt(sail)
    server_lists_at_every_version.resource("x:{port}{?ship}", name="m")(sail)
    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
    (prompt,) = (await asker.result("prompts/list"))["prompts"]
    assert prompt["arguments"] == [
        {"name": "port", "description": "From where.", "required": True},
        {"name": "ship", "required": False},
    ]
    (row,) = (await asker.result("resources/templates/list"))["resourceTemplates"]
    assert row["uriTemplate"] == "x:{port}{?ship}"


# Changes.


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
async def test_clients_are_notified_of_a_changed_list(
    server_lists_at_every_version, serve, protocol_version, kind, add
):
    offer_lists_at_every_version(server_lists_at_every_version, "a")
    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
    add(server_lists_at_every_version)
    (notification,) = await asker.wire.receive_available()
    assert notification == {"jsonrpc": "2.0", "method": f"notifications/{kind}/list_changed"}


@pytest.mark.requirement("RES-11", "RES-12", "RES-10")
@pytest.mark.parametrize("protocol_version", LEGACY)
async def test_a_subscribed_client_is_notified_until_it_unsubscribes(
    server_lists_at_every_version, serve, protocol_version
):
    offer_lists_at_every_version(server_lists_at_every_version, "a")
    asker = await serve(server_lists_at_every_version, protocol_version=protocol_version)
    assert await asker.result("resources/subscribe", {"uri": "x:a"}) == {}
    server_lists_at_every_version.resource_updated("x:a")
    (notification,) = await asker.wire.receive_available()
    assert notification["method"] == "notifications/resources/updated"
    assert notification["params"] == {"uri": "x:a"}
    assert await asker.result("resources/unsubscribe", {"uri": "x:a"}) == {}
    server_lists_at_every_version.resource_updated("x:a")
    assert await asker.wire.receive_available() == []


# Lists and results have the members of the protocol version of their client.


ICON = types.Icon(src="https://example.org/i.png", mime_type="image/png", sizes=["48x48"])
ICON_SENT = {"src": "https://example.org/i.png", "mimeType": "image/png", "sizes": ["48x48"]}
SHOWN = {"title": "A title", "icons": [ICON], "meta": {"org.example/key": 1}}
SHOWN_SENT = {"title": "A title", "icons": [ICON_SENT], "_meta": {"org.example/key": 1}}

# Members of a row that each protocol version adds.
MEMBERS = {
    A: set(),
    B: set(),
    C: {"title", "_meta"},
    D: {"title", "_meta", "icons"},
    E: {"title", "_meta", "icons"},
}


@pytest.fixture
def server_lists_and_results_by_version():
    made = Server("harbour", version="1")
    made.tool(name="t", annotations=types.ToolAnnotations(read_only_hint=True), **SHOWN)(nothing)
    made.prompt(name="p", **SHOWN)(nothing)
    note = types.Annotations(audience=["user"], last_modified="2026-07-28T00:00:00Z")
    made.resource("x:1", name="r", size=0, annotations=note, mime_type="a/b", **SHOWN)(nothing)
    made.resource("x:1/{port}", name="m", annotations=note, **SHOWN)(one)
    return made


@pytest.mark.requirement("TOOL-07", "PROM-02", "ICON-01", "RES-02", "TRAP-69")
@pytest.mark.parametrize("method", LISTS)
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_list_entries_have_the_members_of_the_protocol_version(
    server_lists_and_results_by_version, serve, protocol_version, method
):
    asker = await serve(server_lists_and_results_by_version, protocol_version=protocol_version)
    (row,) = (await asker.result(method))[LISTS[method]]
    members = {key: row[key] for key in SHOWN_SENT if key in row}
    assert members == {key: SHOWN_SENT[key] for key in MEMBERS[protocol_version]}


@pytest.mark.requirement("TOOL-07")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_tool_annotations_exist_since_the_second_protocol_version(
    server_lists_and_results_by_version, serve, protocol_version
):
    asker = await serve(server_lists_and_results_by_version, protocol_version=protocol_version)
    (row,) = (await asker.result("tools/list"))["tools"]
    assert row.get("annotations") == (None if protocol_version == A else {"readOnlyHint": True})


@pytest.mark.requirement("RES-18", "TRAP-72")
@pytest.mark.parametrize("protocol_version", [C, D, E])
async def test_resources_are_listed_with_size_and_annotations(
    server_lists_and_results_by_version, serve, protocol_version
):
    asker = await serve(server_lists_and_results_by_version, protocol_version=protocol_version)
    (row,) = (await asker.result("resources/list"))["resources"]
    assert row["size"] == 0
    assert row["annotations"] == {"audience": ["user"], "lastModified": "2026-07-28T00:00:00Z"}


@pytest.mark.requirement("RES-18")
@pytest.mark.parametrize(
    ("annotations", "text"),
    [
        ({"priority": 7}, r"the annotations are invalid: .* <= 1"),
        ({"priority": -0.5}, r"the annotations are invalid: .* >= 0"),
        (types.Annotations(priority=7), r"the annotations are invalid: .* <= 1"),
        ({"audience": ["editor"]}, "the annotations are invalid: Invalid enum value 'editor'"),
        ({"importance": 1}, r"unknown annotations \['importance'\]: choose from audience"),
    ],
)
def test_annotations_of_a_resource_are_checked_where_they_are_given(annotations, text):
    with pytest.raises(ValueError, match=text):
        Server("harbour").resource("x:1", annotations=annotations)


async def test_annotations_of_a_resource_may_be_a_dict(serve):
    server = Server("harbour")
    server.resource("x:1", annotations={"priority": 1, "lastModified": "2026-01-01"})(nothing)
    asker = await serve(server, protocol_version="2025-11-25")
    (row,) = (await asker.result("resources/list"))["resources"]
    assert row["annotations"] == {"priority": 1, "lastModified": "2026-01-01"}


@pytest.mark.requirement("ICON-01")
async def test_server_info_has_the_members_of_the_protocol_version(serve):
    server = Server(
        "harbour",
        version="1",
        title="The harbour",
        description="Ships.",
        icons=[ICON],
        website_url="https://example.org",
    )
    name = {"name": "harbour", "version": "1"}
    assert (await serve(server)).hello["serverInfo"] == name
    titled = name | {"title": "The harbour"}
    assert (await serve(server, protocol_version=C)).hello["serverInfo"] == titled
    assert (await serve(server, protocol_version=D)).hello["serverInfo"] == titled | {
        "description": "Ships.",
        "icons": [ICON_SENT],
        "websiteUrl": "https://example.org",
    }


def test_an_unknown_option_is_rejected():
    with pytest.raises(TypeError, match="titel"):
        Server("harbour").tool(titel="A title")(nothing)


@pytest.mark.requirement("TOOL-09", "TOOL-10")
@pytest.mark.parametrize("name", ["a b", "a,b", "größe", "a/b", "a" * 129, "a\n"])
def test_an_invalid_tool_name_is_rejected(name):
    with pytest.raises(ValueError, match="is not a valid name for a tool"):
        Server("harbour").tool(name=name)(nothing)


@pytest.mark.requirement("TOOL-09")
async def test_tool_names_keep_their_case(serve):
    server = Server("harbour")
    names = ["Sail", "sail", "a" * 128, "0._-"]
    for name in names:
        server.tool(name=name)(nothing)
    asker = await serve(server, protocol_version=E)
    assert [row["name"] for row in (await asker.result("tools/list"))["tools"]] == names


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"name": 5}, "name=5 has to be a string"),
        ({"title": 5}, "title=5 has to be a string"),
        ({"description": ["x"]}, r"description=\['x'\] has to be a string"),
        ({"icons": ["https://example.org/a.png"]}, "has to be a list of icons"),
        ({"icons": object()}, "has to be a list of icons"),
        ({"meta": ["x"]}, r"meta=\['x'\] has to be a dict"),
        ({"mime_type": 5}, "mime_type=5 has to be a string"),
        ({"size": "5"}, "size='5' has to be a number of bytes"),
    ],
)
def test_an_option_of_another_type_is_rejected_since_it_would_hide_the_whole_list(options, text):
    server = Server("harbour")
    with pytest.raises(TypeError, match=text):
        server.resource("x:1", **options)(nothing)
    if not options.keys() & {"mime_type", "size"}:
        with pytest.raises(TypeError, match=text):
            server.tool(**options)(nothing)
        with pytest.raises(TypeError, match=text):
            server.prompt(**options)(nothing)


@pytest.mark.parametrize(
    "options", [{"name": None}, {"version": 1.0}, {"instructions": ["x"]}, {"icons": ["x"]}]
)
def test_what_a_server_sends_in_the_handshake_is_checked_at_once(options):
    with pytest.raises(TypeError, match=f"{next(iter(options))}=.* has to be a"):
        Server(**{"name": "harbour", **options})


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"offers": "tools"}, "write {'tools'}"),
        ({"protocol_versions": "2025-06-18"}, "write ['2025-06-18']"),
        ({"keys": b"very secret"}, "write keys=KeyRing([key])"),
        ({"observers": len}, "write observers=[<built-in function len>]"),
    ],
)
def test_an_option_of_a_server_without_its_container_is_rejected(options, advice):
    with pytest.raises(TypeError, match=re.escape(advice)) as caught:
        Server("harbour", **options)
    assert "secret" not in str(caught.value)


async def test_an_icon_may_be_a_dict(serve):
    server = Server("harbour")
    server.tool(icons=[{"src": "https://example.org/a.png"}])(nothing)
    asker = await serve(server, protocol_version=D)
    (tool,) = (await asker.result("tools/list"))["tools"]
    assert tool["icons"] == [{"src": "https://example.org/a.png"}]


# Order.


@pytest.mark.requirement("TOOL-03", "TOOL-04", "RES-03", "PROM-03", "TRAP-73", "TRAP-74")
@pytest.mark.parametrize("method", LISTS)
async def test_every_client_gets_the_same_list_in_the_order_of_registration(serve, method):
    server = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=3)))
    for name in ("b", "c", "a"):
        server.tool(name=name)(nothing)
        server.prompt(name=name)(nothing)
        server.resource(f"x:{name}", name=name)(nothing)
        server.resource(f"x:{name}/{{port}}", name=name)(one)
    first, second = await serve(server, protocol_version=E), await serve(server, protocol_version=E)
    await first.result("tools/call", {"name": "a"})
    lists = [await asker.result(method) for asker in (first, second, first)]
    assert lists[0] == lists[1] == lists[2]
    assert [row["name"] for row in lists[0][LISTS[method]]] == ["b", "c", "a"]


# Cache hints.


@pytest.mark.requirement("CACHE-01", "CACHE-02", "CACHE-03", "CACHE-16", "TRAP-72")
@pytest.mark.parametrize("method", LISTS)
async def test_lists_contain_cache_hints(serve, method):
    server = Server("harbour", list_ttl_seconds=1.5, cache_scope="public")
    plain = Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=1)))
    for it in (server, plain):
        for name in "ab":
            it.tool(name=name)(nothing)
            it.prompt(name=name)(nothing)
            it.resource(f"x:{name}")(nothing)
            it.resource(f"x:{name}/{{port}}")(one)
    result = await (await serve(server, protocol_version=E)).result(method)
    assert (result["ttlMs"], result["cacheScope"]) == (1500, "public")
    asker = await serve(plain, protocol_version=E)
    result = await asker.result(method)
    after = await asker.result(method, {"cursor": result["nextCursor"]})
    for page in (result, after):
        assert (page["ttlMs"], page["cacheScope"]) == (0, "private")
        assert page["resultType"] == "complete"
    for protocol_version in (A, B, C, D):
        result = await (await serve(server, protocol_version=protocol_version)).result(method)
        assert result.keys() == {LISTS[method]}


@pytest.mark.requirement("CACHE-01", "CACHE-02", "CACHE-03")
async def test_resource_contents_contain_cache_hints(serve):
    server = Server("harbour")

    @server.resource("x:{name}", ttl_seconds=60, cache_scope="public")
    async def read(name: str):
        if name == "own":
            contents = [types.ResourceContents(uri="x:own", text="")]
            return types.ReadResourceResult(contents=contents, ttl_ms=0)
        return "text"

    asker = await serve(server, protocol_version=E)
    result = await asker.result("resources/read", {"uri": "x:1"})
    assert (result["ttlMs"], result["cacheScope"]) == (60_000, "public")
    result = await asker.result("resources/read", {"uri": "x:own"})
    assert (result["ttlMs"], result["cacheScope"]) == (0, "public")
    legacy = await serve(server, protocol_version=D)
    assert (await legacy.result("resources/read", {"uri": "x:1"})).keys() == {"contents"}


@pytest.mark.parametrize("options", [{"ttl_seconds": -1}, {"cache_scope": "some"}])
def test_invalid_cache_hints_of_resources_are_rejected(options):
    with pytest.raises(ValueError, match=r"ttl_seconds|cache_scope"):
        Server("harbour").resource("x:1", **options)(nothing)


def test_invalid_cache_hints_of_lists_are_rejected():
    with pytest.raises(ValueError, match="ttl_seconds"):
        Server("harbour", list_ttl_seconds=-1)
    with pytest.raises(ValueError, match="cache_scope"):
        Server("harbour", cache_scope="some")


# Errors.


@pytest.mark.requirement("TOOL-30", "TOOL-31", "TRAP-65")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_invalid_arguments_are_tool_results_since_2025_11_25(serve, protocol_version):
    server = Server("harbour")

    @server.tool
    async def sail(days: int) -> str:
        return "sails"

    asker = await serve(server, protocol_version=protocol_version)
    answer = await asker.ask("tools/call", {"name": "sail", "arguments": {"days": "x"}})
    text = "invalid arguments: days: expected int, got str"
    if protocol_version in (D, E):
        assert answer["result"]["isError"] is True
        assert answer["result"]["content"] == [{"type": "text", "text": text}]
    else:
        assert answer["error"] == {"code": -32602, "message": text}


@pytest.mark.requirement("TOOL-32", "TRAP-65", "TRAP-66")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("params", [{"name": "row"}, {}, {"name": "t", "arguments": [1]}])
async def test_an_unknown_tool_and_a_malformed_call_are_always_protocol_errors(
    server_lists_and_results_by_version, serve, protocol_version, params
):
    asker = await serve(server_lists_and_results_by_version, protocol_version=protocol_version)
    assert (await asker.error("tools/call", params))["code"] == -32602


@pytest.mark.requirement("ERR-02", "ERR-03", "ERR-04", "ERR-06", "RES-08", "TRAP-67")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("uri", ["x:none", "x:1/nowhere"])
async def test_a_missing_resource_has_the_error_code_of_the_protocol_version(
    serve, protocol_version, uri
):
    server = Server("harbour")

    @server.resource("x:1/{port}")
    async def read(port: str) -> str:
        raise ResourceNotFound(f"x:1/{port}")

    asker = await serve(server, protocol_version=protocol_version)
    assert await asker.error("resources/read", {"uri": uri}) == {
        "code": -32602 if protocol_version == E else -32002,
        "message": f"resource not found: {uri}",
        "data": {"uri": uri},
    }


@pytest.mark.requirement("ERR-06", "TRAP-67")
async def test_a_resource_missing_in_a_tool_has_the_error_code_of_the_protocol_version(serve):
    server = Server("harbour")

    @server.tool
    async def sail(ctx: Context) -> str:
        await ctx.read_resource("x:none")

    for protocol_version, code in ((D, -32002), (E, -32602)):
        asker = await serve(server, protocol_version=protocol_version)
        assert (await asker.error("tools/call", {"name": "sail"}))["code"] == code


@pytest.mark.requirement("RES-16")
@pytest.mark.parametrize("method", ["resources/subscribe", "resources/unsubscribe"])
async def test_the_newest_protocol_version_has_no_resources_subscribe(
    server_lists_and_results_by_version, serve, method
):
    asker = await serve(server_lists_and_results_by_version, protocol_version=E)
    assert (await asker.error(method, {"uri": "x:1"}))["code"] == -32601


@pytest.mark.requirement("RES-23", "RES-22")
@pytest.mark.parametrize(
    "path", ["../etc/passwd", "a/../../b", "%2e%2e/b", "a%2F..%2F..%2Fb", "..%5Cb", "/etc"]
)
async def test_path_traversal_is_rejected_in_every_protocol_version(serve, path):
    server = Server("harbour")
    server.resource("file:///srv/{+port}")(one)
    asker = await serve(server, protocol_version=E)
    assert (await asker.error("resources/read", {"uri": f"file:///srv/{path}"}))["code"] == -32602


@pytest.mark.requirement("RES-21")
@pytest.mark.parametrize("uri", ["harbour/now", "1x:now", "a_b:now", ":now", "x"])
def test_a_uri_without_a_scheme_is_rejected(uri):
    with pytest.raises(ValueError, match="does not begin with a scheme"):
        Server("harbour").resource(uri)(nothing)


def test_the_size_of_a_resource_template_is_rejected():
    with pytest.raises(ValueError, match="no common size"):
        Server("harbour").resource("x:{port}", size=1)(one)


# Contents.


@pytest.mark.requirement("TOOL-17", "TOOL-18", "PROM-08", "PROM-10")
async def test_audio_and_links_are_replaced_where_the_protocol_version_lacks_them(serve):
    server = Server("harbour")
    link = types.ResourceLink(uri="x:1", name="one")

    @server.tool
    async def it():
        return ["text", Audio(b"RIFF....WAVE"), link]

    @server.prompt
    async def audio_prompt():
        return [Audio(b"fLaC"), link]

    for protocol_version, kinds in {
        A: ["text", "resource", "text"],
        B: ["text", "audio", "text"],
        C: ["text", "audio", "resource_link"],
        E: ["text", "audio", "resource_link"],
    }.items():
        asker = await serve(server, protocol_version=protocol_version)
        content = (await asker.result("tools/call", {"name": "it"}))["content"]
        assert [block["type"] for block in content] == kinds
        messages = (await asker.result("prompts/get", {"name": "audio_prompt"}))["messages"]
        assert [message["content"]["type"] for message in messages] == kinds[1:]
    assert content[1] == {"type": "audio", "mimeType": "audio/wav", "data": "UklGRi4uLi5XQVZF"}
    assert content[2] == {"type": "resource_link", "uri": "x:1", "name": "one"}
    assert messages[0]["content"]["mimeType"] == "audio/flac"


# Completion.


@pytest.fixture
def completing():
    server = Server("harbour")

    @server.prompt
    async def sail(port: str, ship: str = "") -> str:
        return ""

    @server.completion(sail, "ship")
    async def ships(typed: str, settled: dict[str, str]) -> list[str]:
        return [f"{typed} of {settled.get('port')}"]

    return server


@pytest.mark.requirement("COMP-01", "COMP-02", "TRAP-76")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
async def test_completions_are_declared_where_the_protocol_version_has_the_capability(
    completing, serve, protocol_version
):
    asker = await serve(completing, protocol_version=protocol_version)
    assert asker.hello["capabilities"].get("completions") == (None if protocol_version == A else {})
    params = {"ref": {"type": "ref/prompt", "name": "sail"}}
    params["argument"] = {"name": "ship", "value": "Thor"}
    result = await asker.result("completion/complete", params)
    assert result["completion"] == {"values": ["Thor of None"]}


@pytest.mark.requirement("COMP-04")
@pytest.mark.parametrize("protocol_version", [C, D, E])
async def test_a_completion_gets_the_arguments_that_are_already_given(
    completing, serve, protocol_version
):
    asker = await serve(completing, protocol_version=protocol_version)
    params = {"ref": {"type": "ref/prompt", "name": "sail"}}
    params["argument"] = {"name": "ship", "value": "Thor"}
    params["context"] = {"arguments": {"port": "Oslo"}}
    result = await asker.result("completion/complete", params)
    assert result["completion"] == {"values": ["Thor of Oslo"]}


@pytest.mark.requirement("COMP-06")
@pytest.mark.parametrize("protocol_version", [B, C, D, E])
async def test_invalid_completion_requests_are_errors_in_every_version(
    server_lists_and_results_by_version, completing, serve, protocol_version
):
    params = {"ref": {"type": "ref/prompt", "name": "sail"}}
    params["argument"] = {"name": "ship", "value": ""}
    asker = await serve(server_lists_and_results_by_version, protocol_version=protocol_version)
    assert "completions" not in asker.hello["capabilities"]
    assert (await asker.error("completion/complete", params))["code"] == -32601
    asker = await serve(completing, protocol_version=protocol_version)
    for odd in (
        {"ref": {"type": "ref/prompt", "name": "row"}},
        {"argument": {"name": "crew", "value": ""}},
        {"argument": {}},
    ):
        assert (await asker.error("completion/complete", params | odd))["code"] == -32602


# Resources whose handlers send requests to the client.


@pytest.fixture
def asking():
    server = Server("harbour")

    @server.resource("x:1", ttl_seconds=60)
    async def read() -> types.InputRequiredResult:
        asked = types.InputRequest(method="roots/list")
        return types.InputRequiredResult(input_requests={"r": asked})

    @server.tool
    async def sail(ctx: Context) -> str:
        await ctx.read_resource("x:1")

    return server


@pytest.mark.requirement("RES-17", "CACHE-04")
async def test_input_required_results_have_no_cache_hints(asking, serve):
    asker = await serve(asking, protocol_version=E, capabilities={"roots": {}})
    result = await asker.result("resources/read", {"uri": "x:1"})
    assert result["resultType"] == "input_required"
    assert result["inputRequests"]["r"]["method"] == "roots/list"
    assert not result.keys() & {"ttlMs", "cacheScope"}


async def test_read_resource_rejects_a_resource_that_returns_questions(asking, serve, caplog):
    asker = await serve(asking, protocol_version=E, capabilities={"roots": {}})
    assert await asker.failure("sail") == "internal error in sail"
    assert "'x:1' returned an InputRequiredResult" in caplog.text


# Notifications of changed lists and resources.


EVERYTHING = {"tools", "resources", "prompts"}
CHANGED = "notifications/{}/list_changed"


@pytest.fixture
def server_change_notifications():
    return harbour()


def methods_of(messages):
    return [message["method"] for message in messages]


# Lists.


@pytest.mark.requirement("TOOL-35", "RES-13", "PROM-11", "TOOL-01", "RES-01", "PROM-01")
@pytest.mark.parametrize(
    ("kind", "add", "remove"),
    [
        ("tools", lambda s: s.tool(name="n")(nothing), lambda s: s.remove_tool("n")),
        ("prompts", lambda s: s.prompt(name="n")(nothing), lambda s: s.remove_prompt("n")),
        ("resources", lambda s: s.resource("x:1")(nothing), lambda s: s.remove_resource("x:1")),
    ],
)
async def test_every_session_is_notified_of_a_changed_list(
    server_change_notifications, serve, kind, add, remove
):
    first, second = (
        await serve(server_change_notifications),
        await serve(server_change_notifications),
    )
    for change in (add, remove):
        change(server_change_notifications)
        for asker in (first, second):
            assert asker.hello["capabilities"][kind]["listChanged"] is True
            assert await asker.wire.receive() == {"jsonrpc": "2.0", "method": CHANGED.format(kind)}
            assert await asker.wire.receive_available() == []


async def test_simultaneous_changes_of_a_list_are_one_notification(
    server_change_notifications, serve
):
    asker = await serve(server_change_notifications)
    for number in range(100):
        server_change_notifications.tool(name=f"n{number}")(nothing)
        server_change_notifications.resource(f"x:{number}")(nothing)
    assert methods_of(await asker.wire.receive_available()) == [
        CHANGED.format("tools"),
        CHANGED.format("resources"),
    ]


async def test_list_changed_notifies_clients_of_a_server_without_registrations(
    server_change_notifications, serve
):
    asker = await serve(server_change_notifications)
    server_change_notifications.list_changed("prompts")
    assert methods_of(await asker.wire.receive_available()) == [CHANGED.format("prompts")]
    with pytest.raises(ValueError, match="unknown list 'boats': choose from prompts"):
        server_change_notifications.list_changed("boats")


async def test_changes_of_an_undeclared_list_are_not_sent(serve):
    server = Server("harbour", offers={"prompts"})
    asker = await serve(server)
    server.tool(nothing)
    assert await asker.wire.receive_available() == []


async def test_entries_registered_after_opening_and_before_the_handshake_are_declared(nursery):
    server = Server("harbour")
    ours, theirs = memory_pair()
    session = server._sessions.open_session(theirs)
    server.tool(nothing)
    server.method("prompts/list")(nothing)
    await nursery.start(session.run)
    hello = await WirePeer(ours).handshake()
    assert hello["result"]["capabilities"].keys() == {"logging", "tools", "prompts"}


async def test_no_notification_is_sent_before_the_client_is_initialized(
    server_change_notifications, nursery
):
    ours, theirs = memory_pair()
    await nursery.start(server_change_notifications.serve, theirs)
    peer = WirePeer(ours)
    server_change_notifications.tool(name="early")(nothing)
    assert await peer.receive_available() == []
    params = {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "0"},
    }
    await peer.send_request("initialize", params, id=1)
    assert (await peer.receive())["id"] == 1
    server_change_notifications.tool(name="between")(nothing)
    assert await peer.receive_available() == []
    await peer.send_notification("notifications/initialized")
    assert methods_of(await peer.receive_available()) == [CHANGED.format("tools")]


async def test_a_handler_registers_and_removes_through_its_context(
    server_change_notifications, serve
):
    @server_change_notifications.tool
    async def open_berth(ctx: Context) -> str:
        ctx.server.tool(name="moor")(nothing)
        return "open"

    @server_change_notifications.tool
    def close_berth(ctx: ThreadContext) -> str:
        ctx.server.remove_tool("moor")
        return "closed"

    asker = await serve(server_change_notifications)
    for name in ("open_berth", "close_berth"):
        await asker.call(name)
        messages = [*asker.received, *await asker.wire.receive_available()]
        assert methods_of(messages) == [CHANGED.format("tools")]
        asker.received.clear()


async def test_any_thread_may_register_and_remove(server_change_notifications, serve):
    asker = await serve(server_change_notifications)
    thread = threading.Thread(
        target=partial(server_change_notifications.tool(name="late"), nothing)
    )
    thread.start()
    assert (await asker.wire.receive())["method"] == CHANGED.format("tools")
    thread.join()


def test_sessions_of_two_trio_runs_are_notified_of_each_others_changes(server_change_notifications):
    ready, methods = threading.Barrier(2), []

    async def main():
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server_change_notifications.serve, theirs)
            peer = WirePeer(ours)
            await peer.handshake()
            await trio.testing.wait_all_tasks_blocked()
            await trio.to_thread.run_sync(ready.wait)
            with contextlib.suppress(ValueError):
                server_change_notifications.tool(nothing)
            methods.append((await peer.receive())["method"])
            await trio.to_thread.run_sync(ready.wait)
            nursery.cancel_scope.cancel()

    threads = [threading.Thread(target=trio.run, args=[main]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert methods == [CHANGED.format("tools")] * 2


async def test_a_change_after_a_trio_run_has_ended_does_no_harm(server_change_notifications):
    leaked = []

    async def main():
        ours, theirs = memory_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server_change_notifications.serve, theirs)
            await WirePeer(ours).handshake()
            leaked.extend(server_change_notifications._change_notifier.listeners)
            nursery.cancel_scope.cancel()

    await trio.to_thread.run_sync(trio.run, main)
    leaked[0].notify((CHANGED.format("tools"), None))


async def test_a_session_that_has_ended_is_forgotten(server_change_notifications, nursery):
    ours, theirs = memory_pair()
    session = await nursery.start(server_change_notifications.serve, theirs)
    peer = WirePeer(ours)
    await peer.handshake()
    assert len(server_change_notifications._change_notifier.listeners) == 1
    gone = weakref.ref(session)
    del session
    await peer.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert len(server_change_notifications._change_notifier.listeners) == 0
    server_change_notifications.tool(nothing)
    del theirs
    gc.collect()
    assert gone() is None


async def test_a_client_receives_changes_by_its_callbacks(server_change_notifications):
    received = []

    @server_change_notifications.tool
    async def surge(ctx: Context) -> None:
        ctx.server.tool(name="new")(nothing)
        ctx.server.resource_updated("harbour://tide")

    async with Client(
        server_change_notifications,
        list_changed=received.append,
        resource_updated=lambda params: received.append(params.uri),
    ) as client:
        await client.subscribe("harbour://tide")
        await client.call_tool("surge")
        await trio.testing.wait_all_tasks_blocked()
    assert received == ["tools", "harbour://tide"]


# Subscriptions.


@pytest.mark.requirement("RES-11", "RES-12")
@pytest.mark.parametrize("uri", ["harbour://tide", "harbour://oslo/tide"])
async def test_a_client_receives_updates_until_it_unsubscribes(
    server_change_notifications, serve, uri
):
    asker, other = (
        await serve(server_change_notifications),
        await serve(server_change_notifications),
    )
    assert await asker.result("resources/subscribe", {"uri": uri}) == {}
    server_change_notifications.resource_updated(uri)
    server_change_notifications.resource_updated("harbour://lima/tide")
    assert await asker.wire.receive_available() == [
        {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}}
    ]
    assert await asker.result("resources/unsubscribe", {"uri": uri}) == {}
    server_change_notifications.resource_updated(uri)
    assert await asker.wire.receive_available() == []
    assert await other.wire.receive_available() == []


@pytest.mark.requirement("RES-11")
async def test_unsubscribing_without_a_subscription_is_no_error(server_change_notifications, serve):
    asker = await serve(server_change_notifications)
    assert await asker.result("resources/unsubscribe", {"uri": "harbour://none"}) == {}


async def test_subscribing_to_a_missing_resource_is_an_error(server_change_notifications, serve):
    asker = await serve(server_change_notifications)
    error = await asker.error("resources/subscribe", {"uri": "harbour://none"})
    assert (error["code"], error["data"]) == (-32002, {"uri": "harbour://none"})
    error = await asker.error("resources/subscribe", {"uri": "harbour://../tide"})
    assert error["code"] == -32602


async def test_subscriptions_have_a_limit_that_the_rejection_names(serve):
    server = Server("harbour", limits=Limits(requests=RequestLimits(subscriptions_max=2)))
    server.resource("x:{n}")(lambda n: n)
    asker = await serve(server)
    for number in (0, 1, 1, 0):
        assert await asker.result("resources/subscribe", {"uri": f"x:{number}"}) == {}
    error = await asker.error("resources/subscribe", {"uri": "x:2"})
    assert error["message"] == "too many subscriptions (limits.requests.subscriptions_max=2)"
    await asker.result("resources/unsubscribe", {"uri": "x:0"})
    assert await asker.result("resources/subscribe", {"uri": "x:2"}) == {}


async def test_updates_from_threads_reach_only_subscribers(server_change_notifications, serve):
    asker = await serve(server_change_notifications)
    await asker.result("resources/subscribe", {"uri": "harbour://tide"})

    def update():
        for uri in ("harbour://none", "harbour://tide"):
            server_change_notifications.resource_updated(uri)

    await trio.to_thread.run_sync(update)
    (notification,) = await asker.wire.receive_available()
    assert notification["params"] == {"uri": "harbour://tide"}


async def test_an_update_unsubscribed_while_pending_is_not_sent(server_change_notifications, serve):
    asker = await serve(server_change_notifications)
    await asker.result("resources/subscribe", {"uri": "harbour://tide"})
    (announcer,) = server_change_notifications._change_notifier.listeners
    server_change_notifications.resource_updated("harbour://tide")
    announcer.unsubscribe("harbour://tide")
    assert await asker.wire.receive_available() == []


async def test_a_slow_client_delays_no_other_and_its_pending_changes_are_bounded(nursery):
    limits = Limits(
        messages=MessageLimits(send_queue_bytes_max=1000), requests=RequestLimits(page_items_max=10)
    )
    server = Server("harbour", offers=EVERYTHING, limits=limits)
    server.resource("x:{n}")(lambda n: n)
    peers = []
    for buffer in (256, 65536):
        ours, theirs = memory_pair(buffer_bytes_max=buffer)
        session = await nursery.start(server.serve, theirs)
        peer = WirePeer(ours)
        await peer.handshake()
        await peer.send_request("resources/subscribe", {"uri": "x:1"}, id=1)
        await peer.receive()
        peers.append((peer, session))
    (stalled, session), (fast, _) = peers
    count = 0
    for number in range(300):
        server.tool(name=f"n{number}")(nothing)
        server.resource_updated("x:1")
        count += len(await fast.receive_available())
    assert count == 600
    assert session.send_queue.queued_bytes < 2000
    assert len(await stalled.receive_available()) < 30
