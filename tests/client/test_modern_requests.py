"""What a client says in each of its stateless requests, and calls that differ between the eras."""

import contextlib

import pytest
import trio
import trio.testing

from mcp_trio import Client, Limits, MCPError, RequestTimeout
from mcp_trio.errors import LocalProtocolError
from mcp_trio.limits import RequestLimits
from tests.client.stateless import (
    DISCOVERED,
    INITIALIZED,
    LEGACY,
    STATELESS,
    error,
    legacy_client,
    played,
    stateless_client,
)

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "baggage": "userId=alice,serverNode=DF%2028",
}
LISTED = {"tools/list": {"tools": []}}
LEVEL = "io.modelcontextprotocol/logLevel"


# The trace.


@pytest.mark.requirement("TRACE-01", "TRACE-02", "TRACE-03")
async def test_each_request_says_which_trace_it_belongs_to(nursery):
    given = [{}, TRACE, {**TRACE, "x-amzn-trace-id": "Root=1"}]
    traces = iter(given)
    client, server = await stateless_client(nursery, answers=LISTED, trace=lambda: next(traces))
    assert not TRACE.keys() & server.metadata("server/discover").keys()
    for _ in range(2):
        await client.list_tools()
        said = server.metadata("tools/list")
        assert {name: said[name] for name in TRACE} == TRACE
        assert len(said) == len(TRACE) + 3
    await client.aclose()


@pytest.mark.requirement("TRACE-04")
async def test_a_legacy_server_hears_of_the_trace_by_the_same_names(nursery):
    client, server = await legacy_client(nursery, answers=LISTED, trace=lambda: TRACE)
    await client.list_tools()
    assert server.metadata("tools/list") == TRACE
    await client.aclose()


