"""Requests to stateless servers: metadata, log level, pings, completion."""

import contextlib
from functools import partial

import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits, MCPError, RequestError, RequestTimeout, Server
from mcp_trio import types as t
from mcp_trio.errors import HEADER_MISMATCH, INVALID_PARAMS, LocalProtocolError, OutcomeUnknown
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
async def test_each_request_carries_its_trace_context(nursery):
    given = [{}, TRACE, {**TRACE, "x-amzn-trace-id": "Root=1"}]
    traces = iter(given)
    client, server = await stateless_client(nursery, answers=LISTED, trace=lambda: next(traces))
    assert not TRACE.keys() & server.metadata("server/discover").keys()
    for _ in range(2):
        await client.list_tools()
        metadata = server.metadata("tools/list")
        assert {name: metadata[name] for name in TRACE} == TRACE
        assert len(metadata) == len(TRACE) + 3
    await client.aclose()


@pytest.mark.requirement("TRACE-04")
async def test_a_legacy_server_gets_the_trace_context_too(nursery):
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
async def test_keys_that_are_no_trace_context_are_dropped(nursery, bad):
    traces = iter([TRACE, bad])
    client, server = await stateless_client(nursery, trace=lambda: next(traces))
    with pytest.raises(ValueError, match=r"not a valid (traceparent|tracestate|baggage)"):
        await client.list_tools()
    assert len(server.requests) == 1
    await client.aclose()


# Extensions.


@pytest.mark.requirement("EXT-02", "EXT-03", "EXT-05")
async def test_extensions_are_announced_only_if_given(nursery):
    capabilities = "io.modelcontextprotocol/clientCapabilities"
    extensions = {"com.example/maps": {}, "io.modelcontextprotocol/ui": {"mimeTypes": ["text/a"]}}
    for options, expected in [({}, {}), ({"extensions": extensions}, {"extensions": extensions})]:
        client, server = await stateless_client(nursery, **options)
        assert server.metadata("server/discover")[capabilities] == expected
        await client.aclose()


@pytest.mark.requirement("EXT-02")
@pytest.mark.parametrize(
    "identifier",
    ["maps", "/maps", "", "com.example", "1com/maps", "com-/maps", "com/-maps", "a b/c"],
)
def test_an_extension_identifier_without_a_prefix_is_rejected(identifier):
    with pytest.raises(ValueError, match=r"an extension needs a name such as com\.example/name"):
        Client(["server"], extensions={identifier: {}})


# The log level.


@pytest.mark.requirement("META-21")
async def test_a_stateless_server_gets_the_log_level_with_each_request(nursery):
    client, server = await stateless_client(nursery, answers=LISTED, log_level="info")
    await client.list_tools()
    assert server.metadata("tools/list")[LEVEL] == "info"
    await client.set_log_level("error")
    await client.list_tools()
    assert server.metadata("tools/list")[LEVEL] == "error"
    assert {it["method"] for it in server.requests} == {"server/discover", "tools/list"}
    await client.aclose()


async def test_without_a_log_level_none_is_sent(nursery):
    client, server = await stateless_client(nursery, answers=LISTED)
    await client.list_tools()
    assert LEVEL not in server.metadata("tools/list")
    await client.aclose()


@pytest.mark.requirement("TRAP-63")
@pytest.mark.parametrize(("level", "expected"), [(None, "debug"), ("error", "error")])
async def test_a_log_callback_requests_all_levels_by_default(nursery, level, expected):
    client, server = await stateless_client(nursery, answers=LISTED, log=print, log_level=level)
    await client.list_tools()
    assert server.metadata("tools/list")[LEVEL] == expected
    await client.aclose()


@pytest.mark.requirement("LOG-04")
async def test_a_legacy_server_gets_the_log_level_once(nursery):
    answers = {**LISTED, "logging/setLevel": {}}
    client, server = await legacy_client(nursery, answers=answers, log_level="info")
    await client.list_tools()
    assert server.asked("logging/setLevel") == [{"level": "info"}]
    assert server.asked("tools/list") == [{}]
    assert "_meta" not in server.requests[-1].get("params", {})
    await client.aclose()


async def test_a_rejected_log_level_does_not_end_the_session(nursery, caplog):
    answers = {"logging/setLevel": error(-32602, "no such level")}
    client, _ = await legacy_client(nursery, answers=answers, log_level="info")
    assert client.is_open
    assert "old rejected the log level: no such level" in caplog.text
    await client.aclose()


async def test_a_server_without_logging_gets_no_log_level(nursery):
    answers = {
        "initialize": {**INITIALIZED, "protocolVersion": LEGACY[0], "capabilities": {}},
    }
    client, server = await legacy_client(nursery, answers=answers, log_level="info")
    assert server.asked("logging/setLevel") == []
    await client.aclose()


@pytest.mark.parametrize("seconds", [3, 10_000], ids=["given up", "too late"])
async def test_an_unanswered_log_level_closes_the_session(nursery, autojump_clock, seconds):
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


async def test_a_ping_of_a_stateless_server_is_a_discover_request(nursery):
    discovered = {**DISCOVERED, "ttlMs": 10**6}
    client, server = await stateless_client(nursery, answers={"server/discover": discovered})
    for _ in range(2):
        await client.ping()
    assert len(server.asked("server/discover")) == 3
    assert len(server.requests) == 3
    await client.aclose()


