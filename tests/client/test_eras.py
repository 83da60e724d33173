"""Which era a server is of: every pair of eras, and every way in which a server can answer."""

import json

import pytest
import trio
import trio.testing

from mcp_trio._client.client import Client
from mcp_trio._protocol.versions import ALL_REVISIONS
from mcp_trio._server.server import Server
from mcp_trio._testing.peers import WirePeer
from mcp_trio._transports.lines import memory_pair
from mcp_trio.errors import ConnectionLost, RemoteProtocolError, RequestError, RequestTimeout
from mcp_trio.limits import Limits
from tests.client.conftest import QUICK, python, said
from tests.client.modern import CAN_ALL, DISCOVERED, LEGACY, MODERN, error, modern_client, played

ERAS = {"legacy": LEGACY, "both": ALL_REVISIONS, "modern": (MODERN,)}

# Client, server, and the revision that they come to, or how the client fails.
MATRIX = [
    ("legacy", "legacy", LEGACY[0]),
    ("legacy", "both", LEGACY[0]),
    ("legacy", "modern", RequestError),
    ("both", "legacy", LEGACY[0]),
    ("both", "both", MODERN),
    ("both", "modern", MODERN),
    ("modern", "legacy", RemoteProtocolError),
    ("modern", "both", MODERN),
    ("modern", "modern", MODERN),
]


def hail(revisions):
    server = Server("hail", revisions=revisions)

    @server.tool
    def hello() -> str:
        return "hello"

    return server


@pytest.mark.requirement("VER-05", "VER-06", "VER-12", "VER-13", "VER-15", "VER-17", "DISC-06")
@pytest.mark.requirement("LIFE-04", "TRAP-18", "TRAP-26")
@pytest.mark.parametrize(("ours", "theirs", "expected"), MATRIX)
async def test_every_pair_of_eras_comes_to_what_is_expected(ours, theirs, expected):
    client = Client(hail(ERAS[theirs]), revisions=ERAS[ours])
    if not isinstance(expected, str):
        with pytest.raises(expected) as caught:
            await client.__aenter__()
        assert not client.is_open
        assert all(name in str(caught.value) for name in ERAS["modern"])
        return
    async with client:
        assert client.revision == expected
        assert client.server_info.name == "hail"
        assert client.server_can("tools")
        assert said(await client.call_tool("hello")) == "hello"


@pytest.mark.requirement("LIFE-04", "LIFE-06", "VER-13")
@pytest.mark.parametrize("revision", ALL_REVISIONS)
async def test_the_newest_revision_that_both_speak_is_spoken(revision):
    older = ALL_REVISIONS[ALL_REVISIONS.index(revision) :]
    for ours, theirs in [(ALL_REVISIONS, older), (older, ALL_REVISIONS), ([revision], older)]:
        async with Client(hail(theirs), revisions=ours) as client:
            assert client.revision == revision


@pytest.mark.parametrize("revisions", [[], ["1999-01-01"], [MODERN, ""]])
def test_revisions_that_nobody_knows_are_refused(revisions):
    with pytest.raises(ValueError, match="unknown revisions"):
        Client(["server"], revisions=revisions)


@pytest.mark.requirement("VER-12", "VER-01", "META-11", "META-12", "META-13")
async def test_the_first_thing_a_client_of_both_eras_says_is_what_it_wants_to_know(nursery):
    client, server = await modern_client(nursery, name="me", version="3")
    (asked,) = server.requests
    assert asked["method"] == "server/discover"
    assert asked["params"] == {
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "me", "version": "3"},
        }
    }
    await client.aclose()


@pytest.mark.requirement("DISC-07")
@pytest.mark.parametrize(
    ("said_in_meta", "name"),
    [
        ({"io.modelcontextprotocol/serverInfo": {"name": "n", "version": "1"}}, "n"),
        ({"io.modelcontextprotocol/serverInfo": 7}, "the server"),
        ({}, "the server"),
    ],
)
async def test_what_a_modern_server_is_called_changes_nothing(nursery, said_in_meta, name):
    discovered = {**DISCOVERED, "_meta": said_in_meta, "instructions": "be kind"}
    client, _ = await modern_client(nursery, answers={"server/discover": discovered})
    assert client.is_open
    assert (client.server_info.name, client.revision) == (name, MODERN)
    assert client.instructions == "be kind"
    await client.aclose()


