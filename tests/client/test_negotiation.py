"""Negotiation of the protocol version with every kind of server and answer."""

import contextlib
import json
import logging

import httpx2
import pytest
import trio
import trio.testing

from mcp_trio import (
    Client,
    ClientGroup,
    ConnectionLost,
    Limits,
    RequestError,
    RequestTimeout,
    Server,
)
from mcp_trio._client.connect import server_key, version_memory_of_this_run
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS
from mcp_trio.errors import RemoteProtocolError
from mcp_trio.hosts import VersionMemory
from mcp_trio.limits import RequestLimits
from mcp_trio.testing import WirePeer
from mcp_trio.transports import memory_pair
from tests.client.conftest import QUICK, text_of_result
from tests.client.stateless import (
    CAN_ALL,
    DISCOVERED,
    LEGACY,
    STATELESS,
    error,
    played,
    stateless_client,
)
from tests.processes import python
from tests.transports.http.scripted_server import (
    EVENTS,
    URL,
    Legacy,
    Modern,
    Reply,
    Script,
    answer_to,
    event,
    result,
    serve,
)
from tests.transports.http.scripted_server import error as error_negotiation_over_http
from tests.transports.http.scripted_server import error as error_version_memory

SUPPORTED = {"legacy": LEGACY, "both": ALL_PROTOCOL_VERSIONS, "stateless": (STATELESS,)}

# Client, server, and the negotiated protocol version, or how the client fails.
MATRIX = [
    ("legacy", "legacy", LEGACY[0]),
    ("legacy", "both", LEGACY[0]),
    ("legacy", "stateless", RequestError),
    ("both", "legacy", LEGACY[0]),
    ("both", "both", STATELESS),
    ("both", "stateless", STATELESS),
    ("stateless", "legacy", RemoteProtocolError),
    ("stateless", "both", STATELESS),
    ("stateless", "stateless", STATELESS),
]


def hail(protocol_versions):
    server = Server("hail", protocol_versions=protocol_versions)

    @server.tool
    def hello() -> str:
        return "hello"

    return server


@pytest.mark.requirement("VER-05", "VER-06", "VER-12", "VER-13", "VER-15", "VER-17", "DISC-06")
@pytest.mark.requirement("LIFE-04", "TRAP-18", "TRAP-26")
@pytest.mark.parametrize(("ours", "theirs", "expected"), MATRIX)
async def test_each_pair_of_client_and_server_negotiates_the_expected_version(
    ours, theirs, expected
):
    client = Client(hail(SUPPORTED[theirs]), protocol_versions=SUPPORTED[ours])
    if not isinstance(expected, str):
        with pytest.raises(expected) as caught:
            await client.__aenter__()
        assert not client.is_open
        assert all(name in str(caught.value) for name in SUPPORTED["stateless"])
        return
    async with client:
        assert client.protocol_version == expected
        assert client.server_info.name == "hail"
        assert client.server_can("tools")
        assert text_of_result(await client.call_tool("hello")) == "hello"


@pytest.mark.requirement("LIFE-04", "LIFE-06", "VER-13")
@pytest.mark.parametrize("protocol_version", ALL_PROTOCOL_VERSIONS)
async def test_the_newest_common_protocol_version_is_chosen(protocol_version):
    older = ALL_PROTOCOL_VERSIONS[ALL_PROTOCOL_VERSIONS.index(protocol_version) :]
    for ours, theirs in [
        (ALL_PROTOCOL_VERSIONS, older),
        (older, ALL_PROTOCOL_VERSIONS),
        ([protocol_version], older),
    ]:
        async with Client(hail(theirs), protocol_versions=ours) as client:
            assert client.protocol_version == protocol_version


@pytest.mark.parametrize(
    ("protocol_versions", "text"),
    [
        ([], "no protocol version is given"),
        (["1999-01-01"], "unknown protocol versions"),
        ([STATELESS, ""], "unknown protocol versions"),
    ],
)
def test_unknown_protocol_versions_are_rejected(protocol_versions, text):
    with pytest.raises(ValueError, match=text):
        Client(["server"], protocol_versions=protocol_versions)


