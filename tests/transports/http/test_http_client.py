"""The HTTP client channel with a legacy server: sessions and notifications."""

import contextlib
import gc
import gzip
import json
import logging
import signal
import ssl
from functools import partial

import httpx
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits, Server
from mcp_trio._jsonrpc.messages import Decoder
from mcp_trio._transports.channel import ReceivedQueue
from mcp_trio._transports.connections import ReportedState
from mcp_trio._transports.http_client import ToolHeaders, agreed_version, outgoing_message
from mcp_trio._transports.http_client_requests import body_pieces
from mcp_trio._transports.http_libraries import errors_converted_to, library_of
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import DEFAULT_LIMITS, MIB, MessageLimits
from mcp_trio.transports import Lost, Oversized, open_http_channel
from tests.transports.http.scripted_server import (
    EVENTS,
    INITIALIZE,
    INITIALIZED,
    JSON,
    STATELESS,
    URL,
    Legacy,
    Modern,
    Reply,
    Script,
    answer_to,
    asking,
    call,
    connected,
    error,
    event,
    events,
    in_session,
    next_item,
    next_items,
    notification_message,
    result,
    serve,
    stateless_call,
    streaming,
    succeed,
)

ANSWER = b'{"jsonrpc":"2.0","id":"s-1","result":{}}'
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": 1}}
LEGACY_ONLY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


# Sessions


@pytest.mark.requirement(
    "HTTP-06",
    "HTTP-07",
    "HTTP-48",
    "HTTP-55",
    "HTTP-56",
    "TRAP-33",
    "HTTP-09",
    "LIFE-18",
    "HTTP-08",
)
async def test_the_session_id_and_version_are_sent_after_initialize():
    async with connected(Legacy(answers={"tools/call": succeed})) as (channel, script):
        await in_session(channel)
        await channel.send([call(1), ANSWER])
        await next_item(channel)

    assert script.methods == [
        *("initialize", "notifications/initialized", "GET", "answer", "tools/call", "DELETE")
    ]
    first, *rest = script.seen
    assert not {"mcp-session-id", "mcp-protocol-version"} & first.headers.keys()
    for seen in rest:
        assert seen.headers["mcp-session-id"] == "s-1"
        assert seen.headers["mcp-protocol-version"] == "2025-11-25"
    posts = [seen for seen in script.seen if seen.method == "POST"]
    assert {seen.headers["accept"] for seen in posts} == {"application/json, text/event-stream"}


async def test_a_server_without_sessions_gets_no_session_id_and_no_delete():
    async with connected(Legacy(session=None, version="2025-06-18")) as (channel, script):
        await in_session(channel)

    assert script.methods == ["initialize", "notifications/initialized", "GET"]
    assert "mcp-session-id" not in script.seen[1].headers
    assert script.seen[1].headers["mcp-protocol-version"] == "2025-06-18"


async def test_the_version_header_follows_a_result_from_a_stream():
    server = Legacy()

    async def initialize(seen):
        reply = server.initialized(seen)
        stream = events(event(text="", event_id="0"), event(json.loads(reply.body)))
        return Reply(200, EVENTS | {"mcp-session-id": "s-2"}, stream.body)

    server.answers["initialize"] = initialize
    async with connected(server) as (channel, script):
        await in_session(channel)

    assert script.seen[1].headers["mcp-session-id"] == "s-2"
    assert script.seen[1].headers["mcp-protocol-version"] == "2025-11-25"


async def test_initialize_is_sent_without_an_earlier_session_id():
    async with connected(Legacy()) as (channel, script):
        await in_session(channel)
        await channel.send([INITIALIZE])
        await next_item(channel)

    assert "mcp-session-id" not in script.of("initialize")[1].headers


@pytest.mark.parametrize("session", ["", "with space", "\x7f"])
async def test_an_invalid_session_id_is_rejected(session):
    async with connected(Legacy(session=session)) as (channel, _):
        await channel.send([INITIALIZE])

        assert "visible ASCII" in str((await next_item(channel)).error)


@pytest.mark.requirement("TRAP-34")
async def test_a_404_to_a_request_ends_the_session():
    async def forgotten(seen):
        return error(seen, -32001, "Session not found", status=404)

    endless = streaming(ends=False)

    answers = {"tools/call": forgotten, "prompts/get": endless}
    async with connected(Legacy(answers=answers)) as (channel, script):
        await in_session(channel)
        await channel.send([asking(1, "prompts/get", name="x")])
        await trio.testing.wait_all_tasks_blocked()
        await channel.send([call(2)])
        items = list(await channel.receive())
        while batch := await channel.receive():
            items += batch
        with pytest.raises(trio.BrokenResourceError):
            await channel.send([call(3)])
        assert (channel.state, channel.reason) == ("closed", "the server has ended the session")

    lost = {item.id: item.error for item in items}
    assert type(lost[2]) is ConnectionLost  # it was not carried out
    assert type(lost[1]) is OutcomeUnknown
    assert "DELETE" not in script.methods


async def test_a_404_to_a_notification_ends_the_session():
    async def gone(_seen):
        return Reply(404)

    async with connected(Legacy(answers={"notifications/x": gone})) as (channel, _):
        await in_session(channel)
        await channel.send([notification_message("notifications/x")])

        assert await channel.receive() == []


async def test_a_404_without_a_session_is_a_rejection_like_any_other():
    async def gone(_seen):
        return Reply(404)

    server = Legacy(session=None, answers={"tools/call": gone, "prompts/get": succeed})
    async with connected(server) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        assert "HTTP 404" in str((await next_item(channel)).error)
        await channel.send([asking(2, "prompts/get")])

        assert (await next_item(channel))["id"] == 2


@pytest.mark.requirement("HTTP-53")
@pytest.mark.parametrize("status", [204, 405, 500])
async def test_closing_deletes_the_session_whatever_the_server_answers(status):
    server = Legacy()

    async def answer(seen):
        return Reply(status) if seen.method == "DELETE" else await server(seen)

    async with connected(answer) as (channel, script):
        await in_session(channel)

    assert script.methods[-1] == "DELETE"
    assert channel.state == "closed"


