"""Routing of HTTP requests."""

import json

import pytest

from mcp_trio._jsonrpc.channel_messages import AuthInfo
from mcp_trio._jsonrpc.messages import Decoder, Request
from mcp_trio._protocol.http_headers import HttpRequest
from mcp_trio._protocol.http_requests import (
    STATUS_OF_ERROR,
    Endpoint,
    EndSession,
    KnownSession,
    OpenSession,
    OpenStream,
    Rejection,
    SessionMessage,
    StatelessMessage,
    text_of_body,
)
from mcp_trio._protocol.metadata import (
    CLIENT_CAPABILITIES,
    PROTOCOL_VERSION,
    ToolCall,
)
from mcp_trio._protocol.versions import PROTOCOL_VERSIONS
from mcp_trio.limits import MessageLimits

LEGACY = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
STATELESS = "2026-07-28"
BOTH = "application/json, text/event-stream"

SESSIONS = {
    "s": KnownSession(PROTOCOL_VERSIONS["2025-11-25"]),
    "old": KnownSession(PROTOCOL_VERSIONS["2025-03-26"]),
    "young": KnownSession(None),
    "mine": KnownSession(PROTOCOL_VERSIONS["2025-11-25"], "me"),
}
REGION = {"Region": ("region",)}


def endpoint(*protocol_versions):
    return Endpoint(
        protocol_versions=protocol_versions or [STATELESS, *LEGACY],
        decoder=Decoder(MessageLimits(json_depth_max=32, batch_size_max=8)),
        find_session=SESSIONS.get,
        find_parameter_paths={"tide": REGION}.get,
    )


DUAL, OLD, NEW = endpoint(), endpoint(*LEGACY), endpoint(STATELESS)


def http_request(method="POST", *, principal=None, **fields):
    fields = {"Accept": BOTH, "Content-Type": "application/json"} | {
        name.replace("_", "-"): value for name, value in fields.items()
    }
    lines = [(name.encode(), it.encode()) for name, it in fields.items() if it is not None]
    return HttpRequest.of(
        method, "/mcp", lines, auth=None if principal is None else AuthInfo(subject=principal)
    )


def judged(at, message, method="POST", **fields):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return at.route(http_request(method, **fields), body)


def request(method="ping", id=1, **params):  # noqa: A002 - as on the wire
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def meta(version=STATELESS, **more):
    return {"_meta": {PROTOCOL_VERSION: version, CLIENT_CAPABILITIES: {}, **more}}


def stateless(method="tools/list", **params):
    return request(method, **{**meta(), **params})


NOTE = {"jsonrpc": "2.0", "method": "notifications/initialized"}
RESPONSE = {"jsonrpc": "2.0", "id": 7, "result": {}}
ERROR = {"jsonrpc": "2.0", "id": 7, "error": {"code": -1, "message": "no"}}
S = {"Mcp_Session_Id": "s"}
M = {"MCP_Protocol_Version": STATELESS}
LIST = {**M, "Mcp_Method": "tools/list"}
HELLO = request("initialize", protocolVersion="2025-11-25")


def rejected(routing_result, status, code=-32600, id=None):  # noqa: A002 - as on the wire
    assert isinstance(routing_result, Rejection), routing_result
    assert (routing_result.status, routing_result.code, routing_result.id) == (status, code, id), (
        routing_result
    )
    answer = json.loads(routing_result.body())
    assert (answer["error"]["code"], answer["error"]["message"]) == (code, routing_result.text)
    assert answer.get("id") == id
    return routing_result


# Methods and media types.


@pytest.mark.requirement("HTTP-01", "MHTTP-01", "HTTP-54")
@pytest.mark.parametrize("at", [DUAL, OLD, NEW], ids=["dual", "old", "new"])
@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "OPTIONS", "TRACE", "post"])
def test_other_http_methods_are_rejected_with_the_allowed_ones(at, method):
    routing_result = rejected(judged(at, b"", method), 405)
    allowed = "POST" if at is NEW else "GET, POST, DELETE"
    assert routing_result.headers == [("Allow", allowed)]


