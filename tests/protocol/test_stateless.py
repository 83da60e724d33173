"""Connections of stateless protocol versions."""

import json

import msgspec
import pytest
from msgspec.structs import replace

from mcp_trio import types as s
from mcp_trio._protocol.connection import (
    Ignored,
    ImmediateResponse,
    NotificationReceived,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
    SessionState,
)
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
    SUBSCRIPTION_ID,
)
from mcp_trio._protocol.methods import METHODS, Role, custom_method
from mcp_trio._protocol.requests import IncomingTrigger
from mcp_trio._protocol.versions import ALL_PROTOCOL_VERSIONS, PROTOCOL_VERSIONS
from mcp_trio.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_PROTOCOL_VERSION,
    LocalProtocolError,
    RemoteProtocolError,
)
from tests.protocol.discovered import discovered

# Servers of stateless requests.

STATELESS = "2026-07-28"
META = {
    PROTOCOL_VERSION: STATELESS,
    CLIENT_CAPABILITIES: {"roots": {}},
    CLIENT_INFO: {"name": "kelp", "version": "4"},
}


@pytest.fixture
def server(connect):
    return connect(Role.SERVER)


@pytest.fixture
def ask(message):
    """Let a server receive a request with this metadata."""

    def ask(server, method, meta=META, id=1, **params):  # noqa: A002  the specification's word
        params = {**params, "_meta": meta}
        return server.receive(message(id=id, method=method, params=params))

    return ask


def error_of(event):
    assert isinstance(event, ImmediateResponse)
    return json.loads(event.message)["error"]


# The metadata of a request.


@pytest.mark.requirement("VER-04", "META-11", "META-12", "META-13", "STATE-01", "VER-07")
def test_a_request_with_its_metadata_needs_no_handshake_and_knows_its_sender(server, ask):
    meta = {**META, LOG_LEVEL: "error", "traceparent": "00-1-2-01", "baggage": "a=b"}
    event = ask(server, "tools/list", meta)
    assert isinstance(event, RequestReceived)
    peer = event.request.peer
    assert peer.protocol_version is PROTOCOL_VERSIONS[STATELESS]
    assert peer.can("roots")
    assert not peer.can("sampling")
    assert peer.info == s.Implementation(name="kelp", version="4")
    assert peer.log_level == "error"
    assert peer.trace == {"traceparent": "00-1-2-01", "baggage": "a=b"}
    assert server.state is SessionState.FRESH
    assert server.peer is None


@pytest.mark.requirement("META-16", "STATE-01", "STATE-02")
def test_metadata_of_a_request_do_not_hold_for_the_next(server, ask):
    first = ask(server, "tools/list", {**META, LOG_LEVEL: "debug", "traceparent": "t"}, id=1)
    second = ask(server, "tools/list", {**META, CLIENT_CAPABILITIES: {"sampling": {}}}, id=2)
    assert first.request.peer.can("roots")
    assert not second.request.peer.can("roots")
    assert second.request.peer.can("sampling")
    assert second.request.peer.log_level is None
    assert second.request.peer.trace == {}


@pytest.mark.requirement("META-14")
def test_a_request_without_the_name_of_its_client_is_served(server, ask):
    event = ask(server, "tools/list", {key: META[key] for key in META if key != CLIENT_INFO})
    assert event.request.peer.info is None


@pytest.mark.requirement("META-15", "LOG-11", "BASE-34")
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({PROTOCOL_VERSION: None}, PROTOCOL_VERSION),
        ({PROTOCOL_VERSION: 7}, PROTOCOL_VERSION),
        ({PROTOCOL_VERSION: ...}, f"lacks {PROTOCOL_VERSION}"),
        ({CLIENT_CAPABILITIES: ...}, f"lacks {CLIENT_CAPABILITIES}"),
        ({CLIENT_CAPABILITIES: []}, CLIENT_CAPABILITIES),
        ({CLIENT_CAPABILITIES: {"roots": 5}}, CLIENT_CAPABILITIES),
        ({CLIENT_INFO: {"name": "no version"}}, CLIENT_INFO),
        ({LOG_LEVEL: "loud"}, LOG_LEVEL),
        ({"traceparent": 5}, "traceparent"),
    ],
)
def test_metadata_of_the_wrong_shape_are_invalid_params(server, ask, changes, text):
    meta = {key: value for key, value in {**META, **changes}.items() if value is not ...}
    error = error_of(ask(server, "tools/list", meta))
    assert error["code"] == INVALID_PARAMS
    assert text in error["message"]
    assert len(server.incoming) == 0


