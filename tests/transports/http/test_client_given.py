"""`Client(http=…)` uses the settings of the given client, of httpx2 or of httpx, in every request."""

import ssl
from functools import partial

import pytest
import trio

from mcp_trio import Client, ConnectionLost, Server
from mcp_trio.errors import OutcomeUnknown
from tests.transports.http.scripted_server import (
    EVENTS,
    URL,
    Legacy,
    Modern,
    Reply,
    Script,
    event,
    events,
    result,
    serve,
)

LEGACY_ONLY = ("2025-11-25",)


async def succeed(seen):
    return result(seen, content=[], resultType="complete")


def server_of_all_requests():
    """Return a legacy server that answers calls on resumed streams, so that each kind of request is sent."""

    async def listen(seen):
        if "last-event-id" in seen.headers:
            return events(event({"jsonrpc": "2.0", "id": 2, "result": {"content": []}}))
        return Reply(200, EVENTS, _silence())

    async def cut(_seen):
        return events(event(text="", event_id="a-1", retry=1))

    return Legacy(answers={"tools/call": cut}, listen=listen)


async def _silence():
    yield b": nothing yet\n\n"
    await trio.sleep_forever()


async def send_all_requests(http, url=URL):
    """Send each kind of request: POST, GET, GET that resumes a stream, DELETE."""
    async with Client(url, http=http, protocol_versions=LEGACY_ONLY) as client:
        assert (await client.call_tool("add")).content == []


# Headers


async def test_headers_and_cookies_of_a_given_client_are_sent_with_every_request(
    autojump_clock, library
):
    script = Script(server_of_all_requests())
    options = {"headers": {"x-mine": "1"}, "cookies": {"me": "1"}}
    async with library.AsyncClient(transport=script, **options) as http:
        await send_all_requests(http)
    methods = [seen.method for seen in script.seen]
    assert {"POST", "GET", "DELETE"} == set(methods)
    assert methods.count("GET") == 2
    for seen in script.seen:
        assert (seen.headers["x-mine"], seen.headers["cookie"]) == ("1", "me=1")


# Authorization


def renewing(library):
    """An `Auth` that sends the old token, and again a new one after a 401."""

    class Renewing(library.Auth):
        requires_response_body = True

        def __init__(self):
            self.number, self.rejections = 1, []

        def auth_flow(self, request):
            request.headers["authorization"] = f"Bearer {self.number}"
            response = yield request
            if response.status_code == 401:
                self.rejections.append((request.method, response.text))
                self.number += 1
                request.headers["authorization"] = f"Bearer {self.number}"
                yield request

    return Renewing()


async def test_an_auth_can_repeat_every_kind_of_request(autojump_clock, library):
    server, auth, used = server_of_all_requests(), renewing(library), set()

    async def answer(seen):
        token = seen.headers["authorization"]
        if token in used:  # each token is good for one request
            return Reply(401, {"www-authenticate": "Bearer"}, b"old")
        used.add(token)
        return await server(seen)

    async with library.AsyncClient(transport=Script(answer), auth=auth) as http:
        await send_all_requests(http)
    assert [method for method, _ in auth.rejections] == ["POST", "GET", "POST", "GET", "DELETE"]
    assert {body for _, body in auth.rejections} == {"old"}


@pytest.mark.parametrize("status", [401, 403])
async def test_a_rejection_despite_an_auth_is_reported_with_its_status(status, library):
    async def reject(_seen):
        return Reply(status, {}, b"who are you?")

    async with library.AsyncClient(transport=Script(reject), auth=renewing(library)) as http:
        with pytest.raises(ConnectionLost, match=rf"HTTP {status} .*who are you") as lost:
            async with Client(URL, http=http):
                pytest.fail("nobody let us in")
    assert lost.value.http_status == status