# A server's answer to the question, and what comes of it.

HANDSHAKE = {"protocolVersion": LEGACY[0], "capabilities": CAN_ALL}
HANDSHAKE |= {"serverInfo": {"name": "old", "version": "0"}}

LEGACY_ANSWERS = [
    error(-32601, "method not found"),
    error(-32602, "bad params"),
    error(-32600, "not initialized"),
    error(-32000, "busy"),
    error(-32002, "?"),
    error(-32019, "?"),
    error(-32001, "?", {"supported": [MODERN]}),
    error(-32023, "?"),
    error(1),
    {},
    {"supportedVersions": "all"},
    {**DISCOVERED, "resultType": "something else"},
]


async def shake_hands(nursery, answer, *, revisions=ALL_REVISIONS, **options):
    """The client, and the methods that the server was asked for."""
    channel, server = played(nursery, initialize=HANDSHAKE, **{"server/discover": answer})
    client = Client(channel, revisions=revisions, **options)
    try:
        await client.__aenter__()
    finally:
        methods = [message["method"] for message in server.requests]
    return client, methods


@pytest.mark.requirement("VER-15", "VER-16", "ERR-09", "TRAP-23", "TRAP-24")
@pytest.mark.parametrize("answer", LEGACY_ANSWERS)
async def test_whatever_else_a_server_answers_it_is_asked_for_a_handshake(nursery, answer):
    client, methods = await shake_hands(nursery, answer)
    assert methods == ["server/discover", "initialize"]
    assert client.revision == LEGACY[0]
    await client.aclose()


@pytest.mark.requirement("VER-10", "VER-14", "TRAP-23")
@pytest.mark.parametrize("code", [-32020, -32021, -32022])
@pytest.mark.parametrize("data", [None, {}, 7, {"supported": 7}, {"supported": [MODERN, 7]}])
async def test_an_error_of_modern_servers_never_leads_to_a_handshake(nursery, code, data):
    seen = []
    with pytest.raises(RequestError) as caught:
        await shake_hands(nursery, lambda params: seen.append(params) or error(code, data=data))
    assert caught.value.code == code
    assert len(seen) <= 2


@pytest.mark.requirement("VER-03", "VER-14")
async def test_a_server_that_names_the_refused_revision_is_asked_once_more(nursery):
    refusal = error(-32022, data={"supported": ["2030-01-01", MODERN], "requested": MODERN})
    answers = [DISCOVERED, refusal]
    client, methods = await shake_hands(nursery, lambda _params: answers.pop())
    assert methods == ["server/discover", "server/discover"]
    assert client.revision == MODERN
    await client.aclose()
    with pytest.raises(RequestError):
        await shake_hands(nursery, refusal)


@pytest.mark.requirement("VER-03", "VER-14", "TRAP-19")
async def test_a_legacy_revision_in_common_is_agreed_on_by_a_handshake(nursery):
    refusal = error(-32022, data={"supported": ["2030-01-01", LEGACY[1]], "requested": MODERN})
    client, methods = await shake_hands(nursery, refusal)
    assert methods == ["server/discover", "initialize"]
    await client.aclose()


@pytest.mark.requirement("VER-03", "VER-13", "DISC-06", "TRAP-19")
async def test_a_server_that_discovers_legacy_revisions_only_is_asked_for_a_handshake(nursery):
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
        error(-32022, data={"supported": ["2030-01-01"], "requested": MODERN}),
    ],
)
async def test_a_server_without_a_revision_in_common_is_left(nursery, answer):
    with pytest.raises(RemoteProtocolError, match=r"the server speaks (2030-01-01|nothing); known"):
        await shake_hands(nursery, answer)


@pytest.mark.requirement("VER-17")
@pytest.mark.parametrize("answer", LEGACY_ANSWERS)
async def test_a_client_of_modern_revisions_only_tells_why_it_cannot_go_on(nursery, answer):
    with pytest.raises(RemoteProtocolError, match=f"the server does not speak {MODERN}: "):
        await shake_hands(nursery, answer, revisions=[MODERN])