def test_metadata_too_large_for_the_cache_are_read(server, ask):
    meta = {**META, CLIENT_INFO: {"name": "k" * 5000, "version": "4"}}
    assert len(ask(server, "tools/list", meta).request.peer.info.name) == 5000


@pytest.mark.requirement("VER-02", "ERR-15", "VER-03")
@pytest.mark.parametrize("requested", ["2025-11-25", "1999-01-01", ""])
def test_an_unsupported_stateless_version_is_rejected_with_the_supported_ones(
    server, ask, requested
):
    error = error_of(ask(server, "tools/list", {**META, PROTOCOL_VERSION: requested}))
    assert error["code"] == UNSUPPORTED_PROTOCOL_VERSION
    assert error["data"] == {"supported": list(ALL_PROTOCOL_VERSIONS), "requested": requested}


@pytest.mark.requirement("VER-02")
def test_a_version_that_was_declined_is_rejected_before_the_method_is_looked_at(connect, ask):
    server = connect(Role.SERVER, protocol_versions=("2025-06-18", "2024-11-05"))
    error = error_of(ask(server, "tools/dance"))
    assert error["code"] == UNSUPPORTED_PROTOCOL_VERSION
    assert error["data"]["supported"] == ["2025-06-18", "2024-11-05"]


# Methods.


@pytest.mark.requirement("PING-05", "LOG-12", "RES-16", "BASE-32", "TRAP-54")
@pytest.mark.parametrize(
    "method",
    ["ping", "initialize", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"],
)
def test_removed_methods_are_not_found_in_stateless_versions(server, ask, method, valid_params):
    params = msgspec.to_builtins(valid_params[method])
    assert error_of(ask(server, method, **params))["code"] == METHOD_NOT_FOUND
    assert server.state is SessionState.FRESH


@pytest.mark.requirement("BASE-33")
def test_a_method_whose_capability_is_not_declared_is_not_found(connect, ask):
    server = connect(Role.SERVER, our_capabilities=s.ServerCapabilities())
    assert error_of(ask(server, "prompts/list"))["code"] == METHOD_NOT_FOUND


@pytest.mark.requirement("BASE-05", "TRAP-05")
def test_an_id_in_flight_is_rejected_and_may_come_again_afterwards(server, ask):
    first = ask(server, "tools/list", id="a")
    assert error_of(ask(server, "tools/list", id="a"))["code"] == INVALID_REQUEST
    server.finish(first.request)
    assert isinstance(ask(server, "tools/list", id="a"), RequestReceived)


@pytest.mark.requirement("BASE-16", "META-15")
@pytest.mark.parametrize(
    ("method", "protocol_versions"),
    [
        ("server/discover", ALL_PROTOCOL_VERSIONS),
        ("subscriptions/listen", ALL_PROTOCOL_VERSIONS),
        ("tools/list", (STATELESS,)),
        ("ping", (STATELESS,)),
    ],
)
def test_a_stateless_method_without_metadata_is_rejected_with_the_missing_key(
    connect, message, method, protocol_versions
):
    server = connect(Role.SERVER, protocol_versions=protocol_versions)
    event = server.receive(message(id=1, method=method, params={"notifications": {}}))
    error = error_of(event)
    assert error["code"] == INVALID_PARAMS
    assert PROTOCOL_VERSION in error["message"]


@pytest.mark.requirement("VER-05", "VER-06", "VER-07")
def test_legacy_and_stateless_requests_are_served_side_by_side(pair, ask, message):
    server = pair.server
    stateless = ask(server, "tools/list", id=7)
    assert stateless.request.peer.protocol_version is PROTOCOL_VERSIONS[STATELESS]
    legacy = server.receive(message(id=8, method="tools/list"))
    assert legacy.request.peer is server.peer
    assert legacy.request.peer.protocol_version.has_handshake
    assert server.state is SessionState.READY


def test_a_closed_session_takes_no_stateless_request(server, ask):
    server.close()
    assert error_of(ask(server, "tools/list"))["code"] == INVALID_REQUEST


@pytest.mark.requirement("STDIO-14", "CANC-13")
def test_a_stateless_request_is_cancelled_before_any_handshake(server, ask, message):
    taken = ask(server, "tools/list", id=3)
    event = server.receive(message(method="notifications/cancelled", params={"requestId": 3}))
    assert isinstance(event, RequestCancelled)
    assert event.request is taken.request


# Discovery, and handshakes with a stateless server.


@pytest.mark.requirement(
    "DISC-01", "DISC-03", "DISC-04", "DISC-05", "BASE-36", "META-18", "CACHE-01", "TRAP-80"
)
@pytest.mark.requirement("TRAP-14")
def test_discover_returns_versions_and_capabilities(connect, ask):
    server = connect(Role.SERVER, instructions="Ask for the tide first.")
    event = ask(server, "server/discover")
    assert event.counter is None
    assert not event.negotiated
    assert json.loads(event.message)["result"] == {
        "resultType": "complete",
        "supportedVersions": list(ALL_PROTOCOL_VERSIONS),
        "capabilities": {
            "logging": {},
            "prompts": {"listChanged": True},
            "resources": {"subscribe": True, "listChanged": True},
            "tools": {"listChanged": True},
        },
        "instructions": "Ask for the tide first.",
        "ttlMs": 0,
        "cacheScope": "private",
        "_meta": {SERVER_INFO: {"name": "server", "version": "1"}},
    }


@pytest.mark.requirement("VER-11", "TRAP-28")
def test_a_stateless_server_rejects_a_handshake_with_its_versions(connect, message):
    server = connect(Role.SERVER, protocol_versions=(STATELESS,))
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "kelp", "version": "4"},
    }
    error = error_of(server.receive(message(id=1, method="initialize", params=params)))
    assert error["data"]["supported"] == [STATELESS]
    assert STATELESS in error["message"]
    assert server.state is SessionState.FRESH


