"""The exception that leaves an internal nursery, of several in a group."""

import pytest
import trio

from mcp_trio._session.tasks import exception_to_raise, together

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
    assert exception_to_raise(ExceptionGroup("", [ExceptionGroup("", [FAULT])])) is FAULT


async def test_an_error_takes_precedence_over_cancellations(cancelled):
    inner = ExceptionGroup("", [FAULT])
    group = BaseExceptionGroup("", [cancelled, inner, BaseExceptionGroup("", [cancelled])])
    assert exception_to_raise(group) is FAULT


async def test_an_exception_that_is_neither_is_not_lost(cancelled):
    for members in ([cancelled], [FAULT, KeyboardInterrupt()]):
        group = BaseExceptionGroup("", members)
        assert exception_to_raise(group) is group


# Concurrent calls for several keys, and their errors.


async def test_the_answers_have_the_order_of_the_keys():
    async def ask(key):
        for _ in range(3 - key):
            await trio.lowlevel.checkpoint()
        return key * 2

    assert list((await together([1, 3, 2], ask)).items()) == [(1, 2), (3, 6), (2, 4)]


async def test_of_simultaneous_errors_the_first_in_order_is_raised_without_a_group():
    for _ in range(20):
        go = trio.Event()

        async def ask(key, go=go):
            if key == "slow":
                await trio.sleep_forever()
            await go.wait()
            raise ValueError(key)

        async def let_go(go=go):
            await trio.testing.wait_all_tasks_blocked()
            go.set()

        with pytest.raises(ValueError, match="a") as caught:
            await together(["slow", "a", "b"], ask, note="for {!r}", meanwhile=let_go)
        assert caught.value.args == ("a",)
        assert caught.value.__notes__ == ["for 'a'"]


async def test_an_error_is_raised_although_the_caller_is_cancelled():
    with trio.CancelScope() as scope:

        async def ask(key):
            scope.cancel()
            raise ValueError(key)

        with pytest.raises(ValueError, match="a") as caught:
            await together("a", ask, meanwhile=trio.sleep_forever)
        assert not hasattr(caught.value, "__notes__")
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught


async def test_a_cancellation_without_errors_is_raised():
    with trio.move_on_after(0) as scope:
        await together("ab", lambda _: trio.sleep_forever())
    assert scope.cancelled_caught


@pytest.mark.parametrize(
    ("interrupt", "raised"),
    [(KeyboardInterrupt, KeyboardInterrupt), (SystemExit, BaseExceptionGroup)],
)
async def test_an_interrupt_takes_precedence_over_an_error(interrupt, raised):
    async def ask(key):
        raise {"a": ValueError, "b": interrupt}[key]

    with pytest.raises(raised) as caught:
        await together("ab", ask)
    assert caught.value.__context__ is None or caught.value.__suppress_context__
