"""The shares of clients in places, and the queue of their requests."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from mcp_trio import types as s
from mcp_trio._protocol.methods import METHODS
from mcp_trio._protocol.requests import Admission, IncomingRequest
from mcp_trio._protocol.shares import Rate, Shares, TokenBuckets, network_of
from mcp_trio.limits import Limits, RequestLimits


def request(id_, size_bytes=1, client=0):
    return IncomingRequest(
        id_, METHODS["tools/list"], s.PaginatedParams(), size_bytes, client_key=client
    )


def admission_of(**limits):
    return Admission(Limits(requests=RequestLimits(**limits)))


def start(admission, new):
    """Let a request arrive; return whether it started."""
    if admission.enter_if_free(new):
        return True
    assert admission.rejection(new) is None
    admission.enqueue(new)
    return False


def finish(admission, finished):
    """Finish a request; return the request that starts in its place."""
    following = admission.leave(finished)
    if following is not None:
        admission.enter(following)
    return following


# One client.


def test_requests_beyond_the_places_wait_in_order():
    admission = admission_of(in_flight_max=1)
    first, *waiting = [request(number) for number in range(3)]
    assert start(admission, first)
    assert not any(start(admission, each) for each in waiting)
    assert finish(admission, first) is waiting[0]
    assert finish(admission, waiting[0]) is waiting[1]
    assert finish(admission, waiting[1]) is None
    assert admission.running == admission.queued == 0


def test_a_slot_is_not_given_twice():
    admission = admission_of(in_flight_max=1)
    over = [request(1), request(2)]
    for each in over:
        admission.enter(each)
    admission.enqueue(request(3))
    assert admission.leave(over[0]) is None
    assert admission.leave(over[1]).id == 3


@pytest.mark.parametrize(
    ("limits", "setting"),
    [
        ({"queued_max": 1}, "limits.requests.queued_max=1)"),
        ({"queued_bytes_max": 19}, "limits.requests.queued_bytes_max=19)"),
    ],
)
def test_a_request_that_cannot_be_queued_is_rejected_with_the_setting(limits, setting):
    admission = admission_of(**limits)
    admission.enqueue(request(1, 10))
    assert setting in admission.rejection(request(2, 10))
    admission.withdraw_all()
    assert admission.rejection(request(2, 10)) is None


# Several clients.


def test_a_client_that_floods_leaves_places_and_room_in_the_queue_to_the_others():
    admission = admission_of(in_flight_max=4, queued_max=8)
    flood = [request(number, client="flood") for number in range(12)]
    assert [start(admission, each) for each in flood] == [True] * 4 + [False] * 8
    assert "queued_max=8" in admission.rejection(request(99, client="flood"))
    others = [request(100 + number, client=number) for number in range(4)]
    assert all(start(admission, each) for each in others)


def test_a_free_place_goes_to_the_client_with_the_fewest():
    admission = admission_of(in_flight_max=2, all_clients_factor=2)
    first, second = request(1, client="a"), request(2, client="a")
    third = request(3, client="b")
    assert start(admission, first)
    assert start(admission, second)
    assert start(admission, third)
    assert not start(admission, request(4, client="a"))
    assert not start(admission, request(5, client="b"))
    assert start(admission, request(6, client="c"))
    assert not start(admission, request(7, client="d"))
    assert finish(admission, first).id == 7


def test_a_rejection_for_all_clients_names_the_factor():
    admission = admission_of(in_flight_max=1, queued_max=1, all_clients_factor=2)
    for client in range(5):
        new = request(client, client=client)
        if admission.rejection(new) is None:
            admission.enqueue(new)
    text = admission.rejection(request(9, client=9))
    assert "of all clients (limits.requests.queued_max=1, all_clients_factor=2)" in text


def test_one_client_alone_may_use_its_maximum():
    admission = admission_of(in_flight_max=256, all_clients_factor=2)
    assert all(start(admission, request(number)) for number in range(256))


@pytest.mark.parametrize("total_max", [1, 2, 7, 100, 1024])
def test_it_takes_more_than_the_logarithm_of_clients_to_take_all_places(total_max):
    shares = Shares(total_max, 1, "limit")
    clients = 0
    while shares.total < total_max:
        while shares.may_take(clients):
            shares.take(clients)
        clients += 1
    assert clients > (total_max).bit_length() - 1


def test_clients_that_take_all_they_can_have_equal_shares_in_the_end_and_leave_one_share():
    shares = Shares(1000, 1, "limit")
    for round_ in range(6000):
        client = round_ % 9
        if round_ > 100 and shares.taken_by(client) > 1:
            shares.give_back(client)
        for other in range(9):
            while shares.may_take((client + other) % 9):
                shares.take((client + other) % 9)
    assert {shares.taken_by(client) for client in range(9)} <= set(range(98, 103))
    assert 1000 - shares.total >= 98


@pytest.mark.parametrize(
    ("address", "network"),
    [
        (None, None),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::"),
        ("none:", "none:"),
    ],
)
def test_an_address_counts_as_its_network(address, network):
    assert network_of(address) == network


def test_addresses_of_one_host_count_as_one_client():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1")


# All of it, in any order.

CLIENTS = st.sampled_from(["a", "b", "c", "d", "e", 1, 2])


class Admitted(RuleBasedStateMachine):
    """Clients send, cancel and finish requests in any order."""

    def __init__(self):
        super().__init__()
        self.running = []
        self.waiting = []
        self.overtaken = {}
        self.next_id = 0

    @initialize(
        in_flight_max=st.integers(0, 3),
        queued_max=st.integers(0, 4),
        queued_bytes_max=st.integers(0, 20),
        factor=st.integers(2, 4),
    )
    def limit(self, in_flight_max, queued_max, queued_bytes_max, factor):
        self.limits = RequestLimits(
            in_flight_max=in_flight_max,
            queued_max=queued_max,
            queued_bytes_max=queued_bytes_max,
            all_clients_factor=factor,
        )
        self.admission = Admission(Limits(requests=self.limits))

    def running_of(self, client):
        return sum(each.client_key == client for each in self.running)

    def waiting_of(self, client):
        return [each for each in self.waiting if each.client_key == client]

    def run(self, started):
        self.running.append(started)
        # A client without a running request waits for one start of each other such client at most.
        self.overtaken.pop(started.client_key, None)
        for client in {each.client_key for each in self.waiting} - {started.client_key}:
            if not self.running_of(client):
                starts = self.overtaken.setdefault(client, [])
                starts.append(started.client_key)
                assert len(starts) <= len(set(starts))

    @rule(client=CLIENTS, size=st.integers(1, 9))
    def arrive(self, client, size):
        self.next_id += 1
        new = request(self.next_id, size, client)
        rejection = self.admission.rejection(new)
        if self.admission.enter_if_free(new):
            assert not self.waiting_of(client)
            self.run(new)
        elif rejection is None:
            self.admission.enqueue(new)
            self.waiting.append(new)
        else:
            own = self.waiting_of(client)
            own_bytes = sum(each.size_bytes for each in own)
            free = self.limits.queued_max * self.limits.all_clients_factor - len(self.waiting)
            all_bytes = self.limits.queued_bytes_max * self.limits.all_clients_factor
            free_bytes = all_bytes - sum(each.size_bytes for each in self.waiting)
            assert (
                len(own) + 1 > min(self.limits.queued_max, free)
                or own_bytes + size > min(self.limits.queued_bytes_max, free_bytes)
            )  # fmt: skip

    @rule(index=st.integers(0, 11))
    def end_one(self, index):
        if index >= len(self.running):
            return
        ended = self.running.pop(index)
        following = self.admission.leave(ended)
        if following is not None:
            assert self.waiting_of(following.client_key)[0] is following
            fewest = min(self.running_of(each.client_key) for each in self.waiting)
            assert self.running_of(following.client_key) == fewest
            self.waiting.remove(following)
            self.admission.enter(following)
            self.run(following)

    @rule(index=st.integers(0, 15))
    def withdraw(self, index):
        if index < len(self.waiting):
            gone = self.waiting.pop(index)
            assert self.admission.withdraw(gone)
            assert not self.admission.withdraw(gone)
            if not self.waiting_of(gone.client_key):
                self.overtaken.pop(gone.client_key, None)

    @rule()
    def withdraw_all(self):
        gone = self.admission.withdraw_all()
        assert sorted(each.id for each in gone) == [each.id for each in self.waiting]
        self.waiting.clear()
        self.overtaken.clear()

    @invariant()
    def counts_agree(self):
        if not hasattr(self, "admission"):
            return
        admission = self.admission
        assert admission.running == len(self.running)
        assert admission.queued == len(self.waiting)
        waiting = admission._waiting
        assert (waiting is None) == (not self.waiting)
        if waiting is not None:
            size_bytes = sum(each.size_bytes for each in self.waiting)
            assert waiting.queued_bytes.total == size_bytes
            queued = waiting.queue._items.values()
            assert sum(len(items) for items in queued) == len(self.waiting)
        total_max = self.limits.in_flight_max * self.limits.all_clients_factor
        assert len(self.running) <= total_max
        assert len(self.waiting) <= self.limits.queued_max * self.limits.all_clients_factor

    @invariant()
    def no_client_waits_for_a_place_that_it_may_take(self):
        if not hasattr(self, "admission"):
            return
        total_max = self.limits.in_flight_max * self.limits.all_clients_factor
        free = total_max - len(self.running)
        for client in {each.client_key for each in self.waiting}:
            assert self.running_of(client) >= min(self.limits.in_flight_max, free)

    @invariant()
    def nothing_is_kept_of_clients_that_have_left(self):
        if not (self.running or not hasattr(self, "admission")):
            assert not self.admission._places._taken


def test_no_client_starves_and_all_bounds_hold():
    run_state_machine_as_test(Admitted, settings=settings(stateful_step_count=50, deadline=None))


# Rates


def test_a_bucket_is_used_up_by_a_burst_and_fills_at_the_rate():
    buckets, rate = TokenBuckets(), Rate(per_minute=60, burst=3)
    assert [buckets.take("a", rate, 100) for _ in range(4)] == pytest.approx([0, 0, 0, 1])
    assert buckets.take("b", rate, 100) == 0
    assert [buckets.take("a", rate, 102) for _ in range(3)] == pytest.approx([0, 0, 1])


def test_the_bucket_that_was_not_used_for_longest_is_forgotten_if_there_are_too_many():
    buckets, rate = TokenBuckets(), Rate(per_minute=1, burst=1)
    for key in ("first", "second", *range(9_999)):
        assert buckets.take(key, rate, 0) == 0
    assert buckets.take("second", rate, 0) > 0
    assert buckets.take("first", rate, 0) == 0


def test_tokens_are_taken_together_or_not_at_all():
    buckets, rate = TokenBuckets(), Rate(per_minute=60, burst=3)
    assert buckets.take("a", rate, 100, 2) == 0
    assert buckets.take("a", rate, 100, 2) == pytest.approx(1)
    assert buckets.take("a", rate, 100, 1) == 0
    assert buckets.take("a", rate, 100, 0.5) == pytest.approx(0.5)


def test_a_charge_beyond_the_bucket_is_made_up_for():
    buckets, rate = TokenBuckets(), Rate(per_minute=60, burst=3)
    buckets.charge("a", rate, 100, 5)
    assert buckets.take("a", rate, 100) == pytest.approx(3)
    buckets.charge("a", rate, 100, -4)
    assert buckets.take("a", rate, 100, 2) == 0
    assert buckets.take("a", rate, 100) == pytest.approx(1)


def test_full_buckets_are_forgotten():
    buckets, rate = TokenBuckets(), Rate(per_minute=60, burst=3)
    for key in range(100):
        buckets.take(key, rate, 100)
    buckets.take("late", rate, 102)
    assert list(buckets._full_at) == ["late"]


@given(
    st.lists(st.tuples(st.floats(0, 2), st.integers(1, 4)), max_size=60),
    st.floats(1, 600),
    st.integers(4, 20),
)
def test_no_client_gets_more_than_the_burst_and_the_rate(requests, per_minute, burst):
    buckets, rate, now, taken = TokenBuckets(), Rate(per_minute, burst), 0.0, 0
    for pause, tokens in requests:
        now += pause
        seconds = buckets.take("a", rate, now, tokens)
        if not seconds:
            taken += tokens
        assert taken <= burst + now * per_minute / 60 + 1e-3
        if seconds:
            taken += tokens
            now += seconds
            assert not buckets.take("a", rate, now, tokens)


@pytest.mark.parametrize(
    ("text", "per_minute", "burst"),
    [
        ("100/minute", 100, 100),
        ("0.5/second", 30, 1),
        ("2.5/hour", 2.5 / 60, 3),
        ("1_000/day", 1000 / 1440, 1000),
        ("10 MB/day", 10**7 / 1440, 10**7),
        ("1.5KiB/second", 92160, 1536),
    ],
)
def test_a_text_is_read_as_a_rate(text, per_minute, burst):
    rate = Rate.parse(text)
    assert (rate.per_minute, rate.burst) == (pytest.approx(per_minute), burst)
    assert Rate.parse(text, burst=7) == Rate(rate.per_minute, 7)


@pytest.mark.parametrize(
    "text",
    ["", "100", "100/month", "-1/minute", "1e3/minute", "0/day", "9" * 400 + "/day"],
)
def test_another_text_is_no_rate(text):
    with pytest.raises(ValueError, match="is not a rate: write '100/minute'"):
        Rate.parse(text)
