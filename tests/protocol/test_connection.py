"""Connection: the session, received and sent messages, malformed messages, and batches."""

import json
import math
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode

from mcp_trio import Limits
from mcp_trio import errors as _errors
from mcp_trio import types as s
from mcp_trio._jsonrpc.channel_messages import AuthInfo, DecodedMessage, PrincipalMessage
from mcp_trio._jsonrpc.messages import Decoder, Malformed, Request, malformed
from mcp_trio._protocol.connection import (
    BatchReceived,
    Ignored,
    ImmediateResponse,
    NotificationReceived,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
    ResponseUnreadable,
    SessionState,
)
from mcp_trio._protocol.empty import NO_ITEMS
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    PROTOCOL_VERSION,
    Peer,
    decode_tool_call,
)
from mcp_trio._protocol.methods import (
    METHODS,
    RequiredCapability,
    Role,
    SessionTrigger,
    custom_method,
    has_capability,
)
from mcp_trio._protocol.requests import (
    IncomingRequest,
    IncomingState,
    oversized_response_id,
    response_id_of,
)
from mcp_trio._protocol.versions import NEWEST_LEGACY, PROTOCOL_VERSIONS, negotiated
from mcp_trio.errors import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    LocalProtocolError,
    OutcomeUnknown,
    RemoteProtocolError,
    Unencodable,
)
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import Oversized
from mcp_trio.types import ClientCapabilities, PaginatedParams
from tests.protocol.discovered import discovered

# The handshake.


def initialize_message(message, **changes):
    params = {
        "protocolVersion": "2024-11-05",
        "capabilities": {},
        "clientInfo": {"name": "kelp", "version": "0"},
        **changes,
    }
    return message(id=1, method="initialize", params=params)


def initialize(server, message, **changes):
    return server.receive(initialize_message(message, **changes))


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
    connect, message
):
    server = connect(Role.SERVER, instructions="Ask for the tide first.")
    event = initialize(server, message)
    assert isinstance(event, ImmediateResponse)
    assert event.negotiated
    assert event.counter is None
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


def test_sessions_of_equal_clients_share_one_description_of_the_client(connect, message):
    def opened(auth=None, **changes):
        server = connect(Role.SERVER)
        data = initialize_message(message, **changes)
        server.receive(data if auth is None else PrincipalMessage(data, auth, 0))
        return server.peer

    kelp, other_version = opened(), opened(protocolVersion="2025-06-18")
    assert opened() is kelp
    assert other_version.protocol_version is not kelp.protocol_version
    assert opened(capabilities={"roots": {}}).can("roots")
    assert opened(clientInfo={"name": "moss", "version": "0"}).info.name == "moss"
    assert not kelp.can("roots")
    long = {"name": "k" * 5_000, "version": "0"}
    assert opened(clientInfo=long) is not opened(clientInfo=long)

    ann = opened(AuthInfo(subject="ann"))
    assert ann.principal == "ann"
    assert ann.info is kelp.info
    assert kelp.principal is None


@pytest.mark.requirement("LIFE-07", "LIFE-08", "LIFE-16")
@pytest.mark.parametrize("asked", ["2023-01-01", "2999-01-01", "", "latest", "2024-11-5"])
def test_an_unknown_protocol_version_is_answered_with_the_newest_that_has_a_handshake(
    connect, message, asked
):
    server = connect(Role.SERVER)
    answer = json.loads(initialize(server, message, protocolVersion=asked).message)
    assert answer["result"]["protocolVersion"] == NEWEST_LEGACY.name
    assert server.protocol_version is NEWEST_LEGACY


@pytest.mark.requirement("LIFE-06", "LIFE-08", "TRAP-18")
@pytest.mark.parametrize("asked", [*PROTOCOL_VERSIONS, "2030-03-03"])
def test_a_supported_legacy_version_is_negotiated_as_requested(asked):
    supported = ("2026-07-28", "2025-06-18", "2024-11-05")
    expected = asked if asked in supported[1:] else "2025-06-18"
    assert negotiated(asked, supported) is PROTOCOL_VERSIONS[expected]


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
def test_accepting_the_result_returns_the_initialized_notification(connect, message):
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
def test_a_client_rejects_a_protocol_version_that_it_does_not_know(connect, message):
    client = connect(Role.CLIENT)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    result = {
        "protocolVersion": "1999-12-31",
        "capabilities": {},
        "serverInfo": {"name": "old", "version": "0"},
    }
    answer = client.receive(message(id=opened.id, result=result))
    with pytest.raises(
        RemoteProtocolError, match=r"'1999-12-31'; this client supports .*2024-11-05"
    ):
        client.accept_initialize(client.decode_result(opened, answer.result))
    assert client.protocol_version is None
    assert client.state is SessionState.ANSWERED


@pytest.mark.requirement("LIFE-01", "LIFE-11")
def test_accept_initialize_fails_before_the_response(connect):
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
    connect, message, missing
):
    server = connect(Role.SERVER)
    error = json.loads(initialize(server, message, **{missing: None}).message)["error"]
    assert error["code"] == INVALID_PARAMS
    assert server.state is SessionState.FRESH
    assert server.peer_info is None
    assert initialize(server, message).negotiated


@pytest.mark.requirement("LIFE-16")
def test_an_initialize_that_the_server_rejects_may_be_tried_again(connect, message):
    client = connect(Role.CLIENT)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    error = {"code": INVALID_PARAMS, "message": "no", "data": {"supported": ["2020-01-01"]}}
    answer = client.receive(message(id=opened.id, error=error))
    assert answer.error.code == INVALID_PARAMS
    assert msgspec.json.decode(answer.error.data) == {"supported": ["2020-01-01"]}
    assert client.state is SessionState.FRESH
    assert client.open_request("initialize", client.initialize_params(), now=1.0).id != opened.id


def test_a_second_initialize_begins_a_new_session(ready, message):
    server = ready(Role.SERVER)
    event = initialize(server, message, clientInfo={"name": "other", "version": "9"})
    assert event.negotiated
    assert server.state is SessionState.ANSWERED
    assert server.peer_info.name == "other"
    assert server.protocol_version.name == "2024-11-05"
    server.receive(message(method="notifications/initialized"))
    assert server.state is SessionState.READY


@pytest.mark.requirement("LIFE-10", "LIFE-01")
def test_initialize_while_a_request_is_unfinished_is_rejected_and_changes_nothing(ready, message):
    server = ready(Role.SERVER)
    server.receive(message(id=2, method="tools/list"))
    event = initialize(server, message, clientInfo={"name": "other", "version": "9"})
    error = json.loads(event.message)["error"]
    assert error["code"] == INVALID_REQUEST
    assert "requests of this one are unfinished (1 received, 0 sent)" in error["message"]
    assert event.counter == "out of order"
    assert server.peer_info.name == "client"
    assert server.state is SessionState.READY


def test_a_second_initialize_that_is_invalid_changes_nothing(ready, message):
    server = ready(Role.SERVER)
    peer = server.peer
    event = server.receive(message(id=1, method="initialize", params={}))
    assert json.loads(event.message)["error"]["code"] == INVALID_PARAMS
    assert server.state is SessionState.READY
    assert server.peer is peer


