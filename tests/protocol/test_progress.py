"""Progress in both directions, ping at any time, and the budgets that progress renews."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._protocol.connection import SessionState
from mcp_trio._protocol.events import ProgressReceived, Reply, RequestReceived
from mcp_trio._protocol.methods import Role
from mcp_trio._protocol.requests import Budget
from mcp_trio.errors import INVALID_PARAMS, LocalProtocolError


def call(pair, frame, token="t", id_=1):
    params = {"name": "tide", "_meta": {"progressToken": token}}
    return pair.server.receive(frame(id=id_, method="tools/call", params=params))


def running(pair, frame, token="t"):
    request = call(pair, frame, token).request
    pair.server.start(request)
    return request


@pytest.mark.requirement("PROG-01", "PROG-04", "PROG-03", "TRAP-61")
@pytest.mark.parametrize("token", ["", "t", 0, -5, 2**70], ids=repr)
def test_a_report_carries_the_token_as_it_came(pair, frame, token):
    request = running(pair, frame, token)
    assert json.loads(pair.server.progress(request, 1)) == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": token, "progress": 1},
    }
    assert json.loads(pair.server.progress(request, 2, 9))["params"]["total"] == 9


@pytest.mark.requirement("PROG-01", "META-10", "BASE-34")
@pytest.mark.parametrize("token", [1.5, True, [], {}], ids=repr)
def test_a_token_of_another_type_is_rejected(pair, frame, token):
    event = call(pair, frame, token)
    assert json.loads(event.message)["error"]["code"] == INVALID_PARAMS
    assert len(pair.server.incoming) == 0


@pytest.mark.requirement("PROG-03", "PROG-05")
def test_who_gave_no_token_hears_nothing(pair, frame):
    assert call(pair, frame, None).request.progress_token is None
    for id_, params in enumerate(({"name": "tide"}, {"name": "tide", "_meta": {}}), 2):
        event = pair.server.receive(frame(id=id_, method="tools/call", params=params))
        pair.server.start(event.request)
        assert pair.server.progress(event.request, 1) is None


@pytest.mark.requirement("PROG-05", "PROG-09")
def test_progress_is_told_only_while_the_request_runs(pair, frame):
    queued = call(pair, frame, "q", 1).request
    assert pair.server.progress(queued, 1) is None
    pair.server.start(queued)
    assert pair.server.progress(queued, 1)
    pair.server.finish(queued)
    assert pair.server.progress(queued, 2) is None
    cancelled = running(pair, frame)
    params = {"requestId": cancelled.id}
    pair.server.receive(frame(method="notifications/cancelled", params=params))
    assert pair.server.progress(cancelled, 2) is None


@pytest.mark.requirement("LIFE-20")
def test_nothing_is_told_after_the_session_is_closed(pair, frame):
    request = running(pair, frame)
    pair.server.close()
    assert pair.server.progress(request, 1) is None


@pytest.mark.requirement("PROG-06", "PROG-07", "TRAP-62")
@given(values=st.lists(st.one_of(st.integers(-9, 9), st.floats(-2, 2)), max_size=30))
def test_progress_grows_with_every_report(ready, frame, values):
    server = ready(Role.SERVER)
    params = {"name": "tide", "_meta": {"progressToken": 1}}
    request = server.receive(frame(id=1, method="tools/call", params=params)).request
    server.start(request)
    sent = [leaving for value in values if (leaving := server.progress(request, value))]
    told = [json.loads(leaving)["params"]["progress"] for leaving in sent]
    assert all(earlier < later for earlier, later in pairwise(told))
    assert not values or told[0] == values[0]
    assert not values or told[-1] == max(values)


@pytest.mark.requirement("PROG-04", "PROG-07")
@pytest.mark.parametrize(
    "numbers", [(math.nan,), (math.inf,), (-math.inf,), (1, math.nan)], ids=str
)
def test_a_number_that_json_cannot_say_is_our_own_fault(pair, frame, numbers):
    request = running(pair, frame)
    with pytest.raises(LocalProtocolError, match="finite"):
        pair.server.progress(request, *numbers)
    assert pair.server.progress(request, 0.5, 0.75)


def report(connection, frame, **params):
    return connection.receive(frame(method="notifications/progress", params=params))


@pytest.mark.requirement("PROG-02", "PROG-03", "PROG-04", "PROG-07", "PROG-10", "TRAP-61")
def test_a_report_about_an_open_request_of_ours_arrives(pair, frame):
    opened = pair.client.open_request(
        "tools/list", None, now=0.0, idle_seconds=10.0, total_seconds=99.0, wants_progress=True
    )
    event = report(pair.client, frame, progressToken=opened.id, progress=0.25, total=1)
    assert isinstance(event, ProgressReceived)
    assert event.request is opened
    assert (event.params.progress, event.params.total) == (0.25, 1)


@pytest.mark.requirement("PROG-10", "PROG-05")
def test_late_and_unknown_tokens_do_no_harm(pair, frame):
    opened = pair.client.open_request("tools/list", None, now=0.0, wants_progress=True)
    silent = pair.client.open_request("tools/list", None, now=0.0, idle_seconds=10.0)
    for token in (silent.id, str(opened.id), 999, ""):
        assert (
            report(pair.client, frame, progressToken=token, progress=1).counted == "late progress"
        )
    pair.client.receive(frame(id=opened.id, result={"tools": []}))
    late = report(pair.client, frame, progressToken=opened.id, progress=1)
    assert late.counted == "late progress"
    assert silent.budget.deadline == 10.0
    assert pair.client.counts == {"late progress": 5}


@pytest.mark.requirement("PROG-04", "PROG-01")
@pytest.mark.parametrize(
    "params", [{"progress": 1}, {"progressToken": 1}, {"progressToken": 1.5, "progress": 1}]
)
def test_a_malformed_report_is_counted(pair, frame, params):
    pair.client.open_request("tools/list", None, now=0.0, wants_progress=True)
    assert report(pair.client, frame, **params).counted == "malformed notification"


@pytest.mark.requirement("PING-01")
@pytest.mark.parametrize("state", [state for state in SessionState if state.name != "CLOSED"])
@pytest.mark.parametrize("role", Role)
def test_ping_is_answered_at_once_with_an_empty_result(ready, frame, role, state):
    event = ready(role, state).receive(frame(id="p", method="ping"))
    assert isinstance(event, Reply)
    assert json.loads(event.message) == {"jsonrpc": "2.0", "id": "p", "result": {}}


@pytest.mark.requirement("PING-01")
def test_ping_is_answered_while_requests_run_and_does_not_count_as_one(pair, frame):
    assert isinstance(call(pair, frame), RequestReceived)
    assert isinstance(pair.server.receive(frame(id=2, method="ping")), Reply)
    assert len(pair.server.incoming) == 1


@given(
    idle=st.floats(0, 100), total=st.floats(0, 100), signs=st.lists(st.floats(0, 50), max_size=5)
)
def test_a_budget_expires_exactly_at_its_deadline(idle, total, signs):
    budget = Budget(started=1000.0, idle_seconds=idle, total_seconds=total)
    for sign in sorted(signs):
        budget.record_activity(1000.0 + sign)
    assert budget.expired(budget.deadline) in {"idle", "total"}
    assert budget.expired(math.nextafter(budget.deadline, 0.0)) is None
    assert budget.deadline <= 1000.0 + total


def test_a_budget_names_what_ran_out():
    budget = Budget(started=0.0, idle_seconds=5.0, total_seconds=8.0)
    assert budget.expired(5.0) == "idle"
    budget.record_activity(5.0)
    assert budget.expired(7.0) is None
    assert budget.expired(8.0) == "total"
    assert Budget(started=0.0, idle_seconds=math.inf, total_seconds=math.inf).deadline == math.inf
