"""Two connections, in random conversations, agree about every request."""

import functools
import json
from collections import Counter, deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from mcp_trio._jsonrpc.messages import encode_error, encode_response
from mcp_trio._protocol.connection import (
    Ignored,
    ImmediateResponse,
    ProgressReceived,
    RequestCancelled,
    RequestReceived,
    ResponseReceived,
    ResponseUnreadable,
    SessionState,
)
from mcp_trio._protocol.methods import METHODS, Role
from mcp_trio._protocol.requests import IncomingState, IncomingTrigger, OutgoingState
from mcp_trio.errors import LocalProtocolError

pytestmark = pytest.mark.slow

SIDES = st.sampled_from(Role)
PICK = st.integers(0, 30)
IDS = st.one_of(st.integers(0, 12), st.sampled_from(["1", "a", None, 2.5, True]))

FORGED = st.fixed_dictionaries(
    {},
    optional={
        "id": IDS,
        "method": st.sampled_from([*METHODS, "tools/dance"]),
        "params": st.one_of(
            st.just({}),
            st.none(),
            st.builds(lambda id_: {"requestId": id_}, IDS),
            st.builds(lambda id_, at: {"progressToken": id_, "progress": at}, IDS, st.floats(0, 9)),
            st.builds(lambda token: {"name": "n", "_meta": {"progressToken": token}}, IDS),
        ),
        "result": st.sampled_from([{}, {"tools": []}, [], None]),
        "error": st.sampled_from([{"code": -1, "message": "no"}, {"code": "x"}]),
    },
).map(lambda members: json.dumps({"jsonrpc": "2.0", **members}).encode())


class End:
    """One side, with what the model remembers of it."""

    def __init__(self, connection):
        self.connection = connection
        self.inbox = deque()
        self.opened = []
        self.endings = Counter()
        self.taken = []
        self.answered = Counter()
        self.progress_sent = {}

    @property
    def role(self):
        return self.connection.our_role


