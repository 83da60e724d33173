"""Requests with several faults are told of the first, in one order, at each revision."""

import json

import pytest

from mcp_trio import types as s
from mcp_trio._protocol.events import Ignored, Reply, RequestReceived
from mcp_trio._protocol.metadata import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
)

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
    assert isinstance(event, Reply)
    return json.loads(event.message)["error"]["code"]


@pytest.fixture
def shaken(connect, frame):
    """A server behind the handshake of a revision, or one that a stateless client meets."""

    def shaken(protocol_version):
        capabilities = s.ServerCapabilities(tools=s.ToolsCapability(), logging={})
        server = connect(Role.SERVER, our_capabilities=capabilities)
        if protocol_version != STATELESS:
            info = {"name": "reed", "version": "3"}
            hello = {"protocolVersion": protocol_version, "capabilities": {}, "clientInfo": info}
            server.receive(frame(id=0, method="initialize", params=hello))
            server.receive(frame(method="notifications/initialized"))
            assert server.protocol_version.name == protocol_version
        return server

    return shaken


@pytest.mark.requirement("TRAP-30", "ERR-15", "VER-02")
@pytest.mark.parametrize(("meta", "method", "code"), FAULTS)
def test_who_speaks_comes_before_what_is_asked_and_that_before_its_params(
    shaken, frame, meta, method, code
):
    params = {"_meta": {**META, **meta}, "name": 5}
    assert (
        error_code_for(shaken(STATELESS).receive(frame(id=1, method=method, params=params))) == code
    )


@pytest.mark.requirement("TRAP-30")
def test_json_comes_before_the_shape_and_that_before_the_version(shaken):
    server = shaken(STATELESS)
    assert error_code_for(server.receive(b'{"id":1,"method":')) == PARSE_ERROR
    meta = json.dumps({PROTOCOL_VERSION: "2030-01-01"}).encode()
    bad = b'{"jsonrpc":"1.0","id":1,"method":"tools/list","params":{"_meta":%b}}' % meta
    assert error_code_for(server.receive(bad)) == INVALID_REQUEST


@pytest.mark.requirement("TRAP-11", "BASE-16")
@pytest.mark.parametrize("protocol_version", PROTOCOL_VERSIONS)
@pytest.mark.parametrize("params", [{}, {"params": {}}, {"params": {"_meta": {}}}])
def test_a_list_is_asked_for_without_params_where_there_is_a_session(
    shaken, connect, frame, protocol_version, params
):
    server = shaken(protocol_version)
    if protocol_version == STATELESS:
        server = connect(Role.SERVER, protocol_versions=(STATELESS,))
    event = server.receive(frame(id=1, method="tools/list", **params))
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
def test_a_bad_notification_is_counted_and_not_answered(shaken, frame, protocol_version, bad):
    server = shaken(protocol_version)
    if protocol_version == STATELESS:
        bad = {**bad, "params": bad.get("params", {"_meta": META})}
    assert isinstance(server.receive(frame(**bad)), Ignored)
    assert server.counts.total() == 1


@pytest.mark.requirement("TRAP-20", "LIFE-12")
@pytest.mark.parametrize("protocol_version", LEGACY)
def test_a_request_before_initialized_is_taken_once_the_handshake_was_answered(
    connect, frame, protocol_version
):
    server = connect(Role.SERVER)
    info = {"name": "hasty", "version": "1"}
    hello = {"protocolVersion": protocol_version, "capabilities": {}, "clientInfo": info}
    assert error_code_for(server.receive(frame(id=1, method="tools/list"))) == INVALID_REQUEST
    assert "result" in json.loads(server.receive(frame(id=2, method="ping")).message)
    assert server.receive(frame(id=3, method="initialize", params=hello)).negotiated
    assert isinstance(server.receive(frame(id=4, method="tools/list")), RequestReceived)
    assert "result" in json.loads(server.receive(frame(id=5, method="ping")).message)