@pytest.mark.requirement("VER-12", "VER-01", "META-11", "META-12", "META-13")
async def test_a_client_with_stateless_versions_sends_discover_first(nursery):
    client, server = await stateless_client(nursery, name="me", version="3")
    (asked,) = server.requests
    assert asked["method"] == "server/discover"
    assert asked["params"] == {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": STATELESS,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "me", "version": "3"},
        }
    }
    await client.aclose()


@pytest.mark.requirement("DISC-07")
@pytest.mark.parametrize(
    ("meta", "name"),
    [
        ({"io.modelcontextprotocol/serverInfo": {"name": "n", "version": "1"}}, "n"),
        ({"io.modelcontextprotocol/serverInfo": 7}, "the server"),
        ({}, "the server"),
    ],
)
async def test_the_name_of_a_stateless_server_changes_nothing(nursery, meta, name):
    discovered = {**DISCOVERED, "_meta": meta, "instructions": "be kind"}
    client, _ = await stateless_client(nursery, answers={"server/discover": discovered})
    assert client.is_open
    assert (client.server_info.name, client.protocol_version) == (name, STATELESS)
    assert client.instructions == "be kind"
    await client.aclose()


# Answers to the discovery request.

HANDSHAKE = {"protocolVersion": LEGACY[0], "capabilities": CAN_ALL}
HANDSHAKE |= {"serverInfo": {"name": "old", "version": "0"}}

LEGACY_ANSWERS = [
    error(-32601, "method not found"),
    error(-32602, "bad params"),
    error(-32600, "not initialized"),
    error(-32000, "busy_bar"),
    error(-32002, "?"),
    error(-32019, "?"),
    error(-32001, "?", {"supported": [STATELESS]}),
    error(-32023, "?"),
    error(1),
    {},
    {"supportedVersions": "all"},
    {**DISCOVERED, "resultType": "something else"},
]


async def shake_hands(nursery, answer, *, protocol_versions=ALL_PROTOCOL_VERSIONS, **options):
    """The client, and the methods that the server was asked for."""
    channel, server = played(nursery, initialize=HANDSHAKE, **{"server/discover": answer})
    client = Client(channel, protocol_versions=protocol_versions, **options)
    try:
        await client.__aenter__()
    finally:
        methods = [message["method"] for message in server.requests]
    return client, methods


@pytest.mark.requirement("VER-15", "VER-16", "ERR-09", "TRAP-23", "TRAP-24")
@pytest.mark.parametrize("answer", LEGACY_ANSWERS)
async def test_any_other_answer_to_discover_leads_to_a_handshake(nursery, answer):
    client, methods = await shake_hands(nursery, answer)
    assert methods == ["server/discover", "initialize"]
    assert client.protocol_version == LEGACY[0]
    await client.aclose()


@pytest.mark.requirement("VER-10", "VER-14", "TRAP-23")
@pytest.mark.parametrize("code", [-32020, -32021, -32022])
@pytest.mark.parametrize("data", [None, {}, 7, {"supported": 7}, {"supported": [STATELESS, 7]}])
async def test_an_error_of_stateless_servers_never_leads_to_a_handshake(nursery, code, data):
    seen = []
    with pytest.raises(RequestError) as caught:
        await shake_hands(nursery, lambda params: seen.append(params) or error(code, data=data))
    assert caught.value.code == code
    assert len(seen) <= 2


@pytest.mark.requirement("VER-03", "VER-14")
async def test_a_server_that_names_the_rejected_protocol_version_is_asked_once_more(nursery):
    rejection = error(-32022, data={"supported": ["2030-01-01", STATELESS], "requested": STATELESS})
    answers = [DISCOVERED, rejection]
    client, methods = await shake_hands(nursery, lambda _params: answers.pop())
    assert methods == ["server/discover", "server/discover"]
    assert client.protocol_version == STATELESS
    await client.aclose()
    with pytest.raises(RequestError):
        await shake_hands(nursery, rejection)


@pytest.mark.requirement("VER-03", "VER-14", "TRAP-19")
async def test_a_legacy_protocol_version_in_common_is_agreed_on_by_a_handshake(nursery):
    rejection = error(-32022, data={"supported": ["2030-01-01", LEGACY[1]], "requested": STATELESS})
    client, methods = await shake_hands(nursery, rejection)
    assert methods == ["server/discover", "initialize"]
    await client.aclose()