@pytest.mark.requirement("BASE-17", "LIFE-19")
def test_unknown_capabilities_and_members_are_ignored(connect, message):
    server = connect(Role.SERVER)
    event = initialize(
        server,
        message,
        capabilities={"sampling": {}, "telepathy": {"range": 3}, "experimental": {"x": {}}},
        clientInfo={"name": "kelp", "version": "0", "mood": "fine"},
        extra=[1],
    )
    assert event.negotiated
    assert server.peer_capabilities == s.ClientCapabilities(
        sampling=s.SamplingCapability(), experimental={"x": {}}
    )


def test_a_request_before_the_initialized_notification_is_served(connect, message):
    server = connect(Role.SERVER)
    initialize(server, message)
    assert isinstance(server.receive(message(id=2, method="tools/list")), RequestReceived)


def test_initialized_with_bad_params_does_not_count_as_initialized(connect, message):
    server = connect(Role.SERVER)
    initialize(server, message)
    bad = message(method="notifications/initialized", params={"_meta": 5})
    assert server.receive(bad).counter == "malformed notification"
    assert server.state is SessionState.ANSWERED


@pytest.mark.requirement("LIFE-20")
def test_closing_sends_nothing_and_ends_each_open_request_once(pair):
    opened = pair.client.open_request("ping", None, now=0.0)
    assert pair.client.close() == [opened]
    assert pair.client.close() == []
    assert pair.client.state is SessionState.CLOSED
    assert pair.client.abandon(opened) is None


# Invalid requests, notifications and responses.


@pytest.mark.requirement("ERR-01")
def test_the_codes_are_those_of_json_rpc():
    codes = (PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR)
    assert codes == (-32700, -32600, -32601, -32602, -32603)


# A message, and the id and code that answer it; no id means that nothing may be sent.
BAD_FRAMES = [
    pytest.param(
        b'{"id":4,"method":"ping"}',
        4,
        INVALID_REQUEST,
        marks=pytest.mark.requirement("BASE-01", "ERR-01"),
        id="no version",
    ),
    pytest.param(
        b'{"jsonrpc":"1.0","id":4,"method":"ping"}',
        4,
        INVALID_REQUEST,
        marks=pytest.mark.requirement("BASE-01", "ERR-01"),
        id="other version",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4.5,"method":"ping"}',
        None,
        None,
        marks=pytest.mark.requirement("BASE-02", "ERR-01"),
        id="fraction as id",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":true,"method":"ping"}',
        None,
        None,
        marks=pytest.mark.requirement("BASE-02", "ERR-01"),
        id="true as id",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":{},"method":"ping"}',
        None,
        None,
        marks=pytest.mark.requirement("BASE-02", "ERR-01"),
        id="object as id",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":null,"method":"ping"}',
        None,
        None,
        marks=pytest.mark.requirement("BASE-03", "ERR-01"),
        id="null as id",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4,"method":"ping","params":[1]}',
        4,
        INVALID_REQUEST,
        marks=pytest.mark.requirement("BASE-15", "ERR-01"),
        id="list as params",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4,"method":"ping","params":null}',
        4,
        INVALID_REQUEST,
        marks=pytest.mark.requirement("BASE-15", "ERR-01"),
        id="null as params",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4,"method":9}',
        4,
        INVALID_REQUEST,
        marks=pytest.mark.requirement("BASE-31", "ERR-01"),
        id="number as method",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4}',
        4,
        INVALID_REQUEST,
        marks=pytest.mark.requirement("BASE-31", "ERR-01"),
        id="nothing but an id",
    ),
    pytest.param(
        b"17", None, None, marks=pytest.mark.requirement("BASE-07", "ERR-01"), id="a number"
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4,"method":"ping",}',
        4,
        PARSE_ERROR,
        marks=pytest.mark.requirement("BASE-30", "ERR-01"),
        id="not JSON, id readable",
    ),
    pytest.param(
        b"hello",
        None,
        None,
        marks=pytest.mark.requirement("BASE-07", "ERR-01"),
        id="not JSON at all",
    ),
    pytest.param(
        b'[{"jsonrpc":"2.0","id":4,"method":"ping"}]',
        None,
        None,
        marks=pytest.mark.requirement("BASE-29", "ERR-01"),
        id="a batch",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4,"result":{},"error":{"code":1,"message":""}}',
        None,
        None,
        marks=pytest.mark.requirement("BASE-09", "ERR-01"),
        id="result and error",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4,"result":[]}',
        None,
        None,
        marks=pytest.mark.requirement("BASE-10", "ERR-01"),
        id="neither result nor error, but bad",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","id":4,"error":{"message":"x"}}',
        None,
        None,
        marks=pytest.mark.requirement("BASE-11", "ERR-01"),
        id="error without code",
    ),
    pytest.param(
        b'{"jsonrpc":"2.0","method":"ping","params":[1]}',
        None,
        None,
        marks=pytest.mark.requirement("BASE-14", "ERR-01"),
        id="bad notification",
    ),
]


@pytest.mark.parametrize(("bad", "id_", "code"), BAD_FRAMES)
@pytest.mark.requirement("TRAP-04")
def test_a_server_answers_a_malformed_message_with_a_readable_id(ready, bad, id_, code):
    server = ready(Role.SERVER, protocol_versions=["2024-11-05"])
    event = server.receive(bad)
    assert event.counter == "malformed"
    assert server.counts["malformed"] == 1
    if id_ is None:
        assert isinstance(event, Ignored)
    else:
        answer = json.loads(event.message)
        assert answer["id"] == id_
        assert answer["error"]["code"] == code


@pytest.mark.parametrize(("bad", "id_", "code"), BAD_FRAMES)
def test_a_client_counts_a_malformed_message_and_sends_nothing(ready, bad, id_, code):
    client = ready(Role.CLIENT)
    assert isinstance(client.receive(bad), Ignored)
    assert client.counts == {"malformed": 1}


def test_an_oversized_message_is_answered_with_the_setting(ready):
    server = ready(
        Role.SERVER,
        protocol_versions=["2024-11-05"],
        limits=Limits(messages=MessageLimits(bytes_max=100)),
    )
    beginning = b'{"jsonrpc":"2.0","id":"big","method":"tools/call","params":{"name":"aaa'
    answer = json.loads(server.receive(Oversized(size=5000, prefix=beginning)).message)
    assert answer["id"] == "big"
    assert answer["error"]["code"] == INVALID_REQUEST
    assert "limits.messages.bytes_max=100" in answer["error"]["message"]
    assert isinstance(server.receive(Oversized(size=5000, prefix=b"[[[[")), Ignored)


