"""Servers that end and are started again by the next call."""

import json
import os
import signal
from functools import partial

import attrs
import pytest
import trio
import trio.testing

from mcp_trio import Client, ConnectionLost, RequestError, Server
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.errors import OutcomeUnknown, RemoteProtocolError
from mcp_trio.recording import SharedRecording
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import QUICK, is_alive, python, said
from tests.client.stateless import DISCOVERED, LEGACY, STATELESS, Played


@attrs.define(eq=False)
class Mortal:
    """A server object whose sessions end when a test says so."""

    protocol_versions: list = ALL_PROTOCOL_VERSIONS
    lives: list = attrs.field(factory=list)
    calls: list = attrs.field(factory=list)

    async def serve(self, channel):
        server = Server("mortal", protocol_versions=self.protocol_versions)

        @server.tool
        def count() -> str:
            self.calls.append(len(self.lives))
            return str(len(self.lives))

        with trio.CancelScope() as life:
            self.lives.append(life)
            await server.serve(channel)

    async def die(self):
        self.lives[-1].cancel()
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.requirement("STDIO-20", "TRAP-133", "VER-08")
@pytest.mark.parametrize("protocol_version", [LEGACY[-1], STATELESS])
async def test_the_next_call_starts_the_server_again(protocol_version, caplog):
    server = Mortal()
    async with Client(server, protocol_versions=[protocol_version], restart=True) as client:
        for life in range(1, 4):
            assert said(await client.call_tool("count")) == str(life)
            await server.die()
            assert not client.is_open
        assert client.server_info.name == "mortal"
    assert "mortal has ended; starting it again" in caplog.text
    assert len(server.lives) == 3


async def test_without_the_option_a_lost_server_stays_lost():
    server = Mortal()
    async with Client(server) as client:
        await server.die()
        with pytest.raises(ConnectionLost):
            await client.call_tool("count")
    assert len(server.lives) == 1


async def test_many_calls_start_it_once():
    server = Mortal()
    async with Client(server, restart=True) as client:
        await server.die()
        async with trio.open_nursery() as calls:
            for _ in range(5):
                calls.start_soon(client.call_tool, "count")
    assert server.calls == [2] * 5


async def test_a_closed_client_stays_closed():
    server = Mortal()
    client = Client(server, restart=True)
    async with client:
        pass
    with pytest.raises(ConnectionLost):
        await client.call_tool("count")
    assert len(server.lives) == 1


@attrs.define(eq=False)
class Scripted:
    """A server object that dies of the first request that is no discovery, and lives on later."""

    answers: dict
    servers: list = attrs.field(factory=list)

    async def serve(self, channel):
        server = Played(WirePeer(channel), {"server/discover": DISCOVERED, **self.answers})
        self.servers.append(server)
        server.before = self.die if len(self.servers) == 1 else None
        await server.serve()

    async def die(self, message):
        if message["method"] != "server/discover":
            await self.servers[0].peer.aclose()


@pytest.mark.requirement("STDIO-20", "TRAP-133")
@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda client: client.list_tools(), {"tools/list": {"tools": []}}),
        (lambda client: client.read_resource("a:b"), {"resources/read": {"contents": []}}),
    ],
)
async def test_a_lost_read_is_repeated(call, answer):
    server = Scripted(answer)
    async with Client(server, protocol_versions=[STATELESS], restart=True) as client:
        await call(client)
    assert len(server.servers) == 2


@pytest.mark.requirement("TRAP-133")
@pytest.mark.parametrize(
    "call", [lambda client: client.call_tool("t"), lambda client: client.get_prompt("p")]
)
async def test_a_lost_call_with_effects_is_not_repeated(call):
    answers = {"tools/call": {"content": []}, "prompts/get": {"messages": []}}
    server = Scripted(answers)
    async with Client(server, protocol_versions=[STATELESS], restart=True) as client:
        with pytest.raises(ConnectionLost):
            await call(client)
        assert len(server.servers) == 1
        await call(client)


@pytest.mark.requirement("STDIO-20")
async def test_the_cache_and_schemas_of_the_dead_server_are_forgotten():
    schema = {"type": "object", "required": ["a"]}
    tool = {"name": "t", "inputSchema": {}, "outputSchema": schema}
    answers = {
        "tools/list": {"tools": [tool], "ttlMs": 10**6},
        "tools/call": {"content": [], "structuredContent": {}},
    }
    server = Scripted(answers)
    async with Client(server, protocol_versions=[STATELESS], restart=True) as client:
        server.servers[0].before = None
        await client.list_tools()
        with pytest.raises(RemoteProtocolError):
            await client.call_tool("t")
        await server.servers[0].peer.aclose()
        await trio.testing.wait_all_tasks_blocked()
        await client.call_tool("t")
        await client.list_tools()
    assert [len(it.asked("tools/list")) for it in server.servers] == [1, 1]


