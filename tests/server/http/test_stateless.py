"""Stateless requests over HTTP."""

from functools import partial

import pytest
import trio
import trio.testing

from mcp_trio import Client, Context, Limits, RequestError, Server
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION, SUBSCRIPTION_ID
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.limits import HttpLimits
from mcp_trio.middleware import ConcurrencyLimit, RateLimit
from mcp_trio.recording import SharedRecording, TickClock, replay, replay_live
from tests.server.http.conftest import (
    BOTH,
    STATELESS,
    call,
    harbour,
    hello,
    notes,
    notification,
    request,
    text,
)

EVENTS = "text/event-stream"
JSON = "application/json"
LOGS = {"io.modelcontextprotocol/logLevel": "debug"}


@pytest.fixture(params=[False, True], ids=["", "leading"])
def leads(request):
    """Both: each answer has a task of its own, or leader/followers answer."""
    return request.param


def listen(*kinds, id=1):  # noqa: A002 - as on the wire
    return request("subscriptions/listen", {"notifications": dict.fromkeys(kinds, True)}, id)


@pytest.fixture
def site_of(open_site, ended):
    async def site_of(*, limits=None, **options):
        server = harbour(ended, **({} if limits is None else {"limits": Limits(**limits)}))
        return await open_site(server, **options)

    return site_of


@pytest.mark.requirement("MHTTP-03", "MHTTP-14", "MHTTP-28")
@pytest.mark.parametrize("id_", [7, "seven", 0, ""])
async def test_a_request_is_answered_under_its_own_id(site_of, id_, autojump_clock):
    site = await site_of()
    answer = await site.ask_stateless(call("tide", id=id_), Mcp_Session_Id="none")
    assert (answer.status, answer.json["id"], text(answer.json)) == (200, id_, "high")
    assert "mcp-session-id" not in answer.headers
    assert len(site.runtime.sessions) == 0


async def test_clients_choose_the_ids_of_their_requests(site_of, autojump_clock):
    site = await site_of()
    asked = [site.begin_stateless(call("log", {"seconds": n}, id=1), meta=LOGS) for n in (1, 2, 3)]
    for exchange in asked:
        messages = await exchange.rest()
        assert notes(messages) == ["one", "two"]
        assert messages[-1]["id"] == 1


@pytest.mark.requirement("MHTTP-04", "MHTTP-15", "MHTTP-18", "MHTTP-19", "MHTTP-20")
async def test_a_slow_response_is_a_stream_that_cannot_be_resumed(site_of, autojump_clock):
    site = await site_of(limits={"http": HttpLimits(sse_keep_alive_seconds=2)})
    asked = site.begin_stateless(call("log"), meta=LOGS)
    await asked.begun()
    assert asked.is_stream
    assert asked.headers["x-accel-buffering"] == "no"
    assert "no-cache" in asked.headers["cache-control"]
    event = await asked.event()
    assert (event.id, event.retry_ms) == (None, None)
    assert b"one" in event.data
    assert text((await asked.rest())[-1]) == "logged"
    assert asked.comments == 2


@pytest.mark.requirement("LOG-08", "TRAP-63")
async def test_without_a_log_level_only_the_response_is_sent(site_of, autojump_clock):
    asked = (await site_of()).begin_stateless(call("log"))
    assert [text(each) for each in await asked.rest()] == ["logged"]


@pytest.mark.requirement("MHTTP-16", "TRAP-61")
async def test_notifications_of_a_request_are_sent_only_to_its_client(open_site, autojump_clock):
    server = Server("harbour")

    @server.tool
    async def report(name: str, *, ctx: Context) -> str:
        await ctx.report_progress(1, message=name)
        await trio.sleep(1)
        await ctx.report_progress(2, message=name)
        return name

    site = await open_site(server)
    asked = {
        name: site.begin_stateless(call("report", {"name": name}, _meta={"progressToken": "t"}))
        for name in "abc"
    }
    for name, exchange in asked.items():
        messages = await exchange.rest()
        assert [each["params"]["message"] for each in messages[:-1]] == [name, name]
        assert text(messages[-1]) == name


