"""What waits for a client on one stream."""

import pytest
import trio
import trio.testing

from mcp_trio import Limits
from mcp_trio._transports.http_response import AnswerStream, Sent
from mcp_trio.limits import HttpLimits

LIMITS = Limits(http=HttpLimits(events_kept_max=3, unsent_bytes_max=10))


def note(text, event_id=None):
    return Sent(text.encode(), event_id, is_answer=False)


def answer(text):
    return Sent(text.encode(), None, is_answer=True)


def frames(stream):
    return [sent.frame.decode() for sent in stream.take()]


def test_frames_are_taken_in_order_and_once():
    stream = AnswerStream(LIMITS)
    stream.put(note("a"))
    stream.put(note("b"))
    assert stream.has_waiting
    assert frames(stream) == ["a", "b"]
    assert not stream.has_waiting
    assert frames(stream) == []


def test_a_stream_ends_with_the_last_answer_that_it_awaits():
    stream = AnswerStream(LIMITS, awaits={1, "a"})
    stream.answered(1)
    assert not stream.is_ended
    stream.answered(2)
    assert not stream.is_ended
    stream.answered("a")
    assert stream.is_ended


def test_answers_alone_are_distinguished_from_answers_among_others():
    stream = AnswerStream(LIMITS, awaits={1})
    stream.put(answer("x"))
    assert stream.answers is None
    stream.answered(1)
    assert stream.answers == [b"x"]
    stream.put(note("n"))
    assert stream.answers is None
    stream.take()
    assert stream.answers == []


def test_a_stream_without_a_response_drops_its_oldest_messages():
    stream = AnswerStream(LIMITS)
    for text in "abcd":
        stream.put(note(text))
    assert (frames(stream), stream.dropped) == (["b", "c", "d"], 1)
    stream.put(note("e" * 11))
    stream.put(note("f"))
    assert (frames(stream), stream.dropped, stream.is_overrun) == (["f"], 2, False)


def test_one_frame_may_be_as_large_as_it_is():
    for is_carried in (False, True):
        stream = AnswerStream(LIMITS)
        if is_carried:
            stream.carry(trio.CancelScope())
        stream.put(note("a"))
        stream.put(answer("b" * 100))
        assert (len(stream.take()), stream.is_overrun) == (2, False)


def test_a_response_that_is_too_slow_gets_nothing_more():
    stream = AnswerStream(LIMITS)
    stream.carry(trio.CancelScope())
    for text in "abcdefghijk":  # their number alone does not matter
        stream.put(note(text))
    assert not stream.is_overrun
    stream.put(note("l"))
    assert stream.is_overrun
    assert stream.has_news
    assert not stream.has_waiting


async def test_taking_a_stream_over_ends_the_previous_response():
    stream, first, second = AnswerStream(LIMITS), trio.CancelScope(), trio.CancelScope()
    stream.carry(first)
    stream.carry(second)
    assert (first.cancel_called, second.cancel_called) == (True, False)
    stream.put_down(first)
    assert stream.is_carried
    stream.put_down(second)
    assert not stream.is_carried


def test_what_was_missed_goes_first_and_nothing_twice():
    stream = AnswerStream(LIMITS)
    stream.put(note("b", "1-2"))
    stream.put(note("c", "1-3"))
    stream.put_again([note("a", "1-1"), note("b", "1-2")])
    assert frames(stream) == ["a", "b", "c"]


def test_a_stream_whose_client_is_away_holds_nothing():
    stream = AnswerStream(LIMITS)
    stream.put(note("a", "1-1"))
    stream.leave()
    stream.put(note("b", "1-2"))
    assert not stream.has_waiting
    stream.put_again([note("a", "1-1")])
    stream.put(note("c", "1-3"))
    assert frames(stream) == ["a", "c"]


@pytest.mark.parametrize(
    "tell",
    [
        lambda stream: stream.put(note("a")),
        lambda stream: stream.put_again([note("a")]),
        lambda stream: stream.end(),
    ],
)
async def test_news_end_every_wait(tell, autojump_clock):
    stream, woken = AnswerStream(LIMITS), []

    async def wait():
        await stream.news()
        woken.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not woken
        tell(stream)
    assert woken
    with trio.testing.assert_checkpoints():
        await stream.news()


async def test_the_end_is_waited_for_past_all_news(autojump_clock):
    stream = AnswerStream(LIMITS)
    with trio.move_on_after(1) as patience:
        stream.put(note("a"))
        await stream.ended()
    assert patience.cancelled_caught
    stream.end()
    with trio.testing.assert_checkpoints():
        await stream.ended()


async def test_a_wait_ends_after_its_time(autojump_clock):
    began = trio.current_time()
    stream = AnswerStream(LIMITS)
    await stream.soon(3)
    assert trio.current_time() - began == 3
    stream.put(note("a"))
    with trio.testing.assert_checkpoints():
        await stream.soon(3)
    assert trio.current_time() - began == 3
