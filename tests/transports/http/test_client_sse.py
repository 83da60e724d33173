"""The HTTP client channel with a server of the transport of 2024-11-05, HTTP+SSE."""

import json

import attrs
import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, Limits
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import Oversized
from tests.transports.http.scripted_server import (
    EVENTS,
    INITIALIZE,
    STATELESS,
    Reply,
    answer_to,
    asking,
    connected,
    error,
    event,
    heard,
    json_reply,
    telling,
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
            self.stream, to_say = trio.open_memory_channel[bytes](100)
            return Reply(200, EVENTS, self._said(to_say))
        if seen.path == "/mcp":
            return self.rejection
        message = seen.message
        if message.get("method") in self.answers:
            return await self.answers[message["method"]](seen)
        if message.get("method") == "initialize":
            self.say(
                answer_to(
                    seen,
                    protocolVersion="2024-11-05",
                    capabilities={"tools": {}},
                    serverInfo={"name": "old", "version": "1"},
                )
            )
        return Reply(202, {}, b"Accepted")

    def say(self, message):
        self.stream.send_nowait(event(message))

    async def _said(self, to_say):
        yield event(text=self.endpoint, name=self.first)
        for piece in self.more:
            yield piece
        async for piece in to_say:
            yield piece


async def shake_hands(channel):
    await channel.send([INITIALIZE])
    assert (await heard(channel))["result"]["protocolVersion"] == "2024-11-05"


@pytest.mark.requirement("SSE-03", "SSE-09", "SSE-11", "SSE-12", "TRAP-43")
@pytest.mark.parametrize("status", [400, 404, 405, 406, 415])
async def test_http_sse_is_tried_if_initialize_is_rejected(status):
    async def add(seen):
        server.say(answer_to(seen, content=[]))
        return Reply(202)

    server = Old(rejection=Reply(status), answers={"tools/call": add})
    async with connected(server) as (channel, script):
        await shake_hands(channel)
        await channel.send([telling("notifications/initialized"), asking(1, "tools/call")])
        assert (await heard(channel))["id"] == 1

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
        lost = await heard(channel)

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

            assert "is not `endpoint`" in str((await heard(channel)).error)


async def test_the_endpoint_is_waited_for_in_bounded_time(autojump_clock):
    async def silent(seen):
        async def body():
            await trio.sleep_forever()
            yield b""

        return Reply(405) if seen.method == "POST" else Reply(200, EVENTS, body())

    async with connected(silent) as (channel, _):
        await channel.send([INITIALIZE])

        assert "limits.requests.probe_seconds (5)" in str((await heard(channel, seconds=10)).error)


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_http_sse_is_not_tried_after_other_rejections(status):
    async with connected(Old(rejection=Reply(status))) as (channel, script):
        await channel.send([INITIALIZE])
        assert f"HTTP {status}" in str((await heard(channel)).error)

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
        assert (await heard(channel))["error"] == body["error"]

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
        lost = await heard(channel)

    assert str(lost.error).count("HTTP 404") == 2
    assert channel.state == "closed"


async def test_all_messages_are_received_on_the_one_stream():
    note = {"jsonrpc": "2.0", "method": "notifications/x"}
    more = [event(note, name="other"), event(text=""), b": ping\n\n", event(note, name="message")]
    limits = Limits(messages=MessageLimits(bytes_max=1000))
    more.append(event(note | {"params": {"a": "x" * 2000}}))
    async with connected(Old(more=more), limits=limits) as (channel, _):
        await channel.send([INITIALIZE])
        items = []
        while len(items) < 3:
            items += await channel.receive()

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
        lost = await heard(channel)
        await channel.send([asking(2, "tools/list")])
        answer = await heard(channel)

    assert type(lost.error) is ConnectionLost
    assert "HTTP 400" in str(lost.error)
    assert (answer["id"], answer["error"]["code"]) == (2, -32600)


async def test_an_initialize_that_the_endpoint_rejects_fails():
    async def reject(_seen):
        return Reply(400, {}, b"bad")

    async with connected(Old(answers={"initialize": reject})) as (channel, script):
        await channel.send([INITIALIZE])
        assert "HTTP 400" in str((await heard(channel)).error)

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
        async def _said(self, to_say):
            yield event(text=self.endpoint, name="endpoint")
            yield await to_say.receive()
            raise httpx2.ReadError("cut")

    async with connected(Breaking()) as (channel, _):
        await shake_hands(channel)
        assert await channel.receive() == []
        assert "cut" in channel.reason


@pytest.mark.requirement("SSE-09", "SSE-10")
async def test_a_client_finds_an_http_sse_server_by_its_url():
    async def add(seen):
        server.say(answer_to(seen, content=[{"type": "text", "text": "3"}]))
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