REJECTED_REQUESTS = [
    pytest.param(
        {"method": "tools/dance"},
        METHOD_NOT_FOUND,
        marks=pytest.mark.requirement("BASE-32", "ERR-01"),
        id="unknown",
    ),
    pytest.param(
        {"method": "notifications/cancelled"},
        METHOD_NOT_FOUND,
        marks=pytest.mark.requirement("BASE-13", "ERR-01"),
        id="a notification with an id",
    ),
    pytest.param(
        {"method": "roots/list"},
        METHOD_NOT_FOUND,
        marks=pytest.mark.requirement("BASE-32", "ERR-01"),
        id="of the other direction",
    ),
    pytest.param(
        {"method": "tools/call"},
        INVALID_PARAMS,
        marks=pytest.mark.requirement("BASE-34", "ERR-01"),
        id="without its params",
    ),
    pytest.param(
        {"method": "tools/call", "params": {"name": 5}},
        INVALID_PARAMS,
        marks=pytest.mark.requirement("BASE-34", "ERR-01"),
        id="of the wrong type",
    ),
    pytest.param(
        {"method": "logging/setLevel", "params": {"level": "loud"}},
        INVALID_PARAMS,
        marks=pytest.mark.requirement("BASE-34", "ERR-01"),
        id="with an unknown level",
    ),
    pytest.param(
        {"method": "ping", "params": {"_meta": 1}},
        INVALID_PARAMS,
        marks=pytest.mark.requirement("BASE-34", "ERR-01"),
        id="ping with bad params",
    ),
]


@pytest.mark.parametrize(("members", "code"), REJECTED_REQUESTS)
def test_a_request_that_cannot_be_served_is_answered_with_its_code(pair, message, members, code):
    event = pair.server.receive(message(id="x", **members))
    assert isinstance(event, ImmediateResponse)
    assert event.counter == "rejected"
    assert json.loads(event.message)["error"]["code"] == code
    assert len(pair.server.incoming) == 0


@pytest.mark.requirement("BASE-32")
def test_a_client_answers_an_unknown_request(pair, message):
    answer = json.loads(pair.client.receive(message(id=1, method="tools/list")).message)
    assert answer["error"]["code"] == METHOD_NOT_FOUND


@pytest.mark.requirement("BASE-12")
def test_a_long_error_text_is_shortened(ready, message):
    server = ready(Role.SERVER, limits=Limits(messages=MessageLimits(error_text_chars_max=40)))
    event = server.receive(message(id=1, method="m" * 10_000))
    text = json.loads(event.message)["error"]["message"]
    assert text == event.text
    assert text.startswith("method not found: mmm")
    assert len(text) == 41
    assert "\n" not in text
    assert len(server.receive(message(method="n" * 10_000)).text) == 41


@pytest.mark.requirement("BASE-14")
@pytest.mark.parametrize(
    "members",
    [
        {"method": "notifications/nothing"},
        {"method": "tools/list"},
        {"method": "notifications/progress", "params": {"progress": "much"}},
        {"method": "notifications/cancelled"},
        {"method": "notifications/tools/list_changed"},
        {"method": "notifications/initialized"},
    ],
    ids=lambda members: members["method"],
)
def test_a_bad_notification_is_counted_and_never_answered(pair, message, members):
    assert isinstance(pair.server.receive(message(**members)), Ignored)
    assert sum(pair.server.counts.values()) == 1


def test_a_good_notification_arrives_with_its_params(pair):
    leaving = pair.server.notification(
        "notifications/message", METHODS["notifications/message"].params(level="info", data=[0])
    )
    event = pair.client.receive(leaving)
    assert isinstance(event, NotificationReceived)
    assert (event.method.name, event.params.data) == ("notifications/message", [0])


@pytest.mark.requirement("BASE-04")
def test_an_id_that_is_in_use_is_rejected_and_the_first_request_goes_on(pair, message):
    first = pair.server.receive(message(id=5, method="tools/list")).request
    for method in ("tools/list", "ping"):
        event = pair.server.receive(message(id=5, method=method))
        assert event.counter == "duplicate id"
        assert json.loads(event.message)["error"]["code"] == INVALID_REQUEST
    assert pair.server.incoming.get(5) is first
    assert isinstance(pair.server.receive(message(id="5", method="tools/list")), RequestReceived)
    assert pair.server.finish(first)
    assert isinstance(pair.server.receive(message(id=5, method="tools/list")), RequestReceived)


@pytest.mark.requirement("BASE-02", "BASE-06")
@pytest.mark.parametrize(
    "id_", [0, -1, 2**53 + 1, 2**64, 10**90, "", "1", "é", "x" * 999], ids=repr
)
def test_an_id_comes_back_with_its_type_and_value(pair, message, id_):
    event = pair.server.receive(message(id=id_, method="ping"))
    answer = json.loads(event.message)
    assert answer["id"] == id_
    assert type(answer["id"]) is type(id_)
    assert pair.server.receive(message(id=id_, method="tools/list")).request.id == id_


@pytest.mark.requirement("META-01", "BASE-17")
def test_meta_and_unknown_members_travel_without_harm(pair, message):
    params = {"name": "tide", "_meta": {"trace": [1]}, "colour": "blue"}
    event = pair.server.receive(message(id=1, method="tools/call", params=params, more=1))
    assert event.request.params.meta == {"trace": [1]}
    opened = pair.client.open_request("tools/list", None, now=0.0)
    result = {"tools": [], "_meta": {"cost": 3}, "other": None}
    answer = pair.client.receive(message(id=opened.id, result=result))
    assert pair.client.decode_result(opened, answer.result).meta == {"cost": 3}


@pytest.mark.requirement("BASE-06", "BASE-09")
def test_a_response_ends_the_request_with_its_exact_id_once(pair, message):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    wrong = pair.client.receive(message(id=str(opened.id), result={}))
    assert wrong.counter == "unknown answer"
    answer = pair.client.receive(message(id=opened.id, result={"tools": []}))
    assert isinstance(answer, ResponseReceived)
    assert answer.request is opened
    assert answer.error is None
    again = pair.client.receive(message(id=opened.id, result={"tools": []}))
    assert again.counter == "unknown answer"


@pytest.mark.requirement("BASE-11")
def test_an_error_response_without_an_id_ends_no_request(pair, message):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    error = {"code": -32000, "message": "busy", "data": None}
    lost = pair.client.receive(message(error=error))
    assert (lost.counter, "busy" in lost.text) == ("unknown answer", True)
    answer = pair.client.receive(message(id=opened.id, error=error))
    assert (answer.error.code, answer.error.message) == (-32000, "busy")
    assert answer.result is None


def test_a_result_of_the_wrong_type_is_an_error_of_the_peer(pair, message):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    answer = pair.client.receive(message(id=opened.id, result={"tools": 3}))
    with pytest.raises(RemoteProtocolError, match=r"tools/list is not a valid result.*tools"):
        pair.client.decode_result(opened, answer.result)


@pytest.mark.parametrize("kind", ["complete", "input_required", "unknown"])
def test_a_result_too_deep_for_the_stack_is_an_error_of_the_peer(connect, kind):
    client = connect(Role.CLIENT)
    client.accept_discovery(discovered(["2026-07-28"]))
    opened = client.open_request("tools/call", s.CallToolParams(name="tide"), now=0.0)
    deep = b"[" * 100_000 + b"]" * 100_000
    result = b'{"resultType":"%b","content":[],"structuredContent":%b}' % (kind.encode(), deep)
    error = ""
    try:
        client.decode_result(opened, msgspec.Raw(result))
    except RemoteProtocolError as raised:
        error = str(raised)
    # Python 3.14 has room for so deep a member that is only skipped.
    is_accepted = sys.version_info >= (3, 14) and kind == "input_required"
    assert error.startswith("the response to tools/call") is not is_accepted


