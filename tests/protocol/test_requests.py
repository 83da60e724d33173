"""Requests in both directions: states, cancellation, progress and admission."""

import json
import math
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio import Limits
from mcp_trio._protocol.connection import (
    SESSION_TRANSITIONS,
    Ignored,
    ImmediateResponse,
    ProgressReceived,
    RequestCancelled,
    RequestReceived,
    SessionState,
)
from mcp_trio._protocol.methods import METHODS, Role, SessionTrigger
from mcp_trio._protocol.requests import (
    INCOMING_TRANSITIONS,
    OUTGOING_TRANSITIONS,
    Budget,
    IncomingState,
    IncomingTrigger,
    OutgoingState,
    OutgoingTrigger,
)
from mcp_trio._protocol.versions import NEWEST_LEGACY
from mcp_trio.errors import INVALID_PARAMS, INVALID_REQUEST, LocalProtocolError
from mcp_trio.limits import RequestLimits

# Every cell of the three state tables, against a copy written by hand.

# A row with both roles holds for either sender.
SESSION_COPY = """
FRESH        client        INITIALIZE         INITIALIZING
FRESH        client+server PING               FRESH
FRESH        client+server RESPONSE           FRESH
FRESH        client+server REFERENCE          FRESH
FRESH        server        LOG                FRESH
FRESH        client+server STATELESS          FRESH
FRESH        client+server CLOSE              CLOSED
INITIALIZING server        INITIALIZE_RESULT  ANSWERED
INITIALIZING server        INITIALIZE_ERROR   FRESH
INITIALIZING client+server PING               INITIALIZING
INITIALIZING client+server RESPONSE           INITIALIZING
INITIALIZING client+server REFERENCE          INITIALIZING
INITIALIZING server        LOG                INITIALIZING
INITIALIZING client+server STATELESS          INITIALIZING
INITIALIZING client+server CLOSE              CLOSED
ANSWERED     client        INITIALIZE         INITIALIZING
ANSWERED     client        INITIALIZED        READY
ANSWERED     client+server PING               ANSWERED
ANSWERED     client+server RESPONSE           ANSWERED
ANSWERED     client+server REFERENCE          ANSWERED
ANSWERED     server        LOG                ANSWERED
ANSWERED     client        REQUEST            ANSWERED
ANSWERED     client        NOTIFICATION       ANSWERED
ANSWERED     client+server STATELESS          ANSWERED
ANSWERED     client+server CLOSE              CLOSED
READY        client        INITIALIZE         INITIALIZING
READY        client+server PING               READY
READY        client+server RESPONSE           READY
READY        client+server REFERENCE          READY
READY        server        LOG                READY
READY        client+server REQUEST            READY
READY        client+server NOTIFICATION       READY
READY        client+server STATELESS          READY
READY        client+server CLOSE              CLOSED
"""

THEIR_COPY = """
RECEIVED  START   RUNNING
RECEIVED  RESPOND ANSWERED
RECEIVED  CANCEL  CANCELLED
RUNNING   RESPOND ANSWERED
RUNNING   CANCEL  CANCELLED
ANSWERED  CANCEL  ANSWERED
CANCELLED RESPOND CANCELLED
CANCELLED CANCEL  CANCELLED
"""

OUR_COPY = """
SENT      RESPOND ANSWERED
SENT      ABANDON ABANDONED
SENT      LOSE    LOST
ANSWERED  ABANDON ANSWERED
ANSWERED  LOSE    ANSWERED
ABANDONED RESPOND ABANDONED
ABANDONED ABANDON ABANDONED
ABANDONED LOSE    ABANDONED
LOST      ABANDON LOST
LOST      LOSE    LOST
"""


def session_rows():
    for line in SESSION_COPY.split("\n")[1:-1]:
        state, senders, kind, after = line.split()
        for sender in senders.split("+"):
            yield (state, sender, kind), after


def rows(text):
    for line in text.split("\n")[1:-1]:
        state, move, after = line.split()
        yield (state, move), after


def test_the_session_table_equals_its_written_copy():
    assert dict(session_rows()) == {
        (state.name, sender.value, trigger.name): after.name
        for state, transitions in SESSION_TRANSITIONS.items()
        for (sender, trigger), after in transitions.items()
    }


