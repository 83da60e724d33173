"""The handshake: what it carries, what it settles, and how it fails."""

import json

import msgspec
import pytest

from mcp_trio import types as s
from mcp_trio._protocol.connection import SessionState
from mcp_trio._protocol.events import NotificationReceived, Reply, RequestReceived, ResponseReceived
from mcp_trio._protocol.methods import METHODS, Role
from mcp_trio._protocol.versions import NEWEST_LEGACY, PROTOCOL_VERSIONS, negotiated
from mcp_trio.errors import INVALID_PARAMS, INVALID_REQUEST, LocalProtocolError, RemoteProtocolError


def initialize(server, frame, **changes):
    params = {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "kelp", "version": "0"},
        **changes,
    }
    return server.receive(frame(id=1, method="initialize", params=params))


@pytest.mark.requirement("LIFE-02", "LIFE-03", "LIFE-04", "LIFE-19", "BASE-01")
def test_the_client_sends_its_newest_protocol_version_its_capabilities_and_its_name(connect):
    client = connect(Role.CLIENT)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    assert json.loads(opened.message) == {
        "jsonrpc": "2.0",
        "id": opened.id,
        "method": "initialize",
        "params": {
            "protocolVersion": NEWEST_LEGACY.name,
            "capabilities": {
                "roots": {"listChanged": True},
                "sampling": {},
                "elicitation": {"form": {}, "url": {}},
            },
            "clientInfo": {"name": "client", "version": "1"},
        },
    }
    assert client.state is SessionState.INITIALIZING


@pytest.mark.requirement("LIFE-05", "LIFE-06", "LIFE-19")
def test_the_server_answers_the_known_protocol_version_with_its_capabilities_and_name(
    connect, frame
):
    server = connect(Role.SERVER, instructions="Ask for the tide first.")
    event = initialize(server, frame)
    assert isinstance(event, Reply)
    assert event.negotiated
    assert event.counted is None
    assert json.loads(event.message) == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "protocolVersion": "2024-11-05",
            "capabilities": {
                "logging": {},
                "prompts": {"listChanged": True},
                "resources": {"subscribe": True, "listChanged": True},
                "tools": {"listChanged": True},
            },
            "serverInfo": {"name": "server", "version": "1"},
            "instructions": "Ask for the tide first.",
        },
    }


@pytest.mark.requirement("LIFE-07", "LIFE-08", "LIFE-16")
@pytest.mark.parametrize("asked", ["2023-01-01", "2999-01-01", "", "latest", "2024-11-5"])
def test_an_unknown_protocol_version_is_answered_with_the_newest_that_has_a_handshake(
    connect, frame, asked
):
    server = connect(Role.SERVER)
    answer = json.loads(initialize(server, frame, protocolVersion=asked).message)
    assert answer["result"]["protocolVersion"] == NEWEST_LEGACY.name
    assert server.protocol_version is NEWEST_LEGACY


@pytest.mark.requirement("LIFE-06", "LIFE-08", "TRAP-18")
@pytest.mark.parametrize("asked", [*PROTOCOL_VERSIONS, "2030-03-03"])
def test_a_spoken_protocol_version_with_a_handshake_is_the_one_that_is_negotiated(asked):
    spoken = ("2026-07-28", "2025-06-18", "2024-11-05")
    expected = asked if asked in spoken[1:] else "2025-06-18"
    assert negotiated(asked, spoken) is PROTOCOL_VERSIONS[expected]


def test_methods_belong_to_published_protocol_versions():
    named = {name for row in METHODS.values() for name in (row.since, row.until)}
    assert named - {None} <= set(PROTOCOL_VERSIONS)


@pytest.mark.requirement("BASE-19", "LIFE-10", "LIFE-11")
def test_after_the_handshake_both_ends_know_the_same_and_are_ready(pair):
    client, server = pair
    assert client.state is server.state is SessionState.READY
    assert client.protocol_version is server.protocol_version is NEWEST_LEGACY
    assert client.peer_info.name == "server"
    assert server.peer_info.name == "client"
    assert client.peer_capabilities == server.our_capabilities
    assert server.peer_capabilities == client.our_capabilities
    assert not client.counts
    assert not server.counts


