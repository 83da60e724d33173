"""The HTTP client channel with a server of the transport of 2024-11-05, HTTP+SSE."""

import json

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import DEFAULT_LIMITS, HttpLimits, MessageLimits
from mcp_trio.transports import Lost, Oversized, open_http_channel
from tests.transports.http.scripted_server import (
    EVENTS,
    INITIALIZE,
    STATELESS,
    URL,
    Legacy,
    Reply,
    answer_to,
    asking,
    call,
    connected,
    error,
    event,
    events,
    in_session,
    json_reply,
    next_item,
    next_items,
    notification_message,
    result,
    streaming,
    succeed,
)


@attrs.define(kw_only=True)
class Old:
    """A server that rejects POST at `/mcp`, and whose stream names the endpoint and brings `more`."""

    endpoint: str = "/messages?session=1"
    rejection: Reply = attrs.field(factory=lambda: Reply(405))
    first: str = "endpoint"
    more: list = attrs.field(factory=list)
    stream: object = None
    answers: dict = attrs.field(factory=dict)

    async def __call__(self, seen):
        if seen.method == "GET":
            self.stream, pieces = trio.open_memory_channel[bytes](100)
            return Reply(200, EVENTS, self._stream_of(pieces))
        if seen.path == "/mcp":
            return self.rejection
        message = seen.message
        if message.get("method") in self.answers:
            return await self.answers[message["method"]](seen)
        if message.get("method") == "initialize":
            self.send_event(
                answer_to(
                    seen,
                    protocolVersion="2024-11-05",
                    capabilities={"tools": {}},
                    serverInfo={"name": "old", "version": "1"},
                )
            )
        return Reply(202, {}, b"Accepted")

    def send_event(self, message):
        self.stream.send_nowait(event(message))

    async def _stream_of(self, pieces):
        yield event(text=self.endpoint, name=self.first)
        for piece in self.more:
            yield piece
        async for piece in pieces:
            yield piece


async def shake_hands(channel):
    await channel.send([INITIALIZE])
    assert (await next_item(channel))["result"]["protocolVersion"] == "2024-11-05"


@pytest.mark.requirement("SSE-03", "SSE-09", "SSE-11", "SSE-12", "TRAP-43")
@pytest.mark.parametrize("status", [400, 404, 405, 406, 415])
async def test_http_sse_is_tried_if_initialize_is_rejected(status):
    async def add(seen):
        server.send_event(answer_to(seen, content=[]))
        return Reply(202)

    server = Old(rejection=Reply(status), answers={"tools/call": add})
    async with connected(server) as (channel, script):
        await shake_hands(channel)
        await channel.send(
            [notification_message("notifications/initialized"), asking(1, "tools/call")]
        )
        assert (await next_item(channel))["id"] == 1

    assert [(seen.method, seen.path) for seen in script.seen] == [
        ("POST", "/mcp"),
        ("GET", "/mcp"),
        *[("POST", "/messages?session=1")] * 3,
    ]
    assert script.seen[1].headers["accept"] == "text/event-stream"
    assert not any("mcp-protocol-version" in seen.headers for seen in script.seen)


@pytest.mark.requirement("TRAP-43")
@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("/m?x=1", "/m?x=1"),
        ("m", "/m"),
        ("http://mcp.test/m", "/m"),
        ("http://mcp.test:80/m", "/m"),
    ],
)
async def test_the_endpoint_may_be_relative(endpoint, path):
    async with connected(Old(endpoint=endpoint)) as (channel, script):
        await shake_hands(channel)

    assert script.seen[-1].path == path


@pytest.mark.requirement("TRAP-43", "SEC-04")
@pytest.mark.parametrize(
    "endpoint", ["http://evil.test/m", "https://mcp.test/m", "//mcp.test:8080/m", "http://x:y/"]
)
async def test_an_endpoint_of_another_origin_is_not_posted_to(endpoint):
    async with connected(Old(endpoint=endpoint)) as (channel, script):
        await channel.send([INITIALIZE])
        lost = await next_item(channel)

    assert "of another origin" in str(lost.error)
    assert "HTTP 405" in str(lost.error)
    assert len(script.seen) == 2


@pytest.mark.requirement("TRAP-43")
async def test_the_first_event_has_to_be_the_endpoint():
    for server in (
        Old(first="message"),
        Old(endpoint="x" * 3000),
    ):
        async with connected(server, limits=Limits(messages=MessageLimits(bytes_max=1000))) as (
            channel,
            _,
        ):
            await channel.send([INITIALIZE])

            assert "is not `endpoint`" in str((await next_item(channel)).error)


