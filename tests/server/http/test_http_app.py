"""The HTTP application: endpoints, authorization, mounting and shutdown."""

import contextlib
import functools
import inspect

import httpx2
import pytest
import trio
import trio.testing
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from mcp_trio import Client, ConnectionLost, Context, Limits, Server, ThreadContext
from mcp_trio._journal.redaction import redact_recording
from mcp_trio._server.http_serve import HttpAddress
from mcp_trio._transports.hypercorn import serve_hypercorn
from mcp_trio.limits import MessageLimits, ShutdownLimits
from mcp_trio.recording import RecordOptions, Redaction, read_recording, replay
from mcp_trio.transports import open_websocket_channel
from tests.server.http.conftest import call, harbour, hello, request, site_of, text
from tests.server.http.test_http_serve import answered, stateless
from tests.server.rounds import NOT_VALID, TRUE, text_of


async def test_the_health_endpoint_responds_with_ok(open_site, autojump_clock):
    site = await open_site(harbour())
    answer = await site.ask("GET", path="/health")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize("path", ["/", "/mcp/x", "/MCP", "/health/x"])
async def test_the_404_response_names_the_endpoint(open_site, path, autojump_clock):
    rejected = await (await open_site(harbour())).ask("POST", hello("2025-11-25"), path=path)
    assert rejected.status == 404
    assert "/mcp" in rejected.json["error"]["message"]


@pytest.mark.parametrize("path", ["/there", "/there/", "/there?x=1"])
async def test_the_path_of_the_endpoint_can_be_changed(open_site, path, autojump_clock):
    site = await open_site(harbour(), path="/there")
    assert (await site.ask("POST", hello("2025-11-25"), path=path)).status == 200
    assert (await site.ask("POST", hello("2025-11-25"), path="/mcp")).status == 404


@pytest.mark.requirement("HTTP-02", "HTTP-03", "MHTTP-05", "MHTTP-06", "SEC-10", "TRAP-45")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE", "OPTIONS"])
async def test_a_page_of_another_origin_is_rejected(open_site, method, autojump_clock):
    site = await open_site(harbour())
    rejected = await site.ask(method, hello("2025-11-25"), Origin="http://evil.example")
    assert (rejected.status, "id" in rejected.json) == (403, False)
    assert len(site.runtime.sessions) == 0
    own = await site.ask("POST", hello("2025-11-25"), Origin="http://127.0.0.1:80")
    assert own.status == 200


async def test_cors_headers_are_sent_if_allowed(open_site, autojump_clock):
    page = "http://app.example"
    site = await open_site(harbour(), origins=[page], allows_cors=True)
    asked = await site.ask("OPTIONS", Origin=page, Access_Control_Request_Method="POST")
    assert (asked.status, asked.headers["access-control-allow-origin"]) == (204, page)
    for message in (hello("2025-11-25"), b"{", call("tide")):
        answer = await site.ask("POST", message, Origin=page)
        assert answer.headers["access-control-allow-origin"] == page
        assert "Mcp-Session-Id" in answer.headers["access-control-expose-headers"]
    stateless = await site.ask_stateless(call("log"), Origin=page)
    assert stateless.headers["access-control-allow-origin"] == page
    other = await site.ask("OPTIONS", Origin="http://x", Access_Control_Request_Method="POST")
    assert (other.status, other.headers["vary"]) == (403, "Origin")


@pytest.mark.parametrize("path", ["/mcp", "/messages"])
async def test_a_body_over_the_limit_is_rejected(open_site, path, autojump_clock):
    site = await open_site(harbour(limits=Limits(messages=MessageLimits(bytes_max=100))))
    rejected = await site.ask("POST", b" " * 101, path=path)
    assert rejected.status == 413
    assert "limits.messages.bytes_max" in rejected.json["error"]["message"]


async def test_a_client_that_disconnects_during_its_request_gets_no_response(
    open_site, autojump_clock
):
    site = await open_site(harbour())
    asked = site.exchange("POST", hello("2025-11-25"))
    asked.leave()
    await site.app.respond(asked)
    assert asked.status is None
    assert len(site.runtime.sessions) == 0


async def test_the_lifespan_is_entered_once_around_all_sessions(autojump_clock):
    events = []

    @contextlib.asynccontextmanager
    async def lifespan(server):
        events.append("in")
        yield "sea"
        events.append("out")

    server = Server("harbour", lifespan=lifespan)

    @server.tool
    async def where(*, ctx: Context) -> str:
        return ctx.lifespan

    async with site_of(server) as site:
        for _ in range(2):
            client = await site.open()
            assert text((await client.ask(call("where"))).json) == "sea"
        assert text((await site.ask_stateless(call("where"))).json) == "sea"
        assert events == ["in"]
        site.runtime.close()
        await site.runtime.ended.wait()
        assert events == ["in", "out"]