async def test_closing_takes_bounded_time(autojump_clock):
    server = Legacy()

    async def answer(seen):
        if seen.method == "DELETE":
            await trio.sleep_forever()
        return await server(seen)

    async with connected(answer) as (channel, _):
        await in_session(channel)
        since = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(channel.aclose)
            nursery.start_soon(channel.aclose)
        assert trio.current_time() - since == 2.0


async def test_closing_works_without_a_reachable_server():
    server = Legacy()

    async def answer(seen):
        if seen.method == "DELETE":
            raise httpx2.ConnectError("rejected")
        return await server(seen)

    async with connected(answer) as (channel, _):
        await in_session(channel)

    with pytest.raises(trio.ClosedResourceError):
        await channel.send([])
    with pytest.raises(trio.ClosedResourceError):
        await channel.receive()


# Notifications and responses


async def test_notifications_are_accepted_one_after_the_other():
    going, most = [], []

    async def slow(_seen):
        going.append(1)
        most.append(len(going))
        await trio.testing.wait_all_tasks_blocked()
        going.pop()
        return Reply(202)

    async with connected(Legacy(answers={"notifications/x": slow})) as (channel, script):
        await in_session(channel)
        await channel.send([notification_message("notifications/x", n=n) for n in range(3)])

    assert most == [1, 1, 1]
    assert [each.message["params"]["n"] for each in script.of("notifications/x")] == [0, 1, 2]


@pytest.mark.parametrize("status", [200, 202, 204])
async def test_a_notification_is_accepted_by_any_success(status, caplog):
    async def accept(_seen):
        return Reply(status)

    async with connected(Legacy(answers={"notifications/initialized": accept})) as (
        channel,
        script,
    ):
        await in_session(channel)

    assert "GET" in script.methods  # only an accepted one opens the stream
    assert caplog.text == ""


@pytest.mark.parametrize("reply", [Reply(400), httpx2.ConnectError("rejected")])
async def test_a_rejected_notification_is_logged_and_fails_nothing(reply, caplog):
    async def reject(_seen):
        if isinstance(reply, Exception):
            raise reply
        return reply

    server = Legacy(answers={"notifications/initialized": reject, "tools/call": succeed})
    async with connected(server) as (channel, script):
        await in_session(channel)
        assert channel.state == ("open" if isinstance(reply, Reply) else "retrying")
        await channel.send([call(1)])
        assert (await next_item(channel))["id"] == 1
        assert channel.state == "open"

    assert "notifications/initialized was not delivered" in caplog.text
    assert "GET" not in script.methods


async def test_a_notification_that_is_not_accepted_in_time_is_logged(autojump_clock, caplog):
    async def never(_seen):
        await trio.sleep_forever()

    async with connected(Legacy(answers={"notifications/x": never})) as (channel, _):
        await in_session(channel)
        since = trio.current_time()
        await channel.send([notification_message("notifications/x")])
        assert trio.current_time() - since == 15

    assert "not accepted within 15 s" in caplog.text


async def test_no_request_is_sent_before_the_standalone_stream_is_accepted(autojump_clock):
    may_begin = trio.Event()

    async def listening(_seen):
        await may_begin.wait()
        return events(b": you are heard\n\n")

    server = Legacy(answers={"tools/call": succeed}, listen=listening)
    async with connected(server) as (channel, script), trio.open_nursery() as nursery:
        await channel.send([INITIALIZE])
        await next_item(channel)
        since = trio.current_time()
        nursery.start_soon(channel.send, [INITIALIZED, call(1)])
        await trio.sleep(0.5)
        assert script.methods[-1] == "GET"
        may_begin.set()
        await next_item(channel)
        assert script.methods[-1] == "tools/call"
        assert trio.current_time() - since == 0.5


async def test_a_standalone_stream_without_response_headers_is_waited_for_in_bounded_time(
    autojump_clock,
):
    async def never(_seen):
        await trio.sleep_forever()

    async with connected(Legacy(listen=never)) as (channel, _):
        await channel.send([INITIALIZE])
        await next_item(channel)
        since = trio.current_time()
        await channel.send([INITIALIZED])
        assert trio.current_time() - since == DEFAULT_LIMITS.http.get_stream_seconds


@pytest.mark.requirement("HTTP-26")
async def test_a_legacy_cancellation_is_sent_and_closes_the_stream():
    endless = streaming(event(text="", event_id="1"), ends=False)

    async with connected(Legacy(answers={"tools/call": endless})) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        await trio.testing.wait_all_tasks_blocked()
        await channel.send([notification_message("notifications/cancelled", requestId=1)])
        with trio.fail_after(5):
            await script.closed[0].wait()
        await channel.send([notification_message("notifications/cancelled", requestId=1)])

    assert script.methods.count("notifications/cancelled") == 2
    assert script.methods.count("GET") == 1


@pytest.mark.requirement("HTTP-26")
@pytest.mark.parametrize("event_id", [None, "1"])
async def test_the_end_of_a_cancelled_request_s_stream_is_no_loss(event_id):
    """The server ends the stream before it accepts the cancellation."""
    is_cancelled = trio.Event()

    async def until_cancelled(_seen):
        async def body():
            yield event(text="", event_id=event_id)
            await is_cancelled.wait()

        return Reply(200, EVENTS, body())

    async def cancel(_seen):
        is_cancelled.set()
        await trio.testing.wait_all_tasks_blocked()
        return Reply(202)

    answers = {"tools/call": until_cancelled, "notifications/cancelled": cancel}
    states = []
    on_state = lambda state, _: states.append(state)  # noqa: E731
    async with connected(Legacy(answers=answers), on_state=on_state) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        await trio.testing.wait_all_tasks_blocked()
        await channel.send([notification_message("notifications/cancelled", requestId=1)])
        assert channel.state == "open"
    assert "retrying" not in states
    assert script.methods.count("notifications/cancelled") == 1