@pytest.mark.parametrize(
    ("transitions", "copy"),
    [(INCOMING_TRANSITIONS, THEIR_COPY), (OUTGOING_TRANSITIONS, OUR_COPY)],
    ids=["received", "sent"],
)
def test_the_tables_of_requests_equal_their_written_copies(transitions, copy):
    assert dict(rows(copy)) == {
        (state.name, trigger.name): after.name
        for state, row in transitions.items()
        for trigger, after in row.items()
    }


def test_states_without_an_exit_are_listed():
    assert set(SESSION_TRANSITIONS) == set(SessionState)
    assert set(INCOMING_TRANSITIONS) == set(IncomingState)
    assert set(OUTGOING_TRANSITIONS) == set(OutgoingState)


def send(connection, row, params):
    if row.is_request:
        return connection.open_request(row.name, params, now=0.0).message
    return connection.notification(row.name, params)


METHOD_CELLS = [
    pytest.param(sender, row, id=f"{sender.value}-{row.name}")
    for row in METHODS.values()
    for sender in sorted(row.senders, key=lambda role: role.value)
    if row.trigger is not SessionTrigger.REFERENCE and NEWEST_LEGACY in row.protocol_versions
]


@pytest.mark.requirement("LIFE-01", "LIFE-12", "LIFE-13", "LIFE-20")
@pytest.mark.parametrize(("sender", "row"), METHOD_CELLS)
def test_a_method_is_sent_only_in_states_with_a_row(ready, valid_params, sender, row):
    for state in SessionState:
        connection = ready(sender, state)
        after = dict(session_rows()).get((state.name, sender.value, row.trigger.name))
        if after is None:
            with pytest.raises(LocalProtocolError, match=rf"not allowed now.*{state.name}"):
                send(connection, row, valid_params[row.name])
            assert connection.state is state
            assert len(connection.outgoing) == 0, state
        else:
            assert send(connection, row, valid_params[row.name])
            assert connection.state.name == after, state


@pytest.mark.requirement("LIFE-01")
@pytest.mark.parametrize(("sender", "row"), METHOD_CELLS)
def test_a_method_is_received_only_in_states_with_a_row(ready, message, valid_params, sender, row):
    members = {
        "method": row.name,
        "params": msgspec.json.decode(msgspec.json.encode(valid_params[row.name])),
        **({"id": 7} if row.is_request else {}),
    }
    for state in SessionState:
        connection = ready(sender.peer, state)
        event = connection.receive(message(**members))
        after = dict(session_rows()).get((state.name, sender.value, row.trigger.name))
        rejected = (
            isinstance(event, Ignored | ImmediateResponse) and event.counter == "out of order"
        )
        assert rejected is (after is None), state
        if rejected and row.is_request:
            assert msgspec.json.decode(event.message)["error"]["code"] == INVALID_REQUEST, state
        answered_at_once = row.trigger is SessionTrigger.INITIALIZE and after is not None
        expected = "ANSWERED" if answered_at_once else after or state.name
        assert connection.state.name == expected, state


# Cancellation, in both directions and at every moment.


def taken(pair, message, id_=7):
    return pair.server.receive(message(id=id_, method="tools/list")).request


def cancel(pair, message, id_=7, **more):
    params = {"requestId": id_, **more}
    return pair.server.receive(message(method="notifications/cancelled", params=params))


@pytest.mark.requirement("CANC-01", "CANC-05", "TRAP-60")
@pytest.mark.parametrize("sender", Role)
def test_either_side_cancels_its_own_request(ready, message, sender):
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
def test_only_a_request_in_progress_is_cancelled_and_only_once(pair, message):
    answered = pair.client.open_request("tools/list", None, now=0.0)
    pair.client.receive(message(id=answered.id, result={"tools": []}))
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


@pytest.mark.requirement("CANC-03")
def test_an_initialize_that_begins_another_session_is_not_cancelled_either(pair):
    again = pair.client.open_request("initialize", pair.client.initialize_params(), now=0.0)
    assert pair.client.abandon(again) is None
    assert again.state is OutgoingState.ABANDONED