async def test_all_sessions_end_with_the_runtime(open_site, ended, autojump_clock):
    site = await open_site(harbour(ended))
    clients = [await site.open() for _ in range(3)]
    asked = [client.begin(call("wait", {"seconds": 60})) for client in clients]
    listening = [client.listen() for client in clients]
    await trio.sleep(1)
    site.runtime.close()
    with trio.fail_after(10):
        await site.runtime.ended.wait()
        for exchange in [*asked, *listening]:
            assert await exchange.rest() == []
    assert ended == ["cancelled"] * 3
    assert len(site.runtime.sessions) == 0


async def test_a_runtime_does_not_wait_for_a_handler_that_shields_itself(open_site, autojump_clock):
    server = Server("harbour", limits=Limits(shutdown=ShutdownLimits(close_seconds=1)))

    @server.tool
    async def stay() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(30)

    site = await open_site(server)
    client = await site.open()
    client.begin(call("stay"))
    await trio.sleep(1)
    began = trio.current_time()
    site.runtime.close()
    await site.runtime.ended.wait()
    assert trio.current_time() - began <= 30


async def test_a_cancelled_runtime_cancels_its_handlers_and_ends(autojump_clock, ended):
    async with site_of(harbour(ended)) as site:
        client = await site.open()
        asked = client.begin(call("wait", {"seconds": 60}))
        await trio.sleep(1)
    assert ended == ["cancelled"]
    assert site.runtime.ended.is_set()
    assert asked.is_stream


async def test_a_single_recording_file_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="record to a folder"):
        await harbour().serve_http(port=0, record=tmp_path / "one.jsonl")
    with pytest.raises(ValueError, match="record to a folder"):
        harbour().asgi(record=tmp_path / "one.jsonl")


async def test_the_health_endpoint_needs_no_authorization(open_site, autojump_clock):
    async def verify(_head):
        return None

    site = await open_site(harbour(auth=verify))
    assert (await site.ask("GET", path="/health")).status == 200
    assert (await site.ask("POST", hello("2025-11-25"))).status == 401


# The defaults of a server over HTTP.


@pytest.mark.requirement("SEC-08", "HTTP-04", "MHTTP-07", "SSE-06")
def test_the_defaults_are_stdio_and_the_loopback_address():
    assert inspect.signature(Server.run).parameters["transport"].default == "stdio"
    assert inspect.signature(Server.serve_http).parameters["host"].default == "127.0.0.1"
    assert HttpAddress().host == "127.0.0.1"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"server": "apache"}, "native or hypercorn"),
        ({"keyfile": "a.key"}, "certfile="),
    ],
)
async def test_invalid_options_are_rejected(options, text):
    with pytest.raises(ValueError, match=text):
        await Server("x").serve_http(port=0, **options)


async def test_a_taken_address_is_an_error(nursery):
    server = Server("x")
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    with pytest.raises(OSError, match="in use"):
        await server.serve_http(port=listener.socket.getsockname()[1])
    await listener.aclose()


@pytest.mark.requirement("HTTP-57", "TRAP-35", "TRAP-36")
@pytest.mark.parametrize("protocol_version", ["2025-06-18", "2025-11-25"])
async def test_the_protocol_version_header_may_be_missing_in_a_session(
    open_site, protocol_version, autojump_clock
):
    server = Server("x")

    @server.tool
    async def spoken(*, ctx: Context) -> str:
        return ctx.protocol_version

    client = await (await open_site(server)).open(protocol_version)
    ask = request("tools/call", {"name": "spoken", "arguments": {}})
    answer = await client.ask(ask, MCP_Protocol_Version=None)
    assert answer.json["result"]["content"] == [{"type": "text", "text": protocol_version}]


# Paths of endpoints.


@pytest.mark.parametrize("path", ["/ws", "/ws/", "/sse", "/messages", "/health", "/ready"])
async def test_two_endpoints_at_one_path_are_rejected(path):
    with (
        trio.fail_after(5),
        pytest.raises(ValueError, match=r"two endpoints cannot have the path /"),
    ):
        await Server("x").serve_http(port=0, path=path)


@pytest.mark.parametrize("option", ["path", "ws_path"])
async def test_a_path_without_a_slash_at_its_start_is_rejected(option):
    with (
        trio.fail_after(5),
        pytest.raises(ValueError, match="has to begin with a slash, unlike 'there'"),
    ):
        await Server("x").serve_http(port=0, **{option: "there"})


def test_a_disabled_endpoint_leaves_its_path_free():
    assert Server("x").asgi(path="/ws", has_websocket=False)
    assert Server("x").asgi(path="/sse", has_sse=False)


# Our application mounted in Starlette's, under hypercorn on Trio.


