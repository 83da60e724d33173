"""What we may send, and how our requests are numbered and ended."""

import json
import math

import msgspec
import pytest

from mcp_trio import Limits
from mcp_trio import types as s
from mcp_trio._protocol.events import Ignored, Reply, RequestReceived
from mcp_trio._protocol.methods import (
    METHODS,
    RequiredCapability,
    Role,
    SessionTrigger,
    has_capability,
)
from mcp_trio._protocol.versions import NEWEST_LEGACY
from mcp_trio.errors import METHOD_NOT_FOUND, LocalProtocolError, Unencodable
from mcp_trio.limits import MessageLimits


@pytest.mark.requirement("BASE-04", "BASE-02", "PROG-02", "TRAP-05")
def test_ids_are_never_used_twice_not_even_after_the_answer(pair, frame):
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
            pair.client.receive(frame(id=opened.id, result={"tools": []}))
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
def test_a_client_cannot_send_what_is_no_request_of_its_own(pair, method, text):
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
def test_a_client_cannot_notify_by_a_way_around_the_rules(pair, valid_params, method, text):
    with pytest.raises(LocalProtocolError, match=text):
        pair.client.notification(method, valid_params.get(method))


SENT_WHEN_READY = [
    row
    for row in METHODS.values()
    if row.exists_in(NEWEST_LEGACY)
    and row.trigger
    not in {SessionTrigger.INITIALIZE, SessionTrigger.INITIALIZED, SessionTrigger.REFERENCE}
]


@pytest.mark.requirement("BASE-13", "BASE-01")
@pytest.mark.parametrize("row", SENT_WHEN_READY, ids=lambda row: row.name)
def test_what_leaves_is_a_request_with_an_id_or_a_notification_without(ready, valid_params, row):
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


def test_what_is_too_deep_for_our_own_limit_does_not_leave(ready):
    client = ready(Role.CLIENT, limits=Limits(messages=MessageLimits(json_depth_max=5)))
    params = s.CallToolParams(name="tide", arguments=msgspec.Raw(b'{"x":[[[[]]]]}'))
    with pytest.raises(Unencodable, match=r"limits\.messages\.json_depth_max"):
        client.open_request("tools/call", params, now=0.0)
    server = ready(Role.SERVER, limits=Limits(messages=MessageLimits(json_depth_max=5)))
    with pytest.raises(Unencodable, match=r"limits\.messages\.json_depth_max"):
        server.notification(
            "notifications/message", s.LoggingMessageParams(level="info", data=[[[[]]]])
        )


def test_the_budget_of_a_request_begins_when_it_is_opened(pair):
    opened = pair.client.open_request(
        "ping", None, now=10.0, idle_seconds=5.0, total_seconds=math.inf
    )
    assert opened.budget.deadline == 15.0


NEEDY = [
    row
    for row in METHODS.values()
    if row.required_capability is not None and row.exists_in(NEWEST_LEGACY)
]


def without(role):
    return {Role.CLIENT: s.ClientCapabilities(), Role.SERVER: s.ServerCapabilities()}[role]


@pytest.mark.requirement("LIFE-14", "LIFE-16")
@pytest.mark.parametrize("row", NEEDY, ids=lambda row: row.name)
def test_what_was_not_announced_does_not_leave(connect, shake_hands, valid_params, row):
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
def test_what_was_not_announced_is_not_taken(connect, shake_hands, valid_params, row):
    holder = row.required_capability.holder
    ends = {holder: connect(holder), holder.peer: connect(holder.peer)}
    shake_hands(ends[Role.CLIENT], ends[Role.SERVER])
    sender = ends[next(iter(row.senders))]
    receiver = ends[sender.our_role.peer]
    params = valid_params[row.name]
    if row.is_request:
        leaving = [sender.open_request(row.name, params, now=0.0).message for _ in range(2)]
        assert isinstance(receiver.receive(leaving[0]), RequestReceived)
        receiver.our_capabilities = without(holder)
        event = receiver.receive(leaving[1])
        assert isinstance(event, Reply)
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
        assert receiver.receive(leaving).counted == "not announced"


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
def test_a_capability_is_announced_when_it_is_there_and_not_false(capabilities, path, expected):
    assert has_capability(capabilities, path) is expected


def test_a_need_names_its_holder():
    assert str(RequiredCapability(holder=Role.CLIENT, path="roots")) == "client capability 'roots'"


def test_every_method_has_valid_params_in_these_tests(valid_params):
    assert set(valid_params) == set(METHODS)
    assert all(type(valid_params[name]) is row.params for name, row in METHODS.items())