@pytest.mark.requirement("MHTTP-22", "MHTTP-23", "MHTTP-24", "TRAP-38", "TRAP-55", "TRAP-56")
@pytest.mark.parametrize("accept", [BOTH, JSON, EVENTS])
async def test_a_disconnecting_client_cancels_its_request(site_of, ended, accept, autojump_clock):
    site = await site_of()
    asked = site.begin_stateless(call("wait", {"seconds": 60}), accept=accept)
    other = site.begin_stateless(call("wait", {"seconds": 60}))
    await trio.sleep(10)
    assert ended == []
    sent = len(asked.pieces)
    asked.leave()
    await trio.sleep(1)
    assert ended == ["cancelled"]
    assert (len(asked.pieces), asked.is_ended) == (sent, False)
    assert [text(each) for each in await other.rest()] == ["waited"]


@pytest.mark.requirement("MHTTP-22")
async def test_a_client_that_disconnects_before_the_response_cancels_its_request(
    site_of, ended, autojump_clock
):
    site = await site_of()
    asked = site.stateless(call("wait", {"seconds": 60}))
    asked.is_hasty = True
    await site.app.respond(asked)
    await trio.sleep(1)
    assert ended == ["cancelled"]
    assert asked.status is None


@pytest.mark.requirement("MHTTP-13", "MHTTP-12")
@pytest.mark.parametrize("id_", [1, 2, 3, "1"])
async def test_a_client_cannot_cancel_the_request_of_another(site_of, ended, id_, autojump_clock):
    site = await site_of()
    asked = [site.begin_stateless(call("wait", {"seconds": 9}, id=1)) for _ in range(3)]
    await trio.sleep(1)
    answer = await site.ask_stateless(notification("notifications/cancelled", {"requestId": id_}))
    assert (answer.status, answer.answer_body) == (202, b"")
    for exchange in asked:
        assert [text(each) for each in await exchange.rest()] == ["waited"]
    assert ended == ["done"] * 3


@pytest.mark.requirement("MHTTP-12", "TRAP-57")
async def test_a_notification_is_accepted_without_content(site_of, autojump_clock):
    answer = await (await site_of()).ask_stateless(notification("notifications/tide"))
    assert (answer.status, answer.answer_body) == (202, b"")


@pytest.mark.requirement("MHTTP-26", "TRAP-53", "TRAP-54", "MHTTP-28")
@pytest.mark.parametrize("accept", [BOTH, JSON, EVENTS])
@pytest.mark.parametrize(
    "method", ["initialize", "ping", "logging/setLevel", "resources/subscribe", "unknown/method"]
)
async def test_an_unknown_method_is_not_found(site_of, method, accept, autojump_clock):
    params = hello("2026-07-28")["params"] if method == "initialize" else {}
    answer = await (await site_of()).ask_stateless(request(method, params, "q"), accept=accept)
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (404, "q", -32601)


@pytest.mark.requirement("MHTTP-27", "VER-02", "TRAP-30")
async def test_an_unsupported_version_is_a_bad_request(site_of, autojump_clock):
    answer = await (await site_of()).ask_stateless(
        request("tools/list"), meta={PROTOCOL_VERSION: "v999"}, MCP_Protocol_Version="v999"
    )
    assert (answer.status, answer.json["id"]) == (400, 1)
    error = answer.json["error"]
    assert (error["code"], error["data"]["requested"]) == (-32022, "v999")
    assert error["data"]["supported"] == [*ALL_PROTOCOL_VERSIONS]


@pytest.mark.parametrize("method", ["initialize", "ping", "tools/list"])
@pytest.mark.parametrize("version", ["2025-11-25", "2025-03-26"])
async def test_legacy_methods_cannot_change_the_shared_stateless_session(
    site_of, method, version, autojump_clock
):
    site = await site_of()
    params = hello(version)["params"] if method == "initialize" else {}
    response = await site.ask_stateless(
        request(method, params), meta={PROTOCOL_VERSION: version}, MCP_Protocol_Version=version
    )
    assert response.status in (400, 404)
    assert "result" not in response.json
    begun = notification("notifications/initialized")
    assert (await site.ask_stateless(begun)).status == 202
    params = {"_meta": {CLIENT_CAPABILITIES: {}}, **hello(version)["params"]}
    fields = {"MCP_Protocol_Version": STATELESS, "Mcp_Method": "initialize"}
    lacking = await site.ask("POST", request("initialize", params), **fields)
    assert "result" not in lacking.json
    answer = await site.ask_stateless(call("tide"))
    assert (answer.status, text(answer.json)) == (200, "high")
    assert answer.json["result"]["resultType"] == "complete"
    assert (await site.ask_stateless(request("ping"))).status == 404