async def test_the_endpoint_is_waited_for_in_bounded_time(autojump_clock):
    async def silent(seen):
        async def body():
            await trio.sleep_forever()
            yield b""

        return Reply(405) if seen.method == "POST" else Reply(200, EVENTS, body())

    async with connected(silent) as (channel, _):
        await channel.send([INITIALIZE])

        assert "limits.requests.probe_seconds (5)" in str(
            (await next_item(channel, seconds=10)).error
        )


@pytest.mark.parametrize("status", [401, 403, 429, 500])
async def test_http_sse_is_not_tried_after_other_rejections(status):
    async with connected(Old(rejection=Reply(status))) as (channel, script):
        await channel.send([INITIALIZE])
        assert f"HTTP {status}" in str((await next_item(channel)).error)

    assert len(script.seen) == 1


@pytest.mark.requirement("SSE-12")
@pytest.mark.parametrize(
    "body",
    [
        {"id": 0, "error": {"code": -32600, "message": "no"}},
        {"id": None, "error": {"code": -32022, "message": "no"}},
        {"error": {"code": -32020, "message": "no"}},
    ],
)
async def test_http_sse_is_not_tried_after_an_error_response(body):
    body["jsonrpc"] = "2.0"
    async with connected(Old(rejection=json_reply(body, 400))) as (channel, script):
        await channel.send([INITIALIZE])
        assert (await next_item(channel))["error"] == body["error"]

    assert len(script.seen) == 1


async def test_http_sse_is_tried_after_an_error_without_an_id():
    body = {"jsonrpc": "2.0", "error": {"code": -32600, "message": "no"}}
    async with connected(Old(rejection=json_reply(body, 405))) as (channel, _):
        await shake_hands(channel)


async def test_the_rejections_of_both_transports_are_reported():
    async def nothing(_seen):
        return Reply(404, {}, b"nothing here")

    async with connected(nothing) as (channel, _):
        await channel.send([INITIALIZE])
        lost = await next_item(channel)

    assert str(lost.error).count("HTTP 404") == 2
    assert channel.state == "closed"


async def test_all_messages_are_received_on_the_one_stream():
    note = {"jsonrpc": "2.0", "method": "notifications/x"}
    more = [event(note, name="other"), event(text=""), b": ping\n\n", event(note, name="message")]
    limits = Limits(messages=MessageLimits(bytes_max=1000))
    more.append(event(note | {"params": {"a": "x" * 2000}}))
    async with connected(Old(more=more), limits=limits) as (channel, _):
        await channel.send([INITIALIZE])
        items = await next_items(channel, 3)

    assert json.loads(items[0]) == note
    assert isinstance(items[1], Oversized)
    assert json.loads(items[2])["id"] == 0


async def test_a_rejected_post_fails_only_its_request():
    async def reject(_seen):
        return Reply(400, {}, b"bad")

    async def explain(seen):
        return error(seen, -32600, status=400)

    server = Old(answers={"tools/call": reject, "tools/list": explain})
    async with connected(server) as (channel, _):
        await shake_hands(channel)
        await channel.send([asking(1, "tools/call")])
        lost = await next_item(channel)
        await channel.send([asking(2, "tools/list")])
        answer = await next_item(channel)

    assert type(lost.error) is ConnectionLost
    assert "HTTP 400" in str(lost.error)
    assert (answer["id"], answer["error"]["code"]) == (2, -32600)


async def test_an_initialize_that_the_endpoint_rejects_fails():
    async def reject(_seen):
        return Reply(400, {}, b"bad")

    async with connected(Old(answers={"initialize": reject})) as (channel, script):
        await channel.send([INITIALIZE])
        assert "HTTP 400" in str((await next_item(channel)).error)

    assert len(script.seen) == 3


async def test_the_end_of_the_stream_ends_the_session():
    async with connected(server := Old()) as (channel, script):
        await shake_hands(channel)
        await channel.send([asking(1, "tools/call")])
        await trio.testing.wait_all_tasks_blocked()
        server.stream.close()
        (lost,) = await channel.receive()
        assert await channel.receive() == []
        assert channel.reason == "the server's stream ended"

    assert type(lost.error) is OutcomeUnknown
    assert "DELETE" not in script.methods