def test_no_depth_of_nesting_makes_receive_raise(ready):
    beginning = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":'
    )
    for distance in range(-10, 160, 2):
        server = ready(Role.SERVER, limits=Limits(messages=MessageLimits(json_depth_max=100_000)))
        depth = sys.getrecursionlimit() - distance
        event = server.receive(beginning + b"[" * depth + b"]" * depth + b"}}}")
        if not isinstance(event, RequestReceived):
            code = json.loads(event.message)["error"]["code"]
            assert code in {INVALID_PARAMS, INVALID_REQUEST}, depth


def test_params_too_deep_for_the_stack_are_bad_params():
    deep = b'{"name":"a","arguments":{"x":%s}}' % (b"[" * 2_000_000 + b"]" * 2_000_000)
    with pytest.raises(msgspec.ValidationError, match="nested too deeply"):
        METHODS["tools/call"].decode_params(msgspec.Raw(deep))


SCRAPS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 9),
    st.floats(),
    st.sampled_from(["", "1", "2.0", *METHODS]),
    st.just({}),
    st.dictionaries(
        st.sampled_from(["name", "_meta", "requestId", "progressToken", "progress", "level"]),
        st.sampled_from([None, 1, "a", {"progressToken": 1}, {"progressToken": []}, True, 2.5]),
    ),
)
MEMBERS = st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"])
OBJECTS = st.dictionaries(MEMBERS, SCRAPS).map(
    lambda members: json.dumps({"jsonrpc": "2.0", **members}).encode()
)


@pytest.mark.slow
@given(
    role=st.sampled_from(Role),
    state=st.sampled_from(SessionState),
    messages=st.lists(st.one_of(OBJECTS, st.binary(max_size=40)), max_size=12),
)
def test_any_data_becomes_one_event_and_raises_nothing(ready, role, state, messages):
    connection = ready(role, state)
    for message in messages:
        event = connection.receive(message)
        if isinstance(event, ImmediateResponse):
            json.loads(event.message)


def test_a_decoded_message_is_not_decoded_again(ready):
    connection = ready(Role.SERVER)
    message = Request(4, "tools/list", None)
    event = connection.receive(DecodedMessage(b"nothing that could be read", message, None))
    assert isinstance(event, RequestReceived)
    assert event.request.id == 4


def test_a_decoded_tool_call_is_decoded_again_only_for_params_of_the_user(ready, message):
    data = message(id=4, method="tools/call", params={"name": "tide", "port": "Delft"})
    decoded = DecodedMessage(data, decode_tool_call(data), None)
    usual = ready(Role.SERVER).receive(decoded)
    assert usual.request.params == s.CallToolParams(name="tide")

    class Tide(s.Params, kw_only=True):
        port: str

    row = custom_method("tools/call", params=Tide)
    connection = ready(Role.SERVER, methods={**METHODS, row.name: row})
    assert connection.receive(decoded).request.params.port == "Delft"


# Sent messages: what may be sent, ids, and the end of requests.


@pytest.mark.requirement("BASE-04", "BASE-02", "PROG-02", "TRAP-05")
def test_ids_are_not_reused_after_the_response(pair, message):
    seen = []
    for outcome in ("answered", "abandoned", "open", "unencodable", "open"):
        if outcome == "unencodable":
            with pytest.raises(Unencodable):
                pair.client.open_request("tools/call", s.CallToolParams(name="\ud800"), now=0.0)
            continue
        opened = pair.client.open_request("tools/list", None, now=0.0, wants_progress=True)
        sent = json.loads(opened.message)
        assert sent["params"]["_meta"]["progressToken"] == sent["id"] == opened.id
        seen.append(opened.id)
        if outcome == "answered":
            pair.client.receive(message(id=opened.id, result={"tools": []}))
        elif outcome == "abandoned":
            pair.client.abandon(opened)
    assert len(set(seen)) == len(seen)
    assert {type(id_) for id_ in seen} == {int}
    assert len(pair.client.outgoing) == 2


@pytest.mark.requirement("BASE-21", "TRAP-06")
def test_both_sides_send_requests_with_the_same_ids_at_the_same_time(pair):
    ours = pair.client.open_request("tools/list", None, now=0.0)
    pair.server.open_request("ping", None, now=0.0)  # the client has sent `initialize` before
    theirs = pair.server.open_request("roots/list", None, now=0.0)
    assert ours.id == theirs.id
    pair.client.receive(theirs.message)
    pair.server.receive(ours.message)
    assert len(pair.client.incoming) == len(pair.server.incoming) == 1
    assert len(pair.client.outgoing) == 1
    assert len(pair.server.outgoing) == 2


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("tools/dance", "no such request"),
        ("notifications/initialized", "no such request"),
        ("roots/list", "a client does not send roots/list"),
    ],
)
def test_a_client_cannot_send_requests_of_a_server(pair, method, text):
    with pytest.raises(LocalProtocolError, match=text):
        pair.client.open_request(method, None, now=0.0)
    assert len(pair.client.outgoing) == 0


@pytest.mark.requirement("BASE-13", "CANC-02", "PROG-05")
@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("notifications/dance", "no such notification"),
        ("tools/list", "no such notification"),
        ("notifications/message", "a client does not send"),
        ("notifications/cancelled", "call progress.. or abandon"),
        ("notifications/progress", "call progress.. or abandon"),
    ],
)
def test_notification_rejects_progress_and_cancellations(pair, valid_params, method, text):
    with pytest.raises(LocalProtocolError, match=text):
        pair.client.notification(method, valid_params.get(method))


SENT_WHEN_READY = [
    row
    for row in METHODS.values()
    if NEWEST_LEGACY in row.protocol_versions
    and row.trigger
    not in {SessionTrigger.INITIALIZE, SessionTrigger.INITIALIZED, SessionTrigger.REFERENCE}
]


@pytest.mark.requirement("BASE-13", "BASE-01")
@pytest.mark.parametrize("row", SENT_WHEN_READY, ids=lambda row: row.name)
def test_sent_requests_have_an_id_and_notifications_have_none(ready, valid_params, row):
    sender = ready(next(iter(row.senders)))
    if row.is_request:
        sent = json.loads(sender.open_request(row.name, valid_params[row.name], now=0.0).message)
        assert type(sent["id"]) is int
    else:
        sent = json.loads(sender.notification(row.name, valid_params[row.name]))
        assert "id" not in sent
    assert sent["jsonrpc"] == "2.0"
    assert sent["method"] == row.name


@pytest.mark.requirement("META-10")
def test_only_the_engine_puts_a_progress_token_into_meta(pair):
    params = s.CallToolParams(name="tide", meta={"progressToken": "mine"})
    with pytest.raises(LocalProtocolError, match="progressToken is reserved"):
        pair.client.open_request("tools/call", params, now=0.0)
    params.meta = {"trace": "t"}
    opened = pair.client.open_request("tools/call", params, now=0.0, wants_progress=True)
    sent = json.loads(opened.message)["params"]
    assert sent == {"name": "tide", "_meta": {"trace": "t", "progressToken": opened.id}}
    assert params.meta == {"trace": "t"}


