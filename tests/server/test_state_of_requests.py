"""Each stateless request stands for itself: what spans several of them is named by each of them."""

import itertools
import secrets

import pytest
import trio

from mcp_trio import Context, KeyRing, Limits, RequestError, Server, ToolError, types
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL
from mcp_trio._protocol.requests import SUSPENDED_PREFIX
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.limits import RequestLimits
from tests.server.rounds import NOT_VALID

STATELESS = "2026-07-28"
CAPABILITIES = {"elicitation": {}}
CAPTAIN, UNKNOWN_PEER = ({"name": name, "version": "1"} for name in ("captain", "stranger"))


def accepted(value):
    return {"action": "accept", "content": {"value": value}}


@pytest.fixture
def server():
    trips = itertools.count(1)
    server = Server(
        "harbour",
        keys=KeyRing([b"k" * 32]),
        limits=Limits(requests=RequestLimits(page_items_max=2)),
    )

    @server.tool
    async def who(ctx: Context) -> dict:
        await ctx.debug("asked")
        return {"name": ctx.client_info and ctx.client_info.name, "asks": ctx.client_can("roots")}

    @server.tool
    async def sail(ctx: Context) -> str:
        trip = next(trips)
        return f"{trip} {(await ctx.elicit('Which boat?', str)).data}"

    @server.tool(resumable=True)
    async def row(ctx: Context) -> str:
        first = await ctx.elicit("Which boat?", str)
        return f"{first.data} {(await ctx.elicit('When?', str)).data}"

    @server.tool
    async def vault(ctx: Context) -> str:
        if ctx.client_info is None or ctx.client_info.name != "captain":
            raise RequestError(-32602, "not for you")
        return "gold"

    return server


@pytest.fixture
def stateless(serve, server):
    """A new connection to the server."""

    async def connect():
        return await serve(server, protocol_version=STATELESS, capabilities=CAPABILITIES)

    return connect


async def tool(asker, name, meta=None, **members):
    return await asker.ask("tools/call", {"name": name, "_meta": meta or {}, **members})


def retry(result, **answers):
    return {"requestState": result["requestState"], "inputResponses": answers}


@pytest.mark.requirement("STATE-01")
async def test_what_one_request_says_of_its_client_holds_for_no_other(stateless):
    asker = await stateless()
    said = {CLIENT_INFO: CAPTAIN, CLIENT_CAPABILITIES: {"roots": {}}, LOG_LEVEL: "debug"}
    first = (await tool(asker, "who", said))["result"]
    assert [message["method"] for message in asker.told] == ["notifications/message"]
    second = (await tool(asker, "who"))["result"]
    assert first["structuredContent"] == {"name": "captain", "asks": True}
    assert second["structuredContent"] == {"name": None, "asks": False}
    assert len(asker.told) == 1


@pytest.mark.requirement("STATE-02", "STATE-06")
async def test_conversations_on_one_connection_do_not_get_each_others_state(stateless):
    asker = await stateless()
    firsts = [(await tool(asker, "sail"))["result"] for _ in range(3)]
    for trip, boat in ((3, "elm"), (1, "reed"), (2, "oak")):
        again = retry(firsts[trip - 1], q1=accepted(boat))
        last = (await tool(asker, "sail", **again))["result"]
        assert last["content"][0]["text"] == f"{trip} {boat}"


@pytest.mark.requirement("STATE-03", "STATE-06")
async def test_each_round_of_a_resumable_handler_may_come_on_a_connection_of_its_own(stateless):
    one, another, third = [await stateless() for _ in range(3)]
    first = (await tool(one, "row"))["result"]
    second = (await tool(another, "row", **retry(first, q1=accepted("reed"))))["result"]
    await another.wire.aclose()
    last = (await tool(third, "row", **retry(second, q2=accepted("now"))))["result"]
    assert last["content"][0]["text"] == "reed now"


@pytest.mark.requirement("STATE-03", "STATE-06")
async def test_the_next_page_may_be_asked_for_on_another_connection(stateless):
    one, another = await stateless(), await stateless()
    page = await one.result("tools/list")
    await one.wire.aclose()
    following = await another.result("tools/list", {"cursor": page["nextCursor"]})
    names = [entry["name"] for each in (page, following) for entry in each["tools"]]
    assert names == ["who", "sail", "row", "vault"]