# With `Client`


async def test_a_client_uses_a_legacy_server():
    roots_request = {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
    answered = trio.Event()

    async def listen(_seen):
        async def body():
            await answered.wait()
            yield event(NOTE | {"params": {"level": "info", "data": "bye"}})
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async def add(seen):
        async def body():
            yield event(roots_request)
            await answered.wait()
            yield event(answer_to(seen, content=[{"type": "text", "text": "3"}]))

        return Reply(200, EVENTS, body())

    server = Legacy(answers={"tools/call": add}, listen=listen)

    async def answer(seen):
        if seen.method == "POST" and "roots" in seen.message.get("result", {}):
            answered.set()
        return await server(seen)

    logged = trio.Event()
    options = {"roots": ["file:///work"], "log": lambda _: logged.set()}
    async with (
        connected(answer) as (channel, script),
        Client(channel, protocol_versions=LEGACY_ONLY, **options) as client,
    ):
        with trio.fail_after(5):
            assert (await client.call_tool("add")).content[0].text == "3"
            await logged.wait()

    assert script.methods[:2] == ["initialize", "notifications/initialized"]
    assert script.methods[-1] == "DELETE"
    assert script.of("answer")[0].message["id"] == "q"


async def test_an_ended_session_fails_later_calls_with_the_reason():
    async def gone(_seen):
        return Reply(404)

    async with (
        connected(Legacy(answers={"tools/call": gone})) as (channel, _),
        Client(channel) as client,
    ):
        with pytest.raises(ConnectionLost, match="ended the session"):
            await client.call_tool("add")


@pytest.mark.requirement("HTTP-52")
async def test_a_client_of_a_url_opens_a_new_session_without_the_old_id():
    forgotten = {"s-1"}
    server = Legacy(answers={"tools/call": succeed})

    async def answer(seen):
        if seen.headers.get("mcp-session-id") in forgotten and server.session != "s-1":
            return Reply(404)
        return await server(seen)

    script = Script(answer)
    async with (
        httpx2.AsyncClient(transport=script) as http,
        Client(URL, http=http, protocol_versions=LEGACY_ONLY) as client,
    ):
        await client.call_tool("add")
        server.session = "s-2"
        with contextlib.suppress(ConnectionLost):  # reports the end of the session
            await client.call_tool("add")
        await client.call_tool("add")

    _, second = script.of("initialize")
    assert "mcp-session-id" not in second.headers
    assert script.of("tools/call")[-1].headers["mcp-session-id"] == "s-2"
    assert script.methods.count("initialize") == 2


# Opening


@pytest.mark.parametrize(
    "url",
    [
        "mcp.test/mcp",
        "ftp://mcp.test/",
        "http://",
        "http://mcp.test:x/",
        "http://mcp.test:65536/",
        "http://mcp.test:-1/",
        "http:/x",
    ],
)
async def test_only_http_urls_are_accepted(url):
    with pytest.raises(ValueError, match="URL"):
        await open_http_channel(url)


@pytest.mark.parametrize(("name", "value"), [("x-name", "漢"), ("x name", "a"), ("x", "a\r\nb: c")])
async def test_a_header_that_http_cannot_carry_is_rejected_when_it_is_given(name, value):
    with pytest.raises(ValueError, match="header"):
        await open_http_channel("http://mcp.test/", headers={name: value})


async def test_a_header_may_have_latin_letters():
    async with connected(Modern(answers={"tools/call": succeed}), headers={"X-City": "Zürich"}) as (
        channel,
        script,
    ):
        await channel.send([stateless_call(1)])
        await next_item(channel)

    assert script.seen[0].headers["x-city"] == "Zürich"


async def test_the_name_of_a_server_contains_no_secrets():
    channel = await open_http_channel("http://user:word@mcp.test:81/mcp?key=1")
    await channel.aclose()

    assert repr(channel) == "<HttpChannel to http://mcp.test:81/mcp, closed>"


async def test_send_nowait_sends_requests_only():
    async with connected(Legacy()) as (channel, _):
        assert channel.send_nowait([INITIALIZE, INITIALIZED]) == 1
        assert channel.bytes_sent == len(INITIALIZE)
        assert not channel.is_unfinished
        await next_item(channel)
        await channel.send([INITIALIZED])
        assert channel.bytes_sent == len(INITIALIZE) + len(INITIALIZED)


# `Client(http=…)` uses the settings of the given client, of httpx2 or of httpx, in every request.


ONE_LEGACY_VERSION = ("2025-11-25",)


async def succeed_client_given(seen):
    return result(seen, content=[], resultType="complete")


def server_of_all_requests():
    """Return a legacy server that answers calls on resumed streams, so that each kind of request is sent."""

    async def listen(seen):
        if "last-event-id" in seen.headers:
            return events(event({"jsonrpc": "2.0", "id": 2, "result": {"content": []}}))
        return events(b": nothing yet\n\n", ends=False)

    cut = streaming(event(text="", event_id="a-1", retry=1))
    return Legacy(answers={"tools/call": cut}, listen=listen)


async def send_all_requests(http, url=URL):
    """Send each kind of request: POST, GET, GET that resumes a stream, DELETE."""
    async with Client(url, http=http, protocol_versions=ONE_LEGACY_VERSION) as client:
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


# Compression


@pytest.mark.parametrize("encoding", ["gzip", "br, GZIP", "zstd"])
@pytest.mark.parametrize("media_type", [JSON, EVENTS], ids=["json", "events"])
async def test_an_encoded_body_is_rejected_before_it_is_read(
    autojump_clock, library, media_type, encoding
):
    """Decoders of HTTP libraries have no limit; a few kilobytes may become gigabytes."""

    async def compressed(_seen):
        async def body():
            pytest.fail("the body was read")
            yield b""

        return Reply(200, media_type | {"content-encoding": encoding}, body())

    script = Script(Legacy(answers={"tools/call": compressed}))
    headers = {"accept-encoding": "gzip, br"}
    async with (
        library.AsyncClient(transport=script, headers=headers) as http,
        Client(URL, http=http, headers=headers, protocol_versions=ONE_LEGACY_VERSION) as client,
    ):
        with pytest.raises(OutcomeUnknown) as caught:
            await client.call_tool("add")
    assert caught.value.reason == (
        f"http://mcp.test/mcp answered with Content-Encoding '{encoding.lower()}', although the"
        " request has Accept-Encoding: identity; turn compression off there, or in a proxy before"
        " it"
    )
    assert {seen.headers["accept-encoding"] for seen in script.seen} == {"identity"}


async def test_an_encoded_stream_of_http_sse_is_rejected(library):
    async def answer(seen):
        compressed = EVENTS | {"content-encoding": "gzip"}
        return Reply(200, compressed, gzip.compress(b"")) if seen.method == "GET" else Reply(405)

    with pytest.raises(ConnectionLost, match=r"as for HTTP\+SSE: .* with Content-Encoding 'gzip'"):
        async with (
            library.AsyncClient(transport=Script(answer)) as http,
            Client(URL, http=http, protocol_versions=ONE_LEGACY_VERSION),
        ):
            pass


async def test_the_status_counts_although_the_body_of_a_rejection_is_encoded(library):
    async def answer(seen):
        return Reply(503, {"content-encoding": "gzip"}, gzip.compress(b"later"))

    with pytest.raises(ConnectionLost) as caught:
        async with (
            library.AsyncClient(transport=Script(answer)) as http,
            Client(URL, http=http, protocol_versions=ONE_LEGACY_VERSION),
        ):
            pass
    assert caught.value.http_status == 503


async def test_identity_counts_as_no_encoding(library):
    async def plain(seen):
        reply = result(seen, content=[])
        reply.headers |= {"content-encoding": "identity"}
        return reply

    script = Script(Legacy(answers={"tools/call": plain}))
    async with library.AsyncClient(transport=script) as http:
        await send_all_requests(http)


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
        return events(b": nothing yet\n\n", ends=False)

    script = Script(Legacy(answers={"tools/call": breaking}, listen=listen))
    async with library.AsyncClient(transport=script) as http:
        await send_all_requests(http)


# Timeouts


async def test_the_connect_timeout_of_a_given_client_is_kept_and_its_read_timeout_is_not(library):
    script, timeouts = Script(Modern(answers={"tools/call": succeed_client_given})), []

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


# The parts of the HTTP client channel that need no server: queue, messages, tools and state.


DECODER = Decoder(MessageLimits(json_depth_max=64))


# The queue of received messages


async def test_all_queued_items_are_taken_at_once_and_in_order():
    inbox = ReceivedQueue(1000)
    lost = Lost(1, ConnectionLost("gone"))
    for item in (b"one", Oversized(5, b"head"), lost):
        inbox.put(item)

    assert await inbox.take() == [b"one", Oversized(5, b"head"), lost]


async def test_taking_waits_for_an_item_and_loses_none_when_cancelled(autojump_clock):
    inbox = ReceivedQueue(1000)
    with trio.move_on_after(1) as timeout:
        await inbox.take()
    assert timeout.cancelled_caught
    inbox.put(b"one")
    with trio.CancelScope() as scope:
        scope.cancel()
        await inbox.take()

    assert await inbox.take() == [b"one"]


async def test_a_producer_waits_for_room_until_items_are_taken(autojump_clock):
    inbox = ReceivedQueue(300)
    inbox.put(b"x" * 300)
    with trio.move_on_after(1) as timeout:
        await inbox.room()
    assert timeout.cancelled_caught
    await inbox.take()

    with trio.fail_after(1):
        await inbox.room()


async def test_the_end_follows_the_queued_items_and_later_items_are_dropped():
    inbox = ReceivedQueue(1000)
    inbox.put(b"one")
    inbox.end()
    inbox.put(b"two")

    assert [await inbox.take(), await inbox.take()] == [[b"one"], []]


async def test_the_end_is_returned_before_another_task_runs(nursery):
    inbox, ran = ReceivedQueue(1000), []

    async def other():
        ran.append("other")

    inbox.put(b"one")
    inbox.end()
    await inbox.take()
    nursery.start_soon(other)

    assert await inbox.take() == []
    assert ran == []


async def test_closing_ends_waits_for_items_and_for_room():
    inbox = ReceivedQueue(1)
    inbox.put(b"one")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.room)
        await trio.testing.wait_all_tasks_blocked()
        inbox.close()

    with pytest.raises(trio.ClosedResourceError):
        await inbox.take()