@pytest.mark.requirement("TRACE-02")
@pytest.mark.parametrize(
    "bad",
    [
        {"traceparent": "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01"},
        {"traceparent": "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
        {"traceparent": ""},
        {"tracestate": "nothing"},
        {"baggage": "a=\u00e9"},
        {"baggage": "a=1\r\nb=2"},
    ],
)
async def test_what_is_no_trace_is_not_sent(nursery, bad):
    traces = iter([TRACE, bad])
    client, server = await stateless_client(nursery, trace=lambda: next(traces))
    with pytest.raises(ValueError, match=r"not a valid (traceparent|tracestate|baggage)"):
        await client.list_tools()
    assert len(server.requests) == 1
    await client.aclose()


# Extensions.


@pytest.mark.requirement("EXT-02", "EXT-03", "EXT-05")
async def test_extensions_are_off_until_somebody_wants_them(nursery):
    capabilities = "io.modelcontextprotocol/clientCapabilities"
    extensions = {"com.example/maps": {}, "io.modelcontextprotocol/ui": {"mimeTypes": ["text/a"]}}
    for options, said in [({}, {}), ({"extensions": extensions}, {"extensions": extensions})]:
        client, server = await stateless_client(nursery, **options)
        assert server.metadata("server/discover")[capabilities] == said
        await client.aclose()


@pytest.mark.requirement("EXT-02")
@pytest.mark.parametrize(
    "identifier",
    ["maps", "/maps", "", "com.example", "1com/maps", "com-/maps", "com/-maps", "a b/c"],
)
def test_an_extension_without_a_prefix_is_none(identifier):
    with pytest.raises(ValueError, match=r"an extension is named like com\.example/name"):
        Client(["server"], extensions={identifier: {}})


# The log level.


@pytest.mark.requirement("META-21")
async def test_a_stateless_server_hears_with_each_request_what_is_to_be_logged(nursery):
    client, server = await stateless_client(nursery, answers=LISTED, log_level="info")
    await client.list_tools()
    assert server.metadata("tools/list")[LEVEL] == "info"
    await client.set_log_level("error")
    await client.list_tools()
    assert server.metadata("tools/list")[LEVEL] == "error"
    assert {it["method"] for it in server.requests} == {"server/discover", "tools/list"}
    await client.aclose()


async def test_without_a_level_nothing_is_said_of_it(nursery):
    client, server = await stateless_client(nursery, answers=LISTED)
    await client.list_tools()
    assert LEVEL not in server.metadata("tools/list")
    await client.aclose()


@pytest.mark.requirement("TRAP-63")
@pytest.mark.parametrize(("level", "said"), [(None, "debug"), ("error", "error")])
async def test_who_listens_hears_everything_unless_a_level_is_named(nursery, level, said):
    client, server = await stateless_client(nursery, answers=LISTED, log=print, log_level=level)
    await client.list_tools()
    assert server.metadata("tools/list")[LEVEL] == said
    await client.aclose()


@pytest.mark.requirement("LOG-04")
async def test_a_legacy_server_hears_it_once(nursery):
    answers = {**LISTED, "logging/setLevel": {}}
    client, server = await legacy_client(nursery, answers=answers, log_level="info")
    await client.list_tools()
    assert server.asked("logging/setLevel") == [{"level": "info"}]
    assert server.asked("tools/list") == [{}]
    assert "_meta" not in server.requests[-1].get("params", {})
    await client.aclose()


async def test_a_server_that_rejects_the_level_is_a_server_all_the_same(nursery, caplog):
    answers = {"logging/setLevel": error(-32602, "no such level")}
    client, _ = await legacy_client(nursery, answers=answers, log_level="info")
    assert client.is_open
    assert "old rejected the log level: no such level" in caplog.text
    await client.aclose()


async def test_a_server_that_does_not_log_is_not_told(nursery):
    answers = {
        "initialize": {**INITIALIZED, "protocolVersion": LEGACY[0], "capabilities": {}},
    }
    client, server = await legacy_client(nursery, answers=answers, log_level="info")
    assert server.asked("logging/setLevel") == []
    await client.aclose()


@pytest.mark.parametrize("seconds", [3, 10_000], ids=["given up", "too late"])
async def test_a_level_that_is_never_answered_leaves_no_session(nursery, autojump_clock, seconds):
    handshake = {**INITIALIZED, "protocolVersion": LEGACY[0]}
    channel, server = played(nursery, **{"initialize": handshake, "logging/setLevel": None})
    client = Client(channel, protocol_versions=LEGACY, log_level="debug")
    with contextlib.suppress(RequestTimeout), trio.move_on_after(seconds):
        await client.__aenter__()
    await trio.testing.wait_all_tasks_blocked()
    assert server.asked("logging/setLevel") == [{"level": "debug"}]
    with pytest.raises(trio.ClosedResourceError):
        await channel.send([])


# Calls that differ.


async def test_a_stateless_server_is_asked_what_it_speaks_to_see_that_it_lives(nursery):
    discovered = {**DISCOVERED, "ttlMs": 10**6}
    client, server = await stateless_client(nursery, answers={"server/discover": discovered})
    for _ in range(2):
        await client.ping()
    assert len(server.asked("server/discover")) == 3
    assert len(server.requests) == 3
    await client.aclose()


async def test_pings_at_intervals_suit_the_server(nursery, autojump_clock):
    limits = Limits(requests=RequestLimits(ping_interval_seconds=10))
    for connect, method in [(stateless_client, "server/discover"), (legacy_client, "ping")]:
        client, server = await connect(nursery, limits=limits, answers={"ping": {}})
        heard = len(server.requests)
        await trio.sleep(25)
        assert [it["method"] for it in server.requests[heard:]] == [method] * 2
        await client.aclose()


@pytest.mark.requirement("TRAP-94")
async def test_a_stateless_server_is_not_told_that_the_roots_have_changed(nursery):
    def call(params):
        if "inputResponses" in params:
            return {"content": [], "structuredContent": params["inputResponses"]["a"]["roots"]}
        return {"resultType": "input_required", "inputRequests": {"a": {"method": "roots/list"}}}

    client, server = await stateless_client(nursery, answers={"tools/call": call}, roots=[])
    await client.set_roots(["file:///pier"])
    result = await client.call_tool("tide")
    assert result.structured_content == [{"uri": "file:///pier"}]
    methods = [it["method"] for it in server.requests]
    assert methods == ["server/discover", "tools/call", "tools/call"]
    with pytest.raises(LocalProtocolError, match="has no notifications/roots/list_changed"):
        await client.notify_roots_changed()
    await client.aclose()


@pytest.mark.requirement("COMP-04")
@pytest.mark.parametrize("protocol_version", [*LEGACY, STATELESS])
async def test_what_is_settled_already_helps_to_complete(nursery, protocol_version):
    answers = {"completion/complete": {"completion": {"values": []}}}
    connect = stateless_client if protocol_version == STATELESS else legacy_client
    if protocol_version != STATELESS:
        answers["initialize"] = {**INITIALIZED, "protocolVersion": protocol_version}
    client, server = await connect(nursery, answers=answers)
    assert client.protocol_version == protocol_version
    await client.complete("plan", "city", "O", context={"country": "no"})
    (asked,) = server.asked("completion/complete")
    is_known = protocol_version in LEGACY[:2] or protocol_version == STATELESS
    assert asked.get("context") == ({"arguments": {"country": "no"}} if is_known else None)
    await client.aclose()


@pytest.mark.requirement("COMP-02", "LIFE-15")
@pytest.mark.parametrize("protocol_version", [*LEGACY, STATELESS])
async def test_completions_that_are_not_offered_are_not_asked_for(nursery, protocol_version):
    answers = {"completion/complete": {"completion": {"values": []}}}
    answers["server/discover"] = {**DISCOVERED, "capabilities": {}}
    connect = stateless_client
    if protocol_version != STATELESS:
        connect = legacy_client
        answers["initialize"] = {
            **INITIALIZED,
            "capabilities": {},
            "protocolVersion": protocol_version,
        }
    client, server = await connect(nursery, answers=answers)
    if protocol_version == LEGACY[-1]:  # where nobody could say so
        await client.complete("plan", "city", "O")
    else:
        with pytest.raises(LocalProtocolError, match="'completions' is not announced"):
            await client.complete("plan", "city", "O")
        assert server.asked("completion/complete") == []
    await client.aclose()


@pytest.mark.requirement("ELIC-33")
async def test_a_client_listens_for_the_visits_that_an_error_names(nursery):
    over = []
    url = {"mode": "url", "message": "m", "url": "https://a.example", "elicitationId": "v1"}
    answers = {"tools/call": error(-32042, "visit this", {"elicitations": [url]})}
    client, server = await legacy_client(
        nursery,
        answers=answers,
        elicitation=lambda _params: True,
        elicitation_modes=("url",),
        elicitation_complete=over.append,
    )
    for named in ("v1", "v2"):
        params = {"elicitationId": named}
        await server.peer.send_notification("notifications/elicitation/complete", params)
    await trio.testing.wait_all_tasks_blocked()
    assert over == []
    for data in ({"elicitations": [url]}, {"elicitations": 7}, None):
        server.answers["tools/call"] = error(-32042, "visit this", data)
        with pytest.raises(MCPError, match="visit this"):
            await client.call_tool("tide")
    for named in ("v1", "v2"):
        params = {"elicitationId": named}
        await server.peer.send_notification("notifications/elicitation/complete", params)
    await trio.testing.wait_all_tasks_blocked()
    assert over == ["v1"]
    await client.aclose()


@pytest.mark.requirement("PAG-05", "TRAP-77")
async def test_an_empty_cursor_is_not_the_end(nursery):
    pages = {None: {"tools": [], "nextCursor": ""}, "": {"tools": []}}
    answers = {"tools/list": lambda params: pages[params.get("cursor")]}
    client, server = await stateless_client(nursery, answers=answers)
    assert await client.list_tools() == []
    assert server.asked("tools/list") == [{}, {"cursor": ""}]
    await client.aclose()


async def test_what_a_stateless_server_asks_by_a_request_nobody_hears(nursery):
    client, server = await stateless_client(nursery, roots=[])
    await server.peer.send_request("roots/list", {}, id="r")
    await trio.testing.wait_all_tasks_blocked()
    assert len(server.requests) == 1
    assert sum(client.counts.values()) == 1
    await client.aclose()