# Results.


def finished(server, event, result):
    event.request.move(IncomingTrigger.START)
    return json.loads(server.response(event.request, result))["result"]


@pytest.mark.requirement("BASE-36", "BASE-37", "META-18", "TRAP-13")
def test_a_stateless_result_has_its_type_and_the_server_name(server, ask):
    event = ask(server, "tools/call", name="tide")
    result = s.CallToolResult(content=[s.TextContent(text="high")], meta={"a/b": 1})
    assert finished(server, event, result) == {
        "resultType": "complete",
        "content": [{"type": "text", "text": "high"}],
        "_meta": {"a/b": 1, SERVER_INFO: {"name": "server", "version": "1"}},
    }


@pytest.mark.requirement("TRAP-13", "BASE-17")
def test_a_legacy_result_has_neither_type_nor_server_name(pair, message):
    event = pair.server.receive(message(id=8, method="tools/call", params={"name": "tide"}))
    result = s.CallToolResult(content=[s.TextContent(text="high")], result_type="complete")
    assert finished(pair.server, event, result) == {"content": [{"type": "text", "text": "high"}]}


@pytest.mark.requirement("CACHE-01", "CACHE-02", "CACHE-03", "TRAP-83")
@pytest.mark.parametrize(
    "row", [row for row in METHODS.values() if row.is_cacheable], ids=lambda row: row.name
)
def test_a_cacheable_result_has_a_time_which_is_zero_by_default(server, ask, valid_params, row):
    if row.name == "server/discover":
        return  # see above
    event = ask(server, row.name, **msgspec.to_builtins(valid_params[row.name]))
    empty = {
        field: []
        for field in ("tools", "prompts", "resources", "resource_templates", "contents")
        if field in row.result.__struct_fields__
    }
    result = finished(server, event, row.result(**empty))
    assert (result["ttlMs"], result["cacheScope"]) == (0, "private")
    kept = row.result(**empty, ttl_ms=1500, cache_scope="public")
    again = ask(server, row.name, id=2, **msgspec.to_builtins(valid_params[row.name]))
    result = finished(server, again, kept)
    assert (result["ttlMs"], result["cacheScope"]) == (1500, "public")


