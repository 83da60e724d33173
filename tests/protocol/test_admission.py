"""Places for handlers and the queue before them."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from mcp_trio import Limits
from mcp_trio import types as s
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import Admission, IncomingRequest
from mcp_trio.limits import RequestLimits


def request(id_, size_bytes=1):
    return IncomingRequest(id_, METHODS["tools/list"], s.PaginatedParams(), size_bytes)


def test_requests_beyond_the_places_wait_in_order():
    admission = Admission(Limits(requests=RequestLimits(in_flight_max=1)))
    assert admission.has_free_slot()
    admission.enter()
    assert not admission.has_free_slot()
    waiting = [request(1), request(2)]
    for each in waiting:
        assert admission.rejection(each) is None
        admission.wait(each)
    assert admission.leave() is waiting[0]
    assert not admission.has_free_slot()
    admission.enter()
    assert admission.leave() is waiting[1]
    assert admission.queued == 0


def test_a_place_is_not_given_twice():
    admission = Admission(Limits(requests=RequestLimits(in_flight_max=1)))
    admission.enter()
    admission.enter()
    admission.wait(request(1))
    assert admission.leave() is None
    assert admission.leave().id == 1


@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        (Limits(requests=RequestLimits(queued_max=1)), "limits.requests.queued_max=1"),
        (
            Limits(requests=RequestLimits(queued_bytes_max=19)),
            "limits.requests.queued_bytes_max=19",
        ),
    ],
)
def test_what_cannot_even_wait_is_told_the_setting(limits, setting):
    admission = Admission(limits)
    admission.wait(request(1, 10))
    assert setting in admission.rejection(request(2, 10))
    admission.withdraw_all()
    assert admission.rejection(request(2, 10)) is None


class Door(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.admission = Admission(Limits(requests=RequestLimits(in_flight_max=2, queued_max=3)))
        self.running = 0
        self.waiting = []
        self.next_id = 0

    @rule(size=st.integers(1, 9))
    def arrive(self, size):
        self.next_id += 1
        new = request(self.next_id, size)
        if self.admission.has_free_slot():
            self.run()
        elif self.admission.rejection(new) is None:
            self.admission.wait(new)
            self.waiting.append(new)
        else:
            assert len(self.waiting) == 3

    def run(self):
        self.admission.enter()
        self.running += 1

    @rule()
    def end_one(self):
        if self.running:
            self.running -= 1
            turn = self.admission.leave()
            assert turn is (self.waiting.pop(0) if self.waiting else None)
            if turn is not None:
                self.run()

    @rule(index=st.integers(0, 4))
    def withdraw(self, index):
        if index < len(self.waiting):
            gone = self.waiting.pop(index)
            assert self.admission.withdraw(gone)
            assert not self.admission.withdraw(gone)

    @rule()
    def withdraw_all(self):
        assert self.admission.withdraw_all() == self.waiting
        self.waiting.clear()

    @invariant()
    def counts_agree(self):
        assert self.admission.running == self.running <= 2
        assert self.admission.queued == len(self.waiting) <= 3
        assert self.admission._queued_bytes == sum(each.size_bytes for each in self.waiting)


def test_the_door_keeps_order_and_counts():
    run_state_machine_as_test(Door, settings=settings(max_examples=40, deadline=None))