def test_params_nested_too_deeply_are_not_sent(ready):
    client = ready(Role.CLIENT, limits=Limits(messages=MessageLimits(json_depth_max=5)))
    params = s.CallToolParams(name="tide", arguments=msgspec.Raw(b'{"x":[[[[]]]]}'))
    with pytest.raises(Unencodable, match=r"limits\.messages\.json_depth_max"):
        client.open_request("tools/call", params, now=0.0)
    server = ready(Role.SERVER, limits=Limits(messages=MessageLimits(json_depth_max=5)))
    with pytest.raises(Unencodable, match=r"limits\.messages\.json_depth_max"):
        server.notification(
            "notifications/message", s.LoggingMessageParams(level="info", data=[[[[]]]])
        )


def test_messages_that_are_too_large_are_not_sent(ready):
    limits = Limits(messages=MessageLimits(bytes_max=500))
    reason, text = r"limits\.messages\.bytes_max=500", "x" * 500
    client = ready(Role.CLIENT, limits=limits)
    with pytest.raises(Unencodable, match=reason):
        client.open_request("prompts/get", s.GetPromptParams(name=text), now=0.0)
    assert not client.outgoing
    server = ready(Role.SERVER, limits=limits)
    with pytest.raises(Unencodable, match=reason):
        server.notification(
            "notifications/message", s.LoggingMessageParams(level="info", data=text)
        )
    request = IncomingRequest(
        "q", METHODS["tools/list"], PaginatedParams(), progress_token=1, peer=server.peer
    )
    request.state = IncomingState.RUNNING
    with pytest.raises(Unencodable, match=reason):
        server.progress(request, 1, None, text)


def test_the_data_of_an_error_may_be_nested_as_deeply_as_other_messages(ready):
    request = IncomingRequest("q", METHODS["tools/list"], PaginatedParams())
    data = msgspec.Raw(b"[" * 600 + b"]" * 600)  # deeper than the default limit
    server = ready(Role.SERVER, limits=Limits(messages=MessageLimits(json_depth_max=700)))
    assert server.error(request, -1, "no", data).endswith(b"]}}")
    server = ready(Role.SERVER, limits=Limits(messages=MessageLimits(json_depth_max=5)))
    with pytest.raises(Unencodable, match=r"limits\.messages\.json_depth_max \(5\)"):
        server.error(request, -1, "no", [[[[]]]])


def test_the_time_limits_of_a_request_start_when_it_is_opened(pair):
    opened = pair.client.open_request(
        "ping", None, now=10.0, idle_seconds=5.0, total_seconds=math.inf
    )
    assert opened.budget.deadline == 15.0


NEEDY = [
    row
    for row in METHODS.values()
    if row.required_capability is not None and NEWEST_LEGACY in row.protocol_versions
]


def without(role):
    return {Role.CLIENT: s.ClientCapabilities(), Role.SERVER: s.ServerCapabilities()}[role]


@pytest.mark.requirement("LIFE-14", "LIFE-16")
@pytest.mark.parametrize("row", NEEDY, ids=lambda row: row.name)
def test_a_method_without_its_capability_is_not_sent(connect, shake_hands, valid_params, row):
    holder = row.required_capability.holder
    lacking = connect(holder, our_capabilities=without(holder))
    ends = {holder: lacking, holder.peer: connect(holder.peer)}
    shake_hands(ends[Role.CLIENT], ends[Role.SERVER])
    sender = ends[next(iter(row.senders))]
    params = valid_params[row.name]
    with pytest.raises(
        LocalProtocolError, match=rf"capability '{row.required_capability.path}', .*not announced"
    ):
        _ = (
            sender.open_request(row.name, params, now=0.0)
            if row.is_request
            else (sender.notification(row.name, params))
        )


@pytest.mark.requirement("LIFE-14", "BASE-32")
@pytest.mark.parametrize("row", NEEDY, ids=lambda row: row.name)
def test_a_received_method_without_its_capability_is_rejected(
    connect, shake_hands, valid_params, row
):
    holder = row.required_capability.holder
    ends = {holder: connect(holder), holder.peer: connect(holder.peer)}
    shake_hands(ends[Role.CLIENT], ends[Role.SERVER])
    sender = ends[next(iter(row.senders))]
    receiver = ends[sender.our_role.peer]
    params = valid_params[row.name]
    if row.is_request:
        leaving = sender.open_request(row.name, params, now=0.0).message
        assert isinstance(receiver.receive(leaving), RequestReceived)
        lacking = connect(holder, our_capabilities=without(holder))
        both = {holder: lacking, holder.peer: connect(holder.peer)}
        shake_hands(both[Role.CLIENT], both[Role.SERVER])
        event = lacking.receive(leaving)
        assert isinstance(event, ImmediateResponse)
        error = json.loads(event.message)["error"]
        assert error["code"] == METHOD_NOT_FOUND
        assert row.required_capability.path in error["message"]
    else:
        leaving = sender.notification(row.name, params)
        assert not isinstance(receiver.receive(leaving), Ignored)
        if holder is receiver.our_role:
            receiver.our_capabilities = without(holder)
        else:
            receiver.set_peer(NEWEST_LEGACY, without(holder), None)
        assert receiver.receive(leaving).counter == "not announced"


def test_a_server_may_log_before_its_capabilities_are_known(connect, valid_params):
    server, client = connect(Role.SERVER), connect(Role.CLIENT)
    leaving = server.notification("notifications/message", valid_params["notifications/message"])
    assert not isinstance(client.receive(leaving), Ignored)


@pytest.mark.requirement("LIFE-19")
@pytest.mark.parametrize(
    ("capabilities", "path", "expected"),
    [
        (None, "tools", False),
        (s.ServerCapabilities(), "tools", False),
        (s.ServerCapabilities(tools=s.ToolsCapability()), "tools", True),
        (s.ServerCapabilities(tools=s.ToolsCapability()), "tools.listChanged", False),
        (
            s.ServerCapabilities(tools=s.ToolsCapability(list_changed=False)),
            "tools.listChanged",
            False,
        ),
        (
            s.ServerCapabilities(tools=s.ToolsCapability(list_changed=True)),
            "tools.listChanged",
            True,
        ),
        (s.ServerCapabilities(logging={}), "logging", True),
        (s.ServerCapabilities(experimental={"a": {"b": {}}}), "experimental.a.b", True),
        (s.ServerCapabilities(experimental={"a": {"b": 3}}), "experimental.a.b.c", False),
        (s.ServerCapabilities(), "telepathy", False),
    ],
)
def test_a_capability_is_announced_if_present_and_not_false(capabilities, path, expected):
    assert has_capability(capabilities, path) is expected


def test_a_need_names_its_holder():
    assert str(RequiredCapability(holder=Role.CLIENT, path="roots")) == "client capability 'roots'"


def test_every_method_has_valid_params_in_these_tests(valid_params):
    assert set(valid_params) == set(METHODS)
    assert all(type(valid_params[name]) is row.params for name, row in METHODS.items())


# The order of checks: a request with several errors is rejected for the first one.

