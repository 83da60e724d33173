"""The steps that a resumable handler keeps from its earlier rounds."""

import pytest

from mcp_trio._session.journal import LANE, Memory, StepId
from mcp_trio.errors import LocalProtocolError


@pytest.fixture
def handler():
    """Be a resumable handler: gives a memory, and what enters its lane."""

    def begin(steps=()):
        memory = Memory("seed")
        memory.remember(steps)
        LANE.set(memory.lane)
        return memory

    yield begin
    LANE.set(None)


def do(memory, *names):
    """Come to steps by these names; those that are remembered, and then all that are."""
    known = []
    for name in names:
        place, step = memory.next_step(name, b"")
        if step is not None:
            known.append(name)
        memory.keep(place, "res", b"1")
    return known, [step.id.name for step in memory.steps]


async def test_a_step_is_identified_by_lane_ordinal_name_and_arguments(handler):
    first = handler()
    place, step = first.next_step("price", b"[1]")
    first.keep(place, "res", b"30")
    assert step is None

    again = handler(first.steps).next_step("price", b"[1]")
    other = handler(first.steps).next_step("price", b"[2]")
    assert bytes(again[1].body) == b"30"
    assert other[1] is None


async def test_with_a_step_that_changed_all_later_ones_are_forgotten(handler):
    first = handler()
    do(first, "a", "b", "c")

    assert do(handler(first.steps), "a", "B") == (["a"], ["a", "B"])


async def test_steps_that_a_round_has_used_are_not_forgotten(handler):
    first = handler()
    for name, lane in [("b", first.lane.child()), ("a", first.lane), ("c", first.lane)]:
        LANE.set(lane)
        do(first, name)
    second = handler(first.steps)
    second.remember(first.steps)
    LANE.set(second.lane)
    do(second, "a")
    LANE.set(second.lane.child())

    do(second, "B")

    assert [step.id.name for step in second.steps] == ["a", "B"]


async def test_without_a_change_of_the_code_a_step_keeps_its_outcome(handler):
    first = handler()
    do(first, "a")
    second = handler(first.steps)
    second.has_changed = lambda: False

    assert do(second, "redacted") == (["redacted"], ["a"])


async def test_a_cancellation_by_the_end_of_the_round_is_no_outcome(handler):
    memory = handler()
    place, _ = memory.next_step("slow", b"")
    memory.keep(place, "cxl", None)
    later, _ = memory.next_step("slower", b"")
    last, _ = memory.next_step("slowest", b"")
    memory.scope.cancel()
    memory.keep(later, "cxl", None)
    memory.keep(last, "res", b"1")

    assert [step.id.name for step in memory.steps] == ["slow", "slowest"]


async def test_an_operation_after_the_end_of_a_round_is_no_step(handler):
    first = handler()
    do(first, "a", "b")
    memory = handler(first.steps)
    do(memory, "a")
    memory.scope.cancel()

    assert do(memory, "b", "c") == ([], ["a", "b"])


async def test_questions_are_withdrawn_until_the_round_is_over(handler):
    memory, a, b = handler(), StepId("h", 1, "a", ""), StepId("h", 2, "b", "")
    memory.ask({a: "a?", b: "b?"})
    memory.withdraw([a])
    assert memory.questions == {"q2": (b, "b?")}
    assert memory.has_asked.is_set()

    memory.withdraw([b])
    assert not memory.has_asked.is_set()

    memory.ask({a: "a?"})
    memory.scope.cancel()
    memory.withdraw([a])
    assert memory.questions == {"q3": (a, "a?")}


def test_a_task_that_no_handler_started_has_no_steps(handler):
    memory = handler()
    LANE.set(None)

    with pytest.raises(LocalProtocolError, match="no lane"):
        memory.next_step("price", b"")