@pytest.mark.requirement("VER-08", "VER-09")
async def test_a_legacy_server_is_not_discovered_again_after_a_restart():
    server = Mortal(protocol_versions=LEGACY)
    async with Client(server, protocol_versions=ALL_PROTOCOL_VERSIONS, restart=True) as client:
        assert client._connection.outgoing.next_id() == 3  # the discovery, the handshake, this
        await server.die()
        await client.call_tool("count")
        assert client.protocol_version == LEGACY[0]
        assert client._connection.outgoing.next_id() == 3  # the handshake, the call, this


@pytest.mark.requirement("VER-09")
async def test_a_server_that_changed_its_kind_is_negotiated_with_again():
    server = Mortal()
    async with Client(server, protocol_versions=ALL_PROTOCOL_VERSIONS, restart=True) as client:
        assert client.protocol_version == STATELESS
        await server.die()
        server.protocol_versions = LEGACY
        await client.call_tool("count")
        assert client.protocol_version == LEGACY[0]


async def test_a_server_that_cannot_be_started_again_is_tried_with_each_call():
    server = Mortal()
    async with Client(server, protocol_versions=[STATELESS], restart=True) as client:
        await server.die()
        server.protocol_versions = LEGACY
        for _ in range(2):
            with pytest.raises(
                RemoteProtocolError, match="the server supports the protocol versions"
            ):
                await client.call_tool("count")
        server.protocol_versions = [STATELESS]
        assert said(await client.call_tool("count")) == "4"


async def test_a_cancelled_restart_is_left_to_the_next_call():
    server = Mortal()
    async with Client(server, restart=True) as client:
        await server.die()
        with trio.move_on_after(0):
            await client.call_tool("count")
        assert int(said(await client.call_tool("count"))) > 1


@pytest.mark.parametrize("target", ["channel", "command"])
def test_restart_is_rejected_for_a_channel(target):
    if target == "channel":
        with pytest.raises(ValueError, match="commands, server objects and URLs"):
            Client(memory_pair()[0], restart=True)
    else:
        assert Client(["server"], restart=True).restart


@pytest.mark.real_time
@pytest.mark.requirement("STDIO-20")
async def test_a_command_that_was_killed_is_started_again(program):
    async with Client(program, restart=True, limits=QUICK) as client:
        pid = int(said(await client.call_tool("pid")))
        with pytest.raises(ConnectionLost):
            await client.call_tool("die")
        assert client.state == "retrying"
        other = int(said(await client.call_tool("pid")))
        assert other != pid
        os.kill(other, signal.SIGKILL)
        with trio.fail_after(5):
            while client.is_open:
                await trio.sleep(0.01)
        assert int(said(await client.call_tool("pid"))) not in {pid, other}


async def test_each_restart_has_its_own_recording_in_a_folder(tmp_path):
    server = Mortal()
    with SharedRecording(tmp_path / "all.mcprec.jsonl") as shared:
        for record in (tmp_path, f"{tmp_path}/new/", shared):
            client = Client(server, restart=True, record=record)
            if record is not shared:
                (tmp_path / "new").mkdir(exist_ok=True)
            async with client:
                await server.die()
                await client.call_tool("count")
    assert len(list(tmp_path.glob("mcp_trio-*"))) == 2
    assert len(list((tmp_path / "new").iterdir())) == 2


async def test_one_recording_file_holds_all_restarts(tmp_path):
    server = Mortal()
    file = tmp_path / "one.mcprec.jsonl"
    async with Client(server, restart=True, record=file) as client:
        await server.die()
        await client.call_tool("count")
        await client.call_tool("count")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert {record.get("c", 0) for record in records} == {0, 1, 2}
    assert records[-1]["k"] == "end"
    called = [record.get("c") for record in records if "tools/call" in json.dumps(record)]
    assert called == [2, 2]


@attrs.define(eq=False)
class Mute:
    """A server object that never says anything, and goes at once or never."""

    stays: bool

    async def serve(self, _channel):
        if self.stays:
            await trio.sleep_forever()


@pytest.mark.parametrize("stays", [False, True])
async def test_a_recording_ends_when_connecting_fails_or_is_cancelled(
    stays, tmp_path, autojump_clock
):
    file = tmp_path / "one.mcprec.jsonl"
    client = Client(Mute(stays), protocol_versions=LEGACY, restart=True, record=file)
    if stays:
        with trio.move_on_after(1):
            await client.__aenter__()
        await trio.sleep(10)
    else:
        with pytest.raises(ConnectionLost):
            await client.__aenter__()
    assert json.loads(file.read_text().splitlines()[-1])["k"] == "end"


# A real server that ends and comes back, over each transport.