@pytest.mark.requirement("VER-03", "VER-13", "DISC-06", "TRAP-19")
async def test_a_discovered_server_with_legacy_versions_only_gets_a_handshake(
    nursery,
):
    discovered = {**DISCOVERED, "supportedVersions": ["2030-01-01", LEGACY[1]]}
    client, methods = await shake_hands(nursery, discovered)
    assert methods == ["server/discover", "initialize"]
    await client.aclose()


@pytest.mark.requirement("VER-03")
@pytest.mark.parametrize(
    "answer",
    [
        {**DISCOVERED, "supportedVersions": ["2030-01-01"]},
        {**DISCOVERED, "supportedVersions": []},
        error(-32022, data={"supported": ["2030-01-01"], "requested": STATELESS}),
    ],
)
async def test_a_server_without_a_common_protocol_version_is_rejected(nursery, answer):
    with pytest.raises(RemoteProtocolError, match=r"the protocol versions (2030-01-01|none); this"):
        await shake_hands(nursery, answer)


@pytest.mark.requirement("VER-17")
@pytest.mark.parametrize("answer", LEGACY_ANSWERS)
async def test_a_stateless_only_client_reports_why_a_legacy_server_is_rejected(nursery, answer):
    with pytest.raises(RemoteProtocolError, match=f"the server does not support {STATELESS}: "):
        await shake_hands(nursery, answer, protocol_versions=[STATELESS])


@pytest.mark.requirement("VER-15", "TRAP-22", "TIME-01")
async def test_a_silent_server_is_legacy_and_its_late_answer_is_ignored(
    nursery, autojump_clock, scripted
):
    channel, server = scripted
    client = Client(
        channel,
        protocol_versions=ALL_PROTOCOL_VERSIONS,
        limits=Limits(requests=RequestLimits(probe_seconds=3)),
    )
    nursery.start_soon(client.__aenter__)
    probe = await server.receive()
    begun = trio.current_time()
    handshake = await server.receive()  # and no cancellation before it
    assert handshake["method"] == "initialize"
    assert trio.current_time() - begun == 3
    await server.send_result(probe, DISCOVERED)
    await server.send_result(handshake, HANDSHAKE)
    await server.receive()
    await trio.testing.wait_all_tasks_blocked()
    assert client.protocol_version == LEGACY[0]
    assert client.counts == {"late answer": 1}
    await client.aclose()


async def slow_server(scripted, nursery, *, late, rejection):
    """The client of a server that overslept the question; `late` is its answer to that, if any."""
    channel, server = scripted
    client = Client(
        channel,
        protocol_versions=ALL_PROTOCOL_VERSIONS,
        limits=Limits(requests=RequestLimits(probe_seconds=3)),
    )
    failures = []

    async def enter():
        try:
            await client.__aenter__()
        except RequestError as error:
            failures.append(error)

    nursery.start_soon(enter)
    probe, handshake = await server.receive_many(2)
    if late is not None:
        await server.send({"id": probe["id"], **late})
    await server.send({"id": handshake["id"], **rejection})
    return client, server, failures


STATELESS_REFUSAL = error(-32022, data={"supported": [STATELESS], "requested": LEGACY[0]})


@pytest.mark.requirement("VER-10", "VER-15", "TRAP-22")
@pytest.mark.parametrize(
    ("late", "rejection"),
    [
        (None, STATELESS_REFUSAL),
        ({"result": DISCOVERED}, STATELESS_REFUSAL),
        ({"result": DISCOVERED}, error(-32601)),
    ],
)
async def test_a_stateless_server_that_was_slow_is_asked_again_when_it_rejects_the_handshake(
    nursery, autojump_clock, scripted, late, rejection
):
    client, server, failures = await slow_server(scripted, nursery, late=late, rejection=rejection)
    again = await server.receive()
    assert again["method"] == "server/discover"
    await server.send_result(again, DISCOVERED)
    await trio.testing.wait_all_tasks_blocked()
    assert (failures, client.protocol_version, client.is_open) == ([], STATELESS, True)
    nursery.start_soon(client.ping)
    asked = await server.receive()
    assert asked["method"] == "server/discover"
    await server.send_result(asked, DISCOVERED)
    await trio.testing.wait_all_tasks_blocked()
    await client.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        STATELESS_REFUSAL,
        {"result": {}},
        {"result": {**DISCOVERED, "supportedVersions": ["2030-01-01"]}},
    ],
)
async def test_if_both_ways_are_rejected_the_error_of_the_handshake_is_raised(
    nursery, autojump_clock, scripted, answer
):
    rejection = error(-32020, "no handshakes")
    client, server, failures = await slow_server(scripted, nursery, late=None, rejection=rejection)
    again = await server.receive()
    await server.send({"id": again["id"], **answer})
    with pytest.raises(EOFError):
        await server.receive()
    await trio.testing.wait_all_tasks_blocked()
    assert [failure.message for failure in failures] == ["no handshakes"]
    assert not client.is_open


