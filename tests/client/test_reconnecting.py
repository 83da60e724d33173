"""Clients of connections that break and are opened again."""

import contextlib
import json
from pathlib import Path

import attrs
import pytest
import trio

from mcp_trio import Client, ConnectionLost, Context, Server
from mcp_trio.errors import OutcomeUnknown
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import said
from tests.client.stateless import LEGACY, STATELESS
from tests.story import Story
from tests.ways import CONNECTIONS, serving

SECONDS = 10.0
REJECTED = "HTTP 401"


@attrs.define(eq=False)
class Ferry:
    """A server whose connections a test cuts; `calls` holds what its tool was called with."""

    way: str
    folder: Path
    options: dict = attrs.field(factory=dict)
    calls: Story = attrs.field(factory=Story)
    url: str = ""
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    over: trio.Event = attrs.field(factory=trio.Event)

    async def serve(self, task_status=trio.TASK_STATUS_IGNORED):
        self.over = trio.Event()
        try:
            await self._serve(task_status)
        finally:
            self.over.set()

    async def _serve(self, task_status):
        server = Server("ferry")

        @server.tool
        async def cross(to: str, *, ctx: Context) -> str:
            self.calls.append(to)
            if to == "nowhere":
                await ctx.sleep(1000)
            return to

        port = int(self.url.rpartition(":")[2].partition("/")[0] or 0)
        serve = serving(server, self.way, self.folder, port=port, **self.options)
        with trio.CancelScope() as self.scope:
            async with trio.open_nursery() as nursery:
                self.url = await nursery.start(serve)
                task_status.started()

    async def sink(self, nursery):
        """Stop it, and have another one at the same place."""
        self.scope.cancel()
        with trio.fail_after(SECONDS):
            await self.over.wait()
            await nursery.start(self.serve)


@contextlib.asynccontextmanager
async def ferry_of(way, tmp_path, **options):
    async with trio.open_nursery() as nursery:
        ferry = Ferry(way, tmp_path, options)
        await nursery.start(ferry.serve)
        yield ferry, nursery
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocol_version", [LEGACY[-1], STATELESS])
@pytest.mark.parametrize("way", CONNECTIONS)
async def test_the_next_call_reconnects_and_the_states_are_reported(
    way, protocol_version, tmp_path
):
    states = []
    async with ferry_of(way, tmp_path) as (ferry, nursery):
        async with Client(
            ferry.url,
            protocol_versions=[protocol_version],
            state_changed=lambda *told: states.append(told),
        ) as client:
            assert said(await client.call_tool("cross", {"to": "Skye"})) == "Skye"
            first = client._session
            ferry.scope.cancel()
            await first.ended.wait()
            assert not client.is_open
            await ferry.sink(nursery)
            assert said(await client.call_tool("cross", {"to": "Mull"})) == "Mull"
            assert client._session is not first
            assert client.is_open
        assert ferry.calls == ["Skye", "Mull"]
    assert [state for state, _why in states] == ["connecting", "open", "retrying", "open", "closed"]
    assert states[2][1]


@pytest.mark.parametrize("way", CONNECTIONS)
async def test_a_call_in_flight_has_an_unknown_outcome_and_is_not_repeated(way, tmp_path):
    async with ferry_of(way, tmp_path) as (ferry, nursery), Client(ferry.url) as client:
        outcomes = []

        async def call():
            with pytest.raises(OutcomeUnknown) as caught:
                await client.call_tool("cross", {"to": "nowhere"})
            outcomes.append(caught.value)

        async with trio.open_nursery() as calls:
            calls.start_soon(call)
            with trio.fail_after(SECONDS):
                await ferry.calls.until("nowhere")
            ferry.scope.cancel()
        assert len(outcomes) == 1
        await ferry.sink(nursery)
        assert said(await client.call_tool("cross", {"to": "Mull"})) == "Mull"
        assert ferry.calls == ["nowhere", "Mull"]


