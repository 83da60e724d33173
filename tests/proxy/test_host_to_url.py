"""A bridge from a stdio host to a server at a URL."""

import json
import os
from contextlib import asynccontextmanager

import attrs
import httpx2
import msgspec
import pytest
import trio
import trio.testing

from mcp_trio import Client, Limits
from mcp_trio._journal.records import encode_body
from mcp_trio._proxy.forwarders import HttpForwarder
from mcp_trio._proxy.journal import start_message_journal
from mcp_trio.errors import RecordingError
from mcp_trio.examples.weather import server as weather
from mcp_trio.limits import DEFAULT_LIMITS, HttpLimits, MessageLimits, RequestLimits, ShutdownLimits
from mcp_trio.recording import replay_async, replay_live_async
from mcp_trio.testing import mock_server
from mcp_trio.transports import memory_pair, open_http_channel
from tests.proxy.bridged import SOURCES, bridged
from tests.transports.http.scripted_server import (
    EVENTS,
    URL,
    Legacy,
    Modern,
    Reply,
    Script,
    answer_to,
    asking,
    event,
    events,
    notification_message,
    result,
    streaming,
)
from tests.ways import CONNECTIONS, served

STATELESS = "2026-07-28"
HELLO = asking(0, "initialize", protocolVersion="2025-11-25", capabilities={})


@attrs.define(eq=False)
class Host:
    """The test's side of a proxy that runs."""

    channel: object
    server: Script
    status: int | None = None
    received: list = attrs.field(factory=list)

    async def send(self, *frames):
        await self.channel.send(frames)

    async def receive(self):
        while not self.received:
            with trio.fail_after(100):
                self.received += await self.channel.receive()
        return json.loads(self.received.pop(0))


@pytest.fixture
def host_of(path):
    @asynccontextmanager
    async def host_of(answer, *, parent_pid=None, **options):
        limits = Limits(http=HttpLimits(get_stream_seconds=0.01), **options)
        script = Script(answer)
        http = httpx2.AsyncClient(transport=script)
        ours, theirs = memory_pair(limits=limits)
        host = Host(theirs, script)
        journal = start_message_journal(path, transport="stdio", name="mcp.test", limits=limits)
        proxy = HttpForwarder(
            client=ours,
            server=await open_http_channel(URL, http=http, limits=limits),
            journal=journal,
            limits=limits,
        )

        async def run():
            host.status = await proxy.run(parent_pid=parent_pid or os.getppid())
            journal.close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            yield host

    return host_of