@pytest.mark.requirement("MHTTP-02", "HTTP-29", "TRAP-27")
@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(("at", "fields"), [(NEW, {}), (NEW, S), (DUAL, M), (DUAL, S | M)])
def test_stateless_clients_only_post(at, method, fields):
    routing_result = rejected(judged(at, b"", method, **fields), 405)
    assert routing_result.headers == [("Allow", "POST")]


@pytest.mark.parametrize("media_type", [None, "", "text/plain", "application/json-rpc", "json"])
def test_a_post_is_json(media_type):
    rejected(judged(DUAL, NOTE, Content_Type=media_type, **S), 415)


@pytest.mark.parametrize("media_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_the_content_type_ignores_case_and_parameters(media_type):
    assert isinstance(judged(DUAL, NOTE, Content_Type=media_type, **S), SessionMessage)


@pytest.mark.requirement("TRAP-31")
@pytest.mark.parametrize(
    "message", [request(), NOTE, stateless()], ids=["request", "note", "stateless"]
)
@pytest.mark.parametrize(
    ("accept", "is_taken"),
    [
        (None, True),
        (BOTH, True),
        ("*/*", True),
        ("application/*", True),
        ("application/json", True),
        ("text/event-stream;q=0.1", True),
        ("text/html", False),
        ("application/json;q=0, text/event-stream;q=0", False),
    ],
)
def test_only_requests_that_accept_neither_type_are_not_acceptable(message, accept, is_taken):
    fields = LIST if "_meta" in message.get("params", {}) else S
    routing_result = judged(DUAL, message, Accept=accept, **fields)
    if is_taken:
        assert isinstance(routing_result, SessionMessage | StatelessMessage)
    else:
        rejected(routing_result, 406)


@pytest.mark.requirement("HTTP-11", "MHTTP-12")
@pytest.mark.parametrize("at", [DUAL, OLD, NEW], ids=["dual", "old", "new"])
@pytest.mark.parametrize(
    ("body", "code", "id_"),
    [
        (b"", -32700, None),
        (b"{", -32700, None),
        (b"\xff", -32700, None),
        (b"1", -32600, None),
        (b"[]", -32600, None),
        (b'{"jsonrpc":"1.0","id":3,"method":"ping"}', -32600, 3),
        (b'{"jsonrpc":"2.0","id":3}', -32600, 3),
    ],
)
def test_a_malformed_body_is_a_bad_request(at, body, code, id_):
    rejected(judged(at, body, **S), 400, code, id_)


# Sessions.


@pytest.mark.requirement("TRAP-35")
@pytest.mark.parametrize("at", [DUAL, OLD], ids=["dual", "old"])
@pytest.mark.parametrize("version", [None, "2025-11-25", "2099-01-01"])
def test_initialize_opens_a_session_whatever_its_headers(at, version):
    routing_result = judged(at, HELLO, MCP_Protocol_Version=version)
    assert isinstance(routing_result, OpenSession)
    assert routing_result.request.id == 1


@pytest.mark.parametrize("session", ["s", "gone"])
def test_a_session_does_not_begin_in_another(session):
    rejected(judged(DUAL, HELLO, Mcp_Session_Id=session), 400, id=1)


@pytest.mark.parametrize(
    ("message", "awaited"),
    [(request(), [1]), (request(id="a"), ["a"]), (NOTE, []), (RESPONSE, []), (ERROR, [])],
)
@pytest.mark.parametrize("at", [DUAL, OLD], ids=["dual", "old"])
def test_a_request_with_a_session_id_belongs_to_the_session(at, message, awaited):
    routing_result = judged(at, message, **S)
    assert isinstance(routing_result, SessionMessage)
    assert (routing_result.session, list(routing_result.awaited)) == ("s", awaited)


@pytest.mark.parametrize("at", [DUAL, OLD], ids=["dual", "old"])
def test_a_tool_call_in_a_session_is_decoded_in_one_pass(at):
    call = request("tools/call", name="tide", arguments={})
    routing_result = judged(at, call, **S)
    assert isinstance(routing_result.message, ToolCall)
    assert (routing_result.session, list(routing_result.awaited)) == ("s", [1])
    invalid = request("tools/call", name=1)  # the session reports it
    assert isinstance(judged(at, invalid, **S).message, Request)


def test_a_stateless_tool_call_comes_with_its_decoded_params():
    fields = M | {"Mcp_Method": "tools/call", "Mcp_Name": "buoy"}
    routing_result = judged(DUAL, stateless("tools/call", name="buoy", arguments={}), **fields)
    call = routing_result.message
    assert isinstance(call, ToolCall)
    assert (call.id, call.params.name) == (1, "buoy")
    more = stateless("tools/call", name="buoy", arguments={}) | {"more": 1}
    assert judged(DUAL, more, **fields).message == call
    invalid = stateless("tools/call", name="buoy", requestState=1)  # the connection reports it
    assert isinstance(judged(DUAL, invalid, **fields).message, Request)


@pytest.mark.requirement("HTTP-49", "TRAP-34")
@pytest.mark.parametrize("at", [DUAL, OLD], ids=["dual", "old"])
@pytest.mark.parametrize(
    ("method", "message", "id_"),
    [
        ("POST", request(), 1),
        ("POST", NOTE, None),
        ("POST", RESPONSE, None),
        ("POST", [HELLO], None),
        ("GET", b"", None),
        ("DELETE", b"", None),
    ],
)
def test_a_request_without_a_session_id_is_a_bad_request(at, method, message, id_):
    rejected(judged(at, message, method), 400, id=id_)


@pytest.mark.requirement("HTTP-51", "TRAP-34")
@pytest.mark.parametrize("at", [DUAL, OLD], ids=["dual", "old"])
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize("session", ["gone", "", "S", "s, s", "mine"])
def test_a_session_that_is_not_there_is_not_found(at, method, session):
    id_ = 1 if method == "POST" else None
    rejected(judged(at, request(), method, Mcp_Session_Id=session), 404, id=id_)


@pytest.mark.requirement("HTTP-59", "HTTP-61")
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize(
    ("session", "principal", "is_found"),
    [("mine", "me", True), ("mine", "you", False), ("mine", None, False), ("s", "me", False)],
)
def test_a_session_is_not_found_for_another_principal(method, session, principal, is_found):
    routing_result = judged(DUAL, request(), method, Mcp_Session_Id=session, principal=principal)
    if is_found:
        assert not isinstance(routing_result, Rejection)
    else:
        rejected(routing_result, 404, id=1 if method == "POST" else None)


@pytest.mark.requirement("HTTP-58", "TRAP-36")
@pytest.mark.parametrize("at", [DUAL, OLD], ids=["dual", "old"])
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.parametrize(
    ("version", "is_fine"),
    [
        (None, True),
        ("2025-11-25", True),
        ("2025-03-26", True),
        ("2099-01-01", False),
        ("", False),
        ("2025-11-25, 2025-11-25", False),
    ],
)
def test_an_unsupported_version_is_a_bad_request(at, method, version, is_fine):
    routing_result = judged(at, request(), method, MCP_Protocol_Version=version, **S)
    if is_fine:
        assert not isinstance(routing_result, Rejection)
    else:
        # Not as a stateless error: a client that reads one takes this server for stateless (TRAP-23).
        rejected(routing_result, 400, id=1 if method == "POST" else None)


def test_a_legacy_server_rejects_a_stateless_version_header():
    rejected(judged(OLD, request(), **S, **M), 400, id=1)


def test_a_legacy_server_ignores_stateless_metadata():
    assert isinstance(judged(OLD, stateless(), **S), SessionMessage)
    rejected(judged(OLD, stateless(), **LIST), 400, id=1)


@pytest.mark.parametrize(
    ("accept", "is_taken"),
    [("text/event-stream", True), (None, True), ("*/*", True), ("application/json", False)],
)
def test_a_get_takes_events(accept, is_taken):
    routing_result = judged(DUAL, b"", "GET", Accept=accept, **S)
    if is_taken:
        assert routing_result == OpenStream("s", None)
    else:
        rejected(routing_result, 406)


def test_a_get_may_name_the_last_event():
    assert judged(DUAL, b"", "GET", Last_Event_ID="3-4", **S) == OpenStream("s", "3-4")


def test_a_delete_ends_a_session_whatever_it_accepts():
    assert judged(DUAL, b"", "DELETE", Accept="text/html", **S) == EndSession("s")


def test_a_batch_is_for_a_session_that_has_batches():
    batch = [request(id=1), NOTE, request(id="a"), RESPONSE]
    routing_result = judged(DUAL, batch, Mcp_Session_Id="old")
    assert isinstance(routing_result, SessionMessage)
    assert list(routing_result.awaited) == [1, "a"]
    for session in ("s", "young"):
        rejected(judged(DUAL, batch, Mcp_Session_Id=session), 400)


@pytest.mark.requirement("HTTP-11")
@pytest.mark.parametrize(("bad", "id_"), [(1, None), ({"jsonrpc": "2.0", "id": 9}, 9)])
def test_a_batch_with_a_malformed_message_is_rejected(bad, id_):
    rejected(judged(DUAL, [request(), bad], Mcp_Session_Id="old"), 400, -32600, id_)


# Stateless messages.


@pytest.mark.requirement("MHTTP-03", "MHTTP-04", "TRAP-27")
@pytest.mark.parametrize("at", [DUAL, NEW], ids=["dual", "new"])
@pytest.mark.parametrize("more", [{}, S, {"Mcp_Session_Id": "gone"}, {"Last_Event_ID": "1-1"}])
def test_a_stateless_request_is_complete_in_itself(at, more):
    routing_result = judged(at, stateless(), **LIST, **more)
    assert isinstance(routing_result, StatelessMessage)
    assert (routing_result.message.id, routing_result.is_incomplete) == (1, False)


@pytest.mark.requirement("TRAP-29", "META-15")
@pytest.mark.parametrize("at", [DUAL, NEW], ids=["dual", "new"])
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"_meta": {}},
        {"_meta": None},
        {"_meta": {PROTOCOL_VERSION: STATELESS}},
        {"_meta": {CLIENT_CAPABILITIES: {}}},
    ],
    ids=str,
)
def test_a_stateless_request_without_metadata_is_incomplete(at, params):
    routing_result = judged(at, request("tools/list", **params), **LIST)
    if params.get("_meta"):
        assert isinstance(routing_result, StatelessMessage)
        assert routing_result.is_incomplete
    else:
        rejected(routing_result, 400, -32602, 1)


