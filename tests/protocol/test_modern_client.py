"""A client of a stateless server: what it says in each request, and what it reads in results."""

import json

import pytest

from mcp_trio import types as s
from mcp_trio._protocol.connection import SessionState
from mcp_trio._protocol.events import Ignored, ResponseReceived
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    SERVER_INFO,
)
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.errors import LocalProtocolError, RemoteProtocolError
from tests.protocol.discovered import discovered

STATELESS = "2026-07-28"


@pytest.mark.requirement("META-11", "META-12", "META-13", "VER-01", "ELIC-02", "ROOT-02", "SAMP-02")
def test_each_request_of_a_client_says_everything(stateless_client):
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
def test_a_client_asks_before_it_knows_anything(connect):
    client = connect(Role.CLIENT)
    sent = json.loads(client.open_request("server/discover", None, now=0.0).message)
    assert sent["params"]["_meta"][PROTOCOL_VERSION] == STATELESS
    with pytest.raises(LocalProtocolError, match="not allowed now"):
        client.open_request("tools/list", None, now=0.0)


@pytest.mark.requirement("DISC-06", "VER-13", "DISC-07")
def test_a_client_takes_the_newest_stateless_version_that_both_speak(connect):
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
def test_a_server_that_says_nonsense_of_its_name_has_none(connect):
    client = connect(Role.CLIENT)
    client.accept_discovery(discovered([STATELESS], meta={SERVER_INFO: {"name": 5}}))
    assert client.peer_info is None


@pytest.mark.requirement("TRAP-19", "DISC-06")
def test_a_legacy_version_in_the_list_is_none_for_metadata(connect):
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
def test_a_client_of_a_stateless_server_answers_no_requests(stateless_client, frame):
    event = stateless_client.receive(frame(id=4, method="roots/list"))
    assert isinstance(event, Ignored)
    assert event.counted == "request of a server"


@pytest.mark.requirement("ROOT-07")
def test_a_stateless_client_does_not_tell_of_changed_roots(stateless_client):
    with pytest.raises(LocalProtocolError, match="has no notifications/roots/list_changed"):
        stateless_client.notification("notifications/roots/list_changed")
