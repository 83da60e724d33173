"""Cancellation, in both directions and at every moment."""

import json

import pytest

from mcp_trio import Limits
from mcp_trio._protocol.events import Ignored, RequestCancelled
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.requests import IncomingState, OutgoingState, OutgoingTrigger
from mcp_trio.errors import LocalProtocolError
from mcp_trio.limits import RequestLimits


def taken(pair, frame, id_=7):
    return pair.server.receive(frame(id=id_, method="tools/list")).request


def cancel(pair, frame, id_=7, **more):
    params = {"requestId": id_, **more}
    return pair.server.receive(frame(method="notifications/cancelled", params=params))


@pytest.mark.requirement("CANC-01", "CANC-05", "TRAP-60")
@pytest.mark.parametrize("sender", Role)
def test_either_side_cancels_its_own_request(ready, frame, sender):
    connection = ready(sender)
    method = {Role.CLIENT: "tools/list", Role.SERVER: "roots/list"}[sender]
    opened = connection.open_request(method, None, now=0.0)
    assert json.loads(connection.abandon(opened, "lunch")) == {
        "jsonrpc": "2.0",
        "method": "notifications/cancelled",
        "params": {"requestId": opened.id, "reason": "lunch"},
    }
    assert opened.state is OutgoingState.ABANDONED


@pytest.mark.requirement("CANC-01")
def test_a_reason_may_be_left_out(pair):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    assert json.loads(pair.client.abandon(opened))["params"] == {"requestId": opened.id}


@pytest.mark.requirement("CANC-02", "CANC-09")
def test_only_a_request_in_progress_is_cancelled_and_only_once(pair, frame):
    answered = pair.client.open_request("tools/list", None, now=0.0)
    pair.client.receive(frame(id=answered.id, result={"tools": []}))
    assert pair.client.abandon(answered) is None
    abandoned = pair.client.open_request("tools/list", None, now=0.0)
    assert pair.client.abandon(abandoned)
    assert pair.client.abandon(abandoned) is None
    lost = pair.client.open_request("tools/list", None, now=0.0)
    pair.client.close()
    assert pair.client.abandon(lost) is None


@pytest.mark.requirement("CANC-03")
def test_initialize_is_never_cancelled_by_us(connect):
    client = connect(Role.CLIENT)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    assert client.abandon(opened, "too slow") is None
    assert opened.state is OutgoingState.ABANDONED


@pytest.mark.requirement("CANC-03", "CANC-07")
def test_a_cancellation_of_initialize_is_ignored(connect, frame):
    client, server = connect(Role.CLIENT), connect(Role.SERVER)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    assert server.receive(opened.message).negotiated
    params = {"requestId": opened.id}
    event = server.receive(frame(method="notifications/cancelled", params=params))
    assert event.counted == "late cancellation"


@pytest.mark.requirement("CANC-06")
@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_request_is_never_answered(pair, frame, running):
    request = taken(pair, frame)
    if running:
        pair.server.start(request)
    event = cancel(pair, frame, reason="tide turned")
    assert isinstance(event, RequestCancelled)
    assert event.request is request
    assert event.reason == "tide turned"
    assert pair.server.finish(request) is False
    assert len(pair.server.incoming) == 0
    with pytest.raises(LocalProtocolError, match="START is not possible"):
        pair.server.start(request)


@pytest.mark.requirement("CANC-07", "CANC-10", "CANC-02", "TRAP-04", "TRAP-06")
def test_cancelling_what_is_not_open_does_nothing(pair, frame):
    answered = taken(pair, frame)
    pair.server.finish(answered)
    open_request = taken(pair, frame, "8")
    ours = pair.server.open_request("roots/list", None, now=0.0)
    for id_ in (7, "7", 8, 10**30, ours.id):
        event = cancel(pair, frame, id_)
        assert isinstance(event, Ignored)
        assert event.counted == "late cancellation"
    assert answered.state is IncomingState.ANSWERED
    assert open_request.state is IncomingState.RECEIVED
    assert ours.state is OutgoingState.SENT


@pytest.mark.requirement("CANC-07")
def test_a_second_cancellation_is_ignored(pair, frame):
    request = taken(pair, frame)
    assert isinstance(cancel(pair, frame), RequestCancelled)
    assert cancel(pair, frame).counted == "late cancellation"
    assert request.state is IncomingState.CANCELLED


@pytest.mark.requirement("CANC-05", "CANC-10")
@pytest.mark.parametrize(
    "params", [{}, {"requestId": None}, {"requestId": 1.5}, {"requestId": [7]}]
)
def test_a_malformed_cancellation_is_ignored(pair, frame, params):
    request = taken(pair, frame)
    event = pair.server.receive(frame(method="notifications/cancelled", params=params))
    assert event.counted == "malformed notification"
    assert request.state is IncomingState.RECEIVED


@pytest.mark.requirement("CANC-08", "CANC-09", "TRAP-58")
def test_a_late_answer_is_counted_and_reaches_nobody(pair, frame):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    pair.client.abandon(opened)
    event = pair.client.receive(frame(id=opened.id, result={"tools": []}))
    assert isinstance(event, Ignored)
    assert pair.client.counts == {"late answer": 1}
    assert opened.state is OutgoingState.ABANDONED
    again = pair.client.receive(frame(id=opened.id, error={"code": 1, "message": "?"}))
    assert again.counted == "unknown answer"


@pytest.mark.requirement("TRAP-58")
def test_abandoned_ids_are_remembered_up_to_the_limit(ready, frame):
    client = ready(Role.CLIENT, limits=Limits(requests=RequestLimits(ended_remembered_max=2)))
    opened = [client.open_request("ping", None, now=0.0) for _ in range(3)]
    for request in opened:
        client.abandon(request)
    assert not any(request.message for request in opened)  # their bytes are not
    kinds = [client.receive(frame(id=request.id, result={})).counted for request in opened]
    assert kinds == ["unknown answer", "late answer", "late answer"]


@pytest.mark.requirement("CANC-09")
def test_an_answer_and_a_cancellation_that_cross_end_the_request_once_at_each_end(pair):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    request = pair.server.receive(opened.message).request
    pair.server.start(request)
    cancellation = pair.client.abandon(opened)
    assert pair.server.finish(request) is True  # the answer is on its way
    assert pair.server.receive(cancellation).counted == "late cancellation"
    with pytest.raises(LocalProtocolError, match="is ANSWERED: ANSWER is not possible"):
        pair.server.finish(request)


def test_a_cancelled_request_finished_twice_leaves_its_successor_alone(pair, frame):
    first = taken(pair, frame)
    cancel(pair, frame)
    assert pair.server.finish(first) is False
    second = taken(pair, frame)
    assert pair.server.finish(first) is False
    assert pair.server.incoming.get(7) is second


def test_our_own_table_rejects_an_answer_to_a_lost_request(pair):
    opened = pair.client.open_request("ping", None, now=0.0)
    pair.client.close()
    with pytest.raises(LocalProtocolError, match="is LOST: ANSWER is not possible"):
        opened.move(OutgoingTrigger.ANSWER)
