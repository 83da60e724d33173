"""The strategies of a sweep, without a session."""

from itertools import pairwise
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_trio._replay.schedules import (
    Decision,
    Deviation,
    PriorityOrder,
    RandomOrder,
    RecordedOrder,
    Schedule,
    decode_schedule,
    deviations_of,
    search_depth_first,
    shorten,
)
from mcp_trio.errors import RecordingError

LANES = ("r1 goes on", "r2 goes on", "r3: fetch ends")


def run(order, remaining):
    """Run a session whose lanes have so many turns left each; the first lane is the default."""
    decisions = []
    left = dict(zip(LANES, remaining, strict=False))
    while options := tuple(option for option, count in left.items() if count):
        chosen = order.choose(len(decisions), options, options[0])
        decisions.append(Decision(options, options[0], chosen))
        left[chosen] -= 1
    return decisions


@given(first=st.integers(0, 4), second=st.integers(0, 4))
def test_a_depth_first_search_runs_every_schedule_once(first, second):
    ran = []

    def run_all(orders):
        results = [run(order, (first, second)) for order in orders]
        ran.extend(tuple(each.chosen for each in result) for result in results)
        return results

    coverage = search_depth_first(run_all, 1000)
    assert coverage.is_complete
    assert str(coverage) == "these are all schedules"
    assert len(ran) == len(set(ran)) == comb(first + second, second)


def test_a_depth_first_search_reports_the_decisions_that_it_did_not_cover():
    counts = []

    def run_all(orders):
        counts.append(len(orders))
        return [run(order, (3, 3)) for order in orders]

    coverage = search_depth_first(run_all, 6)
    assert counts == [1, 3, 2]
    assert str(coverage) == (
        "all with at most 1 deviation from the recorded order; 4 with 2 were not run,"
        " and those with more"
    )


@given(seed=st.integers(0, 50))
def test_a_random_order_follows_from_its_seed_and_takes_any_option(seed):
    chosen = [each.chosen for each in run(RandomOrder(seed), (4, 4, 4))]
    assert chosen == [each.chosen for each in run(RandomOrder(seed), (4, 4, 4))]


def test_random_orders_differ_by_their_seeds():
    assert len({str(run(RandomOrder(seed), (4, 4, 4))) for seed in range(50)}) > 40


def changes(decisions):
    """Return how often another lane than the last one goes on while the last one could."""
    return sum(
        last.chosen != following.chosen and last.chosen in following.options
        for last, following in pairwise(decisions)
    )


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_a_priority_order_changes_lanes_less_often_than_its_bound(bound):
    counts = {changes(run(PriorityOrder(seed, 12, bound), (4, 4, 4))) for seed in range(200)}
    assert max(counts) == bound - 1


def test_a_priority_order_treats_all_options_of_a_lane_alike():
    order = PriorityOrder(0, 1, 1)
    first = order.choose(0, ("r1 goes on", "r2 goes on"), "r1 goes on").partition(" ")[0]
    assert order.choose(1, ("r1: fetch ends", "r2: fetch ends"), "r1: fetch ends").startswith(first)


def test_deviations_are_the_decisions_that_are_not_the_default():
    decisions = run(RecordedOrder({1: LANES[1]}), (2, 1))
    assert [each.chosen for each in decisions] == [LANES[0], LANES[1], LANES[0]]
    (deviation,) = deviations_of(decisions)
    assert deviation == Deviation(decision=1, take=LANES[1], instead_of=LANES[0])
    assert str(deviation) == "at decision 1: r2 goes on, not yet: r1 goes on"


def test_a_deviation_that_is_no_option_is_ignored():
    assert run(RecordedOrder({0: "r9 goes on"}), (2, 1)) == run(RecordedOrder(), (2, 1))


@given(
    needed=st.sets(st.integers(0, 30), max_size=4),
    others=st.sets(st.integers(0, 30), max_size=20),
)
def test_shortening_keeps_just_the_deviations_that_are_needed(needed, others):
    deviations = dict.fromkeys(needed | others, "r2 goes on")

    def fails(candidates):
        return [needed <= each.keys() for each in candidates]

    assert set(shorten(deviations, fails)) == needed


def test_shortening_gives_up_after_a_number_of_schedules():
    runs = []

    def fails(candidates):
        runs.extend(candidates)
        return [len(each) > 990 for each in candidates]

    kept = shorten(dict.fromkeys(range(1000), "r2 goes on"), fails)
    assert 990 < len(kept) <= 1000
    assert len(runs) < 2000


def test_a_schedule_is_read_as_it_was_written():
    deviation = Deviation(decision=3, take=LANES[0], instead_of=LANES[1])
    schedule = Schedule(recording="a", digest="b", deviations=(deviation,), shows=("late",))
    assert decode_schedule(schedule.encoded()) == schedule


@pytest.mark.parametrize("data", [b"", b"{}", b'{"recording": 1}'])
def test_a_value_that_is_no_schedule_is_rejected(data):
    with pytest.raises(RecordingError, match="no schedule of a sweep"):
        decode_schedule(data)