def test_a_message_without_params_is_rejected_too():
    routing_result = judged(DUAL, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, **LIST)
    rejected(routing_result, 400, -32602, 1)


def test_params_that_are_not_an_object_are_left_to_the_connection():
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":[1]}'
    routing_result = judged(DUAL, body, **LIST)
    assert isinstance(routing_result, StatelessMessage | Rejection)
    if isinstance(routing_result, Rejection):
        rejected(routing_result, 400, id=1)


@pytest.mark.requirement("HDR-07", "MHTTP-28", "MHTTP-30", "TRAP-47", "HDR-36")
@pytest.mark.parametrize("at", [DUAL, NEW], ids=["dual", "new"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"MCP_Protocol_Version": None},
        {"MCP_Protocol_Version": "2025-11-25"},
        {"MCP_Protocol_Version": "v999"},
        {"Mcp_Method": None},
        {"Mcp_Method": "TOOLS/CALL"},
        {"Mcp_Name": None},
        {"Mcp_Name": "ebb"},
        {"Mcp_Name": "=?base64?SGVsbG8?="},
        {"Mcp_Param_Region": None},
        {"Mcp_Param_Region": "sea"},
    ],
    ids=str,
)
def test_headers_and_body_must_agree(at, fields):
    message = stateless("tools/call", name="tide", arguments={"region": "bay"})
    headers = {**M, "Mcp_Method": "tools/call", "Mcp_Name": "tide", "Mcp_Param_Region": "bay"}
    routing_result = judged(at, message, **(headers | fields))
    if fields:
        rejected(routing_result, 400, -32020, 1)
    else:
        assert isinstance(routing_result, StatelessMessage)