@pytest.mark.requirement("HDR-07", "ERR-13")
async def test_a_version_that_differs_in_header_and_body_is_a_bad_request(site_of, autojump_clock):
    answer = await (await site_of()).ask_stateless(
        request("tools/list"), meta={PROTOCOL_VERSION: "v999"}
    )
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (400, 1, -32020)


@pytest.mark.requirement("META-15", "TRAP-29")
@pytest.mark.parametrize(
    "meta", [None, {}, {PROTOCOL_VERSION: STATELESS}, {CLIENT_CAPABILITIES: {}}]
)
async def test_a_request_without_its_metadata_is_a_bad_request(site_of, meta, autojump_clock):
    site = await site_of()
    params = {} if meta is None else {"_meta": meta}
    answer = await site.ask(
        "POST",
        request("server/discover", params, "q"),
        MCP_Protocol_Version=STATELESS,
        Mcp_Method="server/discover",
    )
    assert (answer.status, answer.json["id"], answer.json["error"]["code"]) == (400, "q", -32602)


@pytest.mark.requirement("TRAP-53", "TRAP-66")
async def test_an_ordinary_error_is_an_answer(site_of, autojump_clock):
    answer = await (await site_of()).ask_stateless(call("nowhere"))
    assert (answer.status, answer.json["error"]["code"]) == (200, -32602)


@pytest.mark.requirement("MHTTP-17", "TRAP-53")
async def test_a_missing_client_capability_is_a_bad_request(site_of, autojump_clock):
    answer = await (await site_of()).ask_stateless(call("ask"))
    assert (answer.status, answer.json["error"]["code"]) == (400, -32021)


@pytest.mark.requirement("MHTTP-17")
async def test_a_stream_contains_an_input_required_result_instead_of_a_request(
    site_of, autojump_clock
):
    site = await site_of()
    answer = await site.ask_stateless(
        call("ask"), meta={CLIENT_CAPABILITIES: {"sampling": {}}}, accept=EVENTS
    )
    [message] = await answer.rest()
    assert "method" not in message
    assert message["result"]["resultType"] == "input_required"


async def test_a_client_that_does_not_read_is_cancelled(site_of, autojump_clock):
    site = await site_of(limits={"http": HttpLimits(unsent_bytes_max=2000)})
    asked = site.begin_stateless(call("flood", {"count": 10_000}), meta=LOGS)
    asked.stall()
    await trio.sleep(1)
    asked.read_on()
    await trio.sleep(1)
    assert not asked.is_ended
    await trio.testing.wait_all_tasks_blocked()
    assert not site.runtime.stateless._open


@pytest.mark.slow
async def test_a_client_that_reads_gets_every_message(site_of, autojump_clock):
    asked = (await site_of()).begin_stateless(call("flood", {"count": 3000}), meta=LOGS)
    assert len(notes(await asked.rest())) == 3000


@pytest.mark.requirement("SUB-08", "MHTTP-16")
async def test_notifications_have_the_id_of_their_subscription(site_of, autojump_clock):
    site = await site_of()
    first = site.begin_stateless(listen("toolsListChanged", id="a"))
    second = site.begin_stateless(listen("toolsListChanged", id=1))
    other = site.begin_stateless(listen("promptsListChanged", id=1))
    for exchange, id_ in ((first, "a"), (second, 1), (other, 1)):
        message = await exchange.message()
        assert message["method"] == "notifications/subscriptions/acknowledged"
        assert message["params"]["_meta"][SUBSCRIPTION_ID] == id_
    await site.ask_stateless(call("ebb"))
    for exchange, id_ in ((first, "a"), (second, 1)):
        message = await exchange.message()
        assert message["method"] == "notifications/tools/list_changed"
        assert message["params"]["_meta"][SUBSCRIPTION_ID] == id_
    await trio.sleep(1)
    assert other._events == []


@pytest.mark.requirement("SUB-13", "MHTTP-22")
async def test_a_subscription_ends_when_its_client_disconnects(site_of, autojump_clock):
    site = await site_of()
    asked = site.begin_stateless(listen("toolsListChanged"))
    await asked.message()
    asked.leave()
    await trio.sleep(1)
    assert not site.runtime.stateless._open
    await site.ask_stateless(call("ebb"))
    assert asked._events == []


