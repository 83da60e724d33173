"""Users' own methods."""

import json

import attrs
import msgspec
import pytest

from mcp_trio import types as s
from mcp_trio._protocol.connection import (
    Ignored,
    ImmediateResponse,
    NotificationReceived,
    RequestReceived,
    ResponseReceived,
)
from mcp_trio._protocol.methods import METHODS, SERVER, SessionTrigger, custom_method
from mcp_trio.errors import INVALID_PARAMS, METHOD_NOT_FOUND, LocalProtocolError


class Search(msgspec.Struct):
    text: str


ROWS = {
    **METHODS,
    "acme/search": custom_method("acme/search", params=Search, result=dict[str, int]),
    "acme/any": custom_method("acme/any"),
    "notifications/acme": custom_method("notifications/acme", params=Search),
    "tools/list": custom_method("tools/list", params=dict),
    "acme/back": attrs.evolve(custom_method("acme/back"), senders=SERVER),
}


@pytest.fixture
def custom(pair):
    """Two ends that know more methods than the protocol has."""
    pair.client.methods = pair.server.methods = ROWS
    return pair


def test_the_name_of_a_custom_method_tells_requests_from_notifications():
    assert ROWS["acme/search"].is_request
    assert not ROWS["notifications/acme"].is_request


def test_a_known_method_keeps_everything_but_its_params():
    known, custom = METHODS["tools/list"], ROWS["tools/list"]
    assert custom.params is dict
    kept = ("name", "senders", "result", "trigger", "required_capability")
    assert [getattr(custom, name) for name in kept] == [getattr(known, name) for name in kept]
    assert custom_method("initialize", params=dict).trigger is SessionTrigger.INITIALIZE


def test_a_custom_request_has_typed_params_and_result(custom):
    opened = custom.client.open_request("acme/search", {"text": "x"}, now=0.0)
    event = custom.server.receive(opened.message)
    assert isinstance(event, RequestReceived)
    assert event.request.params == Search("x")
    answer = custom.client.receive(
        msgspec.json.encode({"jsonrpc": "2.0", "id": opened.id, "result": {"n": 3}})
    )
    assert isinstance(answer, ResponseReceived)
    assert custom.client.decode_result(opened, answer.result) == {"n": 3}


@pytest.mark.parametrize(
    "params",
    [
        None,
        {"text": "x"},
        {"text": "x", "_meta": {"more": 1}},
        {"text": "x", "_meta": None},
        s.EmptyParams(),
        s.EmptyParams(meta={"more": 1}),
    ],
)
@pytest.mark.requirement("PROG-02")
def test_progress_is_asked_for_with_any_params(custom, params):
    opened = custom.client.open_request("acme/any", params, now=0.0, wants_progress=True)
    sent = json.loads(opened.message)["params"]
    assert sent["_meta"]["progressToken"] == opened.id
    assert sent["_meta"].get("more") in (None, 1)
    event = custom.server.receive(opened.message)
    assert event.request.progress_token == opened.id


def test_the_token_is_the_engines_in_a_mapping_too(custom):
    with pytest.raises(LocalProtocolError, match="reserved"):
        custom.client.open_request("acme/any", {"_meta": {"progressToken": 1}}, now=0.0)


def test_invalid_params_of_a_custom_method_are_rejected(custom, message):
    for params in ({}, {"text": 1}):
        event = custom.server.receive(message(id=1, method="acme/search", params=params))
        assert isinstance(event, ImmediateResponse)
        assert json.loads(event.message)["error"]["code"] == INVALID_PARAMS


def test_a_custom_notification_arrives_typed(custom, message):
    sent = custom.client.notification("notifications/acme", {"text": "x"})
    event = custom.server.receive(sent)
    assert isinstance(event, NotificationReceived)
    assert event.params == Search("x")
    assert isinstance(
        custom.server.receive(message(method="notifications/acme", params={"text": 1})), Ignored
    )


def test_a_custom_method_is_sent_only_by_its_senders(custom, message):
    event = custom.server.receive(message(id=1, method="acme/back"))
    assert json.loads(event.message)["error"]["code"] == METHOD_NOT_FOUND
    with pytest.raises(LocalProtocolError, match="a client does not send acme/back"):
        custom.client.open_request("acme/back", None, now=0.0)
    assert custom.server.open_request("acme/back", None, now=0.0).id == 1


def test_a_connection_knows_nothing_of_the_rows_of_another(pair):
    with pytest.raises(LocalProtocolError, match="no such request"):
        pair.client.open_request("acme/search", None, now=0.0)


def test_the_error_for_an_unknown_method_explains_the_option_methods(pair):
    known = r"'acme/x'; declare a method of the server with Client\(methods=\{'acme/x': …\}\)"
    with pytest.raises(LocalProtocolError, match=f"no such request: {known}"):
        pair.client.open_request("acme/x", None, now=0.0)
    with pytest.raises(LocalProtocolError, match=f"no such notification: {known}"):
        pair.client.notification("acme/x")
    with pytest.raises(LocalProtocolError, match=r"no such notification: 'ping'$"):
        pair.client.notification("ping")
    with pytest.raises(LocalProtocolError, match=r"no such request: 'acme/x'$"):
        pair.server.open_request("acme/x", None, now=0.0)
