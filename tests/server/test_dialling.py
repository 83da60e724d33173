"""Servers that dial out, and serve a hub on the connection that they have opened."""

import contextlib
import functools
import json
import os
import socket

import attrs
import pytest
import trio

from mcp_trio import Client, ConnectionLost, Context, Limits, Server
from mcp_trio._protocol.websocket import CloseCode
from mcp_trio._transports.sockets import SocketHost, serve_sockets
from mcp_trio.limits import HttpLimits
from mcp_trio.recording import replay
from tests.server.watched import watched
from tests.story import Story

SECONDS = 10.0
QUICK = Limits(http=HttpLimits(sse_retry_ms=10, reconnect_seconds_max=0.05))


def worker(seen=None):
    server = watched("worker", seen, limits=QUICK)

    @server.tool
    async def work(*, ctx: Context) -> str:
        return await ctx.effect(str, "done")

    return server


def text(result):
    return result.content[0].text


@attrs.define(eq=False)
class Hub:
    """Takes connections at a TCP port, and hands out their channels."""

    port: int
    channels: trio.MemoryReceiveChannel


async def open_hub(nursery, port=0):
    put, take = trio.open_memory_channel(0)

    async def handle(channel):
        async with contextlib.aclosing(channel):
            await put.send(channel)
            await channel._left.wait()

    host = SocketHost(transport="tcp", authorize=None, handle=handle, limits=QUICK)
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    await nursery.start(serve_sockets, listeners, host)
    return Hub(listeners[0].socket.getsockname()[1], take)


@contextlib.asynccontextmanager
async def nursery_for_a_while():
    with trio.fail_after(SECONDS):
        async with trio.open_nursery() as nursery:
            yield nursery
            nursery.cancel_scope.cancel()


async def test_a_server_dials_again_and_again_in_one_lifespan():
    seen, states = Story(), []
    async with nursery_for_a_while() as nursery:
        hub = await open_hub(nursery)
        dial = functools.partial(
            worker(seen).dial,
            f"tcp://127.0.0.1:{hub.port}",
            state_changed=lambda *told: states.append(told),
        )
        nursery.start_soon(dial)
        for _ in range(3):
            async with Client(await hub.channels.receive()) as client:
                assert text(await client.call_tool("work")) == "done"
        assert seen == ["begins"]
    assert seen == ["begins", "ends"]
    names = [state for state, _why in states]
    assert names[:6] == ["connecting", "open", "retrying", "open", "retrying", "open"]
    assert names[-1] == "closed"
    assert states[2][1] == "the peer closed the connection"


async def test_it_reports_the_url_and_ends_in_bounded_time_when_cancelled():
    seen = Story()
    async with nursery_for_a_while() as nursery:
        hub = await open_hub(nursery)
        async with trio.open_nursery() as dialling:
            url = f"tcp://127.0.0.1:{hub.port}"
            assert await dialling.start(worker(seen).dial, url) == url
            async with Client(await hub.channels.receive()) as client, trio.open_nursery() as calls:

                async def call():
                    with pytest.raises(ConnectionLost):
                        await client.call_tool("wait")

                calls.start_soon(call)
                await seen.until("waits")
                dialling.cancel_scope.cancel()
    assert seen == ["begins", "waits", "cancelled", "ends"]


async def test_a_hub_that_is_not_there_yet_is_waited_for():
    states, reasons = Story(), []

    def note(state, why):
        states.append(state)
        reasons.append(why)

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with nursery_for_a_while() as nursery:
        url = f"tcp://127.0.0.1:{port}"
        nursery.start_soon(functools.partial(worker().dial, url, state_changed=note))
        await states.until("retrying")
        hub = await open_hub(nursery, port)
        async with Client(await hub.channels.receive()) as client:
            assert text(await client.call_tool("work")) == "done"
        assert states[:3] == ["connecting", "retrying", "open"]
        assert f"cannot connect to {url}" in reasons[1]


async def test_one_file_holds_all_sessions_as_one_story_that_replays(tmp_path):
    file = tmp_path / "story.mcprec.jsonl"
    async with nursery_for_a_while() as nursery:
        hub = await open_hub(nursery)
        url = f"tcp://127.0.0.1:{hub.port}"
        nursery.start_soon(functools.partial(worker().dial, url, record=os.fspath(file)))
        for _ in range(2):
            async with Client(await hub.channels.receive()) as client:
                await client.call_tool("work")
        await hub.channels.receive()
    records = [json.loads(line) for line in file.read_text().splitlines()]
    called = [record.get("c") for record in records if "tools/call" in json.dumps(record)]
    assert called == [1, 2]
    report = await trio.to_thread.run_sync(replay, file, worker())
    assert report.is_complete


async def test_a_hub_that_knows_nobody_without_a_token_is_not_asked_again():
    states = []
    async with nursery_for_a_while() as nursery:
        serve = functools.partial(Server("hub").serve_websocket, port=0, token="sesame")
        url = await nursery.start(serve)
        for headers in (None, {"Origin": "https://evil.example"}):
            with pytest.raises(ConnectionLost, match=r"HTTP 40[13]"):
                await worker().dial(
                    url, headers=headers, state_changed=lambda *told: states.append(told)
                )
    assert [state for state, _why in states] == ["connecting", "closed"] * 2
    assert "HTTP 401" in states[1][1]


async def test_a_hub_that_closes_with_a_rejection_is_not_asked_again():
    from mcp_trio._transports.websocket_server import WebSocketHost, serve_websocket

    async def handle(channel):
        channel._code = CloseCode.POLICY_VIOLATION

    async def admit(head):
        await trio.lowlevel.checkpoint()
        return head

    async with nursery_for_a_while() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        host = WebSocketHost(admit=admit, handle=handle, limits=QUICK)
        nursery.start_soon(serve_websocket, listeners, host)
        port = listeners[0].socket.getsockname()[1]
        with pytest.raises(ConnectionLost, match=r"rejected the connection.*1008") as caught:
            await worker().dial(f"ws://127.0.0.1:{port}/")
    assert type(caught.value) is ConnectionLost


@pytest.mark.parametrize(
    ("url", "options", "kind"),
    [
        ("http://127.0.0.1:1", {}, ValueError),
        ("tcp://127.0.0.1", {}, ValueError),
        ("unix:/x", {"token": "x"}, TypeError),
        ("ws://127.0.0.1", {"token": "ö"}, ValueError),
    ],
)
async def test_what_cannot_be_dialled_is_rejected(url, options, kind):
    seen = Story()
    with pytest.raises(kind):
        await worker(seen).dial(url, **options)
    assert seen == ["begins", "ends"]