@pytest.mark.requirement("MRTR-04", "CACHE-04", "BASE-37")
def test_a_result_that_requires_input_has_its_type_and_no_cache_time(server, ask):
    event = ask(server, "resources/read", uri="log://today")
    result = finished(server, event, s.InputRequiredResult(request_state="later"))
    assert result["resultType"] == "input_required"
    assert result["requestState"] == "later"
    assert "ttlMs" not in result
    assert "cacheScope" not in result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"{}", {"resultType": "complete", "_meta": "ours"}),
        (b' { "a": 1}', {"a": 1, "resultType": "complete", "_meta": "ours"}),
        (b'{"resultType":"task"}', {"resultType": "task", "_meta": "ours"}),
        (b'{"_meta":{},"resultType":"complete"}', {"resultType": "complete", "_meta": "ours"}),
        (b'{"_meta" : null , "resultType": null}', {"resultType": "complete", "_meta": "ours"}),
    ],
)
def test_an_encoded_result_gets_the_missing_members(server, ask, text, expected):
    event = ask(server, "tools/list")
    ours = {SERVER_INFO: {"name": "server", "version": "1"}}
    expected = {key: ours if value == "ours" else value for key, value in expected.items()}
    event.request.move(IncomingTrigger.START)
    message = server.response(event.request, msgspec.Raw(text))
    assert json.loads(message)["result"] == expected
    assert message.count(b"_meta") == message.count(b"resultType") == 1


@pytest.mark.requirement("META-18")
@pytest.mark.parametrize("info", [None, {"name": "another", "version": "2"}])
def test_an_encoded_result_keeps_its_own_metadata(server, ask, info):
    metadata = {"x/y": 1} | ({SERVER_INFO: info} if info else {})
    result = finished(
        server, ask(server, "tools/list"), msgspec.Raw(json.dumps({"_meta": metadata}))
    )
    assert result["_meta"] == {SERVER_INFO: {"name": "server", "version": "1"}} | metadata


def test_metadata_that_are_no_object_cannot_be_sent(server, ask):
    event = ask(server, "tools/list")
    event.request.move(IncomingTrigger.START)
    with pytest.raises(LocalProtocolError, match="_meta of a result must be an object"):
        server.response(event.request, msgspec.Raw(b'{"_meta":5}'))


# Messages that need a session.


@pytest.mark.requirement("BASE-22", "ELIC-06", "ROOT-04", "SAMP-07", "ROOT-07")
@pytest.mark.parametrize(
    "method",
    ["elicitation/create", "sampling/createMessage", "roots/list", "tools/call"],
)
def test_a_server_sends_no_requests_without_a_session(server, valid_params, method):
    with pytest.raises(LocalProtocolError):
        server.open_request(method, valid_params[method], now=0.0)


def test_notifications_belong_to_a_stateless_request(server, stateless_client, ask, valid_params):
    event = ask(server, "subscriptions/listen", notifications={})
    notification = server.notification(
        "notifications/tools/list_changed", s.EmptyParams(), request=event.request
    )
    assert json.loads(notification)["method"] == "notifications/tools/list_changed"
    acknowledged = "notifications/subscriptions/acknowledged"
    opened = stateless_client.open_request("subscriptions/listen", {"notifications": {}}, now=0.0)
    params = replace(valid_params[acknowledged], meta={SUBSCRIPTION_ID: opened.id})
    notification = server.notification(acknowledged, params, request=event.request)
    arrived = stateless_client.receive(notification)
    assert isinstance(arrived, NotificationReceived)
    assert arrived.request is opened
    with pytest.raises(LocalProtocolError, match="protocol version 2025-11-25 has no"):
        server.notification(acknowledged, valid_params[acknowledged])


def test_a_notification_of_a_client_may_be_stateless_too(connect, message):
    row = "notifications/here"
    server = connect(Role.SERVER, methods={**METHODS, row: custom_method(row)})
    assert isinstance(server.receive(message(method=row, params={})), Ignored)
    event = server.receive(message(method=row, params={"_meta": META}))
    assert isinstance(event, NotificationReceived)


# Clients of stateless servers.


@pytest.mark.requirement("META-11", "META-12", "META-13", "VER-01", "ELIC-02", "ROOT-02", "SAMP-02")
def test_each_stateless_request_carries_all_metadata(stateless_client):
    stateless_client.request_metadata = lambda: {LOG_LEVEL: "info", "traceparent": "t"}
    opened = stateless_client.open_request("tools/list", None, now=0.0, wants_progress=True)
    assert json.loads(opened.message)["params"]["_meta"] == {
        PROTOCOL_VERSION: STATELESS,
        CLIENT_CAPABILITIES: {
            "roots": {},
            "sampling": {},
            "elicitation": {"form": {}, "url": {}},
        },
        CLIENT_INFO: {"name": "client", "version": "1"},
        LOG_LEVEL: "info",
        "traceparent": "t",
        "progressToken": opened.id,
    }