async def test_a_silent_server_with_a_legacy_rejection_is_not_asked_again(
    nursery, autojump_clock, scripted
):
    rejection = error(-32603, "no room")
    _, server, failures = await slow_server(scripted, nursery, late=None, rejection=rejection)
    with pytest.raises(EOFError):
        await server.receive()
    await trio.testing.wait_all_tasks_blocked()
    assert [failure.message for failure in failures] == ["no room"]


@pytest.mark.requirement("VER-17", "TRAP-22")
async def test_a_stateless_only_client_waits_for_the_full_timeout(nursery, autojump_clock):
    begun = trio.current_time()
    limits = Limits(requests=RequestLimits(probe_seconds=3, initialize_seconds=20))
    with pytest.raises(
        RequestTimeout, match=r"raise limits\.requests\.initialize_seconds"
    ) as caught:
        await shake_hands(
            nursery, lambda _params: None, protocol_versions=[STATELESS], limits=limits
        )
    assert caught.value.method == "server/discover"
    assert trio.current_time() - begun == 20


async def test_a_client_that_is_cancelled_while_it_asks_is_closed(nursery):
    channel, server = played(nursery, **{"server/discover": lambda _params: None})
    client = Client(channel, protocol_versions=ALL_PROTOCOL_VERSIONS)
    with trio.move_on_after(0):
        await client.__aenter__()
    await trio.testing.wait_all_tasks_blocked()
    assert not client.is_open
    with pytest.raises(EOFError):
        await server.peer.receive()


@pytest.mark.requirement("VER-08", "TRAP-26")
async def test_the_negotiated_version_holds_for_all_requests(nursery):
    client, server = await stateless_client(nursery, answers={"tools/list": {"tools": []}})
    for _ in range(2):
        await client.list_tools()
    assert len(server.asked("server/discover")) == 1
    assert len(server.asked("tools/list")) == 2
    await client.aclose()


@pytest.mark.requirement("TRAP-16")
async def test_a_handshake_rejected_with_supported_versions_is_repeated(nursery):
    offered = []

    def initialize(params):
        offered.append(params["protocolVersion"])
        if params["protocolVersion"] != "2024-11-05":
            data = {"supported": ["2024-11-05", "2023-01-01"], "requested": offered[-1]}
            return error(-32602, "Unsupported protocol version", data)
        return {**HANDSHAKE, "protocolVersion": "2024-11-05"}

    channel, _ = played(nursery, initialize=initialize)
    async with Client(channel, protocol_versions=LEGACY) as client:
        assert client.protocol_version == "2024-11-05"
    assert offered == [LEGACY[0], "2024-11-05"]


@pytest.mark.requirement("LIFE-09", "LIFE-16", "TRAP-17")
@pytest.mark.parametrize("protocol_version", ["1999-01-01", STATELESS, LEGACY[-1]])
async def test_a_server_that_chooses_an_unsupported_version_is_rejected(nursery, protocol_version):
    answer = {**HANDSHAKE, "protocolVersion": protocol_version}
    channel, server = played(nursery, initialize=answer)
    with pytest.raises(RemoteProtocolError, match=protocol_version):
        await Client(channel, protocol_versions=LEGACY[:1]).__aenter__()
    with pytest.raises(EOFError):
        await server.peer.receive()


@pytest.mark.requirement("VER-11", "TRAP-28")
async def test_the_error_of_a_legacy_client_names_the_stateless_servers_versions():
    with pytest.raises(RequestError, match=STATELESS) as caught:
        await Client(hail([STATELESS]), protocol_versions=LEGACY).__aenter__()
    assert caught.value.data["supported"] == [STATELESS]


