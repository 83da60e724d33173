"""Requests, notifications and answers that are wrong: each has its defined treatment."""

import json
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Limits
from mcp_trio._jsonrpc.messages import DecodedMessage, Request
from mcp_trio._protocol.connection import SessionState
from mcp_trio._protocol.events import (
    Ignored,
    NotificationReceived,
    Reply,
    RequestReceived,
    ResponseReceived,
)
from mcp_trio._protocol.methods import METHODS, Role
from mcp_trio.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RemoteProtocolError,
)
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import Oversized


@pytest.mark.requirement("ERR-01")
def test_the_codes_are_those_of_json_rpc():
    codes = (PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS, INTERNAL_ERROR)
    assert codes == (-32700, -32600, -32601, -32602, -32603)


# A frame, and the id and code that answer it; no id means that nothing may be sent.
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
def test_a_server_answers_a_bad_frame_whose_id_it_can_read(ready, bad, id_, code):
    server = ready(Role.SERVER, protocol_versions=["2024-11-05"])
    event = server.receive(bad)
    assert event.counted == "malformed"
    assert server.counts["malformed"] == 1
    if id_ is None:
        assert isinstance(event, Ignored)
    else:
        answer = json.loads(event.message)
        assert answer["id"] == id_
        assert answer["error"]["code"] == code


@pytest.mark.parametrize(("bad", "id_", "code"), BAD_FRAMES)
def test_a_client_counts_a_bad_frame_and_sends_nothing(ready, bad, id_, code):
    client = ready(Role.CLIENT)
    assert isinstance(client.receive(bad), Ignored)
    assert client.counts == {"malformed": 1}


def test_a_frame_over_the_limit_is_answered_with_the_setting_that_it_broke(ready):
    server = ready(
        Role.SERVER,
        protocol_versions=["2024-11-05"],
        limits=Limits(messages=MessageLimits(bytes_max=100)),
    )
    head = b'{"jsonrpc":"2.0","id":"big","method":"tools/call","params":{"name":"aaa'
    answer = json.loads(server.receive(Oversized(size=5000, prefix=head)).message)
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
def test_a_request_that_cannot_be_served_is_answered_with_its_code(pair, frame, members, code):
    event = pair.server.receive(frame(id="x", **members))
    assert isinstance(event, Reply)
    assert event.counted == "rejected"
    assert json.loads(event.message)["error"]["code"] == code
    assert len(pair.server.incoming) == 0


@pytest.mark.requirement("BASE-32")
def test_a_client_answers_a_request_that_it_does_not_know(pair, frame):
    answer = json.loads(pair.client.receive(frame(id=1, method="tools/list")).message)
    assert answer["error"]["code"] == METHOD_NOT_FOUND


@pytest.mark.requirement("BASE-12")
def test_an_error_message_stays_short_whatever_it_quotes(ready, frame):
    server = ready(Role.SERVER, limits=Limits(messages=MessageLimits(error_text_chars_max=40)))
    event = server.receive(frame(id=1, method="m" * 10_000))
    message = json.loads(event.message)["error"]["message"]
    assert message == event.text
    assert message.startswith("method not found: mmm")
    assert len(message) == 41
    assert "\n" not in message
    assert len(server.receive(frame(method="n" * 10_000)).text) == 41


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
def test_a_bad_notification_is_counted_and_never_answered(pair, frame, members):
    assert isinstance(pair.server.receive(frame(**members)), Ignored)
    assert pair.server.counts.total() == 1


def test_a_good_notification_arrives_with_its_params(pair):
    leaving = pair.server.notification(
        "notifications/message", METHODS["notifications/message"].params(level="info", data=[0])
    )
    event = pair.client.receive(leaving)
    assert isinstance(event, NotificationReceived)
    assert (event.method.name, event.params.data) == ("notifications/message", [0])


@pytest.mark.requirement("BASE-04")
def test_an_id_that_is_in_use_is_rejected_and_the_first_request_goes_on(pair, frame):
    first = pair.server.receive(frame(id=5, method="tools/list")).request
    for method in ("tools/list", "ping"):
        event = pair.server.receive(frame(id=5, method=method))
        assert event.counted == "duplicate id"
        assert json.loads(event.message)["error"]["code"] == INVALID_REQUEST
    assert pair.server.incoming.get(5) is first
    assert isinstance(pair.server.receive(frame(id="5", method="tools/list")), RequestReceived)
    assert pair.server.finish(first)
    assert isinstance(pair.server.receive(frame(id=5, method="tools/list")), RequestReceived)