async def test_keepalive_pings_suit_the_kind_of_server(nursery, autojump_clock):
    limits = Limits(requests=RequestLimits(ping_interval_seconds=10))
    for connect, method in [(stateless_client, "server/discover"), (legacy_client, "ping")]:
        client, server = await connect(nursery, limits=limits, answers={"ping": {}})
        earlier = len(server.requests)
        await trio.sleep(25)
        assert [it["method"] for it in server.requests[earlier:]] == [method] * 2
        await client.aclose()


@pytest.mark.requirement("TRAP-94")
async def test_a_stateless_server_gets_no_roots_changed_notification(nursery):
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
async def test_completion_sends_the_values_of_other_arguments(nursery, protocol_version):
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
async def test_completion_without_the_capability_is_rejected(nursery, protocol_version):
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
    if protocol_version == LEGACY[-1]:  # which has no such capability
        await client.complete("plan", "city", "O")
    else:
        with pytest.raises(LocalProtocolError, match="'completions' is not announced"):
            await client.complete("plan", "city", "O")
        assert server.asked("completion/complete") == []
    await client.aclose()


@pytest.mark.requirement("ELIC-33")
async def test_elicitations_named_by_an_error_can_complete(nursery):
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


async def test_a_request_of_a_stateless_server_is_ignored(nursery):
    client, server = await stateless_client(nursery, roots=[])
    await server.peer.send_request("roots/list", {}, id="r")
    await trio.testing.wait_all_tasks_blocked()
    assert len(server.requests) == 1
    assert sum(client.counts.values()) == 1
    await client.aclose()


# A client of a URL whose server is restarted.


def make_server():
    server = Server("harbour")
    calls = []

    @server.tool
    async def call(*, waits: bool = False) -> int:
        calls.append(waits)
        if waits:
            await trio.sleep_forever()
        return len(calls)

    return server, calls


async def serve(server, port, *, task_status):
    """Serve until cancelled; reports the URL and what ends it."""
    async with trio.open_nursery() as nursery:
        url = await nursery.start(partial(server.serve_http, port=port))
        task_status.started((url, nursery.cancel_scope))
        await trio.sleep_forever()


def port_of(url):
    return int(url.partition("//")[2].partition(":")[2].partition("/")[0])


@pytest.mark.requirement("HTTP-52", "TRAP-34")
@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_a_server_that_comes_back_serves_the_next_call(nursery, protocol_version):
    server, calls = make_server()
    url, life = await nursery.start(serve, server, 0)
    async with Client(url, protocol_versions=(protocol_version,)) as client:
        assert (await client.call_tool("call", result_type=int)) == 1
        life.cancel()
        await trio.testing.wait_all_tasks_blocked(0.05)
        with pytest.raises(ConnectionLost) as lost:
            await client.call_tool("call")
        assert not isinstance(lost.value, OutcomeUnknown)
        _, life = await nursery.start(serve, server, port_of(url))
        assert (await client.call_tool("call", result_type=int)) == 2
    assert calls == [False, False]
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
async def test_a_call_in_flight_is_not_made_again_by_itself(nursery, protocol_version):
    server, calls = make_server()
    url, life = await nursery.start(serve, server, 0)
    async with Client(url, protocol_versions=(protocol_version,)) as client:

        async def wait():
            with pytest.raises((ConnectionLost, RequestError), match="clos"):
                await client.call_tool("call", {"waits": True})

        async with trio.open_nursery() as calling:
            calling.start_soon(wait)
            while not calls:
                await trio.sleep(0.01)
            life.cancel()
    assert calls == [True]
    nursery.cancel_scope.cancel()


async def test_the_state_of_the_connection_is_reported(nursery):
    server, _ = make_server()
    states = []
    url, _ = await nursery.start(serve, server, 0)
    async with Client(url, state_changed=lambda state, _why: states.append(state)) as client:
        await client.ping()
    assert states[0] in {"connecting", "open"}
    assert states[-1] == "closed"
    nursery.cancel_scope.cancel()


# Calls whose parameter headers follow an outdated list of tools.


def make_server_stale_headers(*rejections):
    """A server that rejects the first calls like this; `asked` has its requests in order."""
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
    server, asked = make_server_stale_headers(HEADER_MISMATCH)
    async with Client(server) as client:
        await client.list_tools()
        assert (await client.call_tool("it")).content == [t.TextContent(text="done")]
    assert asked == ["list", "call", "list", "call"]


@pytest.mark.requirement("HDR-32", "TRAP-52")
async def test_a_call_is_repeated_only_once():
    server, asked = make_server_stale_headers(HEADER_MISMATCH, HEADER_MISMATCH)
    async with Client(server) as client:
        with pytest.raises(RequestError, match="the head does not say"):
            await client.call_tool("it")
    assert asked == ["call", "list", "call"]


async def test_other_rejections_are_not_repeated():
    server, asked = make_server_stale_headers(INVALID_PARAMS)
    async with Client(server) as client:
        with pytest.raises(RequestError, match="the head does not say"):
            await client.call_tool("it")
    assert asked == ["call"]