@pytest.mark.requirement("STATE-05")
@pytest.mark.parametrize("name", ["sail", "row"])
async def test_a_request_that_names_no_state_goes_on_with_none(stateless, name):
    asker = await stateless()
    first = (await tool(asker, name))["result"]
    again = (await tool(asker, name, inputResponses={"q1": accepted("reed")}))["result"]
    assert again["resultType"] == "input_required"
    assert again["requestState"] != first["requestState"]
    assert list(again["inputRequests"]) == ["q1"]


@pytest.mark.requirement("STATE-07")
async def test_who_was_let_in_once_is_looked_at_again_each_time(stateless):
    asker = await stateless()
    assert "result" in await tool(asker, "vault", {CLIENT_INFO: CAPTAIN})
    for meta in ({CLIENT_INFO: UNKNOWN_PEER}, {}):
        answer = await tool(asker, "vault", meta)
        assert answer["error"] == {"code": -32602, "message": "not for you"}
    assert "result" in await tool(asker, "vault", {CLIENT_INFO: CAPTAIN})


@pytest.mark.requirement("STATE-10")
@pytest.mark.parametrize("how", ["unknown", "expired"])
async def test_a_handle_that_is_not_good_is_a_tools_error_that_says_so(stateless, server, how):
    trips = {}

    @server.tool
    async def depart() -> str:
        trips[handle := secrets.token_hex()] = True
        return handle

    @server.tool
    async def arrive(trip: str) -> str:
        if not trips.get(trip):
            raise ToolError(f"the trip is {'expired' if trip in trips else 'unknown'}")
        return "there"

    asker = await stateless()
    trip = await asker.call("depart")
    assert await asker.call("arrive", trip=trip) == "there"
    if how == "expired":
        trips[trip] = False
    result = (await tool(asker, "arrive", arguments={"trip": trip if how == "expired" else "x"}))[
        "result"
    ]
    assert result["isError"] is True
    assert result["content"][0]["text"] == f"the trip is {how}"


@pytest.mark.requirement("MRTR-21")
async def test_a_token_that_nothing_protects_is_good_for_nothing_when_it_was_changed(stateless):
    """It says nothing, and so has nothing to be kept whole: it only is found, or not."""
    asker = await stateless()
    first = (await tool(asker, "sail"))["result"]
    token = first["requestState"]
    assert token.startswith(SUSPENDED_PREFIX)
    for place in range(len(SUSPENDED_PREFIX), len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        answer = await tool(asker, "sail", **retry({"requestState": changed}, q1=accepted("no")))
        assert answer["error"] == NOT_VALID
    last = (await tool(asker, "sail", **retry(first, q1=accepted("reed"))))["result"]
    assert last["content"][0]["text"] == "1 reed"


async def test_a_handler_that_wants_to_go_on_later_does_so_at_a_legacy_client(
    serve, autojump_clock
):
    times = []
    server = Server("harbour", limits=Limits(requests=RequestLimits(round_pause_seconds=3)))

    @server.tool
    async def later(ctx: Context) -> types.InputRequiredResult | str:
        times.append(trio.current_time())
        state = ctx.request_state or ""
        return "done" if len(state) == 4 else types.InputRequiredResult(request_state=f"{state}a")

    asker = await serve(server, protocol_version="2025-11-25")
    assert await asker.call("later") == "done"
    assert [after - before for before, after in itertools.pairwise(times)] == [3, 6, 8, 8]


@pytest.mark.parametrize("protocol_version", ALL_PROTOCOL_VERSIONS)
@pytest.mark.parametrize("resumable", [False, True])
async def test_who_asks_nothing_is_answered_at_once(serve, protocol_version, resumable):
    server = Server("harbour")

    @server.tool(resumable=resumable)
    async def ask(ctx: Context) -> str:
        return str(await ctx.ask_all())

    asker = await serve(server, protocol_version=protocol_version)
    assert await asker.call("ask") == "()"
