"""Clients remember the kind of the servers at URLs."""

import contextlib
import json

import httpx2
import pytest
import trio

from mcp_trio import Client, ClientGroup, ConnectionLost, RequestError
from mcp_trio._client.connect import address_of, version_memory_of_this_run
from mcp_trio.hosts import VersionMemory
from tests.transports.http.scripted_server import (
    EVENTS,
    URL,
    Legacy,
    Modern,
    Reply,
    Script,
    answer_to,
    error,
    event,
    result,
    serve,
)

BOTH = ("2026-07-28", "2025-11-25")
PROBE = "server/discover"


class Changing(Script):
    """A server that may become another one: it answers as `answer` says at that time."""

    def began(self):
        """What came first for each connection that was begun since the last look."""
        firsts = [name for name in self.methods if name in {PROBE, "initialize", "GET"}]
        self.seen.clear()
        return firsts


@contextlib.asynccontextmanager
async def reached(answer):
    """A server in memory, and a function that connects to it and returns the negotiated protocol version."""
    script = Changing(answer)
    async with httpx2.AsyncClient(transport=script) as http:

        async def connect(url=URL, **options):
            async with Client(
                url, **{"http": http, "protocol_versions": BOTH, **options}
            ) as client:
                return client.protocol_version

        yield script, connect


async def reject(seen, status=405):
    if seen.method == "POST" and seen.message["method"] == "initialize":
        return Reply(status)
    return await Modern()(seen)


class Sse:
    """A server that speaks HTTP+SSE only, at the path that its stream names."""

    async def __call__(self, seen):
        if seen.method == "GET":
            self.to_say, said = trio.open_memory_channel(10)
            return Reply(200, EVENTS, self.stream(said))
        if seen.path == "/mcp":
            return Reply(405)
        if seen.message["method"] == "initialize":
            members = {"capabilities": {}, "serverInfo": {"name": "old", "version": "1"}}
            answer = answer_to(seen, protocolVersion="2024-11-05", **members)
            self.to_say.send_nowait(event(answer))
        return Reply(202)

    async def stream(self, said):
        yield event(text="/messages", name="endpoint")
        async for piece in said:
            yield piece


# The memory.


def test_the_address_of_a_server_has_no_secrets_and_its_usual_port():
    plain = address_of("http://mcp.test/mcp", http=None, protocol_versions=BOTH)
    assert (
        address_of("HTTP://me:word@MCP.test:80/mcp?key=1#x", http=None, protocol_versions=BOTH)
        == plain
    )
    others = [
        address_of("https://mcp.test/mcp", http=None, protocol_versions=BOTH),
        address_of("http://mcp.test:81/mcp", http=None, protocol_versions=BOTH),
        address_of("http://mcp.test/", http=None, protocol_versions=BOTH),
        address_of("http://mcp.test/mcp", http=httpx2.AsyncClient(), protocol_versions=BOTH),
        address_of("http://mcp.test/mcp", http=None, protocol_versions=BOTH[1:]),
    ]
    assert plain not in others
    assert "word" not in repr(plain)
    assert address_of("http://mcp.test:x/", http=None, protocol_versions=BOTH) is None


def test_the_memory_is_bounded_and_forgets_what_was_noted_first():
    memory = VersionMemory(servers_max=2)
    one, two, three = (address_of(f"http://{n}/", http=None, protocol_versions=BOTH) for n in "123")
    memory.note(one, "legacy")
    memory.note(two, "stateless")
    memory.note(one, "HTTP+SSE")
    memory.note(three, "legacy")
    assert [memory.recall(each) for each in (one, two, three)] == ["HTTP+SSE", None, "legacy"]
    memory.forget(one)
    memory.forget(one)
    assert memory.recall(one) is None


# Clients that come back.


@pytest.mark.requirement("VER-08", "TRAP-26")
async def test_a_legacy_server_is_asked_for_its_versions_once():
    async with reached(Legacy()) as (script, connect):
        assert await connect() == "2025-11-25"
        assert script.began() == [PROBE, "initialize", "GET"]
        assert await connect() == "2025-11-25"
        assert script.began() == ["initialize", "GET"]


async def test_a_stateless_server_is_discovered_by_each_client():
    async with reached(Modern()) as (script, connect):
        assert [await connect(), await connect()] == ["2026-07-28"] * 2
        assert script.began() == [PROBE] * 2


async def test_the_probe_timeout_of_a_silent_server_is_spent_once(autojump_clock):
    server = Legacy()

    async def silent(seen):
        if seen.method == "POST" and seen.message["method"] == PROBE:
            await trio.sleep_forever()
        return await server(seen)

    async with reached(silent) as (_, connect):
        await connect()
        assert trio.current_time() == pytest.approx(5, abs=0.5)
        since = trio.current_time()
        await connect()
        assert trio.current_time() - since < 1


@pytest.mark.requirement("VER-08", "SSE-10")
async def test_a_remembered_http_sse_server_is_connected_to_directly():
    async with reached(Sse()) as (script, connect):
        assert await connect(protocol_versions=("2026-07-28", "2024-11-05")) == "2024-11-05"
        assert script.began() == [PROBE, "initialize", "GET", "initialize"]
        assert await connect(protocol_versions=("2026-07-28", "2024-11-05")) == "2024-11-05"
        assert script.began() == ["GET", "initialize"]