# Errors


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("ConnectError", ConnectionLost, "cannot connect to http://mcp.test/mcp: broken"),
        ("ConnectTimeout", ConnectionLost, "cannot connect to http://mcp.test/mcp: broken"),
        ("PoolTimeout", ConnectionLost, "cannot connect to http://mcp.test/mcp: broken"),
        ("ProxyError", ConnectionLost, "cannot connect to http://mcp.test/mcp: broken"),
        ("WriteTimeout", OutcomeUnknown, "the connection broke to http://mcp.test/mcp: broken"),
        ("ReadError", OutcomeUnknown, "the connection broke to http://mcp.test/mcp: broken"),
        (
            "RemoteProtocolError",
            OutcomeUnknown,
            "the connection broke to http://mcp.test/mcp: broken",
        ),
    ],
)
async def test_errors_of_both_libraries_become_the_same_errors(library, name, kind, text):
    class Derived(getattr(library, name)):
        pass

    for cause in (getattr(library, name), Derived):
        server = Modern(answers={"tools/call": raising(cause("broken"))})
        async with (
            library.AsyncClient(transport=Script(server)) as http,
            Client(URL, http=http) as client,
        ):
            with pytest.raises(ConnectionLost) as lost:
                await client.call_tool("add")
        assert (type(lost.value), str(lost.value)) == (kind, text)


def raising(error):
    async def answer(_seen):
        raise error

    return answer


async def test_a_stream_that_breaks_is_resumed_with_both_libraries(library, autojump_clock):
    async def breaking(_seen):
        return Reply(200, EVENTS, broken())

    async def broken():
        yield event(text="", event_id="a-1", retry=1)
        raise library.ReadError("cut")

    async def listen(seen):
        if "last-event-id" in seen.headers:
            return events(event({"jsonrpc": "2.0", "id": 2, "result": {"content": []}}))
        return Reply(200, EVENTS, _silence())

    script = Script(Legacy(answers={"tools/call": breaking}, listen=listen))
    async with library.AsyncClient(transport=script) as http:
        await send_all_requests(http)


# Timeouts


async def test_the_connect_timeout_of_a_given_client_is_kept_and_its_read_timeout_is_not(library):
    script, timeouts = Script(Modern(answers={"tools/call": succeed})), []

    class Noting(library.AsyncBaseTransport):
        async def handle_async_request(self, request):
            timeouts.append(request.extensions["timeout"])
            return await script.handle_async_request(request)

    given = library.Timeout(connect=1, read=2, write=3, pool=4)
    async with (
        library.AsyncClient(transport=Noting(), timeout=given) as http,
        Client(URL, http=http) as client,
    ):
        await client.call_tool("add")
    assert timeouts == [{"connect": 1, "read": None, "write": 3, "pool": 4}] * 2


# Proxies


async def test_every_request_goes_through_the_proxy_of_a_given_client(nursery, library):
    server, targets = server_of_all_requests(), []

    async def proxy(seen):
        targets.append(seen.path)
        return await server(seen)

    url = await nursery.start(serve, proxy)
    async with library.AsyncClient(proxy=url.removesuffix("/mcp")) as http:
        await send_all_requests(http, "http://far.test/mcp")
    assert set(targets) == {"http://far.test/mcp"}
    assert len(targets) == 6
    nursery.cancel_scope.cancel()


async def test_a_proxy_that_cannot_be_reached_is_a_failed_connection(nursery, library):
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    async with library.AsyncClient(proxy=f"http://127.0.0.1:{port}") as http:
        with pytest.raises(ConnectionLost, match="cannot connect"):
            async with Client("http://far.test/mcp", http=http):
                pytest.fail("nobody is there")


# TLS


@pytest.fixture
async def over_tls(nursery, certificate):
    server = Server("safe")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    tls = {"server": "hypercorn", **certificate}
    yield await nursery.start(partial(server.serve_http, port=0, **tls))
    nursery.cancel_scope.cancel()


@pytest.mark.real_time
@pytest.mark.parametrize("protocol_version", ["2026-07-28", "2025-11-25"])
async def test_the_certificates_of_a_given_client_are_used(
    over_tls, certificate, protocol_version, library
):
    context = ssl.create_default_context(cafile=certificate["certfile"])
    async with (
        library.AsyncClient(verify=context) as http,
        Client(over_tls, http=http, protocol_versions=(protocol_version,)) as client,
    ):
        assert await client.call_tool("add", {"a": 1, "b": 2}, result_type=int) == 3


@pytest.mark.real_time
async def test_an_untrusted_certificate_is_rejected(over_tls):
    assert over_tls.startswith("https://")
    with pytest.raises(ConnectionLost, match=r"(?i)certificate"):
        async with Client(over_tls):
            pytest.fail("it may be anybody")