@pytest.mark.parametrize(
    ("protocol_versions", "negotiated"), [(LEGACY, LEGACY[0]), ([STATELESS], STATELESS)]
)
async def test_a_recording_holds_the_negotiated_version(tmp_path, protocol_versions, negotiated):
    path = tmp_path / "trip.mcprec.jsonl"
    async with Client(
        hail(ALL_PROTOCOL_VERSIONS), protocol_versions=protocol_versions, record=path
    ):
        pass
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    (facts,) = [it["f"]["value"] for it in lines if it.get("f", {}).get("name") == "negotiated"]
    assert facts["protocol_version"] == negotiated
    assert facts["peer"]["name"] == "hail"


# Processes.

FRAGILE = """
import json, sys

for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "initialize":
        result = {"protocolVersion": "2024-11-05", "capabilities": {"logging": {}}}
        result["serverInfo"] = {"name": "fragile", "version": "1"}
    elif message["method"] == "ping":
        result = {}
    elif message["method"].startswith("notifications/"):
        continue
    else:
        sys.exit("what is a " + message["method"] + "?")
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.mark.requirement("VER-15", "TRAP-22")
async def test_a_command_that_exits_at_discover_is_started_again_for_the_handshake():
    async with Client(
        python(FRAGILE), protocol_versions=ALL_PROTOCOL_VERSIONS, limits=QUICK
    ) as client:
        assert client.protocol_version == "2024-11-05"
        await client.ping()


@pytest.mark.requirement("VER-17")
async def test_a_command_is_not_started_again_without_a_handshake_to_try():
    with pytest.raises(ConnectionLost, match="what is a server/discover"):
        await Client(python(FRAGILE), protocol_versions=[STATELESS], limits=QUICK).__aenter__()


async def test_a_channel_that_ends_at_discover_is_lost(nursery):
    ours, theirs = memory_pair()

    async def play():
        peer = WirePeer(theirs)
        await peer.receive()
        await peer.aclose()

    nursery.start_soon(play)
    with pytest.raises(ConnectionLost):
        await Client(ours, protocol_versions=ALL_PROTOCOL_VERSIONS).__aenter__()


async def test_a_server_object_that_returns_at_discover_is_served_again(nursery):
    begun = []

    class Fragile:
        async def serve(self, channel):
            begun.append(channel)
            if len(begun) == 1:
                await channel.receive()
            else:
                await hail(LEGACY).serve(channel)

    async with Client(Fragile(), protocol_versions=ALL_PROTOCOL_VERSIONS) as client:
        assert client.protocol_version == LEGACY[0]
    assert len(begun) == 2


# Clients remember the kind of the servers at URLs.


BOTH = ("2026-07-28", "2025-11-25")
PROBE = "server/discover"


class Changing(Script):
    """A server that may become another one: it answers by the current `answer`."""

    def began(self):
        """Return the first message of each connection that was opened since the last call."""
        firsts = [name for name in self.methods if name in {PROBE, "initialize", "GET"}]
        self.seen.clear()
        return firsts


@contextlib.asynccontextmanager
async def reached(answer):
    """A server in memory, and a function that connects to it and returns the negotiated version."""
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
            self.send_piece, pieces = trio.open_memory_channel(10)
            return Reply(200, EVENTS, self.stream(pieces))
        if seen.path == "/mcp":
            return Reply(405)
        if seen.message["method"] == "initialize":
            members = {"capabilities": {}, "serverInfo": {"name": "old", "version": "1"}}
            answer = answer_to(seen, protocolVersion="2024-11-05", **members)
            self.send_piece.send_nowait(event(answer))
        return Reply(202)

    async def stream(self, pieces):
        yield event(text="/messages", name="endpoint")
        async for piece in pieces:
            yield piece


# The memory.


def test_the_address_of_a_server_has_no_secrets_and_its_usual_port():
    plain = server_key("http://mcp.test/mcp", http=None, protocol_versions=BOTH)
    assert (
        server_key("HTTP://me:word@MCP.test:80/mcp?key=1#x", http=None, protocol_versions=BOTH)
        == plain
    )
    others = [
        server_key("https://mcp.test/mcp", http=None, protocol_versions=BOTH),
        server_key("http://mcp.test:81/mcp", http=None, protocol_versions=BOTH),
        server_key("http://mcp.test/", http=None, protocol_versions=BOTH),
        server_key("http://mcp.test/mcp", http=httpx2.AsyncClient(), protocol_versions=BOTH),
        server_key("http://mcp.test/mcp", http=None, protocol_versions=BOTH[1:]),
    ]
    assert plain not in others
    assert "word" not in repr(plain)
    assert server_key("http://mcp.test:x/", http=None, protocol_versions=BOTH) is None


def test_the_memory_is_bounded_and_forgets_what_was_noted_first():
    memory = VersionMemory(servers_max=2)
    one, two, three = (server_key(f"http://{n}/", http=None, protocol_versions=BOTH) for n in "123")
    memory.note(one, "legacy")
    memory.note(two, "stateless")
    memory.note(one, "HTTP+SSE")
    memory.note(three, "legacy")
    assert [memory.recall(each) for each in (one, two, three)] == ["HTTP+SSE", None, "legacy"]
    memory.forget(one)
    memory.forget(one)
    assert memory.recall(one) is None


# Clients that reconnect.


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


# An outdated memory.


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
        return error_version_memory(seen, -32000, "not today", status=400)

    async with reached(Legacy()) as (script, connect):
        await connect()
        script.began()
        script.answer = reject_all
        with pytest.raises(RequestError, match="not today"):
            await connect()
        assert script.began() == ["initialize", PROBE, "initialize"]


@pytest.mark.parametrize("trouble", [401, 403, 429, 503, "away"])
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
    async def respond(seen):
        return result(seen, content=[], resultType="complete")

    script = Changing(Legacy(answers={"tools/call": respond}))
    async with (
        httpx2.AsyncClient(transport=script) as http,
        Client(URL, http=http, protocol_versions=BOTH) as client,
    ):
        await client.call_tool("add")
        stateless = Modern(answers={"tools/call": respond})

        async def newer(seen):
            return Reply(404) if "mcp-session-id" in seen.headers else await stateless(seen)

        script.answer = newer
        await client.call_tool("add")
        assert client.protocol_version == "2026-07-28"


# Negotiation of the protocol version over HTTP.


UNSUPPORTED = -32022


def make_picky(rejections):
    """A stateless server that rejects its first requests with errors of stateless versions."""
    asked = []

    async def discover(seen):
        asked.append(seen.message["method"])
        if len(asked) <= rejections:
            data = {"supported": ["2026-07-28"], "requested": "2026-07-28"}
            return error_negotiation_over_http(seen, UNSUPPORTED, status=400, data=data)
        return await Modern()(seen)

    async def initialize(seen):
        asked.append("initialize")
        return error_negotiation_over_http(
            seen, UNSUPPORTED, status=400, data={"supported": ["2026-07-28"]}
        )

    return Modern(answers={"server/discover": discover, "initialize": initialize}), asked


@pytest.mark.requirement("VER-20", "VER-19")
async def test_a_rejection_that_names_our_protocol_version_is_asked_again(nursery):
    server, asked = make_picky(rejections=1)
    url = await nursery.start(serve, server)
    async with Client(url, protocol_versions=("2026-07-28", "2025-11-25")) as client:
        assert client.protocol_version == "2026-07-28"
    assert asked == ["server/discover"] * 2
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("VER-20")
async def test_an_error_of_stateless_servers_leads_to_no_handshake(nursery):
    server, asked = make_picky(rejections=9)
    url = await nursery.start(serve, server)
    with pytest.raises(RequestError, match=str(UNSUPPORTED)):
        async with Client(url, protocol_versions=("2026-07-28", "2025-11-25")):
            pytest.fail("nothing was agreed on")
    assert "initialize" not in asked
    nursery.cancel_scope.cancel()


@pytest.mark.requirement("HTTP-47")
async def test_a_session_id_is_neither_shown_nor_logged(nursery, caplog):
    async def tools(seen):
        return result(seen, tools=[])

    server = Legacy(session="s3cret-session", answers={"tools/list": tools})
    url = await nursery.start(serve, server)
    with caplog.at_level(logging.DEBUG, logger="mcp_trio"):
        async with Client(url, protocol_versions=("2025-11-25",)) as client:
            await client.list_tools()
            assert "s3cret-session" not in repr(client) + repr(client._session.channel)
    assert "s3cret-session" not in caplog.text
    nursery.cancel_scope.cancel()