LEGACY, STATELESS = "2025-11-25", "2026-07-28"


@pytest.fixture
async def site(nursery):
    """Serve a Starlette application, with ours under `/deep/down`, and return the URL."""
    server = Server("harbour")

    @server.tool
    async def tide() -> str:
        return "high"

    async def home(_request):
        return PlainTextResponse("home")

    mounted = server.asgi()
    app = Starlette(routes=[Route("/", home), Mount("/deep/down", app=mounted)])
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    quick_stop = Limits(shutdown=ShutdownLimits(close_seconds=0.2))
    await nursery.start(functools.partial(serve_hypercorn, app, listeners, limits=quick_stop))
    yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    await mounted.aclose()
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol_version", [LEGACY, STATELESS])
@pytest.mark.parametrize("place", ["ws://{}/deep/down/ws", "http://{}/deep/down/mcp"])
async def test_a_mounted_application_serves_both_transports_to_stateless_and_legacy_clients(
    site, place, protocol_version
):
    async with Client(place.format(site), protocol_versions=[protocol_version]) as client:
        assert client.protocol_version == protocol_version
        assert (await client.call_tool("tide")).content[0].text == "high"


async def test_other_paths_belong_to_the_surrounding_application(site):
    async with httpx2.AsyncClient() as http:
        assert (await http.get(f"http://{site}/")).text == "home"
    with pytest.raises(ConnectionLost, match=r"HTTP 40[34]"):
        await open_websocket_channel(f"ws://{site}/ws")


async def test_a_mounted_application_rejects_a_page_of_another_origin(site):
    with pytest.raises(ConnectionLost, match="403"):
        await open_websocket_channel(
            f"ws://{site}/deep/down/ws", headers={"Origin": "https://evil.example"}
        )


# A mounted application that starts slowly.


@pytest.fixture
def reported():
    return []


@pytest.fixture
def app(reported):
    @contextlib.asynccontextmanager
    async def lifespan(_server):
        reported.append("begins")
        await trio.sleep(5)
        yield
        reported.append("ends")

    return harbour(lifespan=lifespan).asgi()


greeted = functools.partial(answered, method="POST", path="/mcp", message=hello("2025-11-25"))


async def test_an_application_starts_although_its_first_client_has_left(
    app, reported, autojump_clock
):
    with trio.move_on_after(1) as patience:
        await greeted(app)
    assert patience.cancelled_caught
    status, _head, _body = await greeted(app)
    assert (status, reported) == (200, ["begins"])
    await app.aclose()
    assert reported == ["begins", "ends"]


async def test_an_application_closed_during_its_start_ends_its_lifespan(
    app, reported, autojump_clock
):
    async with trio.open_nursery() as nursery:
        nursery.start_soon(greeted, app)
        await trio.sleep(1)
        await app.aclose()
    assert reported == ["begins", "ends"]