@pytest.mark.requirement("CANC-03", "CANC-07")
def test_a_cancellation_of_initialize_is_ignored(connect, message):
    client, server = connect(Role.CLIENT), connect(Role.SERVER)
    opened = client.open_request("initialize", client.initialize_params(), now=0.0)
    assert server.receive(opened.message).negotiated
    params = {"requestId": opened.id}
    event = server.receive(message(method="notifications/cancelled", params=params))
    assert event.counter == "late cancellation"


@pytest.mark.requirement("CANC-06")
@pytest.mark.parametrize("running", [False, True])
def test_a_cancelled_request_is_never_answered(pair, message, running):
    request = taken(pair, message)
    if running:
        request.move(IncomingTrigger.START)
    event = cancel(pair, message, reason="tide turned")
    assert isinstance(event, RequestCancelled)
    assert event.request is request
    assert event.reason == "tide turned"
    assert pair.server.finish(request) is False
    assert len(pair.server.incoming) == 0
    with pytest.raises(LocalProtocolError, match="START is not possible"):
        request.move(IncomingTrigger.START)


@pytest.mark.requirement("CANC-07", "CANC-10", "CANC-02", "TRAP-04", "TRAP-06")
def test_cancelling_a_request_that_is_not_open_does_nothing(pair, message):
    answered = taken(pair, message)
    pair.server.finish(answered)
    open_request = taken(pair, message, "8")
    ours = pair.server.open_request("roots/list", None, now=0.0)
    for id_ in (7, "7", 8, 10**30, ours.id):
        event = cancel(pair, message, id_)
        assert isinstance(event, Ignored)
        assert event.counter == "late cancellation"
    assert answered.state is IncomingState.ANSWERED
    assert open_request.state is IncomingState.RECEIVED
    assert ours.state is OutgoingState.SENT


@pytest.mark.requirement("CANC-07")
def test_a_second_cancellation_is_ignored(pair, message):
    request = taken(pair, message)
    assert isinstance(cancel(pair, message), RequestCancelled)
    assert cancel(pair, message).counter == "late cancellation"
    assert request.state is IncomingState.CANCELLED


@pytest.mark.requirement("CANC-05", "CANC-10")
@pytest.mark.parametrize(
    "params", [{}, {"requestId": None}, {"requestId": 1.5}, {"requestId": [7]}]
)
def test_a_malformed_cancellation_is_ignored(pair, message, params):
    request = taken(pair, message)
    event = pair.server.receive(message(method="notifications/cancelled", params=params))
    assert event.counter == "malformed notification"
    assert request.state is IncomingState.RECEIVED


@pytest.mark.requirement("CANC-08", "CANC-09", "TRAP-58")
def test_a_late_response_is_counted_and_ignored(pair, message):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    pair.client.abandon(opened)
    event = pair.client.receive(message(id=opened.id, result={"tools": []}))
    assert isinstance(event, Ignored)
    assert pair.client.counts == {"late answer": 1}
    assert opened.state is OutgoingState.ABANDONED
    again = pair.client.receive(message(id=opened.id, error={"code": 1, "message": "?"}))
    assert again.counter == "unknown answer"


@pytest.mark.requirement("TRAP-58")
def test_abandoned_ids_are_remembered_up_to_the_limit(ready, message):
    client = ready(Role.CLIENT, limits=Limits(requests=RequestLimits(ended_remembered_max=2)))
    opened = [client.open_request("ping", None, now=0.0) for _ in range(3)]
    for request in opened:
        client.abandon(request)
    assert not any(request.message for request in opened)  # their bytes are not
    kinds = [client.receive(message(id=request.id, result={})).counter for request in opened]
    assert kinds == ["unknown answer", "late answer", "late answer"]


@pytest.mark.requirement("CANC-09")
def test_a_response_that_crosses_a_cancellation_ends_the_request_once_on_each_side(pair):
    opened = pair.client.open_request("tools/list", None, now=0.0)
    request = pair.server.receive(opened.message).request
    request.move(IncomingTrigger.START)
    cancellation = pair.client.abandon(opened)
    assert pair.server.finish(request) is True  # the answer is on its way
    assert pair.server.receive(cancellation).counter == "late cancellation"
    with pytest.raises(LocalProtocolError, match="is ANSWERED: RESPOND is not possible"):
        pair.server.finish(request)