class Conversation(RuleBasedStateMachine):
    """Messages leave legally or are forged; each arrives or is still under way."""

    def __init__(self, connect, params, *, with_handshake):
        super().__init__()
        self.ends = {role: End(connect(role)) for role in Role}
        self.params = params
        self.with_handshake = with_handshake

    @initialize()
    def shake_hands(self):
        if self.with_handshake:
            self.open(Role.CLIENT, "initialize", wants_progress=False)
            self.deliver(Role.SERVER)
            self.deliver(Role.CLIENT)
            self.deliver(Role.SERVER)
            assert {end.connection.state for end in self.ends.values()} == {SessionState.READY}

    def post(self, sender, message):
        assert b"\n" not in message
        self.ends[sender.peer].inbox.append(message)

    @rule(sender=SIDES, method=st.sampled_from(list(METHODS)), wants_progress=st.booleans())
    def open(self, sender, method, wants_progress):
        end = self.ends[sender]
        open_before = len(end.connection.outgoing)
        try:
            request = end.connection.open_request(
                method, self.params[method], now=0.0, wants_progress=wants_progress
            )
        except LocalProtocolError:
            assert len(end.connection.outgoing) == open_before
            return
        assert request.id not in {earlier.id for earlier in end.opened}
        end.opened.append(request)
        self.post(sender, request.message)

    @rule(sender=SIDES, method=st.sampled_from(list(METHODS)))
    def notify(self, sender, method):
        try:
            self.post(
                sender, self.ends[sender].connection.notification(method, self.params[method])
            )
        except LocalProtocolError:
            return

    @rule(receiver=SIDES, message=FORGED)
    def forge(self, receiver, message):
        self.ends[receiver].inbox.append(message)

    @rule(receiver=SIDES)
    def deliver(self, receiver):
        end = self.ends[receiver]
        if not end.inbox:
            return
        message = end.inbox.popleft()
        progress_states = {request.id: request.state for request in end.opened}
        event = end.connection.receive(message)
        members = json.loads(message)
        if "id" not in members:
            assert not isinstance(event, ImmediateResponse)
        if "method" not in members:
            assert isinstance(
                event, ResponseReceived | ResponseUnreadable | Ignored | ImmediateResponse
            )
        self.absorb(end, event, progress_states)

    def absorb(self, end, event, states_before):
        match event:
            case RequestReceived(request):
                assert request.method.name not in {"ping", "initialize"}
                end.taken.append(request)
            case ImmediateResponse(message):
                self.post(end.role, message)
            case ResponseReceived(request, result, error):
                assert (result is None) is not (error is None)
                assert states_before[request.id] is OutgoingState.SENT
                end.endings[request.id] += 1
                self.accept_initialize(end, event)
            case ResponseUnreadable(request):
                assert states_before[request.id] is OutgoingState.SENT
                end.endings[request.id] += 1
            case ProgressReceived(request):
                assert states_before[request.id] is OutgoingState.SENT
                assert request.wants_progress
            case RequestCancelled(request):
                assert request in end.taken
                assert request.state is IncomingState.CANCELLED
                assert end.answered[id(request)] == 0
            case _:
                assert isinstance(event, Ignored) or event.method.name in METHODS

    def accept_initialize(self, end, event):
        if event.request.method.name != "initialize" or event.error is not None:
            return
        forged = b"serverInfo" not in bytes(event.result)
        if not forged and end.connection.state is SessionState.ANSWERED:
            result = end.connection.decode_result(event.request, event.result)
            self.post(end.role, end.connection.accept_initialize(result))

    @rule(side=SIDES, pick=PICK)
    def start(self, side, pick):
        if taken := self.ends[side].taken:
            request = taken[pick % len(taken)]
            if request.state is IncomingState.RECEIVED:
                request.move(IncomingTrigger.START)
                assert request.state is IncomingState.RUNNING
            else:
                with pytest.raises(LocalProtocolError):
                    request.move(IncomingTrigger.START)

    @rule(side=SIDES, pick=PICK, fails=st.booleans())
    def finish(self, side, pick, fails):
        end = self.ends[side]
        if not end.taken:
            return
        request = end.taken[pick % len(end.taken)]
        if request.state is IncomingState.ANSWERED:
            with pytest.raises(LocalProtocolError):
                end.connection.finish(request)
            return
        cancelled = request.state is IncomingState.CANCELLED
        assert end.connection.finish(request) is not cancelled
        if not cancelled:
            end.answered[id(request)] += 1
            self.post(
                side,
                encode_error(request.id, -32603, "internal error")
                if fails
                else (encode_response(request.id, {})),
            )

    @rule(side=SIDES, pick=PICK, value=st.one_of(st.integers(0, 5), st.floats(0, 5)))
    def report(self, side, pick, value):
        end = self.ends[side]
        if not end.taken:
            return
        request = end.taken[pick % len(end.taken)]
        message = end.connection.progress(request, value)
        if message is None:
            return
        assert request.state is IncomingState.RUNNING
        assert value > end.progress_sent.get(id(request), -1)
        assert json.loads(message)["params"]["progressToken"] == request.progress_token
        end.progress_sent[id(request)] = value
        self.post(side, message)

    @rule(side=SIDES, pick=PICK)
    def abandon(self, side, pick):
        end = self.ends[side]
        if not end.opened:
            return
        request = end.opened[pick % len(end.opened)]
        was_open = request.state is OutgoingState.SENT
        name = request.method.name
        is_never_cancelled = name == "initialize" or (
            name == "server/discover" and end.connection.peer is None
        )
        message = end.connection.abandon(request, "enough")
        end.endings[request.id] += was_open
        assert (message is not None) is (was_open and not is_never_cancelled)
        if message is not None:
            self.post(side, message)

    @rule(receiver=SIDES, number=st.integers(0, 10**6))
    def ping(self, receiver, number):
        end = self.ends[receiver]
        fresh_id = f"ping {number}"
        message = json.dumps({"jsonrpc": "2.0", "id": fresh_id, "method": "ping"}).encode()
        event = end.connection.receive(message)
        assert isinstance(event, ImmediateResponse)
        if end.connection.state is not SessionState.CLOSED:
            assert json.loads(event.message) == {"jsonrpc": "2.0", "id": fresh_id, "result": {}}

    @rule(side=SIDES, really=st.sampled_from([False] * 19 + [True]))
    def close(self, side, really):
        if really:
            end = self.ends[side]
            for request in end.connection.close():
                end.endings[request.id] += 1
            assert end.connection.state is SessionState.CLOSED

    @invariant()
    def every_request_of_ours_ends_at_most_once(self):
        for end in self.ends.values():
            for request in end.opened:
                still_open = request.state is OutgoingState.SENT
                assert end.endings[request.id] == (0 if still_open else 1)
            assert len(end.connection.outgoing) == sum(
                request.state is OutgoingState.SENT for request in end.opened
            )

    @invariant()
    def every_request_of_theirs_is_answered_at_most_once(self):
        for end in self.ends.values():
            assert all(count == 1 for count in end.answered.values())

    def teardown(self):
        """The channels break: whatever is open ends, once."""
        for side in Role:
            self.close(side, really=True)
        self.every_request_of_ours_ends_at_most_once()
        for end in self.ends.values():
            assert all(end.endings[request.id] == 1 for request in end.opened)


@pytest.mark.requirement(
    "BASE-04",
    "BASE-14",
    "CANC-03",
    "CANC-06",
    "CANC-09",
    "PROG-05",
    "PROG-06",
    "PROG-09",
    "PING-01",
)
@pytest.mark.parametrize("with_handshake", [True, False])
def test_no_conversation_breaks_the_accounting(connect, valid_params, with_handshake):
    run_state_machine_as_test(
        functools.partial(Conversation, connect, valid_params, with_handshake=with_handshake),
        settings=settings(max_examples=60, stateful_step_count=40, deadline=None),
    )
