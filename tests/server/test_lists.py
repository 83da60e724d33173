import base64
import threading

import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Limits, Server, types
from mcp_trio._protocol.versions import OLDEST
from mcp_trio.limits import RequestLimits

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


def test_the_digest_of_the_tools_covers_every_page_and_changes_with_each():
    one, other = (
        Server("harbour", limits=Limits(requests=RequestLimits(page_items_max=1))) for _ in range(2)
    )
    for server, last in ((one, "yes"), (other, "no")):
        offer(server, 0)
        server.tool(name="last", description=last)(lambda: 1)
    digests = [server._registry.tools_digest() for server in (one, other)]
    assert digests[0] != digests[1]
    assert all(len(digest) == 16 for digest in digests)


def test_tools_that_cannot_be_listed_have_no_digest():
    server = Server("harbour")

    @server.tool
    async def tide(port: complex):
        pass

    assert server._registry.tools_digest() is None


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