@pytest.mark.requirement("VER-15", "TRAP-22", "TIME-01")
async def test_silence_means_legacy_and_a_late_answer_means_nothing(
    nursery, autojump_clock, scripted
):
    channel, server = scripted
    client = Client(channel, revisions=ALL_REVISIONS, limits=Limits(probe_seconds=3))
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
    assert client.revision == LEGACY[0]
    assert client.counts == {"late answer": 1}
    await client.aclose()


async def slow_server(scripted, nursery, *, late, refusal):
    """The client of a server that overslept the question; `late` is its answer to that, if any."""
    channel, server = scripted
    client = Client(channel, revisions=ALL_REVISIONS, limits=Limits(probe_seconds=3))
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
    await server.send({"id": handshake["id"], **refusal})
    return client, server, failures


MODERN_REFUSAL = error(-32022, data={"supported": [MODERN], "requested": LEGACY[0]})


@pytest.mark.requirement("VER-10", "VER-15", "TRAP-22")
@pytest.mark.parametrize(
    ("late", "refusal"),
    [
        (None, MODERN_REFUSAL),
        ({"result": DISCOVERED}, MODERN_REFUSAL),
        ({"result": DISCOVERED}, error(-32601)),
    ],
)
async def test_a_modern_server_that_was_slow_is_asked_again_when_it_refuses_the_handshake(
    nursery, autojump_clock, scripted, late, refusal
):
    client, server, failures = await slow_server(scripted, nursery, late=late, refusal=refusal)
    again = await server.receive()
    assert again["method"] == "server/discover"
    await server.send_result(again, DISCOVERED)
    await trio.testing.wait_all_tasks_blocked()
    assert (failures, client.revision, client.is_open) == ([], MODERN, True)
    nursery.start_soon(client.ping)
    asked = await server.receive()
    assert asked["method"] == "server/discover"
    await server.send_result(asked, DISCOVERED)
    await trio.testing.wait_all_tasks_blocked()
    await client.aclose()


@pytest.mark.parametrize(
    "answer",
    [
        MODERN_REFUSAL,
        {"result": {}},
        {"result": {**DISCOVERED, "supportedVersions": ["2030-01-01"]}},
    ],
)
async def test_a_server_that_refuses_both_ways_is_left_with_its_refusal_of_the_handshake(
    nursery, autojump_clock, scripted, answer
):
    refusal = error(-32020, "no handshakes")
    client, server, failures = await slow_server(scripted, nursery, late=None, refusal=refusal)
    again = await server.receive()
    await server.send({"id": again["id"], **answer})
    with pytest.raises(EOFError):
        await server.receive()
    await trio.testing.wait_all_tasks_blocked()
    assert [failure.message for failure in failures] == ["no handshakes"]
    assert not client.is_open


async def test_a_silent_server_that_refuses_as_a_legacy_one_does_is_not_asked_again(
    nursery, autojump_clock, scripted
):
    refusal = error(-32603, "no room")
    _, server, failures = await slow_server(scripted, nursery, late=None, refusal=refusal)
    with pytest.raises(EOFError):
        await server.receive()
    await trio.testing.wait_all_tasks_blocked()
    assert [failure.message for failure in failures] == ["no room"]


@pytest.mark.requirement("VER-17", "TRAP-22")
async def test_a_client_of_modern_revisions_only_has_more_patience(nursery, autojump_clock):
    begun = trio.current_time()
    limits = Limits(probe_seconds=3, initialize_seconds=20)
    with pytest.raises(RequestTimeout, match="raise initialize_seconds") as caught:
        await shake_hands(nursery, lambda _params: None, revisions=[MODERN], limits=limits)
    assert caught.value.method == "server/discover"
    assert trio.current_time() - begun == 20


async def test_a_client_that_is_cancelled_while_it_asks_is_closed(nursery):
    channel, server = played(nursery, **{"server/discover": lambda _params: None})
    client = Client(channel, revisions=ALL_REVISIONS)
    with trio.move_on_after(0):
        await client.__aenter__()
    await trio.testing.wait_all_tasks_blocked()
    assert not client.is_open
    with pytest.raises(EOFError):
        await server.peer.receive()