def test_a_cancelled_request_finished_twice_leaves_its_successor_alone(pair, message):
    first = taken(pair, message)
    cancel(pair, message)
    assert pair.server.finish(first) is False
    second = taken(pair, message)
    assert pair.server.finish(first) is False
    assert pair.server.incoming.get(7) is second


def test_a_response_to_a_lost_request_is_rejected_by_the_table(pair):
    opened = pair.client.open_request("ping", None, now=0.0)
    pair.client.close()
    with pytest.raises(LocalProtocolError, match="is LOST: RESPOND is not possible"):
        opened.move(OutgoingTrigger.RESPOND)


# Progress, pings and time limits.


def call(pair, message, token="t", id_=1):
    params = {"name": "tide", "_meta": {"progressToken": token}}
    return pair.server.receive(message(id=id_, method="tools/call", params=params))


def running(pair, message, token="t"):
    request = call(pair, message, token).request
    request.move(IncomingTrigger.START)
    return request


@pytest.mark.requirement("PROG-01", "PROG-04", "PROG-03", "TRAP-61")
@pytest.mark.parametrize("token", ["", "t", 0, -5, 2**70], ids=repr)
def test_progress_repeats_the_token_unchanged(pair, message, token):
    request = running(pair, message, token)
    assert json.loads(pair.server.progress(request, 1)) == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": token, "progress": 1},
    }
    assert json.loads(pair.server.progress(request, 2, 9))["params"]["total"] == 9


@pytest.mark.requirement("PROG-01", "META-10", "BASE-34")
@pytest.mark.parametrize("token", [1.5, True, [], {}], ids=repr)
def test_a_token_of_another_type_is_rejected(pair, message, token):
    event = call(pair, message, token)
    assert json.loads(event.message)["error"]["code"] == INVALID_PARAMS
    assert len(pair.server.incoming) == 0


@pytest.mark.requirement("PROG-03", "PROG-05")
def test_no_progress_is_sent_without_a_token(pair, message):
    assert call(pair, message, None).request.progress_token is None
    for id_, params in enumerate(({"name": "tide"}, {"name": "tide", "_meta": {}}), 2):
        event = pair.server.receive(message(id=id_, method="tools/call", params=params))
        event.request.move(IncomingTrigger.START)
        assert pair.server.progress(event.request, 1) is None


@pytest.mark.requirement("PROG-05", "PROG-09")
def test_progress_is_sent_only_while_the_request_runs(pair, message):
    queued = call(pair, message, "q", 1).request
    assert pair.server.progress(queued, 1) is None
    queued.move(IncomingTrigger.START)
    assert pair.server.progress(queued, 1)
    pair.server.finish(queued)
    assert pair.server.progress(queued, 2) is None
    cancelled = running(pair, message)
    params = {"requestId": cancelled.id}
    pair.server.receive(message(method="notifications/cancelled", params=params))
    assert pair.server.progress(cancelled, 2) is None


@pytest.mark.requirement("LIFE-20")
def test_no_progress_is_sent_after_the_session_is_closed(pair, message):
    request = running(pair, message)
    pair.server.close()
    assert pair.server.progress(request, 1) is None


@pytest.mark.requirement("PROG-06", "PROG-07", "TRAP-62")
@given(values=st.lists(st.one_of(st.integers(-9, 9), st.floats(-2, 2)), max_size=30))
def test_progress_grows_with_every_report(ready, message, values):
    server = ready(Role.SERVER)
    params = {"name": "tide", "_meta": {"progressToken": 1}}
    request = server.receive(message(id=1, method="tools/call", params=params)).request
    request.move(IncomingTrigger.START)
    sent = [leaving for value in values if (leaving := server.progress(request, value))]
    values_sent = [json.loads(leaving)["params"]["progress"] for leaving in sent]
    assert all(earlier < later for earlier, later in pairwise(values_sent))
    assert not values or values_sent[0] == values[0]
    assert not values or values_sent[-1] == max(values)