@pytest.mark.requirement("MHTTP-27", "TRAP-30")
def test_an_unknown_version_in_headers_and_body_is_left_to_the_connection():
    fields = LIST | {"MCP_Protocol_Version": "v999"}
    routing_result = judged(DUAL, request("tools/list", **meta("v999")), **fields)
    assert isinstance(routing_result, StatelessMessage)


def test_a_version_that_is_no_text_is_rejected_by_the_name_of_its_field():
    routing_result = judged(DUAL, request("tools/list", **meta(7)), **LIST)
    assert "protocolVersion" in rejected(routing_result, 400, -32602, 1).text


@pytest.mark.requirement("HDR-31")
@pytest.mark.parametrize("name", ["ebb", 7, None])
def test_of_a_tool_that_is_not_known_no_argument_is_sent_in_a_header(name):
    message = stateless("tools/call", name=name, arguments={"region": "bay"})
    header = name if isinstance(name, str) else None
    fields = {**M, "Mcp_Method": "tools/call", "Mcp_Name": header, "Mcp_Param_Region": "sea"}
    assert isinstance(judged(DUAL, message, **fields), StatelessMessage | Rejection)
    if header:
        assert isinstance(judged(DUAL, message, **fields), StatelessMessage)


@pytest.mark.parametrize("at", [DUAL, NEW], ids=["dual", "new"])
@pytest.mark.parametrize("message", [RESPONSE, ERROR, [stateless()], [NOTE, stateless()]], ids=str)
def test_a_stateless_post_has_one_request_or_notification(at, message):
    rejected(judged(at, message, **LIST), 400)