async def test_closing_ends_a_wait_for_items_in_another_task(nursery):
    inbox, ends = ReceivedQueue(1), []

    async def take():
        with pytest.raises(trio.ClosedResourceError):
            await inbox.take()
        ends.append("closed")

    nursery.start_soon(take)
    await trio.testing.wait_all_tasks_blocked()
    inbox.close()
    await trio.testing.wait_all_tasks_blocked()

    assert ends == ["closed"]


# Messages to send


def test_the_id_method_and_protocol_version_of_a_request_are_read():
    legacy, stateless = (
        outgoing_message(asking(7, "tools/list", each), DECODER) for each in (None, STATELESS)
    )

    assert (legacy.id, legacy.method, legacy.version) == (7, "tools/list", None)
    assert (stateless.id, stateless.method, stateless.version) == (7, "tools/list", STATELESS)


def test_an_answer_has_neither_id_nor_method():
    sent = outgoing_message(b'{"jsonrpc":"2.0","id":7,"result":{}}', DECODER)

    assert (sent.id, sent.method, sent.tool, sent.cancelled_id) == (None, None, None, None)


def test_the_id_of_a_cancelled_request_is_read():
    assert (
        outgoing_message(
            notification_message("notifications/cancelled", requestId=7), DECODER
        ).cancelled_id
        == 7
    )
    assert (
        outgoing_message(
            notification_message("notifications/other", requestId=7), DECODER
        ).cancelled_id
        is None
    )