*LEGACY, STATELESS = PROTOCOL_VERSIONS
META = {PROTOCOL_VERSION: STATELESS, CLIENT_CAPABILITIES: {}}

# Each has the faults of all behind it as well: what is mended leads to the next.
FAULTS = [
    ({PROTOCOL_VERSION: "2030-01-01"}, "tools/dance", UNSUPPORTED_PROTOCOL_VERSION),
    ({PROTOCOL_VERSION: "2025-11-25"}, "ping", UNSUPPORTED_PROTOCOL_VERSION),
    ({CLIENT_CAPABILITIES: 5}, "tools/dance", INVALID_PARAMS),
    ({}, "tools/dance", METHOD_NOT_FOUND),
    ({}, "ping", METHOD_NOT_FOUND),
    ({}, "prompts/get", METHOD_NOT_FOUND),  # the capability
    ({}, "tools/call", INVALID_PARAMS),
]


def error_code_for(event):
    assert isinstance(event, ImmediateResponse)
    return json.loads(event.message)["error"]["code"]


@pytest.fixture
def shaken(connect, message):
    """A server after the handshake with a protocol version, or with a stateless client."""

    def shaken(protocol_version):
        capabilities = s.ServerCapabilities(tools=s.ToolsCapability(), logging={})
        server = connect(Role.SERVER, our_capabilities=capabilities)
        if protocol_version != STATELESS:
            info = {"name": "reed", "version": "3"}
            hello = {"protocolVersion": protocol_version, "capabilities": {}, "clientInfo": info}
            server.receive(message(id=0, method="initialize", params=hello))
            server.receive(message(method="notifications/initialized"))
            assert server.protocol_version.name == protocol_version
        return server

    return shaken


@pytest.mark.requirement("TRAP-30", "ERR-15", "VER-02")
@pytest.mark.parametrize(("meta", "method", "code"), FAULTS)
def test_metadata_are_checked_before_the_method_and_the_method_before_params(
    shaken, message, meta, method, code
):
    params = {"_meta": {**META, **meta}, "name": 5}
    assert (
        error_code_for(shaken(STATELESS).receive(message(id=1, method=method, params=params)))
        == code
    )


@pytest.mark.requirement("TRAP-30")
def test_json_is_checked_before_the_envelope_and_the_envelope_before_the_version(shaken):
    server = shaken(STATELESS)
    assert error_code_for(server.receive(b'{"id":1,"method":')) == PARSE_ERROR
    meta = json.dumps({PROTOCOL_VERSION: "2030-01-01"}).encode()
    bad = b'{"jsonrpc":"1.0","id":1,"method":"tools/list","params":{"_meta":%b}}' % meta
    assert error_code_for(server.receive(bad)) == INVALID_REQUEST


@pytest.mark.requirement("TRAP-11", "BASE-16")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("params", [{}, {"params": {}}, {"params": {"_meta": {}}}])
def test_a_list_is_asked_for_without_params_where_there_is_a_session(
    shaken, connect, message, protocol_version, params
):
    server = shaken(protocol_version)
    if protocol_version == STATELESS:
        server = connect(Role.SERVER, protocol_versions=(STATELESS,))
    event = server.receive(message(id=1, method="tools/list", **params))
    if protocol_version == STATELESS:
        assert error_code_for(event) == INVALID_PARAMS
    else:
        assert isinstance(event, RequestReceived)


@pytest.mark.requirement("TRAP-12", "BASE-14")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize(
    "bad",
    [
        {"method": "notifications/unheard"},
        {"method": "notifications/cancelled", "params": {"requestId": []}},
        {"method": "notifications/cancelled", "params": {"_meta": {PROTOCOL_VERSION: 5}}},
        {"method": "notifications/progress", "params": {"_meta": META}},
        {"method": "tools/list"},
        {"method": "ping"},
        {"method": "notifications/initialized", "params": []},
    ],
)
def test_a_bad_notification_is_counted_and_not_answered(shaken, message, protocol_version, bad):
    server = shaken(protocol_version)
    if protocol_version == STATELESS:
        bad = {**bad, "params": bad.get("params", {"_meta": META})}
    assert isinstance(server.receive(message(**bad)), Ignored)
    assert sum(server.counts.values()) == 1


@pytest.mark.requirement("TRAP-20", "LIFE-12")
@pytest.mark.parametrize("protocol_version", LEGACY)
def test_a_request_before_initialized_is_taken_once_the_handshake_was_answered(
    connect, message, protocol_version
):
    server = connect(Role.SERVER)
    info = {"name": "hasty", "version": "1"}
    hello = {"protocolVersion": protocol_version, "capabilities": {}, "clientInfo": info}
    assert error_code_for(server.receive(message(id=1, method="tools/list"))) == INVALID_REQUEST
    assert "result" in json.loads(server.receive(message(id=2, method="ping")).message)
    assert server.receive(message(id=3, method="initialize", params=hello)).negotiated
    assert isinstance(server.receive(message(id=4, method="tools/list")), RequestReceived)
    assert "result" in json.loads(server.receive(message(id=5, method="ping")).message)


# Error codes by protocol version.

*LEGACY_VERSIONS, STATELESS_VERSION = PROTOCOL_VERSIONS.values()
OURS = {name: code for name, code in vars(_errors).items() if name.isupper()}
JSON_RPC = {-32700, -32600, -32601, -32602, -32603}
DEFINED = {-32020, -32021, -32022}


@pytest.fixture
def answered(connect):
    """The code on the wire of an error with this code."""

    def answered(protocol_version, code):
        server = connect(Role.SERVER)
        peer = Peer(protocol_version=protocol_version, capabilities=ClientCapabilities())
        method = server.methods["tools/list"]
        request = IncomingRequest("q", method, PaginatedParams(), peer=peer)
        answer = json.loads(server.error(request, code, "no", {"a": 1}))
        assert answer.pop("error") | {"code": 0} == {"code": 0, "message": "no", "data": {"a": 1}}
        assert answer == {"jsonrpc": "2.0", "id": "q"}
        return json.loads(server.error(request, code, "no"))["error"]["code"]

    return answered


@pytest.mark.requirement("ERR-07", "ERR-08", "ERR-10", "ERR-06")
def test_stateless_requests_get_only_defined_error_codes(answered):
    for code in range(-32105, -31995):
        is_reserved = -32099 <= code <= -32000 and code not in DEFINED
        expected = {-32002: INVALID_PARAMS}.get(code, INTERNAL_ERROR if is_reserved else code)
        assert answered(STATELESS_VERSION, code) == expected, code


@pytest.mark.requirement("ERR-01")
@pytest.mark.parametrize(
    "protocol_version", LEGACY_VERSIONS, ids=lambda protocol_version: protocol_version.name
)
def test_legacy_requests_get_the_intended_error_code(answered, protocol_version):
    codes = [*OURS.values(), -32050, 7]
    assert [answered(protocol_version, code) for code in codes] == codes


@pytest.mark.requirement("ERR-11", "ERR-10", "TRAP-14")
def test_own_error_codes_are_defined_or_not_reserved():
    codes = {STATELESS_VERSION.error_code_for(code) for code in OURS.values()}
    assert all(not -32768 <= code <= -32000 for code in codes - JSON_RPC - DEFINED)
    assert codes >= DEFINED
    assert HEADER_MISMATCH == -32020  # and not -32001, as drafts had it