WAYS = {
    "stateless": ("/mcp", "2026-07-28"),
    "legacy": ("/mcp", "2025-11-25"),
    "HTTP+SSE": ("/sse", "2024-11-05"),
}


class Harbour:
    """A server that can be stopped and started at one port; `calls` are those that came."""

    def __init__(self, nursery):
        self.nursery, self.port, self.calls = nursery, 0, []
        self.life = None

    def server(self):
        made = Server("harbour")

        @made.tool
        async def call(*, waits: bool = False) -> int:
            self.calls.append(waits)
            if waits:
                await trio.sleep_forever()
            return len(self.calls)

        return made

    async def start(self):
        self.stopped = trio.Event()
        url, self.life = await self.nursery.start(self._serve)
        self.port = int(url.partition("//")[2].partition(":")[2].partition("/")[0])
        return url.removesuffix("/mcp")

    async def _serve(self, *, task_status):
        with trio.CancelScope() as life:
            async with trio.open_nursery() as nursery:
                serve = partial(self.server().serve_http, port=self.port)
                task_status.started((await nursery.start(serve), life))
        self.stopped.set()

    async def stop(self):
        self.life.cancel()
        await self.stopped.wait()


@pytest.fixture
async def harbour(nursery):
    yield Harbour(nursery)
    nursery.cancel_scope.cancel()


def client_of(way, base):
    path, protocol_version = WAYS[way]
    return Client(base + path, protocol_versions=(protocol_version,))


@pytest.mark.real_time
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.requirement("HTTP-52", "TRAP-133")
async def test_the_first_call_after_a_restart_succeeds(harbour, way):
    base = await harbour.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:
            assert client.protocol_version == WAYS[way][1]
            assert await client.call_tool("call", result_type=int) == 1
            await harbour.stop()
            for _ in range(2):
                with pytest.raises(ConnectionLost) as lost:
                    await client.call_tool("call")
                assert not isinstance(lost.value, OutcomeUnknown)
            await harbour.start()
            assert await client.call_tool("call", result_type=int) == 2
            assert await client.call_tool("call", result_type=int) == 3
    assert harbour.calls == [False] * 3


@pytest.mark.real_time
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.requirement("HTTP-52", "TRAP-133")
async def test_only_the_calls_in_flight_fail(harbour, way):
    base = await harbour.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:

            async def wait():
                # A server that stops in its own time may still say so.
                with pytest.raises((OutcomeUnknown, RequestError)):
                    await client.call_tool("call", {"waits": True})

            async with trio.open_nursery() as calls:
                for _ in range(3):
                    calls.start_soon(wait)
                while len(harbour.calls) < 3:
                    await trio.sleep(0.01)
                await harbour.stop()
            await harbour.start()
            assert await client.call_tool("call", result_type=int) == 4
    assert harbour.calls == [True] * 3 + [False]


@pytest.mark.real_time
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.requirement("HTTP-52", "TRAP-133")
async def test_a_server_that_was_replaced_unnoticed_serves_the_next_call(harbour, way):
    base = await harbour.start()
    with trio.fail_after(20):
        async with client_of(way, base) as client:
            await client.call_tool("call")
            await harbour.stop()
            await harbour.start()
            assert await client.call_tool("call", result_type=int) == 2


# A stateless server's process belongs to its client, not to a task or call.


STATELESS_PROGRAM = f"""
import json, os, sys

for line in sys.stdin:
    message = json.loads(line)
    result = {DISCOVERED!r}
    if message["method"] == "tools/call":
        if message["params"]["name"] == "hang":
            continue
        text = {{"type": "text", "text": str(os.getpid())}}
        result = {{"resultType": "complete", "content": [text]}}
    if "id" in message:
        told = {{"jsonrpc": "2.0", "id": message["id"], "result": result}}
        print(json.dumps(told), flush=True)
"""


@pytest.mark.requirement("STATE-04")
async def test_a_process_outlives_the_tasks_and_calls_that_use_it(nursery):
    client = Client(python(STATELESS_PROGRAM), protocol_versions=[STATELESS])
    await nursery.start(_open, client)
    pids = set()

    async def converse():
        pids.add(int(said(await client.call_tool("pid"))))

    async with trio.open_nursery() as conversations:
        conversations.start_soon(converse)
        conversations.start_soon(converse)
    async with trio.open_nursery() as conversations:
        conversations.start_soon(client.call_tool, "hang")
        await trio.testing.wait_all_tasks_blocked()
        conversations.cancel_scope.cancel()
    await converse()
    (pid,) = pids
    assert pid != os.getpid()
    assert is_alive(pid)
    await client.aclose()
    assert not is_alive(pid)


async def _open(client, *, task_status):
    """Opened by a task that is over then."""
    await client.__aenter__()
    task_status.started()
