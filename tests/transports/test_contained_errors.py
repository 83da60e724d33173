"""Errors of system tasks are contained; cancellation and interrupts are passed on."""

import signal

import pytest
import trio

from mcp_trio._transports.concurrency import contained


def test_errors_are_contained_alone_and_in_groups():
    kept = []
    for fault in (ValueError("a"), ExceptionGroup("", [ValueError("b")]), SystemExit(3)):
        with contained(kept.append):
            raise fault
    first, second, third = kept
    assert [str(each) for each in first.exceptions] == ["a"]
    assert second.subgroup(ValueError) is not None
    assert third.subgroup(SystemExit) is not None


async def test_a_cancellation_leaves_but_not_together_with_an_error():
    kept = []
    with trio.CancelScope() as scope:
        scope.cancel()
        with contained(kept.append):
            await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert kept == []
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.cancel()
        with contained(kept.append):
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep_forever)
                raise ValueError("c")
    (fault,) = kept
    assert fault.subgroup(trio.Cancelled) is None


def test_an_interrupt_reaches_the_main_task():
    kept, come = [], []
    before = signal.signal(signal.SIGINT, lambda *_: come.append(True))
    try:
        with contained(kept.append):
            raise KeyboardInterrupt
        assert come == [True]
        with contained(kept.append):
            raise ValueError
        assert come == [True]
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(kept) == 2


def test_without_an_error_nothing_is_contained():
    with contained(pytest.fail):
        pass
