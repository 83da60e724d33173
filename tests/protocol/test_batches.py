"""Batches, which one revision has, and errors without an id, which the older ones do not have."""

import json

import pytest
from msgspec.json import encode

from mcp_trio import Limits
from mcp_trio import types as s
from mcp_trio._protocol.events import (
    BatchReceived,
    Ignored,
    NotificationReceived,
    Reply,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
)
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import INVALID_REQUEST, PARSE_ERROR
from mcp_trio.limits import MessageLimits

BATCHED = "2025-03-26"
OTHERS = [name for name in PROTOCOL_VERSIONS if name != BATCHED]
LEGACY = [name for name in PROTOCOL_VERSIONS if PROTOCOL_VERSIONS[name].has_handshake]

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "tide"}}
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
ROOTS = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}


def batch(*messages):
    return json.dumps(messages).encode()


def settled(connect, role, protocol_version):
    """A connection whose handshake has come to a revision; a stateless one has none."""
    connection = connect(role)
    if PROTOCOL_VERSIONS[protocol_version].has_handshake:
        capabilities = {
            Role.SERVER: s.ClientCapabilities(roots=s.RootsCapability(list_changed=True)),
            Role.CLIENT: s.ServerCapabilities(),
        }[role]
        opening = {
            "protocolVersion": protocol_version,
            "capabilities": capabilities,
            "clientInfo": {"name": "c", "version": "1"},
        }
        if role is Role.SERVER:
            frame = {"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": opening}
            assert connection.receive(encode(frame)).negotiated
            connection.receive(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        else:
            connection.set_peer(PROTOCOL_VERSIONS[protocol_version], capabilities, None)
    return connection


def taken(connection, frame):
    """The events of a batch, each when those before it were acted upon."""
    arrived = connection.receive(frame)
    assert isinstance(arrived, BatchReceived)
    return [connection.receive_batched(each, arrived.size_bytes) for each in arrived.messages]


@pytest.mark.requirement("BASE-24", "TRAP-01", "STDIO-05")
def test_each_message_of_a_batch_is_what_it_is_alone(connect):
    server = settled(connect, Role.SERVER, BATCHED)
    ping, call, cancel, roots = taken(server, batch(PING, CALL, CANCEL, ROOTS))
    assert isinstance(ping, Reply)
    assert isinstance(call, RequestReceived)
    assert isinstance(cancel, RequestCancelled)
    assert cancel.request is call.request
    assert isinstance(roots, NotificationReceived)


@pytest.mark.requirement("BASE-24")
def test_a_batch_of_answers_ends_each_request_of_ours(connect):
    server = settled(connect, Role.SERVER, BATCHED)
    one, two = (server.open_request("roots/list", None, now=0.0) for _ in range(2))
    answers = [{"jsonrpc": "2.0", "id": each.id, "result": {"roots": []}} for each in (two, one)]
    events = taken(server, batch(*answers))
    assert [type(event) for event in events] == [ResponseReceived] * 2
    assert [event.request for event in events] == [two, one]


@pytest.mark.requirement("BASE-24")
def test_a_client_takes_batches_too(connect):
    client = settled(connect, Role.CLIENT, BATCHED)
    (event,) = taken(client, batch(PING))
    assert isinstance(event, Reply)


def test_a_bad_message_in_a_batch_is_answered_and_the_others_are_taken(connect):
    server = settled(connect, Role.SERVER, BATCHED)
    bad, nameless, nested, ping = taken(
        server, batch({"jsonrpc": "2.0", "id": 7, "method": 9}, 17, [PING], PING)
    )
    assert json.loads(bad.message)["error"]["code"] == INVALID_REQUEST
    assert json.loads(bad.message)["id"] == 7
    assert isinstance(nameless, Ignored)
    assert isinstance(nested, Ignored)
    assert isinstance(ping, Reply)
    assert server.counts["malformed"] == 3


def test_two_requests_of_a_batch_cannot_have_one_id(connect):
    server = settled(connect, Role.SERVER, BATCHED)
    first, second = taken(server, batch(CALL, CALL))
    assert isinstance(first, RequestReceived)
    assert second.counted == "duplicate id"


@pytest.mark.requirement("BASE-26", "TRAP-01")
def test_initialize_is_never_in_a_batch(connect):
    opening = {
        "protocolVersion": BATCHED,
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}
    server = connect(Role.SERVER)
    assert server.receive(batch(initialize)).counted == "malformed"
    assert server.receive(encode(initialize)).negotiated
    server = settled(connect, Role.SERVER, BATCHED)
    (again,) = taken(server, batch(initialize))
    assert again.counted == "out of order"


@pytest.mark.requirement("BASE-28", "BASE-29", "TRAP-01")
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("protocol_version", OTHERS)
def test_other_protocol_versions_take_no_batch(connect, role, protocol_version):
    connection = settled(connect, role, protocol_version)
    event = connection.receive(batch(PING, ROOTS))
    assert event.counted == "malformed"
    assert "this protocol version has no batches" in event.text
    assert connection.counts == {"malformed": 1}


NAMELESS = {"what is no JSON": (b"{", PARSE_ERROR), "an empty batch": (b"[]", INVALID_REQUEST)}


@pytest.mark.requirement("BASE-07", "BASE-08", "TRAP-03")
@pytest.mark.parametrize(("bad", "code"), NAMELESS.values(), ids=NAMELESS)
@pytest.mark.parametrize("protocol_version", LEGACY)
def test_an_error_without_an_id_goes_only_to_who_knows_such_errors(
    connect, protocol_version, bad, code
):
    event = settled(connect, Role.SERVER, protocol_version).receive(bad)
    assert event.counted == "malformed"
    if PROTOCOL_VERSIONS[protocol_version].has_errors_without_id:
        answer = json.loads(event.message)
        assert answer.keys() == {"jsonrpc", "error"}
        assert answer["error"]["code"] == code
    else:
        assert isinstance(event, Ignored)


@pytest.mark.requirement("BASE-07", "BASE-08")
@pytest.mark.parametrize(
    ("protocol_versions", "is_answered"),
    [
        (("2026-07-28",), True),
        (("2026-07-28", "2025-11-25"), True),
        (tuple(PROTOCOL_VERSIONS), False),
    ],
)
def test_to_a_stranger_it_goes_if_every_protocol_version_spoken_here_has_it(
    connect, protocol_versions, is_answered
):
    event = connect(Role.SERVER, protocol_versions=protocol_versions).receive(b"hello")
    assert isinstance(event, Reply) is is_answered


@pytest.mark.requirement("BASE-08", "TRAP-03")
@pytest.mark.parametrize("protocol_version", LEGACY)
@pytest.mark.parametrize("id_", [{}, {"id": None}])
def test_from_a_peer_it_is_accepted_whatever_the_protocol_version(connect, protocol_version, id_):
    error = {"code": PARSE_ERROR, "message": "what?"}
    event = settled(connect, Role.CLIENT, protocol_version).receive(
        encode({"jsonrpc": "2.0", **id_, "error": error})
    )
    assert event.counted == "unknown answer"
    assert "what?" in event.text


def test_a_client_answers_no_bad_frame_in_any_protocol_version(connect):
    client = settled(connect, Role.CLIENT, "2025-11-25")
    assert isinstance(client.receive(b"hello"), Ignored)


def test_too_many_messages_are_rejected_as_a_whole(connect):
    server = connect(Role.SERVER, limits=Limits(messages=MessageLimits(batch_size_max=2)))
    event = server.receive(batch(PING, PING, PING))
    assert "limits.messages.batch_size_max (2)" in event.text
