"""The exception that leaves an internal nursery, of several in a group."""

import pytest
import trio

from mcp_trio._session.tasks import foremost

FAULT = KeyError("people's")


@pytest.fixture
async def cancelled():
    """A cancellation, as Trio raises it."""
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as caught:
            found = caught
            raise
    return found


def test_a_single_error_is_raised_without_its_group():
    assert foremost(ExceptionGroup("", [ExceptionGroup("", [FAULT])])) is FAULT


async def test_an_error_takes_precedence_over_cancellations(cancelled):
    inner = ExceptionGroup("", [FAULT])
    group = BaseExceptionGroup("", [cancelled, inner, BaseExceptionGroup("", [cancelled])])
    assert foremost(group) is FAULT


async def test_an_exception_that_is_neither_is_not_lost(cancelled):
    for members in ([cancelled], [FAULT, KeyboardInterrupt()]):
        group = BaseExceptionGroup("", members)
        assert foremost(group) is group