async def test_a_stream_that_breaks_ends_the_session():
    class Breaking(Old):
        async def _stream_of(self, pieces):
            yield event(text=self.endpoint, name="endpoint")
            yield await pieces.receive()
            raise httpx2.ReadError("cut")

    async with connected(Breaking()) as (channel, _):
        await shake_hands(channel)
        assert await channel.receive() == []
        assert "cut" in channel.reason


@pytest.mark.requirement("SSE-09", "SSE-10")
async def test_a_client_finds_an_http_sse_server_by_its_url():
    async def add(seen):
        server.send_event(answer_to(seen, content=[{"type": "text", "text": "3"}]))
        return Reply(202)

    server = Old(answers={"tools/call": add})
    async with connected(server) as (channel, script), Client(channel) as client:
        assert client.protocol_version == "2024-11-05"
        with trio.fail_after(5):
            assert (await client.call_tool("add")).content[0].text == "3"

    paths = [(seen.method, seen.path) for seen in script.seen]
    assert paths[:3] == [("POST", "/mcp"), ("POST", "/mcp"), ("GET", "/mcp")]
    assert json.loads(script.seen[0].body)["method"] == "server/discover"
    assert script.seen[0].headers["mcp-protocol-version"] == STATELESS


# The HTTP client channel with a legacy server: resumed streams, and the standalone stream.


NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"n": 1}}


def resumable(*pieces, listen=None):
    """A server whose calls are answered on a stream that ends early; `listen` resumes it."""
    return Legacy(answers={"tools/call": streaming(*pieces)}, listen=listen)


# Resumed streams


@pytest.mark.requirement(
    "HTTP-16", "HTTP-18", "HTTP-40", "HTTP-41", "TRAP-37", "TRAP-39", "TRAP-40"
)
async def test_a_stream_that_ends_early_is_resumed_by_get_after_the_retry_time(
    autojump_clock,
):
    at = []

    async def listen(seen):
        at.append(trio.current_time())
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}, event_id="a-2"))

    pieces = [event(text="", event_id="a-1", retry=700)]
    async with connected(resumable(*pieces, listen=listen)) as (channel, script):
        await in_session(channel)
        started_at = trio.current_time()
        await channel.send([call(1)])
        assert (await next_item(channel))["id"] == 1

    assert script.of("GET")[1].headers["last-event-id"] == "a-1"
    assert script.of("GET")[1].headers["accept"] == "text/event-stream"
    assert at[1] - started_at == pytest.approx(0.7)


async def test_a_stream_is_resumed_after_its_last_event_as_long_as_events_come(autojump_clock):
    polls = []

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        polls.append(seen.headers["last-event-id"])
        if len(polls) < 20:
            return events(event(NOTE, event_id=f"a-{len(polls)}"))
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    pieces = [event(text="", event_id="a-0", retry=0)]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        items = await next_items(channel, 20)

    assert polls == [f"a-{n}" for n in range(20)]
    assert json.loads(items[-1])["id"] == 1


async def test_event_ids_may_contain_any_character(autojump_clock):
    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    async with connected(resumable(event(text="", event_id="é"), listen=listen)) as (
        channel,
        script,
    ):
        await in_session(channel)
        await channel.send([call(1)])
        assert (await next_item(channel))["id"] == 1

    assert script.of("GET")[1].headers["last-event-id"] == "é"


async def test_a_stream_that_breaks_is_resumed_like_one_that_ends(autojump_clock):
    async def breaking(_seen):
        async def body():
            yield event(NOTE, event_id="a-1")
            raise httpx2.ReadError("cut")

        return Reply(200, EVENTS, body())

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    states = []
    server = Legacy(answers={"tools/call": breaking}, listen=listen)
    on_state = lambda *state: states.append(state)  # noqa: E731
    async with connected(server, on_state=on_state) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        assert await next_item(channel) == NOTE
        assert (await next_item(channel))["id"] == 1

    assert states[2:4] == [("retrying", "the stream broke: cut"), ("open", "")]