@pytest.mark.requirement("SUB-14", "SUB-08", "MHTTP-18")
async def test_a_subscription_ends_with_its_result_when_the_server_closes(site_of, autojump_clock):
    site = await site_of()
    asked = site.begin_stateless(listen("toolsListChanged", id="a"))
    await asked.message()
    site.runtime.close()
    [last] = await asked.rest()
    assert (last["id"], last["result"]["_meta"][SUBSCRIPTION_ID]) == ("a", "a")


@pytest.mark.parametrize(("accept", "status"), [(BOTH, 200), (JSON, 503)])
async def test_a_request_cancelled_by_the_shutdown_is_answered(
    site_of, ended, accept, status, autojump_clock
):
    site = await site_of()
    asked = site.begin_stateless(call("wait", {"seconds": 60}, id="q"), accept=accept)
    await trio.sleep(1)
    site.runtime.close()
    await trio.sleep(20)
    assert (ended, asked.is_ended, asked.status) == (["cancelled"], True, status)
    if accept == JSON:
        assert asked.json["id"] == "q"
    assert site.runtime.ended.is_set()


async def test_a_closing_server_rejects_new_requests(site_of, autojump_clock):
    site = await site_of()
    client = await site.open()
    site.runtime.close()
    for answer in (
        await site.ask_stateless(call("tide")),
        await site.ask("POST", hello("2025-11-25")),
        await client.ask(call("tide")),
        await site.ask("GET", path="/sse"),
    ):
        assert answer.status == 503
        assert "closing" in answer.json["error"]["message"]


@pytest.mark.parametrize("protocol_versions", [["2025-11-25"], [STATELESS]])
async def test_a_server_serves_only_its_own_protocol_versions(
    open_site, protocol_versions, autojump_clock
):
    site = await open_site(harbour(protocol_versions=protocol_versions))
    stateless = await site.ask_stateless(request("tools/list"))
    assert (stateless.status == 200) == (protocol_versions == [STATELESS])
    legacy = await site.ask("POST", hello("2025-11-25"))
    assert (legacy.status == 200) == (protocol_versions != [STATELESS])
    sse = site.begin("GET", path="/sse")
    await sse.begun()
    assert (sse.status == 200) == (protocol_versions != [STATELESS])


@pytest.mark.requirement("HDR-08", "HDR-23", "HDR-26", "HDR-27", "HDR-31", "TRAP-46")
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Mcp_Param_Region": "bay"}, 200),
        ({"MCP_PARAM_REGION": "  bay "}, 200),
        ({"Mcp_Param_Region": "=?base64?YmF5?="}, 200),
        ({"Mcp_Param_Region": "bay", "Mcp_Param_Other": "x"}, 200),
        ({"Mcp_Param_Region": "BAY"}, 400),
        ({"Mcp_Param_Region": "=?base64?YmF?="}, 400),
        ({"Mcp_Param_Region": "=?base64?Ym!5?="}, 400),
        ({}, 400),
    ],
    ids=str,
)
async def test_an_argument_repeated_in_a_header_must_match(
    open_site, fields, status, autojump_clock
):
    server = Server("harbour")
    schema = {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    }

    @server.tool(input_schema=schema)
    async def tide(arguments: dict) -> str:
        return arguments["region"]

    site = await open_site(server)
    answer = await site.ask_stateless(call("tide", {"region": "bay"}), **fields)
    assert answer.status == status, answer.answer_body
    if status == 400:
        assert answer.json["error"]["code"] == -32020


def limited(server):
    server.middleware(RateLimit("2/hour"))
    server.middleware(ConcurrencyLimit(1, methods=["prompts/get"]))

    @server.prompt
    async def wait(*, ctx: Context) -> str:
        await ctx.sleep(1)
        return "waited"

    return server


@pytest.mark.parametrize("accept", [BOTH, JSON])
async def test_a_rate_limited_request_gets_429_and_the_time_to_wait(
    open_site, ended, accept, autojump_clock
):
    site = await open_site(limited(harbour(ended)))
    for _ in range(2):
        assert (await site.ask_stateless(call("tide"), accept=accept)).status == 200
    answer = await site.ask_stateless(call("tide", id=7), accept=accept)
    assert (answer.status, answer.headers["retry-after"]) == (429, "1800")
    assert answer.headers["content-type"] == JSON
    error = answer.json["error"]
    assert (answer.json["id"], error["code"]) == (7, 429)
    assert error["data"] == {"retryAfter": pytest.approx(1800, abs=1)}
    assert (await site.ask_stateless(request("tools/list"))).status == 200