@pytest.mark.requirement("LIFE-11")
def test_accepting_the_answer_yields_the_initialized_notification(connect, frame):
    client, server = connect(Role.CLIENT), connect(Role.SERVER, instructions="Row.")
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    answer = client.receive(server.receive(opened.message).message)
    assert isinstance(answer, ResponseReceived)
    leaving = client.accept_initialize(client.decode_result(opened, answer.result))
    assert json.loads(leaving) == {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert client.instructions == "Row."
    arrived = server.receive(leaving)
    assert isinstance(arrived, NotificationReceived)
    assert arrived.method.name == "notifications/initialized"


@pytest.mark.requirement("LIFE-09", "LIFE-16")
def test_a_client_rejects_a_protocol_version_that_it_does_not_know(connect, frame):
    client = connect(Role.CLIENT)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    result = {
        "protocolVersion": "1999-12-31",
        "capabilities": {},
        "serverInfo": {"name": "old", "version": "0"},
    }
    answer = client.receive(frame(id=opened.id, result=result))
    with pytest.raises(
        RemoteProtocolError, match=r"'1999-12-31'; this client supports .*2024-11-05"
    ):
        client.accept_initialize(client.decode_result(opened, answer.result))
    assert client.protocol_version is None
    assert client.state is SessionState.ANSWERED


@pytest.mark.requirement("LIFE-01", "LIFE-11")
def test_there_is_nothing_to_accept_before_the_answer(connect):
    client = connect(Role.CLIENT)
    result = s.InitializeResult(
        protocol_version="2024-11-05",
        capabilities=s.ServerCapabilities(),
        server_info=s.Implementation(name="early", version="0"),
    )
    with pytest.raises(LocalProtocolError, match="not allowed now"):
        client.accept_initialize(result)
    assert client.protocol_version is None


@pytest.mark.requirement("LIFE-02", "BASE-34")
@pytest.mark.parametrize("missing", ["protocolVersion", "capabilities", "clientInfo"])
def test_initialize_with_a_missing_member_is_rejected_and_may_be_tried_again(
    connect, frame, missing
):
    server = connect(Role.SERVER)
    error = json.loads(initialize(server, frame, **{missing: None}).message)["error"]
    assert error["code"] == INVALID_PARAMS
    assert server.state is SessionState.FRESH
    assert server.peer_info is None
    assert initialize(server, frame).negotiated


@pytest.mark.requirement("LIFE-16")
def test_an_initialize_that_the_server_rejects_may_be_tried_again(connect, frame):
    client = connect(Role.CLIENT)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    error = {"code": INVALID_PARAMS, "message": "no", "data": {"supported": ["2020-01-01"]}}
    answer = client.receive(frame(id=opened.id, error=error))
    assert answer.error.code == INVALID_PARAMS
    assert msgspec.json.decode(answer.error.data) == {"supported": ["2020-01-01"]}
    assert client.state is SessionState.FRESH
    assert client.open_request("initialize", client.initialize_params(), now=1.0).id != opened.id


@pytest.mark.requirement("LIFE-10", "LIFE-01")
def test_a_second_initialize_is_rejected_and_changes_nothing(pair, frame):
    event = initialize(pair.server, frame, clientInfo={"name": "other", "version": "9"})
    assert json.loads(event.message)["error"]["code"] == INVALID_REQUEST
    assert event.counted == "out of order"
    assert pair.server.peer_info.name == "client"


@pytest.mark.requirement("BASE-17", "LIFE-19")
def test_capabilities_and_members_that_nobody_knows_are_ignored(connect, frame):
    server = connect(Role.SERVER)
    event = initialize(
        server,
        frame,
        capabilities={"sampling": {}, "telepathy": {"range": 3}, "experimental": {"x": {}}},
        clientInfo={"name": "kelp", "version": "0", "mood": "fine"},
        extra=[1],
    )
    assert event.negotiated
    assert server.peer_capabilities == s.ClientCapabilities(
        sampling=s.SamplingCapability(), experimental={"x": {}}
    )


def test_a_request_between_the_answer_and_initialized_is_served(connect, frame):
    server = connect(Role.SERVER)
    initialize(server, frame)
    assert isinstance(server.receive(frame(id=2, method="tools/list")), RequestReceived)


def test_initialized_with_bad_params_does_not_count_as_initialized(connect, frame):
    server = connect(Role.SERVER)
    initialize(server, frame)
    bad = frame(method="notifications/initialized", params={"_meta": 5})
    assert server.receive(bad).counted == "malformed notification"
    assert server.state is SessionState.ANSWERED


@pytest.mark.requirement("LIFE-20")
def test_closing_sends_nothing_and_ends_what_is_open_once(pair):
    opened = pair.client.open_request("ping", None, now=0.0)
    assert pair.client.close() == [opened]
    assert pair.client.close() == []
    assert pair.client.state is SessionState.CLOSED
    assert pair.client.abandon(opened) is None