async def test_an_unreachable_server_is_tried_a_limited_number_of_times_with_growing_pauses(
    autojump_clock,
):
    at = []

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        at.append(trio.current_time())
        if len(at) % 2:
            raise httpx2.ConnectError("rejected")
        return Reply(503)

    pieces = [event(text="", event_id="a-1", retry=1500)]
    limits = Limits(http=HttpLimits(reconnects_max=4, reconnect_seconds_max=10, resume_seconds=100))
    async with connected(resumable(*pieces, listen=listen), limits=limits) as (channel, _):
        await in_session(channel)
        started_at = trio.current_time()
        await channel.send([call(1)])
        lost = await next_item(channel, seconds=100)

    pauses = [later - earlier for earlier, later in zip([started_at, *at], at, strict=False)]
    assert pauses == pytest.approx([1.5, 2, 4, 8, 10])
    assert type(lost.error) is OutcomeUnknown
    assert "rejected" in str(lost.error)
    assert "(limits.http.reconnects_max=4)" in str(lost.error)


@pytest.mark.parametrize(("retry_ms", "seconds"), [(None, 10), (4000, 12)])
async def test_a_call_to_an_unreachable_server_fails_within_resume_seconds(
    autojump_clock, retry_ms, seconds
):
    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        raise httpx2.ConnectError("rejected")

    pieces = [event(text="", event_id="a-1", retry=retry_ms)]
    async with connected(resumable(*pieces, listen=listen), random_source=lambda: 1) as (
        channel,
        _,
    ):
        await in_session(channel)
        started_at = trio.current_time()
        await channel.send([call(1)])
        lost = await next_item(channel, seconds=100)

    first_pause = (retry_ms or 1000) / 1000
    assert trio.current_time() - started_at == pytest.approx(first_pause + seconds)
    assert type(lost.error) is OutcomeUnknown
    assert "rejected before the response arrived (limits.http.resume_seconds=10)" in str(lost.error)


async def test_a_server_that_was_reachable_again_may_be_unreachable_as_long_again(autojump_clock):
    polls = []

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        polls.append(trio.current_time())
        if len(polls) in (4, 8):
            return events(event(NOTE, event_id=f"a-{len(polls)}"))
        if len(polls) == 12:
            return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))
        raise httpx2.ConnectError("rejected")

    pieces = [event(text="", event_id="a-1")]
    async with connected(resumable(*pieces, listen=listen), random_source=lambda: 1) as (
        channel,
        _,
    ):
        await in_session(channel)
        await channel.send([call(1)])
        succeed = [await next_item(channel, seconds=100) for _ in range(3)]

    assert succeed[:2] == [NOTE, NOTE]
    assert succeed[2]["id"] == 1
    assert polls[-1] - polls[0] > 20


async def test_an_open_stream_without_events_is_not_a_failure(autojump_clock):
    """Some proxies cut connections that have been silent for half a minute."""
    gets = []

    async def silence():
        await trio.sleep(29)
        for _ in ():
            yield b""

    async def listen(seen):
        if "last-event-id" not in seen.headers:
            return Reply(405)
        gets.append(seen)
        if len(gets) <= 2:
            return Reply(200, EVENTS, silence())
        return events(event({"jsonrpc": "2.0", "id": 1, "result": {}}))

    pieces = [event(text="", event_id="a-1")]
    limits = Limits(http=HttpLimits(resume_seconds=10))
    async with connected(resumable(*pieces, listen=listen), limits=limits) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        assert (await next_item(channel, seconds=100))["id"] == 1


async def test_random_pauses_spread_reconnecting_clients(autojump_clock):
    at = []

    async def listen(seen):
        if "last-event-id" in seen.headers:
            at.append(trio.current_time())
        return Reply(405)

    pieces = [event(text="", event_id="a-1")]
    server = resumable(*pieces, listen=listen)
    async with connected(server, random_source=lambda: 0.5) as (channel, _):
        await in_session(channel)
        started_at = trio.current_time()
        await channel.send([call(1)])
        lost = await next_item(channel)

    assert at == [pytest.approx(started_at + 0.75)]
    assert "HTTP 405" in str(lost.error)
    assert type(lost.error) is OutcomeUnknown  # the call itself was accepted


async def test_a_stream_without_ids_cannot_be_resumed():
    async with connected(resumable(event(NOTE))) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = await next_items(channel, 2)

    assert isinstance(items[1], Lost)
    assert len(script.of("GET")) == 1


async def test_a_stream_with_an_event_over_the_limit_cannot_be_resumed(autojump_clock):
    big = NOTE | {"params": {"a": "x" * 2000}}
    limits = Limits(messages=MessageLimits(bytes_max=1000))
    async with connected(resumable(event(big, event_id="a-1")), limits=limits) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = await next_items(channel, 2)

    assert isinstance(items[1], Lost)
    assert len(script.of("GET")) == 1