@pytest.mark.requirement("DISC-02", "VER-12")
def test_a_client_sends_discover_before_the_negotiation(connect):
    client = connect(Role.CLIENT)
    sent = json.loads(client.open_request("server/discover", None, now=0.0).message)
    assert sent["params"]["_meta"][PROTOCOL_VERSION] == STATELESS
    with pytest.raises(LocalProtocolError, match="not allowed now"):
        client.open_request("tools/list", None, now=0.0)


@pytest.mark.requirement("DISC-06", "VER-13", "DISC-07")
def test_a_client_selects_the_newest_common_stateless_version(connect):
    client = connect(Role.CLIENT)
    info = {"name": "sea", "version": "2"}
    client.accept_discovery(
        discovered(
            ["2030-01-01", STATELESS, "2025-11-25"], meta={SERVER_INFO: info}, instructions="x"
        )
    )
    assert client.protocol_version is PROTOCOL_VERSIONS[STATELESS]
    assert client.peer_info == s.Implementation(name="sea", version="2")
    assert client.instructions == "x"
    assert client.state is SessionState.FRESH


@pytest.mark.requirement("DISC-07", "META-19")
def test_a_malformed_server_name_is_ignored(connect):
    client = connect(Role.CLIENT)
    client.accept_discovery(discovered([STATELESS], meta={SERVER_INFO: {"name": 5}}))
    assert client.peer_info is None


@pytest.mark.requirement("TRAP-19", "DISC-06")
def test_a_legacy_version_is_not_selected_by_discovery(connect):
    client = connect(Role.CLIENT)
    with pytest.raises(RemoteProtocolError, match="versions 2025-11-25; this client supports"):
        client.accept_discovery(discovered(["2025-11-25"]))
    assert client.peer is None
    with pytest.raises(RemoteProtocolError, match=r"versions \(none\)"):
        client.accept_discovery(discovered([]))


def answered(client, method, result, params=None):
    opened = client.open_request(method, params, now=0.0)
    event = client.receive(
        json.dumps({"jsonrpc": "2.0", "id": opened.id, "result": result}).encode()
    )
    assert isinstance(event, ResponseReceived)
    return client.decode_result(opened, event.result)


@pytest.mark.requirement("BASE-38", "MRTR-02")
def test_a_client_reads_a_result_by_its_kind(stateless_client):
    call = s.CallToolParams(name="tide")
    assert isinstance(
        answered(stateless_client, "tools/call", {"content": []}, call), s.CallToolResult
    )
    complete = {"content": [], "resultType": "complete"}
    assert isinstance(answered(stateless_client, "tools/call", complete, call), s.CallToolResult)
    wanted = {"resultType": "input_required", "requestState": "s"}
    assert answered(stateless_client, "tools/call", wanted, call).request_state == "s"


@pytest.mark.requirement("BASE-39", "BASE-40", "BASE-41", "MRTR-03", "TRAP-95")
def test_a_kind_that_was_not_to_be_expected_is_an_error(stateless_client):
    with pytest.raises(RemoteProtocolError, match="unknown type: 'task'"):
        answered(stateless_client, "tools/list", {"resultType": "task", "tools": []})
    with pytest.raises(RemoteProtocolError, match="unknown type: 'input_required'"):
        answered(stateless_client, "tools/list", {"resultType": "input_required", "tools": []})
    with pytest.raises(RemoteProtocolError, match="not a valid result"):
        answered(stateless_client, "tools/list", {"resultType": 5, "tools": []})
    stateless_client.result_types = {"task": s.EmptyResult}
    assert answered(stateless_client, "tools/list", {"resultType": "task"}) == s.EmptyResult(
        result_type="task"
    )


@pytest.mark.requirement("BASE-22", "BASE-23", "STDIO-11", "STDIO-12")
def test_a_stateless_client_answers_no_requests(stateless_client, message):
    event = stateless_client.receive(message(id=4, method="roots/list"))
    assert isinstance(event, Ignored)
    assert event.counter == "request of a server"


@pytest.mark.requirement("ROOT-07")
def test_a_stateless_client_sends_no_roots_notification(stateless_client):
    with pytest.raises(LocalProtocolError, match="has no notifications/roots/list_changed"):
        stateless_client.notification("notifications/roots/list_changed")