async def test_a_legacy_session_passes_both_ways(host_of, path, recorded, autojump_clock):
    question = {"jsonrpc": "2.0", "id": "q", "method": "roots/list"}
    reply = {"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}
    replied = trio.Event()

    async def ask(seen):
        async def pieces():
            yield event(question)
            await replied.wait()
            yield event(answer_to(seen, ok=True))

        return Reply(200, EVENTS, pieces())

    server = Legacy(answers={"tools/call": ask})

    async def answer(seen):
        if seen.method == "POST" and seen.message.get("id") == "q":
            replied.set()
        return await server(seen)

    async with host_of(answer) as host:
        await host.send(HELLO)
        assert (await host.receive())["result"]["protocolVersion"] == "2025-11-25"
        await host.send(notification_message("notifications/initialized"), asking(1, "tools/call"))
        assert await host.receive() == question
        await host.send(encode_body(reply))
        assert (await host.receive())["result"] == {"ok": True}
        await host.channel.aclose()
    assert host.status == 0
    assert host.server.methods[-1] == "DELETE"
    assert host.server.seen[-1].headers["mcp-session-id"] == "s-1"
    session = recorded(path)
    assert [body.get("method", body.get("id")) for body in session.bodies("in")] == [
        "initialize",
        "notifications/initialized",
        "tools/call",
        "q",
    ]
    assert [body["id"] for body in session.bodies("out")] == [0, "q", 1]
    assert session.marks()["negotiated"]["protocol_version"] == "2025-11-25"
    assert session.cause == "eof"


async def test_a_host_that_does_not_wait_for_the_handshake_has_its_session(host_of, autojump_clock):
    async def slow(seen):
        await trio.sleep(5)
        return server.initialized(seen)

    async def echo(seen):
        return result(seen, session=seen.headers.get("mcp-session-id"))

    server = Legacy(answers={"initialize": slow, "echo": echo})
    async with host_of(server) as host:
        await host.send(HELLO, notification_message("notifications/initialized"), asking(1, "echo"))
        assert (await host.receive())["id"] == 0
        assert (await host.receive())["result"] == {"session": "s-1"}
        await host.channel.aclose()


async def test_a_stateless_host_is_a_stateless_client(host_of, path, recorded, autojump_clock):
    async def echo(seen):
        return result(seen, version=seen.headers["mcp-protocol-version"])

    async with host_of(Modern(answers={"echo": echo})) as host:
        await host.send(asking(1, "server/discover", STATELESS), asking(2, "echo", STATELESS))
        answers = {each["id"]: each for each in (await host.receive(), await host.receive())}
        assert answers[2]["result"] == {"version": STATELESS}
        await host.channel.aclose()
    assert host.status == 0
    assert len(recorded(path).lines("out")) == 2


async def test_a_request_cancelled_by_the_host_is_cancelled_and_not_waited_for(
    host_of, path, recorded, autojump_clock
):
    left = trio.Event()

    async def slow(seen):
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    async with host_of(Modern(answers={"slow": slow})) as host:
        await host.send(asking(1, "slow", STATELESS))
        await trio.sleep(1)
        await host.send(notification_message("notifications/cancelled", requestId=1))
        await left.wait()
        begin = trio.current_time()
        host.channel.sink.close()
    assert trio.current_time() - begin < 1


async def test_an_unreachable_server_fails_only_the_requests(
    host_of, path, recorded, autojump_clock
):
    is_down = True
    server = Modern()

    async def answer(seen):
        if is_down:
            raise httpx2.ConnectError("refused")
        return await server(seen)

    async with host_of(answer) as host:
        await host.send(asking(1, "server/discover", STATELESS))
        failed = await host.receive()
        assert failed["error"]["message"] == f"cannot connect to {URL}: refused"
        is_down = False
        await host.send(asking(2, "server/discover", STATELESS))
        assert "result" in await host.receive()
        await host.channel.aclose()
    session = recorded(path)
    assert [body["id"] for body in session.bodies("out")] == [2]
    assert session.marks()["lost"] == {"id": 1, "error": failed["error"]["message"]}


async def test_a_server_that_ends_the_session_ends_the_bridge(
    host_of, path, recorded, autojump_clock
):
    async def gone(seen):
        return Reply(404)

    async with host_of(Legacy(answers={"tools/call": gone})) as host:
        await host.send(HELLO)
        await host.receive()
        await host.send(asking(1, "tools/call"))
        assert "the server has ended the session" in (await host.receive())["error"]["message"]
        assert await host.channel.receive() == []
    assert host.status == 1
    assert recorded(path).cause == "lost"


async def test_open_requests_have_time_after_the_hosts_end_of_file(
    host_of, path, recorded, autojump_clock
):
    async def slow(seen):
        await trio.sleep(seen.message["params"]["seconds"])
        return result(seen)

    async with host_of(
        Modern(answers={"slow": slow}), shutdown=ShutdownLimits(drain_seconds=5)
    ) as host:
        await host.send(
            asking(1, "slow", STATELESS, seconds=3), asking(2, "slow", STATELESS, seconds=9)
        )
        await trio.testing.wait_all_tasks_blocked()
        host.channel.sink.close()
        begin = trio.current_time()
        assert (await host.receive())["id"] == 1
    assert 4.9 < trio.current_time() - begin < 8
    assert host.status == 0
    assert [body["id"] for body in recorded(path).bodies("out")] == [1]


async def test_a_subscription_is_not_waited_for(host_of, autojump_clock):
    listen = streaming(
        event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"}), ends=False
    )

    async with host_of(
        Modern(answers={"subscriptions/listen": listen}), shutdown=ShutdownLimits(drain_seconds=50)
    ) as host:
        await host.send(asking(1, "subscriptions/listen", STATELESS))
        await host.receive()
        host.channel.sink.close()
        begin = trio.current_time()
    assert trio.current_time() - begin < 10


async def test_a_batch_goes_message_by_message(host_of, path, recorded, autojump_clock):
    async def echo(seen):
        return result(seen)

    batch = b"[%b,%b]" % (asking(1, "echo"), asking(2, "echo"))
    async with host_of(Legacy(answers={"echo": echo})) as host:
        await host.send(HELLO)
        await host.receive()
        await host.send(batch)
        assert {(await host.receive())["id"], (await host.receive())["id"]} == {1, 2}
        await host.channel.aclose()
    assert recorded(path).lines("in") == [HELLO, batch]


REJECTED = {
    "no message": (b'{"jsonrpc":"2.0","id":5,"method":7}', "not a message"),
    "a number twice": (asking(1, "again", STATELESS), "the same id: 1"),
    "too many": (asking(3, "slow", STATELESS), "limits.requests.queued_max"),
}


@pytest.mark.parametrize("rejected", REJECTED)
async def test_a_message_that_cannot_be_forwarded_is_answered(
    host_of, path, recorded, autojump_clock, rejected
):
    async def slow(seen):
        await trio.sleep_forever()

    frame, text = REJECTED[rejected]
    async with host_of(
        Modern(answers={"slow": slow}), requests=RequestLimits(queued_max=2)
    ) as host:
        await host.send(asking(1, "slow", STATELESS), asking(2, "slow", STATELESS), frame)
        assert text in (await host.receive())["error"]["message"]
        await host.channel.aclose()
    assert recorded(path).lines("in")[2] == frame
    assert text in recorded(path).marks()["lost"]["error"]


async def test_a_line_over_the_limit_is_answered(host_of, path, recorded, autojump_clock):
    async with host_of(Modern(), messages=MessageLimits(bytes_max=200)) as host:
        await host.send(asking(1, "odd", STATELESS, text="x" * 400))
        assert "limits.messages.bytes_max (200)" in (await host.receive())["error"]["message"]
        await host.channel.aclose()
    assert recorded(path).records[1].envelope["discarded"] > 400


async def test_an_answer_over_the_limit_is_lost(host_of, path, recorded, autojump_clock):
    async def long(seen):
        return events(event(answer_to(seen, text="x" * 500)))

    async with host_of(
        Modern(answers={"long": long}), messages=MessageLimits(bytes_max=300)
    ) as host:
        await host.send(asking(1, "long", STATELESS))
        assert (await host.receive())["error"]["code"] == -32000
        await host.channel.aclose()
    (record,) = [record for record in recorded(path).records if record.kind == "out"]
    assert record.envelope["discarded"] > 500


@pytest.mark.real_time
async def test_the_death_of_the_parent_ends_the_bridge(host_of, path, recorded):
    process = await trio.lowlevel.open_process(["true"])
    await process.wait()
    async with host_of(Modern(), parent_pid=process.pid) as host:
        assert await host.channel.receive() == []
    assert host.status == 1
    assert recorded(path).cause == "lost"


# Replay and mocks of a bridge's recording.


LIMITS = msgspec.structs.replace(DEFAULT_LIMITS, requests=RequestLimits(idle_seconds=10))
SECONDS = 20.0


async def ask(target, protocol_version):
    """All that is asked for; the same from any server that is the same."""
    progress = []
    async with Client(target, protocol_versions=[protocol_version]) as client:
        tools = await client.list_tools()
        answer = await client.call_tool("forecast", {"city": "Oslo"}, progress=progress.append)
    return [tool.name for tool in tools], answer.content[0].text, len(progress)


@pytest.mark.real_time
@pytest.mark.parametrize("protocol_version", ["2025-11-25", "2026-07-28"])
@pytest.mark.parametrize("to", CONNECTIONS)
@pytest.mark.parametrize("source", SOURCES)
async def test_a_bridged_session_can_be_mocked_and_driven_over_any_transport(
    tmp_path, source, to, protocol_version
):
    folder = tmp_path / "recorded"
    folder.mkdir()
    with trio.fail_after(SECONDS):
        async with served(weather, to, tmp_path) as (url, _scope):
            async with bridged(source, url, tmp_path, record=folder) as listen:
                live = await ask(listen, protocol_version)
            path = next(each for each in folder.iterdir() if "tools/call" in each.read_text())
            report = await replay_live_async(path, url, limits=LIMITS)
            assert report.is_same, str(report)
        assert (await replay_live_async(path, weather, limits=LIMITS)).is_same
        assert await ask(mock_server(path), protocol_version) == live


@pytest.mark.real_time
async def test_a_recording_of_a_bridge_cannot_be_replayed_with_handlers(tmp_path):
    path = tmp_path / "bridged.mcprec.jsonl"
    async with (
        served(weather, "tcp") as (url, _scope),
        bridged("websocket", url, tmp_path, record=path) as listen,
    ):
        await ask(listen, "2025-11-25")
    with pytest.raises(RecordingError, match="strict replay runs the handlers of a server"):
        await replay_async(path, weather)
