"""Every cell of the three tables, against a copy written by hand."""

from itertools import product

import msgspec
import pytest

from mcp_trio._protocol.connection import SESSION_TRANSITIONS, SessionState
from mcp_trio._protocol.events import Ignored, Reply
from mcp_trio._protocol.methods import METHODS, Role, SessionTrigger
from mcp_trio._protocol.requests import (
    INCOMING_TRANSITIONS,
    OUTGOING_TRANSITIONS,
    IncomingState,
    IncomingTrigger,
    OutgoingState,
    OutgoingTrigger,
)
from mcp_trio._protocol.versions import NEWEST_LEGACY
from mcp_trio.errors import INVALID_REQUEST, LocalProtocolError

# Where both roles stand in one row, the row holds for either sender.
SESSION_COPY = """
FRESH        client        INITIALIZE         INITIALIZING
FRESH        client+server PING               FRESH
FRESH        client+server ANSWER             FRESH
FRESH        client+server REFERENCE          FRESH
FRESH        server        LOG                FRESH
FRESH        client+server STATELESS          FRESH
FRESH        client+server CLOSE              CLOSED
INITIALIZING server        INITIALIZE_RESULT  ANSWERED
INITIALIZING server        INITIALIZE_ERROR   FRESH
INITIALIZING client+server PING               INITIALIZING
INITIALIZING client+server ANSWER             INITIALIZING
INITIALIZING client+server REFERENCE          INITIALIZING
INITIALIZING server        LOG                INITIALIZING
INITIALIZING client+server STATELESS          INITIALIZING
INITIALIZING client+server CLOSE              CLOSED
ANSWERED     client        INITIALIZED        READY
ANSWERED     client+server PING               ANSWERED
ANSWERED     client+server ANSWER             ANSWERED
ANSWERED     client+server REFERENCE          ANSWERED
ANSWERED     server        LOG                ANSWERED
ANSWERED     client        REQUEST            ANSWERED
ANSWERED     client        NOTIFICATION       ANSWERED
ANSWERED     client+server STATELESS          ANSWERED
ANSWERED     client+server CLOSE              CLOSED
READY        client+server PING               READY
READY        client+server ANSWER             READY
READY        client+server REFERENCE          READY
READY        server        LOG                READY
READY        client+server REQUEST            READY
READY        client+server NOTIFICATION       READY
READY        client+server STATELESS          READY
READY        client+server CLOSE              CLOSED
"""

THEIR_COPY = """
RECEIVED  START  RUNNING
RECEIVED  ANSWER ANSWERED
RECEIVED  CANCEL CANCELLED
RUNNING   ANSWER ANSWERED
RUNNING   CANCEL CANCELLED
ANSWERED  CANCEL ANSWERED
CANCELLED ANSWER CANCELLED
CANCELLED CANCEL CANCELLED
"""

OUR_COPY = """
SENT      ANSWER  ANSWERED
SENT      ABANDON ABANDONED
SENT      LOSE    LOST
ANSWERED  ABANDON ANSWERED
ANSWERED  LOSE    ANSWERED
ABANDONED ANSWER  ABANDONED
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


SESSION_CELLS = list(product(SessionState, Role, SessionTrigger))


@pytest.mark.parametrize(
    ("state", "sender", "kind"), SESSION_CELLS, ids=lambda part: part.name.lower()
)
def test_the_session_table_says_what_its_copy_says(state, sender, kind):
    after = SESSION_TRANSITIONS[state].get((sender, kind))
    expected = dict(session_rows()).get((state.name, sender.value, kind.name))
    assert (after and after.name) == expected


@pytest.mark.parametrize(("state", "move"), list(product(IncomingState, IncomingTrigger)))
def test_the_table_of_their_requests_says_what_its_copy_says(state, move):
    after = INCOMING_TRANSITIONS[state].get(move)
    assert (after and after.name) == dict(rows(THEIR_COPY)).get((state.name, move.name))


@pytest.mark.parametrize(("state", "move"), list(product(OutgoingState, OutgoingTrigger)))
def test_the_table_of_our_requests_says_what_its_copy_says(state, move):
    after = OUTGOING_TRANSITIONS[state].get(move)
    assert (after and after.name) == dict(rows(OUR_COPY)).get((state.name, move.name))


def test_states_without_an_exit_are_listed():
    assert set(SESSION_TRANSITIONS) == set(SessionState)
    assert set(INCOMING_TRANSITIONS) == set(IncomingState)
    assert set(OUTGOING_TRANSITIONS) == set(OutgoingState)


def send(connection, row, params):
    if row.is_request:
        return connection.open_request(row.name, params, now=0.0).message
    return connection.notification(row.name, params)


METHOD_CELLS = [
    pytest.param(state, sender, row, id=f"{state.name}-{sender.value}-{row.name}")
    for state, row in product(SessionState, METHODS.values())
    for sender in sorted(row.senders, key=lambda role: role.value)
    if row.trigger is not SessionTrigger.REFERENCE and row.exists_in(NEWEST_LEGACY)
]


@pytest.mark.requirement("LIFE-01", "LIFE-12", "LIFE-13", "LIFE-20")
@pytest.mark.parametrize(("state", "sender", "row"), METHOD_CELLS)
def test_a_method_leaves_only_where_the_table_has_a_row(ready, valid_params, state, sender, row):
    connection = ready(sender, state)
    after = dict(session_rows()).get((state.name, sender.value, row.trigger.name))
    if after is None:
        with pytest.raises(LocalProtocolError, match=rf"not allowed now.*{state.name}"):
            send(connection, row, valid_params[row.name])
        assert connection.state is state
        assert len(connection.outgoing) == 0
    else:
        assert send(connection, row, valid_params[row.name])
        assert connection.state.name == after


@pytest.mark.requirement("LIFE-01")
@pytest.mark.parametrize(("state", "sender", "row"), METHOD_CELLS)
def test_a_method_is_taken_only_where_the_table_has_a_row(
    ready, frame, valid_params, state, sender, row
):
    connection = ready(sender.peer, state)
    members = {
        "method": row.name,
        "params": msgspec.json.decode(msgspec.json.encode(valid_params[row.name])),
    }
    event = connection.receive(frame(**members, **({"id": 7} if row.is_request else {})))
    after = dict(session_rows()).get((state.name, sender.value, row.trigger.name))
    rejected = isinstance(event, Ignored | Reply) and event.counted == "out of order"
    assert rejected is (after is None)
    if rejected and row.is_request:
        assert msgspec.json.decode(event.message)["error"]["code"] == INVALID_REQUEST
    answered_at_once = row.trigger is SessionTrigger.INITIALIZE and after is not None
    assert connection.state.name == ("ANSWERED" if answered_at_once else after or state.name)
