"""The HTTP client channel with a legacy server: sessions and notifications."""

import contextlib
import json

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import DEFAULT_LIMITS
from mcp_trio.transports import open_http_channel
from tests.transports.http.scripted_server import (
    EVENTS,
    INITIALIZE,
    INITIALIZED,
    URL,
    Legacy,
    Reply,
    Script,
    answer_to,
    asking,
    connected,
    error,
    event,
    events,
    heard,
    in_session,
    result,
    telling,
)

ANSWER = b'{"jsonrpc":"2.0","id":"s-1","result":{}}'
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": 1}}
LEGACY_ONLY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


def call(number):
    return asking(number, "tools/call", name="add")


async def succeed(seen):
    return result(seen, content=[])


def streaming(*pieces):
    async def answer(_seen):
        return events(*pieces)

    return answer


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
        await heard(channel)

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
        await heard(channel)

    assert "mcp-session-id" not in script.of("initialize")[1].headers


@pytest.mark.parametrize("session", ["", "with space", "\x7f"])
async def test_an_invalid_session_id_is_rejected(session):
    async with connected(Legacy(session=session)) as (channel, _):
        await channel.send([INITIALIZE])

        assert "visible ASCII" in str((await heard(channel)).error)


@pytest.mark.requirement("TRAP-34")
async def test_a_404_to_a_request_ends_the_session():
    async def forgotten(seen):
        return error(seen, -32001, "Session not found", status=404)

    async def endless(_seen):
        async def body():
            await trio.sleep_forever()
            yield b""

        return Reply(200, EVENTS, body())

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
        await channel.send([telling("notifications/x")])

        assert await channel.receive() == []


async def test_a_404_without_a_session_is_a_rejection_like_any_other():
    async def gone(_seen):
        return Reply(404)

    server = Legacy(session=None, answers={"tools/call": gone, "prompts/get": succeed})
    async with connected(server) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        assert "HTTP 404" in str((await heard(channel)).error)
        await channel.send([asking(2, "prompts/get")])

        assert (await heard(channel))["id"] == 2


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
        await channel.send([telling("notifications/x", n=n) for n in range(3)])

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
        assert (await heard(channel))["id"] == 1
        assert channel.state == "open"

    assert "notifications/initialized was not delivered" in caplog.text
    assert "GET" not in script.methods


async def test_a_notification_that_is_not_accepted_in_time_is_logged(autojump_clock, caplog):
    async def never(_seen):
        await trio.sleep_forever()

    async with connected(Legacy(answers={"notifications/x": never})) as (channel, _):
        await in_session(channel)
        since = trio.current_time()
        await channel.send([telling("notifications/x")])
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
        await heard(channel)
        since = trio.current_time()
        nursery.start_soon(channel.send, [INITIALIZED, call(1)])
        await trio.sleep(0.5)
        assert script.methods[-1] == "GET"
        may_begin.set()
        await heard(channel)
        assert script.methods[-1] == "tools/call"
        assert trio.current_time() - since == 0.5


async def test_a_standalone_stream_without_response_headers_is_waited_for_in_bounded_time(
    autojump_clock,
):
    async def never(_seen):
        await trio.sleep_forever()

    async with connected(Legacy(listen=never)) as (channel, _):
        await channel.send([INITIALIZE])
        await heard(channel)
        since = trio.current_time()
        await channel.send([INITIALIZED])
        assert trio.current_time() - since == DEFAULT_LIMITS.http.get_stream_seconds


@pytest.mark.requirement("HTTP-26")
async def test_a_legacy_cancellation_is_sent_and_closes_the_stream():
    async def endless(_seen):
        async def body():
            yield event(text="", event_id="1")
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async with connected(Legacy(answers={"tools/call": endless})) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        await trio.testing.wait_all_tasks_blocked()
        await channel.send([telling("notifications/cancelled", requestId=1)])
        with trio.fail_after(5):
            await script.closed[0].wait()
        await channel.send([telling("notifications/cancelled", requestId=1)])

    assert script.methods.count("notifications/cancelled") == 2
    assert script.methods.count("GET") == 1


# With `Client`


async def test_a_client_uses_a_legacy_server():
    asked = {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
    answered = trio.Event()

    async def listen(_seen):
        async def body():
            await answered.wait()
            yield event(NOTE | {"params": {"level": "info", "data": "bye"}})
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    async def add(seen):
        async def body():
            yield event(asked)
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
        with contextlib.suppress(ConnectionLost):  # what says that the session has ended
            await client.call_tool("add")
        await client.call_tool("add")

    _, second = script.of("initialize")
    assert "mcp-session-id" not in second.headers
    assert script.of("tools/call")[-1].headers["mcp-session-id"] == "s-2"
    assert script.methods.count("initialize") == 2


# Opening


@pytest.mark.parametrize(
    "url", ["mcp.test/mcp", "ftp://mcp.test/", "http://", "http://mcp.test:x/", "http:/x"]
)
async def test_only_http_urls_are_accepted(url):
    with pytest.raises(ValueError, match="URL"):
        await open_http_channel(url)


async def test_the_name_of_a_server_contains_no_secrets():
    channel = await open_http_channel("http://user:word@mcp.test:81/mcp?key=1")
    await channel.aclose()

    assert repr(channel) == "<HttpChannel to http://mcp.test:81/mcp, closed>"


async def test_send_nowait_sends_requests_only():
    async with connected(Legacy()) as (channel, _):
        assert channel.send_nowait([INITIALIZE, INITIALIZED]) == 1
        assert channel.bytes_sent == len(INITIALIZE)
        assert not channel.is_unfinished
        await heard(channel)
        await channel.send([INITIALIZED])
        assert channel.bytes_sent == len(INITIALIZE) + len(INITIALIZED)