async def test_a_server_at_another_address_is_asked_anew():
    async with reached(Legacy()) as (script, connect), httpx2.AsyncClient(transport=script) as http:
        await connect()
        for other in (
            {"url": "http://mcp.test/other"},
            {"http": http},
            {"protocol_versions": ("2026-07-28", "2025-11-25", "2025-06-18")},
        ):
            script.began()
            await connect(**other)
            assert script.began()[0] == PROBE


async def test_a_client_may_have_its_own_memory_or_none():
    async with reached(Legacy()) as (script, connect):
        await connect(version_memory=VersionMemory(servers_max=0))
        await connect(version_memory=VersionMemory(servers_max=0))
        mine = VersionMemory()
        await connect(version_memory=mine)
        assert script.began() == [PROBE, "initialize", "GET"] * 3
        await connect(version_memory=mine)
        assert script.began() == ["initialize", "GET"]
        await connect()
        assert script.began()[0] == PROBE


@pytest.mark.parametrize(("servers_max", "questions"), [(9, 1), (0, 2)])
async def test_the_clients_of_a_group_share_the_memory(nursery, servers_max, questions):
    server, asked = Legacy(), []

    async def answer(seen):
        asked.append(seen.method == "POST" and seen.message.get("method"))
        return await server(seen)

    url = await nursery.start(serve, answer)
    memory = VersionMemory(servers_max=servers_max)
    for name in ("first", "second"):
        async with ClientGroup({name: url}, version_memory=memory, protocol_versions=BOTH) as group:
            assert group[name].protocol_version == "2025-11-25"
    assert asked.count(PROBE) == questions
    nursery.cancel_scope.cancel()


def test_each_trio_run_has_its_own_memory():
    async def main():
        memory = version_memory_of_this_run()
        known = memory.recall(None)
        memory.note(None, "legacy")
        assert version_memory_of_this_run() is memory
        return known

    assert [trio.run(main), trio.run(main)] == [None, None]


async def test_a_recording_file_has_room_for_a_second_negotiation(tmp_path):
    file = tmp_path / "one.mcprec.jsonl"
    async with reached(Legacy()) as (script, connect):
        await connect()
        script.answer = Modern()
        script.began()
        assert await connect(record=file) == "2026-07-28"
        assert script.began()[0] == "initialize"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert {record.get("c") for record in records if record["k"] == "out"} == {1, 2}


# A memory that is wrong.


@pytest.mark.requirement("VER-09")
@pytest.mark.parametrize("newer", [Modern(), reject], ids=["error", "status"])
async def test_a_server_that_changed_its_kind_is_negotiated_with_anew(newer):
    async with reached(Legacy()) as (script, connect):
        await connect()
        script.began()
        script.answer = newer
        assert await connect() == "2026-07-28"
        assert script.began()[0] == "initialize"
        assert await connect() == "2026-07-28"
        assert script.began() == [PROBE]


async def test_an_upgraded_server_is_negotiated_with_anew():
    async with reached(Sse()) as (script, connect):
        options = {"protocol_versions": ("2025-11-25", "2024-11-05")}
        await connect(**options)
        script.answer = Legacy(version="2025-11-25")
        script.began()
        assert await connect(**options) == "2025-11-25"
        assert await connect(**options) == "2025-11-25"
        assert script.began() == ["GET", "initialize", "GET", "initialize", "GET"]


async def test_a_wrong_memory_leads_to_one_more_try_only():
    async def reject_all(seen):
        return error(seen, -32000, "not today", status=400)

    async with reached(Legacy()) as (script, connect):
        await connect()
        script.began()
        script.answer = reject_all
        with pytest.raises(RequestError, match="not today"):
            await connect()
        assert script.began() == ["initialize", PROBE, "initialize"]


@pytest.mark.parametrize("trouble", [401, 403, 503, "away"])
async def test_an_unreachable_or_unauthorized_server_keeps_its_kind(trouble):
    async def answer(seen):
        if trouble == "away":
            raise httpx2.ConnectError("rejected")
        return Reply(trouble)

    async with reached(legacy := Legacy()) as (script, connect):
        await connect()
        script.answer = answer
        script.began()
        with pytest.raises(ConnectionLost):
            await connect()
        assert script.began() == ["initialize"]
        script.answer = legacy
        await connect()
        assert script.began() == ["initialize", "GET"]


@pytest.mark.requirement("VER-09")
async def test_a_client_goes_on_when_its_server_becomes_stateless():
    async def said(seen):
        return result(seen, content=[], resultType="complete")

    script = Changing(Legacy(answers={"tools/call": said}))
    async with (
        httpx2.AsyncClient(transport=script) as http,
        Client(URL, http=http, protocol_versions=BOTH) as client,
    ):
        await client.call_tool("add")
        stateless = Modern(answers={"tools/call": said})

        async def newer(seen):
            return Reply(404) if "mcp-session-id" in seen.headers else await stateless(seen)

        script.answer = newer
        await client.call_tool("add")
        assert client.protocol_version == "2026-07-28"