@pytest.mark.parametrize("no_id", [[7], {"a": 7}, True, 7.0, None])
def test_a_cancellation_with_an_invalid_id_is_sent_as_any_notification(no_id):
    sent = outgoing_message(
        notification_message("notifications/cancelled", requestId=no_id), DECODER
    )

    assert (sent.method, sent.cancelled_id) == ("notifications/cancelled", None)


def test_only_a_tool_call_has_a_tool_name():
    assert outgoing_message(asking(1, "tools/call", name="add"), DECODER).tool == "add"
    assert outgoing_message(asking(1, "tools/call", name=7), DECODER).tool is None
    assert outgoing_message(asking(1, "prompts/get", name="add"), DECODER).tool is None


def test_only_the_params_that_headers_need_are_decoded():
    sent = outgoing_message(asking(1, "tools/call", name="add", arguments={"a": 1}), DECODER)

    assert sent.header_params(with_arguments=False) == {"name": "add"}
    assert sent.header_params(with_arguments=True) == {"name": "add", "arguments": {"a": 1}}


def test_params_of_any_shape_can_be_sent():
    strange = b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":7}}'
    bare = b'{"jsonrpc":"2.0","id":1,"method":"x"}'

    assert outgoing_message(strange, DECODER).header_params(with_arguments=False) == {}
    assert outgoing_message(bare, DECODER).header_params(with_arguments=True) == {}
    assert outgoing_message(asking(1, "x", 7), DECODER).version is None


def test_the_protocol_version_of_an_initialize_result_is_read():
    assert agreed_version(b'{"protocolVersion":"2025-03-26"}') == "2025-03-26"
    assert agreed_version(b'{"protocolVersion":7}') is None
    assert agreed_version(b"7") is None


# Parameter headers of tools


def page(*tools):
    listed = [{"name": name, "inputSchema": schema} for name, schema in tools]
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": listed, "x": 1}}).encode()


def schema(header, kind="string"):
    return {"type": "object", "properties": {"a": {"type": kind, "x-mcp-header": header}}}


@pytest.mark.requirement("HDR-16", "HDR-17", "TRAP-50")
def test_a_tool_with_an_invalid_annotation_is_dropped_with_a_warning(caplog):
    tools = ToolHeaders()

    with caplog.at_level(logging.WARNING):
        response = tools.learn(page(("good", schema("A")), ("bad", schema("A", "object"))))

    result = json.loads(response)["result"]
    assert [tool["name"] for tool in result["tools"]] == ["good"]
    assert result["x"] == 1
    assert "'bad'" in caplog.text
    assert "'good'" not in caplog.text


def test_a_page_of_valid_tools_is_unchanged():
    response = page(("good", schema("A")), ("plain", {"type": "object"}))

    assert ToolHeaders().learn(response) is response


def test_a_page_that_is_not_utf8_is_left_to_the_session():
    response = page(("good", schema("A"))).replace(b'"good"', b'"\xff"')

    assert ToolHeaders().learn(response) == response


@pytest.mark.requirement("HDR-33", "HDR-34")
def test_the_newest_schema_of_a_tool_replaces_older_ones():
    tools = ToolHeaders()
    assert tools.paths_of("add") is None

    tools.learn(page(("add", schema("A"))))
    assert tools.paths_of("add") == {"A": ("a",)}

    tools.learn(page(("other", schema("A"))))
    assert tools.paths_of("add") == {"A": ("a",)}  # another page

    tools.learn(page(("add", schema("B"))))
    assert tools.paths_of("add") == {"B": ("a",)}

    tools.learn(page(("add", {"type": "object"})))
    assert tools.paths_of("add") is None
    assert tools.paths_of(None) is None


def test_the_tool_that_was_listed_longest_ago_is_forgotten_first():
    tools = ToolHeaders(2)

    for name in ("first", "second", "first", "third"):
        tools.learn(page((name, schema("A"))))

    known = [name for name in ("first", "second", "third") if tools.paths_of(name)]
    assert known == ["first", "third"]


@pytest.mark.parametrize(
    "response",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"tools":7}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"tools":[7,{"name":1},{"name":"x"}]}}',
        b'{"jsonrpc":"2.0","id":1,"result":7}',
    ],
)
def test_a_response_that_is_not_a_page_of_tools_is_unchanged(response):
    assert ToolHeaders().learn(response) is response


# Bodies


async def test_a_body_that_is_left_early_closes_its_innermost_generator():
    ended = []

    class Body(httpx2.AsyncByteStream):
        async def __aiter__(self):
            try:
                for _ in range(3):
                    yield b"x"
                await trio.sleep_forever()
            finally:
                ended.append(True)

    async with body_pieces(httpx2.Response(200, stream=Body())) as pieces:
        async for _ in pieces:
            break

    assert ended == [True]


# The reported state


REACHED = {
    "connecting": [],
    "open": [("open", "")],
    "retrying": [("retrying", "down")],
    "closed": [("closed", "over")],
}
FOLLOWING = [
    # from, to, whether it becomes that, whether that is reported
    ("connecting", "connecting", False, False),
    ("connecting", "open", True, True),
    ("connecting", "retrying", True, True),
    ("connecting", "closed", True, True),
    ("open", "connecting", False, False),
    ("open", "open", False, False),
    ("open", "retrying", True, True),
    ("open", "closed", True, True),
    ("retrying", "connecting", False, False),
    ("retrying", "open", True, True),
    ("retrying", "retrying", True, False),
    ("retrying", "closed", True, True),
    ("closed", "connecting", False, False),
    ("closed", "open", False, False),
    ("closed", "retrying", False, False),
    ("closed", "closed", False, False),
]