@pytest.mark.requirement("ERR-11")
@pytest.mark.parametrize("code", [-1, 1, 404, -31999, -32769])
@pytest.mark.parametrize(
    "protocol_version",
    PROTOCOL_VERSIONS.values(),
    ids=lambda protocol_version: protocol_version.name,
)
def test_the_codes_of_applications_pass(answered, protocol_version, code):
    assert answered(protocol_version, code) == code


# Batches, and error responses without an id.

BATCHED = "2025-03-26"
OTHERS = [name for name in PROTOCOL_VERSIONS if name != BATCHED]
LEGACY_NAMES = [name for name in PROTOCOL_VERSIONS if PROTOCOL_VERSIONS[name].has_handshake]

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "tide"}}
CANCEL = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}
ROOTS = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}


def batch(*messages):
    return json.dumps(messages).encode()


def settled(connect, role, protocol_version):
    """A connection after its handshake; a stateless one has none."""
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
            message = {"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": opening}
            assert connection.receive(encode(message)).negotiated
            connection.receive(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        else:
            connection.set_peer(PROTOCOL_VERSIONS[protocol_version], capabilities, None)
    return connection


def taken(connection, message):
    """The events of a batch, each when those before it were acted upon."""
    arrived = connection.receive(message)
    assert isinstance(arrived, BatchReceived)
    return [connection.receive_batched(each, arrived.size_bytes) for each in arrived.messages]


@pytest.mark.requirement("BASE-24", "TRAP-01", "STDIO-05")
def test_each_message_of_a_batch_becomes_the_same_event_as_alone(connect):
    server = settled(connect, Role.SERVER, BATCHED)
    ping, call, cancel, roots = taken(server, batch(PING, CALL, CANCEL, ROOTS))
    assert isinstance(ping, ImmediateResponse)
    assert isinstance(call, RequestReceived)
    assert isinstance(cancel, RequestCancelled)
    assert cancel.request is call.request
    assert isinstance(roots, NotificationReceived)


@pytest.mark.requirement("BASE-24")
def test_a_batch_of_responses_ends_each_sent_request(connect):
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
    assert isinstance(event, ImmediateResponse)


def test_a_bad_message_in_a_batch_is_answered_and_the_others_are_taken(connect):
    server = settled(connect, Role.SERVER, BATCHED)
    bad, nameless, nested, ping = taken(
        server, batch({"jsonrpc": "2.0", "id": 7, "method": 9}, 17, [PING], PING)
    )
    assert json.loads(bad.message)["error"]["code"] == INVALID_REQUEST
    assert json.loads(bad.message)["id"] == 7
    assert isinstance(nameless, Ignored)
    assert isinstance(nested, Ignored)
    assert isinstance(ping, ImmediateResponse)
    assert server.counts["malformed"] == 3


def test_two_requests_of_a_batch_cannot_have_the_same_id(connect):
    server = settled(connect, Role.SERVER, BATCHED)
    first, second = taken(server, batch(CALL, CALL))
    assert isinstance(first, RequestReceived)
    assert second.counter == "duplicate id"


@pytest.mark.requirement("BASE-26", "TRAP-01")
def test_initialize_is_never_in_a_batch(connect):
    opening = {
        "protocolVersion": BATCHED,
        "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"},
    }
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening}
    server = connect(Role.SERVER)
    assert server.receive(batch(initialize)).counter == "malformed"
    assert server.receive(encode(initialize)).negotiated
    server = settled(connect, Role.SERVER, BATCHED)
    (again,) = taken(server, batch(initialize))
    assert again.counter == "out of order"


@pytest.mark.requirement("BASE-28", "BASE-29", "TRAP-01")
@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("protocol_version", OTHERS)
def test_other_protocol_versions_take_no_batch(connect, role, protocol_version):
    connection = settled(connect, role, protocol_version)
    event = connection.receive(batch(PING, ROOTS))
    assert event.counter == "malformed"
    assert "this protocol version has no batches" in event.text
    assert connection.counts == {"malformed": 1}


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    "protocol_version", [name for name in OTHERS if PROTOCOL_VERSIONS[name].has_handshake]
)
def test_a_batch_in_another_protocol_version_fails_the_requests_that_it_responds_to(
    connect, role, protocol_version
):
    connection = settled(connect, role, protocol_version)
    one, two, three = (connection.open_request("ping", None, now=0.0) for _ in range(3))
    error = {"code": -32603, "message": "no"}
    events = taken(
        connection,
        batch(
            {"jsonrpc": "2.0", "id": one.id, "result": {}},
            CALL,
            {"jsonrpc": "2.0", "id": two.id, "error": error},
            {"jsonrpc": "2.0", "id": two.id, "result": {}},
        ),
    )
    assert [type(event) for event in events[:2]] == [ResponseUnreadable] * 2
    assert [event.request for event in events[:2]] == [one, two]
    assert "response to ping is not a message: this protocol version has no batches" in str(
        events[0].error
    )
    assert connection.outgoing.waiting == [three.id]
    assert connection.counts == {"unreadable answer": 2, "malformed": 2}


NAMELESS = {"what is no JSON": (b"{", PARSE_ERROR), "an empty batch": (b"[]", INVALID_REQUEST)}


@pytest.mark.requirement("BASE-07", "BASE-08", "TRAP-03")
@pytest.mark.parametrize(("bad", "code"), NAMELESS.values(), ids=NAMELESS)
@pytest.mark.parametrize("protocol_version", LEGACY_NAMES)
def test_errors_without_an_id_are_sent_only_to_versions_with_them(
    connect, protocol_version, bad, code
):
    event = settled(connect, Role.SERVER, protocol_version).receive(bad)
    assert event.counter == "malformed"
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
def test_errors_without_an_id_before_the_handshake_depend_on_all_supported_versions(
    connect, protocol_versions, is_answered
):
    event = connect(Role.SERVER, protocol_versions=protocol_versions).receive(b"hello")
    assert isinstance(event, ImmediateResponse) is is_answered


@pytest.mark.requirement("BASE-08", "TRAP-03")
@pytest.mark.parametrize("protocol_version", LEGACY_NAMES)
@pytest.mark.parametrize("id_", [{}, {"id": None}])
def test_received_errors_without_an_id_are_accepted_in_every_version(
    connect, protocol_version, id_
):
    error = {"code": PARSE_ERROR, "message": "what?"}
    event = settled(connect, Role.CLIENT, protocol_version).receive(
        encode({"jsonrpc": "2.0", **id_, "error": error})
    )
    assert event.counter == "unknown answer"
    assert "what?" in event.text


def test_a_client_never_answers_malformed_messages(connect):
    client = settled(connect, Role.CLIENT, "2025-11-25")
    assert isinstance(client.receive(b"hello"), Ignored)


def test_a_batch_with_too_many_messages_is_rejected(connect):
    server = connect(Role.SERVER, limits=Limits(messages=MessageLimits(batch_size_max=2)))
    event = server.receive(batch(PING, PING, PING))
    assert "limits.messages.batch_size_max (2)" in event.text