@pytest.mark.requirement("VER-08", "TRAP-26")
async def test_what_was_found_out_holds_for_all_requests(nursery):
    client, server = await modern_client(nursery, answers={"tools/list": {"tools": []}})
    for _ in range(2):
        await client.list_tools()
    assert len(server.asked("server/discover")) == 1
    assert len(server.asked("tools/list")) == 2
    await client.aclose()


@pytest.mark.requirement("TRAP-16")
async def test_a_server_that_refuses_our_offer_by_an_error_gets_another_one(nursery):
    offered = []

    def initialize(params):
        offered.append(params["protocolVersion"])
        if params["protocolVersion"] != "2024-11-05":
            data = {"supported": ["2024-11-05", "2023-01-01"], "requested": offered[-1]}
            return error(-32602, "Unsupported protocol version", data)
        return {**HANDSHAKE, "protocolVersion": "2024-11-05"}

    channel, _ = played(nursery, initialize=initialize)
    async with Client(channel, revisions=LEGACY) as client:
        assert client.revision == "2024-11-05"
    assert offered == [LEGACY[0], "2024-11-05"]


@pytest.mark.requirement("LIFE-09", "LIFE-16", "TRAP-17")
@pytest.mark.parametrize("revision", ["1999-01-01", MODERN, LEGACY[-1]])
async def test_a_server_that_chooses_what_is_not_spoken_here_is_left(nursery, revision):
    answer = {**HANDSHAKE, "protocolVersion": revision}
    channel, server = played(nursery, initialize=answer)
    with pytest.raises(RemoteProtocolError, match=revision):
        await Client(channel, revisions=LEGACY[:1]).__aenter__()
    with pytest.raises(EOFError):
        await server.peer.receive()


@pytest.mark.requirement("VER-11", "TRAP-28")
async def test_a_legacy_client_hears_which_revisions_a_modern_server_speaks():
    with pytest.raises(RequestError, match=MODERN) as caught:
        await Client(hail([MODERN]), revisions=LEGACY).__aenter__()
    assert caught.value.data["supported"] == [MODERN]


@pytest.mark.parametrize(("revisions", "spoken"), [(LEGACY, LEGACY[0]), ([MODERN], MODERN)])
async def test_a_recording_tells_what_was_agreed_on(tmp_path, revisions, spoken):
    path = tmp_path / "trip.mcprec.jsonl"
    async with Client(hail(ALL_REVISIONS), revisions=revisions, record=path):
        pass
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    (facts,) = [it["f"]["value"] for it in lines if it.get("f", {}).get("name") == "negotiated"]
    assert facts["revision"] == spoken
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
async def test_a_server_that_dies_of_the_question_is_started_again_for_the_handshake():
    async with Client(python(FRAGILE), revisions=ALL_REVISIONS, limits=QUICK) as client:
        assert client.revision == "2024-11-05"
        await client.ping()


@pytest.mark.requirement("VER-17")
async def test_it_is_not_started_again_for_nothing():
    with pytest.raises(ConnectionLost, match="what is a server/discover"):
        await Client(python(FRAGILE), revisions=[MODERN], limits=QUICK).__aenter__()


async def test_a_channel_that_ends_at_the_question_has_no_second_life(nursery):
    ours, theirs = memory_pair()

    async def play():
        peer = WirePeer(theirs)
        await peer.receive()
        await peer.aclose()

    nursery.start_soon(play)
    with pytest.raises(ConnectionLost):
        await Client(ours, revisions=ALL_REVISIONS).__aenter__()


async def test_a_server_object_that_returns_at_the_question_is_asked_once_more(nursery):
    begun = []

    class Fragile:
        async def serve(self, channel):
            begun.append(channel)
            if len(begun) == 1:
                await channel.receive()
            else:
                await hail(LEGACY).serve(channel)

    async with Client(Fragile(), revisions=ALL_REVISIONS) as client:
        assert client.revision == LEGACY[0]
    assert len(begun) == 2