@pytest.mark.parametrize(("before", "after", "becomes", "is_reported"), FOLLOWING)
def test_state_transitions_and_their_reports(before, after, becomes, is_reported):
    reported = []
    condition = ReportedState(lambda *state: reported.append(state))
    condition.begin()
    for step in REACHED[before]:
        condition.change(*step)
    assert reported == [("connecting", ""), *REACHED[before]]
    unchanged = (condition.state, condition.reason)

    condition.change(after, "news")

    assert (condition.state, condition.reason) == ((after, "news") if becomes else unchanged)
    assert reported[1 + len(REACHED[before]) :] == ([(after, "news")] if is_reported else [])


def test_an_exception_of_on_state_is_logged(caplog):
    def fail(_state, _reason):
        raise KeyError("mine")

    condition = ReportedState(fail)
    condition.change("open")

    assert condition.state == "open"
    assert "the callback state_changed failed" in caplog.text


# The HTTP client channel with a stateless server: broken connections and oversized messages.


# Broken streams and cancelled requests


@pytest.mark.requirement("MHTTP-25")
async def test_a_stateless_stream_that_ends_before_the_answer_is_not_resumed(autojump_clock):
    cut = streaming(event(text="", event_id="e-1", retry=1))

    async with connected(Modern(answers={"tools/call": cut})) as (channel, script):
        await channel.send([stateless_call(1)])
        lost = await next_item(channel)

    assert lost.id == 1
    assert isinstance(lost.error, OutcomeUnknown)
    assert len(script.seen) == 1


@pytest.mark.requirement("MHTTP-13", "CANC-13")
async def test_a_stateless_request_is_cancelled_by_closing_its_stream():
    endless = streaming(b": begun\n\n", ends=False)

    async with connected(Modern(answers={"tools/call": endless})) as (channel, script):
        await channel.send([stateless_call(1)])
        await trio.testing.wait_all_tasks_blocked()
        assert not script.closed[0].is_set()
        await channel.send([notification_message("notifications/cancelled", requestId=1)])
        with trio.fail_after(5):
            await script.closed[0].wait()
        await channel.send([notification_message("notifications/cancelled", requestId=1)])
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0.05) as nothing:  # nor is there anything to say to the session
            await channel.receive()

    assert nothing.cancelled_caught
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (httpx2.ConnectError("rejected"), ConnectionLost),
        (httpx2.ConnectTimeout("late"), ConnectionLost),
        (httpx2.ReadError(""), OutcomeUnknown),
        (httpx2.RemoteProtocolError("no HTTP"), OutcomeUnknown),
    ],
)
async def test_a_network_error_fails_only_the_request_in_flight(fault, kind):
    faults, states = [fault], []

    async def answer(seen):
        if faults:
            raise faults.pop()
        return await succeed(seen)

    on_state = lambda *state: states.append(state)  # noqa: E731
    async with connected(Modern(answers={"tools/call": answer}), on_state=on_state) as (channel, _):
        await channel.send([stateless_call(1)])
        lost = await next_item(channel)
        assert channel.state == "retrying"
        assert "http://mcp.test/mcp" in channel.reason
        await channel.send([stateless_call(2)])
        assert (await next_item(channel))["id"] == 2
        assert channel.state == "open"

    assert (lost.id, type(lost.error), lost.error.__cause__) == (1, kind, fault)
    assert [state for state, _ in states] == ["connecting", "retrying", "open", "closed"]


async def test_an_unexpected_exception_fails_the_request_and_is_logged(caplog):
    async def raising(_seen):
        raise KeyError("mine")

    async with connected(Modern(answers={"tools/call": raising})) as (channel, _):
        await channel.send([stateless_call(1)])
        lost = await next_item(channel)

    assert type(lost.error) is ConnectionLost
    assert "an HTTP request failed" in caplog.text


async def test_an_error_after_the_answer_fails_no_request(caplog):
    async def strange(seen):
        async def body():
            yield event(answer_to(seen, content=[]))
            raise KeyError("mine")

        return Reply(200, EVENTS, body())

    async with connected(Modern(answers={"tools/call": strange})) as (channel, _):
        await channel.send([stateless_call(1)])
        assert (await next_item(channel))["id"] == 1
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0) as nothing:
            await channel.receive()

    assert nothing.cancelled_caught
    assert "an HTTP request failed" in caplog.text


# Limits


async def test_an_event_over_the_limit_is_reported_and_the_stream_is_read_on(autojump_clock):
    async def large(seen):
        big = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": "x" * 2000}}
        return events(event(big), event(answer_to(seen, content=[])))

    limits = Limits(messages=MessageLimits(bytes_max=1000))
    async with connected(Modern(answers={"tools/call": large}), limits=limits) as (channel, _):
        await channel.send([stateless_call(1)])
        items = await next_items(channel, 2)

    assert isinstance(items[0], Oversized)
    assert json.loads(items[1])["id"] == 1


async def test_a_stream_that_ends_after_an_event_over_the_limit_names_the_limit(autojump_clock):
    async def large(seen):
        return events(event(answer_to(seen, content=["x" * 2000])))

    limits = Limits(messages=MessageLimits(bytes_max=1000))
    async with connected(Modern(answers={"tools/call": large}), limits=limits) as (channel, _):
        await channel.send([stateless_call(1)])
        items = await next_items(channel, 2)

    assert isinstance(items[0], Oversized)
    assert "after a message over limits.messages.bytes_max before the response arrived" in str(
        items[1].error
    )


async def test_a_body_over_the_limit_is_reported_and_fails_its_request():
    async def large(seen):
        return result(seen, content=["x" * 2000])

    limits = Limits(messages=MessageLimits(bytes_max=1000))
    async with connected(Modern(answers={"tools/call": large}), limits=limits) as (channel, _):
        await channel.send([stateless_call(1)])
        oversized, lost = await channel.receive()

    assert isinstance(oversized, Oversized)
    assert len(oversized.prefix) <= 1000
    assert "limits.messages.bytes_max" in str(lost.error)