async def test_closing_an_application_cancels_a_lifespan_that_hangs_in_its_start(autojump_clock):
    @contextlib.asynccontextmanager
    async def lifespan(_server):
        await trio.sleep_forever()
        yield

    limits = Limits(shutdown=ShutdownLimits(exit_seconds=2))
    app, statuses = harbour(lifespan=lifespan, limits=limits).asgi(), []

    async def greet():
        status, _head, _body = await greeted(app)
        statuses.append(status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(greet)
        await trio.sleep(1)
        await app.aclose()
    assert statuses == [503]


# The principal that `auth=` gives, in handlers, states and recordings.


FORMS = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
TOKENS = {"Bearer 1": "anna", "Bearer 2": "bert"}
ANNA, BERT = TOKENS


async def verify(head):
    return TOKENS.get(head.header("authorization"))


def principal_server(auth=None):
    server = Server("harbour", auth=auth)

    @server.tool
    async def who(*, ctx: Context) -> str:
        return f"{ctx.principal}"

    @server.tool
    def who_in_a_thread(*, ctx: ThreadContext) -> str:
        return f"{ctx.principal}"

    async def steer(*, ctx: Context) -> str:
        answer = await ctx.elicit("sure?", bool)
        return f"{ctx.principal}: {answer.data}"

    server.tool(steer, name="suspended")
    server.tool(steer, name="sealed", resumable=True)
    return server


@pytest.mark.parametrize("tool", ["who", "who_in_a_thread"])
async def test_stateless_and_legacy_handlers_get_the_principal(open_site, tool):
    site = await open_site(principal_server(verify))
    for token, name in TOKENS.items():
        client = await site.open(Authorization=token)
        assert text((await client.ask(call(tool))).json) == name
        answer = await site.ask_stateless(call(tool), Authorization=token)
        assert text(answer.json) == name


@pytest.mark.requirement("STATE-07")
@pytest.mark.parametrize("host", ["native", "hypercorn"])
async def test_each_request_on_a_connection_is_verified_again(nursery, host):
    serve = functools.partial(principal_server(verify).serve_http, port=0, server=host)
    url = await nursery.start(serve)
    asked, connections = stateless(call("who")), []
    async with httpx2.AsyncClient() as http:
        for token in (ANNA, None, BERT, "Bearer 3", ANNA):
            proof = {} if token is None else {"Authorization": token}
            headers = {**asked["headers"], **proof}
            async with http.stream(
                "POST", url, content=asked["content"], headers=headers
            ) as answer:
                stream = answer.extensions["network_stream"]
                connections.append(stream.get_extra_info("client_addr"))
                await answer.aread()
            if token in TOKENS:
                assert text(answer.json()) == TOKENS[token]
            else:
                assert answer.status_code == 401
                assert "result" not in answer.json()
    assert connections[1] == connections[0]  # which was authenticated
    nursery.cancel_scope.cancel()


async def test_without_auth_there_is_no_principal(open_site, autojump_clock):
    site = await open_site(principal_server())
    client = await site.open(Authorization=ANNA)
    assert text((await client.ask(call("who"))).json) == "None"
    assert text((await site.ask_stateless(call("who"), Authorization=ANNA)).json) == "None"


async def test_handlers_over_http_with_sse_get_the_principal(open_site, autojump_clock):
    site = await open_site(principal_server(verify))
    stream = site.begin("GET", path="/sse", accept="text/event-stream", Authorization=ANNA)
    path = "/" + (await stream.event()).data.decode()
    for message in (hello("2024-11-05"), call("who")):
        await site.ask("POST", message, path=path, Authorization=ANNA)
    await stream.message()
    assert text(await stream.message()) == "anna"


@pytest.mark.requirement("MRTR-19", "MRTR-22", "STATE-09", "TRAP-96")
@pytest.mark.parametrize("tool", ["suspended", "sealed"])
async def test_a_state_is_valid_only_for_its_principal(open_site, tool, autojump_clock):
    site = await open_site(principal_server(verify))
    asked = await site.ask_stateless(call(tool), meta=FORMS, Authorization=ANNA)
    state = asked.json["result"]["requestState"]
    retry = call(tool, id=2, requestState=state, inputResponses={"q1": TRUE})
    rejected = await site.ask_stateless(retry, meta=FORMS, Authorization=BERT)
    assert rejected.json["error"] == NOT_VALID
    answer = await site.ask_stateless(retry, meta=FORMS, Authorization=ANNA)
    assert text_of(answer.json["result"]) == "anna: True"


# Recordings.


async def record(options):
    async with site_of(principal_server(verify), record=options) as site:
        for token in TOKENS:
            client = await site.open(Authorization=token)
            await client.ask(call("who"))
            await site.ask_stateless(call("who"), Authorization=token)
        asked = await site.ask_stateless(call("suspended"), meta=FORMS, Authorization=ANNA)
        state = asked.json["result"]["requestState"]
        retry = call("suspended", id=2, requestState=state, inputResponses={"q1": TRUE})
        for token in (BERT, ANNA):
            await site.ask_stateless(retry, meta=FORMS, Authorization=token)
        site.runtime.close()
        await site.runtime.ended.wait()


def recorded(options, folder):
    trio.run(record, options, clock=trio.testing.MockClock(autojump_threshold=0))
    return sorted(folder.iterdir())


def test_the_principal_is_recorded_and_replayed(tmp_path):
    files = recorded(tmp_path, tmp_path)
    assert len(files) == 3
    for file in files:
        assert replay(file, principal_server()).is_complete, file
    everything = "".join(file.read_text() for file in files)
    assert '"x":{"principal":"anna"}' in everything
    assert '"x":{"principal":"bert"}' in everything
    assert "Bearer" not in everything


def test_a_secret_principal_is_redacted(tmp_path):
    redaction = Redaction(secrets=["anna"])
    files = recorded(RecordOptions(tmp_path, redaction=redaction), tmp_path)
    for file in files:
        assert replay(file, principal_server()).is_complete, file
    everything = "".join(file.read_text() for file in files)
    assert "anna" not in everything
    assert '"x":{"principal":"bert"}' in everything


def test_a_principal_can_be_redacted_in_a_finished_recording(tmp_path):
    files = recorded(tmp_path, tmp_path)
    assert any(b"anna" in file.read_bytes() for file in files)
    for file in files:
        records = list(read_recording(file.read_bytes().splitlines(keepends=True)))
        redaction = Redaction(secrets=["anna"])
        lines = b"".join(redact_recording(records, redaction, key=b"k" * 32))
        assert b"anna" not in lines
        assert lines.count(b'"principal"') == file.read_bytes().count(b'"principal"') > 0