@pytest.mark.requirement("TRAP-57")
@pytest.mark.parametrize("at", [DUAL, NEW], ids=["dual", "new"])
def test_a_stateless_notification_needs_no_name(at):
    message = {"jsonrpc": "2.0", "method": "notifications/tide", "params": {"name": "x"}}
    assert isinstance(judged(at, message, **M), StatelessMessage)


@pytest.mark.requirement("MHTTP-30", "TRAP-28", "VER-11")
@pytest.mark.parametrize(
    ("message", "id_"), [(HELLO, 1), (request(), 1), (NOTE, None), ([HELLO], None)], ids=str
)
def test_a_stateless_server_rejects_a_missing_version_with_its_versions(message, id_):
    rejection = rejected(judged(NEW, message), 400, -32020, id_)
    assert STATELESS in rejection.text
    assert json.loads(rejection.body())["error"]["data"] == {"supported": [STATELESS]}


@pytest.mark.requirement("MHTTP-26", "MHTTP-27", "TRAP-53", "HDR-07")
def test_the_status_of_an_error_follows_from_its_code():
    of_specification = {-32601: 404, -32020: 400, -32021: 400, -32022: 400}
    assert {**of_specification, 429: 429} == STATUS_OF_ERROR  # the code of rate limits is our own


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"error":{"code":1,"message":"too\\nmany"}}', "too many"),
        (b"<h1>Bad\n Gateway</h1>", "<h1>Bad Gateway</h1>"),
        (b'{"error":{"message":"\xff"}}', '{"error":{"message":"\ufffd"}}'),
    ],
)
def test_the_text_of_a_body_is_that_of_its_error_or_the_body(body, text):
    assert text_of_body(body) == text