async def test_streams_are_read_no_faster_than_the_session_receives(autojump_clock):
    given = []
    note = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": "x" * 500}}

    async def endless(seen):
        async def body():
            for number in range(100):
                given.append(number)
                yield event(note)
            yield event(answer_to(seen, content=[]))

        return Reply(200, EVENTS, body())

    limits = Limits(messages=MessageLimits(chunk_bytes=2000))
    async with connected(Modern(answers={"tools/call": endless}), limits=limits) as (channel, _):
        await channel.send([stateless_call(1)])
        await trio.testing.wait_all_tasks_blocked()
        assert len(given) < 10
        arrived = []
        while len(arrived) < 101:
            arrived += await channel.receive()

    assert json.loads(arrived[-1])["id"] == 1


# A POST that is cancelled while its body is sent.


async def test_a_cancelled_post_leaves_no_unfinished_generator(nursery):
    """Trio warns of an unfinished async generator, and warnings are errors in tests."""
    started = trio.Event()

    async def never_read(stream):
        started.set()
        await trio.sleep_forever()

    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, never_read, [listener])
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp"
    channel = await open_http_channel(url)
    message = b'{"jsonrpc":"2.0","method":"n","params":{"a":"%s"}}' % (b"x" * 16 * MIB)
    async with trio.open_nursery() as sending:
        sending.start_soon(channel.send, [message])
        await started.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)  # as much as the system takes is gone
        sending.cancel_scope.cancel()
    gc.collect()
    await channel.aclose()
    nursery.cancel_scope.cancel()


# The HTTP client channel over sockets: connections are kept, closed, lost and made again.


async def succeed_client_sockets(seen):
    return result(seen, content=[], resultType="complete")


async def streamed(seen):
    return events(event(answer_to(seen, content=[], resultType="complete")))


class Counted:
    """Counts the connections on which requests come, by the tasks that serve them."""

    def __init__(self, answer):
        self.answer, self.connections = answer, set()

    async def __call__(self, seen):
        self.connections.add(id(trio.lowlevel.current_task()))
        return await self.answer(seen)


@pytest.mark.parametrize("answer", [succeed_client_sockets, streamed])
async def test_a_connection_is_kept_for_the_next_request(nursery, answer):
    server = Counted(Modern(answers={"tools/call": answer}))
    url = await nursery.start(serve, server)
    async with Client(await open_http_channel(url)) as client:
        for _ in range(5):
            await client.call_tool("add")
            # The call ends with the answer, and its connection is free at the end of the stream.
            await trio.testing.wait_all_tasks_blocked(0.02)

    assert len(server.connections) == 1


async def test_a_connection_is_kept_after_notifications_and_rejections(nursery):
    server = Counted(Legacy(answers={"tools/call": succeed_client_sockets}))
    url = await nursery.start(serve, server)
    async with Client(await open_http_channel(url), roots=["file:///x"]) as client:
        for _ in range(3):
            await client.call_tool("add")
            await client.notify("notifications/roots/list_changed")

    assert len(server.connections) <= 2  # the rejected GET has its own


@pytest.mark.real_time
async def test_a_server_that_is_killed_fails_only_the_calls_in_flight(nursery):
    async def endless(_seen):
        await trio.sleep_forever()

    server = Modern(answers={"tools/call": endless, "prompts/get": succeed_client_sockets})
    states = []
    life = trio.CancelScope()

    async def living(*, port=0, task_status):
        with life:
            await serve(server, port=port, task_status=task_status)

    url = await nursery.start(living)
    channel = await open_http_channel(url, on_state=lambda state, _: states.append(state))
    async with Client(channel) as client:
        async with trio.open_nursery() as calls:
            calls.start_soon(trio.testing.wait_all_tasks_blocked, 0.05)

            async def lost():
                with pytest.raises(OutcomeUnknown):
                    await client.call_tool("add")

            calls.start_soon(lost)
            calls.start_soon(lost)
            await trio.testing.wait_all_tasks_blocked(0.05)
            life.cancel()
        with pytest.raises(ConnectionLost, match="cannot connect"):
            await client.call_tool("add")
        assert client.is_open

        life = trio.CancelScope()
        server.answers["tools/call"] = succeed_client_sockets
        await nursery.start(_serve_again, server, httpx2.URL(url).port)
        assert (await client.call_tool("add")).content == []

    assert states == ["connecting", "open", "retrying", "open", "closed"]


async def _serve_again(server, port, *, task_status):
    await serve(server, port=port, task_status=task_status)


@pytest.mark.real_time
async def test_the_server_sees_the_disconnect_of_a_cancelled_stateless_call(nursery):
    left = trio.Event()

    async def endless(_seen):
        async def body():
            try:
                while True:
                    yield b": still here\n\n"
                    await trio.sleep(0.01)
            finally:
                left.set()

        return Reply(200, EVENTS, body())

    url = await nursery.start(serve, Modern(answers={"tools/call": endless}))
    async with Client(await open_http_channel(url)) as client:
        with trio.move_on_after(0.1):
            await client.call_tool("add")
        with trio.fail_after(5):
            await left.wait()
    gc.collect()  # what was left in the middle would say so here


async def test_a_body_over_the_limit_is_not_read_to_its_end(nursery):
    async def endless(_seen):
        async def body():
            while True:
                yield b"x" * 1000

        return Reply(200, {"content-type": "application/json"}, body())

    url = await nursery.start(serve, Modern(answers={"tools/call": endless}))
    channel = await open_http_channel(url, limits=Limits(messages=MessageLimits(bytes_max=10_000)))
    await channel.send([stateless_call(1)])
    with trio.fail_after(5):
        assert len(await channel.receive()) == 2
    await channel.aclose()
    gc.collect()