async def test_an_empty_event_id_makes_a_stream_not_resumable():
    pieces = [event(NOTE, event_id="a-1"), event(NOTE, event_id="")]
    async with connected(resumable(*pieces)) as (channel, script):
        await in_session(channel)
        await channel.send([call(1)])
        items = await next_items(channel, 3)

    assert isinstance(items[2], Lost)
    assert len(script.of("GET")) == 1


async def test_a_session_that_the_server_forgets_while_a_stream_is_resumed_ends(autojump_clock):
    async def listen(seen):
        return Reply(404 if "last-event-id" in seen.headers else 405)

    pieces = [event(text="", event_id="a-1")]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        (lost,) = await channel.receive()
        assert await channel.receive() == []

    assert type(lost.error) is OutcomeUnknown


async def test_a_resumed_stream_has_to_be_an_event_stream(autojump_clock):
    async def listen(seen):
        return result(seen) if seen.body else Reply(200, {"content-type": "text/html"}, b"hello")

    pieces = [event(text="", event_id="a-1")]
    async with connected(resumable(*pieces, listen=listen)) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])

        assert "text/html" in str((await next_item(channel)).error)


# The standalone stream


@pytest.mark.requirement("HTTP-27", "HTTP-28", "HTTP-35")
async def test_messages_of_no_request_are_received_on_the_standalone_stream():
    listen = streaming(
        event(NOTE, event_id="g-1"),
        event(NOTE, name="other", event_id="g-2"),
        event({"jsonrpc": "2.0", "id": "s-1", "method": "ping"}),
        ends=False,
    )

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        items = [json.loads(item) for item in await channel.receive()]

    assert [item["method"] for item in items] == ["notifications/message", "ping"]
    assert script.of("GET")[0].headers["accept"] == "text/event-stream"


@pytest.mark.requirement("TRAP-42")
@pytest.mark.parametrize("status", [400, 404, 405, 501])
async def test_a_server_may_have_no_standalone_stream(status, caplog, autojump_clock):
    async def listen(_seen):
        return Reply(status)

    async with connected(Legacy(listen=listen, answers={"tools/call": succeed})) as (
        channel,
        script,
    ):
        await in_session(channel)
        await channel.send([call(1)])
        assert (await next_item(channel))["id"] == 1
        await trio.sleep(1000)

    assert caplog.text == ""
    assert len(script.of("GET")) == (6 if status == 501 else 1)


@pytest.mark.requirement("HTTP-33")
async def test_the_standalone_stream_is_opened_again_when_it_ends(autojump_clock):
    async def listen(seen):
        if seen.headers.get("last-event-id") == "g-1":
            await trio.sleep_forever()
        return events(event(NOTE, event_id="g-1", retry=3000))

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        await next_item(channel)
        await trio.sleep(2.9)
        assert len(script.of("GET")) == 1
        await trio.sleep(0.2)
        assert len(script.of("GET")) == 2


async def test_a_standalone_stream_is_given_up_after_failures_but_not_after_long_connections(
    autojump_clock,
):
    lives = [40.0] * 20

    async def listen(_seen):
        async def body():
            await trio.sleep(lives.pop() if lives else 0)
            for _ in ():
                yield b""

        return Reply(200, EVENTS, body())

    async with connected(Legacy(listen=listen)) as (channel, script):
        await in_session(channel)
        await trio.sleep(5000)
        assert len(script.of("GET")) == 20 + 6
        assert channel.state == "open"  # calls can be made


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "HTTP 401"), (429, "reconnects_max="), (503, "reconnects_max=")],
)
async def test_the_end_of_a_standalone_stream_is_logged(status, reason, caplog, autojump_clock):
    async def listen(seen):
        is_first = "last-event-id" not in seen.headers
        return events(event(NOTE, event_id="g-1")) if is_first else Reply(status)

    async with connected(Legacy(listen=listen)) as (channel, _):
        await in_session(channel)
        assert await next_item(channel) == NOTE
        await trio.sleep(1000)

    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "sends no more notifications" in record.getMessage()
    assert reason in record.getMessage()