async def test_without_a_time_to_wait_there_is_no_retry_after(open_site, ended, autojump_clock):
    site = await open_site(limited(harbour(ended)))
    first = site.begin_stateless(request("prompts/get", {"name": "wait"}, 1))
    await trio.sleep(0.05)
    answer = await site.ask_stateless(request("prompts/get", {"name": "wait"}, 2))
    assert (answer.status, "retry-after" in answer.headers) == (429, False)
    assert (await first.rest())[-1]["id"] == 1


async def test_clients_at_other_addresses_have_limits_of_their_own(
    open_site, ended, autojump_clock
):
    site = await open_site(limited(harbour(ended)))
    statuses = [
        (await site.ask_stateless(call("tide"), client=client)).status
        for client in ["192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"] * 2
    ]
    # Hosts of one network of IPv6 are one client.
    assert statuses == [200, 200, 200, 200, 200, 200, 429, 429]
    # The runtime tells apart as many clients as it remembers, also in sessions.
    session = await site.open(client="192.0.2.1")
    answer = await session.ask(call("tide"))
    assert (answer.status, answer.json["error"]["code"]) == (200, 429)
    answer = await (await site.open(client="192.0.2.9")).ask(call("tide"))
    assert text(answer.json) == "high"


@pytest.mark.real_time
async def test_a_client_reads_the_time_to_wait_from_a_429(nursery, ended):
    url = await nursery.start(partial(limited(harbour(ended)).serve_http, port=0))
    async with Client(url) as client:
        for _ in range(2):
            assert (await client.call_tool("tide")).content[0].text == "high"
    # The WebSocket comes from the same address.
    for target in (url, url.replace("http", "ws", 1).removesuffix("mcp") + "ws"):
        async with Client(target) as client:
            with pytest.raises(RequestError, match="code 429") as caught:
                await client.call_tool("tide")
            assert 1700 < caught.value.data["retryAfter"] <= 1800


# State --------------------------------------------------------------------------------------------


def counting():
    server = Server("counting")

    @server.middleware
    async def count_before(request, call_next):
        if request.name == "count":
            request.context.state["count"] = 1
        return await call_next(request)

    @server.tool
    async def count(ctx: Context) -> str:
        """Add one to what the middleware has counted."""
        ctx.state["count"] = ctx.state.get("count", 0) + 1
        return str(ctx.state)

    @server.tool
    async def keep(value: str, ctx: Context) -> str:
        """Return what is in the state, and keep a value there."""
        before = str(ctx.state)
        ctx.state["value"] = value
        answer = await ctx.elicit("Sure?", bool)
        return f"{before} {answer.data} {ctx.state}"

    return server


async def keep_values(url):
    results = []
    for value in ("pearl", "coral"):
        async with Client(url, elicitation=lambda _: True) as client:
            results.append((await client.call_tool("keep", {"value": value})).data)
            results.append((await client.call_tool("count")).data)
    return results


def test_each_request_has_its_own_state(tmp_path):
    """No client reads what another one's request has kept; a replay does the same."""
    results = []

    async def main():
        async with trio.open_nursery() as nursery:
            serve = partial(counting().serve_http, port=0, record=tmp_path)
            results.extend(await keep_values(await nursery.start(serve)))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=TickClock())
    assert results == [
        "{} True {'value': 'pearl'}",
        "{'count': 2}",
        "{} True {'value': 'coral'}",
        "{'count': 2}",
    ]
    (file,) = tmp_path.iterdir()
    assert replay(file, counting()).is_complete
    assert replay_live(file, counting()).differences == ()


def test_each_request_has_its_own_state_in_a_file_of_several_sessions(tmp_path):
    async def main():
        with SharedRecording(tmp_path / "a.mcprec.jsonl") as shared:
            async with trio.open_nursery() as nursery:
                serve = partial(counting().serve_http, port=0, record=shared)
                await keep_values(await nursery.start(serve))
                nursery.cancel_scope.cancel()

    trio.run(main, clock=TickClock())
    assert replay(tmp_path / "a.mcprec.jsonl", counting()).is_complete
