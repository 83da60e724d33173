"""Answers that are too large, or no message: the requests that they were for end at once."""

import json

import pytest

from mcp_trio import Limits
from mcp_trio._jsonrpc.messages import Decoder, Malformed, malformed
from mcp_trio._protocol.connection import SessionState
from mcp_trio._protocol.events import Ignored, ResponseUnreadable
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.requests import oversized_response_id, response_id_of
from mcp_trio.errors import INVALID_REQUEST, OutcomeUnknown, RemoteProtocolError
from mcp_trio.limits import MessageLimits
from mcp_trio.transports import Oversized

LIMITS = Limits(messages=MessageLimits(bytes_max=100))


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
def test_a_large_answer_is_known_by_its_id_or_because_one_request_waits(text, waiting, whose):
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
def test_what_is_no_message_answers_whom_it_names_if_it_is_whole(text, whose):
    message = Decoder(json_depth_max=9).decode(text)
    assert isinstance(message, Malformed)
    assert response_id_of(message) == whose


def asked(ready, role=Role.CLIENT, method="tools/list"):
    connection = ready(role, limits=LIMITS)
    return connection, connection.open_request(method, None, now=0.0)


@pytest.mark.parametrize("has_id_first", [True, False])
def test_a_large_answer_ends_its_request_and_names_the_side_and_the_setting(ready, has_id_first):
    client, request = asked(ready)
    envelope = f'"id":{request.id},' if has_id_first else ""
    head = f'{{{envelope}"result":{{"tools":["x'.encode()
    event = client.receive(Oversized(size=5000, prefix=head))
    assert isinstance(event, ResponseUnreadable)
    assert event.request is request
    assert type(event.error) is OutcomeUnknown
    assert str(event.error) == (
        "the server's response to tools/list:"
        " at least 5000 bytes, over limits.messages.bytes_max=100 of this client"
    )
    assert event.counted == "unreadable answer"
    assert client.counts == {"unreadable answer": 1}
    assert not client.outgoing.waiting


def test_a_large_answer_to_nobody_is_counted(ready):
    client, request = asked(ready)
    other = Oversized(size=5000, prefix=f'{{"id":{request.id + 1},"result":{{"a'.encode())
    assert isinstance(client.receive(other), Ignored)
    assert client.outgoing.waiting == [request.id]


def test_of_two_who_wait_none_is_blamed(ready):
    client, first = asked(ready)
    second = client.open_request("tools/list", None, now=0.0)
    assert isinstance(client.receive(Oversized(size=5000, prefix=b'{"result":{"a')), Ignored)
    assert client.outgoing.waiting == [first.id, second.id]


def test_a_subscription_waits_for_no_large_answer(stateless_client, valid_params):
    listen = "subscriptions/listen"
    stateless_client.open_request(listen, valid_params[listen], now=0.0)
    large = Oversized(size=5000, prefix=b'{"result":{"a')
    assert isinstance(stateless_client.receive(large), Ignored)
    request = stateless_client.open_request("tools/list", None, now=0.0)
    assert stateless_client.receive(large).request is request


@pytest.mark.requirement("BASE-10", "BASE-30")
@pytest.mark.parametrize(
    ("result", "says"),
    [
        (rb'{"a":"\ud83d"}', "is not JSON: incomplete text, or an incomplete"),
        (b"[]", "is not a message: "),
    ],
)
def test_an_answer_that_is_no_message_ends_its_request(ready, result, says):
    client, request = asked(ready)
    frame = b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (request.id, result)
    event = client.receive(frame)
    assert event.request is request
    assert type(event.error) is RemoteProtocolError
    assert str(event.error).startswith(f"the server's response to tools/list {says}")
    assert client.counts == {"unreadable answer": 1}
    again = client.receive(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % request.id)
    assert again.counted == "unknown answer"


def test_what_quotes_the_peer_is_cut(ready):
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


def test_an_unreadable_answer_to_the_handshake_rejects_it(connect):
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
    assert str(event.error).endswith("limits.messages.bytes_max=100 of this server")