# Oversized and malformed responses, which end their requests.

LIMITS = Limits(messages=MessageLimits(bytes_max=1000))


def begin(text):
    return malformed(text, INVALID_REQUEST, "too large")


@pytest.mark.parametrize(
    ("text", "waiting", "whose"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"x', [], 7),
        (b'{"jsonrpc":"2.0","id":"a","error":{"code":1,"data":[', [7], "a"),
        (b'{"result":{"content":[{"text":"x', [7], 7),
        (b'{"error":{"code":1,"message":"x', [7], 7),
        (b'{"result":{"content":[{"text":"x', [7, 8], None),
        (b'{"result":{"content":[{"text":"x', [], None),
        (b'{"jsonrpc":"2.0","id":7,"method":"roots/list","params":{"a":"x', [7], None),
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{"a":"x', [7], None),
        (b'{"jsonrpc":"2.0","id":7', [7], None),
        (b'[{"jsonrpc":"2.0","id":7,"result":{"a":"x', [7], None),
        (b"xxxxxxxx", [7], None),
    ],
)
def test_an_oversized_response_is_assigned_by_id_or_to_the_only_waiting_request(
    text, waiting, whose
):
    assert oversized_response_id(begin(text), waiting) == whose


@pytest.mark.parametrize(
    ("text", "whose"),
    [
        (rb'{"jsonrpc":"2.0","id":7,"result":{"a":"\ud83d"}}', 7),
        (rb'{"result":{"a":"\ud83d"},"jsonrpc":"2.0","id":7}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":[]}', 7),
        (b'{"id":7,"result":{}}', 7),
        (b'{"jsonrpc":"2.0","id":7,"error":"no"}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"\xff"}}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":[{}', None),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":"}', None),
        (b'{"level":"error","error":"it is raining"}', None),
        (b'{"id":7,"method":"roots/list"}', None),
        (b'{"id":7}', None),
    ],
)
def test_a_complete_malformed_response_ends_the_request_with_its_id(text, whose):
    message = Decoder(MessageLimits(json_depth_max=9)).decode(text)
    assert isinstance(message, Malformed)
    assert response_id_of(message) == whose


def asked(ready, role=Role.CLIENT, method="tools/list"):
    connection = ready(role, limits=LIMITS)
    return connection, connection.open_request(method, None, now=0.0)


@pytest.mark.parametrize("has_id_first", [True, False])
def test_an_oversized_response_ends_its_request_with_side_and_setting(ready, has_id_first):
    client, request = asked(ready)
    envelope = f'"id":{request.id},' if has_id_first else ""
    beginning = f'{{{envelope}"result":{{"tools":["x'.encode()
    event = client.receive(Oversized(size=5000, prefix=beginning))
    assert isinstance(event, ResponseUnreadable)
    assert event.request is request
    assert type(event.error) is OutcomeUnknown
    assert str(event.error) == (
        "the server's response to tools/list:"
        " at least 5000 bytes, over limits.messages.bytes_max=1000 of this client"
    )
    assert event.counter == "unreadable answer"
    assert client.counts == {"unreadable answer": 1}
    assert not client.outgoing.waiting


def test_an_oversized_response_to_no_request_is_counted(ready):
    client, request = asked(ready)
    other = Oversized(size=5000, prefix=f'{{"id":{request.id + 1},"result":{{"a'.encode())
    assert isinstance(client.receive(other), Ignored)
    assert client.outgoing.waiting == [request.id]


def test_an_oversized_response_without_an_id_ends_neither_of_two_requests(ready):
    client, first = asked(ready)
    second = client.open_request("tools/list", None, now=0.0)
    assert isinstance(client.receive(Oversized(size=5000, prefix=b'{"result":{"a')), Ignored)
    assert client.outgoing.waiting == [first.id, second.id]


def test_an_oversized_response_without_an_id_ends_no_subscription(stateless_client, valid_params):
    listen = "subscriptions/listen"
    stateless_client.open_request(listen, valid_params[listen], now=0.0)
    large = Oversized(size=5000, prefix=b'{"result":{"a')
    assert isinstance(stateless_client.receive(large), Ignored)
    request = stateless_client.open_request("tools/list", None, now=0.0)
    assert stateless_client.receive(large).request is request


@pytest.mark.requirement("BASE-10", "BASE-30")
@pytest.mark.parametrize(
    ("result", "text"),
    [
        (rb'{"a":"\ud83d"}', "is not JSON: incomplete text, or an incomplete"),
        (b"[]", "is not a message: "),
    ],
)
def test_a_malformed_response_ends_its_request(ready, result, text):
    client, request = asked(ready)
    message = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request.id, result)
    event = client.receive(message)
    assert event.request is request
    assert type(event.error) is RemoteProtocolError
    assert str(event.error).startswith(f"the server's response to tools/list {text}")
    assert client.counts == {"unreadable answer": 1}
    again = client.receive(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % request.id)
    assert again.counter == "unknown answer"


def test_texts_that_quote_the_peer_are_shortened(ready):
    client, request = asked(ready)
    error = {"code": 1, "message": 5, "x" * 999: 1}
    event = client.receive(
        json.dumps({"jsonrpc": "2.0", "id": request.id, "error": error}).encode()
    )
    assert len(str(event.error)) <= LIMITS.messages.error_text_chars_max + 1


def test_junk_that_looks_like_an_error_ends_nothing(ready):
    client, request = asked(ready)
    assert isinstance(client.receive(b'{"level":"error","error":"it is raining"}'), Ignored)
    assert client.outgoing.waiting == [request.id]


def test_an_unreadable_response_to_initialize_resets_the_session(connect):
    client = connect(Role.CLIENT)
    request = client.open_request("initialize", client.initialize_params(), now=0.0)
    assert client.state is SessionState.INITIALIZING
    event = client.receive(b'{"jsonrpc":"2.0","id":%d,"result":[]}' % request.id)
    assert event.request is request
    assert client.state is SessionState.FRESH


def test_a_question_of_the_server_ends_just_so(ready):
    server, request = asked(ready, Role.SERVER, "roots/list")
    event = server.receive(Oversized(size=5000, prefix=b'{"result":{"roots":["x'))
    assert event.request is request
    assert str(event.error).startswith("the client's response to roots/list: ")
    assert str(event.error).endswith("limits.messages.bytes_max=1000 of this server")


# The empty dict that idle sessions share.


@pytest.mark.parametrize(
    "add",
    [
        lambda items: items.__setitem__("a", 1),
        lambda items: items.update(a=1),
        lambda items: items.setdefault("a", 1),
        lambda items: items.__ior__({"a": 1}),
    ],
)
def test_nothing_can_be_added_to_the_shared_dict(add):
    with pytest.raises(TypeError, match="replace it by a dict"):
        add(NO_ITEMS)
    assert NO_ITEMS == {}


def test_reading_and_removing_from_the_shared_dict_find_nothing():
    assert NO_ITEMS.get("a") is NO_ITEMS.pop("a", None) is None
    assert "a" not in NO_ITEMS
    assert [*NO_ITEMS.items()] == []