@pytest.mark.real_time
async def test_a_stream_that_waits_for_room_ends_when_the_channel_closes(nursery):
    async def endless(_seen):
        async def body():
            while True:
                yield event({"jsonrpc": "2.0", "method": "notifications/x"})

        return Reply(200, EVENTS, body())

    url = await nursery.start(serve, Modern(answers={"tools/call": endless}))
    channel = await open_http_channel(url, limits=Limits(messages=MessageLimits(chunk_bytes=1000)))
    await channel.send([stateless_call(1)])
    await trio.sleep(0.1)
    await channel.aclose()
    gc.collect()


async def test_the_system_s_error_is_part_of_the_message(nursery):
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}/"
    await listener.aclose()
    channel = await open_http_channel(url)
    await channel.send([stateless_call(1)])

    lost = await next_item(channel)
    await channel.aclose()

    assert url in str(lost.error)
    assert str(lost.error).count("refused") == 1


async def test_a_given_client_is_used_and_stays_open(nursery, library):
    url = await nursery.start(serve, Modern(answers={"tools/call": succeed_client_sockets}))
    async with library.AsyncClient(headers={"x-mine": "1"}, timeout=0.2) as http:
        channel = await open_http_channel(url, http=http)
        await channel.send([stateless_call(1)])
        assert (await next_item(channel))["id"] == 1
        await channel.aclose()

        assert not http.is_closed


@pytest.mark.real_time
async def test_the_read_timeout_of_a_given_client_is_ignored(nursery, library):
    async def slow(seen):
        await trio.sleep(0.3)
        return await succeed_client_sockets(seen)

    url = await nursery.start(serve, Modern(answers={"tools/call": slow}))
    async with library.AsyncClient(timeout=0.1) as http:
        channel = await open_http_channel(url, http=http)
        await channel.send([stateless_call(1)])
        assert (await next_item(channel))["id"] == 1
        await channel.aclose()


@pytest.mark.slow
@pytest.mark.real_time
async def test_many_requests_are_in_flight_at_once(nursery):
    going = []

    async def together(seen):
        going.append(seen)
        while len(going) < 110:
            await trio.sleep(0.01)
        return await succeed_client_sockets(seen)

    url = await nursery.start(serve, Modern(answers={"tools/call": together}))
    channel = await open_http_channel(url)
    await channel.send([stateless_call(number) for number in range(110)])
    answered = 0
    with trio.fail_after(20):
        while answered < 110:
            answered += len(await channel.receive())
    await channel.aclose()


async def test_a_channel_outlives_the_nursery_it_was_opened_in(nursery):
    async with trio.open_nursery() as short:
        url = await nursery.start(serve, Modern(answers={"tools/call": succeed_client_sockets}))
        short.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            channel = await open_http_channel(url)
    await channel.send([stateless_call(1)])
    assert (await next_item(channel))["id"] == 1
    await channel.aclose()


class Odd(BaseException):
    """Neither an exception nor an interrupt."""


@pytest.mark.parametrize(("fault", "signals"), [(KeyboardInterrupt, 1), (Odd, 0)])
async def test_an_interrupt_in_the_channel_s_task_is_raised_in_the_main_task(
    fault, signals, monkeypatch, caplog
):
    raised = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)

    class Interrupted(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, _request):
            raise fault

    async with httpx2.AsyncClient(transport=Interrupted()) as http:
        channel = await open_http_channel("http://mcp.test/", http=http)
        await channel.send([stateless_call(1)])
        with trio.fail_after(5):
            (lost,) = await channel.receive()
            assert await channel.receive() == []
        await channel.aclose()

    assert isinstance(lost.error, OutcomeUnknown)
    assert raised == [signal.SIGINT] * signals
    # Ctrl-C is no fault of the channel.
    assert ("the HTTP channel failed" in caplog.text) == (fault is Odd)


def test_a_run_may_end_with_a_channel_open():
    async def main():
        async with trio.open_nursery() as nursery:
            url = await nursery.start(serve, Modern(answers={"tools/call": succeed_client_sockets}))
            channel = await open_http_channel(url)
            await channel.send([stateless_call(1)])
            await next_item(channel)
            nursery.cancel_scope.cancel()

    trio.run(main)


# Objects of httpx where those of httpx2 are expected, and the other way round.


def other(library):
    return httpx if library is httpx2 else httpx2


@pytest.mark.parametrize("name", ["AsyncClient", "Headers", "AsyncHTTPTransport"])
def test_the_library_of_an_object_is_that_of_its_base_classes(library, name):
    class Derived(getattr(library, name)):
        pass

    assert library_of(Derived()) is library


def test_other_objects_have_no_library():
    assert library_of(7) is None


@pytest.mark.parametrize("name", ["ConnectError", "TooManyRedirects"])
def test_an_error_becomes_the_one_of_the_same_name(library, name):
    original = getattr(other(library), name)("no route")
    with (
        pytest.raises(getattr(library, name), match="no route") as caught,
        errors_converted_to(library),
    ):
        raise original
    assert caught.value.__cause__ is original
    with pytest.raises(RuntimeError, match="has not been set"):
        _ = caught.value.request


def test_an_error_of_a_stream_keeps_its_text(library):
    original = other(library).StreamConsumed()
    with pytest.raises(library.StreamConsumed) as caught, errors_converted_to(library):
        raise original
    assert str(caught.value) == str(original)


@pytest.mark.parametrize("make", [lambda library: library.ReadError("cut"), lambda _: KeyError(1)])
def test_errors_of_the_same_library_and_of_none_are_not_replaced(library, make):
    original = make(library)
    with pytest.raises(type(original)) as caught, errors_converted_to(library):
        raise original
    assert caught.value is original


def test_an_error_with_its_response_is_not_replaced(library):
    source = other(library)
    request = source.Request("GET", "http://mcp.test")
    original = source.HTTPStatusError("503", request=request, response=source.Response(503))
    with pytest.raises(source.HTTPStatusError) as caught, errors_converted_to(library):
        raise original
    assert caught.value is original