async def test_a_standalone_stream_that_is_not_found_any_more_ends_the_session(
    autojump_clock,
):
    async def listen(seen):
        return (
            Reply(404) if "last-event-id" in seen.headers else events(event(NOTE, event_id="g-1"))
        )

    async with connected(Legacy(listen=listen)) as (channel, _):
        await in_session(channel)
        assert await next_item(channel) == NOTE

        assert await channel.receive() == []


async def test_an_unexpected_exception_on_the_standalone_stream_is_logged(caplog):
    async def listen(_seen):
        raise KeyError("mine")

    async with connected(Legacy(listen=listen)) as (channel, _):
        await in_session(channel)
        assert channel.state == "open"

    assert "the standalone stream failed" in caplog.text


async def test_an_answer_finishes_its_request_on_any_stream(autojump_clock):
    answer = trio.Event()

    async def listen(_seen):
        async def body():
            await answer.wait()
            yield event({"jsonrpc": "2.0", "id": 1, "result": {}})
            yield event({"jsonrpc": "2.0", "id": 2, "error": {"code": 1, "message": "no"}})
            yield event({"jsonrpc": "2.0", "id": 9, "result": {}})
            await trio.sleep_forever()

        return Reply(200, EVENTS, body())

    endless = streaming(event(text="", event_id="a-1"), ends=False)

    async with connected(Legacy(listen=listen, answers={"tools/call": endless})) as (
        channel,
        script,
    ):
        await in_session(channel)
        await channel.send([call(1), call(2)])
        answer.set()
        await next_items(channel, 3)
        await trio.sleep(3)

        assert [stream.is_set() for stream in script.closed] == [False, True, True]
        with trio.move_on_after(1) as nothing:
            await channel.receive()
        assert nothing.cancelled_caught


async def test_answers_may_arrive_as_a_batch_in_version_2025_03_26():
    async def batched(seen):
        vague = {"jsonrpc": "2.0", "error": {"code": 1, "message": "no"}}
        answers = [vague, answer_to(seen), {"jsonrpc": "2.0", "method": "notifications/x"}]
        return Reply(200, {"content-type": "application/json"}, json.dumps(answers).encode())

    async with connected(Legacy(answers={"tools/call": batched})) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        batch = await next_item(channel)

    assert batch[1]["id"] == 1


async def test_a_batch_may_have_as_many_messages_as_the_limits_of_the_client_allow():
    async def batched(seen):
        notifications = [{"jsonrpc": "2.0", "method": "notifications/x"}] * 1000
        answers = json.dumps([*notifications, answer_to(seen)]).encode()
        return Reply(200, {"content-type": "application/json"}, answers)

    limits = Limits(messages=MessageLimits(batch_size_max=1001))
    async with connected(Legacy(answers={"tools/call": batched}), limits=limits) as (channel, _):
        await in_session(channel)
        await channel.send([call(1)])
        batch = await next_item(channel)
        with trio.move_on_after(1) as nothing:
            await channel.receive()

    assert len(batch) == 1001
    assert nothing.cancelled_caught


# The HTTP client channel with a server that reads slowly.


ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"x":"%b"}}' % (b"x" * 300_000)
SIZE = len(ANSWER)
BYTES_PER_SECOND = 10_000


class Slow(httpx2.AsyncBaseTransport):
    """A server that reads slowly, and stops after `bytes_max` bytes."""

    def __init__(self, library, bytes_max=SIZE):
        self.library = library
        self.bytes_max = bytes_max
        self.taken = b""

    async def handle_async_request(self, request):
        async for piece in request.stream:
            if len(self.taken) >= self.bytes_max:
                await trio.sleep_forever()
            await trio.sleep(len(piece) / BYTES_PER_SECOND)
            self.taken += piece
        return self.library.Response(202)


async def send_answer(server):
    channel = await open_http_channel(URL, http=server.library.AsyncClient(transport=server))
    await channel.send([ANSWER])
    await channel.aclose()
    return channel.bytes_sent


async def test_an_answer_is_sent_completely_to_a_server_that_reads_slowly(
    autojump_clock, caplog, library
):
    server = Slow(library)
    assert await send_answer(server) == SIZE
    assert server.taken == ANSWER
    assert trio.current_time() > DEFAULT_LIMITS.messages.write_stall_seconds
    assert caplog.text == ""


async def test_a_server_that_stops_reading_is_given_up(autojump_clock, caplog, library):
    server = Slow(library, bytes_max=100_000)
    await send_answer(server)
    assert len(server.taken) < SIZE
    assert "not accepted within 15 s" in caplog.text