@pytest.mark.parametrize("restart", [False, True])
async def test_a_lost_read_is_repeated_only_with_restart(restart, autojump_clock):
    served = []

    class Lists:
        async def serve(self, channel):
            peer = WirePeer(channel)
            served.append(peer)
            await answer(
                peer,
                "initialize",
                {
                    "protocolVersion": LEGACY[-1],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "l", "version": "1"},
                },
            )
            await peer.receive()
            request = await peer.receive()
            if len(served) == 1:
                await peer.aclose()
                return
            await peer.send_result(request, {"tools": []})
            await trio.sleep_forever()

    async def answer(peer, method, result):
        request = await peer.receive()
        assert request["method"] == method
        await peer.send_result(request, result)

    async with Client(Lists(), protocol_versions=[LEGACY[-1]], restart=restart) as client:
        if restart:
            assert await client.list_tools() == []
        else:
            with pytest.raises(OutcomeUnknown):
                await client.list_tools()
            with pytest.raises(ConnectionLost) as caught:
                await client.list_tools()
            assert type(caught.value) is ConnectionLost  # nothing was sent


async def test_each_call_tries_an_unreachable_server_again(tmp_path):
    states = []

    def told(state, _why):
        states.append(state)

    async with (
        ferry_of("unix", tmp_path) as (ferry, nursery),
        Client(ferry.url, state_changed=told) as client,
    ):
        ferry.scope.cancel()
        await ferry.over.wait()
        await client._session.ended.wait()
        for _ in range(2):
            with pytest.raises(ConnectionLost, match="cannot connect") as caught:
                await client.call_tool("cross", {"to": "Skye"})
            assert type(caught.value) is ConnectionLost
        await nursery.start(ferry.serve)
        await client.call_tool("cross", {"to": "Skye"})
    assert states == ["connecting", "open", "retrying", "open", "closed"]


async def test_one_recording_file_holds_all_sessions_of_a_client(tmp_path):
    file = tmp_path / "story.mcprec.jsonl"
    async with (
        ferry_of("tcp", tmp_path) as (ferry, nursery),
        Client(ferry.url, record=file) as client,
    ):
        await client.call_tool("cross", {"to": "Skye"})
        await ferry.sink(nursery)
        with trio.fail_after(SECONDS):
            await client._session.ended.wait()
        await client.call_tool("cross", {"to": "Mull"})
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert records[-1]["k"] == "end"
    called = [record.get("c") for record in records if "tools/call" in json.dumps(record)]
    assert called == [1, 2]


async def test_a_token_is_sent_over_websocket(tmp_path):
    async with ferry_of("websocket", tmp_path, token="sesame") as (ferry, _nursery):
        async with Client(ferry.url, token="sesame") as client:
            await client.call_tool("cross", {"to": "Skye"})
        states = []
        with pytest.raises(ConnectionLost, match=REJECTED) as caught:
            await Client(
                ferry.url, token="x", state_changed=lambda *it: states.append(it)
            ).__aenter__()
    assert caught.value.http_status == 401
    assert [state for state, _why in states] == ["connecting", "closed"]
    assert REJECTED in states[1][1]


async def test_a_token_is_sent_over_http():
    server = Server("web")

    @server.tool
    async def who(*, ctx: Context) -> str:
        return str(ctx.principal)

    async def verify(head):
        return head.header("authorization")

    async with trio.open_nursery() as nursery:

        async def serve(task_status=trio.TASK_STATUS_IGNORED):
            await server.serve_http(port=0, verify=verify, task_status=task_status)

        url = await nursery.start(serve)
        async with Client(url, token="sesame") as client:
            assert said(await client.call_tool("who")) == "Bearer sesame"
        nursery.cancel_scope.cancel()


async def test_a_given_channel_is_not_reconnected():
    states = []
    ours, theirs = memory_pair()

    async def serve():
        await Server("short").serve(theirs)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        async with Client(ours, state_changed=lambda *told: states.append(told)) as client:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await client._session.ended.wait()
            assert [state for state, _why in states] == ["connecting", "open", "closed"]
    assert states[2] == ("closed", "the peer closed the connection")