@pytest.mark.requirement("BASE-02", "BASE-06")
@pytest.mark.parametrize(
    "id_", [0, -1, 2**53 + 1, 2**64, 10**90, "", "1", "é", "x" * 999], ids=repr
)
def test_an_id_comes_back_with_its_type_and_value(pair, frame, id_):
    event = pair.server.receive(frame(id=id_, method="ping"))
    answer = json.loads(event.message)
    assert answer["id"] == id_
    assert type(answer["id"]) is type(id_)
    assert pair.server.receive(frame(id=id_, method="tools/list")).request.id == id_


@pytest.mark.requirement("META-01", "BASE-17")
def test_meta_and_unknown_members_travel_without_harm(pair, frame):
    params = {"name": "tide", "_meta": {"trace": [1]}, "colour": "blue"}
    event = pair.server.receive(frame(id=1, method="tools/call", params=params, more=1))
    assert event.request.params.meta == {"trace": [1]}
    opened = pair.client.open_request("tools/list", None, now=0.0)
    result = {"tools": [], "_meta": {"cost": 3}, "other": None}
    answer = pair.client.receive(frame(id=opened.id, result=result))
    assert pair.client.decode_result(opened, answer.result).meta == {"cost": 3}


@pytest.mark.requirement("BASE-06", "BASE-09")
def test_an_answer_ends_the_request_with_its_id_and_type_once(pair, frame):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    wrong = pair.client.receive(frame(id=str(opened.id), result={}))
    assert wrong.counted == "unknown answer"
    answer = pair.client.receive(frame(id=opened.id, result={"tools": []}))
    assert isinstance(answer, ResponseReceived)
    assert answer.request is opened
    assert answer.error is None
    again = pair.client.receive(frame(id=opened.id, result={"tools": []}))
    assert again.counted == "unknown answer"


@pytest.mark.requirement("BASE-11")
def test_an_error_ends_its_request_and_one_without_an_id_ends_none(pair, frame):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    error = {"code": -32000, "message": "busy", "data": None}
    lost = pair.client.receive(frame(error=error))
    assert (lost.counted, "busy" in lost.text) == ("unknown answer", True)
    answer = pair.client.receive(frame(id=opened.id, error=error))
    assert (answer.error.code, answer.error.message) == (-32000, "busy")
    assert answer.result is None


def test_a_result_of_the_wrong_shape_is_the_peers_fault(pair, frame):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    answer = pair.client.receive(frame(id=opened.id, result={"tools": 3}))
    with pytest.raises(RemoteProtocolError, match=r"tools/list is not a valid result.*tools"):
        pair.client.decode_result(opened, answer.result)


@pytest.mark.parametrize("distance", range(-10, 160, 2))
def test_no_depth_of_nesting_makes_receive_raise(ready, distance):
    server = ready(Role.SERVER, limits=Limits(messages=MessageLimits(json_depth_max=100_000)))
    depth = sys.getrecursionlimit() - distance
    value = b"[" * depth + b"]" * depth
    head = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","arguments":{"x":'
    event = server.receive(head + value + b"}}}")
    if not isinstance(event, RequestReceived):
        assert json.loads(event.message)["error"]["code"] in {INVALID_PARAMS, INVALID_REQUEST}


def test_params_too_deep_for_the_stack_are_bad_params():
    deep = b'{"name":"a","arguments":{"x":%s}}' % (b"[" * 200_000 + b"]" * 200_000)
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


@given(
    role=st.sampled_from(Role),
    state=st.sampled_from(SessionState),
    frames=st.lists(st.one_of(OBJECTS, st.binary(max_size=40)), max_size=12),
)
def test_whatever_arrives_is_one_event_and_no_exception(ready, role, state, frames):
    connection = ready(role, state)
    for frame in frames:
        event = connection.receive(frame)
        if isinstance(event, Reply):
            json.loads(event.message)


def test_what_was_understood_on_its_way_is_not_read_again(ready):
    connection = ready(Role.SERVER)
    message = Request(4, "tools/list", None)
    event = connection.receive(DecodedMessage(b"nothing that could be read", message, None))
    assert isinstance(event, RequestReceived)
    assert event.request.id == 4