@pytest.mark.requirement("PROG-04", "PROG-07")
@pytest.mark.parametrize(
    "numbers", [(math.nan,), (math.inf,), (-math.inf,), (1, math.nan)], ids=str
)
def test_a_progress_value_that_json_cannot_express_is_a_local_error(pair, message, numbers):
    request = running(pair, message)
    with pytest.raises(LocalProtocolError, match="finite"):
        pair.server.progress(request, *numbers)
    assert pair.server.progress(request, 0.5, 0.75)


def report(connection, message, **params):
    return connection.receive(message(method="notifications/progress", params=params))


@pytest.mark.requirement("PROG-02", "PROG-03", "PROG-04", "PROG-07", "PROG-10", "TRAP-61")
def test_progress_of_an_open_request_is_received(pair, message):
    opened = pair.client.open_request(
        "tools/list", None, now=0.0, idle_seconds=10.0, total_seconds=99.0, wants_progress=True
    )
    event = report(pair.client, message, progressToken=opened.id, progress=0.25, total=1)
    assert isinstance(event, ProgressReceived)
    assert event.request is opened
    assert (event.params.progress, event.params.total) == (0.25, 1)


@pytest.mark.requirement("PROG-10", "PROG-05")
def test_late_and_unknown_tokens_do_no_harm(pair, message):
    opened = pair.client.open_request("tools/list", None, now=0.0, wants_progress=True)
    silent = pair.client.open_request("tools/list", None, now=0.0, idle_seconds=10.0)
    for token in (silent.id, str(opened.id), 999, ""):
        assert (
            report(pair.client, message, progressToken=token, progress=1).counter == "late progress"
        )
    pair.client.receive(message(id=opened.id, result={"tools": []}))
    late = report(pair.client, message, progressToken=opened.id, progress=1)
    assert late.counter == "late progress"
    assert silent.budget.deadline == 10.0
    assert pair.client.counts == {"late progress": 5}


@pytest.mark.requirement("PROG-04", "PROG-01")
@pytest.mark.parametrize(
    "params", [{"progress": 1}, {"progressToken": 1}, {"progressToken": 1.5, "progress": 1}]
)
def test_a_malformed_report_is_counted(pair, message, params):
    pair.client.open_request("tools/list", None, now=0.0, wants_progress=True)
    assert report(pair.client, message, **params).counter == "malformed notification"


@pytest.mark.requirement("PING-01")
@pytest.mark.parametrize("state", [state for state in SessionState if state.name != "CLOSED"])
@pytest.mark.parametrize("role", Role)
def test_ping_is_answered_at_once_with_an_empty_result(ready, message, role, state):
    event = ready(role, state).receive(message(id="p", method="ping"))
    assert isinstance(event, ImmediateResponse)
    assert json.loads(event.message) == {"jsonrpc": "2.0", "id": "p", "result": {}}


@pytest.mark.requirement("PING-01")
def test_ping_is_answered_while_requests_run_and_does_not_count_as_one(pair, message):
    assert isinstance(call(pair, message), RequestReceived)
    assert isinstance(pair.server.receive(message(id=2, method="ping")), ImmediateResponse)
    assert len(pair.server.incoming) == 1


@given(
    idle=st.floats(0, 100), total=st.floats(0, 100), signs=st.lists(st.floats(0, 50), max_size=5)
)
def test_a_budget_expires_exactly_at_its_deadline(idle, total, signs):
    budget = Budget(started=1000.0, idle_seconds=idle, total_seconds=total)
    for sign in sorted(signs):
        budget.last_activity = 1000.0 + sign
    assert budget.expired(budget.deadline) in {"idle", "total"}
    assert budget.expired(math.nextafter(budget.deadline, 0.0)) is None
    assert budget.deadline <= 1000.0 + total


def test_a_budget_names_the_exceeded_limit():
    budget = Budget(started=0.0, idle_seconds=5.0, total_seconds=8.0)
    assert budget.expired(5.0) == "idle"
    budget.last_activity = 5.0
    assert budget.expired(7.0) is None
    assert budget.expired(8.0) == "total"
    assert Budget(started=0.0, idle_seconds=math.inf, total_seconds=math.inf).deadline == math.inf
